//! Resync: finds the groups whose copies missed something or may differ after a crash, has them brought up to date, and
//! forgets that regions were dirty. Stands back for foreground I/O.

use std::cell::Cell;
use std::rc::Rc;

use arden_block::LocalFuture;

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::open_disk::DiskRt;
use crate::map::pool_map::Column;
use crate::pool::open_pool::{Pool, User};
use crate::space::open_space::Space;
use crate::state::map::GroupChange;

impl Pool {
    /// Brings every stale column whose disk is back up to date, and every region that a crash may have left different
    /// where whoever uses the space cannot tell a good copy from another.
    pub async fn resync(&self) -> SpaceResult<()> {
        for s in self.open_spaces() {
            let groups: Vec<usize> = s.rt.groups.numbers();
            for g in groups {
                // A disk that fails meanwhile ends the work on this group, not on the others.
                match s.resync_group(g).await {
                    Err(SpaceError::Cancelled) => return Err(SpaceError::Cancelled),
                    // Or the space was deleted.
                    Err(SpaceError::Closed) => self.alive()?,
                    _ => {}
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
            for (gi, rt) in s.rt.groups.all() {
                let map = self.0.map.read();
                let Some(g) = map.group(s.rt.id, gi) else { continue };
                let whole = self.is_whole(g);
                if !whole || !g.dirty.any() || rt.regions.any_suspect() {
                    continue;
                }
                let rested = rt.regions.take_rested(g.dirty.ones());
                found.extend(rested.into_iter().map(|bit| (s.rt.id, gi, g.incarnation, bit)));
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        self.flush_disks().await?;
        for (space, gi, incarnation, bit) in found {
            let Some(rt) = self.space_rt(space).and_then(|s| s.group_rt(gi)) else { continue };
            let whole = self.0.map.read().group_of(space, gi, incarnation).is_some_and(|g| self.is_whole(g));
            if whole && rt.regions.is_rested(bit) {
                self.0.map.apply_to(space, gi, &GroupChange::Clean(bit as u32));
                rt.regions.forget_mark(bit);
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
            let map = self.pool.0.map.read();
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
        let suspicious = self.rt.user.get() == User::Trusting && rt.regions.any_suspect();
        if returned.is_empty() && !suspicious {
            return Ok(());
        }
        let bits = {
            let map = self.pool.0.map.read();
            let dirty = map.group(self.rt.id, group).map_or_else(Vec::new, |g| g.dirty.ones());
            if returned.is_empty() { rt.regions.suspects() } else { dirty }
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
        let (id, map) = (self.rt.id, &self.pool.0.map);
        // The same attachment all along: one that left and returned meanwhile missed writes.
        let stayed = |c: &Column| {
            let here = self.pool.disk(c.disk);
            here.is_some_and(|d| d.online.get() && returned.iter().any(|r| Rc::ptr_eq(r, &d)))
        };
        let columns: Vec<usize> = {
            let map = map.read();
            let Some(g) = map.group_of(id, group, incarnation) else { return Ok(()) };
            g.columns.iter().enumerate().filter(|(_, c)| c.stale && stayed(c)).map(|(i, _)| i).collect()
        };
        map.apply_to(id, group, &GroupChange::UpToDate { columns: &columns });
        self.pool.outdate_absent_of(&self.rt, group);
        let whole = map.read().group(id, group).is_some_and(|g| self.pool.is_whole(g));
        if shape.is_parity() && whole {
            map.apply_to(id, group, &GroupChange::AllClean);
        } else if whole {
            rt.regions.forget_missed();
        }
        self.pool.commit().await
    }
}
