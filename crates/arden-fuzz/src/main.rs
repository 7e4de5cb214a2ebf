//! The fuzzer of access as a program: `arden-fuzz --seed N --seeds COUNT --ops K [--store dir|cached|volume] [--all]`. Prints a
//! failing seed and the shortest sequence of requests that it found for it.

use std::{process::ExitCode, time::Instant};

use arden_fuzz::access::{Settings, StoreKind, fuzz, shrink};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let number = |name: &str, default: u64| match value(name) {
        Some(text) => text.parse().unwrap_or_else(|_| panic!("{name} takes a number")),
        None => default,
    };
    let flag = |name: &str| args.iter().any(|a| a == name);
    let (seed, seeds) = (number("--seed", 1), number("--seeds", 1));
    let stores = match value("--store").map(String::as_str) {
        Some("dir") => vec![StoreKind::Directory],
        Some("cached") => vec![StoreKind::Cached],
        Some("volume") => vec![StoreKind::Volume],
        Some(other) => panic!("no store {other}"),
        None => vec![StoreKind::Directory, StoreKind::Volume, StoreKind::Cached],
    };
    let (start, mut requests, mut failed) = (Instant::now(), 0, 0u64);
    std::panic::set_hook(Box::new(|_| {}));
    for seed in seed..seed + seeds {
        let store = stores[(seed % stores.len() as u64) as usize];
        let settings = Settings { store, ops: number("--ops", 300) as usize, verbose: flag("--verbose") };
        match fuzz(seed, &settings) {
            Ok(report) => requests += report.requests,
            Err(failure) => {
                failed += 1;
                let short = if flag("--no-shrink") { failure } else { shrink(&failure, store) };
                println!("seed {seed} on {store:?} fails: {}", short.what);
                short.ops.iter().for_each(|op| println!("  {op:?}"));
                if !flag("--all") {
                    println!("again: arden-fuzz --seed {seed} --ops {}", settings.ops);
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{seeds} seeds, {failed} failed, {requests} requests, {:.0} a second", requests as f64 / seconds);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
