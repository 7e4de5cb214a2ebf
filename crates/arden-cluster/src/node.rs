//! A node: its lease, and the pools that it may own. Looks at the clock before anything else, so that no event, whatever it says, is
//! acted on after the lease has ended.

use crate::api::{Action, Config, Event, IfAlive, Outcome, Route};
use crate::keys::{Epoch, LeaseId, PoolId, Revision, View};
use crate::lease::{Lease, usable_ns};
use crate::pool::{Now, Pool, Stage};

/// The decisions of one run of one node.
#[derive(Debug)]
pub struct Node {
    config: Config,
    lease: Lease,
    pools: Vec<Pool>,
    draining: bool,
    /// The newest revision that etcd told of.
    revision: Revision,
    /// etcd went back, and nobody has said that it is right.
    distrusts: bool,
}

impl Node {
    /// A node that has just started: without a lease, and owning nothing.
    pub fn new(config: Config) -> Node {
        let pools = config.pools.iter().map(|&(id, patience_ns)| Pool::new(id, patience_ns)).collect();
        Node {
            config,
            lease: Lease::default(),
            pools,
            draining: false,
            revision: Revision::default(),
            distrusts: false,
        }
    }

    /// The cluster has one more pool. Nothing changes when the node knows it.
    pub fn add_pool(&mut self, pool: PoolId, patience_ns: u64) {
        if self.pools.iter().all(|p| p.id() != pool) {
            self.pools.push(Pool::new(pool, patience_ns));
        }
    }

    /// Whether a request to the pool under `epoch` may be started, or answered, at this moment.
    pub fn may_serve(&self, pool: PoolId, epoch: Epoch, now_ns: u64) -> bool {
        self.served(pool, now_ns).is_some_and(|(served, _)| served == epoch)
    }

    /// The epoch under which the pool is served at `now_ns`, and until when: every request is started and answered before that
    /// time, unless a later call says otherwise.
    pub fn served(&self, pool: PoolId, now_ns: u64) -> Option<(Epoch, u64)> {
        let epoch = self.pools.iter().find(|p| p.id() == pool)?.served()?;
        Some((epoch, self.lease.until(now_ns)?))
    }

    /// The lease that etcd may have for this node, whether it may be used or not.
    pub fn lease_held(&self) -> Option<LeaseId> {
        self.lease.held()
    }

    /// The lease, while it may be used.
    pub fn lease(&self, now_ns: u64) -> Option<LeaseId> {
        self.lease.at(now_ns)
    }

    /// The end of the lease, while it may be used.
    pub fn lease_until(&self, now_ns: u64) -> Option<u64> {
        self.lease.until(now_ns)
    }

    /// How long this node lets others go first when the pool is free, instead of what the configuration says.
    pub fn set_patience(&mut self, pool: PoolId, patience_ns: u64) {
        self.pools.iter_mut().filter(|p| p.id() == pool).for_each(|p| p.set_patience(patience_ns));
    }

    /// Whether this node acquires the pool while another node is a holder: without a fence it would come no further.
    pub fn set_takes_over(&mut self, pool: PoolId, takes_over: bool) {
        self.pools.iter_mut().filter(|p| p.id() == pool).for_each(|p| p.set_takes_over(takes_over));
    }

    /// Whether this node acquires the pool at all. What it owns it keeps.
    pub fn set_may_own(&mut self, pool: PoolId, may_own: bool) {
        self.pools.iter_mut().filter(|p| p.id() == pool).for_each(|p| p.set_may_own(may_own));
    }

    /// Whether a fence of the pool changes its disks, as far as the node knows. Without being told it does.
    pub fn set_fences_on_disks(&mut self, pool: PoolId, on_disks: bool) {
        self.pools.iter_mut().filter(|p| p.id() == pool).for_each(|p| p.set_fences_on_disks(on_disks));
    }

    /// Closes and releases the pool, if this node owns it under `epoch`.
    pub fn hand_over(&mut self, now_ns: u64, pool: PoolId, epoch: Epoch) -> Vec<Action> {
        self.pools.iter_mut().filter(|p| p.id() == pool).for_each(|p| p.hand_over(epoch));
        self.handle(now_ns, Event::Tick)
    }

    /// Closes the pool, if this node owns it under `epoch`, so that no node acquires it afterwards.
    pub fn retire(&mut self, now_ns: u64, pool: PoolId, epoch: Epoch) -> Vec<Action> {
        self.pools.iter_mut().filter(|p| p.id() == pool).for_each(|p| p.retire(epoch));
        self.handle(now_ns, Event::Tick)
    }

    /// Where a request for the pool goes, as far as this node knows.
    pub fn route(&self, pool: PoolId) -> Route {
        self.pools.iter().find(|p| p.id() == pool).map_or(Route::Wait, |p| p.route(self.config.node))
    }

    /// How far this node has come with owning the pool.
    pub fn stage(&self, pool: PoolId) -> Option<Stage> {
        self.pools.iter().find(|p| p.id() == pool).map(Pool::stage)
    }

    /// The pool's keys as this node saw them last.
    pub fn view(&self, pool: PoolId) -> Option<&View> {
        self.pools.iter().find(|p| p.id() == pool).map(Pool::view)
    }

    /// Says what happened at `now_ns`; gives what is to be done. A shell calls it with [`Event::Tick`] at least four times in a
    /// quarter of the lease's time to live.
    pub fn handle(&mut self, now_ns: u64, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.look_at_the_clock(now_ns, &mut out);
        match event {
            Event::Tick => {}
            Event::LeaseGranted { lease, sent_ns } => {
                let until_ns = self.until_ns(sent_ns);
                match self.lease.granted(now_ns, lease, sent_ns, until_ns) {
                    // Told twice: it is in use.
                    false if self.lease.is(lease) => {}
                    true => out.push(Action::Claim { lease, if_alive: IfAlive::Absent }),
                    false => out.push(Action::RevokeLease { lease }),
                }
            }
            Event::Claimed { lease, if_alive, outcome } => self.claimed(now_ns, (lease, if_alive, outcome), &mut out),
            Event::NotAlive => {
                let lease = self.lease.at(now_ns);
                out.extend(lease.map(|lease| Action::Claim { lease, if_alive: IfAlive::Absent }));
            }
            // An etcd that went back may have the lease and not the key under it, which another run of this node can claim. A member
            // that lags says the same for a moment: the next renewal counts.
            Event::LeaseRenewed { revision, .. } if revision < self.revision => {}
            Event::LeaseRenewed { lease, sent_ns, .. } => self.lease.renewed(lease, self.until_ns(sent_ns)),
            Event::LeaseGone { lease } => {
                if self.lease.gone(now_ns, lease) {
                    self.pools.iter_mut().for_each(|p| p.lose(&mut out));
                }
            }
            Event::Drain => self.draining = true,
            Event::Resume => self.draining = false,
            Event::TrustStore => {
                (self.distrusts, self.revision) = (false, Revision::default());
                self.pools.iter_mut().for_each(Pool::forget_store);
            }
            Event::Read { floor, revision, .. } if revision < floor => self.store_went_back(now_ns, &mut out),
            event => self.of_pool(now_ns, event, &mut out),
        }
        self.advance(now_ns, &mut out);
        out
    }

    fn until_ns(&self, sent_ns: u64) -> u64 {
        sent_ns + usable_ns(self.config.ttl_ns, self.config.drift_ppm)
    }

    /// A lease is used only while etcd says by it that this node is alive: of two runs of one node one is.
    fn claimed(&mut self, now_ns: u64, (lease, if_alive, outcome): (LeaseId, IfAlive, Outcome), out: &mut Vec<Action>) {
        match (outcome, if_alive) {
            (Outcome::Applied(_), _) => self.lease.claimed(lease),
            _ if self.lease.unclaimed() != Some(lease) => {}
            // It may have happened: what is next due asks again.
            (Outcome::Unknown, _) => {}
            (Outcome::Refused, IfAlive::Under(last)) if last == lease => {
                self.lease.refused(now_ns, lease);
                out.push(Action::RevokeLease { lease });
            }
            // It is there from before, or from a claim whose answer was lost.
            (Outcome::Refused, before) => {
                let last = self.lease.before().filter(|_| before == IfAlive::Absent).unwrap_or(lease);
                out.push(Action::Claim { lease, if_alive: IfAlive::Under(last) });
            }
        }
    }

    /// A lease that may have ended is over, whatever the event says that is looked at next.
    fn look_at_the_clock(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        if let Some(lease) = self.lease.take_ended(now_ns) {
            self.pools.iter_mut().for_each(|p| p.lose(out));
            out.push(Action::RevokeLease { lease });
        }
    }

    fn store_went_back(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        if self.distrusts {
            return;
        }
        self.distrusts = true;
        self.pools.iter_mut().for_each(|p| p.lose(out));
        if let Some(lease) = self.lease.at(now_ns).or(self.lease.unclaimed()) {
            self.lease.gone(now_ns, lease);
            out.push(Action::RevokeLease { lease });
        }
        out.push(Action::StoreWentBack);
    }

    fn of_pool(&mut self, now_ns: u64, event: Event, out: &mut Vec<Action>) {
        let (id, revision) = match &event {
            Event::Watched { pool, revision, .. } | Event::Read { pool, revision, .. } => (*pool, *revision),
            Event::Transacted { pool, outcome, .. } => {
                let Outcome::Applied(revision) = outcome else {
                    return self.pass(now_ns, *pool, event, out);
                };
                (*pool, *revision)
            }
            Event::Fenced { pool, .. }
            | Event::FenceFailed { pool, .. }
            | Event::Registered { pool, .. }
            | Event::Imported { pool, .. }
            | Event::ImportFailed { pool, .. }
            | Event::Stopped { pool, .. }
            | Event::Closed { pool, .. }
            | Event::DisksLost { pool, .. } => return self.pass(now_ns, *pool, event, out),
            _ => return,
        };
        if self.distrusts {
            return;
        }
        self.revision = self.revision.max(revision);
        self.pass(now_ns, id, event, out);
    }

    fn pass(&mut self, now_ns: u64, id: PoolId, event: Event, out: &mut Vec<Action>) {
        let now = self.now(now_ns);
        if let Some(pool) = self.pools.iter_mut().find(|p| p.id() == id) {
            pool.handle(now, event, out);
        }
    }

    fn now(&self, ns: u64) -> Now {
        Now {
            ns,
            node: self.config.node,
            lease: self.lease.at(ns),
            draining: self.draining,
            revision: self.revision,
            ttl_ns: self.config.ttl_ns,
            fence_retry_ns: self.config.fence_retry_ns,
        }
    }

    fn advance(&mut self, now_ns: u64, out: &mut Vec<Action>) {
        if self.distrusts {
            return;
        }
        match self.lease.take_due(now_ns, self.config.ttl_ns) {
            Some(Some(lease)) => {
                out.push(Action::RenewLease { lease });
                let unclaimed = self.lease.unclaimed();
                out.extend(unclaimed.map(|lease| Action::Claim { lease, if_alive: IfAlive::Absent }));
            }
            Some(None) => out.push(Action::GrantLease),
            None => {}
        }
        let now = self.now(now_ns);
        self.pools.iter_mut().for_each(|p| p.advance(now, out));
    }
}
