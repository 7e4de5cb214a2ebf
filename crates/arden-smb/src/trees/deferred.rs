//! Work that table events leave to do: they come with locks held or on threads that must not block.

use std::sync::Arc;

use arden_lock::{Mutex, RwLock, ranks};
use arden_store::{commit::CommitScope, fs::WaitId};

use crate::{model::SmbOpen, trees::Trees};

/// Work that a table event asks for and that may block. What it changes is a part of the scope of whoever caused the event.
pub(crate) enum Deferred {
    Close(CommitScope, Arc<SmbOpen>),
    /// Nobody can answer the break of what an absent open caches: it caches nothing any more.
    EndCache(CommitScope, Arc<SmbOpen>),
    /// The client came back to an open whose break it may not know of.
    TellBreak(Arc<SmbOpen>),
    /// What this wait was for may have come.
    Resume(WaitId),
    /// Of the sessions' side.
    Other(Box<dyn FnOnce() + Send>),
}

/// What is left to do, and whom to tell.
pub(crate) struct DeferredWork {
    work: Mutex<Vec<Deferred>, ranks::DeferredWork>,
    wake: RwLock<Box<dyn Fn() + Send + Sync>, ranks::DeferredWake>,
}

impl Default for DeferredWork {
    fn default() -> DeferredWork {
        DeferredWork { work: Mutex::default(), wake: RwLock::new(Box::new(|| {})) }
    }
}

impl Trees {
    /// Whom to call when deferred work turns up.
    pub fn on_deferred(&self, wake: Box<dyn Fn() + Send + Sync>) {
        *self.deferred.wake.write() = wake;
    }

    pub(crate) fn defer(&self, work: Deferred) {
        self.deferred.work.lock().push(work);
        (self.deferred.wake.read())();
    }

    /// Drops it where it may block.
    pub(crate) fn defer_drop(&self, what: impl Send + 'static) {
        self.defer(Deferred::Other(Box::new(move || drop(what))));
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
                    Deferred::Close(scope, open) => {
                        self.close_open(&scope, &open);
                    }
                    Deferred::EndCache(scope, open) => self.end_cache(&scope, &open),
                    Deferred::TellBreak(open) => {
                        if let Some(file) = open.file() {
                            file.fs().tell_break_again(file, CommitScope::begin().at(self.time().now));
                        }
                    }
                    Deferred::Resume(wait) => self.resume(wait),
                    Deferred::Other(work) => work(),
                }
            }
        }
    }

    /// After the answer to a reconnect is on its way.
    pub(crate) fn tell_break_later(&self, open: &Arc<SmbOpen>) {
        self.defer(Deferred::TellBreak(open.clone()));
    }
}
