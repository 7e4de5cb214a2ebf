//! Who reads or writes a slab right now. A slab that is given back while somebody does stays
//! taken until the last of them is done: what is in flight can neither land on its next owner's
//! data nor return it.

use std::cell::RefCell;
use std::collections::HashMap;

use arden_block::sync::MutexGuard;

use crate::map::alloc::Allocator;
use crate::pool::open_pool::Pool;
use crate::state::trims::Slab;

#[derive(Default)]
struct Users {
    count: u32,
    /// Given back meanwhile: free when the last user goes.
    leaving: bool,
}

#[derive(Default)]
pub(crate) struct SlabUsers(RefCell<HashMap<(u16, u32), Users>>);

impl SlabUsers {
    /// A slab that somebody uses belongs to nobody else.
    pub(crate) fn check(&self, alloc: &Allocator) -> Result<(), String> {
        match self.0.borrow().iter().find(|(p, u)| u.count == 0 || alloc.is_free(p.0, p.1)) {
            Some((p, u)) => Err(format!("slab {} of disk {} has {} users and is free", p.1, p.0, u.count)),
            None => Ok(()),
        }
    }
}

/// Keeps a slab for as long as it lives.
pub(crate) struct SlabUse {
    pool: Pool,
    place: (u16, u32),
}

impl Pool {
    /// Taken together with the place itself, before any await.
    pub(crate) fn use_slab(&self, disk: u16, slab: u32) -> SlabUse {
        self.0.slab_users.0.borrow_mut().entry((disk, slab)).or_default().count += 1;
        SlabUse { pool: self.clone(), place: (disk, slab) }
    }

    /// Gives a slab back, at once or as soon as nobody uses it.
    pub(crate) fn release_slab(&self, disk: u16, slab: u32) {
        if let Some(u) = self.0.slab_users.0.borrow_mut().get_mut(&(disk, slab)) {
            u.leaving = true;
            return;
        }
        self.0.alloc.borrow_mut().release(disk, slab);
    }

    /// The durable map knows nothing of these slabs any more.
    pub(crate) fn give_back(&self, slabs: impl IntoIterator<Item = Slab>) {
        let slabs: Vec<Slab> = slabs.into_iter().collect();
        slabs.iter().for_each(|&(disk, slab)| self.release_slab(disk, slab));
        self.0.trims.add(slabs);
    }

    /// Nothing is free but what is being discarded just now: that is waited for, and nothing else is discarded while the
    /// guard lives.
    pub(crate) async fn no_trim(&self) -> MutexGuard<'_> {
        self.0.trims.one().await
    }
}

impl Drop for SlabUse {
    fn drop(&mut self) {
        let mut users = self.pool.0.slab_users.0.borrow_mut();
        let Some(u) = users.get_mut(&self.place) else { return };
        u.count -= 1;
        if u.count > 0 {
            return;
        }
        let leaving = u.leaving;
        users.remove(&self.place);
        drop(users);
        if leaving {
            self.pool.0.alloc.borrow_mut().release(self.place.0, self.place.1);
        }
    }
}
