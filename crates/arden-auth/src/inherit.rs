//! Descriptors of new objects, [MS-DTYP] 2.5.3.4, and changes of existing ones, [MS-FSA] 2.1.5.17. Inheritance follows
//! Windows' file systems: INHERITED_ACE and the auto-inherited bit are set only below a directory whose own ACL is
//! auto-inherited.

use crate::{
    error::AccessError,
    token::{Token, privilege},
};
use arden_wire::{
    access::{FILE_ALL_ACCESS, GENERIC_ALL, GENERIC_EXECUTE, GENERIC_READ, GENERIC_WRITE, map_generic},
    dtyp::*,
};

const GENERIC: u32 = GENERIC_ALL | GENERIC_EXECUTE | GENERIC_READ | GENERIC_WRITE;
const INHERIT: u8 = OBJECT_INHERIT_ACE | CONTAINER_INHERIT_ACE;

/// The object for which CREATOR OWNER, CREATOR GROUP and generic rights of an ACL are replaced.
struct Target<'a> {
    owner: &'a Sid,
    group: &'a Sid,
    directory: bool,
}

/// The descriptor of a new file or directory, [MS-DTYP] 2.5.3.4.1: the explicit parts of its creator, the ACEs
/// inherited from the parent, and the token's defaults for the rest.
pub fn new_descriptor(
    parent: Option<&SecurityDescriptor>,
    explicit: Option<&SecurityDescriptor>,
    directory: bool,
    who: &Token,
) -> SecurityDescriptor {
    let owner = explicit.and_then(|e| e.owner.clone()).unwrap_or_else(|| who.user.clone());
    let group = explicit.and_then(|e| e.group.clone()).unwrap_or_else(|| who.primary_group().clone());
    let target = Target { owner: &owner, group: &group, directory };

    let dacl_of = |sd: &SecurityDescriptor| Part {
        present: sd.control & SE_DACL_PRESENT != 0 || sd.dacl.is_some(),
        protected: sd.control & SE_DACL_PROTECTED != 0,
        auto_inherited: sd.control & SE_DACL_AUTO_INHERITED != 0,
        acl: sd.dacl.clone(),
    };
    let sacl_of = |sd: &SecurityDescriptor| Part {
        present: sd.control & SE_SACL_PRESENT != 0 || sd.sacl.is_some(),
        protected: sd.control & SE_SACL_PROTECTED != 0,
        auto_inherited: sd.control & SE_SACL_AUTO_INHERITED != 0,
        acl: sd.sacl.clone(),
    };
    let dacl = compute_acl(parent.map(dacl_of), explicit.map(dacl_of), &target);
    let sacl = compute_acl(parent.map(sacl_of), explicit.map(sacl_of), &target);

    let mut control = 0;
    let dacl = if dacl.present {
        control |= bit(dacl.protected, SE_DACL_PROTECTED) | bit(dacl.auto_inherited, SE_DACL_AUTO_INHERITED);
        dacl.acl
    } else {
        Some(default_dacl(&owner))
    };
    control |= SE_DACL_PRESENT;
    if sacl.present {
        control |= SE_SACL_PRESENT;
        control |= bit(sacl.protected, SE_SACL_PROTECTED) | bit(sacl.auto_inherited, SE_SACL_AUTO_INHERITED);
    }
    SecurityDescriptor { control, dacl, sacl: sacl.acl, owner: Some(owner), group: Some(group) }
}

/// The explicit parts of a descriptor that `who` may give a new object, [MS-DTYP] 2.5.3.4.1. Group and DACL are free to
/// choose. A SACL that is present without an ACL is left out when the privilege is missing.
///
/// # Errors
/// `InvalidOwner` for an owner that `who` may not assign. `PrivilegeNotHeld` for a SACL, also an empty one, which would
/// keep the parent's from being inherited.
pub fn creator_descriptor(explicit: &SecurityDescriptor, who: &Token) -> Result<SecurityDescriptor, AccessError> {
    if explicit.owner.as_ref().is_some_and(|owner| !may_give_to(who, owner)) {
        return Err(AccessError::InvalidOwner);
    }
    let mut out = explicit.clone();
    if !who.has_privilege(privilege::SECURITY) {
        if explicit.sacl.is_some() {
            return Err(AccessError::PrivilegeNotHeld);
        }
        out.control &= !SE_SACL_BITS;
    }
    Ok(out)
}

fn may_give_to(who: &Token, owner: &Sid) -> bool {
    who.may_own(owner) || who.has_privilege(privilege::RESTORE)
}

/// The DACL of an object that has no other: full access for the owner and SYSTEM.
pub fn default_dacl(owner: &Sid) -> Acl {
    Acl::new(vec![Ace::allow(owner, FILE_ALL_ACCESS, 0), Ace::allow(&well_known::SYSTEM, FILE_ALL_ACCESS, 0)])
}

/// Replaces the parts of a descriptor that the SECURITY_INFORMATION bits of `information` name by those of `new`,
/// [MS-FSA] 2.1.5.17. The caller checks the access of the handle: [`access_for_change`].
///
/// # Errors
/// `InvalidOwner` for an owner that `who` may not assign, `AclTooLong` for an ACL that is too long to store.
pub fn change_descriptor(
    current: &SecurityDescriptor,
    new: &SecurityDescriptor,
    information: u32,
    who: &Token,
) -> Result<SecurityDescriptor, AccessError> {
    let mut out = current.clone();
    if information & OWNER_SECURITY_INFORMATION != 0 {
        let owner = new.owner.clone().ok_or(AccessError::InvalidOwner)?;
        if !may_give_to(who, &owner) && current.owner.as_ref() != Some(&owner) {
            return Err(AccessError::InvalidOwner);
        }
        out.owner = Some(owner);
        out.control &= !SE_OWNER_DEFAULTED;
    }
    if information & GROUP_SECURITY_INFORMATION != 0 {
        out.group = Some(new.group.clone().ok_or(AccessError::NoGroup)?);
        out.control &= !SE_GROUP_DEFAULTED;
    }
    if information & DACL_SECURITY_INFORMATION != 0 {
        let mut control = SE_DACL_PRESENT | new.control & SE_DACL_PROTECTED;
        // The request bit makes the other one take effect; it is not stored itself.
        let both = SE_DACL_AUTO_INHERITED | SE_DACL_AUTO_INHERIT_REQ;
        control |= bit(new.control & both == both, SE_DACL_AUTO_INHERITED);
        out.control = out.control & !SE_DACL_BITS | control;
        out.dacl = new.dacl.as_ref().map(stored_acl).transpose()?;
    }
    let whole_sacl = information & SACL_SECURITY_INFORMATION != 0;
    let sacl_parts =
        information & (LABEL_SECURITY_INFORMATION | ATTRIBUTE_SECURITY_INFORMATION | SCOPE_SECURITY_INFORMATION);
    if whole_sacl {
        let mut control = bit(new.sacl.is_some() || new.control & SE_SACL_PRESENT != 0, SE_SACL_PRESENT);
        control |= new.control & SE_SACL_PROTECTED;
        let both = SE_SACL_AUTO_INHERITED | SE_SACL_AUTO_INHERIT_REQ;
        control |= bit(new.control & both == both, SE_SACL_AUTO_INHERITED);
        out.control = out.control & !SE_SACL_BITS | control;
    }
    if whole_sacl || sacl_parts != 0 {
        out.sacl = merged_sacl(current.sacl.as_ref(), new.sacl.as_ref(), whole_sacl, sacl_parts)?;
        out.control |= bit(out.sacl.is_some(), SE_SACL_PRESENT);
    }
    Ok(out)
}

/// The access that a handle needs to change these parts, [MS-FSA] 2.1.5.17.
pub fn access_for_change(information: u32) -> u32 {
    use arden_wire::access::{ACCESS_SYSTEM_SECURITY, WRITE_DAC, WRITE_OWNER};
    let mut access = 0;
    if information & (OWNER_SECURITY_INFORMATION | GROUP_SECURITY_INFORMATION | LABEL_SECURITY_INFORMATION) != 0 {
        access |= WRITE_OWNER;
    }
    if information & (DACL_SECURITY_INFORMATION | ATTRIBUTE_SECURITY_INFORMATION) != 0 {
        access |= WRITE_DAC;
    }
    if information & (SACL_SECURITY_INFORMATION | SCOPE_SECURITY_INFORMATION) != 0 {
        access |= ACCESS_SYSTEM_SECURITY;
    }
    if information & BACKUP_SECURITY_INFORMATION != 0 {
        access |= WRITE_DAC | WRITE_OWNER | ACCESS_SYSTEM_SECURITY;
    }
    access
}

/// The access that a handle needs to read these parts, [MS-FSA] 2.1.5.14.
pub fn access_for_query(information: u32) -> u32 {
    use arden_wire::access::{ACCESS_SYSTEM_SECURITY, READ_CONTROL};
    let mut access = 0;
    let sacl = SACL_SECURITY_INFORMATION | BACKUP_SECURITY_INFORMATION;
    if information & sacl != 0 {
        access |= ACCESS_SYSTEM_SECURITY;
    }
    if information & !SACL_SECURITY_INFORMATION & 0x0001_007F != 0 {
        access |= READ_CONTROL;
    }
    access
}

/// Maps the generic rights of effective ACEs when an ACL is stored. Inherit-only ACEs keep them for the children.
fn stored_acl(acl: &Acl) -> Result<Acl, AccessError> {
    let aces = acl
        .aces
        .iter()
        .map(|ace| {
            let mask = if ace.is_inherit_only() { ace.mask } else { map_generic(ace.mask) };
            Ace { mask, ..ace.clone() }
        })
        .collect();
    let out = Acl { revision: acl.revision, aces };
    if out.fits() { Ok(out) } else { Err(AccessError::AclTooLong) }
}

fn merged_sacl(current: Option<&Acl>, new: Option<&Acl>, whole: bool, parts: u32) -> Result<Option<Acl>, AccessError> {
    // Labels, claims and policies are replaced apart from the audit ACEs, although one SACL holds all of them.
    let replaced = |ace: &&Ace| match sacl_part(ace.kind) {
        0 => whole,
        part => parts & part != 0,
    };
    let kept = current.into_iter().flat_map(|a| &a.aces).filter(|a| !replaced(a));
    let taken = new.into_iter().flat_map(|a| &a.aces).filter(replaced);
    let aces: Vec<Ace> = taken.chain(kept).cloned().collect();
    let given = whole && new.is_some() || current.is_some();
    let revision = new.or(current).map_or(ACL_REVISION, |a| a.revision);
    if aces.is_empty() && !given {
        return Ok(None);
    }
    stored_acl(&Acl { revision, aces }).map(Some)
}

fn bit(set: bool, bit: u16) -> u16 {
    if set { bit } else { 0 }
}

/// One of the two ACLs of a descriptor, with its control bits.
struct Part {
    present: bool,
    protected: bool,
    auto_inherited: bool,
    acl: Option<Acl>,
}

/// ComputeACL, [MS-DTYP] 2.5.3.4.2.
fn compute_acl(parent: Option<Part>, creator: Option<Part>, target: &Target<'_>) -> Part {
    let creator = creator.filter(|c| c.present);
    let auto_inherited = parent.as_ref().is_some_and(|p| p.auto_inherited);
    let inherited = parent.and_then(|p| p.acl).map(|acl| inherited_aces(&acl, auto_inherited, target));
    let inherited = inherited.filter(|aces| !aces.is_empty());
    let absent = Part { present: false, protected: false, auto_inherited: false, acl: None };
    match (creator, inherited) {
        (None, None) => absent,
        (None, Some(aces)) => Part { present: true, auto_inherited, acl: Some(acl_of(aces)), ..absent },
        (Some(creator), inherited) => {
            let Some(acl) = creator.acl else {
                // The creator asks for a NULL ACL: nothing is added to it.
                return Part { present: true, protected: creator.protected, ..absent };
            };
            let mut aces = creator_aces(&acl, creator.protected, target);
            let inherited = inherited.filter(|_| !creator.protected);
            let auto_inherited = auto_inherited && inherited.is_some();
            aces.extend(inherited.into_iter().flatten());
            Part { present: true, protected: creator.protected, auto_inherited, acl: Some(acl_of(aces)) }
        }
    }
}

fn acl_of(aces: Vec<Ace>) -> Acl {
    let objects = aces.iter().any(|a| a.object_parts().is_some());
    Acl { revision: if objects { ACL_REVISION_DS } else { ACL_REVISION }, aces }
}

/// The ACEs that a child inherits from its parent's ACL, [MS-DTYP] 2.5.3.4.4.
fn inherited_aces(acl: &Acl, auto_inherited: bool, target: &Target<'_>) -> Vec<Ace> {
    let mark = if auto_inherited { INHERITED_ACE } else { 0 };
    let mut out = Vec::new();
    for ace in &acl.aces {
        let applies = ace.flags & if target.directory { CONTAINER_INHERIT_ACE } else { OBJECT_INHERIT_ACE } != 0;
        let propagates = target.directory && ace.flags & INHERIT != 0 && ace.flags & NO_PROPAGATE_INHERIT_ACE == 0;
        let kept = ace.flags & !(INHERIT_ONLY_ACE | INHERITED_ACE) | mark;
        let effective_flags =
            ace.flags & !(INHERIT | NO_PROPAGATE_INHERIT_ACE | INHERIT_ONLY_ACE | INHERITED_ACE) | mark;
        match (applies, propagates) {
            // One ACE serves the object and its children, unless it means different access for them.
            (true, true) if !is_generic(ace) => out.push(Ace { flags: kept, ..ace.clone() }),
            (true, _) => {
                out.push(Ace { flags: effective_flags, ..concrete(ace, target) });
                if propagates {
                    out.push(Ace { flags: kept | INHERIT_ONLY_ACE, ..ace.clone() });
                }
            }
            (false, true) => out.push(Ace { flags: kept | INHERIT_ONLY_ACE, ..ace.clone() }),
            (false, false) => {}
        }
    }
    out
}

/// The creator's ACEs, [MS-DTYP] 2.5.3.4.5 and 2.5.3.4.6. Inherited ACEs are left out, or become explicit in a
/// protected ACL; generic ACEs are split into an effective and an inherit-only one.
fn creator_aces(acl: &Acl, protected: bool, target: &Target<'_>) -> Vec<Ace> {
    let mut out = Vec::new();
    for ace in &acl.aces {
        if ace.is_inherited() && !protected {
            continue;
        }
        let ace = Ace { flags: ace.flags & !INHERITED_ACE, ..ace.clone() };
        let inheritable = target.directory && ace.flags & INHERIT != 0;
        if ace.is_inherit_only() || !is_generic(&ace) {
            out.push(ace);
        } else if inheritable {
            let effective = ace.flags & !(INHERIT | NO_PROPAGATE_INHERIT_ACE);
            out.push(Ace { flags: effective, ..concrete(&ace, target) });
            out.push(Ace { flags: ace.flags | INHERIT_ONLY_ACE, ..ace });
        } else {
            out.push(concrete(&ace, target));
        }
    }
    out
}

/// Whether the ACE means different access for each object that inherits it.
fn is_generic(ace: &Ace) -> bool {
    ace.mask & GENERIC != 0 || ace.sid == *well_known::CREATOR_OWNER || ace.sid == *well_known::CREATOR_GROUP
}

/// Applies PostProcessACL, [MS-DTYP] 2.5.3.4.7, to one ACE.
fn concrete(ace: &Ace, target: &Target<'_>) -> Ace {
    let sid = if ace.sid == *well_known::CREATOR_OWNER {
        target.owner.clone()
    } else if ace.sid == *well_known::CREATOR_GROUP {
        target.group.clone()
    } else {
        ace.sid.clone()
    };
    Ace { mask: map_generic(ace.mask), sid, ..ace.clone() }
}
