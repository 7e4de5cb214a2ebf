//! Volumes in administration: the record that the state keeps, the bodies of the API, and the trait [`VolumeAdmin`],
//! which a daemon implements.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    snapshot::{SnapshotAdmin, SnapshotSchedule},
};

/// A volume that the daemon opens, on a space of its pools or on a file or block device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeRecord {
    /// The volume's name.
    pub name: String,
    /// The space of the volume, which takes all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// Absolute path of a file or block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The identity of the pool of its space: a space of that name in another pool is not this volume's. In a request also the
    /// pool's name; absent there: the only pool with such a space. Absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Identity of the volume, 32 hexadecimal digits: another volume on its device is not opened. Absent in records of earlier versions
    /// until the volume is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Schedules of its snapshots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<SnapshotSchedule>,
    /// Days from the end of one scrub to the next; 0: none by itself. Absent: 28.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub_days: Option<u32>,
    /// The last scrub that read everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scrub: Option<LastScrub>,
}

/// A scrub that has read everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastScrub {
    /// When it ended, in seconds since 1970.
    pub ended: i64,
    /// Number of blocks that were rewritten from another copy.
    pub healed_blocks: u64,
    /// Number of blocks that were lost.
    pub damaged_blocks: u64,
}

/// Between scrubs, where nothing else is set.
const SCRUB_DAYS: u32 = 28;
const DAY_SECONDS: i64 = 24 * 3600;

impl VolumeRecord {
    /// Days from one scrub to the next; 0: none by itself.
    pub fn scrub_days(&self) -> u32 {
        self.scrub_days.unwrap_or(SCRUB_DAYS)
    }

    /// Whether a volume of that age is to be scrubbed. Times are in seconds since 1970. A scrub that seems to have ended in the future says that a
    /// clock was wrong, and nothing more.
    pub fn is_scrub_due(&self, created: i64, now: i64) -> bool {
        let since = self.last_scrub.map_or(created, |s| s.ended);
        let age = now.saturating_sub(since);
        self.scrub_days() > 0 && !(-DAY_SECONDS..i64::from(self.scrub_days()) * DAY_SECONDS).contains(&age)
    }

    /// The device of the volume, for display.
    pub fn device(&self) -> String {
        match (&self.space, &self.file) {
            (Some(space), _) => format!("space {space}"),
            (_, Some(file)) => file.display().to_string(),
            _ => String::new(),
        }
    }
}

/// A volume to format and open.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// The volume's name.
    pub name: String,
    /// The space of the volume, which nothing else uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// The pool of the space, needed when several pools have a space of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// An absolute path. The file is made with `size_bytes`; an existing one needs `force`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Makes the file, with this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Formats a device that holds a volume or something else.
    #[serde(default)]
    pub force: bool,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Volume")]
pub struct VolumeInfo {
    /// The volume's name.
    pub name: String,
    /// The device of the volume.
    pub device: String,
    /// Reason why the volume is closed; empty while it is open.
    pub closed_because: String,
    /// Identity of the volume, made when it was formatted.
    pub id: String,
    /// Size of the device.
    pub total_bytes: u64,
    /// Bytes that are neither allocated nor promised.
    pub free_bytes: u64,
    /// Policy for the time of last access.
    pub last_access: AccessPolicy,
    /// Where 8.3 names come from.
    pub short_names: ShortNamePolicy,
    /// Days from one scrub to the next that the daemon makes by itself; 0: none.
    pub scrub_days: u32,
    /// The last scrub that read everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scrub: Option<LastScrub>,
    /// Names of the shares on the volume.
    pub shares: Vec<String>,
}

/// Options of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCheck {
    /// Also reads all data and compares its checksums.
    #[serde(default)]
    pub data: bool,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeCheck {
    /// Errors; empty when there are none.
    pub errors: Vec<String>,
    /// Number of files.
    pub files: u64,
    /// Number of directories.
    pub directories: u64,
    /// Number of named streams.
    pub streams: u64,
    /// Number of extents.
    pub extents: u64,
    /// Bytes in the blocks of files.
    pub data_bytes: u64,
    /// Bytes in blocks that several files share.
    pub shared_bytes: u64,
    /// Bytes of metadata.
    pub tree_bytes: u64,
}

/// Changes of a volume; absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// Grows the volume to the size of its device.
    #[serde(default)]
    pub grow: bool,
    /// With `grow`, on a regular file: the file is made this long first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Policy for the time of last access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_access: Option<AccessPolicy>,
    /// Where 8.3 names come from, for names that are made or changed from now on. A volume that keeps them does not go back to `made`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_names: Option<ShortNamePolicy>,
    /// Days from one scrub to the next that the daemon makes by itself, 3650 at most; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub_days: Option<u32>,
}

/// Where 8.3 names come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShortNamePolicy {
    /// Made of the long names by a hash, and kept nowhere: none can be set.
    #[default]
    Made,
    /// In NTFS' form, kept beside the long names.
    Kept,
    /// No new ones; those that are there stay with their names.
    Off,
}

/// The policy by which reading a file updates its time of last access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AccessPolicy {
    #[default]
    Never,
    /// Updates it when it is older than the last change, or than a day.
    Relative,
    Always,
}

/// Options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeDelete {
    /// Removes the volume's shares too.
    #[serde(default)]
    pub force: bool,
}

/// Options of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRepair {
    /// Reports what would be done without doing it.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeRepair {
    /// Faults that were repaired or, in a dry run, would be.
    pub done: Vec<String>,
    /// Faults that cannot be repaired safely.
    pub left: Vec<String>,
}

/// Options of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewScrub {
    /// Limit of the reading rate; 0: none.
    #[serde(default)]
    pub bytes_per_second: u64,
}

/// The state of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubState {
    Never,
    Running,
    Done,
    Stopped,
    Failed,
}

/// A scrub of a volume: the present one, or the last since the daemon started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeScrub {
    /// State of the present scrub, or of the last.
    pub state: ScrubState,
    /// Bytes read so far.
    pub done_bytes: u64,
    /// Bytes to read in all.
    pub total_bytes: u64,
    /// Number of blocks that were rewritten from another copy.
    pub healed_blocks: u64,
    /// Number of blocks that are lost: no copy has the right content.
    pub damaged_blocks: u64,
    /// The lost parts of files.
    pub damage: Vec<DamageInfo>,
    /// Reason why the scrub failed; empty when it did not.
    pub error: String,
}

/// A part of a file that is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Damage")]
pub struct DamageInfo {
    /// Path of the file; empty: in the metadata.
    pub path: String,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
}

/// The subject of a quota: a user, group or SID; a folder; or, without both, all users without a quota of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaSubject {
    /// A user, group or SID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Path of a folder from the volume's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

/// A quota to set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewQuota {
    /// A user, group or SID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Path of a folder from the volume's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Limit whose excess is logged; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_bytes: Option<u64>,
    /// Limit that is never exceeded; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard_bytes: Option<u64>,
}

/// The kind of a quota's subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaKind {
    Default,
    User,
    Folder,
}

/// A quota with the usage of its subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Quota")]
pub struct QuotaInfo {
    /// The kind of the subject.
    pub kind: QuotaKind,
    /// The user's name, or the folder's path.
    pub name: String,
    /// Bytes that the subject has allocated.
    pub used_bytes: u64,
    /// Limit whose excess is logged; absent: none.
    pub soft_bytes: Option<u64>,
    /// Limit that is never exceeded; absent: none.
    pub hard_bytes: Option<u64>,
}

/// The check of checksums in reads of a file, or of objects that are made in a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IntegrityState {
    /// Not set: reads of damaged data fail.
    #[default]
    Default,
    /// Set, and shown to clients: reads of damaged data fail.
    On,
    /// Set, and shown to clients: reads of damaged data return it as it is.
    Unenforced,
    /// Not shown to clients: reads of damaged data return it as it is.
    Off,
}

/// The file or directory whose integrity is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntegrityQuery {
    /// Path from the volume's root; empty is the root.
    pub path: String,
}

/// A change of the integrity of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewIntegrity {
    /// Path from the volume's root; empty is the root.
    pub path: String,
    /// The new state.
    pub state: IntegrityState,
    /// Also changes everything below a directory, streams included.
    #[serde(default)]
    pub recursive: bool,
}

/// The integrity of a file, directory or stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Integrity")]
pub struct IntegrityInfo {
    /// Path from the volume's root.
    pub path: String,
    /// The present state.
    pub state: IntegrityState,
    /// The algorithm of the checksums, one for each `block_bytes` of data.
    pub checksum: String,
    /// Size of the blocks with a checksum.
    pub block_bytes: u32,
    /// Number of files, directories and streams that a change set; 0 in an answer to a query.
    pub changed: u64,
}

/// Memory of volumes: blocks of their files, nodes of their trees, and changes that wait for a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheInfo {
    /// What it holds, in bytes.
    pub bytes: u64,
    /// As much as it may hold while the machine has memory, in bytes.
    pub bytes_max: u64,
}

/// The volumes of a daemon. Calls may come from any thread and block until the device has answered.
///
/// # Errors
/// All methods: invalid for a value out of range, not found for an unknown name, conflict when the present state
/// forbids the request, failed when the device fails.
pub trait VolumeAdmin: SnapshotAdmin {
    /// The memory of all volumes.
    fn cache(&self) -> CacheInfo;
    /// All known volumes, open and closed.
    fn volumes(&self) -> Result<Vec<VolumeInfo>>;
    /// The volume with this name.
    fn volume(&self, name: &str) -> Result<VolumeInfo>;
    /// Formats a volume and opens it.
    fn create_volume(&self, new: &NewVolume) -> Result<VolumeInfo>;
    /// Checks the structures of a volume.
    fn check_volume(&self, name: &str, check: &NewCheck) -> Result<VolumeCheck>;
    /// Changes the fields that `change` has.
    fn change_volume(&self, name: &str, change: &VolumeChange) -> Result<VolumeInfo>;
    /// Repairs the structures of a volume, or reports what a repair would do.
    fn repair_volume(&self, name: &str, repair: &NewRepair) -> Result<VolumeRepair>;
    /// Starts a scrub, which reads everything. A volume has one scrub at a time.
    fn start_scrub(&self, name: &str, scrub: &NewScrub) -> Result<VolumeScrub>;
    /// The present scrub, or the last one.
    fn scrub(&self, name: &str) -> Result<VolumeScrub>;
    /// Stops the present scrub.
    fn stop_scrub(&self, name: &str) -> Result<()>;
    /// The quotas of a volume, defaults first; empty when usage is not counted.
    fn quotas(&self, name: &str) -> Result<Vec<QuotaInfo>>;
    /// Sets a quota and returns it.
    fn set_quota(&self, name: &str, quota: &NewQuota) -> Result<QuotaInfo>;
    /// Removes a quota.
    fn remove_quota(&self, name: &str, of: &QuotaSubject) -> Result<()>;
    /// The integrity of a file or directory, then that of each of its named streams.
    fn integrity(&self, name: &str, of: &IntegrityQuery) -> Result<Vec<IntegrityInfo>>;
    /// Sets the integrity of a file or directory and returns it.
    fn set_integrity(&self, name: &str, new: &NewIntegrity) -> Result<IntegrityInfo>;
    /// Removes a volume without shares from the state, and overwrites the structures that lead to its content.
    fn delete_volume(&self, name: &str) -> Result<()>;
    /// Closes a volume and removes it from the state. Its device is not changed.
    fn forget_volume(&self, name: &str) -> Result<()>;
    /// Adds a volume that was removed from the state, without formatting it.
    fn attach_volume(&self, record: &VolumeRecord) -> Result<VolumeInfo>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_due_by_the_last_one_or_the_volumes_age() {
        let day = DAY_SECONDS;
        let mut r = VolumeRecord::default();
        assert_eq!((r.is_scrub_due(day, 28 * day), r.is_scrub_due(day, 29 * day)), (false, true));
        r.last_scrub = Some(LastScrub { ended: 20 * day, healed_blocks: 0, damaged_blocks: 0 });
        assert_eq!((r.is_scrub_due(day, 47 * day), r.is_scrub_due(day, 48 * day)), (false, true));
        // The clock was set back, by little and by much.
        assert_eq!((r.is_scrub_due(day, 20 * day - 3600), r.is_scrub_due(day, 10 * day)), (false, true));
        r.scrub_days = Some(2);
        assert!(r.is_scrub_due(day, 22 * day));
        r.scrub_days = Some(0);
        assert!(!r.is_scrub_due(day, 999 * day));
    }
}
