//! Runs of the whole server under simulation: a few fixed seeds. Fresh ones are in `fresh.rs`.

use arden_sim::run_server_seed;

fn run(seeds: impl Iterator<Item = u64>) -> arden_sim::Stats {
    let mut sum = arden_sim::Stats::default();
    for seed in seeds {
        let stats = run_server_seed(seed, false).unwrap_or_else(|f| {
            panic!(
                "seed {seed}: {}; replay: cargo run --release -p arden-sim -- --server --seed {seed} --verbose",
                f.what
            )
        });
        sum.operations += stats.operations;
        sum.crashes += stats.crashes;
        sum.returns += stats.returns;
        sum.joins += stats.joins;
        sum.waits += stats.waits;
    }
    sum
}

/// Every kind of event of the model happens: losses of power, reconnects, replays, breaks of leases.
#[test]
fn fixed_seeds() {
    let sum = run(1..=30);
    assert!(sum.operations > 3_000 && sum.crashes > 20 && sum.joins > 100, "{sum:?}");
    assert!(sum.returns > 50 && sum.waits > 50, "{sum:?}");
}
