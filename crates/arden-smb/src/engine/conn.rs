//! One connection's own state: what it accepts, [MS-SMB2] 3.3.5.1 to 3.3.5.2. No sockets: transport messages come
//! in, frames go out, and time is passed in.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arden_lock::{Mutex, RwLock};
use arden_wire::{
    NtStatus,
    cursor::Put,
    smb2::{
        COMPRESSION_ID, Command, HEADER_BYTES, Header, PROTOCOL_ID, SMB1_ID, TRANSFORM_ID, flags,
        transform::{TRANSFORM_BYTES, TransformHeader},
    },
};

use crate::{
    base::{log_limit::Line, time::Time, window::Window},
    engine::{
        chain::{self, Bytes, Element},
        setup::Setup,
    },
    server::Server,
    sessions::{
        EarlyCancel, Left, Mailbox, Peer, Session, Unsent, frame,
        signer::{Proof, prove_channel},
        work::{BlockingWork, Ran},
    },
};

/// What the transport does after a message.
pub enum Verdict {
    Go,
    /// Runs on a thread that may block; it sends its answer through the mailbox.
    Job(Box<dyn BlockingWork>),
    /// `answer`, a complete frame of a failed logon, is sent after `delay`. What comes on the connection meanwhile is
    /// handled: other users may share it.
    Delay {
        delay: Duration,
        answer: Vec<u8>,
    },
    /// The connection has to end; `&str` says why.
    Close(&'static str),
}

pub struct Connection {
    pub(crate) server: Arc<Server>,
    pub(crate) peer: Arc<Peer>,
    window: Window,
    /// Connection.PreauthIntegrityHashValue.
    pub(crate) preauth: [u8; 64],
    /// An SMB 1 negotiate was answered with the wildcard dialect.
    pub(crate) wildcard: bool,
    pub(crate) setups: HashMap<u64, Setup>,
    /// Who failed to log on last, for the throttle.
    pub(crate) attempted: String,
    /// How long the answer to a logon has to wait.
    pub(crate) held_back: Duration,
}

impl Connection {
    pub fn new(
        server: &Arc<Server>,
        address: SocketAddr,
        local_address: SocketAddr,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Connection {
        let peer = Arc::new(Peer {
            id: server.trees.next_id(),
            ip: address.ip(),
            address: address.to_string(),
            local_address,
            negotiated: OnceLock::new(),
            channels: RwLock::new(HashMap::new()),
            mailbox: Mutex::new(Mailbox::default()),
            unacknowledged: Default::default(),
            wake,
            write_now: OnceLock::new(),
            closed: AtomicBool::new(false),
            heard_ms: AtomicU64::new(0),
            pending: Mutex::default(),
            large: Mutex::default(),
            elsewhere_asked: AtomicUsize::new(0),
            elsewhere_bytes: AtomicUsize::new(0),
            elsewhere_is_much: AtomicBool::new(false),
            elsewhere_held: AtomicUsize::new(0),
        });
        server.add_peer(&peer);
        Connection {
            server: server.clone(),
            peer,
            window: Window::default(),
            preauth: [0; 64],
            wildcard: false,
            setups: HashMap::new(),
            attempted: String::new(),
            held_back: Duration::ZERO,
        }
    }

    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// An SMB 1 negotiate that settled SMB 2.0.2 used message id 0.
    pub(crate) fn take_first_id(&mut self) {
        let _ = self.window.take(0, 1);
        self.window.grant(1);
    }

    pub(crate) fn grant_one(&mut self) {
        self.window.grant(1);
    }

    /// Has anybody authenticated here?
    pub fn has_session(&self) -> bool {
        !self.peer.channels.read().is_empty()
    }

    /// How long the connection may be without a session.
    pub fn handshake_timeout(&self) -> Duration {
        self.server.trees.config.limits.handshake_timeout
    }

    /// The longest message that this connection accepts now.
    pub fn message_bytes_max(&self) -> usize {
        let io = self.server.trees.config.limits.io_bytes_max as usize;
        if self.has_session() { io + 64 * 1024 } else { 64 * 1024 + HEADER_BYTES }
    }

    /// Frames that others left, and parked requests that go on, until these have answered `enough` bytes. False: more is left.
    /// `frames` are to be sent behind `out`: what was left before a request went on goes before its answer.
    pub fn drain_mailbox(
        &mut self,
        out: &mut Vec<u8>,
        enough: usize,
        frames: &mut Vec<Unsent>,
        jobs: &mut Vec<Box<dyn BlockingWork>>,
    ) -> bool {
        let (mut answered, mut behind) = (out.len(), Vec::new());
        // What was answered behind the last frame goes before this one.
        let push = |behind: &mut Vec<u8>, frames: &mut Vec<Unsent>, frame: Unsent| {
            if !behind.is_empty() {
                frames.push(std::mem::take(behind).into());
            }
            if !frame.frame.is_empty() {
                frames.push(frame);
            }
        };
        loop {
            let mut left = {
                let mut mailbox = self.peer.mailbox.lock();
                if mailbox.is_empty() {
                    push(&mut behind, frames, Vec::new().into());
                    return true;
                }
                jobs.append(&mut mailbox.jobs);
                std::mem::take(&mut mailbox.left)
            };
            while let Some(next) = left.pop_front() {
                let chain = match next {
                    Left::Resumed(chain) => chain,
                    Left::Frame(frame) => {
                        push(&mut behind, frames, frame);
                        continue;
                    }
                    Left::Finished(mut answers) => {
                        let frame = answers.frame();
                        push(&mut behind, frames, Unsent::holding(frame, Box::new(answers)));
                        continue;
                    }
                };
                let answers = if frames.is_empty() { &mut *out } else { &mut behind };
                let before = answers.len();
                // Breaks are left to the connection as its answer is now, and are behind it.
                jobs.extend(chain.run(answers, false).rest);
                answered += answers.len() - before;
                if answered >= enough && !left.is_empty() {
                    let mut mailbox = self.peer.mailbox.lock();
                    left.append(&mut mailbox.left);
                    mailbox.left = left;
                    drop(mailbox);
                    push(&mut behind, frames, Vec::new().into());
                    return false;
                }
            }
        }
    }

    /// One transport message; its bytes are changed: decrypted in place.
    pub fn handle_message(&mut self, message: &mut [u8], time: Time, out: &mut Vec<u8>) -> Verdict {
        match self.accept(message, time, out) {
            Ok((elements, session)) => self.run(Bytes::Borrowed(message), elements, session, out),
            Err(verdict) => verdict,
        }
    }

    /// The same for a message in a buffer of its own: one that has to wait takes the buffer along instead of a copy.
    pub fn handle_lent(&mut self, message: &mut Vec<u8>, time: Time, out: &mut Vec<u8>) -> Verdict {
        match self.accept(message, time, out) {
            Ok((elements, session)) => self.run(Bytes::Lent(message), elements, session, out),
            Err(verdict) => verdict,
        }
    }

    fn accept(&mut self, message: &mut [u8], time: Time, out: &mut Vec<u8>) -> Result<Admitted, Verdict> {
        self.server.trees.set_time(time);
        let heard = time.now.saturating_duration_since(self.server.trees.started);
        self.peer.heard_ms.store(heard.as_millis() as u64, Ordering::Relaxed);
        let (offset, session) = self.unwrap(message)?;
        match self.elements(&mut message[offset..], session.as_ref(), time.now, out) {
            Accepted::Chain(mut elements) => {
                elements.iter_mut().for_each(|e| e.start += offset);
                Ok((elements, session))
            }
            Accepted::Handled(verdict) => Err(verdict),
        }
    }

    fn run(
        &mut self,
        bytes: Bytes<'_>,
        elements: Vec<Element>,
        session: Option<Arc<Session>>,
        out: &mut Vec<u8>,
    ) -> Verdict {
        if elements.is_empty() {
            return Verdict::Go;
        }
        let ran = chain::start(&self.server, &self.peer, bytes, elements, session, out, false);
        ran.rest.map_or(Verdict::Go, Verdict::Job)
    }

    /// Decrypts, [MS-SMB2] 3.3.5.2.1.1. Answers where the plain message starts, and whose encryption it had.
    fn unwrap(&mut self, message: &mut [u8]) -> Result<(usize, Option<Arc<Session>>), Verdict> {
        if message.len() < 4 {
            return Err(Verdict::Close("message shorter than a protocol id"));
        }
        if message[..4] == COMPRESSION_ID {
            return Err(Verdict::Close("compressed message, though compression was not negotiated"));
        }
        if message[..4] != TRANSFORM_ID {
            return Ok((0, None));
        }
        let Ok(header) = TransformHeader::parse(message) else {
            return Err(Verdict::Close("truncated transform header"));
        };
        let size = header.original_message_size as usize;
        if header.flags != 1 || size != message.len() - TRANSFORM_BYTES || size < HEADER_BYTES {
            return Err(Verdict::Close("malformed transform header"));
        }
        let session = self.peer.channel(header.session_id).map(|c| c.session.clone());
        // A session that was logged off on this connection cannot decrypt any more.
        let Some(session) = session else { return Err(Verdict::Close("encrypted for an unknown session")) };
        let Some((_, decryption)) = &session.keys else {
            return Err(Verdict::Close("encrypted for a session without keys"));
        };
        if !decryption.open(message) {
            return Err(Verdict::Close("encrypted message is not authentic"));
        }
        if message[TRANSFORM_BYTES..TRANSFORM_BYTES + 4] != PROTOCOL_ID {
            return Err(Verdict::Close("encrypted message is not SMB 2"));
        }
        Ok((TRANSFORM_BYTES, Some(session)))
    }

    /// Splits a compound, takes message ids, checks signatures. NEGOTIATE, SESSION_SETUP and CANCEL end here.
    fn elements(
        &mut self,
        message: &mut [u8],
        encrypted: Option<&Arc<Session>>,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Accepted {
        use Accepted::Handled;
        if message[..4] == SMB1_ID {
            return Handled(self.smb1_negotiate(message, out));
        }
        let mut elements = Vec::with_capacity(1);
        let mut start = 0;
        let mut previous: Option<(u64, Option<Arc<crate::sessions::Channel>>)> = None;
        loop {
            let rest = &mut message[start..];
            let Ok(mut header) = Header::parse(rest) else { return Handled(Verdict::Close("malformed header")) };
            let next = header.next_command as usize;
            if next != 0 && (next % 8 != 0 || next < HEADER_BYTES || next > rest.len()) {
                return Handled(Verdict::Close("malformed compound"));
            }
            let len = if next == 0 { rest.len() } else { next };
            let bytes = &mut rest[..len];
            if header.is(flags::SERVER_TO_REDIR) {
                return Handled(Verdict::Close("a response where a request belongs"));
            }
            if header.command == Command::Cancel as u16 {
                self.cancel(&header, bytes, encrypted);
                return Accepted::Chain(elements);
            }
            let charge =
                if self.peer.negotiated.get().is_some_and(|n| n.multi_credit()) { header.credit_charge } else { 1 };
            if self.wildcard && header.message_id == 1 {
                // [MS-SMB2] 3.2.5.2: this client counts the SMB 1 exchange as message 0, which will never come.
                let _ = self.window.take(0, 1);
            }
            if !self.window.take(header.message_id, charge) {
                return Handled(Verdict::Close("message id outside the window"));
            }
            match Command::from_u16(header.command) {
                Some(Command::Negotiate) if start == 0 && next == 0 => {
                    let credits = self.window.grant(header.credits);
                    return Handled(self.negotiate(&header, bytes, credits, out));
                }
                Some(Command::SessionSetup) if start == 0 && next == 0 && self.peer.negotiated.get().is_some() => {
                    // Its own checks are stricter: it may be about a session that is not on this connection.
                    let credits = self.window.grant(header.credits);
                    return Handled(self.session_setup(&header, bytes, credits, encrypted, now, out));
                }
                _ => {}
            }
            if self.peer.negotiated.get().is_none() {
                return Handled(Verdict::Close("request before negotiate"));
            }
            let mut refused = None;
            let related = header.is(flags::RELATED_OPERATIONS);
            let channel = match (&previous, related) {
                (Some((id, channel)), true) => {
                    header.session_id = *id;
                    channel.clone()
                }
                (None, true) => {
                    // [MS-SMB2] 3.3.5.2.7.2: the first request has nothing to be related to.
                    refused = Some(NtStatus::INVALID_PARAMETER);
                    self.peer.channel(header.session_id)
                }
                (_, false) => self.peer.channel(header.session_id),
            };
            let proof = match (&channel, encrypted) {
                (Some(channel), Some(session)) if channel.session.id != session.id => {
                    return Handled(Verdict::Close("encrypted with another session's key"));
                }
                (_, Some(_)) => Proof::Encrypted,
                (Some(channel), None) => prove_channel(channel, &header, bytes).unwrap_or_else(|| {
                    if let Some(left_out) = self.server.trees.admit_line(Line::WrongSignature) {
                        tracing::warn!(client = %self.peer.address, user = %channel.session.token().user_name,
                            command = header.command, left_out, "a request with a wrong signature is refused");
                    }
                    refused = Some(NtStatus::ACCESS_DENIED);
                    Proof::Nothing
                }),
                (None, None) => Proof::Nothing,
            };
            if let Some(reason) = self.refuses_more(elements.len()) {
                return Handled(Verdict::Close(reason));
            }
            previous = Some((header.session_id, channel.clone()));
            let credits = self.window.grant(header.credits);
            elements.push(Element { header, start, len, credits, proof, channel, refused });
            if next == 0 {
                return Accepted::Chain(elements);
            }
            start += next;
        }
    }

    /// Why a message may not have one request more than `count`. Before a logon nobody pays for the thread that many of them
    /// would need.
    fn refuses_more(&self, count: usize) -> Option<&'static str> {
        let limits = &self.server.trees.config.limits;
        if count >= limits.chain_max {
            Some("chain_max requests in one message")
        } else if count >= limits.chain_before_logon_max && !self.has_session() {
            Some("chain_before_logon_max requests in one message")
        } else {
            None
        }
    }

    /// [MS-SMB2] 3.3.5.16. No response of its own; the request that is cancelled answers STATUS_CANCELLED. It has to be as
    /// well protected as that one was, by the same session.
    fn cancel(&mut self, header: &Header, message: &mut [u8], encrypted: Option<&Arc<Session>>) {
        let asynchronous = header.is(flags::ASYNC_COMMAND);
        let id = if asynchronous { header.async_or_tree } else { header.message_id };
        let found = self.peer.pending.lock().find(asynchronous, id, header.session_id);
        let session_id = found.map_or(header.session_id, |(_, request)| request.session_id);
        if let Some(channel) = self.peer.channel(session_id) {
            let proof = match encrypted {
                Some(session) => (session.id == session_id).then_some(Proof::Encrypted),
                None => prove_channel(&channel, header, message),
            };
            let needed = channel.session.requires_protection();
            if !proof.is_some_and(|p| p.holds_session() || !needed) {
                if let Some(left_out) = self.server.trees.admit_line(Line::WrongCancel) {
                    tracing::warn!(client = %self.peer.address, user = %channel.session.token().user_name, left_out,
                        "a CANCEL that is not signed as it has to be is ignored");
                }
                return;
            }
        }
        let request = {
            let mut pending = self.peer.pending.lock();
            // It may have begun to wait meanwhile, or may not do so any more.
            match pending.find(asynchronous, id, session_id).filter(|(_, request)| request.session_id == session_id) {
                Some((id, request)) => {
                    pending.remove(id);
                    request
                }
                None => return pending.cancel_early(EarlyCancel { asynchronous, id, session_id }),
            }
        };
        let parked = self.server.unpark(request.wait);
        if parked.is_none() {
            // It goes on already, and may wait once more.
            let cancel = EarlyCancel { asynchronous, id, session_id };
            self.peer.pending.lock().cancel_early(cancel);
        }
        if let Some(chain) = parked {
            let mut answer = Vec::new();
            let Ran { rest, granting } = chain.abort(NtStatus::CANCELLED, &mut answer);
            let mut mailbox = self.peer.mailbox.lock();
            // Behind its interim response, which may be there.
            if !answer.is_empty() {
                mailbox.left.push_back(Left::Frame(answer.into()));
            }
            // What follows a cancelled request in its compound may still block.
            mailbox.jobs.extend(rest);
            drop(mailbox);
            drop(granting);
        }
    }

    /// A response of the connection itself: NEGOTIATE and SESSION_SETUP.
    pub(crate) fn respond(
        &self,
        request: &Header,
        credits: u16,
        session_id: u64,
        status: NtStatus,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>, usize),
    ) -> Reply {
        self.server.trees.metrics.answered(request.command, status);
        let start = out.len();
        out.put_u32(0);
        let base = out.len();
        Header {
            credit_charge: request.credit_charge,
            status: status.0,
            command: request.command,
            credits,
            flags: flags::SERVER_TO_REDIR | (request.flags & flags::PRIORITY_MASK),
            next_command: 0,
            message_id: request.message_id,
            async_or_tree: request.async_or_tree,
            session_id,
            signature: [0; 16],
        }
        .put(out);
        body(out, base);
        frame::put_frame_length(out, start);
        Reply { base }
    }

    pub(crate) fn respond_error(&self, request: &Header, credits: u16, status: NtStatus, out: &mut Vec<u8>) -> Reply {
        self.respond(request, credits, request.session_id, status, out, |out, _| {
            out.put_u16(9);
            out.put_zeros(7);
        })
    }

    /// The transport is gone.
    pub fn closed(&mut self, now: Instant) {
        self.setups.clear();
        self.server.peer_closed(&self.peer, now);
    }
}

/// Where a response's header starts.
pub(crate) struct Reply {
    pub base: usize,
}

/// The requests of a message, and the session that encrypted it.
type Admitted = (Vec<Element>, Option<Arc<Session>>);

enum Accepted {
    Chain(Vec<Element>),
    Handled(Verdict),
}
