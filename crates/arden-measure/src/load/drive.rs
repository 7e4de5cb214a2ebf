//! The loop that drives a target: it keeps a number of requests in flight (closed loop), or sends requests when they
//! are due, whatever the answers do (open loop).
//!
//! Throughput counts the answers that arrive in the window. Latency counts the requests that are due in it. In the open
//! loop a request is due at a time of the clock, and its latency begins there: a stall of the target delays all
//! requests that are due meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arden_block::rng::Rng;

use super::{
    content::Content,
    figures::Recorder,
    profile::{Access, Profile},
    target::{Done, Kind, Op, Target},
};
use crate::{Result, fail};

/// Time in ns for which answers are awaited after the window.
const GRACE_NS: u64 = 30_000_000_000;
const FILL_BYTES: u32 = 1 << 20;
const FILL_IN_FLIGHT: usize = 8;

/// With fewer requests in flight, a request is sent at once, and answers are counted while it is in flight. With more,
/// requests are collected, which saves system calls.
const FEW: usize = 4;

/// The load of one client.
#[derive(Debug, Clone)]
pub struct Load {
    pub access: Access,
    pub read_percent: u8,
    pub block_bytes: u32,
    /// The first byte of the used part of the target.
    pub base_bytes: u64,
    /// The size in bytes of the used part of the target.
    pub file_bytes: u64,
    /// Requests in flight; in the open loop their maximum.
    pub outstanding: usize,
    /// Requests a second, in the open loop.
    pub rate: Option<f64>,
    /// Writes are durable before they are answered.
    pub durable: bool,
    pub seed: u64,
    /// The block at which a sequential load begins.
    pub first_block: u64,
}

impl Load {
    /// A profile on the first `file_bytes` of a target with `outstanding` requests in flight: closed loop, not durable.
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

/// Warm-up and measured time in ns.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub warm_up_ns: u64,
    pub measure_ns: u64,
}

/// Counters of a running load, and the request to stop it.
#[derive(Debug, Default)]
pub struct Live {
    pub answers: AtomicU64,
    pub bytes: AtomicU64,
    /// Ends the load early when set. The result until then is kept.
    pub stop: AtomicBool,
}

impl Live {
    /// Checks between two measurements whether to continue.
    ///
    /// # Errors
    /// `stop` is set.
    pub fn go_on(&self) -> Result<()> {
        if self.stop.load(Relaxed) {
            fail!("stopped");
        }
        Ok(())
    }
}

/// The result of one measurement; with a problem, that of the time before.
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
    /// Answers that are not counted yet, with the times of their arrival.
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

    /// Sends one request that was due at `due_ns`; false when every block is reserved.
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

    /// Takes one answer, which makes room for another request.
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

    /// Counts the answers that were taken.
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

    /// Counts the requests that were due and not sent. Their latency is at least the time until the window ended.
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

/// Checks that a target can serve a load.
///
/// # Errors
/// The block size is no multiple of the target's granule, the file is smaller than a block, or there is nothing to
/// send.
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

/// Runs a load for a window. A problem ends it; the result until then is kept.
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
        // Rates refer to the time that was measured.
        d.recorder.window_ns = now.saturating_sub(begin_ns).max(1);
        problem = problem.or_else(|| Some("stopped early".to_string()));
    }
    Measured { recorder: d.recorder, problem }
}

/// Writes the whole file once, so that reads have data.
///
/// # Errors
/// A write or the flush failed, or `live.stop` is set.
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

/// Flushes all writes to stable storage. No request may be in flight.
///
/// # Errors
/// The flush failed.
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
