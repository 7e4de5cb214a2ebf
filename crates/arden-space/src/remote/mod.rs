//! A pool for other threads, and spaces for other programs.

pub(crate) mod host;
pub mod nbd;
mod nbd_client;
pub(crate) mod read_here;
pub(crate) mod remote_space;
pub(crate) mod shared_space;
