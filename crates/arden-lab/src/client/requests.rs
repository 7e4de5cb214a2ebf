//! The requests that the workloads are made of.

use smb2::{
    msg::{
        close::CloseRequest,
        create::{CreateDisposition, CreateRequest, ImpersonationLevel, ShareAccess},
        query_directory::{FileInformationClass, QueryDirectoryFlags, QueryDirectoryRequest},
        query_info::{InfoType, QueryInfoRequest},
        read::ReadRequest,
        set_info::SetInfoRequest,
        write::WriteRequest,
    },
    types::{Command, FileId, OplockLevel, flags::FileAccessMask},
};

use super::{Call, Client};
use crate::{Result, fail};

pub const DELETE_ON_CLOSE: u32 = 0x1000;
pub const NON_DIRECTORY_FILE: u32 = 0x40;
pub const DIRECTORY_FILE: u32 = 0x1;
const READ_WRITE_DELETE: u32 = 7;
pub const NO_MORE_FILES: u32 = 0x8000_0006;

pub fn create(name: &str, access: u32, disposition: CreateDisposition, options: u32) -> CreateRequest {
    CreateRequest {
        requested_oplock_level: OplockLevel::None,
        impersonation_level: ImpersonationLevel::Impersonation,
        desired_access: FileAccessMask::new(access),
        file_attributes: 0,
        share_access: ShareAccess(READ_WRITE_DELETE),
        create_disposition: disposition,
        create_options: options,
        name: name.to_string(),
        create_contexts: Vec::new(),
    }
}

/// SMB2_CREATE_DURABLE_HANDLE_REQUEST_V2 for a persistent handle, [MS-SMB2] 2.2.13.2.11.
pub fn persistent(create_guid: u128) -> Vec<u8> {
    let mut context = Vec::with_capacity(56);
    context.extend_from_slice(&0u32.to_le_bytes());
    for field in [16u16, 4, 0, 24] {
        context.extend_from_slice(&field.to_le_bytes());
    }
    context.extend_from_slice(&32u32.to_le_bytes());
    context.extend_from_slice(b"DH2Q\0\0\0\0");
    context.extend_from_slice(&0u32.to_le_bytes());
    context.extend_from_slice(&2u32.to_le_bytes());
    context.extend_from_slice(&[0; 8]);
    context.extend_from_slice(&create_guid.to_le_bytes());
    context
}

pub fn close() -> CloseRequest {
    CloseRequest { flags: 0, file_id: FileId::SENTINEL }
}

pub fn write(file_id: FileId, data: Vec<u8>) -> WriteRequest {
    WriteRequest {
        data_offset: 0x70,
        offset: 0,
        file_id,
        channel: 0,
        remaining_bytes: 0,
        write_channel_info_offset: 0,
        write_channel_info_length: 0,
        flags: 0,
        data,
    }
}

pub fn read(file_id: FileId, length: u32) -> ReadRequest {
    ReadRequest {
        padding: 0x50,
        flags: 0,
        length,
        offset: 0,
        file_id,
        minimum_count: 0,
        channel: 0,
        remaining_bytes: 0,
        read_channel_info: Vec::new(),
    }
}

/// FileAllInformation.
pub fn stat() -> QueryInfoRequest {
    QueryInfoRequest {
        info_type: InfoType::File,
        file_info_class: 18,
        output_buffer_length: 4096,
        additional_information: 0,
        flags: 0,
        file_id: FileId::SENTINEL,
        input_buffer: Vec::new(),
    }
}

/// FileRenameInformation, [MS-FSCC] 2.4.42.2.
pub fn rename(to: &str) -> SetInfoRequest {
    let name: Vec<u8> = to.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut buffer = vec![0; 16];
    buffer.extend_from_slice(&(name.len() as u32).to_le_bytes());
    buffer.extend_from_slice(&name);
    SetInfoRequest {
        info_type: InfoType::File,
        file_info_class: 10,
        additional_information: 0,
        file_id: FileId::SENTINEL,
        buffer,
    }
}

pub fn list(file_id: FileId, restart: bool) -> QueryDirectoryRequest {
    QueryDirectoryRequest {
        file_information_class: FileInformationClass::FileIdBothDirectoryInformation,
        flags: QueryDirectoryFlags(if restart { QueryDirectoryFlags::RESTART_SCANS } else { 0 }),
        file_index: 0,
        file_id,
        output_buffer_length: 64 * 1024,
        file_name: "*".to_string(),
    }
}

/// An open file.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    pub id: FileId,
    pub size_bytes: u64,
    pub is_directory: bool,
}

pub const OBJECT_NAME_NOT_FOUND: u32 = 0xC000_0034;
pub const OBJECT_PATH_NOT_FOUND: u32 = 0xC000_003A;
pub const FILE_IS_A_DIRECTORY: u32 = 0xC000_00BA;
pub const DISK_FULL: u32 = 0xC000_007F;

/// What a status means, for people.
pub fn status_name(status: u32) -> String {
    let text = match status {
        0xC000_0022 => "access denied",
        OBJECT_NAME_NOT_FOUND => "no such file",
        OBJECT_PATH_NOT_FOUND => "no such directory",
        0xC000_0035 => "exists already",
        0xC000_0043 => "opened by somebody else",
        0xC000_006D => "wrong user name or password",
        DISK_FULL => "the disk is full",
        FILE_IS_A_DIRECTORY => "is a directory",
        0xC000_00CC => "no such share",
        0xC000_0044 => "over quota",
        0xC000_0011 => "past the end of the file",
        0xC000_009A => "the server has no resources left",
        0xC000_00A2 => "the share is read-only",
        0xC000_0203 => "the session is gone",
        _ => return format!("status 0x{status:08X}"),
    };
    format!("{text} (0x{status:08X})")
}

/// How many credits so many bytes cost.
pub fn charge(bytes: usize) -> u16 {
    (bytes.max(1)).div_ceil(65536) as u16
}

impl Client {
    /// Opens a file and keeps it open.
    pub fn open(&mut self, name: &str, access: u32, disposition: CreateDisposition, options: u32) -> Result<FileId> {
        let body = create(name, access, disposition, options);
        match self.try_open(&body)? {
            Ok(open) => Ok(open.id),
            Err(status) => fail!("create of {name}: {}", status_name(status)),
        }
    }

    /// Opens a file; the status when the server does not.
    pub fn try_open(&mut self, body: &CreateRequest) -> Result<std::result::Result<Open, u32>> {
        let (status, answer) = self.ask(Call { command: Command::Create, body, charge: 1 })?;
        if status != 0 || answer.len() < 80 {
            return Ok(Err(status));
        }
        let u64_at = |i: usize| u64::from_le_bytes(answer[i..i + 8].try_into().expect("eight bytes"));
        // [MS-SMB2] 2.2.14: EndofFile at 48, FileAttributes at 56, FileId at 64.
        Ok(Ok(Open {
            id: FileId { persistent: u64_at(64), volatile: u64_at(72) },
            size_bytes: u64_at(48),
            is_directory: answer[56] & 0x10 != 0,
        }))
    }

    pub fn close(&mut self, file_id: FileId) -> Result<()> {
        self.call(&[Call { command: Command::Close, body: &CloseRequest { flags: 0, file_id }, charge: 1 }])
    }

    pub fn flush_file(&mut self, file_id: FileId) -> Result<()> {
        self.call(&[Call { command: Command::Flush, body: &smb2::msg::flush::FlushRequest { file_id }, charge: 1 }])
    }

    /// Makes a directory; it may be there.
    pub fn make_directory(&mut self, name: &str) -> Result<()> {
        let id = self.open(name, 0x80, CreateDisposition::FileOpenIf, DIRECTORY_FILE)?;
        self.close(id)
    }

    pub fn delete(&mut self, name: &str) -> Result<()> {
        let create = create(name, FileAccessMask::DELETE, CreateDisposition::FileOpen, DELETE_ON_CLOSE);
        self.call(&[
            Call { command: Command::Create, body: &create, charge: 1 },
            Call { command: Command::Close, body: &close(), charge: 1 },
        ])
    }
}
