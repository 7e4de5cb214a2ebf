//! Changes of parity stripes in place, as far as they are state: what a change covers, what an opening found of them in
//! the log, which slots and which batches of the log have to stay for them, how many there are, and which wait for a flush.
//! The work is `patch`.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use arden_block::sync::{Notify, NotifyWait};
use arden_block::{BLOCK_BYTES, Buf, SharedBuf};

use crate::map::pool_map::Shape;

/// Keeps slots as they are for somebody who reads them.
#[derive(Default)]
pub(crate) struct Pins(OnceCell<Rc<Held>>);

/// How often each is held.
type Held = RefCell<BTreeMap<u16, u32>>;

pub(crate) struct Pin {
    held: Rc<Held>,
    slot: u16,
}

impl Pins {
    pub(crate) fn hold(&self, slot: u16) -> Pin {
        let held = self.0.get_or_init(Rc::default).clone();
        *held.borrow_mut().entry(slot).or_default() += 1;
        Pin { held, slot }
    }

    pub(crate) fn is_held(&self, slot: u16) -> bool {
        self.0.get().is_some_and(|h| h.borrow().contains_key(&slot))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut held = self.held.borrow_mut();
        if let Some(n) = held.get_mut(&self.slot) {
            *n -= 1;
            if *n == 0 {
                held.remove(&self.slot);
            }
        }
    }
}

/// The oldest batches that patches need until they are in place.
#[derive(Default)]
pub(crate) struct LogPins {
    held: RefCell<BTreeMap<u64, (u64, u64)>>,
    next: Cell<u64>,
}

impl LogPins {
    pub(crate) fn hold(self: &Rc<Self>, since: (u64, u64)) -> LogPin {
        let id = self.next.get();
        self.next.set(id + 1);
        self.held.borrow_mut().insert(id, since);
        LogPin { pins: self.clone(), id }
    }

    pub(crate) fn oldest(&self) -> Option<(u64, u64)> {
        self.held.borrow().values().min().copied()
    }
}

pub(crate) struct LogPin {
    pins: Rc<LogPins>,
    id: u64,
}

impl Drop for LogPin {
    fn drop(&mut self) {
        self.pins.held.borrow_mut().remove(&self.id);
    }
}

/// A block of the space that a patch changes, and whether the log held it before.
pub(crate) struct Changed {
    pub(crate) block: u64,
    pub(crate) version: u64,
    pub(crate) data: SharedBuf,
    pub(crate) logged: bool,
}

/// A change of a stripe in its slot. Registered in its group from before its record is written
/// until all of it is in place: whoever reads the slot meanwhile takes these blocks from here.
pub(crate) struct Patch {
    pub(crate) stripe: u32,
    /// Blocks of a unit whose parity changes, and the version up to which data is in that parity.
    rows: BTreeMap<u32, u64>,
    changed: Vec<Changed>,
    /// New content, by part of the stripe (data, then P, then Q) and block of the unit.
    pub(crate) blocks: BTreeMap<(usize, u32), SharedBuf>,
    /// Its record has all of its data with it: no older batch is needed.
    kept: Cell<bool>,
    /// Its record is in the log.
    recorded: Cell<bool>,
    log: RefCell<Option<LogPin>>,
}

impl Patch {
    /// A change that begins now. `log` keeps the batches that it needs.
    pub(crate) fn new(
        stripe: u32,
        rows: BTreeMap<u32, u64>,
        changed: Vec<Changed>,
        blocks: BTreeMap<(usize, u32), SharedBuf>,
        log: LogPin,
    ) -> Patch {
        Patch {
            stripe,
            rows,
            changed,
            blocks,
            kept: Cell::default(),
            recorded: Cell::default(),
            log: RefCell::new(Some(log)),
        }
    }

    /// What the log said of a stripe whose first block is `first`: registered again until the stripe has been moved.
    pub(crate) fn replayed(shape: &Shape, stripe: u32, first: u64, r: &Replayed) -> Patch {
        let unit = shape.interleave / BLOCK_BYTES;
        let data = r.blocks.iter().filter(|((i, _), _)| *i < shape.data_columns());
        let changed = data.map(|(&(i, row), (version, data))| Changed {
            block: first + i as u64 * unit + u64::from(row),
            version: *version,
            data: data.clone(),
            logged: false,
        });
        Patch {
            stripe,
            rows: r.rows.clone(),
            changed: changed.collect(),
            blocks: r.blocks.iter().map(|(&at, b)| (at, b.1.clone())).collect(),
            kept: Cell::new(true),
            recorded: Cell::new(true),
            log: RefCell::default(),
        }
    }

    /// The newest version that is in its parity.
    pub(crate) fn upto(&self) -> u64 {
        self.rows.values().copied().max().unwrap_or(0)
    }

    /// Data that goes to the log with its record.
    pub(crate) fn to_log(&self) -> impl Iterator<Item = &Changed> {
        self.changed.iter().filter(|c| self.kept.get() || !c.logged)
    }

    /// Every block of the space that changes.
    pub(crate) fn covered(&self) -> impl Iterator<Item = u64> {
        self.changed.iter().map(|c| c.block)
    }

    /// Blocks of payload that it takes in the log.
    pub(crate) fn log_blocks(&self, parities: usize) -> usize {
        self.to_log().count() + self.rows.len() * parities
    }

    /// Blocks of payload that it takes with all of its data.
    pub(crate) fn whole_blocks(&self, parities: usize) -> usize {
        self.changed.len() + self.rows.len() * parities
    }

    /// Neighbouring rows of one version: first, count, version.
    pub(crate) fn spans(&self) -> Vec<(u32, u32, u64)> {
        let mut out: Vec<(u32, u32, u64)> = Vec::new();
        for (&row, &upto) in &self.rows {
            match out.last_mut() {
                Some(l) if l.0 + l.1 == row && l.2 == upto => l.1 += 1,
                _ => out.push((row, 1, upto)),
            }
        }
        out
    }

    /// Its disks are away: from now on its record takes all of its data along.
    pub(crate) fn keep(&self) {
        self.kept.set(true);
    }

    /// While its record is still to be written, it takes all data along when it is, and needs no batch before the one at
    /// `head`, which is the next.
    pub(crate) fn keep_from(&self, pins: &Rc<LogPins>, head: (u64, u64)) {
        if !self.recorded.get() {
            self.keep();
            *self.log.borrow_mut() = Some(pins.hold(head));
        }
    }

    /// The batch at `at` has its record.
    pub(crate) fn logged(&self, pins: &Rc<LogPins>, at: (u64, u64)) {
        self.recorded.set(true);
        if self.kept.get() {
            *self.log.borrow_mut() = Some(pins.hold(at));
        }
    }

    /// Puts what is newer here over what was read of part `i` from byte `from` on.
    pub(crate) fn lay_over(&self, i: usize, from: u64, buf: &mut Buf) {
        let (a, b) = (from / BLOCK_BYTES, (from + buf.len() as u64) / BLOCK_BYTES);
        for (&(_, row), data) in self.blocks.range((i, a as u32)..(i, b as u32)) {
            let to = ((u64::from(row) - a) * BLOCK_BYTES) as usize;
            buf[to..to + BLOCK_BYTES as usize].copy_from_slice(data);
        }
    }
}

/// A stripe: space, group, stripe.
type StripeId = (u32, u32, u32);

/// The versions of a block that the log holds, ascending.
type Versions = Vec<(u64, SharedBuf)>;

/// The patches that a log holds, and the data that they speak of.
#[derive(Default)]
pub(crate) struct Patches {
    /// By block within the stripe: the versions that the log holds.
    data: BTreeMap<StripeId, BTreeMap<u64, Versions>>,
    pub(crate) slots: BTreeMap<StripeId, Replayed>,
}

/// What all patch records of a stripe say together.
pub(crate) struct Replayed {
    pub(crate) slot: u16,
    rows: BTreeMap<u32, u64>,
    /// Version (of data) and content, as in [`Patch::blocks`].
    blocks: BTreeMap<(usize, u32), (u64, SharedBuf)>,
}

impl Patches {
    pub(crate) fn note(&mut self, stripe: StripeId, block: u64, version: u64, data: &SharedBuf) {
        let list = self.data.entry(stripe).or_default().entry(block).or_default();
        let at = list.partition_point(|v| v.0 < version);
        list.insert(at, (version, data.clone()));
    }

    /// The stripe was written anew with everything up to `upto`.
    pub(crate) fn stripe_moved(&mut self, stripe: StripeId, upto: u64) {
        self.slots.remove(&stripe);
        if let Some(blocks) = self.data.get_mut(&stripe) {
            blocks.values_mut().for_each(|v| v.retain(|v| v.0 > upto));
        }
    }

    /// A patch record: of every data block in its rows the newest version up to `upto`, and the
    /// parity in `payload`.
    pub(crate) fn add(
        &mut self,
        shape: &Shape,
        stripe: StripeId,
        slot: u16,
        upto: u64,
        rows: std::ops::Range<u32>,
        payload: impl Fn(usize) -> SharedBuf,
    ) {
        let unit = shape.interleave / BLOCK_BYTES;
        let new = || Replayed { slot, rows: BTreeMap::new(), blocks: BTreeMap::new() };
        let Replayed { rows: upto_of, blocks, .. } = self.slots.entry(stripe).or_insert_with(new);
        let data = self.data.get(&stripe);
        let count = rows.len();
        for (n, row) in rows.enumerate() {
            upto_of.insert(row, upto);
            for i in 0..shape.data_columns() {
                let list = data.and_then(|d| d.get(&(i as u64 * unit + u64::from(row))));
                if let Some(v) = list.and_then(|l| l.iter().rev().find(|v| v.0 <= upto)) {
                    blocks.insert((i, row), v.clone());
                }
            }
            for k in 0..shape.layout.parity() {
                blocks.insert((shape.data_columns() + k, row), (upto, payload(k * count + n)));
            }
        }
    }
}

/// Changes in place of the whole pool.
#[derive(Default)]
pub(crate) struct PatchWork {
    under_way: Cell<u32>,
    /// How many forbid them now.
    forbidden: Cell<u32>,
    /// Since the pool was opened.
    finished: Cell<u64>,
    pins: Rc<LogPins>,
}

impl PatchWork {
    /// A stripe is being patched, until [`PatchWork::end`].
    pub(crate) fn begin(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    pub(crate) fn end(&self) {
        self.under_way.set(self.under_way.get() - 1);
    }

    /// All of one is in its place.
    pub(crate) fn note_finished(&self) {
        self.finished.set(self.finished.get() + 1);
    }

    /// While the guard lives stripes are moved and not patched: its owner holds the log, or is about to.
    pub(crate) fn forbid(self: &Rc<Self>) -> PatchesOff {
        self.forbidden.set(self.forbidden.get() + 1);
        PatchesOff(self.clone())
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.get() > 0
    }

    pub(crate) fn are_forbidden(&self) -> bool {
        self.forbidden.get() > 0
    }

    pub(crate) fn finished(&self) -> u64 {
        self.finished.get()
    }

    pub(crate) fn pins(&self) -> &Rc<LogPins> {
        &self.pins
    }

    /// The oldest batch of the log that one of them needs: sequence and position.
    pub(crate) fn oldest_log(&self) -> Option<(u64, u64)> {
        self.pins.oldest()
    }

    /// `marked` counts the stripes that spaces have marked.
    pub(crate) fn check(&self, marked: usize) -> Result<(), String> {
        let n = self.under_way.get();
        if n as usize == marked { Ok(()) } else { Err(format!("{n} changes in place, of {marked} stripes")) }
    }
}

/// Stripes of a space, each with its group, that are being changed in place.
#[derive(Default)]
pub(crate) struct PatchedStripes(RefCell<BTreeSet<(usize, usize)>>);

impl PatchedStripes {
    pub(crate) fn begin(&self, at: (usize, usize)) {
        self.0.borrow_mut().insert(at);
    }

    pub(crate) fn end(&self, at: (usize, usize)) {
        self.0.borrow_mut().remove(&at);
    }

    pub(crate) fn contains(&self, at: (usize, usize)) -> bool {
        self.0.borrow().contains(&at)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.borrow().len()
    }
}

pub(crate) struct PatchesOff(Rc<PatchWork>);

impl Drop for PatchesOff {
    fn drop(&mut self) {
        self.0.forbidden.set(self.0.forbidden.get() - 1);
    }
}

/// Changes in place that are written and wait for a flush of the disks, which they share. Each ends by itself soon; who
/// needs the end of all of them says so, and waits.
#[derive(Default)]
pub(crate) struct Unflushed {
    waiting: RefCell<BTreeSet<u64>>,
    next: Cell<u64>,
    /// Those before this one are to be flushed now.
    wanted: Cell<u64>,
    /// Of those that ended, how many could not be flushed in their place.
    failed: Cell<u64>,
    want: Notify,
    ended: Notify,
}

/// One of them, until it is dropped.
pub(crate) struct Waiting {
    of: Rc<Unflushed>,
    number: u64,
}

impl Unflushed {
    pub(crate) fn begin(self: &Rc<Self>) -> Waiting {
        let number = self.next.get();
        self.next.set(number + 1);
        self.waiting.borrow_mut().insert(number);
        Waiting { of: self.clone(), number }
    }

    /// Everything that waits is to be flushed now. The number of the first that is not meant.
    pub(crate) fn want(&self) -> u64 {
        let end = self.next.get();
        self.wanted.set(end);
        self.want.notify_all();
        end
    }

    pub(crate) fn is_any_before(&self, end: u64) -> bool {
        self.waiting.borrow().first().is_some_and(|n| *n < end)
    }

    /// Rung when one of them has ended.
    pub(crate) fn ended(&self) -> NotifyWait<'_> {
        self.ended.wait()
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.get()
    }
}

impl Waiting {
    pub(crate) fn is_wanted(&self) -> bool {
        self.number < self.of.wanted.get()
    }

    /// Rung when more of them are wanted.
    pub(crate) fn wanted(&self) -> NotifyWait<'_> {
        self.of.want.wait()
    }

    pub(crate) fn want_all(&self) {
        self.of.want();
    }

    pub(crate) fn failed(&self) {
        self.of.failed.set(self.of.failed.get() + 1);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.of.waiting.borrow_mut().remove(&self.number);
        self.of.ended.notify_all();
    }
}
