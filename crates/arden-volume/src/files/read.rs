//! Reading the bytes of one stream, from memory or from the device.

use arden_block::BLOCK_BYTES;
use arden_store::error::NotDone;
use arden_store::store::{Result, Wait};

use crate::{
    disk::{device::BLOCK, inode::Extent},
    files::{
        owner::Files,
        places::{Parts, Placed},
    },
};

const B: u64 = BLOCK_BYTES;

impl Parts {
    /// `WouldBlock` where the device would have to be asked and the caller does not wait.
    pub fn read(&self, files: &Files, buf: &mut [u8], wait: Wait) -> Result<usize> {
        self.read_from(&Source { files, enforced: self.enforced, wait, copy: None }, buf)
    }

    /// Of one copy of what lies on the device. It is in the tree, or in memory, for all of them alike.
    pub fn read_copy(&self, files: &Files, copy: u32, buf: &mut [u8]) -> Result<usize> {
        self.read_from(&Source { files, enforced: self.enforced, wait: Wait::Yes, copy: Some(copy) }, buf)
    }

    fn read_from(&self, source: &Source<'_>, buf: &mut [u8]) -> Result<usize> {
        let (offset, n) = (self.offset, self.len);
        if n == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..n];
        source.read_all(&self.mapped, offset, buf)?;
        for (block, value) in &self.in_tree {
            let start = (block * B).max(offset);
            let end = ((block + 1) * B).min(offset + n as u64);
            let out = &mut buf[(start - offset) as usize..(end - offset) as usize];
            let skip = ((start - block * B) as usize).min(value.len());
            let have = (value.len() - skip).min(out.len());
            out[..have].copy_from_slice(&value[skip..skip + have]);
            out[have..].fill(0);
        }
        Ok(n)
    }
}

impl Placed {
    /// As [`Parts::read`], of what lies in the part.
    pub fn read(&self, files: &Files, offset: u64, buf: &mut [u8], wait: Wait) -> Result<usize> {
        let n = self.eof.saturating_sub(offset).min(buf.len() as u64) as usize;
        if n == 0 {
            return Ok(0);
        }
        let (from, to) = (offset / B, (offset + n as u64).div_ceil(B));
        let first = self.mapped.partition_point(|e| e.end() <= from);
        let after = self.mapped.partition_point(|e| e.file_block < to);
        let source = Source { files, enforced: self.enforced, wait, copy: None };
        source.read_all(&self.mapped[first..after], offset, &mut buf[..n])?;
        Ok(n)
    }
}

/// How the extents of one stream are read.
struct Source<'a> {
    files: &'a Files,
    enforced: bool,
    wait: Wait,
    /// None: whichever passes.
    copy: Option<u32>,
}

impl Source<'_> {
    /// What lies in extents, each of which has blocks in the range, and zeros between them.
    fn read_all(&self, mapped: &[Extent], offset: u64, buf: &mut [u8]) -> Result<()> {
        let (from, to) = (offset / B, (offset + buf.len() as u64).div_ceil(B));
        if mapped.iter().map(|e| e.end().min(to) - e.file_block.max(from)).sum::<u64>() < to - from {
            buf.fill(0);
        }
        for e in mapped {
            self.read_mapped(&e.part(e.file_block.max(from), e.end().min(to)), offset, buf)?;
        }
        Ok(())
    }

    fn read(&self, e: &Extent, out: &mut [u8]) -> Result<()> {
        if let Some(copy) = self.copy {
            return Ok(self.files.read_copy(e, copy, out, self.enforced)?);
        }
        match self.wait {
            Wait::Yes => Ok(self.files.read_extent(e, out, self.enforced)?),
            Wait::No if self.files.blocks.read(e, out) => Ok(()),
            Wait::No => Err(NotDone::WouldBlock),
        }
    }

    /// Copies what is both in `e` and in the buffer's range of the file.
    fn read_mapped(&self, e: &Extent, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset + buf.len() as u64;
        let (from, to) = ((e.file_block * B).max(offset), (e.end() * B).min(end));
        let out = &mut buf[(from - offset) as usize..(to - offset) as usize];
        if from == e.file_block * B && to == e.end() * B {
            return self.read(e, out);
        }
        let mut whole = vec![0; e.sums.len() * BLOCK];
        self.read(e, &mut whole)?;
        let skip = (from - e.file_block * B) as usize;
        out.copy_from_slice(&whole[skip..skip + out.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        files::cache::BlockCache,
        testing::{Files, Volume, VolumeOptions, options, own, volume},
    };

    #[test]
    fn where_data_lies_is_looked_for_once_and_again_after_every_change() {
        let (device, vol) = volume(32 << 20);
        drop(vol);
        let cache = BlockCache::new(8 << 20);
        let vol = Volume::open(device, VolumeOptions { blocks: Some(cache.clone()), ..options() }).unwrap();
        let files = Files::new(&vol);
        let mut content: Vec<u8> = (0..600_000u32).map(|i| (i / 7) as u8).collect();
        let node = files.write("file", &content);
        let file = own(&*node).unwrap().file.clone();
        let mut buf = vec![0; 5000];
        let known = |part: u64| cache.placed(file.data_state(), part).is_some();
        assert!(!known(0));
        assert_eq!(node.read_at(77_777, &mut buf, Wait::Yes).unwrap(), 5000);
        assert!(known(0) && !known(1) && buf == content[77_777..82_777]);
        // In the tree, then in another place, shorter, longer, and with a hole.
        node.write_at(None, 80_000, &[1; 10], Wait::Yes).unwrap();
        content[80_000..80_010].fill(1);
        assert!(!known(0));
        assert_eq!(node.read_at(77_777, &mut buf, Wait::Yes).unwrap(), 5000);
        assert!(!known(0) && buf == content[77_777..82_777], "blocks in the tree are looked for every time");
        vol.checkpoint().unwrap();
        assert_eq!(node.read_at(77_777, &mut buf, Wait::Yes).unwrap(), 5000);
        assert!(known(0) && buf == content[77_777..82_777]);
        node.set_end_of_file(None, 79_000).unwrap();
        assert_eq!(node.read_at(77_777, &mut buf, Wait::Yes).unwrap(), 79_000 - 77_777);
        assert_eq!(node.read_at(79_000, &mut buf, Wait::Yes).unwrap(), 0);
        node.set_end_of_file(None, 3 << 20).unwrap();
        vol.checkpoint().unwrap();
        content[79_000..].fill(0);
        for _ in 0..2 {
            assert_eq!(node.read_at(77_777, &mut buf, Wait::Yes).unwrap(), 5000);
            assert!(buf == content[77_777..82_777]);
            assert_eq!(node.read_at(2 << 20, &mut buf, Wait::Yes).unwrap(), 5000);
            assert!(known(0) && known(2) && buf == [0; 5000]);
            assert_eq!(node.read_at((2 << 20) - 2500, &mut buf, Wait::Yes).unwrap(), 5000);
            assert!(!known(1), "a read across two parts");
        }
        files.make("file:other", false).unwrap();
        files.write("file:other", &[9; 200_000]);
        let other = files.find("file:other").unwrap();
        assert_eq!(other.read_at(77_777, &mut buf, Wait::Yes).unwrap(), 5000);
        assert!(buf == [9; 5000], "what is known of the file's own data is not of its streams");
    }
}
