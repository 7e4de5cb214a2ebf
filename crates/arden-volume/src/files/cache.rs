//! Blocks of files that were read and passed their check, in memory, for as long as there is room. A block is found by its
//! place and its checksum: what is written to the same place later has another one, so nothing here is ever out of date.
//! Beside them, where parts of files lie, found by the state of the file's data. Refuses to know files.

use std::{
    fmt,
    hash::{BuildHasher, DefaultHasher, Hasher, RandomState},
    sync::Arc,
};

use quick_cache::{OptionsBuilder, Weighter, sync::Cache};

use crate::{
    disk::{device::BLOCK, inode::Extent},
    files::places::Placed,
};

/// Volume, block of the device, checksum.
type Key = (u64, u64, u64);

/// What an entry takes beside its block.
const ENTRY_BYTES: u64 = 96;
/// Where parts of files lie takes at most a so much smaller room: a block's part of it is 8 bytes.
const PLACES_PART: u64 = 64;

#[derive(Clone)]
struct Weigh;

impl Weighter<Key, Arc<[u8]>> for Weigh {
    fn weight(&self, _: &Key, block: &Arc<[u8]>) -> u64 {
        block.len() as u64 + ENTRY_BYTES
    }
}

#[derive(Clone)]
struct WeighPlaces;

impl Weighter<(u64, u64), Arc<Placed>> for WeighPlaces {
    fn weight(&self, _: &(u64, u64), placed: &Arc<Placed>) -> u64 {
        placed.memory_bytes() + ENTRY_BYTES
    }
}

/// Which blocks make way for others depends on it.
#[derive(Clone)]
struct Seed(u64);

impl BuildHasher for Seed {
    type Hasher = DefaultHasher;
    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

/// Volumes may share one.
pub struct BlockCache {
    blocks: Cache<Key, Arc<[u8]>, Weigh, Seed>,
    /// By the state of the file's data, and the number of the part.
    places: Cache<(u64, u64), Arc<Placed>, WeighPlaces, Seed>,
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.blocks.weight(), self.blocks.capacity())
    }
}

impl BlockCache {
    /// Takes memory as it is needed, at most so much.
    pub fn new(bytes_max: u64) -> Arc<BlockCache> {
        BlockCache::seeded(bytes_max, RandomState::new().hash_one(bytes_max))
    }

    /// One that always does the same, for simulation.
    pub fn seeded(bytes_max: u64, seed: u64) -> Arc<BlockCache> {
        let options = |bytes_max| {
            OptionsBuilder::new()
                .estimated_items_capacity(1024)
                .weight_capacity(bytes_max)
                .build()
                .expect("both sizes are given")
        };
        let blocks = Cache::with_options(options(bytes_max), Weigh, Seed(seed), Default::default());
        let places = Cache::with_options(options(bytes_max / PLACES_PART), WeighPlaces, Seed(seed), Default::default());
        Arc::new(BlockCache { blocks, places })
    }

    pub(crate) fn placed(&self, state: u64, part: u64) -> Option<Arc<Placed>> {
        self.places.get(&(state, part))
    }

    pub(crate) fn keep_placed(&self, state: u64, part: u64, placed: Arc<Placed>) {
        self.places.insert((state, part), placed);
    }

    /// Fills `out` with the blocks of `e`. False where one is not here; then `out` is undefined.
    pub(crate) fn read(&self, volume: u64, e: &Extent, out: &mut [u8]) -> bool {
        e.sums.iter().zip(out.chunks_exact_mut(BLOCK)).zip(e.dev_block..).all(|((sum, out), block)| {
            let found = self.blocks.get(&(volume, block, *sum));
            found.inspect(|b| out.copy_from_slice(b)).is_some()
        })
    }

    /// Keeps the blocks of `e`, which passed.
    pub(crate) fn keep(&self, volume: u64, e: &Extent, bytes: &[u8]) {
        for ((sum, bytes), block) in e.sums.iter().zip(bytes.chunks_exact(BLOCK)).zip(e.dev_block..) {
            self.blocks.insert((volume, block, *sum), bytes.into());
        }
    }
}

/// The part of one volume in a cache, where it has one.
pub struct VolumeBlocks {
    pub cache: Option<Arc<BlockCache>>,
    /// The volume's number in a cache that it shares.
    pub serial: u64,
}

impl VolumeBlocks {
    /// False where not all of it is there; then `out` is undefined.
    pub fn read(&self, e: &Extent, out: &mut [u8]) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.read(self.serial, e, out))
    }

    pub fn keep(&self, e: &Extent, bytes: &[u8]) {
        if let Some(cache) = &self.cache {
            cache.keep(self.serial, e, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(dev_block: u64, sums: &[u64]) -> Extent {
        Extent { file_block: 0, dev_block, birth: 0, sums: sums.to_vec() }
    }

    #[test]
    fn a_block_is_found_by_its_place_and_what_it_should_be() {
        let cache = BlockCache::new(1 << 20);
        let bytes: Vec<u8> = [[1u8; BLOCK], [2; BLOCK]].concat();
        cache.keep(7, &extent(100, &[11, 22]), &bytes);
        let mut out = vec![0; 2 * BLOCK];
        assert!(cache.read(7, &extent(100, &[11, 22]), &mut out) && out == bytes);
        assert!(cache.read(7, &extent(101, &[22]), &mut out[..BLOCK]) && out[..BLOCK] == bytes[BLOCK..]);
        for other in [extent(100, &[11, 23]), extent(101, &[22, 33]), extent(99, &[11])] {
            assert!(!cache.read(7, &other, &mut vec![0; other.sums.len() * BLOCK]), "{other:?}");
        }
        assert!(!cache.read(8, &extent(100, &[11]), &mut out[..BLOCK]), "another volume");
    }

    #[test]
    fn it_stays_within_its_room() {
        let cache = BlockCache::new(1 << 20);
        for i in 0..10_000u64 {
            cache.keep(1, &extent(i, &[i]), &[i as u8; BLOCK]);
        }
        assert!(cache.blocks.weight() <= 1 << 20, "{cache:?}");
        assert!(cache.blocks.len() > 100, "{cache:?}");
    }
}
