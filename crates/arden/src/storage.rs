//! Disks, pools, spaces and jobs on the command line: the grammar, the requests to the daemon, and the form of its
//! answers. Disks are opened by the daemon only.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use arden_admin::{
    AdminError,
    client::segment,
    cluster::PoolFence,
    error::Result,
    storage::{
        AddDisk, DiskInfo, DiskLabel, DiskQuery, DiskWipe, GroupMap, JobChange, JobInfo, JobKind, JobState, NewExport,
        NewJob, NewPool, NewSpace, PoolChange, PoolDiskChange, PoolImport, PoolInfo, SpaceChange, SpaceDelete,
        SpaceInfo,
    },
};
use clap::{Args, Subcommand};

use crate::cluster;
use crate::commands::{Out, absolute};
use crate::table::{Table, yes};

#[derive(Debug, Subcommand)]
pub enum Disk {
    /// Show files or block devices; without any, those of this machine and of known pools
    #[command(after_help = "Example:\n  arden disk list\n  arden disk list /dev/sdb /srv/disk1.img")]
    List { disks: Vec<PathBuf> },
    /// Set facts that the system does not report of a disk; an empty text removes one
    #[command(after_help = "Example:\n  arden disk label /srv/disk1.img --media ssd --model 'Shelf 2' --serial B7")]
    Label {
        disk: PathBuf,
        #[arg(long)]
        model: Option<String>,
        #[arg(long)]
        serial: Option<String>,
        /// Kind of the disk, used when it joins a pool: the pool's log is put on the fastest disks
        #[arg(long, value_parser = ["unknown", "rotating", "ssd", "nvme", ""])]
        media: Option<String>,
    },
    /// Overwrite a disk's label, so that it belongs to no pool
    #[command(after_help = "Example:\n  arden disk wipe /dev/sdb --force")]
    Wipe {
        disk: PathBuf,
        /// Also when the disk has recognisable content
        #[arg(long)]
        force: bool,
    },
}

/// Option of work that takes long.
#[derive(Debug, Args)]
pub struct Wait {
    /// Return at once; `arden job list` shows the progress
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Debug, Subcommand)]
pub enum PoolVerb {
    /// Make a pool of disks
    #[command(after_help = "Example:\n  arden pool create tank /dev/sdb /dev/sdc /dev/sdd --hot-spare /dev/sde")]
    Create {
        name: String,
        #[arg(required = true)]
        disks: Vec<PathBuf>,
        /// Disk that stands by until another disk fails; may be given several times
        #[arg(long)]
        hot_spare: Vec<PathBuf>,
        /// Also use disks with recognisable content
        #[arg(long)]
        force: bool,
    },
    /// Find a pool by the labels of its disks, and open it
    #[command(
        after_help = "Example:\n  arden pool import\n  arden pool import /srv/disks\n  arden pool import --name tank --discard /dev/sdc /dev/sdb /dev/sdc"
    )]
    Import {
        /// Disks, or directories of disk files; without any: every block device
        disks: Vec<PathBuf>,
        /// Name of the pool, when disks of several pools are found
        #[arg(long)]
        name: Option<String>,
        /// Take the pool from its cluster, which is gone for good. A node of it that runs yet would write beside this daemon, and
        /// destroy the pool
        #[arg(long)]
        take_from_cluster: bool,
        /// Of disks that were used apart, the disk whose own data is discarded
        #[arg(long, value_name = "DISK")]
        discard: Vec<PathBuf>,
    },
    /// Close a pool and remove it from the list; its disks stay as they are, and `pool import` finds it again
    #[command(after_help = "Example:\n  arden pool close tank")]
    Close { name: String },
    /// List the pools of this daemon
    #[command(after_help = "Example:\n  arden pool list --json")]
    List,
    /// Show the disks, spaces, health and background work of a pool
    #[command(after_help = "Example:\n  arden pool show tank")]
    Show { name: String },
    /// Give a pool another name
    #[command(after_help = "Example:\n  arden pool rename tank lake")]
    Rename { name: String, to: String },
    /// Change the warning levels of a pool, and the time that it waits for a missing disk
    #[command(
        after_help = "Example:\n  arden pool set tank --grace 60 --warn 70,80,90\n  arden pool set tank --fence agent:/usr/sbin/fence_ipmilan --fence-option username=arden"
    )]
    Set {
        name: String,
        /// Seconds to wait for a missing disk before spares and free slabs replace it
        #[arg(long, value_name = "SECONDS")]
        grace: Option<u64>,
        /// Three fill levels in percent
        #[arg(long, value_name = "A,B,C", value_delimiter = ',', num_args = 1)]
        warn: Option<Vec<u8>>,
        /// In a cluster, how a node is cut off before another takes the pool over: scsi or nvme, reservations of the pool's SCSI
        /// disks or NVMe namespaces; agent:PATH, a program with the calling convention of fence-agents; or none
        #[arg(long, value_name = "FENCE", conflicts_with_all = ["grace", "warn"])]
        fence: Option<String>,
        /// Option of the agent, or volatile=yes for nvme: take namespaces that forget reservations when their power fails. May be
        /// given several times. Other users of this machine may see it while the command runs
        #[arg(long, value_name = "NAME=VALUE", requires = "fence")]
        fence_option: Vec<String>,
    },
    /// Hand a pool over to another node of the cluster; clients connect again there
    #[command(after_help = "Example:\n  arden pool move tank --to node2")]
    Move {
        name: String,
        /// Name of the node
        #[arg(long, value_name = "NODE")]
        to: String,
    },
    /// Take a pool over at this node without a fence
    #[command(after_help = "Example:\n  arden pool take tank --i-am-sure")]
    Take {
        name: String,
        /// Every node that may still write to the pool's disks is off
        #[arg(long)]
        i_am_sure: bool,
    },
    /// Add a disk
    #[command(after_help = "Example:\n  arden pool add-disk tank /dev/sdf --hot-spare")]
    AddDisk {
        name: String,
        disk: PathBuf,
        /// The disk stands by until another disk fails
        #[arg(long)]
        hot_spare: bool,
        /// Also when the disk has recognisable content
        #[arg(long)]
        force: bool,
    },
    /// Empty a disk and remove it from its pool
    #[command(after_help = "Example:\n  arden pool remove-disk tank 2")]
    RemoveDisk {
        name: String,
        /// Index of the disk as `arden pool show` lists it
        disk: u16,
        #[command(flatten)]
        wait: Wait,
    },
    /// Add a disk, then empty another one and remove it
    #[command(after_help = "Example:\n  arden pool replace tank 2 /dev/sdg")]
    Replace {
        name: String,
        /// Index of the old disk
        disk: u16,
        new: PathBuf,
        /// Also when the new disk has recognisable content
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Empty a disk in the background; it gets no new slabs
    #[command(after_help = "Example:\n  arden pool retire tank 2\n  arden pool retire tank 2 --undo")]
    Retire {
        name: String,
        disk: u16,
        /// Keep the disk
        #[arg(long)]
        undo: bool,
    },
    /// Read and compare all data, and repair what can be repaired
    #[command(after_help = "Example:\n  arden pool scrub tank --no-wait")]
    Scrub {
        name: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Rebuild the data of missing disks now
    #[command(after_help = "Example:\n  arden pool repair tank")]
    Repair {
        name: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Move slabs until all disks are about equally full
    #[command(after_help = "Example:\n  arden pool rebalance tank")]
    Rebalance {
        name: String,
        #[command(flatten)]
        wait: Wait,
    },
}

#[derive(Debug, Args)]
pub struct CreateSpace {
    pub name: String,
    #[arg(long)]
    pub pool: String,
    /// Redundancy
    #[arg(long, value_parser = ["simple", "mirror2", "mirror3", "parity", "dual-parity"])]
    pub layout: String,
    /// Columns of a stripe, parity included [default: by the number of disks]
    #[arg(long)]
    pub columns: Option<u16>,
    /// Bytes of one column in a stripe, 64k to 1m [default: 256k]
    #[arg(long, value_parser = bytes)]
    pub interleave: Option<u64>,
    /// Size as a disk, for example 100g [default: all free room]
    #[arg(long, value_parser = bytes)]
    pub size: Option<u64>,
    /// When slabs are allocated: as they are written, or all at once
    #[arg(long, value_parser = ["thin", "fixed"], default_value = "thin")]
    pub provision: String,
}

/// The name of a space, which is unique unless pools were imported.
#[derive(Debug, Args)]
pub struct Which {
    pub name: String,
    /// Pool of the space, needed when several pools have a space of that name
    #[arg(long)]
    pub pool: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum SpaceVerb {
    /// Make a space in a pool
    #[command(after_help = "Example:\n  arden space create vm --pool tank --layout mirror2 --size 100g")]
    Create(CreateSpace),
    /// List the spaces of all pools, or of one
    #[command(after_help = "Example:\n  arden space list\n  arden space list --pool tank --json")]
    List {
        #[arg(long)]
        pool: Option<String>,
    },
    /// Show the health of a space, its missing parts and its location
    #[command(after_help = "Example:\n  arden space show vm --map")]
    Show {
        #[command(flatten)]
        which: Which,
        /// Show the disks and slabs of each group
        #[arg(long)]
        map: bool,
    },
    /// Make a space larger while it is in use
    #[command(after_help = "Example:\n  arden space grow vm --size 200g")]
    Grow {
        #[command(flatten)]
        which: Which,
        #[arg(long, value_parser = bytes)]
        size: u64,
    },
    /// Delete a space and its content
    #[command(after_help = "Example:\n  arden space delete vm\n  arden space delete docs --force")]
    Delete {
        #[command(flatten)]
        which: Which,
        /// Also when a volume is on it, with all of its files
        #[arg(long)]
        force: bool,
    },
    /// Serve a space as an NBD disk, also after restarts of the daemon. NBD has no authentication: every client reads
    /// and writes all of it. A Unix socket is for the daemon's user alone; a TCP port, which has to be of a loopback
    /// address, is open to every user of this machine
    #[command(
        after_help = "Example:\n  arden space export vm --nbd unix:/run/vm.sock\n  arden space export vm --nbd 127.0.0.1:10809"
    )]
    Export {
        #[command(flatten)]
        which: Which,
        /// unix:PATH, or ADDR:PORT of a loopback address
        #[arg(long)]
        nbd: String,
    },
    /// End an export and disconnect its clients
    #[command(after_help = "Example:\n  arden space unexport vm")]
    Unexport {
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Debug, Subcommand)]
pub enum JobVerb {
    /// List jobs with their progress and results
    #[command(after_help = "Example:\n  arden job list")]
    List,
    /// Show one job
    #[command(after_help = "Example:\n  arden job show 3 --json")]
    Show { id: u64 },
    /// Wait for the end of a job and show its progress
    #[command(after_help = "Example:\n  arden job wait 3")]
    Wait { id: u64 },
    /// Pause a job, and with it all background work of its pool
    #[command(after_help = "Example:\n  arden job pause 3")]
    Pause { id: u64 },
    /// Continue a job
    #[command(after_help = "Example:\n  arden job resume 3")]
    Resume { id: u64 },
    /// Cancel a job
    #[command(after_help = "Example:\n  arden job cancel 3")]
    Cancel { id: u64 },
}

/// Parses a size in bytes: `64k`, `1m`, `20g`, `2t` (powers of 1024) or a number.
///
/// # Errors
/// Invalid, when the text is not a size.
pub fn bytes(s: &str) -> std::result::Result<u64, String> {
    let lower = s.to_lowercase();
    let (digits, shift) = match lower.chars().last() {
        Some('k') => (&lower[..lower.len() - 1], 10),
        Some('m') => (&lower[..lower.len() - 1], 20),
        Some('g') => (&lower[..lower.len() - 1], 30),
        Some('t') => (&lower[..lower.len() - 1], 40),
        _ => (lower.as_str(), 0),
    };
    let n: u64 = digits.parse().map_err(|_| format!("{s} is not a size: write 4096, 64k, 20g"))?;
    n.checked_mul(1 << shift).ok_or_else(|| format!("{s} is too large"))
}

/// A size for display: `1.5 GiB`.
pub fn size(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

fn all_absolute(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    paths.iter().map(|p| absolute(p)).collect()
}

/// Runs a command on disks.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn disk(out: &Out, verb: Disk) -> Result<()> {
    match verb {
        Disk::List { disks } => {
            let disks: Vec<DiskInfo> = if disks.is_empty() {
                out.client.get("/v1/disks")?
            } else {
                out.client.post("/v1/disks/look", &DiskQuery { disks: all_absolute(&disks)? })?
            };
            out.show(&disks, |disks| disk_table(disks));
        }
        Disk::Label { disk, model, serial, media } => {
            let label = DiskLabel { disk: absolute(&disk)?, model, serial, media };
            let disk: DiskInfo = out.client.patch("/v1/disks", &label)?;
            out.show(&disk, |d| disk_table(std::slice::from_ref(d)));
        }
        Disk::Wipe { disk, force } => {
            let wipe = DiskWipe { disk: absolute(&disk)?, force };
            out.client.send_only("POST", "/v1/disks/wipe", &wipe)?;
            out.done(format!("{} carries no label any more", disk.display()));
        }
    }
    Ok(())
}

fn disk_table(disks: &[DiskInfo]) -> String {
    let mut t = Table::new(&["DISK", "SIZE", "MEDIA", "MODEL", "SERIAL", "POOL", "CONTENT", "IN USE"]);
    for d in disks {
        t.row([
            d.path.display().to_string(),
            size(d.size_bytes),
            d.media.clone(),
            d.model.clone(),
            d.serial.clone(),
            d.pool.clone(),
            d.content.clone(),
            d.in_use.clone(),
        ]);
    }
    t.text("no disks")
}

/// Runs a command on pools.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn pool(out: &Out, verb: PoolVerb) -> Result<()> {
    let path = |name: &str| format!("/v1/pools/{}", segment(name));
    let shown = |pool: PoolInfo| out.show(&pool, pool_text);
    match verb {
        PoolVerb::Create { name, disks, hot_spare, force } => {
            let (disks, hot_spares) = (all_absolute(&disks)?, all_absolute(&hot_spare)?);
            shown(out.client.post("/v1/pools", &NewPool { name, disks, hot_spares, force })?);
        }
        PoolVerb::Import { disks, name, discard, take_from_cluster } => {
            let (disks, discard) = (all_absolute(&disks)?, all_absolute(&discard)?);
            let import = PoolImport { disks, name, discard, take_from_cluster };
            shown(out.client.put_body("/v1/pools", &import)?);
        }
        PoolVerb::Close { name } => {
            out.client.delete(&path(&name))?;
            out.done(format!("pool {name} closed; `arden pool import` opens it again"));
        }
        PoolVerb::List => {
            let pools: Vec<PoolInfo> = out.client.get("/v1/pools")?;
            out.show(&pools, |pools| pool_table(pools));
        }
        PoolVerb::Show { name } => shown(out.client.get(&path(&name))?),
        PoolVerb::Rename { name, to } => {
            shown(out.client.patch(&path(&name), &PoolChange { name: Some(to), ..PoolChange::default() })?);
        }
        PoolVerb::Move { name, to } => cluster::move_pool(out, &name, to)?,
        PoolVerb::Take { name, i_am_sure } => cluster::take_pool(out, &name, i_am_sure)?,
        PoolVerb::Set { name, fence: Some(fence), fence_option: options, .. } => {
            cluster::set_fence(out, &name, PoolFence { fence, options })?;
        }
        PoolVerb::Set { name, grace, warn, .. } => {
            let levels = |w: Vec<u8>| {
                let rises = w.is_sorted_by(|a, b| a < b) && w.iter().all(|level| (1..=100).contains(level));
                let three = <[u8; 3]>::try_from(w).ok().filter(|_| rises);
                let hint = "for example --warn 70,80,90";
                three.ok_or_else(|| AdminError::invalid("--warn takes three ascending levels from 1 to 100", hint))
            };
            let change = PoolChange { name: None, grace_seconds: grace, warn_percent: warn.map(levels).transpose()? };
            if change == PoolChange::default() {
                return Err(AdminError::invalid("nothing to change", "see `arden pool set --help`"));
            }
            shown(out.client.patch(&path(&name), &change)?);
        }
        PoolVerb::AddDisk { name, disk, hot_spare, force } => {
            let add = AddDisk { disk: absolute(&disk)?, hot_spare, force };
            shown(out.client.post(&format!("{}/disks", path(&name)), &add)?);
        }
        PoolVerb::RemoveDisk { name, disk, wait } => {
            start(out, &name, NewJob { kind: JobKind::RemoveDisk, disk: Some(disk), add: None }, &wait)?;
        }
        PoolVerb::Replace { name, disk, new, force, wait } => {
            let add = Some(AddDisk { disk: absolute(&new)?, hot_spare: false, force });
            start(out, &name, NewJob { kind: JobKind::RemoveDisk, disk: Some(disk), add }, &wait)?;
        }
        PoolVerb::Retire { name, disk, undo } => {
            let change = PoolDiskChange { retire: !undo };
            shown(out.client.patch(&format!("{}/disks/{disk}", path(&name)), &change)?);
        }
        PoolVerb::Scrub { name, wait } => start(out, &name, of_all(JobKind::Scrub), &wait)?,
        PoolVerb::Repair { name, wait } => start(out, &name, of_all(JobKind::Repair), &wait)?,
        PoolVerb::Rebalance { name, wait } => start(out, &name, of_all(JobKind::Rebalance), &wait)?,
    }
    Ok(())
}

/// With the owners, in a cluster.
fn owned_pool_table(pools: &[PoolInfo]) -> String {
    let mut t = Table::new(&["POOL", "STATE", "OWNER", "EPOCH", "OWNERSHIP", "HEALTH", "FREE", "NOTE"]);
    for p in pools {
        let Some(o) = &p.ownership else { continue };
        let here = p.state == "open";
        t.row([
            p.name.clone(),
            p.state.clone(),
            o.owner.clone(),
            o.epoch.to_string(),
            o.state.clone(),
            if here { p.health.clone() } else { String::new() },
            if here { size(p.free_bytes) } else { String::new() },
            o.reason.clone(),
        ]);
    }
    t.text("no pools")
}

fn pool_table(pools: &[PoolInfo]) -> String {
    if pools.iter().any(|p| p.ownership.is_some()) {
        return owned_pool_table(pools);
    }
    let mut t = Table::new(&["POOL", "STATE", "HEALTH", "DISKS", "SPACES", "SIZE", "FREE", "WARNING"]);
    for p in pools {
        let warning =
            if p.warning_percent > 0 { format!("over {} % used", p.warning_percent) } else { p.reason.clone() };
        t.row([
            p.name.clone(),
            p.state.clone(),
            p.health.clone(),
            p.disks.len().to_string(),
            p.spaces.len().to_string(),
            size(p.total_bytes),
            size(p.free_bytes),
            warning,
        ]);
    }
    t.text("no pools; `arden pool create NAME DISK...` makes one")
}

fn pool_text(p: &PoolInfo) -> String {
    if p.state == "closed" {
        return format!("{}: closed: {}\n", p.name, p.reason);
    }
    let mut out = format!("{}: {}, {} of {} free\n", p.name, p.health, size(p.free_bytes), size(p.total_bytes));
    if p.warning_percent > 0 {
        out += &format!("more than {} % is used\n", p.warning_percent);
    }
    let mut disks = Table::new(&["DISK", "STATE", "SIZE", "SLABS", "FREE", "ERRORS", "NOTE", "PATH"]);
    for d in &p.disks {
        let errors = d.read_errors + d.write_errors;
        let notes = [(d.slow, "slow".to_owned()), (d.wrong_blocks > 0, format!("{} wrong blocks", d.wrong_blocks))];
        let notes: Vec<String> = notes.into_iter().filter_map(|(holds, note)| holds.then_some(note)).collect();
        disks.row([
            d.index.to_string(),
            d.state.clone(),
            size(d.size_bytes),
            d.slabs.to_string(),
            d.slabs_free.to_string(),
            errors.to_string(),
            notes.join(", "),
            d.path.clone(),
        ]);
    }
    out += &disks.text("no disks");
    out += &space_table(&p.spaces);
    for w in &p.work {
        out += &format!("{}: {}\n", w.what, progress(w.done, w.total));
    }
    let newest = p.events.len().saturating_sub(5);
    p.events[newest..].iter().for_each(|e| out += &format!("event: {e}\n"));
    out
}

fn space_table(spaces: &[SpaceInfo]) -> String {
    let mut t = Table::new(&["SPACE", "POOL", "LAYOUT", "COLUMNS", "SIZE", "HELD", "HEALTH", "USE"]);
    for s in spaces {
        let health =
            if s.health == "whole" { s.health.clone() } else { format!("{} ({} %)", s.health, s.up_to_date_percent) };
        t.row([
            s.name.clone(),
            s.pool.clone(),
            s.layout.clone(),
            s.columns.to_string(),
            size(s.size_bytes),
            size(s.allocated_bytes),
            health,
            if s.nbd.is_empty() { s.used_by.clone() } else { format!("nbd {}", s.nbd) },
        ]);
    }
    t.text("no spaces; `arden space create` cuts one")
}

fn space_text(s: &SpaceInfo, map: Option<&[GroupMap]>) -> String {
    let mut out = space_table(std::slice::from_ref(s));
    out += &format!(
        "{} provisioned, interleave {}, {} of {} groups have slabs, {} degraded, {} offline\n",
        s.provision,
        size(s.interleave_bytes),
        s.groups_allocated,
        s.groups,
        s.groups_degraded,
        s.groups_offline
    );
    if !s.missing.is_empty() {
        let list: Vec<String> = s.missing.iter().map(ToString::to_string).collect();
        out +=
            &format!("missing: disk {}; {} % of its columns are up to date\n", list.join(", "), s.up_to_date_percent);
    }
    if let Some(map) = map {
        let mut t = Table::new(&["GROUP", "COLUMNS (disk:slab)"]);
        for g in map {
            let columns: Vec<String> = g
                .columns
                .iter()
                .map(|c| {
                    let moving = c.moving_to.map_or_else(String::new, |d| format!("->{d}"));
                    let state = if c.state == "whole" { "" } else { &format!("({})", c.state) };
                    format!("{}:{}{moving}{state}", c.disk, c.slab)
                })
                .collect();
            t.row([g.group.to_string(), columns.join(" ")]);
        }
        out += &t.text("nothing is allocated");
    }
    out
}

impl Which {
    /// The space, and its path in the API.
    fn find(&self, out: &Out) -> Result<(SpaceInfo, String)> {
        let spaces: Vec<SpaceInfo> = out.client.get("/v1/spaces")?;
        let fits = |s: &&SpaceInfo| s.name == self.name && self.pool.as_ref().is_none_or(|p| *p == s.pool);
        let mut found: Vec<SpaceInfo> = spaces.iter().filter(fits).cloned().collect();
        if found.len() > 1 {
            let pools: Vec<String> = found.into_iter().map(|space| space.pool).collect();
            return Err(AdminError::several_pools(&self.name, &pools));
        }
        let space = found.pop().ok_or_else(|| AdminError::not_found("space", &self.name))?;
        let path = format!("/v1/pools/{}/spaces/{}", segment(&space.pool), segment(&space.name));
        Ok((space, path))
    }
}

/// Runs a command on spaces.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn space(out: &Out, verb: SpaceVerb) -> Result<()> {
    let shown = |space: SpaceInfo| out.show(&space, |s| space_text(s, None));
    match verb {
        SpaceVerb::Create(n) => {
            if n.size == Some(0) {
                return Err(AdminError::invalid("a space of no size", "for example --size 100g"));
            }
            let new = NewSpace {
                name: n.name,
                layout: n.layout,
                columns: n.columns,
                interleave_bytes: n.interleave,
                size_bytes: n.size,
                fixed: n.provision == "fixed",
            };
            shown(out.client.post(&format!("/v1/pools/{}/spaces", segment(&n.pool)), &new)?);
        }
        SpaceVerb::List { pool } => {
            let mut spaces: Vec<SpaceInfo> = out.client.get("/v1/spaces")?;
            if let Some(pool) = &pool {
                let known: PoolInfo = out.client.get(&format!("/v1/pools/{}", segment(pool)))?;
                spaces.retain(|s| s.pool == known.name);
            }
            out.show(&spaces, |s| space_table(s));
        }
        SpaceVerb::Show { which, map } => {
            let (space, path) = which.find(out)?;
            if map {
                let groups: Vec<GroupMap> = out.client.get(&format!("{path}/map"))?;
                out.show(&serde_json::json!({"space": space, "map": groups}), |_| space_text(&space, Some(&groups)));
            } else {
                shown(space);
            }
        }
        SpaceVerb::Grow { which, size } => {
            let (_, path) = which.find(out)?;
            shown(out.client.patch(&path, &SpaceChange { size_bytes: size })?);
        }
        SpaceVerb::Delete { which, force } => {
            let (space, path) = which.find(out)?;
            out.client.send_only("POST", &format!("{path}/delete"), &SpaceDelete { force })?;
            out.done(format!("space {} deleted", space.name));
        }
        SpaceVerb::Export { which, nbd } => {
            let (_, path) = which.find(out)?;
            let nbd = match nbd.strip_prefix("unix:") {
                Some(p) => format!("unix:{}", absolute(p.as_ref())?.display()),
                None => nbd,
            };
            let space: SpaceInfo = out.client.put_body(&format!("{path}/export"), &NewExport { nbd })?;
            out.show(&space, |s| format!("space {} is served at {}\n", s.name, s.nbd));
        }
        SpaceVerb::Unexport { which } => {
            let (_, path) = which.find(out)?;
            let space: SpaceInfo = out.client.delete_answered(&format!("{path}/export"))?;
            out.show(&space, |s| format!("space {} is not served any more\n", s.name));
        }
    }
    Ok(())
}

fn progress(done: u64, total: u64) -> String {
    match (done * 100).checked_div(total) {
        Some(percent) => format!("{percent} % ({done} of {total})"),
        None => "under way".to_string(),
    }
}

/// A job that is about no single disk.
fn of_all(kind: JobKind) -> NewJob {
    NewJob { kind, disk: None, add: None }
}

fn start(out: &Out, pool: &str, new: NewJob, wait: &Wait) -> Result<()> {
    let job: JobInfo = out.client.post(&format!("/v1/pools/{}/jobs", segment(pool)), &new)?;
    if wait.no_wait {
        out.show(&job, |j| format!("job {} ({}) started\n", j.id, j.kind));
        return Ok(());
    }
    wait_for(out, job.id)
}

/// Waits until a job ends or is paused. Progress is shown on a terminal only.
fn wait_for(out: &Out, id: u64) -> Result<()> {
    let terminal = std::io::stderr().is_terminal();
    let mut wait = Duration::from_millis(20);
    loop {
        let job: JobInfo = out.client.get(&format!("/v1/jobs/{id}"))?;
        if terminal {
            eprint!("\r\x1b[K{} {}: {}", job.kind, crate::printable::line(&job.pool), progress(job.done, job.total));
            let _ = std::io::stderr().flush();
        }
        if job.state != JobState::Running {
            if terminal {
                eprint!("\r\x1b[K");
            }
            return match job.state {
                JobState::Failed => Err(AdminError::failed(job.result, "`arden pool show` shows the pool")),
                JobState::Cancelled => Err(AdminError::failed(format!("job {id} was cancelled"), "start it again")),
                JobState::Paused => {
                    out.show(&job, |j| format!("job {} is paused; `arden job resume {}` goes on\n", j.id, j.id));
                    Ok(())
                }
                JobState::Done | JobState::Running => {
                    out.show(&job, |j| format!("{}\n", j.result));
                    Ok(())
                }
            };
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(Duration::from_millis(500));
    }
}

/// Runs a command on jobs.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn job(out: &Out, verb: JobVerb) -> Result<()> {
    let path = |id: u64| format!("/v1/jobs/{id}");
    let shown = |job: JobInfo| out.show(&job, |j| job_table(std::slice::from_ref(j)));
    match verb {
        JobVerb::List => {
            let jobs: Vec<JobInfo> = out.client.get("/v1/jobs")?;
            out.show(&jobs, |j| job_table(j));
        }
        JobVerb::Show { id } => shown(out.client.get(&path(id))?),
        JobVerb::Wait { id } => wait_for(out, id)?,
        JobVerb::Pause { id } => shown(out.client.patch(&path(id), &JobChange { paused: true })?),
        JobVerb::Resume { id } => shown(out.client.patch(&path(id), &JobChange { paused: false })?),
        JobVerb::Cancel { id } => {
            out.client.delete(&path(id))?;
            out.done(format!("job {id} is being stopped"));
        }
    }
    Ok(())
}

fn job_table(jobs: &[JobInfo]) -> String {
    let mut t = Table::new(&["JOB", "POOL", "KIND", "DISK", "STATE", "PROGRESS", "RESULT"]);
    for j in jobs {
        let open = matches!(j.state, JobState::Running | JobState::Paused);
        t.row([
            j.id.to_string(),
            j.pool.clone(),
            j.kind.to_string(),
            j.disk.map_or_else(String::new, |d| d.to_string()),
            j.state.to_string(),
            if open { progress(j.done, j.total) } else { yes(false) },
            j.result.clone(),
        ]);
    }
    t.text("no jobs")
}
