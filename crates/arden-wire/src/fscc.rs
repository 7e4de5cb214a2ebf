//! Encodings of information classes, [MS-FSCC] 2.4 and 2.5, of FSCTL codes and of reparse data.

use crate::{
    FileTime, Malformed,
    cursor::{Put, Reader},
    names::{name_of_utf16, name_units, put_name_units},
};

/// Numbers of file information classes, [MS-FSCC] 2.4.
pub mod file_class {
    pub const DIRECTORY: u8 = 1;
    pub const FULL_DIRECTORY: u8 = 2;
    pub const BOTH_DIRECTORY: u8 = 3;
    pub const BASIC: u8 = 4;
    pub const STANDARD: u8 = 5;
    pub const INTERNAL: u8 = 6;
    pub const EA: u8 = 7;
    pub const ACCESS: u8 = 8;
    pub const NAME: u8 = 9;
    pub const RENAME: u8 = 10;
    pub const LINK: u8 = 11;
    pub const NAMES: u8 = 12;
    pub const DISPOSITION: u8 = 13;
    pub const POSITION: u8 = 14;
    pub const FULL_EA: u8 = 15;
    pub const MODE: u8 = 16;
    pub const ALIGNMENT: u8 = 17;
    pub const ALL: u8 = 18;
    pub const ALLOCATION: u8 = 19;
    pub const END_OF_FILE: u8 = 20;
    pub const ALTERNATE_NAME: u8 = 21;
    pub const STREAM: u8 = 22;
    pub const PIPE: u8 = 23;
    pub const PIPE_LOCAL: u8 = 24;
    pub const COMPRESSION: u8 = 28;
    pub const NETWORK_OPEN: u8 = 34;
    pub const OBJECT_ID: u8 = 29;
    pub const QUOTA: u8 = 32;
    pub const REPARSE_POINT: u8 = 33;
    pub const ATTRIBUTE_TAG: u8 = 35;
    pub const ID_BOTH_DIRECTORY: u8 = 37;
    pub const ID_FULL_DIRECTORY: u8 = 38;
    pub const VALID_DATA_LENGTH: u8 = 39;
    pub const SHORT_NAME: u8 = 40;
    pub const SFIO_RESERVE: u8 = 44;
    pub const HARD_LINK: u8 = 46;
    pub const NORMALIZED_NAME: u8 = 48;
    pub const STANDARD_LINK: u8 = 54;
    pub const ID: u8 = 59;
    pub const ID_EXTD_DIRECTORY: u8 = 60;
    pub const DISPOSITION_EX: u8 = 64;
    pub const RENAME_EX: u8 = 65;
}

/// Numbers of file system information classes, [MS-FSCC] 2.5.
pub mod fs_class {
    pub const VOLUME: u8 = 1;
    pub const LABEL: u8 = 2;
    pub const SIZE: u8 = 3;
    pub const DEVICE: u8 = 4;
    pub const ATTRIBUTE: u8 = 5;
    pub const CONTROL: u8 = 6;
    pub const FULL_SIZE: u8 = 7;
    pub const OBJECT_ID: u8 = 8;
    pub const DRIVER_PATH: u8 = 9;
    pub const SECTOR_SIZE: u8 = 11;
}

/// The fields from which the information classes of a file are encoded. Sizes are in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileMeta {
    pub creation: FileTime,
    pub last_access: FileTime,
    pub last_write: FileTime,
    pub change: FileTime,
    pub attributes: u32,
    pub allocation: u64,
    pub end_of_file: u64,
    pub links: u32,
    pub delete_pending: bool,
    pub directory: bool,
    pub file_id: u64,
    pub volume_id: u64,
    pub ea_size: u32,
    pub reparse_tag: u32,
}

impl FileMeta {
    fn put_times(&self, out: &mut Vec<u8>) {
        for t in [self.creation, self.last_access, self.last_write, self.change] {
            out.put_u64(t.0);
        }
    }
    /// Appends FileBasicInformation, [MS-FSCC] 2.4.7.
    pub fn put_basic(&self, out: &mut Vec<u8>) {
        self.put_times(out);
        out.put_u32(self.attributes);
        out.put_u32(0);
    }
    /// Appends FileStandardInformation, [MS-FSCC] 2.4.47.
    pub fn put_standard(&self, out: &mut Vec<u8>) {
        out.put_u64(self.allocation);
        out.put_u64(self.end_of_file);
        out.put_u32(self.links);
        out.put_u8(u8::from(self.delete_pending));
        out.put_u8(u8::from(self.directory));
        out.put_u16(0);
    }
    /// Appends FileNetworkOpenInformation, [MS-FSCC] 2.4.34.
    pub fn put_network_open(&self, out: &mut Vec<u8>) {
        self.put_times(out);
        out.put_u64(self.allocation);
        out.put_u64(self.end_of_file);
        out.put_u32(self.attributes);
        out.put_u32(0);
    }
    /// Appends FileAttributeTagInformation, [MS-FSCC] 2.4.6.
    pub fn put_attribute_tag(&self, out: &mut Vec<u8>) {
        out.put_u32(self.attributes);
        out.put_u32(self.reparse_tag);
    }
    /// Appends FileIdInformation, [MS-FSCC] 2.4.26.
    pub fn put_id(&self, out: &mut Vec<u8>) {
        out.put_u64(self.volume_id);
        out.put_u64(self.file_id);
        out.put_u64(0);
    }
    /// Appends FileCompressionInformation, [MS-FSCC] 2.4.9, of a file that is not compressed: what it takes on disk.
    pub fn put_compression(&self, out: &mut Vec<u8>) {
        out.put_u64(if self.directory { 0 } else { self.allocation });
        out.put_u64(0);
    }
    /// FileAllInformation, [MS-FSCC] 2.4.2.
    pub fn put_all(&self, out: &mut Vec<u8>, access: u32, position: u64, mode: u32) {
        self.put_basic(out);
        self.put_standard(out);
        out.put_u64(self.file_id);
        out.put_u32(self.ea_size);
        out.put_u32(access);
        out.put_u64(position);
        out.put_u32(mode);
        out.put_u32(0);
        put_name(out, "");
        // As long as the structure is in C, which ends in a multiple of 8 bytes.
        out.put_zeros(4);
    }
}

/// Appends FileNameInformation, [MS-FSCC] 2.4.32, or a class of the same layout: a length in bytes and the name.
pub fn put_name(out: &mut Vec<u8>, name: &str) {
    let at = out.len();
    out.put_u32(0);
    put_name_units(out, name);
    let len = (out.len() - at - 4) as u32;
    out.patch_u32(at, len);
}

/// The information classes that QUERY_DIRECTORY supports, [MS-FSCC] 2.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryClass {
    Directory,
    Full,
    Both,
    IdBoth,
    IdFull,
    IdExtd,
    Names,
}

impl DirectoryClass {
    /// The class with this number; `None` when it is not supported.
    pub fn from_u8(class: u8) -> Option<DirectoryClass> {
        Some(match class {
            file_class::DIRECTORY => DirectoryClass::Directory,
            file_class::FULL_DIRECTORY => DirectoryClass::Full,
            file_class::BOTH_DIRECTORY => DirectoryClass::Both,
            file_class::ID_BOTH_DIRECTORY => DirectoryClass::IdBoth,
            file_class::ID_FULL_DIRECTORY => DirectoryClass::IdFull,
            file_class::ID_EXTD_DIRECTORY => DirectoryClass::IdExtd,
            file_class::NAMES => DirectoryClass::Names,
            _ => return None,
        })
    }
    /// Bytes of an entry before its name.
    pub fn fixed_bytes(self) -> usize {
        match self {
            DirectoryClass::Directory => 64,
            DirectoryClass::Full => 68,
            DirectoryClass::Both => 94,
            DirectoryClass::IdBoth => 104,
            DirectoryClass::IdFull => 80,
            DirectoryClass::IdExtd => 88,
            DirectoryClass::Names => 12,
        }
    }

    /// Appends one entry without padding. NextEntryOffset is 0; the caller sets it when another entry follows.
    pub fn put_entry(self, out: &mut Vec<u8>, meta: &FileMeta, name: &str, short_name: &str) {
        let reparse = meta.attributes & crate::access::ATTR_REPARSE_POINT != 0;
        // [MS-FSCC] 2.4.8, 2.4.15: EaSize holds the reparse tag of a reparse point.
        let ea_size = if reparse { meta.reparse_tag } else { meta.ea_size };
        out.put_u32(0);
        out.put_u32(0);
        if self != DirectoryClass::Names {
            meta.put_times(out);
            out.put_u64(meta.end_of_file);
            out.put_u64(meta.allocation);
            out.put_u32(meta.attributes);
        }
        let name_len_at = out.len();
        out.put_u32(0);
        match self {
            DirectoryClass::Directory | DirectoryClass::Names => {}
            DirectoryClass::Full => out.put_u32(ea_size),
            DirectoryClass::Both => {
                out.put_u32(ea_size);
                put_short_name(out, short_name);
            }
            DirectoryClass::IdBoth => {
                out.put_u32(ea_size);
                put_short_name(out, short_name);
                out.put_u16(0);
                out.put_u64(meta.file_id);
            }
            DirectoryClass::IdFull => {
                out.put_u32(ea_size);
                out.put_u32(0);
                out.put_u64(meta.file_id);
            }
            DirectoryClass::IdExtd => {
                out.put_u32(meta.ea_size);
                out.put_u32(meta.reparse_tag);
                out.put_u64(meta.file_id);
                out.put_u64(0);
            }
        }
        let start = out.len();
        put_name_units(out, name);
        let len = (out.len() - start) as u32;
        out.patch_u32(name_len_at, len);
    }
}

fn put_short_name(out: &mut Vec<u8>, short_name: &str) {
    let mut units = [0u16; 12];
    let mut len = 0;
    for unit in short_name.encode_utf16().take(12) {
        units[len] = unit;
        len += 1;
    }
    out.put_u8((len * 2) as u8);
    out.put_u8(0);
    for unit in units {
        out.put_u16(unit);
    }
}

/// Appends FileStreamInformation, [MS-FSCC] 2.4.49, for streams given as full name (`::$DATA`), size and allocation
/// size in bytes. Returns false when `max` bytes do not hold all entries.
pub fn put_streams(out: &mut Vec<u8>, streams: &[(String, u64, u64)], max: usize) -> bool {
    let base = out.len();
    let mut last = None;
    for (name, size, allocation) in streams {
        let pad = (out.len() - base).next_multiple_of(8) - (out.len() - base);
        let need = pad + 24 + name_units(name) * 2;
        if out.len() - base + need > max {
            return false;
        }
        out.put_zeros(pad);
        if let Some(previous) = last {
            out.patch_u32(previous, (out.len() - previous) as u32);
        }
        last = Some(out.len());
        out.put_u32(0);
        let len_at = out.len();
        out.put_u32(0);
        out.put_u64(*size);
        out.put_u64(*allocation);
        let start = out.len();
        put_name_units(out, name);
        let len = (out.len() - start) as u32;
        out.patch_u32(len_at, len);
    }
    true
}

/// A FILE_FULL_EA_INFORMATION, [MS-FSCC] 2.4.16.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullEa {
    pub flags: u8,
    pub name: String,
    pub value: Vec<u8>,
}

/// Appends as much of a list of FILE_FULL_EA_INFORMATION as `max` bytes hold. Returns how many entries those are.
pub fn put_eas(out: &mut Vec<u8>, eas: &[FullEa], max: usize) -> usize {
    let base = out.len();
    let mut last = None;
    for (given, ea) in eas.iter().enumerate() {
        let pad = (out.len() - base).next_multiple_of(4) - (out.len() - base);
        if out.len() - base + pad + 9 + ea.name.len() + ea.value.len() > max {
            return given;
        }
        out.put_zeros(pad);
        if let Some(previous) = last {
            out.patch_u32(previous, (out.len() - previous) as u32);
        }
        last = Some(out.len());
        out.put_u32(0);
        out.put_u8(ea.flags);
        out.put_u8(ea.name.len() as u8);
        out.put_u16(ea.value.len() as u16);
        out.extend_from_slice(ea.name.as_bytes());
        out.put_u8(0);
        out.extend_from_slice(&ea.value);
    }
    eas.len()
}

/// Extended attributes in one request; more are malformed.
const EAS_MAX: usize = 1024;

/// Decodes a list of FILE_FULL_EA_INFORMATION, [MS-FSCC] 2.4.16.
///
/// # Errors
/// A field is out of its range, or the bytes end early.
pub fn parse_eas(mut data: &[u8]) -> Result<Vec<FullEa>, Malformed> {
    let mut out = Vec::new();
    if data.is_empty() {
        return Ok(out);
    }
    loop {
        let mut r = Reader::new(data);
        let next = r.u32()? as usize;
        let flags = r.u8()?;
        let name_len = usize::from(r.u8()?);
        let value_len = usize::from(r.u16()?);
        let name = r.bytes(name_len)?;
        r.skip(1)?;
        let value = r.bytes(value_len)?.to_vec();
        let name = std::str::from_utf8(name).map_err(|_| Malformed("EA name"))?.to_string();
        out.push(FullEa { flags, name, value });
        if next == 0 {
            return Ok(out);
        }
        if next < 8 || out.len() >= EAS_MAX {
            return Err(Malformed("EA chain"));
        }
        data = data.get(next..).ok_or(Malformed("EA chain"))?;
    }
}

/// Decodes a list of FILE_GET_EA_INFORMATION, [MS-FSCC] 2.4.16.1, to the names in it.
///
/// # Errors
/// A field is out of its range, or the bytes end early.
pub fn parse_ea_names(mut data: &[u8]) -> Result<Vec<String>, Malformed> {
    let mut out = Vec::new();
    loop {
        let mut r = Reader::new(data);
        let next = r.u32()? as usize;
        let len = usize::from(r.u8()?);
        out.push(String::from_utf8(r.bytes(len)?.to_vec()).map_err(|_| Malformed("EA name"))?);
        if next == 0 {
            return Ok(out);
        }
        if next < 5 || out.len() >= EAS_MAX {
            return Err(Malformed("EA chain"));
        }
        data = data.get(next..).ok_or(Malformed("EA chain"))?;
    }
}

/// Bytes of a reparse buffer before what its tag defines, [MS-FSCC] 2.1.2.2.
pub const REPARSE_HEADER_BYTES: usize = 8;
/// Of the GUID that follows in a REPARSE_GUID_DATA_BUFFER, [MS-FSCC] 2.1.2.3, and that ReparseDataLength does not count.
pub const REPARSE_GUID_BYTES: usize = 16;
/// All of a reparse buffer, [MS-FSA] 2.1.5.10.37.
pub const REPARSE_BUFFER_BYTES_MAX: usize = 16_384;

/// How much of a reparse buffer behind its header is the GUID of the tag's owner: nothing for the vendor's own tags, whose
/// high bit is set, and for reserved ones.
pub fn reparse_guid_bytes(tag: u32) -> usize {
    const RESERVED: std::ops::RangeInclusive<u32> = 0..=1;
    if tag & 0x8000_0000 != 0 || RESERVED.contains(&tag) { 0 } else { REPARSE_GUID_BYTES }
}

/// FileBasicInformation as a client sets it, [MS-FSCC] 2.4.7. The special times 0, -1 and -2 are kept as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BasicSet {
    pub creation: u64,
    pub last_access: u64,
    pub last_write: u64,
    pub change: u64,
    pub attributes: u32,
}

impl BasicSet {
    /// Decodes the structure.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(data: &[u8]) -> Result<BasicSet, Malformed> {
        let mut r = Reader::new(data);
        Ok(BasicSet {
            creation: r.u64()?,
            last_access: r.u64()?,
            last_write: r.u64()?,
            change: r.u64()?,
            attributes: r.u32()?,
        })
    }
}

/// FileRenameInformation and FileLinkInformation for SMB2, [MS-FSCC] 2.4.42.2 and 2.4.28.2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenameSet {
    /// The byte ReplaceIfExists in the plain classes, the field Flags in the Ex classes.
    pub flags: u32,
    pub root_directory: u64,
    pub name: String,
}

impl RenameSet {
    /// Decodes the structure; `ex` is the layout of FileRenameInformationEx, [MS-FSCC] 2.4.43.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(data: &[u8], ex: bool) -> Result<RenameSet, Malformed> {
        let mut r = Reader::new(data);
        let word = r.u32()?;
        let flags = if ex { word } else { word & 0xFF };
        r.skip(4)?;
        let root_directory = r.u64()?;
        let len = r.u32()? as usize;
        Ok(RenameSet { flags, root_directory, name: name_of_utf16(r.bytes(len)?)? })
    }
}

/// Appends FileFsVolumeInformation, [MS-FSCC] 2.5.9.
pub fn put_fs_volume(out: &mut Vec<u8>, created: FileTime, serial: u32, label: &str) {
    out.put_u64(created.0);
    out.put_u32(serial);
    let len_at = out.len();
    out.put_u32(0);
    out.put_u8(1);
    out.put_u8(0);
    let start = out.len();
    out.put_utf16(label);
    let len = (out.len() - start) as u32;
    out.patch_u32(len_at, len);
}

/// A bit of FileSystemAttributes, [MS-FSCC] 2.5.1: integrity can be set for each stream.
pub const FILE_SUPPORT_INTEGRITY_STREAMS: u32 = 0x0400_0000;
/// A bit of FileSystemAttributes, [MS-FSCC] 2.5.1: files can share blocks.
pub const FILE_SUPPORTS_BLOCK_REFCOUNTING: u32 = 0x0800_0000;
/// A bit of FileSystemAttributes that [MS-FSCC] 2.5.1 does not name, from Windows' winnt.h: streams have snapshots.
pub const FILE_SUPPORTS_STREAM_SNAPSHOTS: u32 = 0x0000_1000;
/// A bit of FileSystemAttributes, [MS-FSCC] 2.5.1: the volume is read-only.
pub const FILE_READ_ONLY_VOLUME: u32 = 0x0008_0000;

/// Appends FileFsAttributeInformation, [MS-FSCC] 2.5.1. `name_max` is in characters.
pub fn put_fs_attribute(out: &mut Vec<u8>, capabilities: u32, name_max: u32, file_system: &str) {
    out.put_u32(capabilities);
    out.put_u32(name_max);
    put_name(out, file_system);
}

/// Appends a FILE_NOTIFY_INFORMATION, [MS-FSCC] 2.7.1, without padding.
pub fn put_notify_entry(out: &mut Vec<u8>, action: u32, name: &str) {
    out.put_u32(0);
    out.put_u32(action);
    put_name(out, name);
}

/// The reparse tag of symbolic links, [MS-FSCC] 2.1.2.1.
pub const IO_REPARSE_TAG_SYMLINK: u32 = 0xA000_000C;
/// A flag of symbolic links, [MS-FSCC] 2.1.2.4: the target is relative.
pub const SYMLINK_FLAG_RELATIVE: u32 = 1;

/// FSCTL codes, [MS-FSCC] 2.3 and [MS-SMB2] 2.2.31.
pub mod fsctl {
    pub const DFS_GET_REFERRALS: u32 = 0x0006_0194;
    pub const DFS_GET_REFERRALS_EX: u32 = 0x0006_01B0;
    pub const READ_USN_JOURNAL: u32 = 0x0009_00BB;
    pub const CREATE_USN_JOURNAL: u32 = 0x0009_00E7;
    pub const READ_FILE_USN_DATA: u32 = 0x0009_00EB;
    pub const WRITE_USN_CLOSE_RECORD: u32 = 0x0009_00EF;
    pub const QUERY_USN_JOURNAL: u32 = 0x0009_00F4;
    pub const DELETE_USN_JOURNAL: u32 = 0x0009_00F8;
    pub const SET_REPARSE_POINT: u32 = 0x0009_00A4;
    pub const GET_REPARSE_POINT: u32 = 0x0009_00A8;
    pub const DELETE_REPARSE_POINT: u32 = 0x0009_00AC;
    pub const CREATE_OR_GET_OBJECT_ID: u32 = 0x0009_00C0;
    pub const GET_OBJECT_ID: u32 = 0x0009_009C;
    pub const SET_OBJECT_ID: u32 = 0x0009_0098;
    pub const GET_NTFS_VOLUME_DATA: u32 = 0x0009_0064;
    pub const GET_REFS_VOLUME_DATA: u32 = 0x0009_02D8;
    pub const GET_RETRIEVAL_POINTERS: u32 = 0x0009_0073;
    pub const GET_RETRIEVAL_POINTER_COUNT: u32 = 0x0009_042B;
    pub const GET_RETRIEVAL_POINTER_BASE: u32 = 0x0009_0234;
    pub const QUERY_FILE_REGIONS: u32 = 0x0009_0284;
    pub const GET_BOOT_AREA_INFO: u32 = 0x0009_0230;
    pub const IS_VOLUME_DIRTY: u32 = 0x0009_0078;
    pub const ALLOW_EXTENDED_DASD_IO: u32 = 0x0009_0083;
    pub const LOOKUP_STREAM_FROM_CLUSTER: u32 = 0x0009_01FC;
    pub const EXTEND_VOLUME: u32 = 0x0009_00F0;
    pub const SHRINK_VOLUME: u32 = 0x0009_01B0;
    pub const FILE_PREFETCH: u32 = 0x0009_0120;
    pub const SET_PERSISTENT_VOLUME_STATE: u32 = 0x0009_0238;
    pub const QUERY_PERSISTENT_VOLUME_STATE: u32 = 0x0009_023C;
    pub const SD_GLOBAL_CHANGE: u32 = 0x0009_01F4;
    pub const SET_SPARSE: u32 = 0x0009_00C4;
    pub const QUERY_ALLOCATED_RANGES: u32 = 0x0009_40CF;
    pub const SET_ZERO_DATA: u32 = 0x0009_80C8;
    pub const FILE_LEVEL_TRIM: u32 = 0x0009_8208;
    pub const MARK_HANDLE: u32 = 0x0009_00FC;
    pub const GET_COMPRESSION: u32 = 0x0009_003C;
    pub const SET_COMPRESSION: u32 = 0x0009_C040;
    pub const GET_INTEGRITY_INFORMATION: u32 = 0x0009_027C;
    pub const SET_INTEGRITY_INFORMATION: u32 = 0x0009_C280;
    pub const SET_INTEGRITY_INFORMATION_EX: u32 = 0x0009_0380;
    pub const REFS_STREAM_SNAPSHOT_MANAGEMENT: u32 = 0x0009_0440;
    pub const DUPLICATE_EXTENTS_TO_FILE: u32 = 0x0009_8344;
    pub const DUPLICATE_EXTENTS_TO_FILE_EX: u32 = 0x0009_83E8;
    pub const OFFLOAD_READ: u32 = 0x0009_4264;
    pub const OFFLOAD_WRITE: u32 = 0x0009_8268;
    pub const PIPE_PEEK: u32 = 0x0011_400C;
    pub const PIPE_WAIT: u32 = 0x0011_0018;
    pub const PIPE_TRANSCEIVE: u32 = 0x0011_C017;
    pub const SRV_ENUMERATE_SNAPSHOTS: u32 = 0x0014_4064;
    pub const SRV_REQUEST_RESUME_KEY: u32 = 0x0014_0078;
    pub const SRV_READ_HASH: u32 = 0x0014_41BB;
    pub const SRV_COPYCHUNK: u32 = 0x0014_40F2;
    pub const SRV_COPYCHUNK_WRITE: u32 = 0x0014_80F2;
    pub const LMR_REQUEST_RESILIENCY: u32 = 0x0014_01D4;
    pub const QUERY_NETWORK_INTERFACE_INFO: u32 = 0x0014_01FC;
    pub const VALIDATE_NEGOTIATE_INFO: u32 = 0x0014_0204;
}

/// A symbolic link reparse data buffer, [MS-FSCC] 2.1.2.4, without its tag and length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymlinkReparse {
    pub substitute: String,
    pub print: String,
    pub relative: bool,
}

impl SymlinkReparse {
    /// Decodes the bytes behind tag and length.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(data: &[u8]) -> Result<SymlinkReparse, Malformed> {
        let mut r = Reader::new(data);
        let (so, sl, po, pl) = (r.u16()?, r.u16()?, r.u16()?, r.u16()?);
        let flags = r.u32()?;
        let names = r.rest();
        let part = |o: u16, l: u16| name_of_utf16(crate::cursor::slice_at(names, usize::from(o), usize::from(l))?);
        Ok(SymlinkReparse {
            substitute: part(so, sl)?,
            print: part(po, pl)?,
            relative: flags & SYMLINK_FLAG_RELATIVE != 0,
        })
    }
    /// Encodes the bytes behind tag and length.
    pub fn encode(&self) -> Vec<u8> {
        let substitute_len = name_units(&self.substitute) as u16 * 2;
        let print_len = name_units(&self.print) as u16 * 2;
        let mut out = Vec::new();
        out.put_u16(0);
        out.put_u16(substitute_len);
        out.put_u16(substitute_len);
        out.put_u16(print_len);
        out.put_u32(if self.relative { SYMLINK_FLAG_RELATIVE } else { 0 });
        put_name_units(&mut out, &self.substitute);
        put_name_units(&mut out, &self.print);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_parts_are_as_long_as_they_say() {
        for class in 0..=255u8 {
            let Some(class) = DirectoryClass::from_u8(class) else {
                continue;
            };
            let mut out = Vec::new();
            class.put_entry(&mut out, &FileMeta::default(), "", "");
            assert_eq!(out.len(), class.fixed_bytes(), "{class:?}");
        }
    }

    #[test]
    fn eas_round_trip_and_chains_end() {
        let eas = vec![
            FullEa { flags: 0, name: "ONE".into(), value: vec![1, 2, 3] },
            FullEa { flags: 0x80, name: "T".into(), value: vec![] },
        ];
        let mut out = Vec::new();
        assert_eq!(put_eas(&mut out, &eas, 1000), 2);
        assert_eq!(parse_eas(&out).unwrap(), eas);
        assert_eq!([14, 15, 25, 26].map(|max| put_eas(&mut Vec::new(), &eas, max)), [0, 1, 1, 2]);
        assert!(parse_eas(&[9, 0, 0, 0, 0, 200, 0, 0]).is_err());
    }

    #[test]
    fn symlink_buffer_round_trip() {
        let link = SymlinkReparse { substitute: "a\\b".into(), print: "a\\b".into(), relative: true };
        assert_eq!(SymlinkReparse::parse(&link.encode()).unwrap(), link);
    }
}
