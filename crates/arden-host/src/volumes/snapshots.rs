//! Snapshots of the daemon's volumes, and the thread that makes and deletes those of schedules. The volumes record when each
//! was made, so a restart forgets none and makes none twice.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime},
};

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    names::key,
    snapshot::{
        NewSnapshot, SCHEDULED, SnapshotAdmin, SnapshotInfo, SnapshotSchedule, StreamSnapshotInfo, StreamSnapshotQuery,
    },
};
use arden_store::name::{gmt_token, parse_gmt_token};
use arden_volume::{Durability, Volume, VolumeStore};
use arden_wire::FileTime;

use super::{
    Volumes,
    integrity::{failed, found, streams},
    refusal,
};

/// How often schedules are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// After a failure, a schedule is left alone this long.
const PATIENCE: Duration = Duration::from_secs(60);

fn now() -> FileTime {
    FileTime::from_system(SystemTime::now())
}

fn info(s: arden_volume::SnapshotInfo) -> SnapshotInfo {
    SnapshotInfo { time: gmt_token(s.time), label: s.label, only_bytes: s.only_bytes }
}

fn stream_info(path: &str, s: arden_store::store::StreamSnapshotInfo) -> StreamSnapshotInfo {
    StreamSnapshotInfo {
        path: path.to_owned(),
        name: s.name,
        created: gmt_token(s.created),
        size_bytes: s.size,
        allocation_bytes: s.allocation,
    }
}

fn bad_label(label: &str) -> AdminError {
    AdminError::invalid(
        format!("{label:?} cannot be a label"),
        format!("use up to 128 bytes that do not begin with {SCHEDULED}, which is for schedules"),
    )
}

impl SnapshotAdmin for Volumes {
    fn snapshots(&self, volume: &str) -> Result<Vec<SnapshotInfo>> {
        let (open, _) = Volumes::volume(self, volume)?;
        Ok(open.snapshots().map_err(|e| refusal(volume, e))?.into_iter().map(info).collect())
    }

    fn stream_snapshots(&self, volume: &str, of: &StreamSnapshotQuery) -> Result<Vec<StreamSnapshotInfo>> {
        let (open, _) = Volumes::volume(self, volume)?;
        let node = found(&*VolumeStore::new(open, Durability::Plain), &of.path)?;
        let path = of.path.trim_matches('/');
        // A directory has no data of its own.
        let own = (!node.is_directory()).then(|| (path.to_owned(), node.clone()));
        let mut out = Vec::new();
        for (path, stream) in own.into_iter().chain(streams(&node, path)?) {
            let all = stream.stream_snapshots().map_err(|e| failed(&path, e))?;
            out.extend(all.into_iter().map(|s| stream_info(&path, s)));
        }
        Ok(out)
    }

    fn create_snapshot(&self, volume: &str, new: &NewSnapshot) -> Result<SnapshotInfo> {
        if new.label.starts_with(SCHEDULED) || new.label.len() > arden_volume::SNAPSHOT_LABEL_BYTES_MAX {
            return Err(bad_label(&new.label));
        }
        let (open, _) = Volumes::volume(self, volume)?;
        open.create_snapshot(now(), &new.label).map(info).map_err(|e| refusal(volume, e))
    }

    fn delete_snapshot(&self, volume: &str, time: &str) -> Result<()> {
        let (open, _) = Volumes::volume(self, volume)?;
        let gone = match parse_gmt_token(time) {
            Some(at) => open.delete_snapshot(at).map_err(|e| refusal(volume, e))?,
            None => false,
        };
        let hint = format!("`arden snapshot list {volume}` shows what there is");
        if gone {
            Ok(())
        } else {
            Err(AdminError::new(ErrorKind::NotFound, format!("there is no snapshot {time:?}"), hint))
        }
    }

    fn schedules(&self, volume: &str) -> Result<Vec<SnapshotSchedule>> {
        Ok(self.record(volume)?.schedules)
    }

    fn set_schedule(&self, volume: &str, schedule: &SnapshotSchedule) -> Result<SnapshotSchedule> {
        schedule.check()?;
        self.record(volume)?;
        self.state.change(|s| {
            if let Some(record) = s.volumes.get_mut(&key(volume)) {
                record.schedules.retain(|o| o.name != schedule.name);
                record.schedules.push(schedule.clone());
            }
            Ok(())
        })?;
        Ok(schedule.clone())
    }

    fn remove_schedule(&self, volume: &str, name: &str) -> Result<()> {
        if !self.record(volume)?.schedules.iter().any(|o| o.name == name) {
            let hint = format!("`arden snapshot schedule {volume}` shows what there is");
            return Err(AdminError::new(ErrorKind::NotFound, format!("there is no schedule {name:?}"), hint));
        }
        self.state.change(|s| {
            if let Some(record) = s.volumes.get_mut(&key(volume)) {
                record.schedules.retain(|o| o.name != name);
            }
            Ok(())
        })
    }
}

/// One look at one schedule: makes a snapshot when it is due, and deletes those that are too many.
fn look(volume: &Volume, schedule: &SnapshotSchedule, now: FileTime) -> arden_volume::VolResult<()> {
    let label = schedule.label();
    let of_it = || -> arden_volume::VolResult<Vec<FileTime>> {
        Ok(volume.snapshots()?.into_iter().filter(|s| s.label == label).map(|s| s.time).collect())
    };
    let made = of_it()?;
    if !schedule.is_due(made.last().map(|t| t.to_unix().0), now.to_unix().0) {
        return Ok(());
    }
    let new = volume.create_snapshot(now, &label)?;
    tracing::info!(schedule = schedule.name, snapshot = gmt_token(new.time), "snapshot made");
    let made = of_it()?;
    for time in &made[..schedule.surplus(made.len())] {
        volume.delete_snapshot(*time)?;
        tracing::info!(schedule = schedule.name, snapshot = gmt_token(*time), "snapshot deleted");
    }
    Ok(())
}

/// Runs until the volumes go away or are stopped.
pub(super) fn start(volumes: &Arc<Volumes>) {
    let weak: Weak<Volumes> = Arc::downgrade(volumes);
    let mut failed: HashMap<(String, String), Instant> = HashMap::new();
    let run = move || loop {
        std::thread::sleep(LOOK);
        let Some(volumes) = weak.upgrade() else { return };
        if volumes.is_stopped() {
            return;
        }
        for record in volumes.state.snapshot().volumes.values() {
            for schedule in &record.schedules {
                let what = (record.name.clone(), schedule.name.clone());
                if failed.get(&what).is_some_and(|at| at.elapsed() < PATIENCE) {
                    continue;
                }
                let done = Volumes::volume(&volumes, &record.name)
                    .and_then(|(open, _)| look(&open, schedule, now()).map_err(|e| refusal(&record.name, e)));
                match done {
                    Ok(()) => drop(failed.remove(&what)),
                    Err(e) => {
                        tracing::warn!(volume = record.name, schedule = schedule.name, "no snapshot: {}", e.error);
                        failed.insert(what, Instant::now());
                    }
                }
            }
        }
    };
    if let Err(e) = std::thread::Builder::new().name("arden-snapshots".into()).spawn(run) {
        tracing::error!("no snapshots will be made by schedules: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arden_volume::{MemDevice, VolumeOptions};

    #[test]
    fn a_schedule_keeps_its_newest_ones_and_leaves_others_alone() {
        let device = MemDevice::new(16 << 20);
        Volume::format(&device, "test", 7, FileTime(1)).unwrap();
        let options = VolumeOptions { background: false, ..VolumeOptions::default() };
        let volume = Volume::open(Arc::new(device), options).unwrap();
        let hourly = SnapshotSchedule { name: "hourly".into(), every_seconds: 3600, keep: 3 };
        volume.create_snapshot(FileTime::from_unix(1000, 0), "mine").unwrap();
        for minute in 60..60 * 7 {
            look(&volume, &hourly, FileTime::from_unix(minute * 60, 0)).unwrap();
        }
        let all: Vec<(i64, String)> =
            volume.snapshots().unwrap().into_iter().map(|s| (s.time.to_unix().0, s.label)).collect();
        let hour = |h: i64| (h * 3600, "@hourly".to_string());
        assert_eq!(all, [(1000, "mine".to_string()), hour(4), hour(5), hour(6)]);
    }

    /// A clock that was years ahead for a moment makes one snapshot of then. Those after it have their own times again, and come in time.
    #[test]
    fn a_clock_that_was_wrong_once_stops_no_schedule() {
        let device = MemDevice::new(16 << 20);
        Volume::format(&device, "test", 7, FileTime(1)).unwrap();
        let options = VolumeOptions { background: false, ..VolumeOptions::default() };
        let volume = Volume::open(Arc::new(device), options).unwrap();
        let hourly = SnapshotSchedule { name: "hourly".into(), every_seconds: 3600, keep: 4 };
        let at = |second: i64| look(&volume, &hourly, FileTime::from_unix(second, 0)).unwrap();
        let times = || -> Vec<i64> { volume.snapshots().unwrap().into_iter().map(|s| s.time.to_unix().0).collect() };
        let ahead = 3600 * 24 * 3650;
        (10..13).for_each(|hour| at(hour * 3600));
        at(ahead);
        (0..3).for_each(|second| at(12 * 3600 + 100 + second));
        assert_eq!(times(), [11 * 3600, 12 * 3600, ahead, 12 * 3600 + 100]);
        (13..16).for_each(|hour| at(hour * 3600));
        assert_eq!(times(), [12 * 3600 + 100, 13 * 3600, 14 * 3600, 15 * 3600]);
    }
}
