//! The SMB 2/3 server, [MS-SMB2]: a state machine without sockets (`conn`, `chain` and the handlers), and its
//! tokio shell (`shell`). Refuses disks: files are reached through `arden_store::fs`.
#![forbid(unsafe_code)]

mod admission;
mod breaks;
mod chain;
mod commits;
pub mod config;
pub mod conn;
mod copy;
mod create;
pub mod crypto;
mod data;
mod deferred;
mod directory;
mod dispatch;
mod durable;
mod ioctl;
mod jobs;
mod locks;
mod logons;
mod mac;
pub mod metrics;
pub mod model;
mod negotiate;
mod offload;
mod persist;
mod pipes;
mod query;
mod quota;
mod rare;
mod request;
mod revoke;
pub mod server;
mod set;
mod setup;
pub mod share;
mod shell;
mod signer;
pub mod time;
mod tree;
pub mod usage;
mod usn;
mod usnwait;
mod view;
mod waits;
mod window;

pub use config::{Interface, Limits, Policy, ServerConfig};
pub use server::Server;
pub use share::{Share, ShareAce};
pub use usage::UsageLimits;
pub use view::cache_name;
