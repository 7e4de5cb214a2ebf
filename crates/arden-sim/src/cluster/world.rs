//! The world of one run: events in the order of true time, the network, etcd's answers, clients and their oracle.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use arden_block::rng::Rng;
use arden_block::sim::{Faults, Reservation, SimDisk};
use arden_block::{BLOCK_BYTES, BlockDevice, Rt};
use arden_cluster::{
    Epoch, Event, Holder, IfAlive, LeaseId, Outcome, PoolId, Record, Revision, Route, Transaction, View,
};
use arden_space::{CreateOptions, Layout, Pool, Provision};

use super::client::{Client, Reply, Told, What, Work};
use super::counts::Counts;
use super::disks::{Admission, DISKS_MAX, Entered};
use super::etcd::Etcd;
use super::judge::{Judge, LABELS_AT, label_epoch};
use super::machine::{BLOCKS, Begun, Found, Machine, POOL, SPACE_BYTES, Until, config, rate_ppm};
use super::opens::{CLIENTS, FILES, Grants, Mode};
use super::trouble::{Aim, Trouble};
use crate::oracle::Oracle;
use crate::stats::Stats;

pub(super) const NODES: usize = 3;
pub(super) const TTL_NS: u64 = 100_000_000;
const STEP_NS: u64 = 200_000;
const TICK_NS: u64 = 2_000_000;
/// When faults have ended, a request is answered within this time.
const RECOVERY_MAX_NS: u64 = 15 * TTL_NS;
/// Most clients send again after this time, some after a longer one.
const PATIENCE_NS: u64 = 40_000_000;

/// What a node asks of etcd.
#[derive(Clone)]
pub(super) enum Request {
    Grant,
    Renew(LeaseId),
    Claim { lease: LeaseId, if_alive: IfAlive },
    Revoke(LeaseId),
    Read { number: u64, floor: Revision },
    Transact { number: u64, transaction: Transaction },
}

/// What happens at a time of its own. `run` is the life of the process that it belongs to.
#[derive(Clone)]
pub(super) enum Happening {
    ToEtcd {
        node: usize,
        run: u64,
        sent_ns: u64,
        request: Request,
    },
    Tell {
        node: usize,
        run: u64,
        event: Event,
    },
    Watch {
        node: usize,
        revision: Revision,
        view: View,
        /// Whether the node is alive, by etcd.
        alive: bool,
    },
    FenceDisk {
        node: usize,
        run: u64,
        epoch: Epoch,
        holder: Holder,
        disk: usize,
    },
    RegisterDisk {
        node: usize,
        run: u64,
        epoch: Epoch,
        disk: usize,
        /// Those that were on the disks before.
        keys: Vec<Holder>,
    },
    /// An owner enters a disk that is back.
    Admit {
        node: usize,
        run: u64,
        epoch: Epoch,
        disk: usize,
        step: Admission,
    },
    /// As [`Happening::Tell`], also to a node that is cut off from etcd: it was on its way before.
    Late {
        node: usize,
        run: u64,
        event: Event,
    },
    /// A registration that waits for its fence waits no longer.
    Unheld {
        node: usize,
        run: u64,
        epoch: Epoch,
    },
    /// A fault for this process at a chosen moment.
    Strike {
        node: usize,
        run: u64,
        aim: Aim,
    },
    /// One more write of a process that is gone happens.
    Orphan {
        id: u64,
        disk: usize,
    },
    /// A client's request reaches its node.
    Arrive {
        work: Work,
    },
    /// It reaches the node that was said to be the owner under `epoch`.
    Forward {
        node: usize,
        epoch: Epoch,
        work: Work,
    },
    Answer {
        work: Work,
        reply: Reply,
    },
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) t_ns: u64,
    happenings: BTreeMap<(u64, u64), Happening>,
    order: u64,
    pub(super) etcd: Etcd,
    pub(super) machines: Vec<Machine>,
    pub(super) disks: Vec<SimDisk>,
    pub(super) judge: Rc<RefCell<Judge>>,
    pub(super) oracle: Oracle,
    grants: Grants,
    /// Epochs that each node imported.
    pub(super) imported: BTreeSet<(usize, Epoch)>,
    /// The write that was acknowledged last.
    last_write: (u64, u64),
    /// Of the last ownership whose pool was opened.
    opened: Epoch,
    clients: Vec<Client>,
    pub(super) trouble: Trouble,
    pub(super) counts: Counts,
    pub(super) initiators: u64,
    /// Whether the fence is of a kind whose keys can be read from the disks.
    pub(super) shows_keys: bool,
    pub(super) failed: Option<String>,
    verbose: bool,
}

fn make(disks: &[SimDisk], seed: u64) -> Result<(), String> {
    let rt = Rt::virtual_clock(seed);
    let devices: Vec<Rc<dyn BlockDevice>> = disks.iter().map(|d| d.attach(&rt)).collect();
    let rt2 = rt.clone();
    let made = rt.block_on(async move {
        let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
        let pool = Pool::create(&rt2, "p", devices, Vec::new(), options).await?;
        pool.create_space("s", Layout::Mirror2, Some(1), 4096, SPACE_BYTES, Provision::Thin).await?;
        pool.close().await
    });
    rt.shutdown();
    made.ok_or("the pool is never made")?.map_err(|e| e.to_string())
}

impl World {
    pub(super) fn new(seed: u64, verbose: bool) -> Result<World, String> {
        let mut rng = Rng::new(seed ^ 0x636c_7573_7465_7221);
        let count = rng.range(2, DISKS_MAX as u64);
        let disks: Vec<SimDisk> = (0..count).map(|i| SimDisk::new(&format!("d{i}"), 5 << 20, rng.next_u64())).collect();
        make(&disks, rng.next_u64())?;
        let judge: Rc<RefCell<Judge>> = Rc::default();
        let kind = if rng.one_in(2) { Reservation::WriteExclusive } else { Reservation::ExclusiveAccess };
        for (disk, d) in disks.iter().enumerate() {
            d.set_faults(Faults {
                latency_max_ns: 300_000,
                stall_ppm: 20_000,
                stall_ns: 3_000_000,
                ..Faults::default()
            });
            d.reserve(kind);
            let j = judge.clone();
            d.watch_changes(Rc::new(move |id, at, data| j.borrow_mut().written(id, disk, at, data)));
        }
        let record = Record { epoch: Epoch(1), holders: Vec::new(), written: Epoch(1), blocked: None };
        let view = View { owner: None, record, changed: Revision(1) };
        let etcd = Etcd::new(view, TTL_NS, rate_ppm(&mut rng));
        // The last one runs now and then, with a copy of another's state.
        let machines: Vec<Machine> = (0..=NODES).map(|i| Machine::new(i, &mut rng)).collect();
        let shows_keys = rng.one_in(2);
        let trouble = Trouble::new(&mut rng, shows_keys);
        let clients = (0..CLIENTS).map(|_| Client::default()).collect();
        Ok(World {
            rng,
            t_ns: 0,
            happenings: BTreeMap::new(),
            order: 0,
            etcd,
            machines,
            disks,
            judge,
            oracle: Oracle::new(BLOCKS),
            grants: Grants::default(),
            imported: BTreeSet::new(),
            last_write: (0, 1),
            opened: Epoch(0),
            clients,
            trouble,
            counts: Counts::default(),
            initiators: 0,
            shows_keys,
            failed: None,
            verbose,
        })
    }

    pub(super) fn say(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            eprintln!("{:>9} us: {}", self.t_ns / 1000, text());
        }
    }

    pub(super) fn at(&mut self, t_ns: u64, what: Happening) {
        self.order += 1;
        self.happenings.insert((t_ns.max(self.t_ns), self.order), what);
    }

    /// A message on its way: late, lost or twice while there are faults.
    pub(super) fn send(&mut self, what: Happening) {
        let mut delay_ns = self.rng.range(100_000, 800_000);
        if self.trouble.is_on(self.t_ns) {
            match self.rng.below(100) {
                0 => {
                    self.counts.messages_lost += 1;
                    return;
                }
                1 => {
                    self.counts.messages_twice += 1;
                    let again = self.t_ns + self.rng.range(200_000, 60_000_000);
                    self.at(again, what.clone());
                }
                2 | 3 => {
                    self.counts.messages_late += 1;
                    delay_ns = self.rng.range(1_000_000, 120_000_000);
                }
                // Requests of clients are late more often: the next owner may be there before them.
                4..=8 if matches!(what, Happening::Arrive { .. }) => {
                    self.counts.messages_late += 1;
                    delay_ns = self.rng.range(10_000_000, 200_000_000);
                }
                _ => {}
            }
        }
        self.at(self.t_ns + delay_ns, what);
    }

    pub(super) fn run(mut self) -> Result<Stats, String> {
        let mut recovered = None;
        loop {
            self.t_ns += STEP_NS;
            while let Some(entry) = self.happenings.first_entry().filter(|e| e.key().0 <= self.t_ns) {
                let what = entry.remove();
                self.happen(what);
            }
            self.make_trouble();
            if self.etcd.has_leader && self.etcd.expire(self.t_ns, &mut self.rng) {
                self.counts.leases_ended += 1;
                self.notify();
            }
            for i in 0..=NODES {
                self.work_on(i);
            }
            self.judge_leases();
            self.ask();
            if self.etcd.view.record.blocked.is_some() && self.counts.restores == 0 {
                self.failed.get_or_insert(format!("blocked for no reason: {:?}", self.etcd.view));
            }
            if let Some(v) = self.judge.borrow().violation.clone().or(self.failed.take()) {
                return Err(format!("{v} (at {} us)", self.t_ns / 1000));
            }
            if self.trouble.is_on(self.t_ns) {
                continue;
            }
            let quiet_ns = self.t_ns - self.trouble.ends_ns;
            if recovered.is_none() {
                let begun = self.trouble.ends_ns;
                let all = self.clients.iter().all(|c| c.answered > begun);
                if all {
                    self.counts.stall_max_ms = quiet_ns / 1_000_000;
                    recovered = Some(self.t_ns);
                } else if quiet_ns > RECOVERY_MAX_NS / 2 && self.trouble.dead.is_some() {
                    // Its departure may not have been durable.
                    self.revive();
                } else if quiet_ns > RECOVERY_MAX_NS {
                    let stages: Vec<_> =
                        self.machines.iter().map(|m| m.node.as_ref().and_then(|n| n.stage(POOL))).collect();
                    return Err(format!("nothing is served: {stages:?}, {:?}", self.etcd.view));
                }
            }
            // Late messages come, and change nothing.
            if recovered.is_some_and(|r| self.t_ns > r + 2 * TTL_NS) {
                break;
            }
        }
        self.all_are_alive()?;
        // Tasks hold their runtime, and with it the disks.
        (0..NODES).for_each(|i| self.drop_pool(i));
        self.counts.successions = self.judge.borrow().successions;
        let operations = self.clients.iter().map(|c| c.attempts).sum();
        let mut stats = Stats { operations, crashes: self.counts.kills, ..Stats::default() };
        stats.count_disks(&self.disks);
        stats.cluster = self.counts;
        Ok(stats)
    }

    /// One step of a node: its process, then its pool.
    fn work_on(&mut self, i: usize) {
        let t_ns = self.t_ns;
        let m = &mut self.machines[i];
        if m.node.is_none() && t_ns >= m.starts_ns {
            m.start(TTL_NS);
            m.node.iter_mut().for_each(|n| n.set_fences_on_disks(POOL, self.shows_keys));
            m.run += 1;
            m.entered = Entered::default();
            m.ticks_ns = t_ns;
        }
        if !m.runs() {
            return;
        }
        if t_ns >= m.ticks_ns && m.hears(t_ns) {
            m.ticks_ns = t_ns + TICK_NS;
            self.tell(i, Event::Tick);
        }
        if let Some(open) = &self.machines[i].open {
            let rt = open.rt.clone();
            rt.run_until_ns(rt.now_ns() + STEP_NS);
            self.pool_done(i);
            self.look_for_disks(i);
        }
    }

    /// Tells every node's watch what etcd holds now.
    pub(super) fn notify(&mut self) {
        let (revision, view) = (self.etcd.revision, self.etcd.view.clone());
        for node in 0..NODES {
            let (until, lag) = self.machines[node].lag_ns;
            let lag = if self.t_ns < until { lag } else { 0 };
            let at = self.t_ns + self.rng.range(100_000, 1_000_000) + lag;
            let alive = self.etcd.alive(node).is_some();
            self.at(at, Happening::Watch { node, revision, view: view.clone(), alive });
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::ToEtcd { node, run, sent_ns, request } => self.etcd_gets(node, run, sent_ns, request),
            Happening::Tell { node, run, event } => {
                if self.machines[node].run == run && self.t_ns >= self.machines[node].no_etcd_ns {
                    self.tell(node, event);
                }
            }
            Happening::Watch { node, revision, view, alive } => {
                // The watch of a machine that stood still may be slow to come back.
                let stopped = self.machines[node].stopped.as_ref();
                if stopped.is_some_and(|s| s.until == Until::Fence) {
                    let at = self.t_ns + self.rng.range(2_000_000, 20_000_000);
                    return self.at(at, Happening::Watch { node, revision, view, alive });
                }
                if let Some(until_ns) = stopped.map(|s| s.until_ns)
                    && self.rng.one_in(2)
                {
                    let at = until_ns + self.rng.range(1_000_000, 40_000_000);
                    self.at(at, Happening::Watch { node, revision, view, alive });
                } else if self.t_ns >= self.machines[node].no_etcd_ns {
                    self.tell(node, Event::Watched { pool: POOL, revision, view });
                    if !alive {
                        self.tell(node, Event::NotAlive);
                    }
                }
            }
            Happening::FenceDisk { node, run, epoch, holder, disk } => self.fence_disk(node, run, epoch, holder, disk),
            Happening::RegisterDisk { node, run, epoch, disk, keys } => {
                self.register_disk(node, run, epoch, disk, keys);
            }
            Happening::Admit { node, run, epoch, disk, step } => self.admit(node, run, epoch, disk, step),
            Happening::Orphan { id, disk } => {
                if self.disks[disk].land_orphan(id) {
                    self.counts.orphans += 1;
                    let at = self.t_ns + self.rng.range(1, 10_000_000);
                    self.at(at, Happening::Orphan { id, disk });
                }
            }
            Happening::Late { node, run, event } => {
                if self.machines[node].run == run {
                    self.tell(node, event);
                }
            }
            Happening::Unheld { node, run, epoch } => self.release_registration(node, run, epoch),
            Happening::Strike { node, run, aim } => {
                if self.machines[node].run == run {
                    self.strike_now(node, aim);
                }
            }
            Happening::Arrive { work } => self.arrive(work),
            Happening::Forward { node, epoch, work } => self.execute(node, epoch, work),
            Happening::Answer { work, reply } => self.answered(work, reply),
        }
    }

    fn etcd_gets(&mut self, node: usize, run: u64, sent_ns: u64, request: Request) {
        if self.t_ns < self.machines[node].no_etcd_ns || self.etcd.is_down {
            return;
        }
        let now = self.t_ns;
        let pool: PoolId = POOL;
        if !self.etcd.has_leader {
            // A leader that does not know yet that it is none answers a renewal, which the next leader has not heard of.
            if let Request::Renew(lease) = request
                && self.etcd.knows(lease)
                && self.rng.one_in(3)
            {
                self.counts.deposed_leaders += 1;
                let event = Event::LeaseRenewed { lease, sent_ns, revision: self.etcd.revision };
                self.send(Happening::Tell { node, run, event });
            }
            return;
        }
        let event = match request {
            Request::Grant => Event::LeaseGranted { lease: self.etcd.grant(now, &mut self.rng), sent_ns },
            Request::Renew(lease) if self.etcd.renew(now, lease) => {
                let event = Event::LeaseRenewed { lease, sent_ns, revision: self.etcd.revision };
                if std::mem::take(&mut self.machines[node].late_renewal) && self.trouble.is_on(now) {
                    return self.answer_late(node, run, event);
                }
                event
            }
            Request::Renew(lease) => Event::LeaseGone { lease },
            Request::Claim { lease, if_alive } => {
                let number = self.machines[node].number;
                let other = self.etcd.alive(number);
                let outcome = self.etcd.claim(number, lease, if_alive);
                match outcome {
                    Outcome::Refused => self.counts.claims_refused += u64::from(other.is_some_and(|o| o != lease)),
                    _ => self.notify(),
                }
                Event::Claimed { lease, if_alive, outcome }
            }
            Request::Revoke(lease) => {
                if self.etcd.revoke(lease) {
                    self.notify();
                }
                return;
            }
            Request::Read { number, floor } => {
                Event::Read { pool, number, floor, revision: self.etcd.revision, view: self.etcd.view.clone() }
            }
            Request::Transact { number, transaction } => {
                let before = self.copy_before(&transaction);
                let outcome = self.etcd.transact(&transaction);
                self.say(|| format!("etcd: {node} {outcome:?} -> {:?}", self.etcd.view));
                if matches!(outcome, Outcome::Applied(_)) {
                    self.forget_acquisition(node, before);
                    self.notify();
                }
                Event::Transacted { pool, number, outcome }
            }
        };
        self.send(Happening::Tell { node, run, event });
    }

    /// Of two processes that are the same node one has a lease.
    fn judge_leases(&mut self) {
        let Some(copy) = self.machines.iter().find(|m| m.is_copy() && m.lease(self.t_ns).is_some()) else { return };
        self.counts.copies_alive += 1;
        if let Some(lease) = self.machines[copy.number].lease(self.t_ns) {
            let number = copy.number;
            self.failed.get_or_insert(format!("node {number} uses {lease:?}, and so does its copy another"));
        }
    }

    /// A node with a lease is alive by etcd, under that one.
    fn all_are_alive(&self) -> Result<(), String> {
        for m in &self.machines {
            let (lease, alive) = (m.lease(self.t_ns), self.etcd.alive(m.number));
            if lease.is_some() && lease != alive {
                return Err(format!("node {} has {lease:?}, and is alive by {alive:?}", m.number));
            }
        }
        Ok(())
    }

    /// Clients begin requests, and send those again that were not answered.
    fn ask(&mut self) {
        let stale = self.stale();
        for client in 0..self.clients.len() {
            let (now, seeks) = (self.t_ns, stale.filter(|_| client + 1 == CLIENTS));
            let anyone = self.rng.below(NODES as u64) as usize;
            if let Some(work) = self.clients[client].work {
                let elsewhere = seeks.is_some_and(|s| s != work.via);
                if now >= self.clients[client].again_ns || elsewhere {
                    self.ask_by(Work { via: seeks.unwrap_or(anyone), ..work });
                }
            } else if now >= self.clients[client].next_ns || seeks.is_some() {
                let (first, n, what) = self.wish(client);
                match what {
                    What::Read => {}
                    What::Write(version) => self.oracle.write_begin(first, n, version),
                    What::Open(file, mode) => self.grants.ask(client, file, mode),
                }
                self.clients[client].begun_ns = now;
                let via = seeks.unwrap_or(anyone);
                self.ask_by(Work { client, attempt: 0, what, first, n, via, handle: Epoch(0) });
            }
        }
    }

    /// A node that serves though etcd has another owner.
    fn stale(&self) -> Option<usize> {
        let owner = self.etcd.view.owner?;
        let serves = |m: &Machine| m.runs() && m.open.as_ref().is_some_and(|o| o.serves && o.epoch != owner.epoch);
        self.machines.iter().position(serves)
    }

    /// What a client does next, and with which blocks.
    fn wish(&mut self, client: usize) -> (u64, u64, What) {
        let (first, n) = (self.rng.below(BLOCKS - 4), self.rng.range(1, 4));
        if client + 1 == CLIENTS {
            let (first, n) = if self.rng.one_in(4) { (first, n) } else { self.last_write };
            return (first, n, What::Read);
        }
        let what = match self.rng.below(8) {
            0..=2 => What::Read,
            3..=5 => What::Write(self.oracle.new_version()),
            _ => {
                let file = self.rng.below(FILES as u64) as usize;
                let mode = match self.grants.held(client, file) {
                    Mode::Closed if self.rng.one_in(2) => Mode::Exclusive,
                    Mode::Closed => Mode::Shared,
                    _ => Mode::Closed,
                };
                What::Open(file, mode)
            }
        };
        (first, n, what)
    }

    fn ask_by(&mut self, work: Work) {
        let mark = (work.what == What::Read).then(|| self.oracle.read_begin(work.first, work.n));
        let c = &mut self.clients[work.client];
        c.attempts += 1;
        let work = Work { attempt: c.attempts, handle: c.handle, ..work };
        let patience_ns = if self.rng.one_in(4) { 8 * PATIENCE_NS } else { PATIENCE_NS };
        (c.work, c.mark, c.again_ns) = (Some(work), mark, self.t_ns + patience_ns);
        self.send(Happening::Arrive { work });
    }

    /// The client's node runs the request, or forwards it to the owner.
    fn arrive(&mut self, work: Work) {
        if self.hears_no(work) {
            return;
        }
        let m = &self.machines[work.via];
        let Some(node) = m.node.as_ref().filter(|_| m.runs()) else { return };
        match node.route(POOL) {
            Route::Here(epoch) => self.execute(work.via, epoch, work),
            Route::Forward(owner, epoch) => {
                let owner = usize::from(owner.0);
                if !self.trouble.is_cut(self.t_ns, work.via, owner) {
                    self.counts.forwarded += 1;
                    self.send(Happening::Forward { node: owner, epoch, work });
                }
            }
            Route::Wait => {
                let again = self.t_ns + 5_000_000;
                let c = &mut self.clients[work.client];
                if c.work.is_some_and(|w| w.attempt == work.attempt) {
                    c.again_ns = c.again_ns.min(again);
                }
            }
        }
    }

    /// Whether the client cannot reach its node. The one that only reads always does.
    fn hears_no(&self, work: Work) -> bool {
        self.t_ns < self.machines[work.via].no_clients_ns && work.client + 1 < CLIENTS
    }

    fn execute(&mut self, i: usize, epoch: Epoch, work: Work) {
        if self.hears_no(Work { via: i, ..work }) {
            return;
        }
        let m = &mut self.machines[i];
        let now_ns = m.clock.at(self.t_ns);
        let may = m.runs() && m.node.as_ref().is_some_and(|n| n.may_serve(POOL, epoch, now_ns));
        let Some(open) = m.open.as_mut().filter(|o| may && o.epoch == epoch && o.serves) else { return };
        if work.handle != epoch {
            self.counts.reopened += 1;
            return self.send(Happening::Answer { work, reply: Reply::Reopened(epoch) });
        }
        let often = if work.client + 1 == CLIENTS { 7 } else { 4 };
        let memory_ns = (self.rng.below(8) < often).then(|| self.rng.below(1_000_000));
        match open.begin(work, memory_ns) {
            Begun::Now => self.say(|| format!("node {i} begins {work}")),
            Begun::Later => {}
            Begun::Never => self.counts.outrun += 1,
        }
    }

    fn answered(&mut self, work: Work, reply: Reply) {
        let c = &mut self.clients[work.client];
        if c.work.is_none_or(|w| w.attempt != work.attempt) {
            return;
        }
        let told = match reply {
            Reply::Reopened(epoch) => {
                (c.handle, c.again_ns) = (epoch, self.t_ns);
                return;
            }
            Reply::Ends(told) => told,
        };
        (c.work, c.answered) = (None, c.begun_ns);
        let pause_ns = if work.client + 1 == CLIENTS { 1_000_000 } else { 4_000_000 };
        c.next_ns = self.t_ns + self.rng.below(pause_ns);
        let mark = c.mark.take();
        let refused = matches!(told, Told::Refused);
        self.say(|| format!("{}: {work}", if refused { "refused" } else { "answered" }));
        let judged = match (work.what, told) {
            (What::Write(version), _) => {
                // An answer of an earlier owner: what its successor found stands, and is of this write or of a later one.
                let last = work.handle == self.opened;
                self.oracle.write_end(work.first, work.n, version, last, true);
                self.last_write = (work.first, work.n);
                Ok(())
            }
            (What::Open(..), Told::Refused) => {
                self.counts.opens_refused += 1;
                self.grants.refused(work.client)
            }
            (What::Open(..), _) => {
                self.counts.opens += 1;
                self.grants.done(work.client)
            }
            (What::Read, Told::Data(data)) => mark.map_or(Ok(()), |mark| self.oracle.check(work.first, &data, &mark)),
            (What::Read, _) => Ok(()),
        };
        if let Err(e) = judged {
            self.failed.get_or_insert(format!("client {} is told by way of node {}: {e}", work.client, work.via));
        }
    }

    /// A new owner has the pool open: what it finds is what stays. Writes that are not answered may yet be made.
    pub(super) fn opened(&mut self, i: usize, epoch: Epoch, found: &Found) {
        self.opened = epoch;
        self.oracle.crash();
        for (k, data) in found.blocks.iter().enumerate() {
            if let Err(e) = self.oracle.check_after_open(k as u64 * 16, data) {
                self.failed.get_or_insert(format!("after the import by {i}: {e}"));
            }
        }
        if let Err(e) = found.table.as_ref().map_err(String::clone).and_then(|t| self.grants.check(t)) {
            self.failed.get_or_insert(format!("after the import by {i}: {e}"));
        }
        for w in self.clients.iter().filter_map(|c| c.work) {
            if let What::Write(v) = w.what {
                self.oracle.write_begin(w.first, w.n, v);
            }
        }
    }

    /// Registrations that were on their way never arrive.
    pub(super) fn drop_registrations(&mut self) {
        self.happenings.retain(|_, h| {
            !matches!(h, Happening::RegisterDisk { .. } | Happening::Unheld { .. } | Happening::Admit { .. })
        });
        self.trouble.held = [None; NODES];
    }

    /// The newest epoch of any label: what an administrator sees on the disks.
    pub(super) fn newest_label(&self) -> Epoch {
        let places = self.disks.iter().flat_map(|d| LABELS_AT.map(|at| d.peek(at, BLOCK_BYTES as usize)));
        let newest = places.filter_map(|label| label_epoch(&label)).max();
        Epoch(self.judge.borrow().newest_epoch().max(newest.unwrap_or(0)))
    }
}
