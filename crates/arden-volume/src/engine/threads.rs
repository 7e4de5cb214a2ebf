//! What the engine's housekeeping thread sleeps on, and what it is asked for.

use std::time::Duration;

use arden_lock::{Condvar, Mutex, ranks};

#[derive(Default)]
struct Asked {
    stop: bool,
    checkpoint: bool,
    settling: bool,
}

/// What the thread sleeps on.
#[derive(Default)]
pub struct Wakeup {
    asked: Mutex<Asked, ranks::Housekeeping>,
    condition: Condvar,
}

impl Wakeup {
    /// Commits soon.
    pub fn wake(&self) {
        self.condition.notify_all();
    }

    pub fn ask_checkpoint(&self) {
        self.ask(|asked| &mut asked.checkpoint);
    }

    pub fn ask_settling(&self) {
        self.ask(|asked| &mut asked.settling);
    }

    pub fn stop(&self) {
        self.ask(|asked| &mut asked.stop);
    }

    /// Wakes once for everybody who asks before it is heard.
    fn ask(&self, what: impl FnOnce(&mut Asked) -> &mut bool) {
        if !std::mem::replace(what(&mut self.asked.lock()), true) {
            self.wake();
        }
    }

    /// Whether a checkpoint was asked for. None when the thread is to end.
    pub fn wait(&self, at_most: Duration) -> Option<bool> {
        let mut asked = self.asked.lock();
        if !asked.stop && !asked.checkpoint && !asked.settling {
            self.condition.wait_for(&mut asked, at_most);
        }
        asked.settling = false;
        let checkpoint = std::mem::take(&mut asked.checkpoint);
        (!asked.stop).then_some(checkpoint)
    }
}
