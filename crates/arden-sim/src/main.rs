//! Command line of the simulator: many seeds, one seed again, or seeds for a time.
#![forbid(unsafe_code)]

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use arden_sim::{
    Stats, run_cluster_seed, run_identity_seed, run_pool_seed, run_seed, run_server_seed, run_together_seed,
    run_volume_seed,
};
use arden_space::Layout;

#[derive(Default)]
struct Args {
    seeds: Option<u64>,
    start: u64,
    one: Option<u64>,
    seconds: Option<u64>,
    layout: Option<Layout>,
    pool: bool,
    volume: bool,
    concurrent: bool,
    server: bool,
    identity: bool,
    cluster: bool,
    verbose: bool,
    keep_going: bool,
    every_fault: bool,
}

fn usage() -> ! {
    eprintln!(
        "arden-sim [--seeds N] [--start S] [--seed S] [--seconds T] [--layout L | --pool] [--volume | --concurrent | --server | --identity | --cluster] [--verbose] [--keep-going]\n\
         arden-sim --every-fault    runs fixed seeds, in which each fault that is simulated has to happen"
    );
    std::process::exit(2)
}

fn parse() -> Args {
    let mut a = Args::default();
    let mut it = std::env::args().skip(1);
    while let Some(x) = it.next() {
        let mut number = || it.next().and_then(|v| v.parse().ok()).unwrap_or_else(|| usage());
        match x.as_str() {
            "--seeds" => a.seeds = Some(number()),
            "--start" => a.start = number(),
            "--seed" => a.one = Some(number()),
            "--seconds" => a.seconds = Some(number()),
            "--layout" => a.layout = it.next().and_then(|v| Layout::parse(&v)).or_else(|| usage()),
            "--pool" => a.pool = true,
            "--volume" => a.volume = true,
            "--concurrent" => a.concurrent = true,
            "--server" => a.server = true,
            "--identity" => a.identity = true,
            "--cluster" => a.cluster = true,
            "--verbose" => a.verbose = true,
            "--keep-going" => a.keep_going = true,
            "--every-fault" => a.every_fault = true,
            _ => usage(),
        }
    }
    a
}

fn attempt(seed: u64, a: &Args) -> Result<Stats, String> {
    let run = || match (a.volume, a.pool) {
        _ if a.server => run_server_seed(seed, a.verbose),
        _ if a.cluster => run_cluster_seed(seed, a.verbose),
        _ if a.identity => run_identity_seed(seed, a.verbose),
        _ if a.concurrent => run_together_seed(seed, a.layout, a.verbose),
        (true, _) => run_volume_seed(seed, a.layout, a.verbose),
        (false, true) => run_pool_seed(seed, a.verbose),
        (false, false) => run_seed(seed, a.layout, a.verbose),
    };
    match std::panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(s)) => Ok(s),
        Ok(Err(f)) => Err(f.what),
        Err(p) => {
            let text = p.downcast_ref::<String>().cloned().or_else(|| p.downcast_ref::<&str>().map(|s| s.to_string()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Fixed seeds of each kind, in which each fault has to happen.
fn every_fault() -> ! {
    let mut failed = false;
    for (kind, check) in arden_sim::every_fault::CHECKS {
        let begun = Instant::now();
        let said = match check() {
            Ok(()) => "every fault happened".to_string(),
            Err(why) => {
                failed = true;
                format!("FAILED: {why}")
            }
        };
        println!("runs of {kind}: {said} ({:.1} s)", begun.elapsed().as_secs_f64());
    }
    std::process::exit(i32::from(failed))
}

fn main() {
    let a = parse();
    if a.every_fault {
        every_fault();
    }
    if a.verbose {
        arden_sim::trace::print();
    }
    let kind = match (a.volume, a.server, a.identity) {
        _ if a.concurrent => " --concurrent",
        _ if a.cluster => " --cluster",
        (true, ..) => " --volume",
        (_, true, _) => " --server",
        (_, _, true) => " --identity",
        _ => "",
    };
    let mut kind = kind.to_string();
    match a.layout {
        Some(l) => kind += &format!(" --layout {}", l.name()),
        None if a.pool => kind += " --pool",
        None => {}
    }
    let (from, to) = match a.one {
        Some(s) => (s, s + 1),
        None => (a.start, a.start + a.seeds.unwrap_or(if a.seconds.is_some() { u64::MAX / 2 } else { 1000 })),
    };
    let begun = Instant::now();
    let (mut ran, mut failures, mut sum) = (0u64, 0u64, Stats::default());
    for seed in from..to {
        if a.seconds.is_some_and(|t| begun.elapsed() >= Duration::from_secs(t)) {
            break;
        }
        ran += 1;
        match attempt(seed, &a) {
            Ok(s) => sum.add(&s),
            Err(what) => {
                failures += 1;
                println!("seed {seed}: {what}");
                println!("replay: cargo run --release -p arden-sim -- --seed {seed}{kind} --verbose");
                if !a.keep_going {
                    std::process::exit(1);
                }
            }
        }
    }
    if a.cluster {
        println!("{:?}", sum.cluster);
    }
    println!(
        "{ran} seeds in {:.1} s, {failures} failures: {} operations, {} crashes, {} openings, {} disks killed, {} returned, {} damaged, {} joined, {} removed, {} refused to spaces without enough disks, {} openings refused for them, {} for want of room in the log, {} pieces given back; \
         {} commands stuck, {} flushes failed, {} ignored, {} cached writes lost, {} blocks gone bad; crashes aimed at \
         departures, labels, the log's turn, superblocks, batches, departures that are noticed, new groups, openings, half full logs: {:?}; {} writes \
         failed, {} blocks left unreadable, {} lives of stalling disks, {} pauses; {} crashes beside silent damage; {} splits, {} copies, {} old images, {} strangers; \
         {} volumes grown, {} looks at change journals, {} at quotas; {} spaces grown, {} deleted, {} of fixed size made again, \
         {} writes without room, {} repairs that stand back, {} paused or cancelled; {} crashes of the host alone, {} writes after one; {} lives of \
         two lying disks, {} departures beside one, {} flushes failed beside another's, {} crashes of parity beside silent damage, \
         {} at an answer after a departure; reads beside the pool, and those that did not hold: {:?}; {} changes of threads, at most {} states possible",
        begun.elapsed().as_secs_f64(),
        sum.operations,
        sum.crashes,
        sum.openings,
        sum.kills,
        sum.returns,
        sum.heals,
        sum.joins,
        sum.removals,
        sum.waits,
        sum.refusals,
        sum.logs_too_full,
        sum.freed,
        sum.disks.stuck,
        sum.disks.flushes_failed,
        sum.disks.flushes_ignored,
        sum.disks.cached_lost,
        sum.broken,
        sum.aimed,
        sum.disks.writes_failed,
        sum.disks.left_unreadable,
        sum.stalling,
        sum.pauses,
        sum.silent_crashes,
        sum.splits,
        sum.copies,
        sum.old_images,
        sum.strangers,
        sum.grown,
        sum.journals,
        sum.limits,
        sum.spaces_grown,
        sum.spaces_deleted,
        sum.spaces_fixed,
        sum.full,
        sum.throttled,
        sum.paused,
        sum.host_crashes,
        sum.disks.landed_alone,
        sum.liars,
        sum.left_a_liar,
        sum.flushes_failed_together,
        sum.parity_crashes,
        sum.aimed_at_answers,
        sum.direct,
        sum.switches,
        sum.possible
    );
    if failures > 0 {
        std::process::exit(1);
    }
}
