//! System calls of the dir store: opening names under a directory descriptor, statx, extended attributes.
//! A name is always one component and the last symbolic link is never followed, so no call here can leave
//! the directory that it is given. Refuses policy.

use std::{borrow::Cow, ffi::OsStr, io::Write as _, os::fd::BorrowedFd, os::fd::OwnedFd, os::unix::ffi::OsStrExt as _};

use arden_wire::{
    FileTime,
    names::{name_of_bytes, name_to_bytes},
};
use rustix::{
    fd::AsFd,
    fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, XattrFlags},
    io::Errno,
};

use crate::error::{NotDone, StoreError};
use crate::store::FileId;

/// What an `Errno` means, where the operation has nothing special to say.
pub fn failure(e: Errno) -> NotDone {
    if e == Errno::AGAIN { NotDone::WouldBlock } else { error(e).into() }
}

/// The same of a call that waits.
pub fn error(e: Errno) -> StoreError {
    match e {
        Errno::ACCESS | Errno::PERM | Errno::LOOP => StoreError::AccessDenied,
        Errno::NOENT | Errno::NXIO => StoreError::NotFound,
        Errno::EXIST => StoreError::NameCollision,
        Errno::NOTDIR => StoreError::NotADirectory,
        Errno::ISDIR => StoreError::IsADirectory,
        Errno::NOTEMPTY => StoreError::DirectoryNotEmpty,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => StoreError::DiskFull,
        Errno::IO => StoreError::DataError,
        Errno::ROFS => StoreError::ReadOnly,
        Errno::MFILE | Errno::NFILE => StoreError::TooManyOpens,
        Errno::NOMEM => StoreError::InsufficientResources,
        // The latter of file systems that take UTF-8 only.
        Errno::NAMETOOLONG | Errno::ILSEQ => StoreError::InvalidName,
        Errno::XDEV => StoreError::NotSameVolume,
        Errno::OPNOTSUPP | Errno::NOSYS => StoreError::NotSupported,
        Errno::INVAL => StoreError::InvalidParameter,
        Errno::BUSY | Errno::TXTBSY => StoreError::SharingViolation,
        Errno::STALE => StoreError::Deleted,
        Errno::MLINK => StoreError::TooManyLinks,
        Errno::NODATA => StoreError::NoAttribute,
        Errno::TOOBIG | Errno::RANGE => StoreError::EaTooLarge,
        e => {
            tracing::debug!("system call: {e}");
            StoreError::SystemError
        }
    }
}

/// A name as the kernel has it.
pub fn os_name(name: &str) -> Cow<'_, OsStr> {
    match name_to_bytes(name) {
        Cow::Borrowed(bytes) => Cow::Borrowed(OsStr::from_bytes(bytes)),
        Cow::Owned(bytes) => Cow::Owned(std::os::unix::ffi::OsStringExt::from_vec(bytes)),
    }
}

/// A file on this machine while it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeKey {
    pub dev: u64,
    pub ino: u64,
}

impl InodeKey {
    pub fn file_id(self) -> FileId {
        FileId { volume: self.dev, file: self.ino }
    }
}

/// For maps by inode: the numbers are the file system's, so a quick mixing is enough.
#[derive(Debug, Default, Clone, Copy)]
pub struct InodeHasher(u64);

impl std::hash::Hasher for InodeHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, v: u64) {
        let mixed = (self.0 ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

pub type InodeBuild = std::hash::BuildHasherDefault<InodeHasher>;

/// Seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Stamp(pub i64, pub u32);

impl Stamp {
    pub fn to_filetime(self) -> FileTime {
        FileTime::from_unix(self.0, self.1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
}

/// What statx says.
#[derive(Debug, Clone, Copy)]
pub struct RawStat {
    pub key: InodeKey,
    /// None for devices, sockets and pipes: clients never see those.
    pub kind: Option<Kind>,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub allocated: u64,
    pub atime: Stamp,
    pub mtime: Stamp,
    pub ctime: Stamp,
    /// The oldest of the others where the file system keeps none.
    pub btime: Stamp,
    /// `btime` in nanoseconds, 0 where the file system keeps none.
    pub born: u64,
}

impl RawStat {
    fn new(x: &Statx) -> RawStat {
        let stamp = |t: rustix::fs::StatxTimestamp| Stamp(t.tv_sec, t.tv_nsec);
        let mode = u32::from(x.stx_mode);
        let (atime, mtime, ctime) = (stamp(x.stx_atime), stamp(x.stx_mtime), stamp(x.stx_ctime));
        let is_kept = x.stx_mask & StatxFlags::BTIME.bits() != 0;
        let btime = if is_kept { stamp(x.stx_btime) } else { atime.min(mtime).min(ctime) };
        let nanoseconds = |t: Stamp| (t.0 as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(t.1));
        RawStat {
            key: InodeKey { dev: u64::from(x.stx_dev_major) << 32 | u64::from(x.stx_dev_minor), ino: x.stx_ino },
            kind: match mode & 0o170000 {
                0o100000 => Some(Kind::File),
                0o040000 => Some(Kind::Directory),
                0o120000 => Some(Kind::Symlink),
                _ => None,
            },
            mode,
            links: x.stx_nlink,
            uid: x.stx_uid,
            gid: x.stx_gid,
            size: x.stx_size,
            allocated: x.stx_blocks * 512,
            atime,
            mtime,
            ctime,
            btime,
            born: if is_kept { nanoseconds(btime) } else { 0 },
        }
    }
}

fn stat_mask() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME
}

pub fn stat_fd(fd: BorrowedFd<'_>) -> rustix::io::Result<RawStat> {
    Ok(RawStat::new(&rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, stat_mask())?))
}

pub fn stat_child(dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<RawStat> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    Ok(RawStat::new(&rustix::fs::statx(dir, os_name(name), flags, stat_mask())?))
}

/// A descriptor that only names the file: it opens nothing, so devices and pipes are not touched.
pub fn pin_child(dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, os_name(name), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Flags for every open of data: never a controlling terminal, never a wait for a pipe's other end.
pub fn data_flags(write: bool) -> OFlags {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY
}

pub fn open_child(dir: BorrowedFd<'_>, name: &str, write: bool) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, os_name(name), data_flags(write), Mode::empty())
}

pub fn create_child(dir: BorrowedFd<'_>, name: &str, mode: u32) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, os_name(name), data_flags(true) | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(mode))
}

/// The directory itself, for reading names and attributes; `dir` may be a pin.
pub fn open_self_directory(dir: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The root of a share: here symbolic links are the administrator's and are followed.
pub fn open_root(path: &std::path::Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// `/proc/self/fd`, through which a pin becomes a descriptor for data without naming the file again.
pub fn open_proc_fds() -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(CWD, c"/proc/self/fd", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The decimal number of a descriptor, without allocating.
pub struct FdName {
    buf: [u8; 12],
    len: usize,
}

impl FdName {
    pub fn new(fd: BorrowedFd<'_>) -> FdName {
        use std::os::fd::AsRawFd as _;
        let mut buf = [0; 12];
        let mut rest = &mut buf[..];
        // Ten digits at most.
        let _ = write!(rest, "{}", fd.as_raw_fd());
        let len = 12 - rest.len();
        FdName { buf, len }
    }
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.buf[..self.len]).unwrap_or("")
    }
}

/// Opens what `pin` names for data.
pub fn reopen(proc_fds: BorrowedFd<'_>, pin: BorrowedFd<'_>, write: bool) -> rustix::io::Result<OwnedFd> {
    let name = FdName::new(pin);
    rustix::fs::openat(proc_fds, name.as_str(), data_flags(write).difference(OFlags::NOFOLLOW), Mode::empty())
}

/// An extended attribute, or None when there is none of that name. `bytes_max` bounds what is read.
pub fn get_xattr(fd: BorrowedFd<'_>, name: &str, bytes_max: usize) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut small = [0u8; 512];
    match rustix::fs::fgetxattr(fd, os_name(name), &mut small[..]) {
        Ok(n) => return Ok(Some(small[..n].to_vec())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        Err(Errno::RANGE) => {}
        Err(e) => return Err(e),
    }
    let len = match rustix::fs::fgetxattr_query(fd, os_name(name)) {
        Ok(n) => n,
        Err(Errno::NODATA) => return Ok(None),
        Err(e) => return Err(e),
    };
    // It may grow between the two calls; then there is room for the longest.
    for len in [len, bytes_max] {
        if len > bytes_max {
            return Err(Errno::TOOBIG);
        }
        let mut value = vec![0; len];
        match rustix::fs::fgetxattr(fd, os_name(name), &mut value[..]) {
            Ok(n) => {
                value.truncate(n);
                return Ok(Some(value));
            }
            Err(Errno::RANGE) => {}
            Err(Errno::NODATA) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    Err(Errno::TOOBIG)
}

/// How long the attribute's value is.
pub fn xattr_bytes(fd: BorrowedFd<'_>, name: &str) -> rustix::io::Result<Option<usize>> {
    match rustix::fs::fgetxattr_query(fd, os_name(name)) {
        Ok(len) => Ok(Some(len)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(e) => Err(e),
    }
}

pub fn set_xattr(fd: BorrowedFd<'_>, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::fsetxattr(fd, os_name(name), value, XattrFlags::empty())
}

/// Removes; one that is not there is fine.
pub fn remove_xattr(fd: BorrowedFd<'_>, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::fremovexattr(fd, os_name(name)) {
        Err(Errno::NODATA) => Ok(()),
        other => other,
    }
}

/// How long the list of all names is, also where it is too long to be told.
pub fn xattr_names_bytes(fd: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    match rustix::fs::flistxattr_query(fd) {
        Err(Errno::OPNOTSUPP) => Ok(0),
        other => other,
    }
}

/// The names of all extended attributes, one call of `f` each. Names that no client can name are left out. `TOOBIG`: the kernel
/// does not tell so many; attributes whose names are known can be read all the same.
pub fn each_xattr(fd: BorrowedFd<'_>, mut f: impl FnMut(&str)) -> rustix::io::Result<()> {
    let mut small = [0u8; 1024];
    let large;
    let list: &[u8] = match rustix::fs::flistxattr(fd, &mut small[..]) {
        Ok(n) => &small[..n],
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(Errno::RANGE) => {
            // The kernel's own limit for the list.
            let mut buf = vec![0u8; 65_536];
            let n = rustix::fs::flistxattr(fd, &mut buf[..])?;
            buf.truncate(n);
            large = buf;
            &large
        }
        Err(e) => return Err(e),
    };
    for name in list.split(|b| *b == 0) {
        if let Some(name) = name_of_bytes(name)
            && !name.is_empty()
        {
            f(&name);
        }
    }
    Ok(())
}

/// Borrowing from anything that has a descriptor.
pub fn fd(f: &impl AsFd) -> BorrowedFd<'_> {
    f.as_fd()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// As a stream does whose size is asked while it is written.
    #[test]
    fn an_attribute_that_grows_meanwhile_is_read() {
        let path = std::env::temp_dir().join(format!("arden-xattr-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let (fd, done) = (fd(&file), AtomicBool::new(false));
        set_xattr(fd, "user.grows", &[0; 600]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for len in (600..3000).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    set_xattr(fd, "user.grows", &vec![0; len]).unwrap();
                }
            });
            let read = (0..100_000).map(|_| get_xattr(fd, "user.grows", 1 << 16).map(|value| value.map(|v| v.len())));
            let wrong = read.into_iter().find(|len| !matches!(len, Ok(Some(600..3000))));
            done.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None);
        });
        std::fs::remove_file(&path).unwrap();
    }
}
