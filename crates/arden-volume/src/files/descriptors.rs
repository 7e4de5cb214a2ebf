//! Security descriptors, each kept once however many files have it, with a count of them. Refuses to decide access.

use std::{collections::HashMap, sync::Arc};

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
/// Ids known by content.
const IDS_CACHED_MAX: usize = 4096;

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
    by_id: Mutex<HashMap<u64, Arc<SecurityDescriptor>>, ranks::DescriptorsById>,
    ids: Mutex<HashMap<Vec<u8>, u64>, ranks::DescriptorIds>,
}

impl Descriptors {
    pub fn get(&self, view: &dyn View, id: u64) -> VolResult<Arc<SecurityDescriptor>> {
        if let Some(sd) = self.by_id.lock().get(&id) {
            return Ok(sd.clone());
        }
        let bytes = view.pieces(keys::SD, id)?.ok_or(VolError::Corrupt("a security descriptor is missing"))?;
        let sd = Arc::new(SecurityDescriptor::parse(&bytes)?);
        let mut cache = self.by_id.lock();
        if cache.len() >= DESCRIPTORS_CACHED_MAX {
            cache.clear();
        }
        cache.insert(id, sd.clone());
        Ok(sd)
    }

    /// What it was by some transaction, which may not have happened.
    pub fn id_of(&self, bytes: &[u8]) -> Option<u64> {
        self.ids.lock().get(bytes).copied()
    }

    pub fn remember_id(&self, bytes: Vec<u8>, id: u64) {
        let mut ids = self.ids.lock();
        if ids.len() >= IDS_CACHED_MAX {
            ids.clear();
        }
        ids.insert(bytes, id);
    }
}
