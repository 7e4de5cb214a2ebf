//! A request scope: the time in which one thread answers one message. A `FileStore` may keep what it has read of a file
//! until the scope ends, so that a compound that opens, asks and closes reads a file's attributes once.
//!
//! A store that does so follows these rules: changes that others make during the scope count as made at the same time as the
//! message; a change that the thread itself makes ends what was kept of that file; and nothing is kept for longer than a
//! time that the store names (`LOOK_TIME` of the `dir` store), because a message may wait. Outside a scope nothing is kept.

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::atomic::{AtomicU64, Ordering},
};

static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    static MUST_NOT_WAIT: Cell<bool> = const { Cell::new(false) };
    static WEIGHT: Cell<usize> = const { Cell::new(0) };
}

/// Lasts until it is dropped, on the thread that began it.
pub struct RequestScope(PhantomData<*const ()>);

impl RequestScope {
    /// A thread that must not wait gives no more than this back to the disk for a request. A file system takes about 0.4 ms for each MiB
    /// that it has in memory.
    pub const FREED_BYTES_MAX: u64 = 16 << 20;

    /// Begins a scope. A scope that lasts already on this thread ends.
    pub fn begin() -> RequestScope {
        CURRENT.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        WEIGHT.set(0);
        RequestScope(PhantomData)
    }

    /// Begins a scope on a thread that serves other requests too: a call of a store that would take long fails with `WouldBlock`,
    /// and the request is made again on a thread that may wait.
    pub fn begin_without_waiting() -> RequestScope {
        MUST_NOT_WAIT.set(true);
        RequestScope::begin()
    }

    /// Whether this thread's scope began with [`RequestScope::begin_without_waiting`].
    pub fn must_not_wait() -> bool {
        MUST_NOT_WAIT.get()
    }

    /// The request at hand takes as much longer than most as `weight` further requests would.
    pub fn weigh(weight: usize) {
        WEIGHT.set(WEIGHT.get().saturating_add(weight));
    }

    /// What the requests of this thread's scope, or of the last one that ended, weigh beside what their commands say: who serves
    /// others on the thread gives them their turn by it.
    pub fn weight() -> usize {
        WEIGHT.get()
    }

    /// The scope's number, different for each scope; None outside of any.
    pub fn current() -> Option<u64> {
        Some(CURRENT.get()).filter(|n| *n != 0)
    }
}

impl Drop for RequestScope {
    fn drop(&mut self) {
        CURRENT.set(0);
        MUST_NOT_WAIT.set(false);
    }
}
