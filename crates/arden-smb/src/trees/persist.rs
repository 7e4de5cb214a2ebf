//! Persistent opens, [MS-SMB2] 3.3.1.10 Open.IsPersistent: what is kept of them in the share's handle store while they
//! live, and how a new server takes them up. Refuses to flush: the chain does, before it answers.
//!
//! Keys of the store, numbers big-endian: `o` open, `k` open offset length exclusive (a byte-range lock and how often it
//! is held), `s` open bucket (a lock sequence), `l` ClientGuid LeaseKey. Removing an open removes what is below it. `d` open is one that
//! is merely durable, with all that belongs to it (`planned`).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arden_lock::{Mutex, MutexGuard, ranks};
use arden_store::{
    commit::{Cause, CommitScope},
    error::{NotDone, StoreError},
    fs::{ClientId, CreateAction, LockRange, OpenId, RestoreOpen},
    handles::{HandleChange, HandleStore, KeptCache, KeptLease, KeptOpen},
    table::Open,
};
use arden_wire::{
    Malformed, NtStatus,
    cursor::{Put, Reader},
    dtyp::Sid,
    names::{name_of_utf16, name_units, put_name_units},
    smb2::FileId,
};

use crate::{
    base::{
        config::Limits,
        rare::RareWarning,
        usage::{Kind, OpenUsage, open_cost},
    },
    model::{
        Durability, Object, OpenState, SmbOpen, Work,
        kept::{DURABLE, KeptLocks, bucket_bit, lease_key, open_key},
        share::Share,
    },
    trees::Trees,
};

mod planned;
mod renumber;

use renumber::Renumbered;

/// Persistent opens of a file that are kept anew, with a new name or a pending deletion, where nothing may block: each takes some 3 us.
const INLINE_KEPT_MAX: usize = 512;

/// The persistent opens of this server.
#[derive(Default)]
pub(crate) struct Persistence {
    state: Mutex<State, ranks::Persistence>,
    /// How many opens are in it: while 0, nothing has to be looked up.
    count: AtomicUsize,
    opens_warning: RareWarning,
    locks_warning: RareWarning,
}

#[derive(Default)]
struct State {
    /// `Limits::persistent_path_units_max`.
    path_units_max: usize,
    opens: HashMap<u64, Arc<SmbOpen>>,
    leases: HashMap<(u128, u128), Vec<u64>>,
    files: HashMap<FileKey, Vec<u64>>,
    users: HashMap<Sid, Usage>,
    /// Shares whose handles were taken up, in lower case.
    restored: HashSet<String>,
}

/// What one user has in the handle stores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    opens: usize,
    locks: usize,
}

/// A file, by the store's volume and number.
type FileKey = arden_store::store::FileId;

fn handles(open: &SmbOpen) -> Option<&Arc<dyn HandleStore>> {
    open.share.fs.as_ref()?.handles()
}

/// What one request changes is put at once: a crash keeps all of it or nothing, and its repetition finds either.
pub(crate) fn put(scope: &CommitScope, open: &SmbOpen, changes: Vec<HandleChange>) {
    if let Some(fs) = &open.share.fs {
        scope.put(fs, changes);
    }
}

/// The protocol's part of a kept open, after the table's.
struct Kept {
    open: KeptOpen,
    share: String,
    name: String,
    create_guid: u128,
    app_instance: Option<(u128, Option<(u64, u64)>)>,
    action: CreateAction,
    create_options: u32,
    desired_access: u32,
    timeout: Duration,
    mode: u32,
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.put_u32((name_units(text) * 2) as u32);
    put_name_units(out, text);
}

fn text(r: &mut Reader<'_>) -> Result<String, Malformed> {
    let len = r.u32()? as usize;
    name_of_utf16(r.bytes(len)?)
}

fn encode(open: &SmbOpen, kept: &KeptOpen) -> Vec<u8> {
    let mut out = kept.encode();
    put_text(&mut out, &open.share.name);
    put_text(&mut out, &open.name);
    out.put_u128(open.create_guid.unwrap_or(0));
    out.put_u8(u8::from(open.app_instance.is_some()));
    let (instance, version) = open.app_instance.unwrap_or_default();
    out.put_u128(instance);
    out.put_u8(u8::from(version.is_some()));
    let (high, low) = version.unwrap_or_default();
    out.put_u64(high);
    out.put_u64(low);
    out.put_u8(open.action as u8);
    out.put_u32(open.create_options);
    out.put_u32(open.desired_access);
    let timeout = open.state.lock().durability.timeout().unwrap_or_default();
    out.put_u32(timeout.as_millis() as u32);
    out.put_u32(open.mode.load(Ordering::Relaxed));
    out
}

fn decode(bytes: &[u8]) -> Result<Kept, Malformed> {
    let r = &mut Reader::new(bytes);
    let open = KeptOpen::read(r)?;
    let (share, name) = (text(r)?, text(r)?);
    let create_guid = r.u128()?;
    let has_instance = r.u8()? != 0;
    let instance = r.u128()?;
    let has_version = r.u8()? != 0;
    let version = (r.u64()?, r.u64()?);
    Ok(Kept {
        open,
        share,
        name,
        create_guid,
        app_instance: has_instance.then_some((instance, has_version.then_some(version))),
        action: match r.u8()? {
            0 => CreateAction::Superseded,
            1 => CreateAction::Opened,
            2 => CreateAction::Created,
            _ => CreateAction::Overwritten,
        },
        create_options: r.u32()?,
        desired_access: r.u32()?,
        timeout: Duration::from_millis(u64::from(r.u32()?)),
        mode: r.u32()?,
    })
}

impl Persistence {
    pub fn new(limits: &Limits) -> Persistence {
        let state = State { path_units_max: limits.persistent_path_units_max, ..State::default() };
        Persistence { state: Mutex::new(state), ..Persistence::default() }
    }
}

impl State {
    fn open_change(&self, open: &SmbOpen) -> Option<HandleChange> {
        let file = open.file()?;
        let mut kept = file.fs().keep(file);
        if path_units(&kept.path) > self.path_units_max {
            kept.path.clear();
        }
        Some(HandleChange::Put { key: open_key(open.id.persistent), value: encode(open, &kept) })
    }

    fn usage(&mut self, user: &Sid) -> &mut Usage {
        self.users.entry(user.clone()).or_default()
    }

    fn forget_usage(&mut self, user: &Sid, opens: usize, locks: usize) {
        let Some(usage) = self.users.get_mut(user) else { return };
        usage.opens = usage.opens.saturating_sub(opens);
        usage.locks = usage.locks.saturating_sub(locks);
        if *usage == Usage::default() {
            self.users.remove(user);
        }
    }

    /// With the open that is asked for the lease.
    fn lease_change(&self, client: u128, lease: u128) -> Option<(&SmbOpen, HandleChange)> {
        let open = self.opens.get(self.leases.get(&(client, lease))?.first()?)?;
        let file = open.file()?;
        let value = file.fs().keep_lease(file)?.encode();
        Some((open, HandleChange::Put { key: lease_key(client, lease), value }))
    }

    fn add(&mut self, open: &Arc<SmbOpen>, locks: usize) {
        let usage = self.usage(&open.owner.user);
        usage.opens += 1;
        usage.locks += locks;
        self.opens.insert(open.id.persistent, open.clone());
        if let Some(lease) = open.lease_key {
            self.leases.entry((open.client.0, lease)).or_default().push(open.id.persistent);
        }
        if let Some(file) = open.file() {
            self.files.entry(file.file_id()).or_default().push(open.id.persistent);
        }
    }
}

/// What was found in a handle store, by open and by lease.
#[derive(Default)]
struct Found {
    opens: Vec<Kept>,
    locks: HashMap<u64, BTreeMap<(u64, u64, bool), u32>>,
    sequences: HashMap<u64, Vec<(usize, u8)>>,
    leases: HashMap<(u128, u128), KeptLease>,
}

impl Found {
    fn locks_of(&self, id: u64) -> KeptLocks {
        let held = self.locks.get(&id).cloned().unwrap_or_default();
        let buckets = self.sequences.get(&id).into_iter().flatten();
        let count = held.values().map(|n| *n as usize).sum();
        KeptLocks { held, count, buckets: buckets.fold(0, |all, (bucket, _)| all | bucket_bit(*bucket)) }
    }

    /// What takes an open out of the store.
    fn removal(&self, id: u64) -> Vec<HandleChange> {
        let mut gone = vec![HandleChange::Remove { key: open_key(id) }];
        gone.extend(self.locks_of(id).removal(id));
        gone
    }

    fn read(all: Vec<(Vec<u8>, Vec<u8>)>) -> Found {
        let mut found = Found::default();
        for (key, value) in all {
            if let Err(e) = found.take(&key, &value) {
                tracing::error!(?key, "what was kept of a handle is not understood: {e:?}");
            }
        }
        found
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let (kind, rest) = key.split_first().ok_or(Malformed("empty key"))?;
        let be = |r: &mut Reader<'_>| r.array::<8>().map(u64::from_be_bytes);
        let r = &mut Reader::new(rest);
        match kind {
            b'o' => self.opens.push(decode(value)?),
            // What `planned` takes up.
            &DURABLE => {}
            b'k' => {
                let id = be(r)?;
                let range = (be(r)?, be(r)?, r.u8()? != 0);
                self.locks.entry(id).or_default().insert(range, Reader::new(value).u32()?);
            }
            b's' => {
                let id = be(r)?;
                let bucket = usize::from(r.u8()?);
                self.sequences.entry(id).or_default().push((bucket, Reader::new(value).u8()?));
            }
            b'l' => {
                let lease = KeptLease::parse(value)?;
                self.leases.insert((lease.client.0, lease.key), lease);
            }
            _ => return Err(Malformed("kind of key")),
        }
        Ok(())
    }
}

impl Trees {
    fn persistence(&self) -> MutexGuard<'_, State> {
        self.persistence.state.lock()
    }

    /// The open becomes persistent: from here on it is in its share's handle store.
    pub(crate) fn keep_new(&self, scope: &CommitScope, open: &Arc<SmbOpen>) {
        if let Some(file) = open.file() {
            file.fs().make_persistent(file);
        }
        let mut state = self.persistence();
        state.add(open, 0);
        self.persistence.count.fetch_add(1, Ordering::AcqRel);
        let lease = open.lease_key.and_then(|key| state.lease_change(open.client.0, key));
        put(scope, open, state.open_change(open).into_iter().chain(lease.map(|(_, change)| change)).collect());
    }

    /// Whether the user may have one more persistent open, of this name and file. Told apart from nothing to persist: the
    /// open itself is granted.
    pub(crate) fn may_keep_another(&self, user: &Sid, name: &str, file: &Open) -> bool {
        let limits = &self.config.limits;
        let limit = limits.persistent_path_units_max;
        if name_units(name) > limit || path_units(&file.node().path()) > limit {
            tracing::debug!(limit, "persistent_path_units_max reached: an open is granted without persistence");
            return false;
        }
        let limit = limits.persistent_opens_per_user_max;
        let fits = self.persistence().users.get(user).is_none_or(|u| u.opens < limit);
        if !fits {
            self.persistence.opens_warning.warn(self.time().now, || {
                tracing::warn!(user = %user, limit, "persistent_opens_per_user_max reached: opens are granted without persistence");
            });
        }
        fits
    }

    /// Notes that the owner of a persistent open is about to take so many locks. INSUFFICIENT_RESOURCES beyond
    /// `Limits::persistent_locks_per_user_max`, unless they are `granted`; else whoever took fewer gives the rest back.
    pub(crate) fn reserve_locks(&self, user: &Sid, locks: usize, granted: bool) -> Result<(), NtStatus> {
        let limit = self.config.limits.persistent_locks_per_user_max;
        let mut state = self.persistence();
        let usage = state.usage(user);
        if !granted && usage.locks.saturating_add(locks) > limit {
            drop(state);
            self.persistence.locks_warning.warn(self.time().now, || {
                tracing::warn!(user = %user, limit, "persistent_locks_per_user_max reached: locks are refused");
            });
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        usage.locks += locks;
        Ok(())
    }

    pub(crate) fn release_locks(&self, user: &Sid, locks: usize) {
        if locks > 0 {
            self.persistence().forget_usage(user, 0, locks);
        }
    }

    fn keeps_nothing(&self) -> bool {
        self.persistence.count.load(Ordering::Acquire) == 0
    }

    /// Something of the open changed that is kept.
    pub(crate) fn keep_open(&self, scope: &CommitScope, id: u64) {
        if self.keeps_nothing() {
            return;
        }
        let state = self.persistence();
        if let Some(open) = state.opens.get(&id) {
            put(scope, open, state.open_change(open).into_iter().collect());
        }
    }

    /// The lease changed.
    pub(crate) fn keep_lease(&self, scope: &CommitScope, client: ClientId, lease: u128) {
        if self.keeps_nothing() {
            return;
        }
        if let Some((open, change)) = self.persistence().lease_change(client.0, lease) {
            put(scope, open, vec![change]);
        }
    }

    /// The open's file was renamed, or is to be deleted or not: all its persistent opens keep that.
    pub(crate) fn keep_file(&self, scope: &CommitScope, open: &SmbOpen) {
        let Some(file) = open.file().filter(|_| !self.keeps_nothing()) else { return };
        let state = self.persistence();
        let ids = state.files.get(&file.file_id()).into_iter().flatten();
        put_all(
            scope,
            ids.filter_map(|id| state.opens.get(id)).filter_map(|o| Some((o.as_ref(), state.open_change(o)?))),
        );
    }

    /// Whether that takes long.
    pub(crate) fn keeps_many(&self, file: &Open) -> bool {
        !self.keeps_nothing()
            && self.persistence().files.get(&file.file_id()).is_some_and(|ids| ids.len() > INLINE_KEPT_MAX)
    }

    /// What these opens, of one holder, cache, or their break, changed and nobody is told. A lease is kept once, however many opens it has.
    pub(crate) fn keep_cache(&self, scope: &CommitScope, opens: &[OpenId]) {
        if self.keeps_nothing() {
            return;
        }
        let state = self.persistence();
        let Some(open) = opens.iter().find_map(|id| state.opens.get(&id.0)) else { return };
        let change = match open.lease_key {
            Some(lease) => state.lease_change(open.client.0, lease),
            None => state.open_change(open).map(|change| (open.as_ref(), change)),
        };
        put_all(scope, change.into_iter());
    }

    /// The open is closed: nothing of it is kept any more.
    pub(crate) fn forget_kept(&self, scope: &CommitScope, open: &Arc<SmbOpen>) {
        if !open.is_persistent() {
            return;
        }
        let id = open.id.persistent;
        let mut changes = vec![HandleChange::Remove { key: open_key(id) }];
        {
            let mut state = self.persistence();
            if state.opens.remove(&id).is_none() {
                return;
            }
            self.persistence.count.fetch_sub(1, Ordering::AcqRel);
            if let Some(file) = open.file()
                && let Some(ids) = state.files.get_mut(&file.file_id())
            {
                ids.retain(|i| *i != id);
                if ids.is_empty() {
                    state.files.remove(&file.file_id());
                }
            }
            if let Some(lease) = open.lease_key {
                let of = (open.client.0, lease);
                let left = state.leases.get_mut(&of).map_or(0, |ids| {
                    ids.retain(|i| *i != id);
                    ids.len()
                });
                if left == 0 {
                    state.leases.remove(&of);
                    changes.push(HandleChange::Remove { key: lease_key(of.0, of.1) });
                }
            }
        }
        // A lock that is being taken holds this while it calls the table, and what the table tells comes here.
        let held = {
            let kept = open.kept_locks.lock();
            changes.extend(kept.removal(id));
            kept.held_count()
        };
        self.persistence().forget_usage(&open.owner.user, 1, held);
        put(scope, open, changes);
    }

    /// Persistent opens of this server, for administration and tests.
    pub fn persistent_opens(&self) -> usize {
        self.persistence().opens.len()
    }

    /// A share that is gone, by its name in lower case, is taken up anew when it is there again: meanwhile another node may have
    /// served it.
    pub(crate) fn forget_restored(&self, is_there: impl Fn(&str) -> bool) {
        self.persistence().restored.retain(|name| is_there(name));
    }

    /// Takes up what the handle store of a continuously available share keeps: once for each share, and before anybody
    /// may connect to it, so that nobody gets between.
    pub(crate) fn restore_handles(self: &Arc<Trees>, share: &Arc<Share>, now: Instant) {
        let Some(handles) = share.fs.as_ref().filter(|_| share.continuously_available).and_then(|f| f.handles()) else {
            return;
        };
        if !self.persistence().restored.insert(share.name.to_lowercase()) {
            return;
        }
        match handles.load() {
            Ok(all) => self.restore_share(share, Found::read(all), now),
            Err(error) => tracing::error!(share = %share.name, %error, "kept handles cannot be read"),
        }
    }

    /// Removes what is kept of a share that is not continuously available any more, but for the opens of this run. Once for each share:
    /// later it would protect, and delete, files that others have used since.
    pub(crate) fn drop_handles(&self, share: &Share) {
        let Some(fs) = share.fs.as_ref().filter(|_| !share.continuously_available) else { return };
        let Some(handles) = fs.handles() else { return };
        if !self.persistence().restored.insert(share.name.to_lowercase()) {
            return;
        }
        let found = match handles.load() {
            Ok(all) => Found::read(all),
            Err(error) => return tracing::error!(share = %share.name, %error, "kept handles cannot be read"),
        };
        let scope = CommitScope::begin();
        let kept = found.opens.iter().filter(|k| k.share.eq_ignore_ascii_case(&share.name));
        for kept in kept.filter(|k| !self.is_open(k)) {
            tracing::warn!(share = %share.name, file = %kept.name,
                "a persistent handle is given up: the share is not continuously available any more");
            scope.put(fs, found.removal(kept.open.id.0));
        }
        if let Err(error) = scope.commit() {
            tracing::error!(share = %share.name, %error, "handles that were given up may come back");
        }
    }

    fn restore_share(self: &Arc<Trees>, share: &Arc<Share>, mut found: Found, now: Instant) {
        let scope = CommitScope::begin();
        let (mut restored, mut lost) = (0, 0);
        found.opens.retain(|kept| kept.share.eq_ignore_ascii_case(&share.name) && !self.is_open(kept));
        let mut renumbered = self.renumber_taken(&mut found);
        let waits = !renumbered.is_empty();
        for kept in &found.opens {
            let id = kept.open.id.0;
            let durability = Durability::Persistent { timeout: kept.timeout };
            let state = OpenState::disconnected(durability, now);
            match self.restore_open(share, kept, &found, state, scope.at(now)) {
                Ok(()) => {
                    restored += 1;
                    self.keep_renumbered(&scope, id, &mut renumbered);
                }
                Err(error) => {
                    lost += 1;
                    tracing::warn!(share = %share.name, file = %kept.name, %error, "a persistent handle is given up");
                    let mut gone = found.removal(id);
                    gone.extend(renumbered.remove(&id).into_iter().flat_map(Renumbered::given_up));
                    if let Some(fs) = &share.fs {
                        scope.put(fs, gone);
                    }
                }
            }
        }
        if waits && let Err(error) = scope.commit() {
            tracing::error!(share = %share.name, %error, "new ids of persistent handles are not kept");
        }
        if restored + lost > 0 {
            tracing::info!(share = %share.name, restored, lost, "persistent handles wait for their clients");
        }
    }

    /// What was granted before counts, whatever the bounds are now.
    fn count_restored(&self, file: &Open, name: &str) -> OpenUsage {
        let count = |kind, cost| {
            let charge = self.usage.account(kind, file.who(), None);
            charge.force(cost);
            charge
        };
        let descriptors = file.fs().store().takes_descriptors().then(|| count(Kind::DescriptorOpens, 1));
        let keep = |open| self.usage.directories.keep(open, &**file.node(), false, true).ok().flatten();
        let directories = descriptors.as_ref().and_then(keep);
        OpenUsage { descriptors, directories, ..OpenUsage::of(count(Kind::Opens, open_cost(name))) }
    }

    fn restore_open(
        self: &Arc<Trees>,
        share: &Arc<Share>,
        kept: &Kept,
        found: &Found,
        mut state: OpenState,
        cause: Cause<'_>,
    ) -> Result<(), NotDone> {
        let id = kept.open.id.0;
        let persistent = matches!(state.durability, Durability::Persistent { .. });
        let has_guid = !matches!(state.durability, Durability::V1 { .. });
        let fs = share.fs.as_ref().ok_or(StoreError::NotFound)?;
        let client = kept.open.client.0;
        let lease_key = match kept.open.cache {
            KeptCache::Lease { key } => Some(key),
            KeptCache::Oplock { .. } => None,
        };
        let lease = lease_key.and_then(|key| found.leases.get(&(client, key)));
        let locks = found.locks_of(id);
        let mut ranges = Vec::new();
        for ((offset, len, exclusive), count) in &locks.held {
            let range = LockRange { offset: *offset, len: *len, exclusive: *exclusive };
            ranges.extend((0..*count).map(|_| range));
        }
        let _opening = self.begin_open_as(cause.scope, kept.open.id);
        let file = fs.restore(&RestoreOpen {
            open: &kept.open,
            lease,
            locks: &ranges,
            owner: &self.owner,
            durable: share.is_durable(),
            persistent,
            cause,
        })?;
        for (bucket, number) in found.sequences.get(&id).into_iter().flatten() {
            if let Some(slot) = state.lock_sequence.get_or_insert_with(|| Box::new([None; 65])).get_mut(*bucket) {
                *slot = Some(*number);
            }
        }
        let usage = self.count_restored(&file, &kept.name);
        let open = Arc::new(SmbOpen {
            id: FileId { persistent: id, volatile: id },
            owner: file.who().clone(),
            object: Object::File(file),
            share: share.clone(),
            client: kept.open.client,
            create_guid: has_guid.then_some(kept.create_guid),
            lease_key,
            app_instance: kept.app_instance,
            action: kept.action,
            create_options: kept.create_options,
            name: kept.name.clone(),
            desired_access: kept.desired_access,
            state: Mutex::new(state),
            position: AtomicU64::new(0),
            quota_index: AtomicU64::new(0),
            ea_index: AtomicU64::new(0),
            mode: AtomicU32::new(kept.mode),
            kept_locks: Mutex::new(if persistent { locks } else { KeptLocks::default() }),
            work: Work::default(),
            usage,
        });
        if persistent {
            let held = open.kept_locks.lock().held_count();
            self.persistence().add(&open, held);
            self.persistence.count.fetch_add(1, Ordering::AcqRel);
        }
        self.add_open(&open);
        Ok(())
    }

    /// Its sessions have ended, and another will go on: closes what does not outlive it, and lets go of what does as it is.
    pub(crate) fn stop(self: &Arc<Trees>) {
        self.keep_durable(|_| true);
        for open in self.opens() {
            if !open.is_persistent() {
                self.close_open(&CommitScope::begin(), &open);
            }
        }
        let kept: Vec<_> = self.persistence().opens.drain().map(|(_, open)| open).collect();
        for share in self.shares() {
            let scope = CommitScope::begin();
            share.fs.iter().for_each(|fs| scope.join(fs, share.is_durable()));
            if let Err(error) = scope.commit() {
                tracing::error!(share = %share.name, %error, "the last changes could not be brought to stable storage");
            }
        }
        if !kept.is_empty() {
            tracing::info!(handles = kept.len(), "persistent handles are kept for the next start");
        }
        // Dropping one would close it, and delete what it is to delete.
        kept.into_iter().for_each(std::mem::forget);
    }
}

/// By the name it was opened with, or the one that its file has now; `name` is in lower case.
pub(crate) fn is_named(open: &SmbOpen, name: &str) -> bool {
    if open.name.to_lowercase() == *name {
        return true;
    }
    let Some(file) = open.file() else { return false };
    let mut path = file.node().path().join("\\");
    if let Some(stream) = file.stream() {
        path = format!("{path}:{stream}");
    }
    path.to_lowercase() == name.trim_end_matches(":$data")
}

/// Changes of several opens, at once for each store.
fn put_all<'a>(scope: &CommitScope, changes: impl Iterator<Item = (&'a SmbOpen, HandleChange)>) {
    let mut stores: Vec<(&SmbOpen, Vec<HandleChange>)> = Vec::new();
    let same = |a: &SmbOpen, b: &SmbOpen| match (handles(a), handles(b)) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    };
    for (open, change) in changes {
        match stores.iter_mut().find(|(other, _)| same(other, open)) {
            Some((_, changes)) => changes.push(change),
            None => stores.push((open, vec![change])),
        }
    }
    stores.into_iter().for_each(|(open, changes)| put(scope, open, changes));
}

fn path_units(path: &[String]) -> usize {
    path.iter().map(|c| name_units(c) + 1).sum()
}
