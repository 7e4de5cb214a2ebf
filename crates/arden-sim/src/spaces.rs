//! What becomes of the spaces of a pool while clients use them: they grow, are deleted and made once more. And what an
//! administrator does to repair: pauses it, and cancels it.

use std::rc::Rc;

use arden_block::{BLOCK_BYTES, Rt};
use arden_space::{Pool, Provision, Space, SpaceError};

use crate::client::Spaces;
use crate::oracle::Oracle;
use crate::world::{Existence, World};

/// No space grows beyond this.
const BLOCKS_MAX: u64 = 800;

/// Begins one such change, beside everything else that happens.
pub(crate) fn reshape(world: &Rc<World>, rt: &Rt, pool: &Pool, spaces: &Spaces, what: u64) {
    if what >= 4 {
        return stand_back(world, rt, pool, what == 4);
    }
    // With more disks away than spaces bear nobody can say what becomes of it.
    if world.is_beyond() || world.reshaping.replace(true) {
        return;
    }
    let (w, r, p, s) = (world.clone(), rt.clone(), pool.clone(), spaces.clone());
    rt.spawn(async move {
        let i = w.rng.borrow_mut().below(w.models.len() as u64) as usize;
        let space = s.borrow()[i].clone();
        let done = match space {
            Some(space) if what == 0 => delete(&w, &r, &p, &s, i, &space).await,
            Some(space) => grow(&w, &r, i, &space).await,
            None => make(&w, &r, &p, &s, i).await,
        };
        if let Err(e) = done {
            w.fail(e);
        }
        w.reshaping.set(false);
    });
}

/// Begins to delete a space, beside everything else that happens. False: it is not there, or another changes.
pub(crate) fn delete_now(world: &Rc<World>, rt: &Rt, pool: &Pool, spaces: &Spaces, i: usize) -> bool {
    let Some(space) = spaces.borrow()[i].clone().filter(|_| !world.is_beyond() && !world.reshaping.get()) else {
        return false;
    };
    world.reshaping.set(true);
    let (w, r, p, s) = (world.clone(), rt.clone(), pool.clone(), spaces.clone());
    rt.spawn(async move {
        if let Err(e) = delete(&w, &r, &p, &s, i, &space).await {
            w.fail(e);
        }
        w.reshaping.set(false);
    });
    true
}

/// Repair and moves stop for a while, or end at their next step.
fn stand_back(world: &Rc<World>, rt: &Rt, pool: &Pool, paused: bool) {
    world.say(rt, || format!("repair is paused: {paused}, or cancelled"));
    world.stats.borrow_mut().paused += 1;
    let ns = world.rng.borrow_mut().range(500_000, 20_000_000);
    if paused {
        pool.set_paused(true)
    } else {
        pool.set_cancelled(true)
    }
    let (r, p) = (rt.clone(), pool.clone());
    rt.spawn(async move {
        r.sleep_ns(ns).await;
        if paused { p.set_paused(false) } else { p.set_cancelled(false) }
    });
}

async fn grow(world: &Rc<World>, rt: &Rt, i: usize, space: &Space) -> Result<(), String> {
    let model = &world.models[i];
    let blocks = model.blocks() + world.rng.borrow_mut().range(1, 300);
    if blocks > BLOCKS_MAX {
        return Ok(());
    }
    model.asked.set(blocks);
    world.say(rt, || format!("{} grows to {blocks} blocks", model.name));
    let grown = space.grow(blocks * BLOCK_BYTES).await;
    world.say(rt, || format!("{} has grown to {blocks} blocks: {grown:?}", model.name));
    match grown {
        Ok(()) => {
            model.oracle.borrow_mut().grow(blocks);
            world.stats.borrow_mut().spaces_grown += 1;
            Ok(())
        }
        // It stays as large as it was.
        Err(SpaceError::OutOfSpace) if model.provision == Provision::Fixed => {
            let now = space.size_bytes() / BLOCK_BYTES;
            if now != model.blocks() {
                return Err(format!("{} did not grow and has {now} blocks, not {}", model.name, model.blocks()));
            }
            Ok(())
        }
        Err(e) => Err(format!("growth: {e}")),
    }
}

async fn delete(
    world: &Rc<World>,
    rt: &Rt,
    pool: &Pool,
    spaces: &Spaces,
    i: usize,
    space: &Space,
) -> Result<(), String> {
    let model = &world.models[i];
    world.say(rt, || format!("{} is being deleted", model.name));
    model.state.set(Existence::Perhaps);
    spaces.borrow_mut()[i] = None;
    // Somebody may have it open for some time yet.
    let (r, open, ns) = (rt.clone(), space.clone(), world.rng.borrow_mut().below(100_000_000));
    rt.spawn(async move {
        r.sleep_ns(ns).await;
        drop(open);
    });
    pool.delete_space(space.id()).await.map_err(|e| format!("deletion: {e}"))?;
    world.say(rt, || format!("{} is deleted", model.name));
    model.state.set(Existence::Gone);
    world.stats.borrow_mut().spaces_deleted += 1;
    Ok(())
}

/// The space once more, empty, as soon as nobody uses the one that was.
async fn make(world: &Rc<World>, rt: &Rt, pool: &Pool, spaces: &Spaces, i: usize) -> Result<(), String> {
    let model = &world.models[i];
    while model.users.get() > 0 {
        rt.sleep_ns(100_000).await;
    }
    let blocks = world.rng.borrow_mut().range(64, 300);
    *model.oracle.borrow_mut() = Oracle::new(blocks);
    model.asked.set(blocks);
    model.life.set(model.life.get() + 1);
    model.state.set(Existence::Perhaps);
    let made = model.make(pool).await;
    world.say(rt, || format!("{} is made again, {blocks} blocks: {:?}", model.name, made.as_ref().map(|_| ())));
    match made {
        Ok(space) => {
            model.state.set(Existence::There);
            spaces.borrow_mut()[i] = Some(space);
            world.stats.borrow_mut().spaces_fixed += u64::from(model.provision == Provision::Fixed);
            Ok(())
        }
        Err(SpaceError::OutOfSpace) if model.provision == Provision::Fixed => {
            model.state.set(Existence::Gone);
            Ok(())
        }
        // Disks left meanwhile, and there are not enough for its columns.
        Err(SpaceError::Refused(_)) => {
            model.state.set(Existence::Gone);
            Ok(())
        }
        Err(e) => Err(format!("made again: {e}")),
    }
}
