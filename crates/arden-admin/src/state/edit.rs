//! Operations on a snapshot of the state: users, groups, shares and settings, by name. They check the form of names and
//! values; a server checks whether a directory can be served.

use super::{EVERYONE_SID, Snapshot};
use crate::{
    error::{AdminError, ErrorKind, Result},
    model::{
        Grant, GroupInfo, GroupRecord, NewGroup, NewUser, Settings, SettingsChange, Share, ShareChange, ShareKind,
        UserChange, UserInfo, UserRecord, VOLUME_CACHE_BYTES_MIN,
    },
    names::{self, key},
    secret::{hex, nt_hash},
};

/// Windows clients cut passwords off at 127 characters; [MS-SAMR] has no limit.
const PASSWORD_CHARS_MAX: usize = 127;

fn hash_of(password: &str) -> Result<String> {
    let chars = password.chars().count();
    if chars == 0 || chars > PASSWORD_CHARS_MAX {
        return Err(AdminError::invalid(
            "the password is empty or too long",
            format!("use 1 to {PASSWORD_CHARS_MAX} characters"),
        ));
    }
    Ok(hex(&nt_hash(password)))
}

impl Snapshot {
    fn account_name_is_free(&self, name: &str) -> Result<()> {
        if self.users.contains_key(&key(name)) {
            let hint = "users and groups share their names: change it with `arden user set`, or choose another name";
            return Err(AdminError::exists("user", name, hint));
        }
        if self.groups.contains_key(&key(name)) {
            return Err(AdminError::exists("group", name, "users and groups share their names: choose another one"));
        }
        Ok(())
    }

    fn take_rid(&mut self) -> u32 {
        self.next_rid += 1;
        self.next_rid - 1
    }

    /// The user `name`, compared without case.
    ///
    /// # Errors
    /// Not found.
    pub fn user(&self, name: &str) -> Result<&UserRecord> {
        self.users.get(&key(name)).ok_or_else(|| AdminError::not_found("user", name))
    }

    /// The user as the API shows it.
    pub fn user_info(&self, user: &UserRecord) -> UserInfo {
        let sid = self.user_sid(user);
        let groups = self.groups.values().filter(|g| g.members.contains(&sid)).map(|g| g.name.clone()).collect();
        UserInfo { name: user.name.clone(), full_name: user.full_name.clone(), sid, groups, disabled: user.disabled }
    }

    /// Adds a user with a new RID.
    ///
    /// # Errors
    /// Invalid for a bad name or password; exists; not found for an unknown group.
    pub fn add_user(&mut self, new: &NewUser) -> Result<UserInfo> {
        names::check_account("user", &new.name, 20)?;
        self.account_name_is_free(&new.name)?;
        let nt_hash = hash_of(&new.password)?;
        let rid = self.take_rid();
        let (name, full_name) = (new.name.clone(), new.full_name.clone());
        let user = UserRecord { name, full_name, rid, nt_hash, disabled: new.disabled };
        self.users.insert(key(&new.name), user.clone());
        for group in &new.groups {
            self.add_member(group, &new.name)?;
        }
        Ok(self.user_info(&user))
    }

    /// Changes the fields that `change` has.
    ///
    /// # Errors
    /// Not found; invalid for a bad password.
    pub fn change_user(&mut self, name: &str, change: &UserChange) -> Result<UserInfo> {
        let user = self.users.get_mut(&key(name)).ok_or_else(|| AdminError::not_found("user", name))?;
        if let Some(password) = &change.password {
            user.nt_hash = hash_of(password)?;
        }
        if let Some(full_name) = &change.full_name {
            user.full_name.clone_from(full_name);
        }
        if let Some(disabled) = change.disabled {
            user.disabled = disabled;
        }
        let user = user.clone();
        Ok(self.user_info(&user))
    }

    /// Removes a user, also from every group. Grants to the user stay, as a SID: removing the last grant would open the
    /// share to everyone.
    ///
    /// # Errors
    /// Not found.
    pub fn remove_user(&mut self, name: &str) -> Result<UserInfo> {
        let info = self.user_info(self.user(name)?);
        self.users.remove(&key(name));
        for group in self.groups.values_mut() {
            group.members.retain(|sid| *sid != info.sid);
        }
        Ok(info)
    }

    /// The group `name`, compared without case.
    ///
    /// # Errors
    /// Not found.
    pub fn group(&self, name: &str) -> Result<&GroupRecord> {
        self.groups.get(&key(name)).ok_or_else(|| AdminError::not_found("group", name))
    }

    /// The group as the API shows it.
    pub fn group_info(&self, group: &GroupRecord) -> GroupInfo {
        GroupInfo {
            name: group.name.clone(),
            comment: group.comment.clone(),
            sid: group.sid.clone(),
            builtin: group.sid.starts_with("S-1-5-32-"),
            members: group.members.iter().map(|sid| self.name_of(sid)).collect(),
        }
    }

    /// Adds a group with a new RID.
    ///
    /// # Errors
    /// Invalid for a bad name; exists.
    pub fn add_group(&mut self, new: &NewGroup) -> Result<GroupInfo> {
        names::check_account("group", &new.name, 256)?;
        self.account_name_is_free(&new.name)?;
        let rid = self.take_rid();
        let sid = format!("{}-{rid}", self.machine_sid);
        let group = GroupRecord { name: new.name.clone(), comment: new.comment.clone(), sid, members: Vec::new() };
        self.groups.insert(key(&new.name), group.clone());
        Ok(self.group_info(&group))
    }

    /// Removes a group.
    ///
    /// # Errors
    /// Not found; conflict for a built-in group.
    pub fn remove_group(&mut self, name: &str) -> Result<()> {
        if self.group_info(self.group(name)?).builtin {
            return Err(AdminError::new(
                ErrorKind::Conflict,
                format!("{name:?} is a built-in group"),
                "it cannot be removed",
            ));
        }
        self.groups.remove(&key(name));
        Ok(())
    }

    /// Puts a user into a group.
    ///
    /// # Errors
    /// Not found, for the group or the user.
    pub fn add_member(&mut self, group: &str, user: &str) -> Result<GroupInfo> {
        let sid = self.user_sid(self.user(user)?);
        let record = self.groups.get_mut(&key(group)).ok_or_else(|| AdminError::not_found("group", group))?;
        if !record.members.contains(&sid) {
            record.members.push(sid);
        }
        self.group(group).map(|g| self.group_info(g))
    }

    /// Removes a user from a group.
    ///
    /// # Errors
    /// Not found, for the group, the user or the membership.
    pub fn remove_member(&mut self, group: &str, user: &str) -> Result<GroupInfo> {
        let sid = self.user_sid(self.user(user)?);
        let record = self.groups.get_mut(&key(group)).ok_or_else(|| AdminError::not_found("group", group))?;
        let before = record.members.len();
        record.members.retain(|m| *m != sid);
        if record.members.len() == before {
            return Err(AdminError::new(
                ErrorKind::NotFound,
                format!("{user:?} is not a member of {group:?}"),
                "`arden group list` shows members",
            ));
        }
        self.group(group).map(|g| self.group_info(g))
    }

    /// The name of the account with this SID, or the SID itself when there is no such account.
    pub fn name_of(&self, sid: &str) -> String {
        if sid == EVERYONE_SID {
            return "everyone".to_string();
        }
        let user = self.users.values().find(|u| self.user_sid(u) == sid).map(|u| u.name.clone());
        let group = || self.groups.values().find(|g| g.sid == sid).map(|g| g.name.clone());
        user.or_else(group).unwrap_or_else(|| sid.to_string())
    }

    /// The SID of `who`: a user, a group, `everyone`, or a SID as text.
    ///
    /// # Errors
    /// Invalid for any other text.
    pub fn sid_of(&self, who: &str) -> Result<String> {
        if key(who) == "everyone" {
            return Ok(EVERYONE_SID.to_string());
        }
        let is_sid = |rest: &str| rest.split('-').all(|n| n.parse::<u64>().is_ok());
        if who.strip_prefix("S-1-").is_some_and(is_sid) {
            return Ok(who.to_string());
        }
        if let Some(user) = self.users.get(&key(who)) {
            return Ok(self.user_sid(user));
        }
        if let Some(group) = self.groups.get(&key(who)) {
            return Ok(group.sid.clone());
        }
        Err(AdminError::invalid(
            format!("{who:?} is neither a user nor a group"),
            "add it first with `arden user add` or `arden group add`, or name `everyone` or a SID",
        ))
    }

    fn grants_to_sids(&self, grants: &[Grant]) -> Result<Vec<Grant>> {
        grants.iter().map(|g| Ok(Grant { who: self.sid_of(&g.who)?, rights: g.rights })).collect()
    }

    fn grants_to_names(&self, grants: &[Grant]) -> Vec<Grant> {
        grants.iter().map(|g| Grant { who: self.name_of(&g.who), rights: g.rights }).collect()
    }

    /// The share `name`, compared without case.
    ///
    /// # Errors
    /// Not found.
    pub fn share(&self, name: &str) -> Result<&Share> {
        self.shares.get(&key(name)).ok_or_else(|| AdminError::not_found("share", name))
    }

    /// The share as the API shows it, with grants by name.
    pub fn share_info(&self, share: &Share) -> Share {
        let (allow, deny) = (self.grants_to_names(&share.allow), self.grants_to_names(&share.deny));
        Share { allow, deny, ..share.clone() }
    }

    /// Adds a share and returns it as stored, with grants by SID.
    ///
    /// # Errors
    /// Invalid for a bad name or path, or an unknown account in the access list; exists.
    pub fn add_share(&mut self, new: &Share) -> Result<Share> {
        names::check_share(&new.name)?;
        check_path(new)?;
        if self.shares.contains_key(&key(&new.name)) {
            return Err(AdminError::exists(
                "share",
                &new.name,
                "change it with `arden share set`, or choose another name",
            ));
        }
        let (allow, deny) = (self.grants_to_sids(&new.allow)?, self.grants_to_sids(&new.deny)?);
        let share = Share { allow, deny, force: false, ..new.clone() };
        self.shares.insert(key(&new.name), share.clone());
        Ok(share)
    }

    /// Changes the fields that `change` has.
    ///
    /// # Errors
    /// Not found; invalid as in [`Snapshot::add_share`].
    pub fn change_share(&mut self, name: &str, change: &ShareChange) -> Result<Share> {
        let mut share = self.share(name)?.clone();
        if let Some(allow) = &change.allow {
            share.allow = self.grants_to_sids(allow)?;
        }
        if let Some(deny) = &change.deny {
            share.deny = self.grants_to_sids(deny)?;
        }
        let c = change.clone();
        share.path = c.path.unwrap_or(share.path);
        share.comment = c.comment.unwrap_or(share.comment);
        share.read_only = c.read_only.unwrap_or(share.read_only);
        share.encrypt = c.encrypt.unwrap_or(share.encrypt);
        share.write_through = c.write_through.unwrap_or(share.write_through);
        share.continuously_available = c.continuously_available.unwrap_or(share.continuously_available);
        share.scale_out = c.scale_out.unwrap_or(share.scale_out);
        share.hidden = c.hidden.unwrap_or(share.hidden);
        share.access_based_enumeration = c.access_based_enumeration.unwrap_or(share.access_based_enumeration);
        share.users_max = c.users_max.map_or(share.users_max, |n| (n > 0).then_some(n));
        check_path(&share)?;
        self.shares.insert(key(name), share.clone());
        Ok(share)
    }

    /// Removes a share.
    ///
    /// # Errors
    /// Not found.
    pub fn remove_share(&mut self, name: &str) -> Result<()> {
        self.share(name)?;
        self.shares.remove(&key(name));
        Ok(())
    }

    /// Changes the settings that `change` has.
    ///
    /// # Errors
    /// Invalid for a value out of its range; conflict, when accounts have SIDs of the old machine SID.
    pub fn change_settings(&mut self, change: &SettingsChange) -> Result<Settings> {
        let c = change.clone();
        if let Some(name) = c.server_name.as_deref().filter(|n| !n.is_empty()) {
            names::check_server(name)?;
        }
        for (what, n) in
            [("connections_max", c.connections_max), ("sessions_max", c.sessions_max), ("opens_max", c.opens_max)]
        {
            if n == Some(0) {
                return Err(AdminError::invalid(format!("{what} cannot be 0"), "give a number of at least 1"));
            }
        }
        if c.volume_cache_bytes.is_some_and(|bytes| bytes > 0 && bytes < VOLUME_CACHE_BYTES_MIN) {
            return Err(AdminError::invalid(
                "volume_cache_bytes is too small",
                "give at least 32m, or 0 for an eighth of the machine's memory",
            ));
        }
        if let Some(sid) = c.machine_sid.filter(|sid| *sid != self.machine_sid) {
            self.import_machine_sid(sid)?;
        }
        let s = &mut self.settings;
        s.server_name = c.server_name.unwrap_or_else(|| s.server_name.clone());
        s.comment = c.comment.unwrap_or_else(|| s.comment.clone());
        s.signing_required = c.signing_required.unwrap_or(s.signing_required);
        s.encryption_required = c.encryption_required.unwrap_or(s.encryption_required);
        s.multichannel = c.multichannel.unwrap_or(s.multichannel);
        s.connections_max = c.connections_max.unwrap_or(s.connections_max);
        s.sessions_max = c.sessions_max.unwrap_or(s.sessions_max);
        s.opens_max = c.opens_max.unwrap_or(s.opens_max);
        s.volume_cache_bytes = c.volume_cache_bytes.unwrap_or(s.volume_cache_bytes);
        s.session_lifetime_seconds = c.session_lifetime_seconds.unwrap_or(s.session_lifetime_seconds);
        Ok(self.settings_shown())
    }

    /// The settings, with the machine SID, which is stored with the server's identity.
    pub fn settings_shown(&self) -> Settings {
        Settings { machine_sid: self.machine_sid.clone(), ..self.settings.clone() }
    }

    /// Takes over the machine SID of another server. Files may already name SIDs that new accounts then get.
    fn import_machine_sid(&mut self, sid: String) -> Result<()> {
        names::check_machine_sid(&sid)?;
        let own_groups = self.groups.values().filter(|g| g.sid.starts_with(&self.machine_sid)).count();
        let accounts = self.users.len() + own_groups;
        if accounts > 0 {
            return Err(AdminError::new(
                ErrorKind::Conflict,
                format!(
                    "{accounts} users and groups have SIDs of this machine: files and shares would not know them any more"
                ),
                "import the SID on a new server, before any account is added",
            ));
        }
        self.machine_sid = sid;
        Ok(())
    }
}

fn check_path(share: &Share) -> Result<()> {
    if (share.kind == ShareKind::Volume) != share.volume.is_some() {
        return Err(AdminError::invalid(
            "a share of kind \"volume\" names its volume, others do not",
            "give both kind and volume, or neither",
        ));
    }
    if share.path.is_absolute() {
        return Ok(());
    }
    let hint = match share.kind {
        ShareKind::Volume => "the path starts at the volume's root: put a / before it",
        ShareKind::Dir => "the daemon does not know your working directory: give the full path",
    };
    Err(AdminError::invalid(format!("{} is not an absolute path", share.path.display()), hint))
}
