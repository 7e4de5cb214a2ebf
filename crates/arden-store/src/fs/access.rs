//! What an open is granted, [MS-FSA] 2.1.5.1.2.1: the descriptor, the parent's rights over its children, the
//! read-only attribute, privileges, and the ceiling that the share sets.

use arden_auth::{AccessError, Token, access_check, access_check_backup, backup_rights, maximum_access, privilege};
use arden_wire::{access::*, dtyp::SecurityDescriptor};

use super::{Fs, Open, OpenRequest, info::descriptor_of};
use crate::{
    error::StoreError,
    name::{NtPath, PathWants},
    store::{Lookup, Node, NodeRef, Result, Stat},
};

/// Bits that no file has, [MS-FSA] 2.1.5.1 phase 1.
const RESERVED: u32 = 0x0CE0_FE00;

/// What a read-only file takes away from MAXIMUM_ALLOWED.
const NOT_ON_READONLY: u32 = FILE_WRITE_DATA | FILE_APPEND_DATA | FILE_ADD_SUBDIRECTORY | FILE_DELETE_CHILD;

/// The access a request asks for, generic bits mapped, checked against the share's ceiling.
pub(super) fn desired(r: &OpenRequest<'_>) -> Result<u32> {
    if r.desired_access == 0 || r.desired_access & RESERVED != 0 {
        return Err(StoreError::AccessDenied.into());
    }
    let desired = map_generic(r.desired_access);
    if desired & !MAXIMUM_ALLOWED & !(r.access_ceiling | ACCESS_SYSTEM_SECURITY) != 0 {
        return Err(StoreError::AccessDenied.into());
    }
    Ok(desired)
}

/// The rights on a new file, [MS-FSA] 2.1.5.1.1: all that is asked for, and with MAXIMUM_ALLOWED all that the share leaves.
pub(super) fn grant_new(r: &OpenRequest<'_>, desired: u32) -> Result<u32> {
    let backup = if r.options & OPT_OPEN_FOR_BACKUP_INTENT != 0 { backup_rights(r.who) } else { 0 };
    let sacl = backup & ACCESS_SYSTEM_SECURITY != 0 || r.who.has_privilege(privilege::SECURITY);
    if desired & ACCESS_SYSTEM_SECURITY != 0 && !sacl {
        return Err(StoreError::AccessDenied.into());
    }
    let most = if desired & MAXIMUM_ALLOWED != 0 { FILE_ALL_ACCESS & r.access_ceiling } else { 0 };
    Ok(most | desired & !MAXIMUM_ALLOWED)
}

impl Fs {
    /// The rights on an existing file. `also` has to be allowed but is not part of what the open keeps.
    pub(super) fn grant_existing(
        &self,
        r: &OpenRequest<'_>,
        node: &NodeRef,
        stat: &Stat,
        desired: u32,
        also: u32,
    ) -> Result<u32> {
        let readonly = stat.attributes & ATTR_READONLY != 0;
        if !stat.directory && readonly && (desired | also) & (FILE_WRITE_DATA | FILE_APPEND_DATA) != 0 {
            return Err(StoreError::ReadOnlyFile.into());
        }
        let stays = || readonly || self.read_only || node.stream().is_none() && node.path().is_empty();
        if r.options & OPT_DELETE_ON_CLOSE != 0 && stays() {
            return Err(StoreError::CannotDelete.into());
        }
        if also & !r.access_ceiling != 0 {
            return Err(StoreError::AccessDenied.into());
        }
        let sd = descriptor_of(&**node)?;
        let backup = r.options & OPT_OPEN_FOR_BACKUP_INTENT != 0;
        let mut granted = self.check_with_parent(&sd, node, r.who, desired | also, backup)?;
        if desired & MAXIMUM_ALLOWED != 0 {
            if readonly || self.read_only {
                granted &= !NOT_ON_READONLY;
            }
            granted &= r.access_ceiling | ACCESS_SYSTEM_SECURITY;
            Ok(granted | (desired & !MAXIMUM_ALLOWED))
        } else {
            Ok(desired)
        }
    }

    /// The access check, and what the right to delete and to list in the parent adds to it.
    fn check_with_parent(
        &self,
        sd: &SecurityDescriptor,
        node: &NodeRef,
        who: &Token,
        wanted: u32,
        backup: bool,
    ) -> Result<u32> {
        let check = |wanted| {
            if backup { access_check_backup(sd, who, wanted) } else { access_check(sd, who, wanted) }
        };
        let helped = DELETE | FILE_READ_ATTRIBUTES;
        let asks_maximum = wanted & MAXIMUM_ALLOWED != 0;
        match check(wanted) {
            Ok(granted) if !asks_maximum || granted & helped == helped => Ok(granted),
            Err(AccessError::AccessDenied) | Ok(_) if asks_maximum || wanted & helped != 0 => {
                let by_parent = self.rights_from_parent(node, who);
                let own = check(wanted & !by_parent);
                match own {
                    Ok(granted) => Ok(granted | if asks_maximum { by_parent } else { by_parent & wanted }),
                    Err(AccessError::AccessDenied)
                        if wanted & !(by_parent | MAXIMUM_ALLOWED) == 0 && by_parent != 0 =>
                    {
                        Ok(by_parent)
                    }
                    Err(e) => Err(e.into()),
                }
            }
            other => Ok(other?),
        }
    }

    /// Who may not write a file may not keep others from reading it either, [MS-FSA] 2.1.5.1.2.2.
    pub(super) fn effective_share(&self, r: &OpenRequest<'_>, node: &NodeRef) -> Result<u32> {
        if r.share_access & FILE_SHARE_READ != 0
            || maximum_access(&*node.security()?, r.who) & (FILE_WRITE_DATA | FILE_APPEND_DATA) != 0
        {
            return Ok(r.share_access);
        }
        Ok(r.share_access | FILE_SHARE_READ)
    }

    /// DELETE and FILE_READ_ATTRIBUTES, as far as the parent gives them.
    fn rights_from_parent(&self, node: &NodeRef, who: &Token) -> u32 {
        let Some(sd) = self.parent_of(&node.path()).and_then(|p| p.security().ok()) else { return 0 };
        let parent = maximum_access(&sd, who);
        let mut rights = 0;
        if parent & FILE_DELETE_CHILD != 0 {
            rights |= DELETE;
        }
        if parent & FILE_LIST_DIRECTORY != 0 {
            rights |= FILE_READ_ATTRIBUTES;
        }
        rights
    }

    /// The directory that holds `path`; None for the root.
    pub(super) fn parent_of(&self, path: &[String]) -> Option<NodeRef> {
        let (_, parent) = path.split_last()?;
        if parent.is_empty() {
            return Some(self.store.root());
        }
        let path = NtPath { components: parent.to_vec(), stream: None, wants: PathWants::Any };
        match self.store.lookup(&path) {
            Ok(Lookup::Found(node)) if node.is_directory() => Some(node),
            _ => None,
        }
    }

    /// Whether `who` may create here, [MS-FSA] 2.1.5.1.1.
    pub(super) fn check_add(&self, parent: &dyn Node, who: &Token, directory: bool, backup: bool) -> Result<()> {
        let right = if directory { FILE_ADD_SUBDIRECTORY } else { FILE_ADD_FILE };
        if backup && backup_rights(who) & right != 0 {
            return Ok(());
        }
        access_check(&*parent.security()?, who, right)?;
        Ok(())
    }

    /// What `who` may do with the file at most, as the create context and its like report it.
    pub fn maximal_access(&self, open: &Open, who: &Token) -> Result<u32> {
        let mut granted = maximum_access(&*open.node.security()?, who);
        if granted & (DELETE | FILE_READ_ATTRIBUTES) != DELETE | FILE_READ_ATTRIBUTES {
            granted |= self.rights_from_parent(&open.node, who);
        }
        Ok(granted)
    }
}
