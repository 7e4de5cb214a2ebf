//! Extended attributes of clients: `user.NAME`, as Samba keeps them. What Samba and Arden keep in attributes of the
//! same kind for themselves is no EA. Limits are those of an EA list, [MS-FSCC] 2.4.16; a file to which local processes gave
//! more than a list can hold is refused as a whole: a client that copies it learns that its copy is not complete.

use std::{collections::HashMap, os::fd::BorrowedFd};

use super::{
    mark,
    meta::{DOSATTRIB, NTACL_USER, OBJECT_ID, has_room_for_names},
    reparse, stream, sys,
};
use crate::error::{NotDone, StoreError};
use crate::store::{Ea, Result};

const PREFIX: &str = "user.";
const NAME_BYTES_MAX: usize = 250;
/// The size of all EAs of a file as a list has 16 bits, as on volumes.
pub const LIST_BYTES_MAX: usize = 65_535;
/// EAs of one file: a listing asks for the length of each.
const EAS_MAX: usize = 1024;

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

/// The names of the EAs, as attributes. `EaTooLarge` where they are too many.
fn names(fd: BorrowedFd<'_>) -> Result<Vec<String>> {
    let (mut names, mut count) = (Vec::new(), 0);
    sys::each_xattr(fd, |name| {
        if is_ea(name) {
            count += 1;
            if count <= EAS_MAX {
                names.push(name.to_owned());
            }
        }
    })
    .map_err(sys::failure)?;
    if count > EAS_MAX { Err(StoreError::EaTooLarge.into()) } else { Ok(names) }
}

/// The names, and how long each value is. One that is gone meanwhile is left out.
fn sizes(fd: BorrowedFd<'_>) -> Result<Vec<(String, usize)>> {
    let sized = |name: String| sys::xattr_bytes(fd, &name).ok().flatten().map(|len| (name, len));
    Ok(names(fd)?.into_iter().filter_map(sized).collect())
}

/// Of one EA in a list, unaligned.
fn entry_bytes(attribute: &str, value_bytes: usize) -> usize {
    4 + (attribute.len() - PREFIX.len()) + 1 + value_bytes
}

/// `EaTooLarge` where no list could hold them.
pub fn read(fd: BorrowedFd<'_>) -> Result<Vec<Ea>> {
    let sizes = sizes(fd)?;
    let mut room = LIST_BYTES_MAX - 4;
    if sizes.iter().map(|(name, len)| entry_bytes(name, *len)).sum::<usize>() > room {
        return Err(StoreError::EaTooLarge.into());
    }
    let mut eas = Vec::with_capacity(sizes.len());
    for (name, _) in sizes {
        let left = room.checked_sub(entry_bytes(&name, 0)).ok_or(StoreError::EaTooLarge)?;
        match sys::get_xattr(fd, &name, left) {
            Ok(Some(value)) => {
                room = left.checked_sub(value.len()).ok_or(StoreError::EaTooLarge)?;
                eas.push(Ea { name: name[PREFIX.len()..].to_owned(), flags: 0, value });
            }
            // It grew meanwhile.
            Err(rustix::io::Errno::TOOBIG) => return Err(StoreError::EaTooLarge.into()),
            // Gone meanwhile, or not for this process.
            Ok(None) | Err(_) => {}
        }
    }
    Ok(eas)
}

/// What FileEaInformation says: the size of the list as FileFullEaInformation, [MS-FSCC] 2.4.16, unaligned.
pub fn list_size(fd: BorrowedFd<'_>) -> u32 {
    let sizes = match sizes(fd) {
        Ok(sizes) => sizes,
        Err(NotDone::Failed(StoreError::EaTooLarge)) => return LIST_BYTES_MAX as u32,
        Err(_) => return 0,
    };
    if sizes.is_empty() {
        return 0;
    }
    let sum: usize = sizes.iter().map(|(name, len)| entry_bytes(name, *len)).sum();
    u32::try_from(4 + sum).unwrap_or(u32::MAX)
}

/// What a file's EAs become. Names match in any case and keep the case that they were first given.
struct Changes {
    /// By the name in one case: the attribute, and what it takes in a list; 0: it is not there.
    all: HashMap<String, (String, usize)>,
    list_bytes: usize,
    count: usize,
    new_names_bytes: usize,
}

impl Changes {
    fn new(fd: BorrowedFd<'_>) -> Result<Changes> {
        let mut changes = Changes { all: HashMap::new(), list_bytes: 4, count: 0, new_names_bytes: 0 };
        for (name, len) in sizes(fd)? {
            changes.count += 1;
            changes.list_bytes += entry_bytes(&name, len);
            // Local processes may have two spellings of a name; the first one is meant.
            let bytes = entry_bytes(&name, len);
            changes.all.entry(name.to_ascii_lowercase()).or_insert((name, bytes));
        }
        Ok(changes)
    }

    /// The attribute that `ea` sets or removes.
    fn add(&mut self, ea: &Ea) -> Result<String> {
        let wanted = format!("{PREFIX}{}", ea.name);
        if !is_valid_name(&ea.name) || !is_ea(&wanted) {
            return Err(StoreError::InvalidEaName.into());
        }
        let (name, bytes) = self.all.entry(wanted.to_ascii_lowercase()).or_insert((wanted, 0));
        let after = if ea.value.is_empty() { 0 } else { entry_bytes(name, ea.value.len()) };
        self.list_bytes = self.list_bytes - *bytes + after;
        match (*bytes, after) {
            (0, 1..) => {
                self.count += 1;
                self.new_names_bytes += name.len() + 1;
            }
            (1.., 0) => self.count -= 1,
            _ => {}
        }
        *bytes = after;
        Ok(name.clone())
    }
}

/// Sets; an empty value deletes. Nothing is changed where a name is not valid or a limit is passed. A list that
/// is too large already may become smaller.
pub fn write(fd: BorrowedFd<'_>, eas: &[Ea]) -> Result<()> {
    let mut changes = Changes::new(fd)?;
    let before = changes.list_bytes;
    let names = eas.iter().map(|ea| changes.add(ea)).collect::<Result<Vec<String>>>()?;
    let is_too_large = changes.count > EAS_MAX || changes.list_bytes > LIST_BYTES_MAX.max(before);
    if is_too_large || !has_room_for_names(fd, changes.new_names_bytes)? {
        return Err(StoreError::EaTooLarge.into());
    }
    for (name, ea) in names.iter().zip(eas) {
        if ea.value.is_empty() {
            sys::remove_xattr(fd, name).map_err(sys::failure)?;
        } else {
            sys::set_xattr(fd, name, &ea.value).map_err(too_large)?;
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
