//! The server under test with its shares and the clients of its users, all in memory, and the model beside it.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_auth::{AuthPolicy, MemoryUsers, ServerIdentity};
use arden_smb::{Limits, Policy, Server, ServerConfig, Share, share::ShareAce, time::Time};
use arden_store::{
    dir::{DirOptions, DirStore},
    fs::Fs,
    name::NtPath,
    store::{FileStore, NewFile},
    table::{OpenTable, TableLimits},
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, dtyp, smb2::Dialect};

use super::{
    acl::{self, Ace, Sd, Token, Who},
    judge::{INNER_SHARES, ShareModel},
    tree::{Handle, Node, Tree},
};
use crate::client::{self, Client, Offer};

/// The store under the shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Without names in memory.
    Directory,
    /// With names in memory, and without the inner shares.
    Cached,
    Volume,
}

/// Who is on which connection.
pub const SESSIONS: [Who; 5] = [Who::Ann, Who::Bob, Who::Root, Who::Ann, Who::Bob];
pub const ADMIN: usize = 2;
pub const PASSWORD: &str = client::PASSWORD;

/// The fifth connection has the ClientGuid of the first, and another user.
pub fn guid(session: usize) -> u128 {
    let n = if session == 4 { 1 } else { session as u128 + 1 };
    n << 64 | 0xACCE
}

pub fn account(who: Who) -> &'static str {
    match who {
        Who::Ann => "ann",
        Who::Bob => "bob",
        _ => "root",
    }
}

const READ_ONLY: u32 = acl::LEVEL_READ;

/// Name, whether it is the inner one, the ceilings of Ann, Bob and the administrator, and how they are made.
const SHARES: [(&str, bool, [u32; 3], Permissions); 8] = [
    ("full", false, [acl::ALL; 3], Permissions::Aces(&[])),
    ("change", false, [acl::LEVEL_CHANGE; 3], Permissions::Aces(&[(true, Who::Everyone, acl::LEVEL_CHANGE)])),
    ("read", false, [READ_ONLY; 3], Permissions::Aces(&[(true, Who::Everyone, READ_ONLY)])),
    ("readonly", false, [acl::ALL & !0x0D_0156; 3], Permissions::ReadOnly),
    (
        "mixed",
        false,
        [acl::ALL, READ_ONLY, acl::ALL],
        Permissions::Aces(&[
            (true, Who::Ann, acl::ALL),
            (true, Who::Everyone, READ_ONLY),
            (true, Who::Admins, acl::ALL),
        ]),
    ),
    (
        "lessdelete",
        false,
        [acl::ALL, acl::ALL & !(acl::DELETE | acl::WRITE_DAC), acl::ALL],
        Permissions::Aces(&[(false, Who::Bob, acl::DELETE | acl::WRITE_DAC), (true, Who::Everyone, acl::ALL)]),
    ),
    ("inner", true, [acl::ALL; 3], Permissions::Aces(&[])),
    ("innerread", true, [READ_ONLY; 3], Permissions::Aces(&[(true, Who::Everyone, READ_ONLY)])),
];

#[derive(Clone, Copy)]
enum Permissions {
    ReadOnly,
    Aces(&'static [(bool, Who, u32)]),
}

pub struct World {
    pub server: Arc<Server>,
    pub store: Arc<dyn FileStore>,
    dir: PathBuf,
    pub clients: Vec<Client>,
    pub users: Vec<Who>,
    /// Tree ids: session, share.
    pub trees: Vec<Vec<u32>>,
    pub shares: Vec<ShareModel>,
    pub roots: Vec<usize>,
    pub tree: Tree,
    pub handles: Vec<Option<Handle>>,
    /// Names that the store keeps for itself.
    pub hidden: Vec<String>,
    /// Nodes on which locks were taken, from then on.
    pub locked: Vec<usize>,
    pub requests: u64,
    /// Node of the inner share's root.
    pub inner: usize,
    pub kind: StoreKind,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// The fastest place for files that there is.
fn scratch() -> PathBuf {
    let fast = PathBuf::from("/dev/shm");
    let base = if std::env::var_os("TMPDIR").is_none() && fast.is_dir() { fast } else { std::env::temp_dir() };
    base.join(format!("arden-access-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn stores(kind: StoreKind, dir: &std::path::Path) -> (Arc<dyn FileStore>, Arc<dyn FileStore>) {
    match kind {
        StoreKind::Directory | StoreKind::Cached => {
            let names = if kind == StoreKind::Directory { 0 } else { DirOptions::default().name_cache_bytes_max };
            std::fs::create_dir_all(dir.join("outer/inner")).expect("a directory");
            std::fs::write(dir.join("outside"), b"outside").expect("a file");
            let options = || DirOptions {
                hide_dot_files: false,
                name_cache_bytes_max: names,
                // What the other store does is seen at once.
                listing_age_min: Duration::ZERO,
                ..DirOptions::default()
            };
            let open = |path: &str| DirStore::open(&dir.join(path), options()).expect("a store");
            (open("outer"), open("outer/inner"))
        }
        StoreKind::Volume => {
            let device = Arc::new(MemDevice::new(32 << 20));
            Volume::format(&*device, "access", 0x77, FileTime(132_000_000_000_000_000)).expect("a volume");
            let options = VolumeOptions { background: false, ..VolumeOptions::default() };
            let volume = Volume::open(device, options).expect("a volume");
            let outer = VolumeStore::new(volume.clone(), Durability::Plain);
            let new = NewFile { directory: true, attributes: 0, security: None, eas: &[], allocation: None };
            outer.root().create_child(None, "inner", &new).expect("a directory");
            let path = NtPath::parse("inner").expect("a path");
            let inner = VolumeStore::of_directory(volume, &path, Durability::Plain).expect("a directory of the volume");
            (outer, inner)
        }
    }
}

fn share(name: &str, fs: &Arc<Fs>, permissions: Permissions) -> Share {
    let mut share = Share { name: name.into(), path: "C:\\".into(), fs: Some(fs.clone()), ..Share::ipc() };
    share.hidden = false;
    match permissions {
        Permissions::ReadOnly => share.read_only = true,
        Permissions::Aces(aces) => {
            let ace = |(allow, who, mask): &(bool, Who, u32)| ShareAce { sid: who.sid(), allow: *allow, mask: *mask };
            share.access = aces.iter().map(ace).collect();
        }
    }
    share
}

fn config(users: Arc<MemoryUsers>) -> ServerConfig {
    let policy = Policy::default();
    policy.set(true, false, true);
    ServerConfig {
        guid: 0x4142_4344,
        name: "LAB".into(),
        comment: String::new(),
        policy,
        limits: Limits::default(),
        users,
        identity: Arc::new(ServerIdentity::stand_alone("LAB")),
        auth: AuthPolicy::default(),
    }
}

impl World {
    pub fn new(kind: StoreKind) -> World {
        let dir = scratch();
        let users = Arc::new(MemoryUsers::new("LAB", acl::machine()));
        for (i, who) in [Who::Ann, Who::Bob, Who::Root].into_iter().enumerate() {
            let admins = [Who::Admins.sid()];
            let rid = users.add_user(account(who), PASSWORD, if who == Who::Root { &admins } else { &[] });
            assert_eq!(rid, acl::RIDS[i], "the account's relative identifier");
        }
        let config = config(users);
        let (outer, inner) = stores(kind, &dir);
        let table = OpenTable::new(TableLimits::default());
        let server = Server::new(config, table.clone(), Time::read());
        let fs = [Fs::new(outer.clone(), table.clone()), Fs::new(inner, table)];
        server.trees.set_time(Time { now: Instant::now(), ..Time::read() });
        server
            .trees
            .set_shares(SHARES.iter().map(|(name, inner, _, p)| share(name, &fs[usize::from(*inner)], *p)).collect());

        let full = |who| Ace { allow: true, who, flags: acl::OI | acl::CI, mask: acl::ALL };
        let creator = Ace { flags: acl::OI | acl::CI | acl::IO, ..full(Who::CreatorOwner) };
        let users_ace = Ace { mask: acl::LEVEL_CHANGE, ..full(Who::Users) };
        let sd = Sd::new(Who::Root, vec![users_ace, full(Who::Admins), creator]);
        let mut tree = Tree::default();
        let root = tree.add(Node::new(true, sd.clone()));
        let inner = tree.add(Node::new(true, sd));
        tree.insert(root, "inner", inner);
        let shares: Vec<ShareModel> = SHARES
            .iter()
            .map(|(name, is_inner, ceilings, _)| ShareModel {
                name,
                root: if *is_inner { inner } else { root },
                ceilings: *ceilings,
            })
            .collect();
        let shares: Vec<ShareModel> = match kind {
            StoreKind::Cached => shares.into_iter().take(INNER_SHARES).collect(),
            _ => shares,
        };
        let roots = shares.iter().map(|s| s.root).collect();
        let mut world = World {
            server,
            store: outer,
            dir,
            clients: Vec::new(),
            users: SESSIONS.to_vec(),
            trees: Vec::new(),
            shares,
            roots,
            tree,
            handles: (0..super::op::SLOTS).map(|_| None).collect(),
            hidden: Vec::new(),
            locked: Vec::new(),
            requests: 0,
            inner,
            kind,
        };
        world.log_on();
        world.first_descriptors();
        world
    }

    fn log_on(&mut self) {
        for (i, who) in SESSIONS.into_iter().enumerate() {
            let mut c = Client::new(&self.server, guid(i), Arc::default());
            c.negotiate(&Offer::up_to(Dialect::Smb311));
            c.logon(&client::logon(account(who)));
            self.clients.push(c);
            self.trees.push(Vec::new());
            self.connect_trees(i);
        }
    }

    pub fn connect_trees(&mut self, session: usize) {
        let c = &mut self.clients[session];
        self.trees[session] = self
            .shares
            .iter()
            .map(|share| {
                c.connect(share.name);
                c.tree
            })
            .collect();
    }

    fn first_descriptors(&mut self) {
        for path in ["", "inner"] {
            let access = acl::READ_ATTRIBUTES | acl::WRITE_DAC | acl::WRITE_OWNER;
            let c = &mut self.clients[ADMIN];
            c.tree = self.trees[ADMIN][0];
            let f = c.open(client::want(path).access(access).existing());
            let sd = self.tree.nodes[self.inner].sd.encode(7);
            let status = c.status(&client::set_info(f.id, 3, 0, 7, &sd));
            assert!(status.is_success(), "the first descriptor: {status}");
            c.close(f.id);
        }
        let c = &mut self.clients[ADMIN];
        let f = c.open(client::want(super::sessions::LEASED));
        c.close(f.id);
        let parent = self.tree.nodes[self.inner].sd.clone();
        let sd = acl::created(&parent, false, &Token::of(Who::Root), None).remove(0);
        let node = self.tree.add(Node::new(false, sd));
        self.tree.insert(self.roots[0], super::sessions::LEASED, node);
    }

    /// Takes up names that lie in the directories on the host and that the model does not have, with their 8.3 names.
    pub fn find_hidden(&mut self) {
        if self.kind == StoreKind::Volume {
            return;
        }
        self.hidden.clear();
        for (prefix, node) in [("", self.roots[0]), ("inner\\", self.inner)] {
            let place = self.dir.join("outer").join(prefix.trim_end_matches('\\'));
            let names = std::fs::read_dir(place).into_iter().flatten().flatten();
            for name in names.filter_map(|e| e.file_name().into_string().ok()) {
                if self.tree.child(node, &name).is_none() {
                    let short = arden_store::name::short_name(&name);
                    self.hidden.extend([Some(name), short].into_iter().flatten().map(|n| format!("{prefix}{n}")));
                }
            }
        }
    }

    /// From the outer root, the names of files that have several.
    pub fn linked_names(&self) -> Vec<String> {
        if self.tree.linked_twice.is_empty() {
            return Vec::new();
        }
        let mut all = Vec::new();
        self.tree.walk(self.roots[0], "", &mut all);
        all.into_iter().filter(|(_, n)| self.tree.linked_twice.contains(n)).map(|(path, _)| path).collect()
    }

    pub fn token(&self, session: usize) -> Token {
        Token::of(self.users[session])
    }

    /// A request on a session's tree.
    pub fn call(&mut self, session: usize, share: usize, req: &client::Req) -> client::Reply {
        self.requests += 1;
        let tree = self.trees[session][share];
        let c = &mut self.clients[session];
        c.sent.clear();
        c.call(&req.clone().tree(tree))
    }

    pub fn opens(&self) -> Vec<&Handle> {
        self.handles.iter().flatten().collect()
    }

    /// The descriptor of a node as the store has it.
    pub fn stored_sd(&self, path: &str) -> Option<Sd> {
        let path = NtPath::parse(path).ok()?;
        let arden_store::store::Lookup::Found(node) = self.store.lookup(&path).ok()? else { return None };
        stored(&*node.security().ok()?)
    }

    /// The path of a link from the outer root.
    pub fn path_of(&self, wanted: usize) -> Option<String> {
        if wanted == self.roots[0] {
            return Some(String::new());
        }
        let mut all = Vec::new();
        self.tree.walk(self.roots[0], "", &mut all);
        all.into_iter().find(|(_, n)| *n == wanted).map(|(p, _)| p)
    }
}

/// A store's descriptor in the model's terms.
pub fn stored(sd: &dtyp::SecurityDescriptor) -> Option<Sd> {
    Sd::decode(&sd.encode())
}

impl Drop for World {
    fn drop(&mut self) {
        self.clients.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
