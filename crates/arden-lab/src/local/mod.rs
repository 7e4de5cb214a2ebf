//! Resources of this machine: servers that are stopped with their value, directories that are removed with it, signals.

pub mod scratch;
pub mod servers;
pub mod signals;
