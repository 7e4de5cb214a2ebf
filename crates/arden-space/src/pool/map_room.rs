//! Whether the pool map has room for more in the slots of its disks. It is asked before the map grows: one that no slot holds
//! could not be written any more, not even to say that a disk has failed.

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::label::Areas;
use crate::map::layout::Provision;
use crate::map::mapcode::{NO_GROUP_BYTES, disk_bytes, group_most_bytes, most_bytes, space_bytes};
use crate::map::pool_map::SpaceRec;
use crate::pool::open_pool::Pool;

impl Pool {
    /// The bytes by which the longest that the map can become exceeds the smallest slot, when it gets `more`; 0: it has room.
    /// A disk that is away counts, because it may return, and so does one that joins.
    fn map_exceeds(&self, more: u64, joins: Option<Areas>) -> u64 {
        let map = self.0.map.read();
        let areas = map.disks.iter().map(|(&i, rec)| match self.disk(i) {
            Some(disk) => disk.areas,
            None => Areas::for_disk(rec.size_bytes, map.slab_bytes),
        });
        let areas: Vec<Areas> = areas.chain(joins).collect();
        let slot = areas.iter().map(|a| a.map_slot_bytes).min().unwrap_or(0);
        let log = areas.iter().map(|a| a.journal_bytes).max().unwrap_or(0);
        most_bytes(&map, log).saturating_add(more).saturating_sub(slot)
    }

    /// A group of the space may get slabs.
    pub(crate) fn map_has_room_for_group(&self, space: u32) -> SpaceResult<()> {
        let bytes = {
            let map = self.0.map.read();
            let rec = map.spaces.get(&space).ok_or(SpaceError::Closed)?;
            group_most_bytes(&rec.shape(map.slab_bytes)) - NO_GROUP_BYTES
        };
        if self.map_exceeds(bytes, None) == 0 { Ok(()) } else { Err(SpaceError::OutOfSpace) }
    }

    /// The space may get `groups` more; `is_new`, when the map does not have it yet. One of fixed size gets slabs for all
    /// of them. Where there are none, that is what its user is told.
    pub(crate) fn map_has_room_for_groups(&self, rec: &SpaceRec, groups: u64, is_new: bool) -> SpaceResult<()> {
        let (shape, free) = {
            let map = self.0.map.read();
            let alloc = self.0.alloc.borrow();
            (rec.shape(map.slab_bytes), map.disks.keys().map(|&d| alloc.free(d) as u64).sum::<u64>())
        };
        let get_slabs = rec.provision == Provision::Fixed && groups.saturating_mul(shape.width() as u64) <= free;
        let each = if get_slabs { group_most_bytes(&shape) } else { NO_GROUP_BYTES };
        let head = if is_new { space_bytes(rec) } else { 0 };
        let over = self.map_exceeds(groups.saturating_mul(each).saturating_add(head), None);
        refuse(over, "a smaller space, a larger interleave or a larger slab takes less of it")
    }

    /// The disk may join.
    pub(crate) fn map_has_room_for_disk(&self, name: &str, areas: Areas) -> SpaceResult<()> {
        let over = self.map_exceeds(disk_bytes(name), Some(areas));
        refuse(over, "a larger disk has more room for it")
    }
}

fn refuse(over: u64, hint: &str) -> SpaceResult<()> {
    if over == 0 {
        return Ok(());
    }
    Err(SpaceError::Refused(format!(
        "the pool map would need up to {over} bytes more than the smallest disk keeps for it; {hint}"
    )))
}
