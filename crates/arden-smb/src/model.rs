//! The objects of [MS-SMB2] 3.3.1: connection (its shared part, `Peer`), session, channel, tree connect, open.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_auth::Token;
use arden_store::{fs::ClientId, table::Open};
use arden_wire::{
    FileTime,
    smb2::{
        Dialect, FileId,
        negotiate::{Cipher, SigningAlgorithm},
    },
};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    chain::{Chain, Finished, Job},
    crypto::{CipherKey, SigningKey},
    share::Share,
    time::Time,
    usage::OpenUsage,
};

/// What NEGOTIATE settled for a connection.
#[derive(Debug, Clone)]
pub struct Negotiated {
    pub dialect: Dialect,
    pub client_guid: u128,
    pub client_capabilities: u32,
    pub client_security_mode: u16,
    pub client_dialects: Vec<u16>,
    pub server_capabilities: u32,
    pub server_security_mode: u16,
    pub cipher: Option<Cipher>,
    pub signing: SigningAlgorithm,
    pub max_transact: u32,
    pub max_read: u32,
    pub max_write: u32,
}

impl Negotiated {
    pub fn multi_credit(&self) -> bool {
        self.dialect >= Dialect::Smb210
    }
}

/// The part of a connection that others reach: sessions bound to it, and what waits to be sent or run.
pub struct Peer {
    pub id: u64,
    pub ip: std::net::IpAddr,
    /// With the port, for people.
    pub address: String,
    pub local_address: std::net::SocketAddr,
    pub negotiated: OnceLock<Negotiated>,
    pub channels: RwLock<HashMap<u64, Arc<Channel>>>,
    pub mailbox: Mutex<Mailbox>,
    /// Tells the connection's owner that the mailbox has something.
    pub wake: Box<dyn Fn() + Send + Sync>,
    pub closed: AtomicBool,
    /// Requests that a CANCEL can end.
    pub pending: Mutex<Pending>,
    /// The buffer of the last large answer, as long as that was: its bytes are there already, and need no zeros before
    /// the next is read into them.
    pub large: Mutex<Vec<u8>>,
}

#[derive(Default)]
pub struct Mailbox {
    /// Complete transport frames.
    pub frames: Vec<Vec<u8>>,
    /// Parked requests that may go on.
    pub resumed: Vec<Chain>,
    /// Messages that waited for stable storage.
    pub finished: Vec<Finished>,
    /// What follows a cancelled request, and may block.
    pub jobs: Vec<Box<Job>>,
    /// Nobody looks here any more.
    pub closed: bool,
}

impl Mailbox {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.resumed.is_empty() && self.finished.is_empty() && self.jobs.is_empty()
    }
}

/// The requests of a connection that a CANCEL can end. Locked before `Waits::parked` and the mailbox.
#[derive(Default)]
pub struct Pending {
    /// Those that were answered with STATUS_PENDING and wait, by AsyncId.
    waiting: HashMap<u64, PendingRequest>,
    /// Messages on threads that may block: their requests are not in `waiting`, and may be there soon.
    jobs: usize,
    /// CANCELs that came while their request was perhaps among these, by AsyncId or MessageId, with their session; the oldest first.
    early: VecDeque<EarlyCancel>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyCancel {
    pub asynchronous: bool,
    /// The AsyncId, or the MessageId.
    pub id: u64,
    pub session_id: u64,
}

/// A connection has few requests under way; CANCELs of anything else are forgotten.
const EARLY_CANCELS_MAX: usize = 1024;

impl Pending {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The request that a CANCEL means: by AsyncId, or by MessageId. The MessageId 0 is NEGOTIATE's, which never waits:
    /// clients of Samba send it where they have no AsyncId yet (but not with AES-GMAC), for the request that they sent last.
    pub fn find(&self, asynchronous: bool, id: u64, session_id: u64) -> Option<(u64, PendingRequest)> {
        let named = |(id, p): (&u64, &PendingRequest)| (*id, *p);
        match (asynchronous, id) {
            (true, id) => self.waiting.get(&id).map(|p| (id, *p)),
            (false, 0) => {
                let own = self.waiting.iter().filter(|(_, p)| p.session_id == session_id);
                own.max_by_key(|(_, p)| p.message_id).map(named)
            }
            (false, id) => self.waiting.iter().find(|(_, p)| p.message_id == id).map(named),
        }
    }

    /// A request waits from now on; false: its CANCEL came before.
    pub fn wait(&mut self, id: u64, request: PendingRequest) -> bool {
        let PendingRequest { message_id, session_id, .. } = request;
        let means = |c: &EarlyCancel| match (c.asynchronous, c.id) {
            (true, named) => named == id,
            (false, named) => named == 0 || named == message_id,
        };
        let is_for = |c: &EarlyCancel| c.session_id == session_id && means(c);
        if let Some(at) = self.early.iter().position(is_for) {
            self.early.remove(at);
            return false;
        }
        self.waiting.insert(id, request);
        true
    }

    pub fn remove(&mut self, id: u64) -> bool {
        self.waiting.remove(&id).is_some()
    }

    /// All of them: the connection ends.
    pub fn drain(&mut self) -> Vec<PendingRequest> {
        self.waiting.drain().map(|(_, p)| p).collect()
    }

    pub fn begin_job(&mut self) {
        self.jobs += 1;
    }

    pub fn end_job(&mut self) {
        self.jobs -= 1;
        if self.jobs == 0 {
            self.early.clear();
        }
    }

    /// A CANCEL whose request does not wait: it does not begin to, if it is on a thread that may block.
    pub fn cancel_early(&mut self, cancel: EarlyCancel) {
        if self.jobs == 0 || self.early.contains(&cancel) {
            return;
        }
        if self.early.len() == EARLY_CANCELS_MAX {
            self.early.pop_front();
        }
        self.early.push_back(cancel);
    }
}

#[derive(Debug, Clone, Copy)]
pub struct PendingRequest {
    pub message_id: u64,
    /// Of the session that asked; 0 where there is none.
    pub session_id: u64,
    pub wait: arden_store::fs::WaitId,
}

impl Peer {
    pub fn dialect(&self) -> Dialect {
        self.negotiated.get().map_or(Dialect::Smb202, |n| n.dialect)
    }
    pub fn client_guid(&self) -> u128 {
        self.negotiated.get().map_or(0, |n| n.client_guid)
    }
    pub fn channel(&self, session_id: u64) -> Option<Arc<Channel>> {
        self.channels.read().get(&session_id).cloned()
    }
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
    pub fn send(&self, frame: Vec<u8>) {
        self.mailbox.lock().frames.push(frame);
        (self.wake)();
    }
    /// The message's answers are signed and sent by the connection. Given back where that is gone.
    pub fn finish(&self, finished: Finished) -> Option<Finished> {
        let mut mailbox = self.mailbox.lock();
        if mailbox.closed {
            return Some(finished);
        }
        mailbox.finished.push(finished);
        drop(mailbox);
        (self.wake)();
        None
    }
    pub fn resume(&self, chain: Chain) {
        self.mailbox.lock().resumed.push(chain);
        (self.wake)();
    }
}

/// A session on a connection, [MS-SMB2] 3.3.1.14.
pub struct Channel {
    pub session: Arc<Session>,
    pub signing: SigningKey,
    pub peer: Weak<Peer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SessionState {
    Valid = 0,
    Expired = 1,
    Deleted = 2,
}

/// [MS-SMB2] 3.3.1.8.
pub struct Session {
    pub id: u64,
    pub dialect: Dialect,
    /// Who its leases, create GUIDs and durable handles belong to: the client, as this session's user.
    pub client: ClientId,
    /// From where it was made.
    pub ip: std::net::IpAddr,
    pub signing_algorithm: SigningAlgorithm,
    pub created: Instant,
    pub created_at: FileTime,
    /// Milliseconds after `created`.
    used_ms: AtomicU64,
    /// When the user was last authenticated, likewise.
    authenticated_ms: AtomicU64,
    state: AtomicU8,
    /// The same user as long as the session lives; a re-authentication may bring other groups.
    pub user: RwLock<Arc<Token>>,
    pub anonymous: bool,
    pub signing_required: bool,
    pub encrypt_data: bool,
    /// The log names the client once that does not sign or encrypt though it has to.
    told_unprotected: AtomicBool,
    pub cipher: Option<Cipher>,
    /// Server to client, client to server.
    pub keys: Option<(CipherKey, CipherKey)>,
    /// Session.SigningKey: verifies binding requests, and signs their answers but the last.
    pub signing: SigningKey,
    /// MessageId of the answer that made the session: from here on its first connection signs with the same key.
    made_by_message: u64,
    /// Which MessageIds below that signed an answer to a binding request, a bit each.
    binding_ids: AtomicU64,
    nonce: AtomicU64,
    pub channels: Mutex<Vec<Arc<Channel>>>,
    pub trees: RwLock<HashMap<u32, Arc<Tree>>>,
    pub opens: RwLock<HashMap<u64, Arc<SmbOpen>>>,
    next_tree: AtomicU32,
}

/// What a new session starts with.
pub struct NewSession {
    pub id: u64,
    pub ip: std::net::IpAddr,
    /// Of the last SESSION_SETUP request.
    pub message_id: u64,
    pub user: Arc<Token>,
    pub anonymous: bool,
    pub signing_required: bool,
    pub encrypt_data: bool,
    pub keys: Option<(CipherKey, CipherKey)>,
    pub signing: SigningKey,
    pub time: Time,
}

impl Session {
    pub fn new(n: &Negotiated, new: NewSession) -> Session {
        Session {
            id: new.id,
            dialect: n.dialect,
            client: ClientId(crate::crypto::client_identity(n.client_guid, &new.user.user)),
            ip: new.ip,
            signing_algorithm: n.signing,
            created: new.time.now,
            created_at: new.time.wall,
            used_ms: AtomicU64::new(0),
            authenticated_ms: AtomicU64::new(0),
            state: AtomicU8::new(SessionState::Valid as u8),
            user: RwLock::new(new.user),
            anonymous: new.anonymous,
            signing_required: new.signing_required,
            encrypt_data: new.encrypt_data,
            told_unprotected: AtomicBool::new(false),
            cipher: n.cipher,
            keys: new.keys,
            signing: new.signing,
            made_by_message: new.message_id,
            binding_ids: AtomicU64::new(0),
            nonce: AtomicU64::new(1),
            channels: Mutex::new(Vec::new()),
            trees: RwLock::new(HashMap::new()),
            opens: RwLock::new(HashMap::new()),
            next_tree: AtomicU32::new(1),
        }
    }
    pub fn state(&self) -> SessionState {
        match self.state.load(Ordering::Acquire) {
            0 => SessionState::Valid,
            1 => SessionState::Expired,
            _ => SessionState::Deleted,
        }
    }
    fn ms_since_created(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.created).as_millis() as u64
    }
    pub fn touch(&self, now: Instant) {
        self.used_ms.store(self.ms_since_created(now), Ordering::Relaxed);
    }
    pub fn idle(&self, now: Instant) -> Duration {
        Duration::from_millis(self.ms_since_created(now).saturating_sub(self.used_ms.load(Ordering::Relaxed)))
    }
    /// The user proved again who he is.
    pub fn renew(&self, now: Instant) {
        self.authenticated_ms.store(self.ms_since_created(now), Ordering::Relaxed);
        self.change_state(SessionState::Expired, SessionState::Valid);
    }
    /// [MS-SMB2] 3.3.6.3: past its lifetime a session answers NETWORK_SESSION_EXPIRED until it is renewed.
    pub fn expire(&self, now: Instant, lifetime: Duration) {
        let age = self.ms_since_created(now).saturating_sub(self.authenticated_ms.load(Ordering::Relaxed));
        if u128::from(age) >= lifetime.as_millis() && self.state() == SessionState::Valid {
            tracing::info!(session = self.id, user = %self.token().user_name, "session expired");
            self.change_state(SessionState::Valid, SessionState::Expired);
        }
    }
    /// From one state to another; nothing where it is in a third.
    fn change_state(&self, from: SessionState, to: SessionState) {
        let _ = self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
    }
    /// Its last state. False: it had it already.
    pub fn delete(&self) -> bool {
        self.state.swap(SessionState::Deleted as u8, Ordering::AcqRel) != SessionState::Deleted as u8
    }
    /// Has a request on it to be signed or encrypted?
    pub fn requires_protection(&self) -> bool {
        !self.anonymous && (self.signing_required || self.encrypt_data)
    }
    /// Whether the log should say that a request was not protected: once for each session.
    pub fn tell_unprotected(&self) -> bool {
        !self.told_unprotected.swap(true, Ordering::Relaxed)
    }
    /// Whether `signing` may sign the answer to the binding request `message_id`, which is then used up. With AES-GMAC
    /// the MessageId is the nonce, and two messages under one nonce give the key's secret away, RFC 4543 5: so each id is
    /// used once, whatever connection it comes from, and only ids that the session's first connection never signs.
    pub fn take_binding_id(&self, message_id: u64) -> bool {
        if self.signing_algorithm != SigningAlgorithm::AesGmac {
            return true;
        }
        if message_id >= self.made_by_message.min(64) {
            return false;
        }
        let bit = 1 << message_id;
        self.binding_ids.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
    /// Never the same twice under one key, whatever channel sends.
    pub fn next_nonce(&self) -> [u8; 16] {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.nonce.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        nonce
    }
    pub fn next_tree_id(&self) -> u32 {
        self.next_tree.fetch_add(1, Ordering::Relaxed)
    }
    pub fn token(&self) -> Arc<Token> {
        self.user.read().clone()
    }
    /// A connection over which the client can be told something.
    pub fn live_peer(&self) -> Option<Arc<Peer>> {
        self.channels.lock().iter().filter_map(|c| c.peer.upgrade()).find(|p| !p.is_closed())
    }
}

/// [MS-SMB2] 3.3.1.9.
pub struct Tree {
    pub id: u32,
    pub session_id: u64,
    pub share: Arc<Share>,
    /// What the share allows the user who connected.
    pub maximal_access: u32,
    pub created: Instant,
}

impl Tree {
    /// What may be done through this tree connect: as much as the share permitted when it was made, and no more than it
    /// permits `who`, whose groups may have changed since.
    pub fn ceiling(&self, who: &Token) -> u32 {
        self.maximal_access & self.share.ceiling(who)
    }
}

/// A named pipe's conversation.
pub type PipeState = Mutex<Conversation>;

/// The server's end of a pipe, and the reads that wait for it to say something.
pub struct Conversation {
    pub pipe: Box<dyn arden_rpc::Pipe>,
    pub readers: Vec<arden_store::fs::WaitId>,
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
    pub session: Option<Weak<Session>>,
    pub tree_id: u32,
    pub durability: Durability,
    /// When a disconnected open is given up.
    pub expires: Option<Instant>,
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
    pub state: Mutex<OpenState>,
    /// FilePositionInformation and FileModeInformation, which the protocol keeps for its client.
    pub position: AtomicU64,
    /// Open.CurrentQuotaIndex, from 0.
    pub quota_index: AtomicU64,
    pub mode: AtomicU32,
    /// Byte-range locks of a persistent open, as they are kept. Held while the table is asked.
    pub(crate) kept_locks: Mutex<crate::persist::KeptLocks>,
    /// Requests on this handle that run on threads of their own; a close waits for them.
    pub work: Work,
    /// What it holds of the server.
    pub usage: OpenUsage,
}

/// Counts work in progress.
#[derive(Default)]
pub struct Work {
    count: Mutex<usize>,
    done: Condvar,
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
    pub fn begin_work(&self) {
        *self.work.count.lock() += 1;
    }
    pub fn end_work(&self) {
        *self.work.count.lock() -= 1;
        self.work.done.notify_all();
    }
    pub fn has_work(&self) -> bool {
        *self.work.count.lock() > 0
    }
    pub fn wait_for_work(&self) {
        let mut count = self.work.count.lock();
        while *count > 0 {
            self.work.done.wait(&mut count);
        }
    }
    pub fn session(&self) -> Option<Arc<Session>> {
        self.state.lock().session.as_ref().and_then(Weak::upgrade)
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
