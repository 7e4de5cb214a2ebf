//! The superblock: where the tree, the journal and the counters of the last checkpoint are. Two slots take turns, each
//! with a copy at the end of the device; the valid one with the highest generation counts.

use std::sync::Arc;

use arden_block::{BLOCK_BYTES, Device, Thin, Verify};
use arden_wire::{
    FileTime,
    cursor::{Put, Reader},
};

use crate::disk::{
    device::{BLOCK, BlockCheck, read_verified},
    error::{VolError, VolResult},
    openings::{GENERATIONS_AHEAD, Openings},
    treenode::{NO_ROOT, Ptr, root_of},
};

const MAGIC: &[u8; 8] = b"ARDENVOL";
const SEED: u64 = 0x5355_5045_5242_4C4B;
/// Of a volume that never had a snapshot.
pub const FIRST_EPOCH: u32 = 1;
pub const LABEL_BYTES_MAX: usize = 128;
/// Blocks kept at each end of the device.
pub const SLOTS: u64 = 2;
/// What is overwritten at the beginning of a device whose volume is deleted.
const WIPED_BLOCKS: u64 = 16;
/// Where in the block the openings are, behind the longest label.
const OPENINGS_AT: usize = 512;
/// The smallest device that a volume can lie on.
pub const SIZE_BYTES_MIN: u64 = 8 << 20;

/// What the bytes mean; one line for each change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Version {
    /// The first.
    V1 = 1,
    /// Says which features are in use ([`feature`]), so that a program that does not know one keeps away. Written
    /// while one is, as it is since batches of the journal are sealed.
    V2 = 2,
}

/// What a volume holds beyond files, as bits: who does not know one would leave it wrong behind.
pub mod feature {
    /// What users and folders have is counted.
    pub const QUOTAS: u32 = 1;
    /// Changes are recorded.
    pub const CHANGE_JOURNAL: u32 = 2;
    /// Blocks may belong to snapshots alone.
    pub const SNAPSHOTS: u32 = 4;
    /// Reading a file moves its last access, sometimes or always; neither: never.
    pub const ACCESS_RELATIVE: u32 = 8;
    pub const ACCESS_ALWAYS: u32 = 16;
    /// Batches of the journal have checksums in their blocks: who looks for others finds an empty journal. In use on
    /// every volume from its first opening on.
    pub const SEALED_JOURNAL: u32 = 32;
    /// Those checksums depend on the opening that wrote the batch. In use as the one before.
    pub const OPENINGS: u32 = 64;
    /// Data may say which create made it. In use as the one before.
    pub const CREATE_MARKS: u32 = 128;
    pub const ALWAYS: u32 = SEALED_JOURNAL | OPENINGS | CREATE_MARKS;
    /// Streams may have snapshots of their own.
    pub const STREAM_SNAPSHOTS: u32 = 256;
    /// Names may have 8.3 names that are kept beside them.
    pub const SHORT_NAMES: u32 = 512;
    pub const KNOWN: u32 =
        QUOTAS | CHANGE_JOURNAL | SNAPSHOTS | ACCESS_RELATIVE | ACCESS_ALWAYS | ALWAYS | STREAM_SNAPSHOTS | SHORT_NAMES;
}

/// Where replay begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalStart {
    /// Block within the journal's region.
    pub block: u64,
    /// Sequence number of the batch expected there.
    pub batch: u64,
    /// Checksum of the batch before it.
    pub previous_sum: u64,
}

/// Sums that are kept up to date by every operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Blocks promised to files that have no place yet.
    pub promised: i64,
    /// Blocks of data that lie in the tree.
    pub resident: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    pub id: u128,
    pub label: String,
    pub created: FileTime,
    pub size_blocks: u64,
    pub journal_block: u64,
    pub journal_blocks: u64,
    /// Grows with each superblock. No two have one, however a crash ended the first.
    pub generation: u64,
    /// None while the tree is empty; the level of the root beside it.
    pub root: Option<(Ptr, u8)>,
    pub start: JournalStart,
    /// The last operation that the tree holds.
    pub seq: u64,
    pub next_id: u64,
    pub counters: Counters,
    /// Counts snapshots made.
    pub epoch: u32,
    /// [`feature`] bits.
    pub features: u32,
    /// What the batches of the journal are sealed with.
    pub openings: Openings,
}

impl Superblock {
    /// How a device of this size is divided.
    pub fn plan(size_bytes: u64, id: u128, label: &str, created: FileTime) -> VolResult<Superblock> {
        if size_bytes < SIZE_BYTES_MIN {
            return Err(VolError::Refused("a volume needs at least 8 MiB"));
        }
        if label.len() > LABEL_BYTES_MAX {
            return Err(VolError::Refused("a label has at most 128 bytes"));
        }
        let size_blocks = size_bytes / BLOCK_BYTES;
        // With the slots before it no more than 256 MiB: the space under it keeps room for it from the beginning, a whole
        // group at a time.
        let journal_bytes = (size_bytes / 16).clamp(1 << 20, (256 << 20) - SLOTS * BLOCK_BYTES);
        Ok(Superblock {
            id,
            label: label.to_owned(),
            created,
            size_blocks,
            journal_block: SLOTS,
            journal_blocks: journal_bytes / BLOCK_BYTES,
            generation: 1,
            root: None,
            start: JournalStart { block: 0, batch: 1, previous_sum: id as u64 },
            seq: 0,
            next_id: 16,
            counters: Counters::default(),
            epoch: FIRST_EPOCH,
            features: feature::ALWAYS,
            openings: Openings::default(),
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(BLOCK);
        b.extend_from_slice(MAGIC);
        b.put_u32(if self.features == 0 { Version::V1 } else { Version::V2 } as u32);
        b.put_u32(self.epoch);
        b.put_u128(self.id);
        b.put_u64(self.size_blocks);
        b.put_u64(self.journal_block);
        b.put_u64(self.journal_blocks);
        b.put_u64(self.generation);
        let (ptr, level) = self.root.unwrap_or((Ptr::default(), NO_ROOT));
        ptr.encode(&mut b);
        b.put_u32(u32::from(level));
        b.put_u32(self.features);
        b.put_u64(self.start.block);
        b.put_u64(self.start.batch);
        b.put_u64(self.start.previous_sum);
        b.put_u64(self.seq);
        b.put_u64(self.next_id);
        b.put_u64(self.counters.promised as u64);
        b.put_u64(self.counters.resident as u64);
        b.put_u64(self.created.0);
        b.put_u16(self.label.len() as u16);
        b.extend_from_slice(self.label.as_bytes());
        b.resize(OPENINGS_AT, 0);
        self.openings.encode(&mut b);
        b.resize(BLOCK, 0);
        BlockCheck::seal(SEED, &mut b);
        b
    }

    /// What tells a superblock from other blocks.
    pub fn check() -> BlockCheck {
        BlockCheck::Trailer { seed: SEED }
    }

    pub fn decode(block: &[u8]) -> VolResult<Superblock> {
        let mut r = Reader::new(block);
        if r.bytes(8)? != MAGIC {
            return Err(VolError::Unknown("there is no volume here"));
        }
        if !Superblock::check().accepts(0, block) {
            return Err(VolError::Corrupt("superblock"));
        }
        let version = r.u32()?;
        if version != Version::V1 as u32 && version != Version::V2 as u32 {
            return Err(VolError::Later);
        }
        let epoch = r.u32()?;
        let id = r.u128()?;
        let (size_blocks, journal_block, journal_blocks, generation) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let root = root_of(Ptr::decode(&mut r)?, r.u32()?)?;
        let features = r.u32()?;
        if features & !feature::KNOWN != 0 {
            return Err(VolError::Later);
        }
        let start = JournalStart { block: r.u64()?, batch: r.u64()?, previous_sum: r.u64()? };
        let (seq, next_id) = (r.u64()?, r.u64()?);
        let counters = Counters { promised: r.u64()? as i64, resident: r.u64()? as i64 };
        let created = FileTime(r.u64()?);
        let label_bytes = r.u16()? as usize;
        let label = String::from_utf8_lossy(r.bytes(label_bytes)?).into_owned();
        // Zeros, and so none, where an earlier program wrote it.
        let openings = Openings::decode(&mut Reader::new(block.get(OPENINGS_AT..).unwrap_or_default()))?;
        let sb = Superblock {
            id,
            label,
            created,
            size_blocks,
            journal_block,
            journal_blocks,
            generation,
            root,
            start,
            seq,
            next_id,
            counters,
            epoch,
            features,
            openings,
        };
        let plausible = sb.journal_block >= SLOTS
            && sb.journal_blocks >= 64
            && sb.journal_blocks < sb.size_blocks
            && sb.journal_block < sb.size_blocks - sb.journal_blocks
            && sb.start.block <= sb.journal_blocks
            && sb.size_blocks <= u64::MAX / BLOCK_BYTES;
        if plausible { Ok(sb) } else { Err(VolError::Corrupt("superblock")) }
    }

    /// The newest one on the device, whichever copy of whichever place has it.
    ///
    /// # Errors
    /// [`VolError::Later`] where a newer program wrote one; [`VolError::Unknown`] where there is none.
    pub fn read(device: &dyn Device) -> VolResult<Superblock> {
        let blocks = device.size_bytes() / BLOCK_BYTES;
        if blocks < SIZE_BYTES_MIN / BLOCK_BYTES {
            return Err(VolError::Unknown("there is no volume here"));
        }
        let mut best: Option<Superblock> = None;
        let mut error = VolError::Unknown("there is no volume here");
        let mut places = vec![0, 1, blocks - 2, blocks - 1];
        let mut tried = 0;
        while let Some(at) = places.get(tried).copied() {
            tried += 1;
            while let Some(sb) = Superblock::newer(device, at, best.as_ref())? {
                // The device may have become larger than the volume, whose copies lie where it ends.
                let end = sb.size_blocks;
                if (SLOTS..blocks).contains(&end) && places.len() < 8 {
                    places.extend([end - 2, end - 1]);
                }
                best = Some(sb);
            }
            if best.is_none() {
                error = Superblock::refusal(device, at).unwrap_or(error);
            }
        }
        best.ok_or(error)
    }

    /// One at this place that is newer than `than`. Copies of a device with several may differ.
    ///
    /// # Errors
    /// Only [`VolError::Later`]: the other slot is not the newest, whatever it says.
    fn newer(device: &dyn Device, block: u64, than: Option<&Superblock>) -> VolResult<Option<Superblock>> {
        let (known, blocks) = (than.map_or(0, |sb| sb.generation), device.size_bytes() / BLOCK_BYTES);
        let passes = move |block: &[u8]| match Superblock::decode(block) {
            Ok(sb) => sb.generation > known && sb.size_blocks <= blocks,
            Err(e) => e == VolError::Later,
        };
        let verify: Verify = Arc::new(move |_, block| passes(block));
        let mut buf = vec![0; BLOCK];
        let read = read_verified(device, block * BLOCK_BYTES, &mut buf, &verify);
        // Looked at here, too: with a device that checks nothing this would never end.
        if read.is_err() || !passes(&buf) { Ok(None) } else { Superblock::decode(&buf).map(Some) }
    }

    /// What a place says of itself that holds none.
    fn refusal(device: &dyn Device, block: u64) -> Option<VolError> {
        let mut buf = vec![0; BLOCK];
        if let Err(e) = device.read(block * BLOCK_BYTES, &mut buf) {
            return Some(e.into());
        }
        match Superblock::decode(&buf) {
            Ok(sb) if sb.size_blocks > device.size_bytes() / BLOCK_BYTES => {
                Some(VolError::Corrupt("the device is smaller than the volume"))
            }
            Err(e @ VolError::Corrupt(_)) => Some(e),
            _ => None,
        }
    }

    /// Overwrites all that leads to a volume here.
    pub fn wipe(device: &dyn Device) -> VolResult<()> {
        let blocks = device.size_bytes() / BLOCK_BYTES;
        // As far as whoever looks for something at the beginning of a device may look.
        let mut at: Vec<u64> = (0..WIPED_BLOCKS.min(blocks)).collect();
        at.extend([blocks.saturating_sub(2), blocks.saturating_sub(1)]);
        // Those of a volume that is smaller than its device lie elsewhere.
        if let Ok(sb) = Superblock::read(device) {
            at.extend([sb.size_blocks - 2, sb.size_blocks - 1]);
        }
        for block in at {
            device.write(block * BLOCK_BYTES, &[0; BLOCK])?;
        }
        device.flush()?;
        if let Some(Err(e)) = device.thin().map(Thin::abandon) {
            tracing::warn!("what a deleted volume held keeps its room: {e}");
        }
        Ok(())
    }

    /// Writes this generation's slot. Not durable before a flush.
    pub fn write(&self, device: &dyn Device) -> VolResult<()> {
        let bytes = self.encode();
        for block in self.places() {
            device.write(block * BLOCK_BYTES, &bytes)?;
        }
        Ok(())
    }

    /// Makes good a place of this generation that a crash or the disk damaged. Before the next generation is written: a crash
    /// on the way may leave only the places at the volume's end, and nothing says where a volume ends that is smaller than
    /// its device but a superblock at the beginning. Not durable before a flush.
    pub fn restore_places(&self, device: &dyn Device) -> VolResult<()> {
        for block in self.places().filter(|block| !self.is_at(device, *block)) {
            device.write(block * BLOCK_BYTES, &self.encode())?;
        }
        Ok(())
    }

    pub fn is_at(&self, device: &dyn Device, block: u64) -> bool {
        let mut buf = vec![0; BLOCK];
        device.read(block * BLOCK_BYTES, &mut buf).is_ok() && Superblock::decode(&buf).is_ok_and(|found| found == *self)
    }

    /// The same state, as an opening writes it before all else: what it writes then differs from whatever was begun under
    /// this generation or the next. `first_batch`: the number of its first batch.
    pub fn opened(&self, first_batch: u64) -> Superblock {
        let mut sb = self.clone();
        sb.generation += GENERATIONS_AHEAD;
        sb.features |= feature::ALWAYS;
        sb.openings.begin(first_batch, sb.generation);
        sb
    }

    /// The blocks that this generation lies in: its slot, and the slot's copy.
    pub fn places(&self) -> impl Iterator<Item = u64> + use<> {
        let slot = self.generation % SLOTS;
        [slot, self.size_blocks - SLOTS + slot].into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        disk::{device::MemDevice, treenode::LEVEL_MAX},
        testing::{Files, Pair, Volume, volume_on},
    };

    #[test]
    fn a_generation_that_one_disk_got_before_a_crash_counts_and_is_on_both_after_the_opening() {
        let pair = Arc::new(Pair::new(8 << 20));
        Volume::format(&*pair, "two", 0x77, FileTime(1)).unwrap();
        let vol = volume_on(pair.clone());
        Files::new(&vol).write("f", b"content");
        vol.sync().unwrap();
        drop(vol);
        let mut next = Superblock::read(&*pair).unwrap();
        next.generation += 1;
        next.write(&pair.disks[1]).unwrap();
        assert_eq!(Files::new(&volume_on(pair.clone())).read("f"), b"content");
        let own = Superblock { generation: next.generation + GENERATIONS_AHEAD, ..next.clone() };
        for disk in &pair.disks {
            let at = |sb: &Superblock| sb.places().map(|block| generation_at(disk, block)).collect::<Vec<_>>();
            assert_eq!(at(&next), [next.generation; 2], "it stays until there is a newer one");
            assert_eq!(at(&own), [own.generation; 2]);
        }
    }

    /// Down from a root goes one call for each level.
    #[test]
    fn a_root_at_a_level_that_no_tree_has_is_damage() {
        let decode = |root| {
            let device = MemDevice::new(8 << 20);
            Volume::format(&device, "deep", 0x77, FileTime(1)).unwrap();
            let sb = Superblock { root, ..Superblock::read(&device).unwrap() };
            Superblock::decode(&sb.encode()).map(|sb| sb.root)
        };
        let at = |level| Some((Ptr { block: 100, birth: 1, sum: 2 }, level));
        for root in [None, at(0), at(LEVEL_MAX)] {
            assert_eq!(decode(root), Ok(root));
        }
        for level in [LEVEL_MAX + 1, 0xFE] {
            assert_eq!(decode(at(level)), Err(VolError::Corrupt("the tree is too deep")));
        }
    }

    fn generation_at(disk: &MemDevice, block: u64) -> u64 {
        let mut buf = vec![0; BLOCK];
        disk.read(block * BLOCK_BYTES, &mut buf).unwrap();
        Superblock::decode(&buf).map_or(0, |sb| sb.generation)
    }
}
