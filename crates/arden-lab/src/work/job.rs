//! What one thread does of a work.

use std::time::Instant;

use arden_measure::{Result, load::Latencies};

pub(super) trait Job {
    /// Does the work; how many operations were done.
    fn run(&mut self, seen: &mut Latencies) -> Result<u64>;
}

pub(super) fn record(seen: &mut Latencies, since: Instant) {
    seen.record(since.elapsed().as_nanos() as u64);
}
