//! Many writers come to the log at once, with more than it holds.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{full, life_from};
use arden_block::sim::SimDisk;
use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, BlockDevice, LocalFuture};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision};

/// Of each write, so that it is small enough for the log.
const BLOCKS: u64 = 8;

/// Writes the same blocks first and last, and `others` elsewhere between, all on their way before one is answered.
fn write_at_once(layout: Layout, others: u64) {
    let disks: Vec<SimDisk> =
        (0..6).map(|i| SimDisk::new(&format!("d{i}"), 32 << 20, 7_000 + others * 10 + i)).collect();
    let (all, done) = (disks.clone(), Rc::new(Cell::new(false)));
    let put = done.clone();
    life_from(3, &disks, Some(100_000_000_000), move |rt| {
        Box::pin(async move {
            let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
            let config =
                PoolConfig { gather_bytes_max: 4 << 20, tick_ms: 1_000_000, busy_ms: 0, ..PoolConfig::default() };
            let options = CreateOptions { slab_bytes: Some(1 << 20), config };
            let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
            let columns = if layout == Layout::Mirror2 { 1 } else { 4 };
            let space = pool.create_space("s", layout, Some(columns), 65536, 4 << 20, Provision::Fixed).await.unwrap();
            let places = (0..=others).chain([0]);
            let writes: Vec<LocalFuture<()>> = places
                .enumerate()
                .map(|(i, place)| {
                    let space = space.clone();
                    Box::pin(async move {
                        let written = space.write(place * BLOCKS * BLOCK_BYTES, full(1 + i as u8, BLOCKS), true).await;
                        assert_eq!(written, Ok(()), "write {i} with {others} others");
                    }) as LocalFuture<()>
                })
                .collect();
            join_all(writes).await;
            let first = space.read(0, (BLOCKS * BLOCK_BYTES) as usize).await.unwrap();
            assert!(first.iter().all(|&b| b == 2 + others as u8), "the last write is there");
            put.set(true);
        })
    });
    assert!(done.get(), "it comes to its end");
}

#[test]
fn a_block_that_is_written_again_behind_all_others_does_not_fill_the_log() {
    for layout in [Layout::Mirror2, Layout::DualParity] {
        (16..60).step_by(4).for_each(|others| write_at_once(layout, others));
    }
}

/// Changes in place of a parity space wait in the queue behind more durable writes than the log has room for.
fn patches_behind_writes(patched: u64, writes: u64, logged: bool) {
    let disks: Vec<SimDisk> =
        (0..6).map(|i| SimDisk::new(&format!("d{i}"), 32 << 20, 9_000 + patched * 100 + writes * 10 + i)).collect();
    let (all, done) = (disks.clone(), Rc::new(Cell::new(false)));
    let put = done.clone();
    life_from(3, &disks, Some(100_000_000_000), move |rt| {
        Box::pin(async move {
            let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
            let config =
                PoolConfig { gather_bytes_max: 4 << 20, tick_ms: 1_000_000, busy_ms: 0, ..PoolConfig::default() };
            let options = CreateOptions { slab_bytes: Some(1 << 20), config };
            let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
            let size = 4 << 20;
            let parity = pool.create_space("a", Layout::Parity, Some(5), 65536, size, Provision::Fixed).await.unwrap();
            let mirror = pool.create_space("b", Layout::Mirror3, Some(1), 65536, size, Provision::Fixed).await.unwrap();
            let stripe = 4 * 16;
            for i in 0..patched {
                parity.write(i * stripe * BLOCK_BYTES, full(1, stripe), false).await.unwrap();
            }
            parity.flush().await.unwrap();
            // Four rows of each stripe, in memory alone or in the log too.
            for i in 0..patched {
                parity.write((i * stripe + i % 12) * BLOCK_BYTES, full(2, 4), logged).await.unwrap();
            }
            let burst: Vec<LocalFuture<()>> = (0..writes)
                .map(|i| {
                    let mirror = mirror.clone();
                    Box::pin(async move {
                        let written = mirror.write(i * BLOCKS * BLOCK_BYTES, full(3, BLOCKS), true).await;
                        assert_eq!(written, Ok(()), "write {i} of {writes} before {patched} changes in place");
                    }) as LocalFuture<()>
                })
                .collect();
            join_all(burst).await;
            for i in 0..patched {
                let at = (i * stripe + i % 12) * BLOCK_BYTES;
                let read = parity.read(at, 4 * BLOCK_BYTES as usize).await.unwrap();
                assert!(read.iter().all(|&b| b == 2), "change {i}");
            }
            put.set(true);
        })
    });
    assert!(done.get(), "it comes to its end");
}

#[test]
fn changes_in_place_that_wait_behind_writers_do_not_fill_the_log() {
    for patched in [2, 6, 12] {
        for logged in [false, true] {
            (16..60).step_by(4).for_each(|writes| patches_behind_writes(patched, writes, logged));
        }
    }
}
