//! Exclusive locks on ranges of a space, so that two writers of one block, or a writer and a
//! resync, cannot leave the copies different.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::sync::Notify;

#[derive(Default)]
pub(crate) struct RangeLocks {
    held: RefCell<Vec<(u64, u64, u64)>>,
    next: Cell<u64>,
    freed: Notify,
}

pub(crate) struct RangeGuard {
    locks: Rc<RangeLocks>,
    id: u64,
}

impl RangeLocks {
    pub(crate) fn is_held(&self, start: u64, end: u64) -> bool {
        self.held.borrow().iter().any(|&(a, b, _)| a < end && start < b)
    }

    /// Waits until nobody holds any of `start..end`.
    pub(crate) async fn lock(self: &Rc<Self>, start: u64, end: u64) -> RangeGuard {
        loop {
            let wait = self.freed.wait();
            if !self.is_held(start, end) {
                let id = self.next.get();
                self.next.set(id + 1);
                self.held.borrow_mut().push((start, end, id));
                return RangeGuard { locks: self.clone(), id };
            }
            wait.await;
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.locks.held.borrow_mut().retain(|h| h.2 != self.id);
        self.locks.freed.notify_all();
    }
}
