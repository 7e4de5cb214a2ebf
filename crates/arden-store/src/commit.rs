//! A commit scope: what one message changed, and so what its answer waits for. It travels with the message as a value; no
//! thread and no clock says which message a change belongs to. Refuses to know what a change is, and to build answers.

use std::{fmt, sync::Arc, time::Instant};

use arden_lock::{Mutex, ranks};

pub use crate::changed_by::{ChangedBy, ScopeId};
use crate::{
    error::StoreError,
    fs::{Fs, Open},
    handles::{Committed, HandleChange},
    store::Result,
};

/// A root that a scope has to commit.
#[derive(Clone)]
struct Joined {
    fs: Arc<Fs>,
    /// Changes of files count too, beside what is kept of opens.
    files: bool,
    /// The scope changed files, or what is kept of opens.
    changed: bool,
}

/// The changes of one message, or of one piece of the server's own work. A clone is the same scope: it goes with work that the
/// message leaves to others.
///
/// Whoever answers the message commits the scope first. A scope whose last clone is dropped without that (a time-out, an
/// order of an administrator) is unattended: its changes keep their place in the order, and are durable no later than the
/// next change that anybody commits in the same store.
#[derive(Clone)]
pub struct CommitScope(Arc<Scope>);

struct Scope {
    id: ScopeId,
    roots: Mutex<Vec<Joined>, ranks::CommitScope>,
}

/// What a call is made for: the message whose answer waits for its changes, and the time.
#[derive(Debug, Clone, Copy)]
pub struct Cause<'a> {
    pub scope: &'a CommitScope,
    pub now: Instant,
}

impl CommitScope {
    /// Begins a scope without changes.
    pub fn begin() -> CommitScope {
        CommitScope(Arc::new(Scope { id: ScopeId::next(), roots: Mutex::default() }))
    }

    pub fn id(&self) -> ScopeId {
        self.0.id
    }

    /// The cause of a call in this scope.
    pub fn at(&self, now: Instant) -> Cause<'_> {
        Cause { scope: self, now }
    }

    /// Adds a root: with `files`, changes of its files are committed, without only what is kept of opens.
    pub fn join(&self, fs: &Arc<Fs>, files: bool) {
        self.join_root(fs, files, false);
    }

    fn join_root(&self, fs: &Arc<Fs>, files: bool, changed: bool) {
        let mut roots = self.0.roots.lock();
        match roots.iter_mut().find(|r| Arc::ptr_eq(&r.fs, fs)) {
            Some(root) => {
                root.files |= files;
                root.changed |= changed;
            }
            None => roots.push(Joined { fs: fs.clone(), files, changed }),
        }
    }

    /// A change through `open` is about to be made: it is a part of this scope where the open's answers wait for stable storage.
    pub fn changes(&self, open: &Open) -> ChangedBy {
        self.changes_in(&open.fs, open.is_durable())
    }

    /// The same for a change of the root's files that is not made through an open.
    pub(crate) fn changes_in(&self, fs: &Arc<Fs>, durable: bool) -> ChangedBy {
        durable.then(|| {
            self.join_root(fs, true, true);
            self.id()
        })
    }

    /// The message's answer says that what is open is there, as it is: where that is not durable yet, it is a part of this scope.
    pub fn relies_on(&self, open: &Open) {
        if open.is_durable() && open.node.rely_on(self.id()) {
            self.join_root(&open.fs, true, true);
        }
    }

    /// Changes what the root's handle store keeps of opens, as a part of this scope. Nothing where the root has no store.
    pub fn put(&self, fs: &Arc<Fs>, changes: Vec<HandleChange>) {
        if let Some(handles) = fs.handles().filter(|_| !changes.is_empty()) {
            self.join_root(fs, false, true);
            handles.put(self.id(), changes);
        }
    }

    /// Whether no root was joined.
    pub fn is_empty(&self) -> bool {
        self.0.roots.lock().is_empty()
    }

    /// Whether `commit` would wait or fail.
    pub fn is_due(&self) -> bool {
        self.0.roots.lock().iter().any(|r| r.fs.has_uncommitted(self.id(), r.files))
    }

    /// Waits for stable storage: every change of the scope is there when this returns.
    ///
    /// # Errors
    /// Why a change of this scope is not on stable storage, or may not be.
    pub fn commit(&self) -> Result<(), StoreError> {
        let roots = self.0.roots.lock().clone();
        roots.iter().map(|r| r.fs.commit(self.id(), r.files)).fold(Ok(()), Result::and)
    }

    /// The commit as a value, where it needs no thread that waits: one root, whose store tells when it has written. Until it
    /// has told, the scope has to live.
    pub fn later(&self) -> Option<LaterCommit> {
        match &self.0.roots.lock()[..] {
            [root] if root.fs.commits_later() => {
                Some(LaterCommit { scope: self.id(), fs: root.fs.clone(), files: root.files })
            }
            _ => None,
        }
    }
}

impl fmt::Debug for CommitScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CommitScope").field(&self.id()).finish()
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

impl Drop for Scope {
    fn drop(&mut self) {
        for root in self.roots.get_mut().iter().filter(|r| r.changed) {
            root.fs.end_scope(self.id);
        }
    }
}
