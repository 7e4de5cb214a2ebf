//! Each fault that the simulator models happens in runs of fixed seeds: a disk that never loses a flush is a model that cannot fail.
//! What each fault does to a disk is shown beside it, in `arden-block`. Hundreds of seeds: it is for optimised builds.

use crate::{
    Failure, Stats, run_cluster_seed, run_identity_seed, run_pool_seed, run_seed, run_together_seed, run_volume_seed,
};

/// Err: what went wrong, or never happened.
type Check = fn() -> Result<(), String>;

/// A check for each kind of runs.
pub const CHECKS: [(&str, Check); 6] = [
    ("spaces", spaces),
    ("pools", pools),
    ("identities", identities),
    ("volumes", volumes),
    ("volumes of several clients", several_clients),
    ("clusters", clusters),
];

fn sum(run: impl Fn(u64) -> Result<Stats, Failure>, seeds: u64) -> Result<Stats, String> {
    let mut sum = Stats::default();
    for seed in 0..seeds {
        sum.add(&run(seed).map_err(|f| format!("seed {seed}: {}", f.what))?);
    }
    Ok(sum)
}

fn all_happen<const N: usize>(faults: [(&str, u64); N]) -> Result<(), String> {
    let never: Vec<&str> = faults.iter().filter(|f| f.1 == 0).map(|f| f.0).collect();
    if never.is_empty() { Ok(()) } else { Err(format!("never: {}", never.join(", "))) }
}

/// The same, and more than five of each.
fn several<const N: usize>(faults: [(&str, u64); N]) -> Result<(), String> {
    all_happen(faults.map(|(fault, times)| (fault, times / 6)))
}

/// What befalls disks in runs of spaces, of pools and of volumes.
fn disks_fail(s: &Stats) -> Result<(), String> {
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
    ])
}

/// What a disk does that damages silently.
fn disks_lie(s: &Stats) -> Result<(), String> {
    let d = &s.disks;
    all_happen([
        ("writes lost", d.lost),
        ("writes gone astray", d.misdirected),
        ("rot", d.rotted),
        ("flushes ignored", d.flushes_ignored),
        ("caches lost unnoticed", s.unnoticed),
    ])
}

fn spaces() -> Result<(), String> {
    let s = sum(|seed| run_seed(seed, None, false), 200)?;
    disks_fail(&s)?;
    disks_lie(&s)?;
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
    ])
}

fn pools() -> Result<(), String> {
    // A log that has no room for what waits is rare: these seeds have one.
    let s = sum(|seed| run_pool_seed(seed + 300, false), 200)?;
    disks_fail(&s)?;
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
    ])?;
    several([("disks that join", s.joins), ("disks that leave", s.removals)])
}

fn identities() -> Result<(), String> {
    let s = sum(|seed| run_identity_seed(seed, false), 40)?;
    several([
        ("pools split", s.splits),
        ("pools copied", s.copies),
        ("old images", s.old_images),
        ("strangers", s.strangers),
        ("crashes", s.crashes),
    ])
}

fn volumes() -> Result<(), String> {
    let s = sum(|seed| run_volume_seed(seed, None, false), 400)?;
    disks_fail(&s)?;
    disks_lie(&s)?;
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
    ])
}

fn several_clients() -> Result<(), String> {
    let s = sum(|seed| run_together_seed(seed, None, false), 150)?;
    disks_fail(&s)?;
    all_happen([
        ("rot", s.disks.rotted),
        ("crashes", s.crashes),
        ("threads change", s.switches),
        ("several states possible", s.possible.saturating_sub(1)),
    ])
}

fn clusters() -> Result<(), String> {
    let s = sum(|seed| run_cluster_seed(seed, false), 150)?;
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
    ])?;
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
    ])
}
