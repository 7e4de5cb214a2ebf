//! The security context of an authenticated session, [MS-DTYP] 2.5.2.

use arden_wire::dtyp::{Sid, well_known};

/// Privileges as bits: SeBackupPrivilege and others, [MS-LSAD] 3.1.1.2.1.
pub mod privilege {
    pub const BACKUP: u32 = 1;
    pub const RESTORE: u32 = 2;
    pub const SECURITY: u32 = 4;
    pub const TAKE_OWNERSHIP: u32 = 8;
    pub const MANAGE_VOLUME: u32 = 16;
    /// The privileges of members of Administrators.
    pub const ADMINISTRATOR: u32 = BACKUP | RESTORE | SECURITY | TAKE_OWNERSHIP | MANAGE_VOLUME;
}

/// The token of a user, [MS-DTYP] 2.5.2: SIDs of the user and the groups, and privileges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub user: Sid,
    pub user_name: String,
    /// All groups, including Everyone and Authenticated Users.
    pub groups: Vec<Sid>,
    /// Bits of [`privilege`].
    pub privileges: u32,
}

impl Token {
    /// The token of the machine: SYSTEM, with the rights of an administrator and all privileges.
    pub fn system() -> Token {
        Token {
            user: well_known::SYSTEM.clone(),
            user_name: "SYSTEM".to_string(),
            groups: vec![
                well_known::BUILTIN_ADMINISTRATORS.clone(),
                well_known::EVERYONE.clone(),
                well_known::AUTHENTICATED_USERS.clone(),
            ],
            privileges: privilege::ADMINISTRATOR,
        }
    }

    /// The token of a session without a user: ANONYMOUS LOGON in the group NETWORK, without privileges.
    pub fn anonymous() -> Token {
        Token {
            user: well_known::ANONYMOUS.clone(),
            user_name: String::new(),
            groups: vec![well_known::NETWORK.clone()],
            privileges: 0,
        }
    }

    /// Whether `sid` is the user or one of the groups: SidInToken, [MS-DTYP] 2.5.3.1.1.
    pub fn has_sid(&self, sid: &Sid) -> bool {
        self.user == *sid || self.groups.contains(sid)
    }

    /// Whether all of these privileges are held.
    pub fn has_privilege(&self, privilege: u32) -> bool {
        self.privileges & privilege == privilege
    }

    /// Whether the token is that of SYSTEM or of a member of Administrators.
    pub fn is_administrator(&self) -> bool {
        self.user == *well_known::SYSTEM || self.groups.contains(&well_known::BUILTIN_ADMINISTRATORS)
    }

    /// Whether the token is that of an anonymous session.
    pub fn is_anonymous(&self) -> bool {
        self.user == *well_known::ANONYMOUS
    }

    /// The group of new objects: the first group of an account domain, or the user when there is none.
    pub fn primary_group(&self) -> &Sid {
        let account = |sid: &&Sid| sid.authority == 5 && sid.sub.first() == Some(&21);
        self.groups.iter().find(account).unwrap_or(&self.user)
    }

    /// Whether the token may make `sid` the owner of an object without SeRestorePrivilege. A user may assign itself,
    /// and a member of Administrators also Administrators.
    pub fn may_own(&self, sid: &Sid) -> bool {
        self.user == *sid || *sid == *well_known::BUILTIN_ADMINISTRATORS && self.is_administrator()
    }
}
