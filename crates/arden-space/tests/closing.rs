//! A pool that was closed writes nothing more: whoever opens the disks next would find it over what he wrote.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use arden_block::sim::SimDisk;
use arden_block::sync::join_all;
use arden_block::{BlockDevice, Buf, DeviceInfo, IoResult, LocalFuture, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space};

const BLOCK: usize = 4096;
const REGION: u64 = 256 << 10;
const BLOCKS: u64 = 24;

/// A disk that takes long for what it is given a second time.
struct Slow {
    disk: Rc<dyn BlockDevice>,
    rt: Rt,
    given: RefCell<HashSet<u64>>,
    under_way: Cell<u32>,
    begun: Cell<u64>,
}

struct Attached(Rc<Slow>);

impl Slow {
    fn attach(disk: &SimDisk, rt: &Rt) -> Rc<Slow> {
        let (given, under_way, begun) = Default::default();
        Rc::new(Slow { disk: disk.attach(rt), rt: rt.clone(), given, under_way, begun })
    }
}

impl BlockDevice for Attached {
    fn info(&self) -> &DeviceInfo {
        self.0.disk.info()
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        self.0.disk.read(offset, len)
    }
    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        let me = self.0.clone();
        let again = data.len() == BLOCK && data.iter().all(|b| *b == 7) && !me.given.borrow_mut().insert(offset);
        me.under_way.set(me.under_way.get() + 1);
        me.begun.set(me.begun.get() + 1);
        Box::pin(async move {
            me.rt.sleep_ns(if again { 50_000_000 } else { 300_000 }).await;
            let result = me.disk.write(offset, data, durable).await;
            me.under_way.set(me.under_way.get() - 1);
            result
        })
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.0.disk.write_zeroes(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.0.disk.discard(offset, len)
    }
    fn flush(&self) -> LocalFuture<IoResult<()>> {
        let me = self.0.clone();
        Box::pin(async move {
            me.rt.sleep_ns(300_000).await;
            me.disk.flush().await
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    Move,
    Resync,
}

/// The pool on disks that are attached to a runtime, and writes to it that rounds put in their place.
struct Open {
    rt: Rt,
    disks: Vec<Rc<Slow>>,
    pool: Pool,
    space: Space,
}

impl Open {
    async fn on(rt: Rt, disks: &[SimDisk], made: Option<Layout>) -> Open {
        let disks: Vec<Rc<Slow>> = disks.iter().map(|d| Slow::attach(d, &rt)).collect();
        let devices = disks.iter().map(|d| Rc::new(Attached(d.clone())) as Rc<dyn BlockDevice>).collect();
        let config = PoolConfig { tick_ms: 1, gather_bytes_max: 256 << 10, ..PoolConfig::default() };
        let pool = match made {
            Some(layout) => {
                let options = CreateOptions { slab_bytes: Some(1 << 20), config };
                let pool = Pool::create(&rt, "tank", devices, Vec::new(), options).await.expect("a pool");
                let made = pool.create_space("v", layout, None, 64 << 10, 8 << 20, Provision::Fixed).await;
                made.map(|_| pool).expect("a space")
            }
            None => {
                let options = OpenOptions { config, ..OpenOptions::default() };
                Pool::open(&rt, devices, None, options).await.expect("the pool")
            }
        };
        let space = pool.space_named("v").expect("the space");
        Open { rt, disks, pool, space }
    }

    async fn write(&self) {
        let write = |i| -> LocalFuture<()> {
            let (space, mut b) = (self.space.clone(), Buf::new(BLOCK));
            b.fill(7);
            Box::pin(async move { space.write(i * REGION, b.share(), true).await.expect("durable") })
        };
        join_all((0..BLOCKS).map(write).collect::<Vec<_>>()).await;
    }

    fn begun(&self) -> u64 {
        self.disks.iter().map(|d| d.begun.get()).sum()
    }
}

fn closed(step: u64, layout: Layout, beside: Beside) {
    let disks: Vec<SimDisk> = (0..5).map(|i| SimDisk::new(&format!("d{i}"), 64 << 20, step * 5 + i)).collect();
    if beside == Beside::Resync {
        let (rt, on) = (Rt::virtual_clock(step), disks.clone());
        let rt2 = rt.clone();
        rt.block_on(async move { Open::on(rt2, &on, Some(layout)).await.write().await }).expect("it came to its end");
        rt.shutdown();
        disks.iter().for_each(SimDisk::crash);
    }
    let rt = Rt::virtual_clock(step);
    let rt2 = rt.clone();
    let work = async move {
        let is_away = beside == Beside::Resync;
        let mut open = Open::on(rt2, &disks[is_away.into()..], (!is_away).then_some(layout)).await;
        open.write().await;
        let pool = open.pool.clone();
        match beside {
            Beside::Nothing => {}
            // They end when the pool is closed.
            Beside::Move => {
                open.pool.retire(0).await.expect("it is to go");
                open.rt.spawn(async move { drop(pool.repair().await) });
            }
            Beside::Resync => {
                let returned = Slow::attach(&disks[0], &open.rt);
                pool.return_disk(Rc::new(Attached(returned.clone()))).await.expect("it is back");
                open.disks.push(returned);
                open.rt.spawn(async move { drop(pool.resync().await) });
            }
        }
        open.rt.sleep_ns(step * 100_000).await;
        open.pool.close().await.expect("closed");
        let under_way: u32 = open.disks.iter().map(|d| d.under_way.get()).sum();
        let what = format!("closed after {step} times 100 us, {layout:?}, beside {beside:?}");
        assert_eq!(under_way, 0, "{what}");
        let before = open.begun();
        open.rt.sleep_ns(1_000_000_000).await;
        assert_eq!(open.begun(), before, "{what}");
    };
    rt.block_on(work).expect("it came to its end");
    rt.shutdown();
}

/// Rounds put in their place what the log holds, while the pool is closed.
#[test]
fn nothing_is_under_way_after_the_close() {
    for step in 0..100 {
        closed(step, Layout::Mirror2, Beside::Nothing);
        closed(step, Layout::Parity, Beside::Nothing);
    }
}

/// A region or stripe that waits for its lock while the pool is closed is not copied after it.
#[test]
fn upkeep_ends_with_the_close() {
    for step in 0..100 {
        for layout in [Layout::Mirror2, Layout::Parity] {
            closed(step, layout, Beside::Move);
            closed(step, layout, Beside::Resync);
        }
    }
}
