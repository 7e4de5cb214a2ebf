//! Persistent reservations of the disks of a cluster's pools (docs/cluster.md, Fences): a disk is opened for writing only after this
//! node's key has been registered with it and all others are gone, and a pool ends at the first reservation conflict. Whom to fence
//! is decided elsewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;

use arden_admin::storage::PoolRecord;
use arden_block::reserve::disks::{self, Disk};
use arden_block::reserve::{self, Key, Protocol};
use arden_block::{BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, Rt, SharedBuf, SharedReads};
use arden_space::{SpaceError, SpaceResult};

use super::entered::{Entering, Reached, Victim};
use super::{Pools, devices};

/// How often a reservation that is being changed or read is looked at.
const POLL_NS: u64 = 2_000_000;
/// A disk that failed has so long to tell its keys. Then it is a broken one.
const KEYS_WAIT_NS: u64 = 2_000_000_000;

/// The key of an ownership, and what happens when a disk refuses it.
pub struct PoolGuard {
    key: Key,
    protocol: Protocol,
    /// A disk has refused a command: nothing more of this ownership is sent to any.
    ended: AtomicBool,
    /// A disk that joins or returns did not answer whether a former owner's commands have ended.
    in_doubt: AtomicBool,
    tell: Box<dyn Fn() + Send + Sync>,
    claim: Claim,
}

/// Makes a name by which disks know this machine this node's alone, or says why it is not. It may wait for other machines.
pub type Claim = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

impl PoolGuard {
    /// `tell` is called once, on the pool's thread, at the first conflict; `claim` on another, before a disk is written to.
    pub fn new(key: Key, protocol: Protocol, tell: Box<dyn Fn() + Send + Sync>, claim: Claim) -> Arc<PoolGuard> {
        let (ended, in_doubt) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(PoolGuard { key, protocol, ended, in_doubt, tell, claim })
    }

    fn check(&self) -> IoResult<()> {
        if self.ended.load(Ordering::Acquire) { Err(IoError::Conflict) } else { Ok(()) }
    }

    fn look_at<T>(&self, answer: IoResult<T>) -> IoResult<T> {
        if matches!(answer, Err(IoError::Conflict)) && !self.ended.swap(true, Ordering::AcqRel) {
            (self.tell)();
        }
        answer
    }
}

/// Whether the key of an ownership is still registered with one disk; why that cannot be read. Blocks.
type IsRegistered = Box<dyn Fn() -> Result<bool, String> + Send + Sync>;

/// Whether a command failed because the key was taken away. A disk may end a command that way that was under way when its path's key
/// was preempted: an abort (SPC-4, PREEMPT AND ABORT) is an I/O error for the host, and so is what Linux's NVMe target answers
/// until the preempting is done.
struct KeyLook {
    is_registered: IsRegistered,
    /// Looks begun and ended; there is one at a time. What failed before a look began may rely on it.
    begun: AtomicU64,
    ended: AtomicU64,
    /// By the last one.
    is_gone: AtomicBool,
}

impl KeyLook {
    fn new(is_registered: IsRegistered) -> Arc<KeyLook> {
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(KeyLook { is_registered, begun, ended, is_gone: AtomicBool::new(false) })
    }

    /// Waits for a look that begins now or later. On the pool's thread.
    async fn is_gone(self: &Arc<KeyLook>, rt: &Rt) -> bool {
        let (wanted, end) = (self.begun.load(Ordering::Acquire) + 1, rt.now_ns() + KEYS_WAIT_NS);
        while self.ended.load(Ordering::Acquire) < wanted {
            if rt.now_ns() >= end {
                return false;
            }
            self.begin();
            rt.sleep_ns(POLL_NS).await;
        }
        self.is_gone.load(Ordering::Acquire)
    }

    /// On a thread of its own, unless one is under way.
    fn begin(self: &Arc<KeyLook>) {
        let ended = self.ended.load(Ordering::Acquire);
        if self.begun.load(Ordering::Acquire) != ended {
            return;
        }
        let look = self.clone();
        let run = move || {
            look.is_gone.store((look.is_registered)() == Ok(false), Ordering::Release);
            look.ended.store(ended + 1, Ordering::Release);
        };
        if thread::Builder::new().name("arden-reserve".into()).spawn(run).is_ok() {
            self.begun.store(ended + 1, Ordering::Release);
        }
    }
}

/// A disk of a pool with a guard. After a conflict on one of them none gets another command: a disk whose key a successor has not come
/// to yet would be told that the other one is missing.
struct Guarded {
    inner: Rc<dyn BlockDevice>,
    guard: Arc<PoolGuard>,
    look: Arc<KeyLook>,
    rt: Rt,
}

impl Guarded {
    fn run<T: 'static>(&self, ask: impl FnOnce() -> LocalFuture<IoResult<T>>) -> LocalFuture<IoResult<T>> {
        if let Err(e) = self.guard.check() {
            return Box::pin(std::future::ready(Err(e)));
        }
        let (answer, guard) = (ask(), self.guard.clone());
        let (look, rt) = (self.look.clone(), self.rt.clone());
        Box::pin(async move {
            let answer = match answer.await {
                Err(IoError::Media | IoError::Gone) if look.is_gone(&rt).await => Err(IoError::Conflict),
                answer => answer,
            };
            guard.look_at(answer)
        })
    }
}

impl BlockDevice for Guarded {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        self.run(|| self.inner.read(offset, len))
    }

    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        self.run(|| self.inner.write(offset, data, durable))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.run(|| self.inner.write_zeroes(offset, len))
    }

    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.run(|| self.inner.discard(offset, len))
    }

    fn flush(&self) -> LocalFuture<IoResult<()>> {
        self.run(|| self.inner.flush())
    }

    fn room_of_files(&self) -> Option<u64> {
        self.inner.room_of_files()
    }

    fn shared_reads(&self) -> Option<Arc<dyn SharedReads>> {
        Some(Arc::new(GuardedReads { inner: self.inner.shared_reads()?, guard: self.guard.clone() }))
    }

    fn lost_content(&self) -> bool {
        self.inner.lost_content()
    }
}

/// The same for reads on other threads. A conflict is told on the pool's thread, which reads again.
struct GuardedReads {
    inner: Arc<dyn SharedReads>,
    guard: Arc<PoolGuard>,
}

impl SharedReads for GuardedReads {
    fn read_on(&self, rt: &Rt, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        if let Err(e) = self.guard.check() {
            return Box::pin(std::future::ready(Err(e)));
        }
        let (answer, guard) = (self.inner.read_on(rt, offset, len), self.guard.clone());
        Box::pin(async move {
            let answer = answer.await?;
            guard.check().map(|()| answer)
        })
    }
}

/// The disk under the guard of its pool, if there is one.
pub fn wrap(rt: &Rt, path: &Path, guard: Option<&Arc<PoolGuard>>, inner: Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice> {
    let Some(guard) = guard.cloned() else { return inner };
    let (path, protocol, key) = (path.to_path_buf(), guard.protocol, guard.key);
    let is_registered = move || {
        let keys = disk(&path, protocol)?.path.keys().map_err(|e| e.to_string())?;
        Ok(keys.contains(&key.raw()))
    };
    Rc::new(Guarded { inner, guard, look: KeyLook::new(Box::new(is_registered)), rt: rt.clone() })
}

fn disk(path: &Path, protocol: Protocol) -> Result<Disk, String> {
    let opened = reserve::open(path, protocol).map_err(|e| e.to_string())?;
    Ok(Disk { name: path.display().to_string(), path: opened })
}

/// Opens a disk that joins or returns to a pool that is owned. Its lock comes first: commands of before have ended then, which would
/// pass with the key.
///
/// # Errors
/// Refused, as [`devices::open_device`], or when the key cannot be registered.
pub async fn open_device(
    rt: &Rt,
    path: &Path,
    labels: &devices::Labels,
    guard: Option<&Arc<PoolGuard>>,
) -> SpaceResult<Rc<dyn BlockDevice>> {
    let dev = devices::open_device(rt, path, labels)?;
    if let Some(guard) = guard {
        let (done, waits) = channel();
        let (path, guard) = (path.to_path_buf(), guard.clone());
        let run = move || disks::admit(&disk(&path, guard.protocol)?, guard.key, &guard.in_doubt, &guard.claim);
        // On another thread: the pool goes on meanwhile.
        let admit = move || _ = done.send(run());
        let spawned = thread::Builder::new().name("arden-reserve".into()).spawn(admit);
        spawned.map_err(|e| SpaceError::Refused(format!("no thread: {e}")))?;
        loop {
            match waits.try_recv() {
                Ok(Ok(())) => break,
                Ok(Err(why)) => return Err(SpaceError::Refused(why)),
                Err(TryRecvError::Disconnected) => return Err(SpaceError::Refused("no answer".into())),
                Err(TryRecvError::Empty) => rt.sleep_ns(POLL_NS).await,
            }
        }
    }
    Ok(wrap(rt, path, guard, dev))
}

/// Waits until no command of before, of this process or one that was killed, is on its way to the disk.
fn wait_for_lock(path: &Path) -> Result<(), String> {
    let rt = Rt::real_with_threads();
    let (waits, path) = (rt.clone(), path.to_path_buf());
    let opened = rt.block_on(async move { devices::open_soon(&waits, &path, &devices::Labels::new()).await.map(drop) });
    rt.shutdown();
    opened.unwrap_or(Err(SpaceError::Closed)).map_err(|e| e.to_string())
}

impl Pools {
    /// The disks of a pool that are reached, by their labels. Those that are not are named in the log: they are neither fenced nor opened.
    pub(super) fn reached(&self, id: u128) -> Result<Vec<(u128, PathBuf)>, String> {
        let record = self.record_of(id).ok_or_else(|| format!("the state does not know the pool {id:032x}"))?;
        let found = self.disks_of(&record, id);
        for path in record.devices.iter().filter(|p| !found.iter().any(|f| devices::is_same(&f.path, p))) {
            tracing::warn!(pool = record.name, disk = %path.display(), "not reached: it is neither fenced nor opened");
        }
        if found.is_empty() {
            return Err(format!("no disk of the pool {} is reached", record.name));
        }
        let mut seen = BTreeSet::new();
        if let Some(f) = found.iter().find(|f| !seen.insert(f.disk_id)) {
            return Err(format!("{} is reached by two paths, of which each needs a key: give one", f.path.display()));
        }
        Ok(found.into_iter().map(|f| (f.disk_id, f.path)).collect())
    }

    /// The same, to be entered.
    fn reached_disks(&self, id: u128, protocol: Protocol) -> Result<Vec<Reached>, String> {
        let one = |(id, path): (u128, PathBuf)| {
            let disk = disk(&path, protocol)?;
            Ok(Reached { id, disk, wait: Box::new(move || wait_for_lock(&path)) })
        };
        self.reached(id)?.into_iter().map(one).collect()
    }

    /// Keeps `victim` from every disk of the pool that is reached, as the holder of `mine`.
    ///
    /// # Errors
    /// Why `victim` may still write to one.
    pub fn fence_disks(&self, id: u128, protocol: Protocol, mine: Key, victim: Victim) -> Result<(), String> {
        let reached = self.reached_disks(id, protocol)?;
        Entering { all: &self.entered, pool: id, mine }.fence(&reached, victim)
    }

    /// Registers `mine` with every disk that is reached. `fenced` have been fenced for `mine`, and are where a disk was not reached
    /// then. Gives the other keys that were there before.
    ///
    /// # Errors
    /// Why a disk cannot be used.
    pub fn register_disks(
        &self,
        id: u128,
        protocol: Protocol,
        mine: Key,
        fenced: &[Victim],
    ) -> Result<Vec<Key>, String> {
        let reached = self.reached_disks(id, protocol)?;
        Entering { all: &self.entered, pool: id, mine }.register(&reached, fenced)
    }

    /// Refuses a pool with a disk that cannot be fenced, or is not reached.
    ///
    /// # Errors
    /// Which, and why.
    pub fn check_reservations(&self, id: u128, protocol: Protocol) -> Result<(), String> {
        let record = self.record_of(id).ok_or_else(|| format!("the state does not know the pool {id:032x}"))?;
        let reached = self.reached(id)?;
        if let Some(path) = record.devices.iter().find(|p| !reached.iter().any(|r| devices::is_same(&r.1, p))) {
            return Err(format!("{} is not reached", path.display()));
        }
        for (_, path) in reached {
            disk(&path, protocol)?.path.check().map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(())
    }

    /// The names by which those disks of the pool that are reached know this machine, each once.
    ///
    /// # Errors
    /// None is reached, or one does not tell.
    pub fn names_at_disks(&self, id: u128, protocol: Protocol) -> Result<Vec<String>, String> {
        let mut names = BTreeSet::new();
        for (_, path) in self.reached(id)? {
            let at = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
            names.extend(disk(&path, protocol).map_err(|e| at(&e))?.path.known_as().map_err(|e| at(&e))?);
        }
        Ok(names.into_iter().collect())
    }

    /// Leaves only those disks in `found` that were entered with the guard's key and reached by all fences since. It is the only key on each.
    pub(super) fn confirm(
        &self,
        record: &PoolRecord,
        found: &mut Vec<devices::Found>,
        guard: &PoolGuard,
    ) -> SpaceResult<()> {
        let id = found.first().map_or(0, |f| f.pool_id);
        let entered = Entering { all: &self.entered, pool: id, mine: guard.key }.may_open();
        for f in found.iter().filter(|f| !entered.contains(&f.disk_id)) {
            tracing::warn!(pool = record.name, disk = %f.path.display(), "not fenced: it is not opened");
        }
        found.retain(|f| entered.contains(&f.disk_id));
        for f in found.iter() {
            let confirmed = disk(&f.path, guard.protocol).and_then(|d| disks::confirm(&d, guard.key, &guard.claim));
            confirmed.map_err(SpaceError::Refused)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A disk that fails with an error or not, and counts commands.
    struct Reserved {
        info: DeviceInfo,
        fails: Option<IoError>,
        commands: Rc<Cell<u32>>,
    }

    impl Reserved {
        fn answer<T: 'static>(&self, ok: T) -> LocalFuture<IoResult<T>> {
            self.commands.set(self.commands.get() + 1);
            Box::pin(std::future::ready(self.fails.map_or(Ok(ok), Err)))
        }
    }

    impl BlockDevice for Reserved {
        fn info(&self) -> &DeviceInfo {
            &self.info
        }
        fn read(&self, _: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
            self.answer(Buf::zeroed(len))
        }
        fn write(&self, _: u64, _: SharedBuf, _: bool) -> LocalFuture<IoResult<()>> {
            self.answer(())
        }
        fn write_zeroes(&self, _: u64, _: u64) -> LocalFuture<IoResult<()>> {
            self.answer(())
        }
        fn discard(&self, _: u64, _: u64) -> LocalFuture<IoResult<()>> {
            self.answer(())
        }
        fn flush(&self) -> LocalFuture<IoResult<()>> {
            self.answer(())
        }
    }

    /// A guard, and whether it has told.
    fn guard() -> (Arc<PoolGuard>, Arc<AtomicBool>) {
        let told = Arc::new(AtomicBool::new(false));
        let tells = told.clone();
        let tell = move || assert!(!tells.swap(true, Ordering::SeqCst), "told twice");
        let key = Key::new(1, 1, 1).unwrap();
        (PoolGuard::new(key, Protocol::Scsi, Box::new(tell), Box::new(|_| Ok(()))), told)
    }

    fn guarded(
        rt: &Rt,
        guard: &Arc<PoolGuard>,
        (fails, commands): (Option<IoError>, &Rc<Cell<u32>>),
        is_registered: IsRegistered,
    ) -> Rc<Guarded> {
        let info = DeviceInfo {
            name: String::new(),
            size_bytes: 1 << 20,
            media: arden_block::Media::Unknown,
            model: String::new(),
            serial: String::new(),
        };
        let inner = Rc::new(Reserved { info, fails, commands: commands.clone() });
        Rc::new(Guarded { inner, guard: guard.clone(), look: KeyLook::new(is_registered), rt: rt.clone() })
    }

    fn block() -> SharedBuf {
        Buf::zeroed(4096).share()
    }

    /// Linux's NVMe target fails what arrives while the key is being taken away, and does not say "conflict".
    #[test]
    fn a_command_that_failed_because_the_key_was_taken_is_a_conflict() {
        let rt = Rt::real_with_threads();
        let (within, commands) = (rt.clone(), Rc::new(Cell::new(0)));
        rt.block_on(async move {
            for (error, registered, answer) in [
                (IoError::Media, Ok(false), IoError::Conflict),
                (IoError::Gone, Ok(false), IoError::Conflict),
                (IoError::Media, Ok(true), IoError::Media),
                (IoError::Gone, Err("the disk does not answer".to_string()), IoError::Gone),
                (IoError::NoSpace, Ok(false), IoError::NoSpace),
            ] {
                let (guard, told) = guard();
                let is_registered = registered.clone();
                let disk = guarded(&within, &guard, (Some(error), &commands), Box::new(move || is_registered.clone()));
                assert_eq!(disk.write(0, block(), true).await, Err(answer), "{error:?} {registered:?}");
                assert_eq!(told.load(Ordering::SeqCst), answer == IoError::Conflict);
            }
        })
        .unwrap();
        rt.shutdown();
    }

    /// The key is taken after one command failed and before the next one does: the second may not rely on the look of the first.
    #[test]
    fn a_command_relies_on_a_look_that_began_after_it_failed() {
        let rt = Rt::real_with_threads();
        let (within, commands) = (rt.clone(), Rc::new(Cell::new(0)));
        rt.block_on(async move {
            let (guard, told) = guard();
            let (looks, may_end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let (counted, ends) = (looks.clone(), may_end.clone());
            let is_registered = move || {
                let before = counted.fetch_add(1, Ordering::SeqCst);
                while ends.load(Ordering::SeqCst) <= before {
                    thread::yield_now();
                }
                Ok(before == 0)
            };
            let failing = (Some(IoError::Media), &commands);
            let disk = guarded(&within, &guard, failing, Box::new(is_registered));
            let write = |disk: Rc<Guarded>| async move { disk.write(0, block(), true).await };
            let first = within.spawn_value(write(disk.clone()));
            while looks.load(Ordering::SeqCst) == 0 {
                within.sleep_ns(POLL_NS).await;
            }
            let others: Vec<_> = (0..4).map(|_| within.spawn_value(write(disk.clone()))).collect();
            within.sleep_ns(POLL_NS).await;
            may_end.store(1, Ordering::SeqCst);
            assert_eq!(first.await, Err(IoError::Media));
            may_end.store(2, Ordering::SeqCst);
            for other in others {
                assert_eq!(other.await, Err(IoError::Conflict));
            }
            assert!(told.load(Ordering::SeqCst));
            assert_eq!(looks.load(Ordering::SeqCst), 2, "commands that fail together share a look");
        })
        .unwrap();
        rt.shutdown();
    }

    #[test]
    fn a_conflict_on_one_disk_ends_commands_to_all_and_is_told_once() {
        let (guard, told) = guard();
        let commands = Rc::new(Cell::new(0));
        let rt = Rt::virtual_clock(1);
        let device = |fails| guarded(&rt, &guard, (fails, &commands), Box::new(|| Ok(true)));
        let (good, fenced) = (device(None), device(Some(IoError::Conflict)));
        rt.block_on(async move {
            assert_eq!(good.write(0, block(), true).await, Ok(()));
            assert!(!told.load(Ordering::SeqCst));
            assert_eq!(fenced.write(0, block(), true).await, Err(IoError::Conflict));
            assert!(told.load(Ordering::SeqCst));
            assert_eq!(
                good.write(0, block(), true).await,
                Err(IoError::Conflict),
                "the record of the pool stays as it is"
            );
            assert_eq!(good.flush().await, Err(IoError::Conflict));
            assert_eq!(good.read(0, 4096).await.err(), Some(IoError::Conflict));
            assert_eq!(fenced.write(0, block(), true).await, Err(IoError::Conflict));
        })
        .unwrap();
        assert_eq!(commands.get(), 2, "a command was sent after the conflict");
    }
}
