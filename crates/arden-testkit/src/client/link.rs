//! One connection: message ids, signing, encryption, and what came back.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use arden_smb::time::Time;
use arden_smb::{
    Server,
    conn::{Connection, Verdict},
    crypto::{CipherKey, SigningKey},
    sessions::Peer,
};
use arden_wire::FileTime;
use arden_wire::{
    NtStatus,
    cursor::Put,
    smb2::{
        Command, Dialect, Header, PROTOCOL_ID, TRANSFORM_ID, flags,
        negotiate::{Cipher, SigningAlgorithm},
        transform::{TRANSFORM_BYTES, TransformHeader},
    },
};
use parking_lot::Mutex;

use super::{Reply, Req};

/// An answer of another engine that has to come is awaited so long.
const ELSEWHERE_WAIT: Duration = Duration::from_secs(15);
/// So long is looked for what another engine may say or not, while it has something to do: a test may hold it up.
const ELSEWHERE_LOOK: Duration = Duration::from_secs(3);

/// What a client knows of a session; channels share it.
#[derive(Clone)]
pub struct SessionKeys {
    pub id: u64,
    /// Of this channel.
    pub signing: Arc<SigningKey>,
    /// Of the session: what binding is signed with.
    pub session_signing: Arc<SigningKey>,
    /// Client to server, server to client.
    pub ciphers: Option<Arc<(CipherKey, CipherKey)>>,
    pub flags: u16,
}

pub struct Client {
    pub server: Arc<Server>,
    /// The node with the shares, where that is another one.
    pub behind: Option<Arc<Server>>,
    /// None once the connection has ended.
    pub connection: Option<Connection>,
    /// Instead of it, a socket of a server that listens.
    pub socket: Option<TcpStream>,
    /// Why the server ended it.
    pub closed: Option<&'static str>,
    pub guid: u128,
    pub dialect: Dialect,
    pub cipher: Option<Cipher>,
    pub signing: SigningAlgorithm,
    pub preauth: [u8; 64],
    pub session: Option<SessionKeys>,
    pub tree: u32,
    /// Requests go out signed.
    pub sign: bool,
    /// Requests go out encrypted.
    pub encrypt: bool,
    pub channel_sequence: u16,
    /// The next MessageId, and how many may still be used.
    pub next_id: u64,
    pub credits: u64,
    /// Responses and notifications that nobody asked for yet.
    pub inbox: VecDeque<Reply>,
    /// How long the last failed logon was held back.
    pub delayed: Duration,
    /// Answers without a signature are wrong where one belongs.
    pub strict: bool,
    nonce: u64,
    /// What others wrote to the connection while it rested.
    written: Arc<Mutex<Vec<u8>>>,
    pub(super) offset: Arc<Mutex<Duration>>,
    /// Time begins here and passes only by `offset`, instead of running.
    pub epoch: Option<Instant>,
    /// Everything that was sent in the clear, for corpora.
    pub sent: Vec<Vec<u8>>,
    /// Messages for threads that may block stay here instead of running at once, until `run_held`.
    pub held: Option<Vec<Verdict>>,
}

impl Client {
    pub fn new(server: &Arc<Server>, guid: u128, offset: Arc<Mutex<Duration>>) -> Client {
        let address = "192.0.2.10:40000".parse().unwrap();
        let local = "192.0.2.1:445".parse().unwrap();
        Client {
            server: server.clone(),
            behind: None,
            connection: Some(Connection::new(server, address, local, Box::new(|| {}))),
            socket: None,
            closed: None,
            guid,
            dialect: Dialect::Smb202,
            cipher: None,
            signing: SigningAlgorithm::HmacSha256,
            preauth: [0; 64],
            session: None,
            tree: 0,
            sign: true,
            encrypt: false,
            channel_sequence: 0,
            next_id: 0,
            credits: 1,
            inbox: VecDeque::new(),
            delayed: Duration::ZERO,
            strict: true,
            nonce: 1,
            written: Arc::default(),
            offset,
            epoch: None,
            sent: Vec::new(),
            held: None,
        }
    }

    pub fn now(&self) -> Instant {
        self.epoch.unwrap_or_else(Instant::now) + *self.offset.lock()
    }

    /// The header of a request; takes message ids.
    fn header(&mut self, req: &Req) -> Header {
        let cancel = req.command == Command::Cancel as u16;
        let charge = req.charge.max(1);
        let message_id = req.message_id.unwrap_or(self.next_id);
        if req.message_id.is_none() && !cancel {
            self.next_id += u64::from(charge);
            self.credits = self.credits.saturating_sub(u64::from(charge));
        }
        let tree = u64::from(req.tree.unwrap_or(self.tree));
        Header {
            credit_charge: if self.dialect == Dialect::Smb202 { 0 } else { req.charge },
            status: u32::from(req.channel_sequence.unwrap_or(self.channel_sequence)),
            command: req.command,
            credits: req.credits,
            flags: req.flags,
            next_command: 0,
            message_id,
            async_or_tree: req.async_id.unwrap_or(tree << 32),
            session_id: req.session.unwrap_or(self.session.as_ref().map_or(0, |s| s.id)),
            signature: [0; 16],
        }
    }

    /// The bytes of one request, signed as this client signs; `next`: padded, for a compound.
    pub fn encode(&mut self, req: &Req, next: bool) -> (u64, Vec<u8>) {
        let mut header = self.header(req);
        let key = self.session.as_ref().map(|s| s.signing.clone());
        let signs = req.sign.unwrap_or(self.sign && !self.encrypt) && key.is_some();
        if signs {
            header.flags |= flags::SIGNED;
        }
        let mut message = Vec::new();
        header.put(&mut message);
        message.extend_from_slice(&req.body);
        if next {
            message.pad_to(0, 8);
            let len = message.len() as u32;
            message.patch_u32(20, len);
        }
        if let (true, Some(key)) = (signs, key) {
            key.sign_in_place(&mut message);
        }
        (header.message_id, message)
    }

    /// Sends requests in one message; answers their ids.
    pub fn send_all(&mut self, requests: &[Req]) -> Vec<u64> {
        let mut ids = Vec::new();
        let mut message = Vec::new();
        for (i, req) in requests.iter().enumerate() {
            let (id, bytes) = self.encode(req, i + 1 < requests.len());
            ids.push(id);
            message.extend_from_slice(&bytes);
        }
        if self.encrypt {
            message = self.seal(&message);
        }
        self.send_bytes(message);
        ids
    }

    pub fn send(&mut self, req: &Req) -> u64 {
        self.send_all(std::slice::from_ref(req))[0]
    }

    /// The message in a TRANSFORM_HEADER.
    pub fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        let session = self.session.clone().expect("a session");
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.nonce.to_le_bytes());
        self.nonce += 1;
        let mut frame = Vec::new();
        TransformHeader {
            signature: [0; 16],
            nonce,
            original_message_size: message.len() as u32,
            flags: 1,
            session_id: session.id,
        }
        .put(&mut frame);
        frame.extend_from_slice(message);
        session.ciphers.as_ref().expect("a session with keys").0.seal(&mut frame);
        frame
    }

    /// Gives the server one transport message and collects what it says.
    pub fn send_bytes(&mut self, mut message: Vec<u8>) {
        self.sent.push(message.clone());
        if self.socket.is_some() {
            return self.exchange(&message);
        }
        let wall = FileTime::from_system(std::time::SystemTime::now() + *self.offset.lock());
        let time = Time { now: self.now(), wall };
        let Some(connection) = &mut self.connection else { return };
        let mut out = Vec::new();
        self.delayed = Duration::ZERO;
        let verdict = connection.handle_message(&mut message, time, &mut out);
        self.take_frames(&out);
        match verdict {
            Verdict::Go => {}
            Verdict::Job(job) => match &mut self.held {
                Some(held) => held.push(Verdict::Job(job)),
                None => job.run(),
            },
            Verdict::Delay { delay, answer } => {
                self.delayed = delay;
                self.take_frames(&answer);
            }
            Verdict::Close(reason) => self.end(reason),
        }
        self.pump();
    }

    /// One message out, one in.
    fn exchange(&mut self, message: &[u8]) {
        let mut answer = vec![0; 4];
        let mut talk = |socket: &mut TcpStream| {
            socket.write_all(&[&(message.len() as u32).to_be_bytes(), message].concat())?;
            socket.read_exact(&mut answer)?;
            let len = u32::from_be_bytes(answer[..4].try_into().unwrap()) as usize;
            answer.resize(4 + len, 0);
            socket.read_exact(&mut answer[4..])
        };
        match talk(self.socket.as_mut().expect("a socket")) {
            Ok(()) => self.take_frames(&answer),
            Err(_) => {
                self.closed = Some("the socket ended");
                self.socket = None;
            }
        }
    }

    fn end(&mut self, reason: &'static str) {
        self.closed = Some(reason);
        self.disconnect();
    }

    /// Runs what was held; answers how many messages these were.
    pub fn run_held(&mut self) -> usize {
        let held = self.held.take().unwrap_or_default();
        let count = held.len();
        for verdict in held {
            let Verdict::Job(job) = verdict else { unreachable!("only these are held") };
            job.run();
        }
        self.pump();
        count
    }

    /// Takes what the server has for this connection.
    pub fn pump(&mut self) {
        self.run_deferred();
        let mut patience = if self.behind.is_some() { 1 } else { 0 };
        let end = Instant::now() + ELSEWHERE_LOOK;
        loop {
            let Some(connection) = &mut self.connection else { return };
            let (mut out, mut frames, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
            connection.drain_mailbox(&mut out, usize::MAX, &mut frames, &mut jobs);
            if out.is_empty() && frames.is_empty() && jobs.is_empty() {
                if connection.peer().is_closed() || Instant::now() > end {
                    break;
                }
                let peer = connection.peer().clone();
                let is_elsewhere = peer.elsewhere_bytes.load(Ordering::Relaxed) != 0;
                if !is_elsewhere && patience == 0 {
                    break;
                }
                self.rest(&peer, is_elsewhere);
                if !is_elsewhere {
                    patience -= 1;
                    self.run_deferred();
                }
                continue;
            }
            self.take_frames(&out);
            frames.iter().for_each(|f| self.take_frames(&f.frame));
            jobs.into_iter().for_each(|j| j.run());
            self.run_deferred();
        }
        if self.connection.as_ref().is_some_and(|c| c.peer().is_closed()) {
            self.end("closed by the server");
        }
    }

    /// Lets others go on. They may write to the connection meanwhile.
    fn rest(&mut self, peer: &Peer, is_elsewhere: bool) {
        let written = self.written.clone();
        let write = move |bytes: &[u8]| {
            written.lock().extend_from_slice(bytes);
            bytes.len()
        };
        peer.write_now.get_or_init(|| Box::new(write));
        peer.begin_rest();
        if is_elsewhere {
            std::thread::yield_now()
        } else {
            super::let_nodes_talk()
        }
        assert!(peer.end_rest().is_empty(), "all of a frame was taken");
        let written = std::mem::take(&mut *self.written.lock());
        self.take_frames(&written);
    }

    /// The transport fails.
    pub fn disconnect(&mut self) {
        let now = self.now();
        if let Some(mut connection) = self.connection.take() {
            connection.closed(now);
        }
        if let Some(behind) = &self.behind {
            super::let_nodes_talk();
            // Where it was the session's last connection, the owner hears of that.
            let end = Instant::now() + ELSEWHERE_WAIT;
            while behind.forwarded_sessions() > self.server.sessions().len() && Instant::now() < end {
                super::let_nodes_talk();
            }
        }
        self.run_deferred();
    }

    fn run_deferred(&self) {
        self.server.trees.run_deferred();
        self.behind.iter().for_each(|server| server.trees.run_deferred());
    }

    pub fn is_closed(&mut self) -> bool {
        self.pump();
        self.connection.is_none()
    }

    /// Splits frames into responses; checks lengths, signatures and encryption.
    fn take_frames(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
            let mut frame = bytes[4..4 + len].to_vec();
            bytes = &bytes[4 + len..];
            let encrypted = frame[..4] == TRANSFORM_ID;
            if encrypted {
                let header = TransformHeader::parse(&frame).unwrap();
                let session = self.session.as_ref().expect("encrypted answers belong to a session");
                assert_eq!(header.session_id, session.id);
                assert!(session.ciphers.as_ref().unwrap().1.open(&mut frame), "an answer that is not authentic");
                frame.drain(..TRANSFORM_BYTES);
            }
            self.take_responses(&frame, encrypted);
        }
    }

    fn take_responses(&mut self, mut rest: &[u8], encrypted: bool) {
        loop {
            assert_eq!(rest[..4], PROTOCOL_ID);
            let header = Header::parse(rest).unwrap();
            assert!(header.is(flags::SERVER_TO_REDIR), "a response says that it is one");
            let next = header.next_command as usize;
            assert!(next.is_multiple_of(8));
            let len = if next == 0 { rest.len() } else { next };
            let mut message = rest[..len].to_vec();
            // Of a session that is gone nobody has the key, and who proved nothing gets nothing signed; the flag mirrors
            // the request's.
            let sessionless = !self.strict
                || header.status == NtStatus::ACCESS_DENIED.0
                || header.status == NtStatus::USER_SESSION_DELETED.0
                || header.command == Command::Echo as u16;
            let keyless = sessionless && header.signature == [0; 16];
            let signed = header.is(flags::SIGNED) && !keyless;
            if signed && !encrypted && header.command != Command::SessionSetup as u16 {
                let session = self.session.as_ref().expect("signed answers belong to a session");
                assert!(session.signing.verify(&mut message), "an answer's signature: {header:?}");
            }
            self.credits += u64::from(header.credits);
            self.inbox.push_back(Reply { header, message: rest[..len].to_vec(), signed, encrypted });
            if next == 0 {
                return;
            }
            rest = &rest[next..];
        }
    }

    /// The final response to `id`, if it is there.
    pub fn poll(&mut self, id: u64) -> Option<Reply> {
        self.pump();
        let found = self.inbox.iter().position(|r| r.header.message_id == id && r.status() != NtStatus::PENDING)?;
        self.inbox.remove(found)
    }

    /// What has to come. With two nodes nothing says when it does.
    pub fn comes<T>(&mut self, mut found: impl FnMut(&mut Client) -> Option<T>) -> Option<T> {
        let end = Instant::now() + ELSEWHERE_WAIT;
        loop {
            let is_late = self.behind.is_none() || self.connection.is_none() || Instant::now() > end;
            let what = found(self);
            if what.is_some() || is_late {
                return what;
            }
        }
    }

    /// The interim response to `id`: its AsyncId.
    #[track_caller]
    pub fn interim(&mut self, id: u64) -> u64 {
        let is_it = |r: &Reply| r.header.message_id == id && r.status() == NtStatus::PENDING;
        let reply = self.comes(|c| {
            c.pump();
            let found = c.inbox.iter().position(is_it)?;
            c.inbox.remove(found)
        });
        let reply = reply.expect("an interim response");
        assert!(reply.header.is(flags::ASYNC_COMMAND));
        reply.header.async_or_tree
    }

    #[track_caller]
    pub fn receive(&mut self, id: u64) -> Reply {
        match self.comes(|c| c.poll(id)) {
            Some(reply) => reply,
            None => panic!("no answer to message {id}; closed: {:?}; there is {:?}", self.closed, self.inbox),
        }
    }

    /// Still without its final response?
    pub fn waits(&mut self, id: u64) -> bool {
        self.poll(id).map(|r| self.inbox.push_back(r)).is_none()
    }

    #[track_caller]
    pub fn call(&mut self, req: &Req) -> Reply {
        let id = self.send(req);
        self.receive(id)
    }

    #[track_caller]
    pub fn status(&mut self, req: &Req) -> NtStatus {
        self.call(req).status()
    }

    /// Sends a compound and takes all its answers.
    #[track_caller]
    pub fn compound(&mut self, requests: &[Req]) -> Vec<Reply> {
        self.send_all(requests).into_iter().map(|id| self.receive(id)).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.disconnect();
    }
}
