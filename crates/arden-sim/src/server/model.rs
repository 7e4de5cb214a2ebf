//! What clients of the simulated server may see: contents of files, byte-range locks, share modes and leases, with
//! requests whose outcome nobody knows. Written from [MS-SMB2] and [MS-FSA]; shares no code with the server.
//! Refuses to send requests: `world` does, and asks here what their answers may be.

use std::{collections::BTreeMap, time::Duration};

use arden_wire::smb2::FileId;

pub const FILES: usize = 3;
/// Parts of a file that are read, written and locked as one.
pub const SLOTS: u64 = 6;
pub const SLOT_BYTES: u64 = 4096;
/// SMB2_DHANDLE without a time-out gets this of the server.
pub const DURABLE_TIMEOUT: Duration = Duration::from_secs(60);

pub const READ: u32 = 1;
pub const WRITE: u32 = 2;
pub const DELETE: u32 = 4;

/// One slot's content: versions that a read may return.
#[derive(Debug, Clone)]
pub struct Slot {
    /// The last version that was acknowledged.
    pub certain: u32,
    /// Versions whose write was sent and not acknowledged.
    pub possible: Vec<u32>,
}

impl Slot {
    pub fn allows(&self, version: u32) -> bool {
        version == self.certain || self.possible.contains(&version)
    }
}

#[derive(Debug, Clone)]
pub struct Lock {
    pub exclusive: bool,
    /// False: its LOCK or UNLOCK was sent and not answered.
    pub certain: bool,
}

/// An open that was granted, or may have been.
#[derive(Debug, Clone)]
pub struct Handle {
    pub client: usize,
    pub file: usize,
    pub guid: u128,
    /// None: its CREATE was sent and not answered.
    pub id: Option<FileId>,
    pub access: u32,
    pub share: u32,
    pub lease: Option<u128>,
    pub locks: BTreeMap<u64, Lock>,
    /// The last LockSequenceNumber, of bucket 1.
    pub sequence: u32,
    /// Since when its client is away.
    pub absent_since: Option<Duration>,
    /// False: its CREATE or CLOSE was sent and not answered.
    pub certain: bool,
}

/// What a client knows of a lease of its own.
#[derive(Debug, Clone, Default)]
pub struct Lease {
    /// As letters, "RWH".
    pub state: String,
    /// Caching that has to be gone when the client is back, or when it has acknowledged the break that it owes an
    /// answer to, because others did meanwhile what breaks it.
    pub lost: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Success,
    Failure,
    Either,
}

impl Expect {
    fn of(certain: bool, possible: bool) -> Expect {
        match (certain, possible) {
            (true, _) => Expect::Failure,
            (false, true) => Expect::Either,
            (false, false) => Expect::Success,
        }
    }
}

#[derive(Default)]
pub struct Model {
    pub slots: Vec<Vec<Slot>>,
    pub handles: Vec<Handle>,
    /// Opens that ran out of time since the last commit. Nobody was told, so that after a crash they may be there again.
    pub expired: Vec<Handle>,
    /// By client and file: each client has one lease key for a file.
    pub leases: BTreeMap<(usize, usize), Lease>,
    pub next_version: u32,
}

pub fn lease_key(client: usize, file: usize) -> u128 {
    ((client as u128 + 1) << 64) | (file as u128 + 1)
}

fn share_conflict(a: &Handle, b: &Handle) -> bool {
    a.access & !b.share != 0 || b.access & !a.share != 0
}

impl Model {
    pub fn new() -> Model {
        let slot = Slot { certain: 0, possible: Vec::new() };
        Model { slots: vec![vec![slot; SLOTS as usize]; FILES], ..Model::default() }
    }

    pub fn version(&mut self) -> u32 {
        self.next_version += 1;
        self.next_version
    }

    pub fn position(&self, guid: u128) -> Option<usize> {
        self.handles.iter().position(|h| h.guid == guid)
    }

    /// [MS-FSA] 2.1.5.1.2.2: may this open be granted beside the others?
    pub fn expect_open(&self, new: &Handle) -> Expect {
        let conflicting = |certain: bool| {
            let others = self.handles.iter().filter(|h| h.guid != new.guid && h.file == new.file);
            others.filter(|h| h.certain == certain).any(|h| share_conflict(h, new))
        };
        Expect::of(conflicting(true), conflicting(false))
    }

    /// Is the owner of an open of this file away, or may one be there that nobody knows of?
    pub fn has_absent(&self, file: usize) -> bool {
        self.handles.iter().any(|h| h.file == file && (h.absent_since.is_some() || !h.certain))
    }

    /// [MS-FSA] 2.1.5.8: may handle `h`, which holds no lock there, lock the slot?
    pub fn expect_lock(&self, h: usize, slot: u64, exclusive: bool) -> Expect {
        let me = &self.handles[h];
        let others = || self.handles.iter().enumerate().filter(|(i, o)| *i != h && o.file == me.file);
        let conflicts = |want: bool| {
            others().any(|(_, o)| {
                o.locks.get(&slot).is_some_and(|l| (l.certain && o.certain) == want && (l.exclusive || exclusive))
            })
        };
        Expect::of(conflicts(true), conflicts(false))
    }

    /// [MS-FSA] 2.1.4.10: may handle `h` read or write the slot?
    pub fn expect_data(&self, h: usize, slot: u64, writes: bool) -> Expect {
        let me = &self.handles[h];
        let conflicts = |want: bool| {
            let others = self.handles.iter().enumerate().filter(|(i, o)| *i != h && o.file == me.file);
            others
                .filter_map(|(_, o)| o.locks.get(&slot).map(|l| (l.certain && o.certain, l.exclusive)))
                .any(|(certain, exclusive)| certain == want && (writes || exclusive))
        };
        Expect::of(conflicts(true), conflicts(false))
    }

    /// Something was granted that excludes what may or may not have been there.
    pub fn resolve_locks(&mut self, h: usize, slot: u64, exclusive: bool) {
        let file = self.handles[h].file;
        for (i, o) in self.handles.iter_mut().enumerate() {
            let uncertain = |l: &Lock| !(l.certain && o.certain) && (l.exclusive || exclusive);
            if i != h && o.file == file && o.locks.get(&slot).is_some_and(uncertain) {
                o.locks.remove(&slot);
            }
        }
    }

    pub fn resolve_opens(&mut self, new: &Handle) {
        self.handles.retain(|h| h.certain || h.guid == new.guid || h.file != new.file || !share_conflict(h, new));
        self.forget_unused_leases();
    }

    /// Whoever caches what `by` (a lease key, or none) breaks: the client and the file of each.
    pub fn caching(&self, file: usize, by: Option<u128>, letter: char) -> Vec<(usize, usize)> {
        let breaks = |(&(client, f), lease): (&(usize, usize), &Lease)| {
            f == file && by != Some(lease_key(client, f)) && lease.state.contains(letter)
        };
        self.leases.iter().filter(|l| breaks((l.0, l.1))).map(|(k, _)| *k).collect()
    }

    /// A client's connection is gone.
    pub fn lose(&mut self, client: usize, now: Duration) {
        for h in self.handles.iter_mut().filter(|h| h.client == client && h.absent_since.is_none()) {
            h.absent_since = Some(now);
        }
    }

    /// The server was started: time-outs of all who are away begin again.
    pub fn restarted(&mut self, now: Duration) {
        for mut handle in std::mem::take(&mut self.expired) {
            handle.certain = false;
            self.handles.push(handle);
        }
        self.handles.iter_mut().for_each(|h| h.absent_since = Some(now));
    }

    /// Opens whose client stayed away too long are gone.
    pub fn expire(&mut self, now: Duration) {
        let stays = |h: &Handle| h.absent_since.is_none_or(|since| now < since + DURABLE_TIMEOUT);
        let (here, expired) = std::mem::take(&mut self.handles).into_iter().partition::<Vec<_>, _>(stays);
        self.handles = here;
        self.expired.extend(expired);
        self.forget_unused_leases();
    }

    /// A change was acknowledged: with its commit, opens that ran out of time before are gone for good.
    pub fn committed(&mut self) {
        self.expired.clear();
    }

    /// This server has no such open. One that ran out of time may still come back with the next server.
    pub fn forget(&mut self, guid: u128) {
        self.handles.retain(|h| h.guid != guid);
        self.forget_unused_leases();
    }

    /// A lease ends with its last open.
    pub fn forget_unused_leases(&mut self) {
        let handles = &self.handles;
        let used = |(client, file): &(usize, usize)| {
            let key = lease_key(*client, *file);
            handles.iter().any(|h| h.lease == Some(key))
        };
        self.leases.retain(|k, _| used(k));
    }
}
