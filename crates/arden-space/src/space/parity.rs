//! Parity layouts. Small writes gather in memory and in the log. A stripe leaves for a free slot
//! of its group as a whole; then one record turns the stripe over to it. A crash finds the old
//! stripe or the new one, each whole, and a disk lost at the same moment changes nothing: there
//! is no write hole. A few blocks of it are changed in place under the log instead (`patch`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, Buf, IoError, LocalFuture, SharedBuf};

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::open_disk::DiskRt;
use crate::map::pool_map::{Group, UNWRITTEN};
use crate::pool::open_pool::{Pool, SpaceRt};
use crate::pool::slab::SlabUse;
use crate::space::open_space::{Part, Space, Verifier, no_content};
use crate::state::flips::Flip;
use crate::state::map::GroupChange;
use crate::state::overlay::Entry;
use crate::state::patches::Patch;

/// How often a stripe is written again because its disks changed meanwhile.
const REWRITES_MAX: usize = 8;
/// How often a part is looked for again because its disks changed meanwhile.
const LOOKS_MAX: usize = 8;
/// How often a destage looks for a free slot (0.1 ms each when nothing moves).
const SLOT_WAITS_MAX: usize = 300_000;

/// Changes in place under way at once. They share batches of the log: where its arm has to go
/// to and fro between log and stripes, batches should be large.
const PATCH_LANES: usize = 64;
const PATCH_LANES_OF_ARMS: usize = 256;
/// Memory for stripes that are made whole at once.
const DESTAGE_BYTES_MAX: u64 = 16 << 20;

/// Where a column of a stripe was written: the attachment of the disk and the slab, which
/// nobody else gets while we look.
struct Place {
    column: usize,
    disk: Rc<DiskRt>,
    slab: u32,
    _hold: SlabUse,
}

/// Pieces of a stripe (part, offset in the unit, content) that lie wherever they were looked for when that was asked last.
pub(crate) struct Written {
    group: usize,
    slot: u16,
    pieces: Vec<(usize, u64, SharedBuf)>,
    places: Vec<Place>,
}

/// The column that holds part `i` (data, then P, then Q) of the stripe in `slot`.
pub(crate) fn column_of(i: usize, slot: u16, columns: usize) -> usize {
    (i + usize::from(slot)) % columns
}

/// What a destage may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Only when all of the stripe is in memory.
    Full,
    /// Only by a change in place.
    InPlace,
    Any,
}

/// For the trace: blocks and their versions.
fn versions(list: &[(u64, crate::state::overlay::Entry)]) -> Vec<(u64, u64)> {
    list.iter().map(|(b, e)| (*b, e.version)).collect()
}

impl Pool {
    /// Which columns of a slot may be read.
    fn valid_columns(&self, g: &Group, slot: u16) -> Vec<bool> {
        (0..g.columns.len()).map(|c| self.column_valid(g, c, usize::from(slot))).collect()
    }

    /// A free slot, held. The one that keeps the stripe in order comes first.
    fn hold_slot(&self, space: &SpaceRt, group: usize, stripe: usize) -> Option<u16> {
        space.group_rt(group)?.slots.take(stripe)
    }
}

impl Space {
    /// Bytes `from..from + len` of part `i` of the stripe in `slot`.
    pub(crate) async fn read_unit(&self, group: usize, slot: u16, i: usize, from: u64, len: usize) -> SpaceResult<Buf> {
        let patch = self.patch_of(group, slot);
        let mut b = self.read_placed(group, slot, i, from, len).await?;
        if let Some(p) = patch {
            p.lay_over(i, from, &mut b);
        }
        Ok(b)
    }

    /// What is being changed in the slot now.
    fn patch_of(&self, group: usize, slot: u16) -> Option<Rc<Patch>> {
        self.rt.group_rt(group)?.slots.patch(slot)
    }

    async fn read_placed(&self, group: usize, slot: u16, i: usize, from: u64, len: usize) -> SpaceResult<Buf> {
        let shape = &self.rt.shape;
        let (disk, at, _slab) = {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, group) else { return Err(SpaceError::Closed) };
            let column = column_of(i, slot, shape.columns);
            if !self.pool.column_valid(g, column, usize::from(slot)) {
                return Err(SpaceError::Unreadable);
            }
            let c = &g.columns[column];
            let Some(d) = self.pool.disk(c.disk) else { return Err(SpaceError::Unreadable) };
            let at = d.areas.data_at + u64::from(c.slab) * shape.slab_bytes + u64::from(slot) * shape.interleave + from;
            (d, at, self.pool.use_slab(c.disk, c.slab))
        };
        match disk.read(at, len).await {
            Ok(b) => Ok(b),
            Err(e) => {
                if e == IoError::Gone && disk.online.get() {
                    self.pool.fail_disk(&disk, "gone").await?;
                }
                Err(SpaceError::Device(e))
            }
        }
    }

    /// The same, computed from the other columns, without those in `avoid`.
    pub(crate) async fn rebuild_unit(
        &self,
        group: usize,
        slot: u16,
        i: usize,
        from: u64,
        len: usize,
        avoid: &[usize],
    ) -> SpaceResult<Buf> {
        let shape = &self.rt.shape;
        let Some(rt) = self.rt.group_rt(group) else { return Err(SpaceError::Closed) };
        // All columns as of this moment: a change in place that begins now waits for us.
        let _hold = rt.slots.rebuilds.hold(slot);
        let patch = self.patch_of(group, slot);
        let mut all: Vec<LocalFuture<Option<Vec<u8>>>> = Vec::new();
        for k in 0..shape.columns {
            let (me, patch) = (self.clone(), patch.clone());
            let skip = k == i || avoid.contains(&k);
            all.push(Box::pin(async move {
                if skip {
                    return None;
                }
                let mut b = me.read_placed(group, slot, k, from, len).await.ok()?;
                if let Some(p) = patch {
                    p.lay_over(k, from, &mut b);
                }
                Some(b.to_vec())
            }));
        }
        let mut columns = join_all(all).await;
        if !arden_parity::reconstruct(&mut columns, shape.data_columns(), len) {
            return Err(SpaceError::Unreadable);
        }
        columns[i].take().map(|v| Buf::copy_of(&v)).ok_or(SpaceError::Unreadable)
    }

    /// The same, read or else computed, and whether its own sectors could not be read. A disk may
    /// leave after another was brought up to date, all while we read: one is asked too early and
    /// the other too late, though there were enough of them at any moment. So whoever finds too
    /// few, and others than before, looks again. So does, once, who found sectors unreadable: they may have been written meanwhile.
    pub(crate) async fn unit_or_rebuilt(
        &self,
        group: usize,
        slot: u16,
        i: usize,
        from: u64,
        len: usize,
    ) -> SpaceResult<(Buf, bool)> {
        let mut result = Err(SpaceError::Unreadable);
        let mut looked_at_media = false;
        for _ in 0..LOOKS_MAX {
            let before = self.readable_disks(group, slot);
            let media = match self.read_unit(group, slot, i, from, len).await {
                Ok(b) => return Ok((b, false)),
                Err(e) => e == SpaceError::Device(IoError::Media),
            };
            result = self.rebuild_unit(group, slot, i, from, len, &[]).await.map(|b| (b, media));
            let same = |(a, b): (&Option<Rc<DiskRt>>, &Option<Rc<DiskRt>>)| match (a, b) {
                (Some(a), Some(b)) => Rc::ptr_eq(a, b),
                (a, b) => a.is_none() && b.is_none(),
            };
            let may_be_written = media && !std::mem::replace(&mut looked_at_media, true);
            let same_disks = before.iter().zip(&self.readable_disks(group, slot)).all(same);
            if result.is_ok() || same_disks && !may_be_written {
                break;
            }
        }
        result
    }

    pub(crate) async fn read_parity(&self, part: Part) -> SpaceResult<Buf> {
        let shape = self.rt.shape;
        let mut all: Vec<LocalFuture<SpaceResult<Buf>>> = Vec::new();
        let mut spans = Vec::new();
        let mut at = part.at;
        while at < part.at + part.len {
            let stripe = (at / shape.stripe_bytes) as usize;
            let within = at % shape.stripe_bytes;
            let i = (within / shape.interleave) as usize;
            let from = within % shape.interleave;
            let n = (shape.interleave - from).min(part.at + part.len - at);
            let slot = {
                let map = self.pool.0.map.read();
                let Some(g) = map.group(self.rt.id, part.group) else { return Err(SpaceError::Closed) };
                g.stripes.get(stripe).unwrap_or(UNWRITTEN)
            };
            spans.push(((at - part.at) as usize, n as usize));
            let me = self.clone();
            let Some(rt) = self.rt.group_rt(part.group) else { return Err(SpaceError::Closed) };
            let pin = (slot != UNWRITTEN).then(|| rt.slots.readers.hold(slot));
            all.push(Box::pin(async move {
                let _pin = pin;
                if slot == UNWRITTEN {
                    return Ok(Buf::zeroed(n as usize));
                }
                let read = me.unit_or_rebuilt(part.group, slot, i, from, n as usize).await;
                let (b, media) = match read {
                    // Asked at once: while others of its parts are read the disks may come back.
                    Err(SpaceError::Unreadable) if !me.group_serves(part.group) => return Err(SpaceError::Offline),
                    other => other?,
                };
                if media {
                    me.unit_unread(part.group, slot, i, from, n).await;
                }
                Ok(b)
            }));
            at += n;
        }
        if all.len() == 1
            && let Some(only) = all.pop()
        {
            return only.await;
        }
        let mut buf = Buf::new(part.len as usize);
        for ((to, n), r) in spans.into_iter().zip(join_all(all).await) {
            buf[to..to + n].copy_from_slice(&r?);
        }
        Ok(buf)
    }

    /// Rewrites sectors of one column with the content they already have.
    pub(crate) async fn refresh_unit(&self, group: usize, slot: u16, i: usize, from: u64, data: &Buf) {
        let shape = &self.rt.shape;
        let target = {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, group) else { return };
            let c = &g.columns[column_of(i, slot, shape.columns)];
            let slab = c.slab;
            let hold = self.pool.use_slab(c.disk, slab);
            self.pool.disk(c.disk).filter(|d| d.online.get()).map(|d| (d, slab, hold))
        };
        if let Some((d, slab, _hold)) = target {
            let at = d.areas.data_at + u64::from(slab) * shape.slab_bytes + u64::from(slot) * shape.interleave + from;
            let _ = d.write(at, Buf::copy_of(data).share(), false).await;
        }
    }

    /// Puts a write into memory; stripes that it completes leave.
    pub(crate) async fn write_gathered(&self, offset: u64, data: &SharedBuf) -> SpaceResult<()> {
        let shape = self.rt.shape;
        let step = shape.stripe_bytes.min((self.pool.0.cfg.gather_bytes_max / 4).max(BLOCK_BYTES)) as usize;
        let mut at = 0;
        while at < data.len() {
            let pos = offset + at as u64;
            let stripe_left = shape.stripe_bytes - pos % shape.group_bytes % shape.stripe_bytes;
            // A whole stripe enters as one, however little memory there is: in parts it would
            // leave in parts, and each would read and write the rest of it again.
            let whole = stripe_left == shape.stripe_bytes && (data.len() - at) as u64 >= stripe_left;
            let n = if whole { stripe_left as usize } else { step.min(data.len() - at).min(stripe_left as usize) };
            let group = (pos / shape.group_bytes) as usize;
            {
                let map = self.pool.0.map.read();
                let Some(g) = map.group(self.rt.id, group) else { return Err(SpaceError::Closed) };
                if !self.pool.group_usable(&shape, g) {
                    return Err(SpaceError::Offline);
                }
            }
            self.make_room(n as u64).await?;
            let version = self.pool.next_version();
            self.rt.overlay.borrow_mut().put(pos / BLOCK_BYTES, &data.slice(at, n), version);
            let stripe = (pos % shape.group_bytes / shape.stripe_bytes) as usize;
            let (a, b) = self.stripe_blocks(group, stripe);
            if self.rt.overlay.borrow().count(a, b) as u64 == b - a {
                let me = self.clone();
                self.pool.0.rt.spawn(async move {
                    let _ = me.destage(group, stripe, Leave::Full).await;
                });
            }
            at += n;
        }
        Ok(())
    }

    pub(crate) fn stripe_blocks(&self, group: usize, stripe: usize) -> (u64, u64) {
        self.rt.shape.stripe_blocks(group, stripe)
    }

    /// Puts what is newer of a stripe in its place: by a change in place or, when that is not
    /// possible or costs more, by writing all of it to a free slot. False: `how` forbids it.
    pub(crate) async fn destage(&self, group: usize, stripe: usize, how: Leave) -> SpaceResult<bool> {
        let (first, end) = self.stripe_blocks(group, stripe);
        if self.rt.patching.contains((group, stripe)) {
            self.pool.settle().await;
        }
        if self.pool.0.patches.are_forbidden() && self.rt.patching.contains((group, stripe)) {
            // Who patches it waits for the log, whose holder we are or work for.
            return Ok(true);
        }
        let mut guard = Some(self.rt.stripe_locks.lock(first, end).await);
        self.pool.alive()?;
        let _leaving = self.pool.0.room.leaving();
        let newer = self.rt.overlay.borrow().snapshot(first, end);
        if newer.is_empty() {
            return Ok(true);
        }
        if how == Leave::Full && newer.len() as u64 != end - first {
            return Ok(false);
        }
        let old = {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, group) else { return Err(SpaceError::Closed) };
            g.stripes.get(stripe).unwrap_or(UNWRITTEN)
        };
        if how != Leave::Full && old != UNWRITTEN && self.patch((group, stripe), &newer, old, &mut guard).await? {
            return Ok(true);
        }
        if how == Leave::InPlace {
            return Ok(false);
        }
        // What the log says of the old slot is void, too, also where it has no data of it any more.
        let patched = self.patch_of(group, old).map_or(0, |p| p.upto());
        let upto = newer.iter().map(|(_, e)| e.version).fold(patched, u64::max);
        let all = match self.changed_stripe((group, stripe), old, &newer).await {
            Some(all) => all,
            None => self.with_parity(self.whole_stripe((group, stripe), old, &newer).await?),
        };
        let slot = self.get_slot(group, stripe).await?;
        tracing::trace!("stripe {stripe} of group {group} from slot {old} to {slot}, newer {:?}", versions(&newer));
        let units: Vec<_> = all.into_iter().enumerate().map(|(i, b)| (i, 0, b)).collect();
        let result = self.write_moved(group, slot, units, || self.is_relied_on(group, stripe, old)).await;
        if result.is_ok() {
            self.flip(group, stripe, slot, upto);
        } else if let Some(rt) = self.rt.group_rt(group) {
            rt.slots.give_back(slot);
        }
        result.map(|()| true)
    }

    /// The data of a stripe with what is newer, by column: what is missing is read from slot `old`.
    async fn whole_stripe(
        &self,
        (group, stripe): (usize, usize),
        old: u16,
        newer: &[(u64, Entry)],
    ) -> SpaceResult<Vec<Buf>> {
        let shape = self.rt.shape;
        let (first, _) = self.stripe_blocks(group, stripe);
        let unit = (shape.interleave / BLOCK_BYTES) as usize;
        let data_columns = shape.data_columns();
        let mut data: Vec<Buf> = Vec::with_capacity(shape.columns);
        let mut reads: Vec<LocalFuture<SpaceResult<Buf>>> = Vec::new();
        for i in 0..data_columns {
            let lo = first + (i * unit) as u64;
            let have = newer.iter().filter(|(b, _)| (lo..lo + unit as u64).contains(b)).count();
            let me = self.clone();
            reads.push(Box::pin(async move {
                if have == unit || old == UNWRITTEN {
                    return Ok(if have == unit {
                        Buf::new(unit * BLOCK_BYTES as usize)
                    } else {
                        Buf::zeroed(unit * BLOCK_BYTES as usize)
                    });
                }
                let len = unit * BLOCK_BYTES as usize;
                me.unit_or_rebuilt(group, old, i, 0, len).await.map(|(b, _)| b)
            }));
        }
        for r in join_all(reads).await {
            data.push(r?);
        }
        for (b, e) in newer {
            let at = (b - first) as usize;
            let to = at % unit * BLOCK_BYTES as usize;
            data[at / unit][to..to + BLOCK_BYTES as usize].copy_from_slice(&e.data);
        }
        Ok(data)
    }

    /// Something durable would be lost with what was written of the stripe, if it moved from slot `old` by that: what lies
    /// there, or what the log holds. What a log of before this opening holds is in memory alone.
    fn is_relied_on(&self, group: usize, stripe: usize, old: u16) -> bool {
        let (first, end) = self.stripe_blocks(group, stripe);
        let p = &self.pool.0;
        old != UNWRITTEN || self.rt.logged.any_in(first..end) || p.journal.is_locked() || p.life.is_opening()
    }

    /// Writes all of a stripe to `slot`; where it `is_relied_on`, flushed. Until then the log and the old place count: more
    /// disks than the layout bears may fail that flush, while others take a map. Who asks acts before the next await.
    async fn write_moved(
        &self,
        group: usize,
        slot: u16,
        units: Vec<(usize, u64, SharedBuf)>,
        is_relied_on: impl Fn() -> bool,
    ) -> SpaceResult<()> {
        let mut written = self.write_placed(group, slot, units).await?;
        if is_relied_on() { self.flush_placed(&mut written).await } else { Ok(()) }
    }

    /// Writes pieces of the stripe in `slot` until they are wherever they are now looked for.
    pub(crate) async fn write_placed(
        &self,
        group: usize,
        slot: u16,
        pieces: Vec<(usize, u64, SharedBuf)>,
    ) -> SpaceResult<Written> {
        let mut written = Written { group, slot, pieces, places: Vec::new() };
        self.write_until_placed(&mut written).await?;
        Ok(written)
    }

    async fn write_until_placed(&self, w: &mut Written) -> SpaceResult<()> {
        for _ in 0..REWRITES_MAX {
            w.places = self.write_stripe(w.group, w.slot, &w.pieces).await?;
            if self.all_written(w) {
                return Ok(());
            }
        }
        Err(SpaceError::Offline)
    }

    /// Flushes what was written, in every place where it is now looked for.
    pub(crate) async fn flush_placed(&self, w: &mut Written) -> SpaceResult<()> {
        for _ in 0..REWRITES_MAX {
            // Whom it fails for is no longer here, and who left and returned meanwhile is written to again.
            let _ = self.pool.flush_disks().await;
            if self.group_serves(w.group) && self.all_written(w) {
                return Ok(());
            }
            self.write_until_placed(w).await?;
        }
        Err(SpaceError::Offline)
    }

    /// Is everything in every place where it is now looked for? A disk may have returned and
    /// been brought up to date, or a column may have begun to move, while we wrote.
    fn all_written(&self, w: &Written) -> bool {
        let map = self.pool.0.map.read();
        let Some(g) = map.group(self.rt.id, w.group) else { return false };
        w.pieces.iter().all(|piece| {
            let column = column_of(piece.0, w.slot, self.rt.shape.columns);
            let c = &g.columns[column];
            // A stale column counts too: a resync that is under way no longer looks back.
            [Some((c.disk, c.slab)), c.target].into_iter().flatten().all(|(d, s)| {
                match self.pool.disk(d).filter(|d| d.online.get()) {
                    // The column too: its slab may have been another column's when we wrote.
                    Some(disk) => {
                        w.places.iter().any(|p| p.column == column && p.slab == s && Rc::ptr_eq(&p.disk, &disk))
                    }
                    None => true,
                }
            })
        })
    }

    /// The data columns of a stripe and their parity.
    fn with_parity(&self, data: Vec<Buf>) -> Vec<SharedBuf> {
        let mut all = data;
        let parity = self.parity_of(&all);
        all.extend(parity);
        all.into_iter().map(Buf::share).collect()
    }

    /// P, and Q where there is one, of the data columns of a stripe.
    pub(crate) fn parity_of(&self, data: &[Buf]) -> Vec<Buf> {
        let len = self.rt.shape.interleave as usize;
        let mut p = Buf::new(len);
        let refs: Vec<&[u8]> = data.iter().map(|b| &b[..]).collect();
        if self.rt.shape.layout.parity() < 2 {
            arden_parity::parity_p(&refs, &mut p);
            return vec![p];
        }
        let mut q = Buf::new(len);
        arden_parity::parity_pq(&refs, &mut p, &mut q);
        vec![p, q]
    }

    /// Waits for a free slot; moves that are not durable yet are made so.
    async fn get_slot(&self, group: usize, stripe: usize) -> SpaceResult<u16> {
        for _ in 0..SLOT_WAITS_MAX {
            self.pool.alive()?;
            if self.is_gone(group) {
                // None comes free any more, and whoever waits for the stripe waits for us.
                return Err(SpaceError::Closed);
            }
            if let Some(s) = self.pool.hold_slot(&self.rt, group, stripe) {
                return Ok(s);
            }
            let flips = |f: &Flip| (f.space, f.group as usize) == (self.rt.id, group);
            if self.pool.0.flips.any(flips) {
                self.pool.commit().await?;
            } else {
                // Every spare slot is being written or read by others.
                self.pool.0.rt.sleep_ns(100_000).await;
            }
        }
        Err(SpaceError::Offline)
    }

    /// Every piece at once; gives the places where it is now.
    async fn write_stripe(
        &self,
        group: usize,
        slot: u16,
        pieces: &[(usize, u64, SharedBuf)],
    ) -> SpaceResult<Vec<Place>> {
        let shape = self.rt.shape;
        let mut places: Vec<Place> = Vec::new();
        let mut writes: Vec<LocalFuture<Result<(), IoError>>> = Vec::new();
        {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, group) else { return Err(SpaceError::Closed) };
            if !self.pool.group_usable(&shape, g) {
                return Err(SpaceError::Offline);
            }
            for (i, from, b) in pieces {
                let column = column_of(*i, slot, shape.columns);
                let c = &g.columns[column];
                for (d, s) in [Some((c.disk, c.slab)), c.target].into_iter().flatten() {
                    let Some(disk) = self.pool.disk(d).filter(|d| d.online.get()) else { continue };
                    let at = disk.areas.data_at + u64::from(s) * shape.slab_bytes + u64::from(slot) * shape.interleave;
                    let (at, b) = (at + from, b.clone());
                    let _hold = self.pool.use_slab(d, s);
                    places.push(Place { column, disk: disk.clone(), slab: s, _hold });
                    writes.push(Box::pin(async move { disk.write(at, b, false).await }));
                }
            }
        }
        let results = join_all(writes).await;
        let (good, failed): (Vec<_>, Vec<_>) = places.into_iter().zip(results).partition(|(_, r)| r.is_ok());
        // Several pieces may go to one disk.
        let bad: BTreeSet<u16> =
            failed.iter().filter(|(p, _)| p.disk.online.get()).map(|(p, _)| p.disk.index).collect();
        if bad.len() > shape.layout.parity() {
            self.pool.write_was_lost().await;
            return Err(SpaceError::Device(IoError::Media));
        }
        let places: Vec<Place> = good.into_iter().map(|(p, _)| p).collect();
        for (p, _) in failed {
            self.pool.fail_disk(&p.disk, "write failed").await?;
        }
        let map = self.pool.0.map.read();
        let ok = map.group(self.rt.id, group).is_some_and(|g| self.pool.group_usable(&shape, g));
        if ok { Ok(places) } else { Err(SpaceError::Offline) }
    }

    /// From now on the stripe lies in `slot`. Everything happens between two awaits.
    fn flip(&self, group: usize, stripe: usize, slot: u16, upto: u64) {
        let p = &self.pool.0;
        let (first, end) = self.stripe_blocks(group, stripe);
        let map = p.map.read();
        let Some(g) = map.group(self.rt.id, group) else { return };
        let incarnation = g.incarnation;
        let old = g.stripes.get(stripe).unwrap_or(UNWRITTEN);
        // A target that is away is the place that the durable map may still name.
        let away = |d: u16| !self.pool.online(d);
        // A column that is out of date has been written here like the others. Computed from them it might become worse: what
        // the stripe was changed from may have been noise of its own disk.
        let degraded = g.columns.iter().any(|c| away(c.disk) || c.target.is_some_and(|t| away(t.0)));
        drop(map);
        p.map.apply_to(self.rt.id, group, &GroupChange::StripeMoved { stripe, slot, degraded });
        if let Some(rt) = self.rt.group_rt(group) {
            // The slot that it left is free when the move is durable.
            if old != UNWRITTEN {
                // A patch that could not be finished is part of what was moved.
                rt.slots.end_patch(old);
            }
        }
        let in_log = self.rt.logged.any_in(first..end) || p.journal.is_locked();
        if in_log {
            let seq = p.journal.head().0;
            p.flips.supersede((self.rt.id, group as u32, stripe as u32), incarnation, upto, seq);
        }
        self.rt.overlay.borrow_mut().remove_upto(first, end, upto);
        let id = p.flips.next_id();
        tracing::trace!("move {id}: group {group} stripe {stripe} from slot {old} to {slot}, up to version {upto}");
        p.flips.add(Flip {
            id,
            space: self.rt.id,
            group: group as u32,
            incarnation,
            stripe: stripe as u32,
            slot,
            old,
            upto,
        });
    }

    /// Puts gathered stripes in their place, complete ones first.
    pub(crate) async fn apply_parity(&self, bytes_max: u64) -> SpaceResult<u64> {
        let shape = self.rt.shape;
        let (mut list, mut offline, mut unflushed) = (Vec::new(), None, false);
        {
            let o = self.rt.overlay.borrow();
            let mut at = 0;
            while let Some(b) = o.first_at_or_after(at) {
                let group = (b * BLOCK_BYTES / shape.group_bytes) as usize;
                if !self.group_serves(group) {
                    // It waits for its disks, and nobody else for it.
                    offline = Some(SpaceError::Offline);
                    at = (group as u64 + 1) * shape.group_bytes / BLOCK_BYTES;
                    continue;
                }
                let stripe = (b * BLOCK_BYTES % shape.group_bytes / shape.stripe_bytes) as usize;
                let (first, end) = self.stripe_blocks(group, stripe);
                at = end;
                // It leaves memory with the next flush.
                if bytes_max != u64::MAX && self.rt.patching.contains((group, stripe)) {
                    unflushed = true;
                    continue;
                }
                list.push((o.count(first, end), group, stripe));
            }
        }
        if list.is_empty() && unflushed && !self.pool.settle().await {
            offline = Some(SpaceError::Offline);
        }
        if bytes_max != u64::MAX {
            list.sort_by_key(|l| std::cmp::Reverse(l.0));
        }
        let mut done = 0;
        list.retain(|l| {
            let wanted = done < bytes_max;
            done += if wanted { l.0 as u64 * BLOCK_BYTES } else { 0 };
            wanted
        });
        // Few blocks first, in place where that may be, in the order in which they lie there.
        let small = shape.stripe_bytes / BLOCK_BYTES / 2;
        let (mut few, mut many): (Vec<_>, Vec<_>) = list.into_iter().partition(|l| l.0 as u64 <= small);
        few.sort_unstable_by_key(|l| (l.1, l.2));
        let arms = few.first().is_some_and(|l| self.has_arms(l.1));
        let lanes = if arms { PATCH_LANES_OF_ARMS } else { PATCH_LANES };
        let (refused, first) = self.destage_all(few, Leave::InPlace, lanes).await;
        many.extend(refused);
        // So many at once as memory allows, and each place is taken again at once.
        let lanes = (DESTAGE_BYTES_MAX / (shape.interleave * shape.columns as u64)).clamp(2, 16);
        let (_, second) = self.destage_all(many, Leave::Any, lanes as usize).await;
        first.and(second)?;
        offline.map_or(Ok(done), Err)
    }

    /// Destages stripes (each with the number of its blocks); gives those that `how` forbids.
    async fn destage_all(
        &self,
        list: Vec<(usize, usize, usize)>,
        how: Leave,
        lanes: usize,
    ) -> (Vec<(usize, usize, usize)>, SpaceResult<()>) {
        let lanes = lanes.min(list.len());
        let list = Rc::new(RefCell::new(list.into_iter()));
        let refused: Rc<RefCell<Vec<(usize, usize, usize)>>> = Rc::default();
        let mut all: Vec<LocalFuture<SpaceResult<()>>> = Vec::new();
        for _ in 0..lanes {
            let (me, list, refused) = (self.clone(), list.clone(), refused.clone());
            all.push(Box::pin(async move {
                let mut error = None;
                loop {
                    let next = list.borrow_mut().next();
                    let Some(l) = next else { break };
                    match me.destage(l.1, l.2, how).await {
                        Ok(true) => {}
                        Ok(false) => refused.borrow_mut().push(l),
                        Err(e) => error = Some(e),
                    }
                }
                error.map_or(Ok(()), Err)
            }));
        }
        let result = join_all(all).await.into_iter().find_map(Result::err).map_or(Ok(()), Err);
        (refused.take(), result)
    }

    pub(crate) async fn discard_parity(&self, start: u64, part: Part) -> SpaceResult<()> {
        let shape = self.rt.shape;
        let mut at = 0;
        while at < part.len {
            let within = (part.at + at) % shape.stripe_bytes;
            let n = (shape.stripe_bytes - within).min(part.len - at);
            if n == shape.stripe_bytes {
                let stripe = ((part.at + at) / shape.stripe_bytes) as usize;
                let (first, end) = self.stripe_blocks(part.group, stripe);
                let _guard = self.rt.stripe_locks.lock(first, end).await;
                let slot = self
                    .pool
                    .0
                    .map
                    .read()
                    .group(self.rt.id, part.group)
                    .and_then(|g| g.stripes.get(stripe))
                    .unwrap_or(UNWRITTEN);
                let gathered = self.rt.overlay.borrow().count(first, end) > 0;
                if slot != UNWRITTEN || gathered {
                    let upto = self.pool.next_version();
                    self.flip(part.group, stripe, UNWRITTEN, upto);
                }
            } else {
                self.write_gathered(start + at, &Buf::zeroed(n as usize).share()).await?;
            }
            at += n;
        }
        Ok(())
    }

    /// One block, computed without its own column (and, with two parities, without one other),
    /// until the verifier accepts it; then it is written where it belongs.
    pub(crate) async fn heal_parity(&self, offset: u64, verify: &Verifier) -> SpaceResult<Buf> {
        let shape = self.rt.shape;
        let len = BLOCK_BYTES as usize;
        let group = (offset / shape.group_bytes) as usize;
        let at = offset % shape.group_bytes;
        let stripe = (at / shape.stripe_bytes) as usize;
        let (first, end) = self.stripe_blocks(group, stripe);
        let Some(_hold) = self.hold(group) else { return no_content(offset, verify) };
        let _guard = self.rt.stripe_locks.lock(first, end).await;
        let now = self.read_at(offset, len).await;
        if let Ok(b) = now
            && verify(offset, &b)
        {
            return Ok(b);
        }
        let i = (at % shape.stripe_bytes / shape.interleave) as usize;
        let from = at % shape.interleave;
        let slot = self.pool.0.map.read().group(self.rt.id, group).and_then(|g| g.stripes.get(stripe));
        let Some(slot) = slot.filter(|&s| s != UNWRITTEN) else {
            return self.gathered(offset, verify).ok_or(SpaceError::Unreadable);
        };
        let others = (0..shape.columns).filter(|&k| k != i).map(|k| vec![k]);
        for avoid in std::iter::once(Vec::new()).chain(others.filter(|_| shape.layout.parity() == 2)) {
            let Ok(b) = self.rebuild_unit(group, slot, i, from, len, &avoid).await else { continue };
            if verify(offset, &b) {
                if self.read_unit(group, slot, i, from, len).await.is_ok_and(|now| !verify(offset, &now)) {
                    self.note_wrong_block(group, column_of(i, slot, shape.columns));
                }
                self.refresh_unit(group, slot, i, from, &b).await;
                self.pool.event(format!("healed block at {offset} of space {}", self.rt.id));
                return Ok(b);
            }
        }
        self.gathered(offset, verify).ok_or(SpaceError::Unreadable)
    }

    /// Which columns of a slot can be read now.
    pub(crate) fn slot_validity(&self, group: usize, slot: u16) -> Vec<bool> {
        let map = self.pool.0.map.read();
        map.group(self.rt.id, group).map_or_else(Vec::new, |g| self.pool.valid_columns(g, slot))
    }

    /// The disks of those columns, each as it is attached now.
    fn readable_disks(&self, group: usize, slot: u16) -> Vec<Option<Rc<DiskRt>>> {
        let valid = self.slot_validity(group, slot);
        let map = self.pool.0.map.read();
        let columns = map.group(self.rt.id, group).map_or(&[][..], |g| &g.columns[..]);
        columns.iter().zip(valid).map(|(c, ok)| self.pool.disk(c.disk).filter(|_| ok)).collect()
    }
}
