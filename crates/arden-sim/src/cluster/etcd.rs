//! A model of etcd: one register machine with leases and revisions, which at times has no leader. Owns the keys of one pool, the
//! time at which leases end, and what an administrator may do to it. Knows nothing of nodes.

use std::collections::BTreeMap;

use arden_block::rng::Rng;
use arden_cluster::{IfAlive, IfOwner, LeaseId, Outcome, Revision, SetOwner, Transaction, View};

/// The longest that a lease which has ended stays.
const NOTICE_MAX_NS: u64 = 4_000_000;

#[derive(Clone)]
pub(super) struct Etcd {
    pub(super) revision: Revision,
    pub(super) view: View,
    /// `alive/N`: the lease that its value names, under which it is.
    alive: BTreeMap<usize, LeaseId>,
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
            alive: BTreeMap::new(),
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

    /// A lease that has not ended yet.
    pub(super) fn knows(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// Says whether the keys changed.
    pub(super) fn revoke(&mut self, id: LeaseId) -> bool {
        self.leases.remove(&id);
        let keys = self.alive.len();
        self.alive.retain(|_, lease| *lease != id);
        let owned = self.view.owner.is_some_and(|o| o.lease == id);
        if owned {
            self.view.owner = None;
        }
        let gone = owned || self.alive.len() < keys;
        self.revision.0 += u64::from(gone);
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

    /// The lease by which a node is alive.
    pub(super) fn alive(&self, number: usize) -> Option<LeaseId> {
        self.alive.get(&number).copied()
    }

    /// Puts `alive/N` under a lease.
    pub(super) fn claim(&mut self, number: usize, lease: LeaseId, if_alive: IfAlive) -> Outcome {
        let fits = match if_alive {
            IfAlive::Absent => self.alive(number).is_none(),
            IfAlive::Under(last) => self.alive(number) == Some(last),
        };
        if !fits || !self.knows(lease) {
            return Outcome::Refused;
        }
        self.revision.0 += 1;
        self.alive.insert(number, lease);
        Outcome::Applied(self.revision)
    }

    pub(super) fn transact(&mut self, t: &Transaction) -> Outcome {
        let owner_fits = match t.if_owner {
            IfOwner::Absent => self.view.owner.is_none(),
            IfOwner::Is(key) => self.view.owner == Some(key),
        };
        let lease_fits = match t.owner {
            SetOwner::Put(key) => self.knows(key.lease),
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
