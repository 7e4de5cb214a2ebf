//! How a volume uses the device it stands on: checks of blocks, from whichever copy passes, and the devices that are not a
//! space: a file, and memory. Refuses to know what lies on it.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arden_block::{
    BLOCK_BYTES, Device, IoError, IoResult, Redundant, Thin, Verify, check_range,
    device::{ParityMismatches, read_single},
};
use arden_lock::{RwLock, ranks};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub const BLOCK: usize = BLOCK_BYTES as usize;
/// What a block with a trailer holds besides it.
pub const TRAILED: usize = BLOCK - 8;
/// Files are punched in holes of this many bytes: small ones cost more than they free.
const HOLE_BYTES: u64 = 1 << 20;

/// How to tell whether single blocks are what was written: a device with several copies tries another one.
#[derive(Debug, Clone)]
pub enum BlockCheck {
    /// The checksum of each block.
    Sums(Arc<[u64]>),
    /// Each block ends in its own checksum, seeded so that what was here earlier does not pass.
    Trailer { seed: u64 },
    /// Single blocks by their number, each as that one of a check; nothing is known of the others, which pass.
    Known(Arc<BTreeMap<usize, (BlockCheck, usize)>>),
}

impl BlockCheck {
    pub fn accepts(&self, index: usize, block: &[u8]) -> bool {
        match self {
            BlockCheck::Sums(sums) => sums.get(index).is_some_and(|s| *s == xxh3_64(block)),
            BlockCheck::Trailer { seed } => {
                let Some((body, sum)) = block.split_at_checked(TRAILED) else { return false };
                xxh3_64_with_seed(body, seed.wrapping_add(index as u64)).to_le_bytes() == *sum
            }
            BlockCheck::Known(some) => some.get(&index).is_none_or(|(check, number)| check.accepts(*number, block)),
        }
    }

    /// The same for the block at an offset of the device, where the first one lies at `first`.
    fn accepts_at(&self, first: u64, at: u64, block: &[u8]) -> bool {
        self.accepts(((at - first) / BLOCK_BYTES) as usize, block)
    }

    /// The same for blocks at their offsets on the device, where the first of them lies at `first`.
    pub fn placed(&self, first: u64) -> Verify {
        let check = self.clone();
        Arc::new(move |at, block| check.accepts_at(first, at, block))
    }

    /// Writes the trailers that [`BlockCheck::Trailer`] looks for.
    pub fn seal(seed: u64, blocks: &mut [u8]) {
        for (i, block) in blocks.chunks_exact_mut(BLOCK).enumerate() {
            let (body, sum) = block.split_at_mut(TRAILED);
            sum.copy_from_slice(&xxh3_64_with_seed(body, seed.wrapping_add(i as u64)).to_le_bytes());
        }
    }
}

/// Reads blocks that pass, from whichever copy.
///
/// # Errors
/// [`IoError::Media`] when no copy of a block passes.
pub fn read_checked(device: &dyn Device, offset: u64, buf: &mut [u8], check: &BlockCheck) -> IoResult<()> {
    read_verified(device, offset, buf, &check.placed(offset))
}

/// The same with any check: of blocks at their offsets.
///
/// # Errors
/// [`IoError::Media`] when no copy of a block passes.
pub fn read_verified(device: &dyn Device, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()> {
    match device.redundant() {
        Some(copies) => copies.read_verified(offset, buf, verify),
        None => read_single(device, offset, buf, |at, block| verify(at, block)),
    }
}

/// Whether every copy of these blocks can be read and passes. Writes nothing.
pub fn copies_pass(device: &dyn Device, offset: u64, len: usize, check: &BlockCheck) -> bool {
    match device.redundant() {
        Some(copies) => copies.copies_pass(offset, len, &check.placed(offset)),
        None => read_checked(device, offset, &mut vec![0; len], check).is_ok(),
    }
}

/// Writes copies that do not pass anew from one that does. How many blocks were healed.
///
/// # Errors
/// [`IoError::Media`] when there is a block of which no copy passes.
pub fn heal(device: &dyn Device, offset: u64, len: usize, check: &BlockCheck) -> IoResult<u64> {
    match device.redundant() {
        Some(copies) => copies.heal(offset, len, &check.placed(offset)),
        None => read_checked(device, offset, &mut vec![0; len], check).map(|()| 0),
    }
}

/// What a device keeps room for, and in pieces of how many bytes; without pieces, none is given back.
pub fn pieces(device: &dyn Device) -> (u64, Vec<u64>) {
    device.thin().map_or((0, Vec::new()), |thin| (thin.piece_bytes(), thin.pieces_held()))
}

/// A device whose copies may differ since a crash: what is read of it and passes is equal in all of them afterwards.
pub struct CrashResync<'a> {
    device: &'a dyn Device,
    copies: &'a dyn Redundant,
}

impl<'a> CrashResync<'a> {
    /// None where a crash leaves all copies equal.
    pub fn of(device: &'a dyn Device) -> Option<CrashResync<'a>> {
        let copies = device.redundant().filter(|copies| copies.may_differ())?;
        Some(CrashResync { device, copies })
    }

    /// All that counts was read or written since: copies are equal.
    pub fn end(&self) -> IoResult<()> {
        self.copies.end_crash_resync()
    }
}

impl Device for CrashResync<'_> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.device.write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.device.discard(offset, len)
    }
    fn redundant(&self) -> Option<&dyn Redundant> {
        Some(self)
    }
}

impl Redundant for CrashResync<'_> {
    fn copies(&self) -> u32 {
        self.copies.copies()
    }
    fn read_copy(&self, copy: u32, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.copies.read_copy(copy, offset, buf)
    }
    fn read_verified(&self, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()> {
        self.copies.read_verified(offset, buf, verify)?;
        if !self.copies.copies_pass(offset, buf.len(), verify) {
            if let Err(e) = self.copies.heal(offset, buf.len(), verify) {
                // What was read is right; a disk that takes no writes leaves its pool.
                tracing::warn!(offset, "a copy stays as a crash left it: {e}");
            }
        }
        Ok(())
    }
    fn copies_pass(&self, offset: u64, len: usize, verify: &Verify) -> bool {
        self.copies.copies_pass(offset, len, verify)
    }
    fn heal(&self, offset: u64, len: usize, verify: &Verify) -> IoResult<u64> {
        self.copies.heal(offset, len, verify)
    }
    fn parity_mismatches(&self, offset: u64, len: u64) -> IoResult<Option<ParityMismatches>> {
        self.copies.parity_mismatches(offset, len)
    }
    fn recompute_parity(&self, row: u64, verify: &Verify) -> IoResult<u64> {
        self.copies.recompute_parity(row, verify)
    }
}

/// A regular file or a block device of the operating system.
pub struct FileDevice {
    file: File,
    size_bytes: AtomicU64,
}

impl FileDevice {
    pub fn open(path: &Path, writable: bool) -> std::io::Result<FileDevice> {
        let file = File::options().read(true).write(writable).open(path)?;
        lock(&file)?;
        forget_cached(&file)?;
        let size_bytes = AtomicU64::new(whole_blocks(&file)?);
        Ok(FileDevice { file, size_bytes })
    }

    /// Makes a sparse file of `size_bytes`.
    pub fn create(path: &Path, size_bytes: u64) -> std::io::Result<FileDevice> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        lock(&file)?;
        file.set_len(size_bytes)?;
        Ok(FileDevice { file, size_bytes: AtomicU64::new(size_bytes / BLOCK_BYTES * BLOCK_BYTES) })
    }

    /// Makes a regular file longer, also one that is open; never shorter. A block device is as long as it is.
    pub fn lengthen(path: &Path, size_bytes: u64) -> std::io::Result<()> {
        let file = File::options().write(true).open(path)?;
        let now = file.metadata()?;
        if now.is_file() && size_bytes > now.len() {
            file.set_len(size_bytes)?;
            file.sync_all()?;
        }
        Ok(())
    }
}

fn whole_blocks(mut file: &File) -> std::io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    Ok(file.seek(SeekFrom::End(0))? / BLOCK_BYTES * BLOCK_BYTES)
}

/// After a flush that failed Linux takes the pages for clean and keeps them: what is read of them later is not on the disk,
/// and is gone when they are. So whoever opens a volume first has all that can be written written, and the rest forgotten.
fn forget_cached(file: &File) -> std::io::Result<()> {
    file.sync_all()?;
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// A volume has one owner.
fn lock(file: &File) -> std::io::Result<()> {
    let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(file, how).map_err(|e| match e {
        rustix::io::Errno::WOULDBLOCK => {
            std::io::Error::new(std::io::ErrorKind::ResourceBusy, "another process has this volume open")
        }
        e => e.into(),
    })
}

fn io_error(e: std::io::Error) -> IoError {
    match e.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => IoError::NoSpace,
        std::io::ErrorKind::UnexpectedEof => IoError::OutOfRange,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => IoError::ReadOnly,
        _ => IoError::Media,
    }
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }
    fn look_again(&self) -> IoResult<u64> {
        let now = whole_blocks(&self.file).map_err(io_error)?;
        Ok(self.size_bytes.fetch_max(now, Ordering::AcqRel).max(now))
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        check_range(self.size_bytes(), offset, buf.len() as u64)?;
        self.file.read_exact_at(buf, offset).map_err(io_error)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        check_range(self.size_bytes(), offset, data.len() as u64)?;
        self.file.write_all_at(data, offset).map_err(io_error)
    }
    fn flush(&self) -> IoResult<()> {
        self.file.sync_data().map_err(io_error)
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        check_range(self.size_bytes(), offset, len)?;
        // A wish: what cannot punch holes keeps the blocks.
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(&self.file, flags, offset, len);
        Ok(())
    }
    fn room_of_files(&self) -> Option<u64> {
        let regular = self.file.metadata().is_ok_and(|meta| meta.is_file());
        regular.then(|| rustix::fs::fstatvfs(&self.file).map_or(0, |s| s.f_bavail.saturating_mul(s.f_frsize)))
    }
    fn thin(&self) -> Option<&dyn Thin> {
        Some(self)
    }
}

impl Thin for FileDevice {
    fn piece_bytes(&self) -> u64 {
        HOLE_BYTES
    }
}

/// Memory, for tests and small things.
pub struct MemDevice {
    bytes: RwLock<Vec<u8>, ranks::MemDevice>,
}

impl MemDevice {
    pub fn new(size_bytes: usize) -> MemDevice {
        MemDevice::holding(vec![0; size_bytes / BLOCK * BLOCK])
    }
    pub fn holding(bytes: Vec<u8>) -> MemDevice {
        MemDevice { bytes: RwLock::new(bytes) }
    }
    pub fn content(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
    /// Makes it longer; zeros follow.
    pub fn extend(&self, size_bytes: usize) {
        let mut bytes = self.bytes.write();
        let size = (size_bytes / BLOCK * BLOCK).max(bytes.len());
        bytes.resize(size, 0);
    }
}

impl Device for MemDevice {
    fn size_bytes(&self) -> u64 {
        self.bytes.read().len() as u64
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        check_range(self.size_bytes(), offset, buf.len() as u64)?;
        buf.copy_from_slice(&self.bytes.read()[offset as usize..offset as usize + buf.len()]);
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        check_range(self.size_bytes(), offset, data.len() as u64)?;
        self.bytes.write()[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn flush(&self) -> IoResult<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        check_range(self.size_bytes(), offset, len)?;
        self.bytes.write()[offset as usize..(offset + len) as usize].fill(0xDD);
        Ok(())
    }
    fn thin(&self) -> Option<&dyn Thin> {
        Some(self)
    }
}

impl Thin for MemDevice {
    fn piece_bytes(&self) -> u64 {
        HOLE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;

    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    use super::*;

    #[test]
    fn an_opening_reads_the_disk_and_not_what_the_system_has_cached() {
        // Not in a temporary directory, which may be memory that has no disk under it.
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!(".cached-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).ok();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        file.write_all_at(&vec![7; 8 << 20], 0).unwrap();
        let cached = |file: &File| {
            let mut block = [0; BLOCK];
            preadv2(file, &mut [IoSliceMut::new(&mut block)], 4 << 20, ReadWriteFlags::NOWAIT)
        };
        match cached(&file) {
            Ok(read) => assert_eq!(read, BLOCK),
            // The file system does not tell.
            Err(_) => return,
        }
        let opened = || FileDevice::open(Path::new(&path), true).unwrap();
        let mut device = opened();
        let mut found = cached(&device.file);
        // Being asked the system reads the page after all, and may have it before it answers.
        for _ in 0..20 {
            if found.is_err() {
                break;
            }
            drop(device);
            device = opened();
            found = cached(&device.file);
        }
        assert_eq!(found, Err(Errno::AGAIN));
        let mut block = [0; BLOCK];
        device.read(4 << 20, &mut block).unwrap();
        assert_eq!(block, [7; BLOCK], "what was not written yet is written first");
    }

    #[test]
    fn what_cannot_be_synced_is_not_opened() {
        let refused = FileDevice::open(Path::new("/dev/null"), true);
        assert_eq!(refused.err().and_then(|e| e.raw_os_error()), Some(Errno::INVAL.raw_os_error()));
    }
}
