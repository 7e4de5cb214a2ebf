//! What a run on a pool knows: disks and what is done to them, where a crash is aimed, and of each space what its users may
//! find. Clients, trouble and the lives of the process work on it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use arden_block::rng::Rng;
use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, Rt};
use arden_space::{DiskState, Layout, Pool, Provision, Space, SpaceError};

use crate::oracle::Oracle;
use crate::stats::Stats;

/// What goes wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Crashes, disks that die, return, and fail operations.
    Loud,
    /// One disk damages data without saying so.
    Silent,
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
    /// When more than half of the log is in use: clients write so much at once, to one space.
    HalfLog,
}

/// Where the labels of a disk lie, and the first block of the log of a disk of a few MiB.
const LABELS: std::ops::Range<u64> = 0..128 << 10;
const LOG_START: std::ops::Range<u64> = 256 << 10..260 << 10;
/// Where a batch begins after which a log of 1 MiB that was empty is more than half full: beyond a half it is emptied first.
const LOG_MIDDLE: std::ops::Range<u64> = 656 << 10..772 << 10;

/// One space of the pool, and what its users may read back.
pub(crate) struct SpaceModel {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) columns: usize,
    pub(crate) interleave: u64,
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

impl SpaceModel {
    pub(crate) fn draw(rng: &mut Rng, name: &str, layout: Layout, disks: usize) -> SpaceModel {
        let columns = match layout {
            Layout::Parity => 3 + rng.below(disks as u64 - 2) as usize,
            Layout::DualParity => 4 + rng.below(disks as u64 - 3) as usize,
            l => 1 + rng.below((disks / l.copies()) as u64) as usize,
        };
        let interleave = 4096 << rng.below(3);
        let blocks = rng.range(64, 300);
        SpaceModel {
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
    pub(crate) fn found(&self, found: Result<Space, SpaceError>) -> Result<Option<Space>, String> {
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
    pub(crate) seed: u64,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) profile: Profile,
    /// Those that make the pool, then its spares, then those that may join.
    pub(crate) disks: Vec<SimDisk>,
    pub(crate) spares_from: usize,
    pub(crate) others_from: usize,
    /// Disks join and leave for good.
    pub(crate) changing: bool,
    /// Openings may have to do without more disks than some spaces bear.
    pub(crate) beyond: bool,
    /// The pool's creation was acknowledged.
    pub(crate) founded: Cell<bool>,
    /// The last life ended soon after a departure.
    pub(crate) departed: Cell<bool>,
    /// The last life ended soon after its opening: the next one is often without a disk.
    pub(crate) reopened: Cell<bool>,
    /// In some lives of this run clients write as much at once as fills the log; a pool that keeps so much in memory.
    pub(crate) filling: bool,
    /// The last life ended at the turn of the log.
    pub(crate) turned: Cell<bool>,
    /// The last life ended when the log was half full.
    pub(crate) half_full: Cell<bool>,
    /// What a crash that waits for a change of the pool saw of it last: disks that are out of date, groups with slabs.
    pub(crate) seen: Cell<[usize; 2]>,
    /// The clients of this life pause at times; and whereabouts they work now.
    pub(crate) pausing: Cell<bool>,
    pub(crate) hot: Cell<Option<u64>>,
    /// In this life some reads are those of other threads, and between their steps so much time may pass; 0: none are.
    pub(crate) direct_pause_ns: Cell<u64>,
    /// Somebody reads all the time.
    pub(crate) reading: Cell<bool>,
    /// Power is lost also in this silent run.
    pub(crate) silent_crashes: bool,
    /// The last life, with all disks: whatever waited for them is there.
    pub(crate) last: Cell<bool>,
    pub(crate) leaving: Cell<bool>,
    /// A space grows, is deleted or made once more.
    pub(crate) reshaping: Cell<bool>,
    /// Clients that were active so lately make repair stand back.
    pub(crate) busy_ms: Cell<u64>,
    pub(crate) models: Vec<SpaceModel>,
    pub(crate) problem: RefCell<Option<String>>,
    pub(crate) stats: RefCell<Stats>,
    /// Disks (by place) that are dead or left out now.
    pub(crate) away: RefCell<Vec<usize>>,
    /// Those that an opening was without which was cut short.
    pub(crate) tried_without: RefCell<Option<Vec<usize>>>,
    /// Where the journal was when the last life ended, and which disks belonged to the pool.
    pub(crate) journal: RefCell<Vec<usize>>,
    pub(crate) members_last: RefCell<Vec<usize>>,
    /// The members that took part when the pool began to serve.
    pub(crate) members_first: RefCell<Vec<usize>>,
    pub(crate) flaky: Option<usize>,
    /// What the one disk that damages silently does to writes, in parts of a million.
    pub(crate) lost_ppm: u32,
    pub(crate) astray_ppm: u32,
    pub(crate) ignored_ppm: u32,
    pub(crate) two_liars: bool,
    /// When power is lost, and what that is aimed at.
    pub(crate) crash_ns: Cell<u64>,
    pub(crate) aim: Cell<Aim>,
    /// A disk was noticed to have left, and the next write that is acknowledged as durable is where power is lost.
    pub(crate) at_answer: Cell<bool>,
    /// The last life ended at such a write.
    pub(crate) ended_at_answer: Cell<bool>,
    pub(crate) verbose: bool,
}

impl World {
    /// All disks make the pool, no disk is flaky or lies, and power is lost at no moment that is chosen.
    pub(crate) fn new(seed: u64, rng: Rng, disks: Vec<SimDisk>, models: Vec<SpaceModel>) -> World {
        World {
            seed,
            rng: RefCell::new(rng),
            profile: Profile::Loud,
            spares_from: disks.len(),
            others_from: disks.len(),
            disks,
            changing: false,
            beyond: false,
            founded: Cell::default(),
            departed: Cell::default(),
            reopened: Cell::default(),
            filling: false,
            turned: Cell::default(),
            half_full: Cell::default(),
            seen: Cell::default(),
            pausing: Cell::default(),
            hot: Cell::default(),
            direct_pause_ns: Cell::default(),
            reading: Cell::default(),
            silent_crashes: false,
            last: Cell::default(),
            leaving: Cell::default(),
            reshaping: Cell::default(),
            busy_ms: Cell::default(),
            models,
            problem: RefCell::default(),
            stats: RefCell::default(),
            away: RefCell::default(),
            tried_without: RefCell::default(),
            journal: RefCell::default(),
            members_last: RefCell::default(),
            members_first: RefCell::default(),
            flaky: None,
            lost_ppm: 0,
            astray_ppm: 0,
            ignored_ppm: 0,
            two_liars: false,
            crash_ns: Cell::new(u64::MAX),
            aim: Cell::new(Aim::Anywhere),
            at_answer: Cell::default(),
            ended_at_answer: Cell::default(),
            verbose: false,
        }
    }

    pub(crate) fn fail(&self, what: String) {
        let mut p = self.problem.borrow_mut();
        if p.is_none() {
            *p = Some(what);
        }
    }

    /// How many disks may be away, for the space that bears the least.
    pub(crate) fn tolerance(&self) -> usize {
        self.models.iter().map(|s| s.layout.tolerance()).min().unwrap_or(0)
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

    /// Whether this disk damages silently, in a run where one does: two of them where that is all that happens and the layout
    /// bears two.
    pub(crate) fn is_liar(&self, disk: usize) -> bool {
        let first = self.seed as usize % self.disks.len();
        disk == first || self.two_liars && disk == (first + 1) % self.disks.len()
    }

    /// The one disk that may be away beside one that damages silently. Always the same: what repair copies to it may come
    /// from the other, and the rest have to stay.
    pub(crate) fn leaver(&self) -> Option<usize> {
        let second = (self.seed as usize + 1) % self.disks.len();
        (self.profile == Profile::Silent && self.tolerance() > 1 && !self.two_liars).then_some(second)
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
    pub(crate) fn look_at_traps(&self, rt: &Rt) {
        let sprung = self.disks.iter().fold(false, |any, d| d.take_sprung() | any);
        if !sprung || self.crash_ns.get() < u64::MAX {
            return;
        }
        match self.aim.get() {
            Aim::Label(n) if n > 0 => return self.aim.set(Aim::Label(n - 1)),
            Aim::Label(_) => self.stats.borrow_mut().aimed[1] += 1,
            Aim::LogTurn => {
                self.stats.borrow_mut().aimed[2] += 1;
                self.stats.borrow_mut().turned_again += u64::from(self.turned.get());
            }
            Aim::HalfLog => self.stats.borrow_mut().aimed[8] += 1,
            Aim::Anywhere | Aim::Departure | Aim::Notice | Aim::NewGroup | Aim::Opened => return,
        }
        self.crash_ns.set(rt.now_ns() + self.rng.borrow_mut().below(400_000));
    }

    /// A disk is noticed to have left, or a group has got slabs: power is lost before or while the map says so.
    pub(crate) fn look_at_pool(&self, rt: &Rt, pool: &Pool) {
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
        if now > before && at == 0 && !self.at_answer.get() && self.rng.borrow_mut().one_in(2) {
            self.at_answer.set(true);
        } else if now > before && self.crash_ns.get() == u64::MAX {
            self.crash_ns.set(rt.now_ns() + self.rng.borrow_mut().below(900_000));
            self.stats.borrow_mut().aimed[5 + at] += 1;
        }
    }

    /// A write was acknowledged as durable. What depends on a departure must not be, before a map says that the disk has left.
    pub(crate) fn answered(&self, rt: &Rt) {
        if self.at_answer.get() && self.crash_ns.get() == u64::MAX {
            self.crash_ns.set(rt.now_ns() + self.rng.borrow_mut().below(50_000));
            self.stats.borrow_mut().aimed_at_answers += 1;
        }
    }

    /// The pool is open, and what lies in it is about to be read.
    pub(crate) fn opened(&self, rt: &Rt, pool: &Pool) {
        self.seen.set([pool.out_of_date().len(), 0]);
        self.note_members(pool);
        if self.aim.get() == Aim::Opened {
            self.crash_ns.set(rt.now_ns() + self.rng.borrow_mut().below(8_000_000));
            self.stats.borrow_mut().aimed[7] += 1;
        }
    }

    pub(crate) fn note_members(&self, pool: &Pool) {
        let here = self.members(pool).into_iter().filter(|(_, m)| m.1 != DiskState::Missing);
        *self.members_first.borrow_mut() = here.map(|(place, _)| place).collect();
    }

    pub(crate) fn draw_aim(&self, crash: bool, create: bool) {
        let mut rng = self.rng.borrow_mut();
        // Twice in a row: what the first crash left of the log is what the second one finds.
        self.turned.set(self.aim.get() == Aim::LogTurn && self.crash_ns.get() < u64::MAX);
        let turned = self.aim.get() == Aim::LogTurn && rng.one_in(2);
        let aim = match rng.below(12) {
            _ if !crash => Aim::Anywhere,
            _ if self.half_full.get() => Aim::LogTurn,
            _ if self.filling && rng.one_in(2) => Aim::HalfLog,
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
            Aim::HalfLog => Some(LOG_MIDDLE),
            _ => None,
        };
        self.disks.iter().for_each(|d| d.set_trap(trap.clone()));
        self.aim.set(aim);
        self.crash_ns.set(u64::MAX);
        self.at_answer.set(false);
        self.seen.set([usize::MAX; 2]);
        self.pausing.set(rng.one_in(2));
        // Of the life's own course: the draws of the others stay as they are.
        let draw = Rng::new(self.seed ^ rng.clone().next_u64()).below(8);
        self.direct_pause_ns.set([0, 0, 400_000, 400_000, 3_000_000, 3_000_000, 12_000_000, 12_000_000][draw as usize]);
    }

    /// More disks are away than the space bears: it may refuse to do anything until they are back.
    pub(crate) fn suffers(&self, pool: &Pool, model: usize) -> bool {
        self.beyond && !self.last.get() && self.away_now(pool).len() > self.models[model].layout.tolerance()
    }

    /// What waits for disks of another space may fill the log.
    pub(crate) fn log_may_be_full(&self, pool: &Pool) -> bool {
        self.filling && (0..self.models.len()).any(|model| self.suffers(pool, model))
    }

    /// What a space answers that had too few disks before or has now: nothing. Anything else is the run's end.
    pub(crate) fn excuse<T>(
        &self,
        pool: &Pool,
        model: usize,
        suffered: bool,
        result: Result<T, SpaceError>,
    ) -> Result<Option<T>, SpaceError> {
        match result {
            // It is being deleted.
            Err(_) if !self.models[model].is_there() => Ok(None),
            Err(SpaceError::Offline) if suffered || self.suffers(pool, model) || self.log_may_be_full(pool) => {
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
