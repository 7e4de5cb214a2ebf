//! Seeds that nobody ran before, of every kind of run, with the checks of a debug build: `tests/e2e/simulators.sh` runs more of them.
//!
//! `ARDEN_SIM_SECONDS` is the time of each kind (4 by default), `ARDEN_SIM_FIRST` the first seed (the clock's by default),
//! which is printed also when all goes well. A seed that fails prints the command that runs it again.

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant, SystemTime};

use arden_sim::{
    Failure, Stats, run_cluster_seed, run_identity_seed, run_pool_seed, run_seed, run_server_seed, run_together_seed,
    run_volume_seed,
};

/// A debug build of an idle machine runs more in this time, a loaded one at least so many.
const SEEDS_MIN: u64 = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn fresh(kind: &str, run: impl Fn(u64) -> Result<Stats, Failure>) {
    let clock =
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970").as_secs() * 1000;
    let first = number("ARDEN_SIM_FIRST").unwrap_or_else(clock);
    let limit = Duration::from_secs(number("ARDEN_SIM_SECONDS").unwrap_or(4));
    // Not with `println!`, which the test harness keeps to itself when the test passes.
    let say = |text: String| drop(writeln!(std::io::stderr(), "arden-sim{kind}: {text}"));
    say(format!("fresh seeds from {first} on, for {} s", limit.as_secs()));
    let (begun, mut seed, mut sum) = (Instant::now(), first, Stats::default());
    while begun.elapsed() < limit || seed < first + SEEDS_MIN {
        let replay = || format!("replay: cargo run --release -p arden-sim --{kind} --seed {seed} --verbose");
        match std::panic::catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(Ok(stats)) => sum.add(&stats),
            Ok(Err(f)) => panic!("seed {seed}: {}\n{}", f.what, replay()),
            Err(p) => {
                say(format!("seed {seed} panics; {}", replay()));
                std::panic::resume_unwind(p)
            }
        }
        seed += 1;
    }
    say(format!("{} seeds: {} operations, {} crashes", seed - first, sum.operations, sum.crashes));
    assert!(sum.operations > 0, "the seeds did nothing");
}

#[test]
fn spaces() {
    fresh("", |seed| run_seed(seed, None, false));
}

#[test]
fn pools() {
    fresh(" --pool", |seed| run_pool_seed(seed, false));
}

#[test]
fn volumes() {
    fresh(" --volume", |seed| run_volume_seed(seed, None, false));
}

#[test]
fn volumes_of_several_clients() {
    fresh(" --concurrent", |seed| run_together_seed(seed, None, false));
}

#[test]
fn identities() {
    fresh(" --identity", |seed| run_identity_seed(seed, false));
}

#[test]
fn servers() {
    fresh(" --server", |seed| run_server_seed(seed, false));
}

#[test]
fn clusters() {
    fresh(" --cluster", |seed| run_cluster_seed(seed, false));
}
