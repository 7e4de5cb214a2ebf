//! The lease of a node: until when it may be used, when it is renewed. Owns the clock rule of `docs/cluster.md`.

use crate::keys::LeaseId;

/// A lease is renewed, and an answer waited for, so many times within its time to live.
const RENEWALS: u64 = 4;
/// The part of the time to live that is left unused, for timers that fire late.
const MARGIN: u64 = 10;

/// How long a lease may be used, counted from before the request that granted or renewed it was sent: etcd counts the time to
/// live from later on, and both clocks may be off by `drift_ppm`.
pub(crate) fn usable_ns(ttl_ns: u64, drift_ppm: u64) -> u64 {
    let (slow, fast) = (1_000_000 - drift_ppm.min(500_000), 1_000_000 + drift_ppm);
    let scaled = u128::from(ttl_ns) * u128::from(slow) / u128::from(fast);
    (scaled as u64).saturating_sub(ttl_ns / MARGIN)
}

#[derive(Debug, Clone, Copy)]
struct Held {
    id: LeaseId,
    until_ns: u64,
    /// etcd has the key `alive/N` of this node under it.
    claimed: bool,
}

/// The lease that the node has, or asks for.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    held: Option<Held>,
    /// The lease before this one: the key may still be under it.
    last: Option<LeaseId>,
    /// When it was last asked for or renewed.
    asked_ns: Option<u64>,
    /// When the lease before this one was given up. Whatever was granted by then is given back, and its answer may come once more.
    gave_up_ns: u64,
}

impl Lease {
    /// The lease, whether it may be used or not.
    pub(crate) fn held(&self) -> Option<LeaseId> {
        self.held.map(|h| h.id)
    }

    /// The lease, while it may be used.
    pub(crate) fn at(&self, now_ns: u64) -> Option<LeaseId> {
        self.usable(now_ns).map(|h| h.id)
    }

    fn usable(&self, now_ns: u64) -> Option<Held> {
        self.held.filter(|h| h.claimed && now_ns < h.until_ns)
    }

    pub(crate) fn is(&self, id: LeaseId) -> bool {
        self.held.is_some_and(|h| h.id == id)
    }

    /// The lease whose key is not known to be there.
    pub(crate) fn unclaimed(&self) -> Option<LeaseId> {
        self.held.filter(|h| !h.claimed).map(|h| h.id)
    }

    /// The lease under which this node may have put its key before the one that it has.
    pub(crate) fn before(&self) -> Option<LeaseId> {
        self.last
    }

    /// The key is there under this lease.
    pub(crate) fn claimed(&mut self, id: LeaseId) {
        self.held.iter_mut().filter(|h| h.id == id).for_each(|h| h.claimed = true);
    }

    /// The key is another's. It is asked for again when that is due.
    pub(crate) fn refused(&mut self, now_ns: u64, id: LeaseId) {
        let asked_ns = self.asked_ns;
        if self.gone(now_ns, id) {
            self.asked_ns = asked_ns;
        }
    }

    fn forget(&mut self, now_ns: u64) {
        let last = self.held().or(self.last);
        *self = Lease { held: None, last, asked_ns: None, gave_up_ns: now_ns };
    }

    /// The end of the lease, while it may be used.
    pub(crate) fn until(&self, now_ns: u64) -> Option<u64> {
        self.usable(now_ns).map(|h| h.until_ns)
    }

    /// The lease whose end has come, which from now on the node does not have.
    pub(crate) fn take_ended(&mut self, now_ns: u64) -> Option<LeaseId> {
        let ended = self.held.filter(|h| now_ns >= h.until_ns)?;
        self.forget(now_ns);
        Some(ended.id)
    }

    /// A new lease, asked for at `sent_ns`, to be claimed. Says whether it is taken, which it is not when it came too late, when the
    /// node has one, and when it was asked for before the node gave one up: it may be that one.
    pub(crate) fn granted(&mut self, now_ns: u64, id: LeaseId, sent_ns: u64, until_ns: u64) -> bool {
        let take = self.held.is_none() && now_ns < until_ns && sent_ns >= self.gave_up_ns;
        if take {
            self.held = Some(Held { id, until_ns, claimed: false });
        }
        take
    }

    pub(crate) fn renewed(&mut self, id: LeaseId, until_ns: u64) {
        if let Some(h) = self.held.as_mut().filter(|h| h.id == id) {
            h.until_ns = h.until_ns.max(until_ns);
        }
    }

    /// etcd does not know the lease; says whether it was the node's.
    pub(crate) fn gone(&mut self, now_ns: u64, id: LeaseId) -> bool {
        let mine = self.held.is_some_and(|h| h.id == id);
        if mine {
            self.forget(now_ns);
        }
        mine
    }

    /// Is it time to ask for it, or to renew it? Then it counts as asked. The lease that is to be renewed, `None` for a new one.
    pub(crate) fn take_due(&mut self, now_ns: u64, ttl_ns: u64) -> Option<Option<LeaseId>> {
        let due = self.asked_ns.is_none_or(|at| now_ns >= at + ttl_ns / RENEWALS);
        if !due {
            return None;
        }
        self.asked_ns = Some(now_ns);
        Some(self.held())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_before_etcd_can_end_it_whatever_the_drift() {
        let (ttl, ppm) = (2_000_000_000u64, 2_000u64);
        let usable = usable_ns(ttl, ppm);
        // The node's clock is slow, etcd's is fast: real time, and then etcd's.
        let real = u128::from(usable) * 1_000_000 / u128::from(1_000_000 - ppm);
        let etcd = real * u128::from(1_000_000 + ppm) / 1_000_000;
        assert!(etcd < u128::from(ttl), "{etcd}");
        assert!(usable > ttl * 8 / 10, "too careful: {usable}");
    }

    #[test]
    fn a_lease_that_ended_does_not_come_back() {
        let mut lease = Lease::default();
        assert!(lease.granted(10, LeaseId(1), 0, 100));
        assert_eq!((lease.at(11), lease.unclaimed()), (None, Some(LeaseId(1))), "its key may be another's");
        lease.claimed(LeaseId(9));
        assert_eq!(lease.at(11), None);
        lease.claimed(LeaseId(1));
        assert_eq!((lease.at(99), lease.at(100)), (Some(LeaseId(1)), None));
        assert_eq!(lease.take_ended(100), Some(LeaseId(1)));
        lease.renewed(LeaseId(1), 1_000);
        assert_eq!((lease.at(101), lease.before()), (None, Some(LeaseId(1))));
        assert!(!lease.granted(300, LeaseId(2), 200, 300), "too late");
        assert!(!lease.granted(101, LeaseId(1), 99, 199), "it was given back");
        assert!(lease.granted(101, LeaseId(3), 100, 200));
    }

    #[test]
    fn a_renewal_never_shortens() {
        let mut lease = Lease::default();
        lease.granted(0, LeaseId(1), 0, 100);
        lease.claimed(LeaseId(1));
        lease.renewed(LeaseId(1), 200);
        lease.renewed(LeaseId(1), 150);
        assert_eq!(lease.at(199), Some(LeaseId(1)));
        assert!(!lease.gone(5, LeaseId(9)) && lease.gone(5, LeaseId(1)));
        assert_eq!(lease.at(0), None);
    }

    #[test]
    fn it_is_asked_for_four_times_within_its_life() {
        let mut lease = Lease::default();
        assert_eq!(lease.take_due(0, 400), Some(None));
        assert_eq!(lease.take_due(99, 400), None);
        lease.granted(99, LeaseId(7), 0, 400);
        assert_eq!(lease.take_due(100, 400), Some(Some(LeaseId(7))));
    }
}
