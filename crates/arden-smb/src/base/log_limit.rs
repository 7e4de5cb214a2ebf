//! A log line now and then, however often there is a reason for it.

use std::time::Duration;

use arden_lock::{Mutex, ranks};

/// Lets one log line through in a while, and counts the others.
pub(crate) struct LogLimit {
    every: Duration,
    /// When the last line was let through, and how many were left out since.
    state: Mutex<(Option<Duration>, u64), ranks::LogLines>,
}

impl LogLimit {
    pub fn new(every: Duration) -> LogLimit {
        LogLimit { every, state: Mutex::new((None, 0)) }
    }

    /// How many lines were left out before this one, at `now` since any fixed moment; None: this one is left out too.
    pub fn admit(&self, now: Duration) -> Option<u64> {
        let (last, left_out) = &mut *self.state.lock();
        if last.is_some_and(|last| now.saturating_sub(last) < self.every) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(left_out))
    }
}

/// What clients can make the log say as often as they like.
#[derive(Clone, Copy)]
pub(crate) enum Line {
    /// A connection is closed for what its client sent.
    Closed,
    CannotEncrypt,
    WrongSignature,
    WrongCancel,
    ForeignSetup,
    ShareDenied,
    ShareFull,
}

const LINES: usize = Line::ShareFull as usize + 1;
/// Between two lines of one kind.
const EVERY: Duration = Duration::from_secs(1);

/// A limit for each kind of line.
pub(crate) struct LogLimits([LogLimit; LINES]);

impl Default for LogLimits {
    fn default() -> LogLimits {
        LogLimits(std::array::from_fn(|_| LogLimit::new(EVERY)))
    }
}

impl LogLimits {
    /// As [`LogLimit::admit`].
    pub fn admit(&self, line: Line, now: Duration) -> Option<u64> {
        self.0[line as usize].admit(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_while() {
        let limit = LogLimit::new(Duration::from_secs(60));
        let at = |s| limit.admit(Duration::from_secs(s));
        assert_eq!([at(0), at(1), at(59), at(60), at(119), at(130)], [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
