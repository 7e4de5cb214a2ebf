//! The objects of [MS-SMB2] 3.3.1 on the trees' side of the seam: shares, tree connects and opens, a session's tables of them,
//! and what comes over the seam, as values.

pub mod kept;
mod negotiated;
mod open;
pub mod seam;
mod session_tables;
pub mod share;
mod tree;
pub mod wire;

pub use kept::KeptLocks;
pub use negotiated::Negotiated;
pub use open::{Durability, Object, OpenState, PipeState, SmbOpen, Work, Working, caches_handle, wire_level};
pub use session_tables::SessionTables;
pub use tree::{Tree, TreeConnects};
