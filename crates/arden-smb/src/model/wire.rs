//! The seam's values as bytes, for a connection between the node of a client and the node that owns a share's pool. Every message
//! is a frame: its length in 4 bytes, a byte for its kind, its fields. Numbers are little-endian. Texts and lists have their length in
//! front. A flag is 0 or 1, an optional value a flag with the value behind it.
//!
//! Parsers are total: they answer a message or [`Malformed`], for any bytes. They allocate no more than a constant times the bytes that
//! are there, accept no value that has no meaning, and no byte behind the last field. A frame has at most [`FRAME_BYTES_MAX`] bytes.
//! Refuses to know what is done with a message, and who may send it: only nodes of one cluster speak this, over a connection that
//! proves it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use arden_auth::Token;
use arden_store::fs::{ClientId, LeaseBreak, OplockLevel};
use arden_wire::{
    Malformed, NtStatus,
    cursor::{Put, Reader},
    dtyp::Sid,
    smb2::{
        Dialect, FileId, HEADER_BYTES, Header,
        negotiate::{Cipher, SigningAlgorithm},
    },
};

use crate::model::{
    Negotiated,
    seam::{Answer, Notification, Outcome, Recipient, Related, VerifiedRequest},
};

/// Versions of this encoding, of which a hello names the sender's. One line for each:
/// 1: the first.
pub const VERSION: u16 = 1;
/// First bytes of a hello.
const MAGIC: u32 = 0x4657_4441;
/// The longest frame, without its length: the largest message of a client or the largest answer to it, and what is said beside it.
pub const FRAME_BYTES_MAX: usize = 20 << 20;
/// Where a frame has its kind.
pub const LENGTH_BYTES: usize = 4;
/// Text fields in bytes of UTF-8.
const TEXT_BYTES_MAX: usize = 4096;
/// Groups of a token, which a logon bounds too.
const GROUPS_MAX: usize = 4096;

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
    /// The first message: the sender's version.
    Hello(u16),
    Run(Box<Run>),
    /// A request that answered with a wait runs again, as that is over: by its number, with its AsyncId.
    Again {
        number: u64,
        async_id: u64,
    },
    /// The sender does not wait for this request any more. Where it waits, nothing of it happens.
    End {
        number: u64,
    },
    /// A session is gone, by its serial number at the sender.
    SessionEnd {
        serial: u64,
        keep_durable: bool,
    },
    /// Answered with the same number, behind everything that was sent before.
    Ping(u64),
}

/// From the owner to the node of the client.
#[derive(Debug)]
pub enum FromOwner<'a> {
    Hello(u16),
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
}

/// A verified request that owns all that it has, with its number on the connection between the nodes.
#[derive(Debug)]
pub struct Run {
    /// Of this connection, never the same twice.
    pub number: u64,
    pub target: Target,
    /// Every request of the session is encrypted.
    pub session_encrypts: bool,
    header: Header,
    /// From the header on.
    message: Vec<u8>,
    pub session_serial: u64,
    pub user: Arc<Token>,
    pub client: ClientId,
    anonymous: bool,
    negotiated: Negotiated,
    pub ip: IpAddr,
    address: String,
    encrypted: bool,
    pub async_id: Option<u64>,
    related: Related,
    room: usize,
}

impl Run {
    /// As the trees of this node take it. The session is known here by another serial number.
    pub fn verified(&self, session_serial: u64) -> VerifiedRequest<'_> {
        VerifiedRequest {
            header: self.header,
            message: &self.message,
            session_serial,
            user: self.user.clone(),
            client: self.client,
            anonymous: self.anonymous,
            negotiated: &self.negotiated,
            ip: self.ip,
            address: &self.address,
            encrypted: self.encrypted,
            async_id: self.async_id,
            related: self.related,
            room: self.room,
        }
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes that it keeps while it waits.
    pub fn bytes(&self) -> usize {
        size_of::<Run>() + self.message.capacity()
    }
}

const HELLO: u8 = 1;
const RUN: u8 = 2;
const AGAIN: u8 = 3;
const END: u8 = 4;
const SESSION_END: u8 = 5;
const PING: u8 = 6;
const ANSWERED: u8 = 17;
const RESUME: u8 = 18;
const NOTIFY: u8 = 19;
const LEAVE: u8 = 20;
const PONG: u8 = 21;

const DONE: u8 = 0;
const ERROR: u8 = 1;
const PENDING: u8 = 2;
const CLOSE: u8 = 3;
const MOVED: u8 = 4;

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

/// The first message of either side.
pub fn put_hello(out: &mut Vec<u8>) {
    out.put_u32(7);
    out.put_u8(HELLO);
    out.put_u32(MAGIC);
    out.put_u16(VERSION);
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
    there.header.async_or_tree = u64::from(tree) << 32;
    there.related.tree_id = inherited;
    there
}

/// Its TreeIds are the owner's: see [`at_trees`].
///
/// # Errors
/// The request does not fit a frame; nothing is appended.
pub fn put_run(
    out: &mut Vec<u8>,
    number: u64,
    target: Target,
    session_encrypts: bool,
    request: &VerifiedRequest<'_>,
) -> Result<(), TooLong> {
    // Names every field: one that comes to the seam has to go over the connection, too.
    let VerifiedRequest {
        header,
        message,
        session_serial,
        user,
        client,
        anonymous,
        negotiated,
        ip,
        address,
        encrypted,
        async_id,
        related,
        room,
    } = request;
    let start = begin(out, RUN);
    let mut put = || {
        out.put_u64(number);
        out.put_u128(target.pool);
        out.put_u64(target.epoch);
        put_flag(out, session_encrypts);
        out.put_u64(*session_serial);
        put_token(out, user)?;
        out.put_u128(client.0);
        put_flag(out, *anonymous);
        put_negotiated(out, negotiated)?;
        put_ip(out, *ip);
        put_text(out, address)?;
        put_flag(out, *encrypted);
        put_optional(out, *async_id);
        put_related(out, related);
        out.put_u32(u32::try_from(*room).map_err(|_| TooLong)?);
        // The header as it was verified, which is not that of the message: a related request has its session filled in.
        header.put(out);
        out.extend_from_slice(message.get(HEADER_BYTES..).unwrap_or_default());
        Ok(())
    };
    if let Err(e) = put() {
        out.truncate(start);
        return Err(e);
    }
    finish(out, start)
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
    match answer {
        Replied::Done(status) => {
            out.put_u8(DONE);
            out.put_u32(status.0);
        }
        Replied::Error(status, data, contexts) => {
            out.put_u8(ERROR);
            out.put_u32(status.0);
            out.put_u8(*contexts);
            out.put_u32(data.len() as u32);
            out.extend_from_slice(data);
        }
        Replied::Pending => out.put_u8(PENDING),
        Replied::Close => out.put_u8(CLOSE),
        Replied::Moved => out.put_u8(MOVED),
    }
    put_related(out, related);
    out.extend_from_slice(body);
    finish(out, start)
}

/// The opens of a lease stay the owner's own.
pub fn put_notify(out: &mut Vec<u8>, to: Recipient, what: &Notification) {
    let start = begin(out, NOTIFY);
    match to {
        Recipient::Session { id, serial } => {
            out.put_u8(0);
            out.put_u64(id);
            out.put_u64(serial);
        }
        Recipient::Client(ClientId(client)) => {
            out.put_u8(1);
            out.put_u128(client);
        }
    }
    match what {
        Notification::OplockBreak { id, to } => {
            out.put_u8(0);
            put_file(out, *id);
            out.put_u8(*to as u8);
        }
        Notification::LeaseBreak(LeaseBreak { client, key, from, to, ack, epoch, version, opens: _ }) => {
            out.put_u8(1);
            out.put_u128(client.0);
            out.put_u128(*key);
            out.put_u32(*from);
            out.put_u32(*to);
            put_flag(out, *ack);
            out.put_u16(*epoch);
            out.put_u8(*version);
        }
    }
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

    /// The answer of a request that does not wait. None: it waits.
    pub fn into_answer(self, related: Related) -> Option<Answer> {
        let outcome = match self {
            Replied::Done(status) => Outcome::Done(status),
            Replied::Error(status, data, contexts) => Outcome::Error(status, data, contexts),
            Replied::Pending => return None,
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
    pub fn parse(frame: &[u8]) -> Result<ToOwner, Malformed> {
        let mut r = Reader::new(frame);
        let message = match r.u8()? {
            HELLO => ToOwner::Hello(hello(&mut r)?),
            RUN => ToOwner::Run(Box::new(run(&mut r)?)),
            AGAIN => ToOwner::Again { number: r.u64()?, async_id: r.u64()? },
            END => ToOwner::End { number: r.u64()? },
            SESSION_END => ToOwner::SessionEnd { serial: r.u64()?, keep_durable: flag(&mut r)? },
            PING => ToOwner::Ping(r.u64()?),
            _ => return Err(Malformed("kind of a message to an owner")),
        };
        end(&r)?;
        Ok(message)
    }

    /// # Errors
    /// It does not fit a frame.
    pub fn put(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        match self {
            ToOwner::Hello(_) => put_hello(out),
            ToOwner::Run(run) => {
                let request = run.verified(run.session_serial);
                return put_run(out, run.number, run.target, run.session_encrypts, &request);
            }
            ToOwner::Again { number, async_id } => put_again(out, *number, *async_id),
            ToOwner::End { number } => put_end(out, *number),
            ToOwner::SessionEnd { serial, keep_durable } => put_session_end(out, *serial, *keep_durable),
            ToOwner::Ping(number) => put_ping(out, *number),
        }
        Ok(())
    }
}

impl FromOwner<'_> {
    /// A frame without its length.
    ///
    /// # Errors
    /// It is no message of an owner.
    pub fn parse(frame: &[u8]) -> Result<FromOwner<'_>, Malformed> {
        let mut r = Reader::new(frame);
        let message = match r.u8()? {
            HELLO => FromOwner::Hello(hello(&mut r)?),
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
            FromOwner::Hello(_) => put_hello(out),
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

fn hello(r: &mut Reader<'_>) -> Result<u16, Malformed> {
    if r.u32()? != MAGIC {
        return Err(Malformed("hello"));
    }
    match r.u16()? {
        VERSION => Ok(VERSION),
        _ => Err(Malformed("version")),
    }
}

fn run(r: &mut Reader<'_>) -> Result<Run, Malformed> {
    let number = r.u64()?;
    let target = Target { pool: r.u128()?, epoch: r.u64()? };
    let (session_encrypts, session_serial) = (flag(r)?, r.u64()?);
    let user = Arc::new(token(r)?);
    let (client, anonymous) = (ClientId(r.u128()?), flag(r)?);
    let negotiated = negotiated(r)?;
    let (ip, address) = (ip(r)?, text(r)?);
    let (encrypted, async_id) = (flag(r)?, optional(r)?);
    let related = related(r)?;
    let room = r.u32()? as usize;
    let message = r.rest().to_vec();
    let header = Header::parse(&message)?;
    Ok(Run {
        number,
        target,
        session_encrypts,
        header,
        message,
        session_serial,
        user,
        client,
        anonymous,
        negotiated,
        ip,
        address,
        encrypted,
        async_id,
        related,
        room,
    })
}

fn put_flag(out: &mut Vec<u8>, flag: bool) {
    out.put_u8(u8::from(flag));
}

fn flag(r: &mut Reader<'_>) -> Result<bool, Malformed> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("flag")),
    }
}

fn put_optional(out: &mut Vec<u8>, value: Option<u64>) {
    put_flag(out, value.is_some());
    value.into_iter().for_each(|v| out.put_u64(v));
}

fn optional(r: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    if flag(r)? { r.u64().map(Some) } else { Ok(None) }
}

fn put_text(out: &mut Vec<u8>, text: &str) -> Result<(), TooLong> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(TooLong);
    }
    out.put_u16(text.len() as u16);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

fn text(r: &mut Reader<'_>) -> Result<String, Malformed> {
    let len = usize::from(r.u16()?);
    if len > TEXT_BYTES_MAX {
        return Err(Malformed("text too long"));
    }
    let bytes = r.bytes(len)?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("text"))
}

fn put_token(out: &mut Vec<u8>, token: &Token) -> Result<(), TooLong> {
    let Token { user, user_name, groups, privileges } = token;
    if groups.len() > GROUPS_MAX {
        return Err(TooLong);
    }
    user.put(out);
    put_text(out, user_name)?;
    out.put_u16(groups.len() as u16);
    groups.iter().for_each(|group| group.put(out));
    out.put_u32(*privileges);
    Ok(())
}

fn token(r: &mut Reader<'_>) -> Result<Token, Malformed> {
    let (user, user_name) = (Sid::read(r)?, text(r)?);
    let count = usize::from(r.u16()?);
    if count > GROUPS_MAX {
        return Err(Malformed("groups"));
    }
    // Grows with what is there, not with what is said.
    let groups = (0..count).map(|_| Sid::read(r)).collect::<Result<_, _>>()?;
    Ok(Token { user, user_name, groups, privileges: r.u32()? })
}

fn put_negotiated(out: &mut Vec<u8>, n: &Negotiated) -> Result<(), TooLong> {
    let Negotiated {
        dialect,
        client_guid,
        client_capabilities,
        client_security_mode,
        client_dialects,
        server_capabilities,
        server_security_mode,
        cipher,
        signing,
        max_transact,
        max_read,
        max_write,
    } = n;
    out.put_u16(*dialect as u16);
    out.put_u128(*client_guid);
    out.put_u32(*client_capabilities);
    out.put_u16(*client_security_mode);
    out.put_u16(u16::try_from(client_dialects.len()).map_err(|_| TooLong)?);
    client_dialects.iter().for_each(|d| out.put_u16(*d));
    out.put_u32(*server_capabilities);
    out.put_u16(*server_security_mode);
    // No cipher has the number 0.
    out.put_u16(cipher.map_or(0, |c| c as u16));
    out.put_u16(*signing as u16);
    [max_transact, max_read, max_write].into_iter().for_each(|max| out.put_u32(*max));
    Ok(())
}

fn negotiated(r: &mut Reader<'_>) -> Result<Negotiated, Malformed> {
    let dialect = Dialect::from_u16(r.u16()?).ok_or(Malformed("dialect"))?;
    let (client_guid, client_capabilities, client_security_mode) = (r.u128()?, r.u32()?, r.u16()?);
    let count = usize::from(r.u16()?);
    let dialects = r.bytes(2 * count)?;
    let client_dialects = dialects.chunks_exact(2).map(|d| u16::from_le_bytes([d[0], d[1]])).collect();
    let (server_capabilities, server_security_mode) = (r.u32()?, r.u16()?);
    let cipher = match r.u16()? {
        0 => None,
        id => Some(Cipher::from_u16(id).ok_or(Malformed("cipher"))?),
    };
    let signing = SigningAlgorithm::from_u16(r.u16()?).ok_or(Malformed("signing algorithm"))?;
    Ok(Negotiated {
        dialect,
        client_guid,
        client_capabilities,
        client_security_mode,
        client_dialects,
        server_capabilities,
        server_security_mode,
        cipher,
        signing,
        max_transact: r.u32()?,
        max_read: r.u32()?,
        max_write: r.u32()?,
    })
}

fn put_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(v4) => {
            out.put_u8(4);
            out.extend_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            out.put_u8(6);
            out.extend_from_slice(&v6.octets());
        }
    }
}

fn ip(r: &mut Reader<'_>) -> Result<IpAddr, Malformed> {
    match r.u8()? {
        4 => Ok(Ipv4Addr::from(r.array::<4>()?).into()),
        6 => Ok(Ipv6Addr::from(r.array::<16>()?).into()),
        _ => Err(Malformed("kind of an address")),
    }
}

fn put_file(out: &mut Vec<u8>, id: FileId) {
    out.put_u64(id.persistent);
    out.put_u64(id.volatile);
}

fn file(r: &mut Reader<'_>) -> Result<FileId, Malformed> {
    Ok(FileId { persistent: r.u64()?, volatile: r.u64()? })
}

fn put_related(out: &mut Vec<u8>, related: &Related) {
    let Related { file, tree_id, failed } = related;
    put_flag(out, file.is_some());
    file.iter().for_each(|id| put_file(out, *id));
    out.put_u32(*tree_id);
    put_flag(out, failed.is_some());
    failed.iter().for_each(|status| out.put_u32(status.0));
}

fn related(r: &mut Reader<'_>) -> Result<Related, Malformed> {
    let file = if flag(r)? { Some(file(r)?) } else { None };
    let tree_id = r.u32()?;
    let failed = if flag(r)? { Some(NtStatus(r.u32()?)) } else { None };
    Ok(Related { file, tree_id, failed })
}

fn replied(r: &mut Reader<'_>) -> Result<Replied, Malformed> {
    match r.u8()? {
        DONE => Ok(Replied::Done(NtStatus(r.u32()?))),
        ERROR => {
            let (status, contexts, len) = (NtStatus(r.u32()?), r.u8()?, r.u32()? as usize);
            Ok(Replied::Error(status, r.bytes(len)?.to_vec(), contexts))
        }
        PENDING => Ok(Replied::Pending),
        CLOSE => Ok(Replied::Close),
        MOVED => Ok(Replied::Moved),
        _ => Err(Malformed("kind of an answer")),
    }
}

fn recipient(r: &mut Reader<'_>) -> Result<Recipient, Malformed> {
    match r.u8()? {
        0 => Ok(Recipient::Session { id: r.u64()?, serial: r.u64()? }),
        1 => Ok(Recipient::Client(ClientId(r.u128()?))),
        _ => Err(Malformed("kind of a recipient")),
    }
}

fn notification(r: &mut Reader<'_>) -> Result<Notification, Malformed> {
    match r.u8()? {
        0 => {
            let id = file(r)?;
            let to = match r.u8()? {
                0 => OplockLevel::None,
                1 => OplockLevel::LevelII,
                2 => OplockLevel::Exclusive,
                3 => OplockLevel::Batch,
                _ => return Err(Malformed("oplock level")),
            };
            Ok(Notification::OplockBreak { id, to })
        }
        1 => Ok(Notification::LeaseBreak(LeaseBreak {
            client: ClientId(r.u128()?),
            key: r.u128()?,
            from: r.u32()?,
            to: r.u32()?,
            ack: flag(r)?,
            epoch: r.u16()?,
            version: r.u8()?,
            opens: Vec::new(),
        })),
        _ => Err(Malformed("kind of a notification")),
    }
}
