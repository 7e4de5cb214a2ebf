//! Stores of one process whose trees overlap: a share and another of a directory further down. Each keeps large streams in
//! its own root (`SPILL_DIRECTORY`), and finds those that the others have kept. Nothing else is shared between them, and
//! nothing is found of a store whose tree does not overlap.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use arden_lock::{Mutex, ranks};

use super::{SPILL_DIRECTORY, Shared, sys};

/// The path of a store's root without links, as it was when the store was opened. None: it is not known, and overlaps nothing.
pub struct Place(Option<PathBuf>);

static STORES: Mutex<Vec<Weak<Shared>>, ranks::Overlapping> = Mutex::new(Vec::new());

impl Place {
    pub fn of(root: &Path) -> Place {
        Place(root.canonicalize().ok())
    }

    pub fn overlaps(&self, other: &Place) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => a.starts_with(b) || b.starts_with(a),
            _ => false,
        }
    }
}

pub fn enter(shared: &Arc<Shared>) {
    let mut stores = STORES.lock();
    stores.retain(|s| s.strong_count() > 0);
    stores.push(Arc::downgrade(shared));
}

impl Shared {
    /// The directories where stores with overlapping trees keep large streams, without this store's own.
    pub fn spill_directories_of_others(&self) -> Vec<OwnedFd> {
        let all: Vec<Arc<Shared>> = STORES.lock().iter().filter_map(Weak::upgrade).collect();
        let others = all.iter().filter(|s| !std::ptr::eq(&***s, self) && s.overlap.overlaps(&self.overlap));
        others.filter_map(|s| sys::open_child(s.root.pin(), SPILL_DIRECTORY, false).ok()).collect()
    }
}
