//! How frames of SMB, and of RPC beside it, come and go. TCP so far.

mod buffer;
pub mod jobs;
mod rpc;
mod shell;

pub use rpc::serve_rpc;
