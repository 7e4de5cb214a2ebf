//! Reading and changing the data of files and streams. Small writes put whole blocks into the tree, by way of the
//! journal; large ones go to fresh blocks of the device. Nothing that has a checksum is ever overwritten in place.
//! What an operation takes away or replaces may be in pieces whose number nobody knows before: each asks the transaction for room
//! (`Txn::has_room`) before every one, and leaves the rest to another operation.

pub mod clone;
mod cut;

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use arden_block::BLOCK_BYTES;
use arden_store::error::{NotDone, StoreError};
use arden_store::open_stream::StreamRef;
use arden_store::store::{Integrity, Result, Wait};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    disk::{device::BLOCK, error::VolResult, inode::Extent, keys},
    engine::{alloc::Reserved, record::put_bytes_of, view::View},
    files::{
        DIRECT_BYTES_MIN,
        extents::entered_bytes,
        inodes::now,
        open::OpenFile,
        owner::Files,
        places::{Parts, Placed, extents},
        subject::Subject,
        txn::FileTxn,
    },
};

/// A file has at most this many bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 46;
/// A write of up to this many bytes is one operation on every volume; how much more is, the journal decides.
const WRITE_BYTES_MIN: usize = 16 << 20;
const WRITE_BYTES_MAX: usize = 1 << 30;
/// What a record of the journal holds for a block that is written and may be an extent of its own.
const RECORD_BYTES_A_BLOCK: usize = 64;
/// And for one that lies in the tree, at most.
const EDIT_BYTES_MAX: usize = put_bytes_of(17, BLOCK);
const B: u64 = BLOCK_BYTES;

/// One file or stream whose data is worked on.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub files: &'a Files,
    pub file: &'a OpenFile,
    pub stream: &'a OnceLock<Arc<StreamRef>>,
}

/// Whole blocks of a write that are on the device already, and that no file knows of yet.
struct Ahead<'a> {
    /// Blocks of the file.
    blocks: Range<u64>,
    reserved: Reserved<'a>,
    extents: Vec<Extent>,
}

impl Ahead<'_> {
    /// Gives the blocks to the stream, from the first one on, as far as there is room for that and so many bytes beside it. Up to
    /// which block, and how many of those held something before.
    fn map(&self, t: &mut FileTxn<'_>, sid: u64, beside_bytes: usize) -> VolResult<(u64, u64)> {
        let (mut placed, mut held) = (self.blocks.start, 0);
        for e in &self.extents {
            let Some(n) = t.unmap(sid, e.file_block, e.end(), entered_bytes(e.len()) + beside_bytes)? else { break };
            t.map_fresh(sid, e);
            (placed, held) = (e.end(), held + n);
        }
        Ok((placed, held))
    }
}

/// When the data of a write reaches the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reaches {
    /// Before the write returns: somebody waits for stable storage right after it.
    Now,
    /// Some time before it has to be durable.
    Soon,
}

/// A change of one block that lies, or will lie, in the tree.
enum Edit<'a> {
    Put(Vec<u8>),
    /// Of what is in the tree already.
    Patch(usize, &'a [u8]),
}

impl Files {
    /// How much of a write is all or nothing.
    fn write_bytes_max(&self) -> usize {
        let blocks = self.engine.state.wal.record_bytes_max() / RECORD_BYTES_A_BLOCK;
        (blocks * BLOCK).clamp(WRITE_BYTES_MIN, WRITE_BYTES_MAX)
    }

    /// Writes whole blocks to reserved places; `data` is padded with zeros.
    fn write_blocks(
        &self,
        reserved: &Reserved<'_>,
        file_block: u64,
        data: &[u8],
        when: Reaches,
    ) -> VolResult<Vec<Extent>> {
        let mut out = Vec::with_capacity(reserved.runs.len());
        let (mut at, mut block) = (0, file_block);
        for run in &reserved.runs {
            let end = (at + run.len as usize * BLOCK).min(data.len());
            let part = &data[at..end];
            let padded;
            let bytes = if part.len() % BLOCK == 0 {
                part
            } else {
                let mut p = part.to_vec();
                p.resize(run.len as usize * BLOCK, 0);
                padded = p;
                &padded
            };
            let sums: Vec<u64> = bytes.chunks_exact(BLOCK).map(xxh3_64).collect();
            let extent = Extent { file_block: block, dev_block: run.start, birth: 0, sums };
            // While the processor still has the bytes at hand. Nobody finds them before a file has these blocks.
            self.blocks.keep(&extent, bytes);
            match when {
                Reaches::Now => self.engine.device.write(run.start * B, bytes)?,
                Reaches::Soon => self.engine.device.write_soon(run.start * B, bytes)?,
            }
            out.push(extent);
            at = end;
            block += run.len;
        }
        Ok(out)
    }
}

/// Which blocks a large write of a file that ends at `eof` fills: its last one too where nothing comes after it.
fn fresh_blocks(offset: u64, len: usize, eof: u64) -> Range<u64> {
    let end = offset + len as u64;
    offset.div_ceil(B)..if end >= eof { end.div_ceil(B) } else { end / B }
}

impl<'a> Target<'a> {
    pub fn load(&self, view: &dyn View) -> Result<Subject, StoreError> {
        Subject::load(view, self.file, self.stream.get().map(|s| &**s))
    }

    pub fn read(&self, offset: u64, buf: &mut [u8], wait: Wait) -> Result<usize> {
        let _lock = match wait {
            Wait::Yes => self.file.keep_data(),
            Wait::No => self.file.try_keep_data().ok_or(NotDone::WouldBlock)?,
        };
        if let Some(placed) = self.placed(offset, buf.len())? {
            return placed.read(self.files, offset, buf, wait);
        }
        let parts = {
            let view = self.files.engine.reading();
            Parts::find(&view, self.load(&view)?.data(), offset, buf.len())?
        };
        parts.read(self.files, buf, wait)
    }

    /// As [`Target::read`], of one copy of what lies on the device.
    pub fn read_copy(&self, copy: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _lock = self.file.keep_data();
        let parts = {
            let view = self.files.engine.reading();
            Parts::find(&view, self.load(&view)?.data(), offset, buf.len())?
        };
        parts.read_copy(self.files, copy, buf)
    }

    /// Where a part of the file's own data lies that holds all of a read. None: it has to be looked for. The caller keeps the
    /// data as it is.
    fn placed(&self, offset: u64, len: usize) -> Result<Option<Arc<Placed>>> {
        let (None, Some(cache)) = (self.stream.get(), &self.files.blocks.cache) else { return Ok(None) };
        let Some(part) = Placed::part(offset, len) else { return Ok(None) };
        let state = self.file.data_state();
        if let Some(known) = cache.placed(state, part) {
            return Ok(Some(known));
        }
        let view = self.files.engine.reading();
        let found = Placed::find(&view, self.load(&view)?.data(), part)?;
        if let Some(placed) = &found {
            cache.keep_placed(state, part, placed.clone());
        }
        Ok(found)
    }

    /// What a block holds now up to `valid` bytes, from the device; None for a hole.
    fn base(&self, sid: u64, block: u64, valid: usize) -> Result<Option<Vec<u8>>> {
        let (found, enforced) = {
            let view = self.files.engine.reading();
            (extents(&view, sid, block, block + 1)?, self.load(&view)?.data().integrity.is_enforced())
        };
        let Some(e) = found.first() else { return Ok(None) };
        let mut bytes = vec![0; BLOCK];
        self.files.read_extent(&e.part(block, block + 1), &mut bytes, enforced)?;
        bytes.truncate(valid);
        Ok(Some(bytes))
    }

    /// How to bring `bytes` into one block at `at`. The file's data is locked, so what is read here stays true.
    fn edit<'b>(&self, sid: u64, eof: u64, block: u64, at: usize, bytes: &'b [u8]) -> Result<Edit<'b>> {
        let valid = eof.saturating_sub(block * B).min(B) as usize;
        if at == 0 && bytes.len() >= valid {
            return Ok(Edit::Put(bytes.to_vec()));
        }
        if self.files.engine.reading().get(&keys::two(keys::BLOCK, sid, block))?.is_some() {
            return Ok(Edit::Patch(at, bytes));
        }
        let mut value = self.base(sid, block, valid)?.unwrap_or_default();
        value.resize(value.len().max(at + bytes.len()), 0);
        value[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(Edit::Put(value))
    }

    /// Enters an edit; 1 when the block held nothing before.
    fn apply(&self, t: &mut FileTxn<'_>, sid: u64, block: u64, edit: Edit<'_>) -> VolResult<u64> {
        let key = keys::two(keys::BLOCK, sid, block);
        let old = t.get(&key)?;
        if old.is_none() {
            t.changes.counters.resident += 1;
        }
        let new = old.is_none() && extents(t, sid, block, block + 1)?.is_empty();
        match (edit, old) {
            (Edit::Put(value), _) => t.put(key, value),
            (Edit::Patch(at, bytes), old) => t.patch(key, old.as_deref().unwrap_or(&[]), at, bytes),
        }
        if !t.core.dirty.contains_key(&sid) {
            t.changes.dirty.push((sid, Some(self.file.ino)));
        }
        Ok(u64::from(new))
    }

    /// Writes all of it; the number of the last operation.
    pub fn write(&self, offset: u64, data: &[u8], wait: Wait, when: Reaches) -> Result<u64> {
        let end = offset.checked_add(data.len() as u64).filter(|e| *e <= FILE_BYTES_MAX);
        end.ok_or(StoreError::DiskFull)?;
        if wait == Wait::No && data.len() >= DIRECT_BYTES_MIN {
            return Err(NotDone::WouldBlock);
        }
        let mut seq = 0;
        let mut at = 0;
        loop {
            // Cut where blocks end.
            let n = (self.files.write_bytes_max() - (offset + at as u64) as usize % BLOCK).min(data.len() - at);
            self.files.engine.make_room()?;
            let (from, part) = (offset + at as u64, &data[at..at + n]);
            // Blocks that are nobody's yet need no lock: writes of one file go to the device side by side.
            let ahead = match n < DIRECT_BYTES_MIN {
                true => None,
                false => Some(self.write_ahead(from, part, when).or_else(|e| self.write_ahead_again(e, from, part))?),
            };
            let _lock = match wait {
                Wait::Yes => self.file.change_data(),
                Wait::No => self.file.try_change_data().ok_or(NotDone::WouldBlock)?,
            };
            let (done, last) = self.write_part(from, part, ahead)?;
            seq = last.max(seq);
            at += done;
            if at == data.len() {
                return Ok(seq);
            }
        }
    }

    /// Writes what fills whole blocks to fresh ones.
    fn write_ahead(&self, offset: u64, data: &[u8], when: Reaches) -> Result<Ahead<'a>> {
        let files = self.files;
        let eof = self.load(&files.engine.reading())?.data().eof;
        let blocks = fresh_blocks(offset, data.len(), eof);
        let end = offset + data.len() as u64;
        let (from, to) = (blocks.start * B, (blocks.end * B).min(end));
        let bytes = &data[(from - offset) as usize..(to - offset) as usize];
        let write = |reserved: &Reserved<'_>| files.write_blocks(reserved, blocks.start, bytes, when);
        let (reserved, extents) = files.engine.place(blocks.end - blocks.start, write)?;
        Ok(Ahead { blocks, reserved, extents })
    }

    /// What the last checkpoint's tree alone holds goes with the next one.
    fn write_ahead_again(&self, failed: NotDone, offset: u64, data: &[u8]) -> Result<Ahead<'a>> {
        if failed != StoreError::DiskFull || self.files.engine.checkpoint().is_err() {
            return Err(failed);
        }
        self.write_ahead(offset, data, Reaches::Now)
    }

    /// The file's data is locked. How many bytes were written: less where one operation has no room for what they replace, or
    /// the log has none left just now.
    fn write_part(&self, offset: u64, data: &[u8], ahead: Option<Ahead<'a>>) -> Result<(usize, u64)> {
        let files = self.files;
        let (sid, eof) = {
            let s = self.load(&files.engine.reading())?;
            (s.data().sid, s.data().eof)
        };
        let mut end = offset + data.len() as u64;
        let (first, last) = (offset / B, end.div_ceil(B));
        let mut ahead = match ahead {
            // The file grew over the end of this write meanwhile.
            Some(a) if a.blocks != fresh_blocks(offset, data.len(), eof) => {
                drop(a);
                Some(self.write_ahead(offset, data, Reaches::Now)?)
            }
            other => other,
        };
        let (mid_from, mid_to) = ahead.as_ref().map_or((last, last), |a| (a.blocks.start, a.blocks.end));
        let mut edits = Vec::new();
        for block in (first..mid_from).chain(mid_to..last) {
            let (from, to) = ((block * B).max(offset), ((block + 1) * B).min(end));
            let bytes = &data[(from - offset) as usize..(to - offset) as usize];
            edits.push((block, self.edit(sid, eof, block, (from - block * B) as usize, bytes)?));
        }
        let mut t = files.begin_beside();
        let mut s = self.load(&t)?;
        let (mut more, mut left) = (0, Vec::new());
        if let Some(a) = &mut ahead {
            let (placed, held) = a.map(&mut t, sid, edits.len() * EDIT_BYTES_MAX)?;
            if placed < mid_to {
                if !t.has_all_room() {
                    // All of it, or as much as there is ever room for.
                    return Ok((0, 0));
                }
                end = placed * B;
            }
            more += (placed - mid_from) as i64 - held as i64;
            let (entered, rest) = a.reserved.split(placed - mid_from);
            entered.into_iter().for_each(|r| t.enter(r));
            (t.data, left) = (placed > mid_from, rest);
        }
        if end <= offset || (ahead.is_none() && !t.has_room(edits.len() * EDIT_BYTES_MAX)) {
            return Ok((0, 0));
        }
        for (block, edit) in edits.into_iter().filter(|(block, _)| block * B < end) {
            more += self.apply(&mut t, sid, block, edit)? as i64;
        }
        let d = s.data_mut();
        d.blocks = d.blocks.saturating_add_signed(more);
        d.eof = d.eof.max(end);
        s.touch();
        s.save(&mut t);
        let seq = t.commit()?;
        ahead.into_iter().for_each(|mut a| a.reserved.runs = std::mem::take(&mut left));
        Ok(((end - offset) as usize, seq))
    }

    pub fn set_sparse(&self, sparse: bool) -> Result<u64> {
        self.files.engine.make_room()?;
        let mut t = self.files.begin();
        let mut s = self.load(&t)?;
        s.data_mut().sparse = sparse;
        s.inode.change = now();
        s.save(&mut t);
        Ok(t.commit()?)
    }

    pub fn set_integrity(&self, integrity: Integrity) -> Result<u64> {
        self.files.engine.make_room()?;
        // Where data lies is known together with whether it is enforced.
        let _lock = self.file.change_data();
        let mut t = self.files.begin();
        let mut s = self.load(&t)?;
        s.data_mut().integrity = integrity;
        s.inode.change = now();
        s.save(&mut t);
        Ok(t.commit()?)
    }
}
