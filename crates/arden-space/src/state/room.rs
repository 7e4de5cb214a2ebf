//! Room for writes that gather in memory: one writer at a time makes some, the others wait until there is.

use std::cell::Cell;
use std::rc::Rc;

use arden_block::sync::{Mutex, MutexGuard, Notify, NotifyWait};

#[derive(Default)]
pub(crate) struct Room {
    one: Mutex,
    made: Notify,
    /// Stripes on their way out of memory.
    leaving: Cell<u32>,
}

/// A stripe that leaves memory; who waits for its room is told when it is dropped.
pub(crate) struct Leaving(Rc<Room>);

impl Room {
    pub(crate) fn leaving(self: &Rc<Self>) -> Leaving {
        self.leaving.set(self.leaving.get() + 1);
        Leaving(self.clone())
    }

    /// Complete stripes leave: what is incomplete may yet become complete.
    pub(crate) fn is_streaming(&self) -> bool {
        self.leaving.get() > 0
    }

    pub(crate) fn is_being_made(&self) -> bool {
        self.is_streaming() || self.one.is_locked()
    }

    pub(crate) async fn make(&self) -> MutexGuard<'_> {
        self.one.lock().await
    }

    pub(crate) fn made(&self) -> NotifyWait<'_> {
        self.made.wait()
    }

    pub(crate) fn tell(&self) {
        self.made.notify_all();
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leaving.set(self.0.leaving.get() - 1);
        self.0.tell();
    }
}
