//! E1 and E2 on a volume: ratios of Arden's safe share to its plain one, beside the published ones, and to Samba's
//! plain share.

use std::{path::Path, time::Duration};

use arden_measure::{
    Result,
    base::{stats::median, units::size},
    client::Protection,
    fail,
    load::Live,
    outcome::{Outcome, Ratio},
    source::share::Wire,
    sweep::view::View,
};

use super::{
    lines::{Aim, Line, table},
    plan::Plan,
};
use crate::experiment::{
    Options, e1, e2,
    systems::{self, Kinds, Store, Wanted},
};

/// An experiment that is a part of `make bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    E1,
    E2,
}

/// Measures the part and returns its table.
///
/// # Errors
/// The disk has no room for the data, or the experiment fails.
pub fn measure(plan: &Plan, which: Which, dir: &Path, live: &Live) -> Result<String> {
    let (needed, free) = (systems::room_bytes(plan.scale), free_bytes(dir)?);
    if free < needed {
        fail!(
            "{} has {} free, this part may need {}: name another disk with BENCH_DIR, or less data with --scale",
            dir.display(),
            size(free),
            size(needed)
        );
    }
    // Shares are signed by default; Samba signs too when GMAC is requested.
    let wire = Wire { protection: Protection::GMAC, channels: 1, password: None };
    let wanted = Wanted {
        arden: Some(plan.arden.clone()),
        store: Store::Volume,
        samba: plan.samba.clone(),
        samba_plain_only: true,
        scale: plan.scale,
        ..Wanted::default()
    };
    let options =
        Options { quick: false, limit: limit(plan, which), seed: 1, scale: plan.scale, rounds_max: plan.rounds };
    let mut outcome = Outcome::begin("bench", "");
    let mut view = View::log();
    match which {
        Which::E1 => {
            let systems = systems::open(&wanted, Kinds::PlainCa, dir, &wire)?;
            e1::run(&systems, &options, live, &mut view, &mut outcome)?;
        }
        Which::E2 => {
            let systems = systems::open(&wanted, Kinds::Through, dir, &wire)?;
            e2::run(&systems, &options, live, &mut view, &mut outcome)?;
        }
    }
    Ok(tables(&outcome.ratios, which, plan.scale))
}

fn free_bytes(dir: &Path) -> Result<u64> {
    let of = rustix::fs::statvfs(dir).map_err(std::io::Error::from)?;
    Ok(of.f_bavail.saturating_mul(of.f_frsize))
}

/// The time limit: E2 has one file, E1 seven tests.
fn limit(plan: &Plan, which: Which) -> Duration {
    if which == Which::E1 { plan.limit } else { plan.limit / 2 }
}

fn tables(ratios: &[Ratio], which: Which, scale: u64) -> String {
    let why = match which {
        Which::E1 => "continuously-available-beside-plain",
        Which::E2 => "write-through-beside-cached",
    };
    let line = |r: &Ratio| {
        let seconds = |v: &[f64]| format!("{:.2} s", median(v));
        let other = if r.config == "Arden" { String::new() } else { format!("**{}**: ", r.config) };
        Line {
            what: format!("{other}{}", r.name),
            ours: seconds(&r.a),
            beside: seconds(&r.b),
            ratio: median(&r.a) / median(&r.b),
            published: r.published,
            aim: r.aim.map_or(Aim::Nothing, Aim::AtMost),
            why,
        }
    };
    let rounds = ratios.iter().map(|r| r.rounds).min().unwrap_or(0);
    // Arden's own ratios come first. Ratios to Samba's safe shares are left out.
    let (own, others): (Vec<_>, Vec<_>) = ratios.iter().partition(|r| r.config == "Arden");
    let lines: Vec<Line> = own.iter().chain(&others).map(|r| line(r)).collect();
    let e2 = format!("E2: time to copy {}, write-through over cached", size(e2::FILE_BYTES / scale));
    let what = match which {
        Which::E1 => ["E1: time on a continuously available share over a plain one", "CA", "plain"],
        Which::E2 => [e2.as_str(), "write-through", "cached"],
    };
    format!("{}\n{rounds} or more interleaved rounds of each, medians.\n", table(what, &lines))
}

#[cfg(test)]
mod tests {
    use arden_measure::base::stats::paired_ratio;

    use super::*;

    fn ratio(config: &str, published: Option<f64>, aim: f64, a: &[f64], b: &[f64]) -> Ratio {
        Ratio {
            config: config.into(),
            name: "copy".into(),
            ratio: paired_ratio(a, b),
            published,
            aim: Some(aim),
            rounds: a.len(),
            a: a.to_vec(),
            b: b.to_vec(),
            a_name: "CA".into(),
            b_name: "plain".into(),
            unit: "s".into(),
            short: None,
        }
    }

    #[test]
    fn published_figures_stand_beside_ours() {
        let all = [
            ratio("Arden CA over Samba plain", None, 1.0, &[2.0, 2.0, 2.0], &[4.0, 4.0, 4.0]),
            ratio("Arden", Some(1.38), 1.25, &[2.6, 9.0, 2.0], &[2.0, 2.0, 2.0]),
        ];
        let t = tables(&all, Which::E1, 1);
        let own = "| copy | 2.60 s | 2.00 s | 1.300 | 1.38 | ≤ 1.25 | [no](docs/bench.md#continuously-available-beside-plain) |";
        let other = "| **Arden CA over Samba plain**: copy | 2.00 s | 4.00 s | 0.500 | – | ≤ 1 | yes |";
        let at = |what: &str| t.find(what).unwrap_or_else(|| panic!("{what} is not in {t}"));
        assert!(at(own) < at(other) && t.contains("3 or more"));
    }
}
