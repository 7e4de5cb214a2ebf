//! Reasons for refusing an access or a change of a security descriptor. Each protocol maps them to its own statuses.

use std::fmt;

/// The reason why an access check or a change of a security descriptor fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessError {
    /// The descriptor does not grant the desired access.
    AccessDenied,
    /// The access needs a privilege that the token lacks.
    PrivilegeNotHeld,
    /// The token may not assign this owner, or the descriptor lacks an owner that it needs.
    InvalidOwner,
    /// The descriptor lacks a group.
    NoGroup,
    /// An ACL is too long to be stored: AclSize has 16 bits, [MS-DTYP] 2.4.5.
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
