//! The engine's two threads. One commits what nobody waits for, has blocks given their places, makes checkpoints and gives room
//! back. The other commits for those who do not wait in a thread, where the device does not tell them itself (`commit`).
//! Owns when; what each of that does is elsewhere.

use std::sync::{Arc, atomic::Ordering};

use arden_lock::thread;

use crate::{
    disk::error::{LastError, VolError, VolResult},
    engine::{checkpoint::STREAMS_ALLOCATED_EARLY, owner::Engine},
};

/// A volume that is changed all the time makes a checkpoint after so many rests, if nothing else asked for one.
const RESTS_MAX: u32 = 10;

/// The volume as it was at the rest before. Changes that no checkpoint has written take memory and have to be replayed after a crash, and
/// nodes that only the tree on the device still has keep pieces of it, of 256 MiB perhaps, from being given back.
#[derive(Default)]
struct Rests {
    seq: u64,
    generation: u64,
    /// Since the last checkpoint.
    count: u32,
}

impl Rests {
    /// At each rest: whether it is time for a checkpoint. Nothing was changed since the last rest, or for long enough nothing asked for one.
    fn ask_for_checkpoint(&mut self, seq: u64, generation: u64) -> bool {
        let is_quiet = seq == self.seq;
        self.count = if generation == self.generation { self.count + 1 } else { 0 };
        (self.seq, self.generation) = (seq, generation);
        is_quiet || self.count >= RESTS_MAX
    }
}

/// Runs until the volume is closed or gone.
pub fn start_housekeeping(engine: &Arc<Engine>) -> VolResult<()> {
    let (weak, wakeup) = (Arc::downgrade(engine), engine.wakeup.clone());
    let (interval, rest) = (engine.options.commit_interval, engine.options.give_back_after);
    let (mut rested, mut synced) = (thread::now(), thread::now());
    let (mut rests, mut last_error) = (Rests::default(), LastError::default());
    let run = move || {
        while let Some(checkpoint) = wakeup.wait(interval) {
            let Some(engine) = weak.upgrade() else { return };
            let is_reclaimed = engine.deferrals.reclaim();
            let mut checkpoint = checkpoint || !is_reclaimed;
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
                    let seq = engine.state.core.read().seq;
                    let is_due = rests.ask_for_checkpoint(seq, engine.superblock().generation);
                    // One that found no room is ended by those who make some.
                    if is_due && done.is_ok() && !engine.checkpoints.lacks_room.load(Ordering::Relaxed) {
                        done = engine.checkpoint();
                        checkpoint = true;
                    }
                }
                engine.give_back();
            }
            match done {
                // What does less fails less.
                Ok(()) if !checkpoint => {}
                Ok(()) => _ = last_error.is_new(None),
                Err(VolError::Failed) => return,
                Err(e) if last_error.is_new(Some(e)) => tracing::warn!("volume: {e}"),
                Err(_) => {}
            }
        }
    };
    thread::spawn("arden-volume", run).map_err(|_| VolError::Refused("no thread for the volume"))
}

/// Runs until the volume is closed or gone.
pub fn start_commits(engine: &Engine) -> VolResult<()> {
    thread::spawn("arden-commit", engine.committer.serve()).map_err(|_| VolError::Refused("no thread for the volume"))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{MemDevice, Volume, VolumeOptions, testing::Files};

    #[test]
    fn a_checkpoint_is_due_in_quiet_and_once_in_a_while() {
        let mut rests = Rests::default();
        let busy: Vec<bool> = (1..=24).map(|seq| rests.ask_for_checkpoint(seq, 7 + u64::from(seq > 11))).collect();
        let due: Vec<usize> = (1..=24).filter(|i| busy[i - 1]).collect();
        assert_eq!(due, [11, 22, 23, 24], "the tenth after the rest that saw another checkpoint, until there is one");
        assert!(rests.ask_for_checkpoint(24, 9), "quiet");
    }

    /// Changes of an idle volume come to the tree, and nothing more is written then.
    #[test]
    fn an_idle_volume_makes_one_checkpoint() {
        let device = Arc::new(MemDevice::new(16 << 20));
        Volume::format(&*device, "test", 7, arden_wire::FileTime(1)).unwrap();
        let short = Duration::from_millis(20);
        let options = VolumeOptions { commit_interval: short, give_back_after: short, ..VolumeOptions::default() };
        let vol = Volume::open(device, options).unwrap();
        let files = Files::new(&vol);
        files.write("f", b"content");
        let end = std::time::Instant::now() + Duration::from_secs(30);
        while !vol.engine.state.core.read().overlay.is_empty() || vol.superblock().root.is_none() {
            assert!(std::time::Instant::now() < end, "changes wait for a checkpoint that nobody asks for");
            std::thread::sleep(short);
        }
        let made = vol.superblock().generation;
        std::thread::sleep(20 * short);
        assert_eq!(vol.superblock().generation, made);
    }
}
