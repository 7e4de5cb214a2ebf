//! Free slabs whose content the disks need not keep, until each is discarded on its disk.

use std::cell::RefCell;
use std::collections::BTreeSet;

use arden_block::sync::{Mutex, MutexGuard, Notify, NotifyWait};

/// A slab: disk, and number there.
pub(crate) type Slab = (u16, u32);

/// Free slabs whose content the disks need not keep.
#[derive(Default)]
pub(crate) struct Trims {
    slabs: RefCell<BTreeSet<Slab>>,
    more: Notify,
    /// Held while a slab is discarded, which nobody may have meanwhile.
    one: Mutex,
}

impl Trims {
    pub(crate) fn add(&self, slabs: impl IntoIterator<Item = Slab>) {
        self.slabs.borrow_mut().extend(slabs);
        self.more.notify_all();
    }

    pub(crate) fn next(&self) -> Option<Slab> {
        self.slabs.borrow_mut().pop_first()
    }

    /// Until there are more.
    pub(crate) fn more(&self) -> NotifyWait<'_> {
        self.more.wait()
    }

    /// Nothing else is discarded while the guard lives.
    pub(crate) async fn one(&self) -> MutexGuard<'_> {
        self.one.lock().await
    }
}
