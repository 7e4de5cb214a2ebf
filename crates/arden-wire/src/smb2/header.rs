//! The 64-byte packet header, [MS-SMB2] 2.2.1.

use crate::{
    Malformed, NtStatus,
    cursor::{Put, Reader},
    smb2::{HEADER_BYTES, PROTOCOL_ID},
};

/// Flags of the header, [MS-SMB2] 2.2.1.1 and 2.2.1.2.
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
            /// The command with this number.
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

/// The packet header, [MS-SMB2] 2.2.1.
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
    /// AsyncId with ASYNC_COMMAND, [MS-SMB2] 2.2.1.1; else Reserved (low half) and TreeId (high half), [MS-SMB2]
    /// 2.2.1.2.
    pub async_or_tree: u64,
    pub session_id: u64,
    pub signature: [u8; 16],
}

impl Header {
    /// Decodes the header at the start of `bytes`.
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

    /// Appends the header.
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

    /// Whether this flag is set.
    pub fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
    /// TreeId, [MS-SMB2] 2.2.1.2; meaningless with ASYNC_COMMAND.
    pub fn tree_id(&self) -> u32 {
        (self.async_or_tree >> 32) as u32
    }
    /// The same of another tree connect, without an AsyncId.
    #[must_use]
    pub fn at_tree(self, tree: u32) -> Header {
        Header { async_or_tree: u64::from(tree) << 32, ..self }
    }
    /// ChannelSequence of an SMB 3 request, [MS-SMB2] 2.2.1.2.
    pub fn channel_sequence(&self) -> u16 {
        self.status as u16
    }
    /// Status of a response.
    pub fn nt_status(&self) -> NtStatus {
        NtStatus(self.status)
    }
}

/// Offsets in bytes of the header's fields that are set once the body is known.
pub mod offset {
    pub const STATUS: usize = 8;
    pub const CREDITS: usize = 14;
    pub const FLAGS: usize = 16;
    pub const NEXT_COMMAND: usize = 20;
    pub const TREE_ID: usize = 36;
    pub const SIGNATURE: usize = 48;
}
