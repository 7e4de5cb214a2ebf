//! `make bench`. Each part starts its servers, measures them in interleaved rounds, stops them, and writes a table
//! between its markers in docs/bench.md. A part that fails keeps its old table and does not stop the others.

pub mod clients;
pub mod echo;
pub mod experiments;
pub mod growth;
pub mod lines;
pub mod memory;
pub mod plan;
pub mod reads;
pub mod small;
pub mod streams;
pub mod tables;
pub mod turns;

use std::{fs, path::Path, sync::Arc, time::Instant};

use arden_measure::{Context, Result, base::machine, client::Client, fail, load::Live};

use self::{
    plan::{Part, Plan, VOLUME_DISK_BYTES},
    small::{Row, Side},
    tables::replace_section,
};
use crate::{
    local::{scratch::Scratch, servers, signals::stop_on_signal},
    work::Sample,
};

/// Name of a directory of the volume, and of the continuously available share on it.
const CA: &str = "ca";

/// A table and the name of its markers.
struct Section {
    marker: &'static str,
    text: String,
}

/// Prints a sample to the log.
pub fn show(row: Row, server: &str, s: &Sample) {
    eprintln!(
        "{:<14} {:<44} {:<10} {:>10.0}/s  server {:>8.1} us  client {:>8.1} us  p50 {:>8.0} p99 {:>8.0} us",
        server,
        row.title(),
        format!("{:?}", row.guard),
        s.rate(),
        s.server_us(),
        s.client_us(),
        s.p50_us,
        s.p99_us
    );
}

/// Starts directory, volume, continuously available share and the `modes` of Samba, and runs the rows on all of them.
/// Returns the names of the sides too.
fn beside_samba(
    plan: &Plan,
    rows: &[Row],
    modes: &[String],
    dir: &Path,
    live: &Live,
) -> Result<(small::Results, Vec<String>)> {
    let plain = servers::arden(&plan.arden, &dir.join("arden"))?;
    let on_volume = dir.join("volume");
    let volume = servers::arden_on_volume(&plan.arden, &on_volume, VOLUME_DISK_BYTES, &[("test", None)])?;
    Client::connect(&volume.target, small::Guard::Gmac.protection())?.make_directory(CA)?;
    servers::volume_share(&plan.arden, &on_volume, CA, &format!("/{CA}"), "--ca")?;
    let mut peers = Vec::new();
    if let Some(script) = &plan.samba {
        for mode in modes {
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
    let results = small::run(rows, &sides, plan.rounds, plan.amount, live, show)?;
    Ok((results, sides.into_iter().map(|s| s.name).collect()))
}

fn small(plan: &Plan, dir: &Path, live: &Live) -> Result<Vec<Section>> {
    let (results, names) = beside_samba(plan, &plan.rows, &plan.modes, dir, live)?;
    Ok(vec![
        Section { marker: "bench", text: tables::main_table(&results) },
        Section { marker: "bench-volume", text: tables::volume_table(&results) },
        Section { marker: "bench-servers", text: tables::servers_table(&results, &names) },
    ])
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Small => "small",
            Part::Clients => "clients",
            Part::Memory => "memory",
            Part::Reads => "reads",
            Part::Streams => "streams",
            Part::E1 => "e1",
            Part::E2 => "e2",
            Part::Growth => "growth",
        }
    }

    fn measure(self, plan: &Plan, dir: &Path, live: &Live) -> Result<Vec<Section>> {
        let one = |marker, text| Ok(vec![Section { marker, text }]);
        match self {
            Part::Small => small(plan, dir, live),
            Part::Clients => {
                let (results, _) =
                    beside_samba(plan, &plan.client_rows, &plan.modes[..plan.modes.len().min(1)], dir, live)?;
                one("bench-clients", clients::table(&results))
            }
            Part::Memory => {
                let arden = servers::arden(&plan.arden, dir)?;
                one("bench-memory", tables::memory_table(&memory::measure(&arden, plan.sessions)?))
            }
            Part::Reads => one("bench-reads", reads::measure(plan, dir, live)?),
            Part::Streams => one("bench-streams", streams::measure(plan, dir, live)?),
            Part::E1 => one("bench-e1", experiments::measure(plan, experiments::Which::E1, dir, live)?),
            Part::E2 => one("bench-e2", experiments::measure(plan, experiments::Which::E2, dir, live)?),
            Part::Growth => one("bench-growth", growth::measure(plan, dir, live)?),
        }
    }
}

/// The machine, the commit and the amounts of a run, which are printed above its table.
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

/// Writes a section to the pages that have its markers.
fn publish(plan: &Plan, section: &Section) -> Result<()> {
    for page in &plan.pages {
        let old = fs::read_to_string(page).context(page.display())?;
        let text = format!("\n{}{}", origin(plan), section.text.replace(&format!("({}#", lines::PAGE), "(#"));
        if let Some(new) = replace_section(&old, section.marker, &text) {
            fs::write(page, new).context(page.display())?;
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
///
/// # Errors
/// The parts that failed; a stopped measurement.
pub fn run(plan: &Plan) -> Result<()> {
    let live = Arc::new(Live::default());
    stop_on_signal(&live);
    let mut wrong = Vec::new();
    for part in &plan.parts {
        let began = Instant::now();
        eprintln!("== {}", part.name());
        if let Err(e) = run_part(*part, plan, &live) {
            eprintln!("arden-lab: {}: {e}", part.name());
            wrong.push(format!("{}: {e}", part.name()));
        }
        eprintln!("== {} took {:.0} s", part.name(), began.elapsed().as_secs_f64());
        live.go_on()?;
    }
    if !wrong.is_empty() {
        fail!("not everything was measured: {}", wrong.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Duration};

    use super::*;
    use crate::work::Amount;

    #[test]
    fn tables_go_between_their_markers() {
        let dir = std::env::temp_dir().join(format!("arden-lab-bench-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let page = dir.join("bench.md");
        fs::write(&page, "a\n<!-- bench-e1: begin -->\nold\n<!-- bench-e1: end -->\nb\n").unwrap();
        let plan = Plan {
            parts: Vec::new(),
            rows: Vec::new(),
            client_rows: Vec::new(),
            arden: PathBuf::new(),
            samba: None,
            modes: Vec::new(),
            rounds: 3,
            amount: Amount { connections: 4, depth: 1, files: 10, lists: 1, random_reads: 1 },
            sessions: 0,
            stream_bytes: 0,
            growth_files: 0,
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
