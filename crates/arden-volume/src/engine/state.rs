//! The volume's state in memory, and what every change of it needs at hand. Owns the one lock that all changes take.
//!
//! | lock | protects | taken |
//! |---|---|---|
//! | `State::changing` | nothing by itself: who has it makes the one transaction that there is | for the length of a transaction |
//! | `State::core` | keys and values since the last checkpoint, sums, ids, the list of snapshots | for reading by every look, and by a transaction while it is made; for writing while its changes take effect |
//! | `State::alloc` | which blocks are free | alone or under `core`, for moments |
//! | `Wal` (its own) | records that wait for a batch | under `core`, so that records have the order of their numbers |
//! | `Tree` (its own, sharded) | nodes in memory, and rows that were found last | under any of them |

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use arden_lock::{Mutex, ReadGuard, RwLock, WriteGuard, ranks};

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys::{Key, Val},
        superblock::Counters,
    },
    engine::{
        alloc::AllocLock,
        kept::{Past, Snapshot},
        tree::{
            Layer, Root, Tree,
            overlay::{self, Overlay},
        },
        view::{Take, View, scan},
        wal::Wal,
    },
};

/// What a key and its value cost in memory besides their bytes.
const OVERHEAD: usize = 96;

#[derive(Default)]
pub struct Core {
    pub overlay: Overlay,
    pub overlay_bytes: usize,
    /// What a checkpoint is writing.
    pub frozen: Option<Arc<Overlay>>,
    pub frozen_bytes: usize,
    /// The bytes of both, for those who must not wait while somebody changes the volume.
    pub changes_bytes: Arc<AtomicUsize>,
    pub root: Root,
    /// The last that was given.
    pub next_id: AtomicU64,
    pub seq: u64,
    pub counters: Counters,
    /// Streams with blocks in the tree that should get a place, and the files that they are of.
    pub dirty: BTreeMap<u64, u64>,
    /// Counts snapshots: what is written now is in none of those that there are.
    pub epoch: u32,
    /// Oldest first.
    pub snapshots: Vec<Arc<Snapshot>>,
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
        let hash = overlay::hash(key);
        let changed = self.overlay.get(key, hash).or_else(|| self.frozen.as_ref()?.get(key, hash));
        match changed {
            Some(value) => Ok(value.clone()),
            None => tree.get_hashed(&self.root, key, hash),
        }
    }

    pub fn scan(&self, tree: &Tree, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        let layers: Vec<&Layer> =
            std::iter::once(&self.overlay).chain(self.frozen.as_deref()).map(Overlay::layer).collect();
        scan(&layers, tree, &self.root, start, end, take)
    }

    pub fn set(&mut self, key: Key, value: Option<Val>) {
        let size = key.len() + value.as_ref().map_or(0, |v| v.len()) + OVERHEAD;
        let key_len = key.len();
        let old = self.overlay.insert(key, value);
        let old = old.map_or(0, |v| key_len + v.map_or(0, |v| v.len()) + OVERHEAD);
        self.overlay_bytes = (self.overlay_bytes + size).saturating_sub(old);
        self.tell_bytes();
    }

    /// After each change of what the layers take.
    pub fn tell_bytes(&self) {
        self.changes_bytes.store(self.overlay_bytes + self.frozen_bytes, Ordering::Relaxed);
    }
}

/// The present state, for reading.
pub struct Reading<'a> {
    pub tree: &'a Tree,
    pub core: ReadGuard<'a, Core>,
}

impl View for Reading<'_> {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>> {
        self.core.get(self.tree, key)
    }
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        self.core.scan(self.tree, start, end, take)
    }
}

/// The state as a transaction has it: beside others who read, until the first change of it.
pub struct Held<'a> {
    lock: &'a RwLock<Core, ranks::VolumeState>,
    beside: Option<ReadGuard<'a, Core>>,
    alone: Option<WriteGuard<'a, Core>>,
}

impl<'a> Held<'a> {
    /// Nobody else reads from the beginning.
    pub fn alone(state: &'a State) -> Held<'a> {
        Held { lock: &state.core, beside: None, alone: Some(state.core.write()) }
    }

    pub fn beside(state: &'a State) -> Held<'a> {
        Held { lock: &state.core, beside: Some(state.core.read()), alone: None }
    }
}

impl Deref for Held<'_> {
    type Target = Core;
    fn deref(&self) -> &Core {
        match (&self.alone, &self.beside) {
            (Some(core), _) => core,
            (None, Some(core)) => core,
            (None, None) => unreachable!("it is held in one way or the other"),
        }
    }
}

impl DerefMut for Held<'_> {
    /// Waits until nobody reads. Only a checkpoint comes between, which moves changes and makes none.
    fn deref_mut(&mut self) -> &mut Core {
        self.beside = None;
        self.alone.get_or_insert_with(|| self.lock.write())
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

/// What transactions, commits and checkpoints work on.
pub struct State {
    pub changing: Mutex<(), ranks::VolumeChange>,
    pub core: RwLock<Core, ranks::VolumeState>,
    pub tree: Tree,
    pub alloc: Arc<AllocLock>,
    pub wal: Arc<Wal>,
    /// Set for good by the first write that failed.
    pub failed: Arc<AtomicBool>,
}

impl State {
    pub fn reading(&self) -> Reading<'_> {
        Reading { tree: &self.tree, core: self.core.read() }
    }

    /// The state to read in: now, or a snapshot's. None when that is gone.
    pub fn reading_at<'a>(&'a self, past: Option<&'a Snapshot>) -> Option<Moment<'a>> {
        let Some(s) = past else { return Some(Moment::Now(self.reading())) };
        s.read(&self.tree).map(Moment::Past)
    }

    /// # Errors
    /// `Failed` once a write failed.
    pub fn check_alive(&self) -> VolResult<()> {
        if self.failed.load(Ordering::Acquire) { Err(VolError::Failed) } else { Ok(()) }
    }

    /// Nothing more is changed after `e`.
    pub fn fail(&self, e: VolError) -> VolError {
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!("the volume stops: {e}");
        }
        e
    }
}
