//! What an administrator sees of a cluster and asks of it: the types of the API, and the trait that a node implements.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    address::AddressAtNode,
    control::Control,
    error::{AdminError, ErrorKind, Result},
    model::{Id, OpenInfo, SessionInfo},
};

/// An answer to another node has 64 MiB at most.
const OPENS_BYTES_MAX: usize = 48 << 20;
/// What the JSON of an open has beside its names.
const OPEN_FIELDS_BYTES: usize = 320;

/// A cluster, as one of its nodes knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Cluster")]
pub struct ClusterInfo {
    /// The cluster's name, which is the server's.
    pub name: String,
    /// Identity of the cluster, 32 hexadecimal digits.
    pub id: String,
    /// The node that answers.
    pub node: String,
    /// Time to live of a node's lease.
    pub lease_seconds: u64,
    /// Nodes write nothing that this level does not have.
    pub feature_level: u32,
    /// URLs of etcd.
    pub etcd: Vec<String>,
    /// Why etcd is not believed; empty: it is.
    pub distrusts_etcd: String,
    /// All nodes.
    pub nodes: Vec<NodeInfo>,
    /// Who owns each pool.
    pub pools: Vec<PoolOwnership>,
}

/// What a cluster has from some feature level on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    FloatingAddresses,
    ScaleOutShares,
    NvmeFence,
}

impl Feature {
    fn level(self) -> u32 {
        match self {
            Feature::FloatingAddresses | Feature::ScaleOutShares => 2,
            Feature::NvmeFence => 3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Feature::FloatingAddresses => "floating addresses",
            Feature::ScaleOutShares => "scale-out shares",
            Feature::NvmeFence => "fences of kind nvme",
        }
    }
}

impl ClusterInfo {
    /// Nodes that do not know a feature would not understand what is written of it.
    ///
    /// # Errors
    /// Conflict, when the cluster's feature level does not have it.
    pub fn check_has(&self, feature: Feature) -> Result<()> {
        let (level, needs, name) = (self.feature_level, feature.level(), feature.name());
        if level >= needs {
            return Ok(());
        }
        let error = format!("{name} need the feature level {needs}, and the cluster's is {level}");
        Err(AdminError::new(ErrorKind::Conflict, error, "update all nodes, then run `arden cluster upgrade`"))
    }
}

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Node")]
pub struct NodeInfo {
    /// The node's number.
    pub number: u16,
    /// The node's name.
    pub name: String,
    /// Whether its lease is good.
    pub alive: bool,
    /// It is to own no pools, until it is resumed.
    pub drained: bool,
    /// The newest feature level that it knows.
    pub feature_level: u32,
    /// This life of its daemon; empty while it is not alive.
    pub run: String,
    /// Where clients connect to it; empty while it is not alive.
    pub addresses: Vec<String>,
    /// Where other nodes connect to it; empty while it is not alive.
    pub node_addresses: Vec<String>,
}

/// Whether a node of a cluster can connect to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeLink {
    /// The other node's name.
    pub node: String,
    /// A connection was made, and both sides know each other by their certificates.
    pub connected: bool,
    /// The life of the daemon that answered; empty without a connection.
    pub run: String,
    /// Why there is no connection; empty when there is.
    pub reason: String,
}

/// Who owns a pool of a cluster, as the node that answers knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolOwnership {
    /// The pool's name.
    pub pool: String,
    /// The owner's name; empty without one.
    pub owner: String,
    /// Number of the last ownership.
    pub epoch: u64,
    /// The newest epoch that a label of the pool's disks may bear.
    pub written: u64,
    /// How far the node that answers has come with owning it, or `elsewhere`.
    pub state: String,
    /// Why it does not go on; empty when it does.
    pub reason: String,
    /// Nodes whose commands may still reach a disk, with the epoch of each: `NODE:EPOCH`.
    pub holders: Vec<String>,
    /// How holders are fenced: none, scsi, nvme, or agent:PATH.
    pub fence: String,
    /// Names of the agent's options; options of the fence nvme whole.
    pub fence_options: Vec<String>,
}

/// A token with which a node joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterToken {
    /// Good once.
    pub token: String,
    /// And for so long.
    pub seconds: u64,
}

/// The feature level of a cluster after it was raised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FeatureLevel {
    /// The level now.
    pub level: u32,
    /// The level before; the same, when it was the newest that the nodes know.
    pub before: u32,
}

/// What is changed of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// It gives its pools up, and owns none until it is resumed, also after a restart.
    pub drained: bool,
}

/// The node that is to own a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolMove {
    /// The node's name.
    pub to: String,
}

/// Moves a client to another node, by the witness service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientMove {
    /// The name that the client has registered with, or its address.
    pub client: String,
    /// The node's name.
    pub to: String,
}

/// Lets a pool be taken over without a fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolTake {
    /// Every node that is a holder is off, and will not write again before it has started anew.
    pub sure: bool,
}

/// How holders of a pool are fenced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolFence {
    /// none, scsi, nvme, or agent:PATH.
    pub fence: String,
    /// `NAME=VALUE` for the agent; `volatile=yes` for nvme.
    #[serde(default)]
    pub options: Vec<String>,
}

/// A node of a cluster, or a daemon that stands alone. Calls block on etcd.
pub trait ClusterAdmin: Send + Sync {
    /// The cluster with its nodes.
    ///
    /// # Errors
    /// Conflict without a cluster; failed, when etcd does not answer.
    fn cluster(&self) -> Result<ClusterInfo>;
    /// Has the daemon begin anew as the first node of a cluster, soon after this has returned.
    ///
    /// # Errors
    /// Conflict, when it is a node, or has what a cluster cannot serve; invalid; those of etcd.
    fn found(&self, new: &FoundCluster) -> Result<()>;
    /// Who owns the pools, without asking etcd. None without a cluster.
    fn ownerships(&self) -> Vec<PoolOwnership>;
    /// A new token.
    ///
    /// # Errors
    /// Conflict without a cluster; failed, when etcd does not answer.
    fn new_token(&self) -> Result<ClusterToken>;
    /// Raises the feature level to the newest that all nodes know.
    ///
    /// # Errors
    /// Conflict, when a node does not know more than the level is, and without a cluster; failed, when etcd does not answer.
    fn raise_level(&self) -> Result<FeatureLevel>;
    /// The name of this node; empty without a cluster.
    fn node_name(&self) -> String;
    /// The number of this node; 0 without a cluster.
    fn node_number(&self) -> u16;
    /// Whether this daemon is a node.
    ///
    /// # Errors
    /// Conflict, when it is not.
    fn check_is_cluster(&self) -> Result<()> {
        if self.node_name().is_empty() { alone() } else { Ok(()) }
    }
    /// The other node that owns a pool, without asking etcd. None: this node does, or nobody.
    fn owner_elsewhere(&self, pool: PoolKey<'_>) -> Option<OtherNode>;
    /// The other nodes that are alive, without asking etcd.
    fn others(&self) -> Vec<OtherNode>;
    /// Has a request of an administrator handled by another node, as long as that takes.
    ///
    /// # Errors
    /// Conflict, when the node cannot be asked, because it may have lost its pools; Failed, when it does not answer.
    fn handled_by(&self, node: &OtherNode, request: &NodeRequest) -> Result<NodeResponse>;
    /// Waits for a moment until this node has heard which pools there are now, and which node owns each.
    ///
    /// # Errors
    /// Conflict without a cluster or a lease; failed, when etcd does not answer.
    fn hear_of_pools(&self) -> Result<()>;
    /// Asks every other node that is alive. The answers that came in time, each with the node's name.
    fn ask_nodes(&self, question: &NodeQuestion) -> Vec<(String, NodeAnswer)>;
    /// Connects to every other node.
    ///
    /// # Errors
    /// Conflict without a cluster.
    fn check_nodes(&self) -> Result<Vec<NodeLink>>;
    /// Makes a node give up all its pools and waits for that, or lets it own pools again.
    ///
    /// # Errors
    /// Not found; conflict, when no other node could own its pools.
    fn change_node(&self, node: &str, change: &NodeChange) -> Result<NodeInfo>;
    /// Takes a node out of the cluster.
    ///
    /// # Errors
    /// Not found; conflict, when it is alive, may still write to a disk, or is the last one.
    fn remove_node(&self, node: &str) -> Result<()>;
    /// Hands a pool over to another node, and waits for it.
    ///
    /// # Errors
    /// Not found, for pool or node; conflict, when the pool has no owner or the node is not alive.
    fn move_pool(&self, pool: &str, to: &PoolMove) -> Result<PoolOwnership>;
    /// Tells a client by the witness service to go to a node. A client that has not registered is not told.
    ///
    /// # Errors
    /// Not found, for the node; conflict, when it is not alive.
    fn move_client(&self, order: &ClientMove) -> Result<ClientMove>;
    /// Lets this node take a pool over without a fence.
    ///
    /// # Errors
    /// Not found; invalid, unless the administrator is sure; conflict, when the pool is served.
    fn take_pool(&self, pool: &str, take: &PoolTake) -> Result<PoolOwnership>;
    /// Says how holders of a pool are fenced.
    ///
    /// # Errors
    /// Not found; invalid, for a fence that is none; conflict, for one that is not supported.
    fn set_fence(&self, pool: &str, fence: &PoolFence) -> Result<PoolOwnership>;
}

/// What names a pool.
#[derive(Debug, Clone, Copy)]
pub enum PoolKey<'a> {
    Name(&'a str),
    Id(u128),
}

/// Another node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherNode {
    pub number: u16,
    pub name: String,
}

/// A request to the API of another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRequest {
    pub method: String,
    /// With the query.
    pub path: String,
    /// JSON, or nothing.
    pub body: String,
}

/// What its API answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeResponse {
    pub status: u16,
    pub body: String,
}

/// What a node asks another for an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeQuestion {
    Sessions,
    Opens,
    CloseSession(Id),
    CloseOpen(Id),
    CloseUserSessions(String),
    /// The floating addresses of its pools. A node that does not know the question does not answer.
    Addresses,
    /// Answered when what any node has changed before is in force there. A node that does not know the question does not answer.
    CatchUp,
}

/// What a node sends another for an administrator. A node that does not know it does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ToNode {
    /// Answered with a [`NodeResponse`].
    Request { request: NodeRequest },
    /// Answered with a [`NodeAnswer`].
    Question(NodeQuestion),
}

/// The answer to a [`NodeQuestion`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeAnswer {
    Sessions(Vec<SessionInfo>),
    Opens(Vec<OpenInfo>),
    /// How many were closed.
    Closed(usize),
    Addresses(Vec<AddressAtNode>),
    CaughtUp,
}

impl NodeQuestion {
    /// The answer of this node alone, which has caught up. May wait for the disk.
    pub fn answer(&self, control: &dyn Control) -> NodeAnswer {
        match self {
            NodeQuestion::Sessions => NodeAnswer::Sessions(control.sessions()),
            NodeQuestion::Addresses => NodeAnswer::Addresses(control.floating_addresses()),
            NodeQuestion::Opens => NodeAnswer::Opens(tellable(control.opens())),
            NodeQuestion::CatchUp => NodeAnswer::CaughtUp,
            NodeQuestion::CloseSession(id) => NodeAnswer::Closed(control.close_session(*id).into()),
            NodeQuestion::CloseOpen(id) => NodeAnswer::Closed(control.close_open(*id).into()),
            NodeQuestion::CloseUserSessions(user) => NodeAnswer::Closed(control.close_user_sessions(user)),
        }
    }
}

/// What a string takes in JSON, at most.
fn json_bytes(text: &str) -> usize {
    let of_byte = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..=0x1F => 6,
        _ => 1,
    };
    text.bytes().map(of_byte).sum()
}

/// As many opens as another node takes in one answer: it would take none of a longer one.
fn tellable(mut opens: Vec<OpenInfo>) -> Vec<OpenInfo> {
    let mut left = OPENS_BYTES_MAX;
    let mut fits = |open: &OpenInfo| {
        let names = [&open.path, &open.user, &open.share, &open.client];
        let bytes = names.into_iter().map(|name| json_bytes(name)).sum::<usize>() + OPEN_FIELDS_BYTES;
        left = left.saturating_sub(bytes);
        left > 0
    };
    let told = opens.iter().take_while(|open| fits(open)).count();
    if told < opens.len() {
        tracing::warn!(opens = opens.len(), told, "too many opens to tell another node of all");
        opens.truncate(told);
    }
    opens
}

/// How a daemon that stands alone becomes the first node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FoundCluster {
    /// Name of the cluster, which becomes that of the server.
    pub name: String,
    /// Name of the node.
    pub node: String,
    /// URLs of etcd.
    pub etcd: Vec<String>,
    /// Absolute paths of files in PEM on the daemon's machine: the authorities that sign etcd's certificates.
    #[serde(default)]
    pub etcd_ca: Option<String>,
    /// The node's certificate for etcd.
    #[serde(default)]
    pub etcd_cert: Option<String>,
    /// The key of that certificate.
    #[serde(default)]
    pub etcd_key: Option<String>,
    /// Time to live of a node's lease.
    pub lease_seconds: u64,
}

/// Checks that the daemon can become that, and has it begin anew as the node.
pub type Founder = Box<dyn Fn(&FoundCluster) -> Result<()> + Send + Sync>;

/// A daemon that stands alone.
#[derive(Default)]
pub struct NoCluster {
    pub founder: Option<Founder>,
}

fn alone<T>() -> Result<T> {
    let error = "this daemon is not a node of a cluster";
    Err(AdminError::new(ErrorKind::Conflict, error, "`arden cluster init` or `arden cluster join` makes it one"))
}

impl ClusterAdmin for NoCluster {
    fn found(&self, new: &FoundCluster) -> Result<()> {
        self.founder.as_ref().map_or_else(alone, |founder| founder(new))
    }
    fn node_name(&self) -> String {
        String::new()
    }
    fn node_number(&self) -> u16 {
        0
    }
    fn owner_elsewhere(&self, _: PoolKey<'_>) -> Option<OtherNode> {
        None
    }
    fn others(&self) -> Vec<OtherNode> {
        Vec::new()
    }
    fn handled_by(&self, _: &OtherNode, _: &NodeRequest) -> Result<NodeResponse> {
        alone()
    }
    fn hear_of_pools(&self) -> Result<()> {
        alone()
    }
    fn ask_nodes(&self, _: &NodeQuestion) -> Vec<(String, NodeAnswer)> {
        Vec::new()
    }
    fn cluster(&self) -> Result<ClusterInfo> {
        alone()
    }
    fn ownerships(&self) -> Vec<PoolOwnership> {
        Vec::new()
    }
    fn new_token(&self) -> Result<ClusterToken> {
        alone()
    }
    fn raise_level(&self) -> Result<FeatureLevel> {
        alone()
    }
    fn check_nodes(&self) -> Result<Vec<NodeLink>> {
        alone()
    }
    fn change_node(&self, _: &str, _: &NodeChange) -> Result<NodeInfo> {
        alone()
    }
    fn remove_node(&self, _: &str) -> Result<()> {
        alone()
    }
    fn move_pool(&self, _: &str, _: &PoolMove) -> Result<PoolOwnership> {
        alone()
    }
    fn move_client(&self, _: &ClientMove) -> Result<ClientMove> {
        alone()
    }
    fn take_pool(&self, _: &str, _: &PoolTake) -> Result<PoolOwnership> {
        alone()
    }
    fn set_fence(&self, _: &str, _: &PoolFence) -> Result<PoolOwnership> {
        alone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_with_older_nodes_has_nothing_that_they_do_not_know() {
        let at = |feature_level| ClusterInfo {
            name: String::new(),
            id: String::new(),
            node: String::new(),
            lease_seconds: 5,
            feature_level,
            etcd: Vec::new(),
            distrusts_etcd: String::new(),
            nodes: Vec::new(),
            pools: Vec::new(),
        };
        for feature in [Feature::FloatingAddresses, Feature::ScaleOutShares] {
            let error = at(1).check_has(feature).unwrap_err();
            assert!(error.kind == ErrorKind::Conflict && error.error.contains("is 1"), "{error}");
            at(2).check_has(feature).unwrap();
            at(3).check_has(feature).unwrap();
        }
        assert!(at(2).check_has(Feature::NvmeFence).unwrap_err().error.contains("need the feature level 3"));
        at(3).check_has(Feature::NvmeFence).unwrap();
    }

    /// Another node would take nothing of an answer that is too long.
    #[test]
    fn opens_are_told_as_far_as_an_answer_goes() {
        let open = |id: u64| OpenInfo {
            id: Id(id),
            session: Some(Id(u64::MAX)),
            user: "u".repeat(20),
            client: "[fe80::1234:5678:9abc:def0]:65535".to_string(),
            share: "s".repeat(80),
            path: "\\".repeat(1027),
            access: u32::MAX,
            cache: "lease rwh".to_string(),
            durable: false,
            locks: u32::MAX,
            node: String::new(),
        };
        let few: Vec<_> = (0..10).map(open).collect();
        assert_eq!(tellable(few.clone()), few);
        let control = OpenInfo { path: "\u{1}".repeat(1027), ..open(1) };
        let told = tellable(vec![control; 30_000]);
        assert!(serde_json::to_vec(&NodeAnswer::Opens(told)).unwrap().len() < OPENS_BYTES_MAX);
        let told = tellable((0..30_000).map(open).collect());
        let bytes = serde_json::to_vec(&NodeAnswer::Opens(told.clone())).unwrap().len();
        assert!(bytes < OPENS_BYTES_MAX && bytes > OPENS_BYTES_MAX * 3 / 4, "{bytes} of {}", told.len());
        assert_eq!(told[..10], few[..]);
    }
}
