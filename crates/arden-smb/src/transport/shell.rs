//! The runtime shell: sockets, tasks, timers. Knows frames and verdicts, no protocol.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use arden_wire::smb2::{HEADER_BYTES, TRANSFORM_ID};
use tokio::{
    net::TcpStream,
    runtime::Handle,
    sync::{Notify, oneshot, watch},
    time::{Interval, MissedTickBehavior},
};

use crate::{
    base::{
        admission::Met,
        buffers::{Paid, Payer},
        log_limit::Line,
        time::Time,
    },
    engine::conn::{Connection, Verdict},
    server::Server,
    sessions::{Peer, work::BlockingWork},
    transport::{
        buffer::{Buffer, IDLE_BUFFER_BYTES, Returned},
        jobs::{OfConnection, begin, begin_end},
        socket::{Event, Socket, notice_a_dead_client},
    },
};

/// Messages up to this size share a buffer; larger ones get one of their own, that travels with them.
const SMALL_MESSAGE_BYTES: usize = 64 * 1024;
/// A connection whose requests wait for the disk with more than this is not read from.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Answers are written once this much has gathered.
const BATCH_BYTES: usize = 256 * 1024;
/// How often a connection looks after itself: idle buffers, logons under way, whether it has a session.
const BEAT: Duration = Duration::from_secs(5);
/// A message has to be complete, and answers taken, in this time and what the slowest link takes for them. Answers of which a client
/// takes nothing for this time end its connection.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
const SLOWEST_LINK_BYTES_PER_SECOND: usize = 64 * 1024;
/// Where headers have the SessionId, [MS-SMB2] 2.2.1.2 and 2.2.41.
const SESSION_ID: usize = 40;
const TRANSFORM_SESSION_ID: usize = 44;
/// A connection that is never without requests makes way for others after this time.
const TURN: Duration = Duration::from_millis(1);
/// A connection is busy when so many turns followed each other, each at most this long after the one before it.
const TURNS_OF_BUSY: u32 = 16;
const GAP: Duration = Duration::from_millis(10);
/// So long it is served on a thread of its own before the runtime sees to it again.
const SHIFT: Duration = Duration::from_millis(250);
/// So long that thread waits for the rest of a message, or for room for an answer: the runtime has the limits of time for that.
const ON_THREAD_MAX: Duration = Duration::from_millis(50);

/// How long so many bytes may take, in either direction.
fn time_for(bytes: usize) -> Duration {
    MESSAGE_TIMEOUT + Duration::from_secs((bytes / SLOWEST_LINK_BYTES_PER_SECOND) as u64)
}

/// Done when the connection of `peer` was without a session for `timeout`, whatever it sent meanwhile.
async fn handshake(peer: Arc<Peer>, timeout: Duration) {
    let mut last = Instant::now();
    let beat = BEAT.min(timeout / 4).max(Duration::from_millis(10));
    loop {
        tokio::time::sleep(beat).await;
        if !peer.channels.read().is_empty() {
            last = Instant::now();
        } else if last.elapsed() >= timeout {
            return;
        }
    }
}

pub struct Transport {
    socket: Socket,
    connection: Option<Connection>,
    input: Buffer,
    /// Start of what is not handled yet.
    done: usize,
    out: Buffer,
    /// What the last large message was read into.
    spare: Buffer,
    /// What large messages were in that others took along.
    returned: Arc<Returned>,
    /// For `Peer::large`, while it is kept.
    large: Option<Paid>,
    /// For a message that waits for its user's room at another node.
    held: Option<Paid>,
    /// Who pays for buffers: the user of this session, which had the last message.
    payer: Option<(u64, Arc<Payer>)>,
    waiting_bytes: Arc<AtomicUsize>,
    /// Answers to failed logons that are sent later.
    delayed: Arc<AtomicUsize>,
    /// The connection has to make room for others.
    evicted: Arc<Notify>,
    runtime: Handle,
    beat: Interval,
    /// Nothing came since the last beat.
    quiet: bool,
    /// When others last had their turn.
    turn_began: Instant,
    pace: Pace,
    /// Nothing came for a while on the connection's own thread.
    paused: bool,
}

/// How fast one message follows the other.
struct Pace {
    /// So many turns followed each other without a gap.
    turns: u32,
    /// The last turn at the runtime; on a thread of its own, when the connection got that.
    last: Instant,
    /// Messages that had been put aside by then because another node has them.
    asked_elsewhere: usize,
}

/// Why a connection ended.
pub type Ended = &'static str;
/// The connection and why it ended, if it did.
type Served = (Box<Transport>, Option<Ended>);

impl Transport {
    fn new(server: &Arc<Server>, stream: TcpStream, address: SocketAddr) -> io::Result<Transport> {
        let _ = stream.set_nodelay(true);
        let local = stream.local_addr().unwrap_or(address);
        let stream = stream.into_std()?;
        if let Err(error) = notice_a_dead_client(&stream) {
            tracing::warn!(%error, "a client that vanishes will not be noticed");
        }
        let socket = Socket::new(stream)?;
        let wake = socket.wake.clone();
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let connection = Connection::new(server, address, local, Box::new(move || wake.wake()));
        let _ = connection.peer().write_now.set(socket.write_now());
        Ok(Transport {
            socket,
            connection: Some(connection),
            input: Buffer::default(),
            done: 0,
            out: Buffer::default(),
            spare: Buffer::default(),
            returned: Arc::default(),
            large: None,
            held: None,
            payer: None,
            waiting_bytes: Arc::new(AtomicUsize::new(0)),
            delayed: Arc::new(AtomicUsize::new(0)),
            evicted: Arc::new(Notify::new()),
            runtime: Handle::current(),
            beat,
            quiet: false,
            turn_began: Instant::now(),
            pace: Pace { turns: 0, last: Instant::now(), asked_elsewhere: 0 },
            paused: false,
        })
    }

    /// The connection, if there is room for it.
    pub fn admitted(server: &Arc<Server>, socket: TcpStream, address: SocketAddr) -> Option<Box<Transport>> {
        let transport = Box::new(Transport::new(server, socket, address).ok()?);
        let connection = transport.connection.as_ref()?;
        let evicted = transport.evicted.clone();
        let close = Box::new(move || evicted.notify_one());
        match server.admission.connect(&server.trees.config.limits, address.ip(), connection.peer().id, close) {
            Ok(()) => Some(transport),
            Err(met) => {
                server.trees.set_time(Time::read());
                server.tell_limit(met, address.ip(), "", "a connection is refused");
                None
            }
        }
    }

    pub async fn run(mut self: Box<Self>, stopped: watch::Receiver<bool>) -> Ended {
        let ended = loop {
            if let Some(ended) = self.serve_here(stopped.clone()).await {
                break ended;
            }
            match self.serve_on_thread(stopped.clone()).await {
                Some((transport, None)) => self = transport,
                Some((transport, Some(ended))) => {
                    self = transport;
                    break ended;
                }
                None => return "its thread has panicked",
            }
        };
        self.end().await;
        ended
    }

    /// Until the connection has ended, or is to be served elsewhere.
    async fn serve_here(&mut self, mut stopped: watch::Receiver<bool>) -> Option<Ended> {
        let connection = self.connection.as_ref()?;
        let handshake = handshake(connection.peer().clone(), connection.handshake_timeout());
        let evicted = self.evicted.clone();
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => Some("the server stops"),
            () = evicted.notified() => Some("without a session, closed to make room"),
            () = handshake => Some("no session within handshake_timeout"),
            ended = self.turns() => ended,
        }
    }

    /// On a thread of its own, if one is free, until it would have to wait for something else than the socket: that is left to the
    /// runtime.
    async fn serve_on_thread(mut self: Box<Self>, stopped: watch::Receiver<bool>) -> Option<Served> {
        let now = Instant::now();
        let server = &self.connection.as_ref()?.server;
        let Some(thread) = server.threads.take(now) else { return Some((self, None)) };
        crate::base::metrics::count(&server.trees.metrics.connection_threads, 1);
        (self.pace.last, self.paused) = (now, false);
        self.socket.leave_runtime();
        let wake = self.socket.wake.clone();
        let mut serving: Pin<Box<dyn Future<Output = Served> + Send>> = Box::pin(async move {
            // Of what was left before, nobody tells the thread.
            let ended = match self.serve_others().await {
                Ok(()) => self.serve_here(stopped).await,
                Err(ended) => Some(ended),
            };
            (self, ended)
        });
        let (runtime, (done, left)) = (Handle::current(), oneshot::channel());
        thread.run(Box::new(move |signal| {
            wake.enter_thread(signal);
            let polled = {
                let _runtime = runtime.enter();
                // Nobody is to wake it here: who takes it over polls it at once.
                serving.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            };
            wake.leave_thread();
            let _ = done.send((polled, serving));
        }));
        match left.await.ok()? {
            (Poll::Ready(served), _) => Some(served),
            (Poll::Pending, serving) => Some(serving.await),
        }
    }

    /// What it had open is closed.
    async fn end(&mut self) {
        if let Some(closed) = self.begin_end() {
            let _ = closed.await;
        }
    }

    /// Who receives is told when it is closed. None: it was before.
    fn begin_end(&mut self) -> Option<oneshot::Receiver<()>> {
        let payer = self.holder();
        let mut connection = self.connection.take()?;
        drop(connection.peer().end_rest());
        let server = connection.server.clone();
        let (done, closed) = oneshot::channel();
        let close = move || {
            connection.closed(Instant::now());
            let _ = done.send(());
        };
        match payer {
            // Closing what the client had open may wait for the disk, and its user for a thread.
            Some(payer) => begin_end(&server, &self.runtime, payer.who().clone(), close),
            // A second panic here would end the process.
            None if std::thread::panicking() => drop(self.runtime.spawn_blocking(close)),
            // Without a session there is nothing open.
            None => close(),
        }
        Some(closed)
    }

    async fn turns(&mut self) -> Option<Ended> {
        loop {
            if let Err(ended) = self.turn().await {
                return Some(ended);
            }
            if self.moves(Instant::now()) {
                return None;
            }
        }
    }

    /// Whether it is to be served elsewhere from now on: on a thread of its own, or at the runtime again.
    fn moves(&mut self, now: Instant) -> bool {
        let Some(connection) = &self.connection else { return false };
        let (peer, threads) = (connection.peer(), &connection.server.threads);
        let since = now.saturating_duration_since(self.pace.last);
        // What another node has is answered by way of the runtime, which would have to wake the thread.
        let asked = peer.elsewhere_asked.load(Ordering::Relaxed);
        let is_elsewhere = std::mem::replace(&mut self.pace.asked_elsewhere, asked) != asked;
        if self.socket.has_thread() {
            let comes_slowly = self.paused || !self.socket.waits_on_thread();
            return comes_slowly || is_elsewhere || since > SHIFT || threads.is_crowded(now);
        }
        self.pace.last = now;
        self.pace.turns = if since > GAP || is_elsewhere { 0 } else { self.pace.turns + 1 };
        if self.pace.turns < TURNS_OF_BUSY {
            return false;
        }
        self.pace.turns = 0;
        !threads.is_crowded(now) && !peer.channels.read().is_empty()
    }

    fn connection(&mut self) -> Result<&mut Connection, Ended> {
        self.connection.as_mut().ok_or("closed")
    }

    /// Lets others write while it waits, and sees to what they leave.
    async fn rest_and_wait(&mut self) -> Result<(), Ended> {
        self.connection()?.peer().begin_rest();
        let waited = self.wait().await;
        let cut = self.connection()?.peer().end_rest();
        self.out.bytes.extend_from_slice(&cut);
        waited
    }

    /// Waits for something, handles all of it, writes the answers.
    async fn turn(&mut self) -> Result<(), Ended> {
        if self.done == self.input.bytes.len() {
            self.done = 0;
            let payer = if self.input.is_settled() { None } else { self.holder() };
            self.input.empty(payer);
            self.rest_and_wait().await?;
        }
        self.handle_input().await?;
        self.drain_mailbox().await?;
        self.flush().await?;
        if self.connection()?.peer().is_closed() {
            return Err("closed by the server");
        }
        Ok(())
    }

    /// Until there is input or something in the mailbox.
    async fn wait(&mut self) -> Result<(), Ended> {
        let too_much = self.waits_for_too_much();
        let input = &mut self.input.bytes;
        if input.capacity() == 0 {
            // It was idle: what it wants first is small.
            input.reserve(IDLE_BUFFER_BYTES);
        }
        let most = if too_much { 0 } else { usize::MAX };
        tokio::select! {
            biased;
            read = self.socket.read(input, most) => match read {
                Ok(Event::Bytes(0)) => return Err("closed by the client"),
                Ok(Event::Bytes(_)) => {
                    self.quiet = false;
                    if input.len() == input.capacity() && input.len() < SMALL_MESSAGE_BYTES {
                        self.widen_input();
                    }
                }
                Ok(Event::Woken) => {}
                Ok(Event::Pause) => self.paused = true,
                Err(_) => return Err("socket error"),
            },
            _ = self.beat.tick() => self.look_after()?,
        }
        Ok(())
    }

    /// Once: what does not fit then is a large message, that is copied out of here.
    fn widen_input(&mut self) {
        if let Some(payer) = self.holder() {
            let Some(paid) = payer.keep(self.input.bytes.len() + SMALL_MESSAGE_BYTES) else { return };
            self.input.pay(paid, true);
        }
        self.input.bytes.reserve_exact(SMALL_MESSAGE_BYTES);
    }

    /// Now and then: logons that nobody goes on with are forgotten, and who is idle gives its buffers back.
    fn look_after(&mut self) -> Result<(), Ended> {
        self.connection()?.expire_setups(Instant::now());
        let idle = std::mem::replace(&mut self.quiet, true);
        for buffer in [&mut self.input, &mut self.out, &mut self.spare] {
            if idle { *buffer = Buffer::default() } else { buffer.give_way() }
        }
        if idle {
            self.returned.clear()
        } else {
            self.returned.give_way()
        }
        if idle || self.large.as_ref().is_some_and(|paid| !paid.has_room()) {
            self.keep_large(Vec::new())?;
        }
        Ok(())
    }

    /// The buffer of an answer is kept for the next, where there is room for it.
    fn keep_large(&mut self, answer: Vec<u8>) -> Result<(), Ended> {
        self.large = None;
        let mut kept = answer;
        if kept.capacity() > 0
            && let Some(payer) = self.holder()
        {
            self.large = payer.keep(kept.capacity());
            if self.large.is_none() {
                kept = Vec::new();
            }
        }
        *self.connection()?.peer().large.lock() = kept;
        Ok(())
    }

    /// Who pays for the message whose header begins at `at` of the input: the user of the session that it names. It need not
    /// be true; whose session it is has the same client.
    fn payer_at(&mut self, at: usize) -> Option<Arc<Payer>> {
        let header = self.input.bytes.get(at..at + HEADER_BYTES)?;
        let id_at = if header[..4] == TRANSFORM_ID { TRANSFORM_SESSION_ID } else { SESSION_ID };
        let id = u64::from_le_bytes(header[id_at..id_at + 8].try_into().ok()?);
        match &self.payer {
            Some((of, payer)) if *of == id => Some(payer.clone()),
            _ => self.find_payer(Some(id)),
        }
    }

    /// Who pays for what is nobody's in particular: the user whose message was the last, or any other here. None: nobody
    /// has logged on.
    fn holder(&mut self) -> Option<Arc<Payer>> {
        let peer = self.connection.as_ref()?.peer();
        match &self.payer {
            Some((of, payer)) if peer.channel(*of).is_some() => Some(payer.clone()),
            _ => self.find_payer(None).or_else(|| self.payer.as_ref().map(|(_, payer)| payer.clone())),
        }
    }

    fn find_payer(&mut self, id: Option<u64>) -> Option<Arc<Payer>> {
        let connection = self.connection.as_ref()?;
        let peer = connection.peer();
        let named = id.and_then(|id| peer.channel(id));
        let session = named.or_else(|| peer.channels.read().values().next().cloned())?.session.clone();
        let payer = connection.server.buffers.payer(&session.token(), peer.ip);
        self.payer = Some((session.id, payer.clone()));
        Some(payer)
    }

    /// Waits until `payer` may take so much. What others leave in the mailbox goes on meanwhile.
    async fn pay(&mut self, payer: &Arc<Payer>, bytes: usize) -> Result<Paid, Ended> {
        let mut waits = match payer.pay(bytes) {
            Ok(paid) => return Ok(paid),
            Err(waits) => waits,
        };
        let connection = self.connection()?;
        connection.server.trees.set_time(Time::read());
        let met = Met { limit: "buffer_bytes", value: connection.server.trees.config.limits.usage.buffer_bytes.user };
        connection.server.tell_limit(met, connection.peer().ip, "", "a connection is not read from for now");
        self.flush().await?;
        // Nobody else gives up what is kept here while this waits.
        (self.out, self.spare) = (Buffer::default(), Buffer::default());
        self.returned.clear();
        self.keep_large(Vec::new())?;
        loop {
            tokio::select! {
                biased;
                paid = &mut waits => return paid.map_err(|_| "nobody is left to wait for"),
                () = self.socket.wake.woken() => self.serve_others().await?,
            }
        }
    }

    /// While a message is on its way: what others leave in the mailbox.
    async fn serve_others(&mut self) -> Result<(), Ended> {
        self.drain_mailbox().await?;
        self.flush().await?;
        if self.connection()?.peer().is_closed() { Err("closed by the server") } else { Ok(()) }
    }

    /// Whether a message that was read waits for its user's room at another node.
    fn holds_message(&self) -> bool {
        self.connection.as_ref().is_some_and(|c| c.peer().elsewhere_held.load(Ordering::Relaxed) > 0)
    }

    /// Whether no more messages are begun before some were answered.
    fn waits_for_too_much(&self) -> bool {
        let peer = self.connection.as_ref().map(Connection::peer);
        let elsewhere = peer.map_or(0, |peer| peer.elsewhere_bytes.load(Ordering::Relaxed));
        let is_much = elsewhere > 0 && peer.is_some_and(|peer| peer.elsewhere_is_much.load(Ordering::Relaxed));
        is_much || self.holds_message() || self.waiting_bytes.load(Ordering::Relaxed) + elsewhere > WAITING_BYTES_MAX
    }

    /// Handles every complete message of the input.
    async fn handle_input(&mut self) -> Result<(), Ended> {
        loop {
            let rest = &self.input.bytes[self.done..];
            if rest.is_empty() {
                return Ok(());
            }
            if rest.len() < 4 {
                return self.read_more(4).await;
            }
            let len = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            // [MS-SMB2] 2.1: the first byte is zero, so a length has 24 bits.
            if len > self.connection()?.message_bytes_max() || len < HEADER_BYTES.min(32) {
                return Err("message length out of bounds");
            }
            let (at, available) = (self.done + 4, self.input.bytes.len() - self.done - 4);
            if available < len.min(HEADER_BYTES) {
                // It says who pays for the rest.
                return self.read_more(4 + len.min(HEADER_BYTES)).await;
            }
            if len > SMALL_MESSAGE_BYTES {
                self.read_large(len).await?;
                let connection = self.connection.as_mut().ok_or("closed")?;
                let time = Time::read();
                let verdict = connection.handle_lent(&mut self.spare.bytes, time, &mut self.out.bytes);
                connection.server.trees.large_message_took(time.now.elapsed());
                let taken = self.spare.bytes.capacity() == 0;
                let paid = if taken { self.spare.take_paid() } else { None };
                self.obey(verdict, paid).await?;
                let payer = self.holder();
                self.spare.empty(payer);
            } else if available < len {
                return self.read_more(4 + len).await;
            } else {
                self.pay_debts(at).await?;
                self.done = at + len;
                let message = &mut self.input.bytes[at..at + len];
                let connection = self.connection.as_mut().ok_or("closed")?;
                let verdict = connection.handle_message(message, Time::read(), &mut self.out.bytes);
                self.obey(verdict, None).await?;
            }
            self.rest().await?;
            // A break that a request caused goes out before the answers to what came after it.
            self.drain_mailbox().await?;
            if self.out.bytes.len() >= BATCH_BYTES {
                self.flush().await?;
            }
        }
    }

    /// Where the requests that were read already keep too much waiting, no more of them are begun; and other connections have
    /// their turn now and then.
    async fn rest(&mut self) -> Result<(), Ended> {
        if self.turn_began.elapsed() > TURN {
            // Nobody pays for answers that wait here.
            self.flush().await?;
            if !self.socket.waits_on_thread() {
                tokio::task::yield_now().await;
            }
            self.turn_began = Instant::now();
        }
        while self.waits_for_too_much() {
            self.drain_mailbox().await?;
            self.flush().await?;
            if self.waits_for_too_much() {
                self.socket.wake.woken().await;
            }
        }
        self.held = None;
        Ok(())
    }

    /// The message whose header begins at `at` is not begun while its user owes more than it may.
    async fn pay_debts(&mut self, at: usize) -> Result<(), Ended> {
        if self.connection()?.server.buffers.are_over()
            && let Some(payer) = self.payer_at(at)
            && payer.is_over()
        {
            drop(self.pay(&payer, 1).await?);
        }
        Ok(())
    }

    /// The rest of a small message is on its way, or that of its header.
    async fn read_more(&mut self, total: usize) -> Result<(), Ended> {
        if self.done > 0 {
            self.input.bytes.drain(..self.done);
            self.done = 0;
        }
        if !self.input.is_paid_for(total)
            && let Some(payer) = self.payer_at(4)
        {
            let paid = self.pay(&payer, total.max(self.input.bytes.capacity())).await?;
            self.input.pay(paid, false);
        }
        let mut input = std::mem::take(&mut self.input);
        let filled = self.fill(&mut input.bytes, total).await;
        self.input = input;
        filled
    }

    /// A large message in a buffer of its own, `spare`, filled straight from the socket.
    async fn read_large(&mut self, len: usize) -> Result<(), Ended> {
        let at = self.done + 4;
        let payer = self.payer_at(at);
        let mut message = std::mem::take(&mut self.spare);
        if message.bytes.capacity() < len
            && let Some(returned) = self.returned.take(len)
        {
            message = returned;
        }
        if message.bytes.capacity() < len || !message.is_paid_for(len) {
            drop(message);
            let paid = match payer {
                Some(payer) => Some(self.pay(&payer, len).await?),
                None => None,
            };
            message = Buffer::new(len, paid);
        }
        let have = (self.input.bytes.len() - at).min(len);
        message.bytes.extend_from_slice(&self.input.bytes[at..at + have]);
        self.done = at + have;
        self.fill(&mut message.bytes, len).await?;
        self.spare = message;
        Ok(())
    }

    /// Reads until `buffer` has `total` bytes. What is answered already leaves first, and what others leave in the
    /// mailbox goes on meanwhile.
    async fn fill(&mut self, buffer: &mut Vec<u8>, total: usize) -> Result<(), Ended> {
        self.flush().await?;
        // For the whole message: a byte now and then does not keep a connection.
        let missing = total.saturating_sub(buffer.len());
        let deadline = tokio::time::Instant::now() + time_for(missing);
        let on_thread_until = Instant::now() + ON_THREAD_MAX;
        while buffer.len() < total {
            if self.socket.waits_on_thread() && Instant::now() > on_thread_until {
                self.socket.register().map_err(|_| "socket error")?;
            }
            let missing = total - buffer.len();
            buffer.reserve_exact(missing);
            tokio::select! {
                biased;
                read = self.socket.read(buffer, missing) => match read {
                    Ok(Event::Bytes(0)) => return Err("closed by the client"),
                    Ok(Event::Bytes(_)) => {}
                    Ok(Event::Woken) => self.serve_others().await?,
                    Ok(Event::Pause) => self.socket.register().map_err(|_| "socket error")?,
                    Err(_) => return Err("socket error"),
                },
                () = tokio::time::sleep_until(deadline) => return Err("half a message, then nothing"),
            }
        }
        Ok(())
    }

    /// `paid` is for the message, which who runs it took along.
    async fn obey(&mut self, verdict: Verdict, paid: Option<Paid>) -> Result<(), Ended> {
        match verdict {
            // Another node has a message that does not wait, and its bytes count there.
            Verdict::Go => self.held = paid.filter(|_| self.holds_message()),
            Verdict::Job(job) => self.spawn(job, paid),
            Verdict::Delay { delay, answer } => self.answer_later(delay, answer).await?,
            Verdict::Close(reason) => {
                let connection = self.connection()?;
                if let Some(left_out) = connection.server.trees.admit_line(Line::Closed) {
                    tracing::warn!(client = %connection.peer().address, reason, left_out, "connection is closed");
                }
                self.flush().await?;
                return Err(reason);
            }
        }
        Ok(())
    }

    async fn answer_later(&mut self, delay: Duration, answer: Vec<u8>) -> Result<(), Ended> {
        let connection = self.connection.as_ref().ok_or("closed")?;
        let limit = connection.server.trees.config.limits.delayed_answers_per_connection_max;
        if self.delayed.load(Ordering::Relaxed) >= limit {
            tracing::debug!(client = %connection.peer().address, limit, "delayed_answers_per_connection_max reached");
            self.flush().await?;
            tokio::time::sleep(delay).await;
            self.out.bytes.extend_from_slice(&answer);
            return Ok(());
        }
        self.delayed.fetch_add(1, Ordering::Relaxed);
        let (delayed, peer) = (self.delayed.clone(), Arc::downgrade(connection.peer()));
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            delayed.fetch_sub(1, Ordering::Relaxed);
            if let Some(peer) = peer.upgrade() {
                peer.send(answer);
            }
        });
        Ok(())
    }

    fn spawn(&mut self, job: Box<dyn BlockingWork>, paid: Option<Paid>) {
        let paid = paid.or_else(|| Some(self.holder()?.owe(job.waiting_bytes())));
        let Some(connection) = &self.connection else { return };
        self.waiting_bytes.fetch_add(job.bytes(), Ordering::Relaxed);
        let (bytes, wake) = (self.waiting_bytes.clone(), self.socket.wake.clone());
        let of = OfConnection { bytes, wake, returned: (SMALL_MESSAGE_BYTES, self.returned.clone()) };
        begin(&connection.server, &self.runtime, job, paid, Some(of));
    }

    /// What others left. Large answers leave one after the other: those of other engines may come all at once.
    async fn drain_mailbox(&mut self) -> Result<(), Ended> {
        while !self.drain_some().await? {
            self.flush().await?;
        }
        Ok(())
    }

    /// False: more is left.
    async fn drain_some(&mut self) -> Result<bool, Ended> {
        let (mut frames, mut jobs) = (Vec::new(), Vec::new());
        let connection = self.connection.as_mut().ok_or("closed")?;
        if connection.peer().mailbox.lock().is_empty() {
            return Ok(true);
        }
        connection.server.trees.set_time(Time::read());
        let is_empty = connection.drain_mailbox(&mut self.out.bytes, BATCH_BYTES, &mut frames, &mut jobs);
        for job in jobs {
            self.spawn(job, None);
        }
        for unsent in frames {
            if unsent.frame.len() <= SMALL_MESSAGE_BYTES {
                self.out.bytes.extend_from_slice(&unsent.frame);
            } else {
                self.flush().await?;
                self.write(&unsent.frame).await?;
            }
        }
        Ok(is_empty)
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        if self.out.bytes.is_empty() {
            return Ok(());
        }
        let mut out = std::mem::take(&mut self.out);
        self.write(&out.bytes).await?;
        if out.bytes.len() > SMALL_MESSAGE_BYTES {
            return self.keep_large(out.bytes);
        }
        let payer = if out.is_settled() { None } else { self.holder() };
        out.empty(payer);
        self.out = out;
        Ok(())
    }

    /// Who does not read its answers owes for them.
    async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Ended> {
        let held = bytes.len();
        let Ok(written) = self.socket.try_write(bytes) else { return Err("socket error") };
        bytes = &bytes[written..];
        if bytes.is_empty() {
            return Ok(());
        }
        let _owed = self.holder().map(|payer| payer.owe(held));
        let on_thread_until = Instant::now() + ON_THREAD_MAX;
        while self.socket.waits_on_thread() && Instant::now() <= on_thread_until && self.socket.takes_more() {
            let Ok(written) = self.socket.try_write(bytes) else { return Err("socket error") };
            bytes = &bytes[written..];
            if bytes.is_empty() {
                return Ok(());
            }
        }
        let deadline = tokio::time::Instant::now() + time_for(bytes.len());
        while !bytes.is_empty() {
            let stalled = tokio::time::Instant::now() + MESSAGE_TIMEOUT;
            match tokio::time::timeout_at(deadline.min(stalled), self.socket.write_some(bytes)).await {
                Ok(Ok(written)) => bytes = &bytes[written..],
                Ok(Err(_)) => return Err("socket error"),
                Err(_) => return Err("the client does not read its answers"),
            }
        }
        Ok(())
    }
}

/// Where a message panics, nothing of its connection is left either.
impl Drop for Transport {
    fn drop(&mut self) {
        drop(self.begin_end());
    }
}
