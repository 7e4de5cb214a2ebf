//! Settings, limits, counters and time. Imports no other folder.

pub mod admission;
pub mod config;
pub mod jobs;
pub mod log_limit;
pub mod metrics;
pub mod rare;
pub mod status;
pub mod time;
pub mod usage;
pub mod window;
