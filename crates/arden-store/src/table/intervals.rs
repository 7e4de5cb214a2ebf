//! Ranges with owners, found by what they overlap: a treap ordered by first byte, in which each node knows how far its
//! subtree reaches and whether all of it has one owner. Refuses to know what the ranges mean.
//!
//! Priorities come from a seed that clients do not know, so that nobody can choose an order that makes it deep.

use std::hash::{BuildHasher, RandomState};

use crate::fs::OpenId;

const NONE: u32 = u32::MAX;
/// So many places are kept while one of them is used.
const PLACES_MIN: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u64,
    /// Tells entries with the same start apart.
    seq: u64,
    /// Last byte; for an empty range its start.
    last: u64,
    owner: OpenId,
    priority: u64,
    left: u32,
    right: u32,
    /// Of this entry and all below it.
    last_max: u64,
    /// None: several owners.
    one_owner: Option<OpenId>,
}

/// A set of ranges.
#[derive(Debug)]
pub(crate) struct Intervals {
    entries: Vec<Entry>,
    free: Vec<u32>,
    root: u32,
    random: u64,
}

impl Default for Intervals {
    fn default() -> Intervals {
        Intervals { entries: Vec::new(), free: Vec::new(), root: NONE, random: RandomState::new().hash_one(0) | 1 }
    }
}

impl Intervals {
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds `start..=last`. `seq` is used once.
    pub fn insert(&mut self, start: u64, seq: u64, last: u64, owner: OpenId) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let entry = Entry {
            start,
            seq,
            last,
            owner,
            priority: self.random,
            left: NONE,
            right: NONE,
            last_max: last,
            one_owner: Some(owner),
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        let (left, right) = self.split(self.root, (start, seq));
        let left = self.join(left, at);
        self.root = self.join(left, right);
    }

    /// Takes out what was added under `start` and `seq`, if it is there.
    pub fn remove(&mut self, start: u64, seq: u64) {
        let (left, rest) = self.split(self.root, (start, seq));
        let (found, right) = match seq.checked_add(1) {
            Some(next) => self.split(rest, (start, next)),
            None => (rest, NONE),
        };
        self.root = self.join(left, right);
        if found != NONE {
            self.free.push(found);
        }
        let (places, used) = (self.entries.len(), self.len());
        if used == 0 || (places > PLACES_MIN && used < places / 4) {
            self.compact();
        }
    }

    /// Gives up places that nobody uses: who took many ranges and keeps a few of them has the memory of a few.
    fn compact(&mut self) {
        let mut kept = Intervals { random: self.random, ..Intervals::default() };
        let mut next = vec![self.root];
        while let Some(at) = next.pop() {
            if let Some(e) = self.entries.get(at as usize) {
                kept.insert(e.start, e.seq, e.last, e.owner);
                next.extend([e.left, e.right]);
            }
        }
        *self = kept;
    }

    /// Whether any range shares a byte with `first..=last`; with `but`, of another owner.
    pub fn overlaps(&self, first: u64, last: u64, but: Option<OpenId>) -> bool {
        self.search(self.root, first, last, but)
    }

    fn search(&self, at: u32, first: u64, last: u64, but: Option<OpenId>) -> bool {
        if at == NONE {
            return false;
        }
        let e = &self.entries[at as usize];
        if e.last_max < first || (but.is_some() && e.one_owner == but) {
            return false;
        }
        if self.search(e.left, first, last, but) {
            return true;
        }
        // What follows starts no earlier.
        if e.start > last {
            return false;
        }
        (e.last >= first && but != Some(e.owner)) || self.search(e.right, first, last, but)
    }

    /// Entries before `key`, and those from it on.
    fn split(&mut self, at: u32, key: (u64, u64)) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let e = self.entries[at as usize];
        if (e.start, e.seq) < key {
            let (left, right) = self.split(e.right, key);
            self.entries[at as usize].right = left;
            self.update(at);
            (at, right)
        } else {
            let (left, right) = self.split(e.left, key);
            self.entries[at as usize].left = right;
            self.update(at);
            (left, at)
        }
    }

    /// All of `left` lies before all of `right`.
    fn join(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE {
            return right;
        }
        if right == NONE {
            return left;
        }
        if self.entries[left as usize].priority > self.entries[right as usize].priority {
            let joined = self.join(self.entries[left as usize].right, right);
            self.entries[left as usize].right = joined;
            self.update(left);
            left
        } else {
            let joined = self.join(left, self.entries[right as usize].left);
            self.entries[right as usize].left = joined;
            self.update(right);
            right
        }
    }

    fn update(&mut self, at: u32) {
        let mut e = self.entries[at as usize];
        (e.last_max, e.one_owner) = (e.last, Some(e.owner));
        for below in [e.left, e.right] {
            if below != NONE {
                let b = &self.entries[below as usize];
                e.last_max = e.last_max.max(b.last_max);
                e.one_owner = e.one_owner.filter(|_| b.one_owner == e.one_owner);
            }
        }
        self.entries[at as usize] = e;
    }
}

#[cfg(test)]
mod tests {
    use arden_block::rng::Rng;

    use super::*;

    #[test]
    fn a_few_that_are_left_of_many_take_little() {
        const MANY: u64 = 65_536;
        let mut set = Intervals::default();
        (0..MANY).for_each(|i| set.insert(i * 2, i, i * 2, OpenId(i % 3)));
        (0..MANY).filter(|i| i % 10_000 != 7).for_each(|i| set.remove(i * 2, i));
        assert_eq!(set.len(), 7);
        assert!(set.entries.capacity() <= 2 * PLACES_MIN && set.free.capacity() <= 2 * PLACES_MIN);
        for i in 0..MANY {
            assert_eq!(set.overlaps(i * 2, i * 2, None), i % 10_000 == 7, "{i}");
            assert!(!set.overlaps(i * 2, i * 2, Some(OpenId(i % 3))), "{i}");
        }
        (0..MANY).for_each(|i| set.remove(i * 2, i));
        assert_eq!(set.len(), 0);
    }

    #[test]
    fn agrees_with_a_list() {
        for seed in 1..60 {
            let mut rng = Rng::new(seed);
            let mut set = Intervals::default();
            let mut list: Vec<(u64, u64, u64, OpenId)> = Vec::new();
            for seq in 0..if seed % 10 == 0 { 4000 } else { 400 } {
                let start = if rng.below(8) == 0 { u64::MAX - rng.below(9) } else { rng.below(300) };
                let scale = rng.below(9);
                let last = start.saturating_add(rng.below(1 << scale));
                // Now and then most of them go.
                let grows = if seq % 500 < 300 { 1 } else { 0 };
                match rng.below(5) {
                    0 | 1 if grows == 1 || rng.below(4) == 0 => {
                        let owner = OpenId(rng.below(3));
                        set.insert(start, seq, last, owner);
                        list.push((start, seq, last, owner));
                    }
                    0..=2 if !list.is_empty() => {
                        let gone = list.swap_remove(rng.below(list.len() as u64) as usize);
                        set.remove(gone.0, gone.1);
                    }
                    _ => {
                        let but = [None, Some(OpenId(rng.below(3)))][rng.below(2) as usize];
                        let expect = list.iter().any(|l| l.0 <= last && l.2 >= start && but != Some(l.3));
                        assert_eq!(set.overlaps(start, last, but), expect, "seed {seed}: {start}..={last} {but:?}");
                    }
                }
                assert_eq!(set.len(), list.len());
            }
        }
    }
}
