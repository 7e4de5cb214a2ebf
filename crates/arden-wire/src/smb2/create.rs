//! CREATE and its contexts, [MS-SMB2] 2.2.13 and 2.2.14.

use crate::{
    FileTime, Malformed,
    cursor::{Put, Reader, slice_at},
    names::name_of_utf16,
    smb2::{FileId, HEADER_BYTES, session::body},
};

/// CREATE request, [MS-SMB2] 2.2.13.
#[derive(Debug, Clone)]
pub struct CreateRequest<'a> {
    /// RequestedOplockLevel, a value of [`oplock`].
    pub oplock_level: u8,
    pub impersonation: u32,
    pub desired_access: u32,
    pub attributes: u32,
    pub share_access: u32,
    pub disposition: u32,
    pub options: u32,
    /// A malformed name is an error of the path and not of the message.
    pub name: Result<String, Malformed>,
    /// The bytes of the name; with FILE_OPEN_BY_FILE_ID they are a file id.
    pub name_bytes: &'a [u8],
    pub contexts: Vec<Context<'a>>,
}

/// Oplock levels, [MS-SMB2] 2.2.13 and 2.2.14.
pub mod oplock {
    pub const NONE: u8 = 0;
    pub const LEVEL_II: u8 = 1;
    pub const EXCLUSIVE: u8 = 8;
    pub const BATCH: u8 = 9;
    pub const LEASE: u8 = 0xFF;
}

/// A create context, [MS-SMB2] 2.2.13.2, not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context<'a> {
    pub name: &'a [u8],
    pub data: &'a [u8],
}

/// Names of create contexts, [MS-SMB2] 2.2.13.2.
pub mod tag {
    pub const EA_BUFFER: &[u8] = b"ExtA";
    pub const SD_BUFFER: &[u8] = b"SecD";
    pub const DURABLE_REQUEST: &[u8] = b"DHnQ";
    pub const DURABLE_RECONNECT: &[u8] = b"DHnC";
    pub const DURABLE_REQUEST_V2: &[u8] = b"DH2Q";
    pub const DURABLE_RECONNECT_V2: &[u8] = b"DH2C";
    pub const ALLOCATION_SIZE: &[u8] = b"AlSi";
    pub const MAXIMAL_ACCESS: &[u8] = b"MxAc";
    pub const TIMEWARP: &[u8] = b"TWrp";
    pub const QUERY_ON_DISK_ID: &[u8] = b"QFid";
    pub const LEASE: &[u8] = b"RqLs";
    pub const APP_INSTANCE_ID: [u8; 16] =
        [0x45, 0xBC, 0xA6, 0x6A, 0xEF, 0xA7, 0xF7, 0x4A, 0x90, 0x08, 0xFA, 0x46, 0x2E, 0x14, 0x4D, 0x74];
    pub const APP_INSTANCE_VERSION: [u8; 16] =
        [0xB9, 0x82, 0xD0, 0xB7, 0x3B, 0x56, 0x07, 0x4F, 0xA0, 0x7B, 0x52, 0x4A, 0x81, 0x16, 0xA0, 0x10];
}

/// Create contexts in one request; more are malformed.
const CONTEXTS_MAX: usize = 32;

impl<'a> CreateRequest<'a> {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = body(message, 57)?;
        r.skip(1)?;
        let oplock_level = r.u8()?;
        let impersonation = r.u32()?;
        r.skip(16)?;
        let desired_access = r.u32()?;
        let attributes = r.u32()?;
        let share_access = r.u32()?;
        let disposition = r.u32()?;
        let options = r.u32()?;
        let name_offset = usize::from(r.u16()?);
        let name_len = usize::from(r.u16()?);
        let contexts_offset = r.u32()? as usize;
        let contexts_len = r.u32()? as usize;
        let name_bytes = if name_len == 0 { &[][..] } else { slice_at(message, name_offset, name_len)? };
        let name = name_of_utf16(name_bytes);
        let contexts = match contexts_len {
            0 => Vec::new(),
            n => parse_contexts(slice_at(message, contexts_offset, n)?)?,
        };
        Ok(CreateRequest {
            oplock_level,
            impersonation,
            desired_access,
            attributes,
            share_access,
            disposition,
            options,
            name,
            name_bytes,
            contexts,
        })
    }

    /// The data of the create context with this name, [MS-SMB2] 2.2.13.2.
    pub fn context(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.contexts.iter().find(|c| c.name == name).map(|c| c.data)
    }
}

/// Decodes the list of create contexts, [MS-SMB2] 2.2.13.2.
///
/// # Errors
/// A field is out of its range, or the bytes end early.
pub fn parse_contexts(mut data: &[u8]) -> Result<Vec<Context<'_>>, Malformed> {
    let mut out = Vec::new();
    loop {
        let mut r = Reader::new(data);
        let next = r.u32()? as usize;
        let name_offset = usize::from(r.u16()?);
        let name_len = usize::from(r.u16()?);
        r.skip(2)?;
        let data_offset = usize::from(r.u16()?);
        let data_len = r.u32()? as usize;
        let this = if next == 0 { data } else { data.get(..next).ok_or(Malformed("next create context"))? };
        let name = slice_at(this, name_offset, name_len)?;
        if name.len() < 4 {
            return Err(Malformed("create context name"));
        }
        let payload = if data_len == 0 { &[][..] } else { slice_at(this, data_offset, data_len)? };
        out.push(Context { name, data: payload });
        if next == 0 {
            return Ok(out);
        }
        if next < 16 || !next.is_multiple_of(8) || out.len() >= CONTEXTS_MAX {
            return Err(Malformed("create context chain"));
        }
        data = &data[next..];
    }
}

/// The lease contexts RqLs, [MS-SMB2] 2.2.13.2.8, and its version 2, [MS-SMB2] 2.2.13.2.10.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseContext {
    pub key: u128,
    pub state: u32,
    pub flags: u32,
    pub parent_key: u128,
    pub epoch: u16,
    pub version: u8,
}

/// A flag of a lease context, [MS-SMB2] 2.2.14.2.10: a break of the lease is not acknowledged yet.
pub const LEASE_FLAG_BREAK_IN_PROGRESS: u32 = 2;
/// A flag of a lease context of version 2, [MS-SMB2] 2.2.13.2.10: ParentLeaseKey is set.
pub const LEASE_FLAG_PARENT_KEY_SET: u32 = 4;

impl LeaseContext {
    /// Decodes the context; its length tells version 1 from version 2.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(data: &[u8]) -> Result<LeaseContext, Malformed> {
        let mut r = Reader::new(data);
        let mut lease =
            LeaseContext { key: r.u128()?, state: r.u32()?, flags: r.u32()?, parent_key: 0, epoch: 0, version: 1 };
        r.skip(8)?;
        match data.len() {
            32 => Ok(lease),
            52 => {
                lease.parent_key = r.u128()?;
                lease.epoch = r.u16()?;
                lease.version = 2;
                Ok(lease)
            }
            _ => Err(Malformed("lease context size")),
        }
    }
    /// Encodes the context in the layout of its version.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(52);
        out.put_u128(self.key);
        out.put_u32(self.state);
        out.put_u32(self.flags);
        out.put_u64(0);
        if self.version == 2 {
            out.put_u128(self.parent_key);
            out.put_u16(self.epoch);
            out.put_u16(0);
        }
        out
    }
}

/// The context DH2Q, [MS-SMB2] 2.2.13.2.11: a request for a durable or persistent handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableV2 {
    pub timeout_ms: u32,
    pub persistent: bool,
    pub create_guid: u128,
}

impl DurableV2 {
    /// Decodes the context.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(data: &[u8]) -> Result<DurableV2, Malformed> {
        let mut r = Reader::new(data);
        let timeout_ms = r.u32()?;
        let flags = r.u32()?;
        r.skip(8)?;
        Ok(DurableV2 { timeout_ms, persistent: flags & 2 != 0, create_guid: r.u128()? })
    }
}

/// The context DH2C, [MS-SMB2] 2.2.13.2.12: a reconnect to a durable or persistent handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReconnectV2 {
    pub file_id: FileId,
    pub create_guid: u128,
    pub persistent: bool,
}

impl ReconnectV2 {
    /// Decodes the context.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(data: &[u8]) -> Result<ReconnectV2, Malformed> {
        let mut r = Reader::new(data);
        Ok(ReconnectV2 { file_id: FileId::read(&mut r)?, create_guid: r.u128()?, persistent: r.u32()? & 2 != 0 })
    }
}

/// CREATE response, [MS-SMB2] 2.2.14. Sizes are in bytes.
#[derive(Debug, Clone)]
pub struct CreateResponse {
    pub oplock_level: u8,
    pub action: u32,
    pub creation: FileTime,
    pub last_access: FileTime,
    pub last_write: FileTime,
    pub change: FileTime,
    pub allocation: u64,
    pub end_of_file: u64,
    pub attributes: u32,
    pub reparse: bool,
    pub file_id: FileId,
}

impl CreateResponse {
    /// Appends the body with these create contexts (name, data).
    pub fn put(&self, out: &mut Vec<u8>, contexts: &[(&[u8], Vec<u8>)]) {
        out.put_u16(89);
        out.put_u8(self.oplock_level);
        out.put_u8(u8::from(self.reparse));
        out.put_u32(self.action);
        for t in [self.creation, self.last_access, self.last_write, self.change] {
            out.put_u64(t.0);
        }
        out.put_u64(self.allocation);
        out.put_u64(self.end_of_file);
        out.put_u32(self.attributes);
        out.put_u32(0);
        self.file_id.put(out);
        if contexts.is_empty() {
            out.put_u64(0);
            return;
        }
        out.put_u32((HEADER_BYTES + 88) as u32);
        let len_at = out.len();
        out.put_u32(0);
        let start = out.len();
        for (i, (name, data)) in contexts.iter().enumerate() {
            let at = out.len();
            out.put_u32(0);
            out.put_u16(16);
            out.put_u16(name.len() as u16);
            out.put_u16(0);
            let data_offset = (16 + name.len()).next_multiple_of(8);
            out.put_u16(if data.is_empty() { 0 } else { data_offset as u16 });
            out.put_u32(data.len() as u32);
            out.extend_from_slice(name);
            if !data.is_empty() {
                out.pad_to(at, 8);
                out.extend_from_slice(data);
            }
            if i + 1 < contexts.len() {
                out.pad_to(at, 8);
                out.patch_u32(at, (out.len() - at) as u32);
            }
        }
        out.patch_u32(len_at, (out.len() - start) as u32);
    }
}
