//! Where the parts of a stream lie, as some state of the volume says. Who reads keeps what was found from being used for
//! something else meanwhile.

use std::sync::Arc;

use arden_block::BLOCK_BYTES;
use arden_store::store::ClusterRun;

use crate::{
    disk::{
        error::VolResult,
        inode::{Data, EXTENT_BLOCKS_MAX, Extent},
        keys::{self, Val},
    },
    engine::view::View,
};

const B: u64 = BLOCK_BYTES;
/// Extents that are looked at together to tell what is allocated: changes wait meanwhile.
const PIECE_PARTS: usize = 1024;
/// Of one [`Placed`].
const PART_BLOCKS: u64 = 256;
const PART_BYTES: u64 = PART_BLOCKS * B;

/// Extents with blocks in `from..to`, whole, in order.
pub fn extents(view: &dyn View, sid: u64, from: u64, to: u64) -> VolResult<Vec<Extent>> {
    let start = from.saturating_sub(EXTENT_BLOCKS_MAX - 1);
    let mut out = Vec::new();
    let mut result = Ok(());
    view.scan(&keys::two(keys::EXTENT, sid, start), &keys::two(keys::EXTENT, sid, to), &mut |k, v| {
        match Extent::decode(keys::second(k), v) {
            Ok(e) if e.end() > from => out.push(e),
            Ok(_) => {}
            Err(e) => result = Err(e),
        }
        result.is_ok()
    })?;
    result.map(|()| out)
}

/// Numbers of blocks in `from..to` that lie in the tree.
pub fn resident(view: &dyn View, sid: u64, from: u64, to: u64) -> VolResult<Vec<u64>> {
    let mut out = Vec::new();
    view.scan(&keys::two(keys::BLOCK, sid, from), &keys::two(keys::BLOCK, sid, to), &mut |k, _| {
        out.push(keys::second(k));
        true
    })?;
    Ok(out)
}

/// What lies in a range of a stream.
pub struct Parts {
    pub offset: u64,
    pub len: usize,
    pub mapped: Vec<Extent>,
    /// Blocks that are damaged cannot be read.
    pub enforced: bool,
    /// Blocks by their number.
    pub in_tree: Vec<(u64, Val)>,
}

impl Parts {
    /// Of `len` bytes at `offset`, or as many as there are.
    pub fn find(view: &dyn View, data: &Data, offset: u64, len: usize) -> VolResult<Parts> {
        let len = data.eof.saturating_sub(offset).min(len as u64) as usize;
        let enforced = data.integrity.is_enforced();
        let mut parts = Parts { offset, len, mapped: Vec::new(), enforced, in_tree: Vec::new() };
        if len == 0 {
            return Ok(parts);
        }
        let (from, to) = (offset / B, (offset + len as u64).div_ceil(B));
        let mapped = extents(view, data.sid, from, to)?;
        view.scan(&keys::two(keys::BLOCK, data.sid, from), &keys::two(keys::BLOCK, data.sid, to), &mut |k, v| {
            parts.in_tree.push((keys::second(k), v.into()));
            true
        })?;
        let read = |e: &Extent| e.file_block < to && e.end() > from;
        parts.mapped = mapped.into_iter().flat_map(|e| uncovered(e, &parts.in_tree)).filter(read).collect();
        Ok(parts)
    }
}

/// The parts of an extent that no block in the tree takes the place of. What those hold on the device is read by nobody, and may
/// be damaged.
fn uncovered(e: Extent, in_tree: &[(u64, Val)]) -> Vec<Extent> {
    let covering = &in_tree[in_tree.partition_point(|(b, _)| *b < e.file_block)..];
    if covering.first().is_none_or(|(b, _)| *b >= e.end()) {
        return vec![e];
    }
    let mut out = Vec::new();
    let mut from = e.file_block;
    let ends = covering.iter().map(|(b, _)| *b).take_while(|b| *b < e.end()).chain([e.end()]);
    for block in ends {
        if from < block {
            out.push(e.part(from, block));
        }
        from = block + 1;
    }
    out
}

/// Where a whole part of a file's own data lies that has no blocks in the tree: found once, then read often.
pub struct Placed {
    pub eof: u64,
    pub mapped: Vec<Extent>,
    /// As [`Parts::enforced`].
    pub enforced: bool,
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
        Ok(Some(Arc::new(Placed { eof: data.eof, mapped, enforced: data.integrity.is_enforced() })))
    }

    pub fn memory_bytes(&self) -> u64 {
        let of = |e: &Extent| (size_of::<Extent>() + e.sums.len() * size_of::<u64>()) as u64;
        self.mapped.iter().map(of).sum()
    }
}

/// Ranges of bytes, each its beginning and its length.
pub type Ranges = Vec<(u64, u64)>;

/// The parts of `offset..end` that hold data, ascending, up to where some of them were found, and where that is.
pub fn allocated_piece(view: &dyn View, d: &Data, offset: u64, end: u64) -> VolResult<(Ranges, u64)> {
    let eof = end.min(d.eof);
    if offset >= eof {
        return Ok((Ranges::new(), end));
    }
    if !d.sparse {
        return Ok((vec![(offset, eof - offset)], end));
    }
    let (from, to) = (offset / B, eof.div_ceil(B));
    let (mut until, mut parts, mut result) = (to, Vec::new(), Ok(()));
    let first = from.saturating_sub(EXTENT_BLOCKS_MAX - 1);
    view.scan(&keys::two(keys::EXTENT, d.sid, first), &keys::two(keys::EXTENT, d.sid, to), &mut |k, v| {
        match Extent::decode(keys::second(k), v) {
            Ok(e) if e.end() > from => parts.push((e.file_block, e.end())),
            Ok(_) => {}
            Err(e) => result = Err(e),
        }
        result.is_ok() && parts.len() < PIECE_PARTS
    })?;
    result?;
    if parts.len() == PIECE_PARTS {
        until = parts[PIECE_PARTS - 1].1.min(to);
    }
    let mut in_tree = Vec::new();
    view.scan(&keys::two(keys::BLOCK, d.sid, from), &keys::two(keys::BLOCK, d.sid, until), &mut |k, _| {
        in_tree.push(keys::second(k));
        in_tree.len() < PIECE_PARTS
    })?;
    if in_tree.len() == PIECE_PARTS {
        until = in_tree[PIECE_PARTS - 1] + 1;
    }
    parts.extend(in_tree.into_iter().map(|b| (b, b + 1)));
    parts.sort_unstable();
    let mut ranges = Ranges::new();
    for (a, b) in parts {
        let (a, b) = ((a * B).max(offset), (b.min(until) * B).min(eof));
        if a < b {
            append(&mut ranges, (a, b - a));
        }
    }
    Ok((ranges, if until < to { until * B } else { end }))
}

/// What touches the last range makes that longer.
pub fn append(ranges: &mut Ranges, (from, len): (u64, u64)) {
    match ranges.last_mut() {
        Some((start, n)) if *start + *n >= from => *n = (*n).max(from + len - *start),
        _ => ranges.push((from, len)),
    }
}

/// Where the blocks from `from` on lie, up to the last one of the stream, at most `max` runs: empty where it has no block
/// `from`. What lies in the tree, or is not placed yet, has no block of its own. Work and memory follow `max`.
pub fn cluster_runs(view: &dyn View, d: &Data, from: u64, max: usize) -> VolResult<Vec<ClusterRun>> {
    let mut end = (d.allocation() / B).max(d.eof.div_ceil(B));
    if from >= end || max == 0 {
        return Ok(Vec::new());
    }
    // First block of the stream, the one after the last, and where the first lies.
    let mut mapped: Vec<(u64, u64, u64)> = Vec::new();
    let mut result = Ok(());
    let first = from.saturating_sub(EXTENT_BLOCKS_MAX - 1);
    view.scan(&keys::two(keys::EXTENT, d.sid, first), &keys::end_of(keys::EXTENT, d.sid), &mut |k, v| {
        match Extent::decode(keys::second(k), v) {
            Ok(e) if e.end() > from => mapped.push((e.file_block, e.end(), e.dev_block)),
            Ok(_) => {}
            Err(e) => result = Err(e),
        }
        result.is_ok() && mapped.len() <= max
    })?;
    result?;
    end = if mapped.len() > max { mapped[max].1.min(end) } else { end };
    let mut in_tree = Vec::new();
    view.scan(&keys::two(keys::BLOCK, d.sid, from), &keys::two(keys::BLOCK, d.sid, end), &mut |k, _| {
        in_tree.push(keys::second(k));
        in_tree.len() <= max
    })?;
    end = if in_tree.len() > max { in_tree[max] + 1 } else { end };
    let mut runs = Runs { at: from, last_from: from, found: Vec::new() };
    let mut in_tree = in_tree.into_iter().peekable();
    for (block, extent_end, place) in mapped {
        let extent_end = extent_end.min(end);
        let mut at = block.max(from);
        while at < extent_end {
            while in_tree.next_if(|b| *b < at).is_some() {}
            let until = in_tree.peek().map_or(extent_end, |b| (*b).min(extent_end));
            if until > at {
                runs.add(at, until, place + (at - block));
            }
            at = until + 1;
        }
    }
    runs.skip_to(end);
    runs.found.truncate(max);
    Ok(runs.found)
}

/// Runs in the making.
struct Runs {
    /// The block that no run covers yet.
    at: u64,
    /// Where the last run begins.
    last_from: u64,
    found: Vec<ClusterRun>,
}

impl Runs {
    /// Nothing lies anywhere before `block`.
    fn skip_to(&mut self, block: u64) {
        if block > self.at {
            self.found.push(ClusterRun { next: block, at: None });
            (self.last_from, self.at) = (self.at, block);
        }
    }

    /// The blocks from `from` to `to` lie at `place` and behind it.
    fn add(&mut self, from: u64, to: u64, place: u64) {
        self.skip_to(from);
        match self.found.last_mut() {
            Some(last) if last.at.is_some_and(|at| at + (from - self.last_from) == place) => last.next = to,
            _ => {
                self.found.push(ClusterRun { next: to, at: Some(place) });
                self.last_from = from;
            }
        }
        self.at = to;
    }
}
