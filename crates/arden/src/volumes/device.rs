//! A space of a pool as the device of a volume: every call travels to the pool's thread and its answer back. Blocks that
//! fail their check are read from another copy, and healed, by the space.

use std::{
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arden_block::{Buf, IoError, IoResult, LocalFuture, sync::join_all};
use arden_space::{Caller, Pool, Space, SpaceResult, Verifier};
use arden_volume::{Device, device::BlockCheck};

use crate::pools::SpaceUse;

/// What one call carries at most.
const CALL_BYTES_MAX: usize = 1 << 20;

pub struct SpaceDevice {
    caller: Caller,
    space: u32,
    size_bytes: AtomicU64,
    may_differ: bool,
    piece_bytes: Option<u64>,
    taken: SpaceUse,
}

impl SpaceDevice {
    /// `give_back`: has the volume on it give back what it can.
    pub fn new(taken: SpaceUse, give_back: impl Fn() + Send + Sync + 'static) -> SpaceResult<SpaceDevice> {
        taken.gives_room(Arc::new(give_back));
        let caller = taken.caller();
        let name = taken.space().to_string();
        let (space, size, may_differ, piece_bytes) = caller.call(move |pool: Pool| async move {
            let s = pool.space_named(&name)?;
            Ok((s.id(), s.size_bytes(), s.begin_verifying(), s.piece_bytes()))
        })?;
        Ok(SpaceDevice { caller, space, size_bytes: AtomicU64::new(size), may_differ, piece_bytes, taken })
    }

    fn run<T, F, Fut>(&self, work: F) -> IoResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Space) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let space = self.space;
        self.caller.call(move |pool: Pool| async move { work(pool.space(space)?).await }).map_err(IoError::from)
    }

    /// The same for what may need slabs: in a full pool others are asked for theirs first.
    fn run_with_room<F, Fut>(&self, work: F) -> IoResult<()>
    where
        F: FnOnce(Space) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = SpaceResult<()>> + 'static,
    {
        match self.run(work.clone()) {
            Err(IoError::NoSpace) if self.taken.ask_for_room() => self.run(work),
            done => done,
        }
    }
}

fn verifier(accepts: impl Fn(u64, &[u8]) -> bool + 'static) -> Verifier {
    Rc::new(accepts)
}

impl Device for SpaceDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    fn look_again(&self) -> IoResult<u64> {
        let now = self.run(|s| async move { Ok(s.size_bytes()) })?;
        Ok(self.size_bytes.fetch_max(now, Ordering::AcqRel).max(now))
    }

    fn may_differ(&self) -> bool {
        self.may_differ
    }

    fn settle(&self) -> IoResult<()> {
        self.run(|s| async move { s.settle().await })
    }

    /// A thin space gives back slabs by whole groups; one of fixed size keeps them.
    fn piece_bytes(&self) -> Option<u64> {
        self.piece_bytes
    }

    fn pieces_held(&self) -> Vec<u64> {
        self.run(|s| async move { Ok(s.pieces_held()) }).unwrap_or_default()
    }

    fn abandon(&self) -> IoResult<()> {
        match self.piece_bytes {
            Some(_) => self.discard(0, self.look_again()?),
            None => Ok(()),
        }
    }

    fn copies_pass(&self, offset: u64, len: usize, check: &BlockCheck) -> bool {
        let accepts = check.placed(offset);
        let looked = self.run(move |s| async move { s.copies_pass(offset, len, &verifier(accepts)).await });
        looked.unwrap_or(false)
    }

    fn heal(&self, offset: u64, len: usize, check: &BlockCheck) -> IoResult<u64> {
        let accepts = check.placed(offset);
        self.run(move |s| async move { s.heal_copies(offset, len, &verifier(accepts)).await })
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        for (i, part) in buf.chunks_mut(CALL_BYTES_MAX).enumerate() {
            let (at, len) = (offset + (i * CALL_BYTES_MAX) as u64, part.len());
            let got = self.run(move |s| async move { s.read(at, len).await })?;
            part.copy_from_slice(&got);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        for (i, part) in data.chunks(CALL_BYTES_MAX).enumerate() {
            let at = offset + (i * CALL_BYTES_MAX) as u64;
            let shared = Buf::copy_of(part).share();
            self.run_with_room(move |s| async move { s.write(at, shared, false).await })?;
        }
        Ok(())
    }

    fn flush(&self) -> IoResult<()> {
        self.run(|s| async move { s.flush().await })
    }

    /// In one call: the writes side by side, then the flush.
    fn write_durably(&self, writes: &[(u64, Vec<u8>)]) -> IoResult<()> {
        let parts: Vec<_> = writes
            .iter()
            .flat_map(|(at, bytes)| bytes.chunks(CALL_BYTES_MAX).zip((*at..).step_by(CALL_BYTES_MAX)))
            .map(|(part, at)| (at, Buf::copy_of(part).share()))
            .collect();
        self.run_with_room(move |s| async move {
            let all: Vec<LocalFuture<_>> = parts
                .into_iter()
                .map(|(at, part)| {
                    let s = s.clone();
                    Box::pin(async move { s.write(at, part, false).await }) as LocalFuture<_>
                })
                .collect();
            join_all(all).await.into_iter().collect::<SpaceResult<()>>()?;
            s.flush().await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.run(move |s| async move { s.discard(offset, len).await })
    }

    fn read_checked(&self, offset: u64, buf: &mut [u8], check: &BlockCheck) -> IoResult<()> {
        for (i, part) in buf.chunks_mut(CALL_BYTES_MAX).enumerate() {
            let (at, len, accepts) = (offset + (i * CALL_BYTES_MAX) as u64, part.len(), check.placed(offset));
            let got = self.run(move |s| async move { s.read_verified(at, len, verifier(accepts)).await })?;
            part.copy_from_slice(&got);
        }
        Ok(())
    }
}
