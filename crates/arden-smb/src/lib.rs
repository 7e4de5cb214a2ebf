//! The SMB 2/3 server, [MS-SMB2]. In layers, each of which imports only those below it:
//!
//! | folder | holds | refuses |
//! |---|---|---|
//! | `forward` | requests for shares that another node owns, both ends of the connection between the nodes | protocol, sockets |
//! | `transport` | frames in and out over TCP; the only code that may block and that reads the clock | protocol |
//! | `engine` | one connection's state machine: messages, compounds, logons, signing, waits | sockets, clocks |
//! | `server` | the tables of sessions and connections, [MS-SMB2] 3.3.1.5, requests that wait, what clients are told unasked | messages |
//! | `sessions` | connection, session and channel, [MS-SMB2] 3.3.1; keys and signatures | what is done with them |
//! | `handlers` | verified requests: one file for each command, a request in, a response's body or the reason why there is none out | sessions, connections, frames |
//! | `trees` | the tables of shares, tree connects and opens, breaks, what is kept of persistent opens | sessions, messages |
//! | `model` | share, tree connect and open, [MS-SMB2] 3.3.1, and what passes over the seam | what is done with them |
//! | `base` | settings, limits, counters, time | all of the above |
//!
//! Between `sessions` and `handlers` is the seam (`model::seam`): above it is whose request it is, below it what it works on. What
//! passes are values, so that the trees below may be another node's.
//!
//! Refuses disks: files are reached through `arden_store::fs`.
#![forbid(unsafe_code)]

mod base;
mod engine;
pub mod forward;
mod handlers;
pub mod model;
pub mod server;
pub mod sessions;
mod transport;
pub mod trees;

pub use base::{
    config::{self, Interface, Limits, Policy, ServerConfig},
    metrics, time,
    usage::{self, UsageLimits},
};
pub use engine::conn;
pub use handlers::run;
pub use model::{
    seam,
    share::{self, Gate, Gates, Share, ShareAce},
    wire,
};
pub use server::{Server, view::cache_name};
pub use sessions::crypto;
pub use transport::serve_rpc;
