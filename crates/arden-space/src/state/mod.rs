//! The owners of an open pool's state. Each has private fields and says what holds of them; none knows the pool.

pub(crate) mod background;
pub(crate) mod blocks;
pub(crate) mod departures;
pub(crate) mod events;
pub(crate) mod flips;
pub(crate) mod journal;
pub(crate) mod lifecycle;
pub(crate) mod map;
pub(crate) mod overlay;
pub(crate) mod patches;
pub(crate) mod regions;
pub(crate) mod room;
pub(crate) mod rounds;
pub(crate) mod slots;
pub(crate) mod trims;
pub(crate) mod views;
