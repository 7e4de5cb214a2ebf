//! What a request proved of its sender, and whose key signs its answer, [MS-SMB2] 3.3.4.1.1 and 3.3.5.2.4.
//!
//! An answer is signed only for who proved that it holds the key, for two reasons. A signature over something that a
//! stranger had a say in is worth something to it: with AES-GMAC the MessageId is the nonce, and two answers under
//! one nonce give the hash key away, with which requests can be forged. And whether there is a key to sign with
//! would tell a stranger which sessions exist.

use std::sync::Arc;

use arden_wire::smb2::{Header, flags, negotiate::SigningAlgorithm};
use ring::rand::{SecureRandom, SystemRandom};

use crate::sessions::{Channel, Session, crypto::SigningKey};

/// What a request proved of its sender.
#[derive(Clone)]
pub enum Proof {
    /// It is not signed, its signature is wrong, or there is no key to check it with.
    Nothing,
    /// Signed with Channel.SigningKey of the channel it came over.
    Channel(Arc<Channel>),
    /// Signed with Session.SigningKey of a session that is not on this connection: a request to bind it.
    Session(Arc<Session>),
    /// Encrypted with the keys of the session that its header names.
    Encrypted,
}

impl Proof {
    /// Whether the sender has the keys of the session that the header names, on this connection.
    pub fn holds_session(&self) -> bool {
        matches!(self, Proof::Channel(_) | Proof::Encrypted)
    }
}

/// Whose key signs an answer.
pub enum Signer {
    Channel(Arc<Channel>),
    Session(Arc<Session>),
}

impl Signer {
    pub fn key(&self) -> &SigningKey {
        match self {
            Signer::Channel(channel) => &channel.signing,
            Signer::Session(session) => &session.signing,
        }
    }
}

/// Who signs the final answer to the request `header`, whose sender proved `proof`. `granted` is the channel that a
/// successful SESSION_SETUP gave or renewed. None: the answer is not signed; where the request was signed it still
/// carries SMB2_FLAGS_SIGNED, with a Signature of zeros, because clients look at the flag before the status.
///
/// | answer | signed with | why |
/// |---|---|---|
/// | any request, signature verified | Channel.SigningKey | the sender has the key; a MessageId is used once on a connection, and a channel's key on no other |
/// | signature wrong or missing, also where signing is required | nothing | anybody on the way can have sent it |
/// | encrypted request | nothing | the answer is encrypted, which authenticates it |
/// | no such session on the connection | nothing | there is no key, and other connections' are not looked up |
/// | NEGOTIATE; SESSION_SETUP of a new session before its last step, or refused | nothing | there is no key yet |
/// | SESSION_SETUP, success | the channel's key | who authenticated has it; the first use of that key, or a MessageId of its own connection |
/// | SESSION_SETUP with BINDING, request verified, any other status | Session.SigningKey | [MS-SMB2] 3.3.4.1.1; with AES-GMAC only while [`Session::take_binding_id`] says that the MessageId was not used |
/// | SESSION_SETUP again on a session, request verified, any other status | Channel.SigningKey | Session.SigningKey, which [MS-SMB2] 3.3.4.1.1 has here, would repeat its first connection's MessageIds on a second |
/// | STATUS_PENDING | nothing | the final answer has the same MessageId |
/// | OPLOCK_BREAK notifications | nothing | all have MessageId -1 |
/// | sessions without a user | nothing | their keys are no secret |
pub fn answer_signer(proof: &Proof, granted: Option<&Arc<Channel>>, header: &Header) -> Option<Signer> {
    match (granted, proof) {
        (_, Proof::Encrypted) => None,
        (Some(channel), _) | (None, Proof::Channel(channel)) => {
            (!channel.session.anonymous).then(|| Signer::Channel(channel.clone()))
        }
        (None, Proof::Session(session)) => {
            session.take_binding_id(header.message_id).then(|| Signer::Session(session.clone()))
        }
        (None, Proof::Nothing) => None,
    }
}

/// What a request on the connection of `channel` proves, not encrypted; None: it is signed, but wrongly.
pub fn prove_channel(channel: &Arc<Channel>, header: &Header, message: &mut [u8]) -> Option<Proof> {
    if !header.is(flags::SIGNED) {
        return Some(Proof::Nothing);
    }
    channel.signing.verify(message).then(|| Proof::Channel(channel.clone()))
}

const ALGORITHMS: [SigningAlgorithm; 3] =
    [SigningAlgorithm::HmacSha256, SigningAlgorithm::AesCmac, SigningAlgorithm::AesGmac];

/// Keys that nobody has, in the place of those of sessions that do not exist.
pub struct BindingDecoys([SigningKey; 3]);

impl BindingDecoys {
    pub fn new(random: &SystemRandom) -> BindingDecoys {
        BindingDecoys(ALGORITHMS.map(|algorithm| {
            let mut key = [0; 16];
            random.fill(&mut key).expect("the system has random numbers");
            SigningKey::new(algorithm, &key)
        }))
    }

    /// `session`, which may be another connection's, if `message` is signed with its key. None takes the same time: a signature
    /// of every algorithm is computed each time.
    pub fn verify(&self, session: Option<Arc<Session>>, message: &mut [u8]) -> Option<Arc<Session>> {
        let session = session.filter(|s| !s.anonymous);
        let mut verified = false;
        for (algorithm, decoy) in ALGORITHMS.iter().zip(&self.0) {
            let real = session.as_ref().filter(|s| s.signing_algorithm == *algorithm);
            verified |= real.map_or(decoy, |s| &s.signing).verify(message) & real.is_some();
        }
        session.filter(|_| verified)
    }
}
