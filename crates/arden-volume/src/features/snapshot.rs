//! Snapshots: making, listing and deleting states of the past that can be read. What a kept state is, and which blocks
//! outlive their last file for its sake, is the engine's (`kept`); what becomes free when it goes is said here.

use std::{collections::HashSet, sync::Arc};

use arden_lock::{Mutex, ranks};
use arden_wire::FileTime;

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys,
        run::Run,
        treenode::NODE_BLOCKS,
    },
    engine::{
        kept::{Dead, Snapshot},
        owner::Engine,
        view::View,
    },
};

pub const SNAPSHOTS_MAX: usize = 1024;
pub const SNAPSHOT_LABEL_BYTES_MAX: usize = 128;
/// Snapshots are told apart by the second: that is all that their names have, [MS-SMB2] 2.2.32.2.
const SECOND: u64 = 10_000_000;
/// Runs of dead blocks that one operation moves or frees.
const RUNS_AN_OPERATION: usize = 1000;

/// What can be told of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    pub time: FileTime,
    pub label: String,
    /// Data that would become free if it went.
    pub only_bytes: u64,
}

/// The volume's snapshots, as they are made, listed and deleted.
pub struct Snapshots {
    engine: Arc<Engine>,
    /// Held by whoever finishes the deletion of snapshots; before all locks of the engine.
    deletions: Mutex<(), ranks::SnapshotDeletions>,
}

impl Snapshots {
    pub fn new(engine: Arc<Engine>) -> Snapshots {
        Snapshots { engine, deletions: Mutex::new(()) }
    }

    /// Keeps the present state, under a time of whole seconds that no other snapshot has: `now`, or the first free second after it.
    /// A clock that was wrong for a moment does not decide the times of later snapshots. Costs a checkpoint, whatever the volume
    /// holds. Durable when it returns.
    pub fn create(&self, now: FileTime, label: &str) -> VolResult<SnapshotInfo> {
        if label.len() > SNAPSHOT_LABEL_BYTES_MAX {
            return Err(VolError::Refused("a snapshot's label has at most 128 bytes"));
        }
        self.engine.make_room()?;
        let mut checkpoint = self.engine.lock_checkpoint();
        let (epoch, mut t) = self.engine.checkpoint_epoch(&mut checkpoint)?;
        if t.core.snapshots.len() >= SNAPSHOTS_MAX {
            return Err(VolError::Refused("a volume has at most 1024 snapshots"));
        }
        let mut time = FileTime(now.0 - now.0 % SECOND);
        while t.core.snapshots.iter().any(|s| s.time == time) {
            time.0 += SECOND;
        }
        let generation = self.engine.superblock().generation;
        let snapshot = Arc::new(Snapshot::new(epoch, time, label, generation, t.core.root));
        t.put(snapshot.key(), snapshot.encode());
        // From here on nothing fails but the volume as a whole.
        t.core.snapshots.push(snapshot.clone());
        let seq = t.commit()?;
        drop(checkpoint);
        self.engine.commit_to(seq)?;
        Ok(SnapshotInfo { time: snapshot.time, label: snapshot.label.clone(), only_bytes: 0 })
    }

    /// In the order in which they were made, without those that are being deleted.
    pub fn list(&self) -> VolResult<Vec<SnapshotInfo>> {
        let view = self.engine.reading();
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

    pub fn times(&self) -> Vec<FileTime> {
        self.engine.state.core.read().snapshots.iter().filter(|s| !s.is_leaving()).map(|s| s.time).collect()
    }

    /// The one of this second.
    pub fn at(&self, time: FileTime) -> Option<Arc<Snapshot>> {
        let same = |s: &&Arc<Snapshot>| s.time.0 / SECOND == time.0 / SECOND && !s.is_leaving();
        self.engine.state.core.read().snapshots.iter().find(same).cloned()
    }

    /// Takes a snapshot away and frees what only it held; false when there is none of this time. Who reads in it is told
    /// that it is gone. It is gone for good before its blocks are freed; opening finishes what a crash interrupts.
    pub fn delete(&self, time: FileTime) -> VolResult<bool> {
        let Some(snapshot) = self.at(time) else { return Ok(false) };
        self.engine.make_room()?;
        {
            let _nobody_reads = snapshot.close();
            let mut t = self.engine.begin();
            if !snapshot.leave() {
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
        self.engine.sync()?;
        Ok(true)
    }

    /// Frees what snapshots held that are being deleted.
    pub fn finish_deletions(&self) -> VolResult<()> {
        let _one_at_a_time = self.deletions.lock();
        let leaving: Vec<_> =
            self.engine.state.core.read().snapshots.iter().filter(|s| s.is_leaving()).cloned().collect();
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
            self.engine.make_room()?;
            let mut t = self.engine.begin();
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
        let _checkpoint = self.engine.lock_checkpoint();
        let nodes = self.nodes_of_only(s).unwrap_or_else(|e| {
            tracing::warn!("nodes of a deleted snapshot keep their room until the volume is opened again: {e}");
            Vec::new()
        });
        let mut t = self.engine.begin();
        t.delete(s.key());
        t.core.snapshots.retain(|o| o.epoch != s.epoch);
        let seq = t.commit()?;
        self.engine.commit_to(seq)?;
        let mut alloc = self.engine.state.alloc.lock();
        alloc.freed_blocks += NODE_BLOCKS * nodes.len() as u64;
        for block in nodes {
            self.engine.state.tree.forget(block);
            alloc.cancel(Run { start: block, len: NODE_BLOCKS });
        }
        Ok(())
    }

    fn nodes_of_only(&self, s: &Snapshot) -> VolResult<Vec<u64>> {
        let (older, younger) = {
            let core = self.engine.state.core.read();
            let at = core.snapshots.iter().position(|o| o.epoch == s.epoch).unwrap_or(0);
            let older = if at > 0 { core.snapshots[at - 1].generation } else { 0 };
            (older, core.snapshots.get(at + 1).map_or(core.root, |o| o.root))
        };
        let mut shared = HashSet::new();
        self.engine.state.tree.visit(&younger, &mut |ptr, _| {
            if ptr.birth > older && ptr.birth <= s.generation {
                shared.insert(ptr.block);
            }
            Ok(ptr.birth > older)
        })?;
        let mut out = Vec::new();
        self.engine.state.tree.visit(&s.root, &mut |ptr, _| {
            let only = ptr.birth > older && !shared.contains(&ptr.block);
            if only {
                out.push(ptr.block);
            }
            Ok(only)
        })?;
        Ok(out)
    }
}
