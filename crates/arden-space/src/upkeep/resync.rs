//! Background work on consistency: applying what gathered, bringing copies into line after a
//! crash or an absence, and forgetting that regions were dirty. Stands back for foreground I/O.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, LocalFuture, SharedBuf};

use crate::base::error::{SpaceError, SpaceResult};
use crate::base::lock::RangeGuard;
use crate::disk::open_disk::DiskRt;
use crate::map::pool_map::UNWRITTEN;
use crate::pool::open_pool::{GroupRt, Pool, User};
use crate::space::mirror::pieces;
use crate::space::open_space::{Part, Space};

/// Parts of a repair that are under way at once, and the memory that they may take.
const LANES_MAX: u64 = 16;
const LANES_BYTES_MAX: u64 = 16 << 20;
/// How often somebody looks whether the readers of a slot have left.
const LOOK_NS: u64 = 100_000;
type Work = Rc<dyn Fn(usize) -> LocalFuture<SpaceResult<bool>>>;

impl Pool {
    fn open_spaces(&self) -> Vec<Space> {
        self.0.spaces.borrow().values().map(|rt| Space { pool: self.clone(), rt: rt.clone() }).collect()
    }

    /// Puts everything that is gathered in its place.
    pub(crate) async fn apply_all(&self) -> SpaceResult<()> {
        self.apply_some(u64::MAX).await
    }

    pub(crate) async fn apply_some(&self, bytes: u64) -> SpaceResult<()> {
        let mut error = None;
        for s in self.open_spaces() {
            if s.rt.overlay.borrow().is_empty() {
                continue;
            }
            let r = if s.rt.shape.is_parity() { s.apply_parity(bytes).await } else { s.apply_mirror(bytes).await };
            error = r.err().or(error);
        }
        error.map_or(Ok(()), Err)
    }

    pub(crate) fn start_background(&self) {
        self.start_log_keeper();
        self.start_asking_slow_disks();
        self.start_trimming();
        let me = self.clone();
        self.0.rt.spawn(async move {
            while !me.0.life.is_closed() {
                let wait = me.0.background.woken();
                let _ = me.0.rt.timeout_ns(me.0.cfg.tick_ms * 1_000_000, wait).await;
                if me.0.life.is_closed() {
                    return;
                }
                let _ = me.background_round().await;
            }
        });
        let me = self.clone();
        self.0.rt.spawn(async move {
            while !me.0.life.is_closed() {
                let wait = me.0.background.woken();
                let _ = me.0.rt.timeout_ns(me.0.cfg.tick_ms * 1_000_000, wait).await;
                // Complete stripes are leaving: what is incomplete may yet become complete.
                let streaming = me.0.room.is_streaming();
                if !me.0.life.is_closed() && me.gathered_bytes() > 0 && !streaming {
                    let _ = me.apply_some(me.0.cfg.gather_bytes_max / 2).await;
                }
            }
        });
    }

    /// Empties the log beside its writers.
    fn start_log_keeper(&self) {
        let me = self.clone();
        self.0.rt.spawn(async move {
            while !me.0.life.is_closed() {
                let wait = me.0.journal.filling.wait();
                let _ = me.0.rt.timeout_ns(me.0.cfg.tick_ms * 1_000_000, wait).await;
                if !me.0.life.is_closed() && !me.0.life.is_opening() {
                    let _ = me.empty_log().await;
                }
                me.0.journal.emptied.notify_all();
            }
        });
    }

    async fn empty_log(&self) -> SpaceResult<()> {
        if self.log_is_filling() {
            self.trim_log().await?;
        }
        if self.log_is_filling() { self.checkpoint().await } else { Ok(()) }
    }

    async fn background_round(&self) -> SpaceResult<()> {
        self.reform_journal_if_short().await?;
        self.resync().await?;
        self.background_moves().await?;
        self.clean().await
    }

    /// Lets foreground I/O pass: while clients are active, background work takes at most
    /// about a quarter of the time.
    pub(crate) async fn throttle(&self, started_ns: u64) -> SpaceResult<()> {
        if self.is_busy() {
            let took = self.0.rt.now_ns() - started_ns;
            self.0.rt.sleep_ns(took * 3).await;
        }
        while self.0.background.is_paused() && !self.0.life.is_closed() {
            self.0.rt.sleep_ns(self.0.cfg.tick_ms * 1_000_000).await;
        }
        if self.0.background.is_cancelled() { Err(SpaceError::Cancelled) } else { Ok(()) }
    }

    /// Clients are active.
    fn is_busy(&self) -> bool {
        self.0.background.is_busy(self.0.rt.now_ns(), self.0.cfg.busy_ms)
    }

    /// Does `work` for every part, in order, until one fails. While no client is active several
    /// are under way at once, so that the disks that are read and the one that is written all
    /// stream; else one at a time. `work` says whether there was anything to do.
    pub(crate) async fn in_lanes(&self, parts: Vec<usize>, part_bytes: u64, work: Work) -> SpaceResult<()> {
        let parts = Rc::new(RefCell::new(parts.into_iter()));
        let failed = Rc::new(Cell::new(false));
        let mut lanes: Vec<LocalFuture<SpaceResult<()>>> = Vec::new();
        for lane in 0..(LANES_BYTES_MAX / part_bytes).clamp(1, LANES_MAX) {
            let (me, parts, failed, work) = (self.clone(), parts.clone(), failed.clone(), work.clone());
            lanes.push(Box::pin(async move {
                while !failed.get() {
                    if lane > 0 && me.is_busy() {
                        me.0.rt.sleep_ns(me.0.cfg.busy_ms * 1_000_000).await;
                    } else {
                        let next = parts.borrow_mut().next();
                        let Some(part) = next else { break };
                        let started = me.0.rt.now_ns();
                        let done = match work(part).await {
                            Ok(true) => me.throttle(started).await,
                            other => other.map(|_| ()),
                        };
                        if done.is_err() {
                            failed.set(true);
                            return done;
                        }
                    }
                    if lane > 0 && parts.borrow().len() == 0 {
                        break;
                    }
                }
                Ok(())
            }));
        }
        join_all(lanes).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// Stops and restarts long background work.
    pub fn set_paused(&self, paused: bool) {
        self.0.background.set_paused(paused);
    }

    /// Brings every stale column whose disk is back up to date, and every region that a crash may have left different
    /// where whoever uses the space cannot tell a good copy from another.
    pub async fn resync(&self) -> SpaceResult<()> {
        for s in self.open_spaces() {
            let groups: Vec<usize> = s.rt.groups.borrow().keys().copied().collect();
            for g in groups {
                // A disk that fails meanwhile ends the work on this group, not on the others.
                if let Err(e @ (SpaceError::Closed | SpaceError::Cancelled)) = s.resync_group(g).await {
                    return Err(e);
                }
            }
        }
        self.0.events.finished("resync");
        Ok(())
    }

    /// Forgets dirty marks of regions that nobody has written since the last call.
    pub async fn clean(&self) -> SpaceResult<()> {
        let mut found = Vec::new();
        for s in self.open_spaces().into_iter().filter(|s| !s.rt.shape.is_parity()) {
            for (&gi, rt) in s.rt.groups.borrow().iter() {
                let map = self.0.map.borrow();
                let Some(g) = map.group(s.rt.id, gi) else { continue };
                let whole = self.is_whole(g);
                if !whole || !g.dirty.any() || rt.suspect.borrow().any() {
                    continue;
                }
                let mut t = rt.touched.borrow_mut();
                for bit in g.dirty.ones() {
                    let e = t.entry(bit as u32).or_default();
                    if *e == (0, false) {
                        found.push((s.rt.id, gi, g.incarnation, bit));
                    } else {
                        e.1 = false;
                    }
                }
                rt.warm.borrow_mut().clear();
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        self.flush_disks().await?;
        for (space, gi, incarnation, bit) in found {
            let Some(rt) = self.space_rt(space).and_then(|s| s.group_rt(gi)) else { continue };
            let mut map = self.0.map.borrow_mut();
            let Some(g) = map.group_of(space, gi as u32, incarnation) else { continue };
            let whole = self.is_whole(g);
            if whole && rt.touched.borrow().get(&(bit as u32)).is_some_and(|e| *e == (0, false)) {
                g.dirty.clear(bit);
                rt.durable.borrow_mut().clear(bit);
                rt.cleaned.set(rt.cleaned.get() + 1);
                rt.touched.borrow_mut().remove(&(bit as u32));
            }
        }
        self.commit().await
    }
}

impl Space {
    async fn resync_group(&self, group: usize) -> SpaceResult<()> {
        let shape = self.rt.shape;
        let Some(rt) = self.rt.group_rt(group) else { return Ok(()) };
        let (returned, incarnation) = {
            let map = self.pool.0.map.borrow();
            let Some(g) = map.group(self.rt.id, group) else { return Ok(()) };
            let returned: Vec<Rc<DiskRt>> = g
                .columns
                .iter()
                .filter(|c| c.stale)
                .filter_map(|c| self.pool.disk(c.disk))
                .filter(|d| d.online.get())
                .collect();
            if !self.pool.group_usable(&shape, g) {
                return Ok(());
            }
            (returned, g.incarnation)
        };
        let suspicious = self.rt.user.get() == User::Trusting && rt.suspect.borrow().any();
        if returned.is_empty() && !suspicious {
            return Ok(());
        }
        let bits = {
            let map = self.pool.0.map.borrow();
            let dirty = map.group(self.rt.id, group).map_or_else(Vec::new, |g| g.dirty.ones());
            if returned.is_empty() { rt.suspect.borrow().ones() } else { dirty }
        };
        let (me, done, total) = (self.clone(), Cell::new(0), bits.len() as u64);
        let sync = move |bit: usize| -> LocalFuture<SpaceResult<bool>> {
            let me = me.clone();
            me.pool.0.events.progress("resync", done.get(), total);
            done.set(done.get() + 1);
            Box::pin(async move {
                if shape.is_parity() {
                    me.sync_slot(group, bit as u16).await?;
                } else {
                    me.sync_region(group, bit, me.rt.user.get() == User::Trusting).await?;
                }
                Ok(true)
            })
        };
        self.pool.in_lanes(bits, shape.repair_bytes(), Rc::new(sync)).await?;
        if returned.is_empty() {
            return Ok(());
        }
        // Everything the columns missed is written; durable before we say so.
        self.pool.flush_disks().await?;
        {
            let mut map = self.pool.0.map.borrow_mut();
            let Some(g) = map.group_of(self.rt.id, group as u32, incarnation) else { return Ok(()) };
            for c in &mut g.columns {
                // The same attachment all along: one that left and returned meanwhile missed writes.
                let here = self.pool.disk(c.disk);
                let stayed = here.is_some_and(|d| d.online.get() && returned.iter().any(|r| Rc::ptr_eq(r, &d)));
                if c.stale && stayed {
                    c.stale = false;
                }
            }
            if shape.is_parity() && self.pool.is_whole(g) {
                g.dirty.clear_all();
            }
        }
        self.pool.commit().await
    }

    /// Brings the copies of a region that missed it up to date, from the first that did not. With `equalize`, because
    /// nobody can tell which is right, the first goes over all others where a crash may have left them different.
    pub(crate) async fn sync_region(&self, group: usize, bit: usize, equalize: bool) -> SpaceResult<()> {
        let part = self.region(group, bit);
        let _guard = self.lock_part(&part).await;
        let Some(rt) = self.rt.group_rt(group) else { return Ok(()) };
        if equalize && rt.suspect.borrow().get(bit) {
            return self.equalize(&rt, part, bit).await;
        }
        if self.needs_sync(group) { self.sync_pieces(part, false).await } else { Ok(()) }
    }

    /// For somebody who reads a region that a crash may have left different: what copies missed is not his work, and a
    /// disk that fails with that not his error.
    pub(crate) async fn equalize_region(&self, group: usize, bit: usize) -> SpaceResult<()> {
        let part = self.region(group, bit);
        let _guard = self.lock_part(&part).await;
        let Some(rt) = self.rt.group_rt(group) else { return Ok(()) };
        // Another may have done it while we waited.
        if rt.suspect.borrow().get(bit) { self.equalize(&rt, part, bit).await } else { Ok(()) }
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
        if !self.sync_part(part, equalize).await? {
            // No copy is whole: piece by piece, from wherever each can be read.
            for at in (0..part.len).step_by(BLOCK_BYTES as usize) {
                self.sync_part(Part { at: part.at + at, len: BLOCK_BYTES, ..part }, equalize).await?;
            }
        }
        Ok(())
    }

    /// What is read from now on has to be there after the next crash too, whichever disk that
    /// takes away: the copies are durable before the region counts as equal.
    async fn end_suspicion(&self, rt: &GroupRt, bit: usize) -> SpaceResult<()> {
        self.pool.flush_disks().await?;
        rt.suspect.borrow_mut().clear(bit);
        Ok(())
    }

    /// False: no copy of all of it can be read.
    async fn sync_part(&self, part: Part, equalize: bool) -> SpaceResult<bool> {
        let Some(b) = self.read_any_copy(part, |_| true).await else { return Ok(false) };
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
            let map = self.pool.0.map.borrow();
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
        let map = self.pool.0.map.borrow();
        map.group(self.rt.id, group).is_some_and(|g| g.columns.iter().any(|c| c.stale && self.pool.online(c.disk)))
    }

    /// Writes the columns of a slot that missed it.
    async fn sync_slot(&self, group: usize, slot: u16) -> SpaceResult<()> {
        let stripe = {
            let map = self.pool.0.map.borrow();
            let Some(g) = map.group(self.rt.id, group) else { return Ok(()) };
            g.stripes.find(slot)
        };
        let Some(stripe) = stripe else { return self.readers_leave(group, slot).await };
        let (first, end) = self.stripe_blocks(group, stripe);
        let guard = self.rt.stripe_locks.lock(first, end).await;
        let stays = {
            let map = self.pool.0.map.borrow();
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
            let map = self.pool.0.map.borrow();
            map.group(self.rt.id, group).is_some_and(|g| g.stripes.find(slot).is_none())
        };
        while rt.pins.is_held(slot) && is_left() {
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
            let map = self.pool.0.map.borrow();
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
