//! The `FileStore` trait: what a file system has to offer, in NT terms. A store knows names, data and
//! metadata. It knows nothing of opens, sharing, locks or leases: those are in the open table (`table`),
//! and the rules of [MS-FSA] that join both are in `fs`.
//!
//! All calls may block unless they say otherwise; all are safe to call from many threads.

use std::sync::Arc;

use arden_wire::{
    FileTime,
    dtyp::{SecurityDescriptor, Sid},
};

pub use crate::error::Result;
use crate::{
    changed_by::{ChangedBy, ScopeId},
    error::StoreError,
    name::{NtPath, short_name},
    quota::QuotaStore,
    usn::ChangeJournal,
};

pub type NodeRef = Arc<dyn Node>;

/// Which file: unique on the machine, stable over renames and restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    pub volume: u64,
    pub file: u64,
}

/// What [MS-FSCC] calls basic and standard information, of a file or of one stream of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub id: FileId,
    pub directory: bool,
    /// ATTR_*; never 0 (ATTR_NORMAL stands alone), ATTR_DIRECTORY included.
    pub attributes: u32,
    pub creation: FileTime,
    pub last_access: FileTime,
    pub last_write: FileTime,
    pub change: FileTime,
    pub end_of_file: u64,
    pub allocation: u64,
    pub links: u32,
    pub ea_size: u32,
    /// Meaningful with ATTR_REPARSE_POINT.
    pub reparse_tag: u32,
}

/// Whether a stream is set to be checked against its checksums as it is read, [MS-FSA] 2.1.1.5 ChecksumAlgorithm and
/// IsChecksumEnforcementOff. New files and directories have what their directory has, new streams what their file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Integrity {
    /// Nobody set it: checked as the store checks everything.
    #[default]
    Unset,
    /// Set: a read of damaged data fails.
    On,
    /// Set, but a read of damaged data returns what is there.
    Unenforced,
    /// Switched off: a read of damaged data returns what is there.
    Off,
}

impl Integrity {
    /// The stream is one of FILE_ATTRIBUTE_INTEGRITY_STREAM.
    pub fn is_set(self) -> bool {
        matches!(self, Integrity::On | Integrity::Unenforced)
    }

    /// A read of damaged data fails.
    pub fn is_enforced(self) -> bool {
        matches!(self, Integrity::Unset | Integrity::On)
    }
}

/// None leaves a field as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BasicUpdate {
    pub creation: Option<FileTime>,
    pub last_access: Option<FileTime>,
    pub last_write: Option<FileTime>,
    pub change: Option<FileTime>,
    /// ATTR_SETTABLE bits only; the store keeps the others.
    pub attributes: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ea {
    /// ASCII, case-insensitive, as the client wrote it.
    pub name: String,
    pub flags: u8,
    /// Empty deletes the EA when set.
    pub value: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    /// "" for the unnamed data stream.
    pub name: String,
    pub size: u64,
    pub allocation: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    pub name: String,
    pub short: EntryShort,
    pub stat: Stat,
}

/// The 8.3 name beside the name of an entry, [MS-FSA] 2.1.1.4 ShortName.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryShort {
    /// The store keeps none: it is what [`short_name`] makes of the name.
    Made,
    /// What the store keeps.
    Kept(Option<String>),
}

impl DirEntry {
    /// None where the name is an 8.3 name itself, or has none.
    pub fn short_name(&self) -> Option<String> {
        match &self.short {
            EntryShort::Made => short_name(&self.name),
            EntryShort::Kept(short) => short.clone(),
        }
    }

    /// Whether a query takes the entry: by its name, or by a short name that is kept.
    pub fn matches(&self, accept: &dyn Fn(&str) -> bool) -> bool {
        accept(&self.name) || self.short.is_taken_by(accept)
    }
}

impl EntryShort {
    /// Whether a query by this name, of those that are kept, takes the entry.
    pub fn is_taken_by(&self, accept: &dyn Fn(&str) -> bool) -> bool {
        matches!(self, EntryShort::Kept(Some(short)) if accept(short))
    }
}

/// What a new file or directory starts with.
#[derive(Debug, Clone)]
pub struct NewFile<'a> {
    pub directory: bool,
    pub attributes: u32,
    /// The complete descriptor, inheritance applied. None: the store keeps none and answers its default.
    pub security: Option<&'a SecurityDescriptor>,
    pub eas: &'a [Ea],
    pub allocation: Option<u64>,
}

/// May the call wait for the disk?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Answer `NotDone::WouldBlock` rather than wait.
    No,
    Yes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceInfo {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Free for this caller (reserves and quotas taken off).
    pub available_bytes: u64,
    pub sector_bytes: u32,
    pub sectors_per_unit: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    pub label: String,
    pub serial: u32,
    pub id: u128,
    pub created: FileTime,
    /// As FileFsAttributeInformation, e.g. "NTFS".
    pub file_system_name: String,
    /// FILE_* capability bits of [MS-FSCC] 2.5.1.
    pub capabilities: u32,
    pub name_max: u32,
    /// Files lie in clusters that the store hands out itself: [`Node::cluster_runs`].
    pub has_clusters: bool,
}

/// Clusters of a stream that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterRun {
    /// The cluster of the stream that follows the run.
    pub next: u64,
    /// Where on the volume its first cluster lies; None: a hole, or data that has no cluster of its own (yet).
    pub at: Option<u64>,
}

/// A snapshot of one stream, [MS-FSCC] 2.3.66.1.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSnapshotInfo {
    pub name: String,
    /// Later than that of every older one of the stream.
    pub created: FileTime,
    /// Where its data ends, in bytes.
    pub size: u64,
    /// What it holds, shared or not, in bytes.
    pub allocation: u64,
}

/// Where clusters of a stream lie that differ from those of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaPlace {
    /// There and behind it.
    At(u64),
    /// They hold data that has no place yet.
    Unplaced,
    /// They hold nothing any more.
    Hole,
}

/// Neighbouring clusters of a stream that differ from those of a snapshot, [MS-FSCC] 2.3.66.2.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamDelta {
    /// The first cluster of the stream.
    pub from: u64,
    pub blocks: u64,
    pub place: DeltaPlace,
}

pub enum Lookup {
    Found(NodeRef),
    /// All but the last component exist. `base` is set when the file exists and only its stream is missing.
    Missing {
        parent: NodeRef,
        base: Option<NodeRef>,
    },
    /// A reparse point stands in the way (a symbolic link in the middle of the path).
    /// `unparsed_components`: how many components follow the link.
    Symlink {
        link: NodeRef,
        unparsed_components: usize,
    },
}

pub trait FileStore: Send + Sync {
    fn volume(&self) -> VolumeInfo;
    fn space(&self) -> Result<SpaceInfo>;
    /// The same as `who` sees it at `at`: quotas make it less, [MS-FSA] 2.1.5.13.7 and 2.1.5.13.11.
    fn space_for(&self, _who: &Sid, _at: &dyn Node) -> Result<SpaceInfo> {
        self.space()
    }
    /// [MS-FSA] 2.1.1.1 NumberOfDataCopies: 1 without redundancy, and where it is not of copies.
    fn data_copies(&self) -> u32 {
        1
    }
    /// None where the store keeps none: IsQuotasSupported of [MS-FSA] 2.1.1.1.
    fn quotas(&self) -> Option<&dyn QuotaStore> {
        None
    }
    /// None where the store keeps none.
    fn change_journal(&self) -> Option<&dyn ChangeJournal> {
        None
    }
    /// Whether each open takes descriptors of the process.
    fn takes_descriptors(&self) -> bool {
        false
    }
    /// [MS-FSA] 2.1.1.1 GenerateShortNames: names get 8.3 names that are kept, and others may be set.
    fn generates_short_names(&self) -> bool {
        false
    }
    fn root(&self) -> NodeRef;
    /// Case-insensitive, by 8.3 names too. Never leaves the store's root; a symbolic link is never followed, and as last
    /// component it is `Found` as itself, with ATTR_REPARSE_POINT.
    /// `PathNotFound` when a component before the last is missing or not a directory.
    fn lookup(&self, path: &NtPath) -> Result<Lookup>;
    /// The same for somebody who is about to read the data, if it is a file: a store that has to open something for that
    /// may do so here.
    fn lookup_to_read(&self, path: &NtPath) -> Result<Lookup> {
        self.lookup(path)
    }
    /// By 64-bit id, for FILE_OPEN_BY_FILE_ID; `NotSupported` where the store cannot.
    fn lookup_id(&self, id: u64) -> Result<NodeRef>;
    /// Starts telling `sink` about changes anywhere below the root, made through this store or not.
    /// `sink` is called from a thread of the store's.
    fn watch(&self, sink: Arc<dyn ChangeSink>) -> Result<()>;
    /// Somebody wants to know of changes in `directory` (with `recursive`, of all below) while the guard lives. A store
    /// that hears of outside changes only where it looks needs this; one that nobody else can change has None.
    /// `InsufficientResources` when no more can be watched; Arden's own changes are reported all the same.
    fn watch_directory(&self, _directory: &dyn Node, _recursive: bool) -> Result<Option<WatchGuard>> {
        Ok(None)
    }
    /// The times of the states of the past that are kept, whole seconds, oldest first.
    fn snapshots(&self) -> Vec<FileTime> {
        Vec::new()
    }
    /// The store as it was at one of those times; FILE_READ_ONLY_VOLUME is among its capabilities, and every change is
    /// refused with `ReadOnly`. `NotFound` when there is none of this second.
    fn snapshot(&self, _at: FileTime) -> Result<Arc<dyn FileStore>> {
        Err(StoreError::NotFound.into())
    }
    /// From now on somebody calls `commit`: a store that has to remember for it what changed begins to.
    fn note_changes(&self) {}
    /// Whether `commit` would have something to do, or to tell the scope. Never false while a change that was made is not on
    /// stable storage.
    fn has_uncommitted(&self, _scope: ScopeId) -> bool {
        true
    }
    /// Every change that was made through this store before the call is on stable storage when it returns, or was lost: data,
    /// sizes, attributes and names. Callers at the same time share the flush.
    ///
    /// # Errors
    /// Why a change of the scope, or of one that ended without a commit, is not there, or may not be. Each is told once.
    fn commit(&self, _scope: ScopeId) -> Result<(), StoreError> {
        Err(StoreError::NotSupported)
    }
    /// The scope ends: where one of its changes that nobody committed is lost, the next commit of any scope fails. Does not wait.
    fn end_scope(&self, _scope: ScopeId) {}
}

/// What happened to a name; [MS-FSCC] 2.7.1 actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Removed,
    Modified,
    RenamedOld,
    RenamedNew,
    AddedStream,
    RemovedStream,
    ModifiedStream,
}

/// Keeps a directory watched; dropping it ends that.
pub type WatchGuard = Box<dyn Send + Sync>;

pub trait ChangeSink: Send + Sync {
    /// A change made outside Arden, of what the trail leads to.
    fn changed(&self, kind: ChangeKind, trail: &[Named], directory: bool);
    /// Changes were lost; watchers have to enumerate again.
    fn overflow(&self);
}

/// A name, in its real case, and the directory that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub directory: FileId,
    pub name: String,
}

/// Names that lead to something, each in the directory that the one before it leads to.
pub type Trail = Vec<Named>;

/// The unit of allocation of every store.
pub const CLUSTER_BYTES: u64 = 4096;

/// Where the paths begin of what is not below the root any more, because it was moved through another root. No file has
/// this name.
pub const OUTSIDE: &str = "?";

/// What makes way for a new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    /// `NameCollision`.
    Nothing,
    /// This file, which was looked at before. Another that has its name by now: `NameCollision`.
    Only(FileId),
    Anything,
}

impl Replace {
    /// Whether the file that stands there makes way.
    pub fn check(self, there: FileId) -> Result<()> {
        match self {
            Replace::Anything => Ok(()),
            Replace::Only(id) if id == there => Ok(()),
            _ => Err(StoreError::NameCollision.into()),
        }
    }
}

/// One file, directory or stream. A `Node` stays with the file when it is renamed or unlinked.
/// Calls that change something say by which scope: whether the change became durable is told to whoever commits that.
/// Data calls on a directory answer `WrongObject`; directory calls on a file `NotADirectory`.
pub trait Node: Send + Sync {
    fn id(&self) -> FileId;
    /// Tells the file from a later one to which the store gives the same number; 0 where that never happens, or nothing tells it.
    /// Nobody can set it.
    fn born(&self) -> u64 {
        0
    }
    fn is_directory(&self) -> bool;
    /// The named stream this node is; None for the file itself.
    fn stream(&self) -> Option<&str>;
    /// Where it stands now, real case, relative to the root; no stream in it. Where that is not below the root any more, a
    /// path that leads nowhere: it begins with `OUTSIDE`, and no other name has it.
    fn path(&self) -> Vec<String>;
    /// The names that lead to it now from the root of the whole store, wherever this root is; empty for that. No stream.
    fn trail(&self) -> Trail;
    /// Whether `other`, a file of the same store, is somewhere below this directory, be both below the root or not.
    fn is_above(&self, other: &dyn Node) -> Result<bool>;
    /// Numbers of the directories that are in use because this name is below them, the nearest first, until `next` says false; with
    /// `itself` this directory is the first. No directory gets a number that another one had. The root is not among them.
    /// None where [`FileStore::takes_descriptors`] is false.
    fn directories_above(&self, _itself: bool, _next: &mut dyn FnMut(u64) -> bool) {}
    /// `kept` lives for as long as there is a node of this name, or until the name is kept with something else.
    fn keep_with_name(&self, _kept: Arc<dyn std::any::Any + Send + Sync>) {}
    /// The file number of the directory that its name is in, and the name in one case: the same for every node of that name,
    /// of this root or of another one of the store. No meaning for a root.
    fn place(&self) -> (u64, String);
    fn stat(&self) -> Result<Stat>;
    /// The scope's answer says that this node is there, as it is. Where that, or the name of a directory above it, may not be on
    /// stable storage yet, it is a part of the scope from now on; whether it is.
    fn rely_on(&self, _scope: ScopeId) -> bool {
        false
    }
    fn set_basic(&self, by: ChangedBy, update: &BasicUpdate) -> Result<()>;
    fn security(&self) -> Result<Arc<SecurityDescriptor>>;
    /// That of what is called so in this directory, however deep that is. `NotFound`.
    fn child_security(&self, name: &str) -> Result<Arc<SecurityDescriptor>>;
    fn set_security(&self, by: ChangedBy, sd: &SecurityDescriptor) -> Result<()>;

    // Data.
    /// Bytes read; less than asked only at the end of the file, 0 at or past it.
    fn read_at(&self, offset: u64, buf: &mut [u8], wait: Wait) -> Result<usize>;
    /// As [`Node::read_at`], of one of [`FileStore::data_copies`], the first being 0; may wait. `DataError` where that copy is
    /// damaged and integrity is enforced, where it is out of date, and where it is not there.
    fn read_copy_at(&self, _copy: u32, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
        Err(StoreError::NotSupported.into())
    }
    /// Writes all. `WouldBlock` only for `Wait::No`, and then nothing was written.
    fn write_at(&self, by: ChangedBy, offset: u64, data: &[u8], wait: Wait) -> Result<()>;
    fn set_end_of_file(&self, by: ChangedBy, size: u64) -> Result<()>;
    /// Reserves (or truncates to) `size`, in whole clusters; sets the end of file back when smaller. `DiskFull` when there is not as much room;
    /// whether the room is kept is the store's affair.
    fn set_allocation(&self, by: ChangedBy, size: u64) -> Result<()>;
    /// The last user of the stream is done: what `set_allocation` keeps beyond the end may go, [MS-FSA] 2.1.5.5 phase 4.
    fn release_allocation(&self, _by: ChangedBy) {}
    /// Zeroes, giving space back where the file is sparse.
    fn zero_range(&self, by: ChangedBy, offset: u64, len: u64) -> Result<()>;
    /// Parts of `offset..offset+len` that hold data, ascending, the first `max` of them. Work and memory follow `max` and the
    /// data that is there, not the length.
    fn allocated_ranges(&self, offset: u64, len: u64, max: usize) -> Result<Vec<(u64, u64)>>;
    /// Where the stream's clusters from `from` on lie, without gaps up to its last one, at most `max` runs. `EndOfFile` where
    /// it has no cluster `from`, `WrongObject` where the store has no clusters.
    fn cluster_runs(&self, _from: u64, _max: usize) -> Result<Vec<ClusterRun>> {
        Err(StoreError::WrongObject.into())
    }
    fn set_sparse(&self, by: ChangedBy, sparse: bool) -> Result<()>;
    /// How reads of this stream, or of what is made in this directory from now on, are checked. `NotSupported` where a store
    /// keeps no checksums, FILE_SUPPORT_INTEGRITY_STREAMS.
    fn integrity(&self) -> Result<Integrity> {
        Err(StoreError::NotSupported.into())
    }
    /// Takes effect for reads that begin afterwards. Errors as [`Node::integrity`].
    fn set_integrity(&self, _by: ChangedBy, _integrity: Integrity) -> Result<()> {
        Err(StoreError::NotSupported.into())
    }
    /// Snapshots of this stream, oldest first. `NotSupported` where a store keeps none, FILE_SUPPORTS_STREAM_SNAPSHOTS.
    fn stream_snapshots(&self) -> Result<Vec<StreamSnapshotInfo>> {
        Err(StoreError::NotSupported.into())
    }
    /// Keeps the stream as it is now. `InvalidName`, `NameCollision` in any case, `InsufficientResources` when it has as many as
    /// it may have; otherwise as [`Node::stream_snapshots`].
    fn create_stream_snapshot(&self, _by: ChangedBy, _name: &str) -> Result<()> {
        Err(StoreError::NotSupported.into())
    }
    /// Where the stream differs from a snapshot of it, from cluster `from` on, ascending: `max` parts, and one more where there
    /// is one. `NotFound`; otherwise as [`Node::stream_snapshots`].
    fn stream_deltas(&self, _name: &str, _from: u64, _max: usize) -> Result<Vec<StreamDelta>> {
        Err(StoreError::NotSupported.into())
    }
    /// Gives the stream the data of a snapshot, which goes with all later ones. Errors as [`Node::stream_deltas`].
    fn revert_stream(&self, _by: ChangedBy, _name: &str) -> Result<()> {
        Err(StoreError::NotSupported.into())
    }
    /// Copies inside the store without passing through the caller. Bytes copied.
    fn copy_from(&self, by: ChangedBy, source: &dyn Node, source_offset: u64, offset: u64, len: u64) -> Result<u64>;
    /// Shares extents; `NotSupported` where the file system cannot.
    fn clone_from(&self, by: ChangedBy, source: &dyn Node, source_offset: u64, offset: u64, len: u64) -> Result<()>;
    /// The bytes of a range as they are now, in a file without a name that shares them; where in it they begin. It is `owner`'s,
    /// whose quota it counts in, and goes with its last user. `NotSupported` where files cannot share,
    /// FILE_SUPPORTS_BLOCK_REFCOUNTING.
    fn freeze(&self, _offset: u64, _len: u64, _owner: &Sid) -> Result<(NodeRef, u64)> {
        Err(StoreError::NotSupported.into())
    }
    /// Durable once it returns: data, size and name.
    fn sync(&self) -> Result<()>;

    // Streams, EAs, reparse points.
    fn streams(&self) -> Result<Vec<StreamEntry>>;
    /// The named stream of this file that is called so in any case, wherever the file stands.
    fn named_stream(&self, name: &str) -> Result<Option<NodeRef>>;
    /// Creates the named stream of this file.
    fn create_stream(&self, by: ChangedBy, name: &str) -> Result<NodeRef>;
    fn eas(&self) -> Result<Vec<Ea>>;
    fn set_eas(&self, by: ChangedBy, eas: &[Ea]) -> Result<()>;
    /// The reparse data buffer without its 8-byte header, and the tag.
    fn reparse(&self) -> Result<(u32, Vec<u8>)>;
    fn set_reparse(&self, by: ChangedBy, tag: u32, data: &[u8]) -> Result<()>;
    fn delete_reparse(&self, by: ChangedBy, tag: u32) -> Result<()>;
    fn object_id(&self) -> Result<Option<u128>>;
    fn set_object_id(&self, by: ChangedBy, id: u128) -> Result<()>;
    /// Which create made the file or stream, for a create that is asked for again after its answer was lost.
    fn create_mark(&self) -> Result<Option<u128>>;
    /// `create_stream` with a mark: whenever the process ends, a stream that is there has its mark.
    fn create_stream_marked(&self, by: ChangedBy, name: &str, mark: u128) -> Result<NodeRef>;

    // Directories.
    /// `NameCollision` when the name is taken in any case.
    fn create_child(&self, by: ChangedBy, name: &str, new: &NewFile<'_>) -> Result<NodeRef>;
    /// `create_child` with a mark: whenever the process ends, a name that is there leads to a file with its mark and all
    /// of `new`.
    fn create_child_marked(&self, by: ChangedBy, name: &str, new: &NewFile<'_>, mark: u128) -> Result<NodeRef>;
    fn list(&self) -> Result<Box<dyn DirCursor>>;
    fn is_empty_directory(&self) -> Result<bool>;

    /// Makes this data stream of its file, unnamed or not, the one that is called `name`; this node goes with it. A stream
    /// of that name makes way, `NameCollision` unless `replace`. None is the unnamed one, which has to be empty;
    /// where it goes away, an empty one stays. `NotSupported` where a store can do that only between names.
    fn rename_stream(&self, by: ChangedBy, name: Option<&str>, replace: bool) -> Result<()>;

    // Names of this node. On a stream: of the stream.
    /// `name` in `directory`, in place of what may be replaced.
    fn rename_replacing(&self, by: ChangedBy, directory: &dyn Node, name: &str, replace: Replace) -> Result<()>;
    fn link_replacing(&self, by: ChangedBy, directory: &dyn Node, name: &str, replace: Replace) -> Result<()>;
    /// The same in place of whatever stands there, or of nothing, for who has nobody else to respect.
    fn rename(&self, by: ChangedBy, directory: &dyn Node, name: &str, replace: bool) -> Result<()> {
        self.rename_replacing(by, directory, name, if replace { Replace::Anything } else { Replace::Nothing })
    }
    fn link(&self, by: ChangedBy, directory: &dyn Node, name: &str, replace: bool) -> Result<()> {
        self.link_replacing(by, directory, name, if replace { Replace::Anything } else { Replace::Nothing })
    }
    /// The 8.3 name of this name, which may be the name itself. None where it has none, and of a root.
    fn short_name(&self) -> Result<Option<String>> {
        Ok(self.path().pop().map(|name| short_name(&name).unwrap_or(name)))
    }
    /// Gives this name another 8.3 name, or none where `name` is empty. `NameCollision` where the directory has a name or an 8.3
    /// name like it, or another name of the file has the 8.3 name; `ShortNamesDisabled` unless
    /// [`FileStore::generates_short_names`].
    fn set_short_name(&self, _by: ChangedBy, _name: &str) -> Result<()> {
        Err(StoreError::ShortNamesDisabled.into())
    }
    /// Takes this name (or stream) away; the data lives on while nodes of it do. `DirectoryNotEmpty`.
    fn unlink(&self, by: ChangedBy) -> Result<()>;

    /// For a store to reach its own nodes in `rename`, `copy_from` and their like.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// One enumeration: a stable order, `.` and `..` not included, each entry once.
pub trait DirCursor: Send {
    fn rewind(&mut self) -> Result<()>;
    /// The next entry whose name, or kept 8.3 name, `accept` takes; `accept` runs before the costly look at metadata.
    /// An entry that `peek`ed is given again until `advance`.
    fn peek(&mut self, accept: &dyn Fn(&str) -> bool) -> Result<Option<DirEntry>>;
    fn advance(&mut self);
    /// What it has read ahead and keeps.
    fn read_ahead_bytes(&self) -> usize;
    /// Gives that up; the enumeration goes on where it stands.
    fn forget_read_ahead(&mut self) -> Result<()>;
}
