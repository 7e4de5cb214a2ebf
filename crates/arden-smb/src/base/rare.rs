//! Warnings that a client can provoke as often as it likes, written once in a while. Refuses to read a clock.

use std::time::{Duration, Instant};

use arden_lock::{Mutex, ranks};

/// Between two warnings of one kind.
const INTERVAL: Duration = Duration::from_secs(60);

/// One kind of warning.
#[derive(Default)]
pub(crate) struct RareWarning(Mutex<Option<Instant>, ranks::LogLines>);

impl RareWarning {
    /// Calls `write` unless it did so less than a minute ago.
    pub fn warn(&self, now: Instant, write: impl FnOnce()) {
        let mut last = self.0.lock();
        if last.is_none_or(|at| now.saturating_duration_since(at) >= INTERVAL) {
            *last = Some(now);
            drop(last);
            write();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_minute() {
        let (warning, start) = (RareWarning::default(), crate::base::time::Time::read().now);
        let mut written = Vec::new();
        for second in [0, 1, 59, 60, 61, 119, 120] {
            warning.warn(start + Duration::from_secs(second), || written.push(second));
        }
        assert_eq!(written, [0, 60, 120]);
    }
}
