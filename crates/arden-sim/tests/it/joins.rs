//! A disk joins and power is lost meanwhile: afterwards it is a member, or the pool has never heard of it.

use crate::common::attach;
use arden_block::Rt;
use arden_block::sim::SimDisk;
use arden_space::{CreateOptions, DiskStatus, Layout, OpenOptions, Pool, PoolConfig, Provision, read_header};

const MS: u64 = 1_000_000;

fn config() -> PoolConfig {
    PoolConfig { tick_ms: 5, busy_ms: 0, ..PoolConfig::default() }
}

/// All power is lost, and the pool opens with the disks that have labels: its members, which are all there.
fn members_after_a_crash(disks: &[SimDisk], seed: u64, when: &str) -> Vec<DiskStatus> {
    for d in disks {
        d.crash();
        d.revive();
    }
    let rt = Rt::virtual_clock(seed + 1);
    let (inner, all) = (rt.clone(), disks.to_vec());
    let members = rt.block_on(async move {
        let mut devices = Vec::new();
        for device in attach(&inner, &all) {
            if read_header(&*device).await.unwrap().is_some() {
                devices.push(device);
            }
        }
        let options = OpenOptions { config: config(), discard: Vec::new() };
        Pool::open(&inner, devices, None, options).await.unwrap().status().disks
    });
    rt.shutdown();
    let members = members.unwrap();
    assert!(members.iter().all(|d| d.online), "{when}, seed {seed}: {members:?}");
    members
}

/// A pool of two disks; power is lost so long after a third begins to join. Whether it is a member afterwards.
fn joins_until(after_ns: u64, seed: u64) -> bool {
    let disks: Vec<SimDisk> = (0..3).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, seed * 10 + i)).collect();
    let rt = Rt::virtual_clock(seed);
    let (inner, all) = (rt.clone(), disks.clone());
    rt.spawn(async move {
        let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
        let pool = Pool::create(&inner, "p", attach(&inner, &all[..2]), Vec::new(), options).await.unwrap();
        pool.create_space("a", Layout::Mirror2, Some(1), 4096, 64 << 12, Provision::Thin).await.unwrap();
        inner.sleep_until_ns(100 * MS).await;
        pool.add_disk(all[2].attach(&inner), false).await.unwrap();
        inner.sleep_ns(1000 * MS).await;
    });
    rt.run_until_ns(100 * MS + after_ns);
    rt.shutdown();
    members_after_a_crash(&disks, seed, &format!("{after_ns} ns after it began")).len() == 3
}

#[test]
fn a_disk_whose_joining_a_crash_interrupts_is_no_missing_member() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..40 {
        for step in 0..40 {
            match joins_until(step * 25_000, seed * 100) {
                true => after += 1,
                false => before += 1,
            }
        }
    }
    assert!(before > 50 && after > 50, "{before} crashes came before it was a member, {after} after");
}

/// A disk is taken out of the pool and put in again before the removal has ended; power is lost so long after that. Whether it
/// had left, by then, as one disk and was there as another.
fn leaves_and_joins_until(after_ns: u64, seed: u64) -> bool {
    let disks: Vec<SimDisk> = (0..4).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, seed * 10 + i)).collect();
    let rt = Rt::virtual_clock(seed);
    let (inner, all) = (rt.clone(), disks.clone());
    rt.spawn(async move {
        let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
        let pool = Pool::create(&inner, "p", attach(&inner, &all), Vec::new(), options).await.unwrap();
        pool.create_space("a", Layout::Mirror2, Some(1), 4096, 64 << 12, Provision::Thin).await.unwrap();
        inner.sleep_until_ns(100 * MS).await;
        let p = pool.clone();
        inner.spawn(async move { p.remove_disk(3).await.unwrap() });
        while pool.status().disks.len() > 3 {
            inner.sleep_ns(10_000).await;
        }
        pool.add_disk(all[3].attach(&inner), false).await.unwrap();
        inner.sleep_ns(1000 * MS).await;
    });
    rt.run_until_ns(100 * MS + after_ns);
    rt.shutdown();
    members_after_a_crash(&disks, seed, &format!("{after_ns} ns after it began")).iter().any(|d| d.index == 4)
}

#[test]
fn a_disk_that_joins_before_its_removal_has_ended_keeps_the_label_of_the_last() {
    let mut again = 0;
    for seed in 0..20 {
        for step in 0..40 {
            again += u32::from(leaves_and_joins_until(step * 50_000, 70 + seed * 100));
        }
        assert!(leaves_and_joins_until(500 * MS, 70 + seed * 100), "it joined");
    }
    assert!(again > 50 && again < 750, "{again} crashes came after it had joined");
}
