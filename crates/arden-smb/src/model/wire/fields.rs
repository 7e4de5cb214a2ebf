//! The fields of messages between nodes.

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
        Dialect, FileId,
        negotiate::{Cipher, SigningAlgorithm},
    },
};

use super::{Origin, Replied, TooLong};
use crate::model::{
    Negotiated,
    seam::{Notification, Recipient, Related},
};

/// Text fields in bytes of UTF-8.
const TEXT_BYTES_MAX: usize = 4096;
/// Groups of a token, which a logon bounds too.
const GROUPS_MAX: usize = 4096;

const DONE: u8 = 0;
const ERROR: u8 = 1;
const PENDING: u8 = 2;
const CLOSE: u8 = 3;
const MOVED: u8 = 4;
const NOT_RUN: u8 = 5;

/// All of it but whether the session encrypts.
pub(super) fn put_client(out: &mut Vec<u8>, origin: &Origin) -> Result<(), TooLong> {
    let Origin { user, client, anonymous, negotiated, ip, address, session_encrypts: _ } = origin;
    put_token(out, user)?;
    out.put_u128(client.0);
    put_flag(out, *anonymous);
    put_negotiated(out, negotiated)?;
    put_ip(out, *ip);
    put_text(out, address)
}

/// As [`put_client`] has it, of a session that does not encrypt.
pub(super) fn client(r: &mut Reader<'_>) -> Result<Origin, Malformed> {
    let user = Arc::new(token(r)?);
    let (client, anonymous) = (ClientId(r.u128()?), flag(r)?);
    let negotiated = negotiated(r)?;
    Ok(Origin { user, client, anonymous, negotiated, ip: ip(r)?, address: text(r)?, session_encrypts: false })
}

pub(super) fn put_flag(out: &mut Vec<u8>, flag: bool) {
    out.put_u8(u8::from(flag));
}

pub(super) fn flag(r: &mut Reader<'_>) -> Result<bool, Malformed> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("flag")),
    }
}

pub(super) fn put_optional(out: &mut Vec<u8>, value: Option<u64>) {
    put_flag(out, value.is_some());
    value.into_iter().for_each(|v| out.put_u64(v));
}

pub(super) fn optional(r: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    if flag(r)? { r.u64().map(Some) } else { Ok(None) }
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) -> Result<(), TooLong> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(TooLong);
    }
    out.put_u16(text.len() as u16);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

pub(super) fn text(r: &mut Reader<'_>) -> Result<String, Malformed> {
    let len = usize::from(r.u16()?);
    if len > TEXT_BYTES_MAX {
        return Err(Malformed("text too long"));
    }
    let bytes = r.bytes(len)?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("text"))
}

pub(super) fn put_token(out: &mut Vec<u8>, token: &Token) -> Result<(), TooLong> {
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

pub(super) fn token(r: &mut Reader<'_>) -> Result<Token, Malformed> {
    let (user, user_name) = (Sid::read(r)?, text(r)?);
    let count = usize::from(r.u16()?);
    if count > GROUPS_MAX {
        return Err(Malformed("groups"));
    }
    // Grows with what is there, not with what is said.
    let groups = (0..count).map(|_| Sid::read(r)).collect::<Result<_, _>>()?;
    Ok(Token { user, user_name, groups, privileges: r.u32()? })
}

pub(super) fn put_negotiated(out: &mut Vec<u8>, n: &Negotiated) -> Result<(), TooLong> {
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

pub(super) fn negotiated(r: &mut Reader<'_>) -> Result<Negotiated, Malformed> {
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

pub(super) fn put_ip(out: &mut Vec<u8>, ip: IpAddr) {
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

pub(super) fn ip(r: &mut Reader<'_>) -> Result<IpAddr, Malformed> {
    match r.u8()? {
        4 => Ok(Ipv4Addr::from(r.array::<4>()?).into()),
        6 => Ok(Ipv6Addr::from(r.array::<16>()?).into()),
        _ => Err(Malformed("kind of an address")),
    }
}

pub(super) fn put_file(out: &mut Vec<u8>, id: FileId) {
    out.put_u64(id.persistent);
    out.put_u64(id.volatile);
}

pub(super) fn file(r: &mut Reader<'_>) -> Result<FileId, Malformed> {
    Ok(FileId { persistent: r.u64()?, volatile: r.u64()? })
}

pub(super) fn put_related(out: &mut Vec<u8>, related: &Related) {
    let Related { file, tree_id, failed } = related;
    put_flag(out, file.is_some());
    file.iter().for_each(|id| put_file(out, *id));
    out.put_u32(*tree_id);
    put_flag(out, failed.is_some());
    failed.iter().for_each(|status| out.put_u32(status.0));
}

pub(super) fn related(r: &mut Reader<'_>) -> Result<Related, Malformed> {
    let file = if flag(r)? { Some(file(r)?) } else { None };
    let tree_id = r.u32()?;
    let failed = if flag(r)? { Some(NtStatus(r.u32()?)) } else { None };
    Ok(Related { file, tree_id, failed })
}

pub(super) fn put_replied(out: &mut Vec<u8>, answer: &Replied) {
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
        Replied::NotRun => out.put_u8(NOT_RUN),
    }
}

pub(super) fn replied(r: &mut Reader<'_>) -> Result<Replied, Malformed> {
    match r.u8()? {
        DONE => Ok(Replied::Done(NtStatus(r.u32()?))),
        ERROR => {
            let (status, contexts, len) = (NtStatus(r.u32()?), r.u8()?, r.u32()? as usize);
            Ok(Replied::Error(status, r.bytes(len)?.to_vec(), contexts))
        }
        PENDING => Ok(Replied::Pending),
        CLOSE => Ok(Replied::Close),
        MOVED => Ok(Replied::Moved),
        NOT_RUN => Ok(Replied::NotRun),
        _ => Err(Malformed("kind of an answer")),
    }
}

pub(super) fn recipient(r: &mut Reader<'_>) -> Result<Recipient, Malformed> {
    match r.u8()? {
        0 => Ok(Recipient::Session { id: r.u64()?, serial: r.u64()? }),
        1 => Ok(Recipient::Client(ClientId(r.u128()?))),
        _ => Err(Malformed("kind of a recipient")),
    }
}

pub(super) fn notification(r: &mut Reader<'_>) -> Result<Notification, Malformed> {
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

/// The opens of a lease stay the owner's own.
pub(super) fn put_notification(out: &mut Vec<u8>, to: Recipient, what: &Notification) {
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
}
