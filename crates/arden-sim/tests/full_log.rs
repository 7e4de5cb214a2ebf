//! More waits for disks than the log can keep while the pool is in use: an opening says which disks to bring back,
//! and nothing is lost.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, LocalFuture, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, SpaceError};
use common::{attach_without, life_from};

/// Writes of 64 KiB at once, all of them small enough for the log.
const WRITES: u64 = 12;
const BYTES: usize = 64 << 10;
const BEGIN_NS: u64 = 60_000_000;

fn config() -> PoolConfig {
    PoolConfig { gather_bytes_max: 4 << 20, tick_ms: 1_000_000, busy_ms: 0, ..PoolConfig::default() }
}

fn full(byte: u8, len: usize) -> SharedBuf {
    let mut b = Buf::new(len);
    b.fill(byte);
    b.share()
}

/// One life of a process, cut off at `crash_ns`.
fn life(disks: &[SimDisk], crash_ns: u64, work: impl FnOnce(Rt) -> LocalFuture<()>) {
    life_from(3, disks, Some(crash_ns), work);
}

async fn open(rt: &Rt, disks: &[SimDisk], without: &[usize]) -> Result<Pool, SpaceError> {
    let devices = attach_without(rt, disks, without);
    Pool::open(rt, devices, None, OpenOptions { config: config(), discard: Vec::new() }).await
}

#[test]
fn a_pool_whose_log_has_no_room_for_what_waits_says_which_disks_to_bring_back() {
    let (mut opened, mut refused) = (0, 0);
    for step in (0..16u64).step_by(3) {
        let disks: Vec<SimDisk> =
            (0..6).map(|i| SimDisk::new(&format!("d{i}"), 16 << 20, 40_000 + step * 10 + i)).collect();
        let (pair, acked) = (Rc::new(RefCell::new(Vec::<usize>::new())), Rc::new(RefCell::new(Vec::<u64>::new())));
        let (all, lies, done) = (disks.clone(), pair.clone(), acked.clone());
        life(&disks, BEGIN_NS + 200_000 + step * 100_000, move |rt| {
            Box::pin(async move {
                let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
                let options = CreateOptions { slab_bytes: Some(1 << 20), config: config() };
                let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await.unwrap();
                let a =
                    pool.create_space("a", Layout::Mirror2, Some(1), 65536, 1 << 20, Provision::Fixed).await.unwrap();
                pool.create_space("b", Layout::DualParity, Some(4), 65536, 1 << 20, Provision::Fixed).await.unwrap();
                *lies.borrow_mut() = pool.space_map(a.id()).unwrap()[0].1.iter().map(|c| usize::from(c.disk)).collect();
                rt.sleep_until_ns(BEGIN_NS).await;
                for i in 0..WRITES {
                    let (a, done) = (a.clone(), done.clone());
                    rt.spawn(async move {
                        a.write(i * BYTES as u64, full(1 + i as u8, BYTES), true).await.unwrap();
                        done.borrow_mut().push(i);
                    });
                }
                rt.sleep_ns(1_000_000_000).await;
            })
        });
        let away = pair.borrow().clone();
        let said: Rc<RefCell<Option<Result<(), SpaceError>>>> = Rc::default();
        // The first opening may keep it; then the log fills with what the other space writes.
        for _ in 0..2 {
            let (all, without, told) = (disks.clone(), away.clone(), said.clone());
            life(&disks, 10_000_000_000, move |rt| {
                Box::pin(async move {
                    let opened = open(&rt, &all, &without).await;
                    *told.borrow_mut() = Some(opened.as_ref().map(|_| ()).map_err(SpaceError::clone));
                    let Ok(pool) = opened else { return };
                    let b = pool.space_named("b").unwrap();
                    for i in 0..600u64 {
                        // Of all lengths: what does not fit before the log's end wastes more or less of it.
                        let blocks = 1 + (i * 5 + step) % 16;
                        let data = full(9, (blocks * BLOCK_BYTES) as usize);
                        if let Err(e) = b.write(i * 7 % 240 * BLOCK_BYTES, data, true).await {
                            assert_eq!(e, SpaceError::Offline);
                            break;
                        }
                    }
                })
            });
            match said.take() {
                Some(Ok(())) => opened += 1,
                Some(Err(SpaceError::Refused(text))) => {
                    let named = away.iter().all(|d| text.contains(&format!("{d} (d{d})")));
                    assert!(text.contains("spaces a wait") && named, "{text}");
                    refused += 1;
                }
                other => panic!("step {step}: {other:?}"),
            }
        }
        let (all, told) = (disks.clone(), said.clone());
        life(&disks, 10_000_000_000, move |rt| {
            Box::pin(async move {
                let pool = open(&rt, &all, &[]).await.unwrap();
                let a = pool.space_named("a").unwrap();
                let list = acked.borrow().clone();
                for i in list {
                    let b = a.read(i * BYTES as u64, BYTES).await.unwrap();
                    assert!(b.iter().all(|&x| x == 1 + i as u8), "step {step}: write {i} is not there");
                }
                pool.close().await.unwrap();
                *told.borrow_mut() = Some(Ok(()));
            })
        });
        assert_eq!(said.take(), Some(Ok(())), "step {step} came to its end");
    }
    assert!(opened > 0 && refused > 0, "{opened} opened, {refused} refused");
}
