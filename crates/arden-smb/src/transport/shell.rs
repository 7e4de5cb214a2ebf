//! The runtime shell: sockets, tasks, timers. Knows frames and verdicts, no protocol.

use std::{
    fs::File,
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arden_wire::{dtyp::Sid, smb2::HEADER_BYTES};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{Notify, watch},
    time::{Interval, MissedTickBehavior},
};

use crate::{
    base::{
        jobs::{JobLimits, Work},
        time::Time,
    },
    engine::conn::{Connection, Verdict},
    server::Server,
    sessions::{Peer, work::BlockingWork},
};

/// Messages up to this size share a buffer; larger ones get one of their own, that travels with them.
const SMALL_MESSAGE_BYTES: usize = 64 * 1024;
/// What an idle connection keeps.
const IDLE_BUFFER_BYTES: usize = 4 * 1024;
/// A connection whose requests wait for the disk with more than this is not read from.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Answers are written once this much has gathered.
const BATCH_BYTES: usize = 256 * 1024;
/// How often a connection looks after itself: idle buffers, logons under way, whether it has a session.
const BEAT: Duration = Duration::from_secs(5);
/// A message has to be complete in this time and what the slowest link takes for it.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
const SLOWEST_LINK_BYTES_PER_SECOND: usize = 64 * 1024;
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Takes up one descriptor, until `accept` needs it.
const SPARE_DESCRIPTOR: &str = "/dev/null";
/// A connection that is never without requests makes way for others after this time.
const TURN: Duration = Duration::from_millis(1);
/// How long a server that stops waits for its connections.
const END_TIMEOUT: Duration = Duration::from_secs(10);

impl Server {
    fn job_limits(&self) -> JobLimits {
        let l = &self.config.limits;
        JobLimits { running_max: l.jobs_per_user_max, bytes_max: l.job_bytes_per_user_max }
    }

    /// Accepts connections until `shutdown` is done, then ends them: a client whose request was not answered finds its
    /// connection gone, and never learns from an answer that the server is taking its sessions down.
    pub async fn serve(
        self: &Arc<Server>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let timers = tokio::spawn(timers(self.clone()));
        let live = Arc::new(AtomicUsize::new(0));
        let mut spare = File::open(SPARE_DESCRIPTOR).ok();
        let (stop, stopped) = watch::channel(false);
        tokio::pin!(shutdown);
        loop {
            let (socket, address) = tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok(x) => x,
                    Err(e) => {
                        // Out of descriptors, most likely. Who has not logged on gives some back, and with the spare one the
                        // next in the queue is told at once instead of waiting there.
                        tracing::warn!(error = %e, "accept failed");
                        self.admission.make_room();
                        drop(spare.take());
                        let _ = tokio::time::timeout(Duration::from_millis(100), listener.accept()).await;
                        spare = File::open(SPARE_DESCRIPTOR).ok();
                        continue;
                    }
                },
            };
            let Some(transport) = Transport::admitted(self, socket, address) else { continue };
            live.fetch_add(1, Ordering::Relaxed);
            crate::base::metrics::count(&self.metrics.connections, 1);
            let (live, stopped) = (live.clone(), stopped.clone());
            tokio::spawn(async move {
                let mut transport = transport;
                let reason = transport.run(stopped).await;
                tracing::debug!(client = %address, reason, "connection closed");
                drop(transport);
                live.fetch_sub(1, Ordering::Relaxed);
            });
        }
        timers.abort();
        drop(stopped);
        stop.send_replace(true);
        // Every connection has a receiver until it has ended.
        if tokio::time::timeout(END_TIMEOUT, stop.closed()).await.is_err() {
            tracing::warn!(
                connections = live.load(Ordering::Relaxed),
                "connections have not ended: a disk that hangs?"
            );
        }
        Ok(())
    }
}

/// Break time-outs, expired handles, and what table events left to do.
async fn timers(server: Arc<Server>) {
    let wake = Arc::new(Notify::new());
    let signal = wake.clone();
    server.on_deferred(Box::new(move || signal.notify_one()));
    let (runtime, weak) = (Handle::current(), Arc::downgrade(&server));
    server.on_detached(Box::new(move |message| {
        if let Some(server) = weak.upgrade() {
            begin(&server, &runtime, message, None);
        }
    }));
    loop {
        let _ = tokio::time::timeout(Duration::from_millis(500), wake.notified()).await;
        let server = server.clone();
        let _ = tokio::task::spawn_blocking(move || {
            server.set_time(Time::read());
            server.run_deferred();
            server.tick(Time::read());
        })
        .await;
    }
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

struct Transport {
    socket: TcpStream,
    connection: Option<Connection>,
    wake: Arc<Notify>,
    input: Vec<u8>,
    /// Start of what is not handled yet.
    done: usize,
    out: Vec<u8>,
    /// What the last large message was read into.
    spare: Vec<u8>,
    waiting_bytes: Arc<AtomicUsize>,
    /// Answers to failed logons that are sent later.
    delayed: Arc<AtomicUsize>,
    /// The connection has to make room for others.
    evicted: Arc<Notify>,
    beat: Interval,
    /// Nothing came since the last beat.
    quiet: bool,
    /// When others last had their turn.
    turn_began: Instant,
}

/// Why a connection ended.
type Ended = &'static str;

impl Transport {
    fn new(server: &Arc<Server>, socket: TcpStream, address: SocketAddr) -> Transport {
        let _ = socket.set_nodelay(true);
        let wake = Arc::new(Notify::new());
        let signal = wake.clone();
        let local = socket.local_addr().unwrap_or(address);
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let connection = Connection::new(server, address, local, Box::new(move || signal.notify_one()));
        Transport {
            socket,
            connection: Some(connection),
            wake,
            input: Vec::new(),
            done: 0,
            out: Vec::new(),
            spare: Vec::new(),
            waiting_bytes: Arc::new(AtomicUsize::new(0)),
            delayed: Arc::new(AtomicUsize::new(0)),
            evicted: Arc::new(Notify::new()),
            beat,
            quiet: false,
            turn_began: Instant::now(),
        }
    }

    /// The connection, if there is room for it.
    fn admitted(server: &Arc<Server>, socket: TcpStream, address: SocketAddr) -> Option<Transport> {
        let mut transport = Transport::new(server, socket, address);
        let connection = transport.connection.as_mut()?;
        let evicted = transport.evicted.clone();
        let close = Box::new(move || evicted.notify_one());
        match server.admission.connect(&server.config.limits, address.ip(), connection.peer().id, close) {
            Ok(()) => Some(transport),
            Err(met) => {
                server.set_time(Time::read());
                server.tell_limit(met, address.ip(), "", "a connection is refused");
                connection.closed(Instant::now());
                None
            }
        }
    }

    async fn run(&mut self, mut stopped: watch::Receiver<bool>) -> Ended {
        let Some(connection) = &self.connection else { return "closed" };
        let handshake = handshake(connection.peer().clone(), connection.handshake_timeout());
        let evicted = self.evicted.clone();
        let ended = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => "the server stops",
            () = evicted.notified() => "without a session, closed to make room",
            () = handshake => "no session within handshake_timeout",
            ended = self.turns() => ended,
        };
        if let Some(mut connection) = self.connection.take() {
            // Closing what the client had open may wait for the disk.
            let _ = tokio::task::spawn_blocking(move || connection.closed(Instant::now())).await;
        }
        ended
    }

    async fn turns(&mut self) -> Ended {
        loop {
            if let Err(ended) = self.turn().await {
                return ended;
            }
        }
    }

    fn connection(&mut self) -> Result<&mut Connection, Ended> {
        self.connection.as_mut().ok_or("closed")
    }

    /// Waits for something, handles all of it, writes the answers.
    async fn turn(&mut self) -> Result<(), Ended> {
        if self.done == self.input.len() {
            self.input.clear();
            self.done = 0;
            self.wait().await?;
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
        let too_much = self.waiting_bytes.load(Ordering::Relaxed) > WAITING_BYTES_MAX;
        if self.input.capacity() == 0 {
            // It was idle: what it wants first is small.
            self.input.reserve(IDLE_BUFFER_BYTES);
        }
        tokio::select! {
            biased;
            read = self.socket.read_buf(&mut self.input), if !too_much => match read {
                Ok(0) => return Err("closed by the client"),
                Ok(_) => {
                    self.quiet = false;
                    if self.input.len() == self.input.capacity() && self.input.len() < SMALL_MESSAGE_BYTES {
                        // Once: what does not fit then is a large message, that is copied out of here.
                        self.input.reserve(SMALL_MESSAGE_BYTES);
                    }
                }
                Err(_) => return Err("socket error"),
            },
            () = self.wake.notified() => {}
            _ = self.beat.tick() => self.look_after()?,
        }
        Ok(())
    }

    /// Now and then: logons that nobody goes on with are forgotten, and who is idle gives its buffers back.
    fn look_after(&mut self) -> Result<(), Ended> {
        self.connection()?.expire_setups(Instant::now());
        if std::mem::replace(&mut self.quiet, true) {
            self.input = Vec::new();
            self.out = Vec::new();
            self.spare = Vec::new();
            *self.connection()?.peer().large.lock() = Vec::new();
        }
        Ok(())
    }

    /// Handles every complete message of the input.
    async fn handle_input(&mut self) -> Result<(), Ended> {
        loop {
            let rest = &self.input[self.done..];
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
            let available = self.input.len() - self.done - 4;
            if len > SMALL_MESSAGE_BYTES {
                self.read_large(len).await?;
                let connection = self.connection.as_mut().ok_or("closed")?;
                let time = Time::read();
                let verdict = connection.handle_lent(&mut self.spare, time, &mut self.out);
                connection.server.large_message_took(time.now.elapsed());
                self.obey(verdict).await?;
            } else if available < len {
                return self.read_more(4 + len).await;
            } else {
                let at = self.done + 4;
                self.done = at + len;
                let message = &mut self.input[at..at + len];
                let connection = self.connection.as_mut().ok_or("closed")?;
                let verdict = connection.handle_message(message, Time::read(), &mut self.out);
                self.obey(verdict).await?;
            }
            self.rest().await?;
            // A break that a request caused goes out before the answers to what came after it.
            self.drain_mailbox().await?;
            if self.out.len() >= BATCH_BYTES {
                self.flush().await?;
            }
        }
    }

    /// Where the requests that were read already keep too much waiting, no more of them are begun; and other connections have
    /// their turn now and then.
    async fn rest(&mut self) -> Result<(), Ended> {
        if self.turn_began.elapsed() > TURN {
            tokio::task::yield_now().await;
            self.turn_began = Instant::now();
        }
        while self.waiting_bytes.load(Ordering::Relaxed) > WAITING_BYTES_MAX {
            self.drain_mailbox().await?;
            self.flush().await?;
            if self.waiting_bytes.load(Ordering::Relaxed) > WAITING_BYTES_MAX {
                self.wake.notified().await;
            }
        }
        Ok(())
    }

    /// The rest of a small message is on its way.
    async fn read_more(&mut self, total: usize) -> Result<(), Ended> {
        if self.done > 0 {
            self.input.drain(..self.done);
            self.done = 0;
        }
        let mut input = std::mem::take(&mut self.input);
        let filled = self.fill(&mut input, total).await;
        self.input = input;
        filled
    }

    /// A large message in a buffer of its own, `spare`, filled straight from the socket.
    async fn read_large(&mut self, len: usize) -> Result<(), Ended> {
        let at = self.done + 4;
        let have = (self.input.len() - at).min(len);
        let mut message = std::mem::take(&mut self.spare);
        message.clear();
        message.reserve_exact(len);
        message.extend_from_slice(&self.input[at..at + have]);
        self.done = at + have;
        self.fill(&mut message, len).await?;
        self.spare = message;
        Ok(())
    }

    /// Reads until `buffer` has `total` bytes. What is answered already leaves first, and what others leave in the
    /// mailbox goes on meanwhile.
    async fn fill(&mut self, buffer: &mut Vec<u8>, total: usize) -> Result<(), Ended> {
        self.flush().await?;
        // For the whole message: a byte now and then does not keep a connection.
        let missing = total.saturating_sub(buffer.len());
        let patience = MESSAGE_TIMEOUT + Duration::from_secs((missing / SLOWEST_LINK_BYTES_PER_SECOND) as u64);
        let deadline = tokio::time::Instant::now() + patience;
        while buffer.len() < total {
            let missing = total - buffer.len();
            buffer.reserve(missing);
            let mut limited = (&mut self.socket).take(missing as u64);
            tokio::select! {
                biased;
                read = limited.read_buf(buffer) => match read {
                    Ok(0) => return Err("closed by the client"),
                    Ok(_) => {}
                    Err(_) => return Err("socket error"),
                },
                () = self.wake.notified() => {
                    self.drain_mailbox().await?;
                    self.flush().await?;
                    if self.connection()?.peer().is_closed() {
                        return Err("closed by the server");
                    }
                }
                () = tokio::time::sleep_until(deadline) => return Err("half a message, then nothing"),
            }
        }
        Ok(())
    }

    async fn obey(&mut self, verdict: Verdict) -> Result<(), Ended> {
        match verdict {
            Verdict::Go => {}
            Verdict::Job(job) => self.spawn(job),
            Verdict::Delay { delay, answer } => self.answer_later(delay, answer).await?,
            Verdict::Close(reason) => {
                let address = self.connection()?.peer().address.clone();
                tracing::warn!(client = %address, reason, "connection is closed");
                self.flush().await?;
                return Err(reason);
            }
        }
        Ok(())
    }

    async fn answer_later(&mut self, delay: Duration, answer: Vec<u8>) -> Result<(), Ended> {
        let connection = self.connection.as_ref().ok_or("closed")?;
        let limit = connection.server.config.limits.delayed_answers_per_connection_max;
        if self.delayed.load(Ordering::Relaxed) >= limit {
            tracing::debug!(client = %connection.peer().address, limit, "delayed_answers_per_connection_max reached");
            self.flush().await?;
            tokio::time::sleep(delay).await;
            self.out.extend_from_slice(&answer);
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

    fn spawn(&self, job: Box<dyn BlockingWork>) {
        let Some(connection) = &self.connection else { return };
        self.waiting_bytes.fetch_add(job.bytes(), Ordering::Relaxed);
        let of = Some((self.waiting_bytes.clone(), self.wake.clone()));
        begin(&connection.server, &Handle::current(), job, of);
    }

    async fn drain_mailbox(&mut self) -> Result<(), Ended> {
        let (mut frames, mut jobs) = (Vec::new(), Vec::new());
        let connection = self.connection.as_mut().ok_or("closed")?;
        if connection.peer().mailbox.lock().is_empty() {
            return Ok(());
        }
        connection.server.set_time(Time::read());
        connection.drain_mailbox(&mut self.out, &mut frames, &mut jobs);
        for job in jobs {
            self.spawn(job);
        }
        for unsent in frames {
            if unsent.frame.len() <= SMALL_MESSAGE_BYTES {
                self.out.extend_from_slice(&unsent.frame);
            } else {
                self.flush().await?;
                write(&mut self.socket, &unsent.frame).await?;
            }
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        if self.out.is_empty() {
            return Ok(());
        }
        write(&mut self.socket, &self.out).await?;
        if self.out.len() > SMALL_MESSAGE_BYTES {
            let large = std::mem::take(&mut self.out);
            *self.connection()?.peer().large.lock() = large;
        } else {
            self.out.clear();
        }
        Ok(())
    }
}

/// Runs a message on a thread that may block when it is its user's turn. Its bytes count until its answer was sent, for the user
/// and for the connection whose count and wake-up are `of`.
fn begin(
    server: &Arc<Server>,
    runtime: &Handle,
    job: Box<dyn BlockingWork>,
    of: Option<(Arc<AtomicUsize>, Arc<Notify>)>,
) {
    let (user, bytes) = (job.user(), job.bytes());
    let held = Held { server: server.clone(), runtime: runtime.clone(), user: user.clone(), bytes, of };
    let work = Box::new(move || run(job, held));
    let Some(user) = user else { return drop(runtime.spawn_blocking(work)) };
    if let Some(work) = server.jobs.admit(&user, bytes, work, server.job_limits()) {
        spawn_for(server.clone(), runtime, user, work);
    }
}

fn run(job: Box<dyn BlockingWork>, mut held: Held) {
    held.server.set_time(Time::read());
    let peer = job.peer().clone();
    let frame = job.answer();
    held.keep(frame.len());
    if !frame.is_empty() {
        peer.send_holding(frame, Box::new(held));
    }
}

/// What a message keeps in memory, or the answer to it.
struct Held {
    server: Arc<Server>,
    runtime: Handle,
    user: Option<Sid>,
    bytes: usize,
    of: Option<(Arc<AtomicUsize>, Arc<Notify>)>,
}

impl Held {
    /// Gives back what is more than `bytes`.
    fn keep(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        if let Some((waiting, wake)) = &self.of {
            waiting.fetch_sub(less, Ordering::Relaxed);
            wake.notify_one();
        }
        let Some(user) = &self.user else { return };
        for work in self.server.jobs.release(user, less, self.server.job_limits()) {
            spawn_for(self.server.clone(), &self.runtime, user.clone(), work);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keep(0);
    }
}

/// Runs work that was admitted, and what of the user's waits for it.
fn spawn_for(server: Arc<Server>, runtime: &Handle, user: Sid, work: Work) {
    runtime.spawn_blocking(move || {
        // Dropped also when the work panics: others of the user are not to wait for ever.
        let _admitted = Admitted { server, user };
        work();
    });
}

/// Work of a user that runs.
struct Admitted {
    server: Arc<Server>,
    user: Sid,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        for work in self.server.jobs.done(&self.user, self.server.job_limits()) {
            spawn_for(self.server.clone(), &Handle::current(), self.user.clone(), work);
        }
    }
}

async fn write(socket: &mut TcpStream, mut bytes: &[u8]) -> Result<(), Ended> {
    match socket.try_write(bytes) {
        Ok(n) => bytes = &bytes[n..],
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
        Err(_) => return Err("socket error"),
    }
    if bytes.is_empty() {
        return Ok(());
    }
    match tokio::time::timeout(WRITE_TIMEOUT, socket.write_all(bytes)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err("socket error"),
        Err(_) => Err("the client does not read its answers"),
    }
}
