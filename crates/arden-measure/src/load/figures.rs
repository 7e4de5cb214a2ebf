//! Figures of one measurement: a histogram of latencies, counts, and rates in slices of the window. Those of several
//! clients can be added.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Slices of the window. The scatter of their rates shows how steady the run was.
pub const SLICES: usize = 20;

/// A histogram of latencies from 1 ns to one hour, with three significant digits.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds are valid"))
    }
}

impl Latencies {
    /// Counts one request that took `ns` nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("same bounds");
    }

    /// The latency in µs that the fraction `quantile` (0 to 1) of the requests did not exceed; 0 without requests.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.us(self.0.value_at_quantile(quantile))
    }

    fn us(&self, ns: u64) -> f64 {
        if self.0.is_empty() { 0.0 } else { ns as f64 / 1e3 }
    }
}

/// Collects the counts of one measurement.
#[derive(Debug, Clone)]
pub struct Recorder {
    latencies: Latencies,
    pub reads: u64,
    pub writes: u64,
    pub bytes: u64,
    /// Answers in each slice.
    pub slices: Vec<u64>,
    pub window_ns: u64,
    /// Requests that were due but were not sent before the window ended.
    pub unsent: u64,
    /// Blocks whose contents were compared.
    pub verified: u64,
}

impl Recorder {
    /// A recorder of a window of `window_ns` nanoseconds.
    pub fn new(window_ns: u64) -> Recorder {
        Recorder {
            latencies: Latencies::default(),
            reads: 0,
            writes: 0,
            bytes: 0,
            slices: vec![0; SLICES],
            window_ns,
            unsent: 0,
            verified: 0,
        }
    }

    /// Records the latency in ns of a request that was due in the window.
    pub fn latency(&mut self, ns: u64) {
        self.latencies.record(ns);
    }

    /// Records an answer in the window, `since_ns` nanoseconds after its start.
    pub fn answer(&mut self, read: bool, bytes: u32, since_ns: u64) {
        if read {
            self.reads += 1;
        } else {
            self.writes += 1;
        }
        self.bytes += u64::from(bytes);
        let slice = since_ns as u128 * SLICES as u128 / u128::from(self.window_ns.max(1));
        self.slices[(slice as usize).min(SLICES - 1)] += 1;
    }

    /// Adds the counts of another client in the same window.
    pub fn add(&mut self, other: &Recorder) {
        self.latencies.add(&other.latencies);
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes += other.bytes;
        self.unsent += other.unsent;
        self.verified += other.verified;
        self.window_ns = self.window_ns.max(other.window_ns);
        for (mine, theirs) in self.slices.iter_mut().zip(&other.slices) {
            *mine += theirs;
        }
    }

    /// The counts as rates and percentiles.
    pub fn figures(&self) -> Figures {
        let seconds = self.window_ns as f64 / 1e9;
        let latencies = &self.latencies;
        let q = |q: f64| latencies.quantile_us(q);
        let answers = self.reads + self.writes;
        let slice_s = seconds / SLICES as f64;
        Figures {
            seconds,
            reads: self.reads,
            writes: self.writes,
            io_s: answers as f64 / seconds,
            mb_s: self.bytes as f64 / 1e6 / seconds,
            mean_us: if latencies.0.is_empty() { 0.0 } else { latencies.0.mean() / 1e3 },
            min_us: latencies.us(latencies.0.min()),
            p50_us: q(0.5),
            p90_us: q(0.9),
            p99_us: q(0.99),
            p999_us: q(0.999),
            p9999_us: q(0.9999),
            max_us: latencies.us(latencies.0.max()),
            slices_io_s: self.slices.iter().map(|n| *n as f64 / slice_s).collect(),
            unsent: self.unsent,
            verified: self.verified,
            client_cpu_us: None,
            server_cpu_us: None,
        }
    }
}

/// The figures of one measurement. `io_s` is requests a second, `mb_s` millions of bytes a second; times ending in
/// `_us` are microseconds; `client_cpu_us` and `server_cpu_us` are processor time for each answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub seconds: f64,
    pub reads: u64,
    pub writes: u64,
    pub io_s: f64,
    pub mb_s: f64,
    pub mean_us: f64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub p9999_us: f64,
    pub max_us: f64,
    /// Answers a second in each slice of the window.
    pub slices_io_s: Vec<f64>,
    #[serde(default)]
    pub unsent: u64,
    #[serde(default)]
    pub verified: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_us: Option<f64>,
}
