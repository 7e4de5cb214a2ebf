//! Blocks that cannot be put in their place, because more disks of their group are away than it
//! bears. The log keeps them until the disks return: an opening carries them over into its new
//! log, and a log that fills holds them once more at its head, so that nobody else has to wait.

use arden_block::BLOCK_BYTES;

use crate::error::{SpaceError, SpaceResult};
use crate::journal::Item;
use crate::map::JournalRec;
use crate::pool::Pool;
use crate::space::Space;

impl Pool {
    /// Space and number of every block in memory whose group is not usable now.
    fn stuck_blocks(&self) -> Vec<(u32, u64)> {
        let map = self.0.map.borrow();
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

    /// An opening has put in its place what it could. What is left of the log, which ends at
    /// `end`, goes to the start of a new one; the next commit names that. Until then the old log
    /// counts, so the new one begins behind it.
    pub(crate) async fn carry_over(&self, old: &JournalRec, end: u64, applied: SpaceResult<()>) -> SpaceResult<()> {
        let stuck = self.stuck_blocks();
        let left: u64 = self.0.spaces.borrow().values().map(|s| s.overlay.borrow().bytes()).sum();
        if stuck.is_empty() || left > stuck.len() as u64 * BLOCK_BYTES {
            applied?;
        }
        let mut new = self.choose_journal();
        if stuck.is_empty() {
            self.0.journal.reset(&new);
            self.0.map.borrow_mut().journal = new;
            return Ok(());
        }
        if new.size_bytes != old.size_bytes {
            return Err(SpaceError::Offline);
        }
        new.start_pos = end;
        self.0.journal.reset(&new);
        self.0.journal.state.borrow_mut().tail = old.start_pos;
        self.journal_append(stuck.iter().map(|&(space, block)| Item::Block { space, block })).await?;
        new.disks = self.0.journal.state.borrow().disks.clone();
        self.0.map.borrow_mut().journal = new;
        for s in self.0.spaces.borrow().values() {
            let n = stuck.iter().filter(|b| b.0 == s.id).count();
            if n > 0 {
                let name = self.0.map.borrow().spaces.get(&s.id).map_or_else(String::new, |r| r.name.clone());
                self.event(format!(
                    "space {name} has more disks away than it bears: {} bytes that were written to it last wait in the \
                     log for their return; bring the missing disks back, or delete the space",
                    n as u64 * BLOCK_BYTES
                ));
            }
        }
        Ok(())
    }

    /// The log is half full of what was not put in its place: blocks that cannot be are written
    /// to it again, so that its start can move past where they lie now.
    pub(crate) fn queue_stuck(&self) {
        if self.0.journal.keeps() {
            return;
        }
        let stuck = self.stuck_blocks();
        // More than a third would leave the log as full as it is.
        let size = self.0.journal.state.borrow().size;
        if !stuck.is_empty() && stuck.len() as u64 * BLOCK_BYTES < size / 3 {
            self.0.journal.keep(stuck.into_iter().map(|(space, block)| Item::Block { space, block }));
        }
    }
}

impl Space {
    /// Enough disks of the group are here to read and write it.
    pub(crate) fn group_serves(&self, group: usize) -> bool {
        let map = self.pool.0.map.borrow();
        map.group(self.rt.id, group).is_none_or(|g| self.pool.group_usable(&self.rt.shape, g))
    }
}
