//! A bounded map that forgets what was not used lately: two generations, the old one dropped as a whole when the
//! young one is full. Every operation is O(1) and nothing is kept for each entry beside it.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
};

pub struct Generations<K, V, S = RandomState> {
    young: HashMap<K, V, S>,
    old: HashMap<K, V, S>,
    young_max: usize,
}

impl<K: Hash + Eq + Clone, V: Clone, S: BuildHasher + Default> Generations<K, V, S> {
    /// Holds at most `entries_max`, and at least the half of it that was used last.
    pub fn new(entries_max: usize) -> Self {
        Generations { young: HashMap::default(), old: HashMap::default(), young_max: (entries_max / 2).max(1) }
    }

    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if let Some(v) = self.young.get(key) {
            return Some(v.clone());
        }
        let (key, v) = self.old.remove_entry(key)?;
        self.insert(key, v.clone());
        Some(v)
    }

    /// What `f` makes of the value, without a copy of it.
    pub fn with<R>(&mut self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        if let Some(v) = self.young.get(key) {
            return Some(f(v));
        }
        let (key, v) = self.old.remove_entry(key)?;
        let made = f(&v);
        self.insert(key, v);
        Some(made)
    }

    pub fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.young_max && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    pub fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_keeps_what_is_used() {
        let mut g: Generations<i32, i32> = Generations::new(100);
        for i in 0..10_000 {
            g.insert(i, i);
            assert_eq!(g.get(&0), Some(0), "used all the time");
            assert!(g.len() <= 100);
        }
        assert_eq!(g.get(&9_999), Some(9_999));
        assert_eq!(g.get(&5_000), None);
    }
}
