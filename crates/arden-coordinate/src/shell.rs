//! Drives the decisions of a node (`arden_cluster::Node`) with the real etcd, the real clock, fence agents and the storage of this
//! daemon. Owns when each is asked, and that the answers of one pool come in their order. Decides nothing by itself.

mod claiming;
mod fencing;
mod lease;
mod meeting;
mod on_disks;
mod order;
mod watching;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    panic::{self, AssertUnwindSafe},
    sync::{Arc, atomic::AtomicBool, mpsc::Sender},
    thread,
    time::Duration,
};

use arden_admin::ErrorKind;
use arden_cluster::{
    Action, Config, Epoch, Event, Holder, ImportError, Node, NodeId, Outcome, PoolId, Revision, Stage,
};
use tokio::sync::{mpsc, oneshot, watch};

use claiming::Claiming;
use on_disks::OnDisks;
pub use on_disks::{Reserved, Victim};

use crate::{
    agent::{Fence, Reserve},
    claims::Claims,
    clock,
    etcd::{Etcd, Found, Told},
    gate::{LeaseGate, PoolGate},
    keys::{self, AliveValue, ClientMoveValue, Names, PoolKeys},
    peers::{Known, Peers},
    store::EtcdStore,
    trust::Trust,
};

/// The bound of the drift of each clock.
const DRIFT_PPM: u64 = 2_000;
/// A fence that failed is tried again after this.
const FENCE_RETRY: Duration = Duration::from_secs(2);
/// Requests that began before a hand-over have so long to be answered.
const CLOSING_GRACE: Duration = Duration::from_millis(200);
/// Moves of clients that are kept until somebody takes them up.
const CLIENT_MOVES_MAX: usize = 1024;
/// A watch that ended begins again after this.
const WATCH_AGAIN: Duration = Duration::from_millis(300);

/// What this daemon does with a pool. Calls block, and those of one pool come one after the other.
pub trait Hands: Send + Sync + 'static {
    /// Opens the pool, unless a label bears an epoch that is newer than `written`. With a fence on the disks: those of them that were
    /// registered with.
    ///
    /// # Errors
    /// Why not, for the cluster and for people.
    fn import(&self, pool: PoolId, opening: Opening) -> Result<(), (ImportError, String)>;
    /// Registers the key of `me` with the pool's disks that are reached, if that was not done yet, and keeps the victim from each.
    ///
    /// # Errors
    /// Why it may still write.
    fn fence_disks(&self, pool: PoolId, on: Reserve, me: Holder, victim: Victim) -> Result<(), String>;
    /// As [`Hands::fence_disks`] for each of `fenced`. Gives the other keys that were on any of the disks right before `me` came.
    ///
    /// # Errors
    /// Why a disk cannot be used.
    fn register_disks(&self, pool: PoolId, on: Reserve, me: Holder, fenced: &[Victim]) -> Result<Vec<Holder>, String>;
    /// Whether every disk of the pool is reached, and has what `fence_disks` needs.
    ///
    /// # Errors
    /// Which does not.
    fn check_disks(&self, pool: PoolId, on: Reserve) -> Result<(), String>;
    /// The names by which those disks of the pool that are reached know this machine.
    ///
    /// # Errors
    /// Why they are not known.
    fn names_at_disks(&self, pool: PoolId, on: Reserve) -> Result<Vec<String>, String>;
    /// Serves what is shared of the pool, as long as the gate is open.
    fn serve(&self, pool: PoolId, gate: &Arc<PoolGate>);
    /// Ends serving, makes everything durable and closes the pool. False: something may be on its way still.
    fn close(&self, pool: PoolId) -> bool;
    /// Ends everything of the pool, and writes nothing more.
    fn stop(&self, pool: PoolId);
    /// The newest epoch in the pool's labels.
    ///
    /// # Errors
    /// Why it is not known.
    fn newest_epoch(&self, pool: PoolId) -> Result<Epoch, String>;
}

/// What the loop is told.
pub enum Input {
    Node(Event),
    /// What was read of a pool: because the node asked (with that number), or because the watch said so.
    Keys {
        pool: PoolId,
        keys: PoolKeys,
        asked: Option<(u64, Revision)>,
    },
    /// What was read is not to be believed.
    Distrusted(String),
    /// The watch of the cluster's keys.
    Told(Told),
    /// All pools of the cluster.
    Pools(Vec<PoolId>),
    Nodes(NodesRead),
    /// Clients that an administrator moves.
    ClientMoves(Found),
    Fence {
        pool: PoolId,
        epoch: Epoch,
        victim: Victim,
        result: Result<(), String>,
    },
    /// Whether the names by which the pool's disks know this machine are this node's.
    Claimed {
        pool: PoolId,
        reserve: Reserve,
        result: Result<(), String>,
        /// The ownership that was about to register its key.
        epoch: Option<Epoch>,
    },
    NotImported {
        pool: PoolId,
        epoch: Epoch,
        why: ImportError,
        text: String,
    },
    /// The answer to a registration with the pool's disks.
    Registered {
        pool: PoolId,
        epoch: Epoch,
        reserve: Reserve,
        result: Result<Vec<Holder>, String>,
    },
    /// A disk of the pool has refused a command of this ownership: another node has fenced it.
    Refused {
        pool: PoolId,
        epoch: Epoch,
    },
    /// No disk of the pool answers this ownership any more.
    NoDisks {
        pool: PoolId,
        epoch: Epoch,
    },
    /// A job of the pool has panicked; the log has the message.
    Panicked {
        pool: PoolId,
        epoch: Epoch,
    },
    /// An administrator is sure that no holder of the pool writes any more.
    Sure(PoolId, oneshot::Sender<Vec<Holder>>),
    /// Closes the pool, if this node owns it, for good.
    Retire(PoolId),
    /// Hands everything over and ends the lease; then the loop ends.
    Leave(oneshot::Sender<()>),
}

/// What is known of a pool at this node.
#[derive(Debug, Clone, Default)]
pub struct PoolState {
    pub keys: PoolKeys,
    pub stage: Option<Stage>,
    /// Why it does not go on.
    pub reason: String,
    /// The owner that was seen last.
    pub last_owner: Option<NodeId>,
    /// The last epoch under which this node has opened its volumes and serves them.
    pub served: Option<Epoch>,
}

impl PoolState {
    /// It was not read yet, or has a record: it has not left the cluster.
    pub fn is_there(&self) -> bool {
        self.keys.revision == Revision::default() || self.keys.view.changed != Revision::default()
    }
}

/// What others may look at.
#[derive(Debug, Default)]
pub struct Seen {
    pub pools: BTreeMap<PoolId, PoolState>,
    pub nodes: BTreeMap<u16, String>,
    /// Nodes that are alive.
    pub alive: BTreeMap<u16, AliveValue>,
    /// Nodes that are to own nothing.
    pub drained: BTreeSet<u16>,
    /// The addresses that each node had last.
    pub addresses: BTreeMap<u16, Vec<String>>,
    /// Moves of clients that nobody has taken up yet.
    pub client_moves: Vec<ClientMoveValue>,
    /// The revision up to which moves of clients were looked at.
    pub client_moves_seen: Option<u64>,
    /// Why etcd is not believed; empty: it is.
    pub distrusts: String,
}

impl Seen {
    fn note_alive(&mut self, alive: BTreeMap<u16, AliveValue>) {
        self.addresses.extend(alive.iter().map(|(node, value)| (*node, value.addresses.clone())));
        self.alive = alive;
    }

    /// Those that are there at the first look were told by who was there before.
    fn note_client_moves(&mut self, found: &Found) {
        if let Some(seen) = self.client_moves_seen {
            let new = found.pairs.iter().filter(|p| p.mod_revision > seen);
            let room = CLIENT_MOVES_MAX.saturating_sub(self.client_moves.len());
            self.client_moves.extend(new.filter_map(|p| keys::decode(p).ok()).take(room));
        }
        self.client_moves_seen = Some(found.revision.max(self.client_moves_seen.unwrap_or(0)));
    }
}

/// What etcd says of the nodes.
#[derive(Debug)]
pub struct NodesRead {
    revision: u64,
    known: BTreeMap<u16, Known>,
    alive: BTreeMap<u16, AliveValue>,
    /// Nodes that are to own nothing.
    drained: BTreeSet<u16>,
}

/// What a shell needs.
pub struct Parts {
    pub etcd: Arc<Etcd>,
    pub trust: Arc<Trust>,
    pub store: Arc<EtcdStore>,
    pub node: u16,
    pub alive: AliveValue,
    pub peers: Arc<Peers>,
    /// The names by which disks know this machine.
    pub claims: Arc<Claims>,
    /// It is to own nothing, until etcd says otherwise.
    pub drained: bool,
    pub lease_seconds: u64,
    pub pools: Vec<PoolId>,
    pub hands: Arc<dyn Hands>,
    pub seen: Arc<parking_lot::Mutex<Seen>>,
    /// Told when another owner is seen, or the node has a lease or none any more.
    pub owners: watch::Sender<()>,
    pub lease: Arc<LeaseGate>,
    pub inputs: mpsc::UnboundedSender<Input>,
}

/// By what right a pool is opened.
pub struct Opening {
    pub epoch: Epoch,
    pub written: Epoch,
    /// With a fence on the disks.
    pub reserved: Option<Reserved>,
    /// To be called when no disk of the pool answers any more, before an error is answered to anybody.
    pub no_disks: Box<dyn FnOnce() + Send>,
}

type Job = Box<dyn FnOnce() + Send>;

struct Shell {
    parts: Parts,
    names: Names,
    node: Node,
    workers: BTreeMap<PoolId, Sender<Job>>,
    gates: BTreeMap<PoolId, (Epoch, Arc<PoolGate>)>,
    on_disks: BTreeMap<PoolId, OnDisks>,
    claiming: BTreeMap<PoolId, Claiming>,
    /// Holders of which an administrator is sure.
    sure: HashSet<(PoolId, Holder)>,
    /// A request to etcd is given up after this.
    wait: Duration,
    ttl: Duration,
    leaving: Option<oneshot::Sender<()>>,
    /// A lease is being asked for.
    granting: Arc<AtomicBool>,
    nodes_revision: u64,
    /// The nodes as etcd had them last.
    known: BTreeMap<u16, Known>,
    /// The node had a lease when the others were told last.
    has_lease: bool,
    drained: bool,
}

/// Runs a node until it is told to leave.
///
/// # Errors
/// A thread cannot be started.
pub fn start(parts: Parts, inputs: mpsc::UnboundedReceiver<Input>) -> std::io::Result<()> {
    let ttl = Duration::from_secs(parts.lease_seconds);
    let config = Config {
        node: NodeId(parts.node),
        ttl_ns: ttl.as_nanos() as u64,
        drift_ppm: DRIFT_PPM,
        pools: parts.pools.iter().map(|p| (*p, 0)).collect(),
        fence_retry_ns: FENCE_RETRY.as_nanos() as u64,
    };
    let mut node = Node::new(config);
    let mut workers = BTreeMap::new();
    for pool in &parts.pools {
        // Until the pool's configuration is read, nothing is taken over.
        node.set_takes_over(*pool, false);
        workers.insert(*pool, meeting::worker()?);
    }
    let (etcd, inputs_to) = (parts.etcd.clone(), parts.inputs.clone());
    let names = parts.trust.names().clone();
    etcd.handle().spawn(watching::watch(etcd.clone(), names.clone(), inputs_to, ttl));
    let shell = Shell {
        names,
        node,
        workers,
        gates: BTreeMap::new(),
        on_disks: BTreeMap::new(),
        claiming: BTreeMap::new(),
        sure: HashSet::new(),
        wait: ttl / 4,
        ttl,
        leaving: None,
        granting: Arc::default(),
        nodes_revision: 0,
        known: parts.peers.table().borrow().as_ref().clone(),
        has_lease: false,
        drained: parts.drained,
        parts,
    };
    etcd.handle().spawn(shell.run(inputs));
    Ok(())
}

impl Shell {
    async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        if self.drained {
            self.tell(Event::Drain);
        }
        let mut ticks = tokio::time::interval((self.ttl / 20).min(Duration::from_millis(100)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.tell(Event::Tick),
                input = inputs.recv() => match input {
                    Some(input) => self.input(input),
                    None => return,
                },
            }
            let owns = self.parts.pools.iter().any(|p| self.node.stage(*p) != Some(Stage::Unowned));
            if !owns && let Some(done) = self.leaving.take() {
                // Nothing is owned: etcd ends the lease by itself, or hears of it here.
                self.parts.lease.set(0);
                // Also one whose claim was not answered yet: the claim may be done.
                if let Some(lease) = self.node.lease_held() {
                    self.end_lease(lease).await;
                }
                let _ = done.send(());
                return;
            }
        }
    }

    fn tell(&mut self, event: Event) {
        let actions = self.node.handle(clock::now_ns(), event);
        self.carry_out(actions);
    }

    /// Requests learn of what was decided before anything is done about it.
    fn carry_out(&mut self, actions: Vec<Action>) {
        let now = clock::now_ns();
        self.note_lease(now);
        for (pool, (epoch, gate)) in &self.gates {
            match self.node.served(*pool, now).filter(|(served, _)| served == epoch) {
                Some((_, until)) => {
                    let starts = self.node.stage(*pool) == Some(Stage::Owned);
                    gate.set(if starts { until } else { 0 }, until);
                }
                None => gate.set(0, 0),
            }
        }
        let mut seen = self.parts.seen.lock();
        for pool in &self.parts.pools {
            let state = seen.pools.entry(*pool).or_default();
            let stage = self.node.stage(*pool);
            if state.stage != stage {
                tracing::info!(pool = %format_args!("{:032x}", pool.0), ?stage, "ownership");
                if stage != Some(Stage::Fencing) {
                    state.reason.clear();
                }
                state.stage = stage;
            }
        }
        drop(seen);
        for action in actions {
            self.act(action);
        }
    }

    fn input(&mut self, input: Input) {
        match input {
            Input::Node(event) => {
                // It may have been removed.
                if matches!(event, Event::Claimed { outcome: Outcome::Refused, .. }) {
                    self.read_nodes();
                }
                self.tell(event);
            }
            Input::Keys { pool, keys, asked } => self.keys(pool, keys, asked),
            Input::Distrusted(why) => {
                self.parts.seen.lock().distrusts = why;
                let pool = self.parts.pools.first().copied().unwrap_or(PoolId(0));
                let (floor, revision) = (Revision(1), Revision(0));
                self.tell(Event::Read { pool, number: 0, floor, revision, view: Default::default() });
            }
            Input::Told(told) => self.told(&told),
            Input::Pools(pools) => self.meet_all(pools),
            Input::Nodes(read) => self.nodes(read),
            Input::ClientMoves(found) => self.parts.seen.lock().note_client_moves(&found),
            Input::Fence { pool, epoch, victim, result } => match result {
                Ok(()) => {
                    let holder = victim.holder;
                    tracing::info!(node = holder.node.0, epoch = holder.epoch.0, "holder fenced");
                    self.note_fenced(pool, epoch, victim);
                    self.tell(Event::Fenced { pool, epoch, holder });
                }
                Err(why) => {
                    self.because(pool, why);
                    self.tell(Event::FenceFailed { pool, epoch, holder: victim.holder });
                }
            },
            Input::Claimed { pool, reserve, result, epoch } => self.claimed(pool, reserve, result, epoch),
            Input::NotImported { pool, epoch, why, text } => {
                self.tell(Event::ImportFailed { pool, epoch, why });
                self.because(pool, text);
            }
            Input::Registered { pool, epoch, reserve, result } => match result {
                Ok(keys) => {
                    if let Some(known) = self.on_disks(pool, epoch) {
                        known.registered = Some(Some(reserve));
                    }
                    self.tell(Event::Registered { pool, epoch, keys });
                }
                Err(why) => self.give_up(pool, epoch, &why),
            },
            Input::Refused { pool, epoch } => {
                self.give_up(pool, epoch, "reservation conflict: another node has fenced this one");
            }
            // What comes late, or because another node has fenced this one, is known already.
            Input::NoDisks { pool, epoch } => {
                let serves = self.node.served(pool, clock::now_ns()).is_some_and(|(served, _)| served == epoch);
                self.tell(Event::DisksLost { pool, epoch });
                if serves {
                    self.because(pool, "no disk of the pool answers this node".to_string());
                }
            }
            Input::Panicked { pool, epoch } => {
                self.give_up(pool, epoch, "arden panicked in its work for the pool, see the log");
            }
            Input::Sure(pool, reply) => {
                let _ = reply.send(self.sure_of(pool));
            }
            Input::Retire(pool) => self.retire(pool),
            Input::Leave(reply) => {
                self.leaving = Some(reply);
                self.tell(Event::Drain);
            }
        }
    }

    /// Reads end in any order. A node that has left must not come back by an older one.
    fn nodes(&mut self, read: NodesRead) {
        let NodesRead { revision, known, alive, drained } = read;
        if revision < self.nodes_revision {
            return;
        }
        self.nodes_revision = revision;
        if !alive.contains_key(&self.parts.node) {
            if self.node.lease(clock::now_ns()).is_some() {
                tracing::warn!("etcd does not say that this node is alive");
            }
            self.tell(Event::NotAlive);
        }
        let is_drained = drained.contains(&self.parts.node);
        {
            let mut seen = self.parts.seen.lock();
            seen.note_alive(alive);
            seen.nodes = known.iter().map(|(number, k)| (*number, k.name.clone())).collect();
            seen.drained = drained;
        }
        self.known = known;
        self.tell_peers();
        // A daemon that is stopping gives up its pools in any case.
        if self.leaving.is_none() && self.drained != is_drained {
            tracing::info!(drained = is_drained, "whether this node owns pools");
            self.drained = is_drained;
            self.tell(if is_drained { Event::Drain } else { Event::Resume });
        }
    }

    fn give_up(&mut self, pool: PoolId, epoch: Epoch, why: &str) {
        self.tell(Event::DisksLost { pool, epoch });
        self.because(pool, why.to_string());
    }

    fn because(&self, pool: PoolId, why: String) {
        tracing::error!(pool = %format_args!("{:032x}", pool.0), "{why}");
        self.parts.seen.lock().pools.entry(pool).or_default().reason = why;
    }

    fn keys(&mut self, pool: PoolId, keys: PoolKeys, asked: Option<(u64, Revision)>) {
        // Reads end in any order: what is set is what the newest one says.
        let (newest, last_owner) = {
            let mut seen = self.parts.seen.lock();
            let state = seen.pools.entry(pool).or_default();
            if keys.revision >= state.keys.revision {
                let owner = |keys: &PoolKeys| (keys.view.owner, keys.view.record.written);
                let differs = owner(&state.keys) != owner(&keys);
                state.keys = keys.clone();
                if differs {
                    self.parts.owners.send_replace(());
                }
            }
            state.last_owner = keys.view.owner.map(|o| o.node).or(state.last_owner);
            (state.keys.clone(), state.last_owner)
        };
        self.set_up(pool, &newest, last_owner);
        // An owner without keys begins anew, with keys.
        let (me, keyless) = (self.parts.node, newest.config.keyless);
        let epoch = newest.view.record.epoch.0;
        let leaves = newest.moving.filter(|m| m.epoch == epoch && (m.to != me || m.epoch <= keyless));
        let (revision, view) = (keys.revision, keys.view);
        match asked {
            Some((number, floor)) => self.tell(Event::Read { pool, number, floor, revision, view }),
            None => self.tell(Event::Watched { pool, revision, view }),
        }
        if let Some(m) = leaves {
            let actions = self.node.hand_over(clock::now_ns(), pool, Epoch(m.epoch));
            self.carry_out(actions);
        }
    }

    /// Whether and when this node acquires the pool.
    fn set_up(&mut self, pool: PoolId, keys: &PoolKeys, last_owner: Option<NodeId>) {
        let fences = Fence::parse(&keys.config.fence, &keys.config.fence_options);
        let is_sure = |h: &Holder| h.node.0 == self.parts.node || self.sure.contains(&(pool, *h));
        let sure = keys.view.record.holders.iter().all(is_sure);
        let keyless = |h: &Holder| h.node.0 != self.parts.node && h.epoch.0 <= keys.config.keyless;
        self.node.set_fences_on_disks(pool, !matches!(fences, Ok(Fence::Agent { .. } | Fence::None)));
        let fences = match fences {
            Ok(Fence::Agent { .. }) => true,
            Ok(Fence::Disks(_)) => !keys.view.record.holders.iter().any(keyless),
            Ok(Fence::None) | Err(_) => false,
        };
        self.node.set_takes_over(pool, sure || fences);
        self.claim_names(pool, keys);
        self.node.set_patience(pool, self.patience(keys, last_owner).as_nanos() as u64);
    }

    /// Reads what the watch says has changed; everything, when it begins.
    fn told(&mut self, told: &Told) {
        let (begins, keys) = match told {
            Told::Begun(_) => (true, &[][..]),
            Told::Changed(keys) => (false, &keys[..]),
        };
        let relative = |(key, revision): &(String, u64)| Some((self.names.relative(key)?.to_string(), *revision));
        let names: Vec<(String, u64)> = keys.iter().filter_map(relative).collect();
        let records = names.iter().filter(|(name, _)| name.ends_with("/record"));
        records.filter_map(|(name, _)| keys::pool_of(name)).for_each(|pool| _ = self.meet(pool));
        if begins {
            self.read_pools();
        }
        for pool in &self.parts.pools {
            if begins || names.iter().any(|(n, _)| keys::pool_of(n) == Some(*pool)) {
                self.read(*pool, None);
            }
        }
        if let Some(revision) = watching::state_changed(told, &self.names) {
            self.parts.store.changed(revision);
        }
        if begins || names.iter().any(|(n, _)| is_of_nodes(n)) {
            self.read_nodes();
        }
        if begins || names.iter().any(|(n, _)| n.starts_with("client-move/")) {
            self.read_client_moves();
        }
    }

    fn send_to(&self) -> mpsc::UnboundedSender<Input> {
        self.parts.inputs.clone()
    }

    fn read(&self, pool: PoolId, asked: Option<(u64, Revision)>) {
        let (etcd, trust, names, wait) =
            (self.parts.etcd.clone(), self.parts.trust.clone(), self.names.clone(), self.wait);
        let inputs = self.send_to();
        self.parts.etcd.handle().spawn(async move {
            // What the node asks it asks again; of a change it is told once.
            let (floor, found) = loop {
                let floor = trust.floor();
                match etcd.read(&names.pool(pool), &names.cluster(), wait).await {
                    Ok(found) => break (floor, found),
                    Err(_) if asked.is_none() && !inputs.is_closed() => tokio::time::sleep(WATCH_AGAIN).await,
                    Err(_) => return,
                }
            };
            let input = match trust.check(&found, floor) {
                Err(e) if e.kind == ErrorKind::Conflict => Input::Distrusted(e.to_string()),
                Err(e) => return tracing::error!("{e}"),
                Ok(()) => match PoolKeys::of(&names, pool, &found) {
                    Ok(keys) => Input::Keys { pool, keys, asked },
                    Err(why) => return tracing::error!("{why}"),
                },
            };
            let _ = inputs.send(input);
        });
    }

    /// A list that is not to be believed is not taken: it would let a node in that has left, or cut all off.
    fn read_nodes(&self) {
        let (etcd, names, wait, inputs) = (self.parts.etcd.clone(), self.names.clone(), self.wait, self.send_to());
        let trust = self.parts.trust.clone();
        self.parts.etcd.handle().spawn(async move {
            loop {
                let floor = trust.floor();
                let prefixes = [names.nodes(), names.alives(), names.drains()];
                if let Ok(found) = etcd.read_all(&prefixes, &names.cluster(), wait).await {
                    if let Err(e) = trust.check(&found, floor) {
                        return tracing::error!("{e}");
                    }
                    if let Err(e) = trust.check_entry(&found) {
                        tracing::error!("{e}");
                    }
                    let read = NodesRead {
                        revision: found.revision,
                        known: keys::peers(&names, &found),
                        alive: keys::alive(&names, &found),
                        drained: keys::drained(&names, &found),
                    };
                    let _ = inputs.send(Input::Nodes(read));
                    return;
                }
                if inputs.is_closed() {
                    return;
                }
                // A node that left must not stay known because etcd did not answer once.
                tokio::time::sleep(WATCH_AGAIN).await;
            }
        });
    }

    fn read_client_moves(&self) {
        let (etcd, names, wait, inputs) = (self.parts.etcd.clone(), self.names.clone(), self.wait, self.send_to());
        self.parts.etcd.handle().spawn(async move {
            while !inputs.is_closed() {
                if let Ok(found) = etcd.read(&names.client_moves(), &names.cluster(), wait).await {
                    let _ = inputs.send(Input::ClientMoves(found));
                    return;
                }
                tokio::time::sleep(WATCH_AGAIN).await;
            }
        });
    }

    fn sure_of(&mut self, pool: PoolId) -> Vec<Holder> {
        let seen = self.parts.seen.lock();
        let Some(state) = seen.pools.get(&pool) else { return Vec::new() };
        let record = &state.keys.view.record;
        let others = record.holders.iter().filter(|h| h.node.0 != self.parts.node);
        let holders: Vec<Holder> = others.copied().collect();
        let mine = state.keys.view.owner.filter(|o| o.node.0 == self.parts.node);
        drop(seen);
        self.sure.extend(holders.iter().map(|h| (pool, *h)));
        self.node.set_takes_over(pool, true);
        match mine {
            // It waits for them already.
            Some(owner) => {
                for &holder in &holders {
                    self.note_fenced(pool, owner.epoch, Victim { holder, contested: true });
                    self.tell(Event::Fenced { pool, epoch: owner.epoch, holder });
                }
            }
            None => self.tell(Event::Tick),
        }
        holders
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::GrantLease => self.grant(),
            Action::RenewLease { lease } => self.renew(lease),
            Action::Claim { lease, if_alive } => self.claim(lease, if_alive),
            Action::RevokeLease { lease } => {
                let (etcd, wait) = (self.parts.etcd.clone(), self.wait);
                self.parts.etcd.handle().spawn(async move { etcd.revoke(lease.0, wait).await });
            }
            Action::Read { pool, number, floor } => self.read(pool, Some((number, floor))),
            Action::Transact { pool, number, transaction } => self.transact(pool, number, &transaction),
            Action::Fence { pool, epoch, holder, contested } => self.fence(pool, epoch, Victim { holder, contested }),
            Action::Register { pool, epoch } => self.register(pool, epoch),
            Action::Import { pool, epoch, written } => self.import(pool, epoch, written),
            Action::Serve { pool, epoch } => {
                let Some((_, gate)) = self.gates.get(&pool).filter(|(of, _)| *of == epoch).cloned() else { return };
                let (hands, seen) = (self.parts.hands.clone(), self.parts.seen.clone());
                self.work(pool, epoch, move || {
                    hands.serve(pool, &gate);
                    if let Some(state) = seen.lock().pools.get_mut(&pool) {
                        state.served = Some(epoch);
                    }
                });
            }
            Action::Close { pool, epoch } => {
                let (hands, inputs) = (self.parts.hands.clone(), self.send_to());
                let gate = self.gates.get(&pool).map(|(_, gate)| gate.clone());
                self.work(pool, epoch, move || {
                    thread::sleep(CLOSING_GRACE);
                    gate.iter().for_each(|gate| gate.close());
                    let closed = hands.close(pool);
                    let event = if closed { Event::Closed { pool, epoch } } else { Event::DisksLost { pool, epoch } };
                    let _ = inputs.send(Input::Node(event));
                });
            }
            Action::Stop { pool, epoch } => {
                let (hands, inputs) = (self.parts.hands.clone(), self.send_to());
                self.work(pool, epoch, move || {
                    hands.stop(pool);
                    let _ = inputs.send(Input::Node(Event::Stopped { pool, epoch }));
                });
            }
            Action::StoreWentBack => {
                let why = self.parts.seen.lock().distrusts.clone();
                tracing::error!("every pool is given up, and none is acquired before a restart: {why}");
            }
        }
    }

    /// On the pool's thread, behind what was asked of it before.
    fn work(&self, pool: PoolId, epoch: Epoch, job: impl FnOnce() + Send + 'static) {
        let inputs = self.send_to();
        // What panics has not told how far it came. The thread goes on, as the pool has to be stopped; else the owner key would stay under a
        // good lease, with nobody behind it. The daemon goes on too, for its other pools. The ownership is given up, so the next owner
        // fences this one. What panics while it stops is never told as stopped: then this process does not acquire the pool again.
        let job = move || {
            if panic::catch_unwind(AssertUnwindSafe(job)).is_err() {
                let _ = inputs.send(Input::Panicked { pool, epoch });
            }
        };
        if let Some(worker) = self.workers.get(&pool) {
            let _ = worker.send(Box::new(job));
        }
    }

    fn import(&mut self, pool: PoolId, epoch: Epoch, written: Epoch) {
        let gate = Arc::new(PoolGate::new(epoch.0));
        self.gates.insert(pool, (epoch, gate.clone()));
        let (hands, inputs, trust) = (self.parts.hands.clone(), self.send_to(), self.parts.trust.clone());
        let (closes, tell) = (gate.clone(), self.send_to());
        // No client is answered with an error that another node would not have.
        let no_disks = Box::new(move || {
            closes.close();
            let _ = tell.send(Input::NoDisks { pool, epoch });
        });
        let reserved = self.reserved(pool, epoch, gate);
        // The keys of etcd that have confirmed the registration say what the fence is, and have been since this epoch began.
        let reserves = self.fence_of(pool).ok().and_then(|f| f.on_disks());
        let changed = reserved.as_ref().map(|r| r.reserve) != reserves;
        self.work(pool, epoch, move || {
            if changed {
                let text = "the fence of the pool was changed meanwhile".to_string();
                let _ = inputs.send(Input::NotImported { pool, epoch, why: ImportError::Other, text });
                return;
            }
            // A restart of this node does not believe an etcd without this ownership.
            let kept = trust.keep().map_err(|e| (ImportError::Other, e.to_string()));
            let input = match kept.and_then(|()| hands.import(pool, Opening { epoch, written, reserved, no_disks })) {
                Ok(()) => Input::Node(Event::Imported { pool, epoch }),
                Err((why, text)) => Input::NotImported { pool, epoch, why, text },
            };
            let _ = inputs.send(input);
        });
    }
}

/// A key that [`Shell::read_nodes`] reads, by what comes behind the cluster's prefix.
fn is_of_nodes(relative: &str) -> bool {
    ["node/", "alive/", "drain/"].iter().any(|of| relative.starts_with(of))
}

/// Names of nodes, by number.
pub fn names_of(nodes: &BTreeMap<u16, String>, node: NodeId) -> String {
    nodes.get(&node.0).cloned().unwrap_or_else(|| format!("node {}", node.0))
}
