//! The source of group commit with loom's locks, through the interleavings of a few threads: nobody who waits is lost (loom
//! tells a deadlock), nobody is told before the batch is durable, a failure reaches those whose batch failed and no other,
//! and a leader that panics leaves nobody behind. Interleavings have at most `PREEMPTIONS` forced switches.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex as Untracked, atomic::Ordering},
};

use loom::{
    sync::atomic::{AtomicU32, AtomicU64},
    thread,
};

use commit::{CommitLog, GroupCommit, Taken, Told};

const PREEMPTIONS: usize = 2;

/// The names of `group/sync.rs`, as `arden-lock` has them; ranks are names only.
mod sync {
    use std::{
        marker::PhantomData,
        ops::{Deref, DerefMut},
    };

    pub use arden_lock::{ranks, thread::now};
    pub use loom::sync::atomic::AtomicU64;

    /// There is a pause after every batch.
    pub const PAUSE_AFTER: std::time::Duration = std::time::Duration::ZERO;

    pub struct Mutex<T, R>(loom::sync::Mutex<T>, PhantomData<fn() -> R>);
    pub struct Guard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);
    pub struct Condvar(loom::sync::Condvar);

    impl<T, R> Mutex<T, R> {
        pub fn new(value: T) -> Mutex<T, R> {
            Mutex(loom::sync::Mutex::new(value), PhantomData)
        }
        pub fn lock(&self) -> Guard<'_, T> {
            Guard(Some(self.0.lock().unwrap()))
        }
    }
    impl<T> Deref for Guard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }
    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }
    impl Condvar {
        pub fn new() -> Condvar {
            Condvar(loom::sync::Condvar::new())
        }
        pub fn wait<T>(&self, guard: &mut Guard<'_, T>) {
            guard.0 = guard.0.take().map(|g| self.0.wait(g).unwrap());
        }
        pub fn notify_one(&self) {
            self.0.notify_one();
        }
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[path = "queue.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
mod queue;

#[path = "pause.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
mod pause;

#[path = "commit.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
mod commit;

/// How the write of a batch ends.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Well,
    Failed,
    Panics,
}

/// Its numbers are its changes. What no thread of the algorithm waits for is not loom's to interleave.
#[derive(Default)]
struct Contents {
    put: u64,
    /// Changes that no batch has, or whose batch failed and that are tried again.
    waiting: Vec<u64>,
    /// By change, how the first batch with it ended.
    first: BTreeMap<u64, bool>,
    under_way: usize,
    /// Batches on their way, of a device that tells.
    sent: Vec<(Vec<u64>, Told<&'static str>)>,
    /// Pauses whose time is not over.
    times: Vec<Box<dyn Send>>,
}

struct Model<const INDEPENDENT: bool> {
    contents: Untracked<Contents>,
    /// What each batch, by its number, ends with.
    ends: &'static [Ends],
    batches: AtomicU32,
    /// Bits of the changes that are durable.
    durable: AtomicU64,
    tells: bool,
    pauses: bool,
}

type Ordered = Model<false>;

impl<const INDEPENDENT: bool> Model<INDEPENDENT> {
    fn group(ends: &'static [Ends], tells: bool) -> Arc<GroupCommit<Self>> {
        let (contents, batches, durable) = (Untracked::default(), AtomicU32::new(0), AtomicU64::new(0));
        let pauses = tells && ends.is_empty();
        GroupCommit::new(Model { contents, ends, batches, durable, tells, pauses }, 0)
    }

    fn put(&self) -> u64 {
        let mut contents = self.contents.lock().unwrap();
        contents.put += 1;
        let number = contents.put;
        contents.waiting.push(number);
        number
    }

    fn write_batch(&self, batch: &[u64]) -> Result<(), &'static str> {
        let number = self.batches.fetch_add(1, Ordering::Relaxed) as usize;
        let ends = self.ends.get(number).copied().unwrap_or(Ends::Well);
        {
            let mut contents = self.contents.lock().unwrap();
            contents.under_way += 1;
            assert!(INDEPENDENT || contents.under_way == 1, "batches follow each other");
            for change in batch {
                contents.first.entry(*change).or_insert(ends == Ends::Well);
            }
        }
        // Relaxed: that this is seen has to come from the locks of the group.
        if ends == Ends::Well {
            self.durable.fetch_or(batch.iter().fold(0, |bits, change| bits | 1 << change), Ordering::Relaxed);
        }
        let mut contents = self.contents.lock().unwrap();
        contents.under_way -= 1;
        if ends != Ends::Well && !INDEPENDENT {
            contents.waiting.splice(0..0, batch.iter().copied());
        }
        drop(contents);
        match ends {
            Ends::Well => Ok(()),
            Ends::Failed => Err("failed"),
            // Without the message of a panic, of which there are many.
            Ends::Panics => resume_unwind(Box::new("the leader")),
        }
    }

    /// Bits of the changes that are lost: their batch failed, and no other will have them.
    fn lost(&self) -> u64 {
        if !INDEPENDENT {
            return 0;
        }
        let contents = self.contents.lock().unwrap();
        contents.first.iter().filter(|(_, well)| !**well).fold(0, |bits, (change, _)| bits | 1 << change)
    }

    /// What whoever asked for `number` was told is right. What was lost may have been before it asked.
    fn check(&self, number: u64, told: Result<(), &'static str>) {
        if told.is_ok() {
            let known = self.durable.load(Ordering::Relaxed) | self.lost();
            assert!((1..=number).all(|change| known & 1 << change != 0), "told too early");
        } else {
            assert!(!INDEPENDENT, "the log knows whose change was lost");
            let first = self.contents.lock().unwrap().first.get(&number).copied();
            assert_eq!(first, Some(false), "told of the failure of another batch");
        }
    }
}

impl<const INDEPENDENT: bool> CommitLog for Model<INDEPENDENT> {
    type Batch = Vec<u64>;
    type Error = &'static str;
    const INDEPENDENT: bool = INDEPENDENT;

    fn take(&self, target: u64) -> Result<Option<Taken<Vec<u64>>>, &'static str> {
        let mut contents = self.contents.lock().unwrap();
        let count =
            if INDEPENDENT { contents.waiting.iter().take(1).filter(|c| **c <= target).count() } else { usize::MAX };
        let count = count.min(contents.waiting.len());
        let batch: Vec<u64> = contents.waiting.drain(..count).collect();
        Ok(batch.last().copied().map(|upto| Taken { batch, upto }))
    }

    fn write(&self, batch: Vec<u64>) -> Result<(), &'static str> {
        self.write_batch(&batch)
    }

    fn writes_later(&self) -> bool {
        self.tells
    }

    fn write_later(&self, batch: Vec<u64>, told: Told<&'static str>) {
        self.contents.lock().unwrap().sent.push((batch, told));
    }

    fn pauses(&self) -> bool {
        self.pauses
    }

    fn end_later(&self, _after: std::time::Duration, time: Box<dyn Send>) {
        self.contents.lock().unwrap().times.push(time);
    }

    fn abandoned() -> &'static str {
        "abandoned"
    }
}

fn explore(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(run);
}

/// Puts a change and commits it; whether it failed or panicked, or was lost.
fn put_and_commit<const I: bool>(group: &Arc<GroupCommit<Model<I>>>) -> bool {
    let number = group.log().put();
    let Ok(told) = catch_unwind(AssertUnwindSafe(|| group.commit(number))) else { return true };
    group.log().check(number, told);
    told.is_err() || group.log().lost() & 1 << number != 0
}

/// Three threads that put and commit; how many of them failed or panicked.
fn three<const I: bool>(group: &Arc<GroupCommit<Model<I>>>) -> usize {
    let others: Vec<_> = (0..2)
        .map(|_| {
            let group = group.clone();
            thread::spawn(move || put_and_commit(&group))
        })
        .collect();
    let mine = put_and_commit(group);
    others.into_iter().map(|t| usize::from(t.join().unwrap())).sum::<usize>() + usize::from(mine)
}

#[test]
fn whoever_waits_is_told_when_it_is_durable() {
    explore(|| {
        let group = Ordered::group(&[], false);
        assert_eq!(three(&group), 0);
        group.wait_idle();
        assert_eq!(group.durable(), 3);
    });
}

#[test]
fn a_failure_reaches_those_whose_batch_failed() {
    explore(|| {
        let group = Ordered::group(&[Ends::Failed], false);
        assert!(three(&group) > 0);
        // What failed goes with the next batch.
        assert!(!put_and_commit(&group));
        assert_eq!(group.durable(), 4);
    });
}

#[test]
fn a_leader_that_panics_leaves_nobody_behind() {
    explore(|| {
        let group = Ordered::group(&[Ends::Panics], false);
        assert!(three(&group) > 0);
        group.wait_idle();
        assert!(!put_and_commit(&group));
    });
}

#[test]
fn independent_batches_are_over_when_all_before_are() {
    explore(|| {
        let group = Model::<true>::group(&[], false);
        assert_eq!(three(&group), 0);
        assert_eq!(group.durable(), 3);
    });
}

#[test]
fn an_independent_batch_that_failed_is_over_and_loses_its_own_change_alone() {
    explore(|| {
        let group = Model::<true>::group(&[Ends::Failed], false);
        assert_eq!(three(&group), 1);
        assert!(!put_and_commit(&group));
    });
}

/// The thread of a device: writes what was sent, and tells; forgets the first batch if it is to.
fn run_device(group: &Arc<GroupCommit<Ordered>>, forgets: bool) {
    let mut forgets = forgets;
    let next = || group.log().contents.lock().unwrap().sent.pop();
    let time = || group.log().contents.lock().unwrap().times.pop();
    while let Some((batch, told)) = next().or_else(|| {
        drop(time());
        next()
    }) {
        if std::mem::take(&mut forgets) {
            let mut contents = group.log().contents.lock().unwrap();
            contents.waiting.splice(0..0, batch.iter().copied());
            contents.first.extend(batch.iter().map(|change| (*change, false)));
            drop(contents);
            drop(told);
        } else {
            told(group.log().write_batch(&batch));
        }
    }
}

/// Callbacks of two threads on a device that tells, which both drive; how many were told.
fn callbacks(ends: &'static [Ends], forgets: bool) {
    explore(move || {
        let group = Ordered::group(ends, true);
        let told = Arc::new(AtomicU32::new(0));
        let ask = |group: &Arc<GroupCommit<Ordered>>, told: &Arc<AtomicU32>| {
            let (number, weak, told) = (group.log().put(), Arc::downgrade(group), told.clone());
            group.commit_later(
                number,
                Box::new(move |result| {
                    told.fetch_add(1, Ordering::Relaxed);
                    weak.upgrade().unwrap().log().check(number, result);
                }),
            );
        };
        let other = {
            let (group, told) = (group.clone(), told.clone());
            thread::spawn(move || {
                ask(&group, &told);
                run_device(&group, forgets);
            })
        };
        ask(&group, &told);
        ask(&group, &told);
        run_device(&group, false);
        other.join().unwrap();
        run_device(&group, false);
        assert_eq!(told.load(Ordering::Relaxed), 3, "a callback is lost");
    });
}

#[test]
fn callbacks_are_called_once_each_when_the_device_tells() {
    callbacks(&[], false);
}

#[test]
fn callbacks_are_told_of_their_own_failure() {
    callbacks(&[Ends::Failed], false);
}

#[test]
fn a_batch_that_the_device_forgets_has_failed() {
    callbacks(&[], true);
}

#[test]
fn the_thread_that_commits_for_callbacks_tells_all_before_it_ends() {
    explore(|| {
        let group = Ordered::group(&[], false);
        let serves = thread::spawn(GroupCommit::serve(&group));
        let told = Arc::new(AtomicU32::new(0));
        let number = group.log().put();
        let (weak, mine) = (Arc::downgrade(&group), told.clone());
        group.commit_later(
            number,
            Box::new(move |result| {
                weak.upgrade().unwrap().log().check(number, result);
                mine.fetch_add(1, Ordering::Relaxed);
            }),
        );
        assert!(!put_and_commit(&group));
        group.stop_serving();
        serves.join().unwrap();
        assert_eq!(told.load(Ordering::Relaxed), 1, "a callback is lost");
    });
}
