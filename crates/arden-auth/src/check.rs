//! The access check for files, [MS-DTYP] 2.5.3.2: desired access against a descriptor and a token. Conditions of ACEs
//! are not evaluated: an ACE with one never grants and always denies. Integrity labels, object type lists and central
//! access policies are ignored.

use crate::{
    error::AccessError,
    token::{Token, privilege},
};
use arden_wire::{
    access::*,
    dtyp::{
        ACCESS_ALLOWED_ACE_TYPE, ACCESS_ALLOWED_OBJECT_ACE_TYPE, ACCESS_DENIED_ACE_TYPE,
        ACCESS_DENIED_CALLBACK_ACE_TYPE, ACCESS_DENIED_CALLBACK_OBJECT_ACE_TYPE, ACCESS_DENIED_OBJECT_ACE_TYPE, Ace,
        Acl, SecurityDescriptor, Sid, well_known,
    },
};

/// The access that SeBackupPrivilege grants to an open with backup intent, [MS-FSA] 2.1.5.1.
pub const BACKUP_ACCESS: u32 = READ_CONTROL | ACCESS_SYSTEM_SECURITY | FILE_GENERIC_READ | FILE_TRAVERSE;
/// The access that SeRestorePrivilege grants to an open with backup intent, [MS-FSA] 2.1.5.1.
pub const RESTORE_ACCESS: u32 = WRITE_DAC
    | WRITE_OWNER
    | ACCESS_SYSTEM_SECURITY
    | FILE_GENERIC_WRITE
    | FILE_ADD_FILE
    | FILE_ADD_SUBDIRECTORY
    | DELETE;

/// Returns the access that `who` is granted for `desired`, [MS-DTYP] 2.5.3.2. Generic rights have to be mapped before.
/// With MAXIMUM_ALLOWED the result is all access that can be granted, and the other desired bits still have to be
/// granted.
///
/// # Errors
/// `PrivilegeNotHeld` for ACCESS_SYSTEM_SECURITY without SeSecurityPrivilege, else `AccessDenied`.
pub fn access_check(sd: &SecurityDescriptor, who: &Token, desired: u32) -> Result<u32, AccessError> {
    check(sd, who, desired, 0)
}

/// [`access_check`] for an open with FILE_OPEN_FOR_BACKUP_INTENT: SeBackupPrivilege and SeRestorePrivilege grant access
/// too.
///
/// # Errors
/// As [`access_check`].
pub fn access_check_backup(sd: &SecurityDescriptor, who: &Token, desired: u32) -> Result<u32, AccessError> {
    check(sd, who, desired, backup_rights(who))
}

/// The access that the token's backup and restore privileges grant on every file.
pub fn backup_rights(who: &Token) -> u32 {
    let mut rights = 0;
    if who.has_privilege(privilege::BACKUP) {
        rights |= BACKUP_ACCESS;
    }
    if who.has_privilege(privilege::RESTORE) {
        rights |= RESTORE_ACCESS;
    }
    rights
}

/// All access that the descriptor grants to `who`, without that which only a privilege grants.
pub fn maximum_access(sd: &SecurityDescriptor, who: &Token) -> u32 {
    let Some(dacl) = &sd.dacl else {
        return FILE_ALL_ACCESS;
    };
    implicit_owner_rights(sd, dacl, who) | dacl_grants(dacl, sd.owner.as_ref(), who)
}

fn check(sd: &SecurityDescriptor, who: &Token, desired: u32, by_privilege: u32) -> Result<u32, AccessError> {
    let explicit = desired & !MAXIMUM_ALLOWED;
    if explicit & ACCESS_SYSTEM_SECURITY & !by_privilege != 0 && !who.has_privilege(privilege::SECURITY) {
        return Err(AccessError::PrivilegeNotHeld);
    }
    let mut granted = maximum_access(sd, who) | by_privilege & !ACCESS_SYSTEM_SECURITY;
    let mut needed = explicit & !ACCESS_SYSTEM_SECURITY;
    if who.has_privilege(privilege::TAKE_OWNERSHIP) {
        needed &= !WRITE_OWNER;
    }
    if sd.dacl.is_none() {
        needed = 0;
    }
    if needed & !granted != 0 {
        return Err(AccessError::AccessDenied);
    }
    if desired & MAXIMUM_ALLOWED == 0 {
        return Ok(explicit);
    }
    granted |= explicit;
    if granted == 0 { Err(AccessError::AccessDenied) } else { Ok(granted) }
}

/// READ_CONTROL and WRITE_DAC for the owner, unless an effective ACE is for OWNER_RIGHTS.
fn implicit_owner_rights(sd: &SecurityDescriptor, dacl: &Acl, who: &Token) -> u32 {
    let is_owner = sd.owner.as_ref().is_some_and(|owner| who.has_sid(owner));
    let spoken_of = || dacl.aces.iter().any(|a| !a.is_inherit_only() && a.sid == *well_known::OWNER_RIGHTS);
    if is_owner && !spoken_of() { READ_CONTROL | WRITE_DAC } else { 0 }
}

/// The access that the ACEs grant. The first ACE that has a bit decides that bit.
fn dacl_grants(dacl: &Acl, owner: Option<&Sid>, who: &Token) -> u32 {
    let (mut granted, mut denied) = (0, 0);
    for ace in dacl.aces.iter().filter(|a| !a.is_inherit_only()) {
        match ace_effect(ace, owner, who) {
            Some(true) => granted |= ace.mask & !denied,
            Some(false) => denied |= ace.mask & !granted,
            None => {}
        }
    }
    granted
}

/// Whether the ACE allows (`true`) or denies (`false`) its mask to the token; `None` when it does not apply.
fn ace_effect(ace: &Ace, owner: Option<&Sid>, who: &Token) -> Option<bool> {
    let matches = |sid: &Sid| {
        who.has_sid(sid) || *sid == *well_known::OWNER_RIGHTS && owner.is_some_and(|owner| who.has_sid(owner))
    };
    match ace.kind {
        ACCESS_ALLOWED_ACE_TYPE => matches(&ace.sid).then_some(true),
        // A condition that is not evaluated is "unknown", and a deny ACE then denies, [MS-DTYP] 2.5.3.1.5.
        ACCESS_DENIED_ACE_TYPE | ACCESS_DENIED_CALLBACK_ACE_TYPE => matches(&ace.sid).then_some(false),
        // Files have no object types: an ACE for an object type does not grant, but denies.
        ACCESS_ALLOWED_OBJECT_ACE_TYPE => {
            let parts = ace.object_parts()?;
            (parts.object_type.is_none() && matches(&parts.sid)).then_some(true)
        }
        ACCESS_DENIED_OBJECT_ACE_TYPE | ACCESS_DENIED_CALLBACK_OBJECT_ACE_TYPE => match ace.object_parts() {
            Some(parts) => matches(&parts.sid).then_some(false),
            None => Some(false),
        },
        _ => None,
    }
}
