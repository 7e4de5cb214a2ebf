//! What a node is told and what it asks for: the events, the actions, and the settings that all nodes have in common.

use crate::keys::{Epoch, Holder, LeaseId, NodeId, PoolId, Revision, Transaction, View};

/// Settings of a node.
#[derive(Debug, Clone)]
pub struct Config {
    pub node: NodeId,
    /// Time to live of the lease, as etcd was asked for it.
    pub ttl_ns: u64,
    /// The most that any clock, this node's or etcd's, runs too fast or too slow, in millionths.
    pub drift_ppm: u64,
    /// Each pool of the cluster, and how long this node lets others go first when it is free.
    pub pools: Vec<(PoolId, u64)>,
    /// Delay before a fence that failed is tried again.
    pub fence_retry_ns: u64,
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Applied(Revision),
    /// A condition did not hold.
    Refused,
    /// No answer: it may have happened, or may happen yet.
    Unknown,
}

/// A condition on the key that says that a node is alive. A claim that comes late finds another lease in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfAlive {
    Absent,
    /// It is the one that was put under this lease, which was this run's.
    Under(LeaseId),
}

/// Why a pool was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportError {
    /// A label bears this epoch, which is newer than etcd knows of. Nothing was written.
    LaterEpoch(Epoch),
    /// Anything else, such as disks that do not answer. Something may have been written.
    Other,
}

/// What a node is told.
#[derive(Debug, Clone)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// etcd granted the lease that was asked for at `sent_ns`.
    LeaseGranted {
        lease: LeaseId,
        sent_ns: u64,
    },
    /// What became of [`Action::Claim`].
    Claimed {
        lease: LeaseId,
        if_alive: IfAlive,
        outcome: Outcome,
    },
    /// etcd has no key that says that this node is alive.
    NotAlive,
    /// etcd, at `revision`, renewed the lease; the request was sent at `sent_ns`.
    LeaseRenewed {
        lease: LeaseId,
        sent_ns: u64,
        revision: Revision,
    },
    /// etcd does not know the lease.
    LeaseGone {
        lease: LeaseId,
    },
    /// The watch tells of a pool's keys as of `revision`; it may lag.
    Watched {
        pool: PoolId,
        revision: Revision,
        view: View,
    },
    /// The answer to [`Action::Read`], with its `number` and `floor`.
    Read {
        pool: PoolId,
        number: u64,
        floor: Revision,
        revision: Revision,
        view: View,
    },
    Transacted {
        pool: PoolId,
        number: u64,
        outcome: Outcome,
    },
    /// The fence of a holder is confirmed on every disk of the pool.
    Fenced {
        pool: PoolId,
        epoch: Epoch,
        holder: Holder,
    },
    FenceFailed {
        pool: PoolId,
        epoch: Epoch,
        holder: Holder,
    },
    /// This node's key is registered on every disk of the pool; `keys` are all that were on any of them right before. The same key
    /// among them is of an ownership that etcd has forgotten, for each epoch is registered once.
    Registered {
        pool: PoolId,
        epoch: Epoch,
        keys: Vec<Holder>,
    },
    Imported {
        pool: PoolId,
        epoch: Epoch,
    },
    ImportFailed {
        pool: PoolId,
        epoch: Epoch,
        why: ImportError,
    },
    /// Nothing of this pool and epoch runs on this node any more.
    Stopped {
        pool: PoolId,
        epoch: Epoch,
    },
    /// The pool was closed: all of its commands have ended.
    Closed {
        pool: PoolId,
        epoch: Epoch,
    },
    /// The pool's disks do not answer, the registration failed, or the pool did not close.
    DisksLost {
        pool: PoolId,
        epoch: Epoch,
    },
    /// Hand over every pool and take none.
    Drain,
    Resume,
    /// An administrator says that etcd is to be believed again after it went back.
    TrustStore,
}

/// What a node asks its shell to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    GrantLease,
    RenewLease {
        lease: LeaseId,
    },
    /// Put the key that says that this node is alive under the lease, which has to exist, if the node is still one of the cluster and
    /// this holds. The value names the lease.
    Claim {
        lease: LeaseId,
        if_alive: IfAlive,
    },
    /// Best effort: a lease that is not revoked ends by itself.
    RevokeLease {
        lease: LeaseId,
    },
    /// A linearizable read of a pool's keys.
    Read {
        pool: PoolId,
        number: u64,
        floor: Revision,
    },
    Transact {
        pool: PoolId,
        number: u64,
        transaction: Transaction,
    },
    /// Fence one holder on every disk of the pool. `contested`: a later holder may have begun to, and it is not known how far it came: what
    /// is gone of the holder on a disk may not be all.
    Fence {
        pool: PoolId,
        epoch: Epoch,
        holder: Holder,
        contested: bool,
    },
    /// Register the key of this node and epoch on every disk of the pool.
    Register {
        pool: PoolId,
        epoch: Epoch,
    },
    /// Open the pool under `epoch`, unless a label bears one newer than `written`.
    Import {
        pool: PoolId,
        epoch: Epoch,
        written: Epoch,
    },
    /// Requests to the pool may be served, each within [`crate::Node::may_serve`].
    Serve {
        pool: PoolId,
        epoch: Epoch,
    },
    /// Take no new requests, end those under way, make a checkpoint, close the pool.
    Close {
        pool: PoolId,
        epoch: Epoch,
    },
    /// End everything of the pool at once, and send no more commands.
    Stop {
        pool: PoolId,
        epoch: Epoch,
    },
    /// etcd went back to an older state: nothing is owned or acquired before [`Event::TrustStore`].
    StoreWentBack,
}

/// Where a request for a pool goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Here(Epoch),
    /// To the node that was the owner when this node heard last.
    Forward(NodeId, Epoch),
    /// Nobody owns the pool as far as this node knows.
    Wait,
}
