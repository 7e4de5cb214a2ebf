//! The state in one redb file: a table for each kind of record, and one for the revision. The lock of
//! [`StateDirectory`] keeps other processes away.

use std::{path::Path, sync::Arc};

use arden_redb::{RedbFile, is_damage, is_full};
use redb::{Database, Error, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::watch;

use super::{
    directory::StateDirectory,
    store::{Change, Commit, Contents, Revision, StateStore, Table},
};
use crate::error::{AdminError, Result};

/// One row, "revision". A file without the row has revision 0.
const REVISION: TableDefinition<'static, &'static str, u64> = TableDefinition::new("revision");
const REVISION_KEY: &str = "revision";

/// Cache of redb. The state is small, and readers use the snapshot.
const CACHE_BYTES: usize = 256 * 1024;

/// What redb answers.
type Stored<T> = std::result::Result<T, Error>;

/// The store in a redb file.
#[derive(Debug)]
pub struct RedbStore {
    file: RedbFile,
    newest: watch::Sender<Revision>,
    /// Holds the lock for as long as the file is open.
    directory: Arc<StateDirectory>,
}

fn failed(file: &Path, e: &Error) -> AdminError {
    let error = format!("the state store {} failed: {e}", file.display());
    if is_full(e) {
        return AdminError::failed(error, "its file system is full: free some room, then try again");
    }
    if is_damage(e) {
        let hint = "restore it from a backup; or move it away to begin anew, bring the pools and volumes back with \
                    `arden pool import` and `arden volume attach`, and add users and shares again";
        return AdminError::failed(error, hint);
    }
    AdminError::failed(error, "check the disk that holds the state directory")
}

fn definition(table: Table) -> TableDefinition<'static, &'static str, &'static [u8]> {
    TableDefinition::new(table.name())
}

fn revision(tx: &ReadTransaction) -> Stored<Revision> {
    match tx.open_table(REVISION) {
        Ok(t) => Ok(Revision(t.get(REVISION_KEY)?.map_or(0, |r| r.value()))),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(Revision::default()),
        Err(e) => Err(e.into()),
    }
}

fn contents(db: &Database) -> Stored<Contents> {
    let tx = db.begin_read()?;
    let mut contents = Contents { revision: revision(&tx)?, ..Contents::default() };
    for table in Table::ALL {
        let rows = match tx.open_table(definition(table)) {
            Ok(t) => t,
            Err(redb::TableError::TableDoesNotExist(_)) => continue,
            Err(e) => return Err(e.into()),
        };
        for row in rows.iter()? {
            let (key, value) = row?;
            contents.records.insert((table, key.value().to_string()), value.value().to_vec());
        }
    }
    Ok(contents)
}

fn commit(db: &Database, expected: Revision, changes: &[Change]) -> Stored<Commit> {
    let mut tx = db.begin_write()?;
    tx.set_durability(redb::Durability::Immediate)?;
    let revision = Revision(expected.0 + 1);
    {
        let mut rows = tx.open_table(REVISION)?;
        let now = rows.get(REVISION_KEY)?.map_or(0, |r| r.value());
        if now != expected.0 {
            drop(rows);
            tx.abort()?;
            return Ok(Commit::Outdated);
        }
        rows.insert(REVISION_KEY, revision.0)?;
    }
    for Change { table, key, value } in changes {
        let mut rows = tx.open_table(definition(*table))?;
        match value {
            Some(bytes) => drop(rows.insert(key.as_str(), bytes.as_slice())?),
            None => drop(rows.remove(key.as_str())?),
        }
    }
    tx.commit()?;
    Ok(Commit::Done(revision))
}

impl RedbStore {
    /// Opens the file of the directory; makes it when it does not exist.
    ///
    /// # Errors
    /// Failed, when the file cannot be read, or is empty or damaged.
    pub fn open(directory: &Arc<StateDirectory>) -> Result<RedbStore> {
        let path = directory.state_file();
        let file = RedbFile::open(&path, CACHE_BYTES).map_err(|e| failed(&path, &e))?;
        let newest = watch::Sender::new(Revision::default());
        let store = RedbStore { file, newest, directory: directory.clone() };
        store.newest.send_replace(store.read()?.revision);
        Ok(store)
    }

    /// After an error of the file system the file has all that was committed, and maybe what was tried last.
    fn with<T>(&self, work: impl FnMut(&Database) -> Stored<T>) -> Result<T> {
        let check = |db: &Database| {
            let (known, now) = (*self.newest.borrow(), revision(&db.begin_read()?)?);
            let lost = || Error::Corrupted(format!("it is of revision {}, {} was committed", now.0, known.0));
            if now < known { Err(lost()) } else { Ok(()) }
        };
        self.file.with(&check, work).map_err(|e| failed(&self.directory.state_file(), &e))
    }
}

impl StateStore for RedbStore {
    fn read(&self) -> Result<Contents> {
        self.with(contents)
    }

    fn newest(&self) -> Result<Revision> {
        self.with(|db| revision(&db.begin_read()?))
    }

    fn commit(&self, expected: Revision, changes: &[Change]) -> Result<Commit> {
        let done = self.with(|db| commit(db, expected, changes))?;
        if let Commit::Done(revision) = done {
            // A commit on another thread may have sent a later revision.
            self.newest.send_if_modified(|newest| {
                let later = revision > *newest;
                *newest = revision.max(*newest);
                later
            });
        }
        Ok(done)
    }

    fn watch(&self) -> watch::Receiver<Revision> {
        self.newest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use arden_redb::Fault;

    use super::*;
    use crate::{names::key, state::State};

    fn directory(test: &str) -> Arc<StateDirectory> {
        let path = std::env::temp_dir().join(format!("arden-state-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Arc::new(StateDirectory::open(&path).unwrap())
    }

    #[test]
    fn a_full_file_system_is_over_when_there_is_room_again() {
        let directory = directory("full");
        let store = Arc::new(RedbStore::open(&directory).unwrap());
        let state = State::on(store.clone()).unwrap();
        let set = |state: &State, path: &str, model: &str| {
            state.change(|s| {
                s.disks.entry(path.to_string()).or_default().model = Some(model.to_string());
                Ok(())
            })
        };
        set(&state, "/before", "x").unwrap();
        store.file.set_fault(Fault::Write);
        for _ in 0..2 {
            let error = set(&state, "/full", "x").unwrap_err();
            assert!(error.hint.contains("full") && error.error.contains("state.redb"), "{error}");
        }
        assert_eq!(state.snapshot().disks.len(), 1);
        store.file.set_fault(Fault::None);
        set(&state, "/after", "x").unwrap();
        assert_eq!(state.snapshot().machine_sid, State::on(store.clone()).unwrap().snapshot().machine_sid);
        drop((state, store));
        let again = State::open(&directory).unwrap().snapshot();
        assert!(again.disks.contains_key("/before") && again.disks.contains_key("/after"));
        assert!(!again.groups[&key("Users")].sid.is_empty());
        std::fs::remove_dir_all(directory.path()).unwrap();
    }

    #[test]
    fn an_empty_or_damaged_file_is_refused_with_the_way_out() {
        let directory = directory("damaged");
        for content in [&b""[..], &[0x5a; 4096]] {
            std::fs::write(directory.state_file(), content).unwrap();
            let error = State::open(&directory).unwrap_err();
            assert!(error.error.contains(&directory.state_file().display().to_string()), "{error}");
            for way in ["backup", "move it away", "arden pool import", "arden volume attach"] {
                assert!(error.hint.contains(way), "{error}");
            }
            assert_eq!(std::fs::read(directory.state_file()).unwrap(), content);
        }
        std::fs::remove_file(directory.state_file()).unwrap();
        State::open(&directory).unwrap();
        std::fs::remove_dir_all(directory.path()).unwrap();
    }
}
