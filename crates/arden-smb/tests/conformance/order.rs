//! In which order an operation looks at what is wrong with it, and the status of each: one table, from [MS-FSA] 2.1.5.10, 2.1.5.12,
//! 2.1.5.13 and 2.1.5.15 and [MS-SMB2] 3.3.5.20 and 3.3.5.21, walked on both kinds of store. A row with several faults says which comes first:
//! the length of the buffer, then the class, then access, then values and state. One thing is the server's before it asks the store: the
//! access that a query takes, [MS-SMB2] 3.3.5.20.1, which comes before the length.

use arden_wire::access::*;

use crate::{client::*, snapshots::on_volumes};

const TOO_SHORT: NtStatus = NtStatus::INFO_LENGTH_MISMATCH;
const INVALID: NtStatus = NtStatus::INVALID_PARAMETER;
const DENIED: NtStatus = NtStatus::ACCESS_DENIED;
const NO_CLASS: NtStatus = NtStatus::INVALID_INFO_CLASS;
const UNSUPPORTED: NtStatus = NtStatus::NOT_SUPPORTED;
const NOT_HERE: NtStatus = NtStatus::INVALID_DEVICE_REQUEST;
const OK: NtStatus = NtStatus::SUCCESS;
const NO_SHORT_NAMES: NtStatus = NtStatus(0xC000_019F);
const SYNCHRONIZE_ONLY: u32 = SYNCHRONIZE | READ_CONTROL;

/// The handle that a row asks by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    /// A file, all access.
    File,
    /// A file, opened for backup.
    Backup,
    /// A file, no access to data and attributes.
    Weak,
    /// A file, not buffered.
    Unbuffered,
    /// A file that goes with this handle.
    Going,
    Dir,
    Stream,
    Root,
}

impl On {
    const ALL: [On; 8] = [On::File, On::Backup, On::Weak, On::Unbuffered, On::Going, On::Dir, On::Stream, On::Root];

    fn open(self, c: &mut Client) -> FileId {
        let w = match self {
            On::File => want("file"),
            On::Backup => want("backup").options(OPT_OPEN_FOR_BACKUP_INTENT),
            On::Weak => want("weak").access(SYNCHRONIZE_ONLY),
            On::Unbuffered => want("unbuffered").options(OPT_NO_INTERMEDIATE_BUFFERING),
            On::Going => want("going").options(OPT_DELETE_ON_CLOSE | OPT_OPEN_FOR_BACKUP_INTENT),
            On::Dir => want("dir").directory(),
            On::Stream => want("file:stream"),
            On::Root => want("").directory().existing(),
        };
        if self == On::Weak {
            c.put("weak", b"content");
        }
        c.open(w).id
    }
}

enum Ask {
    /// A class of files, and the room for the answer.
    Query(u8, u32),
    QueryFs(u8, u32),
    Set(u8, Vec<u8>),
    Fsctl(u32, Vec<u8>, u32),
}

/// A row: section, handle, request, status.
type Row = (&'static str, On, Ask, NtStatus);

/// Classes that a query answers, with the length below which none does; SUCCESS with twice as much.
const QUERIED: [(&str, u8, u32); 15] = [
    ("FSA 2.1.5.12.1", file_class::ACCESS, 4),
    ("FSA 2.1.5.12.2", file_class::ALIGNMENT, 4),
    ("FSA 2.1.5.12.3", file_class::ALL, 104),
    ("FSA 2.1.5.12.4", file_class::ALTERNATE_NAME, 8),
    ("FSA 2.1.5.12.5", file_class::ATTRIBUTE_TAG, 8),
    ("FSA 2.1.5.12.6", file_class::BASIC, 40),
    ("FSA 2.1.5.12.8", file_class::COMPRESSION, 16),
    ("FSA 2.1.5.12.10", file_class::EA, 4),
    ("FSA 2.1.5.12.17", file_class::INTERNAL, 8),
    ("FSA 2.1.5.12.18", file_class::MODE, 4),
    ("FSA 2.1.5.12.21", file_class::NETWORK_OPEN, 56),
    ("FSA 2.1.5.12.23", file_class::POSITION, 8),
    ("FSA 2.1.5.12.27", file_class::STANDARD, 24),
    ("FSA 2.1.5.12.30", file_class::NORMALIZED_NAME, 8),
    ("FSA 2.1.5.12.31", file_class::ID, 24),
];
/// The same of file systems.
const FS_QUERIED: [(&str, u8, u32); 7] = [
    ("FSA 2.1.5.13.1", fs_class::VOLUME, 24),
    ("FSA 2.1.5.13.3", fs_class::SIZE, 24),
    ("FSA 2.1.5.13.4", fs_class::DEVICE, 8),
    ("FSA 2.1.5.13.5", fs_class::ATTRIBUTE, 16),
    ("FSA 2.1.5.13.7", fs_class::FULL_SIZE, 32),
    ("FSA 2.1.5.13.8", fs_class::OBJECT_ID, 64),
    ("FSA 2.1.5.13.10", fs_class::SECTOR_SIZE, 28),
];

fn query_rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (section, class, len) in QUERIED {
        rows.push((section, On::File, Ask::Query(class, 0), TOO_SHORT));
        rows.push((section, On::File, Ask::Query(class, len - 1), TOO_SHORT));
        rows.push((section, On::File, Ask::Query(class, 2 * len + 16), OK));
        let takes_access =
            [file_class::ATTRIBUTE_TAG, file_class::BASIC, file_class::ALL, file_class::NETWORK_OPEN].contains(&class);
        if takes_access {
            for max in [0, 2 * len] {
                rows.push(("SMB2 3.3.5.20.1", On::Weak, Ask::Query(class, max), DENIED));
            }
        }
    }
    for (section, class, len) in FS_QUERIED {
        rows.push((section, On::Weak, Ask::QueryFs(class, len - 1), TOO_SHORT));
        rows.push((section, On::Weak, Ask::QueryFs(class, 2 * len + 64), OK));
    }
    rows.push(("SMB2 3.3.5.20.1", On::Weak, Ask::Query(file_class::FULL_EA, 4096), DENIED));
    rows.push(("FSA 2.1.5.12.12", On::File, Ask::Query(file_class::FULL_EA, 4096), NtStatus::NO_EAS_ON_FILE));
    rows.push(("FSA 2.1.5.12.29", On::File, Ask::Query(file_class::STREAM, 23), TOO_SHORT));
    // <415>: known, and not queried of a file. The class comes before the length.
    for class in [1, 2, 3, 10, 11, 12, 13, 19, 20, 27, 31, 36, 37, 38, 39, 40, 50] {
        rows.push(("SMB2 3.3.5.20.1 <415>", On::Weak, Ask::Query(class, 0), NO_CLASS));
    }
    let unsupported = [
        ("FSA 2.1.5.12.19", file_class::NAME),
        ("FSA 2.1.5.12.22", file_class::OBJECT_ID),
        ("FSA 2.1.5.12.24", file_class::QUOTA),
        ("FSA 2.1.5.12.25", file_class::REPARSE_POINT),
        ("FSA 2.1.5.12.26", file_class::SFIO_RESERVE),
        ("FSA 2.1.5.12.13", file_class::HARD_LINK),
        ("FSA 2.1.5.12.28", file_class::STANDARD_LINK),
        ("SMB2 3.3.5.20.1 <416>", 41),
        ("SMB2 3.3.5.20.1 <416>", 53),
    ];
    for (section, class) in unsupported {
        rows.push((section, On::Weak, Ask::Query(class, 0), UNSUPPORTED));
    }
    rows.push(("SMB2 3.3.5.20.1 <416>", On::File, Ask::Query(52, 4096), TOO_SHORT));
    for class in [0, 100, 255] {
        rows.push(("SMB2 3.3.5.20.1", On::File, Ask::Query(class, 4096), NO_CLASS));
        rows.push(("SMB2 3.3.5.20.2", On::File, Ask::QueryFs(class, 4096), NO_CLASS));
    }
    rows.push(("FSA 2.1.5.13.2", On::File, Ask::QueryFs(fs_class::LABEL, 4096), UNSUPPORTED));
    rows.push(("FSA 2.1.5.13.9", On::File, Ask::QueryFs(fs_class::DRIVER_PATH, 4096), UNSUPPORTED));
    rows
}

fn times(value: i64, attributes: u32) -> Vec<u8> {
    let mut data = Vec::new();
    for _ in 0..4 {
        data.put_u64(value as u64);
    }
    data.put_u32(attributes);
    data.put_u32(0);
    data
}

fn ea(name: &str, flags: u8) -> Vec<u8> {
    let mut data = vec![0, 0, 0, 0, flags, name.len() as u8, 1, 0];
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&[0, b'v']);
    data
}

fn short_name(name: &str) -> Vec<u8> {
    let mut data = ((name.encode_utf16().count() * 2) as u32).to_le_bytes().to_vec();
    data.put_utf16(name);
    data
}

const LARGEST: u64 = i64::MAX as u64;

/// Data, sizes and times.
fn set_rows() -> Vec<Row> {
    use file_class as c;
    let u64s = |v: u64| v.to_le_bytes().to_vec();
    let mut rows: Vec<Row> = Vec::new();
    for (section, class) in [("FSA 2.1.5.15.1", c::ALLOCATION), ("FSA 2.1.5.15.5", c::END_OF_FILE)] {
        for on in [On::File, On::Weak, On::Dir] {
            rows.push((section, on, Ask::Set(class, vec![0; 7]), TOO_SHORT));
        }
        rows.push((section, On::Weak, Ask::Set(class, u64s(LARGEST + 1)), INVALID));
        rows.push((section, On::Weak, Ask::Set(class, u64s(u64::MAX)), INVALID));
        rows.push((section, On::Weak, Ask::Set(class, u64s(1)), DENIED));
        rows.push((section, On::Dir, Ask::Set(class, u64s(1)), INVALID));
        rows.push((section, On::File, Ask::Set(class, u64s(1)), OK));
    }
    let basic = [
        ("FSA 2.1.5.15.2", On::Weak, vec![0; 35], TOO_SHORT),
        ("SMB2 3.3.5.21.1", On::Weak, times(-3, 0), DENIED),
        ("FSA 2.1.5.15.2", On::File, times(-3, 0), INVALID),
        ("FSA 2.1.5.15.2", On::File, times(i64::MIN, 0), INVALID),
        ("FSA 2.1.5.15.2", On::File, times(0, ATTR_DIRECTORY), INVALID),
        ("FSA 2.1.5.15.2", On::Dir, times(0, ATTR_TEMPORARY), INVALID),
        ("FSA 2.1.5.15.2", On::Dir, times(0, ATTR_DIRECTORY), OK),
        ("FSA 2.1.5.15.2", On::File, times(-1, 0), OK),
        ("FSA 2.1.5.15.2", On::File, times(-2, ATTR_NORMAL), OK),
    ];
    rows.extend(basic.map(|(section, on, data, status)| (section, on, Ask::Set(c::BASIC, data), status)));
    let mode = |v: u32| Ask::Set(c::MODE, v.to_le_bytes().to_vec());
    rows.extend([
        ("FSA 2.1.5.15.8", On::File, Ask::Set(c::MODE, vec![0; 3]), TOO_SHORT),
        ("FSA 2.1.5.15.8", On::File, mode(OPT_DIRECTORY_FILE), INVALID),
        ("FSA 2.1.5.15.8", On::File, mode(OPT_DELETE_ON_CLOSE | OPT_WRITE_THROUGH), INVALID),
        ("FSA 2.1.5.15.8", On::Weak, mode(OPT_WRITE_THROUGH), OK),
        ("FSA 2.1.5.15.10", On::File, Ask::Set(c::POSITION, vec![0; 7]), TOO_SHORT),
        ("FSA 2.1.5.15.10", On::File, Ask::Set(c::POSITION, u64s(LARGEST + 1)), INVALID),
        ("FSA 2.1.5.15.10", On::Unbuffered, Ask::Set(c::POSITION, u64s(511)), INVALID),
        ("FSA 2.1.5.15.10", On::Unbuffered, Ask::Set(c::POSITION, u64s(4096)), OK),
        ("FSA 2.1.5.15.10", On::Weak, Ask::Set(c::POSITION, u64s(511)), OK),
        ("FSA 2.1.5.15.6", On::Weak, Ask::Set(c::FULL_EA, ea("NAME", 0)), DENIED),
        (
            "SMB2 3.3.5.21.1",
            On::File,
            Ask::Set(c::FULL_EA, ea("NAME", 0)[..9].to_vec()),
            NtStatus::EA_LIST_INCONSISTENT,
        ),
        ("FSA 2.1.5.15.6", On::File, Ask::Set(c::FULL_EA, ea("A*B", 0)), NtStatus::INVALID_EA_NAME),
        ("FSA 2.1.5.15.6", On::File, Ask::Set(c::FULL_EA, ea("", 0)), NtStatus::INVALID_EA_NAME),
        ("FSA 2.1.5.15.6", On::File, Ask::Set(c::FULL_EA, ea("NAME", 1)), NtStatus::INVALID_EA_NAME),
        ("FSA 2.1.5.15.15", On::Weak, Ask::Set(c::VALID_DATA_LENGTH, vec![0; 7]), TOO_SHORT),
        ("FSA 2.1.5.15.9", On::File, Ask::Set(c::OBJECT_ID, vec![0; 64]), UNSUPPORTED),
        ("FSA 2.1.5.15.11", On::File, Ask::Set(c::QUOTA, vec![]), UNSUPPORTED),
        ("FSA 2.1.5.15.13", On::File, Ask::Set(c::SFIO_RESERVE, vec![]), UNSUPPORTED),
    ]);
    for class in [30, 41, 42, 43] {
        rows.push(("SMB2 3.3.5.21.1 <428>", On::Weak, Ask::Set(class, vec![]), UNSUPPORTED));
    }
    for class in [0, c::STANDARD, c::ALL, c::INTERNAL, c::NAME, c::ID_BOTH_DIRECTORY, 100, 255] {
        rows.push(("SMB2 3.3.5.21.1", On::Weak, Ask::Set(class, vec![]), NO_CLASS));
    }
    rows
}

/// Names, and the end of files.
fn name_rows() -> Vec<Row> {
    use file_class as c;
    let ex = |flags: u32| Ask::Set(c::DISPOSITION_EX, flags.to_le_bytes().to_vec());
    let link = |name: &str| Ask::Set(c::LINK, name_change(name, false));
    let rename = |name: &str| Ask::Set(c::RENAME, name_change(name, false));
    let mut rows: Vec<Row> = vec![
        ("FSA 2.1.5.15.3", On::Weak, Ask::Set(c::DISPOSITION, vec![]), TOO_SHORT),
        ("FSA 2.1.5.15.3", On::Weak, Ask::Set(c::DISPOSITION, vec![1]), DENIED),
        ("FSA 2.1.5.15.4", On::Weak, Ask::Set(c::DISPOSITION_EX, vec![0xFF; 3]), TOO_SHORT),
        ("FSA 2.1.5.15.4", On::Weak, ex(0x21), UNSUPPORTED),
        ("FSA 2.1.5.15.4", On::Weak, ex(1), DENIED),
        ("FSA 2.1.5.15.4", On::File, ex(9), UNSUPPORTED),
        ("FSA 2.1.5.15.7", On::Stream, Ask::Set(c::LINK, vec![0; 19]), TOO_SHORT),
        ("FSA 2.1.5.15.7", On::Stream, link("a*b"), INVALID),
        ("FSA 2.1.5.15.7", On::Dir, link("link"), NtStatus::FILE_IS_A_DIRECTORY),
        ("FSA 2.1.5.15.7", On::File, link("a*b"), NtStatus::OBJECT_NAME_INVALID),
        ("FSA 2.1.5.15.7", On::File, link("weak"), NtStatus::OBJECT_NAME_COLLISION),
        ("FSA 2.1.5.15.12", On::Weak, Ask::Set(c::RENAME, vec![0; 19]), TOO_SHORT),
        ("FSA 2.1.5.15.12", On::Weak, rename(""), DENIED),
        ("FSA 2.1.5.15.12", On::Weak, rename("a*b"), DENIED),
        ("FSA 2.1.5.15.12", On::File, rename(""), INVALID),
        ("FSA 2.1.5.15.12", On::File, rename("a*b"), NtStatus::OBJECT_NAME_INVALID),
        ("FSA 2.1.5.15.12", On::File, rename("weak"), NtStatus::OBJECT_NAME_COLLISION),
        ("FSA 2.1.5.15.12.1", On::Dir, rename(":stream"), INVALID),
    ];
    let short = |name: &str| Ask::Set(c::SHORT_NAME, short_name(name));
    rows.extend([
        ("FSA 2.1.5.15.14", On::Weak, Ask::Set(c::SHORT_NAME, vec![2, 0, 0, 0]), TOO_SHORT),
        ("FSA 2.1.5.15.14", On::Weak, short("\\A"), INVALID),
        ("FSA 2.1.5.15.14", On::Weak, short("no short name"), INVALID),
        ("FSA 2.1.5.15.14", On::Stream, short("SHORT"), INVALID),
        ("FSA 2.1.5.15.14", On::Root, short("SHORT"), INVALID),
        ("FSA 2.1.5.15.14", On::Weak, short("SHORT"), DENIED),
        ("FSA 2.1.5.15.14", On::Going, short("SHORT"), DENIED),
        ("FSA 2.1.5.15.14", On::File, short("SHORT"), NtStatus::PRIVILEGE_NOT_HELD),
        ("FSA 2.1.5.15.14", On::Backup, short("SHORT"), NO_SHORT_NAMES),
    ]);
    rows
}

fn fsctl_rows() -> Vec<Row> {
    let set_compression = |v: &[u8]| Ask::Fsctl(fsctl::SET_COMPRESSION, v.to_vec(), 0);
    let zero = |from: u64, to: u64| Ask::Fsctl(fsctl::SET_ZERO_DATA, pair(from, to), 0);
    let ranges = |from: u64, len: u64| Ask::Fsctl(fsctl::QUERY_ALLOCATED_RANGES, pair(from, len), 64);
    vec![
        ("FSA 2.1.5.10.9", On::File, Ask::Fsctl(fsctl::GET_COMPRESSION, vec![], 1), NOT_HERE),
        ("FSA 2.1.5.10.9", On::Weak, Ask::Fsctl(fsctl::GET_COMPRESSION, vec![], 2), NOT_HERE),
        ("FSCC 2.3", On::Weak, set_compression(&[3, 0]), DENIED),
        ("FSA 2.1.5.10.30", On::File, set_compression(&[0]), NOT_HERE),
        ("FSA 2.1.5.10.30", On::File, set_compression(&[2, 0]), NOT_HERE),
        ("FSA 2.1.5.10.30", On::File, set_compression(&[0, 0]), NOT_HERE),
        ("FSA 2.1.5.10.2", On::File, Ask::Fsctl(fsctl::CREATE_OR_GET_OBJECT_ID, vec![], 63), INVALID),
        ("FSA 2.1.5.10.13", On::File, Ask::Fsctl(fsctl::GET_OBJECT_ID, vec![], 63), INVALID),
        ("FSA 2.1.5.10.38", On::Dir, Ask::Fsctl(fsctl::SET_SPARSE, vec![], 0), INVALID),
        ("FSCC 2.3", On::Weak, zero(2, 1), DENIED),
        ("FSA 2.1.5.10.39", On::File, Ask::Fsctl(fsctl::SET_ZERO_DATA, vec![0; 15], 0), INVALID),
        ("FSA 2.1.5.10.39", On::File, zero(2, 1), INVALID),
        ("FSA 2.1.5.10.39", On::File, zero(LARGEST + 1, u64::MAX), INVALID),
        ("FSA 2.1.5.10.39", On::Dir, zero(0, 1), INVALID),
        ("FSCC 2.3", On::Weak, ranges(u64::MAX, 1), DENIED),
        ("FSA 2.1.5.10.22", On::File, Ask::Fsctl(fsctl::QUERY_ALLOCATED_RANGES, vec![0; 15], 64), INVALID),
        ("FSA 2.1.5.10.22", On::File, ranges(LARGEST + 1, 1), INVALID),
        ("FSA 2.1.5.10.22", On::File, ranges(LARGEST, 2), INVALID),
        ("FSA 2.1.5.10.22", On::Dir, ranges(0, 1), INVALID),
        (
            "FSA 2.1.5.10.14",
            On::File,
            Ask::Fsctl(fsctl::GET_REPARSE_POINT, vec![], 4096),
            NtStatus::NOT_A_REPARSE_POINT,
        ),
        (
            "FSA 2.1.5.10.24",
            On::Weak,
            Ask::Fsctl(fsctl::QUERY_FILE_REGIONS, vec![0; 23], 4096),
            NtStatus::BUFFER_TOO_SMALL,
        ),
        ("FSA 2.1.5.10.24", On::Dir, Ask::Fsctl(fsctl::QUERY_FILE_REGIONS, vec![], 4096), INVALID),
    ]
}

#[test]
fn each_fault_has_its_status_and_its_place() {
    let (_lab, _volumes, mut on_volume) = on_volumes();
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for (kind, c) in [("directory", &mut lab.client()), ("volume", &mut on_volume)] {
        let handles = On::ALL.map(|on| (on, on.open(c)));
        for (section, on, ask, expected) in
            query_rows().into_iter().chain(set_rows()).chain(name_rows()).chain(fsctl_rows())
        {
            let id = handles.iter().find(|h| h.0 == on).unwrap().1;
            let (what, status) = match &ask {
                Ask::Query(class, max) => {
                    let request = query_info(id, info_type::FILE, *class, 0, &[], *max);
                    (format!("query {class} into {max}"), c.status(&request))
                }
                Ask::QueryFs(class, max) => {
                    let request = query_info(id, info_type::FILE_SYSTEM, *class, 0, &[], *max);
                    (format!("query fs {class} into {max}"), c.status(&request))
                }
                Ask::Set(class, data) => (format!("set {class} to {data:?}"), c.set(id, *class, data)),
                Ask::Fsctl(code, data, max) => {
                    (format!("fsctl {code:#x} of {data:?} into {max}"), c.status(&ioctl(id, *code, data, *max)))
                }
            };
            let whole = status == expected || expected == OK && status == NtStatus::BUFFER_OVERFLOW;
            if !whole {
                wrong.push(format!("{kind}: {section}, {on:?}: {what}: {status:?}, not {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
