//! Closing, [MS-FSA] 2.1.5.5, deletion, and telling others about changes.

use std::sync::{Arc, atomic::Ordering};

use arden_wire::access::*;

use super::{Disposal, Fs, Open, Operation, Step, notify_filter};
use crate::{
    commit::{Cause, CommitScope},
    error::{NotDone, StoreError},
    scope::RequestScope,
    store::{ChangeKind, Named, Node, NodeRef, Result},
    table::{
        effects::Effects,
        file::{NameState, Removal},
        notify::Told,
    },
};

impl Fs {
    /// Idempotent. Locks, share modes and oplocks go; a lease with its last open; what was to be deleted is.
    pub fn close(&self, scope: &CommitScope, open: &Arc<Open>) {
        self.close_open(scope, open);
    }

    pub(crate) fn close_open(&self, scope: &CommitScope, open: &Open) {
        if open.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(watch) = open.watch.get() {
            self.watches.remove(watch);
            let mut woken = Vec::new();
            watch.end(StoreError::WatchEnded, &mut woken);
            self.table.resume(woken);
        }
        *open.listing.lock() = None;
        self.settle_writes(scope, open);
        let deletes = open.delete_on_close.load(Ordering::Acquire);
        if deletes && open.directory && !open.node.is_empty_directory().unwrap_or(false) {
            open.delete_on_close.store(false, Ordering::Release);
        }
        if open.delete_on_close.load(Ordering::Acquire) && open.file.has_caching() {
            self.break_handles_of_deleted(scope, open);
        }
        let filter = open.pending_filter.load(Ordering::Acquire);
        if filter != 0 && self.is_anybody_watching() {
            let kind = if open.stream().is_some() { ChangeKind::ModifiedStream } else { ChangeKind::Modified };
            self.report_open(scope, open, kind, filter);
        }
        match self.table.leave(scope, open) {
            Removal::Nothing => {}
            Removal::File { names, stream } => {
                // The file may have other names, and keeps no stream that was to go.
                if let Some(stream) = stream
                    && let Err(e) = stream.unlink(scope.changes(open))
                {
                    tracing::debug!("a stream of a deleted file stays: {e}");
                }
                self.unlink(scope, open, &names);
            }
            Removal::Stream(node) => self.unlink(scope, open, &[(node, open.parent_key)]),
        }
        if open.directory && open.delete_on_close.load(Ordering::Acquire) {
            self.watches_of_deleted(open);
        }
    }

    fn settle_writes(&self, scope: &CommitScope, open: &Open) {
        if open.delays_write_time.swap(false, Ordering::Relaxed) {
            self.settle_write_time(scope, open);
        }
    }

    /// Before a close: the time of its writes shows. Before one that is to delete: others' cached handles would keep the
    /// file from going. `Step::Wait`: ask again after `OpenOwner::resume`, then close. A close without it deletes when the last handle goes.
    pub fn prepare_close(&self, open: &Arc<Open>, cause: Cause<'_>) -> Result<Step<()>> {
        self.table.saw(cause.now);
        self.settle_writes(cause.scope, open);
        if open.is_closed() || !open.deletes_on_close() || !open.file.has_caching() {
            return Ok(Step::Done(()));
        }
        if open.file.lock().name_of(open) != NameState::Stays {
            return Ok(Step::Done(()));
        }
        Ok(self.break_handles(open, false, cause)?.map_or(Step::Done(()), Step::Wait))
    }

    fn break_handles_of_deleted(&self, scope: &CommitScope, open: &Open) {
        let Some(clock) = self.table.latest() else { return };
        let mut fx = Effects::default();
        let mut inner = open.file.lock();
        inner.break_handles(Some(&open.actor()), false, clock, &mut fx);
        open.file.publish(&inner);
        drop(inner);
        self.table.run(scope, &open.file, fx);
    }

    /// Takes away names, or a stream, each with the parent lease key of who asked for it.
    fn unlink(&self, scope: &CommitScope, open: &Open, names: &[(NodeRef, Option<u128>)]) {
        let watched = self.is_anybody_watching();
        let mut gone = Vec::new();
        let mut failed = false;
        for (node, parent_key) in names {
            let trail = if watched { node.trail() } else { Vec::new() };
            match node.unlink(scope.changes(open)) {
                Ok(()) => gone.push((node, trail, *parent_key)),
                Err(_) => failed |= node.stream().is_none(),
            }
        }
        self.table.removed(scope, open, failed);
        for (node, trail, parent_key) in gone.into_iter().filter(|_| watched) {
            let (kind, filter) = match node.stream() {
                Some(_) => (ChangeKind::RemovedStream, notify_filter::STREAM_NAME),
                None if node.is_directory() => (ChangeKind::Removed, notify_filter::DIR_NAME),
                None => (ChangeKind::Removed, notify_filter::FILE_NAME),
            };
            self.report(scope, (kind, &trail, node.stream()), filter, parent_key);
        }
    }

    /// FileDispositionInformation and its Ex form, [MS-FSA] 2.1.5.15.3 and 2.1.5.15.4.
    pub fn set_disposition(&self, open: &Arc<Open>, how: Disposal, cause: Cause<'_>) -> Result<Step<()>> {
        self.table.saw(cause.now);
        open.check(Operation::Delete)?;
        if how.on_close {
            // Only an open that was made to delete on close may say so again, or take it back.
            if how.delete && open.options & OPT_DELETE_ON_CLOSE == 0 {
                return Err(StoreError::NotSupported.into());
            }
            open.delete_on_close.store(how.delete, Ordering::Release);
            return Ok(Step::Done(()));
        }
        if !how.delete {
            let mut inner = open.file.lock();
            if inner.is_main(open.stream_no) && inner.name_of(open) == NameState::Gone {
                return Err(StoreError::Deleted.into());
            }
            self.table.unmark_deleted(&mut inner, open);
            return Ok(Step::Done(()));
        }
        open.file.check_crowd()?;
        self.check_may_delete(open, how)?;
        let mut fx = Effects::default();
        let mut inner = open.file.lock();
        if how.posix && inner.has_absent_owner(Some(open.id)) {
            // Its name would be gone before its owner is back.
            return Err(StoreError::HeldByAbsentOwner.into());
        }
        let by = open.actor();
        let clock = self.table.clock(cause.now);
        let wait = match inner.is_main(open.stream_no) {
            true => inner.break_handles(Some(&by), false, clock, &mut fx),
            false => inner.at(open.stream_no).caches.break_handles(Some(&by), false, clock, &mut fx),
        };
        let step = if wait {
            self.table.wait_among(&mut inner.waiters, &open.owner).map(Step::Wait)
        } else {
            self.table.mark_deleted(&mut inner, open, Some(how.posix));
            Ok(Step::Done(()))
        };
        open.file.publish(&inner);
        drop(inner);
        self.table.run(cause.scope, &open.file, fx);
        if !wait && open.directory {
            self.watches_of_deleted(open);
        }
        // Also where it may not wait: the breaks have begun.
        Ok(step?)
    }

    fn check_may_delete(&self, open: &Open, how: Disposal) -> Result<()> {
        let stat = open.node.stat()?;
        // The attribute stays: the file may have other names, and the deletion may be taken back.
        let may_ignore = how.ignore_readonly && open.has(FILE_WRITE_ATTRIBUTES);
        if stat.attributes & ATTR_READONLY != 0 && !may_ignore {
            return Err(StoreError::CannotDelete.into());
        }
        if open.directory {
            if open.node.path().is_empty() {
                return Err(StoreError::CannotDelete.into());
            }
            if !open.node.is_empty_directory()? {
                return Err(StoreError::DirectoryNotEmpty.into());
            }
        }
        Ok(())
    }

    /// Queries that wait on a directory end when it is to be deleted.
    fn watches_of_deleted(&self, open: &Open) {
        let mut woken = Vec::new();
        self.watches.interrupt(open.node.id(), StoreError::DeletePending, &mut woken);
        self.table.resume(woken);
    }

    /// Whether a change has to be told to anybody.
    pub(super) fn is_anybody_watching(&self) -> bool {
        !self.watches.is_empty() || self.table.directory_leases.load(Ordering::Acquire) > 0
    }

    /// Whether a change of this node takes long to be told: many have leases on its directory.
    pub fn telling_takes_long(&self, node: &dyn Node) -> bool {
        self.table.has_many_directory_leases()
            && node.trail().last().is_some_and(|named| self.table.is_crowded_directory(named.directory))
    }

    /// Before such a change.
    ///
    /// # Errors
    /// `WouldBlock` where this thread must not wait.
    pub(super) fn check_telling(&self, node: &dyn Node) -> Result<()> {
        let is_long = RequestScope::must_not_wait() && self.telling_takes_long(node);
        if is_long { Err(NotDone::WouldBlock) } else { Ok(()) }
    }

    /// A change of what `open` has open.
    pub(super) fn report_open(&self, scope: &CommitScope, open: &Open, kind: ChangeKind, filter: u32) {
        if self.is_anybody_watching() {
            self.report(scope, (kind, &open.node.trail(), open.stream()), filter, open.parent_key);
        }
    }

    pub(super) fn report(&self, scope: &CommitScope, told: Told<'_>, filter: u32, parent_key: Option<u128>) {
        let mut woken = Vec::new();
        self.watches.report(self.identity(), filter, &[told], &mut woken);
        self.table.resume(woken);
        self.break_parent(scope, told.1, parent_key);
    }

    /// Directory leases on the directory end that the trail's last name is in, for that changed, but for the one that the
    /// actor names as its own.
    pub(super) fn break_parent(&self, scope: &CommitScope, trail: &[Named], parent_key: Option<u128>) {
        if self.table.directory_leases.load(Ordering::Acquire) == 0 {
            return;
        }
        let Some(file) = trail.last().and_then(|named| self.table.find(named.directory)) else { return };
        let Some(clock) = self.table.latest() else { return };
        let mut fx = Effects::default();
        let mut inner = file.lock();
        inner.main.caches.break_directory(parent_key, clock, &mut fx);
        file.publish(&inner);
        drop(inner);
        self.table.run(scope, &file, fx);
    }
}
