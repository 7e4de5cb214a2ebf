//! A session, [MS-SMB2] 3.3.1.8: its user, keys, channels, tree connects and opens, and how long it is valid.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_auth::Token;
use arden_lock::{Mutex, ranks};
use arden_store::fs::ClientId;
use arden_wire::{
    FileTime,
    smb2::{
        Dialect,
        negotiate::{Cipher, SigningAlgorithm},
    },
};

use crate::{
    base::{grants::AllGrants, time::Time},
    model::{Negotiated, SessionTables},
    sessions::{
        Channel, Peer,
        crypto::{CipherKey, SigningKey},
        to_be_told,
    },
};

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
    pub client: ClientId,
    /// Its tree connects, its opens and its user, as the trees know them.
    pub tables: Arc<SessionTables>,
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
    pub channels: Mutex<Vec<Arc<Channel>>, ranks::SessionChannels>,
}

/// What a new session starts with.
pub struct NewSession {
    pub id: u64,
    /// Never the same twice.
    pub serial: u64,
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
    pub fn new(n: &Negotiated, grants: &AllGrants, new: NewSession) -> Session {
        let client = ClientId(crate::sessions::crypto::client_identity(n.client_guid, &new.user.user));
        let of_client = (client, grants.of(client));
        Session {
            id: new.id,
            dialect: n.dialect,
            client,
            tables: Arc::new(SessionTables::new((new.serial, new.id), of_client, new.user, new.encrypt_data)),
            ip: new.ip,
            signing_algorithm: n.signing,
            created: new.time.now,
            created_at: new.time.wall,
            used_ms: AtomicU64::new(0),
            authenticated_ms: AtomicU64::new(0),
            state: AtomicU8::new(SessionState::Valid as u8),
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
            tracing::info!(session = %format_args!("{:x}", self.id), user = %self.token().user_name, "session expired");
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
    pub fn token(&self) -> Arc<Token> {
        self.tables.token()
    }
    /// A connection that it has.
    pub fn live_peer(&self) -> Option<Arc<Peer>> {
        self.channels.lock().iter().filter_map(|c| c.peer.upgrade()).find(|p| !p.is_closed())
    }
    /// The connection over which the client is told something.
    pub fn told_peer(&self) -> Option<Arc<Peer>> {
        let channels = self.channels.lock();
        to_be_told(channels.iter().filter_map(|c| c.peer.upgrade()).filter(|p| !p.is_closed()), |p| p)
    }
}
