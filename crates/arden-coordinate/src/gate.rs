//! Until when a pool may be served, and until when the node has a lease. Written by the node's shell after each of its decisions, read
//! by every request.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::clock;

/// The deadline of the node's lease. Without a lease it lies in the past.
#[derive(Debug, Default)]
pub struct LeaseGate {
    until_ns: AtomicU64,
}

impl LeaseGate {
    /// Whether the node has a lease now.
    pub fn is_good(&self) -> bool {
        clock::now_ns() < self.until_ns.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Release);
    }
}

/// The deadline of one ownership of a pool. Until it is served, it lies in the past.
#[derive(Debug)]
pub struct PoolGate {
    epoch: u64,
    start_until_ns: AtomicU64,
    answer_until_ns: AtomicU64,
    /// For good: the pool is being closed, and what goes on meanwhile would be answered with errors.
    closed: AtomicBool,
}

impl PoolGate {
    pub(crate) fn new(epoch: u64) -> PoolGate {
        PoolGate {
            epoch,
            start_until_ns: AtomicU64::new(0),
            answer_until_ns: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// The epoch of the ownership.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a request may start now.
    pub fn may_start(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && clock::now_ns() < self.start_until_ns.load(Ordering::Acquire)
    }

    /// Whether what was done may be answered now.
    pub fn may_answer(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && clock::now_ns() < self.answer_until_ns.load(Ordering::Acquire)
    }

    /// How long what was done may be answered, if the lease is not renewed; zero: it may not.
    pub fn remaining(&self) -> Duration {
        if self.closed.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.answer_until_ns.load(Ordering::Acquire).saturating_sub(clock::now_ns()))
    }

    /// From now on nothing is answered.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Zero: never.
    pub(crate) fn set(&self, start_until_ns: u64, answer_until_ns: u64) {
        self.start_until_ns.store(start_until_ns, Ordering::Release);
        self.answer_until_ns.store(answer_until_ns, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_closed_until_it_is_opened_and_after_its_time() {
        let gate = PoolGate::new(1);
        assert!(!gate.may_start() && !gate.may_answer());
        gate.set(u64::MAX, u64::MAX);
        assert!(gate.may_start() && gate.may_answer());
        gate.set(0, u64::MAX);
        assert!(!gate.may_start() && gate.may_answer(), "it closes");
        gate.set(1, 1);
        assert!(!gate.may_start() && !gate.may_answer());
        gate.set(0, clock::now_ns() + 5_000_000_000);
        assert!(gate.remaining() > Duration::from_secs(4) && gate.remaining() <= Duration::from_secs(5));
        gate.close();
        assert!(gate.remaining().is_zero());
        gate.set(u64::MAX, u64::MAX);
        assert!(!gate.may_start() && !gate.may_answer(), "for good");
    }
}
