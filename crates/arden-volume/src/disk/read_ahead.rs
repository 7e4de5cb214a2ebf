//! Reading the log ahead while it is replayed: most batches are one block, and a read of each from each copy would take longer than
//! all else. Owns what was read; says nothing of blocks that do not pass in all copies, which are read one by one as before.

use std::{cell::RefCell, ops::Range};

use arden_block::{BLOCK_BYTES, Device};

use crate::disk::device::{BLOCK, BlockCheck};

/// Read with one call at most, in blocks.
const BLOCKS_MAX: u64 = 256;

/// A part of the log, as it is in each copy.
#[derive(Default)]
struct Window {
    /// Bytes of the device.
    range: Range<u64>,
    /// None where one cannot be read: then none of them counts.
    copies: Vec<Vec<u8>>,
    /// Of the next one, in blocks.
    next_blocks: u64,
}

/// What was read ahead. Nobody writes to the log meanwhile, but for copies that are healed, which do not pass here.
pub struct ReadAhead<'a> {
    device: &'a dyn Device,
    /// The end of the log on the device, in bytes.
    end: u64,
    window: RefCell<Window>,
}

impl<'a> ReadAhead<'a> {
    pub fn new(device: &'a dyn Device, end: u64) -> ReadAhead<'a> {
        ReadAhead { device, end, window: RefCell::default() }
    }

    pub fn device(&self) -> &'a dyn Device {
        self.device
    }

    /// Blocks that pass in all copies. None: nothing is known of them.
    pub fn get(&self, offset: u64, len: usize, check: &BlockCheck) -> Option<Vec<u8>> {
        let wanted = offset..offset.checked_add(len as u64).filter(|end| *end <= self.end)?;
        let mut window = self.window.borrow_mut();
        if !(window.range.contains(&wanted.start) && wanted.end <= window.range.end) {
            // More each time, as long as they follow each other: a log may have few batches.
            let follows = window.range.start <= offset && offset <= window.range.end && window.range.end > 0;
            let blocks = if follows { (2 * window.next_blocks).min(BLOCKS_MAX) } else { 1 };
            let len = (blocks * BLOCK_BYTES).max(len as u64).min(self.end - offset);
            window.range = offset..offset + len;
            window.copies = self.read(offset, len as usize).unwrap_or_default();
            window.next_blocks = blocks;
        }
        let from = (offset - window.range.start) as usize;
        let passes = |copy: &[u8]| copy.chunks_exact(BLOCK).enumerate().all(|(i, block)| check.accepts(i, block));
        let all = window.copies.iter().all(|copy| passes(&copy[from..from + len]));
        window.copies.first().filter(|_| all).map(|copy| copy[from..from + len].to_vec())
    }

    fn read(&self, offset: u64, len: usize) -> Option<Vec<Vec<u8>>> {
        let Some(redundant) = self.device.redundant() else {
            let mut buf = vec![0; len];
            return self.device.read(offset, &mut buf).ok().map(|()| vec![buf]);
        };
        let read = |copy| {
            let mut buf = vec![0; len];
            redundant.read_copy(copy, offset, &mut buf).ok().map(|()| buf)
        };
        // With parity there is one, which is not read so.
        (0..redundant.copies()).map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use arden_block::{IoError, IoResult, Redundant, Verify, device::ParityMismatches};

    use super::*;

    /// A mirror of two; a copy may be away. Notes the lengths of reads.
    struct Mirror {
        copies: [Option<Vec<u8>>; 2],
        reads: Mutex<Vec<usize>>,
    }

    impl Device for Mirror {
        fn size_bytes(&self) -> u64 {
            1 << 20
        }
        fn read(&self, _: u64, _: &mut [u8]) -> IoResult<()> {
            Err(IoError::Media)
        }
        fn write(&self, _: u64, _: &[u8]) -> IoResult<()> {
            Err(IoError::Media)
        }
        fn flush(&self) -> IoResult<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> IoResult<()> {
            Ok(())
        }
        fn redundant(&self) -> Option<&dyn Redundant> {
            Some(self)
        }
    }

    impl Redundant for Mirror {
        fn copies(&self) -> u32 {
            2
        }
        fn read_copy(&self, copy: u32, offset: u64, buf: &mut [u8]) -> IoResult<()> {
            let bytes = self.copies[copy as usize].as_ref().ok_or(IoError::Media)?;
            self.reads.lock().unwrap().push(buf.len() / BLOCK);
            buf.copy_from_slice(&bytes[offset as usize..offset as usize + buf.len()]);
            Ok(())
        }
        fn read_verified(&self, _: u64, _: &mut [u8], _: &Verify) -> IoResult<()> {
            Err(IoError::Media)
        }
        fn copies_pass(&self, _: u64, _: usize, _: &Verify) -> bool {
            false
        }
        fn heal(&self, _: u64, _: usize, _: &Verify) -> IoResult<u64> {
            Err(IoError::Media)
        }
        fn parity_mismatches(&self, _: u64, _: u64) -> IoResult<Option<ParityMismatches>> {
            Ok(None)
        }
        fn recompute_parity(&self, _: u64, _: &Verify) -> IoResult<u64> {
            Ok(0)
        }
    }

    const CHECK: BlockCheck = BlockCheck::Trailer { seed: 5 };

    fn mirror() -> Mirror {
        let mut blocks = vec![7; 256 * BLOCK];
        blocks.chunks_exact_mut(BLOCK).for_each(|block| BlockCheck::seal(5, block));
        Mirror { copies: [Some(blocks.clone()), Some(blocks)], reads: Mutex::default() }
    }

    fn block_of(ahead: &ReadAhead<'_>, block: u64) -> Option<Vec<u8>> {
        ahead.get(block * BLOCK_BYTES, BLOCK, &CHECK)
    }

    #[test]
    fn batches_that_follow_each_other_are_read_with_few_reads() {
        let mirror = mirror();
        let ahead = ReadAhead::new(&mirror, 200 * BLOCK_BYTES);
        for block in 0..200 {
            assert!(block_of(&ahead, block).is_some_and(|b| b[..8] == [7; 8]), "block {block}");
        }
        assert_eq!(*mirror.reads.lock().unwrap(), [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64, 64, 73, 73]);
        assert_eq!(block_of(&ahead, 200), None, "nothing behind the log is its own");
        assert_eq!(ahead.get(199 * BLOCK_BYTES, 2 * BLOCK, &CHECK), None);
        assert_eq!(ahead.get(u64::MAX - 4095, BLOCK, &CHECK), None);
        // From its beginning again, where it may have wrapped.
        assert!(block_of(&ahead, 0).is_some());
        assert_eq!(mirror.reads.lock().unwrap()[16..], [1, 1]);
    }

    #[test]
    fn what_differs_in_a_copy_or_is_not_there_is_not_known() {
        let mut mirror = mirror();
        for copy in 0..2 {
            let mut other = mirror.copies[copy].clone();
            std::mem::swap(&mut mirror.copies[copy], &mut other);
            mirror.copies[copy].as_mut().unwrap()[10 * BLOCK] ^= 1;
            let ahead = ReadAhead::new(&mirror, 256 * BLOCK_BYTES);
            let known: Vec<u64> = (0..20).filter(|block| block_of(&ahead, *block).is_none()).collect();
            assert_eq!(known, [10], "copy {copy}");
            mirror.copies[copy] = None;
            let ahead = ReadAhead::new(&mirror, 256 * BLOCK_BYTES);
            assert!((0..20).all(|block| block_of(&ahead, block).is_none()), "copy {copy} is away");
            mirror.copies[copy] = other;
        }
    }
}
