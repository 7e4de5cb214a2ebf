//! Flushes that fail: the disk has dropped what its cache held, and the next flush succeeds as if nothing had been.

use crate::common::{
    begin_flush_that_fails_on_one, config, create, disks, expect, full, life, mirror_with_newer_caches,
};
use arden_space::Layout;

#[test]
fn a_failed_flush_takes_its_disk_out_and_what_it_lost_is_brought_back() {
    for (seed, which) in [(1, 0), (2, 1)] {
        let d = disks(2, seed);
        let all = d.clone();
        life(&d, None, async move |rt| {
            let (pool, space) = mirror_with_newer_caches(&rt, &all, config()).await;
            all[which].fail_next_flush();
            space.flush().await.unwrap();
            assert!(all[which].counters().cached_lost > 0, "nothing was lost");
            assert_eq!(pool.out_of_date(), [which as u16], "the disk counts as it is");
            expect(&space, 2, "from the other copy").await;
            pool.return_disk(all[which].attach(&rt)).await.unwrap();
            pool.resync().await.unwrap();
            pool.report_failure(1 - which as u16).await.unwrap();
            expect(&space, 2, "from the disk whose flush failed").await;
        })
        .unwrap();
    }
}

/// One disk has dropped what it cached while the flush of the other one still runs.
#[test]
fn nothing_is_read_of_a_disk_whose_flush_failed_while_others_are_flushed() {
    let d = disks(2, 4);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = mirror_with_newer_caches(&rt, &all, config()).await;
        let (_, flushed) = begin_flush_that_fails_on_one(&rt, &pool, &space, &all).await;
        expect(&space, 2, "while the other disk is flushed").await;
        while !flushed.get() {
            rt.sleep_ns(1_000_000).await;
        }
        expect(&space, 2, "afterwards").await;
    })
    .unwrap();
}

#[test]
fn whoever_asked_for_a_flush_of_the_only_copy_is_told_that_it_failed() {
    for n in 1..4 {
        let d = disks(n, 3);
        let all = d.clone();
        life(&d, None, async move |rt| {
            let (pool, space) = create(&rt, &all, Layout::Simple, config()).await;
            space.write(0, full(1, 32), false).await.unwrap();
            let only = pool.space_map(space.id()).unwrap()[0].1[0].disk;
            all[usize::from(only)].fail_next_flush();
            assert!(space.flush().await.is_err(), "one of {n} disks");
        })
        .unwrap();
    }
}
