//! Verified requests are run here: one file for each command of [MS-SMB2] 3.3.5 that works on a tree connect, and for the larger controls of IOCTL.

pub mod breaks;
pub mod create;
pub mod data;
pub mod directory;
mod durable;
pub mod ioctl;
pub mod locks;
pub mod pipes;
pub mod query;
mod quota;
pub mod request;
pub mod run;
pub mod set;
pub mod tree;
