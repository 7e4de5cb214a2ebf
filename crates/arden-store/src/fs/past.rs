//! States of the past as roots of their own: each has its own store, and opens of it share the table with all others.
//! Nothing in them can be changed, [MS-FSA] Volume.IsReadOnly.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use arden_lock::{Mutex, ranks};
use arden_wire::FileTime;

use super::{Fs, Open};
use crate::{
    error::StoreError,
    name::{NtPath, PathWants},
    store::{Lookup, Result},
};

/// Those in use.
pub(super) type Past = Mutex<HashMap<FileTime, Weak<Fs>>, ranks::Past>;

impl Fs {
    /// This root as it was. `NotFound` when no state of that second is kept, [MS-SMB2] 3.3.5.9.4.
    pub fn as_of(&self, time: FileTime) -> Result<Arc<Fs>> {
        let store = self.store.snapshot(time)?;
        let mut past = self.past.lock();
        past.retain(|_, fs| fs.strong_count() > 0);
        // One for all, so that what one open keeps another from stays true. A new store each time: the old one may be gone.
        if let Some(fs) = past.get(&time).and_then(Weak::upgrade)
            && fs.store.root().stat().is_ok()
        {
            return Ok(fs);
        }
        let fs = Fs::new(store, self.table.clone());
        past.insert(time, Arc::downgrade(&fs));
        Ok(fs)
    }

    /// Times of the states in which the file is there, newest first, [MS-SMB2] 3.3.5.15.1.
    pub fn previous_versions(&self, open: &Open) -> Vec<FileTime> {
        let path = NtPath { components: open.node.path(), stream: None, wants: PathWants::Any };
        let mut times = self.store.snapshots();
        times.sort_unstable_by(|a, b| b.cmp(a));
        times.retain(|t| self.store.snapshot(*t).is_ok_and(|s| matches!(s.lookup(&path), Ok(Lookup::Found(_)))));
        times
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn check_writable(&self) -> Result<(), StoreError> {
        if self.read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }
}
