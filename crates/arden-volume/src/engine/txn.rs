//! The transaction, the only way to change anything: one record of the log, all or nothing. Owns what takes part in every
//! one of them ([`TxnHook`]), so that no operation can forget it.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, btree_map},
    ops::Bound::{Excluded, Included},
    sync::{Arc, atomic::Ordering},
};

use arden_lock::MutexGuard;

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys::{self, Key, Val},
        run::Run,
        treenode::{CAPACITY, ENTRY_MAX},
    },
    engine::{
        kept::Dead,
        record::{Changes, PIECE_BYTES, overwrite},
        state::{CoreView, Held, State},
        tree::{Layer, overlay::Overlay},
        view::{Take, View, scan},
    },
};

/// What a record has beside what its operation asked room for, at most: inodes and streams with their names, and what hooks add.
const BESIDE_BYTES: usize = 8 << 10;
/// Records of this length go into the room that [`Wal::room_bytes`](crate::engine::wal::Wal::room_bytes) leaves.
const SMALL_BYTES: usize = 8 << 10;
/// Bytes of a record for each change that it may be asked room for: each costs memory, too.
const BYTES_A_CHANGE: usize = 80;

/// Takes part in every transaction. All is called while no other transaction is made, so it must not begin one nor wait for one. Others
/// may read meanwhile, but in `applied`.
pub trait TxnHook: Send + Sync {
    /// May refuse the transaction, and adds what it counts; once for each, when sizes, owners and places do not change any more.
    ///
    /// # Errors
    /// Nothing of the transaction happens then.
    fn admit(&self, _t: &mut Txn<'_>) -> VolResult<()> {
        Ok(())
    }
    /// Adds what it records of the other changes; the last before the record is encoded.
    ///
    /// # Errors
    /// As `admit`.
    fn record(&self, _t: &mut Txn<'_>) -> VolResult<()> {
        Ok(())
    }
    /// A key of its kind has this value from now on; None: it is gone. The record is in the log by then.
    fn applied(&self, key: &[u8], value: Option<&[u8]>);
}

/// Each with the kind of keys that it is told of, in the order in which they are asked.
pub type Hooks = Vec<(u8, Arc<dyn TxnHook>)>;

/// Changes that take effect together, or not at all when it is dropped. There is one at a time.
pub struct Txn<'a> {
    state: &'a State,
    hooks: &'a Hooks,
    pub core: Held<'a>,
    _changing: MutexGuard<'a, ()>,
    pub changes: Changes,
    /// Data was written to the device that has to be durable first.
    pub data: bool,
    /// No limit stands against it.
    pub unlimited: bool,
    /// No answer speaks of it: it may be lost in a crash, whoever saw it.
    pub unanswered: bool,
    mended: bool,
    admitted: bool,
    /// What its record may have.
    room_bytes: OnceCell<usize>,
    /// Run when it took effect, before anybody else reads.
    after: Vec<Box<dyn FnOnce() + 'a>>,
}

impl View for Txn<'_> {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>> {
        match self.changes.map().get(key) {
            Some(v) => Ok(v.clone()),
            None => self.core.get(&self.state.tree, key),
        }
    }
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        let mut layers: Vec<&Layer> = vec![self.changes.map(), self.core.overlay.layer()];
        layers.extend(self.core.frozen.as_deref().map(Overlay::layer));
        scan(&layers, &self.state.tree, &self.core.root, start, end, take)
    }
}

impl<'a> Txn<'a> {
    /// Nobody reads before it has ended: for who changes more than the keys and values.
    pub fn alone(state: &'a State, hooks: &'a Hooks) -> Txn<'a> {
        let changing = state.changing.lock();
        Txn::on(state, hooks, changing, Held::alone(state))
    }

    /// Others read until it takes effect: what is done before that, they must not be able to see.
    pub fn beside(state: &'a State, hooks: &'a Hooks) -> Txn<'a> {
        let changing = state.changing.lock();
        Txn::on(state, hooks, changing, Held::beside(state))
    }

    fn on(state: &'a State, hooks: &'a Hooks, changing: MutexGuard<'a, ()>, core: Held<'a>) -> Txn<'a> {
        Txn {
            state,
            hooks,
            core,
            _changing: changing,
            changes: Changes::default(),
            data: false,
            unlimited: false,
            unanswered: false,
            mended: false,
            admitted: false,
            room_bytes: OnceCell::new(),
            after: Vec::new(),
        }
    }

    /// Another transaction after this one, which has finished, with nothing between them.
    pub fn again(self) -> Txn<'a> {
        let Txn { state, hooks, core, _changing, .. } = self;
        Txn::on(state, hooks, _changing, core)
    }

    /// Whether its record, and the log as it is now, have room for so many bytes more beside what every operation adds. Whoever
    /// does not know how much it has to say asks before each part, and leaves the rest to another operation.
    pub fn has_room(&self, more_bytes: usize) -> bool {
        // No other operation comes between this and the record, so there does not become less.
        let room = *self.room_bytes.get_or_init(|| self.state.wal.room_bytes());
        let changes_max = self.state.wal.record_bytes_max() / BYTES_A_CHANGE;
        self.changes.bytes() + more_bytes + BESIDE_BYTES <= room && self.changes.map().len() < changes_max
    }

    /// Whether the log has room for the largest record: what this has no room for then, no other operation would have either.
    pub fn has_all_room(&self) -> bool {
        *self.room_bytes.get_or_init(|| self.state.wal.room_bytes()) == self.state.wal.record_bytes_max()
    }

    /// The state as it was before this.
    pub fn before(&self) -> CoreView<'_> {
        CoreView { core: &self.core, tree: &self.state.tree }
    }

    /// `f` is run when this took effect, before anybody else reads the state.
    pub fn on_applied(&mut self, f: impl FnOnce() + 'a) {
        self.after.push(Box::new(f));
    }

    pub fn put(&mut self, key: Key, value: impl Into<Val>) {
        self.changes.set(key, Some(value.into()), None);
    }

    pub fn delete(&mut self, key: Key) {
        self.changes.set(key, None, None);
    }

    /// Overwrites bytes of a value that is there and was not changed in this transaction, growing it as needed.
    pub fn patch(&mut self, key: Key, old: &[u8], at: usize, bytes: &[u8]) {
        let mut value = old.to_vec();
        overwrite(&mut value, at, bytes);
        let patch = (!self.changes.map().contains_key(&key)).then_some((at, bytes.len()));
        self.changes.set(key, Some(value.into()), patch);
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
        // Given for good, also where nothing comes of this.
        let id = self.core.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        self.changes.next_id = Some(id);
        id
    }

    /// What comes after this operation is not in the snapshot that is being made.
    pub fn next_epoch(&mut self) {
        self.changes.epoch = Some(self.core.epoch + 1);
    }

    /// These reserved blocks belong to a file now.
    pub fn enter(&mut self, run: Run) {
        self.changes.enters.push(run);
    }

    /// These blocks have no user any more.
    pub fn free(&mut self, run: Run) {
        self.changes.frees.push(run);
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

    /// Asks all hooks whether this may happen, once: what comes after it must not change sizes, owners or places. Called
    /// early where a refusal has to come before something else is told.
    pub fn admit(&mut self) -> VolResult<()> {
        if std::mem::replace(&mut self.admitted, true) {
            return Ok(());
        }
        let hooks = self.hooks;
        hooks.iter().try_for_each(|(_, hook)| hook.admit(self))
    }

    /// No file has these blocks any more: they are free, unless a snapshot holds them.
    pub fn bury(&mut self, run: Run, birth: u32) {
        let youngest = self.core.snapshots.iter().rev().find(|s| !s.is_leaving()).map(|s| s.epoch);
        match youngest.filter(|epoch| *epoch >= birth) {
            Some(epoch) => {
                let dead = Dead { epoch, run, birth };
                self.put(dead.key(), dead.encode());
            }
            None => self.free(run),
        }
    }

    /// Marks blocks as in use that the map has as free; false where somebody writes there just now.
    pub fn claim(&mut self, run: Run) -> bool {
        let claimed = self.state.alloc.lock().claim(run);
        if claimed {
            self.enter(run);
        }
        claimed
    }

    /// Files whose inode or streams change, and whether streams do.
    pub fn changed_files(&self) -> BTreeMap<u64, bool> {
        let mut out = BTreeMap::new();
        let of = |kind: u8| self.changes.map().range::<[u8], _>((Included(&[kind][..]), Excluded(&[kind + 1][..])));
        for (key, _) in of(keys::INODE) {
            out.insert(keys::first(key), false);
        }
        for (key, _) in of(keys::STREAM) {
            out.insert(keys::first(key), true);
        }
        out
    }

    fn changed(&self, kind: u8, n: u64) -> btree_map::Range<'_, Key, Option<Val>> {
        self.changes.map().range((Included(keys::one(kind, n)), Excluded(keys::end_of(kind, n))))
    }

    pub fn changes_any(&self, kind: u8, n: u64) -> bool {
        self.changed(kind, n).next().is_some()
    }

    pub fn changed_streams(&self, ino: u64) -> Vec<Key> {
        self.changed(keys::STREAM, ino).map(|(k, _)| k.clone()).collect()
    }

    /// Names that are given, taken or written differently: their keys.
    pub fn changed_names(&self) -> Vec<Key> {
        let names = self.changes.map().range::<[u8], _>((Included(&[keys::NAME][..]), Excluded(&[keys::NAME + 1][..])));
        names.map(|(k, _)| k.clone()).collect()
    }

    /// The first block of a stream that is written, or that becomes a hole.
    pub fn lowest_changed(&self, sid: u64) -> Option<u64> {
        let first = |kind| self.changed(kind, sid).next().map(|(k, _)| keys::second(k));
        first(keys::BLOCK).into_iter().chain(first(keys::EXTENT)).min()
    }

    /// Whether what this adds fits beside all that is promised already.
    fn check_room(&self) -> VolResult<()> {
        let entered: u64 = self.changes.enters.iter().map(|r| r.len).sum();
        let more = self.changes.counters.promised + self.changes.counters.resident;
        if more + entered as i64 <= 0 || (more <= 0 && entered == 0) {
            return Ok(());
        }
        let alloc = self.state.alloc.lock();
        let total = self.core.counters.promised + self.core.counters.resident + more;
        let free = alloc.free_blocks().saturating_sub(alloc.reserve);
        if total > free as i64 { Err(VolError::Full) } else { Ok(()) }
    }

    /// Makes the changes visible and appends them to the journal; they are durable when its number is.
    pub fn commit(mut self) -> VolResult<u64> {
        self.finish()
    }

    /// The same while nobody else reads; nothing may be added after it.
    pub fn finish(&mut self) -> VolResult<u64> {
        if self.changes.is_empty() && !self.mended {
            return Ok(self.core.seq);
        }
        self.state.check_alive()?;
        self.admit()?;
        let hooks = self.hooks;
        hooks.iter().try_for_each(|(_, hook)| hook.record(self))?;
        if !self.mended {
            self.check_room()?;
        }
        if self
            .changes
            .map()
            .iter()
            .any(|(k, v)| 4 + k.len() + v.as_ref().map_or(0, |v| v.len()) > ENTRY_MAX.min(CAPACITY))
        {
            return Err(VolError::Refused("an entry is too large"));
        }
        let record = self.changes.encode();
        debug_assert_eq!(record.len(), self.changes.bytes(), "a record's length is known before it is made");
        if record.len() > self.state.wal.record_bytes_max() {
            return Err(VolError::Refused("an operation is too large for the journal"));
        }
        // Whoever asked for room said how much it adds, and hooks add no more than was left to them.
        debug_assert!(
            self.room_bytes.get().is_none_or(|room| record.len() <= (*room).max(SMALL_BYTES)),
            "a record of {} bytes, and there was room for {:?}",
            record.len(),
            self.room_bytes
        );
        // Others may have come between the room that was made and this: better one is refused than the volume stops.
        if record.len() > SMALL_BYTES && record.len() > self.state.wal.room_bytes() {
            return Err(VolError::Full);
        }
        let (core, mut changes) = (&mut *self.core, std::mem::take(&mut self.changes));
        core.seq += 1;
        let seq = core.seq;
        self.state.wal.append(seq, &record, self.data);
        core.epoch = changes.epoch.unwrap_or(core.epoch);
        for (key, value) in changes.take_map() {
            for (_, hook) in hooks.iter().filter(|(kind, _)| key.first() == Some(kind)) {
                hook.applied(&key, value.as_deref());
            }
            core.set(key, value);
        }
        core.counters.promised += changes.counters.promised;
        core.counters.resident += changes.counters.resident;
        for (sid, ino) in changes.dirty {
            match ino {
                Some(ino) => core.dirty.insert(sid, ino),
                None => core.dirty.remove(&sid),
            };
        }
        if !changes.enters.is_empty() || !changes.frees.is_empty() {
            let mut alloc = self.state.alloc.lock();
            changes.enters.iter().for_each(|r| alloc.enter(*r));
            changes.frees.iter().for_each(|r| alloc.free(seq, *r));
        }
        std::mem::take(&mut self.after).into_iter().for_each(|f| f());
        Ok(seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Files, volume};

    /// As when very many come between the room that was made and their operation.
    #[test]
    fn an_operation_that_the_log_has_no_room_for_is_refused_and_the_volume_goes_on() {
        let (_, vol) = volume(16 << 20);
        let files = Files::new(&vol);
        files.write("f", b"first");
        let engine = &vol.engine;
        let put = |bytes: usize| {
            let mut t = engine.begin();
            for i in 0..bytes / 4096 {
                t.put(keys::two(keys::HANDLE, 1, i as u64), [7; 4096]);
            }
            t.commit()
        };
        let largest = engine.state.wal.record_bytes_max() / 2;
        let mut done = 0;
        let refused = loop {
            match put(largest) {
                Ok(_) => done += 1,
                Err(refused) => break refused,
            }
        };
        assert_eq!((refused, done > 3, engine.begin().has_room(largest)), (VolError::Full, true, false));
        // There is some left to those that are small.
        files.write("g", b"second");
        vol.sync().unwrap();
        let mut t = engine.begin();
        (0..largest / 4096).for_each(|i| t.delete(keys::two(keys::HANDLE, 1, i as u64)));
        t.commit().unwrap();
        vol.checkpoint().unwrap();
        put(largest).unwrap();
        vol.sync().unwrap();
        assert_eq!((files.read("f"), files.read("g")), (b"first".to_vec(), b"second".to_vec()));
    }
}
