//! How frames of SMB, and of RPC beside it, come and go. TCP so far.

mod buffer;
pub mod jobs;
mod listen;
mod rpc;
mod shell;
mod socket;

pub use rpc::serve_rpc;
