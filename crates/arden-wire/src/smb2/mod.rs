//! Messages of SMB 2 and 3, [MS-SMB2] 2.2, as far as a server reads and writes them.

pub mod create;
pub mod header;
pub mod info;
pub mod io;
pub mod negotiate;
pub mod session;
pub mod transform;

pub use header::{Command, Header, flags};

/// ProtocolId of a message, [MS-SMB2] 2.2.1: `\xFESMB`.
pub const PROTOCOL_ID: [u8; 4] = [0xFE, b'S', b'M', b'B'];
/// ProtocolId of an encrypted message, [MS-SMB2] 2.2.41: `\xFDSMB`.
pub const TRANSFORM_ID: [u8; 4] = [0xFD, b'S', b'M', b'B'];
/// ProtocolId of a compressed message, [MS-SMB2] 2.2.42: `\xFCSMB`.
pub const COMPRESSION_ID: [u8; 4] = [0xFC, b'S', b'M', b'B'];
/// Protocol of an SMB 1 message: `\xFFSMB`.
pub const SMB1_ID: [u8; 4] = [0xFF, b'S', b'M', b'B'];
/// Length of the packet header in bytes, [MS-SMB2] 2.2.1.
pub const HEADER_BYTES: usize = 64;

/// A dialect, [MS-SMB2] 2.2.3.
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
    /// The dialect with this number; `None` when it is not supported.
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
    /// Whether the dialect belongs to the SMB 3 family: 3.0, 3.0.2 or 3.1.1.
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
    /// All bits set: the file of the request before in a related compound, [MS-SMB2] 3.3.5.2.7.2.
    pub const RELATED: FileId = FileId { persistent: u64::MAX, volatile: u64::MAX };

    /// Reads a FileId at the position of `r`.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn read(r: &mut crate::cursor::Reader<'_>) -> Result<FileId, crate::Malformed> {
        Ok(FileId { persistent: r.u64()?, volatile: r.u64()? })
    }
    /// Appends the FileId.
    pub fn put(self, out: &mut Vec<u8>) {
        use crate::cursor::Put;
        out.put_u64(self.persistent);
        out.put_u64(self.volatile);
    }
}
