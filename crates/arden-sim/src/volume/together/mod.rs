//! A volume that several clients use at once, with the volume's own threads, on a space on simulated disks. Each is a thread, of which
//! one runs at a time in an order that the seed decides (`crate::turns`); the thread of the run moves time and devices meanwhile.
//! Power is lost at any write. What the clients are answered, and what an opening finds, has to be explained by some order of
//! their operations (`arden_testkit::crash::together`).

mod client;
mod device;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicU64, mpsc::channel},
    time::Duration,
};

use arden_block::{Device, Rt, rng::Rng};
use arden_lock::{Condvar, ranks};
use arden_space::{Layout, Pool, SharedSpace, Space};
use arden_store::store::{FileStore, NewFile};
use arden_testkit::crash::together::Together;
use arden_volume::{Durability, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;
use parking_lot::Mutex;

use self::{
    client::{Client, Common, DIRECTORY, Round, look},
    device::{Death, InTurns, Inbox, Silent},
};
use super::{
    World,
    under::{OnSpace, Step, Target},
};
use crate::{
    client::check,
    stats::{Failure, Stats},
    turns::{self, Turns},
};

/// How far the devices get while others could go on, and while all others wait.
const TURN_NS: u64 = 30_000;
const WAIT_NS: u64 = 10_000_000;
const CLIENTS_MAX: u64 = 4;
/// How often a check looks whether blocks stay nobody's.
const LOOKS: usize = 40;

/// Runs one seed to its end, on a thread of its own. A run that fails leaves its threads behind, which wait for ever.
pub fn run_together_seed(seed: u64, layout: Option<Layout>, verbose: bool) -> Result<Stats, Failure> {
    let (tell, told) = channel();
    let failed = tell.clone();
    let run = move || {
        let world = || {
            let mut world = World::new(seed ^ 0x746f_6765, layout, verbose);
            world.options.background = !world.rng.one_in(5);
            world.options.commit_interval = Duration::from_millis([2, 20, 200][world.rng.below(3) as usize]);
            world.stall_ppm = [500, 30_000, 150_000][world.rng.below(3) as usize];
            world.together(&|| {
                let failed = failed.clone();
                Box::new(move |what| drop(failed.send(Err(what))))
            })
        };
        let ended = catch_unwind(AssertUnwindSafe(world));
        let _ = tell.send(ended.unwrap_or_else(|panic| Err(format!("panic: {}", turns::message(&*panic)))));
    };
    std::thread::Builder::new().name("device".into()).stack_size(8 << 20).spawn(run).expect("a thread");
    told.recv().unwrap_or(Err("the run went away".into())).map_err(|what| Failure { seed, what })
}

/// What the first thread of a life is to do.
struct Life {
    first: bool,
    last: bool,
    label: u128,
    tells: bool,
    options: VolumeOptions,
    rng: Rng,
    death: Death,
}

type Failed = Box<dyn Fn(String) + Send + Sync>;

impl World {
    fn together(&mut self, failed: &dyn Fn() -> Failed) -> Result<Stats, String> {
        let mut oracle = Together::default();
        let lives = self.rng.range(1, 3);
        for life in 0..=lives {
            oracle = self.life_together(oracle, (life == 0, life == lives), failed())?;
        }
        self.stats.possible = self.stats.possible.max(oracle.most as u64);
        self.stats.count_disks(&self.disks);
        Ok(std::mem::take(&mut self.stats))
    }

    /// From opening to crash. The first makes pool and volume, the last only looks.
    fn life_together(
        &mut self,
        oracle: Together,
        (first, last): (bool, bool),
        failed: Failed,
    ) -> Result<Together, String> {
        let rt = Rt::virtual_clock(self.rng.next_u64());
        let pool = if first { self.create(&rt)? } else { self.open(&rt)? };
        let space = pool.space_named("s").map_err(|e| e.to_string())?;
        OnSpace::enter(&rt, space, self.rng.below(400_000));
        let opening = (!last && !first && self.rng.one_in(6)).then(|| self.rng.below(20));
        OnSpace::die_after(opening);
        let turns = Turns::begin(self.rng.next_u64(), failed);
        let inbox = Inbox::new(&turns);
        let (oracle, operations, verbose) = (Mutex::new(oracle), AtomicU64::new(0), self.verbose);
        let common = Arc::new(Common { inbox: inbox.clone(), oracle, operations, verbose });
        let life = Life {
            first,
            last,
            label: u128::from(self.seed) << 64 | 77,
            tells: !self.rng.one_in(4),
            options: self.options.clone(),
            rng: Rng::new(self.rng.next_u64()),
            death: self.death(),
        };
        let (for_first, body) = (common.clone(), turns.clone());
        turns.start("first", move || life.run(&body, &for_first));
        self.drive(&rt, &pool, &turns, &inbox)?;
        self.stats.switches += turns.leave();
        let crashed = OnSpace::is_dead();
        self.stats.crashes += u64::from(crashed);
        OnSpace::end();
        self.stats.freed += OnSpace::take_freed();
        self.away = pool.out_of_date().into_iter().map(usize::from).collect();
        self.journal = pool.journal_disks().into_iter().map(usize::from).collect();
        drop(pool);
        rt.shutdown();
        self.crash(crashed);
        self.disks.iter().for_each(arden_block::sim::SimDisk::end_of_life);
        let common = Arc::into_inner(common).ok_or("somebody keeps what the threads of a life share")?;
        self.stats.operations += common.operations.into_inner();
        Ok(common.oracle.into_inner())
    }

    fn death(&mut self) -> Death {
        match self.rng.below(8) {
            0 => Death::Never,
            1 => Death::At(Target::Superblock, self.rng.below(3), self.rng.below(600_000)),
            2 | 3 => Death::At(Target::Batch, self.rng.below(12), self.rng.below(900_000)),
            _ => Death::After(self.rng.below(120)),
        }
    }

    /// Moves time and devices until all threads have ended.
    fn drive(&mut self, rt: &Rt, pool: &Pool, turns: &Arc<Turns>, inbox: &Arc<Inbox>) -> Result<(), String> {
        while !turns.all_ended() {
            match inbox.death() {
                Some(Death::Never) => OnSpace::die_after(None),
                Some(Death::After(n)) => OnSpace::die_after(Some(n)),
                Some(Death::At(target, others, ns)) => OnSpace::die_at(Some((target, others, ns))),
                Some(Death::Now) => OnSpace::die_now(),
                None => {}
            }
            begin_all(rt, inbox);
            if OnSpace::is_dead() && !inbox.is_dead() {
                self.say(|| format!("power is lost at {} us", rt.now_ns() / 1000));
                inbox.lose_power();
            }
            let busy = inbox.is_busy();
            match turns.next_deadline_ns() {
                _ if turns.somebody_is_ready() && busy => rt.run_until_ns(rt.now_ns() + self.rng.below(TURN_NS)),
                _ if turns.somebody_is_ready() => {}
                _ if busy => {
                    rt.run_while(Some(rt.now_ns() + WAIT_NS), &|| !turns.somebody_is_ready());
                }
                Some(at) => rt.run_until_ns(at.max(rt.now_ns())),
                None => {}
            }
            if !inbox.is_dead() && self.rng.one_in(150) {
                self.trouble(rt, pool)?;
                check(pool)?;
            }
            turns.set_clock(rt.now_ns());
            turns.device_turn(inbox.is_busy());
        }
        // What is still on its way is nobody's any more.
        inbox.lose_power();
        Ok(())
    }
}

/// Begins what threads have asked of the devices, until power is lost in one of them.
fn begin_all(rt: &Rt, inbox: &Arc<Inbox>) {
    while let Some(job) = inbox.next() {
        let Some(Step { space, cut_ns, .. }) = OnSpace::step(job.access) else {
            (job.cancel)();
            continue;
        };
        let number = inbox.begin(job.cancel);
        let (work, over) = (job.work, inbox.clone());
        let run = move |space: Space| async move {
            work(space).await;
            over.over(number);
        };
        rt.spawn(run(space));
        if let Some(ns) = cut_ns {
            rt.run_until_ns(rt.now_ns() + ns);
            return;
        }
    }
}

impl Life {
    fn run(mut self, turns: &Arc<Turns>, common: &Arc<Common>) {
        let inbox = &common.inbox;
        let dead = |e: &dyn std::fmt::Display| assert!(inbox.is_dead(), "{e}");
        let shared = match SharedSpace::new(InTurns(inbox.clone())) {
            Ok(shared) => shared,
            Err(e) => return dead(&e),
        };
        if self.first {
            Volume::format(&shared, "sim", self.label, FileTime(1)).expect("a new volume");
        }
        let device: Arc<dyn Device> = if self.tells { Arc::new(shared) } else { Arc::new(Silent(shared)) };
        let vol = match Volume::open(device, self.options.clone()) {
            Ok(vol) => vol,
            Err(e) => return dead(&e),
        };
        inbox.die(Death::Never);
        if inbox.is_dead() {
            return;
        }
        let stores = [Durability::Plain, Durability::WriteThrough].map(|d| VolumeStore::new(vol.clone(), d));
        if let Err(e) = self.begin(&vol, &*stores[0], common) {
            return dead(&e);
        }
        if self.last {
            return;
        }
        inbox.die(self.death);
        for _ in 0..self.rng.range(2, 6) {
            self.round(turns, common, &vol, &stores);
            if inbox.is_dead() {
                return;
            }
            match look(&*stores[0]) {
                _ if inbox.is_dead() => return,
                Ok((view, _)) => common.oracle.lock().shows(&view).unwrap_or_else(|e| panic!("{e}")),
                Err(e) => return dead(&e),
            }
            if self.rng.one_in(4) {
                clean(&vol, common);
            }
        }
        self.end(&vol, common);
    }

    /// What an opening finds has to be what a crash may leave; a new volume gets its directory.
    fn begin(&self, vol: &Arc<Volume>, store: &dyn FileStore, common: &Common) -> arden_store::store::Result<()> {
        if self.first {
            let new = NewFile { directory: true, attributes: 0, security: None, eas: &[], allocation: None };
            store.root().create_child(None, DIRECTORY, &new)?;
            vol.sync()?;
        }
        clean(vol, common);
        let (view, ids) = look(store)?;
        common.say(|| format!("found {view:?}"));
        common.oracle.lock().crashed(&view, &ids).unwrap_or_else(|e| panic!("{e}"));
        // What somebody has seen must stay from here on only when it is durable.
        vol.sync()?;
        common.oracle.lock().begin(&view, &ids);
        Ok(())
    }

    /// Some clients at once, until each has done what it was to do.
    fn round(&mut self, turns: &Arc<Turns>, common: &Arc<Common>, vol: &Arc<Volume>, stores: &[Arc<VolumeStore>; 2]) {
        let round = Round::draw(&mut self.rng);
        let clients = self.rng.range(2, CLIENTS_MAX);
        let all = Gate::of(clients);
        for i in 0..clients {
            let through = self.rng.one_in(3);
            let (common, vol, store) = (common.clone(), vol.clone(), stores[usize::from(through)].clone());
            let (rng, operations) = (Rng::new(self.rng.next_u64()), self.rng.range(2, 10));
            let all = all.clone();
            turns.start(&format!("client {i}"), move || {
                match Client::new(round, common.clone(), vol, store, through, rng) {
                    Ok(client) => client.run(operations),
                    Err(e) => assert!(common.inbox.is_dead(), "{e}"),
                }
                drop(common);
                all.leave();
            });
        }
        all.wait();
    }

    /// The volume is closed, dropped as it is, or power is lost.
    fn end(&mut self, vol: &Arc<Volume>, common: &Common) {
        match self.rng.below(3) {
            0 => common.inbox.die(Death::Now),
            1 => {
                let since = common.oracle.lock().now();
                let closed = vol.close();
                if common.inbox.is_dead() {
                    return;
                }
                closed.unwrap_or_else(|e| panic!("closing: {e}"));
                common.oracle.lock().durable_since(since);
            }
            _ => {}
        }
    }
}

/// Somebody waits here until all have left: clients that end, or a callback.
struct Gate {
    left: arden_lock::Mutex<u64, ranks::SimClients>,
    none: Condvar,
}

impl Gate {
    fn of(left: u64) -> Arc<Gate> {
        Arc::new(Gate { left: arden_lock::Mutex::new(left), none: Condvar::new() })
    }

    fn leave(&self) {
        *self.left.lock() -= 1;
        self.none.notify_all();
    }

    fn wait(&self) {
        let mut left = self.left.lock();
        while *left > 0 {
            self.none.wait(&mut left);
        }
    }
}

/// The volume finds nothing wrong with itself. Blocks that its own threads are about to write are nobody's for a while.
fn clean(vol: &Volume, common: &Common) {
    let mut unaccounted = 0;
    for _ in 0..LOOKS {
        let report = vol.check(true);
        if common.inbox.is_dead() {
            return;
        }
        let report = report.unwrap_or_else(|e| panic!("check: {e}"));
        assert!(report.is_clean(), "check: {:?}", report.errors);
        unaccounted = report.unaccounted_blocks;
        if unaccounted == 0 {
            return;
        }
        arden_lock::thread::sleep(Duration::from_millis(10));
    }
    panic!("check: {unaccounted} blocks that nobody has");
}
