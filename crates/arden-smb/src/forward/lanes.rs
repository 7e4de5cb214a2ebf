//! What waits to be run, each in the lane of its user. The lane goes next that has had least so far, by what its work costs; one that had
//! nothing to run begins where the others are. So who asks little waits for no more of another user's work than is running. Within a lane
//! work keeps its order.

use std::collections::{HashMap, VecDeque};

use crate::forward::turns::Lane;

/// Lanes that are kept though nothing waits in them.
const EMPTY_LANES_MAX: usize = 64;

struct Queue<T> {
    work: VecDeque<T>,
    /// What it has had.
    used: u64,
}

pub struct Lanes<T> {
    lanes: HashMap<Lane, Queue<T>>,
    waiting: usize,
    /// What the lane had had that went last.
    at: u64,
}

impl<T> Default for Lanes<T> {
    fn default() -> Lanes<T> {
        Lanes { lanes: HashMap::new(), waiting: 0, at: 0 }
    }
}

impl<T> Lanes<T> {
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub fn push(&mut self, lane: Lane, work: T) {
        let queue = self.lanes.entry(lane).or_insert_with(|| Queue { work: VecDeque::new(), used: 0 });
        if queue.work.is_empty() {
            queue.used = queue.used.max(self.at);
        }
        queue.work.push_back(work);
        self.waiting += 1;
    }

    /// The first work that `admit` lets go, of the lane whose turn it is or of those behind it, and its lane.
    pub fn next(&mut self, mut admit: impl FnMut(T) -> Result<T, T>) -> Option<(Lane, T)> {
        let mut tried = Vec::new();
        loop {
            let waits = self.lanes.iter().filter(|(lane, queue)| !queue.work.is_empty() && !tried.contains(*lane));
            let lane = *waits.min_by_key(|(_, queue)| queue.used)?.0;
            let queue = self.lanes.get_mut(&lane)?;
            match admit(queue.work.pop_front()?) {
                Ok(work) => {
                    self.at = self.at.max(queue.used);
                    self.waiting -= 1;
                    return Some((lane, work));
                }
                Err(work) => {
                    queue.work.push_front(work);
                    tried.push(lane);
                }
            }
        }
    }

    /// Its work cost so much.
    pub fn charge(&mut self, lane: Lane, cost: usize) {
        if let Some(queue) = self.lanes.get_mut(&lane) {
            queue.used += cost as u64;
        }
        if self.lanes.len() > EMPTY_LANES_MAX {
            // Where nobody waits, nobody has had too much.
            let at = if self.is_empty() { u64::MAX } else { self.at };
            self.lanes.retain(|_, queue| !queue.work.is_empty() || queue.used > at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What goes next, without a bound.
    fn next(lanes: &mut Lanes<(u64, usize)>) -> Option<(u64, usize)> {
        let (lane, work) = lanes.next(Ok)?;
        lanes.charge(lane, work.1);
        Some(work)
    }

    #[test]
    fn who_asks_little_waits_for_what_runs_alone() {
        let (mut lanes, many) = (Lanes::default(), (1, 16));
        (0..1000).for_each(|_| lanes.push(Lane::test(1), many));
        (0..500).for_each(|_| assert_eq!(next(&mut lanes), Some(many)));
        for _ in 0..20 {
            lanes.push(Lane::test(2), (2, 1));
            assert_eq!(next(&mut lanes), Some((2, 1)));
            assert_eq!(next(&mut lanes), Some(many));
        }
    }

    #[test]
    fn cost_is_shared_equally_and_order_is_kept() {
        let (mut lanes, mut cost, mut next_of) = (Lanes::default(), [0; 3], [0; 3]);
        (0..100).for_each(|n| lanes.push(Lane::test(1), (1, n)));
        (0..3000).for_each(|n| lanes.push(Lane::test(2), (2, n)));
        while let Some((lane, (of, n))) = lanes.next(Ok) {
            assert_eq!(n, next_of[of], "in order");
            let units = if of == 1 { 30 } else { 1 + n % 2 };
            lanes.charge(lane, units);
            (next_of[of], cost[of]) = (n + 1, cost[of] + units);
            if lanes.lanes.values().all(|queue| !queue.work.is_empty()) {
                assert!(cost[1].abs_diff(cost[2]) <= 32, "{cost:?}");
            }
        }
        assert_eq!(cost, [0, 3000, 4500]);
    }

    #[test]
    fn what_may_not_go_yet_keeps_its_place_and_nobody_else() {
        let mut lanes = Lanes::default();
        (0..3).for_each(|n| lanes.push(Lane::test(1), (1, n)));
        lanes.push(Lane::test(2), (2, 7));
        let others = |work: (u64, usize)| if work.0 == 1 { Err(work) } else { Ok(work) };
        assert_eq!(lanes.next(others).map(|(_, work)| work), Some((2, 7)));
        assert!(lanes.next(others).is_none() && !lanes.is_empty());
        (0..3).for_each(|n| assert_eq!(next(&mut lanes), Some((1, n))));
        assert!(lanes.is_empty() && next(&mut lanes).is_none());
        for lane in 0..1000 {
            lanes.push(Lane::test(lane), (lane, 1));
            next(&mut lanes);
        }
        assert!(lanes.lanes.len() <= EMPTY_LANES_MAX + 2, "{}", lanes.lanes.len());
    }
}
