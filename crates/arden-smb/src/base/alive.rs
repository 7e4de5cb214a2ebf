//! Values by key that live as long as somebody has them.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use arden_lock::{Mutex, Rank};

/// The value of the key, or a new one. Those that nobody has any more go when the map would grow.
pub fn find<K: Eq + Hash, V: Default, R: Rank>(all: &Mutex<HashMap<K, Weak<V>>, R>, key: K) -> Arc<V> {
    let mut all = all.lock();
    if let Some(value) = all.get(&key).and_then(Weak::upgrade) {
        return value;
    }
    if all.len() == all.capacity() {
        all.retain(|_, value| value.strong_count() > 0);
    }
    let value = Arc::default();
    all.insert(key, Arc::downgrade(&value));
    value
}
