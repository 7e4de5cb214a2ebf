//! A simulated disk: content in memory, a volatile write cache that a crash empties sector by
//! sector, faults on request, and latency from a generator or a timing model. The content
//! outlives the runtime that drove it, so that a crash is: drop the runtime, call
//! [`SimDisk::crash`], attach to a new one.

mod counters;
mod faults;
mod initiators;
mod queue;
mod shared;

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::buf::{Buf, SharedBuf};
use crate::rng::Rng;
use crate::rt::Rt;
use crate::sync::Oneshot;
use crate::timing::Model;
pub use counters::Counters;
use initiators::Initiators;
pub use initiators::{Initiator, Reservation, Watcher};
use queue::{Queue, service, service_flush};

use crate::{
    BLOCK_BYTES, BlockDevice, DeviceInfo, IoError, IoResult, LocalFuture, Media, SECTOR_BYTES, SharedReads, check_range,
};

/// The byte that a discarded range is filled with.
const DISCARDED: u8 = 0xDD;
const SECTORS_A_BLOCK: usize = (BLOCK_BYTES / SECTOR_BYTES) as usize;

/// Random faults and latency. `_ppm`: how many of a million operations.
#[derive(Debug, Clone)]
pub struct Faults {
    pub read_error_ppm: u32,
    /// Reads of one place fail by chance at most so often until faults are set anew, whoever reads in between.
    pub read_errors_at_a_place: u32,
    pub write_error_ppm: u32,
    pub misdirect_ppm: u32,
    /// A write that is acknowledged and never happens.
    pub lost_ppm: u32,
    /// A flush that fails and drops some of what was cached: the next one succeeds.
    pub flush_error_ppm: u32,
    /// A flush that is acknowledged and leaves everything in the cache.
    pub flush_ignored_ppm: u32,
    pub latency_min_ns: u64,
    pub latency_max_ns: u64,
    /// Operations that take this much longer: a retry within the disk.
    pub stall_ppm: u32,
    pub stall_ns: u64,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            read_error_ppm: 0,
            read_errors_at_a_place: u32::MAX,
            write_error_ppm: 0,
            misdirect_ppm: 0,
            lost_ppm: 0,
            flush_error_ppm: 0,
            flush_ignored_ppm: 0,
            latency_min_ns: 20_000,
            latency_max_ns: 200_000,
            stall_ppm: 0,
            stall_ns: 0,
        }
    }
}

type Page = SharedBuf;

/// A write that a crash may undo.
struct Cached {
    id: u64,
    from: Initiator,
    offset: u64,
    data: SharedBuf,
    /// It was asked for as one that the cache does not keep.
    durable: bool,
    done: bool,
    /// Blocks that a later durable write has replaced.
    dead_blocks: Vec<u64>,
}

struct State {
    media: HashMap<u64, Page>,
    visible: HashMap<u64, Page>,
    cache: Vec<Cached>,
    next_id: u64,
    bad_blocks: BTreeSet<u64>,
    dead: bool,
    /// Operations that wait while the disk hangs; `None` while it does not.
    hung: Option<Vec<Oneshot<()>>>,
    /// Counts deaths: what was in flight across one has failed.
    deaths: u64,
    /// The next operation takes so much longer; how many such are under way.
    stick_ns: Option<u64>,
    stuck: u32,
    /// The next flush fails.
    flush_fails: bool,
    /// A flush failed, and the disk was not revived since: its user may not know yet.
    flush_failed: bool,
    /// The next write fails, at whatever place, and so does each further try there: the place, and how many tries are left.
    failing_write: Option<(Option<u64>, u32)>,
    /// When the last such try failed.
    write_failed_ns: Option<u64>,
    /// Tells when a write to this range is asked for.
    trap: Option<Range<u64>>,
    sprung: bool,
    faults: Faults,
    /// Reads that failed by chance since faults were set, by place.
    failed_reads: HashMap<u64, u32>,
    rng: Rng,
    counters: Counters,
    /// Ranges damaged silently (misdirected or lost writes), for the oracle.
    silent: Vec<(u64, u64)>,
    keep_data: bool,
    initiators: Initiators,
}

/// The disk itself; [`SimDisk::attach`] gives a device for one runtime.
#[derive(Clone)]
pub struct SimDisk {
    state: Rc<RefCell<State>>,
    info: Rc<DeviceInfo>,
    model: Option<Rc<Model>>,
}

impl SimDisk {
    pub fn new(name: &str, size_bytes: u64, seed: u64) -> SimDisk {
        SimDisk::build(name, size_bytes, seed, None, true)
    }

    /// A disk that takes the time that `model` says. With `keep_data` off it forgets what is
    /// written beyond its first 64 MiB (for long runs of which only the timing matters).
    pub fn timed(name: &str, size_bytes: u64, seed: u64, model: Model, keep_data: bool) -> SimDisk {
        SimDisk::build(name, size_bytes, seed, Some(model), keep_data)
    }

    fn build(name: &str, size_bytes: u64, seed: u64, model: Option<Model>, keep_data: bool) -> SimDisk {
        let media = match &model {
            Some(Model::Rotating(_)) => Media::Rotating,
            Some(Model::Ssd(_)) => Media::Ssd,
            None => Media::Unknown,
        };
        let info = DeviceInfo {
            name: name.to_string(),
            size_bytes: size_bytes / BLOCK_BYTES * BLOCK_BYTES,
            media,
            model: "simulated".into(),
            serial: name.to_string(),
        };
        let state = State {
            media: HashMap::new(),
            visible: HashMap::new(),
            cache: Vec::new(),
            next_id: 0,
            bad_blocks: BTreeSet::new(),
            dead: false,
            hung: None,
            deaths: 0,
            stick_ns: None,
            stuck: 0,
            flush_fails: false,
            flush_failed: false,
            failing_write: None,
            write_failed_ns: None,
            trap: None,
            sprung: false,
            faults: Faults::default(),
            failed_reads: HashMap::new(),
            rng: Rng::new(seed),
            counters: Counters::default(),
            silent: Vec::new(),
            keep_data,
            initiators: Initiators::default(),
        };
        SimDisk { state: Rc::new(RefCell::new(state)), info: Rc::new(info), model: model.map(Rc::new) }
    }

    /// The disk as a device of the runtime `rt`.
    pub fn attach(&self, rt: &Rt) -> Rc<dyn BlockDevice> {
        self.attach_as(rt, Initiator::default())
    }

    /// Sets the random faults and the latency from now on.
    pub fn set_faults(&self, faults: Faults) {
        let s = &mut *self.state.borrow_mut();
        s.faults = faults;
        s.failed_reads.clear();
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.state.borrow().counters.clone()
    }

    /// Damage done silently since the last call: `(offset, len)`.
    pub fn take_silent_damage(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.state.borrow_mut().silent)
    }

    /// The disk stops answering; what its cache held is lost as in a crash.
    pub fn kill(&self) {
        self.crash();
        {
            let mut s = self.state.borrow_mut();
            s.dead = true;
            s.deaths += 1;
            s.counters.deaths += 1;
        }
        self.resume();
    }

    /// The disk answers nothing until [`SimDisk::resume`]; then what it was asked happens.
    pub fn hang(&self) {
        self.state.borrow_mut().hung.get_or_insert_with(Vec::new);
    }

    /// Whether the disk hangs.
    pub fn is_hung(&self) -> bool {
        self.state.borrow().hung.is_some()
    }

    /// Ends a hang: the operations that wait take effect.
    pub fn resume(&self) {
        let waiting = self.state.borrow_mut().hung.take().unwrap_or_default();
        waiting.into_iter().for_each(|w| w.set(()));
    }

    /// Before an operation has its effect: waits as long as the disk hangs.
    async fn awake(&self) {
        loop {
            let wait = {
                let mut s = self.state.borrow_mut();
                let Some(list) = &mut s.hung else { return };
                let wait = Oneshot::new();
                list.push(wait.clone());
                s.counters.hung += 1;
                wait
            };
            wait.await;
        }
    }

    /// Waits until a command is served that was taken when the disk had died `deaths` times: `wait` is the time it takes,
    /// and it may be stuck for `stuck` ns more. `from` is whose it is, and whether it changes the disk.
    ///
    /// # Errors
    /// [`IoError::Gone`] when the disk died meanwhile, also when it is back, and when it does not take commands of `from`.
    async fn served(
        &self,
        wait: impl Future<Output = ()>,
        stuck: Option<u64>,
        deaths: u64,
        rt: &Rt,
        from: (Initiator, bool),
    ) -> IoResult<RefMut<'_, State>> {
        wait.await;
        if let Some(ns) = stuck {
            self.be_stuck(rt, ns).await;
        }
        self.awake().await;
        let s = self.state.borrow_mut();
        if s.dead || s.deaths != deaths || !s.initiators.admits(from.0, from.1) { Err(IoError::Gone) } else { Ok(s) }
    }

    /// Whether a command fails as soon as it is sent.
    fn refuses(&self, from: (Initiator, bool)) -> bool {
        let s = self.state.borrow();
        s.dead || !s.initiators.admits(from.0, from.1)
    }

    /// A dead disk answers again, with what was on stable storage.
    pub fn revive(&self) {
        let mut s = self.state.borrow_mut();
        (s.dead, s.flush_failed) = (false, false);
        (s.failing_write, s.write_failed_ns) = (None, None);
    }

    /// Whether the disk has stopped answering for good.
    pub fn is_dead(&self) -> bool {
        self.state.borrow().dead
    }

    /// The block can no longer be read until it is written again.
    pub fn break_block(&self, offset: u64) {
        self.state.borrow_mut().bad_blocks.insert(offset / BLOCK_BYTES);
    }

    /// Flips bits in one sector without anybody noticing.
    pub fn rot(&self, offset: u64) {
        let mut s = self.state.borrow_mut();
        s.counters.rotted += 1;
        let block = offset / BLOCK_BYTES;
        let mut page = s.page(block).map_or_else(|| vec![0; BLOCK_BYTES as usize], |p| p.to_vec());
        let at = (offset % BLOCK_BYTES) as usize;
        for b in &mut page[at..at + 16] {
            *b ^= 0x5A;
        }
        let page: Page = Buf::copy_of(&page).share();
        s.media.insert(block, page.clone());
        if s.visible.contains_key(&block) {
            s.visible.insert(block, page);
        }
    }

    /// Every byte gone: the disk was replaced by an empty one.
    pub fn erase(&self) {
        let mut s = self.state.borrow_mut();
        s.media.clear();
        s.visible.clear();
        s.cache.clear();
        s.bad_blocks.clear();
    }

    /// Power is lost: each sector of each write that was not durable survives or not, on its
    /// own or by whole writes, in any order.
    pub fn crash(&self) {
        let s = &mut *self.state.borrow_mut();
        s.visible.clear();
        let mut cache = std::mem::take(&mut s.cache);
        // Any order: a shuffled application is what reordering looks like from outside.
        for i in (1..cache.len()).rev() {
            let j = s.rng.below(i as u64 + 1) as usize;
            cache.swap(i, j);
        }
        for w in cache {
            let sectors = w.data.len() / SECTOR_BYTES as usize;
            let mode = s.rng.below(4);
            let cut = s.rng.below(sectors as u64 + 1) as usize;
            let mut kept = 0;
            for i in 0..sectors {
                let keep = match mode {
                    0 => false,
                    1 => true,
                    2 => i < cut,
                    _ => s.rng.one_in(2),
                };
                kept += usize::from(keep);
                let block = w.offset / BLOCK_BYTES + (i / SECTORS_A_BLOCK) as u64;
                if keep && !w.dead_blocks.contains(&block) {
                    let at = i * SECTOR_BYTES as usize;
                    s.put_sector(block, i % SECTORS_A_BLOCK, &w.data[at..at + SECTOR_BYTES as usize]);
                }
            }
            let counters = &mut s.counters;
            *match kept {
                0 => &mut counters.undone,
                n if n == sectors => &mut counters.survived,
                _ => &mut counters.torn,
            } += 1;
        }
    }

    /// The content as it is now, for tests that look at the disk from outside.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        self.state.borrow().read(offset, len).to_vec()
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }
}

impl State {
    fn page(&self, block: u64) -> Option<&Page> {
        self.visible.get(&block).or_else(|| self.media.get(&block))
    }

    fn put_sector(&mut self, block: u64, sector: usize, data: &[u8]) {
        let old = self.media.get(&block);
        let mut page = old.map_or_else(|| vec![0; BLOCK_BYTES as usize], |p| p.to_vec());
        let at = sector * SECTOR_BYTES as usize;
        page[at..at + data.len()].copy_from_slice(data);
        self.media.insert(block, Buf::copy_of(&page).share());
        self.bad_blocks.remove(&block);
    }

    fn read(&self, offset: u64, len: usize) -> Buf {
        let mut buf = Buf::new(len);
        for (i, chunk) in buf.chunks_mut(BLOCK_BYTES as usize).enumerate() {
            match self.page(offset / BLOCK_BYTES + i as u64) {
                Some(p) => chunk.copy_from_slice(p),
                None => chunk.fill(0),
            }
        }
        buf
    }

    /// Does a read at `offset` fail by chance?
    fn read_fails(&mut self, offset: u64) -> bool {
        if !self.rng.ppm(self.faults.read_error_ppm) {
            return false;
        }
        let failed = self.failed_reads.entry(offset).or_default();
        let fails = *failed < self.faults.read_errors_at_a_place;
        *failed += u32::from(fails);
        self.counters.read_errors += u64::from(fails);
        fails
    }

    fn keeps(&self, offset: u64) -> bool {
        self.keep_data || offset < 64 << 20
    }

    /// A write is on its way; gives its number.
    fn submit(&mut self, from: Initiator, offset: u64, data: &SharedBuf, durable: bool) -> u64 {
        self.next_id += 1;
        let (id, data) = (self.next_id, data.clone());
        if self.keeps(offset) {
            self.cache.push(Cached { id, from, offset, data, durable, done: false, dead_blocks: Vec::new() });
        }
        id
    }

    /// A write reached the disk; `durable` also past its cache.
    fn land(&mut self, id: u64, from: Initiator, offset: u64, data: &SharedBuf, durable: bool) {
        self.initiators.tell(from, offset, data);
        self.put(id, from, offset, data, durable);
    }

    fn put(&mut self, id: u64, from: Initiator, offset: u64, data: &SharedBuf, durable: bool) {
        for i in 0..data.len() / BLOCK_BYTES as usize {
            let block = offset / BLOCK_BYTES + i as u64;
            self.bad_blocks.remove(&block);
            if !self.keeps(block * BLOCK_BYTES) {
                continue;
            }
            let page = page_of(data, i);
            if durable {
                self.visible.remove(&block);
                self.media.insert(block, page);
            } else {
                self.visible.insert(block, page);
            }
        }
        if durable {
            let (first, last) = (offset / BLOCK_BYTES, (offset + data.len() as u64) / BLOCK_BYTES);
            for w in &mut self.cache {
                let (a, b) = (w.offset / BLOCK_BYTES, (w.offset + w.data.len() as u64) / BLOCK_BYTES);
                if w.id != id && w.done && a < last && first < b {
                    w.dead_blocks.extend(first.max(a)..last.min(b));
                }
            }
            self.cache.retain(|w| w.id != id);
        } else if let Some(w) = self.cache.iter_mut().find(|w| w.id == id) {
            w.done = true;
            w.offset = offset;
        } else if self.keeps(offset) {
            // The cache was lost while it was on its way, or it was ended.
            let data = data.clone();
            self.cache.push(Cached { id, from, offset, data, durable, done: true, dead_blocks: Vec::new() });
        }
    }

    /// Everything that was complete when the flush began is durable now.
    fn settle(&mut self, up_to: &BTreeSet<u64>) {
        let (settled, rest): (Vec<Cached>, Vec<Cached>) =
            std::mem::take(&mut self.cache).into_iter().partition(|w| up_to.contains(&w.id));
        self.cache = rest;
        for w in settled {
            for i in 0..w.data.len() / BLOCK_BYTES as usize {
                let block = w.offset / BLOCK_BYTES + i as u64;
                if !w.dead_blocks.contains(&block) && self.keeps(block * BLOCK_BYTES) {
                    self.media.insert(block, page_of(&w.data, i));
                }
            }
        }
        self.visible.clear();
        let mut visible = HashMap::new();
        for w in self.cache.iter().filter(|w| w.done) {
            for i in 0..w.data.len() / BLOCK_BYTES as usize {
                let block = w.offset / BLOCK_BYTES + i as u64;
                if !w.dead_blocks.contains(&block) && self.keeps(block * BLOCK_BYTES) {
                    visible.insert(block, page_of(&w.data, i));
                }
            }
        }
        self.visible = visible;
    }
}

fn page_of(data: &SharedBuf, i: usize) -> Page {
    data.slice(i * BLOCK_BYTES as usize, BLOCK_BYTES as usize)
}

struct SimDevice {
    disk: SimDisk,
    rt: Rt,
    queue: Rc<RefCell<Queue>>,
    from: Initiator,
}

impl SimDevice {
    /// A read whose time passes on `rt`.
    fn read_on(&self, rt: &Rt, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        if let Err(e) = check_range(self.disk.info.size_bytes, offset, len as u64) {
            return fail(e);
        }
        let disk = self.disk.clone();
        let from = (self.from, false);
        if disk.refuses(from) {
            return fail(IoError::Gone);
        }
        let deaths = disk.state.borrow().deaths;
        let wait = service(disk.clone(), rt.clone(), self.queue.clone(), offset, len as u64, false, false);
        let (stuck, rt) = (disk.take_stick(), rt.clone());
        Box::pin(async move {
            let mut s = disk.served(wait, stuck, deaths, &rt, from).await?;
            s.counters.reads += 1;
            s.counters.read_bytes += len as u64;
            let blocks = offset / BLOCK_BYTES..(offset + len as u64) / BLOCK_BYTES;
            let unreadable = s.bad_blocks.range(blocks).next().is_some();
            s.counters.unreadable += u64::from(unreadable);
            if s.read_fails(offset) || unreadable {
                return Err(IoError::Media);
            }
            Ok(s.read(offset, len))
        })
    }
}

fn fail<T: 'static>(e: IoError) -> LocalFuture<IoResult<T>> {
    Box::pin(std::future::ready(Err(e)))
}

impl BlockDevice for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.disk.info
    }

    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        self.read_on(&self.rt, offset, len)
    }

    fn shared_reads(&self) -> Option<Arc<dyn SharedReads>> {
        Some(Arc::new(shared::SimReads::of(self)))
    }

    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        let size = self.disk.info.size_bytes;
        if let Err(e) = check_range(size, offset, data.len() as u64) {
            return fail(e);
        }
        let disk = self.disk.clone();
        let from = (self.from, true);
        if disk.refuses(from) {
            return fail(IoError::Gone);
        }
        let deaths = disk.state.borrow().deaths;
        let id = {
            let mut s = disk.state.borrow_mut();
            let id = s.submit(from.0, offset, &data, durable);
            s.sprung |= s.trap.as_ref().is_some_and(|t| t.contains(&offset));
            id
        };
        let wait = service(disk.clone(), self.rt.clone(), self.queue.clone(), offset, data.len() as u64, true, durable);
        let (stuck, rt) = (disk.take_stick(), self.rt.clone());
        Box::pin(async move {
            let s = &mut *disk.served(wait, stuck, deaths, &rt, from).await?;
            if let Some(result) = s.initiators.take_ended(id) {
                return result;
            }
            let now_ns = rt.now_ns();
            s.counters.writes += 1;
            s.counters.write_bytes += data.len() as u64;
            if s.is_failing_write(offset, now_ns) {
                s.cache.retain(|w| w.id != id);
                return Err(IoError::Media);
            }
            let (error, astray, lost) = (s.faults.write_error_ppm, s.faults.misdirect_ppm, s.faults.lost_ppm);
            if s.rng.ppm(error) {
                s.counters.write_errors += 1;
                // It happened or it did not; it does not happen later.
                if s.rng.one_in(2) {
                    s.land(id, from.0, offset, &data, durable);
                } else {
                    s.cache.retain(|w| w.id != id);
                }
                return Err(IoError::Media);
            }
            if s.rng.ppm(lost) {
                s.counters.lost += 1;
                s.silent.push((offset, data.len() as u64));
                s.cache.retain(|w| w.id != id);
                return Ok(());
            }
            let mut place = offset;
            if s.rng.ppm(astray) {
                s.counters.misdirected += 1;
                let room = (size - data.len() as u64) / BLOCK_BYTES;
                place = s.rng.below(room + 1) * BLOCK_BYTES;
                s.silent.push((offset, data.len() as u64));
                s.silent.push((place, data.len() as u64));
            }
            s.land(id, from.0, place, &data, durable);
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        if self.disk.model.is_some() && !self.disk.state.borrow().keep_data {
            return Box::pin(std::future::ready(check_range(self.disk.info.size_bytes, offset, len)));
        }
        self.write(offset, Buf::zeroed(len as usize).share(), false)
    }

    /// The range reads as garbage afterwards; after a crash it may hold the old content.
    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        let disk = self.disk.clone();
        if let Err(e) = check_range(disk.info.size_bytes, offset, len) {
            return fail(e);
        }
        let from = (self.from, true);
        if disk.refuses(from) {
            return fail(IoError::Gone);
        }
        if disk.model.is_some() {
            return Box::pin(std::future::ready(Ok(())));
        }
        let mut garbage = Buf::new(len as usize);
        garbage.fill(DISCARDED);
        let data = garbage.share();
        let (id, deaths) = {
            let s = &mut *disk.state.borrow_mut();
            (s.submit(from.0, offset, &data, false), s.deaths)
        };
        let wait = service(disk.clone(), self.rt.clone(), self.queue.clone(), offset, 0, true, false);
        let (stuck, rt) = (disk.take_stick(), self.rt.clone());
        Box::pin(async move {
            let s = &mut *disk.served(wait, stuck, deaths, &rt, from).await?;
            if let Some(result) = s.initiators.take_ended(id) {
                return result;
            }
            s.land(id, from.0, offset, &data, false);
            Ok(())
        })
    }

    fn flush(&self) -> LocalFuture<IoResult<()>> {
        let disk = self.disk.clone();
        let from = (self.from, true);
        // Asked while it was dead it has failed, even if it is back when the answer is due.
        if disk.refuses(from) {
            return fail(IoError::Gone);
        }
        let deaths = disk.state.borrow().deaths;
        let up_to: BTreeSet<u64> = disk.state.borrow().cache.iter().filter(|w| w.done).map(|w| w.id).collect();
        let wait = service_flush(disk.clone(), self.rt.clone(), self.queue.clone());
        let (stuck, rt) = (disk.take_stick(), self.rt.clone());
        Box::pin(async move {
            let s = &mut *disk.served(wait, stuck, deaths, &rt, from).await?;
            s.counters.flushes += 1;
            s.end_flush(up_to)
        })
    }
}

/// What the tests of disks write.
#[cfg(test)]
fn block(byte: u8) -> SharedBuf {
    let mut b = Buf::new(4096);
    b.fill(byte);
    b.share()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_makes_earlier_writes_survive_and_a_crash_tears_the_rest() {
        let (mut torn, mut lost, mut kept) = (0, 0, 0);
        for seed in 0..200 {
            let disk = SimDisk::new("d", 1 << 20, seed);
            let rt = Rt::virtual_clock(seed);
            let dev = disk.attach(&rt);
            rt.block_on(async move {
                dev.write(0, block(1), false).await.unwrap();
                dev.flush().await.unwrap();
                dev.write(4096, block(2), true).await.unwrap();
                dev.write(0, block(3), false).await.unwrap();
            })
            .unwrap();
            rt.shutdown();
            assert_eq!(disk.peek(0, 4096)[0], 3, "readable at once");
            disk.crash();
            assert!(disk.peek(4096, 4096).iter().all(|&b| b == 2));
            let now = disk.peek(0, 4096);
            assert!(now.chunks(512).all(|s| s.iter().all(|&b| b == s[0]) && (s[0] == 1 || s[0] == 3)));
            match now.iter().filter(|&&b| b == 3).count() {
                0 => lost += 1,
                4096 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(torn > 20 && lost > 20 && kept > 20, "torn {torn} lost {lost} kept {kept}");
    }

    #[test]
    fn one_seed_is_one_history() {
        let run = || {
            let disk = SimDisk::new("d", 1 << 20, 7);
            disk.set_faults(Faults { write_error_ppm: 100_000, ..Faults::default() });
            let rt = Rt::virtual_clock(7);
            let dev = disk.attach(&rt);
            let r = rt.clone();
            rt.block_on(async move {
                let all = (0..64).map(|i| dev.write(i * 4096, block(i as u8), false)).collect();
                (crate::sync::join_all(all).await, r.now_ns())
            })
            .unwrap()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn a_timed_disk_streams_at_its_media_rate() {
        let disk = SimDisk::timed("d", 147_000_000_000, 1, Model::sas_10k_147g(true), false);
        let rt = Rt::virtual_clock(1);
        let dev = disk.attach(&rt);
        let r = rt.clone();
        let ns = rt
            .block_on(async move {
                for i in 0..1000 {
                    dev.read(i << 16, 65536).await.unwrap();
                }
                r.now_ns()
            })
            .unwrap();
        let rate = 1000.0 * 65536.0 / (ns as f64 / 1e9);
        assert!((80e6..92e6).contains(&rate), "{rate}");
    }
}
