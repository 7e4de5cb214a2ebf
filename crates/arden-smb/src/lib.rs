//! The SMB 2/3 server, [MS-SMB2]. In layers, each of which imports only those below it:
//!
//! | folder | holds | refuses |
//! |---|---|---|
//! | `transport` | frames in and out over TCP; the only code that may block and that reads the clock | protocol |
//! | `engine` | one connection's state machine: messages, compounds, logons, signing, waits | sockets, clocks |
//! | `handlers` | one file for each command: a request in, a response's body or the reason why there is none out | connections, frames |
//! | `server` | the global tables of [MS-SMB2] 3.3.1.5, requests that wait, breaks, what is kept of persistent opens | messages |
//! | `model` | the objects of [MS-SMB2] 3.3.1: connection, session, channel, tree connect, open; keys and signatures | what is done with them |
//! | `base` | settings, limits, counters, time | all of the above |
//!
//! Refuses disks: files are reached through `arden_store::fs`.
#![forbid(unsafe_code)]

mod base;
mod engine;
mod handlers;
pub mod model;
pub mod server;
mod transport;

pub use base::{
    config::{self, Interface, Limits, Policy, ServerConfig},
    metrics, time,
    usage::{self, UsageLimits},
};
pub use engine::conn;
pub use model::{
    crypto,
    share::{self, Share, ShareAce},
};
pub use server::{Server, view::cache_name};
