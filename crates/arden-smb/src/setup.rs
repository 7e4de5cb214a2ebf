//! SESSION_SETUP: new sessions, reauthentication and binding (Multichannel), [MS-SMB2] 3.3.5.5.

use std::{sync::Arc, time::Instant};

use arden_auth::{Acceptor, Step, Token};
use arden_wire::{
    NtStatus,
    smb2::{
        Dialect, Header, flags,
        negotiate::{Cipher, SigningAlgorithm, capability, security_mode},
        session::{SESSION_FLAG_BINDING, SessionSetupRequest, put_session_setup_response, session_flags},
    },
};

use crate::{
    conn::{Connection, Verdict},
    crypto::{self, CipherKey, Purpose, SigningKey},
    metrics::count,
    model::{Channel, Negotiated, NewSession, Session, SessionState},
    time::Time,
};

const REQUEST_OUT_OF_SEQUENCE: u32 = 0xC000_042A;

/// An authentication in progress on this connection.
pub(crate) struct Setup {
    pub acceptor: Acceptor,
    /// PreauthSession.PreauthIntegrityHashValue, or the new session's.
    preauth: [u8; 64],
    pub kind: Kind,
}

pub(crate) enum Kind {
    New,
    Reauthenticate(Arc<Channel>),
    Bind(Arc<Session>),
}

/// How one SESSION_SETUP ends.
enum Answer {
    More(Vec<u8>),
    Done { channel: Arc<Channel>, flags: u16, token: Vec<u8> },
}

struct Incoming<'a> {
    header: &'a Header,
    message: &'a [u8],
    request: SessionSetupRequest<'a>,
    now: Instant,
    encrypted: bool,
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
        let mut session_id = header.session_id;
        let result = self.check_signature(header, message, encrypted).and_then(|()| {
            let request = SessionSetupRequest::parse(message).map_err(|_| NtStatus::INVALID_PARAMETER)?;
            let incoming = Incoming { header, message, request, now, encrypted: encrypted.is_some() };
            self.find_setup(&incoming, &mut session_id)?;
            self.advance(&incoming, session_id)
        });
        match result {
            Ok(Answer::More(token)) => {
                let start = out.len();
                let status = NtStatus::MORE_PROCESSING_REQUIRED;
                let reply = self.respond(header, credits, session_id, status, out, |out, _| {
                    put_session_setup_response(out, 0, &token);
                });
                if let Some(setup) = self.setups.get_mut(&session_id) {
                    let signer = match &setup.kind {
                        Kind::Bind(session) => Some(&session.signing),
                        Kind::Reauthenticate(channel) if header.is(flags::SIGNED) => Some(&channel.signing),
                        _ => None,
                    };
                    if let Some(key) = signer {
                        sign(key, &mut out[reply.base..]);
                    }
                    crypto::extend_preauth(&mut setup.preauth, &out[reply.base..]);
                }
                self.encrypt_like(encrypted, out, start);
                Verdict::Go
            }
            Ok(Answer::Done { channel, flags, token }) => {
                let start = out.len();
                let reply = self.respond(header, credits, session_id, NtStatus::SUCCESS, out, |out, _| {
                    put_session_setup_response(out, flags, &token);
                });
                if !channel.session.anonymous && encrypted.is_none() {
                    sign(&channel.signing, &mut out[reply.base..]);
                }
                self.encrypt_like(encrypted, out, start);
                Verdict::Go
            }
            Err(status) => {
                let failed = self.setups.remove(&session_id);
                let start = out.len();
                let reply = self.respond(header, credits, session_id, status, out, |out, _| {
                    use arden_wire::cursor::Put;
                    out.put_u16(9);
                    out.put_zeros(7);
                });
                if header.is(flags::SIGNED) && encrypted.is_none() {
                    if let Some(channel) = self.peer.channel(session_id) {
                        sign(&channel.signing, &mut out[reply.base..]);
                    } else if let Some(session) = self.server.session(session_id) {
                        sign(&session.signing, &mut out[reply.base..]);
                    } else {
                        out[reply.base + arden_wire::smb2::header::offset::FLAGS] |= flags::SIGNED as u8;
                    }
                }
                self.encrypt_like(encrypted, out, start);
                if let Some(Setup { kind: Kind::Reauthenticate(channel), .. }) = failed {
                    // [MS-SMB2] 3.3.5.5.3: a failed authentication ends the session.
                    self.server.end_session(&channel.session, false, now);
                }
                self.logon_failed(status, out, start)
            }
        }
    }

    /// [MS-SMB2] 3.3.5.2.4, for setups on a session that exists.
    fn check_signature(
        &self,
        header: &Header,
        message: &mut [u8],
        encrypted: Option<&Arc<Session>>,
    ) -> Result<(), NtStatus> {
        if !header.is(flags::SIGNED) || encrypted.is_some() {
            return Ok(());
        }
        let good = if let Some(channel) = self.peer.channel(header.session_id) {
            channel.signing.verify(message)
        } else if let Some(session) = self.server.session(header.session_id) {
            // A dialect or algorithm that differs is reported by `find_setup`, not as a bad signature.
            self.mismatch(&session).is_some() || session.signing.verify(message)
        } else {
            true
        };
        if good { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
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
        let config = &self.server.config;
        if config.policy.requires_encryption() && n.cipher.is_none() {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let binding = incoming.request.flags & SESSION_FLAG_BINDING != 0;
        if binding && *session_id == 0 {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let kind = if binding {
            if let Some(session) = self.server.session(*session_id) {
                let mismatch = self.mismatch(&session);
                if matches!(mismatch, Some(NtStatus::NOT_SUPPORTED | NtStatus(REQUEST_OUT_OF_SEQUENCE))) {
                    return Err(mismatch.unwrap_or(NtStatus::NOT_SUPPORTED));
                }
            }
            if !n.dialect.is_smb3() || !config.policy.allows_multichannel() {
                return Err(NtStatus::REQUEST_NOT_ACCEPTED);
            }
            if self.setups.contains_key(session_id) {
                return Ok(());
            }
            Kind::Bind(self.may_bind(incoming.header)?)
        } else if *session_id == 0 {
            if self.peer.channels.read().len() + self.setups.len() >= config.limits.sessions_per_connection_max {
                tracing::warn!(client = %self.peer.address, limit = config.limits.sessions_per_connection_max,
                    "sessions_per_connection_max reached");
                return Err(NtStatus::INSUFFICIENT_RESOURCES);
            }
            loop {
                *session_id = self.server.new_session_id();
                if !self.setups.contains_key(session_id) {
                    break;
                }
            }
            Kind::New
        } else if self.setups.contains_key(session_id) {
            return Ok(());
        } else {
            let channel = self.peer.channel(*session_id).ok_or(NtStatus::USER_SESSION_DELETED)?;
            let signed = incoming.header.is(flags::SIGNED) || incoming.encrypted;
            if channel.session.signing_required && !signed {
                // Nobody else may take a signed session over.
                return Err(NtStatus::ACCESS_DENIED);
            }
            Kind::Reauthenticate(channel)
        };
        let acceptor = Acceptor::new(config.users.clone(), config.identity.clone(), config.auth.clone());
        self.setups.insert(*session_id, Setup { acceptor, preauth: self.preauth, kind });
        Ok(())
    }

    /// The checks of [MS-SMB2] 3.3.5.5 for SMB2_SESSION_FLAG_BINDING.
    fn may_bind(&self, header: &Header) -> Result<Arc<Session>, NtStatus> {
        let session = self.server.session(header.session_id).ok_or(NtStatus::USER_SESSION_DELETED)?;
        match self.mismatch(&session) {
            Some(NtStatus::INVALID_PARAMETER) | None if !header.is(flags::SIGNED) => {
                return Err(NtStatus::INVALID_PARAMETER);
            }
            Some(status) => return Err(status),
            None => {}
        }
        match session.state() {
            SessionState::Valid => {}
            SessionState::Expired => return Err(NtStatus::NETWORK_SESSION_EXPIRED),
            SessionState::Deleted => return Err(NtStatus::USER_SESSION_DELETED),
        }
        if session.anonymous {
            return Err(NtStatus::NOT_SUPPORTED);
        }
        if self.peer.channel(session.id).is_some() {
            return Err(NtStatus::REQUEST_NOT_ACCEPTED);
        }
        if session.channels.lock().len() >= self.server.config.limits.channels_per_session_max {
            tracing::warn!(client = %self.peer.address, "channels_per_session_max reached");
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        Ok(session)
    }

    /// One step of the authentication, [MS-SMB2] 3.3.5.5.3.
    fn advance(&mut self, incoming: &Incoming<'_>, session_id: u64) -> Result<Answer, NtStatus> {
        let mut setup = self.setups.remove(&session_id).ok_or(NtStatus::USER_SESSION_DELETED)?;
        crypto::extend_preauth(&mut setup.preauth, incoming.message);
        let wall = self.server.time().wall;
        let step = setup.acceptor.step(incoming.request.security_buffer, wall, self.server.random());
        let step = self.throttle_logon(&mut setup, step, incoming.now);
        if step.is_err() {
            self.attempted = setup.acceptor.attempted_user().unwrap_or_default().to_string();
            // The caller ends what this setup was for.
            self.setups.insert(session_id, setup);
            return Err(step.err().unwrap_or(NtStatus::LOGON_FAILURE));
        }
        match step? {
            Step::Continue(token) => {
                self.setups.insert(session_id, setup);
                Ok(Answer::More(token))
            }
            Step::Done { reply, logon: done } => {
                self.note_clock(&done, incoming.now);
                let (channel, flags) = match setup.kind {
                    Kind::New => {
                        self.new_session(incoming, session_id, done.token, &done.session_key, &setup.preauth)?
                    }
                    Kind::Reauthenticate(channel) => {
                        // Another user may take the session over; handles keep the access that they were granted.
                        let session = &channel.session;
                        *session.user.write() = done.token;
                        session.renew(incoming.now);
                        (channel, 0)
                    }
                    Kind::Bind(session) => {
                        if session.token().user != done.token.user {
                            return Err(NtStatus::ACCESS_DENIED);
                        }
                        let key = signing_key(self.negotiated()?, &done.session_key, &setup.preauth);
                        (self.add_channel(&session, key), 0)
                    }
                };
                let flags = flags | if channel.session.encrypt_data { session_flags::ENCRYPT_DATA } else { 0 };
                Ok(Answer::Done { channel, flags, token: reply })
            }
        }
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
    ) -> Result<(Arc<Channel>, u16), NtStatus> {
        let n = self.negotiated()?;
        let config = &self.server.config;
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
            NewSession {
                id: session_id,
                user,
                anonymous,
                signing_required: !anonymous && (config.policy.requires_signing() || client_requires),
                encrypt_data,
                keys,
                signing: signing_key(n, session_key, preauth),
                time: Time { now: incoming.now, wall: self.server.time().wall },
            },
        ));
        if n.dialect != Dialect::Smb202 && self.server.has_other_dialect(&session) {
            // [MS-SMB2] 3.3.5.5.3: one client, one dialect.
            return Err(NtStatus::USER_SESSION_DELETED);
        }
        self.server.add_session(&session)?;
        let channel = self.add_channel(&session, signing_key(self.negotiated()?, session_key, preauth));
        let previous = incoming.request.previous_session_id;
        if previous != 0 && previous != session_id {
            self.replace_previous(previous, &session, incoming.now);
        }
        count(&self.server.metrics.logons, 1);
        tracing::info!(client = %self.peer.address, user = %session.token().user_name, session = session_id, "logged on");
        Ok((channel, if anonymous { session_flags::IS_NULL } else { 0 }))
    }

    /// PreviousSessionId, [MS-SMB2] 3.3.5.5.3: the same user's old session gives way; its durable handles stay.
    fn replace_previous(&self, previous: u64, session: &Session, now: Instant) {
        if let Some(old) = self.server.session(previous) {
            if old.token().user == session.token().user {
                self.server.end_session(&old, true, now);
            }
        }
    }

    fn add_channel(&self, session: &Arc<Session>, signing: SigningKey) -> Arc<Channel> {
        let channel = Arc::new(Channel { session: session.clone(), signing, peer: Arc::downgrade(&self.peer) });
        session.channels.lock().push(channel.clone());
        self.peer.channels.write().insert(session.id, channel.clone());
        channel
    }

    /// A request that came encrypted is answered encrypted.
    fn encrypt_like(&self, encrypted: Option<&Arc<Session>>, out: &mut Vec<u8>, start: usize) {
        let Some(session) = encrypted else { return };
        let plain = out.split_off(start + 4);
        out.resize(start + 4 + arden_wire::smb2::transform::TRANSFORM_BYTES, 0);
        out.extend_from_slice(&plain);
        crate::chain::seal_frame(session, &mut out[start + 4..]);
        crate::chain::put_frame_length(out, start);
    }
}

fn sign(key: &SigningKey, message: &mut [u8]) {
    message[arden_wire::smb2::header::offset::FLAGS] |= flags::SIGNED as u8;
    key.sign_in_place(message);
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

/// Whether the client said that it can encrypt.
pub(crate) fn client_encrypts(n: &Negotiated) -> bool {
    n.cipher.is_some() && (n.dialect == Dialect::Smb311 || n.client_capabilities & capability::ENCRYPTION != 0)
}
