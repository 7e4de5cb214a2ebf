//! The sessions' side of the server: its tables of sessions and connections, [MS-SMB2] 3.3.1.5, requests that wait, and what the
//! clients are told of the server's own accord. What the sessions have open is `trees`'.

mod client_peers;
pub mod forwarded;
pub mod notify;
mod revoke;
pub mod view;
pub mod waits;

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arden_lock::{Mutex, RwLock, ranks};
use arden_store::{commit::CommitScope, table::OpenTable};
use arden_wire::{NtStatus, dtyp::Sid};
use ring::rand::SystemRandom;

use crate::{
    base::{
        admission::{Admission, Met},
        buffers::Buffers,
        config::ServerConfig,
        shares::{Bounds, Shares},
        threads::ConnectionThreads,
        time::Time,
    },
    handlers::run::{LocalEngine, RequestEngine},
    model::{seam::Clients, share::Share},
    server::{
        client_peers::ClientPeers,
        forwarded::{Forwarded, NodeLinks},
        waits::Waits,
    },
    sessions::{Left, Mailbox, Peer, Session, signer::BindingDecoys},
    trees::{Trees, ending::Ending, endings::UnderWay},
};

/// Sessions and connections, before the trees of this node.
pub struct Server {
    /// Shares, tree connects and opens, with the configuration and the time that all go by.
    pub trees: Arc<Trees>,
    /// Runs verified requests: this node's trees, or what stands before them.
    pub(crate) engine: Arc<dyn RequestEngine>,
    me: Weak<Server>,
    pub throttle: Mutex<arden_auth::LogonThrottle, ranks::Throttle>,
    /// Held by a logon from its look at the account until its session is there.
    pub(crate) accounts: RwLock<(), ranks::Accounts>,
    pub(crate) clocks_noted: crate::base::log_limit::LogLimit,
    pub(crate) admission: Admission,
    pub(crate) decoys: BindingDecoys,
    /// When the log last said that a limit was met.
    told_limits: Mutex<HashMap<&'static str, Instant>, ranks::LogLines>,
    sessions: RwLock<HashMap<u64, Arc<Session>>, ranks::Sessions>,
    /// Ids of logons under way.
    reserved_ids: Mutex<HashSet<u64>, ranks::ReservedIds>,
    pub(crate) waits: Waits,
    /// Sessions of other nodes that have tree connects here.
    pub(crate) forwarded: Forwarded,
    /// Connections of other nodes, over which these sessions ask.
    pub(crate) node_links: NodeLinks,
    peers: Mutex<HashMap<u64, Weak<Peer>>, ranks::Peers>,
    pub(crate) client_peers: ClientPeers,
    /// At which addresses of this machine connections are taken; without it, at all.
    admit_at: OnceLock<Box<dyn Fn(SocketAddr) -> bool + Send + Sync>>,
    /// Threads that may block, and the memory of what runs there.
    pub(crate) jobs: Shares<Work, ranks::Jobs>,
    /// Threads that may block, on which connections end.
    pub(crate) endings: Shares<Work, ranks::Jobs>,
    /// On which busy connections are served.
    pub(crate) threads: Arc<ConnectionThreads>,
    /// What connections hold of messages.
    pub(crate) buffers: Arc<Buffers>,
    /// Messages whose commit is under way.
    pub(crate) committing: AtomicUsize,
    /// Logons over RPC of each user.
    pub(crate) rpc_users: Mutex<HashMap<Sid, usize>, ranks::RpcUsers>,
}

/// Begins work on a thread that may block.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

impl Server {
    /// `time`: when it starts.
    pub fn new(config: ServerConfig, table: Arc<OpenTable>, time: Time) -> Arc<Server> {
        Server::with_engine(config, table, time, |engine| engine)
    }

    /// A server whose verified requests go to what `stand_before` makes of this node's engine.
    pub fn with_engine(
        config: ServerConfig,
        table: Arc<OpenTable>,
        time: Time,
        stand_before: impl FnOnce(Arc<dyn RequestEngine>) -> Arc<dyn RequestEngine>,
    ) -> Arc<Server> {
        Arc::new_cyclic(|me: &Weak<Server>| {
            let clients: Weak<dyn Clients> = me.clone();
            let bounds = config.limits.usage;
            let threads = ConnectionThreads::for_each_core(config.limits.connection_threads_per_core, time.now);
            let trees = Trees::new(config, table, time, clients);
            Server {
                engine: stand_before(Arc::new(LocalEngine(trees.clone()))),
                trees,
                me: me.clone(),
                throttle: Mutex::new(arden_auth::LogonThrottle::new(arden_auth::ThrottlePolicy::default())),
                accounts: RwLock::new(()),
                clocks_noted: crate::base::log_limit::LogLimit::new(Duration::from_secs(60)),
                admission: Admission::default(),
                decoys: BindingDecoys::new(&SystemRandom::new()),
                told_limits: Mutex::default(),
                sessions: RwLock::new(HashMap::new()),
                reserved_ids: Mutex::default(),
                waits: Waits::default(),
                forwarded: Forwarded::default(),
                node_links: NodeLinks::default(),
                peers: Mutex::new(HashMap::new()),
                client_peers: ClientPeers::default(),
                admit_at: OnceLock::new(),
                jobs: Shares::new(Bounds { slots: bounds.jobs, bytes: bounds.job_bytes }),
                endings: Shares::new(Bounds::of_slots(bounds.endings)),
                threads,
                buffers: Buffers::new(bounds.buffer_bytes),
                committing: AtomicUsize::new(0),
                rpc_users: Mutex::default(),
            }
        })
    }

    // Sessions.

    /// A new id that no session and no logon under way has; never 0 or -1. It stays reserved until it is released.
    ///
    /// It is no secret, and need not be one: who does not hold the session's key gets the same answer for every id, so
    /// that 32 bits are enough. There are clients that keep no more.
    pub(crate) fn reserve_session_id(&self) -> u64 {
        loop {
            let id = u64::from(u32::from_le_bytes(self.trees.random()));
            if id != 0 && !self.sessions.read().contains_key(&id) && self.reserved_ids.lock().insert(id) {
                return id;
            }
        }
    }
    pub(crate) fn release_session_id(&self, id: u64) {
        self.reserved_ids.lock().remove(&id);
    }
    /// What connections hold of messages and answers.
    pub fn buffer_bytes(&self) -> usize {
        self.buffers.paid_bytes()
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
    /// A session that was logged on over connection `peer_id`.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES where a limit is met.
    pub fn add_session(&self, session: &Arc<Session>, peer_id: u64) -> Result<(), NtStatus> {
        let (token, limits) = (session.token(), &self.trees.config.limits);
        let (at, administrator) = ((session.ip, peer_id), token.is_administrator());
        if let Err(met) = self.admission.open_session(limits, at, &token.user, administrator) {
            self.tell_limit(met, session.ip, &token.user_name, "a logon is refused");
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        self.trees.begin_session(&session.tables);
        self.sessions.write().insert(session.id, session.clone());
        Ok(())
    }

    /// Says in the log that a limit was met, once a second at most for each.
    pub(crate) fn tell_limit(&self, met: Met, client: IpAddr, user: &str, what: &'static str) {
        let now = self.trees.time().now;
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
        // Who looks for the session finds it, or its end.
        let _under_way = UnderWay::begin(&self.trees.endings, &session.token().user);
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
                drop(channels);
                self.client_peers.forget(session.client, &peer);
            }
        }
        let ending = self.trees.take_down(&session.tables, keep_durable, now);
        // Who asks another node for it at the same time sees that it has ended, or is seen here.
        self.engine.session_ended(session.tables.serial, keep_durable);
        Some(ending)
    }

    /// A session of this user at node `by` replaces that of this id, if it is the same user's: [MS-SMB2] 3.3.5.5.3. `close` closes what it had open.
    pub(crate) fn end_replaced(self: &Arc<Server>, id: u64, user: &Sid, by: u16, close: impl FnOnce(Ending)) {
        let old = self.session(id).filter(|old| !old.anonymous && old.token().user == *user);
        let Some(ending) = old.and_then(|old| self.take_session_down(&old, true, self.trees.time().now)) else {
            return;
        };
        tracing::info!(session = %format_args!("{id:x}"), by, "a session is replaced by one at another node");
        close(ending);
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
        tracing::info!(session = %format_args!("{id:x}"), user = %session.token().user_name, "session closed by an administrator");
        self.end_session(&CommitScope::begin(), &session, false, self.trees.time().now);
        true
    }

    // Connections.

    /// Of each client, those with a session of it.
    pub fn client_connections(&self) -> usize {
        self.client_peers.len()
    }

    pub fn add_peer(&self, peer: &Arc<Peer>) {
        self.peers.lock().insert(peer.id, Arc::downgrade(peer));
    }
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Ends the connections of sessions with a tree connect to a share that `of` names. The number of such sessions: it is 0 once the
    /// connections have ended.
    pub fn disconnect_users(&self, of: impl Fn(&Share) -> bool) -> usize {
        let mut left = 0;
        for session in self.sessions() {
            if !session.tables.trees.read().values().any(|tree| of(&tree.share)) {
                continue;
            }
            left += 1;
            end_connections_of(&session);
        }
        left + self.forwarded.leave(of)
    }

    /// Ends the connections at addresses of this machine that `at` names. The number of such connections: it is 0 once they have ended.
    pub fn disconnect_at(&self, at: impl Fn(SocketAddr) -> bool) -> usize {
        let peers: Vec<Arc<Peer>> = self.peers().into_iter().filter(|p| at(p.local_address)).collect();
        for peer in &peers {
            peer.closed.store(true, Ordering::Release);
            (peer.wake)();
        }
        peers.len()
    }

    /// Connections at addresses of this machine for which `admits` says no are ended before anything is read from them. Set once.
    pub fn admit_at(&self, admits: Box<dyn Fn(SocketAddr) -> bool + Send + Sync>) {
        let _ = self.admit_at.set(admits);
    }

    /// Whether connections at this address of the machine are taken.
    pub fn admits_at(&self, local: SocketAddr) -> bool {
        self.admit_at.get().is_none_or(|admits| admits(local))
    }

    /// Sessions of other nodes that ask this one.
    pub fn forwarded_sessions(&self) -> usize {
        self.forwarded.len()
    }

    /// Ends the connections of a session without an answer, as if they were lost.
    pub fn disconnect_session(&self, id: u64, serial: u64) {
        if let Some(session) = self.session(id).filter(|s| s.tables.serial == serial) {
            end_connections_of(&session);
        }
    }

    /// The transport is gone, [MS-SMB2] 3.3.7.1.
    pub fn peer_closed(self: &Arc<Server>, peer: &Arc<Peer>, now: Instant) {
        peer.closed.store(true, Ordering::Release);
        self.peers.lock().remove(&peer.id);
        self.admission.disconnected(peer.id);
        let pending = peer.pending.lock().drain();
        for wait in pending.into_iter().map(|p| p.wait) {
            self.leave_waiting(wait, peer.id);
        }
        let channels: Vec<_> = peer.channels.write().drain().map(|(_, c)| c).collect();
        for channel in channels {
            self.client_peers.forget(channel.session.client, peer);
            self.drop_channel(&channel.session, peer.id, now);
        }
        for (to, what) in peer.unacknowledged.end(now) {
            self.notify_here(to, &what);
        }
        let mailbox = std::mem::replace(&mut *peer.mailbox.lock(), Mailbox { closed: true, ..Mailbox::default() });
        for left in mailbox.left {
            if let Left::Resumed(message) = left {
                self.leave_resumed(message, peer.id);
            }
        }
    }

    // Time.

    /// Time-outs of sessions, breaks and disconnected handles, and failed logons that are forgotten. May block. Returns when
    /// to call again at the latest.
    pub fn tick(&self, time: Time) -> Option<Instant> {
        self.trees.set_time(time);
        self.throttle.lock().tick(time.now - self.trees.started);
        if let Some(lifetime) = self.trees.config.policy.session_lifetime() {
            for session in self.sessions.read().values() {
                session.expire(time.now, lifetime);
            }
        }
        self.trees.tick(time)
    }

    /// The server stops and another will go on: closes what does not outlive it, and lets go of what does as it is.
    pub fn stop(self: &Arc<Server>, now: Instant) {
        for session in self.sessions() {
            self.end_session(&CommitScope::begin(), &session, true, now);
        }
        self.trees.stop();
    }
}

fn end_connections_of(session: &Session) {
    let channels: Vec<_> = session.channels.lock().iter().filter_map(|c| c.peer.upgrade()).collect();
    for peer in channels {
        peer.closed.store(true, Ordering::Release);
        (peer.wake)();
    }
}
