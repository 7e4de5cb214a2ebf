//! One run: a pool on simulated disks, clients, faults, crashes, and openings in between.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::rng::Rng;
use arden_block::sim::{Faults, SimDisk};
use arden_block::{BlockDevice, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, SpaceError};

use crate::client::{verify_all, workload};
use crate::stats::{Failure, Stats};
use crate::world::{Aim, Existence, Profile, SpaceModel, World};

/// How often it is looked whether a crash that is aimed at something is due.
const STEP_NS: u64 = 100_000;
/// How much later power is lost at the latest where that waits for a departure.
const NOTICE_NS: u64 = 60_000_000;
const LIMIT_NS: u64 = 3_600_000_000_000;

fn config(world: &World) -> PoolConfig {
    let rng = &mut *world.rng.borrow_mut();
    // Where clients count as active for a while, repair takes a part of the time only.
    world.busy_ms.set(if world.changing && rng.one_in(2) { rng.range(1, 4) } else { 0 });
    PoolConfig {
        gather_bytes_max: [64 << 10, 256 << 10][rng.below(2) as usize] << if world.filling { 4 } else { 0 },
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
    let model = SpaceModel::draw(&mut rng, "s", layout, n);
    let flaky = (layout.tolerance() > 0 && !silent && rng.one_in(4)).then(|| rng.below(n as u64) as usize);
    let mut silent_ppm = || if silent && rng.one_in(2) { 500 << rng.below(5) } else { 0 };
    let (lost_ppm, astray_ppm) = (silent_ppm(), silent_ppm());
    let ignored_ppm = if silent && rng.one_in(3) { 300_000 } else { 0 };
    let world = World {
        profile,
        silent_crashes: silent && seed % 4 > 0,
        two_liars: silent && layout.tolerance() > 1 && seed % 3 == 0,
        flaky,
        lost_ppm,
        astray_ppm,
        ignored_ppm,
        verbose,
        ..World::new(seed, rng, disks, vec![model])
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
        let model = SpaceModel::draw(rng, &format!("s{i}"), layout, n);
        SpaceModel { provision: if rng.one_in(3) { Provision::Fixed } else { Provision::Thin }, ..model }
    };
    let models: Vec<SpaceModel> = (0..count).map(|i| draw(i, &mut rng)).collect();
    let bears = models.iter().all(|s| s.layout.tolerance() > 0);
    let beyond = rng.one_in(2);
    let flaky = (bears && !beyond && rng.one_in(4)).then(|| rng.below(n as u64) as usize);
    let world = World {
        spares_from: n,
        others_from: n + spares,
        changing: true,
        beyond,
        filling: beyond && seed % 4 == 1,
        flaky,
        verbose,
        ..World::new(seed, rng, disks, models)
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
        for s in &world.models {
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
    // Clients have to be at work when a disk leaves, or when they fill the log.
    let crash_at = if matches!(world.aim.get(), Aim::Notice | Aim::HalfLog) { crash_at + NOTICE_NS } else { crash_at };
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
    // The host alone may stop: then its disks finish what they were asked, and lose nothing of it yet.
    let host_alone = crash && world.rng.borrow_mut().one_in(4);
    let unreadable = if crash && !host_alone { choose_unreadable(world) } else { None };
    for (i, d) in world.disks.iter().enumerate() {
        match unreadable {
            _ if host_alone => d.outlive_host(),
            Some(bad) if bad == i => d.crash_unreadable(),
            _ => d.crash(),
        }
    }
    world.disks.iter().for_each(SimDisk::end_of_life);
    world.models.iter().for_each(|s| s.oracle.borrow_mut().crash());
    world.leaving.set(false);
    world.reshaping.set(false);
    world.reading.set(false);
    world.models.iter().for_each(|s| s.users.set(0));
    let aimed = |aim: Aim| crash && world.aim.get() == aim && world.crash_ns.get() < u64::MAX;
    world.departed.set(aimed(Aim::Departure) || aimed(Aim::Notice));
    world.ended_at_answer.set(aimed(Aim::Notice) && world.at_answer.get());
    world.reopened.set(aimed(Aim::Opened));
    world.half_full.set(aimed(Aim::HalfLog));
    if crash {
        let silent = world.profile == Profile::Silent;
        let mut stats = world.stats.borrow_mut();
        stats.crashes += 1;
        stats.host_crashes += u64::from(host_alone);
        stats.silent_crashes += u64::from(silent);
        stats.parity_crashes += u64::from(silent && world.models[0].layout.parity() > 0);
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
    world.stats.borrow_mut().liars += u64::from(world.two_liars && armed);
    for (i, d) in world.disks.iter().enumerate() {
        let mut f = Faults { latency_max_ns: 300_000, stall_ppm, stall_ns, ..Faults::default() };
        if world.profile == Profile::Silent && armed && world.is_liar(i) {
            (f.lost_ppm, f.misdirect_ppm) = (world.lost_ppm, world.astray_ppm);
            f.flush_ignored_ppm = world.ignored_ppm;
        }
        if world.profile == Profile::Loud && world.tolerance() > 0 {
            f.read_error_ppm = 2_000;
            // The pool tries three times. A place that stays unreadable while another disk is away
            // would be more than the layout bears.
            f.read_errors_at_a_place = 2;
        }
        if armed && world.flaky == Some(i) {
            f.write_error_ppm = 100_000;
            f.read_error_ppm = 100_000;
            f.read_errors_at_a_place = u32::MAX;
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
    for s in &world.models {
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
    count_absent(world, leave_out);
    let beyond = world.beyond && world.away.borrow().len() > world.tolerance();
    let pool = match Pool::open(rt, devices, None, options).await {
        // The crash came before the pool was made, or while it was made once more: nothing was promised.
        Err(SpaceError::NotFound(_) | SpaceError::Refused(_)) if !world.founded.get() => return Ok(()),
        // The log has no room for what would have to wait: it says which disks to bring back.
        Err(SpaceError::Refused(what)) if beyond && !world.last.get() && what.contains("bring back disks") => {
            world.say(rt, || what);
            world.stats.borrow_mut().refusals += 1;
            world.stats.borrow_mut().logs_too_full += 1;
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
    for s in &world.models {
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

/// Until an opening is over the absent ones count as away, whatever a crash leaves of it.
fn count_absent(world: &World, absent: Vec<usize>) {
    let (journal, mut stats) = (world.journal.borrow(), world.stats.borrow_mut());
    stats.absent += u64::from(!absent.is_empty());
    stats.logs_absent += u64::from(!journal.is_empty() && journal.iter().all(|d| absent.contains(d)));
    let mut away = world.away.borrow_mut();
    for i in absent {
        if !away.contains(&i) {
            away.push(i);
        }
    }
}

/// Any disks, as long as the log is within reach. Where an opening was cut short nobody knows which of two logs
/// counts: then the next one has all disks that it had.
fn choose_beyond(world: &World) -> Vec<usize> {
    let mut rng = world.rng.borrow_mut();
    let mut out = Vec::new();
    let fresh = !world.last.get() && world.tried_without.borrow().is_none();
    let often = if world.departed.get() { 2 } else { 12 };
    if fresh && (world.ended_at_answer.get() || rng.one_in(often)) {
        // All that hold the log. A disk that has missed nothing and is no such one knows of every departure: either a
        // disk that left holds all that was acknowledged, or the opening is refused.
        let (journal, away) = (world.journal.borrow(), world.away.borrow());
        let knows = |d: usize| !journal.contains(&d) && !away.contains(&d) && world.members_last.borrow().contains(&d);
        if (0..world.disks.len()).any(knows) {
            return journal.clone();
        }
    }
    if fresh && world.half_full.get() {
        // All but one that holds the log, and maybe one more: what was written last waits for disks.
        let journal = world.journal.borrow();
        let mut stays = vec![journal[rng.below(journal.len() as u64) as usize]];
        if rng.one_in(4) {
            stays.push(rng.below(world.disks.len() as u64) as usize);
        }
        return (0..world.disks.len()).filter(|d| !stays.contains(d)).collect();
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
