//! Writes that fail on all of their disks and are there all the same, as after answers that were lost: on each disk, or on some. What
//! is acknowledged afterwards is what an opening reads, and copies do not stay different.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use crate::common::{config, disks, full, life, open};
use arden_block::sim::SimDisk;
use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, Pool, Provision, Space};

/// Where these small disks have their log.
const LOG: Range<u64> = 256 << 10..(256 << 10) + (1 << 20);
/// Of the batch that fails, of the next, and of all others.
const SHORT: u64 = 1;
const LONG: u64 = 12;

/// What becomes of writes to a range, of which it is said that they failed.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Landed,
    Lost,
}

type Fates = Rc<Cell<Option<Fate>>>;

/// A disk whose writes to `range` fail while their fate is set.
struct Deaf {
    inner: Rc<dyn BlockDevice>,
    range: Range<u64>,
    fate: Fates,
}

impl BlockDevice for Deaf {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        self.inner.read(offset, len)
    }
    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        let fate = self.fate.get().filter(|_| self.range.contains(&offset));
        if fate == Some(Fate::Lost) {
            return Box::pin(std::future::ready(Err(IoError::Media)));
        }
        let done = self.inner.write(offset, data, durable);
        Box::pin(async move {
            done.await?;
            if fate.is_some() { Err(IoError::Media) } else { Ok(()) }
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

async fn create(rt: &Rt, disks: &[SimDisk], layout: Layout, range: Range<u64>, fates: &[Fates]) -> (Pool, Space) {
    let deaf = |(d, fate): (&SimDisk, &Fates)| -> Rc<dyn BlockDevice> {
        Rc::new(Deaf { inner: d.attach(rt), range: range.clone(), fate: fate.clone() })
    };
    let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
    let devices = disks.iter().zip(fates).map(deaf).collect();
    let pool = Pool::create(rt, "p", devices, Vec::new(), options).await.unwrap();
    let space = pool.create_space("s", layout, None, 4096, 32 * BLOCK_BYTES, Provision::Thin).await.unwrap();
    (pool, space)
}

/// `before` batches of one block, one that fails, and two that are acknowledged; power is lost.
fn acknowledged_is_there(before: u64) {
    let disks = disks(3, 900 + before);
    let all = disks.clone();
    life(&disks, None, |rt| async move {
        let fate = Fates::default();
        let fates = vec![fate.clone(); 3];
        let (_pool, space) = create(&rt, &all, Layout::Parity, LOG, &fates).await;
        for i in 0..before {
            space.write(0, full(1 + (i % 100) as u8, SHORT), true).await.unwrap();
        }
        fate.set(Some(Fate::Landed));
        space.write(0, full(201, SHORT), true).await.unwrap_err();
        fate.set(None);
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

/// Blocks of the disk that hold `byte` throughout.
async fn count(disk: &Rc<dyn BlockDevice>, byte: u8) -> usize {
    let all = disk.read(0, 6 << 20).await.unwrap();
    all.chunks(BLOCK_BYTES as usize).filter(|b| b.iter().all(|&x| x == byte)).count()
}

/// A mirror of two disks, to one of which a write comes of which nobody was told, and the write after it to neither.
async fn write_that_is_lost(rt: &Rt, all: &[SimDisk], lands_on: usize) -> (Pool, Space, Vec<Fates>) {
    let fates: Vec<Fates> = all.iter().map(|_| Fates::default()).collect();
    let (pool, space) = create(rt, all, Layout::Mirror2, LOG.end..6 << 20, &fates).await;
    space.write(0, full(201, 8), false).await.unwrap();
    pool.flush().await.unwrap();
    for (i, f) in fates.iter().enumerate() {
        f.set(Some(if i == lands_on { Fate::Landed } else { Fate::Lost }));
    }
    space.write(0, full(202, 8), false).await.unwrap_err();
    (pool, space, fates)
}

#[test]
fn copies_that_a_failed_write_left_different_become_equal() {
    for lands_on in [0, 1] {
        let disks = disks(2, 950);
        let all = disks.clone();
        life(&disks, None, |rt| async move {
            let (pool, space, fates) = write_that_is_lost(&rt, &all, lands_on).await;
            let devices: Vec<_> = all.iter().map(|d| d.attach(&rt)).collect();
            assert!(count(&devices[0], 202).await != count(&devices[1], 202).await, "they differ");
            // Neither can be written yet: whoever reads gets the same each time, while the disks have more and less to do.
            let read = space.read(0, BLOCK_BYTES as usize).await.unwrap()[0];
            for _ in 0..40 {
                let reads = (0..8).map(|i| -> LocalFuture<_> {
                    let space = space.clone();
                    Box::pin(async move { space.read(i * BLOCK_BYTES, BLOCK_BYTES as usize).await })
                });
                for b in join_all(reads.collect()).await {
                    assert_eq!(b.unwrap()[0], read);
                }
                rt.sleep_ns(10_000_000).await;
            }
            fates.iter().for_each(|f| f.set(None));
            rt.sleep_ns(3_000_000_000).await;
            for byte in [201, 202] {
                assert_eq!(count(&devices[0], byte).await, count(&devices[1], byte).await, "{byte}");
            }
            assert_eq!(space.read(0, BLOCK_BYTES as usize).await.unwrap()[0], read);
            pool.close().await.unwrap();
        })
        .unwrap();
    }
}

/// One copy is damaged, and what is read of the other cannot be written over it now.
#[test]
fn a_block_that_cannot_be_healed_is_read_all_the_same() {
    let disks = disks(2, 951);
    let all = disks.clone();
    life(&disks, None, |rt| async move {
        let (_pool, space, _fates) = write_that_is_lost(&rt, &all, 1).await;
        for good in [201, 202] {
            let verify: Rc<dyn Fn(u64, &[u8]) -> bool> = Rc::new(move |_, b| b[0] == good);
            let b = space.read_verified(0, BLOCK_BYTES as usize, verify).await.unwrap();
            assert_eq!(b[0], good);
        }
    })
    .unwrap();
}
