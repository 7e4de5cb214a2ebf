//! The store of the state's records: the trait and its types. A store knows tables, keys and bytes; `records` encodes
//! and decodes them, `edit` applies changes.

use std::{collections::BTreeMap, fmt};

use tokio::sync::watch;

use crate::error::Result;

/// The number of a store's transaction. It never falls. Callers only compare it for equality.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// A kind of record. Its name is that of the table in a file, or a prefix of keys in a store without tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The server's identity, its settings, and the schema version of all tables.
    Meta,
    Users,
    Groups,
    Shares,
    Pools,
    /// Facts about disks that an administrator set, keyed by path.
    Disks,
    Volumes,
    /// Floating addresses of a cluster.
    Addresses,
}

impl Table {
    /// All tables.
    pub const ALL: [Table; 8] = [
        Table::Meta,
        Table::Users,
        Table::Groups,
        Table::Shares,
        Table::Pools,
        Table::Disks,
        Table::Volumes,
        Table::Addresses,
    ];

    /// The name of the table.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Meta => "meta",
            Table::Users => "users",
            Table::Groups => "groups",
            Table::Shares => "shares",
            Table::Pools => "pools",
            Table::Disks => "disks",
            Table::Volumes => "volumes",
            Table::Addresses => "addresses",
        }
    }
}

/// Records by table and key. A value is a JSON document, which a store does not interpret.
pub type Records = BTreeMap<(Table, String), Vec<u8>>;

/// A record to write or, with `value` None, to remove. Removing an absent record is no error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub table: Table,
    pub key: String,
    pub value: Option<Vec<u8>>,
}

/// All records at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    pub revision: Revision,
    pub records: Records,
}

/// The outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Commit {
    /// All changes are durable, at this revision.
    Done(Revision),
    /// Nothing was changed: another transaction was made since the expected revision.
    Outdated,
}

/// Keeps the state of one daemon, or of all daemons of a cluster. The implementations are
/// [`RedbStore`](super::RedbStore) and [`MemoryStore`](super::MemoryStore); each passes the suite in
/// `tests/state_store.rs`.
///
/// Calls block on the disk or the network. The records are few: all of them are read at once.
pub trait StateStore: Send + Sync + fmt::Debug {
    /// Reads all records at the newest revision. A transaction is visible as a whole or not at all.
    ///
    /// # Errors
    /// Failed, when the store cannot be read.
    fn read(&self) -> Result<Contents>;

    /// The newest revision, without the records.
    ///
    /// # Errors
    /// Failed, when the store cannot be read.
    fn newest(&self) -> Result<Revision>;

    /// Applies `changes`, at most one for each record, in one durable transaction if the revision is still `expected`.
    ///
    /// # Errors
    /// Failed, when the changes may not be durable. They may have been made all the same; [`StateStore::read`] shows
    /// it.
    fn commit(&self, expected: Revision, changes: &[Change]) -> Result<Commit>;

    /// Notifies of the newest known revision, including those of other daemons. It may be late, and revisions may be
    /// left out.
    fn watch(&self) -> watch::Receiver<Revision>;
}
