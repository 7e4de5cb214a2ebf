//! Handles of shares that keep none themselves, in a redb file: every commit takes all that waits.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arden_lock::{Mutex, ranks};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::{HandleChange, HandleStore, KEY_BYTES_MAX, NotKept, VALUE_BYTES_MAX};
use crate::{
    commit::ScopeId,
    error::StoreError,
    group::{CommitLog, GroupCommit, Taken},
};

const HANDLES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("handles");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const VERSION: u64 = 1;
/// Nobody reads while the server runs.
const CACHE_BYTES: usize = 256 * 1024;

/// A `HandleStore` in a file.
pub struct DiskHandles {
    commits: Arc<GroupCommit<HandleLog>>,
    starts: u64,
}

/// The file, and what waits to get there.
struct HandleLog {
    db: Database,
    state: Mutex<State, ranks::HandleFile>,
    /// `State::put`; asked for every answer, without a lock.
    put: AtomicU64,
    /// There are scopes of which something was not kept.
    not_kept: AtomicBool,
}

#[derive(Default)]
struct State {
    waiting: Vec<HandleChange>,
    /// The number of the last call that put something.
    put: u64,
    not_kept: NotKept,
}

fn is_too_large(change: &HandleChange) -> bool {
    match change {
        HandleChange::Put { key, value } => key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX,
        HandleChange::Remove { key } => key.len() > KEY_BYTES_MAX,
    }
}

fn failed(e: impl std::fmt::Display) -> StoreError {
    tracing::error!("the handle store: {e}");
    StoreError::HandlesFailed
}

impl DiskHandles {
    /// Opens or makes the file and counts the start.
    pub fn open(file: &Path) -> Result<DiskHandles, StoreError> {
        let db = redb::Builder::new().set_cache_size(CACHE_BYTES).create(file).map_err(failed)?;
        let mut tx = db.begin_write().map_err(failed)?;
        tx.set_durability(redb::Durability::Immediate).map_err(failed)?;
        let starts = {
            let mut meta = tx.open_table(META).map_err(failed)?;
            let version = meta.get("version").map_err(failed)?.map_or(VERSION, |v| v.value());
            if version != VERSION {
                return Err(failed(format!("{} has version {version}, known is {VERSION}", file.display())));
            }
            let starts = meta.get("starts").map_err(failed)?.map_or(0, |v| v.value()) + 1;
            meta.insert("version", VERSION).map_err(failed)?;
            meta.insert("starts", starts).map_err(failed)?;
            tx.open_table(HANDLES).map_err(failed)?;
            starts
        };
        tx.commit().map_err(failed)?;
        let (state, put, not_kept) = Default::default();
        Ok(DiskHandles { commits: GroupCommit::new(HandleLog { db, state, put, not_kept }, 0), starts })
    }

    /// How often the file was opened, this time included: never the same twice.
    pub fn starts(&self) -> u64 {
        self.starts
    }
}

impl HandleLog {
    fn write_all(&self, changes: &[HandleChange]) -> Result<(), StoreError> {
        let mut tx = self.db.begin_write().map_err(failed)?;
        tx.set_durability(redb::Durability::Immediate).map_err(failed)?;
        {
            let mut table = tx.open_table(HANDLES).map_err(failed)?;
            for change in changes {
                match change {
                    HandleChange::Put { key, value } => {
                        table.insert(key.as_slice(), value.as_slice()).map_err(failed)?;
                    }
                    HandleChange::Remove { key } => {
                        table.remove(key.as_slice()).map_err(failed)?;
                    }
                }
            }
        }
        tx.commit().map_err(failed)
    }
}

/// Takes what did not get to the file back: before what came meanwhile.
struct Unwritten<'a> {
    log: &'a HandleLog,
    changes: Vec<HandleChange>,
}

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        let mut state = self.log.state.lock();
        let later = std::mem::replace(&mut state.waiting, std::mem::take(&mut self.changes));
        state.waiting.extend(later);
    }
}

impl CommitLog for HandleLog {
    type Batch = Vec<HandleChange>;
    type Error = StoreError;
    const INDEPENDENT: bool = false;

    fn take(&self, _target: u64) -> Result<Option<Taken<Vec<HandleChange>>>, StoreError> {
        let mut state = self.state.lock();
        let batch = std::mem::take(&mut state.waiting);
        Ok((!batch.is_empty()).then_some(Taken { batch, upto: state.put }))
    }

    fn write(&self, changes: Vec<HandleChange>) -> Result<(), StoreError> {
        let mut unwritten = Unwritten { log: self, changes };
        self.write_all(&unwritten.changes)?;
        unwritten.changes.clear();
        Ok(())
    }

    fn abandoned() -> StoreError {
        StoreError::HandlesFailed
    }
}

impl HandleStore for DiskHandles {
    fn load(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StoreError> {
        let tx = self.commits.log().db.begin_read().map_err(failed)?;
        let table = tx.open_table(HANDLES).map_err(failed)?;
        let mut all = Vec::new();
        for row in table.iter().map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            all.push((key.value().to_vec(), value.value().to_vec()));
        }
        Ok(all)
    }

    fn put(&self, scope: ScopeId, changes: Vec<HandleChange>) {
        if changes.is_empty() {
            return;
        }
        let log = self.commits.log();
        let mut state = log.state.lock();
        // It never gets into a transaction that it could spoil for others.
        if changes.iter().any(is_too_large) {
            tracing::error!("the state of an open handle is too large to be kept");
            state.not_kept.note(scope);
            log.not_kept.store(true, Ordering::Release);
        } else {
            state.waiting.extend(changes);
            state.put += 1;
            log.put.store(state.put, Ordering::Release);
        }
    }

    fn has_uncommitted(&self, _scope: ScopeId) -> bool {
        let log = self.commits.log();
        log.put.load(Ordering::Acquire) > self.commits.durable() || log.not_kept.load(Ordering::Acquire)
    }

    fn commit(&self, scope: ScopeId) -> Result<(), StoreError> {
        let log = self.commits.log();
        let put = {
            let mut state = log.state.lock();
            let kept = state.not_kept.check(scope);
            log.not_kept.store(!state.not_kept.is_empty(), Ordering::Release);
            kept.map(|()| state.put)?
        };
        self.commits.commit(put)
    }

    fn end_scope(&self, scope: ScopeId) {
        self.commits.log().state.lock().not_kept.end(scope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::CommitScope;

    fn put(key: &[u8], value: &[u8]) -> HandleChange {
        HandleChange::Put { key: key.to_vec(), value: value.to_vec() }
    }

    #[test]
    fn what_was_committed_is_there_again_and_starts_count() {
        let file = std::env::temp_dir().join(format!("arden-handles-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let first = {
            let (h, scope) = (DiskHandles::open(&file).unwrap(), CommitScope::begin());
            h.put(scope.id(), vec![put(b"a", b"1"), put(b"b", b"2")]);
            assert!(h.has_uncommitted(scope.id()));
            h.commit(scope.id()).unwrap();
            assert!(!h.has_uncommitted(scope.id()));
            h.put(scope.id(), vec![HandleChange::Remove { key: b"a".to_vec() }, put(b"b", b"3")]);
            h.commit(scope.id()).unwrap();
            h.put(scope.id(), vec![put(b"lost", b"")]);
            h.starts()
        };
        let h = DiskHandles::open(&file).unwrap();
        assert_eq!(h.load().unwrap(), [(b"b".to_vec(), b"3".to_vec())]);
        assert_eq!(h.starts(), first + 1);
        drop(h);
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn what_cannot_be_kept_of_one_scope_fails_no_other() {
        let file = std::env::temp_dir().join(format!("arden-handles-large-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let h = DiskHandles::open(&file).unwrap();
        let (one, other) = (CommitScope::begin(), CommitScope::begin());
        h.put(other.id(), vec![put(b"a", b"1")]);
        h.put(one.id(), vec![put(b"b", b"2"), put(b"c", &vec![0; VALUE_BYTES_MAX + 1])]);
        h.commit(other.id()).unwrap();
        assert!(h.has_uncommitted(one.id()) && h.commit(one.id()).is_err());
        assert!(!h.has_uncommitted(one.id()) && h.commit(one.id()).is_ok());
        assert_eq!(h.load().unwrap(), [(b"a".to_vec(), b"1".to_vec())], "all of one call, or nothing");
        // Nobody commits the scope: somebody has to be told.
        h.put(one.id(), vec![put(&[b'k'; KEY_BYTES_MAX + 1], b"")]);
        h.end_scope(one.id());
        assert!(h.has_uncommitted(other.id()) && h.commit(other.id()).is_err() && h.commit(other.id()).is_ok());
        drop(h);
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn many_threads_share_commits() {
        let file = std::env::temp_dir().join(format!("arden-handles-many-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let h = DiskHandles::open(&file).unwrap();
        std::thread::scope(|s| {
            for t in 0..8u8 {
                let h = &h;
                s.spawn(move || {
                    let scope = CommitScope::begin();
                    for i in 0..20u8 {
                        h.put(scope.id(), vec![put(&[t, i], &[i])]);
                        h.commit(scope.id()).unwrap();
                    }
                });
            }
        });
        assert_eq!(h.load().unwrap().len(), 160);
        std::fs::remove_file(&file).unwrap();
    }
}
