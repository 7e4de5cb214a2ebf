//! What was seen of a file stays good for a moment: while one thread answers one message, and for ten milliseconds at
//! most. A compound that opens, asks and closes looks at its file once. Changes that others make meanwhile happened at
//! the same time as the message, and those of the thread itself end what was seen (`Inode::forget_seen`). Where they
//! touched only data and names, the attributes that were known before are still known after (`Inode::outdate_seen`).
//! Outside a moment nothing is kept.

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::atomic::{AtomicU64, Ordering},
};

static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    static SHORT: Cell<bool> = const { Cell::new(false) };
}

/// Lasts until it is dropped, on the thread that began it.
pub struct Moment(PhantomData<*const ()>);

impl Moment {
    /// One that lasts already ends with this.
    pub fn begin() -> Moment {
        CURRENT.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        Moment(PhantomData)
    }

    /// On a thread that others wait for: look-ups that would read a large directory fail with PENDING, and are to be made
    /// again elsewhere.
    pub fn begin_short() -> Moment {
        SHORT.set(true);
        Moment::begin()
    }

    /// Whether this thread is in one that began with [`Moment::begin_short`].
    pub(super) fn is_short() -> bool {
        SHORT.get()
    }

    /// Its number; None outside of any.
    pub(super) fn current() -> Option<u64> {
        Some(CURRENT.get()).filter(|n| *n != 0)
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        CURRENT.set(0);
        SHORT.set(false);
    }
}
