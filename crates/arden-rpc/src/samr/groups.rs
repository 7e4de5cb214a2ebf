//! Groups, aliases and their members, [MS-SAMR] 3.1.5.5.3, 3.1.5.5.4, 3.1.5.8 and 3.1.5.9.

use std::collections::HashSet;

use super::{GROUP_ATTRIBUTES, put_ids};
use crate::{
    call::{Answer, finish, null_and, status},
    lsarpc::lookup::read_sids,
};
use arden_auth::UserDb;
use arden_wire::{
    NtStatus,
    dtyp::{Sid, well_known},
    ndr::{NdrReader, NdrWriter},
};

const GROUP_NAME: &str = "None";
const GROUP_COMMENT: &str = "Ordinary users";

/// SamrQueryInformationGroup, [MS-SAMR] 3.1.5.5.3, of the only group.
pub(super) fn query_group(db: &dyn UserDb, rid: u32, r: &mut NdrReader<'_>) -> Answer {
    let class = r.u16()?;
    if rid != well_known::RID_USERS {
        return null_and(status::NO_SUCH_GROUP);
    }
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u16(class);
    match class {
        1 | 5 => {
            w.unicode_head(GROUP_NAME);
            w.u32(GROUP_ATTRIBUTES);
            // The count of GroupReplicationInformation is 0, [MS-SAMR] 3.1.5.5.3.1.
            w.u32(if class == 1 { db.users().len() as u32 } else { 0 });
            w.unicode_head(GROUP_COMMENT);
            w.unicode_body(GROUP_NAME);
            w.unicode_body(GROUP_COMMENT);
        }
        2 => w.unicode(GROUP_NAME),
        3 => w.u32(GROUP_ATTRIBUTES),
        4 => w.unicode(GROUP_COMMENT),
        _ => return null_and(NtStatus::INVALID_INFO_CLASS),
    }
    finish(w, NtStatus::SUCCESS)
}

/// SamrGetMembersInGroup, [MS-SAMR] 3.1.5.8.3: all users are in the only group.
pub(super) fn group_members(db: &dyn UserDb, rid: u32) -> Answer {
    if rid != well_known::RID_USERS {
        return null_and(status::NO_SUCH_GROUP);
    }
    let rids: Vec<u32> = db.users().iter().map(|u| u.rid).collect();
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u32(rids.len() as u32);
    w.pointer(!rids.is_empty());
    w.pointer(!rids.is_empty());
    if !rids.is_empty() {
        w.u32(rids.len() as u32);
        rids.iter().for_each(|r| w.u32(*r));
        w.u32(rids.len() as u32);
        rids.iter().for_each(|_| w.u32(GROUP_ATTRIBUTES));
    }
    finish(w, NtStatus::SUCCESS)
}

/// SamrGetGroupsForUser, [MS-SAMR] 3.1.5.9.1.
pub(super) fn groups_of_user(db: &dyn UserDb, rid: u32) -> Answer {
    if db.user_by_rid(rid).is_none() {
        return null_and(NtStatus::NO_SUCH_USER);
    }
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u32(1);
    w.pointer(true);
    w.u32(1);
    w.u32(well_known::RID_USERS);
    w.u32(GROUP_ATTRIBUTES);
    finish(w, NtStatus::SUCCESS)
}

/// SamrQueryInformationAlias, [MS-SAMR] 3.1.5.5.4.
pub(super) fn query_alias(db: &dyn UserDb, sid: &Sid, r: &mut NdrReader<'_>) -> Answer {
    let class = r.u16()?;
    let Some(group) = db.groups().into_iter().find(|g| g.sid == *sid) else {
        return null_and(status::NO_SUCH_ALIAS);
    };
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u16(class);
    match class {
        1 => {
            w.unicode_head(&group.name);
            w.u32(db.members(sid).len() as u32);
            w.unicode_head(&group.comment);
            w.unicode_body(&group.name);
            w.unicode_body(&group.comment);
        }
        2 => w.unicode(&group.name),
        3 => w.unicode(&group.comment),
        _ => return null_and(NtStatus::INVALID_INFO_CLASS),
    }
    finish(w, NtStatus::SUCCESS)
}

/// SamrGetMembersInAlias, [MS-SAMR] 3.1.5.8.6.
pub(super) fn alias_members(db: &dyn UserDb, sid: &Sid) -> Answer {
    let machine = db.machine_sid();
    let members: Vec<Sid> = db.members(sid).iter().map(|u| machine.with_rid(u.rid)).collect();
    let mut w = NdrWriter::new();
    w.u32(members.len() as u32);
    w.pointer(!members.is_empty());
    if !members.is_empty() {
        w.u32(members.len() as u32);
        members.iter().for_each(|_| w.pointer(true));
        members.iter().for_each(|m| w.sid(m));
    }
    finish(w, NtStatus::SUCCESS)
}

/// SamrGetAliasMembership, [MS-SAMR] 3.1.5.9.2: the aliases of this domain that these SIDs are in.
pub(super) fn alias_membership(db: &dyn UserDb, domain: &Sid, r: &mut NdrReader<'_>) -> Answer {
    let sids: HashSet<Sid> = read_sids(r)?.into_iter().collect();
    let machine = db.machine_sid();
    let mut rids: Vec<u32> = db
        .users()
        .iter()
        .filter(|u| sids.contains(&machine.with_rid(u.rid)))
        .flat_map(|u| &u.groups)
        .filter_map(|group| group.rid_in(domain))
        .collect();
    rids.sort_unstable();
    rids.dedup();
    let mut w = NdrWriter::new();
    put_ids(&mut w, &rids);
    finish(w, NtStatus::SUCCESS)
}
