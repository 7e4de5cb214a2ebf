//! E2, the cost of write-through: one large file is copied to a share with caching, with every write marked by the
//! client, and to a share that forces write-through.

use std::time::Instant;

use arden_measure::{
    Result,
    base::units::size,
    load::Live,
    outcome::{Outcome, Relation},
    source::own_name,
    sweep::view::View,
};

use super::{
    Limits, Options, Pair,
    data::Writer,
    interleave, ratios, safe_over_plain,
    systems::{System, Variant},
};

/// Published size of the file in bytes: 8.5 GB.
pub const FILE_BYTES: u64 = 8_500_000_000;
/// Published ratio: "40 to 50 % slower".
const PUBLISHED: f64 = 1.45;
/// Aim of the ratio.
const AIM: f64 = 1.1;

fn once(bytes: u64, variant: &Variant, live: &Live) -> Result<f64> {
    let mut w = Writer::new(variant.file.connect()?, variant.mark, live);
    let base = &variant.file.path;
    let path = if base.is_empty() { own_name() } else { format!("{base}\\{}", own_name()) };
    let began = Instant::now();
    let copied = w.copy(&path, bytes);
    let took = began.elapsed().as_secs_f64();
    let removed = w.client.delete(&path);
    copied?;
    removed?;
    Ok(took)
}

/// Runs the experiment. `outcome` has ratios when it ran to its end.
///
/// # Errors
/// A server fails, or the load was stopped.
pub fn run(systems: &[System], o: &Options, live: &Live, view: &mut View, outcome: &mut Outcome) -> Result<()> {
    let bytes = FILE_BYTES / o.scale;
    outcome.set("file", size(bytes));
    let (published, aim) = (Some(PUBLISHED), Some(AIM));
    // The last two pairs are for systems with a third variant.
    let pairs = [
        Pair { name: "every write marked, over cached".into(), a: 1, b: 0, published, aim },
        Pair { name: "forced by the share, over cached".into(), a: 2, b: 0, published, aim },
        Pair { name: "forced by the share, over marked".into(), a: 2, b: 1, published: None, aim: None },
    ];
    let limits = Limits { budget: o.limit, rounds_max: o.rounds_max };
    let title = format!("copy {}", size(bytes));
    let seen = interleave(systems, &title, &pairs, limits, live, view, |_, v| once(bytes, v, live))?;
    outcome.ratios.extend(ratios(systems, &pairs, &seen, "s"));
    outcome.ratios.extend(safe_over_plain(systems, "forced by the share, over cached", None, &seen, "s"));
    for system in systems {
        let of = |name: &str| outcome.ratios.iter().find(|r| r.config == system.name && r.name.starts_with(name));
        if let Some(marked) = of("every write") {
            outcome.verdict.push(format!(
                "{}: a copy takes {} times as long when every write has to be on stable storage first (published: 1.4 to 1.5).",
                system.name,
                marked.ratio.words()
            ));
        }
        if let Some(forced) = of("forced by the share, over marked") {
            let (low, high) = (forced.ratio.low, forced.ratio.high);
            outcome.relations.push(Relation {
                claim: format!(
                    "{}: a share can force write-through for every client, at the price that marking has",
                    system.name
                ),
                seen: format!("forced over marked: {}", forced.ratio.text()),
                holds: low <= 1.15 && high >= 0.85,
                explanation: if forced.ratio.width() > 0.5 {
                    "The interval is too wide to say more: other work had the machine, or there was no time for more rounds.".into()
                } else {
                    String::new()
                },
            });
        }
    }
    Ok(())
}
