//! Random operations on a volume beside a naive model, and what may be there after a crash.

pub mod history;
pub mod limits;
pub mod model;
pub mod ops;
mod short_names;
mod stream_snapshots;
pub mod together;
pub mod usn;
