//! One run of the whole server: its lives on simulated disks, and clients that ask, lose their connections and return.
//! Refuses to judge what an answer may be: `model` says that.

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use arden_auth::{AuthPolicy, MemoryUsers, ServerIdentity};
use arden_block::{
    BlockDevice, Rt,
    rng::Rng,
    sim::{Faults, SimDisk},
};
use arden_smb::{Limits, Policy, Server, ServerConfig, Share, time::Time};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, SpaceError};
use arden_store::{
    fs::Fs,
    name::NtPath,
    store::{FileStore, Lookup, Wait},
    table::{OpenTable, TableLimits},
};
use arden_volume::{BlockCache, Durability, Volume, VolumeHandles, VolumeOptions, VolumeStore};
use arden_wire::{
    FileTime, NtStatus,
    dtyp::{Sid, well_known},
};
use parking_lot::Mutex;

use super::{
    client::{Break, CA, Client, Dialect, Offer, Reply, Req, USER, Want, lease_ack, logon},
    model::{FILES, Handle, Lease, Model, SLOT_BYTES, SLOTS},
};
use crate::{stats::Stats, volume::under::OnSpace};

pub const CLIENTS: usize = 3;
/// How long a client has for the acknowledgement of a break, [MS-SMB2] 3.3.2.5.
const BREAK_TIMEOUT: Duration = Duration::from_secs(35);

/// A request whose answer was lost; its client repeats it.
pub enum Unknown {
    Create {
        want: Want,
        handle: Handle,
    },
    Write {
        guid: u128,
        slot: u64,
        version: u32,
    },
    /// A LOCK or UNLOCK of a slot, as it was sent.
    Lock {
        guid: u128,
        slot: u64,
        request: Req,
        unlocks: bool,
    },
    Close {
        guid: u128,
    },
}

/// One client: at most one connection, at most one request without an answer.
pub struct Actor {
    pub guid: u128,
    pub link: Option<Client>,
    pub unknown: Option<Unknown>,
    /// Does not acknowledge breaks by itself.
    pub lazy: bool,
    /// Breaks that were told and not acknowledged: lease key, new state, and when.
    pub owed: Vec<(u128, String, Duration)>,
    pub channel_sequence: u16,
}

pub enum Answer {
    Reply(Reply),
    /// The connection ended, or the server did, before it came.
    Lost,
    Pending(u64),
}

pub struct World {
    pub seed: u64,
    pub rng: Rng,
    pub model: Model,
    pub actors: Vec<Actor>,
    pub server: Option<Arc<Server>>,
    pub stats: Stats,
    pub next_guid: u128,
    store: Option<Arc<VolumeStore>>,
    disks: Vec<SimDisk>,
    options: VolumeOptions,
    /// The time of the run: `epoch` and what was passed since.
    epoch: Instant,
    offset: Arc<Mutex<Duration>>,
    starts: u64,
    verbose: bool,
}

impl World {
    pub fn new(seed: u64, verbose: bool) -> World {
        let mut rng = Rng::new(seed ^ 0x7365_7276_6572);
        let disks = (0..2).map(|i| SimDisk::new(&format!("d{i}"), 40 << 20, rng.next_u64())).collect();
        let options = VolumeOptions {
            cache_bytes: 64 << 10,
            blocks: rng.one_in(2).then(|| BlockCache::seeded(300_000, seed)),
            overlay_bytes_max: [20_000, 200_000, 2 << 20][rng.below(3) as usize],
            background: false,
            gather_bytes_max: [0, 200_000, 16 << 20][(seed % 3) as usize],
            commit_interval: Duration::from_secs(60),
            give_back_after: Duration::ZERO,
        };
        let actor = |i: usize| Actor {
            guid: (i as u128 + 1) << 64 | 0xC11E,
            link: None,
            unknown: None,
            lazy: false,
            owed: Vec::new(),
            channel_sequence: 0,
        };
        World {
            seed,
            model: Model::new(),
            actors: (0..CLIENTS).map(actor).collect(),
            server: None,
            stats: Stats::default(),
            next_guid: 1,
            store: None,
            disks,
            options,
            epoch: Instant::now(),
            offset: Arc::default(),
            starts: 0,
            verbose,
            rng,
        }
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            eprintln!("{:>8} {}", self.offset.lock().as_millis(), what());
        }
    }

    pub fn now(&self) -> Duration {
        *self.offset.lock()
    }

    fn time(&self) -> Time {
        let wall = FileTime::from_system(std::time::UNIX_EPOCH + Duration::from_secs(1 << 30) + self.now());
        Time { now: self.epoch + self.now(), wall }
    }

    /// From opening to crash or orderly end. The first makes the pool, the volume and the files; the last has no crash.
    pub fn life(&mut self, first: bool, last: bool) -> Result<(), String> {
        let rt = Rt::virtual_clock(self.rng.next_u64());
        let pool = self.pool(&rt, first)?;
        let space = pool.space_named("s").map_err(|e| e.to_string())?;
        let device = OnSpace::begin(&rt, space, self.rng.below(400_000)).map_err(|e| e.to_string())?;
        if first {
            Volume::format(&device, "sim", u128::from(self.seed) << 64 | 77, FileTime(1)).map_err(|e| e.to_string())?;
        }
        if !first && !last && self.rng.one_in(6) {
            OnSpace::die_after(Some(self.rng.below(20)));
        }
        let opened = Volume::open(Arc::new(device), self.options.clone());
        let result = if OnSpace::is_dead() {
            self.say(|| "crash while the volume is opened".into());
            Ok(())
        } else {
            let vol = opened.map_err(|e| format!("opening: {e}"))?;
            let result = self.serve(&vol, first, last);
            if result.is_ok() && !OnSpace::is_dead() {
                match vol.close() {
                    Err(e) if !OnSpace::is_dead() => Err(format!("closing: {e}")),
                    _ => Ok(()),
                }
            } else {
                result
            }
        };
        self.stats.crashes += u64::from(OnSpace::is_dead());
        // Nothing that ends with the process reaches the disks.
        OnSpace::die_now();
        self.actors.iter_mut().for_each(|a| {
            a.link = None;
            a.owed.clear();
        });
        self.server = None;
        self.store = None;
        OnSpace::end();
        drop(pool);
        rt.shutdown();
        self.disks.iter().for_each(SimDisk::crash);
        result
    }

    fn pool(&mut self, rt: &Rt, first: bool) -> Result<Pool, String> {
        self.stats.openings += 1;
        let faults = Faults { latency_max_ns: 300_000, stall_ppm: 500, stall_ns: 3_000_000, ..Faults::default() };
        self.disks.iter().for_each(|d| d.set_faults(faults.clone()));
        let devices: Vec<Rc<dyn BlockDevice>> = self.disks.iter().map(|d| d.attach(rt)).collect();
        let config = PoolConfig {
            gather_bytes_max: 256 << 10,
            journal_write_max: 32 << 10,
            tick_ms: self.rng.range(2, 40),
            grace_ms: 1_000_000,
            io_timeout_ms: 30,
            busy_ms: 0,
        };
        let rt2 = rt.clone();
        let opened = rt.block_on(async move {
            if !first {
                return Pool::open(&rt2, devices, None, OpenOptions { config, discard: Vec::new() }).await;
            }
            let options = CreateOptions { slab_bytes: Some(256 << 10), config };
            let pool = Pool::create(&rt2, "sim", devices, Vec::new(), options).await?;
            pool.create_space("s", Layout::Mirror2, None, 64 << 10, 16 << 20, Provision::Thin).await?;
            Ok(pool)
        });
        opened.unwrap_or(Err(SpaceError::Closed)).map_err(|e| format!("opening the pool: {e}"))
    }

    fn serve(&mut self, vol: &Arc<Volume>, first: bool, last: bool) -> Result<(), String> {
        self.start_server(vol);
        let now = self.now();
        self.model.restarted(now);
        if OnSpace::is_dead() {
            self.say(|| "crash while the server starts".into());
            return Ok(());
        }
        if first {
            self.make_files()?;
        }
        self.check_contents("after a start")?;
        self.check_opens()?;
        if !last && !self.rng.one_in(5) {
            OnSpace::die_after(Some(self.rng.below(120)));
        }
        for _ in 0..30 + self.rng.below(90) {
            self.step()?;
            if OnSpace::is_dead() {
                self.say(|| "crash".into());
                return Ok(());
            }
        }
        self.check_contents("at rest")?;
        if last {
            return self.finish();
        }
        if self.rng.one_in(2) {
            self.say(|| "stop".into());
            if let Some(server) = self.server.clone() {
                server.stop(self.time().now);
            }
            if !OnSpace::is_dead() {
                self.model.committed();
            }
        } else {
            self.say(|| "kill".into());
            OnSpace::die_now();
        }
        Ok(())
    }

    fn start_server(&mut self, vol: &Arc<Volume>) {
        self.starts += 1;
        let users = Arc::new(MemoryUsers::new("LAB", Sid::new(5, &[21, 1, 2, 3])));
        users.add_user(USER, super::client::PASSWORD, std::slice::from_ref(&well_known::BUILTIN_ADMINISTRATORS));
        let policy = Policy::default();
        policy.set(true, false, true);
        let config = ServerConfig {
            guid: 0x4142_4344,
            name: "LAB".into(),
            comment: "a simulated server".into(),
            policy,
            limits: Limits::default(),
            users,
            identity: Arc::new(ServerIdentity::stand_alone("LAB")),
            auth: AuthPolicy::default(),
        };
        let table = OpenTable::new(TableLimits::default());
        table.start_ids(self.starts, None);
        let server = Server::new(config, table.clone(), self.time());
        let store = VolumeStore::new(vol.clone(), Durability::Plain);
        let fs = Fs::with_handles(store.clone(), table, Some(VolumeHandles::new(vol.clone())));
        server.trees.set_shares(vec![Share {
            name: CA.into(),
            path: "C:\\".into(),
            fs: Some(fs),
            hidden: false,
            continuously_available: true,
            ..Share::ipc()
        }]);
        (self.server, self.store) = (Some(server), Some(store));
    }

    fn make_files(&mut self) -> Result<(), String> {
        let mut client = self.connect(0)?;
        for file in 0..FILES {
            let made = client.open(super::client::want(&format!("f{file}")));
            client.write(made.id, 0, &vec![0; (SLOTS * SLOT_BYTES) as usize]);
            client.close(made.id);
        }
        Ok(())
    }

    /// A new connection of a client, logged on and connected to the share.
    pub fn connect(&mut self, actor: usize) -> Result<Client, String> {
        let server = self.server.as_ref().ok_or("no server")?;
        let mut client = Client::new(server, self.actors[actor].guid, self.offset.clone());
        client.epoch = Some(self.epoch);
        client.channel_sequence = self.actors[actor].channel_sequence;
        client.try_negotiate(&Offer::up_to(Dialect::Smb311)).map_err(|e| format!("negotiate: {e}"))?;
        client.try_logon(&logon(USER)).map_err(|e| format!("logon: {e}"))?;
        client.try_connect(CA).map_err(|e| format!("tree connect: {e}"))?;
        Ok(client)
    }

    /// Every slot, read from the store itself, holds what the model allows.
    fn check_contents(&self, when: &str) -> Result<(), String> {
        let store = self.store.as_ref().ok_or("no store")?;
        for (file, slots) in self.model.slots.iter().enumerate() {
            let path = NtPath::parse(&format!("f{file}")).map_err(|e| e.to_string())?;
            let Ok(Lookup::Found(node)) = store.lookup(&path) else { return Err(format!("{when}: f{file} is gone")) };
            for (i, slot) in slots.iter().enumerate() {
                let mut data = vec![0; SLOT_BYTES as usize];
                let got = node.read_at(i as u64 * SLOT_BYTES, &mut data, Wait::Yes).map_err(|e| e.to_string())?;
                let version = version_of(&data[..got]).ok_or(format!("{when}: f{file} slot {i} is torn"))?;
                if !slot.allows(version) {
                    return Err(format!("{when}: f{file} slot {i} holds {version}, allowed {slot:?}"));
                }
            }
        }
        Ok(())
    }

    /// All opens that were granted are kept, and none that cannot have been.
    fn check_opens(&self) -> Result<(), String> {
        let kept = self.server.as_ref().map_or(0, |s| s.trees.persistent_opens());
        let certain = self.model.handles.iter().filter(|h| h.certain).count();
        let possible = self.model.handles.len();
        if (certain..=possible).contains(&kept) {
            return Ok(());
        }
        Err(format!("{kept} persistent opens after a start, {certain} to {possible} were granted"))
    }

    /// Sends a request; the connection may be lost before or after the server has it.
    pub fn ask(&mut self, actor: usize, request: &Req, may_lose: bool) -> Answer {
        let lose = may_lose && self.rng.one_in(20);
        if lose && self.rng.one_in(2) {
            self.say(|| format!("client {actor}: the request is lost"));
            self.drop_link(actor);
            return Answer::Lost;
        }
        let Some(link) = self.actors[actor].link.as_mut() else { return Answer::Lost };
        let id = link.send(request);
        if lose {
            self.say(|| format!("client {actor}: the answer is lost"));
            self.drop_link(actor);
            return Answer::Lost;
        }
        self.take(actor, id)
    }

    /// The answer to a request, if it is there. Only a success counts of a server that died meanwhile.
    pub fn take(&mut self, actor: usize, id: u64) -> Answer {
        let Some(link) = self.actors[actor].link.as_mut() else { return Answer::Lost };
        match link.poll(id) {
            Some(reply) if OnSpace::is_dead() && reply.status() != NtStatus::SUCCESS => Answer::Lost,
            Some(reply) => Answer::Reply(reply),
            None if OnSpace::is_dead() || link.is_closed() => Answer::Lost,
            None => Answer::Pending(id),
        }
    }

    pub fn drop_link(&mut self, actor: usize) {
        // Before the client knows of it, the server told it of breaks.
        self.note_breaks(actor);
        self.actors[actor].link = None;
        self.actors[actor].owed.clear();
        let now = self.now();
        self.model.lose(actor, now);
    }

    /// Takes the breaks that a client was told of: it caches less from now on.
    pub fn note_breaks(&mut self, actor: usize) {
        let Some(link) = self.actors[actor].link.as_mut() else { return };
        for told in link.breaks() {
            let Break::Lease { key, to, ack, .. } = told else { continue };
            self.say(|| format!("client {actor}: lease {:x} breaks to {to:?}, to be acknowledged: {ack}", key as u64));
            let file = (key as u64 - 1) as usize;
            if let Some(lease) = self.model.leases.get_mut(&(actor, file)) {
                lease.lost.retain(|c| to.contains(c));
                lease.state = to.clone();
            }
            self.stats.waits += 1;
            if ack {
                let now = self.now();
                self.actors[actor].owed.push((key, to, now));
            }
        }
    }

    /// The client answers the breaks that it was told of; what it lost meanwhile it is told of at once.
    pub fn acknowledge(&mut self, actor: usize) -> Result<(), String> {
        self.note_breaks(actor);
        for (key, to, _) in std::mem::take(&mut self.actors[actor].owed) {
            if let Answer::Reply(reply) = self.ask(actor, &lease_ack(key, &to), false) {
                let status = reply.status();
                // [MS-SMB2] 3.3.6.5: a break that ran out of time leaves nothing of the lease.
                let lease = self.model.leases.get_mut(&(actor, (key as u64 - 1) as usize));
                if let Some(lease) = lease.filter(|_| status != NtStatus::SUCCESS) {
                    *lease = Lease::default();
                }
                self.say(|| format!("client {actor}: lease {:x} acknowledged as {to:?}: {status}", key as u64));
                self.note_breaks(actor);
                let file = (key as u64 - 1) as usize;
                let Some(lease) = self.model.leases.get_mut(&(actor, file)) else { continue };
                let lost = std::mem::take(&mut lease.lost);
                if let Some(letter) = lost.chars().find(|c| lease.state.contains(*c) && !OnSpace::is_dead()) {
                    return Err(format!("client {actor} acknowledged a break and still caches {letter} of f{file}"));
                }
            }
        }
        Ok(())
    }

    /// Time passes. Clients that are not lazy answer breaks first.
    pub fn pass(&mut self, time: Duration) -> Result<(), String> {
        for actor in 0..CLIENTS {
            if !self.actors[actor].lazy {
                self.acknowledge(actor)?;
            }
        }
        *self.offset.lock() += time;
        self.say(|| format!("{time:?} passed"));
        if let Some(server) = self.server.clone() {
            server.tick(self.time());
            server.trees.run_deferred();
        }
        let now = self.now();
        self.model.expire(now);
        (0..CLIENTS).for_each(|actor| self.note_breaks(actor));
        // [MS-SMB2] 3.3.6.5: a break that ran out of time leaves nothing of the lease.
        for (actor, a) in self.actors.iter().enumerate() {
            for (key, _, _) in a.owed.iter().filter(|(_, _, since)| now >= *since + BREAK_TIMEOUT) {
                if let Some(lease) = self.model.leases.get_mut(&(actor, (*key as u64 - 1) as usize)) {
                    *lease = Lease::default();
                }
            }
        }
        Ok(())
    }
}

/// A slot filled with `version`.
pub fn content(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(SLOT_BYTES as usize / 4)
}

/// The version that all of a slot is filled with.
pub fn version_of(data: &[u8]) -> Option<u32> {
    let first = u32::from_le_bytes(*data.first_chunk()?);
    (data.len() == SLOT_BYTES as usize && data == content(first)).then_some(first)
}
