//! Names with surrogates that have no partner, which Windows takes. `arden_wire::names` says how they are text: U+10D83D
//! stands for the unit D83D.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use arden_wire::FileTime;

use crate::{
    client::*,
    snapshots::{VOLUME, on_volumes},
};

const HIGH: &str = "\u{10D83D}";
const LOW: &str = "\u{10DE00}";
const FACE: &str = "\u{1F600}";
/// Not a surrogate, but the private character that stands for one: as a name it is the units of its own pair.
const PRIVATE: [u16; 2] = [0xDBF6, 0xDC3D];

fn bytes(units: &[u16]) -> Vec<u8> {
    units.iter().flat_map(|unit| unit.to_le_bytes()).collect()
}

/// Of a directory and of a volume: two clients.
fn on_both(test: impl Fn(&str, &mut Client, &mut Client)) {
    let lab = Lab::new();
    test("directory", &mut lab.client(), &mut lab.client());
    let (lab, volumes, mut c) = on_volumes();
    let mut other = lab.client();
    other.connect(VOLUME);
    test("volume", &mut c, &mut other);
    assert!(volumes[0].check(false).unwrap().is_clean());
}

#[test]
fn halves_of_a_pair_are_names() {
    on_both(|store, c, _| {
        for units in [&[0xD83D][..], &[0xDE00], &[0xD83D, 0xDE00], &PRIVATE, &[0x61, 0xD83D, 0x62]] {
            c.call(&want("").req_named(&bytes(units))).ok();
        }
        c.put(HIGH, b"high");
        let root = c.open(want("").directory()).id;
        let private: String = PRIVATE.map(|unit| char::from_u32(0x10_0000 + u32::from(unit)).unwrap()).iter().collect();
        let mut all = vec![HIGH.to_owned(), LOW.to_owned(), FACE.to_owned(), private, format!("a{HIGH}b")];
        all.sort();
        assert_eq!(c.list(root, "*"), all, "{store}");
        assert_eq!(c.list(root, HIGH), [HIGH]);
        assert_eq!(c.list(root, "a?b"), [format!("a{HIGH}b")]);
        let page = c.call(&query_directory(root, file_class::NAMES, 1, LOW, 4096)).ok();
        assert!(page.buffer().ends_with(&bytes(&[0xDE00])), "as it was asked for");
        assert_eq!(c.content(HIGH), b"high");
        assert_eq!(c.content(LOW), b"");
        // Without regard to case, and within what a name may have.
        assert_eq!(c.fails(want(&format!("A{HIGH}B")).disposition(CREATE)), NtStatus::OBJECT_NAME_COLLISION);
        if store == "volume" {
            c.put(&HIGH.repeat(255), b"x");
        }
        assert_eq!(c.fails(want(&HIGH.repeat(256))), NtStatus::OBJECT_NAME_INVALID);
    });
}

#[test]
fn a_name_with_half_a_pair_changes_and_is_told() {
    on_both(|store, c, other| {
        c.make_directory(HIGH);
        let dir = other.open(want(HIGH).directory().access(FILE_GENERIC_READ)).id;
        let told = other.send(&notify(dir, 0, 1, 4096));
        other.interim(told);
        let f = c.open(want(&format!("{HIGH}\\old{LOW}")).lease(7, "RWH")).id;
        assert_eq!(changes(other.receive(told).ok().buffer()), [(1, format!("old{LOW}"))], "{store}");
        let told = other.send(&notify(dir, 0, 1, 4096));
        other.interim(told);
        assert_eq!(c.rename(f, &format!("{HIGH}\\new{LOW}"), false), NtStatus::SUCCESS);
        let both = [(4, format!("old{LOW}")), (5, format!("new{LOW}"))];
        assert_eq!(changes(other.receive(told).ok().buffer()), both, "{store}");
        let name = c.query(f, file_class::NORMALIZED_NAME);
        let expected: Vec<u16> = [&[0xD83D, 0x5C][..], &[0x6E, 0x65, 0x77], &[0xDE00]].concat();
        assert_eq!(name[4..], bytes(&expected), "{store}");
        // The lease is that of the file, however its name is spelled.
        let waiting = other.starts(want(&format!("{HIGH}\\NEW{LOW}")).existing());
        assert_eq!(c.lease_break(), ("RWH".into(), "RH".into(), true));
        c.call(&lease_ack(7, "RH")).ok();
        other.opened(waiting);
        // A stream, too.
        c.put(&format!("{HIGH}\\new{LOW}:s{HIGH}"), b"stream");
        assert_eq!(c.content(&format!("{HIGH}\\new{LOW}:S{HIGH}")), b"stream");
        let streams = c.query(f, file_class::STREAM);
        let name = bytes(&[0x3A, 0x73, 0xD83D, 0x3A]);
        assert!(streams.windows(name.len()).any(|part| part == name), "{store}");
        c.open(want(&format!("{HIGH}\\new{LOW}")).existing().delete_on_close());
    });
}

/// As three bytes for each half, and as UTF-8 where the two meet.
#[test]
fn half_a_pair_in_a_linux_directory() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put(&format!("a{HIGH}"), b"x");
    c.put(FACE, b"face");
    let on_disk = lab.host("").join(std::ffi::OsStr::from_bytes(b"a\xED\xA0\xBD"));
    assert_eq!(std::fs::read(&on_disk).unwrap(), b"x");
    assert_eq!(std::fs::read(lab.host(FACE)).unwrap(), b"face");
    // Made by others. The last is no name: it would be that of another file.
    for name in [&b"b\xED\xB8\x80"[..], b"\xF4\x8D\xA0\xBD", b"c\xED\xA0\xBD\xED\xB8\x80"] {
        std::fs::write(lab.host("").join(std::ffi::OsString::from_vec(name.to_vec())), b"theirs").unwrap();
    }
    assert_eq!(c.content(&format!("B{LOW}")), b"theirs");
    let private = c.call(&want("").existing().req_named(&bytes(&PRIVATE))).ok();
    assert_eq!(c.read(Created::parse(&private).id, 0, 10), b"theirs");
    let root = c.open(want("").directory()).id;
    assert_eq!(c.list(root, "*").len(), 4);
    assert_eq!(c.fails(want(&format!("c{FACE}")).existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
    std::fs::remove_file(on_disk).unwrap();
    assert_eq!(c.fails(want(&format!("a{HIGH}")).existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
}

#[test]
fn half_a_pair_in_a_snapshot_and_behind_a_handle_that_is_kept() {
    let (_lab, volumes, mut c) = on_volumes();
    c.put(HIGH, b"then");
    volumes[0].create_snapshot(FileTime(133_536_384_000_000_000), "").unwrap();
    c.put(HIGH, b"now!");
    let time = arden_store::name::gmt_token(FileTime(133_536_384_000_000_000));
    assert_eq!(c.content(&format!("{time}\\{HIGH}")), b"then");
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(want(LOW).persistent(9, 0));
    c.write(f.id, 0, b"kept");
    c.disconnect();
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    let back = c.open(want(LOW).reconnect_persistent(f.id, 9));
    assert_eq!(c.read(back.id, 0, 10), b"kept");
}
