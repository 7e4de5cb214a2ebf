//! Measurements of spaces: compared with fio on files made alike, with btrfs on loop devices, and on simulated disks in
//! virtual time. Uses the public interface of `arden-space` only.

pub mod bench;
pub mod btrfs;
pub mod fio;
pub mod models;
pub mod page;

/// One run of one side.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub io_s: f64,
    /// Processor time of the process for each operation; NaN where kernel threads do the work.
    pub cpu_us: f64,
}

/// A line of the table: the measurement, its peer, the ratio and its aim.
#[derive(Debug, Clone)]
pub struct Line {
    pub section: &'static str,
    pub what: String,
    pub ours: String,
    pub peer: String,
    pub ratio: f64,
    pub aim: f64,
    /// The ratio should be at most the aim instead of at least.
    pub at_most: bool,
}

impl Line {
    /// Whether the ratio meets its aim; false when it was not measured.
    pub fn met(&self) -> bool {
        if self.at_most { self.ratio <= self.aim } else { self.ratio >= self.aim }
    }
}
