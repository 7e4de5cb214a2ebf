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
    after_a_crash(disks, |space| async move { all_is_there(&space).await });
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

/// What lies in a stripe before the write that is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// Durable content, in its place.
    Ones,
}

const UNIT: u64 = 64 << 10;
const STRIPE: u64 = 2 * UNIT;

/// Parity on three of four disks. From now on two of the three fail their next flush.
async fn failing_parity(
    rt: &Rt,
    disks: &[SimDisk],
    before: Before,
    write: &[(u64, usize, u8, bool)],
) -> (Space, Vec<u16>) {
    let options = CreateOptions { slab_bytes: Some(8 << 20), ..CreateOptions::default() };
    let devices = disks.iter().map(|d| d.attach(rt)).collect();
    let pool = Pool::create(rt, "tank", devices, Vec::new(), options).await.expect("a pool");
    let made = pool.create_space("v", Layout::Parity, Some(3), UNIT, 8 << 20, Provision::Fixed).await;
    let space = made.expect("a space");
    if before == Before::Ones {
        for i in 0..SPREAD {
            space.write(i * REGION, full(STRIPE as usize, 1), false).await.expect("written");
        }
        rt.sleep_ns(2_000_000_000).await;
    }
    pool.flush().await.expect("flushed");
    pool.rename("lagoon").await.expect("a map with its places");
    for &(at, len, byte, durable) in write {
        space.write(at, full(len, byte), durable).await.expect("written");
    }
    let places = pool.space_map(space.id()).expect("its places");
    let mut held: Vec<u16> = places.iter().flat_map(|(_, columns)| columns.iter().map(|c| c.disk)).collect();
    held.sort_unstable();
    held.dedup();
    assert_eq!(held.len(), 3);
    held.truncate(2);
    held.iter().for_each(|&d| disks[usize::from(d)].fail_next_flush());
    (space, held)
}

/// A small durable write to each of many stripes.
fn small_writes() -> Vec<(u64, usize, u8, bool)> {
    (0..SPREAD).map(|i| (i * REGION, 4096, 7, true)).collect()
}

/// The small writes, and what lay behind them.
async fn stripes_are_there(space: &Space, before: Before) {
    all_is_there(space).await;
    let byte = u8::from(before == Before::Ones);
    for i in 0..SPREAD {
        let rest = space.read(i * REGION + 4096, STRIPE as usize - 4096).await.expect("read");
        assert!(rest.iter().all(|b| *b == byte), "behind block {i}");
    }
}

/// Opens the pool after power was lost, gives the space to `look`.
fn after_a_crash<F: Future<Output = ()> + 'static>(disks: &[SimDisk], look: impl FnOnce(Space) -> F + 'static) {
    disks.iter().for_each(SimDisk::crash);
    disks.iter().for_each(SimDisk::end_of_life);
    let rt = Rt::virtual_clock(9);
    let devices = disks.iter().map(|d| d.attach(&rt)).collect();
    let rt2 = rt.clone();
    rt.block_on(async move {
        let pool = Pool::open(&rt2, devices, None, OpenOptions::default()).await.expect("opened");
        look(pool.space_named("v").expect("there")).await;
    })
    .expect("it came to its end");
}

fn four_disks() -> Vec<SimDisk> {
    (0..4).map(|i| SimDisk::new(&format!("d{i}"), 1 << 30, i)).collect()
}

fn parity_crashes(before: Before) {
    let rt = Rt::virtual_clock(10);
    let disks = four_disks();
    let (rt2, disks2) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let (space, _) = failing_parity(&rt2, &disks2, before, &small_writes()).await;
        // Long enough for everything to be put in its place.
        rt2.sleep_ns(5_000_000_000).await;
        space.pool().rename("pond").await.expect("the other disks take the map");
    })
    .expect("it came to its end");
    rt.shutdown();
    after_a_crash(&disks, move |space| async move { stripes_are_there(&space, before).await });
}

/// Two disks of a single parity fail the flush that was to make durable what left the log, and the others take the map.
#[test]
fn the_log_keeps_stripes_that_too_few_columns_did_flush() {
    parity_crashes(Before::Nothing);
}

#[test]
fn the_log_keeps_changes_in_place_that_too_few_columns_did_flush() {
    parity_crashes(Before::Ones);
}

fn parity_returns(before: Before) {
    let rt = Rt::virtual_clock(11);
    let disks = four_disks();
    let (rt2, disks2) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let (space, held) = failing_parity(&rt2, &disks2, before, &small_writes()).await;
        let pool = space.pool();
        rt2.sleep_ns(5_000_000_000).await;
        pool.rename("pond").await.expect("the other disks take the map");
        for &d in held.iter().rev() {
            let disk = &disks2[usize::from(d)];
            disk.lose_cache();
            pool.release_device(d);
            pool.return_disk(disk.attach(&rt2)).await.expect("it is back");
        }
        stripes_are_there(&space, before).await;
        rt2.sleep_ns(20_000_000_000).await;
        stripes_are_there(&space, before).await;
        pool.rename("lake").await.expect("a map that lets go of the log");
    })
    .expect("it came to its end");
    rt.shutdown();
    after_a_crash(&disks, move |space| async move { stripes_are_there(&space, before).await });
}

/// The same disks return to the open pool without what they did not flush: it is put in its place once more.
#[test]
fn columns_that_return_are_given_again_what_they_did_not_flush() {
    parity_returns(Before::Nothing);
}

#[test]
fn columns_that_return_are_changed_in_place_again_where_they_did_not_flush() {
    parity_returns(Before::Ones);
}

/// Stripes written anew that nobody made durable: the map that the other disks take does not name places where too few
/// columns are, so that what was durable before is still there.
#[test]
fn a_map_names_no_stripe_that_too_few_columns_did_flush() {
    let rt = Rt::virtual_clock(12);
    let disks = four_disks();
    let (rt2, disks2) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let write: Vec<_> = (0..SPREAD).map(|i| (i * REGION, STRIPE as usize, 2, false)).collect();
        let (space, _) = failing_parity(&rt2, &disks2, Before::Ones, &write).await;
        rt2.sleep_ns(5_000_000_000).await;
        space.pool().rename("pond").await.expect("the other disks take the map");
    })
    .expect("it came to its end");
    rt.shutdown();
    after_a_crash(&disks, |space| async move {
        for i in 0..SPREAD {
            let found = space.read(i * REGION, STRIPE as usize).await.expect("read");
            assert!(found.iter().all(|b| matches!(b, 1 | 2)), "stripe {i}");
        }
    });
}
