//! What an administrator may change or see of an open pool beside its data: its name, warning
//! levels, grace time, where a space lies, how much room is left. Refuses to move data.

use arden_block::IoError;

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::label::{LABEL_AT, LABEL_BYTES, Label};
use crate::map::alloc::eligible;
use crate::map::layout::Layout;
use crate::map::pool_map::{DiskState, Shape};
use crate::pool::open_pool::Pool;
use crate::state::map::MapChange;

/// Where one column of a group lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnPlace {
    pub disk: u16,
    pub slab: u32,
    /// Out of date in the parts that are dirty.
    pub stale: bool,
    pub online: bool,
    /// The disk that the column is being moved to.
    pub moving_to: Option<u16>,
}

impl Pool {
    pub async fn rename(&self, name: &str) -> SpaceResult<()> {
        self.alive()?;
        if name.is_empty() || name.len() > 64 {
            return Err(SpaceError::Refused("a pool's name has 1 to 64 bytes".into()));
        }
        self.0.map.apply(MapChange::Named(name.to_string()));
        self.commit().await
    }

    /// Warns from these fill levels on, in percent, ascending.
    pub async fn set_warning_levels(&self, percent: [u8; 3]) -> SpaceResult<()> {
        self.alive()?;
        if percent[0] > percent[1] || percent[1] > percent[2] || percent[0] == 0 || percent[2] > 100 {
            return Err(SpaceError::Refused("warning levels are three ascending percentages from 1 to 100".into()));
        }
        self.0.map.apply(MapChange::WarningLevels(percent));
        self.commit().await
    }

    pub fn warning_levels(&self) -> [u8; 3] {
        self.0.map.read().warn_percent
    }

    /// How long a missing disk is waited for before others take its place.
    pub fn set_grace_ms(&self, grace_ms: u64) {
        self.0.background.set_grace_ms(grace_ms);
    }

    /// While set, long work ends with [`SpaceError::Cancelled`] at its next step.
    pub fn set_cancelled(&self, cancelled: bool) {
        self.0.background.set_cancelled(cancelled);
    }

    /// A disk that was to be emptied stays.
    pub async fn keep_disk(&self, disk: u16) -> SpaceResult<()> {
        self.alive()?;
        if !self.0.map.read().disks.contains_key(&disk) {
            return Err(SpaceError::NotFound(format!("no disk {disk}")));
        }
        self.0.map.apply(MapChange::DiskStays(disk));
        self.commit().await
    }

    /// Lets go of the device of a disk that failed, so that it can be opened anew. Nothing
    /// happens to a disk in use.
    pub fn release_device(&self, disk: u16) {
        if self.online(disk) {
            return;
        }
        let gone = self.0.disks.borrow_mut().remove(&disk);
        if gone.is_some_and(|d| d.dev.lost_content()) {
            self.distrust(disk, false);
        }
    }

    /// Disks in use whose labels are not theirs any more: somebody else wrote to them. A disk
    /// that is just joining may be among them once.
    pub async fn foreign_disks(&self) -> Vec<u16> {
        let disks: Vec<_> = self.0.disks.borrow().values().filter(|d| d.online.get()).cloned().collect();
        let mut out = Vec::new();
        for d in disks {
            let (pool_id, disk_id) = {
                let map = self.0.map.read();
                (map.pool_id, map.disks.get(&d.index).map(|r| r.id))
            };
            let mut ours = false;
            for at in LABEL_AT {
                ours |= match d.read(at, LABEL_BYTES).await {
                    Ok(b) => {
                        let label = Label::decode(&b).ok().flatten();
                        label.is_some_and(|l| l.pool_id == pool_id && Some(l.disk_id) == disk_id)
                    }
                    Err(IoError::Gone) if d.online.get() => {
                        let _ = self.fail_disk(&d, "gone").await;
                        true
                    }
                    Err(_) => true,
                };
            }
            if !ours {
                out.push(d.index);
            }
        }
        out
    }

    /// Takes a disk out of service; its place is taken as if it had failed.
    pub async fn fail(&self, disk: u16, why: &str) -> SpaceResult<()> {
        match self.disk(disk) {
            Some(d) => self.fail_disk(&d, why).await,
            None => Ok(()),
        }
    }

    /// The columns of each group that has slabs, in order.
    pub fn space_map(&self, id: u32) -> SpaceResult<Vec<(usize, Vec<ColumnPlace>)>> {
        let map = self.0.map.read();
        let rec = map.spaces.get(&id).ok_or_else(|| SpaceError::NotFound(format!("no space {id}")))?;
        let place = |c: &crate::map::pool_map::Column| ColumnPlace {
            disk: c.disk,
            slab: c.slab,
            stale: c.stale,
            online: self.online(c.disk),
            moving_to: c.target.map(|t| t.0),
        };
        let groups = rec.groups.iter().enumerate().filter_map(|(i, g)| Some((i, g.as_ref()?)));
        Ok(groups.map(|(i, g)| (i, g.columns.iter().map(place).collect())).collect())
    }

    /// Bytes that a new space of this shape could hold in the slabs that are free now.
    pub fn room_for(&self, layout: Layout, columns: Option<usize>, interleave: u64) -> SpaceResult<u64> {
        let map = self.0.map.read();
        let disks = map.disks.values().filter(|d| d.state == DiskState::Active).count();
        let columns = columns.unwrap_or_else(|| layout.default_columns(disks));
        layout.check(disks, columns)?;
        let shape = Shape::new(layout, columns, interleave, map.slab_bytes);
        let alloc = self.0.alloc.borrow();
        let mut free: Vec<usize> = eligible(&map, |d| self.online(d)).into_iter().map(|d| alloc.free(d)).collect();
        let mut groups = 0;
        // As the allocator does: always from the disks with the most free slabs.
        loop {
            free.sort_unstable_by_key(|&n| std::cmp::Reverse(n));
            if free.get(shape.width() - 1).is_none_or(|&n| n == 0) {
                return Ok(groups * shape.group_bytes);
            }
            free[..shape.width()].iter_mut().for_each(|n| *n -= 1);
            groups += 1;
        }
    }

    /// How far the present scrub is: the space and the group that it reads.
    pub fn scrub_at(&self) -> (u32, usize) {
        self.0.background.scrub_at()
    }

    /// Events so far, those included that [`crate::pool::status::PoolStatus::events`] no longer holds.
    pub fn event_count(&self) -> u64 {
        self.0.events.count()
    }
}
