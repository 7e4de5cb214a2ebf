//! Regions of a mirrored group while the pool is open: which marks are durable, which regions a crash may have left
//! different, which are being written, and which of their blocks columns missed. The marks themselves are the group's dirty bits in the map.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use crate::base::bitmap::Bitmap;

/// How many regions are marked at most before anybody writes to them.
const REGIONS_AHEAD_MAX: u32 = 32;

/// Writes to a region.
#[derive(Default, PartialEq)]
struct Writes {
    in_flight: u32,
    /// One came since somebody last looked for regions at rest.
    lately: bool,
}

/// Regions of all groups whose missed blocks are remembered one by one, 150 bytes each. Of more all blocks are copied.
const REGIONS_MISSED_MAX: usize = 64 << 10;

/// What columns missed since the first of them left.
#[derive(Default)]
enum Missed {
    /// Anything in a dirty region: that was before this opening, or nothing.
    #[default]
    Unknown,
    Since {
        /// Regions that were dirty when it left: its disk may have lost what was not flushed. And those that were written all over.
        whole: Bitmap,
        /// By region, blocks that were written since. Each of them was recorded before the disks had it.
        blocks: BTreeMap<u32, Bitmap>,
    },
}

/// How many regions of a pool are remembered so.
#[derive(Default)]
pub(crate) struct MissedRoom(Cell<usize>);

pub(crate) struct Regions {
    /// Dirty bits that are on disk.
    durable: RefCell<Bitmap>,
    /// Regions that a crash, or a write that failed on all copies, may have left different.
    suspect: RefCell<Bitmap>,
    /// Those of them that a crash left so: read only after a resync.
    crashed: RefCell<Bitmap>,
    writes: RefCell<BTreeMap<u32, Writes>>,
    /// Regions that small durable writes came to lately.
    warm: RefCell<BTreeSet<u32>>,
    /// How often marks were forgotten.
    forgotten: Cell<u64>,
    missed: RefCell<Missed>,
    missed_room: Rc<MissedRoom>,
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.forget_missed();
    }
}

impl Regions {
    pub(crate) fn new(durable: Bitmap, suspect: Bitmap, missed_room: Rc<MissedRoom>) -> Regions {
        Regions {
            durable: RefCell::new(durable),
            crashed: RefCell::new(suspect.clone()),
            suspect: RefCell::new(suspect),
            writes: RefCell::default(),
            warm: RefCell::default(),
            forgotten: Cell::default(),
            missed: RefCell::default(),
            missed_room,
        }
    }

    /// The first column leaves a group that was whole: from now on it is known what columns miss, but for these regions.
    pub(crate) fn first_column_leaves(&self, dirty: Bitmap) {
        self.forget_missed();
        *self.missed.borrow_mut() = Missed::Since { whole: dirty, blocks: BTreeMap::new() };
    }

    /// These blocks of the group are about to be written, and a column is away or out of date.
    pub(crate) fn note_missed(&self, blocks: Range<u64>, region_blocks: u64) {
        let Missed::Since { whole, blocks: of } = &mut *self.missed.borrow_mut() else { return };
        for block in blocks {
            let (bit, at) = ((block / region_blocks) as u32, (block % region_blocks) as usize);
            if whole.get(bit as usize) {
                continue;
            }
            if !of.contains_key(&bit) && !self.missed_room.take() {
                whole.set(bit as usize);
                continue;
            }
            let region = of.entry(bit).or_insert_with(|| Bitmap::new(region_blocks as usize));
            region.set(at);
            if region.count() == region.len() {
                whole.set(bit as usize);
                of.remove(&bit);
                self.missed_room.give_back(1);
            }
        }
    }

    /// Blocks of a region, as runs, that columns may have missed. None: any.
    pub(crate) fn missed(&self, bit: usize) -> Option<Vec<Range<u64>>> {
        self.missed_within(bit, 0..u64::MAX)
    }

    /// The same, of some blocks of the region.
    pub(crate) fn missed_within(&self, bit: usize, within: Range<u64>) -> Option<Vec<Range<u64>>> {
        let Missed::Since { whole, blocks } = &*self.missed.borrow() else { return None };
        if whole.get(bit) {
            return None;
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        let missed = blocks.get(&(bit as u32)).map_or_else(Vec::new, Bitmap::ones);
        for block in missed.into_iter().map(|b| b as u64).filter(|b| within.contains(b)) {
            match runs.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        Some(runs)
    }

    /// No column misses anything.
    pub(crate) fn forget_missed(&self) {
        if let Missed::Since { blocks, .. } = self.missed.take() {
            self.missed_room.give_back(blocks.len());
        }
    }

    /// The disks know that the copies of the region may differ.
    pub(crate) fn is_marked(&self, bit: u32) -> bool {
        self.durable.borrow().get(bit as usize)
    }

    /// Writes that run on from region to region would wait for the log at each: the longer the run of marked regions
    /// before `bits`, the more after them, up to region `count`, are to be marked in the same batch. None when nothing
    /// has to be marked.
    pub(crate) fn to_mark_ahead(&self, bits: &[u32], count: u32) -> Range<u32> {
        let (Some(&first), Some(&last)) = (bits.first(), bits.last()) else { return 0..0 };
        let from = last + 1;
        if bits.iter().all(|&b| self.is_marked(b)) {
            return from..from;
        }
        let run = (first.saturating_sub(REGIONS_AHEAD_MAX)..first).rev().take_while(|&b| self.is_marked(b)).count();
        from..(from + run as u32).min(count).max(from)
    }

    pub(crate) fn marks_are_durable(&self, bits: impl IntoIterator<Item = usize>) {
        let mut durable = self.durable.borrow_mut();
        bits.into_iter().for_each(|b| durable.set(b));
    }

    /// A map with the marks `bits`, gathered when marks had been forgotten `forgotten` times, is durable. When some were
    /// forgotten meanwhile, the map on disk names more than memory does, and counts for nothing here.
    pub(crate) fn map_is_durable(&self, bits: Vec<usize>, forgotten: u64) {
        if self.forgotten.get() == forgotten {
            self.marks_are_durable(bits);
        }
    }

    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.get()
    }

    /// The copies of the region are equal and durable.
    pub(crate) fn forget_mark(&self, bit: usize) {
        self.durable.borrow_mut().clear(bit);
        self.writes.borrow_mut().remove(&(bit as u32));
        self.forgotten.set(self.forgotten.get() + 1);
    }

    /// As [`Regions::forget_mark`], of all regions.
    pub(crate) fn forget_marks(&self) {
        self.durable.borrow_mut().clear_all();
        self.forgotten.set(self.forgotten.get() + 1);
    }

    pub(crate) fn is_suspect(&self, bit: usize) -> bool {
        self.suspect.borrow().get(bit)
    }

    pub(crate) fn any_suspect(&self) -> bool {
        self.suspect.borrow().any()
    }

    /// Suspect since the crash before this opening.
    pub(crate) fn is_left_by_crash(&self, bit: usize) -> bool {
        self.crashed.borrow().get(bit)
    }

    /// A write to these regions failed on all copies, and may have landed on some.
    pub(crate) fn suspect(&self, bits: &[u32]) {
        let mut suspect = self.suspect.borrow_mut();
        bits.iter().for_each(|&b| suspect.set(b as usize));
    }

    pub(crate) fn suspects(&self) -> Vec<usize> {
        self.suspect.borrow().ones()
    }

    /// The copies of the region are equal.
    pub(crate) fn trust(&self, bit: usize) {
        self.suspect.borrow_mut().clear(bit);
        self.crashed.borrow_mut().clear(bit);
    }

    pub(crate) fn trust_all(&self) {
        self.suspect.borrow_mut().clear_all();
        self.crashed.borrow_mut().clear_all();
    }

    pub(crate) fn begin_writes(&self, bits: &[u32]) {
        let mut writes = self.writes.borrow_mut();
        for &b in bits {
            let w = writes.entry(b).or_default();
            w.in_flight += 1;
            w.lately = true;
        }
    }

    pub(crate) fn end_writes(&self, bits: &[u32]) {
        let mut writes = self.writes.borrow_mut();
        for b in bits {
            if let Some(w) = writes.get_mut(b) {
                w.in_flight -= 1;
            }
        }
    }

    /// No write is in flight.
    pub(crate) fn are_idle(&self) -> bool {
        self.writes.borrow().values().all(|w| w.in_flight == 0)
    }

    /// Those of `bits` that nobody wrote since the call before. The others get until the next.
    pub(crate) fn take_rested(&self, mut bits: Vec<usize>) -> Vec<usize> {
        let mut writes = self.writes.borrow_mut();
        bits.retain(|&b| {
            let w = writes.entry(b as u32).or_default();
            let rested = *w == Writes::default();
            w.lately &= rested;
            rested
        });
        self.warm.borrow_mut().clear();
        bits
    }

    /// Nobody wrote the region since [`Regions::take_rested`] gave it.
    pub(crate) fn is_rested(&self, bit: usize) -> bool {
        self.writes.borrow().get(&(bit as u32)).is_some_and(|w| *w == Writes::default())
    }

    /// A small durable write comes to the region. False for the first of late.
    pub(crate) fn warm_up(&self, bit: u32) -> bool {
        !self.warm.borrow_mut().insert(bit)
    }

    /// `is_dirty` says what the map in memory has.
    pub(crate) fn check(&self, is_dirty: impl Fn(usize) -> bool) -> Result<(), String> {
        match self.durable.borrow().ones().into_iter().find(|&b| !is_dirty(b)) {
            Some(bit) => Err(format!("region {bit} is dirty on disk and clean in memory")),
            None => Ok(()),
        }
    }
}

impl MissedRoom {
    fn take(&self) -> bool {
        let has_room = self.0.get() < REGIONS_MISSED_MAX;
        self.0.set(self.0.get() + usize::from(has_room));
        has_room
    }

    fn give_back(&self, regions: usize) {
        self.0.set(self.0.get() - regions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(count: usize) -> Regions {
        Regions::new(Bitmap::new(count), Bitmap::new(count), Rc::default())
    }

    #[test]
    fn what_was_missed_is_known_since_the_first_column_left() {
        let r = regions(8);
        r.note_missed(0..4, 16);
        assert_eq!(r.missed(0), None, "before that nobody knows");
        let mut dirty = Bitmap::new(8);
        dirty.set(2);
        r.first_column_leaves(dirty);
        r.note_missed(14..18, 16);
        r.note_missed(9..10, 16);
        r.note_missed(20..21, 16);
        r.note_missed(32..33, 16);
        assert_eq!(r.missed(0), Some(vec![9..10, 14..16]));
        assert_eq!(r.missed(1), Some(vec![0..2, 4..5]));
        assert_eq!(r.missed_within(1, 1..5), Some(vec![1..2, 4..5]));
        assert_eq!(r.missed(2), None, "it was dirty then");
        assert_eq!(r.missed(3), Some(vec![]));
        r.note_missed(16..32, 16);
        assert_eq!((r.missed(1), r.missed_room.0.get()), (None, 1), "all of it");
        r.missed_room.0.set(REGIONS_MISSED_MAX);
        r.note_missed(64..65, 16);
        assert_eq!(r.missed(4), None, "no room to remember it");
        r.forget_missed();
        assert_eq!((r.missed(0), r.missed_room.0.get()), (None, REGIONS_MISSED_MAX - 1));
    }

    #[test]
    fn a_region_rests_when_two_looks_find_no_write() {
        let r = regions(8);
        r.begin_writes(&[3]);
        assert_eq!(r.take_rested(vec![3, 4]), [4], "in flight");
        r.end_writes(&[3]);
        assert_eq!(r.take_rested(vec![3]), [3]);
        assert!(r.is_rested(3));
        r.begin_writes(&[3]);
        r.end_writes(&[3]);
        assert!(!r.is_rested(3), "written since");
        assert_eq!(r.take_rested(vec![3]), [0usize; 0]);
    }

    #[test]
    fn marks_of_a_map_from_before_others_were_forgotten_do_not_count() {
        let r = regions(8);
        r.marks_are_durable([1, 2]);
        let before = r.forgotten();
        r.forget_mark(2);
        r.map_is_durable(vec![1, 2], before);
        assert!(r.is_marked(1) && !r.is_marked(2));
        r.map_is_durable(vec![2], r.forgotten());
        assert!(r.is_marked(2));
    }

    #[test]
    fn the_longer_a_run_the_fewer_batches() {
        let r = regions(128);
        let mut batches = Vec::new();
        for bit in 0..128 {
            let ahead = r.to_mark_ahead(&[bit], 128);
            if !r.is_marked(bit) {
                batches.push(bit);
                r.marks_are_durable((bit..ahead.end).map(|b| b as usize));
            }
            assert!(ahead.end <= 128 && ahead.start == bit + 1);
        }
        assert_eq!(batches, [0, 1, 3, 7, 15, 31, 63, 96]);
        assert_eq!(regions(128).to_mark_ahead(&[70], 128), 71..71, "a write on its own marks nothing else");
    }
}
