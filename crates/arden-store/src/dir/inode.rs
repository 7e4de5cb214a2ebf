//! Files in use: one `Inode` for each, shared by all nodes of it, whatever name they came by. It holds the descriptors,
//! what is known of the metadata, and the names (`Link`) by which the file is in use, so that a rename or unlink by
//! one user is seen by all. The table finds them by device and inode number, and forgets them with their last user.

use std::{
    any::Any,
    collections::HashMap,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arden_lock::{Mutex, RwLock, ranks};
use arden_wire::dtyp::SecurityDescriptor;
use rustix::fd::AsFd as _;

use super::{
    closing,
    meta::Meta,
    names::Listing,
    sys::{self, InodeBuild, InodeKey, Kind, RawStat, Stamp},
};
use crate::{
    open_stream::OpenStreams,
    scope::RequestScope,
    store::{Named, Trail},
};

/// What the first descriptor of an inode can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinMode {
    /// O_PATH: names the file, opens nothing.
    Path,
    /// Open for reading: a directory just made, or a file that is about to be read.
    Read,
    /// Open for reading and writing: the file was created by this descriptor.
    ReadWrite,
}

pub struct Inode {
    pub key: InodeKey,
    /// No other inode of this process has or had it.
    pub number: u64,
    pub kind: Kind,
    pin: OwnedFd,
    pin_mode: PinMode,
    read: OnceLock<OwnedFd>,
    write: OnceLock<OwnedFd>,
    pub known: Mutex<Known, ranks::InodeKnown>,
    /// What statx said, and in which request scope.
    seen: Mutex<Option<Seen>, ranks::InodeSeen>,
    links: Mutex<Vec<Weak<Link>>, ranks::InodeLinks>,
    pub dir: Option<Box<DirPart>>,
    /// Held over read-modify-write of streams and EAs.
    pub streams: Mutex<(), ranks::FileStreams>,
    /// The streams that nodes are.
    pub open_streams: OpenStreams,
    /// Held by who reads or writes data, asks for its size or lists streams; alone by who gives the data of one stream to another.
    pub places: RwLock<(), ranks::DataPlaces>,
    /// The allocation that a user asked for: shown while the file is in use, and nowhere taken from the disk.
    pub promised_bytes: AtomicU64,
    /// Metadata changed since the last sync.
    pub metadata_unsynced: AtomicBool,
    /// It was emptied since it is in use: closing it may take long.
    pub emptied: AtomicBool,
    /// A name of it was taken away since it is in use.
    unnamed: AtomicBool,
    /// When the last change of data was noted for the watcher.
    pub noted_ms: AtomicU64,
    table: Arc<InodeTable>,
}

/// How long a look is believed: a message may wait for its disk, and what others do meanwhile is not to be missed.
const LOOK_TIME: Duration = Duration::from_millis(10);

/// A look at the file.
struct Seen {
    scope: u64,
    at: Instant,
    stat: RawStat,
    /// Arden changed data or names since, which moves the change time and nothing that attributes say.
    outdated: bool,
    /// The change time before such changes and when that was seen, where this look is from after them.
    before: Option<(Stamp, Instant)>,
    /// It was found by its name in this request scope.
    found: bool,
}

impl Seen {
    /// The change time before Arden's own changes of this request scope, if others can hardly have changed anything since.
    fn before_changes(&self) -> Option<Stamp> {
        let this = self.outdated.then_some((self.stat.ctime, self.at));
        let (stamp, at) = self.before.or(this)?;
        (at.elapsed() < LOOK_TIME).then_some(stamp)
    }
}

/// Metadata as last read, each with the change time that it belongs to.
#[derive(Default)]
pub struct Known {
    pub meta: Option<Meta>,
}

/// One name of a file that is in use.
pub struct Link {
    pub place: Mutex<Place, ranks::NamePlace>,
    nodes: AtomicUsize,
}

pub struct Place {
    /// None for the root.
    pub parent: Option<Arc<Inode>>,
    pub name: Arc<str>,
    /// Taken away or replaced: the file has no name here any more.
    pub gone: bool,
    /// The name is newer than the last sync of its directory.
    pub unsynced: bool,
    /// As [`crate::store::Node::keep_with_name`].
    pub kept: Option<Arc<dyn Any + Send + Sync>>,
}

pub struct DirPart {
    /// A directory has one name.
    pub link: Arc<Link>,
    pub names: Mutex<DirNames, ranks::DirNames>,
    /// Subdirectories by the spelling that a client used.
    pub subdirs: RwLock<HashMap<Box<str>, Weak<Inode>>, ranks::Subdirectories>,
    /// Files being created that do not have their descriptor and attributes yet.
    pub creating: AtomicUsize,
    /// Default descriptors of children, as computed from this descriptor of the directory.
    pub child_defaults: Mutex<Option<ChildDefaults>, ranks::ChildDefaults>,
}

#[derive(Clone)]
pub struct ChildDefaults {
    pub from: Arc<SecurityDescriptor>,
    pub uid: u32,
    pub gid: u32,
    pub file: Arc<SecurityDescriptor>,
    pub directory: Arc<SecurityDescriptor>,
}

#[derive(Default)]
pub struct DirNames {
    pub listing: Option<Listing>,
    /// As counted in the store's budget.
    pub listing_bytes: usize,
    pub budget: Option<Arc<AtomicUsize>>,
    pub used: u64,
}

impl DirNames {
    /// Counts the listing as it is now; without one, gives back what was counted.
    pub fn count_listing(&mut self) {
        let bytes = self.listing.as_ref().map_or(0, Listing::bytes);
        if let Some(budget) = self.budget.as_ref().filter(|_| bytes != self.listing_bytes) {
            budget.fetch_add(bytes, Ordering::Relaxed);
            budget.fetch_sub(self.listing_bytes, Ordering::Relaxed);
            self.listing_bytes = bytes;
        }
    }
}

impl Drop for DirNames {
    fn drop(&mut self) {
        self.listing = None;
        self.count_listing();
    }
}

impl Inode {
    pub fn pin(&self) -> BorrowedFd<'_> {
        self.pin.as_fd()
    }

    /// A descriptor that statx and, for files and directories, reading and attributes work on.
    pub fn for_reading(&self, proc_fds: BorrowedFd<'_>) -> rustix::io::Result<BorrowedFd<'_>> {
        if let Some(fd) = self.open_fd() {
            return Ok(fd);
        }
        let fd = match self.kind {
            Kind::Directory => sys::open_self_directory(self.pin())?,
            _ => sys::reopen(proc_fds, self.pin(), false)?,
        };
        Ok(self.read.get_or_init(|| fd).as_fd())
    }

    pub fn for_writing(&self, proc_fds: BorrowedFd<'_>) -> rustix::io::Result<BorrowedFd<'_>> {
        if self.pin_mode == PinMode::ReadWrite {
            return Ok(self.pin());
        }
        if let Some(fd) = self.write.get() {
            return Ok(fd.as_fd());
        }
        let fd = sys::reopen(proc_fds, self.pin(), true)?;
        Ok(self.write.get_or_init(|| fd).as_fd())
    }

    /// A descriptor for data or attributes, if there is one already.
    fn open_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.pin_mode != PinMode::Path {
            return Some(self.pin());
        }
        self.write.get().or_else(|| self.read.get()).map(|f| f.as_fd())
    }

    /// As it is now.
    pub fn stat(&self) -> rustix::io::Result<RawStat> {
        sys::stat_fd(self.pin())
    }

    /// As it was when this request scope's first call looked. Not for those who are changing the file.
    pub fn seen(&self) -> rustix::io::Result<RawStat> {
        let Some(scope) = RequestScope::current() else { return self.stat() };
        let good = |s: &&Seen| s.scope == scope && !s.outdated && s.at.elapsed() < LOOK_TIME;
        if let Some(seen) = self.seen.lock().as_ref().filter(good) {
            return Ok(seen.stat);
        }
        let stat = self.stat()?;
        self.note_seen(&stat);
        Ok(stat)
    }

    /// `stat` is fresh.
    pub fn note_seen(&self, stat: &RawStat) {
        self.note(stat, false);
    }

    /// `stat` is fresh, and was found by the name that the file's link has.
    pub fn note_found(&self, stat: &RawStat) {
        self.note(stat, true);
    }

    fn note(&self, stat: &RawStat, found: bool) {
        let Some(scope) = RequestScope::current() else { return };
        let mut seen = self.seen.lock();
        let last = seen.take().filter(|s| s.scope == scope);
        let before = last.as_ref().filter(|s| s.outdated).map(|s| s.before.unwrap_or((s.stat.ctime, s.at)));
        let found = found || last.is_some_and(|s| s.found);
        *seen = Some(Seen { scope, at: Instant::now(), stat: *stat, outdated: false, before, found });
    }

    /// Whether this request scope has found it by its name already.
    pub fn is_found(&self) -> bool {
        let scope = RequestScope::current();
        self.seen.lock().as_ref().is_some_and(|s| s.found && scope == Some(s.scope) && s.at.elapsed() < LOOK_TIME)
    }

    /// Something about the file changes.
    pub fn forget_seen(&self) {
        *self.seen.lock() = None;
    }

    /// Arden changes the file's data, or a name of it or in it, and no attribute.
    pub fn outdate_seen(&self) {
        let mut seen = self.seen.lock();
        let scope = RequestScope::current();
        match seen.as_mut().filter(|s| scope == Some(s.scope)) {
            Some(seen) => seen.outdated = true,
            None => *seen = None,
        }
    }

    /// Whether `outdate_seen` was called in this request scope, after a look that found the change time `at`.
    pub fn is_outdated_from(&self, at: Stamp) -> bool {
        let scope = RequestScope::current();
        let seen = self.seen.lock();
        seen.as_ref().is_some_and(|s| s.outdated && scope == Some(s.scope) && s.before_changes() == Some(at))
    }

    /// The change time before what Arden did to data and names in this request scope, where `stat` is the look after that.
    pub fn before_own_changes(&self, stat: &RawStat) -> Option<Stamp> {
        let scope = RequestScope::current();
        let seen = self.seen.lock();
        seen.as_ref().filter(|s| scope == Some(s.scope) && s.stat.ctime == stat.ctime)?.before_changes()
    }

    /// What was known before those changes is known after them now.
    pub fn note_carried_over(&self) {
        if let Some(seen) = self.seen.lock().as_mut() {
            seen.before = None;
        }
    }

    /// The name `name` in `parent`, shared with everyone who uses it.
    pub fn link(&self, parent: &Arc<Inode>, name: &str) -> Arc<Link> {
        if let Some(dir) = &self.dir {
            // Found here, so this is where it is, however it came here.
            let mut place = dir.link.place.lock();
            let same = place.parent.as_ref().is_some_and(|p| Arc::ptr_eq(p, parent)) && &*place.name == name;
            if !same && place.parent.is_some() {
                place.parent = Some(parent.clone());
                place.name = name.into();
            }
            place.gone = false;
            return dir.link.clone();
        }
        let mut links = self.links.lock();
        let mut found = None;
        links.retain(|weak| match weak.upgrade() {
            None => false,
            Some(link) => {
                if found.is_none() && link.is_at(parent, name) {
                    found = Some(link);
                }
                true
            }
        });
        found.unwrap_or_else(|| {
            let link = Arc::new(Link::new(Some(parent.clone()), name));
            links.push(Arc::downgrade(&link));
            link
        })
    }

    /// The names by which the file is in use.
    pub fn links(&self) -> Vec<Arc<Link>> {
        if let Some(dir) = &self.dir {
            return vec![dir.link.clone()];
        }
        self.links.lock().iter().filter_map(Weak::upgrade).filter(|l| !l.place.lock().gone).collect()
    }

    /// The users of the name `old` in `from` have `name` in `to` from now on.
    pub fn move_name(&self, (from, old): (&Arc<Inode>, &str), (to, name): (&Arc<Inode>, &str)) {
        let moves = |link: &Link| {
            if link.is_at(from, old) {
                let mut place = link.place.lock();
                place.parent = Some(to.clone());
                place.name = name.into();
                place.unsynced = true;
            }
        };
        match &self.dir {
            Some(dir) => moves(&dir.link),
            None => self.links.lock().iter().filter_map(Weak::upgrade).for_each(|l| moves(&l)),
        }
    }

    /// Of a directory that is in use no more the one above it, unless a node still has the name.
    fn take_parent(&mut self) -> Option<Arc<Inode>> {
        let DirPart { link, .. } = *self.dir.take()?;
        Arc::into_inner(link)?.place.get_mut().parent.take()
    }

    /// Its last user leaves it: whether another thread is to close it, as that takes long. A thread that may wait gives the room of a
    /// deleted file back itself, so that it is free when the CLOSE is answered.
    fn closes_long(&self) -> bool {
        let frees = || {
            let is_much = |stat: RawStat| stat.links == 0 && stat.allocated > RequestScope::FREED_BYTES_MAX;
            RequestScope::must_not_wait() && self.stat().is_ok_and(is_much)
        };
        self.emptied.load(Ordering::Relaxed) || (self.unnamed.load(Ordering::Relaxed) && frees())
    }

    /// The users of this name learn that it is gone.
    pub fn forget_name(&self, parent: &Arc<Inode>, name: &str) {
        if let Some(dir) = &self.dir {
            dir.link.place.lock().gone = true;
            return;
        }
        self.unnamed.store(true, Ordering::Relaxed);
        for link in self.links.lock().iter().filter_map(Weak::upgrade) {
            if link.is_at(parent, name) {
                link.place.lock().gone = true;
            }
        }
    }
}

impl Drop for Inode {
    /// A directory may be the last user of the one above it, and so on up to the root: they go one after the other, because a
    /// thread's stack has no room for the end of all of them within each other.
    fn drop(&mut self) {
        self.table.forget(self.key);
        if self.closes_long() {
            // A second descriptor of the first: what closing it does is done with the last of both.
            closing::close_later([rustix::io::dup(&self.pin).ok(), self.read.take(), self.write.take()]);
        }
        let mut above = self.take_parent();
        while let Some(mut inode) = above.and_then(Arc::into_inner) {
            above = inode.take_parent();
        }
    }
}

impl Link {
    pub fn new(parent: Option<Arc<Inode>>, name: &str) -> Link {
        Link {
            place: Mutex::new(Place { parent, name: name.into(), gone: false, unsynced: false, kept: None }),
            nodes: AtomicUsize::new(0),
        }
    }

    pub fn node_begins(&self) {
        self.nodes.fetch_add(1, Ordering::AcqRel);
    }

    pub fn node_ends(&self) {
        if self.nodes.fetch_sub(1, Ordering::AcqRel) == 1 {
            let kept = self.place.lock().kept.take();
            drop(kept);
        }
    }

    fn is_at(&self, parent: &Arc<Inode>, name: &str) -> bool {
        let place = self.place.lock();
        !place.gone && &*place.name == name && place.parent.as_ref().is_some_and(|p| Arc::ptr_eq(p, parent))
    }

    /// Parent and name, unless the name is gone or this is the root.
    pub fn standing(&self) -> Option<(Arc<Inode>, Arc<str>)> {
        let place = self.place.lock();
        if place.gone {
            return None;
        }
        Some((place.parent.clone()?, place.name.clone()))
    }
}

/// From the root, in real case.
pub fn path_of(link: &Arc<Link>) -> Vec<String> {
    trail_of(link).into_iter().map(|named| named.name).collect()
}

/// The same, with the directories of the names.
pub fn trail_of(link: &Arc<Link>) -> Trail {
    let mut trail = Vec::new();
    let mut link = link.clone();
    loop {
        let (parent, name) = {
            let place = link.place.lock();
            (place.parent.clone(), place.name.clone())
        };
        let Some(parent) = parent else { break };
        trail.push(Named { directory: parent.key.file_id(), name: name.to_string() });
        let Some(part) = &parent.dir else { break };
        link = part.link.clone();
    }
    trail.reverse();
    trail
}

/// Whether the link's name is in `directory` or somewhere below it.
pub fn is_below(link: &Arc<Link>, directory: &Inode) -> bool {
    let mut link = link.clone();
    loop {
        let Some(parent) = link.place.lock().parent.clone() else { return false };
        if parent.key == directory.key {
            return true;
        }
        let Some(part) = &parent.dir else { return false };
        link = part.link.clone();
    }
}

/// As [`crate::store::Node::directories_above`].
pub fn directories_above(first: Option<Arc<Inode>>, next: &mut dyn FnMut(u64) -> bool) {
    let mut here = first;
    while let Some(inode) = here {
        here = inode.dir.as_ref().and_then(|part| part.link.place.lock().parent.clone());
        // Without one above it is the root, which the store itself has in use.
        if here.is_none() || !next(inode.number) {
            return;
        }
    }
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

const SHARDS: usize = 16;

type Shard = Mutex<HashMap<InodeKey, Weak<Inode>, InodeBuild>, ranks::Inodes>;

/// All inodes in use.
pub struct InodeTable {
    shards: [Shard; SHARDS],
}

impl InodeTable {
    pub fn new() -> InodeTable {
        InodeTable { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, key: InodeKey) -> &Shard {
        &self.shards[key.ino as usize % SHARDS]
    }

    pub fn get(&self, key: InodeKey) -> Option<Arc<Inode>> {
        self.shard(key).lock().get(&key)?.upgrade()
    }

    pub fn find_ino(&self, ino: u64) -> Option<Arc<Inode>> {
        let shard = self.shards[ino as usize % SHARDS].lock();
        shard.iter().find(|(k, _)| k.ino == ino).and_then(|(_, w)| w.upgrade())
    }

    /// The inode with this key; when it is not in use yet, a new one with `pin`. `parent` and `name` are where it was found.
    pub fn enter(
        self: &Arc<Self>,
        key: InodeKey,
        kind: Kind,
        pin: OwnedFd,
        pin_mode: PinMode,
        place: Option<(&Arc<Inode>, &str)>,
    ) -> (Arc<Inode>, Arc<Link>) {
        let mut shard = self.shard(key).lock();
        if let Some(inode) = shard.get(&key).and_then(Weak::upgrade) {
            drop(shard);
            if pin_mode == PinMode::Read && inode.pin_mode == PinMode::Path {
                let _ = inode.read.set(pin);
            }
            let link = match place {
                Some((parent, name)) => inode.link(parent, name),
                None => Arc::new(Link::new(None, "")),
            };
            return (inode, link);
        }
        let link = Arc::new(Link::new(place.map(|(p, _)| p.clone()), place.map_or("", |(_, n)| n)));
        let dir = (kind == Kind::Directory).then(|| Box::new(DirPart::new(link.clone())));
        let inode = Arc::new(Inode {
            key,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            kind,
            pin,
            pin_mode,
            read: OnceLock::new(),
            write: OnceLock::new(),
            known: Mutex::new(Known::default()),
            seen: Mutex::default(),
            links: Mutex::new(vec![Arc::downgrade(&link)]),
            dir,
            streams: Mutex::new(()),
            open_streams: OpenStreams::default(),
            places: RwLock::new(()),
            metadata_unsynced: AtomicBool::new(false),
            emptied: AtomicBool::new(false),
            unnamed: AtomicBool::new(false),
            noted_ms: AtomicU64::new(0),
            promised_bytes: AtomicU64::new(0),
            table: self.clone(),
        });
        shard.insert(key, Arc::downgrade(&inode));
        (inode, link)
    }

    fn forget(&self, key: InodeKey) {
        let mut shard = self.shard(key).lock();
        // A new inode may have taken the key meanwhile.
        if shard.get(&key).is_some_and(|w| w.strong_count() == 0) {
            shard.remove(&key);
        }
    }
}

impl DirPart {
    fn new(link: Arc<Link>) -> DirPart {
        DirPart {
            link,
            names: Mutex::new(DirNames::default()),
            subdirs: RwLock::new(HashMap::new()),
            creating: AtomicUsize::new(0),
            child_defaults: Mutex::new(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_directories_goes_on_a_small_stack() {
        let table = Arc::new(InodeTable::new());
        let root = InodeKey { dev: 1, ino: 1 };
        let pin = || rustix::io::dup(std::io::stderr()).unwrap();
        let (mut here, _) = table.enter(root, Kind::Directory, pin(), PinMode::Path, None);
        for ino in 2..800 {
            let key = InodeKey { dev: 1, ino };
            here = table.enter(key, Kind::Directory, pin(), PinMode::Path, Some((&here, "d"))).0;
        }
        assert!(table.get(root).is_some(), "it is above what is in use");
        std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop(here)).unwrap().join().unwrap();
        assert!(table.get(root).is_none());
    }
}
