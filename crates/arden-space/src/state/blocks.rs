//! Blocks of a space of which something is known while the pool is open: that the log has a record of them, or that a copy
//! of them could not be read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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
