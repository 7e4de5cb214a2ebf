//! Clients as they are: work that is not packed into one compound an operation, and reads with the largest length, compared
//! with the best round of Samba.

use std::fmt::Write;

use super::{
    lines::{Aim, score},
    small::{Figures, Results, Row, clients},
    tables::{cost, rate},
};
use crate::work::{Calls, Work};

/// Arden's shares in the order of the columns.
const SHARES: [&str; 3] = ["arden", "volume", "ca"];
const WHY: &str = "clients-as-they-are";

/// Aims of the rates of directory, volume and continuously available share, as multiples of Samba's best.
fn aims(work: Work) -> [f64; 3] {
    match work {
        Work::Create => [2.5, 5.0, 4.0],
        Work::Read => [3.0; 3],
        Work::Stat => [4.0; 3],
        Work::Rename => [5.0, 7.0, 4.0],
        Work::Delete => [2.4, 6.0, 4.0],
        Work::List => [20.0; 3],
        Work::RandomRead | Work::StreamWrite | Work::StreamRead => [1.0; 3],
    }
}

/// Aims of the processor time of large files, as multiples of Samba's least.
fn cpu_aims(work: Work) -> Option<[f64; 3]> {
    match work {
        Work::RandomRead => Some([0.5; 3]),
        Work::StreamWrite => Some([0.7, 0.9, 1.0]),
        Work::StreamRead => Some([0.7; 3]),
        _ => None,
    }
}

/// One cell: rate over the best of Samba, processor time, and its ratio to the least of Samba.
fn cell(row: Row, ours: Figures, samba: Figures, share: usize) -> String {
    let faster = score(ours.rate / samba.rate, Aim::AtLeast(aims(row.work)[share]), WHY);
    let cpu = ours.server_us / samba.server_us;
    let cpu = match cpu_aims(row.work) {
        Some(most) => score(cpu, Aim::AtMost(most[share]), WHY),
        None => format!("{cpu:.2}"),
    };
    format!("{}: {faster}; {}: {cpu}", rate(row.work, ours.rate), cost(row.work, ours.server_us))
}

fn aim_cell(work: Work) -> String {
    let three = |of: [f64; 3]| {
        let [a, b, c] = of.map(|v| v.to_string());
        if a == b && b == c { a } else { format!("{a} / {b} / {c}") }
    };
    let cpu = cpu_aims(work).map_or(String::new(), |most| format!("; CPU ≤ {}", three(most)));
    format!("≥ {}{cpu}", three(aims(work)))
}

/// The table: Samba's best round, and medians of Arden's rounds with their ratios to it.
pub fn table(results: &Results) -> String {
    let mut out = String::from(
        "| work | Samba `plain`, best round | directory | volume | CA | aims |\n|---|---|---|---|---|---|\n",
    );
    let mut calls = None;
    for row in clients() {
        let Some(samba) = results.best(row, "samba-plain") else { continue };
        if calls != Some(row.calls) {
            calls = Some(row.calls);
            let what = if row.calls == Calls::Smb2 { "calls of the crate `smb2`" } else { "no compounds" };
            let _ = writeln!(out, "| *{what}* | | | | | |");
        }
        let cells: Vec<String> = SHARES
            .iter()
            .enumerate()
            .map(|(i, share)| results.figures(row, share).map_or("–".to_string(), |f| cell(row, f, samba, i)))
            .collect();
        let beside = format!("{}, {}", rate(row.work, samba.rate), cost(row.work, samba.server_us));
        let _ = writeln!(out, "| {} | {beside} | {} | {} |", row.title(), cells.join(" | "), aim_cell(row.work));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bench::small::Guard, work::Sample};

    #[test]
    fn ratios_take_the_best_round_of_samba() {
        let row = Row { calls: Calls::Single, guard: Guard::Gmac, work: Work::Stat };
        let sample = |operations, cpu| Sample {
            operations,
            seconds: 1.0,
            server_cpu_seconds: cpu,
            client_cpu_seconds: 0.1,
            p50_us: 1.0,
            p99_us: 2.0,
            p999_us: 3.0,
        };
        let mut results = Results::default();
        results
            .samples
            .insert((row, "samba-plain".into()), vec![sample(100, 0.1), sample(1000, 0.1), sample(200, 0.01)]);
        results.samples.insert((row, "arden".into()), vec![sample(4000, 0.4), sample(5000, 0.2), sample(3000, 0.3)]);
        let table = table(&results);
        // 4,000/s over 1,000/s; 100 us over 50 us, the least of 1,000, 100 and 50.
        let line = "| stat: open, query, close | 1000/s, 50.0 us | 4000/s: **4.00**; 100.0 us: 2.00 | – | – | ≥ 4 |";
        assert!(table.contains(line), "{table}");
        assert_eq!(aim_cell(Work::StreamWrite), "≥ 1; CPU ≤ 0.7 / 0.9 / 1");
    }
}
