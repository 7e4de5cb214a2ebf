//! The change journal in NT terms, for stores that keep one: [MS-FSCC] 2.3.62 has the record, the public Win32
//! structures (USN_JOURNAL_DATA, READ_USN_JOURNAL_DATA) the rest. Bytes on the wire are the server's.

use arden_wire::FileTime;

use crate::changed_by::ChangedBy;
use crate::error::StoreError;
use crate::store::{Node, Result, WatchGuard};

/// USN_REASON_*, [MS-FSCC] 2.3.62.2.
pub mod reason {
    pub const DATA_OVERWRITE: u32 = 0x1;
    pub const DATA_EXTEND: u32 = 0x2;
    pub const DATA_TRUNCATION: u32 = 0x4;
    pub const NAMED_DATA_OVERWRITE: u32 = 0x10;
    pub const NAMED_DATA_EXTEND: u32 = 0x20;
    pub const NAMED_DATA_TRUNCATION: u32 = 0x40;
    pub const FILE_CREATE: u32 = 0x100;
    pub const FILE_DELETE: u32 = 0x200;
    pub const EA_CHANGE: u32 = 0x400;
    pub const SECURITY_CHANGE: u32 = 0x800;
    pub const RENAME_OLD_NAME: u32 = 0x1000;
    pub const RENAME_NEW_NAME: u32 = 0x2000;
    pub const INDEXABLE_CHANGE: u32 = 0x4000;
    pub const BASIC_INFO_CHANGE: u32 = 0x8000;
    pub const HARD_LINK_CHANGE: u32 = 0x1_0000;
    pub const OBJECT_ID_CHANGE: u32 = 0x8_0000;
    pub const REPARSE_POINT_CHANGE: u32 = 0x10_0000;
    pub const STREAM_CHANGE: u32 = 0x20_0000;
    pub const INTEGRITY_CHANGE: u32 = 0x80_0000;
    pub const CLOSE: u32 = 0x8000_0000;
}

/// What FSCTL_QUERY_USN_JOURNAL tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalInfo {
    pub id: u64,
    /// The oldest record that is there.
    pub first: u64,
    /// What the next record gets.
    pub next: u64,
    pub max_bytes: u64,
    /// How much it may grow over that before the oldest go.
    pub delta_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub usn: u64,
    pub file: u64,
    pub parent: u64,
    pub time: FileTime,
    /// [`reason`] bits, those of this open of the file so far.
    pub reason: u32,
    pub attributes: u32,
    pub name: String,
}

pub trait ChangeJournal: Send + Sync {
    /// `NoChangeJournal` without one.
    fn info(&self) -> Result<JournalInfo, StoreError>;
    /// Begins one, or changes the size of the one there is.
    fn create(&self, by: ChangedBy, max_bytes: u64, delta_bytes: u64) -> Result<(), StoreError>;
    /// `ChangesExpired` where `id` is another journal's.
    fn delete(&self, by: ChangedBy, id: u64) -> Result<(), StoreError>;
    /// Records from `from` on, durable ones only, as long as `take` takes them; where to go on.
    fn read(&self, from: u64, take: &mut dyn FnMut(&Record) -> bool) -> Result<u64, StoreError>;
    /// What the next record gets, also while that is not durable: a place to wait for, for nobody to be told.
    fn end(&self) -> Result<u64, StoreError>;
    /// Calls `wake` once, until the guard is dropped: when the journal ends at `usn` or behind it, or is deleted, or
    /// earlier, when it has to be asked where it ends. Called with locks held.
    fn watch(&self, usn: u64, wake: Box<dyn Fn() + Send + Sync>) -> Result<WatchGuard, StoreError>;
    /// The last record of a file, its reason and time left out; a USN of 0 when it has none.
    fn of_file(&self, node: &dyn Node) -> Result<Record, StoreError>;
    /// Writes a record with CLOSE and what there was; its USN.
    fn close_record(&self, by: ChangedBy, node: &dyn Node) -> Result<u64, StoreError>;
}
