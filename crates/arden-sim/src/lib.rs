//! One seed drives clock, disks, crashes and a random workload over a pool, and an oracle
//! that knows what may be read back. Owns the statement of which faults each layout has to
//! survive. Refuses the real clock and real disks.
//!
//! # Faults permitted
//! | layout | disks away at once | one disk damages silently |
//! |---|---|---|
//! | simple | 0 | no |
//! | mirror2, parity | 1 | yes, when nothing else fails |
//! | mirror3, dual parity | 2 | yes; two disks, or one and another is away |
//!
//! *Away* is a disk that is dead, hung, left out of an opening, failing operations, or back but
//! not yet up to date, in memory and in the newest durable map. One more rule holds for all:
//! a disk that holds the journal, in memory and in the newest durable map, has to be within
//! reach; after a loss the journal has fewer copies until it has moved.
//!
//! * **Crashes** come at any moment: while a pool is made, opened, its log replayed, under load,
//!   in repair. Each write that was not durable survives, is lost, or is torn sector by
//!   sector, in any order.
//! * **Death** loses what the disk's cache held. The pool is told when a disk is back, if it did
//!   not notice: a disk that drops its cache in silence is more than any layout permits.
//! * **Resets** lose the cache, too, while commands in flight go on; the pool is told at once.
//! * **Flushes fail** and drop some of what was cached; the next one succeeds. The disk counts as away from when that is due.
//! * **Single commands are stuck** for 20 to 400 ms, beyond the time-out, and happen then; others go on meanwhile. The disk
//!   counts as away until they have.
//! * **Blocks go bad**: 1 to 40 in a row cannot be read until they are written. Their disk counts as away as long.
//! * **Hanging** lasts shorter or longer than the time-out; what was asked happens afterwards.
//! * **Errors**: single reads fail on all disks of a redundant layout (0.2 %); a flaky disk fails
//!   one operation in ten. **Latency** varies, and single operations stall for 3 ms.
//! * **Silent damage** (rot, lost and misdirected writes, flushes that do nothing, a cache lost unnoticed) strikes one disk, or
//!   two, in runs where nothing else fails but one disk that may leave beside a single one. Reads carry a verifier. After a crash the
//!   user makes the copies equal that its checksums know. Spaces with parity are written by whole stripes: without
//!   checksums from above, a partial stripe that reads the rest of it would take damage for data.
//! * **The host crashes alone** in a quarter of all crashes: disks finish what they were asked, and keep their caches.
//!
//! Some crashes are aimed: up to 2 ms after a disk leaves, at a write of a label, at the turn of the log; of volumes, at a write
//! of the superblock and at a batch of the journal.
//!
//! # Three kinds of runs
//! [`run_seed`] has one space and disks that die and return. [`run_pool_seed`] has two or three
//! spaces of mixed layouts in one pool, whose disks are exchanged meanwhile: spares take over,
//! disks join, are emptied and leave for good. There the space that bears the least says how many
//! disks may be away; with a simple space among them none is. In every second of these runs
//! openings may be without any disks as long as a copy of the log is there: spaces that bear less may
//! answer [`arden_space::SpaceError::Offline`] until the disks are back, all others go on, and at the
//! end, with all disks, everything acknowledged is there. While a pool is in use no more disks fail
//! than the spaces bear: with more of them the content of their caches would be lost.
//!
//! [`run_identity_seed`] gives a pool what it did not leave: see `identity`. Volumes are [`run_volume_seed`].
//! [`run_cluster_seed`] has several nodes on shared disks: see `cluster`.
//! `docs/simulation.md` says more, and how a failure is read.
#![forbid(unsafe_code)]

mod client;
pub mod cluster;
mod direct;
pub mod every_fault;
mod identity;
mod moves;
pub mod oracle;
pub mod run;
pub mod server;
mod spaces;
mod stats;
pub mod trace;
mod trouble;
pub mod turns;
pub mod volume;
mod world;

pub use cluster::run_cluster_seed;
pub use identity::run_identity_seed;
pub use run::{run_pool_seed, run_seed};
pub use server::run_server_seed;
pub use stats::{Failure, Stats};
pub use volume::{run_volume_seed, together::run_together_seed};
pub use world::Profile;
