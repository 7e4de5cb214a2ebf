//! What a volume tells of itself and of where a file lies, [MS-FSA] 2.1.5.10.11, .12, .15, .17 and .24.

use crate::{
    client::*,
    snapshots::{OTHER_VOLUME, on_volumes},
};

const CLUSTER: u64 = 4096;
const NOT_HERE: NtStatus = NtStatus::INVALID_DEVICE_REQUEST;

/// `FsCtl_Get_NTFS_Volume_Data_File`, `FsCtl_Get_NTFS_Volume_Data_Dir`, `FsCtl_Get_REFS_Volume_Data_File`,
/// `FsCtl_Get_REFS_Volume_Data_Dir`
#[test]
fn fs_ctl_get_volume_data() {
    let (_lab, _volumes, mut c) = on_volumes();
    for w in [want("file"), want("dir").directory()] {
        let f = c.open(w);
        let serial = le_u64(&c.query(f.id, file_class::ID), 0);
        let size = c.call(&query_info(f.id, info_type::FILE_SYSTEM, fs_class::FULL_SIZE, 0, &[], 64)).ok();
        let size = size.buffer();
        let ntfs = c.fsctl(f.id, fsctl::GET_NTFS_VOLUME_DATA, &[], 96);
        let refs = c.fsctl(f.id, fsctl::GET_REFS_VOLUME_DATA, &[], 152);
        assert_eq!((ntfs.len(), refs.len(), le_u32(&refs, 0)), (96, 152, 152));
        for data in [&ntfs, &refs[16..].to_vec()] {
            assert_eq!(le_u64(data, 0), serial);
            assert_eq!(le_u64(data, 16), le_u64(size, 0), "TotalClusters");
            assert_eq!(le_u64(data, 24), le_u64(size, 16), "FreeClusters");
            assert_eq!(le_u64(data, 8), le_u64(data, 16) * u64::from(le_u32(size, 24)), "NumberSectors");
            assert_eq!((le_u32(data, 40), u64::from(le_u32(data, 44))), (le_u32(size, 28), CLUSTER));
        }
        let volume = c.call(&query_info(f.id, info_type::FILE_SYSTEM, fs_class::VOLUME, 0, &[], 64)).ok();
        assert_eq!(le_u32(volume.buffer(), 8), serial as u32, "FileFsVolumeInformation");
        let short = [
            c.try_fsctl(f.id, fsctl::GET_NTFS_VOLUME_DATA, &[], 95),
            c.try_fsctl(f.id, fsctl::GET_REFS_VOLUME_DATA, &[], 151),
        ];
        assert_eq!(short.map(|s| s.err()), [Some(NtStatus::BUFFER_TOO_SMALL); 2]);
    }
}

/// NextVcn and Lcn of each run behind the first cluster, and the status.
fn pointers(c: &mut Client, id: FileId, from: u64, max: u32) -> (NtStatus, Vec<(u64, i64)>) {
    let reply = c.call(&ioctl(id, fsctl::GET_RETRIEVAL_POINTERS, &from.to_le_bytes(), max));
    if reply.status().is_error() && reply.status() != NtStatus::BUFFER_OVERFLOW {
        return (reply.status(), Vec::new());
    }
    let out = reply.ioctl_output();
    assert_eq!(le_u64(out, 8), from, "StartingVcn");
    assert_eq!(out.len(), 16 + 16 * le_u32(out, 0) as usize);
    let run = |i: usize| (le_u64(out, 16 + 16 * i), le_u64(out, 24 + 16 * i) as i64);
    (reply.status(), (0..le_u32(out, 0) as usize).map(run).collect())
}

#[test]
fn retrieval_pointers_say_where_each_cluster_lies() {
    let (_lab, _volumes, mut c) = on_volumes();
    let f = c.open(want("file"));
    c.fsctl(f.id, fsctl::SET_SPARSE, &[], 0);
    // Two parts, a hole between them and one at the end.
    let part: Vec<u8> = (0..64 * 1024u32).map(|i| (i / 3) as u8).collect();
    c.write(f.id, 0, &part);
    c.write(f.id, 1 << 20, &part);
    assert_eq!(c.set(f.id, file_class::END_OF_FILE, &(2u64 << 20).to_le_bytes()), NtStatus::SUCCESS);
    c.call(&flush(f.id)).ok();
    let (status, runs) = pointers(&mut c, f.id, 0, 4096);
    assert_eq!(status, NtStatus::SUCCESS);
    let holes: Vec<bool> = runs.iter().map(|r| r.1 == -1).collect();
    assert_eq!(runs.iter().map(|r| r.0).collect::<Vec<_>>(), [16, 256, 272, 512]);
    assert_eq!(holes, [false, true, false, true]);
    let count = |c: &mut Client| le_u32(&c.fsctl(f.id, fsctl::GET_RETRIEVAL_POINTER_COUNT, &[0; 8], 4), 0);
    assert_eq!(count(&mut c), 4);
    // From the middle of a run on.
    let (_, rest) = pointers(&mut c, f.id, 4, 4096);
    assert_eq!(rest[0], (16, runs[0].1 + 4));
    assert_eq!(rest[1..], runs[1..]);
    // As many as fit.
    let (status, some) = pointers(&mut c, f.id, 0, 16 + 2 * 16);
    assert_eq!((status, some.as_slice()), (NtStatus::BUFFER_OVERFLOW, &runs[..2]));
    // A block that is written again lies elsewhere or is not placed yet; its neighbours stay.
    c.write(f.id, 4 * CLUSTER, &[9; CLUSTER as usize]);
    c.call(&flush(f.id)).ok();
    let (_, split) = pointers(&mut c, f.id, 0, 4096);
    assert_eq!(split[0], (4, runs[0].1));
    assert_eq!((split[1].0, split[2]), (5, (16, runs[0].1 + 5)));
    assert_ne!(split[1].1, runs[0].1 + 4);
    for (from, status) in
        [(511, NtStatus::SUCCESS), (512, NtStatus::END_OF_FILE), (u64::MAX, NtStatus::INVALID_PARAMETER)]
    {
        assert_eq!(pointers(&mut c, f.id, from, 4096).0, status, "{from}");
    }
    assert_eq!(
        c.try_fsctl(f.id, fsctl::GET_RETRIEVAL_POINTERS, &[0; 7], 4096).err(),
        Some(NtStatus::INVALID_PARAMETER)
    );
    assert_eq!(c.try_fsctl(f.id, fsctl::GET_RETRIEVAL_POINTERS, &[0; 8], 31).err(), Some(NtStatus::BUFFER_TOO_SMALL));
    assert_eq!(
        c.try_fsctl(f.id, fsctl::GET_RETRIEVAL_POINTER_COUNT, &[0; 8], 3).err(),
        Some(NtStatus::BUFFER_TOO_SMALL)
    );
    // No clusters: a directory's entries lie in the tree, and an empty file has none.
    let d = c.open(want("dir").directory());
    let e = c.open(want("empty"));
    for id in [d.id, e.id] {
        assert_eq!(pointers(&mut c, id, 0, 4096).0, NtStatus::END_OF_FILE);
    }
}

#[test]
fn clones_lie_where_their_source_does() {
    let (_lab, _volumes, mut c) = on_volumes();
    let (a, b) = (c.open(want("a")), c.open(want("b")));
    c.write(a.id, 0, &[7; 64 * 1024]);
    assert_eq!(c.set(b.id, file_class::END_OF_FILE, &65536u64.to_le_bytes()), NtStatus::SUCCESS);
    let mut input = Vec::new();
    input.put_u64(a.id.persistent);
    input.put_u64(a.id.volatile);
    for v in [0u64, 0, 65536] {
        input.put_u64(v);
    }
    c.fsctl(b.id, fsctl::DUPLICATE_EXTENTS_TO_FILE, &input, 0);
    c.call(&flush(a.id)).ok();
    let of_a = pointers(&mut c, a.id, 0, 4096);
    assert!(of_a.1[0].1 > 0);
    assert_eq!(pointers(&mut c, b.id, 0, 4096), of_a);
    // Another volume has its own clusters and its own serial number.
    let serial = |c: &mut Client, id| le_u64(&c.fsctl(id, fsctl::GET_NTFS_VOLUME_DATA, &[], 96), 0);
    let here = serial(&mut c, a.id);
    c.connect(OTHER_VOLUME);
    let other = c.open(want("a"));
    assert_ne!(serial(&mut c, other.id), here);
}

/// FileOffset, Length and Usage of each region, and TotalRegionEntryCount.
fn regions(out: &[u8]) -> (u32, Vec<(u64, u64, u32)>) {
    let region = |at: usize| (le_u64(out, at), le_u64(out, at + 8), le_u32(out, at + 16));
    assert_eq!(out.len(), 16 + 24 * le_u32(out, 8) as usize);
    (le_u32(out, 4), (0..le_u32(out, 8) as usize).map(|i| region(16 + 24 * i)).collect())
}

fn region_input(offset: u64, len: u64, usage: u32) -> Vec<u8> {
    let mut input = pair(offset, len);
    input.put_u32(usage);
    input.put_u32(0);
    input
}

/// `BVT_FsCtl_Query_File_Regions`, `BVT_FsCtl_Query_File_Regions_WithInputData`
#[test]
fn bvt_fs_ctl_query_file_regions() {
    const CODE: u32 = fsctl::QUERY_FILE_REGIONS;
    let (_lab, _volumes, mut on_volume) = on_volumes();
    let lab = Lab::new();
    for c in [&mut lab.client(), &mut on_volume] {
        let f = c.open(want("file"));
        // [MS-FSA] 2.1.5.10.24: an empty file has one region, of nothing.
        assert_eq!(regions(&c.fsctl(f.id, CODE, &[], 64)), (1, vec![(0, 0, 0)]));
        c.write(f.id, 0, &[1; 1024]);
        assert_eq!(regions(&c.fsctl(f.id, CODE, &[], 64)), (1, vec![(0, 1024, 1)]));
        assert_eq!(regions(&c.fsctl(f.id, CODE, &region_input(0, 1024, 2), 64)), (1, vec![(0, 1024, 2)]));
        assert_eq!(c.set(f.id, file_class::END_OF_FILE, &5000u64.to_le_bytes()), NtStatus::SUCCESS);
        let both = vec![(0, 1024, 1), (1024, 3976, 0)];
        assert_eq!(regions(&c.fsctl(f.id, CODE, &[], 64)), (2, both.clone()));
        let reply = c.call(&ioctl(f.id, CODE, &[], 63));
        assert_eq!(reply.status(), NtStatus::BUFFER_OVERFLOW);
        assert_eq!(regions(reply.ioctl_output()), (2, both[..1].to_vec()));
        assert_eq!(
            regions(&c.fsctl(f.id, CODE, &region_input(1000, 30, 1), 64)),
            (2, vec![(1000, 24, 1), (1024, 6, 0)])
        );
        assert_eq!(regions(&c.fsctl(f.id, CODE, &region_input(4000, 9000, 1), 64)), (1, vec![(4000, 1000, 0)]));
        assert_eq!(c.fsctl(f.id, CODE, &region_input(5000, 1, 1), 64), [0u8; 0]);
        let invalid = [(0, 0, 1), (0, 1, 0), (0, 1, 4), (u64::MAX, 1, 1), (1 << 62, 1 << 62, 1)];
        for (at, len, usage) in invalid {
            let refused = c.try_fsctl(f.id, CODE, &region_input(at, len, usage), 64);
            assert_eq!(refused.err(), Some(NtStatus::INVALID_PARAMETER), "{at} {len} {usage}");
        }
        assert_eq!(c.try_fsctl(f.id, CODE, &[0; 23], 64).err(), Some(NtStatus::BUFFER_TOO_SMALL));
        assert_eq!(c.try_fsctl(f.id, CODE, &[], 39).err(), Some(NtStatus::BUFFER_TOO_SMALL));
        let d = c.open(want("dir").directory());
        assert_eq!(c.try_fsctl(d.id, CODE, &[], 64).err(), Some(NtStatus::INVALID_PARAMETER));
    }
}

/// [MS-FSCC] 2.2: known, and not for other machines. A directory of another file system knows no clusters.
#[test]
fn what_is_not_offered_to_other_machines() {
    let (_lab, _volumes, mut c) = on_volumes();
    let f = c.open(want("file"));
    for code in [fsctl::GET_RETRIEVAL_POINTER_BASE, fsctl::IS_VOLUME_DIRTY, fsctl::LOOKUP_STREAM_FROM_CLUSTER] {
        assert_eq!(c.try_fsctl(f.id, code, &[0; 8], 4096).err(), Some(NtStatus::INVALID_PARAMETER), "{code:#x}");
    }
    let dasd = c.try_fsctl(f.id, fsctl::ALLOW_EXTENDED_DASD_IO, &[], 0);
    assert_eq!(dasd.err(), Some(NtStatus::ACCESS_DENIED));
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    c.write(f.id, 0, b"x");
    for code in [fsctl::GET_NTFS_VOLUME_DATA, fsctl::GET_REFS_VOLUME_DATA, fsctl::GET_RETRIEVAL_POINTERS] {
        assert_eq!(c.try_fsctl(f.id, code, &[0; 8], 4096).err(), Some(NOT_HERE), "{code:#x}");
    }
}
