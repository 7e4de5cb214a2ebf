//! Scrubs of volumes: one thread for each that runs, what the last one found, and the thread that begins those that are due.

use std::{
    collections::HashMap,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant, SystemTime},
};

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    names::key,
    volume::{DamageInfo, LastScrub, NewScrub, ScrubState, VolumeRecord, VolumeScrub},
};
use arden_lock::{Condvar, Mutex, ranks};
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
type Found = std::result::Result<ScrubReport, String>;

pub(super) struct Scrubbing {
    settings: ScrubSettings,
    found: Mutex<Option<Found>, ranks::ScrubReport>,
    ended: Condvar,
}

/// Held by the thread of a scrub, which has ended when this goes, also by a panic.
struct Running {
    scrubbing: Arc<Scrubbing>,
    found: Found,
}

impl Drop for Running {
    fn drop(&mut self) {
        let found = std::mem::replace(&mut self.found, Err(String::new()));
        *self.scrubbing.found.lock() = Some(found);
        self.scrubbing.ended.notify_all();
    }
}

impl Scrubbing {
    /// `ended` hears of one that read everything.
    fn start(name: &str, volume: Arc<Volume>, bytes_per_second: u64, ended: Ended) -> std::io::Result<Arc<Scrubbing>> {
        let settings = ScrubSettings { bytes_per_second, ..ScrubSettings::default() };
        let scrubbing = Arc::new(Scrubbing { settings, found: Mutex::default(), ended: Condvar::new() });
        let (me, name) = (scrubbing.clone(), name.to_owned());
        let run = move || {
            let panicked = "a fault of the daemon ended the scrub; its log says more";
            let mut running = Running { scrubbing: me.clone(), found: Err(panicked.into()) };
            // Let go of before anybody hears that the scrub has ended.
            let volume = volume;
            running.found = volume.scrub(&me.settings).map_err(|e| e.to_string());
            match &running.found {
                Ok(r) if r.damaged_blocks > 0 => {
                    tracing::error!(volume = name, blocks = r.damaged_blocks, "scrub: data is lost");
                }
                Ok(r) => tracing::info!(volume = name, bytes = r.read_bytes, healed = r.healed_blocks, "scrub ended"),
                Err(e) => tracing::error!(volume = name, "scrub: {e}"),
            }
            if let Some(report) = running.found.as_ref().ok().filter(|r| !r.stopped) {
                ended(report);
            }
        };
        std::thread::Builder::new().name("arden-scrub".into()).spawn(run)?;
        Ok(scrubbing)
    }

    fn is_running(&self) -> bool {
        self.found.lock().is_none()
    }

    /// Returns when it has ended.
    fn wait(&self) {
        let mut found = self.found.lock();
        while found.is_none() {
            self.ended.wait(&mut found);
        }
    }

    /// Returns when it has ended, whoever else ends it.
    pub(super) fn end(&self) {
        self.settings.stop.store(true, Ordering::Relaxed);
        self.wait();
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
        self.begin_scrub_of(name, volume, new)
    }

    /// Whoever closes a volume takes it out of the table first, and ends its scrub then.
    fn begin_scrub_of(&self, name: &str, volume: Arc<Volume>, new: &NewScrub) -> Result<VolumeScrub> {
        let open = self.open.lock();
        let mut scrubs = self.scrubs.lock();
        if self.is_stopped() {
            return Err(AdminError::failed("the daemon is stopping", "try again when it has started"));
        }
        if !open.get(&key(name)).is_some_and(|o| Arc::ptr_eq(&o.volume, &volume)) {
            return Err(super::leaves(name));
        }
        if scrubs.get(&key(name)).is_some_and(|s| s.is_running()) {
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
        if self.scrubs.lock().values().any(|s| s.is_running()) {
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

    /// Nothing reads from the volume for it any more when this returns. Another may begin, unless the volume is no longer in the table.
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
    use std::{path::PathBuf, sync::atomic::AtomicBool};

    use arden_admin::{
        State,
        volume::{NewVolume, VolumeAdmin, VolumeChange},
    };
    use arden_block::{Device, IoResult};
    use arden_volume::{MemDevice, VolumeOptions};

    use super::*;
    use crate::{Pools, sharing::NothingShared};

    const DAY: i64 = 24 * 3600;

    struct Daemon {
        dir: PathBuf,
        pools: Arc<Pools>,
        volumes: Arc<Volumes>,
    }

    impl Daemon {
        fn new(test: &str, names: &[&str]) -> Daemon {
            let dir = std::env::temp_dir().join(format!("arden-scrub-{test}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let state = Arc::new(State::in_memory().unwrap());
            let pools = Pools::start(&state, Arc::new(NothingShared)).unwrap();
            let volumes = Volumes::new(&state, &pools);
            for name in names {
                let new = NewVolume {
                    name: (*name).into(),
                    file: Some(dir.join(name)),
                    size_bytes: Some(32 << 20),
                    ..NewVolume::default()
                };
                volumes.create_volume(&new).unwrap();
            }
            Daemon { dir, pools, volumes }
        }
    }

    impl Drop for Daemon {
        fn drop(&mut self) {
            self.volumes.stop();
            self.pools.stop();
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn a_scrub_that_is_due_is_made_one_at_a_time_and_remembered() {
        let Daemon { volumes, .. } = &Daemon::new("due", &["one", "two", "never"]);
        let days = |days| VolumeChange { scrub_days: Some(days), ..VolumeChange::default() };
        assert_eq!(volumes.change_volume("never", &days(0)).unwrap().scrub_days, 0);
        assert!(volumes.change_volume("one", &days(9999)).is_err());
        let last = |name: &str| VolumeAdmin::volume(&**volumes, name).unwrap().last_scrub;
        let mut begun = HashMap::new();
        let mut look = |now| {
            volumes.begin_due_scrub(now, &mut begun);
            let scrubs: Vec<_> = volumes.scrubs.lock().values().cloned().collect();
            scrubs.iter().for_each(|s| s.wait());
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
    }

    /// A device whose reads panic, or wait, when a test says so.
    struct Trapped {
        memory: MemDevice,
        panics: AtomicBool,
        holds: AtomicBool,
    }

    impl Device for Trapped {
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
            assert!(!self.panics.load(Ordering::Relaxed), "a fault that a test makes");
            while self.holds.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.memory.read(offset, buf)
        }
        fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
            self.memory.write(offset, data)
        }
        fn flush(&self) -> IoResult<()> {
            self.memory.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
            self.memory.discard(offset, len)
        }
    }

    fn trapped() -> (Arc<Trapped>, Arc<Volume>) {
        let memory = MemDevice::new(16 << 20);
        Volume::format(&memory, "test", 7, FileTime(1)).unwrap();
        let device = Arc::new(Trapped { memory, panics: AtomicBool::new(false), holds: AtomicBool::new(false) });
        let options = VolumeOptions { background: false, ..VolumeOptions::default() };
        let volume = Volume::open(device.clone(), options).unwrap();
        volume.checkpoint().unwrap();
        (device, volume)
    }

    #[test]
    fn a_scrub_that_panics_has_failed_and_others_go_on() {
        let daemon = Daemon::new("panic", &["one"]);
        let (device, volume) = trapped();
        device.panics.store(true, Ordering::Relaxed);
        let scrubbing = Scrubbing::start("other", volume, 0, Box::new(|_| ())).unwrap();
        daemon.volumes.scrubs.lock().insert("other".into(), scrubbing.clone());
        let end = Instant::now() + Duration::from_secs(30);
        while scrubbing.info().state == ScrubState::Running {
            assert!(Instant::now() < end, "nobody learns that it has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(scrubbing.info().state, ScrubState::Failed);
        daemon.volumes.begin_due_scrub(now() + 29 * DAY, &mut HashMap::new());
        assert!(daemon.volumes.scrubs.lock().contains_key("one"), "a scrub that is due does not begin");
        daemon.volumes.end_scrub("one");
    }

    #[test]
    fn whoever_ends_a_scrub_waits_for_its_end() {
        let (device, volume) = trapped();
        device.holds.store(true, Ordering::Relaxed);
        let scrubbing = Scrubbing::start("v", volume.clone(), 0, Box::new(|_| ())).unwrap();
        let enders = [scrubbing.clone(), scrubbing].map(|s| std::thread::spawn(move || s.end()));
        std::thread::sleep(Duration::from_millis(200));
        assert!(enders.iter().all(|e| !e.is_finished()), "it reads still");
        device.holds.store(false, Ordering::Relaxed);
        enders.into_iter().for_each(|e| e.join().unwrap());
        assert_eq!(Arc::strong_count(&volume), 1, "the scrub has let go of the volume");
    }

    #[test]
    fn no_scrub_begins_of_a_volume_that_leaves() {
        let Daemon { volumes, .. } = &Daemon::new("leaves", &["one"]);
        let conflict = |e: AdminError| assert_eq!(e.kind, ErrorKind::Conflict, "{}", e.error);
        let (volume, _) = Volumes::volume(volumes, "one").unwrap();
        {
            let (open, _leaving) = volumes.take_out("one").unwrap();
            volumes.end_scrub("one");
            conflict(volumes.begin_scrub_of("one", volume, &NewScrub { bytes_per_second: 0 }).unwrap_err());
            open.unwrap().volume.close().unwrap();
            // Nor does anybody open it again, or forget it twice.
            conflict(volumes.begin_scrub("one", &NewScrub { bytes_per_second: 0 }).unwrap_err());
            conflict(volumes.forget_volume("one").unwrap_err());
            conflict(volumes.delete_volume("one").unwrap_err());
        }
        volumes.begin_scrub("one", &NewScrub { bytes_per_second: 0 }).unwrap();
        volumes.forget_volume("one").unwrap();
        assert!(volumes.scrubs.lock().is_empty() && volumes.open.lock().is_empty());
    }
}
