//! One run: a pool on simulated disks, clients, faults, crashes, and openings in between.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use arden_block::rng::Rng;
use arden_block::sim::{Faults, SimDisk};
use arden_block::{BLOCK_BYTES, BlockDevice, Rt};
use arden_space::{CreateOptions, DiskState, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, SpaceError};

use crate::client::{verify_all, workload};
use crate::oracle::Oracle;

/// What goes wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Crashes, disks that die, return, and fail operations.
    Loud,
    /// One disk damages data without saying so.
    Silent,
}

#[derive(Debug, Clone, Default)]
pub struct Stats {
    pub operations: u64,
    pub crashes: u64,
    pub openings: u64,
    pub kills: u64,
    pub returns: u64,
    pub heals: u64,
    /// Pieces of spaces that gave their slabs back.
    pub freed: u64,
    /// Disks that joined, and that were emptied and left.
    pub joins: u64,
    pub removals: u64,
    /// Operations that a space without enough disks did not do, and openings that its log had no room for.
    pub waits: u64,
    pub refusals: u64,
    /// Commands stuck beyond the time-out, flushes that failed, flushes that did nothing, writes lost from caches while their
    /// disk went on, and places that went bad.
    pub stuck: u64,
    pub flushes_failed: u64,
    pub flushes_ignored: u64,
    pub cached_lost: u64,
    pub broken: u64,
    /// Crashes of runs in which a disk damages silently.
    pub silent_crashes: u64,
    /// Writes that failed for good on a disk that goes on, and blocks that a crash left unreadable.
    pub writes_failed: u64,
    pub left_unreadable: u64,
    /// Lives of a volume that end with a checkpoint soon after a crash.
    pub checkpoints: u64,
    /// Lives of which a tenth of all commands or more take some milliseconds longer.
    pub stalling: u64,
    /// Pauses of clients, in which the background forgets marks and empties the log.
    pub pauses: u64,
    /// Crashes aimed at a moment soon after a departure, at a write of a label, at the turn of the log; of volumes, at a
    /// write of the superblock, at a batch of the journal; of spaces again, between the moment when the pool notices a
    /// departure and the map that says so, while a new group is being mapped, and soon after an opening.
    pub aimed: [u64; 8],
    /// Volumes that became larger, and looks at a change journal and at limits of quotas that had been told before.
    pub grown: u64,
    pub journals: u64,
    pub limits: u64,
    /// Spaces that grew, were deleted, were made with all their slabs; writes for which there was no room; repairs that
    /// stand back for clients, and those that were paused or cancelled.
    pub spaces_grown: u64,
    pub spaces_deleted: u64,
    pub spaces_fixed: u64,
    pub full: u64,
    pub throttled: u64,
    pub paused: u64,
    /// Openings of pools that were not as they had been left: split, with copies, old images, strangers.
    pub splits: u64,
    pub copies: u64,
    pub old_images: u64,
    pub strangers: u64,
}

impl Stats {
    pub fn add(&mut self, s: &Stats) {
        self.operations += s.operations;
        self.crashes += s.crashes;
        self.openings += s.openings;
        self.kills += s.kills;
        self.returns += s.returns;
        self.heals += s.heals;
        self.freed += s.freed;
        self.joins += s.joins;
        self.removals += s.removals;
        self.waits += s.waits;
        self.refusals += s.refusals;
        self.stuck += s.stuck;
        self.flushes_failed += s.flushes_failed;
        self.flushes_ignored += s.flushes_ignored;
        self.cached_lost += s.cached_lost;
        self.broken += s.broken;
        self.silent_crashes += s.silent_crashes;
        self.writes_failed += s.writes_failed;
        self.left_unreadable += s.left_unreadable;
        self.stalling += s.stalling;
        self.checkpoints += s.checkpoints;
        self.pauses += s.pauses;
        self.aimed.iter_mut().zip(s.aimed).for_each(|(a, b)| *a += b);
        self.grown += s.grown;
        self.journals += s.journals;
        self.limits += s.limits;
        self.spaces_grown += s.spaces_grown;
        self.spaces_deleted += s.spaces_deleted;
        self.spaces_fixed += s.spaces_fixed;
        self.full += s.full;
        self.throttled += s.throttled;
        self.paused += s.paused;
        self.splits += s.splits;
        self.copies += s.copies;
        self.old_images += s.old_images;
        self.strangers += s.strangers;
    }

    /// What the disks of a run say of their faults.
    pub(crate) fn count_disks(&mut self, disks: &[SimDisk]) {
        for c in disks.iter().map(SimDisk::counters) {
            self.stuck += c.stuck;
            self.flushes_failed += c.flushes_failed;
            self.flushes_ignored += c.flushes_ignored;
            self.cached_lost += c.cached_lost;
            self.writes_failed += c.writes_failed;
            self.left_unreadable += c.left_unreadable;
        }
    }
}

/// Where a crash is aimed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    Anywhere,
    /// Within 2 ms of the moment when a disk leaves.
    Departure,
    /// At a write of a label, after so many others.
    Label(u64),
    /// When the log begins anew at the start of its area.
    LogTurn,
    /// Between the moment when the pool notices that a disk has left and the map that says so.
    Notice,
    /// While a map with a new group is on its way.
    NewGroup,
    /// Soon after an opening: nothing of what is read was flushed since.
    Opened,
}

/// Where the labels of a disk lie, and the first block of the log of a disk of a few MiB.
const LABELS: std::ops::Range<u64> = 0..128 << 10;
const LOG_START: std::ops::Range<u64> = 256 << 10..260 << 10;

#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
}

/// One space of the pool, and what its users may read back.
pub(crate) struct Share {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    columns: usize,
    interleave: u64,
    pub(crate) provision: Provision,
    pub(crate) stripe_blocks: u64,
    pub(crate) oracle: RefCell<Oracle>,
    /// Whether it was made, or deleted, and that was acknowledged.
    pub(crate) state: Cell<Existence>,
    /// Counts creations.
    pub(crate) life: Cell<u32>,
    /// Operations in flight.
    pub(crate) users: Cell<u32>,
    /// How large it is to become.
    pub(crate) asked: Cell<u64>,
    /// It was said that it has all its slabs.
    pub(crate) has_room: Cell<bool>,
}

/// What is known of a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existence {
    /// Nobody was told of it.
    Unmade,
    There,
    /// It is being deleted, or made once more: both may be.
    Perhaps,
    Gone,
}

impl Share {
    fn draw(rng: &mut Rng, name: &str, layout: Layout, disks: usize) -> Share {
        let columns = match layout {
            Layout::Parity => 3 + rng.below(disks as u64 - 2) as usize,
            Layout::DualParity => 4 + rng.below(disks as u64 - 3) as usize,
            l => 1 + rng.below((disks / l.copies()) as u64) as usize,
        };
        let interleave = 4096 << rng.below(3);
        let blocks = rng.range(64, 300);
        Share {
            name: name.into(),
            layout,
            columns,
            interleave,
            provision: Provision::Thin,
            stripe_blocks: interleave * (columns - layout.parity()) as u64 / BLOCK_BYTES,
            oracle: RefCell::new(Oracle::new(blocks)),
            state: Cell::new(Existence::Unmade),
            life: Cell::default(),
            users: Cell::default(),
            asked: Cell::new(blocks),
            has_room: Cell::default(),
        }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.oracle.borrow().blocks()
    }

    pub(crate) fn is_there(&self) -> bool {
        self.state.get() == Existence::There
    }

    pub(crate) async fn make(&self, pool: &Pool) -> Result<Space, SpaceError> {
        let size = self.blocks() * BLOCK_BYTES;
        let (columns, provision) = (Some(self.columns), self.provision);
        let made = pool.create_space(&self.name, self.layout, columns, self.interleave, size, provision).await;
        self.has_room.set(made.is_ok() && provision == Provision::Fixed);
        made
    }

    /// What an opening found: None where it is right that there is none.
    fn found(&self, found: Result<Space, SpaceError>) -> Result<Option<Space>, String> {
        let space = match (found, self.state.get()) {
            (Ok(_), Existence::Gone) => return Err(format!("{} was deleted and is there again", self.name)),
            (Ok(space), _) => space,
            (Err(e), Existence::There) => return Err(format!("after opening: {e}")),
            (Err(_), state) => {
                self.state.set(if state == Existence::Unmade { state } else { Existence::Gone });
                return Ok(None);
            }
        };
        let (now, told, asked) = (space.size_bytes() / BLOCK_BYTES, self.blocks(), self.asked.get());
        if now != told && now != asked {
            return Err(format!("{} has {now} blocks after an opening, {told} told, {asked} asked for", self.name));
        }
        // Whether a growth that nobody was told of got all its slabs is not said either.
        self.has_room.set(self.has_room.get() && now == told && self.state.get() == Existence::There);
        self.oracle.borrow_mut().grow(now);
        self.asked.set(now);
        self.state.set(Existence::There);
        Ok(Some(space))
    }
}

pub(crate) struct World {
    seed: u64,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) profile: Profile,
    /// Those that make the pool, then its spares, then those that may join.
    pub(crate) disks: Vec<SimDisk>,
    spares_from: usize,
    others_from: usize,
    /// Disks join and leave for good.
    pub(crate) changing: bool,
    /// Openings may have to do without more disks than some spaces bear.
    beyond: bool,
    /// The pool's creation was acknowledged.
    founded: Cell<bool>,
    /// The last life ended soon after a departure.
    departed: Cell<bool>,
    /// The last life ended soon after its opening: the next one is often without a disk.
    reopened: Cell<bool>,
    /// What a crash that waits for a change of the pool saw of it last: disks that are out of date, groups with slabs.
    seen: Cell<[usize; 2]>,
    /// The clients of this life pause at times; and whereabouts they work now.
    pub(crate) pausing: Cell<bool>,
    pub(crate) hot: Cell<Option<u64>>,
    /// Power is lost also in a silent run: its space is a mirror.
    silent_crashes: bool,
    /// The last life, with all disks: whatever waited for them is there.
    last: Cell<bool>,
    pub(crate) leaving: Cell<bool>,
    /// A space grows, is deleted or made once more.
    pub(crate) reshaping: Cell<bool>,
    /// Clients that were active so lately make repair stand back.
    pub(crate) busy_ms: Cell<u64>,
    pub(crate) shares: Vec<Share>,
    problem: RefCell<Option<String>>,
    pub(crate) stats: RefCell<Stats>,
    /// Disks (by place) that are dead or left out now.
    away: RefCell<Vec<usize>>,
    /// Those that an opening was without which was cut short.
    tried_without: RefCell<Option<Vec<usize>>>,
    /// Where the journal was when the last life ended, and which disks belonged to the pool.
    journal: RefCell<Vec<usize>>,
    members_last: RefCell<Vec<usize>>,
    /// The members that took part when the pool began to serve.
    members_first: RefCell<Vec<usize>>,
    flaky: Option<usize>,
    /// What the one disk that damages silently does to writes, in parts of a million.
    lost_ppm: u32,
    astray_ppm: u32,
    ignored_ppm: u32,
    /// When power is lost, and what that is aimed at.
    crash_ns: Cell<u64>,
    aim: Cell<Aim>,
    verbose: bool,
}

/// How often it is looked whether a crash that is aimed at something is due.
const STEP_NS: u64 = 100_000;
const LIMIT_NS: u64 = 3_600_000_000_000;

impl World {
    pub(crate) fn fail(&self, what: String) {
        let mut p = self.problem.borrow_mut();
        if p.is_none() {
            *p = Some(what);
        }
    }

    /// How many disks may be away, for the space that bears the least.
    pub(crate) fn tolerance(&self) -> usize {
        self.shares.iter().map(|s| s.layout.tolerance()).min().unwrap_or(0)
    }

    /// The pool's disks by place: index and state.
    pub(crate) fn members(&self, pool: &Pool) -> BTreeMap<usize, (u16, DiskState)> {
        let place = |name: &str| name.strip_prefix('d').and_then(|n| n.parse().ok());
        pool.status().disks.iter().filter_map(|d| Some((place(&d.name)?, (d.index, d.state)))).collect()
    }

    /// Where the disks of these indices are.
    pub(crate) fn places(&self, pool: &Pool, indices: &[u16]) -> Vec<usize> {
        self.members(pool).into_iter().filter(|(_, m)| indices.contains(&m.0)).map(|(place, _)| place).collect()
    }

    /// The disk that damages silently, in runs where one does.
    pub(crate) fn damaged(&self) -> usize {
        self.seed as usize % self.disks.len()
    }

    /// Disks that count as away now, by what the pool knows and by what we did to them.
    pub(crate) fn away_now(&self, pool: &Pool) -> Vec<usize> {
        let mut away = self.places(pool, &pool.out_of_date());
        away.extend(self.members(pool).into_keys().filter(|&i| self.is_out(i)));
        away.extend(self.flaky);
        away.sort_unstable();
        away.dedup();
        away
    }

    /// The disk does not answer, will not answer something, or cannot read all of what it has.
    pub(crate) fn is_out(&self, i: usize) -> bool {
        let d = &self.disks[i];
        d.is_dead() || d.is_hung() || d.is_failing() || d.has_bad_blocks()
    }

    /// A disk leaves now: power may be lost soon after.
    pub(crate) fn departs(&self, rt: &Rt) {
        if self.aim.get() == Aim::Departure && self.crash_ns.get() == u64::MAX {
            self.crash_ns.set(rt.now_ns() + self.rng.borrow_mut().below(2_000_000));
            self.stats.borrow_mut().aimed[0] += 1;
        }
    }

    /// A write that a crash is aimed at has begun: so do the next 0.4 ms.
    fn look_at_traps(&self, rt: &Rt) {
        let sprung = self.disks.iter().fold(false, |any, d| d.take_sprung() | any);
        if !sprung || self.crash_ns.get() < u64::MAX {
            return;
        }
        match self.aim.get() {
            Aim::Label(n) if n > 0 => return self.aim.set(Aim::Label(n - 1)),
            Aim::Label(_) => self.stats.borrow_mut().aimed[1] += 1,
            Aim::LogTurn => self.stats.borrow_mut().aimed[2] += 1,
            Aim::Anywhere | Aim::Departure | Aim::Notice | Aim::NewGroup | Aim::Opened => return,
        }
        self.crash_ns.set(rt.now_ns() + self.rng.borrow_mut().below(400_000));
    }

    /// A disk is noticed to have left, or a group has got slabs: power is lost before or while the map says so.
    fn look_at_pool(&self, rt: &Rt, pool: &Pool) {
        let at = match self.aim.get() {
            Aim::Notice => 0,
            Aim::NewGroup => 1,
            _ => return,
        };
        let groups = || pool.status().spaces.iter().map(|s| s.groups_allocated).sum();
        let now = if at == 0 { pool.out_of_date().len() } else { groups() };
        let mut seen = self.seen.get();
        let before = std::mem::replace(&mut seen[at], now);
        self.seen.set(seen);
        if now > before && self.crash_ns.get() == u64::MAX {
            self.crash_ns.set(rt.now_ns() + self.rng.borrow_mut().below(900_000));
            self.stats.borrow_mut().aimed[5 + at] += 1;
        }
    }

    /// The pool is open, and what lies in it is about to be read.
    fn opened(&self, rt: &Rt, pool: &Pool) {
        self.seen.set([pool.out_of_date().len(), 0]);
        self.note_members(pool);
        if self.aim.get() == Aim::Opened {
            self.crash_ns.set(rt.now_ns() + self.rng.borrow_mut().below(8_000_000));
            self.stats.borrow_mut().aimed[7] += 1;
        }
    }

    fn note_members(&self, pool: &Pool) {
        let here = self.members(pool).into_iter().filter(|(_, m)| m.1 != DiskState::Missing);
        *self.members_first.borrow_mut() = here.map(|(place, _)| place).collect();
    }

    fn draw_aim(&self, crash: bool, create: bool) {
        let mut rng = self.rng.borrow_mut();
        // Twice in a row: what the first crash left of the log is what the second one finds.
        let turned = self.aim.get() == Aim::LogTurn && rng.one_in(2);
        let aim = match rng.below(12) {
            _ if !crash => Aim::Anywhere,
            0..=3 if create => Aim::NewGroup,
            _ if create => Aim::Anywhere,
            _ if turned => Aim::LogTurn,
            0 | 1 if self.tolerance() > 0 => Aim::Departure,
            2 => Aim::Label(rng.below(12)),
            3 => Aim::LogTurn,
            4 | 5 if self.tolerance() > 0 => Aim::Notice,
            6 => Aim::NewGroup,
            7 => Aim::Opened,
            _ => Aim::Anywhere,
        };
        let trap = match aim {
            Aim::Label(_) => Some(LABELS),
            Aim::LogTurn => Some(LOG_START),
            _ => None,
        };
        self.disks.iter().for_each(|d| d.set_trap(trap.clone()));
        self.aim.set(aim);
        self.crash_ns.set(u64::MAX);
        self.seen.set([usize::MAX; 2]);
        self.pausing.set(rng.one_in(2));
    }

    /// More disks are away than the space bears: it may refuse to do anything until they are back.
    pub(crate) fn suffers(&self, pool: &Pool, share: usize) -> bool {
        self.beyond && !self.last.get() && self.away_now(pool).len() > self.shares[share].layout.tolerance()
    }

    /// What a space answers that had too few disks before or has now: nothing. Anything else is the run's end.
    pub(crate) fn excuse<T>(
        &self,
        pool: &Pool,
        share: usize,
        suffered: bool,
        result: Result<T, SpaceError>,
    ) -> Result<Option<T>, SpaceError> {
        match result {
            // It is being deleted.
            Err(_) if !self.shares[share].is_there() => Ok(None),
            Err(SpaceError::Offline) if suffered || self.suffers(pool, share) => {
                self.stats.borrow_mut().waits += 1;
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// With these disks out of reach, is the journal still on one that can be relied on?
    pub(crate) fn journal_stays(&self, journal: &[usize], out: impl Fn(usize) -> bool) -> bool {
        journal.iter().any(|&d| !out(d) && self.flaky != Some(d))
    }

    pub(crate) fn is_beyond(&self) -> bool {
        self.beyond
    }

    pub(crate) fn failed(&self) -> bool {
        self.problem.borrow().is_some()
    }

    pub(crate) fn say(&self, rt: &Rt, what: impl FnOnce() -> String) {
        if self.verbose {
            eprintln!("{:>12} {}", rt.now_ns() / 1000, what());
        }
    }
}

fn config(world: &World) -> PoolConfig {
    let rng = &mut *world.rng.borrow_mut();
    // Where clients count as active for a while, repair takes a part of the time only.
    world.busy_ms.set(if world.changing && rng.one_in(2) { rng.range(1, 4) } else { 0 });
    PoolConfig {
        gather_bytes_max: [64 << 10, 256 << 10][rng.below(2) as usize],
        journal_write_max: 32 << 10,
        tick_ms: rng.range(2, 40),
        grace_ms: [5, 1_000_000][rng.below(2) as usize],
        io_timeout_ms: rng.range(8, 30),
        busy_ms: world.busy_ms.get(),
    }
}

/// Runs one seed to its end.
pub fn run_seed(seed: u64, layout: Option<Layout>, verbose: bool) -> Result<Stats, Failure> {
    let mut rng = Rng::new(seed);
    let layout = layout.unwrap_or(Layout::ALL[rng.below(5) as usize]);
    let silent = layout.tolerance() > 0 && rng.one_in(6);
    let profile = if silent { Profile::Silent } else { Profile::Loud };
    let n = layout.disks_min() + rng.below(3) as usize;
    let disks = draw_disks(&mut rng, n, 0);
    let share = Share::draw(&mut rng, "s", layout, n);
    let flaky = (layout.tolerance() > 0 && !silent && rng.one_in(4)).then(|| rng.below(n as u64) as usize);
    let mut silent_ppm = || if silent && rng.one_in(2) { 500 << rng.below(5) } else { 0 };
    let (lost_ppm, astray_ppm) = (silent_ppm(), silent_ppm());
    let ignored_ppm = if silent && rng.one_in(3) { 300_000 } else { 0 };
    let world = World {
        seed,
        rng: RefCell::new(rng),
        profile,
        disks,
        spares_from: n,
        others_from: n,
        changing: false,
        beyond: false,
        founded: Cell::new(false),
        departed: Cell::new(false),
        reopened: Cell::new(false),
        seen: Cell::default(),
        pausing: Cell::new(false),
        hot: Cell::default(),
        silent_crashes: silent && layout.copies() > 1 && seed % 4 > 0,
        last: Cell::new(false),
        leaving: Cell::new(false),
        reshaping: Cell::new(false),
        busy_ms: Cell::default(),
        shares: vec![share],
        problem: RefCell::default(),
        stats: RefCell::default(),
        away: RefCell::default(),
        tried_without: RefCell::default(),
        journal: RefCell::default(),
        members_last: RefCell::default(),
        members_first: RefCell::default(),
        flaky,
        lost_ppm,
        astray_ppm,
        ignored_ppm,
        crash_ns: Cell::new(u64::MAX),
        aim: Cell::new(Aim::Anywhere),
        verbose,
    };
    lives(world)
}

/// Runs one seed of a pool with several spaces, whose disks are exchanged while it is in use:
/// spares stand by, disks join, are emptied and leave.
pub fn run_pool_seed(seed: u64, verbose: bool) -> Result<Stats, Failure> {
    let mut rng = Rng::new(seed ^ 0x5EED_0F90_0150_0000);
    let n = 5 + rng.below(3) as usize;
    let (spares, others) = (rng.below(2) as usize, 1 + rng.below(2) as usize);
    // In some runs the pool is full before its spaces are.
    let smaller = if rng.one_in(4) { 3 << 19 } else { 0 };
    let disks = draw_disks(&mut rng, n + spares + others, smaller);
    // A space that bears no loss is among them at times: then no disk fails.
    let from = if rng.one_in(6) { 0 } else { 1 };
    let count = rng.range(2, 3);
    let draw = |i: u64, rng: &mut Rng| {
        let layout = Layout::ALL[rng.range(from, 4) as usize];
        let share = Share::draw(rng, &format!("s{i}"), layout, n);
        Share { provision: if rng.one_in(3) { Provision::Fixed } else { Provision::Thin }, ..share }
    };
    let shares: Vec<Share> = (0..count).map(|i| draw(i, &mut rng)).collect();
    let bears = shares.iter().all(|s| s.layout.tolerance() > 0);
    let beyond = rng.one_in(2);
    let flaky = (bears && !beyond && rng.one_in(4)).then(|| rng.below(n as u64) as usize);
    let world = World {
        seed,
        rng: RefCell::new(rng),
        profile: Profile::Loud,
        disks,
        spares_from: n,
        others_from: n + spares,
        changing: true,
        beyond,
        founded: Cell::new(false),
        departed: Cell::new(false),
        reopened: Cell::new(false),
        seen: Cell::default(),
        pausing: Cell::new(false),
        hot: Cell::default(),
        silent_crashes: false,
        last: Cell::new(false),
        leaving: Cell::new(false),
        reshaping: Cell::new(false),
        busy_ms: Cell::default(),
        shares,
        problem: RefCell::default(),
        stats: RefCell::default(),
        away: RefCell::default(),
        tried_without: RefCell::default(),
        journal: RefCell::default(),
        members_last: RefCell::default(),
        members_first: RefCell::default(),
        flaky,
        lost_ppm: 0,
        astray_ppm: 0,
        ignored_ppm: 0,
        crash_ns: Cell::new(u64::MAX),
        aim: Cell::new(Aim::Anywhere),
        verbose,
    };
    lives(world)
}

fn draw_disks(rng: &mut Rng, n: usize, smaller: u64) -> Vec<SimDisk> {
    let bytes = |rng: &mut Rng| (4 << 20) + rng.below(3) * (1 << 20);
    (0..n).map(|i| SimDisk::new(&format!("d{i}"), bytes(rng) - smaller, rng.next_u64())).collect()
}

fn lives(world: World) -> Result<Stats, Failure> {
    let world = Rc::new(world);
    if world.verbose {
        let spares = world.others_from - world.spares_from;
        eprintln!(
            "seed {}: {} disks, {spares} of them spares, {} may join, {:?}, flaky {:?}",
            world.seed,
            world.others_from,
            world.disks.len() - world.others_from,
            world.profile,
            world.flaky
        );
        for s in &world.shares {
            let (name, layout, columns, interleave, blocks) = (&s.name, s.layout, s.columns, s.interleave, s.blocks());
            eprintln!("  {name}: {layout:?}, {columns} columns, interleave {interleave}, {blocks} blocks");
        }
    }
    let rounds = world.rng.borrow_mut().range(2, 5);
    session(&world, true)?;
    for _ in 1..rounds {
        // What a crash left of a creation may be opened, or is created once more.
        let again = !world.founded.get() && world.rng.borrow_mut().one_in(2);
        session(&world, again)?;
    }
    if world.beyond {
        world.last.set(true);
        session(&world, false)?;
    }
    world.stats.borrow_mut().count_disks(&world.disks);
    Ok(world.stats.borrow().clone())
}

/// One life of the process, from opening to crash or orderly end.
fn session(world: &Rc<World>, create: bool) -> Result<(), Failure> {
    let fail = |what: String| Failure { seed: world.seed, what };
    let rt = Rt::virtual_clock(world.rng.borrow_mut().next_u64());
    let crash = world.rng.borrow_mut().below(3) > 0 && !world.last.get();
    let crash = crash && (world.profile == Profile::Loud || world.silent_crashes && !create);
    // Anywhere: while opening, while creating, under load, or late in recovery.
    let crash_at = if create {
        20_000_000 + world.rng.borrow_mut().below(60_000_000)
    } else {
        let mut rng = world.rng.borrow_mut();
        let latest = if rng.one_in(3) { 8_000_000 } else { 60_000_000 };
        rng.below(latest)
    };
    let done = Rc::new(Cell::new(false));
    let held: Rc<RefCell<Option<Pool>>> = Rc::default();
    let (w, d, h, r) = (world.clone(), done.clone(), held.clone(), rt.clone());
    set_faults(world, !create);
    world.draw_aim(crash, create);
    rt.spawn(async move {
        let result = if create { live_new(&w, &r, &h).await } else { live_again(&w, &r, &h).await };
        if let Err(e) = result {
            w.fail(e);
        }
        d.set(true);
    });
    while crash && rt.now_ns() < crash_at.min(world.crash_ns.get()) {
        rt.run_until_ns((rt.now_ns() + STEP_NS).min(crash_at).min(world.crash_ns.get()));
        world.look_at_traps(&rt);
        if let Some(pool) = &*held.borrow() {
            world.look_at_pool(&rt, pool);
        }
    }
    let mut step = rt.now_ns();
    while !crash && !done.get() && !world.failed() {
        step += 50_000_000;
        rt.run_until_ns(step);
        if step > LIMIT_NS {
            world.fail("stalled: an hour of virtual time passed".into());
        }
    }
    world.say(&rt, || if crash { "crash".into() } else { "end".to_string() });
    remember_away(world, held.borrow().as_ref());
    let events =
        held.borrow().as_ref().map(|p| format!("{}; out of date {:?}", p.status().events.join("; "), p.out_of_date()));
    let events = events.unwrap_or_default();
    held.borrow_mut().take();
    rt.shutdown();
    let unreadable = if crash { choose_unreadable(world) } else { None };
    for (i, d) in world.disks.iter().enumerate() {
        if unreadable == Some(i) { d.crash_unreadable() } else { d.crash() }
    }
    world.disks.iter().for_each(SimDisk::end_of_life);
    world.shares.iter().for_each(|s| s.oracle.borrow_mut().crash());
    world.leaving.set(false);
    world.reshaping.set(false);
    world.shares.iter().for_each(|s| s.users.set(0));
    let aimed = |aim: Aim| crash && world.aim.get() == aim && world.crash_ns.get() < u64::MAX;
    world.departed.set(aimed(Aim::Departure) || aimed(Aim::Notice));
    world.reopened.set(aimed(Aim::Opened));
    if crash {
        world.stats.borrow_mut().crashes += 1;
        world.stats.borrow_mut().silent_crashes += u64::from(world.profile == Profile::Silent);
    }
    match world.problem.borrow_mut().take() {
        Some(what) => Err(fail(format!("{what} [{events}]"))),
        None => Ok(()),
    }
}

/// The disk of which a crash leaves blocks unreadable: it counts as away as long as they are.
fn choose_unreadable(world: &World) -> Option<usize> {
    let mut rng = world.rng.borrow_mut();
    let pick = rng.below(world.disks.len() as u64) as usize;
    if world.profile == Profile::Silent || world.beyond || !rng.one_in(4) {
        return None;
    }
    let (away, bad) = (world.away.borrow(), |i: usize| world.disks[i].has_bad_blocks());
    let counts = |&i: &usize| i != pick && (away.contains(&i) || world.flaky == Some(i) || bad(i));
    let others = (0..world.disks.len()).filter(counts).count();
    let stays = world.journal_stays(&world.journal.borrow(), |d| d == pick || bad(d));
    (others < world.tolerance() && stays).then_some(pick)
}

fn set_faults(world: &World, armed: bool) {
    // In some lives many commands take longer, less than the time-out: what was asked later is done before.
    let (stall_ppm, stall_ns) = {
        let mut rng = world.rng.borrow_mut();
        match rng.below(8) {
            0 => (200_000, rng.range(1_000_000, 4_000_000)),
            1 => (100_000, rng.range(500_000, 3_000_000)),
            _ => (500, 3_000_000),
        }
    };
    world.stats.borrow_mut().stalling += u64::from(stall_ppm > 500);
    for (i, d) in world.disks.iter().enumerate() {
        let mut f = Faults { latency_max_ns: 300_000, stall_ppm, stall_ns, ..Faults::default() };
        if world.profile == Profile::Silent && armed && i == world.damaged() {
            (f.lost_ppm, f.misdirect_ppm) = (world.lost_ppm, world.astray_ppm);
            f.flush_ignored_ppm = world.ignored_ppm;
        }
        if world.profile == Profile::Loud && world.tolerance() > 0 {
            f.read_error_ppm = 2_000;
            // The pool tries three times. A place that stays unreadable while another disk is away
            // would be more than the layout bears.
            f.read_errors_in_a_row = 2;
        }
        if armed && world.flaky == Some(i) {
            f.write_error_ppm = 100_000;
            f.read_error_ppm = 100_000;
            f.read_errors_in_a_row = u32::MAX;
        }
        d.set_faults(f);
    }
}

/// Which disks the next opening has to count as away: those that missed something.
fn remember_away(world: &World, pool: Option<&Pool>) {
    let Some(pool) = pool else { return };
    *world.journal.borrow_mut() = world.places(pool, &pool.journal_disks());
    *world.away.borrow_mut() = world.places(pool, &pool.out_of_date());
    // A disk that joined since may know nothing yet: the crash came before the map that names it was durable.
    let first = world.members_first.borrow();
    *world.members_last.borrow_mut() = world.members(pool).into_keys().filter(|d| first.contains(d)).collect();
}

async fn live_new(world: &Rc<World>, rt: &Rt, held: &Rc<RefCell<Option<Pool>>>) -> Result<(), String> {
    world.disks.iter().for_each(SimDisk::revive);
    world.disks.iter().for_each(SimDisk::resume);
    world.away.borrow_mut().clear();
    *world.tried_without.borrow_mut() = None;
    let attach = |d: &[SimDisk]| -> Vec<Rc<dyn BlockDevice>> { d.iter().map(|d| d.attach(rt)).collect() };
    let devices = attach(&world.disks[..world.spares_from]);
    let spares = attach(&world.disks[world.spares_from..world.others_from]);
    let cfg = config(world);
    let options = CreateOptions { slab_bytes: Some(128 << 10), config: cfg };
    let pool = Pool::create(rt, "sim", devices, spares, options).await.map_err(|e| format!("create: {e}"))?;
    world.founded.set(true);
    world.note_members(&pool);
    let mut spaces = Vec::new();
    for s in &world.shares {
        match s.make(&pool).await {
            Ok(space) => {
                spaces.push(Some(space));
                s.state.set(Existence::There);
            }
            // It is gone again.
            Err(SpaceError::OutOfSpace) if s.provision == Provision::Fixed => {
                spaces.push(None);
                s.state.set(Existence::Gone);
            }
            Err(e) => return Err(format!("create space: {e}")),
        }
    }
    *held.borrow_mut() = Some(pool.clone());
    workload(world, rt, &pool, spaces).await
}

async fn live_again(world: &Rc<World>, rt: &Rt, held: &Rc<RefCell<Option<Pool>>>) -> Result<(), String> {
    world.stats.borrow_mut().openings += 1;
    world.disks.iter().for_each(SimDisk::revive);
    world.disks.iter().for_each(SimDisk::resume);
    if world.rng.borrow_mut().one_in(2) {
        // The disks put other sectors in the place of bad ones.
        world.disks.iter().for_each(SimDisk::mend_blocks);
    }
    let leave_out = if world.beyond { choose_beyond(world) } else { choose_absent(world) };
    world.say(rt, || format!("opening without {leave_out:?}"));
    *world.tried_without.borrow_mut() = Some(leave_out.clone());
    let devices: Vec<Rc<dyn BlockDevice>> =
        world.disks.iter().enumerate().filter(|(i, _)| !leave_out.contains(i)).map(|(_, d)| d.attach(rt)).collect();
    for i in &leave_out {
        world.disks[*i].kill();
    }
    let cfg = config(world);
    let options = OpenOptions { config: cfg, discard: Vec::new() };
    // Until the opening is over the absent ones count, whatever a crash leaves of it.
    {
        let mut away = world.away.borrow_mut();
        for i in leave_out {
            if !away.contains(&i) {
                away.push(i);
            }
        }
    }
    let beyond = world.beyond && world.away.borrow().len() > world.tolerance();
    let pool = match Pool::open(rt, devices, None, options).await {
        // The crash came before the pool was made, or while it was made once more: nothing was promised.
        Err(SpaceError::NotFound(_) | SpaceError::Refused(_)) if !world.founded.get() => return Ok(()),
        // The log has no room for what would have to wait: it says which disks to bring back.
        Err(SpaceError::Refused(what)) if beyond && !world.last.get() && what.contains("bring back disks") => {
            world.stats.borrow_mut().refusals += 1;
            return Ok(());
        }
        // None of the disks that hold the log: then nothing is better than something old. A pool with few disks in
        // use has few copies of its log, so this takes no more disks than its spaces bear.
        Err(SpaceError::NotFound(_))
            if world.beyond
                && !world.last.get()
                && !world.journal_stays(&world.journal.borrow(), |d| world.disks[d].is_dead()) =>
        {
            world.stats.borrow_mut().refusals += 1;
            return Ok(());
        }
        other => other.map_err(|e| format!("open: {e}"))?,
    };
    *world.tried_without.borrow_mut() = None;
    *held.borrow_mut() = Some(pool.clone());
    world.opened(rt, &pool);
    let mut spaces = Vec::new();
    for s in &world.shares {
        spaces.push(s.found(pool.space_named(&s.name))?);
        if s.state.get() == Existence::Unmade {
            // The crash came before the spaces were made: nothing was promised.
            return Ok(());
        }
    }
    for (n, space) in spaces.iter().enumerate() {
        if let Some(space) = space {
            verify_all(world, rt, n, space).await?;
        }
    }
    workload(world, rt, &pool, spaces).await
}

/// Any disks, as long as the log is within reach. Where an opening was cut short nobody knows which of two logs
/// counts: then the next one has all disks that it had.
fn choose_beyond(world: &World) -> Vec<usize> {
    let mut rng = world.rng.borrow_mut();
    let mut out = Vec::new();
    let fresh = !world.last.get() && world.tried_without.borrow().is_none();
    if fresh && rng.one_in(if world.departed.get() { 2 } else { 12 }) {
        // All that hold the log. A disk that has missed nothing and is no such one knows of every departure: either a
        // disk that left holds all that was acknowledged, or the opening is refused.
        let (journal, away) = (world.journal.borrow(), world.away.borrow());
        let knows = |d: usize| !journal.contains(&d) && !away.contains(&d) && world.members_last.borrow().contains(&d);
        if (0..world.disks.len()).any(knows) {
            return journal.clone();
        }
    }
    for _ in 0..rng.below(5) {
        let i = rng.below(world.disks.len() as u64) as usize;
        let known = world.tried_without.borrow().as_ref().is_none_or(|t| t.contains(&i));
        let stays = world.journal_stays(&world.journal.borrow(), |d| d == i || out.contains(&d));
        if !world.last.get() && !out.contains(&i) && known && stays {
            out.push(i);
        }
    }
    out
}

fn choose_absent(world: &World) -> Vec<usize> {
    let mut rng = world.rng.borrow_mut();
    let budget = world.tolerance();
    let stays = !world.reopened.get() && rng.one_in(2);
    if world.profile == Profile::Silent || budget == 0 || stays {
        return Vec::new();
    }
    let mut counted = world.away.borrow().clone();
    let mut out = Vec::new();
    let bad = (0..world.disks.len()).filter(|&i| world.disks[i].has_bad_blocks());
    for i in world.flaky.into_iter().chain(bad) {
        if !counted.contains(&i) {
            counted.push(i);
        }
    }
    for _ in 0..budget {
        let i = rng.below(world.disks.len() as u64) as usize;
        let without = |d: usize| d == i || out.contains(&d) || world.disks[d].has_bad_blocks();
        if out.contains(&i) || !world.journal_stays(&world.journal.borrow(), without) {
            continue;
        }
        if counted.contains(&i) {
            out.push(i);
        } else if counted.len() < budget {
            counted.push(i);
            out.push(i);
        }
    }
    out
}
