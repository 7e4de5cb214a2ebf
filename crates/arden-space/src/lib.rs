//! Disks to pools to spaces: labels and the pool map, slabs, layouts, the journal, repair and
//! scrub. A space is a [`arden_block::BlockDevice`] again. The format on disk is described in
//! `docs/on-disk-space.md`. Refuses file names, sockets and clocks of its own: a pool lives on
//! one [`arden_block::Rt`], real or virtual.
//!
//! In layers, each of which imports only those below it:
//!
//! | folder | holds |
//! |---|---|
//! | `remote` | a pool on a thread of its own, NBD, spaces as other storage |
//! | `upkeep` | opening and closing, members, making spaces, moves, resync, scrub, and the tasks in the background |
//! | `space` | reads and writes of a space, mirrors, parity, slabs of groups, and putting in its place what was gathered |
//! | `log` | records of the log, writing and reading it, its disks, the flush of a pool |
//! | `pool` | an open pool and its parts, the commit of its map, slabs in use, its status and its invariants |
//! | `state` | the owners of its state, which know nothing of the pool |
//! | `disk` | one disk: label, operations, time limits |
//! | `map` | the pool map and its bytes, layouts, where stripes lie, free slabs |
//! | `base` | bitmaps, range locks, byte codecs, errors |
//!
//! Layers above `pool` add methods to `Pool` and `Space`; none below calls them (`scripts/tidy` looks). A log that has no
//! room left has itself emptied by `Inner::empty_log`, which an opening sets: destaging is above the log and writes to it.
#![forbid(unsafe_code)]

mod base;
mod disk;
mod log;
mod map;
mod pool;
mod remote;
mod space;
mod state;
mod upkeep;

pub use base::error::{SpaceError, SpaceResult};
pub use disk::label::{DiskHeader, read_header};
pub use map::layout::{Layout, Provision, check_interleave};
pub use map::pool_map::DiskState;
pub use pool::open_pool::{Pool, PoolConfig};
pub use pool::status::{DiskStatus, PoolStatus, SpaceStatus};
pub use remote::host::{Caller, PoolHost};
pub use remote::nbd;
pub use remote::read_here::read_here;
pub use remote::remote_space::RemoteSpace;
pub use remote::shared_space::{Access, SharedSpace, SpaceThread};
pub use space::direct::{DirectRead, DirectSpace, Doubt};
pub use space::open_space::{Space, Verifier};
pub use upkeep::admin::ColumnPlace;
pub use upkeep::moves::MoveReport;
pub use upkeep::open::{CreateOptions, OpenOptions, Ownership, Right};
pub use upkeep::scrub::ScrubReport;
