//! What a disk that was away gets when it returns, and from where; what counts when a crash comes meanwhile; what
//! an old image of a disk is taken for; what is read meanwhile where a stripe no longer lies; and what is written then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::{attach_without, block, full, life_from};
use arden_block::sim::{Faults, SimDisk};
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, SpaceError, Verifier};

const BLOCKS: u64 = 40;

/// Blocks full of `byte` on a disk.
fn places(disk: &SimDisk, byte: u8) -> Vec<u64> {
    let blocks = (0..disk.info().size_bytes).step_by(BLOCK_BYTES as usize);
    blocks.filter(|&at| disk.peek(at, BLOCK_BYTES as usize).iter().all(|&x| x == byte)).collect()
}

#[test]
fn a_copy_that_returns_is_brought_up_to_date_and_no_other_is_written() {
    for verifying in [false, true] {
        let rt = Rt::virtual_clock(7);
        let disks: Vec<SimDisk> = (0..5).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 900 + i)).collect();
        let (all, clock) = (disks.clone(), rt.clone());
        rt.block_on(async move {
            let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&clock)).collect();
            let config = PoolConfig { tick_ms: 1_000_000, busy_ms: 0, ..PoolConfig::default() };
            let options = CreateOptions { slab_bytes: Some(256 << 10), config };
            let pool = Pool::create(&clock, "p", devices, Vec::new(), options).await.unwrap();
            let made = pool.create_space("s", Layout::Mirror3, Some(1), 4096, BLOCKS * BLOCK_BYTES, Provision::Thin);
            let space = made.await.unwrap();
            if verifying {
                space.begin_verifying();
            }
            for i in 0..BLOCKS {
                space.write(i * BLOCK_BYTES, block(1), false).await.unwrap();
            }
            space.flush().await.unwrap();
            let copies: Vec<usize> =
                pool.space_map(space.id()).unwrap()[0].1.iter().map(|c| usize::from(c.disk)).collect();
            let (lying, good, away) = (&all[copies[0]], &all[copies[1]], &all[copies[2]]);
            pool.report_failure(copies[2] as u16).await.unwrap();
            for i in 0..BLOCKS {
                space.write(i * BLOCK_BYTES, block(2), false).await.unwrap();
            }
            space.flush().await.unwrap();
            // The first copy goes bad, unnoticed, while the third is away.
            let bad = places(lying, 2);
            assert_eq!(bad.len() as u64, BLOCKS);
            bad.iter().for_each(|&at| lying.rot(at));
            pool.return_disk(away.attach(&clock)).await.unwrap();
            let written = [lying, good].map(|d| d.counters().write_bytes);
            pool.resync().await.unwrap();
            let written = [lying.counters().write_bytes - written[0], good.counters().write_bytes - written[1]];
            assert!(written.iter().all(|&n| n < BLOCKS * BLOCK_BYTES / 2), "good copies were written: {written:?}");
            assert!(pool.out_of_date().is_empty() && places(away, 1).is_empty(), "the third copy is up to date");
            assert_eq!(places(good, 2).len() as u64, BLOCKS, "the second copy is as it was");
            let verify: Verifier = Rc::new(|_, b: &[u8]| b.iter().all(|&x| x == 2));
            for i in 0..BLOCKS {
                let b = space.read_verified(i * BLOCK_BYTES, BLOCK_BYTES as usize, verify.clone()).await.unwrap();
                assert!(b.iter().all(|&x| x == 2));
            }
        })
        .unwrap();
    }
}

/// Every second block of a region was written while a disk was away: they are copied together, nothing else is, and who writes to the region
/// meanwhile waits for a part of it at most.
#[test]
fn scattered_blocks_of_a_region_are_copied_together_and_hold_nobody_up() {
    const LATE_NS: u64 = 1_000_000;
    const REGION_BLOCKS: u64 = 256;
    let rt = Rt::virtual_clock(17);
    let disks: Vec<SimDisk> = (0..2).map(|i| SimDisk::new(&format!("d{i}"), 64 << 20, 1700 + i)).collect();
    let (all, clock) = (disks.clone(), rt.clone());
    rt.block_on(async move {
        let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&clock)).collect();
        let config = PoolConfig { tick_ms: 1_000_000, busy_ms: 0, ..PoolConfig::default() };
        let options = CreateOptions { slab_bytes: Some(4 << 20), config };
        let pool = Pool::create(&clock, "p", devices, Vec::new(), options).await.unwrap();
        let size_bytes = REGION_BLOCKS * BLOCK_BYTES;
        let space = pool.create_space("s", Layout::Mirror2, Some(1), 4096, size_bytes, Provision::Thin).await.unwrap();
        space.begin_verifying();
        space.write(0, full(1, REGION_BLOCKS), false).await.unwrap();
        space.flush().await.unwrap();
        // Twice: what is dirty when a disk leaves is copied as a whole.
        pool.clean().await.unwrap();
        pool.clean().await.unwrap();
        let (away, stays) = (&all[1], &all[0]);
        pool.report_failure(1).await.unwrap();
        for i in (0..REGION_BLOCKS).step_by(2) {
            space.write(i * BLOCK_BYTES, block(2), false).await.unwrap();
        }
        space.flush().await.unwrap();
        // Nobody wrote these: the disk that was away may have the only good copies.
        let between = places(stays, 1);
        assert_eq!(between.len() as u64, REGION_BLOCKS / 2);
        between.iter().for_each(|&at| stays.rot(at));
        pool.return_disk(away.attach(&clock)).await.unwrap();
        let late = Faults { latency_min_ns: LATE_NS, latency_max_ns: LATE_NS, ..Faults::default() };
        all.iter().for_each(|d| d.set_faults(late.clone()));
        let began = clock.now_ns();
        let (took, waited): (Rc<Cell<u64>>, Rc<Cell<u64>>) = Default::default();
        let (resynced, told, at) = (pool.clone(), took.clone(), clock.clone());
        clock.spawn(async move {
            resynced.resync().await.unwrap();
            told.set(at.now_ns() - began);
        });
        clock.sleep_ns(LATE_NS / 2).await;
        for i in 0..8 {
            let before = clock.now_ns();
            space.write((REGION_BLOCKS - 2 - 32 * i) * BLOCK_BYTES, block(3), false).await.unwrap();
            waited.set(waited.get().max(clock.now_ns() - before));
        }
        while took.get() == 0 {
            clock.sleep_ns(LATE_NS).await;
        }
        assert!(pool.out_of_date().is_empty());
        let written = REGION_BLOCKS / 2 - 8;
        assert_eq!((places(away, 1).len() as u64, places(away, 2).len() as u64), (REGION_BLOCKS / 2, written));
        assert_eq!(places(away, 3).len(), 8);
        assert!(took.get() < 40 * LATE_NS, "copied one by one: {} ns", took.get());
        assert!(waited.get() < 8 * LATE_NS, "a write waited for {} ns", waited.get());
    })
    .unwrap();
}

fn config() -> PoolConfig {
    PoolConfig { tick_ms: 5, busy_ms: 0, ..PoolConfig::default() }
}

/// One life of a process: `work` runs on the disks to its end, or until `crash_ns`; then power is lost.
fn life<T: 'static, F: Future<Output = T> + 'static>(
    disks: &[SimDisk],
    crash_ns: Option<u64>,
    work: impl FnOnce(Rt, Vec<SimDisk>) -> F,
) -> Option<T> {
    life_from(11, disks, crash_ns, |rt| work(rt, disks.to_vec())).0
}

async fn open(rt: &Rt, disks: &[SimDisk], without: &[usize]) -> Pool {
    let devices = attach_without(rt, disks, without);
    Pool::open(rt, devices, None, OpenOptions { config: config(), discard: Vec::new() }).await.unwrap()
}

async fn fill(space: &Space, byte: u8) {
    for i in 0..8 {
        space.write(i * 9 * BLOCK_BYTES, block(byte), true).await.unwrap();
    }
}

async fn expect(space: &Space, byte: u8, what: &str) {
    for i in 0..8 {
        let b = space.read(i * 9 * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(b.iter().all(|&x| x == byte), "{what}: block {} holds {} instead of {byte}", i * 9, b[0]);
    }
}

/// Six disks with a mirror `a` on two of them, full of 1, and a mirror `b` of three copies. Which two.
fn pair_of_six(disks: &[SimDisk]) -> Vec<usize> {
    life(disks, None, async move |rt, all| {
        let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
        let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
        let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
        let a = pool.create_space("a", Layout::Mirror2, Some(1), 4096, 256 << 12, Provision::Thin).await.unwrap();
        let b = pool.create_space("b", Layout::Mirror3, Some(1), 4096, 256 << 12, Provision::Thin).await.unwrap();
        fill(&a, 1).await;
        fill(&b, 1).await;
        let places = pool.space_map(a.id()).unwrap();
        pool.close().await.unwrap();
        places[0].1.iter().map(|c| usize::from(c.disk)).collect()
    })
    .unwrap()
}

#[test]
fn a_crash_while_disks_return_does_not_make_old_images_of_them() {
    for step in 0..100u64 {
        let (crash_ns, while_open) = (step / 2 * 80_000, step % 2 == 1);
        let d: Vec<SimDisk> = (0..6).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 9000 + step * 10 + i)).collect();
        let pair = pair_of_six(&d);
        let away = pair.clone();
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &away).await;
            fill(&pool.space_named("b").unwrap(), 2).await;
            pool.close().await.unwrap();
        })
        .unwrap();
        let returned = pair.clone();
        life(&d, Some(crash_ns + if while_open { 20_000_000 } else { 0 }), async move |rt, all| {
            let pool = open(&rt, &all, if while_open { &returned } else { &[] }).await;
            rt.sleep_until_ns(20_000_000).await;
            for &i in returned.iter().filter(|_| while_open) {
                pool.return_disk(all[i].attach(&rt)).await.unwrap();
            }
            rt.sleep_ns(1_000_000_000).await;
        });
        life(&d, None, async move |rt, all| {
            let what = format!("crash at {crash_ns}, returned while open: {while_open}");
            let pool = open(&rt, &all, &[]).await;
            expect(&pool.space_named("a").unwrap(), 1, &what).await;
            expect(&pool.space_named("b").unwrap(), 2, &what).await;
            pool.resync().await.unwrap();
            let scrub = pool.scrub().await.unwrap();
            assert_eq!((scrub.undecided, scrub.lost), (0, 0), "{what}");
        })
        .unwrap();
    }
}

#[test]
fn an_old_image_of_a_disk_is_recognised_wherever_a_crash_comes() {
    for step in 0..40u64 {
        let crash_ns = step * 100_000;
        let d: Vec<SimDisk> = (0..6).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 9900 + step * 10 + i)).collect();
        let pair = pair_of_six(&d);
        let old = pair[(step % 2) as usize];
        let image = d[old].peek(0, d[old].info().size_bytes as usize);
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &[]).await;
            fill(&pool.space_named("a").unwrap(), 2).await;
            pool.close().await.unwrap();
        })
        .unwrap();
        life(&d, None, async move |rt, all| {
            let mut b = Buf::new(image.len());
            b.copy_from_slice(&image);
            all[old].attach(&rt).write(0, b.share(), true).await.unwrap();
        })
        .unwrap();
        life(&d, Some(crash_ns), async move |rt, all| {
            let _pool = open(&rt, &all, &[]).await;
            rt.sleep_ns(1_000_000_000).await;
        });
        life(&d, None, async move |rt, all| {
            let what = format!("crash at {crash_ns}, an old image of {old}");
            let pool = open(&rt, &all, &[]).await;
            let a = pool.space_named("a").unwrap();
            expect(&a, 2, &what).await;
            pool.resync().await.unwrap();
            assert!(pool.out_of_date().is_empty(), "{what}");
            let other = pair[1 - (step % 2) as usize];
            pool.report_failure(other as u16).await.unwrap();
            expect(&a, 2, &format!("{what}, without {other}")).await;
        })
        .unwrap();
    }
}

/// The group's copies differ where a crash came between them, and are made equal only when it can be written again:
/// scrub said of them that nobody knows which is right.
#[test]
fn a_scrub_says_nothing_of_differences_in_a_group_that_waits_for_its_disks() {
    let (mut differed, mut lost) = (0, 0);
    for step in 0..12u64 {
        let d: Vec<SimDisk> = (0..6).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 9500 + step * 10 + i)).collect();
        let on = life(&d, None, async move |rt, all| {
            let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
            let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
            let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
            let a = pool.create_space("a", Layout::Mirror2, Some(2), 4096, 64 << 12, Provision::Thin).await.unwrap();
            // For more copies of the log.
            pool.create_space("b", Layout::DualParity, Some(6), 4096, 4096, Provision::Thin).await.unwrap();
            a.write(0, full(1, 64), true).await.unwrap();
            let places = pool.space_map(a.id()).unwrap();
            pool.close().await.unwrap();
            places[0].1.iter().map(|c| usize::from(c.disk)).collect::<Vec<_>>()
        })
        .unwrap();
        life(&d, Some(20_000_000 + step * 100_000), async move |rt, all| {
            let pool = open(&rt, &all, &[]).await;
            rt.sleep_until_ns(19_900_000).await;
            let _ = pool.space_named("a").unwrap().write(0, full(2, 64), false).await;
            rt.sleep_ns(1_000_000_000).await;
        });
        let copies = |disk: usize| (places(&d[disk], 1).len(), places(&d[disk], 2).len());
        differed += u64::from(copies(on[0]) != copies(on[1]));
        let away = on[2..].to_vec();
        lost += life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &away).await;
            let scrub = pool.scrub().await.unwrap();
            assert_eq!(scrub.undecided, 0, "step {step}");
            scrub.lost
        })
        .unwrap();
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &[]).await;
            pool.space_named("a").unwrap().read(0, 4096).await.unwrap();
            let scrub = pool.scrub().await.unwrap();
            assert_eq!((scrub.undecided, scrub.lost), (0, 0), "step {step}: all disks are back");
        })
        .unwrap();
    }
    assert!(differed > 0 && lost > 0, "copies differed {differed} times, {lost} ranges were out of reach");
}

/// A copy was out of date when a write began, and up to date when the disk of the other died in the middle of it. The
/// write is on the copy that is left.
#[test]
fn a_write_is_proved_by_a_copy_that_was_brought_up_to_date_meanwhile() {
    let all: Vec<SimDisk> = (0..2).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 90 + i)).collect();
    let ended = life(&all, None, async move |rt: Rt, all: Vec<SimDisk>| {
        let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
        let options =
            CreateOptions { slab_bytes: Some(128 << 10), config: PoolConfig { io_timeout_ms: 10_000, ..config() } };
        let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
        let space = pool.create_space("s", Layout::Mirror2, Some(1), 4096, 32 << 12, Provision::Thin).await.unwrap();
        space.write(0, full(1, 32), false).await.unwrap();
        all[0].kill();
        pool.report_failure(0).await.unwrap();
        space.write(16 * BLOCK_BYTES, block(2), false).await.unwrap();
        // It is being brought up to date; what is written from now on it gets from those who write.
        pool.set_paused(true);
        all[0].revive();
        pool.return_disk(all[0].attach(&rt)).await.unwrap();
        rt.sleep_ns(50_000_000).await;
        assert_eq!(pool.out_of_date(), [0]);
        space.write(0, block(3), false).await.unwrap();
        all[1].set_faults(Faults { latency_min_ns: 300_000_000, latency_max_ns: 300_000_000, ..Faults::default() });
        let written: Rc<RefCell<Option<_>>> = Rc::default();
        let (told, writer) = (written.clone(), space.clone());
        rt.spawn(async move {
            let result = writer.write(BLOCK_BYTES, block(4), false).await;
            *told.borrow_mut() = Some(result);
        });
        rt.sleep_ns(1_000_000).await;
        all[1].set_faults(Faults::default());
        pool.set_paused(false);
        rt.sleep_ns(100_000_000).await;
        assert!(pool.out_of_date().is_empty() && written.borrow().is_none(), "up to date while the write goes on");
        all[1].kill();
        while written.borrow().is_none() {
            rt.sleep_ns(1_000_000).await;
        }
        assert_eq!(written.take(), Some(Ok(())));
        assert_eq!(pool.out_of_date(), [1]);
        let read = space.read(0, 32 * BLOCK_BYTES as usize).await.unwrap();
        let first: Vec<u8> = read.chunks(BLOCK_BYTES as usize).map(|b| b[0]).collect();
        assert_eq!((&first[..3], first[16]), (&[3, 4, 1][..], 2));
    });
    assert!(ended.is_some(), "it ends");
}

/// A mirror of two whose copy on disk 0 is out of date, with its resync held back, and disk 1 slow for the one request
/// that `ask` makes. Disk 0 is brought up to date while that waits, then disk 1 dies.
fn last_copy_dies_after_resync<T: Clone + 'static, F: Future<Output = T> + 'static>(
    ask: impl FnOnce(Space) -> F + 'static,
) -> T {
    let all: Vec<SimDisk> = (0..2).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 190 + i)).collect();
    let ended = life(&all, None, async move |rt: Rt, all: Vec<SimDisk>| {
        let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
        let options =
            CreateOptions { slab_bytes: Some(128 << 10), config: PoolConfig { io_timeout_ms: 10_000, ..config() } };
        let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
        let space = pool.create_space("s", Layout::Mirror2, Some(1), 4096, 32 << 12, Provision::Thin).await.unwrap();
        space.write(0, full(1, 32), false).await.unwrap();
        all[0].kill();
        pool.report_failure(0).await.unwrap();
        space.write(0, full(2, 32), false).await.unwrap();
        pool.set_paused(true);
        all[0].revive();
        pool.return_disk(all[0].attach(&rt)).await.unwrap();
        rt.sleep_ns(50_000_000).await;
        assert_eq!(pool.out_of_date(), [0]);
        all[1].set_faults(Faults { latency_min_ns: 300_000_000, latency_max_ns: 300_000_000, ..Faults::default() });
        let answer: Rc<RefCell<Option<T>>> = Rc::default();
        let (told, asked) = (answer.clone(), ask(space.clone()));
        rt.spawn(async move {
            let result = asked.await;
            *told.borrow_mut() = Some(result);
        });
        rt.sleep_ns(1_000_000).await;
        all[1].set_faults(Faults::default());
        pool.set_paused(false);
        rt.sleep_ns(100_000_000).await;
        assert!(pool.out_of_date().is_empty() && answer.borrow().is_none(), "up to date while the request waits");
        all[1].kill();
        while answer.borrow().is_none() {
            rt.sleep_ns(1_000_000).await;
        }
        answer.take().unwrap()
    });
    ended.expect("it ends")
}

/// A read that began when one copy counted finds the other when the first one's disk dies.
#[test]
fn a_read_finds_a_copy_that_was_brought_up_to_date_meanwhile() {
    let read = last_copy_dies_after_resync(async move |space: Space| {
        space.read(0, 4 * BLOCK_BYTES as usize).await.map(|b| b.iter().all(|&x| x == 2))
    });
    assert_eq!(read, Ok(true));
}

/// The only good copy dies while the other is brought up to date from it, or before anybody has noticed: then it is not.
#[test]
fn a_copy_is_not_up_to_date_because_the_good_one_does_not_answer() {
    for layout in [Layout::Mirror2, Layout::Parity] {
        let mut reads = Vec::new();
        for step in 0..80 {
            let all: Vec<SimDisk> = (0..3).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 290 + i)).collect();
            let read = life(&all, None, async move |rt: Rt, all: Vec<SimDisk>| {
                let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
                let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
                let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
                let columns = if layout == Layout::Parity { 3 } else { 1 };
                let made = pool.create_space("s", layout, Some(columns), 4096, 32 << 12, Provision::Fixed).await;
                let space = made.unwrap();
                space.write(0, full(1, 32), false).await.unwrap();
                pool.flush().await.unwrap();
                let has: Vec<u16> = pool.space_map(space.id()).unwrap()[0].1.iter().map(|c| c.disk).collect();
                let on = |column: usize| all[usize::from(has[column])].clone();
                on(0).kill();
                pool.report_failure(has[0]).await.unwrap();
                space.write(0, full(2, 32), false).await.unwrap();
                pool.flush().await.unwrap();
                rt.sleep_ns(50_000_000).await;
                on(0).revive();
                let (clock, dies) = (rt.clone(), on(1));
                rt.spawn(async move {
                    clock.sleep_ns(step * 40_000).await;
                    dies.kill();
                });
                let _ = pool.return_disk(on(0).attach(&rt)).await;
                rt.sleep_ns(100_000_000).await;
                let first = || async { space.read(0, BLOCK_BYTES as usize).await.map(|b| b[0]) };
                let read = first().await;
                // What is written from now on the other misses, whenever it left.
                if read.is_ok() {
                    space.write(0, full(3, 32), true).await.unwrap();
                    on(1).revive();
                    pool.return_disk(on(1).attach(&rt)).await.unwrap();
                    rt.sleep_ns(100_000_000).await;
                    on(0).kill();
                    pool.report_failure(has[0]).await.unwrap();
                    assert_eq!(first().await, Ok(3), "{layout:?}, step {step}");
                }
                read
            });
            reads.push(read.expect("it ends"));
        }
        assert!(reads.iter().all(|r| matches!(r, Ok(2) | Err(SpaceError::Offline))), "{layout:?}: {reads:?}");
        assert!(reads.contains(&Ok(2)) && reads.contains(&Err(SpaceError::Offline)), "{layout:?}: {reads:?}");
    }
}

/// One column comes to be read again, or lies elsewhere, while somebody reads a slot that its stripe has left: nothing
/// of that slot is copied there any more. What he reads is one of the contents all the same.
fn read_where_a_stripe_has_left(moves: bool) {
    let all: Vec<SimDisk> = (0..6).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 70 + i)).collect();
    let ended = life(&all, None, async move |rt: Rt, all: Vec<SimDisk>| {
        let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
        let config = PoolConfig { tick_ms: 1_000_000, busy_ms: 0, io_timeout_ms: 10_000, ..PoolConfig::default() };
        let options = CreateOptions { slab_bytes: Some(128 << 10), config };
        let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
        let space = pool.create_space("s", Layout::DualParity, Some(4), 4096, 64 << 12, Provision::Thin).await.unwrap();
        let stripe = |first: u8| {
            let mut b = Buf::new(2 * BLOCK_BYTES as usize);
            let (one, two) = b.split_at_mut(BLOCK_BYTES as usize);
            one.fill(first);
            two.fill(first + 1);
            b.share()
        };
        // The group is made by its second stripe; the first comes to lie in the first slot.
        space.write(2 * BLOCK_BYTES, stripe(0x51), false).await.unwrap();
        let columns: Vec<u16> = pool.space_map(space.id()).unwrap()[0].1.iter().map(|c| c.disk).collect();
        let on = |column: usize| all[usize::from(columns[column])].clone();
        if !moves {
            on(1).kill();
            pool.report_failure(columns[1]).await.unwrap();
        }
        space.write(0, stripe(0x11), false).await.unwrap();
        pool.flush().await.unwrap();
        // It leaves memory when it is flushed in its place.
        rt.sleep_ns(5_000_000).await;
        // Its reader takes long, and finds out then that he has to compute what he wants.
        let bad = *places(&on(0), 0x11).last().expect("it is in its place, beyond the log");
        on(0).break_block(bad);
        on(0).set_faults(Faults { latency_min_ns: 300_000_000, latency_max_ns: 300_000_000, ..Faults::default() });
        let found: Rc<Cell<Option<u8>>> = Rc::default();
        let (told, reader) = (found.clone(), space.clone());
        rt.spawn(async move {
            let b = reader.read(0, BLOCK_BYTES as usize).await.unwrap();
            told.set(b.iter().all(|&x| x == b[0]).then_some(b[0]).or(Some(0)));
        });
        rt.sleep_ns(1_000_000).await;
        on(0).set_faults(Faults::default());
        space.write(0, stripe(0x21), false).await.unwrap();
        pool.flush().await.unwrap();
        rt.sleep_ns(5_000_000).await;
        assert!(found.get().is_none() && places(&on(0), 0x11).contains(&bad), "he still reads, where it lay");
        if moves {
            pool.remove_disk(columns[1]).await.unwrap();
        } else {
            on(1).revive();
            pool.return_disk(on(1).attach(&rt)).await.unwrap();
            pool.resync().await.unwrap();
            assert_eq!(pool.out_of_date(), [0; 0]);
        }
        while found.get().is_none() {
            rt.sleep_ns(1_000_000).await;
        }
        assert!(found.get().is_some_and(|b| b == 0x11 || b == 0x21), "moves {moves}: read {:x?}", found.get());
        let scrub = pool.scrub().await.unwrap();
        assert_eq!((scrub.undecided, scrub.lost), (0, 0), "moves {moves}");
    });
    assert!(ended.is_some(), "moves {moves}: it ends");
}

#[test]
fn who_reads_where_a_stripe_has_left_sees_nothing_of_a_disk_that_returns() {
    read_where_a_stripe_has_left(false);
}

#[test]
fn who_reads_where_a_stripe_has_left_sees_nothing_of_a_column_that_moves() {
    read_where_a_stripe_has_left(true);
}
