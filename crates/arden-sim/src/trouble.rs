//! What happens to the disks of a run while clients are at work: they die, hang, rot, return,
//! join and leave, within what the layouts bear.

use std::rc::Rc;

use arden_block::{BLOCK_BYTES, Rt};
use arden_space::{DiskState, Pool, SpaceError};

use crate::client::Spaces;
use crate::spaces::reshape;
use crate::world::{Aim, Profile, World};

/// So long after a write failed the pool has taken its disk out: from then on that is up to the pool.
const KNOWN_NS: u64 = 50_000_000;

/// A disk that was dead, hung or given up comes back.
async fn give_back(world: &Rc<World>, rt: &Rt, pool: &Pool, pick: usize) -> Result<(), String> {
    let members = world.members(pool);
    let is_missing = |i: usize| members.get(&i).is_some_and(|m| m.1 == DiskState::Missing);
    let gone: Vec<usize> = (0..world.disks.len()).filter(|&i| world.disks[i].is_dead() || is_missing(i)).collect();
    let Some(&i) = gone.get(pick % gone.len().max(1)) else { return Ok(()) };
    world.disks[i].revive();
    let Some(&(index, _)) = members.get(&i) else { return Ok(()) };
    if !is_missing(i) {
        // Nobody noticed: what its cache lost is gone. Make the pool notice.
        pool.report_failure(index).await.map_err(|e| format!("report: {e}"))?;
    }
    world.say(rt, || format!("return {i}"));
    match pool.return_disk(world.disks[i].attach(rt)).await {
        Ok(_) => world.stats.borrow_mut().returns += 1,
        Err(SpaceError::NotFound(_) | SpaceError::Refused(_)) => {}
        Err(e) => return Err(format!("return of disk {i}: {e}")),
    }
    Ok(())
}

/// Where power is to be lost when a departure is noticed, a disk of the log is often the one that leaves.
fn log_disk_to_leave(world: &World, pool: &Pool) -> Option<usize> {
    let awaited = world.aim.get() == Aim::Notice && world.crash_ns.get() == u64::MAX && !world.at_answer.get();
    let mut rng = world.rng.borrow_mut();
    if !awaited || !world.is_beyond() || !rng.one_in(3) {
        return None;
    }
    let journal = world.places(pool, &pool.journal_disks());
    (!journal.is_empty()).then(|| journal[rng.below(journal.len() as u64) as usize])
}

/// The next flush of as many other disks fails, too, as may be away.
fn fail_another(world: &Rc<World>, rt: &Rt, pool: &Pool, first: usize) {
    let mut away = world.away_now(pool);
    for other in (0..world.disks.len()).filter(|&d| d != first) {
        let journal = world.places(pool, &pool.journal_disks());
        let stays = world.journal_stays(&journal, |d| d == other || world.is_out(d));
        if away.contains(&other) || away.len() >= world.tolerance() || !stays || !world.rng.borrow_mut().one_in(2) {
            continue;
        }
        world.say(rt, || format!("the next flush of {other} fails, too"));
        world.disks[other].fail_next_flush();
        world.stats.borrow_mut().flushes_failed_together += 1;
        away.push(other);
    }
}

/// The pool can do without the disk now.
pub(crate) fn may_leave(world: &World, pool: &Pool, pick: usize) -> bool {
    let tolerance = world.tolerance();
    let away = world.away_now(pool);
    // One that returned may hold the last good copy of something while it is out of date elsewhere.
    let too_many = away.iter().filter(|&&d| d != pick).count() >= tolerance;
    let journal = world.places(pool, &pool.journal_disks());
    let out = |d: usize| d == pick || world.is_out(d);
    tolerance > 0 && !world.disks[pick].is_dead() && !too_many && world.journal_stays(&journal, out)
}

/// Something befalls a disk that the pool can do without.
pub(crate) async fn hurt(world: &Rc<World>, rt: &Rt, pool: &Pool, what: u64, pick: usize) -> Result<(), String> {
    let disk = &world.disks[pick];
    match what {
        8 => {
            world.say(rt, || format!("hang {pick}"));
            disk.hang();
        }
        16 => {
            let ns = world.rng.borrow_mut().range(20_000_000, 400_000_000);
            world.say(rt, || format!("one command of {pick} will be stuck for {ns} ns"));
            disk.stick_next(ns);
        }
        17 => {
            // A reset that somebody noticed: commands go on, the cache is gone.
            let Some(&(index, _)) = world.members(pool).get(&pick) else { return Ok(()) };
            world.say(rt, || format!("{pick} loses its cache"));
            disk.lose_cache();
            world.stats.borrow_mut().resets += 1;
            world.departs(rt);
            return pool.report_failure(index).await.map_err(|e| format!("report: {e}"));
        }
        18 => {
            world.say(rt, || format!("the next flush of {pick} fails"));
            disk.fail_next_flush();
            fail_another(world, rt, pool, pick);
        }
        // With more disks away than spaces bear nobody can say what is to be readable.
        19 if !world.is_beyond() => {
            let blocks = disk.info().size_bytes / BLOCK_BYTES;
            let (first, n) = {
                let mut rng = world.rng.borrow_mut();
                (rng.below(blocks), rng.range(1, 40))
            };
            world.say(rt, || format!("{n} blocks from {first} on of {pick} go bad"));
            (first..(first + n).min(blocks)).for_each(|b| disk.break_block(b * BLOCK_BYTES));
            world.stats.borrow_mut().broken += n;
            return Ok(());
        }
        19 | 20 if world.changing => return Ok(()),
        19 => return Ok(()),
        20 if !world.changing => {
            world.say(rt, || format!("the next write of {pick} fails"));
            disk.fail_next_write();
        }
        _ => {
            world.say(rt, || format!("kill {pick}"));
            disk.kill();
        }
    }
    world.stats.borrow_mut().kills += 1;
    world.departs(rt);
    Ok(())
}

/// One disk damages silently, or two; another may leave and return.
async fn lie(world: &Rc<World>, rt: &Rt, pool: &Pool, what: u64, pick: usize) -> Result<(), String> {
    let liars: Vec<usize> = (0..world.disks.len()).filter(|&i| world.is_liar(i)).collect();
    let disk = &world.disks[liars[pick % liars.len()]];
    match what {
        // The areas of map and journal have their own checksums and copies.
        0..=3 => {
            disk.rot(world.rng.borrow_mut().below(disk.info().size_bytes / 512) * 512);
            world.stats.borrow_mut().heals += 1;
        }
        // Nobody is told: as with writes that are lost one by one.
        4 => {
            disk.lose_cache();
            world.stats.borrow_mut().unnoticed += 1;
        }
        5 => {
            let journal = world.places(pool, &pool.journal_disks());
            let away = world.away_now(pool);
            let Some(leaver) = world.leaver().filter(|l| away.is_empty() && !world.disks[*l].is_dead()) else {
                return Ok(());
            };
            if world.journal_stays(&journal, |d| d == leaver || world.is_liar(d)) {
                world.say(rt, || format!("kill {leaver}"));
                world.disks[leaver].kill();
                world.stats.borrow_mut().left_a_liar += 1;
            }
        }
        6 | 7 => give_back(world, rt, pool, pick).await?,
        _ => {}
    }
    Ok(())
}

/// Disks die, return, rot, and are repaired, within what is permitted.
pub(crate) async fn trouble(world: &Rc<World>, rt: &Rt, pool: &Pool, spaces: &Spaces) -> Result<(), String> {
    let (what, pick) = {
        let mut rng = world.rng.borrow_mut();
        (rng.below(if world.changing { 30 } else { 24 }), rng.below(world.disks.len() as u64) as usize)
    };
    let known_ns = rt.now_ns().saturating_sub(KNOWN_NS);
    world.disks.iter().for_each(|d| d.forget_failed_write(known_ns));
    if world.profile == Profile::Silent {
        return lie(world, rt, pool, what, pick).await;
    }
    if world.changing && (11..16).contains(&what) {
        return exchange(world, rt, pool, what, pick).await;
    }
    if what >= 24 {
        reshape(world, rt, pool, spaces, what - 24);
        return Ok(());
    }
    if world.tolerance() == 0 {
        return Ok(());
    }
    let (what, pick) = log_disk_to_leave(world, pool).map_or((what, pick), |disk| (17, disk));
    match what {
        0 | 1 | 8 | 16..=20 if !may_leave(world, pool, pick) => {}
        0 | 1 | 8 | 16..=20 => hurt(world, rt, pool, what, pick).await?,
        2..=4 => give_back(world, rt, pool, pick).await?,
        9 | 10 => {
            world.say(rt, || format!("resume {pick}"));
            world.disks[pick].resume();
        }
        5 => {
            world.stats.borrow_mut().throttled += u64::from(world.busy_ms.get() > 0);
            match pool.repair().await {
                Err(SpaceError::Cancelled) => {}
                r => {
                    let r = r.map_err(|e| format!("repair: {e}"))?;
                    world.say(rt, || format!("repair {r:?}"));
                }
            }
        }
        6 => {
            let suffers = || (0..world.models.len()).any(|i| world.suffers(pool, i));
            let suffered = suffers();
            let r = match pool.scrub().await {
                Err(SpaceError::Cancelled) => return Ok(()),
                r => r.map_err(|e| format!("scrub: {e}"))?,
            };
            let suffers = suffered || suffers();
            if r.undecided > 0 || r.lost > 0 && !suffers {
                return Err(format!("scrub: {r:?}"));
            }
        }
        7 => {
            let done = pool.rebalance().await;
            if !matches!(done, Err(SpaceError::Cancelled)) {
                done.map_err(|e| format!("rebalance: {e}"))?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Disks join the pool, are emptied, leave it, or stay after all.
async fn exchange(world: &Rc<World>, rt: &Rt, pool: &Pool, what: u64, pick: usize) -> Result<(), String> {
    let members = world.members(pool);
    match (what, members.get(&pick)) {
        (11 | 12, None) => {
            let disk = &world.disks[pick];
            if disk.is_dead() || disk.is_hung() || disk.is_failing() {
                return Ok(());
            }
            // It comes new: what of it was unreadable before is mended.
            disk.mend_blocks();
            let r = pool.add_disk(disk.attach(rt), what == 12).await;
            world.say(rt, || format!("join of {pick}, spare {}: {r:?}", what == 12));
            match r {
                Ok(_) => {
                    world.stats.borrow_mut().joins += 1;
                    Ok(())
                }
                Err(SpaceError::Device(_)) => Ok(()),
                Err(e) => Err(format!("join of disk {pick}: {e}")),
            }
        }
        (13 | 14, Some(_)) => {
            remove(world, rt, pool, pick);
            Ok(())
        }
        (15, Some(&(index, DiskState::Retiring))) => {
            world.say(rt, || format!("{pick} stays"));
            pool.keep_disk(index).await.map_err(|e| format!("disk {pick} stays: {e}"))
        }
        _ => Ok(()),
    }
}

/// Begins to remove a disk, beside everything else that happens. False: none is removed now.
pub(crate) fn remove(world: &Rc<World>, rt: &Rt, pool: &Pool, pick: usize) -> bool {
    let members = world.members(pool);
    // Without spaces a pool may shrink to its last disks, and has no second copy of its log any more. Spares have none.
    let few = members.values().filter(|m| m.1 == DiskState::Active).count() < world.tolerance() + 3;
    let Some(&(index, _)) = members.get(&pick).filter(|_| !few && !world.leaving.get()) else { return false };
    world.leaving.set(true);
    world.say(rt, || format!("removal of {pick}"));
    let (w, r, p) = (world.clone(), rt.clone(), pool.clone());
    rt.spawn(async move {
        let result = p.remove_disk(index).await;
        w.say(&r, || format!("removal of {pick}: {result:?}"));
        w.stats.borrow_mut().removals += u64::from(result.is_ok());
        w.leaving.set(false);
    });
    true
}
