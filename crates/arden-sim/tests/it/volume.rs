//! A volume on a space on simulated disks: what a run does depends on its seed alone.

use arden_sim::run_volume_seed;

/// Also where blocks stay in memory.
#[test]
fn a_seed_does_the_same_every_time() {
    let run = |seed| {
        format!("{:?}", run_volume_seed(seed, None, false).unwrap_or_else(|f| panic!("seed {seed}: {}", f.what)))
    };
    (500..512).for_each(|seed| assert_eq!(run(seed), run(seed), "seed {seed}"));
}
