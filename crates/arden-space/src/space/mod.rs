//! Spaces: reads and writes, mirrors, parity, and putting in its place what was gathered.

pub(crate) mod apply;
pub(crate) mod copies;
pub(crate) mod direct;
pub(crate) mod free;
pub(crate) mod groups;
pub(crate) mod kept_parity;
pub(crate) mod mirror;
pub(crate) mod open_space;
pub(crate) mod parity;
pub(crate) mod patch;
pub(crate) mod rewrite;
pub(crate) mod sync;
