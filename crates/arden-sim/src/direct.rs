//! Reads of a space as another thread does them: a view is taken, the disk is read, and then it is asked whether the view still holds.
//! Anything may happen between the three.

use std::cell::Cell;
use std::rc::Rc;

use arden_block::rng::Rng;
use arden_block::{BLOCK_BYTES, Buf, Rt};
use arden_space::{DirectRead, Doubt, Space, SpaceError};

use crate::client::Spaces;
use crate::world::{Profile, World};

/// Blocks of one read, at most: more are several reads.
const BLOCKS_MAX: u64 = 4;

/// Reads what it can without the pool, and the rest as the pool does.
pub(crate) async fn read(
    world: &Rc<World>,
    rt: &Rt,
    model: usize,
    space: &Space,
    first: u64,
    n: u64,
) -> Result<Buf, SpaceError> {
    let mut buf = Buf::new((n * BLOCK_BYTES) as usize);
    let mut done = 0;
    while done < n {
        let blocks = (1 + rt.random_u64() % BLOCKS_MAX).min(n - done);
        let part = read_part(world, rt, model, space, first + done, blocks).await?;
        let at = (done * BLOCK_BYTES) as usize;
        buf[at..at + part.len()].copy_from_slice(&part);
        done += blocks;
    }
    Ok(buf)
}

async fn read_part(
    world: &Rc<World>,
    rt: &Rt,
    model: usize,
    space: &Space,
    first: u64,
    n: u64,
) -> Result<Buf, SpaceError> {
    let (offset, len) = (first * BLOCK_BYTES, (n * BLOCK_BYTES) as usize);
    let doubt = match space.direct().begin(offset, len) {
        None => None,
        Some(read) => match by_steps(world, rt, read).await {
            Ok(data) if accepts(world, model, first, &data) => {
                world.stats.borrow_mut().direct[0] += 1;
                return Ok(data);
            }
            Ok(_) => None,
            Err(doubt) => {
                world.stats.borrow_mut().direct[1] += 1;
                doubt
            }
        },
    };
    if world.profile == Profile::Loud {
        return space.read_for(offset, len, doubt).await;
    }
    let w = world.clone();
    let verify = Rc::new(move |at: u64, data: &[u8]| w.models[model].oracle.borrow().accepts(at / BLOCK_BYTES, data));
    space.read_verified_for(offset, len, verify, doubt).await
}

async fn by_steps(world: &World, rt: &Rt, read: DirectRead) -> Result<Buf, Option<Doubt>> {
    others(world, rt).await;
    let answer = rt.timeout_ns(read.limit_ns(), read.read_on(rt)).await;
    others(world, rt).await;
    read.end(answer)
}

/// Others go on for a while.
async fn others(world: &World, rt: &Rt) {
    let draw = rt.random_u64();
    let most_ns = match draw % 8 {
        0..=2 => return,
        3 => return rt.yield_now().await,
        4 | 5 => 100_000,
        6 => 1_000_000,
        _ => world.direct_pause_ns.get(),
    };
    rt.sleep_ns((draw >> 8) % most_ns).await;
}

/// The check that a user has who knows what he wrote.
fn accepts(world: &World, model: usize, first: u64, data: &[u8]) -> bool {
    let oracle = world.models[model].oracle.borrow();
    let mut blocks = data.chunks(BLOCK_BYTES as usize).zip(first..);
    world.profile == Profile::Loud || blocks.all(|(data, block)| oracle.accepts(block, data))
}

/// Somebody who reads all the time, now and then where others work.
pub(crate) fn start_reader(world: &Rc<World>, rt: &Rt, spaces: &Spaces, running: &Rc<Cell<u64>>) {
    let (w, r, s, n) = (world.clone(), rt.clone(), spaces.clone(), running.clone());
    let mut rng = Rng::new(rt.random_u64());
    world.reading.set(true);
    rt.spawn(async move {
        while n.get() > 0 && !w.failed() {
            r.sleep_ns(rng.below(400_000)).await;
            let i = rng.below(w.models.len() as u64) as usize;
            let Some(space) = s.borrow()[i].clone() else { continue };
            let model = &w.models[i];
            model.users.set(model.users.get() + 1);
            if let Err(e) = look(&w, &r, i, &space, &mut rng).await {
                w.fail(e);
            }
            model.users.set(model.users.get() - 1);
        }
        w.reading.set(false);
    });
}

async fn look(world: &Rc<World>, rt: &Rt, i: usize, space: &Space, rng: &mut Rng) -> Result<(), String> {
    let model = &world.models[i];
    let n = rng.range(1, BLOCKS_MAX.min(model.blocks()));
    let mut first = rng.below(model.blocks() - n + 1);
    if let Some(hot) = world.hot.get() {
        first = (hot % model.blocks() + first % 4).min(model.blocks() - n);
    }
    let mark = model.oracle.borrow().read_begin(first, n);
    let suffered = world.suffers(space.pool(), i);
    let data = world.excuse(space.pool(), i, suffered, read(world, rt, i, space, first, n).await);
    match data.map_err(|e| format!("direct read {first}+{n}: {e}"))? {
        Some(data) if model.is_there() => {
            let right = model.oracle.borrow_mut().check(first, &data, &mark);
            right.map_err(|e| format!("direct read: {e}"))
        }
        _ => Ok(()),
    }
}
