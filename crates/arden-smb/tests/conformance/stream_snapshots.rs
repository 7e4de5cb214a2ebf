//! FSCTL_REFS_STREAM_SNAPSHOT_MANAGEMENT over SMB, [MS-FSA] 2.1.5.10.29: one table of the conditions in their order, and what the
//! operations do.
//!
//! `BVT_FsCtl_RefsStreamSnapshotManagement_*`, `FsCtl_RefsStreamSnapshotManagement_*`, `BVT_FsCtl_RefsStreamSnapshotOperation_*`,
//! `FsCtl_RefsStreamSnapshotOperation_*`

use arden_wire::{
    fscc::FILE_SUPPORTS_STREAM_SNAPSHOTS,
    stream_snapshot::{Operation, Request, property},
};

use crate::client::*;
use crate::quotas::{client, lab};

const CODE: u32 = fsctl::REFS_STREAM_SNAPSHOT_MANAGEMENT;
const CREATE: u32 = 1;
const LIST: u32 = 2;
const DELTAS: u32 = 3;
const REVERT: u32 = 4;
const SET_SHADOW: u32 = 5;
const CLEAR_SHADOW: u32 = 6;

/// An input buffer that says these lengths, and `bytes` after its fixed part.
fn raw(operation: u32, name_len: u16, more_len: u16, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(operation);
    out.put_u16(name_len);
    out.put_u16(more_len);
    out.put_zeros(16);
    out.extend_from_slice(bytes);
    out
}

fn status(c: &mut Client, id: FileId, input: &[u8], output_max: u32) -> NtStatus {
    c.status(&ioctl(id, CODE, input, output_max))
}

fn create(c: &mut Client, id: FileId, name: &str) -> NtStatus {
    status(c, id, &Request::encode(Operation::Create, name), 0)
}

fn revert(c: &mut Client, id: FileId, name: &str) -> NtStatus {
    status(c, id, &Request::encode(Operation::Revert, name), 0)
}

/// Status, bytes that would be required, and name, size and allocation of each.
fn listed(c: &mut Client, id: FileId, pattern: &str, max: u32) -> (NtStatus, u32, Vec<(String, u64, u64)>) {
    let reply = c.call(&ioctl(id, CODE, &Request::encode(Operation::List, pattern), max));
    let (status, out) = (reply.status(), reply.ioctl_output().to_vec());
    let (count, required) = (le_u32(&out, 0), le_u32(&out, 4));
    assert_eq!(out[8..16], [0; 8]);
    let (mut found, mut at, mut last) = (Vec::new(), 16, 0);
    for i in 0..count {
        let (next, name_len) = (le_u32(&out, at), usize::from(le_u16(&out, at + 4)));
        let created = le_u64(&out, at + 8);
        assert!(created > last, "oldest first");
        last = created;
        assert_eq!(out[at + 32..at + 48], [0; 16]);
        let name = arden_wire::cursor::utf16_string(&out[at + 48..at + 48 + name_len]).unwrap();
        found.push((name, le_u64(&out, at + 16), le_u64(&out, at + 24)));
        assert_eq!(next == 0, i + 1 == count, "of the last one alone");
        assert_eq!(next % 8, 0);
        at += next as usize;
    }
    (status, required, found)
}

fn names(c: &mut Client, id: FileId, pattern: &str) -> Vec<String> {
    let (status, _, found) = listed(c, id, pattern, 60_000);
    assert_eq!(status, NtStatus::SUCCESS);
    found.into_iter().map(|(name, ..)| name).collect()
}

/// Status, and VCN, whether there is an LCN, length and properties of each extent.
fn deltas(c: &mut Client, id: FileId, name: &str, from: i64, max: u32) -> (NtStatus, Vec<(u64, bool, u64, u32)>) {
    let input = Request::encode(Operation::QueryDeltas { from, flags: 0 }, name);
    let reply = c.call(&ioctl(id, CODE, &input, max));
    let status = reply.status();
    if status.is_error() {
        return (status, Vec::new());
    }
    let out = reply.ioctl_output();
    assert_eq!((out.len(), &out[4..16]), (16 + 32 * le_u32(out, 0) as usize, &[0; 12][..]));
    let extent = |e: &[u8]| (le_u64(e, 0), le_u64(e, 8) as i64 > 0, le_u64(e, 16), le_u32(e, 24));
    (status, out[16..].chunks(32).map(extent).collect())
}

const SMALL: NtStatus = NtStatus::BUFFER_TOO_SMALL;
const INVALID: NtStatus = NtStatus::INVALID_PARAMETER;
const DENIED: NtStatus = NtStatus::ACCESS_DENIED;
const MISSING: NtStatus = NtStatus::OBJECT_NAME_NOT_FOUND;
const BAD_NAME: NtStatus = NtStatus::OBJECT_NAME_INVALID;
const NO_IMPLEMENTATION: NtStatus = NtStatus::NOT_IMPLEMENTED;
/// All but what the condition on access asks for.
const NO_READ: u32 = ALL_ACCESS & !FILE_READ_ATTRIBUTES;
const NO_WRITE: u32 = ALL_ACCESS & !FILE_WRITE_ATTRIBUTES;
const NO_DATA: u32 = ALL_ACCESS & !FILE_WRITE_DATA;

/// The condition of [MS-FSA] 2.1.5.10.29 that a request breaks, and further ones that come after it; length of the output buffer,
/// granted access, and the status. The file has the snapshot "s".
fn rows() -> Vec<(&'static str, Vec<u8>, u32, u32, NtStatus)> {
    let s = [b's', 0, 0, 0, 0, 0, 0, 0];
    let with_s = |more: &[u8]| [&s[..], more].concat();
    let start = [0; 16];
    let negative = (-1i64).to_le_bytes();
    let flags = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let lone = [0x00, 0xD8];
    vec![
        // Lengths, before anything else is looked at.
        ("shorter than its fixed part", raw(CREATE, 2, 0, &[])[..23].to_vec(), 0, NO_WRITE, SMALL),
        ("nothing at all", vec![], 0, NO_WRITE, SMALL),
        ("shorter than its name, of no operation", raw(0, 4, 0, &s[..2]), 0, NO_WRITE, SMALL),
        ("shorter than name, padding and structure", raw(CREATE, 4, 4, &[0; 8]), 0, NO_WRITE, SMALL),
        ("a structure without its padding", raw(DELTAS, 2, 16, &[0; 18]), 4096, NO_READ, SMALL),
        // The operation.
        ("INVALID", raw(0, 3, 0, &s), 0, NO_WRITE, INVALID),
        ("behind MAX", raw(7, 2, 0, &s), 0, NO_WRITE, INVALID),
        // Alignment.
        ("an odd name", raw(CREATE, 3, 0, &s), 0, NO_WRITE, INVALID),
        ("an odd structure", raw(DELTAS, 2, 15, &with_s(&start)), 4096, NO_READ, INVALID),
        // What each operation takes.
        ("CREATE without a name", raw(CREATE, 0, 8, &s), 0, NO_WRITE, INVALID),
        ("CREATE with a structure", raw(CREATE, 2, 8, &with_s(&s)), 0, NO_WRITE, INVALID),
        ("CREATE with an output buffer", raw(CREATE, 2, 0, &s), 1, NO_WRITE, INVALID),
        ("LIST without a name", raw(LIST, 0, 8, &s), 4096, NO_READ, INVALID),
        ("LIST with a structure", raw(LIST, 2, 8, &with_s(&s)), 4096, NO_READ, INVALID),
        ("LIST with too small an output buffer", raw(LIST, 2, 0, &s), 15, NO_READ, INVALID),
        ("DELTAS without a name", raw(DELTAS, 0, 16, &start), 4096, NO_READ, INVALID),
        ("DELTAS with half a structure", raw(DELTAS, 2, 14, &with_s(&start)), 4096, NO_READ, INVALID),
        ("DELTAS with too small an output buffer", raw(DELTAS, 2, 16, &with_s(&start)), 15, NO_READ, INVALID),
        // Access, before names and what the structure says.
        ("LIST takes FILE_READ_ATTRIBUTES", raw(LIST, 2, 0, &lone), 4096, NO_READ, DENIED),
        ("DELTAS takes it", raw(DELTAS, 2, 16, &with_s(&flags)), 4096, NO_READ, DENIED),
        ("CREATE takes FILE_WRITE_ATTRIBUTES", raw(CREATE, 2, 0, &lone), 0, NO_WRITE, DENIED),
        ("SET_SHADOW_BTREE takes it", raw(SET_SHADOW, 2, 0, &s), 0, NO_WRITE, DENIED),
        ("CLEAR_SHADOW_BTREE takes it", raw(CLEAR_SHADOW, 2, 0, &s), 0, NO_WRITE, DENIED),
        ("REVERT takes it", raw(REVERT, 2, 0, &lone), 0, NO_WRITE, DENIED),
        ("REVERT takes FILE_WRITE_DATA too", raw(REVERT, 2, 0, &s), 0, NO_DATA, DENIED),
        // 2.1.5.10.29.1 to .6.
        ("CREATE, a colon", raw(CREATE, 2, 0, b":\0"), 0, ALL_ACCESS, BAD_NAME),
        (
            "CREATE, a name that is taken in other case",
            raw(CREATE, 2, 0, b"S\0"),
            0,
            ALL_ACCESS,
            NtStatus::OBJECT_NAME_COLLISION,
        ),
        ("LIST, half a character", raw(LIST, 2, 0, &lone), 16, ALL_ACCESS, NtStatus::SUCCESS),
        (
            "DELTAS to nothing",
            raw(DELTAS, 2, 16, &[&[b't', 0, 0, 0, 0, 0, 0, 0][..], &start].concat()),
            4096,
            ALL_ACCESS,
            MISSING,
        ),
        (
            "DELTAS from before the first cluster",
            raw(DELTAS, 2, 16, &with_s(&[&negative[..], &[0; 8]].concat())),
            4096,
            ALL_ACCESS,
            INVALID,
        ),
        ("DELTAS with flags", raw(DELTAS, 2, 16, &with_s(&flags)), 4096, ALL_ACCESS, INVALID),
        ("REVERT to nothing", raw(REVERT, 2, 0, b"t\0"), 0, ALL_ACCESS, MISSING),
        ("REVERT without a name", raw(REVERT, 0, 0, &[]), 0, ALL_ACCESS, MISSING),
        ("SET_SHADOW_BTREE", raw(SET_SHADOW, 2, 0, &s), 0, ALL_ACCESS, NO_IMPLEMENTATION),
        ("CLEAR_SHADOW_BTREE", raw(CLEAR_SHADOW, 0, 0, &[]), 0, ALL_ACCESS, NO_IMPLEMENTATION),
        // And what is enough.
        ("LIST", raw(LIST, 2, 0, &s), 16 + 56, FILE_READ_ATTRIBUTES, NtStatus::SUCCESS),
        ("LIST without room", raw(LIST, 2, 0, &s), 16, FILE_READ_ATTRIBUTES, NtStatus::BUFFER_OVERFLOW),
        ("DELTAS", raw(DELTAS, 2, 16, &with_s(&start)), 16, FILE_READ_ATTRIBUTES, NtStatus::SUCCESS),
        ("CREATE", raw(CREATE, 2, 0, b"u\0"), 0, FILE_WRITE_ATTRIBUTES, NtStatus::SUCCESS),
        ("REVERT", raw(REVERT, 2, 0, b"u\0"), 0, FILE_WRITE_ATTRIBUTES | FILE_WRITE_DATA, NtStatus::SUCCESS),
    ]
}

#[test]
fn conditions_are_looked_at_in_their_order() {
    for path in ["file", "file:stream"] {
        let (lab, _volume) = lab();
        let mut c = client(&lab, USER);
        let f = c.open(want(path));
        assert_eq!(create(&mut c, f.id, "s"), NtStatus::SUCCESS);
        for (what, input, output_max, access, expected) in rows() {
            let open = c.open(want(path).existing().access(access));
            assert_eq!(status(&mut c, open.id, &input, output_max), expected, "{path}: {what}");
            c.close(open.id);
        }
        assert_eq!(names(&mut c, f.id, "*"), ["s"], "nothing came of what was refused");
    }
}

/// Data that is there is not given to another than the stream's users; directories have none.
#[test]
fn directories_have_no_snapshots_and_their_streams_have() {
    let (lab, _volume) = lab();
    let mut c = client(&lab, USER);
    let d = c.open(want("directory").options(OPT_DIRECTORY_FILE));
    assert_eq!(create(&mut c, d.id, "s"), NtStatus::INVALID_DEVICE_REQUEST);
    let s = c.open(want("directory:stream"));
    assert_eq!(create(&mut c, s.id, "s"), NtStatus::SUCCESS);
    assert_eq!(names(&mut c, s.id, "*"), ["s"]);
    let capabilities = le_u32(&c.try_query_fs(d.id, 5, 4096).unwrap(), 0);
    assert_ne!(capabilities & FILE_SUPPORTS_STREAM_SNAPSHOTS, 0);
}

#[test]
fn a_directory_share_has_none() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER));
    c.connect("share");
    let f = c.open(want("file"));
    for input in [Request::encode(Operation::Create, "s"), vec![]] {
        assert_eq!(status(&mut c, f.id, &input, 0), NtStatus::INVALID_DEVICE_REQUEST);
    }
}

#[test]
fn snapshots_are_listed_by_pattern_as_far_as_there_is_room() {
    let (lab, _volume) = lab();
    let mut c = client(&lab, USER);
    let f = c.open(want("file"));
    assert_eq!(listed(&mut c, f.id, "*", 16), (NtStatus::SUCCESS, 16, vec![]));
    for (i, name) in ["Day 1", "day 2", "night"].into_iter().enumerate() {
        c.write(f.id, 0, &vec![b'x'; 5000 * (i + 1)]);
        assert_eq!(create(&mut c, f.id, name), NtStatus::SUCCESS);
    }
    let all = |n: usize| {
        let all = [("Day 1", 5000, 8192), ("day 2", 10_000, 12_288), ("night", 15_000, 16_384)];
        all[..n].iter().map(|(name, size, held)| ((*name).to_owned(), *size, *held)).collect::<Vec<_>>()
    };
    let required = 16 + 3 * (48 + 16);
    assert_eq!(listed(&mut c, f.id, "*", 4096), (NtStatus::SUCCESS, required, all(3)));
    assert_eq!(listed(&mut c, f.id, "*", required), (NtStatus::SUCCESS, required, all(3)));
    assert_eq!(listed(&mut c, f.id, "*", required - 1), (NtStatus::BUFFER_OVERFLOW, required, all(2)));
    assert_eq!(listed(&mut c, f.id, "*", 16), (NtStatus::BUFFER_OVERFLOW, required, vec![]));
    assert_eq!(names(&mut c, f.id, "DAY*"), ["Day 1", "day 2"]);
    assert_eq!(names(&mut c, f.id, "day ?"), ["Day 1", "day 2"]);
    assert_eq!(names(&mut c, f.id, "NIGHT"), ["night"]);
    assert_eq!(names(&mut c, f.id, "week*"), [""; 0]);
}

#[test]
fn deltas_are_what_was_written_since() {
    let (lab, volume) = lab();
    let mut c = client(&lab, USER);
    let f = c.open(want("file"));
    c.write(f.id, 0, &[1; 10 * 4096]);
    assert_eq!(create(&mut c, f.id, "s"), NtStatus::SUCCESS);
    assert_eq!(deltas(&mut c, f.id, "s", 0, 4096), (NtStatus::SUCCESS, vec![]));
    for cluster in [2, 3, 7] {
        c.write(f.id, cluster * 4096, &[2; 4096]);
    }
    let unplaced = |vcn, length| (vcn, false, length, property::STREAM_RESERVED);
    assert_eq!(deltas(&mut c, f.id, "S", 0, 4096).1, [unplaced(2, 2), unplaced(7, 1)]);
    volume.checkpoint().unwrap();
    let valid = |vcn, length| (vcn, true, length, property::VALID);
    assert_eq!(deltas(&mut c, f.id, "s", 0, 16 + 64), (NtStatus::SUCCESS, vec![valid(2, 2), valid(7, 1)]));
    assert_eq!(deltas(&mut c, f.id, "s", 0, 16 + 63), (NtStatus::BUFFER_OVERFLOW, vec![valid(2, 2)]));
    assert_eq!(deltas(&mut c, f.id, "s", 0, 16), (NtStatus::BUFFER_OVERFLOW, vec![]));
    assert_eq!(deltas(&mut c, f.id, "s", 4, 4096), (NtStatus::SUCCESS, vec![valid(7, 1)]), "where the answer went on");
    assert_eq!(deltas(&mut c, f.id, "s", i64::MAX, 4096), (NtStatus::SUCCESS, vec![]));
    c.fsctl(f.id, fsctl::SET_SPARSE, &[1], 0);
    c.fsctl(f.id, fsctl::SET_ZERO_DATA, &pair(0, 4096), 0);
    assert_eq!(deltas(&mut c, f.id, "s", 0, 4096).1[0], (0, false, 1, property::SPARSE));
}

#[test]
fn reverting_is_seen_by_all_and_goes_back_further_only() {
    let (lab, _volume) = lab();
    let (mut c, mut other) = (client(&lab, USER), client(&lab, USER));
    let f = c.open(want("file").share(7));
    let seen = other.open(want("file").existing().share(7));
    c.write(f.id, 0, b"the first text");
    assert_eq!(create(&mut c, f.id, "one"), NtStatus::SUCCESS);
    c.write(f.id, 0, &[b'2'; 9000]);
    assert_eq!(create(&mut c, f.id, "two"), NtStatus::SUCCESS);
    assert_eq!(create(&mut c, f.id, "three"), NtStatus::SUCCESS);
    // Nobody changes what somebody else has locked.
    let lock = |flags| vec![(5000u64, 1u64, flags)];
    assert_eq!(
        other.status(&self::lock(seen.id, 0, &lock(lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY))),
        NtStatus::SUCCESS
    );
    assert_eq!(revert(&mut c, f.id, "one"), NtStatus::FILE_LOCK_CONFLICT);
    assert_eq!(other.status(&self::lock(seen.id, 0, &lock(lock_flags::UNLOCK))), NtStatus::SUCCESS);
    assert_eq!(revert(&mut c, f.id, "two"), NtStatus::SUCCESS);
    assert_eq!(names(&mut other, seen.id, "*"), ["one"], "that one is gone, and those after it");
    assert_eq!(revert(&mut c, f.id, "three"), MISSING);
    c.write(f.id, 0, b"something else");
    assert_eq!(revert(&mut other, seen.id, "one"), NtStatus::SUCCESS);
    assert_eq!(c.read(f.id, 0, 100), b"the first text");
    assert_eq!(le_u64(&c.query(f.id, file_class::STANDARD), 8), 14, "EndOfFile");
    assert_eq!(names(&mut c, f.id, "*"), [""; 0]);
}

#[test]
fn a_snapshot_of_the_volume_shows_them_and_changes_none() {
    let (lab, volume) = lab();
    let mut c = client(&lab, USER);
    let f = c.open(want("file"));
    c.write(f.id, 0, &[1; 9000]);
    assert_eq!(create(&mut c, f.id, "s"), NtStatus::SUCCESS);
    c.write(f.id, 0, &[2; 4096]);
    let time = volume.create_snapshot(arden_wire::FileTime(20_000_000_000), "").unwrap().time;
    assert_eq!(revert(&mut c, f.id, "s"), NtStatus::SUCCESS);
    let path = format!("{}\\file", arden_store::name::gmt_token(time));
    let past = c.open(want(&path).existing().access(FILE_GENERIC_READ));
    assert_eq!(names(&mut c, past.id, "*"), ["s"]);
    assert_eq!(deltas(&mut c, past.id, "s", 0, 4096).1, [(0, true, 1, property::VALID)]);
    assert_eq!(create(&mut c, past.id, "t"), NtStatus::MEDIA_WRITE_PROTECTED);
    assert_eq!(revert(&mut c, past.id, "s"), NtStatus::MEDIA_WRITE_PROTECTED);
}
