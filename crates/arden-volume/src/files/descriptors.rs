//! Security descriptors, each kept once however many files have it, with a count of them. Refuses to decide access.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use arden_auth::{Token, new_descriptor};
use arden_lock::{Mutex, ranks};
use arden_wire::dtyp::{SecurityDescriptor, well_known as wk};

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys,
    },
    engine::view::View,
};

/// Descriptors in memory.
const DESCRIPTORS_CACHED_MAX: usize = 4096;
/// What they take of it.
const DESCRIPTOR_BYTES_CACHED_MAX: usize = 16 << 20;
/// Ids known by content.
const IDS_CACHED_MAX: usize = 4096;
/// Their contents.
const ID_BYTES_CACHED_MAX: usize = 4 << 20;

/// What a file made without a descriptor in a directory with `parent` gets.
pub fn inherited(parent: &SecurityDescriptor, directory: bool) -> SecurityDescriptor {
    let explicit = SecurityDescriptor {
        owner: Some(wk::BUILTIN_ADMINISTRATORS.clone()),
        group: Some(wk::SYSTEM.clone()),
        ..Default::default()
    };
    new_descriptor(Some(parent), Some(&explicit), directory, &Token::system())
}

/// Descriptors in memory, and ids known by content.
///
/// | lock | protects | taken |
/// |---|---|---|
/// | `by_id` | descriptors by their id, which never change | alone, also under the engine's state |
/// | `ids` | ids by content; what is there may be out of date | alone, under the engine's state |
#[derive(Default)]
pub struct Descriptors {
    by_id: Mutex<Cache<u64, Arc<SecurityDescriptor>>, ranks::DescriptorsById>,
    ids: Mutex<Cache<Vec<u8>, u64>, ranks::DescriptorIds>,
}

/// Entries of which none is needed: all go when there are too many of them, or too many bytes.
#[derive(Default)]
struct Cache<K, V> {
    entries: HashMap<K, V>,
    bytes: usize,
}

impl<K: Hash + Eq, V> Cache<K, V> {
    fn insert(&mut self, key: K, value: V, bytes: usize, (entries_max, bytes_max): (usize, usize)) {
        if self.entries.len() >= entries_max || self.bytes + bytes > bytes_max {
            *self = Cache { entries: HashMap::new(), bytes: 0 };
        }
        if self.entries.insert(key, value).is_none() {
            self.bytes += bytes;
        }
    }
}

impl Descriptors {
    pub fn get(&self, view: &dyn View, id: u64) -> VolResult<Arc<SecurityDescriptor>> {
        if let Some(sd) = self.by_id.lock().entries.get(&id) {
            return Ok(sd.clone());
        }
        let bytes = view.pieces(keys::SD, id)?.ok_or(VolError::Corrupt("a security descriptor is missing"))?;
        let sd = Arc::new(SecurityDescriptor::parse(&bytes)?);
        let bounds = (DESCRIPTORS_CACHED_MAX, DESCRIPTOR_BYTES_CACHED_MAX);
        self.by_id.lock().insert(id, sd.clone(), sd.heap_bytes(), bounds);
        Ok(sd)
    }

    /// What it was by some transaction, which may not have happened.
    pub fn id_of(&self, bytes: &[u8]) -> Option<u64> {
        self.ids.lock().entries.get(bytes).copied()
    }

    pub fn remember_id(&self, bytes: Vec<u8>, id: u64) {
        let len = bytes.len();
        self.ids.lock().insert(bytes, id, len, (IDS_CACHED_MAX, ID_BYTES_CACHED_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cached_is_bounded_by_count_and_bytes() {
        let mut cache = Cache::default();
        let bytes = |i: u64| i as usize % 700;
        for i in 0..20_000 {
            cache.insert(i, i, bytes(i), (100, 10_000));
            cache.insert(i, i, bytes(i), (100, 10_000));
            assert_eq!(cache.entries.get(&i), Some(&i));
            assert!(cache.entries.len() <= 100 && cache.bytes <= 10_000);
            assert_eq!(cache.bytes, cache.entries.keys().map(|i| bytes(*i)).sum::<usize>());
        }
        cache.insert(7, 7, 20_000, (100, 10_000));
        assert_eq!(cache.entries.len(), 1, "one that is too large alone is there alone");
    }
}
