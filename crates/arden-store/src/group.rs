//! Group commit: whoever asks while a batch is on its way shares the next. Owns who writes, who waits and who is told what;
//! a [`CommitLog`] owns what a batch is and how it is written. `checked` compiles the same source against loom's locks and
//! runs it through the interleavings of a few threads.

#[cfg(test)]
mod checked;
mod commit;
mod pause;
mod queue;
mod sync;

pub use commit::{CommitLog, GroupCommit, Taken, Told};

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{
            atomic::{AtomicBool, AtomicU64, Ordering},
            mpsc::channel,
        },
        time::Duration,
    };

    use super::{pause::Pace, *};

    /// Panics where it is told to, in `take` or in `write`.
    #[derive(Default)]
    struct Fragile {
        put: AtomicU64,
        taken: AtomicU64,
        panics: [AtomicBool; 2],
    }

    impl CommitLog for Fragile {
        type Batch = u64;
        type Error = &'static str;
        const INDEPENDENT: bool = false;

        fn take(&self, _target: u64) -> Result<Option<Taken<u64>>, &'static str> {
            assert!(!self.panics[0].swap(false, Ordering::Relaxed));
            let put = self.put.load(Ordering::Relaxed);
            Ok((self.taken.swap(put, Ordering::Relaxed) < put).then_some(Taken { batch: put, upto: put }))
        }
        fn write(&self, _upto: u64) -> Result<(), &'static str> {
            assert!(!self.panics[1].swap(false, Ordering::Relaxed));
            Ok(())
        }
        fn abandoned() -> &'static str {
            "abandoned"
        }
    }

    #[test]
    fn after_a_panic_the_next_commit_goes_on() {
        for at in 0..2 {
            let group = GroupCommit::new(Fragile::default(), 0);
            group.log().panics[at].store(true, Ordering::Relaxed);
            group.log().put.store(1, Ordering::Relaxed);
            assert!(catch_unwind(AssertUnwindSafe(|| group.commit(1))).is_err());
            assert_eq!(group.durable(), 0);
            group.log().put.store(2, Ordering::Relaxed);
            assert_eq!(group.commit(2), Ok(()));
            group.wait_idle();
        }
    }

    #[test]
    fn the_thread_that_commits_for_callbacks_outlives_panics() {
        let group = GroupCommit::new(Fragile::default(), 0);
        let serves = std::thread::spawn(GroupCommit::serve(&group));
        let (tell, told) = channel();
        let ask = |number: u64, panics: bool| {
            group.log().put.store(number, Ordering::Relaxed);
            let tell = tell.clone();
            let done = move |result| {
                tell.send((number, result)).unwrap();
                assert!(!panics, "a callback");
            };
            group.commit_later(number, Box::new(done));
        };
        group.log().panics[1].store(true, Ordering::Relaxed);
        ask(1, false);
        assert_eq!(told.recv().unwrap(), (1, Err("abandoned")));
        ask(2, true);
        ask(3, false);
        group.stop_serving();
        serves.join().unwrap();
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(2, Ok(())), (3, Ok(()))]);
    }

    const BATCH: Duration = Duration::from_micros(400);

    fn pace() -> Pace {
        Pace::of(BATCH)
    }

    #[test]
    fn who_is_alone_waits_for_nobody() {
        assert_eq!(pace().pause_after(BATCH, 1, 0), None);
        assert_eq!(pace().pause_after(BATCH, 1, 1), Some(BATCH / 2));
        assert_eq!(pace().pause_after(BATCH, 60, 5), None, "enough share a batch");
    }

    #[test]
    fn a_pause_is_in_proportion_to_a_batch() {
        assert_eq!(Pace::default().pause_after(Duration::from_micros(30), 2, 2), None, "a fast device");
        let slow = Duration::from_millis(20);
        assert_eq!(Pace::of(slow).pause_after(slow, 2, 2), Some(pause::PAUSE_MAX));
    }

    #[test]
    fn pauses_in_vain_become_rare_until_one_is_of_use() {
        let mut pace = pace();
        let mut waited = Vec::new();
        for batch in 0..40 {
            if pace.pause_after(BATCH, 1, 1).is_some() {
                waited.push(batch);
                pace.was_in_vain();
            }
        }
        assert_eq!(waited, [0, 3, 8, 17, 34]);
        pace.was_of_use();
        pace.was_in_vain();
        let next: Vec<bool> = (0..3).map(|_| pace.pause_after(BATCH, 1, 1).is_some()).collect();
        assert_eq!(next, [false, false, true]);
    }
}
