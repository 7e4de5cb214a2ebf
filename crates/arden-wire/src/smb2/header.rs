//! The 64-byte header, [MS-SMB2] 2.2.1.

use crate::{
    Malformed, NtStatus,
    cursor::{Put, Reader},
    smb2::{HEADER_BYTES, PROTOCOL_ID},
};

pub mod flags {
    pub const SERVER_TO_REDIR: u32 = 0x1;
    pub const ASYNC_COMMAND: u32 = 0x2;
    pub const RELATED_OPERATIONS: u32 = 0x4;
    pub const SIGNED: u32 = 0x8;
    pub const PRIORITY_MASK: u32 = 0x70;
    pub const DFS_OPERATIONS: u32 = 0x1000_0000;
    pub const REPLAY_OPERATION: u32 = 0x2000_0000;
}

macro_rules! commands {
    ($($name:ident = $number:literal,)*) => {
        /// A command, [MS-SMB2] 2.2.1.2.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Command {
            $($name = $number,)*
        }
        impl Command {
            pub fn from_u16(v: u16) -> Option<Command> {
                match v {
                    $($number => Some(Command::$name),)*
                    _ => None,
                }
            }
        }
    };
}

commands! {
    Negotiate = 0,
    SessionSetup = 1,
    Logoff = 2,
    TreeConnect = 3,
    TreeDisconnect = 4,
    Create = 5,
    Close = 6,
    Flush = 7,
    Read = 8,
    Write = 9,
    Lock = 10,
    Ioctl = 11,
    Cancel = 12,
    Echo = 13,
    QueryDirectory = 14,
    ChangeNotify = 15,
    QueryInfo = 16,
    SetInfo = 17,
    OplockBreak = 18,
}

/// The SMB2 header, [MS-SMB2] 2.2.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub credit_charge: u16,
    /// Status in responses; ChannelSequence and Reserved in requests of SMB 3.
    pub status: u32,
    pub command: u16,
    /// CreditRequest or CreditResponse.
    pub credits: u16,
    pub flags: u32,
    pub next_command: u32,
    pub message_id: u64,
    /// With ASYNC_COMMAND the AsyncId, else Reserved (low) and TreeId (high).
    pub async_or_tree: u64,
    pub session_id: u64,
    pub signature: [u8; 16],
}

impl Header {
    /// Decodes the structure.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let mut r = Reader::new(bytes);
        if r.array::<4>()? != PROTOCOL_ID {
            return Err(Malformed("protocol id"));
        }
        if r.u16()? != HEADER_BYTES as u16 {
            return Err(Malformed("header structure size"));
        }
        Ok(Header {
            credit_charge: r.u16()?,
            status: r.u32()?,
            command: r.u16()?,
            credits: r.u16()?,
            flags: r.u32()?,
            next_command: r.u32()?,
            message_id: r.u64()?,
            async_or_tree: r.u64()?,
            session_id: r.u64()?,
            signature: r.array()?,
        })
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&PROTOCOL_ID);
        out.put_u16(HEADER_BYTES as u16);
        out.put_u16(self.credit_charge);
        out.put_u32(self.status);
        out.put_u16(self.command);
        out.put_u16(self.credits);
        out.put_u32(self.flags);
        out.put_u32(self.next_command);
        out.put_u64(self.message_id);
        out.put_u64(self.async_or_tree);
        out.put_u64(self.session_id);
        out.extend_from_slice(&self.signature);
    }

    pub fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
    pub fn tree_id(&self) -> u32 {
        (self.async_or_tree >> 32) as u32
    }
    /// [MS-SMB2] 2.2.1.2: the low half of the status field of an SMB 3 request.
    pub fn channel_sequence(&self) -> u16 {
        self.status as u16
    }
    pub fn nt_status(&self) -> NtStatus {
        NtStatus(self.status)
    }
}

/// Where fields lie that are patched after the body is known.
pub mod offset {
    pub const STATUS: usize = 8;
    pub const CREDITS: usize = 14;
    pub const FLAGS: usize = 16;
    pub const NEXT_COMMAND: usize = 20;
    pub const TREE_ID: usize = 36;
    pub const SIGNATURE: usize = 48;
}
