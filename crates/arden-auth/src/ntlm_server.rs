//! The server side of NTLM, [MS-NLMP] 3.2: the challenge, and the check of an NTLMv2 response. LM and NTLMv1 responses
//! are refused whatever the password.

use crate::{
    acceptor::{AuthPolicy, Logon, ServerIdentity, same_mic},
    crypto::{NtHash, Side, equal_constant_time, first_mic, hmac_md5, ntowf_v2, rc4k},
    message_security::MessageSecurity,
    token::{Token, privilege},
    users::{UserDb, UserRecord},
};
use arden_wire::{
    FileTime, NtStatus,
    dtyp::well_known,
    ntlm::{Authenticate, AvPair, Challenge, ClientChallenge, MIC_RANGE, Negotiate, av, flags},
};
use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
    time::Duration,
};

/// The result of one message.
pub(crate) enum NtlmStep {
    Challenge(Vec<u8>),
    Done(Logon),
}

enum State {
    Start,
    Challenged { negotiate: Vec<u8>, challenge: Vec<u8>, server_challenge: [u8; 8], flags: u32 },
    Done { flags: u32, session_key: [u8; 16] },
    Failed,
}

pub(crate) struct NtlmServer {
    users: Arc<dyn UserDb>,
    identity: Arc<ServerIdentity>,
    policy: AuthPolicy,
    state: State,
    attempted_user: Option<String>,
    verdict: Option<bool>,
    /// The account and its hash at the time when its password was found right.
    checked: Option<(u32, NtHash)>,
}

/// NegotiateFlags that the server agrees to when the client sets them, [MS-NLMP] 2.2.2.5.
const OFFERED: u32 = flags::UNICODE
    | flags::OEM
    | flags::SIGN
    | flags::SEAL
    | flags::NTLM
    | flags::ALWAYS_SIGN
    | flags::EXTENDED_SESSIONSECURITY
    | flags::VERSION
    | flags::NEGOTIATE_128
    | flags::KEY_EXCH
    | flags::NEGOTIATE_56;

/// Limit of a NEGOTIATE_MESSAGE in bytes. The message is kept for the MIC until the logon is over. It holds a domain
/// and a workstation of at most 255 characters each.
const NEGOTIATE_BYTES_MAX: usize = 1024;

/// The hash of unknown users. Nobody has a password for it, not the empty one either: all rounds of the check run.
static NOBODY: LazyLock<NtHash> = LazyLock::new(|| {
    // Each state has random keys.
    let halves = [0, 1].map(|half| u128::from(RandomState::new().hash_one(half)));
    NtHash::from_bytes((halves[0] << 64 | halves[1]).to_le_bytes())
});

impl NtlmServer {
    pub(crate) fn new(users: Arc<dyn UserDb>, identity: Arc<ServerIdentity>, policy: AuthPolicy) -> NtlmServer {
        NtlmServer { users, identity, policy, state: State::Start, attempted_user: None, verdict: None, checked: None }
    }

    pub(crate) fn attempted_user(&self) -> Option<&str> {
        self.attempted_user.as_deref()
    }

    pub(crate) fn take_verdict(&mut self) -> Option<bool> {
        self.verdict.take()
    }

    /// The token of the authenticated account with the groups that it has now.
    ///
    /// # Errors
    /// LOGON_FAILURE when the account is gone, disabled, or has another password.
    pub(crate) fn token_now(&self) -> Result<Arc<Token>, NtStatus> {
        let (rid, hash) = self.checked.as_ref().ok_or(NtStatus::LOGON_FAILURE)?;
        let user = self.users.user_by_rid(*rid).filter(|u| u.nt_hash == *hash && !u.disabled);
        Ok(Arc::new(token_for(&*self.users, &user.ok_or(NtStatus::LOGON_FAILURE)?)))
    }

    pub(crate) fn step(&mut self, token: &[u8], now: FileTime, random: [u8; 8]) -> Result<NtlmStep, NtStatus> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Start => self.challenge(token, now, random),
            State::Challenged { negotiate, challenge, server_challenge, flags } => {
                let logon = self.authenticate(token, &negotiate, &challenge, server_challenge, flags, now)?;
                Ok(NtlmStep::Done(logon))
            }
            State::Done { .. } | State::Failed => Err(NtStatus::INVALID_PARAMETER),
        }
    }

    /// Answers a NEGOTIATE_MESSAGE, [MS-NLMP] 3.2.5.1.1.
    fn challenge(&mut self, token: &[u8], now: FileTime, random: [u8; 8]) -> Result<NtlmStep, NtStatus> {
        if token.len() > NEGOTIATE_BYTES_MAX {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let negotiate = Negotiate::parse(token).map_err(|_| NtStatus::INVALID_PARAMETER)?;
        let mut flags = negotiate.flags & OFFERED | flags::TARGET_INFO | flags::NTLM;
        if flags & flags::UNICODE != 0 {
            flags &= !flags::OEM;
        } else if flags & flags::OEM == 0 {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        if negotiate.flags & flags::REQUEST_TARGET != 0 {
            flags |= flags::REQUEST_TARGET | flags::TARGET_TYPE_SERVER;
        }
        let identity = &self.identity;
        let pairs = [
            AvPair::text(av::NB_DOMAIN_NAME, &identity.domain),
            AvPair::text(av::NB_COMPUTER_NAME, &identity.netbios_name),
            AvPair::text(av::DNS_DOMAIN_NAME, &identity.dns_domain),
            AvPair::text(av::DNS_COMPUTER_NAME, &identity.dns_name),
            AvPair { id: av::TIMESTAMP, value: now.0.to_le_bytes().to_vec() },
        ];
        let challenge = Challenge {
            flags,
            target_name: if flags & flags::REQUEST_TARGET != 0 { identity.domain.clone() } else { String::new() },
            server_challenge: random,
            target_info: AvPair::encode_list(&pairs),
        }
        .encode();
        self.state = State::Challenged {
            negotiate: token.to_vec(),
            challenge: challenge.clone(),
            server_challenge: random,
            flags,
        };
        Ok(NtlmStep::Challenge(challenge))
    }

    /// Checks an AUTHENTICATE_MESSAGE, [MS-NLMP] 3.2.5.1.2.
    fn authenticate(
        &mut self,
        token: &[u8],
        negotiate: &[u8],
        challenge: &[u8],
        server_challenge: [u8; 8],
        offered: u32,
        now: FileTime,
    ) -> Result<Logon, NtStatus> {
        let message = Authenticate::parse(token).map_err(|_| NtStatus::INVALID_PARAMETER)?;
        let flags = message.flags & offered;
        self.attempted_user = Some(message.user.clone());
        if is_anonymous(&message) {
            return self.anonymous(&message, flags);
        }
        // An NTLMv2 response has at least 16 bytes of proof and 28 of fixed fields, [MS-NLMP] 2.2.2.7; NTLMv1's has 24.
        if message.nt_response.len() < 44 {
            self.verdict = Some(false);
            return Err(NtStatus::LOGON_FAILURE);
        }
        let (proof, blob) = message.nt_response.split_at(16);
        let client = ClientChallenge::parse(blob).map_err(|_| NtStatus::INVALID_PARAMETER)?;

        let user = self.find(&message.user);
        // An unknown user takes the same time as a wrong password.
        let hash = user.as_ref().map_or_else(|| NOBODY.clone(), |u| u.nt_hash.clone());
        let base_key = [message.domain.as_str(), ""].into_iter().find_map(|domain| {
            let key = ntowf_v2(&hash, &message.user, domain);
            let expected = hmac_md5(&key, &[&server_challenge, blob]);
            equal_constant_time(&expected, proof).then(|| hmac_md5(&key, &[proof]))
        });
        self.verdict = Some(user.is_some() && base_key.is_some());
        let (Some(user), Some(base_key)) = (user, base_key) else { return Err(NtStatus::LOGON_FAILURE) };

        let session_key = exported_key(flags, base_key, &message.encrypted_session_key)?;
        if client.has_mic() {
            verify_message_mic(&session_key, negotiate, challenge, token)?;
        }
        if user.disabled {
            return Err(NtStatus::ACCOUNT_DISABLED);
        }
        if user.nt_hash == NtHash::EMPTY && !self.policy.allow_empty_passwords {
            return Err(NtStatus::ACCOUNT_RESTRICTION);
        }
        self.state = State::Done { flags, session_key };
        self.checked = Some((user.rid, user.nt_hash.clone()));
        Ok(Logon {
            token: Arc::new(token_for(&*self.users, &user)),
            session_key,
            anonymous: false,
            guest: false,
            workstation: message.workstation,
            clock_skew: Duration::from_micros(client.timestamp.0.abs_diff(now.0) / 10),
        })
    }

    fn anonymous(&mut self, message: &Authenticate, flags: u32) -> Result<Logon, NtStatus> {
        if !self.policy.allow_anonymous {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let session_key = exported_key(flags, [0; 16], &message.encrypted_session_key)?;
        self.state = State::Done { flags: 0, session_key };
        Ok(Logon {
            token: Arc::new(Token::anonymous()),
            session_key,
            anonymous: true,
            guest: false,
            workstation: message.workstation.clone(),
            clock_skew: Duration::ZERO,
        })
    }

    /// Finds the account of a plain name, of `user@domain` or of `domain\user`.
    fn find(&self, name: &str) -> Option<UserRecord> {
        let account = without_domain(name);
        self.users.user(account).or_else(|| self.users.user(account.split_once('@')?.0))
    }

    pub(crate) fn verify_mic(&self, message: &[u8], mic: &[u8]) -> bool {
        match self.keys() {
            Some((flags, key)) => same_mic(&first_mic(flags, &key, Side::Client, message), mic),
            None => false,
        }
    }

    pub(crate) fn own_mic(&self, message: &[u8]) -> Option<[u8; 16]> {
        let (flags, key) = self.keys()?;
        Some(first_mic(flags, &key, Side::Server, message))
    }

    pub(crate) fn message_security(&self, sequence: u32) -> Option<MessageSecurity> {
        let (flags, key) = self.keys()?;
        MessageSecurity::new(flags, &key, Side::Server, sequence)
    }

    /// Flags and key of a session that can sign.
    fn keys(&self) -> Option<(u32, [u8; 16])> {
        let State::Done { flags, session_key } = &self.state else { return None };
        let signs = flags & (flags::SIGN | flags::SEAL) != 0 && flags & flags::EXTENDED_SESSIONSECURITY != 0;
        signs.then_some((*flags, *session_key))
    }
}

fn without_domain(name: &str) -> &str {
    name.rsplit_once('\\').map_or(name, |(_, account)| account)
}

/// The account in a name of any form: `user` for `domain\user` and `user@domain`.
pub(crate) fn account_part(name: &str) -> &str {
    let account = without_domain(name);
    account.split_once('@').map_or(account, |(account, _)| account)
}

fn is_anonymous(message: &Authenticate) -> bool {
    message.user.is_empty()
        && message.nt_response.is_empty()
        && (message.lm_response.is_empty() || message.lm_response == [0])
}

/// ExportedSessionKey, [MS-NLMP] 3.2.5.1.2. With NTLMv2 the KeyExchangeKey is the SessionBaseKey.
fn exported_key(flags: u32, base_key: [u8; 16], encrypted: &[u8]) -> Result<[u8; 16], NtStatus> {
    if flags & flags::KEY_EXCH == 0 {
        return Ok(base_key);
    }
    match <[u8; 16]>::try_from(encrypted) {
        Ok(mut key) => {
            rc4k(&base_key, &mut key);
            Ok(key)
        }
        // A client that neither signs nor seals may leave the key out.
        Err(_) if encrypted.is_empty() && flags & (flags::SIGN | flags::SEAL) == 0 => Ok(base_key),
        Err(_) => Err(NtStatus::INVALID_PARAMETER),
    }
}

fn verify_message_mic(
    session_key: &[u8; 16],
    negotiate: &[u8],
    challenge: &[u8],
    authenticate: &[u8],
) -> Result<(), NtStatus> {
    let sent = authenticate.get(MIC_RANGE).ok_or(NtStatus::INVALID_PARAMETER)?;
    let (head, tail) = (&authenticate[..MIC_RANGE.start], &authenticate[MIC_RANGE.end..]);
    let expected = hmac_md5(session_key, &[negotiate, challenge, head, &[0; 16], tail]);
    if equal_constant_time(&expected, sent) { Ok(()) } else { Err(NtStatus::INVALID_PARAMETER) }
}

/// The token of a user who is logged on over the network with NTLM.
pub fn token_for(db: &dyn UserDb, user: &UserRecord) -> Token {
    let machine = db.machine_sid();
    // The account group is first: it becomes the primary group of the objects that the user creates.
    let mut groups = vec![machine.with_rid(well_known::RID_USERS)];
    let everybody = [
        &*well_known::EVERYONE,
        &*well_known::BUILTIN_USERS,
        &*well_known::NETWORK,
        &*well_known::AUTHENTICATED_USERS,
        &*well_known::THIS_ORGANIZATION,
        &*well_known::NTLM_AUTHENTICATION,
    ];
    for sid in user.groups.iter().chain(everybody) {
        if !groups.contains(sid) {
            groups.push(sid.clone());
        }
    }
    let mut privileges = 0;
    if groups.contains(&well_known::BUILTIN_ADMINISTRATORS) {
        privileges |= privilege::ADMINISTRATOR;
    }
    if groups.contains(&well_known::BUILTIN_BACKUP_OPERATORS) {
        privileges |= privilege::BACKUP | privilege::RESTORE;
    }
    Token { user: machine.with_rid(user.rid), user_name: user.name.clone(), groups, privileges }
}
