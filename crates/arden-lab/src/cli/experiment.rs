//! `arden lab experiment`: starts the servers, runs the experiment, stores the result, and removes the servers.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use arden_measure::{
    Result, base::units::duration, fail, load::Live, outcome::Outcome, page::text::text, sweep::view::View,
};

use super::{
    args::{AdviseArgs, ExperimentArgs, Which},
    keep::finish,
};
use crate::{
    experiment::{
        Options, ROUNDS_MAX,
        advise::{self, Effort},
        e1, e2, e3, e6,
        systems::{self, Kinds, Store, System, Wanted},
    },
    local::{scratch::Scratch, servers::own_program, signals::stop_on_signal},
};

fn title(which: Which) -> (&'static str, &'static str, Kinds) {
    match which {
        Which::E1 => ("e1", "E1 · What continuous availability costs information workers", Kinds::PlainCa),
        Which::E2 => ("e2", "E2 · Write-through against cached copying", Kinds::Through),
        Which::E3 => ("e3", "E3 · Storage spaces under five load profiles", Kinds::Plain),
        Which::E6 => ("e6", "E6 · Reads over SMB, large and small", Kinds::Plain),
    }
}

fn describe(outcome: &mut Outcome, systems: &[System]) {
    for system in systems {
        let shares: Vec<String> = system
            .variants
            .iter()
            .map(|v| format!("{}: //{}/{}", v.name, v.file.target.address, v.file.target.share))
            .collect();
        let owned = if system.owns.is_empty() { "" } else { ", started for this on loopback" };
        outcome.configs.insert(system.name.clone(), format!("{}{owned}", shares.join("; ")));
    }
}

/// Runs one experiment and stores its result.
///
/// # Errors
/// Invalid arguments, or as [`finish`].
pub fn run(args: &ExperimentArgs, json: bool) -> Result<()> {
    let (kind, title, kinds) = title(args.which);
    let limit = match &args.limit {
        Some(limit) => duration(limit)?,
        None if args.quick => Duration::from_secs(150),
        None => Duration::from_secs(25 * 60),
    };
    let scale = args.scale.unwrap_or(if args.quick { 16 } else { 1 });
    let options = Options { quick: args.quick, limit, seed: args.seed, scale, rounds_max: ROUNDS_MAX };
    let urls = args.target.iter().chain(&args.against).next().map_or("", String::as_str);
    let wire = args.wire.wire(urls)?;
    let live = Arc::new(Live::default());
    stop_on_signal(&live);
    let mut view = View::default();
    let scratch = Scratch::new(&args.dir)?;
    let wanted = Wanted {
        target: args.target.clone(),
        safe: args.safe.clone(),
        against: args.against.clone(),
        against_safe: args.against_safe.clone(),
        arden: args.arden.clone().or_else(own_program),
        store: args.store,
        samba: args.samba.clone(),
        samba_plain_only: false,
        scale,
    };
    view.say("starting what is measured");
    // E3 needs disks and no servers.
    let servers = args.which != Which::E3;
    let systems = if servers { systems::open(&wanted, kinds, &scratch.0, &wire)? } else { Vec::new() };
    let mut outcome = Outcome::begin(kind, title);
    outcome.set("quick", options.quick);
    outcome
        .set("data", if scale == 1 { "as published".to_string() } else { format!("1/{scale} of what was published") });
    outcome.set("time limit", format!("{limit:?}"));
    if servers {
        outcome.set("seed", options.seed);
        if args.target.is_none() {
            let store = match args.store {
                Store::Volume => "a volume on a mirror of two disk files",
                Store::Dir => "a directory",
            };
            outcome.set("Arden's shares", store);
        }
        outcome.set("protection", format!("{:?}, more where the server demands it", wire.protection));
    }
    describe(&mut outcome, &systems);
    let began = Instant::now();
    let result = match args.which {
        Which::E1 => e1::run(&systems, &options, &live, &mut view, &mut outcome),
        Which::E2 => e2::run(&systems, &options, &live, &mut view, &mut outcome),
        Which::E3 => e3::run(&args.disk, &options, &live, &mut view, &mut outcome),
        Which::E6 => e6::run(&systems, &options, args.wire.clients as usize, &live, &mut view, &mut outcome),
    };
    view.clear();
    outcome.took_s = began.elapsed().as_secs_f64();
    outcome.complete = result.is_ok();
    outcome.problem = result.err().map(|e| e.to_string());
    if options.quick {
        outcome.notes.push("A quick run: smaller data, shorter windows, wider intervals. Ratios are rough.".into());
    }
    drop(systems);
    drop(scratch);
    finish(&outcome, &args.out, json, &text(&outcome))
}

/// Measures the cost of safety and stores the result.
///
/// # Errors
/// Invalid arguments, or as [`finish`].
pub fn advise(args: &AdviseArgs, json: bool) -> Result<()> {
    let effort = Effort { rounds: args.rounds as usize, measure: duration(&args.duration)? };
    if effort.measure.is_zero() {
        fail!("--duration is too short");
    }
    let wire = args.wire.wire(&args.target)?;
    let live = Arc::new(Live::default());
    stop_on_signal(&live);
    let mut view = View::default();
    let mut outcome = Outcome::begin("advise", "What safety costs here");
    outcome.set("target", &args.target);
    outcome.set("duration of each measurement", format!("{:?}", effort.measure));
    let began = Instant::now();
    let result = if args.target.starts_with("smb://") {
        advise::share(&args.target, args.safe.as_deref(), &wire, effort, &live, &mut view, &mut outcome)
    } else {
        let base = Path::new(&args.target);
        if !base.is_dir() {
            fail!("{} is no directory: advise makes its own files in one", args.target);
        }
        let scratch = Scratch::new(base)?;
        let program = args.arden.clone().or_else(own_program);
        advise::directory(&scratch.0, program.as_deref(), effort, &live, &mut view, &mut outcome)
    };
    view.clear();
    advise::verdict(&mut outcome);
    outcome.took_s = began.elapsed().as_secs_f64();
    outcome.complete = result.is_ok();
    outcome.problem = result.err().map(|e| e.to_string());
    finish(&outcome, &args.out, json, &text(&outcome))
}
