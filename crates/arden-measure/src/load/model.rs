//! Targets of known cost, for tests of the generator: one without cost, and a model of a disk in virtual time.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use arden_block::SharedBuf;

use super::target::{Done, Op, Target};
use crate::base::error::Result;

/// A target that completes every request at once, in real time.
pub struct NullTarget {
    began: Instant,
    done: Vec<Done>,
}

impl Default for NullTarget {
    fn default() -> NullTarget {
        NullTarget { began: Instant::now(), done: Vec::new() }
    }
}

impl Target for NullTarget {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
    fn start(&mut self, op: Op, _: Option<&SharedBuf>) -> Result<()> {
        let at_ns = self.now_ns();
        self.done.push(Done { tag: op.tag, at_ns, data: None, error: None });
        Ok(())
    }
    fn wait(&mut self, until_ns: Option<u64>, done: &mut Vec<Done>) -> Result<()> {
        if self.done.is_empty()
            && let Some(until) = until_ns
        {
            std::thread::sleep(Duration::from_nanos(until.saturating_sub(self.now_ns())));
        }
        done.append(&mut self.done);
        Ok(())
    }
}

/// A disk in virtual time. It serves a fixed number of requests at once, each in its latency and the time of its bytes;
/// other requests wait.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub latency_ns: u64,
    /// Bytes a second; 0: transfers take no time.
    pub bytes_s: u64,
    /// The times at which its servers become free.
    free_at: Vec<u64>,
    /// Intervals in ns in which no request begins.
    pub stalls: Vec<(u64, u64)>,
    /// The number of requests after which all fail.
    pub fails_after: Option<u64>,
    now: u64,
    taken: u64,
    due: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Model {
    /// A disk that serves `parallel` requests at once, each in `latency_ns` and the time of its bytes at `bytes_s`
    /// bytes a second.
    pub fn new(latency_ns: u64, bytes_s: u64, parallel: usize) -> Model {
        Model { latency_ns, bytes_s, free_at: vec![0; parallel.max(1)], ..Model::default() }
    }
}

impl Target for Model {
    fn now_ns(&self) -> u64 {
        self.now
    }
    fn start(&mut self, op: Op, _: Option<&SharedBuf>) -> Result<()> {
        self.taken += 1;
        let free = self.free_at.iter_mut().min().expect("at least one");
        let mut begin = self.now.max(*free);
        for (from, to) in &self.stalls {
            if (*from..*to).contains(&begin) {
                begin = *to;
            }
        }
        let transfer = (u64::from(op.bytes) * 1_000_000_000).checked_div(self.bytes_s).unwrap_or(0);
        *free = begin + self.latency_ns + transfer;
        self.due.push(Reverse((*free, op.tag)));
        Ok(())
    }
    fn wait(&mut self, until_ns: Option<u64>, done: &mut Vec<Done>) -> Result<()> {
        let next = self.due.peek().map(|Reverse((at, _))| *at);
        self.now = match (next, until_ns) {
            (Some(at), Some(until)) => self.now.max(at.min(until)),
            (Some(at), None) | (None, Some(at)) => self.now.max(at),
            (None, None) => self.now,
        };
        while let Some(Reverse((at, tag))) = self.due.peek().copied() {
            if at > self.now {
                break;
            }
            self.due.pop();
            let error = self.fails_after.filter(|n| self.taken >= *n).map(|_| "no space left".to_string());
            done.push(Done { tag, at_ns: at, data: None, error });
        }
        Ok(())
    }
    fn is_real(&self) -> bool {
        false
    }
}
