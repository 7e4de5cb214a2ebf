//! Interleaved rounds over several servers: every row is run on each server in turn, so that what else the machine
//! does hits all alike. Medians over the rounds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Result,
    client::Protection,
    memory::Memory,
    servers::Running,
    work::{Amount, Bench, Sample, Work},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Guard {
    Gmac,
    Cmac,
    Encrypted,
}

impl Guard {
    pub fn protection(self) -> Protection {
        match self {
            Guard::Gmac => Protection::GMAC,
            Guard::Cmac => Protection::CMAC,
            Guard::Encrypted => Protection::Encrypt,
        }
    }
    pub fn title(self) -> &'static str {
        match self {
            Guard::Gmac => "signed, AES-GMAC",
            Guard::Cmac => "signed, AES-CMAC",
            Guard::Encrypted => "encrypted, AES-128-GCM",
        }
    }
}

/// A line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub guard: Guard,
    pub work: Work,
}

/// Everything signed with AES-GMAC, then what differs most with other protection.
pub fn rows() -> Vec<Row> {
    let all = Work::ALL.map(|work| Row { guard: Guard::Gmac, work });
    let some = [Work::RandomRead, Work::StreamWrite, Work::StreamRead];
    let others = [Guard::Cmac, Guard::Encrypted].map(|guard| some.map(|work| Row { guard, work }));
    all.into_iter().chain(others.into_iter().flatten()).collect()
}

/// Samples by row and server.
#[derive(Debug, Default)]
pub struct Results {
    pub samples: BTreeMap<(Row, String), Vec<Sample>>,
    pub memory: Option<Memory>,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 {
        f64::NAN
    } else if n % 2 == 1 {
        values[n / 2]
    } else {
        (values[n / 2 - 1] + values[n / 2]) / 2.0
    }
}

/// Medians of the rounds of one row on one server.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub rate: f64,
    pub server_us: f64,
    pub client_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Results {
    pub fn figures(&self, row: Row, server: &str) -> Option<Figures> {
        let samples = self.samples.get(&(row, server.to_string()))?;
        let of = |f: fn(&Sample) -> f64| median(samples.iter().map(f).collect());
        Some(Figures {
            rate: of(Sample::rate),
            server_us: of(Sample::server_us),
            client_us: of(Sample::client_us),
            p50_us: of(|s| s.p50_us),
            p99_us: of(|s| s.p99_us),
        })
    }
}

/// Runs `rows` on `servers`; those that are only for orientation take part in the first round.
pub fn run(
    rows: &[Row],
    servers: &[(&Running, bool)],
    rounds: usize,
    amount: Amount,
    results: &mut Results,
    mut progress: impl FnMut(usize, Row, &str, &Sample),
) -> Result<()> {
    for round in 0..rounds {
        for row in rows {
            for (server, every_round) in servers {
                if round > 0 && !every_round {
                    continue;
                }
                // What the last one left to the disk is not this one's to carry.
                rustix::fs::sync();
                let amount = if *every_round { amount } else { amount.fifth() };
                let bench = Bench {
                    target: &server.target,
                    protection: row.guard.protection(),
                    server: Some(server.pid),
                    amount,
                };
                let sample = bench
                    .run(row.work)
                    .map_err(|e| crate::LabError(format!("{}, {}: {e}", server.name, row.work.title())))?;
                progress(round, *row, &server.name, &sample);
                results.samples.entry((*row, server.name.clone())).or_default().push(sample);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
