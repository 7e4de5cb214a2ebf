//! Data of regular files: reads, writes, sizes, sparse ranges, copies, durability. Streams are in `stream`.

use std::{os::fd::BorrowedFd, sync::atomic::Ordering};

use arden_wire::access::ATTR_SPARSE;
use rustix::{
    fs::{FallocateFlags, SeekFrom},
    io::{Errno, IoSliceMut, ReadWriteFlags},
};

use super::{
    Shared, dosattrib,
    inode::{Inode, Link},
    meta::DOSATTRIB,
    reflink,
    sys::{self, Kind},
};
use crate::error::{NotDone, StoreError};
use crate::store::{CLUSTER_BYTES, Result, Wait};

/// Through a buffer of this size where the kernel cannot copy by itself.
const COPY_BYTES: usize = 1 << 20;

pub fn read_at(fd: BorrowedFd<'_>, offset: u64, buf: &mut [u8], wait: Wait) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        let at = offset.checked_add(done as u64).ok_or(StoreError::InvalidParameter)?;
        let got = match wait {
            Wait::Yes => rustix::io::pread(fd, &mut buf[done..], at),
            Wait::No => {
                let mut slices = [IoSliceMut::new(&mut buf[done..])];
                rustix::io::preadv2(fd, &mut slices, at, ReadWriteFlags::NOWAIT)
            }
        };
        match got {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            // Not in memory, or the file system cannot tell.
            Err(Errno::AGAIN | Errno::OPNOTSUPP) if wait == Wait::No => return Err(NotDone::WouldBlock),
            Err(e) => return Err(sys::failure(e)),
        }
    }
    Ok(done)
}

pub fn write_at(fd: BorrowedFd<'_>, offset: u64, data: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        let at = offset.checked_add(done as u64).ok_or(StoreError::InvalidParameter)?;
        match rustix::io::pwrite(fd, &data[done..], at) {
            Ok(0) => return Err(StoreError::DiskFull.into()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(sys::failure(e)),
        }
    }
    Ok(())
}

/// `DiskFull` when the file system has not as many bytes free. Nothing is reserved: space that only a promise takes would
/// be a way to fill the disk without writing, and a crash would leave it taken.
pub fn check_room(fd: BorrowedFd<'_>, bytes: u64) -> Result<()> {
    let v = rustix::fs::fstatvfs(fd).map_err(sys::failure)?;
    if bytes > v.f_bavail.saturating_mul(v.f_frsize) { Err(StoreError::DiskFull.into()) } else { Ok(()) }
}

/// Zeroes `from..end`, which takes no space where the file system can give it back; else only what is there is written.
pub fn zero(fd: BorrowedFd<'_>, from: u64, end: u64) -> Result<()> {
    match rustix::fs::fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, end - from) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(e) => return Err(sys::failure(e)),
    }
    let zeros = vec![0; COPY_BYTES.min((end - from) as usize)];
    each_data(fd, from, end, |mut at, end| {
        while at < end {
            let n = zeros.len().min((end - at) as usize);
            write_at(fd, at, &zeros[..n])?;
            at += n as u64;
        }
        Ok(true)
    })
}

/// The parts of `from..end` that hold data, in order, while `each` wants more. The end is that of the file at most.
fn each_data(fd: BorrowedFd<'_>, from: u64, end: u64, mut each: impl FnMut(u64, u64) -> Result<bool>) -> Result<()> {
    let mut at = from;
    while at < end {
        let data = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(d) if d < end => d,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(e) => return Err(sys::failure(e)),
        };
        let hole = rustix::fs::seek(fd, SeekFrom::Hole(data)).map_err(sys::failure)?.min(end);
        if hole <= data {
            break;
        }
        if !each(data, hole)? {
            break;
        }
        at = hole;
    }
    Ok(())
}

impl Shared {
    pub fn set_allocation(&self, inode: &Inode, size: u64) -> Result<()> {
        let fd = inode.for_writing(self.proc_fds()).map_err(sys::failure)?;
        let stat = inode.stat().map_err(sys::failure)?;
        inode.promised_bytes.store(0, Ordering::Relaxed);
        if size < stat.size {
            inode.emptied.fetch_or(size == 0, Ordering::Relaxed);
            return rustix::fs::ftruncate(fd, size).map_err(sys::failure);
        }
        let allocated = self.data_allocation(&stat, &self.meta(inode, &stat)?);
        check_room(fd, size.saturating_sub(allocated))?;
        // Gives back what others reserved beyond the end.
        if allocated > stat.size.next_multiple_of(CLUSTER_BYTES) {
            rustix::fs::ftruncate(fd, stat.size).map_err(sys::failure)?;
        }
        inode.promised_bytes.store(size, Ordering::Relaxed);
        Ok(())
    }

    fn is_sparse(&self, inode: &Inode) -> Result<bool> {
        let stat = inode.stat().map_err(sys::failure)?;
        Ok(self.meta(inode, &stat)?.dos.attributes.is_some_and(|a| a & ATTR_SPARSE != 0))
    }

    /// Never extends the file.
    pub fn zero_range(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        let fd = inode.for_writing(self.proc_fds()).map_err(sys::failure)?;
        let size = inode.stat().map_err(sys::failure)?.size;
        let end = offset.saturating_add(len).min(size);
        if offset >= end {
            return Ok(());
        }
        zero(fd, offset, end)
    }

    pub fn allocated_ranges(&self, inode: &Inode, offset: u64, len: u64, max: usize) -> Result<Vec<(u64, u64)>> {
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        let end = offset.saturating_add(len).min(inode.stat().map_err(sys::failure)?.size);
        if offset >= end || max == 0 {
            return Ok(Vec::new());
        }
        if !self.is_sparse(inode)? {
            return Ok(vec![(offset, end - offset)]);
        }
        let mut ranges = Vec::new();
        each_data(fd, offset, end, |from, to| {
            ranges.push((from, to - from));
            Ok(ranges.len() < max)
        })?;
        Ok(ranges)
    }

    pub fn set_sparse(&self, inode: &Inode, name: &str, sparse: bool) -> Result<()> {
        let stat = inode.stat().map_err(sys::failure)?;
        let meta = self.meta(inode, &stat)?;
        let now = self.compose(&stat, &meta, name).attributes & !arden_wire::access::ATTR_NORMAL;
        let wanted = if sparse { now | ATTR_SPARSE } else { now & !ATTR_SPARSE };
        if now == wanted {
            return Ok(());
        }
        let mut dos = meta.dos;
        dos.attributes = Some(wanted);
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        sys::set_xattr(fd, DOSATTRIB, &dosattrib::encode(&dos)).map_err(sys::failure)?;
        self.after_change(inode, meta, |m| m.dos = dos)
    }

    pub fn copy(&self, from: &Inode, to: &Inode, mut source: u64, mut target: u64, len: u64) -> Result<u64> {
        let from_fd = from.for_reading(self.proc_fds()).map_err(sys::failure)?;
        let to_fd = to.for_writing(self.proc_fds()).map_err(sys::failure)?;
        let available = from.stat().map_err(sys::failure)?.size.saturating_sub(source);
        let len = len.min(available);
        let mut left = len;
        while left > 0 {
            let n = left.min(1 << 30) as usize;
            match rustix::fs::copy_file_range(from_fd, Some(&mut source), to_fd, Some(&mut target), n) {
                Ok(0) => break,
                Ok(n) => left -= n as u64,
                Err(Errno::INTR) => {}
                // The same file overlapping itself, or file systems that cannot copy between them.
                Err(Errno::INVAL | Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    return Ok(len - left + copy_by_buffer(from_fd, to_fd, source, target, left)?);
                }
                Err(e) => return Err(sys::failure(e)),
            }
        }
        Ok(len - left)
    }

    /// [MS-FSA] 2.1.5.10.4: extents are shared, or nothing happens. Copying instead would take as long as the range is large.
    pub fn share(&self, from: &Inode, to: &Inode, source_offset: u64, offset: u64, len: u64) -> Result<()> {
        let side = |inode: &Inode, offset: u64| {
            let size = inode.stat().map_err(sys::failure)?.size;
            Ok::<_, NotDone>(CloneSide { offset, size, sparse: self.is_sparse(inode)? })
        };
        check_clone(from.key == to.key, side(from, source_offset)?, side(to, offset)?, len)?;
        if len == 0 {
            return Ok(());
        }
        let from_fd = from.for_reading(self.proc_fds()).map_err(sys::failure)?;
        let to_fd = to.for_writing(self.proc_fds()).map_err(sys::failure)?;
        reflink::share(from_fd, source_offset, to_fd, offset, len).map_err(|e| match e {
            // One of the files is of a kind of its own, as without copy on write.
            Errno::INVAL | Errno::XDEV | Errno::OPNOTSUPP | Errno::TXTBSY => StoreError::NotSupported.into(),
            e => sys::failure(e),
        })
    }

    /// Whether the file system has shared extents at all.
    pub fn shares_extents(&self, inode: &Inode) -> bool {
        const BTRFS: i64 = 0x9123_683E;
        const BCACHEFS: i64 = 0xCA45_1A4E;
        rustix::fs::fstatfs(inode.pin()).is_ok_and(|f| [BTRFS, BCACHEFS].contains(&f.f_type))
    }

    /// Data, size, attributes, and the name where it is new.
    pub fn sync(&self, inode: &Inode, link: &Link) -> Result<()> {
        if inode.kind != Kind::Symlink {
            let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
            if inode.metadata_unsynced.swap(false, Ordering::Relaxed) || inode.kind == Kind::Directory {
                rustix::fs::fsync(fd)
            } else {
                rustix::fs::fdatasync(fd)
            }
            .map_err(|e| {
                inode.metadata_unsynced.store(true, Ordering::Relaxed);
                self.sync_failed(inode, sys::error(e));
                sys::failure(e)
            })?;
        }
        let parent = {
            let mut place = link.place.lock();
            if !std::mem::take(&mut place.unsynced) {
                return Ok(());
            }
            place.parent.clone()
        };
        let Some(parent) = parent else { return Ok(()) };
        let synced = parent.for_reading(self.proc_fds()).and_then(rustix::fs::fsync);
        if let Err(e) = synced {
            link.place.lock().unsynced = true;
            self.sync_failed(&parent, sys::error(e));
        }
        synced.map_err(sys::failure)
    }
}

/// One of the two files of a clone.
#[derive(Clone, Copy)]
struct CloneSide {
    offset: u64,
    size: u64,
    sparse: bool,
}

/// [MS-FSA] 2.1.5.10.4 says which of these is which status; as on volumes.
fn check_clone(same_file: bool, source: CloneSide, target: CloneSide, len: u64) -> Result<(), StoreError> {
    if [source.offset, target.offset].iter().any(|o| !o.is_multiple_of(CLUSTER_BYTES)) {
        return Err(StoreError::InvalidParameter);
    }
    if source.sparse && !target.sparse {
        return Err(StoreError::NotSupported);
    }
    let source_end = source.offset.checked_add(len).ok_or(StoreError::InvalidParameter)?;
    let target_end = target.offset.checked_add(len).ok_or(StoreError::InvalidParameter)?;
    if source_end > source.size {
        return Err(StoreError::NotSupported);
    }
    if !len.is_multiple_of(CLUSTER_BYTES) && (source_end != source.size || target_end < target.size) {
        return Err(StoreError::InvalidParameter);
    }
    if same_file && source.offset < target_end && target.offset < source_end {
        return Err(StoreError::NotSupported);
    }
    Ok(())
}

/// Everything that `from` has, to the beginning of `to`, which is empty: data is copied, holes stay holes.
pub fn copy_all(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
    let size = sys::stat_fd(from).map_err(sys::failure)?.size;
    rustix::fs::ftruncate(to, size).map_err(sys::failure)?;
    each_data(from, 0, size, |at, end| match copy_by_buffer(from, to, at, at, end - at)? {
        n if n == end - at => Ok(true),
        _ => Err(StoreError::DataError.into()),
    })
}

fn copy_by_buffer(from: BorrowedFd<'_>, to: BorrowedFd<'_>, source: u64, target: u64, len: u64) -> Result<u64> {
    let mut buf = vec![0; COPY_BYTES.min(len as usize)];
    let mut done = 0;
    while done < len {
        let n = buf.len().min((len - done) as usize);
        let got = read_at(from, source + done, &mut buf[..n], Wait::Yes)?;
        if got == 0 {
            break;
        }
        write_at(to, target + done, &buf[..got])?;
        done += got as u64;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_that_no_file_system_is_asked_for() {
        const C: u64 = CLUSTER_BYTES;
        let side = |offset, size| CloneSide { offset, size, sparse: false };
        let sparse = |side: CloneSide| CloneSide { sparse: true, ..side };
        let (invalid, unsupported) = (Err(StoreError::InvalidParameter), Err(StoreError::NotSupported));
        for (same_file, source, target, len, wanted) in [
            (false, side(0, 9 * C), side(0, 9 * C), 2 * C, Ok(())),
            (false, side(1, 9 * C), side(0, 9 * C), C, invalid),
            (false, side(0, 9 * C), side(1, 9 * C), C, invalid),
            (false, side(C, 9 * C), side(0, 9 * C), u64::MAX, invalid),
            (false, side(C, 9 * C), side(0, 9 * C), 9 * C, unsupported),
            (false, sparse(side(0, C)), side(0, 0), C, unsupported),
            (false, sparse(side(0, C)), sparse(side(0, 0)), C, Ok(())),
            (false, side(0, C), sparse(side(0, 0)), C, Ok(())),
            // An end between clusters is the end of both.
            (false, side(0, C + 1), side(0, 0), C + 1, Ok(())),
            (false, side(0, C + 2), side(0, 0), C + 1, invalid),
            (false, side(0, C + 1), side(0, C + 2), C + 1, invalid),
            // A range of the file onto itself.
            (true, side(0, 9 * C), side(2 * C, 9 * C), 3 * C, unsupported),
            (true, side(2 * C, 9 * C), side(0, 9 * C), 3 * C, unsupported),
            (true, side(0, 9 * C), side(0, 9 * C), C, unsupported),
            (true, side(0, 9 * C), side(2 * C, 9 * C), 2 * C, Ok(())),
        ] {
            let checked = check_clone(same_file, source, target, len);
            assert_eq!(checked, wanted, "{}, {}, {len}", source.offset, target.offset);
        }
    }
}
