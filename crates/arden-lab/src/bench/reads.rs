//! Random reads of 4 KiB that the server has in memory, from a directory and from a volume, compared with an echo.

use std::path::Path;

use arden_measure::{Result, base::stats::median, load::Live};

use super::{
    echo::{self, Echo},
    lines::{Aim, Line, table},
    plan::{Plan, VOLUME_DISK_BYTES},
    small::Guard,
    turns::{Turn, in_turn},
};
use crate::{
    local::servers,
    work::{Bench, Calls, Work},
};

const AIM: Aim = Aim::AtLeast(0.9);

/// Measures the part and returns its table.
///
/// # Errors
/// A server fails, or the measurement was stopped.
pub fn measure(plan: &Plan, dir: &Path, live: &Live) -> Result<String> {
    let plain = servers::arden(&plan.arden, &dir.join("dir"))?;
    let volume = servers::arden_on_volume(&plan.arden, &dir.join("volume"), VOLUME_DISK_BYTES, &[("test", None)])?;
    let names = ["echo", "echo, answers gathered", "directory", "volume"];
    let seen = in_turn(plan.rounds, &names, "answers/s", live, |Turn { side, .. }| match side {
        0 => echo::rate(Echo::Plain, plan.amount.random_reads),
        1 => echo::rate(Echo::Gathered, plan.amount.random_reads),
        _ => {
            let server = if side == 2 { &plain } else { &volume };
            let (protection, amount) = (Guard::Gmac.protection(), plan.amount);
            let bench =
                Bench { target: &server.target, protection, server: Some(server.pid), amount, calls: Calls::Compound };
            Ok(bench.run(Work::RandomRead)?.rate())
        }
    })?;
    Ok(tables(&seen))
}

/// The tables of the rounds by side: both echoes, then the directory and the volume.
fn tables(seen: &[Vec<f64>]) -> String {
    let line = |what: &str, rates: &[f64], echo: &str, ceiling: &[f64]| Line {
        what: format!("{what}, beside an echo {echo}"),
        ours: format!("{:.0}/s", median(rates)),
        beside: format!("{:.0}/s", median(ceiling)),
        ratio: median(rates) / median(ceiling),
        published: None,
        aim: AIM,
        why: "reads-beside-an-echo",
    };
    let mut lines = Vec::new();
    for (what, rates) in [("volume", &seen[3]), ("directory", &seen[2])] {
        lines.push(line(what, rates, "that sends each answer", &seen[0]));
        lines.push(line(what, rates, "that gathers its answers", &seen[1]));
    }
    table(["4 KiB random reads from memory, 32 in flight, signed with AES-GMAC", "Arden", "echo over loopback"], &lines)
}

#[cfg(test)]
mod tests {
    #[test]
    fn ratios_are_of_medians() {
        let echoes = [vec![100.0, 300.0, 200.0], vec![400.0]];
        let t = super::tables(&[&echoes[..], &[vec![150.0, 10.0, 900.0], vec![190.0, 181.0, 180.0]]].concat());
        assert!(
            t.contains("volume, beside an echo that sends each answer | 181/s | 200/s | 0.91 | ≥ 0.9 | yes |"),
            "{t}"
        );
        assert!(
            t.contains("volume, beside an echo that gathers its answers | 181/s | 400/s | 0.45 | ≥ 0.9 | [no]"),
            "{t}"
        );
        assert!(
            t.contains("directory, beside an echo that sends each answer | 150/s | 200/s | 0.75 | ≥ 0.9 | [no]"),
            "{t}"
        );
    }
}
