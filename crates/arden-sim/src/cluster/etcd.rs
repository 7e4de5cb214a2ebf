//! A model of etcd: one register machine with leases and revisions, which at times has no leader. Owns the keys of one pool, the
//! time at which leases end, and what an administrator may do to it. Knows nothing of nodes.

use std::collections::BTreeMap;

use arden_block::rng::Rng;
use arden_cluster::{IfOwner, LeaseId, Outcome, Revision, SetOwner, Transaction, View};

/// The longest that a lease which has ended stays.
const NOTICE_MAX_NS: u64 = 4_000_000;

#[derive(Clone)]
pub(super) struct Etcd {
    pub(super) revision: Revision,
    pub(super) view: View,
    /// When each lease ends, by true time.
    leases: BTreeMap<LeaseId, u64>,
    ttl_ns: u64,
    /// How fast its clock runs, in millionths.
    rate_ppm: u64,
    pub(super) has_leader: bool,
    /// All members are stopped: nobody answers anything.
    pub(super) is_down: bool,
}

impl Etcd {
    pub(super) fn new(view: View, ttl_ns: u64, rate_ppm: u64) -> Etcd {
        Etcd {
            revision: Revision(1),
            view,
            leases: BTreeMap::new(),
            ttl_ns,
            rate_ppm,
            has_leader: true,
            is_down: false,
        }
    }

    fn end_ns(&self, now_ns: u64) -> u64 {
        now_ns + self.ttl_ns * 1_000_000 / self.rate_ppm
    }

    pub(super) fn grant(&mut self, now_ns: u64, rng: &mut Rng) -> LeaseId {
        let id = LeaseId(rng.next_u64());
        self.leases.insert(id, self.end_ns(now_ns));
        id
    }

    /// Says whether the lease is known.
    pub(super) fn renew(&mut self, now_ns: u64, id: LeaseId) -> bool {
        let end_ns = self.end_ns(now_ns);
        self.leases.get_mut(&id).map(|e| *e = end_ns).is_some()
    }

    /// Says whether the keys changed.
    pub(super) fn revoke(&mut self, id: LeaseId) -> bool {
        self.leases.remove(&id);
        let gone = self.view.owner.is_some_and(|o| o.lease == id);
        if gone {
            self.view.owner = None;
            self.revision.0 += 1;
        }
        gone
    }

    /// Ends leases whose time is over; says whether the keys changed.
    pub(super) fn expire(&mut self, now_ns: u64, rng: &mut Rng) -> bool {
        let over = self.leases.iter().filter(|(_, end)| now_ns > **end + rng.below(NOTICE_MAX_NS)).map(|(id, _)| *id);
        let over: Vec<LeaseId> = over.collect();
        let before = self.revision;
        over.into_iter().for_each(|id| _ = self.revoke(id));
        self.revision != before
    }

    pub(super) fn transact(&mut self, t: &Transaction) -> Outcome {
        let owner_fits = match t.if_owner {
            IfOwner::Absent => self.view.owner.is_none(),
            IfOwner::Is(key) => self.view.owner == Some(key),
        };
        let lease_fits = match t.owner {
            SetOwner::Put(key) => self.leases.contains_key(&key.lease),
            _ => true,
        };
        if !owner_fits || !lease_fits || t.if_record.is_some_and(|r| r != self.view.changed) {
            return Outcome::Refused;
        }
        self.revision.0 += 1;
        match t.owner {
            SetOwner::Keep => {}
            SetOwner::Put(key) => self.view.owner = Some(key),
            SetOwner::Delete => self.view.owner = None,
        }
        if let Some(record) = &t.record {
            (self.view.record, self.view.changed) = (record.clone(), self.revision);
        }
        Outcome::Applied(self.revision)
    }

    /// A new leader gives every lease its full time again.
    pub(super) fn elect(&mut self, now_ns: u64) {
        (self.has_leader, self.is_down) = (true, false);
        let end_ns = self.end_ns(now_ns);
        self.leases.values_mut().for_each(|e| *e = end_ns);
    }
}
