//! The accepting side of SPNEGO, RFC 4178, around one mechanism: it takes tokens and returns tokens and a logon. No
//! I/O, no clock, no entropy: time and randomness are arguments.

use crate::{
    crypto::equal_constant_time,
    message_security::MessageSecurity,
    ntlm_server::{NtlmServer, NtlmStep, account_part},
    token::Token,
    users::UserDb,
};
use arden_wire::{
    FileTime, NtStatus, ntlm,
    spnego::{NegState, NegToken, NegTokenInit, NegTokenResp, oid},
};
use std::{sync::Arc, time::Duration};

/// The names of the server, which the CHALLENGE_MESSAGE carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// At most 15 characters, in upper case.
    pub netbios_name: String,
    /// The fully qualified name.
    pub dns_name: String,
    /// The NetBIOS name of the domain; for a stand-alone server its own.
    pub domain: String,
    /// The DNS name of the domain; for a stand-alone server its own.
    pub dns_domain: String,
}

impl ServerIdentity {
    /// The names of a stand-alone server, which is its own domain.
    pub fn stand_alone(host_name: &str) -> ServerIdentity {
        let short = host_name.split('.').next().unwrap_or(host_name);
        let netbios: String = short.chars().take(15).collect::<String>().to_uppercase();
        ServerIdentity {
            domain: netbios.clone(),
            netbios_name: netbios,
            dns_name: host_name.to_string(),
            dns_domain: host_name.to_string(),
        }
    }
}

/// Logons that are allowed beyond those of users with passwords.
#[derive(Debug, Clone, Default)]
pub struct AuthPolicy {
    pub allow_anonymous: bool,
    /// Users without a password may log on.
    pub allow_empty_passwords: bool,
}

/// A completed logon.
#[derive(Clone)]
pub struct Logon {
    pub token: Arc<Token>,
    /// The session key of GSS: Session.SessionKey, [MS-SMB2] 3.3.1.8.
    pub session_key: [u8; 16],
    pub anonymous: bool,
    pub guest: bool,
    /// The client's name for itself, which is not verified: for logs only.
    pub workstation: String,
    /// Difference between the time in the client's response and the server's, for logs only. MaxLifetime, [MS-NLMP]
    /// 3.1.1.1, is not enforced: the server's challenge proves that the response is fresh, and clients without a clock
    /// can log on.
    pub clock_skew: Duration,
}

impl std::fmt::Debug for Logon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logon").field("token", &self.token).field("anonymous", &self.anonymous).finish_non_exhaustive()
    }
}

/// The result of one token.
#[derive(Debug, Clone)]
pub enum Step {
    /// MORE_PROCESSING_REQUIRED with this token for the client.
    Continue(Vec<u8>),
    /// The client is authenticated. `reply` goes with the last response and may be empty.
    Done { reply: Vec<u8>, logon: Logon },
}

/// The mechanism inside SPNEGO. Kerberos would be a second variant with the same methods.
enum Mechanism {
    Ntlm(Box<NtlmServer>),
}

impl Mechanism {
    fn step(&mut self, token: &[u8], now: FileTime, random: [u8; 8]) -> Result<NtlmStep, NtStatus> {
        match self {
            Mechanism::Ntlm(m) => m.step(token, now, random),
        }
    }
    fn verify_mic(&self, message: &[u8], mic: &[u8]) -> bool {
        match self {
            Mechanism::Ntlm(m) => m.verify_mic(message, mic),
        }
    }
    fn token_now(&self) -> Result<Arc<Token>, NtStatus> {
        match self {
            Mechanism::Ntlm(m) => m.token_now(),
        }
    }
    fn own_mic(&self, message: &[u8]) -> Option<[u8; 16]> {
        match self {
            Mechanism::Ntlm(m) => m.own_mic(message),
        }
    }
    fn message_security(&self, sequence: u32) -> Option<MessageSecurity> {
        match self {
            Mechanism::Ntlm(m) => m.message_security(sequence),
        }
    }
}

/// The state of a negotiation after the client's first token.
struct Negotiation {
    /// The client's MechTypeList as received, in DER.
    mech_types: Vec<u8>,
    /// A mechListMIC of the client is required, because its first mechanism was not chosen.
    mic_needed: bool,
}

enum State {
    Start,
    /// Mechanism tokens without SPNEGO.
    Raw,
    /// Mechanism tokens inside SPNEGO.
    Negotiating(Negotiation),
    /// The mechanism is complete; the client's mechListMIC is outstanding.
    AwaitMic {
        mech_types: Vec<u8>,
        logon: Logon,
    },
    Ended,
}

/// Limit of a MechTypeList in bytes of DER. The list is kept for the MICs until the logon is over. Clients send three
/// or four mechanisms of about twelve bytes.
const MECH_TYPES_BYTES_MAX: usize = 512;

/// One authentication, from the first token to a logon or an error. Any token after that is an INVALID_PARAMETER.
pub struct Acceptor {
    mechanism: Mechanism,
    state: State,
    /// Both sides have signed the list of mechanisms.
    mics_exchanged: bool,
}

impl Acceptor {
    /// An authentication that has not seen a token yet.
    pub fn new(users: Arc<dyn UserDb>, identity: Arc<ServerIdentity>, policy: AuthPolicy) -> Acceptor {
        let ntlm = NtlmServer::new(users, identity, policy);
        Acceptor { mechanism: Mechanism::Ntlm(Box::new(ntlm)), state: State::Start, mics_exchanged: false }
    }

    /// The security buffer of a NEGOTIATE response, [MS-SMB2] 2.2.4: the mechanisms that are offered.
    pub fn hint() -> Vec<u8> {
        NegTokenInit::encode_hint(&[oid::NTLMSSP])
    }

    /// The user name of the client's response as it was sent; `None` before that.
    pub fn attempted_user(&self) -> Option<&str> {
        match &self.mechanism {
            Mechanism::Ntlm(m) => m.attempted_user(),
        }
    }

    /// The account name in [`attempted_user`](Acceptor::attempted_user) without a domain, by which the throttle counts.
    pub fn attempted_account(&self) -> &str {
        self.attempted_user().map_or("", account_part)
    }

    /// Returns once whether the password was right, after the step that checked it. That step may have failed for
    /// another reason or ask for another token; the throttle has to be asked before any answer to it.
    pub fn take_verdict(&mut self) -> Option<bool> {
        match &mut self.mechanism {
            Mechanism::Ntlm(m) => m.take_verdict(),
        }
    }

    /// Signing and sealing of messages after a logon; `None` before it, and when the client did not negotiate it.
    pub fn message_security(&self) -> Option<MessageSecurity> {
        self.mechanism.message_security(u32::from(self.mics_exchanged))
    }

    /// Processes the client's next token. `random` is eight fresh random bytes, the server challenge.
    ///
    /// # Errors
    /// INVALID_PARAMETER for a malformed or unexpected token, LOGON_FAILURE for a refused logon, ACCESS_DENIED for a
    /// wrong or missing mechListMIC, and the statuses of a refused account.
    pub fn step(&mut self, token: &[u8], now: FileTime, random: [u8; 8]) -> Result<Step, NtStatus> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Start if ntlm::is_ntlm(token) => self.raw(token, now, random),
            State::Start => match NegToken::parse(token) {
                Ok(NegToken::Init(init)) => self.init(init, now, random),
                _ => Err(NtStatus::INVALID_PARAMETER),
            },
            State::Raw => self.raw(token, now, random),
            State::Negotiating(negotiation) => {
                // Some clients send the last token without SPNEGO.
                if ntlm::is_ntlm(token) && !negotiation.mic_needed {
                    return self.raw(token, now, random);
                }
                let resp = response(token)?;
                let inner = resp.response_token.as_deref().ok_or(NtStatus::INVALID_PARAMETER)?;
                self.inner(inner, negotiation, resp.mech_list_mic, false, now, random)
            }
            State::AwaitMic { mech_types, logon } => {
                let mic = response(token)?.mech_list_mic.ok_or(NtStatus::INVALID_PARAMETER)?;
                if !self.mechanism.verify_mic(&mech_types, &mic) {
                    return Err(NtStatus::ACCESS_DENIED);
                }
                self.mics_exchanged = true;
                let reply = NegTokenResp { neg_state: Some(NegState::AcceptCompleted), ..Default::default() };
                let logon = match logon.anonymous {
                    true => logon,
                    // The account may have changed since its password was checked.
                    false => Logon { token: self.mechanism.token_now()?, ..logon },
                };
                Ok(Step::Done { reply: reply.encode(), logon })
            }
            State::Ended => Err(NtStatus::INVALID_PARAMETER),
        }
    }

    fn raw(&mut self, token: &[u8], now: FileTime, random: [u8; 8]) -> Result<Step, NtStatus> {
        match self.mechanism.step(token, now, random)? {
            NtlmStep::Challenge(challenge) => {
                self.state = State::Raw;
                Ok(Step::Continue(challenge))
            }
            NtlmStep::Done(logon) => Ok(Step::Done { reply: Vec::new(), logon }),
        }
    }

    fn init(&mut self, init: NegTokenInit, now: FileTime, random: [u8; 8]) -> Result<Step, NtStatus> {
        if init.mech_types_der.len() > MECH_TYPES_BYTES_MAX {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let place = init.mech_types.iter().position(|m| m == oid::NTLMSSP).ok_or(NtStatus::LOGON_FAILURE)?;
        let preferred = place == 0;
        match init.mech_token {
            Some(token) if preferred => {
                let negotiation = Negotiation { mech_types: init.mech_types_der, mic_needed: false };
                self.inner(&token, negotiation, init.mech_list_mic, true, now, random)
            }
            _ => {
                // An optimistic token for another mechanism is ignored. MICs have to protect the change of mechanism,
                // RFC 4178 4.2.2.
                let mech_types = init.mech_types_der;
                self.state = State::Negotiating(Negotiation { mech_types, mic_needed: !preferred });
                let neg_state = if preferred { NegState::AcceptIncomplete } else { NegState::RequestMic };
                let reply = NegTokenResp {
                    neg_state: Some(neg_state),
                    supported_mech: Some(oid::NTLMSSP.to_vec()),
                    ..Default::default()
                };
                Ok(Step::Continue(reply.encode()))
            }
        }
    }

    /// Processes a token of the mechanism. `first`: it came with the MechTypeList.
    fn inner(
        &mut self,
        token: &[u8],
        negotiation: Negotiation,
        mic: Option<Vec<u8>>,
        first: bool,
        now: FileTime,
        random: [u8; 8],
    ) -> Result<Step, NtStatus> {
        match self.mechanism.step(token, now, random)? {
            NtlmStep::Challenge(challenge) => {
                let reply = NegTokenResp {
                    neg_state: Some(NegState::AcceptIncomplete),
                    supported_mech: first.then(|| oid::NTLMSSP.to_vec()),
                    response_token: Some(challenge),
                    mech_list_mic: None,
                };
                self.state = State::Negotiating(negotiation);
                Ok(Step::Continue(reply.encode()))
            }
            NtlmStep::Done(logon) => self.finish(logon, negotiation, mic),
        }
    }

    fn finish(&mut self, logon: Logon, negotiation: Negotiation, mic: Option<Vec<u8>>) -> Result<Step, NtStatus> {
        let Negotiation { mech_types, mic_needed } = negotiation;
        let own = self.mechanism.own_mic(&mech_types);
        match (mic, own) {
            (Some(mic), Some(own)) => {
                if !self.mechanism.verify_mic(&mech_types, &mic) {
                    return Err(NtStatus::ACCESS_DENIED);
                }
                self.mics_exchanged = true;
                let reply = NegTokenResp {
                    neg_state: Some(NegState::AcceptCompleted),
                    mech_list_mic: Some(own.to_vec()),
                    ..Default::default()
                };
                Ok(Step::Done { reply: reply.encode(), logon })
            }
            (None, Some(own)) if mic_needed => {
                let reply = NegTokenResp {
                    neg_state: Some(NegState::AcceptIncomplete),
                    mech_list_mic: Some(own.to_vec()),
                    ..Default::default()
                };
                self.state = State::AwaitMic { mech_types, logon };
                Ok(Step::Continue(reply.encode()))
            }
            // A session without signing has no MIC, which is an error only when one is required.
            (_, None) if mic_needed && !logon.anonymous => Err(NtStatus::ACCESS_DENIED),
            _ => {
                let reply = NegTokenResp { neg_state: Some(NegState::AcceptCompleted), ..Default::default() };
                Ok(Step::Done { reply: reply.encode(), logon })
            }
        }
    }
}

fn response(token: &[u8]) -> Result<NegTokenResp, NtStatus> {
    match NegToken::parse(token) {
        Ok(NegToken::Resp(resp)) if resp.neg_state == Some(NegState::Reject) => Err(NtStatus::LOGON_FAILURE),
        Ok(NegToken::Resp(resp)) => Ok(resp),
        _ => Err(NtStatus::INVALID_PARAMETER),
    }
}

/// Whether two MICs are equal. MICs are public, but are compared in constant time like secrets.
pub(crate) fn same_mic(a: &[u8], b: &[u8]) -> bool {
    equal_constant_time(a, b)
}
