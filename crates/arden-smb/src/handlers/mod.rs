//! One file for each command of [MS-SMB2] 3.3.5 that works on a tree connect, and for the larger controls of IOCTL.

pub mod breaks;
mod copy;
pub mod create;
pub mod data;
pub mod directory;
mod durable;
pub mod ioctl;
pub mod locks;
mod offload;
pub mod pipes;
pub mod query;
mod quota;
pub mod request;
pub mod set;
pub mod tree;
mod usn;
