//! Disks that answer far slower than their peers: which they are, and whether they still are. Mirrors read from the
//! others meanwhile, so somebody has to ask them now and then, or they would count as slow for ever.

use std::rc::Rc;

use arden_block::BLOCK_BYTES;

use crate::disk::open_disk::DiskRt;
use crate::pool::open_pool::Pool;

/// So many times the latency of the median disk is far slower,
const TIMES: u64 = 8;
/// and never less than this.
const SLOW_NS_MIN: u64 = 5_000_000;

impl Pool {
    /// Disks whose smoothed read latency is far above that of the median of their peers.
    pub(crate) fn slow_disks(&self) -> Vec<u16> {
        let disks = self.0.disks.borrow();
        let mut all: Vec<u64> = disks.values().filter(|d| d.online.get()).map(|d| d.reads.latency_ns()).collect();
        all.retain(|&l| l > 0);
        all.sort_unstable();
        let Some(&median) = all.get(all.len().saturating_sub(1) / 2) else { return Vec::new() };
        let limit = median.saturating_mul(TIMES).max(SLOW_NS_MIN);
        let is_slow = |d: &&Rc<DiskRt>| {
            let slow = d.reads.latency_ns() > limit;
            d.reads.set_slow(slow);
            slow
        };
        disks.values().filter(is_slow).map(|d| d.index).collect()
    }

    /// Reads a block of each slow disk with every tick, until it is no longer slow.
    pub(crate) fn start_asking_slow_disks(&self) {
        let (rt, tick_ns) = (self.0.rt.clone(), self.0.cfg.tick_ms * 1_000_000);
        // The pool may end in between: this is no reason to keep its disks.
        let pool = Rc::downgrade(&self.0);
        self.0.rt.spawn(async move {
            loop {
                rt.sleep_ns(tick_ns).await;
                let Some(me) = pool.upgrade().map(Pool).filter(|p| !p.0.life.is_closed()) else { return };
                for index in me.slow_disks() {
                    if let Some(disk) = me.disk(index).filter(|d| d.online.get()) {
                        me.ask_slow(&disk).await;
                    }
                }
            }
        });
    }

    /// Anywhere among the data: the same place each time would come from the disk's cache.
    async fn ask_slow(&self, disk: &DiskRt) {
        let blocks = disk.dev.info().size_bytes.saturating_sub(disk.areas.data_at) / BLOCK_BYTES;
        let block = self.0.rt.random_u64() % blocks.max(1);
        disk.ask(disk.areas.data_at + block * BLOCK_BYTES).await;
    }
}
