//! The volume's own thread: commits what nobody waits for, gives blocks their places, makes checkpoints and gives room back.
//! Owns when; what each of them does is elsewhere.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    disk::error::{VolError, VolResult},
    engine::volume::Volume,
    files::settle::STREAMS_SETTLED_EARLY,
};

#[derive(Default)]
struct Asked {
    stop: bool,
    checkpoint: bool,
    settling: bool,
}

/// What the thread sleeps on.
#[derive(Default)]
pub(crate) struct Bell {
    asked: Mutex<Asked>,
    rung: Condvar,
}

impl Bell {
    /// Commits soon.
    pub(crate) fn ring(&self) {
        self.rung.notify_all();
    }

    pub(crate) fn ask_checkpoint(&self) {
        self.ask(|asked| &mut asked.checkpoint);
    }

    pub(crate) fn ask_settling(&self) {
        self.ask(|asked| &mut asked.settling);
    }

    pub(crate) fn stop(&self) {
        self.ask(|asked| &mut asked.stop);
    }

    /// Rings once for everybody who asks before it is heard.
    fn ask(&self, what: impl FnOnce(&mut Asked) -> &mut bool) {
        if !std::mem::replace(what(&mut self.asked.lock()), true) {
            self.ring();
        }
    }

    /// Whether a checkpoint was asked for. None when the thread is to end.
    fn wait(&self, at_most: Duration) -> Option<bool> {
        let mut asked = self.asked.lock();
        if !asked.stop && !asked.checkpoint && !asked.settling {
            self.rung.wait_for(&mut asked, at_most);
        }
        asked.settling = false;
        let checkpoint = std::mem::take(&mut asked.checkpoint);
        (!asked.stop).then_some(checkpoint)
    }
}

/// Runs until the volume is closed or gone.
pub(crate) fn start(volume: &Arc<Volume>) -> VolResult<()> {
    let (weak, bell) = (Arc::downgrade(volume), volume.bell.clone());
    let (interval, rest) = (volume.options.commit_interval, volume.options.give_back_after);
    let (mut rested, mut synced) = (Instant::now(), Instant::now());
    let run = move || {
        while let Some(checkpoint) = bell.wait(interval) {
            let Some(volume) = weak.upgrade() else { return };
            volume.reap_now();
            let settle = volume.core.read().dirty.len() >= STREAMS_SETTLED_EARLY;
            let mut done = match checkpoint {
                true => volume.checkpoint(),
                false if settle => volume.settle_blocks(),
                false => Ok(()),
            };
            // However often other things are asked for.
            let beat = (!checkpoint && !settle) || synced.elapsed() >= interval;
            if beat && done.is_ok() {
                done = volume.sync();
                synced = Instant::now();
            }
            if beat && !checkpoint {
                if rested.elapsed() >= rest {
                    volume.rest();
                    rested = Instant::now();
                }
                volume.give_back();
            }
            match done {
                Ok(()) => {}
                Err(VolError::Failed) => return,
                Err(e) => tracing::warn!("volume: {e}"),
            }
        }
    };
    let spawned = std::thread::Builder::new().name("arden-volume".into()).spawn(run);
    spawned.map(|_| ()).map_err(|_| VolError::Refused("no thread for the volume"))
}
