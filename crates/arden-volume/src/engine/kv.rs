//! The state of the volume as ordered keys and values: the tree of the last checkpoint, under the changes since, in
//! memory. Owns the transaction, the only way to change anything: it is one record of the journal, all or nothing.

use std::{
    collections::{BTreeMap, btree_map},
    iter::Peekable,
    ops::Bound::{Excluded, Included},
    sync::Arc,
};

use arden_wire::cursor::{Put, Reader};
use parking_lot::RwLockWriteGuard;

use crate::{
    disk::{
        error::{VolError, VolResult},
        inode::Extent,
        keys,
        superblock::Counters,
        treenode::{CAPACITY, ENTRY_MAX},
    },
    engine::{
        alloc::Run,
        tree::{Key, Layer, Root, Tree, Val},
        volume::Volume,
    },
    features::{quota::Counting, snapshot::Snapshot, usn},
};

/// A value in pieces is cut at this many bytes.
const PIECE_BYTES: usize = 4096;
/// What a key and its value cost in memory besides their bytes.
const OVERHEAD: usize = 96;

#[derive(Default)]
pub struct Core {
    pub overlay: Layer,
    pub overlay_bytes: usize,
    /// What a checkpoint is writing.
    pub frozen: Option<Arc<Layer>>,
    pub root: Root,
    pub next_id: u64,
    pub seq: u64,
    pub counters: Counters,
    /// Streams with blocks in the tree that should get a place, and the files that they are of.
    pub dirty: BTreeMap<u64, u64>,
    /// Counts snapshots: what is written now is in none of those that there are.
    pub epoch: u32,
    /// Oldest first.
    pub snapshots: Vec<Arc<Snapshot>>,
    pub quotas: Counting,
    /// Changes are recorded.
    pub journal: bool,
}

/// A state for reading, by whoever holds it.
pub struct CoreView<'a> {
    pub core: &'a Core,
    pub tree: &'a Tree,
}

impl View for CoreView<'_> {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>> {
        self.core.get(self.tree, key)
    }
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        self.core.scan(self.tree, start, end, take)
    }
}

impl Core {
    pub fn get(&self, tree: &Tree, key: &[u8]) -> VolResult<Option<Val>> {
        if let Some(v) = self.overlay.get(key) {
            return Ok(v.clone());
        }
        if let Some(v) = self.frozen.as_ref().and_then(|f| f.get(key)) {
            return Ok(v.clone());
        }
        tree.get(&self.root, key)
    }

    pub fn scan(&self, tree: &Tree, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        let layers: Vec<&Layer> = std::iter::once(&self.overlay).chain(self.frozen.as_deref()).collect();
        scan(&layers, tree, &self.root, start, end, take)
    }

    fn set(&mut self, key: Key, value: Option<Val>) {
        let size = key.len() + value.as_ref().map_or(0, |v| v.len()) + OVERHEAD;
        let key_len = key.len();
        let old = self.overlay.insert(key, value);
        let old = old.map_or(0, |v| key_len + v.map_or(0, |v| v.len()) + OVERHEAD);
        self.overlay_bytes = (self.overlay_bytes + size).saturating_sub(old);
    }
}

/// Takes an entry; false ends the scan.
pub type Take<'a> = dyn FnMut(&[u8], &[u8]) -> bool + 'a;

struct Merged<'a> {
    layers: Vec<Peekable<btree_map::Range<'a, Key, Option<Val>>>>,
}

impl<'a> Merged<'a> {
    fn peek_key(&mut self) -> Option<&'a Key> {
        self.layers.iter_mut().filter_map(|l| l.peek().map(|(k, _)| *k)).min()
    }

    /// The topmost layer's entry with the lowest key.
    fn next(&mut self) -> Option<(&'a Key, &'a Option<Val>)> {
        let key = self.peek_key()?;
        let mut found = None;
        for l in &mut self.layers {
            if let Some(entry) = l.next_if(|(k, _)| *k == key) {
                found = found.or(Some(entry));
            }
        }
        found
    }
}

/// Entries of all layers, the first one on top, over the tree.
fn scan(layers: &[&Layer], tree: &Tree, root: &Root, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
    if start >= end {
        return Ok(());
    }
    let bounds = (Included(start), Excluded(end));
    let mut merged = Merged { layers: layers.iter().map(|l| l.range::<[u8], _>(bounds).peekable()).collect() };
    let mut go_on = true;
    tree.scan(root, start, end, &mut |key, value| {
        while merged.peek_key().is_some_and(|k| k.as_slice() < key) {
            if let Some((k, Some(v))) = merged.next()
                && !take(k, v)
            {
                go_on = false;
                return false;
            }
        }
        go_on = if merged.peek_key().is_some_and(|k| k.as_slice() == key) {
            match merged.next() {
                Some((k, Some(v))) => take(k, v),
                _ => true,
            }
        } else {
            take(key, value)
        };
        go_on
    })?;
    while go_on {
        match merged.next() {
            Some((k, Some(v))) => go_on = take(k, v),
            Some((_, None)) => {}
            None => break,
        }
    }
    Ok(())
}

/// Reading, as it is the same in and outside of a transaction.
pub trait View {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>>;
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()>;

    fn collect(&self, start: &[u8], end: &[u8], max: usize) -> VolResult<Vec<(Key, Val)>> {
        let mut out = Vec::new();
        self.scan(start, end, &mut |k, v| {
            out.push((k.to_vec(), v.into()));
            out.len() < max
        })?;
        Ok(out)
    }

    /// A value in pieces; None when there is none.
    fn pieces(&self, kind: u8, n: u64) -> VolResult<Option<Vec<u8>>> {
        let mut out: Option<Vec<u8>> = None;
        self.scan(&keys::one(kind, n), &keys::end_of(kind, n), &mut |_, v| {
            out.get_or_insert_default().extend_from_slice(v);
            true
        })?;
        Ok(out)
    }
}

/// The present state, for reading.
pub struct Reading<'a> {
    pub tree: &'a Tree,
    pub core: parking_lot::RwLockReadGuard<'a, Core>,
}

impl View for Reading<'_> {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>> {
        self.core.get(self.tree, key)
    }
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        self.core.scan(self.tree, start, end, take)
    }
}

/// Changes that take effect together, or not at all when it is dropped.
pub struct Txn<'a> {
    pub vol: &'a Volume,
    pub core: RwLockWriteGuard<'a, Core>,
    map: Layer,
    /// Values that differ from what they were by a few bytes: where, and how many.
    patches: BTreeMap<Key, (usize, usize)>,
    enters: Vec<Run>,
    frees: Vec<Run>,
    pub counters: Counters,
    /// Data was written to the device that has to be durable first.
    pub data: bool,
    new_ids: bool,
    new_epoch: bool,
    mended: bool,
    charged: bool,
    /// For the change journal: reasons that add up, and files whose reasons are told.
    pub reasons: BTreeMap<u64, u32>,
    pub forgets: Vec<u64>,
    /// No quota stands against it.
    pub unlimited: bool,
    /// Streams that have, or no longer have, blocks to be given a place.
    pub dirty: Vec<(u64, Option<u64>)>,
}

impl View for Txn<'_> {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>> {
        match self.map.get(key) {
            Some(v) => Ok(v.clone()),
            None => self.core.get(&self.vol.tree, key),
        }
    }
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        let mut layers: Vec<&Layer> = vec![&self.map, &self.core.overlay];
        layers.extend(self.core.frozen.as_deref());
        scan(&layers, &self.vol.tree, &self.core.root, start, end, take)
    }
}

const OP_PUT: u8 = 1;
const OP_DELETE: u8 = 2;
const OP_PATCH: u8 = 3;
const OP_ENTER: u8 = 4;
const OP_FREE: u8 = 5;
const OP_COUNTERS: u8 = 6;
const OP_DIRTY: u8 = 7;
const OP_NEXT_ID: u8 = 8;
const OP_EPOCH: u8 = 9;

impl<'a> Txn<'a> {
    pub fn new(vol: &'a Volume, core: RwLockWriteGuard<'a, Core>) -> Txn<'a> {
        Txn {
            vol,
            core,
            map: Layer::new(),
            patches: BTreeMap::new(),
            enters: Vec::new(),
            frees: Vec::new(),
            counters: Counters::default(),
            data: false,
            new_ids: false,
            new_epoch: false,
            mended: false,
            charged: false,
            reasons: BTreeMap::new(),
            forgets: Vec::new(),
            unlimited: false,
            dirty: Vec::new(),
        }
    }

    pub fn put(&mut self, key: Key, value: impl Into<Val>) {
        self.patches.remove(&key);
        self.map.insert(key, Some(value.into()));
    }

    pub fn delete(&mut self, key: Key) {
        self.patches.remove(&key);
        self.map.insert(key, None);
    }

    /// Overwrites bytes of a value that is there and was not changed in this transaction, growing it as needed.
    pub fn patch(&mut self, key: Key, old: &[u8], at: usize, bytes: &[u8]) {
        let mut value = old.to_vec();
        overwrite(&mut value, at, bytes);
        if !self.map.contains_key(&key) {
            self.patches.insert(key.clone(), (at, bytes.len()));
        }
        self.map.insert(key, Some(value.into()));
    }

    pub fn put_pieces(&mut self, kind: u8, n: u64, value: &[u8]) -> VolResult<()> {
        self.delete_pieces(kind, n)?;
        for (i, piece) in value.chunks(PIECE_BYTES).enumerate() {
            self.put(keys::piece(kind, n, i as u16), piece);
        }
        if value.is_empty() {
            self.put(keys::piece(kind, n, 0), []);
        }
        Ok(())
    }

    pub fn delete_pieces(&mut self, kind: u8, n: u64) -> VolResult<()> {
        for (key, _) in self.collect(&keys::one(kind, n), &keys::end_of(kind, n), usize::MAX)? {
            self.delete(key);
        }
        Ok(())
    }

    pub fn new_id(&mut self) -> u64 {
        self.new_ids = true;
        self.core.next_id += 1;
        self.core.next_id
    }

    /// What comes after this operation is not in the snapshot that is being made.
    pub fn next_epoch(&mut self) {
        self.new_epoch = true;
    }

    /// These reserved blocks belong to a file now.
    pub fn enter(&mut self, run: Run) {
        self.enters.push(run);
    }

    /// These blocks have no user any more.
    pub fn free(&mut self, run: Run) {
        self.frees.push(run);
    }

    /// The same for blocks that the map alone says somebody has.
    pub fn free_mapped(&mut self, run: Run) {
        // The journal's field for it has 32 bits.
        for start in (run.start..run.start + run.len).step_by(1 << 20) {
            self.free(Run { start, len: (run.start + run.len - start).min(1 << 20) });
        }
    }

    /// Commits what repair did: sums alone count as a change here, and room is not asked for.
    pub fn commit_mended(mut self) -> VolResult<u64> {
        self.mended = true;
        self.unlimited = true;
        self.commit()
    }

    /// Enters into the quotas what this changes, once: what comes after it must not change sizes, owners or places.
    /// Called early where a refusal has to come before something else is told.
    pub fn charge_quotas(&mut self) -> VolResult<()> {
        if !self.core.quotas.on || std::mem::replace(&mut self.charged, true) {
            return Ok(());
        }
        self.count_quotas()
    }

    /// Files whose inode or streams change, and whether streams do.
    pub fn changed_files(&self) -> BTreeMap<u64, bool> {
        let mut out = BTreeMap::new();
        let of = |kind: u8| self.map.range::<[u8], _>((Included(&[kind][..]), Excluded(&[kind + 1][..])));
        for (key, _) in of(keys::INODE) {
            out.insert(keys::first(key), false);
        }
        for (key, _) in of(keys::STREAM) {
            out.insert(keys::first(key), true);
        }
        out
    }

    fn changed(&self, kind: u8, n: u64) -> btree_map::Range<'_, Key, Option<Val>> {
        self.map.range((Included(keys::one(kind, n)), Excluded(keys::end_of(kind, n))))
    }

    pub fn changes_any(&self, kind: u8, n: u64) -> bool {
        self.changed(kind, n).next().is_some()
    }

    pub fn changed_streams(&self, ino: u64) -> Vec<Key> {
        self.changed(keys::STREAM, ino).map(|(k, _)| k.clone()).collect()
    }

    /// The first block of a stream that is written.
    pub fn lowest_written(&self, sid: u64) -> Option<u64> {
        let first = |kind| self.changed(kind, sid).find(|(_, v)| v.is_some()).map(|(k, _)| keys::second(k));
        first(keys::BLOCK).into_iter().chain(first(keys::EXTENT)).min()
    }

    /// Whether what this adds fits beside all that is promised already.
    fn check_room(&self) -> VolResult<()> {
        let entered: u64 = self.enters.iter().map(|r| r.len).sum();
        let more = self.counters.promised + self.counters.resident;
        if more + entered as i64 <= 0 || (more <= 0 && entered == 0) {
            return Ok(());
        }
        let alloc = self.vol.alloc.lock();
        let total = self.core.counters.promised + self.core.counters.resident + more;
        let free = alloc.free_blocks().saturating_sub(alloc.reserve);
        if total > free as i64 { Err(VolError::Full) } else { Ok(()) }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        for (key, value) in &self.map {
            match (value, self.patches.get(key)) {
                (Some(v), Some((at, len))) => {
                    out.put_u8(OP_PATCH);
                    put_bytes(&mut out, key);
                    out.put_u16(*at as u16);
                    put_bytes(&mut out, &v[*at..*at + *len]);
                }
                (Some(v), None) => {
                    out.put_u8(OP_PUT);
                    put_bytes(&mut out, key);
                    put_bytes(&mut out, v);
                }
                (None, _) => {
                    out.put_u8(OP_DELETE);
                    put_bytes(&mut out, key);
                }
            }
        }
        for (op, runs) in [(OP_ENTER, &self.enters), (OP_FREE, &self.frees)] {
            for run in runs {
                out.put_u8(op);
                out.put_u64(run.start);
                out.put_u32(run.len as u32);
            }
        }
        if self.counters != Counters::default() {
            out.put_u8(OP_COUNTERS);
            out.put_u64(self.counters.promised as u64);
            out.put_u64(self.counters.resident as u64);
        }
        if self.new_ids {
            out.put_u8(OP_NEXT_ID);
            out.put_u64(self.core.next_id);
        }
        if self.new_epoch {
            out.put_u8(OP_EPOCH);
            out.put_u32(self.core.epoch + 1);
        }
        for (sid, ino) in &self.dirty {
            out.put_u8(OP_DIRTY);
            out.put_u64(*sid);
            out.put_u64(ino.unwrap_or(0));
        }
        out
    }

    /// Makes the changes visible and appends them to the journal; they are durable when its number is.
    pub fn commit(mut self) -> VolResult<u64> {
        self.finish()
    }

    /// The same while the state stays locked; nothing may be added after it.
    pub fn finish(&mut self) -> VolResult<u64> {
        let nothing = self.map.is_empty() && self.enters.is_empty() && self.frees.is_empty();
        if nothing && !self.new_epoch && !self.mended {
            return Ok(self.core.seq);
        }
        self.vol.check_alive()?;
        self.charge_quotas()?;
        self.journal_changes()?;
        if !self.mended {
            self.check_room()?;
        }
        if self.map.iter().any(|(k, v)| 4 + k.len() + v.as_ref().map_or(0, |v| v.len()) > ENTRY_MAX.min(CAPACITY)) {
            return Err(VolError::Refused("an entry is too large"));
        }
        let record = self.encode();
        if record.len() as u64 > self.vol.journal.record_bytes_max() {
            return Err(VolError::Refused("an operation is too large for the journal"));
        }
        let core = &mut *self.core;
        core.seq += 1;
        let seq = core.seq;
        self.vol.journal.append(seq, &record, self.data);
        core.epoch += u32::from(self.new_epoch);
        for (key, value) in std::mem::take(&mut self.map) {
            if key[0] == keys::QUOTA {
                core.quotas.changed(&key, value.is_some());
            } else if usn::is_settings(&key) {
                core.journal = value.is_some();
                self.vol.watchers.moved(value.as_deref().and_then(usn::end_of));
            }
            core.set(key, value);
        }
        core.counters.promised += self.counters.promised;
        core.counters.resident += self.counters.resident;
        for (sid, ino) in self.dirty.drain(..) {
            match ino {
                Some(ino) => core.dirty.insert(sid, ino),
                None => core.dirty.remove(&sid),
            };
        }
        if !self.enters.is_empty() || !self.frees.is_empty() {
            let mut alloc = self.vol.alloc.lock();
            self.enters.iter().for_each(|r| alloc.enter(*r));
            self.frees.iter().for_each(|r| alloc.free(seq, *r));
        }
        self.vol.reasons_noted(std::mem::take(&mut self.reasons), &self.forgets);
        Ok(seq)
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u16(bytes.len() as u16);
    out.extend_from_slice(bytes);
}

fn take_bytes<'a>(r: &mut Reader<'a>) -> VolResult<&'a [u8]> {
    let n = r.u16()? as usize;
    Ok(r.bytes(n)?)
}

fn overwrite(value: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if value.len() < at + bytes.len() {
        value.resize(at + bytes.len(), 0);
    }
    value[at..at + bytes.len()].copy_from_slice(bytes);
}

/// What replay does to the block map; the rest it does to the state itself.
pub enum MapOp {
    Enter(Run),
    Free(Run),
}

/// One change of a record of the journal.
enum Change<'a> {
    Put { key: &'a [u8], value: &'a [u8] },
    Delete { key: &'a [u8] },
    Patch { key: &'a [u8], at: usize, bytes: &'a [u8] },
    Map(MapOp),
    Counters { promised: i64, resident: i64 },
    Dirty { sid: u64, ino: u64 },
    NextId(u64),
    Epoch(u32),
}

impl<'a> Change<'a> {
    fn read(r: &mut Reader<'a>) -> VolResult<Change<'a>> {
        Ok(match r.u8()? {
            OP_PUT => Change::Put { key: take_bytes(r)?, value: take_bytes(r)? },
            OP_DELETE => Change::Delete { key: take_bytes(r)? },
            OP_PATCH => Change::Patch { key: take_bytes(r)?, at: r.u16()? as usize, bytes: take_bytes(r)? },
            op @ (OP_ENTER | OP_FREE) => {
                let run = Run { start: r.u64()?, len: u64::from(r.u32()?) };
                Change::Map(if op == OP_ENTER { MapOp::Enter(run) } else { MapOp::Free(run) })
            }
            OP_COUNTERS => Change::Counters { promised: r.u64()? as i64, resident: r.u64()? as i64 },
            OP_DIRTY => Change::Dirty { sid: r.u64()?, ino: r.u64()? },
            OP_NEXT_ID => Change::NextId(r.u64()?),
            OP_EPOCH => Change::Epoch(r.u32()?),
            _ => return Err(VolError::Corrupt("journal")),
        })
    }
}

/// Blocks of the device that records of the journal, one after the other, put into files and leave there, and their
/// checksums. What a later one frees may have other data by now.
pub fn note_data(record: &[u8], blocks: &mut BTreeMap<u64, u64>) -> VolResult<()> {
    let mut r = Reader::new(record);
    while r.remaining() > 0 {
        match Change::read(&mut r)? {
            Change::Put { key, value } if key.first() == Some(&keys::EXTENT) => {
                let e = Extent::decode(keys::second(key), value)?;
                blocks.extend((e.dev_block..).zip(e.sums));
            }
            Change::Map(MapOp::Free(run)) => (run.start..run.start.saturating_add(run.len)).for_each(|b| {
                blocks.remove(&b);
            }),
            _ => {}
        }
    }
    Ok(())
}

/// Makes the changes of one record of the journal again.
pub fn replay(
    core: &mut Core,
    tree: &Tree,
    record: &[u8],
    map: &mut dyn FnMut(MapOp) -> VolResult<()>,
) -> VolResult<()> {
    let mut r = Reader::new(record);
    while r.remaining() > 0 {
        match Change::read(&mut r)? {
            Change::Put { key, value } => {
                if 4 + key.len() + value.len() > ENTRY_MAX {
                    return Err(VolError::Corrupt("journal"));
                }
                core.set(key.to_vec(), Some(value.into()));
            }
            Change::Delete { key } => core.set(key.to_vec(), None),
            Change::Patch { key, at, bytes } => {
                let old = core.get(tree, key)?.ok_or(VolError::Corrupt("journal"))?;
                let mut value = old.to_vec();
                if at > PIECE_BYTES || bytes.len() > PIECE_BYTES {
                    return Err(VolError::Corrupt("journal"));
                }
                overwrite(&mut value, at, bytes);
                core.set(key.to_vec(), Some(value.into()));
            }
            Change::Map(op) => map(op)?,
            Change::Counters { promised, resident } => {
                core.counters.promised = core.counters.promised.wrapping_add(promised);
                core.counters.resident = core.counters.resident.wrapping_add(resident);
            }
            Change::Dirty { sid, ino: 0 } => drop(core.dirty.remove(&sid)),
            Change::Dirty { sid, ino } => drop(core.dirty.insert(sid, ino)),
            Change::NextId(id) => core.next_id = core.next_id.max(id),
            Change::Epoch(epoch) => core.epoch = core.epoch.max(epoch),
        }
    }
    Ok(())
}
