//! Extended attributes: scans that go on, [MS-FSA] 2.1.5.12.12 and [MS-SMB2] 3.3.5.20.1.

use arden_wire::{fscc::parse_eas, smb2::info::ea_scan::*};

use crate::{client::*, snapshots::on_volumes};

/// Three attributes of 20 bytes each with what lies between them.
const THREE: [(&str, &[u8]); 3] = [("ONE", b"1234567"), ("TWO", b"2345678"), ("SIX", b"6789012")];

fn scan(c: &mut Client, id: FileId, (flags, index): (u32, u32), list: &[u8], max: u32) -> (NtStatus, Vec<String>) {
    let reply = c.call(&query_eas(id, flags, index, list, max));
    let status = reply.status();
    let told = matches!(status, NtStatus::SUCCESS | NtStatus::BUFFER_OVERFLOW);
    let all = if told { parse_eas(reply.buffer()).unwrap() } else { Vec::new() };
    (status, all.into_iter().map(|ea| ea.name).collect())
}

/// FILE_GET_EA_INFORMATION, a list.
fn wanted(names: &[&str]) -> Vec<u8> {
    let mut b = Vec::new();
    for (i, name) in names.iter().enumerate() {
        b.put_u32(if i + 1 < names.len() { 5 + name.len() as u32 + 1 } else { 0 });
        b.put_u8(name.len() as u8);
        b.extend_from_slice(name.as_bytes());
        b.put_u8(0);
    }
    b
}

#[test]
fn a_scan_goes_on_behind_what_was_told() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file")).id;
    assert_eq!(scan(&mut c, f, (0, 0), &[], 4096), (NtStatus::NO_EAS_ON_FILE, vec![]));
    assert_eq!(scan(&mut c, f, (INDEX_SPECIFIED, 1), &[], 4096), (NtStatus::NO_EAS_ON_FILE, vec![]));
    assert_eq!(c.set(f, file_class::FULL_EA, &eas(&THREE)), NtStatus::SUCCESS);
    let (status, all) = scan(&mut c, f, (0, 0), &[], 4096);
    assert_eq!((status, all.len()), (NtStatus::SUCCESS, 3));
    assert_eq!(scan(&mut c, f, (0, 0), &[], 4096), (NtStatus::NO_MORE_EAS, vec![]));
    // Each open has a scan of its own, and a buffer for one entry gets one after the other.
    let g = c.open(want("file").existing()).id;
    for i in 0..3 {
        let status = if i < 2 { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
        assert_eq!(scan(&mut c, g, (0, 0), &[], 24), (status, all[i..=i].to_vec()), "{i}");
        // Too little room moves nothing.
        let end = if i < 2 { NtStatus::BUFFER_TOO_SMALL } else { NtStatus::NO_MORE_EAS };
        assert_eq!(scan(&mut c, g, (0, 0), &[], 8), (end, vec![]), "{i}");
    }
    assert_eq!(scan(&mut c, g, (0, 0), &[], 24), (NtStatus::NO_MORE_EAS, vec![]));
    assert_eq!(scan(&mut c, g, (RESTART_SCAN, 0), &[], 24), (NtStatus::BUFFER_OVERFLOW, all[..1].to_vec()));
    assert_eq!(scan(&mut c, g, (RETURN_SINGLE_ENTRY, 0), &[], 4096), (NtStatus::SUCCESS, all[1..2].to_vec()));
    assert_eq!(scan(&mut c, g, (0, 0), &[], 4096), (NtStatus::SUCCESS, all[2..].to_vec()));
}

#[test]
fn indexes_and_lists_leave_the_scan_where_it_is() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file")).id;
    assert_eq!(c.set(f, file_class::FULL_EA, &eas(&THREE)), NtStatus::SUCCESS);
    let (_, all) = scan(&mut c, f, (RESTART_SCAN, 0), &[], 4096);
    assert_eq!(scan(&mut c, f, (RESTART_SCAN, 0), &[], 24), (NtStatus::BUFFER_OVERFLOW, all[..1].to_vec()));
    for restart in [0, RESTART_SCAN] {
        let at = |index, flags| (INDEX_SPECIFIED | restart | flags, index);
        assert_eq!(scan(&mut c, f, at(3, 0), &[], 4096), (NtStatus::SUCCESS, all[2..].to_vec()));
        assert_eq!(scan(&mut c, f, at(1, 0), &[], 24), (NtStatus::BUFFER_OVERFLOW, all[..1].to_vec()));
        assert_eq!(scan(&mut c, f, at(2, RETURN_SINGLE_ENTRY), &[], 4096), (NtStatus::SUCCESS, all[1..2].to_vec()));
        for outside in [0, 4, u32::MAX] {
            assert_eq!(scan(&mut c, f, at(outside, 0), &[], 4096), (NtStatus::NONEXISTENT_EA_ENTRY, vec![]));
        }
        // A list counts more than an index, and tells what is not there with an empty value.
        let list = wanted(&["SIX", "NONE", "ONE"]);
        let names = ["SIX", "NONE", "ONE"].map(String::from);
        assert_eq!(scan(&mut c, f, at(9, 0), &list, 4096), (NtStatus::SUCCESS, names.to_vec()));
        assert_eq!(scan(&mut c, f, at(9, RETURN_SINGLE_ENTRY), &list, 4096), (NtStatus::SUCCESS, names[..1].to_vec()));
        assert_eq!(scan(&mut c, f, at(9, 0), &list, 24), (NtStatus::BUFFER_OVERFLOW, names[..1].to_vec()));
    }
    assert_eq!(scan(&mut c, f, (0, 0), &[], 4096), (NtStatus::SUCCESS, all[1..].to_vec()));
}

/// FILE_NEED_EA and FILE_NO_EA_KNOWLEDGE, [MS-SMB2] 2.2.13 and [MS-FSA] 2.1.5.1.2. A directory of Linux keeps no such flag.
#[test]
fn who_knows_no_attributes_opens_nothing_that_needs_one() {
    let (_lab, _volumes, mut c) = on_volumes();
    let unaware = |path: &str| want(path).options(OPT_NO_EA_KNOWLEDGE);
    for w in [want("file"), want("directory").directory()] {
        let path = w.name.clone();
        let f = c.open(w).id;
        let needed = |flags, value: &[u8]| {
            let mut list = eas(&[("PLAIN", b"x"), ("NEEDED", value)]);
            let second = le_u32(&list, 0) as usize;
            list[second + 4] = flags;
            list
        };
        assert_eq!(c.set(f, file_class::FULL_EA, &needed(0, b"value")), NtStatus::SUCCESS);
        c.open(unaware(&path).existing());
        assert_eq!(c.set(f, file_class::FULL_EA, &needed(0x80, b"value")), NtStatus::SUCCESS);
        assert_eq!(c.fails(unaware(&path).existing()), NtStatus::ACCESS_DENIED, "{path}");
        c.open(want(&path).existing());
        c.open(unaware(&format!("{path}:stream")));
        assert_eq!(c.set(f, file_class::FULL_EA, &needed(0, b"")), NtStatus::SUCCESS);
        c.open(unaware(&path).existing());
    }
    let with = |path: &str| want(path).context(tag::EA_BUFFER, eas(&[("NAME", b"value")]));
    assert_eq!(c.fails(with("new").options(OPT_NO_EA_KNOWLEDGE)), NtStatus::ACCESS_DENIED);
    assert_eq!(c.fails(want("new").existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
    c.open(with("new"));
}

/// [MS-FSA] 2.1.5.15.6. The other way round a client may: it makes special files of Linux so.
#[test]
fn reparse_points_take_no_attributes() {
    let lab = Lab::new();
    let (_volume_lab, _volumes, on_volume) = on_volumes();
    for mut c in [lab.client(), on_volume] {
        let f = c.open(want("file")).id;
        assert_eq!(c.set(f, file_class::FULL_EA, &eas(&[("BEFORE", b"x")])), NtStatus::SUCCESS);
        let point = [&0x8000_0BADu32.to_le_bytes()[..], &[0; 4]].concat();
        c.fsctl(f, fsctl::SET_REPARSE_POINT, &point, 0);
        for list in [eas(&[("NAME", b"x")]), eas(&[("BEFORE", b"")])] {
            assert_eq!(c.set(f, file_class::FULL_EA, &list), NtStatus::EAS_NOT_SUPPORTED);
        }
        let (status, names) = scan(&mut c, f, (0, 0), &[], 4096);
        assert_eq!((status, names), (NtStatus::SUCCESS, vec!["BEFORE".to_string()]));
        c.fsctl(f, fsctl::DELETE_REPARSE_POINT, &point, 0);
        assert_eq!(c.set(f, file_class::FULL_EA, &eas(&[("NAME", b"x")])), NtStatus::SUCCESS);
    }
}
