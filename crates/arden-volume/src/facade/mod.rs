//! The volume as the store's users see it: opening it, the `FileStore`, operations on names, and the table of handles.

pub mod handles;
pub mod list;
pub mod node;
pub mod ns;
pub mod recent;
pub mod shared;
pub mod store;
pub mod tunnel;
pub mod volume;
