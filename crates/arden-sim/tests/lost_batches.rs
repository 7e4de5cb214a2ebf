//! A batch of the log fails on all of its disks and is there all the same, as after an answer that was lost. Whatever length the next
//! one has, and wherever it goes, it is what an opening reads.

mod common;

use std::cell::Cell;
use std::rc::Rc;

use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, Pool, Provision, Space};
use common::{config, disks, full, life, open};

/// Where these small disks have their log.
const LOG: std::ops::Range<u64> = 256 << 10..(256 << 10) + (1 << 20);
/// Of the batch that fails, of the next, and of all others.
const SHORT: u64 = 1;
const LONG: u64 = 12;

/// Does all that it is asked to, and says of writes to the log that they failed while that is set.
struct Deaf {
    inner: Rc<dyn BlockDevice>,
    fails: Rc<Cell<bool>>,
}

impl BlockDevice for Deaf {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        self.inner.read(offset, len)
    }
    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        let (done, fails) = (self.inner.write(offset, data, durable), self.fails.get() && LOG.contains(&offset));
        Box::pin(async move {
            done.await?;
            if fails { Err(IoError::Media) } else { Ok(()) }
        })
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.inner.write_zeroes(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.inner.discard(offset, len)
    }
    fn flush(&self) -> LocalFuture<IoResult<()>> {
        self.inner.flush()
    }
}

async fn create(rt: &Rt, disks: &[SimDisk], fails: &Rc<Cell<bool>>) -> (Pool, Space) {
    let deaf = |d: &SimDisk| -> Rc<dyn BlockDevice> { Rc::new(Deaf { inner: d.attach(rt), fails: fails.clone() }) };
    let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
    let pool = Pool::create(rt, "p", disks.iter().map(deaf).collect(), Vec::new(), options).await.unwrap();
    let space = pool.create_space("s", Layout::Parity, None, 4096, 32 * BLOCK_BYTES, Provision::Thin).await.unwrap();
    (pool, space)
}

/// `before` batches of one block, one that fails, and two that are acknowledged; power is lost.
fn acknowledged_is_there(before: u64) {
    let disks = disks(3, 900 + before);
    let all = disks.clone();
    life(&disks, None, |rt| async move {
        let fails = Rc::new(Cell::new(false));
        let (_pool, space) = create(&rt, &all, &fails).await;
        for i in 0..before {
            space.write(0, full(1 + (i % 100) as u8, SHORT), true).await.unwrap();
        }
        fails.set(true);
        space.write(0, full(201, SHORT), true).await.unwrap_err();
        fails.set(false);
        space.write(16 * BLOCK_BYTES, full(202, LONG), true).await.unwrap();
        space.write(BLOCK_BYTES, full(203, SHORT), true).await.unwrap();
    })
    .unwrap();
    let all = disks.clone();
    life(&disks, None, |rt| async move {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        let space = pool.space_named("s").unwrap();
        for (at, blocks, byte) in [(16, LONG, 202), (1, SHORT, 203)] {
            let b = space.read(at * BLOCK_BYTES, (blocks * BLOCK_BYTES) as usize).await.unwrap();
            assert!(b.iter().all(|&x| x == byte), "{before} batches before: {byte} is not there but {}", b[0]);
        }
    })
    .unwrap();
}

/// The log has room for 128 batches of one block: for some of these the short batch fits before its end, and the long one does not.
#[test]
fn a_batch_that_failed_and_landed_hides_none_that_follows() {
    for before in 100..140 {
        acknowledged_is_there(before);
    }
}
