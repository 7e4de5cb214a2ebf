//! Where other nodes connect to. Limits what a stranger can cost: connections without a finished hello are few, in all and for each
//! address, and live for [`HANDSHAKE_WAIT`](super::HANDSHAKE_WAIT). Refuses in silence to those above the limits.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::{Connected, HANDSHAKE_WAIT, PeerError, Peers, buffered, hello, late, of_io, verify};
use crate::identity::Fingerprint;

/// Connections that have not said a good hello, or that nobody has accepted yet.
pub const HALF_OPEN_MAX: usize = 64;
/// Of these, from one address, as [`arden_auth::network`] counts them; nodes, which may be of one network, each for itself.
pub const HALF_OPEN_PER_ADDRESS_MAX: usize = 16;
/// A listener that cannot accept tries again after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// A refused peer has so long, and so many bytes, to read why.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 16 << 10;

/// Is told of each connection that was refused.
pub type OnRefused = Arc<dyn Fn(SocketAddr, &PeerError) + Send + Sync>;

/// Half-open connections.
#[derive(Debug, Default)]
struct HalfOpen {
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// One of them, while it lives.
#[derive(Debug)]
struct Place {
    of: Arc<HalfOpen>,
    address: IpAddr,
}

impl HalfOpen {
    /// None: there are too many.
    fn enter(self: &Arc<HalfOpen>, address: IpAddr) -> Option<Place> {
        let mut by_address = self.by_address.lock();
        let all: usize = by_address.values().sum();
        let here = by_address.get(&address).copied().unwrap_or(0);
        if all >= HALF_OPEN_MAX || here >= HALF_OPEN_PER_ADDRESS_MAX {
            return None;
        }
        by_address.insert(address, here + 1);
        Some(Place { of: self.clone(), address })
    }
}

/// What an address counts as.
fn counted(address: IpAddr, is_of_a_node: impl Fn(IpAddr) -> bool) -> IpAddr {
    let address = address.to_canonical();
    let network = arden_auth::network(address);
    if network != address && is_of_a_node(address) { address } else { network }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_address = self.of.by_address.lock();
        match by_address.get_mut(&self.address) {
            Some(n) if *n > 1 => *n -= 1,
            _ => _ = by_address.remove(&self.address),
        }
    }
}

/// Listens for nodes until it is dropped.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    accepted: mpsc::Receiver<(Connected, Place)>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens on `address`, within a runtime with I/O and time.
    ///
    /// # Errors
    /// Unreachable, when the address cannot be listened on.
    pub async fn bind(address: SocketAddr, peers: &Arc<Peers>, on_refused: OnRefused) -> Result<Listener, PeerError> {
        let failed = |e: std::io::Error| PeerError::Unreachable(format!("cannot listen on {address}: {e}"));
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let acceptor = TlsAcceptor::from(verify::server(peers)?);
        let (tx, accepted) = mpsc::channel(HALF_OPEN_MAX);
        let task = tokio::spawn(run(listener, acceptor, peers.clone(), on_refused, tx));
        Ok(Listener { address, accepted, task })
    }

    /// With the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection of a node. None: the listener has ended.
    pub async fn accept(&mut self) -> Option<Connected> {
        self.accepted.recv().await.map(|(connected, _place)| connected)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    peers: Arc<Peers>,
    on_refused: OnRefused,
    accepted: mpsc::Sender<(Connected, Place)>,
) {
    let half_open = Arc::new(HalfOpen::default());
    loop {
        let (tcp, from) = match listener.accept().await {
            Ok(new) => new,
            Err(e) => {
                tracing::warn!("no connection from a node: {e}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let Some(place) = half_open.enter(counted(from.ip(), |ip| peers.has_address(ip))) else { continue };
        let (acceptor, peers) = (acceptor.clone(), peers.clone());
        let (on_refused, accepted) = (on_refused.clone(), accepted.clone());
        tokio::spawn(async move {
            match timeout(HANDSHAKE_WAIT, welcome(&acceptor, &peers, tcp)).await.unwrap_or_else(|_| Err(late())) {
                Ok(connected) => _ = accepted.send((connected, place)).await,
                Err(e) => on_refused(from, &e),
            }
        });
    }
}

/// Finds out which node has connected.
async fn welcome(acceptor: &TlsAcceptor, peers: &Arc<Peers>, tcp: TcpStream) -> Result<Connected, PeerError> {
    let _ = tcp.set_nodelay(true);
    let tls = match acceptor.accept(buffered(tcp)).into_fallible().await {
        Ok(tls) => tls,
        Err((e, tcp)) => {
            linger(tcp.into_inner()).await;
            return Err(of_io(&e));
        }
    };
    let certificate = tls.get_ref().1.peer_certificates().and_then(|c| c.first()).map(Fingerprint::of);
    let fingerprint = certificate.ok_or_else(|| PeerError::NotTrusted("it has no certificate".to_string()))?;
    let gone = || PeerError::NotTrusted("the node has left the cluster".to_string());
    let node = peers.of_fingerprint(fingerprint).ok_or_else(gone)?;
    let mut tls = TlsStream::from(tls);
    let vouch = |agreed| peers.vouch(node, fingerprint, agreed, None);
    let agreed = hello::exchange(&mut tls, &peers.me, node, hello::Purpose::default(), vouch).await;
    let agreed = agreed.map_err(|e| e.of(&format!("node {node}")))?;
    let purpose = agreed.purpose;
    Ok(peers.connected(node, fingerprint, (agreed, purpose), tls))
}

/// Lets the peer read the alert: what it has sent and nobody has read would break the connection before it has.
async fn linger(mut tcp: TcpStream) {
    let _ = tcp.shutdown().await;
    let rest = async {
        let (mut buffer, mut read) = ([0u8; 1024], 0);
        while read < LINGER_BYTES_MAX {
            match tcp.read(&mut buffer).await {
                Ok(n) if n > 0 => read += n,
                _ => return,
            }
        }
    };
    let _ = timeout(LINGER, rest).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host chooses any address of its /64, and nodes may be in it.
    #[test]
    fn a_host_with_many_addresses_keeps_no_node_out() {
        let node: IpAddr = "2001:db8::ffff".parse().unwrap();
        let half_open = Arc::new(HalfOpen::default());
        let enter = |ip: IpAddr| half_open.enter(counted(ip, |ip| ip == node));
        let at = |n: usize| format!("2001:db8::{n:x}").parse::<IpAddr>().unwrap();
        let held: Vec<Place> = (0..HALF_OPEN_MAX).filter_map(|n| enter(at(n))).collect();
        assert_eq!(held.len(), HALF_OPEN_PER_ADDRESS_MAX);
        let nodes: Vec<Place> = std::iter::from_fn(|| enter(node)).collect();
        assert_eq!(nodes.len(), HALF_OPEN_PER_ADDRESS_MAX, "a node counts for itself");
        assert!(enter("2001:db8:0:1::1".parse().unwrap()).is_some());
        drop(held);
        assert!(enter(at(1)).is_some());
    }
}
