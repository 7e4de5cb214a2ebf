//! Which blocks of a stream lie where: mapping, unmapping, and counts of users for blocks that several streams share.
//! Refuses to know of bytes and of the device.

use std::collections::BTreeMap;

use crate::{
    disk::{
        error::{VolError, VolResult},
        inode::{EXTENT_BLOCKS_MAX, Extent},
        keys::{self, Key},
        run::Run,
    },
    engine::{
        record::{COUNTERS_BYTES, RUN_BYTES, delete_bytes_of, put_bytes_of},
        view::View,
    },
    files::txn::FileTxn,
};

/// Bytes of keys in `E` and `B`, and of their change when they go.
const KEY_BYTES: usize = 17;
const GONE_BYTES: usize = delete_bytes_of(KEY_BYTES);
/// What a record has for a run in `R`, and for one of `D`, which is more than for one that is free.
const REFS_BYTES: usize = put_bytes_of(9, 8);
const DEAD_BYTES: usize = put_bytes_of(KEY_BYTES, 8);

/// What a record has for an extent of so many blocks that is mapped.
pub fn mapped_bytes(blocks: u64) -> usize {
    put_bytes_of(KEY_BYTES, 12 + 8 * blocks as usize)
}

/// The same where its blocks are entered, too: their runs may be two.
pub fn entered_bytes(blocks: u64) -> usize {
    mapped_bytes(blocks) + 2 * RUN_BYTES
}

/// What a record has at most for blocks of an extent that get a user more: each may have had users of its own, and the runs at
/// both ends may go on beyond them.
pub fn shared_bytes_max(blocks: u64) -> usize {
    (blocks as usize + 2) * REFS_BYTES
}

/// The same for blocks that have a user less: what has none any more may be held by a snapshot.
fn released_bytes_max(blocks: u64) -> usize {
    blocks as usize * DEAD_BYTES + 2 * REFS_BYTES
}

/// What lies in some blocks of a stream and goes together: the part of an extent, with the blocks in the tree that take its
/// place, or a block in the tree alone.
pub struct Piece {
    pub from: u64,
    pub to: u64,
    /// The first block of the whole extent, and the one behind it.
    extent: Option<(u64, u64)>,
    in_tree: Vec<u64>,
}

impl Piece {
    /// What a record has at most for taking it away.
    pub fn bytes_max(&self) -> usize {
        let in_tree = if self.in_tree.is_empty() { 0 } else { self.in_tree.len() * GONE_BYTES + COUNTERS_BYTES };
        let Some((start, end)) = self.extent else { return in_tree };
        let left = [self.from - start, end - self.to].into_iter().filter(|n| *n > 0).map(mapped_bytes).sum::<usize>();
        in_tree + GONE_BYTES + left + released_bytes_max(self.to - self.from)
    }

    /// What lies before a block of it, and the rest as it is when that was taken away.
    pub fn split(self, at: u64) -> (Piece, Piece) {
        let (before, behind) = self.in_tree.into_iter().partition(|block| *block < at);
        let rest = self.extent.map(|(_, end)| (at, end));
        (
            Piece { from: self.from, to: at, extent: self.extent, in_tree: before },
            Piece { from: at, to: self.to, extent: rest, in_tree: behind },
        )
    }

    pub fn is_extent(&self) -> bool {
        self.extent.is_some()
    }
}

/// What lies in `from..to` of a stream, ascending. Where it is more than `max` extents, or as many blocks in the tree, only
/// so much from the beginning on, and the block up to which that is.
pub fn pieces(view: &dyn View, sid: u64, from: u64, to: u64, max: usize) -> VolResult<(Vec<Piece>, u64)> {
    let (mut until, mut found, mut result) = (to, Vec::new(), Ok(()));
    let start = from.saturating_sub(EXTENT_BLOCKS_MAX - 1);
    view.scan(&keys::two(keys::EXTENT, sid, start), &keys::two(keys::EXTENT, sid, to), &mut |k, v| {
        match Extent::blocks_of(keys::second(k), v) {
            Ok((_, end)) if end <= from => {}
            Ok((start, _)) if found.len() == max => until = start.max(from),
            Ok(extent) => found.push(extent),
            Err(e) => result = Err(e),
        }
        result.is_ok() && until == to
    })?;
    result?;
    let mut in_tree = Vec::new();
    view.scan(&keys::two(keys::BLOCK, sid, from), &keys::two(keys::BLOCK, sid, until), &mut |k, _| {
        let is_one_more = in_tree.len() == max;
        match is_one_more {
            true => until = keys::second(k),
            false => in_tree.push(keys::second(k)),
        }
        !is_one_more
    })?;
    let mut out: Vec<Piece> = Vec::with_capacity(found.len());
    let mut in_tree = in_tree.into_iter().peekable();
    let alone = |block| Piece { from: block, to: block + 1, extent: None, in_tree: vec![block] };
    for (start, end) in found {
        let (a, b) = (start.max(from), end.min(until));
        if a >= b {
            continue;
        }
        out.extend(std::iter::from_fn(|| in_tree.next_if(|block| *block < a)).map(alone));
        let over = std::iter::from_fn(|| in_tree.next_if(|block| *block < b)).collect();
        out.push(Piece { from: a, to: b, extent: Some((start, end)), in_tree: over });
    }
    out.extend(in_tree.map(alone));
    Ok((out, until))
}

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
        let before = self.changes.bytes();
        self.change_refs(extent.run(), extent.birth, true)?;
        debug_assert!(self.changes.bytes() <= before + shared_bytes_max(extent.len()));
        Ok(())
    }

    fn release(&mut self, extent: &Extent) -> VolResult<()> {
        let before = self.changes.bytes();
        self.change_refs(extent.run(), extent.birth, false)?;
        debug_assert!(self.changes.bytes() <= before + released_bytes_max(extent.len()));
        Ok(())
    }

    /// Maps blocks that this operation enters: they are born in its epoch.
    pub fn map_fresh(&mut self, sid: u64, extent: &Extent) {
        let birth = self.core.epoch;
        self.map(sid, &Extent { birth, ..extent.clone() });
    }

    pub fn map(&mut self, sid: u64, extent: &Extent) {
        self.put(keys::two(keys::EXTENT, sid, extent.file_block), extent.encode());
    }

    /// Takes away what lies in `from..to`, in the tree and on the device, and answers how many blocks held something. None: the
    /// record has no room for that and `beside_bytes` more.
    pub fn unmap(&mut self, sid: u64, from: u64, to: u64, beside_bytes: usize) -> VolResult<Option<u64>> {
        let (found, _) = pieces(self, sid, from, to, usize::MAX)?;
        if !self.has_room(found.iter().map(Piece::bytes_max).sum::<usize>() + beside_bytes) {
            return Ok(None);
        }
        found.iter().try_for_each(|piece| self.take_away(sid, piece))?;
        Ok(Some(found.iter().map(|piece| piece.to - piece.from).sum()))
    }

    pub fn take_away(&mut self, sid: u64, piece: &Piece) -> VolResult<()> {
        let before = self.changes.bytes();
        for block in &piece.in_tree {
            self.delete(keys::two(keys::BLOCK, sid, *block));
        }
        self.changes.counters.resident -= piece.in_tree.len() as i64;
        if let Some((start, _)) = piece.extent {
            let key = keys::two(keys::EXTENT, sid, start);
            let value = self.get(&key)?.ok_or(VolError::Corrupt("an extent is missing"))?;
            let e = Extent::decode(start, &value)?;
            self.delete(key);
            if start < piece.from {
                self.map(sid, &e.part(start, piece.from));
            }
            if piece.to < e.end() {
                self.map(sid, &e.part(piece.to, e.end()));
            }
            self.release(&e.part(piece.from, piece.to))?;
        }
        debug_assert!(self.changes.bytes() <= before + piece.bytes_max(), "more than a record was to have for it");
        Ok(())
    }

    /// Takes extents and blocks of a stream away, as many as there is room; true when none is left.
    pub fn unmap_some(&mut self, sid: u64, removal: &mut Removal) -> VolResult<bool> {
        if sid == 0 {
            return Ok(true);
        }
        for kind in [keys::BLOCK, keys::EXTENT] {
            let (prefix, end) = (keys::one(kind, sid), keys::end_of(kind, sid));
            let found = self.collect(&removal.from(prefix.clone()), &end, removal.room + 1)?;
            let mut n = 0;
            for (key, value) in found.iter().take(removal.room) {
                let extent = if kind == keys::EXTENT { Some(Extent::decode(keys::second(key), value)?) } else { None };
                let released = extent.as_ref().map_or(COUNTERS_BYTES, |e| released_bytes_max(e.len()));
                if !self.has_room(GONE_BYTES + released) {
                    break;
                }
                self.delete(key.clone());
                match extent {
                    Some(e) => self.release(&e)?,
                    None => self.changes.counters.resident -= 1,
                }
                n += 1;
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
    use crate::{files::places::extents, testing::volume};

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
