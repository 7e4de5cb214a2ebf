//! The volume as the store's users see it: the `FileStore`, names, and the table of handles.

pub mod handles;
pub mod list;
pub mod node;
pub mod ns;
pub mod store;
