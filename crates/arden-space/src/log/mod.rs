//! The write-ahead log: its records, writing and reading it, the disks that it lies on, what it keeps for absent disks.

pub(crate) mod flush;
pub(crate) mod journal;
pub(crate) mod place;
pub(crate) mod record;
pub(crate) mod stuck;
