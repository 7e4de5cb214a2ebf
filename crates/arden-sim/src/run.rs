//! One run: a pool on simulated disks, clients, faults, crashes, and openings in between.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::rng::Rng;
use arden_block::sim::{Faults, SimDisk};
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, Rt};
use arden_space::{CreateOptions, DiskState, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, SpaceError};

use crate::oracle::{Oracle, fill};

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
}

#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
}

struct World {
    seed: u64,
    rng: RefCell<Rng>,
    layout: Layout,
    profile: Profile,
    disks: Vec<SimDisk>,
    oracle: RefCell<Oracle>,
    blocks: u64,
    stripe_blocks: u64,
    problem: RefCell<Option<String>>,
    stats: RefCell<Stats>,
    /// Disks (by place) that are dead or left out now.
    away: RefCell<Vec<usize>>,
    /// Where the journal was when the last life ended.
    journal: RefCell<Vec<usize>>,
    flaky: Option<usize>,
    /// What the one disk that damages silently does to writes, in parts of a million.
    lost_ppm: u32,
    astray_ppm: u32,
    verbose: bool,
}

const LIMIT_NS: u64 = 3_600_000_000_000;

impl World {
    fn fail(&self, what: String) {
        let mut p = self.problem.borrow_mut();
        if p.is_none() {
            *p = Some(what);
        }
    }

    /// The disk that damages silently, in runs where one does.
    fn damaged(&self) -> usize {
        self.seed as usize % self.disks.len()
    }

    /// Disks that count as away now, by what the pool knows and by what we did to them.
    fn away_now(&self, pool: &Pool) -> Vec<usize> {
        let mut away: Vec<usize> = pool.out_of_date().into_iter().map(usize::from).collect();
        away.extend((0..self.disks.len()).filter(|&i| self.disks[i].is_dead() || self.disks[i].is_hung()));
        away.extend(self.flaky);
        away.sort_unstable();
        away.dedup();
        away
    }

    /// With these disks out of reach, is the journal still on one that can be relied on?
    fn journal_stays(&self, journal: &[usize], out: impl Fn(usize) -> bool) -> bool {
        journal.iter().any(|&d| !out(d) && self.flaky != Some(d))
    }

    fn failed(&self) -> bool {
        self.problem.borrow().is_some()
    }

    fn say(&self, rt: &Rt, what: impl FnOnce() -> String) {
        if self.verbose {
            eprintln!("{:>12} {}", rt.now_ns() / 1000, what());
        }
    }
}

fn config(rng: &mut Rng) -> PoolConfig {
    PoolConfig {
        gather_bytes_max: [64 << 10, 256 << 10][rng.below(2) as usize],
        journal_write_max: 32 << 10,
        tick_ms: rng.range(2, 40),
        grace_ms: [5, 1_000_000][rng.below(2) as usize],
        io_timeout_ms: rng.range(8, 30),
        busy_ms: 0,
    }
}

/// Runs one seed to its end.
pub fn run_seed(seed: u64, layout: Option<Layout>, verbose: bool) -> Result<Stats, Failure> {
    let mut rng = Rng::new(seed);
    let layout = layout.unwrap_or(Layout::ALL[rng.below(5) as usize]);
    let silent = layout.tolerance() > 0 && rng.one_in(6);
    let profile = if silent { Profile::Silent } else { Profile::Loud };
    let n = layout.disks_min() + rng.below(3) as usize;
    let disks: Vec<SimDisk> =
        (0..n).map(|i| SimDisk::new(&format!("d{i}"), (4 << 20) + rng.below(3) * (1 << 20), rng.next_u64())).collect();
    let columns = match layout {
        Layout::Parity => 3 + rng.below(n as u64 - 2) as usize,
        Layout::DualParity => 4 + rng.below(n as u64 - 3) as usize,
        l => 1 + rng.below((n / l.copies()) as u64) as usize,
    };
    let interleave = 4096 << rng.below(3);
    let data = (columns - layout.parity()) as u64;
    let blocks = rng.range(64, 300);
    let flaky = (layout.tolerance() > 0 && !silent && rng.one_in(4)).then(|| rng.below(n as u64) as usize);
    let mut silent_ppm = || if silent && rng.one_in(2) { 500 << rng.below(5) } else { 0 };
    let (lost_ppm, astray_ppm) = (silent_ppm(), silent_ppm());
    let world = Rc::new(World {
        seed,
        layout,
        profile,
        disks,
        oracle: RefCell::new(Oracle::new(blocks)),
        blocks,
        stripe_blocks: interleave * data / BLOCK_BYTES,
        problem: RefCell::default(),
        stats: RefCell::default(),
        away: RefCell::default(),
        journal: RefCell::default(),
        flaky,
        lost_ppm,
        astray_ppm,
        verbose,
        rng: RefCell::new(rng),
    });
    if verbose {
        eprintln!(
            "seed {seed}: {layout:?}, {n} disks, {columns} columns, interleave {interleave}, {blocks} blocks, {profile:?}, flaky {flaky:?}"
        );
    }
    let rounds = world.rng.borrow_mut().range(2, 5);
    session(&world, Some((columns, interleave)))?;
    for _ in 1..rounds {
        session(&world, None)?;
    }
    Ok(world.stats.borrow().clone())
}

/// One life of the process, from opening to crash or orderly end.
fn session(world: &Rc<World>, create: Option<(usize, u64)>) -> Result<(), Failure> {
    let fail = |what: String| Failure { seed: world.seed, what };
    let rt = Rt::virtual_clock(world.rng.borrow_mut().next_u64());
    let crash = world.rng.borrow_mut().below(3) > 0 && world.profile == Profile::Loud;
    // Anywhere: while opening, while creating, under load, or late in recovery.
    let crash_at = if create.is_some() {
        20_000_000 + world.rng.borrow_mut().below(60_000_000)
    } else {
        let mut rng = world.rng.borrow_mut();
        let latest = if rng.one_in(3) { 8_000_000 } else { 60_000_000 };
        rng.below(latest)
    };
    let done = Rc::new(Cell::new(false));
    let held: Rc<RefCell<Option<Pool>>> = Rc::default();
    let (w, d, h, r) = (world.clone(), done.clone(), held.clone(), rt.clone());
    set_faults(world, create.is_none());
    rt.spawn(async move {
        let result = match create {
            Some(shape) => live_new(&w, &r, shape, &h).await,
            None => live_again(&w, &r, &h).await,
        };
        if let Err(e) = result {
            w.fail(e);
        }
        d.set(true);
    });
    if crash {
        rt.run_until_ns(crash_at);
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
    world.disks.iter().for_each(SimDisk::crash);
    world.oracle.borrow_mut().crash();
    if crash {
        world.stats.borrow_mut().crashes += 1;
    }
    match world.problem.borrow_mut().take() {
        Some(what) => Err(fail(format!("{what} [{events}]"))),
        None => Ok(()),
    }
}

fn set_faults(world: &World, armed: bool) {
    for (i, d) in world.disks.iter().enumerate() {
        let mut f = Faults { latency_max_ns: 300_000, stall_ppm: 500, stall_ns: 3_000_000, ..Faults::default() };
        if world.profile == Profile::Silent && armed && i == world.damaged() {
            (f.lost_ppm, f.misdirect_ppm) = (world.lost_ppm, world.astray_ppm);
        }
        if world.profile == Profile::Loud && world.layout.tolerance() > 0 {
            f.read_error_ppm = 2_000;
        }
        if armed && world.flaky == Some(i) {
            f.write_error_ppm = 100_000;
            f.read_error_ppm = 100_000;
        }
        d.set_faults(f);
    }
}

/// Which disks the next opening has to count as away: those that missed something.
fn remember_away(world: &World, pool: Option<&Pool>) {
    let Some(pool) = pool else { return };
    let mut away: Vec<usize> = pool.out_of_date().into_iter().map(usize::from).collect();
    away.retain(|&d| d < world.disks.len());
    *world.journal.borrow_mut() = pool.journal_disks().into_iter().map(usize::from).collect();
    *world.away.borrow_mut() = away;
}

async fn live_new(
    world: &Rc<World>,
    rt: &Rt,
    shape: (usize, u64),
    held: &Rc<RefCell<Option<Pool>>>,
) -> Result<(), String> {
    let devices: Vec<Rc<dyn BlockDevice>> = world.disks.iter().map(|d| d.attach(rt)).collect();
    let cfg = config(&mut world.rng.borrow_mut());
    let options = CreateOptions { slab_bytes: Some(128 << 10), config: cfg };
    let pool = Pool::create(rt, "sim", devices, Vec::new(), options).await.map_err(|e| format!("create: {e}"))?;
    let size = world.blocks * BLOCK_BYTES;
    let space = pool
        .create_space("s", world.layout, Some(shape.0), shape.1, size, Provision::Thin)
        .await
        .map_err(|e| format!("create space: {e}"))?;
    *held.borrow_mut() = Some(pool);
    workload(world, rt, space).await
}

async fn live_again(world: &Rc<World>, rt: &Rt, held: &Rc<RefCell<Option<Pool>>>) -> Result<(), String> {
    world.stats.borrow_mut().openings += 1;
    world.disks.iter().for_each(SimDisk::revive);
    world.disks.iter().for_each(SimDisk::resume);
    let leave_out = choose_absent(world);
    world.say(rt, || format!("opening without {leave_out:?}"));
    let devices: Vec<Rc<dyn BlockDevice>> =
        world.disks.iter().enumerate().filter(|(i, _)| !leave_out.contains(i)).map(|(_, d)| d.attach(rt)).collect();
    for i in &leave_out {
        world.disks[*i].kill();
    }
    let cfg = config(&mut world.rng.borrow_mut());
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
    let pool = Pool::open(rt, devices, None, options).await.map_err(|e| format!("open: {e}"))?;
    *held.borrow_mut() = Some(pool.clone());
    let space = match pool.space_named("s") {
        Ok(s) => s,
        // The crash came before the space was made: nothing was promised.
        Err(_) => return Ok(()),
    };
    verify_all(world, rt, &space).await?;
    workload(world, rt, space).await
}

fn choose_absent(world: &World) -> Vec<usize> {
    let mut rng = world.rng.borrow_mut();
    let budget = world.layout.tolerance();
    if world.profile == Profile::Silent || budget == 0 || rng.one_in(2) {
        return Vec::new();
    }
    let mut counted = world.away.borrow().clone();
    let mut out = Vec::new();
    if let Some(f) = world.flaky.filter(|f| !counted.contains(f)) {
        counted.push(f);
    }
    for _ in 0..budget {
        let i = rng.below(world.disks.len() as u64) as usize;
        if out.contains(&i) || !world.journal_stays(&world.journal.borrow(), |d| d == i || out.contains(&d)) {
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

async fn verify_all(world: &Rc<World>, rt: &Rt, space: &Space) -> Result<(), String> {
    let mut at = 0;
    while at < world.blocks {
        let n = 32.min(world.blocks - at);
        let data = read(world, space, at, n).await.map_err(|e| format!("after opening, block {at}: {e}"))?;
        world.oracle.borrow_mut().check_after_open(at, &data).map_err(|e| format!("after opening: {e}"))?;
        at += n;
    }
    world.say(rt, || "everything read back".into());
    Ok(())
}

async fn read(world: &Rc<World>, space: &Space, first: u64, n: u64) -> Result<Buf, SpaceError> {
    let (offset, len) = (first * BLOCK_BYTES, (n * BLOCK_BYTES) as usize);
    if world.profile == Profile::Loud {
        return space.read(offset, len).await;
    }
    let w = world.clone();
    let verify = Rc::new(move |at: u64, data: &[u8]| w.oracle.borrow().accepts(at / BLOCK_BYTES, data));
    space.read_verified(offset, len, verify).await
}

async fn workload(world: &Rc<World>, rt: &Rt, space: Space) -> Result<(), String> {
    let clients = world.rng.borrow_mut().range(1, 4);
    let running = Rc::new(Cell::new(clients));
    for _ in 0..clients {
        let (w, r, s, n) = (world.clone(), rt.clone(), space.clone(), running.clone());
        let steps = world.rng.borrow_mut().range(10, 60);
        rt.spawn(async move {
            for _ in 0..steps {
                if w.failed() {
                    break;
                }
                if let Err(e) = step(&w, &r, &s).await {
                    w.fail(e);
                }
            }
            n.set(n.get() - 1);
        });
    }
    while running.get() > 0 {
        rt.sleep_ns(1_000_000).await;
        trouble(world, rt, &space).await?;
    }
    // At rest everything is as the oracle says, and stays so through a second look.
    let mut at = 0;
    while at < world.blocks {
        let n = 32.min(world.blocks - at);
        let mark = world.oracle.borrow().read_begin(at, n);
        let data = read(world, &space, at, n).await.map_err(|e| format!("at rest, block {at}: {e}"))?;
        world.oracle.borrow_mut().check(at, &data, &mark).map_err(|e| format!("at rest: {e}"))?;
        at += n;
    }
    if world.profile == Profile::Silent {
        space.pool().close().await.map_err(|e| format!("close: {e}"))?;
    }
    Ok(())
}

async fn step(world: &Rc<World>, rt: &Rt, space: &Space) -> Result<(), String> {
    world.stats.borrow_mut().operations += 1;
    let (kind, first, n, pause) = {
        let mut rng = world.rng.borrow_mut();
        let n = match rng.below(8) {
            0 => world.stripe_blocks.min(world.blocks),
            1 => rng.range(1, 40.min(world.blocks)),
            _ => rng.range(1, 8.min(world.blocks)),
        };
        // Parity and silent damage: rewriting part of a stripe reads the rest of it, and who
        // reads without a checksum takes damage for data.
        let whole = world.profile == Profile::Silent && world.layout.parity() > 0;
        let n = if whole { world.stripe_blocks.min(world.blocks) } else { n };
        let mut first = rng.below(world.blocks - n + 1);
        if n == world.stripe_blocks {
            first = first / n * n;
        }
        (rng.below(20), first, n, rng.below(400_000))
    };
    if kind == 0 {
        rt.sleep_ns(pause).await;
    }
    match kind {
        0..=10 => write(world, rt, space, first, n, kind > 6).await,
        11 | 12 => {
            let mark = world.oracle.borrow().flush_begin();
            space.flush().await.map_err(|e| format!("flush: {e}"))?;
            world.oracle.borrow_mut().flush_end(mark);
            Ok(())
        }
        13 => {
            if world.oracle.borrow().busy(first, n) {
                return Ok(());
            }
            let zeros = world.oracle.borrow_mut().new_zeros();
            world.oracle.borrow_mut().write_begin(first, n, zeros);
            world.say(rt, || format!("discard {first}+{n}"));
            space.discard(first * BLOCK_BYTES, n * BLOCK_BYTES).await.map_err(|e| format!("discard: {e}"))?;
            world.oracle.borrow_mut().write_end(first, n, zeros, true, false);
            Ok(())
        }
        _ => {
            let mark = world.oracle.borrow().read_begin(first, n);
            let data = read(world, space, first, n).await.map_err(|e| format!("read {first}+{n}: {e}"))?;
            world.oracle.borrow_mut().check(first, &data, &mark)
        }
    }
}

async fn write(world: &Rc<World>, rt: &Rt, space: &Space, first: u64, n: u64, durable: bool) -> Result<(), String> {
    // Overlapping writes in flight are allowed and rare.
    if world.oracle.borrow().busy(first, n) && !world.rng.borrow_mut().one_in(5) {
        return Ok(());
    }
    let version = world.oracle.borrow_mut().new_version();
    let mut buf = Buf::new((n * BLOCK_BYTES) as usize);
    for (i, b) in buf.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        fill(first + i as u64, version, b);
    }
    world.oracle.borrow_mut().write_begin(first, n, version);
    world.say(rt, || format!("write {first}+{n} v{version} durable {durable}"));
    let result = space.write(first * BLOCK_BYTES, buf.share(), durable).await;
    world.say(rt, || format!("wrote {first}+{n} v{version} {result:?}"));
    world.oracle.borrow_mut().write_end(first, n, version, result.is_ok(), durable);
    match result {
        Ok(()) | Err(SpaceError::OutOfSpace) => Ok(()),
        Err(e) => Err(format!("write {first}+{n}: {e}")),
    }
}

/// A disk that was dead, hung or given up comes back.
async fn give_back(world: &Rc<World>, rt: &Rt, pool: &Pool, pick: usize) -> Result<(), String> {
    let is_missing =
        |i: usize| pool.status().disks.iter().any(|d| usize::from(d.index) == i && d.state == DiskState::Missing);
    let gone: Vec<usize> = (0..world.disks.len()).filter(|&i| world.disks[i].is_dead() || is_missing(i)).collect();
    let Some(&i) = gone.get(pick % gone.len().max(1)) else { return Ok(()) };
    world.disks[i].revive();
    if !is_missing(i) {
        // Nobody noticed: what its cache lost is gone. Make the pool notice.
        pool.report_failure(i as u16).await.map_err(|e| format!("report: {e}"))?;
    }
    world.say(rt, || format!("return {i}"));
    match pool.return_disk(world.disks[i].attach(rt)).await {
        Ok(_) => world.stats.borrow_mut().returns += 1,
        Err(SpaceError::NotFound(_) | SpaceError::Refused(_)) => {}
        Err(e) => return Err(format!("return of disk {i}: {e}")),
    }
    Ok(())
}

/// Disks die, return, rot, and are repaired, within what is permitted.
async fn trouble(world: &Rc<World>, rt: &Rt, space: &Space) -> Result<(), String> {
    let pool = space.pool().clone();
    let (what, pick) = {
        let mut rng = world.rng.borrow_mut();
        (rng.below(24), rng.below(world.disks.len() as u64) as usize)
    };
    if world.profile == Profile::Silent {
        if what < 4 {
            let disk = &world.disks[world.damaged()];
            let at = world.rng.borrow_mut().below(disk.info().size_bytes / 512) * 512;
            // The areas of map and journal have their own checksums and copies.
            disk.rot(at);
            world.stats.borrow_mut().heals += 1;
        }
        return Ok(());
    }
    let tolerance = world.layout.tolerance();
    if tolerance == 0 {
        return Ok(());
    }
    match what {
        0 | 1 | 8 => {
            let away = world.away_now(&pool);
            let too_many = !away.contains(&pick) && away.len() >= tolerance;
            let journal: Vec<usize> = pool.journal_disks().into_iter().map(usize::from).collect();
            let out = |d: usize| d == pick || world.disks[d].is_dead() || world.disks[d].is_hung();
            if world.disks[pick].is_dead() || too_many || !world.journal_stays(&journal, out) {
                return Ok(());
            }
            world.stats.borrow_mut().kills += 1;
            if what == 8 {
                world.say(rt, || format!("hang {pick}"));
                world.disks[pick].hang();
            } else {
                world.say(rt, || format!("kill {pick}"));
                world.disks[pick].kill();
            }
        }
        2..=4 => give_back(world, rt, &pool, pick).await?,
        9 | 10 => {
            world.say(rt, || format!("resume {pick}"));
            world.disks[pick].resume();
        }
        5 => {
            let r = pool.repair().await.map_err(|e| format!("repair: {e}"))?;
            world.say(rt, || format!("repair {r:?}"));
        }
        6 => {
            let r = pool.scrub().await.map_err(|e| format!("scrub: {e}"))?;
            if r.undecided > 0 || r.lost > 0 {
                return Err(format!("scrub: {r:?}"));
            }
        }
        7 => {
            pool.rebalance().await.map_err(|e| format!("rebalance: {e}"))?;
        }
        _ => {}
    }
    Ok(())
}
