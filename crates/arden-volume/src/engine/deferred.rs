//! Work that layers above leave for a moment at which the state is not locked: [`Deferred`]. Owns when each kind is done; what it is,
//! they know.

use std::sync::{
    OnceLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use crate::disk::error::VolResult;

/// Called with no lock held but the checkpoint's (`Checkpoints::unfinished`); may begin transactions, and must neither ask for
/// room nor make a checkpoint.
pub trait Deferred: Send + Sync {
    /// Takes away what has no user any more. False: something is left that needs a checkpoint first.
    fn reclaim(&self) -> bool {
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

    /// As [`Deferred::reclaim`]. What is left is left for the next call.
    pub fn reclaim(&self) -> bool {
        let mut is_done = true;
        let _ = self.each(|d| {
            is_done &= d.reclaim();
            Ok(())
        });
        is_done
    }

    pub fn before_change(&self) -> VolResult<()> {
        // Most of the time there is nothing, and a load is all that it costs.
        if !self.waiting.load(Ordering::Acquire) || !self.waiting.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.reclaim();
        self.each(|d| d.before_change())
    }

    pub fn before_checkpoint(&self) -> VolResult<()> {
        self.each(|d| d.before_checkpoint())
    }
}
