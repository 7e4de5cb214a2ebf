//! The pools that this daemon owns: opens those that the state store knows, keeps each on its thread, serves
//! exports, lends spaces, and looks after disks that come back. Refuses rules of its own: the pool has them.

mod admin;
mod content;
mod delay;
mod devices;
mod entered;
mod jobs;
mod owned;
mod reserve;
mod scan;
mod show;
mod watch;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arden_admin::{AdminError, ErrorKind, State, error::Result, names::key, storage::PoolRecord};
use arden_lock::{Mutex, ranks};
use arden_space::{Caller, OpenOptions, Pool, PoolConfig, PoolHost, Right, SpaceError, SpaceResult, nbd};

pub use admin::PoolAdmin;
pub use entered::Victim as DiskVictim;
use jobs::{Finished, Job};
pub use owned::{Adopts, newest_epoch};
pub use reserve::PoolGuard;

use crate::sharing::Sharing;

/// A pool that does not answer a question for this long has a disk that hangs.
const ANSWER_WAIT: Duration = Duration::from_secs(120);

/// The pools of a daemon.
pub struct Pools {
    state: Arc<State>,
    sharing: Arc<dyn Sharing>,
    /// A node of a cluster: which pools it opens, and when, is the cluster's decision.
    member: bool,
    cluster: OnceLock<Arc<dyn Adopts>>,
    pools: Mutex<BTreeMap<String, Slot>, ranks::Pools>,
    /// Held over a change of the set of pools, disks or spaces: one after another.
    changing: Mutex<(), ranks::PoolsChanging>,
    jobs: Mutex<BTreeMap<u64, Job>, ranks::PoolJobs>,
    /// By pool: the disks that have this node's key.
    entered: entered::Entries,
    next_job: AtomicU64,
    finished: Mutex<Sender<Finished>, ranks::JobsFinished>,
    stopping: AtomicBool,
    watcher: Mutex<Option<JoinHandle<()>>, ranks::PoolsWatcher>,
}

/// A pool by name: open, or why not.
#[derive(Clone)]
struct Slot {
    open: Option<Arc<OpenPool>>,
    reason: String,
}

struct OpenPool {
    id: u128,
    host: Mutex<Option<PoolHost>, ranks::PoolThread>,
    caller: Caller,
    exports: Mutex<BTreeMap<String, nbd::Export>, ranks::Exports>,
    /// Of a pool whose disks are reserved for this node.
    guard: Option<Arc<PoolGuard>>,
    /// Spaces in use by this daemon, with their user.
    uses: Mutex<BTreeMap<String, String>, ranks::SpaceUses>,
    /// By space: the reclaimer, which has the user of the space give back what it can spare.
    reclaimers: Mutex<BTreeMap<String, SpaceReclaimer>, ranks::SpaceReclaimers>,
    /// Held while reclaimers are called, by one thread at a time. It is only ever tried, never waited for, so it has no rank.
    asking: parking_lot::Mutex<()>,
}

type SpaceReclaimer = Arc<dyn Fn() + Send + Sync>;

impl OpenPool {
    /// Runs `f` on the pool's thread. An error when it takes too long.
    fn ask<T, F, Fut>(&self, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Pool) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let (tx, rx) = sync_channel(1);
        let done = move |r: SpaceResult<T>| {
            let _ = tx.send(r);
        };
        self.caller.submit(f, done).map_err(refusal)?;
        match rx.recv_timeout(ANSWER_WAIT) {
            Ok(r) => r.map_err(refusal),
            Err(RecvTimeoutError::Disconnected) => Err(refusal(SpaceError::Closed)),
            Err(RecvTimeoutError::Timeout) => {
                Err(AdminError::failed("the pool does not answer", "a disk may hang: see the kernel's log"))
            }
        }
    }

    /// Ends exports and closes the pool.
    fn close(&self) -> Result<()> {
        let exports = std::mem::take(&mut *self.exports.lock());
        exports.into_values().for_each(nbd::Export::stop);
        let host = self.host.lock().take();
        match host {
            Some(host) => host.stop().map_err(refusal),
            None => Ok(()),
        }
    }
}

/// A space in use by this daemon. Nobody else can use the space until it is dropped.
pub(crate) struct SpaceUse {
    pool: Arc<OpenPool>,
    space: String,
}

impl SpaceUse {
    /// The id of the pool that has the space.
    pub fn pool(&self) -> u128 {
        self.pool.id
    }

    /// Reaches the pool; [`Caller::device`] gives the space as a block device.
    pub fn caller(&self) -> Caller {
        self.pool.caller.clone()
    }

    /// The name of the space.
    pub fn space(&self) -> &str {
        &self.space
    }
}

impl SpaceUse {
    /// Sets the reclaimer, which is called when another space of the pool needs room.
    pub fn add_reclaimer(&self, reclaimer: SpaceReclaimer) {
        self.pool.reclaimers.lock().insert(self.space.clone(), reclaimer);
    }

    /// Calls the reclaimers of the pool's other spaces. True when there were any, so that a failed allocation may be retried.
    pub fn ask_for_room(&self) -> bool {
        let Some(_one) = self.pool.asking.try_lock() else { return false };
        let reclaimers: Vec<SpaceReclaimer> = {
            let all = self.pool.reclaimers.lock();
            all.iter().filter(|(space, _)| **space != self.space).map(|(_, reclaimer)| reclaimer.clone()).collect()
        };
        // On a thread of its own: the caller may hold locks of the volume that asks, and those of the others have the same ranks.
        let reclaim = || reclaimers.iter().for_each(|reclaimer| reclaimer());
        let reclaimed = thread::scope(|s| {
            let spawned = thread::Builder::new().name("arden-reclaim".into()).spawn_scoped(s, reclaim);
            spawned.is_ok_and(|reclaims| reclaims.join().is_ok())
        });
        reclaimed && !reclaimers.is_empty()
    }
}

impl Drop for SpaceUse {
    fn drop(&mut self) {
        self.pool.reclaimers.lock().remove(&self.space);
        self.pool.uses.lock().remove(&self.space);
    }
}

/// The error of a pool, as administration reports it.
fn refusal(e: SpaceError) -> AdminError {
    match e {
        SpaceError::Refused(s) => AdminError::new(ErrorKind::Conflict, s, ""),
        SpaceError::NotFound(s) => AdminError::new(ErrorKind::NotFound, s, "`arden pool show` shows what there is"),
        SpaceError::Diverged(s) => AdminError::new(
            ErrorKind::Conflict,
            s,
            "decide which side counts: `arden pool import --discard DISK` throws away what the named disk has",
        ),
        SpaceError::OfCluster(_) => AdminError::new(
            ErrorKind::Conflict,
            e.to_string(),
            "a node of that cluster serves it; when the cluster is gone for good and all of its nodes are off, \
             `arden pool import --take-from-cluster` takes it from there",
        ),
        SpaceError::OutOfSpace => {
            AdminError::new(ErrorKind::Conflict, e.to_string(), "add a disk with `pool add-disk`")
        }
        SpaceError::Offline => AdminError::new(ErrorKind::Conflict, e.to_string(), "bring back a missing disk"),
        other => AdminError::failed(other.to_string(), "see the daemon's log"),
    }
}

impl Pools {
    /// Opens every known pool; one that cannot be opened is tried again from time to time.
    ///
    /// # Errors
    /// Failed, when a thread cannot be started. A pool that cannot be opened is no error.
    pub fn start(state: &Arc<State>, sharing: Arc<dyn Sharing>) -> Result<Arc<Pools>> {
        Pools::start_as(state, sharing, false)
    }

    /// For a node of a cluster: opens no pool before [`Pools::open_owned`].
    ///
    /// # Errors
    /// As [`Pools::start`].
    pub fn start_member(state: &Arc<State>, sharing: Arc<dyn Sharing>) -> Result<Arc<Pools>> {
        Pools::start_as(state, sharing, true)
    }

    fn start_as(state: &Arc<State>, sharing: Arc<dyn Sharing>, member: bool) -> Result<Arc<Pools>> {
        let (finished, receiver) = channel();
        let snapshot = state.snapshot();
        let last_job = snapshot.pools.values().flat_map(|p| &p.jobs).map(|j| j.id).max().unwrap_or(0);
        let pools = Arc::new(Pools {
            state: state.clone(),
            sharing,
            member,
            cluster: OnceLock::new(),
            pools: Mutex::default(),
            changing: Mutex::default(),
            jobs: Mutex::default(),
            entered: Mutex::default(),
            next_job: AtomicU64::new(last_job + 1),
            finished: Mutex::new(finished),
            stopping: AtomicBool::new(false),
            watcher: Mutex::default(),
        });
        for record in state.snapshot().pools.values() {
            pools.open_known(record);
        }
        let weak: Weak<Pools> = Arc::downgrade(&pools);
        let watcher = std::thread::Builder::new()
            .name("arden-pools".into())
            .spawn(move || watch::run(&weak, &receiver))
            .map_err(|e| AdminError::failed(format!("no thread: {e}"), "check the limits of this user"))?;
        *pools.watcher.lock() = Some(watcher);
        Ok(pools)
    }

    /// Closes every pool. Jobs go on at the next start.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let watcher = self.watcher.lock().take();
        if let Some(t) = watcher {
            t.thread().unpark();
            let _ = t.join();
        }
        let _one = self.changing.lock();
        let pools = std::mem::take(&mut *self.pools.lock());
        for (name, slot) in pools {
            if let Some(Err(e)) = slot.open.map(|p| p.close()) {
                tracing::error!(pool = name, "not closed cleanly: {e}");
            }
        }
    }

    /// A space for the use of `who`: of the pool with the id `of`, or without one of the only open pool that has such a space.
    ///
    /// # Errors
    /// Not found; conflict, when the pool is not open here, several pools have such a space, or it is in use.
    pub(crate) fn take_space(&self, space: &str, of: Option<u128>, who: &str) -> Result<SpaceUse> {
        let _one = self.changing.lock();
        let among = match of {
            Some(id) => vec![self.opened_with_id(id)?],
            None => self.open_pools().into_iter().map(|(_, pool)| pool).collect(),
        };
        let mut having = Vec::new();
        for pool in among {
            let wanted = space.to_string();
            if pool.ask(move |p| async move { Ok(p.space_named(&wanted).is_ok()) })? {
                having.push(pool);
            }
        }
        if having.len() > 1 {
            let names: Vec<String> = having.iter().map(|pool| self.name_of(pool.id).unwrap_or_default()).collect();
            return Err(AdminError::several_pools(space, &names));
        }
        let Some(pool) = having.pop() else { return Err(AdminError::not_found("space", space)) };
        check_unused(&pool, space)?;
        pool.uses.lock().insert(space.to_string(), who.to_string());
        Ok(SpaceUse { pool, space: space.to_string() })
    }

    fn opened_with_id(&self, id: u128) -> Result<Arc<OpenPool>> {
        let Some(record) = self.record_of(id) else {
            let error = format!("the pool {id:032x} is not known here");
            return Err(AdminError::new(ErrorKind::Conflict, error, "`arden pool import` finds it on its disks"));
        };
        self.opened(&record.name)
    }

    pub(crate) fn sharing(&self) -> &Arc<dyn Sharing> {
        &self.sharing
    }

    fn record(&self, name: &str) -> Result<PoolRecord> {
        self.state.snapshot().pools.get(&key(name)).cloned().ok_or_else(|| AdminError::not_found("pool", name))
    }

    fn change_record<T>(&self, name: &str, mut edit: impl FnMut(&mut PoolRecord) -> T) -> Result<T> {
        self.state.change(|s| {
            let record = s.pools.get_mut(&key(name)).ok_or_else(|| AdminError::not_found("pool", name))?;
            Ok(edit(record))
        })
    }

    fn open_pools(&self) -> Vec<(String, Arc<OpenPool>)> {
        self.pools.lock().iter().filter_map(|(k, s)| Some((k.clone(), s.open.clone()?))).collect()
    }

    /// The open pool `name`, or why it is not open.
    fn opened(&self, name: &str) -> Result<Arc<OpenPool>> {
        self.record(name)?;
        let slot = self.pools.lock().get(&key(name)).cloned();
        let (open, reason) = slot.map_or_else(|| (None, self.never_opened().to_string()), |s| (s.open, s.reason));
        open.ok_or_else(|| {
            let hint = match self.member {
                true => "run this at the node that owns it: `arden pool list` shows which",
                false => "it is tried again every few seconds; `arden pool show` says what is missing",
            };
            AdminError::new(ErrorKind::Conflict, format!("pool {name:?} is closed: {reason}"), hint)
        })
    }

    /// Why a pool is closed that was not tried to be opened.
    fn never_opened(&self) -> &'static str {
        if self.member { "this node does not own it" } else { "not opened yet" }
    }

    /// Opens a pool of the state store, with its exports and jobs.
    fn open_known(self: &Arc<Pools>, record: &PoolRecord) {
        if self.member {
            return;
        }
        match self.open(record, Vec::new(), Right::Alone) {
            Ok(pool) => {
                tracing::info!(pool = record.name, "pool open");
                self.keep(record, pool);
            }
            Err(e) => {
                let mut pools = self.pools.lock();
                let reason = e.to_string();
                if pools.get(&key(&record.name)).is_none_or(|s| s.reason != reason) {
                    tracing::error!(pool = record.name, "pool stays closed: {reason}");
                }
                pools.insert(key(&record.name), Slot { open: None, reason });
            }
        }
    }

    /// Makes an opened pool known to all, then starts what goes on in it.
    fn keep(self: &Arc<Pools>, record: &PoolRecord, pool: Arc<OpenPool>) {
        let slot = Slot { open: Some(pool.clone()), reason: String::new() };
        self.pools.lock().insert(key(&record.name), slot);
        for e in &record.exports {
            if let Err(error) = start_export(&pool, &e.space, &e.nbd) {
                tracing::error!(pool = record.name, space = e.space, nbd = e.nbd, "not exported: {error}");
            }
        }
        for job in &record.jobs {
            if let Err(error) = self.run_job(&record.name, &pool, job.clone()) {
                tracing::error!(pool = record.name, job = job.id, "not resumed: {error}");
            }
        }
    }

    fn labels(&self) -> devices::Labels {
        self.state.snapshot().disks.clone()
    }

    /// Opens what is there of a pool: by its known paths, and by labels when those are not all.
    fn open(&self, record: &PoolRecord, discard: Vec<u128>, right: Right) -> Result<Arc<OpenPool>> {
        let id = pool_id(record)?;
        self.open_as(record, id, discard, right, None).map_err(refusal)
    }

    fn open_as(
        &self,
        record: &PoolRecord,
        id: u128,
        discard: Vec<u128>,
        right: Right,
        guard: Option<Arc<PoolGuard>>,
    ) -> SpaceResult<Arc<OpenPool>> {
        let mut found = self.disks_of(record, id);
        if let Some(guard) = &guard {
            self.confirm(record, &mut found, guard)?;
        }
        let paths: Vec<PathBuf> = found.into_iter().map(|f| f.path).collect();
        let labels = self.labels();
        let config = PoolConfig { grace_ms: record.grace_seconds.saturating_mul(1000), ..PoolConfig::default() };
        let guards = guard.clone();
        let host = PoolHost::start(move |rt| {
            Box::pin(async move {
                let mut devices = Vec::new();
                for p in &paths {
                    let device = devices::open_soon(&rt, p, &labels).await?;
                    devices.push(reserve::wrap(&rt, p, guards.as_ref(), device));
                }
                let options = OpenOptions { config, discard };
                Pool::open_as(&rt, devices, Some(id), options, right).await
            })
        });
        Ok(hosted(host?, id, guard))
    }

    /// The disks whose labels name the pool, each by one name of a path to it: by its known paths, and all block devices when those are not all.
    fn disks_of(&self, record: &PoolRecord, id: u128) -> Vec<devices::Found> {
        let known = devices::distinct(&record.devices);
        let mut found = devices::scan(&known);
        found.retain(|f| f.pool_id == id);
        if found.len() < known.len() {
            let mut others = devices::candidates(&[]);
            others.retain(|p| !known.iter().any(|k| devices::is_same(k, p)));
            found.extend(devices::scan(&others).into_iter().filter(|f| f.pool_id == id));
        }
        found
    }
}

/// Takes over a list of pools that an earlier version kept in a file of the state directory. Before [`Pools::start`].
///
/// # Errors
/// Failed, when the file is there and cannot be read or renamed.
pub fn adopt_old_list(state: &State, directory: &Path) -> Result<()> {
    let path = directory.join("pools.json");
    let Ok(bytes) = std::fs::read(&path) else { return Ok(()) };
    let old: BTreeMap<String, Vec<PathBuf>> = serde_json::from_slice(&bytes)
        .map_err(|e| AdminError::failed(format!("{}: {e}", path.display()), "remove it, then import the pools"))?;
    for (name, devices) in old {
        let Some(found) = devices::scan(&devices).into_iter().next() else { continue };
        let record = new_record(name, found.pool_id, devices);
        state.change(|s| {
            s.pools.entry(key(&record.name)).or_insert_with(|| record.clone());
            Ok(())
        })?;
    }
    std::fs::rename(&path, path.with_extension("json.imported"))
        .map_err(|e| AdminError::failed(format!("{}: {e}", path.display()), "check the directory's permissions"))
}

fn pool_id(record: &PoolRecord) -> Result<u128> {
    u128::from_str_radix(&record.id, 16)
        .map_err(|e| AdminError::failed(format!("pool {:?} has a wrong id: {e}", record.name), "import it again"))
}

fn new_record(name: String, id: u128, devices: Vec<PathBuf>) -> PoolRecord {
    let grace_seconds = PoolConfig::default().grace_ms / 1000;
    PoolRecord { name, id: format!("{id:032x}"), devices, grace_seconds, exports: Vec::new(), jobs: Vec::new() }
}

fn hosted(host: PoolHost, id: u128, guard: Option<Arc<PoolGuard>>) -> Arc<OpenPool> {
    let caller = host.caller();
    Arc::new(OpenPool {
        id,
        host: Mutex::new(Some(host)),
        caller,
        exports: Mutex::default(),
        guard,
        uses: Mutex::default(),
        reclaimers: Mutex::default(),
        asking: parking_lot::Mutex::default(),
    })
}

fn start_export(pool: &OpenPool, space: &str, place: &str) -> Result<()> {
    let export = nbd::Export::start(place, pool.caller.clone(), space).map_err(|e| {
        let hint = match e.kind() {
            std::io::ErrorKind::PermissionDenied if !place.starts_with("unix:") => {
                "use unix:PATH or 127.0.0.1:PORT; from other machines through a tunnel: ssh -L 10809:127.0.0.1:10809 HOST"
            }
            _ => "name unix:PATH or ADDR:PORT that nobody listens on",
        };
        AdminError::invalid(format!("{place}: {e}"), hint)
    })?;
    pool.exports.lock().insert(space.to_string(), export);
    Ok(())
}

/// Refuses a space that is exported or used by something here.
fn check_unused(pool: &OpenPool, space: &str) -> Result<()> {
    if let Some(e) = pool.exports.lock().get(space) {
        let error = format!("space {space:?} is exported at {}", e.place());
        return Err(AdminError::new(ErrorKind::Conflict, error, format!("end it with `arden space unexport {space}`")));
    }
    if let Some(who) = pool.uses.lock().get(space) {
        let error = format!("space {space:?} is used by {who}");
        return Err(AdminError::new(ErrorKind::Conflict, error, "end that use first"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
