//! NEGOTIATE, SESSION_SETUP and TREE_CONNECT as a client does them.

use std::sync::Arc;

use arden_auth::initiator::Initiator;
use arden_smb::crypto::{self, CipherKey, Purpose, SigningKey};
use arden_wire::{
    NtStatus,
    cursor::Put,
    smb2::{
        Command, Dialect, HEADER_BYTES, flags,
        negotiate::{Cipher, SigningAlgorithm, capability, context},
    },
};

use super::{Client, PASSWORD, Reply, Req, SHARE, SessionKeys, USER, session_setup, tree_connect};

/// What a NEGOTIATE offers.
#[derive(Debug, Clone)]
pub struct Offer {
    pub dialects: Vec<u16>,
    pub mode: u16,
    pub capabilities: u32,
    /// Sent with 3.1.1 only.
    pub contexts: Vec<(u16, Vec<u8>)>,
}

pub const ALL_CAPABILITIES: u32 = capability::DFS
    | capability::LEASING
    | capability::LARGE_MTU
    | capability::MULTI_CHANNEL
    | capability::PERSISTENT_HANDLES
    | capability::DIRECTORY_LEASING
    | capability::ENCRYPTION;

pub fn preauth_context(hashes: &[u16]) -> (u16, Vec<u8>) {
    let mut data = Vec::new();
    data.put_u16(hashes.len() as u16);
    data.put_u16(32);
    hashes.iter().for_each(|h| data.put_u16(*h));
    data.extend_from_slice(&[7; 32]);
    (context::PREAUTH_INTEGRITY, data)
}
/// A context that is a list of ids: encryption, signing.
pub fn list_context(kind: u16, ids: &[u16]) -> (u16, Vec<u8>) {
    let mut data = Vec::new();
    data.put_u16(ids.len() as u16);
    ids.iter().for_each(|i| data.put_u16(*i));
    (kind, data)
}
pub fn encryption_context(ids: &[u16]) -> (u16, Vec<u8>) {
    list_context(context::ENCRYPTION, ids)
}
pub fn signing_context(ids: &[u16]) -> (u16, Vec<u8>) {
    list_context(context::SIGNING, ids)
}

impl Offer {
    /// Every dialect up to this one, and everything that this client can.
    pub fn up_to(dialect: Dialect) -> Offer {
        let all = [0x0202, 0x0210, 0x0300, 0x0302, 0x0311];
        let dialects: Vec<u16> = all.into_iter().filter(|d| *d <= dialect as u16).collect();
        Offer::of(&dialects)
    }
    pub fn of(dialects: &[u16]) -> Offer {
        let contexts = vec![preauth_context(&[1]), encryption_context(&[2, 1]), signing_context(&[2, 1, 0])];
        Offer {
            dialects: dialects.to_vec(),
            mode: 1,
            capabilities: ALL_CAPABILITIES,
            contexts: if dialects.contains(&0x0311) { contexts } else { Vec::new() },
        }
    }
    pub fn contexts(mut self, contexts: &[(u16, Vec<u8>)]) -> Offer {
        self.contexts = contexts.to_vec();
        self
    }

    pub fn req(&self, guid: u128) -> Req {
        let mut b = Vec::new();
        b.put_u16(36);
        b.put_u16(self.dialects.len() as u16);
        b.put_u16(self.mode);
        b.put_u16(0);
        b.put_u32(self.capabilities);
        b.put_u128(guid);
        let at = b.len();
        b.put_u64(0);
        self.dialects.iter().for_each(|d| b.put_u16(*d));
        if self.dialects.contains(&0x0311) {
            b.pad_to(0, 8);
            let start = (HEADER_BYTES + b.len()) as u32;
            b.patch_u32(at, start);
            b.patch_u16(at + 4, self.contexts.len() as u16);
            for (kind, data) in &self.contexts {
                b.pad_to(0, 8);
                b.put_u16(*kind);
                b.put_u16(data.len() as u16);
                b.put_u32(0);
                b.extend_from_slice(data);
            }
        }
        Req::new(Command::Negotiate, b).tree(0).credits(64)
    }
}

/// What a NEGOTIATE response says.
#[derive(Debug, Clone)]
pub struct Negotiated {
    pub dialect: u16,
    pub mode: u16,
    pub capabilities: u32,
    pub guid: u128,
    pub max_transact: u32,
    pub max_read: u32,
    pub max_write: u32,
    pub contexts: Vec<(u16, Vec<u8>)>,
}

impl Negotiated {
    pub fn parse(reply: &Reply) -> Negotiated {
        let count = if reply.u16(4) == 0x0311 { usize::from(reply.u16(6)) } else { 0 };
        let mut at = reply.u32(60) as usize;
        let mut contexts = Vec::new();
        for i in 0..count {
            if i > 0 {
                at = at.next_multiple_of(8);
            }
            let kind = u16::from_le_bytes(reply.message[at..at + 2].try_into().unwrap());
            let len = usize::from(u16::from_le_bytes(reply.message[at + 2..at + 4].try_into().unwrap()));
            contexts.push((kind, reply.message[at + 8..at + 8 + len].to_vec()));
            at += 8 + len;
        }
        Negotiated {
            mode: reply.u16(2),
            dialect: reply.u16(4),
            guid: u128::from_le_bytes(reply.body()[8..24].try_into().unwrap()),
            capabilities: reply.u32(24),
            max_transact: reply.u32(28),
            max_read: reply.u32(32),
            max_write: reply.u32(36),
            contexts,
        }
    }
    pub fn context(&self, kind: u16) -> Option<&[u8]> {
        self.contexts.iter().find(|(k, _)| *k == kind).map(|(_, d)| &d[..])
    }
    /// The one id of an encryption or signing context.
    pub fn chosen(&self, kind: u16) -> Option<u16> {
        self.context(kind).map(|d| {
            assert_eq!(d[..2], [1, 0], "one choice");
            u16::from_le_bytes([d[2], d[3]])
        })
    }
}

/// How to log on.
#[derive(Clone)]
pub struct Logon {
    pub user: String,
    pub password: String,
    /// Security mode of the SESSION_SETUP.
    pub mode: u8,
    pub previous: u64,
    pub spnego: bool,
    /// Anew on this session.
    pub again: bool,
    /// A channel of this session.
    pub bind: Option<SessionKeys>,
    /// Binding requests are signed.
    pub sign_bind: bool,
    /// A wrong signature on binding requests.
    pub spoil: bool,
    /// The second request comes without a signature.
    pub unsigned_second: bool,
}

pub fn logon(user: &str) -> Logon {
    Logon {
        user: user.into(),
        password: PASSWORD.into(),
        mode: 1,
        previous: 0,
        spnego: true,
        again: false,
        bind: None,
        sign_bind: true,
        spoil: false,
        unsigned_second: false,
    }
}

impl Logon {
    pub fn password(mut self, password: &str) -> Logon {
        self.password = password.into();
        self
    }
    pub fn previous(mut self, id: u64) -> Logon {
        self.previous = id;
        self
    }
    pub fn again(mut self) -> Logon {
        self.again = true;
        self
    }
    pub fn bind(mut self, session: &SessionKeys) -> Logon {
        self.bind = Some(session.clone());
        self
    }
    pub fn unsigned(mut self) -> Logon {
        self.sign_bind = false;
        self
    }
    pub fn second_unsigned(mut self) -> Logon {
        self.unsigned_second = true;
        self
    }
    pub fn raw(mut self) -> Logon {
        self.spnego = false;
        self
    }
    pub fn requiring_signing(mut self) -> Logon {
        self.mode = 3;
        self
    }
}

impl Client {
    pub fn try_negotiate(&mut self, offer: &Offer) -> Result<Negotiated, NtStatus> {
        let req = offer.req(self.guid);
        let id = self.send(&req);
        let request = self.sent.last().unwrap().clone();
        let reply = self.receive(id).result()?;
        let n = Negotiated::parse(&reply);
        self.dialect = Dialect::from_u16(n.dialect).unwrap();
        let old_cipher = self.dialect.is_smb3() && n.capabilities & capability::ENCRYPTION != 0;
        self.cipher = match self.dialect {
            Dialect::Smb311 => n.chosen(context::ENCRYPTION).and_then(Cipher::from_u16),
            _ => old_cipher.then_some(Cipher::Aes128Ccm),
        };
        self.signing = match n.chosen(context::SIGNING) {
            Some(id) => SigningAlgorithm::from_u16(id).unwrap(),
            None if self.dialect.is_smb3() => SigningAlgorithm::AesCmac,
            None => SigningAlgorithm::HmacSha256,
        };
        crypto::extend_preauth(&mut self.preauth, &request);
        crypto::extend_preauth(&mut self.preauth, &reply.message);
        Ok(n)
    }

    #[track_caller]
    pub fn negotiate(&mut self, offer: &Offer) -> Negotiated {
        self.try_negotiate(offer).expect("a negotiated connection")
    }

    /// Logs on; the session is this client's from then on.
    pub fn try_logon(&mut self, how: &Logon) -> Result<SessionKeys, NtStatus> {
        let mut initiator = Initiator::new(&how.user, "LAB", &how.password);
        initiator.spnego = how.spnego;
        let mut preauth = self.preauth;
        let binding = u8::from(how.bind.is_some());
        let before = self.session.clone();
        let mut id = match (&how.bind, how.again) {
            (Some(session), _) => session.id,
            (None, true) => before.as_ref().expect("a session").id,
            (None, false) => 0,
        };
        let mut token = initiator.first();
        let mut second = false;
        let mut random = [0; 24];
        random[..16].copy_from_slice(&(self.guid ^ u128::from(self.next_id)).to_le_bytes());
        loop {
            let mut req = session_setup(binding, how.mode, how.previous, &token).session(id);
            req.sign = Some(how.again && self.sign && !self.encrypt || how.bind.is_some() && how.sign_bind);
            if std::mem::replace(&mut second, true) && how.unsigned_second {
                req.sign = Some(false);
            }
            if let Some(session) = &how.bind {
                self.session = Some(SessionKeys { signing: session.session_signing.clone(), ..session.clone() });
            } else if !how.again {
                self.session = None;
            }
            let (message_id, mut message) = self.encode(&req, false);
            if how.spoil {
                message[50] ^= 1;
            }
            let wire = if self.encrypt && how.again { self.seal(&message) } else { message.clone() };
            self.send_bytes(wire);
            let reply = match self.poll(message_id) {
                Some(reply) => reply,
                None => return Err(NtStatus::CONNECTION_RESET),
            };
            if !matches!(reply.status(), NtStatus::SUCCESS | NtStatus::MORE_PROCESSING_REQUIRED) {
                self.session = before;
                return Err(reply.status());
            }
            crypto::extend_preauth(&mut preauth, &message);
            let server_token = reply.slice(reply.u16(4).into(), reply.u16(6).into()).to_vec();
            id = reply.header.session_id;
            if reply.status() == NtStatus::SUCCESS {
                let key = initiator.verify(&server_token)?;
                return Ok(self.logged_on(how, before, &reply, key, &preauth));
            }
            crypto::extend_preauth(&mut preauth, &reply.message);
            token = initiator.second(&server_token, random)?;
        }
    }

    fn logged_on(
        &mut self,
        how: &Logon,
        before: Option<SessionKeys>,
        reply: &Reply,
        session_key: [u8; 16],
        preauth: &[u8; 64],
    ) -> SessionKeys {
        let signing = Arc::new(self.signing_key(&session_key, preauth));
        let setup_flags = reply.u16(2);
        let session = match (&how.bind, how.again, before) {
            (Some(main), _, _) => SessionKeys { signing, ..main.clone() },
            (None, true, Some(before)) => before,
            _ => SessionKeys {
                id: reply.header.session_id,
                signing: signing.clone(),
                session_signing: signing,
                ciphers: self.cipher.map(|c| Arc::new(self.cipher_keys(c, &session_key, preauth))),
                flags: setup_flags,
            },
        };
        if !reply.encrypted {
            assert!(reply.header.is(flags::SIGNED), "the last SESSION_SETUP response is signed");
            let mut message = reply.message.clone();
            assert!(session.signing.verify(&mut message), "the last SESSION_SETUP response's signature");
        }
        self.session = Some(session.clone());
        session
    }

    fn signing_key(&self, session_key: &[u8; 16], preauth: &[u8; 64]) -> SigningKey {
        if !self.dialect.is_smb3() {
            return SigningKey::new(self.signing, session_key);
        }
        let mut key = [0; 16];
        crypto::derive(session_key, Purpose::Signing, self.dialect, preauth, &mut key);
        SigningKey::new(self.signing, &key)
    }

    fn cipher_keys(&self, cipher: Cipher, session_key: &[u8; 16], preauth: &[u8; 64]) -> (CipherKey, CipherKey) {
        let len = if matches!(cipher, Cipher::Aes256Ccm | Cipher::Aes256Gcm) { 32 } else { 16 };
        let key = |purpose| {
            let mut key = [0; 32];
            crypto::derive(session_key, purpose, self.dialect, preauth, &mut key[..len]);
            CipherKey::new(cipher, &key[..len])
        };
        (key(Purpose::Decryption), key(Purpose::Encryption))
    }

    #[track_caller]
    pub fn logon(&mut self, how: &Logon) -> SessionKeys {
        self.try_logon(how).expect("a session")
    }

    /// Negotiates, logs on, connects to the share.
    #[track_caller]
    pub fn begin(&mut self, dialect: Dialect) -> &mut Client {
        self.negotiate(&Offer::up_to(dialect));
        self.logon(&logon(USER));
        self.connect(SHARE);
        self
    }

    pub fn try_connect(&mut self, share: &str) -> Result<Reply, NtStatus> {
        let reply = self.call(&tree_connect(&format!("\\\\LAB\\{share}"))).result()?;
        self.tree = reply.header.tree_id();
        Ok(reply)
    }

    #[track_caller]
    pub fn connect(&mut self, share: &str) -> Reply {
        self.try_connect(share).expect("a tree connect")
    }
    pub fn session_id(&self) -> u64 {
        self.session.as_ref().map_or(0, |s| s.id)
    }
}
