//! Connects the SMB server with the state: shares, users and settings go in, sessions and opens are reported.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_admin::{
    AdminError, Control, ErrorKind, State,
    address::AddressAtNode,
    api::Api,
    error::Result,
    model::{Grant, Id, Metric, OpenInfo, Rights, SessionInfo, Share, ShareProblem},
    names::key,
    state::Snapshot,
};
use arden_auth::{AuthPolicy, ServerIdentity};
use arden_coordinate::{Member, peers::Listener};
use arden_host::Volumes;
use arden_rpc::tcp::TcpService;
use arden_smb::{
    Gate, Limits, Policy, Server, ServerConfig, ShareAce, UsageLimits, forward::engine::Forwarder,
    metrics::CommandCount, time::Time,
};
use arden_store::{
    dir::{DirOptions, DirStore},
    error::StoreError,
    fs::Fs,
    handles::DiskHandles,
    table::{OpenTable, TableLimits},
};
use arden_wire::access;
use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

use crate::users::{LiveUsers, sid};
use crate::{
    addresses::{self, Addresses},
    aside::wait_a_while,
    exposure,
    folders::{Folder, Strayed},
    forwarding::{self, Places},
    interfaces,
    shown::session_info,
};

/// Interval at which the interfaces are read again, whose addresses change with links and leases.
const INTERFACES_EVERY: Duration = Duration::from_secs(30);

/// Interval at which unserved shares are tried again, as disks of a volume may appear after the start of the daemon, and at which folders
/// that are served are looked at.
const UNSERVED_TRIED_EVERY: Duration = Duration::from_secs(5);

/// Connections of clients of a pool that this node leaves have so long to end.
const DISCONNECT_WAIT: Duration = Duration::from_secs(2);
/// How long a change of accounts waits until what users had open who are gone is closed. They are logged off before.
const REVOKED_WAIT: Duration = Duration::from_secs(2);
const REVOKED_OPENS: &str = "files of users who were logged off are closed";

/// The location of a share's files: the volume, if any, and the path.
type Place = (Option<String>, PathBuf);

fn place(share: &Share) -> Place {
    (share.volume.clone(), share.path.clone())
}

/// The gates of the pools that this node owns.
#[derive(Default)]
pub struct Gates(Mutex<HashMap<u128, Served>>);

struct Served {
    gate: Arc<dyn Gate>,
    /// Its shares are open, those that can be.
    opened: bool,
}

impl Gates {
    /// Whether the shares of the pool are served.
    pub fn are_open(&self, pool: u128) -> bool {
        self.0.lock().get(&pool).is_some_and(|served| served.opened)
    }

    fn of(&self, pool: u128) -> Option<Arc<dyn Gate>> {
        self.0.lock().get(&pool).map(|served| served.gate.clone())
    }
}

/// A store, and the folder of the machine that it serves, if any.
struct Opened {
    fs: Arc<Fs>,
    folder: Option<Folder>,
}

/// The SMB server under control of the state.
pub struct SmbControl {
    server: Arc<Server>,
    table: Arc<OpenTable>,
    /// Persistent handles of shares on directories.
    handles: Arc<DiskHandles>,
    /// Open stores by volume and path. Shares of one directory use the same store.
    stores: Mutex<HashMap<Place, Opened>>,
    volumes: Arc<Volumes>,
    state: Arc<State>,
    /// The state directory, which must not be shared.
    state_dir: PathBuf,
    /// In a cluster: the gates of the pools that this node owns.
    gates: Arc<Gates>,
    /// In a cluster: stands before the trees, for shares that other nodes own.
    forwarder: Option<Arc<Forwarder>>,
    /// Shares that are not served here, and why; none where that is another node's.
    unserved: Mutex<BTreeMap<String, Option<String>>>,
    strayed: Mutex<Strayed>,
    /// Held while the server is informed of changed shares, and while stores are opened.
    changing: Mutex<()>,
    addresses: Vec<SocketAddr>,
    /// In a cluster: the floating addresses of its pools.
    floating: OnceLock<Arc<Addresses>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// Whether a share of a cluster lies on the pool.
fn is_of_pool(share: &arden_smb::Share, pool: u128) -> bool {
    share.gate.as_ref().and_then(|gate| gate.target()).is_some_and(|target| target.pool == pool)
}

impl SmbControl {
    /// Starts the SMB server and serves the shares of the state.
    ///
    /// # Errors
    /// No address can be listened on, or the stored handles cannot be read.
    pub async fn start(
        state: &Arc<State>,
        state_dir: &Path,
        volumes: &Arc<Volumes>,
        listen: &[SocketAddr],
        member: Option<&Arc<Member>>,
        stopped: watch::Receiver<bool>,
    ) -> Result<Arc<SmbControl>> {
        let snapshot = state.snapshot();
        let table =
            OpenTable::new(TableLimits { opens_max: snapshot.settings.opens_max as usize, ..TableLimits::default() });
        let name = snapshot.server_name();
        let handles = open_handles(state_dir)?;
        table.start_ids(handles.starts(), member.map(|m| m.number()));
        let users = Arc::new(LiveUsers::new(state.clone()));
        let gates = Arc::new(Gates::default());
        let config = config(&snapshot, &name, users);
        let (server, forwarder) = match member {
            Some(member) => {
                let (member, state, served) = (member.clone(), state.clone(), gates.clone());
                let places = Arc::new(Places { member, state, served });
                let (server, forwarder) = Forwarder::before(config, table.clone(), Time::read(), places);
                (server, Some(forwarder))
            }
            None => (Server::new(config, table.clone(), Time::read()), None),
        };
        let (listeners, addresses) = bind(listen).await?;
        *server.trees.interfaces.write() = interfaces::listening(&addresses, &interfaces::floating(&snapshot));
        let control = Arc::new(SmbControl {
            server,
            table,
            handles,
            stores: Mutex::new(HashMap::new()),
            volumes: volumes.clone(),
            state: state.clone(),
            state_dir: state_dir.to_path_buf(),
            gates,
            forwarder,
            unserved: Mutex::default(),
            strayed: Mutex::default(),
            changing: Mutex::default(),
            addresses,
            floating: OnceLock::new(),
            tasks: Mutex::new(Vec::new()),
        });
        // Persistent opens are restored before the first client can connect.
        control.shares_changed();
        exposure::warn(state_dir, &snapshot);
        control.listen_on(listeners, &stopped);
        let interfaces = Arc::downgrade(&control);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(INTERFACES_EVERY).await;
                let Some(control) = interfaces.upgrade() else { return };
                control.read_interfaces();
            }
        });
        control.regularly(SmbControl::try_unserved);
        control.regularly(SmbControl::look_at_folders);
        Ok(control)
    }

    /// Does this work again and again, on a thread that may wait for a disk.
    fn regularly(self: &Arc<SmbControl>, work: fn(&SmbControl)) {
        let control = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UNSERVED_TRIED_EVERY).await;
                let Some(control) = control.upgrade() else { return };
                let _ = tokio::task::spawn_blocking(move || work(&control)).await;
            }
        });
    }

    fn read_interfaces(&self) {
        let floating = interfaces::floating(&self.state.snapshot());
        *self.server.trees.interfaces.write() = interfaces::listening(&self.addresses, &floating);
    }

    /// Looks after floating addresses from now on, as a node of a cluster.
    ///
    /// # Errors
    /// There is no thread.
    pub fn look_after_addresses(&self) -> std::io::Result<Arc<Addresses>> {
        let addresses = Addresses::start(self.state.clone(), self.addresses.clone(), Box::new(addresses::System))?;
        let admits = addresses.clone();
        self.server.admit_at(Box::new(move |local| admits.admits(local.ip())));
        Ok(self.floating.get_or_init(|| addresses).clone())
    }

    /// Gives all floating addresses up, for good.
    pub fn give_addresses_up(&self) {
        if let Some(floating) = self.floating.get() {
            floating.stop();
        }
    }

    /// Ends the connections that came in at these addresses of the machine.
    pub fn end_connections_at(&self, ips: &[IpAddr]) {
        let end = Instant::now() + DISCONNECT_WAIT;
        let at = |local: SocketAddr| ips.contains(&local.ip().to_canonical());
        while self.server.disconnect_at(at) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// This node owns the pool: its shares are served as long as the gate is open.
    pub fn serve_pool(&self, pool: u128, gate: Arc<dyn Gate>) {
        self.gates.0.lock().insert(pool, Served { gate, opened: false });
        self.shares_changed();
        // Who asked before waited: a share that is not there yet is no share that is not there.
        if let Some(served) = self.gates.0.lock().get_mut(&pool) {
            served.opened = true;
        }
    }

    /// This node leaves the pool in order, and its volumes are still open: durable handles are kept there for the next owner.
    pub fn keep_durable(&self, pool: u128) {
        self.server.trees.set_time(Time::read());
        self.server.trees.keep_durable(|share| is_of_pool(share, pool));
    }

    /// The gate of the pool is closed: who has its shares open has to come again, and is not to wait for that until the next request.
    pub fn end_clients(&self, pool: u128) {
        self.server.disconnect_users(|share| is_of_pool(share, pool));
    }

    /// The pool and these volumes are closed: their shares are not served any more. What clients have open of them ends, and what was
    /// kept on the volumes stays as it is.
    pub fn leave_pool(&self, pool: u128, volumes: &[String]) {
        // The gate is closed: requests end their connection. Without the tree connect they would get an error.
        let of = |share: &arden_smb::Share| volumes.iter().any(|v| self.is_on(&share.name, v));
        let end = Instant::now() + DISCONNECT_WAIT;
        while self.server.disconnect_users(of) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let closed = |volume: &Option<String>| volume.as_ref().is_some_and(|v| volumes.contains(&key(v)));
        {
            let _turn = self.changing.lock();
            self.gates.0.lock().remove(&pool);
            self.stores.lock().retain(|(volume, _), _| !closed(volume));
        }
        self.shares_changed();
    }

    fn is_on(&self, share: &str, volume: &str) -> bool {
        let snapshot = self.state.snapshot();
        let of = snapshot.shares.get(&key(share)).and_then(|s| s.volume.as_deref());
        of.is_some_and(|v| key(v) == volume)
    }

    /// The gate of a share of a cluster.
    fn gate(&self, share: &Share) -> Result<Option<Arc<dyn Gate>>> {
        if self.forwarder.is_none() {
            return Ok(None);
        }
        let pool = share.volume.as_deref().and_then(|v| self.volumes.pool_of(v));
        let gate = pool.and_then(|pool| self.gates.of(pool));
        gate.map(Some).ok_or_else(not_the_owner)
    }

    /// Serves shares that could not be served before.
    fn try_unserved(&self) {
        let waiting: Vec<String> = self.unserved.lock().keys().cloned().collect();
        let shares: Vec<Share> = self.state.snapshot().shares.values().cloned().collect();
        let can_be = |s: &Share| waiting.contains(&s.name) && self.store(s).is_ok() && self.gate(s).is_ok();
        let some_can_be = {
            let _turn = self.changing.lock();
            shares.iter().any(can_be)
        };
        if some_can_be {
            self.shares_changed();
        }
    }

    /// Looks whether the paths of shares lead to what is served. A disk may hang: no lock is held meanwhile.
    fn look_at_folders(&self) {
        let served: Vec<(PathBuf, Folder)> =
            self.stores.lock().iter().filter_map(|((_, path), o)| Some((path.clone(), o.folder?))).collect();
        let found: Vec<_> = served.iter().map(|(path, folder)| (path, *folder, Folder::at(path))).collect();
        let mut strayed = self.strayed.lock();
        // Whom an administrator has set meanwhile is looked at the next time.
        let stores = self.stores.lock();
        let is_served = |path: &Path, folder| stores.iter().any(|((_, p), o)| p == path && o.folder == Some(folder));
        for (path, served, found) in found.into_iter().filter(|(path, served, _)| is_served(path, *served)) {
            strayed.note(path, served, found);
        }
        strayed.keep(|path| stores.keys().any(|(_, p)| p == path));
    }

    /// An administrator asks for what is at the path: the store of a folder that was there before is not used any more.
    fn forget_strayed(&self, share: &Share) {
        let there = Folder::at(&share.path);
        let mut strayed = self.strayed.lock();
        let mut stores = self.stores.lock();
        if stores.get(&place(share)).is_some_and(|o| o.folder.is_some() && o.folder != there) {
            stores.remove(&place(share));
            strayed.keep(|path| path != share.path);
        }
    }

    fn listen_on(&self, listeners: Vec<TcpListener>, stopped: &watch::Receiver<bool>) {
        let serve = |listener| {
            let (server, stopped) = (self.server.clone(), stopped.clone());
            tokio::spawn(async move {
                if let Err(e) = server.serve(listener, crate::serve::until(stopped)).await {
                    tracing::error!("the SMB server stopped: {e}");
                }
            })
        };
        *self.tasks.lock() = listeners.into_iter().map(serve).collect();
    }

    /// The addresses that the server listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The addresses at which clients reach the server: those that it listens on, and for an unspecified one those of the
    /// interfaces.
    pub fn reachable(&self) -> Vec<String> {
        let floating = interfaces::floating(&self.state.snapshot());
        self.addresses.iter().flat_map(|listens| interfaces::reached_at(*listens, &floating)).collect()
    }

    /// Serves RPC at a port, with the users and limits of the SMB server.
    pub fn serve_rpc(&self, listener: TcpListener, service: Arc<TcpService>, stopped: watch::Receiver<bool>) {
        let server = self.server.clone();
        let until = crate::serve::until(stopped);
        let task = tokio::spawn(arden_smb::serve_rpc(server, listener, service, until));
        self.tasks.lock().push(task);
    }

    /// Serves what other nodes ask for their clients, and their administrators.
    pub fn serve_nodes(self: &Arc<SmbControl>, listener: Listener, api: &Arc<Api>) {
        tokio::spawn(forwarding::welcome(listener, self.server.clone(), Arc::downgrade(api)));
    }

    /// Other nodes own pools by now: clients of shares that are elsewhere come again.
    pub fn places_changed(&self) {
        if let Some(forwarder) = &self.forwarder {
            forwarder.places_changed();
        }
    }

    /// Fresh random bytes.
    pub fn random(&self) -> [u8; 16] {
        self.server.trees.random()
    }

    /// Shares of the cluster have a witness from now on: clients are told of it at tree connect.
    pub fn has_witness(&self) {
        self.server.trees.config.policy.has_witness.store(true, Ordering::Relaxed);
    }

    /// What a user may do at most with a share, whether this node serves it or another.
    pub fn ceiling(share: &Share, user: &arden_auth::Token) -> u32 {
        let rights = arden_smb::Share { read_only: share.read_only, access: aces(share), ..arden_smb::Share::ipc() };
        rights.ceiling(user)
    }

    /// Returns when no connection is accepted any more and every session is closed.
    pub async fn stopped(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            let _ = task.await;
        }
        let server = self.server.clone();
        let closing = tokio::task::spawn_blocking(move || server.stop(std::time::Instant::now()));
        let _ = closing.await;
    }

    /// The store of a share's directory, which is opened once. Called in turn (`changing`): of two that opened it at the same time
    /// one would not be that of the share, and one that was opened while its pool was left would stay.
    fn store(&self, share: &Share) -> Result<Arc<Fs>> {
        if self.forwarder.is_some() && share.volume.is_none() {
            return Err(AdminError::new(
                ErrorKind::Conflict,
                "a directory is not supported as a share in a cluster: no fence keeps another node from it",
                "share a volume on a pool",
            ));
        }
        if let Some(opened) = self.stores.lock().get(&place(share)) {
            return Ok(opened.fs.clone());
        }
        let (fs, folder) = match &share.volume {
            Some(volume) => {
                let (store, handles) = self.volumes.store(volume, &share.path)?;
                (Fs::with_handles(store, self.table.clone(), Some(handles)), None)
            }
            None => (self.directory_store(&share.path, &share.name)?, Folder::at(&share.path)),
        };
        self.stores.lock().insert(place(share), Opened { fs: fs.clone(), folder });
        Ok(fs)
    }

    fn directory_store(&self, path: &Path, label: &str) -> Result<Arc<Fs>> {
        let options = DirOptions { label: label.to_string(), ..DirOptions::default() };
        let store = DirStore::open(path, options).map_err(|status| {
            AdminError::invalid(
                format!("{}: {status}", path.display()),
                "the directory has to exist, and the daemon's user has to be able to open it",
            )
        })?;
        Ok(Fs::with_handles(store, self.table.clone(), Some(self.handles.clone())))
    }
}

fn open_handles(state_dir: &Path) -> Result<Arc<DiskHandles>> {
    let file = state_dir.join("handles.redb");
    DiskHandles::open(&file).map(Arc::new).map_err(|status| handles_refusal(&file, status))
}

fn handles_refusal(file: &Path, status: StoreError) -> AdminError {
    let file = file.display();
    match status {
        StoreError::DiskFull => AdminError::failed(
            format!("{file}: its file system is full"),
            "free some room, then start again; leave the file where it is: it keeps open handles over restarts",
        ),
        status => AdminError::failed(
            format!("{file}: {status}"),
            "it keeps open handles over restarts; without it only those are lost: move it away to start",
        ),
    }
}

fn config(snapshot: &Snapshot, name: &str, users: Arc<LiveUsers>) -> ServerConfig {
    let s = &snapshot.settings;
    let policy = Policy::default();
    policy.set(s.signing_required, s.encryption_required, s.multichannel);
    policy.set_session_lifetime(u64::from(s.session_lifetime_seconds));
    ServerConfig {
        guid: snapshot.server_guid,
        name: name.to_string(),
        comment: s.comment.clone(),
        policy,
        limits: Limits {
            connections_max: connections_max(s.connections_max as usize),
            sessions_max: s.sessions_max as usize,
            usage: usage_limits(s.opens_max as usize),
            ..Limits::default()
        },
        users,
        identity: Arc::new(ServerIdentity::stand_alone(name)),
        auth: AuthPolicy::default(),
    }
}

/// Limit of connections by the descriptors of the process: half of them, because files need descriptors too.
fn connections_max(wanted: usize) -> usize {
    use rustix::process::{Resource, getrlimit};
    let descriptors = getrlimit(Resource::Nofile).maximum.map_or(usize::MAX, |n| n as usize);
    let most = (descriptors / 2).max(1);
    if wanted > most {
        tracing::warn!(
            connections_max = wanted,
            descriptors,
            "fewer connections are let in: the limit of open files is low"
        );
    }
    wanted.min(most)
}

/// Limits of sessions, opens and connections by the descriptors that the process can get.
fn usage_limits(opens_max: usize) -> UsageLimits {
    let limits = UsageLimits::default().with_opens(opens_max);
    match raise_descriptors() {
        Some(descriptors) => limits.with_descriptors(usize::try_from(descriptors).unwrap_or(usize::MAX)),
        None => limits,
    }
}

/// Raises the soft limit of open descriptors to the hard one and returns it; `None` when there is no limit.
fn raise_descriptors() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, ..limit };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => return limit.maximum,
            Err(e) => tracing::warn!(error = %e, "the limit of open descriptors stays as it is"),
        }
    }
    limit.current
}

async fn bind(listen: &[SocketAddr]) -> Result<(Vec<TcpListener>, Vec<SocketAddr>)> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for address in listen {
        let listener = TcpListener::bind(address).await.map_err(|e| {
            let hint = match e.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "another server has this port: stop it or choose another with --listen"
                }
                std::io::ErrorKind::PermissionDenied => "ports below 1024 need root or CAP_NET_BIND_SERVICE",
                _ => "check the address given with --listen",
            };
            AdminError::failed(format!("cannot listen on {address}: {e}"), hint)
        })?;
        addresses.push(listener.local_addr().unwrap_or(*address));
        listeners.push(listener);
    }
    Ok((listeners, addresses))
}

const READ: u32 = access::FILE_GENERIC_READ | access::FILE_GENERIC_EXECUTE;
const CHANGE: u32 = READ | access::FILE_GENERIC_WRITE | access::DELETE | access::FILE_DELETE_CHILD;

fn ace(grant: &Grant, allow: bool) -> ShareAce {
    // A denied right removes only what it adds to the next lower one: denying change leaves reading.
    let mask = match (grant.rights, allow) {
        (Rights::Read, true) => READ,
        (Rights::Change, true) => CHANGE,
        (Rights::Full, true) => access::FILE_ALL_ACCESS,
        (Rights::Read, false) => access::FILE_ALL_ACCESS,
        (Rights::Change, false) => access::FILE_ALL_ACCESS & !READ,
        (Rights::Full, false) => access::FILE_ALL_ACCESS & !CHANGE,
    };
    ShareAce { sid: sid(&grant.who), allow, mask }
}

fn not_the_owner() -> AdminError {
    AdminError::new(ErrorKind::Conflict, "this node does not own its pool", "`arden pool list` shows which does")
}

fn aces(share: &Share) -> Vec<ShareAce> {
    share.allow.iter().map(|g| ace(g, true)).chain(share.deny.iter().map(|g| ace(g, false))).collect()
}

/// A share as the server knows it. Without `fs` it is only listed: another node serves it.
/// The pool of a share's volume, as its record has it: known whether the volume is open or not.
pub fn recorded_pool(snapshot: &Snapshot, share: &Share) -> Option<u128> {
    let record = snapshot.volumes.get(&key(share.volume.as_deref()?))?;
    u128::from_str_radix(record.pool.as_deref()?, 16).ok()
}

fn exported(share: &Share, fs: Option<Arc<Fs>>, gate: Option<Arc<dyn Gate>>) -> arden_smb::Share {
    arden_smb::Share {
        name: share.name.clone(),
        comment: share.comment.clone(),
        path: share.path.display().to_string(),
        fs,
        read_only: share.read_only,
        encrypt: share.encrypt,
        write_through: share.write_through,
        continuously_available: share.continuously_available,
        scale_out: share.scale_out,
        hidden: share.hidden,
        access_based_enumeration: share.access_based_enumeration,
        users_max: share.users_max,
        users: Default::default(),
        access: aces(share),
        gate,
    }
}

impl Control for SmbControl {
    fn check_share(&self, share: &Share) -> Result<()> {
        let _turn = self.changing.lock();
        if share.volume.is_some() {
            return self.store(share).map(|_| ());
        }
        let path = share.path.display();
        let error = match std::fs::metadata(&share.path) {
            Ok(m) if m.is_dir() => {
                self.forget_strayed(share);
                return self.store(share).map(|_| ());
            }
            Ok(_) => AdminError::invalid(format!("{path} is not a directory"), "share the directory that holds it"),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let hint = format!("mount the file system that has it, or make it: mkdir -p {path}");
                AdminError::invalid(format!("{path} does not exist"), hint)
            }
            Err(e) => AdminError::invalid(format!("{path}: {e}"), "the daemon's user has to be able to open it"),
        };
        Err(error)
    }

    fn check_exposure(&self, share: &Share) -> Result<()> {
        exposure::check_share(&self.state_dir, &self.state.snapshot(), share)
    }

    fn shares_changed(&self) {
        // Changes are made one after the other, each with the newest state: an older list must not come last.
        let _turn = self.changing.lock();
        let snapshot = self.state.snapshot();
        let shares: Vec<Share> = snapshot.shares.values().cloned().collect();
        self.stores.lock().retain(|at, _| shares.iter().any(|s| place(s) == *at));
        let (mut ready, mut elsewhere, mut unserved) = (Vec::new(), Vec::new(), BTreeMap::new());
        for share in &shares {
            let pool = recorded_pool(&snapshot, share);
            // Whether a pool of another node could be opened is not asked: who answers may wait for a disk.
            let is_anothers = self.forwarder.is_some() && pool.is_some_and(|pool| self.gates.of(pool).is_none());
            let found = if is_anothers { Err(not_the_owner()) } else { self.store(share) };
            match found.and_then(|fs| Ok((fs, self.gate(share)?))) {
                Ok((fs, gate)) => ready.push(exported(share, Some(fs), gate)),
                Err(e) => {
                    match self.forwarder.is_some() {
                        true => {
                            tracing::debug!(share = %share.name, "not served: {e}");
                            elsewhere.push(exported(share, None, pool.and_then(|pool| self.gates.of(pool))));
                        }
                        false => tracing::error!(share = %share.name, "not served: {e}"),
                    }
                    unserved.insert(share.name.clone(), (!is_anothers).then(|| e.to_string()));
                }
            }
        }
        let before = std::mem::replace(&mut *self.unserved.lock(), unserved);
        for share in ready.iter().filter(|s| before.contains_key(&s.name)) {
            tracing::info!(share = share.name, "served by now");
        }
        self.server.trees.set_time(Time::read());
        self.server.trees.set_shares(ready);
        self.server.trees.set_shares_elsewhere(elsewhere);
        self.places_changed();
    }

    fn share_problems(&self) -> Vec<ShareProblem> {
        let unserved = self.unserved.lock().clone();
        let strayed = self.strayed.lock();
        let mut problems: Vec<ShareProblem> = unserved
            .into_iter()
            .filter_map(|(share, why)| Some(ShareProblem { share, problem: format!("not served: {}", why?) }))
            .collect();
        for share in self.state.snapshot().shares.values().filter(|s| s.volume.is_none()) {
            if let Some(why) = strayed.why(&share.path) {
                let problem = format!("the folder that was at {} is served: {why}", share.path.display());
                problems.push(ShareProblem { share: share.name.clone(), problem });
            }
        }
        problems
    }

    fn accounts_changed(&self) {
        self.server.trees.set_time(Time::read());
        let revoked = self.server.accounts_changed();
        wait_a_while(REVOKED_WAIT, REVOKED_OPENS, move || revoked.close());
    }

    fn close_user_sessions(&self, name: &str) -> usize {
        self.server.trees.set_time(Time::read());
        let revoked = self.server.end_sessions_of(name);
        let count = revoked.sessions();
        wait_a_while(REVOKED_WAIT, REVOKED_OPENS, move || revoked.close());
        count
    }

    fn settings_changed(&self) {
        let policy = &self.server.trees.config.policy;
        loop {
            let used = self.state.snapshot();
            let s = &used.settings;
            policy.set(s.signing_required, s.encryption_required, s.multichannel);
            policy.set_session_lifetime(u64::from(s.session_lifetime_seconds));
            // Who read older ones and sets them last sees that here.
            if self.state.snapshot().settings == *s {
                return;
            }
        }
    }

    fn sessions(&self) -> Vec<SessionInfo> {
        self.server.sessions().iter().map(|s| session_info(s)).collect()
    }

    fn session_count(&self) -> usize {
        self.server.sessions().len()
    }

    fn open_count(&self) -> usize {
        self.server.trees.open_count()
    }

    fn close_session(&self, id: Id) -> bool {
        self.server.close_session(id.0)
    }

    fn opens(&self) -> Vec<OpenInfo> {
        let mut table: HashMap<u64, _> = self.table.opens().into_iter().map(|o| (o.id.0, o)).collect();
        self.server
            .trees
            .opens()
            .iter()
            .map(|open| {
                let summary = table.remove(&open.id.persistent);
                // The session of another node's client is there, and its id may be that of one here.
                let tables = open.session();
                let is_here = |t: &arden_smb::model::SessionTables| {
                    self.server.session(t.id).filter(|s| s.tables.serial == t.serial)
                };
                let session = tables.as_ref().and_then(|t| is_here(t));
                let peer = session.as_ref().and_then(|s| s.live_peer());
                OpenInfo {
                    id: Id(open.id.persistent),
                    session: tables.map(|t| Id(t.id)),
                    user: open.owner.user_name.clone(),
                    client: peer.map_or_else(String::new, |p| p.address.clone()),
                    share: open.share.name.clone(),
                    access: summary.as_ref().map_or(open.desired_access, |s| s.access),
                    cache: summary.as_ref().map_or_else(String::new, |s| arden_smb::cache_name(s.cache)),
                    durable: open.state.lock().durability.timeout().is_some(),
                    locks: summary.as_ref().map_or(0, |s| s.locks as u32),
                    path: summary.map_or_else(|| open.name.clone(), |s| s.path),
                    node: String::new(),
                }
            })
            .collect()
    }

    fn close_open(&self, id: Id) -> bool {
        self.server.trees.close_open_by_id(id.0)
    }

    fn metrics(&self) -> Vec<Metric> {
        let gauge =
            |name, help, value: usize| Metric { name, help, counter: false, labels: Vec::new(), value: value as f64 };
        let m = &self.server.trees.metrics;
        let read = |c: &AtomicU64| c.load(Ordering::Relaxed) as f64;
        let counter = |name, help, labels, value| Metric { name, help, counter: true, labels, value };
        let mut all = vec![
            gauge("connections", "Transport connections", self.server.peers().len()),
            gauge("persistent_handles", "Handles that outlive the daemon", self.server.trees.persistent_opens()),
            counter("connections_total", "Transport connections accepted", Vec::new(), read(&m.connections)),
            counter(
                "connection_threads_total",
                "Times that a busy connection got a thread of its own",
                Vec::new(),
                read(&m.connection_threads),
            ),
            counter("logons_total", "Successful logons", Vec::new(), read(&m.logons)),
            counter("logon_failures_total", "Failed logons", Vec::new(), read(&m.logon_failures)),
            counter("read_bytes_total", "Bytes that clients read", Vec::new(), read(&m.bytes_read)),
            counter("written_bytes_total", "Bytes that clients wrote", Vec::new(), read(&m.bytes_written)),
            counter("breaks_total", "Oplock and lease breaks", Vec::new(), read(&m.breaks)),
        ];
        let label = |c: &CommandCount| vec![("command", c.command.to_string())];
        let help = "Requests answered, by command";
        all.extend(m.commands().map(|c| counter("requests_total", help, label(&c), c.requests as f64)));
        let help = "Requests answered with an error, by command";
        all.extend(m.commands().map(|c| counter("request_errors_total", help, label(&c), c.errors as f64)));
        all
    }

    fn floating_addresses(&self) -> Vec<AddressAtNode> {
        self.floating.get().map(|floating| floating.shown()).unwrap_or_default()
    }

    fn addresses_changed(&self) {
        if let Some(floating) = self.floating.get() {
            floating.look();
        }
        self.read_interfaces();
    }

    fn listen(&self) -> Vec<String> {
        self.addresses.iter().map(ToString::to_string).collect()
    }
}
