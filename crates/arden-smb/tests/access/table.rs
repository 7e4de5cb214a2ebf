//! Every operation on an open x what the share permits x what the open was granted.

use arden_wire::{
    dtyp::{
        DACL_SECURITY_INFORMATION, GROUP_SECURITY_INFORMATION, LABEL_SECURITY_INFORMATION, OWNER_SECURITY_INFORMATION,
        SACL_SECURITY_INFORMATION, SecurityDescriptor, well_known,
    },
    stream_snapshot::{Operation, Request},
};

use crate::{client::*, world::*};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    File,
    Directory,
    Stream,
}

/// One operation, and what [MS-FSA] asks for it: `any` of these granted rights, and `all` of those. `share`: rights that
/// the share has to leave although the open needs not have them: what the operation does to other files and directories.
struct Row {
    name: &'static str,
    on: On,
    any: u32,
    all: u32,
    share: u32,
    /// Beside SUCCESS.
    ok: &'static [NtStatus],
    /// Of stores that cannot do it at all, whoever asks.
    not_here: &'static [NtStatus],
    run: fn(&mut Case<'_>) -> NtStatus,
}

/// One call of one operation.
struct Case<'a> {
    c: &'a mut Client,
    id: FileId,
    /// Names of this case: what is open, another file, and one that is not there.
    n: usize,
    user: arden_wire::dtyp::Sid,
    /// What else it opened.
    others: Vec<FileId>,
}

impl Case<'_> {
    fn new_name(&self) -> String {
        format!("t\\new{}", self.n)
    }
    fn victim(&self) -> String {
        format!("t\\victim{}", self.n)
    }
    fn query(&mut self, class: u8) -> NtStatus {
        self.c.status(&query_info(self.id, info_type::FILE, class, 0, &[], 4096))
    }
    fn query_fs(&mut self, class: u8) -> NtStatus {
        self.c.status(&query_info(self.id, info_type::FILE_SYSTEM, class, 0, &[], 4096))
    }
    fn query_security(&mut self, information: u32) -> NtStatus {
        self.c.status(&query_info(self.id, info_type::SECURITY, 0, information, &[], 4096))
    }
    fn set(&mut self, class: u8, data: &[u8]) -> NtStatus {
        self.c.set(self.id, class, data)
    }
    fn fsctl(&mut self, code: u32, input: &[u8], max: u32) -> NtStatus {
        self.c.status(&ioctl(self.id, code, input, max))
    }
    /// The victim, open for reading by the same client, as the source of a copy; its resume key.
    fn source(&mut self) -> Vec<u8> {
        let f = self.c.open(want(&self.victim()).existing().access(FILE_READ_DATA | FILE_READ_ATTRIBUTES));
        self.others.push(f.id);
        self.c.fsctl(f.id, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32)
    }
    fn copy(&mut self, code: u32) -> NtStatus {
        let key = self.source();
        self.fsctl(code, &copy_chunks(&key, &[(0, 0, 4096)]), 12)
    }
    fn duplicate(&mut self) -> NtStatus {
        let mut input = self.source()[..16].to_vec();
        for v in [0u64, 0, 4096] {
            input.put_u64(v);
        }
        self.fsctl(fsctl::DUPLICATE_EXTENTS_TO_FILE, &input, 0)
    }
    fn set_descriptor(&mut self, information: u32) -> NtStatus {
        let mut sd = SecurityDescriptor::parse(&descriptor(Some(&self.user), vec![everyone(ALL_ACCESS, 0)])).unwrap();
        sd.group = Some(self.user.clone());
        self.c.set_security(self.id, information, &sd.encode())
    }
}

const fn row(name: &'static str, any: u32, run: fn(&mut Case<'_>) -> NtStatus) -> Row {
    Row { name, on: On::File, any, all: 0, share: 0, ok: &[], not_here: &[], run }
}
const fn free(name: &'static str, run: fn(&mut Case<'_>) -> NtStatus) -> Row {
    row(name, 0, run)
}
impl Row {
    const fn all(mut self, all: u32) -> Row {
        self.all = all;
        self
    }
    const fn share(mut self, share: u32) -> Row {
        self.share = share;
        self
    }
    const fn or(mut self, ok: &'static [NtStatus]) -> Row {
        self.ok = ok;
        self
    }
    const fn unless(mut self, not_here: &'static [NtStatus]) -> Row {
        self.not_here = not_here;
        self
    }
    const fn of(mut self, on: On) -> Row {
        self.on = on;
        self
    }

    fn uses_another_file(&self) -> bool {
        ["over a file", "COPY", "DUPLICATE"].iter().any(|part| self.name.contains(part))
    }

    fn allows(&self, granted: u32, ceiling: u32) -> bool {
        (self.any == 0 || granted & self.any != 0)
            && granted & self.all == self.all
            && ceiling & self.share == self.share
    }
}

const WRITES: u32 = FILE_WRITE_DATA | FILE_APPEND_DATA;
const OPAQUE: u32 = 0x8000_0BAD;

fn reparse() -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u32(OPAQUE);
    data.put_u16(4);
    data.put_u16(0);
    data.put_u32(7);
    data
}

fn trim() -> Vec<u8> {
    [&0u32.to_le_bytes()[..], &1u32.to_le_bytes(), &pair(0, 4096)].concat()
}

/// [MS-FSA] 2.1.5.3 to 2.1.5.22 in order.
fn rows() -> Vec<Row> {
    let mut rows = data_rows();
    rows.extend(query_rows());
    rows.extend(set_rows());
    rows.extend(fsctl_rows());
    rows.extend(other_rows());
    rows
}

fn data_rows() -> Vec<Row> {
    vec![
        // 2.1.5.3; a handle to execute reads too, [MS-SMB2] 3.3.5.12.
        row("read", FILE_READ_DATA | FILE_EXECUTE, |k| k.c.status(&read(k.id, 0, 100))),
        // 2.1.5.4; either right is enough wherever it writes, [MS-SMB2] 3.3.5.13 <364>.
        row("write over data", WRITES, |k| k.c.status(&write(k.id, 0, b"x"))),
        row("write at the end", WRITES, |k| k.c.status(&write(k.id, 8192, b"x"))),
        // 2.1.5.7.
        row("flush", WRITES, |k| k.c.status(&flush(k.id))),
        // 2.1.5.8 asks for nothing; who may neither read nor write has nothing to lock.
        row("lock", WRITES | FILE_READ_DATA | FILE_EXECUTE, |k| {
            k.c.status(&lock(k.id, 0, &[(0, 1, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)]))
        }),
    ]
}

/// 2.1.5.12, 2.1.5.13 and 2.1.5.14; [MS-SMB2] 3.3.5.20.1.
fn query_rows() -> Vec<Row> {
    let attributes = |name, run| row(name, FILE_READ_ATTRIBUTES, run);
    vec![
        free("FileAccessInformation", |k| k.query(file_class::ACCESS)),
        free("FileAlignmentInformation", |k| k.query(file_class::ALIGNMENT)),
        attributes("FileAllInformation", |k| k.query(file_class::ALL)),
        free("FileAlternateNameInformation", |k| k.query(file_class::ALTERNATE_NAME)),
        attributes("FileAttributeTagInformation", |k| k.query(file_class::ATTRIBUTE_TAG)),
        attributes("FileBasicInformation", |k| k.query(file_class::BASIC)),
        free("FileCompressionInformation", |k| k.query(file_class::COMPRESSION)),
        free("FileEaInformation", |k| k.query(file_class::EA)),
        row("FileFullEaInformation", FILE_READ_EA, |k| k.query(file_class::FULL_EA)),
        free("FileInternalInformation", |k| k.query(file_class::INTERNAL)),
        free("FileModeInformation", |k| k.query(file_class::MODE)),
        attributes("FileNetworkOpenInformation", |k| k.query(file_class::NETWORK_OPEN)),
        free("FilePositionInformation", |k| k.query(file_class::POSITION)),
        free("FileStandardInformation", |k| k.query(file_class::STANDARD)),
        free("FileStreamInformation", |k| k.query(file_class::STREAM)),
        free("FileNormalizedNameInformation", |k| k.query(file_class::NORMALIZED_NAME)),
        free("FileIdInformation", |k| k.query(file_class::ID)),
        free("FileFsVolumeInformation", |k| k.query_fs(fs_class::VOLUME)),
        free("FileFsSizeInformation", |k| k.query_fs(fs_class::SIZE)),
        free("FileFsDeviceInformation", |k| k.query_fs(fs_class::DEVICE)),
        free("FileFsAttributeInformation", |k| k.query_fs(fs_class::ATTRIBUTE)),
        free("FileFsControlInformation", |k| k.query_fs(fs_class::CONTROL)).unless(&[NtStatus::VOLUME_NOT_UPGRADED]),
        free("FileFsFullSizeInformation", |k| k.query_fs(fs_class::FULL_SIZE)),
        free("FileFsObjectIdInformation", |k| k.query_fs(fs_class::OBJECT_ID)),
        free("FileFsSectorSizeInformation", |k| k.query_fs(fs_class::SECTOR_SIZE)),
        row("owner", READ_CONTROL, |k| k.query_security(OWNER_SECURITY_INFORMATION)),
        row("group", READ_CONTROL, |k| k.query_security(GROUP_SECURITY_INFORMATION)),
        row("DACL", READ_CONTROL, |k| k.query_security(DACL_SECURITY_INFORMATION)),
        row("label", READ_CONTROL, |k| k.query_security(LABEL_SECURITY_INFORMATION)),
        row("SACL", ACCESS_SYSTEM_SECURITY, |k| k.query_security(SACL_SECURITY_INFORMATION)),
    ]
}

/// 2.1.5.15 and 2.1.5.17; [MS-SMB2] 3.3.5.21.
fn set_rows() -> Vec<Row> {
    const TAKES_PLACE: u32 = FILE_ADD_FILE | DELETE;
    vec![
        row("FileShortNameInformation", FILE_WRITE_DATA | FILE_WRITE_ATTRIBUTES, |k| {
            k.set(file_class::SHORT_NAME, &[2, 0, 0, 0, b'A', 0])
        })
        .all(DELETE)
        .or(&[NtStatus::PRIVILEGE_NOT_HELD]),
        row("FileAllocationInformation", FILE_WRITE_DATA, |k| k.set(file_class::ALLOCATION, &8192u64.to_le_bytes())),
        row("FileBasicInformation, set", FILE_WRITE_ATTRIBUTES, |k| {
            k.set(file_class::BASIC, &basic(0, 0, 0, 0, ATTR_HIDDEN))
        }),
        row("FileDispositionInformation", DELETE, |k| k.set(file_class::DISPOSITION, &[1])),
        row("FileDispositionInformationEx", DELETE, |k| k.set(file_class::DISPOSITION_EX, &3u32.to_le_bytes())),
        row("FileEndOfFileInformation", FILE_WRITE_DATA, |k| k.set(file_class::END_OF_FILE, &1u64.to_le_bytes())),
        row("FileFullEaInformation, set", FILE_WRITE_EA, |k| k.set(file_class::FULL_EA, &eas(&[("A", b"b")]))),
        // Which access the handle was opened for does not matter; what the file lets its opener do does, see `links`.
        free("FileLinkInformation", |k| {
            let to = name_change(&k.new_name(), false);
            k.set(file_class::LINK, &to)
        })
        .share(FILE_ADD_FILE | FILE_WRITE_ATTRIBUTES),
        free("FileLinkInformation over a file", |k| {
            let to = name_change(&k.victim(), true);
            k.set(file_class::LINK, &to)
        })
        .share(TAKES_PLACE | FILE_WRITE_ATTRIBUTES),
        free("FileModeInformation, set", |k| k.set(file_class::MODE, &0u32.to_le_bytes())),
        free("FilePositionInformation, set", |k| k.set(file_class::POSITION, &0u64.to_le_bytes())),
        row("FileRenameInformation", DELETE, |k| {
            let to = name_change(&k.new_name(), false);
            k.set(file_class::RENAME, &to)
        })
        .share(FILE_ADD_FILE),
        row("FileRenameInformation over a file", DELETE, |k| {
            let to = name_change(&k.victim(), true);
            k.set(file_class::RENAME, &to)
        })
        .share(TAKES_PLACE),
        row("FileRenameInformation of a directory", DELETE, |k| {
            let to = name_change(&k.new_name(), false);
            k.set(file_class::RENAME, &to)
        })
        .share(FILE_ADD_SUBDIRECTORY)
        .of(On::Directory),
        row("FileRenameInformation of a stream", DELETE, |k| k.set(file_class::RENAME, &name_change(":other", false)))
            .of(On::Stream),
        row("FileRenameInformation to the unnamed stream", DELETE, |k| {
            k.set(file_class::RENAME, &name_change("::$DATA", true))
        })
        .of(On::Stream)
        .or(&[NtStatus::INVALID_PARAMETER]),
        row("owner, set", WRITE_OWNER, |k| k.set_descriptor(OWNER_SECURITY_INFORMATION)),
        row("group, set", WRITE_OWNER, |k| k.set_descriptor(GROUP_SECURITY_INFORMATION)),
        row("DACL, set", WRITE_DAC, |k| k.set_descriptor(DACL_SECURITY_INFORMATION)),
        row("DACL and owner, set", 0, |k| k.set_descriptor(DACL_SECURITY_INFORMATION | OWNER_SECURITY_INFORMATION))
            .all(WRITE_DAC | WRITE_OWNER),
        row("SACL, set", ACCESS_SYSTEM_SECURITY, |k| k.set_descriptor(SACL_SECURITY_INFORMATION)),
    ]
}

/// 2.1.5.10, and the access bits in the control codes, [MS-FSCC] 2.3.
fn fsctl_rows() -> Vec<Row> {
    const SHARED: &[NtStatus] = &[NtStatus::NOT_SUPPORTED, NtStatus::INVALID_DEVICE_REQUEST];
    let changes = |name, run| row(name, FILE_WRITE_DATA | FILE_WRITE_ATTRIBUTES, run);
    vec![
        // 2.1.5.10.1 makes one for everybody; here that takes what other attributes take.
        changes("FSCTL_CREATE_OR_GET_OBJECT_ID", |k| k.fsctl(fsctl::CREATE_OR_GET_OBJECT_ID, &[], 64)),
        free("FSCTL_GET_OBJECT_ID", |k| k.fsctl(fsctl::GET_OBJECT_ID, &[], 64)).or(&[NtStatus::OBJECT_NAME_NOT_FOUND]),
        changes("FSCTL_SET_REPARSE_POINT", |k| k.fsctl(fsctl::SET_REPARSE_POINT, &reparse(), 0)),
        changes("FSCTL_SET_REPARSE_POINT on a directory", |k| k.fsctl(fsctl::SET_REPARSE_POINT, &reparse(), 0))
            .of(On::Directory),
        changes("FSCTL_DELETE_REPARSE_POINT", |k| k.fsctl(fsctl::DELETE_REPARSE_POINT, &by_tag(), 0))
            .or(&[NtStatus::NOT_A_REPARSE_POINT]),
        free("FSCTL_GET_REPARSE_POINT", |k| k.fsctl(fsctl::GET_REPARSE_POINT, &[], 4096))
            .or(&[NtStatus::NOT_A_REPARSE_POINT]),
        row("FSCTL_DUPLICATE_EXTENTS_TO_FILE", FILE_WRITE_DATA, |k| k.duplicate()).unless(SHARED),
        row("FSCTL_FILE_LEVEL_TRIM", FILE_WRITE_DATA, |k| k.fsctl(fsctl::FILE_LEVEL_TRIM, &trim(), 4)),
        // Files are not compressed: who may ask is told so.
        free("FSCTL_GET_COMPRESSION", |k| k.fsctl(fsctl::GET_COMPRESSION, &[], 2))
            .or(&[NtStatus::INVALID_DEVICE_REQUEST]),
        row("FSCTL_QUERY_ALLOCATED_RANGES", FILE_READ_DATA, |k| {
            k.fsctl(fsctl::QUERY_ALLOCATED_RANGES, &pair(0, 4096), 64)
        }),
        free("FSCTL_GET_NTFS_VOLUME_DATA", |k| k.fsctl(fsctl::GET_NTFS_VOLUME_DATA, &[], 96)).unless(SHARED),
        free("FSCTL_GET_REFS_VOLUME_DATA", |k| k.fsctl(fsctl::GET_REFS_VOLUME_DATA, &[], 152)).unless(SHARED),
        // 2.1.5.10.15 and 2.1.5.10.17 ask for nothing; here for what allocated ranges take.
        row("FSCTL_GET_RETRIEVAL_POINTERS", FILE_READ_DATA, |k| k.fsctl(fsctl::GET_RETRIEVAL_POINTERS, &[0; 8], 4096))
            .unless(SHARED),
        row("FSCTL_GET_RETRIEVAL_POINTER_COUNT", FILE_READ_DATA, |k| {
            k.fsctl(fsctl::GET_RETRIEVAL_POINTER_COUNT, &[0; 8], 4)
        })
        .unless(SHARED),
        free("FSCTL_QUERY_FILE_REGIONS", |k| k.fsctl(fsctl::QUERY_FILE_REGIONS, &[], 1024)),
        row("FSCTL_SET_COMPRESSION", 0, |k| k.fsctl(fsctl::SET_COMPRESSION, &[0, 0], 0))
            .all(FILE_READ_DATA | FILE_WRITE_DATA)
            .or(&[NtStatus::INVALID_DEVICE_REQUEST]),
        // 2.1.5.10.38; peers take the right to append too (`smb2.ioctl.sparse_perms`).
        row("FSCTL_SET_SPARSE", WRITES | FILE_WRITE_ATTRIBUTES, |k| k.fsctl(fsctl::SET_SPARSE, &[1], 0)),
        free("FSCTL_GET_INTEGRITY_INFORMATION", |k| k.fsctl(fsctl::GET_INTEGRITY_INFORMATION, &[], 16))
            .unless(&[NtStatus::INVALID_DEVICE_REQUEST]),
        row("FSCTL_SET_INTEGRITY_INFORMATION", 0, |k| {
            k.fsctl(fsctl::SET_INTEGRITY_INFORMATION, &[2, 0, 0, 0, 0, 0, 0, 0], 0)
        })
        .all(FILE_READ_DATA | FILE_WRITE_DATA)
        .unless(&[NtStatus::INVALID_DEVICE_REQUEST]),
        changes("FSCTL_SET_INTEGRITY_INFORMATION_EX", |k| {
            let mut input = [0; 16];
            (input[0], input[8]) = (1, 1);
            k.fsctl(fsctl::SET_INTEGRITY_INFORMATION_EX, &input, 0)
        })
        .unless(&[NtStatus::INVALID_DEVICE_REQUEST]),
        // 2.1.5.10.29. Nobody made a snapshot that could be compared, or reverted to.
        row("FSCTL_REFS_STREAM_SNAPSHOT_MANAGEMENT: list", FILE_READ_ATTRIBUTES, |k| {
            k.fsctl(fsctl::REFS_STREAM_SNAPSHOT_MANAGEMENT, &Request::encode(Operation::List, "*"), 4096)
        })
        .unless(&[NtStatus::INVALID_DEVICE_REQUEST]),
        row("FSCTL_REFS_STREAM_SNAPSHOT_MANAGEMENT: query deltas", FILE_READ_ATTRIBUTES, |k| {
            let input = Request::encode(Operation::QueryDeltas { from: 0, flags: 0 }, "s");
            k.fsctl(fsctl::REFS_STREAM_SNAPSHOT_MANAGEMENT, &input, 4096)
        })
        .or(&[NtStatus::OBJECT_NAME_NOT_FOUND])
        .unless(&[NtStatus::INVALID_DEVICE_REQUEST]),
        row("FSCTL_REFS_STREAM_SNAPSHOT_MANAGEMENT: create", FILE_WRITE_ATTRIBUTES, |k| {
            k.fsctl(fsctl::REFS_STREAM_SNAPSHOT_MANAGEMENT, &Request::encode(Operation::Create, "s"), 0)
        })
        .unless(&[NtStatus::INVALID_DEVICE_REQUEST]),
        row("FSCTL_REFS_STREAM_SNAPSHOT_MANAGEMENT: revert", 0, |k| {
            k.fsctl(fsctl::REFS_STREAM_SNAPSHOT_MANAGEMENT, &Request::encode(Operation::Revert, "s"), 0)
        })
        .all(FILE_WRITE_DATA | FILE_WRITE_ATTRIBUTES)
        .or(&[NtStatus::OBJECT_NAME_NOT_FOUND])
        .unless(&[NtStatus::INVALID_DEVICE_REQUEST]),
        // 127, 128: as Windows has them.
        row("FSCTL_REFS_STREAM_SNAPSHOT_MANAGEMENT: shadow", FILE_WRITE_ATTRIBUTES, |k| {
            k.fsctl(fsctl::REFS_STREAM_SNAPSHOT_MANAGEMENT, &Request::encode(Operation::SetShadow, "s"), 0)
        })
        .or(&[NtStatus::NOT_IMPLEMENTED])
        .unless(&[NtStatus::INVALID_DEVICE_REQUEST]),
        // On a volume of one copy it takes the way to all but the copy.
        free("FSCTL_MARK_HANDLE", |k| {
            let mut input = [0; 24];
            input[17] = 1;
            k.fsctl(fsctl::MARK_HANDLE, &input, 0)
        })
        .or(&[NtStatus::INVALID_PARAMETER]),
        row("FSCTL_SET_ZERO_DATA", FILE_WRITE_DATA, |k| k.fsctl(fsctl::SET_ZERO_DATA, &pair(0, 10), 0)),
        row("FSCTL_OFFLOAD_READ", FILE_READ_DATA, |k| {
            let mut input = vec![32, 0, 0, 0];
            input.put_zeros(12);
            input.extend_from_slice(&pair(0, 4096));
            k.fsctl(fsctl::OFFLOAD_READ, &input, 528)
        })
        .unless(SHARED),
        row("FSCTL_OFFLOAD_WRITE", FILE_WRITE_DATA, |k| {
            let mut input = Vec::new();
            input.put_u32(544);
            input.put_u32(0);
            for v in [0u64, 4096, 0] {
                input.put_u64(v);
            }
            // The token for zeros.
            input.extend_from_slice(&0xFFFF_0001u32.to_be_bytes());
            input.resize(544, 0);
            k.fsctl(fsctl::OFFLOAD_WRITE, &input, 16)
        })
        .unless(SHARED),
        // [MS-SMB2] 3.3.5.15.6.
        row("FSCTL_SRV_COPYCHUNK", WRITES, |k| k.copy(fsctl::SRV_COPYCHUNK)).all(FILE_READ_DATA),
        row("FSCTL_SRV_COPYCHUNK_WRITE", WRITES, |k| k.copy(fsctl::SRV_COPYCHUNK_WRITE)),
        free("FSCTL_SRV_REQUEST_RESUME_KEY", |k| k.fsctl(fsctl::SRV_REQUEST_RESUME_KEY, &[], 32)),
        free("FSCTL_SRV_ENUMERATE_SNAPSHOTS", |k| k.fsctl(fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 16)),
        free("FSCTL_READ_FILE_USN_DATA", |k| k.fsctl(fsctl::READ_FILE_USN_DATA, &[], 1024))
            .unless(&[NtStatus::INVALID_DEVICE_REQUEST, NtStatus::JOURNAL_NOT_ACTIVE]),
    ]
}

fn other_rows() -> Vec<Row> {
    vec![
        // 2.1.5.6.3.
        row("query directory", FILE_LIST_DIRECTORY, |k| {
            k.c.status(&query_directory(k.id, file_class::NAMES, 1, "*", 4096))
        })
        .of(On::Directory),
        // 2.1.5.11.
        row("notify", FILE_LIST_DIRECTORY, |k| {
            let id = k.c.send(&notify(k.id, 0, 1, 4096));
            k.c.poll(id).map_or(NtStatus::SUCCESS, |r| r.status())
        })
        .of(On::Directory),
        row("FileDispositionInformation of a directory", DELETE, |k| k.set(file_class::DISPOSITION, &[1]))
            .of(On::Directory),
        row("read a stream", FILE_READ_DATA | FILE_EXECUTE, |k| k.c.status(&read(k.id, 0, 100))).of(On::Stream),
        row("write to a stream", WRITES, |k| k.c.status(&write(k.id, 0, b"x"))).of(On::Stream),
        row("FileEndOfFileInformation of a stream", FILE_WRITE_DATA, |k| {
            k.set(file_class::END_OF_FILE, &1u64.to_le_bytes())
        })
        .of(On::Stream),
        row("FileDispositionInformation of a stream", DELETE, |k| k.set(file_class::DISPOSITION, &[1])).of(On::Stream),
        row("DACL, set by a stream", WRITE_DAC, |k| k.set_descriptor(DACL_SECURITY_INFORMATION)).of(On::Stream),
        row("FSCTL_SET_ZERO_DATA in a stream", FILE_WRITE_DATA, |k| k.fsctl(fsctl::SET_ZERO_DATA, &pair(0, 10), 0))
            .of(On::Stream),
    ]
}

/// A reparse point is deleted by its tag, without data.
fn by_tag() -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u32(OPAQUE);
    data.put_u32(0);
    data
}

const BITS: [u32; 14] = [
    FILE_READ_DATA,
    FILE_WRITE_DATA,
    FILE_APPEND_DATA,
    FILE_READ_EA,
    FILE_WRITE_EA,
    FILE_EXECUTE,
    FILE_DELETE_CHILD,
    FILE_READ_ATTRIBUTES,
    FILE_WRITE_ATTRIBUTES,
    DELETE,
    READ_CONTROL,
    WRITE_DAC,
    WRITE_OWNER,
    SYNCHRONIZE,
];

/// Each right alone, and all of the share's but one.
fn accesses(ceiling: u32) -> Vec<u32> {
    let mut out: Vec<u32> = BITS.to_vec();
    out.push(ceiling);
    out.extend(BITS.iter().map(|b| ceiling & !b).filter(|a| *a != ceiling));
    out
}

/// What the case is about, all allowed to everyone by the descriptors; so that only the share and the handle decide.
fn prepare(admin: &mut Client, row: &Row, n: usize) -> String {
    let thing = format!("t\\thing{n}");
    if row.on == On::Directory {
        admin.make_directory(&thing);
        return thing;
    }
    let f = admin.open(want(&thing).context(tag::EA_BUFFER, eas(&[("EA", b"value")])));
    admin.write(f.id, 0, &[1; 8192]);
    admin.close(f.id);
    if row.on == On::File {
        return thing;
    }
    let stream = format!("{thing}:s");
    admin.put(&stream, &[2; 100]);
    stream
}

const VICTIM: [u8; 8192] = [0x56; 8192];

fn one_row(world: &World, share: &str, row: &Row, first: usize, wrong: &mut Vec<String>) -> usize {
    let ceiling = ceiling(share);
    let (mut admin, mut c) = (world.admin(), world.client(MALLORY, share));
    let mut n = first;
    for access in accesses(ceiling) {
        n += 1;
        let what = format!("{share}: {} with {access:#x}", row.name);
        if access & !ceiling != 0 {
            assert_eq!(c.fails(want("t\\always").existing().access(access)), DENIED, "{what}: the open");
            continue;
        }
        let name = prepare(&mut admin, row, n);
        if row.uses_another_file() {
            admin.put(&format!("t\\victim{n}"), &VICTIM);
        }
        let w = want(&name).existing().access(access);
        let f = c.open(if row.on == On::Directory { w.directory() } else { w });
        let mut case = Case { c: &mut c, id: f.id, n, user: world.sid(MALLORY), others: Vec::new() };
        let status = (row.run)(&mut case);
        let others = case.others;
        let done = status == NtStatus::SUCCESS || row.ok.contains(&status);
        let allowed = row.allows(access, ceiling);
        if !row.not_here.contains(&status) && (done != allowed || !done && status != DENIED) {
            wrong.push(format!("{what}: {status}"));
        }
        let stays = row.uses_another_file() && !(row.name.contains("over a file") && allowed);
        if stays && admin.content(&format!("t\\victim{n}")) != VICTIM {
            wrong.push(format!("{what} changed another file"));
        }
        for id in others.into_iter().chain([f.id]) {
            c.try_close(id);
        }
        let lefts =
            if row.uses_another_file() || row.share != 0 { &["thing", "victim", "new"][..] } else { &["thing"] };
        for left in lefts {
            let w = want(&format!("t\\{left}{n}")).existing().access(DELETE).options(OPT_OPEN_REPARSE_POINT);
            if let Ok(f) = admin.try_open(&w.delete_on_close()) {
                admin.close(f.id);
            }
        }
    }
    n
}

fn all_rows_on(kind: Kind) {
    let world = World::on(kind);
    let mut admin = world.admin();
    admin.make_with("t", vec![everyone(ALL_ACCESS, BOTH)]);
    admin.put("t\\always", b"there");
    let (mut n, mut wrong) = (0, Vec::new());
    for share in SHARES {
        for row in rows() {
            n = one_row(&world, share, &row, n, &mut wrong);
        }
    }
    assert!(n > 5000, "{n}");
    assert!(wrong.is_empty(), "{kind:?}, {} of {n}:\n{}", wrong.len(), wrong[..wrong.len().min(60)].join("\n"));
}

#[test]
fn operations_need_what_the_specification_says_on_a_directory() {
    all_rows_on(Kind::Directory);
}

#[test]
fn operations_need_what_the_specification_says_on_a_volume() {
    all_rows_on(Kind::Volume);
}

/// The right to the SACL comes with a privilege, not with the share's permissions; changing it is a change all the same.
#[test]
fn a_sacl_is_changed_only_where_the_share_lets_permissions_be_changed() {
    for kind in KINDS {
        let world = World::on(kind);
        world.admin().put("file", b"x");
        for share in SHARES {
            let mut c = world.client(ADMIN, share);
            let f = c.open(want("file").existing().access(ACCESS_SYSTEM_SECURITY));
            assert!(c.query_security(f.id, SACL_SECURITY_INFORMATION).is_ok(), "{kind:?} {share}");
            let mut sd = SecurityDescriptor { control: 0x10, ..SecurityDescriptor::default() };
            sd.sacl = Some(arden_wire::dtyp::Acl::new(vec![]));
            let status = c.set_security(f.id, SACL_SECURITY_INFORMATION, &sd.encode());
            assert_eq!(status, if share == FULL { NtStatus::SUCCESS } else { DENIED }, "{kind:?} {share}");
        }
    }
}

/// What concerns the whole volume is not changed through a share for reading, privileges or not.
#[test]
fn a_volume_is_administered_only_where_the_share_lets_it_be_changed() {
    let world = World::on(Kind::Volume);
    for share in SHARES {
        let mut c = world.client(ADMIN, share);
        let root = c.open(want("").existing().access(ceiling(share)).directory());
        let expected = |status: NtStatus| match share {
            FULL | CHANGE => assert_eq!(status, NtStatus::SUCCESS, "{share}"),
            _ => assert_eq!(status, DENIED, "{share}"),
        };
        let mut control = vec![0; 24];
        for v in [u64::MAX, u64::MAX, 1] {
            control.put_u64(v);
        }
        expected(c.status(&set_info(root.id, info_type::FILE_SYSTEM, fs_class::CONTROL, 0, &control)));
        let sid = well_known::LOCAL_SERVICE.encode();
        let mut entry = vec![0; 4];
        entry.put_u32(sid.len() as u32);
        entry.put_zeros(16);
        entry.put_u64(u64::MAX);
        entry.put_u64(u64::MAX);
        entry.extend_from_slice(&sid);
        expected(c.status(&set_info(root.id, info_type::QUOTA, 0, 0, &entry)));
        expected(c.status(&ioctl(root.id, fsctl::CREATE_USN_JOURNAL, &pair(1 << 20, 1 << 18), 0)));
    }
}
