//! One disk: its label, its operations, and giving up on those that never end.

pub(crate) mod label;
pub(crate) mod open_disk;
pub(crate) mod reads;
pub(crate) mod watch;
