//! How the server is set up: limits, interfaces, policy, and who it is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arden_auth::UserDb;

use crate::base::usage::UsageLimits;

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
    /// Answers to failed logons that wait on one connection; with more, the connection is not read from meanwhile.
    pub delayed_answers_per_connection_max: usize,
    /// Channels bound to one session, [MS-SMB2] 3.3.5.5.
    pub channels_per_session_max: usize,
    /// Requests of one message; credits bound them too.
    pub chain_max: usize,
    /// The same while the connection has no session. All of them are handled at once, without a thread that may block.
    pub chain_before_logon_max: usize,
    /// A connection without a session is closed after this time.
    pub handshake_timeout: Duration,
    /// Longest time a disconnected durable handle is kept.
    pub durable_timeout_max: Duration,
    pub durable_timeout_default: Duration,
    pub resilient_timeout_max: Duration,
    /// Persistent opens of one user, connected or not; beyond, opens are granted without persistence.
    pub persistent_opens_per_user_max: usize,
    /// Byte-range locks on the persistent opens of one user; beyond, LOCK is INSUFFICIENT_RESOURCES.
    pub persistent_locks_per_user_max: usize,
    /// UTF-16 units of the name and of the path of a persistent open; a longer one is granted without persistence, and one
    /// that is renamed to a longer path is kept without that, by the file's id alone.
    pub persistent_path_units_max: usize,
    /// Largest read, write and transaction, [MS-SMB2] 3.3.5.4.
    pub io_bytes_max: u32,

    // Connections, logons under way, sessions. An address is an IPv4 address or an IPv6 /64; see `admission`.
    /// Connections of one address, those with sessions included. Addresses of the server itself have no such limit.
    pub connections_per_address_max: usize,
    /// Connections without a session: a newer one closes the oldest.
    pub connections_waiting_max: usize,
    pub connections_waiting_per_address_max: usize,
    /// While no more connections than these are left, only administrators log on. At most an eighth of `connections_max`.
    pub connections_reserved: usize,
    /// Busy connections that have a thread of their own, for each core; while more are busy, none has.
    pub connection_threads_per_core: usize,
    /// Logons under way: a SESSION_SETUP was answered with MORE_PROCESSING_REQUIRED.
    pub setups_per_connection_max: usize,
    pub setups_per_address_max: usize,
    pub setups_max: usize,
    /// A logon under way is forgotten after this time.
    pub setup_timeout: Duration,
    pub sessions_per_user_max: usize,
    /// Logons of a user over RPC, which count as sessions too.
    pub rpc_logons_per_user_max: usize,
    /// Sessions that one address made. Addresses of the server itself have no such limit.
    pub sessions_per_address_max: usize,
    /// The last of `sessions_max` that only administrators get. At most an eighth of it.
    pub sessions_reserved: usize,

    // What requests cost.
    /// What users, addresses and everybody may hold.
    pub usage: UsageLimits,
    /// The answers to one message, which one transport frame has to hold: its length has 24 bits. What does not fit is
    /// answered with INSUFFICIENT_RESOURCES.
    pub answer_bytes_max: usize,
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
            delayed_answers_per_connection_max: 8,
            channels_per_session_max: 32,
            chain_max: crate::base::window::CREDITS_MAX as usize,
            chain_before_logon_max: 16,
            handshake_timeout: Duration::from_secs(30),
            durable_timeout_max: Duration::from_secs(300),
            durable_timeout_default: Duration::from_secs(60),
            resilient_timeout_max: Duration::from_secs(300),
            persistent_opens_per_user_max: 16_384,
            persistent_locks_per_user_max: 262_144,
            persistent_path_units_max: 2_048,
            io_bytes_max: 8 << 20,

            connections_per_address_max: 1024,
            connections_waiting_max: 1024,
            connections_waiting_per_address_max: 128,
            connections_reserved: 32,
            connection_threads_per_core: 8,
            setups_per_connection_max: 64,
            setups_per_address_max: 256,
            setups_max: 4096,
            setup_timeout: Duration::from_secs(30),
            sessions_per_user_max: 2048,
            rpc_logons_per_user_max: 256,
            sessions_per_address_max: 4096,
            sessions_reserved: 64,

            usage: UsageLimits::default(),
            answer_bytes_max: 0xFF_FFFF,
        }
    }
}

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
    /// Shares of the cluster have a witness, [MS-SWN].
    pub has_witness: AtomicBool,
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
    pub fn has_witness(&self) -> bool {
        self.has_witness.load(Ordering::Relaxed)
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
