//! Commits: one batch of the log is on its way at a time, and all who ask meanwhile share the next. On a device that tells when
//! it has written, no thread waits, and the next batch leaves as soon as the device has told of the one before it;
//! elsewhere whoever comes first writes for all who wait. Refuses to know what those do who asked.
//!
//! | lock | protects | taken |
//! |---|---|---|
//! | `Committer::leader` | nothing by itself: who writes a batch, on a device that does not tell | before all others of the engine but for the checkpoint's |
//! | `Committer::waiting` | whether a batch is on its way, and who waits for it | alone |

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
    mpsc::sync_channel,
};

use arden_block::{Device, IoResult};
use parking_lot::{Condvar, Mutex};

use crate::{
    disk::error::{VolError, VolResult},
    engine::{alloc::Alloc, state::State, wal::Wal},
};

/// Told how the commit went.
pub type Committed = Box<dyn FnOnce(VolResult<()>) + Send>;

#[derive(Default)]
struct Waiting {
    /// A batch is on its way.
    busy: bool,
    /// By the number of the operation that has to be durable.
    list: Vec<(u64, Committed)>,
}

/// Shared with the batch that is on its way: not the engine itself, which may go away meanwhile on a thread that waits for
/// the device.
pub struct Committer {
    device: Arc<dyn Device>,
    wal: Arc<Wal>,
    alloc: Arc<Mutex<Alloc>>,
    /// The device tells when a batch is written.
    tells: bool,
    durable_seq: AtomicU64,
    failed: Arc<AtomicBool>,
    leader: Mutex<()>,
    waiting: Mutex<Waiting>,
    idle: Condvar,
}

impl Committer {
    /// For a state whose operations up to `seq` are durable.
    pub fn new(device: Arc<dyn Device>, state: &State, seq: u64) -> Arc<Committer> {
        Arc::new(Committer {
            tells: device.writes_later(),
            device,
            wal: state.wal.clone(),
            alloc: state.alloc.clone(),
            durable_seq: AtomicU64::new(seq),
            failed: state.failed.clone(),
            leader: Mutex::new(()),
            waiting: Mutex::default(),
            idle: Condvar::new(),
        })
    }

    /// The number of the last operation that is durable.
    pub fn durable(&self) -> u64 {
        self.durable_seq.load(Ordering::Acquire)
    }

    /// Whether `ask` needs no thread.
    pub fn tells(&self) -> bool {
        self.tells
    }

    /// Returns when operation `seq`, and all before it, are durable.
    ///
    /// # Errors
    /// Why they are not; nothing is changed any more then.
    pub fn commit_to(self: &Arc<Self>, seq: u64) -> VolResult<()> {
        if self.durable() >= seq {
            return Ok(());
        }
        if self.tells {
            return self.wait(seq);
        }
        let _leader = self.leader.lock();
        if self.durable() >= seq {
            return Ok(());
        }
        if self.failed.load(Ordering::Acquire) {
            return Err(VolError::Failed);
        }
        let Some(sealed) = self.wal.seal().inspect_err(|e| self.fail(*e))? else { return Ok(()) };
        self.device.write_durably(&sealed.writes).map_err(VolError::from).inspect_err(|e| self.fail(*e))?;
        self.now_durable(sealed.last_seq);
        Ok(())
    }

    /// Operations up to `seq` are: what they freed may be used again.
    pub fn now_durable(&self, seq: u64) {
        self.durable_seq.fetch_max(seq, Ordering::AcqRel);
        self.alloc.lock().release_upto(seq);
    }

    /// Calls `done` when operation `seq`, and all before it, are durable: here when they are, else on the device's thread.
    pub fn ask(self: &Arc<Self>, seq: u64, done: Committed) {
        if self.durable() >= seq {
            return done(Ok(()));
        }
        {
            let mut waiting = self.waiting.lock();
            waiting.list.push((seq, done));
            if std::mem::replace(&mut waiting.busy, true) {
                return;
            }
        }
        self.next();
    }

    fn wait(self: &Arc<Self>, seq: u64) -> VolResult<()> {
        if self.durable() >= seq {
            return Ok(());
        }
        let (tx, rx) = sync_channel(1);
        self.ask(
            seq,
            Box::new(move |r| {
                let _ = tx.send(r);
            }),
        );
        rx.recv().unwrap_or(Err(VolError::Failed))
    }

    /// Nothing more is written when it returns, nor changed.
    pub fn stop(&self) {
        let _leader = self.leader.lock();
        self.failed.store(true, Ordering::Release);
        let mut waiting = self.waiting.lock();
        while waiting.busy {
            self.idle.wait(&mut waiting);
        }
    }

    /// Sends what waits; whoever calls it has made the pipeline busy.
    fn next(self: &Arc<Self>) {
        let stopped = self.failed.load(Ordering::Acquire);
        match if stopped { Err(VolError::Failed) } else { self.wal.seal() } {
            Ok(Some(sealed)) => {
                let me = self.clone();
                let told = move |written: IoResult<()>| me.written(sealed.last_seq, written.map_err(VolError::from));
                self.device.write_durably_later(sealed.writes, Box::new(told));
            }
            // What was asked for left with an earlier batch, and all of those are durable.
            Ok(None) => self.clone().written(u64::MAX, Ok(())),
            Err(e) => self.clone().written(0, Err(e)),
        }
    }

    fn written(self: Arc<Self>, last: u64, written: VolResult<()>) {
        match written {
            Ok(()) if last < u64::MAX => self.told_durable(last),
            Ok(()) | Err(VolError::Failed) => {}
            Err(e) => self.fail(e),
        }
        let (ready, more) = {
            let mut waiting = self.waiting.lock();
            let all = std::mem::take(&mut waiting.list);
            let ready = match written {
                Ok(()) => {
                    let (ready, later) = all.into_iter().partition(|(seq, _)| *seq <= last);
                    waiting.list = later;
                    ready
                }
                Err(_) => all,
            };
            waiting.busy = !waiting.list.is_empty();
            if !waiting.busy {
                self.idle.notify_all();
            }
            (ready, waiting.busy)
        };
        if more {
            self.next();
        }
        // Whoever is told may let go of the volume: nothing of it may be left here, on the device's thread.
        drop(self);
        let ready: Vec<(u64, Committed)> = ready;
        ready.into_iter().for_each(|(_, done)| done(written));
    }

    /// Blocks that operations up to `seq` freed may be used again: now, or when somebody needs the map less.
    fn told_durable(&self, seq: u64) {
        self.durable_seq.fetch_max(seq, Ordering::AcqRel);
        if let Some(mut alloc) = self.alloc.try_lock() {
            alloc.release_upto(seq);
        }
    }

    fn fail(&self, e: VolError) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!("the volume stops: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use arden_block::{IoError, Thin, device::Written};

    use super::*;
    use crate::{
        disk::device::MemDevice,
        testing::{Files, Volume, options},
    };

    type Batch = (Vec<(u64, Vec<u8>)>, Written);

    /// Hands each batch to the test, which writes it and tells, as the device's thread.
    struct Slow {
        memory: MemDevice,
        batches: Mutex<Sender<Batch>>,
    }

    impl Device for Slow {
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
            self.memory.read(offset, buf)
        }
        fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
            self.memory.write(offset, data)
        }
        fn flush(&self) -> IoResult<()> {
            Ok(())
        }
        fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
            self.memory.discard(offset, len)
        }
        fn thin(&self) -> Option<&dyn Thin> {
            self.memory.thin()
        }
        fn writes_later(&self) -> bool {
            true
        }
        fn write_durably_later(&self, writes: Vec<(u64, Vec<u8>)>, told: Written) {
            self.batches.lock().send((writes, told)).unwrap();
        }
    }

    /// A volume whose first batches were written, and what it asks of its device from now on.
    fn volume() -> (Arc<Slow>, Arc<Volume>, Receiver<Batch>) {
        let memory = MemDevice::new(8 << 20);
        Volume::format(&memory, "test", 0x77, arden_wire::FileTime(1)).unwrap();
        // With its root.
        let memory = Arc::new(memory);
        drop(Volume::open(memory.clone(), options()).unwrap());
        let (tx, rx) = channel();
        let device = Arc::new(Slow { memory: MemDevice::holding(memory.content()), batches: Mutex::new(tx) });
        let vol = Volume::open(device.clone(), options()).unwrap();
        (device, vol, rx)
    }

    fn write(device: &Slow, (writes, told): Batch) {
        writes.iter().for_each(|(at, bytes)| device.write(*at, bytes).unwrap());
        told(Ok(()));
    }

    #[test]
    fn whoever_asks_while_a_batch_is_on_its_way_shares_the_next() {
        let (device, vol, batches) = volume();
        let files = Files::new(&vol);
        let (tell, told) = channel();
        let ask = |name: &'static str| {
            files.write(name, name.as_bytes());
            let tell = tell.clone();
            vol.commit_later(vol.progress().0, Box::new(move |r| tell.send((name, r)).unwrap()));
        };
        ask("first");
        let first = batches.try_recv().expect("nobody is waited for");
        ask("second");
        ask("third");
        assert!(batches.try_recv().is_err() && told.try_recv().is_err(), "one at a time, and nobody is told too early");
        write(&device, first);
        assert_eq!(told.try_recv(), Ok(("first", Ok(()))));
        assert!(told.try_recv().is_err());
        let second = batches.try_recv().expect("it leaves at once");
        let kept = device.memory.content();
        write(&device, second);
        assert_eq!([told.try_recv(), told.try_recv()], [Ok(("second", Ok(()))), Ok(("third", Ok(())))]);
        assert!(batches.try_recv().is_err());
        for (content, has_third) in [(kept, false), (device.memory.content(), true)] {
            let after = Volume::open(Arc::new(MemDevice::holding(content)), options()).unwrap();
            let files = Files::new(&after);
            assert_eq!(files.read("first"), b"first");
            assert_eq!(files.find("third").is_some(), has_third);
        }
    }

    #[test]
    fn a_thread_that_waits_returns_when_it_is_told() {
        let (device, vol, batches) = volume();
        Files::new(&vol).write("file", b"content");
        std::thread::scope(|s| {
            let waits = s.spawn(|| vol.sync());
            write(&device, batches.recv().unwrap());
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        assert_eq!(vol.progress().0, vol.progress().1);
    }

    #[test]
    fn after_a_batch_that_failed_nothing_is_told_to_be_durable() {
        let (_, vol, batches) = volume();
        let files = Files::new(&vol);
        let (tell, told) = channel();
        for name in ["one", "two"] {
            files.write(name, b"content");
            let tell = tell.clone();
            vol.commit_later(vol.progress().0, Box::new(move |r| tell.send(r).unwrap()));
        }
        let (_, failed) = batches.try_recv().unwrap();
        failed(Err(IoError::Gone));
        assert!(told.try_recv().unwrap().is_err() && told.try_recv().unwrap().is_err());
        assert!(batches.try_recv().is_err(), "the journal has a hole: nothing may follow");
        assert!(vol.sync().is_err() && files.try_write("three", b"content").is_err());
    }
}
