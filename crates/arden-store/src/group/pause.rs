//! Whether the next batch waits a little for those who were told of the last one, and when that is over. Owns the rule; refuses to
//! know what a batch is.
//!
//! Clients that wait for each answer before they ask again fall into two halves: while the batch of one half is on its way, the
//! other half asks, so that each change waits for two batches. When a batch is over, its half is told and soon asks again: a next
//! batch that waits for it has the changes of both, and each waits for one batch and a pause. A pause is at most a part of the time
//! that a batch takes. After one in vain, some batches do not wait; twice as many after the next one.

use std::{mem, sync::Arc, time::Duration};

use super::sync::{Mutex, PAUSE_AFTER, ranks};

/// The longest pause, as a part of the time of a batch, and as such.
const PAUSE_PART: u32 = 2;
pub const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Where more than these ask at once, batches are large enough.
const ASKERS_MAX: usize = 64;
/// Of so many batches the mean time is taken.
const MEAN_OF: u32 = 8;
/// After pauses in vain at most 2 to the power of this batches do not wait.
const VAIN_MAX: u32 = 8;

/// How long batches take, and whether pauses were of use.
#[derive(Default)]
pub struct Pace {
    took: Duration,
    in_vain: u32,
    skip: u32,
}

impl Pace {
    /// Where batches take so long.
    #[cfg(test)]
    pub fn of(took: Duration) -> Pace {
        Pace { took, ..Pace::default() }
    }

    /// A batch took this time, `told` learn of it, and `waiting` others wait: how long the next one may wait for all of them.
    pub fn pause_after(&mut self, took: Duration, told: usize, waiting: usize) -> Option<Duration> {
        self.took = (self.took * (MEAN_OF - 1) + took) / MEAN_OF;
        if self.took < PAUSE_AFTER || !(2..=ASKERS_MAX).contains(&(told + waiting)) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        Some((self.took / PAUSE_PART).min(PAUSE_MAX))
    }

    /// As many asked as were waited for.
    pub fn was_of_use(&mut self) {
        self.in_vain = 0;
    }

    /// Not all who were waited for asked.
    pub fn was_in_vain(&mut self) {
        self.in_vain = (self.in_vain + 1).min(VAIN_MAX);
        self.skip = 1 << self.in_vain;
    }
}

/// Who sends the next batch when the time is over.
enum Turn<G> {
    /// Whoever asks next: nobody waits.
    Nobody,
    /// The time's end. What waits is kept by this.
    Time(Arc<G>),
    /// The pause is over.
    Over,
}

type SharedTurn<G> = Arc<Mutex<Turn<G>, ranks::CommitPause>>;

/// A pause between two batches.
pub struct Pause<G> {
    expected: usize,
    turn: SharedTurn<G>,
}

/// Its time, which is over when this is dropped.
pub struct PauseTime<G> {
    turn: SharedTurn<G>,
    then: fn(Arc<G>),
}

impl<G> Pause<G> {
    /// Until `expected` wait, or the time is over: where somebody waits then, it does `then`. `waits` if somebody does already.
    pub fn begin(expected: usize, waits: Option<Arc<G>>, then: fn(Arc<G>)) -> (Pause<G>, PauseTime<G>) {
        let turn = Arc::new(Mutex::new(waits.map_or(Turn::Nobody, Turn::Time)));
        (Pause { expected, turn: turn.clone() }, PauseTime { turn, then })
    }

    /// Whether those who wait, now `waiting`, have to wait on. Else it is over, and the caller sees to what waits.
    pub fn goes_on(&self, waiting: usize, group: &Arc<G>) -> bool {
        let mut turn = self.turn.lock();
        let is_over = matches!(*turn, Turn::Over);
        *turn = if is_over || self.has_all(waiting) { Turn::Over } else { Turn::Time(group.clone()) };
        !matches!(*turn, Turn::Over)
    }

    pub fn has_all(&self, waiting: usize) -> bool {
        waiting >= self.expected
    }

    pub fn is_over(&self) -> bool {
        matches!(*self.turn.lock(), Turn::Over)
    }
}

impl<G> Drop for PauseTime<G> {
    fn drop(&mut self) {
        let turn = mem::replace(&mut *self.turn.lock(), Turn::Over);
        if let Turn::Time(group) = turn {
            (self.then)(group);
        }
    }
}
