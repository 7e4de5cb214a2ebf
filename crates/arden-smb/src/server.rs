//! The server's global tables, [MS-SMB2] 3.3.1.5: shares, sessions, opens, and the requests that wait.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_auth::UserDb;
use arden_store::{
    fs::{CacheGrant, ClientId, LeaseBreak, OpenId, OplockLevel, TableEvents, WaitId},
    table::OpenTable,
};
use arden_wire::{FileTime, NtStatus};
use parking_lot::{Mutex, RwLock};
use ring::rand::{SecureRandom, SystemRandom};

use crate::{
    chain::Chain,
    metrics::{Metrics, count},
    model::{Durability, Object, OpenState, Peer, Session, SessionState, SmbOpen},
    share::Share,
    time::Time,
};

/// Bounds of what clients can make the server hold. Each is logged when it is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub connections_max: usize,
    pub sessions_max: usize,
    pub sessions_per_connection_max: usize,
    pub trees_per_session_max: usize,
    pub opens_per_session_max: usize,
    /// Requests answered with STATUS_PENDING on one connection.
    pub pending_per_connection_max: usize,
    /// Channels bound to one session, [MS-SMB2] 3.3.5.5.
    pub channels_per_session_max: usize,
    pub chain_max: usize,
    /// A connection without a session is closed after this time.
    pub handshake_timeout: Duration,
    /// Longest time a disconnected durable handle is kept.
    pub durable_timeout_max: Duration,
    pub durable_timeout_default: Duration,
    pub resilient_timeout_max: Duration,
    /// Largest read, write and transaction, [MS-SMB2] 3.3.5.4.
    pub io_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 16_384,
            sessions_max: 65_536,
            sessions_per_connection_max: 4_096,
            trees_per_session_max: 4_096,
            opens_per_session_max: 65_536,
            pending_per_connection_max: 4_096,
            channels_per_session_max: 32,
            chain_max: 64,
            handshake_timeout: Duration::from_secs(30),
            durable_timeout_max: Duration::from_secs(300),
            durable_timeout_default: Duration::from_secs(60),
            resilient_timeout_max: Duration::from_secs(300),
            io_bytes_max: 8 << 20,
        }
    }
}

/// A message that took so long waited for the disk.
const SLOW_WRITE: Duration = Duration::from_millis(20);
/// How long the disk then counts as slow.
const SLOW_DISK: Duration = Duration::from_secs(5);

/// A network interface that clients may use for more channels, [MS-SMB2] 2.2.32.5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub address: std::net::IpAddr,
    pub speed_bits: u64,
    pub rss: bool,
}

/// What may be changed while the server runs; it holds for sessions and connections that come after, the lifetime for all.
#[derive(Debug, Default)]
pub struct Policy {
    pub signing_required: AtomicBool,
    /// Sessions have to be encrypted; clients that cannot are refused.
    pub encryption_required: AtomicBool,
    /// Sessions may have several connections.
    pub multichannel: AtomicBool,
    /// Sessions have to authenticate again after so many seconds; 0: never.
    pub session_lifetime_seconds: AtomicU64,
}

impl Policy {
    pub fn set_session_lifetime(&self, seconds: u64) {
        self.session_lifetime_seconds.store(seconds, Ordering::Relaxed);
    }
    pub fn session_lifetime(&self) -> Option<Duration> {
        let seconds = self.session_lifetime_seconds.load(Ordering::Relaxed);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }
    pub fn set(&self, signing_required: bool, encryption_required: bool, multichannel: bool) {
        self.signing_required.store(signing_required, Ordering::Relaxed);
        self.encryption_required.store(encryption_required, Ordering::Relaxed);
        self.multichannel.store(multichannel, Ordering::Relaxed);
    }
    pub fn requires_signing(&self) -> bool {
        self.signing_required.load(Ordering::Relaxed)
    }
    pub fn requires_encryption(&self) -> bool {
        self.encryption_required.load(Ordering::Relaxed)
    }
    pub fn allows_multichannel(&self) -> bool {
        self.multichannel.load(Ordering::Relaxed)
    }
}

pub struct ServerConfig {
    pub guid: u128,
    /// NetBIOS form, upper case.
    pub name: String,
    pub comment: String,
    pub policy: Policy,
    pub limits: Limits,
    pub users: Arc<dyn UserDb>,
    pub identity: Arc<arden_auth::ServerIdentity>,
    pub auth: arden_auth::AuthPolicy,
}

pub struct Server {
    pub config: ServerConfig,
    pub started: Instant,
    pub started_at: FileTime,
    pub metrics: Metrics,
    pub table: Arc<OpenTable>,
    pub throttle: Mutex<arden_auth::LogonThrottle>,
    pub interfaces: RwLock<Vec<Interface>>,
    shares: RwLock<HashMap<String, Arc<Share>>>,
    sessions: RwLock<HashMap<u64, Arc<Session>>>,
    /// GlobalOpenTable: durable and connected opens, by the table's id.
    opens: RwLock<HashMap<u64, Arc<SmbOpen>>>,
    /// Opens with a CreateGuid, for replay and DH2C: (client, guid) to open.
    by_create_guid: Mutex<HashMap<(u128, u128), u64>>,
    /// Creates with a CreateGuid that wait for somebody's oplock: their replays have to come later.
    pending_creates: Mutex<HashSet<(u128, u128)>>,
    waits: Mutex<HashMap<WaitId, Waiting>>,
    /// Breaks of opens that are still being registered.
    early_breaks: Mutex<HashMap<u64, EarlyBreak>>,
    deferred: Mutex<Vec<Deferred>>,
    wake_deferred: RwLock<Box<dyn Fn() + Send + Sync>>,
    peers: Mutex<HashMap<u64, Weak<Peer>>>,
    random: SystemRandom,
    /// Until when writes are kept off the reactor, in milliseconds since the start.
    pub(crate) slow_disk_until_ms: AtomicU64,
    pub(crate) persistence: crate::persist::Persistence,
    pub(crate) tokens: crate::offload::Tokens,
    next_id: AtomicU64,
}

/// A create that waits; the note goes with it.
pub struct PendingCreate {
    server: Arc<Server>,
    key: (u128, u128),
}

impl Drop for PendingCreate {
    fn drop(&mut self) {
        self.server.pending_creates.lock().remove(&self.key);
    }
}

enum Waiting {
    /// The wait was over before its request was put aside.
    Resumed,
    Parked(Box<Chain>),
}

/// The table knows an open before the server does; what it says of it meanwhile is kept.
enum EarlyBreak {
    Oplock(OplockLevel, bool),
    Lease(LeaseBreak),
}

/// Opens that are being registered at one time; a break for an open that is gone may lie here until others push it out.
const EARLY_BREAKS_MAX: usize = 4096;

/// Work that a table event asks for and that may block.
enum Deferred {
    Close(Arc<SmbOpen>),
    /// The client came back to an open whose break it may not know of.
    TellBreak(Arc<SmbOpen>),
    /// A request whose connection is gone.
    Run(Box<Chain>),
}

impl Server {
    /// `time`: when it starts.
    pub fn new(config: ServerConfig, table: Arc<OpenTable>, time: Time) -> Arc<Server> {
        let server = Arc::new(Server {
            config,
            started: time.now,
            started_at: time.wall,
            metrics: Metrics::default(),
            table: table.clone(),
            throttle: Mutex::new(arden_auth::LogonThrottle::new(arden_auth::ThrottlePolicy::default())),
            interfaces: RwLock::new(Vec::new()),
            shares: RwLock::new(HashMap::new()),
            sessions: RwLock::new(HashMap::new()),
            opens: RwLock::new(HashMap::new()),
            by_create_guid: Mutex::new(HashMap::new()),
            pending_creates: Mutex::new(HashSet::new()),
            waits: Mutex::new(HashMap::new()),
            early_breaks: Mutex::new(HashMap::new()),
            deferred: Mutex::new(Vec::new()),
            wake_deferred: RwLock::new(Box::new(|| {})),
            peers: Mutex::new(HashMap::new()),
            random: SystemRandom::new(),
            slow_disk_until_ms: AtomicU64::new(0),
            persistence: crate::persist::Persistence::default(),
            tokens: crate::offload::Tokens::default(),
            next_id: AtomicU64::new(1),
        });
        server.set_time(time);
        server.set_shares(Vec::new());
        table.set_events(Arc::new(Events(Arc::downgrade(&server))));
        server
    }

    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.random.fill(&mut out).expect("the system has random numbers");
        out
    }
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    // Shares.

    /// Replaces what is exported; IPC$ is always there. Trees of shares that are gone are disconnected. A new share that is
    /// continuously available is there with the persistent opens that were kept.
    pub fn set_shares(self: &Arc<Server>, shares: Vec<Share>) {
        let mut map: HashMap<String, Arc<Share>> =
            shares.into_iter().map(|s| (s.name.to_lowercase(), Arc::new(s))).collect();
        map.insert("ipc$".into(), Arc::new(Share::ipc()));
        let mut gone = Vec::new();
        let sessions: Vec<_> = self.sessions.read().values().cloned().collect();
        for session in sessions {
            for tree in session.trees.read().values() {
                if !map.contains_key(&tree.share.name.to_lowercase()) {
                    gone.push((session.clone(), tree.id));
                }
            }
        }
        for share in map.values().filter(|s| s.is_durable()) {
            let Some(fs) = &share.fs else { continue };
            fs.store().note_changes();
            if share.keeps_handles() {
                fs.make_available();
                self.restore_handles(share, self.time().now);
            }
        }
        *self.shares.write() = map;
        for (session, tree) in gone {
            self.disconnect_tree(&session, tree);
        }
        for open in self.opens() {
            // Nobody can come back to it.
            if open.session().is_none() && self.share(&open.share.name).is_none() {
                self.close_open(&open);
            }
        }
    }
    pub fn share(&self, name: &str) -> Option<Arc<Share>> {
        self.shares.read().get(&name.to_lowercase()).cloned()
    }
    pub fn shares(&self) -> Vec<Arc<Share>> {
        let mut all: Vec<_> = self.shares.read().values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    // Sessions.

    /// A new id that no session has; never 0 or -1.
    pub fn new_session_id(&self) -> u64 {
        loop {
            // 32 bits of the 64: there are clients that keep no more.
            let id = u64::from(u32::from_le_bytes(self.random()));
            if id != 0 && !self.sessions.read().contains_key(&id) {
                return id;
            }
        }
    }
    pub fn session(&self, id: u64) -> Option<Arc<Session>> {
        self.sessions.read().get(&id).cloned()
    }
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.read().values().cloned().collect()
    }
    /// Has this session's client sessions of another dialect? [MS-SMB2] 3.3.1.5 GlobalClientTable.
    pub(crate) fn has_other_dialect(&self, session: &Session) -> bool {
        let differs = |s: &Arc<Session>| s.client_guid == session.client_guid && s.dialect != session.dialect;
        session.client_guid != 0 && self.sessions.read().values().any(differs)
    }
    pub fn add_session(&self, session: &Arc<Session>) -> Result<(), NtStatus> {
        let mut sessions = self.sessions.write();
        if sessions.len() >= self.config.limits.sessions_max {
            tracing::warn!(limit = self.config.limits.sessions_max, "sessions_max reached: a logon is refused");
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        sessions.insert(session.id, session.clone());
        Ok(())
    }

    /// Logs a session off: its opens are closed or, when `keep_durable`, kept for a reconnect.
    pub fn end_session(&self, session: &Arc<Session>, keep_durable: bool, now: Instant) {
        if session.state() == SessionState::Deleted {
            return;
        }
        session.set_state(SessionState::Deleted);
        self.sessions.write().remove(&session.id);
        for channel in std::mem::take(&mut *session.channels.lock()) {
            if let Some(peer) = channel.peer.upgrade() {
                peer.channels.write().remove(&session.id);
            }
        }
        let opens: Vec<_> = session.opens.write().drain().map(|(_, o)| o).collect();
        for open in opens {
            if keep_durable && self.keep_disconnected(&open, now) {
                continue;
            }
            self.close_object(&open);
        }
        session.trees.write().clear();
    }

    /// One channel is gone; with the last one the session ends, [MS-SMB2] 3.3.7.1.
    pub fn drop_channel(&self, session: &Arc<Session>, peer_id: u64, now: Instant) {
        let left = {
            let mut channels = session.channels.lock();
            channels.retain(|c| c.peer.upgrade().is_some_and(|p| p.id != peer_id));
            channels.len()
        };
        if left == 0 {
            self.end_session(session, true, now);
        }
    }

    /// An administrator's order. False: there is no such session.
    pub fn close_session(&self, id: u64) -> bool {
        let Some(session) = self.session(id) else { return false };
        tracing::info!(session = id, user = %session.token().user_name, "session closed by an administrator");
        self.end_session(&session, false, self.time().now);
        true
    }

    /// An administrator's order. False: there is no such open.
    pub fn close_open_by_id(&self, id: u64) -> bool {
        let Some(open) = self.open(id) else { return false };
        tracing::info!(share = %open.share.name, file = %open.name, "open closed by an administrator");
        self.close_open(&open);
        true
    }

    /// Sessions with a tree connect to the share.
    pub fn users_of(&self, share: &str) -> usize {
        let uses = |s: &Arc<Session>| s.trees.read().values().any(|t| t.share.name == share);
        self.sessions.read().values().filter(|s| uses(s)).count()
    }

    pub fn disconnect_tree(&self, session: &Session, tree_id: u32) -> bool {
        let Some(_) = session.trees.write().remove(&tree_id) else { return false };
        let mut opens = Vec::new();
        session.opens.write().retain(|_, open| {
            let of_tree = open.state.lock().tree_id == tree_id;
            if of_tree {
                opens.push(open.clone());
            }
            !of_tree
        });
        for open in opens {
            self.close_object(&open);
        }
        true
    }

    // Opens.

    pub fn open(&self, id: u64) -> Option<Arc<SmbOpen>> {
        self.opens.read().get(&id).cloned()
    }
    pub fn opens(&self) -> Vec<Arc<SmbOpen>> {
        self.opens.read().values().cloned().collect()
    }
    pub fn add_open(&self, open: &Arc<SmbOpen>) {
        if let Some(guid) = open.create_guid {
            self.by_create_guid.lock().insert((open.client_guid, guid), open.id.persistent);
        }
        self.opens.write().insert(open.id.persistent, open.clone());
        let early = self.early_breaks.lock().remove(&open.id.persistent);
        match early {
            Some(EarlyBreak::Oplock(to, ack)) => self.break_oplock(OpenId(open.id.persistent), to, ack),
            Some(EarlyBreak::Lease(b)) => self.break_lease(&b),
            None => {}
        }
    }

    fn note_early(&self, open: OpenId, early: EarlyBreak) {
        let mut breaks = self.early_breaks.lock();
        if breaks.len() >= EARLY_BREAKS_MAX {
            breaks.clear();
        }
        breaks.insert(open.0, early);
    }

    fn break_oplock(&self, id: OpenId, to: OplockLevel, ack: bool) {
        count(&self.metrics.breaks, 1);
        self.keep_open(id.0);
        let Some(open) = self.open(id.0) else { return self.note_early(id, EarlyBreak::Oplock(to, ack)) };
        match open.session().and_then(|s| s.live_peer().map(|p| (s, p))) {
            Some((session, peer)) => {
                open.state.lock().breaking = ack;
                crate::breaks::send_oplock_break(&session, &peer, &open, to);
            }
            // Its client is told when it comes back.
            None if open.is_persistent() => {}
            // [MS-SMB2] 3.3.4.6: nobody to tell. A disconnected open that loses its oplock loses its durability.
            None => self.defer(Deferred::Close(open)),
        }
    }

    /// [MS-SMB2] 3.3.4.7: breaks of leases go to the client's first connection that is there.
    fn first_connection_of(&self, client: ClientId) -> Option<(Arc<Session>, Arc<Peer>)> {
        let mut peers = self.peers();
        peers.retain(|p| !p.is_closed() && p.client_guid() == client.0);
        peers.sort_by_key(|p| p.id);
        peers.into_iter().find_map(|p| {
            let session = p.channels.read().values().next().map(|c| c.session.clone())?;
            Some((session, p))
        })
    }

    fn break_lease(&self, b: &LeaseBreak) {
        count(&self.metrics.breaks, 1);
        self.keep_lease(b.client, b.key);
        let opens: Vec<_> = b.opens.iter().filter_map(|id| self.open(id.0)).collect();
        let connected = opens.iter().any(|o| o.session().is_some());
        let live = if connected { self.first_connection_of(b.client) } else { None };
        if let Some((session, peer)) = live {
            crate::breaks::send_lease_break(&session, &peer, b);
        } else if let Some(unknown) = b.opens.iter().find(|id| self.open(id.0).is_none()) {
            self.note_early(*unknown, EarlyBreak::Lease(b.clone()));
        } else {
            // [MS-SMB2] 3.3.4.7: nobody can answer, so the opens that wait for their client are given up; but the client
            // of a persistent one is told when it comes back.
            for open in opens.into_iter().filter(|o| !o.is_persistent()) {
                self.defer(Deferred::Close(open));
            }
        }
    }
    /// After the answer to a reconnect is on its way.
    pub(crate) fn tell_break_later(&self, open: &Arc<SmbOpen>) {
        self.defer(Deferred::TellBreak(open.clone()));
    }

    pub fn open_by_create_guid(&self, client: u128, guid: u128) -> Option<Arc<SmbOpen>> {
        let id = *self.by_create_guid.lock().get(&(client, guid))?;
        self.open(id)
    }

    pub fn create_is_pending(&self, client: u128, guid: u128) -> bool {
        self.pending_creates.lock().contains(&(client, guid))
    }
    pub fn note_pending_create(self: &Arc<Server>, client: u128, guid: u128) -> PendingCreate {
        self.pending_creates.lock().insert((client, guid));
        PendingCreate { server: self.clone(), key: (client, guid) }
    }

    /// Takes the open out of every table and closes what it holds.
    pub fn close_open(&self, open: &Arc<SmbOpen>) {
        if let Some(session) = open.session() {
            session.opens.write().remove(&open.id.volatile);
        }
        self.close_object(open);
    }

    fn close_object(&self, open: &Arc<SmbOpen>) {
        self.opens.write().remove(&open.id.persistent);
        if let Some(guid) = open.create_guid {
            let mut guids = self.by_create_guid.lock();
            if guids.get(&(open.client_guid, guid)) == Some(&open.id.persistent) {
                guids.remove(&(open.client_guid, guid));
            }
        }
        match &open.object {
            Object::File(file) => {
                let deletes = file.deletes_on_close();
                file.fs().close(file);
                self.forget_kept(open);
                if deletes {
                    self.keep_file(open);
                }
            }
            Object::Pipe(pipe) => {
                let readers = std::mem::take(&mut pipe.lock().readers);
                readers.into_iter().for_each(|wait| self.resume(wait));
            }
        }
    }

    /// [MS-SMB2] 3.3.7.1: a durable open is kept for its time-out. False: it has to be closed.
    fn keep_disconnected(&self, open: &Arc<SmbOpen>, now: Instant) -> bool {
        let Some(file) = open.file() else { return false };
        let mut state = open.state.lock();
        let keep = match state.durability {
            Durability::None => false,
            Durability::Resilient { .. } | Durability::Persistent { .. } => true,
            // [MS-SMB2] 3.3.7.1: the oplock or lease has to be held, not breaking.
            Durability::V1 { .. } | Durability::V2 { .. } => {
                let cache = file.fs().cache(file);
                let breaking = state.breaking || matches!(cache, CacheGrant::Lease { breaking: true, .. });
                crate::create::caches_handle(cache) && !breaking
            }
        };
        if keep {
            state.session = None;
            state.expires = state.durability.timeout().map(|t| now + t);
        }
        keep
    }

    // Waiting requests.

    /// Puts a request aside until its wait is over.
    pub fn park(&self, wait: WaitId, chain: Chain) {
        let peer = chain.peer().clone();
        {
            let mut waits = self.waits.lock();
            match waits.remove(&wait) {
                Some(Waiting::Resumed) => {}
                _ => {
                    waits.insert(wait, Waiting::Parked(Box::new(chain)));
                    return;
                }
            }
        }
        self.go_on(peer, chain);
    }

    fn go_on(&self, peer: Arc<Peer>, chain: Chain) {
        if peer.is_closed() { self.defer(Deferred::Run(Box::new(chain))) } else { peer.resume(chain) }
    }

    /// A wait of the server's own, from the upper half of the numbers; the table counts from below.
    pub fn new_wait(&self) -> WaitId {
        WaitId(1 << 63 | self.next_id())
    }

    /// The wait is over: its request goes on.
    pub fn resume(&self, wait: WaitId) {
        let parked = {
            let mut waits = self.waits.lock();
            match waits.remove(&wait) {
                Some(Waiting::Parked(chain)) => chain,
                _ => {
                    waits.insert(wait, Waiting::Resumed);
                    return;
                }
            }
        };
        let peer = parked.peer().clone();
        self.go_on(peer, *parked);
    }

    /// Takes a waiting request back; it will not be resumed.
    pub fn unpark(&self, wait: WaitId) -> Option<Chain> {
        let chain = match self.waits.lock().remove(&wait) {
            Some(Waiting::Parked(chain)) => Some(*chain),
            _ => None,
        };
        self.table.cancel_wait(wait);
        chain
    }

    // Connections.

    pub fn add_peer(&self, peer: &Arc<Peer>) {
        self.peers.lock().insert(peer.id, Arc::downgrade(peer));
    }
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// The transport is gone, [MS-SMB2] 3.3.7.1.
    pub fn peer_closed(&self, peer: &Arc<Peer>, now: Instant) {
        peer.closed.store(true, Ordering::Release);
        self.peers.lock().remove(&peer.id);
        let pending: Vec<_> = peer.pending.lock().drain().map(|(_, p)| p.wait).collect();
        for wait in pending {
            // A session with another channel keeps what it asked for: the client may replay it there.
            let keeps = match self.waits.lock().get(&wait) {
                Some(Waiting::Parked(chain)) => chain.survives(peer.id),
                _ => false,
            };
            if !keeps {
                self.unpark(wait);
            }
        }
        let channels: Vec<_> = peer.channels.write().drain().map(|(_, c)| c).collect();
        for channel in channels {
            self.drop_channel(&channel.session, peer.id, now);
        }
        let mut mailbox = peer.mailbox.lock();
        mailbox.frames.clear();
        mailbox.resumed.clear();
    }

    // Time.

    /// It is now this late. Whoever drives the server says so before anything that he has it do.
    pub fn set_time(&self, time: Time) {
        self.table.set_time(time.now, time.wall);
    }

    /// What was said last.
    pub fn time(&self) -> Time {
        let (now, wall) = self.table.time().unwrap_or((self.started, self.started_at));
        Time { now, wall }
    }

    /// A large message, a write most likely, kept the thread this long. Long ones waited for the disk: the kernel
    /// throttles who dirties memory too fast.
    pub(crate) fn large_message_took(&self, took: Duration) {
        if took > SLOW_WRITE {
            let until = self.time().now - self.started + SLOW_DISK;
            self.slow_disk_until_ms.store(until.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Whom to call when deferred work turns up.
    pub fn on_deferred(&self, wake: Box<dyn Fn() + Send + Sync>) {
        *self.wake_deferred.write() = wake;
    }

    fn defer(&self, work: Deferred) {
        self.deferred.lock().push(work);
        (self.wake_deferred.read())();
    }

    /// Does what table events left to do. May block.
    pub fn run_deferred(&self) {
        loop {
            let work = std::mem::take(&mut *self.deferred.lock());
            if work.is_empty() {
                return;
            }
            for item in work {
                match item {
                    Deferred::Close(open) => self.close_open(&open),
                    Deferred::TellBreak(open) => {
                        if let Some(file) = open.file() {
                            file.fs().tell_break_again(file, self.time().now);
                        }
                    }
                    // Nobody hears the answer, but what was asked for happens.
                    Deferred::Run(chain) => drop(chain.run(&mut Vec::new(), true)),
                }
            }
        }
    }

    /// Time-outs of breaks and of disconnected handles. May block. Returns when to call again at the latest.
    pub fn tick(&self, time: Time) -> Option<Instant> {
        self.set_time(time);
        let now = time.now;
        let mut next = self.table.tick(now);
        self.tokens.expire(now);
        if let Some(lifetime) = self.config.policy.session_lifetime() {
            for session in self.sessions.read().values() {
                session.expire(now, lifetime);
            }
        }
        let mut expired = Vec::new();
        for open in self.opens.read().values() {
            if let Some(at) = open.state.lock().expires {
                if at <= now {
                    expired.push(open.clone());
                } else {
                    next = Some(next.map_or(at, |n: Instant| n.min(at)));
                }
            }
        }
        for open in expired {
            tracing::info!(share = %open.share.name, file = %open.name, "durable handle expired");
            self.close_open(&open);
        }
        next
    }
}

/// How the open table reaches the server.
struct Events(Weak<Server>);

impl TableEvents for Events {
    fn oplock_break(&self, open: OpenId, to: OplockLevel, ack: bool) {
        if let Some(server) = self.0.upgrade() {
            server.break_oplock(open, to, ack);
        }
    }

    fn lease_break(&self, b: &LeaseBreak) {
        if let Some(server) = self.0.upgrade() {
            server.break_lease(b);
        }
    }

    fn cache_lost(&self, opens: &[OpenId]) {
        if let Some(server) = self.0.upgrade() {
            server.keep_lost(opens);
        }
    }

    fn resume(&self, wait: WaitId) {
        if let Some(server) = self.0.upgrade() {
            server.resume(wait);
        }
    }
}

impl OpenState {
    pub fn new(session: &Arc<Session>, tree_id: u32, channel_sequence: u16) -> OpenState {
        OpenState {
            session: Some(Arc::downgrade(session)),
            tree_id,
            durability: Durability::None,
            expires: None,
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
