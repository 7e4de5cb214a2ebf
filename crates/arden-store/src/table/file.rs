//! What the table knows of one file: its streams, their opens, share modes, locks and grants, and whether
//! it is to be deleted. Everything in here happens under the file's own lock; no I/O does.

use std::{
    cell::LazyCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use arden_auth::Token;
use arden_lock::{Mutex, MutexGuard, ranks};
use arden_wire::access::{DELETE, FILE_READ_ATTRIBUTES, READ_CONTROL, SYNCHRONIZE};

use super::{
    cache::{Actor, Caches, Clock, LeaseId},
    effects::Effects,
    locks::LockSet,
    open::Open,
    room::give_back,
    share::{SHARED_ACCESS, ShareCounts, is_stat_open},
    valid::ValidData,
    write_time::WriteTime,
};
use crate::{
    error::StoreError,
    fs::{ClientId, OpenId, WaitId, lease_state},
    name::eq_fold,
    store::{FileId, NodeRef, Result},
};

pub(crate) struct FileState {
    pub id: FileId,
    inner: Mutex<FileInner, ranks::File>,
    /// Byte-range locks of all streams: I/O looks no further while it is 0.
    locks: AtomicUsize,
    /// Anybody may be caching: changes have to look.
    caching: AtomicBool,
    /// Not all data of some stream is valid: writes have to look.
    pub valid_ends: AtomicBool,
    /// Many cache it or wait for it: see `table::crowd`.
    pub crowded: AtomicBool,
    /// `FileInner::write_time` may be other than the stored one.
    write_time: AtomicBool,
    /// It has been among `OpenTable::deadlines`.
    pub is_listed: AtomicBool,
}

#[derive(Default)]
pub(crate) struct FileInner {
    /// The table has let go of this entry; look it up again.
    pub dead: bool,
    pub main: StreamState,
    pub others: Vec<StreamState>,
    last_stream_no: u32,
    /// Names that are to be deleted, each once.
    pub deletes: Vec<PendingDelete>,
    /// Of a directory, which has one name: that is being or has been taken away.
    pub unlinked: bool,
    /// Calls that wait for a break to end.
    pub waiters: Vec<WaitId>,
    /// Closes that are taking a name or a stream of it away: until they are done, it is known here that those go.
    pub removals: u32,
    /// Changes under way that put something else in place of the file, or of a stream of it: see `table::shut`.
    pub shut: u32,
    /// Opens that wait for their end.
    pub shut_out: Vec<WaitId>,
    /// Opens whose `owner_absent` is set: while 0, nobody has to look.
    absent_owners: u32,
    pub write_time: WriteTime,
}

/// A name that is to be deleted, [MS-FSA] Link.IsDeleted: it goes when the last open of the name closes, whatever others have the
/// file open by.
pub(crate) struct PendingDelete {
    pub node: NodeRef,
    /// The opens that asked for it by POSIX rules, in order: the name goes with the first of them that closes.
    pub posix: Vec<OpenId>,
    /// The parent lease key of the open that asked for it.
    pub parent_key: Option<u128>,
    /// The open that was closed last, whose close takes the name away now.
    pub going: Option<OpenId>,
}

/// What becomes of the name that a file was opened by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameState {
    Stays,
    /// It is to be deleted: where it is among [`FileInner::deletes`].
    ToGo(usize),
    /// It is being or has been taken away.
    Gone,
}

impl PendingDelete {
    /// Whether a node has this name. A directory has no other, also where it is the root of a share.
    fn name(&self) -> impl Fn(&NodeRef) -> bool + use<> {
        let (directory, place) = (self.node.is_directory(), self.node.place());
        move |node| directory || node.place() == place
    }

    /// Whether the name goes when this open closes, whoever else has it open.
    pub fn goes_with(&self, id: OpenId) -> bool {
        self.posix.binary_search(&id).is_ok()
    }

    /// The open asks for the deletion, by POSIX rules or by others: what it asks last counts.
    pub fn asked_by(&mut self, id: OpenId, posix: bool) {
        match (self.posix.binary_search(&id), posix) {
            (Err(at), true) => self.posix.insert(at, id),
            (Ok(at), false) => drop(self.posix.remove(at)),
            _ => {}
        }
    }
}

#[derive(Default)]
pub(crate) struct StreamState {
    /// Stays with the stream when it is renamed.
    pub no: u32,
    /// None for the unnamed stream and for directories.
    pub name: Option<String>,
    pub shares: ShareCounts,
    pub opens: Vec<OpenEntry>,
    /// Opens that are more than stat opens.
    pub real_opens: u32,
    pub caches: Caches,
    pub locks: LockSet,
    pub valid: ValidData,
    /// Its allocation may reach beyond its end.
    pub promised: bool,
    pub delete: Option<NodeRef>,
}

/// Rights that neither show nor change what a file holds.
const HARMLESS_ACCESS: u32 = FILE_READ_ATTRIBUTES | READ_CONTROL | SYNCHRONIZE;

impl StreamState {
    pub fn entry(&self, id: OpenId) -> Option<&OpenEntry> {
        self.opens.binary_search_by_key(&id, |o| o.id).ok().map(|at| &self.opens[at])
    }

    /// Whether this is the stream of that name, in any case.
    fn is_named(&self, name: Option<&str>) -> bool {
        match (self.name.as_deref(), name) {
            (None, None) => true,
            (Some(a), Some(b)) => eq_fold(a, b),
            _ => false,
        }
    }
}

impl Default for Caches {
    fn default() -> Caches {
        Caches::new()
    }
}

pub(crate) struct OpenEntry {
    pub id: OpenId,
    pub node: NodeRef,
    pub who: Arc<Token>,
    pub client: ClientId,
    pub lease: Option<LeaseId>,
    pub access: u32,
    pub share: u32,
    /// The name that it was opened by is being or has been taken away.
    pub nameless: bool,
    /// It is persistent, and its client has lost its connection and not come back.
    pub owner_absent: bool,
}

/// An open that is asked for, as far as opens with absent owners care.
pub(crate) struct Newcomer<'a> {
    pub stream: Option<&'a str>,
    /// With what the open does while opening: an overwrite writes.
    pub access: u32,
    pub overwrite: bool,
    pub lease: Option<LeaseId>,
}

/// What a closed open leaves to do outside the lock.
pub(crate) enum Removal {
    Nothing,
    /// Each name with the parent lease key whose directory lease need not break: that of the asking and the last open
    /// alike; and the stream that goes with its last open.
    File {
        names: Vec<(NodeRef, Option<u128>)>,
        stream: Option<NodeRef>,
    },
    Stream(NodeRef),
}

pub(crate) type FileGuard<'a> = MutexGuard<'a, FileInner>;

impl FileState {
    pub fn new(id: FileId) -> FileState {
        FileState {
            id,
            inner: Mutex::new(FileInner::default()),
            locks: AtomicUsize::new(0),
            caching: AtomicBool::new(false),
            crowded: AtomicBool::new(false),
            valid_ends: AtomicBool::new(false),
            write_time: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
        }
    }
    pub fn lock(&self) -> FileGuard<'_> {
        self.inner.lock()
    }
    pub fn has_locks(&self) -> bool {
        self.locks.load(Ordering::Acquire) != 0
    }
    pub fn has_caching(&self) -> bool {
        self.caching.load(Ordering::Acquire)
    }
    /// Whether clients may have to be shown another write time than the stored one.
    pub fn has_write_time(&self) -> bool {
        self.write_time.load(Ordering::Acquire)
    }
    /// Works on the write time that clients see.
    pub fn with_write_time<T>(&self, f: impl FnOnce(&mut WriteTime) -> T) -> T {
        let mut inner = self.lock();
        let result = f(&mut inner.write_time);
        self.write_time.store(inner.write_time != WriteTime::Stored, Ordering::Release);
        result
    }
    /// Brings the hints up to date; before the lock is given up.
    pub fn publish(&self, inner: &FileInner) {
        let locks = inner.main.locks.len() + inner.others.iter().map(|s| s.locks.len()).sum::<usize>();
        self.locks.store(locks, Ordering::Release);
        let caching = inner.main.caches.any_caching() || inner.others.iter().any(|s| s.caches.any_caching());
        self.caching.store(caching, Ordering::Release);
        self.publish_crowd(inner);
    }
}

impl FileInner {
    pub fn stream(&mut self, name: Option<&str>) -> &mut StreamState {
        let Some(name) = name else { return &mut self.main };
        let i = self.others.iter().position(|s| s.name.as_deref().is_some_and(|n| eq_fold(n, name)));
        let i = i.unwrap_or_else(|| {
            self.last_stream_no += 1;
            let name = Some(name.to_owned());
            self.others.push(StreamState { no: self.last_stream_no, name, ..StreamState::default() });
            self.others.len() - 1
        });
        &mut self.others[i]
    }

    /// Whether this is the number of the unnamed stream.
    pub fn is_main(&self, no: u32) -> bool {
        self.main.no == no
    }

    /// A stream, with its opens, takes the place of the one that is called `name`. Nobody had that open; who opened it
    /// since is alone with what is gone. Where the unnamed stream was, an empty one is.
    /// `node` is what was renamed: what is to be deleted, perhaps asked for through another root, is known by it from now on.
    pub fn rename_stream(&mut self, no: u32, name: Option<&str>, node: &NodeRef) {
        let mut moved = if self.is_main(no) {
            self.last_stream_no += 1;
            let empty = StreamState { no: self.last_stream_no, ..StreamState::default() };
            std::mem::replace(&mut self.main, empty)
        } else {
            let Some(i) = self.others.iter().position(|s| s.no == no) else { return };
            self.others.remove(i)
        };
        moved.name = name.map(str::to_owned);
        if let Some(delete) = &mut moved.delete {
            *delete = node.clone();
        }
        let gone = match name {
            None => Some(std::mem::replace(&mut self.main, moved)),
            Some(name) => {
                let same = |s: &StreamState| s.name.as_deref().is_some_and(|n| eq_fold(n, name));
                let gone = self.others.iter().position(same).map(|i| self.others.remove(i));
                self.others.push(moved);
                gone
            }
        };
        if let Some(mut gone) = gone.filter(|s| !s.opens.is_empty()) {
            gone.name = Some(String::new());
            self.others.push(gone);
        }
    }

    /// The stream was deleted under its opens, which are alone with it: another of its name has nothing to do with them.
    pub fn stream_deleted(&mut self, name: &str) {
        let same = |s: &&mut StreamState| s.name.as_deref().is_some_and(|n| eq_fold(n, name));
        if let Some(gone) = self.others.iter_mut().find(same) {
            gone.name = Some(String::new());
        }
        self.forget_idle_streams();
    }

    /// The stream of an open. An open that is closed by now gets one that nobody else sees.
    pub fn at(&mut self, no: u32) -> &mut StreamState {
        if self.is_main(no) {
            return &mut self.main;
        }
        let i = self.others.iter().position(|s| s.no == no).unwrap_or_else(|| {
            self.others.push(StreamState { no, name: Some(String::new()), ..StreamState::default() });
            self.others.len() - 1
        });
        &mut self.others[i]
    }

    pub fn streams_mut(&mut self) -> impl Iterator<Item = &mut StreamState> {
        std::iter::once(&mut self.main).chain(&mut self.others)
    }

    pub fn streams(&self) -> impl Iterator<Item = &StreamState> {
        std::iter::once(&self.main).chain(&self.others)
    }

    pub fn open_count(&self) -> usize {
        self.streams().map(|s| s.opens.len()).sum()
    }

    /// The pending deletion of the name by which `node` was opened, [MS-FSA] Link.IsDeleted: other names have their own.
    pub fn delete_of(&self, node: &NodeRef) -> Option<usize> {
        if self.deletes.is_empty() {
            return None;
        }
        self.deletes.iter().position(|d| d.name()(node))
    }

    /// The name of `node` is to be deleted, as an open asks, by POSIX rules or not. Whether it was not before.
    pub fn delete_name(&mut self, node: &NodeRef, parent_key: Option<u128>, asks: Option<(OpenId, bool)>) -> bool {
        let before = self.delete_of(node);
        let at = before.unwrap_or_else(|| {
            self.deletes.push(PendingDelete { node: node.clone(), posix: Vec::new(), parent_key, going: None });
            self.deletes.len() - 1
        });
        if let Some((id, posix)) = asks {
            self.deletes[at].asked_by(id, posix);
        }
        before.is_none()
    }

    /// What becomes of the name that `open` was opened by.
    pub fn name_of(&self, open: &Open) -> NameState {
        let entry = self.streams().find(|s| s.no == open.stream_no).and_then(|s| s.entry(open.id));
        if entry.is_some_and(|e| e.nameless) {
            return NameState::Gone;
        }
        match self.delete_of(&open.node) {
            Some(at) if self.deletes[at].going.is_some() => NameState::Gone,
            Some(at) => NameState::ToGo(at),
            None => NameState::Stays,
        }
    }

    /// Whether the name of `open` goes, or the stream that it has open.
    pub fn is_to_go(&self, open: &Open) -> bool {
        let stream = self.others.iter().find(|s| s.no == open.stream_no);
        self.name_of(open) != NameState::Stays || stream.is_some_and(|s| s.delete.is_some())
    }

    /// `DeletePending` when nothing may be opened by this name, or of this stream, any more.
    pub fn check_not_deleted(&mut self, node: &NodeRef) -> Result<(), StoreError> {
        let stream = node.stream();
        let stream_goes = stream.is_some() && self.stream(stream).delete.is_some();
        if self.unlinked || stream_goes || self.delete_of(node).is_some() {
            return Err(StoreError::DeletePending);
        }
        Ok(())
    }

    /// The open `by` was closed, with its name or without: the names that its close takes away, each with the parent lease key of who asked.
    pub fn take_names(&mut self, by: &Open, nameless: bool) -> Vec<(NodeRef, Option<u128>)> {
        let last = self.open_count() == 0;
        let own = self.delete_of(&by.node).filter(|_| !nameless);
        let due = own.filter(|at| {
            let d = &self.deletes[*at];
            d.going.is_none() && (last || d.goes_with(by.id) || !self.has_open(d.name()))
        });
        let mut names = Vec::new();
        for (at, d) in self.deletes.iter_mut().enumerate() {
            // Names that nobody has open go with the file's last open at the latest.
            if d.going.is_none() && (last || due == Some(at)) {
                d.going = Some(by.id);
                self.unlinked |= d.node.is_directory();
                names.push((d.node.clone(), d.parent_key));
            }
        }
        if let (Some(at), false) = (due, last) {
            self.set_nameless(self.deletes[at].name(), true);
        }
        names
    }

    /// The close of `by` took its names away, or (`failed`) one of them could not be. How many there were.
    pub fn names_taken(&mut self, by: OpenId, failed: bool) -> usize {
        let before = self.deletes.len();
        let went: Vec<_> = self.deletes.extract_if(.., |d| d.going == Some(by)).collect();
        if failed {
            self.unlinked = false;
            went.iter().for_each(|d| self.set_nameless(d.name(), false));
        }
        before - self.deletes.len()
    }

    /// Whether anybody has the name open, or a stream by it.
    fn has_open(&self, has_name: impl Fn(&NodeRef) -> bool) -> bool {
        self.streams().flat_map(|s| &s.opens).any(|o| !o.nameless && has_name(&o.node))
    }

    fn set_nameless(&mut self, has_name: impl Fn(&NodeRef) -> bool, nameless: bool) {
        let opens = self.streams_mut().flat_map(|s| &mut s.opens);
        opens.filter(|o| has_name(&o.node)).for_each(|o| o.nameless = nameless);
    }

    /// Whether an open with these rights conflicts with the share modes, [MS-FSA] 2.1.5.1.2.1 and 2.1.5.1.2.2.
    pub fn sharing_violation(&mut self, stream: Option<&str>, access: u32, share: u32) -> bool {
        if !self.stream(stream).shares.allows(access, share) {
            return true;
        }
        if self.others.is_empty() {
            return false;
        }
        let this_is_base = stream.is_none();
        self.streams().any(|s| {
            let same = match (&s.name, stream) {
                (None, None) => true,
                (Some(a), Some(b)) => eq_fold(a, b),
                _ => false,
            };
            !same && !s.shares.allows_beside(access, share, this_is_base, s.name.is_none())
        })
    }

    pub fn add_open(&mut self, stream: Option<&str>, entry: OpenEntry) {
        let s = self.stream(stream);
        s.shares.add(entry.access, entry.share);
        s.real_opens += u32::from(!is_stat_open(entry.access));
        self.absent_owners += u32::from(entry.owner_absent);
        let s = self.stream(stream);
        let at = s.opens.partition_point(|o| o.id < entry.id);
        s.opens.insert(at, entry);
    }

    pub fn remove_open(&mut self, stream_no: u32, id: OpenId) -> Option<OpenEntry> {
        let s = self.at(stream_no);
        let at = s.opens.binary_search_by_key(&id, |o| o.id).ok()?;
        let entry = s.opens.remove(at);
        give_back(&mut s.opens);
        s.shares.remove(entry.access, entry.share);
        s.real_opens -= u32::from(!is_stat_open(entry.access));
        self.absent_owners -= u32::from(entry.owner_absent);
        Some(entry)
    }

    /// The client of a persistent open lost its connection, or is back.
    pub fn set_owner_absent(&mut self, stream_no: u32, id: OpenId, absent: bool) {
        let opens = &mut self.at(stream_no).opens;
        let Ok(at) = opens.binary_search_by_key(&id, |o| o.id) else { return };
        if std::mem::replace(&mut opens[at].owner_absent, absent) != absent {
            self.absent_owners = if absent { self.absent_owners + 1 } else { self.absent_owners - 1 };
        }
    }

    /// Whether an open other than `but` is persistent and has an absent owner. Stat opens do not count.
    pub fn has_absent_owner(&self, but: Option<OpenId>) -> bool {
        let guards = |o: &OpenEntry| o.owner_absent && Some(o.id) != but && o.access & SHARED_ACCESS != 0;
        self.absent_owners > 0 && self.streams().any(|s| s.opens.iter().any(guards))
    }

    /// Whether an open is refused because the file is kept as it is for absent owners of persistent opens, [MS-SMB2] 3.3.5.9
    /// and its note 301. An owner whose lease or oplock has handle caching is not protected by that but by its break, which
    /// waits for it; where the stream has byte-range locks only if it has write caching too. Nobody is protected against its
    /// own lease, nor against opens that read attributes; and opens that cannot read, write or delete protect nothing.
    pub fn is_kept_for_absent(&self, new: &Newcomer<'_>) -> bool {
        if self.absent_owners == 0 || new.access & !HARMLESS_ACCESS == 0 {
            return false;
        }
        // Who deletes or overwrites a file does so to all of its streams.
        let whole = new.stream.is_none() && (new.overwrite || new.access & DELETE != 0);
        self.streams().filter(|s| whole || s.is_named(new.stream)).any(|s| {
            let caching = lease_state::HANDLE | if s.locks.is_empty() { 0 } else { lease_state::WRITE };
            let state_of = LazyCell::new(|| s.caches.states());
            s.opens.iter().any(|o| {
                o.owner_absent
                    && o.access & SHARED_ACCESS != 0
                    && !(o.lease.is_some() && o.lease == new.lease)
                    && (*state_of)(o.id, o.lease).is_none_or(|state| state & caching != caching)
            })
        })
    }

    /// Takes streams without opens out again.
    pub fn forget_idle_streams(&mut self) {
        self.others.retain(|s| !s.opens.is_empty() || s.delete.is_some());
        give_back(&mut self.others);
    }

    pub fn wake(&mut self, fx: &mut Effects) {
        for w in std::mem::take(&mut self.waiters) {
            fx.resume(w);
        }
    }

    /// Handle caching of all streams but the actor's own ends. True: wait.
    pub fn break_handles(&mut self, by: Option<&Actor>, oplocks: bool, clock: Clock, fx: &mut Effects) -> bool {
        let mut wait = false;
        for s in self.streams_mut() {
            wait |= s.caches.break_handles(by, oplocks, clock, fx);
        }
        wait
    }
}
