//! Whether a disk file is still what it was when it was opened: as long, and with a name. A file that was cut short reads
//! as zeros where it grew again, and one that was deleted is lost when we end. Owns what is asked of the system for that,
//! and how seldom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::file::Descriptor;
use crate::{BLOCK_BYTES, Buf, IoError, IoResult};

/// Of reads that show by themselves that nothing was cut off, one in so many asks all the same: for the name.
const ASK_EVERY: u32 = 64;
/// So many bytes at the end of a block are looked at.
const TAIL: usize = 8;

pub(crate) struct Whole {
    fd: Arc<Descriptor>,
    /// Only a regular file can be cut short or deleted under us.
    regular: bool,
    size_bytes: u64,
    cut_short: AtomicBool,
    reads: AtomicU32,
}

/// From where a file was cut to its end everything is zero until we write it again, and we write whole blocks: a block that
/// does not end in zeros lies before the cut, or was written since.
fn may_be_cut(data: &[u8]) -> bool {
    data.chunks_exact(BLOCK_BYTES as usize).any(|b| b[b.len() - TAIL..] == [0; TAIL])
}

impl Whole {
    pub(crate) fn new(fd: Arc<Descriptor>, regular: bool, size_bytes: u64) -> Whole {
        Whole { fd, regular, size_bytes, cut_short: AtomicBool::new(false), reads: AtomicU32::new(0) }
    }

    /// It was shorter once: what it held there is gone.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.cut_short.load(Ordering::Acquire)
    }

    /// Asks. `Gone` when it is not whole, and for ever after it was cut short.
    pub(crate) fn check(&self) -> IoResult<()> {
        if !self.regular {
            return Ok(());
        }
        let Ok(s) = rustix::fs::fstat(&*self.fd) else { return Err(IoError::Gone) };
        if (s.st_size as u64) < self.size_bytes {
            self.cut_short.store(true, Ordering::Release);
        }
        if s.st_nlink > 0 && !self.was_cut_short() { Ok(()) } else { Err(IoError::Gone) }
    }

    /// As [`Whole::check`] for what was read (nothing, when that failed); asks the system only when the bytes do not tell.
    pub(crate) fn check_read(&self, data: Option<&Buf>) -> IoResult<()> {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if self.was_cut_short() || reads % ASK_EVERY == 0 || data.is_none_or(|d| may_be_cut(d)) {
            return self.check();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_that_end_in_zeros_may_be_cut() {
        let mut b = Buf::new(3 * BLOCK_BYTES as usize);
        b.fill(1);
        assert!(!may_be_cut(&b));
        b[..4095].fill(0);
        assert!(!may_be_cut(&b), "a cut leaves zeros up to the block's end");
        b[4095] = 0;
        assert!(may_be_cut(&b));
        b.fill(1);
        b[12280..].fill(0);
        assert!(may_be_cut(&b), "any of the blocks");
    }
}
