//! A space as the device of a volume: every call travels to where the pool lives and its answer back. How it gets there is
//! the caller's: a daemon's pool has a thread of its own, a simulated one runs on the thread that asks. Blocks that fail
//! their check are read from another copy, and healed, by the space. Refuses to know what lies on it.

use std::{
    rc::Rc,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arden_block::{
    BLOCK_BYTES, Buf, Device, IoError, IoResult, Redundant, SharedBuf, Thin, Verify,
    device::{ParityMismatches, Written},
};

use arden_lock::{Condvar, Mutex, ranks, thread};

use crate::{
    base::error::{SpaceError, SpaceResult},
    space::{
        direct::{DirectRead, DirectSpace, Doubt},
        open_space::{Space, Verifier},
    },
};

/// What one call carries at most.
const CALL_BYTES_MAX: usize = 1 << 20;

/// What a call does with the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Look,
    /// Writes from this offset on.
    Write(u64),
    /// Writes that are to be durable.
    Batch,
    Flush,
    Discard,
    /// Writes only what was there before.
    Heal,
}

/// Reaches an open space from any thread.
pub trait SpaceThread: Send + Sync + 'static {
    /// Runs `work` where the pool lives, and calls `done` there with its answer. Where the pool is closed, `done` is dropped.
    ///
    /// # Errors
    /// The pool is closed.
    fn submit<T, F, Fut>(
        &self,
        access: Access,
        work: F,
        done: impl FnOnce(SpaceResult<T>) + Send + 'static,
    ) -> SpaceResult<()>
    where
        T: Send + 'static,
        F: FnOnce(Space) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static;

    /// Reads a disk on behalf of the calling thread, without the pool. `None`: it did not answer in time. As it is here, the pool's
    /// runtime drives the disk, beside the pool's own work: for simulated disks, which no other can drive.
    ///
    /// # Errors
    /// Those of the disk; `Unsupported` where the calling thread cannot read it.
    fn read_disk(&self, read: &DirectRead) -> Option<IoResult<Buf>>
    where
        Self: Sized,
    {
        let (read, limit_ns) = (read.clone(), read.limit_ns());
        let work = move |space: Space| async move {
            let rt = space.pool().rt().clone();
            Ok(rt.timeout_ns(limit_ns, read.read_on(&rt)).await)
        };
        call(self, Access::Look, work).unwrap_or(Some(Err(IoError::Gone)))
    }

    /// Whether `submit` returns before the work is done, so that work may wait for a time.
    fn has_clock(&self) -> bool {
        false
    }

    /// Has other users of a full pool give back what they can. Whether there may be room now.
    fn ask_for_room(&self) -> bool;
}

/// An open space, for any thread.
pub struct SharedSpace<C> {
    thread: Arc<C>,
    direct: DirectSpace,
    size_bytes: AtomicU64,
    may_differ: bool,
    copies: usize,
    piece_bytes: Option<u64>,
}

impl<C: SpaceThread> SharedSpace<C> {
    /// Begins to verify what is read, where a crash may have left copies different.
    ///
    /// # Errors
    /// The pool is closed.
    pub fn new(thread: C) -> SpaceResult<SharedSpace<C>> {
        let facts = |s: Space| async move {
            Ok((s.direct(), s.size_bytes(), s.begin_verifying(), s.copies(), s.piece_bytes()))
        };
        let (direct, size, may_differ, copies, piece_bytes) = call(&thread, Access::Look, facts)?;
        let size_bytes = AtomicU64::new(size);
        Ok(SharedSpace { thread: Arc::new(thread), direct, size_bytes, may_differ, copies, piece_bytes })
    }

    /// Reads without the pool's thread. An error: that has to read, and a disk may be in doubt.
    fn read_direct(&self, offset: u64, len: usize) -> Result<Buf, Option<Doubt>> {
        let read = self.direct.begin(offset, len).ok_or(None)?;
        read.end(self.thread.read_disk(&read))
    }

    fn run<T, F, Fut>(&self, access: Access, work: F) -> IoResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Space) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        call(&*self.thread, access, work).map_err(IoError::from)
    }

    fn write_part(&self, at: u64, part: SharedBuf) -> IoResult<()> {
        self.run_with_room(Access::Write(at), move |s| async move { s.write(at, part, false).await })
    }

    /// The same for what may need slabs: in a full pool others are asked for theirs first.
    fn run_with_room<F, Fut>(&self, access: Access, work: F) -> IoResult<()>
    where
        F: FnOnce(Space) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = SpaceResult<()>> + 'static,
    {
        match self.run(access, work.clone()) {
            Err(IoError::NoSpace) if self.thread.ask_for_room() => self.run(access, work),
            done => done,
        }
    }
}

/// Runs `work` where the pool lives and waits for its answer.
fn call<C: SpaceThread, T, F, Fut>(thread: &C, access: Access, work: F) -> SpaceResult<T>
where
    T: Send + 'static,
    F: FnOnce(Space) -> Fut + Send + 'static,
    Fut: Future<Output = SpaceResult<T>> + 'static,
{
    let answer = Arc::new(Answer { state: Mutex::new(None), wakeup: Condvar::new() });
    let awaited = Awaited(Some(answer.clone()));
    thread.submit(access, work, move |result| awaited.tell(result))?;
    let mut state = answer.state.lock();
    loop {
        if let Some(result) = state.take() {
            return result;
        }
        answer.wakeup.wait(&mut state);
    }
}

/// What one call is answered.
struct Answer<T> {
    state: Mutex<Option<SpaceResult<T>>, ranks::SpaceAnswer>,
    wakeup: Condvar,
}

/// Somebody who waits for an answer, also where the pool is closed before it comes to that.
struct Awaited<T>(Option<Arc<Answer<T>>>);

impl<T> Awaited<T> {
    fn tell(mut self, result: SpaceResult<T>) {
        self.tell_once(result);
    }

    fn tell_once(&mut self, result: SpaceResult<T>) {
        if let Some(answer) = self.0.take() {
            *answer.state.lock() = Some(result);
            answer.wakeup.notify_one();
        }
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        self.tell_once(Err(SpaceError::Closed));
    }
}

/// Whether each block passes its check.
fn passes(blocks: &[u8], offset: u64, verify: &Verify) -> bool {
    let places = (offset..).step_by(BLOCK_BYTES as usize);
    blocks.chunks(BLOCK_BYTES as usize).zip(places).all(|(block, at)| verify(at, block))
}

/// A check for the pool's own thread.
fn here(verify: Verify) -> Verifier {
    Rc::new(move |at, block| verify(at, block))
}

fn shared(writes: &[(u64, Vec<u8>)]) -> Vec<(u64, SharedBuf)> {
    let parts = |(at, bytes): &'_ (u64, Vec<u8>)| {
        let places = (*at..).step_by(CALL_BYTES_MAX);
        bytes.chunks(CALL_BYTES_MAX).zip(places).map(|(part, at)| (at, Buf::copy_of(part).share())).collect::<Vec<_>>()
    };
    writes.iter().flat_map(parts).collect()
}

/// Somebody who waits to be told, also where the pool is closed before it comes to that.
struct Told(Option<Written>);

impl Told {
    fn tell(mut self, result: IoResult<()>) {
        if let Some(told) = self.0.take() {
            told(result);
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(told) = self.0.take() {
            told(Err(IoError::Gone));
        }
    }
}

/// Others are asked for slabs and the write is tried again: not on the pool's thread, which they need for that.
fn wait_for_room<C: SpaceThread>(thread: Weak<C>, told: Told, again: impl FnOnce(&C) -> IoResult<()> + Send + 'static) {
    let asks = move || {
        let thread = thread.upgrade().filter(|thread| thread.ask_for_room());
        told.tell(thread.map_or(Err(IoError::NoSpace), |thread| again(&thread)));
    };
    if let Err(e) = thread::spawn("arden-room", asks) {
        tracing::error!("no thread to ask for room: {e}");
    }
}

impl<C: SpaceThread> Device for SharedSpace<C> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    fn look_again(&self) -> IoResult<u64> {
        let now = self.run(Access::Look, |s| async move { Ok(s.size_bytes()) })?;
        Ok(self.size_bytes.fetch_max(now, Ordering::AcqRel).max(now))
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        for (i, part) in buf.chunks_mut(CALL_BYTES_MAX).enumerate() {
            let (at, len) = (offset + (i * CALL_BYTES_MAX) as u64, part.len());
            let got = match self.read_direct(at, len) {
                Ok(got) => got,
                Err(doubt) => self.run(Access::Look, move |s| async move { s.read_for(at, len, doubt).await })?,
            };
            part.copy_from_slice(&got);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        let places = (offset..).step_by(CALL_BYTES_MAX);
        data.chunks(CALL_BYTES_MAX)
            .zip(places)
            .try_for_each(|(part, at)| self.write_part(at, Buf::copy_of(part).share()))
    }

    fn write_shared(&self, offset: u64, data: &SharedBuf) -> IoResult<()> {
        (0..data.len()).step_by(CALL_BYTES_MAX).try_for_each(|from| {
            let part = data.slice(from, CALL_BYTES_MAX.min(data.len() - from));
            self.write_part(offset + from as u64, part)
        })
    }

    fn flush(&self) -> IoResult<()> {
        self.run(Access::Flush, |s| async move { s.flush().await })
    }

    /// In one call.
    fn write_durably(&self, writes: &[(u64, Vec<u8>)]) -> IoResult<()> {
        let parts = shared(writes);
        self.run_with_room(Access::Batch, move |s| async move { s.write_durably(parts).await })
    }

    fn writes_later(&self) -> bool {
        true
    }

    fn write_durably_later(&self, writes: Vec<(u64, Vec<u8>)>, told: Written) {
        let parts = shared(&writes);
        let (told, thread) = (Told(Some(told)), Arc::downgrade(&self.thread));
        let write = move |s: Space| async move { s.write_durably(parts).await };
        let again = write.clone();
        let done = move |written: SpaceResult<()>| match written.map_err(IoError::from) {
            Err(IoError::NoSpace) => {
                wait_for_room(thread, told, move |thread| call(thread, Access::Batch, again).map_err(IoError::from));
            }
            written => told.tell(written),
        };
        // Where the pool is closed, letting go of `done` tells.
        let _ = self.thread.submit(Access::Batch, write, done);
    }

    fn has_clock(&self) -> bool {
        self.thread.has_clock()
    }

    fn let_go_later(&self, after: Duration, what: Box<dyn Send>) {
        let wait = move |s: Space| async move {
            s.pool().rt().sleep_ns(after.as_nanos() as u64).await;
            Ok(())
        };
        // Where the pool is closed, it goes at once.
        let _ = self.thread.submit(Access::Look, wait, move |_| drop(what));
    }

    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.run(Access::Discard, move |s| async move { s.discard(offset, len).await })
    }

    fn room_of_files(&self) -> Option<u64> {
        self.run(Access::Look, |s| async move { Ok(s.room_of_files()) }).unwrap_or_default()
    }

    /// A space of fixed size keeps its slabs.
    fn thin(&self) -> Option<&dyn Thin> {
        self.piece_bytes.map(|_| self as &dyn Thin)
    }

    fn redundant(&self) -> Option<&dyn Redundant> {
        Some(self)
    }
}

impl<C: SpaceThread> Thin for SharedSpace<C> {
    /// A group: slabs go back only together.
    fn piece_bytes(&self) -> u64 {
        self.piece_bytes.unwrap_or_else(|| self.size_bytes())
    }

    fn pieces_held(&self) -> Vec<u64> {
        self.run(Access::Look, |s| async move { Ok(s.pieces_held()) }).unwrap_or_default()
    }

    fn abandon(&self) -> IoResult<()> {
        self.discard(0, self.look_again()?)
    }
}

impl<C: SpaceThread> Redundant for SharedSpace<C> {
    fn read_verified(&self, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()> {
        for (i, part) in buf.chunks_mut(CALL_BYTES_MAX).enumerate() {
            let (at, len) = (offset + (i * CALL_BYTES_MAX) as u64, part.len());
            let doubt = match self.read_direct(at, len) {
                Ok(got) if passes(&got, at, verify) => {
                    part.copy_from_slice(&got);
                    continue;
                }
                // Another copy may pass, and what does not is written anew.
                Ok(_) => None,
                Err(doubt) => doubt,
            };
            let verify = verify.clone();
            let read = move |s: Space| async move { s.read_verified_for(at, len, here(verify), doubt).await };
            part.copy_from_slice(&self.run(Access::Look, read)?);
        }
        Ok(())
    }

    fn copies(&self) -> u32 {
        self.copies as u32
    }

    fn read_copy(&self, copy: u32, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        for (i, part) in buf.chunks_mut(CALL_BYTES_MAX).enumerate() {
            let (at, len) = (offset + (i * CALL_BYTES_MAX) as u64, part.len());
            let got = self.run(Access::Look, move |s| async move { s.read_copy(copy as usize, at, len).await })?;
            part.copy_from_slice(&got);
        }
        Ok(())
    }

    fn copies_pass(&self, offset: u64, len: usize, verify: &Verify) -> bool {
        let verify = verify.clone();
        self.run(Access::Look, move |s| async move { s.copies_pass(offset, len, &here(verify)).await }).unwrap_or(false)
    }

    fn heal(&self, offset: u64, len: usize, verify: &Verify) -> IoResult<u64> {
        let verify = verify.clone();
        self.run(Access::Heal, move |s| async move { s.heal_copies(offset, len, &here(verify)).await })
    }

    fn parity_mismatches(&self, offset: u64, len: u64) -> IoResult<Option<ParityMismatches>> {
        self.run(Access::Look, move |s| async move { s.parity_mismatches(offset, len).await })
    }

    fn recompute_parity(&self, row: u64, verify: &Verify) -> IoResult<u64> {
        let verify = verify.clone();
        self.run(Access::Heal, move |s| async move { s.recompute_parity(row, &here(verify)).await })
    }

    fn doubted_parity(&self, patience: Duration) -> IoResult<Vec<Vec<u64>>> {
        self.run(Access::Look, move |s| async move { s.doubted_parity(patience).await })
    }

    fn may_differ(&self) -> bool {
        self.may_differ
    }

    fn end_crash_resync(&self) -> IoResult<()> {
        self.run(Access::Look, |s| async move { s.end_crash_resync().await })
    }
}
