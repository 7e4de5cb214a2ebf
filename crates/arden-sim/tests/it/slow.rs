//! A disk that answers far slower than its peers: the pool says so and reads from the others. How long writes wait for a scrub.

use std::rc::Rc;

use arden_block::sim::{Faults, SimDisk};
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, Rt};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision};

#[test]
fn a_slow_disk_of_a_mirror_is_reported_and_spared_reads_until_it_recovers() {
    let disks: Vec<SimDisk> = (0..2).map(|i| SimDisk::new(&format!("d{i}"), 64 << 20, i)).collect();
    let rt = Rt::virtual_clock(1);
    let (all, clock) = (disks.clone(), rt.clone());
    rt.block_on(async move {
        let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&clock)).collect();
        let options = CreateOptions { slab_bytes: Some(4 << 20), ..CreateOptions::default() };
        let pool = Pool::create(&clock, "p", devices, Vec::new(), options).await.unwrap();
        let space = pool.create_space("s", Layout::Mirror2, None, 65536, 4 << 20, Provision::Fixed).await.unwrap();
        space.write(0, Buf::zeroed(4 << 20).share(), false).await.unwrap();
        let read = |n: u64| {
            let space = space.clone();
            async move {
                for i in 0..n {
                    space.read(i * 37 % 1024 * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
                }
            }
        };
        read(64).await;
        assert!(pool.status().disks.iter().all(|d| !d.slow), "both are as fast as each other");
        let late = Faults { latency_min_ns: 30_000_000, latency_max_ns: 60_000_000, ..Faults::default() };
        all[1].set_faults(late);
        read(64).await;
        let slow: Vec<u16> = pool.status().disks.iter().filter(|d| d.slow).map(|d| d.index).collect();
        assert_eq!(slow, [1]);
        // It is asked once a tick, by nobody but the pool: its clients wait for the other disk only.
        let (before, start) = (all[1].counters().reads, clock.now_ns());
        read(200).await;
        let ticks = (clock.now_ns() - start) / 1_000_000_000 + 1;
        assert!(all[1].counters().reads - before <= ticks, "the slow disk was read");
        clock.sleep_ns(20_000_000_000).await;
        assert!(pool.status().disks[1].slow, "it is as slow as it was");
        all[1].set_faults(Faults::default());
        clock.sleep_ns(20_000_000_000).await;
        assert!(pool.status().disks.iter().all(|d| !d.slow), "it has recovered");
        let before = all[1].counters().reads;
        read(200).await;
        assert!(all[1].counters().reads > before + 50, "it is read again");
    })
    .unwrap();
}

/// A scrub reads a region step by step: a write to it waits for one step, not for all of them.
#[test]
fn a_write_waits_for_a_step_of_a_scrub() {
    const LATE_NS: u64 = 1_000_000;
    let disks: Vec<SimDisk> = (0..2).map(|i| SimDisk::new(&format!("d{i}"), 64 << 20, 40 + i)).collect();
    let rt = Rt::virtual_clock(2);
    let (all, clock) = (disks.clone(), rt.clone());
    rt.block_on(async move {
        let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&clock)).collect();
        let config = PoolConfig { tick_ms: 1_000_000, busy_ms: 0, ..PoolConfig::default() };
        let options = CreateOptions { slab_bytes: Some(4 << 20), config };
        let pool = Pool::create(&clock, "p", devices, Vec::new(), options).await.unwrap();
        let space = pool.create_space("s", Layout::Mirror2, None, 4096, 1 << 20, Provision::Fixed).await.unwrap();
        space.write(0, Buf::zeroed(1 << 20).share(), false).await.unwrap();
        let late = Faults { latency_min_ns: LATE_NS, latency_max_ns: LATE_NS, ..Faults::default() };
        all.iter().for_each(|d| d.set_faults(late.clone()));
        let scrubbed = pool.clone();
        clock.spawn(async move {
            let report = scrubbed.scrub().await.unwrap();
            assert_eq!((report.undecided, report.lost), (0, 0));
        });
        clock.sleep_ns(2 * LATE_NS).await;
        for i in 0..4 {
            let before = clock.now_ns();
            space.write(i * (256 << 10), Buf::zeroed(4096).share(), false).await.unwrap();
            let waited = clock.now_ns() - before;
            assert!(waited < 8 * LATE_NS, "a write waited for {waited} ns");
        }
    })
    .unwrap();
}
