//! Disks, pools, spaces and jobs in administration: the records that are stored, the bodies of the API, and the trait
//! [`Storage`], which a daemon implements. Holds no rules.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// A pool that this daemon opens when it starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    pub name: String,
    /// Identity of the pool on the labels of its disks, 32 hexadecimal digits.
    pub id: String,
    /// Paths of its disks when they were last seen. The labels on the disks decide, not the paths.
    pub devices: Vec<PathBuf>,
    pub grace_seconds: u64,
    #[serde(default)]
    pub exports: Vec<ExportRecord>,
    /// Unfinished jobs, which continue after a restart.
    #[serde(default)]
    pub jobs: Vec<JobRecord>,
}

/// An NBD export that is restored when the daemon starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportRecord {
    pub space: String,
    /// `unix:PATH` or `ADDR:PORT`.
    pub nbd: String,
}

/// An unfinished job as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    pub id: u64,
    pub kind: JobKind,
    #[serde(default)]
    pub disk: Option<u16>,
    #[serde(default)]
    pub paused: bool,
    /// For a scrub: the space and the group at which it continues.
    #[serde(default)]
    pub scrub_at: (u32, u64),
}

/// Facts about a disk that an administrator set, because the system reports none or wrong ones. Keyed by path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub serial: Option<String>,
    #[serde(default)]
    pub media: Option<String>,
}

/// The kind of a job.
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

/// The state of a job.
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

/// Long work on a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Job")]
pub struct JobInfo {
    /// The job's number.
    pub id: u64,
    /// The pool that it works on.
    pub pool: String,
    /// The kind of work.
    pub kind: JobKind,
    /// The disk that is removed; null for other kinds.
    pub disk: Option<u16>,
    /// The present state.
    pub state: JobState,
    /// Steps done of the present part; 0 of 0 while the number is unknown.
    pub done: u64,
    /// Steps of the present part; 0 while the number is unknown.
    pub total: u64,
    /// The result once the job is over.
    pub result: String,
}

/// A job to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// The kind of work.
    pub kind: JobKind,
    /// For `remove-disk`: the disk's index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<u16>,
    /// For `remove-disk`: a disk that takes its place. It is added before the job starts, unless the job is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add: Option<AddDisk>,
}

/// Pauses or continues a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobChange {
    /// True pauses the job, false continues it.
    pub paused: bool,
}

/// A file or block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Disk")]
pub struct DiskInfo {
    /// Path of a file or block device.
    pub path: PathBuf,
    /// Size in whole blocks of 4096 bytes.
    pub size_bytes: u64,
    /// unknown, rotating, ssd or nvme.
    #[schemars(extend("enum" = ["unknown", "rotating", "ssd", "nvme"]))]
    pub media: String,
    /// Reported by the system, or set by an administrator.
    pub model: String,
    /// Reported by the system, or set by an administrator.
    pub serial: String,
    /// Recognised content; empty when there is none.
    pub content: String,
    /// User of the disk; empty when there is none.
    pub in_use: String,
    /// Name of the pool on the disk's label; empty when there is none.
    pub pool: String,
}

/// The disks of a request. Paths are absolute, as the daemon sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskQuery {
    /// Absolute paths; empty: all known disks.
    pub disks: Vec<PathBuf>,
}

/// Facts about a disk to set; absent fields stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskLabel {
    /// Absolute path.
    pub disk: PathBuf,
    /// Model; empty: as the system reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Serial number; empty: as the system reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Kind of media; empty: as the system reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["", "unknown", "rotating", "ssd", "nvme"]))]
    pub media: Option<String>,
}

/// A disk to wipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskWipe {
    /// Absolute path.
    pub disk: PathBuf,
    /// Wipes a disk that holds something.
    #[serde(default)]
    pub force: bool,
}

/// A pool to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPool {
    /// 1 to 64 bytes.
    pub name: String,
    /// Absolute paths.
    pub disks: Vec<PathBuf>,
    /// Absolute paths of disks that stand by until another disk fails.
    #[serde(default)]
    pub hot_spares: Vec<PathBuf>,
    /// Takes disks that hold something.
    #[serde(default)]
    pub force: bool,
}

/// A pool to find on disks and open.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolImport {
    /// Disks, or directories of disk files; empty: every block device of this machine.
    pub disks: Vec<PathBuf>,
    /// The pool to import when disks of several are found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Disks whose separate history may be discarded.
    #[serde(default)]
    pub discard: Vec<PathBuf>,
    /// Take the pool from the cluster that it belongs to. No node of that may run any more, or both write.
    #[serde(default)]
    pub take_from_cluster: bool,
}

/// Fields of a pool to change; absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolChange {
    /// New name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Time that a missing disk is waited for before repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
    /// Three fill levels that warn, ascending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warn_percent: Option<[u8; 3]>,
}

/// A disk to add to a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDisk {
    /// Absolute path.
    pub disk: PathBuf,
    /// The disk stands by until another disk fails.
    #[serde(default)]
    pub hot_spare: bool,
    /// Takes a disk that holds something.
    #[serde(default)]
    pub force: bool,
}

/// Retires a disk of a pool, or keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolDiskChange {
    /// True: the disk is emptied and gets no new slabs. False: the disk stays.
    pub retire: bool,
}

/// A disk of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PoolDisk")]
pub struct PoolDiskInfo {
    /// The disk's number within the pool.
    pub index: u16,
    /// Path of the disk: where it is or, of one that is missing, where it was last known to be.
    pub path: String,
    /// active, spare, retiring or missing.
    #[schemars(extend("enum" = ["active", "spare", "retiring", "missing"]))]
    pub state: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Number of slabs.
    pub slabs: u32,
    /// Number of slabs that are not allocated.
    pub slabs_free: u32,
    /// Read errors since the pool was opened.
    pub read_errors: u64,
    /// Write errors since the pool was opened.
    pub write_errors: u64,
    /// Blocks that the disk returned without an error and that were not what was written there, since it joined or the pool was opened: those that a volume
    /// read, or a scrub of one. They were written anew from other disks.
    #[serde(default)]
    pub wrong_blocks: u64,
    /// Smoothed latency of reads.
    pub latency_us: u64,
    /// Answers much more slowly than the other disks, and is avoided for reads.
    pub slow: bool,
}

/// Background work of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Work")]
pub struct WorkInfo {
    /// resync, repair, drain, rebalance or scrub.
    pub what: String,
    /// Steps done.
    pub done: u64,
    /// Steps in all; 0 while the number is unknown.
    pub total: u64,
}

/// A space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Space")]
pub struct SpaceInfo {
    /// Name of the pool.
    pub pool: String,
    /// The space's name.
    pub name: String,
    /// The space's number within the pool.
    pub id: u32,
    /// Redundancy.
    #[schemars(extend("enum" = ["simple", "mirror2", "mirror3", "parity", "dual-parity"]))]
    pub layout: String,
    /// Columns of a stripe, parity included.
    pub columns: u16,
    /// Bytes of one column in a stripe.
    pub interleave_bytes: u64,
    /// Size of the virtual disk.
    pub size_bytes: u64,
    /// thin or fixed.
    #[schemars(extend("enum" = ["thin", "fixed"]))]
    pub provision: String,
    /// whole, degraded or offline.
    #[schemars(extend("enum" = ["whole", "degraded", "offline"]))]
    pub health: String,
    /// Number of slab groups.
    pub groups: u64,
    /// Number of groups that have slabs.
    pub groups_allocated: u64,
    /// Number of groups without their full redundancy.
    pub groups_degraded: u64,
    /// Number of groups that cannot be read and written.
    pub groups_offline: u64,
    /// Raw bytes of the slabs that are allocated.
    pub allocated_bytes: u64,
    /// Percentage of the columns that are present and up to date.
    pub up_to_date_percent: u8,
    /// Indices of the space's disks that are missing.
    pub missing: Vec<u16>,
    /// Address of the NBD export; empty when there is none.
    pub nbd: String,
    /// Other user of the space; empty when there is none.
    pub used_by: String,
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Pool")]
pub struct PoolInfo {
    /// The pool's name.
    pub name: String,
    /// Identity of the pool on the labels of its disks.
    pub id: String,
    /// open or closed.
    #[schemars(extend("enum" = ["open", "closed"]))]
    pub state: String,
    /// Reason why the pool is closed; empty while it is open.
    pub reason: String,
    /// Number of the present opening.
    pub epoch: u64,
    /// Unit of allocation.
    pub slab_bytes: u64,
    /// Raw bytes, room for redundancy included.
    pub total_bytes: u64,
    /// Raw bytes that are not allocated.
    pub free_bytes: u64,
    /// The highest warning level that is reached; 0 for none.
    pub warning_percent: u8,
    /// Fill levels that warn, ascending.
    pub warn_percent: [u8; 3],
    /// Time that a missing disk is waited for before repair.
    pub grace_seconds: u64,
    /// whole, degraded or offline.
    #[schemars(extend("enum" = ["whole", "degraded", "offline"]))]
    pub health: String,
    /// The pool's disks.
    pub disks: Vec<PoolDiskInfo>,
    /// The pool's spaces.
    pub spaces: Vec<SpaceInfo>,
    /// Background work.
    pub work: Vec<WorkInfo>,
    /// Events since the pool was opened, newest last.
    pub events: Vec<String>,
    /// Who owns the pool, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ownership: Option<crate::cluster::PoolOwnership>,
}

/// A space to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSpace {
    /// 1 to 64 bytes; no other space has it.
    pub name: String,
    /// Redundancy.
    #[schemars(extend("enum" = ["simple", "mirror2", "mirror3", "parity", "dual-parity"]))]
    pub layout: String,
    /// Absent: chosen by the number of disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<u16>,
    /// A power of two from 64 KiB to 1 MiB; absent: 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interleave_bytes: Option<u64>,
    /// Absent: all free room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Allocates all slabs now.
    #[serde(default)]
    pub fixed: bool,
}

/// A new size of a space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpaceChange {
    /// New size, not less than the present one.
    pub size_bytes: u64,
}

/// Options of a space's deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpaceDelete {
    /// Deletes a space with a volume, and all files of that.
    #[serde(default)]
    pub force: bool,
}

/// An NBD export to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewExport {
    /// unix:PATH, or ADDR:PORT of a loopback address.
    pub nbd: String,
}

/// One column of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Column")]
pub struct ColumnInfo {
    /// Index of the disk in the pool.
    pub disk: u16,
    /// The slab's number on that disk.
    pub slab: u32,
    /// whole, stale or missing.
    #[schemars(extend("enum" = ["whole", "stale", "missing"]))]
    pub state: String,
    /// Index of the disk that replaces it, while it moves.
    pub moving_to: Option<u16>,
}

/// The slabs of one group of a space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupMap {
    /// The group's number in the space.
    pub group: u64,
    /// The group's columns in order.
    pub columns: Vec<ColumnInfo>,
}

/// The disks, pools, spaces and jobs of a daemon. Calls may come from any thread and block until the disks have
/// answered.
///
/// # Errors
/// All methods: invalid for a value out of range, not found for an unknown name, conflict when the present state
/// forbids the request, failed when a disk fails.
pub trait Storage: Send + Sync {
    /// The disks of the query or, without any, every block device and the disks of known pools.
    fn disks(&self, query: &DiskQuery) -> Result<Vec<DiskInfo>>;
    /// Sets facts about a disk that the system does not report.
    fn label_disk(&self, label: &DiskLabel) -> Result<DiskInfo>;
    /// Removes the label of a disk that is not in use.
    fn wipe_disk(&self, wipe: &DiskWipe) -> Result<()>;
    /// All known pools, open and closed.
    fn pools(&self) -> Result<Vec<PoolInfo>>;
    /// The pool with this name.
    fn pool(&self, name: &str) -> Result<PoolInfo>;
    /// Makes a pool of disks and opens it.
    fn create_pool(&self, new: &NewPool) -> Result<PoolInfo>;
    /// Finds a pool on disks and opens it.
    fn import_pool(&self, import: &PoolImport) -> Result<PoolInfo>;
    /// Changes the fields that `change` has.
    fn change_pool(&self, name: &str, change: &PoolChange) -> Result<PoolInfo>;
    /// Closes a pool and removes it from the state. Its disks are not changed.
    fn forget_pool(&self, name: &str) -> Result<()>;
    /// Adds a disk to a pool.
    fn add_disk(&self, pool: &str, add: &AddDisk) -> Result<PoolInfo>;
    /// Retires a disk of a pool, or keeps it.
    fn change_disk(&self, pool: &str, disk: u16, change: &PoolDiskChange) -> Result<PoolInfo>;
    /// Starts a job, which goes on in the background.
    fn start_job(&self, pool: &str, new: &NewJob) -> Result<JobInfo>;
    /// All jobs, by number.
    fn jobs(&self) -> Result<Vec<JobInfo>>;
    /// The job with this number.
    fn job(&self, id: u64) -> Result<JobInfo>;
    /// Pauses or continues a job.
    fn change_job(&self, id: u64, change: &JobChange) -> Result<JobInfo>;
    /// Cancels a job. Work that is done stays.
    fn cancel_job(&self, id: u64) -> Result<()>;
    /// The spaces of all open pools.
    fn spaces(&self) -> Result<Vec<SpaceInfo>>;
    /// Makes a space in a pool.
    fn create_space(&self, pool: &str, new: &NewSpace) -> Result<SpaceInfo>;
    /// The space with this name.
    fn space(&self, pool: &str, name: &str) -> Result<SpaceInfo>;
    /// The slabs of a space by group.
    fn space_map(&self, pool: &str, name: &str) -> Result<Vec<GroupMap>>;
    /// Makes a space larger.
    fn grow_space(&self, pool: &str, name: &str, change: &SpaceChange) -> Result<SpaceInfo>;
    /// Removes a space and its content. Conflict without `force`, when a volume is on it.
    fn delete_space(&self, pool: &str, name: &str, delete: &SpaceDelete) -> Result<()>;
    /// Exports a space over NBD.
    fn export_space(&self, pool: &str, name: &str, new: &NewExport) -> Result<SpaceInfo>;
    /// Ends the NBD export of a space.
    fn unexport_space(&self, pool: &str, name: &str) -> Result<SpaceInfo>;
}
