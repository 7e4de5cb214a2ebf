//! A space over NBD on real files: what a connection's thread reads beside the pool, what a departed disk may not answer any more, and
//! what the protocol promises of requests in flight.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arden_block::{
    BLOCK_BYTES, BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, Rt, SharedBuf, SharedReads,
    file::FileDevice,
};
use arden_space::{CreateOptions, Layout, Pool, PoolHost, Provision, SpaceError, nbd::Export};

const BLOCK: usize = BLOCK_BYTES as usize;
const SPACE_BYTES: u64 = 16 << 20;
const DISK_BYTES: u64 = 96 << 20;

/// What a test sees and does of a disk.
#[derive(Default)]
struct Knobs {
    /// Reads beside the pool.
    beside: AtomicU64,
    /// The next flush fails, and what was written since this was set is lost.
    fails: AtomicBool,
}

struct Disk {
    rt: Rt,
    file: Rc<FileDevice>,
    knobs: Arc<Knobs>,
    /// What was there before it was written.
    before: Rc<RefCell<Vec<(u64, Buf)>>>,
}

struct Beside(Arc<dyn SharedReads>, Arc<Knobs>);

impl SharedReads for Beside {
    fn read_on(&self, rt: &Rt, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        self.1.beside.fetch_add(1, Ordering::Relaxed);
        self.0.read_on(rt, offset, len)
    }
}

impl BlockDevice for Disk {
    fn info(&self) -> &DeviceInfo {
        self.file.info()
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        self.file.read(offset, len)
    }
    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        let (file, before, caching) = (self.file.clone(), self.before.clone(), self.knobs.fails.load(Ordering::SeqCst));
        Box::pin(async move {
            if caching && !durable {
                let old = file.read(offset, data.len()).await?;
                before.borrow_mut().push((offset, old));
            }
            file.write(offset, data, durable).await
        })
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.file.write_zeroes(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.file.discard(offset, len)
    }
    fn flush(&self) -> LocalFuture<IoResult<()>> {
        let lost = self.before.take();
        if !self.knobs.fails.swap(false, Ordering::SeqCst) {
            return self.file.flush();
        }
        // What it answers is old as soon as it has said so.
        let (file, rt) = (self.file.clone(), self.rt.clone());
        self.rt.spawn(async move {
            rt.sleep_ns(1_000_000).await;
            for (offset, old) in lost.into_iter().rev() {
                file.write(offset, old.share(), false).await.unwrap();
            }
        });
        Box::pin(std::future::ready(Err(IoError::Media)))
    }
    fn shared_reads(&self) -> Option<Arc<dyn SharedReads>> {
        let inner = self.file.shared_reads()?;
        Some(Arc::new(Beside(inner, self.knobs.clone())))
    }
}

struct World {
    dir: PathBuf,
    host: Option<PoolHost>,
    export: Option<Export>,
    disks: Vec<Arc<Knobs>>,
}

impl World {
    fn new(name: &str, layout: Layout, disks: usize) -> World {
        let dir = std::env::temp_dir().join(format!("arden-space-nbd-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let knobs: Vec<Arc<Knobs>> = (0..disks).map(|_| Arc::default()).collect();
        let files: Vec<PathBuf> = (0..disks).map(|i| dir.join(format!("d{i}"))).collect();
        for f in &files {
            fs::File::create(f).unwrap().set_len(DISK_BYTES).unwrap();
        }
        let all: Vec<_> = files.into_iter().zip(knobs.clone()).collect();
        let open = move |rt: Rt| -> Pin<Box<dyn Future<Output = Result<Pool, SpaceError>>>> {
            Box::pin(async move {
                let device = |(path, knobs): (PathBuf, Arc<Knobs>)| {
                    let file = Rc::new(FileDevice::open(&rt, &path, true).unwrap());
                    Rc::new(Disk { rt: rt.clone(), file, knobs, before: Rc::default() }) as Rc<dyn BlockDevice>
                };
                let devices = all.into_iter().map(device).collect();
                let pool = Pool::create(&rt, "tank", devices, Vec::new(), CreateOptions::default()).await?;
                pool.create_space("s", layout, None, 64 << 10, SPACE_BYTES, Provision::Fixed).await?;
                Ok(pool)
            })
        };
        let host = PoolHost::start(open).unwrap();
        let export = Export::start(&format!("unix:{}", dir.join("s").display()), host.caller(), "s").unwrap();
        World { dir, host: Some(host), export: Some(export), disks: knobs }
    }

    fn client(&self) -> Client {
        Client::connect(&self.dir.join("s"))
    }

    fn host(&self) -> &PoolHost {
        self.host.as_ref().unwrap()
    }

    fn beside(&self) -> u64 {
        self.disks.iter().map(|d| d.beside.load(Ordering::Relaxed)).sum()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.export.take());
        drop(self.host.take());
        let _ = fs::remove_dir_all(&self.dir);
    }
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

struct Client(UnixStream);

impl Client {
    fn connect(socket: &Path) -> Client {
        let mut s = UnixStream::connect(socket).unwrap();
        s.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        s.read_exact(&mut [0; 18]).unwrap();
        s.write_all(&3u32.to_be_bytes()).unwrap();
        s.write_all(&0x4948_4156_454F_5054u64.to_be_bytes()).unwrap();
        s.write_all(&[0, 0, 0, 1, 0, 0, 0, 0]).unwrap();
        let mut told = [0; 10];
        s.read_exact(&mut told).unwrap();
        assert_eq!(u64::from_be_bytes(told[..8].try_into().unwrap()), SPACE_BYTES);
        Client(s)
    }

    fn request(kind: u16, flags: u16, cookie: u64, at: u64, len: usize) -> Vec<u8> {
        let mut b = 0x2560_9513u32.to_be_bytes().to_vec();
        b.extend_from_slice(&flags.to_be_bytes());
        b.extend_from_slice(&kind.to_be_bytes());
        b.extend_from_slice(&cookie.to_be_bytes());
        b.extend_from_slice(&at.to_be_bytes());
        b.extend_from_slice(&(len as u32).to_be_bytes());
        b
    }

    /// Cookie and error number of the next answer.
    fn answer(&mut self) -> (u64, u32) {
        let mut h = [0; 16];
        self.0.read_exact(&mut h).unwrap();
        assert_eq!(h[..4], 0x6744_6698u32.to_be_bytes());
        (u64::from_be_bytes(h[8..].try_into().unwrap()), u32::from_be_bytes(h[4..8].try_into().unwrap()))
    }

    fn write(&mut self, at: u64, byte: u8, len: usize, durable: bool) {
        let mut b = Client::request(WRITE, u16::from(durable), 7, at, len);
        b.resize(b.len() + len, byte);
        self.0.write_all(&b).unwrap();
        assert_eq!(self.answer(), (7, 0));
    }

    fn read(&mut self, at: u64, len: usize) -> Vec<u8> {
        self.0.write_all(&Client::request(READ, 0, 8, at, len)).unwrap();
        assert_eq!(self.answer(), (8, 0));
        let mut b = vec![0; len];
        self.0.read_exact(&mut b).unwrap();
        b
    }

    fn flush(&mut self) {
        self.0.write_all(&Client::request(FLUSH, 0, 9, 0, 0)).unwrap();
        assert_eq!(self.answer(), (9, 0));
    }

    fn expect(&mut self, at: u64, len: usize, byte: u8, when: &str) {
        let got = self.read(at, len);
        let wrong = got.iter().find(|b| **b != byte);
        assert_eq!(wrong, None, "{byte} was written: {when}");
    }
}

/// Also over the smallest requests, and over what is not whole blocks.
#[test]
fn a_connection_reads_beside_the_pool_what_was_written() {
    for (layout, disks) in [(Layout::Simple, 2), (Layout::Mirror2, 2), (Layout::Parity, 3)] {
        let w = World::new(layout.name(), layout, disks);
        let (mut a, mut b) = (w.client(), w.client());
        for round in 1..20u8 {
            let at = u64::from(round % 4) * BLOCK_BYTES;
            a.write(at, round, BLOCK, false);
            b.expect(at, BLOCK, round, "in another connection");
            b.expect(at + 512, 1024, round, "in part");
            b.write(at + 512, round + 100, 512, true);
            a.expect(at + 512, 512, round + 100, "a part of a block");
            a.expect(at + 1024, BLOCK - 1024, round, "beside it");
        }
        if layout == Layout::Simple {
            // The background puts what is newer in its place.
            let begun = std::time::Instant::now();
            let mut before = w.beside();
            while w.beside() == before && begun.elapsed().as_secs() < 20 {
                std::thread::sleep(std::time::Duration::from_millis(20));
                a.read(0, BLOCK);
            }
            before = w.beside();
            (0..32).for_each(|_| a.expect(1024, BLOCK - 1024, 16, "again"));
            assert_eq!(w.beside() - before, 32, "by the connection itself");
        }
        a.0.write_all(&Client::request(READ, 0, 1, SPACE_BYTES, BLOCK)).unwrap();
        assert_eq!(a.answer(), (1, 22), "past the end");
        a.0.write_all(&Client::request(READ, 0, 2, u64::MAX - 100, BLOCK)).unwrap();
        assert_eq!(a.answer(), (2, 22), "far past the end");
        for kind in [TRIM, WRITE_ZEROES] {
            for (at, len) in [(SPACE_BYTES, BLOCK), (u64::MAX - 10, 5), (u64::MAX - 4096, 4096), (u64::MAX, BLOCK)] {
                a.0.write_all(&Client::request(kind, 0, 3, at, len)).unwrap();
                let (cookie, error) = a.answer();
                assert!(cookie == 3 && matches!(error, 22 | 28), "{kind} of {len} bytes at {at}: {error}");
            }
        }
        a.expect(0, 512, 16, "it goes on");
    }
}

/// It keeps what it had; nothing of that is an answer any more.
#[test]
fn a_disk_that_left_answers_no_connection() {
    let w = World::new("left", Layout::Mirror2, 2);
    let (mut a, mut b) = (w.client(), w.client());
    a.write(0, 1, 4 << 20, false);
    a.flush();
    for block in (0..1024).step_by(8) {
        b.expect(block * BLOCK_BYTES, BLOCK, 1, "whole");
    }
    assert!(w.beside() > 100, "the connection reads by itself");
    let reads = |i: usize| w.disks[i].beside.load(Ordering::Relaxed);
    // The one that the connection would ask.
    let leaver = (0..2).max_by_key(|&i| reads(i)).unwrap();
    w.host().call(move |pool| async move { pool.report_failure(leaver as u16).await }).unwrap();
    let before = (reads(leaver), reads(1 - leaver));
    a.write(0, 2, 4 << 20, false);
    for block in (0..1024).step_by(8) {
        b.expect(block * BLOCK_BYTES, BLOCK, 2, "with one disk");
    }
    assert_eq!(reads(leaver), before.0, "nobody asks it");
    assert!(reads(1 - leaver) > before.1 + 100, "the other one is read beside the pool");
}

/// A disk has lost what it held in its cache. Connections read all the time, and see no older data than what they have seen.
#[test]
fn a_disk_whose_flush_failed_answers_no_connection() {
    for leaver in 0..2usize {
        let w = World::new(&format!("flush-{leaver}"), Layout::Mirror2, 2);
        let mut a = w.client();
        a.write(0, 1, 4 << 20, false);
        a.flush();
        w.disks[leaver].fails.store(true, Ordering::SeqCst);
        a.write(0, 2, 4 << 20, false);
        let flushed = AtomicBool::new(false);
        std::thread::scope(|s| {
            for seed in 0..2u64 {
                let (mut c, flushed) = (w.client(), &flushed);
                s.spawn(move || {
                    let mut at = seed;
                    while !flushed.load(Ordering::SeqCst) {
                        at = (at * 5 + 7) % 1024;
                        c.expect(at * BLOCK_BYTES, BLOCK, 2, "while the flush fails");
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            a.flush();
            flushed.store(true, Ordering::SeqCst);
        });
        assert!(!w.disks[leaver].fails.load(Ordering::SeqCst), "it was flushed");
        for block in 0..1024 {
            a.expect(block * BLOCK_BYTES, BLOCK, 2, "of the disk that is left");
        }
    }
}

/// More than may be in flight, more than a socket takes, and answers that nobody takes for a while; then the client says that it has no
/// more requests.
#[test]
fn everything_that_was_asked_is_answered_before_the_end() {
    const LEN: usize = 64 << 10;
    let w = World::new("many", Layout::Simple, 2);
    let mut a = w.client();
    for i in 0..64u64 {
        a.write(i * LEN as u64, i as u8 + 1, LEN, false);
    }
    let mut s = a.0.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for cookie in 0..600u64 {
            s.write_all(&Client::request(READ, 0, cookie, cookie % 64 * LEN as u64, LEN)).unwrap();
        }
        s.write_all(&Client::request(DISCONNECT, 0, 0, 0, 0)).unwrap();
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    let mut seen: HashMap<u64, u32> = HashMap::new();
    for _ in 0..600 {
        let (cookie, error) = a.answer();
        assert_eq!(error, 0);
        let mut b = vec![0; LEN];
        a.0.read_exact(&mut b).unwrap();
        assert!(b.iter().all(|&x| u64::from(x) == cookie % 64 + 1), "{cookie}");
        *seen.entry(cookie).or_default() += 1;
    }
    assert!(seen.len() == 600 && seen.values().all(|n| *n == 1));
    sender.join().unwrap();
    assert_eq!(a.0.read(&mut [0; 1]).unwrap(), 0, "hung up");
}

/// Also while requests are under way, and while the client takes no answers.
#[test]
fn an_export_ends_whatever_its_clients_do() {
    let mut w = World::new("ends", Layout::Simple, 2);
    let (idle, mut greedy, mut odd) = (w.client(), w.client(), w.client());
    greedy.write(0, 1, 1 << 20, false);
    let many: Vec<u8> = (0..100).flat_map(|i| Client::request(READ, 0, i, 0, 1 << 20)).collect();
    greedy.0.write_all(&many).unwrap();
    odd.0.write_all(&[7; 28]).unwrap();
    assert_eq!(odd.0.read(&mut [0; 1]).unwrap(), 0, "no request: hung up");
    w.export.take().unwrap().stop();
    let mut rest = Vec::new();
    let _ = (&idle.0).read_to_end(&mut rest);
    assert!(rest.is_empty());
    w.host.take().unwrap().stop().unwrap();
}
