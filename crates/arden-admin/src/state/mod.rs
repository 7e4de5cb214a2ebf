//! The state: who the server is, its users, groups, shares and settings, pools and volumes, in a transactional
//! [`StateStore`] that survives kill -9: a file of one daemon, or what the daemons of a cluster share. Refuses plain passwords
//! and live state (sessions, opens), which belong to the servers.
//!
//! Readers take an `Arc<Snapshot>` and never wait for the store. A change edits a copy of the snapshot; what differs is
//! written in one durable transaction, and only then do readers see it. When another daemon's transaction came between, the
//! snapshot is read anew and the edit runs again.

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

/// `S-1-1-0`, written `everyone` in grants.
pub const EVERYONE_SID: &str = "S-1-1-0";
/// RIDs below are the protocol's own, [MS-DTYP] 2.4.2.4.
pub const FIRST_RID: u32 = 1000;

/// All of the state at one moment. Maps are keyed by `names::key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// `S-1-5-21-x-y-z`; users and groups are this and a RID.
    pub machine_sid: String,
    pub server_guid: u128,
    /// Never goes back, so that a RID means one account for ever.
    pub next_rid: u32,
    pub users: BTreeMap<String, UserRecord>,
    pub groups: BTreeMap<String, GroupRecord>,
    pub shares: BTreeMap<String, Share>,
    pub settings: Settings,
    pub pools: BTreeMap<String, PoolRecord>,
    /// By path.
    pub disks: BTreeMap<String, DiskRecord>,
    pub volumes: BTreeMap<String, VolumeRecord>,
}

/// A change is tried this often when other daemons change the state at the same time.
pub const CHANGE_TRIES_MAX: u32 = 32;

/// The state as one daemon has it.
#[derive(Debug)]
pub struct State {
    store: Arc<dyn StateStore>,
    current: RwLock<Arc<Snapshot>, ranks::StateSnapshot>,
    /// The revision of `current`. Held over a whole change: those of this daemon are one after another.
    change: Mutex<Revision, ranks::StateChange>,
}

impl State {
    /// The state in the file of the directory.
    ///
    /// # Errors
    /// Failed, when it cannot be read.
    pub fn open(directory: &Arc<StateDirectory>) -> Result<State> {
        State::on(Arc::new(RedbStore::open(directory)?))
    }

    /// The state in `store`. In one without an identity a new server begins.
    ///
    /// # Errors
    /// Failed, when it cannot be read.
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

    /// A new server's state, which goes with the process.
    ///
    /// # Errors
    /// Failed, when the system has no randomness.
    pub fn in_memory() -> Result<State> {
        State::on(Arc::new(MemoryStore::default()))
    }

    /// The newest state that this daemon knows of. Never waits.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.read().clone()
    }

    /// Makes one change: all of it is durable when this returns Ok. Blocks on the store. `edit` runs under a lock and only
    /// computes: it asks no server and takes no lock. It runs again when another daemon's change came between, on a
    /// snapshot that has that change.
    ///
    /// # Errors
    /// Those of `edit`, after which nothing is changed; Conflict after [`CHANGE_TRIES_MAX`] tries; Failed, when the store does
    /// not say whether the change is durable.
    pub fn change<T>(&self, mut edit: impl FnMut(&mut Snapshot) -> Result<T>) -> Result<T> {
        let mut revision = self.change.lock();
        for _ in 0..CHANGE_TRIES_MAX {
            let old = self.snapshot();
            let mut new = (*old).clone();
            let out = edit(&mut new)?;
            if new == *old {
                return Ok(out);
            }
            match self.store.commit(*revision, &records::difference(&old, &new)?)? {
                Commit::Done(made) => {
                    *revision = made;
                    *self.current.write() = Arc::new(new);
                    return Ok(out);
                }
                Commit::Outdated => {
                    self.reload(&mut revision)?;
                }
            }
        }
        tracing::warn!(tries = CHANGE_TRIES_MAX, "a change of the state is given up: others change it all the time");
        Err(AdminError::new(ErrorKind::Conflict, "the state is changed by others at the same time", "try again"))
    }

    /// Takes over what other daemons have changed; whether there was something. Blocks on the store.
    ///
    /// # Errors
    /// Failed, when the store cannot be read; the snapshot stays what it was.
    pub fn refresh(&self) -> Result<bool> {
        self.reload(&mut self.change.lock())
    }

    fn reload(&self, revision: &mut Revision) -> Result<bool> {
        let contents = self.store.read()?;
        if contents.revision == *revision {
            return Ok(false);
        }
        let snapshot = records::snapshot(&contents.records)?;
        *self.current.write() = Arc::new(snapshot);
        *revision = contents.revision;
        Ok(true)
    }

    /// Tells of changes, by any daemon: then [`State::refresh`] has something to take over, or the change was this one's.
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
        }
    }

    /// A new server: its own identity and the built-in groups.
    fn fresh() -> Result<Snapshot> {
        let r: [u8; 28] = secret::random()?;
        let word = |i: usize| u32::from_le_bytes([r[i], r[i + 1], r[i + 2], r[i + 3]]);
        let guid: [u8; 16] = secret::random()?;
        let mut s = Snapshot::empty();
        s.machine_sid = format!("S-1-5-21-{}-{}-{}", word(0), word(4), word(8));
        // Version 4, [RFC 9562] 5.4.
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

    pub fn server_name(&self) -> String {
        if self.settings.server_name.is_empty() { names::host_server_name() } else { self.settings.server_name.clone() }
    }

    /// As [MS-DTYP] 2.3.4.3 writes a GUID.
    pub fn server_guid_text(&self) -> String {
        let h = format!("{:032x}", self.server_guid);
        format!("{}-{}-{}-{}-{}", &h[..8], &h[8..12], &h[12..16], &h[16..20], &h[20..])
    }

    pub fn user_sid(&self, user: &UserRecord) -> String {
        format!("{}-{}", self.machine_sid, user.rid)
    }
}

#[cfg(test)]
mod tests;
