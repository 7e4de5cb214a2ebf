//! Each fault that the simulator models happens in its runs: a disk that never loses a flush is a model that cannot fail.
//! What each fault does to a disk is shown beside it, in `arden-block`.

use arden_sim::{
    Failure, Stats, run_cluster_seed, run_identity_seed, run_pool_seed, run_seed, run_together_seed, run_volume_seed,
};

fn sum(run: impl Fn(u64) -> Result<Stats, Failure>, seeds: u64) -> Stats {
    let mut sum = Stats::default();
    for seed in 0..seeds {
        sum.add(&run(seed).unwrap_or_else(|f| panic!("seed {seed}: {}", f.what)));
    }
    println!("{sum:?}");
    sum
}

fn all_happen<const N: usize>(faults: [(&str, u64); N]) {
    let never: Vec<&str> = faults.iter().filter(|f| f.1 == 0).map(|f| f.0).collect();
    assert!(never.is_empty(), "never: {never:?}");
}

/// What befalls disks in runs of spaces, of pools and of volumes.
fn disks_fail(s: &Stats) {
    let d = &s.disks;
    all_happen([
        ("writes lost in a crash", d.undone),
        ("writes torn in a crash", d.torn),
        ("writes kept in a crash", d.survived),
        ("disks die", d.deaths),
        ("commands stuck", d.stuck),
        ("commands that take longer", d.stalled),
        ("resets", s.resets),
        ("flushes failed", d.flushes_failed),
        ("cached writes lost", d.cached_lost),
        ("reads that fail by chance", d.read_errors),
        ("crashes of the host alone", s.host_crashes),
        ("writes that land after the host", d.landed_alone),
        ("openings without a disk", s.absent),
        ("disks returned", s.returns),
    ]);
}

/// What a disk does that damages silently.
fn disks_lie(s: &Stats) {
    let d = &s.disks;
    all_happen([
        ("writes lost", d.lost),
        ("writes gone astray", d.misdirected),
        ("rot", d.rotted),
        ("flushes ignored", d.flushes_ignored),
        ("caches lost unnoticed", s.unnoticed),
    ]);
}

#[test]
fn every_fault_happens_in_runs_of_spaces() {
    let s = sum(|seed| run_seed(seed, None, false), 200);
    disks_fail(&s);
    disks_lie(&s);
    all_happen([
        ("commands of a disk that hangs", s.disks.hung),
        ("writes failed", s.disks.writes_failed),
        ("writes of a flaky disk failed", s.disks.write_errors),
        ("blocks gone bad", s.broken),
        ("reads of bad blocks", s.disks.unreadable),
        ("blocks left unreadable", s.disks.left_unreadable),
        ("crashes at a departure", s.aimed[0]),
        ("crashes at a label", s.aimed[1]),
        ("crashes at the turn of the log", s.aimed[2]),
        ("crashes at the turn of the log, twice", s.turned_again),
        ("crashes when a departure is noticed", s.aimed[5]),
        ("crashes while a group is mapped", s.aimed[6]),
        ("crashes soon after an opening", s.aimed[7]),
        ("crashes beside silent damage", s.silent_crashes),
        ("crashes of parity beside silent damage", s.parity_crashes),
        ("lives of stalling disks", s.stalling),
        ("clients pause", s.pauses),
        ("reads beside the pool", s.direct[0]),
        ("reads beside the pool that did not hold", s.direct[1]),
        ("lives of two lying disks", s.liars),
        ("departures beside a lying disk", s.left_a_liar),
        ("flushes that fail on two disks", s.flushes_failed_together),
    ]);
}

#[test]
fn every_fault_happens_in_runs_of_pools() {
    // A log that has no room for what waits is rare: these seeds have one.
    let s = sum(|seed| run_pool_seed(seed + 300, false), 200);
    disks_fail(&s);
    all_happen([
        ("commands of a disk that hangs", s.disks.hung),
        ("blocks gone bad", s.broken),
        ("writes of a flaky disk failed", s.disks.write_errors),
        ("lives of stalling disks", s.stalling),
        ("operations that wait for disks", s.waits),
        ("reads beside the pool", s.direct[0]),
        ("reads beside the pool that did not hold", s.direct[1]),
        ("openings refused", s.refusals),
        ("openings without the log", s.logs_absent),
        ("crashes when the log is half full", s.aimed[8]),
        ("openings without room in the log", s.logs_too_full),
        ("crashes at an answer after a departure", s.aimed_at_answers),
        ("spaces grown", s.spaces_grown),
        ("spaces deleted", s.spaces_deleted),
        ("spaces of fixed size made", s.spaces_fixed),
        ("writes without room", s.full),
        ("repairs that stand back", s.throttled),
        ("repairs paused and cancelled", s.paused),
        ("spaces deleted while a column moves", s.moves_struck[0]),
        ("disks lost while a column moves", s.moves_struck[1]),
        ("removals begun while a column moves", s.moves_struck[2]),
    ]);
    assert!(s.joins > 5 && s.removals > 5, "{} joined, {} left", s.joins, s.removals);
}

#[test]
fn pools_are_split_copied_and_given_old_images_and_strangers() {
    let s = sum(|seed| run_identity_seed(seed, false), 40);
    assert!(s.splits > 5 && s.copies > 5 && s.old_images > 5 && s.strangers > 5 && s.crashes > 5, "{s:?}");
}

#[test]
fn every_fault_happens_in_runs_of_volumes() {
    let s = sum(|seed| run_volume_seed(seed, None, false), 400);
    disks_fail(&s);
    disks_lie(&s);
    all_happen([
        ("crashes at the superblock", s.aimed[3]),
        ("crashes at a batch", s.aimed[4]),
        ("crashes soon after one at the superblock", s.crashed_again),
        ("checkpoints soon after a crash", s.checkpoints),
        ("blocks left unreadable", s.disks.left_unreadable),
        ("operations that find no room in the pool", s.full),
        ("growth", s.grown),
        ("change journals", s.journals),
        ("quotas", s.limits),
    ]);
}

#[test]
fn every_fault_happens_in_runs_of_several_clients() {
    let s = sum(|seed| run_together_seed(seed, None, false), 150);
    disks_fail(&s);
    all_happen([
        ("rot", s.disks.rotted),
        ("crashes", s.crashes),
        ("threads change", s.switches),
        ("several states possible", s.possible.saturating_sub(1)),
    ]);
}

#[test]
fn every_fault_happens_in_runs_of_clusters() {
    let s = sum(|seed| run_cluster_seed(seed, false), 150);
    let c = &s.cluster;
    all_happen([
        ("processes killed", c.kills),
        ("processes stopped", c.stops),
        ("machines frozen with their clocks", c.freezes),
        ("nodes cut off from etcd", c.cut_from_etcd),
        ("nodes cut off from their peers", c.cut_from_peers),
        ("nodes cut off from the disks", c.cut_from_disks),
        ("nodes cut off from one disk", c.paths_cut),
        ("disks that no node reaches for a while", c.disks_away),
        ("disks that stay away", c.disks_dead),
        ("disks lost in failovers", c.disks_lost_in_failovers),
        ("etcd without a leader", c.without_leader),
        ("etcd without its quorum for longer than a lease", c.without_quorum),
        ("renewals by a leader that is none", c.deposed_leaders),
        ("watches that lag", c.lagging_watches),
        ("drains", c.drains),
        ("power lost everywhere", c.blackouts),
        ("messages lost", c.messages_lost),
        ("messages late", c.messages_late),
        ("messages twice", c.messages_twice),
        ("fences that fail", c.fences_failed),
        ("commands ended by a fence or a cut path", s.disks.aborted),
        ("commands that happen after their process", c.orphans),
        ("registrations after the ownership", c.late_registrations),
        ("registrations that arrive right after their fence", c.held_registrations),
        ("fences that take long", c.fences_slow),
        ("registrations whose answer is lost", c.registrations_unheard),
        ("fences whose answer is lost", c.fences_unheard),
        ("nodes that fail while they fence", c.struck_at_fences),
        ("processes killed with commands on their way", c.aimed_kills),
        ("processes stopped until their successor serves", c.aimed_stops),
        ("disks given up with commands on their way", c.disks_given_up),
        ("ownerships that do not end at once", c.stops_slow),
        ("ownerships that never end", c.stops_endless),
        ("renewals answered late, with nothing after them", c.late_renewals),
        ("imports that fail", c.imports_failed),
        ("commands that take longer", s.disks.stalled),
        ("writes lost in a blackout", s.disks.undone),
        ("writes torn in a blackout", s.disks.torn),
        ("processes with a copy of a node's state", c.copies),
        ("etcd restored from an older state", c.restores),
        ("acquisitions that etcd forgets", c.restored_acquisitions),
    ]);
    // What has to come of them.
    all_happen([
        ("holders fenced", c.fences),
        ("disks that an owner takes back", c.disks_returned),
        ("imports without a disk", c.imports_without_a_disk),
        ("fences on a disk that was not reached with the others", c.fenced_on_another_disk),
        ("leases that etcd ends", c.leases_ended),
        ("changes of the writer", c.successions),
        ("requests forwarded", c.forwarded),
        ("handles opened again", c.reopened),
        ("files opened and closed", c.opens),
        ("opens refused for others", c.opens_refused),
        ("requests outrun by later ones", c.outrun),
        ("nodes that notice an older etcd", c.went_back),
        ("pools blocked", c.blocked),
        ("answers withheld", c.answers_withheld),
        ("copies of a node that get a lease", c.copies_alive),
        ("leases refused while another is the node's", c.claims_refused),
    ]);
}
