//! The part of a work that one thread does.

use std::time::Instant;

use arden_measure::{Result, load::Latencies};

pub(super) trait Job {
    /// Does the work and returns the number of operations.
    fn run(&mut self, seen: &mut Latencies) -> Result<u64>;
}

pub(super) fn record(seen: &mut Latencies, since: Instant) {
    seen.record(since.elapsed().as_nanos() as u64);
}
