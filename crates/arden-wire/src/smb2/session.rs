//! SESSION_SETUP, LOGOFF, TREE_CONNECT and TREE_DISCONNECT, [MS-SMB2] 2.2.5 to 2.2.12.

use std::net::IpAddr;

use crate::{
    Malformed,
    cursor::{Put, Reader, slice_at, utf16_string},
    smb2::HEADER_BYTES,
};

/// A flag of SESSION_SETUP requests, [MS-SMB2] 2.2.5: the connection becomes a channel of the session.
pub const SESSION_FLAG_BINDING: u8 = 1;
/// SessionFlags of SESSION_SETUP responses, [MS-SMB2] 2.2.6.
pub mod session_flags {
    pub const IS_GUEST: u16 = 1;
    pub const IS_NULL: u16 = 2;
    pub const ENCRYPT_DATA: u16 = 4;
}

/// SESSION_SETUP request, [MS-SMB2] 2.2.5.
#[derive(Debug, Clone, Copy)]
pub struct SessionSetupRequest<'a> {
    pub flags: u8,
    pub security_mode: u8,
    pub capabilities: u32,
    pub previous_session_id: u64,
    pub security_buffer: &'a [u8],
}

impl<'a> SessionSetupRequest<'a> {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = body(message, 25)?;
        let flags = r.u8()?;
        let security_mode = r.u8()?;
        let capabilities = r.u32()?;
        r.skip(4)?;
        let offset = usize::from(r.u16()?);
        let len = usize::from(r.u16()?);
        Ok(SessionSetupRequest {
            flags,
            security_mode,
            capabilities,
            previous_session_id: r.u64()?,
            security_buffer: slice_at(message, offset, len)?,
        })
    }
}

/// Appends a SESSION_SETUP response, [MS-SMB2] 2.2.6.
pub fn put_session_setup_response(out: &mut Vec<u8>, flags: u16, security_buffer: &[u8]) {
    out.put_u16(9);
    out.put_u16(flags);
    out.put_u16((HEADER_BYTES + 8) as u16);
    out.put_u16(security_buffer.len() as u16);
    out.extend_from_slice(security_buffer);
}

/// A reader behind the header and StructureSize, which is checked.
pub(crate) fn body(message: &[u8], structure_size: u16) -> Result<Reader<'_>, Malformed> {
    let mut r = Reader::new(message);
    r.skip(HEADER_BYTES)?;
    if r.u16()? != structure_size {
        return Err(Malformed("structure size"));
    }
    Ok(r)
}

/// Checks a body that is StructureSize and two reserved bytes: LOGOFF, TREE_DISCONNECT, ECHO and CANCEL, [MS-SMB2]
/// 2.2.7, 2.2.11, 2.2.28 and 2.2.30.
///
/// # Errors
/// A field is out of its range, or the bytes end early.
pub fn parse_empty(message: &[u8]) -> Result<(), Malformed> {
    body(message, 4)?.skip(2)
}
/// Appends the body that [`parse_empty`] checks.
pub fn put_empty(out: &mut Vec<u8>) {
    out.put_u16(4);
    out.put_u16(0);
}

/// A flag of TREE_CONNECT, [MS-SMB2] 2.2.9: the request has the extension.
pub const TREE_CONNECT_REDIRECT_TO_OWNER: u16 = 2;
pub const TREE_CONNECT_EXTENSION_PRESENT: u16 = 4;

/// TREE_CONNECT request, [MS-SMB2] 2.2.9.
#[derive(Debug, Clone)]
pub struct TreeConnectRequest {
    pub flags: u16,
    /// `\\server\share`
    pub path: String,
}

impl TreeConnectRequest {
    /// Decodes a message that starts with the SMB2 header. The flags have a meaning only with `dialect_311`.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &[u8], dialect_311: bool) -> Result<Self, Malformed> {
        let mut r = body(message, 9)?;
        let flags = r.u16()?;
        let offset = usize::from(r.u16()?);
        let len = usize::from(r.u16()?);
        // [MS-SMB2] 2.2.9.1: with the extension, PathOffset counts from its start, behind the fixed part.
        let base = if dialect_311 && flags & TREE_CONNECT_EXTENSION_PRESENT != 0 { HEADER_BYTES + 8 } else { 0 };
        let path = utf16_string(slice_at(message, base + offset, len)?)?;
        Ok(TreeConnectRequest { flags, path })
    }
    /// The last component of the path.
    pub fn share_name(&self) -> &str {
        self.path.rsplit('\\').next().unwrap_or("")
    }
}

/// ShareType, [MS-SMB2] 2.2.10.
pub mod share_type {
    pub const DISK: u8 = 1;
    pub const PIPE: u8 = 2;
}
/// ShareFlags, [MS-SMB2] 2.2.10.
pub mod share_flags {
    pub const MANUAL_CACHING: u32 = 0;
    pub const ACCESS_BASED_DIRECTORY_ENUM: u32 = 0x0800;
    pub const FORCE_LEVELII_OPLOCK: u32 = 0x1000;
    pub const ENABLE_HASH_V1: u32 = 0x2000;
    pub const ENCRYPT_DATA: u32 = 0x8000;
    pub const NO_CACHING: u32 = 0x30;
}
/// Capabilities of a share, [MS-SMB2] 2.2.10.
pub mod share_capability {
    pub const DFS: u32 = 0x08;
    pub const CONTINUOUS_AVAILABILITY: u32 = 0x10;
    pub const SCALEOUT: u32 = 0x20;
    pub const CLUSTER: u32 = 0x40;
    pub const ASYMMETRIC: u32 = 0x80;
    pub const REDIRECT_TO_OWNER: u32 = 0x100;
}

/// ErrorId of a share redirect, [MS-SMB2] 2.2.2.1.
const SHARE_REDIRECT: u32 = 0x7264_5253;
/// NotificationType, [MS-SMB2] 2.2.2.2.2.
const SHARE_MOVE_NOTIFICATION: u32 = 3;
/// The structure without addresses and name; its StructureSize counts one address.
const REDIRECT_FIXED_BYTES: usize = 24;
const ADDRESS_BYTES: usize = 24;

/// The error context of a share that is elsewhere, [MS-SMB2] 2.2.2.1 and 2.2.2.2.2, padded to a multiple of 8 bytes. `path` is the ResourceName:
/// `\\server\share`, as Windows has it.
pub fn share_redirect(path: &str, addresses: &[IpAddr]) -> Vec<u8> {
    let name = REDIRECT_FIXED_BYTES + addresses.len() * ADDRESS_BYTES;
    let length = (name + path.encode_utf16().count() * 2).next_multiple_of(8);
    let mut out = Vec::with_capacity(8 + length);
    out.put_u32(length as u32);
    out.put_u32(SHARE_REDIRECT);
    out.put_u32((REDIRECT_FIXED_BYTES + ADDRESS_BYTES) as u32);
    out.put_u32(SHARE_MOVE_NOTIFICATION);
    out.put_u32(name as u32);
    out.put_u32((path.encode_utf16().count() * 2) as u32);
    out.put_u16(0);
    out.put_u16(0);
    out.put_u32(addresses.len() as u32);
    for address in addresses {
        out.put_u32(if address.is_ipv4() { 1 } else { 2 });
        out.put_u32(0);
        let at = out.len();
        match address {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        }
        out.resize(at + 16, 0);
    }
    path.encode_utf16().for_each(|unit| out.put_u16(unit));
    out.resize(8 + length, 0);
    out
}

/// Appends a TREE_CONNECT response, [MS-SMB2] 2.2.10.
pub fn put_tree_connect_response(
    out: &mut Vec<u8>,
    share_type: u8,
    share_flags: u32,
    capabilities: u32,
    maximal_access: u32,
) {
    out.put_u16(16);
    out.put_u8(share_type);
    out.put_u8(0);
    out.put_u32(share_flags);
    out.put_u32(capabilities);
    out.put_u32(maximal_access);
}
