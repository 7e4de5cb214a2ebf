//! Parity layouts: a few blocks of a stripe changed where they lie, under the log. The new data
//! and the new parity are in the log before the first of them is written in place; a crash
//! puts all of them in place again, so that a disk lost at the same moment changes nothing.
//! Only whole groups are changed in this way; what else happens to a stripe is `parity`.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, Buf, LocalFuture, SharedBuf};

use crate::base::error::{SpaceError, SpaceResult};
use crate::base::lock::RangeGuard;
use crate::map::pool_map::Shape;
use crate::pool::open_pool::{GroupRt, Pool, SpaceRt};
use crate::space::open_space::Space;
use crate::space::parity::Written;
use crate::state::journal::Item;
use crate::state::map::GroupChange;
use crate::state::overlay::Entry;
use crate::state::patches::{Changed, Patch, Waiting};

/// A larger change leaves as a whole stripe.
const BLOCKS_MAX: usize = 32;
/// What an operation costs beside its bytes, in bytes.
const COST_OF_ONE: u64 = 64 << 10;
/// The log is written at least so often.
const LOG_COPIES: u64 = 2;
/// How long a change in place waits for others to be flushed with it.
const FLUSH_NS: u64 = 100_000_000;
/// How often a patch looks whether a reconstruction has ended.
const LOOK_NS: u64 = 20_000;

/// Neighbours as `(first, count)`.
fn runs(rows: &[u32]) -> Vec<(u32, u32)> {
    let mut out: Vec<(u32, u32)> = Vec::new();
    for &r in rows {
        match out.last_mut() {
            Some(l) if l.0 + l.1 == r => l.1 += 1,
            _ => out.push((r, 1)),
        }
    }
    out
}

fn cost(rows: &[u32]) -> u64 {
    runs(rows).len() as u64 * COST_OF_ONE + rows.len() as u64 * BLOCK_BYTES
}

/// Marks a stripe as being patched.
struct Patching {
    pool: Pool,
    space: Rc<SpaceRt>,
    at: (usize, usize),
}

impl Patching {
    fn new(space: &Space, at: (usize, usize)) -> Patching {
        let p = &space.pool.0;
        p.patches.begin();
        space.rt.patching.begin(at);
        Patching { pool: space.pool.clone(), space: space.rt.clone(), at }
    }
}

impl Drop for Patching {
    fn drop(&mut self) {
        let p = &self.pool.0;
        p.patches.end();
        self.space.patching.end(self.at);
    }
}

/// What a patch will read and write.
struct Plan {
    /// By part: the rows that change.
    changed: BTreeMap<usize, Vec<u32>>,
    rows: Vec<u32>,
    /// Read the old data and parity; else the data that stays.
    by_difference: bool,
}

impl Plan {
    /// `None` when it is cheaper to write the whole stripe, or the change is large.
    /// With `keeps_parity` nothing but parity itself says what it becomes.
    fn new(shape: &Shape, first: u64, newer: &[(u64, Entry)], blocks_max: usize, keeps_parity: bool) -> Option<Plan> {
        let unit = shape.interleave / BLOCK_BYTES;
        let mut changed: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (b, _) in newer {
            changed.entry(((b - first) / unit) as usize).or_default().push(((b - first) % unit) as u32);
        }
        let rows: BTreeSet<u32> = changed.values().flatten().copied().collect();
        let rows: Vec<u32> = rows.into_iter().collect();
        let parities = shape.layout.parity() as u64;
        let unlogged = newer.iter().filter(|(_, e)| !e.is_logged()).count();
        let logged = unlogged + rows.len() * parities as usize;
        if logged > blocks_max {
            return None;
        }
        let data: u64 = changed.values().map(|r| cost(r)).sum();
        let parity = parities * cost(&rows);
        let mut plan = Plan { changed, rows, by_difference: true };
        let staying: u64 = (0..shape.data_columns()).map(|i| cost(&plan.staying(i))).sum();
        plan.by_difference = staying > 0 && (keeps_parity || data + parity < staying);
        let read = if plan.by_difference { data + parity } else { staying };
        let here = read + data + parity + logged as u64 * BLOCK_BYTES * LOG_COPIES;
        let whole = COST_OF_ONE + shape.interleave;
        let full = |i: &usize| plan.changed.get(i).is_some_and(|r| r.len() as u64 == unit);
        let unread = (0..shape.data_columns()).filter(|i| !full(i)).count() as u64;
        (here < (unread + shape.columns as u64) * whole).then_some(plan)
    }

    /// Rows of data part `i` that the parity covers and that do not change.
    fn staying(&self, i: usize) -> Vec<u32> {
        let gone = self.changed.get(&i).map_or(&[][..], Vec::as_slice);
        self.rows.iter().copied().filter(|r| gone.binary_search(r).is_err()).collect()
    }
}

impl Pool {
    /// Ends the changes in place that are written by now, with one flush. False when some could not be.
    pub(crate) async fn settle(&self) -> bool {
        let unflushed = &self.0.unflushed;
        let (end, failed) = (unflushed.want(), unflushed.failed());
        loop {
            let ended = unflushed.ended();
            if !unflushed.is_any_before(end) {
                return unflushed.failed() == failed;
            }
            ended.await;
        }
    }

    /// The largest patch that fits into a batch with others.
    fn patch_blocks_max(&self) -> usize {
        let size = self.0.journal.state().size;
        BLOCKS_MAX.min((size / 16 / BLOCK_BYTES) as usize)
    }
}

impl Space {
    fn plan_patch(
        &self,
        group: usize,
        stripe: usize,
        newer: &[(u64, Entry)],
        slot: u16,
    ) -> Option<(Rc<GroupRt>, Plan)> {
        let p = &self.pool.0;
        let rt = self.rt.group_rt(group)?;
        if p.life.is_opening() || p.patches.are_forbidden() || rt.slots.patch(slot).is_some() {
            return None;
        }
        let map = p.map.read();
        let g = map.group(self.rt.id, group).filter(|g| self.pool.is_in_place(g))?;
        // A record of this slot means nothing before the log knows that the stripe lies here.
        let me = (self.rt.id, group as u32, g.incarnation, stripe as u32);
        if p.flips.any(|f| (f.space, f.group, f.incarnation, f.stripe) == me) {
            return None;
        }
        let (first, _) = self.stripe_blocks(group, stripe);
        let plan = Plan::new(&self.rt.shape, first, newer, self.pool.patch_blocks_max(), self.keeps_parity())?;
        Some((rt, plan))
    }

    /// Changes blocks of the stripe in `slot` where they lie. The caller holds the stripe: `guard` goes, for the change
    /// ends when the disks have been flushed, by itself soon or at [`Pool::settle`]. False: nothing was done, the stripe
    /// has to leave as a whole.
    pub(crate) async fn patch(
        &self,
        (group, stripe): (usize, usize),
        newer: &[(u64, Entry)],
        slot: u16,
        guard: &mut Option<RangeGuard>,
    ) -> SpaceResult<bool> {
        let Some((rt, plan)) = self.plan_patch(group, stripe, newer, slot) else { return Ok(false) };
        let p = &self.pool.0;
        let patching = Patching::new(self, (group, stripe));
        // Batches with data that its record will not repeat.
        let data_at = newer.iter().filter_map(|(_, e)| e.logged_at()).min();
        let data_kept = data_at.map(|at| p.patches.pins().hold(at));
        // Whoever leaves from now on may miss it.
        rt.slots.note_patched(slot, u64::MAX);
        let Some(blocks) = self.patched_blocks(group, slot, stripe, newer, &plan).await else {
            rt.slots.note_patched(slot, p.journal.head().0);
            return Ok(false);
        };
        let upto = newer.iter().map(|(_, e)| e.version).max().unwrap_or(0);
        let changed = |(block, e): &(u64, Entry)| Changed {
            block: *block,
            version: e.version,
            data: e.data.clone(),
            logged: e.is_logged(),
        };
        let rows = plan.rows.iter().map(|&r| (r, upto)).collect();
        let changed = newer.iter().map(changed).collect();
        let head = p.journal.head();
        let log = p.patches.pins().hold(data_at.map_or(head, |at| at.min(head)));
        drop(data_kept);
        let patch = Rc::new(Patch::new(stripe as u32, rows, changed, blocks, log));
        // A deletion gives up what is registered by then.
        if self.is_gone(group) {
            return Err(SpaceError::Closed);
        }
        rt.slots.begin_patch(slot, patch.clone());
        if plan.by_difference && self.keeps_parity() {
            let (first, _) = self.stripe_blocks(group, stripe);
            self.rt.doubts.note(plan.rows.iter().map(|&row| first + u64::from(row)));
        }
        let item = Item::Patch { space: self.rt.id, group, slot };
        if let Err(e) = self.pool.journal_append([item]).await {
            rt.slots.end_patch(slot);
            rt.slots.note_patched(slot, p.journal.head().0);
            return Err(e);
        }
        // Who began to reconstruct before this was registered must not see half of it.
        while rt.slots.rebuilds.is_held(slot) {
            p.rt.sleep_ns(LOOK_NS).await;
        }
        // When this fails the patch stays registered, and the log stays, until the stripe moves.
        let written = self.write_placed(group, slot, pieces(&patch.blocks)).await?;
        let holds = (guard.take(), patching, p.unflushed.begin());
        let me = self.clone();
        p.rt.spawn(async move { me.flush_patch((group, slot), rt, patch, written, holds).await });
        Ok(true)
    }

    /// Ends a change in place that is written. It waits for others, to share their flush.
    async fn flush_patch(
        self,
        (group, slot): (usize, u16),
        rt: Rc<GroupRt>,
        patch: Rc<Patch>,
        mut written: Written,
        (_guard, _patching, waiting): (Option<RangeGuard>, Patching, Waiting),
    ) {
        while !waiting.is_wanted() {
            if self.pool.0.rt.timeout_ns(FLUSH_NS, waiting.wanted()).await.is_none() {
                waiting.want_all();
            }
        }
        match self.flush_placed(&mut written).await {
            Ok(()) => self.end_patch(group, slot, &rt, &patch),
            Err(_) => waiting.failed(),
        }
    }

    /// All of it is in place, and flushed. Everything happens between two awaits.
    fn end_patch(&self, group: usize, slot: u16, rt: &GroupRt, patch: &Patch) {
        let (first, end) = self.stripe_blocks(group, patch.stripe as usize);
        let map = &self.pool.0.map;
        let misses = map.read().group(self.rt.id, group).is_some_and(|g| !self.pool.is_in_place(g));
        if misses {
            map.apply_to(self.rt.id, group, &GroupChange::Dirty(&[u32::from(slot)]));
        }
        tracing::trace!("patched group {group} slot {slot}, up to version {}", patch.upto());
        self.rt.overlay.borrow_mut().remove_upto(first, end, patch.upto());
        rt.slots.end_patch(slot);
        self.pool.0.patches.note_finished();
    }

    /// The new data and the parity that belongs to it; `None` when something cannot be read.
    async fn patched_blocks(
        &self,
        group: usize,
        slot: u16,
        stripe: usize,
        newer: &[(u64, Entry)],
        plan: &Plan,
    ) -> Option<BTreeMap<(usize, u32), SharedBuf>> {
        let shape = &self.rt.shape;
        let (data, parities) = (shape.data_columns(), shape.layout.parity());
        let mut wanted: Vec<(usize, Vec<u32>)> = Vec::new();
        if plan.by_difference {
            wanted.extend(plan.changed.iter().map(|(&i, r)| (i, r.clone())));
            wanted.extend((data..data + parities).map(|i| (i, plan.rows.clone())));
        } else {
            wanted.extend((0..data).map(|i| (i, plan.staying(i))));
        }
        let old = self.read_rows(group, slot, wanted).await?;
        let (first, _) = self.stripe_blocks(group, stripe);
        let unit = shape.interleave / BLOCK_BYTES;
        let mut blocks: BTreeMap<(usize, u32), SharedBuf> = BTreeMap::new();
        for (b, e) in newer {
            blocks.insert((((b - first) / unit) as usize, ((b - first) % unit) as u32), e.data.clone());
        }
        for &row in &plan.rows {
            for (k, b) in new_parity(&blocks, &old, row, data, parities, plan.by_difference)?.into_iter().enumerate() {
                blocks.insert((data + k, row), b.share());
            }
        }
        Some(blocks)
    }

    async fn read_rows(
        &self,
        group: usize,
        slot: u16,
        wanted: Vec<(usize, Vec<u32>)>,
    ) -> Option<BTreeMap<(usize, u32), SharedBuf>> {
        let mut all: Vec<LocalFuture<SpaceResult<Buf>>> = Vec::new();
        let mut places = Vec::new();
        for (i, rows) in wanted {
            for (row, count) in runs(&rows) {
                places.push((i, row, count));
                let me = self.clone();
                let (from, len) = (u64::from(row) * BLOCK_BYTES, (u64::from(count) * BLOCK_BYTES) as usize);
                all.push(Box::pin(async move { me.read_unit(group, slot, i, from, len).await }));
            }
        }
        let mut out = BTreeMap::new();
        for ((i, row, count), r) in places.into_iter().zip(join_all(all).await) {
            let b = r.ok()?.share();
            for k in 0..count {
                out.insert((i, row + k), b.slice((u64::from(k) * BLOCK_BYTES) as usize, BLOCK_BYTES as usize));
            }
        }
        Some(out)
    }
}

/// P, and Q where there is one, of a row.
fn new_parity(
    new: &BTreeMap<(usize, u32), SharedBuf>,
    old: &BTreeMap<(usize, u32), SharedBuf>,
    row: u32,
    data: usize,
    parities: usize,
    by_difference: bool,
) -> Option<Vec<Buf>> {
    let len = BLOCK_BYTES as usize;
    if !by_difference {
        let mut refs: Vec<&[u8]> = Vec::with_capacity(data);
        for i in 0..data {
            refs.push(new.get(&(i, row)).or_else(|| old.get(&(i, row)))?);
        }
        let mut p = Buf::new(len);
        if parities < 2 {
            arden_parity::parity_p(&refs, &mut p);
            return Some(vec![p]);
        }
        let mut q = Buf::new(len);
        arden_parity::parity_pq(&refs, &mut p, &mut q);
        return Some(vec![p, q]);
    }
    let mut out = Vec::with_capacity(parities);
    for k in 0..parities {
        out.push(Buf::copy_of(old.get(&(data + k, row))?));
    }
    for (i, now) in (0..data).filter_map(|i| Some((i, new.get(&(i, row))?))) {
        let mut change = Buf::copy_of(now);
        arden_parity::xor_into(&mut change, old.get(&(i, row))?);
        arden_parity::xor_into(&mut out[0], &change);
        if let Some(q) = out.get_mut(1) {
            arden_parity::weigh(&mut change, i);
            arden_parity::xor_into(q, &change);
        }
    }
    Some(out)
}

/// Neighbours in one unit as one write: part, offset in the unit, content.
fn pieces(blocks: &BTreeMap<(usize, u32), SharedBuf>) -> Vec<(usize, u64, SharedBuf)> {
    let list: Vec<(&(usize, u32), &SharedBuf)> = blocks.iter().collect();
    let mut out = Vec::new();
    let mut a = 0;
    while a < list.len() {
        let mut b = a + 1;
        while b < list.len() && list[b].0.0 == list[a].0.0 && list[b].0.1 == list[b - 1].0.1 + 1 {
            b += 1;
        }
        let content = if b == a + 1 {
            list[a].1.clone()
        } else {
            let mut buf = Buf::new((b - a) * BLOCK_BYTES as usize);
            for (to, (_, data)) in buf.chunks_exact_mut(BLOCK_BYTES as usize).zip(&list[a..b]) {
                to.copy_from_slice(data);
            }
            buf.share()
        };
        out.push((list[a].0.0, u64::from(list[a].0.1) * BLOCK_BYTES, content));
        a = b;
    }
    out
}
