//! Measures block devices, files on SMB shares, NBD exports and models: generates a load, drives it, accounts for time
//! and processor time, keeps and shows the results. Knows servers only from outside, through the protocol and `/proc`.
//! The comparison of servers belongs to `arden-lab`.
//!
//! Folders are layers, lowest first; each imports only those before it:
//!
//! - `base`: errors, sizes and durations, statistics, this machine and its processes
//! - `client`: an SMB 3.1.1 client of low cost
//! - `load`: profiles, targets, and the loop that drives one target
//! - `source`: the source of targets, which owns the test file
//! - `sweep`: loads one after the other by one or several clients
//! - `outcome`: stored results and their comparison
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
