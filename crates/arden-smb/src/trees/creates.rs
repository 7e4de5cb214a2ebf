//! Creates with a CreateGuid that wait for somebody's oplock: their replays have to come later.

use std::{collections::HashSet, sync::Arc};

use arden_lock::{Mutex, ranks};

use crate::trees::Trees;

/// By client and CreateGuid.
#[derive(Default)]
pub(crate) struct PendingCreates(Mutex<HashSet<(u128, u128)>, ranks::PendingCreates>);

/// A create that waits; the note goes with it.
pub struct PendingCreate {
    trees: Arc<Trees>,
    key: (u128, u128),
}

impl Drop for PendingCreate {
    fn drop(&mut self) {
        self.trees.pending_creates.0.lock().remove(&self.key);
    }
}

impl Trees {
    pub fn create_is_pending(&self, client: u128, guid: u128) -> bool {
        self.pending_creates.0.lock().contains(&(client, guid))
    }
    pub fn note_pending_create(self: &Arc<Trees>, client: u128, guid: u128) -> PendingCreate {
        self.pending_creates.0.lock().insert((client, guid));
        PendingCreate { trees: self.clone(), key: (client, guid) }
    }
}
