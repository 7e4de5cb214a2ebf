//! Results as text for terminals.

use std::fmt::Write;

use crate::{
    base::table,
    load::Figures,
    outcome::{Outcome, Point},
};

/// An outcome as text for terminals.
pub fn text(o: &Outcome) -> String {
    let mut out = String::new();
    if !o.ratios.is_empty() {
        let rows: Vec<Vec<String>> = o
            .ratios
            .iter()
            .map(|r| {
                let published = r.published.map_or("-".to_string(), |p| format!("{p:.3}"));
                vec![r.config.clone(), r.name.clone(), r.ratio.text(), published, r.rounds.to_string()]
            })
            .collect();
        out += &table::text(&["ON", "WHAT", "RATIO (95 %)", "PUBLISHED", "ROUNDS"], &rows);
        out += "\n";
    }
    for r in &o.relations {
        let _ = writeln!(out, "{}  {}: {}", if r.holds { "holds  " } else { "differs" }, r.claim, r.seen);
    }
    if !o.points.is_empty() && o.points.len() <= 60 {
        out += &figures(o);
    }
    for v in &o.verdict {
        let _ = writeln!(out, "{v}");
    }
    out
}

fn us(us: f64) -> String {
    if us >= 1e6 {
        format!("{:.2} s", us / 1e6)
    } else if us >= 1e3 {
        format!("{:.2} ms", us / 1e3)
    } else {
        format!("{us:.1} us")
    }
}

/// The figures of all points as a table for terminals.
pub fn figures(outcome: &Outcome) -> String {
    let head = ["LOAD", "ON", "OUT", "IO/s", "MB/s", "MEAN", "P50", "P99", "P99.9", "P99.99", "CPU c", "CPU s", ""];
    let rows: Vec<Vec<String>> = outcome.points.iter().map(row).collect();
    table::text(&head, &rows)
}

fn row(p: &Point) -> Vec<String> {
    let cpu = |f: fn(&Figures) -> Option<f64>| p.of_some(f).map_or("-".to_string(), us);
    let unsent: u64 = p.rounds.iter().map(|f| f.unsent).sum();
    let mut remark = String::new();
    if p.partial {
        remark += "partial ";
    }
    if unsent > 0 {
        remark += &format!("{unsent} could not be sent in time");
    }
    vec![
        p.group.clone(),
        p.config.clone(),
        p.outstanding.to_string(),
        format!("{:.0}", p.of(|f| f.io_s)),
        format!("{:.1}", p.of(|f| f.mb_s)),
        us(p.of(|f| f.mean_us)),
        us(p.of(|f| f.p50_us)),
        us(p.of(|f| f.p99_us)),
        us(p.of(|f| f.p999_us)),
        us(p.of(|f| f.p9999_us)),
        cpu(|f| f.client_cpu_us),
        cpu(|f| f.server_cpu_us),
        remark,
    ]
}
