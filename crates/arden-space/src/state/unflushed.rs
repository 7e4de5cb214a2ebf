//! Changes in place that are written and wait for a flush of the disks, which they share. Each ends by itself soon; who
//! needs the end of all of them says so, and waits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use arden_block::sync::{Notify, NotifyWait};

#[derive(Default)]
pub(crate) struct Unflushed {
    waiting: RefCell<BTreeSet<u64>>,
    next: Cell<u64>,
    /// Those before this one are to be flushed now.
    wanted: Cell<u64>,
    /// Of those that ended, how many could not be flushed in their place.
    failed: Cell<u64>,
    want: Notify,
    ended: Notify,
}

/// One of them, until it is dropped.
pub(crate) struct Waiting {
    of: Rc<Unflushed>,
    number: u64,
}

impl Unflushed {
    pub(crate) fn begin(self: &Rc<Self>) -> Waiting {
        let number = self.next.get();
        self.next.set(number + 1);
        self.waiting.borrow_mut().insert(number);
        Waiting { of: self.clone(), number }
    }

    /// Everything that waits is to be flushed now. The number of the first that is not meant.
    pub(crate) fn want(&self) -> u64 {
        let end = self.next.get();
        self.wanted.set(end);
        self.want.notify_all();
        end
    }

    pub(crate) fn is_any_before(&self, end: u64) -> bool {
        self.waiting.borrow().first().is_some_and(|n| *n < end)
    }

    /// Rung when one of them has ended.
    pub(crate) fn ended(&self) -> NotifyWait<'_> {
        self.ended.wait()
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.get()
    }
}

impl Waiting {
    pub(crate) fn is_wanted(&self) -> bool {
        self.number < self.of.wanted.get()
    }

    /// Rung when more of them are wanted.
    pub(crate) fn wanted(&self) -> NotifyWait<'_> {
        self.of.want.wait()
    }

    pub(crate) fn want_all(&self) {
        self.of.want();
    }

    pub(crate) fn failed(&self) {
        self.of.failed.set(self.of.failed.get() + 1);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.of.waiting.borrow_mut().remove(&self.number);
        self.of.ended.notify_all();
    }
}
