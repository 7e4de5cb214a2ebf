//! Commands that are stuck while their disk goes on with others, and answers that come after a disk was given up.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{config, create, disks, expect, full, life, mirror_with_newer_caches, slow_down};
use arden_block::BLOCK_BYTES;
use arden_space::{Layout, PoolConfig};

#[test]
fn a_disk_returns_only_when_the_command_that_was_stuck_has_landed() {
    let d = disks(2, 1);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let config = PoolConfig { io_timeout_ms: 10, ..config() };
        let (pool, space) = create(&rt, &all, Layout::Mirror2, config).await;
        space.write(0, full(1, 32), true).await.unwrap();
        pool.flush().await.unwrap();
        // A write with nothing before it that could be stuck in its stead.
        space.write(0, full(2, 32), false).await.unwrap();
        all[0].stick_next(300_000_000);
        space.write(0, full(3, 32), false).await.unwrap();
        assert!(all[0].is_failing() && pool.out_of_date().contains(&0), "given up while it is stuck");
        space.write(0, full(4, 32), true).await.unwrap();
        let mut refused = 0;
        while pool.return_disk(all[0].attach(&rt)).await.is_err() {
            refused += 1;
            rt.sleep_ns(5_000_000).await;
        }
        pool.resync().await.unwrap();
        assert!(pool.out_of_date().is_empty());
        rt.sleep_ns(500_000_000).await;
        pool.report_failure(1).await.unwrap();
        expect(&space, 4, "on the disk whose command was stuck").await;
        assert!(refused > 0);
    })
    .unwrap();
}

/// The disk lost its cache, and with it what is asked for; the command goes on and reads what is left.
#[test]
fn a_late_answer_of_a_disk_that_lost_its_cache_is_not_believed() {
    let d = disks(2, 2);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = mirror_with_newer_caches(&rt, &all, config()).await;
        let first = usize::from(pool.space_map(space.id()).unwrap()[0].1[0].disk);
        slow_down(&all[first], 50_000_000);
        let read = Rc::new(RefCell::new(None));
        let (told, reader) = (read.clone(), space.clone());
        rt.spawn(async move {
            let b = reader.read(0, 32 * BLOCK_BYTES as usize).await;
            *told.borrow_mut() = Some(b.map(|b| b.iter().all(|&x| x == 2)));
        });
        rt.sleep_ns(1_000_000).await;
        assert!(read.borrow().is_none());
        all[first].lose_cache();
        pool.report_failure(first as u16).await.unwrap();
        while read.borrow().is_none() {
            rt.sleep_ns(1_000_000).await;
        }
        assert_eq!(read.take(), Some(Ok(true)));
    })
    .unwrap();
}
