//! Byte-range locks of one stream, [MS-FSA] 2.1.4.10, 2.1.5.8 and 2.1.5.9. Pure: knows opens by id only.
//!
//! Exclusive and shared locks lie in interval trees of their own, since a shared lock meets exclusive ones only; locks of
//! no length, which overlap by another rule, in two more. A look-up costs the logarithm of how many there are, whoever
//! holds them and however many overlap. A fifth index finds the locks of an open.

use std::collections::{BTreeSet, VecDeque};

use super::{
    intervals::Intervals,
    room::{give_back, give_back_queue},
};
use crate::{
    error::StoreError,
    fs::{LockRange, OpenId, WaitId},
    store::Result,
};

/// Whose lock, its first byte and length, whether it is shared (exclusive ones are unlocked first), and a number of its own.
type Key = (OpenId, u64, u64, bool, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingLock {
    pub wait: WaitId,
    pub open: OpenId,
    pub range: LockRange,
}

#[derive(Debug, Default)]
pub(crate) struct LockSet {
    exclusive: Intervals,
    shared: Intervals,
    /// Of length 0.
    exclusive_empty: Intervals,
    shared_empty: Intervals,
    by_open: BTreeSet<Key>,
    next_seq: u64,
    pending: VecDeque<PendingLock>,
    /// Granted after a wait, and not yet fetched by the call made again.
    granted: Vec<PendingLock>,
}

/// `InvalidLockRange` for what reaches past 2^64.
pub(crate) fn check_range(r: &LockRange) -> Result<(), StoreError> {
    if r.len != 0 && r.offset.checked_add(r.len - 1).is_none() {
        return Err(StoreError::InvalidLockRange);
    }
    Ok(())
}

impl LockSet {
    pub fn is_empty(&self) -> bool {
        self.by_open.is_empty()
    }
    pub fn len(&self) -> usize {
        self.by_open.len()
    }

    /// Locks that are waited for.
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    pub fn count_of(&self, open: OpenId) -> usize {
        self.of_open(open).count()
    }

    /// What the open holds, each lock as often as it does. Without those that were granted to a wait whose call was not made again: nobody
    /// was told of them.
    pub fn held_by(&self, open: OpenId) -> Vec<LockRange> {
        let range = |&(_, offset, len, shared, _): &Key| LockRange { offset, len, exclusive: !shared };
        let mut held: Vec<LockRange> = self.of_open(open).map(range).collect();
        for untold in self.granted.iter().filter(|p| p.open == open) {
            if let Some(at) = held.iter().position(|r| *r == untold.range) {
                held.swap_remove(at);
            }
        }
        held
    }

    /// Whether a lock of another, or of this open, keeps it from this one.
    pub fn refuses(&self, open: OpenId, r: &LockRange) -> bool {
        self.blocks_lock(open, r)
    }

    fn of_open(&self, open: OpenId) -> impl Iterator<Item = &Key> {
        self.by_open.range((open, 0, 0, false, 0)..=(open, u64::MAX, u64::MAX, true, u64::MAX))
    }

    /// Whether an exclusive lock of another than `but` overlaps `offset..offset+len`, or where `shared`, a shared lock of
    /// anybody. Zero lengths by [MS-FSA] 2.1.4.10.
    fn any_overlap(&self, offset: u64, len: u64, but: Option<OpenId>, shared: bool) -> bool {
        if self.is_empty() || (offset == 0 && len == 0) {
            return false;
        }
        let last = if len == 0 { offset - 1 } else { offset.saturating_add(len - 1) };
        // A range of no length meets what starts before it and ends behind it.
        if self.exclusive.overlaps(offset, last, but) || shared && self.shared.overlaps(offset, last, None) {
            return true;
        }
        // A zero-length lock overlaps only ranges that reach over both its sides.
        offset.checked_add(1).is_some_and(|first| {
            first <= last
                && (self.exclusive_empty.overlaps(first, last, but)
                    || shared && self.shared_empty.overlaps(first, last, None))
        })
    }

    /// Whether reading (or with `write`, writing) through `open` meets a lock that forbids it.
    pub fn blocks_io(&self, open: OpenId, offset: u64, len: u64, write: bool) -> bool {
        len != 0 && self.any_overlap(offset, len, Some(open), write)
    }

    fn blocks_lock(&self, open: OpenId, r: &LockRange) -> bool {
        self.any_overlap(r.offset, r.len, (!r.exclusive).then_some(open), r.exclusive)
    }

    fn set_of(&mut self, exclusive: bool, len: u64) -> &mut Intervals {
        match (exclusive, len) {
            (true, 0) => &mut self.exclusive_empty,
            (false, 0) => &mut self.shared_empty,
            (true, _) => &mut self.exclusive,
            (false, _) => &mut self.shared,
        }
    }

    /// `LockNotGranted` when another lock is in the way. The range was checked.
    pub fn try_lock(&mut self, open: OpenId, r: &LockRange) -> Result<(), StoreError> {
        if self.blocks_lock(open, r) {
            return Err(StoreError::LockNotGranted);
        }
        self.next_seq += 1;
        let seq = self.next_seq;
        let last = r.offset.saturating_add(r.len.saturating_sub(1));
        self.set_of(r.exclusive, r.len).insert(r.offset, seq, last, open);
        self.by_open.insert((open, r.offset, r.len, !r.exclusive, seq));
        Ok(())
    }

    /// Queues a lock that could not be had; `granted` and `release` settle it.
    pub fn wait_for(&mut self, p: PendingLock) {
        self.pending.push_back(p);
    }

    /// Whether a lock that waited for this very range was granted since; asked by the call made again.
    pub fn take_granted(&mut self, open: OpenId, r: &LockRange) -> Option<WaitId> {
        let i = self.granted.iter().position(|p| p.open == open && p.range == *r)?;
        Some(self.granted.remove(i).wait)
    }

    /// `NotLocked` unless `open` holds exactly this range. Waiters that can go on are pushed to `woken`.
    pub fn unlock(&mut self, open: OpenId, r: &LockRange, woken: &mut Vec<WaitId>) -> Result<(), StoreError> {
        self.unlock_all(open, std::slice::from_ref(r), woken).1
    }

    /// The same in order, up to one that is not locked; how many went. Those who wait are looked at once, behind all of it.
    pub fn unlock_all(
        &mut self,
        open: OpenId,
        ranges: &[LockRange],
        woken: &mut Vec<WaitId>,
    ) -> (usize, Result<(), StoreError>) {
        let (mut gone, mut result) = (0, Ok(()));
        for r in ranges {
            result = self.remove(open, r);
            if result.is_err() {
                break;
            }
            gone += 1;
        }
        if gone > 0 {
            self.settle(woken);
        }
        (gone, result)
    }

    /// The exclusive lock where the open has both kinds of this range.
    fn remove(&mut self, open: OpenId, r: &LockRange) -> Result<(), StoreError> {
        let same = (open, r.offset, r.len, false, 0)..=(open, r.offset, r.len, true, u64::MAX);
        let key = self.by_open.range(same).next().copied().ok_or(StoreError::NotLocked)?;
        self.take_out(key);
        Ok(())
    }

    fn take_out(&mut self, key: Key) {
        let (_, start, len, shared, seq) = key;
        self.by_open.remove(&key);
        self.set_of(!shared, len).remove(start, seq);
    }

    /// Takes back a lock that was just granted, when a later one of the same request failed.
    pub fn roll_back(&mut self, open: OpenId, r: &LockRange) {
        let _ = self.remove(open, r);
    }

    /// All locks and waits of a closed open. The number of locks that went; its own waits are in `ended`,
    /// with whether they still have to be resumed.
    pub fn release(&mut self, open: OpenId, woken: &mut Vec<WaitId>, ended: &mut Vec<(WaitId, bool)>) -> usize {
        let held: Vec<Key> = self.of_open(open).copied().collect();
        held.iter().for_each(|key| self.take_out(*key));
        ended.extend(self.pending.iter().filter(|p| p.open == open).map(|p| (p.wait, true)));
        ended.extend(self.granted.iter().filter(|p| p.open == open).map(|p| (p.wait, false)));
        self.pending.retain(|p| p.open != open);
        self.granted.retain(|p| p.open != open);
        self.give_room_back();
        let freed = held.len();
        if freed > 0 {
            self.settle(woken);
        }
        freed
    }

    /// The caller lost interest. A lock that was granted meanwhile is given back.
    pub fn cancel(&mut self, wait: WaitId, woken: &mut Vec<WaitId>) {
        self.pending.retain(|p| p.wait != wait);
        if let Some(i) = self.granted.iter().position(|p| p.wait == wait) {
            let p = self.granted.remove(i);
            let _ = self.unlock(p.open, &p.range, woken);
        }
        self.give_room_back();
    }

    fn give_room_back(&mut self) {
        give_back_queue(&mut self.pending);
        give_back(&mut self.granted);
    }

    /// Grants what waits, first come first served.
    fn settle(&mut self, woken: &mut Vec<WaitId>) {
        let mut i = 0;
        while i < self.pending.len() {
            let p = self.pending[i];
            if self.try_lock(p.open, &p.range).is_ok() {
                self.pending.remove(i);
                self.granted.push(p);
                woken.push(p.wait);
            } else {
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arden_block::rng::Rng;

    use super::*;

    fn range(offset: u64, len: u64, exclusive: bool) -> LockRange {
        LockRange { offset, len, exclusive }
    }

    /// The specification's loop, word for word.
    #[derive(Default)]
    struct Naive {
        locks: Vec<(OpenId, LockRange)>,
    }
    impl Naive {
        fn conflict(&self, open: OpenId, offset: u64, len: u64, exclusive: bool, lock: bool) -> bool {
            if offset == 0 && len == 0 {
                return false;
            }
            self.locks.iter().any(|(owner, l)| {
                if l.offset == 0 && l.len == 0 {
                    return false;
                }
                let last1 = i128::from(offset) + i128::from(len) - 1;
                let last2 = i128::from(l.offset) + i128::from(l.len) - 1;
                if i128::from(offset) > last2 || last1 < i128::from(l.offset) {
                    return false;
                }
                if l.exclusive { *owner != open || (exclusive && lock) } else { exclusive }
            })
        }
        fn unlock(&mut self, open: OpenId, r: &LockRange) -> bool {
            let mut found = None;
            for (i, (owner, l)) in self.locks.iter().enumerate() {
                if *owner == open && l.offset == r.offset && l.len == r.len {
                    found = Some(i);
                    if l.exclusive {
                        break;
                    }
                }
            }
            found.map(|i| self.locks.remove(i)).is_some()
        }
    }

    fn offset(rng: &mut Rng) -> u64 {
        match rng.below(6) {
            0 => u64::MAX - rng.below(6),
            1 => (1 << 63) - 3 + rng.below(6),
            _ => rng.below(40),
        }
    }

    fn len(rng: &mut Rng) -> u64 {
        match rng.below(8) {
            0 => 0,
            1 => u64::MAX - rng.below(4),
            2 => 1 << rng.below(64),
            _ => rng.below(20),
        }
    }

    #[test]
    fn agrees_with_the_naive_loop() {
        for seed in 1..200u64 {
            let mut rng = Rng::new(seed);
            let (mut set, mut naive) = (LockSet::default(), Naive::default());
            for _ in 0..200 {
                let open = OpenId(rng.below(3));
                let r = range(offset(&mut rng), len(&mut rng), rng.below(2) == 0);
                match rng.below(4) {
                    0 | 1 => {
                        if check_range(&r).is_err() {
                            continue;
                        }
                        let expect = naive.conflict(open, r.offset, r.len, r.exclusive, true);
                        assert_eq!(set.try_lock(open, &r).is_err(), expect, "seed {seed}: {open:?} {r:?}");
                        if !expect {
                            naive.locks.push((open, r));
                        }
                    }
                    2 => {
                        // Half of the time something that is really there.
                        let (open, r) = match naive.locks.len() as u64 {
                            n if n > 0 && rng.below(2) == 0 => naive.locks[rng.below(n) as usize],
                            _ => (open, r),
                        };
                        let went = set.unlock(open, &r, &mut Vec::new()).is_ok();
                        assert_eq!(went, naive.unlock(open, &r), "seed {seed}: {r:?}");
                    }
                    _ => {
                        let len = rng.below(30);
                        let write = rng.below(2) == 0;
                        let expect = len != 0 && naive.conflict(open, r.offset.min(1 << 63), len, write, false);
                        assert_eq!(set.blocks_io(open, r.offset.min(1 << 63), len, write), expect, "seed {seed}");
                    }
                }
                assert_eq!(set.len(), naive.locks.len());
            }
            set.release(OpenId(1), &mut Vec::new(), &mut Vec::new());
            naive.locks.retain(|(o, _)| *o != OpenId(1));
            assert_eq!(set.len(), naive.locks.len());
        }
    }

    #[test]
    fn ranges_past_the_end_are_invalid() {
        assert!(check_range(&range(u64::MAX, 1, true)).is_ok());
        assert!(check_range(&range(u64::MAX, 0, true)).is_ok());
        assert_eq!(check_range(&range(u64::MAX, 2, true)), Err(StoreError::InvalidLockRange));
        assert_eq!(check_range(&range(2, u64::MAX, true)), Err(StoreError::InvalidLockRange));
        assert!(check_range(&range(1, u64::MAX, true)).is_ok());
    }

    #[test]
    fn waiters_come_in_order_and_cancel_gives_back() {
        let mut set = LockSet::default();
        let r = range(10, 10, true);
        set.try_lock(OpenId(1), &r).unwrap();
        for w in 2..5 {
            set.wait_for(PendingLock { wait: WaitId(w), open: OpenId(w), range: r });
        }
        let mut woken = Vec::new();
        set.unlock(OpenId(1), &r, &mut woken).unwrap();
        assert_eq!(woken, [WaitId(2)]);
        // Cancelled after it was granted, before it was fetched: the next one has it.
        woken.clear();
        set.cancel(WaitId(2), &mut woken);
        assert_eq!(woken, [WaitId(3)]);
        assert_eq!(set.take_granted(OpenId(3), &r), Some(WaitId(3)));
        assert_eq!(set.take_granted(OpenId(3), &r), None);
        woken.clear();
        assert_eq!(set.release(OpenId(3), &mut woken, &mut Vec::new()), 1);
        assert_eq!(woken, [WaitId(4)]);
        set.release(OpenId(4), &mut woken, &mut Vec::new());
        assert!(set.is_empty());
    }

    /// Equal ranges, nested ranges, and ranges that end just before what is asked for: none may cost a pass over all locks.
    #[test]
    fn no_choice_of_ranges_makes_locks_slow() {
        const N: u64 = 25_600;
        let equal = |_| range(0, 1 << 40, false);
        let nested = |i: u64| range(i, (1 << 40) - 2 * i, false);
        let short = |i: u64| range(i, (1 << 39) - i, false);
        let own = |i: u64| range(i, 1, true);
        for (name, make) in
            [("equal", &equal as &dyn Fn(u64) -> LockRange), ("nested", &nested), ("short", &short), ("own", &own)]
        {
            let t = std::time::Instant::now();
            let mut set = LockSet::default();
            for i in 0..N {
                set.try_lock(OpenId(1 + i % 2 * u64::from(name != "own")), &make(i)).unwrap();
            }
            for i in 0..N {
                assert!(!set.blocks_io(OpenId(1), 1 << 41, 1, true));
                assert!(!set.blocks_io(OpenId(1), i, 1 << 20, false), "reading past {name}");
                set.blocks_lock(OpenId(1), &range(1 << 39, 1 << 39, true));
            }
            for i in 0..N {
                set.unlock(OpenId(1 + i % 2 * u64::from(name != "own")), &make(i), &mut Vec::new()).unwrap();
            }
            assert!(set.is_empty());
            // A pass over all of them for each takes minutes.
            assert!(t.elapsed().as_secs() < 10, "{name}: {:?}", t.elapsed());
        }
    }

    #[test]
    fn many_locks_stay_fast() {
        let mut set = LockSet::default();
        let t = std::time::Instant::now();
        for i in 0..50_000u64 {
            set.try_lock(OpenId(1), &range(i * 10, 5, true)).unwrap();
        }
        for i in 0..50_000u64 {
            assert!(set.blocks_io(OpenId(2), i * 10 + 4, 1, false));
            assert!(!set.blocks_io(OpenId(2), i * 10 + 5, 5, true));
        }
        assert!(t.elapsed().as_secs() < 20, "{:?}", t.elapsed());
    }
}
