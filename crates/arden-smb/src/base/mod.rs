//! Settings, limits, counters and time. Imports no other folder.

pub mod admission;
pub mod alive;
pub mod buffers;
pub mod config;
pub mod directories;
pub mod flat;
pub mod grants;
pub mod log_limit;
pub mod metrics;
pub mod rare;
pub mod shares;
pub mod status;
pub mod threads;
pub mod time;
pub mod usage;
pub mod window;
