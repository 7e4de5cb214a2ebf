//! What a volume does beside files: quotas, the change journal, snapshots, checking, repair and scrub.

pub mod check;
pub mod check_past;
pub mod even;
pub mod grow;
pub mod quota;
pub mod repair;
pub mod scrub;
pub mod snapshot;
pub mod usn;
pub mod usnwatch;
