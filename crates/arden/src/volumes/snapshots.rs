//! Snapshots on the command line: the grammar, the requests to the daemon, and the form of its answers.

use arden_admin::{
    AdminError,
    client::segment,
    error::Result,
    snapshot::{NewSnapshot, SnapshotInfo, SnapshotSchedule, StreamSnapshotInfo, StreamSnapshotQuery},
};
use clap::Subcommand;

use crate::{commands::Out, storage::size, table::Table};

#[derive(Debug, Subcommand)]
pub enum SnapshotVerb {
    /// Take a snapshot of a volume; clients see it as a previous version
    #[command(after_help = "Example:\n  arden snapshot create docs --label 'before the move'")]
    Create {
        volume: String,
        #[arg(long, default_value = "")]
        label: String,
    },
    /// List the snapshots of a volume, or those that clients made of a file's streams, oldest first
    #[command(
        after_help = "Example:\n  arden snapshot list docs --json\n  arden snapshot list docs --file Machines/web.vhdx"
    )]
    List {
        volume: String,
        /// A file, from the volume's root, whose streams' snapshots are listed
        #[arg(long, value_name = "PATH")]
        file: Option<String>,
    },
    /// Delete a snapshot; blocks that only it used become free
    #[command(after_help = "Example:\n  arden snapshot delete docs @GMT-2026.05.31-12.00.00")]
    Delete {
        volume: String,
        /// Time of the snapshot as `arden snapshot list` shows it
        time: String,
    },
    /// Show the schedules of a volume, or set or remove one
    #[command(
        after_help = "Example:\n  arden snapshot schedule docs hourly --every 1h --keep 24\n  arden snapshot schedule docs daily --every 1d --keep 7\n  arden snapshot schedule docs\n  arden snapshot schedule docs hourly --remove"
    )]
    Schedule {
        volume: String,
        /// Name of the schedule
        #[arg(requires = "change")]
        name: Option<String>,
        /// Interval of the snapshots: 30m, 1h, 1d, 1w
        #[arg(long, value_parser = interval, requires_all = ["name", "keep"], group = "change")]
        every: Option<u64>,
        /// Number of its snapshots to keep
        #[arg(long, requires = "every")]
        keep: Option<u32>,
        /// Remove the schedule; its snapshots stay
        #[arg(long, conflicts_with = "every", requires = "name", group = "change")]
        remove: bool,
    },
}

/// Parses an interval to seconds.
fn interval(s: &str) -> std::result::Result<u64, String> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400), ('w', 7 * 86_400)];
    let found = units.iter().find_map(|(unit, seconds)| Some((s.strip_suffix(*unit)?, *seconds)));
    found
        .and_then(|(n, seconds)| n.parse::<u64>().ok()?.checked_mul(seconds))
        .filter(|seconds| *seconds > 0)
        .ok_or_else(|| "a number with s, m, h, d or w, like 30m or 1d".into())
}

fn every(seconds: u64) -> String {
    let units = [(7 * 86_400, 'w'), (86_400, 'd'), (3600, 'h'), (60, 'm')];
    match units.iter().find(|(n, _)| seconds % n == 0) {
        Some((n, unit)) => format!("{}{unit}", seconds / n),
        None => format!("{seconds}s"),
    }
}

fn table(all: &Vec<SnapshotInfo>) -> String {
    let mut t = Table::new(&["TIME", "LABEL", "HOLDS ALONE"]);
    for s in all {
        t.row([s.time.clone(), s.label.clone(), size(s.only_bytes)]);
    }
    t.text("no snapshots; `arden snapshot create VOLUME` makes one")
}

fn stream_table(all: &Vec<StreamSnapshotInfo>) -> String {
    let mut t = Table::new(&["PATH", "NAME", "CREATED", "SIZE", "HOLDS"]);
    for s in all {
        t.row([
            format!("/{}", s.path),
            s.name.clone(),
            s.created.clone(),
            size(s.size_bytes),
            size(s.allocation_bytes),
        ]);
    }
    t.text("no snapshots of this file's streams")
}

/// Runs a command on snapshots.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn run(out: &Out, verb: SnapshotVerb) -> Result<()> {
    let path = |volume: &str, what: &str| format!("/v1/volumes/{}/{what}", segment(volume));
    match verb {
        SnapshotVerb::Create { volume, label } => {
            let s: SnapshotInfo = out.client.post(&path(&volume, "snapshots"), &NewSnapshot { label })?;
            out.show(&s, |s| format!("snapshot {} of volume {volume}\n", s.time));
        }
        SnapshotVerb::List { volume, file: Some(path_of_file) } => {
            let of = StreamSnapshotQuery { path: path_of_file };
            let all: Vec<StreamSnapshotInfo> = out.client.post(&path(&volume, "stream-snapshots/look"), &of)?;
            out.show(&all, stream_table);
        }
        SnapshotVerb::List { volume, file: None } => {
            let all: Vec<SnapshotInfo> = out.client.get(&path(&volume, "snapshots"))?;
            out.show(&all, table);
        }
        SnapshotVerb::Delete { volume, time } => {
            out.client.delete(&format!("{}/{}", path(&volume, "snapshots"), segment(&time)))?;
            out.done(format!("snapshot {time} of volume {volume} deleted"));
        }
        SnapshotVerb::Schedule { volume, name: Some(name), remove: true, .. } => {
            out.client.delete(&format!("{}/{}", path(&volume, "snapshot-schedules"), segment(&name)))?;
            out.done(format!("schedule {name} of volume {volume} removed; its snapshots stay"));
        }
        SnapshotVerb::Schedule { volume, name: Some(name), every: Some(every_seconds), keep: Some(keep), .. } => {
            let schedule = SnapshotSchedule { name, every_seconds, keep };
            let s: SnapshotSchedule = out.client.put_body(&path(&volume, "snapshot-schedules"), &schedule)?;
            out.show(&s, |s| format!("schedule {}: every {}, {} kept\n", s.name, every(s.every_seconds), s.keep));
        }
        SnapshotVerb::Schedule { volume, name: None, .. } => {
            let all: Vec<SnapshotSchedule> = out.client.get(&path(&volume, "snapshot-schedules"))?;
            out.show(&all, |all| {
                let mut t = Table::new(&["NAME", "EVERY", "KEEP"]);
                for s in all {
                    t.row([s.name.clone(), every(s.every_seconds), s.keep.to_string()]);
                }
                t.text("no schedules; `arden snapshot schedule VOLUME hourly --every 1h --keep 24` sets one")
            });
        }
        SnapshotVerb::Schedule { .. } => {
            return Err(AdminError::invalid("a schedule needs an interval and a number", "give --every and --keep"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_and_shown() {
        for text in ["5s", "30m", "1h", "36h", "1d", "2w"] {
            assert_eq!(every(interval(text).unwrap()), text);
        }
        for bad in ["", "h", "0h", "-1h", "1y", "1.5h", "99999999999999999999w"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
