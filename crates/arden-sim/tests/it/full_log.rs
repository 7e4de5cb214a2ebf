//! More waits for disks than the log can keep while the pool is in use: an opening says which disks to bring back,
//! and nothing is lost, also when power is lost meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::{attach_without, full, life_from};
use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, BlockDevice, LocalFuture, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, SpaceError};

/// Writes at once, all of them small enough for the log: the first of some blocks, the others of 16.
const WRITES: u64 = 12;
const BLOCKS: u64 = 16;
const BEGIN_NS: u64 = 60_000_000;

fn config() -> PoolConfig {
    PoolConfig { gather_bytes_max: 4 << 20, tick_ms: 1_000_000, busy_ms: 0, ..PoolConfig::default() }
}

/// One life of a process, cut off at `crash_ns`.
fn life(disks: &[SimDisk], crash_ns: u64, work: impl FnOnce(Rt) -> LocalFuture<()>) {
    life_from(3, disks, Some(crash_ns), work);
}

async fn open(rt: &Rt, disks: &[SimDisk], without: &[usize]) -> Result<Pool, SpaceError> {
    let devices = attach_without(rt, disks, without);
    Pool::open(rt, devices, None, OpenOptions { config: config(), discard: Vec::new() }).await
}

/// Disks of a pool with two spaces, as a loss of power leaves them while WRITES to the one of them are on their way.
struct Filled {
    disks: Vec<SimDisk>,
    /// Where that space lies: a mirror of two disks.
    pair: Vec<usize>,
    /// First block, blocks and content of each write that was acknowledged.
    acked: Vec<(u64, u64, u8)>,
}

impl Filled {
    /// `step` says when power is lost, and how long the first write is.
    fn new(step: u64) -> Filled {
        let disks: Vec<SimDisk> =
            (0..6).map(|i| SimDisk::new(&format!("d{i}"), 16 << 20, 40_000 + step * 10 + i)).collect();
        let (pair, acked) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
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
                let mut first = 0;
                for i in 0..WRITES {
                    let (a, done) = (a.clone(), done.clone());
                    let blocks = if i == 0 { 1 + step % BLOCKS } else { BLOCKS };
                    rt.spawn(async move {
                        let byte = 1 + i as u8;
                        a.write(first * BLOCK_BYTES, full(byte, blocks), true).await.unwrap();
                        done.borrow_mut().push((first, blocks, byte));
                    });
                    first += blocks;
                }
                rt.sleep_ns(1_000_000_000).await;
            })
        });
        Filled { disks, pair: pair.take(), acked: acked.take() }
    }

    /// With all disks, everything that was acknowledged is there.
    fn expect_all(&self, what: &str) {
        let (all, list, about) = (self.disks.clone(), self.acked.clone(), what.to_string());
        let done = Rc::new(Cell::new(false));
        let put = done.clone();
        life(&self.disks, 10_000_000_000, move |rt| {
            Box::pin(async move {
                let pool = open(&rt, &all, &[]).await.unwrap();
                let a = pool.space_named("a").unwrap();
                for (first, blocks, byte) in list {
                    let b = a.read(first * BLOCK_BYTES, (blocks * BLOCK_BYTES) as usize).await.unwrap();
                    assert!(
                        b.iter().all(|&x| x == byte),
                        "{about}: what was written from block {first} on is not there"
                    );
                }
                pool.close().await.unwrap();
                put.set(true);
            })
        });
        assert!(done.get(), "{what}: comes to its end");
    }
}

#[test]
fn a_pool_whose_log_has_no_room_for_what_waits_says_which_disks_to_bring_back() {
    let (mut opened, mut refused) = (0, 0);
    for step in (0..16u64).step_by(3) {
        let f = Filled::new(step);
        let said: Rc<RefCell<Option<Result<(), SpaceError>>>> = Rc::default();
        // The first opening may keep it; then the log fills with what the other space writes.
        for _ in 0..2 {
            let (all, without, told) = (f.disks.clone(), f.pair.clone(), said.clone());
            life(&f.disks, 10_000_000_000, move |rt| {
                Box::pin(async move {
                    let opened = open(&rt, &all, &without).await;
                    *told.borrow_mut() = Some(opened.as_ref().map(|_| ()).map_err(SpaceError::clone));
                    let Ok(pool) = opened else { return };
                    let b = pool.space_named("b").unwrap();
                    for i in 0..600u64 {
                        // Of all lengths: what does not fit before the log's end wastes more or less of it.
                        let blocks = 1 + (i * 5 + step) % 16;
                        if let Err(e) = b.write(i * 7 % 240 * BLOCK_BYTES, full(9, blocks), true).await {
                            assert_eq!(e, SpaceError::Offline);
                            break;
                        }
                    }
                })
            });
            match said.take() {
                Some(Ok(())) => opened += 1,
                Some(Err(SpaceError::Refused(text))) => {
                    let named = f.pair.iter().all(|d| text.contains(&format!("{d} (d{d})")));
                    assert!(text.contains("spaces a wait") && named, "{text}");
                    refused += 1;
                }
                other => panic!("step {step}: {other:?}"),
            }
        }
        f.expect_all(&format!("step {step}"));
    }
    assert!(opened > 0 && refused > 0, "{opened} opened, {refused} refused");
}

/// The oldest batch lies where the log begins anew, and what waits does not fit before its end: until a map names the new
/// log, the old one has to stay.
#[test]
fn an_opening_that_power_cuts_short_keeps_a_log_that_has_no_room_for_what_waits() {
    let mut refused = 0;
    for step in 0..12u64 {
        let f = Filled::new(step);
        let images: Vec<_> = f.disks.iter().map(SimDisk::image).collect();
        for crash_us in (500..6_000).step_by(250).chain([10_000_000]) {
            f.disks.iter().zip(&images).for_each(|(d, image)| d.put_image(image));
            let (all, without, told) = (f.disks.clone(), f.pair.clone(), Rc::new(Cell::new(0)));
            let count = told.clone();
            life(&f.disks, crash_us * 1000, move |rt| {
                Box::pin(async move {
                    if let Err(e) = open(&rt, &all, &without).await {
                        assert!(matches!(e, SpaceError::Refused(_)), "{e}");
                        count.set(1);
                    }
                })
            });
            refused += told.get();
            f.expect_all(&format!("step {step}, power lost after {crash_us} us"));
        }
    }
    assert!(refused > 0, "every opening had room for what waits");
}
