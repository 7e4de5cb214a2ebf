//! Bringing regions of mirrors and slots of parity up to date, where copies missed something or a crash may have left them
//! different.

use std::ops::Range;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, Buf, LocalFuture, SharedBuf};

use crate::base::error::{SpaceError, SpaceResult};
use crate::base::lock::RangeGuard;
use crate::map::pool_map::UNWRITTEN;
use crate::pool::open_pool::GroupRt;
use crate::space::mirror::pieces;
use crate::space::open_space::{Part, Space};

/// Runs of blocks of one region that are copied at once.
const AT_ONCE: usize = 8;
/// A region of which only some blocks are copied is locked in so many parts, one at a time: writes to it wait for no more.
const WINDOWS: u64 = 4;

/// How often somebody looks whether the readers of a slot have left.
const LOOK_NS: u64 = 100_000;

impl Space {
    /// Brings the copies of a region that missed it up to date, from the first that did not. With `equalize`, because
    /// nobody can tell which is right, the first goes over all others where a crash may have left them different.
    pub(crate) async fn sync_region(&self, group: usize, bit: usize, equalize: bool) -> SpaceResult<()> {
        let part = self.region(group, bit);
        {
            let _guard = self.lock_part(&part).await;
            self.pool.alive()?;
            let Some(rt) = self.rt.group_rt(group) else { return Ok(()) };
            if equalize && rt.regions.is_suspect(bit) {
                return self.equalize(&rt, part, bit).await;
            }
            if !self.needs_sync(group) {
                return Ok(());
            }
            if rt.regions.missed(bit).is_none() && self.sync_part(part, false).await? {
                return Ok(());
            }
        }
        let window_bytes = (self.rt.shape.region_bytes / WINDOWS / BLOCK_BYTES).max(1) * BLOCK_BYTES;
        for at in (0..part.len).step_by(window_bytes as usize) {
            let len = window_bytes.min(part.len - at);
            self.sync_window(bit, part.at, Part { at: part.at + at, len, ..part }).await?;
        }
        Ok(())
    }

    /// Brings a part of a region that begins at `region_at` up to date. Writes elsewhere in the region go on meanwhile: they reach the disks
    /// that have returned, too.
    async fn sync_window(&self, bit: usize, region_at: u64, window: Part) -> SpaceResult<()> {
        let first = (window.at - region_at) / BLOCK_BYTES;
        let missed = || match self.rt.group_rt(window.group) {
            Some(rt) => rt.regions.missed_within(bit, first..first + window.len / BLOCK_BYTES),
            None => Some(Vec::new()),
        };
        // Whoever writes there is not waited for.
        if missed().is_some_and(|runs| runs.is_empty()) {
            return Ok(());
        }
        let _guard = self.lock_part(&window).await;
        self.pool.alive()?;
        if self.rt.group_rt(window.group).is_none() || !self.needs_sync(window.group) {
            return Ok(());
        }
        let Some(runs) = missed() else { return self.sync_pieces(window, false).await };
        let part_of = |run: &Range<u64>| Part {
            at: region_at + run.start * BLOCK_BYTES,
            len: (run.end - run.start) * BLOCK_BYTES,
            ..window
        };
        self.sync_runs(runs.iter().map(part_of).collect()).await
    }

    /// Copies parts of a window, in order, with one read. Blocks between them are not written: nobody wrote those while the disk was away, and its
    /// copy may be the only good one, if the disk that is copied from lies.
    async fn sync_runs(&self, runs: Vec<Part>) -> SpaceResult<()> {
        let (Some(first), Some(last)) = (runs.first().copied(), runs.last()) else { return Ok(()) };
        let all = Part { len: last.at + last.len - first.at, ..first };
        let read = if runs.len() > 1 { self.read_any_copy(all, |_| true).await.ok() } else { None };
        let read = read.map(Buf::share);
        let copy = |run: Part| -> LocalFuture<SpaceResult<()>> {
            let (me, read) = (self.clone(), read.clone());
            Box::pin(async move {
                match read {
                    Some(b) => me.write_stale(run, &b.slice((run.at - first.at) as usize, run.len as usize)).await,
                    // Something there cannot be read, what lies between perhaps.
                    None => me.sync_pieces(run, false).await,
                }
            })
        };
        for some in runs.chunks(AT_ONCE) {
            join_all(some.iter().copied().map(copy).collect()).await.into_iter().collect::<SpaceResult<()>>()?;
        }
        Ok(())
    }

    /// For somebody who reads a region that a crash may have left different: what copies missed is not his work, and a
    /// disk that fails with that not his error.
    pub(crate) async fn equalize_region(&self, group: usize, bit: usize) -> SpaceResult<()> {
        let part = self.region(group, bit);
        let _guard = self.lock_part(&part).await;
        self.pool.alive()?;
        let Some(rt) = self.rt.group_rt(group) else { return Ok(()) };
        // Another may have done it while we waited.
        if rt.regions.is_suspect(bit) { self.equalize(&rt, part, bit).await } else { Ok(()) }
    }

    pub(crate) fn region(&self, group: usize, bit: usize) -> Part {
        let shape = self.rt.shape;
        let at = bit as u64 * shape.region_bytes;
        Part { group, at, len: shape.region_bytes.min(shape.group_bytes - at), from: 0 }
    }

    pub(crate) async fn lock_part(&self, part: &Part) -> RangeGuard {
        let start = part.group as u64 * self.rt.shape.group_bytes + part.at;
        self.rt.locks.lock(start, start + part.len).await
    }

    async fn equalize(&self, rt: &GroupRt, part: Part, bit: usize) -> SpaceResult<()> {
        self.sync_pieces(part, true).await?;
        self.end_suspicion(rt, bit).await
    }

    async fn sync_pieces(&self, part: Part, equalize: bool) -> SpaceResult<()> {
        if self.sync_part(part, equalize).await? {
            return Ok(());
        }
        // No copy is whole: piece by piece, from wherever each can be read.
        let blocks: Vec<u64> = (part.at..part.at + part.len).step_by(BLOCK_BYTES as usize).collect();
        for some in blocks.chunks(AT_ONCE) {
            let sync = |&at: &u64| -> LocalFuture<SpaceResult<()>> {
                let me = self.clone();
                Box::pin(async move { me.sync_block(Part { at, len: BLOCK_BYTES, ..part }, equalize).await })
            };
            join_all(some.iter().map(sync).collect()).await.into_iter().collect::<SpaceResult<()>>()?;
        }
        Ok(())
    }

    /// A block that no disk can read is lost, and the others are made equal. One whose disks are away is
    /// there again with them: until then nothing can be said of it.
    async fn sync_block(&self, block: Part, equalize: bool) -> SpaceResult<()> {
        let whole = self.sync_part(block, equalize).await?;
        if whole || self.group_serves(block.group) { Ok(()) } else { Err(SpaceError::Offline) }
    }

    /// What is read from now on has to be there after the next crash too, whichever disk that
    /// takes away: the copies are durable before the region counts as equal.
    async fn end_suspicion(&self, rt: &GroupRt, bit: usize) -> SpaceResult<()> {
        self.pool.flush_disks().await?;
        rt.regions.trust(bit);
        Ok(())
    }

    /// False: no copy of all of it can be read.
    async fn sync_part(&self, part: Part, equalize: bool) -> SpaceResult<bool> {
        let b = match self.read_any_copy(part, |_| true).await {
            Ok(b) => b,
            Err(SpaceError::Unreadable) => return Ok(false),
            Err(e) => return Err(e),
        };
        if equalize {
            self.write_part(part, &b.share()).await?;
        } else {
            self.write_stale(part, &b.share()).await?;
        }
        Ok(true)
    }

    /// Writes the copies of a part that are out of date and whose disks are here, and no other.
    async fn write_stale(&self, part: Part, data: &SharedBuf) -> SpaceResult<()> {
        let shape = self.rt.shape;
        let copies = shape.layout.copies();
        let mut writes: Vec<LocalFuture<SpaceResult<()>>> = Vec::new();
        {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, part.group) else { return Ok(()) };
            for p in pieces(&shape, part.at, part.len) {
                let bytes = data.slice((p.at - part.at) as usize, p.len as usize);
                for c in g.columns[p.column * copies..][..copies].iter().filter(|c| c.stale) {
                    let Some(disk) = self.pool.disk(c.disk).filter(|d| d.online.get()) else { continue };
                    let at = disk.areas.data_at + u64::from(c.slab) * shape.slab_bytes + p.slab_at;
                    let (me, bytes, hold) = (self.clone(), bytes.clone(), self.pool.use_slab(c.disk, c.slab));
                    writes.push(Box::pin(async move {
                        let _hold = hold;
                        if disk.write(at, bytes, false).await.is_err() {
                            me.pool.fail_disk(&disk, "write failed").await?;
                            return Err(SpaceError::Offline);
                        }
                        Ok(())
                    }));
                }
            }
        }
        join_all(writes).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    fn needs_sync(&self, group: usize) -> bool {
        let map = self.pool.0.map.read();
        map.group(self.rt.id, group).is_some_and(|g| g.columns.iter().any(|c| c.stale && self.pool.online(c.disk)))
    }

    /// Writes the columns of a slot that missed it.
    pub(crate) async fn sync_slot(&self, group: usize, slot: u16) -> SpaceResult<()> {
        let stripe = {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, group) else { return Ok(()) };
            g.stripes.find(slot)
        };
        let Some(stripe) = stripe else { return self.readers_leave(group, slot).await };
        let (first, end) = self.stripe_blocks(group, stripe);
        let guard = self.rt.stripe_locks.lock(first, end).await;
        self.pool.alive()?;
        let stays = {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, group) else { return Ok(()) };
            g.stripes.get(stripe) == Some(slot) && slot != UNWRITTEN
        };
        if stays {
            return self.write_missing(group, slot, false).await;
        }
        drop(guard);
        self.readers_leave(group, slot).await
    }

    /// A slot that its stripe has left is copied nowhere. Who began to read it before may still have to ask any of its
    /// columns, and must not come upon one that never got it: until he has ended none begins to count.
    pub(crate) async fn readers_leave(&self, group: usize, slot: u16) -> SpaceResult<()> {
        let Some(rt) = self.rt.group_rt(group) else { return Ok(()) };
        let is_left = || {
            let map = self.pool.0.map.read();
            map.group(self.rt.id, group).is_some_and(|g| g.stripes.find(slot).is_none())
        };
        while rt.slots.readers.is_held(slot) && is_left() {
            self.pool.alive()?;
            self.pool.0.rt.sleep_ns(LOOK_NS).await;
        }
        Ok(())
    }

    /// Rebuilds and writes the columns of a slot that are not valid but can be written, and
    /// with `targets` those that are being moved.
    pub(crate) async fn write_missing(&self, group: usize, slot: u16, targets: bool) -> SpaceResult<()> {
        let shape = self.rt.shape;
        let mut jobs = Vec::new();
        {
            let valid = self.slot_validity(group, slot);
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, group) else { return Ok(()) };
            for i in 0..shape.columns {
                let column = crate::space::parity::column_of(i, slot, shape.columns);
                let c = &g.columns[column];
                if !valid[column] && self.pool.online(c.disk) {
                    jobs.push((i, c.disk, c.slab, self.pool.use_slab(c.disk, c.slab)));
                }
                if let Some((d, s)) = c.target.filter(|_| targets) {
                    jobs.push((i, d, s, self.pool.use_slab(d, s)));
                }
            }
        }
        let mut all: Vec<LocalFuture<SpaceResult<()>>> = Vec::new();
        for (i, d, slab, hold) in jobs {
            let me = self.clone();
            all.push(Box::pin(async move {
                let _hold = hold;
                let len = shape.interleave as usize;
                let (b, _) = me.unit_or_rebuilt(group, slot, i, 0, len).await?;
                let Some(disk) = me.pool.disk(d) else { return Err(SpaceError::Offline) };
                let at = disk.areas.data_at + u64::from(slab) * shape.slab_bytes + u64::from(slot) * shape.interleave;
                if disk.write(at, b.share(), false).await.is_err() {
                    me.pool.fail_disk(&disk, "write failed").await?;
                    return Err(SpaceError::Offline);
                }
                Ok(())
            }));
        }
        join_all(all).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }
}
