//! Seeds of this commit for a fixed time, and named seeds that once failed.
//!
//! `ARDEN_SIM_SECONDS` sets the time (30 by default), `ARDEN_SIM_COMMIT` the commit when there is
//! no git. A seed that fails prints the command that runs it again.

use std::process::Command;
use std::time::{Duration, Instant};

use arden_sim::{Stats, run_pool_seed, run_seed};
use arden_space::Layout;

fn run(layout: Layout, seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        if let Err(f) = run_seed(seed, Some(layout), false) {
            panic!(
                "seed {seed}: {}\nreplay: cargo run --release -p arden-sim -- --seed {seed} --layout {} --verbose",
                f.what,
                layout.name()
            );
        }
    }
}

fn commit() -> String {
    if let Ok(c) = std::env::var("ARDEN_SIM_COMMIT") {
        return c;
    }
    let out = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let text = out.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok());
    text.map_or_else(|| "0".into(), |t| t.trim().into())
}

#[test]
fn seeds_of_this_commit() {
    let commit = commit();
    let first = u64::from_str_radix(&commit[..commit.len().min(10)], 16).unwrap_or(0);
    let seconds = std::env::var("ARDEN_SIM_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(30);
    println!("commit {commit}: seeds from {first}, for {seconds} s");
    let begun = Instant::now();
    let (mut seed, mut sum) = (first, Stats::default());
    while begun.elapsed() < Duration::from_secs(seconds) {
        match run_seed(seed, None, false) {
            Ok(s) => {
                sum.operations += s.operations;
                sum.crashes += s.crashes;
            }
            Err(f) => {
                panic!("seed {seed}: {}\nreplay: cargo run --release -p arden-sim -- --seed {seed} --verbose", f.what)
            }
        }
        seed += 1;
    }
    println!("{} seeds clean: {} operations, {} crashes", seed - first, sum.operations, sum.crashes);
    assert!(sum.operations > 0 && sum.crashes > 0, "the seeds did nothing");
}

/// Several spaces in one pool, and disks that join, are emptied and leave.
#[test]
fn pools_whose_disks_are_exchanged() {
    let mut sum = Stats::default();
    for seed in 0..40 {
        match run_pool_seed(seed, false) {
            Ok(s) => {
                sum.joins += s.joins;
                sum.removals += s.removals;
            }
            Err(f) => panic!(
                "seed {seed}: {}\nreplay: cargo run --release -p arden-sim -- --pool --seed {seed} --verbose",
                f.what
            ),
        }
    }
    assert!(sum.joins > 5 && sum.removals > 5, "{} joined, {} left", sum.joins, sum.removals);
}

/// With too few columns here a group was not written, so that those of absent disks held nothing old. A column that moved
/// to another disk made it serve again, and they did not become out of date.
#[test]
fn a_group_that_waits_for_its_disks_is_not_moved() {
    for seed in [702_004, 702_036, 43_000_596] {
        if let Err(f) = run_pool_seed(seed, false) {
            panic!("seed {seed}: {}", f.what);
        }
    }
}

/// Disks returned in an opening that a crash ended before their own labels said so: the next one took them for old
/// images, and what they alone held for out of date.
#[test]
fn disks_that_return_in_an_opening_cut_short_are_no_old_images() {
    for seed in [42_001_053, 43_000_740, 43_001_485] {
        if let Err(f) = run_pool_seed(seed, false) {
            panic!("seed {seed}: {}", f.what);
        }
    }
}

/// What a crash left different in a group that waits for its disks counted as damage that nobody can decide.
#[test]
fn a_scrub_compares_nothing_in_a_group_that_waits() {
    for seed in [43_000_992, 50_001_509] {
        if let Err(f) = run_pool_seed(seed, false) {
            panic!("seed {seed}: {}", f.what);
        }
    }
}

/// A group was given back while a read that verifies was under way: it said that no copy can be read, where zeros are.
#[test]
fn a_group_given_back_under_a_read_is_zeros() {
    for seed in [60_000_903, 60_008_956, 60_028_390, 60_032_448, 60_067_247, 60_079_269] {
        if let Err(f) = run_seed(seed, None, false) {
            panic!("seed {seed}: {}", f.what);
        }
    }
}

/// A stripe was computed, in the slot that it had left, from a column that had come back and never got that slot.
#[test]
fn a_slot_that_its_stripe_has_left_is_read_without_columns_that_come_back() {
    run_seed(60_031_910, None, false).unwrap_or_else(|f| panic!("seed {}: {}", f.seed, f.what));
}

/// A copy was out of date when a write began and counted when the disk of the other one died: the writer was refused.
#[test]
fn a_write_is_proved_by_a_copy_brought_up_to_date_meanwhile() {
    run_seed(60_092_158, None, false).unwrap_or_else(|f| panic!("seed {}: {}", f.seed, f.what));
}

/// A disk left with one of two copies of the log while the other's disk hung.
#[test]
fn a_disk_leaves_when_the_log_lies_elsewhere() {
    run_pool_seed(55_001_740, false).unwrap_or_else(|f| panic!("--pool, seed {}: {}", f.seed, f.what));
}

/// A write that a crash left on one copy only was read, and lost with the next crash.
#[test]
fn mirror_crash_then_read_then_crash_without_the_first_disk() {
    run(Layout::Mirror2, [161, 451].into_iter());
}

/// A region was counted as marked by a map that a cleaning had overtaken.
#[test]
fn mirror_cleaning_overtakes_a_commit() {
    run(Layout::Mirror2, [279].into_iter());
}

/// A disk returned and was brought up to date while a stripe was on its way without it.
#[test]
fn parity_disk_returns_while_a_stripe_is_written() {
    run(Layout::Parity, [51, 218].into_iter());
    run(Layout::DualParity, [389].into_iter());
}

/// Moves of stripes were logged against a map that did not know a departure or a move of columns.
#[test]
fn parity_flip_logged_before_the_departure_is_durable() {
    run(Layout::Parity, [744, 665].into_iter());
    run(Layout::DualParity, [238].into_iter());
}

/// The log's head stood exactly at the end of its area.
#[test]
fn journal_head_at_the_end() {
    run(Layout::Simple, [10, 153, 147].into_iter());
}

/// A commit that was tried again wrote over the map that the labels still named.
#[test]
fn failed_commit_spares_the_map_that_counts() {
    run(Layout::Mirror3, [245].into_iter());
}

/// A stripe counted as written to a slab that had been another column's when it was written.
#[test]
fn parity_slab_changes_columns_under_a_stripe() {
    run(Layout::DualParity, [133].into_iter());
}

/// Two moves at once brought two columns of a group to one disk.
#[test]
fn parity_two_moves_of_one_group() {
    run(Layout::DualParity, [573].into_iter());
}

/// An opening that came to nothing set a disk apart for ever.
#[test]
fn mirror_opening_cut_short_is_not_a_history() {
    run(Layout::Mirror2, [55].into_iter());
}

/// The journal lay on fewer disks than the map in memory said.
#[test]
fn journal_counts_as_whole_when_it_is_durable() {
    run(Layout::Mirror2, [5012792].into_iter());
}

/// A disk that was about to leave was asked for a write that nobody waited for: it happened after
/// the disk had returned.
#[test]
fn mirror_write_asked_of_a_hung_disk_happens_after_its_return() {
    run(Layout::Mirror2, [885633605787].into_iter());
}

/// A block was written anew while the batch with its acknowledged content was on its way: the
/// next map let go of the batch.
#[test]
fn parity_block_rewritten_while_its_batch_is_written() {
    run(Layout::DualParity, [246488975921].into_iter());
}

/// Stripes larger than a quarter of the memory for gathering were written in parts, the rest
/// read from a damaged disk.
#[test]
fn parity_whole_stripes_larger_than_memory() {
    run(Layout::DualParity, [70007999, 925711508023].into_iter());
}

/// A disk was brought up to date and another one left while a part was read: it was computed
/// without the first, which was asked too early, and the second, which was asked too late.
#[test]
fn parity_disks_change_places_while_a_part_is_read() {
    run(Layout::Parity, [130141].into_iter());
}

/// The simulated disk failed a read three times by chance while another disk was away.
#[test]
fn parity_read_errors_stay_within_what_the_layout_bears() {
    run(Layout::Parity, [124817].into_iter());
}

/// An older version of a block came to the log behind a newer one, for the parity of a patch; then the log began
/// between the two, and replay took the older for the newest.
#[test]
fn parity_older_version_logged_behind_a_newer_one() {
    run(Layout::DualParity, [61010237].into_iter());
}

/// Somebody who read waited while another made the copies equal, and then brought a copy up to date for it: the disk of
/// that failed, and the read was refused though another disk had all of it.
#[test]
fn mirror_disk_fails_that_a_reader_brings_up_to_date() {
    run(Layout::Mirror2, [65044926].into_iter());
}

/// Disks returned while a part of a stripe was read that had been beyond reach: the space spoke of a damaged stripe.
#[test]
fn pool_disks_return_while_a_part_beyond_reach_is_read() {
    for seed in [700484, 700330] {
        run_pool_seed(seed, false).unwrap_or_else(|f| panic!("--pool, seed {seed}: {}", f.what));
    }
}
