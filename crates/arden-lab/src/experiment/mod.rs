//! The published experiments: the systems they run on, interleaved rounds, and ratios with their intervals.

pub mod advise;
pub mod data;
pub mod e1;
pub mod e2;
pub mod e3;
pub mod e6;
pub mod run;
pub mod systems;

use std::time::{Duration, Instant};

use arden_measure::{
    Context, Result,
    base::stats::{self, Interval},
    load::Live,
    outcome::Ratio,
    sweep::view::View,
};

use self::systems::{System, Variant};

/// Width of an interval, as a fraction of its value, at which rounds end.
const WIDTH_MAX: f64 = 0.03;
const ROUNDS_MIN: usize = 3;
/// Limit of the rounds of one test, whatever its intervals and the time left.
pub const ROUNDS_MAX: usize = 200;

/// Options of an experiment.
#[derive(Debug, Clone)]
pub struct Options {
    /// Runs with less data and time, to check the experiment and estimate its results.
    pub quick: bool,
    /// Time limit of the whole experiment.
    pub limit: Duration,
    pub seed: u64,
    /// Divisor of the published amounts of data.
    pub scale: u64,
    /// Limit of the rounds of each test.
    pub rounds_max: usize,
}

/// Limits of the rounds of one test.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub budget: Duration,
    pub rounds_max: usize,
}

/// The rounds of one test: measured values by system and variant.
pub type Rounds = Vec<Vec<Vec<f64>>>;

/// A comparison of two variants, given by their indices: `a` over `b`.
#[derive(Debug, Clone)]
pub struct Pair {
    pub name: String,
    pub a: usize,
    pub b: usize,
    pub published: Option<f64>,
    /// Upper limit of the ratio that is aimed for, on an Arden that is started for the measurement.
    pub aim: Option<f64>,
}

impl Pair {
    /// Whether a system with this number of variants has both.
    fn fits(&self, variants: usize) -> bool {
        self.a.max(self.b) < variants
    }
}

/// Runs `test` on every variant of every system in turn, until the intervals of all ratios are narrow enough or the
/// time is over. Other work of the machine affects neighbours in a round alike.
///
/// # Errors
/// The first test that fails, with its name; a stopped load.
pub fn interleave(
    systems: &[System],
    title: &str,
    pairs: &[Pair],
    limits: Limits,
    live: &Live,
    view: &mut View,
    mut test: impl FnMut(&System, &Variant) -> Result<f64>,
) -> Result<Rounds> {
    let mut seen: Rounds = systems.iter().map(|s| vec![Vec::new(); s.variants.len()]).collect();
    let began = Instant::now();
    for round in 0..limits.rounds_max {
        let round_began = Instant::now();
        for (s, system) in systems.iter().enumerate() {
            let n = system.variants.len();
            for k in 0..n {
                // The variant that runs first changes with every round.
                let v = (k + round) % n;
                live.go_on()?;
                let variant = &system.variants[v];
                view.tick(
                    &format!("{title}, {}, {}, round {}", system.name, variant.name, round + 1),
                    live,
                    began.elapsed(),
                    limits.budget,
                );
                if system.server.is_some() {
                    // Data that the last variant left in caches is written now, not during this one.
                    rustix::fs::sync();
                }
                let value =
                    test(system, variant).context(format_args!("{title}, {}, {}", system.name, variant.name))?;
                seen[s][v].push(value);
            }
        }
        let narrow = || {
            let of_all =
                |s: &Vec<Vec<f64>>| pairs.iter().filter(|p| p.fits(s.len())).all(|p| of(s, p).width() <= WIDTH_MAX);
            seen.iter().all(of_all)
        };
        let no_time = began.elapsed() + round_began.elapsed() > limits.budget;
        if no_time || round + 1 >= ROUNDS_MIN && narrow() {
            break;
        }
    }
    Ok(seen)
}

fn of(system: &[Vec<f64>], pair: &Pair) -> Interval {
    stats::paired_ratio(&system[pair.a], &system[pair.b])
}

/// The ratios of one test.
pub fn ratios(systems: &[System], pairs: &[Pair], seen: &Rounds, unit: &str) -> Vec<Ratio> {
    let mut out = Vec::new();
    for (system, seen) in systems.iter().zip(seen) {
        for pair in pairs.iter().filter(|p| p.fits(seen.len())) {
            let (a, b) =
                ((&*system.variants[pair.a].name, &seen[pair.a]), (&*system.variants[pair.b].name, &seen[pair.b]));
            let ratio = ratio(&system.name, &pair.name, a, b, unit);
            out.push(Ratio { published: pair.published, aim: pair.aim, ..ratio });
        }
    }
    out
}

/// The ratio of the last variant of the first system, its safe one, to the first of the second system: the cost of
/// safety compared with another server's speed.
pub fn safe_over_plain(systems: &[System], name: &str, aim: Option<f64>, seen: &Rounds, unit: &str) -> Option<Ratio> {
    let last = systems.first()?.variants.len().checked_sub(1)?;
    over_plain(systems, name, last, aim, seen, unit)
}

/// The ratio of a variant of the first system to the first of the second system, which is its plain one.
pub fn over_plain(
    systems: &[System],
    name: &str,
    variant: usize,
    aim: Option<f64>,
    seen: &Rounds,
    unit: &str,
) -> Option<Ratio> {
    let ([ours, theirs], [seen_ours, seen_theirs]) = (systems, &seen[..]) else { return None };
    let (a, b) = (ours.variants.get(variant)?, theirs.variants.first()?);
    let config = format!("{} {} over {} {}", ours.name, a.name, theirs.name, b.name);
    let ratio = ratio(&config, name, (&a.name, seen_ours.get(variant)?), (&b.name, seen_theirs.first()?), unit);
    Some(Ratio { aim, ..ratio })
}

fn ratio(
    config: &str,
    name: &str,
    (a_name, a): (&str, &Vec<f64>),
    (b_name, b): (&str, &Vec<f64>),
    unit: &str,
) -> Ratio {
    let ratio = stats::paired_ratio(a, b);
    let short = (ratio.width() > WIDTH_MAX)
        .then(|| format!("the time was over before the interval was under {:.0} %", WIDTH_MAX * 100.0));
    Ratio {
        config: config.to_string(),
        name: name.to_string(),
        ratio,
        published: None,
        aim: None,
        rounds: a.len().min(b.len()),
        a: a.clone(),
        b: b.clone(),
        a_name: a_name.to_string(),
        b_name: b_name.to_string(),
        unit: unit.to_string(),
        short,
    }
}

#[cfg(test)]
mod tests {
    use arden_measure::{
        client::{Protection, Target},
        load::smb::SmbFile,
    };

    use super::*;

    fn system(names: &[&str]) -> System {
        let file = SmbFile {
            target: Target {
                address: "127.0.0.1:1".parse().unwrap(),
                share: "s".into(),
                user: "u".into(),
                password: "p".into(),
            },
            path: String::new(),
            protection: Protection::Plain,
            channels: 1,
        };
        let variant = |n: &&str| Variant { name: n.to_string(), file: file.clone(), mark: false };
        System { name: "x".into(), variants: names.iter().map(variant).collect(), server: None, owns: Vec::new() }
    }

    #[test]
    fn rounds_end_when_they_say_enough() {
        let systems = [system(&["plain", "safe"])];
        let pairs = [Pair { name: "create".into(), a: 1, b: 0, published: Some(1.475), aim: None }];
        let (live, mut view) = (Live::default(), View::quiet());
        let limits = |ms| Limits { budget: Duration::from_millis(ms), rounds_max: ROUNDS_MAX };
        let mut order = Vec::new();
        let seen = interleave(&systems, "t", &pairs, limits(60_000), &live, &mut view, |_, v| {
            order.push(v.name.clone());
            Ok(if v.name == "safe" { 3.0 } else { 2.0 })
        })
        .unwrap();
        assert_eq!(seen[0][0].len(), ROUNDS_MIN);
        assert_eq!(order[..4], ["plain", "safe", "safe", "plain"]);
        let r = &ratios(&systems, &pairs, &seen, "s")[0];
        assert!((r.ratio.value - 1.5).abs() < 1e-9 && r.short.is_none());

        let mut n = 0.0;
        let seen = interleave(&systems, "t", &pairs, limits(50), &live, &mut view, |_, _| {
            n += 1.0;
            std::thread::sleep(Duration::from_millis(5));
            Ok(1.0 + (n * 7.0) % 3.0)
        })
        .unwrap();
        assert!((1..20).contains(&seen[0][0].len()));
        assert!(ratios(&systems, &pairs, &seen, "s")[0].short.is_some());
    }
}
