//! The valid-data length as clients see it, [MS-FSA] 2.1.5.15.15 and [MS-FSCC] 2.4.50, on a directory and on a volume.

use crate::{
    client::*,
    offload::{BEYOND_VDL, all, sized, token, write_by},
    snapshots::{VOLUME, on_volumes},
};

const INVALID: NtStatus = NtStatus::INVALID_PARAMETER;
const LEN: usize = 1 << 20;

fn set(c: &mut Client, id: FileId, length: u64) -> NtStatus {
    c.set(id, file_class::VALID_DATA_LENGTH, &length.to_le_bytes())
}

/// `length` is all that is valid: less is refused.
fn is(c: &mut Client, id: FileId, length: u64) -> bool {
    (length == 0 || set(c, id, length - 1) == INVALID) && set(c, id, length) == NtStatus::SUCCESS
}

fn on_both(check: impl Fn(&mut Client)) {
    let (lab, _volumes, mut c) = on_volumes();
    check(&mut lab.client());
    c.connect(VOLUME);
    check(&mut c);
}

#[test]
fn between_what_was_written_and_the_end() {
    on_both(|c| {
        let f = sized(c, "file", LEN as u64);
        assert!(is(c, f, 0));
        c.write(f, 1000, &[1; 100]);
        assert!(is(c, f, 1100));
        c.write(f, 0, &[1; 100]);
        assert!(is(c, f, 1100));
        for more in [LEN as u64 + 1, u64::MAX, i64::MAX as u64] {
            assert_eq!(set(c, f, more), INVALID);
        }
        assert_eq!(c.set(f, file_class::VALID_DATA_LENGTH, &[0; 7]), NtStatus::INFO_LENGTH_MISMATCH);
        // What is said to be valid is zeros, and stays said.
        assert_eq!(set(c, f, 500_000), NtStatus::SUCCESS);
        assert!(is(c, f, 500_000));
        let data = all(c, f, LEN);
        assert!(data[..100] == [1; 100] && data[1000..1100] == [1; 100]);
        assert_eq!(data.iter().filter(|b| **b != 0).count(), 200);
        // A file of as many bytes as were written is valid as a whole; one that grew is not.
        assert_eq!(c.set(f, file_class::END_OF_FILE, &4096u64.to_le_bytes()), NtStatus::SUCCESS);
        assert!(is(c, f, 4096));
        assert_eq!(c.set(f, file_class::END_OF_FILE, &8192u64.to_le_bytes()), NtStatus::SUCCESS);
        assert!(is(c, f, 4096));
        c.write(f, 8192, b"more");
        assert!(is(c, f, 8196));
        // Zeros that begin in valid data are valid as far as one step of them goes, [MS-FSA] 2.1.5.10.39.
        let g = sized(c, "zeros", LEN as u64);
        c.write(g, 0, &[1; 100]);
        c.fsctl(g, fsctl::SET_ZERO_DATA, &pair(50, 60_000), 0);
        assert!(is(c, g, 60_000));
        c.fsctl(g, fsctl::SET_ZERO_DATA, &pair(50, LEN as u64), 0);
        assert!(is(c, g, 0x40000));
        // A copy by the server is data.
        let h = sized(c, "copy", LEN as u64);
        let key = c.fsctl(g, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32);
        c.fsctl(h, fsctl::SRV_COPYCHUNK, &copy_chunks(&key[..24], &[(0, 10_000, 5000)]), 12);
        assert!(is(c, h, 15_000));
        // Sparse files have none.
        c.fsctl(g, fsctl::SET_SPARSE, &[1], 0);
        assert_eq!(set(c, g, LEN as u64), INVALID);
    });
}

#[test]
fn of_streams_and_directories() {
    on_both(|c| {
        for name in ["file", "dir"] {
            if name == "dir" {
                c.make_directory(name);
            }
            let f = sized(c, &format!("{name}:stream"), 5000);
            c.write(f, 0, &[1; 100]);
            assert!(is(c, f, 100));
        }
        let dir = c.open(want("dir").directory()).id;
        assert_eq!(set(c, dir, 0), INVALID);
        let reader = c.open(want("file").existing().access(GENERIC_READ)).id;
        assert_eq!(set(c, reader, 0), NtStatus::ACCESS_DENIED);
    });
}

#[test]
fn forgotten_with_the_last_close() {
    on_both(|c| {
        let f = sized(c, "file", LEN as u64);
        let again = c.open(want("file").existing()).id;
        c.close(f);
        assert!(is(c, again, 0));
        c.close(again);
        let later = c.open(want("file").existing()).id;
        assert!(is(c, later, LEN as u64));
        assert!(all(c, later, LEN).iter().all(|b| *b == 0));
    });
}

/// [MS-FSA] 2.1.5.10.20 and .21: behind the valid data is the token of zeros, and nothing is written there by token.
#[test]
fn copy_offload_ends_with_the_valid_data() {
    let (_lab, volumes, mut c) = on_volumes();
    let from = sized(&mut c, "from", LEN as u64);
    c.write(from, 0, &[1; 10_000]);
    let (flags, transferred, zeros) = token(&mut c, from, 0, 10_240, 1 << 30);
    assert_eq!((flags, transferred), (1, LEN as u64 - 10_240));
    assert_eq!(zeros[..4], [0xFF, 0xFF, 0, 1]);
    let (flags, transferred, data) = token(&mut c, from, 0, 512, 1 << 30);
    assert_eq!((flags, transferred), (1, 9728), "the valid data in whole sectors");
    let (flags, transferred, _) = token(&mut c, from, 0, 0, 4096);
    assert_eq!((flags, transferred), (0, 4096));
    let to = sized(&mut c, "to", LEN as u64);
    assert_eq!(write_by(&mut c, to, 512, 9728, 0, &data), Err(BEYOND_VDL));
    assert_eq!(write_by(&mut c, to, 0, 9728, 0, &data), Ok(9728));
    assert!(is(&mut c, to, 9728));
    assert_eq!(write_by(&mut c, to, 9728, 4096, 0, &zeros), Ok(4096));
    assert!(is(&mut c, to, 13_824));
    let got = all(&mut c, to, LEN);
    assert!(got[..9488] == [1; 9488] && got[9488..].iter().all(|b| *b == 0));
    assert_eq!(volumes[0].check(true).unwrap().errors, Vec::<String>::new());
}
