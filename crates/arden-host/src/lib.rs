//! The storage manager of a daemon: opens the pools and volumes that the state names, lends spaces to one user at a time,
//! serves NBD exports, runs jobs and scrubs, and makes the snapshots of schedules. Implements the administration's
//! [`Storage`](arden_admin::Storage), [`VolumeAdmin`](arden_admin::VolumeAdmin) and
//! [`SnapshotAdmin`](arden_admin::SnapshotAdmin). Refuses file sharing protocols, which it reaches through [`Sharing`], and
//! a command line.
#![forbid(unsafe_code)]

mod pools;
mod sharing;
mod volumes;

pub use arden_block::reserve::{Key as DiskKey, Protocol as DiskProtocol};
pub use pools::{Adopts, DiskVictim, PoolAdmin, PoolGuard, Pools, adopt_old_list, newest_epoch};
pub use sharing::{NothingShared, Sharing};
pub use volumes::{Entry, File, Offline, Volumes};
