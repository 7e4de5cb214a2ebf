//! When background work runs: beside clients, paused, cancelled, and how long a missing disk is waited for.

use std::cell::Cell;

use arden_block::sync::{Mutex, MutexGuard, Notify, NotifyWait};

#[derive(Default)]
pub(crate) struct Background {
    work: Notify,
    paused: Cell<bool>,
    cancelled: Cell<bool>,
    grace_ms: Cell<u64>,
    /// When a client last asked for anything, in nanoseconds of the runtime's clock; 0: never.
    last_use_ns: Cell<u64>,
    /// One pass of moves at a time: two would find each other's columns in motion.
    moves: Mutex,
    scrub_at: Cell<(u32, usize)>,
}

impl Background {
    pub(crate) fn new(grace_ms: u64) -> Background {
        Background { grace_ms: Cell::new(grace_ms), ..Background::default() }
    }

    /// There is something to do before the next tick.
    pub(crate) fn wake(&self) {
        self.work.notify_all();
    }

    pub(crate) fn woken(&self) -> NotifyWait<'_> {
        self.work.wait()
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.set(paused);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.get() && !self.cancelled.get()
    }

    pub(crate) fn set_cancelled(&self, cancelled: bool) {
        self.cancelled.set(cancelled);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub(crate) fn set_grace_ms(&self, grace_ms: u64) {
        self.grace_ms.set(grace_ms);
        self.wake();
    }

    pub(crate) fn grace_ns(&self) -> u64 {
        self.grace_ms.get().saturating_mul(1_000_000)
    }

    pub(crate) fn client_at(&self, now_ns: u64) {
        self.last_use_ns.set(now_ns);
    }

    /// A client asked for something less than `busy_ms` ago.
    pub(crate) fn is_busy(&self, now_ns: u64, busy_ms: u64) -> bool {
        let last = self.last_use_ns.get();
        last > 0 && now_ns - last < busy_ms * 1_000_000
    }

    pub(crate) async fn moving(&self) -> MutexGuard<'_> {
        self.moves.lock().await
    }

    pub(crate) fn is_moving(&self) -> bool {
        self.moves.is_locked()
    }

    /// Where the last scrub came to: space, and group of it.
    pub(crate) fn scrub_at(&self) -> (u32, usize) {
        self.scrub_at.get()
    }

    pub(crate) fn set_scrub_at(&self, at: (u32, usize)) {
        self.scrub_at.set(at);
    }
}
