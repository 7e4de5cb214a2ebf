//! Volumes on the command line: the grammar, the requests to the daemon, and the form of its answers.

mod integrity;
mod offline;
mod quota;
mod snapshots;

use std::{io::IsTerminal, path::PathBuf};

use arden_admin::{
    AdminError,
    client::segment,
    error::Result,
    volume::{
        AccessPolicy, NewCheck, NewRepair, NewScrub, NewVolume, ScrubState, ShortNamePolicy, VolumeChange, VolumeCheck,
        VolumeDelete, VolumeInfo, VolumeRecord, VolumeRepair, VolumeScrub,
    },
};
use arden_store::name::gmt_token;
use arden_wire::FileTime;
use clap::Subcommand;

pub use quota::{QuotaVerb, run as run_quota};
pub use snapshots::{SnapshotVerb, run as run_snapshot};

use crate::{
    commands::{Out, absolute},
    storage::{bytes, size},
    table::Table,
};

#[derive(Debug, Subcommand)]
pub enum VolumeVerb {
    /// Format a space, a file or a block device
    #[command(
        after_help = "Example:\n  arden volume create docs --space vm\n  arden volume create docs --file /srv/docs.img --size 10g"
    )]
    Create {
        name: String,
        /// Space for the volume, which nothing else uses
        #[arg(long, required_unless_present = "file", conflicts_with = "file")]
        space: Option<String>,
        /// Pool of the space, needed when several pools have a space of that name
        #[arg(long, requires = "space")]
        pool: Option<String>,
        /// File or block device for the volume
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
        /// Make the file, with this size
        #[arg(long, value_parser = bytes, requires = "file")]
        size: Option<u64>,
        /// Overwrite existing content
        #[arg(long)]
        force: bool,
    },
    /// Open an existing volume
    #[command(after_help = "Example:\n  arden volume attach docs --file /srv/docs.img")]
    Attach {
        name: String,
        #[arg(long, required_unless_present = "file", conflicts_with = "file")]
        space: Option<String>,
        /// Pool of the space, needed when several pools have a space of that name
        #[arg(long, requires = "space")]
        pool: Option<String>,
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
    },
    /// Close a volume and remove it from the list; its content stays
    #[command(after_help = "Example:\n  arden volume close docs")]
    Close { name: String },
    /// List the volumes of this daemon
    #[command(after_help = "Example:\n  arden volume list --json")]
    List,
    /// Show the device, free space and shares of a volume
    #[command(after_help = "Example:\n  arden volume show docs")]
    Show { name: String },
    /// Check every structure, reference and count while the volume is in use
    #[command(after_help = "Example:\n  arden volume check docs --data")]
    Check {
        name: String,
        /// Also read all data and compare its checksums
        #[arg(long)]
        data: bool,
    },
    /// Grow a volume to the size of its space, file or device, while it is in use
    #[command(
        after_help = "Example:\n  arden space grow vm --size 2t\n  arden volume grow docs\n  arden volume grow docs --size 20g"
    )]
    Grow {
        name: String,
        /// Make the volume's file this large first
        #[arg(long, value_parser = bytes)]
        size: Option<u64>,
    },
    /// Change properties of the volume
    #[command(
        after_help = "Example:\n  arden volume set docs --last-access relative --short-names kept\n  arden volume set docs --scrub-days 14",
        group = clap::ArgGroup::new("property").required(true).multiple(true)
    )]
    Set {
        name: String,
        /// When reading a file moves its time of last access: relative, as new volumes have it, is where it is not behind
        /// the last change already, and once a day
        #[arg(long, group = "property", value_parser = ["never", "relative", "always"])]
        last_access: Option<String>,
        /// Where 8.3 names come from: a volume makes them of the long names until this is set; kept is in NTFS' form,
        /// beside the long names; with off no new names get one
        #[arg(long, group = "property", value_parser = ["kept", "off"])]
        short_names: Option<String>,
        /// Days from the end of one scrub to the next that the daemon makes by itself, 28 in new volumes; 0 for none
        #[arg(long, group = "property", value_name = "DAYS")]
        scrub_days: Option<u32>,
    },
    /// Show or set how reads of a file, of a directory's new files or of a tree check checksums
    #[command(
        after_help = "Example:\n  arden volume integrity docs Reports/May.txt\n  arden volume integrity docs vm --set on --recursive"
    )]
    Integrity {
        name: String,
        /// Path from the volume's root
        #[arg(default_value = "")]
        path: String,
        #[arg(long, value_enum)]
        set: Option<integrity::State>,
        /// Also change everything below a directory
        #[arg(long, requires = "set")]
        recursive: bool,
    },
    /// Repair what is safe to repair, while the volume is in use, and report other faults
    #[command(after_help = "Example:\n  arden volume repair docs --dry-run\n  arden volume repair docs")]
    Repair {
        name: String,
        /// Only report what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Read every copy of all data, repair damaged copies, and name the files that have lost data
    #[command(after_help = "Example:\n  arden volume scrub docs --rate 200m\n  arden volume scrub docs --show")]
    Scrub {
        name: String,
        /// Limit in bytes a second; 0 for none
        #[arg(long, value_parser = bytes, default_value = "64m")]
        rate: u64,
        /// Return at once; `--show` shows the progress
        #[arg(long)]
        no_wait: bool,
        /// Show the progress, or the result of the last scrub
        #[arg(long, conflicts_with = "stop")]
        show: bool,
        /// Stop the scrub
        #[arg(long)]
        stop: bool,
    },
    /// Delete a volume: the structures that lead to its content are overwritten
    #[command(after_help = "Example:\n  arden volume delete docs --force")]
    Delete {
        name: String,
        /// Also remove its shares, which disconnects their clients
        #[arg(long)]
        force: bool,
    },
    /// List a directory of a volume, with no daemon running
    #[command(after_help = "Example:\n  arden volume ls docs 'Reports/2026'\n  arden volume ls /srv/docs.img")]
    Ls {
        /// Name of the volume, or the path of its file or block device
        volume: PathBuf,
        #[arg(default_value = "")]
        path: String,
    },
    /// Copy a file out of a volume, with no daemon running
    #[command(after_help = "Example:\n  arden volume get docs Reports/May.txt May.txt")]
    Get {
        /// Name of the volume, or the path of its file or block device
        volume: PathBuf,
        path: String,
        to: PathBuf,
    },
    /// Copy a file into a volume, with no daemon running
    #[command(after_help = "Example:\n  arden volume put docs May.txt Reports/May.txt")]
    Put {
        /// Name of the volume, or the path of its file or block device
        volume: PathBuf,
        from: PathBuf,
        path: String,
    },
}

fn volume_text(v: &VolumeInfo) -> String {
    let mut out = format!("volume {} on {}\n", v.name, v.device);
    if v.closed_because.is_empty() {
        out += &format!("  {} of {} free, id {}\n", size(v.free_bytes), size(v.total_bytes), v.id);
        if v.last_access != AccessPolicy::Never {
            out += &format!("  reading moves the last access: {:?}\n", v.last_access).to_lowercase();
        }
        out += &format!("  8.3 names: {:?}\n", v.short_names).to_lowercase();
    } else {
        out += &format!("  closed: {}\n", v.closed_because);
    }
    out += &scrubs_text(v);
    if !v.shares.is_empty() {
        out += &format!("  shares: {}\n", v.shares.join(", "));
    }
    out
}

fn scrubs_text(v: &VolumeInfo) -> String {
    let last = match v.last_scrub {
        None => "not scrubbed yet".into(),
        Some(s) => {
            let (at, healed) = (gmt_token(FileTime::from_unix(s.ended, 0)), s.healed_blocks);
            format!("scrubbed {at}: {healed} blocks healed, {} lost", s.damaged_blocks)
        }
    };
    match v.scrub_days {
        0 => format!("  {last}; never by itself\n"),
        days => format!("  {last}; every {days} days\n"),
    }
}

fn check_text(c: &VolumeCheck) -> String {
    let mut out = format!(
        "{} files, {} directories, {} streams, {} extents; data {}, of it shared {}, metadata {}\n",
        c.files,
        c.directories,
        c.streams,
        c.extents,
        size(c.data_bytes),
        size(c.shared_bytes),
        size(c.tree_bytes)
    );
    for e in &c.errors {
        out += &format!("  {e}\n");
    }
    if c.errors.is_empty() {
        out += "everything is as it should be\n";
    }
    out
}

fn repair_text(r: &VolumeRepair, dry_run: bool) -> String {
    let mut out = String::new();
    if !r.done.is_empty() {
        out += if dry_run { "would be mended:\n" } else { "mended:\n" };
        r.done.iter().for_each(|what| out += &format!("  {what}\n"));
    }
    if !r.left.is_empty() {
        out += "left as it is:\n";
        r.left.iter().for_each(|what| out += &format!("  {what}\n"));
    }
    if out.is_empty() { "nothing to mend\n".into() } else { out }
}

/// Interval at which the progress of a scrub is shown.
const SCRUB_SHOWN_EVERY: std::time::Duration = std::time::Duration::from_millis(300);

fn follow_scrub(out: &Out, name: &str, at: &str, wait: bool) -> Result<()> {
    let shows = std::io::stderr().is_terminal();
    let scrub = loop {
        let s: VolumeScrub = out.client.get(at)?;
        if s.state != ScrubState::Running || !wait {
            break s;
        }
        if shows {
            eprint!("\r{} of {} ", size(s.done_bytes), size(s.total_bytes));
        }
        std::thread::sleep(SCRUB_SHOWN_EVERY);
    };
    if shows && wait {
        eprintln!();
    }
    out.show(&scrub, scrub_text);
    match scrub.state {
        ScrubState::Failed => {
            Err(AdminError::failed(format!("scrub of {name}: {}", scrub.error), "see the daemon's log"))
        }
        _ if scrub.damaged_blocks > 0 => Err(AdminError::failed(
            format!("volume {name} has lost data"),
            "restore what is named from elsewhere; writing it anew mends it",
        )),
        _ => Ok(()),
    }
}

fn scrub_text(s: &VolumeScrub) -> String {
    let read = format!("{} of {} read", size(s.done_bytes), size(s.total_bytes));
    let mut out = match s.state {
        ScrubState::Never => return "not scrubbed since the daemon started\n".into(),
        ScrubState::Running => format!("running: {read}\n"),
        ScrubState::Stopped => format!("stopped: {read}\n"),
        ScrubState::Failed => format!("failed: {read}\n"),
        ScrubState::Done => format!("done: {read}\n"),
    };
    if s.state != ScrubState::Running {
        out += &format!("  {} blocks healed, {} lost\n", s.healed_blocks, s.damaged_blocks);
    }
    for d in &s.damage {
        let what = if d.path.is_empty() { "(metadata)" } else { d.path.as_str() };
        out += &format!("  {what}: {} bytes from {} on\n", d.len, d.offset);
    }
    out
}

/// Runs a command on volumes.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens. The errors of `arden_host::Offline` for commands
/// without a daemon.
pub fn run(out: &Out, verb: VolumeVerb) -> Result<()> {
    let path = |name: &str| format!("/v1/volumes/{}", segment(name));
    match verb {
        VolumeVerb::Create { name, space, pool, file, size, force } => {
            let file = file.as_deref().map(absolute).transpose()?;
            let new = NewVolume { name, space, pool, file, size_bytes: size, force };
            let v: VolumeInfo = out.client.post("/v1/volumes", &new)?;
            out.show(&v, volume_text);
        }
        VolumeVerb::Attach { name, space, pool, file } => {
            let file = file.as_deref().map(absolute).transpose()?;
            let record = VolumeRecord { name, space, file, pool, ..VolumeRecord::default() };
            let v: VolumeInfo = out.client.put_body("/v1/volumes", &record)?;
            out.show(&v, volume_text);
        }
        VolumeVerb::Close { name } => {
            out.client.delete(&path(&name))?;
            out.done(format!("volume {name} closed; what is on it stays"));
        }
        VolumeVerb::List => {
            let all: Vec<VolumeInfo> = out.client.get("/v1/volumes")?;
            out.show(&all, |all| {
                let mut t = Table::new(&["NAME", "DEVICE", "SIZE", "FREE", "SHARES", "STATE"]);
                for v in all {
                    let state = if v.closed_because.is_empty() { "open" } else { v.closed_because.as_str() };
                    t.row([
                        v.name.clone(),
                        v.device.clone(),
                        size(v.total_bytes),
                        size(v.free_bytes),
                        v.shares.join(","),
                        state.to_string(),
                    ]);
                }
                t.text("no volumes; `arden volume create NAME --space SPACE` makes one")
            });
        }
        VolumeVerb::Show { name } => {
            let v: VolumeInfo = out.client.get(&path(&name))?;
            out.show(&v, volume_text);
        }
        VolumeVerb::Check { name, data } => {
            let c: VolumeCheck = out.client.put_body(&format!("{}/check", path(&name)), &NewCheck { data })?;
            out.show(&c, check_text);
            if !c.errors.is_empty() {
                return Err(AdminError::failed(
                    format!("volume {name} is damaged"),
                    "restore what is named from elsewhere",
                ));
            }
        }
        VolumeVerb::Grow { name, size } => {
            let v: VolumeInfo = out
                .client
                .patch(&path(&name), &VolumeChange { grow: true, size_bytes: size, ..VolumeChange::default() })?;
            out.show(&v, volume_text);
        }
        VolumeVerb::Set { name, last_access, short_names, scrub_days } => {
            let last_access = last_access.map(|policy| match policy.as_str() {
                "always" => AccessPolicy::Always,
                "relative" => AccessPolicy::Relative,
                _ => AccessPolicy::Never,
            });
            let short_names = short_names.map(|policy| match policy.as_str() {
                "kept" => ShortNamePolicy::Kept,
                _ => ShortNamePolicy::Off,
            });
            let change = VolumeChange { last_access, short_names, scrub_days, ..VolumeChange::default() };
            let v: VolumeInfo = out.client.patch(&path(&name), &change)?;
            out.show(&v, volume_text);
        }
        VolumeVerb::Integrity { name, path: of, set, recursive } => {
            integrity::run(out, &path(&name), of, set, recursive)?;
        }
        VolumeVerb::Repair { name, dry_run } => {
            let r: VolumeRepair = out.client.put_body(&format!("{}/repair", path(&name)), &NewRepair { dry_run })?;
            out.show(&r, |r| repair_text(r, dry_run));
            if !r.left.is_empty() {
                return Err(AdminError::failed(
                    format!("volume {name} stays damaged where repair is not safe"),
                    "restore what is named from elsewhere",
                ));
            }
        }
        VolumeVerb::Scrub { name, rate, no_wait, show, stop } => {
            let at = format!("{}/scrub", path(&name));
            if stop {
                out.client.delete(&at)?;
            } else if !show {
                let _: VolumeScrub = out.client.put_body(&at, &NewScrub { bytes_per_second: rate })?;
            }
            follow_scrub(out, &name, &at, !no_wait && !show)?;
        }
        VolumeVerb::Delete { name, force } => {
            out.client.send_only("POST", &format!("{}/delete", path(&name)), &VolumeDelete { force })?;
            out.done(format!("volume {name} deleted"));
        }
        VolumeVerb::Ls { volume, path } => offline::list(out, &volume, &path)?,
        VolumeVerb::Get { volume, path, to } => offline::get(out, &volume, &path, &to)?,
        VolumeVerb::Put { volume, from, path } => offline::put(out, &volume, &from, &path)?,
    }
    Ok(())
}
