//! A space of a pool as the device of a volume: every call travels to the pool's thread and its answer back. Blocks that
//! fail their check are read from another copy, and healed, by the space.

use std::{
    rc::Rc,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use arden_block::{Buf, IoError, IoResult, SharedBuf};
use arden_space::{Caller, Pool, Space, SpaceResult, Verifier};
use arden_volume::{
    Device,
    device::{BlockCheck, ParityMismatches, Written},
};

use crate::pools::SpaceUse;

/// What one call carries at most.
const CALL_BYTES_MAX: usize = 1 << 20;

pub struct SpaceDevice {
    caller: Caller,
    space: u32,
    size_bytes: AtomicU64,
    may_differ: bool,
    piece_bytes: Option<u64>,
    taken: Arc<SpaceUse>,
}

impl SpaceDevice {
    /// `give_back`: has the volume on it give back what it can.
    pub fn new(taken: SpaceUse, give_back: impl Fn() + Send + Sync + 'static) -> SpaceResult<SpaceDevice> {
        taken.add_reclaimer(Arc::new(give_back));
        let caller = taken.caller();
        let name = taken.space().to_string();
        let (space, size, may_differ, piece_bytes) = caller.call(move |pool: Pool| async move {
            let s = pool.space_named(&name)?;
            Ok((s.id(), s.size_bytes(), s.begin_verifying(), s.piece_bytes()))
        })?;
        Ok(SpaceDevice {
            caller,
            space,
            size_bytes: AtomicU64::new(size),
            may_differ,
            piece_bytes,
            taken: Arc::new(taken),
        })
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
fn wait_for_room(taken: Weak<SpaceUse>, told: Told, again: impl FnOnce() -> IoResult<()> + Send + 'static) {
    let asks = move || {
        let room = taken.upgrade().is_some_and(|taken| taken.ask_for_room());
        told.tell(if room { again() } else { Err(IoError::NoSpace) });
    };
    if let Err(e) = thread::Builder::new().name("arden-room".into()).spawn(asks) {
        tracing::error!("no thread to ask for room: {e}");
    }
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

    fn end_crash_resync(&self) -> IoResult<()> {
        self.run(|s| async move { s.end_crash_resync().await })
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

    fn parity_mismatches(&self, offset: u64, len: u64) -> IoResult<Option<ParityMismatches>> {
        self.run(move |s| async move { s.parity_mismatches(offset, len).await })
    }

    fn recompute_parity(&self, row: u64, check: &BlockCheck) -> IoResult<u64> {
        let accepts = check.placed(row);
        self.run(move |s| async move { s.recompute_parity(row, &verifier(accepts)).await })
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

    /// In one call.
    fn write_durably(&self, writes: &[(u64, Vec<u8>)]) -> IoResult<()> {
        let parts = shared(writes);
        self.run_with_room(move |s| async move { s.write_durably(parts).await })
    }

    fn writes_later(&self) -> bool {
        true
    }

    fn write_durably_later(&self, writes: Vec<(u64, Vec<u8>)>, told: Written) {
        let parts = shared(&writes);
        let (told, taken) = (Told(Some(told)), Arc::downgrade(&self.taken));
        let (caller, space) = (self.caller.clone(), self.space);
        let write = move |pool: Pool| async move { pool.space(space)?.write_durably(parts).await };
        let again = write.clone();
        let done = move |written: SpaceResult<()>| match written.map_err(IoError::from) {
            Err(IoError::NoSpace) => wait_for_room(taken, told, move || caller.call(again).map_err(IoError::from)),
            written => told.tell(written),
        };
        // Where the pool is closed, letting go of it tells.
        let _ = self.caller.submit(write, done);
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::OnceLock, sync::mpsc::channel};

    use arden_admin::{
        State, Storage,
        storage::{NewPool, NewSpace},
    };
    use arden_block::BLOCK_BYTES;

    use super::*;
    use crate::{
        pools::{PoolAdmin, Pools},
        sharing::NothingShared,
    };

    /// A small pool with two thin spaces, each larger than what it has.
    fn pools(dir: &Path) -> Arc<Pools> {
        fs::create_dir_all(dir).unwrap();
        let disk = dir.join("disk");
        fs::File::create(&disk).unwrap().set_len(2 << 30).unwrap();
        let pools = Pools::start(&Arc::new(State::in_memory().unwrap()), Arc::new(NothingShared)).unwrap();
        let admin = PoolAdmin(pools.clone());
        let new = NewPool { name: "tank".into(), disks: vec![disk], hot_spares: Vec::new(), force: false };
        admin.create_pool(&new).unwrap();
        for name in ["a", "b"] {
            let space = NewSpace {
                name: name.into(),
                layout: "simple".into(),
                size_bytes: Some(8 << 30),
                columns: None,
                interleave_bytes: None,
                fixed: false,
            };
            admin.create_space("tank", &space).unwrap();
        }
        pools
    }

    fn later(device: &SpaceDevice, at: u64) -> IoResult<()> {
        let (tell, told) = channel();
        device.write_durably_later(vec![(at, vec![1; BLOCK_BYTES as usize])], Box::new(move |r| tell.send(r).unwrap()));
        told.recv().unwrap()
    }

    #[test]
    fn a_write_that_finds_the_pool_full_asks_the_other_spaces_and_is_tried_again() {
        let dir = std::env::temp_dir().join(format!("arden-room-{}", std::process::id()));
        let pools = pools(&dir);
        let full: Arc<OnceLock<SpaceDevice>> = Arc::default();
        let gives = full.clone();
        let give_back = move || gives.get().unwrap().discard(0, 8 << 30).unwrap();
        let made = SpaceDevice::new(pools.take_space("a", "a test").unwrap(), give_back).unwrap();
        full.set(made).ok().unwrap();
        let device = SpaceDevice::new(pools.take_space("b", "a test").unwrap(), || {}).unwrap();
        let piece = device.piece_bytes().unwrap();
        let taken =
            (0..8 << 30).step_by(piece as usize).take_while(|at| later(full.get().unwrap(), *at).is_ok()).count();
        assert!(taken > 0 && (taken as u64) < (8 << 30) / piece, "{taken} pieces filled the pool");
        assert!(full.get().unwrap().pieces_held().len() == taken && device.pieces_held().is_empty());
        assert_eq!(later(&device, 0), Ok(()), "nothing was in the way but what the other gave back");
        assert!(full.get().unwrap().pieces_held().is_empty() && device.pieces_held().len() == 1);
        pools.stop();
        assert_eq!(later(&device, 0), Err(IoError::Gone), "told also where there is no pool any more");
        fs::remove_dir_all(&dir).unwrap();
    }
}
