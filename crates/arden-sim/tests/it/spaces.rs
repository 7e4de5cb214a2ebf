//! Spaces of a pool that grow and are deleted while others are in use.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{attach, config, disks, full, life, open};
use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, LocalFuture};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision, SpaceError};

const MIB: u64 = 1 << 20;
/// When the pool of a scenario is made and at rest.
const STARTS_NS: u64 = 200_000_000;

#[test]
fn a_space_of_fixed_size_without_room_to_grow_stays_as_large_as_it_was() {
    let disks = disks(3, 71);
    let all = disks.clone();
    let crashed = life(&disks, None, async move |rt| {
        let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
        let pool = Pool::create(&rt, "p", attach(&rt, &all), Vec::new(), options).await.unwrap();
        let make = async |name: &str, bytes| {
            pool.create_space(name, Layout::Mirror2, Some(1), 4096, bytes, Provision::Fixed).await.unwrap()
        };
        let (fixed, other) = (make("fixed", MIB).await, make("other", MIB).await);
        let before = pool.status().free_bytes;
        assert_eq!(fixed.grow(100 * MIB).await, Err(SpaceError::OutOfSpace));
        assert_eq!((fixed.size_bytes(), pool.status().free_bytes), (MIB, before), "nothing of it is kept");
        assert_eq!(pool.status().spaces[0].groups_allocated, 8);
        other.grow(2 * MIB).await.unwrap();
        other.write(2 * MIB - BLOCK_BYTES, full(7, 1), true).await.unwrap();
    });
    assert!(crashed.is_some());
    let all = disks.clone();
    life(&disks, None, async move |rt| {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        assert_eq!(pool.space_named("fixed").unwrap().size_bytes(), MIB);
        assert_eq!(pool.space_named("other").unwrap().size_bytes(), 2 * MIB);
    })
    .unwrap();
}

#[test]
fn a_space_that_is_deleted_fails_no_write_to_another() {
    for seed in 0..30 {
        let disks = disks(4, 80 + seed);
        let all = disks.clone();
        life(&disks, None, async move |rt| {
            let small = PoolConfig { gather_bytes_max: 64 << 10, ..config() };
            let options = CreateOptions { slab_bytes: Some(128 << 10), config: small };
            let pool = Pool::create(&rt, "p", attach(&rt, &all), Vec::new(), options).await.unwrap();
            let make = async |name: &str| {
                pool.create_space(name, Layout::Parity, Some(3), 4096, MIB, Provision::Thin).await.unwrap()
            };
            let (gone, stays) = (make("gone").await, make("stays").await);
            // Parts of stripes, which are gathered until there is no room for more.
            for i in 0..15 {
                gone.write(i * 8 * BLOCK_BYTES, full(1, 1), false).await.unwrap();
            }
            let (p, id) = (pool.clone(), gone.id());
            let mut all: Vec<LocalFuture<Result<(), SpaceError>>> = Vec::new();
            for i in 0..30 {
                let stays = stays.clone();
                all.push(Box::pin(async move { stays.write(i * 8 * BLOCK_BYTES, full(2, 1), false).await }));
            }
            let clock = rt.clone();
            all.push(Box::pin(async move {
                clock.sleep_ns(seed * 40_000).await;
                p.delete_space(id).await
            }));
            let done = join_all(all).await;
            assert!(done.iter().all(Result::is_ok), "{seed}: {done:?}");
        })
        .unwrap();
    }
}

/// Writes that are to be durable, to a space that is deleted meanwhile. Power is lost at any moment: the space is gone then,
/// or holds every one of them that was acknowledged.
fn deleted_under_writers(layout: Layout, blocks: u64, delete_ns: u64, crash_ns: u64) -> (bool, usize) {
    let disks = disks(5, 7100);
    let (all, told) = (disks.clone(), Rc::new(RefCell::new(Vec::new())));
    let answers = told.clone();
    life(&disks, Some(crash_ns), async move |rt| {
        let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
        let pool = Pool::create(&rt, "p", attach(&rt, &all), Vec::new(), options).await.unwrap();
        let columns = if layout == Layout::Parity { 5 } else { 1 };
        let space = pool.create_space("s", layout, Some(columns), 4096, MIB, Provision::Thin).await.unwrap();
        space.write(0, full(1, 4 * blocks), true).await.unwrap();
        rt.sleep_until_ns(STARTS_NS).await;
        for i in 0..4 {
            let (space, answers) = (space.clone(), answers.clone());
            rt.spawn(async move {
                for byte in 2..9 {
                    if space.write(i * blocks * BLOCK_BYTES, full(byte, blocks), true).await.is_err() {
                        break;
                    }
                    answers.borrow_mut().push((i, byte));
                }
            });
        }
        rt.sleep_until_ns(delete_ns).await;
        let _ = pool.delete_space(space.id()).await;
    });
    let told = told.take();
    let (all, count) = (disks.clone(), told.len());
    let stays = life(&disks, None, async move |rt| {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        let Ok(space) = pool.space_named("s") else { return false };
        for i in 0..4 {
            let least = told.iter().filter(|t| t.0 == i).map(|t| t.1).max().unwrap_or(1);
            let b = space.read(i * blocks * BLOCK_BYTES, (blocks * BLOCK_BYTES) as usize).await.unwrap();
            let there = b.iter().min().copied().unwrap_or(0);
            assert!(
                there >= least,
                "{layout:?}, {blocks} blocks, {delete_ns}, {crash_ns}: {there} there, {least} acknowledged"
            );
        }
        true
    });
    (stays.unwrap(), count)
}

#[test]
fn a_deletion_that_a_crash_undoes_has_lost_nothing_that_was_acknowledged() {
    for (layout, blocks) in [(Layout::Parity, 1), (Layout::Parity, 18), (Layout::Mirror2, 2), (Layout::Mirror2, 18)] {
        let mut stayed = 0;
        for step in 0..144 {
            let delete_ns = STARTS_NS + 100_000 + step % 12 * 47_000;
            let (stays, told) = deleted_under_writers(layout, blocks, delete_ns, delete_ns + step / 12 * 60_000);
            stayed += u32::from(stays && told > 0);
        }
        assert!(stayed > 20 && stayed < 144, "{layout:?}: {stayed} crashes came before the deletion was durable");
    }
}
