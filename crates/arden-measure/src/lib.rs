//! Measures what takes requests: block devices, files on SMB shares, NBD exports, models. Generates the load, drives it,
//! accounts for time and processor time, and keeps and shows the results. Knows servers only from outside, through the
//! protocol and `/proc`; refuses to know which servers are compared and why (that is `arden-lab`).
//!
//! Folders are layers, lowest first; each imports only those before it:
//!
//! - `base`: errors, sizes and durations, statistics, this machine and its processes
//! - `client`: an SMB 3.1.1 client that costs little
//! - `load`: profiles, targets, and the loop that drives one target
//! - `source`: something that targets are opened on; owns the test file
//! - `sweep`: one load after the other by one client or several
//! - `outcome`: results as they are kept, and their comparison
//! - `page`: results as HTML, text and CSV
#![forbid(unsafe_code)]

pub mod base;
pub mod client;
pub mod load;
pub mod outcome;
pub mod page;
pub mod source;
pub mod sweep;

pub use base::error::{Context, Error, Result};
