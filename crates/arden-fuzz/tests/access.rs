//! The fuzzer of access for a bounded time: fixed seeds, and fresh ones that are printed. `ARDEN_ACCESS_SECONDS` makes the
//! fresh part longer, `ARDEN_ACCESS_SEED` says where it begins.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arden_fuzz::access::{Settings, StoreKind, fuzz, shrink};

const STORES: [StoreKind; 3] = [StoreKind::Directory, StoreKind::Volume, StoreKind::Cached];
const OPS: usize = 200;

fn run(seed: u64) {
    let store = STORES[seed as usize % STORES.len()];
    let settings = Settings { store, ops: OPS, verbose: false };
    if let Err(failure) = fuzz(seed, &settings) {
        let short = shrink(&failure, store);
        let ops: Vec<String> = short.ops.iter().map(|op| format!("  {op:?}")).collect();
        panic!("seed {seed} on {store:?}, {OPS} operations: {}\n{}", short.what, ops.join("\n"));
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn fixed_seeds() {
    (1..=150).for_each(run);
}

#[test]
fn fresh_seeds() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    let first = number("ARDEN_ACCESS_SEED", now.as_secs() * 10_000);
    let end = Instant::now() + Duration::from_secs(number("ARDEN_ACCESS_SECONDS", 20));
    let mut seed = first;
    println!("access: seeds from {first}");
    while Instant::now() < end {
        run(seed);
        seed += 1;
    }
    println!("access: seeds {first} to {} without a finding", seed - 1);
}
