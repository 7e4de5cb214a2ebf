//! What changed and is not on stable storage yet, for shares that acknowledge only what is. Each caller of `commit` takes
//! changed files from one list and syncs them, so that callers at the same time share the file system's own commits.
//! Refuses to know what a change was: a file or directory is the unit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::{Condvar, Mutex};

use super::{
    Shared,
    inode::Inode,
    sys::{self, InodeKey, Kind},
};
use crate::error::StoreError;
use crate::store::Result;

/// Changed files that are remembered one by one; with more the whole file system is synced.
const CHANGED_MAX: usize = 4096;

#[derive(Default)]
pub struct Uncommitted {
    on: AtomicBool,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    changed: BTreeMap<u64, Work>,
    number_of: HashMap<InodeKey, u64>,
    running: BTreeSet<u64>,
    /// How many syncs failed, and with what the last one did.
    failures: u64,
    failure: Option<StoreError>,
}

enum Work {
    File(Arc<Inode>),
    All,
}

impl State {
    fn note(&mut self, inode: &Arc<Inode>) {
        if self.number_of.contains_key(&inode.key) {
            return;
        }
        self.last += 1;
        if self.changed.len() >= CHANGED_MAX {
            // One sync of everything stands for all of them.
            self.number_of.clear();
            self.changed.clear();
            self.changed.insert(self.last, Work::All);
            return;
        }
        self.number_of.insert(inode.key, self.last);
        self.changed.insert(self.last, Work::File(inode.clone()));
    }

    fn note_all(&mut self) {
        self.last += 1;
        self.number_of.clear();
        self.changed.clear();
        self.changed.insert(self.last, Work::All);
    }

    /// The first change up to `target` that nobody syncs yet.
    fn take(&mut self, target: u64) -> Option<(u64, Work)> {
        let number = *self.changed.range(..=target).next()?.0;
        let work = self.changed.remove(&number)?;
        if let Work::File(inode) = &work {
            self.number_of.remove(&inode.key);
        }
        self.running.insert(number);
        Some((number, work))
    }
}

/// A change is under way; it counts as changed once this is dropped, done or not.
#[must_use]
pub struct Changing<'a> {
    store: &'a Shared,
    inodes: [Option<Arc<Inode>>; 3],
    all: bool,
    /// More than data and size: attributes, names.
    metadata: bool,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if self.inodes[0].is_none() && !self.all {
            return;
        }
        let mut state = self.store.uncommitted.state.lock();
        if self.all {
            state.note_all();
        }
        for inode in self.inodes.iter().flatten() {
            if self.metadata {
                inode.metadata_unsynced.store(true, Ordering::Relaxed);
            }
            state.note(inode);
        }
    }
}

impl Changing<'_> {
    /// Nothing but the data of the file and its size.
    pub fn data_only(mut self) -> Self {
        self.metadata = false;
        self
    }
    /// One more file that the change turned out to be about.
    pub fn and(&mut self, inode: &Arc<Inode>) {
        if self.store.uncommitted.is_on()
            && let Some(free) = self.inodes.iter_mut().find(|i| i.is_none())
        {
            *free = Some(inode.clone());
        }
    }
    /// The change reaches files that have no inode here: streams kept aside.
    pub fn everything(&mut self) {
        self.all = self.store.uncommitted.is_on();
    }
}

impl Uncommitted {
    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Files and directories that are about to change.
    pub fn changing<const N: usize>(&self, inodes: [&Arc<Inode>; N]) -> Changing<'_> {
        let mut changing = Changing { store: self, inodes: [None, None, None], all: false, metadata: true };
        for inode in inodes {
            changing.and(inode);
        }
        changing
    }

    pub fn note_changes(&self) {
        self.uncommitted.on.store(true, Ordering::Relaxed);
    }

    pub fn has_uncommitted(&self) -> bool {
        let state = self.uncommitted.state.lock();
        !state.changed.is_empty() || !state.running.is_empty()
    }

    /// Every change noted before is on stable storage when this returns.
    pub fn commit(&self) -> Result<(), StoreError> {
        let u = &self.uncommitted;
        let mut state = u.state.lock();
        let (target, failures) = (state.last, state.failures);
        loop {
            if let Some((number, work)) = state.take(target) {
                drop(state);
                let synced = self.sync_changed(&work);
                state = u.state.lock();
                state.running.remove(&number);
                if let Err(error) = synced {
                    tracing::error!(%error, "a change could not be brought to stable storage");
                    state.failures += 1;
                    state.failure = Some(error);
                }
                u.done.notify_all();
            } else if state.running.range(..=target).next().is_some() {
                u.done.wait(&mut state);
            } else if state.failures != failures {
                // It may have been this caller's change that was lost: the kernel says so only once.
                return Err(state.failure.unwrap_or(StoreError::SystemError));
            } else {
                return Ok(());
            }
        }
    }

    fn sync_changed(&self, work: &Work) -> Result<(), StoreError> {
        let synced = match work {
            Work::File(inode) if inode.kind == Kind::Symlink => return Ok(()),
            Work::File(inode) => {
                let whole = inode.metadata_unsynced.swap(false, Ordering::Relaxed) || inode.kind == Kind::Directory;
                inode.for_reading(self.proc_fds()).and_then(|fd| match whole {
                    true => rustix::fs::fsync(fd),
                    false => rustix::fs::fdatasync(fd),
                })
            }
            Work::All => self.root.for_reading(self.proc_fds()).and_then(rustix::fs::syncfs),
        };
        synced.map_err(sys::error)
    }
}
