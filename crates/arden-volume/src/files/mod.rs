//! Files: their data and where it lies, descriptors, attributes, names to be found, and which files are in use. Refuses to
//! change names, and to know of quotas, of the change journal and of snapshots: those take part by traits of `engine` and
//! of `open`.

pub mod access;
pub mod cache;
pub mod data;
pub mod delayed;
pub mod descriptors;
pub mod extents;
pub mod inodes;
pub mod intern;
pub mod names;
pub mod open;
pub mod owner;
pub mod places;
pub mod read;
pub mod reap;
pub mod subject;
pub mod txn;

/// Writes of at least this much go to the device at once; smaller ones through the log.
const DIRECT_BYTES_MIN: usize = 64 << 10;
/// Extents that one operation takes away on every volume.
const EXTENTS_AN_OPERATION: usize = 1500;
