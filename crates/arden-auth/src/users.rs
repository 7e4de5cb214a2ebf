//! Accounts: the user database that authentication and name look-ups need, and one in memory. Stores nothing: an owner
//! of a store loads it into [`MemoryUsers`] or implements [`UserDb`].

use crate::crypto::{NtHash, upper};
use arden_wire::dtyp::{Sid, well_known};
use parking_lot::RwLock;
use std::{collections::BTreeMap, sync::LazyLock};

/// A user of this machine.
#[derive(Debug, Clone)]
pub struct UserRecord {
    pub name: String,
    pub full_name: String,
    pub comment: String,
    /// The relative identifier in the machine's SID.
    pub rid: u32,
    pub nt_hash: NtHash,
    /// Groups of this machine and built-in ones. Groups that every user is in may be left out.
    pub groups: Vec<Sid>,
    pub disabled: bool,
}

/// A group of this machine or a built-in group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRecord {
    pub name: String,
    pub comment: String,
    pub sid: Sid,
}

/// SID_NAME_USE, [MS-SAMR] 2.2.2.3 and [MS-LSAT] 2.2.13.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameUse {
    User = 1,
    Group = 2,
    Domain = 3,
    Alias = 4,
    WellKnownGroup = 5,
    Deleted = 6,
    Invalid = 7,
    Unknown = 8,
    Computer = 9,
    Label = 10,
}

/// An account or group with its SID, as LSA look-ups return it, [MS-LSAT] 3.1.4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub sid: Sid,
    pub name: String,
    /// The domain part of the name: the machine, "BUILTIN", "NT AUTHORITY" or empty.
    pub domain: String,
    pub domain_sid: Option<Sid>,
    pub name_use: NameUse,
}

/// A database of users and groups.
pub trait UserDb: Send + Sync {
    /// The machine's SID, S-1-5-21-a-b-c, which is the domain of its accounts.
    fn machine_sid(&self) -> Sid;
    /// The machine's NetBIOS name, which is the domain part of its accounts' names.
    fn machine_name(&self) -> String;
    /// The user with this name, compared without case.
    fn user(&self, name: &str) -> Option<UserRecord>;
    /// All users, by RID.
    fn users(&self) -> Vec<UserRecord>;
    /// All groups.
    fn groups(&self) -> Vec<GroupRecord>;

    /// The user with this RID. An implementation uses an index: directory listings ask for thousands of SIDs.
    fn user_by_rid(&self, rid: u32) -> Option<UserRecord> {
        self.users().into_iter().find(|u| u.rid == rid)
    }

    /// The group with this SID.
    fn group(&self, sid: &Sid) -> Option<GroupRecord> {
        self.groups().into_iter().find(|g| g.sid == *sid)
    }

    /// The groups with this name, compared without case. A group of the machine and a built-in one may have the same
    /// name.
    fn groups_named(&self, name: &str) -> Vec<GroupRecord> {
        self.groups().into_iter().filter(|g| same_name(&g.name, name)).collect()
    }

    /// The users of which `group` is a group.
    fn members(&self, group: &Sid) -> Vec<UserRecord> {
        self.users().into_iter().filter(|u| u.groups.contains(group)).collect()
    }

    /// The principal with this SID.
    fn lookup_sid(&self, sid: &Sid) -> Option<Principal> {
        let machine = self.machine_sid();
        if *sid == machine {
            let name = self.machine_name();
            return Some(Principal {
                sid: machine.clone(),
                name: name.clone(),
                domain: name,
                domain_sid: Some(machine),
                name_use: NameUse::Domain,
            });
        }
        if let Some(user) = sid.rid_in(&machine).and_then(|rid| self.user_by_rid(rid)) {
            return Some(local(self, user.name, sid, NameUse::User));
        }
        if let Some(group) = self.group(sid) {
            return Some(of_group(self, group));
        }
        if *sid == machine.with_rid(well_known::RID_USERS) {
            return Some(local(self, "None".to_string(), sid, NameUse::Group));
        }
        WELL_KNOWN.iter().find(|p| p.sid == *sid).cloned()
    }

    /// The principal with this name, with or without a domain part before a backslash.
    fn lookup_name(&self, name: &str) -> Option<Principal> {
        let (domain, account) = match name.split_once('\\') {
            Some((domain, account)) => (Some(domain), account),
            None => (None, name),
        };
        let machine = self.machine_name();
        if account.is_empty() {
            // A domain alone; the empty name is the built-in one, as Windows has it.
            let name = domain.unwrap_or("BUILTIN");
            let domains = [self.machine_sid(), well_known::BUILTIN.clone()];
            return domains.iter().filter_map(|sid| self.lookup_sid(sid)).find(|p| same_name(&p.name, name));
        }
        let domain_is = |d: &str| domain.is_none_or(|given| same_name(given, d));
        if let Some(user) = self.user(account).filter(|_| domain_is(&machine)) {
            let sid = self.machine_sid().with_rid(user.rid);
            return Some(local(self, user.name, &sid, NameUse::User));
        }
        let mut groups = self.groups_named(account).into_iter().map(|g| of_group(self, g));
        if let Some(found) = groups.find(|p| domain_is(&p.domain)) {
            return Some(found);
        }
        if let Some(found) = WELL_KNOWN.iter().find(|p| same_name(&p.name, account) && domain_is(&p.domain)) {
            return Some(found.clone());
        }
        if domain_is(&machine) && same_name(account, "None") {
            let sid = self.machine_sid().with_rid(well_known::RID_USERS);
            return Some(local(self, "None".to_string(), &sid, NameUse::Group));
        }
        if domain.is_none() && same_name(account, &machine) {
            return self.lookup_sid(&self.machine_sid());
        }
        None
    }
}

/// Whether two account names are equal without case.
pub fn same_name(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b) || upper(a) == upper(b)
}

fn local<D: UserDb + ?Sized>(db: &D, name: String, sid: &Sid, name_use: NameUse) -> Principal {
    Principal { sid: sid.clone(), name, domain: db.machine_name(), domain_sid: Some(db.machine_sid()), name_use }
}

fn of_group<D: UserDb + ?Sized>(db: &D, group: GroupRecord) -> Principal {
    let builtin = group.sid.rid_in(&well_known::BUILTIN).is_some();
    let name_use = NameUse::Alias;
    if builtin {
        let domain_sid = Some(well_known::BUILTIN.clone());
        return Principal { sid: group.sid, name: group.name, domain: "BUILTIN".to_string(), domain_sid, name_use };
    }
    let sid = group.sid;
    local(db, group.name, &sid, name_use)
}

/// The principals of every machine, with the names that Windows gives them, [MS-DTYP] 2.4.2.4.
static WELL_KNOWN: LazyLock<Vec<Principal>> = LazyLock::new(well_known_principals);

fn well_known_principals() -> Vec<Principal> {
    let authority = Sid::new(5, &[]);
    let row = |sid: &Sid, domain: &str, domain_sid: Option<Sid>, name: &str| Principal {
        sid: sid.clone(),
        name: name.to_string(),
        domain: domain.to_string(),
        domain_sid,
        name_use: NameUse::WellKnownGroup,
    };
    let world = |sid: &Sid, name: &str| {
        let domain = sid.split_rid().map(|(domain, _)| domain);
        row(sid, "", domain, name)
    };
    let nt = |sid: &Sid, name: &str| row(sid, "NT AUTHORITY", Some(authority.clone()), name);
    let alias = |sid: &Sid, name: &str| Principal {
        name_use: NameUse::Alias,
        ..row(sid, "BUILTIN", Some(well_known::BUILTIN.clone()), name)
    };
    vec![
        world(&well_known::EVERYONE, "Everyone"),
        world(&well_known::LOCAL, "LOCAL"),
        world(&well_known::CREATOR_OWNER, "CREATOR OWNER"),
        world(&well_known::CREATOR_GROUP, "CREATOR GROUP"),
        world(&well_known::OWNER_RIGHTS, "OWNER RIGHTS"),
        nt(&well_known::NETWORK, "NETWORK"),
        nt(&well_known::BATCH, "BATCH"),
        nt(&well_known::INTERACTIVE, "INTERACTIVE"),
        nt(&well_known::SERVICE, "SERVICE"),
        nt(&well_known::ANONYMOUS, "ANONYMOUS LOGON"),
        nt(&well_known::PRINCIPAL_SELF, "SELF"),
        nt(&well_known::AUTHENTICATED_USERS, "Authenticated Users"),
        nt(&well_known::THIS_ORGANIZATION, "This Organization"),
        nt(&well_known::SYSTEM, "SYSTEM"),
        nt(&well_known::LOCAL_SERVICE, "LOCAL SERVICE"),
        nt(&well_known::NETWORK_SERVICE, "NETWORK SERVICE"),
        nt(&well_known::NTLM_AUTHENTICATION, "NTLM Authentication"),
        alias(&well_known::BUILTIN_ADMINISTRATORS, "Administrators"),
        alias(&well_known::BUILTIN_USERS, "Users"),
        alias(&well_known::BUILTIN_GUESTS, "Guests"),
        alias(&well_known::BUILTIN_BACKUP_OPERATORS, "Backup Operators"),
        Principal {
            name_use: NameUse::Domain,
            ..row(&well_known::BUILTIN, "BUILTIN", Some(well_known::BUILTIN.clone()), "BUILTIN")
        },
    ]
}

/// The built-in groups of every machine.
pub fn builtin_groups() -> Vec<GroupRecord> {
    let row = |sid: &Sid, name: &str, comment: &str| GroupRecord {
        sid: sid.clone(),
        name: name.to_string(),
        comment: comment.to_string(),
    };
    vec![
        row(&well_known::BUILTIN_ADMINISTRATORS, "Administrators", "Full access to the server"),
        row(&well_known::BUILTIN_USERS, "Users", "All users of the server"),
        row(&well_known::BUILTIN_GUESTS, "Guests", ""),
        row(&well_known::BUILTIN_BACKUP_OPERATORS, "Backup Operators", "May read and restore all files"),
    ]
}

struct Accounts {
    machine_sid: Sid,
    machine_name: String,
    /// By upper-case name.
    users: BTreeMap<String, UserRecord>,
    /// The upper-case names by RID.
    by_rid: BTreeMap<u32, String>,
    groups: BTreeMap<Sid, GroupRecord>,
    /// The SIDs by upper-case name.
    groups_by_name: BTreeMap<String, Vec<Sid>>,
}

impl Accounts {
    fn put_user(&mut self, user: UserRecord) {
        let key = upper(&user.name);
        self.remove_user(&key);
        self.by_rid.insert(user.rid, key.clone());
        self.users.insert(key, user);
    }

    fn remove_user(&mut self, key: &str) -> bool {
        let removed = self.users.remove(key);
        if let Some(user) = &removed {
            self.by_rid.remove(&user.rid);
        }
        removed.is_some()
    }

    fn put_group(&mut self, group: GroupRecord) {
        let old_name = self.groups.get(&group.sid).map(|old| upper(&old.name));
        if let Some(sids) = old_name.and_then(|name| self.groups_by_name.get_mut(&name)) {
            sids.retain(|sid| *sid != group.sid);
        }
        self.groups_by_name.entry(upper(&group.name)).or_default().push(group.sid.clone());
        self.groups.insert(group.sid.clone(), group);
    }
}

/// A user database in memory. Its methods may be called from several threads.
pub struct MemoryUsers {
    inner: RwLock<Accounts>,
}

impl MemoryUsers {
    /// A database with the built-in groups and no users.
    pub fn new(machine_name: &str, machine_sid: Sid) -> MemoryUsers {
        let mut accounts = Accounts {
            machine_sid,
            machine_name: machine_name.to_string(),
            users: BTreeMap::new(),
            by_rid: BTreeMap::new(),
            groups: BTreeMap::new(),
            groups_by_name: BTreeMap::new(),
        };
        builtin_groups().into_iter().for_each(|g| accounts.put_group(g));
        MemoryUsers { inner: RwLock::new(accounts) }
    }

    /// Adds a user, or replaces the user with that name.
    pub fn put_user(&self, user: UserRecord) {
        self.inner.write().put_user(user);
    }

    /// Adds a user with a password and the next free RID from 1000, and returns the RID. An existing user of that name
    /// keeps its RID.
    pub fn add_user(&self, name: &str, password: &str, groups: &[Sid]) -> u32 {
        let mut inner = self.inner.write();
        let users = &inner.users;
        let of_groups = inner.groups.keys().filter_map(|sid| sid.rid_in(&inner.machine_sid));
        let taken = inner.by_rid.keys().copied().chain(of_groups);
        let next = taken.filter(|rid| *rid >= 1000).max().map_or(1000, |rid| rid + 1);
        let rid = users.get(&upper(name)).map_or(next, |u| u.rid);
        let user = UserRecord {
            name: name.to_string(),
            full_name: String::new(),
            comment: String::new(),
            rid,
            nt_hash: NtHash::of_password(password),
            groups: groups.to_vec(),
            disabled: false,
        };
        inner.put_user(user);
        rid
    }

    /// Removes a user; false when there is none with this name.
    pub fn remove_user(&self, name: &str) -> bool {
        self.inner.write().remove_user(&upper(name))
    }

    /// Adds a group, or replaces the group with that SID.
    pub fn put_group(&self, group: GroupRecord) {
        self.inner.write().put_group(group);
    }

    /// Replaces all users and groups in one step: no logon sees a part of the change.
    pub fn replace(&self, users: Vec<UserRecord>, groups: Vec<GroupRecord>) {
        let mut inner = self.inner.write();
        inner.users.clear();
        inner.by_rid.clear();
        inner.groups.clear();
        inner.groups_by_name.clear();
        users.into_iter().for_each(|u| inner.put_user(u));
        builtin_groups().into_iter().chain(groups).for_each(|g| inner.put_group(g));
    }
}

impl UserDb for MemoryUsers {
    fn machine_sid(&self) -> Sid {
        self.inner.read().machine_sid.clone()
    }
    fn machine_name(&self) -> String {
        self.inner.read().machine_name.clone()
    }
    fn user(&self, name: &str) -> Option<UserRecord> {
        self.inner.read().users.get(&upper(name)).cloned()
    }
    fn users(&self) -> Vec<UserRecord> {
        let inner = self.inner.read();
        inner.by_rid.values().filter_map(|name| inner.users.get(name)).cloned().collect()
    }
    fn groups(&self) -> Vec<GroupRecord> {
        self.inner.read().groups.values().cloned().collect()
    }
    fn user_by_rid(&self, rid: u32) -> Option<UserRecord> {
        let inner = self.inner.read();
        inner.users.get(inner.by_rid.get(&rid)?).cloned()
    }
    fn group(&self, sid: &Sid) -> Option<GroupRecord> {
        self.inner.read().groups.get(sid).cloned()
    }
    fn groups_named(&self, name: &str) -> Vec<GroupRecord> {
        let inner = self.inner.read();
        let sids = inner.groups_by_name.get(&upper(name)).into_iter().flatten();
        sids.filter_map(|sid| inner.groups.get(sid)).cloned().collect()
    }
}
