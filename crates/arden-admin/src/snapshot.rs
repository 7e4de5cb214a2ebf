//! Snapshots of volumes in administration: the bodies of the API, the schedules that the state keeps, and the trait
//! [`SnapshotAdmin`], which a daemon implements. Decides when a schedule is due and how many snapshots are surplus; the
//! time is an argument.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{AdminError, Result};

/// First character of the labels of scheduled snapshots. Other labels must not begin with it.
pub const SCHEDULED: char = '@';
const KEEP_MAX: u32 = 500;
/// Seconds. Snapshots of one second get the seconds after it, and a volume has at most so many.
const AHEAD_MAX: i64 = 1024;
const NAME_CHARS_MAX: usize = 32;

/// A snapshot of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Snapshot")]
pub struct SnapshotInfo {
    /// Time of the snapshot in the form of SMB, `@GMT-2026.05.31-12.00.00`, [MS-SMB2] 2.2.32.2.
    pub time: String,
    /// Label; `@` and the name of its schedule for a scheduled snapshot.
    pub label: String,
    /// Bytes that would become free if the snapshot were removed.
    pub only_bytes: u64,
}

/// A snapshot to take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// Label; must not begin with `@`.
    #[serde(default)]
    pub label: String,
}

/// The file whose stream snapshots are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamSnapshotQuery {
    /// From the volume's root.
    pub path: String,
}

/// A snapshot of one stream of a file, which a client made, [MS-FSA] 2.1.5.10.29.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "StreamSnapshot")]
pub struct StreamSnapshotInfo {
    /// From the volume's root, with the name of the stream where it has one.
    pub path: String,
    /// The snapshot's name.
    pub name: String,
    /// When it was made, in the form of SMB as [`SnapshotInfo::time`].
    pub created: String,
    /// Where its data ends.
    pub size_bytes: u64,
    /// What it holds, shared with the stream or not, and counts in quotas.
    pub allocation_bytes: u64,
}

/// A schedule: one snapshot in each interval, of which the newest are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSchedule {
    /// The schedule's name.
    pub name: String,
    /// One snapshot in each interval of this length.
    pub every_seconds: u64,
    /// Number of the schedule's snapshots that are kept.
    pub keep: u32,
}

impl SnapshotSchedule {
    /// Checks the values of the schedule.
    ///
    /// # Errors
    /// Invalid, when one is out of its range.
    pub fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.name.is_empty() || self.name.len() > NAME_CHARS_MAX || !self.name.chars().all(plain) {
            return Err(AdminError::invalid(
                format!("{:?} cannot be the name of a schedule", self.name),
                "use 1 to 32 letters, digits, - and _",
            ));
        }
        if self.every_seconds == 0 || self.keep == 0 || self.keep > KEEP_MAX {
            return Err(AdminError::invalid(
                "a schedule takes a snapshot every second or more seldom, and keeps 1 to 500",
                "for example --every 1h --keep 24",
            ));
        }
        Ok(())
    }

    /// The label of the schedule's snapshots.
    pub fn label(&self) -> String {
        format!("{SCHEDULED}{}", self.name)
    }

    /// Whether no snapshot was made in the present interval. Intervals begin at multiples of their length since 1970:
    /// hourly snapshots are made on the hour. `last`, the time of the one that was made last, may be after `now`: the clock was
    /// set back, and none is due until it has caught up, or at once where that is more than an interval and [`AHEAD_MAX`] away.
    /// Times are in seconds since 1970.
    pub fn is_due(&self, last: Option<i64>, now: i64) -> bool {
        let every = i64::try_from(self.every_seconds).unwrap_or(i64::MAX).max(1);
        last.is_none_or(|last| {
            last.div_euclid(every) < now.div_euclid(every) || last.saturating_sub(now) > every.saturating_add(AHEAD_MAX)
        })
    }

    /// The number of the `made` snapshots, the oldest ones, that exceed the limit.
    pub fn surplus(&self, made: usize) -> usize {
        made.saturating_sub(self.keep as usize)
    }
}

/// The snapshots of a daemon's volumes. Calls may come from any thread and block until the device has answered.
///
/// # Errors
/// All methods: invalid for a value out of range, not found for an unknown name, conflict when the present state
/// forbids the request, failed when the device fails.
pub trait SnapshotAdmin: Send + Sync {
    /// The snapshots of a volume, oldest first.
    fn snapshots(&self, volume: &str) -> Result<Vec<SnapshotInfo>>;
    /// Takes a snapshot.
    fn create_snapshot(&self, volume: &str, new: &NewSnapshot) -> Result<SnapshotInfo>;
    /// Removes the snapshot with this time, written as in [`SnapshotInfo`].
    fn delete_snapshot(&self, volume: &str, time: &str) -> Result<()>;
    /// The stream snapshots of a file or directory, those of each stream together, oldest first.
    fn stream_snapshots(&self, volume: &str, of: &StreamSnapshotQuery) -> Result<Vec<StreamSnapshotInfo>>;
    /// The schedules of a volume.
    fn schedules(&self, volume: &str) -> Result<Vec<SnapshotSchedule>>;
    /// Adds a schedule, or changes the schedule of that name.
    fn set_schedule(&self, volume: &str, schedule: &SnapshotSchedule) -> Result<SnapshotSchedule>;
    /// Removes a schedule. Its snapshots stay.
    fn remove_schedule(&self, volume: &str, name: &str) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_due_once_in_each_interval() {
        let hourly = SnapshotSchedule { name: "hourly".into(), every_seconds: 3600, keep: 24 };
        assert!(hourly.check().is_ok());
        assert!(hourly.is_due(None, 5));
        assert!(!hourly.is_due(Some(3600), 7199));
        assert!(hourly.is_due(Some(7199), 7200), "on the hour, however late the last one was");
        assert!(!hourly.is_due(Some(9000), 5400), "a clock that was set back by an hour makes none");
        assert!(hourly.is_due(Some(4_000_000_000), 3000), "a clock that was years ahead keeps none from being made");
        assert_eq!((hourly.surplus(24), hourly.surplus(27)), (0, 3));
        let bad = [("", 1, 1), ("a b", 1, 1), ("a", 0, 1), ("a", 1, 0), ("a", 1, 501)];
        for (name, every_seconds, keep) in bad {
            assert!(SnapshotSchedule { name: name.into(), every_seconds, keep }.check().is_err(), "{name}");
        }
    }
}
