//! A daemon that is a node: what it has of etcd, and what an administrator asks of it.

mod pools;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use arden_admin::{
    AdminError, ErrorKind, State,
    cluster::{
        ClientMove, ClusterAdmin, ClusterInfo, ClusterToken, FeatureLevel, FoundCluster, NodeAnswer, NodeChange,
        NodeInfo, NodeLink, NodeQuestion, NodeRequest, NodeResponse, OtherNode, PoolFence, PoolKey, PoolMove,
        PoolOwnership, PoolTake, ToNode,
    },
    error::Result,
    names::key,
    secret,
    state::StateStore,
};
use arden_cluster::{Epoch, HOLDERS_MAX, Holder, PoolId, Record, Stage};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    agent::{Fence, Reserve},
    claims::Claims,
    departure::{self, Attempt},
    etcd::{Etcd, EtcdError, Found, If, Then},
    gate::LeaseGate,
    keys::{self, AliveValue, ClientMoveValue, ConfigValue, MoveValue, Names, NodeValue, PoolKeys},
    level,
    membership::{self, Membership, TOKEN_SECONDS},
    peers::{self, Me, Peers},
    shell::{self, Hands, Input, Parts, PoolState, Seen, names_of},
    store::EtcdStore,
    trust::{self, Trust},
};

/// A daemon that starts waits so long for etcd.
const ETCD_WAIT: Duration = Duration::from_secs(30);
/// A move waits so long for the new owner.
const MOVE_WAIT: Duration = Duration::from_secs(60);
/// A daemon that stops waits so long until its pools are closed.
const LEAVE_WAIT: Duration = Duration::from_secs(60);
/// Limit of a client's name.
const CLIENT_NAME_BYTES_MAX: usize = 1024;
const POLL: Duration = Duration::from_millis(20);
/// A node that has just started is waited for so long after its lease of before, and looked at so often.
const READY_WAIT: Duration = Duration::from_secs(3);
const READY_POLL: Duration = Duration::from_millis(200);
/// What etcd has is heard of within this by the watch, and looked at so often.
const HEAR_WAIT: Duration = Duration::from_secs(4);
const HEAR_POLL: Duration = Duration::from_millis(2);

/// A move of a client is kept in etcd for so long, for nodes whose watch was broken.
const CLIENT_MOVE_SECONDS: u64 = 60;

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSeen {
    pub number: u16,
    pub name: String,
    /// Its lease is good.
    pub alive: bool,
    /// It is to own nothing.
    pub drained: bool,
    /// Where clients connect to it, or did while it was alive.
    pub addresses: Vec<String>,
}

impl NodeSeen {
    /// Its addresses, without the ports.
    pub fn ips(&self) -> BTreeSet<IpAddr> {
        self.addresses.iter().filter_map(|a| Some(a.parse::<SocketAddr>().ok()?.ip().to_canonical())).collect()
    }
}

/// This daemon as a node.
pub struct Member {
    membership: Membership,
    etcd: Arc<Etcd>,
    trust: Arc<Trust>,
    store: Arc<EtcdStore>,
    peers: Arc<Peers>,
    claims: Arc<Claims>,
    /// It was to own nothing when it started.
    drained: bool,
    /// Those that there were when it started.
    pools: Vec<PoolId>,
    seen: Arc<Mutex<Seen>>,
    owners: watch::Sender<()>,
    lease: Arc<LeaseGate>,
    inputs: mpsc::UnboundedSender<Input>,
    waiting: Mutex<Option<mpsc::UnboundedReceiver<Input>>>,
    hands: Mutex<Option<Arc<dyn Hands>>>,
}

fn conflict(error: impl Into<String>, hint: impl Into<String>) -> AdminError {
    AdminError::new(ErrorKind::Conflict, error, hint)
}

/// Reads until etcd answers.
fn first_read(etcd: &Arc<Etcd>, names: &Names) -> Result<Found> {
    let end = Instant::now() + ETCD_WAIT;
    loop {
        match etcd.read_now(&names.pools(), &names.cluster()) {
            Ok(found) => return Ok(found),
            Err(EtcdError::NotDone(why) | EtcdError::Unknown(why)) if Instant::now() < end => {
                tracing::warn!("etcd does not answer yet: {why}");
                thread::sleep(Duration::from_secs(1));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

impl Member {
    /// Looks at etcd, and learns which pools there are. Owns nothing yet.
    ///
    /// # Errors
    /// Conflict, when etcd was emptied, is another one or went back, or the node was removed; failed, when etcd does not answer.
    pub fn connect(state_dir: &Path, membership: Membership) -> Result<Arc<Member>> {
        let etcd = Etcd::start(&membership.etcd, membership.etcd_tls.as_ref())?;
        let names = membership.names();
        let trust = Trust::new(state_dir, &names, keys::encode(&membership.cluster))?;
        let floor = trust.floor();
        let found = first_read(&etcd, &names)?;
        trust.check(&found, floor)?;
        let identity = membership::identity(&etcd, state_dir, &membership, &trust)?;
        let (level, _) = level::read_known(&etcd, &names, membership.cluster.feature_level)?;
        let found_nodes = etcd.read_all_now(vec![names.nodes(), names.alives(), names.drains()], &names.cluster())?;
        let mut known = keys::peers(&names, &found_nodes);
        // What is alive by this name is another run.
        known.entry(membership.node).and_modify(|me| me.run = None);
        let drained = found_nodes.get(&names.drain(membership.node)).is_some();
        let me = Me {
            cluster: membership.cluster.id.clone(),
            node: membership.node,
            run: secret::hex(&secret::random::<8>()?),
            versions: peers::PROTOCOL,
            feature_level: level,
            feature_level_max: keys::FEATURE_LEVEL,
        };
        let pools = keys::pools(&names, &found);
        let (inputs, waiting) = mpsc::unbounded_channel();
        let names_of = known.iter().map(|(number, k)| (*number, k.name.clone())).collect();
        let states = pools.iter().map(|pool| (*pool, PoolState::default())).collect();
        let seen = Seen { nodes: names_of, pools: states, ..Seen::default() };
        Ok(Arc::new(Member {
            store: EtcdStore::new(&etcd, &trust),
            peers: Peers::new(me, identity, known),
            claims: Claims::new(&etcd, &trust, membership.node),
            drained,
            membership,
            etcd,
            trust,
            pools,
            seen: Arc::new(Mutex::new(seen)),
            owners: watch::Sender::new(()),
            lease: Arc::default(),
            inputs,
            waiting: Mutex::new(Some(waiting)),
            hands: Mutex::new(None),
        }))
    }

    /// The id of the cluster, as etcd has it.
    pub fn cluster_id(&self) -> &str {
        &self.membership.cluster.id
    }

    /// The id of the cluster, as labels of its pools have it.
    pub fn cluster(&self) -> u128 {
        u128::from_str_radix(self.cluster_id(), 16).unwrap_or_default()
    }

    /// The node's number, from 1.
    pub fn number(&self) -> u16 {
        self.membership.node
    }

    /// Makes names by which disks know this machine the node's own.
    ///
    /// # Errors
    /// Conflict, when one is that of another node or machine; those of etcd.
    pub fn claim_names(&self, names: &[String]) -> Result<()> {
        self.claims.claim(names)
    }

    /// Whether it was to own nothing when it started.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// The state that all nodes share.
    pub fn state_store(&self) -> Arc<dyn StateStore> {
        self.store.clone()
    }

    /// A new token.
    ///
    /// # Errors
    /// Those of etcd.
    pub fn new_token(&self) -> Result<ClusterToken> {
        let cluster = &self.membership.cluster.id;
        let token = membership::new_token(&self.etcd, &self.trust, cluster)?;
        Ok(ClusterToken { token, seconds: TOKEN_SECONDS })
    }

    /// The other nodes, and connections to them.
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Begins to own pools. `addresses`: where clients connect; `node_addresses`: where other nodes do.
    ///
    /// # Errors
    /// Failed, when there is no thread.
    pub fn start(&self, hands: Arc<dyn Hands>, addresses: Vec<String>, node_addresses: Vec<String>) -> Result<()> {
        let Some(waiting) = self.waiting.lock().take() else { return Ok(()) };
        *self.hands.lock() = Some(hands.clone());
        let run = self.peers.me().run.clone();
        let parts = Parts {
            etcd: self.etcd.clone(),
            trust: self.trust.clone(),
            store: self.store.clone(),
            node: self.membership.node,
            alive: AliveValue { run, addresses, node_addresses, lease: 0 },
            peers: self.peers.clone(),
            claims: self.claims.clone(),
            drained: self.drained,
            lease_seconds: self.membership.cluster.lease_seconds,
            pools: self.pools.clone(),
            hands,
            seen: self.seen.clone(),
            owners: self.owners.clone(),
            lease: self.lease.clone(),
            inputs: self.inputs.clone(),
        };
        shell::start(parts, waiting).map_err(|e| AdminError::failed(format!("no thread: {e}"), ""))
    }

    /// The nodes of the cluster as this node has heard of them last, without asking etcd.
    pub fn nodes_seen(&self) -> Vec<NodeSeen> {
        let seen = self.seen.lock();
        let node = |(number, name): (&u16, &String)| NodeSeen {
            number: *number,
            name: name.clone(),
            alive: seen.alive.contains_key(number),
            drained: seen.drained.contains(number),
            addresses: seen.addresses.get(number).cloned().unwrap_or_default(),
        };
        seen.nodes.iter().map(node).collect()
    }

    /// The node that owns a pool and has come so far that it imports or serves it, with the epoch of its ownership; without asking
    /// etcd.
    pub fn owner_seen(&self, pool: u128) -> Option<(u16, u64)> {
        let seen = self.seen.lock();
        let view = &seen.pools.get(&PoolId(pool))?.keys.view;
        let owner = view.owner?;
        (view.record.written >= owner.epoch).then_some((owner.node.0, owner.epoch.0))
    }

    /// The pools of the cluster, as far as this node has heard of them.
    fn pools_seen(&self) -> Vec<PoolId> {
        self.seen.lock().pools.iter().filter(|(_, s)| s.is_there()).map(|(pool, _)| *pool).collect()
    }

    /// Whether this node knows of each pool what etcd said in that read, or later, and has begun to serve what it is about to.
    fn has_heard_of_pools(&self, read: &Found) -> bool {
        let names = self.membership.names();
        let seen = self.seen.lock();
        let is_same = |a: &PoolKeys, b: &PoolKeys| (&a.view, &a.config, &a.moving) == (&b.view, &b.config, &b.moving);
        let there = keys::pools(&names, read);
        let known = seen.pools.iter().filter(|(_, s)| s.is_there()).map(|(pool, _)| pool);
        let mut pools = there.iter().chain(known);
        pools.all(|pool| {
            let state = seen.pools.get(pool);
            // What cannot be read is in the log, and is not heard of ever.
            let Ok(keys) = PoolKeys::of(&names, *pool, read) else { return true };
            let is_known = |s: &PoolState| s.keys.revision.0 >= read.revision || is_same(&s.keys, &keys);
            state.is_some_and(|s| is_known(s) && !self.is_about_to_serve(s))
        })
    }

    /// This node owns the pool, and its volumes are being opened.
    fn is_about_to_serve(&self, state: &PoolState) -> bool {
        let owner = state.keys.view.owner.filter(|o| o.node.0 == self.number());
        let goes_on = state.stage.is_some_and(|stage| stage != Stage::Unowned);
        owner.is_some_and(|o| goes_on && state.served != Some(o.epoch))
    }

    /// Whether the cluster has the pool, as far as this node has heard.
    pub fn has_pool(&self, pool: PoolId) -> bool {
        self.seen.lock().pools.get(&pool).is_some_and(PoolState::is_there)
    }

    /// Whether this node has a lease now, by its own clock.
    pub fn has_lease(&self) -> bool {
        self.lease.is_good()
    }

    /// Changes when [`Member::owner_seen`] or [`Member::has_lease`] may say something else.
    pub fn owners_changed(&self) -> watch::Receiver<()> {
        self.owners.subscribe()
    }

    /// The clients that an administrator has moved since the last call, each with the number of the node.
    pub fn take_client_moves(&self) -> Vec<(String, u16)> {
        let moves = std::mem::take(&mut self.seen.lock().client_moves);
        moves.into_iter().map(|m| (m.client, m.to)).collect()
    }

    /// Returns when this node is not one of the cluster any more, for certain: with the error that its daemon ends with.
    pub async fn removed(&self) -> AdminError {
        match self.trust.removed().wait_for(|removed| *removed).await {
            Ok(_) => trust::removed(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Hands every pool over, and ends the lease. Blocks.
    pub fn leave(&self) {
        let (done, waits) = oneshot::channel();
        if self.inputs.send(Input::Leave(done)).is_err() {
            return;
        }
        let _ = self.etcd.wait(move |_| async move {
            let _ = tokio::time::timeout(LEAVE_WAIT, waits).await;
            Ok(())
        });
    }
}

/// A node behind the API.
pub struct ClusterApi {
    pub member: Arc<Member>,
    pub state: Arc<State>,
}

impl ClusterApi {
    fn pool(&self, name: &str) -> Result<PoolId> {
        let snapshot = self.state.snapshot();
        let record = snapshot.pools.get(&key(name)).ok_or_else(|| AdminError::not_found("pool", name))?;
        let id = u128::from_str_radix(&record.id, 16).ok().map(PoolId);
        id.filter(|id| self.member.has_pool(*id)).ok_or_else(|| AdminError::not_found("pool", name))
    }

    fn node(&self, name: &str) -> Result<NodeInfo> {
        let found = self.cluster()?.nodes.into_iter().find(|n| n.name == name);
        found.ok_or_else(|| AdminError::not_found("node", name))
    }

    fn name_of(&self, pool: PoolId) -> String {
        let id = format!("{:032x}", pool.0);
        self.state.snapshot().pools.values().find(|r| r.id == id).map_or(id, |r| r.name.clone())
    }

    fn shown(&self, pool: PoolId) -> PoolOwnership {
        let seen = self.member.seen.lock();
        let state = seen.pools.get(&pool).cloned().unwrap_or_default();
        ownership(self.name_of(pool), &state, &seen.nodes)
    }

    fn seen_of(&self, pool: PoolId) -> PoolState {
        self.member.seen.lock().pools.get(&pool).cloned().unwrap_or_default()
    }

    fn put(&self, key: String, value: Vec<u8>, conditions: Vec<If>) -> Result<bool> {
        Ok(self.member.trust.change(&self.member.etcd, conditions, vec![Then::Put(key, value, 0)])?.is_some())
    }

    /// Tries it again while a node that has just started may come to be ready: a lease of its run of before may have to end first.
    fn soon<T>(&self, attempt: impl Fn() -> Result<Attempt<T>>) -> Result<T> {
        let end = Instant::now() + Duration::from_secs(self.member.membership.cluster.lease_seconds) + READY_WAIT;
        loop {
            match attempt()? {
                Attempt::Done(done) => return Ok(done),
                Attempt::NotYet(why) if Instant::now() > end => return Err(why),
                Attempt::NotYet(_) => thread::sleep(READY_POLL),
            }
        }
    }
}

fn stage_name(stage: Option<Stage>) -> &'static str {
    match stage {
        None | Some(Stage::Unowned) => "unowned",
        Some(Stage::Fencing) => "fencing",
        Some(Stage::Recording) => "recording",
        Some(Stage::Registering) => "registering",
        Some(Stage::Confirming) => "confirming",
        Some(Stage::Importing) => "importing",
        Some(Stage::Owned) => "owned",
        Some(Stage::Closing) => "closing",
        Some(Stage::Leaving) => "leaving",
        Some(Stage::Lost) => "lost",
    }
}

/// Nobody acquires a pool with so many holders, and only an owner makes them fewer.
fn is_full(state: &PoolState) -> bool {
    state.keys.view.owner.is_none() && state.keys.view.record.holders.len() >= HOLDERS_MAX
}

fn ownership(pool: String, state: &PoolState, nodes: &BTreeMap<u16, String>) -> PoolOwnership {
    let record = &state.keys.view.record;
    let holder = |h: &Holder| format!("{}:{}", names_of(nodes, h.node), h.epoch.0);
    let owner = state.keys.view.owner;
    let name = match (stage_name(state.stage), owner) {
        ("unowned", _) if record.blocked.is_some() => "blocked",
        ("unowned", Some(_)) => "elsewhere",
        (name, _) => name,
    };
    let reason = match record.blocked {
        Some(_) if record.is_retired() => {
            "it was closed, and is leaving the cluster: `arden pool close` goes on".to_string()
        }
        Some(label) => format!("a label or key bears the epoch {}, which etcd does not know", label.0),
        None if is_full(state) => {
            format!(
                "{} ownerships ended without being fenced, and there may not be more: `arden pool take` decides",
                record.holders.len()
            )
        }
        None if record.epoch == Epoch(u64::MAX) => {
            "its record in etcd has the last epoch that there is: nobody can acquire it before that is restored"
                .to_string()
        }
        None => state.reason.clone(),
    };
    let config = &state.keys.config;
    let is_agent = config.fence.starts_with("agent:");
    // Those of an agent may be secrets.
    let shown = |o: &String| if is_agent { o.split('=').next().unwrap_or_default().to_string() } else { o.clone() };
    PoolOwnership {
        pool,
        owner: owner.map_or_else(String::new, |o| names_of(nodes, o.node)),
        epoch: record.epoch.0,
        written: record.written.0,
        state: name.to_string(),
        reason,
        holders: record.holders.iter().map(holder).collect(),
        fence: config.fence.clone(),
        fence_options: config.fence_options.iter().map(shown).collect(),
    }
}

fn node_info(number: u16, node: &NodeValue, alive: Option<AliveValue>, drained: bool) -> NodeInfo {
    let is_alive = alive.is_some();
    let (run, addresses, node_addresses) =
        alive.map_or_else(Default::default, |a| (a.run, a.addresses, a.node_addresses));
    let (name, feature_level) = (node.name.clone(), node.feature_level);
    NodeInfo { number, name, alive: is_alive, drained, feature_level, run, addresses, node_addresses }
}

/// The answers of nodes, which are asked at the same time. Those that do not answer are in the log.
async fn ask(peers: &Arc<Peers>, nodes: Vec<NodeSeen>, question: &[u8]) -> Vec<(String, NodeAnswer)> {
    let mut asked = tokio::task::JoinSet::new();
    for node in nodes {
        let (peers, question) = (peers.clone(), question.to_vec());
        asked.spawn(async move {
            let answer = peers.ask(node.number, &question).await.map_err(|e| e.to_string());
            let answer = answer.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|e| e.to_string()));
            (node.name, answer)
        });
    }
    let mut answers = Vec::new();
    for (node, answer) in asked.join_all().await {
        match answer {
            Ok(answer) => answers.push((node, answer)),
            Err(e) => tracing::warn!(node, "a node has not answered this one: {e}"),
        }
    }
    answers.sort_by(|a, b| a.0.cmp(&b.0));
    answers
}

/// Connects to all other nodes at the same time.
async fn links(peers: &Arc<Peers>) -> Vec<NodeLink> {
    let table = peers.table().borrow().clone();
    let mut tries = tokio::task::JoinSet::new();
    for (number, known) in table.iter().filter(|(n, _)| **n != peers.me().node) {
        let (peers, number, node) = (peers.clone(), *number, known.name.clone());
        tries.spawn(async move {
            let (run, reason) = match peers.connect(number).await {
                Ok(connected) => (connected.run, String::new()),
                Err(e) => (String::new(), e.to_string()),
            };
            NodeLink { node, connected: reason.is_empty(), run, reason }
        });
    }
    let mut links = tries.join_all().await;
    links.sort_by(|a, b| a.node.cmp(&b.node));
    links
}

impl ClusterAdmin for ClusterApi {
    fn cluster(&self) -> Result<ClusterInfo> {
        let (member, names) = (&self.member, self.member.membership.names());
        let nodes = keys::nodes(&names, &member.etcd.read_now(&names.nodes(), &names.cluster())?);
        let alive = member.etcd.read_now(&names.alives(), &names.cluster())?;
        let value = |n: u16| alive.get(&names.alive(n)).and_then(|p| keys::decode::<AliveValue>(p).ok());
        let drains = member.etcd.read_now(&names.drains(), &names.cluster())?;
        let is_drained = |n: u16| drains.get(&names.drain(n)).is_some();
        let m = &member.membership;
        let (feature_level, _) = level::read(&member.etcd, &names, m.cluster.feature_level)?;
        let distrusts_etcd = member.seen.lock().distrusts.clone();
        Ok(ClusterInfo {
            name: m.cluster.name.clone(),
            id: m.cluster.id.clone(),
            node: m.name.clone(),
            lease_seconds: m.cluster.lease_seconds,
            feature_level,
            etcd: m.etcd.clone(),
            distrusts_etcd,
            nodes: nodes.iter().map(|(n, node)| node_info(*n, node, value(*n), is_drained(*n))).collect(),
            pools: self.ownerships(),
        })
    }

    fn found(&self, _: &FoundCluster) -> Result<()> {
        let m = &self.member.membership;
        Err(conflict(format!("this is node {} of the cluster {} already", m.name, m.cluster.name), ""))
    }

    fn ownerships(&self) -> Vec<PoolOwnership> {
        self.member.pools_seen().into_iter().map(|p| self.shown(p)).collect()
    }

    fn new_token(&self) -> Result<ClusterToken> {
        self.member.new_token()
    }

    fn raise_level(&self) -> Result<FeatureLevel> {
        level::raise(&self.member.etcd, &self.member.trust, self.member.membership.cluster.feature_level)
    }

    fn check_nodes(&self) -> Result<Vec<NodeLink>> {
        let peers = self.member.peers.clone();
        let links = self.member.etcd.wait(move |_| async move { Ok(links(&peers).await) })?;
        Ok(links)
    }

    fn node_name(&self) -> String {
        self.member.membership.name.clone()
    }

    fn node_number(&self) -> u16 {
        self.member.number()
    }

    fn owner_elsewhere(&self, pool: PoolKey<'_>) -> Option<OtherNode> {
        let id = match pool {
            PoolKey::Id(id) => id,
            PoolKey::Name(name) => {
                self.member.pools_seen().into_iter().find(|p| key(&self.name_of(*p)) == key(name))?.0
            }
        };
        let (number, _) = self.member.owner_seen(id)?;
        self.others().into_iter().find(|node| node.number == number)
    }

    fn others(&self) -> Vec<OtherNode> {
        let seen = self.member.nodes_seen().into_iter();
        let others = seen.filter(|n| n.alive && n.number != self.member.number());
        others.map(|n| OtherNode { number: n.number, name: n.name }).collect()
    }

    fn handled_by(&self, node: &OtherNode, request: &NodeRequest) -> Result<NodeResponse> {
        let failed = |e: &str| AdminError::failed(format!("node {} does not handle it: {e}", node.name), "upgrade it");
        let question = ToNode::Request { request: request.clone() };
        let question = serde_json::to_vec(&question).map_err(|e| failed(&e.to_string()))?;
        let (peers, number) = (self.member.peers.clone(), node.number);
        let asked = self.member.etcd.wait(move |_| async move { Ok(peers.ask_for_work(number, &question).await) })?;
        match asked.map(|answer| serde_json::from_slice(&answer)) {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(_)) => Err(failed("its version is an older one")),
            Err(e) => Err(e.into_admin(&node.name)),
        }
    }

    fn hear_of_pools(&self) -> Result<()> {
        let member = &self.member;
        if !member.has_lease() {
            return Err(conflict("this node has no lease", "`arden cluster show` says whether etcd answers"));
        }
        let names = member.membership.names();
        let found = member.etcd.read_now(&names.pools(), &names.cluster())?;
        let end = Instant::now() + HEAR_WAIT;
        while !member.has_heard_of_pools(&found) {
            if Instant::now() > end {
                return Err(AdminError::failed(
                    "the watch of etcd is late, or a pool is still being opened",
                    "`arden pool list` shows who owns each pool",
                ));
            }
            thread::sleep(HEAR_POLL);
        }
        Ok(())
    }

    fn ask_nodes(&self, question: &NodeQuestion) -> Vec<(String, NodeAnswer)> {
        let Ok(bytes) = serde_json::to_vec(question) else { return Vec::new() };
        let nodes =
            self.member.nodes_seen().into_iter().filter(|n| n.alive && n.number != self.member.number()).collect();
        let peers = self.member.peers.clone();
        let asked = self.member.etcd.wait(move |_| async move { Ok(ask(&peers, nodes, &bytes).await) });
        asked.unwrap_or_default()
    }

    fn change_node(&self, node: &str, change: &NodeChange) -> Result<NodeInfo> {
        let found = self.node(node)?;
        let (etcd, trust) = (&self.member.etcd, &self.member.trust);
        let set = || departure::set_drained(etcd, trust, &self.member.peers, (found.number, change.drained));
        if !self.soon(set)? {
            return Err(AdminError::not_found("node", node));
        }
        let is_its = |p: PoolId| self.seen_of(p).keys.view.owner.is_some_and(|o| o.node.0 == found.number);
        let end = Instant::now() + MOVE_WAIT;
        while change.drained && self.member.pools_seen().into_iter().any(is_its) {
            if Instant::now() > end {
                let hint = "`arden pool list` shows how far it is; `arden node resume` takes it back";
                return Err(AdminError::failed(format!("{node} did not give all its pools up in time"), hint));
            }
            thread::sleep(POLL);
        }
        self.node(node)
    }

    fn remove_node(&self, node: &str) -> Result<()> {
        let found = self.node(node)?;
        if found.number == self.member.number() {
            return Err(conflict(
                format!("{node} is the node that answers"),
                "run this at another node, or stop this one and run `arden cluster leave`",
            ));
        }
        match departure::take_out(&self.member.etcd, &self.member.trust, found.number, node)? {
            true => Ok(()),
            false => Err(AdminError::not_found("node", node)),
        }
    }

    fn move_client(&self, order: &ClientMove) -> Result<ClientMove> {
        let cluster = self.cluster()?;
        let node = cluster
            .nodes
            .iter()
            .find(|n| n.name == order.to)
            .ok_or_else(|| AdminError::not_found("node", &order.to))?;
        if !node.alive {
            return Err(conflict(format!("node {} is not alive", node.name), "`arden node list` shows who is"));
        }
        let client = order.client.to_lowercase();
        if client.is_empty() || client.len() > CLIENT_NAME_BYTES_MAX {
            return Err(AdminError::invalid("the client's name is empty or too long", "its computer name or address"));
        }
        let member = &self.member;
        let (lease, _) = member.etcd.grant_now(CLIENT_MOVE_SECONDS)?;
        let value = keys::encode(&ClientMoveValue { client: client.clone(), to: node.number });
        let put = Then::Put(member.membership.names().client_move(&client), value, lease);
        if member.trust.change(&member.etcd, Vec::new(), vec![put])?.is_none() {
            return Err(conflict("etcd does not have this cluster", "restore etcd"));
        }
        Ok(order.clone())
    }

    fn move_pool(&self, pool: &str, to: &PoolMove) -> Result<PoolOwnership> {
        self.hand_to(pool, to)
    }

    fn take_pool(&self, pool: &str, take: &PoolTake) -> Result<PoolOwnership> {
        self.take(pool, take)
    }

    fn set_fence(&self, pool: &str, fence: &PoolFence) -> Result<PoolOwnership> {
        self.fence_with(pool, fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_no_ports() {
        let of = |list: &[&str]| {
            let addresses = list.iter().map(ToString::to_string).collect();
            let node = NodeSeen { number: 1, name: String::new(), alive: true, drained: false, addresses };
            node.ips().into_iter().collect::<Vec<_>>()
        };
        let v4 = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(of(&["10.0.0.1:445", "10.0.0.1:4450", "[::ffff:10.0.0.1]:445", "nonsense"]), [v4]);
        assert_eq!(of(&["[2001:db8::1]:445"]), ["2001:db8::1".parse::<IpAddr>().unwrap()]);
    }
}
