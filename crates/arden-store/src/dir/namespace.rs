//! Changes of names: create, link, rename, unlink. Each holds the lock of the directories that it changes from the check
//! for other spellings until the listing is up to date, so that two spellings of one name never come to be.
//!
//! What a crash between the steps of a create leaves: a file without stored descriptor, which is answered with the one
//! inherited from its directory and, on the machine, open to its owner alone.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use arden_lock::{Mutex, MutexGuard, ranks};
use arden_wire::{access::*, dtyp::SecurityDescriptor};
use rustix::{
    fs::{AtFlags, Mode, RenameFlags},
    io::Errno,
};

use super::{
    Shared,
    cache::Generations,
    dosattrib::{self, DosInfo},
    ea,
    inode::{DirNames, Inode, Link, PinMode},
    lookup::{Creating, dir_part, is_reserved},
    mark,
    meta::{DOSATTRIB, Meta, StoredSd},
    names::Found,
    ntacl,
    sys::{self, InodeKey, Kind, RawStat},
};
use crate::{
    commit::ChangedBy,
    error::StoreError,
    name::{check_component, may_be_made_short, short_name},
    store::{NewFile, Replace, Result},
};

/// [MS-FSA] 2.1.1.1, TunnelCacheList: a file that is made again by its 8.3 name soon after it went gets its long name
/// back. Programs that replace a file by that name rely on it.
pub struct Tunnel {
    /// By directory and 8.3 name: the long name, and when it went.
    gone: Mutex<Generations<(InodeKey, String), Departed>, ranks::DirTunnel>,
}

type Departed = (Arc<str>, Instant);

const TUNNEL_TIME: Duration = Duration::from_secs(15);
const TUNNEL_ENTRIES_MAX: usize = 1024;

impl Default for Tunnel {
    fn default() -> Self {
        Tunnel { gone: Mutex::new(Generations::new(TUNNEL_ENTRIES_MAX)) }
    }
}

impl Tunnel {
    fn remember(&self, dir: InodeKey, name: &Arc<str>) {
        if let Some(short) = short_name(name) {
            self.gone.lock().insert((dir, short), (name.clone(), Instant::now()));
        }
    }

    fn recall(&self, dir: InodeKey, short: &str) -> Option<Arc<str>> {
        if !may_be_made_short(short) {
            return None;
        }
        let (name, at) = self.gone.lock().get(&(dir, short.to_ascii_uppercase()))?;
        (at.elapsed() < TUNNEL_TIME).then_some(name)
    }
}

/// A new file, its descriptor (of Linux) open, and what is known of it.
type Made = (OwnedFd, RawStat, Meta);

fn stat_of(fd: &OwnedFd) -> Result<RawStat> {
    sys::stat_fd(sys::fd(fd)).map_err(sys::failure)
}

impl Shared {
    pub fn create_child(
        &self,
        by: ChangedBy,
        dir: &Arc<Inode>,
        name: &str,
        new: &NewFile<'_>,
        mark: Option<u128>,
    ) -> Result<(Arc<Inode>, Arc<Link>)> {
        let part = dir_part(dir)?;
        check_component(name)?;
        let tunnelled = self.tunnel.recall(dir.key, name);
        let name = tunnelled.as_deref().unwrap_or(name);
        if is_reserved(name) {
            return Err(StoreError::ReservedName.into());
        }
        let store_sd = match new.security {
            Some(sd) if !self.is_default_for_child(dir, new.directory, sd)? => Some(sd),
            _ => None,
        };
        let mut names = part.names.lock();
        let (found, before) = self.find_name(dir, &mut names, name)?;
        if found != Found::Absent {
            return Err(StoreError::NameCollision.into());
        }
        let creating = Creating::new(part);
        let mut changing = self.changing(by, [dir]);
        self.note_own(dir, name, true);
        let made = match mark {
            Some(mark) => self.make_marked(dir, name, new, store_sd, mark),
            None => self.make(dir, name, new, store_sd),
        };
        // Somebody else may have made it since the listing was checked.
        let (fd, stat, mut meta) = made.inspect_err(|_| self.drop_listing(&mut names))?;
        self.names_changed(dir, &mut names, &before, |l| l.insert(name, !new.directory))?;
        drop(creating);
        drop(names);
        let mode = if new.directory { PinMode::Read } else { PinMode::ReadWrite };
        let (inode, link) = self.enter(dir, name, fd, mode, &stat)?;
        changing.and(&inode);
        link.place.lock().unsynced = true;
        inode.promised_bytes.store(new.allocation.unwrap_or(0), Ordering::Relaxed);
        meta.set_at(stat.ctime);
        self.remember(&inode, &stat, meta);
        Ok((inode, link))
    }

    fn make(&self, dir: &Inode, name: &str, new: &NewFile<'_>, sd: Option<&SecurityDescriptor>) -> Result<Made> {
        let fd = if new.directory {
            rustix::fs::mkdirat(dir.pin(), sys::os_name(name), Mode::from_raw_mode(self.options.directory_mode))
                .map_err(sys::failure)?;
            sys::open_child(dir.pin(), name, false)
        } else {
            sys::create_child(dir.pin(), name, self.options.file_mode)
        };
        let fd = fd.map_err(sys::failure)?;
        let furnished = self.furnish(&fd, new, sd).and_then(|meta| Ok((stat_of(&fd)?, meta)));
        match furnished {
            Ok((stat, meta)) => Ok((fd, stat, meta)),
            Err(e) => {
                let flags = if new.directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                let _ = rustix::fs::unlinkat(dir.pin(), sys::os_name(name), flags);
                Err(e)
            }
        }
    }

    /// The name comes last.
    fn make_marked(
        &self,
        dir: &Inode,
        name: &str,
        new: &NewFile<'_>,
        sd: Option<&SecurityDescriptor>,
        mark: u128,
    ) -> Result<Made> {
        let Some(unfinished) = self.begin(dir, new.directory, mark)? else {
            let made = self.make(dir, name, new, sd)?;
            mark::set(sys::fd(&made.0), mark)?;
            return Ok(made);
        };
        match self.furnish(unfinished.fd(), new, sd) {
            Ok(meta) => {
                let fd = self.publish(dir, unfinished, name)?;
                let stat = stat_of(&fd)?;
                Ok((fd, stat, meta))
            }
            Err(e) => {
                self.give_up(dir, unfinished);
                Err(e)
            }
        }
    }

    /// Gives a new file what it starts with: first who may use it, then the rest.
    fn furnish(&self, fd: &OwnedFd, new: &NewFile<'_>, sd: Option<&SecurityDescriptor>) -> Result<Meta> {
        let mut meta = Meta::bare(sys::Stamp::default());
        if let Some(sd) = sd {
            let value = ntacl::encode(sd);
            match sys::set_xattr(sys::fd(fd), self.ntacl, &value) {
                Ok(()) => meta.sd = StoredSd::of(self.intern(&value)),
                // A file system without attributes has the default descriptor for everything.
                Err(Errno::OPNOTSUPP) => {}
                Err(e) => return Err(sys::failure(e)),
            }
        }
        let dos = DosInfo { attributes: Some(new.attributes & (ATTR_SETTABLE | ATTR_SPARSE)), creation: None };
        match sys::set_xattr(sys::fd(fd), DOSATTRIB, &dosattrib::encode(&dos)) {
            Ok(()) => meta.dos = dos,
            Err(Errno::OPNOTSUPP) => {}
            Err(e) => return Err(sys::failure(e)),
        }
        if !new.eas.is_empty() {
            ea::write(sys::fd(fd), new.eas)?;
            meta.ea_size = ea::list_size(sys::fd(fd));
        }
        if let Some(size) = new.allocation.filter(|_| !new.directory) {
            super::data::check_room(sys::fd(fd), size)?;
        }
        Ok(meta)
    }

    /// Takes the name away.
    pub fn unlink(&self, by: ChangedBy, inode: &Arc<Inode>, link: &Arc<Link>) -> Result<()> {
        let (dir, name) = self.standing(inode, link)?;
        let mut names = dir_part(&dir)?.names.lock();
        let before = dir.seen().map_err(sys::failure)?;
        let stat = self.verify(&dir, &name, inode)?;
        let flags = if inode.kind == Kind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let _changing = self.changing(by, [&dir]);
        self.note_own(&dir, &name, true);
        let remove = || rustix::fs::unlinkat(dir.pin(), sys::os_name(&name), flags);
        let removed = match remove() {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                self.sweep_unfinished(inode);
                remove()
            }
            other => other,
        };
        removed.map_err(|e| match e {
            Errno::NOTEMPTY | Errno::EXIST => StoreError::DirectoryNotEmpty.into(),
            e => sys::failure(e),
        })?;
        inode.outdate_seen();
        inode.forget_name(&dir, &name);
        self.tunnel.remember(dir.key, &name);
        self.names_changed(&dir, &mut names, &before, |l| l.remove(&name))?;
        drop(names);
        if inode.kind == Kind::Directory {
            // One that is gone is not kept open for the next user.
            self.directories.lock().remove(&inode.key);
        }
        if inode.kind == Kind::Directory || stat.links <= 1 {
            self.last_name_gone(inode, &stat);
        }
        Ok(())
    }

    /// `name` of `dir` still leads to `inode`; local processes may have changed that.
    fn verify(&self, dir: &Arc<Inode>, name: &str, inode: &Inode) -> Result<RawStat> {
        match sys::stat_child(dir.pin(), name) {
            Ok(stat) if stat.key == inode.key => Ok(stat),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Err(StoreError::NotFound.into()),
            Err(e) => Err(sys::failure(e)),
        }
    }

    fn standing(&self, inode: &Inode, link: &Link) -> Result<(Arc<Inode>, Arc<str>)> {
        if inode.key == self.root.key {
            return Err(StoreError::RootStays.into());
        }
        Ok(link.standing().ok_or(StoreError::Deleted)?)
    }

    pub fn rename(
        &self,
        by: ChangedBy,
        inode: &Arc<Inode>,
        link: &Arc<Link>,
        to: &Arc<Inode>,
        name: &str,
        replace: Replace,
    ) -> Result<()> {
        check_component(name)?;
        if is_reserved(name) {
            return Err(StoreError::ReservedName.into());
        }
        let (from, old) = self.standing(inode, link)?;
        let mut locks = self.lock_two(&from, to)?;
        let from_before = from.seen().map_err(sys::failure)?;
        let before = match Arc::ptr_eq(&from, to) {
            true => (from_before, from_before),
            false => (from_before, to.seen().map_err(sys::failure)?),
        };
        self.verify(&from, &old, inode)?;
        let target = match self.find_taken(to, locks.to(), name)?.0 {
            Found::Absent => None,
            Found::Exact => Some(name.to_owned()),
            Found::As(real) => Some(real),
        };
        // Another spelling of its own name is no collision.
        let itself = Arc::ptr_eq(&from, to) && target.as_deref() == Some(&*old);
        if itself && *old == *name {
            return Ok(());
        }
        let _changing = self.changing(by, [inode, &from, to]);
        if !Arc::ptr_eq(&from, to) {
            self.keep_security(inode, link, to)?;
        }
        self.note_own(&from, &old, true);
        self.note_own(to, name, true);
        match target.filter(|_| !itself) {
            Some(_) if replace == Replace::Nothing => return Err(StoreError::NameCollision.into()),
            Some(target) => self.rename_over(inode, (&from, &old), (to, &target, name), (replace, &mut locks))?,
            None => rename_new(&from, &old, to, name)?,
        }
        inode.outdate_seen();
        let regular = inode.kind == Kind::File;
        inode.move_name((&from, &old), (to, name));
        self.note_place(inode.key.ino, to.key, &link.place.lock().name);
        if locks.to.is_none() {
            return self.names_changed(&from, &mut locks.from, &before.0, |l| {
                l.remove(&old);
                l.insert(name, regular);
            });
        }
        self.names_changed(&from, &mut locks.from, &before.0, |l| l.remove(&old))?;
        self.names_changed(to, locks.to(), &before.1, |l| l.insert(name, regular))
    }

    /// `find_name`, and where there is no such name the one whose 8.3 name it is.
    fn find_taken(&self, dir: &Arc<Inode>, names: &mut DirNames, name: &str) -> Result<(Found, RawStat)> {
        let (found, stat) = self.find_name(dir, names, name)?;
        if found != Found::Absent || !may_be_made_short(name) {
            return Ok((found, stat));
        }
        let real = names.listing.as_ref().and_then(|l| l.find_short(name));
        Ok((real.map_or(Found::Absent, Found::As), stat))
    }

    /// Replaces `target`, another spelling of `name` or the name whose 8.3 name that is, in one step; then corrects the
    /// spelling.
    fn rename_over(
        &self,
        inode: &Arc<Inode>,
        (from, old): (&Arc<Inode>, &str),
        (to, target, name): (&Arc<Inode>, &str, &str),
        (replace, locks): (Replace, &mut TwoLocks<'_>),
    ) -> Result<()> {
        let stat = sys::stat_child(to.pin(), target).map_err(sys::failure)?;
        check_replaceable(&stat)?;
        if stat.key == inode.key {
            // rename(2) leaves both names of one file. [MS-FSA] 2.1.5.15.12 (TargetExistsSameFile) takes the old one away,
            // and with another spelling (ExactCaseMatch) the other one too, which loses those who have it open.
            rustix::fs::unlinkat(from.pin(), sys::os_name(old), AtFlags::empty()).map_err(sys::failure)?;
            if target != name {
                inode.forget_name(to, target);
            }
        } else {
            replace.check(stat.key.file_id())?;
            let replaced = self.table.get(stat.key);
            let spilled = self.has_spilled_streams(to, target, &stat);
            rustix::fs::renameat(from.pin(), sys::os_name(old), to.pin(), sys::os_name(target))
                .map_err(sys::failure)?;
            if let Some(replaced) = replaced {
                replaced.forget_seen();
                replaced.forget_name(to, target);
                if stat.links <= 1 {
                    self.last_name_gone(&replaced, &stat);
                }
            } else if stat.links <= 1 {
                self.remove_spill(&spilled);
            }
        }
        if target != name {
            // Comes and goes again.
            self.note_own(to, target, true);
            self.note_own(to, target, true);
            rename_new(to, target, to, name)?;
            if let Some(l) = locks.to().listing.as_mut() {
                l.remove(target);
            }
        }
        Ok(())
    }

    pub fn link(
        &self,
        by: ChangedBy,
        inode: &Arc<Inode>,
        link: &Arc<Link>,
        to: &Arc<Inode>,
        name: &str,
        replace: Replace,
    ) -> Result<()> {
        check_component(name)?;
        if inode.kind == Kind::Directory {
            return Err(StoreError::IsADirectory.into());
        }
        if is_reserved(name) {
            return Err(StoreError::ReservedName.into());
        }
        let (from, _) = self.standing(inode, link)?;
        if !Arc::ptr_eq(&from, to) {
            self.keep_security(inode, link, to)?;
        }
        let mut names = dir_part(to)?.names.lock();
        let (found, before) = self.find_taken(to, &mut names, name)?;
        let target = match found {
            Found::Absent => None,
            _ if replace == Replace::Nothing => return Err(StoreError::NameCollision.into()),
            Found::Exact => Some(name.to_owned()),
            Found::As(real) => Some(real),
        };
        let mut changing = self.note_change(by, inode, link);
        changing.and(to);
        if let Some(target) = &target {
            let stat = sys::stat_child(to.pin(), target).map_err(sys::failure)?;
            if stat.key == inode.key {
                return Ok(());
            }
            check_replaceable(&stat)?;
            replace.check(stat.key.file_id())?;
            let spilled = self.has_spilled_streams(to, target, &stat);
            self.note_own(to, target, true);
            rustix::fs::unlinkat(to.pin(), sys::os_name(target), AtFlags::empty()).map_err(sys::failure)?;
            if let Some(replaced) = self.table.get(stat.key) {
                replaced.forget_seen();
                replaced.forget_name(to, target);
            }
            if stat.links <= 1 {
                self.remove_spill(&spilled);
            }
        }
        self.note_own(to, name, true);
        // By descriptor, so that it is this file whatever happens to its names.
        let number = sys::FdName::new(inode.pin());
        let linked =
            rustix::fs::linkat(self.proc_fds(), number.as_str(), to.pin(), sys::os_name(name), AtFlags::SYMLINK_FOLLOW);
        inode.metadata_unsynced.store(true, Ordering::Relaxed);
        self.names_changed(to, &mut names, &before, |l| {
            if let Some(target) = &target {
                l.remove(target);
            }
            if linked.is_ok() {
                l.insert(name, inode.kind == Kind::File);
            }
        })?;
        linked.map_err(sys::failure)
    }

    /// The locks of two directories, taken in one order by everyone.
    fn lock_two<'a>(&self, from: &'a Arc<Inode>, to: &'a Arc<Inode>) -> Result<TwoLocks<'a>> {
        let (f, t) = (&dir_part(from)?.names, &dir_part(to)?.names);
        if Arc::ptr_eq(from, to) {
            return Ok(TwoLocks { from: f.lock(), to: None });
        }
        if from.key < to.key {
            let from = f.lock();
            Ok(TwoLocks { from, to: Some(t.lock_next()) })
        } else {
            let to = t.lock();
            Ok(TwoLocks { from: f.lock_next(), to: Some(to) })
        }
    }
}

/// A file makes way for another name; directories and what is no file do not.
fn check_replaceable(target: &RawStat) -> Result<(), StoreError> {
    match target.kind {
        None => Err(StoreError::SpecialFile),
        Some(Kind::Directory) => Err(StoreError::DirectoryInTheWay),
        Some(_) => Ok(()),
    }
}

pub fn rename_new(from: &Inode, old: &str, to: &Inode, name: &str) -> Result<()> {
    let (old_name, new_name) = (sys::os_name(old), sys::os_name(name));
    match rustix::fs::renameat_with(from.pin(), &*old_name, to.pin(), &*new_name, RenameFlags::NOREPLACE) {
        // A directory into itself, or a file system that knows no flags.
        Err(Errno::INVAL) => match sys::stat_child(to.pin(), name) {
            Err(Errno::NOENT) => {
                rustix::fs::renameat(from.pin(), &*old_name, to.pin(), &*new_name).map_err(|e| match e {
                    Errno::INVAL => StoreError::IntoItself.into(),
                    e => sys::failure(e),
                })
            }
            _ => Err(StoreError::NameCollision.into()),
        },
        other => other.map_err(sys::failure),
    }
}

struct TwoLocks<'a> {
    from: MutexGuard<'a, DirNames>,
    /// None when both are the same directory.
    to: Option<MutexGuard<'a, DirNames>>,
}

impl TwoLocks<'_> {
    fn to(&mut self) -> &mut DirNames {
        self.to.as_deref_mut().unwrap_or(&mut self.from)
    }
}
