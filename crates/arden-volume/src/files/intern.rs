//! Descriptors on the device: each kept once however many files have it, with a count of them.

use arden_wire::dtyp::SecurityDescriptor;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    disk::{error::VolResult, keys},
    engine::view::View,
    files::txn::FileTxn,
};

fn count(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

impl FileTxn<'_> {
    /// The id of this descriptor, with one user more.
    pub fn intern_descriptor(&mut self, sd: &SecurityDescriptor) -> VolResult<u64> {
        let bytes = sd.encode();
        let known = self.files.descriptors.id_of(&bytes);
        if let Some(id) = known
            && let Some(n) = self.get(&keys::one(keys::SD_COUNT, id))?
        {
            // It may have been taken away and the id is still remembered; ids are never given again.
            self.put(keys::one(keys::SD_COUNT, id), (count(&n) + 1).to_le_bytes());
            return Ok(id);
        }
        let hash = xxh3_64(&bytes);
        for (key, _) in self.collect(&keys::one(keys::SD_HASH, hash), &keys::end_of(keys::SD_HASH, hash), 64)? {
            let id = keys::second(&key);
            if self.pieces(keys::SD, id)?.as_deref() == Some(bytes.as_slice()) {
                let n = self.get(&keys::one(keys::SD_COUNT, id))?.map_or(0, |n| count(&n));
                self.put(keys::one(keys::SD_COUNT, id), (n + 1).to_le_bytes());
                self.files.descriptors.remember_id(bytes, id);
                return Ok(id);
            }
        }
        let id = self.new_id();
        self.put_pieces(keys::SD, id, &bytes)?;
        self.put(keys::two(keys::SD_HASH, hash, id), []);
        self.put(keys::one(keys::SD_COUNT, id), 1u64.to_le_bytes());
        Ok(id)
    }

    /// One user fewer.
    pub fn drop_descriptor(&mut self, id: u64) -> VolResult<()> {
        let key = keys::one(keys::SD_COUNT, id);
        let n = self.get(&key)?.map_or(0, |n| count(&n));
        if n > 1 {
            self.put(key, (n - 1).to_le_bytes());
            return Ok(());
        }
        self.delete(key);
        if let Some(bytes) = self.pieces(keys::SD, id)? {
            self.delete(keys::two(keys::SD_HASH, xxh3_64(&bytes), id));
        }
        self.delete_pieces(keys::SD, id)
    }
}
