//! Work that layers above leave for a moment at which the state is not locked: [`Deferred`]. Owns when each kind is done; what it is,
//! they know.

use std::sync::{
    OnceLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use arden_store::scope::RequestScope;

use crate::disk::error::VolResult;

/// Extents that are taken away before somebody's change where that must not wait.
const EXTENTS_BETWEEN_MAX: usize = 256;

/// Called with no lock held but the checkpoint's (`Checkpoints::unfinished`); may begin transactions, and must neither ask for
/// room nor make a checkpoint.
pub trait Deferred: Send + Sync {
    /// Takes away what has no user any more, up to so many extents. False: something is left, as there were more or a checkpoint is needed
    /// first.
    fn reclaim(&self, _extents_max: usize) -> bool {
        true
    }
    /// Writes what has to come before the next change.
    ///
    /// # Errors
    /// The change does not happen then.
    fn before_change(&self) -> VolResult<()> {
        Ok(())
    }
    /// Gives places on the device to blocks that the next checkpoint would have to write into the tree.
    fn before_checkpoint(&self) -> VolResult<()> {
        Ok(())
    }
}

/// All who leave work, in the order in which they are asked. They hold the engine, so it does not hold them.
#[derive(Default)]
pub struct Deferrals {
    all: OnceLock<Vec<Weak<dyn Deferred>>>,
    /// Somebody left something for `reclaim` or `before_change`.
    waiting: AtomicBool,
}

impl Deferrals {
    /// Once, before the first operation.
    pub fn register(&self, all: Vec<Weak<dyn Deferred>>) {
        let _ = self.all.set(all);
    }

    /// There is something to do before the next change.
    pub fn leave(&self) {
        self.waiting.store(true, Ordering::Release);
    }

    fn each(&self, mut f: impl FnMut(&dyn Deferred) -> VolResult<()>) -> VolResult<()> {
        let all = self.all.get().into_iter().flatten();
        all.filter_map(Weak::upgrade).try_for_each(|d| f(&*d))
    }

    /// Whether there is something to do before the next change.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// As [`Deferred::reclaim`], of everything. What is left is left for the next call.
    pub fn reclaim(&self) -> bool {
        self.reclaim_some(usize::MAX)
    }

    fn reclaim_some(&self, extents_max: usize) -> bool {
        let mut is_done = true;
        let _ = self.each(|d| {
            is_done &= d.reclaim(extents_max);
            Ok(())
        });
        is_done
    }

    /// A thread that serves others takes a part of what was deleted away, whoever deleted it. False: something is left, for the next change
    /// or the volume's thread.
    pub fn before_change(&self) -> VolResult<bool> {
        // Most of the time there is nothing, and a load is all that it costs.
        if !self.waiting.load(Ordering::Acquire) || !self.waiting.swap(false, Ordering::AcqRel) {
            return Ok(true);
        }
        let extents_max = if RequestScope::must_not_wait() { EXTENTS_BETWEEN_MAX } else { usize::MAX };
        let is_done = self.reclaim_some(extents_max);
        self.each(|d| d.before_change())?;
        Ok(is_done)
    }

    pub fn before_checkpoint(&self) -> VolResult<()> {
        self.each(|d| d.before_checkpoint())
    }
}
