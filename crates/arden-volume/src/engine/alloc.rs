//! Which blocks are free. Two bitmaps: `data`, what the operations so far have given to files (kept in the tree at
//! each checkpoint), and `taken`, what must not be given out now: that, the journal, the tree's nodes, what is being
//! written and not yet entered, and what was freed by operations that a crash could still undo.

use std::collections::BTreeSet;

use arden_lock::{Mutex, ranks};

use crate::disk::{
    error::{VolError, VolResult},
    run::Run,
};

/// Blocks that one page of a bitmap tells of.
pub const PAGE_BLOCKS: u64 = 32_768;
pub const PAGE_BYTES: usize = PAGE_BLOCKS as usize / 8;
const WORDS: usize = PAGE_BYTES / 8;
/// Pieces that go back to the device in one call.
const PIECES_AT_ONCE: u64 = 16;

#[derive(Default)]
pub struct Bitmap {
    pages: Vec<Option<Box<[u64; WORDS]>>>,
    /// Bits set in each page.
    counts: Vec<u32>,
    blocks: u64,
}

impl Bitmap {
    pub fn new(blocks: u64) -> Bitmap {
        let pages = blocks.div_ceil(PAGE_BLOCKS) as usize;
        Bitmap { pages: (0..pages).map(|_| None).collect(), counts: vec![0; pages], blocks }
    }

    fn grow(&mut self, blocks: u64) {
        let pages = blocks.div_ceil(PAGE_BLOCKS) as usize;
        self.pages.resize_with(pages, || None);
        self.counts.resize(pages, 0);
        self.blocks = blocks;
    }

    pub fn get(&self, block: u64) -> bool {
        let (page, word, bit) = place(block);
        self.pages.get(page).and_then(|p| p.as_ref()).is_some_and(|p| p[word] >> bit & 1 == 1)
    }

    /// Whether the bit changed.
    fn set_one(&mut self, block: u64, on: bool) -> bool {
        let (page, word, bit) = place(block);
        if block >= self.blocks {
            return false;
        }
        let p = self.pages[page].get_or_insert_with(|| Box::new([0; WORDS]));
        let was = p[word] >> bit & 1 == 1;
        if was == on {
            return false;
        }
        p[word] ^= 1 << bit;
        if on {
            self.counts[page] += 1
        } else {
            self.counts[page] -= 1
        }
        if self.counts[page] == 0 {
            self.pages[page] = None;
        }
        true
    }

    /// How many bits changed; all of them, unless something is wrong.
    pub fn set(&mut self, run: Run, on: bool) -> u64 {
        (run.start..run.start.saturating_add(run.len)).filter(|b| self.set_one(*b, on)).count() as u64
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|c| u64::from(*c)).sum()
    }

    /// None when nothing is set there.
    pub fn page_bytes(&self, page: usize) -> Option<Vec<u8>> {
        self.pages[page].as_ref().map(|p| p.iter().flat_map(|w| w.to_le_bytes()).collect())
    }

    pub fn load_page(&mut self, page: usize, bytes: &[u8]) -> VolResult<()> {
        if page >= self.pages.len() || bytes.len() != PAGE_BYTES {
            return Err(VolError::Corrupt("page of the block map"));
        }
        let mut words = Box::new([0u64; WORDS]);
        for (w, b) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *w = u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        }
        self.counts[page] = words.iter().map(|w| w.count_ones()).sum();
        self.pages[page] = Some(words);
        let first = page as u64 * PAGE_BLOCKS;
        if first + PAGE_BLOCKS > self.blocks && (self.blocks..first + PAGE_BLOCKS).any(|b| self.get(b)) {
            return Err(VolError::Corrupt("page of the block map"));
        }
        Ok(())
    }

    /// The next block at or after `from` whose bit is `on`.
    fn next(&self, from: u64, on: bool) -> Option<u64> {
        let mut at = from;
        while at < self.blocks {
            let (page, word, bit) = place(at);
            let Some(p) = &self.pages[page] else {
                if !on {
                    return Some(at);
                }
                at = (page as u64 + 1) * PAGE_BLOCKS;
                continue;
            };
            if !on && u64::from(self.counts[page]) == PAGE_BLOCKS {
                at = (page as u64 + 1) * PAGE_BLOCKS;
                continue;
            }
            let w = (if on { p[word] } else { !p[word] }) >> bit;
            if w != 0 {
                let found = at + u64::from(w.trailing_zeros());
                return (found < self.blocks).then_some(found);
            }
            at += 64 - bit as u64;
        }
        None
    }

    fn runs_of_page(&self, page: usize) -> Vec<Run> {
        let (mut at, end) = (page as u64 * PAGE_BLOCKS, ((page as u64 + 1) * PAGE_BLOCKS).min(self.blocks));
        let mut out = Vec::new();
        while let Some(start) = self.next(at, true).filter(|s| *s < end) {
            let stop = self.next(start, false).unwrap_or(end).min(end);
            out.push(Run { start, len: stop - start });
            at = stop;
        }
        out
    }

    /// All runs of set bits.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        (0..self.pages.len()).flat_map(|p| self.runs_of_page(p))
    }
}

fn place(block: u64) -> (usize, usize, u32) {
    ((block / PAGE_BLOCKS) as usize, (block % PAGE_BLOCKS / 64) as usize, (block % 64) as u32)
}

pub struct Alloc {
    pub data: Bitmap,
    taken: Bitmap,
    blocks: u64,
    hint: u64,
    /// Freed, by the operation that freed it, and not to be used before that is durable.
    pending: Vec<(u64, Run)>,
    pending_blocks: u64,
    /// Pages of `data` that differ from the last checkpoint's.
    dirty: BTreeSet<usize>,
    /// Kept back for the tree.
    pub reserve: u64,
    /// Kept back where the device has no room for more, for the checkpoint that is being made: else it may find none for ever.
    pub left_to_checkpoint: u64,
    /// Freed since a checkpoint last found no room.
    pub freed_blocks: u64,
    /// Pieces of the device, by `piece_blocks`, in which something became free: perhaps nothing lies in them any more.
    emptied: BTreeSet<u64>,
    /// Those in which nothing has become free since the last look, and since the one before.
    resting: BTreeSet<u64>,
    rested: BTreeSet<u64>,
    piece_blocks: u64,
    /// Taken only until the device has them back.
    leaving_blocks: u64,
    /// The device has no room for other pieces than these: they are looked through first.
    within: Option<BTreeSet<u64>>,
    /// While data is given room: the pieces that it stays out of, as what is left there is kept back.
    beside: Option<BTreeSet<u64>>,
}

/// Blocks that data leaves to the tree.
fn kept_back(blocks: u64) -> u64 {
    (blocks / 32).clamp(512, 65_536)
}

impl Alloc {
    pub fn new(blocks: u64) -> Alloc {
        Alloc {
            data: Bitmap::new(blocks),
            taken: Bitmap::new(blocks),
            blocks,
            hint: 0,
            pending: Vec::new(),
            pending_blocks: 0,
            dirty: BTreeSet::new(),
            reserve: kept_back(blocks),
            left_to_checkpoint: 0,
            freed_blocks: 0,
            emptied: BTreeSet::new(),
            resting: BTreeSet::new(),
            rested: BTreeSet::new(),
            piece_blocks: 0,
            leaving_blocks: 0,
            within: None,
            beside: None,
        }
    }

    /// From now on pieces of so many blocks that are empty are handed out by [`Alloc::take_empty`], and those among
    /// `held`, for which the device keeps room.
    pub fn note_empty(&mut self, piece_blocks: u64, held: Vec<u64>) {
        self.piece_blocks = piece_blocks;
        self.emptied.extend(held);
    }

    /// A while is over: what became empty before the last call, and not again since, may go.
    pub fn rest(&mut self) {
        self.within = None;
        self.rested.append(&mut self.resting);
        self.resting = std::mem::take(&mut self.emptied);
    }

    /// Nobody waits for a while to be over.
    pub fn rest_at_once(&mut self) {
        self.rest();
        self.rest();
    }

    /// For a while, or until there is no room left in them, new blocks are taken from these pieces.
    pub fn keep_within(&mut self, pieces: BTreeSet<u64>) {
        self.within = Some(pieces).filter(|_| self.piece_blocks > 0);
    }

    /// Pieces side by side that became empty and have rested, taken so that nobody else gets them before
    /// [`Alloc::end_empty`]. Never so many that somebody might be told meanwhile that there is no room.
    pub fn take_empty(&mut self) -> Option<Run> {
        let spare = (self.blocks - self.taken.count()).saturating_sub(self.reserve) / self.piece_blocks.max(1);
        let most = (spare / 2).min(PIECES_AT_ONCE);
        let mut out: Option<Run> = None;
        while out.is_none_or(|run| run.len < most * self.piece_blocks) && most > 0 {
            let Some(&piece) = self.rested.first() else { break };
            let run = Run { start: piece * self.piece_blocks, len: self.piece_blocks };
            if out.is_some_and(|o| o.start + o.len != run.start) {
                break;
            }
            self.rested.pop_first();
            if run.start + run.len <= self.blocks && self.claim(run) {
                out = Some(Run { start: out.map_or(run.start, |o| o.start), len: out.map_or(0, |o| o.len) + run.len });
            }
        }
        self.leaving_blocks += out.map_or(0, |run| run.len);
        out
    }

    /// The device has taken these pieces back; there is nothing new in them to be given back.
    pub fn end_empty(&mut self, run: Run) {
        self.leaving_blocks -= self.taken.set(run, false);
        if let Some(within) = &mut self.within {
            let first = run.start / self.piece_blocks;
            within.retain(|piece| !(first..first + run.len / self.piece_blocks).contains(piece));
        }
    }

    fn note_freed(&mut self, run: Run) {
        let piece_of = |block: u64| block.checked_div(self.piece_blocks);
        if let (Some(first), Some(last)) = (piece_of(run.start), piece_of(run.start + run.len.max(1) - 1)) {
            for piece in first..=last {
                self.resting.remove(&piece);
                self.rested.remove(&piece);
                self.emptied.insert(piece);
            }
        }
    }

    /// The device has more blocks now.
    pub fn grow(&mut self, blocks: u64) {
        self.data.grow(blocks);
        self.taken.grow(blocks);
        self.blocks = blocks;
        self.reserve = kept_back(blocks);
    }

    /// Takes a run that nobody holds. False, and nothing taken, when somebody does.
    pub fn claim(&mut self, run: Run) -> bool {
        let end = run.start.saturating_add(run.len);
        let free = end <= self.blocks && self.taken.next(run.start, true).is_none_or(|b| b >= end);
        free && self.taken.set(run, true) == run.len
    }

    /// At opening: this run is in use. False when it was in use already, or does not exist.
    pub fn occupy(&mut self, run: Run) -> bool {
        run.start.checked_add(run.len).is_some_and(|e| e <= self.blocks) && self.taken.set(run, true) == run.len
    }

    pub fn load_page(&mut self, page: usize, bytes: &[u8]) -> VolResult<()> {
        self.data.load_page(page, bytes)?;
        for run in self.data.runs_of_page(page) {
            if !self.occupy(run) {
                return Err(VolError::Corrupt("a block has two owners"));
            }
        }
        Ok(())
    }

    /// In use, and not by a file.
    pub fn may_be_node(&self, block: u64) -> bool {
        self.taken.get(block) && !self.data.get(block)
    }

    /// Blocks that nothing lies in, those that wait to be reusable included.
    pub fn free_blocks(&self) -> u64 {
        self.blocks - self.taken.count() + self.pending_blocks + self.leaving_blocks
    }

    pub fn total_blocks(&self) -> u64 {
        self.blocks
    }

    fn find(&self, from: u64, to: u64, want: u64, whole: bool) -> Option<Run> {
        let mut at = from;
        while let Some(start) = self.next_free(at).filter(|s| *s < to) {
            let end = self.end_of_free(start);
            let len = (end - start).min(want);
            if len == want || !whole {
                return Some(Run { start, len });
            }
            at = end;
        }
        None
    }

    /// The next block at or after `at` that may be taken.
    fn next_free(&self, mut at: u64) -> Option<u64> {
        loop {
            let start = self.taken.next(at, false)?;
            if self.beside.as_ref().is_some_and(|b| b.contains(&(start / self.piece_blocks))) {
                at = (start / self.piece_blocks + 1) * self.piece_blocks;
                continue;
            }
            let Some(within) = &self.within else { return Some(start) };
            let piece = *within.range(start / self.piece_blocks..).next()?;
            if piece * self.piece_blocks <= start {
                return Some(start);
            }
            at = piece * self.piece_blocks;
        }
    }

    /// Where those end that may be taken from `start` on.
    fn end_of_free(&self, start: u64) -> u64 {
        let end = self.taken.next(start, true).unwrap_or(self.blocks);
        if let Some(beside) = &self.beside {
            let next = beside.range(start / self.piece_blocks..).next();
            return next.map_or(end, |piece| end.min(piece * self.piece_blocks));
        }
        let Some(within) = &self.within else { return end };
        let mut stop = (start / self.piece_blocks + 1) * self.piece_blocks;
        while stop < end && within.contains(&(stop / self.piece_blocks)) {
            stop += self.piece_blocks;
        }
        stop.min(end)
    }

    /// Whether data may take so many blocks of the pieces that the device keeps room for; some are left to the tree.
    fn has_within(&self, blocks: u64) -> bool {
        let Some(within) = &self.within else { return false };
        let left = self.reserve.min(within.len() as u64 * self.piece_blocks / 32);
        let wanted = blocks + left.max(self.left_to_checkpoint);
        let (mut at, mut found) = (0, 0);
        while let Some(start) = self.next_free(at).filter(|_| found < wanted) {
            at = self.end_of_free(start);
            found += at - start;
        }
        found >= wanted
    }

    fn take(&mut self, want: u64, whole: bool) -> Option<Run> {
        let run = self.find(self.hint, self.blocks, want, whole).or_else(|| self.find(0, self.hint, want, whole))?;
        self.taken.set(run, true);
        self.hint = run.start + run.len;
        Some(run)
    }

    /// Room for data, in as few runs of at most `run_max` as there are. `Full` leaves nothing taken.
    pub fn reserve_data(&mut self, blocks: u64, run_max: u64) -> VolResult<Vec<Run>> {
        if blocks > 0 && self.blocks - self.taken.count() < blocks + self.reserve {
            return Err(VolError::Full);
        }
        if !self.has_within(blocks) {
            self.beside = self.within.take();
        }
        let taken = self.take_all(blocks, run_max);
        self.beside = None;
        taken
    }

    fn take_all(&mut self, blocks: u64, run_max: u64) -> VolResult<Vec<Run>> {
        let (mut left, mut out) = (blocks, Vec::new());
        while left > 0 {
            // Half of a piece is looked for as a whole, so that holes of single blocks are used last.
            let want = left.min(run_max);
            let whole = want > 1 && want <= 16;
            let run = self.take(want, whole).or_else(|| self.take(want, false));
            let Some(run) = run else {
                out.into_iter().for_each(|r| self.cancel(r));
                return Err(VolError::Full);
            };
            left -= run.len;
            out.push(run);
        }
        Ok(out)
    }

    /// Room for a node of the tree; may use what is kept back.
    pub fn reserve_node(&mut self, blocks: u64) -> VolResult<u64> {
        let mut run = self.take(blocks, true);
        if run.is_none() && self.within.take().is_some() {
            run = self.take(blocks, true);
        }
        run.map(|r| r.start).ok_or(VolError::Full)
    }

    /// What was reserved is not needed, or a node is no longer in use.
    pub fn cancel(&mut self, run: Run) {
        self.taken.set(run, false);
        self.note_freed(run);
    }

    fn mark_dirty(&mut self, run: Run) {
        let (first, last) = (run.start / PAGE_BLOCKS, (run.start + run.len.max(1) - 1) / PAGE_BLOCKS);
        self.dirty.extend(first as usize..=last as usize);
    }

    /// An operation gave these reserved blocks to a file.
    pub fn enter(&mut self, run: Run) {
        self.data.set(run, true);
        self.taken.set(run, true);
        self.mark_dirty(run);
    }

    /// Operation `seq` took them away from the last file.
    pub fn free(&mut self, seq: u64, run: Run) {
        self.data.set(run, false);
        self.mark_dirty(run);
        self.pending.push((seq, run));
        self.pending_blocks += run.len;
        self.freed_blocks += run.len;
    }

    /// Whether a checkpoint that found no room is worth another attempt.
    pub fn may_have_room(&self) -> bool {
        self.freed_blocks > self.left_to_checkpoint
    }

    /// What operations up to `seq` freed: they are durable. The caller gives it back with [`Alloc::release`].
    fn take_pending(&mut self, seq: u64) -> Vec<Run> {
        let mut out = Vec::new();
        self.pending.retain(|(s, run)| {
            if *s <= seq {
                out.push(*run);
            }
            *s > seq
        });
        out
    }

    fn release(&mut self, runs: &[Run]) {
        for run in runs {
            self.pending_blocks -= run.len;
            self.cancel(*run);
        }
    }

    /// What operations up to `seq` freed may be used again.
    pub fn release_upto(&mut self, seq: u64) {
        let runs = self.take_pending(seq);
        self.release(&runs);
    }

    /// The pages of the block map that changed since this was asked last; None for one that is empty.
    pub fn take_dirty(&mut self) -> Vec<(usize, Option<Vec<u8>>)> {
        std::mem::take(&mut self.dirty).into_iter().map(|p| (p, self.data.page_bytes(p))).collect()
    }
}

/// The allocator as all who use it share it.
pub type AllocLock = Mutex<Alloc, ranks::FreeBlocks>;

/// Blocks that are reserved and given back unless an operation entered them.
pub struct Reserved<'a> {
    pub alloc: &'a AllocLock,
    pub runs: Vec<Run>,
}

impl Reserved<'_> {
    /// The runs of the first `blocks` blocks, and those of the others.
    pub fn split(&self, blocks: u64) -> (Vec<Run>, Vec<Run>) {
        let (mut first, mut rest, mut left) = (Vec::new(), Vec::new(), blocks);
        for run in &self.runs {
            let n = run.len.min(left);
            left -= n;
            first.extend((n > 0).then_some(Run { start: run.start, len: n }));
            rest.extend((n < run.len).then_some(Run { start: run.start + n, len: run.len - n }));
        }
        (first, rest)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.runs.is_empty() {
            let mut alloc = self.alloc.lock();
            self.runs.iter().for_each(|r| alloc.cancel(*r));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arden_block::rng::Rng;

    #[test]
    fn agrees_with_a_plain_list_of_blocks() {
        let mut rng = Rng::new(3);
        let blocks = PAGE_BLOCKS + 1000;
        let mut a = Alloc::new(blocks);
        a.reserve = 0;
        let mut plain = vec![false; blocks as usize];
        let mut held: Vec<Run> = Vec::new();
        for step in 0..400 {
            if rng.one_in(2) && !held.is_empty() {
                let run = held.swap_remove(rng.below(held.len() as u64) as usize);
                a.free(step, run);
                let runs = a.take_pending(step);
                a.release(&runs);
                (run.start..run.start + run.len).for_each(|b| plain[b as usize] = false);
            } else if let Ok(runs) = a.reserve_data(1 + rng.below(300), 256) {
                for run in runs {
                    for b in run.start..run.start + run.len {
                        assert!(!std::mem::replace(&mut plain[b as usize], true), "given twice");
                    }
                    a.enter(run);
                    held.push(run);
                }
            }
            let used = plain.iter().filter(|b| **b).count() as u64;
            assert_eq!((a.data.count(), a.free_blocks()), (used, blocks - used));
        }
        assert_eq!(a.data.runs().map(|r| r.len).sum::<u64>(), a.data.count());
        let mut b = Alloc::new(blocks);
        for (page, bytes) in a.take_dirty() {
            if let Some(bytes) = bytes {
                b.load_page(page, &bytes).unwrap();
            }
        }
        assert!((0..blocks).all(|i| a.data.get(i) == b.data.get(i)));
    }

    #[test]
    fn empty_pieces_are_handed_out_once_and_never_the_last_room() {
        let mut a = Alloc::new(100);
        a.reserve = 0;
        let runs = a.reserve_data(40, 10).unwrap();
        a.note_empty(10, vec![1, 7, 8, 9]);
        a.rest();
        assert_eq!(a.take_empty(), None, "too soon");
        a.rest();
        assert_eq!(a.take_empty(), Some(Run { start: 70, len: 30 }), "neighbours, and nothing that lies in use");
        assert_eq!((a.free_blocks(), a.take_empty()), (60, None));
        a.end_empty(Run { start: 70, len: 30 });
        assert_eq!((a.free_blocks(), a.take_empty()), (60, None), "only once");
        // Data and a node in one piece: the last of them to go makes it empty.
        let node = Run { start: 10, len: 4 };
        a.enter(Run { start: 14, len: 6 });
        a.free(1, Run { start: 14, len: 6 });
        let freed = a.take_pending(1);
        a.release(&freed);
        let rests = |a: &mut Alloc| (a.rest(), a.rest());
        rests(&mut a);
        assert_eq!(a.take_empty(), None, "the node is there");
        a.cancel(node);
        a.rest();
        // Written and freed again meanwhile: it rests anew.
        let again = Run { start: 12, len: 2 };
        assert!(a.claim(again));
        a.cancel(again);
        a.rest();
        assert_eq!(a.take_empty(), None);
        a.rest();
        assert_eq!(a.take_empty(), Some(Run { start: 10, len: 10 }));
        a.end_empty(Run { start: 10, len: 10 });
        // With little room left a piece that is away for a moment could be missed.
        a.reserve_data(65, 100).unwrap();
        a.cancel(runs[3]);
        rests(&mut a);
        assert_eq!(a.take_empty(), None);
    }

    #[test]
    fn what_is_kept_back_on_a_full_device_is_the_trees() {
        let mut a = Alloc::new(640);
        a.reserve = 100;
        a.note_empty(10, Vec::new());
        let held = || (0..32).collect::<BTreeSet<u64>>();
        a.keep_within(held());
        let is_held = |runs: &[Run]| runs.iter().all(|r| r.start + r.len <= 320);
        assert!(is_held(&a.reserve_data(300, 256).unwrap()));
        a.left_to_checkpoint = 18;
        let beside = a.reserve_data(5, 256).unwrap();
        assert!(beside.iter().all(|r| r.start >= 320), "{beside:?}");
        beside.into_iter().for_each(|r| a.cancel(r));
        a.keep_within(held());
        assert!(a.reserve_node(4).unwrap() < 320);
        (a.left_to_checkpoint, a.hint) = (0, 0);
        assert!(is_held(&a.reserve_data(5, 256).unwrap()));
        // With all of the device held there is nothing beside it.
        a.keep_within((0..64).collect());
        a.left_to_checkpoint = 500;
        assert_eq!(a.reserve_data(5, 256), Err(VolError::Full));
    }

    #[test]
    fn freed_blocks_wait_until_the_freeing_is_durable() {
        let mut a = Alloc::new(200);
        a.reserve = 0;
        let runs = a.reserve_data(200, 256).unwrap();
        runs.iter().for_each(|r| a.enter(*r));
        a.free(7, Run { start: 10, len: 5 });
        assert_eq!(a.reserve_data(1, 1), Err(VolError::Full));
        assert!(a.take_pending(6).is_empty());
        let runs = a.take_pending(7);
        a.release(&runs);
        assert_eq!(a.reserve_data(5, 8).unwrap(), [Run { start: 10, len: 5 }]);
    }
}
