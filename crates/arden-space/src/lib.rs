//! Disks to pools to spaces: labels and the pool map, slabs, layouts, the journal, repair and
//! scrub. A space is a [`arden_block::BlockDevice`] again. The format on disk is described in
//! `docs/on-disk-space.md`. Refuses file names, sockets and clocks of its own: a pool lives on
//! one [`arden_block::Rt`], real or virtual.
#![forbid(unsafe_code)]

mod admin;
mod alloc;
mod background;
mod bitmap;
mod check;
mod codec;
mod commit;
mod copies;
mod departures;
mod disk;
mod error;
mod events;
mod flips;
mod free;
mod gf;
mod host;
mod journal;
mod label;
mod layout;
mod lifecycle;
mod lock;
mod log;
mod map;
mod mapcode;
mod mirror;
mod moves;
pub mod nbd;
mod open;
mod overlay;
mod parity;
mod parity_check;
mod patch;
mod pool;
mod reform;
mod remote;
mod resync;
mod rewrite;
mod room;
mod rounds;
mod scrub;
mod slab;
mod slow;
mod space;
mod stripes;
mod stuck;
mod watch;

pub use admin::ColumnPlace;
pub use error::{SpaceError, SpaceResult};
pub use gf::{parity_p, parity_pq};
pub use host::{Caller, PoolHost};
pub use label::{DiskHeader, read_header};
pub use layout::{Layout, Provision, check_interleave};
pub use map::DiskState;
pub use moves::MoveReport;
pub use open::{CreateOptions, OpenOptions};
pub use pool::{DiskStatus, Pool, PoolConfig, PoolStatus, SpaceStatus};
pub use remote::RemoteSpace;
pub use scrub::ScrubReport;
pub use space::{Space, Verifier};
