//! The journal of an open pool: one mirrored, sequential log. Everybody who waits shares the
//! next batch. What is appended is looked up when the batch is built, so that the order of
//! the log is the order of the changes in memory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use arden_block::sync::{Mutex, Notify, join_all};
use arden_block::{BLOCK_BYTES, Buf, LocalFuture, SharedBuf};

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::open_disk::DiskRt;
use crate::log::record::{self, Record};
use crate::map::pool_map::JournalRec;
use crate::pool::open_pool::{Pool, SpaceRt};
use crate::space::patch::Patch;

/// The most records and data of one batch.
const BATCH_RECORDS_MAX: usize = 2048;
const BATCH_BYTES_MAX: u64 = 2 << 20;
/// How often, and each time how long, a writer waits for a crowded log.
const EMPTYINGS_MAX: usize = 4;
const EMPTYING_NS: u64 = 250_000_000;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Item {
    /// The current content of a block that gathers in memory.
    Block {
        space: u32,
        block: u64,
    },
    /// A stripe that moved.
    Flip {
        id: u64,
    },
    Dirty {
        space: u32,
        group: u32,
        incarnation: u64,
        bit: u32,
    },
    /// What is registered of a slot, with the data that the log does not hold yet.
    Patch {
        space: u32,
        group: usize,
        slot: u16,
    },
}

/// What is noted once a batch is durable.
#[derive(Default)]
struct Marks {
    /// Space, block, version: this content is in the log.
    blocks: Vec<(u32, u64, u64)>,
    /// Space, group, slot: changed in place by this batch.
    patches: Vec<(u32, usize, u16, Rc<Patch>)>,
}

/// A batch before it has bytes.
#[derive(Default)]
struct Draft {
    records: Vec<Record>,
    blocks: Vec<SharedBuf>,
    marks: Marks,
    /// Requests that it answers.
    taken: u64,
}

#[derive(Default, Clone)]
pub(crate) struct JournalState {
    pub(crate) log_id: u64,
    pub(crate) disks: Vec<u16>,
    pub(crate) size: u64,
    /// Where the next batch goes.
    pub(crate) head: u64,
    pub(crate) seq: u64,
    /// Where the newest durable map says that replay begins.
    pub(crate) tail: u64,
}

impl JournalState {
    fn used(&self) -> u64 {
        (self.head + self.size - self.tail) % self.size.max(1)
    }

    /// Bytes from the oldest batch that is needed, which is at `oldest`, to the head.
    fn used_since(&self, oldest: u64) -> u64 {
        (self.head + self.size - oldest) % self.size.max(1)
    }
}

#[derive(Default)]
pub(crate) struct Journal {
    pub(crate) lock: Mutex,
    pub(crate) state: RefCell<JournalState>,
    /// The log before, while no durable map names the new one. It holds nothing that is needed, and still counts.
    former: RefCell<Option<(JournalState, JournalRec)>>,
    queue: RefCell<VecDeque<Item>>,
    asked: Cell<u64>,
    done: Cell<u64>,
    /// What was queued to be kept is in the log when so much is done.
    kept: Cell<u64>,
    /// Blocks asked for that had left memory when their batch was built.
    skipped: Cell<u64>,
    /// Raised when what was queued had to be given up.
    failures: Cell<u64>,
    pub(crate) batches: Cell<u64>,
    /// Rung when the log should be put in its place soon.
    pub(crate) filling: Notify,
    /// Rung when that has been done.
    pub(crate) emptied: Notify,
    /// Nothing new may be gathered now; rung when it may again.
    pub(crate) stopped: Cell<bool>,
    pub(crate) goes_on: Notify,
}

impl Journal {
    pub(crate) fn reset(&self, rec: &JournalRec) {
        *self.state.borrow_mut() = JournalState {
            log_id: rec.log_id,
            disks: rec.disks.clone(),
            size: rec.size_bytes,
            head: rec.start_pos,
            seq: rec.start_seq,
            tail: rec.start_pos,
        };
    }

    /// The map is about to name a new log instead of `rec`.
    pub(crate) fn begin_switch(&self, rec: JournalRec) {
        *self.former.borrow_mut() = Some((self.state.borrow().clone(), rec));
    }

    /// A map is durable that names the log.
    pub(crate) fn end_switch(&self) {
        *self.former.borrow_mut() = None;
    }

    /// Every disk of the new log has left before a map named it: the old one goes on, on those of its disks that stay.
    pub(crate) fn undo_switch(&self, stays: impl Fn(u16) -> bool) -> Option<JournalRec> {
        let (mut state, mut rec) = self.former.borrow_mut().take()?;
        rec.disks.retain(|&d| stays(d));
        state.disks.clone_from(&rec.disks);
        *self.state.borrow_mut() = state;
        Some(rec)
    }

    pub(crate) fn forget_disk(&self, disk: u16) {
        self.state.borrow_mut().disks.retain(|&d| d != disk);
    }

    /// `rec` is what the map in memory says of the journal.
    pub(crate) fn check(&self, rec: &JournalRec) -> Result<(), String> {
        let s = self.state.borrow();
        if s.log_id != rec.log_id || s.disks != rec.disks {
            return Err(format!("log {:x} on {:?}, in the map {:x} on {:?}", s.log_id, s.disks, rec.log_id, rec.disks));
        }
        if s.head > s.size || s.tail > s.size {
            return Err(format!("a log of {} bytes from {} to {}", s.size, s.tail, s.head));
        }
        if self.done.get() > self.asked.get() {
            return Err(format!("{} records are logged, of {}", self.done.get(), self.asked.get()));
        }
        Ok(())
    }

    /// Blocks that are to be kept are in the queue already.
    pub(crate) fn keeps(&self) -> bool {
        self.done.get() < self.kept.get()
    }

    /// Queues blocks that nobody waits for, behind all others.
    pub(crate) fn keep(&self, items: impl IntoIterator<Item = Item>) {
        let mut queue = self.queue.borrow_mut();
        let before = queue.len();
        queue.extend(items);
        self.asked.set(self.asked.get() + (queue.len() - before) as u64);
        self.kept.set(self.asked.get());
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.get()
    }
}

impl Pool {
    /// Whether more than `limit` of the log is claimed: what is in use, and what the changes in place will need that bring
    /// to its place what it holds of parity spaces, for that much may follow before anything of it is free.
    fn log_claims_more_than(&self, limit: u64) -> bool {
        let parity = |space: u32| self.space_rt(space).map_or(0, |s| s.shape.layout.parity() as u64);
        let used = self.0.journal.state.borrow().used();
        let logged = |s: &Rc<SpaceRt>| s.overlay.borrow().logged_bytes() * s.shape.layout.parity() as u64;
        let claimed: u64 = self.0.spaces.borrow().values().map(logged).sum();
        if used + claimed <= limit {
            return false;
        }
        // What waits for its disks is not brought anywhere.
        let stuck: u64 = self.stuck_blocks().iter().map(|(space, _)| parity(*space) * BLOCK_BYTES).sum();
        used + claimed.saturating_sub(stuck) > limit
    }

    /// A quarter is claimed: emptying it now, beside the writers, spares them the wait at a half.
    pub(crate) fn log_is_filling(&self) -> bool {
        let size = self.0.journal.state.borrow().size;
        self.log_claims_more_than(size / 4)
    }

    /// Durable writers wait for those who empty it: at a half everything would wait.
    fn log_is_crowded(&self) -> bool {
        let size = self.0.journal.state.borrow().size;
        self.log_claims_more_than(size / 8 * 3)
    }

    /// The oldest batch that anything in memory needs: sequence and position.
    pub(crate) fn oldest_needed(&self) -> Option<(u64, u64)> {
        let oldest = self.0.spaces.borrow().values().filter_map(|s| s.overlay.borrow().oldest_needed()).min();
        oldest.into_iter().chain(self.0.patches.oldest_log()).min()
    }

    /// Lets go of what nothing needs any more, where that is an eighth of the log. It costs a map; what is in memory stays
    /// there.
    pub(crate) async fn trim_log(&self) -> SpaceResult<()> {
        let unneeded = {
            let s = self.0.journal.state.borrow();
            let needed = self.oldest_needed().map_or(0, |(_, at)| s.used_since(at));
            s.used().saturating_sub(needed) >= (s.size / 8).max(1)
        };
        if unneeded && !self.0.life.is_opening() { self.commit().await } else { Ok(()) }
    }

    /// Called by durable writers before they append. Not for ever: what cannot be emptied (a
    /// disk is away that nothing can replace) does not stop them before the log is full.
    pub(crate) async fn wait_for_log(&self) {
        let j = &self.0.journal;
        for _ in 0..EMPTYINGS_MAX {
            if !self.log_is_crowded() || self.0.life.is_opening() || self.0.life.is_closed() {
                return;
            }
            let emptied = j.emptied.wait();
            j.filling.notify_all();
            let _ = self.0.rt.timeout_ns(EMPTYING_NS, emptied).await;
        }
    }

    /// Appends and waits until it is durable on every disk of the journal.
    pub(crate) async fn journal_append(&self, items: impl IntoIterator<Item = Item>) -> SpaceResult<()> {
        let j = &self.0.journal;
        let failures = j.failures.get();
        let mut n = 0;
        for i in items {
            j.queue.borrow_mut().push_back(i);
            n += 1;
        }
        j.asked.set(j.asked.get() + n);
        let ticket = j.asked.get();
        while j.done.get() < ticket {
            let _guard = j.lock.lock().await;
            if j.done.get() >= ticket {
                break;
            }
            self.write_some().await?;
        }
        if j.failures.get() == failures { Ok(()) } else { Err(SpaceError::Offline) }
    }

    /// Writes everything that is queued by now. The caller holds the lock.
    pub(crate) async fn write_queue(&self) -> SpaceResult<()> {
        let j = &self.0.journal;
        let ticket = j.asked.get();
        while j.done.get() < ticket {
            self.write_some().await?;
        }
        Ok(())
    }

    async fn write_some(&self) -> SpaceResult<()> {
        self.alive()?;
        let result = self.write_batch().await;
        if result.is_err() {
            self.give_up_queue();
        }
        result
    }

    async fn write_batch(&self) -> SpaceResult<()> {
        let j = &self.0.journal;
        let size = j.state.borrow().size;
        let used = || j.state.borrow().used();
        let cap = BATCH_BYTES_MAX.min(size / 8);
        if used() > size / 2 {
            self.trim_log().await?;
        }
        // What a checkpoint cannot free is needed by blocks that wait in the queue: writing
        // on is what frees it. Only a log with no room at all is an error.
        if used() > size / 2 && !self.0.life.is_opening() {
            self.checkpoint_alone().await?;
            if used() > size / 2 {
                self.queue_stuck();
            }
        }
        self.wait_departures_durable().await?;
        let Draft { records, blocks, marks, taken } = self.build_batch(cap);
        if records.is_empty() {
            j.done.set(j.done.get() + taken);
            return Ok(());
        }
        let (log_id, seq) = {
            let s = j.state.borrow();
            (s.log_id, s.seq)
        };
        tracing::trace!("batch {seq} to {:?}: {}", j.state.borrow().disks, record::outline(&records));
        let bytes = record::encode(log_id, seq, &records, &blocks);
        let len = bytes.len() as u64;
        let pos = {
            let s = j.state.borrow();
            let wraps = s.head + len > s.size;
            let waste = if wraps { s.size - s.head } else { 0 };
            if s.used() + waste + len + BLOCK_BYTES > s.size {
                return Err(SpaceError::Offline);
            }
            if wraps { 0 } else { s.head }
        };
        self.write_log(pos, bytes).await?;
        {
            let mut s = j.state.borrow_mut();
            s.head = pos + len;
            s.seq = seq + 1;
        }
        j.batches.set(j.batches.get() + 1);
        for (space, block, version) in marks.blocks {
            if let Some(s) = self.space_rt(space) {
                s.overlay.borrow_mut().set_logged(block, version, (seq, pos));
                s.logged.borrow_mut().insert(block, seq);
            }
        }
        for (space, group, slot, patch) in marks.patches {
            let Some(s) = self.space_rt(space) else { continue };
            // A move of the stripe has to say that this batch is void, too.
            patch.covered().for_each(|b| _ = s.logged.borrow_mut().insert(b, seq));
            patch.logged(self.0.patches.pins(), (seq, pos));
            if let Some(g) = s.group_rt(group) {
                g.patched.borrow_mut().insert(slot, seq);
            }
        }
        j.done.set(j.done.get() + taken);
        if self.log_is_filling() {
            j.filling.notify_all();
        }
        Ok(())
    }

    /// The log cannot be written: everybody who waits is told so.
    fn give_up_queue(&self) {
        let j = &self.0.journal;
        j.queue.borrow_mut().clear();
        j.done.set(j.asked.get());
        j.failures.set(j.failures.get() + 1);
    }

    /// Blocks of payload that an item adds to its batch.
    fn item_blocks(&self, item: &Item) -> usize {
        match *item {
            Item::Block { .. } => 1,
            Item::Patch { space, group, slot } => self.registered(space, group, slot).map_or(0, |p| {
                let parity = self.space_rt(space).map_or(0, |s| s.shape.layout.parity());
                p.log_blocks(parity)
            }),
            Item::Flip { .. } | Item::Dirty { .. } => 0,
        }
    }

    fn registered(&self, space: u32, group: usize, slot: u16) -> Option<Rc<Patch>> {
        self.space_rt(space)?.group_rt(group)?.patches.borrow().get(&slot).cloned()
    }

    fn build_batch(&self, cap: u64) -> Draft {
        let j = &self.0.journal;
        let mut queue = j.queue.borrow_mut();
        let mut d = Draft::default();
        while let Some(&item) = queue.front() {
            let blocks = (d.blocks.len() + self.item_blocks(&item)) as u64;
            let full = d.records.len() >= BATCH_RECORDS_MAX || (blocks + 1) * BLOCK_BYTES > cap;
            if full && !d.records.is_empty() {
                break;
            }
            queue.pop_front();
            d.taken += 1;
            match item {
                Item::Block { space, block } => {
                    let entry = self.space_rt(space).and_then(|s| s.overlay.borrow().get(block).cloned());
                    let known = entry.is_some_and(|e| self.draft_data(&mut d, space, block, e.version, &e.data));
                    if !known {
                        j.skipped.set(j.skipped.get() + 1);
                    }
                }
                Item::Flip { id } => {
                    // Gone from the list: a map that holds it became durable meanwhile.
                    let flip = self.0.flips.get(id);
                    let Some(f) = flip else { continue };
                    let mut map = self.0.map.borrow_mut();
                    let degraded =
                        map.group_of(f.space, f.group, f.incarnation).is_some_and(|g| g.dirty.get(usize::from(f.slot)));
                    d.records.push(Record::Flip {
                        space: f.space,
                        group: f.group,
                        incarnation: f.incarnation,
                        stripe: f.stripe,
                        slot: f.slot,
                        upto: f.upto,
                        id,
                        degraded,
                    });
                }
                Item::Dirty { space, group, incarnation, bit } => {
                    d.records.push(Record::Dirty { space, group, incarnation, bit });
                }
                Item::Patch { space, group, slot } => self.draft_patch(&mut d, space, group, slot),
            }
        }
        d
    }

    /// False when the block belongs to nothing any more.
    fn draft_data(&self, d: &mut Draft, space: u32, block: u64, version: u64, data: &SharedBuf) -> bool {
        let place = self.space_rt(space).and_then(|s| s.locate_group(&self.0, block));
        let Some((group, incarnation, in_group)) = place else { return false };
        d.marks.blocks.push((space, block, version));
        d.blocks.push(data.clone());
        if let Some(Record::Data { space: s, group: g, version: v, block: b, count, .. }) = d.records.last_mut()
            && (*s, *g, *v, *b + u64::from(*count)) == (space, group, version, in_group)
        {
            *count += 1;
            return true;
        }
        d.records.push(Record::Data { space, group, incarnation, version, block: in_group, count: 1 });
        true
    }

    fn draft_patch(&self, d: &mut Draft, space: u32, group: usize, slot: u16) {
        let Some(patch) = self.registered(space, group, slot) else { return };
        let Some(shape) = self.space_rt(space).map(|s| s.shape) else { return };
        let incarnation = self.0.map.borrow().group(space, group).map(|g| g.incarnation);
        let Some(incarnation) = incarnation else { return };
        for c in patch.to_log() {
            self.draft_data(d, space, c.block, c.version, &c.data);
        }
        let (data, parities) = (shape.data_columns(), shape.layout.parity());
        for (row, rows, upto) in patch.spans() {
            for i in data..data + parities {
                d.blocks.extend((row..row + rows).filter_map(|r| patch.blocks.get(&(i, r)).cloned()));
            }
            d.records.push(Record::Patch {
                space,
                group: group as u32,
                incarnation,
                upto,
                stripe: patch.stripe,
                slot,
                row,
                rows,
                parities: parities as u8,
            });
        }
        d.marks.patches.push((space, group, slot, patch));
    }

    /// Writes a batch to all journal disks; those that fail leave the pool first.
    async fn write_log(&self, pos: u64, bytes: SharedBuf) -> SpaceResult<()> {
        let disks: Vec<Rc<DiskRt>> = {
            let s = self.0.journal.state.borrow();
            s.disks.iter().filter_map(|&d| self.disk(d)).collect()
        };
        let mut writes: Vec<LocalFuture<bool>> = Vec::new();
        for d in &disks {
            let (d, bytes) = (d.clone(), bytes.clone());
            writes.push(Box::pin(async move { d.write(d.areas.journal_at + pos, bytes, true).await.is_ok() }));
        }
        let results = join_all(writes).await;
        let failed: Vec<&Rc<DiskRt>> = disks.iter().zip(&results).filter(|(_, ok)| !**ok).map(|(d, _)| d).collect();
        if failed.len() == disks.len() {
            return Err(SpaceError::Closed);
        }
        for d in failed {
            self.fail_disk(d, "journal write failed").await?;
        }
        Ok(())
    }
}

/// Reads the log from where the map says it begins, and says where it ends. `disks` are those
/// whose copies are up to date.
pub(crate) async fn read_log(rec: &JournalRec, disks: &[Rc<DiskRt>]) -> SpaceResult<(Vec<record::Batch>, u64)> {
    let mut out = Vec::new();
    let (mut pos, mut seq) = (rec.start_pos, rec.start_seq);
    'next: loop {
        // A copy that could be read and has no such batch says that the log ends here; one
        // that cannot be read says nothing.
        let (mut ended, mut unread) = (false, None);
        for d in disks {
            let mut whole = true;
            for at in [pos, 0] {
                if at + BLOCK_BYTES > rec.size_bytes {
                    continue;
                }
                match read_batch(rec, d, at, seq).await {
                    Ok(Some(batch)) => {
                        pos = at + batch.len;
                        seq += 1;
                        out.push(batch);
                        continue 'next;
                    }
                    Ok(None) => {}
                    Err(e) => (whole, unread) = (false, Some(e)),
                }
            }
            ended |= whole;
        }
        return match unread {
            Some(e) if !ended => Err(e),
            _ => Ok((out, pos)),
        };
    }
}

async fn read_batch(rec: &JournalRec, disk: &DiskRt, at: u64, seq: u64) -> SpaceResult<Option<record::Batch>> {
    let base = disk.areas.journal_at + at;
    let header = disk.read(base, BLOCK_BYTES as usize).await?;
    let Some(len) = record::peek(&header, rec.log_id, seq) else { return Ok(None) };
    if at + len > rec.size_bytes {
        return Ok(None);
    }
    let data: Buf = disk.read(base, len as usize).await?;
    let batch = record::decode(data)?;
    Ok(batch.filter(|b| b.seq == seq))
}
