//! Faults of a simulated disk beside those of single reads and writes: commands that are stuck while others go on, a cache
//! that is lost while the disk goes on, flushes that fail or do nothing, sectors that go bad, and copies of a whole disk.

use super::*;

/// How often a write to a failing place fails: more often than the disk's user retries.
const WRITE_TRIES: u32 = 3;
/// The most blocks that one crash leaves unreadable.
const UNREADABLE_MAX: u64 = 40;

/// A copy of a disk's content.
#[derive(Clone)]
pub struct Image {
    media: HashMap<u64, Page>,
    bad_blocks: BTreeSet<u64>,
}

impl SimDisk {
    /// Delays the next operation, of any kind, by `ns` nanoseconds; operations after it overtake it. It takes effect when the
    /// delay is over, unless the disk died meanwhile.
    pub fn stick_next(&self, ns: u64) {
        self.state.borrow_mut().stick_ns = Some(ns);
    }

    /// An operation is stuck, or the next one will be, or the next flush or write will fail, or one has failed since the
    /// disk was last revived.
    pub fn is_failing(&self) -> bool {
        let s = self.state.borrow();
        let write = s.failing_write.is_some() || s.write_failed_ns.is_some();
        s.stuck > 0 || s.stick_ns.is_some() || s.flush_fails || s.flush_failed || write
    }

    pub(super) fn take_stick(&self) -> Option<u64> {
        let mut s = self.state.borrow_mut();
        let ns = s.stick_ns.take()?;
        s.stuck += 1;
        s.counters.stuck += 1;
        Some(ns)
    }

    pub(super) async fn be_stuck(&self, rt: &Rt, ns: u64) {
        rt.sleep_ns(ns).await;
        let mut s = self.state.borrow_mut();
        s.stuck = s.stuck.saturating_sub(1);
    }

    /// A new life of the process: what was in flight before is over.
    pub fn end_of_life(&self) {
        let mut s = self.state.borrow_mut();
        (s.stick_ns, s.stuck, s.flush_fails) = (None, 0, false);
        (s.sprung, s.flush_failed) = (false, false);
        (s.failing_write, s.write_failed_ns) = (None, None);
    }

    /// The disk loses what its cache holds, as in a crash, and goes on. Operations in flight are done all the same.
    pub fn lose_cache(&self) {
        {
            let mut s = self.state.borrow_mut();
            s.counters.cached_lost += s.cache.len() as u64;
        }
        self.crash();
    }

    /// The next flush fails, and what was cached may be lost.
    pub fn fail_next_flush(&self) {
        self.state.borrow_mut().flush_fails = true;
    }

    /// The next write fails, and so does each further try at its place; the disk goes on.
    pub fn fail_next_write(&self) {
        self.state.borrow_mut().failing_write = Some((None, WRITE_TRIES));
    }

    /// Has [`SimDisk::is_failing`] forget a write that failed before `ns`: the disk's user has seen the error by now.
    pub fn forget_failed_write(&self, ns: u64) {
        let mut s = self.state.borrow_mut();
        if s.write_failed_ns.is_some_and(|at| at < ns) {
            s.write_failed_ns = None;
        }
    }

    /// [`SimDisk::crash`], after which some of the blocks that were being written cannot be read: until they are written,
    /// or mended with what a crash may have left in them.
    pub fn crash_unreadable(&self) {
        let cached: Vec<(u64, u64)> = {
            let s = self.state.borrow();
            s.cache.iter().map(|w| (w.offset / BLOCK_BYTES, w.data.len() as u64 / BLOCK_BYTES)).collect()
        };
        self.crash();
        let s = &mut *self.state.borrow_mut();
        let mut left = UNREADABLE_MAX;
        for (first, n) in cached.into_iter().rev() {
            let n = n.min(left);
            if s.rng.one_in(2) {
                s.bad_blocks.extend(first..first + n);
                s.counters.left_unreadable += n;
                left -= n;
            }
        }
    }

    /// The host stops and the disk keeps its power: its cache stays, and what it was asked happens, though nobody is told.
    pub fn outlive_host(&self) {
        let s = &mut *self.state.borrow_mut();
        let asked: Vec<_> =
            s.cache.iter().filter(|w| !w.done).map(|w| (w.id, w.from, w.offset, w.data.clone())).collect();
        s.counters.landed_alone += asked.len() as u64;
        asked.into_iter().for_each(|(id, from, offset, data)| s.land(id, from, offset, &data, false));
    }

    /// Sets the range whose writes [`SimDisk::take_sprung`] reports, by their first byte.
    pub fn set_trap(&self, range: Option<Range<u64>>) {
        let mut s = self.state.borrow_mut();
        (s.trap, s.sprung) = (range, false);
    }

    /// Whether a write to that range was submitted since the last call.
    pub fn take_sprung(&self) -> bool {
        std::mem::take(&mut self.state.borrow_mut().sprung)
    }

    /// Whether any block cannot be read.
    pub fn has_bad_blocks(&self) -> bool {
        !self.state.borrow().bad_blocks.is_empty()
    }

    /// Every block can be read again.
    pub fn mend_blocks(&self) {
        self.state.borrow_mut().bad_blocks.clear();
    }

    /// Copies what is on stable storage. The cache has to be empty.
    pub fn image(&self) -> Image {
        let s = self.state.borrow();
        Image { media: s.media.clone(), bad_blocks: s.bad_blocks.clone() }
    }

    /// All of the disk is what it was then.
    pub fn put_image(&self, image: &Image) {
        let mut s = self.state.borrow_mut();
        s.cache.clear();
        s.visible.clear();
        s.media = image.media.clone();
        s.bad_blocks = image.bad_blocks.clone();
    }

    /// Another disk of the same size and content.
    pub fn copy(&self, name: &str, seed: u64) -> SimDisk {
        let other = SimDisk::new(name, self.info.size_bytes, seed);
        other.put_image(&self.image());
        other
    }

    /// Says whether two disks hold the same.
    pub fn is_like(&self, image: &Image) -> bool {
        let mine = self.image();
        let blocks = mine.media.keys().chain(image.media.keys());
        let zeros = |p: Option<&Page>| p.is_none_or(|p| p.iter().all(|&b| b == 0));
        blocks.into_iter().all(|b| match (mine.media.get(b), image.media.get(b)) {
            (Some(a), Some(b)) => a[..] == b[..],
            (a, b) => zeros(a.or(b)),
        })
    }
}

impl State {
    /// Does this write fail for good?
    pub(super) fn is_failing_write(&mut self, offset: u64, now_ns: u64) -> bool {
        let Some((place, left)) = &mut self.failing_write else { return false };
        if *place.get_or_insert(offset) != offset {
            return false;
        }
        *left -= 1;
        if *left == 0 {
            self.failing_write = None;
        }
        self.write_failed_ns = Some(now_ns);
        self.counters.writes_failed += 1;
        true
    }

    /// Ends a flush that began when the writes `up_to` were complete: makes them durable, or fails as the faults say.
    pub(super) fn end_flush(&mut self, up_to: BTreeSet<u64>) -> IoResult<()> {
        let fails = std::mem::take(&mut self.flush_fails);
        if fails || self.faults.flush_error_ppm > 0 && self.rng.ppm(self.faults.flush_error_ppm) {
            self.counters.flushes_failed += 1;
            self.flush_failed = true;
            let (mut kept, mut lost) = (BTreeSet::new(), BTreeSet::new());
            for id in up_to {
                if self.rng.one_in(4) {
                    kept.insert(id)
                } else {
                    lost.insert(id)
                };
            }
            self.counters.cached_lost += lost.len() as u64;
            self.cache.retain(|w| !lost.contains(&w.id));
            self.settle(&kept);
            return Err(IoError::Media);
        }
        if self.faults.flush_ignored_ppm > 0 && self.rng.ppm(self.faults.flush_ignored_ppm) {
            self.counters.flushes_ignored += 1;
            return Ok(());
        }
        self.settle(&up_to);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes 1 everywhere, durably, and then 2; `work` goes on.
    fn twice<T: 'static, F: Future<Output = T> + 'static>(
        seed: u64,
        work: impl FnOnce(SimDisk, Rc<dyn BlockDevice>, Rt) -> F,
    ) -> (SimDisk, T) {
        let disk = SimDisk::new("d", 1 << 20, seed);
        let rt = Rt::virtual_clock(seed);
        let dev = disk.attach(&rt);
        let (d, r) = (dev.clone(), rt.clone());
        rt.block_on(async move {
            for i in 0..16 {
                d.write(i * 4096, block(1), true).await.unwrap();
                d.write(i * 4096, block(2), false).await.unwrap();
            }
        })
        .unwrap();
        let out = rt.block_on(work(disk.clone(), dev, r)).unwrap();
        rt.shutdown();
        (disk, out)
    }

    fn count(disk: &SimDisk, byte: u8) -> usize {
        (0..16).filter(|i| disk.peek(i * 4096, 4096)[..] == block(byte)[..]).count()
    }

    #[test]
    fn a_flush_that_fails_has_lost_what_was_cached_and_the_next_one_succeeds() {
        let (disk, _) = twice(1, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, _| {
            disk.fail_next_flush();
            assert_eq!(dev.flush().await, Err(IoError::Media));
            assert!(disk.is_failing(), "until it is revived");
            assert_eq!(dev.flush().await, Ok(()));
            disk.revive();
            assert!(!disk.is_failing());
        });
        let lost = count(&disk, 1);
        assert!((8..16).contains(&lost) && lost + count(&disk, 2) == 16, "{lost} lost");
        assert_eq!((disk.counters().flushes_failed, disk.counters().cached_lost), (1, lost as u64));
    }

    #[test]
    fn a_flush_that_is_ignored_leaves_everything_to_the_next_crash() {
        let (disk, _) = twice(2, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, _| {
            disk.set_faults(Faults { flush_ignored_ppm: 1_000_000, ..Faults::default() });
            assert_eq!(dev.flush().await, Ok(()));
        });
        assert_eq!((count(&disk, 2), disk.counters().flushes_ignored), (16, 1));
        disk.crash();
        assert!(count(&disk, 2) < 16, "nothing was lost");
    }

    #[test]
    fn a_cache_that_is_lost_is_lost_at_once_and_what_is_in_flight_lands() {
        let (disk, _) = twice(3, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, _| {
            let late = dev.write(0, block(3), false);
            disk.lose_cache();
            assert!(count(&disk, 2) < 16);
            late.await.unwrap();
            dev.flush().await.unwrap();
        });
        disk.crash();
        assert_eq!(count(&disk, 3), 1, "what landed after the loss is flushed");
        assert!(disk.counters().cached_lost >= 16);
    }

    #[test]
    fn a_command_that_is_stuck_lands_later_while_others_go_on() {
        let (disk, _) = twice(4, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, rt: Rt| {
            disk.stick_next(50_000_000);
            let stuck = dev.write(0, block(4), false);
            let started = rt.now_ns();
            dev.write(0, block(5), false).await.unwrap();
            assert!(rt.now_ns() - started < 1_000_000 && disk.is_failing());
            stuck.await.unwrap();
            assert!(rt.now_ns() - started >= 50_000_000 && !disk.is_failing());
        });
        assert_eq!(count(&disk, 4), 1, "it came over what was written after it");
    }

    #[test]
    fn a_write_that_fails_does_so_at_its_place_only_and_is_known_after_a_time() {
        let (disk, _) = twice(6, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, rt: Rt| {
            disk.fail_next_write();
            assert!(dev.write(0, block(3), true).await.is_err());
            dev.write(4096, block(3), true).await.unwrap();
            assert!(dev.write(0, block(3), true).await.is_err() && dev.write(0, block(3), true).await.is_err());
            dev.write(8192, block(3), true).await.unwrap();
            assert!(disk.is_failing());
            disk.forget_failed_write(rt.now_ns());
            assert!(!disk.is_failing());
        });
        assert_eq!((count(&disk, 3), disk.counters().writes_failed), (2, 3));
    }

    #[test]
    fn a_crash_may_leave_what_was_being_written_unreadable() {
        let (disk, _) = twice(7, async |_, _: Rc<dyn BlockDevice>, _| ());
        disk.crash_unreadable();
        let n = disk.counters().left_unreadable;
        assert!(n > 2 && n < 16 && disk.has_bad_blocks(), "{n} of 16");
        disk.mend_blocks();
        assert!(!disk.has_bad_blocks());
    }

    #[test]
    fn a_disk_that_outlives_its_host_does_what_it_was_asked_and_keeps_its_cache_until_power_is_lost() {
        let (disk, _) = twice(8, async |_, dev: Rc<dyn BlockDevice>, rt: Rt| {
            let asked = dev.write(0, block(3), true);
            rt.spawn(async move {
                let _ = asked.await;
            });
        });
        assert_eq!((count(&disk, 3), count(&disk, 2)), (0, 16), "not yet");
        disk.outlive_host();
        assert_eq!((count(&disk, 3), count(&disk, 2), disk.counters().landed_alone), (1, 15, 1));
        disk.crash();
        assert!(count(&disk, 1) > 0, "nothing of it was durable");
    }

    #[test]
    fn power_that_is_lost_leaves_some_writes_undoes_some_and_tears_some() {
        let (disk, _) = twice(10, async |_, _: Rc<dyn BlockDevice>, _| ());
        disk.crash();
        let c = disk.counters();
        assert_eq!((c.undone, c.survived), (count(&disk, 1) as u64, count(&disk, 2) as u64));
        assert!(c.undone > 0 && c.survived > 0 && c.torn > 0 && c.undone + c.survived + c.torn == 16, "{c:?}");
    }

    #[test]
    fn a_dead_disk_answers_nothing_and_has_lost_its_cache_when_it_is_back() {
        let (disk, _) = twice(11, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, _| {
            let late = dev.write(0, block(3), true);
            disk.kill();
            assert_eq!(late.await, Err(IoError::Gone), "what was in flight fails, too");
            assert_eq!(dev.read(0, 4096).await.err(), Some(IoError::Gone));
            disk.revive();
            assert!(dev.read(0, 4096).await.is_ok());
        });
        assert!(count(&disk, 2) < 16 && disk.counters().deaths == 1);
    }

    #[test]
    fn a_disk_that_hangs_does_what_it_was_asked_when_it_goes_on() {
        let (disk, _) = twice(12, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, rt: Rt| {
            disk.hang();
            let asked = dev.write(0, block(3), true);
            assert!(rt.timeout_ns(1_000_000_000, asked).await.is_none() && disk.is_hung());
            let asked = dev.write(4096, block(3), true);
            let r = rt.clone();
            let d = disk.clone();
            rt.spawn(async move {
                r.sleep_ns(5_000_000).await;
                d.resume();
            });
            assert_eq!(asked.await, Ok(()));
        });
        assert!(disk.peek(4096, 4096) == block(3)[..] && disk.counters().hung == 2);
    }

    #[test]
    fn commands_that_stall_take_longer() {
        let (disk, took_ns) = twice(13, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, rt: Rt| {
            disk.set_faults(Faults { stall_ppm: 500_000, stall_ns: 3_000_000, ..Faults::default() });
            let started = rt.now_ns();
            for _ in 0..20 {
                dev.read(0, 4096).await.unwrap();
            }
            rt.now_ns() - started
        });
        let stalled = disk.counters().stalled;
        assert!((3..18).contains(&stalled) && took_ns > stalled * 3_000_000, "{stalled} of 20, {took_ns} ns");
    }

    #[test]
    fn a_write_may_be_acknowledged_and_be_nowhere_or_elsewhere() {
        let (disk, _) = twice(14, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, _| {
            disk.set_faults(Faults { lost_ppm: 1_000_000, ..Faults::default() });
            dev.write(0, block(3), true).await.unwrap();
            disk.set_faults(Faults { misdirect_ppm: 1_000_000, ..Faults::default() });
            dev.write(4096, block(4), true).await.unwrap();
        });
        assert_eq!((count(&disk, 3), disk.counters().lost, disk.counters().misdirected), (0, 1, 1));
        let at = (0..256).filter(|i| disk.peek(i * 4096, 4096)[..] == block(4)[..]).collect::<Vec<u64>>();
        assert!(at.len() == 1 && at[0] != 1, "at {at:?}");
    }

    #[test]
    fn rot_is_read_and_a_bad_block_is_not_until_it_is_written() {
        let (disk, _) = twice(15, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, _| {
            disk.rot(512);
            let read = dev.read(0, 4096).await.unwrap();
            assert!(read[..512] == block(2)[..512] && read[512..1024] != block(2)[512..1024]);
            disk.break_block(4096);
            assert_eq!(dev.read(0, 8192).await.err(), Some(IoError::Media));
            dev.write(4096, block(3), false).await.unwrap();
            assert!(dev.read(0, 8192).await.is_ok());
        });
        assert_eq!((disk.counters().rotted, disk.counters().unreadable), (1, 1));
    }

    #[test]
    fn errors_by_chance_end_after_so_many_at_a_place_and_a_write_that_fails_is_there_or_not() {
        let (disk, failed) = twice(16, async |disk: SimDisk, dev: Rc<dyn BlockDevice>, _| {
            let faults = Faults { read_error_ppm: 1_000_000, read_errors_at_a_place: 2, ..Faults::default() };
            disk.set_faults(faults.clone());
            // A read that succeeds does not begin the count anew: it may be another reader's.
            for ok in [false, false, true, true] {
                assert_eq!(dev.read(0, 4096).await.is_ok(), ok);
            }
            disk.set_faults(Faults { write_error_ppm: 500_000, ..faults });
            assert!(dev.read(0, 4096).await.is_err());
            let mut failed = 0;
            for i in 0..16 {
                failed += usize::from(dev.write(i * 4096, block(3), true).await.is_err());
            }
            failed
        });
        let c = disk.counters();
        assert_eq!((c.read_errors, c.write_errors), (3, failed as u64));
        let there = count(&disk, 3);
        assert!(failed > 0 && there > 16 - failed && there < 16, "{failed} failed, {there} there");
    }

    #[test]
    fn an_image_is_what_was_there() {
        let (disk, _) = twice(5, async |_, dev: Rc<dyn BlockDevice>, _| dev.flush().await.unwrap());
        let image = disk.image();
        let copy = disk.copy("e", 9);
        assert!(copy.is_like(&image) && count(&copy, 2) == 16);
        copy.erase();
        assert!(!copy.is_like(&image) && disk.is_like(&image));
        copy.put_image(&image);
        assert!(copy.is_like(&image));
    }
}
