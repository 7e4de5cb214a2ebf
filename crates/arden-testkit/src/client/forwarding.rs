//! Two nodes in memory: clients connect to one, the shares are the other's. Every request for a share goes over a stream between them.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_smb::{
    Gate, Server, ServerConfig,
    forward::{Dialed, Nodes, Place, Stream, engine::Forwarder, owner},
    time::Time,
    wire::{Target, Version},
};
use arden_store::table::{OpenTable, TableLimits};
use arden_wire::FileTime;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    runtime::Runtime,
    sync::watch,
    task::JoinHandle,
};

/// The owner's number.
pub const OWNER: u16 = 2;
const POOL: u128 = 7;

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap())
}

/// The ownership of the shares, as the owner has it and as the other node believes it to be.
pub struct Ownership {
    pub epoch: AtomicU64,
    pub may_start: AtomicBool,
    pub may_answer: AtomicBool,
    /// What the node of the clients believes; 0: nobody owns them.
    pub believed: AtomicU64,
    /// What the nodes speak.
    pub version: Mutex<Version>,
    /// Where clients reach the owner.
    pub addresses: Mutex<Vec<IpAddr>>,
}

impl Default for Ownership {
    fn default() -> Ownership {
        let open = || AtomicBool::new(true);
        Ownership {
            epoch: AtomicU64::new(1),
            may_start: open(),
            may_answer: open(),
            believed: AtomicU64::new(1),
            version: Mutex::new(Version::NEWEST),
            addresses: Mutex::default(),
        }
    }
}

impl Gate for Ownership {
    fn may_start(&self) -> bool {
        self.may_start.load(Ordering::Relaxed)
    }
    fn may_answer(&self) -> bool {
        self.may_answer.load(Ordering::Relaxed)
    }
    fn target(&self) -> Option<Target> {
        Some(Target { pool: POOL, epoch: self.epoch.load(Ordering::Relaxed) })
    }
}

/// The node of the clients, and what is between it and the owner.
pub struct Front {
    pub server: Arc<Server>,
    pub forwarder: Arc<Forwarder>,
    pub ownership: Arc<Ownership>,
    wires: Arc<Wires>,
}

struct Wires {
    /// The number of the clients' node.
    number: u16,
    owner: Arc<Server>,
    /// Other nodes of clients.
    siblings: Mutex<HashMap<u16, Weak<Server>>>,
    /// Of nodes that do not answer and do not refuse.
    silent: Mutex<Vec<u16>>,
    ownership: Arc<Ownership>,
    /// How much later than it is.
    offset: Arc<Mutex<Duration>>,
    /// What carries bytes from end to end.
    wires: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    answers: Arc<Answers>,
    /// How often the connections were lost to this node alone.
    lost: watch::Sender<u64>,
}

/// What the owners say, on its way.
struct Answers {
    /// Bytes that have come.
    bytes: AtomicU64,
    held: watch::Sender<bool>,
    /// A MiB takes at least a millisecond.
    slow: AtomicBool,
}

/// Carries what an owner says, until one of them ends.
async fn carry(
    answers: &Answers,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut piece = vec![0; 1 << 16];
    loop {
        let n = from.read(&mut piece).await?;
        if n == 0 {
            return to.shutdown().await;
        }
        let _ = answers.held.subscribe().wait_for(|held| !held).await;
        let before = answers.bytes.fetch_add(n as u64, Ordering::Relaxed);
        if answers.slow.load(Ordering::Relaxed) && before >> 20 != (before + n as u64) >> 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        to.write_all(&piece[..n]).await?;
    }
}

impl Nodes for Wires {
    fn place(&self, share: &str) -> Place {
        if !self.owner.trees.listed_shares().iter().any(|s| s.name.eq_ignore_ascii_case(share)) {
            return Place::Here;
        }
        match self.ownership.believed.load(Ordering::Relaxed) {
            0 => Place::Nobody,
            epoch => Place::Node(OWNER, Target { pool: POOL, epoch }),
        }
    }

    fn addresses(&self, _: u16) -> Vec<IpAddr> {
        self.ownership.addresses.lock().clone()
    }

    fn others(&self) -> Vec<u16> {
        let siblings = self.siblings.lock().keys().copied().collect::<Vec<_>>();
        siblings.into_iter().chain(self.silent.lock().iter().copied()).chain([OWNER]).collect()
    }

    fn dial(&self, node: u16) -> Dialed {
        if self.silent.lock().contains(&node) {
            return Box::pin(std::future::pending());
        }
        let sibling = self.siblings.lock().get(&node).and_then(Weak::upgrade);
        assert!(node == OWNER || sibling.is_some());
        let (near, near_end) = tokio::io::duplex(1 << 16);
        let (far_end, far) = tokio::io::duplex(1 << 16);
        let (server, version) = (sibling.unwrap_or_else(|| self.owner.clone()), *self.ownership.version.lock());
        let (offset, number) = (self.offset.clone(), self.number);
        let clock = Arc::new(move || {
            let offset = *offset.lock();
            let wall = FileTime::from_system(std::time::SystemTime::now() + offset);
            Time { now: Instant::now() + offset, wall }
        });
        runtime().spawn(async move { owner::serve(&server, number, (Box::new(far), version), clock).await });
        let (answers, mut lost) = (self.answers.clone(), self.lost.subscribe());
        let wire = async move {
            let (mut from_node, mut to_node) = tokio::io::split(near_end);
            let (mut from_owner, mut to_owner) = tokio::io::split(far_end);
            let asked = async {
                tokio::io::copy(&mut from_node, &mut to_owner).await?;
                to_owner.shutdown().await
            };
            tokio::select! {
                carried = async { tokio::try_join!(asked, carry(&answers, &mut from_owner, &mut to_node)) } => return carried.map(drop),
                _ = lost.changed() => {}
            }
            // The owner hears nothing, and not that it is over.
            drop((from_node, to_node));
            std::future::pending().await
        };
        self.wires.lock().push(runtime().spawn(wire));
        Box::pin(async move { io::Result::Ok((Box::new(near) as Box<dyn Stream>, version)) })
    }
}

impl Front {
    pub fn new(
        owner: &Arc<Server>,
        config: ServerConfig,
        ownership: Arc<Ownership>,
        offset: Arc<Mutex<Duration>>,
        number: u16,
    ) -> Front {
        let (server_of_owner, of_wires) = (owner.clone(), ownership.clone());
        let wires = Arc::new(Wires {
            number,
            owner: server_of_owner,
            siblings: Mutex::default(),
            silent: Mutex::default(),
            ownership: of_wires,
            offset,
            wires: Mutex::default(),
            answers: Arc::new(Answers {
                bytes: AtomicU64::new(0),
                held: watch::Sender::new(false),
                slow: AtomicBool::new(false),
            }),
            lost: watch::Sender::new(0),
        });
        let table = OpenTable::new(TableLimits::default());
        table.start_ids(0, Some(1));
        let (server, forwarder) = {
            let _links_live_there = runtime().enter();
            Forwarder::before(config, table, Time::read(), wires.clone())
        };
        let interfaces = owner.trees.interfaces.read().clone();
        *server.trees.interfaces.write() = interfaces;
        let behind = Arc::downgrade(owner);
        owner.trees.on_deferred(Box::new(move || {
            let behind = behind.clone();
            runtime().spawn_blocking(move || {
                if let Some(owner) = behind.upgrade() {
                    owner.trees.run_deferred();
                }
            });
        }));
        Front { server, forwarder, ownership, wires }
    }

    /// The other node knows this one by a number, and finds it alive.
    pub fn is_known_to(&self, other: &Front, number: u16) {
        other.wires.siblings.lock().insert(number, Arc::downgrade(&self.server));
    }

    /// There is a node of this number that seems to be alive, and nothing comes back from it.
    pub fn knows_silent(&self, number: u16) {
        self.wires.silent.lock().push(number);
    }

    /// Nothing comes from the owner meanwhile, or what it said comes, and no faster than over a network.
    pub fn hold_answers(&self, hold: bool) {
        self.wires.answers.slow.store(true, Ordering::Relaxed);
        self.wires.answers.held.send_replace(hold);
    }

    /// Bytes that have come from the owner.
    pub fn answer_bytes(&self) -> u64 {
        self.wires.answers.bytes.load(Ordering::Relaxed)
    }

    /// The connections to the owner are gone, and it does not notice.
    pub fn lose_connections(&self) {
        self.wires.lost.send_modify(|times| *times += 1);
    }

    /// The connections between the nodes break.
    pub fn break_connections(&self) {
        let wires = std::mem::take(&mut *self.wires.wires.lock());
        wires.iter().for_each(JoinHandle::abort);
    }
}

/// What the nodes say to each other has arrived: nothing says when, so that it is given time.
pub fn let_nodes_talk() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Whether this program's labs have two nodes: those of `forwarded` have, and of others where `ARDEN_TEST_FORWARDED` is set.
pub fn has_two_nodes() -> bool {
    static TWO: OnceLock<bool> = OnceLock::new();
    *TWO.get_or_init(|| {
        let exe = std::env::current_exe().ok();
        let is_forwarded = exe.and_then(|e| e.file_name().map(|n| n.to_string_lossy().starts_with("forwarded")));
        is_forwarded.unwrap_or(false) || std::env::var_os("ARDEN_TEST_FORWARDED").is_some()
    })
}
