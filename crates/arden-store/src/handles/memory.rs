//! Handles in memory, for tests: what was not committed is gone after `crash`.

use std::collections::BTreeMap;

use arden_lock::{Mutex, ranks};

use super::{Committed, HandleChange, HandleStore};
use crate::{commit::ScopeId, error::StoreError, store::Result};

/// A `HandleStore` that lasts as long as the process.
#[derive(Default)]
pub struct MemoryHandles {
    state: Mutex<State, ranks::MemoryHandles>,
}

#[derive(Default)]
struct State {
    durable: BTreeMap<Vec<u8>, Vec<u8>>,
    waiting: Vec<HandleChange>,
    commits: u64,
    /// So many commits fail.
    failing: u64,
    /// Commits that nobody waits for are held here; None: there are none such.
    held: Option<Vec<(ScopeId, Committed)>>,
    /// So many batches more are durable as soon as they are put, then nothing is any more.
    dies_after: Option<u64>,
}

impl State {
    fn write(&mut self, changes: Vec<HandleChange>) {
        for change in changes {
            match change {
                HandleChange::Put { key, value } => drop(self.durable.insert(key, value)),
                HandleChange::Remove { key } => drop(self.durable.remove(&key)),
            }
        }
    }
}

impl MemoryHandles {
    /// As if the machine had stopped.
    pub fn crash(&self) {
        let mut state = self.state.lock();
        state.waiting.clear();
        state.dies_after = None;
    }
    /// Others commit at every moment, so that each of the next batches is durable at once; after so many of them the machine
    /// stops, and what is put or committed until `crash` is lost.
    pub fn die_after(&self, batches: u64) {
        self.state.lock().dies_after = Some(batches);
    }
    /// Whether more was put since `die_after` than outlives it.
    pub fn is_dead(&self) -> bool {
        let state = self.state.lock();
        state.dies_after == Some(0) && !state.waiting.is_empty()
    }
    /// The next commits fail: what was put stays uncommitted.
    pub fn fail_commits(&self, commits: u64) {
        self.state.lock().failing = commits;
    }
    /// From now on commits need no thread that waits, and are made when `release_commits` says so.
    pub fn hold_commits(&self) {
        self.state.lock().held = Some(Vec::new());
    }
    /// How many are held.
    pub fn held_commits(&self) -> usize {
        self.state.lock().held.as_ref().map_or(0, Vec::len)
    }
    /// Makes those that are held. Commits are waited for again.
    pub fn release_commits(&self) {
        let held = self.state.lock().held.take();
        for (scope, done) in held.into_iter().flatten() {
            done(self.commit(scope));
        }
    }
    /// Commits that had something to do.
    pub fn commits(&self) -> u64 {
        self.state.lock().commits
    }
}

impl HandleStore for MemoryHandles {
    fn load(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StoreError> {
        Ok(self.state.lock().durable.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
    }
    fn put(&self, _scope: ScopeId, changes: Vec<HandleChange>) {
        let mut state = self.state.lock();
        match &mut state.dies_after {
            Some(left) if *left > 0 => {
                *left -= 1;
                state.write(changes);
            }
            _ => state.waiting.extend(changes),
        }
    }
    fn has_uncommitted(&self, _scope: ScopeId) -> bool {
        !self.state.lock().waiting.is_empty()
    }
    fn commit(&self, _scope: ScopeId) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if state.failing > 0 {
            state.failing -= 1;
            return Err(StoreError::DiskFull);
        }
        if state.dies_after.is_none() {
            let waiting = std::mem::take(&mut state.waiting);
            state.commits += u64::from(!waiting.is_empty());
            state.write(waiting);
        }
        Ok(())
    }
    fn commits_later(&self) -> bool {
        self.state.lock().held.is_some()
    }
    /// Of handles alone: files that lie elsewhere are not committed.
    fn commit_later(&self, scope: ScopeId, _files: bool, done: Committed) {
        let mut state = self.state.lock();
        match &mut state.held {
            Some(held) => held.push((scope, done)),
            None => {
                drop(state);
                done(self.commit(scope));
            }
        }
    }
}
