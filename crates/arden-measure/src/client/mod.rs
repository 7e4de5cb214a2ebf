//! An SMB 3.1.1 client for measuring: a connection (`connection`), its logon with NTLM (`logon`), the bodies of its
//! requests (`requests`), and operations on files (`files`). Knows no server products.

pub mod connection;
mod files;
mod keys;
mod logon;
pub mod requests;

pub use connection::{Call, Client, Protection, Reply, Target, Template, Terms};
