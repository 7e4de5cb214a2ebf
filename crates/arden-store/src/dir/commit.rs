//! What changed and is not on stable storage yet, for shares that acknowledge only what is. Each caller of `commit` takes
//! changed files from one list and syncs them, so that callers at the same time share the file system's own commits.
//! Refuses to know what a change was: a file or directory is the unit.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use super::{
    Shared,
    inode::Inode,
    sys::{self, InodeKey, Kind},
};
use crate::{
    error::StoreError,
    group::{CommitLog, GroupCommit, Taken},
};

/// Changed files that are remembered one by one; with more the whole file system is synced.
const CHANGED_MAX: usize = 4096;

/// Changes of a directory store, and who commits them.
pub struct Uncommitted {
    on: AtomicBool,
    commits: Arc<GroupCommit<ChangedFiles>>,
}

/// Files and directories that changed, each a batch of its own.
struct ChangedFiles {
    root: Arc<Inode>,
    proc_fds: Arc<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    changed: BTreeMap<u64, Work>,
    number_of: HashMap<InodeKey, u64>,
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
        if self.changed.len() >= CHANGED_MAX {
            return self.note_all();
        }
        self.last += 1;
        self.number_of.insert(inode.key, self.last);
        self.changed.insert(self.last, Work::File(inode.clone()));
    }

    /// One sync of everything stands for all that wait, and so for the first of them.
    fn note_all(&mut self) {
        self.last += 1;
        let first = self.changed.keys().next().copied().unwrap_or(self.last);
        self.number_of.clear();
        self.changed.clear();
        self.changed.insert(first, Work::All);
    }

    /// The first change up to `target` that nobody syncs yet.
    fn take(&mut self, target: u64) -> Option<Taken<Work>> {
        let number = *self.changed.range(..=target).next()?.0;
        let batch = self.changed.remove(&number)?;
        if let Work::File(inode) = &batch {
            self.number_of.remove(&inode.key);
        }
        let upto = self.changed.keys().next().map_or(self.last, |next| next - 1);
        Some(Taken { batch, upto })
    }
}

impl CommitLog for ChangedFiles {
    type Batch = Work;
    type Error = StoreError;
    /// The kernel tells of a failed sync once, and the next one succeeds without what was lost: whoever waits may have lost
    /// a change then.
    const INDEPENDENT: bool = true;

    fn take(&self, target: u64) -> Result<Option<Taken<Work>>, StoreError> {
        Ok(self.state.lock().take(target))
    }

    fn write(&self, work: Work) -> Result<(), StoreError> {
        self.sync_changed(&work)
            .inspect_err(|error| tracing::error!(%error, "a change could not be brought to stable storage"))
    }

    fn abandoned() -> StoreError {
        StoreError::SystemError
    }
}

impl ChangedFiles {
    fn sync_changed(&self, work: &Work) -> Result<(), StoreError> {
        let synced = match work {
            Work::File(inode) if inode.kind == Kind::Symlink => return Ok(()),
            Work::File(inode) => {
                let whole = inode.metadata_unsynced.swap(false, Ordering::Relaxed) || inode.kind == Kind::Directory;
                inode.for_reading(self.proc_fds.as_fd()).and_then(|fd| match whole {
                    true => rustix::fs::fsync(fd),
                    false => rustix::fs::fdatasync(fd),
                })
            }
            Work::All => self.root.for_reading(self.proc_fds.as_fd()).and_then(rustix::fs::syncfs),
        };
        synced.map_err(sys::error)
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
        let mut state = self.store.uncommitted.commits.log().state.lock();
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
    pub fn new(root: &Arc<Inode>, proc_fds: &Arc<OwnedFd>) -> Uncommitted {
        let changed = ChangedFiles { root: root.clone(), proc_fds: proc_fds.clone(), state: Mutex::default() };
        Uncommitted { on: AtomicBool::new(false), commits: GroupCommit::new(changed, 0) }
    }

    /// The number of the last change.
    fn last(&self) -> u64 {
        self.commits.log().state.lock().last
    }

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
        self.uncommitted.last() > self.uncommitted.commits.durable()
    }

    /// Every change noted before is on stable storage when this returns.
    pub fn commit(&self) -> Result<(), StoreError> {
        self.uncommitted.commits.commit(self.uncommitted.last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody waits for a change already, and then all that wait become one.
    #[test]
    fn a_sync_of_everything_keeps_the_place_of_what_it_stands_for() {
        let mut state = State::default();
        state.note_all();
        let waited_for = state.last;
        state.note_all();
        assert!(state.take(waited_for).is_some(), "whoever waits for the first would go without");
        assert!(state.take(state.last).is_none());
        state.note_all();
        assert_eq!(state.take(state.last).map(|t| t.upto), Some(state.last));
    }
}
