//! All points of outcomes as comma-separated values, for spreadsheets.

use std::fmt::Write;

use crate::outcome::Outcome;

/// All points as comma-separated values, one line for each round.
pub fn csv(outcomes: &[Outcome]) -> String {
    let quote =
        |s: &str| if s.contains([',', '"', '\n']) { format!("\"{}\"", s.replace('"', "\"\"")) } else { s.to_string() };
    let mut out = String::from(
        "kind,began,group,config,profile,access,read_percent,block_bytes,outstanding,rate,round,partial,seconds,io_s,mb_s,mean_us,p50_us,p90_us,p99_us,p999_us,p9999_us,max_us,client_cpu_us,server_cpu_us,unsent\n",
    );
    for o in outcomes {
        for p in &o.points {
            for (i, f) in p.rounds.iter().enumerate() {
                let access = p.profile.access.name();
                let or_none = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:.3}"));
                let _ = writeln!(
                    out,
                    "{},{},{},{},{},{access},{},{},{},{},{},{},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{},{},{}",
                    o.kind,
                    o.began,
                    quote(&p.group),
                    quote(&p.config),
                    quote(&p.profile.name),
                    p.profile.read_percent,
                    p.profile.block_bytes,
                    p.outstanding,
                    or_none(p.rate),
                    i + 1,
                    p.partial && i + 1 == p.rounds.len(),
                    f.seconds,
                    f.io_s,
                    f.mb_s,
                    f.mean_us,
                    f.p50_us,
                    f.p90_us,
                    f.p99_us,
                    f.p999_us,
                    f.p9999_us,
                    f.max_us,
                    or_none(f.client_cpu_us),
                    or_none(f.server_cpu_us),
                    f.unsent
                );
            }
        }
    }
    out
}
