//! The state in one redb file: a table for each kind of record, and one for the revision. The lock of
//! [`StateDirectory`] keeps other processes away.

use std::{os::unix::fs::OpenOptionsExt, sync::Arc};

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};
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

/// The store in a redb file.
#[derive(Debug)]
pub struct RedbStore {
    db: Database,
    newest: watch::Sender<Revision>,
    /// Holds the lock for as long as the file is open.
    _directory: Arc<StateDirectory>,
}

fn failed(e: impl std::fmt::Display) -> AdminError {
    AdminError::failed(format!("the state store failed: {e}"), "check the disk that holds the state directory")
}

fn definition(table: Table) -> TableDefinition<'static, &'static str, &'static [u8]> {
    TableDefinition::new(table.name())
}

fn revision(tx: &ReadTransaction) -> Result<Revision> {
    match tx.open_table(REVISION) {
        Ok(t) => Ok(Revision(t.get(REVISION_KEY).map_err(failed)?.map_or(0, |r| r.value()))),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(Revision::default()),
        Err(e) => Err(failed(e)),
    }
}

impl RedbStore {
    /// Opens the file of the directory; makes it when it does not exist.
    ///
    /// # Errors
    /// Failed, when the file cannot be read.
    pub fn open(directory: &Arc<StateDirectory>) -> Result<RedbStore> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(directory.state_file())
            .map_err(failed)?;
        let db = redb::Builder::new().set_cache_size(CACHE_BYTES).create_file(file).map_err(failed)?;
        let newest = watch::Sender::new(Revision::default());
        let store = RedbStore { db, newest, _directory: directory.clone() };
        store.newest.send_replace(store.read()?.revision);
        Ok(store)
    }
}

impl StateStore for RedbStore {
    fn read(&self) -> Result<Contents> {
        let tx = self.db.begin_read().map_err(failed)?;
        let mut contents = Contents { revision: revision(&tx)?, ..Contents::default() };
        for table in Table::ALL {
            let rows = match tx.open_table(definition(table)) {
                Ok(t) => t,
                Err(redb::TableError::TableDoesNotExist(_)) => continue,
                Err(e) => return Err(failed(e)),
            };
            for row in rows.iter().map_err(failed)? {
                let (key, value) = row.map_err(failed)?;
                contents.records.insert((table, key.value().to_string()), value.value().to_vec());
            }
        }
        Ok(contents)
    }

    fn newest(&self) -> Result<Revision> {
        revision(&self.db.begin_read().map_err(failed)?)
    }

    fn commit(&self, expected: Revision, changes: &[Change]) -> Result<Commit> {
        let mut tx = self.db.begin_write().map_err(failed)?;
        tx.set_durability(redb::Durability::Immediate).map_err(failed)?;
        let revision = Revision(expected.0 + 1);
        {
            let mut rows = tx.open_table(REVISION).map_err(failed)?;
            let now = rows.get(REVISION_KEY).map_err(failed)?.map_or(0, |r| r.value());
            if now != expected.0 {
                drop(rows);
                tx.abort().map_err(failed)?;
                return Ok(Commit::Outdated);
            }
            rows.insert(REVISION_KEY, revision.0).map_err(failed)?;
        }
        for Change { table, key, value } in changes {
            let mut rows = tx.open_table(definition(*table)).map_err(failed)?;
            match value {
                Some(bytes) => drop(rows.insert(key.as_str(), bytes.as_slice()).map_err(failed)?),
                None => drop(rows.remove(key.as_str()).map_err(failed)?),
            }
        }
        tx.commit().map_err(failed)?;
        // A commit on another thread may have sent a later revision.
        self.newest.send_if_modified(|newest| {
            let later = revision > *newest;
            *newest = revision.max(*newest);
            later
        });
        Ok(Commit::Done(revision))
    }

    fn watch(&self) -> watch::Receiver<Revision> {
        self.newest.subscribe()
    }
}
