//! Threads for busy connections: at the runtime a request costs the wake-ups of other threads than the one that handles it.
//! There are few of them. Where more connections are busy than there are threads, none gets one for a while, so that all have
//! the same share of the processors.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_lock::{Condvar, Mutex, ranks};
use rustix::event::{EventfdFlags, eventfd};

/// A thread without a connection ends after this time.
const KEPT: Duration = Duration::from_secs(10);
/// How long nobody gets a thread after there were too few.
const CROWDED: Duration = Duration::from_secs(1);

/// What runs on one of the threads. The signal ends its waits.
pub type Run = Box<dyn FnOnce(&Arc<Signal>) + Send>;

pub struct ConnectionThreads {
    most: usize,
    kept: Duration,
    state: Mutex<State, ranks::ConnectionThreads>,
    given: Condvar,
    began: Instant,
    /// Milliseconds since `began`.
    crowded_until: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Threads that there are.
    running: usize,
    /// Those of them that have something to run, or are promised for it.
    taken: usize,
    queue: VecDeque<Run>,
}

impl ConnectionThreads {
    pub fn for_each_core(threads: usize, began: Instant) -> Arc<ConnectionThreads> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        ConnectionThreads::new(threads * cores, KEPT, began)
    }

    fn new(most: usize, kept: Duration, began: Instant) -> Arc<ConnectionThreads> {
        let (state, given, crowded_until) = (Mutex::default(), Condvar::new(), AtomicU64::new(0));
        Arc::new(ConnectionThreads { most, kept, state, given, began, crowded_until })
    }

    /// A thread, if one is free. If none is, those who have one give it back.
    pub fn take(self: &Arc<Self>, now: Instant) -> Option<Promised> {
        if self.most == 0 || self.is_crowded(now) {
            return None;
        }
        let mut state = self.state.lock();
        if state.taken == self.most {
            self.crowded_until.store(self.millis(now + CROWDED), Ordering::Relaxed);
            return None;
        }
        if state.taken == state.running {
            let threads = self.clone();
            let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            arden_lock::thread::spawn("arden-client", move || threads.serve(&Arc::new(Signal(signal)))).ok()?;
            state.running += 1;
        }
        state.taken += 1;
        Some(Promised(self.clone()))
    }

    /// Whether more connections are busy than there are threads.
    pub fn is_crowded(&self, now: Instant) -> bool {
        self.crowded_until.load(Ordering::Relaxed) > self.millis(now)
    }

    fn millis(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_millis() as u64
    }

    fn serve(&self, signal: &Arc<Signal>) {
        while let Some(run) = self.next() {
            // A panic ends what ran, which the log has, and not the thread: it may be promised already.
            let _ = catch_unwind(AssertUnwindSafe(|| run(signal)));
            self.state.lock().taken -= 1;
        }
    }

    /// None: there was nothing for long, and the thread does not count any more.
    fn next(&self) -> Option<Run> {
        let mut state = self.state.lock();
        if state.queue.is_empty() {
            self.given.wait_for(&mut state, self.kept);
        }
        loop {
            if let Some(run) = state.queue.pop_front() {
                return Some(run);
            }
            if state.running > state.taken {
                state.running -= 1;
                return None;
            }
            // Every thread is promised, so that this one will be needed.
            self.given.wait(&mut state);
        }
    }
}

/// A thread that waits for what it is to run.
#[must_use]
pub struct Promised(Arc<ConnectionThreads>);

impl Promised {
    pub fn run(self, what: Run) {
        self.0.state.lock().queue.push_back(what);
        self.0.given.notify_one();
    }
}

/// Ends the wait of a thread that waits for a socket.
pub struct Signal(OwnedFd);

impl Signal {
    pub fn raise(&self) {
        // It fails only where it has been raised very often, and nobody has looked yet.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Whether it was raised since the last look.
    pub fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn there_are_no_more_threads_than_allowed_and_they_come_back() {
        let now = crate::base::time::Time::read().now;
        let threads = ConnectionThreads::new(2, KEPT, now);
        let ((go, stay), (said, says)) = (mpsc::channel::<()>(), mpsc::channel());
        let stay = Arc::new(std::sync::Mutex::new(stay));
        let busy = || -> Run {
            let (stay, said) = (stay.clone(), said.clone());
            Box::new(move |signal| {
                said.send(signal.clone()).unwrap();
                let _ = stay.lock().unwrap().recv();
            })
        };
        threads.take(now).unwrap().run(busy());
        threads.take(now).unwrap().run(busy());
        let (one, two) = (says.recv().unwrap(), says.recv().unwrap());
        assert!(!Arc::ptr_eq(&one, &two), "each has a thread and a signal of its own");
        assert!(!threads.is_crowded(now));
        assert!(threads.take(now).is_none());
        assert!(threads.is_crowded(now), "those who have one have to give it back");
        go.send(()).unwrap();
        go.send(()).unwrap();
        while threads.state.lock().taken > 0 {
            std::thread::yield_now();
        }
        assert!(threads.take(now).is_none(), "nobody gets one at once");
        let later = now + CROWDED;
        assert!(!threads.is_crowded(later));
        threads.take(later).unwrap().run(busy());
        let again = says.recv().unwrap();
        assert!(Arc::ptr_eq(&one, &again) || Arc::ptr_eq(&two, &again), "no further thread is made");
        go.send(()).unwrap();
    }

    #[test]
    fn a_panic_takes_no_thread_for_good() {
        let now = crate::base::time::Time::read().now;
        let threads = ConnectionThreads::new(1, KEPT, now);
        let (ran, runs) = mpsc::channel();
        let take = || {
            while threads.state.lock().taken > 0 {
                std::thread::yield_now();
            }
            threads.take(now).unwrap()
        };
        for _ in 0..2000 {
            take().run(Box::new(|_| std::panic::resume_unwind(Box::new(()))));
            let ran = ran.clone();
            take().run(Box::new(move |_| ran.send(()).unwrap()));
            runs.recv_timeout(Duration::from_secs(10)).expect("it is run");
        }
    }

    /// The thread that ends is the one that is promised.
    #[test]
    fn a_thread_that_ends_is_promised_to_nobody() {
        let now = crate::base::time::Time::read().now;
        let threads = ConnectionThreads::new(1, Duration::from_micros(100), now);
        let (ran, runs) = mpsc::channel();
        for i in 0..3000 {
            let ran = ran.clone();
            while threads.state.lock().taken > 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(i % 150));
            threads.take(now).unwrap().run(Box::new(move |_| ran.send(()).unwrap()));
            runs.recv_timeout(Duration::from_secs(10)).expect("it is run");
        }
    }

    #[test]
    fn a_signal_is_raised_until_it_is_looked_at() {
        let signal = Signal(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        assert!(!signal.take());
        signal.raise();
        signal.raise();
        assert!(signal.take() && !signal.take());
    }
}
