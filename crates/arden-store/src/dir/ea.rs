//! Extended attributes of clients: `user.NAME`, as Samba keeps them. What Samba and Arden keep in attributes of the
//! same kind for themselves is no EA.

use std::os::fd::BorrowedFd;

use super::{
    mark,
    meta::{DOSATTRIB, NTACL_USER, OBJECT_ID, has_room_for_names},
    reparse, stream, sys,
};
use crate::error::{NotDone, StoreError};
use crate::store::{Ea, Result};

const PREFIX: &str = "user.";
/// [MS-FSCC] 2.4.16: a value's length has 16 bits.
const VALUE_BYTES_MAX: usize = 65_535;
const NAME_BYTES_MAX: usize = 250;
/// What FileEaInformation says of EAs that are too many to be told.
pub const LARGEST_SIZE: u32 = 65_535;

/// Whether an extended attribute of Linux is an EA of clients.
pub fn is_ea(attribute: &str) -> bool {
    attribute.starts_with(PREFIX)
        && !matches!(
            attribute,
            DOSATTRIB | NTACL_USER | OBJECT_ID | reparse::OPAQUE | "user.SAMBA_PAI" | "user.SAMBA_STREAMS"
        )
        && !mark::is_mark(attribute)
        && !stream::is_stream_attribute(attribute)
}

pub fn read(fd: BorrowedFd<'_>) -> Result<Vec<Ea>> {
    let mut names = Vec::new();
    sys::each_xattr(fd, |name| {
        if is_ea(name) {
            names.push(name.to_owned());
        }
    })
    .map_err(sys::failure)?;
    let mut eas = Vec::with_capacity(names.len());
    for name in names {
        // One that is gone meanwhile is left out, and so is one that no EA could hold.
        if let Ok(Some(value)) = sys::get_xattr(fd, &name, VALUE_BYTES_MAX) {
            eas.push(Ea { name: name[PREFIX.len()..].to_owned(), flags: 0, value });
        }
    }
    Ok(eas)
}

/// What FileEaInformation says: the size of the list as FileFullEaInformation, [MS-FSCC] 2.4.16, unaligned.
pub fn list_size(fd: BorrowedFd<'_>) -> u32 {
    let eas = read(fd).unwrap_or_default();
    if eas.is_empty() {
        return 0;
    }
    let sum: usize = eas.iter().map(|e| 4 + e.name.len() + 1 + e.value.len()).sum();
    u32::try_from(4 + sum).unwrap_or(u32::MAX)
}

/// Sets; an empty value deletes. Names match in any case and keep the case that they were first given. Nothing is changed
/// where a name is not valid or there is no room for the names.
pub fn write(fd: BorrowedFd<'_>, eas: &[Ea]) -> Result<()> {
    let mut present = Vec::new();
    sys::each_xattr(fd, |name| {
        if is_ea(name) {
            present.push(name.to_owned());
        }
    })
    .map_err(sys::failure)?;
    let mut changes = Vec::with_capacity(eas.len());
    let mut new_names_bytes = 0;
    for ea in eas {
        let wanted = format!("{PREFIX}{}", ea.name);
        if !is_valid_name(&ea.name) || !is_ea(&wanted) {
            return Err(StoreError::InvalidEaName.into());
        }
        let real = present.iter().find(|p| p.eq_ignore_ascii_case(&wanted)).cloned().unwrap_or(wanted);
        if !is_ea(&real) {
            return Err(StoreError::InvalidEaName.into());
        }
        if !ea.value.is_empty() && !present.contains(&real) {
            new_names_bytes += real.len() + 1;
            present.push(real.clone());
        }
        changes.push((real, &ea.value));
    }
    if !has_room_for_names(fd, new_names_bytes)? {
        return Err(StoreError::EaTooLarge.into());
    }
    for (name, value) in changes {
        if value.is_empty() {
            sys::remove_xattr(fd, &name).map_err(sys::failure)?;
        } else {
            sys::set_xattr(fd, &name, value).map_err(too_large)?;
        }
    }
    Ok(())
}

fn too_large(e: rustix::io::Errno) -> NotDone {
    match e {
        rustix::io::Errno::NOSPC => StoreError::EaTooLarge.into(),
        e => sys::failure(e),
    }
}

/// [MS-FSCC] 2.4.16: ASCII without these.
fn is_valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|b| (0x20..0x7f).contains(&b) && !b"\"*+,/:;<=>?[\\]|".contains(&b))
}
