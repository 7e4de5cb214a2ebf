//! Clients of the spaces of a run: they write, flush, discard and read, and compare what they
//! read with what the oracle allows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::{BLOCK_BYTES, Buf, Rt};
use arden_space::{DiskStatus, Pool, Space, SpaceError};

use crate::direct;
use crate::moves::strike_at_moves;
use crate::oracle::fill;
use crate::trouble::trouble;
use crate::world::{Aim, Profile, SpaceModel, World};

/// Blocks of a log of 1 MiB.
const LOG_BLOCKS: u64 = 256;

/// The spaces of a pool as its users have them: None where there is none now.
pub(crate) type Spaces = Rc<RefCell<Vec<Option<Space>>>>;

pub(crate) async fn verify_all(world: &Rc<World>, rt: &Rt, n: usize, space: &Space) -> Result<(), String> {
    let model = &world.models[n];
    if world.profile == Profile::Silent {
        return make_equal(world, rt, n, space).await;
    }
    let mut at = 0;
    while at < model.blocks() {
        let n_blocks = 32.min(model.blocks() - at);
        let suffered = world.suffers(space.pool(), n);
        let data = read(world, n, space, at, n_blocks).await;
        let data = world.excuse(space.pool(), n, suffered, data);
        if let Some(data) = data.map_err(|e| format!("after opening, block {at}: {e}"))? {
            model.oracle.borrow_mut().check_after_open(at, &data).map_err(|e| format!("after opening: {e}"))?;
        }
        at += n_blocks;
    }
    world.say(rt, || format!("everything of {} read back", model.name));
    Ok(())
}

/// After a crash the copies of a mirror may differ, and one of them may lie: nothing but the user's checksums can tell which.
/// So the user reads every block, writes what passes over all copies, and then says that they are equal, as a volume does. With
/// parity it writes whole stripes, as always.
async fn make_equal(world: &Rc<World>, rt: &Rt, n: usize, space: &Space) -> Result<(), String> {
    let model = &world.models[n];
    space.begin_verifying();
    let unit = if model.layout.parity() > 0 { model.stripe_blocks } else { 1 };
    for at in (0..model.blocks()).step_by(unit as usize) {
        let len = unit.min(model.blocks() - at);
        let data = read(world, n, space, at, len).await.map_err(|e| format!("after opening, block {at}: {e}"))?;
        let mark = model.oracle.borrow().read_begin(at, len);
        model.oracle.borrow_mut().check(at, &data, &mark).map_err(|e| format!("after opening: {e}"))?;
        // Behind the last whole stripe such a user never writes.
        if len == unit {
            let copy = Buf::copy_of(&data).share();
            space.write(at * BLOCK_BYTES, copy, true).await.map_err(|e| format!("after opening, block {at}: {e}"))?;
        }
        model.oracle.borrow_mut().check_after_open(at, &data).map_err(|e| format!("after opening: {e}"))?;
    }
    space.end_crash_resync().await.map_err(|e| format!("after opening: {e}"))?;
    world.say(rt, || format!("everything of {} read back and written again", model.name));
    Ok(())
}

async fn read(world: &Rc<World>, model: usize, space: &Space, first: u64, n: u64) -> Result<Buf, SpaceError> {
    let (offset, len) = (first * BLOCK_BYTES, (n * BLOCK_BYTES) as usize);
    let rt = space.pool().rt();
    if world.direct_pause_ns.get() > 0 && rt.random_u64().is_multiple_of(2) {
        return direct::read(world, rt, model, space, first, n).await;
    }
    if world.profile == Profile::Loud {
        return space.read(offset, len).await;
    }
    let w = world.clone();
    let verify = Rc::new(move |at: u64, data: &[u8]| w.models[model].oracle.borrow().accepts(at / BLOCK_BYTES, data));
    space.read_verified(offset, len, verify).await
}

/// What the pool says of itself is consistent. Nothing else is believed because of it.
pub(crate) fn check(pool: &Pool) -> Result<(), String> {
    pool.check_invariants().map_err(|e| format!("broken invariant: {e}"))
}

pub(crate) async fn workload(
    world: &Rc<World>,
    rt: &Rt,
    pool: &Pool,
    spaces: Vec<Option<Space>>,
) -> Result<(), String> {
    let spaces: Spaces = Rc::new(RefCell::new(spaces));
    let clients = world.rng.borrow_mut().range(1, 4);
    let running = Rc::new(Cell::new(clients));
    for _ in 0..clients {
        let (w, r, p, s, n) = (world.clone(), rt.clone(), pool.clone(), spaces.clone(), running.clone());
        let steps = world.rng.borrow_mut().range(10, 60);
        rt.spawn(async move {
            for _ in 0..steps {
                if w.failed() {
                    break;
                }
                pause(&w, &r).await;
                if let Err(e) = step(&w, &r, &s).await.and_then(|()| check(&p)) {
                    w.fail(e);
                }
            }
            n.set(n.get() - 1);
        });
    }
    strike_at_moves(world, rt, pool, &spaces, &running);
    if world.direct_pause_ns.get() > 0 {
        direct::start_reader(world, rt, &spaces, &running);
    }
    if world.aim.get() == Aim::HalfLog {
        fill_log(world, rt, &spaces);
    }
    while running.get() > 0 {
        rt.sleep_ns(1_000_000).await;
        trouble(world, rt, pool, &spaces).await?;
        check(pool)?;
    }
    while (world.reshaping.get() || world.reading.get()) && !world.failed() {
        rt.sleep_ns(1_000_000).await;
    }
    pool.set_paused(false);
    pool.set_cancelled(false);
    // At rest everything is as the oracle says, and stays so through a second look.
    let there: Vec<(usize, Space)> =
        spaces.borrow().iter().enumerate().filter_map(|(i, s)| Some((i, s.clone()?))).collect();
    for (i, space) in there {
        let model = &world.models[i];
        let mut at = 0;
        while at < model.blocks() {
            let n = 32.min(model.blocks() - at);
            let mark = model.oracle.borrow().read_begin(at, n);
            let suffered = world.suffers(pool, i);
            let data = world.excuse(pool, i, suffered, read(world, i, &space, at, n).await);
            if let Some(data) = data.map_err(|e| format!("at rest, block {at}: {e}"))? {
                model.oracle.borrow_mut().check(at, &data, &mark).map_err(|e| format!("at rest: {e}"))?;
            }
            at += n;
        }
    }
    removal_ends(world, rt).await?;
    no_slab_is_lost(rt, pool).await?;
    if world.profile == Profile::Silent {
        pool.close().await.map_err(|e| format!("close: {e}"))?;
    }
    Ok(())
}

/// Durable writes to one space, all at once and small enough for the log: together they are more than half of it.
fn fill_log(world: &Rc<World>, rt: &Rt, spaces: &Spaces) {
    let there = |i: &usize| world.models[*i].layout.tolerance() > 0 && spaces.borrow()[*i].is_some();
    let all: Vec<usize> = (0..world.models.len()).filter(there).collect();
    if all.is_empty() {
        return;
    }
    let i = all[world.rng.borrow_mut().below(all.len() as u64) as usize];
    let Some(space) = spaces.borrow()[i].clone() else { return };
    let mut first = 0;
    while first < world.models[i].blocks().min(LOG_BLOCKS) {
        let n = world.rng.borrow_mut().range(1, 8).min(world.models[i].blocks() - first);
        let (w, r, s) = (world.clone(), rt.clone(), space.clone());
        rt.spawn(async move {
            if let Err(e) = write(&w, &r, i, &s, first, n, true).await {
                w.fail(e);
            }
        });
        first += n;
    }
}

/// Clients that do nothing for a while: the background forgets marks, and empties the log. Afterwards they work elsewhere,
/// or everywhere.
async fn pause(world: &Rc<World>, rt: &Rt) {
    let ns = {
        let mut rng = world.rng.borrow_mut();
        if !world.pausing.get() || !rng.one_in(16) {
            return;
        }
        world.hot.set(rng.one_in(2).then(|| rng.below(300)));
        rng.range(1_000_000, 90_000_000)
    };
    world.stats.borrow_mut().pauses += 1;
    rt.sleep_ns(ns).await;
}

async fn step(world: &Rc<World>, rt: &Rt, spaces: &Spaces) -> Result<(), String> {
    world.stats.borrow_mut().operations += 1;
    let count = world.models.len() as u64;
    let i = if count > 1 { world.rng.borrow_mut().below(count) as usize } else { 0 };
    let model = &world.models[i];
    let Some(space) = spaces.borrow()[i].clone() else {
        rt.sleep_ns(100_000).await;
        return Ok(());
    };
    model.users.set(model.users.get() + 1);
    let done = one(world, rt, i, &space).await;
    model.users.set(model.users.get() - 1);
    done
}

async fn one(world: &Rc<World>, rt: &Rt, i: usize, space: &Space) -> Result<(), String> {
    let model = &world.models[i];
    let (kind, first, n, pause) = {
        let mut rng = world.rng.borrow_mut();
        let n = match rng.below(8) {
            0 => model.stripe_blocks.min(model.blocks()),
            1 => rng.range(1, 40.min(model.blocks())),
            _ => rng.range(1, 8.min(model.blocks())),
        };
        // Parity and silent damage: rewriting part of a stripe reads the rest of it, and who
        // reads without a checksum takes damage for data.
        let whole = world.profile == Profile::Silent && model.layout.parity() > 0;
        let n = if whole { model.stripe_blocks.min(model.blocks()) } else { n };
        let mut first = rng.below(model.blocks() - n + 1);
        if let Some(hot) = world.hot.get() {
            first = (hot % model.blocks() + first % 4).min(model.blocks() - n);
        }
        if n == model.stripe_blocks {
            first = first / n * n;
        }
        (rng.below(20), first, n, rng.below(400_000))
    };
    if kind == 0 {
        rt.sleep_ns(pause).await;
    }
    match kind {
        0..=10 => write(world, rt, i, space, first, n, kind > 6).await,
        11 | 12 => {
            // A flush is the whole pool's.
            let there: Vec<_> = world.models.iter().filter(|s| s.is_there()).collect();
            let marks: Vec<_> = there.iter().map(|s| (s.oracle.borrow().flush_begin(), s.life.get())).collect();
            match space.flush().await {
                Err(_) if !model.is_there() => return Ok(()),
                // What it was to log found no room: nothing is promised.
                Err(SpaceError::Offline) if world.log_may_be_full(space.pool()) => {
                    world.stats.borrow_mut().waits += 1;
                    return Ok(());
                }
                flushed => flushed.map_err(|e| format!("flush: {e}"))?,
            }
            // What becomes of a space that is being deleted nobody promised.
            let same = |s: &SpaceModel, life: u32| s.is_there() && s.life.get() == life;
            let still = there.into_iter().zip(marks).filter(|(s, (_, life))| same(s, *life));
            still.for_each(|(s, (mark, _))| s.oracle.borrow_mut().flush_end(mark));
            Ok(())
        }
        13 if pause % 2 == 0 => discard(world, rt, i, space, first, n).await,
        13 => {
            // Whole pieces, one or all that are left: their slabs go back.
            let piece = space.piece_bytes().map_or(model.blocks(), |b| b / BLOCK_BYTES);
            let first = first / piece * piece;
            let n = if pause % 16 == 1 { model.blocks() - first } else { piece.min(model.blocks() - first) };
            let held = space.pieces_held().len();
            discard(world, rt, i, space, first, n).await?;
            world.stats.borrow_mut().freed += held.saturating_sub(space.pieces_held().len()) as u64;
            Ok(())
        }
        _ => {
            let mark = model.oracle.borrow().read_begin(first, n);
            let suffered = world.suffers(space.pool(), i);
            world.say(rt, || format!("read {} {first}+{n}", model.name));
            let data = world.excuse(space.pool(), i, suffered, read(world, i, space, first, n).await);
            world.say(rt, || format!("has read {} {first}+{n}", model.name));
            match data.map_err(|e| format!("read {first}+{n}: {e}"))? {
                Some(data) if model.is_there() => model.oracle.borrow_mut().check(first, &data, &mark),
                _ => Ok(()),
            }
        }
    }
}

async fn discard(world: &Rc<World>, rt: &Rt, i: usize, space: &Space, first: u64, n: u64) -> Result<(), String> {
    let model = &world.models[i];
    if model.oracle.borrow().busy(first, n) && !world.rng.borrow_mut().one_in(4) {
        return Ok(());
    }
    let zeros = model.oracle.borrow_mut().new_zeros();
    model.oracle.borrow_mut().write_begin(first, n, zeros);
    world.say(rt, || format!("discard {} {first}+{n}", model.name));
    let suffered = world.suffers(space.pool(), i);
    let result = space.discard(first * BLOCK_BYTES, n * BLOCK_BYTES).await;
    model.oracle.borrow_mut().write_end(first, n, zeros, result.is_ok(), false);
    let done = world.excuse(space.pool(), i, suffered, result).map_err(|e| format!("discard {first}+{n}: {e}"))?;
    world.say(rt, || format!("discarded {} {first}+{n} {done:?}", model.name));
    Ok(())
}

/// Whatever became of moves, spaces and disks meanwhile: the removal of a disk is done, or refused.
async fn removal_ends(world: &World, rt: &Rt) -> Result<(), String> {
    for _ in 0..2000 {
        if !world.leaving.get() || world.failed() {
            return Ok(());
        }
        rt.sleep_ns(5_000_000).await;
    }
    Err("the removal of a disk does not end".into())
}

/// When nothing is under way any more, whatever slab is not free is a column's.
async fn no_slab_is_lost(rt: &Rt, pool: &Pool) -> Result<(), String> {
    let mut odd = Vec::new();
    for _ in 0..400 {
        let status = pool.status();
        let maps: Vec<_> = status.spaces.iter().filter_map(|s| pool.space_map(s.id).ok()).flatten().collect();
        let held = |d: u16| maps.iter().flat_map(|(_, columns)| columns).filter(|c| c.disk == d).count();
        let used = |d: &DiskStatus| (d.slabs - d.slabs_free) as usize;
        odd = status.disks.iter().map(|d| (d.index, used(d), held(d.index))).filter(|d| d.1 != d.2).collect();
        if odd.is_empty() {
            return Ok(());
        }
        rt.sleep_ns(5_000_000).await;
    }
    Err(format!("disk, slabs taken, slabs of columns: {odd:?}"))
}

async fn write(
    world: &Rc<World>,
    rt: &Rt,
    at: usize,
    space: &Space,
    first: u64,
    n: u64,
    durable: bool,
) -> Result<(), String> {
    let model = &world.models[at];
    // Overlapping writes in flight are allowed and rare.
    if model.oracle.borrow().busy(first, n) && !world.rng.borrow_mut().one_in(5) {
        return Ok(());
    }
    let version = model.oracle.borrow_mut().new_version();
    let mut buf = Buf::new((n * BLOCK_BYTES) as usize);
    for (i, b) in buf.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        fill(first + i as u64, version, b);
    }
    model.oracle.borrow_mut().write_begin(first, n, version);
    world.say(rt, || format!("write {} {first}+{n} v{version} durable {durable}", model.name));
    let suffered = world.suffers(space.pool(), at);
    let result = space.write(first * BLOCK_BYTES, buf.share(), durable).await;
    world.say(rt, || format!("wrote {} {first}+{n} v{version} {result:?}", model.name));
    model.oracle.borrow_mut().write_end(first, n, version, result.is_ok(), durable);
    if durable && result.is_ok() {
        world.answered(rt);
    }
    match world.excuse(space.pool(), at, suffered, result) {
        Err(SpaceError::OutOfSpace) if !model.has_room.get() => {
            world.stats.borrow_mut().full += 1;
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(e) => Err(format!("write {first}+{n}: {e}")),
    }
}
