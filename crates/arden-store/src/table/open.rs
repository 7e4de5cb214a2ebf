//! One open: what it was granted, and what it keeps between calls.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use arden_auth::Token;
use arden_lock::{Mutex, ranks};
use arden_wire::FileTime;

use super::{
    TableLimits,
    cache::{Actor, LeaseId},
    file::FileState,
    notify::Watch,
    read_ahead::Kept,
};
use crate::{
    commit::CommitScope,
    fs::{ClientId, Fs, OpenId, Owner},
    store::{DirCursor, FileId, NodeRef, Result},
};

/// [MS-FSA] 2.1.1.6 ReadCopyNumber of an open that reads whichever copy is valid.
pub(crate) const ANY_COPY: u32 = u32::MAX;

/// One open of a file, directory or stream. Closed by `Fs::close`, or when it is dropped.
pub struct Open {
    pub(crate) id: OpenId,
    pub(crate) owner: Owner,
    pub(crate) fs: Arc<Fs>,
    pub(crate) node: NodeRef,
    pub(crate) file: Arc<FileState>,
    pub(crate) stream_no: u32,
    pub(crate) granted: u32,
    /// What the share permits at most, see `fs::rights`.
    pub(crate) share_permits: AtomicU32,
    pub(crate) share: u32,
    pub(crate) options: u32,
    pub(crate) mode: AtomicU32,
    pub(crate) who: Arc<Token>,
    pub(crate) client: ClientId,
    pub(crate) lease: Option<LeaseId>,
    /// Another client may cache writes under the same lease key: that ends before this open works on data.
    pub(crate) beside_writer: AtomicBool,
    pub(crate) parent_key: Option<u128>,
    pub(crate) directory: bool,
    pub(crate) closed: AtomicBool,
    pub(crate) delete_on_close: AtomicBool,
    pub(crate) wrote: AtomicBool,
    /// Its writes have a part in the write time that clients see.
    pub(crate) delays_write_time: AtomicBool,
    /// The write time that the file had when this open created it.
    pub(crate) created_at: OnceLock<FileTime>,
    /// What watchers and the directory's leases will hear of when this open closes.
    pub(crate) pending_filter: AtomicU32,
    pub(crate) position: AtomicU64,
    /// [`ANY_COPY`], or the copy of the data that is read.
    pub(crate) read_copy: AtomicU32,
    pub(crate) locks: AtomicUsize,
    pub(crate) times: Mutex<HeldTimes, ranks::HeldTimes>,
    pub(crate) listing: Mutex<Option<Listing>, ranks::Listing>,
    pub(crate) watch: OnceLock<Arc<Watch>>,
    /// What is changed through it is on stable storage before it is answered.
    pub(crate) durable: AtomicBool,
    /// It was kept over a restart: what its watch and its listing knew is lost.
    pub(crate) restored: bool,
}

/// Times that operations through this open leave alone: the client set them, or said so with -1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeldTimes {
    pub last_write: bool,
    pub last_access: bool,
    pub change: bool,
    /// The client asked for updates with -2: its writes show at once.
    pub last_write_moves: bool,
}

/// Where a directory query stands.
pub(crate) struct Listing {
    pub cursor: Box<dyn DirCursor>,
    pub pattern: crate::name::Pattern,
    /// 0 and 1: `.` and `..` are still to come.
    pub dots: u8,
    /// Nothing was found yet.
    pub fresh: bool,
    pub kept: Kept,
}

impl Listing {
    /// Names that were read ahead wait for the next request where the limits let them; else they are read again.
    pub fn pause(&mut self, limits: &TableLimits) -> Result<()> {
        let bytes = self.cursor.read_ahead_bytes();
        if !self.kept.keep(bytes, limits.listing_bytes_per_user_max, limits.listing_bytes_max) {
            self.cursor.forget_read_ahead()?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("id", &self.id).field("file", &self.file.id).finish_non_exhaustive()
    }
}

impl Open {
    pub fn id(&self) -> OpenId {
        self.id
    }
    pub fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }
    pub fn node(&self) -> &NodeRef {
        &self.node
    }
    pub fn file_id(&self) -> FileId {
        self.file.id
    }
    pub fn is_directory(&self) -> bool {
        self.directory
    }
    /// The named stream that was opened, or that what was opened has become.
    pub fn stream(&self) -> Option<&str> {
        self.node.stream()
    }
    pub fn granted_access(&self) -> u32 {
        self.granted
    }
    pub fn share_access(&self) -> u32 {
        self.share
    }
    /// The create options as the client gave them.
    pub fn options(&self) -> u32 {
        self.options
    }
    /// FileModeInformation, [MS-FSCC] 2.4.31.
    pub fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }
    pub fn set_mode(&self, mode: u32) {
        self.mode.store(mode, Ordering::Relaxed);
    }
    /// FilePositionInformation, [MS-FSCC] 2.4.40. Reads and writes do not move it.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
    pub fn set_position(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
    }
    pub fn who(&self) -> &Arc<Token> {
        &self.who
    }
    pub fn client(&self) -> ClientId {
        self.client
    }
    /// Whether the file, or with a stream the stream, goes when this open closes.
    pub fn deletes_on_close(&self) -> bool {
        self.delete_on_close.load(Ordering::Relaxed)
    }
    /// Whether what is changed through it has to be on stable storage before it is answered.
    pub fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }
    /// Its client came back by a share that may differ in that.
    pub fn set_durable(&self, durable: bool) {
        self.durable.store(durable, Ordering::Relaxed);
    }
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
    pub(crate) fn actor(&self) -> Actor {
        Actor { open: self.id, lease: self.lease }
    }
    /// Room was asked for beyond the end of the stream: it is given back with the stream's last open.
    pub(crate) fn note_promised(&self) {
        self.file.lock().at(self.stream_no).promised = true;
    }
    pub(crate) fn has(&self, access: u32) -> bool {
        self.granted & access != 0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let fs = self.fs.clone();
        // Nobody answers for it.
        fs.close_open(&CommitScope::begin(), self);
    }
}
