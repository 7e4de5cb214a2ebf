//! The locks of group commit, by the names that `checked` has of its own.

pub use std::sync::atomic::AtomicU64;

pub use arden_lock::{Condvar, Mutex, ranks};
