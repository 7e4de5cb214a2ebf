//! The native file system: NT semantics on a block device. Owns what lies on the device: a journal, a copy-on-write tree
//! of all metadata, and data in extents with a checksum for every block. docs/on-disk-volume.md is the format. Refuses to
//! know of protocols and of disks: it stands on the narrow [`device::Device`].
//!
//! In layers, each of which imports only those below it:
//!
//! | folder | holds |
//! |---|---|
//! | `facade` | the `FileStore`: names, nodes, lists, the table of handles |
//! | `features` | quotas, the change journal (`usn`), snapshots, check, repair, scrub with parity (`even`), growth |
//! | `files` | data of files and where it lies (`extents`, `data`, `read`, `settle`), descriptors, attributes, files in use |
//! | `engine` | state as keys and values, transactions (`kv`), the write-ahead log (`wal`), the tree, free blocks, commits, checkpoints |
//! | `disk` | the device, and how superblock, nodes and values are laid out on it |
#![forbid(unsafe_code)]

mod disk;
mod engine;
mod facade;
mod features;
mod files;
#[cfg(test)]
mod testing;

pub use disk::{
    device::{self, Device, FileDevice, MemDevice},
    error::{VolError, VolResult},
    superblock::Superblock,
};
pub use engine::volume::{Volume, VolumeOptions};
pub use facade::{
    handles::{HANDLE_BYTES_MAX, VolumeHandles},
    store::{Durability, VolumeStore},
};
pub use features::{
    check::{CheckReport, check_device},
    repair::RepairReport,
    scrub::{Damage, ScrubReport, ScrubSettings},
    snapshot::{SNAPSHOT_LABEL_BYTES_MAX, SnapshotInfo},
};
pub use files::{access::LastAccess, cache::BlockCache};
