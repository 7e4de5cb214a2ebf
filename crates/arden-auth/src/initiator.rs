//! The client side of NTLM in SPNEGO, [MS-NLMP] 3.1.5.1, for tests and for tools that connect to a server. Only NTLMv2
//! with a MIC.

use crate::{
    crypto::{NtHash, Side, first_mic, hmac_md5, ntowf_v2, rc4k},
    message_security::MessageSecurity,
};
use arden_wire::{
    FileTime, NtStatus,
    ntlm::{Authenticate, AvPair, Challenge, ClientChallenge, MIC_RANGE, Negotiate, av, flags},
    spnego::{NegState, NegToken, NegTokenInit, NegTokenResp, mech_type_list, oid},
};

/// NegotiateFlags of the client's NEGOTIATE_MESSAGE, [MS-NLMP] 2.2.2.5.
pub const CLIENT_FLAGS: u32 = flags::UNICODE
    | flags::REQUEST_TARGET
    | flags::SIGN
    | flags::SEAL
    | flags::NTLM
    | flags::ALWAYS_SIGN
    | flags::EXTENDED_SESSIONSECURITY
    | flags::TARGET_INFO
    | flags::VERSION
    | flags::NEGOTIATE_128
    | flags::KEY_EXCH
    | flags::NEGOTIATE_56;

/// One authentication as a client: [`first`](Initiator::first), then [`second`](Initiator::second) with the server's
/// challenge, then [`verify`](Initiator::verify) with its last token.
pub struct Initiator {
    pub user: String,
    pub domain: String,
    pub workstation: String,
    pub hash: NtHash,
    pub flags: u32,
    pub spnego: bool,
    /// The mechanisms in the MechTypeList, as object identifiers; NTLM has to be among them.
    pub mechanisms: Vec<Vec<u8>>,
    negotiate: Vec<u8>,
    session_key: [u8; 16],
}

impl Initiator {
    /// An authentication with SPNEGO that offers NTLM alone.
    pub fn new(user: &str, domain: &str, password: &str) -> Initiator {
        Initiator {
            user: user.to_string(),
            domain: domain.to_string(),
            workstation: "CLIENT".to_string(),
            hash: NtHash::of_password(password),
            flags: CLIENT_FLAGS,
            spnego: true,
            mechanisms: vec![oid::NTLMSSP.to_vec()],
            negotiate: Vec::new(),
            session_key: [0; 16],
        }
    }

    /// Makes the first token.
    pub fn first(&mut self) -> Vec<u8> {
        self.negotiate = Negotiate { flags: self.flags }.encode();
        if !self.spnego {
            return self.negotiate.clone();
        }
        let optimistic = (self.mechanisms[0] == oid::NTLMSSP).then_some(&self.negotiate[..]);
        NegTokenInit::encode(&self.list(), optimistic)
    }

    fn list(&self) -> Vec<&[u8]> {
        self.mechanisms.iter().map(|m| &m[..]).collect()
    }

    /// Makes the token that answers the server's: NEGOTIATE once more if the server did not choose the first mechanism,
    /// else AUTHENTICATE. `random` is a client challenge of 8 bytes and a session key of 16.
    ///
    /// # Errors
    /// INVALID_PARAMETER for a malformed token.
    pub fn second(&mut self, server: &[u8], random: [u8; 24]) -> Result<Vec<u8>, NtStatus> {
        if !self.spnego {
            return self.authenticate(server, random);
        }
        let Ok(NegToken::Resp(resp)) = NegToken::parse(server) else { return Err(NtStatus::INVALID_PARAMETER) };
        let Some(challenge) = resp.response_token else {
            let token = NegTokenResp { response_token: Some(self.negotiate.clone()), ..Default::default() };
            return Ok(token.encode());
        };
        let message = self.authenticate(&challenge, random)?;
        let token = NegTokenResp {
            response_token: Some(message),
            mech_list_mic: Some(self.mic(Side::Client).to_vec()),
            ..Default::default()
        };
        Ok(token.encode())
    }

    fn mic(&self, side: Side) -> [u8; 16] {
        first_mic(self.flags, &self.session_key, side, &mech_type_list(&self.list()))
    }

    /// Makes the AUTHENTICATE_MESSAGE for a CHALLENGE_MESSAGE, [MS-NLMP] 3.1.5.1.2.
    fn authenticate(&mut self, server: &[u8], random: [u8; 24]) -> Result<Vec<u8>, NtStatus> {
        let bad = |_| NtStatus::INVALID_PARAMETER;
        let challenge = Challenge::parse(server).map_err(bad)?;
        self.flags &= challenge.flags;
        let mut av_pairs = AvPair::parse_list(&challenge.target_info).map_err(bad)?;
        let time = av_pairs.iter().find(|p| p.id == av::TIMESTAMP).and_then(|p| <[u8; 8]>::try_from(&p.value[..]).ok());
        av_pairs.push(AvPair { id: av::FLAGS, value: av::FLAG_MIC.to_le_bytes().to_vec() });
        let mut client_challenge = [0; 8];
        client_challenge.copy_from_slice(&random[..8]);
        let blob = ClientChallenge {
            timestamp: FileTime(time.map_or(0, u64::from_le_bytes)),
            challenge: client_challenge,
            av_pairs,
        }
        .encode();
        let key = ntowf_v2(&self.hash, &self.user, &self.domain);
        let proof = hmac_md5(&key, &[&challenge.server_challenge, &blob]);
        let base_key = hmac_md5(&key, &[&proof]);
        let mut encrypted = Vec::new();
        self.session_key = base_key;
        if self.flags & flags::KEY_EXCH != 0 {
            self.session_key.copy_from_slice(&random[8..]);
            let mut sent = self.session_key;
            rc4k(&base_key, &mut sent);
            encrypted = sent.to_vec();
        }
        let mut message = Authenticate {
            flags: self.flags,
            lm_response: vec![0; 24],
            nt_response: [&proof[..], &blob].concat(),
            domain: self.domain.clone(),
            user: self.user.clone(),
            workstation: self.workstation.clone(),
            encrypted_session_key: encrypted,
        }
        .encode();
        let mic = hmac_md5(&self.session_key, &[&self.negotiate, server, &message]);
        message[MIC_RANGE].copy_from_slice(&mic);
        Ok(message)
    }

    /// Signing and sealing of messages after [`second`](Initiator::second); `None` when it was not negotiated.
    pub fn message_security(&self) -> Option<MessageSecurity> {
        // In SPNEGO the list of mechanisms was signed.
        MessageSecurity::new(self.flags, &self.session_key, Side::Client, u32::from(self.spnego))
    }

    /// Checks the server's last token and returns the session key.
    ///
    /// # Errors
    /// ACCESS_DENIED, when the negotiation is not complete or its MIC is wrong.
    pub fn verify(&self, server: &[u8]) -> Result<[u8; 16], NtStatus> {
        if !self.spnego {
            return Ok(self.session_key);
        }
        match NegToken::parse(server) {
            Ok(NegToken::Resp(resp))
                if resp.neg_state == Some(NegState::AcceptCompleted)
                    && resp.mech_list_mic.as_deref() == Some(&self.mic(Side::Server)[..]) =>
            {
                Ok(self.session_key)
            }
            _ => Err(NtStatus::ACCESS_DENIED),
        }
    }
}
