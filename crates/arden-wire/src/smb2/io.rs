//! CLOSE, FLUSH, READ, WRITE, LOCK, IOCTL and oplock and lease breaks, [MS-SMB2] 2.2.15 to 2.2.32.

use crate::{
    FileTime, Malformed,
    cursor::{Put, slice_at},
    smb2::{FileId, HEADER_BYTES, session::body},
};

/// A flag of CLOSE, [MS-SMB2] 2.2.15: the response holds the attributes.
pub const CLOSE_POSTQUERY_ATTRIB: u16 = 1;

/// Decodes a CLOSE request, [MS-SMB2] 2.2.15, to its flags and its file.
///
/// # Errors
/// A field is out of its range, or the bytes end early.
pub fn parse_close(message: &[u8]) -> Result<(u16, FileId), Malformed> {
    let mut r = body(message, 24)?;
    let flags = r.u16()?;
    r.skip(4)?;
    Ok((flags, FileId::read(&mut r)?))
}

/// CLOSE response, [MS-SMB2] 2.2.16. Sizes are in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct CloseResponse {
    pub flags: u16,
    pub creation: FileTime,
    pub last_access: FileTime,
    pub last_write: FileTime,
    pub change: FileTime,
    pub allocation: u64,
    pub end_of_file: u64,
    pub attributes: u32,
}

impl CloseResponse {
    /// Appends the body.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(60);
        out.put_u16(self.flags);
        out.put_u32(0);
        for t in [self.creation, self.last_access, self.last_write, self.change] {
            out.put_u64(t.0);
        }
        out.put_u64(self.allocation);
        out.put_u64(self.end_of_file);
        out.put_u32(self.attributes);
    }
}

/// Decodes a FLUSH request, [MS-SMB2] 2.2.17, to its file.
///
/// # Errors
/// A field is out of its range, or the bytes end early.
pub fn parse_flush(message: &[u8]) -> Result<FileId, Malformed> {
    let mut r = body(message, 24)?;
    r.skip(6)?;
    FileId::read(&mut r)
}

/// READ request, [MS-SMB2] 2.2.19. `length`, `offset` and `minimum_count` are in bytes.
#[derive(Debug, Clone, Copy)]
pub struct ReadRequest {
    pub flags: u8,
    pub length: u32,
    pub offset: u64,
    pub file_id: FileId,
    pub minimum_count: u32,
    pub channel: u32,
}

/// A flag of READ, [MS-SMB2] 2.2.19: intermediate layers do not cache the data.
pub const READFLAG_READ_UNBUFFERED: u8 = 1;

impl ReadRequest {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &[u8]) -> Result<ReadRequest, Malformed> {
        let mut r = body(message, 49)?;
        r.skip(1)?;
        let flags = r.u8()?;
        let length = r.u32()?;
        let offset = r.u64()?;
        let file_id = FileId::read(&mut r)?;
        let minimum_count = r.u32()?;
        let channel = r.u32()?;
        Ok(ReadRequest { flags, length, offset, file_id, minimum_count, channel })
    }
}

/// Appends the fixed part of a READ response, [MS-SMB2] 2.2.20; the data follows it. Returns the offset of DataLength
/// in `out`.
pub fn put_read_response(out: &mut Vec<u8>, len: u32) -> usize {
    out.put_u16(17);
    out.put_u8((HEADER_BYTES + 16) as u8);
    out.put_u8(0);
    let at = out.len();
    out.put_u32(len);
    out.put_u32(0);
    out.put_u32(0);
    at
}

/// WRITE request, [MS-SMB2] 2.2.21. `offset` is in bytes.
#[derive(Debug, Clone, Copy)]
pub struct WriteRequest<'a> {
    pub offset: u64,
    pub file_id: FileId,
    pub channel: u32,
    pub flags: u32,
    pub data: &'a [u8],
}

/// A flag of WRITE, [MS-SMB2] 2.2.21: the data is durable before the answer.
pub const WRITEFLAG_WRITE_THROUGH: u32 = 1;
/// A flag of WRITE, [MS-SMB2] 2.2.21: intermediate layers do not cache the data.
pub const WRITEFLAG_WRITE_UNBUFFERED: u32 = 2;

impl<'a> WriteRequest<'a> {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = body(message, 49)?;
        let data_offset = usize::from(r.u16()?);
        let length = r.u32()? as usize;
        let offset = r.u64()?;
        let file_id = FileId::read(&mut r)?;
        let channel = r.u32()?;
        r.skip(8)?;
        let flags = r.u32()?;
        // [MS-SMB2] 3.3.5.13: a DataOffset above 0x100 is refused.
        if data_offset > 0x100 {
            return Err(Malformed("write data offset"));
        }
        let data = if length == 0 { &[][..] } else { slice_at(message, data_offset, length)? };
        if length != 0 && data_offset < HEADER_BYTES + 48 {
            return Err(Malformed("write data offset"));
        }
        Ok(WriteRequest { offset, file_id, channel, flags, data })
    }
}

/// Appends a WRITE response, [MS-SMB2] 2.2.22, for `count` bytes written.
pub fn put_write_response(out: &mut Vec<u8>, count: u32) {
    out.put_u16(17);
    out.put_u16(0);
    out.put_u32(count);
    out.put_u64(0);
}

/// SMB2_LOCK_ELEMENT, [MS-SMB2] 2.2.26.1. `offset` and `length` are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockElement {
    pub offset: u64,
    pub length: u64,
    pub flags: u32,
}

/// Flags of a lock element, [MS-SMB2] 2.2.26.1.
pub mod lock_flags {
    pub const SHARED: u32 = 1;
    pub const EXCLUSIVE: u32 = 2;
    pub const UNLOCK: u32 = 4;
    pub const FAIL_IMMEDIATELY: u32 = 0x10;
}

/// LOCK request, [MS-SMB2] 2.2.26.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// LockSequenceNumber in the low 4 bits, LockSequenceIndex above.
    pub sequence: u32,
    pub file_id: FileId,
    pub locks: Vec<LockElement>,
}

/// Elements of one LOCK request; more are malformed.
pub const LOCK_ELEMENTS_MAX: usize = 4096;

impl LockRequest {
    /// Decodes a message that starts with the SMB2 header.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &[u8]) -> Result<LockRequest, Malformed> {
        let mut r = body(message, 48)?;
        let count = usize::from(r.u16()?);
        let sequence = r.u32()?;
        let file_id = FileId::read(&mut r)?;
        if count == 0 || count > LOCK_ELEMENTS_MAX {
            return Err(Malformed("lock count"));
        }
        let mut locks = Vec::with_capacity(count);
        for _ in 0..count {
            let (offset, length, flags) = (r.u64()?, r.u64()?, r.u32()?);
            r.skip(4)?;
            locks.push(LockElement { offset, length, flags });
        }
        Ok(LockRequest { sequence, file_id, locks })
    }
}

/// IOCTL request, [MS-SMB2] 2.2.31. The largest responses are in bytes.
#[derive(Debug, Clone, Copy)]
pub struct IoctlRequest<'a> {
    pub ctl_code: u32,
    pub file_id: FileId,
    pub input: &'a [u8],
    pub max_input_response: u32,
    pub max_output_response: u32,
    pub is_fsctl: bool,
}

impl<'a> IoctlRequest<'a> {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = body(message, 57)?;
        r.skip(2)?;
        let ctl_code = r.u32()?;
        let file_id = FileId::read(&mut r)?;
        let input_offset = r.u32()? as usize;
        let input_count = r.u32()? as usize;
        let max_input_response = r.u32()?;
        r.skip(8)?;
        let max_output_response = r.u32()?;
        let flags = r.u32()?;
        let input = if input_count == 0 { &[][..] } else { slice_at(message, input_offset, input_count)? };
        Ok(IoctlRequest { ctl_code, file_id, input, max_input_response, max_output_response, is_fsctl: flags & 1 != 0 })
    }
}

/// Appends an IOCTL response, [MS-SMB2] 2.2.32.
pub fn put_ioctl_response(out: &mut Vec<u8>, ctl_code: u32, file_id: FileId, output: &[u8]) {
    out.put_u16(49);
    out.put_u16(0);
    out.put_u32(ctl_code);
    file_id.put(out);
    let offset = (HEADER_BYTES + 48) as u32;
    out.put_u32(offset);
    out.put_u32(0);
    out.put_u32(offset);
    out.put_u32(output.len() as u32);
    out.put_u32(0);
    out.put_u32(0);
    out.extend_from_slice(output);
}

/// Acknowledgment of an oplock or a lease break, [MS-SMB2] 2.2.24. StructureSize tells the two apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakAck {
    Oplock { level: u8, file_id: FileId },
    Lease { key: u128, state: u32 },
}

impl BreakAck {
    /// Decodes a message that starts with the SMB2 header.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &[u8]) -> Result<BreakAck, Malformed> {
        if let Ok(mut r) = body(message, 24) {
            let level = r.u8()?;
            r.skip(5)?;
            return Ok(BreakAck::Oplock { level, file_id: FileId::read(&mut r)? });
        }
        let mut r = body(message, 36)?;
        r.skip(6)?;
        Ok(BreakAck::Lease { key: r.u128()?, state: r.u32()? })
    }
}

/// Appends an oplock break notification or response, [MS-SMB2] 2.2.23.1 and 2.2.25.1, which have the same layout.
pub fn put_oplock_break(out: &mut Vec<u8>, level: u8, file_id: FileId) {
    out.put_u16(24);
    out.put_u8(level);
    out.put_zeros(5);
    file_id.put(out);
}

/// Appends a lease break notification, [MS-SMB2] 2.2.23.2. `ack`: the client has to acknowledge.
pub fn put_lease_break_notification(out: &mut Vec<u8>, epoch: u16, ack: bool, key: u128, current: u32, new: u32) {
    out.put_u16(44);
    out.put_u16(epoch);
    out.put_u32(u32::from(ack));
    out.put_u128(key);
    out.put_u32(current);
    out.put_u32(new);
    out.put_zeros(12);
}

/// Appends a lease break response, [MS-SMB2] 2.2.25.2.
pub fn put_lease_break_response(out: &mut Vec<u8>, key: u128, state: u32) {
    out.put_u16(36);
    out.put_u16(0);
    out.put_u32(0);
    out.put_u128(key);
    out.put_u32(state);
    out.put_u64(0);
}
