//! NEGOTIATE, SESSION_SETUP with NTLM, TREE_CONNECT.

use std::{
    net::TcpStream,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use smb2::{
    auth::ntlm::{NtlmAuthenticator, NtlmCredentials},
    crypto::{
        kdf::{PreauthHasher, derive_session_keys},
        signing::SigningAlgorithm,
    },
    msg::{
        negotiate::{
            CIPHER_AES_128_GCM, HASH_ALGORITHM_SHA512, NegotiateContext, NegotiateRequest, NegotiateResponse,
            SIGNING_AES_CMAC, SIGNING_AES_GMAC, SIGNING_HMAC_SHA256,
        },
        session_setup::{SessionSetupRequest, SessionSetupRequestFlags, SessionSetupResponse},
        tree_connect::{TreeConnectRequest, TreeConnectRequestFlags, TreeConnectResponse},
    },
    pack::{Guid, ReadCursor, Unpack},
    types::{
        Command, Dialect,
        flags::{Capabilities, SecurityMode},
    },
};

use super::{
    connection::{Call, Client, Protection, Target, Terms},
    keys::{Sealer, Signer, TRANSFORM_BYTES},
    requests::status_name,
};
use crate::{Result, fail};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Flags of the share, [MS-SMB2] 2.2.10, and of the session, [MS-SMB2] 2.2.6.
const SHAREFLAG_ENCRYPT_DATA: u32 = 0x8000;
const CAP_CONTINUOUS_AVAILABILITY: u32 = 0x10;
const SESSION_FLAG_ENCRYPT_DATA: u16 = 4;
/// The number of the next connection. Each gets its own ClientGuid, except one that joins a session.
static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);
const MORE_PROCESSING_REQUIRED: u32 = 0xC000_0016;

impl Client {
    fn dial(target: &Target) -> Result<Client> {
        let socket = match TcpStream::connect_timeout(&target.address, CONNECT_TIMEOUT) {
            Ok(socket) => socket,
            Err(e) => fail!("{} cannot be reached: {e}", target.address),
        };
        socket.set_nodelay(true)?;
        Ok(Client {
            socket,
            signer: None,
            sealer: None,
            session_id: 0,
            tree_id: 0,
            next_id: 0,
            credits: 1,
            out: Vec::new(),
            input: Vec::new(),
            filled: 0,
            used: 0,
            received: 0,
            terms: Terms::default(),
            keys: Default::default(),
            joining: false,
            client_guid: u128::from(std::process::id()) << 64 | u128::from(NEXT_CLIENT.fetch_add(1, Relaxed)),
        })
    }

    /// Connects to the same session as another channel, which can use its open files, [MS-SMB2] 3.2.4.1.7.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub fn join(&self, target: &Target, protection: Protection, channel: u16) -> Result<Client> {
        let mut client = Client::dial(target)?;
        client.client_guid = self.client_guid;
        let mut preauth = PreauthHasher::new();
        let signing = client.negotiate(protection, &mut preauth)?;
        client.session_id = self.session_id;
        client.keys = self.keys.clone();
        client.signer = Some(Signer::new(signing, &self.keys[0]));
        client.joining = true;
        client.log_on(target, signing, preauth)?;
        client.joining = false;
        client.tree_id = self.tree_id;
        client.terms = self.terms;
        client.protect(protection, channel);
        Ok(client)
    }

    /// Signs or encrypts all further messages, or does neither.
    fn protect(&mut self, protection: Protection, channel: u16) {
        let seal = protection == Protection::Encrypt || self.terms.encryption_required;
        if seal {
            self.sealer = Some(Sealer::new(&self.keys[1], &self.keys[2], self.session_id, channel));
        } else if protection == Protection::Plain && !self.terms.signing_required {
            self.signer = None;
        }
        (self.terms.sealed, self.terms.signed) = (seal, self.signer.is_some() && !seal);
    }

    /// Connects to the server, logs on, and connects to the share.
    ///
    /// # Errors
    /// The server cannot be reached, does not support SMB 3.1.1, or refuses the logon or the share.
    pub fn connect(target: &Target, protection: Protection) -> Result<Client> {
        let mut client = Client::dial(target)?;
        let mut preauth = PreauthHasher::new();
        let signing = client.negotiate(protection, &mut preauth)?;
        client.log_on(target, signing, preauth)?;
        // The tree connect of 3.1.1 is signed with any protection, [MS-SMB2] 3.2.4.2.4.
        if protection == Protection::Encrypt || client.terms.encryption_required {
            client.protect(Protection::Encrypt, 0);
        }
        let path = format!(r"\\{}\{}", target.address.ip(), target.share);
        let body = TreeConnectRequest { flags: TreeConnectRequestFlags(0), path };
        client.queue(&[Call { command: Command::TreeConnect, body: &body, charge: 1 }]);
        let (status, tree_id, answer) = client.exchange_for_tree()?;
        if status != 0 {
            fail!("share {}: {}", target.share, status_name(status));
        }
        client.tree_id = tree_id;
        let answer = TreeConnectResponse::unpack(&mut ReadCursor::new(&answer))?;
        client.terms.continuously_available = answer.capabilities.bits() & CAP_CONTINUOUS_AVAILABILITY != 0;
        client.terms.encryption_required |= answer.share_flags.bits() & SHAREFLAG_ENCRYPT_DATA != 0;
        if client.sealer.is_none() {
            client.protect(protection, 0);
        }
        Ok(client)
    }

    fn exchange_for_tree(&mut self) -> Result<(u32, u32, Vec<u8>)> {
        self.flush()?;
        let (mut status, mut body) = (0, Vec::new());
        self.receive(|reply| (status, body) = (reply.status, reply.body.to_vec()))?;
        // The TreeId is in the header of the frame that was used last, 28 bytes before the header's end.
        let frame = &self.input[..self.used];
        let at = if self.sealer.is_some() { 4 + TRANSFORM_BYTES } else { 4 };
        let id = frame[at + 36..at + 40].try_into().expect("four bytes");
        Ok((status, u32::from_le_bytes(id), body))
    }

    /// Sends the queued request, hashes it and the answer, and returns status, session id and answer.
    fn hashed(&mut self, preauth: &mut PreauthHasher, hash_success: bool) -> Result<(u32, u64, Vec<u8>)> {
        preauth.update(&self.out[4..]);
        self.flush()?;
        let mut status = 0;
        self.receive(|reply| status = reply.status)?;
        let raw = self.input[4..self.used].to_vec();
        if status != 0 || hash_success {
            preauth.update(&raw);
        }
        let session_id = u64::from_le_bytes(raw[40..48].try_into().expect("eight bytes"));
        Ok((status, session_id, raw))
    }

    fn negotiate(&mut self, protection: Protection, preauth: &mut PreauthHasher) -> Result<SigningAlgorithm> {
        let wanted = match protection {
            Protection::Sign(SigningAlgorithm::HmacSha256) => SIGNING_HMAC_SHA256,
            Protection::Sign(SigningAlgorithm::AesCmac) => SIGNING_AES_CMAC,
            _ => SIGNING_AES_GMAC,
        };
        let body = NegotiateRequest {
            security_mode: SecurityMode::new(SecurityMode::SIGNING_ENABLED),
            capabilities: Capabilities::new(
                Capabilities::LEASING
                    | Capabilities::LARGE_MTU
                    | Capabilities::ENCRYPTION
                    | Capabilities::MULTI_CHANNEL
                    | Capabilities::PERSISTENT_HANDLES,
            ),
            client_guid: Guid {
                data1: (self.client_guid >> 64) as u32,
                data2: self.client_guid as u16,
                data3: (self.client_guid >> 16) as u16,
                data4: *b"ardenlab",
            },
            dialects: vec![Dialect::Smb3_1_1],
            negotiate_contexts: vec![
                NegotiateContext::PreauthIntegrity { hash_algorithms: vec![HASH_ALGORITHM_SHA512], salt: vec![7; 32] },
                NegotiateContext::Encryption { ciphers: vec![CIPHER_AES_128_GCM] },
                NegotiateContext::Signing { algorithms: vec![wanted] },
            ],
        };
        self.queue(&[Call { command: Command::Negotiate, body: &body, charge: 1 }]);
        let (status, _, raw) = self.hashed(preauth, true)?;
        if status != 0 {
            fail!("negotiate: status 0x{status:08X}");
        }
        let answer = NegotiateResponse::unpack(&mut ReadCursor::new(&raw[64..]))?;
        if answer.dialect_revision != Dialect::Smb3_1_1 {
            fail!("the server does not speak SMB 3.1.1");
        }
        self.terms.read_bytes_max = answer.max_read_size;
        self.terms.write_bytes_max = answer.max_write_size;
        self.terms.signing_required = answer.security_mode.bits() & SecurityMode::SIGNING_REQUIRED != 0;
        let agreed = answer.negotiate_contexts.iter().any(|c| match c {
            NegotiateContext::Signing { algorithms } => algorithms.contains(&wanted),
            _ => false,
        });
        Ok(match (agreed, wanted) {
            (true, SIGNING_HMAC_SHA256) => SigningAlgorithm::HmacSha256,
            (true, SIGNING_AES_GMAC) => SigningAlgorithm::AesGmac,
            _ => SigningAlgorithm::AesCmac,
        })
    }

    fn log_on(&mut self, target: &Target, signing: SigningAlgorithm, mut preauth: PreauthHasher) -> Result<()> {
        let flags = if self.joining { SessionSetupRequestFlags::BINDING } else { 0 };
        let mut ntlm = NtlmAuthenticator::new(NtlmCredentials {
            username: target.user.clone(),
            password: target.password.clone(),
            domain: String::new(),
        });
        let mut token = ntlm.negotiate();
        for round in 0..2 {
            let body = SessionSetupRequest {
                flags: SessionSetupRequestFlags(flags),
                security_mode: SecurityMode::new(SecurityMode::SIGNING_ENABLED),
                capabilities: Capabilities::default(),
                channel: 0,
                previous_session_id: 0,
                security_buffer: token,
            };
            self.queue(&[Call { command: Command::SessionSetup, body: &body, charge: 1 }]);
            let (status, session_id, raw) = self.hashed(&mut preauth, false)?;
            let expected = if round == 0 { MORE_PROCESSING_REQUIRED } else { 0 };
            if status != expected {
                fail!("logon of {}: {}", target.user, status_name(status));
            }
            self.session_id = session_id;
            let answer = SessionSetupResponse::unpack(&mut ReadCursor::new(&raw[64..]))?;
            self.terms.encryption_required |= answer.session_flags.0 & SESSION_FLAG_ENCRYPT_DATA != 0;
            token = if round == 0 { ntlm.authenticate(&answer.security_buffer)? } else { Vec::new() };
        }
        let Some(session_key) = ntlm.session_key() else { fail!("the logon gave no session key") };
        let keys = derive_session_keys(session_key, Dialect::Smb3_1_1, Some(preauth.value()), 128);
        self.signer = Some(Signer::new(signing, &keys.signing_key));
        if !self.joining {
            self.keys = [keys.signing_key, keys.encryption_key, keys.decryption_key];
        }
        Ok(())
    }
}
