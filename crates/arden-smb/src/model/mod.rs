//! The objects of [MS-SMB2] 3.3.1: connection (its shared part, `Peer`), session, channel, tree connect, open; their keys, what
//! a signature proves, and the shapes of work that others do on them.

pub mod crypto;
pub mod frame;
pub mod kept;
mod mac;
mod open;
mod peer;
mod pending;
mod session;
pub mod share;
pub mod signer;
mod tree;
pub mod work;

pub use kept::KeptLocks;
pub use open::{
    Conversation, Durability, Object, OpenState, PipeState, SmbOpen, Work, Working, caches_handle, wire_level,
};
pub use peer::{Channel, Mailbox, Negotiated, Peer, Unsent};
pub use pending::{EarlyCancel, Pending, PendingRequest};
pub use session::{NewSession, Session, SessionState};
pub use tree::Tree;
