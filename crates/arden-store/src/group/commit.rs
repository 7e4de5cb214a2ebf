//! The algorithm. Changes have numbers, given by their log in the order in which they were made. Whoever commits asks for a
//! number, and waits until it and all before it are durable.
//!
//! - Whoever asks and finds no batch under way takes one: all changes that wait. It writes the batch on its own thread, or has
//!   the log's device write it and tell ([`CommitLog::writes_later`]).
//! - When a batch is over, the next one leaves first: it is taken by one of the threads that wait for it, or sent by the thread
//!   that was told. Then all whose changes the batch had are told, each woken once.
//! - On a log with a clock ([`CommitLog::pauses`]) the next batch may wait for those who are told of the last one (`pause`). It is
//!   sent by who makes the expected number complete, or when the time is over.
//! - A batch that failed fails those who wait for its changes, unless batches are independent ([`CommitLog::INDEPENDENT`]). One
//!   whose writer panicked, or that the device forgot, failed.
//! - Callbacks never run on a thread that waits in `commit`: it may hold locks. On a log that does not tell, one thread
//!   (`serve`) waits for all callbacks that came together.
//!
//! | lock | protects | taken |
//! |---|---|---|
//! | `GroupCommit::state` | batches under way and who waits | before the locks of the log |
//! | `Pause::turn` | who sends the batch after a pause | under the state, or alone |
//! | `Slot::state` | what one thread that waits was told | alone |
//! | `CommitQueue::asked` | callbacks for the thread of `serve` | alone |

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    pause::{Pace, Pause, PauseTime},
    queue::CommitQueue,
    sync::{AtomicU64, Condvar, Mutex, now, ranks},
};

/// Told how a commit, or the write of a batch, went.
pub type Told<E> = Box<dyn FnOnce(Result<(), E>) + Send>;

/// A batch, and the number up to which no change waits any more once it is taken.
pub struct Taken<B> {
    pub batch: B,
    pub upto: u64,
}

/// Changes that wait to be durable, and how a batch of them is written.
pub trait CommitLog: Send + Sync + 'static {
    type Batch: Send + 'static;
    type Error: Clone + Send + 'static;
    /// Batches do not follow each other: any number is under way at the same time, and one that failed is over, with its
    /// changes lost. Whose they are is known to the log alone: whoever waits learns that the batch is over, and asks it. Else one
    /// is under way at a time, and the changes of one that failed are not durable before a later one holds them, too.
    const INDEPENDENT: bool;

    /// Takes the next batch: the earliest changes that wait, those after `target` too if it likes. None when no change up
    /// to `target` waits. Called under the lock of the group; must not wait.
    fn take(&self, target: u64) -> Result<Option<Taken<Self::Batch>>, Self::Error>;
    /// Returns when the batch is durable. What it does not return from, by a panic, has failed.
    fn write(&self, batch: Self::Batch) -> Result<(), Self::Error>;
    /// Whether `write_later` returns before the batch is durable.
    fn writes_later(&self) -> bool {
        false
    }
    /// Calls `told` when the batch is durable or has failed. Dropping it without that fails the batch.
    fn write_later(&self, batch: Self::Batch, told: Told<Self::Error>) {
        told(self.write(batch));
    }
    /// Whether `end_later` has a clock, and batches may wait for those who were told of the last one. Only with `writes_later`.
    fn pauses(&self) -> bool {
        false
    }
    /// Lets go of `time` after so long, on a thread of the device, or earlier.
    fn end_later(&self, _after: Duration, _time: Box<dyn Send>) {}
    /// Of a batch whose write panicked or was forgotten.
    fn abandoned() -> Self::Error;
}

/// A thread that waits in `commit`.
struct Slot<E> {
    state: Mutex<SlotState<E>, ranks::CommitSlot>,
    wakeup: Condvar,
}

struct SlotState<E> {
    told: Option<Result<(), E>>,
    /// It is to take the next batch.
    leads: bool,
}

impl<E> Slot<E> {
    fn new() -> Arc<Slot<E>> {
        Arc::new(Slot { state: Mutex::new(SlotState { told: None, leads: false }), wakeup: Condvar::new() })
    }

    fn tell(&self, result: Result<(), E>) {
        self.state.lock().told = Some(result);
        self.wakeup.notify_one();
    }

    fn lead(&self) {
        self.state.lock().leads = true;
        self.wakeup.notify_one();
    }

    fn told(&self) -> Option<Result<(), E>> {
        self.state.lock().told.take()
    }

    /// What it was told; None when it is to lead.
    fn wait(&self) -> Option<Result<(), E>> {
        let mut state = self.state.lock();
        loop {
            if state.told.is_some() || std::mem::take(&mut state.leads) {
                return state.told.take();
            }
            self.wakeup.wait(&mut state);
        }
    }
}

enum Waiter<E> {
    Thread(Arc<Slot<E>>),
    Callback(Told<E>),
}

impl<E> Waiter<E> {
    fn tell(self, result: Result<(), E>) {
        match self {
            Waiter::Thread(slot) => slot.tell(result),
            Waiter::Callback(done) => done(result),
        }
    }
}

struct State<L: CommitLog> {
    /// No change up to here waits.
    taken: u64,
    /// The first change of each batch under way.
    under_way: Vec<u64>,
    /// By the number that has to be durable, in the order in which they asked.
    waiting: Vec<(u64, Waiter<L::Error>)>,
    pace: Pace,
    /// The next batch waits. None is under way meanwhile.
    pause: Option<Pause<GroupCommit<L>>>,
}

impl<L: CommitLog> State<L> {
    fn durable(&self) -> u64 {
        self.under_way.iter().min().map_or(self.taken, |first| first - 1)
    }

    fn last_target(&self) -> u64 {
        self.waiting.iter().map(|(target, _)| *target).max().unwrap_or(0)
    }

    fn take_ready(&mut self, is_ready: impl Fn(u64) -> bool) -> Vec<(u64, Waiter<L::Error>)> {
        let (ready, later) = std::mem::take(&mut self.waiting).into_iter().partition(|(target, _)| is_ready(*target));
        self.waiting = later;
        ready
    }
}

/// Those who are told one result. All are, even where a callback panics.
struct Ready<E: Clone>(std::vec::IntoIter<(u64, Waiter<E>)>, Result<(), E>);

impl<E: Clone> Ready<E> {
    fn new(list: Vec<(u64, Waiter<E>)>, result: Result<(), E>) -> Ready<E> {
        Ready(list.into_iter(), result)
    }

    /// By value: a panic tells the rest as it unwinds.
    fn tell(mut self) {
        self.tell_rest();
    }

    fn tell_rest(&mut self) {
        for (_, waiter) in self.0.by_ref() {
            waiter.tell(self.1.clone());
        }
    }
}

impl<E: Clone> Drop for Ready<E> {
    fn drop(&mut self) {
        self.tell_rest();
    }
}

/// A batch that is under way. Dropping it without `over` is a failure of the batch.
struct UnderWay<L: CommitLog> {
    group: Option<Arc<GroupCommit<L>>>,
    first: u64,
    upto: u64,
    /// When it was sent to a device that tells.
    sent: Option<Instant>,
}

impl<L: CommitLog> UnderWay<L> {
    fn over(mut self, result: Result<(), L::Error>) {
        if let Some(group) = self.group.take() {
            group.over(self.first, self.upto, self.sent, result);
        }
    }
}

impl<L: CommitLog> Drop for UnderWay<L> {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            group.over(self.first, self.upto, None, Err(L::abandoned()));
        }
    }
}

/// What came of the try to send the next batch.
enum Sent {
    /// It is over.
    Written,
    /// A batch is under way, this one or one before it, or there is a pause: when it is over, whoever has to know is told.
    UnderWay,
    /// There was none: whatever whoever waits depends on is with others, or it was told.
    Nothing,
}

/// Whoever is to send the next batch.
enum Leader<L: CommitLog> {
    Thread(Arc<Slot<L::Error>>),
    /// The caller, for this number.
    Here(u64),
    /// Who asks next, or the end of the pause.
    Time(Duration, PauseTime<GroupCommit<L>>),
}

/// The one who commits the changes of a log. It goes on while a batch of it is under way, whoever lets go of it.
pub struct GroupCommit<L: CommitLog> {
    log: L,
    durable: AtomicU64,
    state: Mutex<State<L>, ranks::GroupCommit>,
    idle: Condvar,
    queue: Arc<CommitQueue<L::Error>>,
}

impl<L: CommitLog> GroupCommit<L> {
    /// For a log whose changes up to `durable` are.
    pub fn new(log: L, durable: u64) -> Arc<GroupCommit<L>> {
        let (under_way, waiting, pace, pause) = Default::default();
        Arc::new(GroupCommit {
            log,
            durable: AtomicU64::new(durable),
            state: Mutex::new(State { taken: durable, under_way, waiting, pace, pause }),
            idle: Condvar::new(),
            queue: Arc::new(CommitQueue::new()),
        })
    }

    pub fn log(&self) -> &L {
        &self.log
    }

    /// The number up to which all changes are durable, or were given up.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Changes up to `upto` have become durable by other means.
    pub fn now_durable(&self, upto: u64) {
        self.durable.fetch_max(upto, Ordering::AcqRel);
    }

    /// Returns when change `target`, and all before it, are durable; of a log of independent batches, or lost.
    ///
    /// # Errors
    /// Why they are not, or may not be.
    pub fn commit(self: &Arc<Self>, target: u64) -> Result<(), L::Error> {
        if self.durable() >= target {
            return Ok(());
        }
        let slot = Slot::new();
        self.state.lock().waiting.push((target, Waiter::Thread(slot.clone())));
        loop {
            let sent = self.send_next(target);
            let told = match sent {
                Sent::Written => slot.told(),
                Sent::UnderWay | Sent::Nothing => slot.wait(),
            };
            if let Some(result) = told {
                return result;
            }
        }
    }

    /// Calls `done`, which must not wait for this log, when change `target`, and all before it, are durable: here when they
    /// are or nobody else can tell, or else on a thread of the device's or of `serve`.
    pub fn commit_later(self: &Arc<Self>, target: u64, done: Told<L::Error>) {
        if self.durable() >= target {
            return done(Ok(()));
        }
        if self.log.writes_later() {
            self.state.lock().waiting.push((target, Waiter::Callback(done)));
            self.send_next(target);
        } else if let Err(done) = self.queue.ask(target, done) {
            done(self.commit(target));
        }
    }

    /// The body of the thread that commits for callbacks, where the log's device does not tell: runs until `stop_serving`, and
    /// keeps no log alive.
    pub fn serve(group: &Arc<Self>) -> impl FnOnce() + Send + use<L> {
        let (weak, queue) = (Arc::downgrade(group), group.queue.clone());
        queue.start();
        move || {
            while let Some(round) = queue.wait() {
                let last = round.iter().map(|(target, _)| *target).max().unwrap_or(0);
                let commit = || Weak::upgrade(&weak).map_or_else(|| Err(L::abandoned()), |group| group.commit(last));
                // Whatever panics here, others rely on this thread.
                let result = catch_unwind(AssertUnwindSafe(commit)).unwrap_or_else(|_| Err(L::abandoned()));
                let round = round.into_iter().map(|(target, done)| (target, Waiter::Callback(done)));
                let ready = Ready::new(round.collect(), result);
                let _ = catch_unwind(AssertUnwindSafe(|| ready.tell()));
            }
        }
    }

    /// The thread of `serve` does what it was asked for and ends; later callbacks are called where they are asked for.
    pub fn stop_serving(&self) {
        self.queue.stop();
    }

    /// Returns when no batch is under way. Its log has to refuse further ones.
    pub fn wait_idle(&self) {
        let mut state = self.state.lock();
        while !state.under_way.is_empty() {
            self.idle.wait(&mut state);
        }
    }

    /// Takes the next batch and writes it, or has it written.
    fn send_next(self: &Arc<Self>, target: u64) -> Sent {
        // Until it is known what the batch holds, all who wait depend on it.
        let mut under_way = UnderWay { group: None, first: 0, upto: u64::MAX, sent: None };
        let taken = {
            let mut state = self.state.lock();
            if !L::INDEPENDENT && (!state.under_way.is_empty() || self.is_paused(&mut state)) {
                return Sent::UnderWay;
            }
            state.taken = state.taken.max(self.durable());
            under_way.first = state.taken + 1;
            under_way.group = Some(self.clone());
            state.under_way.push(under_way.first);
            let target = if L::INDEPENDENT { target } else { state.last_target() };
            let taken = self.log.take(target);
            if let Ok(taken) = &taken {
                under_way.upto = taken.as_ref().map_or(target, |t| t.upto);
                state.taken = state.taken.max(under_way.upto);
            }
            taken
        };
        match taken {
            Ok(Some(Taken { batch, .. })) if self.log.writes_later() => {
                under_way.sent = self.log.pauses().then(now);
                self.log.write_later(batch, Box::new(move |result| under_way.over(result)));
                Sent::UnderWay
            }
            Ok(Some(Taken { batch, .. })) => {
                let result = self.log.write(batch);
                under_way.over(result);
                Sent::Written
            }
            Ok(None) => {
                under_way.over(Ok(()));
                Sent::Nothing
            }
            Err(e) => {
                under_way.over(Err(e));
                Sent::Nothing
            }
        }
    }

    /// Whether the next batch waits for others. A pause that has ended is forgotten.
    fn is_paused(self: &Arc<Self>, state: &mut State<L>) -> bool {
        let waiting = state.waiting.len();
        let Some(pause) = state.pause.take_if(|pause| !pause.goes_on(waiting, self)) else {
            return state.pause.is_some();
        };
        if pause.has_all(waiting) {
            state.pace.was_of_use();
        } else {
            state.pace.was_in_vain();
        }
        false
    }

    /// After a batch that took this time, and of which `told` learn: the time that the next one waits.
    fn begin_pause(
        self: &Arc<Self>,
        state: &mut State<L>,
        took: Duration,
        told: usize,
    ) -> Option<(Duration, PauseTime<GroupCommit<L>>)> {
        let waiting = state.waiting.len();
        let after = state.pace.pause_after(took, told, waiting)?;
        let waits = (waiting > 0).then(|| self.clone());
        let (pause, time) = Pause::begin(told + waiting, waits, |group| group.send_after_pause());
        state.pause = Some(pause);
        Some((after, time))
    }

    /// The time of a pause is over, and somebody waits.
    fn send_after_pause(self: Arc<Self>) {
        let target = {
            let mut state = self.state.lock();
            // Who asked just now may have seen it, and another pause may have begun.
            if state.pause.take_if(|pause| pause.is_over()).is_none() {
                return;
            }
            state.pace.was_in_vain();
            state.last_target()
        };
        self.send_next(target);
    }

    /// A batch with changes from `first` to `upto` is over.
    fn over(self: Arc<Self>, first: u64, upto: u64, sent: Option<Instant>, result: Result<(), L::Error>) {
        let (failed, ready, next) = {
            let mut state = self.state.lock();
            if let Some(at) = state.under_way.iter().position(|f| *f == first) {
                state.under_way.swap_remove(at);
            }
            let failed = match &result {
                Ok(()) => Vec::new(),
                Err(_) if L::INDEPENDENT => Vec::new(),
                Err(_) => {
                    state.taken = first - 1;
                    state.take_ready(|target| (first..=upto).contains(&target))
                }
            };
            let durable = state.durable();
            let durable = self.durable.fetch_max(durable, Ordering::AcqRel).max(durable);
            let ready = state.take_ready(|target| target <= durable);
            if state.under_way.is_empty() {
                self.idle.notify_all();
            }
            let sent = sent.filter(|_| result.is_ok() && state.under_way.is_empty());
            let pause = sent.and_then(|sent| self.begin_pause(&mut state, now() - sent, ready.len()));
            (
                failed,
                ready,
                pause.map_or_else(|| self.next_leader(&state), |(after, time)| Some(Leader::Time(after, time))),
            )
        };
        // The next batch leaves before anybody is told of this one.
        match next {
            Some(Leader::Thread(slot)) => slot.lead(),
            Some(Leader::Here(target)) => {
                self.send_next(target);
            }
            Some(Leader::Time(after, time)) => self.log.end_later(after, Box::new(time)),
            None => {}
        }
        // Whoever is told may let go of the log: nothing of it may be left here, on a thread of its device.
        drop(self);
        let (ready, failed) = (Ready::new(ready, Ok(())), Ready::new(failed, result));
        ready.tell();
        failed.tell();
    }

    /// Where somebody waits for changes that nobody has taken, whoever is to take them.
    fn next_leader(&self, state: &State<L>) -> Option<Leader<L>> {
        if L::INDEPENDENT || !state.under_way.is_empty() {
            return None;
        }
        let (target, waiter) = state.waiting.first()?;
        match waiter {
            Waiter::Thread(slot) if !self.log.writes_later() => Some(Leader::Thread(slot.clone())),
            _ => Some(Leader::Here(*target)),
        }
    }
}
