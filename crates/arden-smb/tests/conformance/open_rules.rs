//! Names and attributes when opening, [MS-FSA] 2.1.5.1.

use crate::client::*;

/// `CreateDirectory_EndWithBackSlash`
#[test]
fn create_directory_end_with_back_slash() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(want("dir\\").directory().disposition(CREATE));
    assert!(lab.host("dir").is_dir());
}
/// `CreateFile_EndWithInvalidBackSlash`
#[test]
fn create_file_end_with_invalid_back_slash() {
    let lab = Lab::new();
    let mut c = lab.client();
    let w = want("file\\").options(OPT_NON_DIRECTORY_FILE).disposition(CREATE);
    assert_eq!(c.fails(w), NtStatus::OBJECT_NAME_INVALID);
}
/// `CreateFile_WithDoubleBackSlashInMiddle`
#[test]
fn create_file_with_double_back_slash_in_middle() {
    let lab = Lab::new();
    let mut c = lab.client();
    let w = want("some\\\\file").options(OPT_NON_DIRECTORY_FILE).disposition(CREATE);
    assert_eq!(c.fails(w), NtStatus::OBJECT_PATH_NOT_FOUND);
}
/// `CreateDirectory_InvalidColon`, `CreateFile_InvalidColon`
#[test]
fn create_invalid_colon() {
    let lab = Lab::new();
    let mut c = lab.client();
    for options in [OPT_DIRECTORY_FILE, OPT_NON_DIRECTORY_FILE] {
        let w = want("name:").options(options).disposition(CREATE);
        assert_eq!(c.fails(w), NtStatus::OBJECT_NAME_INVALID);
    }
}
/// `CreateFile_InvalidStreamName`
#[test]
fn create_file_invalid_stream_name() {
    let lab = Lab::new();
    let mut c = lab.client();
    let w = want("file:stream:$INDEX_ALLOCATION").directory().disposition(CREATE);
    assert_eq!(c.fails(w), NtStatus::INVALID_PARAMETER);
}

fn read_only(c: &mut Client) {
    let f = c.open(want("file").attributes(ATTR_READONLY).disposition(CREATE));
    c.close(f.id);
}

/// `FileAccess_WriteReadOnlyFile`
#[test]
fn file_access_write_read_only_file() {
    let lab = Lab::new();
    let mut c = lab.client();
    read_only(&mut c);
    for access in [GENERIC_WRITE, FILE_WRITE_DATA, FILE_APPEND_DATA] {
        assert_eq!(c.fails(want("file").existing().access(access)), NtStatus::ACCESS_DENIED);
    }
    c.open(want("file").existing().access(FILE_GENERIC_READ | FILE_WRITE_ATTRIBUTES));
}
/// `FileAccess_DeleteReadOnlyDataFile`
#[test]
fn file_access_delete_read_only_data_file() {
    let lab = Lab::new();
    let mut c = lab.client();
    read_only(&mut c);
    let w = want("file").existing().access(DELETE).delete_on_close();
    assert_eq!(c.fails(w), NtStatus::CANNOT_DELETE);
    let f = c.open(want("file").existing().access(DELETE));
    assert_eq!(c.delete(f.id), NtStatus::CANNOT_DELETE);
}

#[test]
fn names_that_may_not_be() {
    let lab = Lab::new();
    let mut c = lab.client();
    for name in ["a*b", "a?b", "a<b", "a>b", "a|b", "a\"b", "a\u{1}b", "a:b:c:d"] {
        assert_eq!(c.fails(want(name)), NtStatus::OBJECT_NAME_INVALID, "{name:?}");
    }
    assert_eq!(c.fails(want(&"x".repeat(256))), NtStatus::OBJECT_NAME_INVALID);
    c.open(want(&"x".repeat(255)));
    assert!(c.status(&want("").req_named(&[b'a', 0, b'b'])).is_error());
}

#[test]
fn names_match_in_any_case_and_keep_theirs() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put("MixedCase.TXT", b"1");
    assert_eq!(c.fails(want("mixedcase.txt").disposition(CREATE)), NtStatus::OBJECT_NAME_COLLISION);
    c.open(want("MIXEDCASE.txt").existing());
    let root = c.open(want("").existing());
    assert_eq!(c.list(root.id, "*"), ["MixedCase.TXT"]);
}

#[test]
fn share_modes_exclude_each_other() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let bits = [(FILE_READ_DATA, 1), (FILE_WRITE_DATA, 2), (DELETE, 4)];
    one.put("file", b"1");
    for (access, share) in bits {
        for allowed in 0..8 {
            let f = one.open(want("file").existing().access(access).share(allowed));
            for (other_access, other_share) in bits {
                for other_allowed in [0, 7, share] {
                    let second = two.try_open(&want("file").existing().access(other_access).share(other_allowed));
                    let fits = allowed & other_share != 0 && other_allowed & share != 0;
                    assert_eq!(second.is_ok(), fits, "{access} {allowed} against {other_access} {other_allowed}");
                    match second {
                        Ok(g) => two.close(g.id),
                        Err(status) => assert_eq!(status, NtStatus::SHARING_VIOLATION),
                    }
                }
            }
            // Attributes alone conflict with nothing.
            let g = two.open(want("file").existing().access(FILE_READ_ATTRIBUTES).share(0));
            two.close(g.id);
            one.close(f.id);
        }
    }
}

#[test]
fn create_contexts_are_answered() {
    let lab = Lab::new();
    let mut c = lab.client();
    let w = want("file")
        .context(tag::MAXIMAL_ACCESS, vec![])
        .context(tag::QUERY_ON_DISK_ID, vec![])
        .context(tag::ALLOCATION_SIZE, 65_536u64.to_le_bytes().to_vec())
        .context(tag::EA_BUFFER, eas(&[("EA", b"value")]))
        .context(b"XXXX", vec![1, 2, 3]);
    let f = c.open(w);
    let max = f.context(tag::MAXIMAL_ACCESS).unwrap();
    assert_eq!((le_u32(max, 0), le_u32(max, 4)), (0, ALL_ACCESS));
    assert_eq!(f.context(tag::QUERY_ON_DISK_ID).unwrap().len(), 32);
    assert!(f.allocation >= 65_536);
    assert_eq!(f.size, 0);
    assert!(le_u32(&c.query(f.id, file_class::EA), 0) > 0);
    let old = want("file").existing().context(tag::TIMEWARP, A_LONG_TIME_AGO.to_le_bytes().to_vec());
    assert_eq!(c.fails(old), NtStatus::OBJECT_NAME_NOT_FOUND);
}

const A_LONG_TIME_AGO: u64 = 0x01C0_0000_0000_0000;

#[test]
fn a_security_descriptor_comes_with_the_create() {
    let lab = Lab::new();
    let (mut c, mut other) = (lab.client(), lab.connect());
    other.negotiate(&Offer::up_to(Dialect::Smb311));
    other.logon(&logon(OTHER));
    other.connect(SHARE);
    // An empty DACL: nobody but the owner's right to change it.
    let mut sd = vec![1, 0, 4, 0x80];
    sd.put_zeros(12);
    sd.put_u32(20);
    sd.extend_from_slice(&[2, 0, 8, 0, 0, 0, 0, 0]);
    let f = c.open(want("secret").context(tag::SD_BUFFER, sd));
    c.write(f.id, 0, b"x");
    assert_eq!(other.fails(want("secret").existing().access(FILE_READ_DATA)), NtStatus::ACCESS_DENIED);
    assert_eq!(c.fails(want("secret").existing().access(FILE_READ_DATA)), NtStatus::ACCESS_DENIED);
    c.open(want("secret").existing().access(READ_CONTROL | WRITE_DAC));
}
