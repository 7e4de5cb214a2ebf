//! An open, [MS-SMB2] 3.3.1.10: of a file or of a pipe.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64},
    },
    time::{Duration, Instant},
};

use arden_auth::Token;
use arden_lock::{Mutex, ranks};
use arden_store::{
    fs::{CacheGrant, ClientId, OplockLevel, lease_state},
    table::Open,
};
use arden_wire::smb2::{FileId, create::oplock};

use crate::{
    base::usage::OpenUsage,
    model::{KeptLocks, SessionTables, share::Share},
};

/// A named pipe.
pub struct PipeState {
    /// The server's end, held while a call runs: that may be the one that closes this pipe, which therefore does not take it.
    pub end: Mutex<Box<dyn arden_rpc::Pipe>, ranks::Pipe>,
    /// The reads that wait for it to say something.
    pub readers: Mutex<Vec<arden_store::fs::WaitId>, ranks::PipeReaders>,
}

pub enum Object {
    File(Arc<Open>),
    Pipe(PipeState),
}

/// Why an open outlives its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    None,
    V1 {
        timeout: Duration,
    },
    V2 {
        timeout: Duration,
    },
    /// LMR_REQUEST_RESILIENCY.
    Resilient {
        timeout: Duration,
    },
    /// Also outlives the server, [MS-SMB2] 3.3.1.10 IsPersistent.
    Persistent {
        timeout: Duration,
    },
}

impl Durability {
    pub fn timeout(self) -> Option<Duration> {
        match self {
            Durability::None => None,
            Durability::V1 { timeout }
            | Durability::V2 { timeout }
            | Durability::Resilient { timeout }
            | Durability::Persistent { timeout } => Some(timeout),
        }
    }
}

/// What of an open changes, [MS-SMB2] 3.3.1.10.
pub struct OpenState {
    /// None while it is disconnected.
    pub session: Option<Weak<SessionTables>>,
    pub tree_id: u32,
    pub durability: Durability,
    /// When a disconnected open is given up.
    pub expires: Option<Instant>,
    /// It is about to be closed: nobody takes it up any more.
    pub given_up: bool,
    /// The client was asked to give its oplock up and has not answered.
    pub breaking: bool,
    pub channel_sequence: u16,
    pub outstanding: u64,
    pub outstanding_before: u64,
    /// Sequence number by bucket, [MS-SMB2] 3.3.1.10 LockSequenceArray; index 0 is unused.
    pub lock_sequence: Option<Box<[Option<u8>; 65]>>,
    /// May the create be replayed? Until the first other operation on the handle.
    pub replay_eligible: bool,
    pub resume_key: bool,
}

/// [MS-SMB2] 3.3.1.10.
pub struct SmbOpen {
    pub id: FileId,
    pub object: Object,
    pub share: Arc<Share>,
    pub owner: Arc<Token>,
    /// Of the session that opened it.
    pub client: ClientId,
    pub create_guid: Option<u128>,
    pub lease_key: Option<u128>,
    pub app_instance: Option<(u128, Option<(u64, u64)>)>,
    pub action: arden_store::fs::CreateAction,
    pub create_options: u32,
    /// The name as the client sent it, for durable reconnects and administration.
    pub name: String,
    pub desired_access: u32,
    pub state: Mutex<OpenState, ranks::OpenState>,
    /// FilePositionInformation and FileModeInformation, which the protocol keeps for its client.
    pub position: AtomicU64,
    /// Open.CurrentQuotaIndex, from 0.
    pub quota_index: AtomicU64,
    /// Open.CurrentEaIndex, from 0.
    pub ea_index: AtomicU64,
    pub mode: AtomicU32,
    /// Byte-range locks of a persistent open, as they are kept. Held while the table is asked.
    pub(crate) kept_locks: Mutex<KeptLocks, ranks::KeptLocks>,
    /// Requests on this handle that run on threads of their own; a close comes after them.
    pub work: Work,
    /// What it holds of the server.
    pub usage: OpenUsage,
}

/// Counts work in progress, and keeps what comes after it. Nobody waits for it on a thread.
#[derive(Default)]
pub struct Work(Mutex<WorkState, ranks::Work>);

#[derive(Default)]
struct WorkState {
    count: usize,
    after: Vec<Box<dyn FnOnce() + Send>>,
}

/// A request that works on an open, until it is dropped.
pub struct Working(Arc<SmbOpen>);

impl Working {
    pub fn on(open: &Arc<SmbOpen>) -> Working {
        open.work.0.lock().count += 1;
        Working(open.clone())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let after = {
            let mut work = self.0.work.0.lock();
            work.count -= 1;
            if work.count == 0 { std::mem::take(&mut work.after) } else { Vec::new() }
        };
        after.into_iter().for_each(|go_on| go_on());
    }
}

impl SmbOpen {
    pub fn file(&self) -> Option<&Arc<Open>> {
        match &self.object {
            Object::File(open) => Some(open),
            Object::Pipe(_) => None,
        }
    }
    pub fn is_persistent(&self) -> bool {
        matches!(self.state.lock().durability, Durability::Persistent { .. })
    }
    /// Whether closing it takes longer than a thread should be kept that serves others.
    pub fn closes_long(&self) -> bool {
        self.file().is_some_and(|file| file.fs().closing_takes_long(file))
    }
    pub fn has_work(&self) -> bool {
        self.work.0.lock().count > 0
    }
    /// Calls `go_on` when nothing is in progress: now, or by the one that ends the last work.
    pub fn after_work(&self, go_on: Box<dyn FnOnce() + Send>) {
        let mut work = self.work.0.lock();
        if work.count > 0 {
            work.after.push(go_on);
            return;
        }
        drop(work);
        go_on();
    }
    pub fn session(&self) -> Option<Arc<SessionTables>> {
        self.state.lock().session.as_ref().and_then(Weak::upgrade)
    }
}

impl OpenState {
    pub fn new(session: &Arc<SessionTables>, tree_id: u32, channel_sequence: u16) -> OpenState {
        OpenState {
            session: Some(Arc::downgrade(session)),
            tree_id,
            durability: Durability::None,
            expires: None,
            given_up: false,
            channel_sequence,
            outstanding: 0,
            outstanding_before: 0,
            breaking: false,
            lock_sequence: None,
            replay_eligible: false,
            resume_key: false,
        }
    }

    /// Of an open that waits for its client since `now`.
    pub fn disconnected(durability: Durability, now: Instant) -> OpenState {
        OpenState {
            session: None,
            tree_id: 0,
            durability,
            expires: durability.timeout().map(|t| now + t),
            given_up: false,
            channel_sequence: 0,
            outstanding: 0,
            outstanding_before: 0,
            breaking: false,
            lock_sequence: None,
            replay_eligible: true,
            resume_key: false,
        }
    }
}

pub fn wire_level(level: OplockLevel) -> u8 {
    match level {
        OplockLevel::None => oplock::NONE,
        OplockLevel::LevelII => oplock::LEVEL_II,
        OplockLevel::Exclusive => oplock::EXCLUSIVE,
        OplockLevel::Batch => oplock::BATCH,
    }
}

/// Does the open hold what a durable handle needs: a batch oplock or a lease with handle caching?
pub fn caches_handle(cache: CacheGrant) -> bool {
    match cache {
        CacheGrant::Oplock(level) => level == OplockLevel::Batch,
        CacheGrant::Lease { state, .. } => state & lease_state::HANDLE != 0,
    }
}
