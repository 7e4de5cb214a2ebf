//! A device that any thread may use, as a volume needs it: each call blocks until it is done. Further abilities are
//! extensions: [`Thin`] where space is given back, [`Redundant`] where blocks have copies or parity. Refuses to know what a
//! block holds: the reader passes a check of its content.

use std::{sync::Arc, time::Duration};

use crate::{IoError, IoResult, SharedBuf};

/// Whether a block, which lies at this offset of the device, holds what was written there.
pub type Verify = Arc<dyn Fn(u64, &[u8]) -> bool + Send + Sync>;

/// Called with the result of a write.
pub type Written = Box<dyn FnOnce(IoResult<()>) + Send>;

/// Bytes that were compared, and the rows of blocks whose parity mismatches: for each row the offsets of its data, in bytes.
pub type ParityMismatches = (u64, Vec<Vec<u64>>);

/// A block device for any thread. Its operations promise what those of [`crate::BlockDevice`] do: a write is durable after a
/// flush that started after it returned; until then each 512-byte sector of it may be old or new after a crash, in any order.
///
/// # Errors
/// [`IoError`], by blame.
pub trait Device: Send + Sync {
    fn size_bytes(&self) -> u64;
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()>;
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()>;
    /// As `write`, of memory that the device may share until it is done with it.
    fn write_shared(&self, offset: u64, data: &SharedBuf) -> IoResult<()> {
        self.write(offset, data)
    }
    /// As `write`, of places that nobody else writes to meanwhile. The device may answer from memory and write a little later: reads
    /// see it, and a flush or a durable write has it before it returns.
    fn write_soon(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.write(offset, data)
    }
    /// The memory that `write_soon` takes, in bytes.
    fn gathered_bytes(&self) -> u64 {
        0
    }
    /// From now on `write_soon` takes at most so much memory.
    fn set_gather_bytes(&self, _bytes_max: u64) {}
    fn flush(&self) -> IoResult<()>;
    /// The range may be given back; what it reads as is undefined afterwards.
    fn discard(&self, offset: u64, len: u64) -> IoResult<()>;

    /// Writes `writes`, as offset in bytes and data. They and everything written before are durable when it returns.
    fn write_durably(&self, writes: &[(u64, Vec<u8>)]) -> IoResult<()> {
        writes.iter().try_for_each(|(at, bytes)| self.write(*at, bytes))?;
        self.flush()
    }
    /// Whether `write_durably_later` returns before the writes are durable.
    fn writes_later(&self) -> bool {
        false
    }
    /// As `write_durably`, but calls `told` when it is over, on a thread of the device. `told` must not block.
    fn write_durably_later(&self, writes: Vec<(u64, Vec<u8>)>, told: Written) {
        told(self.write_durably(&writes));
    }
    /// Whether `let_go_later` has a clock.
    fn has_clock(&self) -> bool {
        false
    }
    /// Drops `what` after so long on a thread of the device, or earlier.
    fn let_go_later(&self, _after: Duration, _what: Box<dyn Send>) {}
    /// Reads the size again, in bytes. A device that was grown reports its new size from then on.
    fn look_again(&self) -> IoResult<u64> {
        Ok(self.size_bytes())
    }

    /// Free bytes of the file system in whose files the device lies, the least of several; `None` for a device that lies in no file.
    /// In a file the first durable write to a place also waits for the file system's own record of that place: places that are often
    /// written durably are better written once before, where there is room for it.
    fn room_of_files(&self) -> Option<u64> {
        None
    }

    /// The extension of a thin device; `None` for others.
    fn thin(&self) -> Option<&dyn Thin> {
        None
    }
    /// The extension of a device that keeps copies or parity of blocks; `None` for others.
    fn redundant(&self) -> Option<&dyn Redundant> {
        None
    }
}

/// A device that allocates space only for what was written.
pub trait Thin {
    /// The unit of allocation, in bytes.
    fn piece_bytes(&self) -> u64;
    /// The units that are allocated, by number, whether or not they hold data.
    fn pieces_held(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Gives up all content.
    fn abandon(&self) -> IoResult<()> {
        Ok(())
    }
}

/// A device with copies or parity. Which copy is right is decided by `verify`, the check of the caller: a copy on which it
/// holds is valid. Offsets and lengths are in bytes.
///
/// # Errors
/// [`IoError`], by blame.
pub trait Redundant: Sync {
    /// Reads valid blocks, each from any copy; [`IoError::Media`] when a block has no valid copy.
    fn read_verified(&self, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()>;
    /// How many copies of each block the device keeps; 1 where it has parity instead.
    fn copies(&self) -> u32 {
        1
    }
    /// Reads one of the copies, the first being 0, whatever it holds; [`IoError::Media`] when it is not there or out of date.
    fn read_copy(&self, _copy: u32, _offset: u64, _buf: &mut [u8]) -> IoResult<()> {
        Err(IoError::Media)
    }
    /// Whether every copy of these blocks is readable and valid. Writes nothing.
    fn copies_pass(&self, offset: u64, len: usize, verify: &Verify) -> bool;
    /// Overwrites invalid copies with a valid one and returns the number of blocks healed; [`IoError::Media`] when a block has
    /// no valid copy.
    fn heal(&self, offset: u64, len: usize, verify: &Verify) -> IoResult<u64>;
    /// Compares parity with data. `None`: the device has no parity.
    fn parity_mismatches(&self, offset: u64, len: u64) -> IoResult<Option<ParityMismatches>>;
    /// Recomputes the parity of the row at offset `row` when its data is valid. Returns the number of blocks written.
    fn recompute_parity(&self, row: u64, verify: &Verify) -> IoResult<u64>;
    /// Rows whose parity mismatches since a part of them was written, as in [`ParityMismatches`], each told of a few times. The device looks for them
    /// when it has time, and for so long before it answers. The data or the parity of such a row is wrong; only the caller can tell.
    fn doubted_parity(&self, _patience: Duration) -> IoResult<Vec<Vec<u64>>> {
        Ok(Vec::new())
    }
    /// Whether a crash may have left copies of a block different. The device has not chosen among them; only `verify` can.
    fn may_differ(&self) -> bool {
        false
    }
    /// Ends the crash resync: the caller has made the copies of all allocated blocks equal.
    fn end_crash_resync(&self) -> IoResult<()> {
        Ok(())
    }
}

/// Reads blocks of a device without copies and checks each with `passes`.
///
/// # Errors
/// Those of `read`, and [`IoError::Media`] when `passes` is false for a block.
pub fn read_single(
    device: &dyn Device,
    offset: u64,
    buf: &mut [u8],
    passes: impl Fn(u64, &[u8]) -> bool,
) -> IoResult<()> {
    device.read(offset, buf)?;
    let places = (offset..).step_by(crate::BLOCK_BYTES as usize);
    let all = buf.chunks_exact(crate::BLOCK_BYTES as usize).zip(places).all(|(block, at)| passes(at, block));
    if all { Ok(()) } else { Err(IoError::Media) }
}
