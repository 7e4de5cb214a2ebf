//! Mutexes and read-write locks with a rank. A thread that holds a lock may take only locks of higher ranks, so that no two
//! threads can wait for each other. Debug builds check each lock; release builds are `parking_lot` and nothing else. The
//! ranks are in [`ranks`], and `docs/locks.md` says what each lock protects.
//!
//! With the feature `simulated` a simulator may order the threads that take them ([`simulator`]). `arden-sim` alone asks for it:
//! programs are built without (`scripts/tidy`).
#![forbid(unsafe_code)]

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    time::Duration,
};

mod held;
pub mod ranks;
pub mod thread;
mod turns;

use held::Held;
use turns::{Mode, Turn};

#[cfg(feature = "simulated")]
pub mod simulator {
    //! The seam for a simulator that orders threads.
    pub use crate::turns::{Mode, Place, Scheduler, current, enter};
}

/// The place of a lock in the order.
pub trait Rank {
    /// A lock may be taken while only locks of lower levels are held by the thread.
    const LEVEL: u16;
    const NAME: &'static str;
}

/// Marks a lock with its rank without being of its type.
type Of<R> = PhantomData<fn() -> R>;

/// `parking_lot::Mutex` with the rank `R`.
pub struct Mutex<T, R: Rank> {
    rank: Of<R>,
    inner: parking_lot::Mutex<T>,
}

impl<T, R: Rank> Mutex<T, R> {
    pub const fn new(value: T) -> Mutex<T, R> {
        Mutex { rank: PhantomData, inner: parking_lot::Mutex::new(value) }
    }

    /// # Panics
    /// In debug builds, when the thread holds a lock of this rank or a higher one.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(Held::check::<R>())
    }

    fn guard(&self, held: Held) -> MutexGuard<'_, T> {
        let (attempt, wait) = (|| self.inner.try_lock(), || self.inner.lock());
        let (inner, turn) = turns::take((&self.inner, R::NAME), Mode::Write, attempt, wait);
        MutexGuard { inner, turn, _held: held }
    }

    /// Where locks of one rank have an order of their own, which the caller keeps: takes one that comes after those of this
    /// rank that the thread holds.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of a higher rank.
    #[track_caller]
    pub fn lock_next(&self) -> MutexGuard<'_, T> {
        self.guard(Held::check_next::<R>())
    }

    /// Without a lock: nobody else can have a reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// None when another thread holds it. The caller may hold locks of any rank: it does not wait.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let (inner, turn) = turns::try_take((&self.inner, R::NAME), Mode::Write, || self.inner.try_lock())?;
        Some(MutexGuard { inner, turn, _held: Held::note::<R>() })
    }

    /// Waits at most `wait` for the lock; `None` when another thread holds it for all of that time. The caller may hold locks
    /// of any rank: a wait that ends cannot deadlock.
    pub fn try_lock_for(&self, wait: Duration) -> Option<MutexGuard<'_, T>> {
        let attempt = || self.inner.try_lock_for(wait);
        let (inner, turn) = turns::try_take((&self.inner, R::NAME), Mode::Write, attempt)?;
        Some(MutexGuard { inner, turn, _held: Held::note::<R>() })
    }
}

impl<T: fmt::Debug, R: Rank> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: Default, R: Rank> Default for Mutex<T, R> {
    fn default() -> Mutex<T, R> {
        Mutex::new(T::default())
    }
}

// Fields are dropped in order: the lock is released before the notes of it.
/// A held [`Mutex`].
pub struct MutexGuard<'a, T> {
    inner: parking_lot::MutexGuard<'a, T>,
    turn: Turn,
    _held: Held,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// `parking_lot::Condvar` for guards of [`Mutex`].
#[derive(Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }
    /// Wakes one of the threads that wait.
    pub fn notify_one(&self) {
        if !turns::notify(self, false) {
            self.0.notify_one();
        }
    }
    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        if !turns::notify(self, true) {
            self.0.notify_all();
        }
    }
    /// Gives the lock back until it is notified.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if !turns::wait(self, &guard.turn, &mut guard.inner, None) {
            self.0.wait(&mut guard.inner);
        }
    }
    /// The same for `at_most` so long.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) {
        if !turns::wait(self, &guard.turn, &mut guard.inner, Some(at_most)) {
            self.0.wait_for(&mut guard.inner, at_most);
        }
    }
}

/// `parking_lot::RwLock` with the rank `R`. A thread that reads must not read again: a writer that waits between would
/// stop both.
pub struct RwLock<T, R: Rank> {
    rank: Of<R>,
    inner: parking_lot::RwLock<T>,
}

impl<T, R: Rank> RwLock<T, R> {
    pub const fn new(value: T) -> RwLock<T, R> {
        RwLock { rank: PhantomData, inner: parking_lot::RwLock::new(value) }
    }

    fn read_guard(&self, mode: Mode, held: Held) -> ReadGuard<'_, T> {
        let recursive = matches!(mode, Mode::ReadRecursive);
        let attempt = || if recursive { self.inner.try_read_recursive() } else { self.inner.try_read() };
        let wait = || if recursive { self.inner.read_recursive() } else { self.inner.read() };
        let (inner, turn) = turns::take((&self.inner, R::NAME), mode, attempt, wait);
        ReadGuard { inner, _turn: turn, _held: held }
    }

    fn write_guard(&self, held: Held) -> WriteGuard<'_, T> {
        let (attempt, wait) = (|| self.inner.try_write(), || self.inner.write());
        let (inner, turn) = turns::take((&self.inner, R::NAME), Mode::Write, attempt, wait);
        WriteGuard { inner, _turn: turn, _held: held }
    }

    /// # Panics
    /// In debug builds, when the thread holds a lock of this rank or a higher one.
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.read_guard(Mode::Read, Held::check::<R>())
    }

    /// For a thread that may read it already: does not wait for writers that wait.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of a higher rank.
    #[track_caller]
    pub fn read_recursive(&self) -> ReadGuard<'_, T> {
        self.read_guard(Mode::ReadRecursive, Held::check_next::<R>())
    }

    /// # Panics
    /// In debug builds, when the thread holds a lock of this rank or a higher one.
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.write_guard(Held::check::<R>())
    }

    /// Where locks of one rank have an order of their own, which the caller keeps: takes one that comes after those of this
    /// rank that the thread holds.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of a higher rank.
    #[track_caller]
    pub fn write_next(&self) -> WriteGuard<'_, T> {
        self.write_guard(Held::check_next::<R>())
    }

    /// None when another thread writes, or waits to. The caller may hold locks of any rank: it does not wait.
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        let (inner, turn) = turns::try_take((&self.inner, R::NAME), Mode::Read, || self.inner.try_read())?;
        Some(ReadGuard { inner, _turn: turn, _held: Held::note::<R>() })
    }

    /// None when another thread has it. The caller may hold locks of any rank: it does not wait.
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        let (inner, turn) = turns::try_take((&self.inner, R::NAME), Mode::Write, || self.inner.try_write())?;
        Some(WriteGuard { inner, _turn: turn, _held: Held::note::<R>() })
    }
}

impl<T: fmt::Debug, R: Rank> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: Default, R: Rank> Default for RwLock<T, R> {
    fn default() -> RwLock<T, R> {
        RwLock::new(T::default())
    }
}

/// An [`RwLock`] held for reading.
pub struct ReadGuard<'a, T> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _turn: Turn,
    _held: Held,
}
/// An [`RwLock`] held for writing.
pub struct WriteGuard<'a, T> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _turn: Turn,
    _held: Held,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}
impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}
impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Low;
    impl Rank for Low {
        const LEVEL: u16 = 1;
        const NAME: &'static str = "low";
    }
    struct High;
    impl Rank for High {
        const LEVEL: u16 = 2;
        const NAME: &'static str = "high";
    }

    /// Takes a lock as its thread ends.
    struct Late(Arc<Mutex<u8, Low>>);
    impl Drop for Late {
        fn drop(&mut self) {
            *self.0.lock() += 1;
        }
    }

    thread_local! {
        static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
    }

    #[test]
    fn a_thread_that_ends_takes_locks() {
        let lock: Arc<Mutex<u8, Low>> = Arc::default();
        let late = Late(lock.clone());
        std::thread::spawn(move || {
            // The list of what is held is made after this, and goes before it.
            LATE.set(Some(late));
            LATE.with_borrow(|late| assert!(late.as_ref().is_some_and(|late| *late.0.lock() == 0)));
        })
        .join()
        .unwrap();
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn upward_is_right() {
        let (low, high): (Mutex<u8, Low>, RwLock<u8, High>) = Default::default();
        for _ in 0..2 {
            let _low = low.lock();
            *high.write() += 1;
            assert!(*high.read() > 0);
        }
        let first = low.lock();
        let second = high.read();
        // In any order back.
        drop(first);
        drop(second);
        drop(low.lock());
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "low (rank 1) is taken while high (rank 2) is held")]
    fn downward_is_a_bug() {
        let (low, high): (Mutex<u8, Low>, RwLock<u8, High>) = Default::default();
        let _high = high.read();
        drop(low.lock());
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "low (rank 1) is taken while low (rank 1) is held")]
    fn twice_is_a_bug() {
        let low: RwLock<u8, Low> = RwLock::default();
        let _first = low.read();
        drop(low.read());
    }

    #[test]
    fn who_gives_up_may_hold_any_lock() {
        let (low, high): (Mutex<u8, Low>, Mutex<u8, High>) = Default::default();
        let _high = high.lock();
        let _low = low.try_lock_for(Duration::ZERO).unwrap();
        assert!(high.try_lock_for(Duration::ZERO).is_none());
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "low (rank 1) is taken while high (rank 2) is held")]
    fn a_lock_that_was_tried_is_held() {
        let (low, high): (Mutex<u8, Low>, Mutex<u8, High>) = Default::default();
        let _high = high.try_lock_for(Duration::ZERO).unwrap();
        drop(low.lock());
    }

    #[test]
    fn ranks_are_in_order_and_documented() {
        const PAGE: &str = include_str!("../../../docs/locks.md");
        assert!(ranks::ALL.is_sorted_by_key(|(level, _)| *level), "in order, so that they are read so");
        for (level, name) in ranks::ALL {
            let row = format!("| {level} | `{name}` |");
            assert!(PAGE.contains(&row), "docs/locks.md has no row {row:?}");
        }
        let rows = PAGE
            .lines()
            .filter(|l| l.starts_with('|') && l[1..].trim_start().starts_with(|c: char| c.is_ascii_digit()));
        assert_eq!(rows.count(), ranks::ALL.len(), "docs/locks.md has rows that are no ranks");
    }
}
