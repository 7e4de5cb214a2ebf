//! What the engine's threads sleep on, and what they are asked for.
//!
//! | lock | protects | taken |
//! |---|---|---|
//! | `Wakeup::asked` | what the housekeeping thread is to do | alone |
//! | `Later::asked` | who waits for the commit thread | alone |

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

use crate::engine::commit::Committed;

#[derive(Default)]
struct Asked {
    stop: bool,
    checkpoint: bool,
    settling: bool,
}

/// What the thread sleeps on.
#[derive(Default)]
pub struct Wakeup {
    asked: Mutex<Asked>,
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

#[derive(Default)]
struct Commits {
    /// By the number of the operation that has to be durable.
    list: Vec<(u64, Committed)>,
    stopped: bool,
}

#[derive(Default)]
pub struct Later {
    asked: Mutex<Commits>,
    wakeup: Condvar,
}

impl Later {
    /// No more is taken; what was asked is still done.
    pub fn stop(&self) {
        self.asked.lock().stopped = true;
        self.wakeup.notify_all();
    }

    /// Has the thread commit for `done`; gives it back where there is none any more.
    pub fn ask(&self, seq: u64, done: Committed) -> Result<(), Committed> {
        let mut asked = self.asked.lock();
        if asked.stopped {
            return Err(done);
        }
        asked.list.push((seq, done));
        if asked.list.len() == 1 {
            self.wakeup.notify_one();
        }
        Ok(())
    }

    /// The next round's. None when the thread is to end.
    pub fn wait(&self) -> Option<Vec<(u64, Committed)>> {
        let mut asked = self.asked.lock();
        while asked.list.is_empty() && !asked.stopped {
            self.wakeup.wait(&mut asked);
        }
        if asked.list.is_empty() { None } else { Some(std::mem::take(&mut asked.list)) }
    }
}

/// Both.
#[derive(Default)]
pub struct Threads {
    pub wakeup: Arc<Wakeup>,
    pub later: Arc<Later>,
}

impl Threads {
    pub fn stop(&self) {
        self.wakeup.stop();
        self.later.stop();
    }
}
