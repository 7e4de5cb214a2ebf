//! The state directory: who the server is, its users, groups, shares and settings, in one transactional
//! store that survives kill -9. One daemon for each directory. Refuses plain passwords and live state
//! (sessions, opens), which belong to the servers.
//!
//! Readers take an `Arc<Snapshot>` and never wait for the disk. A change edits a copy of the snapshot; what
//! differs is written in one durable transaction, and only then do readers see it.

mod disk;
mod edit;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use arden_lock::{Mutex, RwLock, ranks};

use crate::{
    error::{AdminError, ErrorKind, Result},
    model::{GroupRecord, Settings, Share, UserRecord},
    names, secret,
    storage::{DiskRecord, PoolRecord},
    volume::VolumeRecord,
};

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

#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    current: RwLock<Arc<Snapshot>, ranks::StateSnapshot>,
    /// Held over a whole change: changes are one after another.
    disk: Mutex<disk::Disk, ranks::StateChange>,
    /// Its lock is what makes this daemon the only one.
    _lock: File,
}

impl State {
    /// Opens the directory, makes it when it is not there, and takes its lock.
    pub fn open(dir: &Path) -> Result<State> {
        let io = |e: std::io::Error| {
            let hint = "check the path and its permissions, or choose another directory with --state";
            AdminError::failed(format!("state directory {}: {e}", dir.display()), hint)
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).map_err(io)?;
        let lock = take_lock(dir)?;
        let (disk, snapshot) = disk::Disk::open(&dir.join("state.redb"))?;
        let state = State {
            dir: dir.to_path_buf(),
            current: RwLock::new(Arc::new(snapshot)),
            disk: Mutex::new(disk),
            _lock: lock,
        };
        if state.snapshot().machine_sid.is_empty() {
            state.change(|s| {
                *s = Snapshot::fresh()?;
                Ok(())
            })?;
        }
        Ok(state)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the REST API listens.
    pub fn socket(&self) -> PathBuf {
        socket_path(&self.dir)
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.read().clone()
    }

    /// Makes one change: all of it is durable when this returns Ok, none of it otherwise. Blocks on the disk.
    pub fn change<T>(&self, edit: impl FnOnce(&mut Snapshot) -> Result<T>) -> Result<T> {
        let mut disk = self.disk.lock();
        let old = self.snapshot();
        let mut new = (*old).clone();
        let out = edit(&mut new)?;
        if new != *old {
            disk.commit(&old, &new)?;
            *self.current.write() = Arc::new(new);
        }
        Ok(out)
    }
}

pub fn socket_path(dir: &Path) -> PathBuf {
    dir.join("api.sock")
}

fn take_lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let failed = |e: std::io::Error| AdminError::failed(format!("{}: {e}", path.display()), "");
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    if let Err(e) = rustix::fs::flock(&file, how) {
        if e != rustix::io::Errno::WOULDBLOCK {
            return Err(failed(e.into()));
        }
        let mut pid = String::new();
        file.read_to_string(&mut pid).map_err(failed)?;
        return Err(AdminError::new(
            ErrorKind::Conflict,
            format!("another daemon (process {}) uses the state directory {}", pid.trim(), dir.display()),
            "stop it first, or give this one its own directory with --state",
        ));
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
}

impl Snapshot {
    /// What a file without content means.
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
