//! `arden lab advise`: a short measurement of the cost of each kind of safety. On a directory it starts an Arden and
//! builds small pools in it; on a share it measures the client's choices.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use arden_measure::{
    Context, Result,
    base::stats,
    client::{Protection, Target},
    fail,
    load::{Content, Live, Load, Profile, Window, drive, fill, smb::SmbFile},
    outcome::{Outcome, Ratio},
    source::{
        Need, Source,
        share::{self, Share, Wire},
    },
    sweep::{self, Clients, TimedLoad, view::View},
};
use arden_space::Layout;

use super::e3::{Setup, World};
use crate::local::servers;

const OUTSTANDING: usize = 8;
const FILE_BYTES: u64 = 64 << 20;
const POOL_FILE_BYTES: u64 = 320 << 20;
const POOL_FILES: usize = 5;
const LAYOUTS: [&str; 5] = ["simple", "mirror2", "mirror3", "parity", "dual-parity"];

/// Width of an interval, as a fraction of its value, above which more rounds are run.
const WIDE: f64 = 0.2;
/// Limit of the rounds as a multiple of the requested number.
const ROUNDS_FACTOR: usize = 3;

/// Number of rounds, and length of each measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub rounds: usize,
    pub measure: Duration,
}

/// Rates by variant, profile and round.
type Rates = Vec<Vec<Vec<f64>>>;

impl Effort {
    fn window(&self) -> Window {
        let measure_ns = self.measure.as_nanos() as u64;
        Window { warm_up_ns: measure_ns / 5, measure_ns }
    }

    /// Whether another round is worth its time.
    fn goes_on(&self, round: usize, rates: &Rates) -> bool {
        let wide = || {
            let (first, others) = (&rates[0], &rates[1..]);
            let width = |(a, b): (&Vec<f64>, &Vec<f64>)| stats::paired_ratio(a, b).width();
            others.iter().any(|w| w.iter().zip(first).map(width).any(|w| w.is_nan() || w > WIDE))
        };
        round < self.rounds || round < ROUNDS_FACTOR * self.rounds && wide()
    }
}

/// A way of using a share.
struct Way {
    name: &'static str,
    file: SmbFile,
    write_through: bool,
}

fn ways(plain: &SmbFile, safe: Option<&SmbFile>) -> Vec<Way> {
    let with = |protection| SmbFile { protection, ..plain.clone() };
    let way = |name, file, write_through| Way { name, file, write_through };
    let mut all = vec![
        way("plain", with(Protection::Plain), false),
        way("signing", with(Protection::GMAC), false),
        way("encryption", with(Protection::Encrypt), false),
        way("write-through", with(Protection::Plain), true),
    ];
    if let Some(safe) = safe {
        all.push(way("continuous availability", SmbFile { protection: Protection::Plain, ..safe.clone() }, false));
    }
    all
}

fn profiles() -> Vec<Profile> {
    ["database", "streaming", "restore"].iter().filter_map(|n| Profile::named(n)).collect()
}

/// The ratio of the times of a request, from rates that were measured in interleaved rounds.
fn cost(config: &str, name: String, plain: &[f64], other: &[f64], names: (&str, &str)) -> Ratio {
    // A window without an answer counts as ten seconds for each request.
    let each_us = |rates: &[f64]| rates.iter().map(|r| 1e6 / r.max(0.1)).collect::<Vec<f64>>();
    let (a, b) = (each_us(other), each_us(plain));
    Ratio {
        config: config.to_string(),
        name,
        ratio: stats::paired_ratio(&a, &b),
        published: None,
        aim: None,
        rounds: a.len().min(b.len()),
        a,
        b,
        a_name: names.0.to_string(),
        b_name: names.1.to_string(),
        unit: "µs each".to_string(),
        short: None,
    }
}

fn shares(ways: &[Way], effort: Effort, live: &Live, view: &mut View, outcome: &mut Outcome) -> Result<()> {
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    let mut prepared = Vec::new();
    let mut result = Ok(());
    for way in ways {
        view.say("making and filling test files");
        let mut s = Share::new(&way.file);
        let need = Need { writes: true, file_bytes: Some(FILE_BYTES), ..Need::default() };
        match s.prepare(&need, live).context(way.name) {
            Ok(p) => prepared.push(p),
            Err(e) => result = Err(e),
        }
        sources.push(Box::new(s));
    }
    let profiles = profiles();
    let mut rates: Rates = vec![vec![Vec::new(); profiles.len()]; ways.len()];
    let mut round = 0;
    while result.is_ok() && effort.goes_on(round, &rates) {
        for k in 0..ways.len() {
            if result.is_err() {
                break;
            }
            // The way that runs first changes with every round.
            let w = (k + round) % ways.len();
            let way = &ways[w];
            let step = |p: &Profile| TimedLoad {
                title: format!("{}, {}", way.name, p.name),
                load: Load { durable: way.write_through, ..Load::of(p, OUTSTANDING, FILE_BYTES) },
                window: effort.window(),
            };
            let steps: Vec<TimedLoad> = profiles.iter().map(step).collect();
            let how = Clients { count: 1, writes: true, write_through: way.write_through, verify: None };
            result = sweep::run(sources[w].as_ref(), how, prepared[w], &steps, live, view, |i, figures, _| {
                rates[w][i].push(figures.io_s);
                Ok(())
            });
        }
        round += 1;
    }
    for s in &mut sources {
        let _ = s.remove();
    }
    for (w, way) in ways.iter().enumerate().skip(1) {
        for (i, p) in profiles.iter().enumerate() {
            // Safety of writes does not affect reads.
            if p.read_percent == 100 && way.name != "signing" && way.name != "encryption" {
                continue;
            }
            let name = format!("{}, {}", way.name, p.name);
            outcome.ratios.push(cost("shares", name, &rates[0][i], &rates[w][i], (way.name, "plain")));
        }
    }
    result
}

fn layouts(dir: &Path, effort: Effort, live: &Live, view: &mut View, outcome: &mut Outcome) -> Result<()> {
    let mut files: Vec<PathBuf> = Vec::new();
    for i in 0..POOL_FILES {
        let path = dir.join(format!("disk{i}"));
        let file = fs::File::create(&path)?;
        file.set_len(POOL_FILE_BYTES)?;
        files.push(path);
    }
    let profiles: Vec<Profile> = profiles();
    let mut rates: Rates = vec![vec![Vec::new(); profiles.len()]; LAYOUTS.len()];
    let mut round = 0;
    while effort.goes_on(round, &rates) {
        for k in 0..LAYOUTS.len() {
            let l = (k + round) % LAYOUTS.len();
            let name = LAYOUTS[l];
            let Some(layout) = Layout::parse(name) else { fail!("no layout {name}") };
            let setup = Setup { layout, disks: POOL_FILES, cache: true, interleave_bytes: 256 << 10 };
            view.say(&format!("a pool with a {name} space"));
            // The files are emptied: labels of the old pool would make them its disks.
            for path in &files {
                fs::File::create(path)?.set_len(POOL_FILE_BYTES)?;
            }
            let world = World::real(&files, setup, FILE_BYTES)?;
            let mut content = Content::plain(1);
            fill(&mut world.target(), FILE_BYTES, &mut content, live)?;
            for (i, p) in profiles.iter().enumerate() {
                let load = Load::of(p, OUTSTANDING, FILE_BYTES);
                let measured = drive(&mut world.target(), &load, effort.window(), &mut content, live);
                if let Some(problem) = measured.problem {
                    fail!("{name}, {}: {problem}", p.name);
                }
                rates[l][i].push(measured.recorder.figures().io_s);
            }
        }
        round += 1;
    }
    for (l, name) in LAYOUTS.iter().enumerate().skip(1) {
        for (i, p) in profiles.iter().enumerate() {
            let what = format!("{name}, {}", p.name);
            outcome.ratios.push(cost("layouts", what, &rates[0][i], &rates[l][i], (name, "simple")));
        }
    }
    Ok(())
}

/// Measures an Arden and pools that are made in a directory. `program` is the daemon's.
///
/// # Errors
/// A disk or the daemon fails, or the load was stopped.
pub fn directory(
    dir: &Path,
    program: Option<&Path>,
    effort: Effort,
    live: &Live,
    view: &mut View,
    outcome: &mut Outcome,
) -> Result<()> {
    match program {
        Some(program) => {
            let work = dir.join("arden");
            let names = [("plain", "plain", None), ("safe", "safe", Some("--ca"))];
            let running = servers::arden_with(program, &work, &names)?;
            servers::settings(program, &work, &["--signing-required=false"])?;
            let share = |name: &str| SmbFile {
                target: Target { share: name.to_string(), ..running.target.clone() },
                path: String::new(),
                protection: Protection::Plain,
                channels: 1,
            };
            shares(&ways(&share("plain"), Some(&share("safe"))), effort, live, view, outcome)?;
        }
        None => outcome.notes.push("No daemon's program was found beside this one: shares were not measured.".into()),
    }
    layouts(dir, effort, live, view, outcome)
}

/// Measures a share and, when given, a continuously available one.
///
/// # Errors
/// A server fails, or the load was stopped.
pub fn share(
    url: &str,
    safe: Option<&str>,
    wire: &Wire,
    effort: Effort,
    live: &Live,
    view: &mut View,
    outcome: &mut Outcome,
) -> Result<()> {
    let file = |url: &str| match url.strip_prefix("smb://") {
        Some(rest) => share::share(rest, wire),
        None => fail!("{url} is no smb:// share"),
    };
    let safe = safe.map(file).transpose()?;
    let plain = file(url)?;
    let demanded = plain.connect()?.terms();
    for (is, what) in [(demanded.signed, "signing"), (demanded.sealed, "encryption")] {
        if is {
            outcome.notes.push(format!(
                "The server demands {what}, so that \"plain\" has it too and its own cost shows as none."
            ));
        }
    }
    if safe.is_none() {
        outcome.notes.push(
            "Without --safe SHARE the cost of continuous availability is taken to be that of write-through.".into(),
        );
    }
    outcome.notes.push("Layouts are not seen through a share: run it on a directory of the server's disks.".into());
    shares(&ways(&plain, safe.as_ref()), effort, live, view, outcome)
}

/// Adds the verdict and recommendations as sentences.
pub fn verdict(outcome: &mut Outcome) {
    let mut lines = Vec::new();
    let say = |r: &Ratio| {
        let slower = (r.ratio.value - 1.0) * 100.0;
        let sure = r.ratio.low > 1.0 || r.ratio.high < 1.0;
        let between = format!("{:+.0} to {:+.0} %", (r.ratio.low - 1.0) * 100.0, (r.ratio.high - 1.0) * 100.0);
        match (sure, slower) {
            (false, s) if r.ratio.width().is_nan() || r.ratio.width() > 1.0 => format!("too noisy to say ({s:+.0} %)"),
            (false, _) => format!("no difference shown ({between})"),
            (true, s) if s < 100.0 => format!("{s:+.0} % time ({between})"),
            (true, _) => format!("{:.1} times the time ({:.1} to {:.1})", r.ratio.value, r.ratio.low, r.ratio.high),
        }
    };
    let mut kinds: Vec<&str> = Vec::new();
    for r in &outcome.ratios {
        if !kinds.contains(&r.a_name.as_str()) {
            kinds.push(&r.a_name);
        }
    }
    for kind in kinds {
        let of = outcome.ratios.iter().filter(|r| r.a_name == kind);
        let parts: Vec<String> =
            of.clone().map(|r| format!("{} {}", r.name.rsplit(", ").next().unwrap_or_default(), say(r))).collect();
        let noisy = of.clone().any(|r| r.ratio.width().is_nan() || r.ratio.width() > 1.0);
        let worst = of.map(|r| r.ratio.value).fold(0.0, f64::max);
        let advice = match worst {
            _ if noisy => "measure again when nothing else runs, or with more --rounds, before deciding by this",
            w if w < 1.15 => "leave it on everywhere",
            w if w < 2.0 => "worth its price where data matters",
            _ => "only where it is needed, or with faster disks or processors",
        };
        lines.push(format!("{kind} over {}: {}: {advice}.", base(outcome, kind), parts.join(", ")));
    }
    outcome.verdict = lines;
}

fn base<'a>(outcome: &'a Outcome, kind: &str) -> &'a str {
    outcome.ratios.iter().find(|r| r.a_name == kind).map_or("plain", |r| r.b_name.as_str())
}
