//! What other threads know of an open pool to read its disks by themselves: for each group an immutable view of where it lies, and
//! two numbers that say whether the view still holds. The pool's thread alone writes here; anybody reads.
//!
//! A reader takes a view, looks whether memory has newer data ([`Gate::has_newer`]), reads the disk, and then looks whether the view
//! still holds ([`View::holds`]). No reader is waited for: a place is given to somebody else only after the version was raised, so
//! whoever has read another's data sees that it was. Both looks are needed. Newer data that came after the first look is of a write
//! that is under way beside the read; newer data that was there before it, and is in its place by the second look, would be missed by
//! the second alone.
//!
//! All accesses are sequentially consistent. The raise comes before the writes that it is about in the order of the pool's thread,
//! and they reach the disk by a system call; the reader's look comes after the completion of its read, which is received with acquire
//! ordering. A count of newer data is raised before the write is answered, and whoever knows of the answer begins to read later.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arden_lock::{RwLock, ranks};
use parking_lot::Mutex;

use crate::disk::reads::DiskReads;
use crate::map::pool_map::{Group, Shape};

/// What holds of all groups of a pool.
#[derive(Default)]
pub(crate) struct PoolViews {
    version: AtomicU64,
    closed: AtomicBool,
    /// Somebody has read since this was asked last.
    used: AtomicBool,
    spaces: Mutex<BTreeMap<u32, Arc<SpaceViews>>>,
}

impl PoolViews {
    pub(crate) fn add_space(self: &Arc<Self>, id: u32, shape: Shape) -> Arc<SpaceViews> {
        let space = SpaceViews { pool: self.clone(), shape, gates: Mutex::default(), views: RwLock::default() };
        let space = Arc::new(space);
        self.spaces.lock().insert(id, space.clone());
        space
    }

    pub(crate) fn forget_space(&self, id: u32) {
        let gone = self.spaces.lock().remove(&id);
        if let Some(space) = gone {
            space.forget_all();
        }
    }

    /// No view of the pool holds any more.
    pub(crate) fn raise(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// No view of the group holds any more.
    pub(crate) fn raise_group(&self, space: u32, group: usize) {
        let of = self.spaces.lock().get(&space).cloned();
        if let Some(space) = of {
            space.gate(group).raise();
        }
    }

    /// Nobody reads by himself any more, and nothing is kept for that.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.raise();
        let all: Vec<_> = self.spaces.lock().values().cloned().collect();
        all.iter().for_each(|s| s.forget_all());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Whether somebody has read by himself since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// Whether a view of a group holds.
#[derive(Default)]
pub(crate) struct Gate {
    version: AtomicU64,
    newer: AtomicU64,
}

impl Gate {
    pub(crate) fn raise(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Memory has something that is newer than what lies in its place. Comes before anybody is answered.
    pub(crate) fn add_newer(&self) {
        self.newer.fetch_add(1, Ordering::SeqCst);
    }

    /// It is in its place, or nobody wants it any more.
    pub(crate) fn remove_newer(&self, count: u64) {
        if count > 0 {
            let before = self.newer.fetch_sub(count, Ordering::SeqCst);
            debug_assert!(before >= count, "{count} of {before} are in their place");
        }
    }

    pub(crate) fn has_newer(&self) -> bool {
        self.newer() > 0
    }

    pub(crate) fn newer(&self) -> u64 {
        self.newer.load(Ordering::SeqCst)
    }
}

/// The groups of one space.
pub(crate) struct SpaceViews {
    pool: Arc<PoolViews>,
    pub(crate) shape: Shape,
    /// Of groups of which something was ever shown, or waits in memory.
    gates: Mutex<HashMap<usize, Arc<Gate>>>,
    views: RwLock<HashMap<usize, Arc<View>>, ranks::SpaceViews>,
}

impl SpaceViews {
    pub(crate) fn gate(&self, group: usize) -> Arc<Gate> {
        self.gates.lock().entry(group).or_default().clone()
    }

    /// Where the group lies, as the map has it now; `columns` are the disks of those that miss nothing and can be read.
    pub(crate) fn show(&self, number: usize, group: Arc<Group>, size_bytes: u64, columns: Vec<Option<Arc<DiskReads>>>) {
        if self.pool.is_closed() {
            return;
        }
        let gate = self.gate(number);
        let version = gate.version.load(Ordering::SeqCst);
        let pool_version = self.pool.version.load(Ordering::SeqCst);
        let view = View { pool: self.pool.clone(), gate, version, pool_version, group, size_bytes, columns };
        let old = self.views.write().insert(number, Arc::new(view));
        drop(old);
    }

    /// The view of a group that was shown last, if it still holds.
    pub(crate) fn view(&self, group: usize) -> Option<Arc<View>> {
        let view = self.views.read().get(&group).cloned();
        view.filter(|v| v.holds())
    }

    pub(crate) fn is_used(&self) {
        if !self.pool.used.load(Ordering::Relaxed) {
            self.pool.used.store(true, Ordering::Relaxed);
        }
    }

    fn forget_all(&self) {
        let old = std::mem::take(&mut *self.views.write());
        drop(old);
    }
}

/// Where a group lay when its numbers were these.
pub(crate) struct View {
    pool: Arc<PoolViews>,
    pub(crate) gate: Arc<Gate>,
    version: u64,
    pool_version: u64,
    pub(crate) group: Arc<Group>,
    pub(crate) size_bytes: u64,
    /// Of each column its disk, if it may be read.
    pub(crate) columns: Vec<Option<Arc<DiskReads>>>,
}

impl View {
    /// Until now nothing of what the view says has changed.
    pub(crate) fn holds(&self) -> bool {
        self.gate.version.load(Ordering::SeqCst) == self.version
            && self.pool.version.load(Ordering::SeqCst) == self.pool_version
    }
}
