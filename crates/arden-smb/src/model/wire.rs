//! The seam's values as bytes, for a connection between the node of a client and the node that owns a share's pool. Every message
//! is a frame: its length in 4 bytes, a byte for its kind, its fields. Numbers are little-endian. Texts and lists have their length in
//! front. A flag is 0 or 1, an optional value a flag with the value behind it.
//!
//! Parsers are total: they answer a message or [`Malformed`], for any bytes. They allocate no more than a constant times the bytes that
//! are there, accept no value that has no meaning, and no byte behind the last field. A frame has at most [`FRAME_BYTES_MAX`] bytes.
//! Refuses to know what is done with a message, and who may send it: only nodes of one cluster speak this, over a connection that
//! proves it.

mod fields;
mod version1;

use std::{collections::VecDeque, net::IpAddr, sync::Arc};

use arden_auth::Token;
use arden_store::fs::ClientId;
use arden_wire::{
    Malformed, NtStatus,
    cursor::{Put, Reader},
    dtyp::Sid,
    smb2::{Command, HEADER_BYTES, Header, flags},
};

use crate::model::{
    Negotiated,
    seam::{Answer, Following, Notification, Outcome, Recipient, Related, VerifiedRequest},
};
use fields::{
    client, flag, notification, optional, put_client, put_flag, put_notification, put_optional, put_related,
    put_replied, recipient, related, replied,
};

/// Versions of this encoding. Both ends of a connection speak the same one, the newest that both know: it was settled before the first
/// message, and a hello names it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Every run says who asks, and has one request.
    One = 1,
    /// Who asks is said once for each session; a run has several requests of a compound.
    Two = 2,
    /// A session of the owner's can be ended by the one that replaces it.
    Three = 3,
    /// A long frame may come in pieces, and others between them.
    Four = 4,
}

impl Version {
    pub const OLDEST: Version = Version::One;
    pub const NEWEST: Version = Version::Four;
    pub const ALL: [Version; 4] = [Version::One, Version::Two, Version::Three, Version::Four];

    /// None: it is not known here.
    pub fn of(number: u32) -> Option<Version> {
        Version::ALL.into_iter().find(|version| *version as u32 == number)
    }
}

/// First bytes of a hello.
const MAGIC: u32 = 0x4657_4441;
/// The longest frame, without its length: the largest message of a client or the largest answer to it, and what is said beside it.
pub const FRAME_BYTES_MAX: usize = 20 << 20;
/// Where a frame has its kind.
pub const LENGTH_BYTES: usize = 4;
/// Requests of one run.
pub const RUN_REQUESTS_MAX: usize = 16;

/// What does not fit its field, and so cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// Which ownership of which pool a request is for: the owner refuses it under another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub pool: u128,
    pub epoch: u64,
}

/// From the node of the client to the owner.
#[derive(Debug)]
pub enum ToOwner {
    /// The first message.
    Hello(Version),
    /// From version 2 on. Who asks in the runs of this session (its serial number at the sender) that come from now on.
    Origin { serial: u64, origin: Box<Origin> },
    /// Up to version 1 with who asks.
    Run(Box<Run>, Option<Box<Origin>>),
    /// A request that answered with a wait runs again, as that is over: by its number, with its AsyncId.
    Again { number: u64, async_id: u64 },
    /// The sender does not wait for this request any more. Where it waits, nothing of it happens.
    End { number: u64 },
    /// A session is gone, by its serial number at the sender.
    SessionEnd { serial: u64, keep_durable: bool },
    /// Answered with the same number. Behind the end of a session: when that and earlier ones of its user have closed everything here.
    Ping(u64),
    /// From version 3 on. A client that is this user has logged on at the sender in place of the receiver's session of this id, [MS-SMB2] 3.3.5.5.3:
    /// it ends if it is the same user's. Answered with a pong of this number when it has, or there is no such session.
    EndPrevious { number: u64, id: u64, user: Sid },
}

/// From the owner to the node of the client.
#[derive(Debug)]
pub enum FromOwner<'a> {
    Hello(Version),
    Answered {
        number: u64,
        answer: Replied,
        related: Related,
        /// The response's body, behind its header.
        body: &'a [u8],
    },
    /// The wait of this request is over.
    Resume {
        number: u64,
    },
    /// Serial numbers of sessions are the receiver's.
    Notify(Recipient, Notification),
    /// The owner leaves the pool of a share that this session uses: its connections end without an answer.
    Leave {
        serial: u64,
    },
    Pong(u64),
}

/// What came of a request at the owner. `Outcome::Block` and `Outcome::After` are the owner's own affair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replied {
    Done(NtStatus),
    Error(NtStatus, Vec<u8>, u8),
    /// It waits. It runs again only when it is told to.
    Pending,
    /// The connection of the client ends without an answer.
    Close,
    /// As `Close`: the owner of this epoch is not here, or its lease has ended.
    Moved,
    /// A request before it in its run waits or ends the connection. Nothing of this one has happened, and it is asked for again.
    NotRun,
}

/// What the requests of a session have in common that come over one connection of its client.
#[derive(Debug, Clone)]
pub struct Origin {
    pub user: Arc<Token>,
    pub client: ClientId,
    anonymous: bool,
    negotiated: Negotiated,
    pub ip: IpAddr,
    address: String,
    /// Every request of the session is encrypted.
    pub session_encrypts: bool,
}

impl Origin {
    pub fn of(request: &VerifiedRequest<'_>, session_encrypts: bool) -> Origin {
        Origin {
            user: request.user.clone(),
            client: request.client,
            anonymous: request.anonymous,
            negotiated: request.negotiated.clone(),
            ip: request.ip,
            address: request.address.to_owned(),
            session_encrypts,
        }
    }

    /// Whether this request comes from here, too.
    pub fn is_of(&self, request: &VerifiedRequest<'_>, session_encrypts: bool) -> bool {
        let Origin { user, client, anonymous, negotiated, ip, address, session_encrypts: encrypts } = self;
        (Arc::ptr_eq(user, &request.user) || *user == request.user)
            && (*client, *anonymous, *ip, *encrypts)
                == (request.client, request.anonymous, request.ip, session_encrypts)
            && *address == request.address
            && negotiated == request.negotiated
    }
}

/// Verified requests that own all that they have, with the number of the first on the connection between the nodes: one, and those
/// of its compound that are related to it and come directly behind it. Each has the next number.
#[derive(Debug)]
pub struct Run {
    /// Of this connection, never the same twice.
    pub number: u64,
    pub target: Target,
    pub session_serial: u64,
    encrypted: bool,
    pub async_id: Option<u64>,
    related: Related,
    now: Asked,
    following: VecDeque<Asked>,
}

/// One of its requests.
#[derive(Debug)]
struct Asked {
    header: Header,
    /// From the header on.
    message: Vec<u8>,
    room: usize,
}

impl Run {
    /// Its current request as the trees of this node take it. The session is known here by another serial number.
    pub fn verified<'a>(&'a self, origin: &'a Origin, session_serial: u64) -> VerifiedRequest<'a> {
        VerifiedRequest {
            header: self.now.header,
            message: &self.now.message,
            session_serial,
            user: origin.user.clone(),
            client: origin.client,
            anonymous: origin.anonymous,
            negotiated: &origin.negotiated,
            ip: origin.ip,
            address: &origin.address,
            encrypted: self.encrypted,
            async_id: self.async_id,
            related: self.related,
            room: self.now.room,
        }
    }

    /// Of its current request.
    pub fn header(&self) -> &Header {
        &self.now.header
    }

    /// Of its current request and those behind it.
    pub fn headers(&self) -> impl Iterator<Item = &Header> {
        std::iter::once(&self.now).chain(&self.following).map(|asked| &asked.header)
    }

    /// Requests behind the current one.
    pub fn following(&self) -> usize {
        self.following.len()
    }

    /// Goes on with the next request, which inherits this. False: there is none.
    pub fn advance(&mut self, related: Related) -> bool {
        let Some(next) = self.following.pop_front() else { return false };
        self.now = next;
        self.number += 1;
        self.async_id = None;
        self.related = related;
        true
    }

    /// The numbers of the requests behind the current one, which are not run.
    pub fn give_back(&mut self) -> impl Iterator<Item = u64> + use<> {
        let count = std::mem::take(&mut self.following).len() as u64;
        self.number + 1..=self.number + count
    }

    fn put(&self, out: &mut Vec<u8>, who: Option<&Origin>) -> Result<(), TooLong> {
        let Run { number, target, session_serial, encrypted, async_id, related, now, following } = self;
        let of = RunOf {
            number: *number,
            target: *target,
            session_serial: *session_serial,
            encrypted: *encrypted,
            async_id: *async_id,
            related: *related,
        };
        let requests =
            std::iter::once(now).chain(following).map(|asked| (asked.header, &asked.message[..], asked.room));
        match who {
            Some(origin) => version1::put_run(out, &of, requests, origin),
            None => put_requests(out, &of, requests),
        }
    }

    /// What its answers may have, if that is much.
    pub fn answer_bytes(&self) -> usize {
        let of = |asked: &Asked| match asked.header.credit_charge {
            0 | 1 => 0,
            _ if asked.header.command == Command::Write as u16 => 0,
            credits => (usize::from(credits) << 16).min(asked.room),
        };
        std::iter::once(&self.now).chain(&self.following).map(of).sum()
    }

    /// Bytes that it keeps while it waits.
    pub fn bytes(&self) -> usize {
        let following = self.following.iter().map(|asked| size_of::<Asked>() + asked.message.capacity());
        size_of::<Run>() + self.now.message.capacity() + following.sum::<usize>()
    }
}

const HELLO: u8 = 1;
const RUN: u8 = 2;
const AGAIN: u8 = 3;
const END: u8 = 4;
const SESSION_END: u8 = 5;
const PING: u8 = 6;
const ORIGIN: u8 = 7;
const END_PREVIOUS: u8 = 8;
const ANSWERED: u8 = 17;
const RESUME: u8 = 18;
const NOTIFY: u8 = 19;
const LEAVE: u8 = 20;
const PONG: u8 = 21;

/// Begins a frame; `finish` fills in its length.
fn begin(out: &mut Vec<u8>, kind: u8) -> usize {
    let start = out.len();
    out.put_u32(0);
    out.put_u8(kind);
    start
}

fn finish(out: &mut Vec<u8>, start: usize) -> Result<(), TooLong> {
    let len = out.len() - start - LENGTH_BYTES;
    if len > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(TooLong);
    }
    out.patch_u32(start, len as u32);
    Ok(())
}

/// A frame of numbers, which always fits.
fn put_numbers(out: &mut Vec<u8>, kind: u8, numbers: &[u64]) {
    out.put_u32((1 + 8 * numbers.len()) as u32);
    out.put_u8(kind);
    numbers.iter().for_each(|n| out.put_u64(*n));
}

/// The length of the frame behind these first bytes of it.
///
/// # Errors
/// It is empty or too long.
pub fn frame_bytes(length: [u8; LENGTH_BYTES]) -> Result<usize, Malformed> {
    match u32::from_le_bytes(length) as usize {
        0 => Err(Malformed("empty frame")),
        n if n > FRAME_BYTES_MAX => Err(Malformed("frame too long")),
        n => Ok(n),
    }
}

/// What is beside the length of a piece of a frame, which has no length of its own then: there is more, or this is the last one. The pieces
/// of a frame follow each other, with nothing but whole frames between them.
const PIECE: u32 = 1 << 31;
const LAST_PIECE: u32 = 1 << 30;

/// The first bytes of a piece.
pub fn piece_header(bytes: usize, is_last: bool) -> [u8; LENGTH_BYTES] {
    (bytes as u32 | PIECE | if is_last { LAST_PIECE } else { 0 }).to_le_bytes()
}

/// The length of the piece behind these first bytes, and whether it is the last one. None: it is a frame.
///
/// # Errors
/// It is empty or too long.
pub fn piece_bytes(header: [u8; LENGTH_BYTES]) -> Result<Option<(usize, bool)>, Malformed> {
    let word = u32::from_le_bytes(header);
    if word & PIECE == 0 {
        return Ok(None);
    }
    let bytes = frame_bytes((word & !(PIECE | LAST_PIECE)).to_le_bytes())?;
    Ok(Some((bytes, word & LAST_PIECE != 0)))
}

/// The first message of either side.
pub fn put_hello(out: &mut Vec<u8>, version: Version) {
    out.put_u32(7);
    out.put_u8(HELLO);
    out.put_u32(MAGIC);
    out.put_u16(version as u16);
}

pub fn put_again(out: &mut Vec<u8>, number: u64, async_id: u64) {
    put_numbers(out, AGAIN, &[number, async_id]);
}

pub fn put_end(out: &mut Vec<u8>, number: u64) {
    put_numbers(out, END, &[number]);
}

pub fn put_session_end(out: &mut Vec<u8>, serial: u64, keep_durable: bool) {
    out.put_u32(10);
    out.put_u8(SESSION_END);
    out.put_u64(serial);
    put_flag(out, keep_durable);
}

pub fn put_ping(out: &mut Vec<u8>, number: u64) {
    put_numbers(out, PING, &[number]);
}

pub fn put_end_previous(out: &mut Vec<u8>, number: u64, id: u64, user: &Sid) {
    out.put_u32((1 + 8 + 8 + user.encoded_len()) as u32);
    out.put_u8(END_PREVIOUS);
    out.put_u64(number);
    out.put_u64(id);
    user.put(out);
}

pub fn put_pong(out: &mut Vec<u8>, number: u64) {
    put_numbers(out, PONG, &[number]);
}

pub fn put_resume(out: &mut Vec<u8>, number: u64) {
    put_numbers(out, RESUME, &[number]);
}

pub fn put_leave(out: &mut Vec<u8>, serial: u64) {
    put_numbers(out, LEAVE, &[serial]);
}

/// The request with the TreeIds that the owner knows: its own, and that which it inherits.
pub fn at_trees<'a>(request: &VerifiedRequest<'a>, tree: u32, inherited: u32) -> VerifiedRequest<'a> {
    let mut there = VerifiedRequest { user: request.user.clone(), ..*request };
    there.header = there.header.at_tree(tree);
    there.related.tree_id = inherited;
    there
}

/// Precedes the runs of a session, and is said again when it has changed.
///
/// # Errors
/// It does not fit a frame; nothing is appended.
pub fn put_origin(out: &mut Vec<u8>, serial: u64, origin: &Origin) -> Result<(), TooLong> {
    let start = begin(out, ORIGIN);
    out.put_u64(serial);
    if let Err(e) = put_client(out, origin) {
        out.truncate(start);
        return Err(e);
    }
    put_flag(out, origin.session_encrypts);
    finish(out, start)
}

/// Its TreeIds are the owner's: see [`at_trees`]; those of the requests that follow are the same. `who`: up to version 1; from version 2
/// on the owner knows it.
///
/// # Errors
/// The requests do not fit a frame, or the version; nothing is appended.
pub fn put_run(
    out: &mut Vec<u8>,
    number: u64,
    target: Target,
    request: &VerifiedRequest<'_>,
    following: &[Following<'_>],
    who: Option<&Origin>,
) -> Result<(), TooLong> {
    // Names every field: one that comes to the seam has to go over the connection, too.
    let VerifiedRequest {
        header,
        message,
        session_serial,
        user: _,
        client: _,
        anonymous: _,
        negotiated: _,
        ip: _,
        address: _,
        encrypted,
        async_id,
        related,
        room,
    } = request;
    let of = RunOf {
        number,
        target,
        session_serial: *session_serial,
        encrypted: *encrypted,
        async_id: *async_id,
        related: *related,
    };
    let behind = following.iter().map(|f| (f.header.at_tree(header.tree_id()), f.message, f.room));
    let requests = std::iter::once((*header, *message, *room)).chain(behind);
    match who {
        Some(origin) => version1::put_run(out, &of, requests, origin),
        None => put_requests(out, &of, requests),
    }
}

/// What the requests of a run have in common, and what the first inherits.
struct RunOf {
    number: u64,
    target: Target,
    session_serial: u64,
    encrypted: bool,
    async_id: Option<u64>,
    related: Related,
}

fn put_requests<'a>(
    out: &mut Vec<u8>,
    of: &RunOf,
    requests: impl Iterator<Item = (Header, &'a [u8], usize)>,
) -> Result<(), TooLong> {
    let start = begin(out, RUN);
    out.put_u64(of.number);
    out.put_u128(of.target.pool);
    out.put_u64(of.target.epoch);
    out.put_u64(of.session_serial);
    put_flag(out, of.encrypted);
    put_optional(out, of.async_id);
    put_related(out, &of.related);
    let count_at = out.len();
    out.put_u8(0);
    for (n, (header, message, room)) in requests.enumerate() {
        let put = if n < RUN_REQUESTS_MAX { put_asked(out, &header, message, room) } else { Err(TooLong) };
        if let Err(e) = put {
            out.truncate(start);
            return Err(e);
        }
        out[count_at] += 1;
    }
    finish(out, start)
}

/// The header as it was verified, which is not that of the message: a related request has its session filled in.
fn put_asked(out: &mut Vec<u8>, header: &Header, message: &[u8], room: usize) -> Result<(), TooLong> {
    let rest = message.get(HEADER_BYTES..).unwrap_or_default();
    out.put_u32(u32::try_from(room).map_err(|_| TooLong)?);
    out.put_u32(u32::try_from(HEADER_BYTES + rest.len()).map_err(|_| TooLong)?);
    header.put(out);
    out.extend_from_slice(rest);
    Ok(())
}

/// # Errors
/// The answer does not fit a frame; nothing is appended.
pub fn put_answered(
    out: &mut Vec<u8>,
    number: u64,
    answer: &Replied,
    related: &Related,
    body: &[u8],
) -> Result<(), TooLong> {
    let start = begin(out, ANSWERED);
    out.put_u64(number);
    put_replied(out, answer);
    put_related(out, related);
    out.extend_from_slice(body);
    finish(out, start)
}

/// What stands before the body of most answers that have one.
const DONE_HEAD_BYTES: usize = LENGTH_BYTES + 1 + 8 + 5 + 22;

/// Leaves room for what [`finish_done`] puts before the body, which is appended meanwhile.
pub fn begin_done(out: &mut Vec<u8>) {
    out.resize(out.len() + DONE_HEAD_BYTES, 0);
}

/// The frame that began at `start` answers `Replied::Done`, with what was appended as its body.
///
/// # Errors
/// It does not fit a frame.
pub fn finish_done(
    out: &mut Vec<u8>,
    start: usize,
    number: u64,
    status: NtStatus,
    related: &Related,
) -> Result<(), TooLong> {
    let mut head = Vec::with_capacity(2 * DONE_HEAD_BYTES);
    put_answered(&mut head, number, &Replied::Done(status), related, &[])?;
    let len = head.len() + out.len() - start - DONE_HEAD_BYTES;
    if len - LENGTH_BYTES > FRAME_BYTES_MAX {
        return Err(TooLong);
    }
    head.patch_u32(0, (len - LENGTH_BYTES) as u32);
    if head.len() == DONE_HEAD_BYTES {
        out[start..start + DONE_HEAD_BYTES].copy_from_slice(&head);
    } else {
        out.splice(start..start + DONE_HEAD_BYTES, head);
    }
    Ok(())
}

pub fn put_notify(out: &mut Vec<u8>, to: Recipient, what: &Notification) {
    let start = begin(out, NOTIFY);
    put_notification(out, to, what);
    let len = out.len() - start - LENGTH_BYTES;
    out.patch_u32(start, len as u32);
}

impl Replied {
    /// None for what stays at the owner.
    pub fn of(outcome: Outcome) -> Option<Replied> {
        match outcome {
            Outcome::Done(status) => Some(Replied::Done(status)),
            Outcome::Error(status, data, contexts) => Some(Replied::Error(status, data, contexts)),
            Outcome::Pending(_) => Some(Replied::Pending),
            Outcome::Close(_) => Some(Replied::Close),
            Outcome::Block | Outcome::After | Outcome::Elsewhere => None,
        }
    }

    /// The answer of a request that has run to its end. None: it waits, or was not run.
    pub fn into_answer(self, related: Related) -> Option<Answer> {
        let outcome = match self {
            Replied::Done(status) => Outcome::Done(status),
            Replied::Error(status, data, contexts) => Outcome::Error(status, data, contexts),
            Replied::Pending | Replied::NotRun => return None,
            Replied::Close => Outcome::Close("the owner of the share ends the connection"),
            Replied::Moved => Outcome::Close("the owner of the share has changed"),
        };
        Some(Answer { outcome, related })
    }
}

impl ToOwner {
    /// A frame without its length.
    ///
    /// # Errors
    /// It is no message to an owner.
    pub fn parse(frame: &[u8], version: Version) -> Result<ToOwner, Malformed> {
        let mut r = Reader::new(frame);
        let message = match (r.u8()?, version) {
            (HELLO, version) => ToOwner::Hello(hello(&mut r, version)?),
            (RUN, Version::One) => {
                let (run, origin) = version1::run(&mut r)?;
                ToOwner::Run(Box::new(run), Some(Box::new(origin)))
            }
            (RUN, _) => ToOwner::Run(Box::new(run(&mut r)?), None),
            (ORIGIN, _) if version >= Version::Two => {
                ToOwner::Origin { serial: r.u64()?, origin: Box::new(origin(&mut r)?) }
            }
            (AGAIN, _) => ToOwner::Again { number: r.u64()?, async_id: r.u64()? },
            (END, _) => ToOwner::End { number: r.u64()? },
            (SESSION_END, _) => ToOwner::SessionEnd { serial: r.u64()?, keep_durable: flag(&mut r)? },
            (PING, _) => ToOwner::Ping(r.u64()?),
            (END_PREVIOUS, _) if version >= Version::Three => {
                ToOwner::EndPrevious { number: r.u64()?, id: r.u64()?, user: Sid::read(&mut r)? }
            }
            _ => return Err(Malformed("kind of a message to an owner")),
        };
        end(&r)?;
        Ok(message)
    }

    /// # Errors
    /// It does not fit a frame.
    pub fn put(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        match self {
            ToOwner::Hello(version) => put_hello(out, *version),
            ToOwner::Origin { serial, origin } => return put_origin(out, *serial, origin),
            ToOwner::Run(run, who) => return run.put(out, who.as_deref()),
            ToOwner::Again { number, async_id } => put_again(out, *number, *async_id),
            ToOwner::End { number } => put_end(out, *number),
            ToOwner::SessionEnd { serial, keep_durable } => put_session_end(out, *serial, *keep_durable),
            ToOwner::Ping(number) => put_ping(out, *number),
            ToOwner::EndPrevious { number, id, user } => put_end_previous(out, *number, *id, user),
        }
        Ok(())
    }
}

impl FromOwner<'_> {
    /// A frame without its length.
    ///
    /// # Errors
    /// It is no message of an owner.
    pub fn parse(frame: &[u8], version: Version) -> Result<FromOwner<'_>, Malformed> {
        let mut r = Reader::new(frame);
        let message = match r.u8()? {
            HELLO => FromOwner::Hello(hello(&mut r, version)?),
            ANSWERED => {
                let (number, answer, related) = (r.u64()?, replied(&mut r)?, related(&mut r)?);
                let body = r.rest();
                if !body.is_empty() && !matches!(answer, Replied::Done(_)) {
                    return Err(Malformed("a body without a response"));
                }
                FromOwner::Answered { number, answer, related, body }
            }
            RESUME => FromOwner::Resume { number: r.u64()? },
            NOTIFY => FromOwner::Notify(recipient(&mut r)?, notification(&mut r)?),
            LEAVE => FromOwner::Leave { serial: r.u64()? },
            PONG => FromOwner::Pong(r.u64()?),
            _ => return Err(Malformed("kind of a message of an owner")),
        };
        end(&r)?;
        Ok(message)
    }

    /// # Errors
    /// It does not fit a frame.
    pub fn put(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        match self {
            FromOwner::Hello(version) => put_hello(out, *version),
            FromOwner::Answered { number, answer, related, body } => {
                return put_answered(out, *number, answer, related, body);
            }
            FromOwner::Resume { number } => put_resume(out, *number),
            FromOwner::Notify(to, what) => put_notify(out, *to, what),
            FromOwner::Leave { serial } => put_leave(out, *serial),
            FromOwner::Pong(number) => put_pong(out, *number),
        }
        Ok(())
    }
}

fn end(r: &Reader<'_>) -> Result<(), Malformed> {
    if r.remaining() == 0 { Ok(()) } else { Err(Malformed("bytes behind a message")) }
}

fn hello(r: &mut Reader<'_>, version: Version) -> Result<Version, Malformed> {
    if r.u32()? != MAGIC {
        return Err(Malformed("hello"));
    }
    if r.u16()? != version as u16 {
        return Err(Malformed("a hello of another version than was settled"));
    }
    Ok(version)
}

fn origin(r: &mut Reader<'_>) -> Result<Origin, Malformed> {
    let client = client(r)?;
    Ok(Origin { session_encrypts: flag(r)?, ..client })
}

fn run(r: &mut Reader<'_>) -> Result<Run, Malformed> {
    let number = r.u64()?;
    let target = Target { pool: r.u128()?, epoch: r.u64()? };
    let (session_serial, encrypted, async_id) = (r.u64()?, flag(r)?, optional(r)?);
    let related = related(r)?;
    let count = usize::from(r.u8()?);
    if count == 0 || count > RUN_REQUESTS_MAX || number.checked_add(count as u64).is_none() {
        return Err(Malformed("requests of a run"));
    }
    let now = asked(r)?;
    let tree = now.header.async_or_tree;
    let following = (1..count).map(|_| {
        let asked = asked(r)?;
        let header = &asked.header;
        // They inherit what is before them: nothing else has a meaning here.
        match header.is(flags::RELATED_OPERATIONS) && header.async_or_tree == tree {
            true => Ok(asked),
            false => Err(Malformed("a request that is not related")),
        }
    });
    let following = following.collect::<Result<_, _>>()?;
    Ok(Run { number, target, session_serial, encrypted, async_id, related, now, following })
}

fn asked(r: &mut Reader<'_>) -> Result<Asked, Malformed> {
    let (room, len) = (r.u32()? as usize, r.u32()? as usize);
    let message = r.bytes(len)?.to_vec();
    Ok(Asked { header: Header::parse(&message)?, message, room })
}
