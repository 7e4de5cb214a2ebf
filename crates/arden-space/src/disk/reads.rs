//! What threads other than the pool's know of an attached disk: how to read it, whether its answers still count, and how busy it is.
//! Knows nothing of what lies on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arden_block::{Buf, IoError, IoResult, LocalFuture, Rt, SharedReads};

/// One attachment of a disk: it has another one when it returns.
pub(crate) struct DiskReads {
    /// Set before anything depends on the disk's departure, and never cleared.
    gone: Arc<AtomicBool>,
    /// Where its data begins, in bytes.
    pub(crate) data_at: u64,
    /// How long it may take over a read.
    pub(crate) limit_ns: u64,
    /// Statistics for choosing among copies: they order nothing.
    reading: AtomicU32,
    latency_ns: AtomicU64,
    slow: AtomicBool,
    device: Option<Arc<dyn SharedReads>>,
}

impl DiskReads {
    pub(crate) fn new(device: Option<Arc<dyn SharedReads>>, data_at: u64, limit_ns: u64) -> DiskReads {
        DiskReads {
            gone: Arc::default(),
            data_at,
            limit_ns,
            reading: AtomicU32::new(0),
            latency_ns: AtomicU64::new(0),
            slow: AtomicBool::new(false),
            device,
        }
    }

    /// The flag of the attachment, for whoever ends it.
    pub(crate) fn gone_flag(&self) -> Arc<AtomicBool> {
        self.gone.clone()
    }

    /// What the disk answers from now on says nothing: it has left, or may have lost what it was given.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn can_be_read(&self) -> bool {
        self.device.is_some()
    }

    pub(crate) fn begin(&self) {
        self.reading.fetch_add(1, Ordering::Relaxed);
    }

    /// A read that took `took_ns` has ended.
    pub(crate) fn end(&self, took_ns: u64) {
        self.reading.fetch_sub(1, Ordering::Relaxed);
        let old = self.latency_ns();
        self.set_latency_ns(if old == 0 { took_ns } else { (old * 15 + took_ns) / 16 });
    }

    pub(crate) fn reading(&self) -> u32 {
        self.reading.load(Ordering::Relaxed)
    }

    /// Smoothed.
    pub(crate) fn latency_ns(&self) -> u64 {
        self.latency_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_latency_ns(&self, ns: u64) {
        self.latency_ns.store(ns, Ordering::Relaxed);
    }

    /// Far slower than its peers, when that was last looked at.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    pub(crate) fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }

    /// Reads on a runtime of the calling thread, however long it takes.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn read_on(self: &Arc<Self>, rt: &Rt, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        let Some(device) = &self.device else { return Box::pin(std::future::ready(Err(IoError::Unsupported))) };
        self.begin();
        let reading = Reading { disk: self.clone(), rt: rt.clone(), start_ns: rt.now_ns() };
        let read = device.read_on(rt, offset, len);
        Box::pin(async move {
            let _reading = reading;
            read.await
        })
    }
}

/// Counts a read for as long as it lives, also where somebody gives up.
struct Reading {
    disk: Arc<DiskReads>,
    rt: Rt,
    start_ns: u64,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.disk.end(self.rt.now_ns().saturating_sub(self.start_ns));
    }
}
