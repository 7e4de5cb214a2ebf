//! E6, large and small reads over SMB: 512 KiB, 8 KiB and 1 KiB at rising numbers of outstanding requests.

use std::time::{Duration, Instant};

use arden_measure::{
    Result,
    base::{stats, units::size},
    load::{Access, Live, Load, Profile, Window},
    outcome::{Outcome, Point, Ratio, Relation},
    page::svg::short,
    source::{Need, Prepared, Source, share::Share},
    sweep::{self, Clients, TimedLoad, view::View},
};

use super::{Options, WIDTH_MAX, systems::System};

const BLOCKS: [u32; 3] = [512 << 10, 8 << 10, 1 << 10];

fn profile(block_bytes: u32) -> Profile {
    Profile {
        name: format!("{} reads", size(u64::from(block_bytes))),
        access: Access::Random,
        read_percent: 100,
        block_bytes,
    }
}

/// Runs the experiment with this many clients. After an error `outcome` holds the points that were measured.
///
/// # Errors
/// A server fails, or the load was stopped.
pub fn run(
    systems: &[System],
    o: &Options,
    clients: usize,
    live: &Live,
    view: &mut View,
    outcome: &mut Outcome,
) -> Result<()> {
    let outstanding: &[usize] = if o.quick { &[1, 8, 64] } else { &[1, 3, 8, 16, 32, 64, 128, 256] };
    let file_bytes = ((4 << 30) / o.scale).max(8 << 20);
    let window = if o.scale > 100 {
        (20, 100)
    } else if o.quick {
        (100, 700)
    } else {
        (500, 3000)
    };
    outcome.set("file size", size(file_bytes));
    outcome.set("clients", clients);
    let mut sources: Vec<Box<dyn Source>> =
        systems.iter().map(|s| Box::new(Share::new(&s.variants[0].file)) as Box<dyn Source>).collect();
    let mut prepared = Vec::new();
    let mut result = Ok(());
    for s in &mut sources {
        view.say("making and filling the test file");
        match s.prepare(&Need { file_bytes: Some(file_bytes), ..Need::default() }, live) {
            Ok(p) => prepared.push(p),
            Err(e) => result = Err(e),
        }
    }
    if result.is_ok() {
        let mut steps = Vec::new();
        for block in BLOCKS {
            for n in outstanding {
                let profile = profile(block);
                steps.push(TimedLoad {
                    title: format!("{}, {n} outstanding", profile.name),
                    load: Load::of(&profile, *n, file_bytes),
                    window: Window { warm_up_ns: window.0 * 1_000_000, measure_ns: window.1 * 1_000_000 },
                });
            }
        }
        result = rounds(systems, &sources, &prepared, &steps, clients, o.limit, live, view, outcome);
    }
    for s in &mut sources {
        if let Err(e) = s.remove() {
            outcome.notes.push(format!("A test file could not be removed: {e}"));
        }
    }
    compare(systems, outcome);
    result
}

#[allow(clippy::too_many_arguments)]
fn rounds(
    systems: &[System],
    sources: &[Box<dyn Source>],
    prepared: &[Prepared],
    steps: &[TimedLoad],
    clients: usize,
    limit: Duration,
    live: &Live,
    view: &mut View,
    outcome: &mut Outcome,
) -> Result<()> {
    let how = Clients { count: clients, writes: false, write_through: false, verify: None };
    let began = Instant::now();
    for round in 0.. {
        let round_began = Instant::now();
        for (s, system) in systems.iter().enumerate() {
            live.go_on()?;
            let first = s * steps.len();
            sweep::run(sources[s].as_ref(), how, prepared[s], steps, live, view, |i, figures, problem| {
                let load = &steps[i].load;
                if round == 0 {
                    let profile = profile(load.block_bytes);
                    outcome.points.push(Point {
                        group: profile.name.clone(),
                        config: system.name.clone(),
                        profile,
                        outstanding: load.outstanding,
                        rate: None,
                        rounds: Vec::new(),
                        partial: false,
                    });
                }
                if let Some(point) = outcome.points.get_mut(first + i) {
                    point.rounds.push(figures);
                    point.partial |= problem.is_some();
                }
                Ok(())
            })?;
        }
        let narrow = systems.len() > 1
            && BLOCKS.iter().all(|b| best(systems, outcome, *b).is_some_and(|r| r.ratio.width() <= WIDTH_MAX));
        if began.elapsed() + round_began.elapsed() > limit || round >= 2 && narrow || systems.len() == 1 && round >= 4 {
            break;
        }
    }
    Ok(())
}

/// The ratio of the first system to the second, each at its best point.
fn best(systems: &[System], outcome: &Outcome, block: u32) -> Option<Ratio> {
    let [a, b, ..] = systems else { return None };
    let rates = |name: &str| {
        let of = outcome.points.iter().filter(|p| p.config == name && p.profile.block_bytes == block);
        let best = of.max_by(|x, y| x.of(|f| f.io_s).total_cmp(&y.of(|f| f.io_s)))?;
        Some(best.rounds.iter().map(|f| f.io_s).collect::<Vec<f64>>())
    };
    let (a_rates, b_rates) = (rates(&a.name)?, rates(&b.name)?);
    let ratio = stats::paired_ratio(&a_rates, &b_rates);
    Some(Ratio {
        config: format!("{} over {}", a.name, b.name),
        name: format!("{} reads a second, each at its best", size(u64::from(block))),
        ratio,
        published: None,
        aim: None,
        rounds: a_rates.len().min(b_rates.len()),
        a: a_rates,
        b: b_rates,
        a_name: a.name.clone(),
        b_name: b.name.clone(),
        unit: "IO/s".to_string(),
        short: (ratio.width() > WIDTH_MAX).then(|| "the time was over before the interval was under 3 %".to_string()),
    })
}

fn compare(systems: &[System], outcome: &mut Outcome) {
    for block in BLOCKS {
        if let Some(ratio) = best(systems, outcome, block) {
            outcome.ratios.push(ratio);
        }
    }
    for system in systems {
        let best = |block: u32, f: fn(&Point) -> f64| {
            let of = outcome.points.iter().filter(|p| p.config == system.name && p.profile.block_bytes == block);
            of.map(f).fold(0.0, f64::max)
        };
        let (small, large) = (best(1 << 10, |p| p.of(|f| f.io_s)), best(512 << 10, |p| p.of(|f| f.mb_s)));
        outcome.verdict.push(format!(
            "{}: up to {} reads of 1 KiB a second, and {} MB/s in reads of 512 KiB.",
            system.name,
            short(small),
            short(large)
        ));
        outcome.relations.push(Relation {
            claim: "160,000 reads of 1 KB a second over one RDMA card; 300,000 and 4,300 MB/s over four 10 GbE cards".into(),
            seen: format!("{}: {small:.0} reads of 1 KiB a second, {large:.0} MB/s", system.name),
            holds: small >= 160_000.0,
            explanation: format!(
                "Published on server hardware with 14 SSDs and RDMA; here client and server share {} cores and a loopback \
                 interface, and the file fits in the server's cache.",
                outcome.machine.cores
            ),
        });
    }
}
