//! The engine's two threads. One commits what nobody waits for, has blocks given their places, makes checkpoints and gives room
//! back. The other commits for those who do not wait in a thread, where the device does not tell them itself (`commit`).
//! Owns when; what each of that does is elsewhere.

use std::{sync::Arc, time::Duration};

use arden_lock::thread;

use crate::{
    disk::error::{VolError, VolResult},
    engine::{checkpoint::STREAMS_ALLOCATED_EARLY, owner::Engine},
};

/// How often the layers above are asked for what they do from time to time.
const UPKEEP: Duration = Duration::from_secs(2);

/// Runs until the volume is closed or gone.
pub fn start_housekeeping(engine: &Arc<Engine>) -> VolResult<()> {
    let (weak, wakeup) = (Arc::downgrade(engine), engine.wakeup.clone());
    let (interval, rest) = (engine.options.commit_interval, engine.options.give_back_after);
    let (mut rested, mut synced, mut kept) = (thread::now(), thread::now(), thread::now());
    let run = move || {
        while let Some(checkpoint) = wakeup.wait(interval) {
            let Some(engine) = weak.upgrade() else { return };
            let is_reclaimed = engine.deferrals.reclaim();
            let checkpoint = checkpoint || !is_reclaimed;
            let allocate = engine.state.core.read().dirty.len() >= STREAMS_ALLOCATED_EARLY;
            let mut done = match checkpoint {
                true => engine.checkpoint().inspect(|()| {
                    if !is_reclaimed {
                        // There is room for more of it.
                        wakeup.ask_checkpoint();
                    }
                }),
                false if allocate => engine.deferrals.before_checkpoint(),
                false => Ok(()),
            };
            // However often other things are asked for.
            let beat = (!checkpoint && !allocate) || thread::now() - synced >= interval;
            if beat && done.is_ok() {
                done = engine.sync();
                synced = thread::now();
            }
            if beat && !checkpoint {
                if thread::now() - rested >= rest {
                    engine.rest();
                    rested = thread::now();
                }
                engine.give_back();
                if thread::now() - kept >= UPKEEP && done.is_ok() {
                    done = engine.deferrals.upkeep();
                    kept = thread::now();
                }
            }
            match done {
                Ok(()) => {}
                Err(VolError::Failed) => return,
                Err(e) => tracing::warn!("volume: {e}"),
            }
        }
    };
    thread::spawn("arden-volume", run).map_err(|_| VolError::Refused("no thread for the volume"))
}

/// Runs until the volume is closed or gone.
pub fn start_commits(engine: &Engine) -> VolResult<()> {
    thread::spawn("arden-commit", engine.committer.serve()).map_err(|_| VolError::Refused("no thread for the volume"))
}
