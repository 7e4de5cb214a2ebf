//! Moving columns between disks: repair of what a lost disk held, emptying a disk that is to
//! leave, hot spares, and rebalancing. A move copies one column of one group to a fresh slab
//! while writes go to both; one commit of the map ends it.

use crate::base::error::{SpaceError, SpaceResult};
use crate::map::pool_map::{DiskState, Group, UNWRITTEN};
use crate::pool::open_pool::{Pool, User};
use crate::space::mirror::pieces;
use crate::space::open_space::{Part, Space};
use crate::state::map::{GroupChange, MapChange};
use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, Buf, IoError, LocalFuture};
use std::rc::Rc;

/// What a pass of moves did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MoveReport {
    pub moved: usize,
    /// Columns for which no other slab was free, or no source could be read.
    pub left: usize,
}

impl Pool {
    /// What happens by itself: after the grace time others take the place of a lost disk;
    /// disks that retire are emptied.
    pub(crate) async fn background_moves(&self) -> SpaceResult<()> {
        if self.0.background.is_moving() {
            return Ok(());
        }
        let _moving = self.0.background.moving().await;
        let overdue = self.0.departures.overdue(self.0.rt.now_ns(), self.0.background.grace_ns());
        for d in overdue {
            if self.holds_columns(d) {
                self.activate_spare().await?;
                self.move_off(d, "repair").await?;
            }
        }
        let retiring: Vec<u16> = {
            let map = self.0.map.read();
            map.disks.iter().filter(|(_, d)| d.state == DiskState::Retiring).map(|(&i, _)| i).collect()
        };
        for d in retiring {
            if self.holds_columns(d) {
                self.move_off(d, "drain").await?;
            }
        }
        Ok(())
    }

    /// Rebuilds now what missing disks held, without waiting for the grace time.
    pub async fn repair(&self) -> SpaceResult<MoveReport> {
        self.resync().await?;
        let missing: Vec<u16> = {
            let map = self.0.map.read();
            map.disks.iter().filter(|(_, d)| d.state == DiskState::Missing).map(|(&i, _)| i).collect()
        };
        let mut report = MoveReport::default();
        let _moving = self.0.background.moving().await;
        for d in missing {
            if self.holds_columns(d) {
                self.activate_spare().await?;
                let r = self.move_off(d, "repair").await?;
                report.moved += r.moved;
                report.left += r.left;
            }
        }
        Ok(report)
    }

    /// Marks a disk for emptying; nothing new goes to it.
    pub async fn retire(&self, disk: u16) -> SpaceResult<()> {
        if !self.0.map.read().disks.contains_key(&disk) {
            return Err(SpaceError::NotFound(format!("no disk {disk}")));
        }
        self.0.map.apply(MapChange::DiskRetires(disk));
        self.commit().await
    }

    /// Empties a disk and takes it out of the pool.
    pub async fn remove_disk(&self, disk: u16) -> SpaceResult<()> {
        self.retire(disk).await?;
        let moving = self.0.background.moving().await;
        let r = self.move_off(disk, "drain").await?;
        drop(moving);
        if r.left > 0 || self.holds_columns(disk) {
            return Err(SpaceError::Refused(format!(
                "disk {disk} still holds {} columns that have no room elsewhere; add a disk, then remove it again",
                self.columns_on(disk)
            )));
        }
        if self.0.map.read().journal.disks.contains(&disk) {
            self.leave_journal(disk).await?;
        }
        let _removal = self.0.removal.lock().await;
        let gone = {
            let map = self.0.map.read();
            // Since we looked it may have been kept and given slabs, and the log may have come back.
            let empty = map.disks.get(&disk).is_some_and(|d| d.retire) && !map.holds_columns(disk);
            if !empty || map.journal.disks.contains(&disk) {
                return Err(SpaceError::Refused(format!("disk {disk} was taken into use again; remove it again")));
            }
            drop(map);
            self.0.map.apply(MapChange::DiskRemoved(disk));
            self.0.alloc.borrow_mut().remove_disk(disk);
            self.0.departures.disk_is_back(disk);
            self.0.disks.borrow_mut().remove(&disk)
        };
        self.commit().await?;
        // From now on it may be somebody else's: nothing of it is discarded any more.
        drop(self.no_trim().await);
        if let Some(d) = gone.filter(|d| d.online.get()) {
            // Its label goes last: until the commit it is still a member.
            for at in crate::disk::label::LABEL_AT {
                let _ = d.write(at, Buf::zeroed(crate::disk::label::LABEL_BYTES).share(), true).await;
            }
        }
        Ok(())
    }

    /// Spreads slabs so that every disk is about equally full.
    pub async fn rebalance(&self) -> SpaceResult<MoveReport> {
        let result = self.rebalance_columns().await;
        self.0.events.finished("rebalance");
        result
    }

    async fn rebalance_columns(&self) -> SpaceResult<MoveReport> {
        let mut report = MoveReport::default();
        let _moving = self.0.background.moving().await;
        loop {
            self.alive()?;
            let Some((from, to)) = self.imbalance() else { return Ok(report) };
            let Some((space, group, column)) = self.movable(from, to) else { return Ok(report) };
            let s = self.space(space)?;
            match s.move_column(group, column, to).await {
                Ok(()) => report.moved += 1,
                Err(SpaceError::Cancelled) => return Err(SpaceError::Cancelled),
                // Or the space was deleted.
                Err(SpaceError::Closed) => self.alive()?,
                Err(_) => {
                    report.left += 1;
                    return Ok(report);
                }
            }
            self.0.events.progress("rebalance", report.moved as u64, 0);
        }
    }

    fn imbalance(&self) -> Option<(u16, u16)> {
        let map = self.0.map.read();
        let alloc = self.0.alloc.borrow();
        let mut full: Vec<(u64, u16)> = map
            .disks
            .iter()
            .filter(|(i, d)| d.state == DiskState::Active && self.online(**i) && d.slabs > 0)
            .map(|(&i, d)| ((u64::from(d.slabs) - alloc.free(i) as u64) * 1000 / u64::from(d.slabs), i))
            .collect();
        full.sort_unstable();
        let (low, high) = (full.first()?, full.last()?);
        let slab_part = 2000 / u64::from(map.disks.get(&low.1)?.slabs.max(1));
        (high.0 - low.0 > slab_part.max(20)).then_some((high.1, low.1))
    }

    /// A column on `from` of a group that has nothing on `to`.
    fn movable(&self, from: u16, to: u16) -> Option<(u32, usize, usize)> {
        let map = self.0.map.read();
        for s in map.spaces.values() {
            for (gi, g) in s.groups.iter().enumerate() {
                let Some(g) = g else { continue };
                if g.columns.iter().any(|c| c.disk == to || c.target.is_some_and(|t| t.0 == to)) {
                    continue;
                }
                if let Some(c) = g.columns.iter().position(|c| c.disk == from && !c.stale) {
                    return Some((s.id, gi, c));
                }
            }
        }
        None
    }

    pub(crate) fn holds_columns(&self, disk: u16) -> bool {
        self.0.map.read().holds_columns(disk)
    }

    fn columns_on(&self, disk: u16) -> usize {
        self.0.map.read().columns().filter(|c| c.disk == disk).count()
    }

    async fn activate_spare(&self) -> SpaceResult<()> {
        let spare = {
            let map = self.0.map.read();
            map.disks.iter().find(|(i, d)| d.state == DiskState::Spare && self.online(**i)).map(|(&i, _)| i)
        };
        match spare {
            Some(i) => {
                self.0.map.apply(MapChange::SpareTakesOver(i));
                self.event(format!("spare disk {i} takes over"));
                self.commit().await
            }
            None => Ok(()),
        }
    }

    /// Moves every column off `disk`.
    pub(crate) async fn move_off(&self, disk: u16, what: &'static str) -> SpaceResult<MoveReport> {
        let result = self.move_columns_off(disk, what).await;
        self.0.events.finished(what);
        result
    }

    async fn move_columns_off(&self, disk: u16, what: &'static str) -> SpaceResult<MoveReport> {
        let list: Vec<(u32, usize, usize)> = {
            let map = self.0.map.read();
            let mut list = Vec::new();
            for s in map.spaces.values().filter(|s| s.layout.tolerance() > 0 || what == "drain") {
                for (gi, g) in s.groups.iter().enumerate() {
                    let Some(g) = g else { continue };
                    list.extend((0..g.columns.len()).filter(|&c| g.columns[c].disk == disk).map(|c| (s.id, gi, c)));
                }
            }
            list
        };
        let total = list.len() as u64;
        let mut report = MoveReport::default();
        for (n, (space, group, column)) in list.into_iter().enumerate() {
            self.0.events.progress(what, n as u64, total);
            let Ok(s) = self.space(space) else { continue };
            // Given back meanwhile, or before the next attempt ends.
            let is_there = || {
                let map = self.0.map.read();
                map.group(space, group).is_some_and(|g| g.columns[column].disk == disk)
            };
            let Some(to) = self.place_for(space, group, column).filter(|_| is_there()) else {
                report.left += usize::from(is_there());
                continue;
            };
            match s.move_column(group, column, to).await {
                Ok(()) => report.moved += 1,
                Err(SpaceError::Cancelled) => return Err(SpaceError::Cancelled),
                // Or the space was deleted.
                Err(SpaceError::Closed) => self.alive()?,
                Err(_) => report.left += usize::from(is_there()),
            }
        }
        Ok(report)
    }

    /// The disk with the most free slabs that holds no other part of the group.
    fn place_for(&self, space: u32, group: usize, column: usize) -> Option<u16> {
        let map = self.0.map.read();
        let g = map.group(space, group)?;
        let rec = map.spaces.get(&space)?;
        let alloc = self.0.alloc.borrow();
        let k = rec.layout.copies();
        let fits = |d: u16, strict: bool| {
            g.columns.iter().enumerate().all(|(i, c)| {
                let matters = strict || rec.layout.parity() > 0 || i / k == column / k;
                // A column on its way somewhere counts where it will be, too.
                (c.disk != d && c.target.is_none_or(|t| t.0 != d)) || !matters
            })
        };
        let mut list = crate::map::alloc::eligible(&map, |d| self.online(d));
        list.retain(|&d| alloc.free(d) > 0);
        list.sort_by_key(|&d| std::cmp::Reverse(alloc.free(d)));
        list.iter().copied().find(|&d| fits(d, true)).or_else(|| list.iter().copied().find(|&d| fits(d, false)))
    }
}

impl Space {
    /// Copies (or rebuilds) one column of a group to a slab on `to`, and makes it the column. A group with too few
    /// columns here stays as it is: it waits for its disks, and what those hold must not become out of date.
    pub(crate) async fn move_column(&self, group: usize, column: usize, to: u16) -> SpaceResult<()> {
        let p = &self.pool.0;
        let Some(slab) = p.alloc.borrow_mut().take_on(to) else { return Err(SpaceError::OutOfSpace) };
        let incarnation = {
            let map = p.map.read();
            match map.group(self.rt.id, group) {
                Some(g) if !self.pool.group_usable(&self.rt.shape, g) => {
                    self.pool.release_slab(to, slab);
                    return Err(SpaceError::Offline);
                }
                Some(g) if g.columns[column].target.is_none() && self.pool.online(to) => g.incarnation,
                _ => {
                    self.pool.release_slab(to, slab);
                    return Err(SpaceError::Refused("the column is being moved already".into()));
                }
            }
        };
        p.map.apply_to(self.rt.id, group, &GroupChange::MoveBegins { column, to: (to, slab) });
        tracing::trace!("group {group} column {column} goes to disk {to} slab {slab}");
        let _hold = self.pool.use_slab(to, slab);
        let copied = self.copy_column(group, column, (to, slab)).await;
        let flushed = match copied {
            Ok(()) => self.pool.flush_disks().await,
            Err(e) => Err(e),
        };
        let old = {
            let map = p.map.read();
            let Some(g) = map.group_of(self.rt.id, group, incarnation) else { return Err(SpaceError::Offline) };
            let flushed = match self.pool.group_usable(&self.rt.shape, g) {
                true => flushed,
                false => flushed.and(Err(SpaceError::Offline)),
            };
            let c = &g.columns[column];
            if c.target != Some((to, slab)) {
                // The new disk failed on the way; its slab was given back then.
                return Err(SpaceError::Offline);
            }
            let old = (c.disk, c.slab);
            drop(map);
            if let Err(e) = flushed {
                p.map.apply_to(self.rt.id, group, &GroupChange::MoveEnds { column });
                self.pool.release_slab(to, slab);
                return Err(e);
            }
            // Until the map that says so is durable, writes go to the old place too: after a
            // crash it may be the one that counts.
            p.map.apply_to(self.rt.id, group, &GroupChange::ColumnMoved { column, to: (to, slab) });
            old
        };
        self.pool.commit().await?;
        self.end_move(group, incarnation, column, old);
        Ok(())
    }

    /// The map that says where the column lies is durable.
    fn end_move(&self, group: usize, incarnation: u64, column: usize, old: (u16, u32)) {
        let (id, map) = (self.rt.id, &self.pool.0.map);
        let here = |holds: &dyn Fn(&Group) -> bool| map.read().group_of(id, group, incarnation).is_some_and(holds);
        if here(&|g| g.columns[column].target == Some(old)) {
            map.apply_to(id, group, &GroupChange::MoveEnds { column });
            self.pool.release_slab(old.0, old.1);
        }
        if self.rt.shape.is_parity() && here(&|g| self.pool.is_in_place(g)) {
            map.apply_to(id, group, &GroupChange::AllClean);
        } else if let Some(rt) = self.rt.group_rt(group).filter(|_| here(&|g| self.pool.is_whole(g))) {
            rt.regions.forget_missed();
        }
    }

    async fn copy_column(&self, group: usize, column: usize, to: (u16, u32)) -> SpaceResult<()> {
        let shape = self.rt.shape;
        let parts = if shape.is_parity() { 0..shape.slots } else { 0..shape.dirty_bits() };
        let me = self.clone();
        let copy = move |n: usize| -> LocalFuture<SpaceResult<bool>> {
            let me = me.clone();
            Box::pin(async move {
                if shape.is_parity() {
                    return me.copy_slot(group, n as u16).await;
                }
                me.copy_region(group, column, n, to).await.map(|()| true)
            })
        };
        self.pool.in_lanes(parts.collect(), shape.repair_bytes(), Rc::new(copy)).await
    }

    async fn copy_region(&self, group: usize, column: usize, bit: usize, to: (u16, u32)) -> SpaceResult<()> {
        let shape = self.rt.shape;
        let part = self.region(group, bit);
        if self.rt.group_rt(group).is_some_and(|g| g.regions.is_suspect(bit)) {
            self.sync_region(group, bit, self.rt.user.get() == User::Trusting).await?;
        }
        let _guard = self.lock_part(&part).await;
        self.pool.alive()?;
        let copies = shape.layout.copies();
        let Some(disk) = self.pool.disk(to.0) else { return Err(SpaceError::Offline) };
        // All at once: a piece that came later than the ones behind it would cost the disk a turn.
        let mut all: Vec<LocalFuture<SpaceResult<()>>> = Vec::new();
        for p in pieces(&shape, part.at, part.len).into_iter().filter(|p| p.column == column / copies) {
            let one = Part { group, at: p.at, len: p.len, from: 0 };
            let to_at = disk.areas.data_at + u64::from(to.1) * shape.slab_bytes + p.slab_at;
            let (me, disk) = (self.clone(), disk.clone());
            all.push(Box::pin(async move {
                let b = me.read_to_move(one, column % copies).await?;
                if disk.write(to_at, b.share(), false).await.is_err() {
                    me.pool.fail_disk(&disk, "write failed").await?;
                    return Err(SpaceError::Offline);
                }
                Ok(())
            }));
        }
        join_all(all).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// What a copy that moves holds, and what another one holds where it cannot be read. Copies may differ, one of a disk that
    /// lies from a good one: whoever verifies what he reads needs each of them to stay what it is.
    async fn read_to_move(&self, part: Part, copy: usize) -> SpaceResult<Buf> {
        match self.read_choice(part, copy).await {
            Ok(own) => return Ok(own),
            Err(SpaceError::Device(IoError::Media)) => {}
            Err(_) => return self.read_any_copy(part, |_| true).await,
        }
        let mut buf = Buf::new(part.len as usize);
        for (at, out) in (part.at..).step_by(BLOCK_BYTES as usize).zip(buf.chunks_exact_mut(BLOCK_BYTES as usize)) {
            let block = Part { at, len: BLOCK_BYTES, ..part };
            let content = match self.read_choice(block, copy).await {
                Ok(own) => own,
                Err(_) => self.read_any_copy(block, |_| true).await?,
            };
            out.copy_from_slice(&content);
        }
        Ok(buf)
    }

    /// Copies what a slot holds to the targets of its group. False when it holds nothing.
    async fn copy_slot(&self, group: usize, slot: u16) -> SpaceResult<bool> {
        let stripe = {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, group) else { return Err(SpaceError::Closed) };
            g.stripes.find(slot)
        };
        let Some(stripe) = stripe else { return self.readers_leave(group, slot).await.map(|()| false) };
        let (first, end) = self.stripe_blocks(group, stripe);
        let guard = self.rt.stripe_locks.lock(first, end).await;
        self.pool.alive()?;
        let stays = {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, group) else { return Err(SpaceError::Closed) };
            g.stripes.get(stripe) == Some(slot) && slot != UNWRITTEN
        };
        if stays {
            return self.write_missing(group, slot, true).await.map(|()| true);
        }
        // Moved meanwhile: the move wrote to the target too.
        drop(guard);
        self.readers_leave(group, slot).await.map(|()| false)
    }
}
