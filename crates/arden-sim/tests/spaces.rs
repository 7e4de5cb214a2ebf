//! Spaces of a pool that grow and are deleted while others are in use.

mod common;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, LocalFuture};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision, SpaceError};
use common::{attach, config, disks, full, life, open};

const MIB: u64 = 1 << 20;

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
