//! Access rights, [MS-SMB2] 2.2.13.1 and [MS-DTYP] 2.4.3, and file attributes, [MS-FSCC] 2.6.

// Access rights, [MS-SMB2] 2.2.13.1.1 and 2.2.13.1.2.
pub const FILE_READ_DATA: u32 = 0x0000_0001;
pub const FILE_LIST_DIRECTORY: u32 = FILE_READ_DATA;
pub const FILE_WRITE_DATA: u32 = 0x0000_0002;
pub const FILE_ADD_FILE: u32 = FILE_WRITE_DATA;
pub const FILE_APPEND_DATA: u32 = 0x0000_0004;
pub const FILE_ADD_SUBDIRECTORY: u32 = FILE_APPEND_DATA;
pub const FILE_READ_EA: u32 = 0x0000_0008;
pub const FILE_WRITE_EA: u32 = 0x0000_0010;
pub const FILE_EXECUTE: u32 = 0x0000_0020;
pub const FILE_TRAVERSE: u32 = FILE_EXECUTE;
pub const FILE_DELETE_CHILD: u32 = 0x0000_0040;
pub const FILE_READ_ATTRIBUTES: u32 = 0x0000_0080;
pub const FILE_WRITE_ATTRIBUTES: u32 = 0x0000_0100;
pub const DELETE: u32 = 0x0001_0000;
pub const READ_CONTROL: u32 = 0x0002_0000;
pub const WRITE_DAC: u32 = 0x0004_0000;
pub const WRITE_OWNER: u32 = 0x0008_0000;
pub const SYNCHRONIZE: u32 = 0x0010_0000;
pub const ACCESS_SYSTEM_SECURITY: u32 = 0x0100_0000;
pub const MAXIMUM_ALLOWED: u32 = 0x0200_0000;
pub const GENERIC_ALL: u32 = 0x1000_0000;
pub const GENERIC_EXECUTE: u32 = 0x2000_0000;
pub const GENERIC_WRITE: u32 = 0x4000_0000;
pub const GENERIC_READ: u32 = 0x8000_0000;

// The file rights that the generic rights stand for.
pub const FILE_ALL_ACCESS: u32 = 0x001F_01FF;
pub const FILE_GENERIC_READ: u32 = 0x0012_0089;
pub const FILE_GENERIC_WRITE: u32 = 0x0012_0116;
pub const FILE_GENERIC_EXECUTE: u32 = 0x0012_00A0;

/// Replaces the generic rights by the file rights they stand for, [MS-FSA] 2.1.5.1.
pub const fn map_generic(access: u32) -> u32 {
    let mut a = access;
    if a & GENERIC_READ != 0 {
        a |= FILE_GENERIC_READ;
    }
    if a & GENERIC_WRITE != 0 {
        a |= FILE_GENERIC_WRITE;
    }
    if a & GENERIC_EXECUTE != 0 {
        a |= FILE_GENERIC_EXECUTE;
    }
    if a & GENERIC_ALL != 0 {
        a |= FILE_ALL_ACCESS;
    }
    a & !(GENERIC_READ | GENERIC_WRITE | GENERIC_EXECUTE | GENERIC_ALL)
}

// ShareAccess, [MS-SMB2] 2.2.13.
pub const FILE_SHARE_READ: u32 = 1;
pub const FILE_SHARE_WRITE: u32 = 2;
pub const FILE_SHARE_DELETE: u32 = 4;

// File attributes, [MS-FSCC] 2.6.
pub const ATTR_READONLY: u32 = 0x1;
pub const ATTR_HIDDEN: u32 = 0x2;
pub const ATTR_SYSTEM: u32 = 0x4;
pub const ATTR_DIRECTORY: u32 = 0x10;
pub const ATTR_ARCHIVE: u32 = 0x20;
pub const ATTR_NORMAL: u32 = 0x80;
pub const ATTR_TEMPORARY: u32 = 0x100;
pub const ATTR_SPARSE: u32 = 0x200;
pub const ATTR_REPARSE_POINT: u32 = 0x400;
pub const ATTR_COMPRESSED: u32 = 0x800;
pub const ATTR_OFFLINE: u32 = 0x1000;
pub const ATTR_NOT_CONTENT_INDEXED: u32 = 0x2000;
pub const ATTR_ENCRYPTED: u32 = 0x4000;
pub const ATTR_INTEGRITY_STREAM: u32 = 0x8000;
pub const ATTR_NO_SCRUB_DATA: u32 = 0x20000;
/// The attributes that a client may set. The others follow from the kind of the file.
pub const ATTR_SETTABLE: u32 =
    ATTR_READONLY | ATTR_HIDDEN | ATTR_SYSTEM | ATTR_ARCHIVE | ATTR_TEMPORARY | ATTR_OFFLINE | ATTR_NOT_CONTENT_INDEXED;

// Create options, [MS-SMB2] 2.2.13.
pub const OPT_DIRECTORY_FILE: u32 = 0x1;
pub const OPT_WRITE_THROUGH: u32 = 0x2;
pub const OPT_SEQUENTIAL_ONLY: u32 = 0x4;
pub const OPT_NO_INTERMEDIATE_BUFFERING: u32 = 0x8;
pub const OPT_NON_DIRECTORY_FILE: u32 = 0x40;
pub const OPT_COMPLETE_IF_OPLOCKED: u32 = 0x100;
pub const OPT_NO_EA_KNOWLEDGE: u32 = 0x200;
pub const OPT_RANDOM_ACCESS: u32 = 0x800;
pub const OPT_DELETE_ON_CLOSE: u32 = 0x1000;
pub const OPT_OPEN_BY_FILE_ID: u32 = 0x2000;
pub const OPT_OPEN_FOR_BACKUP_INTENT: u32 = 0x4000;
pub const OPT_NO_COMPRESSION: u32 = 0x8000;
pub const OPT_OPEN_REQUIRING_OPLOCK: u32 = 0x10000;
pub const OPT_DISALLOW_EXCLUSIVE: u32 = 0x20000;
pub const OPT_RESERVE_OPFILTER: u32 = 0x100000;
pub const OPT_OPEN_REPARSE_POINT: u32 = 0x200000;
pub const OPT_OPEN_NO_RECALL: u32 = 0x400000;
