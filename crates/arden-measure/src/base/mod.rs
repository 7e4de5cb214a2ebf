//! The base of all layers: errors, units, statistics, tables, this machine and its processes.

pub mod error;
pub mod machine;
pub mod process;
pub mod stats;
pub mod table;
pub mod units;
