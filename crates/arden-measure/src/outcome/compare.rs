//! The comparison of two outcomes (`arden lab compare A B`): ratios with their intervals.

use super::{Outcome, Point};
use crate::{
    Result,
    base::{
        stats::{self, Interval},
        table,
    },
    fail,
};

/// A load that both outcomes have.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Line {
    pub load: String,
    pub outstanding: usize,
    pub a: String,
    pub b: String,
    /// Ratio of the rates in requests a second, A to B.
    pub rate: Interval,
    /// Ratio of the mean latencies, A to B.
    pub latency: Interval,
    /// Whether the interval excludes 1.
    pub differs: bool,
}

/// Compares every point of `a` with the points of `b` that have the same load.
///
/// # Errors
/// The outcomes have no load in common.
pub fn compare(a: &Outcome, b: &Outcome) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for p in &a.points {
        let many = a.points.iter().filter(|q| q.same_load(p)).count() > 1;
        // With several systems in an outcome, only points of the same system are compared.
        for q in b.points.iter().filter(|q| q.same_load(p) && (!many || q.config == p.config)) {
            let rate = stats::unpaired_ratio(&p.rates(), &q.rates());
            let mean = |x: &Point| x.rounds.iter().map(|f| f.mean_us).collect::<Vec<f64>>();
            lines.push(Line {
                load: p.group.clone(),
                outstanding: p.outstanding,
                a: p.config.clone(),
                b: q.config.clone(),
                rate,
                latency: stats::unpaired_ratio(&mean(p), &mean(q)),
                differs: rate.low > 1.0 || rate.high < 1.0,
            });
        }
    }
    if lines.is_empty() {
        fail!("the two results have no load in common: the same profile, block, reads and outstanding requests");
    }
    Ok(lines)
}

/// The comparison as a table for terminals.
pub fn text(lines: &[Line]) -> String {
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|l| {
            let verdict = match (l.differs, l.rate.value > 1.0) {
                (false, _) => "no difference shown",
                (true, true) => "A is faster",
                (true, false) => "B is faster",
            };
            vec![
                l.load.clone(),
                l.a.clone(),
                l.b.clone(),
                l.outstanding.to_string(),
                l.rate.text(),
                l.latency.text(),
                verdict.to_string(),
            ]
        })
        .collect();
    table::text(&["LOAD", "A", "B", "OUT", "IO/s A/B (95 %)", "LATENCY A/B", ""], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Figures, Profile};

    fn outcome(io_s: f64, outstanding: usize) -> Outcome {
        let slices = (0..20).map(|i| io_s * (1.0 + 0.01 * f64::from(i % 3))).collect();
        let mut o = Outcome::begin("run", "t");
        o.points.push(Point {
            group: "database".into(),
            config: "x".into(),
            profile: Profile::named("database").unwrap(),
            outstanding,
            rate: None,
            rounds: vec![Figures { io_s, mean_us: 1e6 / io_s, slices_io_s: slices, ..Figures::default() }],
            partial: false,
        });
        o
    }

    #[test]
    fn ratios_with_intervals() {
        let lines = compare(&outcome(1500.0, 8), &outcome(1000.0, 8)).unwrap();
        assert!((lines[0].rate.value - 1.5).abs() < 1e-9 && lines[0].differs && lines[0].rate.width() < 0.05);
        assert!(text(&lines).contains("A is faster"));
        assert!(!compare(&outcome(1000.0, 8), &outcome(1000.0, 8)).unwrap()[0].differs);
        assert!(compare(&outcome(1000.0, 8), &outcome(1000.0, 16)).is_err());
    }
}
