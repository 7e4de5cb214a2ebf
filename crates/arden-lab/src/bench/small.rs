//! Interleaved rounds on several servers: every row runs on each server in turn, so that other work of the machine
//! affects all alike. Figures are medians of the rounds.

use std::collections::BTreeMap;

use arden_measure::{
    Context, Result,
    base::stats::median,
    client::{Protection, Target},
    load::Live,
};
use serde::{Deserialize, Serialize};

use crate::work::{Amount, Bench, Calls, Sample, Work};

/// Protection of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Guard {
    Gmac,
    Cmac,
    Encrypted,
}

impl Guard {
    /// The protection as the client has it.
    pub fn protection(self) -> Protection {
        match self {
            Guard::Gmac => Protection::GMAC,
            Guard::Cmac => Protection::CMAC,
            Guard::Encrypted => Protection::Encrypt,
        }
    }
    /// The name in tables.
    pub fn title(self) -> &'static str {
        match self {
            Guard::Gmac => "signed, AES-GMAC",
            Guard::Cmac => "signed, AES-CMAC",
            Guard::Encrypted => "encrypted, AES-128-GCM",
        }
    }
}

/// A line of the table: a work under a protection by a client with these calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub calls: Calls,
    pub guard: Guard,
    pub work: Work,
}

impl Row {
    /// The row of a client that packs each operation into a compound.
    pub const fn compound(guard: Guard, work: Work) -> Row {
        Row { calls: Calls::Compound, guard, work }
    }

    /// The description in tables.
    pub fn title(&self) -> &'static str {
        self.work.title_of(self.calls)
    }
}

/// The rows: all work signed with AES-GMAC, then the work that other protection affects most.
pub fn rows() -> Vec<Row> {
    let all = Work::ALL.map(|work| Row::compound(Guard::Gmac, work));
    let some = [Work::RandomRead, Work::StreamWrite, Work::StreamRead];
    let others = [Guard::Cmac, Guard::Encrypted].map(|guard| some.map(|work| Row::compound(guard, work)));
    all.into_iter().chain(others.into_iter().flatten()).collect()
}

/// The rows of clients that do not pack everything into compounds, signed with AES-GMAC over all connections.
pub fn clients() -> Vec<Row> {
    let smb2 = [Work::Create, Work::Read, Work::Delete].map(|work| (Calls::Smb2, work));
    let single = Work::ALL.map(|work| (Calls::Single, work));
    smb2.into_iter().chain(single).map(|(calls, work)| Row { calls, guard: Guard::Gmac, work }).collect()
}

/// A share that is measured.
#[derive(Debug, Clone)]
pub struct Side {
    pub name: String,
    pub target: Target,
    pub pid: u32,
    /// Runs in every round. Other sides, for orientation, run in the first round with a fifth of the work.
    pub every_round: bool,
    /// Runs the rows of the other protections too.
    pub all_guards: bool,
}

/// Samples by row and server.
#[derive(Debug, Default)]
pub struct Results {
    pub samples: BTreeMap<(Row, String), Vec<Sample>>,
}

/// Figures of one row on one server.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub rate: f64,
    pub server_us: f64,
    pub client_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Results {
    /// The best rate of a row on a server and, on their own, its least processor time and latencies; `None` when it was not run
    /// there.
    pub fn best(&self, row: Row, server: &str) -> Option<Figures> {
        let samples = self.samples.get(&(row, server.to_string()))?;
        let least = |f: fn(&Sample) -> f64| samples.iter().map(f).fold(f64::INFINITY, f64::min);
        Some(Figures {
            rate: samples.iter().map(Sample::rate).fold(0.0, f64::max),
            server_us: least(Sample::server_us),
            client_us: least(Sample::client_us),
            p50_us: least(|s| s.p50_us),
            p99_us: least(|s| s.p99_us),
        })
    }

    /// The medians of a row on a server; `None` when it was not run there.
    pub fn figures(&self, row: Row, server: &str) -> Option<Figures> {
        let samples = self.samples.get(&(row, server.to_string()))?;
        let of = |f: fn(&Sample) -> f64| median(&samples.iter().map(f).collect::<Vec<f64>>());
        Some(Figures {
            rate: of(Sample::rate),
            server_us: of(Sample::server_us),
            client_us: of(Sample::client_us),
            p50_us: of(|s| s.p50_us),
            p99_us: of(|s| s.p99_us),
        })
    }
}

/// So often a run on a peer whose process ended under it is repeated.
const REPEATED_MAX: usize = 3;

/// Runs the work, and repeats it on Samba: version 4.17 panics at times when several connections open one directory ("Could not
/// unlock share mode").
fn run_peer<T>(side: &str, what: &str, mut run: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..if side.starts_with("samba") { REPEATED_MAX } else { 0 } {
        match run() {
            Err(e) => eprintln!("arden-lab: {what}: {e}; the run is repeated"),
            done => return done,
        }
    }
    run()
}

/// Runs `rows` on every side in turn.
///
/// # Errors
/// The first run that fails, with its side and work; a stopped measurement.
pub fn run(
    rows: &[Row],
    sides: &[Side],
    rounds: usize,
    amount: Amount,
    live: &Live,
    mut progress: impl FnMut(Row, &str, &Sample),
) -> Result<Results> {
    let mut results = Results::default();
    for round in 0..rounds {
        for row in rows {
            for side in sides {
                let left_out = round > 0 && !side.every_round || row.guard != Guard::Gmac && !side.all_guards;
                if left_out {
                    continue;
                }
                live.go_on()?;
                // Data that the last run left in caches is written now, not during this one.
                rustix::fs::sync();
                let bench = Bench {
                    target: &side.target,
                    protection: row.guard.protection(),
                    server: Some(side.pid),
                    amount: if side.every_round { amount } else { amount.fifth() },
                    calls: row.calls,
                };
                let what = format!("{}, {}", side.name, row.title());
                let sample = run_peer(&side.name, &what, || bench.run(row.work)).context(&what)?;
                progress(*row, &side.name, &sample);
                results.samples.entry((*row, side.name.clone())).or_default().push(sample);
            }
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arden_measure::fail;

    #[test]
    fn only_the_peer_is_asked_again_and_not_for_ever() {
        let after = |side: &str, failures: usize| {
            let mut runs = 0;
            let done = run_peer(side, "list", || {
                runs += 1;
                if runs <= failures {
                    fail!("the server closed the connection");
                }
                Ok(())
            });
            (done.is_ok(), runs)
        };
        assert_eq!(after("samba-plain", 0), (true, 1));
        assert_eq!(after("samba-plain", 2), (true, 3));
        assert_eq!(after("samba-plain", 9), (false, 1 + REPEATED_MAX));
        assert_eq!(after("volume", 1), (false, 1));
    }
}
