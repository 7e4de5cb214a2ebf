//! Simple and mirrored layouts: writes in place to every copy, with the region marked in the
//! log before the copies may differ; reads from the copy that answers soonest.

use std::cell::RefCell;
use std::rc::Rc;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, Buf, IoError, LocalFuture, SharedBuf};

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::open_disk::DiskRt;
use crate::map::pool_map::{Group, ROTATING, Shape};
use crate::pool::open_pool::{GroupRt, Pool, SpaceRt, User};
use crate::pool::slab::SlabUse;
use crate::space::open_space::{Part, Space, Verifier, no_content, parts};
use crate::state::journal::Item;
use crate::state::map::GroupChange;

/// A part of a request that lies in one column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) column: usize,
    pub(crate) slab_at: u64,
    pub(crate) len: u64,
    /// Offset within the group.
    pub(crate) at: u64,
}

pub(crate) fn pieces(shape: &Shape, at: u64, len: u64) -> Vec<Piece> {
    if shape.columns == 1 {
        return vec![Piece { column: 0, slab_at: at, len, at }];
    }
    let (mut pos, end, columns) = (at, at + len, shape.columns as u64);
    let mut out = Vec::with_capacity(2);
    while pos < end {
        let unit = pos / shape.interleave;
        let n = ((unit + 1) * shape.interleave).min(end) - pos;
        let slab_at = unit / columns * shape.interleave + pos % shape.interleave;
        out.push(Piece { column: (unit % columns) as usize, slab_at, len: n, at: pos });
        pos += n;
    }
    out
}

/// How often the copies of a part are asked in turn while the set of readable copies changes.
const COPY_ROUNDS_MAX: usize = 8;

/// A copy of a piece, and the hold on its slab.
struct Source {
    disk: Rc<DiskRt>,
    at: u64,
    _slab: SlabUse,
}

/// Where a copy of a piece is written: the attachment of the disk and the slab, which nobody else gets until it is.
struct Place {
    piece_column: usize,
    /// Which of the group's columns that is.
    column: usize,
    disk: Rc<DiskRt>,
    slab: u32,
}

/// Numbers of blocks, and of each the version that lies in its place.
pub(crate) type Versions = Rc<RefCell<Vec<(u64, u64)>>>;

/// Counts a write in its regions for as long as it lives, so that cleaning leaves them alone.
struct Touch {
    group: Rc<GroupRt>,
    bits: Vec<u32>,
}

impl Touch {
    fn new(group: &Rc<GroupRt>, bits: Vec<u32>) -> Touch {
        group.regions.begin_writes(&bits);
        Touch { group: group.clone(), bits }
    }
}

impl Drop for Touch {
    fn drop(&mut self) {
        self.group.regions.end_writes(&self.bits);
    }
}

/// Marks that go to the log with a write.
pub(crate) struct WarmRegions {
    group: usize,
    pub(crate) items: Vec<Item>,
    touch: Touch,
}

fn regions(shape: &Shape, part: &Part) -> Vec<u32> {
    (part.at / shape.region_bytes..(part.at + part.len).div_ceil(shape.region_bytes)).map(|r| r as u32).collect()
}

impl Pool {
    /// May this column's slab be read at this region?
    pub(crate) fn column_valid(&self, group: &Group, column: usize, bit: usize) -> bool {
        let c = &group.columns[column];
        (!c.stale || !group.dirty.get(bit)) && self.online(c.disk)
    }

    /// Records, durably, that the copies of these regions may differ.
    async fn mark_dirty(&self, space: &SpaceRt, group: usize, bits: &[u32], by_commit: bool) -> SpaceResult<()> {
        let items = self.mark_items(space, group, bits)?;
        if items.is_empty() || self.0.life.is_opening() {
            return Ok(());
        }
        if by_commit {
            return self.commit().await;
        }
        self.journal_append(items).await?;
        self.marks_are_durable(space, group, bits);
        Ok(())
    }

    /// Marks in memory, and what the log has to say of it.
    pub(crate) fn mark_items(&self, space: &SpaceRt, group: usize, bits: &[u32]) -> SpaceResult<Vec<Item>> {
        let Some(rt) = space.group_rt(group) else { return Err(SpaceError::Closed) };
        let Some(incarnation) = self.0.map.read().group(space.id, group).map(|g| g.incarnation) else {
            return Err(SpaceError::Closed);
        };
        self.0.map.apply_to(space.id, group, &GroupChange::Dirty(bits));
        let unmarked = bits.iter().copied().filter(|&bit| !rt.regions.is_marked(bit));
        Ok(unmarked.map(|bit| Item::Dirty { space: space.id, group: group as u32, incarnation, bit }).collect())
    }

    pub(crate) fn marks_are_durable(&self, space: &SpaceRt, group: usize, bits: &[u32]) {
        let map = self.0.map.read();
        if let (Some(g), Some(rt)) = (map.group(space.id, group), space.group_rt(group)) {
            rt.regions.marks_are_durable(bits.iter().map(|&b| b as usize).filter(|&b| g.dirty.get(b)));
        }
    }
}

impl Space {
    /// A write in place.
    pub(crate) async fn write_direct(&self, offset: u64, data: SharedBuf, durable: bool) -> SpaceResult<()> {
        let shape = self.rt.shape;
        let list = parts(&shape, offset, data.len() as u64);
        let mut touches = Vec::new();
        if shape.layout.copies() > 1 {
            for p in &list {
                let Some(g) = self.rt.group_rt(p.group) else { return Err(SpaceError::Closed) };
                let mut bits = regions(&shape, p);
                let ahead = g.regions.to_mark_ahead(&bits, shape.dirty_bits() as u32);
                if !ahead.is_empty() && self.misses_nothing(p.group) {
                    bits.extend(ahead);
                }
                touches.push(Touch::new(&g, bits.clone()));
                self.pool.mark_dirty(&self.rt, p.group, &bits, false).await?;
            }
        }
        let guard = self.rt.locks.lock(offset, offset + data.len() as u64).await;
        if self.newer_elsewhere(offset, data.len() as u64) {
            drop(guard);
            // The log still holds older content that a replay would put over ours.
            let step = self.pool.0.cfg.journal_write_max.max(BLOCK_BYTES as usize);
            let mut at = 0;
            while at < data.len() {
                let n = step.min(data.len() - at);
                self.write_journalled(offset + at as u64, &data.slice(at, n)).await?;
                at += n;
            }
            return Ok(());
        }
        for p in list {
            self.write_part_through(p, &data.slice(p.from, p.len as usize), durable).await?;
        }
        drop(guard);
        drop(touches);
        Ok(())
    }

    /// Would a small durable write in place cost one step only? The log knows already that the
    /// copies of its regions may differ, holds nothing of it, and no arm has to move.
    pub(crate) fn is_marked(&self, offset: u64, len: u64) -> bool {
        let shape = &self.rt.shape;
        parts(shape, offset, len).iter().all(|p| {
            let Some(rt) = self.rt.group_rt(p.group).filter(|_| !self.has_arms(p.group)) else { return false };
            regions(shape, p).iter().all(|&b| rt.regions.is_marked(b))
        }) && !self.newer_elsewhere(offset, len)
    }

    /// No copy misses anything: what is marked needlessly is only forgotten again, never copied to a disk that returns.
    fn misses_nothing(&self, group: usize) -> bool {
        let map = self.pool.0.map.read();
        map.group(self.rt.id, group).is_some_and(|g| self.pool.is_whole(g))
    }

    /// Random writes of the group cost an arm its time: the log spares it that.
    pub(crate) fn has_arms(&self, group: usize) -> bool {
        let map = self.pool.0.map.read();
        let rotating = |d: u16| map.disks.get(&d).is_none_or(|d| d.media == ROTATING);
        map.group(self.rt.id, group).is_none_or(|g| g.columns.iter().any(|c| rotating(c.disk)))
    }

    /// Regions that small durable writes come to again and again are marked with the second, in
    /// the same batch: those that follow go to their place at once. Gives the marks, to be kept
    /// until the batch is durable.
    pub(crate) fn warm_up(&self, part: &Part) -> SpaceResult<WarmRegions> {
        let Some(rt) = self.rt.group_rt(part.group) else { return Err(SpaceError::Closed) };
        let mut bits = regions(&self.rt.shape, part);
        let arms = self.has_arms(part.group);
        bits.retain(|&b| !arms && rt.regions.warm_up(b));
        let touch = Touch::new(&rt, bits.clone());
        let items = if bits.is_empty() { Vec::new() } else { self.pool.mark_items(&self.rt, part.group, &bits)? };
        Ok(WarmRegions { group: part.group, items, touch })
    }

    pub(crate) fn warmed_up(&self, w: &WarmRegions) {
        self.pool.marks_are_durable(&self.rt, w.group, &w.touch.bits);
    }

    fn newer_elsewhere(&self, offset: u64, len: u64) -> bool {
        let (a, b) = (offset / BLOCK_BYTES, (offset + len) / BLOCK_BYTES);
        self.rt.overlay.borrow().count(a, b) > 0 || self.rt.logged.any_in(a..b)
    }

    /// Writes one group's part to every copy. The range is locked and its regions are marked.
    pub(crate) async fn write_part(&self, part: Part, data: &SharedBuf) -> SpaceResult<()> {
        self.write_part_through(part, data, false).await
    }

    /// With `through` each disk makes its part durable in the same step. That beats a flush
    /// afterwards, shared or not: one trip instead of two, and the kernel merges the cache
    /// flushes of writes that are in flight together.
    async fn write_part_through(&self, part: Part, data: &SharedBuf, through: bool) -> SpaceResult<()> {
        let shape = &self.rt.shape;
        let copies = shape.layout.copies();
        let list = pieces(shape, part.at, part.len);
        let mut places: Vec<Place> = Vec::new();
        let mut writes: Vec<LocalFuture<Result<(), IoError>>> = Vec::new();
        {
            let map = self.pool.0.map.read();
            let Some(group) = map.group(self.rt.id, part.group) else { return Err(SpaceError::Closed) };
            if !self.pool.group_usable(shape, group) {
                return Err(SpaceError::Offline);
            }
            if copies > 1
                && !self.pool.is_whole(group)
                && let Some(rt) = self.rt.group_rt(part.group)
            {
                let blocks = part.at / BLOCK_BYTES..(part.at + part.len).div_ceil(BLOCK_BYTES);
                rt.regions.note_missed(blocks, shape.region_bytes / BLOCK_BYTES);
            }
            for p in &list {
                let bytes = data.slice((p.at - part.at) as usize, p.len as usize);
                for k in 0..copies {
                    let column = p.column * copies + k;
                    let c = &group.columns[column];
                    for (d, s) in [Some((c.disk, c.slab)), c.target].into_iter().flatten() {
                        let Some(disk) = self.pool.disk(d).filter(|d| d.online.get()) else { continue };
                        let at = disk.areas.data_at + u64::from(s) * shape.slab_bytes + p.slab_at;
                        let bytes = bytes.clone();
                        let slab = self.pool.use_slab(d, s);
                        places.push(Place { piece_column: p.column, column, disk: disk.clone(), slab: s });
                        writes.push(Box::pin(async move {
                            let _slab = slab;
                            disk.write(at, bytes, through).await
                        }));
                    }
                }
            }
        }
        let results = join_all(writes).await;
        if results.iter().all(Result::is_ok) {
            return self.pool.wait_departures_durable().await;
        }
        self.finish_write(part, &list, &places, &results).await
    }

    /// Is this place a copy that counts now? Only such a one proves a write; it may have been brought up to date, or
    /// have become the column, while we wrote.
    fn is_good(&self, group: usize, place: &Place) -> bool {
        let map = self.pool.0.map.read();
        let here = self.pool.disk(place.disk.index).is_some_and(|d| d.online.get() && Rc::ptr_eq(&d, &place.disk));
        let column = map.group(self.rt.id, group).map(|g| &g.columns[place.column]);
        here && column.is_some_and(|c| !c.stale && (c.disk, c.slab) == (place.disk.index, place.slab))
    }

    /// Some copies failed: their disks leave, unless they are the last.
    async fn finish_write(
        &self,
        part: Part,
        list: &[Piece],
        places: &[Place],
        results: &[Result<(), IoError>],
    ) -> SpaceResult<()> {
        let mut error = None;
        if self.rt.shape.layout.copies() == 1 {
            for (p, r) in places.iter().zip(results) {
                if let Err(e) = r {
                    error = Some(SpaceError::Device(*e));
                    if *e == IoError::Gone {
                        self.pool.fail_disk(&p.disk, "gone").await?;
                    }
                }
            }
            if error.is_some() {
                self.pool.write_was_lost().await;
            }
            return error.map_or(Ok(()), Err);
        }
        let failed = |d: u16| places.iter().zip(results).any(|(p, r)| p.disk.index == d && r.is_err());
        let proves = |p: &Place| !failed(p.disk.index) && self.is_good(part.group, p);
        let good = |column: usize| places.iter().any(|p| p.piece_column == column && proves(p));
        let lost = list.iter().any(|p| !good(p.column));
        let mut done: Vec<u16> = Vec::new();
        for (p, r) in places.iter().zip(results) {
            let Err(e) = r else { continue };
            if done.contains(&p.disk.index) {
                continue;
            }
            done.push(p.disk.index);
            if !lost || *e == IoError::Gone {
                self.pool.fail_disk(&p.disk, "write failed").await?;
            }
            error = Some(SpaceError::Device(*e));
        }
        if lost {
            self.suspect(&part);
            self.pool.write_was_lost().await;
            return Err(error.unwrap_or(SpaceError::Offline));
        }
        self.pool.wait_departures_durable().await?;
        // Between our write and now another disk may have left: is a good copy still there?
        let map = self.pool.0.map.read();
        let ok = map.group(self.rt.id, part.group).is_some_and(|g| self.pool.group_usable(&self.rt.shape, g));
        if ok { Ok(()) } else { Err(SpaceError::Offline) }
    }

    /// Nobody was told that what was written is there, and it may be on some copies only: they are made equal in the background.
    /// Whoever verifies what he reads can tell them apart.
    fn suspect(&self, part: &Part) {
        let Some(g) = self.rt.group_rt(part.group) else { return };
        if self.rt.user.get() != User::Verifying {
            g.regions.suspect(&regions(&self.rt.shape, part));
            self.rt.views.gate(part.group).raise();
        }
    }

    pub(crate) async fn read_mirror(&self, part: Part) -> SpaceResult<Buf> {
        let shape = &self.rt.shape;
        if shape.layout.copies() > 1
            && self.rt.user.get() != User::Verifying
            && let Some(g) = self.rt.group_rt(part.group)
            && g.regions.any_suspect()
        {
            let mut bits = regions(shape, &part);
            bits.retain(|&bit| g.regions.is_suspect(bit as usize));
            for &bit in bits.iter().filter(|&&bit| g.regions.is_left_by_crash(bit as usize)) {
                self.equalize_region(part.group, bit as usize).await?;
            }
            // No copy can be written there now, perhaps: all reads get the same one.
            if bits.iter().any(|&bit| g.regions.is_suspect(bit as usize)) {
                return self.read_any_copy(part, |_| true).await;
            }
        }
        let list = pieces(shape, part.at, part.len);
        if list.len() == 1 {
            return self.read_piece(part.group, list[0]).await;
        }
        let mut all: Vec<LocalFuture<SpaceResult<Buf>>> = Vec::new();
        for &p in &list {
            let me = self.clone();
            all.push(Box::pin(async move { me.read_piece(part.group, p).await }));
        }
        let mut buf = Buf::new(part.len as usize);
        for (p, r) in list.iter().zip(join_all(all).await) {
            let at = (p.at - part.at) as usize;
            buf[at..at + p.len as usize].copy_from_slice(&r?);
        }
        Ok(buf)
    }

    /// The copies that may be read, best first.
    fn candidates(&self, group: usize, piece: &Piece, choice: Option<usize>) -> Vec<Source> {
        let shape = &self.rt.shape;
        let copies = shape.layout.copies();
        let map = self.pool.0.map.read();
        let Some(g) = map.group(self.rt.id, group) else { return Vec::new() };
        let bits = piece.at / shape.region_bytes..(piece.at + piece.len).div_ceil(shape.region_bytes);
        let slow = if copies > 1 { self.pool.slow_disks() } else { Vec::new() };
        let prefer = (piece.slab_at >> 20) as usize % copies;
        let mut out = Vec::with_capacity(copies);
        for k in (0..copies).filter(|&k| choice.is_none_or(|c| c == k)) {
            let c = &g.columns[piece.column * copies + k];
            if !bits.clone().all(|b| self.pool.column_valid(g, piece.column * copies + k, b as usize)) {
                continue;
            }
            let Some(d) = self.pool.disk(c.disk) else { continue };
            let at = d.areas.data_at + u64::from(c.slab) * shape.slab_bytes + piece.slab_at;
            let rank = (slow.contains(&c.disk), d.reads.reading(), (k + copies - prefer) % copies);
            out.push((rank, Source { disk: d, at, _slab: self.pool.use_slab(c.disk, c.slab) }));
        }
        out.sort_by_key(|o| o.0);
        out.into_iter().map(|o| o.1).collect()
    }

    /// Reads one copy, the best first. The copies are looked up again after each failure: one that was brought up to
    /// date after the read began counts too. Each attachment of a disk is asked once, and those that had unreadable sectors once more
    /// behind the others, and behind each disk that leaves: these sectors may have been written meanwhile, and be the only copy by then.
    async fn read_piece(&self, group: usize, piece: Piece) -> SpaceResult<Buf> {
        let mut asked: Vec<(Rc<DiskRt>, u64)> = Vec::new();
        let mut error = None;
        let (mut unread, mut may_look_again) = (false, true);
        loop {
            let is_new = |s: &Source| !asked.iter().any(|(disk, at)| Rc::ptr_eq(disk, &s.disk) && *at == s.at);
            let Some(source) = self.candidates(group, &piece, None).into_iter().find(is_new) else {
                if unread && may_look_again && asked.len() > 1 {
                    may_look_again = false;
                    asked.clear();
                    continue;
                }
                return Err(error.map_or(SpaceError::Offline, SpaceError::Device));
            };
            match source.disk.read(source.at, piece.len as usize).await {
                Ok(b) => {
                    if unread {
                        self.copy_unread(group, piece).await;
                    }
                    return Ok(b);
                }
                Err(e) => {
                    error = Some(e);
                    if e == IoError::Gone && source.disk.online.get() {
                        self.pool.fail_disk(&source.disk, "gone").await?;
                    }
                    unread |= e == IoError::Media;
                    may_look_again |= e == IoError::Gone;
                    asked.push((source.disk.clone(), source.at));
                }
            }
        }
    }

    /// The first copy of a part that can be read and that `accept` takes. The copies are tried again as long as others
    /// than before can be read: one may come up to date, and the next leave, while they are asked in turn. `Unreadable` is
    /// lost; a disk that did not answer, noticed by others or not, may still have it.
    pub(crate) async fn read_any_copy(&self, part: Part, accept: impl Fn(&Buf) -> bool) -> SpaceResult<Buf> {
        let mut error = SpaceError::Unreadable;
        for _ in 0..COPY_ROUNDS_MAX {
            error = SpaceError::Unreadable;
            let before = self.readable_copies(part);
            for copy in 0..self.rt.shape.layout.copies() {
                match self.read_choice(part, copy).await {
                    Ok(b) if accept(&b) => return Ok(b),
                    Ok(_) | Err(SpaceError::Unreadable | SpaceError::Device(IoError::Media)) => {}
                    Err(_) => error = SpaceError::Offline,
                }
            }
            if self.readable_copies(part) == before {
                break;
            }
        }
        Err(error)
    }

    /// Which attachments of disks hold readable copies of a part, and where.
    fn readable_copies(&self, part: Part) -> Vec<(*const DiskRt, u64)> {
        let list = pieces(&self.rt.shape, part.at, part.len);
        let sources = list.iter().flat_map(|p| self.candidates(part.group, p, None));
        let mut all: Vec<_> = sources.map(|s| (Rc::as_ptr(&s.disk), s.at)).collect();
        all.sort_unstable();
        all
    }

    /// One copy of a part, without repair.
    pub(crate) async fn read_choice(&self, part: Part, copy: usize) -> SpaceResult<Buf> {
        let mut buf = Buf::new(part.len as usize);
        for p in pieces(&self.rt.shape, part.at, part.len) {
            let Some(source) = self.candidates(part.group, &p, Some(copy)).into_iter().next() else {
                return Err(SpaceError::Unreadable);
            };
            let b = source.disk.read(source.at, p.len as usize).await?;
            let to = (p.at - part.at) as usize;
            buf[to..to + p.len as usize].copy_from_slice(&b);
        }
        Ok(buf)
    }

    /// Looks for a copy of one block that the verifier accepts and puts it over the others; unless `always`, only where
    /// the one that reads get does not pass.
    pub(crate) async fn heal_mirror(&self, offset: u64, verify: &Verifier, always: bool) -> SpaceResult<Buf> {
        let shape = self.rt.shape;
        let Some(part) = parts(&shape, offset, BLOCK_BYTES).into_iter().next() else {
            return Err(SpaceError::BadRange);
        };
        let Some(_hold) = self.hold(part.group) else { return no_content(offset, verify) };
        let Some(g) = self.rt.group_rt(part.group) else { return Err(SpaceError::Unreadable) };
        let bits = regions(&shape, &part);
        let _touch = Touch::new(&g, bits.clone());
        if shape.layout.copies() > 1 {
            self.pool.mark_dirty(&self.rt, part.group, &bits, false).await?;
        }
        let _guard = self.rt.locks.lock(offset, offset + BLOCK_BYTES).await;
        if !always
            && let Ok(b) = self.read_at(offset, BLOCK_BYTES as usize).await
            && verify(offset, &b)
        {
            return Ok(b);
        }
        if let Ok(b) = self.read_any_copy(part, |b| verify(offset, b)).await {
            let b = b.share();
            self.note_wrong_copies(part, verify).await;
            match self.write_part(part, &b).await {
                Ok(()) => self.pool.event(format!("healed block at {offset} of space {}", self.rt.id)),
                // Who only reads gets what is good, whether or not the other copies take it.
                Err(e) if !always => {
                    self.pool.event(format!("block at {offset} of space {}: not healed: {e}", self.rt.id))
                }
                Err(e) => return Err(e),
            }
            return Ok(b.into_buf());
        }
        self.gathered(offset, verify).ok_or(SpaceError::Unreadable)
    }

    /// Puts logged blocks in their place: every run of neighbours is one write. They stay in memory until they are
    /// flushed: `placed` gets their numbers and versions.
    pub(crate) async fn apply_mirror(&self, bytes_max: u64, placed: &Versions) -> SpaceResult<()> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let (mut n, mut error) = (0, None);
        {
            let o = self.rt.overlay.borrow();
            let opening = self.pool.0.life.is_opening();
            let per = self.rt.shape.group_bytes / BLOCK_BYTES;
            let mut at = (u64::MAX, true);
            for (b, e) in o.snapshot(0, u64::MAX) {
                if at.0 != b / per {
                    at = (b / per, self.group_serves((b / per) as usize));
                }
                if !at.1 {
                    // It waits for its disks, and nobody else for it.
                    error = Some(SpaceError::Offline);
                    continue;
                }
                if (!e.is_logged() && !opening) || n * BLOCK_BYTES >= bytes_max {
                    continue;
                }
                n += 1;
                match runs.last_mut() {
                    Some(r) if r.1 == b && r.1 - r.0 < 256 => r.1 += 1,
                    _ => runs.push((b, b + 1)),
                }
            }
        }
        let mut all: Vec<LocalFuture<SpaceResult<()>>> = Vec::new();
        for (a, b) in runs {
            let (me, placed) = (self.clone(), placed.clone());
            all.push(Box::pin(async move { me.apply_run(a, b, &placed).await }));
            if all.len() >= 64 {
                error = join_all(std::mem::take(&mut all)).await.into_iter().find_map(Result::err).or(error);
            }
        }
        error = join_all(all).await.into_iter().find_map(Result::err).or(error);
        error.map_or(Ok(()), Err)
    }

    async fn apply_run(&self, first: u64, end: u64, placed: &Versions) -> SpaceResult<()> {
        let shape = self.rt.shape;
        let (start, len) = (first * BLOCK_BYTES, (end - first) * BLOCK_BYTES);
        let _guard = self.rt.locks.lock(start, start + len).await;
        // Nothing of a round comes after the close.
        self.pool.alive()?;
        let opening = self.pool.0.life.is_opening();
        // What was replaced while we waited is taken as it is now, if it is in the log.
        let now: Vec<(u64, crate::state::overlay::Entry)> = self.rt.overlay.borrow().snapshot(first, end);
        let now: Vec<_> = now.into_iter().filter(|(_, e)| e.is_logged() || opening).collect();
        let mut i = 0;
        while i < now.len() {
            let mut j = i + 1;
            while j < now.len() && now[j].0 == now[j - 1].0 + 1 {
                j += 1;
            }
            let mut buf = Buf::new((j - i) * BLOCK_BYTES as usize);
            for (k, (_, e)) in now[i..j].iter().enumerate() {
                let at = k * BLOCK_BYTES as usize;
                buf[at..at + BLOCK_BYTES as usize].copy_from_slice(&e.data);
            }
            let data = buf.share();
            for p in parts(&shape, now[i].0 * BLOCK_BYTES, data.len() as u64) {
                self.apply_part(p, &data.slice(p.from, p.len as usize)).await?;
            }
            placed.borrow_mut().extend(now[i..j].iter().map(|(b, e)| (*b, e.version)));
            i = j;
        }
        Ok(())
    }

    /// The log covers a crash here; only what an absent copy misses has to be marked.
    async fn apply_part(&self, part: Part, data: &SharedBuf) -> SpaceResult<()> {
        let shape = &self.rt.shape;
        let degraded = {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, part.group) else { return Ok(()) };
            g.columns.iter().any(|c| c.stale || !self.pool.online(c.disk))
        };
        let Some(g) = self.rt.group_rt(part.group) else { return Ok(()) };
        let bits = regions(shape, &part);
        let _touch = Touch::new(&g, bits.clone());
        if degraded && shape.layout.copies() > 1 {
            self.pool.mark_dirty(&self.rt, part.group, &bits, true).await?;
        }
        self.write_part(part, data).await
    }

    pub(crate) async fn discard_mirror(&self, start: u64, part: Part) -> SpaceResult<()> {
        // Zeros written as data keep the copies equal; 1 MiB at a time keeps memory bounded.
        let mut at = 0;
        while at < part.len {
            let n = (part.len - at).min(1 << 20);
            self.write_direct(start + at, Buf::zeroed(n as usize).share(), false).await?;
            at += n;
        }
        Ok(())
    }
}
