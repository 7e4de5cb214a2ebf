//! The native file system: NT semantics on a block device. Owns what lies on the device: a journal, a copy-on-write tree
//! of all metadata, and data in extents with a checksum for every block. docs/on-disk-volume.md is the format. Refuses to
//! know of protocols and of disks: it stands on the narrow [`device::Device`].
//!
//! From the bottom: `device`, `alloc` (which blocks are free), `treenode` and `tree`, `journal`, `superblock`, `kv` (the
//! state as keys and values, and the transaction), `volume` (opening, group commit, checkpoints), `later` (commits that
//! nobody waits for), `pipeline` (the same on a device that tells when it has written), `relief` (room under the volume),
//! `extents`, `cache`, `data`, `read` and `settle` (bytes of files), `snapshot`, `ns` (names), `node` and `store` (the
//! `FileStore`), `quota`, `usn` and `usnwatch` (the change journal), `check`, `repair`, `scrub` and `even` (parity).
#![forbid(unsafe_code)]

mod access;
mod alloc;
mod background;
mod cache;
mod check;
mod check_past;
mod data;
pub mod device;
mod ea;
mod error;
mod even;
mod extents;
mod files;
mod grow;
mod handles;
mod inode;
mod journal;
mod keys;
mod kv;
mod later;
mod list;
mod node;
mod ns;
mod pipeline;
mod quota;
mod read;
mod relief;
mod repair;
mod scrub;
mod security;
mod settle;
mod snapshot;
mod store;
mod subject;
mod superblock;
#[cfg(test)]
mod testing;
mod tree;
mod treenode;
mod usn;
mod usnwatch;
mod volume;

pub use access::LastAccess;
pub use cache::BlockCache;
pub use check::{CheckReport, check_device};
pub use device::{Device, FileDevice, MemDevice};
pub use error::{VolError, VolResult};
pub use handles::{HANDLE_BYTES_MAX, VolumeHandles};
pub use repair::RepairReport;
pub use scrub::{Damage, ScrubReport, ScrubSettings};
pub use snapshot::{SNAPSHOT_LABEL_BYTES_MAX, SnapshotInfo};
pub use store::{Durability, VolumeStore};
pub use superblock::Superblock;
pub use volume::{Volume, VolumeOptions};
