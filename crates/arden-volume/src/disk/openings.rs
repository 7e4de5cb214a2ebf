//! What tells one opening's blocks from another's. A crash leaves things that count for nothing: nodes of a tree whose
//! superblock was never whole, a batch that never was durable. What comes after them must not be taken for them, also where a
//! disk keeps the old although it said that it had written the new: the two have different seeds of their checksums. So an
//! opening takes a generation that nothing was written under before, and its batches are sealed with that.

use arden_wire::cursor::{Put, Reader};

use crate::disk::error::{VolError, VolResult};

/// By how much an opening's generation is higher than the one it found: the next one may be in nodes that a crash left,
/// and this one goes to the other slot.
pub const GENERATIONS_AHEAD: u64 = 3;
/// Openings in a row of which each left batches and none made a checkpoint. One more seals as the one before it.
pub const OPENINGS_MAX: usize = 64;

/// An opening: batches from one on are sealed with its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Opening {
    first_batch: u64,
    generation: u64,
}

/// Those that wrote batches which replay may need, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Openings(Vec<Opening>);

impl Openings {
    /// What a batch is sealed with; 0: it is of an earlier program.
    pub fn generation_of(&self, batch: u64) -> u64 {
        self.0.iter().rev().find(|o| o.first_batch <= batch).map_or(0, |o| o.generation)
    }

    /// A new opening, whose first batch has this number.
    pub fn begin(&mut self, first_batch: u64, generation: u64) {
        // Those of which nothing was believed.
        self.0.retain(|o| o.first_batch < first_batch);
        if self.0.len() < OPENINGS_MAX {
            self.0.push(Opening { first_batch, generation });
        }
    }

    /// Replay begins at this batch: lets go of those that have no batch from there on.
    pub fn begins_at(&mut self, batch: u64) {
        let before = self.0.partition_point(|o| o.first_batch <= batch);
        self.0.drain(..before.saturating_sub(1));
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.0.len() as u32);
        for o in &self.0 {
            out.put_u64(o.first_batch);
            out.put_u64(o.generation);
        }
    }

    pub fn decode(r: &mut Reader<'_>) -> VolResult<Openings> {
        let count = r.u32()? as usize;
        if count > OPENINGS_MAX {
            return Err(VolError::Corrupt("superblock"));
        }
        let one = |_| Ok(Opening { first_batch: r.u64()?, generation: r.u64()? });
        Ok(Openings((0..count).map(one).collect::<VolResult<_>>()?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arden_wire::FileTime;

    use super::*;
    use crate::{
        disk::{
            device::{BLOCK, MemDevice},
            superblock::Superblock,
        },
        testing::{Files, Pair, Volume, volume_on},
    };

    /// A volume on two disks, with one file.
    fn volume_on_pair() -> (Arc<Pair>, Arc<Volume>) {
        let pair = Arc::new(Pair::new(8 << 20));
        Volume::format(&*pair, "two", 0x77, FileTime(1)).unwrap();
        let vol = volume_on(pair.clone());
        Files::new(&vol).write("first", b"first");
        vol.checkpoint().unwrap();
        (pair, vol)
    }

    /// Where two images of a disk differ, by blocks.
    fn changed(before: &[u8], after: &[u8]) -> Vec<usize> {
        let blocks = before.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate();
        blocks.filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect()
    }

    /// Power is lost: of what was written since `before` both disks have what `keeps` says of disk and block.
    fn crash(pair: &Pair, before: &[u8], keeps: impl Fn(usize, usize) -> bool) -> (Arc<Pair>, Vec<usize>) {
        let after = pair.disks[0].content();
        let blocks = changed(before, &after);
        let disk = |n: usize| {
            let mut bytes = before.to_vec();
            for b in blocks.iter().filter(|b| keeps(n, **b)) {
                bytes[b * BLOCK..][..BLOCK].copy_from_slice(&after[b * BLOCK..][..BLOCK]);
            }
            MemDevice::holding(bytes)
        };
        (Arc::new(Pair::of([disk(0), disk(1)])), blocks)
    }

    fn is_superblock(pair: &Pair, block: usize) -> bool {
        let last = pair.disks[0].content().len() / BLOCK - 1;
        [0, 1, last - 1, last].contains(&block)
    }

    #[test]
    fn a_node_that_a_crash_left_on_a_lying_disk_is_not_taken_for_the_one_in_its_place() {
        let (pair, vol) = volume_on_pair();
        Files::new(&vol).write("second", b"lost");
        vol.sync().unwrap();
        let before = pair.disks[0].content();
        vol.checkpoint().unwrap();
        drop(vol);
        let superblock = |block| is_superblock(&pair, block);
        let (pair, nodes) = crash(&pair, &before, |disk, block| disk == 0 && !superblock(block));
        let nodes: Vec<usize> = nodes.into_iter().filter(|b| !superblock(*b)).collect();
        // The same places are given out again, and the first disk keeps what it has there.
        pair.lose_at(nodes.iter().map(|b| (b * BLOCK) as u64));
        let vol = volume_on(pair.clone());
        Files::new(&vol).write("second", b"second");
        vol.close().unwrap();
        drop(vol);
        assert!(pair.lost() > 0, "the place was not used again");
        let vol = volume_on(pair);
        let files = Files::new(&vol);
        assert_eq!((files.read("first"), files.read("second")), (b"first".to_vec(), b"second".to_vec()));
    }

    #[test]
    fn a_batch_that_a_crash_left_in_part_on_a_lying_disk_is_not_taken_for_the_next_one_in_its_place() {
        let (pair, vol) = volume_on_pair();
        let before = pair.disks[0].content();
        Files::new(&vol).write("second", &[1; 30_000]);
        vol.sync().unwrap();
        drop(vol);
        let first = changed(&before, &pair.disks[0].content())[0];
        let (pair, blocks) = crash(&pair, &before, |disk, block| disk == 0 && block != first);
        assert!(blocks.len() > 3);
        pair.lose_at(blocks[1..].iter().map(|b| (b * BLOCK) as u64));
        let vol = volume_on(pair.clone());
        let files = Files::new(&vol);
        assert!(files.find("second").is_none());
        files.write("second", &[2; 30_000]);
        vol.sync().unwrap();
        drop((vol, files));
        assert!(pair.lost() > 0, "the place was not used again");
        assert_eq!(Files::new(&volume_on(pair)).read("second"), [2; 30_000]);
    }

    #[test]
    fn the_newest_superblock_counts_where_a_lying_disk_kept_all_its_places_as_they_were() {
        let (pair, vol) = volume_on_pair();
        let last = pair.disks[0].content().len() / BLOCK - 1;
        pair.lose_at([0, 1, last - 1, last].map(|b| (b * BLOCK) as u64));
        let files = Files::new(&vol);
        for i in 0..5u8 {
            files.write(&format!("file {i}"), &[i; 9000]);
            vol.checkpoint().unwrap();
        }
        drop((vol, files));
        assert!(pair.lost() > 0);
        let vol = volume_on(pair);
        assert!(vol.check(true).unwrap().is_clean());
        (0..5u8).for_each(|i| assert_eq!(Files::new(&vol).read(&format!("file {i}")), [i; 9000]));
    }

    #[test]
    fn nodes_of_a_checkpoint_that_found_no_room_keep_their_generation_for_themselves() {
        let (pair, vol) = volume_on_pair();
        let before = vol.superblock().generation;
        Files::new(&vol).write("second", b"second");
        vol.sync().unwrap();
        pair.refuse_next();
        vol.checkpoint().unwrap();
        let sb = vol.superblock();
        let born = sb.root.map(|(ptr, _)| ptr.birth);
        assert_eq!((sb.generation, born), (before + 2, Some(before + 2)));
        assert_eq!(Superblock::read(&*pair).unwrap(), sb);
    }

    #[test]
    fn what_batches_are_sealed_with_outlives_openings_that_make_no_checkpoint() {
        let (pair, mut vol) = volume_on_pair();
        for i in 0..OPENINGS_MAX + 4 {
            Files::new(&vol).write(&format!("file {i}"), &[i as u8; 100]);
            vol.sync().unwrap();
            vol = volume_on(pair.clone());
        }
        let sb = Superblock::read(&*pair).unwrap();
        assert_eq!(sb.openings.0.len(), OPENINGS_MAX);
        assert!(sb.openings.0.is_sorted_by_key(|o| (o.first_batch, o.generation)));
        (0..OPENINGS_MAX + 4).for_each(|i| assert_eq!(Files::new(&vol).read(&format!("file {i}")), [i as u8; 100]));
        vol.close().unwrap();
        assert_eq!(vol.superblock().openings.0.len(), 1, "a checkpoint lets go of the others");
    }
}
