//! What group commit has of locks and of time, by the names that `checked` has of its own.

use std::time::Duration;

pub use std::sync::atomic::AtomicU64;

pub use arden_lock::{Condvar, Mutex, ranks, thread::now};

/// Where a batch takes less, the next one waits for nobody: a pause takes some of the processors' time, too.
pub const PAUSE_AFTER: Duration = Duration::from_micros(60);
