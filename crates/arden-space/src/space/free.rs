//! Giving slabs back: a discard that covers a whole group of a thin space takes the group out of the map, and when a map
//! without it is durable its slabs are free. Owns who has to be waited for before. What a crash leaves at each step is in
//! `docs/on-disk-space.md`.

use std::rc::Rc;

use arden_block::BLOCK_BYTES;

use crate::base::error::SpaceResult;
use crate::map::layout::Provision;
use crate::pool::open_pool::GroupRt;
use crate::space::open_space::{Part, Space};
use crate::state::map::MapChange;
use crate::state::trims::Slab;

/// How often a discard looks whether a group is in use, 0.1 ms each, before it writes zeros instead.
const LOOKS_MAX: u32 = 20_000;
const LOOK_NS: u64 = 100_000;

/// Keeps a group in the map for as long as it lives: whoever reads or writes on behalf of a user.
pub(crate) struct Hold(Rc<GroupRt>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Space {
    /// The group as it is now; `None` when it has no slabs that a crash would leave it.
    pub(crate) fn hold(&self, group: usize) -> Option<Hold> {
        let rt = self.rt.group_rt(group).filter(|g| g.is_mapped())?;
        rt.hold();
        Some(Hold(rt))
    }

    /// Gives the groups of these parts their slabs, and keeps them.
    pub(crate) async fn hold_all(&self, list: &[Part]) -> SpaceResult<Vec<Hold>> {
        let (Some(first), Some(last)) = (list.first(), list.last()) else { return Ok(Vec::new()) };
        loop {
            self.pool.ensure_groups(self.rt.id, first.group..last.group + 1).await?;
            // One may be gone again before the next is made.
            if let Some(holds) = list.iter().map(|p| self.hold(p.group)).collect() {
                return Ok(holds);
            }
        }
    }

    /// In what pieces the space gives slabs back, when it does.
    pub fn piece_bytes(&self) -> Option<u64> {
        let map = self.pool.0.map.read();
        let rec = map.spaces.get(&self.rt.id)?;
        (rec.provision == Provision::Thin).then_some(self.rt.shape.group_bytes)
    }

    /// Free bytes of the file systems whose files are disks of the pool, the least of them; `None` when no disk is a file.
    pub fn room_of_files(&self) -> Option<u64> {
        self.pool.0.disks.borrow().values().filter_map(|disk| disk.dev.room_of_files()).min()
    }

    /// The pieces, by number, that have slabs now.
    pub fn pieces_held(&self) -> Vec<u64> {
        self.rt.groups.numbers().into_iter().map(|g| g as u64).collect()
    }

    /// Gives back what these parts cover whole; the parts that are left.
    pub(crate) async fn free_groups(&self, list: Vec<Part>) -> SpaceResult<Vec<Part>> {
        let (mut left, mut slabs) = (Vec::new(), Vec::new());
        for p in list {
            match self.take_out(&p).await {
                Some(s) => slabs.extend(s),
                None => left.push(p),
            }
        }
        if !slabs.is_empty() {
            self.pool.commit().await?;
            self.pool.give_back(slabs);
        }
        Ok(left)
    }

    async fn take_out(&self, part: &Part) -> Option<Vec<Slab>> {
        for _ in 0..LOOKS_MAX {
            if !self.is_given_up(part) {
                return None;
            }
            if self.is_quiet(part.group) {
                return Some(self.forget_group(part.group));
            }
            self.pool.0.rt.sleep_ns(LOOK_NS).await;
        }
        None
    }

    /// Nothing of the group is wanted any more, and it may have its slabs taken. Asked each time: the space may have grown.
    fn is_given_up(&self, part: &Part) -> bool {
        let shape = &self.rt.shape;
        let Some(bytes) = self.piece_bytes() else { return false };
        let rest = self.size_bytes().saturating_sub(part.group as u64 * bytes);
        let whole = part.at == 0 && part.len == bytes.min(rest);
        let mapped = self.rt.group_rt(part.group).is_some_and(|g| g.is_mapped());
        let map = self.pool.0.map.read();
        let serves = map.group(self.rt.id, part.group).is_some_and(|g| self.pool.group_usable(shape, g));
        whole && mapped && serves && !self.pool.0.life.is_opening()
    }

    /// Nobody is at work on the group who relies on its staying: no user, nor whoever puts something in its place or
    /// compares and copies. Those who are between two regions or stripes look again when they come to the next.
    fn is_quiet(&self, group: usize) -> bool {
        let (first, end) = self.group_blocks(group);
        let held = self.rt.group_rt(group).is_some_and(|g| g.is_held());
        let writing = self.rt.locks.is_held(first * BLOCK_BYTES, end * BLOCK_BYTES);
        !held && !writing && !self.rt.stripe_locks.is_held(first, end)
    }

    fn group_blocks(&self, group: usize) -> (u64, u64) {
        let per = self.rt.shape.group_bytes / BLOCK_BYTES;
        (group as u64 * per, (group as u64 + 1) * per)
    }

    /// Takes the group out of memory, with all that waits there to be put in its place. Everything happens between two
    /// awaits. Until a map without it is durable a crash brings all of it back: its slabs stay taken, the log stays, and
    /// nothing is acknowledged to anybody, as when a disk has left.
    fn forget_group(&self, group: usize) -> Vec<Slab> {
        let p = &self.pool.0;
        let id = self.rt.id;
        let gone = p.map.apply(MapChange::GroupGone { space: id, group });
        if let Some(rt) = self.rt.groups.remove(group) {
            rt.slots.retain_patches(|_| false);
        }
        let (first, end) = self.group_blocks(group);
        self.rt.overlay.borrow_mut().remove_upto(first, end, u64::MAX);
        self.rt.logged.forget(first..end);
        p.flips.forget_group(id, group);
        p.departures.note();
        p.room.tell();
        tracing::trace!("group {group} of space {id} is given back");
        gone
    }
}
