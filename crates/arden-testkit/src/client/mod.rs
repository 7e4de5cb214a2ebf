//! A test client: several connections in memory to one server over a directory of its own. No sockets; what
//! blocks runs at once, and time passes when a test says so. Refuses to judge: the tests assert.

mod files;
mod forwarding;
mod link;
mod listening;
mod logon;
mod ops;
mod reply;
mod request;
mod security;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_auth::{AuthPolicy, MemoryUsers, ServerIdentity};
use arden_smb::time::Time;
use arden_smb::{Gate, Interface, Limits, Policy, Server, ServerConfig, Share};
use arden_store::{
    commit::CommitScope,
    dir::{DirOptions, DirStore},
    fs::Fs,
    handles::{HandleStore, MemoryHandles},
    table::{OpenTable, TableLimits},
};
use arden_wire::FileTime;
pub use arden_wire::{
    NtStatus,
    access::*,
    cursor::Put,
    fscc::{file_class, fs_class, fsctl},
    smb2::{
        Command, Dialect, FileId,
        create::{oplock, tag},
        info::info_type,
        io::lock_flags,
    },
};
use arden_wire::{dtyp::Sid, dtyp::well_known};
use parking_lot::Mutex;

pub use files::*;
pub use forwarding::*;
pub use link::*;
pub use logon::*;
pub use ops::*;
pub use reply::*;
pub use request::*;
pub use security::*;

pub const USER: &str = "user";
pub const OTHER: &str = "other";
pub const PASSWORD: &str = "secret";
/// Share names.
pub const SHARE: &str = "share";
pub const SEALED: &str = "sealed";
pub const SECOND: &str = "second";
pub const READ_ONLY: &str = "readonly";
/// Two continuously available shares of one directory, that of `SHARE`.
pub const CA: &str = "ca";
pub const CA_TOO: &str = "ca2";
/// The same directory, continuously available and encrypted.
pub const CA_SEALED: &str = "casealed";
/// The same directory, written through.
pub const THROUGH: &str = "through";

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A server, its directory, and its clock.
pub struct Lab {
    /// It has the shares.
    pub server: Arc<Server>,
    /// The node that clients connect to, where that is another one.
    pub front: Option<Front>,
    pub dir: PathBuf,
    pub users: Arc<MemoryUsers>,
    pub handles: Arc<MemoryHandles>,
    setup: Setup,
    starts: u64,
    offset: Arc<Mutex<Duration>>,
    clients: AtomicU64,
    /// Further nodes of clients.
    fronts: AtomicU16,
}

/// What a test wants of its server.
#[derive(Clone, Copy)]
pub struct Setup {
    pub limits: Limits,
    pub table: TableLimits,
    pub signing_required: bool,
    pub encryption_required: bool,
    pub multichannel: bool,
    pub anonymous: bool,
    /// Which node of a cluster the server with the shares is.
    pub node: Option<u16>,
    /// What makes the server.
    pub server: fn(ServerConfig, Arc<OpenTable>, Time) -> Arc<Server>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            limits: Limits::default(),
            table: TableLimits::default(),
            signing_required: true,
            encryption_required: false,
            multichannel: true,
            anonymous: false,
            node: None,
            server: Server::new,
        }
    }
}

pub fn share(name: &str, fs: &Arc<Fs>) -> Share {
    let gate = has_two_nodes().then(|| Arc::new(Ownership::default()) as Arc<dyn Gate>);
    Share { name: name.into(), comment: String::new(), path: "C:\\".into(), fs: Some(fs.clone()), gate, ..Share::ipc() }
}

/// An administrator changes a share.
pub fn change_share(lab: &Lab, name: &str, change: impl Fn(&mut Share)) {
    let shares = lab.server.trees.shares().into_iter().filter(|s| s.name != "IPC$").map(|s| {
        let mut share = Share::clone(&s);
        if share.name == name {
            change(&mut share);
        }
        share
    });
    lab.server.trees.set_shares(shares.collect());
}

impl Default for Lab {
    fn default() -> Lab {
        Lab::new()
    }
}

impl Lab {
    pub fn new() -> Lab {
        Lab::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Setup)) -> Lab {
        let mut setup = Setup::default();
        change(&mut setup);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("arden-smb-{}-{n}", std::process::id()));
        std::fs::create_dir_all(dir.join("a")).unwrap();
        std::fs::create_dir_all(dir.join("b")).unwrap();
        let machine = Sid::new(5, &[21, 1, 2, 3]);
        let users = Arc::new(MemoryUsers::new("LAB", machine));
        users.add_user(USER, PASSWORD, std::slice::from_ref(&well_known::BUILTIN_ADMINISTRATORS));
        users.add_user(OTHER, PASSWORD, &[]);
        let handles = Arc::new(MemoryHandles::default());
        let offset = Arc::<Mutex<Duration>>::default();
        let (server, front) = serve(&setup, &dir, (&users, &handles), (1, Instant::now()), &offset);
        Lab {
            server,
            front,
            dir,
            users,
            handles,
            setup,
            starts: 1,
            offset,
            clients: AtomicU64::new(1),
            fronts: AtomicU16::new(0),
        }
    }

    /// The server is killed: what it did not commit is gone, its connections too. Another takes its place.
    pub fn crash(&mut self) {
        self.handles.crash();
        self.restart();
    }

    /// Another node has the shares from now on: it finds what was committed.
    pub fn fail_over(&mut self, node: u16) {
        self.setup.node = Some(node);
        self.crash();
    }

    /// The server is told to stop, and started again.
    pub fn stop_and_start(&mut self) {
        self.stop_for(Duration::ZERO);
    }

    /// The same, with some time between.
    pub fn stop_for(&mut self, time: Duration) {
        let now = Instant::now() + *self.offset.lock();
        self.server.stop(now);
        *self.offset.lock() += time;
        self.restart();
    }

    /// The shares that are named are left in order, and served next by this node, after a start.
    pub fn move_to(&mut self, node: u16, shares: &[&str]) {
        self.server.trees.keep_durable(|share| shares.contains(&share.name.as_str()));
        self.fail_over(node);
    }

    fn restart(&mut self) {
        self.starts += 1;
        // Nothing of a killed process runs, not even what is done when things are dropped.
        std::mem::forget(self.server.clone());
        if let Some(front) = &self.front {
            front.break_connections();
        }
        let now = Instant::now() + *self.offset.lock();
        (self.server, self.front) =
            serve(&self.setup, &self.dir, (&self.users, &self.handles), (self.starts, now), &self.offset);
    }
}

fn config(setup: &Setup, users: &Arc<MemoryUsers>) -> ServerConfig {
    let policy = Policy::default();
    policy.set(setup.signing_required, setup.encryption_required, setup.multichannel);
    ServerConfig {
        guid: 0x4142_4344,
        name: "LAB".into(),
        comment: "a lab".into(),
        policy,
        limits: setup.limits,
        users: users.clone(),
        identity: Arc::new(ServerIdentity::stand_alone("LAB")),
        auth: AuthPolicy { allow_anonymous: setup.anonymous, ..AuthPolicy::default() },
    }
}

fn serve(
    setup: &Setup,
    dir: &std::path::Path,
    (users, handles): (&Arc<MemoryUsers>, &Arc<MemoryHandles>),
    (starts, now): (u64, Instant),
    offset: &Arc<Mutex<Duration>>,
) -> (Arc<Server>, Option<Front>) {
    let ownership = has_two_nodes().then(Arc::<Ownership>::default);
    let table = OpenTable::new(setup.table);
    table.start_ids(starts, setup.node);
    let server = (setup.server)(config(setup, users), table.clone(), Time::read());
    let store = DirStore::open(&dir.join("a"), DirOptions::default()).unwrap();
    let fs = Fs::with_handles(store, table.clone(), Some(handles.clone()));
    let second = Fs::new(DirStore::open(&dir.join("b"), DirOptions::default()).unwrap(), table);
    let wall = FileTime::from_system(std::time::SystemTime::now() + *offset.lock());
    server.trees.set_time(Time { now, wall });
    let gate = ownership.clone().map(|o| o as Arc<dyn Gate>);
    let share = |name: &str, fs: &Arc<Fs>| Share { gate: gate.clone(), ..share(name, fs) };
    server.trees.set_shares(vec![
        Share { hidden: false, ..share(SHARE, &fs) },
        Share { encrypt: true, ..share(SEALED, &fs) },
        Share { read_only: true, ..share(READ_ONLY, &fs) },
        share(SECOND, &second),
        Share { continuously_available: true, ..share(CA, &fs) },
        Share { continuously_available: true, ..share(CA_TOO, &fs) },
        Share { continuously_available: true, encrypt: true, ..share(CA_SEALED, &fs) },
        Share { write_through: true, ..share(THROUGH, &fs) },
    ]);
    *server.trees.interfaces.write() = vec![
        Interface { index: 1, address: [192, 0, 2, 1].into(), speed_bits: 10_000_000_000, rss: true },
        Interface { index: 2, address: [192, 0, 2, 2].into(), speed_bits: 1_000_000_000, rss: false },
    ];
    let front = ownership.map(|ownership| {
        let front = Front::new(&server, config(setup, users), ownership, offset.clone(), 1);
        front.server.trees.set_time(Time { now, ..Time::read() });
        front
    });
    (server, front)
}

impl Lab {
    /// The node that clients connect to.
    pub fn front(&self) -> &Arc<Server> {
        self.front.as_ref().map_or(&self.server, |front| &front.server)
    }

    /// A further node without shares of its own: the owner is the same.
    pub fn another_front(&self) -> Front {
        let ownership = self.front.as_ref().expect("two nodes").ownership.clone();
        let number = 10 + self.fronts.fetch_add(1, Ordering::Relaxed);
        let front = Front::new(&self.server, config(&self.setup, &self.users), ownership, self.offset.clone(), number);
        front.server.trees.set_time(Time { now: Instant::now() + *self.offset.lock(), ..Time::read() });
        front
    }

    /// A connection of the client with this ClientGuid to such a node.
    pub fn connect_to(&self, front: &Front, guid: u128) -> Client {
        let mut client = Client::new(&front.server, guid, self.offset.clone());
        client.behind = Some(self.server.clone());
        client
    }

    /// A new connection of a client of its own, nothing said yet.
    pub fn connect(&self) -> Client {
        let n = self.clients.fetch_add(1, Ordering::Relaxed);
        self.connect_as(u128::from(n) << 64 | 0xC11E)
    }

    /// A new connection of the client with this ClientGuid.
    pub fn connect_as(&self, guid: u128) -> Client {
        let mut client = Client::new(self.front(), guid, self.offset.clone());
        client.behind = self.front.as_ref().map(|_| self.server.clone());
        client
    }

    /// The same at the owner of the shares, where clients connect to another node.
    pub fn connect_to_owner_as(&self, guid: u128) -> Client {
        Client::new(&self.server, guid, self.offset.clone())
    }

    /// A client that is logged on and connected to the share, with the newest dialect.
    pub fn client(&self) -> Client {
        self.client_with(Dialect::Smb311)
    }

    pub fn client_with(&self, dialect: Dialect) -> Client {
        let mut c = self.connect();
        c.begin(dialect);
        c
    }

    /// The same for a client that was here before.
    pub fn client_again(&self, guid: u128, dialect: Dialect) -> Client {
        let mut c = self.connect_as(guid);
        c.begin(dialect);
        c
    }

    /// A client of the continuously available share.
    pub fn ca_client(&self) -> Client {
        let mut c = self.connect();
        c.begin(Dialect::Smb311);
        c.connect(CA);
        c
    }

    /// The same for a client that was there before.
    pub fn ca_again(&self, guid: u128) -> Client {
        let mut c = self.client_again(guid, Dialect::Smb311);
        c.connect(CA);
        c
    }

    /// Time passes.
    pub fn pass(&self, time: Duration) {
        let now = {
            let mut offset = self.offset.lock();
            *offset += time;
            let wall = FileTime::from_system(std::time::SystemTime::now() + *offset);
            Time { now: Instant::now() + *offset, wall }
        };
        self.server.tick(now);
        self.server.trees.run_deferred();
        if let Some(front) = &self.front {
            front.server.tick(now);
            front.server.trees.run_deferred();
            let_nodes_talk();
        }
    }

    /// How many opens there are, once they are so few. What a lost connection had open at another node is closed there a little later:
    /// nothing says when.
    pub fn opens_left(&self, few: usize) -> usize {
        let end = Instant::now() + Duration::from_secs(if self.front.is_some() { 10 } else { 0 });
        loop {
            self.server.trees.run_deferred();
            let left = self.server.trees.opens().len();
            if left <= few || Instant::now() >= end {
                return left;
            }
            let_nodes_talk();
        }
    }

    /// Whether a crash now takes nothing from the share.
    pub fn is_committed(&self, share: &str) -> bool {
        let share = self.server.trees.share(share).expect("a share");
        let scope = CommitScope::begin();
        scope.join(share.fs.as_ref().expect("files"), true);
        !scope.is_due()
    }

    /// Whether a crash now takes nothing of what is kept of opens.
    pub fn handles_are_committed(&self) -> bool {
        !self.handles.has_uncommitted(CommitScope::begin().id())
    }

    /// The path of a file of the share on the host.
    pub fn host(&self, name: &str) -> PathBuf {
        self.dir.join("a").join(name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub const ALL_ACCESS: u32 = FILE_ALL_ACCESS;
