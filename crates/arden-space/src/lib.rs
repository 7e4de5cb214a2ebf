//! Disks to pools to spaces: labels and the pool map, slabs, layouts, the journal, repair and
//! scrub. A space is a [`arden_block::BlockDevice`] again. The format on disk is described in
//! `docs/on-disk-space.md`. Refuses file names, sockets and clocks of its own: a pool lives on
//! one [`arden_block::Rt`], real or virtual.
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
pub use base::gf::{parity_p, parity_pq};
pub use disk::label::{DiskHeader, read_header};
pub use map::layout::{Layout, Provision, check_interleave};
pub use map::pool_map::DiskState;
pub use pool::open_pool::{DiskStatus, Pool, PoolConfig, PoolStatus, SpaceStatus};
pub use remote::host::{Caller, PoolHost};
pub use remote::nbd;
pub use remote::remote_space::RemoteSpace;
pub use space::open_space::{Space, Verifier};
pub use upkeep::admin::ColumnPlace;
pub use upkeep::moves::MoveReport;
pub use upkeep::open::{CreateOptions, OpenOptions};
pub use upkeep::scrub::ScrubReport;
