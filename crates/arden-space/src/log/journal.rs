//! Writing and reading the journal of an open pool: one mirrored, sequential log. Everybody who waits shares the
//! next batch. What is appended is looked up when the batch is built, so that the order of
//! the log is the order of the changes in memory.

use std::rc::Rc;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, Buf, LocalFuture, SharedBuf};

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::open_disk::DiskRt;
use crate::log::record::{self, Record};
use crate::map::pool_map::JournalRec;
use crate::pool::open_pool::{Pool, SpaceRt};
use crate::state::journal::Item;
use crate::state::patches::Patch;

/// The most records and data of one batch.
const BATCH_RECORDS_MAX: usize = 2048;
const BATCH_BYTES_MAX: u64 = 2 << 20;
/// How often, and each time how long, a writer waits for a crowded log.
const EMPTYINGS_MAX: usize = 4;
const EMPTYING_NS: u64 = 250_000_000;

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

/// Blocks of payload of a batch of `cap` bytes.
fn blocks_of(cap: u64) -> usize {
    (cap / BLOCK_BYTES).saturating_sub(1) as usize
}

impl Pool {
    /// Whether more than `limit` of the log is claimed: what is in use, and what the changes in place will need that bring
    /// to its place what it holds of parity spaces, for that much may follow before anything of it is free.
    fn log_claims_more_than(&self, limit: u64) -> bool {
        let parity = |space: u32| self.space_rt(space).map_or(0, |s| s.shape.layout.parity() as u64);
        let used = self.0.journal.state().used();
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
        let size = self.0.journal.state().size;
        self.log_claims_more_than(size / 4)
    }

    /// Durable writers wait for those who empty it: at a half everything would wait.
    fn log_is_crowded(&self) -> bool {
        let size = self.0.journal.state().size;
        self.log_claims_more_than(size / 8 * 3)
    }

    /// Lets go of what nothing needs any more, where that is an eighth of the log. It costs a map; what is in memory stays
    /// there.
    pub(crate) async fn trim_log(&self) -> SpaceResult<()> {
        let unneeded = {
            let s = self.0.journal.state();
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
            let emptied = j.emptied();
            j.tell_filling();
            let _ = self.0.rt.timeout_ns(EMPTYING_NS, emptied).await;
        }
    }

    /// Appends and waits until it is durable on every disk of the journal.
    pub(crate) async fn journal_append(&self, items: impl IntoIterator<Item = Item>) -> SpaceResult<()> {
        let j = &self.0.journal;
        let failures = j.failures();
        let ticket = j.queue(items);
        while !j.is_done(ticket) {
            let _guard = j.lock().await;
            if j.is_done(ticket) {
                break;
            }
            self.write_some().await?;
        }
        if j.failures() == failures { Ok(()) } else { Err(SpaceError::Offline) }
    }

    /// Writes everything that is queued by now. The caller holds the lock.
    pub(crate) async fn write_queue(&self) -> SpaceResult<()> {
        let j = &self.0.journal;
        let ticket = j.queued();
        while !j.is_done(ticket) {
            self.write_some().await?;
        }
        Ok(())
    }

    async fn write_some(&self) -> SpaceResult<()> {
        self.alive()?;
        let result = self.write_batch().await;
        if result.is_err() {
            self.0.journal.give_up_queue();
        }
        result
    }

    async fn write_batch(&self) -> SpaceResult<()> {
        let j = &self.0.journal;
        let size = j.state().size;
        let used = || j.state().used();
        let cap = BATCH_BYTES_MAX.min(size / 8);
        if used() > size / 2 {
            self.trim_log().await?;
        }
        if used() > size / 2 && !self.0.life.is_opening() {
            self.empty_half_full_log(cap).await?;
        }
        self.write_drafted(|me| me.build_batch(cap)).await?;
        if self.log_is_filling() {
            j.tell_filling();
        }
        Ok(())
    }

    /// Only a log with no room at all is an error to those who write to it.
    async fn empty_half_full_log(&self, cap: u64) -> SpaceResult<()> {
        let used = || self.0.journal.state().used();
        let half = self.0.journal.state().size / 2;
        (self.0.empty_log)(self.clone()).await?;
        if used() <= half {
            return Ok(());
        }
        self.queue_stuck();
        // Writing on is what frees a log that waits for what is in the queue, until that is more than the log has room for.
        if used() <= half + cap {
            return Ok(());
        }
        self.keep_queued_patches(cap);
        self.trim_log().await?;
        let before = self.0.journal.head();
        while used() > half && self.write_drafted(|me| me.draft_what_keeps(before, cap)).await? {
            (self.0.empty_log)(self.clone()).await?;
        }
        Ok(())
    }

    /// Changes in place whose records are in the queue take all of their data along, so that they hold no batch back.
    fn keep_queued_patches(&self, cap: u64) {
        let (head, pins) = (self.0.journal.head(), self.0.patches.pins());
        for (space, patch) in self.queued_patches() {
            let parity = self.space_rt(space).map_or(0, |s| s.shape.layout.parity());
            if patch.whole_blocks(parity) <= blocks_of(cap) {
                patch.keep_from(pins, head);
            }
        }
    }

    fn queued_patches(&self) -> Vec<(u32, Rc<Patch>)> {
        let of = |item| match item {
            Item::Patch { space, group, slot } => Some((space, self.registered(space, group, slot)?)),
            _ => None,
        };
        self.0.journal.queued_patches().into_iter().filter_map(of).collect()
    }

    /// Writes a batch, drafted when every departure so far is durable, and notes what it holds. False when it would be empty.
    async fn write_drafted(&self, draft: impl FnOnce(&Pool) -> Draft) -> SpaceResult<bool> {
        let j = &self.0.journal;
        self.wait_departures_durable().await?;
        let Draft { records, blocks, marks, taken } = draft(self);
        if records.is_empty() {
            j.answered(taken);
            return Ok(false);
        }
        let (log_id, seq) = {
            let s = j.state();
            (s.log_id, s.seq)
        };
        tracing::trace!("batch {seq} to {:?}: {}", j.state().disks, record::outline(&records));
        let bytes = record::encode(log_id, seq, &records, &blocks);
        let len = bytes.len() as u64;
        let pos = {
            let s = j.state();
            let wraps = s.head + len > s.size;
            let waste = if wraps { s.size - s.head } else { 0 };
            if s.used() + waste + len + BLOCK_BYTES > s.size {
                return Err(SpaceError::Offline);
            }
            if wraps { 0 } else { s.head }
        };
        self.void_doubtful(pos).await?;
        j.batch_begins(pos);
        self.write_log(pos, bytes).await?;
        j.batch_is_durable(seq, pos + len);
        for (space, block, version) in marks.blocks {
            if let Some(s) = self.space_rt(space) {
                s.overlay.borrow_mut().set_logged(block, version, (seq, pos));
                s.logged.note(block, seq);
            }
        }
        for (space, group, slot, patch) in marks.patches {
            let Some(s) = self.space_rt(space) else { continue };
            // A move of the stripe has to say that this batch is void, too.
            patch.covered().for_each(|b| s.logged.note(b, seq));
            patch.logged(self.0.patches.pins(), (seq, pos));
            if let Some(g) = s.group_rt(group) {
                g.slots.note_patched(slot, seq);
            }
        }
        j.answered(taken);
        Ok(true)
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
        self.space_rt(space)?.group_rt(group)?.slots.patch(slot)
    }

    fn build_batch(&self, cap: u64) -> Draft {
        let j = &self.0.journal;
        let mut d = Draft::default();
        while let Some(item) = j.peek() {
            let blocks = (d.blocks.len() + self.item_blocks(&item)) as u64;
            let full = d.records.len() >= BATCH_RECORDS_MAX || (blocks + 1) * BLOCK_BYTES > cap;
            if full && !d.records.is_empty() {
                break;
            }
            j.pop();
            d.taken += 1;
            match item {
                Item::Block { space, block } => {
                    let entry = self.space_rt(space).and_then(|s| s.overlay.borrow().get(block).cloned());
                    let known = entry.is_some_and(|e| self.draft_data(&mut d, space, block, e.version, &e.data));
                    if !known {
                        j.skip();
                    }
                }
                Item::Flip { id } => {
                    // Gone from the list: a map that holds it became durable meanwhile.
                    let flip = self.0.flips.get(id);
                    let Some(f) = flip else { continue };
                    let map = self.0.map.read();
                    let group = map.group_of(f.space, f.group as usize, f.incarnation);
                    let degraded = group.is_some_and(|g| g.dirty.get(usize::from(f.slot)));
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

    /// What keeps batches before `before` in the log because it waits for the log itself: the newest versions of blocks of
    /// which an older one is logged, data of changes in place, and blocks that wait for their disks, the oldest batch first.
    /// What waits stays in the queue.
    fn draft_what_keeps(&self, before: (u64, u64), cap: u64) -> Draft {
        let mut keeps: Vec<((u64, u64), u32, u64)> = Vec::new();
        for s in self.0.spaces.borrow().values() {
            keeps.extend(s.overlay.borrow().replaced().map(|(block, at)| (at, s.id, block)));
        }
        for (space, patch) in self.queued_patches() {
            let Some(s) = self.space_rt(space) else { continue };
            let overlay = s.overlay.borrow();
            let at = |block: u64| Some((overlay.get(block)?.logged_at()?, space, block));
            keeps.extend(patch.covered().filter_map(at));
        }
        keeps.extend(self.stuck_in_log());
        keeps.retain(|(at, ..)| *at < before);
        keeps.sort_unstable();
        keeps.dedup();
        let mut d = Draft::default();
        for (_, space, block) in keeps {
            let Some(s) = self.space_rt(space) else { continue };
            let entry = s.overlay.borrow().get(block).cloned();
            if let Some(e) = entry
                && d.records.len() < BATCH_RECORDS_MAX
                && d.blocks.len() < blocks_of(cap)
            {
                self.draft_data(&mut d, space, block, e.version, &e.data);
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
        let incarnation = self.0.map.read().group(space, group).map(|g| g.incarnation);
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

    /// A batch that failed may have landed. One of the same number at another place, `pos`, would be taken for it by a replay, and all that
    /// follows would be lost: the failed one is overwritten first, on every disk of the log that stays.
    async fn void_doubtful(&self, pos: u64) -> SpaceResult<()> {
        let doubtful = self.0.journal.state().doubtful;
        match doubtful {
            Some(at) if at != pos => self.write_log(at, Buf::zeroed(BLOCK_BYTES as usize).share()).await,
            _ => Ok(()),
        }
    }

    /// Writes a batch to all journal disks; those that fail leave the pool first.
    async fn write_log(&self, pos: u64, bytes: SharedBuf) -> SpaceResult<()> {
        let disks: Vec<Rc<DiskRt>> = {
            let s = self.0.journal.state();
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
            self.write_was_lost().await;
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
