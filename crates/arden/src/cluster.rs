//! Clusters and their nodes on the command line. A daemon becomes a node while it does not run; everything else is asked of the daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arden_admin::{
    AdminError, State, StateDirectory,
    address::{AddressInfo, NewAddress},
    client::segment,
    cluster::{
        ClusterInfo, ClusterToken, FeatureLevel, NodeChange, NodeInfo, NodeLink, PoolFence, PoolMove, PoolOwnership,
        PoolTake,
    },
    error::Result,
    model::SessionInfo,
    names,
};
use arden_cluster::{Epoch, PoolId};
use arden_coordinate::{ClientFiles, EtcdFiles, Membership, NewCluster, departure, membership};
use arden_host::newest_epoch;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::commands::Out;
use crate::founding;
use crate::table::{Table, yes};

#[derive(Debug, Subcommand)]
pub enum ClusterVerb {
    /// Make a cluster of which this daemon is the first node, with its users, shares and pools. A daemon that serves begins anew as the
    /// node: clients connect again, and persistent and durable handles are kept.
    /// Who can write to etcd is trusted with everything: it keeps password hashes, and names programs that nodes run
    #[command(
        after_help = "Example:\n  arden cluster init FILES --etcd https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379 --etcd-ca ca.pem --etcd-cert node.pem --etcd-key node.key"
    )]
    Init {
        /// Name of the cluster, which becomes that of the server
        name: String,
        #[command(flatten)]
        node: NodeOptions,
        /// Seconds after which a node that is not heard of has lost its pools
        #[arg(long, value_name = "SECONDS", default_value_t = 5)]
        lease: u64,
    },
    /// Make this daemon a node of a cluster, with an empty state directory; while the daemon does not run
    #[command(
        after_help = "Example:\n  arden --state /var/lib/arden cluster join --etcd http://10.0.0.1:2379 --token-stdin"
    )]
    Join {
        #[command(flatten)]
        node: NodeOptions,
        /// Token that `arden cluster token` printed; other users of this machine may see it while the command runs
        #[arg(long, required_unless_present = "token_stdin")]
        token: Option<String>,
        /// Read the token from the first line of standard input
        #[arg(long, conflicts_with = "token")]
        token_stdin: bool,
    },
    /// Make a token with which one node joins within an hour
    #[command(after_help = "Example:\n  arden cluster token")]
    Token,
    /// Show the cluster, its nodes and who owns each pool
    #[command(after_help = "Example:\n  arden cluster show --json")]
    Show,
    /// Raise the cluster's feature level to the newest that all nodes know, after all of them were updated. Nodes write nothing that the
    /// level does not have, so that older ones understand it; it cannot be lowered, and an older arden does not start then
    #[command(after_help = "Example:\n  arden cluster upgrade")]
    Upgrade,
    /// Make this node a daemon without a cluster, and without users, shares and pools; while the daemon does not run
    #[command(after_help = "Example:\n  arden cluster leave")]
    Leave,
    /// Believe etcd again after it was restored from an older state; while the daemon does not run
    #[command(after_help = "Example:\n  arden cluster trust")]
    Trust,
}

#[derive(Debug, Args)]
pub struct NodeOptions {
    /// URLs of etcd, all with http:// or all with https://
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    pub etcd: Vec<String>,
    /// File with the certificates of the authorities that sign those of etcd, for https URLs; the system's are not used. This
    /// and the two other files are read where they are, for each new connection
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// File with this node's certificate for etcd
    #[arg(long, value_name = "FILE", requires = "etcd_ca", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// File with the key of that certificate
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// Name of this node, as fence agents know it [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum NodeVerb {
    /// List the nodes of the cluster
    #[command(after_help = "Example:\n  arden node list --json")]
    List,
    /// Show a node: its pools, its clients, and whether this one reaches it
    #[command(after_help = "Example:\n  arden node show n2 --json")]
    Show { node: String },
    /// Connect to every other node, and say whether both sides know each other
    #[command(after_help = "Example:\n  arden node check")]
    Check,
    /// Let a node give up all its pools to others, and own none until it is resumed, also after a restart
    #[command(after_help = "Example:\n  arden node drain n2")]
    Drain { node: String },
    /// Let a node own pools again
    #[command(after_help = "Example:\n  arden node resume n2")]
    Resume { node: String },
    /// Take a node out of the cluster for good. It must not be alive, nor able to write to a pool's disks
    #[command(after_help = "Example:\n  arden node remove n2")]
    Remove { node: String },
}

#[derive(Debug, Subcommand)]
pub enum AddressVerb {
    /// Add an address that the owner of a pool has. It is put on the interface after the pool's shares are served, and taken away
    /// before the pool is handed over; a node that is killed or frozen loses it with its lease. The daemons need CAP_NET_ADMIN, and
    /// CAP_NET_RAW to tell neighbours
    #[command(after_help = "Example:\n  arden address add 10.0.0.50/24 --interface eth0 --pool tank")]
    Add {
        /// The address, with the length of the prefix of its network
        #[arg(value_name = "ADDRESS/PREFIX")]
        address: String,
        /// Interface that gets the address; it has this name at every node
        #[arg(long, value_name = "NAME")]
        interface: String,
        /// The node that owns this pool has the address
        #[arg(long)]
        pool: String,
    },
    /// List floating addresses, the node that has each now, and what keeps clients from it
    #[command(after_help = "Example:\n  arden address list --json")]
    List,
    /// Remove a floating address; the node that has it gives it up at once
    #[command(after_help = "Example:\n  arden address remove 10.0.0.50")]
    Remove {
        /// The address, with or without the prefix
        address: String,
    },
}

fn node_name(options: &NodeOptions) -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    options.node.clone().unwrap_or_else(host)
}

/// The files for TLS to etcd.
fn etcd_files(options: &NodeOptions) -> Result<Option<EtcdFiles>> {
    let Some(ca) = options.etcd_ca.clone() else { return Ok(None) };
    let client = options.etcd_cert.clone().zip(options.etcd_key.clone());
    let files = EtcdFiles { ca, client: client.map(|(certificate, key)| ClientFiles { certificate, key }) };
    files
        .absolute()
        .map(Some)
        .map_err(|e| AdminError::invalid(format!("a file for TLS to etcd: {e}"), "check its path"))
}

const START_IT: &str = "; `arden serve` starts it";

fn shown(out: &Out, m: &Membership, next: &str) {
    let value = serde_json::json!({"cluster": m.cluster.name, "id": m.cluster.id, "node": m.name, "number": m.node});
    out.show(&value, |_| format!("node {} (number {}) of the cluster {}{next}\n", m.name, m.node, m.cluster.name));
}

/// The pools of the state, and what the labels of their disks say.
pub fn pools(state: &State) -> Result<membership::Pools> {
    let snapshot = state.snapshot();
    let pool = |r: &arden_admin::storage::PoolRecord| {
        let id = u128::from_str_radix(&r.id, 16)
            .map_err(|_| AdminError::failed(format!("pool {}: wrong id", r.name), ""))?;
        Ok((PoolId(id), Epoch(newest_epoch(r)?)))
    };
    snapshot.pools.values().map(pool).collect()
}

fn token_of(token: Option<String>) -> Result<String> {
    if let Some(token) = token {
        return Ok(token.trim().to_string());
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|e| AdminError::failed(format!("standard input: {e}"), ""))?;
    Ok(line.trim().to_string())
}

pub fn directory(path: &Path) -> Result<Arc<StateDirectory>> {
    StateDirectory::open(path).map(Arc::new)
}

/// Runs a command on the cluster.
///
/// # Errors
/// That of the daemon, of etcd, or of the state directory.
pub fn cluster(out: &Out, verb: ClusterVerb) -> Result<()> {
    match verb {
        ClusterVerb::Init { name, node, lease } => {
            names::check_server(&name)?;
            let (name_of_node, etcd_tls) = (node_name(&node), etcd_files(&node)?);
            let new = NewCluster { name, node: name_of_node, etcd: node.etcd, etcd_tls, lease_seconds: lease };
            let (m, serves) = founding::init(out, &new)?;
            shown(out, &m, if serves { ", and serves" } else { START_IT });
        }
        ClusterVerb::Join { node, token, .. } => {
            let token = token_of(token)?;
            let name = node_name(&node);
            let files = etcd_files(&node)?;
            let m = membership::join(&directory(&out.state)?, &node.etcd, files, &token, &name)?;
            shown(out, &m, START_IT);
        }
        ClusterVerb::Token => {
            let token: ClusterToken = out.client.post("/v1/cluster/tokens", &serde_json::json!({}))?;
            out.show(&token, |t| format!("{}\n", t.token));
        }
        ClusterVerb::Show => {
            let cluster: ClusterInfo = out.client.get("/v1/cluster")?;
            out.show(&cluster, cluster_text);
        }
        ClusterVerb::Upgrade => {
            let raised: FeatureLevel = out.client.put_body("/v1/cluster/level", &serde_json::json!({}))?;
            out.show(&raised, |r| match r.level == r.before {
                true => format!("the feature level is {}, the newest that the nodes know\n", r.level),
                false => format!("the feature level is {}; it was {}\n", r.level, r.before),
            });
        }
        ClusterVerb::Leave => {
            let m = departure::leave(&*directory(&out.state)?)?;
            let text = format!(
                "{} left the cluster {}; this daemon stands alone, and without a state",
                m.name, m.cluster.name
            );
            out.done(text);
        }
        ClusterVerb::Trust => {
            let m = membership::trust(&*directory(&out.state)?)?;
            out.done(format!("node {} believes etcd as it is; `arden serve` starts it", m.name));
        }
    }
    Ok(())
}

/// Runs a command on nodes.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn node(out: &Out, verb: NodeVerb) -> Result<()> {
    match verb {
        NodeVerb::List => {
            let cluster: ClusterInfo = out.client.get("/v1/cluster")?;
            out.show(&cluster.nodes, |nodes| node_table(nodes));
        }
        NodeVerb::Show { node } => show_node(out, &node)?,
        NodeVerb::Drain { node } => change_node(out, &node, true)?,
        NodeVerb::Resume { node } => change_node(out, &node, false)?,
        NodeVerb::Remove { node } => {
            out.client.delete(&format!("/v1/cluster/nodes/{}", segment(&node)))?;
            out.done(format!("node {node} is not of the cluster any more"));
        }
        NodeVerb::Check => {
            let links: Vec<NodeLink> = out.client.get("/v1/cluster/links")?;
            out.show(&links, |links| link_table(links));
            let failed = links.iter().filter(|l| !l.connected).count();
            if failed > 0 {
                let hint = "check the network, --cluster-listen there, and that its daemon runs";
                return Err(AdminError::failed(format!("no connection to {failed} of {} nodes", links.len()), hint));
            }
        }
    }
    Ok(())
}

/// Runs a command on floating addresses.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn address(out: &Out, verb: AddressVerb) -> Result<()> {
    match verb {
        AddressVerb::Add { address, interface, pool } => {
            let added: AddressInfo = out.client.post("/v1/addresses", &NewAddress { address, interface, pool })?;
            out.show(&added, |a| format!("address {} added: the owner of {} has it\n", a.address, a.pool));
        }
        AddressVerb::List => {
            let addresses: Vec<AddressInfo> = out.client.get("/v1/addresses")?;
            out.show(&addresses, |all| {
                let mut t = Table::new(&["ADDRESS", "INTERFACE", "POOL", "NODE", "PROBLEM"]);
                for a in all {
                    t.row([&a.address, &a.interface, &a.pool, &a.node, &a.problem].map(String::clone));
                }
                t.text("no floating addresses; `arden address add ADDRESS/PREFIX` adds one")
            });
        }
        AddressVerb::Remove { address } => {
            out.client.delete(&format!("/v1/addresses/{}", segment(&address)))?;
            out.done(format!("address {address} removed"));
        }
    }
    Ok(())
}

/// A node, and what the others know of it.
#[derive(Serialize)]
struct NodeShown {
    node: NodeInfo,
    /// Pools that it owns.
    owns: Vec<String>,
    /// Pools whose disks its commands may still reach.
    may_reach: Vec<String>,
    /// Sessions of clients that are connected to it, and what they have open.
    sessions: usize,
    opens: u32,
    /// Whether the node that answers reaches it; None for itself.
    link: Option<NodeLink>,
}

fn show_node(out: &Out, name: &str) -> Result<()> {
    let cluster: ClusterInfo = out.client.get("/v1/cluster")?;
    let found = cluster.nodes.iter().find(|n| names::key(&n.name) == names::key(name));
    let node = found.ok_or_else(|| AdminError::not_found("node", name))?.clone();
    let sessions: Vec<SessionInfo> = out.client.get("/v1/sessions")?;
    let here = sessions.iter().filter(|s| s.node == node.name);
    let links: Vec<NodeLink> = if node.alive { out.client.get("/v1/cluster/links")? } else { Vec::new() };
    let holds = |p: &&PoolOwnership| p.holders.iter().any(|h| h.rsplit_once(':').is_some_and(|(n, _)| n == node.name));
    let pools = |of: Vec<&PoolOwnership>| of.iter().map(|p| p.pool.clone()).collect();
    let shown = NodeShown {
        owns: pools(cluster.pools.iter().filter(|p| p.owner == node.name).collect()),
        may_reach: pools(cluster.pools.iter().filter(holds).collect()),
        sessions: here.clone().count(),
        opens: here.map(|s| s.opens).sum(),
        link: links.into_iter().find(|l| l.node == node.name),
        node,
    };
    out.show(&shown, node_text);
    Ok(())
}

fn node_text(n: &NodeShown) -> String {
    let list = |pools: &[String]| if pools.is_empty() { "none".to_string() } else { pools.join(", ") };
    let mut t = node_table(std::slice::from_ref(&n.node));
    t += &format!("owns: {}\nmay still reach the disks of: {}\n", list(&n.owns), list(&n.may_reach));
    t += &format!("clients: {} sessions, {} opens\n", n.sessions, n.opens);
    if let Some(link) = &n.link {
        t += &link_table(std::slice::from_ref(link));
    }
    t
}

fn change_node(out: &Out, node: &str, drained: bool) -> Result<()> {
    let path = format!("/v1/cluster/nodes/{}", segment(node));
    let changed: NodeInfo = out.client.patch(&path, &NodeChange { drained })?;
    out.show(&changed, |n| node_table(std::slice::from_ref(n)));
    Ok(())
}

fn node_table(nodes: &[NodeInfo]) -> String {
    let mut t = Table::new(&["NODE", "NUMBER", "ALIVE", "DRAINED", "LEVEL", "ADDRESSES", "FOR NODES", "RUN"]);
    for n in nodes {
        t.row([
            n.name.clone(),
            n.number.to_string(),
            yes(n.alive),
            yes(n.drained),
            n.feature_level.to_string(),
            n.addresses.join(", "),
            n.node_addresses.join(", "),
            n.run.clone(),
        ]);
    }
    t.text("no nodes")
}

fn link_table(links: &[NodeLink]) -> String {
    let mut t = Table::new(&["NODE", "CONNECTED", "RUN", "NOTE"]);
    for l in links {
        t.row([l.node.clone(), yes(l.connected), l.run.clone(), l.reason.clone()]);
    }
    t.text("no other nodes")
}

fn owner_table(pools: &[PoolOwnership]) -> String {
    let mut t = Table::new(&["POOL", "OWNER", "EPOCH", "OWNERSHIP", "HOLDERS", "FENCE", "NOTE"]);
    for p in pools {
        t.row([
            p.pool.clone(),
            p.owner.clone(),
            p.epoch.to_string(),
            p.state.clone(),
            p.holders.join(", "),
            p.fence.clone(),
            p.reason.clone(),
        ]);
    }
    t.text("no pools")
}

fn cluster_text(c: &ClusterInfo) -> String {
    let mut out = format!(
        "cluster {} ({}), lease {} s, feature level {}, etcd {}\n",
        c.name,
        c.id,
        c.lease_seconds,
        c.feature_level,
        c.etcd.join(", ")
    );
    if !c.distrusts_etcd.is_empty() {
        out += &format!("etcd is not believed: {}\n", c.distrusts_etcd);
    }
    out + &node_table(&c.nodes) + &owner_table(&c.pools)
}

fn owned(out: &Out, pool: &PoolOwnership) {
    out.show(pool, |p| owner_table(std::slice::from_ref(p)));
}

/// Hands a pool over.
///
/// # Errors
/// That of the API.
pub fn move_pool(out: &Out, pool: &str, to: String) -> Result<()> {
    owned(out, &out.client.put_body(&format!("/v1/pools/{}/owner", segment(pool)), &PoolMove { to })?);
    Ok(())
}

/// Takes a pool over without a fence.
///
/// # Errors
/// That of the API.
pub fn take_pool(out: &Out, pool: &str, sure: bool) -> Result<()> {
    owned(out, &out.client.put_body(&format!("/v1/pools/{}/take", segment(pool)), &PoolTake { sure })?);
    Ok(())
}

/// Says how holders of a pool are fenced.
///
/// # Errors
/// That of the API.
pub fn set_fence(out: &Out, pool: &str, fence: PoolFence) -> Result<()> {
    owned(out, &out.client.put_body(&format!("/v1/pools/{}/fence", segment(pool)), &fence)?);
    Ok(())
}
