//! The sessions' side of [MS-SMB2] 3.3.1: connection (its shared part, `Peer`), session and channel; their keys, what a signature
//! proves, and the shapes of work that others do on their messages.

pub mod crypto;
pub mod frame;
mod mac;
mod peer;
mod pending;
mod session;
pub mod signer;
mod unacknowledged;
pub mod work;

pub use peer::{Channel, Left, Mailbox, Peer, Unsent, WriteNow, to_be_told};
pub use pending::{EarlyCancel, Pending, PendingRequest};
pub use session::{NewSession, Session, SessionState};
pub use unacknowledged::Unacknowledged;
