//! The `BlockDevice` trait and its devices: file or block device through io_uring, and a
//! simulated disk. Owns the small single-threaded runtime that drives them, because the same
//! code has to run over a kernel ring in real time and over simulated disks in virtual time.
//! Refuses to know what lies on a device.
//!
//! # Why futures on a runtime of our own
//! A pool is one owner on one thread: its state needs no locks, and its order of steps is a
//! function of the order of completions alone. Over io_uring that thread submits a batch per
//! turn and sleeps in one system call; over [`sim::SimDisk`] the same futures are driven by a
//! virtual clock, so that one seed fixes a whole run, crash included. Blocking calls on a
//! thread pool would have given neither; callbacks would have given both but made parity
//! and repair hard to read.
//!
//! # What the operations promise
//! * Offsets and lengths are multiples of [`BLOCK_BYTES`]. Anything else is `Misaligned`.
//! * A write that returned is visible to reads that start later. It is durable only after a
//!   flush that *started* after it returned, or when it was asked to be `durable` itself.
//! * After a crash each 512-byte sector of a write that was not durable is old or new,
//!   each on its own; writes between two flushes may survive in any order.
//! * `flush` is the only barrier. Two overlapping writes in flight at once have no order.
//! * `write_zeroes` is a write. `discard` leaves the range undefined.
//!
//! # Two traits
//! [`BlockDevice`] is for the tasks of one runtime: disks under a pool, and what a pool gives to NBD. [`Device`] is for any
//! thread, which waits: what a volume stands on. `arden_space::SharedSpace` is the bridge from one to the other.

pub mod buf;
pub mod device;
pub mod file;
pub mod identify;
mod io_class;
pub mod memory;
pub mod reserve;
pub mod rng;
pub mod rt;
pub mod sim;
pub mod sync;
mod threads;
pub mod timing;
mod uring;
mod whole;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use buf::{Buf, SharedBuf};
pub use device::{Device, Redundant, Thin, Verify};
pub use rt::Rt;

/// The unit of every offset and length.
pub const BLOCK_BYTES: u64 = 4096;
/// The unit in which a torn write tears.
pub const SECTOR_BYTES: u64 = 512;

/// A future that stays on its runtime's thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;
/// The answer of a device.
pub type IoResult<T> = Result<T, IoError>;

/// An error of a device, by blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoError {
    /// The caller's offset or length is not a multiple of the block.
    Misaligned,
    /// The caller went past the end.
    OutOfRange,
    /// These sectors cannot be read or written now; others may work.
    Media,
    /// The device does not answer any more.
    Gone,
    /// The device has no room (a sparse file on a full file system).
    NoSpace,
    /// The device was opened for reading only.
    ReadOnly,
    /// The operation is not known to this device.
    Unsupported,
    /// Another host has the device by a persistent reservation: this one has been fenced. Nothing was changed.
    Conflict,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoError::Misaligned => "offset or length is not a multiple of 4096",
            IoError::OutOfRange => "past the end of the device",
            IoError::Media => "medium error",
            IoError::Gone => "device is gone",
            IoError::NoSpace => "no space left under the device",
            IoError::ReadOnly => "device is read-only",
            IoError::Unsupported => "not supported by the device",
            IoError::Conflict => "reserved by another host",
        })
    }
}

impl std::error::Error for IoError {}

/// The kind of a disk, slowest first. A pool puts its log on the fastest disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Media {
    Unknown,
    Rotating,
    Ssd,
    Nvme,
}

/// Name, size and kind of a device.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// A path or a name, for people.
    pub name: String,
    pub size_bytes: u64,
    pub media: Media,
    pub model: String,
    pub serial: String,
}

/// A disk, or anything that behaves as one. Offsets and lengths are in bytes, in multiples of [`BLOCK_BYTES`]. The crate's page
/// says what each operation promises.
///
/// # Errors
/// Every operation ends with an [`IoError`], by blame.
pub trait BlockDevice {
    /// Name, size and kind.
    fn info(&self) -> &DeviceInfo;
    /// Reads `len` bytes at `offset`.
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>>;
    /// Writes `data` at `offset`; `durable`: on stable storage when it ends.
    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>>;
    /// Writes `len` zeros at `offset`.
    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>>;
    /// Gives up the content of `len` bytes at `offset`.
    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>>;
    fn flush(&self) -> LocalFuture<IoResult<()>>;
    /// Free bytes of the file system whose file it is; `None` for what is no file. In a file the first durable write to a place waits
    /// for the file system's own record of it too.
    fn room_of_files(&self) -> Option<u64> {
        None
    }
    /// The same device for reads on the runtimes of other threads; `None` where only its own runtime reads it.
    fn shared_reads(&self) -> Option<Arc<dyn SharedReads>> {
        None
    }
    /// True when it is known to have lost what was written to it: a file that was cut short.
    fn lost_content(&self) -> bool {
        false
    }
}

/// Reads of a device by any thread, each on a runtime of its own. It is the device as it was opened: another opening of the same
/// disk has another one, and reads fail with [`IoError::Gone`] when the device is dropped.
pub trait SharedReads: Send + Sync {
    /// Reads `len` bytes at `offset` on `rt`, a runtime of the calling thread.
    fn read_on(&self, rt: &Rt, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>>;
}

/// The checks that every device makes before it does anything.
pub fn check_range(size_bytes: u64, offset: u64, len: u64) -> IoResult<()> {
    if !offset.is_multiple_of(BLOCK_BYTES) || !len.is_multiple_of(BLOCK_BYTES) {
        return Err(IoError::Misaligned);
    }
    match offset.checked_add(len) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(IoError::OutOfRange),
    }
}
