//! Reading and changing the data of files and streams. Small writes put whole blocks into the tree, by way of the
//! journal; large ones go to fresh blocks of the device. Nothing that has a checksum is ever overwritten in place.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use arden_block::BLOCK_BYTES;
use arden_lock::WriteGuard;
use arden_store::error::{NotDone, StoreError};
use arden_store::open_stream::StreamRef;
use arden_store::store::{Integrity, Result, Wait};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    disk::{
        device::BLOCK,
        error::VolResult,
        inode::{Data, Extent, SnapshotSet},
        keys,
    },
    engine::{alloc::Reserved, view::View},
    files::{
        DIRECT_BYTES_MIN, EXTENTS_AN_OPERATION,
        inodes::now,
        open::OpenFile,
        owner::Files,
        places::{Parts, Placed, extents, resident},
        subject::Subject,
        txn::FileTxn,
    },
};

/// A file has at most this many bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 46;
/// A write of up to this many bytes is one operation on every volume; how much more is, the journal decides.
const WRITE_BYTES_MIN: usize = 16 << 20;
const WRITE_BYTES_MAX: usize = 1 << 30;
/// What a record of the journal holds at most for a block that is written and may be an extent of its own, and for an
/// extent that is taken away and may be shared.
const RECORD_BYTES_A_BLOCK: u64 = 64;
const RECORD_BYTES_AN_EXTENT: u64 = 160;
/// Extents of a file taken away at once where it has more to lose than that, and blocks that lie in the tree as many. What
/// lies between them costs nothing.
const PARTS_A_STEP: usize = 1024;
/// Extents of each file, and blocks of the target that lie in the tree, that one step of a clone is about; and changes
/// from which on it shares no further extent.
const CLONED_A_STEP: usize = EXTENTS_AN_OPERATION / 4;
const CHANGES_A_STEP: usize = 2048;

/// What one operation may still share.
pub struct SharedAStep {
    bytes: usize,
    is_first: bool,
}

impl SharedAStep {
    /// Whether one more extent of so many bytes, with its sums, goes in an operation that has so many changes. The first does.
    pub fn fits(&mut self, bytes: usize, changes: usize) -> bool {
        // Blocks of one extent may have been shared one by one.
        let fits = self.is_first || (bytes <= self.bytes && changes <= CHANGES_A_STEP);
        (self.bytes, self.is_first) = (self.bytes.saturating_sub(bytes), false);
        fits
    }
}
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

/// When the data of a write reaches the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reaches {
    /// Before the write returns: somebody waits for stable storage right after it.
    Now,
    /// Some time before it has to be durable.
    Soon,
}

/// What is to share blocks, in bytes: of the source from `from` on, in the target from `offset` on.
struct Cloned {
    from: u64,
    offset: u64,
    len: u64,
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
        ((blocks * B) as usize).clamp(WRITE_BYTES_MIN, WRITE_BYTES_MAX)
    }

    /// How many extents go in one operation: where a file has more to lose, it loses them in several, from its end, and
    /// a crash between them leaves it at a length between the old one and the new one.
    fn extents_max(&self) -> usize {
        ((self.engine.state.wal.record_bytes_max() / RECORD_BYTES_AN_EXTENT) as usize).max(EXTENTS_AN_OPERATION)
    }

    pub fn shared_a_step(&self) -> SharedAStep {
        SharedAStep { bytes: self.engine.state.wal.record_bytes_max() as usize / 4, is_first: true }
    }

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
            seq = self.write_part(from, part, ahead)?.max(seq);
            at += n;
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

    /// The file's data is locked.
    fn write_part(&self, offset: u64, data: &[u8], ahead: Option<Ahead<'a>>) -> Result<u64> {
        let files = self.files;
        let (sid, eof) = {
            let s = self.load(&files.engine.reading())?;
            (s.data().sid, s.data().eof)
        };
        let end = offset + data.len() as u64;
        let (first, last) = (offset / B, end.div_ceil(B));
        let ahead = match ahead {
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
        let mut t = files.begin();
        let mut s = self.load(&t)?;
        let mut more = 0i64;
        for (block, edit) in edits {
            more += self.apply(&mut t, sid, block, edit)? as i64;
        }
        if let Some(a) = &ahead {
            more += (mid_to - mid_from) as i64 - t.unmap(sid, mid_from, mid_to)? as i64;
            t.data = true;
            a.extents.iter().for_each(|e| t.map_fresh(sid, e));
            a.reserved.runs.iter().for_each(|r| t.enter(*r));
        }
        let d = s.data_mut();
        d.blocks = d.blocks.saturating_add_signed(more);
        d.eof = d.eof.max(end);
        s.touch();
        s.save(&mut t);
        let seq = t.commit()?;
        ahead.into_iter().for_each(|mut a| a.reserved.runs.clear());
        Ok(seq)
    }

    pub fn set_end_of_file(&self, size: u64) -> Result<u64> {
        if size > FILE_BYTES_MAX {
            return Err(StoreError::DiskFull.into());
        }
        // Shorter, as far as can be told without the lock.
        let eof = self.load(&self.files.engine.reading())?.data().eof;
        match size < eof {
            true => self.files.engine.make_room_for_less()?,
            false => self.files.engine.make_room()?,
        }
        let _lock = self.file.change_data();
        self.resize(size, None)
    }

    /// The caller has the data locked. `reserve`: blocks to be kept from now on.
    fn resize(&self, size: u64, reserve: Option<u64>) -> Result<u64> {
        let (sid, eof, blocks) = {
            let s = self.load(&self.files.engine.reading())?;
            (s.data().sid, s.data().eof, s.data().blocks)
        };
        if size < eof && size == 0 && blocks > 0 {
            return self.empty(reserve);
        }
        let mut eof = eof;
        // A file in very many pieces loses them in several operations, from the end.
        while size < eof {
            let lost = extents(&self.files.engine.reading(), sid, size.div_ceil(B), eof.div_ceil(B))?;
            if lost.len() <= self.files.extents_max() {
                break;
            }
            let in_tree = resident(&self.files.engine.reading(), sid, size.div_ceil(B), eof.div_ceil(B))?;
            let first = in_tree.len().checked_sub(PARTS_A_STEP).map_or(0, |i| in_tree[i]);
            let step = lost[lost.len() - PARTS_A_STEP].file_block.max(first) * B;
            self.resize_step(sid, eof, step, None)?;
            eof = step;
        }
        self.resize_step(sid, eof, size, reserve)
    }

    fn resize_step(&self, sid: u64, eof: u64, size: u64, reserve: Option<u64>) -> Result<u64> {
        let files = self.files;
        let cut = (size % B) as usize;
        let tail = if size < eof && cut != 0 {
            // Looked up before the match: its lock must not be held over the next look.
            let in_tree = files.engine.reading().get(&keys::two(keys::BLOCK, sid, size / B))?;
            match in_tree {
                Some(v) => Some(v[..v.len().min(cut)].to_vec()),
                None => self.base(sid, size / B, cut)?,
            }
        } else {
            None
        };
        let mut t = files.begin();
        let mut s = self.load(&t)?;
        if let Some(tail) = tail {
            self.apply(&mut t, sid, size / B, Edit::Put(tail))?;
        }
        let removed = t.unmap(sid, size.div_ceil(B), eof.div_ceil(B).max(size.div_ceil(B)))?;
        let d = s.data_mut();
        d.blocks = d.blocks.saturating_sub(removed);
        if size < eof {
            d.reserved = d.reserved.min(size.div_ceil(B));
        }
        if let Some(r) = reserve {
            d.reserved = r;
        }
        d.eof = size;
        s.touch();
        s.save(&mut t);
        Ok(t.commit()?)
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
        self.files.engine.make_room()?;
        let _lock = self.file.change_data();
        let eof = self.load(&self.files.engine.reading())?.data().eof;
        if size < eof {
            return self.resize(size, Some(0));
        }
        let mut t = self.files.begin();
        let mut s = self.load(&t)?;
        s.data_mut().reserved = size.div_ceil(B);
        s.save(&mut t);
        Ok(t.commit()?)
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
        self.files.engine.make_room_for_less()?;
        let _lock = self.file.change_data();
        let (sid, eof) = {
            let s = self.load(&self.files.engine.reading())?;
            (s.data().sid, s.data().eof)
        };
        let end = offset.saturating_add(len).min(eof);
        if offset >= end {
            return Ok(0);
        }
        let (from, to) = (offset.div_ceil(B), if end == eof { end.div_ceil(B) } else { end / B });
        let mut at = from;
        loop {
            let lost = extents(&self.files.engine.reading(), sid, at, to.max(at))?;
            if lost.len() <= self.files.extents_max() {
                break;
            }
            let in_tree = resident(&self.files.engine.reading(), sid, at, to.max(at))?;
            let step = in_tree.get(PARTS_A_STEP).map_or(to, |b| *b).min(lost[PARTS_A_STEP].file_block);
            self.punch(sid, at, step, Vec::new())?;
            at = step;
        }
        let mut edges = Vec::new();
        for (a, b) in zero_edges(offset, end, from, to) {
            let block = a / B;
            let held = {
                let view = self.files.engine.reading();
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
        self.punch(sid, at, to.max(at), edits)
    }

    fn punch(&self, sid: u64, from: u64, to: u64, edits: Vec<(u64, Edit<'_>)>) -> Result<u64> {
        let mut t = self.files.begin();
        let mut s = self.load(&t)?;
        for (block, edit) in edits {
            self.apply(&mut t, sid, block, edit)?;
        }
        let removed = t.unmap(sid, from, to)?;
        let d = s.data_mut();
        d.blocks = d.blocks.saturating_sub(removed);
        s.touch();
        s.save(&mut t);
        Ok(t.commit()?)
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

    /// Lets `len` bytes at `offset` share the blocks of the source. Offsets are multiples of a block; the end is one or
    /// the end of both files. Goes in steps, from the beginning: between them others may change both files, and each step
    /// is of what they are then. A crash, or a step that fails, leaves what lies behind the last one as it was.
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

    /// Shares as much as goes in one operation, and takes it off what is left. The caller has the data of both locked.
    fn clone_step(&self, source: &Target<'_>, left: &mut Cloned) -> Result<u64> {
        let files = self.files;
        let Cloned { from, offset, len } = *left;
        if from % B != 0 || offset % B != 0 || offset.checked_add(len).is_none_or(|e| e > FILE_BYTES_MAX) {
            return Err(StoreError::InvalidParameter.into());
        }
        let (source_data, sid, eof, sparse) = {
            let view = files.engine.reading();
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
        files.allocate_stream(source_data.sid, true)?;
        let (at, last) = (from / B, end.div_ceil(B));
        let place = |block: u64| block - at + offset / B;
        let (parts, mut to) = {
            let view = files.engine.reading();
            let to = files.one_step(&view, source_data.sid, at, last)?;
            let to = files.one_step(&view, sid, place(at), place(to))? - offset / B + at;
            (extents(&view, source_data.sid, at, to)?, to)
        };
        let mut t = files.begin();
        let mut s = self.load(&t)?;
        let mut shared = Vec::with_capacity(parts.len());
        let mut room = files.shared_a_step();
        for e in &parts {
            if !room.fits(8 * e.len() as usize, t.changes.map.len()) {
                to = e.file_block;
                break;
            }
            let part = e.part(e.file_block.max(at), e.end().min(to));
            t.share(&part)?;
            shared.push(Extent { file_block: place(part.file_block), ..part });
        }
        let removed = t.unmap(sid, place(at), place(to))?;
        shared.iter().for_each(|part| t.map(sid, part));
        let d = s.data_mut();
        d.blocks = (d.blocks + shared.iter().map(Extent::len).sum::<u64>()).saturating_sub(removed);
        // All of it at once, so that what it promises is promised by the first operation or by none.
        d.eof = d.eof.max(offset + len);
        s.touch();
        s.save(&mut t);
        let seq = t.commit()?;
        let done = (to - at) * B;
        *left = Cloned { from: from + done, offset: offset + done, len: len.saturating_sub(done) };
        Ok(seq)
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

#[cfg(test)]
mod tests {
    use arden_store::store::{Node, NodeRef};
    use parking_lot::Mutex;

    use super::*;
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
        assert_eq!(found, [vec![1; first], vec![0; 1000 - first]].concat());
        // Its data has another number then.
        let (done, found) = cloned_while(|source| source.set_end_of_file(None, 0).unwrap());
        assert_eq!(done, Err(StoreError::NotSupported.into()));
        assert_eq!(found, [vec![1; first], vec![0; 1000 - first]].concat());
        let (done, found) = cloned_while(|source| {
            source.write_at(None, 1998 * B, &[2; BLOCK], Wait::Yes).unwrap();
        });
        assert_eq!(done, Ok(()));
        assert_eq!(found, [vec![1; 999], vec![2]].concat());
        let (done, _) = cloned_while(|source| source.unlink(None).unwrap());
        assert_eq!(done, Ok(()), "who uses it has it still");
    }
}
