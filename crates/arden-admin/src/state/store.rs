//! The store that keeps the records of the state: the trait and its types. A store knows tables, keys and bytes; `records`
//! encodes and decodes them, `edit` changes their meaning.

use std::{collections::BTreeMap, fmt};

use tokio::sync::watch;

use crate::error::Result;

/// The number of a store's transaction. It never falls; callers may only compare for equality.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// A kind of record. The name is that of the table in a file, or of the part of the keys of a store without tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The server's identity, its settings, and the schema of all tables.
    Meta,
    Users,
    Groups,
    Shares,
    Pools,
    /// Facts about disks that were set by hand, by path.
    Disks,
    Volumes,
}

impl Table {
    pub const ALL: [Table; 7] =
        [Table::Meta, Table::Users, Table::Groups, Table::Shares, Table::Pools, Table::Disks, Table::Volumes];

    pub const fn name(self) -> &'static str {
        match self {
            Table::Meta => "meta",
            Table::Users => "users",
            Table::Groups => "groups",
            Table::Shares => "shares",
            Table::Pools => "pools",
            Table::Disks => "disks",
            Table::Volumes => "volumes",
        }
    }
}

/// Records by table and key. A value is a JSON document; a store does not look into it.
pub type Records = BTreeMap<(Table, String), Vec<u8>>;

/// A record that is to be written or, with `value` None, removed. Removing what is not there is no error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub table: Table,
    pub key: String,
    pub value: Option<Vec<u8>>,
}

/// All records as they were at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    pub revision: Revision,
    pub records: Records,
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Commit {
    /// All changes are durable, at this revision.
    Done(Revision),
    /// Nothing was changed: somebody else made a transaction since the expected revision.
    Outdated,
}

/// Keeps the state of one daemon, or of all daemons of a cluster. The implementations and the suite of properties that each has
/// to pass: [`RedbStore`](super::RedbStore), [`MemoryStore`](super::MemoryStore), `tests/state_store.rs`.
///
/// Calls block on the disk or the network. A store has few records, so that all of them are read at once.
pub trait StateStore: Send + Sync + fmt::Debug {
    /// All records at the newest revision: what a transaction wrote is there as a whole or not at all.
    ///
    /// # Errors
    /// Failed, when the store cannot be read.
    fn read(&self) -> Result<Contents>;

    /// Makes `changes`, with at most one for each record, in one durable transaction, when the revision still is `expected`.
    ///
    /// # Errors
    /// Failed, when it is not known to be durable. It may have been made nevertheless; [`StateStore::read`] tells.
    fn commit(&self, expected: Revision, changes: &[Change]) -> Result<Commit>;

    /// Tells the newest revision that is known, also of transactions of others. It may come late, and revisions between may
    /// be left out.
    fn watch(&self) -> watch::Receiver<Revision>;
}
