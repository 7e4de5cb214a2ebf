//! A bounded map that forgets what was not used lately: two generations, the old one dropped as a whole when the
//! young one is full. Every operation is O(1) and nothing is kept for each entry beside it. Entries may be large: then their
//! weight is bounded too.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
};

pub struct Generations<K, V, S = RandomState> {
    young: HashMap<K, V, S>,
    old: HashMap<K, V, S>,
    young_max: usize,
    /// Of those that came to `young` since it was empty, whether they are there yet or not.
    young_weight: usize,
    young_weight_max: usize,
    weigh: fn(&K, &V) -> usize,
}

impl<K: Hash + Eq + Clone, V: Clone, S: BuildHasher + Default> Generations<K, V, S> {
    /// Holds at most `entries_max`, and at least the half of it that was used last.
    pub fn new(entries_max: usize) -> Self {
        Self::weighing(entries_max, usize::MAX, |_, _| 0)
    }

    /// The same, with entries that weigh at most `weight_max` in all. One that alone weighs more than the half may be there beside others.
    pub fn weighing(entries_max: usize, weight_max: usize, weigh: fn(&K, &V) -> usize) -> Self {
        Generations {
            young: HashMap::default(),
            old: HashMap::default(),
            young_max: (entries_max / 2).max(1),
            young_weight: 0,
            young_weight_max: weight_max / 2,
            weigh,
        }
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
        let weight = (self.weigh)(&key, &value);
        let is_too_heavy = self.young_weight.saturating_add(weight) > self.young_weight_max;
        if is_too_heavy || self.young.len() >= self.young_max && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.young_weight += weight;
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

    #[test]
    fn what_entries_weigh_is_bounded() {
        let mut g: Generations<u32, Vec<u8>> = Generations::weighing(1000, 10_000, |_, v| v.len());
        let weight =
            |g: &Generations<u32, Vec<u8>>| g.young.values().chain(g.old.values()).map(Vec::len).sum::<usize>();
        for i in 0..2000 {
            g.insert(i, vec![0; i as usize % 1500]);
            assert!(weight(&g) <= 10_000);
            assert!(g.get(&(i / 3 * 3)).is_some(), "the last ones are there");
        }
        g.insert(7, vec![0; 20_000]);
        assert_eq!(g.get(&7).map(|v| v.len()), Some(20_000));
        (0..20).for_each(|i| g.insert(i + 100, vec![0; 500]));
        assert_eq!(g.get(&7), None);
        assert!(weight(&g) <= 10_000);
    }
}
