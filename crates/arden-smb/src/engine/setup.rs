//! SESSION_SETUP: new sessions, reauthentication and binding (Multichannel), [MS-SMB2] 3.3.5.5.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use arden_auth::{Acceptor, Logon, Step, Token};
use arden_store::commit::CommitScope;
use arden_wire::{
    NtStatus,
    smb2::{
        Dialect, Header, flags,
        header::offset,
        negotiate::{Cipher, SigningAlgorithm, security_mode},
        session::{SESSION_FLAG_BINDING, SessionSetupRequest, put_session_setup_response, session_flags},
    },
};

use crate::{
    base::{admission::Met, log_limit::Line, metrics::count, time::Time},
    engine::{
        chain::put_error,
        conn::{Connection, Reply, Verdict},
    },
    model::Negotiated,
    server::Server,
    sessions::{
        Channel, NewSession, Peer, Session, SessionState,
        crypto::{self, CipherKey, Purpose, SigningKey},
        signer::{Proof, answer_signer, prove_channel},
        work::{Answered, BlockingWork},
    },
    trees::ending::Ending,
};

const REQUEST_OUT_OF_SEQUENCE: u32 = 0xC000_042A;

/// An authentication in progress on this connection.
pub(crate) struct Setup {
    pub acceptor: Acceptor,
    /// PreauthSession.PreauthIntegrityHashValue, or the new session's.
    preauth: [u8; 64],
    pub kind: Kind,
    begun: Instant,
    /// Given back with it.
    _permit: Permit,
}

pub(crate) enum Kind {
    New,
    Reauthenticate(Arc<Channel>),
    Bind(Arc<Session>),
}

impl Setup {
    /// May a request that proved this go on with it, or end it?
    fn belongs_to(&self, proof: &Proof) -> bool {
        match &self.kind {
            Kind::New => true,
            Kind::Reauthenticate(channel) => proof.holds_session() || !channel.session.requires_protection(),
            Kind::Bind(session) => matches!(proof, Proof::Session(s) if Arc::ptr_eq(s, session)),
        }
    }
}

/// One of the logons under way that `Limits` allows.
struct Permit {
    server: Arc<Server>,
    ip: IpAddr,
    /// Of the connection.
    peer_id: u64,
    /// The id that a new session will have.
    reserved: Option<u64>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.server.admission.end_setup(self.ip, self.peer_id);
        if let Some(id) = self.reserved {
            self.server.release_session_id(id);
        }
    }
}

/// How one SESSION_SETUP ends.
enum Answer {
    More(Vec<u8>),
    Done { granted: Granted, token: Vec<u8> },
}

/// What who authenticated gets.
struct Granted {
    channel: Arc<Channel>,
    flags: u16,
    /// The answer goes after it.
    previous: Option<Replaced>,
}

impl Granted {
    fn channel(channel: Arc<Channel>) -> Granted {
        Granted { channel, flags: 0, previous: None }
    }
}

/// What is left to do for a session that gave way.
struct Replaced {
    /// It has so much open that it is closed where that may take its time.
    ending: Option<Ending>,
    /// What was closed: durable before the answer leaves.
    scope: CommitScope,
    /// Of this node there is no such session of the user: it may be another's, by this id.
    elsewhere: Option<u64>,
}

impl Replaced {
    /// Whether what is left to do here keeps a thread.
    fn is_long(&self) -> bool {
        self.ending.is_some() || self.scope.is_due()
    }
}

/// Sends the answer of a logon once what the user's sessions had open that have ended is closed, at other nodes too.
fn send_after_endings(server: &Server, peer: &Arc<Peer>, user: &Token, elsewhere: Option<u64>, answer: Vec<u8>) {
    let (to, bytes) = (peer.clone(), answer.len());
    peer.elsewhere_bytes.fetch_add(bytes, Ordering::Relaxed);
    let send = move || {
        to.send(answer);
        to.elsewhere_bytes.fetch_sub(bytes, Ordering::Relaxed);
    };
    if let Err(send) = server.engine.after_endings(&user.user, elsewhere, Box::new(send)) {
        send();
    }
}

/// Ends what a session had open, makes that durable, and then sends the answer that speaks of it.
struct EndFirst {
    replaced: Replaced,
    server: Arc<Server>,
    peer: Arc<Peer>,
    user: Arc<Token>,
    /// Empty: it was sent already.
    answer: Vec<u8>,
}

impl BlockingWork for EndFirst {
    fn bytes(&self) -> usize {
        self.answer.len()
    }
    fn waiting_bytes(&self) -> usize {
        size_of::<EndFirst>() + self.answer.len()
    }
    fn user(&self) -> Option<Arc<Token>> {
        Some(self.user.clone())
    }
    fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }
    fn answer(self: Box<Self>, _: &mut Vec<u8>) -> Answered {
        let EndFirst { replaced: Replaced { ending, scope, elsewhere }, server, peer, user, answer } = *self;
        if let Some(ending) = ending {
            ending.finish(&scope);
        }
        if answer.is_empty() {
            return Answered::default();
        }
        if let Err(error) = scope.commit() {
            // The new session is there. After a crash what it replaced may be there again, so the client has to begin anew.
            tracing::error!(client = %peer.address, %error, "what a replaced session had open is not closed durably");
            peer.closed.store(true, Ordering::Release);
            (peer.wake)();
            return Answered::default();
        }
        send_after_endings(&server, &peer, &user, elsewhere, answer);
        Answered::default()
    }
}

struct Incoming<'a> {
    header: &'a Header,
    message: &'a [u8],
    request: SessionSetupRequest<'a>,
    now: Instant,
    proof: &'a Proof,
}

impl Incoming<'_> {
    fn binds(&self) -> bool {
        self.request.flags & SESSION_FLAG_BINDING != 0
    }
}

impl Connection {
    pub(crate) fn session_setup(
        &mut self,
        header: &Header,
        message: &mut [u8],
        credits: u16,
        encrypted: Option<&Arc<Session>>,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Verdict {
        self.expire_setups(now);
        let mut session_id = header.session_id;
        let start = out.len();
        let (proof, result) = match self.prove_setup(header, message, encrypted) {
            Ok(proof) => {
                let result = SessionSetupRequest::parse(message).map_err(|_| NtStatus::INVALID_PARAMETER);
                let result = result.and_then(|request| {
                    let incoming = Incoming { header, message, request, now, proof: &proof };
                    self.find_setup(&incoming, &mut session_id)?;
                    self.advance(&incoming, session_id)
                });
                (proof, result)
            }
            Err(status) => (Proof::Nothing, Err(status)),
        };
        let mut previous = None;
        let refused = match result {
            Ok(Answer::More(token)) => {
                self.ask_for_more(header, credits, session_id, &token, &proof, out);
                None
            }
            Ok(Answer::Done { granted, token }) => {
                let reply = self.respond(header, credits, session_id, NtStatus::SUCCESS, out, |out, _| {
                    put_session_setup_response(out, granted.flags, &token);
                });
                if encrypted.is_none() {
                    sign(&proof, Some(&granted.channel), header, &reply, out);
                }
                previous = granted.previous.map(|replaced| (replaced, granted.channel));
                None
            }
            Err(status) => {
                self.refuse_setup(header, credits, session_id, status, &proof, now, out);
                Some(status)
            }
        };
        self.encrypt_like(encrypted, out, start);
        match (refused, previous) {
            (Some(status), _) => self.logon_failed(status, out, start),
            (None, Some((replaced, channel))) if replaced.is_long() => {
                Verdict::Job(self.end_first(replaced, &channel.session, out.split_off(start)))
            }
            (None, Some((replaced, channel))) => {
                let (user, answer) = (channel.session.token(), out.split_off(start));
                send_after_endings(&self.server, &self.peer, &user, replaced.elsewhere, answer);
                Verdict::Go
            }
            (None, None) => Verdict::Go,
        }
    }

    fn end_first(&self, replaced: Replaced, session: &Session, answer: Vec<u8>) -> Box<EndFirst> {
        let (server, peer) = (self.server.clone(), self.peer.clone());
        Box::new(EndFirst { replaced, server, peer, user: session.token(), answer })
    }

    /// MORE_PROCESSING_REQUIRED.
    fn ask_for_more(
        &mut self,
        header: &Header,
        credits: u16,
        session_id: u64,
        token: &[u8],
        proof: &Proof,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let status = NtStatus::MORE_PROCESSING_REQUIRED;
        let reply = self.respond(header, credits, session_id, status, out, |out, _| {
            put_session_setup_response(out, 0, token);
        });
        let signed = sign(proof, None, header, &reply, out);
        if matches!(proof, Proof::Session(_)) && !signed {
            // The client would refuse this answer without a signature, and there is none to be had for its MessageId.
            out.truncate(start);
            self.setups.remove(&session_id);
            tracing::warn!(client = %self.peer.address, message_id = header.message_id,
                "a connection is not bound: its MessageId was used with this AES-GMAC key before");
            let reply = self.respond_error(header, credits, NtStatus::NOT_SUPPORTED, out);
            out[reply.base + offset::FLAGS] |= flags::SIGNED as u8;
        } else if let Some(setup) = self.setups.get_mut(&session_id) {
            crypto::extend_preauth(&mut setup.preauth, &out[reply.base..]);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn refuse_setup(
        &mut self,
        header: &Header,
        credits: u16,
        session_id: u64,
        status: NtStatus,
        proof: &Proof,
        now: Instant,
        out: &mut Vec<u8>,
    ) {
        let reply = self.respond(header, credits, session_id, status, out, |out, _| put_error(out, &[], 0));
        sign(proof, None, header, &reply, out);
        if self.setups.get(&session_id).is_some_and(|s| s.belongs_to(proof))
            && let Some(Setup { kind: Kind::Reauthenticate(channel), .. }) = self.setups.remove(&session_id)
        {
            // [MS-SMB2] 3.3.5.5.3: a failed authentication ends the session.
            match self.server.take_session_down(&channel.session, false, now) {
                Some(ending) if ending.is_long() => {
                    let replaced = Replaced { ending: Some(ending), scope: CommitScope::begin(), elsewhere: None };
                    self.peer.run(self.end_first(replaced, &channel.session, Vec::new()));
                }
                Some(ending) => ending.finish(&CommitScope::begin()),
                None => {}
            }
        }
    }

    /// What the request proves, [MS-SMB2] 3.3.5.2.4. ACCESS_DENIED: it claims to be of a session of this connection, and is
    /// not. Sessions of other connections are looked for only by a signed request to bind one.
    fn prove_setup(
        &self,
        header: &Header,
        message: &mut [u8],
        encrypted: Option<&Arc<Session>>,
    ) -> Result<Proof, NtStatus> {
        if let Some(channel) = self.peer.channel(header.session_id) {
            let proof = match encrypted {
                Some(session) => (session.id == header.session_id).then_some(Proof::Encrypted),
                None => prove_channel(&channel, header, message),
            };
            if proof.is_none()
                && let Some(left_out) = self.server.trees.admit_line(Line::ForeignSetup)
            {
                tracing::warn!(client = %self.peer.address, user = %channel.session.token().user_name, left_out,
                    "a session setup that is not the session's own is refused");
            }
            return proof.ok_or(NtStatus::ACCESS_DENIED);
        }
        let binds = SessionSetupRequest::parse(message).is_ok_and(|r| r.flags & SESSION_FLAG_BINDING != 0);
        if !binds || !header.is(flags::SIGNED) || encrypted.is_some() {
            return Ok(Proof::Nothing);
        }
        Ok(self
            .server
            .decoys
            .verify(self.server.session(header.session_id), message)
            .map_or(Proof::Nothing, Proof::Session))
    }

    /// Why this connection cannot carry a channel of `session`.
    fn mismatch(&self, session: &Session) -> Option<NtStatus> {
        let n = self.peer.negotiated.get()?;
        // GMAC keys are for GMAC only: one key under two algorithms is what must not be.
        let gmac = |a| a == SigningAlgorithm::AesGmac;
        match (gmac(session.signing_algorithm), gmac(n.signing)) {
            (true, false) => return Some(NtStatus(REQUEST_OUT_OF_SEQUENCE)),
            (false, true) => return Some(NtStatus::NOT_SUPPORTED),
            _ => {}
        }
        (session.dialect != n.dialect || session.cipher != n.cipher).then_some(NtStatus::INVALID_PARAMETER)
    }

    /// Makes sure that `setups` has the authentication that this request continues or begins.
    fn find_setup(&mut self, incoming: &Incoming<'_>, session_id: &mut u64) -> Result<(), NtStatus> {
        let n = self.peer.negotiated.get().ok_or(NtStatus::INVALID_PARAMETER)?;
        let config = &self.server.trees.config;
        if config.policy.requires_encryption() && n.cipher.is_none() {
            if let Some(left_out) = self.server.trees.admit_line(Line::CannotEncrypt) {
                tracing::warn!(client = %self.peer.address, dialect = ?n.dialect, setting = "encryption_required",
                    left_out, "a client that cannot encrypt is refused");
            }
            return Err(NtStatus::ACCESS_DENIED);
        }
        let (kind, reserved) = if incoming.binds() {
            let session = self.may_bind(incoming.header, incoming.proof)?;
            if self.setups.contains_key(session_id) {
                return Ok(());
            }
            (Kind::Bind(session), None)
        } else if *session_id == 0 {
            if self.peer.channels.read().len() + self.setups.len() >= config.limits.sessions_per_connection_max {
                let value = config.limits.sessions_per_connection_max;
                let met = Met { limit: "sessions_per_connection_max", value };
                self.server.tell_limit(met, self.peer.ip, "", "a logon is refused");
                return Err(NtStatus::INSUFFICIENT_RESOURCES);
            }
            (Kind::New, None)
        } else if let Some(channel) = self.peer.channel(*session_id) {
            if channel.session.requires_protection() && !incoming.proof.holds_session() {
                // Nobody else may take the session over, or end it.
                self.tell_unprotected(&channel.session);
                return Err(NtStatus::ACCESS_DENIED);
            }
            if self.setups.contains_key(session_id) {
                return Ok(());
            }
            (Kind::Reauthenticate(channel), None)
        } else {
            return match self.setups.get(session_id).map(|s| &s.kind) {
                Some(Kind::New) => Ok(()),
                // What it was for is gone.
                Some(Kind::Reauthenticate(_)) => {
                    self.setups.remove(session_id);
                    Err(NtStatus::USER_SESSION_DELETED)
                }
                Some(Kind::Bind(_)) | None => Err(NtStatus::USER_SESSION_DELETED),
            };
        };
        let (ip, peer_id, address) = (self.peer.ip, self.peer.id, &self.peer.address);
        if let Err(met) = self.server.admission.begin_setup(&config.limits, (ip, peer_id), self.setups.len()) {
            self.server.tell_limit(met, ip, "", "a logon is refused");
            tracing::debug!(client = %address, "refused");
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        let mut permit = Permit { server: self.server.clone(), ip, peer_id, reserved };
        if let Kind::New = kind {
            *session_id = self.server.reserve_session_id();
            permit.reserved = Some(*session_id);
        }
        let acceptor = Acceptor::new(config.users.clone(), config.identity.clone(), config.auth.clone());
        let setup = Setup { acceptor, preauth: self.preauth, kind, begun: incoming.now, _permit: permit };
        self.setups.insert(*session_id, setup);
        Ok(())
    }

    /// The session to bind, after the checks of [MS-SMB2] 3.3.5.5 for SMB2_SESSION_FLAG_BINDING. Who has not proved that it
    /// holds the session's key gets the same answer for every id.
    fn may_bind(&self, header: &Header, proof: &Proof) -> Result<Arc<Session>, NtStatus> {
        let n = self.negotiated()?;
        if header.session_id == 0 {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        if self.peer.channel(header.session_id).is_some() {
            return Err(NtStatus::REQUEST_NOT_ACCEPTED);
        }
        let session = match proof {
            Proof::Session(session) => Some(session),
            _ => None,
        };
        let mismatch = session.and_then(|s| self.mismatch(s));
        if let Some(status @ (NtStatus::NOT_SUPPORTED | NtStatus(REQUEST_OUT_OF_SEQUENCE))) = mismatch {
            return Err(status);
        }
        if !n.dialect.is_smb3() || !self.server.trees.config.policy.allows_multichannel() {
            return Err(NtStatus::REQUEST_NOT_ACCEPTED);
        }
        if !header.is(flags::SIGNED) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let session = session.ok_or(NtStatus::USER_SESSION_DELETED)?;
        if let Some(status) = mismatch {
            return Err(status);
        }
        match session.state() {
            SessionState::Valid => {}
            SessionState::Expired => return Err(NtStatus::NETWORK_SESSION_EXPIRED),
            SessionState::Deleted => return Err(NtStatus::USER_SESSION_DELETED),
        }
        Ok(session.clone())
    }

    /// One step of the authentication, [MS-SMB2] 3.3.5.5.3.
    fn advance(&mut self, incoming: &Incoming<'_>, session_id: u64) -> Result<Answer, NtStatus> {
        let mut setup = self.setups.remove(&session_id).ok_or(NtStatus::USER_SESSION_DELETED)?;
        crypto::extend_preauth(&mut setup.preauth, incoming.message);
        let server = self.server.clone();
        let _unchanged = server.accounts.read();
        let wall = self.server.trees.time().wall;
        let step = setup.acceptor.step(incoming.request.security_buffer, wall, self.server.trees.random());
        match self.throttle_logon(&mut setup, step, incoming.now) {
            Err(status) => {
                self.attempted = setup.acceptor.attempted_user().unwrap_or_default().to_string();
                // The caller ends what this setup was for.
                self.setups.insert(session_id, setup);
                Err(status)
            }
            Ok(Step::Continue(token)) => {
                self.setups.insert(session_id, setup);
                Ok(Answer::More(token))
            }
            Ok(Step::Done { reply, logon }) => {
                self.note_clock(&logon, incoming.now);
                let mut granted = self.authenticated(incoming, session_id, setup, logon)?;
                granted.flags |= if granted.channel.session.encrypt_data { session_flags::ENCRYPT_DATA } else { 0 };
                Ok(Answer::Done { granted, token: reply })
            }
        }
    }

    /// The client has proved to be the user of `logon`: what its setup was for is done.
    fn authenticated(
        &mut self,
        incoming: &Incoming<'_>,
        session_id: u64,
        setup: Setup,
        logon: Logon,
    ) -> Result<Granted, NtStatus> {
        match &setup.kind {
            Kind::New => self.new_session(incoming, session_id, logon.token, &logon.session_key, &setup.preauth),
            Kind::Reauthenticate(channel) => {
                let session = &channel.session;
                if session.token().user != logon.token.user {
                    // [MS-SMB2] 3.3.5.5.3 leaves Session.SecurityContext as it was. The client would go on as a user that
                    // it did not ask for; so it is refused. The session stays: its own client asked, and its user's files
                    // are not to be closed for that.
                    tracing::warn!(client = %self.peer.address, user = %session.token().user_name,
                        other = %logon.token.user_name, "a session is not re-authenticated as another user");
                    return Err(NtStatus::ACCESS_DENIED);
                }
                *session.tables.user.write() = logon.token;
                session.renew(incoming.now);
                Ok(Granted::channel(channel.clone()))
            }
            Kind::Bind(session) => {
                if session.token().user != logon.token.user {
                    return Err(NtStatus::ACCESS_DENIED);
                }
                self.may_take_connection(&logon.token)?;
                let key = signing_key(self.negotiated()?, &logon.session_key, &setup.preauth);
                Ok(Granted::channel(self.add_channel(session, key)?))
            }
        }
    }

    /// The last connections are for administrators, whether a session is new or has others.
    fn may_take_connection(&self, user: &Token) -> Result<(), NtStatus> {
        let limits = &self.server.trees.config.limits;
        self.server.admission.bind(limits, self.peer.id, user.is_administrator()).map_err(|met| {
            self.server.tell_limit(met, self.peer.ip, &user.user_name, "a connection is not bound");
            NtStatus::INSUFFICIENT_RESOURCES
        })
    }

    /// Forgets logons that were begun too long ago.
    pub fn expire_setups(&mut self, now: Instant) {
        let timeout = self.server.trees.config.limits.setup_timeout;
        self.setups.retain(|_, s| now.saturating_duration_since(s.begun) < timeout);
    }

    /// The log names who does not sign or encrypt though it has to, and why it has to.
    fn tell_unprotected(&self, session: &Session) {
        crate::engine::chain::tell_unprotected(&self.server, &self.peer, session);
    }

    fn negotiated(&self) -> Result<&Negotiated, NtStatus> {
        self.peer.negotiated.get().ok_or(NtStatus::INVALID_PARAMETER)
    }

    fn new_session(
        &mut self,
        incoming: &Incoming<'_>,
        session_id: u64,
        user: Arc<Token>,
        session_key: &[u8; 16],
        preauth: &[u8; 64],
    ) -> Result<Granted, NtStatus> {
        let n = self.negotiated()?;
        let config = &self.server.trees.config;
        let anonymous = user.is_anonymous();
        let client_requires =
            (u16::from(incoming.request.security_mode) | n.client_security_mode) & security_mode::SIGNING_REQUIRED != 0;
        let keys = match n.cipher {
            Some(cipher) if !anonymous => Some(cipher_keys(n, cipher, session_key, preauth)),
            _ => None,
        };
        let encrypt_data = config.policy.requires_encryption() && keys.is_some();
        let session = Arc::new(Session::new(
            n,
            &self.server.trees.grants,
            NewSession {
                id: session_id,
                serial: self.server.trees.next_id(),
                ip: self.peer.ip,
                message_id: incoming.header.message_id,
                user,
                anonymous,
                signing_required: !anonymous && (config.policy.requires_signing() || client_requires),
                encrypt_data,
                keys,
                signing: signing_key(n, session_key, preauth),
                time: Time { now: incoming.now, wall: self.server.trees.time().wall },
            },
        ));
        if n.dialect != Dialect::Smb202 && n.client_guid != 0 && self.server.has_other_dialect(&session) {
            // [MS-SMB2] 3.3.5.5.3: one client, one dialect.
            return Err(NtStatus::USER_SESSION_DELETED);
        }
        self.server.add_session(&session, self.peer.id)?;
        let channel = self.add_channel(&session, signing_key(self.negotiated()?, session_key, preauth))?;
        let previous = incoming.request.previous_session_id;
        let previous = match previous {
            0 => None,
            id if id == session_id || anonymous => None,
            id => Some(self.replace_previous(id, &session, incoming.now)),
        };
        count(&self.server.trees.metrics.logons, 1);
        tracing::info!(client = %self.peer.address, user = %session.token().user_name,
            session = %format_args!("{session_id:x}"), "logged on");
        Ok(Granted { channel, flags: if anonymous { session_flags::IS_NULL } else { 0 }, previous })
    }

    /// PreviousSessionId, [MS-SMB2] 3.3.5.5.3: the same user's old session gives way; its durable handles stay. What is left
    /// to do of that, where it is much, or the session may be another node's.
    fn replace_previous(&self, previous: u64, session: &Session, now: Instant) -> Replaced {
        let scope = CommitScope::begin();
        let Some(old) = self.server.session(previous).filter(|old| old.token().user == session.token().user) else {
            return Replaced { ending: None, scope, elsewhere: Some(previous) };
        };
        let mut ending = self.server.take_session_down(&old, true, now);
        if let Some(short) = ending.take_if(|ending| !ending.is_long()) {
            short.finish(&scope);
        }
        Replaced { ending, scope, elsewhere: None }
    }

    /// # Errors
    /// INSUFFICIENT_RESOURCES, or USER_SESSION_DELETED where the session has ended meanwhile.
    fn add_channel(&self, session: &Arc<Session>, signing: SigningKey) -> Result<Arc<Channel>, NtStatus> {
        let channel = Arc::new(Channel { session: session.clone(), signing, peer: Arc::downgrade(&self.peer) });
        let user = session.token();
        let mut channels = session.channels.lock();
        if session.state() == SessionState::Deleted {
            return Err(NtStatus::USER_SESSION_DELETED);
        }
        let value = self.server.trees.config.limits.channels_per_session_max;
        if channels.len() >= value {
            let met = Met { limit: "channels_per_session_max", value };
            self.server.tell_limit(met, self.peer.ip, &user.user_name, "a connection is not bound");
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        channels.push(channel.clone());
        self.peer.channels.write().insert(session.id, channel.clone());
        drop(channels);
        self.server.client_peers.note(session.client, &self.peer);
        self.server.admission.set_logged_on(self.peer.id, true);
        Ok(channel)
    }

    /// A request that came encrypted is answered encrypted.
    fn encrypt_like(&self, encrypted: Option<&Arc<Session>>, out: &mut Vec<u8>, start: usize) {
        let Some(session) = encrypted else { return };
        let plain = out.split_off(start + 4);
        out.resize(start + 4 + arden_wire::smb2::transform::TRANSFORM_BYTES, 0);
        out.extend_from_slice(&plain);
        crate::sessions::frame::seal_frame(session, &mut out[start + 4..]);
        crate::sessions::frame::put_frame_length(out, start);
    }
}

/// Signs the answer as [`answer_signer`] says. A request that was signed has an answer with the flag, whether or not
/// there is a key. False: it is not signed.
fn sign(proof: &Proof, granted: Option<&Arc<Channel>>, header: &Header, reply: &Reply, out: &mut [u8]) -> bool {
    let signer = answer_signer(proof, granted, header);
    if signer.is_some() || header.is(flags::SIGNED) && !matches!(proof, Proof::Encrypted) {
        out[reply.base + offset::FLAGS] |= flags::SIGNED as u8;
    }
    if let Some(signer) = &signer {
        signer.key().sign_in_place(&mut out[reply.base..]);
    }
    signer.is_some()
}

fn signing_key(n: &Negotiated, session_key: &[u8; 16], preauth: &[u8; 64]) -> SigningKey {
    if !n.dialect.is_smb3() {
        return SigningKey::new(n.signing, session_key);
    }
    let mut key = [0; 16];
    crypto::derive(session_key, Purpose::Signing, n.dialect, preauth, &mut key);
    SigningKey::new(n.signing, &key)
}

/// Encryption (server to client) and decryption keys.
fn cipher_keys(n: &Negotiated, cipher: Cipher, session_key: &[u8; 16], preauth: &[u8; 64]) -> (CipherKey, CipherKey) {
    let len = match cipher {
        Cipher::Aes128Ccm | Cipher::Aes128Gcm => 16,
        Cipher::Aes256Ccm | Cipher::Aes256Gcm => 32,
    };
    let key = |purpose| {
        let mut key = [0; 32];
        crypto::derive(session_key, purpose, n.dialect, preauth, &mut key[..len]);
        CipherKey::new(cipher, &key[..len])
    };
    (key(Purpose::Encryption), key(Purpose::Decryption))
}
