//! The pool map and its bytes: disks, spaces, groups, where stripes lie, and which slabs are free.

pub(crate) mod alloc;
pub(crate) mod layout;
pub(crate) mod mapcode;
pub(crate) mod pool_map;
pub(crate) mod splits;
pub(crate) mod stripes;
