//! Threads and the clock for code that a simulator may order. Those of the standard library, but on a thread of a simulator's.

use std::{
    io,
    time::{Duration, Instant},
};

/// Starts a thread that nobody joins.
///
/// # Errors
/// The system has no thread left.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(scheduler) = crate::turns::current() {
        scheduler.spawn(name, Box::new(body));
        return Ok(());
    }
    std::thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

/// The monotonic clock.
pub fn now() -> Instant {
    #[cfg(feature = "simulated")]
    if let Some(scheduler) = crate::turns::current() {
        static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        return *BEGAN.get_or_init(Instant::now) + scheduler.now();
    }
    Instant::now()
}

pub fn sleep(time: Duration) {
    #[cfg(feature = "simulated")]
    if let Some(scheduler) = crate::turns::current() {
        return scheduler.sleep(time);
    }
    std::thread::sleep(time);
}
