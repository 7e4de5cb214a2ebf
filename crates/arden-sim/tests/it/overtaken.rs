//! An older version of a block comes to the log behind a newer one, for the parity of a change in
//! place that began before the newer was written. Then the log begins between the two, power is
//! lost, and the block reads as it was acknowledged, whoever is away.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{attach, attach_without, full};
use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, LocalFuture, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space};

const INTERLEAVE: u64 = 8192;
const LOOK_NS: u64 = 50_000;
const GIVE_UP_NS: u64 = 2_000_000_000;

fn config() -> PoolConfig {
    PoolConfig { gather_bytes_max: 256 << 10, tick_ms: 10, busy_ms: 0, ..PoolConfig::default() }
}

async fn open(rt: &Rt, disks: &[SimDisk], without: Option<usize>) -> Pool {
    let options = OpenOptions { config: config(), discard: Vec::new() };
    Pool::open(rt, attach_without(rt, disks, without.as_slice()), None, options).await.unwrap()
}

/// One life of a process, which ends with the power.
fn life(disks: &[SimDisk], work: impl FnOnce(Rt) -> LocalFuture<()>) {
    let rt = Rt::virtual_clock(3);
    let (future, done) = (work(rt.clone()), Rc::new(Cell::new(false)));
    let told = done.clone();
    rt.spawn(async move {
        future.await;
        told.set(true);
    });
    let mut at = 0;
    while !done.get() && at < GIVE_UP_NS {
        at += LOOK_NS;
        rt.run_until_ns(at);
    }
    rt.shutdown();
    disks.iter().for_each(SimDisk::crash);
    assert!(done.get(), "came to its end");
}

/// The disks of a space's only group, by column.
fn columns(pool: &Pool, space: &Space) -> Vec<usize> {
    pool.space_map(space.id()).unwrap()[0].1.iter().map(|c| usize::from(c.disk)).collect()
}

/// When power is lost.
#[derive(Clone, Copy)]
enum End {
    /// When the log begins behind the newer version.
    LogTurned,
    /// So long after the change in place has what it reads: at some moment its record is the last in the log.
    After(u64),
}

fn overtaken(layout: Layout, count: usize, lost: Option<usize>, end: End) {
    let disks: Vec<SimDisk> = (0..count + 2).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 900 + i as u64)).collect();
    let stripe = (count - layout.parity()) as u64 * INTERLEAVE / BLOCK_BYTES;
    let all = disks.clone();
    life(&disks, move |rt| {
        Box::pin(async move {
            let options = CreateOptions { slab_bytes: Some(256 << 10), config: config() };
            let pool = Pool::create(&rt, "p", attach(&rt, &all), Vec::new(), options).await.unwrap();
            let size = 2 * stripe * BLOCK_BYTES;
            let s = pool.create_space("s", layout, Some(count), INTERLEAVE, size, Provision::Fixed).await.unwrap();
            s.write(0, full(1, 2 * stripe), false).await.unwrap();
            let other = pool.create_space("b", Layout::Mirror2, Some(1), INTERLEAVE, 64 << 10, Provision::Fixed);
            other.await.unwrap();
            pool.close().await.unwrap();
        })
    });
    let all = disks.clone();
    life(&disks, move |rt| {
        Box::pin(async move {
            let pool = open(&rt, &all, None).await;
            let (s, b) = (pool.space_named("s").unwrap(), pool.space_named("b").unwrap());
            let (mine, others) = (columns(&pool, &s), columns(&pool, &b));
            let log: Vec<usize> = pool.journal_disks().into_iter().map(usize::from).collect();
            assert!(others.iter().all(|d| !mine.contains(d) && !log.contains(d)), "{mine:?} {others:?} {log:?}");
            // What stays of the first stripe is read from one of these.
            let hung: Vec<&SimDisk> = mine.iter().filter(|d| !log.contains(d)).map(|&d| &all[d]).collect();
            hung.iter().for_each(|d| d.hang());
            s.write(0, full(2, 1), false).await.unwrap();
            // A change in place begins, and reads what was there. Before its record is in the log come a newer
            // version, and what cannot leave the log.
            rt.sleep_ns(5 * config().tick_ms * 1_000_000).await;
            s.write(0, full(3, 1), true).await.unwrap();
            b.write(0, full(4, 1), true).await.unwrap();
            others.iter().for_each(|&d| all[d].kill());
            assert_eq!(pool.status().stripes_patched, 0, "the older version is not in the log yet");
            hung.iter().for_each(|d| d.resume());
            if let End::After(ns) = end {
                rt.sleep_ns(ns).await;
                return;
            }
            while pool.status().stripes_patched < 2 {
                rt.sleep_ns(LOOK_NS).await;
            }
            // The log begins anew, where the other space's block lies in it.
            pool.create_space("c", Layout::Simple, Some(1), INTERLEAVE, 64 << 10, Provision::Thin).await.unwrap();
        })
    });
    disks.iter().for_each(SimDisk::revive);
    let all = disks.clone();
    life(&disks, move |rt| {
        Box::pin(async move {
            let pool = open(&rt, &all, lost).await;
            let (s, b) = (pool.space_named("s").unwrap(), pool.space_named("b").unwrap());
            for at in 0..2 * stripe {
                let read = s.read(at * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
                let held = if at == 0 { 3 } else { 1 };
                assert!(read.iter().all(|&x| x == held), "without {lost:?}: block {at} holds {}, not {held}", read[0]);
            }
            assert!(b.read(0, BLOCK_BYTES as usize).await.unwrap().iter().all(|&x| x == 4), "the other space");
        })
    });
}

#[test]
fn what_was_acknowledged_outlives_an_older_version_that_comes_to_the_log_behind_it() {
    for (layout, count) in [(Layout::Parity, 4), (Layout::DualParity, 6)] {
        for lost in std::iter::once(None).chain((0..count).map(Some)) {
            overtaken(layout, count, lost, End::LogTurned);
        }
    }
}

#[test]
fn what_was_acknowledged_outlives_an_older_version_that_is_the_last_in_the_log() {
    for (layout, count) in [(Layout::Parity, 4), (Layout::DualParity, 6)] {
        for look in 0..60 {
            overtaken(layout, count, None, End::After(look * LOOK_NS));
        }
    }
}
