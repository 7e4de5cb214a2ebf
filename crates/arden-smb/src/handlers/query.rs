//! QUERY_INFO, [MS-SMB2] 3.3.5.20.

use std::sync::{Arc, atomic::Ordering};

use arden_store::table::Open;
use arden_wire::{
    NtStatus, access,
    cursor::Put,
    fscc::{self, FileMeta, FullEa, file_class, fs_class},
    smb2::Dialect,
    smb2::info::{QueryInfoRequest, ea_scan, info_type, put_buffer_response},
};

use crate::{
    handlers::{
        directory::meta,
        request::{Fail, Handled, Request},
    },
    model::{Object, SmbOpen},
};

/// The names of extended attributes, or the SIDs of a quota, that are asked for: as much as all attributes of a file take.
const INPUT_BYTES_MAX: usize = 64 * 1024;
/// More is looked for where that may take its time.
const INLINE_INPUT_BYTES_MAX: usize = 1024;

pub fn query_info(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let query = QueryInfoRequest::parse(request.verified.message)?;
    let limit = request.verified.negotiated.max_transact;
    if query.output_length > limit || query.input.len() > limit as usize {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    request.check_charge(query.input.len().max(query.output_length as usize))?;
    let open = request.open(query.file_id)?;
    if query.input.len() > INPUT_BYTES_MAX {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let long = query.info_type == info_type::QUOTA || query.input.len() > INLINE_INPUT_BYTES_MAX;
    if long && !request.may_block {
        return Err(Fail::Block);
    }
    let len_at = put_buffer_response(out);
    let start = out.len();
    let max = query.output_length as usize;
    let status = match (&open.object, query.info_type) {
        (Object::File(file), info_type::FILE) => {
            file_info(&open, file, &query, request.verified.dialect() == Dialect::Smb311, out)?
        }
        (Object::File(file), info_type::FILE_SYSTEM) => fs_info(file, query.class, max, out)?,
        (Object::File(file), info_type::SECURITY) => security(request, file, &query, out)?,
        (Object::File(file), info_type::QUOTA) => crate::handlers::quota::query(&open, file, &query, out)?,
        (Object::Pipe(_), info_type::FILE) => pipe_info(query.class, max, out)?,
        (Object::Pipe(_), info_type::SECURITY) => return Err(NtStatus::NOT_SUPPORTED.into()),
        _ => return Err(NtStatus::INVALID_PARAMETER.into()),
    };
    let len = (out.len() - start) as u32;
    out.patch_u32(len_at, len);
    Ok(status)
}

/// Cuts what was put since `start` to `max`: too short for the fixed part is an error, else BUFFER_OVERFLOW.
fn fit(out: &mut Vec<u8>, start: usize, max: usize, fixed: usize) -> Handled {
    if max < fixed {
        return Err(NtStatus::INFO_LENGTH_MISMATCH.into());
    }
    if out.len() - start > max {
        out.truncate(start + max);
        return Ok(NtStatus::BUFFER_OVERFLOW);
    }
    Ok(NtStatus::SUCCESS)
}

fn file_info(
    open: &SmbOpen,
    file: &Arc<Open>,
    query: &QueryInfoRequest<'_>,
    normalized: bool,
    out: &mut Vec<u8>,
) -> Handled {
    use file_class as class;
    let max = query.output_length as usize;
    let start = out.len();
    let need = |bits: u32| match file.granted_access() & bits {
        0 => Err(Fail::Status(NtStatus::ACCESS_DENIED)),
        _ => Ok(()),
    };
    if matches!(query.class, class::BASIC | class::ALL | class::NETWORK_OPEN | class::ATTRIBUTE_TAG) {
        need(access::FILE_READ_ATTRIBUTES)?;
    }
    let fixed = match query.class {
        class::ACCESS => {
            out.put_u32(file.granted_access());
            4
        }
        class::POSITION => {
            out.put_u64(open.position.load(Ordering::Relaxed));
            8
        }
        class::MODE => {
            out.put_u32(open.mode.load(Ordering::Relaxed));
            4
        }
        class::ALIGNMENT => {
            out.put_u32(0);
            4
        }
        class::STREAM => return streams(file, max, out),
        class::FULL_EA => {
            need(access::FILE_READ_EA)?;
            return full_eas(open, file, query, out);
        }
        class::NORMALIZED_NAME => {
            // [MS-SMB2] 3.3.5.20.1: since 3.1.1.
            if !normalized {
                return Err(NtStatus::NOT_SUPPORTED.into());
            }
            fscc::put_name(out, &file.fs().path_told(file)?);
            // With a unit of the name, in whole 4 bytes, [MS-FSA] 2.1.5.12.30.
            8
        }
        class::ALTERNATE_NAME => {
            // [MS-FSA] 2.1.5.12.4: the length before the name.
            if max < 8 {
                return Err(NtStatus::INFO_LENGTH_MISMATCH.into());
            }
            fscc::put_name(out, &file.fs().short_name(file)?);
            8
        }
        _ => stat_info(open, file, query.class, out)?,
    };
    fit(out, start, max, fixed)
}

/// The classes that are made of what `stat` says. Answers the length of the fixed part.
fn stat_info(open: &SmbOpen, file: &Arc<Open>, class: u8, out: &mut Vec<u8>) -> Result<usize, Fail> {
    use file_class as c;
    if !matches!(
        class,
        c::BASIC
            | c::STANDARD
            | c::INTERNAL
            | c::EA
            | c::ALL
            | c::COMPRESSION
            | c::NETWORK_OPEN
            | c::ATTRIBUTE_TAG
            | c::ID
    ) {
        return Err(not_queried(class).into());
    }
    let info = file.fs().stat(file)?;
    let m = FileMeta { delete_pending: info.delete_pending, directory: file.is_directory(), ..meta(&info.stat) };
    Ok(match class {
        c::BASIC => {
            m.put_basic(out);
            40
        }
        c::STANDARD => {
            m.put_standard(out);
            24
        }
        c::INTERNAL => {
            out.put_u64(m.file_id);
            8
        }
        c::EA => {
            out.put_u32(m.ea_size);
            4
        }
        c::COMPRESSION => {
            m.put_compression(out);
            16
        }
        c::NETWORK_OPEN => {
            m.put_network_open(out);
            56
        }
        c::ATTRIBUTE_TAG => {
            m.put_attribute_tag(out);
            8
        }
        c::ID => {
            m.put_id(out);
            24
        }
        _ => {
            let (position, mode) = (open.position.load(Ordering::Relaxed), open.mode.load(Ordering::Relaxed));
            m.put_all(out, file.granted_access(), position, mode);
            104
        }
    })
}

/// The status of a class that no query answers, [MS-SMB2] 3.3.5.20.1: one that is documented and not listed there is
/// NOT_SUPPORTED and all others are INVALID_INFO_CLASS, but for those that <415> and <416> name.
fn not_queried(class: u8) -> NtStatus {
    use file_class as c;
    match class {
        c::NAME | c::OBJECT_ID | c::QUOTA | c::REPARSE_POINT | c::SFIO_RESERVE | c::HARD_LINK | c::STANDARD_LINK => {
            NtStatus::NOT_SUPPORTED
        }
        c::PIPE | c::PIPE_LOCAL | c::DISPOSITION_EX | c::RENAME_EX => NtStatus::NOT_SUPPORTED,
        41 | 43 | 47 | 49 | 51 | 53 => NtStatus::NOT_SUPPORTED,
        52 => NtStatus::INFO_LENGTH_MISMATCH,
        _ => NtStatus::INVALID_INFO_CLASS,
    }
}

fn streams(file: &Arc<Open>, max: usize, out: &mut Vec<u8>) -> Handled {
    let list: Vec<_> =
        file.fs().streams(file)?.into_iter().map(|s| (format!(":{}:$DATA", s.name), s.size, s.allocation)).collect();
    // What peers take for the fixed part: the structure with its alignment.
    if max < 32 {
        Err(NtStatus::INFO_LENGTH_MISMATCH.into())
    } else if fscc::put_streams(out, &list, max) {
        Ok(NtStatus::SUCCESS)
    } else {
        Ok(NtStatus::BUFFER_OVERFLOW)
    }
}

/// [MS-FSA] 2.1.5.12.12 and [MS-SMB2] 3.3.5.20.1: those that a list names, those from an index on, or what follows those
/// that were told through this open before.
fn full_eas(open: &SmbOpen, file: &Arc<Open>, query: &QueryInfoRequest<'_>, out: &mut Vec<u8>) -> Handled {
    let all: Vec<FullEa> =
        file.fs().eas(file)?.into_iter().map(|e| FullEa { flags: e.flags, name: e.name, value: e.value }).collect();
    let is = |flag| query.flags & flag != 0;
    let most = if is(ea_scan::RETURN_SINGLE_ENTRY) { 1 } else { usize::MAX };
    let max = query.output_length as usize;
    if !query.input.is_empty() {
        // One that was asked for and is not there is answered with an empty value.
        let found = |name: String| {
            let known = all.iter().find(|e| e.name.eq_ignore_ascii_case(&name)).cloned();
            known.unwrap_or(FullEa { flags: 0, name, value: Vec::new() })
        };
        let wanted: Vec<_> = fscc::parse_ea_names(query.input)?.into_iter().take(most).map(found).collect();
        return told(fscc::put_eas(out, &wanted, max), wanted.len());
    }
    if all.is_empty() {
        return Err(NtStatus::NO_EAS_ON_FILE.into());
    }
    let indexed = is(ea_scan::INDEX_SPECIFIED);
    let from = match indexed {
        true => (query.additional as usize).wrapping_sub(1),
        false if is(ea_scan::RESTART_SCAN) => 0,
        false => open.ea_index.load(Ordering::Relaxed) as usize,
    };
    let Some(rest) = all.get(from..).filter(|rest| !rest.is_empty()) else {
        return Err(if indexed { NtStatus::NONEXISTENT_EA_ENTRY } else { NtStatus::NO_MORE_EAS }.into());
    };
    let rest = &rest[..rest.len().min(most)];
    let given = fscc::put_eas(out, rest, max);
    if !indexed {
        open.ea_index.store((from + given) as u64, Ordering::Relaxed);
    }
    told(given, rest.len())
}

/// The status of a list of which `given` entries fit.
fn told(given: usize, all: usize) -> Handled {
    match given {
        0 => Err(NtStatus::BUFFER_TOO_SMALL.into()),
        _ if given < all => Ok(NtStatus::BUFFER_OVERFLOW),
        _ => Ok(NtStatus::SUCCESS),
    }
}

fn fs_info(file: &Arc<Open>, class: u8, max: usize, out: &mut Vec<u8>) -> Handled {
    let start = out.len();
    let store = file.fs().store();
    let fixed = match class {
        fs_class::VOLUME => {
            let v = store.volume();
            fscc::put_fs_volume(out, v.created, v.serial, &v.label);
            24
        }
        fs_class::ATTRIBUTE => {
            let v = store.volume();
            fscc::put_fs_attribute(out, v.capabilities, v.name_max, &v.file_system_name);
            16
        }
        fs_class::SIZE | fs_class::FULL_SIZE => {
            let s = file.fs().space(file)?;
            let unit = u64::from(s.sector_bytes) * u64::from(s.sectors_per_unit);
            out.put_u64(s.total_bytes / unit);
            out.put_u64(s.available_bytes / unit);
            if class == fs_class::FULL_SIZE {
                out.put_u64(s.free_bytes / unit);
            }
            out.put_u32(s.sectors_per_unit);
            out.put_u32(s.sector_bytes);
            if class == fs_class::FULL_SIZE { 32 } else { 24 }
        }
        fs_class::DEVICE => {
            // FILE_DEVICE_DISK, FILE_DEVICE_IS_MOUNTED; [MS-FSCC] 2.5.10.
            out.put_u32(7);
            out.put_u32(0x20);
            8
        }
        fs_class::OBJECT_ID => {
            out.put_u128(store.volume().id);
            out.put_zeros(48);
            64
        }
        fs_class::SECTOR_SIZE => {
            let sector = store.space()?.sector_bytes;
            out.put_u32(sector);
            out.put_u32(4096);
            out.put_u32(4096);
            out.put_u32(4096);
            // Aligned device, aligned partition; [MS-FSCC] 2.5.8.
            out.put_u32(3);
            out.put_u32(0);
            out.put_u32(0);
            28
        }
        fs_class::CONTROL => {
            if max < 48 {
                return Err(NtStatus::INFO_LENGTH_MISMATCH.into());
            }
            crate::handlers::quota::put_control(store.quotas(), out)?;
            48
        }
        // [MS-FSA] 2.1.5.13.2 and 2.1.5.13.9.
        fs_class::LABEL | fs_class::DRIVER_PATH => return Err(NtStatus::NOT_SUPPORTED.into()),
        _ => return Err(NtStatus::INVALID_INFO_CLASS.into()),
    };
    fit(out, start, max, fixed)
}

fn security(request: &Request<'_>, file: &Arc<Open>, query: &QueryInfoRequest<'_>, out: &mut Vec<u8>) -> Handled {
    let sd = file.fs().security(file, query.additional)?;
    let bytes = sd.encode();
    if bytes.len() > query.output_length as usize {
        // [MS-SMB2] 3.3.5.20.3: the size that would do.
        let need = (bytes.len() as u32).to_le_bytes();
        return Err(Fail::with_data(NtStatus::BUFFER_TOO_SMALL, &need, request.verified.dialect()));
    }
    out.extend_from_slice(&bytes);
    Ok(NtStatus::SUCCESS)
}

/// What [MS-FSA] answers for a named pipe.
fn pipe_info(class: u8, max: usize, out: &mut Vec<u8>) -> Handled {
    let start = out.len();
    let m = FileMeta { attributes: access::ATTR_NORMAL, links: 1, delete_pending: true, ..FileMeta::default() };
    let fixed = match class {
        file_class::STANDARD => {
            m.put_standard(out);
            24
        }
        file_class::BASIC => {
            m.put_basic(out);
            40
        }
        file_class::PIPE => {
            // Message mode, blocking.
            out.put_u32(1);
            out.put_u32(0);
            8
        }
        file_class::NETWORK_OPEN => {
            m.put_network_open(out);
            56
        }
        _ => return Err(NtStatus::INVALID_INFO_CLASS.into()),
    };
    fit(out, start, max, fixed)
}
