//! QUERY_INFO and SET_INFO for files, [MS-FSA] 2.1.5.12 and 2.1.5.15.

use arden_wire::smb2::info::ea_scan;

use crate::{client::*, snapshots::on_volumes};

fn both(check: impl Fn(&mut Client, FileId, bool)) {
    for directory in [false, true] {
        let lab = Lab::new();
        let mut c = lab.client();
        let attributes = ATTR_NORMAL | ATTR_INTEGRITY_STREAM;
        let w = want("thing").attributes(attributes);
        let f = if directory { c.open(w.directory()) } else { c.open(w) };
        check(&mut c, f.id, directory);
    }
}

/// `BVT_SMB2Basic_QueryAndSet_FileInfo`
#[test]
fn bvt_smb2basic_query_and_set_file_info() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").access(GENERIC_READ | GENERIC_WRITE));
    let before = c.query(f.id, file_class::BASIC);
    let write_time = le_u64(&before, 16) - 10_000_000;
    assert_eq!(c.set(f.id, file_class::BASIC, &basic(0, 0, write_time, 0, 0)), NtStatus::SUCCESS);
    assert_eq!(le_u64(&c.query(f.id, file_class::BASIC), 16), write_time);
}

/// `BVT_SMB2Basic_Query_FileAllInformation`
#[test]
fn bvt_smb2basic_query_file_all_information() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.make_directory("dir");
    let f = c.open(want("dir\\file"));
    c.write(f.id, 0, b"12345");
    let all = c.query(f.id, file_class::ALL);
    assert_eq!(le_u64(&all, 48), 5, "EndOfFile");
    assert_eq!(le_u32(&all, 76), ALL_ACCESS, "AccessFlags");
    // [MS-SMB2] 3.3.5.20.1: the name is empty; the structure is as long as clients take it to be.
    assert_eq!((le_u32(&all, 96), all.len()), (0, 104));
    let reply = c.call(&query_info(f.id, info_type::FILE, file_class::ALL, 0, &[], 103));
    assert_eq!(reply.status(), NtStatus::INFO_LENGTH_MISMATCH);
}

/// `BVT_SMB2Basic_Query_FileNormalizedNameInformation_DataFile`,
/// `BVT_SMB2Basic_Query_FileNormalizedNameInformation_DirectoryFile`, `FileInfo_Query_FileNormalizedNameInfo_File`,
/// `FileInfo_Query_FileNormalizedNameInfo_Dir`
#[test]
fn bvt_smb2basic_query_file_normalized_name_information() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.make_directory("Parent");
    for directory in [false, true] {
        let name = if directory { "Dir" } else { "File" };
        let w = want(&format!("parent\\{name}"));
        let f = if directory { c.open(w.directory()) } else { c.open(w) };
        let data = c.query(f.id, file_class::NORMALIZED_NAME);
        let len = le_u32(&data, 0) as usize;
        let path = arden_wire::cursor::utf16_string(&data[4..4 + len]).unwrap();
        assert_eq!(path, format!("Parent\\{name}"));
    }
}

/// `FileInfo_Query_FileAccessInformation_DataSuffix`
#[test]
fn file_info_query_file_access_information_data_suffix() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file::$DATA").access(FILE_GENERIC_READ));
    assert_eq!(le_u32(&c.query(f.id, file_class::ACCESS), 0), FILE_GENERIC_READ);
}

/// `FileInfo_Query_FileAlignmentInformation`
#[test]
fn file_info_query_file_alignment_information() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    assert_eq!(c.query(f.id, file_class::ALIGNMENT), [0; 4]);
}

/// `FileInfo_Query_FileAttributeTagInfo_File_IsIntegritySupported`,
/// `FileInfo_Query_FileAttributeTagInfo_Dir_IsIntegritySupported`,
/// `FileInfo_Query_FileBasicInfo_File_IsIntegritySupported`, `FileInfo_Query_FileBasicInfo_Dir_IsIntegritySupported`,
/// `FileInfo_Query_FileNetworkOpenInfo_File_IsIntegritySupported`,
/// `FileInfo_Query_FileNetworkOpenInfo_Dir_IsIntegritySupported`
#[test]
fn file_info_query_without_integrity() {
    both(|c, id, directory| {
        for (class, at) in [(file_class::ATTRIBUTE_TAG, 0), (file_class::BASIC, 32), (file_class::NETWORK_OPEN, 48)] {
            let attributes = le_u32(&c.query(id, class), at);
            assert_eq!(attributes & ATTR_INTEGRITY_STREAM, 0, "class {class}");
            assert_eq!(attributes & ATTR_DIRECTORY != 0, directory, "class {class}");
        }
    });
}

/// `FileInfo_Query_FileCompressionInfo_File_IsCompressionSupported`,
/// `FileInfo_Query_FileCompressionInfo_Dir_IsCompressionSupported`
#[test]
fn file_info_query_file_compression_info() {
    both(|c, id, _| {
        assert_eq!(c.try_fsctl(id, fsctl::SET_COMPRESSION, &[2, 0], 0).unwrap_err(), NtStatus::INVALID_DEVICE_REQUEST);
        let data = c.query(id, file_class::COMPRESSION);
        assert_eq!((data.len(), le_u16(&data, 8)), (16, 0));
    });
}

/// [MS-FSA] 2.1.5.15.2: the root of a volume is neither hidden nor the system's, whatever is set.
#[test]
fn the_root_cannot_be_hidden() {
    let lab = Lab::new();
    let (_volume_lab, _volumes, on_volume) = on_volumes();
    for mut c in [lab.client(), on_volume] {
        for (path, hidden) in [("", false), ("directory", true)] {
            let d = c.open(want(path).directory()).id;
            let attributes = ATTR_HIDDEN | ATTR_SYSTEM | ATTR_NOT_CONTENT_INDEXED;
            assert_eq!(c.set(d, file_class::BASIC, &basic(0, 0, 0, 0, attributes)), NtStatus::SUCCESS);
            let told = le_u32(&c.query(d, file_class::BASIC), 32);
            let kept = if hidden { attributes } else { ATTR_NOT_CONTENT_INDEXED };
            assert_eq!(told, kept | ATTR_DIRECTORY, "{path:?}");
            assert_eq!(c.set(d, file_class::BASIC, &basic(0, 0, 0, 0, ATTR_NORMAL)), NtStatus::SUCCESS);
            assert_eq!(le_u32(&c.query(d, file_class::BASIC), 32), ATTR_DIRECTORY, "{path:?}");
        }
    }
}

/// [MS-FSA] 2.1.5.12.8: whole clusters that are allocated, and nothing of a directory.
#[test]
fn compressed_size_is_what_is_allocated() {
    let lab = Lab::new();
    let (_volume_lab, _volumes, on_volume) = on_volumes();
    for mut c in [lab.client(), on_volume] {
        let f = c.open(want("file")).id;
        let sizes = |c: &mut Client, id| {
            let data = c.query(id, file_class::COMPRESSION);
            (le_u64(&data, 0), le_u64(&c.query(id, file_class::STANDARD), 0))
        };
        assert_eq!(sizes(&mut c, f), (0, 0));
        c.write(f, 0, b"12345");
        let (compressed, allocated) = sizes(&mut c, f);
        assert!(compressed >= 512 && compressed % 512 == 0, "{compressed}");
        assert_eq!(compressed, allocated);
        // A hole takes nothing.
        c.fsctl(f, fsctl::SET_SPARSE, &[1], 0);
        assert_eq!(c.set(f, file_class::END_OF_FILE, &(1u64 << 30).to_le_bytes()), NtStatus::SUCCESS);
        assert!(sizes(&mut c, f).0 < 1 << 20);
        let d = c.open(want("directory").directory()).id;
        assert_eq!(le_u64(&c.query(d, file_class::COMPRESSION), 0), 0);
    }
}

/// `FileInfo_Query_FileEaInformation_File_IsEASupported`, `FileInfo_Query_FileEaInformation_Dir_IsEASupported`,
/// `FileInfo_Query_FileFullEaInformation_File_IsEASupported`,
/// `FileInfo_Query_FileFullEaInformation_Dir_IsEASupported`, `FileInfo_Set_FileFullEaInformation_File_IsEASupported`,
/// `FileInfo_Set_FileFullEaInformation_Dir_IsEASupported`
#[test]
fn file_info_eas() {
    both(|c, id, _| {
        assert_eq!(le_u32(&c.query(id, file_class::EA), 0), 0);
        assert_eq!(c.try_query(id, file_class::FULL_EA).unwrap_err(), NtStatus::NO_EAS_ON_FILE);
        assert_eq!(c.set(id, file_class::FULL_EA, &eas(&[("TESTEA", b"value"), ("OTHER", b"x")])), NtStatus::SUCCESS);
        assert!(le_u32(&c.query(id, file_class::EA), 0) > 0);
        let data = c.query(id, file_class::FULL_EA);
        let all = arden_wire::fscc::parse_eas(&data).unwrap();
        let mut names: Vec<_> = all.iter().map(|e| (e.name.to_uppercase(), e.value.clone())).collect();
        names.sort();
        assert_eq!(names, [("OTHER".to_string(), b"x".to_vec()), ("TESTEA".to_string(), b"value".to_vec())]);
        // An empty value takes it away.
        assert_eq!(c.set(id, file_class::FULL_EA, &eas(&[("OTHER", b"")])), NtStatus::SUCCESS);
        let again = c.call(&query_eas(id, ea_scan::RESTART_SCAN, 0, &[], 4096)).ok();
        assert_eq!(arden_wire::fscc::parse_eas(again.buffer()).unwrap().len(), 1);
    });
}

/// `FileInfo_Set_FileEaInformation_File_IsEASupported`, `FileInfo_Set_FileEaInformation_Dir_IsEASupported`,
/// `AlternateDataStream_Set_FileEaInformation_File`, `AlternateDataStream_Set_FileEaInformation_Dir`
#[test]
fn file_info_set_file_ea_information() {
    both(|c, id, _| assert_eq!(c.set(id, file_class::EA, &[0; 4]), NtStatus::INVALID_INFO_CLASS));
    let lab = Lab::new();
    let mut c = lab.client();
    c.make_directory("dir");
    for name in ["file:stream", "dir:stream"] {
        let f = c.open(want(name));
        assert_eq!(c.set(f.id, file_class::EA, &[0; 4]), NtStatus::INVALID_INFO_CLASS);
    }
}

/// `FileInfo_Query_FileIdInformation_File`, `FileInfo_Query_FileIdInformation_Dir`,
/// `FileInfo_Query_FileInternalInformation`
#[test]
fn file_info_query_ids() {
    both(|c, id, directory| {
        let data = c.query(id, file_class::ID);
        let internal = le_u64(&c.query(id, file_class::INTERNAL), 0);
        assert_ne!(internal, 0);
        assert_eq!(le_u64(&data, 8), internal, "the 128-bit id begins with the 64-bit one");
        let w = want("thing").existing().context(tag::QUERY_ON_DISK_ID, vec![]);
        let f = c.open(if directory { w.directory() } else { w });
        assert_eq!(le_u64(f.context(tag::QUERY_ON_DISK_ID).unwrap(), 0), internal);
        let other = c.open(want("another"));
        assert_ne!(le_u64(&c.query(other.id, file_class::INTERNAL), 0), internal);
    });
}

/// `FileInfo_Query_FileModeInformation`
#[test]
fn file_info_query_file_mode_information() {
    let lab = Lab::new();
    let mut c = lab.client();
    let options = OPT_WRITE_THROUGH | OPT_SEQUENTIAL_ONLY;
    let f = c.open(want("file").options(options));
    assert_eq!(le_u32(&c.query(f.id, file_class::MODE), 0), options);
}

/// `FileInfo_Query_FilePositionInformation`
#[test]
fn file_info_query_file_position_information() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    assert_eq!(c.set(f.id, file_class::POSITION, &[0; 7]), NtStatus::INFO_LENGTH_MISMATCH);
    assert_eq!(c.set(f.id, file_class::POSITION, &1234u64.to_le_bytes()), NtStatus::SUCCESS);
    assert_eq!(c.set(f.id, file_class::POSITION, &u64::MAX.to_le_bytes()), NtStatus::INVALID_PARAMETER);
    assert_eq!(le_u64(&c.query(f.id, file_class::POSITION), 0), 1234);
}

/// `FileInfo_Set_FileLinkInfo_File_IsFileLinkInfoSupported`, `FileInfo_Set_FileLinkInfo_Dir_IsFileLinkInfoSupported`
#[test]
fn file_info_set_file_link_info() {
    both(|c, id, directory| {
        let expected = if directory { NtStatus::FILE_IS_A_DIRECTORY } else { NtStatus::SUCCESS };
        assert_eq!(c.set(id, file_class::LINK, &name_change("link", false)), expected);
        if !directory {
            assert_eq!(le_u32(&c.query(id, file_class::STANDARD), 16), 2, "NumberOfLinks");
            let status = c.set(id, file_class::LINK, &name_change("link", false));
            assert_eq!(status, NtStatus::OBJECT_NAME_COLLISION);
        }
    });
}

/// `FileInfo_Set_FileShortNameInfo_File_IsShortNameSupported`,
/// `FileInfo_Set_FileShortNameInfo_Dir_IsShortNameSupported`,
/// `AlternateDataStream_Set_FileShortNameInformation_File`, `AlternateDataStream_Set_FileShortNameInformation_Dir`
#[test]
fn file_info_short_names_are_not_set() {
    let mut short = vec![10, 0, 0, 0];
    short.put_utf16("SHORT");
    // None is kept; `order` has the rest.
    both(|c, id, _| {
        assert_eq!(c.set(id, file_class::SHORT_NAME, &short), NtStatus::PRIVILEGE_NOT_HELD);
    });
    let lab = Lab::new();
    let mut c = lab.client();
    c.make_directory("dir");
    for name in ["file:stream", "dir:stream"] {
        let f = c.open(want(name));
        assert_eq!(c.set(f.id, file_class::SHORT_NAME, &short), NtStatus::INVALID_PARAMETER);
    }
}

/// `FileInfo_Set_FileValidDataLengthInfo_File_IsSupported`, `FileInfo_Set_FileValidDataLengthInfo_Dir_IsSupported`
#[test]
fn file_info_set_file_valid_data_length_info() {
    // An administrator has SeManageVolumePrivilege. Cases of our own are in `valid_data`.
    both(|c, id, directory| {
        let length = 1024u64.to_le_bytes();
        assert_eq!(c.set(id, file_class::VALID_DATA_LENGTH, &length), NtStatus::INVALID_PARAMETER);
        if !directory {
            assert_eq!(c.set(id, file_class::END_OF_FILE, &length), NtStatus::SUCCESS);
            assert_eq!(c.set(id, file_class::VALID_DATA_LENGTH, &length), NtStatus::SUCCESS);
        }
    });
}

/// `FileInfo_Query_FileAlternateNameInformation`
#[test]
fn file_info_query_file_alternate_name_information() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("A rather long name.text"));
    let data = c.query(f.id, file_class::ALTERNATE_NAME);
    let len = le_u32(&data, 0) as usize;
    let short = arden_wire::cursor::utf16_string(&data[4..4 + len]).unwrap();
    let (base, extension) = short.split_once('.').unwrap();
    assert!(base.len() <= 8 && extension.len() <= 3 && base.contains('~'), "{short}");
    c.open(want(&short).existing());
}

#[test]
fn end_of_file_and_allocation() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    c.write(f.id, 0, &[1; 10_000]);
    assert_eq!(c.set(f.id, file_class::END_OF_FILE, &100u64.to_le_bytes()), NtStatus::SUCCESS);
    assert_eq!(le_u64(&c.query(f.id, file_class::STANDARD), 8), 100);
    assert_eq!(c.set(f.id, file_class::ALLOCATION, &1_000_000u64.to_le_bytes()), NtStatus::SUCCESS);
    let standard = c.query(f.id, file_class::STANDARD);
    assert!(le_u64(&standard, 0) >= 1_000_000);
    assert_eq!(le_u64(&standard, 8), 100, "allocation does not make the file longer");
    // [MS-FSA] 2.1.5.15.1: the size is aligned to clusters before the file is cut.
    for (end, allocation, left) in
        [(100, 50, 100), (1000, 1, 1000), (10_000, 5000, 8192), (10_000, 4096, 4096), (9, 0, 0)]
    {
        c.write(f.id, 0, &vec![7; end as usize]);
        assert_eq!(c.set(f.id, file_class::END_OF_FILE, &u64::to_le_bytes(end)), NtStatus::SUCCESS);
        assert_eq!(c.set(f.id, file_class::ALLOCATION, &u64::to_le_bytes(allocation)), NtStatus::SUCCESS);
        assert_eq!(le_u64(&c.query(f.id, file_class::STANDARD), 8), left, "{end} bytes, {allocation} allocated");
        assert_eq!(c.try_read(f.id, 0, 20_000).unwrap_or_default(), vec![7; left as usize]);
    }
    assert_eq!(c.set(f.id, file_class::END_OF_FILE, &u64::MAX.to_le_bytes()), NtStatus::INVALID_PARAMETER);
    assert_eq!(c.set(f.id, file_class::END_OF_FILE, &[0; 7]), NtStatus::INFO_LENGTH_MISMATCH);
    let g = c.open(want("file").access(FILE_GENERIC_READ));
    assert_eq!(c.set(g.id, file_class::END_OF_FILE, &[0; 8]), NtStatus::ACCESS_DENIED);
    let d = c.open(want("dir").directory());
    assert_eq!(c.set(d.id, file_class::END_OF_FILE, &[0; 8]), NtStatus::INVALID_PARAMETER);
}

#[test]
fn rename_and_disposition() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put("other", b"other");
    let f = c.open(want("file"));
    assert_eq!(c.rename(f.id, "other", false), NtStatus::OBJECT_NAME_COLLISION);
    assert_eq!(c.rename(f.id, "no\\such", false), NtStatus::OBJECT_PATH_NOT_FOUND);
    assert_eq!(c.rename(f.id, "a*b", false), NtStatus::OBJECT_NAME_INVALID);
    assert_eq!(c.rename(f.id, "other", true), NtStatus::SUCCESS);
    assert_eq!(c.delete(f.id), NtStatus::SUCCESS);
    assert_eq!(c.query(f.id, file_class::STANDARD)[20], 1, "DeletePending");
    assert_eq!(c.fails(want("other").existing()), NtStatus::DELETE_PENDING);
    assert_eq!(c.set(f.id, file_class::DISPOSITION, &[0]), NtStatus::SUCCESS);
    let g = c.open(want("other").existing().access(FILE_GENERIC_READ));
    assert_eq!(c.delete(g.id), NtStatus::ACCESS_DENIED);
    assert_eq!(c.rename(g.id, "third", false), NtStatus::ACCESS_DENIED);
    c.close(g.id);
    assert_eq!(c.delete(f.id), NtStatus::SUCCESS);
    c.close(f.id);
    assert!(!lab.host("other").exists());
    c.make_directory("dir");
    c.put("dir\\child", b"");
    let d = c.open(want("dir").existing().directory());
    assert_eq!(c.delete(d.id), NtStatus::DIRECTORY_NOT_EMPTY);
}

#[test]
fn buffers_that_are_too_small_and_classes_that_do_not_exist() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    let q = |class, max| query_info(f.id, info_type::FILE, class, 0, &[], max);
    for (class, size) in [(file_class::BASIC, 40), (file_class::STANDARD, 24), (file_class::ALL, 100)] {
        assert_eq!(c.status(&q(class, size - 1)), NtStatus::INFO_LENGTH_MISMATCH);
    }
    for class in [0, 99, 255] {
        assert_eq!(c.status(&q(class, 4096)), NtStatus::INVALID_INFO_CLASS);
        assert_eq!(c.set(f.id, class, &[0; 8]), NtStatus::INVALID_INFO_CLASS);
    }
    assert_eq!(c.status(&query_info(f.id, 9, 4, 0, &[], 4096)), NtStatus::INVALID_PARAMETER);
    let sd = query_info(f.id, info_type::SECURITY, 0, 7, &[], 8);
    let reply = c.call(&sd);
    assert_eq!(reply.status(), NtStatus::BUFFER_TOO_SMALL);
    // [MS-SMB2] 3.3.5.20.3: ErrorContextCount 1, ByteCount 12, ErrorDataLength 4, ErrorId 0.
    let lengths = [4, 8, 12].map(|at| le_u32(reply.body(), at));
    assert_eq!((reply.body()[2], lengths), (1, [12, 4, 0]));
    let need = le_u32(reply.body(), 16);
    assert_eq!(c.status(&query_info(f.id, info_type::SECURITY, 0, 7, &[], need - 1)), NtStatus::BUFFER_TOO_SMALL);
    assert_eq!(c.status(&query_info(f.id, info_type::SECURITY, 0, 7, &[], need)), NtStatus::SUCCESS);
}
