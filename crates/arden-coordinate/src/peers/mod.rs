//! Connections between the nodes of a cluster: mutual TLS 1.3, in which each side knows the other by the fingerprint that etcd has of
//! it, and a hello that says which cluster, node, run and version both are of. Owns the table of nodes as etcd tells of them. Refuses
//! to know what is said on a connection afterwards. A connection ends when its node leaves the table, or is not alive by it any more.

mod ask;
mod hello;
mod listener;
mod stream;
mod verify;

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rustls::pki_types::ServerName;
use tokio::{io::BufReader, net::TcpStream, sync::watch, time::timeout};
use tokio_rustls::{TlsConnector, TlsStream};

use crate::identity::{Fingerprint, Identity};

pub use ask::answer;
pub use hello::Purpose;
pub use listener::{HALF_OPEN_MAX, HALF_OPEN_PER_ADDRESS_MAX, Listener, OnRefused};
pub use stream::PeerStream;

/// Versions of what nodes say to each other, oldest and newest. One line for each bump:
/// 1: the first.
/// 2: requests of a compound are asked for together; who asks is said once.
/// 3: a session of another node is ended by the one that replaces it.
/// 4: a long frame may come in pieces.
pub const PROTOCOL: (u32, u32) = (1, 4);
/// One address of a node has so long to take a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// Handshake and hello have so long.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);
/// The watch may tell of a node that has just put its key so much later than the node connects.
const ALIVE_WAIT: Duration = Duration::from_secs(1);
/// Addresses of one node that are tried.
const ADDRESSES_MAX: usize = 8;

/// Why there is no connection to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerError {
    /// etcd has no such node, no certificate or no address of it. Nothing was sent.
    Unknown(String),
    /// No connection, or it broke.
    Unreachable(String),
    /// The peer was too slow.
    Late(String),
    /// The peer is not the node that it should be, or it does not trust this one.
    NotTrusted(String),
    /// What the peer sent is not understood.
    Malformed(String),
    /// Another cluster, or no version or feature level that both know.
    Incompatible(String),
    /// By etcd the peer is not alive, or another daemon is alive as that node; or this node's own lease is not good.
    NotAlive(String),
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerError::Unknown(why)
            | PeerError::Unreachable(why)
            | PeerError::Late(why)
            | PeerError::NotTrusted(why)
            | PeerError::Malformed(why)
            | PeerError::Incompatible(why)
            | PeerError::NotAlive(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for PeerError {}

/// This node, as its hello says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Me {
    /// Id of the cluster.
    pub cluster: String,
    pub node: u16,
    pub run: String,
    /// Oldest and newest version of the protocol.
    pub versions: (u32, u32),
    /// The cluster's feature level, and the newest one that this node knows.
    pub feature_level: u32,
    pub feature_level_max: u32,
}

/// A node, as etcd tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub name: String,
    /// None: it joined before nodes had certificates, and has not started since.
    pub fingerprint: Option<Fingerprint>,
    /// The run that etcd says is alive; None: it is not alive. Of this node: while its lease is good by its own clock.
    pub run: Option<String>,
    /// Where it listens for nodes, while its lease is good.
    pub addresses: Vec<String>,
}

/// All nodes, by number.
pub type Table = Arc<BTreeMap<u16, Known>>;

/// A connection to a node.
#[derive(Debug)]
pub struct Connected {
    pub node: u16,
    /// The life of its daemon.
    pub run: String,
    /// The newest version of the protocol that both know.
    pub version: u32,
    /// What the node that made the connection wants.
    pub purpose: Purpose,
    pub stream: PeerStream,
}

/// The nodes of a cluster, and connections to them.
#[derive(Debug)]
pub struct Peers {
    me: Me,
    identity: Identity,
    table: watch::Sender<Table>,
}

impl Peers {
    pub fn new(me: Me, identity: Identity, table: BTreeMap<u16, Known>) -> Arc<Peers> {
        Arc::new(Peers { me, identity, table: watch::Sender::new(Arc::new(table)) })
    }

    pub fn me(&self) -> &Me {
        &self.me
    }

    /// The nodes as etcd has them now. Connections to those whose fingerprint or run is gone, or another, end; and all that are for shares,
    /// when this node itself is not alive.
    pub fn set(&self, table: BTreeMap<u16, Known>) {
        self.table.send_if_modified(|old| {
            let differs = **old != table;
            *old = Arc::new(table);
            differs
        });
    }

    /// The nodes as this one knows them.
    pub fn table(&self) -> watch::Receiver<Table> {
        self.table.subscribe()
    }

    fn known(&self, node: u16) -> Option<Known> {
        self.table.borrow().get(&node).cloned()
    }

    /// Whether a node listens at this address.
    fn has_address(&self, ip: IpAddr) -> bool {
        let listens = |address: &String| address.parse::<SocketAddr>().is_ok_and(|a| a.ip().to_canonical() == ip);
        self.table.borrow().values().any(|known| known.addresses.iter().any(listens))
    }

    /// The node with this certificate.
    fn of_fingerprint(&self, fingerprint: Fingerprint) -> Option<u16> {
        self.table.borrow().iter().find(|(_, k)| k.fingerprint == Some(fingerprint)).map(|(n, _)| *n)
    }

    /// Connects to a node, for its shares. Within a runtime with I/O and time.
    ///
    /// # Errors
    /// See [`PeerError`]; the message names the node.
    pub async fn connect(&self, node: u16) -> Result<Connected, PeerError> {
        self.connect_for(node, Purpose::Forward).await
    }

    async fn connect_for(&self, node: u16, purpose: Purpose) -> Result<Connected, PeerError> {
        let known = self.known(node).ok_or_else(|| PeerError::Unknown(format!("the cluster has no node {node}")))?;
        let name = known.name.clone();
        self.connect_to(node, known, purpose).await.map_err(|e| e.of(&format!("node {name}")))
    }

    async fn connect_to(&self, node: u16, known: Known, purpose: Purpose) -> Result<Connected, PeerError> {
        if node == self.me.node {
            return Err(PeerError::Unknown("it is this node itself".to_string()));
        }
        let fingerprint = known.fingerprint.ok_or_else(|| {
            PeerError::Unknown("it has no certificate yet; it makes one when its daemon starts".to_string())
        })?;
        if purpose == Purpose::Forward && !stream::is_me_alive(&self.table.borrow(), &self.me) {
            return Err(PeerError::NotAlive("this node's own lease is not good".to_string()));
        }
        let tcp = reach(&known.addresses).await?;
        let config = verify::client(self.identity.certified(), fingerprint)?;
        let whole = async {
            // The name is neither sent nor looked at.
            let name = ServerName::try_from("node.arden").map_err(|e| PeerError::Malformed(e.to_string()))?;
            let tls = TlsConnector::from(config).connect(name, buffered(tcp)).await.map_err(|e| of_io(&e))?;
            let mut tls = TlsStream::from(tls);
            let vouch = |agreed| self.vouch(node, fingerprint, agreed, Some(purpose));
            let agreed = hello::exchange(&mut tls, &self.me, node, purpose, vouch).await?;
            Ok(self.connected(node, fingerprint, (agreed, purpose), tls))
        };
        timeout(HANDSHAKE_WAIT, whole).await.unwrap_or_else(|_| Err(late()))
    }

    /// That by etcd the peer is alive as the run that its hello names, and that this node may have the connection. Waits for the watch.
    /// `purpose`: what this node connects for; None: the peer's hello says it.
    async fn vouch(
        &self,
        node: u16,
        fingerprint: Fingerprint,
        agreed: hello::Agreed,
        purpose: Option<Purpose>,
    ) -> Result<hello::Agreed, PeerError> {
        let bond = self.bond(node, fingerprint, &agreed.run, purpose.unwrap_or(agreed.purpose));
        let mut table = self.table.subscribe();
        let why = match timeout(ALIVE_WAIT, table.wait_for(|t| bond.holds(t))).await {
            Ok(_) => return Ok(agreed),
            Err(_) if bond.is_peer_there(&self.table.borrow()) => format!("node {} has no lease", self.me.node),
            Err(_) => format!("node {node} is not alive in etcd, or another daemon has its name"),
        };
        Err(PeerError::NotAlive(why))
    }

    fn bond(&self, node: u16, fingerprint: Fingerprint, run: &str, purpose: Purpose) -> stream::Bond {
        let me = (purpose == Purpose::Forward).then(|| self.me.clone());
        stream::Bond { me, node, fingerprint, run: run.to_string() }
    }

    /// `purpose`: of the node that made the connection.
    fn connected(
        &self,
        node: u16,
        fingerprint: Fingerprint,
        (agreed, purpose): (hello::Agreed, Purpose),
        mut tls: TlsStream<Tcp>,
    ) -> Connected {
        match &mut tls {
            TlsStream::Client(tls) => tls.get_mut().1.set_buffer_limit(Some(WRITE_BYTES)),
            TlsStream::Server(tls) => tls.get_mut().1.set_buffer_limit(Some(WRITE_BYTES)),
        }
        let bond = self.bond(node, fingerprint, &agreed.run, purpose);
        let stream = PeerStream::new(tls, self.table.subscribe(), bond);
        Connected { node, run: agreed.run, version: agreed.version, purpose, stream }
    }
}

impl PeerError {
    /// The error with the peer in front.
    fn of(self, peer: &str) -> PeerError {
        let with = |why: String| format!("{peer}: {why}");
        match self {
            PeerError::Unknown(why) => PeerError::Unknown(with(why)),
            PeerError::Unreachable(why) => PeerError::Unreachable(with(why)),
            PeerError::Late(why) => PeerError::Late(with(why)),
            PeerError::NotTrusted(why) => PeerError::NotTrusted(with(why)),
            PeerError::Malformed(why) => PeerError::Malformed(with(why)),
            PeerError::Incompatible(why) => PeerError::Incompatible(with(why)),
            PeerError::NotAlive(why) => PeerError::NotAlive(with(why)),
        }
    }
}

/// TLS reads 4 KiB at once: this asks the system for more.
type Tcp = BufReader<TcpStream>;

const READ_BYTES: usize = 128 << 10;
/// Of what is written at once, TLS keeps so much to give it to the system.
const WRITE_BYTES: usize = 256 << 10;

/// What the system keeps on the way to another node, in each direction: what a user sends waits behind no more of another's than that.
const SYSTEM_BYTES: usize = 256 << 10;

fn buffered(tcp: TcpStream) -> Tcp {
    // Left alone it keeps up to tens of megabytes.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&tcp, SYSTEM_BYTES);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&tcp, SYSTEM_BYTES);
    BufReader::with_capacity(READ_BYTES, tcp)
}

fn late() -> PeerError {
    PeerError::Late(format!("no handshake within {} s", HANDSHAKE_WAIT.as_secs()))
}

/// A connection to the first address that takes one.
async fn reach(addresses: &[String]) -> Result<TcpStream, PeerError> {
    let mut why = PeerError::Unknown("it is not alive, or does not listen for nodes".to_string());
    for address in addresses.iter().take(ADDRESSES_MAX) {
        why = match timeout(CONNECT_WAIT, TcpStream::connect(address.as_str())).await {
            Ok(Ok(tcp)) => {
                let _ = tcp.set_nodelay(true);
                return Ok(tcp);
            }
            Ok(Err(e)) => PeerError::Unreachable(format!("{address}: {e}")),
            Err(_) => PeerError::Unreachable(format!("{address}: no connection within {} s", CONNECT_WAIT.as_secs())),
        };
    }
    Err(why)
}

/// An error of the stream, by blame. Those of TLS are inside those of I/O.
fn of_io(e: &io::Error) -> PeerError {
    use rustls::{AlertDescription, CertificateError, Error};
    match e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) => {
            PeerError::NotTrusted("its certificate is not the one that etcd has".to_string())
        }
        Some(Error::InvalidCertificate(CertificateError::BadSignature)) => {
            PeerError::NotTrusted("it does not have the key of its certificate".to_string())
        }
        Some(Error::InvalidCertificate(other)) => {
            PeerError::NotTrusted(format!("its certificate is not usable: {other}"))
        }
        Some(Error::NoCertificatesPresented) => PeerError::NotTrusted("it has no certificate".to_string()),
        Some(Error::AlertReceived(AlertDescription::AccessDenied)) => {
            let why =
                "it does not know this node's certificate: this node left or was removed, or is of another cluster";
            PeerError::NotTrusted(why.to_string())
        }
        Some(Error::AlertReceived(AlertDescription::DecryptError)) => {
            PeerError::NotTrusted("it says that this node does not have the key of its certificate".to_string())
        }
        Some(Error::AlertReceived(alert)) => PeerError::NotTrusted(format!("it refuses with the alert {alert:?}")),
        Some(Error::PeerIncompatible(why)) => PeerError::Incompatible(format!("no TLS 1.3 in common: {why:?}")),
        Some(Error::InvalidMessage(_)) => PeerError::Malformed("what it sends is no TLS".to_string()),
        Some(other) => PeerError::Malformed(format!("TLS: {other}")),
        None if e.kind() == io::ErrorKind::UnexpectedEof => {
            PeerError::Unreachable("it ended the connection before its hello".to_string())
        }
        None => PeerError::Unreachable(e.to_string()),
    }
}

#[cfg(test)]
mod tests;
