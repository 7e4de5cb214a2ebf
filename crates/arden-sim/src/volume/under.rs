//! The space of a run as the device of its volume: each call runs the simulation until it is answered. Power is lost in
//! the middle of a write, a flush or a discard.

use std::cell::{Cell, RefCell};

use arden_block::{BLOCK_BYTES, Rt};
use arden_space::{Access, SharedSpace, Space, SpaceError, SpaceResult, SpaceThread};

/// The slots of the superblock at the beginning of the device.
const SUPERBLOCKS_BYTES: u64 = 2 * BLOCK_BYTES;

/// The write that a crash is aimed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A slot of the superblock at the beginning of the device.
    Superblock,
    /// A batch of the journal.
    Batch,
}

impl Target {
    fn of(access: Access) -> Option<Target> {
        match access {
            Access::Write(offset) if offset < SUPERBLOCKS_BYTES => Some(Target::Superblock),
            Access::Batch => Some(Target::Batch),
            _ => None,
        }
    }
}

struct Life {
    rt: Rt,
    space: Space,
    /// Writes and flushes until power is lost.
    left: Option<u64>,
    /// How long the last one goes on.
    last_ns: u64,
    /// Power is lost at such a write, after so many others, which goes on for so long.
    at: Option<(Target, u64, u64)>,
    dead: bool,
}

thread_local! {
    // A volume's devices may be used by any thread; a simulation stays on its own.
    static FREED: Cell<u64> = const { Cell::new(0) };
    static LIFE: RefCell<Option<Life>> = const { RefCell::new(None) };
}

/// The way to the space of this thread's run.
pub struct OnSpace;

impl OnSpace {
    /// The space as the device of a volume, until `end` or the next `begin`.
    pub fn begin(rt: &Rt, space: Space, last_ns: u64) -> SpaceResult<SharedSpace<OnSpace>> {
        OnSpace::enter(rt, space, last_ns);
        SharedSpace::new(OnSpace)
    }

    /// The same without a device: somebody else asks [`OnSpace::step`] what becomes of each call.
    pub fn enter(rt: &Rt, space: Space, last_ns: u64) {
        let life = Life { rt: rt.clone(), space, left: None, last_ns, at: None, dead: false };
        LIFE.with(|l| *l.borrow_mut() = Some(life));
    }

    pub fn end() {
        LIFE.with(|l| l.borrow_mut().take());
    }

    /// Pieces of spaces that gave their slabs back since this was asked last.
    pub fn take_freed() -> u64 {
        FREED.with(Cell::take)
    }

    pub fn die_after(left: Option<u64>) {
        LIFE.with(|l| {
            if let Some(life) = l.borrow_mut().as_mut() {
                life.left = left;
            }
        });
    }

    /// Power is lost now: nothing is read or written any more.
    pub fn die_now() {
        LIFE.with(|l| {
            if let Some(life) = l.borrow_mut().as_mut() {
                life.dead = true;
            }
        });
    }

    pub fn die_at(at: Option<(Target, u64, u64)>) {
        LIFE.with(|l| {
            if let Some(life) = l.borrow_mut().as_mut() {
                life.at = at;
            }
        });
    }

    pub fn is_dead() -> bool {
        LIFE.with(|l| l.borrow().as_ref().is_none_or(|life| life.dead))
    }

    /// What power leaves of the space: None where it is lost already.
    pub fn step(access: Access) -> Option<Step> {
        LIFE.with(|l| {
            let mut l = l.borrow_mut();
            let life = l.as_mut().filter(|life| !life.dead)?;
            if let Some(target) = Target::of(access) {
                match &mut life.at {
                    Some((t, 0, ns)) if *t == target => (life.left, life.last_ns) = (Some(0), *ns),
                    Some((t, more, _)) if *t == target => *more -= 1,
                    _ => {}
                }
            }
            if access != Access::Look {
                life.dead = life.left == Some(0);
                life.left = life.left.map(|n| n.saturating_sub(1));
            }
            let cut_ns = life.dead.then_some(life.last_ns);
            Some(Step { rt: life.rt.clone(), space: life.space.clone(), cut_ns })
        })
    }
}

/// One call, and after how long power is lost in it.
pub struct Step {
    pub rt: Rt,
    pub space: Space,
    pub cut_ns: Option<u64>,
}

/// Nobody else has room to give.
impl SpaceThread for OnSpace {
    fn submit<T, F, Fut>(
        &self,
        access: Access,
        work: F,
        done: impl FnOnce(SpaceResult<T>) + Send + 'static,
    ) -> SpaceResult<()>
    where
        T: Send + 'static,
        F: FnOnce(Space) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let Step { rt, space, cut_ns } = OnSpace::step(access).ok_or(SpaceError::Closed)?;
        if let Some(ns) = cut_ns {
            rt.spawn(async move { drop(work(space).await) });
            rt.run_until_ns(rt.now_ns() + ns);
            return Err(SpaceError::Closed);
        }
        let held = space.pieces_held().len();
        let answer = rt.block_on(work(space.clone())).unwrap_or(Err(SpaceError::Closed));
        if access == Access::Discard && answer.is_ok() {
            FREED.with(|f| f.set(f.get() + held.saturating_sub(space.pieces_held().len()) as u64));
        }
        done(answer);
        Ok(())
    }

    fn ask_for_room(&self) -> bool {
        false
    }
}
