//! The server's global tables, [MS-SMB2] 3.3.1.5: shares, sessions, opens and connections, and what time does to them.

pub mod breaks;
pub mod deferred;
pub(crate) mod ending;
pub mod persist;
mod revoke;
pub mod tokens;
pub mod usn_waits;
pub mod view;
pub mod waits;

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_lock::{Mutex, RwLock, ranks};
use arden_store::{
    commit::CommitScope,
    fs::{CacheGrant, Owner},
    table::OpenTable,
};
use arden_wire::{FileTime, NtStatus};
use ring::rand::{SecureRandom, SystemRandom};

use ending::Ending;

use crate::{
    base::{
        admission::{Admission, Met},
        config::{Interface, ServerConfig},
        jobs::Jobs,
        metrics::Metrics,
        time::Time,
        usage::Usage,
    },
    model::{Durability, Mailbox, Object, Peer, Session, SmbOpen, caches_handle, share::Share, signer::BindingDecoys},
    server::{
        breaks::{Events, Openings},
        deferred::DeferredWork,
        usn_waits::UsnWaits,
        waits::Waits,
    },
};

/// A message that took so long waited for the disk.
const SLOW_WRITE: Duration = Duration::from_millis(20);
/// How long the disk then counts as slow.
const SLOW_DISK: Duration = Duration::from_secs(5);

pub struct Server {
    pub config: ServerConfig,
    pub started: Instant,
    pub started_at: FileTime,
    pub metrics: Metrics,
    pub table: Arc<OpenTable>,
    pub throttle: Mutex<arden_auth::LogonThrottle, ranks::Throttle>,
    /// Held by a logon from its look at the account until its session is there.
    pub(crate) accounts: RwLock<(), ranks::Accounts>,
    pub(crate) clocks_noted: crate::base::log_limit::LogLimit,
    pub(crate) admission: Admission,
    pub(crate) decoys: BindingDecoys,
    /// When the log last said that a limit was met.
    told_limits: Mutex<HashMap<&'static str, Instant>, ranks::LogLines>,
    pub interfaces: RwLock<Vec<Interface>, ranks::Interfaces>,
    shares: RwLock<HashMap<String, Arc<Share>>, ranks::Shares>,
    sessions: RwLock<HashMap<u64, Arc<Session>>, ranks::Sessions>,
    /// Ids of logons under way.
    reserved_ids: Mutex<HashSet<u64>, ranks::ReservedIds>,
    /// GlobalOpenTable: durable and connected opens, by the table's id.
    opens: RwLock<HashMap<u64, Arc<SmbOpen>>, ranks::Opens>,
    /// Opens with a CreateGuid, for replay and DH2C: (client, guid) to open.
    by_create_guid: Mutex<HashMap<(u128, u128), u64>, ranks::CreateGuids>,
    pub(crate) waits: Waits,
    pub(crate) usn_waits: UsnWaits,
    pub(crate) openings: Openings,
    /// Itself, as the open table knows it.
    pub(crate) owner: Owner,
    pub(crate) deferred: DeferredWork,
    peers: Mutex<HashMap<u64, Weak<Peer>>, ranks::Peers>,
    random: SystemRandom,
    /// Until when writes are kept off the reactor, in milliseconds since the start.
    pub(crate) slow_disk_until_ms: AtomicU64,
    pub(crate) persistence: persist::Persistence,
    pub(crate) tokens: tokens::Tokens,
    pub usage: Arc<Usage>,
    pub(crate) jobs: Jobs,
    next_id: AtomicU64,
}

impl Server {
    /// `time`: when it starts.
    pub fn new(config: ServerConfig, table: Arc<OpenTable>, time: Time) -> Arc<Server> {
        let limits = config.limits;
        let usage = Usage::new(config.limits.usage);
        let server = Arc::new_cyclic(|weak| Server {
            config,
            started: time.now,
            started_at: time.wall,
            metrics: Metrics::default(),
            table,
            throttle: Mutex::new(arden_auth::LogonThrottle::new(arden_auth::ThrottlePolicy::default())),
            accounts: RwLock::new(()),
            clocks_noted: crate::base::log_limit::LogLimit::new(Duration::from_secs(60)),
            admission: Admission::default(),
            decoys: BindingDecoys::new(&SystemRandom::new()),
            told_limits: Mutex::default(),
            interfaces: RwLock::new(Vec::new()),
            shares: RwLock::new(HashMap::new()),
            sessions: RwLock::new(HashMap::new()),
            reserved_ids: Mutex::default(),
            opens: RwLock::new(HashMap::new()),
            by_create_guid: Mutex::new(HashMap::new()),
            waits: Waits::default(),
            usn_waits: UsnWaits::default(),
            openings: Openings::default(),
            owner: Owner::new(Arc::new(Events(weak.clone()))),
            deferred: DeferredWork::default(),
            peers: Mutex::new(HashMap::new()),
            random: SystemRandom::new(),
            slow_disk_until_ms: AtomicU64::new(0),
            persistence: persist::Persistence::new(&limits),
            tokens: tokens::Tokens::default(),
            usage,
            jobs: Jobs::default(),
            next_id: AtomicU64::new(1),
        });
        server.set_time(time);
        server.set_shares(Vec::new());
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

    /// Replaces what is exported; IPC$ is always there. Tree connects and opens become what the shares allow by now
    /// (`revoke`). A new share that is continuously available is there with the persistent opens that were kept.
    pub fn set_shares(self: &Arc<Server>, shares: Vec<Share>) {
        let mut map: HashMap<String, Arc<Share>> =
            shares.into_iter().map(|s| (s.name.to_lowercase(), Arc::new(s))).collect();
        map.insert("ipc$".into(), Arc::new(Share::ipc()));
        for share in map.values().filter(|s| s.is_durable()) {
            let Some(fs) = &share.fs else { continue };
            fs.store().note_changes();
            if share.keeps_handles() {
                fs.make_available();
                self.restore_handles(share, self.time().now);
            }
        }
        *self.shares.write() = map;
        self.recheck_shares();
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

    /// A new id that no session and no logon under way has; never 0 or -1. It stays reserved until it is released.
    ///
    /// It is no secret, and need not be one: who does not hold the session's key gets the same answer for every id, so
    /// that 32 bits are enough. There are clients that keep no more.
    pub(crate) fn reserve_session_id(&self) -> u64 {
        loop {
            let id = u64::from(u32::from_le_bytes(self.random()));
            if id != 0 && !self.sessions.read().contains_key(&id) && self.reserved_ids.lock().insert(id) {
                return id;
            }
        }
    }
    pub(crate) fn release_session_id(&self, id: u64) {
        self.reserved_ids.lock().remove(&id);
    }
    pub fn session(&self, id: u64) -> Option<Arc<Session>> {
        self.sessions.read().get(&id).cloned()
    }
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.read().values().cloned().collect()
    }
    /// Has this session's client sessions of another dialect? [MS-SMB2] 3.3.1.5 GlobalClientTable. Only its user's count:
    /// anybody may send any ClientGuid, and would keep the others out.
    pub(crate) fn has_other_dialect(&self, session: &Session) -> bool {
        let differs = |s: &Arc<Session>| s.client == session.client && s.dialect != session.dialect;
        self.sessions.read().values().any(differs)
    }
    /// # Errors
    /// INSUFFICIENT_RESOURCES where a limit is met.
    pub fn add_session(&self, session: &Arc<Session>) -> Result<(), NtStatus> {
        let token = session.token();
        let administrator = token.is_administrator();
        if let Err(met) = self.admission.open_session(&self.config.limits, session.ip, &token.user, administrator) {
            self.tell_limit(met, session.ip, &token.user_name, "a logon is refused");
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        self.sessions.write().insert(session.id, session.clone());
        Ok(())
    }

    /// Says in the log that a limit was met, once a second at most for each.
    pub(crate) fn tell_limit(&self, met: Met, client: IpAddr, user: &str, what: &'static str) {
        let now = self.time().now;
        let mut told = self.told_limits.lock();
        if told.get(met.limit).is_none_or(|at| now.saturating_duration_since(*at) >= Duration::from_secs(1)) {
            told.insert(met.limit, now);
            tracing::warn!(%client, user, limit = met.limit, value = met.value, what);
        }
    }

    /// Logs a session off: its opens are closed or, when `keep_durable`, kept for a reconnect.
    pub fn end_session(
        self: &Arc<Server>,
        scope: &CommitScope,
        session: &Arc<Session>,
        keep_durable: bool,
        now: Instant,
    ) {
        if let Some(ending) = self.take_session_down(session, keep_durable, now) {
            ending.finish(scope);
        }
    }

    /// The session is gone; what it had open is left to do. None: it was gone before.
    pub(crate) fn take_session_down(
        self: &Arc<Server>,
        session: &Arc<Session>,
        keep_durable: bool,
        now: Instant,
    ) -> Option<Ending> {
        if !session.delete() {
            return None;
        }
        if self.sessions.write().remove(&session.id).is_some() {
            self.admission.close_session(session.ip, &session.token().user);
        }
        let channels = std::mem::take(&mut *session.channels.lock());
        for channel in channels {
            if let Some(peer) = channel.peer.upgrade() {
                let mut channels = peer.channels.write();
                channels.remove(&session.id);
                if channels.is_empty() {
                    self.admission.set_logged_on(peer.id, false);
                }
            }
        }
        session.trees.write().clear();
        let opens = session.opens.write().drain().map(|(_, o)| o).collect();
        Some(Ending { server: self.clone(), opens, keep_durable, now })
    }

    /// One channel is gone; with the last one the session ends, [MS-SMB2] 3.3.7.1.
    pub fn drop_channel(self: &Arc<Server>, session: &Arc<Session>, peer_id: u64, now: Instant) {
        let left = {
            let mut channels = session.channels.lock();
            channels.retain(|c| c.peer.upgrade().is_some_and(|p| p.id != peer_id));
            channels.len()
        };
        if left == 0 {
            self.end_session(&CommitScope::begin(), session, true, now);
        }
    }

    /// An administrator's order. False: there is no such session.
    pub fn close_session(self: &Arc<Server>, id: u64) -> bool {
        let Some(session) = self.session(id) else { return false };
        tracing::info!(session = id, user = %session.token().user_name, "session closed by an administrator");
        self.end_session(&CommitScope::begin(), &session, false, self.time().now);
        true
    }

    /// An administrator's order. False: there is no such open.
    pub fn close_open_by_id(&self, id: u64) -> bool {
        let Some(open) = self.open(id) else { return false };
        tracing::info!(share = %open.share.name, file = %open.name, "open closed by an administrator");
        self.close_open(&CommitScope::begin(), &open);
        true
    }

    /// Sessions with a tree connect to the share.
    pub fn users_of(&self, share: &str) -> usize {
        let uses = |s: &Arc<Session>| s.trees.read().values().any(|t| t.share.name == share);
        self.sessions.read().values().filter(|s| uses(s)).count()
    }

    pub fn disconnect_tree(&self, scope: &CommitScope, session: &Session, tree_id: u32) -> bool {
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
            self.close_object(scope, &open);
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
            self.by_create_guid.lock().insert((open.client.0, guid), open.id.persistent);
        }
        self.opens.write().insert(open.id.persistent, open.clone());
    }

    pub fn open_by_create_guid(&self, client: u128, guid: u128) -> Option<Arc<SmbOpen>> {
        let id = *self.by_create_guid.lock().get(&(client, guid))?;
        self.open(id)
    }

    /// Takes the open out of every table and closes what it holds.
    pub fn close_open(&self, scope: &CommitScope, open: &Arc<SmbOpen>) {
        if let Some(session) = open.session() {
            session.opens.write().remove(&open.id.volatile);
        }
        self.close_object(scope, open);
    }

    fn close_object(&self, scope: &CommitScope, open: &Arc<SmbOpen>) {
        self.opens.write().remove(&open.id.persistent);
        if let Some(guid) = open.create_guid {
            let mut guids = self.by_create_guid.lock();
            if guids.get(&(open.client.0, guid)) == Some(&open.id.persistent) {
                guids.remove(&(open.client.0, guid));
            }
        }
        match &open.object {
            Object::File(file) => {
                let deletes = file.deletes_on_close();
                if let Some(fs) = open.share.fs.as_ref().filter(|_| open.share.is_durable()) {
                    scope.join(fs, true);
                }
                file.fs().close(file);
                self.end_usn_waits(open);
                self.forget_kept(scope, open);
                if deletes {
                    self.keep_file(scope, open);
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
                caches_handle(cache) && !breaking
            }
        };
        if keep {
            state.session = None;
            if matches!(state.durability, Durability::Persistent { .. }) {
                file.fs().set_owner_absent(file, true);
            }
            state.expires = state.durability.timeout().map(|t| now + t);
        }
        keep
    }

    // Connections.

    pub fn add_peer(&self, peer: &Arc<Peer>) {
        self.peers.lock().insert(peer.id, Arc::downgrade(peer));
    }
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// The transport is gone, [MS-SMB2] 3.3.7.1.
    pub fn peer_closed(self: &Arc<Server>, peer: &Arc<Peer>, now: Instant) {
        peer.closed.store(true, Ordering::Release);
        self.peers.lock().remove(&peer.id);
        self.admission.disconnected(peer.id);
        let pending = peer.pending.lock().drain();
        for wait in pending.into_iter().map(|p| p.wait) {
            // A session with another channel keeps what it asked for: the client may replay it there.
            if !self.waits.survives(wait, peer.id) {
                self.unpark(wait);
            }
        }
        let channels: Vec<_> = peer.channels.write().drain().map(|(_, c)| c).collect();
        for channel in channels {
            self.drop_channel(&channel.session, peer.id, now);
        }
        let left = std::mem::replace(&mut *peer.mailbox.lock(), Mailbox { closed: true, ..Mailbox::default() });
        drop(left);
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

    /// Time-outs of breaks and of disconnected handles. May block. Returns when to call again at the latest.
    pub fn tick(&self, time: Time) -> Option<Instant> {
        self.set_time(time);
        let now = time.now;
        let mut next = self.table.tick(now);
        self.tokens.expire(now);
        if let Some(at) = self.tick_usn_waits(now) {
            next = Some(next.map_or(at, |n: Instant| n.min(at)));
        }
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
            self.close_open(&CommitScope::begin(), &open);
        }
        next
    }
}
