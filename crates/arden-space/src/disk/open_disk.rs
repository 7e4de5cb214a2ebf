//! One disk of an open pool: retries, flushes shared by all who ask, and what is known of its
//! health. Knows nothing of what lies on it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use arden_block::sync::Mutex;
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, IoError, IoResult, LocalFuture, Rt, SharedBuf};

use crate::disk::label::{Areas, Label};
use crate::disk::reads::DiskReads;
use crate::disk::watch::Watch;

/// How often an operation that failed is tried again before the answer counts.
const RETRIES: usize = 2;
/// Filling a whole slab or emptying a write cache takes longer than anything else.
pub(crate) const LONG: u64 = 8;

pub(crate) struct DiskRt {
    pub(crate) index: u16,
    pub(crate) dev: Rc<dyn BlockDevice>,
    pub(crate) watch: Rc<Watch>,
    limit_ns: u64,
    pub(crate) areas: Areas,
    pub(crate) online: Cell<bool>,
    /// Which copy of label and map is the newest here; the next commit writes the other one.
    pub(crate) copy: Cell<u8>,
    /// It bears a label of this pool: one that joins has none before its first commit.
    pub(crate) labelled: Cell<bool>,
    /// The sequence that the newest label on stable storage has at least.
    label_seq_min: Cell<u64>,
    /// What other threads know of it; reads in flight and smoothed latency are of all who read.
    pub(crate) reads: Arc<DiskReads>,
    pub(crate) read_errors: Cell<u64>,
    pub(crate) write_errors: Cell<u64>,
    /// Blocks that it returned without an error and that were not what was written there.
    wrong_blocks: Cell<u64>,
    /// Starts and ends of writes that are not durable by themselves.
    writes: Cell<u64>,
    flushed: Cell<u64>,
    flush_lock: Mutex,
    rt: Rt,
}

impl DiskRt {
    /// `copy`: the label that counts; `timeout_ms`: how long an operation may take before the
    /// disk counts as hung.
    pub(crate) fn new(
        rt: &Rt,
        index: u16,
        dev: Rc<dyn BlockDevice>,
        areas: Areas,
        copy: u8,
        timeout_ms: u64,
    ) -> DiskRt {
        let limit_ns = timeout_ms.saturating_mul(1_000_000);
        let reads = Arc::new(DiskReads::new(dev.shared_reads(), areas.data_at, limit_ns));
        DiskRt {
            index,
            dev,
            watch: Rc::new(Watch::new(reads.gone_flag())),
            reads,
            limit_ns,
            areas,
            online: Cell::new(true),
            copy: Cell::new(copy),
            labelled: Cell::new(true),
            label_seq_min: Cell::new(0),
            read_errors: Cell::new(0),
            write_errors: Cell::new(0),
            wrong_blocks: Cell::new(0),
            writes: Cell::new(0),
            flushed: Cell::new(0),
            flush_lock: Mutex::new(),
            rt: rt.clone(),
        }
    }

    /// A disk with this label, which counts. The map has the number `map_seq`.
    ///
    /// Every label that is written from now on is newer than that map. So the lesser of the two stays a lower bound even for a label of
    /// an opening that came to nothing, which may have a higher number and be overwritten.
    pub(crate) fn found(rt: &Rt, dev: Rc<dyn BlockDevice>, label: &Label, map_seq: u64, timeout_ms: u64) -> DiskRt {
        let disk = DiskRt::new(rt, label.index, dev, label.areas, label.map_slot, timeout_ms);
        disk.label_seq_min.set(label.seq.min(map_seq));
        disk
    }

    /// Every disk has the map of this number and its label: the next commit writes the other copy.
    ///
    /// A label that was written while the commit failed on another disk does not count: the commit that follows overwrites its map.
    pub(crate) fn map_is_committed(&self, seq: u64) {
        self.copy.set(1 - self.copy.get());
        self.label_seq_min.set(seq);
    }

    pub(crate) fn label_seq_min(&self) -> u64 {
        self.label_seq_min.get()
    }

    /// Whoever uses the space has checksums, and says so.
    pub(crate) fn note_wrong_block(&self) {
        let blocks = self.wrong_blocks.get() + 1;
        self.wrong_blocks.set(blocks);
        if blocks.is_power_of_two() {
            let disk = &self.dev.info().name;
            tracing::warn!(disk, blocks, "a disk returned blocks that are not what was written there");
        }
    }

    pub(crate) fn wrong_blocks(&self) -> u64 {
        self.wrong_blocks.get()
    }

    /// The disk leaves; whether it was there.
    pub(crate) fn leave(&self) -> bool {
        self.watch.answers_count_no_more();
        self.online.replace(false)
    }

    /// What a disk answers after it has left says nothing: its cache may have lost what it reads or is to flush.
    async fn within<T: 'static>(&self, times: u64, ask: impl FnOnce() -> LocalFuture<IoResult<T>>) -> IoResult<T> {
        let answer = self.watch.run(&self.rt, self.limit_ns, times, ask).await;
        if self.online.get() { answer } else { Err(IoError::Gone) }
    }

    pub(crate) async fn read(&self, offset: u64, len: usize) -> IoResult<Buf> {
        if !self.online.get() {
            return Err(IoError::Gone);
        }
        self.reads.begin();
        let start = self.rt.now_ns();
        let mut result = self.within(1, || self.dev.read(offset, len)).await;
        for _ in 0..RETRIES {
            if !matches!(result, Err(IoError::Media)) {
                break;
            }
            result = self.within(1, || self.dev.read(offset, len)).await;
        }
        self.reads.end(self.rt.now_ns() - start);
        if result.is_err() {
            self.read_errors.set(self.read_errors.get() + 1);
        }
        result
    }

    /// How long does it take to read a block there now? One good answer counts for much: a disk that is spared reads
    /// gives no others.
    pub(crate) async fn ask(&self, offset: u64) {
        let start = self.rt.now_ns();
        if self.within(1, || self.dev.read(offset, BLOCK_BYTES as usize)).await.is_ok() {
            self.reads.set_latency_ns(self.reads.latency_ns().midpoint(self.rt.now_ns() - start));
        }
    }

    pub(crate) async fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> IoResult<()> {
        let mut result = Err(IoError::Gone);
        for _ in 0..=RETRIES {
            if !self.online.get() {
                return Err(IoError::Gone);
            }
            // Counted before it starts: a flush that begins now must not call us clean.
            let counted = u64::from(!durable);
            self.writes.set(self.writes.get() + counted);
            result = self.within(1, || self.dev.write(offset, data.clone(), durable)).await;
            self.writes.set(self.writes.get() + counted);
            if !matches!(result, Err(IoError::Media)) {
                break;
            }
        }
        if result.is_err() {
            self.write_errors.set(self.write_errors.get() + 1);
        }
        result
    }

    pub(crate) async fn write_zeroes(&self, offset: u64, len: u64) -> IoResult<()> {
        if !self.online.get() {
            return Err(IoError::Gone);
        }
        let result = self.within(LONG, || self.dev.write_zeroes(offset, len)).await;
        self.writes.set(self.writes.get() + 1);
        result
    }

    /// What the range reads as is undefined afterwards.
    pub(crate) async fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        if !self.online.get() {
            return Err(IoError::Gone);
        }
        self.within(LONG, || self.dev.discard(offset, len)).await
    }

    pub(crate) fn has_unflushed(&self) -> bool {
        self.writes.get() != self.flushed.get()
    }

    /// Makes every write that has returned durable. Callers that come while a flush runs
    /// share the next one.
    pub(crate) async fn flush(&self) -> IoResult<()> {
        let mine = self.writes.get();
        if self.flushed.get() >= mine {
            return Ok(());
        }
        let _guard = self.flush_lock.lock().await;
        if self.flushed.get() >= mine {
            return Ok(());
        }
        let upto = self.writes.get();
        for attempt in 0..=RETRIES {
            if !self.online.get() {
                return Err(IoError::Gone);
            }
            match self.within(LONG, || self.dev.flush()).await {
                Ok(()) => {
                    self.flushed.set(self.flushed.get().max(upto));
                    return Ok(());
                }
                // After a failed flush nobody knows which writes the disk dropped: from this moment on nothing that it
                // answers counts, also while the caller still waits for the flushes of other disks.
                Err(e) if attempt == RETRIES || e != IoError::Unsupported => {
                    self.watch.give_up();
                    return Err(e);
                }
                Err(_) => {}
            }
        }
        Err(IoError::Gone)
    }
}
