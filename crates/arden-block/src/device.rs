//! A device that any thread may use, as a volume needs it: each call waits for its answer. What a device offers beyond
//! that, it offers by an extension: [`Thin`] where room is given back, [`Redundant`] where blocks have copies or parity.
//! Refuses to know what a block holds: who reads says what passes.

use std::sync::Arc;

use crate::{IoError, IoResult};

/// Whether a block, which lies at this offset of the device, holds what was written there.
pub type Verify = Arc<dyn Fn(u64, &[u8]) -> bool + Send + Sync>;

/// Told how a write went.
pub type Written = Box<dyn FnOnce(IoResult<()>) + Send>;

/// Bytes that were looked at, and rows of blocks whose parity does not fit: where the data of each lies.
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
    fn flush(&self) -> IoResult<()>;
    /// The range may be given back; what it reads as is undefined afterwards.
    fn discard(&self, offset: u64, len: u64) -> IoResult<()>;

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
    /// Looks how large it is by now: a device that was made larger says so from then on.
    fn look_again(&self) -> IoResult<u64> {
        Ok(self.size_bytes())
    }

    /// What it offers if it takes room back that nothing lies in.
    fn thin(&self) -> Option<&dyn Thin> {
        None
    }
    /// What it offers if it keeps copies or parity of blocks.
    fn redundant(&self) -> Option<&dyn Redundant> {
        None
    }
}

/// A device that takes room only for what was written to it.
pub trait Thin {
    /// In pieces of how many bytes it takes room and gives it back.
    fn piece_bytes(&self) -> u64;
    /// Those of its pieces, by number, that it keeps room for whether or not anything lies in them, as far as it knows.
    fn pieces_held(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Nothing on it is wanted any more.
    fn abandon(&self) -> IoResult<()> {
        Ok(())
    }
}

/// A device with copies or parity: only whoever knows what passes can tell which is right.
pub trait Redundant: Sync {
    /// Reads blocks that pass, each from whichever copy; [`IoError::Media`] when no copy passes.
    fn read_verified(&self, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()>;
    /// Whether every copy of these blocks can be read and passes. Writes nothing.
    fn copies_pass(&self, offset: u64, len: usize, verify: &Verify) -> bool;
    /// Writes copies that do not pass anew from one that does. How many blocks were healed; [`IoError::Media`] when there is
    /// one of which no copy passes.
    fn heal(&self, offset: u64, len: usize, verify: &Verify) -> IoResult<u64>;
    /// Looks for parity that does not fit its data. None: the device has none.
    fn parity_mismatches(&self, offset: u64, len: u64) -> IoResult<Option<ParityMismatches>>;
    /// Computes the parity of the row that begins at `row` anew if its data passes. How many blocks were written.
    fn recompute_parity(&self, row: u64, verify: &Verify) -> IoResult<u64>;
    /// Whether a crash may have left copies of blocks different. None was written over another: only what passes is right.
    fn may_differ(&self) -> bool {
        false
    }
    /// The copies of every block that counts are equal now.
    fn end_crash_resync(&self) -> IoResult<()> {
        Ok(())
    }
}

/// Reads blocks of a device without copies, each of which has to pass.
///
/// # Errors
/// What `read` says, and [`IoError::Media`] when a block does not pass.
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
