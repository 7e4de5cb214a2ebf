//! A pool that was closed writes nothing more: whoever opens the disks next would find it over what he wrote.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use arden_block::sim::SimDisk;
use arden_block::sync::join_all;
use arden_block::{BlockDevice, Buf, DeviceInfo, IoResult, LocalFuture, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision};

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

/// Rounds put in their place what the log holds, while the pool is closed.
#[test]
fn nothing_is_under_way_after_the_close() {
    for (step, layout) in (0..100).flat_map(|step| [(step, Layout::Mirror2), (step, Layout::Parity)]) {
        let rt = Rt::virtual_clock(step);
        let rt2 = rt.clone();
        let work = async move {
            let disk = |i: u64| {
                let disk = SimDisk::new(&format!("d{i}"), 64 << 20, step * 4 + i).attach(&rt2);
                let (given, under_way, begun) = Default::default();
                Rc::new(Slow { disk, rt: rt2.clone(), given, under_way, begun })
            };
            let disks: Vec<Rc<Slow>> = (0..4).map(disk).collect();
            let config = PoolConfig { tick_ms: 1, gather_bytes_max: 256 << 10, ..PoolConfig::default() };
            let options = CreateOptions { slab_bytes: Some(1 << 20), config };
            let devices = disks.iter().map(|d| Rc::new(Attached(d.clone())) as Rc<dyn BlockDevice>).collect();
            let pool = Pool::create(&rt2, "tank", devices, Vec::new(), options).await.expect("a pool");
            let made = pool.create_space("v", layout, None, 64 << 10, 8 << 20, Provision::Fixed).await;
            let space = made.expect("a space");
            let write = |i| -> LocalFuture<()> {
                let (space, mut b) = (space.clone(), Buf::new(BLOCK));
                b.fill(7);
                Box::pin(async move { space.write(i * REGION, b.share(), true).await.expect("durable") })
            };
            join_all((0..BLOCKS).map(write).collect::<Vec<_>>()).await;
            rt2.sleep_ns(step * 100_000).await;
            pool.close().await.expect("closed");
            let under_way: u32 = disks.iter().map(|d| d.under_way.get()).sum();
            assert_eq!(under_way, 0, "closed after {step} times 100 us, {layout:?}");
            let begun = || disks.iter().map(|d| d.begun.get()).sum::<u64>();
            let before = begun();
            rt2.sleep_ns(1_000_000_000).await;
            assert_eq!(begun(), before, "closed after {step} times 100 us, {layout:?}");
        };
        rt.block_on(work).expect("it came to its end");
        rt.shutdown();
    }
}
