//! Commits that nobody waits for in a thread: a thread of the volume's own makes one for all who asked meanwhile, and
//! tells each, unless the device does (`pipeline`). Refuses to know what they do then.

use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use crate::{
    disk::error::{VolError, VolResult},
    engine::volume::Volume,
};

/// Told how the commit went.
pub type Committed = Box<dyn FnOnce(VolResult<()>) + Send>;

#[derive(Default)]
struct Asked {
    /// By the number of the operation that has to be durable.
    list: Vec<(u64, Committed)>,
    stopped: bool,
}

#[derive(Default)]
pub struct Later {
    asked: Mutex<Asked>,
    bell: Condvar,
}

impl Later {
    /// No more is taken; what was asked is still done.
    pub fn stop(&self) {
        self.asked.lock().stopped = true;
        self.bell.notify_all();
    }

    /// The next round's. None when the thread is to end.
    fn wait(&self) -> Option<Vec<(u64, Committed)>> {
        let mut asked = self.asked.lock();
        while asked.list.is_empty() && !asked.stopped {
            self.bell.wait(&mut asked);
        }
        if asked.list.is_empty() { None } else { Some(std::mem::take(&mut asked.list)) }
    }
}

impl Volume {
    /// Whether there is a thread for `commit_later`, or none is needed.
    pub fn commits_later(&self) -> bool {
        self.options.background || self.pipeline.is_some()
    }

    /// Calls `done`, which must not wait for this volume, when operation `seq`, and all before it, are durable: on the
    /// volume's thread or the device's, or here where there is none or it is closed.
    pub fn commit_later(&self, seq: u64, done: Committed) {
        if let Some(pipeline) = &self.pipeline {
            return pipeline.ask(seq, done);
        }
        let mut asked = self.later.asked.lock();
        if asked.stopped || !self.options.background {
            drop(asked);
            return done(self.commit_to(seq));
        }
        asked.list.push((seq, done));
        if asked.list.len() == 1 {
            self.later.bell.notify_one();
        }
    }
}

/// Runs until the volume is closed or gone.
pub fn start(volume: &Arc<Volume>) -> VolResult<()> {
    let (weak, later) = (Arc::downgrade(volume), volume.later.clone());
    let run = move || {
        while let Some(round) = later.wait() {
            let last = round.iter().map(|(seq, _)| *seq).max().unwrap_or(0);
            let result = Weak::upgrade(&weak).map_or(Err(VolError::Failed), |volume| volume.commit_to(last));
            for (_, done) in round {
                done(result);
            }
        }
    };
    let spawned = std::thread::Builder::new().name("arden-commit".into()).spawn(run);
    spawned.map(|_| ()).map_err(|_| VolError::Refused("no thread for the volume"))
}
