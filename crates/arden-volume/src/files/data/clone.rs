//! Clones: blocks that two files share from then on.

use std::{collections::VecDeque, ops::Range};

use arden_lock::WriteGuard;
use arden_store::error::StoreError;
use arden_store::store::Result;

use super::{B, FILE_BYTES_MAX, Target};
use crate::{
    disk::{error::VolResult, inode::Extent, keys},
    engine::view::View,
    files::{
        EXTENTS_AN_OPERATION,
        extents::{Piece, mapped_bytes, pieces, shared_bytes_max},
        owner::Files,
        places::extents,
        txn::FileTxn,
    },
};

/// Extents of each file, and blocks of the target that lie in the tree, that one step of a clone is about; and changes
/// from which on it shares no further extent.
const CLONED_A_STEP: usize = EXTENTS_AN_OPERATION / 4;
const CHANGES_A_STEP: usize = 2048;

/// What is to share blocks, in bytes: of the source from `from` on, in the target from `offset` on.
struct Cloned {
    from: u64,
    offset: u64,
    len: u64,
}

impl FileTxn<'_> {
    /// Whether one more part, for which the record has so many bytes, goes in an operation that is one step of several.
    pub fn goes_on(&self, bytes: usize) -> bool {
        let is_little = self.changes.bytes() + bytes <= self.files.engine.state.wal.record_bytes_max() / 4;
        is_little && self.changes.map().len() <= CHANGES_A_STEP && self.has_room(bytes)
    }
}

impl Files {
    /// The block before which a clone's step ends that begins with block `from` of this stream, `to` at the latest.
    fn one_step(&self, view: &dyn View, sid: u64, from: u64, to: u64) -> VolResult<u64> {
        let mut end = to;
        for kind in [keys::EXTENT, keys::BLOCK] {
            let mut count = 0;
            view.scan(&keys::two(kind, sid, from), &keys::two(kind, sid, end), &mut |k, _| {
                count += 1;
                if count > CLONED_A_STEP {
                    end = keys::second(k);
                }
                count <= CLONED_A_STEP
            })?;
        }
        Ok(end)
    }
}

/// What a stream holds before a block, from the first on.
fn before(held: &mut VecDeque<Piece>, end: u64) -> Option<Piece> {
    let piece = held.pop_front()?;
    if piece.from >= end {
        held.push_front(piece);
        return None;
    }
    if piece.to <= end {
        return Some(piece);
    }
    let (piece, rest) = piece.split(end);
    held.push_front(rest);
    Some(piece)
}

/// Gives the stream these parts of another instead of what it has: of `blocks` of the other, which are those from `to` on, as many
/// as there is room for. How many that were, and how many blocks more it holds.
fn share(t: &mut FileTxn<'_>, parts: &[Extent], blocks: Range<u64>, (sid, to): (u64, u64)) -> VolResult<(u64, i64)> {
    let place = |block: u64| block - blocks.start + to;
    let mut held = VecDeque::from(pieces(t, sid, to, place(blocks.end), usize::MAX)?.0);
    let mut more = 0;
    for e in parts {
        let part = e.part(e.file_block.max(blocks.start), e.end().min(blocks.end));
        let (from, end) = (place(part.file_block), place(part.end()));
        // A hole of the other becomes one here.
        while let Some(piece) = before(&mut held, from) {
            if !t.goes_on(piece.bytes_max()) {
                return Ok((piece.from - to, more));
            }
            t.take_away(sid, &piece)?;
            more -= (piece.to - piece.from) as i64;
        }
        let replaced: Vec<Piece> = std::iter::from_fn(|| before(&mut held, end)).collect();
        let bytes = shared_bytes_max(part.len()) + mapped_bytes(part.len());
        if !t.goes_on(replaced.iter().map(Piece::bytes_max).sum::<usize>() + bytes) {
            return Ok((from - to, more));
        }
        replaced.iter().try_for_each(|piece| t.take_away(sid, piece))?;
        more += part.len() as i64 - replaced.iter().map(|piece| (piece.to - piece.from) as i64).sum::<i64>();
        t.share(&part)?;
        t.map(sid, &Extent { file_block: from, ..part });
    }
    for piece in held {
        if !t.goes_on(piece.bytes_max()) {
            return Ok((piece.from - to, more));
        }
        t.take_away(sid, &piece)?;
        more -= (piece.to - piece.from) as i64;
    }
    Ok((blocks.end - blocks.start, more))
}

impl Target<'_> {
    /// Lets `len` bytes at `offset` share the blocks of the source. Offsets are multiples of a block; the end is one or
    /// the end of both files. Goes in steps, from the beginning: between them others may change both files, and each step
    /// is of what they are then. A crash, or a step that fails, leaves what lies behind the last one as it was, and the file as long as
    /// it was where the steps did not reach its end.
    pub fn clone_from(&self, source: &Target<'_>, from: u64, offset: u64, len: u64) -> Result<u64> {
        let mut left = Cloned { from, offset, len };
        let mut seq = 0;
        loop {
            self.files.engine.make_room()?;
            let _locks = self.change_both(source);
            seq = self.clone_step(source, &mut left)?.max(seq);
            if left.len == 0 {
                return Ok(seq);
            }
        }
    }

    /// The same of one state of the source.
    ///
    /// # Errors
    /// `InsufficientResources`: that takes more than the journal and memory have room for at once. A part of it was done.
    pub fn clone_at_once(&self, source: &Target<'_>, from: u64, offset: u64, len: u64) -> Result<u64> {
        let mut left = Cloned { from, offset, len };
        self.files.engine.make_room()?;
        let _locks = self.change_both(source);
        let mut seq = self.clone_step(source, &mut left)?;
        while left.len > 0 {
            if !self.files.engine.may_go_on()? {
                return Err(StoreError::InsufficientResources.into());
            }
            seq = self.clone_step(source, &mut left)?.max(seq);
        }
        Ok(seq)
    }

    /// Locks the data of two files, that of the lower number first.
    fn change_both<'b>(&'b self, source: &'b Target<'_>) -> (Option<WriteGuard<'b, ()>>, WriteGuard<'b, ()>) {
        let same = self.file.ino == source.file.ino;
        let (a, b) = if self.file.ino <= source.file.ino { (self.file, source.file) } else { (source.file, self.file) };
        let first = a.change_data();
        ((!same).then(|| b.change_data_next()), first)
    }

    /// Whether that may be, and the streams of both.
    fn check_clone(&self, source: &Target<'_>, &Cloned { from, offset, len }: &Cloned) -> Result<(u64, u64)> {
        if from % B != 0 || offset % B != 0 || offset.checked_add(len).is_none_or(|e| e > FILE_BYTES_MAX) {
            return Err(StoreError::InvalidParameter.into());
        }
        let (source_data, sid, eof, sparse) = {
            let view = self.files.engine.reading();
            let target = self.load(&view)?;
            let d = target.data();
            (source.load(&view)?.data().clone(), d.sid, d.eof, d.sparse)
        };
        // [MS-FSA] 2.1.5.10.4 says which of these is which status.
        if source_data.sparse && !sparse {
            return Err(StoreError::NotSupported.into());
        }
        let end = from.checked_add(len).ok_or(StoreError::InvalidParameter)?;
        if end > source_data.eof {
            return Err(StoreError::NotSupported.into());
        }
        if len % B != 0 && (end != source_data.eof || offset + len < eof) {
            return Err(StoreError::InvalidParameter.into());
        }
        if sid == source_data.sid && from < offset + len && offset < end {
            return Err(StoreError::NotSupported.into());
        }
        Ok((source_data.sid, sid))
    }

    /// Shares as much as goes in one operation, and takes it off what is left: nothing where there is no room just now. The caller has
    /// the data of both locked.
    fn clone_step(&self, source: &Target<'_>, left: &mut Cloned) -> Result<u64> {
        let files = self.files;
        let (source_sid, sid) = self.check_clone(source, left)?;
        if !files.allocate_stream(source_sid, true)? {
            return Ok(0);
        }
        let Cloned { from, offset, len } = *left;
        let (at, last) = (from / B, (from + len).div_ceil(B));
        let place = |block: u64| block - at + offset / B;
        let (parts, to) = {
            let view = files.engine.reading();
            let to = files.one_step(&view, source_sid, at, last)?;
            let to = files.one_step(&view, sid, place(at), place(to))? - offset / B + at;
            (extents(&view, source_sid, at, to)?, to)
        };
        let mut t = files.begin();
        let mut s = self.load(&t)?;
        let (shared, more) = share(&mut t, &parts, at..to, (sid, offset / B))?;
        if shared == 0 {
            return Ok(0);
        }
        let done = (shared * B).min(len);
        let d = s.data_mut();
        d.blocks = d.blocks.saturating_add_signed(more);
        // As far as it is done: a crash or a failure leaves nothing behind that which was not there, and nothing is promised for it.
        d.eof = d.eof.max(offset + done);
        s.touch();
        s.save(&mut t);
        let seq = t.commit()?;
        *left = Cloned { from: from + done, offset: offset + done, len: len - done };
        Ok(seq)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arden_store::store::{Node, NodeRef, Wait};
    use parking_lot::Mutex;

    use super::*;
    use crate::disk::device::BLOCK;
    use crate::testing::{Files, Volume, VolumeOptions, Watched, options, volume};

    /// Each block of so many is an extent, and holds this.
    fn in_pieces(node: &NodeRef, value: u8) {
        for i in 0..1000 {
            node.write_at(None, i * 2 * B, &[value; BLOCK], Wait::Yes).unwrap();
        }
    }

    /// A clone during which somebody changes the source between its first step and the second; what the target holds then.
    fn cloned_while(act: impl FnOnce(&NodeRef) + Send + 'static) -> (Result<()>, Vec<u8>) {
        let (memory, vol) = volume(32 << 20);
        let source = Files::new(&vol).make("f", false).unwrap();
        source.set_sparse(None, true).unwrap();
        in_pieces(&source, 1);
        drop(source);
        vol.close().unwrap();
        drop(vol);
        let meanwhile: Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>> = Arc::default();
        let acts = meanwhile.clone();
        // A checkpoint between the steps writes behind the journal.
        let before_write = move |offset: u64, _: &[u8]| {
            let act = if offset > 3 << 20 { acts.lock().take() } else { None };
            act.into_iter().for_each(|act| std::thread::spawn(act).join().unwrap());
        };
        let little = VolumeOptions { overlay_bytes_max: 16 << 10, ..options() };
        let vol = Volume::open(Arc::new(Watched { memory, before_write }), little).unwrap();
        let files = Files::new(&vol);
        let (source, target) = (files.find("f").unwrap(), files.make("g", false).unwrap());
        target.set_sparse(None, true).unwrap();
        let len = source.stat().unwrap().end_of_file;
        let other = source.clone();
        *meanwhile.lock() = Some(Box::new(move || act(&other)));
        let done = Node::clone_from(&*target, None, &*source, 0, 0, len);
        assert!(meanwhile.lock().is_none(), "there was a step");
        drop((source, target));
        let report = vol.check(true).unwrap();
        assert!(report.is_clean() && report.unaccounted_blocks == 0, "{:?}", report.errors);
        (done, files.read("g").chunks(2 * BLOCK).map(|part| part[0]).collect())
    }

    #[test]
    fn each_step_of_a_clone_looks_at_the_source_again() {
        let first = EXTENTS_AN_OPERATION / 4;
        let (done, found) = cloned_while(|source| source.set_end_of_file(None, B).unwrap());
        assert_eq!(done, Err(StoreError::NotSupported.into()));
        assert_eq!(found, vec![1; first], "as long as it is done");
        // Its data has another number then.
        let (done, found) = cloned_while(|source| source.set_end_of_file(None, 0).unwrap());
        assert_eq!(done, Err(StoreError::NotSupported.into()));
        assert_eq!(found, vec![1; first], "as long as it is done");
        let (done, found) = cloned_while(|source| {
            source.write_at(None, 1998 * B, &[2; BLOCK], Wait::Yes).unwrap();
        });
        assert_eq!(done, Ok(()));
        assert_eq!(found, [vec![1; 999], vec![2]].concat());
        let (done, _) = cloned_while(|source| source.unlink(None).unwrap());
        assert_eq!(done, Ok(()), "who uses it has it still");
    }

    /// Between its steps nothing is promised but holes: what is shared needs no room.
    #[test]
    fn a_clone_in_steps_needs_no_room_for_what_it_shares() {
        let (_, vol) = volume(32 << 20);
        let files = Files::new(&vol);
        let (source, target) = (files.make("f", false).unwrap(), files.make("g", false).unwrap());
        // Each block is an extent.
        for first in 0..2 {
            for block in (first..4000).step_by(2) {
                source.write_at(None, block * B, &[block as u8 | 1; BLOCK], Wait::Yes).unwrap();
            }
            vol.checkpoint().unwrap();
        }
        assert!(vol.room().1 < 3500 * B);
        Node::clone_from(&*target, None, &*source, 0, 0, 4000 * B).unwrap();
        assert!(files.read("g").chunks(BLOCK).enumerate().all(|(i, found)| found == [i as u8 | 1; BLOCK]));
        let report = vol.check(true).unwrap();
        assert!(report.is_clean() && report.unaccounted_blocks == 0, "{:?}", report.errors);
    }
}
