//! The space of a run as the device of a volume that several threads use: what they ask goes to the thread of the devices, which
//! begins all of it and tells each when its own is done, in whatever order. When power is lost, whoever waits is told that the
//! pool is closed.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use arden_block::{Device, IoResult, LocalFuture, Redundant, Thin};
use arden_space::{Access, SharedSpace, Space, SpaceError, SpaceResult, SpaceThread};
use parking_lot::Mutex;

use crate::{turns::Turns, volume::under::Target};

/// One call of a thread.
pub struct Job {
    pub access: Access,
    /// Runs it and tells.
    pub work: Box<dyn FnOnce(Space) -> LocalFuture<()> + Send>,
    /// Nobody is told of its result any more: whoever waits is told that.
    pub cancel: Box<dyn FnOnce() + Send>,
}

/// How power is to be lost: after so many writes and flushes, or at such a write.
#[derive(Debug, Clone, Copy)]
pub enum Death {
    Never,
    After(u64),
    At(Target, u64, u64),
    Now,
}

#[derive(Default)]
struct State {
    asked: VecDeque<Job>,
    /// Of what was begun, by number.
    under_way: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
    last: u64,
    death: Option<Death>,
    dead: bool,
}

/// What threads ask of the devices.
pub struct Inbox {
    turns: Arc<Turns>,
    state: Mutex<State>,
}

impl Inbox {
    pub fn new(turns: &Arc<Turns>) -> Arc<Inbox> {
        Arc::new(Inbox { turns: turns.clone(), state: Mutex::default() })
    }

    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// From now on power is lost so; heard before anything that is asked later.
    pub fn die(&self, death: Death) {
        self.state.lock().death = Some(death);
        self.turns.wake_device();
    }

    pub fn death(&self) -> Option<Death> {
        self.state.lock().death.take()
    }

    pub fn next(&self) -> Option<Job> {
        self.state.lock().asked.pop_front()
    }

    pub fn is_busy(&self) -> bool {
        let s = self.state.lock();
        !s.asked.is_empty() || !s.under_way.is_empty() || s.death.is_some()
    }

    /// Notes what is begun. Its number.
    pub fn begin(&self, cancel: Box<dyn FnOnce() + Send>) -> u64 {
        let mut s = self.state.lock();
        s.last += 1;
        let number = s.last;
        s.under_way.insert(number, cancel);
        number
    }

    pub fn over(&self, number: u64) {
        let gone = self.state.lock().under_way.remove(&number);
        drop(gone);
    }

    /// Power is lost: all who wait are told, and whoever asks from now on at once.
    pub fn lose_power(&self) {
        let (asked, under_way) = {
            let mut s = self.state.lock();
            s.dead = true;
            (std::mem::take(&mut s.asked), std::mem::take(&mut s.under_way))
        };
        under_way.into_values().for_each(|cancel| cancel());
        asked.into_iter().for_each(|job| (job.cancel)());
    }
}

/// The way to the space of a run for its threads.
pub struct InTurns(pub Arc<Inbox>);

impl SpaceThread for InTurns {
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
        let told = Arc::new(Mutex::new(Some(done)));
        let nobody = told.clone();
        let work = move |space| -> LocalFuture<()> {
            Box::pin(async move {
                let answer = work(space).await;
                let done = told.lock().take();
                if let Some(done) = done {
                    done(answer);
                }
            })
        };
        let cancel = move || {
            let done = nobody.lock().take();
            drop(done);
        };
        let mut s = self.0.state.lock();
        if s.dead {
            drop(s);
            return Err(SpaceError::Closed);
        }
        s.asked.push_back(Job { access, work: Box::new(work), cancel: Box::new(cancel) });
        drop(s);
        self.0.turns.wake_device();
        Ok(())
    }

    fn has_clock(&self) -> bool {
        true
    }

    /// Nobody else has room to give.
    fn ask_for_room(&self) -> bool {
        false
    }
}

/// The same as a device that does not tell when it has written, so that threads of the volume wait for batches.
pub struct Silent(pub SharedSpace<InTurns>);

impl Device for Silent {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.0.write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.0.discard(offset, len)
    }
    fn write_durably(&self, writes: &[(u64, Vec<u8>)]) -> IoResult<()> {
        self.0.write_durably(writes)
    }
    fn look_again(&self) -> IoResult<u64> {
        self.0.look_again()
    }
    fn thin(&self) -> Option<&dyn Thin> {
        self.0.thin()
    }
    fn redundant(&self) -> Option<&dyn Redundant> {
        self.0.redundant()
    }
}
