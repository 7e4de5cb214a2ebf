//! Reading the data of one stream: where its parts are, as some state of the volume says, and their bytes. Whoever reads
//! keeps what he found from being used for something else meanwhile.

use std::sync::Arc;

use arden_block::BLOCK_BYTES;
use arden_store::store::{Result, Wait};
use arden_wire::NtStatus;

use crate::{
    disk::{
        device::BLOCK,
        error::VolResult,
        inode::{Data, Extent},
        keys,
    },
    engine::{kv::View, tree::Val, volume::Volume},
    files::extents::{extents, resident},
};

const B: u64 = BLOCK_BYTES;
/// Of one [`Placed`].
const PART_BLOCKS: u64 = 256;
const PART_BYTES: u64 = PART_BLOCKS * B;

/// What lies in a range of a stream.
pub struct Parts {
    offset: u64,
    len: usize,
    mapped: Vec<Extent>,
    in_tree: Vec<(u64, Val)>,
}

impl Parts {
    /// Of `len` bytes at `offset`, or as many as there are.
    pub fn find(view: &dyn View, data: &Data, offset: u64, len: usize) -> VolResult<Parts> {
        let len = data.eof.saturating_sub(offset).min(len as u64) as usize;
        let mut parts = Parts { offset, len, mapped: Vec::new(), in_tree: Vec::new() };
        if len == 0 {
            return Ok(parts);
        }
        let (from, to) = (offset / B, (offset + len as u64).div_ceil(B));
        parts.mapped = extents(view, data.sid, from, to)?;
        view.scan(&keys::two(keys::BLOCK, data.sid, from), &keys::two(keys::BLOCK, data.sid, to), &mut |k, v| {
            parts.in_tree.push((keys::second(k), v.into()));
            true
        })?;
        Ok(parts)
    }

    /// PENDING where the device would have to be asked and the caller does not wait.
    pub fn read(&self, vol: &Volume, buf: &mut [u8], wait: Wait) -> Result<usize> {
        let (offset, n) = (self.offset, self.len);
        if n == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..n];
        read_all_mapped(vol, &self.mapped, offset, buf, wait)?;
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

/// Where a whole part of a file's own data lies that has no blocks in the tree: found once, then read often.
pub struct Placed {
    eof: u64,
    mapped: Vec<Extent>,
}

impl Placed {
    /// The part that a read lies in, if one holds all of it.
    pub fn part(offset: u64, len: usize) -> Option<u64> {
        let part = offset / PART_BYTES;
        let end = offset.checked_add(len as u64)?;
        (len > 0 && end <= (part + 1) * PART_BYTES).then_some(part)
    }

    /// None where blocks of the part are in the tree.
    pub fn find(view: &dyn View, data: &Data, part: u64) -> VolResult<Option<Arc<Placed>>> {
        let (from, to) = (part * PART_BLOCKS, (part + 1) * PART_BLOCKS);
        let mut in_tree = false;
        view.scan(&keys::two(keys::BLOCK, data.sid, from), &keys::two(keys::BLOCK, data.sid, to), &mut |_, _| {
            in_tree = true;
            false
        })?;
        if in_tree {
            return Ok(None);
        }
        let mapped = extents(view, data.sid, from, to)?;
        Ok(Some(Arc::new(Placed { eof: data.eof, mapped })))
    }

    pub fn memory_bytes(&self) -> u64 {
        let of = |e: &Extent| (size_of::<Extent>() + e.sums.len() * size_of::<u64>()) as u64;
        self.mapped.iter().map(of).sum()
    }

    /// As [`Parts::read`], of what lies in the part.
    pub fn read(&self, vol: &Volume, offset: u64, buf: &mut [u8], wait: Wait) -> Result<usize> {
        let n = self.eof.saturating_sub(offset).min(buf.len() as u64) as usize;
        if n == 0 {
            return Ok(0);
        }
        let (from, to) = (offset / B, (offset + n as u64).div_ceil(B));
        let first = self.mapped.partition_point(|e| e.end() <= from);
        let after = self.mapped.partition_point(|e| e.file_block < to);
        read_all_mapped(vol, &self.mapped[first..after], offset, &mut buf[..n], wait)?;
        Ok(n)
    }
}

/// What lies in extents, each of which has blocks in the range, and zeros between them.
fn read_all_mapped(vol: &Volume, mapped: &[Extent], offset: u64, buf: &mut [u8], wait: Wait) -> Result<()> {
    let (from, to) = (offset / B, (offset + buf.len() as u64).div_ceil(B));
    if mapped.iter().map(|e| e.end().min(to) - e.file_block.max(from)).sum::<u64>() < to - from {
        buf.fill(0);
    }
    for e in mapped {
        read_mapped(vol, &e.part(e.file_block.max(from), e.end().min(to)), offset, buf, wait)?;
    }
    Ok(())
}

/// Copies what is both in `e` and in the buffer's range of the file.
fn read_mapped(vol: &Volume, e: &Extent, offset: u64, buf: &mut [u8], wait: Wait) -> Result<()> {
    let read = |out: &mut [u8]| -> Result<()> {
        match wait {
            Wait::Yes => Ok(vol.read_extent(e, out)?),
            Wait::No if vol.read_cached(e, out) => Ok(()),
            Wait::No => Err(NtStatus::PENDING),
        }
    };
    let end = offset + buf.len() as u64;
    let (from, to) = ((e.file_block * B).max(offset), (e.end() * B).min(end));
    let out = &mut buf[(from - offset) as usize..(to - offset) as usize];
    if from == e.file_block * B && to == e.end() * B {
        return read(out);
    }
    let mut whole = vec![0; e.sums.len() * BLOCK];
    read(&mut whole)?;
    let skip = (from - e.file_block * B) as usize;
    out.copy_from_slice(&whole[skip..skip + out.len()]);
    Ok(())
}

/// Parts of `offset..offset + len` that hold data, ascending.
pub fn allocated_ranges(view: &dyn View, d: &Data, offset: u64, len: u64) -> VolResult<Vec<(u64, u64)>> {
    let end = offset.saturating_add(len).min(d.eof);
    if offset >= end {
        return Ok(Vec::new());
    }
    if !d.sparse {
        return Ok(vec![(offset, end - offset)]);
    }
    let (from, to) = (offset / B, end.div_ceil(B));
    let mut parts: Vec<(u64, u64)> = extents(view, d.sid, from, to)?.iter().map(|e| (e.file_block, e.end())).collect();
    parts.extend(resident(view, d.sid, from, to)?.into_iter().map(|b| (b, b + 1)));
    parts.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (a, b) in parts {
        let (a, b) = ((a * B).max(offset), (b * B).min(end));
        match out.last_mut() {
            Some((start, n)) if *start + *n >= a => *n = (*n).max(b.saturating_sub(*start)),
            _ if a < b => out.push((a, b - a)),
            _ => {}
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::volume::VolumeOptions,
        facade::node::own,
        files::cache::BlockCache,
        testing::{Files, options, volume},
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
        node.write_at(80_000, &[1; 10], Wait::Yes).unwrap();
        content[80_000..80_010].fill(1);
        assert!(!known(0));
        assert_eq!(node.read_at(77_777, &mut buf, Wait::Yes).unwrap(), 5000);
        assert!(!known(0) && buf == content[77_777..82_777], "blocks in the tree are looked for every time");
        vol.checkpoint().unwrap();
        assert_eq!(node.read_at(77_777, &mut buf, Wait::Yes).unwrap(), 5000);
        assert!(known(0) && buf == content[77_777..82_777]);
        node.set_end_of_file(79_000).unwrap();
        assert_eq!(node.read_at(77_777, &mut buf, Wait::Yes).unwrap(), 79_000 - 77_777);
        assert_eq!(node.read_at(79_000, &mut buf, Wait::Yes).unwrap(), 0);
        node.set_end_of_file(3 << 20).unwrap();
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
