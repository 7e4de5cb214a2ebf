//! The pool map has a slot of fixed size on each disk: what makes the map grow is refused while it still has room for whatever
//! may happen to the pool afterwards.

use crate::common::{attach, block, config, full, life, open};
use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, Rt};
use arden_space::{CreateOptions, Layout, Pool, Provision, Space, SpaceError};

const DISKS: u64 = 10;
const MIB: u64 = 1 << 20;
/// Of a group: 30 stripes of two blocks.
const GROUP_BLOCKS: u64 = 60;

/// Disks of many small slabs, whose slots for the map have the least size, 64 KiB.
fn disks() -> Vec<SimDisk> {
    (0..DISKS).map(|i| SimDisk::new(&format!("d{i}"), 32 * MIB, 70 + i)).collect()
}

async fn create(rt: &Rt, disks: &[SimDisk]) -> (Pool, Space) {
    let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
    let pool = Pool::create(rt, "p", attach(rt, disks), Vec::new(), options).await.unwrap();
    let space =
        pool.create_space("s", Layout::Parity, Some(3), 4096, 1000 * GROUP_BLOCKS * BLOCK_BYTES, Provision::Thin);
    let space = space.await.unwrap();
    (pool, space)
}

/// Writes a block in each group until one has no room; how many have one.
async fn fill(space: &Space) -> u64 {
    for group in 0..1000 {
        match space.write(group * GROUP_BLOCKS * BLOCK_BYTES, block(1), false).await {
            Ok(()) => {}
            Err(SpaceError::OutOfSpace) => return group,
            Err(e) => panic!("group {group}: {e}"),
        }
    }
    panic!("all groups got slabs");
}

async fn expect_first_blocks(space: &Space, groups: u64, first: u8) {
    for group in 0..groups {
        let want = if group == 0 { first } else { 1 };
        let read = space.read(group * GROUP_BLOCKS * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
        assert!(read.iter().all(|&b| b == want), "group {group}");
    }
}

#[test]
fn a_full_map_still_takes_the_failure_of_a_disk() {
    let disks = disks();
    let all = disks.clone();
    let made = life(&disks, None, |rt| async move {
        let (pool, space) = create(&rt, &all).await;
        let made = fill(&space).await;
        println!("{made} groups");
        assert!(made > 100, "{made} groups");
        pool.flush().await.unwrap();
        assert_eq!(pool.space_map(space.id()).unwrap().len() as u64, made, "nothing stays of the one that was refused");
        pool.report_failure(0).await.unwrap();
        // All stripes of each group move, and the columns of the disk miss all of them.
        for group in 0..made {
            let at = group * GROUP_BLOCKS * BLOCK_BYTES;
            space.write(at, full(1, GROUP_BLOCKS), false).await.unwrap();
        }
        space.flush().await.unwrap();
        space.write(0, block(2), true).await.unwrap();
        pool.rename(&"n".repeat(64)).await.unwrap();
        space.flush().await.unwrap();
        expect_first_blocks(&space, made, 2).await;
        made
    })
    .unwrap();
    let all = disks.clone();
    life(&disks, None, |rt| async move {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        let space = pool.space_named("s").unwrap();
        assert_eq!(pool.space_map(space.id()).unwrap().len() as u64, made);
        expect_first_blocks(&space, made, 2).await;
        // A group that is given back makes room for one elsewhere.
        space.discard(5 * GROUP_BLOCKS * BLOCK_BYTES, GROUP_BLOCKS * BLOCK_BYTES).await.unwrap();
        space.write((made + 7) * GROUP_BLOCKS * BLOCK_BYTES, block(3), true).await.unwrap();
    })
    .unwrap();
}

#[test]
fn what_would_not_fit_into_the_map_is_refused_and_leaves_nothing() {
    let disks = disks();
    let all = disks.clone();
    life(&disks, None, |rt| async move {
        let (pool, space) = create(&rt, &all).await;
        let refused = |e: SpaceError| assert!(matches!(&e, SpaceError::Refused(s) if s.contains("pool map")), "{e}");
        let group = GROUP_BLOCKS * BLOCK_BYTES;
        for (groups, provision) in [(60_000, Provision::Thin), (1 << 40, Provision::Thin), (700, Provision::Fixed)] {
            let made = pool.create_space("t", Layout::Parity, Some(3), 4096, groups * group, provision).await;
            refused(made.err().unwrap());
        }
        refused(space.grow(60_000 * group).await.unwrap_err());
        assert_eq!(pool.status().spaces.len(), 1);
        assert_eq!(space.size_bytes(), 1000 * group);
        fill(&space).await;
        let name = "x".repeat(200);
        let small = SimDisk::new(&name, 32 * MIB, 99);
        refused(pool.add_disk(small.attach(&rt), false).await.unwrap_err());
        assert_eq!(pool.status().disks.len() as u64, DISKS);
        pool.flush().await.unwrap();
        pool.rename("q").await.unwrap();
    })
    .unwrap();
}
