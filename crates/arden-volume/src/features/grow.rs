//! Changes of the superblock alone, between checkpoints: growing to the device's new size, and writing damaged places of
//! it anew. Each is one write of the other slot, so a crash leaves the volume as it was or as it is to be.

use arden_block::{BLOCK_BYTES, IoError};

use crate::{
    disk::{
        error::{VolError, VolResult},
        run::Run,
        superblock::SLOTS,
    },
    engine::owner::Engine,
};

/// Less than this is not worth a change.
const GROW_BLOCKS_MIN: u64 = 256;

/// Takes in what the device has become larger by. The size afterwards, in bytes.
///
/// # Errors
/// [`VolError::Full`] when the device has no room for what lies at the new end: the volume stays as it is.
pub fn grow(engine: &Engine) -> VolResult<u64> {
    let blocks = engine.device.look_again()? / BLOCK_BYTES;
    let guard = engine.lock_checkpoint();
    let old = engine.superblock().size_blocks;
    if blocks < old + GROW_BLOCKS_MIN {
        return Ok(old * BLOCK_BYTES);
    }
    // A volume that cannot write its superblock stops: the device makes room for it before anything speaks of it.
    let blank = vec![0; SLOTS as usize * BLOCK_BYTES as usize];
    let made = engine.with_relief(|| Ok(engine.device.write((blocks - SLOTS) * BLOCK_BYTES, &blank)?));
    made.map_err(|e| if e == VolError::Io(IoError::NoSpace) { VolError::Full } else { e })?;
    engine.change_superblock(&guard, |sb| sb.size_blocks = blocks)?;
    let mut alloc = engine.state.alloc.lock();
    alloc.grow(blocks);
    alloc.occupy(Run { start: blocks - SLOTS, len: SLOTS });
    // The copies of the slots lie at the new end.
    alloc.cancel(Run { start: old - SLOTS, len: SLOTS });
    Ok(blocks * BLOCK_BYTES)
}

/// What leads to the tree is on the device as it should be; what was not is written anew. How many places were.
pub fn heal_superblock(engine: &Engine) -> VolResult<u64> {
    let guard = engine.lock_checkpoint();
    let sb = engine.superblock();
    let wrong = sb.places().filter(|block| !sb.is_at(&*engine.device, *block)).count() as u64;
    if wrong > 0 {
        // Not over the only good one: both places of the other slot first, then this one's by the next change.
        engine.change_superblock(&guard, |_| {})?;
        engine.change_superblock(&guard, |_| {})?;
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arden_block::Device;
    use arden_wire::FileTime;
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        disk::{
            device::{BLOCK, MemDevice},
            superblock::{Superblock, feature},
        },
        testing::{Files, Volume, Watched, options, volume_on},
    };

    #[test]
    fn a_volume_grows_in_use_and_is_found_again_from_any_slot() {
        let device = Arc::new(MemDevice::new(16 << 20));
        Volume::format(&*device, "g", 5, FileTime(1)).unwrap();
        let vol = volume_on(device.clone());
        let files = Files::new(&vol);
        files.write("before", &[7; 300_000]);
        let full = vec![9; 14 << 20];
        assert!(files.try_write("large", &full).is_err());
        device.extend(48 << 20);
        assert_eq!(vol.grow().unwrap(), 48 << 20);
        assert_eq!(vol.grow().unwrap(), 48 << 20, "once is enough");
        assert!(vol.room().1 > 20 << 20);
        files.write("large", &full);
        assert!(vol.check(true).unwrap().is_clean(), "{:?}", vol.check(true));
        vol.sync().unwrap();
        drop((files, vol));
        // A crash right here: the journal alone knows of the new blocks.
        let bytes = device.content();
        for damaged in [None, Some(0), Some(1), Some(48 * 256 - 1), Some(48 * 256 - 2)] {
            let copy = MemDevice::holding(bytes.clone());
            if let Some(block) = damaged {
                copy.write(block * BLOCK_BYTES, &[0xEE; BLOCK]).unwrap();
            }
            let vol = volume_on(Arc::new(copy));
            assert_eq!(vol.superblock().size_blocks, 48 * 256, "{damaged:?}");
            assert_eq!(Files::new(&vol).read("large"), full);
            assert!(vol.check(true).unwrap().is_clean());
            vol.close().unwrap();
        }
    }

    /// Version and features as every superblock on the device has them.
    fn version(device: &MemDevice) -> (u32, u32) {
        let content = device.content();
        let last = content.len() / BLOCK - 1;
        let found = [0, 1, last - 1, last].map(|block| {
            let bytes = &content[block * BLOCK..][..BLOCK];
            let features = Superblock::decode(bytes).map_or(0, |sb| sb.features);
            (u32::from_le_bytes(bytes[8..12].try_into().unwrap()), features)
        });
        let newest = *found.iter().max().unwrap();
        assert!(found.iter().all(|f| *f == newest || f.0 == 0), "{found:?}");
        newest
    }

    #[test]
    fn a_feature_in_use_makes_version_2_and_stays() {
        let device = Arc::new(MemDevice::new(16 << 20));
        Volume::format(&*device, "f", 6, FileTime(1)).unwrap();
        let vol = volume_on(device.clone());
        vol.engine.use_feature(feature::QUOTAS).unwrap();
        Files::new(&vol).write("a", b"a");
        vol.close().unwrap();
        drop(vol);
        assert_eq!(version(&device), (2, feature::QUOTAS | feature::ALWAYS));
        let vol = Volume::open(device, options()).unwrap();
        assert_eq!(vol.superblock().features, feature::QUOTAS | feature::ALWAYS);
    }

    #[test]
    fn a_volume_of_version_1_is_one_of_version_2_before_its_journal_has_a_sealed_batch() {
        let device = Arc::new(MemDevice::new(16 << 20));
        let old = Superblock { features: 0, ..Superblock::plan(16 << 20, 7 << 64, "old", FileTime(1)).unwrap() };
        old.write(&*device).unwrap();
        assert_eq!(version(&device), (1, 0));
        // No batch where the superblock does not speak of such yet.
        let (disk, journal) = (device.clone(), old.journal_block * BLOCK_BYTES);
        let before_write = move |offset: u64, data: &[u8]| {
            // Anything but the wiping of what an earlier opening left.
            if offset == journal && data != [0; BLOCK] {
                assert_eq!(data[..4], *b"JRN2");
                assert_eq!(version(&disk), (2, feature::ALWAYS));
            }
        };
        let watched = Arc::new(Watched { memory: device.clone(), before_write });
        let vol = Volume::open(watched, options()).unwrap();
        Files::new(&vol).write("a", b"a");
        vol.close().unwrap();
        assert_eq!(version(&device), (2, feature::ALWAYS));
    }

    #[test]
    fn a_volume_with_a_feature_that_nobody_knows_here_is_refused_and_says_who_opens_it() {
        let device = Arc::new(MemDevice::new(16 << 20));
        let known = Superblock::plan(16 << 20, 8, "later", FileTime(1)).unwrap();
        known.write(&*device).unwrap();
        // Of an older generation all is known.
        let later = Superblock { features: 1 << 31, generation: known.generation + 1, ..known };
        later.write(&*device).unwrap();
        let refused = Volume::open(device, options()).err().expect("a refusal");
        assert!(matches!(refused, VolError::Later), "{refused}");
    }

    #[test]
    fn a_volume_whose_device_has_grown_is_found_when_two_crashes_tear_a_superblock_each() {
        let device = Arc::new(MemDevice::new(16 << 20));
        Volume::format(&*device, "t", 8, FileTime(1)).unwrap();
        volume_on(device.clone()).close().unwrap();
        let newest = Superblock::read(&*device).unwrap();
        let (first, mut buf) = (newest.places().next().unwrap() * BLOCK_BYTES, vec![0; BLOCK]);
        device.read(first, &mut buf).unwrap();
        buf[BLOCK / 2..].fill(0xEE);
        device.write(first, &buf).unwrap();
        device.extend(48 << 20);
        // Power is lost while the opening writes its generation, before the volume has taken in what the device grew by.
        let (disk, other) = (device.clone(), (newest.generation + 1) % SLOTS * BLOCK_BYTES);
        let left = Arc::new(Mutex::new(None));
        let told = left.clone();
        let before_write = move |offset: u64, data: &[u8]| {
            let mut left = told.lock();
            if offset == other && left.is_none() {
                let mut content = disk.content();
                let torn = &mut content[offset as usize..][..BLOCK];
                torn[..BLOCK / 2].copy_from_slice(&data[..BLOCK / 2]);
                torn[BLOCK / 2..].fill(0xEE);
                *left = Some(content);
            }
        };
        drop(Volume::open(Arc::new(Watched { memory: device, before_write }), options()).unwrap());
        let left = left.lock().take().expect("it is written to the other slot");
        let found = Superblock::read(&MemDevice::holding(left)).unwrap();
        assert_eq!((found.id, found.size_blocks), (8, 16 * 256));
    }

    #[test]
    fn a_damaged_place_of_the_superblock_is_written_anew() {
        let device = Arc::new(MemDevice::new(16 << 20));
        Volume::format(&*device, "s", 7, FileTime(1)).unwrap();
        let vol = volume_on(device.clone());
        vol.close().unwrap();
        assert_eq!(heal_superblock(&vol.engine).unwrap(), 0);
        let place = vol.superblock().places().next().unwrap();
        device.write(place * BLOCK_BYTES, &[0xEE; BLOCK]).unwrap();
        assert_eq!(heal_superblock(&vol.engine).unwrap(), 1);
        assert_eq!(heal_superblock(&vol.engine).unwrap(), 0);
    }
}
