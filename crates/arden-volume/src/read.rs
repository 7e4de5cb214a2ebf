//! Reading the data of one stream: where its parts are, as some state of the volume says, and their bytes. Whoever reads
//! keeps what he found from being used for something else meanwhile.

use arden_block::BLOCK_BYTES;
use arden_store::store::{Result, Wait};
use arden_wire::NtStatus;

use crate::{
    device::BLOCK,
    error::VolResult,
    extents::{extents, resident},
    inode::{Data, Extent},
    keys,
    kv::View,
    tree::Val,
    volume::Volume,
};

const B: u64 = BLOCK_BYTES;

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
        let (from, to) = (offset / B, (offset + n as u64).div_ceil(B));
        if self.mapped.iter().map(|e| e.end().min(to) - e.file_block.max(from)).sum::<u64>() < to - from {
            buf.fill(0);
        }
        for e in &self.mapped {
            read_mapped(vol, &e.part(e.file_block.max(from), e.end().min(to)), offset, buf, wait)?;
        }
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
