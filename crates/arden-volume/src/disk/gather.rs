//! A device whose writes may be answered from memory and reach the disks a little later, several at once. Owns what has not
//! reached them, and how much that may be. Refuses to know what a block is for.
//!
//! * A read sees what was gathered, and a flush or a durable write waits for all that was gathered before it: whoever relies on
//!   the promises of [`Device`] sees no difference.
//! * Only places that the device has room for already are gathered, so that a full pool refuses a write before it is answered.
//! * At most as much is gathered as disks write in the time since somebody last waited for stable storage
//!   ([`BYTES_A_MICROSECOND`]): who often waits finds little before his own write.
//! * Where a write fails it stays here, and is tried again; meanwhile nothing becomes durable, and other writes go to the device
//!   themselves and report what it says.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::ThreadId,
    time::{Duration, Instant},
};

use arden_block::{
    Buf, Device, IoError, IoResult, Redundant, SharedBuf, Thin, Verify, check_range,
    device::{ParityMismatches, Written},
};
use arden_lock::{Condvar, Mutex, MutexGuard, ranks, thread};

/// What disks write at least, to be expected: 1 GiB/s.
const BYTES_A_MICROSECOND: u64 = 1 << 10;
/// Threads that bring to the device what was gathered.
const WRITERS: usize = 3;
/// How long a writer sleeps after a failure, and how long it waits for work before it gives memory back.
const RETRY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(5);

/// Who brings to the device what was gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Threads of its own, as soon as they can.
    Own,
    /// Whoever needs it there: the simulators have it this way too.
    Callers,
}

/// One write that has not reached the device.
struct Gathered {
    number: u64,
    bytes: SharedBuf,
}

/// A durable write that waits for those with lower numbers.
struct Later {
    before: u64,
    writes: Vec<(u64, Vec<u8>)>,
    told: Written,
}

#[derive(Default)]
struct Waiting {
    /// By offset. They do not overlap.
    writes: BTreeMap<u64, Gathered>,
    /// Number and offset of those that nobody has taken, oldest first.
    queue: VecDeque<(u64, u64)>,
    under_way: BTreeSet<u64>,
    next: u64,
    /// The memory that they take.
    bytes: u64,
    /// The last write that was tried failed.
    failed: bool,
    later: Vec<Later>,
    /// Pieces of the device that it has room for.
    held: BTreeSet<u64>,
    /// Buffers for the next writes: fresh memory costs a page fault for each page.
    spare: Vec<Buf>,
    spare_bytes: u64,
    /// Threads that write, by what they are, and how many were started.
    writers: Vec<ThreadId>,
    started: usize,
    stop: bool,
}

impl Waiting {
    /// The lowest number that has not reached the device.
    fn oldest(&self) -> u64 {
        let queued = self.queue.front().map(|(number, _)| *number);
        let under_way = self.under_way.first().copied();
        queued.into_iter().chain(under_way).min().unwrap_or(self.next)
    }

    /// The first gathered write that has bytes in the range: its offset.
    fn overlapping(&self, offset: u64, len: u64) -> Option<u64> {
        let before = self.writes.range(..offset + len).next_back();
        before.filter(|(at, w)| **at + w.bytes.len() as u64 > offset).map(|(at, _)| *at)
    }

    /// Takes a write from the queue.
    fn take(&mut self, index: usize) -> Option<(u64, u64, SharedBuf)> {
        let (number, offset) = self.queue.remove(index)?;
        self.under_way.insert(number);
        Some((number, offset, self.writes[&offset].bytes.clone()))
    }

    /// A spare buffer that takes as much memory as a new one for `len` bytes. Where there is none, others make way for a new one.
    fn take_spare(&mut self, len: usize, bytes_max: u64) -> Option<Buf> {
        let memory = Buf::memory_of(len);
        if let Some(found) = self.spare.iter().rposition(|spare| spare.memory() == memory) {
            self.spare_bytes -= memory as u64;
            return Some(self.spare.swap_remove(found));
        }
        while self.bytes + self.spare_bytes + memory as u64 > bytes_max {
            self.spare_bytes -= self.spare.pop()?.memory() as u64;
        }
        None
    }

    /// Keeps a buffer, where all of them take no more than `bytes_max`.
    fn keep_spare(&mut self, spare: Buf, bytes_max: u64) {
        let more = spare.memory() as u64;
        if self.bytes + self.spare_bytes + more <= bytes_max {
            self.spare_bytes += more;
            self.spare.push(spare);
        }
    }

    /// Durable writes that need not wait any more.
    fn due(&mut self) -> Vec<Later> {
        let oldest = self.oldest();
        let (due, rest) = std::mem::take(&mut self.later).into_iter().partition(|later| later.before <= oldest);
        self.later = rest;
        due
    }
}

/// What threads share.
struct Gathering {
    device: Arc<dyn Device>,
    state: Mutex<Waiting, ranks::GatheredWrites>,
    /// There is a write to do.
    work: Condvar,
    /// A write ended.
    changed: Condvar,
    /// How many are gathered, so that nobody takes the lock where there are none.
    count: AtomicUsize,
    piece_bytes: u64,
    bytes_max: AtomicU64,
    began: Instant,
    /// When somebody last waited for stable storage, in microseconds since it began.
    awaited: AtomicU64,
    by: Writers,
}

/// The device. When it is dropped, what was gathered since the last flush is gone, as in a crash. Nobody has the device below any
/// more then, unless something is being written to it; which thread drops it does not matter.
pub struct Gather(Arc<Gathering>);

impl Drop for Gather {
    fn drop(&mut self) {
        let mut s = self.0.state.lock();
        s.stop = true;
        // What would follow a write that is given up is not written either.
        let later = if s.queue.is_empty() { Vec::new() } else { std::mem::take(&mut s.later) };
        s.queue.clear();
        self.0.work.notify_all();
        // It may be one of them, or the thread that they wait for.
        let own = s.writers.contains(&std::thread::current().id());
        if own || !s.under_way.is_empty() {
            drop(s);
            later.into_iter().for_each(|later| (later.told)(Err(IoError::Gone)));
            return;
        }
        while !s.writers.is_empty() {
            self.0.changed.wait(&mut s);
        }
        drop(s);
        later.into_iter().for_each(|later| (later.told)(Err(IoError::Gone)));
        // The last of them has yet to let go of it.
        while Arc::strong_count(&self.0) > 1 {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Gather {
    /// At most `bytes_max` are gathered. Where the device does not tell what it has room for, or `bytes_max` is 0, it is
    /// given back as it is; so is one that tells of durable writes where callers write: they may be on its own thread.
    pub fn over(device: Arc<dyn Device>, bytes_max: u64, by: Writers) -> Arc<dyn Device> {
        let gathers = bytes_max > 0 && (by == Writers::Own || !device.writes_later());
        let Some(thin) = device.thin().filter(|_| gathers) else { return device };
        let (piece_bytes, held) = (thin.piece_bytes(), thin.pieces_held().into_iter().collect());
        let state = Mutex::new(Waiting { held, ..Waiting::default() });
        let (work, changed, count, awaited) = Default::default();
        let (began, bytes_max) = (thread::now(), AtomicU64::new(bytes_max));
        Arc::new(Gather(Arc::new(Gathering {
            device,
            state,
            work,
            changed,
            count,
            piece_bytes,
            bytes_max,
            began,
            awaited,
            by,
        })))
    }
}

impl Gathering {
    /// How much may be gathered now.
    fn room(&self) -> u64 {
        match self.by {
            Writers::Callers => self.bytes_max(),
            Writers::Own => {
                let since = self.now().saturating_sub(self.awaited.load(Ordering::Relaxed));
                since.saturating_mul(BYTES_A_MICROSECOND).min(self.bytes_max())
            }
        }
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        thread::now().saturating_duration_since(self.began).as_micros() as u64
    }

    fn note_awaited(&self) {
        self.awaited.store(self.now(), Ordering::Relaxed);
    }

    fn pieces(&self, offset: u64, len: u64) -> std::ops::RangeInclusive<u64> {
        offset / self.piece_bytes..=(offset + len.max(1) - 1) / self.piece_bytes
    }

    /// False where it is not gathered.
    fn gather(self: &Arc<Gathering>, offset: u64, data: &[u8]) -> bool {
        let (len, room) = (data.len() as u64, self.room());
        let memory = Buf::memory_of(data.len()) as u64;
        let mut s = self.state.lock();
        let refused = s.failed
            || s.bytes + memory > room
            || !self.pieces(offset, len).all(|piece| s.held.contains(&piece))
            || s.overlapping(offset, len).is_some();
        if refused || len == 0 || !self.has_writers(&mut s) {
            return false;
        }
        let spare = s.take_spare(data.len(), self.bytes_max());
        // Others need not wait for the copy.
        s.bytes += memory;
        drop(s);
        let mut bytes = spare.unwrap_or_else(|| Buf::new(data.len()));
        bytes.resize(data.len());
        bytes.copy_from_slice(data);
        let mut s = self.state.lock();
        // What is nobody's yet is written by one at a time.
        let number = s.next;
        s.next += 1;
        s.queue.push_back((number, offset));
        s.writes.insert(offset, Gathered { number, bytes: bytes.share() });
        self.count.store(s.writes.len(), Ordering::Release);
        drop(s);
        self.work.notify_one();
        true
    }

    /// Starts those that are missing.
    fn has_writers(self: &Arc<Gathering>, s: &mut MutexGuard<'_, Waiting>) -> bool {
        while self.by == Writers::Own && s.started < WRITERS {
            let shared = self.clone();
            if let Err(e) = thread::spawn("volume-writer", move || shared.serve()) {
                tracing::warn!("no thread to write what is gathered: {e}");
                return s.started > 0;
            }
            s.started += 1;
        }
        true
    }

    /// The body of a thread that writes, until nobody has the device.
    fn serve(&self) {
        let own = std::thread::current().id();
        let mut s = self.state.lock();
        s.writers.push(own);
        while !s.stop {
            if let Some(taken) = s.take(0) {
                drop(s);
                let written = self.write_taken(taken);
                s = self.state.lock();
                if let Err(e) = written {
                    tracing::warn!("what was gathered is not written yet: {e}");
                    // Others may write it meanwhile.
                    let until = thread::now() + RETRY;
                    while !s.stop && thread::now() < until {
                        self.work.wait_for(&mut s, RETRY);
                    }
                }
            } else {
                let from = thread::now();
                self.work.wait_for(&mut s, IDLE);
                let idle = thread::now().saturating_duration_since(from) >= IDLE;
                if idle && s.writes.is_empty() {
                    (s.spare, s.spare_bytes) = (Vec::new(), 0);
                }
            }
        }
        s.writers.retain(|other| *other != own);
        self.changed.notify_all();
    }

    /// Writes what was taken from the queue. Where that fails it is in the queue again.
    fn write_taken(&self, (number, offset, bytes): (u64, u64, SharedBuf)) -> IoResult<()> {
        let written = self.device.write_shared(offset, &bytes);
        let mut s = self.state.lock();
        s.under_way.remove(&number);
        s.failed = written.is_err();
        let (due, answer) = match written {
            Ok(()) => {
                s.writes.remove(&offset);
                s.bytes -= Buf::memory_of(bytes.len()) as u64;
                self.count.store(s.writes.len(), Ordering::Release);
                if let (Writers::Own, Some(spare)) = (self.by, bytes.into_whole()) {
                    s.keep_spare(spare, self.bytes_max());
                }
                (s.due(), Ok(()))
            }
            Err(e) => {
                let place = s.queue.partition_point(|(other, _)| *other < number);
                s.queue.insert(place, (number, offset));
                (std::mem::take(&mut s.later), Err(e))
            }
        };
        drop(s);
        self.changed.notify_all();
        for later in due {
            match answer {
                Ok(()) => self.device.write_durably_later(later.writes, later.told),
                Err(e) => (later.told)(Err(e)),
            }
        }
        answer
    }

    /// Returns when all that was gathered before is on its way to stable storage: the device has it.
    fn drain(&self) -> IoResult<()> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let before = self.state.lock().next;
        self.wait(|s| match s.oldest() < before {
            true => Some(0),
            false => None,
        })
    }

    /// Returns when nothing that was gathered lies in the range.
    fn settle(&self, offset: u64, len: u64) -> IoResult<()> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.wait(|s| {
            let number = s.writes[&s.overlapping(offset, len)?].number;
            Some(s.queue.iter().position(|(queued, _)| *queued == number).unwrap_or(usize::MAX))
        })
    }

    /// Until `missing` is None, writes the one at the place in the queue that it gives, or waits for others where nothing is there.
    fn wait(&self, missing: impl Fn(&Waiting) -> Option<usize>) -> IoResult<()> {
        let mut s = self.state.lock();
        while let Some(index) = missing(&s) {
            if let Some(taken) = s.take(index) {
                drop(s);
                self.write_taken(taken)?;
                s = self.state.lock();
            } else {
                self.changed.wait(&mut s);
            }
        }
        Ok(())
    }

    /// What was gathered for a range: its bytes where it is one write.
    fn gathered(&self, offset: u64, buf: &mut [u8]) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let found = {
            let s = self.state.lock();
            let Some(at) = s.overlapping(offset, buf.len() as u64) else { return false };
            (at, s.writes[&at].bytes.clone())
        };
        let Some(skip) = offset.checked_sub(found.0) else { return false };
        let Some(bytes) = found.1.get(skip as usize..skip as usize + buf.len()) else { return false };
        buf.copy_from_slice(bytes);
        true
    }

    /// The extension of the device below, which the range has reached.
    fn settled(&self, offset: u64, len: u64) -> IoResult<&dyn Redundant> {
        self.settle(offset, len)?;
        self.device.redundant().ok_or(IoError::Unsupported)
    }
}

impl Device for Gather {
    fn size_bytes(&self) -> u64 {
        self.0.device.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        if self.0.gathered(offset, buf) {
            return Ok(());
        }
        self.0.settle(offset, buf.len() as u64)?;
        self.0.device.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        let own = &self.0;
        own.settle(offset, data.len() as u64)?;
        own.device.write(offset, data)?;
        let mut s = own.state.lock();
        own.pieces(offset, data.len() as u64).for_each(|piece| {
            s.held.insert(piece);
        });
        Ok(())
    }

    fn write_soon(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        check_range(self.size_bytes(), offset, data.len() as u64)?;
        if self.0.gather(offset, data) { Ok(()) } else { self.write(offset, data) }
    }

    fn flush(&self) -> IoResult<()> {
        self.0.note_awaited();
        let flushed = self.0.drain().and_then(|()| self.0.device.flush());
        self.0.note_awaited();
        flushed
    }

    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        // Writes to it go to the device themselves from now on.
        let own = &self.0;
        own.state.lock().held.retain(|piece| !own.pieces(offset, len).contains(piece));
        own.settle(offset, len)?;
        own.device.discard(offset, len)
    }

    fn write_durably(&self, writes: &[(u64, Vec<u8>)]) -> IoResult<()> {
        self.0.note_awaited();
        let written = self.0.drain().and_then(|()| self.0.device.write_durably(writes));
        self.0.note_awaited();
        written
    }

    fn writes_later(&self) -> bool {
        self.0.device.writes_later()
    }

    fn write_durably_later(&self, writes: Vec<(u64, Vec<u8>)>, told: Written) {
        let own = &self.0;
        own.note_awaited();
        if own.by == Writers::Callers {
            return match own.drain() {
                Ok(()) => own.device.write_durably_later(writes, told),
                Err(e) => told(Err(e)),
            };
        }
        {
            let mut s = own.state.lock();
            let before = s.next;
            if s.oldest() < before {
                s.later.push(Later { before, writes, told });
                return;
            }
        }
        own.device.write_durably_later(writes, told);
    }

    fn has_clock(&self) -> bool {
        self.0.device.has_clock()
    }

    fn let_go_later(&self, after: Duration, what: Box<dyn Send>) {
        self.0.device.let_go_later(after, what);
    }

    fn gathered_bytes(&self) -> u64 {
        let s = self.0.state.lock();
        s.bytes + s.spare_bytes
    }

    fn set_gather_bytes(&self, bytes_max: u64) {
        if bytes_max < self.0.bytes_max.swap(bytes_max, Ordering::Relaxed) {
            let mut s = self.0.state.lock();
            (s.spare, s.spare_bytes) = (Vec::new(), 0);
        }
    }

    fn look_again(&self) -> IoResult<u64> {
        self.0.device.look_again()
    }

    fn room_of_files(&self) -> Option<u64> {
        self.0.device.room_of_files()
    }

    fn thin(&self) -> Option<&dyn Thin> {
        self.0.device.thin()
    }

    fn redundant(&self) -> Option<&dyn Redundant> {
        self.0.device.redundant().map(|_| self as &dyn Redundant)
    }
}

impl Redundant for Gather {
    fn read_verified(&self, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()> {
        if self.0.gathered(offset, buf) {
            return Ok(());
        }
        self.0.settled(offset, buf.len() as u64)?.read_verified(offset, buf, verify)
    }
    fn copies(&self) -> u32 {
        self.0.device.redundant().map_or(1, Redundant::copies)
    }
    fn read_copy(&self, copy: u32, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.0.settled(offset, buf.len() as u64)?.read_copy(copy, offset, buf)
    }
    fn copies_pass(&self, offset: u64, len: usize, verify: &Verify) -> bool {
        self.0.settled(offset, len as u64).is_ok_and(|below| below.copies_pass(offset, len, verify))
    }
    fn heal(&self, offset: u64, len: usize, verify: &Verify) -> IoResult<u64> {
        self.0.settled(offset, len as u64)?.heal(offset, len, verify)
    }
    fn parity_mismatches(&self, offset: u64, len: u64) -> IoResult<Option<ParityMismatches>> {
        self.0.settled(offset, len)?.parity_mismatches(offset, len)
    }
    fn recompute_parity(&self, row: u64, verify: &Verify) -> IoResult<u64> {
        self.0.drain()?;
        self.0.settled(row, 1)?.recompute_parity(row, verify)
    }
    fn doubted_parity(&self, patience: Duration) -> IoResult<Vec<Vec<u64>>> {
        if !patience.is_zero() {
            self.0.drain()?;
        }
        self.0.device.redundant().map_or(Ok(Vec::new()), |below| below.doubted_parity(patience))
    }
    fn may_differ(&self) -> bool {
        self.0.device.redundant().is_some_and(Redundant::may_differ)
    }
    fn end_crash_resync(&self) -> IoResult<()> {
        self.0.drain()?;
        self.0.device.redundant().map_or(Ok(()), Redundant::end_crash_resync)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::AtomicBool,
        mpsc::{Receiver, Sender, channel},
    };

    use parking_lot::Mutex as Plain;

    use super::*;
    use crate::disk::device::{BLOCK, MemDevice};

    /// Takes a write only when the test lets it, and fails those that it is told to fail, or all.
    struct Gated {
        memory: MemDevice,
        gate: Plain<Option<Receiver<IoResult<()>>>>,
        fails: AtomicBool,
        flushes: AtomicUsize,
    }

    impl Device for Gated {
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
            self.memory.read(offset, buf)
        }
        fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
            if self.fails.load(Ordering::Relaxed) {
                return Err(IoError::Media);
            }
            if let Some(gate) = &*self.gate.lock() {
                gate.recv().map_err(|_| IoError::Gone)??;
            }
            self.memory.write(offset, data)
        }
        fn flush(&self) -> IoResult<()> {
            self.flushes.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
            self.memory.discard(offset, len)
        }
        fn thin(&self) -> Option<&dyn Thin> {
            self.memory.thin()
        }
    }

    const SIZE: usize = 4 << 20;

    /// A device that has room everywhere, what is below it, and what lets a write pass.
    fn gather(by: Writers) -> (Arc<Gated>, Arc<dyn Device>, Sender<IoResult<()>>) {
        let memory = MemDevice::new(SIZE);
        let below = Arc::new(Gated {
            memory,
            gate: Plain::new(None),
            fails: AtomicBool::new(false),
            flushes: AtomicUsize::new(0),
        });
        let device = Gather::over(below.clone(), 1 << 20, by);
        device.write(0, &vec![0; SIZE]).unwrap();
        let (pass, gate) = channel();
        *below.gate.lock() = Some(gate);
        // Nobody waited for stable storage for long.
        std::thread::sleep(Duration::from_millis(5));
        (below, device, pass)
    }

    fn block(n: u8) -> Vec<u8> {
        vec![n; BLOCK]
    }

    fn has(device: &dyn Device, offset: u64, n: u8) -> bool {
        let mut out = block(0);
        device.read(offset, &mut out).unwrap();
        out == block(n)
    }

    #[test]
    fn what_is_gathered_is_read_and_on_the_device_after_a_flush() {
        for by in [Writers::Callers, Writers::Own] {
            let (below, device, pass) = gather(by);
            device.write_soon(8192, &[block(1), block(2)].concat()).unwrap();
            assert!(has(&*device, 8192, 1) && has(&*device, 12288, 2) && has(&below.memory, 8192, 0), "{by:?}");
            assert_eq!(device.gathered_bytes(), Buf::memory_of(2 * BLOCK) as u64);
            pass.send(Ok(())).unwrap();
            device.flush().unwrap();
            assert!(has(&below.memory, 8192, 1) && has(&below.memory, 12288, 2), "{by:?}");
            assert_eq!(below.flushes.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn a_durable_write_follows_what_was_gathered_before_it() {
        for by in [Writers::Callers, Writers::Own] {
            let (below, device, pass) = gather(by);
            device.write_soon(0, &block(1)).unwrap();
            let (tell, told) = channel();
            let asked = device.clone();
            let asks = std::thread::spawn(move || {
                asked.write_durably_later(vec![(8192, block(9))], Box::new(move |r| tell.send(r).unwrap()));
            });
            assert!(told.recv_timeout(Duration::from_millis(20)).is_err() && has(&below.memory, 8192, 0), "{by:?}");
            pass.send(Ok(())).unwrap();
            pass.send(Ok(())).unwrap();
            assert_eq!(told.recv().unwrap(), Ok(()), "{by:?}");
            asks.join().unwrap();
            assert!(has(&below.memory, 0, 1) && has(&below.memory, 8192, 9), "{by:?}");
        }
    }

    #[test]
    fn a_write_that_fails_stays_and_nothing_is_durable_until_it_is_written() {
        for by in [Writers::Callers, Writers::Own] {
            let (below, device, _pass) = gather(by);
            // Writers of its own and who flushes may all try, in any order.
            below.fails.store(true, Ordering::Relaxed);
            device.write_soon(0, &block(1)).unwrap();
            assert_eq!(device.flush(), Err(IoError::Media), "{by:?}");
            assert_eq!(below.flushes.load(Ordering::Relaxed), 0);
            assert!(has(&*device, 0, 1) && has(&below.memory, 0, 0));
            *below.gate.lock() = None;
            below.fails.store(false, Ordering::Relaxed);
            device.flush().unwrap();
            assert!(has(&below.memory, 0, 1) && device.gathered_bytes() <= 1 << 20);
        }
    }

    #[test]
    fn places_without_room_and_those_that_are_taken_are_written_at_once() {
        let (below, device, pass) = gather(Writers::Callers);
        device.discard(0, SIZE as u64).unwrap();
        pass.send(Err(IoError::NoSpace)).unwrap();
        assert_eq!(device.write_soon(0, &block(1)), Err(IoError::NoSpace), "nothing was promised");
        pass.send(Ok(())).unwrap();
        device.write_soon(0, &block(2)).unwrap();
        assert!(has(&below.memory, 0, 2) && device.gathered_bytes() == 0, "there is room now");
        device.write_soon(4096, &block(3)).unwrap();
        assert!(has(&below.memory, 4096, 0xDD));
        // One after the other where they meet.
        pass.send(Ok(())).unwrap();
        pass.send(Ok(())).unwrap();
        device.write(4096, &block(4)).unwrap();
        assert!(has(&below.memory, 4096, 4) && device.gathered_bytes() == 0);
        assert!(device.write_soon(SIZE as u64, &block(1)).is_err());
    }

    #[test]
    fn no_more_is_gathered_than_there_is_room() {
        let (_, device, pass) = gather(Writers::Callers);
        let many = (1 << 20) / Buf::memory_of(BLOCK) as u64;
        (0..many).for_each(|i| device.write_soon(i * 4096, &block(i as u8)).unwrap());
        assert_eq!(device.gathered_bytes(), 1 << 20);
        pass.send(Ok(())).unwrap();
        device.write_soon(many * 4096, &block(7)).unwrap();
        assert_eq!(device.gathered_bytes(), 1 << 20, "who finds no room writes himself");
    }

    #[test]
    fn who_is_told_may_be_the_last_who_has_it() {
        for told_by_writer in [true, false] {
            let (below, device, pass) = gather(Writers::Own);
            device.write_soon(0, &block(1)).unwrap();
            let last = device.clone();
            let (tell, told) = channel();
            let has_told = move |r: IoResult<()>| {
                drop(last);
                tell.send(r).unwrap();
            };
            if told_by_writer {
                device.write_durably_later(vec![(8192, block(2))], Box::new(has_told));
                drop(device);
                pass.send(Ok(())).unwrap();
                pass.send(Ok(())).unwrap();
            } else {
                // While one is being written.
                std::thread::sleep(Duration::from_millis(5));
                drop(device);
                has_told(Ok(()));
                pass.send(Ok(())).unwrap();
            }
            assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), Ok(()));
            let began = Instant::now();
            while Arc::strong_count(&below) > 1 {
                assert!(began.elapsed() < Duration::from_secs(20), "a writer keeps it");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_durable_write_whose_data_was_given_up_is_told_so() {
        let (below, device, pass) = gather(Writers::Own);
        // More than there are writers.
        (0..=WRITERS as u64).for_each(|i| device.write_soon(i * 4096, &block(1)).unwrap());
        let (tell, told) = channel();
        device.write_durably_later(vec![(1 << 20, block(9))], Box::new(move |r| tell.send(r).unwrap()));
        drop(device);
        (0..=WRITERS).for_each(|_| pass.send(Ok(())).unwrap());
        assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), Err(IoError::Gone));
        assert!(has(&below.memory, 1 << 20, 0));
    }

    #[test]
    fn who_often_waits_for_stable_storage_finds_little_gathered() {
        let (below, device, _pass) = gather(Writers::Own);
        *below.gate.lock() = None;
        let large = vec![5; 1 << 20];
        // Once at least nothing comes between, so that disks could not have written as much meanwhile.
        for _ in 0..1000 {
            below.memory.write(0, &block(0)).unwrap();
            let began = Instant::now();
            device.flush().unwrap();
            device.write_soon(0, &large).unwrap();
            let at_once = has(&below.memory, 0, 5);
            if began.elapsed() < Duration::from_micros(large.len() as u64 / BYTES_A_MICROSECOND) {
                assert!(at_once, "it stayed in memory");
                return;
            }
            device.flush().unwrap();
        }
        panic!("the machine is too slow for this test");
    }
}
