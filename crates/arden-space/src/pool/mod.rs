//! An open pool: its parts together, who is a member, writing the map, slabs in use.

pub(crate) mod check;
pub(crate) mod commit;
pub(crate) mod map_room;
pub(crate) mod open_pool;
pub(crate) mod slab;
pub(crate) mod slow;
pub(crate) mod status;
