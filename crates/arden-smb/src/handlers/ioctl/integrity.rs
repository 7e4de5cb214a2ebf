//! Integrity of streams: FSCTL_GET_INTEGRITY_INFORMATION, FSCTL_SET_INTEGRITY_INFORMATION and its _EX, [MS-FSA] 2.1.5.10.10,
//! 2.1.5.10.33 and 2.1.5.10.34. A checksum has 64 bits here, of which the protocol knows only CRC64, so that is what a stream
//! with integrity is said to have, whichever algorithm was asked for.

use std::sync::Arc;

use arden_store::{
    commit::CommitScope,
    error::StoreError,
    store::{Integrity, Result},
    table::Open,
};
use arden_wire::{
    NtStatus,
    cursor::{Put, Reader},
    fscc::FILE_SUPPORT_INTEGRITY_STREAMS,
    smb2::io::IoctlRequest,
};

use super::{Fail, Output};

/// CHECKSUM_TYPE_*, [MS-FSCC] 2.3.20 and 2.3.73.
const NONE: u16 = 0;
const CRC64: u16 = 2;
const UNCHANGED: u16 = 0xFFFF;
/// FSCTL_INTEGRITY_FLAG_CHECKSUM_ENFORCEMENT_OFF.
const ENFORCEMENT_OFF: u32 = 1;

/// Bytes of the three buffers, [MS-FSCC] 2.3.20, 2.3.73 and 2.3.75.
const GET_BYTES: u32 = 16;
const SET_BYTES: usize = 8;
const SET_EX_BYTES: usize = 16;
/// Of FSCTL_SET_INTEGRITY_INFORMATION_BUFFER_EX.
const VERSION: u8 = 1;

/// [MS-FSA] 2.1.5.10.10.
pub fn get(file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    check_supported(file)?;
    if ioctl.max_output_response < GET_BYTES {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let integrity = file.fs().integrity(file)?;
    let space = file.fs().space(file)?;
    let cluster_bytes = space.sector_bytes * space.sectors_per_unit;
    let mut out = Vec::with_capacity(GET_BYTES as usize);
    out.put_u16(if integrity.is_set() { CRC64 } else { NONE });
    out.put_u16(0);
    out.put_u32(if integrity == Integrity::Unenforced { ENFORCEMENT_OFF } else { 0 });
    // Each cluster has a checksum of its own.
    out.put_u32(cluster_bytes);
    out.put_u32(cluster_bytes);
    Ok((NtStatus::SUCCESS, out))
}

/// [MS-FSA] 2.1.5.10.33. As on ReFS v2, [MS-FSCC] 2.3.73, any value but the two that ask for none sets the integrity that there is.
pub fn set(scope: &CommitScope, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    check_supported(file)?;
    if ioctl.input.len() < SET_BYTES {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let mut r = Reader::new(ioctl.input);
    let (algorithm, _reserved, flags) = (r.u16()?, r.u16()?, r.u32()?);
    let set = match algorithm {
        NONE => Some(false),
        UNCHANGED => None,
        _ => Some(true),
    };
    change(scope, file, set, flags)
}

/// [MS-FSA] 2.1.5.10.34.
pub fn set_ex(scope: &CommitScope, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    check_supported(file)?;
    if ioctl.input.len() < SET_EX_BYTES {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let mut r = Reader::new(ioctl.input);
    let (enable, keep, _reserved, flags, version) = (r.u8()?, r.u8()?, r.u16()?, r.u32()?, r.u8()?);
    if version != VERSION {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    change(scope, file, (keep == 0).then_some(enable != 0), flags)
}

/// Sets integrity, switches it off, or (`None`) leaves that as it is; and says whether it is enforced.
fn change(scope: &CommitScope, file: &Arc<Open>, set: Option<bool>, flags: u32) -> Output {
    let unenforced = flags & ENFORCEMENT_OFF != 0;
    if flags != 0 && !unenforced {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    file.fs().change_integrity(scope, file, |now| changed(now, set, unenforced))?;
    Ok((NtStatus::SUCCESS, Vec::new()))
}

/// The conditions on both sections' inputs, and their pseudocode.
fn changed(now: Integrity, set: Option<bool>, unenforced: bool) -> Result<Integrity> {
    match (set.unwrap_or(now.is_set()), unenforced) {
        // There is nothing that could be enforced or not.
        (false, true) => Err(StoreError::InvalidParameter.into()),
        (false, false) if set.is_none() => Ok(now),
        (false, false) => Ok(Integrity::Off),
        (true, true) => Ok(Integrity::Unenforced),
        (true, false) => Ok(Integrity::On),
    }
}

/// STATUS_INVALID_DEVICE_REQUEST where the store keeps no checksums.
fn check_supported(file: &Arc<Open>) -> std::result::Result<(), Fail> {
    match file.fs().store().volume().capabilities & FILE_SUPPORT_INTEGRITY_STREAMS {
        0 => Err(NtStatus::INVALID_DEVICE_REQUEST.into()),
        _ => Ok(()),
    }
}
