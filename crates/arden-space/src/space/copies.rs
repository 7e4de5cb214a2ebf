//! Looking at every copy, for whoever above keeps checksums: a read is content with one that passes, a scrub is not.

use arden_block::{BLOCK_BYTES, Buf};

use crate::base::error::{SpaceError, SpaceResult};
use crate::space::mirror::pieces;
use crate::space::open_space::{Part, Space, Verifier, parts, patch};

impl Space {
    /// Whether every copy of these blocks that is in use can be read and passes. Of parity the data is looked at; the
    /// pool's own scrub compares it with its parity.
    pub async fn copies_pass(&self, offset: u64, len: usize, verify: &Verifier) -> SpaceResult<bool> {
        self.check(offset, len as u64)?;
        let blocks = (0..len as u64).step_by(BLOCK_BYTES as usize);
        let accepts = |b: &[u8], at: u64| verify(offset + at, &b[at as usize..(at + BLOCK_BYTES) as usize]);
        match self.read_at(offset, len).await {
            Ok(b) if blocks.clone().all(|at| accepts(&b, at)) => {}
            Err(SpaceError::Closed) => return Err(SpaceError::Closed),
            _ => return Ok(false),
        }
        let shape = self.rt.shape;
        if shape.is_parity() || shape.layout.copies() == 1 {
            return Ok(true);
        }
        for part in parts(&shape, offset, len as u64) {
            let Some(_hold) = self.hold(part.group) else { continue };
            for copy in 0..shape.layout.copies() {
                let b = match self.read_choice(part, copy).await {
                    Ok(b) => b,
                    // There is no such copy now; repair makes it.
                    Err(SpaceError::Unreadable) => continue,
                    Err(SpaceError::Closed) => return Err(SpaceError::Closed),
                    Err(_) => return Ok(false),
                };
                for at in (0..part.len).step_by(BLOCK_BYTES as usize) {
                    let pos = offset + part.from as u64 + at;
                    let bytes = &b[at as usize..(at + BLOCK_BYTES) as usize];
                    if !verify(pos, bytes) && !self.is_gathered(pos) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// How many copies the layout keeps of each block; 1 with parity.
    pub fn copies(&self) -> usize {
        if self.rt.shape.is_parity() { 1 } else { self.rt.shape.layout.copies() }
    }

    /// Reads one copy of each block, and what waits in memory to be written over it. Parts never written are zeros.
    ///
    /// # Errors
    /// `Unreadable`: there is no such copy, its disk is away, or it is out of date.
    pub async fn read_copy(&self, copy: usize, offset: u64, len: usize) -> SpaceResult<Buf> {
        self.check(offset, len as u64)?;
        if self.copies() == 1 || copy >= self.copies() {
            return Err(SpaceError::Unreadable);
        }
        let first = offset / BLOCK_BYTES;
        let newer = self.rt.overlay.borrow().snapshot(first, first + len as u64 / BLOCK_BYTES);
        let mut buf = Buf::zeroed(len);
        for part in parts(&self.rt.shape, offset, len as u64) {
            let Some(_hold) = self.hold(part.group) else { continue };
            let content = self.read_choice(part, copy).await?;
            buf[part.from..part.from + part.len as usize].copy_from_slice(&content);
        }
        patch(&mut buf, first, &newer);
        Ok(buf)
    }

    /// Writes what does not pass anew from what does. How many blocks were healed; `Unreadable` when nothing passes for
    /// one of them, after the others.
    pub async fn heal_copies(&self, offset: u64, len: usize, verify: &Verifier) -> SpaceResult<u64> {
        self.check(offset, len as u64)?;
        let (mut healed, mut lost) = (0, false);
        for pos in (offset..offset + len as u64).step_by(BLOCK_BYTES as usize) {
            if self.copies_pass(pos, BLOCK_BYTES as usize, verify).await? {
                continue;
            }
            let done = match self.rt.shape.is_parity() {
                true => self.heal_parity(pos, verify).await,
                false => self.heal_mirror(pos, verify, true).await,
            };
            match done {
                Ok(_) => healed += 1,
                Err(SpaceError::Closed) => return Err(SpaceError::Closed),
                Err(_) => lost = true,
            }
        }
        if lost { Err(SpaceError::Unreadable) } else { Ok(healed) }
    }

    /// Counts, for the disks of a mirror, copies of a block that fail although others pass.
    pub(crate) async fn note_wrong_copies(&self, block: Part, verify: &Verifier) {
        let (shape, offset) = (self.rt.shape, block.group as u64 * self.rt.shape.group_bytes + block.at);
        let Some(piece) = pieces(&shape, block.at, block.len).into_iter().next() else { return };
        for copy in 0..shape.layout.copies() {
            if self.read_choice(block, copy).await.is_ok_and(|b| !verify(offset, &b)) {
                self.note_wrong_block(block.group, piece.column * shape.layout.copies() + copy);
            }
        }
    }

    /// The disk of a column returned a block that fails.
    pub(crate) fn note_wrong_block(&self, group: usize, column: usize) {
        let disk = self.pool.0.map.read().group(self.rt.id, group).map(|g| g.columns[column].disk);
        if let Some(disk) = disk.and_then(|d| self.pool.disk(d)) {
            disk.note_wrong_block();
        }
    }

    /// The block waits in memory to be put in its place: what lies there is older.
    pub(crate) fn is_gathered(&self, offset: u64) -> bool {
        self.rt.overlay.borrow().get(offset / BLOCK_BYTES).is_some()
    }
}
