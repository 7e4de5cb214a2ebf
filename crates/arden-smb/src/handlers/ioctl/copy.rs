//! Server-side copy: resume keys, SRV_COPYCHUNK and DUPLICATE_EXTENTS_TO_FILE, [MS-SMB2] 3.3.5.15.5 and .6.

use std::sync::Arc;

use arden_store::{
    error::{NotDone, StoreError},
    table::Open,
};
use arden_wire::{
    NtStatus, access,
    cursor::{Put, Reader},
    fscc::{FILE_SUPPORTS_BLOCK_REFCOUNTING, fsctl},
    smb2::io::IoctlRequest,
};

use crate::{
    base::status,
    handlers::{
        ioctl::{READ, WRITE, file_id, need},
        request::{Fail, Request},
    },
    model::SmbOpen,
};

/// [MS-SMB2] 3.3.3: ServerSideCopyMaxNumberofChunks, MaxChunkSize, MaxDataSize.
const CHUNKS_MAX: u32 = 256;
const CHUNK_BYTES_MAX: u32 = 1 << 20;
const COPY_BYTES_MAX: u64 = 16 << 20;

const INVALID_VIEW_SIZE: NtStatus = NtStatus(0xC000_001F);

type Output = Result<(NtStatus, Vec<u8>), Fail>;

/// A TargetOffset that is the end of the file, [MS-SMB2] 3.3.5.15.6 and [MS-FSA] 2.1.5.4.
const AT_END: u64 = u64::MAX;

/// SRV_REQUEST_RESUME_KEY: the key is the FileId and eight zeros.
pub fn resume_key(open: &SmbOpen, ioctl: &IoctlRequest<'_>) -> Output {
    if ioctl.max_output_response < 32 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.state.lock().resume_key = true;
    let mut out = Vec::with_capacity(32);
    open.id.put(&mut out);
    out.put_zeros(16);
    Ok((NtStatus::SUCCESS, out))
}

fn source(request: &Request<'_>, r: &mut Reader<'_>) -> Result<Arc<SmbOpen>, Fail> {
    let id = file_id(r)?;
    let open = request.session.opens.read().get(&id.volatile).cloned().filter(|o| o.id == id);
    let open = open.ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
    request.begin_work(&open)?;
    Ok(open)
}

/// SRV_COPYCHUNK_RESPONSE, [MS-SMB2] 2.2.32.1.
fn response(chunks: u32, chunk_bytes: u32, total: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(12);
    out.put_u32(chunks);
    out.put_u32(chunk_bytes);
    out.put_u32(total);
    out
}

pub fn copy_chunk(request: &mut Request<'_>, target: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    if ioctl.max_output_response < 12 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let mut r = Reader::new(ioctl.input);
    let source_open = source(request, &mut r)?;
    r.skip(8)?;
    let count = r.u32()?;
    r.skip(4)?;
    let mut chunks = Vec::new();
    let mut total = 0u64;
    let mut over = count > CHUNKS_MAX;
    for _ in 0..count.min(CHUNKS_MAX) {
        let (from, to, len) = (r.u64()?, r.u64()?, r.u32()?);
        r.skip(4)?;
        over |= len == 0 || len > CHUNK_BYTES_MAX || to > i64::MAX as u64 && to != AT_END;
        total += u64::from(len);
        chunks.push((from, to, u64::from(len)));
    }
    if over || total > COPY_BYTES_MAX {
        // The answer tells the client what would do, [MS-SMB2] 3.3.5.15.6.
        return Ok((NtStatus::INVALID_PARAMETER, response(CHUNKS_MAX, CHUNK_BYTES_MAX, COPY_BYTES_MAX as u32)));
    }
    let source = source_open.file().ok_or(NtStatus::ACCESS_DENIED)?;
    need(source, READ)?;
    need(target, WRITE)?;
    if ioctl.ctl_code == fsctl::SRV_COPYCHUNK {
        need(target, access::FILE_READ_DATA)?;
    }
    if source.is_directory() || target.is_directory() {
        return Err(NtStatus::INVALID_DEVICE_REQUEST.into());
    }
    if !request.may_block {
        return Err(Fail::Block);
    }
    copy_all(request, source, target, &chunks)
}

fn copy_all(request: &Request<'_>, source: &Arc<Open>, target: &Arc<Open>, chunks: &[(u64, u64, u64)]) -> Output {
    let mut total = 0;
    for (i, (from, to, len)) in chunks.iter().enumerate() {
        let end = source.fs().stat(source)?.stat.end_of_file;
        let fits = from.checked_add(*len).is_some_and(|stop| stop <= end);
        let to = if *to == AT_END { target.fs().stat(target)?.stat.end_of_file } else { *to };
        let copied = match fits {
            true => target.fs().copy(source, *from, target, to, *len, request.cause()).map_err(status::of),
            false => Err(INVALID_VIEW_SIZE),
        };
        match copied {
            Ok(n) => total += n as u32,
            Err(status) => return Ok((status, response(i as u32, 0, total))),
        }
    }
    Ok((NtStatus::SUCCESS, response(chunks.len() as u32, 0, total)))
}

/// DUPLICATE_EXTENTS_DATA_EX, [MS-FSCC] 2.3.9 and [MS-FSA] 2.1.5.10.5. Stores never leave part of a range behind that they
/// refuse, so the flag for that changes nothing.
pub fn duplicate_extents_ex(request: &mut Request<'_>, target: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    // What StructureSize has to say is less than what the structure has.
    const BYTES: usize = 56;
    const STRUCTURE_SIZE: u64 = 0x30;
    if target.fs().store().volume().capabilities & FILE_SUPPORTS_BLOCK_REFCOUNTING == 0 {
        return Err(NtStatus::INVALID_DEVICE_REQUEST.into());
    }
    if ioctl.input.len() < BYTES {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if Reader::new(ioctl.input).u64()? != STRUCTURE_SIZE {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    duplicate(request, target, &ioctl.input[8..])
}

/// DUPLICATE_EXTENTS_DATA, [MS-FSCC] 2.3.7 and [MS-FSA] 2.1.5.10.4.
pub fn duplicate_extents(request: &mut Request<'_>, target: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    duplicate(request, target, ioctl.input)
}

fn duplicate(request: &mut Request<'_>, target: &Arc<Open>, input: &[u8]) -> Output {
    let mut r = Reader::new(input);
    let source_open = match source(request, &mut r) {
        Err(Fail::Status(NtStatus::OBJECT_NAME_NOT_FOUND)) => return Err(NtStatus::INVALID_HANDLE.into()),
        other => other?,
    };
    let (from, to, len) = (r.u64()?, r.u64()?, r.u64()?);
    let source = source_open.file().ok_or(NtStatus::INVALID_HANDLE)?;
    need(source, READ)?;
    if !request.may_block {
        return Err(Fail::Block);
    }
    match target.fs().clone_range(source, from, target, to, len, request.cause()) {
        Ok(()) => Ok((NtStatus::SUCCESS, Vec::new())),
        // Another volume.
        Err(NotDone::Failed(StoreError::NotSameVolume)) => Err(NtStatus::INVALID_PARAMETER.into()),
        Err(e) => Err(e.into()),
    }
}
