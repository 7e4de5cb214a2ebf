//! One node as a process: its clock, whether it runs, the product's state machine, and the pool that it has open on a runtime of
//! its own. A process that is stopped does nothing; what it sent before stays where it is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::rng::Rng;
use arden_block::sim::{Initiator, SimDisk};
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, Rt};
use arden_cluster::{Config, Epoch, Event, Node, NodeId, PoolId};
use arden_space::{OpenOptions, Ownership, Pool, PoolConfig, Space, SpaceError};

use super::client::Work;

pub(super) const POOL: PoolId = PoolId(1);
pub(super) const BLOCKS: u64 = 32;

pub(super) fn config() -> PoolConfig {
    PoolConfig { tick_ms: 5, busy_ms: 0, grace_ms: 1_000_000, io_timeout_ms: 2000, ..PoolConfig::default() }
}

/// The key that a holder registers on the disks.
pub(super) fn key(node: usize, epoch: Epoch) -> u64 {
    (node as u64) << 48 | epoch.0
}

/// What the tasks of a pool tell their node, in order.
pub(super) enum Done {
    /// Everything that was on the pool when it was opened.
    Opened(Pool, Space, Vec<Buf>),
    NotOpened(SpaceError),
    Closed(bool),
    Worked(Work, Result<Option<Buf>, SpaceError>),
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
    pub(super) found: Option<Vec<Buf>>,
    pub(super) done: Rc<RefCell<Vec<Done>>>,
    pub(super) serves: bool,
    /// The last attempt of each client that was begun, and whether it is under way.
    pub(super) clients: [(u64, bool); 2],
    /// Requests that are not answered.
    under_way: Rc<Cell<u32>>,
}

impl Open {
    pub(super) fn import(disks: &[SimDisk], from: Initiator, ownership: Ownership, seed: u64) -> Open {
        let rt = Rt::virtual_clock(seed);
        let done: Rc<RefCell<Vec<Done>>> = Rc::default();
        let devices: Vec<Rc<dyn BlockDevice>> = disks.iter().map(|d| d.attach_as(&rt, from)).collect();
        let (put, rt2) = (done.clone(), rt.clone());
        rt.spawn(async move {
            let opened = async {
                let options = OpenOptions { config: config(), discard: Vec::new() };
                let pool = Pool::open_owned(&rt2, devices, None, options, ownership).await?;
                let space = pool.space_named("s")?;
                let mut all = Vec::new();
                for first in (0..BLOCKS).step_by(16) {
                    all.push(space.read(first * BLOCK_BYTES, 16 * BLOCK_BYTES as usize).await?);
                }
                Ok((pool, space, all))
            };
            let end = match opened.await {
                Ok((pool, space, all)) => Done::Opened(pool, space, all),
                Err(e) => Done::NotOpened(e),
            };
            put.borrow_mut().push(end);
        });
        let epoch = Epoch(ownership.epoch);
        let (clients, under_way) = ([(0, false); 2], Rc::default());
        Open { rt, epoch, id: from.id, pool: None, found: None, done, serves: false, clients, under_way }
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

    /// Begins a client's work, unless one of its is under way or a later one was begun.
    pub(super) fn begin(&mut self, work: Work) -> Begun {
        let Some((_, space)) = self.pool.clone() else { return Begun::Later };
        let seen = &mut self.clients[work.client];
        if seen.0 >= work.attempt {
            return Begun::Never;
        }
        if seen.1 {
            return Begun::Later;
        }
        *seen = (work.attempt, true);
        let (put, under_way) = (self.done.clone(), self.under_way.clone());
        under_way.set(under_way.get() + 1);
        self.rt.spawn(async move {
            let (at, len) = (work.first * BLOCK_BYTES, (work.n * BLOCK_BYTES) as usize);
            let result = match work.data() {
                None => space.read(at, len).await.map(Some),
                Some(data) => space.write(at, data, true).await.map(|()| None),
            };
            put.borrow_mut().push(Done::Worked(work, result));
            under_way.set(under_way.get() - 1);
        });
        Begun::Now
    }
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
    /// Which life of the process this is.
    pub(super) run: u64,
    /// `None` while the process does not run.
    pub(super) node: Option<Node>,
    pub(super) starts_ns: u64,
    pub(super) stopped: Option<Stopped>,
    pub(super) clock: Clock,
    pub(super) open: Option<Open>,
    /// What happened while it was stopped.
    pub(super) inbox: Vec<Event>,
    /// It goes on, and until then its node has not been told anything: other threads run first.
    pub(super) deaf_ns: u64,
    /// Its clock stood still: until it hears of a lease that was asked for after that time of its clock, its reads may be old.
    pub(super) doubtful: Option<u64>,
    pub(super) no_etcd_ns: u64,
    pub(super) no_disks_ns: u64,
    pub(super) lag_ns: (u64, u64),
    pub(super) drains_ns: Option<u64>,
    pub(super) ticks_ns: u64,
}

pub(super) struct Stopped {
    pub(super) since_ns: u64,
    pub(super) until_ns: u64,
    pub(super) with_clock: bool,
}

impl Machine {
    pub(super) fn new(id: usize, rng: &mut Rng) -> Machine {
        let clock = Clock { ahead_ns: rng.below(1 << 40), rate_ppm: 1_000_000 + rng.below(3_000) - 1_500, lost_ns: 0 };
        Machine {
            id,
            run: 0,
            node: None,
            starts_ns: 0,
            stopped: None,
            clock,
            open: None,
            inbox: Vec::new(),
            deaf_ns: 0,
            doubtful: None,
            no_etcd_ns: 0,
            no_disks_ns: 0,
            lag_ns: (0, 0),
            drains_ns: None,
            ticks_ns: 0,
        }
    }

    pub(super) fn start(&mut self, ttl_ns: u64) {
        let patience_ns = self.id as u64 * 3_000_000;
        let config = Config {
            node: NodeId(self.id as u16),
            ttl_ns,
            drift_ppm: 2_000,
            pools: vec![(POOL, patience_ns)],
            fence_retry_ns: 2_000_000,
        };
        self.node = Some(Node::new(config));
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
