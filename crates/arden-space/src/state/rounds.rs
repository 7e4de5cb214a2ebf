//! Group commit: callers who come while a round of work runs share the next one.

use std::cell::Cell;

use arden_block::sync::{Mutex, MutexGuard};

/// Rounds of one kind of work, such as commits of the map. Invariant: nothing is done that nobody asked for.
#[derive(Default)]
pub(crate) struct Rounds {
    lock: Mutex,
    wanted: Cell<u64>,
    done: Cell<u64>,
}

/// The right to run a round; the next one begins when it is dropped.
pub(crate) struct Round<'a> {
    rounds: &'a Rounds,
    _guard: MutexGuard<'a>,
}

impl Rounds {
    /// Waits for a round that begins after this call. `None`: somebody else ran it.
    pub(crate) async fn next(&self) -> Option<Round<'_>> {
        let mine = self.wanted.get() + 1;
        self.wanted.set(mine);
        let guard = self.lock.lock().await;
        (self.done.get() < mine).then_some(Round { rounds: self, _guard: guard })
    }

    pub(crate) fn check(&self, what: &str) -> Result<(), String> {
        let (done, wanted) = (self.done.get(), self.wanted.get());
        if done > wanted { Err(format!("{what}: {done} rounds done, {wanted} asked for")) } else { Ok(()) }
    }
}

impl Round<'_> {
    /// The requests that a round which begins now answers.
    pub(crate) fn asked(&self) -> u64 {
        self.rounds.wanted.get()
    }

    pub(crate) fn done(&self, asked: u64) {
        self.rounds.done.set(asked);
    }
}
