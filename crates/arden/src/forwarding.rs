//! Shares that other nodes of the cluster own: where they are, and connections to there, as the SMB server asks for them; and what
//! other nodes ask of this one. Decides nothing.

use std::{
    io,
    net::IpAddr,
    sync::{Arc, Weak},
};

use arden_admin::{
    State,
    api::{self, Api},
    cluster::ToNode,
    names::key,
};
use arden_coordinate::{
    Member,
    peers::{self, Connected, Listener, Purpose},
};
use arden_smb::{
    Server,
    forward::{Dialed, Nodes, Place, Stream, owner},
    time::Time,
    wire::{Target, Version},
};

use crate::server::{Gates, recorded_pool};

/// Where shares are, by what this node knows of the cluster.
pub struct Places {
    pub member: Arc<Member>,
    pub state: Arc<State>,
    /// The pools that this node serves.
    pub served: Arc<Gates>,
}

impl Nodes for Places {
    fn place(&self, share: &str) -> Place {
        let snapshot = self.state.snapshot();
        let pool = snapshot.shares.get(&key(share)).and_then(|share| recorded_pool(&snapshot, share));
        // Of a volume whose pool is not known yet the owner alone can tell.
        let Some(pool) = pool else { return Place::Here };
        match self.member.owner_seen(pool) {
            Some((node, _)) if node == self.member.number() => match self.served.are_open(pool) {
                true => Place::Here,
                false => Place::Nobody,
            },
            // Without a lease what this node knows of users, shares and owners may be old.
            Some((node, epoch)) if self.member.has_lease() => Place::Node(node, Target { pool, epoch }),
            Some(_) | None => Place::Nobody,
        }
    }

    fn addresses(&self, node: u16) -> Vec<IpAddr> {
        let nodes = self.member.nodes_seen();
        let of = |number| nodes.iter().find(|n| n.number == number).map(|n| n.ips()).unwrap_or_default();
        let (there, here) = (of(node), of(self.member.number()));
        // Nodes of one machine have the same addresses, and differ in the port, which a redirect does not name.
        if there.iter().any(|ip| here.contains(ip)) { Vec::new() } else { there.into_iter().collect() }
    }

    fn others(&self) -> Vec<u16> {
        let me = self.member.number();
        let nodes = self.member.nodes_seen();
        nodes.into_iter().filter(|node| node.alive && node.number != me).map(|node| node.number).collect()
    }

    fn dial(&self, node: u16) -> Dialed {
        let peers = self.member.peers().clone();
        Box::pin(async move {
            let connected = peers.connect(node).await.map_err(|e| {
                tracing::warn!("shares of another node cannot be reached: {e}");
                io::Error::other(e)
            })?;
            let version = version(&connected)?;
            Ok((Box::new(connected.stream) as Box<dyn Stream>, version))
        })
    }
}

// What nodes say that they speak is what they do speak.
const _: () = assert!(peers::PROTOCOL.0 == Version::OLDEST as u32 && peers::PROTOCOL.1 == Version::NEWEST as u32);

/// What both nodes speak.
fn version(connected: &Connected) -> io::Result<Version> {
    Version::of(connected.version).ok_or_else(|| {
        let (node, settled) = (connected.node, connected.version);
        io::Error::other(format!("version {settled} of the protocol was settled with node {node}, and is not known"))
    })
}

/// Serves the nodes that connect: they ask for their clients, or for an administrator.
pub async fn welcome(mut listener: Listener, server: Arc<Server>, api: Weak<Api>) {
    while let Some(connected) = listener.accept().await {
        let version = match version(&connected) {
            Ok(version) => version,
            Err(e) => {
                tracing::warn!("a node is not served: {e}");
                continue;
            }
        };
        let Connected { node, run, stream, purpose, .. } = connected;
        tracing::debug!(node, run, ?version, ?purpose, "another node connected");
        let (server, api) = (server.clone(), api.clone());
        tokio::spawn(async move {
            match purpose {
                Purpose::Forward => {
                    owner::serve(&server, node, (Box::new(stream), version), Arc::new(Time::read)).await
                }
                Purpose::Ask => {
                    if let Err(e) = peers::answer(stream, |question| reply(api, question)).await {
                        tracing::warn!(node, "a node that asks is not answered: {e}");
                    }
                }
            }
        });
    }
}

/// The answer to a question about this node's clients, or to a request about what it owns; empty where there is none.
async fn reply(api: Weak<Api>, question: Vec<u8>) -> Vec<u8> {
    let answer = match serde_json::from_slice(&question) {
        Ok(ToNode::Request { request }) => match api.upgrade() {
            Some(api) => serde_json::to_vec(&api::handle_for_node(api, request).await).ok(),
            None => None,
        },
        Ok(ToNode::Question(question)) => match api.upgrade() {
            Some(api) => match api::answer_node(&api, question).await {
                Ok(answer) => serde_json::to_vec(&answer).ok(),
                Err(e) => {
                    tracing::warn!("a question of another node is not answered: {e}");
                    None
                }
            },
            None => None,
        },
        Err(_) => None,
    };
    answer.unwrap_or_default()
}
