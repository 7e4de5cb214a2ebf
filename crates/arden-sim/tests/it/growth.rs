//! A thin space takes many groups at once: how often the pool's map is written for them.

use std::rc::Rc;

use arden_block::sim::SimDisk;
use arden_block::sync::join_all;
use arden_block::{BlockDevice, Buf, LocalFuture, Rt};
use arden_space::{CreateOptions, Layout, Pool, Provision};

const MIB: u64 = 1 << 20;
const WRITTEN: u64 = 64 * MIB;

/// The sequence of the newest map, from the labels (docs/on-disk-space.md).
fn map_seq(disk: &SimDisk) -> u64 {
    let seq = |at: u64| disk.peek(at, 4096)[64..72].try_into().map_or(0, u64::from_le_bytes);
    seq(0).max(seq(64 << 10))
}

/// Writings of the map for the first 64 MiB of a space of 32 groups, in writes of `bytes`, all at once.
fn commits(bytes: u64) -> u64 {
    let rt = Rt::virtual_clock(1);
    let disks: Vec<SimDisk> = (0..4).map(|i| SimDisk::new(&format!("d{i}"), 96 * MIB, i)).collect();
    let (all, clock) = (disks.clone(), rt.clone());
    rt.block_on(async move {
        let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&clock)).collect();
        let options = CreateOptions { slab_bytes: Some(MIB), ..CreateOptions::default() };
        let pool = Pool::create(&clock, "p", devices, Vec::new(), options).await.unwrap();
        let space = pool.create_space("s", Layout::Mirror2, Some(2), 64 << 10, WRITTEN, Provision::Thin).await.unwrap();
        let before = map_seq(&all[0]);
        let write = |i: u64| -> LocalFuture<()> {
            let space = space.clone();
            Box::pin(async move { space.write(i * bytes, Buf::zeroed(bytes as usize).share(), false).await.unwrap() })
        };
        join_all((0..WRITTEN / bytes).map(write).collect()).await;
        let groups = pool.status().spaces[0].groups_allocated as u64;
        assert!(groups >= 32 && pool.space_map(space.id()).unwrap().len() as u64 == groups);
        map_seq(&all[0]) - before
    })
    .unwrap()
}

#[test]
fn groups_that_are_taken_together_share_a_writing_of_the_map() {
    let (one, many) = (commits(WRITTEN), commits(MIB));
    println!("{one} writings of the map for one write of 64 MiB, {many} for 64 writes at once");
    assert_eq!(one, 1, "writings of the map for one write");
    assert!(many <= 16, "{many} writings of the map for 64 writes at once to 32 groups");
}
