//! How wide the way to a disk is for large writes. A durable write that finds megabytes queued before it waits for all of
//! them, and the kernel's deadline scheduler, which goes on where the last write ended, may have it wait for those that
//! come later too. So while small durable writes are slow beside large ones, the large ones go in pieces, two at a time.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::sync::{Mutex, MutexGuard};

/// A larger write that need not be durable is cut into pieces of this size where the way is narrow.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// So many large writes are on a narrow way at a time.
const LANES: usize = 2;
/// A durable write, or a flush, that takes longer beside large writes is slow.
const SLOW: Duration = Duration::from_micros(400);
/// The way stays narrow for so long after the last durable write,
const HOLD: Duration = Duration::from_millis(10);
/// and no longer than this before it is tried whether that is still needed.
const NARROW_MAX: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Lane {
    /// Large writes on their way.
    large: Cell<usize>,
    /// When it became narrow, and until when it is.
    narrow: Cell<Option<(Instant, Instant)>>,
    turns: [Mutex; LANES],
    /// Whose turn the next one waits for.
    next: Cell<usize>,
}

/// Counts a large write for as long as it lives.
pub(crate) struct Large<'a>(&'a Lane);

impl Drop for Large<'_> {
    fn drop(&mut self) {
        self.0.large.set(self.0.large.get() - 1);
    }
}

impl Lane {
    pub(crate) fn enter_large(&self) -> Large<'_> {
        self.large.set(self.large.get() + 1);
        Large(self)
    }

    /// Whether large writes are on their way.
    pub(crate) fn is_used(&self) -> bool {
        self.large.get() > 0
    }

    pub(crate) fn is_narrow(&self, now: Instant) -> bool {
        self.narrow.get().is_some_and(|(_, until)| now < until)
    }

    /// Something small that `began` then is durable now, `beside` large writes or not.
    pub(crate) fn durable_took(&self, began: Instant, beside: bool, now: Instant) {
        let since = self.narrow.get().map(|(since, _)| since).filter(|_| self.is_narrow(now));
        let narrow = match since {
            Some(since) => now < since + NARROW_MAX,
            None => beside && now - began > SLOW,
        };
        if narrow {
            self.narrow.set(Some((since.unwrap_or(now), now + HOLD)));
        }
    }

    /// Waits for the large writes before this one, where the way is narrow. None: it is wide.
    pub(crate) async fn turn(&self) -> Option<MutexGuard<'_>> {
        if !self.is_narrow(Instant::now()) {
            return None;
        }
        let next = self.next.get();
        self.next.set((next + 1) % LANES);
        let turn = self.turns[next].lock().await;
        // It may have become wide meanwhile.
        self.is_narrow(Instant::now()).then_some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn it_is_narrow_while_durable_writes_are_slow_beside_large_ones() {
        let (lane, start) = (Lane::default(), Instant::now() + ms(100));
        lane.durable_took(start - ms(5), false, start);
        assert!(!lane.is_narrow(start), "a slow disk is no reason");
        lane.durable_took(start - Duration::from_micros(100), true, start);
        assert!(!lane.is_narrow(start), "nobody waits long");
        lane.durable_took(start - ms(5), true, start);
        assert!(lane.is_narrow(start) && lane.is_narrow(start + ms(9)) && !lane.is_narrow(start + ms(10)));
        // Quick ones, thanks to the narrow way, keep it narrow.
        let last = (1..120).fold(start, |_, i| {
            let now = start + ms(i * 5);
            lane.durable_took(now - Duration::from_micros(100), true, now);
            now
        });
        assert!(last > start + NARROW_MAX && !lane.is_narrow(last), "until it is tried again");
        lane.durable_took(last - ms(1), true, last);
        assert!(lane.is_narrow(last));
    }
}
