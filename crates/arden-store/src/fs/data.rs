//! Reading, writing, sizes and byte-range locks, [MS-FSA] 2.1.5.3, 2.1.5.4, 2.1.5.7 to 2.1.5.9, 2.1.5.10 and 2.1.5.15.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use arden_wire::access::*;

use super::{Fs, LockRange, Open, Operation, Step, notify_filter};
use crate::{
    commit::{Cause, ChangedBy, CommitScope},
    error::{NotDone, StoreError},
    store::{BasicUpdate, CLUSTER_BYTES, ChangeKind, ClusterRun, Integrity, Node, Result, Wait},
    table::{
        ANY_COPY, WaitPlace,
        effects::Effects,
        locks::{PendingLock, check_range},
    },
};

pub(super) const OFFSET_MAX: u64 = i64::MAX as u64;
/// Write here means at the end of the file, [MS-FSA] 2.1.5.4.
pub const APPEND: u64 = u64::MAX;

impl Fs {
    /// Bytes read. `EndOfFile` when the range starts at or past the end.
    pub fn read(
        &self,
        scope: &CommitScope,
        open: &Arc<Open>,
        offset: u64,
        buf: &mut [u8],
        wait: Wait,
    ) -> Result<usize> {
        open.check_data(Operation::Read)?;
        if offset > OFFSET_MAX || buf.len() as u64 > OFFSET_MAX - offset {
            return Err(StoreError::InvalidParameter.into());
        }
        self.check_locks(open, offset, buf.len() as u64, false)?;
        if buf.is_empty() {
            return Ok(0);
        }
        let kept = if open.times.lock().last_access { Some(open.node.stat()?.last_access) } else { None };
        let n = match open.read_copy.load(Ordering::Relaxed) {
            ANY_COPY => open.node.read_at(offset, buf, wait)?,
            _ if wait == Wait::No => return Err(NotDone::WouldBlock),
            copy => open.node.read_copy_at(copy, offset, buf)?,
        };
        if kept.is_some() {
            let update = BasicUpdate { last_access: kept, ..BasicUpdate::default() };
            open.node.set_basic(scope.changes(open), &update)?;
        }
        if n == 0 { Err(StoreError::EndOfFile.into()) } else { Ok(n) }
    }

    /// Before `open` works on data by a request that may wait: other clients' write caching under the lease key of `open` ends.
    /// `Step::Wait`: call again after `OpenOwner::resume`.
    pub fn begin_work(&self, open: &Open, cause: Cause<'_>) -> Result<Step<()>> {
        let Some(lease) = open.lease.filter(|_| open.beside_writer.load(Ordering::Acquire)) else {
            return Ok(Step::Done(()));
        };
        open.file.check_crowd()?;
        let mut fx = Effects::default();
        let mut inner = open.file.lock();
        let waits = inner.at(open.stream_no).caches.break_beside(lease, self.table.clock(cause.now), &mut fx);
        let step = if waits {
            self.table.wait_among(&mut inner.waiters, &open.owner).map(Step::Wait)
        } else {
            // Whoever opens the file from now on gets no write caching beside this open.
            open.beside_writer.store(false, Ordering::Release);
            Ok(Step::Done(()))
        };
        open.file.publish(&inner);
        drop(inner);
        self.table.run(cause.scope, &open.file, fx);
        Ok(step?)
    }

    /// Whether all of a range could be read: `LockConflict` where a lock is in the way, at the end of the file or behind it.
    pub fn may_read(&self, open: &Arc<Open>, offset: u64, len: u64) -> Result<()> {
        open.check_data(Operation::Read)?;
        self.check_locks(open, offset, len, false)
    }

    /// Writes all. `offset` [`APPEND`] writes at the end of the file.
    pub fn write(&self, open: &Arc<Open>, offset: u64, data: &[u8], wait: Wait, cause: Cause<'_>) -> Result<()> {
        self.check_writable()?;
        open.check_data(Operation::Write)?;
        let len = data.len() as u64;
        let offset = if offset == APPEND { open.node.stat()?.end_of_file } else { offset };
        if offset > OFFSET_MAX || len > OFFSET_MAX - offset {
            return Err(StoreError::InvalidParameter.into());
        }
        if len == 0 {
            return Ok(());
        }
        self.check_locks(open, offset, len, true)?;
        self.contend(open, cause)?;
        self.delay_write_time(open, cause.now);
        self.keeping_times(cause.scope, open, |by| open.node.write_at(by, offset, data, wait))?;
        open.wrote_to(offset + len);
        self.modified(cause.scope, open, true);
        Ok(())
    }

    /// Durable once it returns.
    pub fn flush(&self, open: &Arc<Open>) -> Result<()> {
        self.flush_times(open)?;
        open.node.sync()
    }

    /// What a flush does beside making data durable: clients see the time of the last write, as the file system has it. All
    /// that is left to do where nothing is acknowledged before it is durable.
    pub fn flush_times(&self, open: &Open) -> Result<()> {
        open.check(Operation::Flush)?;
        self.check_writable()?;
        if open.file.has_write_time() && open.stream().is_none() {
            open.file.with_write_time(|t| t.settle());
        }
        Ok(())
    }

    pub(super) fn check_locks(&self, open: &Open, offset: u64, len: u64, write: bool) -> Result<()> {
        if !open.file.has_locks() || len == 0 {
            return Ok(());
        }
        let mut inner = open.file.lock();
        if inner.at(open.stream_no).locks.blocks_io(open.id, offset, len, write) {
            return Err(StoreError::LockConflict.into());
        }
        Ok(())
    }

    /// Others lose their read caching before data, size or locks change.
    ///
    /// # Errors
    /// As those of `FileState::check_crowd`.
    pub(super) fn contend(&self, open: &Open, cause: Cause<'_>) -> Result<()> {
        if !open.file.has_caching() {
            return Ok(());
        }
        open.file.check_crowd()?;
        self.table.saw(cause.now);
        let mut fx = Effects::default();
        let mut inner = open.file.lock();
        let caches = &mut inner.at(open.stream_no).caches;
        caches.break_reads(&open.actor(), self.table.clock(cause.now), &mut fx);
        open.file.publish(&inner);
        drop(inner);
        self.table.run(cause.scope, &open.file, fx);
        Ok(())
    }

    /// The attributes that follow a change of data or size, and who has to hear of it.
    pub(super) fn modified(&self, scope: &CommitScope, open: &Open, data: bool) {
        if !open.wrote.swap(true, Ordering::Relaxed)
            && let Ok(stat) = open.node.stat()
            && stat.attributes & ATTR_ARCHIVE == 0
        {
            let attributes = Some(stat.attributes & ATTR_SETTABLE | ATTR_ARCHIVE);
            let update = BasicUpdate { attributes, ..BasicUpdate::default() };
            let _ = open.node.set_basic(scope.changes(open), &update);
        }
        let (kind, filter) = match open.stream() {
            None => (ChangeKind::Modified, notify_filter::LAST_WRITE | notify_filter::SIZE),
            Some(_) => (ChangeKind::ModifiedStream, notify_filter::STREAM_SIZE | notify_filter::STREAM_WRITE),
        };
        if data {
            // Watchers and directory leases hear of written data when the open closes.
            open.pending_filter.fetch_or(filter, Ordering::Relaxed);
        } else {
            self.report_open(scope, open, kind, filter);
        }
    }

    /// `open` is about to write: clients see the new write time later, see `table::write_time`.
    fn delay_write_time(&self, open: &Open, now: Instant) {
        let delay = self.table.limits().write_time_delay;
        let held = *open.times.lock();
        if open.stream().is_some() || delay.is_zero() || held.last_write || held.last_write_moves {
            return;
        }
        let first = !open.delays_write_time.swap(true, Ordering::Relaxed);
        let created = open.created_at.get().copied().filter(|_| first);
        if !open.file.with_write_time(|t| t.writes(first, now, delay, created))
            && let Ok(stat) = open.node.stat()
        {
            open.file.with_write_time(|t| t.writes(first, now, delay, Some(stat.last_write)));
        }
    }

    /// The write time is now what it is.
    pub(super) fn settle_write_time(&self, scope: &CommitScope, open: &Open) {
        if !open.file.has_write_time() || open.stream().is_some() {
            return;
        }
        if open.file.with_write_time(|t| t.settle())
            && let Some(wall) = self.table.wall()
        {
            let update = BasicUpdate { last_write: Some(wall), ..BasicUpdate::default() };
            let _ = open.node.set_basic(scope.changes(open), &update);
        }
    }

    /// Puts the write time into `stat` that clients are to see.
    pub(super) fn show_write_time(&self, open: &Open, stat: &mut crate::store::Stat) {
        if open.file.has_write_time()
            && let Some(clock) = self.table.latest()
            && let Some(shown) = open.file.with_write_time(|t| t.shown(clock.now))
        {
            stat.last_write = shown;
        }
    }

    /// Runs a change of data through an open that holds times, and puts that back.
    pub(super) fn keeping_times<T>(
        &self,
        scope: &CommitScope,
        open: &Open,
        change: impl FnOnce(ChangedBy) -> Result<T>,
    ) -> Result<T> {
        let by = scope.changes(open);
        let held = *open.times.lock();
        if !(held.last_write || held.last_access || held.change) {
            return change(by);
        }
        let before = open.node.stat()?;
        let result = change(by);
        if result.is_ok() {
            let update = BasicUpdate {
                last_write: held.last_write.then_some(before.last_write),
                last_access: held.last_access.then_some(before.last_access),
                change: held.change.then_some(before.change),
                ..BasicUpdate::default()
            };
            if update != BasicUpdate::default() {
                open.node.set_basic(by, &update)?;
            }
        }
        result
    }

    /// [MS-FSA] 2.1.5.15.5.
    pub fn set_end_of_file(&self, open: &Arc<Open>, size: u64, cause: Cause<'_>) -> Result<()> {
        self.check_resize(open, size)?;
        self.contend(open, cause)?;
        open.resizing(size, || self.keeping_times(cause.scope, open, |by| open.node.set_end_of_file(by, size)))?;
        self.settle_write_time(cause.scope, open);
        self.modified(cause.scope, open, false);
        Ok(())
    }

    /// [MS-FSA] 2.1.5.15.1.
    pub fn set_allocation(&self, open: &Arc<Open>, size: u64, cause: Cause<'_>) -> Result<()> {
        self.check_resize(open, size)?;
        // What lies in the last cluster stays.
        let size = size.next_multiple_of(CLUSTER_BYTES);
        self.contend(open, cause)?;
        self.keeping_times(cause.scope, open, |by| open.node.set_allocation(by, size))?;
        open.note_promised();
        open.cut_to(size);
        self.settle_write_time(cause.scope, open);
        self.modified(cause.scope, open, false);
        Ok(())
    }

    fn check_resize(&self, open: &Open, size: u64) -> Result<(), StoreError> {
        self.check_writable()?;
        open.check_open()?;
        if open.directory || size > OFFSET_MAX {
            return Err(StoreError::InvalidParameter);
        }
        open.check_data(Operation::WriteOver)
    }

    /// All ranges or none. `Step::Wait` only for a single range: call again after `OpenOwner::resume`.
    pub fn lock(
        &self,
        open: &Arc<Open>,
        ranges: &[LockRange],
        fail_immediately: bool,
        cause: Cause<'_>,
    ) -> Result<Step<()>> {
        if open.is_closed() {
            // What a lock that waited gets when its open goes.
            return Err(StoreError::NotLocked.into());
        }
        if open.directory || (!fail_immediately && ranges.len() != 1) {
            return Err(StoreError::InvalidParameter.into());
        }
        open.check(Operation::Lock)?;
        ranges.iter().try_for_each(check_range)?;
        let mut fx = Effects::default();
        let mut inner = open.file.lock();
        let stream = inner.at(open.stream_no);
        if !fail_immediately && let Some(wait) = stream.locks.take_granted(open.id, &ranges[0]) {
            open.locks.fetch_add(1, Ordering::Relaxed);
            drop(inner);
            self.table.wait_is_over(wait);
            return Ok(Step::Done(()));
        }
        open.file.check_crowd()?;
        if open.locks.load(Ordering::Relaxed) + ranges.len() > self.table.limits().locks_per_open_max {
            return Err(StoreError::InsufficientResources.into());
        }
        stream.caches.break_reads(&open.actor(), self.table.clock(cause.now), &mut fx);
        let result = self.take_ranges(open, stream, ranges, fail_immediately);
        open.file.publish(&inner);
        drop(inner);
        self.table.run(cause.scope, &open.file, fx);
        result
    }

    fn take_ranges(
        &self,
        open: &Open,
        stream: &mut crate::table::file::StreamState,
        ranges: &[LockRange],
        fail_immediately: bool,
    ) -> Result<Step<()>> {
        for (i, range) in ranges.iter().enumerate() {
            match stream.locks.try_lock(open.id, range) {
                Ok(()) => {}
                Err(_) if !fail_immediately => {
                    let place = WaitPlace::Lock { file: Arc::downgrade(&open.file), stream_no: open.stream_no };
                    let wait = self.table.new_wait(&open.owner, place)?;
                    stream.locks.wait_for(PendingLock { wait, open: open.id, range: *range });
                    return Ok(Step::Wait(wait));
                }
                Err(e) => {
                    ranges[..i].iter().for_each(|r| stream.locks.roll_back(open.id, r));
                    return Err(e.into());
                }
            }
        }
        open.locks.fetch_add(ranges.len(), Ordering::Relaxed);
        Ok(Step::Done(()))
    }

    /// In order, up to one that is not locked: those before it stay unlocked. How many went.
    pub fn unlock(&self, open: &Arc<Open>, ranges: &[LockRange]) -> (usize, Result<()>) {
        match open.check_open().and(if open.directory { Err(StoreError::InvalidParameter) } else { Ok(()) }) {
            Ok(()) => {}
            Err(e) => return (0, Err(e.into())),
        }
        if let Err(e) = open.file.check_crowd() {
            return (0, Err(e));
        }
        let valid = ranges.iter().take_while(|r| check_range(r).is_ok()).count();
        let mut woken = Vec::new();
        let mut inner = open.file.lock();
        let (gone, result) = inner.at(open.stream_no).locks.unlock_all(open.id, &ranges[..valid], &mut woken);
        open.locks.fetch_sub(gone, Ordering::Relaxed);
        open.file.publish(&inner);
        drop(inner);
        self.table.resume(woken);
        let result = result.and_then(|()| ranges[valid..].iter().try_for_each(check_range));
        (gone, result.map_err(NotDone::from))
    }

    /// The first `max` of them.
    pub fn allocated_ranges(&self, open: &Arc<Open>, offset: u64, len: u64, max: usize) -> Result<Vec<(u64, u64)>> {
        open.check(Operation::ReadData)?;
        if open.directory || offset > OFFSET_MAX || len > OFFSET_MAX - offset {
            return Err(StoreError::InvalidParameter.into());
        }
        open.node.allocated_ranges(offset, len, max)
    }

    /// FSCTL_GET_RETRIEVAL_POINTERS, [MS-FSA] 2.1.5.10.15. Of a file as for allocated ranges: the handle has to be able to
    /// read it.
    pub fn cluster_runs(&self, open: &Arc<Open>, from: u64, max: usize) -> Result<Vec<ClusterRun>> {
        open.check(Operation::ReadData)?;
        open.node.cluster_runs(from, max)
    }

    /// FSCTL_QUERY_FILE_REGIONS, [MS-FSA] 2.1.5.10.24: where valid data ends, and the file.
    pub fn valid_data(&self, open: &Arc<Open>) -> Result<(u64, u64)> {
        open.check_open()?;
        let eof = open.node.stat()?.end_of_file;
        Ok((open.valid_data_length(eof), eof))
    }

    /// FSCTL_SET_ZERO_DATA, [MS-FSA] 2.1.5.10.39. Never makes the file longer.
    pub fn zero_range(&self, open: &Arc<Open>, offset: u64, len: u64, cause: Cause<'_>) -> Result<()> {
        open.check(Operation::WriteOver)?;
        if open.directory || offset > OFFSET_MAX || len > OFFSET_MAX - offset {
            return Err(StoreError::InvalidParameter.into());
        }
        self.check_locks(open, offset, len, true)?;
        let end = open.node.stat()?.end_of_file.min(offset + len);
        if len == 0 || offset >= end {
            return Ok(());
        }
        self.contend(open, cause)?;
        self.delay_write_time(open, cause.now);
        self.keeping_times(cause.scope, open, |by| open.node.zero_range(by, offset, end - offset))?;
        open.zeroed(offset, end);
        self.modified(cause.scope, open, true);
        Ok(())
    }

    pub fn set_sparse(&self, scope: &CommitScope, open: &Arc<Open>, sparse: bool) -> Result<()> {
        self.check_writable()?;
        open.check_data(Operation::SetSparse)?;
        open.node.set_sparse(scope.changes(open), sparse)?;
        self.report_open(scope, open, ChangeKind::Modified, notify_filter::ATTRIBUTES);
        Ok(())
    }

    /// [MS-FSA] 2.1.5.10.19: reads of this open are of one copy of the data from now on, or of whichever is valid. It asks for
    /// no access. `InvalidParameter` for opens that do not bypass caches; `NotRedundant`.
    pub fn choose_copy(&self, open: &Arc<Open>, copy: Option<u32>) -> Result<(), StoreError> {
        open.check_open()?;
        let copies = self.store.data_copies();
        if open.options & OPT_NO_INTERMEDIATE_BUFFERING == 0 || copy.is_some_and(|copy| copy >= copies) {
            return Err(StoreError::InvalidParameter);
        }
        if copy.is_some() && copies < 2 {
            return Err(StoreError::NotRedundant);
        }
        open.read_copy.store(copy.unwrap_or(ANY_COPY), Ordering::Relaxed);
        Ok(())
    }

    /// [MS-FSA] 2.1.5.10.10, which asks for no access.
    pub fn integrity(&self, open: &Arc<Open>) -> Result<Integrity> {
        open.check_open()?;
        open.node.integrity()
    }

    /// [MS-FSA] 2.1.5.10.33 and 2.1.5.10.34: what the stream is set to becomes `change` of it.
    pub fn change_integrity(
        &self,
        scope: &CommitScope,
        open: &Arc<Open>,
        change: impl FnOnce(Integrity) -> Result<Integrity>,
    ) -> Result<()> {
        open.check(Operation::SetIntegrity)?;
        open.node.set_integrity(scope.changes(open), change(open.node.integrity()?)?)?;
        self.report_open(scope, open, ChangeKind::Modified, notify_filter::ATTRIBUTES);
        Ok(())
    }

    /// Copies between opens of this root or another. Bytes copied.
    pub fn copy(
        &self,
        source: &Arc<Open>,
        source_offset: u64,
        target: &Arc<Open>,
        offset: u64,
        len: u64,
        cause: Cause<'_>,
    ) -> Result<u64> {
        self.check_transfer(source, source_offset, target, offset, len)?;
        self.copy_from(&*source.node, source_offset, target, offset, len, cause)
    }

    /// The same from what is not open; everything is checked.
    pub(super) fn copy_from(
        &self,
        source: &dyn Node,
        source_offset: u64,
        target: &Arc<Open>,
        offset: u64,
        len: u64,
        cause: Cause<'_>,
    ) -> Result<u64> {
        self.contend(target, cause)?;
        self.delay_write_time(target, cause.now);
        let copied = self.keeping_times(cause.scope, target, |by| {
            match target.node.copy_from(by, source, source_offset, offset, len) {
                Err(NotDone::Failed(StoreError::NotSupported | StoreError::NotSameVolume)) => {
                    copy_through(by, source, source_offset, target, offset, len)
                }
                other => other,
            }
        })?;
        target.wrote_to(offset + copied);
        self.modified(cause.scope, target, true);
        Ok(copied)
    }

    /// FSCTL_DUPLICATE_EXTENTS_TO_FILE, [MS-FSA] 2.1.5.10.4.
    pub fn clone_range(
        &self,
        source: &Arc<Open>,
        source_offset: u64,
        target: &Arc<Open>,
        offset: u64,
        len: u64,
        cause: Cause<'_>,
    ) -> Result<()> {
        target.check_data(Operation::WriteOver)?;
        self.check_transfer(source, source_offset, target, offset, len)?;
        self.contend(target, cause)?;
        Node::clone_from(&*target.node, cause.scope.changes(target), &*source.node, source_offset, offset, len)?;
        target.wrote_to(offset + len);
        self.modified(cause.scope, target, true);
        Ok(())
    }

    fn check_transfer(&self, source: &Open, from: u64, target: &Open, to: u64, len: u64) -> Result<()> {
        source.check_data(Operation::Read)?;
        target.check_data(Operation::Write)?;
        if from.max(to) > OFFSET_MAX || len > OFFSET_MAX - from.max(to) {
            return Err(StoreError::InvalidParameter.into());
        }
        self.check_locks(source, from, len, false)?;
        self.check_locks(target, to, len, true)
    }
}

/// For stores that cannot copy between these two files.
fn copy_through(by: ChangedBy, source: &dyn Node, mut from: u64, target: &Open, mut to: u64, len: u64) -> Result<u64> {
    let mut buf = vec![0; len.min(1 << 20) as usize];
    let mut left = len;
    while left > 0 {
        let n = left.min(buf.len() as u64) as usize;
        let n = source.read_at(from, &mut buf[..n], Wait::Yes)?;
        if n == 0 {
            break;
        }
        target.node.write_at(by, to, &buf[..n], Wait::Yes)?;
        (from, to, left) = (from + n as u64, to + n as u64, left - n as u64);
    }
    Ok(len - left)
}
