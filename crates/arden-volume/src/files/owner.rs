//! What the files of a volume share: the engine below them, which of them are in use, descriptors, and blocks in memory.

use std::sync::{Arc, atomic::AtomicU32};

use crate::{
    disk::{device::read_checked, error::VolResult, inode::Extent},
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

    pub fn read_extent(&self, e: &Extent, out: &mut [u8]) -> VolResult<()> {
        if self.blocks.read(e, out) {
            return Ok(());
        }
        read_checked(&*self.engine.device, e.dev_block * arden_block::BLOCK_BYTES, out, &e.check())?;
        self.blocks.keep(e, out);
        Ok(())
    }
}
