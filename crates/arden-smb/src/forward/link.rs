//! The end of a connection between nodes at the node of the clients: requests that were asked and not answered, and what the owner
//! says of its own accord. A connection that breaks is not made anew: everything that was asked over it ends.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arden_lock::{Mutex, ranks};
use arden_store::fs::WaitId;
use arden_wire::dtyp::Sid;
use tokio::{sync::watch, time::timeout};

use crate::{
    forward::{
        DIAL_WAIT, Dialed, PREVIOUS_DIAL_WAIT, SILENCE_MAX, Stream,
        frames::{Body, FrameReader, LONG_BYTES, Outbox, Unwritten, outbox},
        room::Paid,
        turns::Lane,
    },
    handlers::run::{Elsewhere, GoOn},
    model::{
        SessionTables,
        seam::{Following, Notification, Recipient, Related, VerifiedRequest},
        wire::{
            FromOwner, Origin, Replied, Target, TooLong, Version, put_again, put_end, put_end_previous, put_hello,
            put_origin, put_ping, put_run, put_session_end,
        },
    },
    trees::endings::Endings,
};

/// What the owner says of its own accord, and that it is gone.
pub trait Heard: Send + Sync {
    fn notify(&self, to: Recipient, what: &Notification);
    fn leave(&self, serial: u64);
    fn resume(&self, wait: WaitId);
    fn broken(&self, link: &Arc<Link>);
}

/// A connection to a node that owns pools.
pub struct Link {
    pub node: u16,
    pub out: Outbox,
    /// What both ends speak, once there is a connection.
    version: OnceLock<Version>,
    dial: watch::Sender<Dial>,
    numbers: AtomicU64,
    /// Who asks, as the owner was told last, by the serial number of the session.
    origins: Mutex<HashMap<u64, Origin>, ranks::LinkOrigins>,
    calls: Mutex<HashMap<u64, Weak<Call>>, ranks::LinkCalls>,
    /// Ends of sessions that were said and not confirmed. Their numbers are those of the pings behind them.
    pub endings: Endings,
    broken: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dial {
    Begun,
    /// It takes long.
    Late,
    /// There is a connection, or none will be.
    Settled,
}

/// One request at the owner.
pub struct Call {
    pub number: u64,
    pub link: Arc<Link>,
    lane: Lane,
    bytes: usize,
    state: Mutex<State, ranks::ForwardedCall>,
    /// What it costs its user.
    paid: Paid,
}

/// Why a run was not sent.
pub enum NotSent {
    Ended,
    TooLong,
}

impl From<TooLong> for NotSent {
    fn from(TooLong: TooLong) -> NotSent {
        NotSent::TooLong
    }
}

/// Requests up to so many, whose answers came together, go on right here. More do so side by side at their connections.
const ANSWERS_HERE_MAX: usize = 4;
/// They have no more than this in all: signing and copying much would keep the others waiting.
const ANSWER_BYTES_HERE_MAX: usize = 64 << 10;

/// With more than this a request does not go on at its connection.
const ANSWER_BYTES_AT_CONNECTION_MAX: usize = 2 << 20;

/// Who goes on when all answers are there that came with theirs: whoever is woken finds several, and is woken once.
#[derive(Default)]
struct Together {
    go_on: Vec<GoOn>,
    bytes: usize,
}

impl Together {
    fn go_on(&mut self) {
        let here = self.go_on.len() <= ANSWERS_HERE_MAX && self.bytes <= ANSWER_BYTES_HERE_MAX;
        self.bytes = 0;
        self.go_on.drain(..).for_each(|go_on| go_on(here));
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        self.go_on();
    }
}

enum State {
    Asked(Option<GoOn>),
    /// `resumed`: the wait that the answer speaks of is over already.
    Answered {
        answer: Answered,
        resumed: bool,
    },
    Waits(WaitId),
    /// Its wait is over.
    MayGoOn,
    Over,
}

/// What the owner answered.
pub struct Answered {
    pub replied: Replied,
    pub related: Related,
    pub body: Body,
}

/// What comes next for a request.
pub enum Next {
    Answered(Answered),
    /// It waits at the owner, and `resumed` says whether that is over already.
    Waits {
        related: Related,
        resumed: bool,
    },
    /// Its wait is over: it is to be asked again.
    AskAgain,
    /// There is no answer yet.
    NotYet,
}

impl Link {
    /// Begins to connect. Nothing can be asked before [`Link::version`] is known.
    pub fn open(node: u16, dialed: Dialed, heard: Arc<dyn Heard>) -> Arc<Link> {
        let (out, unwritten) = outbox();
        let link = Arc::new(Link {
            node,
            out,
            version: OnceLock::new(),
            dial: watch::Sender::new(Dial::Begun),
            numbers: AtomicU64::new(1),
            origins: Mutex::default(),
            calls: Mutex::default(),
            endings: Endings::default(),
            broken: AtomicBool::new(false),
        });
        let task = link.clone();
        tokio::spawn(async move {
            let why = task.converse(dialed, unwritten, &*heard).await;
            tracing::info!(node, why, "no connection to a node");
            task.fail();
            heard.broken(&task);
        });
        link
    }

    async fn converse(&self, dialed: Dialed, mut unwritten: Unwritten, heard: &dyn Heard) -> &'static str {
        let Ok(Ok((stream, version))) = timeout(DIAL_WAIT, self.watched(dialed)).await else {
            return "it cannot be reached";
        };
        let mut hello = Vec::new();
        put_hello(&mut hello, version);
        self.out.send(Lane::NODE, hello);
        let _ = self.version.set(version);
        self.dial.send_replace(Dial::Settled);
        let (input, mut output) = tokio::io::split(stream);
        let mut input = FrameReader::new(input, version);
        let ping = || {
            let mut frame = Vec::new();
            put_ping(&mut frame, 0);
            Some(frame)
        };
        let reads = async {
            let (mut greeted, mut answered) = (false, Together::default());
            loop {
                let Some(frame) = input.next(SILENCE_MAX).await else { return "it has ended" };
                let frame_bytes = frame.len();
                match FromOwner::parse(frame, version) {
                    Ok(FromOwner::Hello(_)) if !greeted => greeted = true,
                    Ok(FromOwner::Answered { number, answer, related, body }) if greeted => {
                        let body_at = frame_bytes - body.len();
                        let answer = Answered { replied: answer, related, body: input.take(body_at, &self.out) };
                        answered.bytes += frame_bytes;
                        answered.go_on.extend(self.call(number).and_then(|call| call.answer(answer)));
                    }
                    Ok(message) if greeted => {
                        // It is said behind what was answered before.
                        answered.go_on();
                        self.take(message, heard);
                    }
                    Ok(_) => return "no hello",
                    Err(_) => return "a message is malformed",
                }
                if !input.has_next() {
                    answered.go_on();
                }
            }
        };
        tokio::select! {
            why = reads => why,
            () = unwritten.write(&mut output, version, ping) => "it takes nothing",
        }
    }

    async fn watched(&self, mut dialed: Dialed) -> io::Result<(Box<dyn Stream>, Version)> {
        if let Ok(connected) = timeout(PREVIOUS_DIAL_WAIT, &mut dialed).await {
            return connected;
        }
        self.dial.send_replace(Dial::Late);
        dialed.await
    }

    fn take(&self, message: FromOwner<'_>, heard: &dyn Heard) {
        match message {
            FromOwner::Hello(_) | FromOwner::Answered { .. } => {}
            FromOwner::Pong(number) => self.endings.end(number),
            FromOwner::Resume { number } => {
                if let Some(wait) = self.call(number).and_then(|call| call.resume()) {
                    heard.resume(wait);
                }
            }
            FromOwner::Notify(to, what) => heard.notify(to, &what),
            FromOwner::Leave { serial } => heard.leave(serial),
        }
    }

    /// What both ends speak. None: there is no connection yet.
    pub fn version(&self) -> Option<Version> {
        self.version.get().copied()
    }

    /// Waits until there is a connection, or none will be.
    pub async fn settled(&self) {
        let _ = self.dial.subscribe().wait_for(|dial| *dial == Dial::Settled).await;
    }

    /// The same, but not for long.
    pub async fn settled_or_late(&self) {
        let _ = self.dial.subscribe().wait_for(|dial| *dial != Dial::Begun).await;
    }

    fn call(&self, number: u64) -> Option<Arc<Call>> {
        self.calls.lock().get(&number).and_then(Weak::upgrade)
    }

    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// New requests of a user with numbers that follow each other, one for each of these bytes and what was paid; the caller sends them.
    pub fn begin(self: &Arc<Link>, user: &Sid, costs: Vec<(usize, Paid)>) -> Vec<Arc<Call>> {
        let lane = Lane::of(user);
        let first = self.numbers.fetch_add(costs.len() as u64, Ordering::Relaxed);
        let new = |(number, (bytes, paid))| {
            let state = Mutex::new(State::Asked(None));
            Arc::new(Call { number, link: self.clone(), lane, bytes, state, paid })
        };
        let calls: Vec<_> = (first..).zip(costs).map(new).collect();
        self.calls.lock().extend(calls.iter().map(|call| (call.number, Arc::downgrade(call))));
        if self.is_broken() {
            calls.iter().for_each(|call| call.lose());
        }
        calls
    }

    /// Asks for this request and those that follow it, which begin with the number of `first`. The owner learns who asks, where it does not know.
    ///
    /// # Errors
    /// It does not fit a frame, or the session has ended: nothing is asked.
    pub fn ask(
        &self,
        first: &Call,
        target: Target,
        request: &VerifiedRequest<'_>,
        following: &[Following<'_>],
        tables: &SessionTables,
    ) -> Result<(), NotSent> {
        let (number, lane) = (first.number, first.lane);
        let says_who = self.version() == Some(Version::One);
        let len = following.iter().map(|f| f.message.len()).sum::<usize>() + request.message.len();
        let mut run = if len < LONG_BYTES { Vec::new() } else { self.out.take_spare() };
        run.reserve(256 + len);
        if !says_who {
            put_run(&mut run, number, target, request, following, None)?;
        }
        let (mut origins, session_encrypts) = (self.origins.lock(), tables.encrypts);
        if tables.has_ended() {
            // Nothing would make the owner forget it again.
            return Err(NotSent::Ended);
        }
        let known = origins.get(&request.session_serial);
        if !known.is_some_and(|origin| origin.is_of(request, session_encrypts)) {
            let origin = Origin::of(request, session_encrypts);
            if !says_who {
                let mut frame = Vec::new();
                put_origin(&mut frame, request.session_serial, &origin)?;
                self.out.send(lane, frame);
            }
            origins.insert(request.session_serial, origin);
        }
        if says_who {
            put_run(&mut run, number, target, request, following, origins.get(&request.session_serial))?;
        }
        // Under the lock: nothing of another origin comes between. All of a session goes in one lane, as its user does not change.
        self.out.send(lane, run);
        Ok(())
    }

    /// The session is gone. It is among `endings` until the owner has closed what it had open.
    pub fn end_session(&self, serial: u64, keep_durable: bool) {
        let mut frame = Vec::new();
        put_session_end(&mut frame, serial, keep_durable);
        let mut origins = self.origins.lock();
        if let Some(origin) = origins.remove(&serial) {
            put_ping(&mut frame, self.endings.begin(&origin.user.user));
            // Behind what the session asked.
            self.out.send(Lane::of(&origin.user.user), frame);
        }
        drop(origins);
        if self.is_broken() {
            self.endings.end_all();
        }
    }

    /// A session of this user replaces that of this id, if the other node has it. Among `endings` until that has ended. False: the other node
    /// does not understand this, or there is no connection.
    pub fn end_previous(&self, id: u64, user: &Sid) -> bool {
        if self.version() < Some(Version::Three) || self.is_broken() {
            return false;
        }
        let mut frame = Vec::new();
        put_end_previous(&mut frame, self.endings.begin(user), id, user);
        self.out.send(Lane::of(user), frame);
        if self.is_broken() {
            self.endings.end_all();
        }
        true
    }

    /// Everything that was asked ends without an answer.
    fn fail(&self) {
        self.broken.store(true, Ordering::Release);
        self.dial.send_replace(Dial::Settled);
        let calls: Vec<_> = self.calls.lock().values().filter_map(Weak::upgrade).collect();
        calls.iter().for_each(|call| call.lose());
        self.endings.end_all();
    }
}

impl Answered {
    /// The connection is gone: nobody knows what came of the request.
    fn lost() -> Answered {
        Answered { replied: Replied::Moved, related: Related::default(), body: Body::default() }
    }
}

impl Call {
    /// Gives back who goes on now.
    fn answer(&self, answer: Answered) -> Option<GoOn> {
        let mut state = self.state.lock();
        let State::Asked(go_on) = &mut *state else { return None };
        let go_on = go_on.take();
        *state = State::Answered { answer, resumed: false };
        go_on
    }

    /// The wait that is over by this.
    fn resume(&self) -> Option<WaitId> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Answered { resumed, .. } => {
                *resumed = true;
                None
            }
            State::Waits(wait) => {
                let wait = *wait;
                *state = State::MayGoOn;
                Some(wait)
            }
            _ => None,
        }
    }

    /// What comes next. An answer is given once.
    pub fn next(&self) -> Next {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered { answer: Answered { replied: Replied::Pending, related, .. }, resumed } => {
                Next::Waits { related, resumed }
            }
            State::Answered { answer, .. } => Next::Answered(answer),
            State::MayGoOn => {
                *state = State::Asked(None);
                Next::AskAgain
            }
            other => {
                *state = other;
                Next::NotYet
            }
        }
    }

    /// Whether the answer is there and long: then it goes on where it may block.
    pub fn is_answered_at_length(&self) -> bool {
        matches!(&*self.state.lock(), State::Answered { answer, .. } if answer.body.len() > ANSWER_BYTES_AT_CONNECTION_MAX)
    }

    /// After [`Next::Waits`]: it waits here by this number. `resumed`: it goes on at once. It costs its user what every request does that waits, and
    /// nothing else until it is asked for again.
    pub fn waits(&self, wait: WaitId, resumed: bool) -> bool {
        self.paid.give_back();
        let mut state = self.state.lock();
        *state = if resumed { State::MayGoOn } else { State::Waits(wait) };
        resumed
    }

    /// It is asked for again.
    pub fn ask_again(&self, async_id: u64) {
        self.paid.force(self.bytes);
        let mut frame = Vec::new();
        put_again(&mut frame, self.number, async_id);
        self.link.out.send(self.lane, frame);
        if self.link.is_broken() {
            self.lose();
        }
    }

    /// It was not sent, and nobody waits for an answer.
    pub fn forget(&self) {
        *self.state.lock() = State::Over;
    }

    /// What was not sent has no answer but this.
    pub fn lose(&self) {
        self.answer(Answered::lost()).into_iter().for_each(|go_on| go_on(false));
    }
}

impl Elsewhere for Call {
    fn when_answered(&self, go_on: GoOn) {
        {
            let mut state = self.state.lock();
            if let State::Asked(waiting) = &mut *state {
                *waiting = Some(go_on);
                return;
            }
        }
        go_on(false);
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_much(&self) -> bool {
        self.paid.is_past_half()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.link.calls.lock().remove(&self.number);
        let over = matches!(self.state.get_mut(), State::Over);
        if !over && !self.link.is_broken() {
            let mut frame = Vec::new();
            put_end(&mut frame, self.number);
            self.link.out.send(self.lane, frame);
        }
    }
}
