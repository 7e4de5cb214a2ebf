//! Translation of names and SIDs, [MS-LSAT] 3.1.4.5 to 3.1.4.11.

use crate::{
    PipeContext,
    call::{Answer, finish, status},
};
use arden_auth::{NameUse, Principal};
use arden_wire::{
    Malformed, NtStatus,
    dtyp::Sid,
    ndr::{NdrReader, NdrWriter},
};

/// Limits of the counts of names and SIDs, [MS-LSAT] 2.2.
const NAMES_MAX: usize = 1000;
const SIDS_MAX: usize = 20_480;
const NO_DOMAIN: u32 = u32::MAX;

/// An LSAPR_REFERENCED_DOMAIN_LIST, [MS-LSAT] 2.2.12, under construction.
#[derive(Default)]
struct Domains {
    list: Vec<(String, Option<Sid>)>,
}

impl Domains {
    fn index(&mut self, found: &Principal) -> u32 {
        let domain = (found.domain.clone(), found.domain_sid.clone());
        let at = self.list.iter().position(|d| *d == domain).unwrap_or_else(|| {
            self.list.push(domain);
            self.list.len() - 1
        });
        at as u32
    }

    fn put(&self, w: &mut NdrWriter) {
        w.pointer(true);
        w.u32(self.list.len() as u32);
        w.pointer(!self.list.is_empty());
        w.u32(32);
        if self.list.is_empty() {
            return;
        }
        w.u32(self.list.len() as u32);
        for (name, sid) in &self.list {
            w.unicode_large_head(name);
            w.pointer(sid.is_some());
        }
        for (name, sid) in &self.list {
            w.unicode_large_body(name);
            if let Some(sid) = sid {
                w.sid(sid);
            }
        }
    }
}

fn outcome(mapped: usize, asked: usize) -> NtStatus {
    match mapped {
        n if n == asked => NtStatus::SUCCESS,
        0 => NtStatus::NONE_MAPPED,
        _ => status::SOME_NOT_MAPPED,
    }
}

/// LsarLookupNames (14), LsarLookupNames2 (58) and LsarLookupNames3 (68), [MS-LSAT] 3.1.4.8, 3.1.4.7 and 3.1.4.6.
pub(super) fn names(context: &PipeContext, r: &mut NdrReader<'_>, opnum: u16) -> Answer {
    let count = r.u32()? as usize;
    if count > NAMES_MAX || r.count(8)? != count {
        return Err(Malformed("count of names").into());
    }
    let heads = (0..count).map(|_| r.unicode_head()).collect::<Result<Vec<_>, _>>()?;
    let names = heads.into_iter().map(|has| if has { r.wide() } else { Ok(String::new()) });
    let names = names.collect::<Result<Vec<_>, _>>()?;

    let users = context.view.users();
    let found: Vec<Option<Principal>> = names.iter().map(|n| users.lookup_name(n)).collect();
    let mapped = found.iter().flatten().count();
    let mut domains = Domains::default();
    let indices: Vec<u32> = found.iter().map(|f| f.as_ref().map_or(NO_DOMAIN, |p| domains.index(p))).collect();

    let mut w = NdrWriter::new();
    domains.put(&mut w);
    w.u32(count as u32);
    w.pointer(count > 0);
    if count > 0 {
        w.u32(count as u32);
        for (found, index) in found.iter().zip(indices) {
            w.u16(found.as_ref().map_or(NameUse::Unknown, |p| p.name_use) as u16);
            if opnum == 68 {
                w.align(4);
                w.pointer(found.is_some());
            } else {
                w.u32(found.as_ref().map_or(0, relative_id));
            }
            w.u32(index);
            if opnum != 14 {
                w.u32(0);
            }
        }
        if opnum == 68 {
            found.iter().flatten().for_each(|p| w.sid(&p.sid));
        }
    }
    w.u32(mapped as u32);
    finish(w, outcome(mapped, count))
}

/// The RID relative to the referenced domain; 0xFFFFFFFF for a domain itself.
fn relative_id(found: &Principal) -> u32 {
    match found.name_use {
        NameUse::Domain => u32::MAX,
        _ => found.sid.split_rid().map_or(u32::MAX, |(_, rid)| rid),
    }
}

/// Reads an LSAPR_SID_ENUM_BUFFER, [MS-LSAT] 2.2.18.
pub(crate) fn read_sids(r: &mut NdrReader<'_>) -> Result<Vec<Sid>, Malformed> {
    let count = r.u32()? as usize;
    if !r.pointer()? {
        return if count == 0 { Ok(Vec::new()) } else { Err(Malformed("SIDs missing")) };
    }
    if count > SIDS_MAX || r.count(4)? != count {
        return Err(Malformed("count of SIDs"));
    }
    for _ in 0..count {
        if !r.pointer()? {
            return Err(Malformed("null SID"));
        }
    }
    (0..count).map(|_| r.sid()).collect()
}

/// LsarLookupSids (15) and LsarLookupSids2 (57), [MS-LSAT] 3.1.4.11 and 3.1.4.10.
pub(super) fn sids(context: &PipeContext, r: &mut NdrReader<'_>, opnum: u16) -> Answer {
    let sids = read_sids(r)?;
    let users = context.view.users();
    let found: Vec<Option<Principal>> = sids.iter().map(|s| users.lookup_sid(s)).collect();
    let mapped = found.iter().flatten().count();
    let mut domains = Domains::default();
    let rows: Vec<(NameUse, String, u32)> = sids
        .iter()
        .zip(&found)
        .map(|(sid, found)| match found {
            // A domain is its own entry in the list of domains, and its name is empty.
            Some(p) if p.name_use == NameUse::Domain => (p.name_use, String::new(), domains.index(p)),
            Some(p) => (p.name_use, p.name.clone(), domains.index(p)),
            None => (NameUse::Unknown, sid.to_string(), NO_DOMAIN),
        })
        .collect();

    let mut w = NdrWriter::new();
    domains.put(&mut w);
    w.u32(rows.len() as u32);
    w.pointer(!rows.is_empty());
    if !rows.is_empty() {
        w.u32(rows.len() as u32);
        for (name_use, name, index) in &rows {
            w.u16(*name_use as u16);
            w.unicode_head(name);
            w.u32(*index);
            if opnum != 15 {
                w.u32(0);
            }
        }
        rows.iter().for_each(|(_, name, _)| w.unicode_body(name));
    }
    w.u32(mapped as u32);
    finish(w, outcome(mapped, rows.len()))
}
