//! Blocks of files that were written, or were read and passed their check, in memory, for as long as there is room. A block is
//! found by its place and its checksum: what is written to the same place later has another one, so nothing here is ever out of
//! date. Blocks that came together stay together, so that a large read costs a few entries and not one for each block.
//! Beside them, where parts of files lie, found by the state of the file's data. Refuses to know files.

use std::{
    fmt,
    hash::{BuildHasher, DefaultHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use quick_cache::{OptionsBuilder, Weighter, sync::Cache};

use crate::{
    disk::{device::BLOCK, inode::Extent, run::Run},
    files::places::Placed,
};

mod spare;

use spare::{BlockMemory, SpareMemory};

/// Volume, region of the device.
type Key = (u64, u64);

/// Blocks of a region: they are found by one look, and make way together.
const REGION_BLOCKS: u64 = 16;
/// Pieces of a region that are kept. Only blocks that were written again and again have so many.
const PIECES_MAX: usize = REGION_BLOCKS as usize;
/// What an entry takes beside its pieces.
const ENTRY_BYTES: u64 = 96;
/// What a piece takes beside its blocks and their checksums.
const PIECE_BYTES: u64 = 64;
/// Where parts of files lie takes at most a so much smaller room: a block's part of it is 8 bytes.
const PLACES_PART: u64 = 64;

/// Neighbouring blocks that came together.
struct Piece {
    /// The first block's number in its region.
    first: usize,
    sums: Box<[u64]>,
    bytes: BlockMemory,
}

impl Piece {
    fn end(&self) -> usize {
        self.first + self.sums.len()
    }

    fn covers(&self, other: &Piece) -> bool {
        self.first <= other.first && other.end() <= self.end()
    }

    /// Copies the leading blocks of `out` that are here and have these checksums, where the first is number `at` of the region.
    /// How many they are.
    fn copy_to(&self, at: usize, sums: &[u64], out: &mut [u8]) -> usize {
        let Some(skip) = at.checked_sub(self.first) else { return 0 };
        let here = self.sums.get(skip..).unwrap_or(&[]);
        let same = here.iter().zip(sums).take_while(|(a, b)| a == b).count();
        out[..same * BLOCK].copy_from_slice(&self.bytes[skip.min(self.sums.len()) * BLOCK..][..same * BLOCK]);
        same
    }
}

/// What is known of one region: pieces, the latest first. None is covered by a later one.
#[derive(Clone, Default)]
struct Region(Arc<[Arc<Piece>]>);

impl Region {
    /// With one more piece.
    fn with(&self, piece: Piece) -> Region {
        let older = self.0.iter().filter(|old| !piece.covers(old)).take(PIECES_MAX - 1).cloned().collect::<Vec<_>>();
        Region(std::iter::once(Arc::new(piece)).chain(older).collect())
    }

    /// Without the pieces that lie between two blocks. None where there are no others.
    fn without(&self, from: usize, to: usize) -> Option<Region> {
        let stays = |piece: &&Arc<Piece>| piece.first < from || piece.end() > to;
        let left: Arc<[_]> = self.0.iter().filter(stays).cloned().collect();
        (!left.is_empty()).then_some(Region(left))
    }

    /// Fills `out` with the blocks from number `at` on that have these checksums. False where one is not here.
    fn read(&self, mut at: usize, mut sums: &[u64], mut out: &mut [u8]) -> bool {
        while !sums.is_empty() {
            let found = self.0.iter().map(|piece| piece.copy_to(at, sums, out)).find(|n| *n > 0);
            let Some(n) = found else { return false };
            (at, sums, out) = (at + n, &sums[n..], &mut out[n * BLOCK..]);
        }
        true
    }
}

#[derive(Clone)]
struct Weigh;

impl Weighter<Key, Region> for Weigh {
    fn weight(&self, _: &Key, region: &Region) -> u64 {
        let of = |p: &Arc<Piece>| (p.bytes.len() + size_of_val(&*p.sums)) as u64 + PIECE_BYTES;
        region.0.iter().map(of).sum::<u64>() + ENTRY_BYTES
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
    blocks: Cache<Key, Region, Weigh, Seed>,
    /// By the state of the file's data, and the number of the part.
    places: Cache<(u64, u64), Arc<Placed>, WeighPlaces, Seed>,
    spare: Arc<SpareMemory>,
    /// Somebody looked for a block, or kept one, since it was last asked.
    used: AtomicBool,
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
        Arc::new(BlockCache { blocks, places, spare: SpareMemory::new(bytes_max), used: AtomicBool::new(false) })
    }

    /// What it holds, in bytes, with memory that is ready for other blocks.
    pub fn bytes(&self) -> u64 {
        self.blocks.weight() + self.places.weight() + self.spare.bytes()
    }

    /// From now on it takes at most so much memory beside that for places; what is more than that goes at once.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.spare.set_bytes_max(bytes_max);
        self.blocks.set_capacity(bytes_max);
        self.places.set_capacity(bytes_max / PLACES_PART);
    }

    /// Whether it was used since the last call.
    pub fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn note_use(&self) {
        // Most find it noted already: the line stays in all processors' caches.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn placed(&self, state: u64, part: u64) -> Option<Arc<Placed>> {
        self.places.get(&(state, part))
    }

    pub(crate) fn keep_placed(&self, state: u64, part: u64, placed: Arc<Placed>) {
        self.places.insert((state, part), placed);
    }

    /// Fills `out` with the blocks of `e`. False where one is not here; then `out` is undefined.
    pub(crate) fn read(&self, volume: u64, e: &Extent, mut out: &mut [u8]) -> bool {
        self.note_use();
        regions(e).all(|part| {
            let (here, after) = std::mem::take(&mut out).split_at_mut(part.sums.len() * BLOCK);
            out = after;
            let found = self.blocks.get(&(volume, part.region));
            found.is_some_and(|region| region.read(part.first, part.sums, here))
        })
    }

    /// Keeps the blocks of `e`, which passed or were just written. Of two threads that keep blocks of one region at the same time, one may have
    /// done so in vain.
    pub(crate) fn keep(&self, volume: u64, e: &Extent, bytes: &[u8]) {
        self.note_use();
        let mut rest = bytes;
        for part in regions(e) {
            let (here, after) = rest.split_at(part.sums.len() * BLOCK);
            rest = after;
            let key = (volume, part.region);
            // A look that is not a use.
            let old = self.blocks.peek(&key).unwrap_or_default();
            let piece = Piece { first: part.first, sums: part.sums.into(), bytes: self.spare.copy_of(here) };
            self.blocks.insert(key, old.with(piece));
        }
    }

    /// These blocks are nobody's any more: their memory is for others. Where they are more than there is here, nothing happens, and
    /// they make way in their turn.
    pub(crate) fn forget(&self, volume: u64, runs: &[Run]) {
        if runs.iter().map(|run| run.len / REGION_BLOCKS).sum::<u64>() > self.blocks.len() as u64 {
            return;
        }
        for run in runs {
            for region in run.start / REGION_BLOCKS..(run.start + run.len).div_ceil(REGION_BLOCKS) {
                let (key, first) = ((volume, region), region * REGION_BLOCKS);
                let Some(old) = self.blocks.peek(&key) else { continue };
                let from = run.start.saturating_sub(first) as usize;
                let to = (run.start + run.len - first).min(REGION_BLOCKS) as usize;
                match old.without(from, to) {
                    Some(left) => self.blocks.insert(key, left),
                    None => drop(self.blocks.remove(&key)),
                }
            }
        }
    }
}

/// The part of an extent in one region.
struct Part<'a> {
    region: u64,
    /// The first block's number in the region.
    first: usize,
    sums: &'a [u64],
}

/// The parts of an extent by region, in its order.
fn regions(e: &Extent) -> impl Iterator<Item = Part<'_>> {
    let (mut block, mut rest) = (e.dev_block, e.sums.as_slice());
    std::iter::from_fn(move || {
        let first = block % REGION_BLOCKS;
        let (sums, after) = rest.split_at(rest.len().min((REGION_BLOCKS - first) as usize));
        let part = Part { region: block / REGION_BLOCKS, first: first as usize, sums };
        (block, rest) = (block + sums.len() as u64, after);
        (!sums.is_empty()).then_some(part)
    })
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

    pub fn forget(&self, runs: &[Run]) {
        if let Some(cache) = self.cache.as_ref().filter(|_| !runs.is_empty()) {
            cache.forget(self.serial, runs);
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

    /// Beside a table of single blocks: whatever is kept in whatever order, a block that is found is the right one, and of what
    /// was kept last all is found.
    #[test]
    fn overlapping_reads_find_what_was_kept_last() {
        let mut rng = arden_block::rng::Rng::new(7);
        let cache = BlockCache::new(256 << 20);
        let mut now = vec![0u64; 100];
        let content = |sum: u64| [sum as u8 ^ (sum >> 8) as u8; BLOCK];
        for round in 1..5000u64 {
            let start = rng.below(90);
            let len = 1 + rng.below(40.min(100 - start));
            if rng.below(3) == 0 {
                (start..start + len).for_each(|b| now[b as usize] = round * 100 + b);
            }
            let e = extent(start, &now[start as usize..(start + len) as usize]);
            let bytes: Vec<u8> = e.sums.iter().flat_map(|sum| content(*sum)).collect();
            let mut out = vec![0; bytes.len()];
            if cache.read(1, &e, &mut out) {
                assert_eq!(out, bytes, "round {round}");
            }
            cache.keep(1, &e, &bytes);
            assert!(cache.read(1, &e, &mut out) && out == bytes, "round {round}");
        }
        let region = cache.blocks.peek(&(1, 1)).unwrap();
        assert!(region.0.len() <= PIECES_MAX);
    }

    #[test]
    fn it_stays_within_its_room() {
        let cache = BlockCache::new(4 << 20);
        for i in 0..10_000u64 {
            cache.keep(1, &extent(i, &[i]), &[i as u8; BLOCK]);
        }
        assert!(cache.blocks.weight() <= 4 << 20, "{cache:?}");
        assert!(cache.blocks.weight() > 1 << 20, "{cache:?}");
        for i in 0..1000u64 {
            cache.keep(2, &extent(i * 50, &[i; 50]), &[i as u8; 50 * BLOCK]);
        }
        assert!(cache.blocks.weight() <= 4 << 20, "{cache:?}");
        assert!(cache.blocks.weight() > 1 << 20, "{cache:?}");
    }

    #[test]
    fn memory_of_blocks_that_are_nobodys_is_used_again() {
        let cache = BlockCache::new(32 << 20);
        for i in 0..64u64 {
            cache.keep(1, &extent(i * 16 + 5, &[i; 16]), &[i as u8; 16 * BLOCK]);
        }
        let full = cache.bytes();
        cache.forget(2, &[Run { start: 5, len: 64 * 16 }]);
        cache.forget(1, &[Run { start: 0, len: 1 << 40 }]);
        assert_eq!((cache.bytes(), cache.spare.bytes()), (full, 0), "another volume's, and more than there are");
        // All but the first and the last block.
        cache.forget(1, &[Run { start: 6, len: 500 }, Run { start: 506, len: 64 * 16 - 502 }]);
        let mut out = vec![0; 16 * BLOCK];
        let mut has = |at: u64, sum: u64, n: usize| cache.read(1, &extent(at, &[sum; 16][..n]), &mut out[..n * BLOCK]);
        // Pieces stay as a whole.
        assert!(has(5, 0, 11) && !has(16, 0, 1) && !has(40, 2, 1) && has(63 * 16 + 16, 63, 5));
        assert!(cache.spare.bytes() > 3 << 20 && cache.bytes() <= full);
        for i in 0..60u64 {
            cache.keep(1, &extent(10_005 + i * 16, &[i; 16]), &[i as u8; 16 * BLOCK]);
        }
        assert!(cache.spare.bytes() < 1 << 20 && cache.bytes() <= full);
    }

    #[test]
    fn it_gives_way_and_fills_again() {
        let cache = BlockCache::new(8 << 20);
        let fill = || (0..4000u64).for_each(|i| cache.keep(1, &extent(i * 16, &[i; 16]), &[i as u8; 16 * BLOCK]));
        fill();
        let full = cache.bytes();
        assert!(full > 4 << 20 && cache.take_used() && !cache.take_used());
        cache.set_bytes_max(1 << 20);
        assert!(cache.bytes() <= (1 << 20) + (1 << 20) / PLACES_PART, "{cache:?}");
        fill();
        assert!(cache.bytes() <= (1 << 20) + (1 << 20) / PLACES_PART, "{cache:?}");
        cache.set_bytes_max(8 << 20);
        fill();
        assert!(cache.bytes() > full / 4 * 3, "{cache:?}");
        cache.read(1, &extent(3999 * 16, &[3999; 16]), &mut [0; 16 * BLOCK]);
        assert!(cache.take_used() && !cache.take_used());
    }
}
