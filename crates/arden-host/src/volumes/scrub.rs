//! Scrubs of volumes: one thread for each that runs, and what the last one found.

use std::{
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
};

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    names::key,
    volume::{DamageInfo, NewScrub, ScrubState, VolumeScrub},
};
use arden_lock::{Mutex, ranks};
use arden_volume::{ScrubReport, ScrubSettings, Volume};

use super::Volumes;

pub(super) struct Scrubbing {
    settings: ScrubSettings,
    found: Mutex<Option<std::result::Result<ScrubReport, String>>, ranks::ScrubReport>,
    thread: Mutex<Option<JoinHandle<()>>, ranks::ScrubThread>,
}

impl Scrubbing {
    fn start(name: &str, volume: Arc<Volume>, bytes_per_second: u64) -> std::io::Result<Arc<Scrubbing>> {
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
        if scrubs.get(&key(name)).is_some_and(|s| s.found.lock().is_none()) {
            return Err(AdminError::new(
                ErrorKind::Conflict,
                format!("volume {name:?} is being scrubbed"),
                format!("`arden volume scrub {name} --stop` ends it"),
            ));
        }
        let started = Scrubbing::start(name, volume, new.bytes_per_second)
            .map_err(|e| AdminError::failed(format!("no thread for the scrub: {e}"), "try again later"))?;
        scrubs.insert(key(name), started.clone());
        Ok(started.info())
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
