//! Metrics as Prometheus text, exposition format 0.0.4. The counters of the server come from `Control`; those of the
//! process and of the state are read here.

use std::fmt::Write;

use crate::{api::Api, model::Metric};

/// Resident memory of this process in bytes.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command's name may hold spaces: fields count from behind its parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    (ticks(11) + ticks(12)) as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// All samples of the daemon.
pub fn all(api: &Api) -> Vec<Metric> {
    let s = api.state.snapshot();
    let gauge = |name, help, value| Metric { name, help, counter: false, labels: Vec::new(), value };
    let mut out = vec![
        gauge("uptime_seconds", "Time since the daemon started", api.started.elapsed().as_secs_f64()),
        gauge("memory_resident_bytes", "Resident memory of the daemon", resident_bytes() as f64),
        gauge("shares", "Shares configured", s.shares.len() as f64),
        gauge("share_problems", "Shares that are not served as configured", api.control.share_problems().len() as f64),
        gauge("users", "Users known", s.users.len() as f64),
        gauge("sessions", "Authenticated sessions", api.control.session_count() as f64),
        gauge("opens", "Open files and directories", api.control.open_count() as f64),
    ];
    let cache = api.volumes.cache();
    out.push(gauge("volume_cache_bytes", "Memory that the volume cache holds", cache.bytes as f64));
    out.push(gauge("volume_cache_max_bytes", "Memory that the volume cache may hold", cache.bytes_max as f64));
    let help = "Processor time of the daemon";
    out.push(Metric { counter: true, ..gauge("cpu_seconds_total", help, cpu_seconds()) });
    out.extend(api.control.metrics());
    out
}

/// The samples as text, those of the same name together. They may be given in any order.
pub fn text(metrics: &[Metric]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for m in metrics {
        if !names.contains(&m.name) {
            names.push(m.name);
        }
    }
    let mut out = String::new();
    for name in names {
        let mut samples = metrics.iter().filter(|m| m.name == name).peekable();
        if let Some(first) = samples.peek() {
            let kind = if first.counter { "counter" } else { "gauge" };
            let _ = writeln!(out, "# HELP arden_{name} {}\n# TYPE arden_{name} {kind}", first.help);
        }
        for m in samples {
            let labels: Vec<String> = m.labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escape(v))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(out, "arden_{name}{labels} {}", m.value);
        }
    }
    out
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_name_stand_together_and_labels_are_escaped() {
        let sample = |name, share: &str, value| Metric {
            name,
            help: "Help",
            counter: true,
            labels: vec![("share", share.to_string())],
            value,
        };
        let got = text(&[
            sample("reads_total", "a", 1.0),
            sample("writes_total", "a", 2.0),
            sample("reads_total", "\"b\\", 3.5),
        ]);
        let want = "# HELP arden_reads_total Help\n# TYPE arden_reads_total counter\n\
                    arden_reads_total{share=\"a\"} 1\narden_reads_total{share=\"\\\"b\\\\\"} 3.5\n\
                    # HELP arden_writes_total Help\n# TYPE arden_writes_total counter\narden_writes_total{share=\"a\"} 2\n";
        assert_eq!(got, want);
        assert!(resident_bytes() > 0);
    }
}
