//! Spaces measured: beside fio on files made alike, beside btrfs on loop devices, and on simulated disks in virtual time.
//! Knows pools and spaces as any caller does, through `arden-space`'s public face.

pub mod bench;
pub mod btrfs;
pub mod fio;
pub mod models;
pub mod page;

/// One run of one side.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub io_s: f64,
    /// Processor time of the process for each operation; NaN where the kernel's threads do the work.
    pub cpu_us: f64,
}

/// A line of the table: what was measured, beside whom, and what is aimed at.
#[derive(Debug, Clone)]
pub struct Line {
    pub section: &'static str,
    pub what: String,
    pub ours: String,
    pub peer: String,
    pub ratio: f64,
    pub aim: f64,
    /// The ratio is to be at most the aim instead of at least.
    pub at_most: bool,
}

impl Line {
    /// Whether the ratio reaches its aim; never one that was not measured.
    pub fn met(&self) -> bool {
        if self.at_most { self.ratio <= self.aim } else { self.ratio >= self.aim }
    }
}
