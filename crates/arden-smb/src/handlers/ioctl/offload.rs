//! Copy offload: FSCTL_OFFLOAD_READ and FSCTL_OFFLOAD_WRITE, [MS-FSCC] 2.3.41 to 2.3.44, and the tokens between them. A token
//! holds what was read, by reference, until its time is over; only the user who got it may use it.

use std::{sync::Arc, time::Duration};

use arden_store::{error::StoreError, table::Open};
use arden_wire::{
    NtStatus,
    cursor::{Put, Reader},
    smb2::io::IoctlRequest,
};

use crate::{
    handlers::request::{Fail, Request},
    trees::tokens::{TOKEN_ID_BYTES, Token},
};

const READ_INPUT_BYTES: usize = 32;
const READ_OUTPUT_BYTES: usize = 16 + TOKEN_BYTES;
const WRITE_INPUT_BYTES: usize = 32 + TOKEN_BYTES;
const WRITE_OUTPUT_BYTES: usize = 16;
/// STORAGE_OFFLOAD_TOKEN, [MS-FSCC] 2.1.11.
const TOKEN_BYTES: usize = 512;
/// Any but the well-known ones.
const TOKEN_TYPE: u32 = 0x4152_4445;
const TOKEN_TYPE_ZERO_DATA: u32 = 0xFFFF_0001;
const ALL_ZERO_BEYOND_CURRENT_RANGE: u32 = 1;

/// When a client does not say, and at most.
const TIME_DEFAULT: Duration = Duration::from_secs(30);
const TIME_MAX: Duration = Duration::from_secs(300);

type Output = Result<(NtStatus, Vec<u8>), Fail>;

fn check_sizes(ioctl: &IoctlRequest<'_>, input: usize, output: usize) -> Result<(), NtStatus> {
    let fits = ioctl.input.len() >= input && ioctl.max_output_response as usize >= output;
    if fits { Ok(()) } else { Err(NtStatus::BUFFER_TOO_SMALL) }
}

/// [MS-FSA] 2.1.5.10.20.
pub fn read(request: &Request<'_>, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    file.fs().check_offload()?;
    check_sizes(ioctl, READ_INPUT_BYTES, READ_OUTPUT_BYTES)?;
    let mut r = Reader::new(ioctl.input);
    let (size, _flags, time_to_live_ms) = (r.u32()?, r.u32()?, r.u32()?);
    r.skip(4)?;
    let (offset, len) = (r.u64()?, r.u64()?);
    if size as usize != READ_INPUT_BYTES {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if !request.may_block {
        return Err(Fail::Block);
    }
    let Some(done) = file.fs().offload_read(file, offset, len)? else { return Ok((NtStatus::SUCCESS, Vec::new())) };
    let mut id = [0; TOKEN_ID_BYTES];
    let mut kind = TOKEN_TYPE_ZERO_DATA;
    if let Some(frozen) = done.frozen {
        let time = Duration::from_millis(u64::from(time_to_live_ms));
        let time = if time.is_zero() { TIME_DEFAULT } else { time.min(TIME_MAX) };
        (id, kind) = (request.trees.random(), TOKEN_TYPE);
        let token = Token { frozen, user: request.verified.user.user.clone(), expires: request.now + time };
        request.trees.tokens.expire(request.now);
        request.trees.tokens.add(id, token)?;
    }
    let mut out = Vec::with_capacity(READ_OUTPUT_BYTES);
    out.put_u32(READ_OUTPUT_BYTES as u32);
    out.put_u32(if done.to_the_end { ALL_ZERO_BEYOND_CURRENT_RANGE } else { 0 });
    out.put_u64(done.transferred);
    out.extend_from_slice(&kind.to_be_bytes());
    out.put_u16(0);
    out.extend_from_slice(&(TOKEN_ID_BYTES as u16).to_be_bytes());
    out.extend_from_slice(&id);
    out.resize(READ_OUTPUT_BYTES, 0);
    Ok((NtStatus::SUCCESS, out))
}

/// [MS-FSA] 2.1.5.10.21. Between volumes, and to where blocks cannot be shared, the bytes are copied.
pub fn write(request: &Request<'_>, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    file.fs().check_offload()?;
    if file.fs().is_read_only() {
        return Err(NtStatus::MEDIA_WRITE_PROTECTED.into());
    }
    check_sizes(ioctl, WRITE_INPUT_BYTES, WRITE_OUTPUT_BYTES)?;
    let mut r = Reader::new(ioctl.input);
    let (size, _flags) = (r.u32()?, r.u32()?);
    let (offset, len, source_offset) = (r.u64()?, r.u64()?, r.u64()?);
    if size as usize != WRITE_INPUT_BYTES {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let kind = r.bytes(4)?;
    r.skip(2)?;
    let id_bytes = r.bytes(2)?;
    let id = r.bytes(TOKEN_ID_BYTES)?;
    if !request.may_block {
        return Err(Fail::Block);
    }
    let source = || {
        if kind == TOKEN_TYPE_ZERO_DATA.to_be_bytes() {
            return Ok(None);
        }
        let ours = kind == TOKEN_TYPE.to_be_bytes() && id_bytes == (TOKEN_ID_BYTES as u16).to_be_bytes();
        let found = request.trees.tokens.find(id, &request.verified.user.user, request.now);
        found.filter(|_| ours).map(Some).ok_or(StoreError::InvalidToken)
    };
    let written = file.fs().offload_write(source, source_offset, file, offset, len, request.cause())?;
    let mut out = Vec::with_capacity(WRITE_OUTPUT_BYTES);
    out.put_u32(WRITE_OUTPUT_BYTES as u32);
    out.put_u32(0);
    out.put_u64(written);
    Ok((NtStatus::SUCCESS, out))
}
