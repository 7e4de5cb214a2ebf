//! Who acts: the security context that an authenticated session carries, [MS-DTYP] 2.5.2.

use arden_wire::dtyp::{Sid, well_known};

/// SeBackupPrivilege and its like, as bits.
pub mod privilege {
    pub const BACKUP: u32 = 1;
    pub const RESTORE: u32 = 2;
    pub const SECURITY: u32 = 4;
    pub const TAKE_OWNERSHIP: u32 = 8;
    pub const MANAGE_VOLUME: u32 = 16;
    /// What members of Administrators hold.
    pub const ADMINISTRATOR: u32 = BACKUP | RESTORE | SECURITY | TAKE_OWNERSHIP | MANAGE_VOLUME;
}

/// A user with groups and privileges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub user: Sid,
    pub user_name: String,
    /// All groups, Everyone, Authenticated Users and the rest included.
    pub groups: Vec<Sid>,
    pub privileges: u32,
}

impl Token {
    /// The machine itself: SYSTEM, an administrator with all privileges.
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

    /// A session without a user: ANONYMOUS and NETWORK, and nothing else.
    pub fn anonymous() -> Token {
        Token {
            user: well_known::ANONYMOUS.clone(),
            user_name: String::new(),
            groups: vec![well_known::NETWORK.clone()],
            privileges: 0,
        }
    }

    /// Whether the user or one of the groups is `sid`.
    pub fn has_sid(&self, sid: &Sid) -> bool {
        self.user == *sid || self.groups.contains(sid)
    }

    pub fn has_privilege(&self, privilege: u32) -> bool {
        self.privileges & privilege == privilege
    }

    pub fn is_administrator(&self) -> bool {
        self.user == *well_known::SYSTEM || self.groups.contains(&well_known::BUILTIN_ADMINISTRATORS)
    }

    pub fn is_anonymous(&self) -> bool {
        self.user == *well_known::ANONYMOUS
    }

    /// The group that new objects belong to: the first account group, or the user where there is none.
    pub fn primary_group(&self) -> &Sid {
        let account = |sid: &&Sid| sid.authority == 5 && sid.sub.first() == Some(&21);
        self.groups.iter().find(account).unwrap_or(&self.user)
    }

    /// Whether objects may be given to `sid` without SeRestorePrivilege: oneself, or Administrators for its members.
    pub fn may_own(&self, sid: &Sid) -> bool {
        self.user == *sid || *sid == *well_known::BUILTIN_ADMINISTRATORS && self.is_administrator()
    }
}
