//! The trees' side of the server: its tables of shares, tree connects and opens, [MS-SMB2] 3.3.1.5, and what time does to them.
//! Knows sessions by their ids and tables, and their clients by the `Clients` trait.

pub mod breaks;
pub mod creates;
pub mod deferred;
pub(crate) mod ending;
pub mod endings;
pub mod persist;
mod revoke;
pub mod tokens;
pub mod usn_waits;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_lock::{Mutex, RwLock, ranks};
use arden_rpc::ServerView;
use arden_store::{
    commit::CommitScope,
    fs::{CacheGrant, ClientId, Owner, WaitId},
    table::OpenTable,
};
use arden_wire::FileTime;
use ring::rand::{SecureRandom, SystemRandom};

pub(crate) use revoke::{Standing, keeps_all, same_files};

use crate::{
    base::{
        config::{Interface, ServerConfig},
        grants::AllGrants,
        log_limit::{Line, LogLimits},
        metrics::Metrics,
        time::Time,
        usage::Usage,
    },
    model::{
        Durability, Object, SessionTables, SmbOpen, caches_handle,
        seam::{Clients, Notification, Recipient},
        share::Share,
    },
    trees::{
        breaks::{Events, Openings},
        creates::PendingCreates,
        deferred::DeferredWork,
        ending::Ending,
        endings::{Endings, UnderWay},
        usn_waits::UsnWaits,
    },
};

/// A message that took so long waited for the disk.
const SLOW_WRITE: Duration = Duration::from_millis(20);
/// How long the disk then counts as slow.
const SLOW_DISK: Duration = Duration::from_secs(5);
/// Marks the numbers of waits that the open table has not made.
const OWN_WAIT: u64 = 1 << 63;
/// A session keeps room for so many opens whether it has them or not.
const OPENS_KEPT_MIN: usize = 128;

/// Who had many opens and keeps a few has the memory of a few.
fn give_room_back(opens: &mut HashMap<u64, Arc<SmbOpen>>) {
    if opens.capacity() > OPENS_KEPT_MIN && opens.len() < opens.capacity() / 8 {
        let few = 2 * opens.len();
        opens.shrink_to(few);
    }
}

/// Shares, tree connects and opens, and what is known of those who have them.
pub struct Trees {
    pub config: ServerConfig,
    pub started: Instant,
    pub started_at: FileTime,
    pub metrics: Metrics,
    pub table: Arc<OpenTable>,
    pub interfaces: RwLock<Vec<Interface>, ranks::Interfaces>,
    shares: RwLock<HashMap<String, Arc<Share>>, ranks::Shares>,
    /// Shares that other nodes of the cluster serve, to be listed.
    shares_elsewhere: RwLock<Vec<Arc<Share>>, ranks::SharesElsewhere>,
    /// By serial number.
    sessions: RwLock<HashMap<u64, Arc<SessionTables>>, ranks::SessionTables>,
    /// GlobalOpenTable: durable and connected opens, by the table's id.
    opens: RwLock<HashMap<u64, Arc<SmbOpen>>, ranks::Opens>,
    /// Opens with a CreateGuid, for replay and DH2C: (client, guid) to open.
    by_create_guid: Mutex<HashMap<(u128, u128), u64>, ranks::CreateGuids>,
    /// Opens with an AppInstanceId, for a fail-over: (AppInstanceId, the table's id).
    by_app_instance: Mutex<BTreeMap<(u128, u64), Arc<SmbOpen>>, ranks::AppInstances>,
    pub(crate) pending_creates: PendingCreates,
    pub(crate) usn_waits: UsnWaits,
    pub(crate) openings: Openings,
    pub(crate) grants: AllGrants,
    /// Sessions of this node and of others that have ended, and what they had open here.
    pub endings: Arc<Endings>,
    /// Itself, as the open table knows it.
    pub(crate) owner: Owner,
    pub(crate) deferred: DeferredWork,
    random: SystemRandom,
    /// Until when writes are kept off the reactor, in milliseconds since the start.
    pub(crate) slow_disk_until_ms: AtomicU64,
    pub(crate) persistence: persist::Persistence,
    pub(crate) tokens: tokens::Tokens,
    pub usage: Arc<Usage>,
    log_limits: LogLimits,
    next_id: AtomicU64,
    clients: Weak<dyn Clients>,
}

impl Trees {
    /// `time`: when it starts.
    pub fn new(config: ServerConfig, table: Arc<OpenTable>, time: Time, clients: Weak<dyn Clients>) -> Arc<Trees> {
        let limits = config.limits;
        let usage = Usage::new(config.limits.usage);
        let trees = Arc::new_cyclic(|weak| Trees {
            config,
            started: time.now,
            started_at: time.wall,
            metrics: Metrics::default(),
            table,
            interfaces: RwLock::new(Vec::new()),
            shares: RwLock::new(HashMap::new()),
            shares_elsewhere: RwLock::default(),
            sessions: RwLock::new(HashMap::new()),
            opens: RwLock::new(HashMap::new()),
            by_create_guid: Mutex::new(HashMap::new()),
            by_app_instance: Mutex::default(),
            pending_creates: PendingCreates::default(),
            usn_waits: UsnWaits::default(),
            openings: Openings::default(),
            grants: AllGrants::default(),
            endings: Arc::default(),
            owner: Owner::new(Arc::new(Events(weak.clone()))),
            deferred: DeferredWork::default(),
            random: SystemRandom::new(),
            slow_disk_until_ms: AtomicU64::new(0),
            persistence: persist::Persistence::new(&limits),
            tokens: tokens::Tokens::default(),
            usage,
            log_limits: LogLimits::default(),
            next_id: AtomicU64::new(1),
            clients,
        });
        trees.set_time(time);
        trees.set_shares(Vec::new());
        trees
    }

    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.random.fill(&mut out).expect("the system has random numbers");
        out
    }
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    // The sessions' side.

    pub(crate) fn notify(&self, to: Recipient, what: &Notification) -> bool {
        self.clients.upgrade().is_some_and(|clients| clients.notify(to, what))
    }
    pub(crate) fn notify_client_at(&self, node: Option<u16>, client: ClientId, what: &Notification) -> bool {
        self.clients.upgrade().is_some_and(|clients| clients.notify_client_at(node, client, what))
    }
    /// A wait that is not the open table's, whose numbers count from below. Until it is over or forgotten: to end it after that
    /// is nothing.
    pub fn new_wait(&self) -> WaitId {
        let wait = WaitId(OWN_WAIT | self.next_id());
        if let Some(clients) = self.clients.upgrade() {
            clients.announce(wait);
        }
        wait
    }
    pub fn resume(&self, wait: WaitId) {
        if let Some(clients) = self.clients.upgrade() {
            clients.resume(wait);
        }
    }
    pub(crate) fn forget_wait(&self, wait: WaitId) {
        if let Some(clients) = self.clients.upgrade() {
            clients.forget(wait);
        }
    }
    pub(crate) fn is_awaited(&self, wait: WaitId) -> bool {
        self.clients.upgrade().is_some_and(|clients| clients.is_awaited(wait))
    }
    pub(crate) fn view(&self) -> Option<Arc<dyn ServerView>> {
        self.clients.upgrade()?.view()
    }

    // Shares.

    /// Replaces what is exported; IPC$ is always there. Tree connects and opens become what the shares allow by now
    /// (`revoke`). A new share that is continuously available is there with the persistent opens that were kept, any other with those
    /// that were kept for a planned move.
    pub fn set_shares(self: &Arc<Trees>, shares: Vec<Share>) {
        let before = self.shares.read().clone();
        // Of one name with one count: tree connects go over to what replaces their share one by one.
        let counted = |name: String, share: Share| {
            let users = before.get(&name).map_or(share.users.clone(), |old| old.users.clone());
            (name, Arc::new(Share { users, ..share }))
        };
        let named = shares.into_iter().map(|s| (s.name.to_lowercase(), s));
        let mut map: HashMap<String, Arc<Share>> = named.map(|(name, share)| counted(name, share)).collect();
        map.extend([counted("ipc$".into(), Share::ipc())]);
        self.forget_restored(|name| map.contains_key(name));
        let new = self.not_restored(&map);
        for share in map.values().filter(|s| s.is_durable()) {
            let Some(fs) = &share.fs else { continue };
            fs.store().note_changes();
            if share.keeps_handles() {
                fs.make_available();
                self.restore_handles(share, self.time().now);
            }
        }
        map.values().for_each(|share| self.drop_handles(share));
        self.restore_durable(&new, &map, self.time());
        *self.shares.write() = map;
        self.recheck_shares();
    }
    /// Replaces what is listed beside the exports of this node. One with a gate cannot be opened by its owner, which is this node.
    pub fn set_shares_elsewhere(&self, shares: Vec<Share>) {
        *self.shares_elsewhere.write() = shares.into_iter().map(Arc::new).collect();
    }
    /// Whether this node owns the share and cannot open it.
    pub fn is_broken_here(&self, name: &str) -> bool {
        self.shares_elsewhere.read().iter().any(|s| s.gate.is_some() && s.name.eq_ignore_ascii_case(name))
    }
    pub fn share(&self, name: &str) -> Option<Arc<Share>> {
        self.shares.read().get(&name.to_lowercase()).cloned()
    }
    /// The shares of the server, whichever node serves them.
    pub fn listed_shares(&self) -> Vec<Arc<Share>> {
        let mut all = self.shares();
        all.extend(self.shares_elsewhere.read().iter().cloned());
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
    pub fn shares(&self) -> Vec<Arc<Share>> {
        let mut all: Vec<_> = self.shares.read().values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    // Sessions.

    /// A session that begins: from now on it may have tree connects.
    pub(crate) fn begin_session(&self, tables: &Arc<SessionTables>) {
        self.sessions.write().insert(tables.serial, tables.clone());
    }
    pub fn session_tables(&self, serial: u64) -> Option<Arc<SessionTables>> {
        self.sessions.read().get(&serial).cloned()
    }

    /// A session is gone: so are its tree connects. What it had open is left to do.
    pub(crate) fn take_down(self: &Arc<Trees>, session: &SessionTables, keep_durable: bool, now: Instant) -> Ending {
        let under_way = Arc::new(UnderWay::begin(&self.endings, &session.token().user));
        session.end();
        self.sessions.write().remove(&session.serial);
        session.trees.write().clear();
        let opens = session.opens.write().drain().map(|(_, o)| o).collect();
        Ending { trees: self.clone(), opens, keep_durable, now, under_way }
    }

    pub fn disconnect_tree(&self, scope: &CommitScope, session: &SessionTables, tree_id: u32) -> bool {
        let Some(_) = session.trees.write().remove(tree_id) else { return false };
        let mut opens = Vec::new();
        session.opens.write().retain(|_, open| {
            let of_tree = open.state.lock().tree_id == tree_id;
            if of_tree {
                opens.push(open.clone());
            }
            !of_tree
        });
        give_room_back(&mut session.opens.write());
        for open in opens {
            self.close_object(scope, &open);
        }
        true
    }

    // Opens.

    pub fn open(&self, id: u64) -> Option<Arc<SmbOpen>> {
        self.opens.read().get(&id).cloned()
    }
    pub fn opens(&self) -> Vec<Arc<SmbOpen>> {
        self.opens.read().values().cloned().collect()
    }
    pub fn open_count(&self) -> usize {
        self.opens.read().len()
    }
    pub fn add_open(&self, open: &Arc<SmbOpen>) {
        if let Some(guid) = open.create_guid {
            self.by_create_guid.lock().insert((open.client.0, guid), open.id.persistent);
        }
        if let Some((instance, _)) = open.app_instance {
            self.by_app_instance.lock().insert((instance, open.id.persistent), open.clone());
        }
        self.opens.write().insert(open.id.persistent, open.clone());
    }

    pub fn open_by_create_guid(&self, client: u128, guid: u128) -> Option<Arc<SmbOpen>> {
        let id = *self.by_create_guid.lock().get(&(client, guid))?;
        self.open(id)
    }
    pub fn opens_of_app_instance(&self, instance: u128) -> Vec<Arc<SmbOpen>> {
        let all = self.by_app_instance.lock();
        all.range((instance, 0)..=(instance, u64::MAX)).map(|(_, open)| open.clone()).collect()
    }

    /// Takes the open out of every table and closes what it holds. False: somebody else does, or did.
    pub fn close_open(&self, scope: &CommitScope, open: &Arc<SmbOpen>) -> bool {
        if let Some(session) = open.session() {
            let mut opens = session.opens.write();
            opens.remove(&open.id.volatile);
            give_room_back(&mut opens);
        }
        self.close_object(scope, open)
    }

    fn close_object(&self, scope: &CommitScope, open: &Arc<SmbOpen>) -> bool {
        // Of several at once, one finds it.
        if self.opens.write().remove(&open.id.persistent).is_none() {
            return false;
        }
        if let Some(guid) = open.create_guid {
            let mut guids = self.by_create_guid.lock();
            if guids.get(&(open.client.0, guid)) == Some(&open.id.persistent) {
                guids.remove(&(open.client.0, guid));
            }
        }
        if let Some((instance, _)) = open.app_instance {
            self.by_app_instance.lock().remove(&(instance, open.id.persistent));
        }
        match &open.object {
            Object::File(file) => {
                let deletes = file.deletes_on_close();
                file.fs().close(scope, file);
                self.end_usn_waits(open);
                self.forget_kept(scope, open);
                if deletes {
                    self.keep_file(scope, open);
                }
            }
            Object::Pipe(pipe) => {
                let readers = std::mem::take(&mut *pipe.readers.lock());
                readers.into_iter().for_each(|wait| self.resume(wait));
            }
        }
        true
    }

    /// [MS-SMB2] 3.3.7.1: a durable open is kept for its time-out. False: it has to be closed.
    fn keep_disconnected(&self, open: &Arc<SmbOpen>, now: Instant) -> bool {
        let Some(file) = open.file() else { return false };
        let mut state = open.state.lock();
        let keep = match state.durability {
            Durability::None => false,
            Durability::Resilient { .. } | Durability::Persistent { .. } => true,
            // [MS-SMB2] 3.3.7.1: the oplock or lease has to be held, not breaking.
            Durability::V1 { .. } | Durability::V2 { .. } => {
                let cache = file.fs().cache(file);
                let breaking = state.breaking || matches!(cache, CacheGrant::Lease { breaking: true, .. });
                caches_handle(cache) && !breaking
            }
        };
        if keep {
            state.session = None;
            if matches!(state.durability, Durability::Persistent { .. }) {
                file.fs().set_owner_absent(file, true);
            }
            state.expires = state.durability.timeout().map(|t| now + t);
        }
        keep
    }

    /// The client of a persistent open has gone over to another node: the open waits for it, and the session that had it does not
    /// know it any more.
    pub(crate) fn detach(&self, from: &SessionTables, open: &Arc<SmbOpen>, now: Instant) {
        let mut opens = from.opens.write();
        opens.remove(&open.id.volatile);
        give_room_back(&mut opens);
        drop(opens);
        self.end_usn_waits(open);
        self.keep_disconnected(open, now);
    }

    /// An administrator's order. False: there is no such open.
    pub fn close_open_by_id(&self, id: u64) -> bool {
        let Some(open) = self.open(id) else { return false };
        tracing::info!(share = %open.share.name, file = %open.name, "open closed by an administrator");
        self.close_open(&CommitScope::begin(), &open)
    }

    // Time.

    /// It is now this late. Whoever drives the server says so before anything that he has it do.
    pub fn set_time(&self, time: Time) {
        self.table.set_time(time.now, time.wall);
    }

    /// What was said last.
    pub fn time(&self) -> Time {
        let (now, wall) = self.table.time().unwrap_or((self.started, self.started_at));
        Time { now, wall }
    }

    /// As [`LogLimits::admit`], now.
    pub(crate) fn admit_line(&self, line: Line) -> Option<u64> {
        self.log_limits.admit(line, self.time().now - self.started)
    }

    /// A large message, a write most likely, kept the thread this long. Long ones waited for the disk: the kernel
    /// throttles who dirties memory too fast.
    pub(crate) fn large_message_took(&self, took: Duration) {
        if took > SLOW_WRITE {
            let until = self.time().now - self.started + SLOW_DISK;
            self.slow_disk_until_ms.store(until.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Time-outs of breaks and of disconnected handles. May block. Returns when to call again at the latest.
    pub fn tick(&self, time: Time) -> Option<Instant> {
        self.set_time(time);
        let now = time.now;
        let mut next = self.table.tick(now);
        self.tokens.expire(now);
        if let Some(at) = self.tick_usn_waits(now) {
            next = Some(next.map_or(at, |n: Instant| n.min(at)));
        }
        let mut expired = Vec::new();
        for open in self.opens.read().values() {
            let mut state = open.state.lock();
            if let Some(at) = state.expires {
                if at <= now {
                    // Its client takes it up before this, or not any more.
                    state.given_up = true;
                    expired.push(open.clone());
                } else {
                    next = Some(next.map_or(at, |n: Instant| n.min(at)));
                }
            }
        }
        for open in expired {
            tracing::info!(share = %open.share.name, file = %open.name, "durable handle expired");
            self.close_open(&CommitScope::begin(), &open);
        }
        next
    }
}
