//! Rows of parity that were changed over what a disk had lost or made up: the device tells of them, and here they are mended, on a thread of
//! their own while the volume is in use, and before it is closed. Owns who mends, for how long, and the pause afterwards.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use arden_lock::{Condvar, Mutex, ranks, thread};

use super::{even_rows, has_parity};
use crate::{
    disk::error::{LastError, VolError, VolResult},
    engine::owner::Engine,
};

/// How often the device is asked for rows.
const INTERVAL: Duration = Duration::from_secs(2);
/// After a walk the thread rests so many times as long: a disk that goes on lying takes no more than a tenth of it.
const REST_TIMES: u32 = 10;
/// How often whoever has patience asks for rows.
const ROUNDS_MAX: usize = 8;
/// How long walks go on that somebody waits for, after his patience has ended. Rows that they do not come to wait for a scrub.
const WALKS_MAX: Duration = Duration::from_secs(30);

type Rows = Vec<Vec<u64>>;

#[derive(Default)]
struct State {
    /// Somebody mends.
    is_taken: bool,
    /// The thread is to end.
    stop: bool,
    /// Rows that were told of and could not be mended yet. The device does not tell often enough to be asked again.
    left: Rows,
}

/// One mends at a time.
#[derive(Default)]
struct Turns {
    state: Mutex<State, ranks::ChangedRows>,
    changed: Condvar,
}

impl Turns {
    fn take(self: &Arc<Self>) -> Turn {
        let mut state = self.state.lock();
        while state.is_taken {
            self.changed.wait(&mut state);
        }
        state.is_taken = true;
        Turn(self.clone())
    }

    /// The next turn of the thread, so long after its last one. None: it is to end.
    fn take_after(self: &Arc<Self>, rest: Duration) -> Option<Turn> {
        let until = thread::now() + rest;
        let mut state = self.state.lock();
        while !state.stop {
            let rest = until.saturating_duration_since(thread::now());
            if rest.is_zero() && !state.is_taken {
                state.is_taken = true;
                return Some(Turn(self.clone()));
            }
            self.changed.wait_for(&mut state, if rest.is_zero() { INTERVAL } else { rest });
        }
        None
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }
}

/// Whoever has it mends.
struct Turn(Arc<Turns>);

impl Turn {
    fn keep(&self, rows: Rows) {
        self.0.state.lock().left = rows;
    }

    fn take_left(&self) -> Rows {
        std::mem::take(&mut self.0.state.lock().left)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.state.lock().is_taken = false;
        self.0.changed.notify_all();
    }
}

/// Asks for rows that were changed and do not fit, and mends them.
pub struct ChangedRows {
    engine: Arc<Engine>,
    has_parity: bool,
    turns: Arc<Turns>,
}

fn rest_after(walk: Duration) -> Duration {
    INTERVAL.max(walk * REST_TIMES)
}

/// Rows that were mended, and blocks that were written for that.
#[derive(Default)]
struct Mended {
    rows: usize,
    healed: u64,
}

impl ChangedRows {
    pub fn new(engine: Arc<Engine>) -> Arc<ChangedRows> {
        let has_parity = has_parity(&engine);
        Arc::new(ChangedRows { engine, has_parity, turns: Arc::default() })
    }

    /// Mends from now on, until [`ChangedRows::stop`] or the volume has failed.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(self: &Arc<Self>) -> VolResult<()> {
        if !self.has_parity {
            return Ok(());
        }
        let (weak, turns) = (Arc::downgrade(self), self.turns.clone());
        let run = move || {
            let (mut rest, mut trouble) = (INTERVAL, LastError::default());
            // The turn ends last: when nothing of the volume is in use here any more.
            while let Some(turn) = turns.take_after(rest) {
                let Some(me) = weak.upgrade() else { return };
                let began = thread::now();
                let done = me.mend_in(&turn, began, &|| !turns.is_stopped());
                rest = rest_after(thread::now() - began);
                match done {
                    Err(VolError::Failed) => return,
                    Err(e) if trouble.is_new(Some(e)) => tracing::warn!("volume: changed rows of parity wait: {e}"),
                    Err(_) => {}
                    Ok(_) => _ = trouble.is_new(None),
                }
            }
        };
        thread::spawn("arden-parity", run).map_err(|_| VolError::Refused("no thread for the volume"))
    }

    /// The thread is to end, and does so soon.
    pub fn stop(&self) {
        self.turns.stop();
    }

    /// The thread is to end; returns when it mends nothing any more, and keeps nothing of the volume.
    pub fn end(&self) {
        self.turns.stop();
        drop(self.turns.take());
    }

    /// Blocks that were written anew, of data and of parity. The device looks for so long at what it had no time for yet; walks may take
    /// longer, up to a limit.
    pub fn mend(&self, patience: Duration) -> VolResult<u64> {
        if !self.has_parity {
            return Ok(0);
        }
        let turn = self.turns.take();
        let until = thread::now() + patience;
        let mended = self.mend_in(&turn, until, &|| thread::now() < until + WALKS_MAX)?;
        let left = self.turns.state.lock().left.len();
        if left > 0 {
            tracing::warn!(volume = self.label(), rows = left, "changed rows of parity wait for room, or a scrub");
        }
        Ok(mended.healed)
    }

    fn mend_in(&self, turn: &Turn, until: Instant, go_on: &dyn Fn() -> bool) -> VolResult<Mended> {
        self.engine.state.check_alive()?;
        let Some(copies) = self.engine.device.redundant() else { return Ok(Mended::default()) };
        let mut all = Mended::default();
        for _ in 0..ROUNDS_MAX {
            let patience = until.saturating_duration_since(thread::now());
            let lacks_room = || self.engine.checkpoints.lacks_room.load(Ordering::Relaxed);
            let rows = match turn.take_left() {
                left if left.is_empty() => copies.doubted_parity(patience)?,
                // Those who make room end the checkpoint that found none.
                left if patience.is_zero() && lacks_room() => {
                    turn.keep(left);
                    break;
                }
                left => left,
            };
            if rows.is_empty() {
                break;
            }
            // This makes a checkpoint, which changes rows, too.
            let evened = even_rows(&self.engine, copies, &rows, &mut || go_on())?;
            all.healed += evened.healed;
            // Nobody remembers these rows after a crash.
            self.engine.device.flush()?;
            if !evened.is_done {
                turn.keep(rows);
                break;
            }
            all.rows += rows.len();
            if thread::now() >= until {
                break;
            }
        }
        if all.rows > 0 {
            let why = "a disk returned what was not written there: rows of parity did not fit after a change";
            tracing::warn!(volume = self.label(), rows = all.rows, healed = all.healed, "{why}");
        }
        Ok(all)
    }

    fn label(&self) -> String {
        self.engine.superblock().label
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use arden_block::{BLOCK_BYTES, Device, IoError, IoResult, Redundant, Verify, device::ParityMismatches};
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        VolumeOptions,
        disk::{device::MemDevice, superblock::SLOTS},
        testing::{Files, Volume, options, volume},
    };

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A device that keeps parity and says of some rows that they do not fit.
    struct Parity {
        memory: Arc<MemDevice>,
        wrong: Mutex<Vec<Vec<u64>>>,
        asked: AtomicU64,
        recomputed: AtomicU64,
        /// How long it takes to look at a row whose parity is to be computed anew.
        row_ms: AtomicU64,
        is_full: AtomicBool,
    }

    impl Parity {
        /// Below a volume with a file.
        fn new() -> Arc<Parity> {
            let (memory, vol) = volume(16 << 20);
            Files::new(&vol).write("f", &[7; 100_000]);
            vol.close().unwrap();
            Arc::new(Parity {
                memory,
                wrong: Mutex::default(),
                asked: AtomicU64::new(0),
                recomputed: AtomicU64::new(0),
                row_ms: AtomicU64::new(0),
                is_full: AtomicBool::new(false),
            })
        }

        /// How often it was asked for rows, and how many were recomputed.
        fn seen(&self) -> (u64, u64) {
            (self.asked.load(Ordering::Relaxed), self.recomputed.load(Ordering::Relaxed))
        }

        fn wait_for(&self, what: &str, is_so: impl Fn(&Parity) -> bool) {
            let end = Instant::now() + PATIENCE;
            while !is_so(self) {
                assert!(Instant::now() < end, "{what}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    impl Device for Parity {
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
            self.memory.read(offset, buf)
        }
        fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
            let slots = SLOTS * BLOCK_BYTES;
            let is_new = (slots..self.size_bytes() - slots).contains(&offset);
            if is_new && self.is_full.load(Ordering::Relaxed) {
                return Err(IoError::NoSpace);
            }
            self.memory.write(offset, data)
        }
        fn flush(&self) -> IoResult<()> {
            Ok(())
        }
        fn discard(&self, _offset: u64, _len: u64) -> IoResult<()> {
            Ok(())
        }
        fn redundant(&self) -> Option<&dyn Redundant> {
            Some(self)
        }
    }

    impl Redundant for Parity {
        fn read_verified(&self, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()> {
            arden_block::device::read_single(&*self.memory, offset, buf, |at, b| verify(at, b))
        }
        fn copies_pass(&self, offset: u64, len: usize, verify: &Verify) -> bool {
            self.read_verified(offset, &mut vec![0; len], verify).is_ok()
        }
        fn heal(&self, offset: u64, len: usize, verify: &Verify) -> IoResult<u64> {
            self.copies_pass(offset, len, verify).then_some(0).ok_or(IoError::Media)
        }
        fn parity_mismatches(&self, _offset: u64, _len: u64) -> IoResult<Option<ParityMismatches>> {
            Ok(Some((0, Vec::new())))
        }
        fn recompute_parity(&self, _row: u64, _verify: &Verify) -> IoResult<u64> {
            std::thread::sleep(Duration::from_millis(self.row_ms.load(Ordering::Relaxed)));
            self.recomputed.fetch_add(1, Ordering::Relaxed);
            Ok(1)
        }
        fn doubted_parity(&self, _patience: Duration) -> IoResult<Vec<Vec<u64>>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Ok(std::mem::take(&mut *self.wrong.lock()))
        }
    }

    fn rows(count: u64) -> Rows {
        (0..count).map(|i| vec![i * 4096, 65536 + i * 4096]).collect()
    }

    #[test]
    fn rows_that_were_changed_are_asked_for_beside_clients_and_at_the_end() {
        let device = Parity::new();
        let vol = Volume::open(device.clone(), options()).unwrap();
        vol.mend_changed_rows(Duration::ZERO).unwrap();
        assert_eq!(device.seen(), (1, 0));
        *device.wrong.lock() = rows(1);
        vol.mend_changed_rows(Duration::ZERO).unwrap();
        assert_eq!(device.seen(), (2, 1));
        *device.wrong.lock() = rows(2);
        vol.close().unwrap();
        // Until there is none.
        assert_eq!(device.seen(), (4, 3));
    }

    /// The volume's own thread commits what nobody waits for while rows are being mended.
    #[test]
    fn changes_are_committed_while_rows_are_being_mended() {
        let device = Parity::new();
        let options = VolumeOptions { commit_interval: Duration::from_millis(20), ..VolumeOptions::default() };
        let vol = Volume::open(device.clone(), options).unwrap();
        device.row_ms.store(20, Ordering::Relaxed);
        *device.wrong.lock() = rows(500);
        device.wait_for("nobody mends", |d| d.seen().1 > 0);
        Files::new(&vol).make("g", false).unwrap();
        let (made, _) = vol.progress();
        device.wait_for("a change waits for rows that are being mended", |_| vol.progress().1 >= made);
        assert!(device.seen().1 < 500, "committed when all rows were mended");
    }

    #[test]
    fn a_volume_that_is_closed_while_rows_are_being_mended_ends_soon() {
        for closes in [true, false] {
            let device = Parity::new();
            let vol = Volume::open(device.clone(), VolumeOptions::default()).unwrap();
            device.row_ms.store(20, Ordering::Relaxed);
            *device.wrong.lock() = rows(2000);
            device.wait_for("nobody mends", |d| d.seen().1 > 0);
            // Rows that are left are mended at the end, for a time.
            device.row_ms.store(0, Ordering::Relaxed);
            if closes {
                let began = Instant::now();
                vol.close().unwrap();
                assert!(began.elapsed() < PATIENCE);
                assert!(device.seen().1 >= 2000, "rows are left");
                drop(vol);
                assert_eq!(Arc::strong_count(&device), 1, "somebody still has the device");
            } else {
                drop(vol);
                device.wait_for("somebody still has the device", |_| Arc::strong_count(&device) == 1);
                assert!(device.seen().1 < 2000, "nobody said that it is to end");
            }
        }
    }

    #[test]
    fn rows_that_find_no_room_are_kept_until_there_is_some() {
        let device = Parity::new();
        let vol = Volume::open(device.clone(), options()).unwrap();
        Files::new(&vol).make("g", false).unwrap();
        vol.sync().unwrap();
        *device.wrong.lock() = rows(3);
        device.is_full.store(true, Ordering::Relaxed);
        for _ in 0..5 {
            assert_eq!(vol.mend_changed_rows(Duration::ZERO), Ok(0));
        }
        assert_eq!(device.seen(), (1, 0), "the device does not tell of a row for ever");
        device.is_full.store(false, Ordering::Relaxed);
        vol.checkpoint().unwrap();
        assert_eq!(vol.mend_changed_rows(Duration::ZERO), Ok(3));
        assert_eq!(device.seen(), (1, 3));
    }

    #[test]
    fn a_long_walk_is_followed_by_a_longer_rest() {
        assert_eq!(rest_after(Duration::from_millis(30)), INTERVAL);
        assert_eq!(rest_after(Duration::from_secs(60)), Duration::from_secs(600));
    }
}
