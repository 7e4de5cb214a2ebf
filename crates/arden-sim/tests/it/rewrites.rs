//! Sectors that cannot be read are written anew; what lies beside them, or on another disk, and is right stays, though
//! another copy of it went bad without anybody noticing.

use std::rc::Rc;

use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, Verifier};

const BLOCK: usize = BLOCK_BYTES as usize;
/// No two of them make a third by exclusive or.
const CONTENT: [u8; 4] = [0x11, 0x12, 0x24, 0x28];

/// Where a block full of `byte` lies: the last place, the log comes before.
fn place(disk: &SimDisk, byte: u8) -> Option<u64> {
    let mut blocks = (0..disk.info().size_bytes / BLOCK_BYTES).rev().map(|b| b * BLOCK_BYTES);
    blocks.find(|&at| disk.peek(at, BLOCK).iter().all(|&x| x == byte))
}

/// A space with four blocks, and its disks in the order of its columns.
async fn space_of(rt: &Rt, layout: Layout, columns: usize, disks: usize) -> (Pool, Space, Vec<SimDisk>) {
    let all: Vec<SimDisk> = (0..disks).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 300 + i as u64)).collect();
    let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(rt)).collect();
    let config = PoolConfig { tick_ms: 1_000_000, busy_ms: 0, ..PoolConfig::default() };
    let options = CreateOptions { slab_bytes: Some(128 << 10), config: config.clone() };
    let pool = Pool::create(rt, "p", devices, Vec::new(), options).await.unwrap();
    let space = pool.create_space("s", layout, Some(columns), 8192, 4 * BLOCK_BYTES, Provision::Thin).await.unwrap();
    let mut b = Buf::new(4 * BLOCK);
    for (block, byte) in b.chunks_mut(BLOCK).zip(CONTENT) {
        block.fill(byte);
    }
    space.write(0, b.share(), false).await.unwrap();
    pool.close().await.unwrap();
    // All of it is in its place now, and nothing in memory.
    let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(rt)).collect();
    let pool = Pool::open(rt, devices, None, OpenOptions { config, discard: Vec::new() }).await.unwrap();
    let space = pool.space_named("s").unwrap();
    let on = pool.space_map(space.id()).unwrap()[0].1.iter().map(|c| all[usize::from(c.disk)].clone()).collect();
    (pool, space, on)
}

fn verifier() -> Verifier {
    Rc::new(|at, b: &[u8]| b.iter().all(|&x| x == CONTENT[(at / BLOCK_BYTES) as usize]))
}

#[test]
fn a_copy_that_went_bad_does_not_go_over_a_good_one_when_a_third_cannot_be_read() {
    for verifying in [true, false] {
        let rt = Rt::virtual_clock(5);
        let clock = rt.clone();
        rt.block_on(async move {
            let (_pool, space, on) = space_of(&clock, Layout::Mirror3, 1, 5).await;
            if verifying {
                space.begin_verifying();
            }
            on[0].break_block(place(&on[0], CONTENT[1]).unwrap());
            on[1].rot(place(&on[1], CONTENT[1]).unwrap());
            if !verifying {
                space.read(0, 4 * BLOCK).await.unwrap();
            }
            assert!(place(&on[2], CONTENT[1]).is_some(), "the good copy is as it was");
            let b = space.read_verified(0, 4 * BLOCK, verifier()).await.unwrap();
            assert!(b.chunks(BLOCK).zip(CONTENT).all(|(b, byte)| b.iter().all(|&x| x == byte)));
            for d in on.iter().filter(|_| verifying) {
                assert!(CONTENT.iter().all(|&byte| place(d, byte).is_some()), "every copy is healed");
            }
        })
        .unwrap();
    }
}

#[test]
fn a_sector_that_cannot_be_read_is_healed_by_a_verified_read_that_passed() {
    let rt = Rt::virtual_clock(5);
    let clock = rt.clone();
    rt.block_on(async move {
        let (_pool, space, on) = space_of(&clock, Layout::Mirror2, 1, 3).await;
        space.begin_verifying();
        let bad = place(&on[0], CONTENT[2]).unwrap();
        on[0].break_block(bad);
        space.read_verified(0, 4 * BLOCK, verifier()).await.unwrap();
        let again = on[0].attach(&clock).read(bad, BLOCK).await;
        assert!(again.is_ok_and(|b| b.iter().all(|&x| x == CONTENT[2])), "the disk can read it again");
    })
    .unwrap();
}

/// A read meets sectors of one disk that cannot be read, and asks the others. Until one of them leaves, without an answer, these sectors can
/// be read again.
#[test]
fn sectors_that_can_be_read_again_are_asked_again_when_another_disk_leaves() {
    for (layout, columns, disks) in [(Layout::Mirror2, 1, 2), (Layout::Parity, 3, 3)] {
        let rt = Rt::virtual_clock(5);
        let clock = rt.clone();
        rt.block_on(async move {
            let (_pool, space, on) = space_of(&clock, layout, columns, disks).await;
            let first = on.iter().find(|d| place(d, CONTENT[0]).is_some()).unwrap().clone();
            let others: Vec<SimDisk> = on.into_iter().filter(|d| d.info().name != first.info().name).collect();
            first.break_block(place(&first, CONTENT[0]).unwrap());
            others.iter().for_each(SimDisk::hang);
            let reading = clock.spawn_value(async move { space.read(0, BLOCK).await });
            clock.sleep_ns(10_000_000).await;
            first.mend_blocks();
            others[0].kill();
            others.iter().for_each(SimDisk::resume);
            let b = reading.await.unwrap_or_else(|e| panic!("{layout:?}: {e}"));
            assert!(b.iter().all(|&x| x == CONTENT[0]), "{layout:?}");
        })
        .unwrap();
    }
}

/// A block of the first unit or copy cannot be read, and the next one of the other disk is wrong: the first has it right.
#[test]
fn what_lies_beside_a_sector_that_cannot_be_read_is_left_alone() {
    for (layout, columns, disks) in [(Layout::Mirror2, 1, 3), (Layout::Parity, 3, 4), (Layout::DualParity, 4, 5)] {
        for scrub in [false, true] {
            let rt = Rt::virtual_clock(5);
            let clock = rt.clone();
            rt.block_on(async move {
                let what = format!("{layout:?}, scrub {scrub}");
                let (pool, space, on) = space_of(&clock, layout, columns, disks).await;
                let parity = layout != Layout::Mirror2;
                // Where the unit with the first two blocks lies, and another one of the same rows.
                let first = on.iter().find(|d| place(d, CONTENT[0]).is_some()).unwrap().clone();
                let second = CONTENT[if parity { 3 } else { 1 }];
                let other = on.iter().rfind(|d| place(d, second).is_some()).unwrap().clone();
                let bad = place(&first, CONTENT[0]).unwrap();
                first.break_block(bad);
                other.rot(place(&other, second).unwrap());
                if scrub {
                    let report = pool.scrub().await.unwrap();
                    assert!(report.healed > 0 && report.lost == 0, "{what}: {report:?}");
                    assert_eq!(report.undecided, u64::from(layout != Layout::DualParity), "{what}: {report:?}");
                } else {
                    let b = space.read(0, 2 * BLOCK).await.unwrap();
                    assert!(b[..BLOCK].iter().all(|&x| x == CONTENT[0]), "{what}");
                }
                let again = first.attach(&clock).read(bad, BLOCK).await;
                assert!(again.is_ok_and(|b| b.iter().all(|&x| x == CONTENT[0])), "{what}: written anew");
                assert!(place(&first, CONTENT[1]).is_some(), "{what}: the block beside it is as it was");
            })
            .unwrap();
        }
    }
}
