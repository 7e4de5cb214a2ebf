//! Named streams, [MS-FSA] alternate data streams.

use crate::{client::*, fsctls::no_compression};

const INTEGRITY: u32 = fsctl::GET_INTEGRITY_INFORMATION;

/// A file or a directory with a stream "one" of 1000 bytes and "two" of 2000; checks something of the first.
fn both(check: impl Fn(&Lab, &mut Client, FileId, &str)) {
    for name in ["file", "dir"] {
        let lab = Lab::new();
        let mut c = lab.client();
        if name == "dir" {
            c.make_directory(name);
        } else {
            c.put(name, &[1; 500]);
        }
        c.put(&format!("{name}:one"), &[2; 1000]);
        c.put(&format!("{name}:two:$DATA"), &[3; 2000]);
        let f = c.open(want(&format!("{name}:one")).existing());
        check(&lab, &mut c, f.id, name);
    }
}

fn list(c: &mut Client, name: &str) -> Vec<(String, u64)> {
    let f = c.open(want(name).existing());
    let data = c.query(f.id, file_class::STREAM);
    c.close(f.id);
    let mut out = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let len = le_u32(&data, at + 4) as usize;
        let text = arden_wire::cursor::utf16_string(&data[at + 24..at + 24 + len]).unwrap();
        out.push((text, le_u64(&data, at + 8)));
        match le_u32(&data, at) {
            0 => break,
            next => at += next as usize,
        }
    }
    out.sort();
    out
}

fn streams_of(name: &str, named: &[(&str, u64)]) -> Vec<(String, u64)> {
    let mut all: Vec<_> = named.iter().map(|(n, s)| (format!(":{n}:$DATA"), *s)).collect();
    if name == "file" {
        all.push(("::$DATA".into(), 500));
    }
    all.sort();
    all
}

/// `BVT_AlternateDataStream_CreateStream_File`, `BVT_AlternateDataStream_CreateStream_Dir`,
/// `BVT_AlternateDataStream_ListStreams_File`, `BVT_AlternateDataStream_ListStreams_Dir`
#[test]
fn bvt_alternate_data_stream_create_and_list() {
    both(|_, c, _, name| assert_eq!(list(c, name), streams_of(name, &[("one", 1000), ("two", 2000)])));
}
/// `BVT_AlternateDataStream_DeleteStream_File`, `BVT_AlternateDataStream_DeleteStream_Dir`
#[test]
fn bvt_alternate_data_stream_delete_stream() {
    both(|_, c, id, name| {
        assert_eq!(c.delete(id), NtStatus::SUCCESS);
        c.close(id);
        assert_eq!(list(c, name), streams_of(name, &[("two", 2000)]));
        assert_eq!(c.fails(want(&format!("{name}:one")).existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}
/// `BVT_AlternateDataStream_RenameStream_File`, `BVT_AlternateDataStream_RenameStream_Dir`
#[test]
fn bvt_alternate_data_stream_rename_stream() {
    both(|_, c, id, name| {
        assert_eq!(c.rename(id, ":renamed:$DATA", false), NtStatus::SUCCESS);
        c.close(id);
        assert_eq!(list(c, name), streams_of(name, &[("renamed", 1000), ("two", 2000)]));
        let f = c.open(want(&format!("{name}:renamed")).existing());
        assert_eq!(c.read(f.id, 0, 2000), [2; 1000]);
    });
}
/// Samba's torture suite, `smb2.streams.rename2`; and the way back, [MS-FSA] 2.1.5.15.12.1.
#[test]
fn rename_to_and_from_the_unnamed_stream() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put("f:one", &[]);
    c.put("f:two", &[]);
    let f = c.open(want("f:one").existing());
    assert_eq!(c.rename(f.id, ":one:$DATA", true), NtStatus::SUCCESS);
    assert_eq!(c.rename(f.id, ":two:$DATA", true), NtStatus::SUCCESS);
    assert_eq!(c.rename(f.id, "f:one", true), NtStatus::SHARING_VIOLATION);
    c.write(f.id, 0, &[1; 700]);
    assert_eq!(c.rename(f.id, "::$DATA", false), NtStatus::OBJECT_NAME_COLLISION);
    assert_eq!(c.rename(f.id, "::$DATA", true), NtStatus::SUCCESS);
    assert_eq!(list(&mut c, "f"), [("::$DATA".to_string(), 700)]);
    assert_eq!(c.read(f.id, 690, 100), [1; 10], "the handle goes with the data");
    assert_eq!(c.rename(f.id, ":three", false), NtStatus::SUCCESS);
    assert_eq!(list(&mut c, "f"), [("::$DATA".to_string(), 0), (":three:$DATA".to_string(), 700)]);
    c.close(f.id);
    let f = c.open(want("f:three").existing());
    assert_eq!(c.read(f.id, 0, 1000), [1; 700]);
}

/// `BVT_AlternateDataStream_WriteAndRead_File`, `BVT_AlternateDataStream_WriteAndRead_Dir`
#[test]
fn bvt_alternate_data_stream_write_and_read() {
    both(|_, c, id, name| {
        c.write(id, 1000, b"and more");
        assert_eq!(c.read(id, 996, 100), [&[2; 4][..], b"and more"].concat());
        if name == "file" {
            let f = c.open(want(name));
            assert_eq!(c.read(f.id, 0, 1000), [1; 500], "the file itself is another stream");
        }
    });
}
/// `BVT_AlternateDataStream_LockAndUnlock_File`, `BVT_AlternateDataStream_LockAndUnlock_Dir`
#[test]
fn bvt_alternate_data_stream_lock_and_unlock() {
    both(|lab, c, id, name| {
        c.call(&lock(id, 0, &[(0, 100, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)])).ok();
        let mut other = lab.client();
        let f = other.open(want(&format!("{name}:one")));
        assert_eq!(other.try_write(f.id, 50, b"x").unwrap_err(), NtStatus::FILE_LOCK_CONFLICT);
        let g = other.open(want(&format!("{name}:two")));
        other.write(g.id, 50, b"x");
        c.call(&lock(id, 0, &[(0, 100, lock_flags::UNLOCK)])).ok();
        other.write(f.id, 50, b"x");
    });
}

/// `AlternateDataStream_Query_FileAccessInformation_File`, `AlternateDataStream_Query_FileAccessInformation_Dir`,
/// `AlternateDataStream_Query_FileBasicInformation_File`, `AlternateDataStream_Query_FileBasicInformation_Dir`,
/// `AlternateDataStream_Query_FileNetworkOpenInformation_File`,
/// `AlternateDataStream_Query_FileNetworkOpenInformation_Dir`,
/// `AlternateDataStream_Query_FileStandardInformation_File`,
/// `AlternateDataStream_Query_FileStandardInformation_Dir`,
/// `AlternateDataStream_Query_FileCompressionInformation_File`,
/// `AlternateDataStream_Query_FileCompressionInformation_Dir`
#[test]
fn alternate_data_stream_query() {
    both(|_, c, id, _| {
        assert_eq!(le_u32(&c.query(id, file_class::ACCESS), 0), ALL_ACCESS);
        assert!(le_u64(&c.query(id, file_class::BASIC), 0) > 0);
        assert_eq!(le_u64(&c.query(id, file_class::NETWORK_OPEN), 40), 1000);
        let standard = c.query(id, file_class::STANDARD);
        assert_eq!((le_u64(&standard, 8), standard[21]), (1000, 0), "its size; no directory");
        assert_eq!(le_u16(&c.query(id, file_class::COMPRESSION), 8), 0);
    });
}

/// `AlternateDataStream_Set_FileValidDataLengthInformation_File`,
/// `AlternateDataStream_Set_FileValidDataLengthInformation_Dir`
#[test]
fn alternate_data_stream_set_valid_data_length() {
    both(|_, c, id, _| {
        let status = c.set(id, file_class::VALID_DATA_LENGTH, &1000u64.to_le_bytes());
        assert_eq!(status, NtStatus::SUCCESS);
    });
}

/// `AlternateDataStream_FsCtl_Get_Compression_File`, `AlternateDataStream_FsCtl_Get_Compression_Dir`,
/// `AlternateDataStream_FsCtl_Set_Compression_File`, `AlternateDataStream_FsCtl_Set_Compression_Dir`,
/// `AlternateDataStream_FsCtl_Get_IntegrityInformation_File`,
/// `AlternateDataStream_FsCtl_Get_IntegrityInformation_Dir`,
/// `AlternateDataStream_FsCtl_Query_AllocatedRanges_File`, `AlternateDataStream_FsCtl_Query_AllocatedRanges_Dir`,
/// `AlternateDataStream_FsCtl_Set_ZeroData_File`, `AlternateDataStream_FsCtl_Set_ZeroData_Dir`
#[test]
fn alternate_data_stream_fsctls() {
    both(|_, c, id, _| {
        no_compression(c, id);
        assert_eq!(c.try_fsctl(id, INTEGRITY, &[], 16).unwrap_err(), NtStatus::INVALID_DEVICE_REQUEST);
        assert_eq!(c.fsctl(id, fsctl::QUERY_ALLOCATED_RANGES, &pair(0, 1000), 64), pair(0, 1000));
        c.fsctl(id, fsctl::SET_ZERO_DATA, &pair(0, 10), 0);
        assert_eq!(c.read(id, 0, 20), [[0; 10], [2; 10]].concat());
    });
}

/// `AlternateDataStream_FileShareAccess_DataFileExisted`
#[test]
fn alternate_data_stream_file_share_access_data_file_existed() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(want("file").access(DELETE | FILE_READ_DATA).share(3));
    assert_eq!(c.fails(want("file:stream").share(3)), NtStatus::SHARING_VIOLATION);
}
/// `AlternateDataStream_FileShareAccess_DirectoryExisted`
#[test]
fn alternate_data_stream_file_share_access_directory_existed() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(want("dir").directory().access(DELETE | FILE_READ_DATA).share(3));
    assert_eq!(c.fails(want("dir:stream").share(3)), NtStatus::SHARING_VIOLATION);
}
/// `AlternateDataStream_FileShareAccess_AlternateStreamExisted`
#[test]
fn alternate_data_stream_file_share_access_alternate_stream_existed() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(want("file:stream").share(3));
    assert_eq!(c.fails(want("file").access(DELETE | FILE_READ_DATA).share(3)), NtStatus::SHARING_VIOLATION);
}
