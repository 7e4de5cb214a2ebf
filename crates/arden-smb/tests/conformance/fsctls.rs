//! IOCTL: file system controls, server-side copy, network interfaces.

use crate::{client::*, snapshots::on_volumes};

const INVALID: NtStatus = NtStatus::INVALID_PARAMETER;
const NOT_IMPLEMENTED_HERE: NtStatus = NtStatus::INVALID_DEVICE_REQUEST;

fn both(check: impl Fn(&mut Client, FileId, bool)) {
    for directory in [false, true] {
        let lab = Lab::new();
        let mut c = lab.client();
        let f = if directory { c.open(want("thing").directory()) } else { c.open(want("thing")) };
        check(&mut c, f.id, directory);
    }
}

/// `BVT_FsCtl_CreateOrGetObjectId_File_IsSupported`, `BVT_FsCtl_CreateOrGetObjectId_Dir_IsSupported`,
/// `BVT_FsCtl_GetObjectId_File_IsSupported`, `BVT_FsCtl_GetObjectId_Dir_IsSupported`,
/// `FsCtl_CreateOrGetObjectId_File_OutputBufferSize_TooSmall`,
/// `FsCtl_CreateOrGetObjectId_Dir_OutputBufferSize_TooSmall`, `FsCtl_GetObjectId_File_OutputBufferSize_TooSmall`,
/// `FsCtl_GetObjectId_Dir_OutputBufferSize_TooSmall`
#[test]
fn bvt_fsctl_object_ids() {
    both(|c, id, _| {
        assert_eq!(c.try_fsctl(id, fsctl::GET_OBJECT_ID, &[], 64).unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        for code in [fsctl::CREATE_OR_GET_OBJECT_ID, fsctl::GET_OBJECT_ID] {
            assert_eq!(c.try_fsctl(id, code, &[], 63).unwrap_err(), INVALID);
        }
        let made = c.fsctl(id, fsctl::CREATE_OR_GET_OBJECT_ID, &[], 64);
        for part in [0, 16, 32] {
            assert_ne!(made[part..part + 16], [0; 16]);
        }
        assert_eq!(made[48..64], [0; 16], "DomainId");
        assert_eq!(c.fsctl(id, fsctl::CREATE_OR_GET_OBJECT_ID, &[], 64), made);
        assert_eq!(c.fsctl(id, fsctl::GET_OBJECT_ID, &[], 64), made);
    });
}

/// `FsCtl_Get_Compression_File_IsCompressionSupported`, `FsCtl_Get_Compression_Dir_IsCompressionSupported`,
/// `FsCtl_Set_Compression_File_IsCompressionSupported`, `FsCtl_Set_Compression_Dir_IsCompressionSupported`
#[test]
fn fsctl_compression_is_not_supported() {
    both(|c, id, _| no_compression(c, id));
    let (_lab, _volumes, mut c) = on_volumes();
    for path in ["directory", "file", "file:stream", "directory:stream"] {
        let options = if path == "directory" { OPT_DIRECTORY_FILE } else { 0 };
        let id = c.open(want(path).options(options)).id;
        no_compression(&mut c, id);
    }
}

/// [MS-FSA] 2.1.5.10.9 and 2.1.5.10.30, of a store without compression: whatever is asked for, and with whatever room.
#[track_caller]
pub fn no_compression(c: &mut Client, id: FileId) {
    for room in [0, 2] {
        assert_eq!(c.try_fsctl(id, fsctl::GET_COMPRESSION, &[], room).unwrap_err(), NOT_IMPLEMENTED_HERE);
    }
    for input in [&[0, 0][..], &[1, 0], &[2, 0], &[3, 0], &[0], &[]] {
        assert_eq!(c.try_fsctl(id, fsctl::SET_COMPRESSION, input, 0).unwrap_err(), NOT_IMPLEMENTED_HERE);
    }
    let data = c.query(id, file_class::COMPRESSION);
    assert_eq!((data.len(), le_u16(&data, 8)), (16, 0), "COMPRESSION_FORMAT_NONE");
}

/// What a plain volume does not implement, [MS-FSA] 2.1.5.10: FSCTL_GET/SET_INTEGRITY_INFORMATION, OFFLOAD_READ and
/// OFFLOAD_WRITE, the volume data of NTFS and ReFS, stream snapshots. Where files have no clusters of the store.
///
/// `FsCtl_Offload_Read_File_IsOffloadSupported`, `FsCtl_Offload_Write_File_IsOffloadSupported`,
/// `BVT_OffloadReadWrite`, `BVT_CopyOffload`, `CopyOffload_CopyContentWithinSameFile`, `BVT_SetGetIntegrityInfo`
#[test]
fn fsctls_that_do_not_exist_here() {
    const CODES: [u32; 9] = [
        fsctl::GET_INTEGRITY_INFORMATION,
        fsctl::SET_INTEGRITY_INFORMATION,
        0x0009_0380, // FSCTL_SET_INTEGRITY_INFORMATION_EX
        0x0009_4264, // FSCTL_OFFLOAD_READ
        0x0009_8268, // FSCTL_OFFLOAD_WRITE
        0x0009_83E8, // FSCTL_DUPLICATE_EXTENTS_TO_FILE_EX
        0x0009_0064, // FSCTL_GET_NTFS_VOLUME_DATA
        0x0009_02D8, // FSCTL_GET_REFS_VOLUME_DATA
        0x0009_0440, // FSCTL_REFS_STREAM_SNAPSHOT_MANAGEMENT
    ];
    both(|c, id, _| {
        for code in CODES {
            assert_eq!(c.try_fsctl(id, code, &[0; 64], 1024).unwrap_err(), NOT_IMPLEMENTED_HERE, "{code:#x}");
        }
    });
}

/// `FsCtl_Get_ReparsePoint_IsReparsePointSupported`
#[test]
fn fsctl_get_reparse_point() {
    both(|c, id, _| {
        let status = c.try_fsctl(id, fsctl::GET_REPARSE_POINT, &[], 2048).unwrap_err();
        assert_eq!(status, NtStatus::NOT_A_REPARSE_POINT);
    });
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("link"));
    let mut data = vec![0x0C, 0, 0, 0xA0];
    let mut target = Vec::new();
    target.put_utf16("target");
    let len = target.len() as u16;
    data.put_u16(12 + 2 * len);
    data.put_u16(0);
    for v in [0, len, len, len] {
        data.put_u16(v);
    }
    data.put_u32(1);
    data.extend_from_slice(&target);
    data.extend_from_slice(&target);
    c.fsctl(f.id, fsctl::SET_REPARSE_POINT, &data, 0);
    assert_eq!(c.fsctl(f.id, fsctl::GET_REPARSE_POINT, &[], 2048), data);
    c.close(f.id);
    assert_eq!(c.fails(want("link").existing()), NtStatus::STOPPED_ON_SYMLINK);
    let f = c.open(want("link").existing().options(OPT_OPEN_REPARSE_POINT));
    assert_eq!(
        c.try_fsctl(f.id, fsctl::DELETE_REPARSE_POINT, &data[..7], 0).unwrap_err(),
        NtStatus::IO_REPARSE_DATA_INVALID
    );
    c.fsctl(f.id, fsctl::DELETE_REPARSE_POINT, &[0x0C, 0, 0, 0xA0, 0, 0, 0, 0], 0);
    c.close(f.id);
    c.open(want("link").existing());
}

/// `FsCtl_Query_AllocatedRanges_File_IsAllocatedRangesSupported`,
/// `FsCtl_Query_AllocatedRanges_Dir_IsAllocatedRangesSupported`
#[test]
fn fsctl_query_allocated_ranges() {
    both(|c, id, directory| {
        let code = fsctl::QUERY_ALLOCATED_RANGES;
        if directory {
            assert_eq!(c.try_fsctl(id, code, &pair(0, 1), 16).unwrap_err(), INVALID);
            return;
        }
        c.write(id, 0, &[1; 8192]);
        assert_eq!(c.fsctl(id, code, &pair(0, 8192), 16), pair(0, 8192));
        assert_eq!(c.try_fsctl(id, code, &pair(0, 8192), 15).unwrap_err(), NtStatus::BUFFER_TOO_SMALL);
        assert_eq!(c.try_fsctl(id, code, &pair(u64::MAX, 1), 16).unwrap_err(), INVALID);
        assert_eq!(c.try_fsctl(id, code, &pair(0, u64::MAX), 16).unwrap_err(), INVALID);
        assert_eq!(c.try_fsctl(id, code, &[0; 15], 16).unwrap_err(), INVALID);
        assert!(c.fsctl(id, code, &pair(0, 0), 16).is_empty());
    });
}

#[test]
fn sparse_files_have_holes() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    c.fsctl(f.id, fsctl::SET_SPARSE, &[], 0);
    assert_eq!(le_u32(&c.query(f.id, file_class::BASIC), 32) & ATTR_SPARSE, ATTR_SPARSE);
    c.write(f.id, 1 << 20, &[1; 65536]);
    let ranges = c.fsctl(f.id, fsctl::QUERY_ALLOCATED_RANGES, &pair(0, 2 << 20), 160);
    assert_eq!(ranges, pair(1 << 20, 65536));
    c.write(f.id, 0, &[1; 65536]);
    let reply = c.call(&ioctl(f.id, fsctl::QUERY_ALLOCATED_RANGES, &pair(0, 2 << 20), 16));
    assert_eq!(reply.status(), NtStatus::BUFFER_OVERFLOW);
    assert_eq!(reply.ioctl_output(), pair(0, 65536));
    c.fsctl(f.id, fsctl::SET_ZERO_DATA, &pair(0, 65536), 0);
    let ranges = c.fsctl(f.id, fsctl::QUERY_ALLOCATED_RANGES, &pair(0, 2 << 20), 160);
    assert_eq!(ranges, pair(1 << 20, 65536));
}

/// `FsCtl_Set_Sparse_File_IsSparseFileSupported`, `FsCtl_Set_Sparse_Dir_IsSparseFileSupported`
#[test]
fn fsctl_set_sparse() {
    both(|c, id, directory| {
        let result = c.try_fsctl(id, fsctl::SET_SPARSE, &[1], 0);
        assert_eq!(result.err(), directory.then_some(INVALID));
    });
}

/// `FsCtl_Set_ZeroData_File_IsZeroDataSupported`, `FsCtl_Set_ZeroData_Dir_IsZeroDataSupported`, `BVT_SetZeroData`
#[test]
fn fsctl_set_zero_data() {
    both(|c, id, directory| {
        let zero = |c: &mut Client, from, to| c.try_fsctl(id, fsctl::SET_ZERO_DATA, &pair(from, to), 0).err();
        assert_eq!(zero(c, 0, 0), directory.then_some(INVALID));
        if directory {
            return;
        }
        c.write(id, 0, &[1; 100]);
        assert_eq!(zero(c, 10, 20), None);
        assert_eq!(c.read(id, 0, 30), [[1; 10], [0; 10], [1; 10]].concat());
        assert_eq!(zero(c, 20, 10), Some(INVALID));
        assert_eq!(zero(c, u64::MAX, 0), Some(INVALID));
        assert_eq!(zero(c, 0, u64::MAX), Some(INVALID));
        assert_eq!(zero(c, 50, 1000), None);
        assert_eq!(le_u64(&c.query(id, file_class::STANDARD), 8), 100, "the file does not get longer");
    });
}

/// `BVT_FileLevelTrim`, `FileLevelTrim_Negative_NonZeroKeyInRequest`
#[test]
fn bvt_file_level_trim() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    c.write(f.id, 0, &[1; 65536]);
    let trim = |key: u32| {
        let mut input = Vec::new();
        input.put_u32(key);
        input.put_u32(1);
        input.extend_from_slice(&pair(0, 4096));
        input
    };
    assert_eq!(c.fsctl(f.id, fsctl::FILE_LEVEL_TRIM, &trim(0), 4), [1, 0, 0, 0]);
    assert_eq!(c.try_fsctl(f.id, fsctl::FILE_LEVEL_TRIM, &trim(7), 4).unwrap_err(), INVALID);
    assert_eq!(c.try_fsctl(f.id, fsctl::FILE_LEVEL_TRIM, &trim(0)[..20], 4).unwrap_err(), INVALID);
}

/// [MS-FSA] 2.1.5.10.6: whole pages inside of each range and nothing else, and an answer for who has room for it.
#[test]
fn trim_takes_whole_pages_and_needs_no_answer() {
    const PAGE: u64 = 4096;
    let lab = Lab::new();
    let (_volume_lab, _volumes, on_volume) = on_volumes();
    for mut c in [lab.client(), on_volume] {
        let f = c.open(want("file")).id;
        let trim = |ranges: &[(u64, u64)]| {
            let mut input = [0u32.to_le_bytes(), (ranges.len() as u32).to_le_bytes()].concat();
            ranges.iter().for_each(|(from, len)| input.extend_from_slice(&pair(*from, *len)));
            input
        };
        // Ranges, how many of them have whole pages, and the pages that are given up.
        let cases: [(&[(u64, u64)], u8, &[u64]); 7] = [
            (&[(PAGE, PAGE)], 1, &[1]),
            (&[(1, PAGE)], 0, &[]),
            (&[(PAGE - 1, PAGE + 1)], 1, &[1]),
            (&[(100, 3 * PAGE)], 1, &[1, 2]),
            (&[(PAGE, PAGE - 1), (3 * PAGE, PAGE)], 1, &[3]),
            // The last page ends with the file, and ranges with what is allocated.
            (&[(4 * PAGE, 100)], 0, &[]),
            (&[(3 * PAGE + 1, 10 * PAGE)], 1, &[4]),
        ];
        for (ranges, processed, given_up) in cases {
            let size = 4 * PAGE as usize + 100;
            c.write(f, 0, &vec![1; size]);
            assert_eq!(c.fsctl(f, fsctl::FILE_LEVEL_TRIM, &trim(ranges), 4), [processed, 0, 0, 0], "{ranges:?}");
            let data = c.read(f, 0, 1 << 16);
            assert_eq!(data.len(), size);
            for (i, byte) in data.iter().enumerate() {
                let page = i as u64 / PAGE;
                assert_eq!(*byte, u8::from(!given_up.contains(&page)), "{ranges:?}: byte {i}");
            }
        }
        assert!(c.fsctl(f, fsctl::FILE_LEVEL_TRIM, &trim(&[(0, PAGE)]), 0).is_empty());
        assert_eq!(c.read(f, 0, 1), [0]);
        for room in 1..4 {
            assert_eq!(c.try_fsctl(f, fsctl::FILE_LEVEL_TRIM, &trim(&[(0, PAGE)]), room), Err(INVALID));
        }
        for far in [(PAGE, u64::MAX), (u64::MAX - 1, 1)] {
            let status = c.try_fsctl(f, fsctl::FILE_LEVEL_TRIM, &trim(&[far]), 0).unwrap_err();
            assert_eq!(status, NtStatus::INTEGER_OVERFLOW);
        }
        let d = c.open(want("directory").directory()).id;
        assert_eq!(c.try_fsctl(d, fsctl::FILE_LEVEL_TRIM, &trim(&[(0, PAGE)]), 0), Err(INVALID));
        // What another has locked counts where it would be given up.
        let other = c.open(want("file")).id;
        c.call(&lock(other, 0, &[(PAGE + 5, 1, lock_flags::EXCLUSIVE)])).ok();
        let status = c.try_fsctl(f, fsctl::FILE_LEVEL_TRIM, &trim(&[(PAGE, PAGE)]), 0).unwrap_err();
        assert_eq!(status, NtStatus::FILE_LOCK_CONFLICT);
        assert!(c.fsctl(f, fsctl::FILE_LEVEL_TRIM, &trim(&[(PAGE, PAGE - 1), (2 * PAGE, PAGE)]), 0).is_empty());
    }
}

/// `BVT_DuplicateExtentsToFile`
#[test]
fn bvt_duplicate_extents_to_file() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    c.write(f.id, 0, &[1; 4096]);
    c.write(f.id, 4096, &[2; 4096]);
    let mut input = Vec::new();
    f.id.put(&mut input);
    for v in [0u64, 4096, 4096] {
        input.put_u64(v);
    }
    // As the file system below can: it says so, or does it.
    match c.try_fsctl(f.id, fsctl::DUPLICATE_EXTENTS_TO_FILE, &input, 0) {
        Ok(_) => assert_eq!(c.read(f.id, 4096, 4096), [1; 4096]),
        Err(status) => {
            assert!(matches!(status, NtStatus::NOT_SUPPORTED | NtStatus::INVALID_DEVICE_REQUEST), "{status}");
            assert_eq!(c.read(f.id, 4096, 4096), [2; 4096]);
        }
    }
}

/// `BVT_EnumerateSnapShots`
#[test]
fn bvt_enumerate_snap_shots() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    let out = c.fsctl(f.id, fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 16);
    assert_eq!((le_u32(&out, 0), le_u32(&out, 4)), (0, 0), "none are kept");
    assert_eq!(c.try_fsctl(f.id, fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 15).unwrap_err(), INVALID);
}

const QUERY_INTERFACES: u32 = fsctl::QUERY_NETWORK_INTERFACE_INFO;

/// `BVT_NetworkInterfaceInfo_QuerySuccessful`, `NetworkInterfaceInfo_Query_ReturnsIPv4IPv6`
#[test]
fn bvt_network_interface_info_query_successful() {
    let lab = Lab::new();
    // [MS-SMB2] 3.3.5.15.11: an older dialect MAY be refused; peers answer it.
    for dialect in [Dialect::Smb202, Dialect::Smb210, Dialect::Smb300, Dialect::Smb302, Dialect::Smb311] {
        let mut c = lab.client_with(dialect);
        c.connect("IPC$");
        let out = c.fsctl(FileId::RELATED, QUERY_INTERFACES, &[], 4096);
        assert_eq!(out.len(), 2 * 152);
        assert_eq!((le_u32(&out, 0), le_u32(&out, 152)), (152, 0), "Next");
        assert_eq!((le_u32(&out, 4), le_u32(&out, 156)), (1, 2), "IfIndex");
        assert_eq!((le_u32(&out, 8), le_u32(&out, 160)), (1, 0), "RSS");
        assert_eq!(le_u64(&out, 16), 10_000_000_000, "LinkSpeed");
        assert_eq!(le_u16(&out, 24), 2, "IPv4");
        assert_eq!(out[28..32], [192, 0, 2, 1]);
        let small = c.try_fsctl(FileId::RELATED, QUERY_INTERFACES, &[], 100).unwrap_err();
        assert!(small.is_error());
    }
}
/// `NetworkInterfaceInfo_Query_ReturnsErrorStatus`
#[test]
fn network_interface_info_query_returns_error_status() {
    let lab = Lab::new();
    let mut c = lab.client();
    let req = ioctl(FileId::RELATED, QUERY_INTERFACES, &[], 4096).tree(0x7777);
    assert_eq!(c.status(&req), NtStatus::NETWORK_NAME_DELETED);
}
/// `NetworkInterfaceInfo_ChangeConnection_BindCurrentSession`
#[test]
fn network_interface_info_change_connection_bind_current_session() {
    let lab = Lab::new();
    let mut main = lab.client();
    main.fsctl(FileId::RELATED, QUERY_INTERFACES, &[], 4096);
    let other = super::channels::second_channel(&lab, &main);
    assert_eq!(other.session_id(), main.session_id());
}

fn source_and_target(c: &mut Client, data: &[u8]) -> (FileId, FileId, Vec<u8>) {
    let from = c.open(want("from"));
    c.write(from.id, 0, data);
    let to = c.open(want("to"));
    let key = c.fsctl(from.id, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32);
    assert_eq!(key.len(), 32);
    (from.id, to.id, key)
}

#[test]
fn server_side_copy() {
    let lab = Lab::new();
    let mut c = lab.client();
    let data: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    let (_, to, key) = source_and_target(&mut c, &data);
    for code in [fsctl::SRV_COPYCHUNK, fsctl::SRV_COPYCHUNK_WRITE] {
        let chunks = [(0, 0, 100_000), (100_000, 100_000, 100_000), (200_000, 200_000, 100_000)];
        let out = c.fsctl(to, code, &copy_chunks(&key, &chunks), 12);
        assert_eq!((le_u32(&out, 0), le_u32(&out, 4), le_u32(&out, 8)), (3, 0, 300_000));
        assert_eq!(c.read(to, 0, 300_000), data);
    }
}

/// [MS-SMB2] 3.3.5.15.6: a TargetOffset of -1 is the end of the file; others below zero are none.
#[test]
fn server_side_copy_to_the_end() {
    let lab = Lab::new();
    let (_volume_lab, _volumes, on_volume) = on_volumes();
    for mut c in [lab.client(), on_volume] {
        let (_, to, key) = source_and_target(&mut c, b"abcdefgh");
        c.write(to, 0, b"12345");
        let log = c.open(want("to").existing().access(FILE_APPEND_DATA | FILE_READ_DATA)).id;
        for id in [to, log] {
            let chunks = copy_chunks(&key, &[(0, u64::MAX, 3), (4, u64::MAX, 2)]);
            let out = c.fsctl(id, fsctl::SRV_COPYCHUNK, &chunks, 12);
            assert_eq!((le_u32(&out, 0), le_u32(&out, 4), le_u32(&out, 8)), (2, 0, 5));
        }
        assert_eq!(c.read(to, 0, 100), b"12345abcefabcef");
        for offset in [u64::MAX - 1, 1 << 63] {
            let reply = c.call(&ioctl(to, fsctl::SRV_COPYCHUNK, &copy_chunks(&key, &[(0, 0, 1), (0, offset, 1)]), 12));
            assert_eq!(reply.status(), INVALID);
            let out = reply.ioctl_output();
            assert_eq!((le_u32(out, 0), le_u32(out, 4), le_u32(out, 8)), (256, 1 << 20, 16 << 20));
        }
        assert_eq!(c.read(to, 0, 100), b"12345abcefabcef", "nothing was copied");
    }
}

#[test]
fn server_side_copy_refuses() {
    let lab = Lab::new();
    let mut c = lab.client();
    let (_, to, key) = source_and_target(&mut c, &[5; 1000]);
    let copy = |key: &[u8], chunks: &[(u64, u64, u32)]| ioctl(to, fsctl::SRV_COPYCHUNK, &copy_chunks(key, chunks), 12);
    // Too much at once: the answer says what would do.
    let reply = c.call(&copy(&key, &[(0, 0, 2 << 20)]));
    assert_eq!(reply.status(), INVALID);
    let out = reply.ioctl_output();
    assert_eq!((le_u32(out, 0), le_u32(out, 4), le_u32(out, 8)), (256, 1 << 20, 16 << 20));
    assert_eq!(c.status(&copy(&key, &[(0, 0, 0)])), INVALID);
    assert_eq!(c.status(&copy(&[9; 24], &[(0, 0, 1)])), NtStatus::OBJECT_NAME_NOT_FOUND);
    assert_eq!(c.status(&copy(&key, &[(900, 0, 200)])), NtStatus(0xC000_001F), "STATUS_INVALID_VIEW_SIZE");
    let writer = c.open(want("to").existing().access(FILE_GENERIC_WRITE));
    let unreadable = ioctl(writer.id, fsctl::SRV_COPYCHUNK, &copy_chunks(&key, &[(0, 0, 1)]), 12);
    assert_eq!(c.status(&unreadable), NtStatus::ACCESS_DENIED);
    let small = ioctl(to, fsctl::SRV_COPYCHUNK, &copy_chunks(&key, &[(0, 0, 1)]), 11);
    assert_eq!(c.status(&small), INVALID);
    let mut other = lab.client();
    let g = other.open(want("to"));
    let stolen = ioctl(g.id, fsctl::SRV_COPYCHUNK, &copy_chunks(&key, &[(0, 0, 1)]), 12);
    assert_eq!(other.status(&stolen), NtStatus::OBJECT_NAME_NOT_FOUND, "a key of another session");
}

#[test]
fn controls_need_a_handle_a_flag_and_room() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    let nothing = FileId { persistent: 7, volatile: 7 };
    assert_eq!(c.try_fsctl(nothing, fsctl::GET_COMPRESSION, &[], 2).unwrap_err(), NtStatus::FILE_CLOSED);
    let mut req = ioctl(f.id, fsctl::GET_COMPRESSION, &[], 2);
    req.body.patch_u32(48, 0);
    assert_eq!(c.status(&req), NtStatus::NOT_SUPPORTED, "not an FSCTL");
    assert_eq!(c.try_fsctl(f.id, 0x0009_9999, &[], 0).unwrap_err(), NOT_IMPLEMENTED_HERE);
    let referral = c.try_fsctl(FileId::RELATED, fsctl::DFS_GET_REFERRALS, &[4, 0, 0, 0], 4096).unwrap_err();
    assert_eq!(referral, NtStatus::FS_DRIVER_REQUIRED);
}
