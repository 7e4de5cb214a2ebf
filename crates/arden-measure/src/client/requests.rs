//! Bodies of the requests of which loads are made, and the statuses of their responses.

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
    types::{FileId, OplockLevel, flags::FileAccessMask},
};

/// CreateOptions, [MS-SMB2] 2.2.13: the last close deletes the file.
pub const DELETE_ON_CLOSE: u32 = 0x1000;
/// CreateOptions, [MS-SMB2] 2.2.13: the file must not be a directory.
pub const NON_DIRECTORY_FILE: u32 = 0x40;
/// CreateOptions, [MS-SMB2] 2.2.13: the file must be a directory.
pub const DIRECTORY_FILE: u32 = 0x1;
const READ_WRITE_DELETE: u32 = 7;
/// STATUS_NO_MORE_FILES, [MS-ERREF] 2.3.1: the end of a listing.
pub const NO_MORE_FILES: u32 = 0x8000_0006;

/// CREATE, [MS-SMB2] 2.2.13, without oplock and contexts, with all share modes. `name` is relative to the share.
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

/// CLOSE, [MS-SMB2] 2.2.15, of the open of the same compound.
pub fn close() -> CloseRequest {
    CloseRequest { flags: 0, file_id: FileId::SENTINEL }
}

/// WRITE, [MS-SMB2] 2.2.21, at offset 0.
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

/// READ, [MS-SMB2] 2.2.19, of `length` bytes at offset 0.
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

/// QUERY_INFO, [MS-SMB2] 2.2.37, of FileAllInformation, [MS-FSCC] 2.4.2.
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

/// SET_INFO, [MS-SMB2] 2.2.39, of FileRenameInformation, [MS-FSCC] 2.4.42.2.
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

/// QUERY_DIRECTORY, [MS-SMB2] 2.2.33, for 64 KiB of entries. `restart`: from the first entry.
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

/// STATUS_OBJECT_NAME_NOT_FOUND, [MS-ERREF] 2.3.1.
pub const OBJECT_NAME_NOT_FOUND: u32 = 0xC000_0034;
/// STATUS_OBJECT_PATH_NOT_FOUND, [MS-ERREF] 2.3.1.
pub const OBJECT_PATH_NOT_FOUND: u32 = 0xC000_003A;
/// STATUS_FILE_IS_A_DIRECTORY, [MS-ERREF] 2.3.1.
pub const FILE_IS_A_DIRECTORY: u32 = 0xC000_00BA;
/// STATUS_DISK_FULL, [MS-ERREF] 2.3.1.
pub const DISK_FULL: u32 = 0xC000_007F;

/// The meaning of a status, for display.
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

/// The CreditCharge of a READ or WRITE of this many bytes: one for each 64 KiB, [MS-SMB2] 3.1.5.2.
pub fn charge(bytes: usize) -> u16 {
    (bytes.max(1)).div_ceil(65536) as u16
}
