//! What a simulator orders: who goes on when a lock is taken or given back, when a thread waits, and what time it is. Compiled in by
//! the feature `simulated`, which `arden-sim` alone asks for; without it a [`Turn`] is nothing and each call here is the plain one.

#[cfg(feature = "simulated")]
mod ordered {
    use std::{cell::RefCell, sync::Arc, time::Duration};

    /// How a lock is held.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Mode {
        /// By several at once; not while somebody waits to write.
        Read,
        /// By several at once, whoever waits.
        ReadRecursive,
        Write,
    }

    /// A lock, or a condition variable: where it lies, and its name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Place {
        pub at: usize,
        pub name: &'static str,
    }

    /// Orders the threads that entered it, of which one runs at a time. Each method is called by a thread that runs.
    pub trait Scheduler: Send + Sync {
        /// Another thread may go on before this returns.
        fn point(&self);
        /// Whether the caller may try to take the lock: not where a writer waits for readers to go.
        fn admits(&self, lock: Place, mode: Mode) -> bool;
        /// The lock is not to be had; returns when it is worth another try.
        fn wait_for_lock(&self, lock: Place, mode: Mode);
        /// The caller holds it now.
        fn taken(&self, lock: Place, mode: Mode);
        /// The caller has given it back. Another thread may go on before this returns.
        fn released(&self, lock: Place);
        /// The caller has given `lock` back and waits for a notification, or until this much time has passed.
        fn wait(&self, condvar: Place, lock: Place, at_most: Option<Duration>);
        fn notify(&self, condvar: Place, all: bool);
        /// Since the run began.
        fn now(&self) -> Duration;
        fn sleep(&self, time: Duration);
        /// Starts a thread, which does not run yet.
        fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>);
    }

    thread_local! {
        static CURRENT: RefCell<Option<Arc<dyn Scheduler>>> = const { RefCell::new(None) };
    }

    /// From now on this thread is one of the scheduler's; `None`: of nobody's.
    pub fn enter(scheduler: Option<Arc<dyn Scheduler>>) {
        CURRENT.set(scheduler);
    }

    pub fn current() -> Option<Arc<dyn Scheduler>> {
        CURRENT.try_with(|c| c.borrow().clone()).ok().flatten()
    }

    /// A lock that is held; tells the scheduler when it goes.
    pub struct Turn(Option<(Place, Arc<dyn Scheduler>)>);

    impl Drop for Turn {
        fn drop(&mut self) {
            if let Some((lock, scheduler)) = self.0.take() {
                scheduler.released(lock);
            }
        }
    }

    /// Takes a lock by `attempt` where a scheduler orders this thread, else by `wait`.
    pub fn take<L, G>(
        (lock, name): (&L, &'static str),
        mode: Mode,
        attempt: impl Fn() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> (G, Turn) {
        let Some(scheduler) = current() else { return (wait(), Turn(None)) };
        let lock = Place { at: std::ptr::from_ref(lock) as usize, name };
        scheduler.point();
        loop {
            if scheduler.admits(lock, mode)
                && let Some(guard) = attempt()
            {
                scheduler.taken(lock, mode);
                return (guard, Turn(Some((lock, scheduler))));
            }
            scheduler.wait_for_lock(lock, mode);
        }
    }

    /// The same for who does not wait.
    pub fn try_take<L, G>(
        (lock, name): (&L, &'static str),
        mode: Mode,
        attempt: impl FnOnce() -> Option<G>,
    ) -> Option<(G, Turn)> {
        let Some(scheduler) = current() else { return Some((attempt()?, Turn(None))) };
        let lock = Place { at: std::ptr::from_ref(lock) as usize, name };
        scheduler.point();
        let guard = scheduler.admits(lock, mode).then(attempt)??;
        scheduler.taken(lock, mode);
        Some((guard, Turn(Some((lock, scheduler)))))
    }

    /// Waits on a condition variable where a scheduler orders this thread.
    pub fn wait<C, T>(
        condvar: &C,
        turn: &Turn,
        guard: &mut parking_lot::MutexGuard<'_, T>,
        at_most: Option<Duration>,
    ) -> bool {
        let Some((lock, scheduler)) = &turn.0 else { return false };
        let condvar = Place { at: std::ptr::from_ref(condvar) as usize, name: lock.name };
        let mutex = parking_lot::MutexGuard::mutex(guard);
        parking_lot::MutexGuard::unlocked(guard, || {
            scheduler.wait(condvar, *lock, at_most);
            while mutex.is_locked() {
                scheduler.wait_for_lock(*lock, Mode::Write);
            }
            scheduler.taken(*lock, Mode::Write);
        });
        true
    }

    /// False where no scheduler orders this thread.
    pub fn notify<C>(condvar: &C, all: bool) -> bool {
        let Some(scheduler) = current() else { return false };
        scheduler.notify(Place { at: std::ptr::from_ref(condvar) as usize, name: "condition" }, all);
        true
    }
}

#[cfg(not(feature = "simulated"))]
mod ordered {
    use std::time::Duration;

    #[derive(Clone, Copy)]
    pub enum Mode {
        Read,
        ReadRecursive,
        Write,
    }

    pub struct Turn;

    #[inline(always)]
    pub fn take<L, G>(
        _: (&L, &'static str),
        _: Mode,
        _: impl Fn() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> (G, Turn) {
        (wait(), Turn)
    }

    #[inline(always)]
    pub fn try_take<L, G>(_: (&L, &'static str), _: Mode, attempt: impl FnOnce() -> Option<G>) -> Option<(G, Turn)> {
        Some((attempt()?, Turn))
    }

    #[inline(always)]
    pub fn wait<C, T>(_: &C, _: &Turn, _: &mut parking_lot::MutexGuard<'_, T>, _: Option<Duration>) -> bool {
        false
    }

    #[inline(always)]
    pub fn notify<C>(_: &C, _: bool) -> bool {
        false
    }
}

pub use ordered::*;
