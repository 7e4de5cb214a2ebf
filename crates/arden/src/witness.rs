//! The witness service of a node, with its endpoint mapper: ports, and what the witness has to know of the cluster. Decides
//! nothing.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use arden_admin::{State, names::key};
use arden_auth::Token;
use arden_coordinate::Member;
use arden_rpc::{
    endpoint_mapper::EndpointMapper,
    tcp::TcpService,
    witness::{self, Cluster, ClusterState, NodeState, Witness},
};
use tokio::{net::TcpListener, sync::watch};

use crate::server::SmbControl;

/// How often the witness looks at the cluster.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A client that is silent for so long is asked whether it is there, then this often, and given up after so many times.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMES: u32 = 4;

/// TCP ports.
pub struct Ports {
    /// Of the endpoint mapper; 0: there is no witness.
    pub mapper: u16,
    /// Of the witness; 0: any that is free.
    pub witness: u16,
}

/// What the witness sees of the cluster.
struct View {
    member: Arc<Member>,
    state: Arc<State>,
}

impl Cluster for View {
    fn state(&self) -> ClusterState {
        let snapshot = self.state.snapshot();
        let owner = |volume: &str| {
            let pool = snapshot.volumes.get(&key(volume))?.pool.as_deref()?;
            self.member.owner_seen(u128::from_str_radix(pool, 16).ok()?).map(|(node, _)| node)
        };
        let shares = snapshot.shares.values();
        let shares = shares.map(|s| (s.name.to_lowercase(), s.volume.as_deref().and_then(owner))).collect();
        let at = |pool: &str| self.member.owner_seen(u128::from_str_radix(pool, 16).ok()?).map(|(node, _)| node);
        let floating = snapshot.addresses.values().map(|a| (a.address, at(&a.pool))).collect();
        let nodes = self.member.nodes_seen().into_iter().map(|n| NodeState {
            addresses: n.ips().into_iter().collect(),
            number: n.number,
            name: n.name,
            alive: n.alive,
            drained: n.drained,
        });
        let (name, here) = (snapshot.server_name(), self.member.number());
        ClusterState { name, here, nodes: nodes.collect(), shares, floating }
    }

    fn may_use(&self, user: &Token, share: &str) -> bool {
        let snapshot = self.state.snapshot();
        snapshot.shares.get(&key(share)).is_some_and(|share| SmbControl::ceiling(share, user) != 0)
    }
}

async fn listen(ip: IpAddr, port: u16) -> std::io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind((ip, port)).await?;
    // Connections inherit it. A client of version 1 that is gone is not noticed otherwise.
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(&listener, true)?;
    sockopt::set_tcp_keepidle(&listener, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&listener, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(&listener, KEEPALIVE_TIMES)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Offers the witness at every address that the SMB server listens on. Where a port is not to be had, there is none, and
/// clients are not told to look for one.
pub async fn start(
    control: &Arc<SmbControl>,
    member: &Arc<Member>,
    state: &Arc<State>,
    ports: &Ports,
    stopped: &watch::Receiver<bool>,
) {
    if ports.mapper == 0 {
        return;
    }
    let ips: BTreeSet<IpAddr> = control.addresses().iter().map(SocketAddr::ip).collect();
    let mut listeners = Vec::new();
    for ip in ips {
        let both =
            async { Ok::<_, std::io::Error>((listen(ip, ports.witness).await?, listen(ip, ports.mapper).await?)) };
        match both.await {
            Ok(both) => listeners.push(both),
            Err(e) => {
                tracing::warn!(address = %ip, endpoint_mapper = ports.mapper,
                    "there is no witness service, as a port cannot be listened on: {e}");
                return;
            }
        }
    }
    let view = Arc::new(View { member: member.clone(), state: state.clone() });
    let keys = control.clone();
    let service = Witness::new(view, Box::new(move || keys.random()));
    let witnesses = TcpService::new(vec![service.clone()]);
    for ((listener, port), (mapper, _)) in listeners {
        tracing::info!(address = ?listener.local_addr().ok(), "the witness service listens");
        control.serve_rpc(listener, witnesses.clone(), stopped.clone());
        let endpoints = EndpointMapper::new(vec![(witness::SYNTAX, port)]);
        control.serve_rpc(mapper, TcpService::new(vec![Arc::new(endpoints)]), stopped.clone());
    }
    control.has_witness();
    tokio::spawn(look(service, member.clone(), stopped.clone()));
}

/// Tells the witness what happens, until the daemon stops.
async fn look(service: Arc<Witness>, member: Arc<Member>, mut stopped: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let now = Instant::now();
        for (client, to) in member.take_client_moves() {
            let told = service.move_clients(&client, to, now);
            tracing::info!(client, to, told, "a client is moved to another node");
        }
        service.look(now);
    }
}
