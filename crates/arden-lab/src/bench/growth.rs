//! Growth: the rates of work on a few of many files beside the same work where there are few, and of very many connections beside
//! a few; the memory that many files take, and how soon a killed server answers again. Arden beside itself, on a volume.

use std::{fmt::Write, path::Path};

use arden_measure::{
    Context, Result,
    base::{process, stats::median, units::size},
    client::{Client, Target},
    fail,
    load::Live,
};

use super::{
    CA,
    lines::{Aim, score},
    memory::raise_files,
    plan::Plan,
    small::Guard,
    turns::{Turn, in_turn},
};
use crate::{
    local::servers::{self, Running},
    work::{
        Amount, Bench, Calls, Sample,
        population::{Act, Population},
    },
};

/// Files of the population that the others are compared with, and of each folder.
const FEW: usize = 10_000;
const FILES_IN_EACH: usize = 1000;
/// The part of the files that one folder holds alone.
const WIDE_PART: usize = 5;
/// Entries that are listed on each side in a round.
const LISTED: usize = 200_000;
/// `--volume-cache` of the servers.
const CACHE_BYTES: u64 = 1 << 30;
/// Persistent opens that a killed server gives back.
const OPENS: u32 = 10_000;
/// What a daemon takes besides, in bytes.
const DAEMON_BYTES: u64 = 32 << 20;
/// Connections that are compared, and operations on all of them in a round for each that the other rows have.
const CONNECTIONS: [usize; 2] = [8, 1000];
const MORE_OPERATIONS: usize = 2;
/// Aims.
const RATE_AIM: Aim = Aim::AtLeast(0.9);
const TAIL_AIM: Aim = Aim::AtMost(20.0);
const OPENING_AIM: Aim = Aim::AtMost(2.0);
const MEMORY_AIM: Aim = Aim::AtMost(1.0);
const WHY: &str = "growth";
/// Connections and compounds in flight of the filling.
const FILLING: (usize, usize) = (8, 16);
const ROOT: &str = "many";

/// A server with a volume, and its files, which both shares show.
struct Side {
    name: &'static str,
    server: Running,
    files: Population,
}

impl Side {
    fn start(plan: &Plan, dir: &Path, name: &'static str, (folders, each): (usize, usize)) -> Result<Side> {
        let dir = dir.join(name);
        // Each file takes a block, and its records several times as they are written again.
        let disk_bytes = (4 << 30) + (folders * each) as u64 * (12 << 10);
        let server = servers::arden_on_volume(&plan.arden, &dir, disk_bytes, &[("test", None)])?;
        servers::settings(&plan.arden, &dir, &["--volume-cache", &CACHE_BYTES.to_string()])?;
        let mut client = Client::connect(&server.target, Guard::Gmac.protection())?;
        client.make_directory(CA)?;
        client.make_directory(&format!("{CA}\\{ROOT}"))?;
        servers::volume_share(&plan.arden, &dir, CA, &format!("/{CA}"), "--ca")?;
        let files = Population { root: ROOT.into(), folders, files_in_each: each };
        let side = Side { name, server, files };
        let filled = side.bench(false, (FILLING.0, FILLING.1)).populate(&side.population(false))?;
        show(&side, false, "fill", &filled);
        Ok(side)
    }

    fn target(&self, ca: bool) -> Target {
        let share = if ca { CA.to_string() } else { self.server.target.share.clone() };
        Target { share, ..self.server.target.clone() }
    }

    /// The files as a share shows them.
    fn population(&self, ca: bool) -> Population {
        let root = if ca { self.files.root.clone() } else { format!("{CA}\\{}", self.files.root) };
        Population { root, ..self.files.clone() }
    }

    fn bench(&self, ca: bool, (connections, depth): (usize, usize)) -> On<'_> {
        On { side: self, target: self.target(ca), amount: Amount { connections, depth, ..NOTHING } }
    }
}

const NOTHING: Amount = Amount { connections: 1, depth: 1, files: 0, lists: 0, random_reads: 0 };

/// A load on a share of a side.
struct On<'a> {
    side: &'a Side,
    target: Target,
    amount: Amount,
}

impl On<'_> {
    fn bench(&self) -> Bench<'_> {
        let (protection, server) = (Guard::Gmac.protection(), Some(self.side.server.pid));
        Bench { target: &self.target, protection, server, amount: self.amount, calls: Calls::Compound }
    }

    fn populate(&self, files: &Population) -> Result<Sample> {
        self.bench().populate(files).context(self.side.name)
    }

    fn act(&self, files: &Population, act: Act, which: &[u32]) -> Result<Sample> {
        self.bench().act(files, act, which).context(format_args!("{}, {}", self.side.name, act.title()))
    }
}

fn show(side: &Side, ca: bool, what: &str, s: &Sample) {
    eprintln!(
        "{:<8} {:<7} {what:<30} {:>10.0}/s  server {:>8.1} us  client {:>8.1} us  p50 {:>8.0} p99 {:>8.0} us",
        side.name,
        share(ca),
        s.rate(),
        s.server_us(),
        s.client_us(),
        s.p50_us,
        s.p99_us
    );
}

fn share(ca: bool) -> &'static str {
    if ca { "CA" } else { "volume" }
}

/// The samples of one kind of work on one share, by side and round.
struct Seen {
    what: String,
    sides: Vec<Vec<Sample>>,
}

impl Seen {
    fn of(&self, side: usize, f: impl Fn(&Sample) -> f64) -> f64 {
        median(&self.sides[side].iter().map(f).collect::<Vec<_>>())
    }

    fn cell(&self, side: usize) -> String {
        let n = self.of(side, Sample::rate);
        format!("{n:.0}/s, {:.1} us", self.of(side, Sample::server_us))
    }

    /// The rate of a side over that of the first.
    fn ratio(&self, side: usize) -> f64 {
        self.of(side, Sample::rate) / self.of(0, Sample::rate)
    }
}

/// Operations of each kind of work in a round.
fn operations(plan: &Plan) -> usize {
    plan.amount.files * plan.amount.connections
}

/// All kinds of work on all sides.
fn populations(plan: &Plan, sides: &[Side], live: &Live) -> Result<Vec<Seen>> {
    let mut out = Vec::new();
    let names: Vec<&str> = sides.iter().map(|s| s.name).collect();
    let operations = operations(plan);
    for ca in [false, true] {
        let mut seen: Vec<Vec<Vec<Sample>>> = vec![vec![Vec::new(); sides.len()]; Act::ALL.len()];
        in_turn(plan.rounds, &names, "seconds", live, |Turn { side: i, round }| {
            let side = &sides[i];
            let on = side.bench(ca, (plan.amount.connections, plan.amount.depth));
            let files = side.population(ca);
            let mut seconds = 0.0;
            for (act, seen) in Act::ALL.into_iter().zip(&mut seen) {
                let n = if act == Act::List { (LISTED / files.files_in_each).max(1) } else { operations };
                let sample = on.act(&files, act, &files.sample(n, round, act))?;
                show(side, ca, act.title(), &sample);
                seconds += sample.seconds;
                seen[i].push(sample);
            }
            Ok(seconds)
        })?;
        out.extend(
            Act::ALL
                .into_iter()
                .zip(seen)
                .map(|(act, sides)| Seen { what: format!("{}: {}", share(ca), act.title()), sides }),
        );
    }
    Ok(out)
}

/// The same work over a few and over very many connections, to one side.
fn connections(plan: &Plan, side: &Side, live: &Live) -> Result<Vec<Seen>> {
    raise_files();
    let operations = MORE_OPERATIONS * operations(plan);
    let mut out = Vec::new();
    for (ca, acts) in [(false, &[Act::Stat][..]), (true, &[Act::Rename, Act::Delete, Act::Create][..])] {
        let mut seen: Vec<Vec<Vec<Sample>>> = vec![vec![Vec::new(); CONNECTIONS.len()]; acts.len()];
        let names = CONNECTIONS.map(|n| format!("{n} connections"));
        in_turn(plan.rounds, &names.each_ref().map(String::as_str), "seconds", live, |Turn { side: i, round }| {
            let on = side.bench(ca, (CONNECTIONS[i], 1));
            let files = side.population(ca);
            let mut seconds = 0.0;
            for (act, seen) in acts.iter().zip(&mut seen) {
                let sample = on.act(&files, *act, &files.sample(operations, round, *act))?;
                show(side, ca, &format!("{}, {}", act.title(), names[i]), &sample);
                seconds += sample.seconds;
                seen[i].push(sample);
            }
            Ok(seconds)
        })?;
        out.extend(
            acts.iter().zip(seen).map(|(act, sides)| Seen { what: format!("{}: {}", share(ca), act.title()), sides }),
        );
    }
    Ok(out)
}

/// Kills a side's server after a load of changes, and starts it again. The seconds until it answers, by round, the last one with
/// persistent opens that it has to give back.
fn openings(plan: &Plan, dir: &Path, mut side: Side, live: &Live) -> Result<Vec<f64>> {
    let mut out = Vec::new();
    for round in 0..=plan.rounds {
        live.go_on()?;
        let files = side.population(true);
        let held = if round == plan.rounds { OPENS.min(files.files() as u32 / 2) } else { 0 };
        let mut holder = Client::connect(&side.target(true), Guard::Gmac.protection())?;
        files.hold(&mut holder, held)?;
        let on = side.bench(true, (plan.amount.connections, 16));
        let mut which = files.sample(operations(plan), round, Act::Rename);
        which.retain(|file| *file >= held);
        // All of it was answered, so all of it has to be there.
        let last = which[which.len() - 1];
        for act in [Act::Rename, Act::Delete, Act::Create] {
            on.act(&files, act, &which)?;
        }
        let Side { name, server, files: inner } = side;
        let answers = |target: &Target| {
            let target = Target { share: CA.to_string(), ..target.clone() };
            Client::connect(&target, Guard::Gmac.protection())
                .is_ok_and(|mut c| files.is_there(&mut c, last) && files.are_kept(&mut c, 0..held.min(1)))
        };
        let (server, seconds) = servers::restart_killed(&plan.arden, &dir.join(name), server, answers)?;
        eprintln!("{name}: answers {seconds:.2} s after a kill, with {held} persistent opens");
        drop(holder);
        side = Side { name, server, files: inner };
        let mut other = Client::connect(&side.target(true), Guard::Gmac.protection())?;
        if !files.are_kept(&mut other, 0..held) {
            fail!("a killed server did not keep all of {held} files for their owner");
        }
        out.push(seconds);
    }
    // Nothing is missing, and nothing is there twice.
    let files = side.population(false);
    let all: Vec<u32> = (0..files.folders as u32).collect();
    let listed = side.bench(false, (1, 1)).act(&files, Act::List, &all)?;
    if (listed.operations as usize) < files.files() {
        fail!("{} of {} files are there", listed.operations, files.files());
    }
    Ok(out)
}

/// Measures the part and returns its table.
///
/// # Errors
/// A server fails, or the measurement was stopped.
pub fn measure(plan: &Plan, dir: &Path, live: &Live) -> Result<String> {
    let many = (plan.growth_files / FILES_IN_EACH).max(1);
    let few = (FEW / FILES_IN_EACH).min(many);
    let wide = (plan.growth_files / WIDE_PART).max(1);
    let shapes = [("few", (few, FILES_IN_EACH)), ("many", (many, FILES_IN_EACH)), ("wide", (1, wide))];
    let mut sides = Vec::new();
    for (name, shape) in shapes {
        live.go_on()?;
        sides.push(Side::start(plan, dir, name, shape)?);
    }
    let by_size = populations(plan, &sides, live)?;
    let by_connections = connections(plan, &sides[1], live)?;
    let peak = process::memory(sides[1].server.pid, "VmHWM")?;
    let opened = openings(plan, dir, sides.swap_remove(1), live)?;
    let mut text = rates(&shapes.map(|(_, (folders, each))| folders * each), &by_size);
    text.push('\n');
    text.push_str(&tails(&by_connections));
    text.push('\n');
    text.push_str(&limits(many * FILES_IN_EACH, peak, &opened));
    Ok(text)
}

fn rates(files: &[usize; 3], seen: &[Seen]) -> String {
    let [few, many, wide] = files;
    let mut out = format!(
        "| work on files at random | {few} files in {} folders | {many} in {} folders | ratio (≥ 0.9) | {wide} in one folder | ratio (≥ \
         0.9) |\n|---|---|---|---|---|---|\n",
        few / FILES_IN_EACH,
        many / FILES_IN_EACH
    );
    for s in seen {
        let [a, b] = [1, 2].map(|side| score(s.ratio(side), RATE_AIM, WHY));
        let _ = writeln!(out, "| {} | {} | {} | {a} | {} | {b} |", s.what, s.cell(0), s.cell(1), s.cell(2));
    }
    out
}

fn tails(seen: &[Seen]) -> String {
    let [few, many] = CONNECTIONS;
    let mut out = format!(
        "| work, one compound in flight on each connection | {few} connections | {many} connections | ratio (≥ 0.9) | p50 / p99 of {many} | \
         p99 over p50 (≤ 20) |\n|---|---|---|---|---|---|\n"
    );
    for s in seen {
        let (p50, p99) = (s.of(1, |s| s.p50_us), s.of(1, |s| s.p99_us));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {:.1} ms / {:.1} ms | {} |",
            s.what,
            s.cell(0),
            s.cell(1),
            score(s.ratio(1), RATE_AIM, WHY),
            p50 / 1e3,
            p99 / 1e3,
            score(p99 / p50, TAIL_AIM, WHY)
        );
    }
    out
}

fn limits(files: usize, peak_bytes: u64, opened: &[f64]) -> String {
    let (with_opens, without) = opened.split_last().expect("at least the round with opens");
    let worst = without.iter().copied().fold(0.0, f64::max);
    let set = CACHE_BYTES + DAEMON_BYTES;
    format!(
        "| with {files} files | measured | aim |\n|---|---|---|\n\
         | from the start of a killed server until it answers on the CA share, the longest of {} | {} s | ≤ 2 s |\n\
         | the same with {OPENS} persistent opens, which wait for their owner | {} s | ≤ 2 s |\n\
         | peak memory of the daemon, `--volume-cache {}`: {}, over what is set and {} for the daemon | {} | ≤ 1 |\n",
        without.len(),
        score(worst, OPENING_AIM, WHY),
        score(*with_opens, OPENING_AIM, WHY),
        size(CACHE_BYTES),
        size(peak_bytes),
        size(DAEMON_BYTES),
        score(peak_bytes as f64 / set as f64, MEMORY_AIM, WHY)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(operations: u64, p99_us: f64) -> Sample {
        let (seconds, server_cpu_seconds, client_cpu_seconds) = (1.0, 0.5, 0.1);
        Sample { operations, seconds, server_cpu_seconds, client_cpu_seconds, p50_us: 100.0, p99_us, p999_us: 1.0 }
    }

    #[test]
    fn ratios_are_those_of_medians_to_the_first_side() {
        let of = |rates: [u64; 3]| rates.map(|n| sample(n, 900.0)).to_vec();
        let seen =
            Seen { what: "CA: stat".into(), sides: vec![of([90, 1000, 2000]), of([950, 1, 5000]), of([899, 899, 1])] };
        let t = rates(&[10_000, 1_000_000, 200_000], &[seen]);
        assert!(t.contains("| CA: stat | 1000/s, 500.0 us | 950/s, 526.3 us | **0.95** | 899/s, "), "{t}");
        assert!(t.contains("| 0.90 [no](docs/bench.md#growth) |"), "{t}");
        let seen = Seen { what: "volume: stat".into(), sides: vec![vec![sample(100, 1.0)], vec![sample(95, 2100.0)]] };
        let t = tails(&[seen]);
        assert!(t.contains("| **0.95** | 0.1 ms / 2.1 ms | 21.000 [no](docs/bench.md#growth) |"), "{t}");
        let t = limits(1000, 3 << 30, &[0.5, 2.5, 1.0]);
        assert!(
            t.contains("longest of 2 | 2.500 [no]")
                && t.contains("wait for their owner | **1.000** s")
                && t.contains("| 2.909 [no]"),
            "{t}"
        );
    }
}
