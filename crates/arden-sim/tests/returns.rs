//! What a disk that was away gets when it returns, and from where.

use std::rc::Rc;

use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision, Verifier};

const BLOCKS: u64 = 40;

fn block(byte: u8) -> SharedBuf {
    let mut b = Buf::new(BLOCK_BYTES as usize);
    b.fill(byte);
    b.share()
}

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
