//! Why an access check or a change of a security descriptor was refused. Refuses statuses of protocols.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessError {
    /// The descriptor does not grant what was asked for.
    AccessDenied,
    /// Only a privilege that the token lacks gives this.
    PrivilegeNotHeld,
    /// The token may not give an object to this owner, or an owner has to be named.
    InvalidOwner,
    /// A group has to be named.
    NoGroup,
    /// An access list is too long to be stored.
    AclTooLong,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessError::AccessDenied => "access denied",
            AccessError::PrivilegeNotHeld => "the user lacks the privilege for this",
            AccessError::InvalidOwner => "the user may not give the object to this owner",
            AccessError::NoGroup => "the security descriptor names no group",
            AccessError::AclTooLong => "the access list is too long",
        })
    }
}

impl std::error::Error for AccessError {}
