//! Handles of shares that keep none themselves, in a redb file: every commit takes all that waits.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arden_lock::{Mutex, ranks};
use arden_redb::{RedbFile, is_full};
use redb::{Database, Error, ReadableDatabase, ReadableTable, TableDefinition};

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
}

/// The file, and what waits to get there.
struct HandleLog {
    file: RedbFile,
    /// The start that the file counted last.
    starts: u64,
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

fn failed(e: Error) -> StoreError {
    tracing::error!("the handle store: {e}");
    StoreError::HandlesFailed
}

/// Counts the start of a server, which has to be durable before it uses the file.
fn count_start(db: &Database) -> Result<u64, Error> {
    let mut tx = db.begin_write()?;
    tx.set_durability(redb::Durability::Immediate)?;
    let starts = {
        let mut meta = tx.open_table(META)?;
        let version = meta.get("version")?.map_or(VERSION, |v| v.value());
        if version != VERSION {
            return Err(Error::Corrupted(format!("it has version {version}, known is {VERSION}")));
        }
        let starts = meta.get("starts")?.map_or(0, |v| v.value()) + 1;
        meta.insert("version", VERSION)?;
        meta.insert("starts", starts)?;
        tx.open_table(HANDLES)?;
        starts
    };
    tx.commit()?;
    Ok(starts)
}

fn write_changes(db: &Database, changes: &[HandleChange]) -> Result<(), Error> {
    let mut tx = db.begin_write()?;
    tx.set_durability(redb::Durability::Immediate)?;
    {
        let mut table = tx.open_table(HANDLES)?;
        for change in changes {
            match change {
                HandleChange::Put { key, value } => {
                    table.insert(key.as_slice(), value.as_slice())?;
                }
                HandleChange::Remove { key } => {
                    table.remove(key.as_slice())?;
                }
            }
        }
    }
    Ok(tx.commit()?)
}

fn read_all(db: &Database) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
    let table = db.begin_read()?.open_table(HANDLES)?;
    let mut all = Vec::new();
    for row in table.iter()? {
        let (key, value) = row?;
        all.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(all)
}

impl DiskHandles {
    /// Opens or makes the file and counts the start.
    ///
    /// # Errors
    /// `DiskFull`, when the file system has no room; else `HandlesFailed`. The log has the reason.
    pub fn open(file: &Path) -> Result<DiskHandles, StoreError> {
        let cause = |e: Error| if is_full(&e) { StoreError::DiskFull } else { failed(e) };
        let file = RedbFile::open(file, CACHE_BYTES).map_err(cause)?;
        let starts = file.with(&|_| Ok(()), count_start).map_err(cause)?;
        let (state, put, not_kept) = Default::default();
        Ok(DiskHandles { commits: GroupCommit::new(HandleLog { file, starts, state, put, not_kept }, 0) })
    }

    /// How often the file was opened, this time included: never the same twice.
    pub fn starts(&self) -> u64 {
        self.commits.log().starts
    }
}

impl HandleLog {
    /// What is tried again after an error of the file system may be in the file already, in the same order.
    fn with<T>(&self, work: impl FnMut(&Database) -> Result<T, Error>) -> Result<T, StoreError> {
        let check = |db: &Database| match db.begin_read()?.open_table(META)?.get("starts")?.map(|v| v.value()) {
            Some(starts) if starts == self.starts => Ok(()),
            other => Err(Error::Corrupted(format!("start {other:?} is in the file, this is {}", self.starts))),
        };
        self.file.with(&check, work).map_err(failed)
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
        self.with(|db| write_changes(db, &unwritten.changes))?;
        unwritten.changes.clear();
        Ok(())
    }

    fn abandoned() -> StoreError {
        StoreError::HandlesFailed
    }
}

impl HandleStore for DiskHandles {
    fn load(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StoreError> {
        self.commits.log().with(read_all)
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
    use arden_redb::Fault;

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
    fn after_a_full_file_system_all_is_kept_in_order_and_nothing_is_claimed_before() {
        let file = std::env::temp_dir().join(format!("arden-handles-full-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let (h, scope) = (DiskHandles::open(&file).unwrap(), CommitScope::begin());
        h.put(scope.id(), vec![put(b"a", b"1"), put(b"b", b"1")]);
        h.commit(scope.id()).unwrap();
        for fault in [Fault::Write, Fault::Sync] {
            h.commits.log().file.set_fault(fault);
            h.put(scope.id(), vec![put(b"a", b"2"), HandleChange::Remove { key: b"b".to_vec() }]);
            for _ in 0..2 {
                assert!(h.commit(scope.id()).is_err() && h.has_uncommitted(scope.id()));
            }
            h.put(scope.id(), vec![put(b"a", b"3"), put(b"c", b"1")]);
            assert!(h.commit(scope.id()).is_err());
            h.commits.log().file.set_fault(Fault::None);
            h.commit(scope.id()).unwrap();
            assert!(!h.has_uncommitted(scope.id()));
            assert_eq!(h.load().unwrap(), [(b"a".to_vec(), b"3".to_vec()), (b"c".to_vec(), b"1".to_vec())]);
        }
        // What another server has counted since is not this one's.
        h.commits.log().file.set_fault(Fault::Write);
        h.put(scope.id(), vec![put(b"d", b"1")]);
        assert!(h.commit(scope.id()).is_err() && h.commit(scope.id()).is_err());
        DiskHandles::open(&file).unwrap();
        h.commits.log().file.set_fault(Fault::None);
        assert!(h.commit(scope.id()).is_err() && h.has_uncommitted(scope.id()));
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
