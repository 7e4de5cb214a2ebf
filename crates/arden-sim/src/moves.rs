//! What happens at once while a column is being moved to another disk: its space is deleted, a disk of the move is lost, or
//! removed from the pool.

use std::cell::Cell;
use std::rc::Rc;

use arden_block::Rt;
use arden_space::Pool;

use crate::client::Spaces;
use crate::spaces::delete_now;
use crate::trouble::{hurt, may_leave, remove};
use crate::world::World;

/// How often it is looked whether a column is being moved.
const LOOK_NS: u64 = 50_000;

/// A column on its way: the place of its space among the models, and the disks that it leaves and goes to.
struct Move {
    model: usize,
    disks: [u16; 2],
}

/// Strikes at moves, in some lives, as long as clients are at work.
pub(crate) fn strike_at_moves(world: &Rc<World>, rt: &Rt, pool: &Pool, spaces: &Spaces, running: &Rc<Cell<u64>>) {
    if !world.changing || !world.rng.borrow_mut().one_in(2) {
        return;
    }
    let (w, r, p, s, n) = (world.clone(), rt.clone(), pool.clone(), spaces.clone(), running.clone());
    rt.spawn(async move {
        while n.get() > 0 && !w.failed() {
            r.sleep_ns(LOOK_NS).await;
            let Some(found) = under_way(&p, &s) else { continue };
            if w.rng.borrow_mut().one_in(16) {
                strike(&w, &r, &p, &s, &found);
            }
        }
    });
}

fn under_way(pool: &Pool, spaces: &Spaces) -> Option<Move> {
    let spaces = spaces.borrow();
    let there =
        spaces.iter().enumerate().filter_map(|(model, s)| Some((model, pool.space_map(s.as_ref()?.id()).ok()?)));
    let mut moved = there.flat_map(|(model, groups)| {
        let columns = groups.into_iter().flat_map(|(_, columns)| columns);
        columns.filter_map(move |c| Some(Move { model, disks: [c.disk, c.moving_to?] }))
    });
    moved.next()
}

/// One of these, two, or all three, each within half a millisecond.
fn strike(world: &Rc<World>, rt: &Rt, pool: &Pool, spaces: &Spaces, found: &Move) {
    let which = world.rng.borrow_mut().range(1, 7);
    for what in (0..3).filter(|what| which & 1 << what > 0) {
        let (after_ns, index) = {
            let mut rng = world.rng.borrow_mut();
            (rng.below(500_000), found.disks[rng.below(2) as usize])
        };
        let (w, r, p, s, model) = (world.clone(), rt.clone(), pool.clone(), spaces.clone(), found.model);
        rt.spawn(async move {
            r.sleep_ns(after_ns).await;
            let place = w.places(&p, &[index]).first().copied();
            let done = match (what, place) {
                (0, _) => Ok(delete_now(&w, &r, &p, &s, model)),
                (1, Some(disk)) => lose(&w, &r, &p, disk).await,
                (2, Some(disk)) => Ok(remove(&w, &r, &p, disk)),
                _ => Ok(false),
            };
            match done {
                Ok(done) => w.stats.borrow_mut().moves_struck[what] += u64::from(done),
                Err(e) => w.fail(e),
            }
        });
    }
}

/// It dies, hangs, loses its cache, or fails its next flush.
async fn lose(world: &Rc<World>, rt: &Rt, pool: &Pool, disk: usize) -> Result<bool, String> {
    if !may_leave(world, pool, disk) {
        return Ok(false);
    }
    let what = [0, 8, 17, 18][world.rng.borrow_mut().below(4) as usize];
    hurt(world, rt, pool, what, disk).await.map(|()| true)
}
