//! Memory of blocks that made way in the cache, for those that come next: fresh memory costs a page fault for each page. Owns
//! how much of it is kept; refuses to know which blocks were in it.

use std::{mem, ops::Deref, sync::Arc};

use arden_lock::{Mutex, ranks};

use super::{ENTRY_BYTES, PIECE_BYTES, REGION_BLOCKS};
use crate::disk::device::BLOCK;

/// Buffers by their length in blocks, and how much memory they and those in use are.
struct Buffers {
    /// Of one block, of two, and so on.
    spare: [Vec<Box<[u8]>>; REGION_BLOCKS as usize],
    spare_bytes: u64,
    /// With what the cache has beside each.
    used_bytes: u64,
    bytes_max: u64,
}

impl Buffers {
    fn has_room_for(&self, bytes: u64) -> bool {
        self.used_bytes + self.spare_bytes + bytes <= self.bytes_max
    }

    /// One of the longest.
    fn take_any(&mut self) -> Option<Box<[u8]>> {
        let taken = self.spare.iter_mut().rev().find_map(Vec::pop)?;
        self.spare_bytes -= taken.len() as u64;
        Some(taken)
    }
}

/// Buffers that nobody uses. With those in use they take at most as much memory as the cache may.
pub struct SpareMemory(Mutex<Buffers, ranks::SpareMemory>);

impl SpareMemory {
    pub fn new(bytes_max: u64) -> Arc<SpareMemory> {
        let spare = std::array::from_fn(|_| Vec::new());
        Arc::new(SpareMemory(Mutex::new(Buffers { spare, spare_bytes: 0, used_bytes: 0, bytes_max })))
    }

    /// What nobody uses, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.lock().spare_bytes
    }

    /// From now on so much memory, used or not, is the most. Where that is less than before, all that is spare goes.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        let mut buffers = self.0.lock();
        if bytes_max < mem::replace(&mut buffers.bytes_max, bytes_max) {
            let gone = mem::replace(&mut buffers.spare, std::array::from_fn(|_| Vec::new()));
            buffers.spare_bytes = 0;
            drop(buffers);
            drop(gone);
        }
    }

    /// A copy of whole blocks, at most a region's.
    pub fn copy_of(self: &Arc<Self>, blocks: &[u8]) -> BlockMemory {
        let mut too_much = Vec::new();
        let spare = {
            let mut buffers = self.0.lock();
            let spare = buffers.spare[blocks.len() / BLOCK - 1].pop();
            buffers.spare_bytes -= spare.as_ref().map_or(0, |s| s.len() as u64);
            buffers.used_bytes += cost_of(blocks.len());
            // Spare buffers of other lengths make way for a fresh one.
            while !buffers.has_room_for(0) {
                let Some(other) = buffers.take_any() else { break };
                too_much.push(other);
            }
            spare
        };
        let bytes = match spare {
            Some(mut bytes) => {
                bytes.copy_from_slice(blocks);
                bytes
            }
            None => blocks.into(),
        };
        BlockMemory { bytes, spare: self.clone() }
    }
}

/// What the cache takes for a piece of so many bytes, at most.
fn cost_of(bytes: usize) -> u64 {
    (bytes + bytes / BLOCK * size_of::<u64>()) as u64 + PIECE_BYTES + ENTRY_BYTES
}

/// Some blocks. Their memory is spare again when they are dropped.
pub struct BlockMemory {
    bytes: Box<[u8]>,
    spare: Arc<SpareMemory>,
}

impl Deref for BlockMemory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for BlockMemory {
    fn drop(&mut self) {
        let bytes = mem::take(&mut self.bytes);
        let mut buffers = self.spare.0.lock();
        buffers.used_bytes -= cost_of(bytes.len());
        if buffers.has_room_for(bytes.len() as u64) {
            buffers.spare_bytes += bytes.len() as u64;
            buffers.spare[bytes.len() / BLOCK - 1].push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_given_up_is_used_again() {
        let spare = SpareMemory::new(1 << 20);
        let first = spare.copy_of(&[1; 3 * BLOCK]);
        let place = first.as_ptr();
        drop(first);
        assert_eq!(spare.bytes(), 3 * BLOCK as u64);
        let other = spare.copy_of(&[2; BLOCK]);
        let again = spare.copy_of(&[3; 3 * BLOCK]);
        assert!(again.as_ptr() == place && *again == [3; 3 * BLOCK] && *other == [2; BLOCK] && spare.bytes() == 0);
    }

    #[test]
    fn what_is_spare_and_what_is_used_stay_within_the_room_of_both() {
        let spare = SpareMemory::new(100 * BLOCK as u64);
        let mut rng = arden_block::rng::Rng::new(3);
        let mut used = Vec::new();
        for _ in 0..10_000 {
            match rng.below(2) {
                0 if !used.is_empty() => drop(used.swap_remove(rng.below(used.len() as u64) as usize)),
                _ if used.len() < 6 => used.push(spare.copy_of(&vec![7; (1 + rng.below(16) as usize) * BLOCK])),
                _ => {}
            }
            let in_use: u64 = used.iter().map(|u| cost_of(u.len())).sum();
            assert!(in_use + spare.bytes() <= 100 * BLOCK as u64, "{in_use} used, {} spare", spare.bytes());
        }
        used.clear();
        assert!(spare.bytes() > 50 * BLOCK as u64);
        spare.set_bytes_max(50 * BLOCK as u64);
        assert_eq!(spare.bytes(), 0);
    }
}
