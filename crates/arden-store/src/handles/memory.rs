//! Handles in memory, for tests: what was not committed is gone after `crash`.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::{HandleChange, HandleStore};
use crate::store::Result;

/// A `HandleStore` that lasts as long as the process.
#[derive(Default)]
pub struct MemoryHandles {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    durable: BTreeMap<Vec<u8>, Vec<u8>>,
    waiting: Vec<HandleChange>,
    commits: u64,
}

impl MemoryHandles {
    /// As if the machine had stopped.
    pub fn crash(&self) {
        self.state.lock().waiting.clear();
    }
    /// Commits that had something to do.
    pub fn commits(&self) -> u64 {
        self.state.lock().commits
    }
}

impl HandleStore for MemoryHandles {
    fn load(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.state.lock().durable.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
    }
    fn put(&self, changes: Vec<HandleChange>) {
        self.state.lock().waiting.extend(changes);
    }
    fn has_uncommitted(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }
    fn commit(&self) -> Result<()> {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        state.commits += u64::from(!waiting.is_empty());
        for change in waiting {
            match change {
                HandleChange::Put { key, value } => drop(state.durable.insert(key, value)),
                HandleChange::Remove { key } => drop(state.durable.remove(&key)),
            }
        }
        Ok(())
    }
}
