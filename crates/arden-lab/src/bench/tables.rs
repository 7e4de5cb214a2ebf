//! Results as tables in Markdown.

use std::fmt::Write;

use super::{
    lines::{Aim, score},
    memory::Memory,
    small::{Figures, Guard, Results, Row, rows},
};
use crate::work::Work;

/// The aims against Samba `plain`: least operations a second, and most server CPU.
pub fn aims(work: Work) -> (f64, Option<f64>) {
    match work {
        Work::Create | Work::Rename | Work::Delete => (4.0, Some(0.25)),
        Work::Read | Work::Stat => (2.5, Some(1.0 / 3.0)),
        Work::List => (3.0, None),
        Work::RandomRead => (1.3, Some(0.6)),
        Work::StreamWrite | Work::StreamRead => (1.0, Some(0.7)),
    }
}

/// A rate with its unit; that of streams is MiB a second.
pub(super) fn rate(work: Work, value: f64) -> String {
    if work.is_stream() { format!("{value:.0} MiB/s") } else { format!("{value:.0}/s") }
}

pub(super) fn cost(work: Work, us: f64) -> String {
    // Microseconds for a MiB are nearly milliseconds for a GiB.
    if work.is_stream() { format!("{:.0} ms/GiB", us * 1.024) } else { format!("{us:.1} us") }
}

fn met(value: f64, ok: bool) -> String {
    if ok { format!("**{value:.2}**") } else { format!("{value:.2}") }
}

/// Arden compared with Samba `plain`.
pub fn main_table(results: &Results) -> String {
    let mut out = String::from(
        "| work | Arden | Samba | ratio (aim) | Arden CPU | Samba CPU | ratio (aim) | p50 / p99, Arden | Samba |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let mut guard = None;
    for row in rows() {
        let (Some(a), Some(s)) = (results.figures(row, "arden"), results.figures(row, "samba-plain")) else { continue };
        if guard != Some(row.guard) {
            guard = Some(row.guard);
            let _ = writeln!(out, "| *{}* | | | | | | | | |", row.guard.title());
        }
        let (least, most) = aims(row.work);
        let (faster, cheaper) = (a.rate / s.rate, a.server_us / s.server_us);
        let aim = most.map_or(String::new(), |m| format!(" (≤ {m:.2})"));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} (≥ {least}) | {} | {} | {}{aim} | {} | {} |",
            row.work.title(),
            rate(row.work, a.rate),
            rate(row.work, s.rate),
            met(faster, faster >= least),
            cost(row.work, a.server_us),
            cost(row.work, s.server_us),
            met(cheaper, most.is_none_or(|m| cheaper <= m)),
            latency(a),
            latency(s),
        );
    }
    out
}

fn latency(f: Figures) -> String {
    let one = |us: f64| if us >= 1000.0 { format!("{:.1} ms", us / 1000.0) } else { format!("{us:.0} us") };
    format!("{} / {}", one(f.p50_us), one(f.p99_us))
}

/// All servers with rate, server CPU and client CPU.
pub fn servers_table(results: &Results, servers: &[String]) -> String {
    let mut out = format!("| work | {} |\n|---|{}\n", servers.join(" | "), "---|".repeat(servers.len()));
    for row in rows() {
        let name = match row.guard {
            Guard::Gmac => row.work.title().to_string(),
            _ => format!("{}, {}", row.work.title(), row.guard.title()),
        };
        let cells: Vec<String> = servers.iter().map(|s| cell(results, row, s)).collect();
        if cells.iter().any(|c| c != "–") {
            let _ = writeln!(out, "| {name} | {} |", cells.join(" | "));
        }
    }
    out
}

fn cell(results: &Results, row: Row, server: &str) -> String {
    results.figures(row, server).map_or("–".to_string(), |f| {
        format!("{}, {} (client {})", rate(row.work, f.rate), cost(row.work, f.server_us), cost(row.work, f.client_us))
    })
}

/// The aim of a volume and of its continuously available share, as a multiple of Samba's operations.
const VOLUME_AIM: Aim = Aim::AtLeast(5.0);
const CA_AIM: Aim = Aim::AtLeast(3.0);

/// Small files on a volume, plain and continuously available, compared with the directory and Samba `plain`.
pub fn volume_table(results: &Results) -> String {
    let mut out = String::from(
        "| work, signed with AES-GMAC | directory | volume | CA | Samba | volume over Samba (≥ 5) | CA over Samba (≥ 3) | CPU, volume over Samba | CPU, CA over Samba |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows().into_iter().filter(|r| r.guard == Guard::Gmac && r.work.is_small()) {
        let of = |server| results.figures(row, server);
        let (Some(dir), Some(volume), Some(ca), Some(samba)) = (of("arden"), of("volume"), of("ca"), of("samba-plain"))
        else {
            continue;
        };
        let cell = |f: Figures| format!("{}, {}", rate(row.work, f.rate), cost(row.work, f.server_us));
        let faster = |f: Figures, aim| score(f.rate / samba.rate, aim, "small-files-on-a-volume");
        let cheaper = |f: Figures| format!("{:.2}", f.server_us / samba.server_us);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.work.title(),
            cell(dir),
            cell(volume),
            cell(ca),
            cell(samba),
            faster(volume, VOLUME_AIM),
            faster(ca, CA_AIM),
            cheaper(volume),
            cheaper(ca),
        );
    }
    out
}

/// The daemon's memory and its limits.
pub fn memory_table(m: &Memory) -> String {
    let row = |what: &str, value: f64, unit: &str, aim: f64| {
        format!("| {what} | {} {unit} | {aim} {unit} |\n", met(value, value <= aim))
    };
    let mut out = String::from("| memory of the daemon | measured | at most |\n|---|---|---|\n");
    out += &row("idle", m.idle_bytes as f64 / 1048576.0, "MiB", 30.0);
    out += &row(&format!("each of {} idle sessions", m.sessions), m.session_bytes as f64 / 1024.0, "KiB", 100.0);
    out += &row(
        "peak of an 8 MiB write over idle, the 8 MiB included",
        m.large_write_bytes as f64 / 1048576.0,
        "MiB",
        12.0,
    );
    out
}

/// Replaces the text between a page's markers `<!-- NAME: begin -->` and `end`; `None` when it has none.
pub fn replace_section(page: &str, name: &str, table: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let (head, rest) = page.split_once(&begin)?;
    let (_, tail) = rest.split_once(&end)?;
    Some(format!("{head}{begin}\n{table}{end}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Sample;

    fn sample(operations: u64, cpu: f64) -> Sample {
        Sample {
            operations,
            seconds: 2.0,
            server_cpu_seconds: cpu,
            client_cpu_seconds: 0.1,
            p50_us: 50.0,
            p99_us: 2000.0,
            p999_us: 3000.0,
        }
    }

    #[test]
    fn met_aims_are_bold() {
        let mut results = Results::default();
        let row = Row::compound(Guard::Gmac, Work::Stat);
        results.samples.insert((row, "arden".into()), vec![sample(3000, 0.03)]);
        results.samples.insert((row, "samba-plain".into()), vec![sample(1000, 0.02)]);
        let table = main_table(&results);
        assert!(
            table.contains("| stat | 1500/s | 500/s | **3.00** (≥ 2.5) | 10.0 us | 20.0 us | 0.50 (≤ 0.33) |"),
            "{table}"
        );
        assert!(table.contains("50 us / 2.0 ms"));
    }

    #[test]
    fn a_volume_and_a_safe_share_have_aims_of_their_own() {
        let mut results = Results::default();
        let row = Row::compound(Guard::Gmac, Work::Create);
        for (server, operations, cpu) in
            [("arden", 4000, 0.04), ("volume", 6000, 0.12), ("ca", 2000, 0.1), ("samba-plain", 1000, 0.1)]
        {
            results.samples.insert((row, server.into()), vec![sample(operations, cpu)]);
        }
        let table = volume_table(&results);
        let cells = "| 2000/s, 10.0 us | 3000/s, 20.0 us | 1000/s, 50.0 us | 500/s, 100.0 us |";
        let scores = " **6.00** | 2.00 [no](docs/bench.md#small-files-on-a-volume) | 0.20 | 0.50 |";
        assert!(table.contains(&format!("{cells}{scores}")), "{table}");
        // A row that was not measured on a volume has no line.
        assert_eq!(table.lines().count(), 3);
    }

    #[test]
    fn sections_are_replaced() {
        let page = |table: &str| format!("a\n<!-- bench: begin -->\n{table}<!-- bench: end -->\nb\n");
        assert_eq!(replace_section(&page("old\n"), "bench", "new\n").unwrap(), page("new\n"));
        assert_eq!(replace_section(&page("old\n"), "bench-space", "new"), None);
    }
}
