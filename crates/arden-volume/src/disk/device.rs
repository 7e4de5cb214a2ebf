//! The narrow synchronous device that a volume stands on, so that it can lie on a space, on a file, or in memory.
//! A device promises what `arden-block` does: a write is durable after a flush that started after it returned; until
//! then each 512-byte sector of it may be old or new after a crash, in any order. Refuses to know what lies on it.

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

use arden_block::{BLOCK_BYTES, IoError, IoResult, check_range};
use parking_lot::RwLock;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub const BLOCK: usize = BLOCK_BYTES as usize;
/// What a block with a trailer holds besides it.
pub const TRAILED: usize = BLOCK - 8;

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

/// Bytes that were looked at, and rows of blocks whose parity does not fit: where the data of each lies.
pub type ParityMismatches = (u64, Vec<Vec<u64>>);

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

    /// The same for blocks at their offsets on the device, where the first of them lies at `offset`.
    pub fn placed(&self, offset: u64) -> impl Fn(u64, &[u8]) -> bool + use<> {
        let check = self.clone();
        move |at, block| check.accepts(((at - offset) / BLOCK_BYTES) as usize, block)
    }

    /// Writes the trailers that [`BlockCheck::Trailer`] looks for.
    pub fn seal(seed: u64, blocks: &mut [u8]) {
        for (i, block) in blocks.chunks_exact_mut(BLOCK).enumerate() {
            let (body, sum) = block.split_at_mut(TRAILED);
            sum.copy_from_slice(&xxh3_64_with_seed(body, seed.wrapping_add(i as u64)).to_le_bytes());
        }
    }
}

/// Told how a write went.
pub type Written = Box<dyn FnOnce(IoResult<()>) + Send>;

pub trait Device: Send + Sync {
    fn size_bytes(&self) -> u64;
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()>;
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()>;
    fn flush(&self) -> IoResult<()>;
    /// These, and everything written before, are durable when it returns.
    fn write_durably(&self, writes: &[(u64, Vec<u8>)]) -> IoResult<()> {
        writes.iter().try_for_each(|(at, bytes)| self.write(*at, bytes))?;
        self.flush()
    }
    /// Whether `write_durably_later` returns before they are.
    fn writes_later(&self) -> bool {
        false
    }
    /// `write_durably`, and whoever asks is told when it is over: by a thread of the device, which must not be kept.
    fn write_durably_later(&self, writes: Vec<(u64, Vec<u8>)>, told: Written) {
        told(self.write_durably(&writes));
    }
    /// The range may be given back; what it reads as is undefined afterwards.
    fn discard(&self, offset: u64, len: u64) -> IoResult<()>;
    /// In pieces of how many bytes it takes back what nothing lies in. None: it has no use for that.
    fn piece_bytes(&self) -> Option<u64> {
        Some(1 << 20)
    }
    /// Those of its pieces, by number, that it keeps room for whether or not anything lies in them, as far as it knows.
    fn pieces_held(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Nothing on it is wanted any more.
    fn abandon(&self) -> IoResult<()> {
        Ok(())
    }
    /// Looks how large it is by now: a device that was made larger says so from then on.
    fn look_again(&self) -> IoResult<u64> {
        Ok(self.size_bytes())
    }
    /// Whether every copy of these blocks can be read and passes. Writes nothing.
    fn copies_pass(&self, offset: u64, len: usize, check: &BlockCheck) -> bool {
        let mut buf = vec![0; len];
        self.read(offset, &mut buf).is_ok() && buf.chunks_exact(BLOCK).enumerate().all(|(i, b)| check.accepts(i, b))
    }
    /// Writes copies that do not pass anew from one that does. How many blocks were healed; `Media` when there is one
    /// of which no copy passes.
    fn heal(&self, offset: u64, len: usize, check: &BlockCheck) -> IoResult<u64> {
        self.read_checked(offset, &mut vec![0; len], check).map(|()| 0)
    }
    /// Looks for parity that does not fit its data. None: the device has none.
    fn parity_mismatches(&self, _offset: u64, _len: u64) -> IoResult<Option<ParityMismatches>> {
        Ok(None)
    }
    /// Computes the parity of a row anew if its data passes: `row` is its first place, where the check's numbers begin. How
    /// many blocks were written.
    fn recompute_parity(&self, _row: u64, _check: &BlockCheck) -> IoResult<u64> {
        Ok(0)
    }
    /// Whether a crash may have left copies of blocks different. None was written over another: only checksums tell which
    /// is right, and those are not the device's.
    fn may_differ(&self) -> bool {
        false
    }
    /// The copies of every block that counts are equal now.
    fn end_crash_resync(&self) -> IoResult<()> {
        Ok(())
    }
    /// Reads blocks that pass `check`, from whichever copy; `Media` when no copy passes.
    fn read_checked(&self, offset: u64, buf: &mut [u8], check: &BlockCheck) -> IoResult<()> {
        self.read(offset, buf)?;
        if buf.chunks_exact(BLOCK).enumerate().all(|(i, b)| check.accepts(i, b)) { Ok(()) } else { Err(IoError::Media) }
    }
}

/// A device whose copies may differ since a crash: what is read of it and passes is equal in all of them afterwards.
pub struct CrashResync<'a>(pub &'a dyn Device);

impl Device for CrashResync<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.0.write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.0.discard(offset, len)
    }
    fn read_checked(&self, offset: u64, buf: &mut [u8], check: &BlockCheck) -> IoResult<()> {
        self.0.read_checked(offset, buf, check)?;
        if !self.0.copies_pass(offset, buf.len(), check) {
            if let Err(e) = self.0.heal(offset, buf.len(), check) {
                // What was read is right; a disk that takes no writes leaves its pool.
                tracing::warn!(offset, "a copy stays as a crash left it: {e}");
            }
        }
        Ok(())
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
        std::io::ErrorKind::StorageFull => IoError::NoSpace,
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
}

/// Memory, for tests and small things.
pub struct MemDevice {
    bytes: RwLock<Vec<u8>>,
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
}
