//! Accounts and properties of a domain, [MS-SAMR] 3.1.5.2, 3.1.5.3, 3.1.5.5 and 3.1.5.11.

use super::{GROUP_ATTRIBUTES, entries, put_ids, user::account_control};
use crate::{
    PipeContext,
    call::{Answer, Fault, finish, null_and, status},
};
use arden_auth::{NameUse, UserDb, users::same_name};
use arden_wire::{
    Malformed, NtStatus,
    dtyp::{Sid, well_known},
    ndr::{NdrReader, NdrWriter},
};

/// The group of all users.
const ALL_USERS: &str = "None";

/// An account of a domain.
struct Account {
    rid: u32,
    name: String,
    comment: String,
    full_name: String,
    name_use: NameUse,
    control: u32,
}

/// All accounts of a domain.
fn accounts(db: &dyn UserDb, domain: &Sid) -> Vec<Account> {
    let mut out = Vec::new();
    if *domain == db.machine_sid() {
        out.extend(db.users().into_iter().map(|u| Account {
            rid: u.rid,
            control: account_control(&u),
            name: u.name,
            comment: u.comment,
            full_name: u.full_name,
            name_use: NameUse::User,
        }));
        out.push(Account {
            rid: well_known::RID_USERS,
            name: ALL_USERS.to_string(),
            comment: "Ordinary users".to_string(),
            full_name: String::new(),
            name_use: NameUse::Group,
            control: GROUP_ATTRIBUTES,
        });
    }
    out.extend(db.groups().into_iter().filter_map(|g| {
        Some(Account {
            rid: g.sid.rid_in(domain)?,
            name: g.name,
            comment: g.comment,
            full_name: String::new(),
            name_use: NameUse::Alias,
            control: GROUP_ATTRIBUTES,
        })
    }));
    out
}

/// The account of this name, found without a search through all accounts: one call asks for up to 1000.
fn by_name(db: &dyn UserDb, domain: &Sid, name: &str) -> Option<(u32, NameUse)> {
    if *domain == db.machine_sid() {
        if let Some(user) = db.user(name) {
            return Some((user.rid, NameUse::User));
        }
        if same_name(name, ALL_USERS) {
            return Some((well_known::RID_USERS, NameUse::Group));
        }
    }
    db.groups_named(name).iter().find_map(|g| g.sid.rid_in(domain)).map(|rid| (rid, NameUse::Alias))
}

/// The account with this RID.
fn by_rid(db: &dyn UserDb, domain: &Sid, rid: u32) -> Option<(String, NameUse)> {
    if *domain == db.machine_sid() {
        if let Some(user) = db.user_by_rid(rid) {
            return Some((user.name, NameUse::User));
        }
        if rid == well_known::RID_USERS {
            return Some((ALL_USERS.to_string(), NameUse::Group));
        }
    }
    db.group(&domain.with_rid(rid)).map(|g| (g.name, NameUse::Alias))
}

/// SamrEnumerateGroupsInDomain (11), SamrEnumerateUsersInDomain (13) and SamrEnumerateAliasesInDomain (15), [MS-SAMR]
/// 3.1.5.2.3, 3.1.5.2.5 and 3.1.5.2.4.
pub(super) fn enumerate(db: &dyn UserDb, domain: &Sid, r: &mut NdrReader<'_>, opnum: u16) -> Answer {
    let resume = r.u32()?;
    // Only users are filtered by their account control; 0 selects all of them.
    let control = if opnum == 13 { r.u32()? } else { 0 };
    let max_bytes = r.u32()?;
    let wanted = match opnum {
        11 => NameUse::Group,
        13 => NameUse::User,
        _ => NameUse::Alias,
    };
    let mut rows: Vec<(u32, String)> = accounts(db, domain)
        .into_iter()
        .filter(|a| a.name_use == wanted && (control == 0 || a.control & control != 0))
        .map(|a| (a.rid, a.name))
        .collect();
    rows.sort_by_key(|(rid, _)| *rid);
    entries(resume, max_bytes, &rows)
}

/// Reads the count of a conformant varying array, whose maximum is 1000 in all calls that have one.
fn varying_count(r: &mut NdrReader<'_>, count: u32) -> Result<(), Malformed> {
    let (max, offset, actual) = (r.u32()?, r.u32()?, r.u32()?);
    if max > 1000 || offset != 0 || actual != count || count > max {
        return Err(Malformed("varying array"));
    }
    Ok(())
}

fn outcome(mapped: usize, asked: usize) -> NtStatus {
    match mapped {
        n if n == asked => NtStatus::SUCCESS,
        0 => NtStatus::NONE_MAPPED,
        _ => status::SOME_NOT_MAPPED,
    }
}

/// SamrLookupNamesInDomain, [MS-SAMR] 3.1.5.11.2.
pub(super) fn lookup_names(db: &dyn UserDb, domain: &Sid, r: &mut NdrReader<'_>) -> Answer {
    let count = r.u32()?;
    varying_count(r, count)?;
    let heads = (0..count).map(|_| r.unicode_head()).collect::<Result<Vec<_>, _>>()?;
    let names = heads.into_iter().map(|has| if has { r.wide() } else { Ok(String::new()) });
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let found: Vec<Option<(u32, NameUse)>> = names.iter().map(|n| by_name(db, domain, n)).collect();
    let mapped = found.iter().flatten().count();
    let rids: Vec<u32> = found.iter().map(|f| f.map_or(0, |(rid, _)| rid)).collect();
    let uses: Vec<u32> = found.iter().map(|f| f.map_or(NameUse::Unknown, |(_, name_use)| name_use) as u32).collect();
    let mut w = NdrWriter::new();
    put_ids(&mut w, &rids);
    put_ids(&mut w, &uses);
    finish(w, outcome(mapped, names.len()))
}

/// SamrLookupIdsInDomain, [MS-SAMR] 3.1.5.11.3.
pub(super) fn lookup_rids(db: &dyn UserDb, domain: &Sid, r: &mut NdrReader<'_>) -> Answer {
    let count = r.u32()?;
    varying_count(r, count)?;
    let rids = (0..count).map(|_| r.u32()).collect::<Result<Vec<_>, _>>()?;
    let found: Vec<Option<(String, NameUse)>> = rids.iter().map(|rid| by_rid(db, domain, *rid)).collect();
    let mapped = found.iter().flatten().count();
    let uses: Vec<u32> = found.iter().map(|f| f.as_ref().map_or(NameUse::Unknown, |(_, u)| *u) as u32).collect();
    let names: Vec<&str> = found.iter().map(|f| f.as_ref().map_or("", |(name, _)| name.as_str())).collect();
    let mut w = NdrWriter::new();
    w.u32(names.len() as u32);
    w.pointer(!names.is_empty());
    if !names.is_empty() {
        w.u32(names.len() as u32);
        names.iter().for_each(|n| w.unicode_head(n));
        names.iter().for_each(|n| w.unicode_body(n));
    }
    put_ids(&mut w, &uses);
    finish(w, outcome(mapped, rids.len()))
}

/// OLD_LARGE_INTEGER, [MS-SAMR] 2.2.2.2, which is aligned to 4 bytes.
pub(super) fn put_old_large(w: &mut NdrWriter, v: u64) {
    w.u32(v as u32);
    w.u32((v >> 32) as u32);
}

/// The relative time "never".
pub(super) const NEVER: u64 = 0x8000_0000_0000_0000;
/// Duration of lock-outs in units of 100 ns: -30 minutes. There are no lock-outs.
const HALF_HOUR: u64 = (-18_000_000_000i64) as u64;

/// SamrQueryInformationDomain and SamrQueryInformationDomain2, [MS-SAMR] 3.1.5.5.2 and 3.1.5.5.1.
pub(super) fn query_information(context: &PipeContext, db: &dyn UserDb, domain: &Sid, r: &mut NdrReader<'_>) -> Answer {
    let class = r.u16()?;
    let identity = context.view.identity();
    let name = if *domain == db.machine_sid() { identity.netbios_name.clone() } else { "Builtin".to_string() };
    let started = context.view.started();
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u16(class);
    match class {
        1 => {
            w.align(4);
            // No minimum length, no history, no properties, passwords never expire.
            w.u16(0);
            w.u16(0);
            w.u32(0);
            put_old_large(&mut w, NEVER);
            put_old_large(&mut w, 0);
        }
        2 | 11 => {
            let all = accounts(db, domain);
            let count = |kind| all.iter().filter(|a| a.name_use == kind).count() as u32;
            let texts = [context.view.comment(), name, String::new()];
            put_old_large(&mut w, NEVER);
            texts.iter().for_each(|t| w.unicode_head(t));
            put_old_large(&mut w, 1);
            // Enabled, primary, and a consistency bit that is always set.
            [1, 3, 1].iter().for_each(|v| w.u32(*v));
            [NameUse::User, NameUse::Group, NameUse::Alias].iter().for_each(|k| w.u32(count(*k)));
            if class == 11 {
                w.u64(HALF_HOUR);
                w.u64(HALF_HOUR);
                w.u16(0);
            }
            texts.iter().for_each(|t| w.unicode_body(t));
        }
        3 => put_old_large(&mut w, NEVER),
        4 => w.unicode(&context.view.comment()),
        5 => w.unicode(&name),
        6 => w.unicode(""),
        8 => {
            w.u64(1);
            put_old_large(&mut w, started.0);
        }
        9 => w.u32(1),
        12 => {
            w.u64(HALF_HOUR);
            w.u64(HALF_HOUR);
            w.u16(0);
        }
        _ => return null_and(NtStatus::INVALID_INFO_CLASS),
    }
    finish(w, NtStatus::SUCCESS)
}

/// SamrGetUserDomainPasswordInformation and SamrGetDomainPasswordInformation, [MS-SAMR] 3.1.5.13.3 and 3.1.5.13.4.
pub(super) fn password_information() -> Answer {
    let mut w = NdrWriter::new();
    w.u16(0);
    w.u32(0);
    finish(w, NtStatus::SUCCESS)
}

/// SamrQueryDisplayInformation and its later forms, [MS-SAMR] 3.1.5.3.1 to 3.1.5.3.3.
pub(super) fn display_information(db: &dyn UserDb, domain: &Sid, r: &mut NdrReader<'_>) -> Answer {
    let class = r.u16()?;
    let (start, entries_max, _bytes_max) = (r.u32()? as usize, r.u32()? as usize, r.u32()?);
    let wanted = match class {
        1 | 4 => NameUse::User,
        2 => NameUse::Computer,
        3 | 5 => NameUse::Group,
        _ => return Err(Fault::BAD_STUB),
    };
    let mut all: Vec<Account> = accounts(db, domain).into_iter().filter(|a| a.name_use == wanted).collect();
    all.sort_by_cached_key(|a| a.name.to_uppercase());
    let rest = all.get(start..).unwrap_or(&[]);
    let page = &rest[..rest.len().min(entries_max)];
    let mut w = NdrWriter::new();
    w.u32(all.len() as u32);
    w.u32(page.len() as u32);
    w.u16(class);
    w.u32(page.len() as u32);
    w.pointer(!page.is_empty());
    if !page.is_empty() {
        w.u32(page.len() as u32);
        for (i, a) in page.iter().enumerate() {
            display_head(&mut w, class, start + i, a);
        }
        page.iter().for_each(|a| display_body(&mut w, class, a));
    }
    finish(w, if page.len() == rest.len() { NtStatus::SUCCESS } else { status::MORE_ENTRIES })
}

fn display_head(w: &mut NdrWriter, class: u16, index: usize, a: &Account) {
    w.u32(index as u32 + 1);
    if class > 3 {
        // An OEM string with room for a terminator.
        let length = oem(&a.name).len() as u16;
        w.u16(length);
        w.u16(length + 1);
        w.pointer(true);
        return;
    }
    w.u32(a.rid);
    w.u32(a.control);
    w.unicode_head(&a.name);
    w.unicode_head(&a.comment);
    if class == 1 {
        w.unicode_head(&a.full_name);
    }
}

fn display_body(w: &mut NdrWriter, class: u16, a: &Account) {
    if class > 3 {
        let name = oem(&a.name);
        w.u32(name.len() as u32 + 1);
        w.u32(0);
        w.u32(name.len() as u32);
        w.bytes(&name);
        return;
    }
    w.unicode_body(&a.name);
    w.unicode_body(&a.comment);
    if class == 1 {
        w.unicode_body(&a.full_name);
    }
}

/// The name as an OEM string: characters outside ASCII become question marks.
fn oem(name: &str) -> Vec<u8> {
    name.chars().map(|c| if c.is_ascii() { c as u8 } else { b'?' }).collect()
}
