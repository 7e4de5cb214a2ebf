//! An open that was kept enters the table again, as it was: it is asked nothing, because it was admitted before.

use std::sync::{Arc, atomic::Ordering};

use arden_auth::Token;

use super::{
    LeaseHome, OpenTable,
    admit::Entered,
    cache::{Kept, LeaseId},
    effects::Effects,
    file::{FileInner, FileState, OpenEntry},
    share::is_stat_open,
};
use crate::{
    commit::Cause,
    error::StoreError,
    fs::{LockRange, Owner},
    handles::{KeptCache, KeptLease, KeptOpen},
    store::{NodeRef, Result},
};

pub(crate) struct Restored<'a> {
    pub node: &'a NodeRef,
    pub who: &'a Arc<Token>,
    pub open: &'a KeptOpen,
    pub lease: Option<&'a KeptLease>,
    pub locks: &'a [LockRange],
    pub owner: &'a Owner,
    pub cause: Cause<'a>,
    /// Else it is merely durable: it is taken up where nothing is in its way.
    pub persistent: bool,
}

impl OpenTable {
    /// The caller knows that the id is not in use. `NameCollision` when the lease's key is for another file, `SharingViolation` and
    /// `LockNotGranted` when another open is in the way of one that is merely durable.
    pub(crate) fn restore(&self, r: &Restored<'_>) -> Result<Entered, StoreError> {
        loop {
            let file = self.find_or_add(r.node.id());
            let mut inner = file.lock();
            if inner.dead {
                continue;
            }
            let entered = self.restore_locked(r, &file, &mut inner);
            let fx = Effects {
                deadline: inner.streams().filter_map(|s| s.caches.next_deadline()).min(),
                ..Effects::default()
            };
            file.publish(&inner);
            drop(inner);
            self.run(r.cause.scope, &file, fx);
            if entered.is_ok() {
                self.open_count.fetch_add(1, Ordering::Relaxed);
                self.ids.saw(r.open.id);
            } else {
                self.forget_if_idle(&file);
            }
            return entered;
        }
    }

    fn restore_locked(
        &self,
        r: &Restored<'_>,
        file: &Arc<FileState>,
        inner: &mut FileInner,
    ) -> Result<Entered, StoreError> {
        let stream = r.node.stream();
        let (lease, kept) = kept_cache(r);
        if !r.persistent {
            conflict(r, inner).inspect_err(|_| inner.forget_idle_streams())?;
        }
        let s = inner.stream(stream);
        let stream_no = s.no;
        if let Some(id) = lease {
            let directory = r.node.is_directory() && stream.is_none();
            let mut homes = self.lease_shard(&id).lock();
            let home = homes.entry(id).or_insert_with(|| {
                self.directory_leases.fetch_add(usize::from(directory), Ordering::Release);
                LeaseHome { file: file.clone(), stream_no }
            });
            if !Arc::ptr_eq(&home.file, file) || home.stream_no != stream_no {
                return Err(StoreError::NameCollision);
            }
        }
        if let Some(kept) = &kept {
            let real = !is_stat_open(r.open.granted);
            let clock = self.clock(r.cause.now);
            s.caches.restore((r.open.id, r.owner), lease, kept, (real, r.persistent), clock);
        }
        // An exclusive lock under one's own shared one is taken first or not at all.
        for exclusive in [true, false] {
            for range in r.locks.iter().filter(|l| l.exclusive == exclusive) {
                if s.locks.try_lock(r.open.id, range).is_err() {
                    tracing::error!(?range, "a kept byte-range lock conflicts with another");
                }
            }
        }
        let cache = s.caches.describe(r.open.id, lease);
        let entry = OpenEntry {
            id: r.open.id,
            node: r.node.clone(),
            who: r.who.clone(),
            client: r.open.client,
            lease,
            access: r.open.granted,
            share: r.open.share,
            nameless: false,
            owner_absent: r.persistent,
        };
        inner.add_open(stream, entry);
        if let Some(posix) = r.open.delete_pending {
            self.restore_delete(r, inner, stream_no, posix);
        }
        // The other client's lease may be restored later: it is looked at when this open works.
        Ok(Entered { file: file.clone(), stream_no, lease, cache, beside_writer: lease.is_some() })
    }

    fn restore_delete(&self, r: &Restored<'_>, inner: &mut FileInner, stream_no: u32, posix: bool) {
        let marked = if !inner.is_main(stream_no) {
            inner.at(stream_no).delete.replace(r.node.clone()).is_none()
        } else {
            inner.delete_name(r.node, r.open.parent_key, Some((r.open.id, posix)))
        };
        if marked {
            self.deletes_pending.fetch_add(1, Ordering::Release);
        }
    }
}

/// Whether an open that is there keeps this one out.
fn conflict(r: &Restored<'_>, inner: &mut FileInner) -> Result<(), StoreError> {
    let stream = r.node.stream();
    if inner.sharing_violation(stream, r.open.granted, r.open.share) {
        return Err(StoreError::SharingViolation);
    }
    let locks = &inner.stream(stream).locks;
    let refused = r.locks.iter().any(|range| locks.refuses(r.open.id, range));
    if refused { Err(StoreError::LockNotGranted) } else { Ok(()) }
}

fn kept_cache(r: &Restored<'_>) -> (Option<LeaseId>, Option<Kept>) {
    match r.open.cache {
        KeptCache::Oplock { state, breaking } => {
            (None, Some(Kept { state, epoch: 0, version: 0, parent_key: None, breaking, changed_at: 0 }))
        }
        KeptCache::Lease { key } => {
            let id = LeaseId { client: r.open.client, key };
            // Without its record nothing is known to be cached, and the key is still the open's.
            let kept = r.lease.map_or(
                Kept { state: 0, epoch: 0, version: 2, parent_key: r.open.parent_key, breaking: None, changed_at: 0 },
                |l| Kept {
                    state: l.state,
                    epoch: l.epoch,
                    version: l.version,
                    parent_key: l.parent_key,
                    breaking: l.breaking,
                    changed_at: l.changed_at,
                },
            );
            (Some(id), Some(kept))
        }
    }
}
