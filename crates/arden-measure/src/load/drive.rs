//! The loop: keeps so many requests in flight (closed), or sends them when they are due whatever the answers do (open).
//!
//! What counts: an answer counts for throughput when it comes within the window, a latency when its request was due within
//! it. In the open loop a request is due by the clock, and its latency begins there: a target that stalls is charged for
//! everything that should have been sent meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arden_block::rng::Rng;

use super::{
    content::Content,
    figures::Recorder,
    profile::{Access, Profile},
    target::{Done, Kind, Op, Target},
};
use crate::{Result, fail};

/// How long answers may still come when the window is over.
const GRACE_NS: u64 = 30_000_000_000;
const FILL_BYTES: u32 = 1 << 20;
const FILL_IN_FLIGHT: usize = 8;

/// With fewer in flight, what was sent goes out at once, and what came before is counted while it is under way. With more,
/// something is under way anyhow, and system calls are saved.
const FEW: usize = 4;

/// What one client asks for.
#[derive(Debug, Clone)]
pub struct Load {
    pub access: Access,
    pub read_percent: u8,
    pub block_bytes: u32,
    /// The part of the target that is used: from here,
    pub base_bytes: u64,
    /// so much.
    pub file_bytes: u64,
    /// Requests in flight; in the open loop the most that may be.
    pub outstanding: usize,
    /// Requests a second: the open loop.
    pub rate: Option<f64>,
    /// Writes are durable before they are acknowledged.
    pub durable: bool,
    pub seed: u64,
    /// Where a sequential load begins, in blocks.
    pub first_block: u64,
}

impl Load {
    /// A profile on the first `file_bytes` of a target, `outstanding` requests in flight, without a rate and not durable.
    pub fn of(profile: &Profile, outstanding: usize, file_bytes: u64) -> Load {
        Load {
            access: profile.access,
            read_percent: profile.read_percent,
            block_bytes: profile.block_bytes,
            base_bytes: 0,
            file_bytes,
            outstanding,
            rate: None,
            durable: false,
            seed: 0x5EED ^ outstanding as u64,
            first_block: 0,
        }
    }
}

/// How long.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub warm_up_ns: u64,
    pub measure_ns: u64,
}

/// What can be seen and done from outside while a load runs.
#[derive(Debug, Default)]
pub struct Live {
    pub answers: AtomicU64,
    pub bytes: AtomicU64,
    /// Set to end a load early; what was measured is kept.
    pub stop: AtomicBool,
}

impl Live {
    /// Asks whether to go on, between two measurements.
    ///
    /// # Errors
    /// When somebody set `stop`.
    pub fn go_on(&self) -> Result<()> {
        if self.stop.load(Relaxed) {
            fail!("stopped");
        }
        Ok(())
    }
}

/// What came of it; with a problem it is what was seen until then.
#[derive(Debug)]
pub struct Measured {
    pub recorder: Recorder,
    pub problem: Option<String>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    due_ns: u64,
    offset: u64,
    read: bool,
}

struct Drive<'a> {
    target: &'a mut dyn Target,
    load: &'a Load,
    content: &'a mut Content,
    rng: Rng,
    blocks: u64,
    cursor: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Answers that are not counted yet, and when they came.
    taken: Vec<(Slot, u64)>,
    begin_ns: u64,
    end_ns: u64,
    recorder: Recorder,
}

impl Drive<'_> {
    fn pick(&mut self) -> u64 {
        match self.load.access {
            Access::Random => self.rng.below(self.blocks),
            Access::Sequential => {
                let block = self.cursor % self.blocks;
                self.cursor = block + 1;
                block
            }
        }
    }

    /// Sends one request that was due at `due_ns`; false: every block is busy.
    fn send(&mut self, due_ns: u64) -> Result<bool> {
        let bytes = self.load.block_bytes;
        let base = self.load.base_bytes;
        let place = |block: u64| base + block * u64::from(bytes);
        let mut offset = place(self.pick());
        let mut tries = 0;
        while !self.content.reserve(offset) {
            tries += 1;
            if tries > 1000 {
                return Ok(false);
            }
            offset = place(self.pick());
        }
        let Some(tag) = self.free.pop() else { return Ok(false) };
        let read = match self.load.read_percent {
            100 => true,
            0 => false,
            percent => self.rng.below(100) < u64::from(percent),
        };
        self.slots[tag as usize] = Slot { due_ns, offset, read };
        let kind = if read { Kind::Read } else { Kind::Write };
        let op =
            Op { kind, offset, bytes, durable: self.load.durable, tag, want_data: read && self.content.verifies() };
        let data = (!read).then(|| self.content.next(offset, bytes));
        self.target.start(op, data.as_ref())?;
        Ok(true)
    }

    /// Takes one answer, so that another request may take its place.
    fn take(&mut self, done: Done) -> Result<()> {
        let slot = self.slots[done.tag as usize];
        self.free.push(done.tag);
        let (offset, bytes) = (slot.offset, self.load.block_bytes);
        if let Some(error) = done.error {
            self.content.forget(offset, bytes);
            self.content.release(offset);
            fail!("{} of {bytes} bytes at {offset}: {error}", if slot.read { "read" } else { "write" });
        }
        if let Some(data) = &done.data
            && self.content.check(offset, data)?
        {
            self.recorder.verified += 1;
        }
        self.content.release(offset);
        self.taken.push((slot, done.at_ns));
        Ok(())
    }

    /// Counts what was taken.
    fn count(&mut self, live: &Live) {
        let answers = self.taken.len() as u64;
        live.answers.fetch_add(answers, Relaxed);
        live.bytes.fetch_add(answers * u64::from(self.load.block_bytes), Relaxed);
        for i in 0..self.taken.len() {
            let (slot, at_ns) = self.taken[i];
            self.count_one(slot, at_ns);
        }
        self.taken.clear();
    }

    fn count_one(&mut self, slot: Slot, at_ns: u64) {
        if (self.begin_ns..self.end_ns).contains(&slot.due_ns) {
            self.recorder.latency(at_ns.saturating_sub(slot.due_ns));
        }
        if (self.begin_ns..self.end_ns).contains(&at_ns) {
            self.recorder.answer(slot.read, self.load.block_bytes, at_ns - self.begin_ns);
        }
    }

    fn run(&mut self, start_ns: u64, live: &Live) -> Result<()> {
        let interval_ns = self.load.rate.map(|rate| 1e9 / rate);
        let (mut sent, mut done) = (0u64, Vec::new());
        loop {
            let now = self.target.now_ns();
            let over = now >= self.end_ns || live.stop.load(Relaxed);
            let mut next_due = None;
            if !over {
                match interval_ns {
                    None => while !self.free.is_empty() && self.send(now)? {},
                    Some(interval) => loop {
                        let due = start_ns + (sent as f64 * interval) as u64;
                        if due > now {
                            next_due = Some(due);
                            break;
                        }
                        if self.free.is_empty() || !self.send(due)? {
                            break;
                        }
                        sent += 1;
                    },
                }
            }
            if self.slots.len() < FEW {
                self.target.send();
            }
            self.count(live);
            if self.free.len() == self.slots.len() && over {
                break;
            }
            let until = next_due.map_or(self.end_ns + GRACE_NS, |due| due.min(self.end_ns));
            self.target.wait(Some(until), &mut done)?;
            for one in done.drain(..) {
                self.take(one)?;
            }
            if self.target.now_ns() >= self.end_ns + GRACE_NS {
                fail!("no answer for {} s", GRACE_NS / 1_000_000_000);
            }
        }
        if let Some(interval) = interval_ns {
            self.unsent(start_ns, interval, sent);
        }
        Ok(())
    }

    /// Requests that were due and never went: they waited at least until the window ended.
    fn unsent(&mut self, start_ns: u64, interval: f64, mut sent: u64) {
        loop {
            let due = start_ns + (sent as f64 * interval) as u64;
            if due >= self.end_ns {
                break;
            }
            if due >= self.begin_ns {
                self.recorder.unsent += 1;
                self.recorder.latency(self.end_ns - due);
            }
            sent += 1;
        }
    }
}

/// Whether a load is possible on a target at all.
///
/// # Errors
/// The reason why it is not: the target's granule, a file smaller than a block, nothing to send.
pub fn check(target: &dyn Target, load: &Load) -> Result<()> {
    let granule = target.granule_bytes();
    if load.block_bytes == 0 || load.block_bytes % granule != 0 || load.base_bytes % u64::from(granule) != 0 {
        fail!("this target takes blocks that are multiples of {granule} bytes, not {}", load.block_bytes);
    }
    if load.file_bytes < u64::from(load.block_bytes) {
        fail!("the file is too small: {} bytes for blocks of {}", load.file_bytes, load.block_bytes);
    }
    if load.outstanding == 0 || load.rate.is_some_and(|r| !(r > 0.0 && r <= 1e9)) {
        fail!("there has to be something to send");
    }
    Ok(())
}

/// Runs a load for a window. Whatever goes wrong, what was seen until then is kept.
pub fn drive(target: &mut dyn Target, load: &Load, window: Window, content: &mut Content, live: &Live) -> Measured {
    let recorder = Recorder::new(window.measure_ns);
    if let Err(e) = check(target, load) {
        return Measured { recorder, problem: Some(e.to_string()) };
    }
    let start_ns = target.now_ns();
    let begin_ns = start_ns + window.warm_up_ns;
    let mut d = Drive {
        blocks: load.file_bytes / u64::from(load.block_bytes),
        cursor: load.first_block,
        rng: Rng::new(load.seed),
        slots: vec![Slot::default(); load.outstanding],
        free: (0..load.outstanding as u32).rev().collect(),
        taken: Vec::with_capacity(load.outstanding),
        begin_ns,
        end_ns: begin_ns + window.measure_ns,
        target,
        load,
        content,
        recorder,
    };
    let mut problem = d.run(start_ns, live).err().map(|e| e.to_string());
    d.count(live);
    let now = d.target.now_ns();
    if now < d.end_ns {
        // Rates are of the time that was really measured.
        d.recorder.window_ns = now.saturating_sub(begin_ns).max(1);
        problem = problem.or_else(|| Some("stopped early".to_string()));
    }
    Measured { recorder: d.recorder, problem }
}

/// Writes the whole file once, so that reads find something.
///
/// # Errors
/// A write or the flush that failed, or `live.stop`.
pub fn fill(target: &mut dyn Target, file_bytes: u64, content: &mut Content, live: &Live) -> Result<()> {
    let (mut at, mut in_flight, mut done) = (0, 0, Vec::new());
    while at < file_bytes || in_flight > 0 {
        while at < file_bytes && in_flight < FILL_IN_FLIGHT {
            let bytes = u64::from(FILL_BYTES).min(file_bytes - at) as u32;
            let data = content.first(at, bytes);
            let tag = (at / u64::from(FILL_BYTES)) as u32;
            let op = Op { kind: Kind::Write, offset: at, bytes, durable: false, tag, want_data: false };
            target.start(op, Some(&data))?;
            (at, in_flight) = (at + u64::from(bytes), in_flight + 1);
        }
        target.wait(None, &mut done)?;
        for one in done.drain(..) {
            in_flight -= 1;
            live.bytes.fetch_add(u64::from(FILL_BYTES), Relaxed);
            if let Some(error) = one.error {
                fail!("filling the test file, {at} of {file_bytes} bytes: {error}");
            }
        }
        if live.stop.load(Relaxed) {
            fail!("stopped while the test file was filled");
        }
    }
    flush(target)
}

/// Waits until everything that was written is on stable storage. Nothing else may be under way.
///
/// # Errors
/// What the target says of the flush.
pub fn flush(target: &mut dyn Target) -> Result<()> {
    let mut done = Vec::new();
    let op = Op { kind: Kind::Flush, offset: 0, bytes: 0, durable: false, tag: 0, want_data: false };
    target.start(op, None)?;
    while done.is_empty() {
        target.wait(None, &mut done)?;
    }
    match done.pop().and_then(|d| d.error) {
        Some(error) => fail!("flushing the test file: {error}"),
        None => Ok(()),
    }
}
