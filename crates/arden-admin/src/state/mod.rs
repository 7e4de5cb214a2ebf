//! The state: the server's identity, users, groups, shares, settings, pools, volumes and floating addresses, in a transactional
//! [`StateStore`] that survives kill -9: the file of one daemon, or a store that the daemons of a cluster share. Holds
//! no plain passwords and no live state (sessions, opens), which belongs to the servers.
//!
//! Readers take an `Arc<Snapshot>` and never wait for the store. A change edits a copy of the snapshot. The difference
//! is written in one durable transaction, and readers see it afterwards. When a transaction of another daemon came
//! between, the snapshot is read again and the edit runs again.

mod addresses;
mod directory;
mod edit;
mod file;
mod memory;
mod records;
mod store;

use std::{collections::BTreeMap, sync::Arc};

use arden_lock::{Mutex, RwLock, ranks};
use tokio::sync::watch;

use crate::{
    address::AddressRecord,
    error::{AdminError, ErrorKind, Result},
    model::{GroupRecord, Settings, Share, UserRecord},
    names, secret,
    storage::{DiskRecord, PoolRecord},
    volume::VolumeRecord,
};

pub use directory::{StateDirectory, socket_path};
pub use file::RedbStore;
pub use memory::MemoryStore;
pub use store::{Change, Commit, Contents, Records, Revision, StateStore, Table};

/// The SID of Everyone, written `everyone` in grants.
pub const EVERYONE_SID: &str = "S-1-1-0";
/// The first RID of new accounts. RIDs below it are well-known ones, [MS-DTYP] 2.4.2.4.
pub const FIRST_RID: u32 = 1000;

/// All of the state at one revision. Keys of maps are made by `names::key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// `S-1-5-21-x-y-z`. The SIDs of users and groups are this SID with a RID.
    pub machine_sid: String,
    pub server_guid: u128,
    /// Never falls: a RID belongs to one account for ever.
    pub next_rid: u32,
    pub users: BTreeMap<String, UserRecord>,
    pub groups: BTreeMap<String, GroupRecord>,
    pub shares: BTreeMap<String, Share>,
    pub settings: Settings,
    pub pools: BTreeMap<String, PoolRecord>,
    /// Keyed by path.
    pub disks: BTreeMap<String, DiskRecord>,
    pub volumes: BTreeMap<String, VolumeRecord>,
    /// Keyed by the address, without its prefix.
    pub addresses: BTreeMap<String, AddressRecord>,
}

/// Tries of one change when other daemons change the state at the same time.
pub const CHANGE_TRIES_MAX: u32 = 32;

/// The state of one daemon.
#[derive(Debug)]
pub struct State {
    store: Arc<dyn StateStore>,
    current: RwLock<Arc<Snapshot>, ranks::StateSnapshot>,
    /// The revision of `current`. The lock is held over a whole change, so that changes of this daemon follow one
    /// another.
    change: Mutex<Revision, ranks::StateChange>,
}

impl State {
    /// Opens the state in the file of the directory.
    ///
    /// # Errors
    /// Failed, when the file cannot be read.
    pub fn open(directory: &Arc<StateDirectory>) -> Result<State> {
        State::on(Arc::new(RedbStore::open(directory)?))
    }

    /// Opens the state in `store`. A store without an identity gets a new one.
    ///
    /// # Errors
    /// Failed, when the store cannot be read.
    pub fn on(store: Arc<dyn StateStore>) -> Result<State> {
        let contents = store.read()?;
        let snapshot = Arc::new(records::snapshot(&contents.records)?);
        let state = State { store, current: RwLock::new(snapshot), change: Mutex::new(contents.revision) };
        if state.snapshot().machine_sid.is_empty() {
            state.change(|s| {
                if s.machine_sid.is_empty() {
                    *s = Snapshot::fresh()?;
                }
                Ok(())
            })?;
        }
        Ok(state)
    }

    /// A new server's state in memory, which is lost with the process.
    ///
    /// # Errors
    /// Failed, when the system has no randomness.
    pub fn in_memory() -> Result<State> {
        State::on(Arc::new(MemoryStore::default()))
    }

    /// The newest snapshot that this daemon knows. Never waits.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.read().clone()
    }

    /// Makes one change, which is durable when this returns Ok. Blocks on the store. `edit` runs under a lock: it only
    /// computes, calls no server and takes no lock. When a change of another daemon came between, it runs again on a
    /// snapshot with that change; also when it failed or changed nothing.
    ///
    /// # Errors
    /// The error of `edit`, and nothing is changed; conflict after [`CHANGE_TRIES_MAX`] tries; failed, when the store
    /// does not say whether the change is durable.
    pub fn change<T>(&self, mut edit: impl FnMut(&mut Snapshot) -> Result<T>) -> Result<T> {
        let mut revision = self.change.lock();
        let mut is_newest = false;
        for _ in 0..CHANGE_TRIES_MAX {
            let old = self.snapshot();
            let mut new = (*old).clone();
            let out = edit(&mut new);
            if out.is_err() || new == *old {
                // It may be so by what another daemon has changed since. A store that cannot be read does not say otherwise.
                if !std::mem::replace(&mut is_newest, true) && self.reload(&mut revision).unwrap_or(false) {
                    continue;
                }
                return out;
            }
            match self.store.commit(*revision, &records::difference(&old, &new)?)? {
                Commit::Done(made) => {
                    *revision = made;
                    *self.current.write() = Arc::new(new);
                    return out;
                }
                Commit::Outdated => self.load(&mut revision)?,
            }
        }
        tracing::warn!(tries = CHANGE_TRIES_MAX, "a change of the state is given up: others change it all the time");
        Err(AdminError::new(ErrorKind::Conflict, "the state is changed by others at the same time", "try again"))
    }

    /// All records of the newest snapshot, as the changes that make them in an empty store.
    ///
    /// # Errors
    /// Failed, when a record cannot be encoded.
    pub fn records(&self) -> Result<Vec<Change>> {
        records::difference(&Snapshot::empty(), &self.snapshot())
    }

    /// Reads the changes of other daemons, and says which revision the snapshot is of by then: a change of this daemon's own may have
    /// brought others' with it. Blocks on the store.
    ///
    /// # Errors
    /// Failed, when the store cannot be read; the snapshot then stays as it was.
    pub fn refreshed(&self) -> Result<Revision> {
        let mut revision = self.change.lock();
        self.reload(&mut revision)?;
        Ok(*revision)
    }

    fn reload(&self, revision: &mut Revision) -> Result<bool> {
        let is_new = self.store.newest()? != *revision;
        if is_new {
            self.load(revision)?;
        }
        Ok(is_new)
    }

    fn load(&self, revision: &mut Revision) -> Result<()> {
        let contents = self.store.read()?;
        let snapshot = records::snapshot(&contents.records)?;
        *self.current.write() = Arc::new(snapshot);
        *revision = contents.revision;
        Ok(())
    }

    /// Notifies of changes by any daemon, this one included. [`State::refreshed`] then reads those of others.
    pub fn watch(&self) -> watch::Receiver<Revision> {
        self.store.watch()
    }
}

impl Snapshot {
    /// The snapshot of a store without records.
    fn empty() -> Snapshot {
        Snapshot {
            machine_sid: String::new(),
            server_guid: 0,
            next_rid: FIRST_RID,
            users: BTreeMap::new(),
            groups: BTreeMap::new(),
            shares: BTreeMap::new(),
            settings: Settings::default(),
            pools: BTreeMap::new(),
            disks: BTreeMap::new(),
            volumes: BTreeMap::new(),
            addresses: BTreeMap::new(),
        }
    }

    /// The state of a new server: its identity and the built-in groups.
    fn fresh() -> Result<Snapshot> {
        let r: [u8; 28] = secret::random()?;
        let word = |i: usize| u32::from_le_bytes([r[i], r[i + 1], r[i + 2], r[i + 3]]);
        let guid: [u8; 16] = secret::random()?;
        let mut s = Snapshot::empty();
        s.machine_sid = format!("S-1-5-21-{}-{}-{}", word(0), word(4), word(8));
        // A version 4 UUID, RFC 9562 5.4.
        s.server_guid = u128::from_be_bytes(guid) & !(0xf << 76) & !(3 << 62) | 4 << 76 | 2 << 62;
        for (name, rid, comment) in [
            ("Administrators", 544, "Full control of the server"),
            ("Users", 545, "Every user of this server"),
            ("Backup Operators", 551, "May read and restore every file"),
        ] {
            let sid = format!("S-1-5-32-{rid}");
            let group = GroupRecord { name: name.into(), comment: comment.into(), sid, members: Vec::new() };
            s.groups.insert(names::key(name), group);
        }
        Ok(s)
    }

    /// The pool with this name, or with this identity.
    pub fn pool_named(&self, name: &str) -> Option<&PoolRecord> {
        self.pools.get(&names::key(name)).or_else(|| self.pools.values().find(|pool| pool.id == name))
    }

    /// The NetBIOS name: the setting or, when it is empty, the host's name.
    pub fn server_name(&self) -> String {
        if self.settings.server_name.is_empty() { names::host_server_name() } else { self.settings.server_name.clone() }
    }

    /// ServerGuid in the form of [MS-DTYP] 2.3.4.3.
    pub fn server_guid_text(&self) -> String {
        let h = format!("{:032x}", self.server_guid);
        format!("{}-{}-{}-{}-{}", &h[..8], &h[8..12], &h[12..16], &h[16..20], &h[20..])
    }

    /// The SID of a user, as text.
    pub fn user_sid(&self, user: &UserRecord) -> String {
        format!("{}-{}", self.machine_sid, user.rid)
    }
}

#[cfg(test)]
mod tests;
