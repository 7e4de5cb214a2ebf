//! Changes in memory that are looked up by key far more often than they are found. Owns what is known of keys that no change
//! is of; refuses to know what keys mean.

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    disk::keys::{Key, Val},
    engine::tree::Layer,
};

/// 128 KiB: of 60,000 keys that were not changed one in a hundred looks as if it was, of 250,000 one in seven.
const WORDS: usize = 1 << 14;

/// A layer, and in which words of a Bloom filter its keys are: most looks for other keys end there, with one access to memory.
#[derive(Default)]
pub struct Overlay {
    layer: Layer,
    /// Empty as long as the layer is.
    words: Vec<u64>,
}

/// Of a key, for all overlays and rows that are asked for it.
pub fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// The word that a key is in, and its bits.
fn place(hash: u64) -> (usize, u64) {
    (hash as usize % WORDS, 1 << (hash >> 52 & 63) | 1 << (hash >> 58))
}

impl Overlay {
    /// The change of the key with this [`hash`], if there is one.
    pub fn get(&self, key: &[u8], hash: u64) -> Option<&Option<Val>> {
        let (word, bits) = place(hash);
        if self.words.get(word)? & bits != bits {
            return None;
        }
        self.layer.get(key)
    }

    /// The change that there was of this key.
    pub fn insert(&mut self, key: Key, value: Option<Val>) -> Option<Option<Val>> {
        if self.words.is_empty() {
            self.words = vec![0; WORDS];
        }
        let (word, bits) = place(hash(&key));
        self.words[word] |= bits;
        self.layer.insert(key, value)
    }

    pub fn is_empty(&self) -> bool {
        self.layer.is_empty()
    }

    /// All changes, in the order of their keys.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_changed_and_little_else() {
        let key = |i: u32| [&b"key"[..], &i.to_be_bytes()].concat();
        let mut overlay = Overlay::default();
        assert!(overlay.is_empty() && overlay.get(&key(1), hash(&key(1))).is_none());
        for i in 0..60_000u32 {
            let value = (i % 3 > 0).then(|| i.to_le_bytes()[..].into());
            assert!(overlay.insert(key(i), value).is_none());
        }
        for i in 0..60_000u32 {
            let found = overlay.get(&key(i), hash(&key(i))).expect("it was changed");
            assert_eq!(found.as_deref(), (i % 3 > 0).then_some(&i.to_le_bytes()[..]));
        }
        let looks_changed = (60_000..160_000).filter(|&i| {
            let (word, bits) = place(hash(&key(i)));
            assert!(overlay.get(&key(i), hash(&key(i))).is_none());
            overlay.words[word] & bits == bits
        });
        let share = looks_changed.count() as f64 / 1e5;
        assert!(share < 0.02, "{share}");
        assert_eq!(overlay.insert(key(4), None), Some(Some(4u32.to_le_bytes()[..].into())));
        assert_eq!(overlay.layer().len(), 60_000);
    }
}
