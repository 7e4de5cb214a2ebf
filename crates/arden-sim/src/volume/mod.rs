//! One run of a volume on a space on simulated disks: random operations of every kind beside the naive model, faults
//! that the layout permits, a crash at any write, and openings in between, each compared and checked. The model, the
//! operations and what may be there after a crash are those of the volume's own crash test.
//!
//! A disk that is away counts as in the rest of the simulator; there is one at a time. Silent damage strikes one disk of
//! a mirror, of which then none leaves: every block of a volume has a checksum, and none may come back wrong.
//! In a quarter of the runs the disks are so small that the pool is full before its space is.

pub(crate) mod together;
pub(crate) mod under;

use std::{rc::Rc, sync::Arc, time::Duration};

use arden_block::{
    BLOCK_BYTES, BlockDevice, IoError, Rt,
    rng::Rng,
    sim::{Faults, SimDisk},
};
use arden_space::{CreateOptions, DiskState, Layout, OpenOptions, Pool, PoolConfig, Provision, SpaceError};
use arden_testkit::crash::{history::History, ops};
use arden_volume::{BlockCache, Durability, VolError, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

use crate::stats::{Failure, Stats};
use under::{OnSpace, Target};

/// No space grows beyond this.
const SPACE_BYTES_MAX: u64 = 24 << 20;

struct World {
    seed: u64,
    rng: Rng,
    layout: Layout,
    silent: bool,
    disks: Vec<SimDisk>,
    space_bytes: u64,
    options: VolumeOptions,
    durability: Durability,
    history: History,
    /// How many of a million commands take some milliseconds longer.
    stall_ppm: u32,
    /// How large the volume said that it had become.
    size_told: u64,
    stats: Stats,
    /// Disks that missed something when the last life ended, and where the journal was.
    away: Vec<usize>,
    journal: Vec<usize>,
    /// The last crash was aimed at the superblock, or follows one that was.
    aimed: bool,
    followed: bool,
    verbose: bool,
}

/// Runs one seed to its end. Panics where the volume is not what it has to be.
pub fn run_volume_seed(seed: u64, layout: Option<Layout>, verbose: bool) -> Result<Stats, Failure> {
    let mut world = World::new(seed, layout, verbose);
    let lives = world.rng.range(2, 4);
    for life in 0..=lives {
        world.life(life == 0, life == lives).map_err(|what| Failure { seed, what })?;
    }
    world.stats.count_disks(&world.disks);
    world.stats.journals += world.history.journals_read;
    world.stats.limits += world.history.limits_read;
    Ok(world.stats)
}

impl World {
    /// Disks, layout and habits of a run.
    fn new(seed: u64, layout: Option<Layout>, verbose: bool) -> World {
        let mut rng = Rng::new(seed ^ 0x0000_766f_6c75_6d65);
        let layout = layout.unwrap_or(Layout::ALL[rng.below(5) as usize]);
        let silent = layout.copies() > 1 && rng.one_in(5);
        let n = layout.disks_min() + rng.below(2) as usize;
        // With a stream of numbers of its own, so that old seeds stay what they are.
        let mut thin = Rng::new(seed ^ 0x7468_696e);
        let disk_bytes = if thin.one_in(4) { (11 + thin.below(4)) << 18 } else { 40 << 20 };
        let disks = (0..n).map(|i| SimDisk::new(&format!("d{i}"), disk_bytes, rng.next_u64())).collect();
        let options = VolumeOptions {
            cache_bytes: 64 << 10,
            blocks: rng.one_in(2).then(|| BlockCache::seeded(300_000, seed)),
            overlay_bytes_max: [20_000, 200_000, 2 << 20][rng.below(3) as usize],
            background: false,
            gather_bytes_max: [0, 200_000, 16 << 20][thin.below(3) as usize],
            commit_interval: Duration::from_secs(60),
            give_back_after: Duration::ZERO,
        };
        let durability = if rng.one_in(3) { Durability::WriteThrough } else { Durability::Plain };
        let world = World {
            seed,
            layout,
            silent,
            disks,
            space_bytes: (8 + 4 * rng.below(3)) << 20,
            options,
            durability,
            history: History::new(seed),
            stall_ppm: 500,
            size_told: 0,
            stats: Stats::default(),
            away: Vec::new(),
            journal: Vec::new(),
            aimed: false,
            followed: false,
            verbose,
            rng,
        };
        world.say(|| format!("{layout:?} on {n} disks, silent damage: {silent}"));
        world
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            eprintln!("{}", what());
        }
    }

    /// From opening to crash or orderly end. The first makes pool and volume, the last only looks.
    fn life(&mut self, first: bool, last: bool) -> Result<(), String> {
        let rt = Rt::virtual_clock(self.rng.next_u64());
        let pool = if first { self.create(&rt)? } else { self.open(&rt)? };
        let space = pool.space_named("s").map_err(|e| e.to_string())?;
        let device = OnSpace::begin(&rt, space, self.rng.below(400_000)).map_err(|e| e.to_string())?;
        if first {
            Volume::format(&device, "sim", u128::from(self.seed) << 64 | 77, FileTime(1)).map_err(|e| e.to_string())?;
        }
        let crashes = !last;
        // After a crash at the superblock the next one comes before the next checkpoint, and without the first disk.
        let follows = std::mem::take(&mut self.aimed);
        let opening = (crashes && self.rng.one_in(6)).then(|| self.rng.below(20));
        OnSpace::die_after(opening);
        let opened = Volume::open(Arc::new(device), self.options.clone());
        if OnSpace::is_dead() {
            self.say(|| "crash while opening".into());
        } else {
            OnSpace::die_after(None);
            let vol = opened.map_err(|e| format!("opening: {e}"))?;
            let size = vol.superblock().size_blocks * BLOCK_BYTES;
            if size < self.size_told {
                return Err(format!("{size} bytes after an opening, {} were told", self.size_told));
            }
            self.history.check_opened(&vol);
            if !last {
                self.work(&rt, &pool, &vol, follows)?;
            }
        }
        let crashed = OnSpace::is_dead();
        self.stats.crashes += u64::from(crashed);
        self.stats.crashed_again += u64::from(crashed && follows);
        OnSpace::end();
        self.stats.freed += OnSpace::take_freed();
        self.away = pool.out_of_date().into_iter().map(usize::from).collect();
        self.journal = pool.journal_disks().into_iter().map(usize::from).collect();
        drop(pool);
        rt.shutdown();
        self.crash(crashed);
        self.disks.iter().for_each(SimDisk::end_of_life);
        Ok(())
    }

    /// Power is lost. At times one disk cannot read some of what it was writing, until the opening after the next.
    fn crash(&mut self, crashed: bool) {
        let pick = self.rng.below(self.disks.len() as u64) as usize;
        let may = self.layout.tolerance() > 0 && !self.silent && self.away.iter().all(|a| *a == pick);
        let unreadable = may && self.journal.iter().any(|j| *j != pick) && self.rng.one_in(3);
        let before: Vec<usize> = (0..self.disks.len()).filter(|&i| self.disks[i].has_bad_blocks()).collect();
        // The host alone may stop: then its disks finish what they were asked, and lose nothing of it yet.
        let host_alone = crashed && self.rng.one_in(4);
        self.stats.host_crashes += u64::from(host_alone);
        for (i, d) in self.disks.iter().enumerate() {
            if before.contains(&i) {
                d.mend_blocks();
            }
            match unreadable && i == pick {
                _ if host_alone => d.outlive_host(),
                true => d.crash_unreadable(),
                false => d.crash(),
            }
        }
    }

    fn config(&mut self) -> PoolConfig {
        PoolConfig {
            gather_bytes_max: 256 << 10,
            journal_write_max: 32 << 10,
            tick_ms: self.rng.range(2, 40),
            grace_ms: [5, 1_000_000][self.rng.below(2) as usize],
            io_timeout_ms: self.rng.range(8, 30),
            busy_ms: 0,
        }
    }

    fn create(&mut self, rt: &Rt) -> Result<Pool, String> {
        self.set_faults(false);
        let devices: Vec<Rc<dyn BlockDevice>> = self.disks.iter().map(|d| d.attach(rt)).collect();
        let options = CreateOptions { slab_bytes: Some(256 << 10), config: self.config() };
        let (layout, bytes, rt2) = (self.layout, self.space_bytes, rt.clone());
        let made = rt.block_on(async move {
            let pool = Pool::create(&rt2, "sim", devices, Vec::new(), options).await?;
            pool.create_space("s", layout, None, 64 << 10, bytes, Provision::Thin).await?;
            Ok::<_, SpaceError>(pool)
        });
        let pool = made.unwrap_or(Err(SpaceError::Closed)).map_err(|e| format!("create: {e}"))?;
        self.set_faults(true);
        Ok(pool)
    }

    fn open(&mut self, rt: &Rt) -> Result<Pool, String> {
        self.stats.openings += 1;
        self.disks.iter().for_each(|d| {
            d.revive();
            d.resume();
        });
        let pick = self.rng.below(self.disks.len() as u64) as usize;
        let readable = (0..self.disks.len()).all(|i| i == pick || !self.disks[i].has_bad_blocks());
        let may = readable && self.away.iter().all(|a| *a == pick) && self.journal.iter().any(|j| *j != pick);
        let often = std::mem::take(&mut self.followed);
        let wanted = self.rng.one_in(if often { 2 } else { 3 });
        let absent = (self.layout.tolerance() > 0 && !self.silent && may && wanted).then_some(pick);
        self.say(|| format!("opening without {absent:?}"));
        self.stats.absent += u64::from(absent.is_some());
        if let Some(i) = absent {
            self.disks[i].kill();
        }
        let present = self.disks.iter().enumerate().filter(|(i, _)| Some(*i) != absent);
        let devices: Vec<Rc<dyn BlockDevice>> = present.map(|(_, d)| d.attach(rt)).collect();
        let (options, rt2) = (OpenOptions { config: self.config(), discard: Vec::new() }, rt.clone());
        let opened = rt.block_on(async move { Pool::open(&rt2, devices, None, options).await });
        opened.unwrap_or(Err(SpaceError::Closed)).map_err(|e| format!("opening the pool: {e}"))
    }

    fn set_faults(&self, armed: bool) {
        for (i, d) in self.disks.iter().enumerate() {
            let mut f =
                Faults { latency_max_ns: 300_000, stall_ppm: self.stall_ppm, stall_ns: 3_000_000, ..Faults::default() };
            if armed && self.silent && i == self.damaged() {
                (f.lost_ppm, f.misdirect_ppm) = (2_000, 1_000);
                f.flush_ignored_ppm = [0, 100_000, 500_000][self.seed as usize % 3];
            }
            if armed && !self.silent && self.layout.tolerance() > 0 {
                f.read_error_ppm = 2_000;
            }
            d.set_faults(f);
        }
    }

    fn damaged(&self) -> usize {
        self.seed as usize % self.disks.len()
    }

    fn work(&mut self, rt: &Rt, pool: &Pool, vol: &Arc<Volume>, follows: bool) -> Result<(), String> {
        let steps = if follows { 1 + self.rng.below(12) } else { 10 + self.rng.below(80) };
        self.followed = follows;
        // A few operations and a checkpoint, before anything is in the journal: behind its end lies what the last crash left.
        let checkpoint = (follows && self.rng.one_in(2)).then(|| self.rng.below(5));
        match self.rng.below(16) {
            _ if checkpoint.is_some() => {}
            // In the middle of a write of the superblock.
            0..=3 if !follows => self.aim(Target::Superblock, 3, 600_000),
            // In the middle of a batch, or when it is durable and the data that it speaks of is not.
            4..=7 if !follows => self.aim(Target::Batch, 6, 900_000),
            // Soon after the first checkpoint since the last crash, mostly before anything else is in the journal.
            8..=13 if follows => self.aim(Target::Superblock, 1, 3_000_000),
            _ => {}
        }
        if !self.aimed && checkpoint.is_none() && !self.rng.one_in(5) {
            OnSpace::die_after(Some(self.rng.below(steps * 2)));
        }
        let store = VolumeStore::new(vol.clone(), self.durability);
        for i in 0..steps {
            if checkpoint == Some(i) {
                match vol.checkpoint() {
                    Ok(()) => {
                        self.history.durable();
                        self.stats.checkpoints += 1;
                    }
                    // A full volume makes it when there is room again.
                    Err(VolError::Full) => {}
                    Err(e) => return Err(format!("checkpoint: {e}")),
                }
                OnSpace::die_now();
                return Ok(());
            }
            self.trouble(rt, pool)?;
            let through = self.durability == Durability::WriteThrough;
            let outcome = self.history.step(&mut self.rng, vol, &*store, through);
            self.stats.operations += 1;
            let full = outcome == ops::Outcome::Refused && pool.status().disks.iter().any(|d| d.slabs_free == 0);
            self.stats.full += u64::from(full);
            crate::client::check(pool)?;
            if !OnSpace::is_dead() && self.rng.one_in(30) {
                self.grow(rt, pool, vol)?;
            }
            if OnSpace::is_dead() {
                self.say(|| "crash".into());
                return Ok(());
            }
            if outcome == ops::Outcome::Unknown {
                return Err(format!("the volume stopped: {:?}", pool.status().events));
            }
        }
        if self.rng.one_in(2) {
            self.history.check_now(vol);
        }
        if self.rng.one_in(3) {
            let closed = vol.close();
            if OnSpace::is_dead() {
                self.say(|| "crash while closing".into());
                return Ok(());
            }
            closed.map_err(|e| format!("closing: {e}"))?;
            self.history.durable();
            let pool = pool.clone();
            let closed = rt.block_on(async move { pool.close().await });
            closed.unwrap_or(Err(SpaceError::Closed)).map_err(|e| format!("closing the pool: {e}"))?;
        }
        Ok(())
    }

    /// Power is lost at such a write, after fewer than `others` more of them and within `ns`; the next life is short.
    fn aim(&mut self, target: Target, others: u64, ns: u64) {
        OnSpace::die_at(Some((target, self.rng.below(others), self.rng.below(ns))));
        self.aimed = true;
        self.stats.aimed[if target == Target::Superblock { 3 } else { 4 }] += 1;
    }

    /// Space and volume become larger; power may be lost in the middle.
    fn grow(&mut self, rt: &Rt, pool: &Pool, vol: &Arc<Volume>) -> Result<(), String> {
        let space = pool.space_named("s").map_err(|e| e.to_string())?;
        let bytes = space.size_bytes() + (self.rng.range(1, 512) << 12);
        if bytes > SPACE_BYTES_MAX {
            return Ok(());
        }
        self.say(|| format!("grows to {bytes} bytes"));
        let grown = async move { space.grow(bytes).await };
        if self.rng.one_in(6) {
            rt.spawn(async move { drop(grown.await) });
            rt.run_until_ns(rt.now_ns() + self.rng.below(3_000_000));
            OnSpace::die_now();
            return Ok(());
        }
        rt.block_on(grown).unwrap_or(Err(SpaceError::Closed)).map_err(|e| format!("growing the space: {e}"))?;
        match vol.grow() {
            _ if OnSpace::is_dead() => Ok(()),
            Ok(size) => {
                if size > self.size_told {
                    self.stats.grown += 1;
                }
                self.size_told = size.max(self.size_told);
                Ok(())
            }
            // A pool without slabs for the new end.
            Err(VolError::Io(IoError::NoSpace) | VolError::Full) => Ok(()),
            Err(e) => Err(format!("growing: {e}")),
        }
    }

    /// A disk dies, loses its cache, fails its next flush, or leaves a command stuck.
    fn hurt(&mut self, rt: &Rt, pool: &Pool, what: u64, pick: usize) -> Result<(), String> {
        self.say(|| format!("{pick} is hurt, {what}"));
        match what {
            6 => self.disks[pick].stick_next(self.rng.range(20_000_000, 400_000_000)),
            7 => {
                self.disks[pick].lose_cache();
                self.stats.resets += 1;
                let pool = pool.clone();
                let told = rt.block_on(async move { pool.report_failure(pick as u16).await });
                return told.unwrap_or(Err(SpaceError::Closed)).map_err(|e| format!("report: {e}"));
            }
            8 => self.disks[pick].fail_next_flush(),
            _ => self.disks[pick].kill(),
        }
        Ok(())
    }

    /// Time passes; disks die, return and rot, and the pool is repaired, within what is permitted.
    fn trouble(&mut self, rt: &Rt, pool: &Pool) -> Result<(), String> {
        let pick = self.rng.below(self.disks.len() as u64) as usize;
        let what = self.rng.below(24);
        if what >= 20 {
            rt.run_until_ns(rt.now_ns() + self.rng.below(20_000_000));
        }
        if self.silent {
            if what == 4 {
                // Nobody is told: as with writes that are lost one by one.
                self.disks[self.damaged()].lose_cache();
                self.stats.unnoticed += 1;
            } else if what < 4 {
                let disk = &self.disks[self.damaged()];
                disk.rot(self.rng.below(disk.info().size_bytes / 512) * 512);
                self.stats.heals += 1;
            }
            return Ok(());
        }
        if self.layout.tolerance() == 0 {
            return Ok(());
        }
        let missing =
            |i: usize| pool.status().disks.iter().any(|d| usize::from(d.index) == i && d.state == DiskState::Missing);
        let out = |d: &SimDisk| d.is_dead() || d.is_failing() || d.has_bad_blocks();
        let dead = (0..self.disks.len()).find(|&i| out(&self.disks[i]) || missing(i));
        match (what, dead) {
            (0 | 1 | 6..=9, None)
                if pool.out_of_date().is_empty() && pool.journal_disks().iter().any(|j| usize::from(*j) != pick) =>
            {
                self.stats.kills += 1;
                self.hurt(rt, pool, what, pick)?;
            }
            (2..=4, Some(i)) => {
                self.disks[i].revive();
                self.disks[i].mend_blocks();
                let (noticed, pool, disk) = (missing(i), pool.clone(), self.disks[i].attach(rt));
                self.say(|| format!("return {i}"));
                let returned = rt.block_on(async move {
                    if !noticed {
                        pool.report_failure(i as u16).await?;
                    }
                    match pool.return_disk(disk).await {
                        Ok(_) | Err(SpaceError::NotFound(_) | SpaceError::Refused(_)) => Ok(()),
                        Err(e) => Err(e),
                    }
                });
                returned.unwrap_or(Err(SpaceError::Closed)).map_err(|e| format!("return of disk {i}: {e}"))?;
                self.stats.returns += 1;
            }
            (5, _) => {
                let pool = pool.clone();
                let repaired = rt.block_on(async move { pool.repair().await.map(|_| ()) });
                repaired.unwrap_or(Err(SpaceError::Closed)).map_err(|e| format!("repair: {e}"))?;
            }
            _ => {}
        }
        Ok(())
    }
}
