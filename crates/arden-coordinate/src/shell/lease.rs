//! What a node asks of etcd: its lease, the key `alive/N` under it, by which the others know that the node is there and where, and
//! transactions on the keys of pools.

use std::sync::atomic::Ordering;

use arden_cluster::{Event, IfAlive, LeaseId, Outcome, PoolId, Revision, SetOwner, Transaction};

use super::{Input, Shell};
use crate::{
    clock,
    etcd::{EtcdError, If, Then},
    keys::{self, AliveValue},
};

/// A node that leaves tells etcd so often at most.
const ENDED_TRIES: usize = 3;

impl Shell {
    /// Whether the node has a lease, for those that ask it, and for its connections to other nodes.
    pub(super) fn note_lease(&mut self, now_ns: u64) {
        let until_ns = self.node.lease_until(now_ns);
        self.parts.lease.set(until_ns.unwrap_or(0));
        if until_ns.is_some() != self.has_lease {
            self.has_lease = until_ns.is_some();
            self.tell_peers();
            self.parts.owners.send_replace(());
            if self.has_lease {
                // Commands of other nodes did not ask this one; and the watch may tell of them later than the first client comes.
                self.parts.store.may_have_changed();
            }
        }
    }

    /// The nodes as etcd had them last. Of this one its own clock says whether it is alive: etcd may be out of reach.
    pub(super) fn tell_peers(&self) {
        let (mut known, me) = (self.known.clone(), self.parts.peers.me());
        if let Some(own) = known.get_mut(&me.node) {
            own.run = self.has_lease.then(|| me.run.clone());
        }
        self.parts.peers.set(known);
    }

    pub(super) fn grant(&self) {
        if self.granting.swap(true, Ordering::AcqRel) {
            return;
        }
        let granting = self.granting.clone();
        let (etcd, wait, inputs) = (self.parts.etcd.clone(), self.wait, self.send_to());
        let seconds = self.parts.lease_seconds;
        self.parts.etcd.handle().spawn(async move {
            let sent_ns = clock::now_ns();
            match etcd.grant(seconds, wait).await {
                Ok((lease, ttl)) if ttl >= seconds => {
                    let _ = inputs.send(Input::Node(Event::LeaseGranted { lease: LeaseId(lease), sent_ns }));
                }
                Ok((lease, _)) => _ = etcd.revoke(lease, wait).await,
                Err(e) => tracing::warn!("no lease: etcd: {e}"),
            }
            granting.store(false, Ordering::Release);
        });
    }

    /// Puts `alive/N` under the lease, which the value names, where etcd has the cluster and this node's entry.
    pub(super) fn claim(&self, lease: LeaseId, if_alive: IfAlive) {
        let key = self.names.alive(self.parts.node);
        let under = |lease: LeaseId| keys::encode(&AliveValue { lease: lease.0, ..self.parts.alive.clone() });
        let known = match if_alive {
            IfAlive::Absent => If::Changed(key.clone(), 0),
            IfAlive::Under(last) => If::Has(key.clone(), under(last)),
        };
        let mut if_all = self.parts.trust.conditions();
        if_all.push(known);
        let put = [Then::Put(key, under(lease), lease.0)];
        let (etcd, wait, inputs) = (self.parts.etcd.clone(), self.wait, self.send_to());
        self.parts.etcd.handle().spawn(async move {
            let outcome = outcome(etcd.transact(&if_all, &put, wait).await);
            if outcome == Outcome::Refused && if_alive == IfAlive::Under(lease) {
                tracing::warn!(
                    "no lease: another run of this node is alive by etcd, the node was removed, or etcd does not have the cluster"
                );
            }
            let _ = inputs.send(Input::Node(Event::Claimed { lease, if_alive, outcome }));
        });
    }

    pub(super) fn renew(&self, lease: LeaseId) {
        let (etcd, wait, inputs) = (self.parts.etcd.clone(), self.wait, self.send_to());
        self.parts.etcd.handle().spawn(async move {
            let sent_ns = clock::now_ns();
            let event = match etcd.keep_alive(lease.0, wait).await {
                Ok(revision) => Event::LeaseRenewed { lease, sent_ns, revision: Revision(revision) },
                Err(EtcdError::NoLease) => Event::LeaseGone { lease },
                Err(e) => return tracing::warn!("the lease was not renewed: etcd: {e}"),
            };
            let _ = inputs.send(Input::Node(event));
        });
    }
}

impl Shell {
    /// Of a node that leaves.
    pub(super) async fn end_lease(&self, lease: LeaseId) {
        for _ in 0..ENDED_TRIES {
            match self.parts.etcd.revoke(lease.0, self.wait).await {
                // Or it was ended, and the answer was lost.
                Ok(()) | Err(EtcdError::NoLease) => return,
                Err(e) => tracing::warn!("this node counts as alive until its lease ends: etcd: {e}"),
            }
        }
    }

    /// A transaction on the keys of a pool, for the node's decisions.
    pub(super) fn transact(&self, pool: PoolId, number: u64, transaction: &Transaction) {
        let trust = &self.parts.trust;
        // Giving up needs the owner key of this lease, and is good also when the node was removed.
        let gives_up = matches!(transaction.owner, SetOwner::Delete);
        let mut if_all = if gives_up { vec![trust.cluster()] } else { trust.conditions() };
        let (conditions, then) = keys::transaction(&self.names, pool, transaction);
        if_all.extend(conditions);
        let (etcd, wait, inputs) = (self.parts.etcd.clone(), self.wait, self.send_to());
        self.parts.etcd.handle().spawn(async move {
            let outcome = outcome(etcd.transact(&if_all, &then, wait).await);
            let _ = inputs.send(Input::Node(Event::Transacted { pool, number, outcome }));
        });
    }
}

/// What became of a transaction.
fn outcome(answer: Result<Option<u64>, EtcdError>) -> Outcome {
    match answer {
        Ok(Some(revision)) => Outcome::Applied(Revision(revision)),
        Ok(None) | Err(EtcdError::NoLease | EtcdError::NotDone(_)) => Outcome::Refused,
        Err(EtcdError::Unknown(_)) => Outcome::Unknown,
    }
}
