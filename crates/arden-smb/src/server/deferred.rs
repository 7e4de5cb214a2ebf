//! Work that table events leave to do: they come with locks held or on threads that must not block.

use std::sync::{Arc, OnceLock};

use arden_lock::{Mutex, RwLock, ranks};
use arden_store::commit::CommitScope;

use crate::{
    model::{
        SmbOpen,
        work::{Answers, BlockingWork},
    },
    server::Server,
};

/// Work that a table event asks for and that may block.
pub(crate) enum Deferred {
    Close(Arc<SmbOpen>),
    /// The client came back to an open whose break it may not know of.
    TellBreak(Arc<SmbOpen>),
    /// A request whose connection is gone.
    Run(Box<dyn BlockingWork>),
    /// Answers for a connection that is gone, and all that they hold.
    Undelivered(Box<dyn Answers>),
}

/// What is left to do, and whom to tell.
pub(crate) struct DeferredWork {
    work: Mutex<Vec<Deferred>, ranks::DeferredWork>,
    wake: RwLock<Box<dyn Fn() + Send + Sync>, ranks::DeferredWake>,
    runner: OnceLock<Runner>,
}

/// Has a message run on a thread that may block, in its user's turn.
pub type Runner = Box<dyn Fn(Box<dyn BlockingWork>) + Send + Sync>;

impl Default for DeferredWork {
    fn default() -> DeferredWork {
        DeferredWork { work: Mutex::default(), wake: RwLock::new(Box::new(|| {})), runner: OnceLock::new() }
    }
}

impl Server {
    /// Whom to call when deferred work turns up.
    pub fn on_deferred(&self, wake: Box<dyn Fn() + Send + Sync>) {
        *self.deferred.wake.write() = wake;
    }

    /// Who runs requests whose connection is gone; `run_deferred` itself where nobody is named. The first call counts.
    pub fn on_detached(&self, runner: Runner) {
        let _ = self.deferred.runner.set(runner);
    }

    pub(crate) fn defer(&self, work: Deferred) {
        self.deferred.work.lock().push(work);
        (self.deferred.wake.read())();
    }

    /// Does what table events left to do. May block.
    pub fn run_deferred(&self) {
        loop {
            let work = std::mem::take(&mut *self.deferred.work.lock());
            if work.is_empty() {
                return;
            }
            for item in work {
                match item {
                    Deferred::Close(open) => self.close_open(&CommitScope::begin(), &open),
                    Deferred::TellBreak(open) => {
                        if let Some(file) = open.file() {
                            file.fs().tell_break_again(file, self.time().now);
                        }
                    }
                    Deferred::Undelivered(answers) => drop(answers),
                    // Nobody hears the answer, but what was asked for happens. It may take long, and others' breaks wait here.
                    Deferred::Run(message) => match self.deferred.runner.get() {
                        Some(runner) => runner(message),
                        None => message.run(),
                    },
                }
            }
        }
    }

    /// After the answer to a reconnect is on its way.
    pub(crate) fn tell_break_later(&self, open: &Arc<SmbOpen>) {
        self.defer(Deferred::TellBreak(open.clone()));
    }
}
