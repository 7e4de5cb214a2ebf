//! Making, growing and deleting spaces.

use std::rc::Rc;

use arden_block::BLOCK_BYTES;

use crate::base::error::{SpaceError, SpaceResult};
use crate::map::layout::{Layout, Provision};
use crate::map::pool_map::{DiskState, SpaceRec};
use crate::pool::open_pool::{Pool, SpaceRt};
use crate::space::open_space::Space;
use crate::state::map::MapChange;

/// So many groups of a new space of fixed size are made with the first writing of the map.
const FIRST_GROUPS: usize = 16;

impl Pool {
    /// Makes a space. `columns` and `interleave` as the layout's rules allow.
    pub async fn create_space(
        &self,
        name: &str,
        layout: Layout,
        columns: Option<usize>,
        interleave: u64,
        size_bytes: u64,
        provision: Provision,
    ) -> SpaceResult<Space> {
        self.alive()?;
        let id = {
            let map = self.0.map.read();
            let disks = map.disks.values().filter(|d| d.state == DiskState::Active).count();
            let columns = columns.unwrap_or_else(|| layout.default_columns(disks));
            layout.check(disks, columns)?;
            if name.is_empty() || name.len() > 64 || map.spaces.values().any(|s| s.name == name) {
                return Err(SpaceError::Refused("a space needs a name of its own, of 1 to 64 bytes".into()));
            }
            if !interleave.is_power_of_two() || interleave < BLOCK_BYTES || interleave * 4 > map.slab_bytes {
                return Err(SpaceError::Refused(format!(
                    "the interleave is a power of two, at least 4k and at most a quarter of the slab ({} bytes)",
                    map.slab_bytes
                )));
            }
            if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK_BYTES) {
                return Err(SpaceError::Refused("the size of a space is a multiple of 4096".into()));
            }
            let id = map.next_space;
            let mut rec = SpaceRec {
                id,
                name: name.to_string(),
                layout,
                columns: columns as u16,
                interleave,
                size_bytes,
                provision,
                groups: Vec::new(),
            };
            let shape = rec.shape(map.slab_bytes);
            drop(map);
            let groups = size_bytes.div_ceil(shape.group_bytes);
            self.map_has_room_for_groups(&rec, groups, true)?;
            rec.groups.resize(groups as usize, None);
            self.0.map.apply(MapChange::SpaceMade(rec));
            let rt = Rc::new(SpaceRt::new(id, shape, &self.0.views));
            self.0.spaces.borrow_mut().insert(id, rt);
            id
        };
        let made = self.finish_create(id, provision).await;
        if let Err(e) = made {
            self.delete_space(id).await?;
            return Err(e);
        }
        self.space(id)
    }

    async fn finish_create(&self, id: u32, provision: Provision) -> SpaceResult<()> {
        self.reform_journal_if_short().await?;
        self.commit().await?;
        if provision == Provision::Fixed {
            let n = self.0.map.read().spaces.get(&id).map_or(0, |s| s.groups.len());
            // The map is written whole each time: ever more groups share one writing of it.
            let mut done = 0;
            while done < n {
                let upto = (done * 2).max(FIRST_GROUPS).min(n);
                self.ensure_groups(id, done..upto).await?;
                done = upto;
            }
        }
        Ok(())
    }

    /// Deletes a space and frees its slabs.
    pub async fn delete_space(&self, id: u32) -> SpaceResult<()> {
        self.alive()?;
        if !self.0.map.read().spaces.contains_key(&id) {
            return Err(SpaceError::NotFound(format!("no space {id}")));
        }
        let gone = self.0.map.apply(MapChange::SpaceDeleted(id));
        // Until a map without it is durable a crash brings all of it back, and what of it was in memory alone is gone: nothing
        // is acknowledged to anybody, as when a disk has left.
        self.0.departures.note();
        let space = self.0.spaces.borrow_mut().remove(&id);
        {
            let mut deleted = self.0.deleted.borrow_mut();
            deleted.retain(|s| s.strong_count() > 0);
            deleted.extend(space.iter().map(Rc::downgrade));
        }
        self.commit().await?;
        if let Some(s) = space {
            // Changes in place that wait for disks would keep the log for as long as somebody has the space open. Until now
            // a crash would have needed them.
            s.groups.all().iter().for_each(|(_, g)| g.slots.retain_patches(|_| false));
        }
        self.give_back(gone);
        Ok(())
    }
}

impl Space {
    /// Makes the space larger, while it is in use.
    ///
    /// # Errors
    /// [`SpaceError::OutOfSpace`] when there are no slabs for more of a space of fixed size: it stays as large as it was.
    pub async fn grow(&self, size_bytes: u64) -> SpaceResult<()> {
        let (old_bytes, provision) = {
            let map = self.pool.0.map.read();
            let rec = map.spaces.get(&self.rt.id).ok_or(SpaceError::Closed)?;
            if size_bytes < rec.size_bytes || !size_bytes.is_multiple_of(BLOCK_BYTES) {
                return Err(SpaceError::Refused("a space only grows, by multiples of 4096".into()));
            }
            let groups = size_bytes.div_ceil(self.rt.shape.group_bytes);
            self.pool.map_has_room_for_groups(rec, groups.saturating_sub(rec.groups.len() as u64), false)?;
            (rec.size_bytes, rec.provision)
        };
        self.resize(size_bytes);
        let grown = self.pool.finish_create(self.rt.id, provision).await;
        if grown == Err(SpaceError::OutOfSpace) {
            self.shrink_back(old_bytes).await?;
        }
        grown
    }

    /// Nobody was told that it has grown.
    async fn shrink_back(&self, size_bytes: u64) -> SpaceResult<()> {
        if !self.pool.0.map.read().spaces.contains_key(&self.rt.id) {
            return Err(SpaceError::Closed);
        }
        let gone = self.resize(size_bytes);
        let groups = size_bytes.div_ceil(self.rt.shape.group_bytes);
        self.rt.groups.truncate(groups as usize);
        // What somebody wrote there all the same.
        let behind = groups * self.rt.shape.group_bytes / BLOCK_BYTES..u64::MAX;
        self.rt.overlay.borrow_mut().remove_upto(behind.start, behind.end, u64::MAX);
        self.rt.logged.forget(behind);
        self.pool.commit().await?;
        self.pool.give_back(gone);
        Ok(())
    }

    /// The slabs that the space does not have any more.
    fn resize(&self, size_bytes: u64) -> Vec<(u16, u32)> {
        let groups = size_bytes.div_ceil(self.rt.shape.group_bytes) as usize;
        self.pool.0.map.apply(MapChange::SpaceSized { space: self.rt.id, size_bytes, groups })
    }
}
