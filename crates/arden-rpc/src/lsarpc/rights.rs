//! Privileges and the accounts that hold them, [MS-LSAD] 3.1.4.5 and 3.1.4.8. They are fixed by built-in group.

use crate::{
    PipeContext,
    call::{Answer, finish, null_and, status},
};
use arden_wire::{
    NtStatus,
    dtyp::{Sid, well_known},
    ndr::{NdrReader, NdrWriter},
};

/// Name, LUID and display name of a privilege.
struct Privilege {
    name: &'static str,
    luid: u32,
    display: &'static str,
}

const fn row(name: &'static str, luid: u32, display: &'static str) -> Privilege {
    Privilege { name, luid, display }
}

/// The privileges that have an effect here, with Windows' LUIDs, [MS-LSAD] 3.1.1.2.1.
const PRIVILEGES: [Privilege; 6] = [
    row("SeSecurityPrivilege", 8, "Manage auditing and security log"),
    row("SeTakeOwnershipPrivilege", 9, "Take ownership of files or other objects"),
    row("SeBackupPrivilege", 17, "Back up files and directories"),
    row("SeRestorePrivilege", 18, "Restore files and directories"),
    row("SeChangeNotifyPrivilege", 23, "Bypass traverse checking"),
    row("SeManageVolumePrivilege", 28, "Perform volume maintenance tasks"),
];

const NETWORK_LOGON: &str = "SeNetworkLogonRight";

/// The accounts with rights.
fn holders() -> [(&'static Sid, &'static [&'static str]); 4] {
    [
        (
            &well_known::BUILTIN_ADMINISTRATORS,
            &[
                "SeSecurityPrivilege",
                "SeTakeOwnershipPrivilege",
                "SeBackupPrivilege",
                "SeRestorePrivilege",
                "SeChangeNotifyPrivilege",
                "SeManageVolumePrivilege",
                NETWORK_LOGON,
            ],
        ),
        (
            &well_known::BUILTIN_BACKUP_OPERATORS,
            &["SeBackupPrivilege", "SeRestorePrivilege", "SeChangeNotifyPrivilege", NETWORK_LOGON],
        ),
        (&well_known::BUILTIN_USERS, &["SeChangeNotifyPrivilege", NETWORK_LOGON]),
        (&well_known::EVERYONE, &["SeChangeNotifyPrivilege"]),
    ]
}

fn by_name(name: &str) -> Option<&'static Privilege> {
    PRIVILEGES.iter().find(|p| p.name.eq_ignore_ascii_case(name))
}

/// LsarEnumeratePrivileges, [MS-LSAD] 3.1.4.8.1.
pub(super) fn enumerate_privileges(r: &mut NdrReader<'_>) -> Answer {
    let start = r.u32()? as usize;
    let rest = PRIVILEGES.get(start..).unwrap_or(&[]);
    let mut w = NdrWriter::new();
    w.u32(PRIVILEGES.len() as u32);
    w.u32(rest.len() as u32);
    w.pointer(!rest.is_empty());
    if rest.is_empty() {
        return finish(w, NtStatus::NO_MORE_ENTRIES);
    }
    w.u32(rest.len() as u32);
    for p in rest {
        w.unicode_large_head(p.name);
        w.u32(p.luid);
        w.u32(0);
    }
    rest.iter().for_each(|p| w.unicode_large_body(p.name));
    finish(w, NtStatus::SUCCESS)
}

/// LsarLookupPrivilegeValue, [MS-LSAD] 3.1.4.8.2.
pub(super) fn privilege_value(r: &mut NdrReader<'_>) -> Answer {
    let found = by_name(&r.unicode()?);
    let mut w = NdrWriter::new();
    w.u32(found.map_or(0, |p| p.luid));
    w.u32(0);
    finish(w, if found.is_some() { NtStatus::SUCCESS } else { status::NO_SUCH_PRIVILEGE })
}

/// LsarLookupPrivilegeName, [MS-LSAD] 3.1.4.8.3.
pub(super) fn privilege_name(r: &mut NdrReader<'_>) -> Answer {
    let (low, high) = (r.u32()?, r.u32()?);
    let Some(found) = PRIVILEGES.iter().find(|p| p.luid == low && high == 0) else {
        return null_and(status::NO_SUCH_PRIVILEGE);
    };
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.unicode_large_head(found.name);
    w.unicode_large_body(found.name);
    finish(w, NtStatus::SUCCESS)
}

/// LsarLookupPrivilegeDisplayName, [MS-LSAD] 3.1.4.8.4: always in English.
pub(super) fn privilege_display_name(r: &mut NdrReader<'_>) -> Answer {
    const ENGLISH: u16 = 0x0409;
    let found = by_name(&r.unicode()?);
    let mut w = NdrWriter::new();
    w.pointer(found.is_some());
    if let Some(p) = found {
        w.unicode_large_head(p.display);
        w.unicode_large_body(p.display);
    }
    w.u16(if found.is_some() { ENGLISH } else { 0 });
    finish(w, if found.is_some() { NtStatus::SUCCESS } else { status::NO_SUCH_PRIVILEGE })
}

fn put_sids(w: &mut NdrWriter, sids: &[&Sid]) {
    w.u32(sids.len() as u32);
    w.pointer(!sids.is_empty());
    if sids.is_empty() {
        return;
    }
    w.u32(sids.len() as u32);
    sids.iter().for_each(|_| w.pointer(true));
    sids.iter().for_each(|s| w.sid(s));
}

/// LsarEnumerateAccounts, [MS-LSAD] 3.1.4.5.2.
pub(super) fn enumerate_accounts(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let start = r.u32()? as usize;
    let all = holders();
    let rest: Vec<&Sid> = all.iter().skip(start).map(|(sid, _)| *sid).collect();
    let mut w = NdrWriter::new();
    w.u32(all.len() as u32);
    if !context.caller.is_administrator() {
        put_sids(&mut w, &[]);
        return finish(w, NtStatus::ACCESS_DENIED);
    }
    put_sids(&mut w, &rest);
    finish(w, if rest.is_empty() { NtStatus::NO_MORE_ENTRIES } else { NtStatus::SUCCESS })
}

/// LsarEnumerateAccountsWithUserRight, [MS-LSAD] 3.1.4.5.9.
pub(super) fn accounts_with_right(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let right = if r.pointer()? { Some(r.unicode()?) } else { None };
    let mut w = NdrWriter::new();
    if !context.caller.is_administrator() {
        put_sids(&mut w, &[]);
        return finish(w, NtStatus::ACCESS_DENIED);
    }
    let known = |name: &str| by_name(name).is_some() || name.eq_ignore_ascii_case(NETWORK_LOGON);
    if right.as_deref().is_some_and(|name| !known(name)) {
        put_sids(&mut w, &[]);
        return finish(w, status::NO_SUCH_PRIVILEGE);
    }
    let all = holders();
    let has = |rights: &[&str]| right.as_ref().is_none_or(|r| rights.iter().any(|n| n.eq_ignore_ascii_case(r)));
    let found: Vec<&Sid> = all.iter().filter(|(_, rights)| has(rights)).map(|(sid, _)| *sid).collect();
    put_sids(&mut w, &found);
    finish(w, if found.is_empty() { NtStatus::NO_MORE_ENTRIES } else { NtStatus::SUCCESS })
}

/// LsarEnumerateAccountRights, [MS-LSAD] 3.1.4.5.10.
pub(super) fn account_rights(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let sid = r.sid()?;
    let all = holders();
    let rights = all.iter().find(|(holder, _)| **holder == sid).map(|(_, rights)| *rights);
    let allowed = context.caller.is_administrator() || context.caller.has_sid(&sid);
    let rights = rights.filter(|_| allowed).unwrap_or(&[]);
    let mut w = NdrWriter::new();
    w.u32(rights.len() as u32);
    w.pointer(!rights.is_empty());
    if rights.is_empty() {
        let error = if allowed { NtStatus::OBJECT_NAME_NOT_FOUND } else { NtStatus::ACCESS_DENIED };
        return finish(w, error);
    }
    w.u32(rights.len() as u32);
    rights.iter().for_each(|n| w.unicode_large_head(n));
    rights.iter().for_each(|n| w.unicode_large_body(n));
    finish(w, NtStatus::SUCCESS)
}
