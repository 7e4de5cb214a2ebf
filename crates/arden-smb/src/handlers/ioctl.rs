//! IOCTL, [MS-SMB2] 3.3.5.15: file system controls, [MS-FSCC] 2.3. Server-side copy, offload and the change journal are below.

mod copy;
mod integrity;
mod layout;
mod offload;
mod stream_snapshots;
mod usn;

use std::{net::IpAddr, sync::Arc, time::Duration};

use arden_store::{name::gmt_token, table::Open};
use arden_wire::{
    NtStatus, access,
    cursor::{Put, Reader},
    fscc::{self, fsctl},
    smb2::{
        Dialect, FileId,
        io::{IoctlRequest, put_ioctl_response},
    },
};

use crate::{
    handlers::request::{Fail, Handled, Request},
    model::{Durability, Object, SmbOpen},
};

pub fn ioctl(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let ioctl = IoctlRequest::parse(request.verified.message)?;
    if !ioctl.is_fsctl {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    let limit = request.verified.negotiated.max_transact;
    if ioctl.max_input_response > limit || ioctl.max_output_response > limit || ioctl.input.len() > limit as usize {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    request.check_charge(ioctl.input.len().max((ioctl.max_input_response + ioctl.max_output_response) as usize))?;
    if ioctl.max_output_response as usize > request.verified.room {
        return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
    }
    let on_connection = matches!(
        ioctl.ctl_code,
        fsctl::VALIDATE_NEGOTIATE_INFO
            | fsctl::QUERY_NETWORK_INTERFACE_INFO
            | fsctl::DFS_GET_REFERRALS
            | fsctl::DFS_GET_REFERRALS_EX
    );
    if on_connection && ioctl.file_id != FileId::RELATED {
        // [MS-SMB2] 3.3.5.15: these are about no file.
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let output = match ioctl.ctl_code {
        fsctl::VALIDATE_NEGOTIATE_INFO => (NtStatus::SUCCESS, validate_negotiate(request, &ioctl)?),
        fsctl::QUERY_NETWORK_INTERFACE_INFO => (NtStatus::SUCCESS, interfaces(request)?),
        // [MS-SMB2] 3.3.5.15.2: no DFS here.
        fsctl::DFS_GET_REFERRALS | fsctl::DFS_GET_REFERRALS_EX => return Err(NtStatus::FS_DRIVER_REQUIRED.into()),
        _ => {
            let open = request.open(ioctl.file_id)?;
            match &open.object {
                Object::Pipe(pipe) => crate::handlers::pipes::ioctl(request, &open, pipe, &ioctl)?,
                Object::File(file) => on_file(request, &open, file, &ioctl)?,
            }
        }
    };
    respond(ioctl.ctl_code, ioctl.file_id, ioctl.max_output_response as usize, output, out)
}

type Output = Result<(NtStatus, Vec<u8>), Fail>;

/// The response's body; an error where the output does not fit.
pub(crate) fn respond(
    ctl_code: u32,
    file_id: FileId,
    output_max: usize,
    (status, output): (NtStatus, Vec<u8>),
    out: &mut Vec<u8>,
) -> Handled {
    if output.len() > output_max {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    put_ioctl_response(out, ctl_code, file_id, &output);
    Ok(status)
}

fn on_file(request: &mut Request<'_>, open: &Arc<SmbOpen>, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    let fs = file.fs();
    let cause = request.cause();
    let none = |()| Ok((NtStatus::SUCCESS, Vec::new()));
    check_ctl_access(file, ioctl.ctl_code)?;
    let mut r = Reader::new(ioctl.input);
    if !request.may_block && (takes_long(ioctl.ctl_code) || fs.telling_takes_long(&**file.node())) {
        return Err(Fail::Block);
    }
    match ioctl.ctl_code {
        fsctl::SRV_REQUEST_RESUME_KEY => copy::resume_key(open, ioctl),
        fsctl::SRV_COPYCHUNK | fsctl::SRV_COPYCHUNK_WRITE => copy::copy_chunk(request, file, ioctl),
        fsctl::DUPLICATE_EXTENTS_TO_FILE => copy::duplicate_extents(request, file, ioctl),
        fsctl::DUPLICATE_EXTENTS_TO_FILE_EX => copy::duplicate_extents_ex(request, file, ioctl),
        fsctl::OFFLOAD_READ => offload::read(request, file, ioctl),
        fsctl::OFFLOAD_WRITE => offload::write(request, file, ioctl),
        fsctl::SRV_ENUMERATE_SNAPSHOTS => snapshots(file, ioctl),
        fsctl::SET_SPARSE => {
            if file.is_directory() {
                return Err(NtStatus::INVALID_PARAMETER.into());
            }
            let sparse = ioctl.input.first().is_none_or(|b| *b != 0);
            fs.set_sparse(request.scope, file, sparse)?;
            none(())
        }
        fsctl::SET_ZERO_DATA => {
            let (from, to) = (r.u64()?, r.u64()?);
            if from > i64::MAX as u64 || to > i64::MAX as u64 || to < from {
                return Err(NtStatus::INVALID_PARAMETER.into());
            }
            fs.zero_range(file, from, to - from, cause)?;
            none(())
        }
        fsctl::QUERY_ALLOCATED_RANGES => allocated_ranges(file, ioctl),
        fsctl::FILE_LEVEL_TRIM => trim(request, file, ioctl),
        fsctl::GET_NTFS_VOLUME_DATA | fsctl::GET_REFS_VOLUME_DATA => layout::volume_data(file, ioctl),
        fsctl::GET_RETRIEVAL_POINTERS => layout::retrieval_pointers(file, ioctl),
        fsctl::GET_RETRIEVAL_POINTER_COUNT => layout::retrieval_pointer_count(file, ioctl),
        fsctl::QUERY_FILE_REGIONS => layout::file_regions(file, ioctl),
        // [MS-FSCC] 2.2: what file systems have and do not offer to other machines.
        fsctl::ALLOW_EXTENDED_DASD_IO => Err(NtStatus::ACCESS_DENIED.into()),
        fsctl::GET_BOOT_AREA_INFO
        | fsctl::GET_RETRIEVAL_POINTER_BASE
        | fsctl::IS_VOLUME_DIRTY
        | fsctl::LOOKUP_STREAM_FROM_CLUSTER
        | fsctl::EXTEND_VOLUME
        | fsctl::SHRINK_VOLUME
        | fsctl::FILE_PREFETCH
        | fsctl::SET_PERSISTENT_VOLUME_STATE
        | fsctl::QUERY_PERSISTENT_VOLUME_STATE
        | fsctl::SD_GLOBAL_CHANGE => Err(NtStatus::INVALID_PARAMETER.into()),
        fsctl::GET_REPARSE_POINT => reparse_point(file, ioctl),
        fsctl::SET_REPARSE_POINT | fsctl::DELETE_REPARSE_POINT => {
            let (tag, data) = reparse_buffer(ioctl.input)?;
            match ioctl.ctl_code {
                fsctl::SET_REPARSE_POINT => fs.set_reparse(request.scope, file, tag, data)?,
                _ => fs.delete_reparse(request.scope, file, tag, data)?,
            }
            none(())
        }
        fsctl::GET_INTEGRITY_INFORMATION => integrity::get(file, ioctl),
        fsctl::SET_INTEGRITY_INFORMATION => integrity::set(request.scope, file, ioctl),
        fsctl::SET_INTEGRITY_INFORMATION_EX => integrity::set_ex(request.scope, file, ioctl),
        fsctl::REFS_STREAM_SNAPSHOT_MANAGEMENT => stream_snapshots::manage(request, file, ioctl),
        fsctl::MARK_HANDLE => mark_handle(file, ioctl),
        fsctl::CREATE_OR_GET_OBJECT_ID | fsctl::GET_OBJECT_ID => object_id(request, file, ioctl),
        fsctl::LMR_REQUEST_RESILIENCY => resiliency(request, open, ioctl),
        fsctl::CREATE_USN_JOURNAL
        | fsctl::DELETE_USN_JOURNAL
        | fsctl::QUERY_USN_JOURNAL
        | fsctl::READ_USN_JOURNAL
        | fsctl::READ_FILE_USN_DATA
        | fsctl::WRITE_USN_CLOSE_RECORD => usn::ioctl(request, open, file, ioctl),
        // [MS-FSA] 2.1.5.10: what the object store does not implement. Neither directory nor volume compresses files, 2.1.5.10.9 and
        // 2.1.5.10.30.
        fsctl::GET_COMPRESSION | fsctl::SET_COMPRESSION => Err(NtStatus::INVALID_DEVICE_REQUEST.into()),
        _ => Err(NtStatus::INVALID_DEVICE_REQUEST.into()),
    }
}

/// A control code of the file system says which data access its handle has to have, [MS-FSCC] 2.3 and CTL_CODE of Win32.
fn check_ctl_access(file: &Open, code: u32) -> Result<(), Fail> {
    const FILE_DEVICE_FILE_SYSTEM: u32 = 9;
    const FILE_READ_ACCESS: u32 = 1 << 14;
    const FILE_WRITE_ACCESS: u32 = 2 << 14;
    if code >> 16 != FILE_DEVICE_FILE_SYSTEM {
        return Ok(());
    }
    if code & FILE_READ_ACCESS != 0 {
        need(file, access::FILE_READ_DATA)?;
    }
    if code & FILE_WRITE_ACCESS != 0 {
        need(file, access::FILE_WRITE_DATA)?;
    }
    Ok(())
}

/// These go over a whole file or all its snapshots, over as many ranges as the input has, or through all snapshots.
fn takes_long(ctl_code: u32) -> bool {
    matches!(
        ctl_code,
        fsctl::SET_ZERO_DATA
            | fsctl::QUERY_ALLOCATED_RANGES
            | fsctl::FILE_LEVEL_TRIM
            | fsctl::GET_RETRIEVAL_POINTERS
            | fsctl::GET_RETRIEVAL_POINTER_COUNT
            | fsctl::SRV_ENUMERATE_SNAPSHOTS
            | fsctl::REFS_STREAM_SNAPSHOT_MANAGEMENT
    )
}

/// SRV_SNAPSHOT_ARRAY, [MS-SMB2] 2.2.32.2 and 3.3.5.15.1: NumberOfSnapShots, NumberOfSnapShotsReturned,
/// SnapShotArraySize, and the names where there is room for all.
fn snapshots(file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    if ioctl.max_output_response < 16 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let times = file.fs().previous_versions(file);
    let mut names = Vec::new();
    for time in &times {
        names.put_utf16(&gmt_token(*time));
        names.put_u16(0);
    }
    names.put_u16(0);
    let fits = !times.is_empty() && 12 + names.len() <= ioctl.max_output_response as usize;
    let mut out = Vec::with_capacity(12 + names.len());
    out.put_u32(times.len() as u32);
    out.put_u32(if fits { times.len() as u32 } else { 0 });
    out.put_u32(names.len() as u32);
    if fits {
        out.extend_from_slice(&names);
    } else {
        out.put_u32(0);
    }
    Ok((NtStatus::SUCCESS, out))
}

/// [MS-SMB2] 3.3.5.15.12: a difference means that somebody changed the negotiation; the connection ends.
fn validate_negotiate(request: &Request<'_>, ioctl: &IoctlRequest<'_>) -> Result<Vec<u8>, Fail> {
    let n = request.verified.negotiated;
    if n.dialect == Dialect::Smb311 {
        return Err(Fail::Close("FSCTL_VALIDATE_NEGOTIATE_INFO with dialect 3.1.1"));
    }
    if ioctl.max_output_response < 24 {
        return Err(Fail::Close("FSCTL_VALIDATE_NEGOTIATE_INFO without room for the answer"));
    }
    let mut r = Reader::new(ioctl.input);
    let (capabilities, guid, mode, count) = (r.u32()?, r.u128()?, r.u16()?, r.u16()?);
    let mut dialects = Vec::new();
    for _ in 0..count {
        dialects.push(r.u16()?);
    }
    if capabilities != n.client_capabilities
        || guid != n.client_guid
        || mode != n.client_security_mode
        || dialects != n.client_dialects
    {
        return Err(Fail::Close("FSCTL_VALIDATE_NEGOTIATE_INFO differs from the negotiation"));
    }
    let mut out = Vec::with_capacity(24);
    out.put_u32(n.server_capabilities);
    out.put_u128(request.trees.config.guid);
    out.put_u16(n.server_security_mode);
    out.put_u16(n.dialect as u16);
    Ok(out)
}

/// NETWORK_INTERFACE_INFO, [MS-SMB2] 2.2.32.5, for a client of any dialect, as 3.3.5.15.11 leaves to the server.
fn interfaces(request: &Request<'_>) -> Result<Vec<u8>, Fail> {
    let interfaces = request.trees.interfaces.read();
    let mut out = Vec::new();
    for (i, interface) in interfaces.iter().enumerate() {
        let at = out.len();
        out.put_u32(0);
        out.put_u32(interface.index);
        out.put_u32(u32::from(interface.rss));
        out.put_u32(0);
        out.put_u64(interface.speed_bits);
        match interface.address {
            IpAddr::V4(v4) => {
                out.put_u16(2);
                out.put_u16(0);
                out.extend_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => {
                out.put_u16(0x17);
                out.put_u16(0);
                out.put_u32(0);
                out.extend_from_slice(&v6.octets());
                out.put_u32(0);
            }
        }
        out.resize(at + 152, 0);
        if i + 1 < interfaces.len() {
            out.patch_u32(at, 152);
        }
    }
    if out.is_empty() { Err(NtStatus::NOT_SUPPORTED.into()) } else { Ok(out) }
}

fn allocated_ranges(file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    let mut r = Reader::new(ioctl.input);
    let (offset, len) = (r.u64()?, r.u64()?);
    if offset > i64::MAX as u64 || len > i64::MAX as u64 - offset {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let room = ioctl.max_output_response as usize / 16;
    let ranges = file.fs().allocated_ranges(file, offset, len, room + 1)?;
    if room == 0 && !ranges.is_empty() {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    let mut out = Vec::with_capacity(ranges.len().min(room) * 16);
    for (from, len) in ranges.iter().take(room) {
        out.put_u64(*from);
        out.put_u64(*len);
    }
    let status = if ranges.len() > room { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    Ok((status, out))
}

/// FSCTL_GET_REPARSE_POINT, [MS-FSA] 2.1.5.10.14: what fits, where the header does.
fn reparse_point(file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    let (tag, data) = file.fs().reparse(file)?;
    let (guid, room) = (fscc::reparse_guid_bytes(tag), ioctl.max_output_response as usize);
    if room < fscc::REPARSE_HEADER_BYTES + guid {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    let mut output = Vec::with_capacity(fscc::REPARSE_HEADER_BYTES + data.len());
    output.put_u32(tag);
    output.put_u16(data.len().saturating_sub(guid) as u16);
    output.put_u16(0);
    output.extend_from_slice(&data);
    let status = if output.len() > room { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    output.truncate(room);
    Ok((status, output))
}

/// The tag of a REPARSE_DATA_BUFFER or REPARSE_GUID_DATA_BUFFER, and what follows its header, [MS-FSCC] 2.1.2.2 and 2.1.2.3.
fn reparse_buffer(input: &[u8]) -> Result<(u32, &[u8]), Fail> {
    let invalid = |_| Fail::Status(NtStatus::IO_REPARSE_DATA_INVALID);
    let mut r = Reader::new(input);
    let (tag, len) = (r.u32().map_err(invalid)?, usize::from(r.u16().map_err(invalid)?));
    r.skip(2).map_err(invalid)?;
    let data = r.rest();
    if data.len() != len + fscc::reparse_guid_bytes(tag) || input.len() > fscc::REPARSE_BUFFER_BYTES_MAX {
        return Err(NtStatus::IO_REPARSE_DATA_INVALID.into());
    }
    Ok((tag, data))
}

/// FSCTL_FILE_LEVEL_TRIM, [MS-FSA] 2.1.5.10.6: the contents of the whole pages in each range are given up.
fn trim(request: &Request<'_>, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    /// Open.File.Volume.SystemPageSize.
    const PAGE_BYTES: u64 = 4096;
    let mut r = Reader::new(ioctl.input);
    let (key, count) = (r.u32()?, r.u32()?);
    if key != 0 || count == 0 || matches!(ioctl.max_output_response, 1..4) || file.is_directory() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let end = file.fs().stat(file)?.stat.end_of_file;
    // What lies in the page behind the end of the file is allocated with it.
    let allocated = end.next_multiple_of(PAGE_BYTES);
    let mut processed = 0u32;
    for _ in 0..count {
        let (offset, len) = (r.u64()?, r.u64()?);
        let stop = offset.checked_add(len).ok_or(NtStatus::INTEGER_OVERFLOW)?;
        let from = offset.checked_next_multiple_of(PAGE_BYTES).ok_or(NtStatus::INTEGER_OVERFLOW)?;
        let stop = if offset < allocated { stop.min(allocated) } else { stop };
        let stop = stop - stop % PAGE_BYTES;
        if from >= stop {
            continue;
        }
        if from < end {
            file.fs().zero_range(file, from, stop.min(end) - from, request.cause())?;
        }
        processed += 1;
    }
    let told = processed.to_le_bytes();
    Ok((NtStatus::SUCCESS, if ioctl.max_output_response == 0 { Vec::new() } else { told.to_vec() }))
}

/// FSCTL_MARK_HANDLE, [MS-FSA] 2.1.5.10.19: which copy of the data reads of this open are of.
fn mark_handle(file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    /// MARK_HANDLE_INFO, [MS-FSCC] 2.3.39.
    const INFO_BYTES: usize = 24;
    const READ_COPY: u32 = 0x80;
    const NOT_READ_COPY: u32 = 0x100;
    if ioctl.input.len() < INFO_BYTES {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    if file.is_directory() {
        return Err(NtStatus::DIRECTORY_NOT_SUPPORTED.into());
    }
    let mut r = Reader::new(ioctl.input);
    let (copy, _unused, _volume_handle, flags) = (r.u32()?, r.u32()?, r.u64()?, r.u32()?);
    let copy = match flags {
        READ_COPY => Some(copy),
        NOT_READ_COPY => None,
        _ => return Err(NtStatus::INVALID_PARAMETER.into()),
    };
    file.fs().choose_copy(file, copy)?;
    Ok((NtStatus::SUCCESS, Vec::new()))
}

/// FILE_OBJECTID_BUFFER, [MS-FSCC] 2.1.3.
fn object_id(request: &Request<'_>, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    if ioctl.max_output_response < 64 {
        // [MS-FSA] 2.1.5.10.2 and 2.1.5.10.11.
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let id = match file.fs().object_id(file)? {
        Some(id) => id,
        None if ioctl.ctl_code == fsctl::GET_OBJECT_ID => return Err(NtStatus::OBJECT_NAME_NOT_FOUND.into()),
        None => {
            let id = u128::from_le_bytes(request.trees.random());
            file.fs().set_object_id(request.scope, file, id)?;
            id
        }
    };
    let mut out = Vec::with_capacity(64);
    out.put_u128(id);
    out.put_u128(file.fs().store().volume().id);
    out.put_u128(id);
    out.put_u128(0);
    Ok((NtStatus::SUCCESS, out))
}

/// [MS-SMB2] 3.3.5.15.9.
fn resiliency(request: &Request<'_>, open: &SmbOpen, ioctl: &IoctlRequest<'_>) -> Output {
    if request.verified.dialect() == Dialect::Smb202 {
        return Err(NtStatus::INVALID_DEVICE_REQUEST.into());
    }
    let timeout_ms = Reader::new(ioctl.input).u32()?;
    let limits = &request.trees.config.limits;
    let timeout = Duration::from_millis(u64::from(timeout_ms));
    if ioctl.input.len() < 8 || timeout > limits.resilient_timeout_max {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let timeout = if timeout.is_zero() { limits.durable_timeout_default } else { timeout };
    let mut state = open.state.lock();
    // A persistent open is preserved already, and longer.
    if !matches!(state.durability, Durability::Persistent { .. }) {
        state.durability = Durability::Resilient { timeout };
    }
    Ok((NtStatus::SUCCESS, Vec::new()))
}

/// Access that a handle must have been granted.
pub(crate) fn need(file: &Open, bits: u32) -> Result<(), Fail> {
    if file.granted_access() & bits != 0 { Ok(()) } else { Err(NtStatus::ACCESS_DENIED.into()) }
}

pub(crate) const READ: u32 = access::FILE_READ_DATA | access::FILE_EXECUTE;
pub(crate) const WRITE: u32 = access::FILE_WRITE_DATA | access::FILE_APPEND_DATA;

/// A FileId inside an FSCTL's input.
pub(crate) fn file_id(r: &mut Reader<'_>) -> Result<FileId, Fail> {
    Ok(FileId::read(r)?)
}
