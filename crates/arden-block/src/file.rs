//! A file or a block device as a disk: `O_DIRECT` through the runtime's driver, locked against
//! other processes. Owns the choice between io_uring and threads.

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::buf::{Buf, SharedBuf};
use crate::io_class::{IoClass, PIECE_BYTES};
use crate::rt::Rt;
use crate::sync::{Notify, Oneshot};
use crate::threads::Threads;
use crate::uring::Uring;
use crate::whole::Whole;
use crate::{BLOCK_BYTES, BlockDevice, DeviceInfo, IoError, IoResult, LocalFuture, Media, SharedReads, check_range};

/// An operation that was given up may still be under way beside the next; more than a few wait for each other.
const ENTRIES_OF_ONE: u32 = 8;
/// What more a connection has under way waits for the turn after.
const ENTRIES_OF_CONNECTION: u32 = 64;

/// An operation of a driver on a descriptor.
pub(crate) enum Op {
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        offset: u64,
        data: SharedBuf,
        durable: bool,
    },
    Flush,
    Allocate {
        mode: u32,
        offset: u64,
        len: u64,
    },
    /// Waits until a socket can be read, or written, or is at its end.
    Ready {
        write: bool,
    },
}

pub(crate) type Outcome = Result<Option<Buf>, Errno>;

pub(crate) enum Driver {
    Uring(Box<Uring>),
    Threads(Threads),
}

impl Driver {
    /// io_uring, unless the kernel refuses it or `ARDEN_IO=threads` says otherwise.
    pub(crate) fn new() -> Driver {
        Driver::ring(Uring::new).unwrap_or_else(|| Driver::Threads(Threads::new()))
    }

    fn ring(make: impl FnOnce() -> Option<Uring>) -> Option<Driver> {
        let threads = std::env::var_os("ARDEN_IO").is_some_and(|v| v == "threads");
        if threads { None } else { make().map(|u| Driver::Uring(Box::new(u))) }
    }

    /// A small ring for a thread that waits for each of its operations; `None` where [`Driver::new`] gives threads.
    pub(crate) fn for_one() -> Option<Driver> {
        Driver::ring(|| Uring::sized(ENTRIES_OF_ONE))
    }

    /// For a thread that serves one socket. Where [`Driver::new`] gives threads it drives no disk: threads for each connection would
    /// be too many.
    pub(crate) fn for_socket() -> Driver {
        Driver::ring(|| Uring::sized(ENTRIES_OF_CONNECTION)).unwrap_or_else(|| Driver::Threads(Threads::for_socket()))
    }

    pub(crate) fn submit(&self, fd: Arc<Descriptor>, op: Op) -> Oneshot<Outcome> {
        match self {
            Driver::Uring(u) => u.submit(fd, op),
            Driver::Threads(t) => t.submit(fd, op),
        }
    }

    /// Hands queued operations over if there are many; never waits.
    pub(crate) fn submit_early(&self, at_once: usize) {
        if let Driver::Uring(u) = self {
            u.submit_early(at_once);
        }
    }

    /// Hands queued operations to the kernel and collects what is finished. Waits up to
    /// `wait` (for ever when `None`) when nothing is.
    pub(crate) fn turn(&self, wait: Option<Duration>, awake: &dyn Fn()) {
        match self {
            Driver::Uring(u) => u.turn(wait, awake),
            Driver::Threads(t) => t.turn(wait, awake),
        }
    }

    /// Ends a wait from another thread.
    pub(crate) fn unparker(&self) -> Arc<dyn Fn() + Send + Sync> {
        match self {
            Driver::Uring(u) => u.unparker(),
            Driver::Threads(t) => t.unparker(),
        }
    }
}

/// An open file or disk, and the lock on it. Operations in flight hold a reference, so the lock is released after the last
/// of them. It is released explicitly: a ring may keep the file open for a while after it was closed here.
pub struct Descriptor {
    fd: OwnedFd,
    locked: bool,
}

impl Descriptor {
    /// A socket, for [`Rt::ready`].
    pub fn of_socket(fd: OwnedFd) -> Descriptor {
        Descriptor { fd, locked: false }
    }

    /// Locks the file. Tries for 100 ms: the kernel releases the locks of a killed process a moment after its end.
    fn lock(fd: OwnedFd) -> io::Result<Descriptor> {
        for _ in 0..20 {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(5)),
                Err(e) => return Err(e.into()),
                Ok(()) => return Ok(Descriptor { fd, locked: true }),
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "in use by another process"))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.locked {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

/// Flushes of one descriptor. All requests that come while a flush runs share the next one, which starts after the writes
/// before each of them have ended.
struct Syncer {
    fd: Arc<Descriptor>,
    driver: Rc<Driver>,
    asked: Cell<u64>,
    /// The requests that flushes have covered.
    covered: Cell<u64>,
    /// The error of the first failed flush. It is never cleared: the kernel reports a lost write once, and later flushes
    /// succeed although the data is gone.
    failed: Cell<Option<IoError>>,
    running: Cell<bool>,
    ended: Notify,
    /// Writes in flight that are durable when they end, or will ask for a flush.
    durable: Cell<usize>,
    class: Rc<IoClass>,
}

struct Running<'a>(&'a Syncer);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(false);
        self.0.ended.notify_all();
    }
}

/// Counts a durable write for as long as it lives.
struct Durable(Rc<Syncer>);

impl Drop for Durable {
    fn drop(&mut self) {
        self.0.durable.set(self.0.durable.get() - 1);
    }
}

impl Syncer {
    /// Whether no other write is to be made durable now.
    fn enter(self: &Rc<Syncer>) -> (Durable, bool) {
        let others = self.durable.get();
        self.durable.set(others + 1);
        (Durable(self.clone()), others == 0 && !self.running.get())
    }

    fn result(&self) -> IoResult<()> {
        self.failed.get().map_or(Ok(()), Err)
    }

    async fn sync(&self) -> IoResult<()> {
        let ticket = self.asked.get() + 1;
        self.asked.set(ticket);
        while self.covered.get() < ticket {
            if self.running.replace(true) {
                self.ended.wait().await;
                continue;
            }
            // When this future is dropped in the middle, `Running` lets another waiter flush.
            let _running = Running(self);
            let (upto, began, beside) = (self.asked.get(), Instant::now(), self.class.is_used());
            let answer = self.driver.submit(self.fd.clone(), Op::Flush).await;
            self.class.durable_took(began, beside, Instant::now());
            self.failed.set(self.failed.get().or(answer.map_err(error_of).err()));
            self.covered.set(upto);
        }
        self.result()
    }
}

/// A file or block device opened for direct I/O.
pub struct FileDevice {
    info: DeviceInfo,
    fd: Arc<Descriptor>,
    driver: Rc<Driver>,
    syncer: Rc<Syncer>,
    class: Rc<IoClass>,
    whole: Arc<Whole>,
    writable: bool,
    regular: bool,
}

impl FileDevice {
    /// Opens `path`. For writing it is locked: a second opener in any process is refused with
    /// `ResourceBusy`, as is a block device that is mounted or part of something else.
    ///
    /// # Errors
    /// `ResourceBusy`, when the file is locked or the device in use; that of the system.
    pub fn open(rt: &Rt, path: &Path, writable: bool) -> io::Result<FileDevice> {
        let meta = fs::metadata(path)?;
        let block = meta.file_type().is_block_device();
        if !block && !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device"));
        }
        let mut flags = OFlags::CLOEXEC | if writable { OFlags::RDWR } else { OFlags::RDONLY };
        if block && writable {
            // On a block device O_EXCL means: not while mounted, nor for two of us.
            flags |= OFlags::EXCL;
        }
        let fd = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Err(Errno::INVAL) => rustix::fs::open(path, flags, Mode::empty())?,
            other => other?,
        };
        let fd = if writable { Descriptor::lock(fd)? } else { Descriptor { fd, locked: false } };
        FileDevice::open_again(rt, path, writable, Arc::new(fd))
    }

    /// The descriptor, and with it the lock, for [`FileDevice::open_again`].
    pub fn descriptor(&self) -> Arc<Descriptor> {
        self.fd.clone()
    }

    /// The same file on another thread's runtime, under the lock that the first opener took.
    ///
    /// # Errors
    /// That of the system; `Other` with a virtual clock.
    pub fn open_again(rt: &Rt, path: &Path, writable: bool, fd: Arc<Descriptor>) -> io::Result<FileDevice> {
        let driver = rt.driver().ok_or_else(|| io::Error::other("a virtual clock cannot drive real devices"))?;
        let meta = fs::metadata(path)?;
        let block = meta.file_type().is_block_device();
        let size = if block { crate::identify::block_size_bytes(path)? } else { meta.len() };
        let id = crate::identify::identity(path, meta.rdev());
        let info = DeviceInfo {
            name: path.display().to_string(),
            size_bytes: size / BLOCK_BYTES * BLOCK_BYTES,
            media: id.media,
            model: id.model,
            serial: id.serial,
        };
        let class = Rc::new(IoClass::default());
        let syncer = Rc::new(Syncer {
            fd: fd.clone(),
            driver: driver.clone(),
            asked: Cell::new(0),
            covered: Cell::new(0),
            failed: Cell::new(None),
            running: Cell::new(false),
            ended: Notify::new(),
            durable: Cell::new(0),
            class: class.clone(),
        });
        let whole = Arc::new(Whole::new(fd.clone(), !block, info.size_bytes));
        Ok(FileDevice { info, fd, driver, syncer, class, whole, writable, regular: !block })
    }

    /// Replaces what the system reports of the disk; `None` keeps it.
    pub fn describe(&mut self, media: Option<Media>, model: Option<String>, serial: Option<String>) {
        self.info.media = media.unwrap_or(self.info.media);
        self.info.model = model.unwrap_or_else(|| std::mem::take(&mut self.info.model));
        self.info.serial = serial.unwrap_or_else(|| std::mem::take(&mut self.info.serial));
    }

    fn run(&self, op: Op) -> LocalFuture<IoResult<Option<Buf>>> {
        let out = self.driver.submit(self.fd.clone(), op);
        Box::pin(async move { out.await.map_err(error_of) })
    }

    /// A write that need not be durable and is larger than a piece.
    fn write_large(&self, offset: u64, data: SharedBuf) -> LocalFuture<IoResult<()>> {
        let (driver, fd, class) = (self.driver.clone(), self.fd.clone(), self.class.clone());
        let len = data.len();
        let write = move |at: usize, len: usize| {
            driver
                .submit(fd.clone(), Op::Write { offset: offset + at as u64, data: data.slice(at, len), durable: false })
        };
        // While large writes are not limited, the write is submitted when this returns.
        let whole = (!class.limits_large(Instant::now())).then(|| write(0, len));
        Box::pin(async move {
            let _large = class.enter_large();
            if let Some(whole) = whole {
                return whole.await.map(drop).map_err(error_of);
            }
            let turn = class.turn().await;
            let step = if turn.is_some() { PIECE_BYTES } else { len };
            for at in (0..len).step_by(step) {
                write(at, step.min(len - at)).await.map_err(error_of)?;
            }
            Ok(())
        })
    }

    fn check(&self, offset: u64, len: u64, write: bool) -> IoResult<()> {
        if write && !self.writable {
            return Err(IoError::ReadOnly);
        }
        check_range(self.info.size_bytes, offset, len)
    }
}

fn error_of(e: Errno) -> IoError {
    match e {
        Errno::NOSPC | Errno::DQUOT => IoError::NoSpace,
        Errno::NODEV | Errno::NXIO | Errno::BADF | Errno::NOTCONN => IoError::Gone,
        Errno::OPNOTSUPP | Errno::NOSYS => IoError::Unsupported,
        Errno::INVAL => IoError::Misaligned,
        Errno::ROFS | Errno::PERM => IoError::ReadOnly,
        // What the block layer makes of the status RESERVATION CONFLICT.
        Errno::BADE => IoError::Conflict,
        _ => IoError::Media,
    }
}

fn fail<T: 'static>(e: IoError) -> LocalFuture<IoResult<T>> {
    Box::pin(std::future::ready(Err(e)))
}

/// Reads, and looks whether the file is still whole.
fn read_whole(
    driver: &Driver,
    fd: &Arc<Descriptor>,
    whole: &Arc<Whole>,
    offset: u64,
    len: usize,
) -> LocalFuture<IoResult<Buf>> {
    let out = driver.submit(fd.clone(), Op::Read { offset, len });
    let whole = whole.clone();
    Box::pin(async move {
        let answer = out.await;
        whole.check_read(answer.as_ref().map_or(None, Option::as_ref))?;
        answer.map_err(error_of)?.ok_or(IoError::Media)
    })
}

/// The file for reads on other runtimes. It does not keep the lock, so that the file can be opened anew as soon as the device
/// is dropped and its operations have ended; from then on it is gone.
struct FileReads {
    fd: Weak<Descriptor>,
    whole: Weak<Whole>,
    size_bytes: u64,
}

impl SharedReads for FileReads {
    fn read_on(&self, rt: &Rt, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        if let Err(e) = check_range(self.size_bytes, offset, len as u64) {
            return fail(e);
        }
        let Some(driver) = rt.driver() else { return fail(IoError::Unsupported) };
        match (self.fd.upgrade(), self.whole.upgrade()) {
            (Some(fd), Some(whole)) => read_whole(&driver, &fd, &whole, offset, len),
            _ => fail(IoError::Gone),
        }
    }
}

impl BlockDevice for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        if let Err(e) = self.check(offset, len as u64, false) {
            return fail(e);
        }
        read_whole(&self.driver, &self.fd, &self.whole, offset, len)
    }

    fn shared_reads(&self) -> Option<Arc<dyn SharedReads>> {
        let (fd, whole, size_bytes) = (Arc::downgrade(&self.fd), Arc::downgrade(&self.whole), self.info.size_bytes);
        Some(Arc::new(FileReads { fd, whole, size_bytes }))
    }

    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        if let Err(e) = self.check(offset, data.len() as u64, true) {
            return fail(e);
        }
        // A write up to the end would silently restore the length of a file that was truncated, with zeros in between.
        if offset + data.len() as u64 == self.info.size_bytes
            && let Err(e) = self.whole.check()
        {
            return fail(e);
        }
        if !durable && data.len() > PIECE_BYTES {
            return self.write_large(offset, data);
        }
        // A block device makes a single write durable by itself (FUA). For a file, the kernel flushes after the write, in a
        // thread: faster than a write and then a flush for one write, slower than a shared flush for several.
        let syncer = (durable && self.regular).then(|| self.syncer.clone());
        let entered = syncer.as_ref().map(Syncer::enter);
        let alone = entered.as_ref().is_some_and(|(_, alone)| *alone);
        let began = (data.len() <= PIECE_BYTES && durable).then(|| (Instant::now(), self.class.is_used()));
        let op = Op::Write { offset, data, durable: durable && (alone || !self.regular) };
        let class = self.class.clone();
        let out = self.driver.submit(self.fd.clone(), op);
        let whole = self.whole.clone();
        Box::pin(async move {
            let _entered = entered;
            let answer = out.await.map_err(error_of);
            if let Some((began, beside)) = began {
                class.durable_took(began, beside, Instant::now());
            }
            match syncer {
                Some(s) if alone => {
                    // The flush in it may have failed, which the kernel reports only once.
                    let flush = answer.as_ref().err().copied().filter(|e| *e == IoError::Media);
                    s.failed.set(s.failed.get().or(flush));
                    answer?;
                    s.result()?;
                }
                Some(s) => {
                    answer?;
                    s.sync().await?;
                }
                None => drop(answer?),
            }
            if durable { whole.check() } else { Ok(()) }
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        if let Err(e) = self.check(offset, len, true) {
            return fail(e);
        }
        let (driver, fd) = (self.driver.clone(), self.fd.clone());
        Box::pin(async move {
            let mode = (FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE).bits();
            match driver.submit(fd.clone(), Op::Allocate { mode, offset, len }).await.map_err(error_of) {
                Err(IoError::Unsupported | IoError::Misaligned) => {}
                other => return other.map(|_| ()),
            }
            let zeros = Buf::zeroed((len as usize).min(1 << 20)).share();
            let mut at = 0;
            while at < len {
                let n = (len - at).min(zeros.len() as u64);
                let data = zeros.slice(0, n as usize);
                let op = Op::Write { offset: offset + at, data, durable: false };
                driver.submit(fd.clone(), op).await.map_err(error_of)?;
                at += n;
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        if let Err(e) = self.check(offset, len, true) {
            return fail(e);
        }
        let mode = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE).bits();
        let run = self.run(Op::Allocate { mode, offset, len });
        Box::pin(async move {
            match run.await {
                Err(IoError::Unsupported) | Ok(_) => Ok(()),
                Err(e) => Err(e),
            }
        })
    }

    fn flush(&self) -> LocalFuture<IoResult<()>> {
        if !self.writable {
            return Box::pin(std::future::ready(Ok(())));
        }
        let (syncer, whole) = (self.syncer.clone(), self.whole.clone());
        Box::pin(async move {
            syncer.sync().await?;
            whole.check()
        })
    }

    fn room_of_files(&self) -> Option<u64> {
        let room = || rustix::fs::fstatvfs(&*self.fd).map_or(0, |s| s.f_bavail.saturating_mul(s.f_frsize));
        self.regular.then(room)
    }

    fn lost_content(&self) -> bool {
        self.whole.was_cut_short()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp(name: &str, len: u64) -> std::path::PathBuf {
        let p = std::env::temp_dir().join(format!("arden-block-{}-{name}", std::process::id()));
        let f = fs::File::create(&p).unwrap();
        f.set_len(len).unwrap();
        p
    }

    fn full(len: usize) -> SharedBuf {
        let mut b = Buf::new(len);
        b.fill(0xA5);
        b.share()
    }

    #[test]
    fn large_writes_take_turns_where_the_way_limits_large() {
        for rt in [Rt::real(), Rt::real_with_threads()] {
            let path = temp("turns", 4 << 20);
            let dev = Rc::new(FileDevice::open(&rt, &path, true).unwrap());
            let ended = Rc::new(std::cell::RefCell::new(Vec::new()));
            dev.class.durable_took(Instant::now(), true, Instant::now() + Duration::from_secs(600));
            for i in 0..4u8 {
                let (dev, ended) = (dev.clone(), ended.clone());
                rt.spawn(async move {
                    let mut data = Buf::new(1 << 20);
                    data.fill(i + 1);
                    dev.write(u64::from(i) << 20, data.share(), false).await.unwrap();
                    ended.borrow_mut().push(i);
                });
            }
            let all = ended.clone();
            rt.run_while(None, &|| all.borrow().len() < 4);
            let place = |i| ended.borrow().iter().position(|e| *e == i);
            assert!(place(0) < place(2) && place(1) < place(3), "two at a time");
            assert!(!dev.class.is_used());
            let content = fs::read(&path).unwrap();
            assert!((0..4).all(|i| content[i << 20..(i + 1) << 20].iter().all(|b| usize::from(*b) == i + 1)));
            fs::remove_file(&path).unwrap();
        }
    }

    fn round_trip(rt: &Rt, name: &str) {
        let path = temp(name, 1 << 20);
        let dev = Rc::new(FileDevice::open(rt, &path, true).unwrap());
        assert!(FileDevice::open(rt, &path, true).is_err(), "a second writer is refused");
        let d = dev.clone();
        rt.block_on(async move {
            let b = full(8192);
            d.write(73728, full(4096), false).await.unwrap();
            d.write(4096, b.clone(), true).await.unwrap();
            d.write(65536, b, false).await.unwrap();
            d.flush().await.unwrap();
            let r = d.read(0, 16384).await.unwrap();
            assert!(r[..4096].iter().all(|&x| x == 0));
            assert!(r[4096..12288].iter().all(|&x| x == 0xA5));
            d.write_zeroes(65536, 4096).await.unwrap();
            assert!(d.read(65536, 4096).await.unwrap().iter().all(|&x| x == 0));
            assert!(d.read(69632, 4096).await.unwrap().iter().all(|&x| x == 0xA5));
            d.discard(0, 65536).await.unwrap();
            assert_eq!(d.read(1 << 20, 4096).await.unwrap_err(), IoError::OutOfRange);
            assert_eq!(d.read(100, 4096).await.unwrap_err(), IoError::Misaligned);
            let many: Vec<LocalFuture<IoResult<Buf>>> = (0..200).map(|i| d.read(i * 4096, 4096)).collect();
            assert!(crate::sync::join_all(many).await.iter().all(Result::is_ok));
        })
        .unwrap();
        // A file that was truncated by somebody else counts as gone, also when it grows again, so that no read returns
        // zeros. Reads before the new end still succeed.
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(75_000).unwrap();
        rt.block_on(async move {
            assert!(dev.read(69632, 4096).await.unwrap().iter().all(|&x| x == 0xA5));
            assert!(!dev.lost_content());
            dev.write(131_072, full(4096), false).await.unwrap();
            assert_eq!(dev.write((1 << 20) - 4096, full(4096), false).await.unwrap_err(), IoError::Gone);
            assert_eq!(dev.read(73728, 4096).await.unwrap_err(), IoError::Gone);
            assert_eq!(dev.read(69632, 4096).await.unwrap_err(), IoError::Gone);
            assert_eq!(dev.flush().await.unwrap_err(), IoError::Gone);
            assert!(dev.lost_content());
        })
        .unwrap();
        fs::remove_file(&path).unwrap();
    }

    /// A ring closes its files some time after it was dropped; opening the file again must not fail meanwhile.
    #[test]
    fn a_file_may_be_opened_as_soon_as_it_is_closed() {
        let path = temp("again", 1 << 20);
        for _ in 0..200 {
            let rt = Rt::real();
            let dev = FileDevice::open(&rt, &path, true).unwrap();
            rt.block_on(async move { dev.write(0, Buf::zeroed(65536).share(), false).await.unwrap() }).unwrap();
            rt.shutdown();
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn uring_round_trip() {
        let rt = Rt::real();
        round_trip(&rt, "uring");
        rt.shutdown();
    }

    #[test]
    fn threads_round_trip() {
        let rt = Rt::real_with_threads();
        round_trip(&rt, "threads");
        rt.shutdown();
    }

    #[test]
    fn another_thread_reads_as_long_as_the_device_is_there() {
        let path = temp("shared", 1 << 20);
        let rt = Rt::real();
        let dev = Rc::new(FileDevice::open(&rt, &path, true).unwrap());
        let (d, reads) = (dev.clone(), dev.shared_reads().unwrap());
        rt.block_on(async move { d.write(4096, full(4096), true).await.unwrap() }).unwrap();
        let there = reads.clone();
        std::thread::spawn(move || {
            for rt in [Some(Rt::real_with_threads()), Rt::for_one_operation()].into_iter().flatten() {
                let read = |at| rt.wait_for(there.read_on(&rt, at, 4096), u64::MAX).unwrap();
                assert!(read(4096).unwrap().iter().all(|&x| x == 0xA5));
                assert_eq!(read(1 << 20).unwrap_err(), IoError::OutOfRange);
                let never = rt.wait_for(std::future::pending::<()>(), rt.now_ns() + 10_000_000);
                assert!(never.is_none());
            }
        })
        .join()
        .unwrap();
        drop(dev);
        drop(FileDevice::open(&rt, &path, true).expect("the handle does not keep the lock"));
        assert_eq!(rt.block_on(reads.read_on(&rt, 4096, 4096)).unwrap().unwrap_err(), IoError::Gone);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn work_comes_in_from_another_thread() {
        let rt = Rt::real();
        let remote = rt.remote();
        let t = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let r = remote.clone();
            remote.run(move |rt| rt.spawn(async move { r.close() })).unwrap();
        });
        rt.run_forever();
        t.join().unwrap();
    }
}
