//! Threads of which exactly one runs at a time: the seed decides who goes on where a lock is taken or given back, and where a
//! thread waits. Owns the order of threads and their virtual time; refuses to know what they do. Number 0 is the thread of the
//! devices, which moves the time ([`Turns::device_turn`]).
//!
//! A run that fails leaves its threads where they are: what they hold may be in any state.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak, mpsc::channel},
    time::Duration,
};

use arden_block::rng::Rng;
use arden_lock::simulator::{Mode, Place, Scheduler, enter};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// More points than any run that ends has.
const POINTS_MAX: u64 = 3_000_000;
/// How often in a row nobody but threads with a time of their own goes on, before the others are lost.
const IDLE_MAX: u64 = 500;
const DEVICE: usize = 0;

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Ready,
    WaitsFor(Place, Mode),
    /// For a notification, or until then.
    Listens(Place, Option<u64>),
    Sleeps(u64),
    Ended,
}

struct Thread {
    name: String,
    does: Does,
    goes_on: Arc<Condvar>,
}

struct State {
    rng: Rng,
    /// At one point of so many somebody else goes on.
    rare: u64,
    running: usize,
    threads: Vec<Thread>,
    now_ns: u64,
    points: u64,
    idle: u64,
    /// Who has a lock, by its place.
    holders: BTreeMap<usize, Vec<(usize, Mode)>>,
    failed: bool,
    switches: u64,
}

/// The threads of one run.
pub struct Turns {
    /// Itself, for the threads that it starts.
    this: Weak<Turns>,
    state: Mutex<State>,
    failed: Box<dyn Fn(String) + Send + Sync>,
}

thread_local! {
    static ME: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

/// Runs threads to their end, in an order of the seed's, without devices.
///
/// # Errors
/// What one of them panics with, and who waits for what where nobody goes on.
pub fn run(seed: u64, threads: Vec<(&str, Box<dyn FnOnce() + Send>)>) -> Result<(), String> {
    let (tell, told) = channel();
    let failed = tell.clone();
    let threads: Vec<_> = threads.into_iter().map(|(name, body)| (name.to_owned(), body)).collect();
    let drive = move || {
        let turns = Turns::begin(seed, Box::new(move |what| drop(failed.send(Err(what)))));
        threads.into_iter().for_each(|(name, body)| turns.start(&name, body));
        while !turns.all_ended() {
            if let Some(at) = turns.next_deadline_ns().filter(|_| !turns.somebody_is_ready()) {
                turns.set_clock(at);
            }
            turns.device_turn(false);
        }
        turns.leave();
        let _ = tell.send(Ok(()));
    };
    std::thread::Builder::new().name("device".into()).spawn(drive).map_err(|e| e.to_string())?;
    told.recv().unwrap_or(Err("the run went away".into()))
}

/// What somebody panicked with.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
    text.unwrap_or_default()
}

impl Turns {
    /// The caller is the thread of the devices, until [`Turns::leave`]. Told of the first failure.
    pub fn begin(seed: u64, failed: Box<dyn Fn(String) + Send + Sync>) -> Arc<Turns> {
        let mut rng = Rng::new(seed);
        let rare = [1, 2, 4, 10, 40][rng.below(5) as usize];
        let device = Thread { name: "device".into(), does: Does::Ready, goes_on: Arc::default() };
        let state = State {
            rng,
            rare,
            running: DEVICE,
            threads: vec![device],
            now_ns: 0,
            points: 0,
            idle: 0,
            holders: BTreeMap::new(),
            failed: false,
            switches: 0,
        };
        let turns = Arc::new_cyclic(|this| Turns { this: this.clone(), state: Mutex::new(state), failed });
        ME.set(DEVICE);
        enter(Some(turns.clone()));
        turns
    }

    /// The caller is of no run any more. How often the threads changed.
    pub fn leave(&self) -> u64 {
        enter(None);
        ME.set(usize::MAX);
        self.state.lock().switches
    }

    pub fn start(self: &Arc<Self>, name: &str, body: impl FnOnce() + Send + 'static) {
        let number = {
            let mut s = self.state.lock();
            s.threads.push(Thread { name: name.into(), does: Does::Ready, goes_on: Arc::default() });
            s.threads.len() - 1
        };
        let turns = self.clone();
        let run = move || {
            ME.set(number);
            turns.wait_for_turn(turns.state.lock(), number);
            enter(Some(turns.clone()));
            let ended = catch_unwind(AssertUnwindSafe(body));
            enter(None);
            if let Err(panic) = ended {
                turns.fail(turns.state.lock(), message(&*panic));
            }
            let mut s = turns.state.lock();
            s.threads[number].does = Does::Ended;
            let next = s.next();
            s.hand_to(next);
        };
        std::thread::Builder::new().name(name.into()).stack_size(1 << 20).spawn(run).expect("a thread");
    }

    /// Whether all threads but the caller's ended.
    pub fn all_ended(&self) -> bool {
        self.state.lock().threads[1..].iter().all(|t| t.does == Does::Ended)
    }

    /// Whether a thread could go on that is not the devices'.
    pub fn somebody_is_ready(&self) -> bool {
        self.state.lock().threads[1..].iter().any(|t| t.does == Does::Ready)
    }

    /// When the first thread that waits for a time goes on, in nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.state.lock().threads.iter().filter_map(|t| t.does.deadline()).min()
    }

    /// It is so late now; threads whose time has come are ready.
    pub fn set_clock(&self, now_ns: u64) {
        let mut s = self.state.lock();
        s.now_ns = now_ns;
        for t in &mut s.threads {
            if t.does.deadline().is_some_and(|at| at <= now_ns) {
                t.does = Does::Ready;
            }
        }
    }

    /// The devices let others go on. `busy`: something is asked of them, so that they come back when the seed likes; else when all others wait.
    pub fn device_turn(&self, busy: bool) {
        let mut s = self.state.lock();
        let somebody = s.threads[1..].iter().any(|t| t.does == Does::Ready);
        if s.threads[1..].iter().all(|t| t.does == Does::Ended) {
            return;
        }
        if !somebody {
            s.idle += 1;
            if s.idle > IDLE_MAX || (!busy && s.threads.iter().all(|t| t.does.deadline().is_none())) {
                let left: Vec<String> = s.threads.iter().map(|t| s.says(t)).collect();
                return self.fail(s, format!("nobody goes on: {}", left.join("; ")));
            }
            return;
        }
        if s.threads[1..].iter().any(|t| t.does == Does::Ready && !t.name.starts_with("arden")) {
            s.idle = 0;
        }
        // Its own turn comes when somebody draws it, or nobody else is left.
        s.threads[DEVICE].does = if busy { Does::Ready } else { Does::Listens(IDLE, None) };
        let next = s.next();
        self.switch(s, next);
    }

    /// Something is asked of the devices.
    pub fn wake_device(&self) {
        let mut s = self.state.lock();
        if s.threads[DEVICE].does == Does::Listens(IDLE, None) {
            s.threads[DEVICE].does = Does::Ready;
        }
    }

    fn me() -> usize {
        ME.get()
    }

    /// The run has failed: nobody goes on, the caller neither.
    fn fail(&self, mut s: MutexGuard<'_, State>, what: String) {
        if !std::mem::replace(&mut s.failed, true) {
            let name = s.threads[Turns::me()].name.clone();
            (self.failed)(format!("{name}: {what}"));
        }
        drop(s);
        loop {
            std::thread::park();
        }
    }

    fn wait_for_turn(&self, mut s: MutexGuard<'_, State>, me: usize) {
        while s.running != me || s.failed {
            let goes_on = s.threads[me].goes_on.clone();
            goes_on.wait(&mut s);
        }
        s.threads[me].does = Does::Ready;
    }

    fn switch(&self, mut s: MutexGuard<'_, State>, next: usize) {
        let me = Turns::me();
        if next != me {
            s.hand_to(next);
            self.wait_for_turn(s, me);
        }
    }

    /// Somebody else may go on.
    fn maybe_switch(&self, mut s: MutexGuard<'_, State>) {
        s.points += 1;
        if s.points > POINTS_MAX {
            return self.fail(s, "the run does not end".into());
        }
        let rare = s.rare;
        if s.rng.one_in(rare) {
            let next = s.next();
            self.switch(s, next);
        }
    }

    /// The caller cannot go on as it is: others do, until it can.
    fn give_way(&self, mut s: MutexGuard<'_, State>) {
        s.points += 1;
        if let Some(circle) = s.circle(Turns::me()) {
            return self.fail(s, circle);
        }
        let next = s.next();
        // The devices wait for a lock that nobody gives back.
        if s.threads[next].does != Does::Ready && !matches!(s.threads[next].does, Does::Listens(IDLE, _)) {
            let left: Vec<String> = s.threads.iter().map(|t| s.says(t)).collect();
            return self.fail(s, format!("nobody goes on: {}", left.join("; ")));
        }
        self.switch(s, next);
    }
}

/// What the devices wait for while nothing is asked of them.
const IDLE: Place = Place { at: 0, name: "idle" };

impl Does {
    fn deadline(self) -> Option<u64> {
        match self {
            Does::Sleeps(at) => Some(at),
            Does::Listens(_, at) => at,
            _ => None,
        }
    }
}

impl State {
    /// Who goes on: of those who are ready one that the seed draws; the devices when nobody is.
    fn next(&mut self) -> usize {
        let ready: Vec<usize> = (0..self.threads.len()).filter(|i| self.threads[*i].does == Does::Ready).collect();
        match ready.len() {
            0 => DEVICE,
            n => ready[self.rng.below(n as u64) as usize],
        }
    }

    fn hand_to(&mut self, next: usize) {
        self.switches += 1;
        self.running = next;
        self.threads[next].goes_on.notify_one();
    }

    fn says(&self, t: &Thread) -> String {
        let holders = |lock: &Place| {
            let of = self.holders.get(&lock.at).into_iter().flatten();
            of.map(|(i, mode)| format!("{} ({mode:?})", self.threads[*i].name)).collect::<Vec<_>>().join(", ")
        };
        match t.does {
            Does::WaitsFor(lock, mode) => {
                format!("{} waits for {} ({mode:?}), held by {}", t.name, lock.name, holders(&lock))
            }
            Does::Listens(place, _) => format!("{} waits to be notified under {}", t.name, place.name),
            does => format!("{} {does:?}", t.name),
        }
    }

    /// A circle of threads each of which waits for a lock of the next, from `me` back to it.
    fn circle(&self, me: usize) -> Option<String> {
        let (mut seen, mut open) = (vec![me], vec![me]);
        while let Some(at) = open.pop() {
            let Does::WaitsFor(lock, _) = self.threads[at].does else { continue };
            for (holder, _) in self.holders.get(&lock.at).into_iter().flatten() {
                if *holder == me {
                    let waits = seen.iter().map(|i| self.says(&self.threads[*i])).collect::<Vec<_>>();
                    return Some(format!("deadlock: {}", waits.join("; ")));
                }
                if !seen.contains(holder) {
                    seen.push(*holder);
                    open.push(*holder);
                }
            }
        }
        None
    }
}

impl Scheduler for Turns {
    fn point(&self) {
        if !std::thread::panicking() {
            self.maybe_switch(self.state.lock());
        }
    }

    fn admits(&self, lock: Place, mode: Mode) -> bool {
        let s = self.state.lock();
        let read = s.holders.get(&lock.at).is_some_and(|h| h.iter().all(|(_, mode)| *mode != Mode::Write));
        let waits = |t: &Thread| matches!(t.does, Does::WaitsFor(l, Mode::Write) if l.at == lock.at);
        !(mode == Mode::Read && read && s.threads.iter().any(waits))
    }

    fn wait_for_lock(&self, lock: Place, mode: Mode) {
        let mut s = self.state.lock();
        let me = Turns::me();
        s.threads[me].does = Does::WaitsFor(lock, mode);
        self.give_way(s);
    }

    fn taken(&self, lock: Place, mode: Mode) {
        self.state.lock().holders.entry(lock.at).or_default().push((Turns::me(), mode));
    }

    fn released(&self, lock: Place) {
        let mut s = self.state.lock();
        s.give_back(lock);
        if !std::thread::panicking() {
            self.maybe_switch(s);
        }
    }

    fn wait(&self, condvar: Place, lock: Place, at_most: Option<Duration>) {
        let mut s = self.state.lock();
        s.give_back(lock);
        let until = at_most.map(|t| s.now_ns + t.as_nanos() as u64);
        let me = Turns::me();
        s.threads[me].does = Does::Listens(condvar, until);
        self.give_way(s);
    }

    fn notify(&self, condvar: Place, all: bool) {
        let mut s = self.state.lock();
        let listens = |t: &Thread| matches!(t.does, Does::Listens(c, _) if c.at == condvar.at);
        let mut told: Vec<usize> = (0..s.threads.len()).filter(|i| listens(&s.threads[*i])).collect();
        if !all && told.len() > 1 {
            let pick = s.rng.below(told.len() as u64) as usize;
            told = vec![told[pick]];
        }
        told.into_iter().for_each(|i| s.threads[i].does = Does::Ready);
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.state.lock().now_ns)
    }

    fn sleep(&self, time: Duration) {
        let mut s = self.state.lock();
        let me = Turns::me();
        s.threads[me].does = Does::Sleeps(s.now_ns + time.as_nanos() as u64);
        self.give_way(s);
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) {
        if let Some(turns) = self.this.upgrade() {
            turns.start(name, body);
        }
    }
}

impl State {
    fn give_back(&mut self, lock: Place) {
        if let Some(holders) = self.holders.get_mut(&lock.at) {
            if let Some(at) = holders.iter().position(|(i, _)| *i == Turns::me()) {
                holders.swap_remove(at);
            }
            if holders.is_empty() {
                self.holders.remove(&lock.at);
            }
        }
        for t in &mut self.threads {
            if matches!(t.does, Does::WaitsFor(l, _) if l.at == lock.at) {
                t.does = Does::Ready;
            }
        }
    }
}
