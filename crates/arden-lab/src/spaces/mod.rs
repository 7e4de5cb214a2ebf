//! Measurements of spaces: compared with fio on files made alike, with btrfs on loop devices, and on simulated disks in
//! virtual time. Uses the public interface of `arden-space` only.

pub mod bench;
pub mod btrfs;
pub mod fio;
pub mod models;
pub mod page;
pub mod readers;

use arden_measure::base::stats::median;

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
    /// Rates of both sides by round, and the median of their ratios. An aim of NaN: for orientation.
    fn of_rates(section: &'static str, what: String, ours: &[Sample], peer: &[Sample], aim: f64) -> Line {
        let text = |io_s: f64| format!("{io_s:.0}/s");
        let ratio = |o: &Sample, p: &Sample| o.io_s / p.io_s;
        Line::of(section, what, (ours, peer), |s| s.io_s, text, (ratio, aim))
    }

    /// The same for processor time: the peer's divided by ours.
    fn of_cpu(section: &'static str, what: String, ours: &[Sample], peer: &[Sample], aim: f64) -> Line {
        let text = |us: f64| format!("{us:.1} us");
        let ratio = |o: &Sample, p: &Sample| p.cpu_us / o.cpu_us;
        Line::of(section, what, (ours, peer), |s| s.cpu_us, text, (ratio, aim))
    }

    fn of(
        section: &'static str,
        what: String,
        (ours, peer): (&[Sample], &[Sample]),
        value: impl Fn(&Sample) -> f64,
        text: impl Fn(f64) -> String,
        (ratio, aim): (impl Fn(&Sample, &Sample) -> f64, f64),
    ) -> Line {
        let middle = |all: &[Sample]| text(median(&all.iter().map(&value).collect::<Vec<f64>>()));
        let ratio = median(&ours.iter().zip(peer).map(|(o, p)| ratio(o, p)).collect::<Vec<f64>>());
        Line { section, what, ours: middle(ours), peer: middle(peer), ratio, aim, at_most: false }
    }

    /// Whether the ratio meets its aim; false when it was not measured.
    pub fn met(&self) -> bool {
        if self.at_most { self.ratio <= self.aim } else { self.ratio >= self.aim }
    }
}
