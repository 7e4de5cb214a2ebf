//! Runs as version 1 says them: with who asks, and with one request.

use std::collections::VecDeque;

use arden_wire::{
    Malformed,
    cursor::{Put, Reader},
    smb2::{HEADER_BYTES, Header},
};

use super::{
    Asked, Origin, RUN, Run, RunOf, Target, TooLong, begin,
    fields::{client, flag, optional, put_client, put_flag, put_optional, put_related, related},
    finish,
};

pub(super) fn put_run<'a>(
    out: &mut Vec<u8>,
    of: &RunOf,
    mut requests: impl Iterator<Item = (Header, &'a [u8], usize)>,
    origin: &Origin,
) -> Result<(), TooLong> {
    let (Some((header, message, room)), None) = (requests.next(), requests.next()) else { return Err(TooLong) };
    let room = u32::try_from(room).map_err(|_| TooLong)?;
    let start = begin(out, RUN);
    out.put_u64(of.number);
    out.put_u128(of.target.pool);
    out.put_u64(of.target.epoch);
    put_flag(out, origin.session_encrypts);
    out.put_u64(of.session_serial);
    if let Err(e) = put_client(out, origin) {
        out.truncate(start);
        return Err(e);
    }
    put_flag(out, of.encrypted);
    put_optional(out, of.async_id);
    put_related(out, &of.related);
    out.put_u32(room);
    header.put(out);
    out.extend_from_slice(message.get(HEADER_BYTES..).unwrap_or_default());
    finish(out, start)
}

pub(super) fn run(r: &mut Reader<'_>) -> Result<(Run, Origin), Malformed> {
    let number = r.u64()?;
    let target = Target { pool: r.u128()?, epoch: r.u64()? };
    let (session_encrypts, session_serial) = (flag(r)?, r.u64()?);
    let origin = Origin { session_encrypts, ..client(r)? };
    let (encrypted, async_id, related, room) = (flag(r)?, optional(r)?, related(r)?, r.u32()? as usize);
    let message = r.rest().to_vec();
    let now = Asked { header: Header::parse(&message)?, message, room };
    let following = VecDeque::new();
    Ok((Run { number, target, session_serial, encrypted, async_id, related, now, following }, origin))
}
