//! Snapshots of volumes in administration: the bodies of the API, the schedules that the state keeps, and the trait through
//! which a daemon answers. Owns when a schedule is due and which snapshots it has too many of; the time is passed in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{AdminError, Result};

/// Labels of snapshots that schedules made begin with it, those that people give must not.
pub const SCHEDULED: char = '@';
const KEEP_MAX: u32 = 500;
const NAME_CHARS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Snapshot")]
pub struct SnapshotInfo {
    /// As clients see it: `@GMT-2026.05.31-12.00.00`.
    pub time: String,
    /// Given when it was made; @ and a schedule's name for those that it made.
    pub label: String,
    /// Data that would become free if it went.
    pub only_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// For people.
    #[serde(default)]
    pub label: String,
}

/// Takes a snapshot in each of its intervals and keeps the newest ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSchedule {
    /// The schedule's name.
    pub name: String,
    /// One snapshot in each interval of this length.
    pub every_seconds: u64,
    /// How many of its snapshots stay.
    pub keep: u32,
}

impl SnapshotSchedule {
    /// Checks the values of a schedule.
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

    /// What its snapshots are labelled with.
    pub fn label(&self) -> String {
        format!("{SCHEDULED}{}", self.name)
    }

    /// Intervals begin at multiples of their length since 1970, so that hourly ones are made on the hour. Whether none was
    /// made in the present one; both times in seconds since then.
    pub fn is_due(&self, last: Option<i64>, now: i64) -> bool {
        let every = i64::try_from(self.every_seconds).unwrap_or(i64::MAX).max(1);
        last.is_none_or(|last| last.div_euclid(every) < now.div_euclid(every))
    }

    /// How many of `made`, the oldest ones, are too many.
    pub fn surplus(&self, made: usize) -> usize {
        made.saturating_sub(self.keep as usize)
    }
}

/// Calls may come from any thread and block until the device has answered.
pub trait SnapshotAdmin: Send + Sync {
    /// Oldest first.
    fn snapshots(&self, volume: &str) -> Result<Vec<SnapshotInfo>>;
    fn create_snapshot(&self, volume: &str, new: &NewSnapshot) -> Result<SnapshotInfo>;
    /// `time`: as [`SnapshotInfo`] has it.
    fn delete_snapshot(&self, volume: &str, time: &str) -> Result<()>;
    fn schedules(&self, volume: &str) -> Result<Vec<SnapshotSchedule>>;
    /// A new one, or another interval and number for one that there is.
    fn set_schedule(&self, volume: &str, schedule: &SnapshotSchedule) -> Result<SnapshotSchedule>;
    /// Its snapshots stay.
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
        assert!(!hourly.is_due(Some(9000), 3000), "a clock that was set back makes none");
        assert_eq!((hourly.surplus(24), hourly.surplus(27)), (0, 3));
        let bad = [("", 1, 1), ("a b", 1, 1), ("a", 0, 1), ("a", 1, 0), ("a", 1, 501)];
        for (name, every_seconds, keep) in bad {
            assert!(SnapshotSchedule { name: name.into(), every_seconds, keep }.check().is_err(), "{name}");
        }
    }
}
