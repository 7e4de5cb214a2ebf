//! Files in NT terms, for any protocol: the `FileStore` trait, the `dir` store over a Linux
//! directory, and the open table (share modes, byte-range locks, oplocks and leases,
//! delete-on-close, change notification). Knows no protocol.
#![deny(unsafe_code)]

mod changed_by;
pub mod commit;
pub mod dir;
pub mod error;
pub mod fs;
pub mod group;
pub mod handles;
pub mod name;
pub mod open_stream;
pub mod quota;
pub mod root;
pub mod scope;
pub mod store;
pub mod table;
pub mod usn;
