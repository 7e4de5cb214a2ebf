//! What changed and is not on stable storage yet, for shares that acknowledge only what is. Each caller of `commit` takes
//! changed files from one list and syncs them, so that callers at the same time share the file system's own commits.
//! Refuses to know what a change was: a file or directory is the unit.
//!
//! The kernel tells of a failed sync once, and the next one succeeds without what was lost. So each changed file knows which
//! scopes changed it, and a failed sync is noted for those: each is told when it commits, whoever synced and whenever. A change
//! is noted before it is made, for syncs that end meanwhile, and after it, for the sync that makes it durable.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arden_lock::{Mutex, MutexGuard, ranks};

use super::{
    Shared,
    inode::{Inode, Link},
    sys::{self, InodeKey, Kind},
};
use crate::{
    commit::{ChangedBy, ScopeId},
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

type Sync = Box<dyn Fn(&Synced) -> Result<(), StoreError> + Send + std::marker::Sync>;

/// Files and directories that changed, each a batch of its own.
struct ChangedFiles {
    state: Mutex<State, ranks::ChangedFiles>,
    sync: Sync,
}

/// By number: what is changed and not being synced, and what is being synced.
#[derive(Default)]
struct State {
    last: u64,
    changed: BTreeMap<u64, Changed>,
    number_of: HashMap<InodeKey, u64>,
    syncing: BTreeMap<u64, Changed>,
    scopes: HashMap<ScopeId, Pending>,
    /// A change of a scope that ended was lost: whoever commits next is told.
    unattended: Option<StoreError>,
}

/// What one sync is for.
#[derive(Clone)]
enum Synced {
    File(Arc<Inode>),
    All,
}

impl Synced {
    /// Whether a sync of this is one of a file with one of these keys.
    fn holds(&self, keys: &[InodeKey]) -> bool {
        match self {
            Synced::File(inode) => keys.contains(&inode.key),
            Synced::All => true,
        }
    }
}

struct Changed {
    what: Synced,
    covered: Covered,
}

/// Whose changes a sync covers.
#[derive(Default)]
struct Covered {
    scopes: BTreeSet<ScopeId>,
    /// And of scopes that ended without a commit.
    ended: bool,
}

/// What a scope waits for.
#[derive(Default)]
struct Pending {
    syncs: usize,
    /// Why one of them failed.
    lost: Option<StoreError>,
    ended: bool,
}

/// One to be synced, taken from the list. Dropped without `over`, it failed.
struct Batch {
    number: u64,
    what: Synced,
}

impl Covered {
    fn add(&mut self, by: ChangedBy, scopes: &mut HashMap<ScopeId, Pending>) {
        if let Some(scope) = by
            && self.scopes.insert(scope)
        {
            scopes.entry(scope).or_default().syncs += 1;
        }
    }
}

impl State {
    fn note(&mut self, inode: &Arc<Inode>, by: ChangedBy) {
        let number = match self.number_of.get(&inode.key) {
            Some(number) => *number,
            None if self.changed.len() >= CHANGED_MAX => return self.note_all(by),
            None => {
                self.last += 1;
                self.number_of.insert(inode.key, self.last);
                let changed = Changed { what: Synced::File(inode.clone()), covered: Covered::default() };
                self.changed.insert(self.last, changed);
                self.last
            }
        };
        if let Some(changed) = self.changed.get_mut(&number) {
            changed.covered.add(by, &mut self.scopes);
        }
    }

    /// One sync of everything stands for all that wait, and so for the first of them.
    fn note_all(&mut self, by: ChangedBy) {
        self.last += 1;
        let first = self.changed.keys().next().copied().unwrap_or(self.last);
        self.number_of.clear();
        let mut covered = Covered::default();
        for changed in std::mem::take(&mut self.changed).into_values() {
            covered.ended |= changed.covered.ended;
            for scope in changed.covered.scopes {
                covered.add(Some(scope), &mut self.scopes);
                self.scopes.entry(scope).or_default().syncs -= 1;
            }
        }
        covered.add(by, &mut self.scopes);
        self.changed.insert(first, Changed { what: Synced::All, covered });
    }

    /// What is known of these files and not synced is a part of the scope. False: nothing is.
    fn rely_on(&mut self, scope: ScopeId, keys: &[InodeKey]) -> bool {
        let mut found = false;
        for changed in self.changed.values_mut().chain(self.syncing.values_mut()).filter(|c| c.what.holds(keys)) {
            changed.covered.add(Some(scope), &mut self.scopes);
            found = true;
        }
        found
    }

    /// The first change up to `target` that nobody syncs yet.
    fn take(&mut self, target: u64) -> Option<Taken<Batch>> {
        let number = *self.changed.range(..=target).next()?.0;
        let changed = self.changed.remove(&number)?;
        let what = changed.what.clone();
        if let Synced::File(inode) = &what {
            self.number_of.remove(&inode.key);
        }
        self.syncing.insert(number, changed);
        let upto = self.changed.keys().next().map_or(self.last, |next| next - 1);
        Some(Taken { batch: Batch { number, what }, upto })
    }

    /// A sync is over: each scope that it covered is told what came of it when it commits.
    fn over(&mut self, number: u64, result: Result<(), StoreError>) {
        let Some(Changed { what, covered }) = self.syncing.remove(&number) else { return };
        if let Err(error) = result {
            match &what {
                Synced::File(inode) => self.lose(Some(inode.key), error),
                Synced::All => self.lose(None, error),
            }
        }
        for scope in covered.scopes {
            self.end_sync(scope, result);
        }
        if covered.ended {
            self.unattended = self.unattended.or(result.err());
        }
    }

    /// A sync of the file, or of all, failed: so may have what it had of changes that wait for another one.
    fn lose(&mut self, key: Option<InodeKey>, error: StoreError) {
        let others = self.changed.values().chain(self.syncing.values());
        for changed in others.filter(|c| key.is_none_or(|k| c.what.holds(&[k]))) {
            for scope in &changed.covered.scopes {
                if let Some(pending) = self.scopes.get_mut(scope) {
                    pending.lost = pending.lost.or(Some(error));
                }
            }
            if changed.covered.ended {
                self.unattended = self.unattended.or(Some(error));
            }
        }
    }

    fn end_sync(&mut self, scope: ScopeId, result: Result<(), StoreError>) {
        let Some(pending) = self.scopes.get_mut(&scope) else { return };
        pending.syncs -= 1;
        pending.lost = pending.lost.or(result.err());
        if pending.syncs == 0 && pending.ended {
            self.unattended = self.unattended.or(pending.lost);
        }
        if pending.syncs == 0 && (pending.ended || pending.lost.is_none()) {
            self.scopes.remove(&scope);
        }
    }

    /// Whether nothing waits to be synced or is being.
    fn is_idle(&self) -> bool {
        self.changed.is_empty() && self.syncing.is_empty()
    }

    /// Whether there is something to tell the scope.
    fn is_lost(&self, scope: ScopeId) -> bool {
        self.unattended.is_some() || self.scopes.get(&scope).is_some_and(|p| p.lost.is_some())
    }

    fn take_lost(&mut self, scope: ScopeId) -> Option<StoreError> {
        let lost = self.scopes.get_mut(&scope).and_then(|p| p.lost.take());
        if self.scopes.get(&scope).is_some_and(|p| p.syncs == 0) {
            self.scopes.remove(&scope);
        }
        lost.or_else(|| self.unattended.take())
    }

    fn end(&mut self, scope: ScopeId) {
        let Some(pending) = self.scopes.get_mut(&scope) else { return };
        pending.ended = true;
        // What nobody syncs yet need not remember one more scope.
        for covered in self.changed.values_mut().map(|c| &mut c.covered) {
            if covered.scopes.remove(&scope) {
                covered.ended = true;
                pending.syncs -= 1;
            }
        }
        if pending.syncs == 0 {
            self.unattended = self.unattended.or(pending.lost);
            self.scopes.remove(&scope);
        }
    }
}

/// Tells what came of a sync, of one that panicked too.
struct Over<'a> {
    log: &'a ChangedFiles,
    number: u64,
    result: Result<(), StoreError>,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.log.state.lock().over(self.number, self.result);
    }
}

impl CommitLog for ChangedFiles {
    type Batch = Batch;
    type Error = StoreError;
    /// Whoever lost a change is told by `State::over`.
    const INDEPENDENT: bool = true;

    fn take(&self, target: u64) -> Result<Option<Taken<Batch>>, StoreError> {
        Ok(self.state.lock().take(target))
    }

    fn write(&self, batch: Batch) -> Result<(), StoreError> {
        let mut over = Over { log: self, number: batch.number, result: Err(Self::abandoned()) };
        over.result = (self.sync)(&batch.what)
            .inspect_err(|error| tracing::error!(%error, "a change could not be brought to stable storage"));
        over.result
    }

    fn abandoned() -> StoreError {
        StoreError::SystemError
    }
}

fn sync(what: &Synced, root: &Inode, proc_fds: &OwnedFd) -> Result<(), StoreError> {
    let synced = match what {
        Synced::File(inode) if inode.kind == Kind::Symlink => return Ok(()),
        Synced::File(inode) => {
            let whole = inode.metadata_unsynced.swap(false, Ordering::Relaxed) || inode.kind == Kind::Directory;
            inode.for_reading(proc_fds.as_fd()).and_then(|fd| match whole {
                true => rustix::fs::fsync(fd),
                false => rustix::fs::fdatasync(fd),
            })
        }
        Synced::All => root.for_reading(proc_fds.as_fd()).and_then(rustix::fs::syncfs),
    };
    synced.map_err(sys::error)
}

/// A change is under way, from before it is made until this is dropped, done or not.
#[must_use]
pub struct Changing<'a> {
    store: &'a Shared,
    by: ChangedBy,
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
        for inode in self.inodes.iter().flatten().filter(|_| self.metadata) {
            inode.metadata_unsynced.store(true, Ordering::Relaxed);
        }
        self.note();
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
            self.store.uncommitted.state().note(inode, self.by);
        }
    }
    /// The change reaches files that have no inode here: streams kept aside.
    pub fn everything(&mut self) {
        self.all = self.store.uncommitted.is_on();
        if self.all {
            self.store.uncommitted.state().note_all(self.by);
        }
    }
    fn note(&self) {
        let mut state = self.store.uncommitted.state();
        if self.all {
            state.note_all(self.by);
        }
        for inode in self.inodes.iter().flatten() {
            state.note(inode, self.by);
        }
    }
}

impl Uncommitted {
    pub fn new(root: &Arc<Inode>, proc_fds: &Arc<OwnedFd>) -> Uncommitted {
        let (root, proc_fds) = (root.clone(), proc_fds.clone());
        Uncommitted::with(Box::new(move |what| sync(what, &root, &proc_fds)))
    }

    fn with(sync: Sync) -> Uncommitted {
        let commits = GroupCommit::new(ChangedFiles { state: Mutex::default(), sync }, 0);
        Uncommitted { on: AtomicBool::new(false), commits }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.commits.log().state.lock()
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn has_uncommitted(&self, scope: ScopeId) -> bool {
        // In this order: what is over was noted before.
        let durable = self.commits.durable();
        let state = self.state();
        state.last > durable || state.is_lost(scope)
    }

    fn commit(&self, scope: ScopeId) -> Result<(), StoreError> {
        let last = self.state().last;
        self.commits.commit(last)?;
        self.state().take_lost(scope).map_or(Ok(()), Err)
    }
}

impl Shared {
    /// Files and directories that are about to change.
    pub fn changing<const N: usize>(&self, by: ChangedBy, inodes: [&Arc<Inode>; N]) -> Changing<'_> {
        let mut changing = Changing { store: self, by, inodes: [None, None, None], all: false, metadata: true };
        for inode in inodes {
            changing.and(inode);
        }
        changing
    }

    pub fn note_changes(&self) {
        self.uncommitted.on.store(true, Ordering::Relaxed);
    }

    pub fn has_uncommitted(&self, scope: ScopeId) -> bool {
        self.uncommitted.has_uncommitted(scope)
    }

    /// Every change noted before is on stable storage when this returns, or lost.
    pub fn commit(&self, scope: ScopeId) -> Result<(), StoreError> {
        self.uncommitted.commit(scope)
    }

    pub fn end_scope(&self, scope: ScopeId) {
        self.uncommitted.state().end(scope);
    }

    /// Whether the file, its name, or that of a directory above it is not synced: the scope is told what comes of it.
    pub fn rely_on(&self, scope: ScopeId, inode: &Inode, link: &Link) -> bool {
        if self.uncommitted.state().is_idle() {
            return false;
        }
        let mut keys = vec![inode.key];
        let mut parent = link.place.lock().parent.clone();
        while let Some(directory) = parent {
            parent = directory.dir.as_ref().and_then(|part| part.link.place.lock().parent.clone());
            keys.push(directory.key);
        }
        self.uncommitted.state().rely_on(scope, &keys)
    }

    /// A client had the file synced, which failed: whoever commits a change of it would not be told any more.
    pub fn sync_failed(&self, inode: &Inode, error: StoreError) {
        self.uncommitted.state().lose(Some(inode.key), error);
    }
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
