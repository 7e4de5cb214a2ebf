//! Marks: which create made a file, directory or stream, so that the same create asked for again finds its work done.
//! A mark is there before the name is, or with it: a process that is killed leaves no name without its mark, and no
//! name of a file that lacks its descriptor.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};

use super::{
    Shared,
    inode::Inode,
    meta::CREATE_MARK,
    names,
    namespace::rename_new,
    sys::{self, Kind},
};
use crate::store::Result;

/// A directory that is being made has a name that begins so. One that a killed process left goes with its parent.
const UNFINISHED: &str = ".arden-new-";

pub fn is_unfinished(name: &str) -> bool {
    name.get(..UNFINISHED.len()).is_some_and(|head| head.eq_ignore_ascii_case(UNFINISHED))
}

/// Whether an extended attribute is the mark of a file or of one of its streams.
pub fn is_mark(attribute: &str) -> bool {
    attribute.strip_prefix(CREATE_MARK).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn attribute(stream: Option<&str>) -> String {
    stream.map_or_else(|| CREATE_MARK.to_owned(), |stream| format!("{CREATE_MARK}.{stream}"))
}

/// What a stream's mark needs for its name.
pub fn name_bytes(stream: &str) -> usize {
    attribute(Some(stream)).len() + 1
}

/// The mark of a file, or of a stream of it.
pub fn read(fd: BorrowedFd<'_>, stream: Option<&str>) -> Result<Option<u128>> {
    let value = sys::get_xattr(fd, &attribute(stream), 64).map_err(sys::failure)?;
    Ok(value.and_then(|v| v.try_into().ok()).map(u128::from_le_bytes))
}

pub fn set(fd: BorrowedFd<'_>, mark: u128) -> Result<()> {
    // A file system without attributes keeps none.
    match sys::set_xattr(fd, CREATE_MARK, &mark.to_le_bytes()) {
        Err(e) if e != Errno::OPNOTSUPP => Err(sys::failure(e)),
        _ => Ok(()),
    }
}

/// Before a stream is made: its mark is this one, or none. Without room for the mark the stream goes without.
pub fn set_of_stream(fd: BorrowedFd<'_>, stream: &str, mark: Option<u128>) -> Result<()> {
    let name = attribute(Some(stream));
    if let Some(mark) = mark {
        match sys::set_xattr(fd, &name, &mark.to_le_bytes()) {
            Ok(()) => return Ok(()),
            Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::NAMETOOLONG | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(sys::failure(e)),
        }
    }
    match sys::remove_xattr(fd, &name) {
        Err(Errno::RANGE | Errno::NAMETOOLONG | Errno::OPNOTSUPP) => Ok(()),
        other => other.map_err(sys::failure),
    }
}

/// A file or directory that clients do not see yet.
pub enum Unfinished {
    /// It has no name.
    File(OwnedFd),
    Directory(OwnedFd, String),
}

impl Unfinished {
    pub fn fd(&self) -> &OwnedFd {
        match self {
            Unfinished::File(fd) | Unfinished::Directory(fd, _) => fd,
        }
    }
}

impl Shared {
    /// Begins a file with its mark; the directory's names are locked. None: the file system has no files without a name.
    pub fn begin(&self, dir: &Inode, directory: bool, mark: u128) -> Result<Option<Unfinished>> {
        let unfinished = if directory {
            let name = format!("{UNFINISHED}{mark:032x}");
            let make = || rustix::fs::mkdirat(dir.pin(), &*name, Mode::from_raw_mode(self.options.directory_mode));
            match make() {
                // Left by the create that is now asked for again: no other has its mark.
                Err(Errno::EXIST) => rustix::fs::unlinkat(dir.pin(), &*name, AtFlags::REMOVEDIR).and_then(|()| make()),
                other => other,
            }
            .map_err(sys::failure)?;
            match sys::open_child(dir.pin(), &name, false) {
                Ok(fd) => Unfinished::Directory(fd, name),
                Err(e) => return Err(sys::failure(e)),
            }
        } else {
            let flags = sys::data_flags(true).difference(OFlags::NOFOLLOW) | OFlags::TMPFILE;
            match rustix::fs::openat(dir.pin(), c".", flags, Mode::from_raw_mode(self.options.file_mode)) {
                Ok(fd) => Unfinished::File(fd),
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => return Ok(None),
                Err(e) => return Err(sys::failure(e)),
            }
        };
        if let Err(e) = set(sys::fd(unfinished.fd()), mark) {
            self.give_up(dir, unfinished);
            return Err(e);
        }
        Ok(Some(unfinished))
    }

    /// Gives it its name, which nobody else has.
    pub fn publish(&self, dir: &Inode, unfinished: Unfinished, name: &str) -> Result<OwnedFd> {
        let named = match &unfinished {
            Unfinished::File(fd) => {
                let number = sys::FdName::new(fd.as_fd());
                rustix::fs::linkat(
                    self.proc_fds(),
                    number.as_str(),
                    dir.pin(),
                    sys::os_name(name),
                    AtFlags::SYMLINK_FOLLOW,
                )
                .map_err(sys::failure)
            }
            Unfinished::Directory(_, hidden) => rename_new(dir, hidden, dir, name),
        };
        match (named, unfinished) {
            (Ok(()), Unfinished::File(fd) | Unfinished::Directory(fd, _)) => Ok(fd),
            (Err(e), unfinished) => {
                self.give_up(dir, unfinished);
                Err(e)
            }
        }
    }

    pub fn give_up(&self, dir: &Inode, unfinished: Unfinished) {
        if let Unfinished::Directory(_, name) = unfinished {
            let _ = rustix::fs::unlinkat(dir.pin(), &*name, AtFlags::REMOVEDIR);
        }
    }

    /// Removes what killed processes left in a directory that is to go.
    pub fn sweep_unfinished(&self, inode: &Inode) {
        if inode.kind != Kind::Directory {
            return;
        }
        let Ok(fd) = names::open_for_reading(inode.pin()) else { return };
        let mut left = Vec::new();
        let _ = names::each_name(sys::fd(&fd), |name, _| {
            if is_unfinished(name) {
                left.push(name.to_owned());
            }
            true
        });
        for name in left {
            let _ = rustix::fs::unlinkat(inode.pin(), &*name, AtFlags::REMOVEDIR);
        }
    }
}
