//! The owner's end of a connection between nodes: runs requests of another node's sessions in this node's trees, and answers when what
//! they changed is durable and this node may still answer. The sessions' tables here live as long as the connection: its end is
//! for them what the loss of its connections is for a session of this node.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use arden_lock::{Mutex, ranks};
use arden_store::{commit::CommitScope, error::StoreError, fs::WaitId, scope::RequestScope};
use arden_wire::{NtStatus, dtyp::Sid, smb2::Command};
use tokio::{io::AsyncRead, runtime::Handle};

use crate::{
    base::{
        grants::Granting,
        shares::Who,
        status,
        time::Time,
        usage::{Charge, Kind},
    },
    forward::{
        Stream,
        frames::{FrameReader, Outbox, Reserved, outbox},
        lanes::Lanes,
        turns::Lane,
    },
    handlers::run::{Here, INLINE_WEIGHT_MAX, InFlight, LocalEngine, RequestEngine, weight},
    model::{
        SessionTables,
        seam::{Answer, Notification, Outcome, Recipient, Related, asks_for_cache},
        share::Gates,
        wire::{
            Origin, Replied, Run, ToOwner, Version, begin_done, finish_done, put_answered, put_hello, put_leave,
            put_notify, put_pong, put_resume,
        },
    },
    server::{Server, forwarded::PeerNode},
    transport::jobs::begin_forwarded,
    trees::{ending::Ending, endings::Then},
};

/// The other node says something every few seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Requests of one node that are not answered; more are refused.
const REQUESTS_MAX: usize = 65_536;

/// Answers of a compound that are made at once; the others follow where it may block.
const INLINE_ANSWER_BYTES_MAX: usize = 1 << 20;

/// So much is run before whoever else has work on this thread has a turn, and what came meanwhile is sorted into lanes.
const TURN_COST: usize = INLINE_WEIGHT_MAX / 2;
/// So many frames are sorted in a turn, and so many bytes where something may run meanwhile.
const SORTED_MAX: usize = 256;
const SORTED_BYTES_MAX: usize = 256 << 10;
/// So many bytes that are asked, or may be answered, cost as much as a request.
const COST_BYTES: usize = 64 << 10;

/// What most answers have, to begin with.
const ANSWER_BYTES: usize = 256;

/// Reads the time for requests of other nodes.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// Runs what the node at the other end asks, until the connection ends, or the node has made another. `version`: what both ends speak.
pub async fn serve(server: &Arc<Server>, node: u16, (stream, version): (Box<dyn Stream>, Version), clock: Clock) {
    let place = server.node_links.begin(node);
    place.is_first().await;
    let (input, mut output) = tokio::io::split(stream);
    let (out, mut unwritten) = outbox();
    let link = Arc::new_cyclic(|me| OwnerLink {
        me: me.clone(),
        node,
        server: server.clone(),
        engine: LocalEngine(server.trees.clone()),
        runtime: Handle::current(),
        clock,
        out,
        state: Mutex::default(),
    });
    let mut hello = Vec::new();
    put_hello(&mut hello, version);
    link.out.send(Lane::NODE, hello);
    let writes = tokio::spawn(async move { unwritten.write(&mut output, version, || None).await });
    let why = tokio::select! {
        biased;
        () = place.is_replaced() => "the node has made another",
        why = link.serve(FrameReader::new(input, version), version) => why,
    };
    tracing::info!(node, why, "the connection of a node ends");
    writes.abort();
    // Closing what its sessions had open may wait for a disk.
    let _ = tokio::task::spawn_blocking(move || link.end()).await;
}

struct OwnerLink {
    me: Weak<OwnerLink>,
    node: u16,
    server: Arc<Server>,
    engine: LocalEngine,
    runtime: Handle,
    clock: Clock,
    out: Outbox,
    state: Mutex<State, ranks::OwnerLink>,
}

#[derive(Default)]
struct State {
    /// By the serial number at the other node.
    sessions: HashMap<u64, Arc<SessionTables>>,
    /// Who asks in the runs of a session, by the same number: of those above, and of one that is about to begin.
    origins: HashMap<u64, Arc<Origin>>,
    /// By the number on this connection.
    requests: HashMap<u64, Progress>,
    /// The connection has ended.
    closed: bool,
}

/// What waits for its user's turn, in order.
enum Task {
    Run(Box<Job>),
    SessionEnd {
        serial: u64,
        keep_durable: bool,
    },
    /// Behind the end of a session of this user: asks whether everything is closed.
    Ping(u64, Sid),
}

impl Task {
    /// See [`weight`].
    fn cost(&self) -> usize {
        let Task::Run(job) = self else { return 1 };
        let weights: usize = job.run.headers().map(|header| weight(header.command)).sum();
        weights + (job.run.bytes() + job.run.answer_bytes()) / COST_BYTES
    }
}

/// What the other node's messages left for the turns of their users.
#[derive(Default)]
struct Sorted {
    lanes: Lanes<Task>,
    /// The user of the session whose end was said last, until a ping asks about that.
    ended: Option<Sid>,
}

enum Progress {
    /// `ended`: nobody waits for its answer any more.
    Runs {
        ended: bool,
    },
    Waits(Box<Job>, WaitId),
}

/// Requests that are not answered: one, those of its compound that came with it, and what came of those before it.
struct Job {
    run: Box<Run>,
    origin: Arc<Origin>,
    tables: Arc<SessionTables>,
    in_flight: InFlight,
    lane: Lane,
    /// Room for its answers.
    reserved: Option<Reserved>,
    scope: CommitScope,
    gates: Gates,
    done: Vec<Ran>,
    /// The answers of `done`, in frames.
    answers: Vec<u8>,
    /// The first of `done` that speaks of a change in `scope`.
    first_change: Option<usize>,
    /// What it costs while it waits.
    waiting: Option<[Charge; 2]>,
    /// What it grants is not told yet.
    granting: Option<Granting>,
}

/// A request that has run, but whose changes may not be durable yet.
struct Ran {
    number: u64,
    related: Related,
    /// Where its answer begins.
    at: usize,
}

impl Job {
    /// The current request has run, and its answer begins here.
    fn ran(&mut self, at: usize, related: Related) {
        if self.first_change.is_none() && !self.scope.is_empty() {
            self.first_change = Some(self.done.len());
        }
        self.waiting = None;
        self.done.push(Ran { number: self.run.number, related, at });
    }

    /// Appends the answer of the current request. Where it begins.
    fn answer(&mut self, replied: &Replied, related: &Related) -> usize {
        let at = self.answers.len();
        put_answer(&mut self.answers, self.run.number, replied, related);
        at
    }

    /// Goes on with the next request. False: there is none, or it may not run now.
    fn advance(&mut self, replied: &Replied) -> bool {
        let Some(Ran { related, .. }) = self.done.last() else { return false };
        match replied {
            Replied::Done(status) | Replied::Error(status, ..) => self.run.advance(related.behind(*status)),
            Replied::Pending | Replied::Close | Replied::Moved | Replied::NotRun => false,
        }
    }

    fn bytes(&self) -> usize {
        self.run.bytes() + self.answers.capacity()
    }

    fn who(&self) -> Who {
        Who::new(&self.origin.user, self.origin.ip)
    }
}

fn too_long() -> Replied {
    Replied::Error(NtStatus::INSUFFICIENT_RESOURCES, Vec::new(), 0)
}

/// Appends an answer without a body.
fn put_answer(out: &mut Vec<u8>, number: u64, replied: &Replied, related: &Related) {
    if put_answered(out, number, replied, related, &[]).is_err() {
        let _ = put_answered(out, number, &too_long(), &Related::default(), &[]);
    }
}

impl PeerNode for OwnerLink {
    fn notify(&self, user: &Sid, to: Recipient, what: &Notification) {
        let mut frame = Vec::new();
        put_notify(&mut frame, to, what);
        self.out.send(Lane::of(user), frame);
    }

    fn leave(&self, serial: u64) {
        let mut frame = Vec::new();
        put_leave(&mut frame, serial);
        self.out.send(Lane::NODE, frame);
    }
}

impl OwnerLink {
    /// Until the connection ends: why it does. Frames that have come are sorted by user before work is run, a turn of it at a time: nobody
    /// waits behind what another user has sent.
    async fn serve(&self, mut input: FrameReader<impl AsyncRead + Unpin>, version: Version) -> &'static str {
        let (mut greeted, mut sorted, mut may_run) = (false, Sorted::default(), false);
        loop {
            if !self.out.has_room().await {
                return "it does not take what it asked for";
            }
            let mut budget = if may_run { SORTED_BYTES_MAX } else { usize::MAX };
            for _ in 0..SORTED_MAX {
                let frame = tokio::select! {
                    biased;
                    frame = input.next_within(SILENCE_MAX, &mut budget) => frame,
                    () = std::future::ready(()), if may_run => break,
                    () = self.out.less(), if !sorted.lanes.is_empty() => break,
                };
                let Some(frame) = frame else { return "it has ended" };
                if frame.is_empty() {
                    break;
                }
                match ToOwner::parse(frame, version) {
                    Ok(ToOwner::Hello(_)) if !greeted => greeted = true,
                    Ok(message) if greeted => self.take(message, &mut sorted),
                    Ok(_) => return "no hello",
                    Err(_) => return "a message is malformed",
                }
                may_run = !sorted.lanes.is_empty();
                budget = budget.min(SORTED_BYTES_MAX);
            }
            may_run = self.run_turn(&mut sorted.lanes);
            if may_run {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Runs what is next. False: nothing waits that may run now.
    fn run_turn(&self, lanes: &mut Lanes<Task>) -> bool {
        let mut cost = 0;
        while cost < TURN_COST {
            let Some((lane, work)) = lanes.next(|work| self.admit(work)) else { return false };
            let mut of_this = work.cost();
            match work {
                Task::Run(job) if self.is_given_up(&job) => self.forget(*job),
                Task::Run(job) => {
                    self.run(job, false);
                    of_this += RequestScope::weight();
                }
                Task::SessionEnd { serial, keep_durable } => {
                    let gone = {
                        let mut state = self.state.lock();
                        state.origins.remove(&serial);
                        state.sessions.remove(&serial)
                    };
                    if let Some(tables) = gone {
                        self.end_session(tables, keep_durable);
                    }
                }
                Task::Ping(number, user) => {
                    self.pong_after(number, |pong| self.server.trees.endings.after(&user, pong));
                }
            }
            lanes.charge(lane, of_this);
            cost += of_this;
        }
        !lanes.is_empty()
    }

    /// Whether nobody waits for any of its answers any more.
    fn is_given_up(&self, job: &Job) -> bool {
        let state = self.state.lock();
        let mut numbers = job.run.number..=job.run.number + job.run.following() as u64;
        numbers.all(|number| matches!(state.requests.get(&number), Some(Progress::Runs { ended: true })))
    }

    /// It does not run.
    fn forget(&self, mut job: Job) {
        let numbers = job.run.number..=job.run.number + job.run.following() as u64;
        let mut state = self.state.lock();
        numbers.for_each(|number| _ = state.requests.remove(&number));
        drop(state);
        self.engine.end(job.run.header(), &mut job.in_flight);
    }

    fn take(&self, message: ToOwner, sorted: &mut Sorted) {
        self.server.trees.set_time((self.clock)());
        match message {
            ToOwner::Hello(_) => {}
            ToOwner::Ping(number) => match sorted.ended.take() {
                Some(user) => sorted.lanes.push(Lane::of(&user), Task::Ping(number, user)),
                None => self.pong_after(number, Err),
            },
            ToOwner::EndPrevious { number, id, user } => {
                self.server.end_replaced(id, &user, self.node, |ending| self.close(ending));
                self.pong_after(number, |pong| self.server.engine.after_endings(&user, None, pong));
            }
            ToOwner::Origin { serial, origin } => self.know(serial, Arc::from(origin)),
            ToOwner::Run(run, who) => {
                if let Some(origin) = who {
                    self.know(run.session_serial, Arc::from(origin));
                }
                if let Some(job) = self.begin(run) {
                    sorted.lanes.push(job.lane, Task::Run(job));
                }
            }
            ToOwner::Again { number, async_id } => {
                let waiting = {
                    let mut state = self.state.lock();
                    match state.requests.insert(number, Progress::Runs { ended: false }) {
                        Some(Progress::Waits(job, _)) => Some(job),
                        Some(other) => {
                            state.requests.insert(number, other);
                            None
                        }
                        None => {
                            state.requests.remove(&number);
                            None
                        }
                    }
                };
                if let Some(mut job) = waiting {
                    job.run.async_id = Some(async_id);
                    sorted.lanes.push(job.lane, Task::Run(job));
                }
            }
            ToOwner::End { number } => self.give_up(number),
            ToOwner::SessionEnd { serial, keep_durable } => {
                // Behind what the session has asked.
                let user = self.state.lock().origins.get(&serial).map(|origin| origin.user.user.clone());
                sorted.ended = user.clone();
                if let Some(user) = user {
                    sorted.lanes.push(Lane::of(&user), Task::SessionEnd { serial, keep_durable });
                }
            }
        }
    }

    /// Nobody waits for the answer any more. What waits does not happen.
    fn give_up(&self, number: u64) {
        let waiting = {
            let mut state = self.state.lock();
            match state.requests.get_mut(&number) {
                Some(Progress::Runs { ended }) => {
                    *ended = true;
                    None
                }
                Some(Progress::Waits(..)) => state.requests.remove(&number),
                None => None,
            }
        };
        if let Some(Progress::Waits(mut job, wait)) = waiting {
            self.server.unpark(wait);
            self.engine.end(job.run.header(), &mut job.in_flight);
        }
    }

    /// Who asks in the runs of a session from now on. There are not many more of them than sessions: each is of one that exists at the
    /// other node, and goes with it.
    fn know(&self, serial: u64, origin: Arc<Origin>) {
        let tables = {
            let mut state = self.state.lock();
            if !state.origins.contains_key(&serial)
                && state.origins.len() >= self.server.trees.config.limits.sessions_max
            {
                // Its runs are for a session that is not known.
                return;
            }
            state.origins.insert(serial, origin.clone());
            state.sessions.get(&serial).cloned()
        };
        let Some(tables) = tables.filter(|tables| tables.client == origin.client) else { return };
        if *tables.token() != *origin.user {
            *tables.user.write() = origin.user.clone();
            self.server.trees.recheck_trees(&tables);
        }
    }

    /// What is to run, or None where it is refused.
    fn begin(&self, mut run: Box<Run>) -> Option<Box<Job>> {
        let (numbers, count) = (run.number..=run.number + run.following() as u64, 1 + run.following());
        let (origin, tables) = {
            let mut state = self.state.lock();
            let is_new = numbers.clone().all(|number| !state.requests.contains_key(&number));
            if !is_new || state.requests.len() + count > REQUESTS_MAX {
                drop(state);
                let refused = Replied::Error(NtStatus::INSUFFICIENT_RESOURCES, Vec::new(), 0);
                numbers.for_each(|number| self.answer(Lane::NODE, number, &refused, &Related::default()));
                return None;
            }
            state.requests.extend(numbers.map(|number| (number, Progress::Runs { ended: false })));
            let serial = run.session_serial;
            (state.origins.get(&serial).cloned(), state.sessions.get(&serial).cloned())
        };
        let tables = match (&origin, tables) {
            (Some(origin), Some(tables)) => Some(tables).filter(|tables| tables.client == origin.client),
            (Some(origin), None) => self.begin_session(&run, origin),
            (None, _) => None,
        };
        let (Some(origin), Some(tables)) = (origin, tables) else {
            let number = run.number;
            self.answer_not_run(Lane::NODE, run.give_back());
            self.state.lock().requests.remove(&number);
            self.answer(Lane::NODE, number, &Replied::Moved, &Related::default());
            return None;
        };
        let lane = Lane::of(&origin.user.user);
        Some(Box::new(Job {
            gates: Gates::of_owner(run.target),
            run,
            origin,
            tables,
            in_flight: InFlight::default(),
            lane,
            reserved: None,
            scope: CommitScope::begin(),
            done: Vec::with_capacity(count),
            answers: Vec::with_capacity(ANSWER_BYTES * count),
            first_change: None,
            waiting: None,
            granting: None,
        }))
    }

    /// Whether there is room for what it may be answered.
    fn admit(&self, work: Task) -> Result<Task, Task> {
        let Task::Run(mut job) = work else { return Ok(work) };
        match self.out.reserve(job.lane, job.run.answer_bytes()) {
            Some(reserved) => {
                job.reserved = Some(reserved);
                Ok(Task::Run(job))
            }
            None => Err(Task::Run(job)),
        }
    }

    /// A session begins with a tree connect; one that is not known was lost with another connection.
    fn begin_session(&self, run: &Run, origin: &Origin) -> Option<Arc<SessionTables>> {
        let mut state = self.state.lock();
        let is_first = run.header().command == Command::TreeConnect as u16 && run.async_id.is_none();
        if !is_first || state.closed || state.sessions.len() >= self.server.trees.config.limits.sessions_max {
            return None;
        }
        let (serial, id) = (self.server.trees.next_id(), run.header().session_id);
        let of_client = (origin.client, self.server.trees.grants.of(origin.client));
        let tables = SessionTables::new((serial, id), of_client, origin.user.clone(), origin.session_encrypts);
        let tables = Arc::new(tables.of_node(self.node));
        state.sessions.insert(run.session_serial, tables.clone());
        drop(state);
        self.server.trees.begin_session(&tables);
        if let Some(me) = self.me.upgrade() {
            self.server.forwarded.add(&tables, run.session_serial, me);
        }
        Some(tables)
    }

    fn end_session(&self, tables: Arc<SessionTables>, keep_durable: bool) {
        self.server.forwarded.remove(tables.serial);
        self.close(self.server.trees.take_down(&tables, keep_durable, self.server.trees.time().now));
    }

    /// Closes what a session had open. It counts as under way until that is durable.
    fn close(&self, ending: Ending) {
        let (closed, scope) = (ending.until_durable(), CommitScope::begin());
        let rest = if ending.is_long() {
            Some(ending)
        } else {
            ending.finish(&scope);
            None
        };
        if rest.is_none() && !scope.is_due() {
            return;
        }
        self.runtime.spawn_blocking(move || {
            rest.into_iter().for_each(|ending| ending.finish(&scope));
            if let Err(error) = scope.commit() {
                tracing::error!(%error, "what a session had open that has ended is not closed durably");
            }
            drop(closed);
        });
    }

    /// Says that what was asked is done, when it is.
    fn pong_after(&self, number: u64, after: impl FnOnce(Then) -> Result<(), Then>) {
        let out = self.out.clone();
        let pong = move || {
            let mut frame = Vec::new();
            put_pong(&mut frame, number);
            out.send(Lane::NODE, frame);
        };
        if let Err(pong) = after(Box::new(pong)) {
            pong();
        }
    }

    fn run(&self, mut job: Box<Job>, may_block: bool) {
        // What the store saw for one request of a compound holds for the next.
        let scope = if may_block { RequestScope::begin() } else { RequestScope::begin_without_waiting() };
        let mut done = 0;
        loop {
            let at = job.answers.len();
            let Answer { outcome, related } = self.run_once(&mut job, may_block);
            let replied = match outcome {
                Outcome::Done(status) => Replied::Done(status),
                Outcome::Block => {
                    job.answers.truncate(at);
                    if job.run.header().command != Command::Close as u16 {
                        job.in_flight.begin_work();
                    }
                    return self.run_where_it_may_block(job);
                }
                Outcome::After => {
                    job.answers.truncate(at);
                    job.granting = None;
                    let Some(me) = self.me.upgrade() else { return };
                    return match job.in_flight.take_after() {
                        Some(open) => open.after_work(Box::new(move || me.run_where_it_may_block(job))),
                        None => self.run_where_it_may_block(job),
                    };
                }
                Outcome::Pending(wait) => {
                    job.answers.truncate(at);
                    drop(scope);
                    if may_block || !job.scope.is_due() {
                        return self.put_aside(job, (wait, related), may_block);
                    }
                    // Other users of the node do not wait for the disk with it.
                    return self.begin_blocking(job, move |me, job| me.put_aside(job, (wait, related), true));
                }
                Outcome::Close(_) if !job.gates.may_answer() || job.gates.has_refused() => Replied::Moved,
                outcome => Replied::of(outcome).unwrap_or(Replied::Close),
            };
            let number = job.run.number;
            let is_done = match &replied {
                Replied::Done(status) => finish_done(&mut job.answers, at, number, *status, &related).is_ok(),
                _ => false,
            };
            if !is_done {
                job.answers.truncate(at);
                let replied = if matches!(replied, Replied::Done(_)) { &too_long() } else { &replied };
                job.answer(replied, &related);
            }
            self.engine.end(job.run.header(), &mut job.in_flight);
            done += weight(job.run.header().command);
            job.ran(at, related);
            if !job.advance(&replied) {
                drop(scope);
                return self.finish(job, may_block);
            }
            let weight = done + RequestScope::weight();
            if !may_block && (weight >= INLINE_WEIGHT_MAX || job.answers.len() > INLINE_ANSWER_BYTES_MAX) {
                return self.run_where_it_may_block(job);
            }
        }
    }

    /// Appends a response behind room for what is said before it.
    fn run_once(&self, job: &mut Job, may_block: bool) -> Answer {
        let mut here = Here {
            now: self.server.trees.time().now,
            may_block,
            scope: &job.scope,
            large: self.out.spare(),
            gates: &mut job.gates,
            in_flight: &mut job.in_flight,
            behind: None,
            tree_elsewhere: false,
        };
        let request = job.run.verified(&job.origin, job.tables.serial);
        if job.granting.is_none() && asks_for_cache(&request.header, request.message) {
            job.granting = Some(job.tables.grants.begin());
        }
        begin_done(&mut job.answers);
        self.engine.run(&request, &mut here, &mut job.answers)
    }

    fn run_where_it_may_block(&self, job: Box<Job>) {
        self.begin_blocking(job, |me, job| {
            me.server.trees.set_time((me.clock)());
            me.run(job, true);
        });
    }

    fn begin_blocking(&self, job: Box<Job>, work: impl FnOnce(&OwnerLink, Box<Job>) + Send + 'static) {
        let Some(me) = self.me.upgrade() else { return };
        let of = (job.who(), job.bytes());
        begin_forwarded(&self.server, &self.runtime, of, move || work(&me, job));
    }

    /// What it changed before it waits is durable, and those before it are answered, or it does not wait. Those behind it are given
    /// back: they are asked for again.
    fn put_aside(&self, mut job: Box<Job>, (wait, related): (WaitId, Related), may_block: bool) {
        job.in_flight.end_work();
        let committed = if may_block { job.scope.commit() } else { Ok(()) };
        self.answer_done(&mut job, committed);
        // It may wait for the answer to a break.
        job.granting = None;
        // A new scope: what it changes next is committed with its next answer.
        job.scope = CommitScope::begin();
        job.reserved = None;
        self.answer_not_run(job.lane, job.run.give_back());
        let refused = match committed {
            Err(error) => Some(status::of_error(error)),
            Ok(()) if job.waiting.is_none() && !self.charge_wait(&mut job) => Some(NtStatus::INSUFFICIENT_RESOURCES),
            Ok(()) => None,
        };
        let (number, lane) = (job.run.number, job.lane);
        let ended = refused.is_none() && {
            let mut state = self.state.lock();
            let ended = state.closed || matches!(state.requests.get(&number), Some(Progress::Runs { ended: true }));
            if !ended {
                self.answer(lane, number, &Replied::Pending, &related);
                state.requests.insert(number, Progress::Waits(job, wait));
                drop(state);
                let out = self.out.clone();
                let resume = move || {
                    let mut frame = Vec::new();
                    put_resume(&mut frame, number);
                    out.send(lane, frame);
                };
                self.server.park_forwarded(wait, Box::new(resume));
                let is_there = self.state.lock().requests.contains_key(&number);
                if !is_there {
                    // It was given up before it was put aside.
                    self.server.unpark(wait);
                }
                return;
            }
            ended
        };
        self.server.unpark(wait);
        let status = refused.unwrap_or(NtStatus::CANCELLED);
        debug_assert!(ended || refused.is_some());
        self.engine.end(job.run.header(), &mut job.in_flight);
        let at = job.answer(&Replied::Error(status, Vec::new(), 0), &related);
        job.ran(at, related);
        self.finish(job, may_block);
    }

    /// The user pays here, too, for what waits.
    fn charge_wait(&self, job: &mut Job) -> bool {
        let (usage, who, ip) = (&self.server.trees.usage, &job.origin.user, Some(job.origin.ip));
        let one = usage.charge(Kind::Waits, who, ip, 1);
        let charges = one.and_then(|one| Ok([one, usage.charge(Kind::WaitBytes, who, ip, job.run.bytes())?]));
        job.waiting = charges.ok();
        job.waiting.is_some()
    }

    /// It has run: nothing of it is in flight any more, and it is answered when its changes are durable.
    fn finish(&self, mut job: Box<Job>, may_block: bool) {
        if may_block || !job.scope.is_due() {
            let committed = if may_block { job.scope.commit() } else { Ok(()) };
            return self.leave(&mut job, committed);
        }
        let Some(me) = self.me.upgrade() else { return };
        match job.scope.later() {
            // The thread that tells of a commit must not be the one that frees the scope.
            Some(commit) => commit.run(Box::new(move |committed| {
                me.leave(&mut job, committed);
                me.server.trees.defer_drop(job);
            })),
            None => self.begin_blocking(job, |me, mut job| {
                let committed = job.scope.commit();
                me.leave(&mut job, committed);
            }),
        }
    }

    fn leave(&self, job: &mut Job, committed: Result<(), StoreError>) {
        self.answer_done(job, committed);
        job.granting = None;
        self.answer_not_run(job.lane, job.run.give_back());
        job.reserved = None;
    }

    /// The answers leave, unless this node may not answer any more. Where a change could not be made durable, none from the first that
    /// speaks of one on is true.
    fn answer_done(&self, job: &mut Job, committed: Result<(), StoreError>) {
        let (done, first_change) = (std::mem::take(&mut job.done), job.first_change.take());
        let mut answers = std::mem::take(&mut job.answers);
        if done.is_empty() {
            return;
        }
        {
            let mut state = self.state.lock();
            done.iter().for_each(|ran| _ = state.requests.remove(&ran.number));
        }
        let instead = match committed {
            _ if !job.gates.may_answer() => Some((0, Replied::Moved)),
            Err(error) => {
                tracing::error!(%error, "a change of another node's client could not be made durable");
                Some((first_change.unwrap_or(0), Replied::Error(status::of_error(error), Vec::new(), 0)))
            }
            Ok(()) => None,
        };
        if let Some((first, replied)) = instead {
            answers.truncate(done[first..].first().map_or(answers.len(), |ran| ran.at));
            done[first..].iter().for_each(|ran| put_answer(&mut answers, ran.number, &replied, &ran.related));
        }
        self.out.send(job.lane, answers);
    }

    /// These were not run.
    fn answer_not_run(&self, lane: Lane, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            self.state.lock().requests.remove(&number);
            self.answer(lane, number, &Replied::NotRun, &Related::default());
        }
    }

    fn answer(&self, lane: Lane, number: u64, replied: &Replied, related: &Related) {
        let mut frame = Vec::with_capacity(64);
        put_answer(&mut frame, number, replied, related);
        self.out.send(lane, frame);
    }

    /// The connection has ended.
    fn end(&self) {
        self.server.trees.set_time((self.clock)());
        let (sessions, waiting) = {
            let mut state = self.state.lock();
            state.closed = true;
            let sessions: Vec<_> = state.sessions.drain().map(|(_, tables)| tables).collect();
            (sessions, std::mem::take(&mut state.requests))
        };
        for progress in waiting.into_values() {
            if let Progress::Waits(mut job, wait) = progress {
                self.server.unpark(wait);
                self.engine.end(job.run.header(), &mut job.in_flight);
            }
        }
        for tables in sessions {
            self.end_session(tables, true);
        }
    }
}
