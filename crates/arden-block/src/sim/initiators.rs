//! A disk that several hosts reach: whose command it is, reservations that let only registered keys pass, paths that are cut, and
//! commands that outlive the process that sent them. As SCSI-3 persistent reservations of the kinds "registrants only", with
//! PREEMPT AND ABORT as the fence.

use super::*;

/// Who sends commands. One attachment has one `id`; `key` is what it registers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Initiator {
    pub id: u64,
    pub key: u64,
}

/// What a reservation keeps those from that are not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    WriteExclusive,
    ExclusiveAccess,
}

/// Is told of each change of the disk's content: whose it is, where, and the bytes.
pub type Watcher = Rc<dyn Fn(u64, u64, &[u8])>;

#[derive(Default)]
pub(super) struct Initiators {
    reservation: Option<Reservation>,
    registered: BTreeSet<u64>,
    cut: BTreeSet<u64>,
    watcher: Option<Watcher>,
    /// What became of commands that ended before their sender looked.
    ended: HashMap<u64, IoResult<()>>,
}

impl Initiators {
    pub(super) fn admits(&self, from: Initiator, write: bool) -> bool {
        let free = match self.reservation {
            None => true,
            Some(Reservation::WriteExclusive) if !write => true,
            Some(_) => self.registered.contains(&from.key),
        };
        free && !self.cut.contains(&from.key)
    }

    /// The answer to a command that ended already: it does not happen once more.
    pub(super) fn take_ended(&mut self, command: u64) -> Option<IoResult<()>> {
        self.ended.remove(&command)
    }

    pub(super) fn tell(&self, from: Initiator, offset: u64, data: &[u8]) {
        if let Some(watcher) = &self.watcher {
            watcher(from.id, offset, data);
        }
    }
}

impl SimDisk {
    /// The disk as a device of `rt` whose commands are those of `from`.
    pub fn attach_as(&self, rt: &Rt, from: Initiator) -> Rc<dyn BlockDevice> {
        let queue = Rc::new(RefCell::new(Queue::default()));
        Rc::new(SimDevice { disk: self.clone(), rt: rt.clone(), queue, from })
    }

    /// From now on commands need a registered key.
    pub fn reserve(&self, kind: Reservation) {
        self.state.borrow_mut().initiators.reservation = Some(kind);
    }

    pub fn register(&self, key: u64) {
        self.state.borrow_mut().initiators.registered.insert(key);
    }

    /// All keys that are registered.
    pub fn registered(&self) -> Vec<u64> {
        self.state.borrow().initiators.registered.iter().copied().collect()
    }

    /// Removes the key; what was sent under it before goes on.
    pub fn unregister(&self, key: u64) {
        self.state.borrow_mut().initiators.registered.remove(&key);
    }

    /// Removes the key and ends its commands in flight: each has happened, in part or not at all, and nothing happens later.
    pub fn fence(&self, key: u64) {
        self.unregister(key);
        self.abort(key);
    }

    /// No path for this key: what it sends fails, what it had sent happened or did not.
    pub fn cut(&self, key: u64) {
        self.state.borrow_mut().initiators.cut.insert(key);
        self.abort(key);
    }

    /// All paths are there.
    pub fn join_paths(&self) {
        self.state.borrow_mut().initiators.cut.clear();
    }

    /// The paths of these keys are there.
    pub fn join_path(&self, is_back: impl Fn(u64) -> bool) {
        self.state.borrow_mut().initiators.cut.retain(|k| !is_back(*k));
    }

    /// Tells `watcher` of each change from now on.
    pub fn watch_changes(&self, watcher: Watcher) {
        self.state.borrow_mut().initiators.watcher = Some(watcher);
    }

    /// Whether commands of the initiator `id` have neither happened nor ended.
    pub fn has_in_flight(&self, id: u64) -> bool {
        self.state.borrow().cache.iter().any(|w| !w.done && w.from.id == id)
    }

    /// One write of `id` happens, though its process is gone or stopped. Says whether there was one.
    pub fn land_orphan(&self, id: u64) -> bool {
        let s = &mut *self.state.borrow_mut();
        let Some(w) = s.cache.iter().find(|w| !w.done && w.from.id == id) else { return false };
        let (command, from, offset, data, durable) = (w.id, w.from, w.offset, w.data.clone(), w.durable);
        s.counters.landed_alone += 1;
        s.initiators.ended.insert(command, Ok(()));
        s.land(command, from, offset, &data, durable);
        true
    }

    fn abort(&self, key: u64) {
        let s = &mut *self.state.borrow_mut();
        let all: Vec<_> = s.cache.iter().filter(|w| !w.done && w.from.key == key).map(|w| w.id).collect();
        for id in all {
            s.counters.aborted += 1;
            s.initiators.ended.insert(id, Err(IoError::Gone));
            let Some(at) = s.cache.iter().position(|w| w.id == id) else { continue };
            let w = s.cache.remove(at);
            match s.rng.below(3) {
                0 => {}
                1 => s.land(id, w.from, w.offset, &w.data, false),
                _ => s.tear(&w),
            }
        }
    }
}

impl State {
    /// The first sectors of a command happen, and nothing of the rest.
    fn tear(&mut self, w: &Cached) {
        let kept = self.rng.below(w.data.len() as u64 / SECTOR_BYTES) as usize * SECTOR_BYTES as usize;
        if kept == 0 {
            return;
        }
        self.initiators.tell(w.from, w.offset, &w.data[..kept]);
        let mut torn = self.read(w.offset, kept.next_multiple_of(BLOCK_BYTES as usize));
        torn[..kept].copy_from_slice(&w.data[..kept]);
        self.put(w.id, w.from, w.offset, &torn.share(), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Initiator = Initiator { id: 1, key: 10 };
    const B: Initiator = Initiator { id: 2, key: 20 };

    fn shared(kind: Reservation) -> (SimDisk, Rt) {
        let disk = SimDisk::new("d", 1 << 20, 5);
        disk.reserve(kind);
        disk.register(A.key);
        (disk, Rt::virtual_clock(5))
    }

    #[test]
    fn only_registered_keys_pass_and_a_fenced_one_does_not() {
        for kind in [Reservation::WriteExclusive, Reservation::ExclusiveAccess] {
            let (disk, rt) = shared(kind);
            let (a, b) = (disk.attach_as(&rt, A), disk.attach_as(&rt, B));
            rt.block_on(async move {
                assert_eq!(a.write(0, block(1), true).await, Ok(()));
                assert_eq!(b.write(0, block(2), true).await, Err(IoError::Gone));
                assert_eq!(b.read(0, 4096).await.is_ok(), kind == Reservation::WriteExclusive);
                disk.register(B.key);
                disk.fence(A.key);
                assert_eq!(a.write(0, block(3), true).await, Err(IoError::Gone));
                assert_eq!(a.flush().await, Err(IoError::Gone));
                assert_eq!(b.write(4096, block(2), true).await, Ok(()));
                assert_eq!(disk.peek(0, 4096)[..], block(1)[..]);
            })
            .unwrap();
        }
    }

    #[test]
    fn a_fence_ends_what_is_in_flight_at_once() {
        let (disk, rt) = shared(Reservation::WriteExclusive);
        let a = disk.attach_as(&rt, A);
        let d = disk.clone();
        let after = rt
            .block_on(async move {
                let writes: Vec<_> = (0..32).map(|i| a.write(i * 4096, block(1), true)).collect();
                d.fence(A.key);
                let after = d.peek(0, 32 * 4096);
                for w in writes {
                    assert_eq!(w.await, Err(IoError::Gone));
                }
                after
            })
            .unwrap();
        assert!(disk.peek(0, 32 * 4096) == after, "nothing of it comes later");
        assert_eq!(disk.counters().aborted, 32);
        let whole = after.chunks(4096).filter(|c| c.iter().all(|&b| b == 1)).count();
        let none = after.chunks(4096).filter(|c| c.iter().all(|&b| b == 0)).count();
        assert!(whole > 3 && none > 3 && whole + none < 32, "{whole} whole, {none} not at all");
    }

    #[test]
    fn a_write_outlives_its_process_until_it_lands_or_is_fenced() {
        let (disk, rt) = shared(Reservation::WriteExclusive);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let list = seen.clone();
        disk.watch_changes(Rc::new(move |id, offset, _| list.borrow_mut().push((id, offset))));
        let a = disk.attach_as(&rt, A);
        rt.spawn(async move {
            let _ = (a.write(0, block(1), true), a.write(4096, block(1), true)).0.await;
        });
        rt.run_until_ns(1);
        rt.shutdown();
        assert!(disk.has_in_flight(A.id) && disk.peek(0, 4096)[0] == 0);
        assert!(disk.land_orphan(A.id));
        assert_eq!((disk.peek(0, 4096)[0], &seen.borrow()[..]), (1, &[(1, 0)][..]));
        disk.fence(A.key);
        assert!(!disk.land_orphan(A.id) && !disk.has_in_flight(A.id));
    }

    #[test]
    fn a_path_that_is_cut_comes_back() {
        let (disk, rt) = shared(Reservation::ExclusiveAccess);
        let a = disk.attach_as(&rt, A);
        rt.block_on(async move {
            disk.cut(A.key);
            assert_eq!(a.read(0, 4096).await.err(), Some(IoError::Gone));
            disk.join_paths();
            assert!(a.read(0, 4096).await.is_ok());
        })
        .unwrap();
    }

    /// The bytes of each change from now on, and whose it is.
    fn changes(disk: &SimDisk) -> Rc<RefCell<Vec<(u64, Vec<u8>)>>> {
        let seen: Rc<RefCell<Vec<_>>> = Rc::default();
        let list = seen.clone();
        disk.watch_changes(Rc::new(move |id, _, data| list.borrow_mut().push((id, data.to_vec()))));
        seen
    }

    /// A write of A to block 0 that is on its way.
    fn one_in_flight(durable: bool) -> (SimDisk, Rt, Oneshot<IoResult<()>>) {
        let (disk, rt) = shared(Reservation::WriteExclusive);
        let (a, answer) = (disk.attach_as(&rt, A), Oneshot::new());
        let put = answer.clone();
        rt.spawn(async move { put.set(a.write(0, block(1), durable).await) });
        rt.run_until_ns(1);
        (disk, rt, answer)
    }

    #[test]
    fn a_command_that_happened_while_its_sender_was_stopped_does_not_happen_again() {
        for durable in [false, true] {
            let (disk, rt, answer) = one_in_flight(durable);
            let seen = changes(&disk);
            assert!(disk.land_orphan(A.id) && !disk.land_orphan(A.id));
            assert_eq!(rt.block_on(answer), Some(Ok(())));
            assert_eq!(seen.borrow().iter().map(|s| s.0).collect::<Vec<_>>(), [A.id]);
            if durable {
                disk.crash();
                assert_eq!(disk.peek(0, 4096)[..], block(1)[..], "it was told to be durable");
            }
        }
    }

    #[test]
    fn a_command_that_was_ended_does_not_happen_when_the_path_is_back() {
        let (disk, rt, answer) = one_in_flight(true);
        let seen = changes(&disk);
        disk.cut(A.key);
        disk.join_paths();
        let (before, changes) = (disk.peek(0, 4096), seen.borrow().len());
        assert_eq!(rt.block_on(answer), Some(Err(IoError::Gone)));
        assert!(disk.peek(0, 4096) == before && seen.borrow().len() == changes);
    }

    #[test]
    fn a_torn_command_changes_nothing_but_the_sectors_that_it_wrote() {
        let (disk, rt) = shared(Reservation::WriteExclusive);
        let seen = changes(&disk);
        let a = disk.attach_as(&rt, A);
        rt.spawn(async move {
            let all = (0..32).map(|i| a.write(i * 4096, block(1), true)).collect();
            crate::sync::join_all(all).await;
        });
        rt.run_until_ns(1);
        disk.fence(A.key);
        let seen = seen.borrow();
        assert!(seen.iter().all(|(_, data)| !data.is_empty() && data.iter().all(|&b| b == 1)));
        let there = disk.peek(0, 32 * 4096).iter().filter(|&&b| b == 1).count();
        assert_eq!(seen.iter().map(|(_, data)| data.len()).sum::<usize>(), there);
        assert!(seen.iter().any(|(_, data)| data.len() < 4096), "none was torn");
    }
}
