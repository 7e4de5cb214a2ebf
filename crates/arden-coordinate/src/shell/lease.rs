//! The node's lease in etcd, and the key `alive/N` under it, by which the others know that the node is there and where.

use std::sync::atomic::Ordering;
use std::time::Duration;

use arden_cluster::{Event, LeaseId};

use super::{Input, Shell};
use crate::{
    clock,
    etcd::{Etcd, EtcdError, If, Then},
    keys::{self, AliveValue},
};

impl Shell {
    pub(super) fn grant(&self) {
        if self.granting.swap(true, Ordering::AcqRel) {
            return;
        }
        let granting = self.granting.clone();
        let (etcd, names, wait, inputs) = (self.parts.etcd.clone(), self.names.clone(), self.wait, self.send_to());
        let (conditions, seconds) = (self.node_conditions(), self.parts.lease_seconds);
        let (key, value) = (names.alive(self.parts.node), self.parts.alive.clone());
        self.parts.etcd.handle().spawn(async move {
            let sent_ns = clock::now_ns();
            match etcd.grant(seconds, wait).await {
                Ok((lease, ttl)) => {
                    if ttl >= seconds && is_alone(&etcd, (&key, &value), &conditions, lease, wait).await {
                        let _ = inputs.send(Input::Node(Event::LeaseGranted { lease: LeaseId(lease), sent_ns }));
                    } else {
                        let _ = etcd.revoke(lease, wait).await;
                    }
                }
                Err(e) => tracing::warn!("no lease: etcd: {e}"),
            }
            granting.store(false, Ordering::Release);
        });
    }

    /// That etcd has the cluster and this node's entry.
    fn node_conditions(&self) -> [If; 2] {
        let entry = If::Has(self.names.node(self.parts.node), self.parts.entry.clone());
        [self.parts.trust.condition(), entry]
    }

    /// A node that has a lease is there for the others: it puts `alive/N` again when that is gone.
    pub(super) fn put_alive(&self) {
        let Some(lease) = self.node.lease(clock::now_ns()) else { return };
        tracing::warn!("etcd does not say that this node is alive");
        let (etcd, wait, conditions) = (self.parts.etcd.clone(), self.wait, self.node_conditions());
        let (key, value) = (self.names.alive(self.parts.node), self.parts.alive.clone());
        self.parts.etcd.handle().spawn(async move {
            is_alone(&etcd, (&key, &value), &conditions, lease.0, wait).await;
        });
    }

    pub(super) fn renew(&self, lease: LeaseId) {
        let (etcd, wait, inputs) = (self.parts.etcd.clone(), self.wait, self.send_to());
        self.parts.etcd.handle().spawn(async move {
            let sent_ns = clock::now_ns();
            let event = match etcd.keep_alive(lease.0, wait).await {
                Ok(()) => Event::LeaseRenewed { lease, sent_ns },
                Err(EtcdError::NoLease) => Event::LeaseGone { lease },
                Err(e) => return tracing::warn!("the lease was not renewed: etcd: {e}"),
            };
            let _ = inputs.send(Input::Node(event));
        });
    }
}

/// Puts the key `alive/N` under the lease. False: it is that of another run of this node, whose lease is good yet, or the node was
/// removed.
async fn is_alone(
    etcd: &Etcd,
    (key, value): (&str, &AliveValue),
    conditions: &[If; 2],
    lease: u64,
    wait: Duration,
) -> bool {
    let bytes = keys::encode(value);
    let put = [Then::Put(key.to_string(), bytes.clone(), lease)];
    for known in [If::Changed(key.to_string(), 0), If::Has(key.to_string(), bytes)] {
        let [cluster, entry] = conditions.clone();
        match etcd.transact(&[cluster, entry, known], &put, wait).await {
            Ok(Some(_)) => return true,
            Ok(None) => {}
            Err(e) => {
                tracing::warn!("no lease: etcd: {e}");
                return false;
            }
        }
    }
    tracing::warn!(
        "no lease: another run of this node is alive by etcd, the node was removed, or etcd does not have the cluster"
    );
    false
}
