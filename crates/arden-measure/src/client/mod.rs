//! An SMB 3.1.1 client for measuring: a connection (`connection`) that is logged on by NTLM (`logon`), the bodies of its
//! requests (`requests`), and what one usually asks of files (`files`). Knows no servers by name.

pub mod connection;
mod files;
mod keys;
mod logon;
pub mod requests;

pub use connection::{Call, Client, Protection, Reply, Target, Template, Terms};
