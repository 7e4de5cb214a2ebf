//! The native file system: NT semantics on a block device. Owns what lies on the device: a journal, a copy-on-write tree
//! of all metadata, and data in extents with a checksum for every block. docs/on-disk-volume.md is the format. Refuses to
//! know of protocols and of disks: it stands on the narrow [`arden_block::Device`].
//!
//! In layers, each of which imports only those below it:
//!
//! | folder | holds |
//! |---|---|
//! | `facade` | opening and closing a volume, the `FileStore`, operations on names, the table of handles |
//! | `features` | quotas, the change journal (`usn`), snapshots of the volume and of streams, extended attributes, check, repair, scrub with parity (`even`), growth |
//! | `files` | data of files and where it lies, descriptors, finding names, files in use |
//! | `engine` | state as keys and values, transactions, the log, the tree, free blocks, commits, checkpoints |
//! | `disk` | the device, and how superblock, nodes and values are laid out on it |
//!
//! Each layer has an owner of its state: `Volume` joins `Engine`, `Files`, `Quotas`, `ChangeJournal` and `Snapshots`. A layer
//! above takes part in what one below does by the traits of that one: `engine::txn::TxnHook` in transactions,
//! `engine::deferred::Deferred` in checkpoints and before changes, `files::open::LastUse` at the end of a file's use.
//! Which lock protects what, and the order of all, is in docs/locks.md.
#![forbid(unsafe_code)]

mod disk;
mod engine;
mod facade;
mod features;
mod files;
#[cfg(test)]
mod testing;

pub use disk::{
    device::{self, FileDevice, MemDevice},
    error::{VolError, VolResult},
    superblock::Superblock,
};
pub use facade::{
    handles::{HANDLE_BYTES_MAX, VolumeHandles},
    node::read_stream_snapshot,
    store::{Durability, VolumeStore},
    volume::{Volume, VolumeOptions, check_device},
};
pub use features::{
    check::CheckReport,
    repair::RepairReport,
    scrub::{Damage, ScrubReport, ScrubSettings},
    snapshot::{SNAPSHOT_LABEL_BYTES_MAX, SnapshotInfo},
    stream_snapshot::STREAM_SNAPSHOTS_MAX,
};
pub use files::{access::LastAccess, cache::BlockCache, names::short_names::ShortNames};
