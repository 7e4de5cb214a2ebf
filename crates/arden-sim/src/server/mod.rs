//! The whole server in one simulated process: the SMB state machine over a volume on a mirrored space on simulated disks,
//! with a continuously available share; clients that write, lock, cache and close; connections that are lost before
//! or after a request arrived; power that is lost at any write; stops by the book; restarts, reconnects and replays.
//!
//! # What is checked
//! * A write that was acknowledged is read by everybody, also after any loss; one that was not may be there or not, whole.
//! * An open that was granted is kept until its client closes it or stays away longer than its time-out, with its share
//!   modes and byte-range locks; nothing that conflicts with them is granted meanwhile. After its time-out it is gone for good
//!   with the next change that is acknowledged; a crash before that may bring it back, as nobody was told.
//! * A request that is replayed after its answer was lost has its effect once, [MS-SMB2] 3.3.5.9.10, 3.3.5.14, 3.3.5.2.10.
//! * Nobody keeps cached what another has changed: whoever holds a lease is told before the change is acknowledged, or
//!   when it returns, [MS-SMB2] 3.3.4.7.
//!
//! # What is not modelled
//! Several channels, renames and deletions, oplocks, directories, requests of one client beside each other, the state
//! store, disks that fail. Session ids and challenges are random: a seed decides everything that the model sees, not every byte.

mod model;
mod steps;
mod world;

use arden_testkit::client;

use crate::stats::{Failure, Stats};

/// Runs one seed to its end.
pub fn run_server_seed(seed: u64, verbose: bool) -> Result<Stats, Failure> {
    let mut world = world::World::new(seed, verbose);
    let lives = world.rng.range(2, 4);
    for life in 0..=lives {
        world.life(life == 0, life == lives).map_err(|what| Failure { seed, what })?;
    }
    Ok(world.stats)
}
