//! The Security Account Manager, [MS-SAMR] 3.1.5, read-only: users are changed by administration.
//!
//! Administrators read everything. Other users translate between names and RIDs, as lsarpc does for them too, and read
//! their own account. Lists of accounts, members of groups and the accounts of others are refused to them unless the
//! server permits them. Anonymous callers are refused. Windows refuses users even the connection, but clients look
//! names up here.

use crate::{
    PipeContext,
    call::{Answer, Fault, Interface, finish, null_and, status},
    handles::{Handles, NULL_HANDLE, Object},
    lsarpc::{self, opened, query_security},
};
use arden_auth::UserDb;
use arden_wire::{
    NtStatus,
    dtyp::{Sid, well_known},
    ndr::{NdrReader, NdrWriter},
    rpc::{Syntax, uuid},
};

mod domain;
mod groups;
mod user;

pub(crate) const INTERFACE: Interface = Interface {
    syntax: Syntax {
        uuid: uuid(0x1234_5778, 0x1234, 0xABCD, [0xEF, 0x00, 0x01, 0x23, 0x45, 0x67, 0x89, 0xAC]),
        version: 1,
    },
    call,
};

/// SE_GROUP_MANDATORY | SE_GROUP_ENABLED_BY_DEFAULT | SE_GROUP_ENABLED, [MS-SAMR] 2.2.1.10.
const GROUP_ATTRIBUTES: u32 = 7;

fn call(context: &PipeContext, handles: &mut Handles, opnum: u16, stub: &[u8]) -> Answer {
    let r = &mut NdrReader::new(stub);
    match opnum {
        0 | 57 | 61 | 62 | 64 => return connect(context, handles, opnum),
        1 => return close(handles, r),
        56 => return domain::password_information(),
        _ => {}
    }
    if !KNOWN.contains(&opnum) {
        return Err(Fault::OPNUM_RANGE);
    }
    let handle = r.handle()?;
    let object = handles.get(&handle).cloned().ok_or(Fault::CONTEXT_MISMATCH)?;
    let users = context.view.users();
    let db = &*users;
    if !reads_all(context) && !is_for_users(context, db, &object, opnum, stub)? {
        return Err(Fault::ACCESS_DENIED);
    }
    match (object, opnum) {
        (Object::SamServer, 3) => query_security(r, 0x000F_003F, 0x0002_0031),
        (Object::SamDomain(_), 3) => query_security(r, 0x000F_07FF, 0x0002_0385),
        (Object::SamUser(_), 3) => query_security(r, 0x000F_07FF, 0x0002_035B),
        (Object::SamGroup(_) | Object::SamAlias(_), 3) => query_security(r, 0x000F_001F, 0x0002_001C),
        (Object::SamServer, 5) => lookup_domain(db, r),
        (Object::SamServer, 6) => enumerate_domains(db, r),
        (Object::SamServer, 7) => open_domain(db, handles, r),
        (Object::SamDomain(sid), 8 | 46) => domain::query_information(context, db, &sid, r),
        (Object::SamDomain(sid), 11 | 13 | 15) => domain::enumerate(db, &sid, r, opnum),
        (Object::SamDomain(sid), 16) => groups::alias_membership(db, &sid, r),
        (Object::SamDomain(sid), 17) => domain::lookup_names(db, &sid, r),
        (Object::SamDomain(sid), 18) => domain::lookup_rids(db, &sid, r),
        (Object::SamDomain(sid), 19 | 27 | 34) => open_account(context, db, handles, &sid, r, opnum),
        (Object::SamDomain(sid), 40 | 48 | 51) => domain::display_information(db, &sid, r),
        (Object::SamDomain(sid), 65) => rid_to_sid(&sid, r),
        (Object::SamGroup(rid), 20) => groups::query_group(db, rid, r),
        (Object::SamGroup(rid), 25) => groups::group_members(db, rid),
        (Object::SamAlias(sid), 28) => groups::query_alias(db, &sid, r),
        (Object::SamAlias(sid), 33) => groups::alias_members(db, &sid),
        (Object::SamUser(rid), 36 | 47) => user::query_information(db, rid, r),
        (Object::SamUser(rid), 39) => groups::groups_of_user(db, rid),
        (Object::SamUser(_), 44) => domain::password_information(),
        _ => Err(Fault::CONTEXT_MISMATCH),
    }
}

/// Opnums of the calls that take a handle.
const KNOWN: [u16; 27] =
    [3, 5, 6, 7, 8, 11, 13, 15, 16, 17, 18, 19, 20, 25, 27, 28, 33, 34, 36, 39, 40, 44, 46, 47, 48, 51, 65];

fn reads_all(context: &PipeContext) -> bool {
    let caller = &context.caller;
    caller.is_administrator() || context.view.accounts_readable_by_users() && !caller.is_anonymous()
}

/// Whether a user who does not read everything may make this call. `open_account` decides whom SamrOpenUser may open.
fn is_for_users(
    context: &PipeContext,
    db: &dyn UserDb,
    object: &Object,
    opnum: u16,
    stub: &[u8],
) -> Result<bool, Fault> {
    let caller = &context.caller;
    let r = &mut NdrReader::new(stub);
    r.handle()?;
    Ok(match (object, opnum) {
        (Object::SamServer, 3 | 5..=7) => true,
        (Object::SamDomain(_), 3 | 17..=19 | 27 | 34 | 65) => true,
        // All information classes except those with numbers of accounts.
        (Object::SamDomain(_), 8 | 46) => !matches!(r.u16()?, 2 | 11),
        (Object::SamDomain(_), 16) => lsarpc::lookup::read_sids(r)?.iter().all(|sid| caller.has_sid(sid)),
        (Object::SamUser(rid), 3 | 36 | 39 | 44 | 47) => caller.user == db.machine_sid().with_rid(*rid),
        _ => false,
    })
}

/// SamrConnect and its later forms, [MS-SAMR] 3.1.5.1.1 to 3.1.5.1.4.
fn connect(context: &PipeContext, handles: &mut Handles, opnum: u16) -> Answer {
    let allowed = !context.caller.is_anonymous();
    let (handle, status) =
        if allowed { opened(handles.open(Object::SamServer)) } else { (NULL_HANDLE, NtStatus::ACCESS_DENIED) };
    let mut w = NdrWriter::new();
    if opnum == 64 {
        // SamrConnect5 returns the server's revision: 3, without features.
        [1, 1, 3, 0].iter().for_each(|v| w.u32(*v));
    }
    w.handle(&handle);
    finish(w, status)
}

/// SamrCloseHandle, [MS-SAMR] 3.1.5.13.1.
fn close(handles: &mut Handles, r: &mut NdrReader<'_>) -> Answer {
    let handle = r.handle()?;
    if !handles.close(&handle, |o| *o != Object::LsaPolicy) {
        return Err(Fault::CONTEXT_MISMATCH);
    }
    let mut w = NdrWriter::new();
    w.handle(&NULL_HANDLE);
    finish(w, NtStatus::SUCCESS)
}

/// The two domains: that of the machine and the built-in one.
fn domains(db: &dyn UserDb) -> [(String, Sid); 2] {
    [(db.machine_name(), db.machine_sid()), ("Builtin".to_string(), well_known::BUILTIN.clone())]
}

/// SamrLookupDomainInSamServer, [MS-SAMR] 3.1.5.11.1.
fn lookup_domain(db: &dyn UserDb, r: &mut NdrReader<'_>) -> Answer {
    let name = r.unicode()?;
    match domains(db).into_iter().find(|(n, _)| arden_auth::users::same_name(n, &name)) {
        None => null_and(status::NO_SUCH_DOMAIN),
        Some((_, sid)) => {
            let mut w = NdrWriter::new();
            w.pointer(true);
            w.sid(&sid);
            finish(w, NtStatus::SUCCESS)
        }
    }
}

/// SamrEnumerateDomainsInSamServer, [MS-SAMR] 3.1.5.2.1.
fn enumerate_domains(db: &dyn UserDb, r: &mut NdrReader<'_>) -> Answer {
    let resume = r.u32()?;
    let rows: Vec<(u32, String)> = domains(db).into_iter().map(|(name, _)| (0, name)).collect();
    entries(resume, u32::MAX, &rows)
}

/// A SAMPR_ENUMERATION_BUFFER with its resume handle and count. The rows are limited by `max_bytes`.
fn entries(resume: u32, max_bytes: u32, rows: &[(u32, String)]) -> Answer {
    let rest = rows.get(resume as usize..).unwrap_or(&[]);
    // Windows counts 54 bytes for each row and returns at least one.
    let fit = (max_bytes as usize / 54).max(1);
    let page = &rest[..rest.len().min(fit)];
    let mut w = NdrWriter::new();
    let complete = page.len() == rest.len();
    w.u32(if complete { 0 } else { resume + page.len() as u32 });
    w.pointer(true);
    w.u32(page.len() as u32);
    w.pointer(!page.is_empty());
    if !page.is_empty() {
        w.u32(page.len() as u32);
        for (rid, name) in page {
            w.u32(*rid);
            w.unicode_head(name);
        }
        page.iter().for_each(|(_, name)| w.unicode_body(name));
    }
    w.u32(page.len() as u32);
    finish(w, if complete { NtStatus::SUCCESS } else { status::MORE_ENTRIES })
}

/// SamrOpenDomain, [MS-SAMR] 3.1.5.1.5.
fn open_domain(db: &dyn UserDb, handles: &mut Handles, r: &mut NdrReader<'_>) -> Answer {
    let _access = r.u32()?;
    let sid = r.sid()?;
    let (handle, status) = if domains(db).iter().any(|(_, s)| *s == sid) {
        opened(handles.open(Object::SamDomain(sid)))
    } else {
        (NULL_HANDLE, status::NO_SUCH_DOMAIN)
    };
    let mut w = NdrWriter::new();
    w.handle(&handle);
    finish(w, status)
}

/// SamrOpenGroup, SamrOpenAlias and SamrOpenUser, [MS-SAMR] 3.1.5.1.7 to 3.1.5.1.9.
fn open_account(
    context: &PipeContext,
    db: &dyn UserDb,
    handles: &mut Handles,
    domain: &Sid,
    r: &mut NdrReader<'_>,
    opnum: u16,
) -> Answer {
    let _access = r.u32()?;
    let rid = r.u32()?;
    let own = *domain == db.machine_sid();
    let may = reads_all(context) || opnum == 34 && context.caller.user == domain.with_rid(rid);
    let found = match opnum {
        _ if !may => Err(NtStatus::ACCESS_DENIED),
        19 if own && rid == well_known::RID_USERS => Ok(Object::SamGroup(rid)),
        19 => Err(status::NO_SUCH_GROUP),
        27 => {
            let sid = domain.with_rid(rid);
            let exists = db.groups().iter().any(|g| g.sid == sid);
            if exists { Ok(Object::SamAlias(sid)) } else { Err(status::NO_SUCH_ALIAS) }
        }
        _ if own && db.user_by_rid(rid).is_some() => Ok(Object::SamUser(rid)),
        _ => Err(NtStatus::NO_SUCH_USER),
    };
    let (handle, status) = match found {
        Ok(object) => opened(handles.open(object)),
        Err(error) => (NULL_HANDLE, error),
    };
    let mut w = NdrWriter::new();
    w.handle(&handle);
    finish(w, status)
}

/// SamrRidToSid, [MS-SAMR] 3.1.5.13.5.
fn rid_to_sid(domain: &Sid, r: &mut NdrReader<'_>) -> Answer {
    let rid = r.u32()?;
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.sid(&domain.with_rid(rid));
    finish(w, NtStatus::SUCCESS)
}

/// A SAMPR_ULONG_ARRAY, [MS-SAMR] 2.2.7.4.
fn put_ids(w: &mut NdrWriter, ids: &[u32]) {
    w.u32(ids.len() as u32);
    w.pointer(!ids.is_empty());
    if !ids.is_empty() {
        w.u32(ids.len() as u32);
        ids.iter().for_each(|id| w.u32(*id));
    }
}
