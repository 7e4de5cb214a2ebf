//! Blocks that cannot be read are written anew, each from what else there is of it: a disk puts another sector in the
//! place of a bad one when it is written. What can be read is left alone: which copy is right is not known here.

use arden_block::{BLOCK_BYTES, IoError, SharedBuf};

use crate::base::error::SpaceError;
use crate::pool::open_pool::User;
use crate::space::mirror::{Piece, pieces};
use crate::space::open_space::{Part, Space, Verifier};

/// Blocks to remember until a read with a verifier comes to them.
const UNREAD_MAX: usize = 4096;

fn is_bad<T>(read: &Result<T, SpaceError>) -> bool {
    matches!(read, Err(SpaceError::Device(IoError::Media)))
}

impl Space {
    /// Some of a copy of this piece could not be read, and another copy could. Who verifies what he reads knows only
    /// then which copy is right: see [`Space::heal_unread`].
    pub(crate) async fn copy_unread(&self, group: usize, piece: Piece) {
        let start = group as u64 * self.rt.shape.group_bytes + piece.at;
        if self.rt.user.get() == User::Verifying {
            // Whoever reads it next is to come here.
            self.rt.views.gate(group).raise();
            return self.rt.unread.note(start / BLOCK_BYTES..(start + piece.len) / BLOCK_BYTES, UNREAD_MAX);
        }
        let part = Part { group, at: piece.at, len: piece.len, from: 0 };
        let _guard = self.lock_part(&part).await;
        for copy in 0..self.rt.shape.layout.copies() {
            if !is_bad(&self.read_choice(part, copy).await) {
                continue;
            }
            for at in (part.at..part.at + part.len).step_by(BLOCK_BYTES as usize) {
                let block = Part { at, len: BLOCK_BYTES, ..part };
                if is_bad(&self.read_choice(block, copy).await) {
                    self.rewrite_block(block, copy).await;
                }
            }
        }
    }

    /// One block of one copy, from the first of the others that can be read. The range is locked.
    async fn rewrite_block(&self, block: Part, copy: usize) {
        for other in (0..self.rt.shape.layout.copies()).filter(|&k| k != copy) {
            if let Ok(b) = self.read_choice(block, other).await {
                return self.write_copy(block, copy, b.share()).await;
            }
        }
    }

    async fn write_copy(&self, block: Part, copy: usize, data: SharedBuf) {
        let shape = &self.rt.shape;
        for p in pieces(shape, block.at, block.len) {
            let (disk, at, _slab) = {
                let map = self.pool.0.map.read();
                let Some(g) = map.group(self.rt.id, block.group) else { return };
                let c = &g.columns[p.column * shape.layout.copies() + copy];
                let Some(disk) = self.pool.disk(c.disk).filter(|d| d.online.get()) else { return };
                let at = disk.areas.data_at + u64::from(c.slab) * shape.slab_bytes + p.slab_at;
                (disk, at, self.pool.use_slab(c.disk, c.slab))
            };
            if disk.write(at, data.clone(), false).await.is_err() {
                let _ = self.pool.fail_disk(&disk, "write failed").await;
            }
        }
    }

    /// After a read that passed: where a copy could not be read, what passes is written over what does not.
    pub(crate) async fn heal_unread(&self, offset: u64, len: usize, verify: &Verifier) {
        let range = offset / BLOCK_BYTES..(offset + len as u64) / BLOCK_BYTES;
        let found = self.rt.unread.within(range);
        if !found.is_empty() {
            // What does not pass anywhere is for whoever reads it to say.
            let _ = self.heal_copies(offset, len, verify).await;
            self.rt.unread.forget(&found);
        }
    }

    /// Parity: the same in a unit, from the other columns. None of it may go over anything newer: whoever changes the
    /// slot in place waits until it is written.
    pub(crate) async fn unit_unread(&self, group: usize, slot: u16, i: usize, from: u64, len: u64) {
        self.pool.event(format!("unreadable sectors in slot {slot} of space {}", self.rt.id));
        let Some(rt) = self.rt.group_rt(group) else { return };
        let _hold = rt.slots.rebuilds.hold(slot);
        let one = BLOCK_BYTES as usize;
        for at in (from..from + len).step_by(one) {
            if is_bad(&self.read_unit(group, slot, i, at, one).await)
                && let Ok(now) = self.rebuild_unit(group, slot, i, at, one, &[]).await
            {
                self.refresh_unit(group, slot, i, at, &now).await;
            }
        }
    }
}
