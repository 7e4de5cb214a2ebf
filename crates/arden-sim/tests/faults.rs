//! Each fault that the simulator models happens in its runs: a disk that never loses a flush is a model that cannot fail.

use arden_sim::{Stats, run_identity_seed, run_pool_seed, run_seed, run_volume_seed};

fn sum(run: impl Fn(u64) -> Result<Stats, arden_sim::Failure>, seeds: u64) -> Stats {
    let mut sum = Stats::default();
    for seed in 0..seeds {
        sum.add(&run(seed).unwrap_or_else(|f| panic!("seed {seed}: {}", f.what)));
    }
    sum
}

#[test]
fn every_fault_happens_in_runs_of_spaces() {
    let s = sum(|seed| run_seed(seed, None, false), 120);
    println!("{s:?}");
    for (what, n) in [
        ("commands stuck", s.stuck),
        ("flushes failed", s.flushes_failed),
        ("flushes ignored", s.flushes_ignored),
        ("cached writes lost", s.cached_lost),
        ("blocks gone bad", s.broken),
        ("disks killed", s.kills),
        ("disks returned", s.returns),
        ("crashes at a departure", s.aimed[0]),
        ("crashes at a label", s.aimed[1]),
        ("crashes at the turn of the log", s.aimed[2]),
        ("crashes beside silent damage", s.silent_crashes),
        ("writes failed", s.writes_failed),
        ("blocks left unreadable", s.left_unreadable),
        ("lives of stalling disks", s.stalling),
        ("clients pause", s.pauses),
        ("crashes when a departure is noticed", s.aimed[5]),
        ("crashes while a group is mapped", s.aimed[6]),
        ("crashes soon after an opening", s.aimed[7]),
        ("crashes of the host alone", s.host_crashes),
        ("writes that land after the host", s.landed_alone),
        ("lives of two lying disks", s.liars),
        ("departures beside a lying disk", s.left_a_liar),
        ("flushes that fail on two disks", s.flushes_failed_together),
        ("crashes of parity beside silent damage", s.parity_crashes),
    ] {
        assert!(n > 0, "{what}: never");
    }
}

#[test]
fn every_fault_happens_in_runs_of_pools() {
    let s = sum(|seed| run_pool_seed(seed, false), 60);
    println!("{s:?}");
    for (what, n) in [
        ("stuck", s.stuck),
        ("flushes failed", s.flushes_failed),
        ("broken", s.broken),
        ("waits", s.waits),
        ("refusals", s.refusals),
        ("spaces grown", s.spaces_grown),
        ("spaces deleted", s.spaces_deleted),
        ("spaces of fixed size made", s.spaces_fixed),
        ("writes without room", s.full),
        ("repairs that stand back", s.throttled),
        ("repairs paused and cancelled", s.paused),
        ("crashes at an answer after a departure", s.aimed_at_answers),
        ("crashes of the host alone", s.host_crashes),
    ] {
        assert!(n > 0, "{what}: never");
    }
    assert!(s.joins > 5 && s.removals > 5, "{} joined, {} left", s.joins, s.removals);
}

#[test]
fn pools_are_split_copied_and_given_old_images_and_strangers() {
    let s = sum(|seed| run_identity_seed(seed, false), 40);
    println!("{s:?}");
    assert!(s.splits > 5 && s.copies > 5 && s.old_images > 5 && s.strangers > 5 && s.crashes > 5, "{s:?}");
}

#[test]
fn every_fault_happens_in_runs_of_volumes() {
    let s = sum(|seed| run_volume_seed(seed, None, false), 60);
    println!("{s:?}");
    for (what, n) in [
        ("commands stuck", s.stuck),
        ("flushes failed", s.flushes_failed),
        ("cached writes lost", s.cached_lost),
        ("disks killed", s.kills),
        ("crashes", s.crashes),
        ("crashes at the superblock", s.aimed[3]),
        ("crashes at a batch", s.aimed[4]),
        ("blocks left unreadable", s.left_unreadable),
        ("checkpoints soon after a crash", s.checkpoints),
        ("growth", s.grown),
        ("change journals", s.journals),
        ("quotas", s.limits),
        ("flushes ignored", s.flushes_ignored),
        ("crashes of the host alone", s.host_crashes),
        ("writes that land after the host", s.landed_alone),
    ] {
        assert!(n > 0, "{what}: never");
    }
}
