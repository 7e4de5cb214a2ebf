//! The state in memory, for tests and for several daemons in one process. It is lost with the process.

use arden_lock::{Mutex, ranks};
use tokio::sync::watch;

use super::store::{Change, Commit, Contents, Revision, StateStore};
use crate::error::Result;

/// The store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    contents: Mutex<Contents, ranks::MemoryState>,
    newest: watch::Sender<Revision>,
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore { contents: Mutex::default(), newest: watch::Sender::new(Revision::default()) }
    }
}

impl StateStore for MemoryStore {
    fn read(&self) -> Result<Contents> {
        Ok(self.contents.lock().clone())
    }

    fn newest(&self) -> Result<Revision> {
        Ok(self.contents.lock().revision)
    }

    fn commit(&self, expected: Revision, changes: &[Change]) -> Result<Commit> {
        let mut contents = self.contents.lock();
        if contents.revision != expected {
            return Ok(Commit::Outdated);
        }
        for Change { table, key, value } in changes {
            let at = (*table, key.clone());
            match value {
                Some(bytes) => drop(contents.records.insert(at, bytes.clone())),
                None => drop(contents.records.remove(&at)),
            }
        }
        contents.revision = Revision(expected.0 + 1);
        // Sent under the lock, which keeps revisions in their order.
        self.newest.send_replace(contents.revision);
        Ok(Commit::Done(contents.revision))
    }

    fn watch(&self) -> watch::Receiver<Revision> {
        self.newest.subscribe()
    }
}
