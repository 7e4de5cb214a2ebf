//! Means and ratios with their 95 % confidence intervals.

use serde::{Deserialize, Serialize};

/// A value with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    #[serde(deserialize_with = "or_endless")]
    pub value: f64,
    #[serde(deserialize_with = "or_zero")]
    pub low: f64,
    #[serde(deserialize_with = "or_endless")]
    pub high: f64,
}

/// Reads a null as infinity, which JSON cannot express.
fn or_endless<'de, D: serde::Deserializer<'de>>(d: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(d)?.unwrap_or(f64::INFINITY))
}

fn or_zero<'de, D: serde::Deserializer<'de>>(d: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(d)?.unwrap_or(0.0))
}

impl Interval {
    /// The width of the interval as a fraction of the value.
    pub fn width(&self) -> f64 {
        (self.high - self.low) / self.value
    }

    /// The value for sentences; the interval is added when it is wide.
    pub fn words(&self) -> String {
        if !(self.high.is_finite() && self.low > 0.0) {
            format!("{:.2}", self.value)
        } else if self.width() > 0.1 {
            format!("{:.2} ({:.2} to {:.2} with 95 % confidence)", self.value, self.low, self.high)
        } else {
            format!("{:.2}", self.value)
        }
    }

    /// The value with its interval: "1.47 (1.44 to 1.50)".
    pub fn text(&self) -> String {
        if self.low.is_finite() && self.high.is_finite() {
            format!("{:.3} ({:.3} to {:.3})", self.value, self.low, self.high)
        } else {
            format!("{:.3}", self.value)
        }
    }
}

/// The two-sided 95 % quantile of Student's t distribution.
fn t95(freedom: f64) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    if freedom < 1.0 {
        return f64::INFINITY;
    }
    TABLE.get(freedom as usize - 1).copied().unwrap_or(1.960 + 2.5 / freedom)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let m = mean(values);
    values.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / (values.len() as f64 - 1.0)
}

/// The median; NaN without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (n, half) if n % 2 == 1 => sorted[half],
        (_, half) => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

fn exp_interval(center: f64, half: f64) -> Interval {
    Interval { value: center.exp(), low: (center - half).exp(), high: (center + half).exp() }
}

/// The geometric mean of a/b over rounds that were run in pairs. A disturbance that affects both sides of a pair
/// cancels.
pub fn paired_ratio(a: &[f64], b: &[f64]) -> Interval {
    let logs: Vec<f64> = a.iter().zip(b).map(|(a, b)| (a / b).ln()).filter(|v| v.is_finite()).collect();
    if logs.is_empty() {
        return Interval { value: f64::NAN, low: f64::NAN, high: f64::NAN };
    }
    if logs.len() == 1 {
        return Interval { value: logs[0].exp(), low: 0.0, high: f64::INFINITY };
    }
    let half = t95(logs.len() as f64 - 1.0) * (variance(&logs) / logs.len() as f64).sqrt();
    exp_interval(mean(&logs), half)
}

/// a/b of the means of two independent samples, by Welch on the logarithm with the delta method.
pub fn unpaired_ratio(a: &[f64], b: &[f64]) -> Interval {
    if a.is_empty() || b.is_empty() || mean(a) <= 0.0 || mean(b) <= 0.0 {
        return Interval { value: f64::NAN, low: f64::NAN, high: f64::NAN };
    }
    let center = (mean(a) / mean(b)).ln();
    if a.len() < 2 || b.len() < 2 {
        return Interval { value: center.exp(), low: 0.0, high: f64::INFINITY };
    }
    let relative = |v: &[f64]| variance(v) / v.len() as f64 / (mean(v) * mean(v));
    let (va, vb) = (relative(a), relative(b));
    let freedom = (va + vb).powi(2) / (va * va / (a.len() as f64 - 1.0) + vb * vb / (b.len() as f64 - 1.0));
    let half = if va + vb == 0.0 { 0.0 } else { t95(freedom) * (va + vb).sqrt() };
    exp_interval(center, half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_without_end_is_read_again() {
        let one = paired_ratio(&[2.0], &[1.0]);
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Interval>(&text).unwrap(), one);
        let nothing = serde_json::to_string(&paired_ratio(&[], &[])).unwrap();
        assert!(serde_json::from_str::<Interval>(&nothing).is_ok());
    }

    #[test]
    fn pairs_forgive_what_hits_both() {
        let b = [1.0, 5.0, 2.0, 9.0];
        let a: Vec<f64> = b.iter().map(|x| x * 1.5).collect();
        let paired = paired_ratio(&a, &b);
        assert!((paired.value - 1.5).abs() < 1e-9 && paired.width() < 1e-9);
        assert!(unpaired_ratio(&a, &b).width() > 1.0);
    }

    #[test]
    fn known_intervals() {
        // ln: 0, 1, 2: mean 1, s 1, t(2) 4.303, half 4.303/sqrt 3.
        let r = paired_ratio(&[1.0, 1f64.exp(), 2f64.exp()], &[1.0, 1.0, 1.0]);
        assert!((r.value.ln() - 1.0).abs() < 1e-9);
        assert!((r.high.ln() - 1.0 - 4.303 / 3f64.sqrt()).abs() < 1e-3);
        assert_eq!(paired_ratio(&[2.0], &[1.0]).high, f64::INFINITY);
        assert!(paired_ratio(&[], &[]).value.is_nan());
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    /// About 95 of 100 intervals of experiments with known noise contain the true ratio.
    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut rng = arden_block::rng::Rng::new(5);
        let mut normal = || (0..12).map(|_| rng.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0;
        let hits = (0..2000)
            .filter(|_| {
                let a: Vec<f64> = (0..6).map(|_| (0.3 + 0.1 * normal()).exp()).collect();
                let b: Vec<f64> = (0..6).map(|_| (0.1 * normal()).exp()).collect();
                let (p, u) = (paired_ratio(&a, &b), unpaired_ratio(&a, &b));
                let holds = |i: &Interval| i.low.ln() <= 0.3 && 0.3 <= i.high.ln();
                assert!(p.low <= p.value && u.value <= u.high);
                holds(&p)
            })
            .count();
        assert!((1850..1950).contains(&hits), "{hits} of 2000");
    }
}
