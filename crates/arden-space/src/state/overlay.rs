//! Blocks of a space that are newer than what lies in their place: gathered small writes,
//! some of them already in the journal. Reads look here first.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use arden_block::{BLOCK_BYTES, SharedBuf};

use crate::state::views::{Gate, SpaceViews};

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) version: u64,
    pub(crate) data: SharedBuf,
    /// The newest version of the block that the journal holds, where that is not in its place
    /// yet. It may be an earlier one, which was acknowledged, while this one is not logged.
    logged: Option<Logged>,
}

/// A version of a block, and sequence and position of the batch that holds it.
#[derive(Clone, Copy)]
struct Logged {
    version: u64,
    at: (u64, u64),
    /// A later batch holds an older version, for the parity of a patch. A replay that begins
    /// between the two would take that for the newest: this one goes to the log once more.
    overtaken: bool,
}

impl Entry {
    /// The journal holds this version, and behind it no older one.
    pub(crate) fn is_logged(&self) -> bool {
        self.logged.is_some_and(|l| l.version == self.version && !l.overtaken)
    }

    /// The batch that is needed for this block.
    pub(crate) fn logged_at(&self) -> Option<(u64, u64)> {
        self.logged.map(|l| l.at)
    }
}

/// Keyed by block number within the space.
#[derive(Default)]
pub(crate) struct Overlay {
    entries: BTreeMap<u64, Entry>,
    /// Entries that hold back a batch of the log.
    logged: usize,
    told: Told,
}

/// Tells readers on other threads of which groups something is here.
#[derive(Default)]
struct Told {
    views: Option<Arc<SpaceViews>>,
    /// The group of the last block.
    last: Option<(usize, Arc<Gate>)>,
}

impl Told {
    fn gate(&mut self, block: u64) -> Option<&Gate> {
        let views = self.views.as_ref()?;
        let group = (block / (views.shape.group_bytes / BLOCK_BYTES)) as usize;
        if self.last.as_ref().is_none_or(|(g, _)| *g != group) {
            self.last = Some((group, views.gate(group)));
        }
        self.last.as_ref().map(|(_, gate)| &**gate)
    }

    fn comes(&mut self, block: u64) {
        if let Some(gate) = self.gate(block) {
            gate.add_newer();
        }
    }

    fn goes(&mut self, block: u64) {
        if let Some(gate) = self.gate(block) {
            gate.remove_newer(1);
        }
    }
}

impl Overlay {
    pub(crate) fn of(views: &Arc<SpaceViews>) -> Overlay {
        Overlay { told: Told { views: Some(views.clone()), last: None }, ..Overlay::default() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.entries.len() as u64 * BLOCK_BYTES
    }

    /// What has to get to its place before the log can let go of it.
    pub(crate) fn logged_bytes(&self) -> u64 {
        self.logged as u64 * BLOCK_BYTES
    }

    /// `version` is the newest of the pool.
    pub(crate) fn check(&self, version: u64) -> Result<(), String> {
        let logged = self.entries.values().filter(|e| e.logged.is_some()).count();
        if logged != self.logged {
            return Err(format!("{} blocks count as logged and {logged} are", self.logged));
        }
        let newest = |e: &Entry| e.logged.map_or(e.version, |l| l.version.max(e.version));
        match self.entries.iter().find(|(_, e)| newest(e) > version || newest(e) > e.version) {
            Some((b, e)) => Err(format!("block {b} has version {}, logged {}, of {version}", e.version, newest(e))),
            None => Ok(()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn put(&mut self, first_block: u64, data: &SharedBuf, version: u64) {
        for i in 0..data.len() as u64 / BLOCK_BYTES {
            let piece = data.slice((i * BLOCK_BYTES) as usize, BLOCK_BYTES as usize);
            let before = self.entries.get(&(first_block + i));
            if before.is_none() {
                self.told.comes(first_block + i);
            }
            let logged = before.and_then(|e| e.logged);
            self.entries.insert(first_block + i, Entry { version, data: piece, logged });
        }
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Entry> {
        self.entries.get(&block)
    }

    /// The batch at `at` holds this version. Where a newer one came while the batch was written
    /// the batch is needed all the same: what it holds is acknowledged, the newer is not logged.
    pub(crate) fn set_logged(&mut self, block: u64, version: u64, at: (u64, u64)) {
        let Some(e) = self.entries.get_mut(&block).filter(|e| e.version >= version) else { return };
        match &mut e.logged {
            // A patch logs what it covers, though newer may have come to the log before.
            Some(newer) if newer.version > version => newer.overtaken |= newer.at != at,
            logged => {
                self.logged += usize::from(logged.is_none());
                *logged = Some(Logged { version, at, overtaken: false });
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

    /// What is not newer than `version` is in its place: it goes, and what is newer needs no
    /// batch that holds it.
    pub(crate) fn remove_upto(&mut self, first: u64, end: u64, version: u64) {
        let mut gone = Vec::new();
        for (&b, e) in self.entries.range_mut(first..end) {
            if e.version <= version {
                self.logged -= usize::from(e.logged.is_some());
                gone.push(b);
            } else if e.logged.is_some_and(|l| l.version <= version) {
                self.logged -= 1;
                e.logged = None;
            }
        }
        for b in gone {
            self.entries.remove(&b);
            self.told.goes(b);
        }
    }

    pub(crate) fn first_at_or_after(&self, block: u64) -> Option<u64> {
        self.entries.range(block..).next().map(|(&b, _)| b)
    }

    pub(crate) fn blocks_in(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        self.entries.range(range).map(|(&b, _)| b)
    }

    pub(crate) fn unlogged(&self) -> Vec<u64> {
        self.entries.iter().filter(|(_, e)| !e.is_logged()).map(|(&b, _)| b).collect()
    }

    /// Blocks whose newest version is still to be logged while an older one is needed in the log, and the batch of that.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = (u64, (u64, u64))> {
        self.entries.iter().filter(|(_, e)| !e.is_logged()).filter_map(|(&b, e)| Some((b, e.logged_at()?)))
    }

    /// The oldest journal batch that is still needed.
    pub(crate) fn oldest_needed(&self) -> Option<(u64, u64)> {
        self.entries.values().filter_map(|e| e.logged).map(|l| l.at).min()
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
        assert_eq!(o.logged_bytes(), BLOCK_BYTES);
        o.remove_upto(3, 4, 2);
        assert_eq!(o.logged_bytes(), 0);
    }

    #[test]
    fn a_version_goes_to_the_log_once_more_when_an_older_one_came_behind_it() {
        let mut o = Overlay::default();
        let block = Buf::zeroed(BLOCK_BYTES as usize).share();
        o.put(3, &block, 2);
        o.set_logged(3, 2, (7, 4096));
        // In one batch both leave the log as one.
        o.set_logged(3, 1, (7, 4096));
        assert!(o.unlogged().is_empty());
        o.set_logged(3, 1, (8, 12288));
        assert_eq!((o.oldest_needed(), o.unlogged()), (Some((7, 4096)), vec![3]));
        o.set_logged(3, 2, (9, 20480));
        assert_eq!((o.oldest_needed(), o.unlogged()), (Some((9, 20480)), vec![]));
    }

    #[test]
    fn a_block_put_in_its_place_holds_no_batch_back_whatever_came_meanwhile() {
        let mut o = Overlay::default();
        let block = Buf::zeroed(BLOCK_BYTES as usize).share();
        o.put(3, &block, 1);
        o.set_logged(3, 1, (7, 4096));
        o.put(3, &block, 2);
        assert_eq!(o.oldest_needed(), Some((7, 4096)));
        o.remove_upto(3, 4, 1);
        assert_eq!((o.oldest_needed(), o.unlogged(), o.logged_bytes()), (None, vec![3], 0));
    }
}
