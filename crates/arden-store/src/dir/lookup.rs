//! From paths to inodes: exact case by the kernel's own look-up, other cases and misses by the directory's listing.
//! Directories on the way are remembered, and each time one is used it is checked that it still has this name.

use std::{
    collections::HashSet,
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arden_lock::MutexGuard;
use rustix::io::Errno;

use super::{
    SPILL_DIRECTORY, Shared,
    inode::{DirNames, DirPart, Inode, Link, PinMode},
    mark,
    names::{self, Found, Listing, ReadError},
    sys::{self, InodeKey, Kind, RawStat},
};
use crate::{
    error::{NotDone, StoreError},
    name::{NtPath, PathWants, eq_fold, may_be_made_short},
    scope::RequestScope,
    store::{Lookup, NodeRef, Result},
};

/// Spellings of subdirectories remembered for each directory.
const SPELLINGS_MAX: usize = 4096;

/// Names on the way to a file. What is in use keeps each directory above it in use, with its descriptors.
pub const PATH_DEPTH_MAX: usize = 256;

/// A component on the way.
enum Step {
    Into(Arc<Inode>),
    Missing,
    NotADirectory,
    Symlink(Arc<Inode>, Arc<Link>),
}

/// Names of a directory that a thread reads that others wait for.
const SHORT_NAMES_MAX: usize = 4096;
/// How long such a thread waits for another that reads the directory.
const SHORT_WAIT: Duration = Duration::from_millis(2);

/// The names of a directory; `WouldBlock` where somebody reads it and this thread is not to wait.
pub fn lock_names(part: &DirPart) -> Result<MutexGuard<'_, DirNames>> {
    if RequestScope::must_not_wait() {
        return part.names.try_lock_for(SHORT_WAIT).ok_or(NotDone::WouldBlock);
    }
    Ok(part.names.lock())
}

impl Shared {
    /// `reads`: whoever asks will read the data of the file.
    pub fn lookup(self: &Arc<Self>, path: &NtPath, reads: bool) -> Result<Lookup> {
        if path.components.len() > PATH_DEPTH_MAX {
            return Err(StoreError::PathTooDeep.into());
        }
        let mut here = self.root.clone();
        let Some((last, parents)) = path.components.split_last() else {
            return self.finish(path, here, self.root_link.clone());
        };
        for (i, component) in parents.iter().enumerate() {
            match self.step(&here, component)? {
                Step::Into(next) => here = next,
                Step::Missing | Step::NotADirectory => return Err(StoreError::PathNotFound.into()),
                Step::Symlink(inode, link) => {
                    return Ok(Lookup::Symlink {
                        link: self.node(inode, link),
                        unparsed_components: path.components.len() - i - 1,
                    });
                }
            }
        }
        match self.child(&here, last, reads && path.stream.is_none())? {
            Some((inode, link)) => self.finish(path, inode, link),
            None => {
                let link = dir_part(&here)?.link.clone();
                Ok(Lookup::Missing { parent: self.node(here, link), base: None })
            }
        }
    }

    /// The file is there; now what the path says of its stream and type.
    fn finish(self: &Arc<Self>, path: &NtPath, inode: Arc<Inode>, link: Arc<Link>) -> Result<Lookup> {
        if let Some(stream) = &path.stream {
            if inode.kind == Kind::Symlink {
                return Ok(Lookup::Symlink { link: self.node(inode, link), unparsed_components: 0 });
            }
            return match self.find_stream(&inode, stream)? {
                Some(real) => Ok(Lookup::Found(self.stream_node(inode, link, real))),
                None => {
                    let parent = link.standing().map_or_else(|| self.root.clone(), |(p, _)| p);
                    let parent_link = dir_part(&parent)?.link.clone();
                    let base = Some(self.node(inode, link));
                    Ok(Lookup::Missing { parent: self.node(parent, parent_link), base })
                }
            };
        }
        match path.wants {
            PathWants::Directory if inode.kind == Kind::File => Err(StoreError::NotADirectory.into()),
            PathWants::Data if inode.kind == Kind::Directory => Err(StoreError::IsADirectory.into()),
            _ => Ok(Lookup::Found(self.node(inode, link))),
        }
    }

    fn step(&self, dir: &Arc<Inode>, name: &str) -> Result<Step> {
        let part = dir_part(dir)?;
        if let Some(known) = self.known_subdirectory(dir, part, name) {
            return Ok(Step::Into(known));
        }
        let Some((inode, link)) = self.child(dir, name, false)? else { return Ok(Step::Missing) };
        let stat = inode.seen().map_err(sys::failure)?;
        if inode.kind == Kind::Symlink || self.meta(&inode, &stat)?.reparse_tag != 0 {
            return Ok(Step::Symlink(inode, link));
        }
        match inode.kind {
            Kind::File | Kind::Symlink => Ok(Step::NotADirectory),
            Kind::Directory => {
                let mut subdirs = part.subdirs.write();
                if subdirs.len() >= SPELLINGS_MAX {
                    subdirs.retain(|_, w| w.strong_count() > 0);
                    if subdirs.len() >= SPELLINGS_MAX {
                        subdirs.clear();
                    }
                }
                subdirs.insert(name.into(), Arc::downgrade(&inode));
                drop(subdirs);
                self.keep_directory(&inode);
                Ok(Step::Into(inode))
            }
        }
    }

    /// The subdirectory that this spelling led to the last time, if its name still leads to it and nobody, of another share
    /// or on the host, has made a reparse point of it.
    fn known_subdirectory(&self, dir: &Arc<Inode>, part: &DirPart, name: &str) -> Option<Arc<Inode>> {
        let inode = part.subdirs.read().get(name)?.upgrade()?;
        let (parent, real) = inode.dir.as_ref()?.link.standing()?;
        let look = || {
            if inode.is_found() {
                return inode.seen().ok();
            }
            let stat = sys::stat_child(dir.pin(), &real).ok().filter(|s| s.key == inode.key)?;
            inode.note_found(&stat);
            Some(stat)
        };
        let plain = |stat| self.meta(&inode, &stat).is_ok_and(|m| m.reparse_tag == 0);
        let still = Arc::ptr_eq(&parent, dir) && eq_fold(&real, name) && look().is_some_and(plain);
        if !still {
            part.subdirs.write().remove(name);
            return None;
        }
        self.keep_directory(&inode);
        Some(inode)
    }

    pub fn keep_directory(&self, inode: &Arc<Inode>) {
        let mut directories = self.directories.lock();
        if directories.get(&inode.key).is_none() {
            directories.insert(inode.key, inode.clone());
        }
    }

    /// The file `name` in `dir`, in any case. With `reads` it is opened for that, where it is known to be a regular file.
    pub fn child(&self, dir: &Arc<Inode>, name: &str, reads: bool) -> Result<Option<(Arc<Inode>, Arc<Link>)>> {
        let part = dir_part(dir)?;
        if is_reserved(name) {
            return Ok(None);
        }
        // What the listing says saves a look-up that would fail; only its "absent" has to be checked to be believed.
        let hint = part.names.try_lock().and_then(|n| n.listing.as_ref().map(|l| l.find_kind(name)));
        let how =
            if reads && hint.as_ref().is_some_and(|(_, regular)| *regular) { PinMode::Read } else { PinMode::Path };
        match hint.map(|(found, _)| found) {
            Some(Found::Absent) if self.listing_is_current(dir, part)? => {
                return self.child_by_short_name(dir, part, name);
            }
            Some(Found::As(real)) => {
                if let Some(found) = self.open_exact(dir, part, &real, how)? {
                    // A file with the very name that was asked for goes first.
                    return match self.open_exact(dir, part, name, PinMode::Path)? {
                        Some(exact) => Ok(Some(exact)),
                        None => Ok(Some(found)),
                    };
                }
            }
            _ => {}
        }
        if let Some(found) = self.open_exact(dir, part, name, how)? {
            return Ok(Some(found));
        }
        // Only another spelling is left.
        for _ in 0..3 {
            let found = {
                let mut names = lock_names(part)?;
                self.find_name(dir, &mut names, name)?.0
            };
            match found {
                Found::Absent => return self.child_by_short_name(dir, part, name),
                Found::As(real) => {
                    if let Some(found) = self.open_exact(dir, part, &real, PinMode::Path)? {
                        return Ok(Some(found));
                    }
                }
                // It appeared between the two looks.
                Found::Exact => {
                    if let Some(found) = self.open_exact(dir, part, name, PinMode::Path)? {
                        return Ok(Some(found));
                    }
                }
            }
        }
        Ok(None)
    }

    fn child_by_short_name(
        &self,
        dir: &Arc<Inode>,
        part: &DirPart,
        name: &str,
    ) -> Result<Option<(Arc<Inode>, Arc<Link>)>> {
        if !may_be_made_short(name) {
            return Ok(None);
        }
        let real = {
            let names = lock_names(part)?;
            let Some(listing) = &names.listing else { return Ok(None) };
            if RequestScope::must_not_wait() && listing.len() > SHORT_NAMES_MAX {
                // It goes over all names.
                return Err(NotDone::WouldBlock);
            }
            listing.find_short(name)
        };
        real.map_or(Ok(None), |real| self.open_exact(dir, part, &real, PinMode::Path))
    }

    /// `how`: for reading only what was a regular file a moment ago. What it is now is checked before anybody reads.
    fn open_exact(
        &self,
        dir: &Arc<Inode>,
        part: &DirPart,
        name: &str,
        how: PinMode,
    ) -> Result<Option<(Arc<Inode>, Arc<Link>)>> {
        let opened = if how == PinMode::Read { sys::open_child(dir.pin(), name, false).ok() } else { None };
        // The server may lack the right to read it, or it is something else by now.
        let how = if opened.is_some() { how } else { PinMode::Path };
        let pin = match opened.map_or_else(|| sys::pin_child(dir.pin(), name), Ok) {
            Ok(pin) => pin,
            Err(Errno::NOENT | Errno::NAMETOOLONG | Errno::ILSEQ) => return Ok(None),
            Err(e) => return Err(sys::failure(e)),
        };
        if part.creating.load(Ordering::SeqCst) != 0 {
            // It may be one that is being created: wait until it has its attributes.
            drop(part.names.lock());
        }
        let stat = sys::stat_fd(sys::fd(&pin)).map_err(sys::failure)?;
        if leads_to_reserved(dir, name, &stat) {
            return Ok(None);
        }
        self.enter(dir, name, pin, how, &stat).map(Some)
    }

    /// Devices, sockets and pipes are refused.
    pub fn enter(
        &self,
        dir: &Arc<Inode>,
        name: &str,
        pin: OwnedFd,
        mode: PinMode,
        stat: &RawStat,
    ) -> Result<(Arc<Inode>, Arc<Link>)> {
        let kind = stat.kind.ok_or(StoreError::SpecialFile)?;
        let (inode, link) = self.table.enter(stat.key, kind, pin, mode, Some((dir, name)));
        inode.note_found(stat);
        self.note_place(stat.key.ino, dir.key, &link.place.lock().name);
        Ok((inode, link))
    }

    pub fn note_place(&self, ino: u64, dir: InodeKey, name: &Arc<str>) {
        let mut places = self.places.lock();
        if places.with(&ino, |(d, n)| *d == dir && **n == **name) != Some(true) {
            places.insert(ino, (dir, name.clone()));
        }
    }

    fn listing_is_current(&self, dir: &Arc<Inode>, part: &DirPart) -> Result<bool> {
        let stat = dir.seen().map_err(sys::failure)?;
        let names = lock_names(part)?;
        Ok(names.listing.as_ref().is_some_and(|l| l.is_current(stat.ctime, self.options.listing_age_min)))
    }

    /// Which spelling of `name` is in `dir`, and the directory's statx from before. `names` is the directory's, locked.
    pub fn find_name(&self, dir: &Arc<Inode>, names: &mut DirNames, name: &str) -> Result<(Found, RawStat)> {
        let stat = dir.seen().map_err(sys::failure)?;
        names.used = self.clock.fetch_add(1, Ordering::Relaxed);
        if let Some(listing) = names.listing.as_ref().filter(|l| l.is_current(stat.ctime, self.options.listing_age_min))
        {
            return Ok((listing.find(name), stat));
        }
        self.drop_listing(names);
        let fd = names::open_for_reading(dir.pin()).map_err(sys::failure)?;
        let names_max = if RequestScope::must_not_wait() { SHORT_NAMES_MAX } else { usize::MAX };
        let bytes_max = self.options.name_cache_bytes_max;
        match Listing::read(sys::fd(&fd), stat.ctime, self.fine_stamps, bytes_max, names_max) {
            Ok(listing) => {
                let found = listing.find(name);
                self.keep_listing(dir, names, listing);
                Ok((found, stat))
            }
            Err(ReadError::TooLarge) => {
                rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).map_err(sys::failure)?;
                Ok((names::scan(sys::fd(&fd), name).map_err(sys::failure)?, stat))
            }
            Err(ReadError::TooLong) => Err(NotDone::WouldBlock),
            Err(ReadError::Io(e)) => Err(sys::failure(e)),
        }
    }

    fn keep_listing(&self, dir: &Arc<Inode>, names: &mut DirNames, listing: Listing) {
        names.listing = Some(listing);
        names.budget = Some(self.listing_bytes.clone());
        names.count_listing();
        let mut all = self.listings.lock();
        all.retain(|w| w.strong_count() > 0);
        if !all.iter().any(|w| std::ptr::eq(w.as_ptr(), Arc::as_ptr(dir))) {
            all.push(Arc::downgrade(dir));
        }
        self.evict_listings(dir, &mut all);
    }

    /// Where the listings are over their limit, takes those that were not used for longest away, an eighth of it at least: all are looked
    /// at each time.
    fn evict_listings(&self, keep: &Arc<Inode>, all: &mut Vec<Weak<Inode>>) {
        let (bytes, max) = (|| self.listing_bytes.load(Ordering::Relaxed), self.options.name_cache_bytes_max);
        if bytes() <= max {
            return;
        }
        let with_listing = |w: &Weak<Inode>| {
            let inode = w.upgrade().filter(|n| !Arc::ptr_eq(n, keep))?;
            // One that is locked is in use.
            let used = inode.dir.as_ref()?.names.try_lock().filter(|names| names.listing_bytes > 0)?.used;
            Some((used, inode))
        };
        let mut oldest: Vec<(u64, Arc<Inode>)> = all.iter().filter_map(with_listing).collect();
        oldest.sort_unstable_by_key(|(used, _)| *used);
        let mut gone = HashSet::new();
        for (_, inode) in oldest.into_iter().take_while(|_| bytes() > max - max / 8) {
            if let Some(mut names) = inode.dir.as_ref().and_then(|d| d.names.try_lock()) {
                self.drop_listing(&mut names);
                gone.insert(Arc::as_ptr(&inode));
            }
        }
        all.retain(|w| !gone.contains(&w.as_ptr()));
    }

    pub fn drop_listing(&self, names: &mut DirNames) {
        names.listing = None;
        names.count_listing();
    }

    /// One's own change of names in `dir` is done: enters it into the listing. `before` is from before the change.
    pub fn names_changed(
        &self,
        dir: &Arc<Inode>,
        names: &mut DirNames,
        before: &RawStat,
        change: impl FnOnce(&mut Listing),
    ) -> Result<()> {
        dir.outdate_seen();
        let after = dir.seen().map_err(sys::failure)?;
        self.restamp(dir, before.ctime, &after);
        if let Some(listing) = names.listing.as_mut() {
            change(listing);
            listing.carry_over(after.ctime);
            names.count_listing();
            if names.listing_bytes > self.options.name_cache_bytes_max {
                self.drop_listing(names);
            }
        }
        Ok(())
    }

    /// Linux opens nothing by number without privileges, so only files that were seen lately are found, and only where
    /// they were seen: one that another share or a process of the host has moved may be outside this share by now.
    pub fn lookup_id(self: &Arc<Self>, id: u64) -> Result<NodeRef> {
        if let Some(inode) = self.table.find_ino(id) {
            let mut links = inode.links().into_iter();
            if let Some(link) = links.find(|link| self.is_below_root(&inode, link)) {
                return Ok(self.node(inode, link));
            }
        }
        let (inode, link) = self.by_place(id, PATH_DEPTH_MAX)?.ok_or(StoreError::NotSupported)?;
        Ok(self.node(inode, link))
    }

    /// Whether each name from the root to the inode leads where it led.
    fn is_below_root(&self, inode: &Arc<Inode>, link: &Link) -> bool {
        let mut here = inode.clone();
        let mut place = link.standing();
        for _ in 0..PATH_DEPTH_MAX {
            if Arc::ptr_eq(&here, &self.root) {
                return true;
            }
            let Some((parent, name)) = place else { return false };
            if !sys::stat_child(parent.pin(), &name).is_ok_and(|s| s.key == here.key) {
                return false;
            }
            place = parent.dir.as_ref().and_then(|part| part.link.standing());
            here = parent;
        }
        false
    }

    /// Goes where the file was seen last, if it is still there.
    fn by_place(&self, ino: u64, depth_max: usize) -> Result<Option<(Arc<Inode>, Arc<Link>)>> {
        let Some((parent_key, name)) = self.places.lock().get(&ino).filter(|_| depth_max > 0) else { return Ok(None) };
        let parent = match self.table.get(parent_key) {
            Some(parent) => match parent.dir.as_ref() {
                Some(part) if self.is_below_root(&parent, &part.link) => parent,
                _ => return Ok(None),
            },
            None => match self.by_place(parent_key.ino, depth_max - 1)? {
                Some((parent, _)) => parent,
                None => return Ok(None),
            },
        };
        let Some(part) = &parent.dir else { return Ok(None) };
        Ok(self.open_exact(&parent, part, &name, PinMode::Path)?.filter(|(inode, _)| inode.key.ino == ino))
    }
}

/// What Arden keeps for itself, in the root of this store or of one further down the tree: clients cannot name it.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with('.') && (eq_fold(name, SPILL_DIRECTORY) || mark::is_unfinished(name))
}

/// Whether `name` turned out to be a reserved directory: a file system may know more spellings of a name than Arden does.
fn leads_to_reserved(dir: &Inode, name: &str, stat: &RawStat) -> bool {
    let resembles = || name.starts_with('.') || name.contains('~') || !name.is_ascii();
    let is_it = || sys::stat_child(dir.pin(), SPILL_DIRECTORY).is_ok_and(|s| s.key == stat.key);
    is_reserved(name) || stat.kind == Some(Kind::Directory) && resembles() && is_it()
}

/// Counts files being created in a directory while it lives.
pub struct Creating<'a>(&'a AtomicUsize);
impl<'a> Creating<'a> {
    pub fn new(part: &'a DirPart) -> Creating<'a> {
        part.creating.fetch_add(1, Ordering::SeqCst);
        Creating(&part.creating)
    }
}
impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub fn dir_part(inode: &Inode) -> Result<&DirPart> {
    inode.dir.as_deref().ok_or(StoreError::NotADirectory.into())
}
