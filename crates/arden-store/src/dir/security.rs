//! Descriptors of files that have none stored: the share's root gets a default, everything else inherits from its
//! directory, [MS-DTYP] 2.5.3.4, with the owner that Linux knows. A file that belongs to somebody else on this machine
//! and is closed to others by its mode stays closed: only its owner and administrators get access.

use std::sync::Arc;

use arden_auth::{Token, new_descriptor};
use arden_wire::{
    access::FILE_ALL_ACCESS,
    dtyp::{
        Ace, Acl, CONTAINER_INHERIT_ACE as CI, OBJECT_INHERIT_ACE as OI, SecurityDescriptor, Sid, well_known as wk,
    },
};

use super::{
    Shared,
    inode::{ChildDefaults, Inode, Link},
    lookup::dir_part,
    meta::{StoredSd, is_small},
    ntacl,
    sys::{self, Kind, RawStat},
};
use crate::error::StoreError;
use crate::store::Result;

/// In place of a descriptor that cannot be read.
pub fn administrators_only() -> SecurityDescriptor {
    let aces = vec![Ace::allow(&wk::BUILTIN_ADMINISTRATORS, FILE_ALL_ACCESS, 0)];
    SecurityDescriptor::with_dacl(&wk::BUILTIN_ADMINISTRATORS, &wk::SYSTEM, Acl::new(aces))
}

fn owner_sid(uid: u32) -> Sid {
    if uid == 0 { wk::BUILTIN_ADMINISTRATORS.clone() } else { Sid::new(22, &[1, uid]) }
}

fn group_sid(gid: u32) -> Sid {
    if gid == 0 { wk::SYSTEM.clone() } else { Sid::new(22, &[2, gid]) }
}

fn private(uid: u32, gid: u32) -> SecurityDescriptor {
    let mut aces = vec![
        Ace::allow(&wk::BUILTIN_ADMINISTRATORS, FILE_ALL_ACCESS, OI | CI),
        Ace::allow(&wk::SYSTEM, FILE_ALL_ACCESS, OI | CI),
    ];
    if uid != 0 {
        aces.push(Ace::allow(&owner_sid(uid), FILE_ALL_ACCESS, OI | CI));
    }
    SecurityDescriptor::with_dacl(&owner_sid(uid), &group_sid(gid), Acl::new(aces))
}

/// What a child of a directory with `parent` inherits.
fn inherit(parent: &SecurityDescriptor, directory: bool, owner: &Sid, group: &Sid) -> SecurityDescriptor {
    let explicit = SecurityDescriptor { owner: Some(owner.clone()), group: Some(group.clone()), ..Default::default() };
    new_descriptor(Some(parent), Some(&explicit), directory, &Token::system())
}

/// Directories one below the other that inherit their descriptors; one that has more above it is for administrators alone.
const HEIRS_MAX: usize = 4096;

/// What children of `dir`, whose descriptor is `from`, are given.
fn handed_down(dir: &Inode, from: Arc<SecurityDescriptor>, uid: u32, gid: u32) -> Result<ChildDefaults> {
    let mut cached = dir_part(dir)?.child_defaults.lock();
    if let Some(known) = cached.as_ref().filter(|c| Arc::ptr_eq(&c.from, &from) && c.uid == uid && c.gid == gid) {
        return Ok(known.clone());
    }
    let (owner, group) = (owner_sid(uid), group_sid(gid));
    let defaults = ChildDefaults {
        uid,
        gid,
        file: Arc::new(inherit(&from, false, &owner, &group)),
        directory: Arc::new(inherit(&from, true, &owner, &group)),
        from,
    };
    *cached = is_small(&defaults.from).then(|| defaults.clone());
    Ok(defaults)
}

impl Shared {
    /// The descriptor of a file: the stored one, else its default.
    pub fn security(&self, inode: &Inode, link: &Link) -> Result<Arc<SecurityDescriptor>> {
        let stat = inode.seen().map_err(sys::failure)?;
        if let Some(sd) = self.own_security(inode, &stat)? {
            return Ok(sd);
        }
        let parent = link.place.lock().parent.clone();
        // One without a name any more has nobody to inherit from.
        let Some(parent) = parent else { return Ok(Arc::new(administrators_only())) };
        let defaults = self.child_defaults(&parent, stat.uid, stat.gid)?;
        Ok(if inode.kind == Kind::Directory { defaults.directory } else { defaults.file })
    }

    /// That of a file which does not inherit it from its directory.
    fn own_security(&self, inode: &Inode, stat: &RawStat) -> Result<Option<Arc<SecurityDescriptor>>> {
        // Linux keeps no attributes of this kind for symbolic links of users.
        if inode.kind != Kind::Symlink
            && let Some(sd) = self.stored_sd(inode, stat)?
        {
            return Ok(Some(sd));
        }
        if inode.key == self.root.key {
            return Ok(Some(self.default_root.clone()));
        }
        let is_private = stat.uid != self.uid && stat.mode & 0o007 == 0;
        Ok(is_private.then(|| Arc::new(private(stat.uid, stat.gid))))
    }

    fn child_defaults(&self, dir: &Arc<Inode>, uid: u32, gid: u32) -> Result<ChildDefaults> {
        let (mut at, mut heirs) = (dir.clone(), Vec::new());
        // Up to one that does not inherit, and down again: a thread's stack has no room for directories of any depth.
        let mut from = loop {
            let stat = at.seen().map_err(sys::failure)?;
            if let Some(sd) = self.own_security(&at, &stat)? {
                break sd;
            }
            let parent = dir_part(&at)?.link.place.lock().parent.clone();
            let Some(parent) = parent.filter(|_| heirs.len() < HEIRS_MAX) else {
                break Arc::new(administrators_only());
            };
            heirs.push((std::mem::replace(&mut at, parent), stat.uid, stat.gid));
        };
        while let Some((heir, uid, gid)) = heirs.pop() {
            from = handed_down(&at, from, uid, gid)?.directory;
            at = heir;
        }
        handed_down(&at, from, uid, gid)
    }

    /// Before `inode` gets a name in `to`: if its descriptor is not stored but handed down by its directory, and would become
    /// another one there, it is stored as it is.
    pub fn keep_security(&self, inode: &Inode, link: &Link, to: &Arc<Inode>) -> Result<()> {
        let stat = inode.seen().map_err(sys::failure)?;
        let by_itself = inode.kind == Kind::Symlink || stat.uid != self.uid && stat.mode & 0o007 == 0;
        if by_itself || self.stored_sd(inode, &stat)?.is_some() {
            return Ok(());
        }
        let here = self.security(inode, link)?;
        let there = self.child_defaults(to, stat.uid, stat.gid)?;
        let there = if inode.kind == Kind::Directory { there.directory } else { there.file };
        if here == there {
            return Ok(());
        }
        self.set_security(inode, &here)
    }

    /// Whether a new child would be answered with just this descriptor if none were stored.
    pub fn is_default_for_child(&self, dir: &Arc<Inode>, directory: bool, sd: &SecurityDescriptor) -> Result<bool> {
        // Nearly always the owner differs: a user's, where Linux knows the server's.
        if sd.owner.as_ref() != Some(&owner_sid(self.uid)) {
            return Ok(false);
        }
        let defaults = self.child_defaults(dir, self.uid, self.gid)?;
        Ok(*sd == if directory { (*defaults.directory).clone() } else { (*defaults.file).clone() })
    }

    pub fn set_security(&self, inode: &Inode, sd: &SecurityDescriptor) -> Result<()> {
        if inode.kind == Kind::Symlink {
            return Err(StoreError::NotSupported.into());
        }
        let stat = inode.stat().map_err(sys::failure)?;
        let meta = self.meta(inode, &stat)?;
        let value = ntacl::encode(sd);
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        sys::set_xattr(fd, self.ntacl, &value).map_err(sys::failure)?;
        let sd = self.intern(&value);
        self.after_change(inode, meta, |m| m.sd = StoredSd::of(sd))
    }
}
