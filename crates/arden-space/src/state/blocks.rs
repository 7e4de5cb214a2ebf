//! Blocks of a space of which something is known while the pool is open: that the log has a record of them, that a copy
//! of them could not be read, or that their parity may not fit.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Rows that are remembered: 20 to 30 bytes each. Of more, a scrub tells.
const ROWS_MAX: usize = 64 << 10;
/// How often a row is told of that stays wrong: what nothing vouches for waits for a scrub.
const TELLINGS_MAX: u8 = 3;

/// Rows, each by the number of its first data block in the space.
type Rows = RefCell<BTreeSet<u64>>;

/// Blocks with a record in the live part of the log: they may not be written past it.
#[derive(Default)]
pub(crate) struct LoggedBlocks(RefCell<BTreeMap<u64, u64>>);

impl LoggedBlocks {
    /// Batch `seq` has a record of the block.
    pub(crate) fn note(&self, block: u64, seq: u64) {
        self.0.borrow_mut().insert(block, seq);
    }

    pub(crate) fn any_in(&self, blocks: Range<u64>) -> bool {
        self.0.borrow().range(blocks).next().is_some()
    }

    pub(crate) fn within(&self, blocks: Range<u64>) -> Vec<u64> {
        self.0.borrow().range(blocks).map(|(&b, _)| b).collect()
    }

    /// The log begins at batch `start`.
    pub(crate) fn log_begins_at(&self, start: u64) {
        self.0.borrow_mut().retain(|_, seq| *seq >= start);
    }

    /// There is a new log, and nothing in it.
    pub(crate) fn log_is_new(&self) {
        self.0.borrow_mut().clear();
    }

    /// Nothing of these blocks is wanted any more.
    pub(crate) fn forget(&self, blocks: Range<u64>) {
        self.0.borrow_mut().retain(|b, _| !blocks.contains(b));
    }
}

/// Mirrors whose user verifies: blocks near which a copy could not be read.
#[derive(Default)]
pub(crate) struct UnreadBlocks(RefCell<BTreeSet<u64>>);

impl UnreadBlocks {
    /// At most `max` are kept.
    pub(crate) fn note(&self, blocks: Range<u64>, max: usize) {
        let mut unread = self.0.borrow_mut();
        let room = max.saturating_sub(unread.len());
        unread.extend(blocks.take(room));
    }

    pub(crate) fn within(&self, blocks: Range<u64>) -> Vec<u64> {
        self.0.borrow().range(blocks).copied().collect()
    }

    pub(crate) fn forget(&self, blocks: &[u64]) {
        let mut unread = self.0.borrow_mut();
        blocks.iter().for_each(|b| _ = unread.remove(b));
    }
}

/// Rows of parity stripes that nobody has looked at as a whole since their parity followed a difference. What was overwritten may have been
/// noise of a disk that lies, and then the parity is wrong without anybody having read anything wrong.
#[derive(Default)]
pub(crate) struct DoubtedRows {
    doubted: Rows,
    wrong: Rows,
    /// Told of last: looked at again when the next are asked for.
    told: Rows,
    /// How often rows were told of that have not been seen to fit since, however often they were changed meanwhile.
    tellings: RefCell<BTreeMap<u64, u8>>,
    forgotten: Cell<u64>,
}

impl DoubtedRows {
    /// The parity of these rows follows a difference.
    pub(crate) fn note(&self, rows: impl Iterator<Item = u64>) {
        let mut doubted = self.doubted.borrow_mut();
        for row in rows {
            if doubted.len() < ROWS_MAX || doubted.contains(&row) {
                doubted.insert(row);
            } else {
                self.forget(1);
            }
        }
    }

    pub(crate) fn is_doubted(&self, row: u64) -> bool {
        self.doubted.borrow().contains(&row)
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.doubted.borrow().is_empty()
    }

    /// There will soon be no room for more.
    pub(crate) fn are_many(&self) -> bool {
        self.doubted.borrow().len() > ROWS_MAX / 2
    }

    fn forget(&self, rows: u64) {
        self.forgotten.set(self.forgotten.get() + rows);
    }

    /// Rows of which there was no room to remember them, or that stayed wrong, since that was last asked.
    pub(crate) fn take_forgotten(&self) -> u64 {
        self.forgotten.take()
    }

    /// The next rows to look at, of a round that goes on at `from`. None: the round is at its end.
    pub(crate) fn next(&self, from: &mut u64, max: usize) -> Vec<u64> {
        let rows: Vec<u64> = self.doubted.borrow().range(*from..).take(max).copied().collect();
        *from = rows.last().map_or(0, |row| row + 1);
        rows
    }

    /// Its parity fits, or nothing is there any more.
    pub(crate) fn fits(&self, row: u64) {
        self.doubted.borrow_mut().remove(&row);
        self.wrong.borrow_mut().remove(&row);
        self.tellings.borrow_mut().remove(&row);
    }

    /// A scrub sees to these rows: they may be told of as often as any others.
    pub(crate) fn begin_anew(&self, rows: Range<u64>) {
        let mut tellings = self.tellings.borrow_mut();
        if tellings.range(rows.clone()).next().is_some() {
            tellings.retain(|row, _| !rows.contains(row));
        }
    }

    pub(crate) fn is_wrong(&self, row: u64) {
        if !self.doubted.borrow_mut().remove(&row) {
            return;
        }
        if let Some(tellings) = self.tellings.borrow_mut().get_mut(&row).filter(|n| **n >= TELLINGS_MAX) {
            // Once for each.
            self.forget(u64::from(*tellings == TELLINGS_MAX));
            *tellings = TELLINGS_MAX + 1;
            return;
        }
        let mut wrong = self.wrong.borrow_mut();
        if wrong.len() < ROWS_MAX {
            wrong.insert(row);
        } else {
            self.forget(1);
        }
    }

    /// Those that were told of have been mended by now, or could not be.
    pub(crate) fn look_again(&self) {
        self.doubted.borrow_mut().append(&mut self.told.borrow_mut());
    }

    /// Those found wrong.
    pub(crate) fn take_wrong(&self) -> Vec<u64> {
        let wrong = self.wrong.take();
        let mut tellings = self.tellings.borrow_mut();
        if tellings.len() + wrong.len() > ROWS_MAX {
            tellings.retain(|_, n| *n < TELLINGS_MAX);
        }
        for row in &wrong {
            if tellings.len() < ROWS_MAX || tellings.contains_key(row) {
                *tellings.entry(*row).or_insert(0) += 1;
            }
        }
        self.told.borrow_mut().extend(&wrong);
        wrong.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    #[test]
    fn a_row_is_looked_at_once_a_round_and_told_of_some_times() {
        let rows = DoubtedRows::default();
        rows.note([5, 9, 7].into_iter());
        let mut from = 0;
        let mut next = || rows.next(&mut from, 2);
        assert_eq!((next(), next(), next()), (vec![5, 7], vec![9], vec![]));
        rows.fits(7);
        assert_eq!(next(), [5, 9]);
        rows.fits(9);
        for _ in 0..TELLINGS_MAX {
            assert!(!rows.is_empty());
            rows.is_wrong(5);
            assert_eq!((rows.take_wrong(), rows.take_wrong()), (vec![5], vec![]));
            assert!(rows.is_empty(), "nobody looks while it is being mended");
            rows.look_again();
        }
        // The last look tells whether it was mended at last.
        assert!(!rows.is_empty());
        rows.is_wrong(5);
        assert_eq!((rows.take_wrong(), rows.take_forgotten()), (vec![], 1));
    }

    #[test]
    fn a_row_that_is_changed_again_and_again_while_it_stays_wrong_is_told_of_no_more_often() {
        let rows = DoubtedRows::default();
        let mut told = 0;
        for _ in 0..10 {
            rows.note(iter::once(5));
            rows.is_wrong(5);
            rows.note(iter::once(5));
            told += rows.take_wrong().len();
            rows.note(iter::once(5));
            rows.look_again();
        }
        assert_eq!((told, rows.take_forgotten()), (usize::from(TELLINGS_MAX), 1));
        // Once it fits, or a scrub has been there, it counts as any other.
        rows.begin_anew(4..6);
        rows.note(iter::once(5));
        rows.is_wrong(5);
        assert_eq!(rows.take_wrong(), [5]);
        rows.fits(5);
        rows.note(iter::once(5));
        rows.is_wrong(5);
        assert_eq!(rows.take_wrong(), [5]);
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let rows = DoubtedRows::default();
        rows.note(0..ROWS_MAX as u64 + 10);
        rows.note(0..1);
        assert_eq!((rows.take_forgotten(), rows.take_forgotten()), (10, 0));
        assert_eq!(rows.next(&mut 0, usize::MAX).len(), ROWS_MAX);
        assert!(rows.are_many());
    }
}
