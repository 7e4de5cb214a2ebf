//! Opening and administering a pool, and the work that goes on in the background.

pub(crate) mod admin;
pub(crate) mod moves;
pub(crate) mod open;
pub(crate) mod parity_check;
pub(crate) mod resync;
pub(crate) mod scrub;
