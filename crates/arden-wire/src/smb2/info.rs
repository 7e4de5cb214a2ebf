//! QUERY_DIRECTORY, CHANGE_NOTIFY, QUERY_INFO and SET_INFO, [MS-SMB2] 2.2.33 to 2.2.40.

use crate::{
    Malformed,
    cursor::{Put, slice_at},
    names::name_of_utf16,
    smb2::{FileId, HEADER_BYTES, session::body},
};

/// Flags of QUERY_DIRECTORY, [MS-SMB2] 2.2.33.
pub mod directory_flags {
    pub const RESTART_SCANS: u8 = 1;
    pub const RETURN_SINGLE_ENTRY: u8 = 2;
    pub const INDEX_SPECIFIED: u8 = 4;
    pub const REOPEN: u8 = 0x10;
}

/// Flags of QUERY_INFO for extended attributes, [MS-SMB2] 2.2.37.
pub mod ea_scan {
    pub const RESTART_SCAN: u32 = 1;
    pub const RETURN_SINGLE_ENTRY: u32 = 2;
    pub const INDEX_SPECIFIED: u32 = 4;
}

/// QUERY_DIRECTORY request, [MS-SMB2] 2.2.33. `output_length` is in bytes.
#[derive(Debug, Clone)]
pub struct QueryDirectoryRequest {
    pub class: u8,
    pub flags: u8,
    pub file_id: FileId,
    pub pattern: String,
    pub output_length: u32,
}

impl QueryDirectoryRequest {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let mut r = body(message, 33)?;
        let class = r.u8()?;
        let flags = r.u8()?;
        r.skip(4)?;
        let file_id = FileId::read(&mut r)?;
        let offset = usize::from(r.u16()?);
        let len = usize::from(r.u16()?);
        let output_length = r.u32()?;
        let pattern = if len == 0 { String::new() } else { name_of_utf16(slice_at(message, offset, len)?)? };
        Ok(QueryDirectoryRequest { class, flags, file_id, pattern, output_length })
    }
}

/// Appends the fixed part of a response that is an offset, a length and a buffer: QUERY_DIRECTORY, CHANGE_NOTIFY and
/// QUERY_INFO, [MS-SMB2] 2.2.34, 2.2.36 and 2.2.38. Returns the offset of the length in `out`, which the caller sets.
pub fn put_buffer_response(out: &mut Vec<u8>) -> usize {
    out.put_u16(9);
    out.put_u16((HEADER_BYTES + 8) as u16);
    let at = out.len();
    out.put_u32(0);
    at
}

/// A flag of CHANGE_NOTIFY, [MS-SMB2] 2.2.35: the whole subtree is watched.
pub const WATCH_TREE: u16 = 1;

/// CHANGE_NOTIFY request, [MS-SMB2] 2.2.35. `output_length` is in bytes.
#[derive(Debug, Clone, Copy)]
pub struct ChangeNotifyRequest {
    pub flags: u16,
    pub output_length: u32,
    pub file_id: FileId,
    pub filter: u32,
}

impl ChangeNotifyRequest {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let mut r = body(message, 32)?;
        let flags = r.u16()?;
        let output_length = r.u32()?;
        let file_id = FileId::read(&mut r)?;
        Ok(ChangeNotifyRequest { flags, output_length, file_id, filter: r.u32()? })
    }
}

/// InfoType of QUERY_INFO and SET_INFO, [MS-SMB2] 2.2.37 and 2.2.39.
pub mod info_type {
    pub const FILE: u8 = 1;
    pub const FILE_SYSTEM: u8 = 2;
    pub const SECURITY: u8 = 3;
    pub const QUOTA: u8 = 4;
}

/// QUERY_INFO request, [MS-SMB2] 2.2.37. `output_length` is in bytes.
#[derive(Debug, Clone, Copy)]
pub struct QueryInfoRequest<'a> {
    pub info_type: u8,
    pub class: u8,
    pub output_length: u32,
    pub additional: u32,
    pub flags: u32,
    pub file_id: FileId,
    pub input: &'a [u8],
}

impl<'a> QueryInfoRequest<'a> {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = body(message, 41)?;
        let info_type = r.u8()?;
        let class = r.u8()?;
        let output_length = r.u32()?;
        let offset = usize::from(r.u16()?);
        r.skip(2)?;
        let len = r.u32()? as usize;
        let additional = r.u32()?;
        let flags = r.u32()?;
        let file_id = FileId::read(&mut r)?;
        let input = if len == 0 { &[][..] } else { slice_at(message, offset, len)? };
        Ok(QueryInfoRequest { info_type, class, output_length, additional, flags, file_id, input })
    }
}

/// SET_INFO request, [MS-SMB2] 2.2.39.
#[derive(Debug, Clone, Copy)]
pub struct SetInfoRequest<'a> {
    pub info_type: u8,
    pub class: u8,
    pub additional: u32,
    pub file_id: FileId,
    pub buffer: &'a [u8],
}

impl<'a> SetInfoRequest<'a> {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = body(message, 33)?;
        let info_type = r.u8()?;
        let class = r.u8()?;
        let len = r.u32()? as usize;
        let offset = usize::from(r.u16()?);
        r.skip(2)?;
        let additional = r.u32()?;
        let file_id = FileId::read(&mut r)?;
        let buffer = if len == 0 { &[][..] } else { slice_at(message, offset, len)? };
        Ok(SetInfoRequest { info_type, class, additional, file_id, buffer })
    }
}
