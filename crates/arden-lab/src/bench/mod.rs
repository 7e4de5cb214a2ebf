//! `make bench`: parts that each start what they measure, run it in interleaved rounds, stop it again, and leave a table
//! between the markers of docs/bench.md. A part that fails leaves its old table and stops no other.

pub mod echo;
pub mod experiments;
pub mod lines;
pub mod reads;
pub mod small;
pub mod streams;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use clap::ValueEnum;

use self::small::{Row, Side};
use crate::{
    Result, cli,
    client::Client,
    experiment_cli::Scratch,
    fail,
    load::Live,
    machine, memory, report, servers,
    work::{Amount, Sample},
};

/// Of each of the two files that a volume of the benchmark lies on.
const VOLUME_DISK_BYTES: u64 = 8 << 30;
/// A directory of the volume, and a continuously available share on it.
const CA: &str = "ca";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Small files, random reads and streams on a directory, a volume, a continuously available share and Samba
    Small,
    /// What the daemon keeps in memory
    Memory,
    /// 4 KiB reads from memory beside an echo
    Reads,
    /// Sequential writing and reading on a mirror beside the space itself
    Streams,
    /// Copies on a continuously available share and a plain one
    E1,
    /// Write-through and cached copies
    E2,
}

/// What to run, decided.
#[derive(Debug, Clone)]
pub struct Plan {
    pub parts: Vec<Part>,
    /// Of the small part.
    pub rows: Vec<Row>,
    pub arden: PathBuf,
    /// Script that starts and stops Samba; without it Arden is measured alone.
    pub samba: Option<PathBuf>,
    /// Samba's modes; the first takes part in every round.
    pub modes: Vec<String>,
    pub rounds: usize,
    pub amount: Amount,
    /// Of the memory part.
    pub sessions: usize,
    pub stream_bytes: u64,
    /// E1's and E2's data is so many times smaller than published.
    pub scale: u64,
    /// The longest that E1 may take; E2 half of that.
    pub limit: Duration,
    /// Everything is made in directories of its own here, which are removed.
    pub dir: PathBuf,
    pub commit: String,
    /// Pages that get the tables.
    pub pages: Vec<PathBuf>,
}

/// A table and the markers that it goes between.
struct Section {
    marker: &'static str,
    text: String,
}

pub(crate) fn stopped(live: &Live) -> Result<()> {
    if live.stop.load(Relaxed) {
        fail!("stopped");
    }
    Ok(())
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy)]
struct Turn {
    side: usize,
    round: usize,
}

/// Every side in every round; by side, what each round gave. Nobody is always first.
fn in_turn(
    rounds: usize,
    sides: &[&str],
    unit: &str,
    live: &Live,
    mut measure: impl FnMut(Turn) -> Result<f64>,
) -> Result<Vec<Vec<f64>>> {
    let mut seen = vec![Vec::new(); sides.len()];
    for round in 0..rounds {
        for k in 0..sides.len() {
            let side = (k + round) % sides.len();
            stopped(live)?;
            // What the last one left to the disk is not this one's to carry.
            rustix::fs::sync();
            let value = measure(Turn { side, round }).map_err(|e| crate::LabError(format!("{}: {e}", sides[side])))?;
            eprintln!("round {}  {:<40} {value:>10.0} {unit}", round + 1, sides[side]);
            seen[side].push(value);
        }
    }
    Ok(seen)
}

/// A line of the log.
pub fn show(row: Row, server: &str, s: &Sample) {
    eprintln!(
        "{:<14} {:<34} {:<10} {:>10.0}/s  server {:>8.1} us  client {:>8.1} us  p50 {:>8.0} p99 {:>8.0} us",
        server,
        row.work.title(),
        format!("{:?}", row.guard),
        s.rate(),
        s.server_us(),
        s.client_us(),
        s.p50_us,
        s.p99_us
    );
}

fn small(plan: &Plan, dir: &Path, live: &Live) -> Result<Vec<Section>> {
    let plain = servers::arden(&plan.arden, &dir.join("arden"))?;
    let on_volume = dir.join("volume");
    let volume = servers::arden_on_volume(&plan.arden, &on_volume, VOLUME_DISK_BYTES, &[("test", None)])?;
    Client::connect(&volume.target, small::Guard::Gmac.protection())?.make_directory(CA)?;
    servers::volume_share(&plan.arden, &on_volume, CA, &format!("/{CA}"), "--ca")?;
    let mut peers = Vec::new();
    if let Some(script) = &plan.samba {
        for mode in &plan.modes {
            peers.push(servers::samba(script, mode, &dir.join(mode))?);
        }
    }
    let side = |name: &str, server: &servers::Running, every_round, all_guards| Side {
        name: name.to_string(),
        target: server.target.clone(),
        pid: server.pid,
        every_round,
        all_guards,
    };
    let mut sides =
        vec![side("arden", &plain, true, true), side("volume", &volume, true, false), side(CA, &volume, true, false)];
    sides[2].target.share = CA.to_string();
    sides.extend(peers.iter().enumerate().map(|(i, p)| side(&p.name, p, i == 0, true)));
    let results = small::run(&plan.rows, &sides, plan.rounds, plan.amount, live, show)?;
    let names: Vec<String> = sides.into_iter().map(|s| s.name).collect();
    Ok(vec![
        Section { marker: "bench", text: report::main_table(&results) },
        Section { marker: "bench-volume", text: report::volume_table(&results) },
        Section { marker: "bench-servers", text: report::servers_table(&results, &names) },
    ])
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Small => "small",
            Part::Memory => "memory",
            Part::Reads => "reads",
            Part::Streams => "streams",
            Part::E1 => "e1",
            Part::E2 => "e2",
        }
    }

    fn measure(self, plan: &Plan, dir: &Path, live: &Live) -> Result<Vec<Section>> {
        let one = |marker, text| Ok(vec![Section { marker, text }]);
        match self {
            Part::Small => small(plan, dir, live),
            Part::Memory => {
                let arden = servers::arden(&plan.arden, dir)?;
                one("bench-memory", report::memory_table(&memory::measure(&arden, plan.sessions)?))
            }
            Part::Reads => one("bench-reads", reads::measure(plan, dir, live)?),
            Part::Streams => one("bench-streams", streams::measure(plan, dir, live)?),
            Part::E1 => one("bench-e1", experiments::measure(plan, experiments::Which::E1, dir, live)?),
            Part::E2 => one("bench-e2", experiments::measure(plan, experiments::Which::E2, dir, live)?),
        }
    }
}

/// Where and how a table came to be; it stands over the table.
fn origin(plan: &Plan) -> String {
    let a = plan.amount;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "*Commit {}, {}: {} interleaved rounds, medians, {cores} cores, {} files over {} connections with {} compound in \
         flight on each.*\n\n",
        plan.commit,
        machine::now(),
        plan.rounds,
        a.files * a.connections,
        a.connections,
        a.depth,
    )
}

/// Puts a section into the pages that have its markers.
fn publish(plan: &Plan, section: &Section) -> Result<()> {
    for page in &plan.pages {
        let read = |e| crate::LabError(format!("{}: {e}", page.display()));
        let old = fs::read_to_string(page).map_err(read)?;
        let text = format!("\n{}{}", origin(plan), section.text.replace(&format!("({}#", lines::PAGE), "(#"));
        if let Some(new) = report::replace_section(&old, section.marker, &text) {
            fs::write(page, new).map_err(read)?;
        }
    }
    Ok(())
}

fn run_part(part: Part, plan: &Plan, live: &Live) -> Result<()> {
    let scratch = Scratch::new(&plan.dir)?;
    for section in part.measure(plan, &scratch.0, live)? {
        println!("{}", section.text);
        publish(plan, &section)?;
    }
    Ok(())
}

/// Runs the parts one after the other.
pub fn run(plan: &Plan) -> Result<()> {
    let live = Arc::new(Live::default());
    cli::stop_on_signal(&live);
    let mut wrong = Vec::new();
    for part in &plan.parts {
        let began = Instant::now();
        eprintln!("== {}", part.name());
        if let Err(e) = run_part(*part, plan, &live) {
            eprintln!("arden-lab: {}: {e}", part.name());
            wrong.push(format!("{}: {e}", part.name()));
        }
        eprintln!("== {} took {:.0} s", part.name(), began.elapsed().as_secs_f64());
        stopped(&live)?;
    }
    if !wrong.is_empty() {
        fail!("not everything was measured: {}", wrong.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_takes_the_first_turn_once() {
        let mut order = Vec::new();
        let seen = in_turn(2, &["a", "b"], "x", &Live::default(), |t| {
            order.push((t.round, t.side));
            Ok((t.round * 10 + t.side) as f64)
        });
        assert_eq!(order, [(0, 0), (0, 1), (1, 1), (1, 0)]);
        assert_eq!(seen.unwrap(), [vec![0.0, 10.0], vec![1.0, 11.0]]);
        let live = Live::default();
        live.stop.store(true, Relaxed);
        assert!(in_turn(1, &["a"], "x", &live, |_| Ok(1.0)).is_err());
    }

    #[test]
    fn tables_go_between_their_markers() {
        let dir = std::env::temp_dir().join(format!("arden-lab-bench-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let page = dir.join("bench.md");
        fs::write(&page, "a\n<!-- bench-e1: begin -->\nold\n<!-- bench-e1: end -->\nb\n").unwrap();
        let plan = Plan {
            parts: Vec::new(),
            rows: Vec::new(),
            arden: PathBuf::new(),
            samba: None,
            modes: Vec::new(),
            rounds: 3,
            amount: Amount { connections: 4, depth: 1, files: 10, lists: 1, random_reads: 1 },
            sessions: 0,
            stream_bytes: 0,
            scale: 1,
            limit: Duration::ZERO,
            dir: dir.clone(),
            commit: "abc".into(),
            pages: vec![page.clone()],
        };
        let text = "| [no](docs/bench.md#x) |\n".to_string();
        publish(&plan, &Section { marker: "bench-e1", text }).unwrap();
        let page = fs::read_to_string(page).unwrap();
        assert!(page.contains("| [no](#x) |") && page.contains("Commit abc") && !page.contains("old"), "{page}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
