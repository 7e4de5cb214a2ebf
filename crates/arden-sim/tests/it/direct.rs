//! Reads of a space's disks beside the pool: the steps of one are taken apart, and something happens in between.

use crate::common::{
    begin_flush_that_fails_on_one, config, create, disks, expect, full, life, mirror_with_newer_caches, slow_down,
};
use arden_block::{BLOCK_BYTES, Buf, IoError, Rt};
use arden_space::{DirectRead, Doubt, Layout, PoolConfig, Space};

const BLOCK: usize = BLOCK_BYTES as usize;

/// Has the pool show where the block lies, and begins to read it.
async fn begun(space: &Space, block: u64) -> DirectRead {
    space.read_for(block * BLOCK_BYTES, BLOCK, None).await.unwrap();
    space.direct().begin(block * BLOCK_BYTES, BLOCK).expect("it lies in one place, and nothing is newer")
}

async fn end(rt: &Rt, read: &DirectRead) -> Result<Buf, Option<Doubt>> {
    read.end(rt.timeout_ns(read.limit_ns(), read.read_on(rt)).await)
}

fn holds(read: Result<Buf, Option<Doubt>>, byte: u8) -> bool {
    read.is_ok_and(|b| b.iter().all(|&x| x == byte))
}

#[test]
fn what_the_pool_has_shown_is_read_beside_it_in_every_layout() {
    for (layout, n) in [(Layout::Simple, 1), (Layout::Mirror2, 2), (Layout::Mirror3, 5)] {
        let d = disks(n, 1);
        let all = d.clone();
        life(&d, None, async move |rt| {
            let (_pool, space) = create(&rt, &all, layout, config()).await;
            space.write(0, full(1, 32), false).await.unwrap();
            assert!(space.direct().begin(0, BLOCK).is_none(), "nothing was shown");
            let read = begun(&space, 3).await;
            assert!(holds(end(&rt, &read).await, 1));
            space.write(0, full(2, 32), false).await.unwrap();
            assert!(holds(end(&rt, &read).await, 2), "a write in place leaves it where it was");
            assert!(space.direct().begin(BLOCK_BYTES / 2, BLOCK).is_none());
            assert!(space.direct().begin(31 * BLOCK_BYTES, 2 * BLOCK).is_none(), "past the end");
        })
        .unwrap();
    }
}

#[test]
fn a_place_that_was_given_away_is_not_read() {
    let d = disks(1, 2);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (_pool, space) = create(&rt, &all, Layout::Simple, config()).await;
        space.write(0, full(1, 32), false).await.unwrap();
        let read = begun(&space, 3).await;
        let answer = read.read_on(&rt).await;
        space.discard(0, 32 * BLOCK_BYTES).await.unwrap();
        assert_eq!(read.end(Some(answer)).unwrap_err(), None, "the group is gone");
        assert!(space.direct().begin(0, BLOCK).is_none());
        expect(&space, 0, "given back").await;
    })
    .unwrap();
}

/// Its slabs go to other spaces, and nothing of that is for whoever read it.
#[test]
fn a_space_that_was_deleted_is_not_read() {
    let d = disks(1, 10);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = create(&rt, &all, Layout::Simple, config()).await;
        space.write(0, full(1, 32), false).await.unwrap();
        let (direct, read) = (space.direct(), begun(&space, 3).await);
        pool.delete_space(space.id()).await.unwrap();
        let answer = read.read_on(&rt).await;
        assert_eq!(read.end(Some(answer)).unwrap_err(), None, "the space is gone");
        assert!(direct.begin(3 * BLOCK_BYTES, BLOCK).is_none());
    })
    .unwrap();
}

/// Small durable writes to mirrors wait in memory for their place.
#[test]
fn what_is_newer_in_memory_when_a_read_begins_is_read_there() {
    let d = disks(2, 3);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = create(&rt, &all, Layout::Mirror2, config()).await;
        space.write(0, full(1, 8), true).await.unwrap();
        rt.sleep_ns(100_000_000).await;
        let read = begun(&space, 3).await;
        let answer = read.read_on(&rt).await;
        space.write(3 * BLOCK_BYTES, full(2, 1), true).await.unwrap();
        assert!(space.direct().begin(3 * BLOCK_BYTES, BLOCK).is_none(), "it is in memory");
        // This one began before the write.
        assert!(holds(read.end(Some(answer)), 1));
        rt.sleep_ns(100_000_000).await;
        // The background has put it in its place.
        let read = space.direct().begin(3 * BLOCK_BYTES, BLOCK).expect("nothing is newer");
        assert!(holds(end(&rt, &read).await, 2));
        pool.close().await.unwrap();
    })
    .unwrap();
}

/// One disk has dropped what it cached while the flush of the other one still runs.
#[test]
fn nothing_is_read_of_a_disk_whose_flush_failed_while_others_are_flushed() {
    let d = disks(2, 4);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = mirror_with_newer_caches(&rt, &all, config()).await;
        let read = begun(&space, 3).await;
        let (first, flushed) = begin_flush_that_fails_on_one(&rt, &pool, &space, &all).await;
        let first = &all[first];
        let reads_before = first.counters().reads;
        let old = end(&rt, &read).await;
        assert_eq!(first.counters().reads, reads_before + 1, "it is the disk that was to be read");
        assert!(old.is_err(), "what it answers says nothing any more");
        assert!(!flushed.get());
        if let Some(read) = space.direct().begin(3 * BLOCK_BYTES, BLOCK) {
            assert!(holds(end(&rt, &read).await, 2), "the other copy");
        }
        while !flushed.get() {
            rt.sleep_ns(1_000_000).await;
        }
        expect(&space, 2, "afterwards").await;
    })
    .unwrap();
}

#[test]
fn a_disk_that_left_and_returned_is_another_one() {
    let d = disks(2, 5);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = create(&rt, &all, Layout::Mirror2, config()).await;
        space.write(0, full(1, 32), false).await.unwrap();
        let read = begun(&space, 3).await;
        pool.report_failure(0).await.unwrap();
        pool.report_failure(1).await.unwrap_err();
        assert!(read.end(Some(Ok(Buf::zeroed(BLOCK)))).is_err());
        assert!(space.direct().begin(3 * BLOCK_BYTES, BLOCK).is_none());
    })
    .unwrap();
}

/// The pool asks a disk that did not answer somebody else, and it leaves when it does not answer the pool.
#[test]
fn a_disk_that_answers_nobody_leaves() {
    let d = disks(1, 6);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let config = PoolConfig { io_timeout_ms: 20, tick_ms: 1_000_000, ..config() };
        let (pool, space) = create(&rt, &all, Layout::Simple, config).await;
        space.write(0, full(1, 32), false).await.unwrap();
        let read = begun(&space, 3).await;
        all[0].hang();
        let doubt = end(&rt, &read).await.unwrap_err();
        assert!(doubt.is_some() && pool.out_of_date().is_empty(), "nobody of the pool has asked it");
        space.read_for(3 * BLOCK_BYTES, BLOCK, doubt).await.unwrap_err();
        rt.sleep_ns(100_000_000).await;
        assert_eq!(pool.out_of_date(), [0]);
    })
    .unwrap();
}

#[test]
fn a_doubt_about_a_disk_that_answers_changes_nothing() {
    let d = disks(2, 7);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = create(&rt, &all, Layout::Mirror2, config()).await;
        space.write(0, full(1, 32), false).await.unwrap();
        let read = begun(&space, 3).await;
        let doubt = read.end(Some(Err(IoError::Gone))).unwrap_err();
        assert!(doubt.is_some());
        let other = read.end(Some(Err(IoError::Media))).unwrap_err();
        assert_eq!(other, None, "a sector that cannot be read says nothing of the disk");
        space.read_for(3 * BLOCK_BYTES, BLOCK, doubt).await.unwrap();
        rt.sleep_ns(100_000_000).await;
        assert!(pool.out_of_date().is_empty());
    })
    .unwrap();
}

#[test]
fn a_pool_that_ended_is_read_by_nobody() {
    for closed in [true, false] {
        let d = disks(1, 8);
        let all = d.clone();
        let kept = life(&d, None, async move |rt| {
            let (pool, space) = create(&rt, &all, Layout::Simple, config()).await;
            space.write(0, full(1, 32), false).await.unwrap();
            let read = begun(&space, 3).await;
            let kept = (space.direct(), read);
            if closed {
                pool.close().await.unwrap();
                assert!(kept.0.begin(0, BLOCK).is_none());
            }
            kept
        });
        let (direct, read) = kept.unwrap();
        assert!(direct.begin(0, BLOCK).is_none(), "closed: {closed}");
        assert!(read.end(Some(Ok(Buf::zeroed(BLOCK)))).is_err(), "closed: {closed}");
    }
}

/// Reads beside the pool count where the pool chooses among copies.
#[test]
fn a_slow_disk_is_known_by_whoever_reads() {
    let d = disks(4, 9);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = create(&rt, &all, Layout::Mirror2, config()).await;
        space.write(0, full(1, 32), false).await.unwrap();
        for copy in 0..2 {
            space.read_copy(copy, 0, BLOCK).await.unwrap();
        }
        let read = begun(&space, 3).await;
        let used = || all.iter().map(|d| d.counters().reads).collect::<Vec<_>>();
        let before = used();
        end(&rt, &read).await.unwrap();
        let which = before.iter().zip(used()).position(|(a, b)| *a < b).unwrap();
        slow_down(&all[which], 40_000_000);
        let latency = || pool.status().disks.iter().find(|d| usize::from(d.index) == which).unwrap().latency_us;
        let old = latency();
        for _ in 0..20 {
            end(&rt, &read).await.unwrap();
        }
        assert!(latency() > old + 10_000, "{old} us, then {} us", latency());
        rt.sleep_ns(20_000_000).await;
        let other = space.direct().begin(3 * BLOCK_BYTES, BLOCK).unwrap();
        let began = rt.now_ns();
        end(&rt, &other).await.unwrap();
        assert!(rt.now_ns() - began < 10_000_000, "the other copy is read");
    })
    .unwrap();
}
