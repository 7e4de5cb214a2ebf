//! NEGOTIATE and its contexts, [MS-SMB2] 2.2.3 and 2.2.4, and the SMB 1 multi-protocol NEGOTIATE.

use crate::{
    Malformed,
    cursor::{Put, Reader, slice_at},
    smb2::HEADER_BYTES,
    time::FileTime,
};

/// SecurityMode, [MS-SMB2] 2.2.3 and 2.2.4.
pub mod security_mode {
    pub const SIGNING_ENABLED: u16 = 1;
    pub const SIGNING_REQUIRED: u16 = 2;
}

/// Capabilities, [MS-SMB2] 2.2.3 and 2.2.4.
pub mod capability {
    pub const DFS: u32 = 0x01;
    pub const LEASING: u32 = 0x02;
    pub const LARGE_MTU: u32 = 0x04;
    pub const MULTI_CHANNEL: u32 = 0x08;
    pub const PERSISTENT_HANDLES: u32 = 0x10;
    pub const DIRECTORY_LEASING: u32 = 0x20;
    pub const ENCRYPTION: u32 = 0x40;
    pub const NOTIFICATIONS: u32 = 0x80;
}

/// ContextType of a negotiate context, [MS-SMB2] 2.2.3.1.
pub mod context {
    pub const PREAUTH_INTEGRITY: u16 = 1;
    pub const ENCRYPTION: u16 = 2;
    pub const COMPRESSION: u16 = 3;
    pub const NETNAME: u16 = 5;
    pub const TRANSPORT: u16 = 6;
    pub const RDMA_TRANSFORM: u16 = 7;
    pub const SIGNING: u16 = 8;
}

/// HashAlgorithms, [MS-SMB2] 2.2.3.1.1: SHA-512.
pub const HASH_SHA512: u16 = 1;

/// Ciphers, [MS-SMB2] 2.2.3.1.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Cipher {
    Aes128Ccm = 1,
    Aes128Gcm = 2,
    Aes256Ccm = 3,
    Aes256Gcm = 4,
}

impl Cipher {
    /// The cipher with this identifier; `None` when it is not supported.
    pub fn from_u16(v: u16) -> Option<Cipher> {
        Some(match v {
            1 => Cipher::Aes128Ccm,
            2 => Cipher::Aes128Gcm,
            3 => Cipher::Aes256Ccm,
            4 => Cipher::Aes256Gcm,
            _ => return None,
        })
    }
}

/// SigningAlgorithms, [MS-SMB2] 2.2.3.1.7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum SigningAlgorithm {
    HmacSha256 = 0,
    AesCmac = 1,
    AesGmac = 2,
}

impl SigningAlgorithm {
    /// The algorithm with this identifier; `None` when it is not supported.
    pub fn from_u16(v: u16) -> Option<SigningAlgorithm> {
        Some(match v {
            0 => SigningAlgorithm::HmacSha256,
            1 => SigningAlgorithm::AesCmac,
            2 => SigningAlgorithm::AesGmac,
            _ => return None,
        })
    }
}

/// NEGOTIATE request, [MS-SMB2] 2.2.3.
#[derive(Debug, Clone, Default)]
pub struct NegotiateRequest {
    pub security_mode: u16,
    pub capabilities: u32,
    pub client_guid: u128,
    pub dialects: Vec<u16>,
    /// Empty unless 3.1.1 is among the dialects.
    pub contexts: Vec<NegotiateContext>,
}

/// A negotiate context, [MS-SMB2] 2.2.3.1; the known kinds are decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NegotiateContext {
    Preauth { hashes: Vec<u16>, salt: Vec<u8> },
    Encryption(Vec<u16>),
    Signing(Vec<u16>),
    Compression,
    NetName(String),
    Other(u16),
}

/// A malformed context makes the whole NEGOTIATE malformed: the specification answers both with INVALID_PARAMETER.
impl NegotiateRequest {
    /// Decodes a message that starts with the SMB2 header, from which its offsets count.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(message: &[u8]) -> Result<NegotiateRequest, Malformed> {
        let mut r = Reader::new(message);
        r.skip(HEADER_BYTES)?;
        if r.u16()? != 36 {
            return Err(Malformed("negotiate structure size"));
        }
        let dialect_count = r.u16()?;
        let security_mode = r.u16()?;
        r.skip(2)?;
        let capabilities = r.u32()?;
        let client_guid = r.u128()?;
        let context_offset = r.u32()? as usize;
        let context_count = r.u16()?;
        r.skip(2)?;
        let mut dialects = Vec::with_capacity(usize::from(dialect_count).min(64));
        for _ in 0..dialect_count {
            dialects.push(r.u16()?);
        }
        let mut out = NegotiateRequest { security_mode, capabilities, client_guid, dialects, contexts: Vec::new() };
        if out.dialects.contains(&0x0311) {
            out.contexts = parse_contexts(message, context_offset, context_count)?;
        }
        Ok(out)
    }
}

fn parse_contexts(message: &[u8], mut at: usize, count: u16) -> Result<Vec<NegotiateContext>, Malformed> {
    let mut contexts = Vec::new();
    for i in 0..count {
        if i > 0 {
            at = at.next_multiple_of(8);
        }
        let head = slice_at(message, at, 8)?;
        let kind = u16::from_le_bytes([head[0], head[1]]);
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let data = slice_at(message, at + 8, len)?;
        contexts.push(parse_context(kind, data)?);
        at += 8 + len;
    }
    Ok(contexts)
}

fn parse_context(kind: u16, data: &[u8]) -> Result<NegotiateContext, Malformed> {
    let mut r = Reader::new(data);
    Ok(match kind {
        context::PREAUTH_INTEGRITY => {
            let count = r.u16()?;
            let salt_len = r.u16()?;
            let hashes = ids(&mut r, count)?;
            NegotiateContext::Preauth { hashes, salt: r.bytes(usize::from(salt_len))?.to_vec() }
        }
        context::ENCRYPTION => {
            let count = r.u16()?;
            NegotiateContext::Encryption(ids(&mut r, count)?)
        }
        context::SIGNING => {
            let count = r.u16()?;
            NegotiateContext::Signing(ids(&mut r, count)?)
        }
        context::COMPRESSION => NegotiateContext::Compression,
        context::NETNAME => NegotiateContext::NetName(crate::cursor::utf16_string(data)?),
        other => NegotiateContext::Other(other),
    })
}

fn ids(r: &mut Reader<'_>, count: u16) -> Result<Vec<u16>, Malformed> {
    if count == 0 {
        return Err(Malformed("empty algorithm list"));
    }
    (0..count).map(|_| r.u16()).collect()
}

/// NEGOTIATE response, [MS-SMB2] 2.2.4.
#[derive(Debug, Clone)]
pub struct NegotiateResponse {
    pub security_mode: u16,
    pub dialect: u16,
    pub server_guid: u128,
    pub capabilities: u32,
    pub max_transact: u32,
    pub max_read: u32,
    pub max_write: u32,
    pub system_time: FileTime,
    pub security_buffer: Vec<u8>,
    /// ContextType and data of each negotiate context; only with dialect 3.1.1.
    pub contexts: Vec<(u16, Vec<u8>)>,
}

impl NegotiateResponse {
    /// Appends the body. The header is at `base` in `out`.
    pub fn put(&self, out: &mut Vec<u8>, base: usize) {
        out.put_u16(65);
        out.put_u16(self.security_mode);
        out.put_u16(self.dialect);
        out.put_u16(self.contexts.len() as u16);
        out.put_u128(self.server_guid);
        out.put_u32(self.capabilities);
        out.put_u32(self.max_transact);
        out.put_u32(self.max_read);
        out.put_u32(self.max_write);
        out.put_u64(self.system_time.0);
        out.put_u64(0);
        out.put_u16((HEADER_BYTES + 64) as u16);
        out.put_u16(self.security_buffer.len() as u16);
        let offset_at = out.len();
        out.put_u32(0);
        out.extend_from_slice(&self.security_buffer);
        if !self.contexts.is_empty() {
            out.pad_to(base, 8);
            out.patch_u32(offset_at, (out.len() - base) as u32);
            for (i, (kind, data)) in self.contexts.iter().enumerate() {
                if i > 0 {
                    out.pad_to(base, 8);
                }
                out.put_u16(*kind);
                out.put_u16(data.len() as u16);
                out.put_u32(0);
                out.extend_from_slice(data);
            }
        }
    }
}

/// The SMB 2 dialects that an SMB 1 NEGOTIATE offers, [MS-SMB2] 3.3.5.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Smb1Offer {
    /// "SMB 2.???": the answer has dialect 0x02FF, and an SMB2 NEGOTIATE follows.
    Wildcard,
    /// "SMB 2.002" alone.
    Smb202,
    None,
}

/// Decodes an SMB 1 NEGOTIATE to the SMB 2 dialects that it offers, [MS-SMB2] 3.3.5.3.
///
/// # Errors
/// The command is not NEGOTIATE, or the bytes end early.
pub fn parse_smb1_negotiate(message: &[u8]) -> Result<Smb1Offer, Malformed> {
    let mut r = Reader::new(message);
    r.skip(4)?;
    if r.u8()? != 0x72 {
        return Err(Malformed("SMB 1 command other than negotiate"));
    }
    r.skip(27)?;
    let words = r.u8()?;
    r.skip(usize::from(words) * 2)?;
    let count = usize::from(r.u16()?);
    let strings = r.bytes(count)?;
    let mut offer = Smb1Offer::None;
    for s in strings.split(|b| *b == 0) {
        match s.strip_prefix(b"\x02").unwrap_or(s) {
            b"SMB 2.???" => return Ok(Smb1Offer::Wildcard),
            b"SMB 2.002" => offer = Smb1Offer::Smb202,
            _ => {}
        }
    }
    Ok(offer)
}
