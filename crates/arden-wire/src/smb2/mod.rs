//! SMB 2/3 messages, [MS-SMB2] 2.2: what a server reads and writes.

pub mod create;
pub mod header;
pub mod info;
pub mod io;
pub mod negotiate;
pub mod session;
pub mod transform;

pub use header::{Command, Header, flags};

/// `\xFESMB`
pub const PROTOCOL_ID: [u8; 4] = [0xFE, b'S', b'M', b'B'];
/// `\xFDSMB`
pub const TRANSFORM_ID: [u8; 4] = [0xFD, b'S', b'M', b'B'];
/// `\xFCSMB`
pub const COMPRESSION_ID: [u8; 4] = [0xFC, b'S', b'M', b'B'];
/// `\xFFSMB`
pub const SMB1_ID: [u8; 4] = [0xFF, b'S', b'M', b'B'];
pub const HEADER_BYTES: usize = 64;

/// [MS-SMB2] 2.2.3, Dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Dialect {
    Smb202 = 0x0202,
    Smb210 = 0x0210,
    Smb300 = 0x0300,
    Smb302 = 0x0302,
    Smb311 = 0x0311,
}

impl Dialect {
    pub fn from_u16(v: u16) -> Option<Dialect> {
        Some(match v {
            0x0202 => Dialect::Smb202,
            0x0210 => Dialect::Smb210,
            0x0300 => Dialect::Smb300,
            0x0302 => Dialect::Smb302,
            0x0311 => Dialect::Smb311,
            _ => return None,
        })
    }
    pub fn is_smb3(self) -> bool {
        self >= Dialect::Smb300
    }
}

/// A FileId, [MS-SMB2] 2.2.14.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    pub persistent: u64,
    pub volatile: u64,
}

impl FileId {
    /// All ones: "the file of the request before", in related compounds.
    pub const RELATED: FileId = FileId { persistent: u64::MAX, volatile: u64::MAX };

    /// Reads it at the position of `r`.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn read(r: &mut crate::cursor::Reader<'_>) -> Result<FileId, crate::Malformed> {
        Ok(FileId { persistent: r.u64()?, volatile: r.u64()? })
    }
    pub fn put(self, out: &mut Vec<u8>) {
        use crate::cursor::Put;
        out.put_u64(self.persistent);
        out.put_u64(self.volatile);
    }
}
