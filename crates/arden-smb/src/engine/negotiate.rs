//! NEGOTIATE, [MS-SMB2] 3.3.5.3 and 3.3.5.4.

use arden_wire::{
    NtStatus,
    cursor::Put,
    smb2::{
        Dialect, Header, flags,
        negotiate::{
            Cipher, HASH_SHA512, NegotiateContext, NegotiateRequest, NegotiateResponse, SigningAlgorithm, Smb1Offer,
            capability, context, parse_smb1_negotiate, security_mode,
        },
    },
};

use crate::{
    engine::conn::{Connection, Verdict},
    model::Negotiated,
    sessions::crypto,
};

/// SMB 2.0.2 knows no larger transfers.
const SMALL_IO_BYTES: u32 = 65536;
const WILDCARD_DIALECT: u16 = 0x02FF;

/// Best first.
const CIPHERS: [Cipher; 4] = [Cipher::Aes128Gcm, Cipher::Aes128Ccm, Cipher::Aes256Gcm, Cipher::Aes256Ccm];

/// There are five.
const DIALECTS_MAX: usize = 64;

/// What the contexts of a 3.1.1 request settle.
struct Contexts {
    cipher: Option<Cipher>,
    signing: SigningAlgorithm,
    response: Vec<(u16, Vec<u8>)>,
}

impl Connection {
    /// [MS-SMB2] 3.3.5.3: SMB 1 is spoken only to say that SMB 2 is wanted.
    pub(crate) fn smb1_negotiate(&mut self, message: &[u8], out: &mut Vec<u8>) -> Verdict {
        if self.peer.negotiated.get().is_some() || self.wildcard {
            return Verdict::Close("SMB 1 message on an SMB 2 connection");
        }
        let dialect = match parse_smb1_negotiate(message) {
            Ok(Smb1Offer::Wildcard) => WILDCARD_DIALECT,
            Ok(Smb1Offer::Smb202) => Dialect::Smb202 as u16,
            _ => return Verdict::Close("SMB 1 only client"),
        };
        let request = Header {
            credit_charge: 0,
            status: 0,
            command: 0,
            credits: 1,
            flags: 0,
            next_command: 0,
            message_id: 0,
            async_or_tree: 0,
            session_id: 0,
            signature: [0; 16],
        };
        if dialect == WILDCARD_DIALECT {
            self.wildcard = true;
            // Clients count this exchange as message 0 or do not count it.
            self.grant_one();
        } else {
            // The whole negotiation: message id 0 is used up by it.
            self.take_first_id();
            let _ = self.peer.negotiated.set(self.settle_202());
        }
        let response = self.response(dialect, 0, self.io_max(Dialect::Smb202), Vec::new());
        self.respond(&request, 1, 0, NtStatus::SUCCESS, out, |out, base| response.put(out, base));
        Verdict::Go
    }

    fn settle_202(&self) -> Negotiated {
        Negotiated {
            dialect: Dialect::Smb202,
            client_guid: 0,
            client_capabilities: 0,
            client_security_mode: 0,
            client_dialects: vec![Dialect::Smb202 as u16],
            server_capabilities: 0,
            server_security_mode: self.security_mode(),
            cipher: None,
            signing: SigningAlgorithm::HmacSha256,
            max_transact: SMALL_IO_BYTES,
            max_read: SMALL_IO_BYTES,
            max_write: SMALL_IO_BYTES,
        }
    }

    fn security_mode(&self) -> u16 {
        let required =
            if self.server.trees.config.policy.requires_signing() { security_mode::SIGNING_REQUIRED } else { 0 };
        security_mode::SIGNING_ENABLED | required
    }

    fn io_max(&self, dialect: Dialect) -> u32 {
        if dialect == Dialect::Smb202 { SMALL_IO_BYTES } else { self.server.trees.config.limits.io_bytes_max }
    }

    fn response(&self, dialect: u16, capabilities: u32, io: u32, contexts: Vec<(u16, Vec<u8>)>) -> NegotiateResponse {
        NegotiateResponse {
            security_mode: self.security_mode(),
            dialect,
            server_guid: self.server.trees.config.guid,
            capabilities,
            max_transact: io,
            max_read: io,
            max_write: io,
            system_time: self.server.trees.time().wall,
            security_buffer: arden_auth::Acceptor::hint(),
            contexts,
        }
    }

    /// [MS-SMB2] 3.3.5.4.
    pub(crate) fn negotiate(&mut self, header: &Header, message: &[u8], credits: u16, out: &mut Vec<u8>) -> Verdict {
        if self.peer.negotiated.get().is_some() {
            return Verdict::Close("second negotiate");
        }
        // [MS-SMB2] 3.3.5.2.4: there is nothing to sign it with.
        let unsigned = if header.is(flags::SIGNED) { Err(NtStatus::INVALID_PARAMETER) } else { Ok(()) };
        match unsigned.and_then(|()| self.try_negotiate(message)) {
            Ok((negotiated, contexts)) => {
                let dialect = negotiated.dialect;
                let response =
                    self.response(dialect as u16, negotiated.server_capabilities, self.io_max(dialect), contexts);
                let reply =
                    self.respond(header, credits, 0, NtStatus::SUCCESS, out, |out, base| response.put(out, base));
                if dialect == Dialect::Smb311 {
                    crypto::extend_preauth(&mut self.preauth, message);
                    crypto::extend_preauth(&mut self.preauth, &out[reply.base..]);
                }
                let _ = self.peer.negotiated.set(negotiated);
            }
            Err(status) => {
                self.respond_error(header, credits, status, out);
            }
        }
        Verdict::Go
    }

    fn try_negotiate(&self, message: &[u8]) -> Result<(Negotiated, Vec<(u16, Vec<u8>)>), NtStatus> {
        let request = NegotiateRequest::parse(message).map_err(|_| NtStatus::INVALID_PARAMETER)?;
        // They are kept, for VALIDATE_NEGOTIATE_INFO.
        if request.dialects.is_empty() || request.dialects.len() > DIALECTS_MAX {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let dialect =
            request.dialects.iter().filter_map(|d| Dialect::from_u16(*d)).max().ok_or(NtStatus::NOT_SUPPORTED)?;
        let contexts = match dialect {
            Dialect::Smb311 => self.settle_contexts(&request.contexts, request.capabilities)?,
            _ => Contexts {
                cipher: (dialect.is_smb3() && request.capabilities & capability::ENCRYPTION != 0)
                    .then_some(Cipher::Aes128Ccm),
                signing: if dialect.is_smb3() { SigningAlgorithm::AesCmac } else { SigningAlgorithm::HmacSha256 },
                response: Vec::new(),
            },
        };
        let mut capabilities = 0;
        if dialect >= Dialect::Smb210 {
            capabilities |= capability::LEASING | capability::LARGE_MTU;
        }
        if dialect.is_smb3() {
            // [MS-SMB2] 3.3.5.4: for clients that say that they know them.
            let mut offered = capability::DIRECTORY_LEASING | capability::PERSISTENT_HANDLES;
            if self.server.trees.config.policy.allows_multichannel() {
                offered |= capability::MULTI_CHANNEL;
            }
            capabilities |= request.capabilities & offered;
            // [MS-SMB2] 3.3.5.4: with 3.1.1 the encryption context says it.
            if dialect != Dialect::Smb311 && contexts.cipher.is_some() {
                capabilities |= capability::ENCRYPTION;
            }
        }
        let io = self.io_max(dialect);
        let negotiated = Negotiated {
            dialect,
            client_guid: request.client_guid,
            client_capabilities: request.capabilities,
            client_security_mode: request.security_mode,
            client_dialects: request.dialects,
            server_capabilities: capabilities,
            server_security_mode: self.security_mode(),
            cipher: contexts.cipher,
            signing: contexts.signing,
            max_transact: io,
            max_read: io,
            max_write: io,
        };
        Ok((negotiated, contexts.response))
    }

    /// AES-GMAC costs a fraction of the others, but one key signs the binding requests of all channels of a session, each
    /// connection counts its MessageIds from 0, and they are the nonces: a client that has several channels repeats them.
    /// So where a client may want channels and can do AES-CMAC, that is chosen.
    fn signing_choices(&self, capabilities: u32) -> [SigningAlgorithm; 3] {
        use SigningAlgorithm::{AesCmac, AesGmac, HmacSha256};
        let channels =
            capabilities & capability::MULTI_CHANNEL != 0 && self.server.trees.config.policy.allows_multichannel();
        if channels { [AesCmac, AesGmac, HmacSha256] } else { [AesGmac, AesCmac, HmacSha256] }
    }

    fn settle_contexts(&self, contexts: &[NegotiateContext], capabilities: u32) -> Result<Contexts, NtStatus> {
        let mut out = Contexts { cipher: None, signing: SigningAlgorithm::AesCmac, response: Vec::new() };
        let mut seen = [false; 3];
        let mut once = |i: usize| match std::mem::replace(&mut seen[i], true) {
            true => Err(NtStatus::INVALID_PARAMETER),
            false => Ok(()),
        };
        for context in contexts {
            match context {
                NegotiateContext::Preauth { hashes, .. } => {
                    once(0)?;
                    if !hashes.contains(&HASH_SHA512) {
                        return Err(NtStatus::SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP);
                    }
                    let mut data = Vec::new();
                    data.put_u16(1);
                    data.put_u16(32);
                    data.put_u16(HASH_SHA512);
                    data.extend_from_slice(&self.server.trees.random::<32>());
                    out.response.push((context::PREAUTH_INTEGRITY, data));
                }
                NegotiateContext::Encryption(ids) => {
                    once(1)?;
                    out.cipher = CIPHERS.into_iter().find(|c| ids.contains(&(*c as u16)));
                    let mut data = Vec::new();
                    data.put_u16(1);
                    data.put_u16(out.cipher.map_or(0, |c| c as u16));
                    out.response.push((context::ENCRYPTION, data));
                }
                NegotiateContext::Signing(ids) => {
                    once(2)?;
                    let chosen = self.signing_choices(capabilities).into_iter().find(|a| ids.contains(&(*a as u16)));
                    // [MS-SMB2] 3.3.5.4: nothing in common means AES-CMAC and no context in the answer.
                    if let Some(chosen) = chosen {
                        out.signing = chosen;
                        let mut data = Vec::new();
                        data.put_u16(1);
                        data.put_u16(chosen as u16);
                        out.response.push((context::SIGNING, data));
                    }
                }
                NegotiateContext::Compression | NegotiateContext::NetName(_) | NegotiateContext::Other(_) => {}
            }
        }
        if !seen[0] {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        Ok(out)
    }
}
