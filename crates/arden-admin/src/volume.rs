//! Volumes in administration: the record that the state keeps, the bodies of the API, and the trait through which a
//! daemon answers. Refuses to know what lies in a volume.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    snapshot::{SnapshotAdmin, SnapshotSchedule},
};

/// A volume that the daemon opens: on a space of its pools, or on a file or block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeRecord {
    /// The volume's name.
    pub name: String,
    /// The whole of a space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// Absolute path of a file or block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Schedules of its snapshots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<SnapshotSchedule>,
}

impl VolumeRecord {
    /// What it lies on, for people.
    pub fn device(&self) -> String {
        match (&self.space, &self.file) {
            (Some(space), _) => format!("space {space}"),
            (_, Some(file)) => file.display().to_string(),
            _ => String::new(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// The volume's name.
    pub name: String,
    /// The whole of a space that nothing else uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// An absolute path: made with `size_bytes`, or there already, which needs `force`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Make the file, of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Also where a volume or something else lies already.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Volume")]
pub struct VolumeInfo {
    /// The volume's name.
    pub name: String,
    /// What it lies on.
    pub device: String,
    /// Empty while it is open, else why not.
    pub closed_because: String,
    /// Given when it was made.
    pub id: String,
    /// The device's size.
    pub total_bytes: u64,
    /// Not promised to any file.
    pub free_bytes: u64,
    /// When reading moves a file's last access.
    pub last_access: AccessPolicy,
    /// Shares that are on it.
    pub shares: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCheck {
    /// Also read all data against its checksums.
    #[serde(default)]
    pub data: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeCheck {
    /// Empty when everything is as it should be.
    pub errors: Vec<String>,
    /// How many there are.
    pub files: u64,
    /// How many there are.
    pub directories: u64,
    /// Named streams.
    pub streams: u64,
    /// How many there are.
    pub extents: u64,
    /// Bytes in blocks of files.
    pub data_bytes: u64,
    /// Bytes of them that several files share.
    pub shared_bytes: u64,
    /// Bytes of metadata.
    pub tree_bytes: u64,
}

/// Absent fields stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// Take in what its device has become larger by.
    #[serde(default)]
    pub grow: bool,
    /// With `grow`, on a regular file: make that longer first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// When reading moves a file's last access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_access: Option<AccessPolicy>,
}

/// When reading a file moves its time of last access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AccessPolicy {
    #[default]
    Never,
    /// Where it is not behind the last change already, and once a day.
    Relative,
    Always,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeDelete {
    /// Also while shares are on it: they are removed.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRepair {
    /// Say what would be done, and do nothing.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeRepair {
    /// What was wrong and what was done, or would be.
    pub done: Vec<String>,
    /// What is not safe to do anything about.
    pub left: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewScrub {
    /// 0: as fast as it goes.
    #[serde(default)]
    pub bytes_per_second: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubState {
    Never,
    Running,
    Done,
    Stopped,
    Failed,
}

/// A scrub of a volume, the present one or the last since the daemon started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeScrub {
    /// State of the present scrub, or of the last.
    pub state: ScrubState,
    /// Bytes that were read.
    pub done_bytes: u64,
    /// Bytes to be read.
    pub total_bytes: u64,
    /// Written anew from another copy.
    pub healed_blocks: u64,
    /// Lost: no copy holds them.
    pub damaged_blocks: u64,
    /// Where they are.
    pub damage: Vec<DamageInfo>,
    /// Why it failed.
    pub error: String,
}

/// A part of a file that is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Damage")]
pub struct DamageInfo {
    /// Empty: in the metadata.
    pub path: String,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
}

/// The subject of a quota: a user, group or SID; a folder; or, without both, all users who have no quota of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaSubject {
    /// A user, group or SID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// From the volume's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewQuota {
    /// A user, group or SID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Path from the volume's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Logged when it is passed; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_bytes: Option<u64>,
    /// Never passed; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaKind {
    Default,
    User,
    Folder,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Quota")]
pub struct QuotaInfo {
    /// Whose quota it is.
    pub kind: QuotaKind,
    /// The user's name, or the folder's path.
    pub name: String,
    /// Bytes that are allocated.
    pub used_bytes: u64,
    /// Logged when passed.
    pub soft_bytes: Option<u64>,
    /// Never passed.
    pub hard_bytes: Option<u64>,
}

/// How reads of a file, or of what is made in a directory, are checked against their checksums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IntegrityState {
    /// Nobody set it: damaged data cannot be read.
    #[default]
    Default,
    /// Set, and shown to clients: damaged data cannot be read.
    On,
    /// Set, and shown to clients: damaged data reads as what is there.
    Unenforced,
    /// Damaged data reads as what is there.
    Off,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntegrityQuery {
    /// From the volume's root; empty is the root.
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewIntegrity {
    /// From the volume's root; empty is the root.
    pub path: String,
    /// How it is checked from now on.
    pub state: IntegrityState,
    /// Also everything below a directory, streams included.
    #[serde(default)]
    pub recursive: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Integrity")]
pub struct IntegrityInfo {
    /// From the volume's root.
    pub path: String,
    /// How it is checked.
    pub state: IntegrityState,
    /// The algorithm of the checksums, one for each `block_bytes` of data.
    pub checksum: String,
    /// In bytes.
    pub block_bytes: u32,
    /// Files, directories and streams that a change set; 0 where this is only shown.
    pub changed: u64,
}

/// Calls may come from any thread and block until the device has answered.
pub trait VolumeAdmin: SnapshotAdmin {
    fn volumes(&self) -> Result<Vec<VolumeInfo>>;
    fn volume(&self, name: &str) -> Result<VolumeInfo>;
    fn create_volume(&self, new: &NewVolume) -> Result<VolumeInfo>;
    fn check_volume(&self, name: &str, check: &NewCheck) -> Result<VolumeCheck>;
    fn change_volume(&self, name: &str, change: &VolumeChange) -> Result<VolumeInfo>;
    fn repair_volume(&self, name: &str, repair: &NewRepair) -> Result<VolumeRepair>;
    /// Starts to read everything; one at a time for each volume.
    fn start_scrub(&self, name: &str, scrub: &NewScrub) -> Result<VolumeScrub>;
    fn scrub(&self, name: &str) -> Result<VolumeScrub>;
    fn stop_scrub(&self, name: &str) -> Result<()>;
    /// The defaults first; none when nothing is counted.
    fn quotas(&self, name: &str) -> Result<Vec<QuotaInfo>>;
    fn set_quota(&self, name: &str, quota: &NewQuota) -> Result<QuotaInfo>;
    fn remove_quota(&self, name: &str, of: &QuotaSubject) -> Result<()>;
    /// Of a file or directory, then of each of its named streams.
    fn integrity(&self, name: &str, of: &IntegrityQuery) -> Result<Vec<IntegrityInfo>>;
    fn set_integrity(&self, name: &str, new: &NewIntegrity) -> Result<IntegrityInfo>;
    /// Forgets it, and overwrites what leads to its content. No share is on it any more.
    fn delete_volume(&self, name: &str) -> Result<()>;
    /// Closes a volume and forgets it; what it lies on stays as it is.
    fn forget_volume(&self, name: &str) -> Result<()>;
    /// Knows a volume again that was forgotten, without formatting.
    fn attach_volume(&self, record: &VolumeRecord) -> Result<VolumeInfo>;
}
