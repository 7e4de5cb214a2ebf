//! What administration says of disks, pools, spaces and long work on them: the records that are stored, the
//! bodies of the API, and the `Storage` trait through which a daemon answers. Refuses rules of its own.

use std::path::PathBuf;

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

/// What a person says of a disk whose system says nothing, or something wrong. Keyed by its path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub serial: Option<String>,
    #[serde(default)]
    pub media: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    pub id: u64,
    pub pool: String,
    pub kind: JobKind,
    pub disk: Option<u16>,
    pub state: JobState,
    /// Steps of the present part; 0 of 0 while nobody knows.
    pub done: u64,
    pub total: u64,
    /// What came of it.
    pub result: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    pub kind: JobKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobChange {
    pub paused: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskInfo {
    pub path: PathBuf,
    pub size_bytes: u64,
    /// unknown, rotating, ssd or nvme.
    pub media: String,
    pub model: String,
    pub serial: String,
    /// What is recognisably on it; empty when nothing is.
    pub content: String,
    /// Who uses it; empty when nobody does.
    pub in_use: String,
    /// Name of the pool whose label it carries.
    pub pool: String,
}

/// Paths as the daemon sees them: absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskQuery {
    pub disks: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskLabel {
    pub disk: PathBuf,
    /// Empty: what the system says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskWipe {
    pub disk: PathBuf,
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPool {
    pub name: String,
    pub disks: Vec<PathBuf>,
    #[serde(default)]
    pub hot_spares: Vec<PathBuf>,
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
    /// Three fill levels, ascending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warn_percent: Option<[u8; 3]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddDisk {
    pub disk: PathBuf,
    #[serde(default)]
    pub hot_spare: bool,
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolDiskChange {
    /// True: emptied, and nothing new goes to it. False: it stays.
    pub retire: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDiskInfo {
    pub index: u16,
    pub path: String,
    /// active, spare, retiring or missing.
    pub state: String,
    pub size_bytes: u64,
    pub slabs: u32,
    pub slabs_free: u32,
    pub read_errors: u64,
    pub write_errors: u64,
    pub latency_us: u64,
    /// Answers far slower than its peers; avoided for reads.
    pub slow: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkInfo {
    pub what: String,
    pub done: u64,
    pub total: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceInfo {
    pub pool: String,
    pub name: String,
    pub id: u32,
    pub layout: String,
    pub columns: u16,
    pub interleave_bytes: u64,
    pub size_bytes: u64,
    /// thin or fixed.
    pub provision: String,
    /// whole, degraded or offline.
    pub health: String,
    pub groups: u64,
    pub groups_allocated: u64,
    pub groups_degraded: u64,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolInfo {
    pub name: String,
    pub id: String,
    /// open or closed.
    pub state: String,
    /// Why it is closed.
    pub reason: String,
    pub epoch: u64,
    pub slab_bytes: u64,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// The highest warning level that is reached; 0 when none is.
    pub warning_percent: u8,
    pub warn_percent: [u8; 3],
    pub grace_seconds: u64,
    /// whole, degraded or offline.
    pub health: String,
    pub disks: Vec<PoolDiskInfo>,
    pub spaces: Vec<SpaceInfo>,
    pub work: Vec<WorkInfo>,
    pub events: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSpace {
    pub name: String,
    pub layout: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interleave_bytes: Option<u64>,
    /// Absent: all the room that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Slabs are taken now.
    #[serde(default)]
    pub fixed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceChange {
    pub size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewExport {
    pub nbd: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnInfo {
    pub disk: u16,
    pub slab: u32,
    /// whole, stale or missing.
    pub state: String,
    pub moving_to: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMap {
    pub group: u64,
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
