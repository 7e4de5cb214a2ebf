//! Reads of a change journal that wait for records (BytesToWaitFor and Timeout of the public READ_USN_JOURNAL_DATA): what
//! they wait for, and what ends that: the journal's growing, a tick, the end of their handle. A CANCEL and the end of
//! the connection take the request back as any other, and with it what is here.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use arden_lock::{Mutex, ranks};
use arden_store::{error::StoreError, fs::WaitId, store::WatchGuard, usn::ChangeJournal};

use crate::{
    model::SmbOpen,
    trees::{Trees, deferred::Deferred},
};

/// Where the journal has to end, or how late it has to be.
#[derive(Clone, Copy)]
pub struct Until {
    /// Up to here there was nothing to return.
    from: u64,
    usn: u64,
    deadline: Option<Instant>,
}

impl Until {
    /// `timeout_s` 0: for as long as it takes.
    pub fn new(end: u64, bytes: u64, now: Instant, timeout_s: u64) -> Until {
        let deadline = if timeout_s == 0 { None } else { now.checked_add(Duration::from_secs(timeout_s)) };
        Until { from: end, usn: end.saturating_add(bytes), deadline }
    }
}

/// By wait: the open that asked, and when to look again.
#[derive(Default)]
pub(crate) struct UsnWaits(Mutex<HashMap<WaitId, (u64, Option<Instant>)>, ranks::UsnWaits>);

/// A read that waits; goes with its request.
pub struct UsnWait {
    trees: Arc<Trees>,
    wait: WaitId,
    until: Until,
    _watch: WatchGuard,
}

impl UsnWait {
    pub fn is_over(&self, now: Instant, end: u64) -> bool {
        end >= self.until.usn || self.until.deadline.is_some_and(|at| at <= now)
    }
    pub fn from(&self) -> u64 {
        self.until.from
    }
    pub fn again(&self) -> Until {
        self.until
    }
}

impl Drop for UsnWait {
    fn drop(&mut self) {
        self.trees.usn_waits.0.lock().remove(&self.wait);
    }
}

/// Waits for the journal on behalf of `open`, with a wait of its own.
///
/// # Errors
/// What the journal says.
pub fn wait(
    trees: &Arc<Trees>,
    open: &SmbOpen,
    journal: &dyn ChangeJournal,
    until: Until,
) -> Result<(WaitId, UsnWait), StoreError> {
    let wait = trees.new_wait();
    trees.usn_waits.0.lock().insert(wait, (open.id.persistent, until.deadline));
    let told = Arc::downgrade(trees);
    // The journal tells of its growth with locks of the volume held.
    let wake = move || {
        if let Some(trees) = told.upgrade() {
            trees.defer(Deferred::Resume(wait));
        }
    };
    match journal.watch(until.usn, Box::new(wake)) {
        Ok(watch) => Ok((wait, UsnWait { trees: trees.clone(), wait, until, _watch: watch })),
        Err(e) => {
            trees.usn_waits.0.lock().remove(&wait);
            trees.forget_wait(wait);
            Err(e)
        }
    }
}

impl Trees {
    /// The handle is gone: who waits with it goes on, to hear that.
    pub(crate) fn end_usn_waits(&self, open: &SmbOpen) {
        self.resume_usn_waits(|id, _| id == open.id.persistent);
    }

    /// Those whose time is over look again; when the next one's is.
    pub(crate) fn tick_usn_waits(&self, now: Instant) -> Option<Instant> {
        self.resume_usn_waits(|_, at| at.is_some_and(|at| at <= now));
        self.usn_waits.0.lock().values().filter_map(|(_, at)| *at).filter(|at| *at > now).min()
    }

    fn resume_usn_waits(&self, over: impl Fn(u64, Option<Instant>) -> bool) {
        let waits: Vec<WaitId> =
            self.usn_waits.0.lock().iter().filter(|(_, (id, at))| over(*id, *at)).map(|(wait, _)| *wait).collect();
        waits.into_iter().for_each(|wait| self.resume(wait));
    }
}
