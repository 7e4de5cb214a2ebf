//! Which blocks of a stream lie where: mapping, unmapping, and counts of users for blocks that several streams share.
//! Refuses to know of bytes and of the device.

use std::collections::BTreeMap;

use crate::{
    disk::{
        error::VolResult,
        inode::{EXTENT_BLOCKS_MAX, Extent},
        keys::{self, Key},
        run::Run,
    },
    engine::view::View,
    files::{
        places::{extents, resident},
        txn::FileTxn,
    },
};

/// Blocks shared: a run, and how many users it has (at least two).
fn shared(view: &dyn View, run: Run) -> VolResult<Vec<(Run, u32)>> {
    let start = run.start.saturating_sub(EXTENT_BLOCKS_MAX - 1);
    let mut out = Vec::new();
    let end = keys::one(keys::REFS, run.start + run.len);
    view.scan(&keys::one(keys::REFS, start), &end, &mut |k, v| {
        if let Some((len, refs)) = decode_refs(v) {
            let r = Run { start: keys::first(k), len };
            if r.start + r.len > run.start {
                out.push((r, refs));
            }
        }
        true
    })?;
    Ok(out)
}

pub fn decode_refs(v: &[u8]) -> Option<(u64, u32)> {
    let (len, refs) = (v.get(..4)?, v.get(4..8)?);
    let u = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Some((u64::from(u(len)), u(refs)))
}

/// What is taken away in several operations: how much this one may take, and where each kind of keys begins that no one
/// before it has taken. What they took is looked at again otherwise, each time.
pub struct Removal {
    pub room: usize,
    from: BTreeMap<Key, Key>,
}

impl Removal {
    pub fn new(room: usize) -> Removal {
        Removal { room, from: BTreeMap::new() }
    }

    /// Nothing is put before what was taken with this prefix any more.
    pub fn from(&self, prefix: Key) -> Key {
        self.from.get(&prefix).cloned().unwrap_or(prefix)
    }

    pub fn goes_on_at(&mut self, prefix: Key, from: Key) {
        self.from.insert(prefix, from);
    }
}

impl FileTxn<'_> {
    pub fn put_refs(&mut self, run: Run, refs: u32) {
        if run.len > 0 && refs > 1 {
            let v = [(run.len as u32).to_le_bytes(), refs.to_le_bytes()].concat();
            self.put(keys::one(keys::REFS, run.start), v);
        }
    }

    /// One user more, or one fewer, of each block of `run`, written in epoch `birth`. What has no user any more is freed,
    /// or only snapshots hold it from now on.
    fn change_refs(&mut self, run: Run, birth: u32, more: bool) -> VolResult<()> {
        let end = run.start + run.len;
        let mut at = run.start;
        for (old, refs) in shared(self, run)? {
            self.delete(keys::one(keys::REFS, old.start));
            let (a, b) = (old.start.max(run.start), (old.start + old.len).min(end));
            self.put_refs(Run { start: old.start, len: a - old.start }, refs);
            self.put_refs(Run { start: b, len: old.start + old.len - b }, refs);
            self.change_single(Run { start: at, len: a - at }, birth, more);
            self.put_refs(Run { start: a, len: b - a }, if more { refs.saturating_add(1) } else { refs - 1 });
            at = b;
        }
        self.change_single(Run { start: at, len: end - at }, birth, more);
        Ok(())
    }

    /// Blocks that had one user.
    fn change_single(&mut self, run: Run, birth: u32, more: bool) {
        match (run.len, more) {
            (0, _) => {}
            (_, true) => self.put_refs(run, 2),
            (_, false) => self.bury(run, birth),
        }
    }

    pub fn share(&mut self, extent: &Extent) -> VolResult<()> {
        self.change_refs(extent.run(), extent.birth, true)
    }

    pub fn release(&mut self, extent: &Extent) -> VolResult<()> {
        self.change_refs(extent.run(), extent.birth, false)
    }

    /// Maps blocks that this operation enters: they are born in its epoch.
    pub fn map_fresh(&mut self, sid: u64, extent: &Extent) {
        let birth = self.core.epoch;
        self.map(sid, &Extent { birth, ..extent.clone() });
    }

    pub fn map(&mut self, sid: u64, extent: &Extent) {
        self.put(keys::two(keys::EXTENT, sid, extent.file_block), extent.encode());
    }

    /// Takes away what lies in `from..to`, in the tree and on the device. How many blocks held something.
    pub fn unmap(&mut self, sid: u64, from: u64, to: u64) -> VolResult<u64> {
        if from >= to {
            return Ok(0);
        }
        let in_tree = resident(self, sid, from, to)?;
        for block in &in_tree {
            self.delete(keys::two(keys::BLOCK, sid, *block));
        }
        self.changes.counters.resident -= in_tree.len() as i64;
        let removed = self.unmap_device(sid, from, to)?;
        let both = in_tree.iter().filter(|b| removed.iter().any(|(f, t)| (f..t).contains(b))).count();
        Ok(removed.iter().map(|(f, t)| t - f).sum::<u64>() + (in_tree.len() - both) as u64)
    }

    /// The same for what lies on the device alone; the parts of the file that did.
    pub fn unmap_device(&mut self, sid: u64, from: u64, to: u64) -> VolResult<Vec<(u64, u64)>> {
        let mut removed = Vec::new();
        for e in extents(self, sid, from, to)? {
            self.delete(keys::two(keys::EXTENT, sid, e.file_block));
            let (a, b) = (e.file_block.max(from), e.end().min(to));
            if e.file_block < a {
                self.map(sid, &e.part(e.file_block, a));
            }
            if b < e.end() {
                self.map(sid, &e.part(b, e.end()));
            }
            self.release(&e.part(a, b))?;
            removed.push((a, b));
        }
        Ok(removed)
    }

    /// Takes extents and blocks of a stream away, as many as there is room; true when none is left.
    pub fn unmap_some(&mut self, sid: u64, removal: &mut Removal) -> VolResult<bool> {
        if sid == 0 {
            return Ok(true);
        }
        for kind in [keys::BLOCK, keys::EXTENT] {
            let (prefix, end) = (keys::one(kind, sid), keys::end_of(kind, sid));
            let found = self.collect(&removal.from(prefix.clone()), &end, removal.room + 1)?;
            let n = found.len().min(removal.room);
            for (key, value) in &found[..n] {
                self.delete(key.clone());
                if kind == keys::BLOCK {
                    self.changes.counters.resident -= 1;
                } else {
                    self.release(&Extent::decode(keys::second(key), value)?)?;
                }
            }
            removal.room -= n;
            removal.goes_on_at(prefix, found.get(n).map_or(end, |(key, _)| key.clone()));
            if found.len() > n {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::volume;

    #[test]
    fn each_step_of_a_removal_begins_where_the_one_before_ended() {
        let (_, vol) = volume(8 << 20);
        let files = &vol.files;
        let mut t = files.begin();
        let sid = t.new_id();
        let extent = |block: u64| Extent { file_block: block, dev_block: 1000 + block, birth: 1, sums: vec![0] };
        (0..10).for_each(|block| t.map(sid, &extent(block)));
        let mut removal = Removal::new(4);
        assert!(!t.unmap_some(sid, &mut removal).unwrap() && removal.room == 0);
        // Whatever lies before is not looked at.
        t.map(sid, &extent(0));
        removal.room = 4;
        assert!(!t.unmap_some(sid, &mut removal).unwrap());
        removal.room = 4;
        assert!(t.unmap_some(sid, &mut removal).unwrap() && removal.room == 2);
        let left = extents(&t, sid, 0, 100).unwrap();
        assert_eq!(left.iter().map(|e| e.file_block).collect::<Vec<_>>(), [0]);
    }
}
