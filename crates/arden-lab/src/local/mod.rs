//! This machine: servers that are started on it and end with their value, directories that go again, signals.

pub mod scratch;
pub mod servers;
pub mod signals;
