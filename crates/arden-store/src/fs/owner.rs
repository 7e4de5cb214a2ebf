//! The owner of opens: a protocol's server. It is named by each open, and the open table tells it, and nobody else, what becomes of them.

use std::{ops::Deref, sync::Arc};

use crate::commit::CommitScope;

use super::{LeaseBreak, OpenId, OplockLevel, WaitId};

/// What the table tells the owner of an open. Called with no lock of the table held; must not block.
///
/// An open's events may come before the call that made it has returned: its id is reserved before
/// ([`crate::table::OpenTable::reserve_open`]), so that the owner knows it.
///
/// What the owner changes because of an event is a part of `scope`, the one of the message that caused it. Work that it
/// leaves to others takes a clone along.
pub trait OpenOwner: Send + Sync {
    /// Tell the holder of `open` that its oplock breaks to `to`. With `ack`, the table waits for `Fs::ack_oplock_break`
    /// or for the open to be closed. A holder that is disconnected should be closed.
    fn oplock_break(&self, scope: &CommitScope, open: OpenId, to: OplockLevel, ack: bool);
    /// The same for a lease; `opens` are those that hold it. `Fs::ack_lease_break`.
    fn lease_break(&self, scope: &CommitScope, b: &LeaseBreak);
    /// What these opens cache, or have to give up in the end, changed, and their holder is not told now: a break was not
    /// answered in time, or one under way goes further. For owners that keep this over a restart.
    fn cache_changed(&self, _scope: &CommitScope, _opens: &[OpenId]) {}
    /// Make the call that answered `Step::Wait(wait)` again. Called exactly once, unless `cancel_wait` was.
    fn resume(&self, wait: WaitId);
}

/// Where an owner counts the bytes of changes that a watch of its keeps between queries, and bounds them.
///
/// Called with locks of the table held, for each change: it counts, and must not block or take a lock.
pub trait HeldBytes: Send + Sync {
    /// So many bytes more. False: a bound does not allow them, and nothing was counted.
    fn hold(&self, bytes: usize) -> bool;
    fn release(&self, bytes: usize);
}

/// A reference to an owner; equal when it is the same one.
#[derive(Clone)]
pub struct Owner(Arc<dyn OpenOwner>);

impl Owner {
    pub fn new(owner: Arc<dyn OpenOwner>) -> Owner {
        Owner(owner)
    }
}

impl Deref for Owner {
    type Target = dyn OpenOwner;
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Owner {}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Owner")
    }
}
