//! The volumes that this daemon owns: opens those that the state store knows when they are first needed, makes new ones,
//! and closes all at the end. Refuses to know what lies in them.

mod cache_room;
pub(crate) mod device;
mod identity;
mod integrity;
mod offline;
mod quota;
mod scrub;
mod snapshots;
mod upkeep;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use arden_admin::{
    AdminError, ErrorKind, State,
    error::Result,
    names::key,
    volume::{
        AccessPolicy, CacheInfo, IntegrityInfo, IntegrityQuery, NewCheck, NewIntegrity, NewQuota, NewRepair, NewScrub,
        NewVolume, QuotaInfo, QuotaSubject, ShortNamePolicy, VolumeAdmin, VolumeChange, VolumeCheck, VolumeInfo,
        VolumeRecord, VolumeRepair, VolumeScrub,
    },
};
use arden_block::Device;
use arden_lock::{Mutex, ranks};
use arden_store::{
    error::{Blame, NotDone},
    handles::HandleStore,
    name::NtPath,
    store::FileStore,
};
use arden_volume::{
    BlockCache, Durability, FileDevice, LastAccess, Superblock, VolError, Volume, VolumeHandles, VolumeOptions,
    VolumeStore,
};
use arden_wire::FileTime;

pub use offline::{Entry, File, Offline};
use scrub::Scrubbing;

use crate::pools::Pools;

struct Open {
    volume: Arc<Volume>,
    handles: Arc<VolumeHandles>,
    /// The id of the pool on which it lies; None on a file or block device.
    pool: Option<u128>,
}

/// The volumes of a daemon.
pub struct Volumes {
    me: Weak<Volumes>,
    state: Arc<State>,
    pools: Arc<Pools>,
    /// By the key of their names. The lock is held while a volume is opened, so that it is opened once.
    open: Mutex<BTreeMap<String, Open>, ranks::Volumes>,
    /// Keys of those that are being forgotten or deleted: nobody opens them again.
    leaving: Mutex<BTreeSet<String>, ranks::LeavingVolumes>,
    /// The present or last scrub of each.
    scrubs: Mutex<BTreeMap<String, Arc<Scrubbing>>, ranks::VolumeScrubs>,
    /// Blocks of files in memory, of all volumes.
    blocks: Arc<BlockCache>,
    stopped: AtomicBool,
}

/// Until it goes, a volume is being forgotten or deleted.
struct Leaving<'a> {
    volumes: &'a Volumes,
    key: String,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.volumes.leaving.lock().remove(&self.key);
    }
}

fn leaves(name: &str) -> AdminError {
    AdminError::new(ErrorKind::Conflict, format!("volume {name:?} is being closed"), "try again when it is")
}

/// How long giving space back waits for the table of volumes.
const GIVE_BACK_WAIT: Duration = Duration::from_secs(1);
/// How long looking at the memory of volumes does.
const LOOK_WAIT: Duration = Duration::from_millis(10);

fn refusal(device: &str, e: VolError) -> AdminError {
    match e {
        VolError::Refused(why) => AdminError::invalid(format!("{device}: {why}"), "give it more room"),
        VolError::Unknown(why) => AdminError::new(
            ErrorKind::Conflict,
            format!("{device}: {why}"),
            "`arden volume create` makes one; what is there now is lost by that",
        ),
        e @ VolError::Later => {
            AdminError::new(ErrorKind::Conflict, format!("{device}: {e}"), "update this arden to the one that wrote it")
        }
        e => AdminError::failed(format!("{device}: {e}"), "see the daemon's log; `arden volume check` says more"),
    }
}

fn no_file(path: &Path, e: std::io::Error) -> AdminError {
    let has_folder = path.parent().is_none_or(std::path::Path::is_dir);
    let hint = match e.kind() {
        std::io::ErrorKind::NotFound if !has_folder => "make the directory first, or mount the file system that has it",
        std::io::ErrorKind::NotFound => "`arden volume create --file PATH --size 10g` makes one",
        std::io::ErrorKind::AlreadyExists => "leave out --size to use the file as it is",
        std::io::ErrorKind::ResourceBusy => "stop whoever has it open",
        _ => "check the path and its permissions",
    };
    AdminError::new(ErrorKind::Conflict, format!("{}: {e}", path.display()), hint)
}

impl Volumes {
    pub fn new(state: &Arc<State>, pools: &Arc<Pools>) -> Arc<Volumes> {
        let (state, pools) = (state.clone(), pools.clone());
        let blocks = BlockCache::new(cache_room::bytes_max(state.snapshot().settings.volume_cache_bytes));
        let volumes = Arc::new_cyclic(|me| Volumes {
            me: me.clone(),
            state,
            pools,
            open: Mutex::default(),
            leaving: Mutex::default(),
            scrubs: Mutex::default(),
            blocks,
            stopped: AtomicBool::new(false),
        });
        snapshots::start(&volumes);
        scrub::start(&volumes);
        cache_room::start(&volumes);
        volumes
    }

    /// None while a volume is being opened.
    fn open_volumes(&self) -> Option<Vec<Arc<Volume>>> {
        let open = self.open.try_lock_for(LOOK_WAIT)?;
        Some(open.values().map(|o| o.volume.clone()).collect())
    }

    /// What volumes hold in memory; while one is being opened, only what their blocks take.
    fn held_bytes(&self) -> u64 {
        let open = self.open_volumes().unwrap_or_default();
        let other: u64 = open.iter().map(|v| v.memory()).map(|(nodes, changes)| nodes + changes).sum();
        self.blocks.bytes() + other
    }

    /// The most that volumes may take in memory, as it is set.
    fn cache_bytes_max(&self) -> u64 {
        cache_room::bytes_max(self.state.snapshot().settings.volume_cache_bytes)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn record(&self, name: &str) -> Result<VolumeRecord> {
        let known = self.state.snapshot().volumes.get(&key(name)).cloned();
        known.ok_or_else(|| AdminError::not_found("volume", name))
    }

    /// The device of a volume, and the pool on which it lies: the pool that its record names, or the only one with such a space.
    fn device_and_pool(&self, record: &VolumeRecord, make: Option<u64>) -> Result<(Arc<dyn Device>, Option<u128>)> {
        match (&record.space, &record.file) {
            (Some(space), None) => {
                let taken =
                    self.pools.take_space(space, identity::pool_of(record)?, &format!("volume {}", record.name))?;
                let pool = taken.pool();
                let (all, name) = (self.me.clone(), key(&record.name));
                let give_back = move || all.upgrade().into_iter().for_each(|all| all.give_back(&name));
                let device = device::open(taken, give_back)
                    .map_err(|e| AdminError::failed(format!("space {space}: {e}"), "see `arden pool show`"))?;
                Ok((Arc::new(device), Some(pool)))
            }
            (None, Some(_)) if self.pools.is_member() => Err(AdminError::new(
                ErrorKind::Conflict,
                "a volume on a file is not supported in a cluster: no fence keeps another node from the file",
                "make it on a space of a pool",
            )),
            (None, Some(path)) if path.is_absolute() => {
                let device = match make {
                    Some(size) => FileDevice::create(path, size),
                    None => FileDevice::open(path, true),
                };
                Ok((Arc::new(device.map_err(|e| no_file(path, e))?), None))
            }
            _ => Err(AdminError::invalid(
                "a volume lies on one space, or on one file by its full path",
                "name either --space or --file",
            )),
        }
    }

    /// Gives back free space of the volume `key`, because another volume of the pool needs it.
    fn give_back(&self, key: &str) {
        // The thread that asks may hold the table itself, while it opens this volume: the wait is limited.
        let Some(open) = self.open.try_lock_for(GIVE_BACK_WAIT) else { return };
        let volume = open.get(key).map(|o| o.volume.clone());
        drop(open);
        volume.into_iter().for_each(|v| v.give_all_back());
    }

    fn volume(&self, name: &str) -> Result<(Arc<Volume>, Arc<VolumeHandles>)> {
        let mut open = self.open.lock();
        let record = self.record(name)?;
        if self.is_stopped() {
            return Err(AdminError::failed("the daemon is stopping", ""));
        }
        if self.leaving.lock().contains(&key(name)) {
            return Err(leaves(name));
        }
        if let Some(o) = open.get(&key(name)) {
            return Ok((o.volume.clone(), o.handles.clone()));
        }
        let (device, pool) = self.device_and_pool(&record, None)?;
        self.confirm(&record, pool, &*device)?;
        let bytes_max = self.cache_bytes_max();
        let others: u64 = open.values().map(|o| o.volume.memory().0).sum();
        let mut options = VolumeOptions {
            cache_bytes: cache_room::first_node_bytes(bytes_max, others),
            overlay_bytes_max: cache_room::overlay_bytes(bytes_max, open.len() + 1) as usize,
            blocks: Some(self.blocks.clone()),
            gather_bytes_max: cache_room::gather_bytes(bytes_max, open.len() + 1),
            ..VolumeOptions::default()
        };
        // Tests do not wait for a minute.
        if let Some(ms) = std::env::var("ARDEN_TEST_GIVE_BACK_MS").ok().and_then(|ms| ms.parse().ok()) {
            options.give_back_after = Duration::from_millis(ms);
        }
        let volume = Volume::open(device, options).map_err(|e| refusal(&record.device(), e))?;
        let handles = VolumeHandles::new(volume.clone());
        tracing::info!(volume = record.name, device = record.device(), "volume open");
        open.insert(key(name), Open { volume: volume.clone(), handles: handles.clone(), pool });
        Ok((volume, handles))
    }

    /// A directory of a volume, and where its persistent opens are kept.
    ///
    /// # Errors
    /// Not found; invalid, when the directory does not exist; failed, when the volume cannot be opened.
    pub fn store(&self, name: &str, path: &Path) -> Result<(Arc<dyn FileStore>, Arc<dyn HandleStore>)> {
        let (volume, handles) = self.volume(name)?;
        let bad = |e: NotDone| {
            let text = format!("volume {name}: {}: {e}", path.display());
            match e {
                NotDone::Failed(e) if e.blame() == Blame::Store => AdminError::failed(text, "see the daemon's log"),
                _ => AdminError::invalid(text, "the directory has to exist there"),
            }
        };
        let text = path.to_str().unwrap_or("").trim_start_matches('/');
        let parsed = NtPath::parse(text).map_err(|e| bad(e.into()))?;
        // The server commits what has to be durable before it answers: many requests with one flush.
        let store = VolumeStore::of_directory(volume, &parsed, Durability::Plain).map_err(bad)?;
        Ok((store, handles))
    }

    /// The pool on which an open volume lies.
    pub fn pool_of(&self, name: &str) -> Option<u128> {
        self.open.lock().get(&key(name)).and_then(|open| open.pool)
    }

    /// Makes a checkpoint of each open volume on a pool: what an earlier owner left to be replayed is not replayed again.
    pub fn checkpoint_of_pool(&self, pool: u128) {
        let volumes: Vec<(String, Arc<Volume>)> = {
            let open = self.open.lock();
            let of_pool = open.iter().filter(|(_, o)| o.pool == Some(pool));
            of_pool.map(|(name, o)| (name.clone(), o.volume.clone())).collect()
        };
        for (name, volume) in volumes {
            if let Err(e) = volume.checkpoint() {
                tracing::warn!(volume = name, "no checkpoint after the volume was taken over: {e}");
            }
        }
    }

    /// Closes the volumes on a pool, each with a checkpoint, and gives their names. Those of a pool that is gone already write
    /// nothing more.
    ///
    /// # Errors
    /// The names with the first error: what is in memory may not be on the disks.
    pub fn close_of_pool(&self, pool: u128) -> (Vec<String>, Result<()>) {
        let closing: Vec<(String, Open)> = {
            let mut open = self.open.lock();
            let names: Vec<String> =
                open.iter().filter(|(_, o)| o.pool == Some(pool)).map(|(n, _)| n.clone()).collect();
            names.into_iter().filter_map(|name| open.remove_entry(&name)).collect()
        };
        let mut result = Ok(());
        for (name, open) in &closing {
            self.end_scrub(name);
            if let Err(e) = open.volume.close() {
                result = result.and(Err(refusal(name, e)));
            }
        }
        (closing.into_iter().map(|(name, _)| name).collect(), result)
    }

    /// Stops scrubs and closes all volumes, each with a checkpoint: the next opening has nothing to replay.
    pub fn stop(&self) {
        // None begins from here on.
        self.stopped.store(true, Ordering::Release);
        let scrubs = std::mem::take(&mut *self.scrubs.lock());
        scrubs.values().for_each(|s| s.end());
        let open = std::mem::take(&mut *self.open.lock());
        for (name, open) in open {
            if let Err(e) = open.volume.close() {
                tracing::error!(volume = name, "not closed cleanly: {e}");
            }
        }
    }

    /// Takes a volume out of the table of those that are open, if it is there. While it leaves nobody opens it, and no scrub of it begins.
    ///
    /// # Errors
    /// A conflict: it leaves already.
    fn take_out(&self, name: &str) -> Result<(Option<Open>, Leaving<'_>)> {
        let mut open = self.open.lock();
        if !self.leaving.lock().insert(key(name)) {
            return Err(leaves(name));
        }
        Ok((open.remove(&key(name)), Leaving { volumes: self, key: key(name) }))
    }

    /// Nothing of a volume that leaves is known any more.
    fn forget_record(&self, _leaving: &Leaving<'_>, name: &str) -> Result<()> {
        self.scrubs.lock().remove(&key(name));
        self.state.change(|s| {
            s.volumes.remove(&key(name));
            Ok(())
        })
    }

    fn shares_of(&self, name: &str) -> Vec<String> {
        self.pools.sharing().shares_on_volume(name)
    }

    fn info(&self, record: &VolumeRecord) -> VolumeInfo {
        let mut info = VolumeInfo {
            name: record.name.clone(),
            device: record.device(),
            closed_because: String::new(),
            id: String::new(),
            total_bytes: 0,
            free_bytes: 0,
            last_access: AccessPolicy::default(),
            short_names: ShortNamePolicy::default(),
            scrub_days: record.scrub_days(),
            last_scrub: record.last_scrub,
            shares: self.shares_of(&record.name),
        };
        match self.volume(&record.name) {
            Ok((volume, _)) => {
                info.id = format!("{:032x}", volume.superblock().id);
                (info.total_bytes, info.free_bytes, _) = volume.room();
                info.last_access = upkeep::policy(volume.last_access());
                info.short_names = volume.short_names().map(upkeep::short_policy).unwrap_or_default();
            }
            Err(e) => info.closed_because = e.error,
        }
        info
    }

    fn remember(&self, record: &VolumeRecord) -> Result<()> {
        self.state.change(|s| {
            s.volumes.insert(key(&record.name), record.clone());
            Ok(())
        })
    }

    fn check_new(&self, name: &str) -> Result<()> {
        arden_admin::names::check_share(name)?;
        if self.state.snapshot().volumes.contains_key(&key(name)) {
            return Err(AdminError::exists("volume", name, "choose another name"));
        }
        if self.leaving.lock().contains(&key(name)) {
            return Err(leaves(name));
        }
        Ok(())
    }

    /// The identity of the pool that a request names.
    fn named_pool(&self, name: Option<&str>) -> Result<Option<String>> {
        let snapshot = self.state.snapshot();
        let found = |name| snapshot.pool_named(name).ok_or_else(|| AdminError::not_found("pool", name));
        name.map(|name| found(name).map(|pool| pool.id.clone())).transpose()
    }
}

impl VolumeAdmin for Volumes {
    fn cache(&self) -> CacheInfo {
        CacheInfo { bytes: self.held_bytes(), bytes_max: self.cache_bytes_max() }
    }

    fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        Ok(self.state.snapshot().volumes.values().map(|r| self.info(r)).collect())
    }

    fn volume(&self, name: &str) -> Result<VolumeInfo> {
        Ok(self.info(&self.record(name)?))
    }

    fn create_volume(&self, new: &NewVolume) -> Result<VolumeInfo> {
        self.check_new(&new.name)?;
        if let Some(file) = new.file.as_deref().filter(|_| !new.force) {
            self.pools.sharing().check_device(file)?;
        }
        let (name, space, file) = (new.name.clone(), new.space.clone(), new.file.clone());
        let pool = self.named_pool(new.pool.as_deref())?;
        let mut record = VolumeRecord { name, space, file, pool, ..VolumeRecord::default() };
        {
            let (device, pool) = self.device_and_pool(&record, new.size_bytes.filter(|_| new.file.is_some()))?;
            let blank = new.size_bytes.is_some() && new.file.is_some() || is_blank(&*device);
            if !blank && !new.force {
                let what = if matches!(Superblock::read(&*device), Ok(_) | Err(VolError::Later)) {
                    "a volume"
                } else {
                    "something"
                };
                return Err(AdminError::new(
                    ErrorKind::Conflict,
                    format!("{what} is on {} already", record.device()),
                    "--force throws it away; `arden volume attach` opens a volume that exists",
                ));
            }
            let id = random_id()?;
            let made = Volume::format(&*device, &new.name, id, FileTime::from_system(SystemTime::now()));
            if let (Err(_), Some(path), Some(_)) = (&made, &record.file, new.size_bytes) {
                // It was made for this volume, and may have filled its file system.
                if let Err(e) = fs::remove_file(path) {
                    tracing::warn!("{} stays behind: {e}", path.display());
                }
            }
            made.map_err(|e| refusal(&record.device(), e))?;
            (record.pool, record.id) = (pool.map(identity::text), Some(identity::text(id)));
        }
        self.remember(&record)?;
        // What [MS-FSA] 2.1.4.17 asks for, as cheap as it can be had. A volume that comes from elsewhere keeps its own.
        let (volume, _) = Volumes::volume(self, &new.name)?;
        volume.set_last_access(LastAccess::Relative).map_err(|e| refusal(&record.device(), e))?;
        Ok(self.info(&record))
    }

    fn check_volume(&self, name: &str, check: &NewCheck) -> Result<VolumeCheck> {
        let (volume, _) = Volumes::volume(self, name)?;
        let r = volume.check(check.data).map_err(|e| refusal(name, e))?;
        let block = arden_block::BLOCK_BYTES;
        Ok(VolumeCheck {
            errors: r.errors,
            files: r.files,
            directories: r.directories,
            streams: r.streams,
            extents: r.extents,
            data_bytes: r.data_blocks * block,
            shared_bytes: r.shared_blocks * block,
            tree_bytes: r.tree_nodes * 4 * block,
        })
    }

    fn forget_volume(&self, name: &str) -> Result<()> {
        self.record(name)?;
        self.check_unshared(name)?;
        // Others are found and opened while it closes.
        let (removed, leaving) = self.take_out(name)?;
        self.end_scrub(name);
        if let Some(open) = removed {
            open.volume.close().map_err(|e| refusal(name, e))?;
        }
        self.forget_record(&leaving, name)
    }

    fn change_volume(&self, name: &str, change: &VolumeChange) -> Result<VolumeInfo> {
        self.change(name, change)
    }

    fn repair_volume(&self, name: &str, repair: &NewRepair) -> Result<VolumeRepair> {
        self.repair(name, repair)
    }

    fn start_scrub(&self, name: &str, scrub: &NewScrub) -> Result<VolumeScrub> {
        self.begin_scrub(name, scrub)
    }

    fn scrub(&self, name: &str) -> Result<VolumeScrub> {
        self.show_scrub(name)
    }

    fn stop_scrub(&self, name: &str) -> Result<()> {
        self.record(name)?;
        self.end_scrub(name);
        Ok(())
    }

    fn quotas(&self, name: &str) -> Result<Vec<QuotaInfo>> {
        self.show_quotas(name)
    }

    fn set_quota(&self, name: &str, quota: &NewQuota) -> Result<QuotaInfo> {
        self.limit(name, quota)
    }

    fn remove_quota(&self, name: &str, of: &QuotaSubject) -> Result<()> {
        self.unlimit(name, of)
    }

    fn integrity(&self, name: &str, of: &IntegrityQuery) -> Result<Vec<IntegrityInfo>> {
        self.show_integrity(name, &of.path)
    }

    fn set_integrity(&self, name: &str, new: &NewIntegrity) -> Result<IntegrityInfo> {
        self.change_integrity(name, new)
    }

    fn delete_volume(&self, name: &str) -> Result<()> {
        self.delete(name)
    }

    fn attach_volume(&self, record: &VolumeRecord) -> Result<VolumeInfo> {
        self.check_new(&record.name)?;
        let record = VolumeRecord { pool: self.named_pool(record.pool.as_deref())?, ..record.clone() };
        let record = {
            let (device, pool) = self.device_and_pool(&record, None)?;
            self.identified(&record, pool, &*device)?
        };
        self.remember(&record)?;
        Ok(self.info(&record))
    }
}

/// Whether the first 64 KiB are zeros, so that nothing recognisable would be overwritten.
fn is_blank(device: &dyn Device) -> bool {
    let mut start = vec![1; 64 << 10];
    device.read(0, &mut start).is_ok() && start.iter().all(|b| *b == 0)
}

fn random_id() -> Result<u128> {
    arden_admin::secret::random::<16>().map(u128::from_le_bytes)
}
