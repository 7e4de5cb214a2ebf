//! An open enters the table and leaves it: share modes, breaks and grants in one step under the file's lock.

use std::sync::{Arc, atomic::Ordering};

use arden_auth::Token;

use super::{
    LeaseHome, OpenTable,
    cache::{Conflict, GrantContext, LeaseId},
    effects::Effects,
    file::{FileInner, FileState, NameState, Newcomer, OpenEntry, Removal},
    open::Open,
    share::{is_lease_stat_open, is_stat_open},
};
use crate::{
    commit::{Cause, CommitScope},
    error::StoreError,
    fs::{CacheGrant, CacheRequest, ClientId, OpenId, Owner, WaitId},
    name::eq_fold,
    store::{NodeRef, Result},
};

/// An open that passed all checks but those of the table.
pub(crate) struct Admission<'a> {
    pub id: OpenId,
    pub owner: &'a Owner,
    pub node: &'a NodeRef,
    pub who: &'a Arc<Token>,
    pub client: ClientId,
    /// What the open gets.
    pub granted: u32,
    /// What it does while opening, too: an overwrite writes.
    pub effective: u32,
    pub share: u32,
    pub overwrite: bool,
    pub cache: CacheRequest,
    pub existed: bool,
    /// Of a directory: its change time, read before it is admitted.
    pub changed_at: u64,
    pub cause: Cause<'a>,
}

/// What an open keeps of its admission.
pub(crate) struct Entered {
    pub file: Arc<FileState>,
    pub stream_no: u32,
    pub lease: Option<LeaseId>,
    pub cache: CacheGrant,
    /// See [`Open::beside_writer`].
    pub beside_writer: bool,
}

pub(crate) enum Admitted {
    In(Entered),
    Wait(WaitId),
    /// Something else is taking its place.
    ShutOut(WaitId),
}

impl OpenTable {
    pub(crate) fn admit(&self, a: &Admission<'_>) -> Result<Admitted> {
        if self.open_count.fetch_add(1, Ordering::Relaxed) >= self.limits.opens_max {
            self.open_count.fetch_sub(1, Ordering::Relaxed);
            return Err(StoreError::TooManyOpens.into());
        }
        let admitted = self.try_admit(a);
        if !matches!(admitted, Ok(Admitted::In(_))) {
            self.open_count.fetch_sub(1, Ordering::Relaxed);
        }
        admitted
    }

    fn try_admit(&self, a: &Admission<'_>) -> Result<Admitted> {
        loop {
            let file = self.find_or_add(a.node.id());
            file.check_crowd()?;
            let mut fx = Effects::default();
            let mut inner = file.lock();
            if inner.dead {
                continue;
            }
            let result = self.admit_locked(a, &file, &mut inner, &mut fx);
            file.publish(&inner);
            let idle = result.is_err() && inner.open_count() == 0;
            drop(inner);
            self.run(a.cause.scope, &file, fx);
            if idle {
                self.forget_if_idle(&file);
            }
            return Ok(result?);
        }
    }

    fn admit_locked(
        &self,
        a: &Admission<'_>,
        file: &Arc<FileState>,
        inner: &mut FileInner,
        fx: &mut Effects,
    ) -> Result<Admitted, StoreError> {
        let stream = a.node.stream();
        inner.check_not_deleted(a.node)?;
        if inner.shut > 0 {
            return self.wait_until_open(a, inner);
        }
        let lease = match &a.cache {
            CacheRequest::Lease(l) => Some(LeaseId { client: a.client, key: l.key }),
            _ => None,
        };
        if let Some(id) = lease {
            self.check_lease_home(id, file, inner.stream(stream).no)?;
        }
        if inner.is_kept_for_absent(&Newcomer { stream, access: a.effective, overwrite: a.overwrite, lease }) {
            return Err(StoreError::HeldByAbsentOwner);
        }
        let stat_open = is_stat_open(a.effective);
        let sharing_violation = inner.sharing_violation(stream, a.effective, a.share);
        if !stat_open {
            let conflict = Conflict { lease, access: a.effective, overwrite: a.overwrite, sharing_violation };
            // A conflict with another stream's share mode is settled by that stream's handle caching.
            let streams = inner.streams_mut().filter(|s| sharing_violation || same_stream(s.name.as_deref(), stream));
            let mut wait = false;
            for s in streams {
                wait |= s.caches.conflict(&conflict, self.clock(a.cause.now), fx);
            }
            if wait {
                return Ok(Admitted::Wait(self.wait_among(&mut inner.waiters, a.owner)?));
            }
        }
        if sharing_violation {
            return Err(StoreError::SharingViolation);
        }
        Ok(Admitted::In(self.enter(a, file, inner, lease)))
    }

    /// Nothing stands against it: what it may cache, and its place among the opens of the file.
    fn enter(
        &self,
        a: &Admission<'_>,
        file: &Arc<FileState>,
        inner: &mut FileInner,
        lease: Option<LeaseId>,
    ) -> Entered {
        let stream = a.node.stream();
        let directory = a.node.is_directory() && stream.is_none();
        let s = inner.stream(stream);
        let stream_no = s.no;
        let new_lease = lease.is_some_and(|l| !s.caches.holds(l));
        let beside_writer = !is_lease_stat_open(a.effective) && lease.is_some_and(|l| s.caches.is_beside_writer(l));
        let cx = GrantContext {
            open: a.id,
            owner: a.owner,
            client: a.client,
            directory,
            stat_open: is_stat_open(a.effective),
            real: !is_stat_open(a.granted),
            existed: a.existed,
            other_real_opens: s.real_opens,
            has_locks: !s.locks.is_empty() && !a.overwrite,
            changed_at: a.changed_at,
        };
        let cache = s.caches.grant(&a.cache, &cx);
        if new_lease && let Some(l) = lease {
            let home = LeaseHome { file: file.clone(), stream_no: s.no };
            self.lease_shard(&l).lock().insert(l, home);
            if directory {
                self.directory_leases.fetch_add(1, Ordering::Release);
            }
        }
        let entry = OpenEntry {
            id: a.id,
            node: a.node.clone(),
            who: a.who.clone(),
            client: a.client,
            lease,
            access: a.granted,
            share: a.share,
            nameless: false,
            owner_absent: false,
        };
        inner.add_open(stream, entry);
        Entered { file: file.clone(), stream_no, lease, cache, beside_writer }
    }

    /// `InvalidParameter` when the client uses the key for another file, [MS-SMB2] 3.3.5.9.8.
    fn check_lease_home(&self, id: LeaseId, file: &Arc<FileState>, stream_no: u32) -> Result<(), StoreError> {
        match self.lease_shard(&id).lock().get(&id) {
            Some(h) if !Arc::ptr_eq(&h.file, file) || h.stream_no != stream_no => Err(StoreError::InvalidParameter),
            _ => Ok(()),
        }
    }

    /// The same before a file is created: the key may not be in use at all.
    pub(crate) fn check_lease_unused(&self, client: ClientId, request: &CacheRequest) -> Result<(), StoreError> {
        let CacheRequest::Lease(l) = request else { return Ok(()) };
        let id = LeaseId { client, key: l.key };
        if self.lease_shard(&id).lock().contains_key(&id) {
            return Err(StoreError::InvalidParameter);
        }
        Ok(())
    }

    /// Takes a closed open out. What it answers has to be done, and then `removed` be called.
    pub(crate) fn leave(&self, scope: &CommitScope, open: &Open) -> Removal {
        let file = &open.file;
        let mut fx = Effects::default();
        let (mut woken, mut ended) = (Vec::new(), Vec::new());
        let mut inner = file.lock();
        let Some(entry) = inner.remove_open(open.stream_no, open.id) else { return Removal::Nothing };
        let s = inner.at(open.stream_no);
        s.locks.release(open.id, &mut woken, &mut ended);
        let (lease_gone, wake) = s.caches.close(open.id, open.lease, is_stat_open(open.granted));
        let release = s.opens.is_empty() && std::mem::take(&mut s.promised);
        if open.delete_on_close.load(Ordering::Acquire) && !entry.nameless {
            self.mark_deleted(&mut inner, open, None);
        }
        let removal = self.removal(&mut inner, open, entry.nameless);
        // Who waits for a file that goes would find its deletion pending: `removed` wakes them.
        let goes = !matches!(removal, Removal::Nothing);
        inner.removals += u32::from(goes);
        if !goes && (wake || !inner.waiters.is_empty()) {
            inner.wake(&mut fx);
        }
        inner.forget_idle_streams();
        file.publish(&inner);
        let idle = inner.open_count() == 0 && inner.deletes.is_empty();
        if let Some(id) = lease_gone {
            self.lease_shard(&id).lock().remove(&id);
            if open.directory {
                self.directory_leases.fetch_sub(1, Ordering::Release);
            }
        }
        drop(inner);
        drop(entry);
        self.open_count.fetch_sub(1, Ordering::Relaxed);
        self.run(scope, file, fx);
        self.resume(woken);
        self.end_waits(ended);
        if idle {
            self.forget_if_idle(file);
        }
        if release && !goes {
            // [MS-FSA] 2.1.5.5 phase 4.
            open.node.release_allocation(scope.changes(open));
        }
        removal
    }

    /// Marks what `open` has open for deletion, with the rules that it asks for (`posix`), or as it closes.
    pub(crate) fn mark_deleted(&self, inner: &mut FileInner, open: &Open, posix: Option<bool>) {
        let pending = if !inner.is_main(open.stream_no) {
            inner.at(open.stream_no).delete.replace(open.node.clone()).is_none()
        } else if inner.name_of(open) == NameState::Gone {
            false
        } else {
            inner.delete_name(&open.node, open.parent_key, posix.map(|posix| (open.id, posix)))
        };
        if pending {
            self.deletes_pending.fetch_add(1, Ordering::Release);
        }
    }

    /// What `open` has open stays: its stream, or the name that it was opened by.
    pub(crate) fn unmark_deleted(&self, inner: &mut FileInner, open: &Open) {
        let was = match inner.is_main(open.stream_no) {
            true => match inner.name_of(open) {
                NameState::ToGo(at) => {
                    inner.deletes.remove(at);
                    true
                }
                NameState::Stays | NameState::Gone => false,
            },
            false => inner.at(open.stream_no).delete.take().is_some(),
        };
        if was {
            self.deletes_pending.fetch_sub(1, Ordering::Release);
        }
    }

    fn removal(&self, inner: &mut FileInner, open: &Open, nameless: bool) -> Removal {
        let due = inner.take_names(open, nameless);
        if !due.is_empty() {
            let s = inner.at(open.stream_no);
            let stream = s.delete.clone().filter(|_| s.opens.is_empty());
            let unless_other = |key: Option<u128>| key.filter(|k| Some(*k) == open.parent_key);
            let names = due.into_iter().map(|(node, key)| (node, unless_other(key))).collect();
            return Removal::File { names, stream };
        }
        // A stream goes with its own last open, also while others keep a file that is to be deleted: its deletion may be taken back.
        let s = inner.at(open.stream_no);
        if s.opens.is_empty()
            && let Some(node) = s.delete.clone()
        {
            return Removal::Stream(node);
        }
        Removal::Nothing
    }

    /// What `leave` answered is gone from the store, or (`failed`) one of its names could not be taken away.
    pub(crate) fn removed(&self, scope: &CommitScope, open: &Open, failed: bool) {
        let mut fx = Effects::default();
        let mut inner = open.file.lock();
        inner.removals -= 1;
        self.unlinks.fetch_add(1, Ordering::AcqRel);
        if !inner.is_main(open.stream_no) && inner.at(open.stream_no).delete.take().is_some() {
            self.deletes_pending.fetch_sub(1, Ordering::Release);
        }
        let names = inner.names_taken(open.id, failed);
        self.deletes_pending.fetch_sub(names, Ordering::Release);
        inner.forget_idle_streams();
        inner.wake(&mut fx);
        drop(inner);
        self.run(scope, &open.file, fx);
        self.forget_if_idle(&open.file);
    }
}

fn same_stream(a: Option<&str>, b: Option<&str>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => eq_fold(a, b),
        _ => false,
    }
}
