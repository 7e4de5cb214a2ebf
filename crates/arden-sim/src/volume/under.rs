//! The space of a run as the device of its volume: each call runs the simulation until it is answered. Power is lost in
//! the middle of a write, a flush or a discard.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use arden_block::{BLOCK_BYTES, Buf, IoError, IoResult, Rt};
use arden_space::{Space, SpaceError, SpaceResult, Verifier};
use arden_volume::{
    Device,
    device::{BlockCheck, ParityMismatches},
};

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

pub struct OnSpace {
    size_bytes: u64,
    may_differ: bool,
    piece_bytes: Option<u64>,
}

impl OnSpace {
    pub fn begin(rt: &Rt, space: Space, last_ns: u64) -> OnSpace {
        let (size_bytes, may_differ, piece_bytes) = (space.size_bytes(), space.begin_verifying(), space.piece_bytes());
        let life = Life { rt: rt.clone(), space, left: None, last_ns, at: None, dead: false };
        LIFE.with(|l| *l.borrow_mut() = Some(life));
        OnSpace { size_bytes, may_differ, piece_bytes }
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

    fn begins(&self, target: Target) {
        LIFE.with(|l| {
            let mut l = l.borrow_mut();
            let Some(life) = l.as_mut() else { return };
            match &mut life.at {
                Some((t, 0, ns)) if *t == target => (life.left, life.last_ns) = (Some(0), *ns),
                Some((t, more, _)) if *t == target => *more -= 1,
                _ => {}
            }
        });
    }

    pub fn is_dead() -> bool {
        LIFE.with(|l| l.borrow().as_ref().is_none_or(|life| life.dead))
    }

    fn run<T, F, Fut>(&self, changes: bool, work: F) -> IoResult<T>
    where
        T: 'static,
        F: FnOnce(Space) -> Fut + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let (rt, space, cut) = LIFE.with(|l| {
            let mut l = l.borrow_mut();
            let life = l.as_mut().filter(|life| !life.dead).ok_or(IoError::Gone)?;
            if changes {
                life.dead = life.left == Some(0);
                life.left = life.left.map(|n| n.saturating_sub(1));
            }
            Ok::<_, IoError>((life.rt.clone(), life.space.clone(), life.dead.then_some(life.last_ns)))
        })?;
        if let Some(ns) = cut {
            rt.spawn(async move { drop(work(space).await) });
            rt.run_until_ns(rt.now_ns() + ns);
            return Err(IoError::Gone);
        }
        rt.block_on(work(space)).unwrap_or(Err(SpaceError::Closed)).map_err(IoError::from)
    }
}

impl Device for OnSpace {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        let len = buf.len();
        let got = self.run(false, move |s| async move { s.read(offset, len).await })?;
        buf.copy_from_slice(&got);
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        if offset < SUPERBLOCKS_BYTES {
            self.begins(Target::Superblock);
        }
        let shared = Buf::copy_of(data).share();
        self.run(true, move |s| async move { s.write(offset, shared, false).await })
    }
    fn flush(&self) -> IoResult<()> {
        self.run(true, |s| async move { s.flush().await })
    }
    fn write_durably(&self, writes: &[(u64, Vec<u8>)]) -> IoResult<()> {
        self.begins(Target::Batch);
        let parts = writes.iter().map(|(at, bytes)| (*at, Buf::copy_of(bytes).share())).collect();
        self.run(true, move |s| async move { s.write_durably(parts).await })
    }
    /// As in the daemon, though here it is told at once.
    fn writes_later(&self) -> bool {
        true
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.run(true, move |s| async move {
            let held = s.pieces_held().len();
            s.discard(offset, len).await?;
            FREED.with(|f| f.set(f.get() + held.saturating_sub(s.pieces_held().len()) as u64));
            Ok(())
        })
    }
    fn piece_bytes(&self) -> Option<u64> {
        self.piece_bytes
    }
    fn pieces_held(&self) -> Vec<u64> {
        self.run(false, |s| async move { Ok(s.pieces_held()) }).unwrap_or_default()
    }
    fn may_differ(&self) -> bool {
        self.may_differ
    }
    fn end_crash_resync(&self) -> IoResult<()> {
        self.run(false, |s| async move { s.end_crash_resync().await })
    }
    fn copies_pass(&self, offset: u64, len: usize, check: &BlockCheck) -> bool {
        let verify: Verifier = Rc::new(check.placed(offset));
        self.run(false, move |s| async move { s.copies_pass(offset, len, &verify).await }).unwrap_or(false)
    }
    fn heal(&self, offset: u64, len: usize, check: &BlockCheck) -> IoResult<u64> {
        let verify: Verifier = Rc::new(check.placed(offset));
        self.run(true, move |s| async move { s.heal_copies(offset, len, &verify).await })
    }
    fn parity_mismatches(&self, offset: u64, len: u64) -> IoResult<Option<ParityMismatches>> {
        self.run(false, move |s| async move { s.parity_mismatches(offset, len).await })
    }
    fn recompute_parity(&self, row: u64, check: &BlockCheck) -> IoResult<u64> {
        let verify: Verifier = Rc::new(check.placed(row));
        self.run(true, move |s| async move { s.recompute_parity(row, &verify).await })
    }
    fn read_checked(&self, offset: u64, buf: &mut [u8], check: &BlockCheck) -> IoResult<()> {
        let len = buf.len();
        let verify: Verifier = Rc::new(check.placed(offset));
        let got = self.run(false, move |s| async move { s.read_verified(offset, len, verify).await })?;
        buf.copy_from_slice(&got);
        Ok(())
    }
}
