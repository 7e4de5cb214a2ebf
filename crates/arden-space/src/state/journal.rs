//! What is known of the log of an open pool: where its next batch goes and where replay begins, who waits for what, and
//! who may write. Reading and writing it is `log`.

use std::cell::{Cell, Ref, RefCell};
use std::collections::VecDeque;

use arden_block::sync::{Mutex, MutexGuard, Notify, NotifyWait};

use crate::map::pool_map::JournalRec;

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
    /// Where a batch with the number of the next one may be on some disk: it was written there, and nobody knows whether it landed.
    pub(crate) doubtful: Option<u64>,
}

impl JournalState {
    pub(crate) fn used(&self) -> u64 {
        (self.head + self.size - self.tail) % self.size.max(1)
    }

    /// Bytes from the oldest batch that is needed, which is at `oldest`, to the head.
    pub(crate) fn used_since(&self, oldest: u64) -> u64 {
        (self.head + self.size - oldest) % self.size.max(1)
    }
}

#[derive(Default)]
pub(crate) struct Journal {
    lock: Mutex,
    state: RefCell<JournalState>,
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
    /// Rung when the log should be put in its place soon.
    filling: Notify,
    /// Rung when that has been done.
    emptied: Notify,
    /// Nothing new may be gathered now; rung when it may again.
    stopped: Cell<bool>,
    goes_on: Notify,
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
            doubtful: None,
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
        state.disks.retain(|&d| stays(d));
        if !state.disks.is_empty() {
            rec.disks.clone_from(&state.disks);
        }
        *self.state.borrow_mut() = state;
        Some(rec)
    }

    pub(crate) fn forget_disk(&self, disk: u16) {
        self.state.borrow_mut().disks.retain(|&d| d != disk);
    }

    /// `rec` is what the map in memory says of the journal.
    pub(crate) fn check(&self, rec: &JournalRec) -> Result<(), String> {
        let s = self.state.borrow();
        // Without a disk that is here, the map names the last one that had it.
        if s.log_id != rec.log_id || !s.disks.is_empty() && s.disks != rec.disks {
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
        self.kept.set(self.queue(items));
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.get()
    }

    /// As it is now.
    pub(crate) fn state(&self) -> Ref<'_, JournalState> {
        self.state.borrow()
    }

    /// Sequence number and position of the next batch.
    pub(crate) fn head(&self) -> (u64, u64) {
        let s = self.state.borrow();
        (s.seq, s.head)
    }

    /// A durable map says that replay begins at `tail`.
    pub(crate) fn starts_at(&self, tail: u64) {
        self.state.borrow_mut().tail = tail;
    }

    /// The next batch is about to be written at `pos`, and nothing else has its number.
    pub(crate) fn batch_begins(&self, pos: u64) {
        self.state.borrow_mut().doubtful = Some(pos);
    }

    /// That batch, `seq`, is durable; the next begins at `end`.
    pub(crate) fn batch_is_durable(&self, seq: u64, end: u64) {
        let mut s = self.state.borrow_mut();
        s.head = end;
        s.seq = seq + 1;
        s.doubtful = None;
    }

    /// Nobody else writes to the log while the guard lives.
    pub(crate) async fn lock(&self) -> MutexGuard<'_> {
        self.lock.lock().await
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }

    /// Queues items; they are in the log when so many are done as this says.
    pub(crate) fn queue(&self, items: impl IntoIterator<Item = Item>) -> u64 {
        let mut queue = self.queue.borrow_mut();
        let before = queue.len();
        queue.extend(items);
        self.asked.set(self.asked.get() + (queue.len() - before) as u64);
        self.asked.get()
    }

    /// Everything that is queued by now is in the log when so many are done.
    pub(crate) fn queued(&self) -> u64 {
        self.asked.get()
    }

    pub(crate) fn is_done(&self, ticket: u64) -> bool {
        self.done.get() >= ticket
    }

    /// The next item of the queue.
    pub(crate) fn peek(&self) -> Option<Item> {
        self.queue.borrow().front().copied()
    }

    /// Changes in place that wait for their record.
    pub(crate) fn queued_patches(&self) -> Vec<Item> {
        self.queue.borrow().iter().filter(|i| matches!(i, Item::Patch { .. })).copied().collect()
    }

    pub(crate) fn pop(&self) {
        self.queue.borrow_mut().pop_front();
    }

    /// So many more items need no further batch.
    pub(crate) fn answered(&self, taken: u64) {
        self.done.set(self.done.get() + taken);
    }

    /// A block had left memory when its batch was built.
    pub(crate) fn skip(&self) {
        self.skipped.set(self.skipped.get() + 1);
    }

    /// The log cannot be written: everybody who waits is told so.
    pub(crate) fn give_up_queue(&self) {
        self.queue.borrow_mut().clear();
        self.done.set(self.asked.get());
        self.failures.set(self.failures.get() + 1);
    }

    /// How often a queue was given up.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// The log should be put in its place soon.
    pub(crate) fn tell_filling(&self) {
        self.filling.notify_all();
    }

    pub(crate) fn filling(&self) -> NotifyWait<'_> {
        self.filling.wait()
    }

    /// What could be put in its place has been.
    pub(crate) fn tell_emptied(&self) {
        self.emptied.notify_all();
    }

    pub(crate) fn emptied(&self) -> NotifyWait<'_> {
        self.emptied.wait()
    }

    /// Nothing new may be gathered, until [`Journal::go_on`].
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
    }

    pub(crate) fn go_on(&self) {
        self.stopped.set(false);
        self.goes_on.notify_all();
    }

    /// Waits until something may be gathered.
    pub(crate) async fn may_gather(&self) {
        while self.stopped.get() {
            self.goes_on.wait().await;
        }
    }
}
