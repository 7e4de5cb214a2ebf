//! Checkpoints: bringing the tree on the device up to date, so that the log begins anew, and making room in log and memory
//! before changes. Owns the order in which things become durable:
//!
//! - a batch of the log and the data that it speaks of are flushed before an operation in it is acknowledged as
//!   durable, and before the next batch is written: only the data of the last batches may be missing after a crash;
//! - the nodes of a new tree are flushed before the superblock that leads to them, that before old nodes are reused;
//! - blocks that an operation freed are reused only when that operation is durable.

use std::sync::{Arc, atomic::Ordering};

use arden_block::{BLOCK_BYTES, IoError};
use arden_lock::MutexGuard;

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys,
        run::Run,
        superblock::{FIRST_EPOCH, Superblock, feature},
        treenode::{NODE_BLOCKS, Ptr},
    },
    engine::{
        kept::visit_nodes,
        owner::{Engine, Freeze},
        state::Core,
        tree::{Applied, Layer, Root},
        txn::Txn,
    },
};

/// Thousandths of the journal from which on a checkpoint is made, and from which on operations wait for it.
const JOURNAL_FULL_SOFT: u64 = 400;
const JOURNAL_FULL_HARD: u64 = 650;
/// From which on nothing is done without one.
const JOURNAL_FULL_LAST: u64 = 850;
/// What was deleted is taken away up to here, behind all others: where a checkpoint finds no room, that makes it.
const JOURNAL_FULL_RECLAIM: u64 = 870;
/// And up to so many times the memory for changes.
const RECLAIM_OVERLAYS: usize = 4;
/// So many streams with blocks in the tree are worth giving them places before a checkpoint asks for it.
pub const STREAMS_ALLOCATED_EARLY: usize = 256;
const DIRTY_LISTED_MAX: usize = 250;

impl Engine {
    /// Before an operation, without locks: makes room in the journal and in memory.
    pub fn make_room(&self) -> VolResult<()> {
        self.state.check_alive()?;
        if !self.deferrals.before_change()? {
            self.wakeup.wake();
        }
        self.bound_waiting()?;
        self.end_what_found_no_room()?;
        // Behind this anything up to the largest operation may follow.
        let is_hard = self.state.wal.fullness_before_largest() >= JOURNAL_FULL_HARD;
        if is_hard
            || self.is_over(JOURNAL_FULL_HARD, 2)
            || (!self.options.background && self.is_over(JOURNAL_FULL_SOFT, 1))
        {
            let mut unfinished = self.checkpoints.unfinished.lock();
            // Somebody else may have just made one.
            if self.is_over(JOURNAL_FULL_SOFT, 1) {
                return self.checkpoint_locked(&mut unfinished);
            }
        } else if self.is_over(JOURNAL_FULL_SOFT, 1) {
            self.wakeup.ask_checkpoint();
        } else if self.state.core.read().dirty.len() >= STREAMS_ALLOCATED_EARLY {
            self.wakeup.ask_settling();
        }
        Ok(())
    }

    /// A checkpoint that found no room is ended as soon as there may be some: before others take it, who would then find none that the
    /// old tree gives back.
    fn end_what_found_no_room(&self) -> VolResult<()> {
        if !self.checkpoints.lacks_room.load(Ordering::Relaxed) || !self.state.alloc.lock().may_have_room() {
            return Ok(());
        }
        let mut unfinished = self.checkpoints.unfinished.lock();
        // Somebody else may have just tried.
        if unfinished.is_none() || !self.state.alloc.lock().may_have_room() {
            return Ok(());
        }
        match self.checkpoint_locked(&mut unfinished) {
            Err(VolError::Full) => Ok(()),
            other => other,
        }
    }

    /// What nobody asked to be durable waits in memory for its batch: no more of it than of changes, whatever room the journal has.
    fn bound_waiting(&self) -> VolResult<()> {
        let (waiting, max) = (self.state.wal.waiting_bytes(), self.overlay_bytes_max());
        if waiting >= max {
            return self.sync();
        }
        if waiting >= max / 2 {
            self.wakeup.wake();
        }
        Ok(())
    }

    /// The same before an operation that takes away: refused last, as only such make room.
    pub fn make_room_for_less(&self) -> VolResult<()> {
        match self.make_room() {
            Err(VolError::Full) if self.state.wal.fullness() < JOURNAL_FULL_LAST => Ok(()),
            other => other,
        }
    }

    /// Whether what was deleted may be taken away by one more operation. A checkpoint is asked for early enough.
    pub fn may_reclaim(&self) -> bool {
        if self.is_over(JOURNAL_FULL_SOFT, 1) {
            self.wakeup.ask_checkpoint();
        }
        !self.is_over(JOURNAL_FULL_RECLAIM, RECLAIM_OVERLAYS)
    }

    /// Whether one more operation may follow where a checkpoint cannot be made between them, as the caller holds the data of
    /// files: there is as much room in the journal for it as behind [`Engine::make_room`].
    pub fn may_go_on(&self) -> VolResult<bool> {
        self.bound_waiting()?;
        let is_hard = self.state.wal.fullness_before_largest() >= JOURNAL_FULL_HARD;
        Ok(!is_hard && !self.is_over(JOURNAL_FULL_HARD, RECLAIM_OVERLAYS))
    }

    /// Takes away what has no user any more, with checkpoints as that needs them. Without locks.
    pub fn reclaim_all(&self) -> VolResult<()> {
        while !self.deferrals.reclaim() {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn is_over(&self, journal: u64, overlays: usize) -> bool {
        self.state.wal.fullness() >= journal
            || self.state.core.read().overlay_bytes >= self.overlay_bytes_max().saturating_mul(overlays)
    }

    /// Brings the tree on the device up to date and lets the journal begin anew. All that was done before the call is in the tree then,
    /// and so durable.
    pub fn checkpoint(&self) -> VolResult<()> {
        let mut unfinished = self.checkpoints.unfinished.lock();
        if unfinished.is_some() {
            // It ends one that found no room: that one has what was done up to then.
            self.checkpoint_locked(&mut unfinished)?;
        }
        self.checkpoint_locked(&mut unfinished)
    }

    /// A checkpoint that ends an epoch: no operation of this epoch is missing in it, and none of the next is in it. The
    /// epoch that it ended, and a transaction in which that can be said: until then nothing changes, as blocks that somebody lets
    /// go of would be free, and not held by what this state becomes.
    pub fn checkpoint_epoch(&self, unfinished: &mut Option<Freeze>) -> VolResult<(u32, Txn<'_>)> {
        // Twice at most, so that little is left to be written while all wait.
        if unfinished.is_some() {
            self.checkpoint_locked(unfinished)?;
        }
        self.checkpoint_locked(unfinished)?;
        let mut t = self.begin();
        let epoch = t.core.epoch;
        t.next_epoch();
        t.finish()?;
        let freeze = unfinished.insert(self.freeze(&mut t.core));
        let (frozen, root) = (t.core.frozen.clone(), t.core.root);
        if let Some(frozen) = frozen {
            let (sb, freed) = self.write_checkpoint(freeze, || self.apply(&root, frozen.layer()))?;
            self.install(&mut t.core, &sb, &freed);
            self.end_checkpoint(sb, unfinished);
        }
        Ok((epoch, t.again()))
    }

    /// Writes the superblock of the last checkpoint with a change, durably.
    pub fn change_superblock(
        &self,
        _guard: &MutexGuard<'_, Option<Freeze>>,
        change: impl FnOnce(&mut Superblock),
    ) -> VolResult<()> {
        self.state.check_alive()?;
        self.write_superblock(change)
    }

    /// The same superblock in the other slot.
    pub fn renew_superblock(&self) -> VolResult<()> {
        self.change_superblock(&self.lock_checkpoint(), |_| {})
    }

    fn write_superblock(&self, change: impl FnOnce(&mut Superblock)) -> VolResult<()> {
        let mut sb = self.superblock();
        sb.generation += 1;
        change(&mut sb);
        let written = || -> VolResult<()> {
            sb.write(&*self.device)?;
            self.device.flush()?;
            Ok(())
        };
        written().map_err(|e| self.state.fail(e))?;
        *self.checkpoints.superblock.lock() = sb;
        Ok(())
    }

    fn checkpoint_locked(&self, unfinished: &mut Option<Freeze>) -> VolResult<()> {
        self.state.check_alive()?;
        if unfinished.is_none() {
            self.deferrals.before_checkpoint()?;
            let mut core = self.state.core.write();
            // What was written to the journal while the last one was made is in the tree, and still takes room there.
            if core.overlay.is_empty() && self.state.wal.fullness() < JOURNAL_FULL_SOFT {
                return Ok(());
            }
            *unfinished = Some(self.freeze(&mut core));
        }
        let Some(freeze) = unfinished.as_ref() else { return Ok(()) };
        let (frozen, root) = {
            let core = self.state.core.read();
            (core.frozen.clone(), core.root)
        };
        let Some(frozen) = frozen else { return Ok(()) };
        let apply = || self.with_relief(|| self.apply(&root, frozen.layer()));
        let (sb, freed) = self.write_checkpoint(freeze, apply)?;
        self.install(&mut self.state.core.write(), &sb, &freed);
        self.end_checkpoint(sb, unfinished);
        if !self.options.background {
            self.rest();
            self.rest();
            self.give_back();
        }
        Ok(())
    }

    /// Writes the tree of what is frozen, and the superblock that leads to it. That superblock, and the nodes that the tree has no more.
    fn write_checkpoint(
        &self,
        freeze: &Freeze,
        apply: impl FnOnce() -> VolResult<Applied>,
    ) -> VolResult<(Superblock, Vec<Ptr>)> {
        let applied = match apply() {
            Ok(a) => a,
            // No room: tried again later, with what is frozen.
            Err(VolError::Full | VolError::Io(IoError::NoSpace)) => {
                self.checkpoints.lacks_room.store(true, Ordering::Relaxed);
                self.state.alloc.lock().freed_blocks = 0;
                return Err(VolError::Full);
            }
            Err(e) => return Err(self.state.fail(e)),
        };
        let mut sb = self.superblock();
        sb.generation += 1;
        sb.root = applied.root;
        sb.start = freeze.start;
        sb.openings.begins_at(freeze.start.batch);
        sb.seq = freeze.seq;
        sb.next_id = freeze.next_id;
        sb.counters = freeze.counters;
        sb.epoch = freeze.epoch;
        if sb.epoch > FIRST_EPOCH {
            sb.features |= feature::SNAPSHOTS;
        }
        let written = || -> VolResult<()> {
            self.device.flush()?;
            sb.write(&*self.device)?;
            self.device.flush()?;
            Ok(())
        };
        written().map_err(|e| self.state.fail(e))?;
        Ok((sb, applied.freed))
    }

    /// The tree of the checkpoint takes the place of what was frozen.
    fn install(&self, core: &mut Core, sb: &Superblock, freed: &[Ptr]) {
        core.root = sb.root;
        (core.frozen, core.frozen_bytes) = (None, 0);
        let kept = core.snapshots.last().map_or(0, |s| s.generation);
        let mut alloc = self.state.alloc.lock();
        for ptr in freed.iter().filter(|p| p.birth > kept) {
            self.state.tree.forget(ptr.block);
            alloc.cancel(Run { start: ptr.block, len: NODE_BLOCKS });
        }
        alloc.left_to_checkpoint = 0;
        core.tell_bytes();
    }

    /// The log begins behind the checkpoint.
    fn end_checkpoint(&self, sb: Superblock, unfinished: &mut Option<Freeze>) {
        let Some(freeze) = unfinished.take() else { return };
        *self.checkpoints.superblock.lock() = sb;
        self.checkpoints.lacks_room.store(false, Ordering::Relaxed);
        self.state.wal.trim(freeze.used, freeze.seq);
        self.committer.now_durable(freeze.seq);
    }

    /// The tree of the next generation. One that came to nothing may have left nodes, and takes its generation with it.
    fn apply(&self, root: &Root, frozen: &Layer) -> VolResult<Applied> {
        let generation = self.superblock().generation + 1;
        self.state.tree.apply(root, frozen, generation, &self.state.alloc).map_err(|failed| {
            let renewed = if failed.wrote { self.write_superblock(|_| {}) } else { Ok(()) };
            renewed.err().unwrap_or(failed.error)
        })
    }

    /// Takes all changes so far as the next checkpoint's.
    fn freeze(&self, core: &mut Core) -> Freeze {
        let mut layer = std::mem::take(&mut core.overlay);
        core.frozen_bytes = std::mem::take(&mut core.overlay_bytes);
        let mut alloc = self.state.alloc.lock();
        // Leaves are half full at worst.
        alloc.left_to_checkpoint = 2 * (core.frozen_bytes as u64).div_ceil(BLOCK_BYTES);
        for (page, bytes) in alloc.take_dirty() {
            layer.insert(keys::one(keys::MAP, page as u64), bytes.map(Into::into));
        }
        drop(alloc);
        let listed: Vec<u8> = core
            .dirty
            .iter()
            .take(DIRTY_LISTED_MAX)
            .flat_map(|(sid, ino)| [sid.to_le_bytes(), ino.to_le_bytes()].concat())
            .collect();
        layer.insert(vec![keys::DIRTY], (!listed.is_empty()).then(|| listed.into()));
        core.frozen = Some(Arc::new(layer));
        let (start, used) = self.state.wal.position();
        let (seq, next_id, counters, epoch) =
            (core.seq, core.next_id.load(Ordering::Relaxed), core.counters, core.epoch);
        Freeze { seq, next_id, counters, epoch, start, used }
    }

    /// From now on the volume holds what this bit of [`feature`] stands for: known on the device before the first change
    /// that needs it, in both slots, as a program that cannot read one may take the other.
    pub fn use_feature(&self, bit: u32) -> VolResult<()> {
        let guard = self.lock_checkpoint();
        if self.superblock().features & bit == bit {
            return Ok(());
        }
        self.change_superblock(&guard, |sb| sb.features |= bit)?;
        self.change_superblock(&guard, |_| {})
    }

    /// Where the nodes of all trees are. Changes go on meanwhile: nodes come and go under the lock of checkpoints alone, those of a
    /// deleted snapshot too.
    pub fn nodes(&self) -> VolResult<Vec<Ptr>> {
        let _guard = self.lock_checkpoint();
        let mut out = Vec::new();
        let (snapshots, root) = {
            let core = self.state.core.read();
            (core.snapshots.clone(), core.root)
        };
        visit_nodes(&snapshots, &root, &self.state.tree, &mut |ptr| {
            out.push(*ptr);
            Ok(())
        })?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::testing::{Files, Volume, Watched, load_inode, options, volume};

    /// What is written to the journal while a checkpoint is made takes room there behind it, though the tree has all of it. The next
    /// checkpoint gives that room back even if nothing has changed: who needs room for a change would else never get it.
    #[test]
    fn a_checkpoint_gives_back_what_was_written_while_the_last_one_was_made() {
        let (memory, vol) = volume(16 << 20);
        drop(vol);
        let meanwhile: Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>> = Arc::default();
        let acts = meanwhile.clone();
        let before_write = move |_: u64, _: &[u8]| {
            let act = acts.lock().take();
            act.into_iter().for_each(|act| std::thread::spawn(act).join().unwrap());
        };
        let vol = Volume::open(Arc::new(Watched { memory, before_write }), options()).unwrap();
        let node = Files::new(&vol).make("f", false).unwrap();
        vol.checkpoint().unwrap();
        let inode = load_inode(&vol.engine.reading(), node.id().file).unwrap();
        let fullness = || vol.engine.state.wal.fullness();
        while fullness() < 500 {
            let mut t = vol.files.begin();
            t.put_inode(node.id().file, &inode);
            t.commit().unwrap();
        }
        let writes = vol.clone();
        *meanwhile.lock() = Some(Box::new(move || writes.sync().unwrap()));
        vol.checkpoint().unwrap();
        assert!(fullness() >= 500, "it was written meanwhile: {}", fullness());
        vol.checkpoint().unwrap();
        assert!(fullness() < 50, "{}", fullness());
    }

    /// Else new files would take what has become free, and the checkpoint would lack room until somebody deletes those.
    #[test]
    fn a_checkpoint_that_found_no_room_is_ended_when_enough_has_become_free() {
        let (_memory, vol) = volume(16 << 20);
        let files = Files::new(&vol);
        let (little, much) = (files.write("little", &[1; 64 << 10]), files.write("much", &[2; 1 << 20]));
        vol.checkpoint().unwrap();
        (0..300).for_each(|i| drop(files.make(&format!("{i}"), false).unwrap()));
        vol.sync().unwrap();
        let alloc = &vol.engine.state.alloc;
        let others: Vec<u64> = std::iter::from_fn(|| alloc.lock().reserve_node(1).ok()).collect();
        assert_eq!(vol.checkpoint(), Err(VolError::Full));
        others.into_iter().for_each(|start| alloc.lock().cancel(Run { start, len: 1 }));
        let is_unfinished = || vol.engine.lock_checkpoint().is_some();
        let needed = alloc.lock().left_to_checkpoint;
        assert!(needed > 16, "{needed}: the test shows nothing");
        little.unlink(None).unwrap();
        drop(little);
        files.make("before there is enough", false).unwrap();
        assert!(is_unfinished());
        much.unlink(None).unwrap();
        drop(much);
        files.make("behind it", false).unwrap();
        assert!(!is_unfinished());
        assert!(files.find("99").is_some());
    }
}
