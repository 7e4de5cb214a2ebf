//! What the files of a volume share: the engine below them, which of them are in use, descriptors, and blocks in memory.

use std::sync::{Arc, atomic::AtomicU32};

use arden_block::{BLOCK_BYTES, IoError};

use crate::{
    disk::{
        device::{BLOCK, read_checked},
        error::VolResult,
        inode::Extent,
    },
    engine::owner::Engine,
    files::{cache::VolumeBlocks, descriptors::Descriptors, open::OpenFiles},
};

pub struct Files {
    pub engine: Arc<Engine>,
    pub open: Arc<OpenFiles>,
    pub descriptors: Arc<Descriptors>,
    pub blocks: VolumeBlocks,
    /// How reading moves LastAccessTime: bits of [`crate::disk::superblock::feature`].
    pub access_bits: AtomicU32,
}

impl Files {
    pub fn new(
        engine: Arc<Engine>,
        open: Arc<OpenFiles>,
        descriptors: Arc<Descriptors>,
        blocks: VolumeBlocks,
    ) -> Arc<Files> {
        let access_bits = AtomicU32::new(engine.superblock().features);
        Arc::new(Files { engine, open, descriptors, blocks, access_bits })
    }

    /// Reads all of an extent, from any copies that pass. Without `enforced`, a block of which no copy passes reads as what one
    /// of its copies holds.
    pub fn read_extent(&self, e: &Extent, out: &mut [u8], enforced: bool) -> VolResult<()> {
        if self.blocks.read(e, out) {
            return Ok(());
        }
        match read_checked(&*self.engine.device, e.dev_block * BLOCK_BYTES, out, &e.check()) {
            Err(IoError::Media) if !enforced => return self.read_damaged(e, out),
            result => result?,
        }
        self.blocks.keep(e, out);
        Ok(())
    }

    /// Reads all of an extent from one copy of the device, past what is in memory; see [`Files::read_extent`] for `enforced`.
    pub fn read_copy(&self, e: &Extent, copy: u32, out: &mut [u8], enforced: bool) -> VolResult<()> {
        let Some(copies) = self.engine.device.redundant() else { return Err(IoError::Media.into()) };
        copies.read_copy(copy, e.dev_block * BLOCK_BYTES, out)?;
        let check = e.check();
        let passes = out.chunks_exact(BLOCK).enumerate().all(|(i, block)| check.accepts(i, block));
        if passes || !enforced { Ok(()) } else { Err(IoError::Media.into()) }
    }

    /// Nothing of it is kept in memory, where blocks are found by checksums that these do not have.
    fn read_damaged(&self, e: &Extent, out: &mut [u8]) -> VolResult<()> {
        for (block, out) in (e.file_block..e.end()).zip(out.chunks_exact_mut(BLOCK)) {
            let part = e.part(block, block + 1);
            let offset = part.dev_block * BLOCK_BYTES;
            match read_checked(&*self.engine.device, offset, out, &part.check()) {
                Err(IoError::Media) => self.engine.device.read(offset, out)?,
                result => result?,
            }
        }
        Ok(())
    }
}
