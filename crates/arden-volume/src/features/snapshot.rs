//! Snapshots: states of the past that can be read. A snapshot is the root of the tree as a checkpoint left it, kept. Owns
//! which blocks outlive their last file for its sake, and what becomes free when it goes.
//!
//! A block of data lives from the epoch it was written in to the one in which its last file let go of it, and each
//! snapshot ends an epoch. So a snapshot holds the blocks that were born by then and died since. Dead blocks are listed
//! under the youngest snapshot that holds them; when that goes, they move to the next older one, or become free where
//! they were born after that. Nodes of the tree follow the same rule with checkpoints for epochs, and need no list:
//! opening finds them from the roots.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arden_wire::{
    FileTime,
    cursor::{Put, Reader},
};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys,
        treenode::{NODE_BLOCKS, Ptr},
    },
    engine::{
        alloc::{Alloc, Run},
        kv::{Core, Reading, Take, Txn, View},
        tree::{Root, Tree, Val},
        volume::Volume,
    },
};

pub const SNAPSHOTS_MAX: usize = 1024;
pub const SNAPSHOT_LABEL_BYTES_MAX: usize = 128;
/// Snapshots are told apart by the second: that is all that their names have, [MS-SMB2] 2.2.32.2.
const SECOND: u64 = 10_000_000;
/// Runs of dead blocks that one operation moves or frees.
const RUNS_AN_OPERATION: usize = 1000;
const LEAVING: u32 = 1;

pub struct Snapshot {
    /// The last epoch that it holds blocks of.
    pub epoch: u32,
    pub time: FileTime,
    pub label: String,
    /// The checkpoint that it is.
    pub generation: u64,
    pub root: Root,
    /// It is being deleted, and the journal says so: it holds nothing any more.
    leaving: AtomicBool,
    /// Nobody begins to read it any more.
    closed: AtomicBool,
    /// Held for reading by whoever reads it.
    in_use: RwLock<()>,
}

/// What can be told of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    pub time: FileTime,
    pub label: String,
    /// Data that would become free if it went.
    pub only_bytes: u64,
}

impl Snapshot {
    fn encode(&self) -> Vec<u8> {
        let (ptr, level) = self.root.unwrap_or((Ptr::default(), 0xFF));
        let mut out = Vec::with_capacity(52 + self.label.len());
        out.put_u32(if self.is_leaving() { LEAVING } else { 0 });
        out.put_u64(self.time.0);
        out.put_u64(self.generation);
        ptr.encode(&mut out);
        out.put_u32(u32::from(level));
        out.extend_from_slice(self.label.as_bytes());
        out
    }

    fn decode(key: &[u8], value: &[u8]) -> VolResult<Snapshot> {
        let bad = VolError::Corrupt("snapshot");
        let mut r = Reader::new(value);
        let (flags, time, generation) = (r.u32()?, FileTime(r.u64()?), r.u64()?);
        let ptr = Ptr::decode(&mut r)?;
        let level = u8::try_from(r.u32()?).map_err(|_| bad)?;
        Ok(Snapshot {
            epoch: u32::try_from(keys::first(key)).map_err(|_| bad)?,
            time,
            label: String::from_utf8(r.rest().to_vec()).map_err(|_| bad)?,
            generation,
            root: (level != 0xFF).then_some((ptr, level)),
            leaving: AtomicBool::new(flags & LEAVING != 0),
            closed: AtomicBool::new(flags & LEAVING != 0),
            in_use: RwLock::new(()),
        })
    }

    fn key(&self) -> Vec<u8> {
        keys::one(keys::SNAPSHOT, u64::from(self.epoch))
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }
}

/// Blocks that only snapshots hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dead {
    /// The youngest snapshot that does.
    pub epoch: u32,
    pub run: Run,
    pub birth: u32,
}

impl Dead {
    fn key(&self) -> Vec<u8> {
        keys::two(keys::DEAD, u64::from(self.epoch), self.run.start)
    }
    fn encode(&self) -> Vec<u8> {
        [(self.run.len as u32).to_le_bytes(), self.birth.to_le_bytes()].concat()
    }
    pub fn decode(key: &[u8], value: &[u8]) -> VolResult<Dead> {
        let bad = VolError::Corrupt("dead blocks");
        let mut r = Reader::new(value);
        let (len, birth) = (u64::from(r.u32()?), r.u32()?);
        let epoch = u32::try_from(keys::first(key)).map_err(|_| bad)?;
        Ok(Dead { epoch, run: Run { start: keys::second(key), len }, birth })
    }
}

/// A snapshot's state, for reading; it does not go while this lives.
pub struct Past<'a> {
    tree: &'a Tree,
    root: &'a Root,
    _held: RwLockReadGuard<'a, ()>,
}

impl View for Past<'_> {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>> {
        self.tree.get(self.root, key)
    }
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        if start >= end { Ok(()) } else { self.tree.scan(self.root, start, end, take) }
    }
}

/// The present state or one of the past.
pub enum Moment<'a> {
    Now(Reading<'a>),
    Past(Past<'a>),
}

impl View for Moment<'_> {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>> {
        match self {
            Moment::Now(r) => r.get(key),
            Moment::Past(p) => p.get(key),
        }
    }
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        match self {
            Moment::Now(r) => r.scan(start, end, take),
            Moment::Past(p) => p.scan(start, end, take),
        }
    }
}

/// At opening: the snapshots that there are, and which blocks the nodes of all trees take.
pub fn load(core: &mut Core, tree: &Tree, alloc: &mut Alloc) -> VolResult<()> {
    let mut found = Vec::new();
    core.scan(tree, &[keys::SNAPSHOT], &[keys::SNAPSHOT + 1], &mut |k, v| {
        found.push(Snapshot::decode(k, v));
        true
    })?;
    core.snapshots = found.into_iter().map(|s| s.map(Arc::new)).collect::<VolResult<_>>()?;
    visit_nodes(core, tree, &mut |ptr| {
        let run = Run { start: ptr.block, len: NODE_BLOCKS };
        if alloc.occupy(run) { Ok(()) } else { Err(VolError::Corrupt("a block has two owners")) }
    })
}

/// Every node of every tree once, oldest tree first.
pub fn visit_nodes(core: &Core, tree: &Tree, f: &mut dyn FnMut(&Ptr) -> VolResult<()>) -> VolResult<()> {
    let roots = core.snapshots.iter().map(|s| (s.root, s.generation)).chain([(core.root, u64::MAX)]);
    let mut before = 0;
    for (root, generation) in roots {
        tree.visit(&root, &mut |ptr, _| {
            // What an older snapshot has too was visited there, with all that is below.
            if ptr.birth <= before {
                return Ok(false);
            }
            f(ptr).map(|()| true)
        })?;
        before = generation;
    }
    Ok(())
}

impl Txn<'_> {
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
}

impl Volume {
    /// The state to read in: now, or a snapshot's. None when that is gone.
    pub(crate) fn reading_at<'a>(&'a self, past: Option<&'a Snapshot>) -> Option<Moment<'a>> {
        let Some(s) = past else { return Some(Moment::Now(self.reading())) };
        let held = s.in_use.read_recursive();
        (!s.closed.load(Ordering::Acquire)).then(|| Moment::Past(Past { tree: &self.tree, root: &s.root, _held: held }))
    }

    /// Keeps the present state, under a time of whole seconds that no other snapshot has: `now`, or the next one that is
    /// later than all others'. Costs a checkpoint, whatever the volume holds. Durable when it returns.
    pub fn create_snapshot(&self, now: FileTime, label: &str) -> VolResult<SnapshotInfo> {
        if label.len() > SNAPSHOT_LABEL_BYTES_MAX {
            return Err(VolError::Refused("a snapshot's label has at most 128 bytes"));
        }
        self.make_room()?;
        let mut checkpoint = self.lock_checkpoint();
        let epoch = self.checkpoint_epoch(&mut checkpoint)?;
        let mut t = self.begin();
        if t.core.snapshots.len() >= SNAPSHOTS_MAX {
            return Err(VolError::Refused("a volume has at most 1024 snapshots"));
        }
        let after_last = t.core.snapshots.last().map_or(0, |s| s.time.0 + SECOND);
        let snapshot = Arc::new(Snapshot {
            epoch,
            time: FileTime((now.0 - now.0 % SECOND).max(after_last)),
            label: label.to_owned(),
            generation: self.superblock().generation,
            root: t.core.root,
            leaving: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            in_use: RwLock::new(()),
        });
        t.put(snapshot.key(), snapshot.encode());
        // From here on nothing fails but the volume as a whole.
        t.core.snapshots.push(snapshot.clone());
        let seq = t.commit()?;
        drop(checkpoint);
        self.commit_to(seq)?;
        Ok(SnapshotInfo { time: snapshot.time, label: snapshot.label.clone(), only_bytes: 0 })
    }

    /// Oldest first, without those that are being deleted.
    pub fn snapshots(&self) -> VolResult<Vec<SnapshotInfo>> {
        let view = self.reading();
        let (mut out, mut before) = (Vec::new(), 0);
        for s in view.core.snapshots.iter().filter(|s| !s.is_leaving()) {
            let mut blocks = 0;
            let epoch = u64::from(s.epoch);
            view.scan(&keys::one(keys::DEAD, epoch), &keys::end_of(keys::DEAD, epoch), &mut |k, v| {
                blocks += Dead::decode(k, v).ok().filter(|d| d.birth > before).map_or(0, |d| d.run.len);
                true
            })?;
            let only_bytes = blocks * arden_block::BLOCK_BYTES;
            out.push(SnapshotInfo { time: s.time, label: s.label.clone(), only_bytes });
            before = s.epoch;
        }
        Ok(out)
    }

    pub(crate) fn snapshot_times(&self) -> Vec<FileTime> {
        self.core.read().snapshots.iter().filter(|s| !s.is_leaving()).map(|s| s.time).collect()
    }

    /// The one of this second.
    pub(crate) fn snapshot_at(&self, time: FileTime) -> Option<Arc<Snapshot>> {
        let same = |s: &&Arc<Snapshot>| s.time.0 / SECOND == time.0 / SECOND && !s.is_leaving();
        self.core.read().snapshots.iter().find(same).cloned()
    }

    /// Takes a snapshot away and frees what only it held; false when there is none of this time. Who reads in it is told
    /// that it is gone. It is gone for good before its blocks are freed; opening finishes what a crash interrupts.
    pub fn delete_snapshot(&self, time: FileTime) -> VolResult<bool> {
        let Some(snapshot) = self.snapshot_at(time) else { return Ok(false) };
        self.make_room()?;
        {
            snapshot.closed.store(true, Ordering::Release);
            let _nobody_reads = snapshot.in_use.write();
            let mut t = self.begin();
            if snapshot.leaving.swap(true, Ordering::AcqRel) {
                return Ok(false);
            }
            t.put(snapshot.key(), snapshot.encode());
            t.commit()?;
        }
        match self.finish_deletions() {
            Err(VolError::Full) => {
                tracing::warn!("a deleted snapshot keeps room for now: none is left to write down that it goes")
            }
            other => other?,
        }
        self.sync()?;
        Ok(true)
    }

    /// Frees what snapshots held that are being deleted.
    pub(crate) fn finish_deletions(&self) -> VolResult<()> {
        let _one_at_a_time = self.deletions.lock();
        let leaving: Vec<_> = self.core.read().snapshots.iter().filter(|s| s.is_leaving()).cloned().collect();
        for snapshot in leaving {
            self.pass_on(&snapshot)?;
            self.remove(&snapshot)?;
        }
        Ok(())
    }

    /// The dead blocks of a snapshot go to the next older one, or become free.
    fn pass_on(&self, s: &Snapshot) -> VolResult<()> {
        let epoch = u64::from(s.epoch);
        loop {
            self.make_room()?;
            let mut t = self.begin();
            let heir = t.core.snapshots.iter().rev().find(|o| o.epoch < s.epoch && !o.is_leaving()).map(|o| o.epoch);
            let (start, end) = (keys::one(keys::DEAD, epoch), keys::end_of(keys::DEAD, epoch));
            let found = t.collect(&start, &end, RUNS_AN_OPERATION)?;
            if found.is_empty() {
                return Ok(());
            }
            for (key, value) in found {
                let dead = Dead::decode(&key, &value)?;
                t.delete(key);
                match heir.filter(|epoch| *epoch >= dead.birth) {
                    Some(epoch) => {
                        let dead = Dead { epoch, ..dead };
                        t.put(dead.key(), dead.encode());
                    }
                    None => t.free(dead.run),
                }
            }
            t.commit()?;
        }
    }

    /// The last of a snapshot: its record, and the nodes that no other tree has.
    fn remove(&self, s: &Snapshot) -> VolResult<()> {
        // No tree changes meanwhile.
        let _checkpoint = self.lock_checkpoint();
        let nodes = self.nodes_of_only(s).unwrap_or_else(|e| {
            tracing::warn!("nodes of a deleted snapshot keep their room until the volume is opened again: {e}");
            Vec::new()
        });
        let mut t = self.begin();
        t.delete(s.key());
        t.core.snapshots.retain(|o| o.epoch != s.epoch);
        let seq = t.commit()?;
        self.commit_to(seq)?;
        let mut alloc = self.alloc.lock();
        for block in nodes {
            self.tree.forget(block);
            alloc.cancel(Run { start: block, len: NODE_BLOCKS });
        }
        Ok(())
    }

    fn nodes_of_only(&self, s: &Snapshot) -> VolResult<Vec<u64>> {
        let (older, younger) = {
            let core = self.core.read();
            let at = core.snapshots.iter().position(|o| o.epoch == s.epoch).unwrap_or(0);
            let older = if at > 0 { core.snapshots[at - 1].generation } else { 0 };
            (older, core.snapshots.get(at + 1).map_or(core.root, |o| o.root))
        };
        let mut shared = HashSet::new();
        self.tree.visit(&younger, &mut |ptr, _| {
            if ptr.birth > older && ptr.birth <= s.generation {
                shared.insert(ptr.block);
            }
            Ok(ptr.birth > older)
        })?;
        let mut out = Vec::new();
        self.tree.visit(&s.root, &mut |ptr, _| {
            let only = ptr.birth > older && !shared.contains(&ptr.block);
            if only {
                out.push(ptr.block);
            }
            Ok(only)
        })?;
        Ok(out)
    }
}
