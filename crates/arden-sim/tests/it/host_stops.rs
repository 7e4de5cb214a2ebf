//! The host stops and its disks keep their power: what the next opening reads of them may lie in their caches only, and be gone
//! when power is lost while it goes on from there.

use crate::common::{config, create, disks, expect, full, life, open};
use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, Rt};
use arden_space::Layout;

/// When the pool is made and at rest.
const RESTS_NS: u64 = 200_000_000;

/// The host stops `stops_ns` after a map began to be written, and power is lost `lost_ns` after the next opening began. How many
/// commands the disks had in flight when the host stopped.
fn opens_after(stops_ns: u64, lost_ns: u64, seed: u64) -> u64 {
    let d = disks(3, seed);
    let rt = Rt::virtual_clock(seed);
    let (inner, all) = (rt.clone(), d.clone());
    rt.spawn(async move {
        let (pool, space) = create(&inner, &all, Layout::Mirror2, config()).await;
        space.write(0, full(3, 32), true).await.unwrap();
        inner.sleep_until_ns(RESTS_NS).await;
        pool.rename("q").await.unwrap();
        inner.sleep_ns(u64::MAX / 2).await;
    });
    rt.run_until_ns(RESTS_NS + stops_ns);
    rt.shutdown();
    d.iter().for_each(SimDisk::outlive_host);
    d.iter().for_each(SimDisk::end_of_life);
    let all = d.clone();
    life(&d, Some(lost_ns), async move |rt| open(&rt, &all, Vec::new()).await.unwrap());
    let all = d.clone();
    life(&d, None, async move |rt| {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        let what = format!("stopped after {stops_ns} ns, power lost after {lost_ns} ns");
        assert!(pool.status().disks.iter().all(|d| d.online), "{what}: {:?}", pool.status().events);
        expect(&pool.space_named("s").unwrap(), 3, &what).await;
    })
    .unwrap();
    d.iter().map(|d| d.counters().landed_alone).sum()
}

#[test]
fn no_disk_is_lost_with_a_label_that_an_opening_read_from_its_cache() {
    let mut landed = 0;
    for seed in 1..9 {
        for step in 0..144 {
            landed += opens_after(50_000 + step % 12 * 40_000, 300_000 + step / 12 * 60_000, 8000 + seed);
        }
    }
    assert!(landed > 500, "{landed} commands were in flight when the host stopped");
}

/// A disk that cannot flush what it holds in its cache is no member that can be relied on: the pool opens without it.
#[test]
fn a_disk_whose_cache_cannot_be_flushed_is_left_out_of_the_opening_and_comes_back() {
    let d = disks(3, 8100);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (_, space) = create(&rt, &all, Layout::Mirror2, config()).await;
        space.write(0, full(4, 32), true).await.unwrap();
    })
    .unwrap();
    d[1].fail_next_flush();
    let all = d.clone();
    life(&d, None, async move |rt| {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        let online: Vec<bool> = pool.status().disks.iter().map(|d| d.online).collect();
        assert_eq!(online, [true, false, true]);
        let space = pool.space_named("s").unwrap();
        expect(&space, 4, "without it").await;
        space.write(0, full(5, 1), true).await.unwrap();
        assert_eq!(pool.return_disk(all[1].attach(&rt)).await, Ok(1));
        pool.resync().await.unwrap();
        let b = space.read(0, 2 * BLOCK_BYTES as usize).await.unwrap();
        assert_eq!((b[0], b[BLOCK_BYTES as usize]), (5, 4));
    })
    .unwrap();
}
