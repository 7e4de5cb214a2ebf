//! A volume on a space on simulated disks: fixed seeds for a fixed time, and named seeds that once failed.
//!
//! `ARDEN_SIM_SECONDS` sets the time (6 by default). A seed that fails prints the command that runs it again.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use arden_sim::{Stats, run_volume_seed};

fn run(seed: u64) -> Stats {
    match std::panic::catch_unwind(AssertUnwindSafe(|| run_volume_seed(seed, None, false))) {
        Ok(Ok(stats)) => stats,
        Ok(Err(f)) => panic!("seed {seed}: {}\n{}", f.what, replay(seed)),
        Err(p) => {
            eprintln!("{}", replay(seed));
            std::panic::resume_unwind(p)
        }
    }
}

fn replay(seed: u64) -> String {
    format!("replay: cargo run --release -p arden-sim -- --seed {seed} --volume --verbose")
}

/// Data that its own group freed again had made room for the next write: the group counted as never written.
#[test]
fn a_group_is_not_judged_by_data_that_it_freed() {
    run(12);
}

/// A folder was renamed over one name of a file whose other name lies in that folder: the file counted as moved with it, and
/// once more by itself.
#[test]
fn a_file_that_gets_below_a_folder_as_it_moves_counts_once() {
    run(92_017_358);
}

#[test]
fn a_volume_on_a_space_on_faulty_disks_keeps_what_was_durable() {
    let seconds = std::env::var("ARDEN_SIM_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(6);
    let (begun, mut sum, mut seed) = (Instant::now(), Stats::default(), 0);
    // However slow the machine is, the first ones are run.
    while seed < 4 || begun.elapsed() < Duration::from_secs(seconds) {
        let stats = run(seed);
        sum.operations += stats.operations;
        sum.crashes += stats.crashes;
        seed += 1;
    }
    println!("seeds 0 to {} clean: {} operations, {} crashes", seed - 1, sum.operations, sum.crashes);
    assert!(sum.operations > 0, "the seeds did nothing");
}

/// What is done, and when the power fails, depends on the seed alone, also where blocks stay in memory.
#[test]
fn a_seed_does_the_same_every_time() {
    let run = |seed| format!("{:?}", run(seed));
    (500..512).for_each(|seed| assert_eq!(run(seed), run(seed), "seed {seed}"));
}
