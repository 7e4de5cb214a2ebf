//! A space is deleted while one of its columns is being moved off a disk that is to be removed, at many moments, with clients
//! at work, and at times beside the loss of the disk that it moves to. The removal ends, no slab is lost, and nothing of the
//! space holds the log back, though its users have not let go of it. A scrub that is under way tells of no loss.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{attach, disks, full, life};
use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, Rt};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision, Space, SpaceResult};

const DISKS: u64 = 8;
const BLOCKS: u64 = 128;
const LOOK_NS: u64 = 20_000;
/// Long enough for anything that is under way, and shorter than any wait that gives up by itself.
const SOON_NS: u64 = 3_000_000_000;

fn config() -> PoolConfig {
    PoolConfig { gather_bytes_max: 64 << 10, tick_ms: 5, busy_ms: 0, ..crate::common::config() }
}

async fn make(rt: &Rt, all: &[SimDisk], layout: Layout) -> (Pool, Space) {
    let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
    let pool = Pool::create(rt, "p", attach(rt, all), Vec::new(), options).await.unwrap();
    let columns = if layout.parity() > 0 { 4 } else { 1 };
    let size = BLOCKS * BLOCK_BYTES;
    let space = pool.create_space("s", layout, Some(columns), 4096, size, Provision::Thin).await.unwrap();
    space.write(0, full(1, BLOCKS), true).await.unwrap();
    (pool, space)
}

/// Clients that write until the space is no more: whole stripes and single blocks.
fn clients(rt: &Rt, space: &Space) -> Rc<Cell<u32>> {
    let running = Rc::new(Cell::new(8));
    for client in 0..running.get() {
        let (s, n) = (space.clone(), running.clone());
        rt.spawn(async move {
            let blocks = if client < 5 { 12 } else { 1 };
            for i in 0u64.. {
                let first = (i * 29 + u64::from(client) * 12) % (BLOCKS / 12) * 12;
                if s.write(first * BLOCK_BYTES, full(i as u8, blocks), blocks == 1).await.is_err() {
                    break;
                }
            }
            n.set(n.get() - 1);
        });
    }
    running
}

/// What `work` answers, when it does so soon.
async fn soon<T: 'static>(rt: &Rt, what: &str, work: impl Future<Output = T> + 'static) -> T {
    rt.timeout_ns(SOON_NS, work).await.unwrap_or_else(|| panic!("{what} does not end"))
}

async fn moving(rt: &Rt, pool: &Pool, id: u32) -> u16 {
    for _ in 0..100_000 {
        let map = pool.space_map(id).unwrap();
        if let Some(to) = map.iter().flat_map(|(_, columns)| columns).find_map(|c| c.moving_to) {
            return to;
        }
        rt.sleep_ns(LOOK_NS).await;
    }
    panic!("no column moves");
}

async fn deleted_while_it_moves(rt: Rt, all: Vec<SimDisk>, (layout, step, lost): (Layout, u64, bool)) {
    let what = format!("{layout:?}, step {step}, lost {lost}");
    let (pool, space) = make(&rt, &all, layout).await;
    let running = clients(&rt, &space);
    rt.sleep_ns(3_000_000).await;
    let leaves = pool.space_map(space.id()).unwrap()[0].1[0].disk;
    let removed: Rc<Cell<Option<SpaceResult<()>>>> = Rc::default();
    let (p, told) = (pool.clone(), removed.clone());
    rt.spawn(async move { told.set(Some(p.remove_disk(leaves).await)) });
    let to = moving(&rt, &pool, space.id()).await;
    rt.sleep_ns(step * 110_000).await;
    if lost {
        all[usize::from(to)].kill();
    }
    let (p, id) = (pool.clone(), space.id());
    soon(&rt, "the deletion", async move { p.delete_space(id).await }).await.unwrap();
    let begun = rt.now_ns();
    let removed = loop {
        if let Some(removed) = removed.take() {
            break removed;
        }
        assert!(rt.now_ns() - begun < SOON_NS, "{what}: the removal does not end");
        rt.sleep_ns(1_000_000).await;
    };
    assert!(removed.is_ok(), "{what}: {removed:?}");
    while running.get() > 0 {
        assert!(rt.now_ns() - begun < SOON_NS, "{what}: a client of the deleted space does not end");
        rt.sleep_ns(1_000_000).await;
    }
    let taken = |p: &Pool| p.status().disks.iter().map(|d| d.slabs - d.slabs_free).sum::<u32>();
    for _ in 0..100 {
        rt.sleep_ns(if taken(&pool) == 0 { 0 } else { 1_000_000 }).await;
    }
    assert_eq!(taken(&pool), 0, "{what}: slabs of nobody");
    let (p, log) = (pool.clone(), pool.journal_disks()[0]);
    let moved = soon(&rt, "a removal from the log", async move { p.remove_disk(log).await }).await;
    assert!(moved.is_ok(), "{what}: the log stays for what is no more: {moved:?}");
    // Somebody had it open all the time.
    assert!(space.read(0, BLOCK_BYTES as usize).await.is_err(), "{what}");
}

fn at_many_moments(layout: Layout, lost: bool) {
    for step in 0..24 {
        let d = disks(DISKS, 40 + step);
        let all = d.clone();
        life(&d, None, move |rt| deleted_while_it_moves(rt, all, (layout, step, lost))).expect("comes to its end");
    }
}

#[test]
fn a_mirror_deleted_while_a_column_moves_leaves_nothing() {
    at_many_moments(Layout::Mirror2, false);
    at_many_moments(Layout::Mirror2, true);
}

#[test]
fn a_parity_space_deleted_while_a_column_moves_leaves_nothing() {
    at_many_moments(Layout::Parity, false);
    at_many_moments(Layout::Parity, true);
}

#[test]
fn a_dual_parity_space_deleted_while_a_column_moves_leaves_nothing() {
    at_many_moments(Layout::DualParity, false);
    at_many_moments(Layout::DualParity, true);
}

#[test]
fn a_scrub_tells_of_no_loss_when_its_space_is_deleted_under_it() {
    for layout in [Layout::Mirror2, Layout::Parity, Layout::DualParity] {
        for step in 0..24u64 {
            let d = disks(DISKS, 70 + step);
            let all = d.clone();
            let report = life(&d, None, move |rt| async move {
                let (pool, space) = make(&rt, &all, layout).await;
                let (r, p) = (rt.clone(), pool.clone());
                rt.spawn(async move {
                    r.sleep_ns(step * 170_000).await;
                    p.delete_space(space.id()).await.unwrap();
                });
                pool.scrub().await.unwrap()
            });
            let report = report.expect("comes to its end");
            assert_eq!((report.lost, report.undecided), (0, 0), "{layout:?}, step {step}: {report:?}");
        }
    }
}
