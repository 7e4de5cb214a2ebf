//! What tests and simulators of several crates share: a client of the SMB server in memory, the suite of every `FileStore`, the
//! naive model of a volume over crashes, and the suite of every `StateStore`. Each part is a feature. For integration tests
//! only: in a crate's own unit tests its types would be there twice.

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "crash")]
pub mod crash;
#[cfg(feature = "state")]
pub mod state;
#[cfg(feature = "stores")]
pub mod stores;
