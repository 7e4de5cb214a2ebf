//! Taking away data of a file: cutting it off, and making holes. One operation where it is not much, and its record and the log have
//! room for all of it; otherwise several, between which room is made and others may use the file: holes from their beginning, a file that is cut
//! off from its end. A crash leaves those that were done before it.

use arden_store::error::StoreError;
use arden_store::store::Result;

use super::{B, EDIT_BYTES_MAX, Edit, FILE_BYTES_MAX, Target};
use crate::{
    disk::{
        error::VolResult,
        inode::{Data, SnapshotSet},
        keys,
    },
    engine::view::View,
    files::{
        EXTENTS_AN_OPERATION,
        extents::{Piece, pieces},
        owner::Files,
        places::{extents, resident},
        txn::FileTxn,
    },
};

/// Nobody else changes or looks up anything on the volume while they are taken away, some 3 us each.
const EXTENTS_AT_ONCE_MAX: usize = 4096;
/// What a record of the journal holds for an extent that is taken away, where it is small and shared.
const RECORD_BYTES_AN_EXTENT: usize = 160;

impl Files {
    /// How many extents go in one operation: where a file has more to lose, it loses them in several.
    fn extents_max(&self) -> usize {
        let in_record = self.engine.state.wal.record_bytes_max() / RECORD_BYTES_AN_EXTENT;
        in_record.clamp(EXTENTS_AN_OPERATION, EXTENTS_AT_ONCE_MAX)
    }
}

/// Pieces that one operation took away, and the blocks that they had.
#[derive(Default)]
struct Taken {
    pieces: usize,
    blocks: u64,
}

/// Takes as many away as there is room for, with so many bytes beside them.
fn take<'p>(
    t: &mut FileTxn<'_>,
    sid: u64,
    all: impl Iterator<Item = &'p Piece>,
    beside_bytes: usize,
) -> VolResult<Taken> {
    let (mut taken, mut left) = (Taken::default(), t.files.extents_max());
    for piece in all {
        if (piece.is_extent() && left == 0) || !t.has_room(piece.bytes_max() + beside_bytes) {
            break;
        }
        t.take_away(sid, piece)?;
        left -= usize::from(piece.is_extent());
        taken.pieces += 1;
        taken.blocks += piece.to - piece.from;
    }
    Ok(taken)
}

impl Target<'_> {
    pub fn set_end_of_file(&self, size: u64) -> Result<u64> {
        if size > FILE_BYTES_MAX {
            return Err(StoreError::DiskFull.into());
        }
        loop {
            // Shorter, as far as can be told without the lock.
            let eof = self.load(&self.files.engine.reading())?.data().eof;
            match size < eof {
                true => self.files.engine.make_room_for_less()?,
                false => self.files.engine.make_room()?,
            }
            let _lock = self.file.change_data();
            if let Some(seq) = self.resize(size, None)? {
                return Ok(seq);
            }
        }
    }

    /// The caller has the data locked. `reserve`: blocks to be kept from now on. None: that was a part of it, and the file is longer
    /// still.
    fn resize(&self, size: u64, reserve: Option<u64>) -> Result<Option<u64>> {
        let files = self.files;
        let (sid, eof, blocks) = {
            let s = self.load(&files.engine.reading())?;
            (s.data().sid, s.data().eof, s.data().blocks)
        };
        if size < eof && size == 0 && blocks > 0 {
            return self.empty(reserve).map(Some);
        }
        let is_less = size < eof;
        let (mut lost, mut from, mut tail) = (Vec::new(), size.div_ceil(B), None);
        if is_less {
            (lost, from) = self.last_pieces(sid, from, eof.div_ceil(B))?;
            tail = self.tail(sid, size)?;
        }
        let mut t = files.begin();
        let mut s = self.load(&t)?;
        let taken = take(&mut t, sid, lost.iter().rev(), EDIT_BYTES_MAX)?;
        let left = lost.len() - taken.pieces;
        if left > 0 && taken.pieces == 0 {
            return Ok(None);
        }
        let end = if left > 0 { lost[left].from } else { from };
        let is_last = end <= size.div_ceil(B);
        if let Some(tail) = tail.filter(|_| is_last) {
            self.apply(&mut t, sid, size / B, Edit::Put(tail))?;
        }
        let d = s.data_mut();
        d.blocks = d.blocks.saturating_sub(taken.blocks);
        d.eof = if is_last { size } else { end * B };
        if is_less {
            d.reserved = d.reserved.min(d.eof.div_ceil(B));
        }
        if let Some(r) = reserve.filter(|_| is_last) {
            d.reserved = r;
        }
        s.touch();
        s.save(&mut t);
        let seq = t.commit()?;
        Ok(is_last.then_some(seq))
    }

    /// What lies in `from..to`, or, where one operation cannot take away more than that, behind a block between them; and that block.
    fn last_pieces(&self, sid: u64, from: u64, to: u64) -> VolResult<(Vec<Piece>, u64)> {
        let max = self.files.extents_max();
        let mut blocks = max as u64;
        loop {
            let start = to.saturating_sub(blocks).max(from);
            let (found, _) = pieces(&self.files.engine.reading(), sid, start, to, usize::MAX)?;
            if start == from || found.len() > max {
                return Ok((found, start));
            }
            blocks = blocks.saturating_mul(2);
        }
    }

    /// What stays of the block in which the file ends from now on.
    fn tail(&self, sid: u64, size: u64) -> Result<Option<Vec<u8>>> {
        let cut = (size % B) as usize;
        if cut == 0 {
            return Ok(None);
        }
        // Looked up before the match: its lock must not be held over the next look.
        let in_tree = self.files.engine.reading().get(&keys::two(keys::BLOCK, sid, size / B))?;
        match in_tree {
            Some(v) => Ok(Some(v[..v.len().min(cut)].to_vec())),
            None => self.base(sid, size / B, cut),
        }
    }

    /// All data goes away in one small operation; its blocks follow later.
    fn empty(&self, reserve: Option<u64>) -> Result<u64> {
        let files = self.files;
        let mut t = files.begin();
        let mut s = self.load(&t)?;
        let old = s.data().clone();
        // The stream keeps its snapshots.
        let orphan = t.orphan_data(&Data { snapshots: SnapshotSet::default(), ..old.clone() });
        // `orphan_data` took the promise away, and so will `save`.
        t.changes.counters.promised += old.promised();
        let sid = t.new_id();
        let d = s.data_mut();
        (d.sid, d.eof, d.blocks, d.reserved) = (sid, 0, 0, reserve.unwrap_or(0));
        s.touch();
        s.save(&mut t);
        let seq = t.commit()?;
        files.open.reap_later(orphan);
        Ok(seq)
    }

    pub fn set_allocation(&self, size: u64) -> Result<u64> {
        if size > FILE_BYTES_MAX {
            return Err(StoreError::DiskFull.into());
        }
        loop {
            self.files.engine.make_room()?;
            let _lock = self.file.change_data();
            let eof = self.load(&self.files.engine.reading())?.data().eof;
            if size < eof {
                match self.resize(size, Some(0))? {
                    Some(seq) => return Ok(seq),
                    None => continue,
                }
            }
            let mut t = self.files.begin();
            let mut s = self.load(&t)?;
            s.data_mut().reserved = size.div_ceil(B);
            s.save(&mut t);
            return Ok(t.commit()?);
        }
    }

    /// Nothing is kept beyond the end any more.
    pub fn release_allocation(&self) -> Result<()> {
        if self.load(&self.files.engine.reading())?.data().reserved == 0 {
            return Ok(());
        }
        let _lock = self.file.change_data();
        let mut t = self.files.begin();
        let mut s = self.load(&t)?;
        s.data_mut().reserved = 0;
        s.save(&mut t);
        t.commit()?;
        Ok(())
    }

    /// Never extends the file.
    pub fn zero(&self, offset: u64, len: u64) -> Result<u64> {
        let (mut from, mut last) = (offset.div_ceil(B), 0);
        loop {
            self.files.engine.make_room_for_less()?;
            let _lock = self.file.change_data();
            let (seq, is_done) = self.zero_some(offset, len, &mut from)?;
            // The file may have become shorter meanwhile, and the last part nothing.
            last = last.max(seq);
            if is_done {
                return Ok(last);
            }
        }
    }

    /// The caller has the data locked. Whole blocks from `at` on, which moves. With whether that was all of it.
    fn zero_some(&self, offset: u64, len: u64, at: &mut u64) -> Result<(u64, bool)> {
        let files = self.files;
        let (sid, eof) = {
            let s = self.load(&files.engine.reading())?;
            (s.data().sid, s.data().eof)
        };
        let end = offset.saturating_add(len).min(eof);
        if offset >= end {
            return Ok((0, true));
        }
        let (from, to) = (offset.div_ceil(B), if end == eof { end.div_ceil(B) } else { end / B });
        let last = to.max(*at);
        let (lost, until) = pieces(&files.engine.reading(), sid, *at, last, files.extents_max())?;
        let mut edges = Vec::new();
        for (a, b) in zero_edges(offset, end, from, to) {
            let block = a / B;
            let held = {
                let view = files.engine.reading();
                !resident(&view, sid, block, block + 1)?.is_empty()
                    || !extents(&view, sid, block, block + 1)?.is_empty()
            };
            if held {
                edges.push((block, (a - block * B) as usize, vec![0; (b - a) as usize]));
            }
        }
        let mut edits = Vec::new();
        for (block, at, zeros) in &edges {
            edits.push((*block, self.edit(sid, eof, *block, *at, zeros)?));
        }
        let mut t = files.begin();
        let mut s = self.load(&t)?;
        let taken = take(&mut t, sid, lost.iter(), 2 * EDIT_BYTES_MAX)?;
        let reached = lost.get(taken.pieces).map_or(until, |piece| piece.from);
        let is_last = reached == last;
        if !is_last && taken.pieces == 0 {
            return Ok((0, false));
        }
        *at = reached;
        // With the last operation, as they are at both ends.
        for (block, edit) in edits.into_iter().filter(|_| is_last) {
            self.apply(&mut t, sid, block, edit)?;
        }
        let d = s.data_mut();
        d.blocks = d.blocks.saturating_sub(taken.blocks);
        s.touch();
        s.save(&mut t);
        let seq = t.commit()?;
        Ok((seq, is_last))
    }
}

/// The parts of `offset..end` that do not make whole blocks `from..to`.
fn zero_edges(offset: u64, end: u64, from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    if from > to {
        // Within one block.
        out.push((offset, end));
        return out;
    }
    if offset < from * B {
        out.push((offset, (from * B).min(end)));
    }
    if to * B < end && to * B >= offset {
        out.push((to * B, end));
    }
    out
}
