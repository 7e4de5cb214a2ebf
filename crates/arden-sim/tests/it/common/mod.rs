//! What the scenarios share: pools of a few small disks, contents, and lives of a process.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::sim::{Faults, SimDisk};
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, SpaceResult};

thread_local! {
    static LIVES: Cell<u64> = const { Cell::new(11) };
}

pub fn full(byte: u8, blocks: u64) -> SharedBuf {
    let mut b = Buf::new((blocks * BLOCK_BYTES) as usize);
    b.fill(byte);
    b.share()
}

pub fn block(byte: u8) -> SharedBuf {
    full(byte, 1)
}

pub fn disks(n: u64, seed: u64) -> Vec<SimDisk> {
    (0..n).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, seed * 100 + i)).collect()
}

pub fn config() -> PoolConfig {
    PoolConfig { tick_ms: 5, busy_ms: 0, grace_ms: 1_000_000, io_timeout_ms: 10_000, ..PoolConfig::default() }
}

/// One life of a process: `work` runs to its end, or until `crash_ns`; then power is lost.
pub fn life<T: 'static, F: Future<Output = T> + 'static>(
    disks: &[SimDisk],
    crash_ns: Option<u64>,
    work: impl FnOnce(Rt) -> F,
) -> Option<T> {
    // Each life draws its own random numbers: two openings with the same would be one.
    let number = LIVES.with(|l| l.replace(l.get() + 1));
    let (answer, _) = life_from(number, disks, crash_ns, work);
    disks.iter().for_each(SimDisk::end_of_life);
    answer
}

/// As [`life`], with the random numbers of `seed`. The answer of `work`, and how long the life was in nanoseconds.
pub fn life_from<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    disks: &[SimDisk],
    crash_ns: Option<u64>,
    work: impl FnOnce(Rt) -> F,
) -> (Option<T>, u64) {
    let rt = Rt::virtual_clock(seed);
    let out: Rc<RefCell<Option<T>>> = Rc::default();
    let (put, future) = (out.clone(), work(rt.clone()));
    rt.spawn(async move {
        let v = future.await;
        *put.borrow_mut() = Some(v);
    });
    match crash_ns {
        Some(at) => rt.run_until_ns(at),
        None => (1..100_000u64).take_while(|_| out.borrow().is_none()).for_each(|ms| rt.run_until_ns(ms * 1_000_000)),
    }
    let took_ns = rt.now_ns();
    rt.shutdown();
    disks.iter().for_each(SimDisk::crash);
    (out.take(), took_ns)
}

pub fn attach(rt: &Rt, disks: &[SimDisk]) -> Vec<Rc<dyn BlockDevice>> {
    attach_without(rt, disks, &[])
}

/// All disks but those at the places `without`.
pub fn attach_without(rt: &Rt, disks: &[SimDisk], without: &[usize]) -> Vec<Rc<dyn BlockDevice>> {
    disks.iter().enumerate().filter(|(i, _)| !without.contains(i)).map(|(_, d)| d.attach(rt)).collect()
}

pub async fn create(rt: &Rt, disks: &[SimDisk], layout: Layout, config: PoolConfig) -> (Pool, Space) {
    let options = CreateOptions { slab_bytes: Some(128 << 10), config };
    let pool = Pool::create(rt, "p", attach(rt, disks), Vec::new(), options).await.unwrap();
    let space = pool.create_space("s", layout, Some(1), 4096, 32 * BLOCK_BYTES, Provision::Thin).await.unwrap();
    (pool, space)
}

pub async fn open(rt: &Rt, disks: &[SimDisk], discard: Vec<u128>) -> SpaceResult<Pool> {
    Pool::open(rt, attach(rt, disks), None, OpenOptions { config: config(), discard }).await
}

pub async fn expect(space: &Space, byte: u8, what: &str) {
    let b = space.read(0, 32 * BLOCK_BYTES as usize).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(b.iter().all(|&x| x == byte), "{what}: not {byte} everywhere");
}

/// A mirror of 32 blocks that are 1 on stable storage, and 2 in the caches of both disks.
pub async fn mirror_with_newer_caches(rt: &Rt, disks: &[SimDisk], config: PoolConfig) -> (Pool, Space) {
    let (pool, space) = create(rt, disks, Layout::Mirror2, config).await;
    space.write(0, full(1, 32), true).await.unwrap();
    pool.flush().await.unwrap();
    for i in 0..32 {
        space.write(i * BLOCK_BYTES, full(2, 1), false).await.unwrap();
    }
    (pool, space)
}

/// Each operation of the disk takes so long from now on.
pub fn slow_down(disk: &SimDisk, ns: u64) {
    disk.set_faults(Faults { latency_min_ns: ns, latency_max_ns: ns, ..Faults::default() });
}

/// Flushes a mirror: the flush of the disk with the first copy has failed when this returns, and that of the other one takes some time
/// yet. The place of the first disk, and whether the flush of the space has ended.
pub async fn begin_flush_that_fails_on_one(
    rt: &Rt,
    pool: &Pool,
    space: &Space,
    disks: &[SimDisk],
) -> (usize, Rc<Cell<bool>>) {
    let columns = pool.space_map(space.id()).unwrap()[0].1.clone();
    let (first, other) = (usize::from(columns[0].disk), usize::from(columns[1].disk));
    disks[first].fail_next_flush();
    slow_down(&disks[other], 50_000_000);
    let flushed = Rc::new(Cell::new(false));
    let (told, flushing) = (flushed.clone(), space.clone());
    rt.spawn(async move {
        flushing.flush().await.unwrap();
        told.set(true);
    });
    rt.sleep_ns(5_000_000).await;
    let one_failed = disks[first].counters().cached_lost > 0 && !flushed.get();
    assert!(one_failed, "one has failed, the other is still at it");
    (first, flushed)
}
