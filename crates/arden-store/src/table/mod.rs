//! The open table: who has what open, and what that forbids others. Share modes, byte-range locks, oplocks
//! and leases, delete-on-close, change notification. Knows no protocol, does no I/O and has no clock.
//!
//! Locks, in the order they are taken: a shard of the map of files (never held together with another), the
//! file's own lock, then one of the leaves (leases, waits, deadlines). `OpenOwner`s are called with none held.

mod admit;
pub(crate) mod cache;
mod crowd;
pub(crate) mod effects;
pub(crate) mod file;
mod ids;
mod intervals;
pub(crate) mod locks;
pub(crate) mod notify;
mod open;
mod read_ahead;
mod restore;
mod room;
pub(crate) mod share;
mod shut;
pub(crate) mod valid;
pub(crate) mod write_time;

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arden_lock::{Mutex, ranks};
use arden_wire::FileTime;

pub(crate) use admit::{Admission, Admitted, Entered};
use cache::{Clock, LeaseId};
use crowd::check_few;
use effects::{Effect, Effects};
use file::{FileState, OpenEntry, StreamState};
use ids::OpenIds;
use notify::{Watch, Watches};
pub use open::Open;
pub(crate) use open::{ANY_COPY, HeldTimes, Listing};
use read_ahead::ReadAhead;
pub(crate) use restore::Restored;
pub(crate) use shut::Shut;

use crate::{
    commit::{Cause, CommitScope},
    error::StoreError,
    fs::{CacheGrant, ClientId, OpenId, Owner, WaitId},
    store::{FileId, NodeRef, Result},
};

/// Bounds of everything that clients can make the table hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLimits {
    pub opens_max: usize,
    pub locks_per_open_max: usize,
    pub waits_max: usize,
    /// Names and headers that one open's change notification may hold between calls.
    pub notify_buffer_bytes_max: usize,
    /// Names that directory listings have read ahead and keep between calls.
    pub listing_bytes_per_user_max: usize,
    pub listing_bytes_max: usize,
    pub break_timeout: Duration,
    /// How long after an open's first write clients see the new write time; zero: at once, as Windows since Server 2022.
    pub write_time_delay: Duration,
    /// For holders of persistent opens, [MS-SMB2] 3.3.4.7.
    pub patient_break_timeout: Duration,
}

impl Default for TableLimits {
    fn default() -> TableLimits {
        TableLimits {
            opens_max: 1_000_000,
            locks_per_open_max: 100_000,
            waits_max: 100_000,
            notify_buffer_bytes_max: 1 << 16,
            listing_bytes_per_user_max: 4 << 20,
            listing_bytes_max: 32 << 20,
            break_timeout: Duration::from_secs(35),
            write_time_delay: Duration::from_secs(2),
            patient_break_timeout: Duration::from_secs(180),
        }
    }
}

/// For administration.
#[derive(Debug, Clone)]
pub struct OpenSummary {
    pub id: OpenId,
    pub file: FileId,
    /// With backslashes, the stream included.
    pub path: String,
    pub user_name: String,
    pub client: ClientId,
    pub access: u32,
    pub share: u32,
    pub locks: usize,
    pub cache: CacheGrant,
}

const SHARDS: usize = 64;

/// Where a wait hangs, so that it can be cancelled.
pub(crate) enum WaitPlace {
    Break,
    Lock { file: Weak<FileState>, stream_no: u32 },
    Notify(Weak<Watch>),
}

type FileShard = Mutex<HashMap<FileId, Arc<FileState>>, ranks::Files>;
type LeaseShard = Mutex<HashMap<LeaseId, LeaseHome>, ranks::Leases>;

/// The one file (and stream) that a lease is for.
struct LeaseHome {
    file: Arc<FileState>,
    stream_no: u32,
}

/// All opens of the machine.
pub struct OpenTable {
    limits: TableLimits,
    files: Box<[FileShard]>,
    leases: Box<[LeaseShard]>,
    hasher: RandomState,
    waits: Mutex<HashMap<WaitId, (Owner, WaitPlace)>, ranks::Waits>,
    /// By the address of the file's state: when its first break is to be answered. A file is here once at most, and no longer than it is
    /// in use.
    deadlines: Mutex<HashMap<usize, (Instant, Weak<FileState>)>, ranks::Deadlines>,
    ids: OpenIds,
    next_wait: AtomicU64,
    open_count: AtomicUsize,
    start: OnceLock<Instant>,
    latest_nanos: AtomicU64,
    /// The time of day of the same call; 0: nobody said.
    latest_wall: AtomicU64,
    /// Names taken away so far: an open that looked its path up before has to look again.
    pub(crate) unlinks: AtomicU64,
    /// Directories that are being moved; while 0, opens need not look whether they are below one.
    moves: AtomicUsize,
    /// Files and streams to be deleted; while 0, nobody needs to ask whether a parent is.
    pub(crate) deletes_pending: AtomicUsize,
    /// Directory leases; while 0, changes of children need not look for their parent.
    pub(crate) directory_leases: AtomicUsize,
    pub(crate) read_ahead: ReadAhead,
    /// Of each store, by the volume of its files.
    watches: Mutex<HashMap<u64, Weak<Watches>>, ranks::StoreWatches>,
}

/// Longer ones are cut where they are shown.
const SHOWN_PATH_MAX: usize = 1024;

fn shown_path(names: &[String], stream: Option<&str>) -> String {
    let colon = if stream.is_some() { ":" } else { "" };
    let whole = format!("{}{colon}{}", names.join("\\"), stream.unwrap_or(""));
    let Some(cut) = whole.len().checked_sub(SHOWN_PATH_MAX).filter(|cut| *cut > 0) else { return whole };
    let from = (cut..whole.len()).find(|at| whole.is_char_boundary(*at));
    format!("...{}", &whole[from.unwrap_or(whole.len())..])
}

/// All opens of a file but for their paths, each with what that is made of.
fn summaries(file: &FileState) -> Vec<(OpenSummary, NodeRef, Option<String>)> {
    let inner = file.lock();
    let of_stream = |s: &StreamState| {
        let open = |o: &OpenEntry| OpenSummary {
            id: o.id,
            file: file.id,
            path: String::new(),
            user_name: o.who.user_name.clone(),
            client: o.client,
            access: o.access,
            share: o.share,
            locks: s.locks.count_of(o.id),
            cache: s.caches.describe(o.id, o.lease),
        };
        s.opens.iter().map(|o| (open(o), o.node.clone(), s.name.clone())).collect::<Vec<_>>()
    };
    inner.streams().flat_map(of_stream).collect()
}

impl OpenTable {
    pub fn new(limits: TableLimits) -> Arc<OpenTable> {
        Arc::new(OpenTable {
            limits,
            files: (0..SHARDS).map(|_| FileShard::default()).collect(),
            leases: (0..SHARDS).map(|_| LeaseShard::default()).collect(),
            hasher: RandomState::new(),
            waits: Mutex::default(),
            deadlines: Mutex::default(),
            ids: OpenIds::default(),
            next_wait: AtomicU64::new(1),
            open_count: AtomicUsize::new(0),
            start: OnceLock::new(),
            latest_nanos: AtomicU64::new(0),
            latest_wall: AtomicU64::new(0),
            unlinks: AtomicU64::new(0),
            moves: AtomicUsize::new(0),
            deletes_pending: AtomicUsize::new(0),
            directory_leases: AtomicUsize::new(0),
            read_ahead: ReadAhead::default(),
            watches: Mutex::default(),
        })
    }

    /// This server was started so often, and is this node of a cluster, if any. Before anything is opened: ids that are kept over a
    /// restart, or over a move to another node, must not come again.
    pub fn start_ids(&self, starts: u64, node: Option<u16>) {
        self.ids.start(starts, node);
    }

    /// The id of an open to come. Its owner knows it before the table tells anything of it; one that comes to nothing is
    /// not used again.
    pub fn reserve_open(&self) -> OpenId {
        self.ids.take()
    }

    pub fn limits(&self) -> &TableLimits {
        &self.limits
    }

    /// How many opens there are.
    pub fn open_count(&self) -> usize {
        self.open_count.load(Ordering::Relaxed)
    }

    /// Ends the waits for holders that did not answer a break in time; the next deadline.
    pub fn tick(&self, now: Instant) -> Option<Instant> {
        self.saw(now);
        let scope = CommitScope::begin();
        let due: Vec<Weak<FileState>> = {
            let mut deadlines = self.deadlines.lock();
            let due = deadlines.extract_if(|_, (at, _)| *at <= now).map(|(_, (_, file))| file).collect();
            if deadlines.is_empty() {
                *deadlines = HashMap::new();
            }
            due
        };
        for file in due.into_iter().filter_map(|f| f.upgrade()) {
            let mut fx = Effects::default();
            let mut inner = file.lock();
            let mut ended = false;
            for s in inner.streams_mut() {
                ended |= s.caches.expire(now, &mut fx);
            }
            if ended {
                inner.wake(&mut fx);
            }
            fx.deadline = inner.streams().filter_map(|s| s.caches.next_deadline()).min();
            file.publish(&inner);
            drop(inner);
            self.run(&scope, &file, fx);
        }
        self.deadlines.lock().values().map(|(at, _)| *at).min()
    }

    /// The state that the lease has now. `NoBreakUnderWay` when it is not breaking, `NotFound` when it is
    /// not known, `AckExceedsBreak` when `state` is more than was offered; [MS-SMB2] 3.3.5.22.2.
    pub fn ack_lease_break(
        &self,
        client: ClientId,
        key: u128,
        state: u32,
        cause: Cause<'_>,
    ) -> Result<u32, StoreError> {
        let id = LeaseId { client, key };
        let (file, stream_no) = self.lease_home(id).ok_or(StoreError::NotFound)?;
        let mut fx = Effects::default();
        let mut inner = file.lock();
        let state = inner.at(stream_no).caches.ack_lease(id, state, self.clock(cause.now), &mut fx)?;
        inner.wake(&mut fx);
        file.publish(&inner);
        drop(inner);
        self.run(cause.scope, &file, fx);
        Ok(state)
    }

    /// [MS-SMB2] 3.3.1.12 Lease.LeaseOpens.
    ///
    /// # Errors
    /// `WouldBlock` where these are many, or the file has many leases, and this thread must not wait.
    pub fn lease_opens(&self, client: ClientId, key: u128) -> Result<Vec<OpenId>> {
        let id = LeaseId { client, key };
        let Some((file, stream_no)) = self.lease_home(id) else { return Ok(Vec::new()) };
        file.check_crowd()?;
        let mut inner = file.lock();
        let opens = inner.at(stream_no).caches.opens_of(id);
        check_few(opens.len())?;
        Ok(opens.to_vec())
    }

    /// The caller does not want `wait` any more; it will not be resumed.
    pub fn cancel_wait(&self, wait: WaitId) {
        let waited = self.waits.lock().remove(&wait);
        match waited.map(|(_, place)| place) {
            Some(WaitPlace::Lock { file, stream_no }) => {
                let Some(file) = file.upgrade() else { return };
                let mut woken = Vec::new();
                let mut inner = file.lock();
                inner.at(stream_no).locks.cancel(wait, &mut woken);
                file.publish(&inner);
                drop(inner);
                self.resume(woken);
            }
            Some(WaitPlace::Notify(watch)) => {
                if let Some(w) = watch.upgrade() {
                    w.cancel(wait);
                }
            }
            Some(WaitPlace::Break) | None => {}
        }
    }

    /// For people: a path that is too long to be shown is cut at its front.
    pub fn opens(&self) -> Vec<OpenSummary> {
        let mut out = Vec::new();
        for shard in &self.files {
            let files: Vec<Arc<FileState>> = shard.lock().values().cloned().collect();
            for file in files {
                let opens = summaries(&file);
                // A way up may be long, and those who use the file wait for its lock.
                out.extend(opens.into_iter().map(|(open, node, stream)| {
                    let path = shown_path(&node.path(), stream.as_deref());
                    OpenSummary { path, ..open }
                }));
            }
        }
        out.sort_by_key(|o| o.id);
        out
    }

    /// How many locks each open has that has any.
    pub fn locks(&self) -> HashMap<OpenId, usize> {
        let mut out = HashMap::new();
        for shard in &self.files {
            let files: Vec<Arc<FileState>> = shard.lock().values().cloned().collect();
            for file in files {
                let inner = file.lock();
                for s in inner.streams().filter(|s| !s.locks.is_empty()) {
                    out.extend(s.opens.iter().map(|o| (o.id, s.locks.count_of(o.id))));
                }
            }
        }
        out
    }

    /// The lease as the client's other opens see it.
    pub fn lease(&self, client: ClientId, key: u128) -> Option<CacheGrant> {
        let id = LeaseId { client, key };
        let (file, stream_no) = self.lease_home(id)?;
        let mut inner = file.lock();
        Some(inner.at(stream_no).caches.describe(OpenId(0), Some(id)))
    }

    fn lease_shard(&self, id: &LeaseId) -> &LeaseShard {
        &self.leases[self.hasher.hash_one(id) as usize % SHARDS]
    }

    fn lease_home(&self, id: LeaseId) -> Option<(Arc<FileState>, u32)> {
        self.lease_shard(&id).lock().get(&id).map(|h| (h.file.clone(), h.stream_no))
    }

    fn file_shard(&self, id: &FileId) -> &FileShard {
        &self.files[self.hasher.hash_one(id) as usize % SHARDS]
    }

    /// The file's entry, if anybody has it open.
    pub(crate) fn find(&self, id: FileId) -> Option<Arc<FileState>> {
        self.file_shard(&id).lock().get(&id).cloned()
    }

    pub(crate) fn find_or_add(&self, id: FileId) -> Arc<FileState> {
        self.file_shard(&id).lock().entry(id).or_insert_with(|| Arc::new(FileState::new(id))).clone()
    }

    pub(crate) fn files(&self) -> Vec<Arc<FileState>> {
        self.files.iter().flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>()).collect()
    }

    /// Those of the store with files of this volume, of all of its roots.
    pub(crate) fn watches_of(&self, volume: u64) -> Arc<Watches> {
        let mut all = self.watches.lock();
        if let Some(watches) = all.get(&volume).and_then(Weak::upgrade) {
            return watches;
        }
        all.retain(|_, watches| watches.strong_count() > 0);
        let watches = Arc::new(Watches::default());
        all.insert(volume, Arc::downgrade(&watches));
        watches
    }

    /// Lets go of the entry when nothing is in it; it must not be locked.
    pub(crate) fn forget_if_idle(&self, file: &Arc<FileState>) {
        let mut shard = self.file_shard(&file.id).lock();
        let mut inner = file.lock();
        let in_use = inner.open_count() > 0 || inner.shut > 0 || inner.removals > 0;
        if !inner.dead && !in_use && inner.deletes.is_empty() {
            inner.dead = true;
            shard.remove(&file.id);
            if file.is_listed.load(Ordering::Acquire) {
                self.deadlines.lock().remove(&(Arc::as_ptr(file) as usize));
            }
        }
    }

    pub(crate) fn clock(&self, now: Instant) -> Clock {
        Clock { now, timeout: self.limits.break_timeout, patient_timeout: self.limits.patient_break_timeout }
    }

    /// A new wait of `owner`'s; `InsufficientResources` when there are too many.
    pub(crate) fn new_wait(&self, owner: &Owner, place: WaitPlace) -> Result<WaitId, StoreError> {
        let mut waits = self.waits.lock();
        if waits.len() >= self.limits.waits_max {
            return Err(StoreError::InsufficientResources);
        }
        let id = WaitId(self.next_wait.fetch_add(1, Ordering::Relaxed));
        waits.insert(id, (owner.clone(), place));
        Ok(id)
    }

    /// A new wait of `owner`'s in `waiters`, for the answer to a break or the end of a move. Before the list grows, waits that were taken back leave it.
    pub(crate) fn wait_among(&self, waiters: &mut Vec<WaitId>, owner: &Owner) -> Result<WaitId, StoreError> {
        let id = self.new_wait(owner, WaitPlace::Break)?;
        if waiters.len() == waiters.capacity() {
            let waits = self.waits.lock();
            waiters.retain(|wait| waits.contains_key(wait));
            drop(waits);
            // So that the next look at all of them comes after as many as there are now.
            let room = waiters.len().max(8);
            waiters.reserve(room);
        }
        waiters.push(id);
        Ok(id)
    }

    /// Tells the owners what `scope` caused; no lock may be held.
    pub(crate) fn run(&self, scope: &CommitScope, file: &Arc<FileState>, fx: Effects) {
        if let Some(at) = fx.deadline {
            let mut deadlines = self.deadlines.lock();
            let listed = deadlines.entry(Arc::as_ptr(file) as usize).or_insert_with(|| (at, Arc::downgrade(file)));
            listed.0 = listed.0.min(at);
            file.is_listed.store(true, Ordering::Release);
        }
        for effect in fx.list {
            match effect {
                Effect::OplockBreak { owner, open, to, ack } => owner.oplock_break(scope, open, to, ack),
                Effect::LeaseBreak(owner, b) => owner.lease_break(scope, &b),
                Effect::CacheChanged(owner, opens) => owner.cache_changed(scope, &opens),
                Effect::Resume(wait) => self.resume(vec![wait]),
            }
        }
    }

    pub(crate) fn resume(&self, woken: Vec<WaitId>) {
        for wait in woken {
            // A granted lock can still be given back until the call made again has fetched it.
            let owner = {
                let mut waits = self.waits.lock();
                match waits.get(&wait) {
                    Some((owner, WaitPlace::Lock { .. })) => Some(owner.clone()),
                    Some(_) => waits.remove(&wait).map(|(owner, _)| owner),
                    None => None,
                }
            };
            if let Some(owner) = owner {
                owner.resume(wait);
            }
        }
    }

    /// These waits are over for good, whatever they were for.
    pub(crate) fn end_waits(&self, ended: Vec<(WaitId, bool)>) {
        for (wait, resume) in ended {
            let ended = self.waits.lock().remove(&wait);
            if resume && let Some((owner, _)) = ended {
                owner.resume(wait);
            }
        }
    }

    /// Time stands where the callers last said; what has no time of its own uses that.
    pub(crate) fn saw(&self, now: Instant) {
        let start = *self.start.get_or_init(|| now);
        let nanos = now.saturating_duration_since(start).as_nanos() as u64;
        self.latest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    /// It is now this late, on both clocks. What has no time of its own uses that.
    pub fn set_time(&self, now: Instant, wall: FileTime) {
        self.saw(now);
        self.latest_wall.store(wall.0, Ordering::Relaxed);
    }

    /// What `set_time` said last.
    pub fn time(&self) -> Option<(Instant, FileTime)> {
        Some((self.latest()?.now, self.wall()?))
    }

    /// The time of day as of the latest call that brought it.
    pub(crate) fn wall(&self) -> Option<FileTime> {
        Some(FileTime(self.latest_wall.load(Ordering::Relaxed))).filter(|t| t.0 != 0)
    }

    /// The clock as of the latest call that brought the time.
    pub(crate) fn latest(&self) -> Option<Clock> {
        let start = self.start.get()?;
        Some(self.clock(*start + Duration::from_nanos(self.latest_nanos.load(Ordering::Relaxed))))
    }

    /// The call made again has what it waited for.
    pub(crate) fn wait_is_over(&self, wait: WaitId) {
        self.waits.lock().remove(&wait);
    }
}
