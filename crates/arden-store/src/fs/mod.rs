//! File operations by the rules of [MS-FSA], for any protocol: joins a `FileStore` with the open table
//! and the access check. One `Fs` for each exported root; all share one `OpenTable`.
//!
//! Calls that may have to wait for others (an oplock break, a lock) answer `Step::Wait`. When the wait is
//! over, `OpenOwner::resume` is called and the caller makes the same call again. Time is passed in.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arden_auth::Token;
use arden_wire::{
    access::{OPT_DELETE_ON_CLOSE, OPT_NO_INTERMEDIATE_BUFFERING, OPT_SEQUENTIAL_ONLY, OPT_WRITE_THROUGH},
    dtyp::SecurityDescriptor,
    fscc::FILE_READ_ONLY_VOLUME,
};

use crate::{
    commit::{Cause, ScopeId},
    error::{NotDone, StoreError},
    handles::{Committed, HandleStore},
    name::NtPath,
    store::{ChangeKind, Ea, FileStore, Node, Result, Stat},
    table::{OpenTable, notify::Watches},
};

mod access;
mod close;
mod data;
mod dir;
mod freed;
mod info;
mod offload;
mod open;
mod outside;
mod owner;
mod past;
mod rename;
mod restore;
mod rights;
mod stream_snapshots;
mod valid;

pub use data::APPEND;
pub use dir::Emitted;
pub use offload::{Frozen, Offloaded};
pub use owner::{HeldBytes, OpenOwner, Owner};
pub use restore::RestoreOpen;
pub use rights::Operation;

pub use crate::table::{Open, OpenSummary, TableLimits};

/// Done, or waiting for somebody else; then call again after `OpenOwner::resume(wait)`.
#[derive(Debug)]
pub enum Step<T> {
    Done(T),
    Wait(WaitId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaitId(pub u64);
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);
/// Who caches: SMB's ClientGuid. Leases are shared by the opens of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u128);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    Supersede = 0,
    Open = 1,
    Create = 2,
    OpenIf = 3,
    Overwrite = 4,
    OverwriteIf = 5,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateAction {
    Superseded = 0,
    Opened = 1,
    Created = 2,
    Overwritten = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OplockLevel {
    None,
    LevelII,
    Exclusive,
    Batch,
}

/// Lease state bits, [MS-SMB2] 2.2.13.2.8.
pub mod lease_state {
    pub const READ: u32 = 1;
    pub const HANDLE: u32 = 2;
    pub const WRITE: u32 = 4;

    const LETTERS: [(u32, char); 3] = [(READ, 'R'), (WRITE, 'W'), (HANDLE, 'H')];

    /// As people write a state: `RWH`, or nothing.
    pub fn letters(state: u32) -> String {
        LETTERS.iter().filter(|(bit, _)| state & bit != 0).map(|(_, letter)| *letter).collect()
    }

    /// The state of these letters; others count for nothing.
    pub fn of_letters(text: &str) -> u32 {
        LETTERS.iter().filter(|(_, letter)| text.contains(*letter)).map(|(bit, _)| bit).sum()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRequest {
    pub key: u128,
    pub state: u32,
    /// Parent lease key, where the client gave one (v2): its directory lease is not broken by this client's own changes.
    pub parent_key: Option<u128>,
    pub epoch: u16,
    /// 1 or 2, as the client's context was.
    pub version: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRequest {
    None,
    Oplock(OplockLevel),
    Lease(LeaseRequest),
}

/// What was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheGrant {
    Oplock(OplockLevel),
    Lease { key: u128, state: u32, parent_key: Option<u128>, epoch: u16, version: u8, breaking: bool },
}

/// [MS-SMB2] CreateGuid of a persistent open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreateMark {
    pub id: u128,
    /// It was asked for before and may have been done.
    pub replay: bool,
}

#[derive(Clone)]
pub struct OpenRequest<'a> {
    /// Reserved by `OpenTable::reserve_open`, and good for one open.
    pub id: OpenId,
    /// Who is told of breaks, and when the call is to be made again.
    pub owner: &'a Owner,
    pub path: &'a NtPath,
    /// With OPT_OPEN_BY_FILE_ID.
    pub by_id: Option<u64>,
    /// As the client sent it: generic bits and MAXIMUM_ALLOWED included.
    pub desired_access: u32,
    pub share_access: u32,
    pub disposition: Disposition,
    pub options: u32,
    pub attributes: u32,
    pub allocation: Option<u64>,
    pub security: Option<&'a SecurityDescriptor>,
    pub eas: &'a [Ea],
    pub cache: CacheRequest,
    pub client: ClientId,
    /// Tells this create from all others; the file that it makes keeps it.
    pub mark: Option<CreateMark>,
    pub who: &'a Arc<Token>,
    /// What the share lets this user have at most (a read-only share: no write bits).
    pub access_ceiling: u32,
    /// What is changed through the open is on stable storage before it is answered.
    pub durable: bool,
    pub keeps: Keeps<'a>,
    pub cause: Cause<'a>,
}

/// Whether there is room for the directories above what an open is about to open, or for the directory, and those above it, in
/// which it is about to make something (true); `TooManyOpens` if not.
pub type Keeps<'a> = Option<&'a dyn Fn(&dyn Node, bool) -> bool>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseBreak {
    pub client: ClientId,
    pub key: u128,
    pub from: u32,
    pub to: u32,
    pub ack: bool,
    pub epoch: u16,
    pub version: u8,
    pub opens: Vec<OpenId>,
}

/// [MS-SMB2] 2.2.26.1 lock element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    pub offset: u64,
    pub len: u64,
    pub exclusive: bool,
}

/// Why there is no open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError {
    NotDone(NotDone),
    /// A symbolic link is in the way, which the client follows, [MS-SMB2] 2.2.2.2.1.
    Symlink(Box<SymlinkError>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymlinkError {
    pub tag: u32,
    /// The reparse data buffer without its 8-byte header.
    pub data: Vec<u8>,
    /// Bytes (of UTF-16) of the requested path that follow the link, the separator before them included.
    pub unparsed_path_bytes: usize,
}

impl From<NotDone> for OpenError {
    fn from(e: NotDone) -> OpenError {
        OpenError::NotDone(e)
    }
}
impl From<StoreError> for OpenError {
    fn from(e: StoreError) -> OpenError {
        OpenError::NotDone(e.into())
    }
}

/// A successful open.
#[derive(Debug, Clone)]
pub struct Opened {
    pub open: Arc<Open>,
    pub action: CreateAction,
    pub cache: CacheGrant,
    pub stat: Stat,
}

/// What `Fs::stat` adds to the store's answer, [MS-FSCC] 2.4.47.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenStat {
    /// `links` is already without the name that a pending delete takes away.
    pub stat: Stat,
    pub delete_pending: bool,
}

/// One entry of a change notification, [MS-FSCC] 2.7.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub kind: ChangeKind,
    /// Relative to the watched directory, with backslashes.
    pub name: String,
}

/// FileBasicInformation as on the wire, [MS-FSCC] 2.4.7: 0 leaves a time alone, -1 stops its updates
/// through this open, -2 lets them go on. Attributes 0 leaves them alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BasicInformation {
    pub creation: i64,
    pub last_access: i64,
    pub last_write: i64,
    pub change: i64,
    pub attributes: u32,
}

/// FileDispositionInformation and its Ex form, [MS-FSCC] 2.4.11 and 2.4.12.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disposal {
    pub delete: bool,
    pub posix: bool,
    pub ignore_readonly: bool,
    /// Sets or (with `delete` false) clears FILE_DELETE_ON_CLOSE of this open instead of deleting.
    pub on_close: bool,
}

/// FileRenameInformation, FileLinkInformation and their Ex forms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NameChange {
    pub replace: bool,
    pub posix: bool,
    pub ignore_readonly: bool,
}

/// Security information bits, [MS-DTYP] 2.4.7.
pub mod security_info {
    pub const OWNER: u32 = 1;
    pub const GROUP: u32 = 2;
    pub const DACL: u32 = 4;
    pub const SACL: u32 = 8;
    pub const LABEL: u32 = 0x10;
    pub const ATTRIBUTE: u32 = 0x20;
    pub const SCOPE: u32 = 0x40;
    pub const BACKUP: u32 = 0x1_0000;
}

/// Completion filters of CHANGE_NOTIFY, [MS-SMB2] 2.2.35.
pub mod notify_filter {
    pub const FILE_NAME: u32 = 0x001;
    pub const DIR_NAME: u32 = 0x002;
    pub const ATTRIBUTES: u32 = 0x004;
    pub const SIZE: u32 = 0x008;
    pub const LAST_WRITE: u32 = 0x010;
    pub const LAST_ACCESS: u32 = 0x020;
    pub const CREATION: u32 = 0x040;
    pub const EA: u32 = 0x080;
    pub const SECURITY: u32 = 0x100;
    pub const STREAM_NAME: u32 = 0x200;
    pub const STREAM_SIZE: u32 = 0x400;
    pub const STREAM_WRITE: u32 = 0x800;
}

/// File operations below one exported root.
pub struct Fs {
    store: Arc<dyn FileStore>,
    table: Arc<OpenTable>,
    handles: Option<Arc<dyn HandleStore>>,
    available: AtomicBool,
    /// Of all roots of the store.
    watches: Arc<Watches>,
    outside: outside::Outside,
    past: past::Past,
    /// [MS-FSA] Volume.IsReadOnly.
    read_only: bool,
}

/// Create options that FileModeInformation shows, [MS-FSCC] 2.4.31.
const MODE_BITS: u32 =
    OPT_WRITE_THROUGH | OPT_SEQUENTIAL_ONLY | OPT_NO_INTERMEDIATE_BUFFERING | 0x10 | 0x20 | OPT_DELETE_ON_CLOSE;

impl Fs {
    pub fn new(store: Arc<dyn FileStore>, table: Arc<OpenTable>) -> Arc<Fs> {
        Fs::with_handles(store, table, None)
    }
    /// With a place where persistent opens are kept.
    pub fn with_handles(
        store: Arc<dyn FileStore>,
        table: Arc<OpenTable>,
        handles: Option<Arc<dyn HandleStore>>,
    ) -> Arc<Fs> {
        let read_only = store.volume().capabilities & FILE_READ_ONLY_VOLUME != 0;
        let watches = table.watches_of(store.root().id().volume);
        Arc::new(Fs {
            store,
            table,
            handles,
            available: AtomicBool::new(false),
            watches,
            outside: outside::Outside::default(),
            past: past::Past::default(),
            read_only,
        })
    }
    /// From now on there are persistent opens, which others' opens may break, whatever way those come.
    pub fn make_available(&self) {
        self.available.store(true, Ordering::Relaxed);
    }
    pub fn is_available(&self) -> bool {
        self.available.load(Ordering::Relaxed)
    }
    pub fn handles(&self) -> Option<&Arc<dyn HandleStore>> {
        self.handles.as_ref()
    }
    /// Whether `commit` would have something to do for the scope; with `changes`, changes of files count.
    pub(crate) fn has_uncommitted(&self, scope: ScopeId, changes: bool) -> bool {
        self.handles.as_ref().is_some_and(|h| h.has_uncommitted(scope)) || changes && self.store.has_uncommitted(scope)
    }
    /// What the scope did through this root before the call is durable when it returns: what is kept of opens, and with
    /// `changes` the files. Opens first: a handle to a file that is gone is no harm, a file without its handle may be.
    pub(crate) fn commit(&self, scope: ScopeId, changes: bool) -> Result<(), StoreError> {
        let kept = self.handles.as_ref().map_or(Ok(()), |h| h.commit(scope));
        let changed = if changes { self.store.commit(scope) } else { Ok(()) };
        kept.and(changed)
    }
    /// Whether `commit_later` is there.
    pub(crate) fn commits_later(&self) -> bool {
        self.handles.as_ref().is_some_and(|h| h.commits_later())
    }
    /// `commit` without waiting: `done` is called on another thread.
    pub(crate) fn commit_later(&self, scope: ScopeId, changes: bool, done: Committed) {
        match &self.handles {
            Some(handles) => handles.commit_later(scope, changes, done),
            None => done(self.commit(scope, changes)),
        }
    }
    pub(crate) fn end_scope(&self, scope: ScopeId) {
        if let Some(handles) = &self.handles {
            handles.end_scope(scope);
        }
        self.store.end_scope(scope);
    }
    /// Tells opens of this root from those of others; good while the root lives.
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
    pub fn store(&self) -> &Arc<dyn FileStore> {
        &self.store
    }
    pub fn table(&self) -> &Arc<OpenTable> {
        &self.table
    }
}
