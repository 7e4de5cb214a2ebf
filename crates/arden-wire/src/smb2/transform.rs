//! The header of encrypted messages: TRANSFORM_HEADER, [MS-SMB2] 2.2.41.

use crate::{Malformed, cursor::Put, cursor::Reader, smb2::TRANSFORM_ID};

/// Length of the header in bytes.
pub const TRANSFORM_BYTES: usize = 52;
/// Offset of the bytes that are authenticated but not encrypted: from Nonce to SessionId.
pub const AAD_OFFSET: usize = 20;

/// TRANSFORM_HEADER, [MS-SMB2] 2.2.41.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransformHeader {
    pub signature: [u8; 16],
    pub nonce: [u8; 16],
    pub original_message_size: u32,
    pub flags: u16,
    pub session_id: u64,
}

impl TransformHeader {
    /// Decodes the header.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<TransformHeader, Malformed> {
        let mut r = Reader::new(bytes);
        if r.array::<4>()? != TRANSFORM_ID {
            return Err(Malformed("transform protocol id"));
        }
        let signature = r.array()?;
        let nonce = r.array()?;
        let original_message_size = r.u32()?;
        r.skip(2)?;
        Ok(TransformHeader { signature, nonce, original_message_size, flags: r.u16()?, session_id: r.u64()? })
    }
    /// Appends the header.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&TRANSFORM_ID);
        out.extend_from_slice(&self.signature);
        out.extend_from_slice(&self.nonce);
        out.put_u32(self.original_message_size);
        out.put_u16(0);
        out.put_u16(self.flags);
        out.put_u64(self.session_id);
    }
}
