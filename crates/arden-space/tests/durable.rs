//! Writes that are durable when they return: by themselves where nothing else waits to be flushed, else by a flush that
//! covers what was written before. On simulated disks that lose power.

use arden_block::sim::SimDisk;
use arden_block::sync::join_all;
use arden_block::{Buf, LocalFuture, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, Provision, Space};

fn full(len: usize, byte: u8) -> SharedBuf {
    let mut b = Buf::new(len);
    b.fill(byte);
    b.share()
}

async fn made(rt: &Rt, disks: &[SimDisk]) -> Space {
    let options = CreateOptions { slab_bytes: Some(8 << 20), ..CreateOptions::default() };
    let devices = disks.iter().map(|d| d.attach(rt)).collect();
    let pool = Pool::create(rt, "tank", devices, Vec::new(), options).await.expect("a pool");
    let space =
        pool.create_space("v", Layout::Mirror2, None, 256 << 10, 8 << 20, Provision::Fixed).await.expect("a space");
    // Its regions are marked from here on.
    space.write(0, full(64 << 10, 1), false).await.expect("written");
    space.flush().await.expect("flushed");
    space
}

#[test]
fn a_small_write_on_its_own_needs_no_flush_and_survives() {
    let rt = Rt::virtual_clock(3);
    let disks: Vec<SimDisk> = (0..2).map(|i| SimDisk::new(&format!("d{i}"), 1 << 30, i)).collect();
    let (rt2, disks2) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let flushes = || disks2.iter().map(|d| d.counters().flushes).sum::<u64>();
        let space = made(&rt2, &disks2).await;
        let before = flushes();
        space.write_durably(vec![(0, full(8192, 2))]).await.expect("durable");
        assert_eq!(flushes(), before, "each disk made its part durable in the same step");
        // What was written before is to be durable too: now it takes a flush.
        space.write(32 << 10, full(4096, 3), false).await.expect("written");
        space.write_durably(vec![(16 << 10, full(4096, 4))]).await.expect("durable");
        assert_eq!(flushes(), before + 2);
        space.write_durably(vec![(20 << 10, full(4096, 5)), (24 << 10, full(4096, 6))]).await.expect("durable");
    })
    .expect("it came to its end");
    rt.shutdown();
    disks.iter().for_each(SimDisk::crash);
    let rt = Rt::virtual_clock(4);
    let devices = disks.iter().map(|d| d.attach(&rt)).collect();
    let rt2 = rt.clone();
    rt.block_on(async move {
        let pool = Pool::open(&rt2, devices, None, OpenOptions::default()).await.expect("opened");
        let space = pool.space_named("v").expect("there");
        for (at, byte) in [(0, 2), (4096, 2), (8192, 1), (16 << 10, 4), (20 << 10, 5), (24 << 10, 6), (32 << 10, 3)] {
            let found = space.read(at, 4096).await.expect("read");
            assert!(found.iter().all(|b| *b == byte), "{byte} at {at}");
        }
    })
    .expect("it came to its end");
}

/// Small durable writes to parity are changed in place, under a log that always has room for that: none of them drags its
/// whole stripe along, however many are in flight and however small the log.
#[test]
fn small_writes_to_parity_find_room_in_the_log_for_their_changes_in_place() {
    const WRITES: u64 = 6_000;
    let rt = Rt::virtual_clock(5);
    // 2 MiB of log.
    let disks: Vec<SimDisk> = (0..4).map(|i| SimDisk::new(&format!("d{i}"), 64 << 20, i)).collect();
    let (rt2, disks2) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let options = CreateOptions { slab_bytes: Some(4 << 20), ..CreateOptions::default() };
        let devices = disks2.iter().map(|d| d.attach(&rt2)).collect();
        let pool = Pool::create(&rt2, "tank", devices, Vec::new(), options).await.expect("a pool");
        let size = 96 << 20;
        let made = pool.create_space("v", Layout::Parity, None, 256 << 10, size, Provision::Fixed).await;
        let space = made.expect("a space");
        for at in (0..size).step_by(1 << 20) {
            space.write(at, full(1 << 20, 1), false).await.expect("filled");
        }
        space.flush().await.expect("flushed");
        let written = || disks2.iter().map(|d| d.counters().write_bytes).sum::<u64>();
        let before = written();
        let writers = (0..32).map(|w| {
            let space = space.clone();
            Box::pin(async move {
                for i in 0..WRITES / 32 {
                    let at = (w * 7919 + i * 104_729) * 8192 % size;
                    space.write(at, full(8192, 2), true).await.expect("durable");
                }
            }) as LocalFuture<()>
        });
        join_all(writers.collect()).await;
        let each = (written() - before) / WRITES;
        // Data and parity in place, and both twice in the log.
        assert!(each <= 8192 * 8, "{each} bytes were written for each 8192");
    })
    .expect("it came to its end");
}

/// Small durable writes to a mirror on two of three disks, each to a region of its own: in the log, and on their way to
/// their place. From now on the two disks of the mirror fail their next flush.
async fn failing_mirror(rt: &Rt, disks: &[SimDisk]) -> (Space, Vec<u16>) {
    let options = CreateOptions { slab_bytes: Some(8 << 20), ..CreateOptions::default() };
    let devices = disks.iter().map(|d| d.attach(rt)).collect();
    let pool = Pool::create(rt, "tank", devices, Vec::new(), options).await.expect("a pool");
    let made = pool.create_space("v", Layout::Mirror2, None, 256 << 10, 8 << 20, Provision::Fixed).await;
    let space = made.expect("a space");
    pool.flush().await.expect("flushed");
    for i in 0..SPREAD {
        space.write(i * REGION, full(4096, 7), true).await.expect("durable");
    }
    let places = pool.space_map(space.id()).expect("its places");
    let mut held: Vec<u16> = places.iter().flat_map(|(_, columns)| columns.iter().map(|c| c.disk)).collect();
    held.sort_unstable();
    held.dedup();
    assert_eq!(held.len(), 2);
    held.iter().for_each(|&d| disks[usize::from(d)].fail_next_flush());
    (space, held)
}

const SPREAD: u64 = 24;
const REGION: u64 = 256 << 10;

async fn all_is_there(space: &Space) {
    for i in 0..SPREAD {
        let found = space.read(i * REGION, 4096).await.expect("read");
        assert!(found.iter().all(|b| *b == 7), "block {i}");
    }
}

fn opened_after_a_crash(disks: &[SimDisk]) {
    disks.iter().for_each(SimDisk::crash);
    disks.iter().for_each(SimDisk::end_of_life);
    let rt = Rt::virtual_clock(9);
    let devices = disks.iter().map(|d| d.attach(&rt)).collect();
    let rt2 = rt.clone();
    rt.block_on(async move {
        let pool = Pool::open(&rt2, devices, None, OpenOptions::default()).await.expect("opened");
        all_is_there(&pool.space_named("v").expect("there")).await;
    })
    .expect("it came to its end");
}

/// What the log holds of a mirror stays in it until it is flushed where it belongs: both disks fail the flush that was to
/// do that, and a third takes the map.
#[test]
fn the_log_keeps_what_the_last_copies_did_not_flush() {
    let rt = Rt::virtual_clock(6);
    let disks: Vec<SimDisk> = (0..3).map(|i| SimDisk::new(&format!("d{i}"), 1 << 30, i)).collect();
    let (rt2, disks2) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let (space, _) = failing_mirror(&rt2, &disks2).await;
        // Long enough for everything to be put in its place.
        rt2.sleep_ns(5_000_000_000).await;
        space.pool().rename("pond").await.expect("the third disk takes the map");
    })
    .expect("it came to its end");
    rt.shutdown();
    opened_after_a_crash(&disks);
}

/// The same disks return to the open pool without what they did not flush: it is put in its place once more.
#[test]
fn disks_that_return_are_given_again_what_they_did_not_flush() {
    let rt = Rt::virtual_clock(7);
    let disks: Vec<SimDisk> = (0..3).map(|i| SimDisk::new(&format!("d{i}"), 1 << 30, i)).collect();
    let (rt2, disks2) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let (space, held) = failing_mirror(&rt2, &disks2).await;
        let pool = space.pool();
        rt2.sleep_ns(5_000_000_000).await;
        pool.rename("pond").await.expect("the third disk takes the map");
        for &d in held.iter().rev() {
            let disk = &disks2[usize::from(d)];
            disk.lose_cache();
            pool.release_device(d);
            pool.return_disk(disk.attach(&rt2)).await.expect("it is back");
        }
        all_is_there(&space).await;
        rt2.sleep_ns(20_000_000_000).await;
        all_is_there(&space).await;
        pool.rename("lake").await.expect("a map that lets go of the log");
    })
    .expect("it came to its end");
    rt.shutdown();
    opened_after_a_crash(&disks);
}
