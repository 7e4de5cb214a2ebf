//! Keys of the handle store, and what is kept there of an open's byte-range locks. `server::persist` says when.

use std::collections::BTreeMap;

use arden_store::{fs::LockRange, handles::HandleChange};

pub fn key(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = vec![kind];
    parts.iter().for_each(|p| key.extend_from_slice(p));
    key
}
pub fn open_key(id: u64) -> Vec<u8> {
    key(b'o', &[&id.to_be_bytes()])
}
/// Kind of the key of an open that is merely durable. Servers of before do not know it, and pass it over.
pub const DURABLE: u8 = b'd';
pub fn durable_key(id: u64) -> Vec<u8> {
    key(DURABLE, &[&id.to_be_bytes()])
}
pub fn lock_key(id: u64, (offset, len, exclusive): (u64, u64, bool)) -> Vec<u8> {
    key(b'k', &[&id.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes(), &[u8::from(exclusive)]])
}
pub fn sequence_key(id: u64, bucket: usize) -> Vec<u8> {
    key(b's', &[&id.to_be_bytes(), &[bucket as u8]])
}
pub fn lease_key(client: u128, lease: u128) -> Vec<u8> {
    key(b'l', &[&client.to_be_bytes(), &lease.to_be_bytes()])
}

pub fn bucket_bit(bucket: usize) -> u64 {
    1u64.checked_shl((bucket as u32).wrapping_sub(1)).unwrap_or(0)
}

/// What is kept of an open's byte-range locks.
#[derive(Default)]
pub struct KeptLocks {
    /// Offset, length, exclusive, and how often.
    pub held: BTreeMap<(u64, u64, bool), u32>,
    /// Of LockSequenceArray, [MS-SMB2] 3.3.1.10: those whose number is kept, bit 0 for bucket 1.
    pub buckets: u64,
    /// Sum of `held`.
    pub count: usize,
}

impl KeptLocks {
    /// How many locks are held, each as often as it is.
    pub fn held_count(&self) -> usize {
        self.count
    }

    /// Nothing is known any more of what the bucket's last number did. None: nothing was.
    pub fn forget_sequence(&mut self, id: u64, bucket: usize) -> Option<HandleChange> {
        let known = self.buckets & bucket_bit(bucket) != 0;
        self.buckets &= !bucket_bit(bucket);
        known.then(|| HandleChange::Remove { key: sequence_key(id, bucket) })
    }

    /// Locks that were taken or given back. The caller holds the open's `kept_locks` since before it asked the table, so
    /// that what is kept is in the table's order.
    pub fn change(&mut self, id: u64, ranges: &[LockRange], unlock: bool, changes: &mut Vec<HandleChange>) {
        for r in ranges {
            let exclusive = (r.offset, r.len, true);
            // An unlock takes the exclusive lock first, as the table does.
            let at = if unlock && self.held.contains_key(&exclusive) {
                exclusive
            } else {
                (r.offset, r.len, !unlock && r.exclusive)
            };
            let count = self.held.entry(at).or_default();
            self.count = if unlock { self.count - usize::from(*count > 0) } else { self.count + 1 };
            *count = if unlock { count.saturating_sub(1) } else { *count + 1 };
            let key = lock_key(id, at);
            changes.push(match *count {
                0 => {
                    self.held.remove(&at);
                    HandleChange::Remove { key }
                }
                n => HandleChange::Put { key, value: n.to_le_bytes().to_vec() },
            });
        }
    }

    /// The lock sequence that brought them.
    pub fn sequence(&mut self, id: u64, bucket: usize, number: u8) -> HandleChange {
        self.buckets |= bucket_bit(bucket);
        HandleChange::Put { key: sequence_key(id, bucket), value: vec![number] }
    }

    /// Nothing of it is kept any more.
    pub fn removal(&self, id: u64) -> impl Iterator<Item = HandleChange> {
        let locks = self.held.keys().map(move |r| lock_key(id, *r));
        let used = (1..=64).filter(|bucket| self.buckets & bucket_bit(*bucket) != 0);
        locks.chain(used.map(move |bucket| sequence_key(id, bucket))).map(|key| HandleChange::Remove { key })
    }
}
