//! The engine: the volume's state, the one who commits it, and its checkpoints. Owns nothing of files; layers above take part
//! by [`TxnHook`](crate::engine::txn::TxnHook) and [`Deferred`](crate::engine::deferred::Deferred).
//! The order of its locks is in docs/locks.md.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arden_block::{BLOCK_BYTES, Device};
use arden_lock::{Mutex, MutexGuard, RwLock, ranks};

use crate::{
    disk::{
        error::VolResult,
        superblock::{Counters, JournalStart, Superblock},
    },
    engine::{
        commit::{Committed, Committer},
        deferred::Deferrals,
        load::Loaded,
        state::{Reading, State},
        threads::Wakeup,
        txn::{Hooks, Txn},
    },
};

/// Limits and habits of the engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Changes in memory at first; a checkpoint is made when they are more.
    pub overlay_bytes_max: usize,
    /// Threads of the engine's own commit and make checkpoints. Without them, callers do when they have to.
    pub background: bool,
    /// How long a change that nobody waits for may stay in memory.
    pub commit_interval: Duration,
    /// How long a piece of the device has to be empty before it is given back: what is soon written again should not
    /// have to be made ready again.
    pub give_back_after: Duration,
}

/// A checkpoint that is being made.
pub struct Freeze {
    pub seq: u64,
    pub next_id: u64,
    pub counters: Counters,
    pub epoch: u32,
    pub start: JournalStart,
    pub used: u64,
}

/// What the device says of the last checkpoint, and the next one.
pub struct Checkpoints {
    /// As it was last written; changed only under `unfinished`, read under any.
    pub superblock: Mutex<Superblock, ranks::VolumeSuperblock>,
    /// Held while one is made, or while the trees have to stay as they are.
    pub unfinished: Mutex<Option<Freeze>, ranks::Checkpoint>,
    /// There is one that found no room; what has become free since, the allocator knows.
    pub lacks_room: AtomicBool,
}

pub struct Engine {
    pub device: Arc<dyn Device>,
    pub state: State,
    pub committer: Committer,
    pub checkpoints: Checkpoints,
    pub wakeup: Arc<Wakeup>,
    pub deferrals: Arc<Deferrals>,
    pub options: EngineOptions,
    overlay_bytes_max: AtomicUsize,
    changes_bytes: Arc<AtomicUsize>,
    hooks: Hooks,
}

impl Engine {
    pub fn new(
        device: Arc<dyn Device>,
        sb: Superblock,
        loaded: Loaded,
        (hooks, deferrals): (Hooks, Arc<Deferrals>),
        options: EngineOptions,
    ) -> Arc<Engine> {
        let Loaded { core, alloc, wal, tree } = loaded;
        let (seq, changes_bytes) = (core.seq, core.changes_bytes.clone());
        let (alloc, wal) = (Arc::new(Mutex::new(alloc)), Arc::new(wal));
        let state = State {
            changing: Mutex::new(()),
            core: RwLock::new(core),
            tree,
            alloc,
            wal,
            failed: Arc::new(AtomicBool::new(false)),
        };
        let committer = Committer::new(device.clone(), &state, seq);
        let checkpoints = Checkpoints {
            superblock: Mutex::new(sb),
            unfinished: Mutex::new(None),
            lacks_room: AtomicBool::new(false),
        };
        let wakeup = Arc::default();
        let overlay_bytes_max = AtomicUsize::new(options.overlay_bytes_max);
        Arc::new(Engine {
            device,
            state,
            committer,
            checkpoints,
            wakeup,
            deferrals,
            options,
            overlay_bytes_max,
            changes_bytes,
            hooks,
        })
    }

    /// Changes in memory; a checkpoint is made when they are more.
    pub fn overlay_bytes_max(&self) -> usize {
        self.overlay_bytes_max.load(Ordering::Relaxed)
    }

    /// From now on so many. Where that is less than there are, a checkpoint is made, also when nothing else changes.
    pub fn set_overlay_bytes(&self, bytes_max: usize) {
        let less = bytes_max < self.overlay_bytes_max.swap(bytes_max, Ordering::Relaxed);
        if less && self.options.background && self.changes_bytes.load(Ordering::Relaxed) >= bytes_max {
            self.wakeup.ask_checkpoint();
        }
    }

    pub fn superblock(&self) -> Superblock {
        self.checkpoints.superblock.lock().clone()
    }

    /// While it is held, no checkpoint is made: the trees stay as they are.
    pub fn lock_checkpoint(&self) -> MutexGuard<'_, Option<Freeze>> {
        self.checkpoints.unfinished.lock()
    }

    pub fn reading(&self) -> Reading<'_> {
        self.state.reading()
    }

    /// See [`Txn::alone`].
    pub fn begin(&self) -> Txn<'_> {
        Txn::alone(&self.state, &self.hooks)
    }

    /// See [`Txn::beside`].
    pub fn begin_beside(&self) -> Txn<'_> {
        Txn::beside(&self.state, &self.hooks)
    }

    /// Returns when operation `seq`, and all before it, are durable.
    pub fn commit_to(&self, seq: u64) -> VolResult<()> {
        self.committer.commit_to(seq)
    }

    /// Whether there is a thread for `commit_later`, or none is needed.
    pub fn commits_later(&self) -> bool {
        self.options.background || self.committer.tells()
    }

    /// Calls `done`, which must not wait for this volume, when operation `seq`, and all before it, are durable: on the
    /// engine's thread or the device's, or here where there is none or they are.
    pub fn commit_later(&self, seq: u64, done: Committed) {
        self.committer.commit_later(seq, done);
    }

    /// Its threads end when they have done what they were asked for.
    pub fn stop_threads(&self) {
        self.wakeup.stop();
        self.committer.stop_serving();
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> VolResult<()> {
        let seq = self.state.core.read().seq;
        self.commit_to(seq)
    }

    /// The number of the last operation, and of the last durable one.
    pub fn progress(&self) -> (u64, u64) {
        // The durable one first, so that it is never ahead.
        let durable = self.committer.durable();
        (self.state.core.read().seq, durable)
    }

    /// Bytes in memory for nodes of the tree, and for changes that no checkpoint has written yet or that wait for their batch. Does not
    /// wait for a device.
    pub fn memory(&self) -> (u64, u64) {
        let changes = self.changes_bytes.load(Ordering::Relaxed);
        (self.state.tree.cached_bytes() as u64, (changes + self.state.wal.waiting_bytes()) as u64)
    }

    pub fn rest(&self) {
        self.state.alloc.lock().rest();
    }

    /// Total, free, and promised bytes.
    pub fn room(&self) -> (u64, u64, u64) {
        self.deferrals.reclaim();
        let promised = {
            let core = self.state.core.read();
            (core.counters.promised + core.counters.resident).max(0) as u64
        };
        let alloc = self.state.alloc.lock();
        let free = alloc.free_blocks().saturating_sub(alloc.reserve).saturating_sub(promised);
        (alloc.total_blocks() * BLOCK_BYTES, free * BLOCK_BYTES, promised * BLOCK_BYTES)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop_threads();
        // One that stopped has said so.
        if self.options.background && self.state.check_alive().is_ok() && self.sync().is_err() {
            tracing::warn!("the last changes of a volume may be lost");
        }
    }
}
