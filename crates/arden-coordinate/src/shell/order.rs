//! The order in which nodes try to acquire a free pool. It only keeps them from trying all at once: etcd decides.

use std::{collections::BTreeSet, time::Duration};

use arden_cluster::NodeId;

use super::{Seen, Shell};
use crate::keys::{MoveValue, PoolKeys};

/// How much longer the next node in the order waits before it acquires a free pool.
const STEP: Duration = Duration::from_millis(300);

/// How many of `candidates` try before `me`: those with a lower number, and for the node that had the pool last all others.
fn rank(candidates: &BTreeSet<u16>, me: u16, last: Option<u16>) -> usize {
    let first = |n: &&u16| **n != me && Some(**n) != last && (**n < me || last == Some(me));
    candidates.iter().filter(first).count()
}

/// The nodes that may acquire a pool, alive or about to be: nobody waits for one that is drained.
fn candidates(seen: &Seen) -> BTreeSet<u16> {
    seen.nodes.keys().copied().filter(|n| !seen.drained.contains(n)).collect()
}

impl Shell {
    /// How long this node lets others go first: nodes in the order of their numbers, the one that had the pool last behind them, and
    /// where the pool is being moved, everybody behind the node that it is for.
    pub(super) fn patience(&self, keys: &PoolKeys, last_owner: Option<NodeId>) -> Duration {
        let record = &keys.view.record;
        let seen = self.parts.seen.lock();
        let (candidates, is_drained) = (candidates(&seen), |m: &MoveValue| seen.drained.contains(&m.to));
        let moving = keys.moving.filter(|m| m.epoch == record.epoch.0 && !is_drained(m));
        drop(seen);
        if moving.is_some_and(|m| m.to == self.parts.node) {
            return Duration::ZERO;
        }
        let last = keys.view.owner.map(|o| o.node).or(record.holders.last().map(|h| h.node)).or(last_owner);
        let rank = rank(&candidates, self.parts.node, last.map(|n| n.0));
        STEP * rank as u32 + if moving.is_some() { self.ttl * 2 } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_that_had_the_pool_is_behind_the_others() {
        let all = BTreeSet::from([1, 2, 3]);
        let order = |last| [1, 2, 3].map(|me| rank(&all, me, last));
        assert_eq!(order(None), [0, 1, 2]);
        assert_eq!(order(Some(1)), [2, 0, 1]);
        assert_eq!(order(Some(2)), [0, 2, 1]);
        assert_eq!(order(Some(3)), [0, 1, 2]);
        assert_eq!(rank(&BTreeSet::from([1]), 1, Some(1)), 0, "it is alone");
        assert_eq!(rank(&BTreeSet::new(), 2, None), 0, "no node is known yet");
    }

    #[test]
    fn nobody_waits_for_a_drained_node() {
        let nodes = (1..=4).map(|n| (n, format!("n{n}"))).collect();
        let seen = Seen { nodes, drained: BTreeSet::from([1]), ..Seen::default() };
        assert_eq!(rank(&candidates(&seen), 2, None), 0, "behind a drained node");
        assert_eq!(rank(&candidates(&seen), 4, Some(3)), 1, "only one of them tries before");
    }
}
