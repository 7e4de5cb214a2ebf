//! What has to be durable before what: marks of regions before they are forgotten, a group's place before its users go on, copies
//! that were made equal before anybody builds on that, the log before the patch that it covers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::{
    attach, attach_without, config, create, disks, expect, full, life, mirror_with_newer_caches, open,
};
use arden_block::sim::{Faults, SimDisk};
use arden_block::{BLOCK_BYTES, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, Provision, Space};

/// Marks are forgotten by hand, twice: the second time nobody has written since the first.
async fn forget_marks(pool: &Pool) {
    for _ in 0..2 {
        let _ = pool.clean().await;
    }
}

/// The flush before marks are forgotten fails, and with it goes what the disk had cached: the marks say what it misses.
#[test]
fn marks_stay_when_the_flush_before_they_are_forgotten_fails() {
    for seed in 1..9 {
        let d = disks(2, 900 + seed);
        let all = d.clone();
        let which = (seed % 2) as usize;
        life(&d, None, async move |rt| {
            let slow = arden_space::PoolConfig { tick_ms: 1_000_000, ..config() };
            let (pool, space) = mirror_with_newer_caches(&rt, &all, slow).await;
            all[which].fail_next_flush();
            forget_marks(&pool).await;
            assert!(all[which].counters().cached_lost > 0, "nothing was lost");
            pool.return_disk(all[which].attach(&rt)).await.unwrap();
            pool.resync().await.unwrap();
            pool.report_failure(1 - which as u16).await.unwrap();
            expect(&space, 2, "from the disk whose flush failed").await;
        })
        .unwrap();
    }
}

async fn bytes_of(space: &Space, blocks: u64) -> Vec<u8> {
    let b = space.read(0, (blocks * BLOCK_BYTES) as usize).await.unwrap();
    b.to_vec()
}

/// A map that names a mark is written while the mark is forgotten: afterwards it is not durable, and a write says it anew.
#[test]
fn a_mark_that_is_forgotten_while_a_map_with_it_is_written_is_made_again() {
    let mut differ = 0;
    for seed in 1..17 {
        let d = disks(2, 1000 + seed);
        let all = d.clone();
        let slow = arden_space::PoolConfig { tick_ms: 1_000_000, ..config() };
        life(&d, None, async move |rt| {
            let (pool, space) = create(&rt, &all, Layout::Mirror2, slow).await;
            space.write(0, full(1, 32), false).await.unwrap();
            pool.flush().await.unwrap();
            pool.clean().await.unwrap();
            let growing = space.clone();
            rt.spawn(async move { growing.grow(64 * BLOCK_BYTES).await.unwrap() });
            // Its map is on the way.
            rt.sleep_ns(1_000).await;
            pool.clean().await.unwrap();
            rt.sleep_ns(50_000_000).await;
            // Power is lost in the middle of this.
            let writing = space.clone();
            rt.spawn(async move { _ = writing.write(0, full(2, 8), false).await });
            rt.sleep_ns(20_000_000).await;
        })
        .unwrap();
        let all = d.clone();
        differ += life(&d, None, async move |rt| {
            let pool = open(&rt, &all, Vec::new()).await.unwrap();
            let space = pool.space_named("s").unwrap();
            let first = bytes_of(&space, 8).await;
            let copies: Vec<u16> = pool.space_map(space.id()).unwrap()[0].1.iter().map(|c| c.disk).collect();
            pool.report_failure(copies[0]).await.unwrap();
            assert!(first == bytes_of(&space, 8).await, "seed {seed}: one copy reads otherwise than the other");
            u32::from(first.contains(&1) && first.contains(&2))
        })
        .unwrap();
    }
    assert!(differ > 0, "no crash tore anything");
}

/// What is read after a crash is still there after the next one, whichever disk that takes away.
#[test]
fn what_was_read_after_a_crash_is_there_after_the_next_one_without_a_disk() {
    for seed in 1..33 {
        let d = disks(2, 1100 + seed);
        let all = d.clone();
        life(&d, None, async move |rt| {
            let (_pool, _space) = mirror_with_newer_caches(&rt, &all, config()).await;
        })
        .unwrap();
        let all = d.clone();
        let (was, gone) = life(&d, None, async move |rt| {
            let slow = arden_space::PoolConfig { tick_ms: 1_000_000, ..config() };
            let options = OpenOptions { config: slow, discard: Vec::new() };
            let pool = Pool::open(&rt, attach(&rt, &all), None, options).await.unwrap();
            let space = pool.space_named("s").unwrap();
            let was = bytes_of(&space, 32).await;
            let columns = pool.space_map(space.id()).unwrap()[0].1.clone();
            (was, usize::from(columns[(seed % 2) as usize].disk))
        })
        .unwrap();
        let left: Vec<SimDisk> = (0..2).filter(|&i| i != gone).map(|i| d[i].clone()).collect();
        life(&left.clone(), None, async move |rt| {
            let pool = open(&rt, &left, Vec::new()).await.unwrap();
            let now = bytes_of(&pool.space_named("s").unwrap(), 32).await;
            let first = was.iter().zip(&now).position(|(a, b)| a != b);
            assert!(first.is_none(), "seed {seed}: byte {first:?} reads otherwise without disk {gone}");
        })
        .unwrap();
    }
}

/// Writers come to a new group one after the other, and power is lost at each moment of it.
#[test]
fn what_a_second_writer_put_into_a_new_group_is_there_when_it_was_told_so() {
    let mut early = 0;
    for step in 0..60 {
        let d = disks(3, 1200 + step);
        let acked: Rc<RefCell<Vec<u64>>> = Rc::default();
        let (all, list) = (d.clone(), acked.clone());
        life(&d, Some(40_000_000 + step * 40_000), async move |rt: Rt| {
            let (_pool, space) = create(&rt, &all, Layout::Mirror2, config()).await;
            rt.sleep_until_ns(40_000_000).await;
            for i in 0..8 {
                let (space, list, r) = (space.clone(), list.clone(), rt.clone());
                rt.spawn(async move {
                    r.sleep_ns(i * 100_000).await;
                    space.write(i * BLOCK_BYTES, full(1 + i as u8, 1), true).await.unwrap();
                    list.borrow_mut().push(i);
                });
            }
            rt.sleep_ns(1_000_000_000).await;
        });
        early += u32::from((1..8).contains(&acked.borrow().len()));
        let all = d.clone();
        life(&d, None, async move |rt| {
            let pool = open(&rt, &all, Vec::new()).await.unwrap();
            let space = pool.space_named("s").unwrap();
            for i in acked.take() {
                let b = space.read(i * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
                assert!(b.iter().all(|&x| x == 1 + i as u8), "step {step}: write {i} was acknowledged");
            }
        })
        .unwrap();
    }
    assert!(early > 3, "power was lost between the writers {early} times");
}

/// A disk that cannot write its copy of the log goes before the batch counts.
#[test]
fn a_disk_that_cannot_write_the_log_is_out_before_the_writer_is_told() {
    for seed in 1..5 {
        let d = disks(2, 1300 + seed);
        let all = d.clone();
        let which = (seed % 2) as usize;
        life(&d, None, async move |rt| {
            let (pool, space) = create(&rt, &all, Layout::Mirror2, config()).await;
            space.write(0, full(1, 32), true).await.unwrap();
            pool.flush().await.unwrap();
            rt.sleep_ns(100_000_000).await;
            all[which].fail_next_write();
            space.write(0, full(2, 1), true).await.unwrap();
            assert_eq!(all[which].counters().writes_failed, 3, "it was tried again");
            assert_eq!(pool.out_of_date(), [which as u16]);
        })
        .unwrap();
    }
}

/// Blocks of the parity space, in complete stripes of six.
const BLOCKS: u64 = 96;
/// Where the log of a small disk lies.
const LOG: std::ops::Range<u64> = 256 << 10..1280 << 10;

/// A parity space whose every stripe is in its place. Gives the disks of its columns.
async fn create_parity(rt: Rt, all: Vec<SimDisk>) -> Vec<usize> {
    let options = CreateOptions { slab_bytes: Some(256 << 10), config: config() };
    let pool = Pool::create(&rt, "p", attach(&rt, &all), Vec::new(), options).await.unwrap();
    let size = BLOCKS * BLOCK_BYTES;
    let space = pool.create_space("s", Layout::Parity, Some(4), 8192, size, Provision::Thin).await.unwrap();
    space.write(0, full(1, BLOCKS), false).await.unwrap();
    let columns = pool.space_map(space.id()).unwrap()[0].1.iter().map(|c| usize::from(c.disk)).collect();
    pool.close().await.unwrap();
    columns
}

/// A stripe is changed in place, one of its writes is stuck, the same block is written again, and a map lets go of the log
/// meanwhile. Power is lost, and another disk of the stripe with it: its blocks are rebuilt from parity that fits.
#[test]
fn the_log_keeps_a_change_in_place_until_all_of_it_is_there() {
    let let_go = Rc::new(Cell::new(0));
    for seed in 0..36u64 {
        let d = disks(5, 1400 + seed);
        let all = d.clone();
        let columns = life(&d, None, async move |rt| create_parity(rt, all).await).unwrap();
        let (all, told, (nth, at)) = (d.clone(), let_go.clone(), (seed as usize, seed / 4 % 16 * 6));
        let places = columns.clone();
        let stuck = life(&d, None, async move |rt| {
            let pool = open(&rt, &all, Vec::new()).await.unwrap();
            let space = pool.space_named("s").unwrap();
            let journal: Vec<usize> = pool.journal_disks().iter().map(|&d| usize::from(d)).collect();
            // The log's own writes go elsewhere: the next command to this one is the stripe's.
            let others: Vec<usize> = places.into_iter().filter(|c| !journal.contains(c)).collect();
            let stuck = others[nth % others.len()];
            rt.sleep_ns(50_000_000).await;
            space.write(at * BLOCK_BYTES, full(2, 1), true).await.unwrap();
            all[journal[0]].set_trap(Some(LOG));
            for _ in 0..10_000 {
                if all[journal[0]].take_sprung() {
                    break;
                }
                rt.sleep_ns(2_000).await;
            }
            // What was read of the stripe is in memory; what changes is on its way to the log.
            all[stuck].stick_next(5_000_000_000);
            rt.sleep_ns(3_000_000).await;
            space.write(at * BLOCK_BYTES, full(3, 1), true).await.unwrap();
            let (growing, told) = (space.clone(), told.clone());
            rt.spawn(async move {
                growing.grow((BLOCKS + 1) * BLOCK_BYTES).await.unwrap();
                told.set(told.get() + 1);
            });
            rt.sleep_ns(20_000_000).await;
            stuck
        })
        .unwrap();
        let gone = columns[(columns.iter().position(|&c| c == stuck).unwrap() + 1 + nth % 3) % columns.len()];
        let left: Vec<SimDisk> = (0..5).filter(|&i| i != gone).map(|i| d[i].clone()).collect();
        life(&left.clone(), None, async move |rt| {
            let pool = open(&rt, &left, Vec::new()).await.unwrap();
            let space = pool.space_named("s").unwrap();
            for b in 0..BLOCKS {
                let got = space.read(b * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
                let want = if b == at { 3 } else { 1 };
                assert!(
                    got.iter().all(|&x| x == want),
                    "seed {seed}: block {b} without disk {gone}, {stuck} was stuck"
                );
            }
        })
        .unwrap();
    }
    assert!(let_go.get() > 6, "a map was written while a change was stuck: {} times", let_go.get());
}

/// A space is deleted while somebody writes to parts of it that have no slabs yet: in the end none is taken.
#[test]
fn a_space_that_is_deleted_while_it_takes_slabs_leaves_none() {
    let d = disks(3, 1600);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = create(&rt, &all, Layout::Mirror2, config()).await;
        space.write(0, full(1, 32), true).await.unwrap();
        let free = |p: &Pool| p.status().disks.iter().map(|d| d.slabs_free).sum::<u32>();
        let before = free(&pool);
        for step in 0..40 {
            let made = pool.create_space("x", Layout::Mirror2, Some(1), 4096, 160 * BLOCK_BYTES, Provision::Thin).await;
            let (writing, deleted) = (made.unwrap(), Rc::new(Cell::new(false)));
            let (id, told) = (writing.id(), deleted.clone());
            rt.spawn(async move {
                for i in 0..5 {
                    let _ = writing.write(i * 32 * BLOCK_BYTES, full(1, 1), true).await;
                }
                told.set(true);
            });
            rt.sleep_ns(step * 50_000).await;
            pool.delete_space(id).await.unwrap();
            while !deleted.get() {
                rt.sleep_ns(1_000_000).await;
            }
            rt.sleep_ns(20_000_000).await;
            assert_eq!(free(&pool), before, "after deletion {step}");
        }
    })
    .unwrap();
}

/// A disk leaves when it has a map that does not know of it, and another disk does not have that yet. Whoever writes when that map is durable is told so only when the
/// next one is, which says that the disk is away: what it missed is not read of it, whichever disks the next opening has.
#[test]
fn a_departure_beside_a_map_is_in_the_next_one_before_a_write_without_that_disk_is_acknowledged() {
    for seed in 1..5 {
        let d = disks(3, 1500 + seed);
        let all = d.clone();
        let stays = life(&d, None, async move |rt| {
            let slow = arden_space::PoolConfig { tick_ms: 1_000_000, ..config() };
            let (pool, space) = create(&rt, &all, Layout::Mirror2, slow).await;
            space.write(0, full(1, 32), true).await.unwrap();
            pool.flush().await.unwrap();
            let copies: Vec<u16> = pool.space_map(space.id()).unwrap()[0].1.iter().map(|c| c.disk).collect();
            let (leaves, stays) = if seed % 2 == 0 { (copies[0], copies[1]) } else { (copies[1], copies[0]) };
            // A map takes 12 ms for the sake of the third disk, 4 for its labels, and a write to the others does not.
            let third = (0..3).find(|i| !copies.contains(i)).unwrap();
            all[usize::from(third)].set_faults(Faults {
                latency_min_ns: 4_000_000,
                latency_max_ns: 4_000_000,
                ..Faults::default()
            });
            let (leaving, clock) = (pool.clone(), rt.clone());
            rt.spawn(async move {
                // The label of the growth's map is on the disk that leaves, and not on the third one.
                clock.sleep_ns(10_000_000).await;
                let _ = leaving.report_failure(leaves).await;
            });
            space.grow(64 * BLOCK_BYTES).await.unwrap();
            space.write(0, full(2, 32), true).await.unwrap();
            usize::from(stays)
        })
        .unwrap();
        let all = d.clone();
        life(&d, None, async move |rt| {
            let options = OpenOptions { config: config(), discard: Vec::new() };
            let opened = Pool::open(&rt, attach_without(&rt, &all, &[stays]), None, options).await;
            // To refuse is right: the only disk that has the write is not there.
            let Ok(pool) = opened else { return };
            if let Ok(b) = pool.space_named("s").unwrap().read(0, 32 * BLOCK_BYTES as usize).await {
                assert!(b.iter().all(|&x| x == 2), "seed {seed}: what the disk held that was away counts");
            }
        })
        .unwrap();
    }
}
