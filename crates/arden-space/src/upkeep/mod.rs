//! Opening and administering a pool, and the work that goes on in the background.

pub(crate) mod admin;
pub(crate) mod close;
pub(crate) mod doubted_rows;
pub(crate) mod members;
pub(crate) mod moves;
pub(crate) mod old_images;
pub(crate) mod open;
pub(crate) mod pace;
pub(crate) mod parity_check;
pub(crate) mod reform;
pub(crate) mod resync;
pub(crate) mod scrub;
pub(crate) mod spaces;
pub(crate) mod tasks;
