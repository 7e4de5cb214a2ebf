//! A single-threaded runtime for storage: tasks, timers, and either the real clock with a
//! kernel driver or a virtual clock that jumps to the next timer. With the virtual clock and
//! one seed every run takes the same steps. Refuses networking: sockets live elsewhere and
//! reach a runtime through [`Remote`], or ask one of their own when they are ready ([`Rt::ready`]).

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::file::{Descriptor, Driver, Op};
use crate::rng::Rng;
use crate::sync::Oneshot;
use crate::{IoError, IoResult, LocalFuture};

/// So many operations are handed over without waiting for the end of the turn. The device begins with these
/// while the tasks behind them still run: one large batch would leave it idle till then.
const SUBMIT_AT_ONCE: usize = 4;

type Job = Box<dyn FnOnce(&Rt) + Send>;

/// The part that other threads may touch.
struct Shared {
    ready: Mutex<VecDeque<usize>>,
    jobs: Mutex<VecDeque<Job>>,
    closed: AtomicBool,
    parked: AtomicBool,
    unpark: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl Shared {
    fn kick(&self) {
        if self.parked.swap(false, Ordering::SeqCst)
            && let Some(f) = self.unpark.lock().clone()
        {
            f();
        }
    }
}

struct TaskWaker {
    id: usize,
    queued: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.shared.ready.lock().push_back(self.id);
            self.shared.kick();
        }
    }
}

struct Task {
    future: Option<LocalFuture<()>>,
    handle: Arc<TaskWaker>,
    waker: Waker,
}

struct TimerState {
    fired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

struct Timer {
    at: u64,
    seq: u64,
    state: Rc<TimerState>,
}

impl PartialEq for Timer {
    fn eq(&self, o: &Timer) -> bool {
        (self.at, self.seq) == (o.at, o.seq)
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, o: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(o))
    }
}
impl Ord for Timer {
    fn cmp(&self, o: &Timer) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(o.at, o.seq))
    }
}

enum Clock {
    Real(Instant),
    Virtual(Cell<u64>),
}

struct Inner {
    tasks: RefCell<Vec<Option<Task>>>,
    free: RefCell<Vec<usize>>,
    shared: Arc<Shared>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    timer_seq: Cell<u64>,
    clock: Clock,
    driver: RefCell<Option<Rc<Driver>>>,
    rng: RefCell<Rng>,
}

/// A handle to the runtime of this thread.
#[derive(Clone)]
pub struct Rt(Rc<Inner>);

impl Rt {
    fn with(clock: Clock, rng: Rng) -> Rt {
        Rt(Rc::new(Inner {
            tasks: RefCell::default(),
            free: RefCell::default(),
            shared: Arc::new(Shared {
                ready: Mutex::default(),
                jobs: Mutex::default(),
                closed: AtomicBool::new(false),
                parked: AtomicBool::new(false),
                unpark: Mutex::new(None),
            }),
            timers: RefCell::default(),
            timer_seq: Cell::new(0),
            clock,
            driver: RefCell::default(),
            rng: RefCell::new(rng),
        }))
    }

    /// A runtime on the machine's clock, with io_uring where the kernel grants it and
    /// threads where it does not.
    pub fn real() -> Rt {
        Rt::on_driver(Driver::new())
    }

    /// As [`Rt::real`], but never with io_uring.
    pub fn real_with_threads() -> Rt {
        Rt::on_driver(Driver::Threads(crate::threads::Threads::new()))
    }

    /// A runtime of the calling thread for single operations that it waits for ([`Rt::wait_for`]). `None` where the kernel grants no
    /// io_uring: threads for each such thread would be too many.
    pub fn for_one_operation() -> Option<Rt> {
        Driver::for_one().map(Rt::on_driver)
    }

    /// A runtime for a thread that serves one socket, and reads disks beside it. Where the kernel grants no io_uring it reads none:
    /// they answer `Unsupported`.
    pub fn for_socket() -> Rt {
        Rt::on_driver(Driver::for_socket())
    }

    /// Completes when `socket` can be read (or written, with `write`), or is at its end. On a runtime [`Rt::for_socket`], once at a time
    /// for each direction. What waits for a socket keeps the runtime from its end: shut the socket down before.
    ///
    /// # Errors
    /// `Unsupported` with a virtual clock.
    pub fn ready(&self, socket: &Arc<Descriptor>, write: bool) -> LocalFuture<IoResult<()>> {
        let Some(driver) = self.driver() else { return Box::pin(std::future::ready(Err(IoError::Unsupported))) };
        let out = driver.submit(socket.clone(), Op::Ready { write });
        Box::pin(async move { out.await.map(drop).map_err(|_| IoError::Unsupported) })
    }

    fn on_driver(driver: Driver) -> Rt {
        let mut seed = [0u8; 8];
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        let rt = Rt::with(Clock::Real(Instant::now()), Rng::new(u64::from_le_bytes(seed)));
        let driver = Rc::new(driver);
        *rt.0.shared.unpark.lock() = Some(driver.unparker());
        *rt.0.driver.borrow_mut() = Some(driver);
        rt
    }

    /// A runtime on a virtual clock that starts at 0; `seed` fixes its random numbers.
    pub fn virtual_clock(seed: u64) -> Rt {
        Rt::with(Clock::Virtual(Cell::new(0)), Rng::new(seed))
    }

    pub(crate) fn driver(&self) -> Option<Rc<Driver>> {
        self.0.driver.borrow().clone()
    }

    /// Nanoseconds since the runtime began.
    pub fn now_ns(&self) -> u64 {
        match &self.0.clock {
            Clock::Real(t) => t.elapsed().as_nanos() as u64,
            Clock::Virtual(t) => t.get(),
        }
    }

    /// Whether the clock is virtual.
    pub fn is_virtual(&self) -> bool {
        matches!(self.0.clock, Clock::Virtual(_))
    }

    /// 64 random bits: from the kernel, or, with a virtual clock, from the seed.
    pub fn random_u64(&self) -> u64 {
        if self.is_virtual() {
            return self.0.rng.borrow_mut().next_u64();
        }
        let mut b = [0u8; 8];
        match rustix::rand::getrandom(&mut b, rustix::rand::GetRandomFlags::empty()) {
            Ok(8) => u64::from_le_bytes(b),
            _ => self.0.rng.borrow_mut().next_u64(),
        }
    }

    /// 128 random bits, as [`Rt::random_u64`].
    pub fn random_u128(&self) -> u128 {
        (u128::from(self.random_u64()) << 64) | u128::from(self.random_u64())
    }

    /// Starts a task. It runs until it ends or the runtime is shut down.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let id = self.0.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut t = self.0.tasks.borrow_mut();
            t.push(None);
            t.len() - 1
        });
        let handle = Arc::new(TaskWaker { id, queued: AtomicBool::new(true), shared: self.0.shared.clone() });
        let waker = Waker::from(handle.clone());
        self.0.tasks.borrow_mut()[id] = Some(Task { future: Some(Box::pin(future)), handle, waker });
        self.0.shared.ready.lock().push_back(id);
    }

    /// Starts a task and gives a future of its answer.
    pub fn spawn_value<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Oneshot<T> {
        let out = Oneshot::new();
        let set = out.clone();
        self.spawn(async move { set.set(future.await) });
        out
    }

    /// Completes after `ns` nanoseconds.
    pub fn sleep_ns(&self, ns: u64) -> Sleep {
        self.sleep_until_ns(self.now_ns() + ns)
    }

    /// Completes when the clock says `at` nanoseconds.
    pub fn sleep_until_ns(&self, at: u64) -> Sleep {
        let state = Rc::new(TimerState { fired: Cell::new(false), waker: RefCell::new(None) });
        let seq = self.0.timer_seq.get();
        self.0.timer_seq.set(seq + 1);
        self.0.timers.borrow_mut().push(Reverse(Timer { at, seq, state: state.clone() }));
        Sleep { state }
    }

    /// Lets other ready tasks run first.
    pub fn yield_now(&self) -> Yield {
        Yield { done: false }
    }

    /// The answer of `future`, or `None` after `ns`.
    pub async fn timeout_ns<T>(&self, ns: u64, future: impl Future<Output = T>) -> Option<T> {
        let mut sleep = self.sleep_ns(ns);
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(move |cx| {
            if let Poll::Ready(v) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(v));
            }
            Pin::new(&mut sleep).poll(cx).map(|()| None)
        })
        .await
    }

    fn run_task(&self, id: usize) {
        let (mut future, waker) = {
            let mut tasks = self.0.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(id).and_then(Option::as_mut) else { return };
            task.handle.queued.store(false, Ordering::SeqCst);
            let Some(future) = task.future.take() else { return };
            (future, task.waker.clone())
        };
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut tasks = self.0.tasks.borrow_mut();
        let Some(slot) = tasks.get_mut(id) else { return };
        if done {
            *slot = None;
            self.0.free.borrow_mut().push(id);
            drop(tasks);
            drop(future);
        } else if let Some(task) = slot {
            task.future = Some(future);
        }
    }

    fn fire_timers(&self, now: u64) {
        loop {
            let mut timers = self.0.timers.borrow_mut();
            match timers.peek() {
                Some(Reverse(t)) if t.at <= now => {
                    let Some(Reverse(t)) = timers.pop() else { return };
                    drop(timers);
                    t.state.fired.set(true);
                    let w = t.state.waker.borrow_mut().take();
                    if let Some(w) = w {
                        w.wake();
                    }
                }
                _ => return,
            }
        }
    }

    fn run_jobs(&self) {
        loop {
            let job = self.0.shared.jobs.lock().pop_front();
            match job {
                Some(j) => j(self),
                None => return,
            }
        }
    }

    /// The tasks that are ready now. Their I/O is handed over when so many operations are queued.
    fn run_tasks(&self, at_once: usize) {
        let driver = self.driver();
        let ready = self.0.shared.ready.lock().len();
        for _ in 0..ready {
            let Some(id) = self.0.shared.ready.lock().pop_front() else { break };
            self.run_task(id);
            if let Some(d) = &driver {
                d.submit_early(at_once);
            }
        }
    }

    /// Runs the tasks that are ready and hands over what they ask of the disks, without waiting for anything: the
    /// caller has something to do meanwhile.
    pub fn run_ready(&self) {
        self.run_tasks(1);
    }

    /// One turn: everything that is ready, then time or I/O. False when nothing can happen
    /// any more (virtual clock only).
    fn turn(&self, until_ns: Option<u64>, stop: &dyn Fn() -> bool) -> bool {
        self.run_jobs();
        self.run_tasks(SUBMIT_AT_ONCE);
        if stop() {
            return true;
        }
        let idle = self.0.shared.ready.lock().is_empty();
        let next = self.0.timers.borrow().peek().map(|Reverse(t)| t.at);
        match &self.0.clock {
            Clock::Virtual(t) => {
                if idle {
                    let Some(at) = next else { return false };
                    if until_ns.is_some_and(|u| at > u) {
                        return false;
                    }
                    t.set(t.get().max(at));
                }
                self.fire_timers(t.get());
            }
            Clock::Real(_) => {
                let wait = if idle {
                    let next = next.into_iter().chain(until_ns).min();
                    next.map(|at| Duration::from_nanos(at.saturating_sub(self.now_ns())))
                } else {
                    Some(Duration::ZERO)
                };
                self.park(wait);
                self.fire_timers(self.now_ns());
            }
        }
        true
    }

    fn park(&self, wait: Option<Duration>) {
        let Some(driver) = self.driver() else { return };
        let shared = &self.0.shared;
        let mut wait = wait;
        if wait != Some(Duration::ZERO) {
            shared.parked.store(true, Ordering::SeqCst);
            if !shared.ready.lock().is_empty() || !shared.jobs.lock().is_empty() {
                wait = Some(Duration::ZERO);
            }
        }
        // No longer parked before completions wake our own tasks: those wakes need no kick.
        driver.turn(wait, &|| shared.parked.store(false, Ordering::SeqCst));
    }

    /// Runs tasks until `future` is done. `None` only when the virtual world came to rest first.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Option<T> {
        let out = self.spawn_value(future);
        let result: Rc<RefCell<Option<T>>> = Rc::default();
        let put = result.clone();
        self.spawn(async move {
            let v = out.await;
            *put.borrow_mut() = Some(v);
        });
        loop {
            if let Some(v) = result.borrow_mut().take() {
                return Some(v);
            }
            if !self.turn(None, &|| result.borrow().is_some()) {
                return result.borrow_mut().take();
            }
        }
    }

    /// Waits for one future turn after turn, without a task for it, up to `until_ns`. `None` when it is not done by then.
    pub fn wait_for<T>(&self, future: impl Future<Output = T>, until_ns: u64) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(v) = future.as_mut().poll(&mut cx) {
                return Some(v);
            }
            if self.now_ns() >= until_ns || !self.turn(Some(until_ns), &|| false) {
                return None;
            }
        }
    }

    /// Runs tasks while `busy` says so, up to `until_ns`. Costs no task of its own, as
    /// [`Rt::block_on`] does. False when a virtual world came to rest before either.
    pub fn run_while(&self, until_ns: Option<u64>, busy: &dyn Fn() -> bool) -> bool {
        while busy() {
            if !self.turn(until_ns, &|| !busy()) {
                let (Clock::Virtual(t), Some(at)) = (&self.0.clock, until_ns) else { return false };
                t.set(t.get().max(at));
            }
            if until_ns.is_some_and(|at| self.now_ns() >= at) {
                break;
            }
        }
        true
    }

    /// Virtual clock: runs everything that happens up to `at`, and sets the clock there.
    pub fn run_until_ns(&self, at: u64) {
        while self.turn(Some(at), &|| false) {}
        if let Clock::Virtual(t) = &self.0.clock {
            t.set(t.get().max(at));
        }
    }

    /// A handle through which other threads hand work to this runtime.
    pub fn remote(&self) -> Remote {
        Remote(self.0.shared.clone())
    }

    /// Runs until `remote().close()`.
    pub fn run_forever(&self) {
        while !self.0.shared.closed.load(Ordering::SeqCst) {
            self.turn(None, &|| self.0.shared.closed.load(Ordering::SeqCst));
        }
        self.run_jobs();
    }

    /// Drops every task and timer: the way a simulated crash ends a process, and the way a
    /// runtime lets go of what its tasks own.
    pub fn shutdown(&self) {
        loop {
            let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
            let timers = std::mem::take(&mut *self.0.timers.borrow_mut());
            self.0.free.borrow_mut().clear();
            self.0.shared.ready.lock().clear();
            let jobs = std::mem::take(&mut *self.0.shared.jobs.lock());
            if tasks.is_empty() && timers.is_empty() && jobs.is_empty() {
                return;
            }
        }
    }
}

/// Hands work to a runtime from any thread.
#[derive(Clone)]
pub struct Remote(Arc<Shared>);

impl Remote {
    /// Runs `job` on the runtime's thread.
    ///
    /// # Errors
    /// [`IoError::Gone`] after [`Remote::close`].
    pub fn run(&self, job: impl FnOnce(&Rt) + Send + 'static) -> Result<(), IoError> {
        let mut jobs = self.0.jobs.lock();
        // Under the lock: after the runtime has looked for jobs for the last time, none comes that nobody would run or drop.
        if self.0.closed.load(Ordering::SeqCst) {
            return Err(IoError::Gone);
        }
        jobs.push_back(Box::new(job));
        drop(jobs);
        self.0.kick();
        Ok(())
    }

    /// Ends [`Rt::run_forever`].
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.0.parked.store(true, Ordering::SeqCst);
        self.0.kick();
    }
}

pub struct Sleep {
    state: Rc<TimerState>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.state.fired.get() {
            return Poll::Ready(());
        }
        *self.state.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

pub struct Yield {
    done: bool,
}

impl Future for Yield {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.done {
            return Poll::Ready(());
        }
        self.done = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
