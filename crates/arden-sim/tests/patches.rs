//! Stripes changed in place under the log: power is lost at many moments of it, each time
//! together with a disk, and every block reads as it was acknowledged.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, LocalFuture, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space};

const BLOCKS: u64 = 96;
const INTERLEAVE: u64 = 8192;

fn config() -> PoolConfig {
    PoolConfig { gather_bytes_max: 256 << 10, tick_ms: 2, busy_ms: 0, ..PoolConfig::default() }
}

fn block(byte: u8) -> SharedBuf {
    let mut b = Buf::new(BLOCK_BYTES as usize);
    b.fill(byte);
    b.share()
}

fn attach(rt: &Rt, disks: &[SimDisk], without: Option<usize>) -> Vec<Rc<dyn BlockDevice>> {
    disks.iter().enumerate().filter(|(i, _)| Some(*i) != without).map(|(_, d)| d.attach(rt)).collect()
}

async fn open(rt: &Rt, disks: &[SimDisk], without: Option<usize>) -> (Pool, Space) {
    let options = OpenOptions { config: config(), discard: Vec::new() };
    let pool = Pool::open(rt, attach(rt, disks, without), None, options).await.unwrap();
    let space = pool.space_named("s").unwrap();
    (pool, space)
}

/// One life of a process, cut off at `crash_ns`.
fn life(disks: &[SimDisk], crash_ns: u64, work: impl FnOnce(Rt) -> LocalFuture<()>) {
    let rt = Rt::virtual_clock(3);
    let future = work(rt.clone());
    rt.spawn(future);
    rt.run_until_ns(crash_ns);
    rt.shutdown();
    disks.iter().for_each(SimDisk::crash);
}

/// What each block holds, and what a write that was not answered may have made of it.
type Acked = Rc<RefCell<Vec<(u8, u8)>>>;

async fn check(space: &Space, acked: &Acked, what: &str) {
    for at in 0..BLOCKS {
        let b = space.read(at * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
        let (held, asked) = acked.borrow()[at as usize];
        let whole = b.iter().all(|&x| x == b[0]) && (b[0] == held || b[0] == asked);
        assert!(whole, "{what}: block {at} holds {}, {held} was acknowledged, {asked} asked", b[0]);
        acked.borrow_mut()[at as usize] = (b[0], b[0]);
    }
}

fn crash_everywhere(layout: Layout, disks: usize) -> u64 {
    let patched = Rc::new(Cell::new(0));
    for step in 0..48u64 {
        let d: Vec<SimDisk> =
            (0..disks).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, step * 10 + i as u64)).collect();
        let acked: Acked = Rc::new(RefCell::new(vec![(1, 1); BLOCKS as usize]));
        let all = d.clone();
        life(&d, 1_000_000_000, move |rt| {
            Box::pin(async move {
                let options = CreateOptions { slab_bytes: Some(256 << 10), config: config() };
                let pool = Pool::create(&rt, "p", attach(&rt, &all, None), Vec::new(), options).await.unwrap();
                let size = BLOCKS * BLOCK_BYTES;
                let space =
                    pool.create_space("s", layout, Some(all.len()), INTERLEAVE, size, Provision::Thin).await.unwrap();
                let mut whole = Buf::new(size as usize);
                whole.fill(1);
                space.write(0, whole.share(), false).await.unwrap();
                pool.close().await.unwrap();
            })
        });
        let (all, list, sum) = (d.clone(), acked.clone(), patched.clone());
        life(&d, 4_000_000 + step * 331_000, move |rt| {
            Box::pin(async move {
                let (pool, space) = open(&rt, &all, None).await;
                for i in 0..400u64 {
                    let at = i * 7 % BLOCKS;
                    let byte = 2 + (i / BLOCKS) as u8;
                    list.borrow_mut()[at as usize].1 = byte;
                    space.write(at * BLOCK_BYTES, block(byte), true).await.unwrap();
                    list.borrow_mut()[at as usize].0 = byte;
                    sum.set(sum.get().max(pool.status().stripes_patched));
                }
            })
        });
        // With each disk missing in turn, and once more with power lost in the middle of it.
        let away = step as usize % disks;
        let again = step % 2 == 0;
        if again {
            let all = d.clone();
            life(&d, 1_500_000 + step * 61_000, move |rt| {
                Box::pin(async move {
                    let _open = open(&rt, &all, Some(away)).await;
                    rt.sleep_ns(1_000_000_000).await;
                })
            });
        }
        let (all, list, done) = (d.clone(), acked.clone(), Rc::new(Cell::new(false)));
        let told = done.clone();
        life(&d, 2_000_000_000, move |rt| {
            Box::pin(async move {
                let (pool, space) = open(&rt, &all, Some(away)).await;
                check(&space, &list, &format!("step {step} without disk {away}")).await;
                pool.return_disk(all[away].attach(&rt)).await.unwrap();
                pool.resync().await.unwrap();
                let scrub = pool.scrub().await.unwrap();
                assert_eq!((scrub.undecided, scrub.lost), (0, 0), "step {step}: parity fits its data");
                check(&space, &list, &format!("step {step}, all back")).await;
                told.set(true);
            })
        });
        assert!(done.get(), "step {step} came to its end");
    }
    patched.get()
}

#[test]
fn a_stripe_of_parity_changed_in_place_survives_a_crash_at_any_step_with_a_lost_disk() {
    assert!(crash_everywhere(Layout::Parity, 4) > 10, "stripes were changed in place");
}

#[test]
fn a_stripe_of_dual_parity_changed_in_place_survives_a_crash_at_any_step_with_a_lost_disk() {
    assert!(crash_everywhere(Layout::DualParity, 5) > 10, "stripes were changed in place");
}
