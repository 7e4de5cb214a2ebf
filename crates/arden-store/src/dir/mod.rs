//! The dir store: a directory of any Linux file system as a `FileStore`, in place and with everything that a Samba
//! server kept there. Owns the mapping of NT terms to names, inodes and extended attributes.
//!
//! Invariants:
//! - Every name is opened relative to a directory's descriptor, one component at a time, without following links;
//!   nothing outside the root is ever reached, whatever local processes do meanwhile.
//! - Only regular files, directories and symbolic links exist for clients.
//! - What is remembered (names, attributes, descriptors) is checked against the change time of the inode that it was
//!   read from before it is believed, and is bounded by the limits in `DirOptions`.

mod cache;
mod closing;
mod commit;
mod data;
mod dosattrib;
mod ea;
mod inode;
mod list;
mod lookup;
mod mark;
mod meta;
mod names;
mod namespace;
mod node;
mod ntacl;
mod overlap;
mod reflink;
mod reparse;
mod security;
mod stream;
mod sys;
mod watch;

pub use lookup::PATH_DEPTH_MAX;

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, AtomicUsize},
    },
    time::Duration,
};

use arden_lock::{Mutex, ranks};
use arden_wire::{FileTime, dtyp::SecurityDescriptor};
use rustix::{
    fd::AsFd as _,
    fs::{Mode, OFlags},
    io::Errno,
};

use self::{
    cache::Generations,
    inode::{Inode, InodeTable, Link, PinMode},
    meta::Meta,
    node::DirNode,
    sys::{InodeBuild, InodeKey, Kind},
};
use crate::{
    commit::ScopeId,
    error::StoreError,
    name::NtPath,
    store::{ChangeSink, FileStore, Lookup, Node, NodeRef, Result, SpaceInfo, VolumeInfo, WatchGuard},
};

/// Kept in the root for streams that do not fit into extended attributes. No client sees a directory of this name, wherever
/// it stands: it may be that of another share further down.
pub const SPILL_DIRECTORY: &str = ".arden-streams";

/// Limits and habits of a dir store.
#[derive(Debug, Clone)]
pub struct DirOptions {
    pub label: String,
    /// Permission bits of new files and directories. Others on the machine get nothing unless the administrator says so.
    pub file_mode: u32,
    pub directory_mode: u32,
    /// Names beginning with a dot have ATTR_HIDDEN until a client sets attributes.
    pub hide_dot_files: bool,
    /// Memory for names of directories, all together.
    pub name_cache_bytes_max: usize,
    /// How long a directory's names are believed that may lack a change which others made at the same time as one of this
    /// store: another share of an overlapping tree, or a local process. Zero: they are read again.
    pub listing_age_min: Duration,
    /// Directories whose descriptors are kept open without a user.
    pub directories_cached_max: usize,
    /// Files whose attributes and descriptors are remembered without a user.
    pub metadata_cached_max: usize,
    /// Files that are found by their 64-bit id after their last user went.
    pub file_ids_known_max: usize,
    /// Directories watched for changes from outside.
    pub watches_max: usize,
}

impl Default for DirOptions {
    fn default() -> Self {
        DirOptions {
            label: String::new(),
            file_mode: 0o600,
            directory_mode: 0o700,
            hide_dot_files: true,
            name_cache_bytes_max: 64 << 20,
            listing_age_min: Duration::from_secs(2),
            directories_cached_max: 512,
            metadata_cached_max: 16_384,
            file_ids_known_max: 32_768,
            watches_max: 16_384,
        }
    }
}

const META_SHARDS: usize = 8;
/// Distinct security descriptors remembered in parsed form.
const DESCRIPTORS_CACHED_MAX: usize = 1024;
/// What they take of memory.
const DESCRIPTOR_BYTES_CACHED_MAX: usize = 16 << 20;

/// What all nodes of a store share.
pub(crate) struct Shared {
    options: DirOptions,
    root: Arc<Inode>,
    root_link: Arc<Link>,
    table: Arc<InodeTable>,
    proc_fds: Arc<OwnedFd>,
    metas: [Mutex<Generations<InodeKey, Meta, InodeBuild>, ranks::CachedAttributes>; META_SHARDS],
    directories: Mutex<Generations<InodeKey, Arc<Inode>, InodeBuild>, ranks::CachedDirectories>,
    /// Where a file was seen last, by inode number.
    places: Mutex<Generations<u64, (InodeKey, Arc<str>), InodeBuild>, ranks::SeenPlaces>,
    tunnel: namespace::Tunnel,
    descriptors: Mutex<Generations<Arc<[u8]>, Arc<SecurityDescriptor>>, ranks::ParsedDescriptors>,
    /// Directories that hold a listing, and the bytes of all listings.
    listings: Mutex<Vec<Weak<Inode>>, ranks::Listings>,
    listing_bytes: Arc<AtomicUsize>,
    clock: AtomicU64,
    /// Two changes of an inode never carry the same change time.
    fine_stamps: bool,
    /// The attribute that holds security descriptors: only root may write the one that Samba uses.
    ntacl: &'static str,
    /// Names left out because no client could name them.
    unpresentable: AtomicU64,
    uid: u32,
    gid: u32,
    default_root: Arc<SecurityDescriptor>,
    watcher: OnceLock<Arc<watch::Watcher>>,
    /// What a stored descriptor adds to the allocation that statx tells.
    attribute_block_bytes: u64,
    uncommitted: commit::Uncommitted,
    overlap: overlap::Place,
    /// All data is in memory: a read never waits.
    in_memory: bool,
    created: FileTime,
}

/// A `FileStore` over a directory.
pub struct DirStore {
    shared: Arc<Shared>,
}

impl DirStore {
    /// Serves `path`. `PathNotFound` when it does not exist, `NotADirectory` when it is something else.
    pub fn open(path: &Path, options: DirOptions) -> Result<Arc<DirStore>> {
        if path
            .canonicalize()
            .is_ok_and(|p| p.components().any(|c| c.as_os_str().to_str().is_some_and(lookup::is_reserved)))
        {
            tracing::error!(path = %path.display(), "a share keeps its streams there: it is not to be shared itself");
            return Err(StoreError::InvalidName.into());
        }
        let pin = sys::open_root(path).map_err(|e| match e {
            Errno::NOENT => StoreError::PathNotFound.into(),
            e => sys::failure(e),
        })?;
        let proc_fds = sys::open_proc_fds().map(Arc::new).map_err(|e| {
            tracing::error!("/proc is needed and cannot be opened: {e}");
            StoreError::NotSupported
        })?;
        raise_descriptor_limit();
        let stat = sys::stat_fd(pin.as_fd()).map_err(sys::failure)?;
        if matches!(rustix::fs::fremovexattr(&pin, "user.arden.probe"), Err(Errno::OPNOTSUPP)) {
            tracing::warn!(path = %path.display(), "no user extended attributes here: attributes, ACLs and streams cannot be kept");
        }
        // Removing an attribute that is not there tells whether it could be written.
        let ntacl = match rustix::fs::fremovexattr(&pin, "security.arden.probe") {
            Err(Errno::NODATA) | Ok(()) => meta::NTACL_ROOT,
            _ => meta::NTACL_USER,
        };
        let fine_stamps = has_fine_stamps(pin.as_fd());
        let attribute_block_bytes = attribute_block_bytes(pin.as_fd(), ntacl);
        let in_memory = is_in_memory(pin.as_fd());
        let table = Arc::new(InodeTable::new());
        let (root, root_link) = table.enter(stat.key, Kind::Directory, pin, PinMode::Path, None);
        let uncommitted = commit::Uncommitted::new(&root, &proc_fds);
        let shared = Shared {
            root,
            root_link,
            table,
            proc_fds,
            metas: std::array::from_fn(|_| Mutex::new(Generations::new(options.metadata_cached_max / META_SHARDS))),
            directories: Mutex::new(Generations::new(options.directories_cached_max)),
            tunnel: namespace::Tunnel::default(),
            places: Mutex::new(Generations::new(options.file_ids_known_max)),
            descriptors: Mutex::new(Generations::weighing(
                DESCRIPTORS_CACHED_MAX,
                DESCRIPTOR_BYTES_CACHED_MAX,
                |stored: &Arc<[u8]>, sd: &Arc<SecurityDescriptor>| stored.len() + sd.heap_bytes(),
            )),
            listings: Mutex::new(Vec::new()),
            listing_bytes: Arc::default(),
            clock: AtomicU64::new(0),
            fine_stamps,
            ntacl,
            unpresentable: AtomicU64::new(0),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            default_root: Arc::new(crate::root::default_descriptor()),
            watcher: OnceLock::new(),
            uncommitted,
            overlap: overlap::Place::of(path),
            in_memory,
            attribute_block_bytes,
            created: stat.btime.to_filetime(),
            options,
        };
        let shared = Arc::new(shared);
        overlap::enter(&shared);
        Ok(Arc::new(DirStore { shared }))
    }

    /// Memory that names of directories take now; `DirOptions::name_cache_bytes_max` bounds it.
    pub fn name_cache_bytes(&self) -> usize {
        self.shared.listing_bytes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// How many names were left out of listings because no client could name them.
    pub fn unpresentable_names(&self) -> u64 {
        self.shared.unpresentable.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Every file in use holds descriptors, so the process takes all that it may have.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(e) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!("the limit of open files stays low: {e}");
        }
    }
}

/// Tried on a file without a name, of which nothing stays.
fn attribute_block_bytes(root: BorrowedFd<'_>, attribute: &str) -> u64 {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::openat(root, c".", flags, Mode::from_raw_mode(0o600))
        .and_then(|file| {
            // As long as a usual descriptor; most file systems have no room for it in the inode.
            sys::set_xattr(file.as_fd(), attribute, &[0; 180])?;
            sys::stat_fd(file.as_fd())
        })
        .map_or(0, |stat| stat.allocated)
}

fn is_in_memory(root: BorrowedFd<'_>) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    rustix::fs::fstatfs(root).is_ok_and(|fs| fs.f_type == TMPFS)
}

/// Kernel 6.13 made change times distinct on these file systems. Not on tmpfs: there a link, an unlink and an rmdir give
/// the directory the time that the file has got, whether anybody looked at the directory or not.
fn has_fine_stamps(root: BorrowedFd<'_>) -> bool {
    const EXT4: i64 = 0xEF53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683E;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let Ok(fs) = rustix::fs::fstatfs(root) else { return false };
    version >= (6, 13) && [EXT4, XFS, BTRFS].contains(&fs.f_type)
}

impl Shared {
    fn proc_fds(&self) -> BorrowedFd<'_> {
        self.proc_fds.as_fd()
    }

    fn node(self: &Arc<Self>, inode: Arc<Inode>, link: Arc<Link>) -> NodeRef {
        link.node_begins();
        Arc::new(DirNode { store: self.clone(), inode, link, stream: OnceLock::new() })
    }
}

impl FileStore for DirStore {
    fn takes_descriptors(&self) -> bool {
        true
    }
    fn volume(&self) -> VolumeInfo {
        let s = &self.shared;
        let id = u128::from(s.root.key.dev) << 64 | u128::from(s.root.key.ino);
        VolumeInfo {
            label: s.options.label.clone(),
            serial: (s.root.key.dev ^ s.root.key.ino ^ s.root.key.ino >> 32) as u32,
            id,
            created: s.created,
            file_system_name: "NTFS".into(),
            capabilities: capability::ALL,
            name_max: 255,
            has_clusters: false,
        }
    }

    fn space(&self) -> Result<SpaceInfo> {
        let v = rustix::fs::fstatvfs(self.shared.root.pin()).map_err(sys::failure)?;
        Ok(SpaceInfo {
            total_bytes: v.f_blocks.saturating_mul(v.f_frsize),
            free_bytes: v.f_bfree.saturating_mul(v.f_frsize),
            available_bytes: v.f_bavail.saturating_mul(v.f_frsize),
            sector_bytes: 512,
            sectors_per_unit: (v.f_frsize / 512).clamp(1, 1 << 16) as u32,
        })
    }

    fn root(&self) -> NodeRef {
        self.shared.node(self.shared.root.clone(), self.shared.root_link.clone())
    }

    fn lookup(&self, path: &NtPath) -> Result<Lookup> {
        self.shared.lookup(path, false)
    }

    fn lookup_to_read(&self, path: &NtPath) -> Result<Lookup> {
        self.shared.lookup(path, true)
    }

    fn lookup_id(&self, id: u64) -> Result<NodeRef> {
        self.shared.lookup_id(id)
    }

    fn watch(&self, sink: Arc<dyn ChangeSink>) -> Result<()> {
        self.shared.start_watching(sink)
    }

    fn watch_directory(&self, directory: &dyn Node, recursive: bool) -> Result<Option<WatchGuard>> {
        self.shared.watch_directory(node::own(directory)?.directory()?, recursive).map(Some)
    }

    fn note_changes(&self) {
        self.shared.note_changes();
    }

    fn has_uncommitted(&self, scope: ScopeId) -> bool {
        self.shared.has_uncommitted(scope)
    }

    fn commit(&self, scope: ScopeId) -> Result<(), StoreError> {
        self.shared.commit(scope)
    }

    fn end_scope(&self, scope: ScopeId) {
        self.shared.end_scope(scope);
    }
}

impl Drop for DirStore {
    fn drop(&mut self) {
        if let Some(watcher) = self.shared.watcher.get() {
            watcher.stop();
        }
    }
}

/// FILE_* capability bits, [MS-FSCC] 2.5.1.
mod capability {
    const CASE_SENSITIVE_SEARCH: u32 = 0x1;
    const CASE_PRESERVED_NAMES: u32 = 0x2;
    const UNICODE_ON_DISK: u32 = 0x4;
    const PERSISTENT_ACLS: u32 = 0x8;
    const SUPPORTS_SPARSE_FILES: u32 = 0x40;
    const SUPPORTS_REPARSE_POINTS: u32 = 0x80;
    const SUPPORTS_OBJECT_IDS: u32 = 0x1_0000;
    const NAMED_STREAMS: u32 = 0x4_0000;
    const SUPPORTS_HARD_LINKS: u32 = 0x40_0000;
    const SUPPORTS_EXTENDED_ATTRIBUTES: u32 = 0x80_0000;
    const SUPPORTS_OPEN_BY_FILE_ID: u32 = 0x100_0000;
    pub const ALL: u32 = CASE_SENSITIVE_SEARCH
        | CASE_PRESERVED_NAMES
        | UNICODE_ON_DISK
        | PERSISTENT_ACLS
        | SUPPORTS_SPARSE_FILES
        | SUPPORTS_REPARSE_POINTS
        | SUPPORTS_OBJECT_IDS
        | NAMED_STREAMS
        | SUPPORTS_HARD_LINKS
        | SUPPORTS_EXTENDED_ATTRIBUTES
        | SUPPORTS_OPEN_BY_FILE_ID;
}
