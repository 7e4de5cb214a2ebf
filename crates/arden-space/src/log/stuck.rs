//! Blocks that cannot be put in their place, and changes in place that cannot be finished, because more disks of
//! their group are away than it bears. The log keeps them until the disks return: an opening carries them over into
//! its new log, and a log that fills holds them once more at its head, so that nobody else has to wait.

use std::collections::BTreeSet;

use arden_block::BLOCK_BYTES;

use crate::base::error::{SpaceError, SpaceResult};
use crate::map::pool_map::JournalRec;
use crate::pool::open_pool::Pool;
use crate::state::journal::Item;
use crate::state::map::MapChange;

/// What waits for disks.
struct Stuck {
    patches: Vec<Item>,
    /// Space and block.
    blocks: Vec<(u32, u64)>,
    bytes: u64,
}

impl Pool {
    /// Space and number of every block in memory whose group is not usable now.
    pub(crate) fn stuck_blocks(&self) -> Vec<(u32, u64)> {
        let map = self.0.map.read();
        let mut out = Vec::new();
        for s in self.0.spaces.borrow().values() {
            let per = s.shape.group_bytes / BLOCK_BYTES;
            let overlay = s.overlay.borrow();
            // Writers that wait for room ask this often: a group is looked at once, whatever it has in memory.
            let mut next = overlay.first_at_or_after(0);
            while let Some(block) = next {
                let group = block / per;
                let end = (group + 1) * per;
                if map.group(s.id, group as usize).is_some_and(|g| !self.group_usable(&s.shape, g)) {
                    out.extend(overlay.blocks_in(block..end).map(|b| (s.id, b)));
                }
                next = overlay.first_at_or_after(end);
            }
        }
        out
    }

    /// Memory that no writer can make room in.
    pub(crate) fn stuck_bytes(&self) -> u64 {
        self.stuck_blocks().len() as u64 * BLOCK_BYTES
    }

    /// What the log has to keep for groups that are not usable now: changes in place that may have been cut short
    /// first, with the data that belongs to their parity, and then the blocks in memory.
    fn stuck(&self) -> Stuck {
        let mut stuck = Stuck { patches: Vec::new(), blocks: self.stuck_blocks(), bytes: 0 };
        let map = self.0.map.read();
        for s in self.0.spaces.borrow().values() {
            for (group, rt) in s.groups.all() {
                if map.group(s.id, group).is_none_or(|g| self.group_usable(&s.shape, g)) {
                    continue;
                }
                for (slot, patch) in rt.slots.patches() {
                    // Who is at work on it has its own record.
                    if s.patching.contains((group, patch.stripe as usize)) {
                        continue;
                    }
                    patch.keep();
                    stuck.bytes += patch.log_blocks(s.shape.layout.parity()) as u64 * BLOCK_BYTES;
                    stuck.patches.push(Item::Patch { space: s.id, group, slot });
                }
            }
        }
        stuck.bytes += stuck.blocks.len() as u64 * BLOCK_BYTES;
        stuck
    }

    /// An opening has put in its place what it could. What is left of the log, which ends at
    /// `end`, goes to the start of a new one; the next commit names that. Until then the old log
    /// counts, so the new one begins behind it.
    pub(crate) async fn carry_over(&self, old: &JournalRec, end: u64, applied: SpaceResult<()>) -> SpaceResult<()> {
        let stuck = self.stuck();
        let left: u64 = self.0.spaces.borrow().values().map(|s| s.overlay.borrow().bytes()).sum();
        if stuck.blocks.is_empty() || left > stuck.blocks.len() as u64 * BLOCK_BYTES {
            applied?;
        }
        let mut new = self.choose_journal(None);
        if stuck.blocks.is_empty() {
            self.0.journal.reset(&new);
            self.0.map.apply(MapChange::Log(new));
            return Ok(());
        }
        if new.size_bytes < old.size_bytes {
            return Err(self.cannot_carry(&stuck));
        }
        new.size_bytes = old.size_bytes;
        new.start_pos = end;
        self.0.journal.reset(&new);
        self.0.journal.starts_at(old.start_pos);
        let no_room = |e| if e == SpaceError::Offline { self.cannot_carry(&stuck) } else { e };
        self.journal_append(stuck.patches.iter().copied()).await.map_err(no_room)?;
        // Some of the blocks went with them.
        let items: Vec<Item> = stuck.blocks.iter().filter_map(|&(space, block)| self.unlogged(space, block)).collect();
        self.journal_append(items).await.map_err(no_room)?;
        new.disks = self.0.journal.state().disks.clone();
        self.0.map.apply(MapChange::Log(new));
        for (name, bytes) in self.stuck_spaces(&stuck) {
            self.event(format!(
                "space {name} has more disks away than it bears: {bytes} bytes that were written to it last wait in the \
                 log for their return; bring the missing disks back, or delete the space"
            ));
        }
        Ok(())
    }

    fn unlogged(&self, space: u32, block: u64) -> Option<Item> {
        let s = self.space_rt(space)?;
        let logged = s.overlay.borrow().get(block)?.is_logged();
        (!logged).then_some(Item::Block { space, block })
    }

    /// Spaces by name, and how many bytes of each wait.
    fn stuck_spaces(&self, stuck: &Stuck) -> Vec<(String, u64)> {
        let map = self.0.map.read();
        let waiting = |id: u32| stuck.blocks.iter().filter(|b| b.0 == id).count() as u64 * BLOCK_BYTES;
        let all = map.spaces.values().map(|s| (s.name.clone(), waiting(s.id)));
        all.filter(|s| s.1 > 0).collect()
    }

    /// The log has no room for what waits, beside what it holds already.
    fn cannot_carry(&self, stuck: &Stuck) -> SpaceError {
        let spaces: Vec<String> = self.stuck_spaces(stuck).into_iter().map(|s| s.0).collect();
        let map = self.0.map.read();
        let mut disks = BTreeSet::new();
        for s in map.spaces.values().filter(|s| spaces.contains(&s.name)) {
            let columns = s.groups.iter().flatten().flat_map(|g| &g.columns);
            disks.extend(columns.map(|c| c.disk).filter(|&d| !self.online(d)));
        }
        let name = |d: &u16| map.disks.get(d).map_or_else(String::new, |r| format!("{d} ({})", r.name));
        let disks: Vec<String> = disks.iter().map(name).collect();
        SpaceError::Refused(format!(
            "{} bytes that were written last to the spaces {} wait for disks that are away, and the log has no room to keep \
             them while the pool is in use; bring back disks {} and open the pool again",
            stuck.bytes,
            spaces.join(", "),
            disks.join(", ")
        ))
    }

    /// The log is half full of what was not put in its place: what cannot be is written
    /// to it again, so that its start can move past where it lies now.
    pub(crate) fn queue_stuck(&self) {
        if self.0.journal.keeps() {
            return;
        }
        let stuck = self.stuck();
        if !stuck.blocks.is_empty() && self.may_be_kept(stuck.bytes) {
            let blocks = stuck.blocks.into_iter().map(|(space, block)| Item::Block { space, block });
            self.0.journal.keep(stuck.patches.into_iter().chain(blocks));
        }
    }

    /// So much may be written to the log again: more than a third would leave it as full as it is.
    fn may_be_kept(&self, bytes: u64) -> bool {
        bytes < self.0.journal.state().size / 3
    }

    /// Blocks that wait for their disks and may be kept: the batch that holds each, its space and number.
    pub(crate) fn stuck_in_log(&self) -> Vec<((u64, u64), u32, u64)> {
        let blocks = self.stuck_blocks();
        if !self.may_be_kept(blocks.len() as u64 * BLOCK_BYTES) {
            return Vec::new();
        }
        let at = |space, block| self.space_rt(space)?.overlay.borrow().get(block)?.logged_at();
        blocks.into_iter().filter_map(|(space, block)| Some((at(space, block)?, space, block))).collect()
    }
}
