//! Disks, pools, spaces and long work on them, as administration sees them: the records that are stored, the bodies of the
//! API, and the `Storage` trait through which a daemon answers. Holds no rules of its own.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// A pool that this daemon opens at its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    pub name: String,
    /// As on its disks' labels, 32 hexadecimal digits.
    pub id: String,
    /// Where its disks were when last seen; labels decide.
    pub devices: Vec<PathBuf>,
    pub grace_seconds: u64,
    #[serde(default)]
    pub exports: Vec<ExportRecord>,
    /// Work that is not finished; it goes on after a restart.
    #[serde(default)]
    pub jobs: Vec<JobRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportRecord {
    pub space: String,
    /// `unix:PATH` or `ADDR:PORT`.
    pub nbd: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    pub id: u64,
    pub kind: JobKind,
    #[serde(default)]
    pub disk: Option<u16>,
    #[serde(default)]
    pub paused: bool,
    /// Scrub: the space and the group from which to go on.
    #[serde(default)]
    pub scrub_at: (u32, u64),
}

/// Facts about a disk that were set by hand, because the system reports none or wrong ones. Keyed by its path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub serial: Option<String>,
    #[serde(default)]
    pub media: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    Scrub,
    Repair,
    Rebalance,
    RemoveDisk,
}

impl std::fmt::Display for JobKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            JobKind::Scrub => "scrub",
            JobKind::Repair => "repair",
            JobKind::Rebalance => "rebalance",
            JobKind::RemoveDisk => "remove-disk",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    Running,
    Paused,
    Done,
    Failed,
    Cancelled,
}

impl std::fmt::Display for JobState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Job")]
pub struct JobInfo {
    /// The job's number.
    pub id: u64,
    /// The pool that it works on.
    pub pool: String,
    /// What it does.
    pub kind: JobKind,
    /// The disk that it empties; null for other kinds.
    pub disk: Option<u16>,
    /// What it does at present.
    pub state: JobState,
    /// Steps of the present part; 0 of 0 while nobody knows.
    pub done: u64,
    /// Steps; 0 while nobody knows.
    pub total: u64,
    /// What came of it.
    pub result: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// What to do.
    pub kind: JobKind,
    /// For `remove-disk`: the disk's index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobChange {
    /// Stop, or go on.
    pub paused: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Disk")]
pub struct DiskInfo {
    /// File or block device.
    pub path: PathBuf,
    /// Whole blocks of 4096.
    pub size_bytes: u64,
    /// unknown, rotating, ssd or nvme.
    #[schemars(extend("enum" = ["unknown", "rotating", "ssd", "nvme"]))]
    pub media: String,
    /// From the system, or set by hand.
    pub model: String,
    /// From the system, or set by hand.
    pub serial: String,
    /// What is recognisably on it; empty when nothing is.
    pub content: String,
    /// Who uses it; empty when nobody does.
    pub in_use: String,
    /// Name of the pool whose label it carries.
    pub pool: String,
}

/// Paths as the daemon sees them: absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskQuery {
    /// Absolute paths; none: all that are known.
    pub disks: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskLabel {
    /// Absolute path.
    pub disk: PathBuf,
    /// Empty: what the system says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Empty: what the system says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Empty: what the system says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["", "unknown", "rotating", "ssd", "nvme"]))]
    pub media: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskWipe {
    /// Absolute path.
    pub disk: PathBuf,
    /// Also when something is on it.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPool {
    /// 1 to 64 bytes.
    pub name: String,
    /// Absolute paths.
    pub disks: Vec<PathBuf>,
    /// Stand by until a disk fails.
    #[serde(default)]
    pub hot_spares: Vec<PathBuf>,
    /// Also when something is on a disk.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolImport {
    /// Disks, or directories of disk files; empty: every block device of this machine.
    pub disks: Vec<PathBuf>,
    /// Which, when disks of several are found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Disks whose separate history may be thrown away.
    #[serde(default)]
    pub discard: Vec<PathBuf>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolChange {
    /// New name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How long a missing disk is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
    /// Three fill levels, ascending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warn_percent: Option<[u8; 3]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDisk {
    /// Absolute path.
    pub disk: PathBuf,
    /// Stands by until another disk fails.
    #[serde(default)]
    pub hot_spare: bool,
    /// Also when something is on it.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolDiskChange {
    /// True: emptied, and nothing new goes to it. False: it stays.
    pub retire: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PoolDisk")]
pub struct PoolDiskInfo {
    /// The disk's number within the pool.
    pub index: u16,
    /// Where it was when it joined.
    pub path: String,
    /// active, spare, retiring or missing.
    #[schemars(extend("enum" = ["active", "spare", "retiring", "missing"]))]
    pub state: String,
    /// The disk's size.
    pub size_bytes: u64,
    /// Slabs in all.
    pub slabs: u32,
    /// Slabs that nothing uses.
    pub slabs_free: u32,
    /// Errors since the pool was opened.
    pub read_errors: u64,
    /// Errors since the pool was opened.
    pub write_errors: u64,
    /// Latency of reads, smoothed.
    pub latency_us: u64,
    /// Answers far slower than its peers; avoided for reads.
    pub slow: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Work")]
pub struct WorkInfo {
    /// resync, repair, drain, rebalance or scrub.
    pub what: String,
    /// Steps that are done.
    pub done: u64,
    /// Steps; 0 when nobody knows.
    pub total: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Space")]
pub struct SpaceInfo {
    /// The pool that it is cut from.
    pub pool: String,
    /// The space's name.
    pub name: String,
    /// The space's number within the pool.
    pub id: u32,
    /// How it survives lost disks.
    #[schemars(extend("enum" = ["simple", "mirror2", "mirror3", "parity", "dual-parity"]))]
    pub layout: String,
    /// Of a stripe, parity included.
    pub columns: u16,
    /// Bytes of one column in a stripe.
    pub interleave_bytes: u64,
    /// Its size as a disk.
    pub size_bytes: u64,
    /// thin or fixed.
    #[schemars(extend("enum" = ["thin", "fixed"]))]
    pub provision: String,
    /// whole, degraded or offline.
    #[schemars(extend("enum" = ["whole", "degraded", "offline"]))]
    pub health: String,
    /// Slab groups.
    pub groups: u64,
    /// Groups that have slabs.
    pub groups_allocated: u64,
    /// Groups without their full redundancy.
    pub groups_degraded: u64,
    /// Groups that cannot be read and written now.
    pub groups_offline: u64,
    /// Raw bytes of the slabs that it holds.
    pub allocated_bytes: u64,
    /// Columns that are here and up to date, of all.
    pub up_to_date_percent: u8,
    /// Indices of disks that it lies on and that are away.
    pub missing: Vec<u16>,
    /// Where it is exported; empty when it is not.
    pub nbd: String,
    /// Who else uses it.
    pub used_by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Pool")]
pub struct PoolInfo {
    /// The pool's name.
    pub name: String,
    /// As on its disks' labels.
    pub id: String,
    /// open or closed.
    #[schemars(extend("enum" = ["open", "closed"]))]
    pub state: String,
    /// Why it is closed.
    pub reason: String,
    /// Openings so far.
    pub epoch: u64,
    /// Unit of allocation.
    pub slab_bytes: u64,
    /// Raw bytes, room for redundancy included.
    pub total_bytes: u64,
    /// Raw bytes, room for redundancy included.
    pub free_bytes: u64,
    /// The highest warning level that is reached; 0 when none is.
    pub warning_percent: u8,
    /// Levels that warn.
    pub warn_percent: [u8; 3],
    /// How long a missing disk is waited for.
    pub grace_seconds: u64,
    /// whole, degraded or offline.
    #[schemars(extend("enum" = ["whole", "degraded", "offline"]))]
    pub health: String,
    /// The pool's disks.
    pub disks: Vec<PoolDiskInfo>,
    /// Cut from it.
    pub spaces: Vec<SpaceInfo>,
    /// What goes on in the background.
    pub work: Vec<WorkInfo>,
    /// What happened since it was opened, newest last.
    pub events: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSpace {
    /// 1 to 64 bytes, no other space has it.
    pub name: String,
    /// How it survives lost disks.
    #[schemars(extend("enum" = ["simple", "mirror2", "mirror3", "parity", "dual-parity"]))]
    pub layout: String,
    /// Absent: by the number of disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<u16>,
    /// A power of two from 64 KiB to 1 MiB; absent: 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interleave_bytes: Option<u64>,
    /// Absent: all the room that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Slabs are taken now.
    #[serde(default)]
    pub fixed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpaceChange {
    /// Not less than now.
    pub size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewExport {
    /// unix:PATH, or ADDR:PORT of a loopback address.
    pub nbd: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Column")]
pub struct ColumnInfo {
    /// Index in the pool.
    pub disk: u16,
    /// The slab's number on that disk.
    pub slab: u32,
    /// whole, stale or missing.
    #[schemars(extend("enum" = ["whole", "stale", "missing"]))]
    pub state: String,
    /// Disk that takes its place.
    pub moving_to: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupMap {
    /// The group's number in the space.
    pub group: u64,
    /// Where the group's columns lie, in order.
    pub columns: Vec<ColumnInfo>,
}

/// Calls may come from any thread and block until the disks have answered.
pub trait Storage: Send + Sync {
    /// None named: every block device, and the disks of known pools.
    fn disks(&self, query: &DiskQuery) -> Result<Vec<DiskInfo>>;
    fn label_disk(&self, label: &DiskLabel) -> Result<DiskInfo>;
    fn wipe_disk(&self, wipe: &DiskWipe) -> Result<()>;
    fn pools(&self) -> Result<Vec<PoolInfo>>;
    fn pool(&self, name: &str) -> Result<PoolInfo>;
    fn create_pool(&self, new: &NewPool) -> Result<PoolInfo>;
    fn import_pool(&self, import: &PoolImport) -> Result<PoolInfo>;
    fn change_pool(&self, name: &str, change: &PoolChange) -> Result<PoolInfo>;
    /// Closes a pool and forgets it; its disks stay as they are.
    fn forget_pool(&self, name: &str) -> Result<()>;
    fn add_disk(&self, pool: &str, add: &AddDisk) -> Result<PoolInfo>;
    fn change_disk(&self, pool: &str, disk: u16, change: &PoolDiskChange) -> Result<PoolInfo>;
    fn start_job(&self, pool: &str, new: &NewJob) -> Result<JobInfo>;
    fn jobs(&self) -> Result<Vec<JobInfo>>;
    fn job(&self, id: u64) -> Result<JobInfo>;
    fn change_job(&self, id: u64, change: &JobChange) -> Result<JobInfo>;
    fn cancel_job(&self, id: u64) -> Result<()>;
    fn spaces(&self) -> Result<Vec<SpaceInfo>>;
    fn create_space(&self, pool: &str, new: &NewSpace) -> Result<SpaceInfo>;
    fn space(&self, pool: &str, name: &str) -> Result<SpaceInfo>;
    fn space_map(&self, pool: &str, name: &str) -> Result<Vec<GroupMap>>;
    fn grow_space(&self, pool: &str, name: &str, change: &SpaceChange) -> Result<SpaceInfo>;
    fn delete_space(&self, pool: &str, name: &str) -> Result<()>;
    fn export_space(&self, pool: &str, name: &str, new: &NewExport) -> Result<SpaceInfo>;
    fn unexport_space(&self, pool: &str, name: &str) -> Result<SpaceInfo>;
}
