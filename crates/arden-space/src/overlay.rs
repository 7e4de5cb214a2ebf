//! Blocks of a space that are newer than what lies in their place: gathered small writes,
//! some of them already in the journal. Reads look here first.

use std::collections::BTreeMap;

use arden_block::{BLOCK_BYTES, SharedBuf};

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) version: u64,
    pub(crate) data: SharedBuf,
    /// Sequence and position of the journal batch that holds this version.
    pub(crate) logged: Option<(u64, u64)>,
    /// The oldest batch that must be kept for this block: it may hold an earlier version that
    /// was acknowledged, while this one is not logged yet.
    pub(crate) needed: Option<(u64, u64)>,
}

/// Keyed by block number within the space.
#[derive(Default)]
pub(crate) struct Overlay {
    entries: BTreeMap<u64, Entry>,
}

impl Overlay {
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.len() as u64 * BLOCK_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn put(&mut self, first_block: u64, data: &SharedBuf, version: u64) {
        for i in 0..data.len() as u64 / BLOCK_BYTES {
            let piece = data.slice((i * BLOCK_BYTES) as usize, BLOCK_BYTES as usize);
            let needed = self.entries.get(&(first_block + i)).and_then(|e| e.needed);
            self.entries.insert(first_block + i, Entry { version, data: piece, logged: None, needed });
        }
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Entry> {
        self.entries.get(&block)
    }

    /// The batch at `at` holds this version. Where a newer one came while the batch was written
    /// the batch is needed all the same: what it holds is acknowledged, the newer is not logged.
    pub(crate) fn set_logged(&mut self, block: u64, version: u64, at: (u64, u64)) {
        if let Some(e) = self.entries.get_mut(&block)
            && e.version >= version
        {
            e.needed = Some(at);
            if e.version == version {
                e.logged = Some(at);
            }
        }
    }

    /// Cheap clones of what lies in `first..end`.
    pub(crate) fn snapshot(&self, first: u64, end: u64) -> Vec<(u64, Entry)> {
        self.entries.range(first..end).map(|(&b, e)| (b, e.clone())).collect()
    }

    pub(crate) fn count(&self, first: u64, end: u64) -> usize {
        self.entries.range(first..end).count()
    }

    /// Removes what is not newer than `version`.
    pub(crate) fn remove_upto(&mut self, first: u64, end: u64, version: u64) {
        let gone: Vec<u64> =
            self.entries.range(first..end).filter(|(_, e)| e.version <= version).map(|(&b, _)| b).collect();
        for b in gone {
            self.entries.remove(&b);
        }
    }

    pub(crate) fn first_at_or_after(&self, block: u64) -> Option<u64> {
        self.entries.range(block..).next().map(|(&b, _)| b)
    }

    pub(crate) fn unlogged(&self) -> Vec<u64> {
        self.entries.iter().filter(|(_, e)| e.logged.is_none()).map(|(&b, _)| b).collect()
    }

    /// The oldest journal batch that is still needed.
    pub(crate) fn oldest_needed(&self) -> Option<(u64, u64)> {
        self.entries.values().filter_map(|e| e.needed).min()
    }
}

#[cfg(test)]
mod tests {
    use arden_block::Buf;

    use super::*;

    #[test]
    fn a_batch_is_needed_until_the_newer_version_of_its_block_is_logged_too() {
        let mut o = Overlay::default();
        let block = Buf::zeroed(BLOCK_BYTES as usize).share();
        o.put(3, &block, 1);
        // A newer version comes while the batch with the first is written.
        o.put(3, &block, 2);
        o.set_logged(3, 1, (7, 4096));
        assert_eq!((o.oldest_needed(), o.unlogged()), (Some((7, 4096)), vec![3]));
        o.set_logged(3, 2, (8, 12288));
        assert_eq!((o.oldest_needed(), o.unlogged()), (Some((8, 12288)), vec![]));
    }
}
