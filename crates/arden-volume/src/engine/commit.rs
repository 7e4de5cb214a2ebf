//! Commits: batches of the log by group commit ([`arden_store::group`]). On a device that tells when it has written, no thread
//! waits, and the next batch leaves as soon as the device has told of the one before it; elsewhere whoever comes first
//! writes for all who wait. Refuses to know what those do who asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arden_block::{Device, IoResult};
use arden_store::group::{CommitLog, GroupCommit, Taken, Told};

use crate::{
    disk::error::{VolError, VolResult},
    engine::{
        alloc::AllocLock,
        state::State,
        wal::{Sealed, Wal},
    },
};

/// Told how the commit went.
pub type Committed = Told<VolError>;

/// The log as group commit sees it. Shared with the batch that is on its way: not the engine itself, which may go away
/// meanwhile on a thread that waits for the device.
struct Batches {
    device: Arc<dyn Device>,
    wal: Arc<Wal>,
    alloc: Arc<AllocLock>,
    failed: Arc<AtomicBool>,
    /// The device tells when a batch is written.
    tells: bool,
}

impl Batches {
    fn fail(&self, e: VolError) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!("the volume stops: {e}");
        }
    }
}

impl CommitLog for Batches {
    type Batch = Sealed;
    type Error = VolError;
    const INDEPENDENT: bool = false;

    fn take(&self, _target: u64) -> VolResult<Option<Taken<Sealed>>> {
        if self.failed.load(Ordering::Acquire) {
            return Err(VolError::Failed);
        }
        let sealed = self.wal.seal().inspect_err(|e| self.fail(*e))?;
        Ok(sealed.map(|sealed| Taken { upto: sealed.last_seq, batch: sealed }))
    }

    fn write(&self, sealed: Sealed) -> VolResult<()> {
        self.device.write_durably(&sealed.writes).map_err(VolError::from).inspect_err(|e| self.fail(*e))?;
        self.alloc.lock().release_upto(sealed.last_seq);
        Ok(())
    }

    fn writes_later(&self) -> bool {
        self.tells
    }

    fn write_later(&self, sealed: Sealed, told: Committed) {
        let (alloc, failed) = (self.alloc.clone(), self.failed.clone());
        let written = move |written: IoResult<()>| {
            match &written {
                // Blocks that these operations freed may be used again: now, or when somebody needs the map less.
                Ok(()) => {
                    if let Some(mut alloc) = alloc.try_lock() {
                        alloc.release_upto(sealed.last_seq);
                    }
                }
                Err(e) if !failed.swap(true, Ordering::AcqRel) => {
                    tracing::error!("the volume stops: {}", VolError::from(*e));
                }
                Err(_) => {}
            }
            told(written.map_err(VolError::from));
        };
        self.device.write_durably_later(sealed.writes, Box::new(written));
    }

    fn pauses(&self) -> bool {
        self.tells && self.device.has_clock()
    }

    fn end_later(&self, after: Duration, time: Box<dyn Send>) {
        self.device.let_go_later(after, time);
    }

    fn abandoned() -> VolError {
        VolError::Failed
    }
}

/// The volume's group commit.
pub struct Committer {
    group: Arc<GroupCommit<Batches>>,
}

impl Committer {
    /// For a state whose operations up to `seq` are durable.
    pub fn new(device: Arc<dyn Device>, state: &State, seq: u64) -> Committer {
        let (wal, alloc, failed) = (state.wal.clone(), state.alloc.clone(), state.failed.clone());
        let tells = device.writes_later();
        Committer { group: GroupCommit::new(Batches { device, wal, alloc, failed, tells }, seq) }
    }

    /// The number of the last operation that is durable.
    pub fn durable(&self) -> u64 {
        self.group.durable()
    }

    /// Whether `commit_later` needs no thread.
    pub fn tells(&self) -> bool {
        self.group.log().tells
    }

    /// Returns when operation `seq`, and all before it, are durable.
    ///
    /// # Errors
    /// Why they are not; nothing is changed any more then.
    pub fn commit_to(&self, seq: u64) -> VolResult<()> {
        self.group.commit(seq)
    }

    /// Calls `done`, which must not wait for this volume, when operation `seq`, and all before it, are durable: on the thread
    /// of `serve` or the device's, or here where they are, and where there is no such thread.
    pub fn commit_later(&self, seq: u64, done: Committed) {
        self.group.commit_later(seq, done);
    }

    /// The body of the thread that commits for those who do not wait in one, where the device does not tell them itself.
    pub fn serve(&self) -> impl FnOnce() + Send + use<> {
        GroupCommit::serve(&self.group)
    }

    pub fn stop_serving(&self) {
        self.group.stop_serving();
    }

    /// Operations up to `seq` are: what they freed may be used again.
    pub fn now_durable(&self, seq: u64) {
        self.group.now_durable(seq);
        self.group.log().alloc.lock().release_upto(seq);
    }

    /// Nothing more is written when it returns, nor changed.
    pub fn stop(&self) {
        self.group.log().failed.store(true, Ordering::Release);
        self.group.wait_idle();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use arden_block::{IoError, Thin, device::Written};
    use parking_lot::Mutex;

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
        /// Where it has a clock: pauses, of which the test is the clock.
        pauses: Option<Mutex<Vec<Box<dyn Send>>>>,
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
        fn has_clock(&self) -> bool {
            self.pauses.is_some()
        }
        fn let_go_later(&self, _after: Duration, what: Box<dyn Send>) {
            self.pauses.as_ref().unwrap().lock().push(what);
        }
    }

    /// A volume whose first batches were written, and what it asks of its device from now on.
    fn volume() -> (Arc<Slow>, Arc<Volume>, Receiver<Batch>) {
        volume_on(None)
    }

    fn volume_on(pauses: Option<Mutex<Vec<Box<dyn Send>>>>) -> (Arc<Slow>, Arc<Volume>, Receiver<Batch>) {
        let memory = MemDevice::new(8 << 20);
        Volume::format(&memory, "test", 0x77, arden_wire::FileTime(1)).unwrap();
        // With its root.
        let memory = Arc::new(memory);
        drop(Volume::open(memory.clone(), options()).unwrap());
        let (tx, rx) = channel();
        let device = Arc::new(Slow { memory: MemDevice::holding(memory.content()), batches: Mutex::new(tx), pauses });
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

    /// Two clients that wait for each answer: one was told, and the other's change waits, on a device that took its time. And what
    /// asks for a change.
    fn in_a_pause() -> (Arc<Slow>, Arc<Volume>, Receiver<Batch>, Receiver<&'static str>, impl Fn(&'static str)) {
        let (device, vol, batches) = volume_on(Some(Mutex::default()));
        let (tell, told) = channel();
        let owner = vol.clone();
        let ask = move |name: &'static str| {
            Files::new(&owner).write(name, name.as_bytes());
            let tell = tell.clone();
            owner.commit_later(owner.progress().0, Box::new(move |r| r.map(|()| tell.send(name).unwrap()).unwrap()));
        };
        ask("first");
        let first = batches.try_recv().unwrap();
        ask("second");
        std::thread::sleep(Duration::from_millis(5));
        write(&device, first);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["first"]);
        assert!(batches.try_recv().is_err(), "the next batch waits for the first client");
        (device, vol, batches, told, ask)
    }

    fn end_pauses(device: &Slow) -> usize {
        let ended = std::mem::take(&mut *device.pauses.as_ref().unwrap().lock());
        ended.len()
    }

    #[test]
    fn the_next_batch_has_the_changes_of_those_who_were_just_told() {
        let (device, _vol, batches, told, ask) = in_a_pause();
        ask("third");
        let both = batches.try_recv().expect("nobody else is waited for");
        // The time of the pause is over later.
        assert_eq!(end_pauses(&device), 1);
        assert!(batches.try_recv().is_err());
        std::thread::sleep(Duration::from_millis(5));
        write(&device, both);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["second", "third"]);
        // Both are waited for, and one comes.
        ask("fourth");
        assert!(batches.try_recv().is_err());
        assert_eq!(end_pauses(&device), 1);
        write(&device, batches.try_recv().expect("the other one does not come"));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["fourth"]);
    }

    #[test]
    fn a_pause_ends_with_its_time() {
        let (device, vol, batches, told, ask) = in_a_pause();
        assert_eq!(end_pauses(&device), 1);
        write(&device, batches.try_recv().expect("it waited long enough"));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["second"]);
        // In vain: some batches leave at once. What nobody waits for any more is let go of by the time's end.
        ask("third");
        let third = batches.try_recv().unwrap();
        ask("fourth");
        write(&device, third);
        write(&device, batches.try_recv().expect("no pause"));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["third", "fourth"]);
        assert_eq!((end_pauses(&device), vol.progress().0), (0, vol.progress().1));
    }

    #[test]
    fn whoever_waits_in_a_pause_is_told_when_the_volume_is_dropped() {
        let (device, vol, batches, told, ask) = in_a_pause();
        drop((vol, ask));
        assert_eq!(end_pauses(&device), 1);
        write(&device, batches.try_recv().expect("what waits keeps the log"));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["second"]);
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
