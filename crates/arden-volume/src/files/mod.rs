//! Files: their data and where it lies, descriptors, attributes, and which files are in use.

pub mod access;
pub mod cache;
pub mod data;
pub mod ea;
pub mod extents;
pub mod open;
pub mod read;
pub mod security;
pub mod settle;
pub mod subject;
