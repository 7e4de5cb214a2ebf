//! The superblock: where the tree, the journal and the counters of the last checkpoint are. Two slots take turns, each
//! with a copy at the end of the device; the valid one with the highest generation counts.

use arden_block::{BLOCK_BYTES, Device, IoError, Thin};
use arden_wire::{
    FileTime,
    cursor::{Put, Reader},
};

use crate::disk::{
    device::{BLOCK, BlockCheck, read_checked},
    error::{VolError, VolResult},
    treenode::Ptr,
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
    pub const KNOWN: u32 = QUOTAS | CHANGE_JOURNAL | SNAPSHOTS | ACCESS_RELATIVE | ACCESS_ALWAYS | SEALED_JOURNAL;
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
    /// Counts checkpoints.
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
            features: feature::SEALED_JOURNAL,
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
        let (ptr, level) = self.root.unwrap_or((Ptr::default(), 0xFF));
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
        let ptr = Ptr::decode(&mut r)?;
        let level = r.u32()?;
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
        let sb = Superblock {
            id,
            label,
            created,
            size_blocks,
            journal_block,
            journal_blocks,
            generation,
            root: u8::try_from(level).ok().filter(|l| *l != 0xFF).map(|l| (ptr, l)),
            start,
            seq,
            next_id,
            counters,
            epoch,
            features,
        };
        let plausible = sb.journal_block >= SLOTS
            && sb.journal_blocks >= 64
            && sb.journal_blocks < sb.size_blocks
            && sb.journal_block < sb.size_blocks - sb.journal_blocks
            && sb.start.block <= sb.journal_blocks
            && sb.size_blocks <= u64::MAX / BLOCK_BYTES
            && level <= 0xFF;
        if plausible { Ok(sb) } else { Err(VolError::Corrupt("superblock")) }
    }

    /// The newest one on the device.
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
            let mut buf = vec![0; BLOCK];
            // A copy that does not pass is tried as it is: what it says of itself is the better message.
            let check = Superblock::check();
            if read_checked(device, at * BLOCK_BYTES, &mut buf, &check).is_err() {
                if let Err(e) = device.read(at * BLOCK_BYTES, &mut buf) {
                    error = e.into();
                    continue;
                }
            }
            let found = Superblock::decode(&buf);
            // The device may have become larger than the volume, whose copies lie where it ends.
            if let Some(end) = found.as_ref().ok().map(|sb| sb.size_blocks).filter(|e| *e < blocks && *e >= SLOTS)
                && places.len() < 8
            {
                places.extend([end - 2, end - 1]);
            }
            match found {
                Ok(sb) if sb.size_blocks > blocks => error = VolError::Corrupt("the device is smaller than the volume"),
                Ok(sb) if best.as_ref().is_none_or(|b| b.generation < sb.generation) => best = Some(sb),
                Ok(_) => {}
                Err(e @ VolError::Corrupt(_)) => error = e,
                // Valid: the other slot is not the newest, whatever it says.
                Err(VolError::Later) => return Err(VolError::Later),
                Err(_) => {}
            }
        }
        best.ok_or(error)
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
    /// its device but a superblock at the beginning.
    pub fn restore_places(&self, device: &dyn Device) -> VolResult<()> {
        let wrong: Vec<u64> = self.places().filter(|block| !self.is_at(device, *block)).collect();
        if !wrong.is_empty() {
            let bytes = self.encode();
            wrong.iter().try_for_each(|block| device.write(block * BLOCK_BYTES, &bytes))?;
            device.flush()?;
        }
        Ok(())
    }

    pub fn is_at(&self, device: &dyn Device, block: u64) -> bool {
        let mut buf = vec![0; BLOCK];
        device.read(block * BLOCK_BYTES, &mut buf).is_ok() && Superblock::decode(&buf).is_ok_and(|found| found == *self)
    }

    /// After a crash this generation is all there is: in its slot first, then in the others. There one of several disks may
    /// hold the next one, complete, and the blocks of its tree are about to be used again.
    pub fn resync_slots(&self, device: &dyn Device) -> VolResult<()> {
        let (bytes, end) = (self.encode(), device.size_bytes() / BLOCK_BYTES);
        for slot in (self.generation..self.generation + SLOTS).map(|g| g % SLOTS) {
            for block in self.blocks_of(slot) {
                device.write(block * BLOCK_BYTES, &bytes)?;
            }
            // The next one may have been the first of a larger volume; where the device has no room it never was.
            if end > self.size_blocks {
                match device.write((end - SLOTS + slot) * BLOCK_BYTES, &bytes) {
                    Err(IoError::NoSpace) => {}
                    written => written?,
                }
            }
            device.flush()?;
        }
        Ok(())
    }

    /// The blocks that this generation lies in: its slot, and the slot's copy.
    pub fn places(&self) -> impl Iterator<Item = u64> + use<> {
        self.blocks_of(self.generation % SLOTS)
    }

    fn blocks_of(&self, slot: u64) -> impl Iterator<Item = u64> + use<> {
        [slot, self.size_blocks - SLOTS + slot].into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arden_block::{
        IoResult, Redundant, Verify,
        device::{ParityMismatches, read_single},
    };

    use super::*;
    use crate::{
        disk::device::MemDevice,
        testing::{Files, Volume, volume_on},
    };

    /// Two disks that hold the same; the first is read.
    struct Pair([MemDevice; 2]);

    impl Device for Pair {
        fn size_bytes(&self) -> u64 {
            self.0[0].size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
            self.0[0].read(offset, buf)
        }
        fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
            self.0.iter().try_for_each(|d| d.write(offset, data))
        }
        fn flush(&self) -> IoResult<()> {
            Ok(())
        }
        fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
            self.0.iter().try_for_each(|d| d.discard(offset, len))
        }
        fn redundant(&self) -> Option<&dyn Redundant> {
            Some(self)
        }
    }

    impl Redundant for Pair {
        fn read_verified(&self, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()> {
            read_single(self, offset, buf, |at, block| verify(at, block))
        }
        fn copies_pass(&self, offset: u64, len: usize, verify: &Verify) -> bool {
            self.read_verified(offset, &mut vec![0; len], verify).is_ok()
        }
        fn heal(&self, offset: u64, len: usize, verify: &Verify) -> IoResult<u64> {
            self.read_verified(offset, &mut vec![0; len], verify).map(|()| 0)
        }
        fn parity_mismatches(&self, _offset: u64, _len: u64) -> IoResult<Option<ParityMismatches>> {
            Ok(None)
        }
        fn recompute_parity(&self, _row: u64, _verify: &Verify) -> IoResult<u64> {
            Ok(0)
        }
        fn may_differ(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_generation_that_only_one_disk_got_before_a_crash_is_gone_from_it_after_the_opening() {
        let pair = Arc::new(Pair([MemDevice::new(8 << 20), MemDevice::new(8 << 20)]));
        Volume::format(&*pair, "two", 0x77, FileTime(1)).unwrap();
        let vol = volume_on(pair.clone());
        Files::new(&vol).write("f", b"content");
        vol.sync().unwrap();
        drop(vol);
        let mut next = Superblock::read(&*pair).unwrap();
        let chosen = next.generation;
        next.generation += 1;
        next.write(&pair.0[1]).unwrap();
        assert_eq!(Files::new(&volume_on(pair.clone())).read("f"), b"content");
        for disk in &pair.0 {
            assert_eq!(Superblock::read(disk).unwrap().generation, chosen);
        }
    }
}
