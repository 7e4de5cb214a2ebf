//! Scrubs of volumes: one thread for each that runs, what the last one found, and the thread that begins those that are due.

use std::{
    collections::HashMap,
    sync::{Arc, Weak, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    names::key,
    volume::{DamageInfo, LastScrub, NewScrub, ScrubState, VolumeRecord, VolumeScrub},
};
use arden_lock::{Mutex, ranks};
use arden_volume::{ScrubReport, ScrubSettings, Volume};
use arden_wire::FileTime;

use super::Volumes;

/// How often is looked for volumes whose scrub is due.
const LOOK: Duration = Duration::from_secs(10);
/// One that was stopped, or failed, is left alone for so long.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// How fast a scrub that nobody asked for reads: as one that somebody asks for without a rate, or so that it ends within a week.
const BYTES_PER_SECOND_MIN: u64 = 64 << 20;
const WEEK_SECONDS: u64 = 7 * 24 * 3600;

fn now() -> i64 {
    FileTime::from_system(SystemTime::now()).to_unix().0
}

type Ended = Box<dyn FnOnce(&ScrubReport) + Send>;

pub(super) struct Scrubbing {
    settings: ScrubSettings,
    found: Mutex<Option<std::result::Result<ScrubReport, String>>, ranks::ScrubReport>,
    thread: Mutex<Option<JoinHandle<()>>, ranks::ScrubThread>,
}

impl Scrubbing {
    /// `ended` hears of one that read everything.
    fn start(name: &str, volume: Arc<Volume>, bytes_per_second: u64, ended: Ended) -> std::io::Result<Arc<Scrubbing>> {
        let settings = ScrubSettings { bytes_per_second, ..ScrubSettings::default() };
        let scrubbing = Arc::new(Scrubbing { settings, found: Mutex::default(), thread: Mutex::default() });
        let (me, name) = (scrubbing.clone(), name.to_owned());
        let run = move || {
            let found = volume.scrub(&me.settings).map_err(|e| e.to_string());
            match &found {
                Ok(r) if r.damaged_blocks > 0 => {
                    tracing::error!(volume = name, blocks = r.damaged_blocks, "scrub: data is lost");
                }
                Ok(r) => tracing::info!(volume = name, bytes = r.read_bytes, healed = r.healed_blocks, "scrub ended"),
                Err(e) => tracing::error!(volume = name, "scrub: {e}"),
            }
            if let Some(report) = found.as_ref().ok().filter(|r| !r.stopped) {
                ended(report);
            }
            *me.found.lock() = Some(found);
        };
        *scrubbing.thread.lock() = Some(std::thread::Builder::new().name("arden-scrub".into()).spawn(run)?);
        Ok(scrubbing)
    }

    /// Returns when it has ended.
    pub(super) fn end(&self) {
        self.settings.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    fn info(&self) -> VolumeScrub {
        let found = self.found.lock();
        let (state, report, error) = match &*found {
            None => (ScrubState::Running, ScrubReport::default(), String::new()),
            Some(Ok(r)) if r.stopped => (ScrubState::Stopped, r.clone(), String::new()),
            Some(Ok(r)) => (ScrubState::Done, r.clone(), String::new()),
            Some(Err(e)) => (ScrubState::Failed, ScrubReport::default(), e.clone()),
        };
        let damage = |d: arden_volume::Damage| DamageInfo { path: d.path, offset: d.offset, len: d.len };
        VolumeScrub {
            state,
            done_bytes: self.settings.done_bytes.load(Ordering::Relaxed),
            total_bytes: self.settings.total_bytes.load(Ordering::Relaxed),
            healed_blocks: report.healed_blocks,
            damaged_blocks: report.damaged_blocks,
            damage: report.damage.into_iter().map(damage).collect(),
            error,
        }
    }
}

impl Volumes {
    pub(super) fn begin_scrub(&self, name: &str, new: &NewScrub) -> Result<VolumeScrub> {
        let (volume, _) = Volumes::volume(self, name)?;
        let mut scrubs = self.scrubs.lock();
        if self.is_stopped() {
            return Err(AdminError::failed("the daemon is stopping", "try again when it has started"));
        }
        if scrubs.get(&key(name)).is_some_and(|s| s.found.lock().is_none()) {
            return Err(AdminError::new(
                ErrorKind::Conflict,
                format!("volume {name:?} is being scrubbed"),
                format!("`arden volume scrub {name} --stop` ends it"),
            ));
        }
        let started = Scrubbing::start(name, volume, new.bytes_per_second, self.remember_scrub(name))
            .map_err(|e| AdminError::failed(format!("no thread for the scrub: {e}"), "try again later"))?;
        scrubs.insert(key(name), started.clone());
        Ok(started.info())
    }

    fn remember_scrub(&self, name: &str) -> Ended {
        let (state, name) = (self.state.clone(), name.to_owned());
        Box::new(move |r| {
            let last = LastScrub { ended: now(), healed_blocks: r.healed_blocks, damaged_blocks: r.damaged_blocks };
            let done = state.change(|s| {
                if let Some(record) = s.volumes.get_mut(&key(&name)) {
                    record.last_scrub = Some(last);
                }
                Ok(())
            });
            if let Err(e) = done {
                tracing::warn!(volume = name, "the end of the scrub is not remembered: {}", e.error);
            }
        })
    }

    pub(super) fn set_scrub_days(&self, name: &str, days: u32) -> Result<()> {
        self.state.change(|s| {
            if let Some(record) = s.volumes.get_mut(&key(name)) {
                record.scrub_days = Some(days);
            }
            Ok(())
        })
    }

    /// Begins the scrub that has been due for longest, if none is running: each takes time from the disks that others may be on, too.
    fn begin_due_scrub(&self, now: i64, begun: &mut HashMap<String, Instant>) {
        if self.scrubs.lock().values().any(|s| s.found.lock().is_none()) {
            return;
        }
        begun.retain(|_, at| at.elapsed() < PATIENCE);
        let open: Vec<(VolumeRecord, Arc<Volume>)> = {
            let records = self.state.snapshot();
            let open = self.open.lock();
            let is_open = |r: &VolumeRecord| Some((r.clone(), open.get(&key(&r.name))?.volume.clone()));
            records.volumes.values().filter_map(is_open).collect()
        };
        let created = |v: &Volume| v.superblock().created.to_unix().0;
        let due = open.into_iter().filter(|(r, v)| !begun.contains_key(&r.name) && r.is_scrub_due(created(v), now));
        let since = |r: &VolumeRecord, v: &Volume| r.last_scrub.map_or(created(v), |s| s.ended);
        let Some((record, volume)) = due.min_by_key(|(r, v)| since(r, v)) else { return };
        begun.insert(record.name.clone(), Instant::now());
        let (total_bytes, ..) = volume.room();
        let new = NewScrub { bytes_per_second: (total_bytes / WEEK_SECONDS).max(BYTES_PER_SECOND_MIN) };
        match self.begin_scrub(&record.name, &new) {
            Ok(_) => tracing::info!(volume = record.name, "scrub is due"),
            Err(e) => tracing::warn!(volume = record.name, "no scrub: {}", e.error),
        }
    }

    pub(super) fn show_scrub(&self, name: &str) -> Result<VolumeScrub> {
        self.record(name)?;
        let found = self.scrubs.lock().get(&key(name)).map(|s| s.info());
        Ok(found.unwrap_or(VolumeScrub {
            state: ScrubState::Never,
            done_bytes: 0,
            total_bytes: 0,
            healed_blocks: 0,
            damaged_blocks: 0,
            damage: Vec::new(),
            error: String::new(),
        }))
    }

    /// Nothing reads from the volume for it any more when this returns.
    pub(super) fn end_scrub(&self, name: &str) {
        let found = self.scrubs.lock().get(&key(name)).cloned();
        if let Some(scrubbing) = found {
            scrubbing.end();
        }
    }
}

/// Runs until the volumes go away or are stopped.
pub(super) fn start(volumes: &Arc<Volumes>) {
    let weak: Weak<Volumes> = Arc::downgrade(volumes);
    let mut begun = HashMap::new();
    let run = move || loop {
        std::thread::sleep(LOOK);
        let Some(volumes) = weak.upgrade() else { return };
        if volumes.is_stopped() {
            return;
        }
        volumes.begin_due_scrub(now(), &mut begun);
    };
    if let Err(e) = std::thread::Builder::new().name("arden-scrubs".into()).spawn(run) {
        tracing::error!("no volume will be scrubbed by itself: {e}");
    }
}

#[cfg(test)]
mod tests {
    use arden_admin::{
        State,
        volume::{NewVolume, VolumeAdmin, VolumeChange},
    };

    use super::*;
    use crate::{Pools, sharing::NothingShared};

    const DAY: i64 = 24 * 3600;

    #[test]
    fn a_scrub_that_is_due_is_made_one_at_a_time_and_remembered() {
        let dir = std::env::temp_dir().join(format!("arden-scrub-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let state = Arc::new(State::in_memory().unwrap());
        let pools = Pools::start(&state, Arc::new(NothingShared)).unwrap();
        let volumes = Volumes::new(&state, &pools);
        for name in ["one", "two", "never"] {
            let new = NewVolume {
                name: name.into(),
                file: Some(dir.join(name)),
                size_bytes: Some(32 << 20),
                ..NewVolume::default()
            };
            volumes.create_volume(&new).unwrap();
        }
        let days = |days| VolumeChange { scrub_days: Some(days), ..VolumeChange::default() };
        assert_eq!(volumes.change_volume("never", &days(0)).unwrap().scrub_days, 0);
        assert!(volumes.change_volume("one", &days(9999)).is_err());
        let last = |name: &str| VolumeAdmin::volume(&*volumes, name).unwrap().last_scrub;
        let mut begun = HashMap::new();
        let mut look = |now| {
            volumes.begin_due_scrub(now, &mut begun);
            let threads: Vec<_> = volumes.scrubs.lock().values().map(|s| s.thread.lock().take()).collect();
            threads.into_iter().flatten().for_each(|t| t.join().unwrap());
            ["one", "two", "never"].map(|name| last(name).is_some())
        };
        assert_eq!(look(now() + 27 * DAY), [false; 3]);
        assert_eq!(look(now() + 29 * DAY), [true, false, false]);
        assert_eq!(look(now() + 29 * DAY), [true, true, false]);
        let scrubbed = last("two").unwrap();
        assert!((now() - scrubbed.ended).abs() < 60 && scrubbed.damaged_blocks == 0);
        // Not again before a day has passed, whatever the clock says.
        let ended = last("one").unwrap();
        assert_eq!(look(now() + 90 * DAY), [true, true, false]);
        assert_eq!(last("one").unwrap(), ended);
        volumes.stop();
        pools.stop();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
