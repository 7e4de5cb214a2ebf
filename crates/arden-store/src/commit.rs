//! A commit scope: what one message changed, and so what its answer waits for. It travels with the message as a value; no
//! thread and no clock says which message a change belongs to. Refuses to know what a change is, and to build answers.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    error::StoreError,
    fs::Fs,
    handles::{Committed, HandleChange},
    store::Result,
};

/// The number of a commit scope, different for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(u64);

/// A root that a scope has to commit.
struct Joined {
    fs: Arc<Fs>,
    /// Changes of files count too, beside what is kept of opens.
    files: bool,
    /// The scope changed what is kept of opens.
    put: bool,
}

/// The changes of one message, or of one piece of the server's own work.
///
/// Whoever answers the message commits the scope first. A scope that is dropped without that (a table event, a time-out, an
/// order of an administrator) is unattended: its changes keep their place in the order, and are durable no later than the
/// next change that anybody commits in the same store.
pub struct CommitScope {
    id: ScopeId,
    roots: RefCell<Vec<Joined>>,
}

impl CommitScope {
    /// Begins a scope without changes.
    pub fn begin() -> CommitScope {
        static LAST: AtomicU64 = AtomicU64::new(0);
        CommitScope { id: ScopeId(LAST.fetch_add(1, Ordering::Relaxed) + 1), roots: RefCell::default() }
    }

    pub fn id(&self) -> ScopeId {
        self.id
    }

    /// Adds a root: with `files`, changes of its files are committed, without only what is kept of opens.
    pub fn join(&self, fs: &Arc<Fs>, files: bool) {
        self.join_root(fs, files, false);
    }

    fn join_root(&self, fs: &Arc<Fs>, files: bool, put: bool) {
        let mut roots = self.roots.borrow_mut();
        match roots.iter_mut().find(|r| Arc::ptr_eq(&r.fs, fs)) {
            Some(root) => {
                root.files |= files;
                root.put |= put;
            }
            None => roots.push(Joined { fs: fs.clone(), files, put }),
        }
    }

    /// Changes what the root's handle store keeps of opens, as a part of this scope. Nothing where the root has no store.
    pub fn put(&self, fs: &Arc<Fs>, changes: Vec<HandleChange>) {
        if let Some(handles) = fs.handles().filter(|_| !changes.is_empty()) {
            self.join_root(fs, false, true);
            handles.put(self.id, changes);
        }
    }

    /// Whether no root was joined.
    pub fn is_empty(&self) -> bool {
        self.roots.borrow().is_empty()
    }

    /// Whether `commit` would wait.
    pub fn is_due(&self) -> bool {
        self.roots.borrow().iter().any(|r| r.fs.has_uncommitted(self.id, r.files))
    }

    /// Waits for stable storage: every change of the scope is there when this returns.
    ///
    /// # Errors
    /// Why a change of this scope is not on stable storage, or may not be.
    pub fn commit(&self) -> Result<(), StoreError> {
        self.roots.borrow().iter().try_for_each(|r| r.fs.commit(self.id, r.files))
    }

    /// The commit as a value, where it needs no thread that waits: one root, whose store tells when it has written. Until it
    /// has told, the scope has to live.
    pub fn later(&self) -> Option<LaterCommit> {
        match &self.roots.borrow()[..] {
            [root] if root.fs.commits_later() => {
                Some(LaterCommit { scope: self.id, fs: root.fs.clone(), files: root.files })
            }
            _ => None,
        }
    }
}

/// The commit of a scope that nobody waits for.
pub struct LaterCommit {
    scope: ScopeId,
    fs: Arc<Fs>,
    files: bool,
}

impl LaterCommit {
    /// Calls `done` when every change of the scope is on stable storage, or is known not to be: on another thread, or here.
    pub fn run(self, done: Committed) {
        self.fs.commit_later(self.scope, self.files, done);
    }
}

impl Default for CommitScope {
    fn default() -> CommitScope {
        CommitScope::begin()
    }
}

impl Drop for CommitScope {
    fn drop(&mut self) {
        for root in self.roots.get_mut().iter().filter(|r| r.put) {
            root.fs.end_scope(self.id);
        }
    }
}
