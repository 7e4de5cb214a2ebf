//! Giving groups of a space their slabs.

use std::ops::Range;
use std::rc::Rc;

use arden_block::sync::join_all;
use arden_block::{IoError, LocalFuture};

use crate::base::bitmap::Bitmap;
use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::open_disk::DiskRt;
use crate::map::alloc::eligible;
use crate::map::pool_map::{Column, DiskState, Group, Shape};
use crate::pool::open_pool::{GroupRt, Pool};
use crate::state::map::MapChange;

impl Pool {
    /// Gives the groups their slabs, if they have none.
    pub(crate) async fn ensure_groups(&self, space: u32, groups: Range<usize>) -> SpaceResult<()> {
        // A disk that fails while its slab is made ready is no reason to fail the writer.
        for _ in 0..4 {
            if groups.clone().all(|g| self.group_mapped(space, g)) {
                return Ok(());
            }
            match self.make_groups(space, groups.clone()).await {
                Err(SpaceError::Device(_)) => {}
                other => return other,
            }
        }
        Err(SpaceError::Offline)
    }

    /// Slabs for a new group, and which of their disks are away. A pool that is short of disks
    /// gives a missing disk its part, which is out of date from the start: better a group
    /// without its full redundancy than a writer without room.
    fn choose_slabs(&self, space: u32) -> SpaceResult<(Shape, Vec<(u16, u32)>, Vec<u16>)> {
        let map = self.0.map.read();
        let rec = map.spaces.get(&space).ok_or(SpaceError::Closed)?;
        let (shape, columns) = (rec.shape(map.slab_bytes), usize::from(rec.columns));
        let mut disks = eligible(&map, |d| self.online(d));
        let missing = map.disks.iter().filter(|(_, d)| d.state == DiskState::Missing && !d.retire).map(|(&i, _)| i);
        let missing: Vec<u16> = missing.filter(|&d| !self.online(d)).take(rec.layout.tolerance()).collect();
        let mut alloc = self.0.alloc.borrow_mut();
        for away in 0..=missing.len() {
            if away > 0 {
                disks.push(missing[away - 1]);
            }
            let Some(slabs) = alloc.take_group(&disks, rec.layout, columns) else { continue };
            let copies = rec.layout.copies();
            let gone = |s: &(u16, u32)| missing.contains(&s.0);
            let served = if shape.is_parity() {
                slabs.iter().filter(|s| gone(s)).count() <= rec.layout.parity()
            } else {
                slabs.chunks(copies).all(|c| c.iter().any(|s| !gone(s)))
            };
            if served {
                return Ok((shape, slabs, missing));
            }
            slabs.iter().for_each(|&(d, s)| alloc.release(d, s));
        }
        Err(SpaceError::OutOfSpace)
    }

    async fn make_groups(&self, space: u32, groups: Range<usize>) -> SpaceResult<()> {
        let guard = self.0.alloc_lock.lock().await;
        let mut made = Vec::new();
        for group in groups {
            if self.group_mapped(space, group) {
                continue;
            }
            self.alive()?;
            // One that is there was not brought onto the disks by whoever made it.
            if self.0.map.read().group(space, group).is_none() {
                self.place_group(space, group).await?;
            }
            made.extend(self.space_rt(space).and_then(|s| s.group_rt(group)));
        }
        // The map is written whole: groups that others make meanwhile share its next writing.
        drop(guard);
        if !made.is_empty() {
            self.commit().await?;
            made.iter().for_each(|g| g.set_mapped());
        }
        Ok(())
    }

    /// Puts a new group into the map.
    async fn place_group(&self, space: u32, group: usize) -> SpaceResult<()> {
        self.map_has_room_for_group(space)?;
        let (shape, slabs, away) = match self.choose_slabs(space) {
            Err(SpaceError::OutOfSpace) => {
                let _one = self.no_trim().await;
                self.choose_slabs(space)?
            }
            chosen => chosen?,
        };
        if !shape.is_parity() {
            // New slabs hold what an earlier owner left; a mirror has no other way to tell.
            let mut zero: Vec<LocalFuture<(Rc<DiskRt>, bool)>> = Vec::new();
            for &(d, s) in slabs.iter().filter(|(d, _)| !away.contains(d)) {
                let Some(disk) = self.disk(d) else { continue };
                let at = self.slab_at(d, s);
                let len = shape.slab_bytes;
                zero.push(Box::pin(async move { (disk.clone(), disk.write_zeroes(at, len).await.is_ok()) }));
            }
            for (d, ok) in join_all(zero).await {
                // One that left and is back has lost the zeros, too.
                if !ok || !d.online.get() {
                    slabs.iter().for_each(|&(d, s)| self.0.alloc.borrow_mut().release(d, s));
                    self.fail_disk(&d, "could not be zeroed").await?;
                    return Err(SpaceError::Device(IoError::Media));
                }
            }
        }
        // A disk may have failed while we zeroed: its new column would never be marked.
        if slabs.iter().any(|&(d, _)| !self.online(d) && !away.contains(&d)) {
            slabs.iter().for_each(|&(d, s)| self.0.alloc.borrow_mut().release(d, s));
            return Err(SpaceError::Device(IoError::Gone));
        }
        // The space may have been deleted meanwhile.
        if self.0.map.read().spaces.get(&space).is_none_or(|s| group >= s.groups.len()) {
            slabs.iter().for_each(|&(d, s)| self.0.alloc.borrow_mut().release(d, s));
            return Err(SpaceError::Closed);
        }
        // Or another one took the last room in the map.
        if let Err(e) = self.map_has_room_for_group(space) {
            slabs.iter().for_each(|&(d, s)| self.0.alloc.borrow_mut().release(d, s));
            return Err(e);
        }
        let column = |(disk, slab)| Column { disk, slab, stale: away.contains(&disk), target: None };
        let columns: Vec<Column> = slabs.into_iter().map(column).collect();
        let mut dirty = Bitmap::new(shape.dirty_bits());
        if columns.iter().any(|c| c.stale) && !shape.is_parity() {
            // Its slab is not zeroed: when the disk returns it gets all of the group.
            dirty.set_all();
        }
        let incarnation = self.0.map.read().next_incarnation;
        let rec = Group { incarnation, columns, dirty, stripes: shape.no_stripes() };
        let made = self
            .space_rt(space)
            .map(|s| (GroupRt::new(&shape, &rec, s.views.gate(group), self.0.missed_room.clone(), false), s));
        self.0.map.apply(MapChange::GroupMade { space, group, rec });
        if let Some((rt, s)) = made {
            s.groups.insert(group, rt);
        }
        Ok(())
    }

    /// True when a writer may go on: a group that is only in memory would be gone after a crash,
    /// with what was acknowledged of it.
    fn group_mapped(&self, space: u32, group: usize) -> bool {
        self.space_rt(space).and_then(|s| s.group_rt(group)).is_some_and(|g| g.is_mapped())
    }
}
