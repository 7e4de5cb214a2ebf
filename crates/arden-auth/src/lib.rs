//! Users, NTLMv2 in SPNEGO, tokens and the access check. No sockets and no storage.
#![forbid(unsafe_code)]

mod acceptor;
mod check;
mod crypto;
mod error;
mod inherit;
pub mod initiator;
mod message_security;
mod network;
mod ntlm_server;
mod throttle;
pub mod token;
pub mod users;

#[cfg(test)]
mod tests;

pub use acceptor::{Acceptor, AuthPolicy, Logon, ServerIdentity, Step};
pub use check::{BACKUP_ACCESS, RESTORE_ACCESS, access_check, access_check_backup, backup_rights, maximum_access};
pub use crypto::{NtHash, equal_constant_time};
pub use error::AccessError;
pub use inherit::{
    access_for_change, access_for_query, change_descriptor, creator_descriptor, default_dacl, new_descriptor,
};
pub use message_security::{MessageSecurity, SIGNATURE_BYTES};
pub use network::network;
pub use ntlm_server::token_for;
pub use throttle::{Attempt, Attempter, LogonThrottle, ThrottlePolicy};
pub use token::{Token, privilege};
pub use users::{GroupRecord, MemoryUsers, NameUse, Principal, UserDb, UserRecord};
