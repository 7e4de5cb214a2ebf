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
use arden_wire::{
    NtStatus,
    smb2::{Command, Header},
};
use tokio::runtime::Handle;

use crate::{
    base::{
        shares::Who,
        status,
        time::Time,
        usage::{Charge, Kind},
    },
    forward::{
        Stream,
        frames::{Incoming, Outbox, outbox},
    },
    handlers::run::{Here, InFlight, LocalEngine, RequestEngine},
    model::{
        SessionTables,
        seam::{Answer, Notification, Outcome, Recipient, Related},
        share::Gates,
        wire::{Replied, Run, ToOwner, put_answered, put_hello, put_leave, put_notify, put_pong, put_resume},
    },
    server::{Server, forwarded::PeerNode},
    transport::jobs::begin_forwarded,
};

/// The other node says something every few seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Requests of one node that are not answered; more are refused.
const REQUESTS_MAX: usize = 65_536;

/// Reads the time for requests of other nodes.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// Runs what the node at the other end asks, until the connection ends.
pub async fn serve(server: &Arc<Server>, node: u16, stream: Box<dyn Stream>, clock: Clock) {
    let (input, mut output) = tokio::io::split(stream);
    let mut input = Incoming::new(input);
    let (out, mut unwritten) = outbox();
    let link = Arc::new_cyclic(|me| OwnerLink {
        me: me.clone(),
        server: server.clone(),
        engine: LocalEngine(server.trees.clone()),
        runtime: Handle::current(),
        clock,
        out,
        state: Mutex::default(),
        large: Mutex::default(),
    });
    let mut hello = Vec::new();
    put_hello(&mut hello);
    link.out.send(hello);
    let writes = tokio::spawn(async move { unwritten.write(&mut output, || None).await });
    let mut greeted = false;
    let why = loop {
        link.out.has_room().await;
        if writes.is_finished() {
            break "it does not take what it asked for";
        }
        let Some(frame) = input.next(SILENCE_MAX).await else { break "it has ended" };
        match ToOwner::parse(frame) {
            Ok(ToOwner::Hello(_)) if !greeted => greeted = true,
            Ok(message) if greeted => link.take(message),
            Ok(_) => break "no hello",
            Err(_) => break "a message is malformed",
        }
    };
    tracing::info!(node, why, "the connection of a node ends");
    writes.abort();
    // Closing what its sessions had open may wait for a disk.
    let _ = tokio::task::spawn_blocking(move || link.end()).await;
}

struct OwnerLink {
    me: Weak<OwnerLink>,
    server: Arc<Server>,
    engine: LocalEngine,
    runtime: Handle,
    clock: Clock,
    out: Outbox,
    state: Mutex<State, ranks::OwnerLink>,
    large: Mutex<Vec<u8>, ranks::LargeBuffer>,
}

#[derive(Default)]
struct State {
    /// By the serial number at the other node.
    sessions: HashMap<u64, Arc<SessionTables>>,
    /// By the number on this connection.
    requests: HashMap<u64, Progress>,
    /// The connection has ended.
    closed: bool,
}

enum Progress {
    /// `ended`: nobody waits for its answer any more.
    Runs {
        ended: bool,
    },
    Waits(Box<Job>, WaitId),
}

/// A request that is not answered.
struct Job {
    run: Box<Run>,
    tables: Arc<SessionTables>,
    in_flight: InFlight,
    scope: CommitScope,
    gates: Gates,
    /// What it costs while it waits.
    waiting: Option<[Charge; 2]>,
}

/// A request that has run, but whose changes are not durable yet.
struct Finished {
    header: Header,
    number: u64,
    replied: Replied,
    related: Related,
    body: Vec<u8>,
    gates: Gates,
    scope: CommitScope,
}

impl PeerNode for OwnerLink {
    fn notify(&self, to: Recipient, what: &Notification) {
        let mut frame = Vec::new();
        put_notify(&mut frame, to, what);
        self.out.send(frame);
    }

    fn leave(&self, serial: u64) {
        let mut frame = Vec::new();
        put_leave(&mut frame, serial);
        self.out.send(frame);
    }
}

impl OwnerLink {
    fn take(&self, message: ToOwner) {
        self.server.trees.set_time((self.clock)());
        match message {
            ToOwner::Hello(_) => {}
            ToOwner::Ping(number) => {
                let mut frame = Vec::new();
                put_pong(&mut frame, number);
                self.out.send(frame);
            }
            ToOwner::Run(run) => self.begin(run),
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
                    self.run(job, false);
                }
            }
            ToOwner::End { number } => self.give_up(number),
            ToOwner::SessionEnd { serial, keep_durable } => {
                let gone = self.state.lock().sessions.remove(&serial);
                if let Some(tables) = gone {
                    self.end_session(tables, keep_durable);
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

    fn begin(&self, run: Box<Run>) {
        let number = run.number;
        {
            let mut state = self.state.lock();
            if state.requests.len() >= REQUESTS_MAX || state.requests.contains_key(&number) {
                drop(state);
                let refused = NtStatus::INSUFFICIENT_RESOURCES;
                return self.answer(number, &Replied::Error(refused, Vec::new(), 0), &Related::default(), &[]);
            }
            state.requests.insert(number, Progress::Runs { ended: false });
        }
        match self.tables(&run) {
            Some(tables) => {
                let gates = Gates::of_owner(run.target);
                let (in_flight, scope) = (InFlight::default(), CommitScope::begin());
                self.run(Box::new(Job { run, tables, in_flight, scope, gates, waiting: None }), false);
            }
            None => {
                self.state.lock().requests.remove(&number);
                self.answer(number, &Replied::Moved, &Related::default(), &[]);
            }
        }
    }

    /// The tables of the session that asks. A session begins with a tree connect; one that is not known was lost with another
    /// connection.
    fn tables(&self, run: &Run) -> Option<Arc<SessionTables>> {
        let mut state = self.state.lock();
        if let Some(tables) = state.sessions.get(&run.session_serial).cloned() {
            drop(state);
            if tables.client != run.client {
                return None;
            }
            if *tables.token() != *run.user {
                *tables.user.write() = run.user.clone();
                self.server.trees.recheck_trees(&tables);
            }
            return Some(tables);
        }
        let is_first = run.header().command == Command::TreeConnect as u16 && run.async_id.is_none();
        if !is_first || state.closed || state.sessions.len() >= self.server.trees.config.limits.sessions_max {
            return None;
        }
        let (serial, id) = (self.server.trees.next_id(), run.header().session_id);
        let tables = SessionTables::new(serial, id, run.client, run.user.clone(), run.session_encrypts);
        let tables = Arc::new(tables);
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
        let ending = self.server.trees.take_down(&tables, keep_durable, self.server.trees.time().now);
        if ending.is_long() {
            self.runtime.spawn_blocking(move || ending.finish(&CommitScope::begin()));
        } else {
            ending.finish(&CommitScope::begin());
        }
    }

    fn run(&self, mut job: Box<Job>, may_block: bool) {
        let (answer, body) = self.run_once(&mut job, may_block);
        let Answer { outcome, related } = answer;
        match outcome {
            Outcome::Block => {
                if job.run.header().command != Command::Close as u16 {
                    job.in_flight.begin_work();
                }
                self.run_where_it_may_block(job);
            }
            Outcome::After => {
                let Some(me) = self.me.upgrade() else { return };
                match job.in_flight.take_after() {
                    Some(open) => open.after_work(Box::new(move || me.run_where_it_may_block(job))),
                    None => self.run_where_it_may_block(job),
                }
            }
            Outcome::Pending(wait) => self.put_aside(job, wait, related),
            Outcome::Elsewhere => self.finish(job, Replied::Close, related, body, may_block),
            Outcome::Close(_) if !job.gates.may_answer() || job.gates.has_refused() => {
                self.finish(job, Replied::Moved, related, Vec::new(), may_block);
            }
            outcome => {
                let replied = Replied::of(outcome).unwrap_or(Replied::Close);
                let body = if matches!(replied, Replied::Done(_)) { body } else { Vec::new() };
                self.finish(job, replied, related, body, may_block);
            }
        }
    }

    fn run_once(&self, job: &mut Job, may_block: bool) -> (Answer, Vec<u8>) {
        let _scope = if may_block { RequestScope::begin() } else { RequestScope::begin_without_waiting() };
        let mut here = Here {
            now: self.server.trees.time().now,
            may_block,
            scope: &job.scope,
            large: &self.large,
            gates: &mut job.gates,
            in_flight: &mut job.in_flight,
            tree_elsewhere: false,
        };
        let mut body = Vec::new();
        let answer = self.engine.run(&job.run.verified(job.tables.serial), &mut here, &mut body);
        (answer, body)
    }

    fn run_where_it_may_block(&self, job: Box<Job>) {
        let Some(me) = self.me.upgrade() else { return };
        let who = Who::new(&job.run.user, job.run.ip);
        let bytes = job.run.bytes();
        begin_forwarded(&self.server, &self.runtime, (who, bytes), move || {
            me.server.trees.set_time((me.clock)());
            me.run(job, true);
        });
    }

    /// What it changed before it waits is durable, or it does not wait.
    fn put_aside(&self, mut job: Box<Job>, wait: WaitId, related: Related) {
        job.in_flight.end_work();
        let refused = match job.scope.commit() {
            Err(error) => Some(status::of_error(error)),
            Ok(()) if job.waiting.is_none() && !self.charge_wait(&mut job) => Some(NtStatus::INSUFFICIENT_RESOURCES),
            Ok(()) => None,
        };
        let number = job.run.number;
        let ended = refused.is_none() && {
            let mut state = self.state.lock();
            let ended = state.closed || matches!(state.requests.get(&number), Some(Progress::Runs { ended: true }));
            if !ended {
                // A new scope: what it changes next is committed with its next answer.
                job.scope = CommitScope::begin();
                self.answer(number, &Replied::Pending, &related, &[]);
                state.requests.insert(number, Progress::Waits(job, wait));
                drop(state);
                let out = self.out.clone();
                let resume = move || {
                    let mut frame = Vec::new();
                    put_resume(&mut frame, number);
                    out.send(frame);
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
        self.finish(job, Replied::Error(status, Vec::new(), 0), related, Vec::new(), true);
    }

    /// The user pays here, too, for what waits.
    fn charge_wait(&self, job: &mut Job) -> bool {
        let (usage, who, ip) = (&self.server.trees.usage, &job.run.user, Some(job.run.ip));
        let one = usage.charge(Kind::Waits, who, ip, 1);
        let charges = one.and_then(|one| Ok([one, usage.charge(Kind::WaitBytes, who, ip, job.run.bytes())?]));
        job.waiting = charges.ok();
        job.waiting.is_some()
    }

    /// It has run: nothing of it is in flight any more, and it is answered when its changes are durable.
    fn finish(&self, mut job: Box<Job>, replied: Replied, related: Related, body: Vec<u8>, may_block: bool) {
        self.engine.end(job.run.header(), &mut job.in_flight);
        let Job { run, gates, scope, .. } = *job;
        let (header, number) = (*run.header(), run.number);
        let (who, bytes) = (Who::new(&run.user, run.ip), body.len());
        let finished = Finished { header, number, replied, related, body, gates, scope };
        if may_block {
            let committed = finished.scope.commit();
            return drop(self.leave(finished, committed));
        }
        if !finished.scope.is_due() {
            return drop(self.leave(finished, Ok(())));
        }
        let Some(me) = self.me.upgrade() else { return };
        match finished.scope.later() {
            // The thread that tells of a commit must not be the one that frees the scope.
            Some(commit) => commit.run(Box::new(move |committed| {
                let scope = me.leave(finished, committed);
                me.server.trees.defer_drop(scope);
            })),
            None => begin_forwarded(&self.server, &self.runtime, (who, bytes), move || {
                let committed = finished.scope.commit();
                drop(me.leave(finished, committed));
            }),
        }
    }

    /// The answer leaves, unless this node may not answer any more.
    fn leave(&self, finished: Finished, committed: Result<(), StoreError>) -> CommitScope {
        let Finished { header, number, replied, related, body, gates, scope } = finished;
        self.state.lock().requests.remove(&number);
        match committed {
            _ if !gates.may_answer() => self.answer(number, &Replied::Moved, &related, &[]),
            Err(error) => {
                tracing::error!(command = header.command, %error, "a change of another node's client could not be made durable");
                let failed = Replied::Error(status::of_error(error), Vec::new(), 0);
                self.answer(number, &failed, &related, &[]);
            }
            Ok(()) => self.answer(number, &replied, &related, &body),
        }
        scope
    }

    fn answer(&self, number: u64, replied: &Replied, related: &Related, body: &[u8]) {
        let mut frame = Vec::with_capacity(64 + body.len());
        if put_answered(&mut frame, number, replied, related, body).is_err() {
            let too_long = Replied::Error(NtStatus::INSUFFICIENT_RESOURCES, Vec::new(), 0);
            let _ = put_answered(&mut frame, number, &too_long, &Related::default(), &[]);
        }
        self.out.send(frame);
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
