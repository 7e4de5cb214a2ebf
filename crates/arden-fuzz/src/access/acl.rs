//! The model's own access control: principals, tokens, ACLs, the access check of [MS-DTYP] 2.5.3.2 as [MS-FSA] uses it
//! bit by bit, and inheritance (2.5.3.4). Written from the specification; shares nothing with the server but encodings.

use arden_wire::dtyp::{self, Sid};

pub const READ_DATA: u32 = 0x1;
pub const WRITE_DATA: u32 = 0x2;
pub const APPEND_DATA: u32 = 0x4;
pub const READ_EA: u32 = 0x8;
pub const WRITE_EA: u32 = 0x10;
pub const EXECUTE: u32 = 0x20;
pub const DELETE_CHILD: u32 = 0x40;
pub const READ_ATTRIBUTES: u32 = 0x80;
pub const WRITE_ATTRIBUTES: u32 = 0x100;
pub const DELETE: u32 = 0x1_0000;
pub const READ_CONTROL: u32 = 0x2_0000;
pub const WRITE_DAC: u32 = 0x4_0000;
pub const WRITE_OWNER: u32 = 0x8_0000;
pub const SYNCHRONIZE: u32 = 0x10_0000;
pub const SYSTEM_SECURITY: u32 = 0x100_0000;
pub const MAXIMUM: u32 = 0x200_0000;
pub const GENERIC_ALL: u32 = 0x1000_0000;
pub const GENERIC_EXECUTE: u32 = 0x2000_0000;
pub const GENERIC_WRITE: u32 = 0x4000_0000;
pub const GENERIC_READ: u32 = 0x8000_0000;
pub const ALL: u32 = 0x1F_01FF;
/// The levels that share permissions have.
pub const LEVEL_READ: u32 = 0x12_00A9;
pub const LEVEL_CHANGE: u32 = 0x13_01BF;

pub const OI: u8 = 1;
pub const CI: u8 = 2;
pub const NP: u8 = 4;
pub const IO: u8 = 8;
pub const ID: u8 = 0x10;

/// The rights that generic bits stand for on files, [MS-SMB2] 2.2.13.1.1.
pub fn specific(mask: u32) -> u32 {
    const MAPPING: [(u32, u32); 4] =
        [(GENERIC_READ, 0x12_0089), (GENERIC_WRITE, 0x12_0116), (GENERIC_EXECUTE, 0x12_00A0), (GENERIC_ALL, ALL)];
    let generic = GENERIC_READ | GENERIC_WRITE | GENERIC_EXECUTE | GENERIC_ALL;
    MAPPING.iter().filter(|(bit, _)| mask & bit != 0).fold(mask & !generic, |mask, (_, means)| mask | means)
}

/// A principal that ACLs name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// The first ordinary user.
    Ann,
    /// The second ordinary user.
    Bob,
    /// An administrator.
    Root,
    Everyone,
    Authenticated,
    Users,
    Admins,
    System,
    CreatorOwner,
    CreatorGroup,
    OwnerRights,
    /// An account that does not log on here.
    Stranger,
    /// The group of all accounts of the machine.
    Primary,
    /// A SID that the model never wrote.
    Unknown,
}

pub const PRINCIPALS: [Who; 13] = [
    Who::Ann,
    Who::Bob,
    Who::Root,
    Who::Everyone,
    Who::Authenticated,
    Who::Users,
    Who::Admins,
    Who::System,
    Who::CreatorOwner,
    Who::CreatorGroup,
    Who::OwnerRights,
    Who::Stranger,
    Who::Primary,
];

/// The machine's domain.
pub fn machine() -> Sid {
    Sid::new(5, &[21, 1, 2, 3])
}

/// Relative identifiers of the three users, in the order in which they are added.
pub const RIDS: [u32; 3] = [1000, 1001, 1002];

impl Who {
    pub fn sid(self) -> Sid {
        match self {
            Who::Ann => machine().with_rid(RIDS[0]),
            Who::Bob => machine().with_rid(RIDS[1]),
            Who::Root => machine().with_rid(RIDS[2]),
            Who::Stranger => machine().with_rid(4711),
            Who::Primary => machine().with_rid(513),
            Who::Everyone => Sid::new(1, &[0]),
            Who::Authenticated => Sid::new(5, &[11]),
            Who::Users => Sid::new(5, &[32, 545]),
            Who::Admins => Sid::new(5, &[32, 544]),
            Who::System => Sid::new(5, &[18]),
            Who::CreatorOwner => Sid::new(3, &[0]),
            Who::CreatorGroup => Sid::new(3, &[1]),
            Who::OwnerRights => Sid::new(3, &[4]),
            Who::Unknown => Sid::new(9, &[9, 9, 9]),
        }
    }
    pub fn of(sid: &Sid) -> Who {
        PRINCIPALS.into_iter().find(|w| w.sid() == *sid).unwrap_or(Who::Unknown)
    }
}

/// Who asks, [MS-DTYP] 2.5.2.
#[derive(Debug, Clone)]
pub struct Token {
    pub user: Who,
    /// Holds SeSecurityPrivilege, SeTakeOwnershipPrivilege, SeBackupPrivilege and SeRestorePrivilege, as members of
    /// Administrators do.
    pub privileged: bool,
}

impl Token {
    pub fn of(user: Who) -> Token {
        Token { user, privileged: user == Who::Root }
    }
    pub fn has(&self, who: Who) -> bool {
        match who {
            Who::Everyone | Who::Authenticated | Who::Users | Who::Primary => true,
            Who::Admins => self.privileged,
            other => other == self.user,
        }
    }
    /// May be made the owner of an object, [MS-DTYP] 2.5.3.4.1 with [MS-FSA] 2.1.5.17 (STATUS_INVALID_OWNER).
    pub fn may_own(&self, who: Who) -> bool {
        who == self.user || self.privileged
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ace {
    pub allow: bool,
    pub who: Who,
    pub flags: u8,
    pub mask: u32,
}

/// A security descriptor. A DACL that is None grants everybody everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sd {
    pub owner: Who,
    pub group: Who,
    pub dacl: Option<Vec<Ace>>,
    pub protected: bool,
    /// Audit ACEs.
    pub sacl: Vec<Ace>,
}

impl Sd {
    pub fn new(owner: Who, dacl: Vec<Ace>) -> Sd {
        Sd { owner, group: Who::Primary, dacl: Some(dacl), protected: false, sacl: Vec::new() }
    }

    /// The rights that the descriptor gives the token: those bits of which [MS-FSA] 2.1.4.14 says TRUE, each asked alone.
    pub fn grants(&self, token: &Token) -> u32 {
        self.without_privileges(token) | if token.privileged { WRITE_OWNER } else { 0 }
    }

    /// The same without SeTakeOwnershipPrivilege.
    pub fn without_privileges(&self, token: &Token) -> u32 {
        let mut allowed = 0;
        let Some(dacl) = &self.dacl else { return ALL };
        let effective = || dacl.iter().filter(|a| a.flags & IO == 0);
        if token.has(self.owner) && !effective().any(|a| a.who == Who::OwnerRights) {
            allowed |= READ_CONTROL | WRITE_DAC;
        }
        let mut denied = 0;
        for ace in effective() {
            let applies = match ace.who {
                Who::OwnerRights => token.has(self.owner),
                who => token.has(who),
            };
            if applies && ace.allow {
                allowed |= specific(ace.mask) & !denied;
            } else if applies {
                denied |= specific(ace.mask) & !allowed;
            }
        }
        allowed & ALL
    }

    /// The SACL's encoding has audit ACEs for success and failure.
    pub fn encode(&self, information: u32) -> Vec<u8> {
        let mut control = 0;
        if information & 4 != 0 {
            control |= dtyp::SE_DACL_PRESENT;
            if self.protected {
                control |= dtyp::SE_DACL_PROTECTED;
            }
        }
        if information & 8 != 0 {
            control |= dtyp::SE_SACL_PRESENT;
        }
        let to_ace = |a: &Ace| {
            let make = if a.allow { dtyp::Ace::allow } else { dtyp::Ace::deny };
            make(&a.who.sid(), a.mask, a.flags)
        };
        let audit = |a: &Ace| dtyp::Ace { kind: dtyp::SYSTEM_AUDIT_ACE_TYPE, flags: a.flags | 0xC0, ..to_ace(a) };
        let dacl = self.dacl.as_ref().map(|d| dtyp::Acl::new(d.iter().map(to_ace).collect()));
        dtyp::SecurityDescriptor {
            control,
            owner: (information & 1 != 0).then(|| self.owner.sid()),
            group: (information & 2 != 0).then(|| self.group.sid()),
            dacl: if information & 4 != 0 { dacl } else { None },
            sacl: (information & 8 != 0).then(|| dtyp::Acl::new(self.sacl.iter().map(audit).collect())),
        }
        .encode()
    }

    /// A complete descriptor as the server tells it.
    pub fn decode(bytes: &[u8]) -> Option<Sd> {
        let sd = dtyp::SecurityDescriptor::parse(bytes).ok()?;
        let from = |a: &dtyp::Ace| Ace {
            allow: a.kind == dtyp::ACCESS_ALLOWED_ACE_TYPE,
            who: Who::of(&a.sid),
            flags: a.flags & 0x1F,
            mask: a.mask,
        };
        Some(Sd {
            owner: sd.owner.as_ref().map_or(Who::Unknown, Who::of),
            group: sd.group.as_ref().map_or(Who::Unknown, Who::of),
            dacl: sd.dacl.map(|d| d.aces.iter().map(from).collect()),
            protected: sd.control & dtyp::SE_DACL_PROTECTED != 0,
            sacl: sd.sacl.map(|s| s.aces.iter().map(from).collect()).unwrap_or_default(),
        })
    }
}

/// ACLs say the same: generic bits count as what they stand for, and the mark of inheritance does not count.
pub fn same_acl(a: &[Ace], b: &[Ace]) -> bool {
    let plain = |x: &Ace| Ace { mask: specific(x.mask), flags: x.flags & !ID, ..*x };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| plain(a) == plain(b))
}

/// What a child gets of its parent's ACL, [MS-DTYP] 2.5.3.4.4 with the table of flags there, and 2.5.3.4.7.
pub fn inherited(parent: &[Ace], container: bool, owner: Who, group: Who) -> Vec<Ace> {
    let mut out = Vec::new();
    for ace in parent {
        let reaches = if container { ace.flags & CI != 0 } else { ace.flags & OI != 0 };
        let goes_on = container && ace.flags & NP == 0 && ace.flags & (OI | CI) != 0;
        let concrete = match ace.who {
            Who::CreatorOwner => owner,
            Who::CreatorGroup => group,
            who => who,
        };
        let (effective, mask) = (Ace { who: concrete, ..*ace }, specific(ace.mask));
        // An ACE with a principal or a right that is filled in needs two: one in effect, one to hand on.
        let splits = concrete != ace.who || mask != ace.mask;
        let further = ace.flags & (OI | CI);
        if reaches && goes_on && !splits {
            out.push(Ace { flags: further | ID, ..*ace });
            continue;
        }
        if reaches {
            out.push(Ace { flags: ID, mask, ..effective });
        }
        if goes_on {
            out.push(Ace { flags: further | IO | ID, ..*ace });
        }
    }
    out
}

/// The descriptors that a new object may get, [MS-DTYP] 2.5.3.4.1; the first is the one that is expected. `given`: what
/// the creator sent, and which parts of it.
pub fn created(parent: &Sd, container: bool, token: &Token, given: Option<(&Sd, u32)>) -> Vec<Sd> {
    let has = |part: u32| given.filter(|(_, parts)| parts & part != 0).map(|(sd, _)| sd);
    let owner = has(1).map_or(token.user, |sd| sd.owner);
    let group = has(2).map_or(Who::Primary, |sd| sd.group);
    let parent_dacl = parent.dacl.as_deref().unwrap_or_default();
    let from_parent = inherited(parent_dacl, container, owner, group);
    let sacl = has(8).map(|sd| sd.sacl.clone()).unwrap_or_default();
    let with = |dacl: Option<Vec<Ace>>, protected| Sd { owner, group, dacl, protected, sacl: sacl.clone() };
    let inheritable = parent_dacl.iter().any(|a| a.flags & (OI | CI) != 0);
    if let Some(sd) = has(4) {
        // Which of the two it is follows from flags that the creator's request does not carry over the wire.
        let Some(explicit) = &sd.dacl else { return vec![with(None, sd.protected)] };
        let fill = |a: &Ace| {
            let who = match a.who {
                Who::CreatorOwner => owner,
                Who::CreatorGroup => group,
                who => who,
            };
            Ace { who, mask: specific(a.mask), ..*a }
        };
        // [MS-DTYP] 2.5.3.4.6: what was inherited before is left out, but of a protected ACL.
        let own = || explicit.iter().filter(|a| sd.protected || a.flags & ID == 0);
        let split: Vec<Ace> = own().flat_map(|a| split(a, container, fill(a))).collect();
        let plain: Vec<Ace> = explicit.clone();
        let filled: Vec<Ace> = explicit.iter().map(fill).collect();
        let mut out = Vec::new();
        for dacl in [split, plain, filled] {
            if inheritable && !sd.protected {
                out.push(with(Some(dacl.iter().chain(&from_parent).copied().collect()), false));
            }
            out.push(with(Some(dacl), sd.protected));
        }
        return out;
    }
    let nothing = from_parent.is_empty();
    let inherited = inheritable.then(|| with(Some(from_parent), false));
    if inheritable && !nothing {
        return inherited.into_iter().collect();
    }
    // The token's default DACL; also where the directory has inheritable ACEs, but none for this kind of object.
    let full = |who| Ace { allow: true, who, flags: 0, mask: ALL };
    let defaults = [
        with(Some(vec![full(token.user), full(Who::System)]), false),
        with(Some(vec![full(token.user), full(Who::Admins), full(Who::System)]), false),
        with(Some(vec![full(Who::System), full(token.user)]), false),
        with(Some(vec![full(owner), full(Who::System)]), false),
    ];
    inherited.into_iter().chain(defaults).collect()
}

/// An ACE of the creator, [MS-DTYP] 2.5.3.4.5: one that is filled in and handed on is two. `filled`: for this object.
fn split(ace: &Ace, container: bool, filled: Ace) -> Vec<Ace> {
    let plain = Ace { flags: ace.flags & !ID, ..*ace };
    let generic = filled.who != ace.who || filled.mask != ace.mask;
    if !generic || ace.flags & IO != 0 {
        return vec![plain];
    }
    if container && ace.flags & (OI | CI) != 0 {
        let here = Ace { flags: 0, ..filled };
        return vec![here, Ace { flags: plain.flags | IO, ..plain }];
    }
    vec![Ace { flags: plain.flags, ..filled }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ace(allow: bool, who: Who, flags: u8, mask: u32) -> Ace {
        Ace { allow, who, flags, mask }
    }

    #[test]
    fn the_first_ace_that_speaks_of_a_bit_decides() {
        let (ann, bob) = (Token::of(Who::Ann), Token::of(Who::Bob));
        let sd = Sd::new(
            Who::Ann,
            vec![ace(false, Who::Bob, 0, READ_DATA), ace(true, Who::Everyone, 0, 3), ace(false, Who::Users, 0, 6)],
        );
        assert_eq!(sd.grants(&bob), WRITE_DATA);
        assert_eq!(sd.grants(&ann), READ_DATA | WRITE_DATA | READ_CONTROL | WRITE_DAC);
        let limited = Sd::new(Who::Ann, vec![ace(true, Who::OwnerRights, 0, READ_DATA)]);
        assert_eq!((limited.grants(&ann), limited.grants(&bob)), (READ_DATA, 0));
    }

    #[test]
    fn the_table_of_flags() {
        let of = |flags, container| -> Vec<u8> {
            inherited(&[ace(true, Who::Bob, flags, 1)], container, Who::Ann, Who::Primary)
                .iter()
                .map(|a| a.flags)
                .collect()
        };
        assert_eq!((of(0, true), of(0, false)), (vec![], vec![]));
        assert_eq!((of(OI, true), of(OI, false)), (vec![IO | OI | ID], vec![ID]));
        assert_eq!((of(OI | NP, true), of(OI | NP, false)), (vec![], vec![ID]));
        assert_eq!((of(CI, true), of(CI, false)), (vec![CI | ID], vec![]));
        assert_eq!((of(CI | NP, true), of(CI | OI | NP, true)), (vec![ID], vec![ID]));
        let two = inherited(&[ace(true, Who::CreatorOwner, OI | CI | IO, ALL)], true, Who::Ann, Who::Primary);
        assert_eq!(two, [ace(true, Who::Ann, ID, ALL), ace(true, Who::CreatorOwner, OI | CI | IO | ID, ALL)]);
    }
}
