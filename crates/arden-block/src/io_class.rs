//! Two I/O classes of a disk: small durable writes, and large writes that need not be durable.
//!
//! A small durable write that is queued behind megabytes waits for all of them. The kernel's deadline scheduler continues
//! where the last write ended, so the small write may wait for later large writes as well. Therefore the large class is
//! limited while small durable writes are slow beside it: large writes are cut into pieces, and two are in flight at a time.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::sync::{Mutex, MutexGuard};

/// The pieces of a large write while the large class is limited. A write of at most this size is small.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// Large writes in flight while their class is limited.
const LARGE_IN_FLIGHT_MAX: usize = 2;
/// A durable write, or a flush, that takes longer beside large writes is slow.
const SLOW: Duration = Duration::from_micros(400);
/// The limit ends this long after the last durable write.
const HOLD: Duration = Duration::from_millis(10);
/// The limit ends at the latest after this time, to measure whether it is still needed.
const LIMITED_MAX: Duration = Duration::from_millis(500);

/// The large class of one disk.
#[derive(Default)]
pub(crate) struct IoClass {
    /// Large writes in flight.
    large: Cell<usize>,
    /// When the limit began, and when it ends.
    limited: Cell<Option<(Instant, Instant)>>,
    turns: [Mutex; LARGE_IN_FLIGHT_MAX],
    /// Index of the turn that the next large write waits for.
    next: Cell<usize>,
}

/// Counts a large write for as long as it lives.
pub(crate) struct Large<'a>(&'a IoClass);

impl Drop for Large<'_> {
    fn drop(&mut self) {
        self.0.large.set(self.0.large.get() - 1);
    }
}

impl IoClass {
    pub(crate) fn enter_large(&self) -> Large<'_> {
        self.large.set(self.large.get() + 1);
        Large(self)
    }

    /// Whether large writes are in flight.
    pub(crate) fn is_used(&self) -> bool {
        self.large.get() > 0
    }

    /// Whether large writes are limited now.
    pub(crate) fn limits_large(&self, now: Instant) -> bool {
        self.limited.get().is_some_and(|(_, until)| now < until)
    }

    /// Records a small durable write that began at `began` and is durable `now`; `beside`: large writes were in flight.
    pub(crate) fn durable_took(&self, began: Instant, beside: bool, now: Instant) {
        let since = self.limited.get().map(|(since, _)| since).filter(|_| self.limits_large(now));
        let limited = match since {
            Some(since) => now < since + LIMITED_MAX,
            None => beside && now - began > SLOW,
        };
        if limited {
            self.limited.set(Some((since.unwrap_or(now), now + HOLD)));
        }
    }

    /// Waits for the large writes before this one while the class is limited. None: it is not limited.
    pub(crate) async fn turn(&self) -> Option<MutexGuard<'_>> {
        if !self.limits_large(Instant::now()) {
            return None;
        }
        let next = self.next.get();
        self.next.set((next + 1) % LARGE_IN_FLIGHT_MAX);
        let turn = self.turns[next].lock().await;
        // The limit may have ended meanwhile.
        self.limits_large(Instant::now()).then_some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn it_limits_large_while_durable_writes_are_slow_beside_large_ones() {
        let (class, start) = (IoClass::default(), Instant::now() + ms(100));
        class.durable_took(start - ms(5), false, start);
        assert!(!class.limits_large(start), "a slow disk is no reason");
        class.durable_took(start - Duration::from_micros(100), true, start);
        assert!(!class.limits_large(start), "nobody waits long");
        class.durable_took(start - ms(5), true, start);
        assert!(class.limits_large(start) && class.limits_large(start + ms(9)) && !class.limits_large(start + ms(10)));
        // Durable writes that are quick because of the limit keep it.
        let last = (1..120).fold(start, |_, i| {
            let now = start + ms(i * 5);
            class.durable_took(now - Duration::from_micros(100), true, now);
            now
        });
        assert!(last > start + LIMITED_MAX && !class.limits_large(last), "until it is tried again");
        class.durable_took(last - ms(1), true, last);
        assert!(class.limits_large(last));
    }
}
