//! Integrity of streams over SMB, [MS-FSA] 2.1.5.10.10, 2.1.5.10.33 and 2.1.5.10.34: each condition on the buffers, what one
//! request leaves for the next, and what other clients see of it.
//!
//! `FsCtl_Get_IntegrityInformation_*`, `FsCtl_Set_IntegrityInformation_*`, `FsCtl_Set_IntegrityInformationEx_*`

use crate::client::*;
use crate::quotas::{client, lab};

/// CHECKSUM_TYPE_*, [MS-FSCC] 2.3.73.
const NONE: u16 = 0;
const CRC32: u16 = 1;
const CRC64: u16 = 2;
const UNCHANGED: u16 = 0xFFFF;

fn buffer(algorithm: u16, flags: u32) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u16(algorithm);
    out.put_u16(0);
    out.put_u32(flags);
    out
}

fn buffer_ex(enable: u8, keep: u8, flags: u32, version: u8) -> Vec<u8> {
    let mut out = vec![enable, keep, 0, 0];
    out.put_u32(flags);
    out.put_u8(version);
    out.put_zeros(7);
    out
}

/// Algorithm and flags.
#[track_caller]
fn told(c: &mut Client, id: FileId) -> (u16, u32) {
    let out = c.fsctl(id, fsctl::GET_INTEGRITY_INFORMATION, &[], 16);
    assert_eq!((out.len(), le_u16(&out, 2), le_u32(&out, 8), le_u32(&out, 12)), (16, 0, 4096, 4096));
    (le_u16(&out, 0), le_u32(&out, 4))
}

fn set(c: &mut Client, id: FileId, algorithm: u16, flags: u32) -> Result<Vec<u8>, NtStatus> {
    c.try_fsctl(id, fsctl::SET_INTEGRITY_INFORMATION, &buffer(algorithm, flags), 0)
}

fn set_ex(c: &mut Client, id: FileId, enable: u8, keep: u8, flags: u32) -> Result<Vec<u8>, NtStatus> {
    c.try_fsctl(id, fsctl::SET_INTEGRITY_INFORMATION_EX, &buffer_ex(enable, keep, flags, 1), 0)
}

/// A file, a directory, and a stream, none of which has it set.
fn each(run: impl Fn(&mut Client, FileId)) {
    for path in ["file", "directory", "file:stream"] {
        let (lab, _volume) = lab();
        let mut c = client(&lab, USER);
        let options = if path == "directory" { OPT_DIRECTORY_FILE } else { 0 };
        let f = c.open(want(path).options(options));
        run(&mut c, f.id);
    }
}

const REFUSED: Result<Vec<u8>, NtStatus> = Err(NtStatus::INVALID_PARAMETER);
const DONE: Result<Vec<u8>, NtStatus> = Ok(Vec::new());

#[test]
fn buffers_that_are_short_or_say_what_is_not_defined() {
    each(|c, id| {
        assert_eq!(c.try_fsctl(id, fsctl::GET_INTEGRITY_INFORMATION, &[], 15), REFUSED);
        let short = &buffer(CRC64, 0)[..7];
        assert_eq!(c.try_fsctl(id, fsctl::SET_INTEGRITY_INFORMATION, short, 0), REFUSED);
        let short = &buffer_ex(1, 0, 0, 1)[..15];
        assert_eq!(c.try_fsctl(id, fsctl::SET_INTEGRITY_INFORMATION_EX, short, 0), REFUSED);
        for version in [0, 2] {
            let input = buffer_ex(1, 0, 0, version);
            assert_eq!(c.try_fsctl(id, fsctl::SET_INTEGRITY_INFORMATION_EX, &input, 0), REFUSED);
        }
        // A flag, but not the one that there is.
        assert_eq!(set(c, id, CRC64, 2), REFUSED);
        assert_eq!(set_ex(c, id, 1, 0, 2), REFUSED);
        assert_eq!(told(c, id), (NONE, 0));
    });
}

/// `FsCtl_Set_IntegrityInformation_File_UndefinedChecksumAlgorithm`,
/// `FsCtl_Set_IntegrityInformation_Dir_UndefinedChecksumAlgorithm`. [MS-FSCC] 2.3.73 for ReFS v2.
#[test]
fn an_algorithm_that_is_not_defined_means_the_one_that_there_is() {
    each(|c, id| {
        for algorithm in [3, 0xFFFE] {
            assert_eq!(set(c, id, algorithm, 1), DONE);
            assert_eq!(told(c, id), (CRC64, 1));
            assert_eq!(set(c, id, algorithm, 2), REFUSED, "a flag that is not defined");
            assert_eq!(set(c, id, algorithm, 0), DONE);
            assert_eq!(told(c, id), (CRC64, 0));
            assert_eq!(set(c, id, NONE, 0), DONE);
        }
    });
}

#[test]
fn enforcement_is_of_streams_that_have_integrity() {
    each(|c, id| {
        assert_eq!(set(c, id, NONE, 1), REFUSED);
        assert_eq!(set(c, id, UNCHANGED, 1), REFUSED);
        assert_eq!(set_ex(c, id, 0, 0, 1), REFUSED);
        assert_eq!(set_ex(c, id, 0, 1, 1), REFUSED);
        assert_eq!(set(c, id, CRC32, 0), DONE);
        assert_eq!(told(c, id), (CRC64, 0), "what it is, not what was asked for");
        assert_eq!(set(c, id, UNCHANGED, 1), DONE);
        assert_eq!(told(c, id), (CRC64, 1));
        assert_eq!(set(c, id, UNCHANGED, 0), DONE);
        assert_eq!(told(c, id), (CRC64, 0));
        assert_eq!(set_ex(c, id, 0, 1, 1), DONE);
        assert_eq!(told(c, id), (CRC64, 1));
        assert_eq!(set_ex(c, id, 0, 0, 1), REFUSED);
        assert_eq!(set_ex(c, id, 0, 0, 0), DONE);
        assert_eq!(told(c, id), (NONE, 0));
        assert_eq!(set(c, id, UNCHANGED, 0), DONE);
        assert_eq!(told(c, id), (NONE, 0));
        assert_eq!(set_ex(c, id, 1, 0, 1), DONE);
        assert_eq!(told(c, id), (CRC64, 1));
        assert_eq!(set(c, id, NONE, 0), DONE);
        assert_eq!(told(c, id), (NONE, 0));
    });
}

/// FILE_ATTRIBUTE_INTEGRITY_STREAM wherever attributes are shown, and FILE_SUPPORT_INTEGRITY_STREAMS of the volume.
#[test]
fn integrity_is_an_attribute() {
    let (lab, _volume) = lab();
    let mut c = client(&lab, USER);
    let f = c.open(want("asked").attributes(ATTR_INTEGRITY_STREAM));
    assert_eq!(told(&mut c, f.id), (CRC64, 0));
    let attributes = |c: &mut Client, id: FileId| le_u32(&c.query(id, 4), 32);
    assert_eq!(attributes(&mut c, f.id), ATTR_ARCHIVE | ATTR_INTEGRITY_STREAM);
    c.close(f.id);
    let f = c.open(want("asked").existing());
    assert_eq!(f.attributes, ATTR_ARCHIVE | ATTR_INTEGRITY_STREAM, "of CREATE's answer");
    // It cannot be taken away with other attributes, nor given.
    assert_eq!(set(&mut c, f.id, NONE, 0), DONE);
    assert_eq!(attributes(&mut c, f.id), ATTR_ARCHIVE);
    let d = c.open(want("directory").options(OPT_DIRECTORY_FILE));
    assert_eq!(set(&mut c, d.id, CRC64, 1), DONE);
    let below = c.open(want("directory\\below"));
    assert_eq!(told(&mut c, below.id), (CRC64, 1), "inherited");
    let capabilities = le_u32(&c.try_query_fs(d.id, 5, 4096).unwrap(), 0);
    assert_ne!(capabilities & arden_wire::fscc::FILE_SUPPORT_INTEGRITY_STREAMS, 0);
}

#[test]
fn what_was_set_on_a_snapshot_is_refused() {
    let (lab, volume) = lab();
    let mut c = client(&lab, USER);
    let f = c.open(want("file"));
    set(&mut c, f.id, CRC64, 0).unwrap();
    c.close(f.id);
    let time = volume.create_snapshot(arden_wire::FileTime(20_000_000_000), "").unwrap().time;
    let path = format!("{}\\file", arden_store::name::gmt_token(time));
    let past = c.open(want(&path).existing().access(FILE_GENERIC_READ));
    assert_eq!(told(&mut c, past.id), (CRC64, 0));
    assert!(set(&mut c, past.id, NONE, 0).is_err());
    assert!(set_ex(&mut c, past.id, 0, 0, 0).is_err());
    assert_eq!(told(&mut c, past.id), (CRC64, 0));
}
