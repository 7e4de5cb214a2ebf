//! The disks of the log leave one after another or all at once: some disk keeps it, and the pool opens when that is there.

use crate::common::attach;
use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, Buf, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision};

const MS: u64 = 1_000_000;

fn config() -> PoolConfig {
    PoolConfig { tick_ms: 5, busy_ms: 0, io_timeout_ms: 100, ..PoolConfig::default() }
}

async fn create(rt: &Rt, disks: &[SimDisk], layout: Layout) -> Pool {
    let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
    let pool = Pool::create(rt, "p", attach(rt, disks), Vec::new(), options).await.unwrap();
    let columns = if layout == Layout::Parity { None } else { Some(1) };
    pool.create_space("a", layout, columns, 4096, 64 << 12, Provision::Thin).await.unwrap();
    let mut block = Buf::zeroed(BLOCK_BYTES as usize);
    block.fill(7);
    pool.space_named("a").unwrap().write(0, block.share(), true).await.unwrap();
    pool
}

/// Power is lost; all disks are there again, with what was durable on them.
fn opens_again(disks: &[SimDisk], content: u8, what: &str) {
    for d in disks {
        d.crash();
        d.revive();
    }
    let rt = Rt::virtual_clock(5);
    let (inner, all, name, what) = (rt.clone(), disks.to_vec(), what, what.to_string());
    let read = rt.block_on(async move {
        let options = OpenOptions { config: config(), discard: Vec::new() };
        let pool =
            Pool::open(&inner, attach(&inner, &all), None, options).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        pool.space_named("a").unwrap().read(0, BLOCK_BYTES as usize).await.unwrap_or_else(|e| panic!("{what}: {e}"))[0]
    });
    assert_eq!(read, Some(content), "{name}");
    rt.shutdown();
}

/// The only other disk that could take the log dies while it is being taken off the first.
#[test]
fn the_log_does_not_leave_its_last_disk() {
    for step in 0..200 {
        let d: Vec<SimDisk> = (0..2).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 700 + step * 10 + i)).collect();
        let rt = Rt::virtual_clock(step);
        let (inner, all) = (rt.clone(), d.clone());
        rt.spawn(async move {
            let pool = create(&inner, &all, Layout::Simple).await;
            inner.sleep_until_ns(100 * MS).await;
            // Whether it succeeds depends on when the other one dies.
            let _ = pool.remove_disk(0).await;
            inner.sleep_ns(1000 * MS).await;
        });
        rt.run_until_ns(100 * MS + step * 25_000);
        d[1].kill();
        rt.run_until_ns(400 * MS);
        rt.shutdown();
        opens_again(&d, 7, &format!("disk 1 died {} us after the removal of disk 0 began", step * 25));
    }
}

/// The same, and power is lost before the log is on others: they come back too late for that life.
#[test]
fn a_pool_without_its_log_opens_when_that_is_back() {
    for (step, layout) in (0..400).map(|step| (step, [Layout::Mirror2, Layout::Parity][step as usize % 2])) {
        let d: Vec<SimDisk> = (0..4).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 5000 + step * 10 + i)).collect();
        let rt = Rt::virtual_clock(step);
        let (inner, all) = (rt.clone(), d.clone());
        rt.spawn(async move {
            let pool = create(&inner, &all, layout).await;
            let log = pool.journal_disks();
            let mut block = Buf::zeroed(BLOCK_BYTES as usize);
            block.fill(9);
            inner.sleep_until_ns(100 * MS).await;
            // The log has it, and it is not in its place yet.
            pool.space_named("a").unwrap().write(0, block.share(), true).await.unwrap();
            inner.sleep_until_ns(101 * MS).await;
            log.iter().for_each(|&i| all[usize::from(i)].kill());
            inner.sleep_ns(1000 * MS).await;
        });
        rt.run_until_ns(101 * MS + step * 50_000);
        rt.shutdown();
        opens_again(&d, 9, &format!("power was lost {} us after the log's disks died", step * 50));
    }
}

/// More disks die at once than anything bears, with them all that have the log.
#[test]
fn a_pool_whose_log_disks_died_at_once_opens_when_they_are_back() {
    for step in 0..50 {
        let d: Vec<SimDisk> = (0..3).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 900 + step * 10 + i)).collect();
        let rt = Rt::virtual_clock(step);
        let (inner, all) = (rt.clone(), d.clone());
        rt.spawn(async move {
            let pool = create(&inner, &all, Layout::Mirror2).await;
            let log = pool.journal_disks();
            assert_eq!(log.len(), 2);
            inner.sleep_until_ns(100 * MS + step * 100_000).await;
            log.iter().for_each(|&i| all[usize::from(i)].kill());
            inner.sleep_ns(1000 * MS).await;
        });
        rt.run_until_ns(1200 * MS);
        rt.shutdown();
        opens_again(&d, 7, &format!("{step}"));
    }
}
