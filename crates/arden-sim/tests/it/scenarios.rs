//! Scripted scenarios on simulated disks: the bugs that seeds found, with every crash point
//! tried, and hung disks.

use std::rc::Rc;

use crate::common::{attach, attach_without, block, full, life_from};
use arden_block::sim::SimDisk;
use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, LocalFuture, Rt};
use arden_space::{
    CreateOptions, DiskState, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, SpaceError, Verifier,
    read_header,
};

fn disks(n: usize, seed: u64) -> Vec<SimDisk> {
    (0..n).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, seed * 100 + i as u64)).collect()
}

fn config() -> PoolConfig {
    PoolConfig { gather_bytes_max: 256 << 10, tick_ms: 5, io_timeout_ms: 20, busy_ms: 0, ..PoolConfig::default() }
}

/// One life of a process: `work` runs on the disks to its end, or until `crash_ns`; then power is lost.
fn life<T: 'static, F: Future<Output = T> + 'static>(
    disks: &[SimDisk],
    crash_ns: Option<u64>,
    work: impl FnOnce(Rt, Vec<SimDisk>) -> F,
) -> Option<T> {
    life_from(7, disks, crash_ns, |rt| work(rt, disks.to_vec())).0
}

async fn create(rt: &Rt, disks: &[SimDisk], layout: Layout, columns: usize) -> (Pool, Space) {
    let devices = attach(rt, disks);
    let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
    let pool = Pool::create(rt, "p", devices, Vec::new(), options).await.unwrap();
    let space = pool.create_space("s", layout, Some(columns), 4096, 256 << 12, Provision::Thin).await.unwrap();
    (pool, space)
}

async fn open(rt: &Rt, disks: &[SimDisk], without: &[usize]) -> Result<Pool, SpaceError> {
    let devices = attach_without(rt, disks, without);
    Pool::open(rt, devices, None, OpenOptions { config: config(), discard: Vec::new() }).await
}

/// Small durable writes lie in the log and are put in their place by the next opening.
async fn fill(space: &Space, byte: u8) {
    for i in 0..8 {
        space.write(i * 9 * BLOCK_BYTES, block(byte), true).await.unwrap();
    }
}

async fn expect(space: &Space, byte: u8, what: &str) {
    for i in 0..8 {
        let b = space.read(i * 9 * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
        assert!(b.iter().all(|&x| x == byte), "{what}: block {} holds {} instead of {byte}", i * 9, b[0]);
    }
}

#[test]
fn an_opening_cut_short_anywhere_leaves_each_disk_of_a_mirror_good_alone_and_with_the_other() {
    for step in 0..90u64 {
        let crash_ns = step * 70_000;
        let away = (step % 2) as usize;
        let d = disks(2, step);
        life(&d, None, async move |rt, all| {
            let (_pool, space) = create(&rt, &all, Layout::Mirror2, 1).await;
            fill(&space, 1).await;
        })
        .unwrap();
        life(&d, Some(crash_ns), async move |rt, all| {
            let _pool = open(&rt, &all, &[]).await;
            rt.sleep_ns(1_000_000_000).await;
        });
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &[away]).await.unwrap();
            let space = pool.space_named("s").unwrap();
            expect(&space, 1, &format!("crash at {crash_ns}, without {away}")).await;
            fill(&space, 2).await;
        })
        .unwrap();
        life(&d, None, async move |rt, all| {
            let what = format!("crash at {crash_ns}, {away} is back");
            let pool = open(&rt, &all, &[]).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let space = pool.space_named("s").unwrap();
            expect(&space, 2, &what).await;
            pool.resync().await.unwrap();
            let scrub = pool.scrub().await.unwrap();
            assert_eq!((scrub.undecided, scrub.lost), (0, 0), "{what}: the copies are equal again");
        })
        .unwrap();
    }
}

#[test]
fn a_commit_that_fails_and_is_tried_again_never_costs_a_disk_its_map() {
    for step in 0..120u64 {
        let d = disks(5, 1000 + step);
        // The first commits take about 3 ms; a disk goes in the middle of a later one.
        let killed_ns = 6_000_000 + step % 12 * 60_000;
        let crash_ns = killed_ns + step / 12 * 110_000;
        life(&d, Some(crash_ns), async move |rt, all| {
            let (pool, space) = create(&rt, &all, Layout::Mirror3, 1).await;
            let (clock, victim) = (rt.clone(), all[4].clone());
            rt.spawn(async move {
                clock.sleep_until_ns(killed_ns).await;
                victim.kill();
            });
            for i in 0..1000u64 {
                let _ = space.write(i % 200 * BLOCK_BYTES, block(1), true).await;
                let _ = pool.retire(3).await;
            }
        });
        life(&d, None, async move |rt, all| {
            for disk in &all[..4] {
                let header = read_header(&*disk.attach(&rt)).await.unwrap();
                assert!(header.is_some(), "killed at {killed_ns}, crash at {crash_ns}: a disk lost its map");
            }
            let without = step as usize % 4;
            let opened = open(&rt, &all, &[4, without]).await;
            assert!(opened.is_ok(), "killed at {killed_ns}, crash at {crash_ns}, without {without}");
        })
        .unwrap();
    }
}

#[test]
fn a_hung_disk_leaves_and_comes_back_only_when_it_has_answered() {
    for layout in [Layout::Mirror2, Layout::Parity] {
        let d = disks(3, 5);
        life(&d, None, async move |rt, all| {
            let (pool, space) = create(&rt, &all, layout, if layout == Layout::Parity { 3 } else { 1 }).await;
            fill(&space, 1).await;
            all[0].hang();
            let begun = rt.now_ns();
            fill(&space, 2).await;
            space.flush().await.unwrap();
            assert!(rt.now_ns() - begun < 2_000_000_000, "writers wait for the time-out at most");
            expect(&space, 2, "without the hung disk").await;
            let state = |p: &Pool| p.status().disks[0].state;
            assert_eq!(state(&pool), DiskState::Missing);
            // Its queue still holds what we asked of it: it may not come back yet.
            let early = pool.return_disk(all[0].attach(&rt)).await;
            assert!(early.is_err(), "{layout:?}: returned while it hung");
            fill(&space, 3).await;
            all[0].resume();
            rt.sleep_ns(5_000_000).await;
            pool.return_disk(all[0].attach(&rt)).await.unwrap();
            pool.resync().await.unwrap();
            expect(&space, 3, "with the disk that was hung").await;
            let scrub = pool.scrub().await.unwrap();
            assert_eq!((scrub.undecided, scrub.lost), (0, 0));
            pool.close().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn two_disks_drained_at_once_leave_every_group_on_distinct_disks() {
    let d = disks(8, 9);
    life(&d, None, async move |rt, all| {
        let (pool, space) = create(&rt, &all, Layout::DualParity, 5).await;
        fill(&space, 1).await;
        pool.retire(0).await.unwrap();
        pool.retire(1).await.unwrap();
        for _ in 0..400 {
            rt.sleep_ns(5_000_000).await;
        }
        let s = pool.status();
        assert!(s.disks[..2].iter().all(|d| d.slabs_free == d.slabs), "both are empty");
        pool.close().await.unwrap();
    })
    .unwrap();
    for (a, b) in [(2, 3), (4, 5), (6, 7), (2, 7), (3, 6)] {
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &[a, b]).await.unwrap();
            expect(&pool.space_named("s").unwrap(), 1, "with two disks lost").await;
        })
        .unwrap();
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &[]).await.unwrap();
            pool.resync().await.unwrap();
            pool.close().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn a_write_to_a_new_group_is_acknowledged_only_when_the_durable_map_knows_the_group() {
    for layout in [Layout::Mirror2, Layout::Parity] {
        for crash_us in (6_000..26_000).step_by(1_700) {
            let d = disks(4, 11);
            let acked = Rc::new(std::cell::Cell::new(false));
            let told = acked.clone();
            life(&d, Some(crash_us * 1000), async move |rt, all| {
                let (_pool, space) = create(&rt, &all, layout, if layout == Layout::Parity { 3 } else { 1 }).await;
                // The map has to reach this disk too; the journal is on others.
                rt.sleep_until_ns(5_000_000).await;
                all[3].hang();
                let first = space.clone();
                rt.spawn(async move {
                    let _ = first.write(0, block(1), true).await;
                });
                rt.sleep_ns(500_000).await;
                if space.write(BLOCK_BYTES, block(2), true).await.is_ok() {
                    told.set(true);
                }
                rt.sleep_ns(1_000_000_000).await;
            });
            d[3].resume();
            life(&d, None, async move |rt, all| {
                let pool = open(&rt, &all, &[]).await.unwrap();
                let space = pool.space_named("s").unwrap();
                let b = space.read(BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
                let kept = b.iter().all(|&x| x == 2);
                assert!(kept || !acked.get(), "{layout:?}: acknowledged before {crash_us} us, and lost");
            })
            .unwrap();
        }
    }
}

#[test]
fn a_disk_that_leaves_while_a_group_is_made_does_not_bring_back_what_its_slab_held_before() {
    for step in 0..40u64 {
        let d = disks(3, 2000 + step);
        life(&d, None, async move |rt, all| {
            let mut junk = Buf::new(1 << 20);
            junk.fill(0xEE);
            let junk = junk.share();
            for disk in &all {
                let dev = disk.attach(&rt);
                for at in 0..6 {
                    dev.write(at << 20, junk.clone(), true).await.unwrap();
                }
            }
            let (pool, space) = create(&rt, &all, Layout::Mirror2, 1).await;
            let (clock, victim) = (rt.clone(), all[0].clone());
            let at = rt.now_ns() + step * 50_000;
            rt.spawn(async move {
                clock.sleep_until_ns(at).await;
                victim.kill();
            });
            space.write(0, block(1), true).await.unwrap();
            space.flush().await.unwrap();
            rt.sleep_ns(5_000_000).await;
            let _ = pool.report_failure(0).await;
            all[0].revive();
            rt.sleep_ns(1_000_000).await;
            pool.return_disk(all[0].attach(&rt)).await.unwrap();
            pool.resync().await.unwrap();
            let scrub = pool.scrub().await.unwrap();
            assert_eq!((scrub.undecided, scrub.lost), (0, 0), "killed {} us after", step * 50);
            for i in 1..32 {
                let b = space.read(i * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
                assert!(b.iter().all(|&x| x == 0), "killed {} us after: block {i} is not zeros", step * 50);
            }
        })
        .unwrap();
    }
}

#[test]
fn a_block_rewritten_while_its_batch_is_written_keeps_what_was_acknowledged() {
    for step in 0..24u64 {
        let d = disks(4, 3000 + step);
        life(&d, None, async move |rt, all| {
            let (pool, space) = create(&rt, &all, Layout::Parity, 3).await;
            fill(&space, 1).await;
            // It is put in its place, and nothing keeps the start of the log back.
            rt.sleep_ns(50_000_000).await;
            let (clock, second) = (rt.clone(), space.clone());
            rt.spawn(async move {
                clock.sleep_ns(step * 20_000).await;
                second.write(0, block(3), false).await.unwrap();
            });
            space.write(0, block(2), true).await.unwrap();
            // A commit of the map moves the start of the log past what nobody needs.
            pool.rename("q").await.unwrap();
        })
        .unwrap();
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &[]).await.unwrap();
            let b = pool.space_named("s").unwrap().read(0, BLOCK_BYTES as usize).await.unwrap();
            let newest = b.iter().all(|&x| x == 2) || b.iter().all(|&x| x == 3);
            assert!(newest, "rewritten {} us after: holds {}", step * 20, b[0]);
        })
        .unwrap();
    }
}

#[test]
fn a_stripe_written_whole_leaves_whole_however_little_memory_there_is() {
    let d = disks(5, 4000);
    life(&d, None, async move |rt, all| {
        let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
        let config = PoolConfig { gather_bytes_max: 16 << 10, ..config() };
        let options = CreateOptions { slab_bytes: Some(128 << 10), config };
        let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
        let made = pool.create_space("s", Layout::Parity, Some(5), 8192, 256 << 12, Provision::Thin);
        let space = made.await.unwrap();
        // A stripe has 32 KiB, twice what memory holds.
        let stripe = |byte: u8| {
            let mut b = Buf::new(32 << 10);
            b.fill(byte);
            b.share()
        };
        let reads = || all.iter().map(|d| d.counters().reads).sum::<u64>();
        for round in 1..4u8 {
            let before = reads();
            let writes = (0..6u64).map(|i| -> LocalFuture<_> {
                let (space, data) = (space.clone(), stripe(round));
                Box::pin(async move { space.write(i * (32 << 10), data, i % 2 == 0).await })
            });
            assert!(join_all(writes.collect()).await.iter().all(Result::is_ok));
            space.flush().await.unwrap();
            rt.sleep_ns(50_000_000).await;
            assert_eq!(reads(), before, "round {round}: the old stripe is of no interest");
        }
        pool.close().await.unwrap();
    })
    .unwrap();
}

#[test]
fn the_log_moves_to_another_disk_while_one_block_is_written_again_and_again() {
    for layout in [Layout::Mirror2, Layout::Parity] {
        let d = disks(4, 5000);
        life(&d, None, async move |rt, all| {
            let (pool, space) = create(&rt, &all, layout, if layout == Layout::Parity { 3 } else { 1 }).await;
            fill(&space, 1).await;
            let stop = Rc::new(std::cell::Cell::new(false));
            for i in 0..5u8 {
                let (space, stop) = (space.clone(), stop.clone());
                rt.spawn(async move {
                    while !stop.get() {
                        space.write(0, block(10 + i), true).await.unwrap();
                    }
                });
            }
            rt.sleep_ns(5_000_000).await;
            let lost = usize::from(pool.journal_disks()[0]);
            all[lost].kill();
            for _ in 0..400 {
                rt.sleep_ns(1_000_000).await;
                if pool.journal_disks().len() == 2 && !pool.journal_disks().contains(&(lost as u16)) {
                    break;
                }
            }
            assert_eq!(pool.journal_disks().len(), 2, "{layout:?}: the log has a second copy again");
            stop.set(true);
            rt.sleep_ns(10_000_000).await;
        })
        .unwrap();
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &[]).await.unwrap();
            let b = pool.space_named("s").unwrap().read(0, BLOCK_BYTES as usize).await.unwrap();
            assert!((10..15).contains(&b[0]), "{layout:?}: holds {}", b[0]);
        })
        .unwrap();
    }
}

#[test]
fn a_disk_that_is_kept_while_it_is_removed_is_a_member_or_holds_nothing() {
    let mut removed = 0;
    for step in 0..40u64 {
        let d = disks(4, 6000 + step);
        removed += life(&d, None, async move |rt, all| {
            let (pool, space) = create(&rt, &all, Layout::Mirror2, 1).await;
            fill(&space, 1).await;
            let (clock, p, s) = (rt.clone(), pool.clone(), space.clone());
            rt.spawn(async move {
                clock.sleep_ns(step * 100_000).await;
                if p.keep_disk(0).await.is_ok() {
                    for i in 3..8 {
                        s.write(i * 32 * BLOCK_BYTES, block(2), true).await.unwrap();
                    }
                }
            });
            let gone = pool.remove_disk(0).await.is_ok();
            rt.sleep_ns(30_000_000).await;
            let members: Vec<u16> = pool.status().disks.iter().map(|d| d.index).collect();
            assert_eq!(members.contains(&0), !gone, "kept {} us after", step * 100);
            for (group, columns) in pool.space_map(space.id()).unwrap() {
                let lost = columns.iter().find(|c| !members.contains(&c.disk));
                assert!(lost.is_none(), "kept {} us after: group {group} lies on {lost:?}", step * 100);
            }
            assert!(pool.journal_disks().iter().all(|d| members.contains(d)) && pool.journal_disks().len() == 2);
            expect(&space, 1, "after the removal").await;
            u64::from(gone)
        })
        .unwrap();
    }
    assert!(0 < removed && removed < 40, "{removed} removals");
}

/// A disk of the log leaves the pool while the other one hangs. Its copy of the log counts until another disk has one:
/// power may be lost at any moment after the pool has noticed.
#[test]
fn a_disk_leaves_with_its_copy_of_the_log_only_when_another_has_one() {
    let mut noticed = 0;
    for step in 0..200u64 {
        let (hang_after_ns, crash_after_ns) = (step / 4 * 100_000, step % 4 * 400_000);
        let what = format!("hung after {hang_after_ns} ns, crash {crash_after_ns} ns after it was noticed");
        let d = disks(4, 31);
        let log = life(&d, None, async move |rt: Rt, all: Vec<SimDisk>| {
            let (pool, space) = create(&rt, &all, Layout::Mirror2, 1).await;
            for i in 0..3 {
                space.write(i * 32 * BLOCK_BYTES, block(1), true).await.unwrap();
            }
            let log = pool.journal_disks();
            let (p, leaves) = (pool.clone(), log[1]);
            rt.spawn(async move { drop(p.remove_disk(leaves).await) });
            rt.sleep_ns(hang_after_ns).await;
            all[usize::from(log[0])].hang();
            let is_missing = |d: &arden_space::DiskStatus| d.index == log[0] && d.state == DiskState::Missing;
            for _ in 0..800 {
                if pool.status().disks.iter().any(is_missing) {
                    rt.sleep_ns(crash_after_ns).await;
                    all.iter().for_each(SimDisk::kill);
                    return Some(log);
                }
                rt.sleep_ns(50_000).await;
            }
            None
        });
        let Some(log) = log.flatten() else { continue };
        noticed += 1;
        d.iter().for_each(SimDisk::revive);
        d[usize::from(log[0])].resume();
        let opened = life(&d, None, async move |rt: Rt, all: Vec<SimDisk>| {
            let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
            let pool = Pool::open(&rt, devices, None, OpenOptions { config: config(), discard: Vec::new() }).await;
            let space = pool.unwrap_or_else(|e| panic!("{what}: {e}")).space_named("s").unwrap();
            for i in 0..3 {
                let b = space.read(i * 32 * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
                assert!(b.iter().all(|&x| x == 1), "{what}: block {i}");
            }
        });
        assert!(opened.is_some(), "the opening ends");
    }
    assert!(noticed > 100, "{noticed} of 200");
}

#[test]
fn a_space_without_its_disks_waits_for_them_and_keeps_nobody_from_the_others() {
    for (layout, columns) in [(Layout::Mirror2, 1), (Layout::Parity, 3)] {
        for crash_ns in [None, Some(600_000), Some(1_500_000), Some(2_500_000), Some(3_500_000), Some(5_000_000)] {
            let d = disks(6, 7000);
            let without = life(&d, None, async move |rt, all| {
                let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
                let config = PoolConfig { tick_ms: 1000, ..config() };
                let options = CreateOptions { slab_bytes: Some(128 << 10), config };
                let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
                let size = 256 << 12;
                let a = pool.create_space("a", layout, Some(columns), 4096, size, Provision::Thin).await.unwrap();
                let b = pool.create_space("b", Layout::Mirror3, Some(1), 4096, size, Provision::Thin).await.unwrap();
                fill(&a, 1).await;
                fill(&b, 1).await;
                let places = pool.space_map(a.id()).unwrap();
                places[0].1[..2].iter().map(|c| usize::from(c.disk)).collect::<Vec<_>>()
            })
            .unwrap();
            if crash_ns.is_some() {
                let away = without.clone();
                life(&d, crash_ns, async move |rt, all| {
                    let _pool = open(&rt, &all, &away).await;
                    rt.sleep_ns(1_000_000_000).await;
                });
            }
            life(&d, None, async move |rt, all| {
                let pool = open(&rt, &all, &without).await.unwrap();
                let (a, b) = (pool.space_named("a").unwrap(), pool.space_named("b").unwrap());
                expect(&b, 1, "the other space").await;
                if layout == Layout::Mirror2 {
                    // A stripe that was never put in its place reads as zeros; a copy does not.
                    let read = a.read(BLOCK_BYTES, BLOCK_BYTES as usize).await;
                    assert_eq!(read.unwrap_err(), SpaceError::Offline);
                }
                assert_eq!(a.write(0, block(3), true).await.unwrap_err(), SpaceError::Offline);
                assert!(pool.status().events.iter().any(|e| e.starts_with("space a has more disks away")));
                // The log turns over several times.
                for _ in 0..60 {
                    fill(&b, 2).await;
                }
                b.flush().await.unwrap();
                if crash_ns.is_none() {
                    for &i in &without {
                        pool.return_disk(all[i].attach(&rt)).await.unwrap();
                    }
                    expect(&a, 1, "its disks are back").await;
                    rt.sleep_ns(100_000_000).await;
                    a.write(30 * BLOCK_BYTES, block(3), true).await.unwrap();
                }
            })
            .unwrap();
            life(&d, None, async move |rt, all| {
                let what = format!("{layout:?}, crash at {crash_ns:?}, all disks are back");
                let pool = open(&rt, &all, &[]).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                expect(&pool.space_named("a").unwrap(), 1, &what).await;
                expect(&pool.space_named("b").unwrap(), 2, &what).await;
                pool.resync().await.unwrap();
                let scrub = pool.scrub().await.unwrap();
                assert_eq!((scrub.undecided, scrub.lost), (0, 0), "{what}");
                pool.close().await.unwrap();
            })
            .unwrap();
        }
    }
}

#[test]
fn a_writer_finds_room_in_memory_though_another_space_waits_for_its_disks() {
    // How full the log is when its writers need room, and where in it those blocks lie, depends on how many wait.
    for waiting in 1..24 {
        let d = disks(8, 7500 + waiting);
        let without = life(&d, None, async move |rt, all| {
            let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
            let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
            let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
            let a = pool.create_space("a", Layout::Mirror2, Some(1), 4096, 256 << 12, Provision::Thin).await.unwrap();
            let made = pool.create_space("b", Layout::DualParity, Some(5), 4096, 256 << 12, Provision::Thin);
            made.await.unwrap();
            for i in 0..waiting {
                a.write(i * BLOCK_BYTES, block(1), true).await.unwrap();
            }
            pool.space_map(a.id()).unwrap()[0].1.iter().map(|c| usize::from(c.disk)).collect::<Vec<_>>()
        })
        .unwrap();
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &without).await.unwrap();
            assert!(pool.status().events.iter().any(|e| e.starts_with("space a has more disks away")));
            let b = pool.space_named("b").unwrap();
            // Four times what memory may gather.
            for i in 0..256 {
                b.write(i * 3 % 256 * BLOCK_BYTES, block(5), false).await.unwrap();
            }
            b.flush().await.unwrap_or_else(|e| panic!("{waiting} blocks wait: {e}"));
        })
        .unwrap();
    }
}

#[test]
fn the_last_two_disks_of_a_group_return_one_after_the_other() {
    for first in 0..2 {
        let d = disks(6, 8000);
        let pair = life(&d, None, async move |rt, all| {
            let (pool, space) = create(&rt, &all, Layout::Mirror2, 1).await;
            // For more copies of the log.
            pool.create_space("b", Layout::Mirror3, Some(1), 4096, 4096, Provision::Thin).await.unwrap();
            fill(&space, 1).await;
            let places = pool.space_map(space.id()).unwrap();
            pool.close().await.unwrap();
            places[0].1.iter().map(|c| usize::from(c.disk)).collect::<Vec<_>>()
        })
        .unwrap();
        let away = pair.clone();
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &away).await.unwrap();
            let space = pool.space_named("s").unwrap();
            assert_eq!(space.write(0, block(3), true).await.unwrap_err(), SpaceError::Offline);
            pool.return_disk(all[away[first]].attach(&rt)).await.unwrap();
            fill(&space, 4).await;
            rt.sleep_ns(100_000_000).await;
            pool.return_disk(all[away[1 - first]].attach(&rt)).await.unwrap();
            expect(&space, 4, "both are back").await;
            pool.resync().await.unwrap();
            let scrub = pool.scrub().await.unwrap();
            assert_eq!((scrub.undecided, scrub.lost), (0, 0));
        })
        .unwrap();
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &[pair[first]]).await.unwrap();
            expect(&pool.space_named("s").unwrap(), 4, "on the one that returned last").await;
        })
        .unwrap();
    }
}

/// Wherever a disk holds blocks full of `byte` they rot.
async fn rot_blocks(rt: &Rt, disk: &SimDisk, byte: u8) -> usize {
    let device = disk.attach(rt);
    let mut found = 0;
    for at in (0..device.info().size_bytes).step_by(BLOCK_BYTES as usize) {
        if device.read(at, BLOCK_BYTES as usize).await.is_ok_and(|b| b.iter().all(|&x| x == byte)) {
            disk.rot(at);
            found += 1;
        }
    }
    found
}

#[test]
fn after_a_crash_no_copy_goes_over_another_where_checksums_tell_which_is_right() {
    for bad in 0..2 {
        let d = disks(2, 77 + bad as u64);
        life(&d, None, async move |rt, all| {
            let (_pool, space) = create(&rt, &all, Layout::Mirror2, 1).await;
            for i in 0..8 {
                space.write(i * 9 * BLOCK_BYTES, block(1), false).await.unwrap();
            }
            space.flush().await.unwrap();
        })
        .unwrap();
        life(&d, None, async move |rt, all| {
            assert_eq!(rot_blocks(&rt, &all[bad], 1).await, 8);
            let pool = open(&rt, &all, &[]).await.unwrap();
            let space = pool.space_named("s").unwrap();
            assert!(space.begin_verifying(), "the crash left regions that may differ");
            pool.resync().await.unwrap();
            // The background has had its time too.
            rt.sleep_ns(100_000_000).await;
            let verify: Verifier = Rc::new(|_, b: &[u8]| b.iter().all(|&x| x == 1));
            for i in 0..8 {
                let at = i * 9 * BLOCK_BYTES;
                space.heal_copies(at, BLOCK_BYTES as usize, &verify).await.unwrap();
                assert!(space.copies_pass(at, BLOCK_BYTES as usize, &verify).await.unwrap());
            }
            space.end_crash_resync().await.unwrap();
            assert!(!space.begin_verifying());
            pool.close().await.unwrap();
        })
        .unwrap();
        // Each disk alone holds it now.
        life(&d, None, async move |rt, all| {
            let pool = open(&rt, &all, &[1 - bad]).await.unwrap();
            expect(&pool.space_named("s").unwrap(), 1, "what was healed").await;
        })
        .unwrap();
    }
}

#[test]
fn what_a_disk_answers_after_it_was_given_up_is_not_believed() {
    for step in 0..12u64 {
        let d = disks(3, 4000 + step);
        life(&d, None, async move |rt, all| {
            let (pool, space) = create(&rt, &all, Layout::Parity, 3).await;
            for i in 0..8 {
                space.write(i * 9 * BLOCK_BYTES, block(1), false).await.unwrap();
            }
            // All of it is in its place, and no disk was flushed since.
            rt.sleep_ns(50_000_000).await;
            let (victim, index) = (&all[step as usize % 3], (step % 3) as u16);
            // It loses what its cache held, and answers again before anybody has noticed.
            victim.kill();
            victim.revive();
            let (clock, reporter) = (rt.clone(), pool.clone());
            rt.spawn(async move {
                // Sooner than any disk answers.
                clock.sleep_ns(10_000).await;
                reporter.report_failure(index).await.unwrap();
            });
            let mut reads: Vec<LocalFuture<_>> = Vec::new();
            for i in 0..8 {
                let space = space.clone();
                reads.push(Box::pin(async move { space.read(i * 9 * BLOCK_BYTES, BLOCK_BYTES as usize).await }));
            }
            for (i, b) in join_all(reads).await.into_iter().enumerate() {
                assert!(b.unwrap().iter().all(|&x| x == 1), "disk {index} gone: block {} is what it lost", i * 9);
            }
        })
        .unwrap();
    }
}

/// Where a block can be written on no copy, to take out the disks of all of them would cost everything else that they hold.
#[test]
fn a_write_that_fails_on_every_copy_is_an_error_and_costs_no_disk() {
    let d = disks(2, 91);
    life(&d, None, async move |rt, all| {
        let (pool, space) = create(&rt, &all, Layout::Mirror2, 1).await;
        for i in 0..8 {
            space.write(i * BLOCK_BYTES, block(1), false).await.unwrap();
        }
        space.flush().await.unwrap();
        all.iter().for_each(SimDisk::fail_next_write);
        let failed = space.write(3 * BLOCK_BYTES, block(2), false).await;
        assert!(matches!(failed, Err(SpaceError::Device(_))), "{failed:?}");
        let status = pool.status();
        assert!(status.disks.iter().all(|d| d.online), "{:?}", status.events);
        for i in (0..8).filter(|i| *i != 3) {
            let b = space.read(i * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
            assert!(b.iter().all(|&x| x == 1), "block {i} holds {}", b[0]);
        }
        space.write(5 * BLOCK_BYTES, block(5), true).await.unwrap();
        let b = space.read(5 * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
        assert!(b.iter().all(|&x| x == 5), "the disks go on");
    })
    .expect("comes to its end");
}

/// What a crash left different in a mirror is made equal when its disks are there, not when somebody reads it without them.
#[test]
fn copies_that_a_crash_left_different_are_not_trusted_because_somebody_read_them_without_disks() {
    let mut differed = 0;
    for step in 0..60u64 {
        let d = disks(7, 300 + step);
        let all = life(&d, None, async move |rt, disks| {
            // The first space lies on the disks of the log, as all were empty.
            let (pool, first) = create(&rt, &disks, Layout::Mirror2, 1).await;
            first.write(0, full(1, 1), true).await.unwrap();
            let made = pool.create_space("t", Layout::Mirror2, Some(2), 4096, 256 << 12, Provision::Thin);
            let s = made.await.unwrap();
            s.write(0, full(1, 16), true).await.unwrap();
            let mine: Vec<usize> = pool.space_map(s.id()).unwrap()[0].1.iter().map(|c| usize::from(c.disk)).collect();
            let log = pool.journal_disks().into_iter().map(usize::from).find(|d| !mine.contains(d));
            pool.close().await.unwrap();
            (mine, log)
        });
        let (mine, Some(log)) = all.unwrap() else { continue };
        life(&d, Some(4_000_000 + step * 170_000), async move |rt, disks| {
            let pool = open(&rt, &disks, &[]).await.unwrap();
            let s = pool.space_named("t").unwrap();
            for byte in 2.. {
                s.write(0, full(byte, 16), false).await.unwrap();
            }
        });
        let others: Vec<usize> = (0..7).filter(|&i| i != log).collect();
        life(&d, None, async move |rt, disks| {
            let pool = open(&rt, &disks, &others).await.unwrap();
            let s = pool.space_named("t").unwrap();
            assert!(s.read(0, 4096).await.is_err(), "none of its disks is here");
            // Both copies of the first column, before the space serves again and counts who is away as out of date.
            for &i in &mine {
                pool.return_disk(disks[i].attach(&rt)).await.unwrap();
            }
            pool.resync().await.unwrap();
            let report = pool.scrub().await.unwrap();
            assert_eq!((report.undecided, report.lost), (0, 0), "step {step}: {report:?}");
        });
        differed += 1;
    }
    assert!(differed > 0, "a disk of the log without the space");
}
