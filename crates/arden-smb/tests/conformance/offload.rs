//! Copies that share blocks: SRV_COPYCHUNK and DUPLICATE_EXTENTS_TO_FILE(_EX) on a volume, and copy offload by tokens.

use std::time::Duration;

use arden_auth::UserDb;
use arden_volume::Volume;

use crate::{
    client::*,
    snapshots::{OTHER_VOLUME, VOLUME, on_volumes},
};

const BLOCK: usize = 4096;
const INVALID: NtStatus = NtStatus::INVALID_PARAMETER;
pub const BEYOND_VDL: NtStatus = NtStatus(0xC000_0432);
const INVALID_TOKEN: NtStatus = NtStatus(0xC000_0465);

fn bytes(tag: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| tag ^ (i / 11) as u8).collect()
}

/// Blocks that several files have.
fn shared(volume: &Volume) -> u64 {
    let report = volume.check(true).unwrap();
    assert_eq!(report.errors, Vec::<String>::new());
    report.shared_blocks
}

pub fn all(c: &mut Client, id: FileId, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < len {
        let part = c.read(id, out.len() as u64, (len - out.len()).min(1 << 20) as u32);
        assert!(!part.is_empty());
        out.extend(part);
    }
    out
}

fn fill(c: &mut Client, name: &str, data: &[u8]) -> FileId {
    let f = c.open(want(name));
    for (i, part) in data.chunks(60_000).enumerate() {
        c.write(f.id, i as u64 * 60_000, part);
    }
    f.id
}

/// [MS-SMB2] 3.3.5.15.6: what a copy does is the same whether blocks are shared or not.
#[test]
fn copychunk_shares_whole_blocks_and_copies_the_rest() {
    let (_lab, volumes, mut c) = on_volumes();
    let data = bytes(3, 300_000);
    let from = fill(&mut c, "from", &data);
    let key = c.fsctl(from, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32);
    // Where it starts in the source and in the target, and the blocks that can be shared.
    let cases = [(0, 0, 300_000, 73), (100, BLOCK + 100, 200_000, 47), (5, 0, 200_000, 0), (0, 0, 60_000, 0)];
    for (i, (at, to, len, blocks)) in cases.into_iter().enumerate() {
        let target = c.open(want(&format!("to {i}"))).id;
        let before = shared(&volumes[0]);
        let chunks = copy_chunks(&key[..24], &[(at as u64, to as u64, len)]);
        let done = c.fsctl(target, fsctl::SRV_COPYCHUNK, &chunks, 12);
        assert_eq!((le_u32(&done, 0), le_u32(&done, 8)), (1, len), "{i}");
        let mut expected = vec![0; to];
        expected.extend_from_slice(&data[at..at + len as usize]);
        assert!(all(&mut c, target, expected.len()) == expected, "{i}");
        assert_eq!(shared(&volumes[0]) - before, blocks, "{i}");
        assert_eq!(c.delete(target), NtStatus::SUCCESS);
        c.close(target);
    }
    // Afterwards each goes its own way.
    let target = c.open(want("other")).id;
    c.fsctl(target, fsctl::SRV_COPYCHUNK, &copy_chunks(&key[..24], &[(0, 0, 300_000)]), 12);
    c.write(from, 0, &[0xFF; 100]);
    assert!(all(&mut c, target, 300_000) == data);
    // Within a file, ranges that overlap are copied.
    c.fsctl(target, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32);
    let mut own_key = Vec::new();
    target.put(&mut own_key);
    own_key.put_zeros(8);
    c.fsctl(target, fsctl::SRV_COPYCHUNK, &copy_chunks(&own_key, &[(0, 131_072, 131_072)]), 12);
    assert!(all(&mut c, target, 300_000)[131_072..262_144] == data[..131_072]);
    shared(&volumes[0]);
}

fn extents(ex: bool, source: FileId, from: u64, to: u64, len: u64) -> (u32, Vec<u8>) {
    let mut input = Vec::new();
    if ex {
        input.put_u64(0x30);
    }
    source.put(&mut input);
    for v in [from, to, len] {
        input.put_u64(v);
    }
    if ex {
        input.put_u64(1);
    }
    (if ex { fsctl::DUPLICATE_EXTENTS_TO_FILE_EX } else { fsctl::DUPLICATE_EXTENTS_TO_FILE }, input)
}

/// `BVT_DuplicateExtentsToFile`, `BVT_FsCtl_DuplicateExtentsToFileEx_IsBasicSupported`,
/// `BVT_FsCtl_DuplicateExtentsToFileEx_IsSourceAtomicSupported`. [MS-FSA] 2.1.5.10.4 and .5, [MS-SMB2] 3.3.5.15.17 and .18.
#[test]
fn duplicate_extents_on_a_volume() {
    let (_lab, volumes, mut c) = on_volumes();
    let data = bytes(9, 64 * BLOCK);
    let b = BLOCK as u64;
    for ex in [false, true] {
        let from = fill(&mut c, "from", &data);
        let to = fill(&mut c, "to", &bytes(1, 10 * BLOCK));
        let try_it = |c: &mut Client, at, target, len| {
            let (code, input) = extents(ex, from, at, target, len);
            c.try_fsctl(to, code, &input, 0).map(|_| ())
        };
        assert_eq!(try_it(&mut c, b, 4 * b, 32 * b), Ok(()));
        assert!(all(&mut c, to, 36 * BLOCK)[4 * BLOCK..] == data[BLOCK..33 * BLOCK]);
        assert_eq!(try_it(&mut c, 0, 0, 0), Ok(()));
        for (at, target, len) in [(1, 0, b), (0, 1, b), (0, 0, 5000)] {
            assert_eq!(try_it(&mut c, at, target, len), Err(INVALID), "{at} {target} {len}");
        }
        assert_eq!(try_it(&mut c, 60 * b, 0, 5 * b), Err(NtStatus::NOT_SUPPORTED), "past the end of the source");
        let (code, overlapping) = extents(ex, to, 0, b, 2 * b);
        assert_eq!(c.try_fsctl(to, code, &overlapping, 0).unwrap_err(), NtStatus::NOT_SUPPORTED);
        let (_, mut short) = extents(ex, from, 0, 0, b);
        short.pop();
        assert_eq!(c.try_fsctl(to, code, &short, 0).unwrap_err(), INVALID);
        let nobody = FileId { persistent: 1, volatile: 1 };
        let (_, unknown) = extents(ex, nobody, 0, 0, b);
        assert_eq!(c.try_fsctl(to, code, &unknown, 0).unwrap_err(), NtStatus::INVALID_HANDLE);
        c.fsctl(from, fsctl::SET_SPARSE, &[1], 0);
        assert_eq!(try_it(&mut c, 0, 0, b), Err(NtStatus::NOT_SUPPORTED), "sparse into one that is not");
        c.fsctl(from, fsctl::SET_SPARSE, &[0], 0);
        assert!(shared(&volumes[0]) > 0);
        c.close(from);
        c.close(to);
    }
    let from = c.open(want("from")).id;
    let (_, mut wrong) = extents(true, from, 0, 0, b);
    wrong[0] = 0x38;
    assert_eq!(c.try_fsctl(from, fsctl::DUPLICATE_EXTENTS_TO_FILE_EX, &wrong, 0).unwrap_err(), NtStatus::NOT_SUPPORTED);
    c.connect(OTHER_VOLUME);
    let to = c.open(want("to")).id;
    let (code, elsewhere) = extents(true, from, 0, 0, b);
    assert_eq!(c.try_fsctl(to, code, &elsewhere, 0).unwrap_err(), INVALID, "another volume");
}

fn read_input(time_ms: u32, offset: u64, len: u64) -> Vec<u8> {
    let mut b = Vec::new();
    for v in [32, 0, time_ms, 0] {
        b.put_u32(v);
    }
    b.extend_from_slice(&pair(offset, len));
    b
}

fn write_input(offset: u64, len: u64, source_offset: u64, token: &[u8]) -> Vec<u8> {
    let mut b = Vec::new();
    b.put_u32(32 + 512);
    b.put_u32(0);
    for v in [offset, len, source_offset] {
        b.put_u64(v);
    }
    b.extend_from_slice(token);
    b
}

pub fn try_token(c: &mut Client, id: FileId, time_ms: u32, offset: u64, len: u64) -> Result<Vec<u8>, NtStatus> {
    c.try_fsctl(id, fsctl::OFFLOAD_READ, &read_input(time_ms, offset, len), 528)
}

pub fn token(c: &mut Client, id: FileId, time_ms: u32, offset: u64, len: u64) -> (u32, u64, Vec<u8>) {
    let out = try_token(c, id, time_ms, offset, len).expect("a token");
    assert_eq!((out.len(), le_u32(&out, 0)), (528, 528));
    (le_u32(&out, 4), le_u64(&out, 8), out[16..].to_vec())
}

pub fn write_by(c: &mut Client, id: FileId, offset: u64, len: u64, from: u64, token: &[u8]) -> Result<u64, NtStatus> {
    c.try_fsctl(id, fsctl::OFFLOAD_WRITE, &write_input(offset, len, from, token), 16).map(|out| {
        assert_eq!((out.len(), le_u32(&out, 0), le_u32(&out, 4)), (16, 16, 0));
        le_u64(&out, 8)
    })
}

/// STORAGE_OFFLOAD_TOKEN_TYPE_ZERO_DATA.
fn zeros() -> Vec<u8> {
    let mut token = vec![0xFF, 0xFF, 0, 1];
    token.resize(512, 0);
    token
}

pub fn sized(c: &mut Client, name: &str, size: u64) -> FileId {
    let f = c.open(want(name)).id;
    assert_eq!(c.set(f, file_class::END_OF_FILE, &size.to_le_bytes()), NtStatus::SUCCESS);
    f
}

/// `BVT_OffloadReadWrite`, `BVT_CopyOffload`. [MS-FSA] 2.1.5.10.20 and .21: a token is the data as it was, by reference on its volume and by copy to another.
#[test]
fn a_token_stands_for_what_was_read() {
    let (_lab, volumes, mut c) = on_volumes();
    let data = bytes(5, 500_000);
    let from = fill(&mut c, "from", &data);
    let (flags, transferred, t) = token(&mut c, from, 0, 512, 1 << 20);
    assert_eq!((flags, transferred), (1, 499_712), "to the end, in whole sectors");
    assert_ne!(t[..4], [0xFF, 0xFF, 0, 1]);
    // The file changes, the token does not.
    c.write(from, 0, &[0; 4000]);
    let to = sized(&mut c, "to", 600_000);
    c.write(to, 0, &[0; 512]);
    let before = shared(&volumes[0]);
    assert_eq!(write_by(&mut c, to, 512, 499_712, 0, &t), Ok(499_712));
    let got = all(&mut c, to, 600_000);
    assert!(got[512..500_000] == data[512..] && got[500_000..].iter().all(|b| *b == 0) && got[..512] == [0; 512]);
    assert!(shared(&volumes[0]) >= before, "blocks are shared");
    // Part of it, elsewhere, again.
    assert_eq!(write_by(&mut c, to, 4096, 1024, 2048, &t), Ok(1024));
    assert!(all(&mut c, to, 600_000)[4096..5120] == data[2560..3584]);
    // A target that ends earlier is not made longer.
    let short = sized(&mut c, "short", 1000);
    assert_eq!(write_by(&mut c, short, 0, 4096, 0, &t), Ok(1024));
    assert!(all(&mut c, short, 1000) == data[512..1512]);
    assert_eq!(le_u64(&c.query(short, file_class::STANDARD), 8), 1000);
    // To another volume.
    c.connect(OTHER_VOLUME);
    let far = sized(&mut c, "far", 300_000);
    assert_eq!(write_by(&mut c, far, 0, 299_520, 0, &t), Ok(299_520));
    assert!(all(&mut c, far, 299_520) == data[512..300_032]);
    shared(&volumes[1]);
}

/// `BVT_OffloadReadWrite`. At the end of the file a token is written as other data are, in whole sectors; behind it nothing is.
#[test]
fn a_token_makes_a_file_longer_at_its_end() {
    let (lab, volumes, mut c) = on_volumes();
    let data = bytes(5, 500_000);
    let from = fill(&mut c, "from", &data);
    let (flags, transferred, t) = token(&mut c, from, 0, 0, 1 << 20);
    assert_eq!((flags, transferred), (1, 500_224), "the last sector is a whole one");
    let to = c.open(want("to")).id;
    let size = |c: &mut Client, id| le_u64(&c.query(id, file_class::STANDARD), 8);
    assert_eq!(write_by(&mut c, to, 512, 512, 0, &t), Err(NtStatus::END_OF_FILE), "behind the end");
    assert_eq!(write_by(&mut c, to, 0, 1 << 20, 0, &t), Ok(500_224));
    let expected = [&data[..], &[0; 224]].concat();
    assert_eq!(size(&mut c, to), 500_224);
    assert!(all(&mut c, to, 500_224) == expected);
    assert!(shared(&volumes[0]) > 100, "blocks are shared");
    // On from there, with part of it, and with zeros.
    assert_eq!(write_by(&mut c, to, 500_224, 1024, 2048, &t), Ok(1024));
    assert_eq!(write_by(&mut c, to, 501_248, 8192, 0, &zeros()), Ok(8192));
    assert_eq!(size(&mut c, to), 509_440);
    assert!(all(&mut c, to, 509_440)[500_224..] == [&data[2048..3072], &[0; 8192]].concat());
    // What begins before the end ends at it.
    assert_eq!(write_by(&mut c, to, 508_928, 1024, 0, &t), Ok(512));
    assert_eq!(size(&mut c, to), 509_440);
    // A file that was given its size has no valid data at its end.
    let sized = sized(&mut c, "sized", 4096);
    assert_eq!(write_by(&mut c, sized, 4096, 512, 0, &t), Err(BEYOND_VDL));
    // Read caching, locks and rights as for a write.
    let mut reader = lab.client();
    reader.connect(VOLUME);
    reader.open(want("to").existing().access(FILE_READ_DATA).lease(7, "R"));
    assert_eq!(write_by(&mut c, to, 509_440, 512, 0, &t), Ok(512));
    assert_eq!(reader.lease_break(), ("R".into(), String::new(), false));
    let other = c.open(want("to").existing()).id;
    let range = [(509_952 + 512, 1, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)];
    c.call(&lock(other, 0, &range)).ok();
    assert_eq!(write_by(&mut c, to, 509_952, 1024, 0, &t), Err(NtStatus::FILE_LOCK_CONFLICT));
    c.close(other);
    let only = c.open(want("to").existing().access(FILE_APPEND_DATA | FILE_READ_DATA)).id;
    assert_eq!(write_by(&mut c, only, 509_952, 512, 0, &t), Err(NtStatus::ACCESS_DENIED));
    assert_eq!(write_by(&mut c, to, 509_952, 512, u64::MAX - 511, &zeros()), Ok(512), "zeros have no end");
    assert_eq!(write_by(&mut c, to, 510_464, 512, 0, &[0; 512]), Err(INVALID_TOKEN));
    assert_eq!(size(&mut c, to), 510_464, "refused before it grows");
    shared(&volumes[0]);
}

/// The file that a token makes longer counts for its owner as one that was written.
#[test]
fn a_token_is_written_within_the_quota() {
    let (lab, volume) = crate::quotas::lab();
    let other = lab.users.machine_sid().with_rid(1001);
    let mut c = crate::quotas::client(&lab, OTHER);
    let from = fill(&mut c, "from", &bytes(6, 1 << 20));
    let (_, _, t) = token(&mut c, from, 300_000, 0, 1 << 20);
    volume.set_user_quota(&other, u64::MAX, 7 << 19).unwrap();
    let to = c.open(want("to")).id;
    assert_eq!(write_by(&mut c, to, 0, 1 << 20, 0, &t), Ok(1 << 20));
    assert_eq!(volume.user_quota(&other).unwrap().unwrap().used_bytes, 3 << 20, "two files and the token");
    assert_eq!(write_by(&mut c, to, 1 << 20, 1 << 20, 0, &t), Err(NtStatus::DISK_FULL));
    assert!(volume.check(false).unwrap().is_clean());
}

/// `CopyOffload_CopyContentWithinSameFile`
#[test]
fn a_token_within_one_file() {
    let (_lab, volumes, mut c) = on_volumes();
    let mut data = bytes(6, 400_000);
    let f = fill(&mut c, "file", &data);
    let (_, _, t) = token(&mut c, f, 0, 0, 262_144);
    // Over part of what was read: the token has it as it was.
    assert_eq!(write_by(&mut c, f, 131_072, 262_144, 0, &t), Ok(262_144));
    data.copy_within(0..262_144, 131_072);
    assert!(all(&mut c, f, 400_000) == data);
    shared(&volumes[0]);
}

#[test]
fn tokens_end_and_belong_to_their_user() {
    let (lab, volumes, mut c) = on_volumes();
    let from = fill(&mut c, "from", &bytes(5, 200_000));
    let to = sized(&mut c, "to", 200_000);
    let (_, _, short) = token(&mut c, from, 10_000, 0, 199_680);
    let (_, _, long) = token(&mut c, from, 0, 0, 199_680);
    assert!(shared(&volumes[0]) > 0, "held for the tokens");
    lab.pass(Duration::from_secs(11));
    assert_eq!(write_by(&mut c, to, 0, 4096, 0, &short), Err(INVALID_TOKEN));
    assert_eq!(write_by(&mut c, to, 0, 4096, 0, &long), Ok(4096));
    // Of another user, and made up.
    let mut other = lab.connect();
    other.negotiate(&Offer::up_to(Dialect::Smb311));
    other.logon(&logon(OTHER));
    other.connect(VOLUME);
    let theirs = sized(&mut other, "theirs", 8192);
    assert_eq!(write_by(&mut other, theirs, 0, 4096, 0, &long), Err(INVALID_TOKEN));
    let mut forged = long.clone();
    forged[9] ^= 1;
    assert_eq!(write_by(&mut c, to, 0, 4096, 0, &forged), Err(INVALID_TOKEN));
    lab.pass(Duration::from_secs(30));
    assert_eq!(write_by(&mut c, to, 0, 4096, 0, &long), Err(INVALID_TOKEN));
    // What only tokens held is free, and the file that shares one block with the target has that.
    assert_eq!(shared(&volumes[0]), 0);
    assert_eq!(volumes[0].check(false).unwrap().orphans, 0);
}

/// One user does not take all tokens: beyond so many, the first of his own ends.
#[test]
fn a_user_has_so_many_tokens() {
    let (lab, _volumes, mut c) = on_volumes();
    fill(&mut c, "file", &bytes(5, BLOCK));
    let mut greedy = lab.connect();
    greedy.negotiate(&Offer::up_to(Dialect::Smb311));
    greedy.logon(&logon(OTHER));
    greedy.connect(VOLUME);
    let f = greedy.open(want("mine")).id;
    greedy.write(f, 0, &bytes(6, BLOCK));
    let tokens: Vec<_> = (0..1030).map(|_| token(&mut greedy, f, 300_000, 0, BLOCK as u64).2).collect();
    let g = c.open(want("file").existing()).id;
    let mine = token(&mut c, g, 300_000, 0, BLOCK as u64).2;
    assert_eq!(write_by(&mut c, g, 0, BLOCK as u64, 0, &mine), Ok(BLOCK as u64));
    assert_eq!(write_by(&mut greedy, f, 0, BLOCK as u64, 0, &tokens[0]), Err(INVALID_TOKEN));
    assert_eq!(write_by(&mut greedy, f, 0, BLOCK as u64, 0, &tokens[1029]), Ok(BLOCK as u64));
}

/// `FsCtl_Offload_Write_File_IsOffloadSupported`. [MS-FSA] 2.1.5.10.21: only the last step looks at the token.
#[test]
fn a_token_is_looked_at_last() {
    let (_lab, _volumes, mut c) = on_volumes();
    let (to, empty) = (sized(&mut c, "to", 10_000), c.open(want("empty")).id);
    let nothing = [0; 512];
    assert_eq!(write_by(&mut c, empty, 0, 0, 0, &nothing), Ok(0), "no bytes");
    assert_eq!(write_by(&mut c, to, 1, 512, 0, &nothing), Err(INVALID), "no whole sectors");
    assert_eq!(write_by(&mut c, empty, 512, 512, 0, &nothing), Err(NtStatus::END_OF_FILE));
    assert_eq!(write_by(&mut c, empty, 0, 512, 0, &nothing), Err(INVALID_TOKEN));
    assert_eq!(write_by(&mut c, to, 4096, 512, 0, &nothing), Err(BEYOND_VDL));
    assert_eq!(write_by(&mut c, to, 0, 512, 0, &nothing), Err(INVALID_TOKEN));
}

#[test]
fn offload_is_checked() {
    let (_lab, _volumes, mut c) = on_volumes();
    let from = fill(&mut c, "from", &bytes(5, 10_000));
    let to = sized(&mut c, "to", 10_000);
    let (_, _, t) = token(&mut c, from, 0, 0, 4096);
    let read = |c: &mut Client, id, offset, len| {
        c.try_fsctl(id, fsctl::OFFLOAD_READ, &read_input(0, offset, len), 528).map(|out| out.len())
    };
    for (offset, len) in [(1, 512), (512, 1), (u64::MAX - 511, 1024)] {
        assert_eq!(read(&mut c, from, offset, len), Err(INVALID), "{offset} {len}");
    }
    assert_eq!(read(&mut c, from, 0, 0), Ok(0));
    assert_eq!(read(&mut c, from, 10_240, 512), Err(NtStatus::END_OF_FILE));
    let small = NtStatus::BUFFER_TOO_SMALL;
    assert_eq!(c.try_fsctl(from, fsctl::OFFLOAD_READ, &read_input(0, 0, 512)[..31], 528).unwrap_err(), small);
    assert_eq!(c.try_fsctl(from, fsctl::OFFLOAD_READ, &read_input(0, 0, 512), 527).unwrap_err(), small);
    let mut wrong = read_input(0, 0, 512);
    wrong[0] = 33;
    assert_eq!(c.try_fsctl(from, fsctl::OFFLOAD_READ, &wrong, 528).unwrap_err(), INVALID);
    for (offset, len, at) in [(1, 512, 0), (0, 1, 0), (0, 512, 1), (0, 512, 4096), (u64::MAX - 511, 1024, 0)] {
        assert_eq!(write_by(&mut c, to, offset, len, at, &t), Err(INVALID), "{offset} {len} {at}");
    }
    assert_eq!(write_by(&mut c, to, 0, 0, 0, &t), Ok(0));
    assert_eq!(write_by(&mut c, to, 10_240, 512, 0, &t), Err(NtStatus::END_OF_FILE));
    assert_eq!(c.try_fsctl(to, fsctl::OFFLOAD_WRITE, &write_input(0, 512, 0, &t)[..543], 16).unwrap_err(), small);
    assert_eq!(c.try_fsctl(to, fsctl::OFFLOAD_WRITE, &write_input(0, 512, 0, &t), 15).unwrap_err(), small);
    // The well-known token of zeros.
    c.write(to, 0, &[7; 10_000]);
    assert_eq!(write_by(&mut c, to, 512, 1024, 0, &zeros()), Ok(1024));
    assert_eq!(c.read(to, 0, 2048), [vec![7; 512], vec![0; 1024], vec![7; 512]].concat());
    // Directories, sparse files, and rights.
    let dir = c.open(want("dir").directory()).id;
    assert_eq!(read(&mut c, dir, 0, 512), Err(NtStatus(0xC000_A2A3)));
    assert_eq!(write_by(&mut c, dir, 0, 512, 0, &t), Err(NtStatus(0xC000_A2A4)));
    c.fsctl(to, fsctl::SET_SPARSE, &[1], 0);
    assert_eq!(read(&mut c, to, 0, 512), Err(NtStatus(0xC000_A2A3)));
    assert_eq!(write_by(&mut c, to, 0, 512, 0, &t), Err(NtStatus(0xC000_A2A4)));
    let only = c.open(want("from").existing().access(FILE_READ_ATTRIBUTES)).id;
    assert_eq!(read(&mut c, only, 0, 512), Err(NtStatus::ACCESS_DENIED));
    assert_eq!(write_by(&mut c, only, 0, 512, 0, &t), Err(NtStatus::ACCESS_DENIED));
    // Locks of others.
    let other = c.open(want("from").existing()).id;
    c.call(&lock(other, 0, &[(0, 4096, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)])).ok();
    assert_eq!(read(&mut c, from, 0, 512), Err(NtStatus::FILE_LOCK_CONFLICT));
    assert_eq!(read(&mut c, from, 4096, 512), Ok(528));
}
