//! Several nodes on shared disks: the state machine of `arden-cluster` and the pools of `arden-space`, over a modelled etcd, a network, clocks that
//! drift and processes that stop. Owns time and the order of events. `docs/simulation.md` says what is modelled, `judge` and the
//! oracle of contents what must hold.

mod client;
mod counts;
mod disks;
mod etcd;
mod judge;
mod machine;
mod opens;
mod shell;
mod trouble;
mod world;

pub use counts::Counts;

use crate::stats::{Failure, Stats};

/// Runs one seed to its end.
pub fn run_cluster_seed(seed: u64, verbose: bool) -> Result<Stats, Failure> {
    world::World::new(seed, verbose).and_then(world::World::run).map_err(|what| Failure { seed, what })
}
