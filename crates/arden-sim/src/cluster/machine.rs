//! One node as a process: its clock, whether it runs, the product's state machine, and the pool that it has open on a runtime of
//! its own. A process that is stopped does nothing; what it sent before stays where it is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::rng::Rng;
use arden_block::sim::{Initiator, SimDisk};
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, Rt};
use arden_cluster::{Config, Epoch, Event, LeaseId, Node, NodeId, PoolId};
use arden_space::{OpenOptions, Ownership, Pool, PoolConfig, Right, Space, SpaceError};

use super::client::{Told, What, Work};
use super::disks::{DISKS_MAX, Entered, Guard};
use super::opens::{CLIENTS, Change, Table};

pub(super) const POOL: PoolId = PoolId(1);
pub(super) const BLOCKS: u64 = 32;
/// Behind the blocks of clients the table of their opens has a block for each of them.
pub(super) const SPACE_BYTES: u64 = (BLOCKS + CLIENTS as u64) * BLOCK_BYTES;

pub(super) fn config() -> PoolConfig {
    PoolConfig { tick_ms: 5, busy_ms: 0, grace_ms: 1_000_000, io_timeout_ms: 2000, ..PoolConfig::default() }
}

/// The most that a clock runs too fast or too slow, in millionths.
const DRIFT_PPM: u64 = 2_000;

/// The key that a holder registers on the disks.
pub(super) fn key(node: usize, epoch: Epoch) -> u64 {
    (node as u64) << 48 | epoch.0
}

/// What the tasks of a pool tell their node, in order.
pub(super) enum Done {
    /// Everything that was on the pool when it was opened.
    Opened(Pool, Space, Found),
    NotOpened(SpaceError),
    Closed(bool),
    /// A disk was taken back, or not.
    Back(Result<(), SpaceError>),
    /// Whether nothing but the owner's memory says so, which may be old where a clock stood still.
    Worked(Work, Result<(Told, bool), SpaceError>),
}

/// What an import finds.
pub(super) struct Found {
    pub(super) blocks: Vec<Buf>,
    /// Or why it cannot be read.
    pub(super) table: Result<Table, String>,
}

/// What an owner answers from without a look at the disks.
#[derive(Default)]
struct Memory {
    blocks: Vec<u8>,
    table: Table,
}

impl Memory {
    fn get(&self, at: usize, len: usize) -> Buf {
        Buf::copy_of(&self.blocks[at..at + len])
    }
}

/// What becomes of a request.
pub(super) enum Begun {
    Now,
    /// Not yet: the client sends it again.
    Later,
    /// It is older than what its client sent since.
    Never,
}

/// A pool that is being opened, open, or being closed.
pub(super) struct Open {
    pub(super) rt: Rt,
    pub(super) epoch: Epoch,
    pub(super) id: u64,
    pub(super) pool: Option<(Pool, Space)>,
    /// What the import found, until the node serves it.
    pub(super) found: Option<Found>,
    memory: Rc<RefCell<Memory>>,
    pub(super) done: Rc<RefCell<Vec<Done>>>,
    pub(super) serves: bool,
    /// The last attempt of each client that was begun, and whether it is under way.
    pub(super) clients: [(u64, bool); CLIENTS],
    /// Requests that are not answered.
    under_way: Rc<Cell<u32>>,
    guard: Option<Guard>,
}

/// A disk as a pool has it.
fn attached(disk: &SimDisk, rt: &Rt, from: Initiator, guard: Option<&Guard>) -> Rc<dyn BlockDevice> {
    let dev = disk.attach_as(rt, from);
    match guard {
        Some(guard) => guard.wrap(disk, dev),
        None => dev,
    }
}

impl Open {
    /// `guarded`: a disk that refuses a command ends all commands to all.
    pub(super) fn import(disks: &[SimDisk], from: Initiator, ownership: Ownership, guarded: bool, seed: u64) -> Open {
        let rt = Rt::virtual_clock(seed);
        let done: Rc<RefCell<Vec<Done>>> = Rc::default();
        let guard = guarded.then(|| Guard::new(from));
        let devices: Vec<_> = disks.iter().map(|d| attached(d, &rt, from, guard.as_ref())).collect();
        let (put, rt2) = (done.clone(), rt.clone());
        rt.spawn(async move {
            let opened = async {
                let options = OpenOptions { config: config(), discard: Vec::new() };
                let pool = Pool::open_as(&rt2, devices, None, options, Right::Owner(ownership)).await?;
                let space = pool.space_named("s")?;
                let mut blocks = Vec::new();
                for first in (0..BLOCKS).step_by(16) {
                    blocks.push(space.read(first * BLOCK_BYTES, 16 * BLOCK_BYTES as usize).await?);
                }
                let rows = space.read(BLOCKS * BLOCK_BYTES, CLIENTS * BLOCK_BYTES as usize).await?;
                Ok((pool, space, Found { blocks, table: Table::read(&rows) }))
            };
            let end = match opened.await {
                Ok((pool, space, found)) => Done::Opened(pool, space, found),
                Err(e) => Done::NotOpened(e),
            };
            put.borrow_mut().push(end);
        });
        let epoch = Epoch(ownership.epoch);
        let (clients, under_way, memory) = ([(0, false); CLIENTS], Rc::default(), Rc::default());
        Open { rt, epoch, id: from.id, pool: None, found: None, memory, done, serves: false, clients, under_way, guard }
    }

    /// A disk that is back.
    pub(super) fn attach(&self, disk: &SimDisk, from: Initiator) -> Rc<dyn BlockDevice> {
        attached(disk, &self.rt, from, self.guard.as_ref())
    }

    /// The pool is open.
    pub(super) fn opened(&mut self, pool: Pool, space: Space, found: Found) {
        let table = found.table.clone().unwrap_or_default();
        *self.memory.borrow_mut() = Memory { blocks: found.blocks.iter().flat_map(|b| b.to_vec()).collect(), table };
        (self.pool, self.found) = (Some((pool, space)), Some(found));
    }

    /// Closes the pool when every request is answered.
    pub(super) fn close(&mut self) {
        self.serves = false;
        let (Some((pool, _)), put) = (self.pool.clone(), self.done.clone()) else { return };
        let (rt, under_way) = (self.rt.clone(), self.under_way.clone());
        self.rt.spawn(async move {
            while under_way.get() > 0 {
                rt.sleep_ns(100_000).await;
            }
            let ok = pool.close().await.is_ok();
            put.borrow_mut().push(Done::Closed(ok));
        });
    }

    /// Begins a client's work, unless one of its is under way or a later one was begun. A read is answered from memory after
    /// `memory_ns` where that is given.
    pub(super) fn begin(&mut self, work: Work, memory_ns: Option<u64>) -> Begun {
        let Some((_, space)) = self.pool.clone() else { return Begun::Later };
        let seen = &mut self.clients[work.client];
        if seen.0 >= work.attempt {
            return Begun::Never;
        }
        if seen.1 {
            return Begun::Later;
        }
        *seen = (work.attempt, true);
        let (put, under_way, rt) = (self.done.clone(), self.under_way.clone(), self.rt.clone());
        let memory = self.memory.clone();
        under_way.set(under_way.get() + 1);
        self.rt.spawn(async move {
            let result = match memory_ns.filter(|_| work.what == What::Read) {
                None => carry_out(&space, &memory, work).await,
                Some(ns) => {
                    let data = memory.borrow().get(at(work), len(work));
                    rt.sleep_ns(ns).await;
                    Ok((Told::Data(Rc::new(data)), true))
                }
            };
            put.borrow_mut().push(Done::Worked(work, result));
            under_way.set(under_way.get() - 1);
        });
        Begun::Now
    }
}

fn at(work: Work) -> usize {
    (work.first * BLOCK_BYTES) as usize
}

fn len(work: Work) -> usize {
    (work.n * BLOCK_BYTES) as usize
}

async fn carry_out(space: &Space, memory: &RefCell<Memory>, work: Work) -> Result<(Told, bool), SpaceError> {
    match work.what {
        What::Read => Ok((Told::Data(Rc::new(space.read(at(work) as u64, len(work)).await?)), true)),
        What::Write(_) => {
            let Some(data) = work.data() else { return Ok((Told::Refused, true)) };
            space.write(at(work) as u64, data.clone(), true).await?;
            memory.borrow_mut().blocks[at(work)..at(work) + len(work)].copy_from_slice(&data);
            Ok((Told::Done, false))
        }
        What::Open(file, mode) => {
            let change = memory.borrow_mut().table.set(work.client, file, mode);
            match change {
                Change::Refused => Ok((Told::Refused, true)),
                // What is asked for again may not be durable yet, or never become so: its write may have failed, or been stopped.
                Change::Known | Change::Made => {
                    let row = memory.borrow().table.row(work.client).share();
                    space.write((BLOCKS + work.client as u64) * BLOCK_BYTES, row, true).await?;
                    Ok((Told::Done, false))
                }
            }
        }
    }
}

/// How fast a clock runs, in millionths: in every second case as far off as is permitted.
pub(super) fn rate_ppm(rng: &mut Rng) -> u64 {
    let off = if rng.one_in(2) { rng.below(2) * 2 * DRIFT_PPM } else { rng.below(2 * DRIFT_PPM + 1) };
    1_000_000 - DRIFT_PPM + off
}

/// A clock that runs a little too fast or too slow, and stands still where the machine is frozen together with it.
pub(super) struct Clock {
    ahead_ns: u64,
    rate_ppm: u64,
    lost_ns: u64,
}

impl Clock {
    pub(super) fn at(&self, t_ns: u64) -> u64 {
        self.ahead_ns + (t_ns - self.lost_ns) * self.rate_ppm / 1_000_000
    }
}

pub(super) struct Machine {
    pub(super) id: usize,
    /// The node that it says that it is: of a copy, another one.
    pub(super) number: usize,
    /// Which life of the process this is.
    pub(super) run: u64,
    /// `None` while the process does not run.
    pub(super) node: Option<Node>,
    pub(super) starts_ns: u64,
    pub(super) stopped: Option<Stopped>,
    pub(super) clock: Clock,
    pub(super) open: Option<Open>,
    /// The ownership whose end takes its time, and how long.
    pub(super) stopping: Option<(Epoch, u64)>,
    /// What happened while it was stopped.
    pub(super) inbox: Vec<Event>,
    /// It goes on, and until then its node has not been told anything: other threads run first.
    pub(super) deaf_ns: u64,
    /// Its clock stood still at this time: until it hears of a lease that was asked for after it, its reads may be old.
    pub(super) doubtful: Option<u64>,
    pub(super) no_etcd_ns: u64,
    /// Until when clients do not reach it, but for the one that only reads.
    pub(super) no_clients_ns: u64,
    /// Until when it does not reach each disk.
    pub(super) no_disk_ns: [u64; DISKS_MAX],
    pub(super) entered: Entered,
    /// The run that enters a disk which is back.
    pub(super) admits: Option<u64>,
    /// When it looks for disks that are back.
    pub(super) looks_ns: u64,
    pub(super) lag_ns: (u64, u64),
    pub(super) drains_ns: Option<u64>,
    pub(super) ticks_ns: u64,
    /// The answer to its next renewal of the lease is late, and is the last that it hears of etcd for a while.
    pub(super) late_renewal: bool,
    /// etcd told it of an older state than it knows: this process owns nothing more.
    pub(super) warned: bool,
}

/// What a stopped process waits for, if that comes before its time is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    Time,
    /// A write that its successor acknowledged.
    Successor,
    /// Its fence: then its registration, which is on its way, arrives.
    Fence,
}

pub(super) struct Stopped {
    pub(super) since_ns: u64,
    pub(super) until_ns: u64,
    pub(super) until: Until,
    pub(super) with_clock: bool,
}

impl Machine {
    pub(super) fn new(id: usize, rng: &mut Rng) -> Machine {
        let clock = Clock { ahead_ns: rng.below(1 << 40), rate_ppm: rate_ppm(rng), lost_ns: 0 };
        Machine {
            id,
            number: id,
            run: 0,
            node: None,
            starts_ns: if id < super::world::NODES { 0 } else { u64::MAX },
            stopped: None,
            clock,
            open: None,
            stopping: None,
            inbox: Vec::new(),
            deaf_ns: 0,
            doubtful: None,
            no_etcd_ns: 0,
            no_clients_ns: 0,
            no_disk_ns: [0; DISKS_MAX],
            entered: Entered::default(),
            admits: None,
            looks_ns: 0,
            lag_ns: (0, 0),
            drains_ns: None,
            ticks_ns: 0,
            late_renewal: false,
            warned: false,
        }
    }

    pub(super) fn start(&mut self, ttl_ns: u64) {
        let patience_ns = self.id as u64 * 3_000_000;
        let config = Config {
            node: NodeId(self.number as u16),
            ttl_ns,
            drift_ppm: DRIFT_PPM,
            pools: Vec::from_iter((!self.is_copy()).then_some((POOL, patience_ns))),
            fence_retry_ns: 2_000_000,
        };
        self.node = Some(Node::new(config));
        (self.late_renewal, self.warned) = (false, false);
    }

    /// Whether it runs with a copy of another node's state. It reaches no disks.
    pub(super) fn is_copy(&self) -> bool {
        self.number != self.id
    }

    /// The lease that it may use, as far as its clock can be relied on.
    pub(super) fn lease(&self, t_ns: u64) -> Option<LeaseId> {
        let node = self.node.as_ref().filter(|_| self.runs() && self.doubtful.is_none())?;
        node.lease(self.clock.at(t_ns))
    }

    /// Whether its node hears what happens.
    pub(super) fn hears(&self, t_ns: u64) -> bool {
        self.stopped.is_none() && t_ns >= self.deaf_ns
    }

    pub(super) fn runs(&self) -> bool {
        self.node.is_some() && self.stopped.is_none()
    }

    /// The process goes on, its node `deaf_ns` later; its clock may have stood still.
    pub(super) fn resume(&mut self, t_ns: u64, deaf_ns: u64) {
        self.deaf_ns = t_ns + deaf_ns;
        if let Some(s) = self.stopped.take()
            && s.with_clock
        {
            self.clock.lost_ns += t_ns - s.since_ns;
            self.doubtful = Some(self.clock.at(t_ns));
        }
    }

    /// Whether its stage is one in which a pause hurts most.
    pub(super) fn is_owner(&self) -> bool {
        self.open.is_some()
    }
}
