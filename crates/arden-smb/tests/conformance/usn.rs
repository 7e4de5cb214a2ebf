//! The change journal of a volume over SMB: FSCTL_READ_FILE_USN_DATA, [MS-FSA] 2.1.5.10.27, and the controls of the
//! journal, which are for who manages the volume.

use crate::{
    client::*,
    quotas::{client, lab},
};

/// USN_REASON_*.
const FILE_CREATE: u32 = 0x100;
const DATA_EXTEND: u32 = 2;
const CLOSE: u32 = 0x8000_0000;

fn reading(start: u64, mask: u32, only_closed: bool, id: u64, versions: Option<(u16, u16)>) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u64(start);
    out.put_u32(mask);
    out.put_u32(u32::from(only_closed));
    out.put_zeros(16);
    out.put_u64(id);
    if let Some((min, max)) = versions {
        out.put_u16(min);
        out.put_u16(max);
        out.put_u32(0);
    }
    out
}

/// USN, reason and name of each record.
fn records(data: &[u8]) -> Vec<(u64, u32, String)> {
    let (mut out, mut at) = (Vec::new(), 8);
    while at < data.len() {
        let d = &data[at..];
        // FileReferenceNumber and ParentFileReferenceNumber are twice as long in version 3.
        let ids = if le_u16(d, 4) == 3 { 32 } else { 16 };
        let (usn, reason) = (le_u64(d, 8 + ids), le_u32(d, 24 + ids));
        let (len, offset) = (le_u16(d, 40 + ids) as usize, le_u16(d, 42 + ids) as usize);
        let name: Vec<u16> = d[offset..offset + len].chunks(2).map(|c| u16::from_le_bytes([c[0], c[1]])).collect();
        out.push((usn, reason, String::from_utf16(&name).unwrap()));
        at += le_u32(d, 0) as usize;
    }
    out
}

#[test]
fn the_journal_is_made_read_and_deleted_by_who_manages_the_volume() {
    let (lab, _) = lab();
    let mut c = client(&lab, USER);
    let root = c.open(want("").directory()).id;
    assert_eq!(c.try_fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 64), Err(NtStatus::JOURNAL_NOT_ACTIVE));
    let size = [1u64 << 20, 1 << 18].map(u64::to_le_bytes).concat();
    c.fsctl(root, fsctl::CREATE_USN_JOURNAL, &size, 0);
    let info = c.fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 80);
    let (id, first) = (le_u64(&info, 0), le_u64(&info, 8));
    assert_eq!((le_u64(&info, 40), le_u64(&info, 48), info.len()), (1 << 20, 1 << 18, 64));
    assert_eq!((le_u16(&info, 56), le_u16(&info, 58)), (2, 3));
    assert_eq!(c.fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 56).len(), 56);
    c.put("file", &[1; 100]);
    let all = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, u32::MAX, false, id, None), 4096);
    let seen: Vec<_> = records(&all).into_iter().map(|(_, reason, name)| (reason, name)).collect();
    let created = FILE_CREATE | DATA_EXTEND;
    assert_eq!(seen.first(), Some(&(FILE_CREATE, "file".to_string())), "{seen:x?}");
    let last = seen.last().unwrap().0;
    assert_eq!(last & (created | CLOSE), created | CLOSE, "{seen:x?}");
    // In version 3 the same; only what was closed; only with certain reasons; from where it ended.
    let v3 = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, u32::MAX, false, id, Some((2, 3))), 4096);
    assert_eq!(records(&v3), records(&all));
    assert_eq!(le_u16(&v3, 12), 3);
    let closed = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, u32::MAX, true, id, None), 4096);
    assert!(records(&closed).iter().all(|(_, r, _)| r & CLOSE != 0) && records(&closed).len() == 1);
    let none = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, 0x200, false, id, None), 4096);
    assert_eq!((none.len(), le_u64(&none, 0)), (8, le_u64(&all, 0)));
    let rest = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(le_u64(&all, 0), u32::MAX, false, id, None), 4096);
    assert_eq!(rest.len(), 8);
    // Where the answer is full, it says where to go on.
    let one = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, u32::MAX, false, id, None), 90);
    assert_eq!((records(&one).len(), le_u64(&one, 0)), (1, records(&all)[1].0));
    let wrong = reading(first, u32::MAX, false, id ^ 1, None);
    assert_eq!(c.try_fsctl(root, fsctl::READ_USN_JOURNAL, &wrong, 4096), Err(NtStatus::INVALID_PARAMETER));
    // Of one file, whoever has it open.
    let f = c.open(want("file")).id;
    let of = c.fsctl(f, fsctl::READ_FILE_USN_DATA, &[], 4096);
    assert_eq!((le_u16(&of, 4), le_u64(&of, 24)), (2, records(&all).last().unwrap().0));
    assert_eq!((le_u64(&of, 32), le_u32(&of, 40)), (0, 0), "no time and no reason");
    assert_eq!(le_u16(&c.fsctl(f, fsctl::READ_FILE_USN_DATA, &[2, 0, 3, 0], 4096), 4), 3);
    assert_eq!(c.try_fsctl(f, fsctl::READ_FILE_USN_DATA, &[4, 0, 5, 0], 4096), Err(NtStatus::INVALID_PARAMETER));
    assert_eq!(c.try_fsctl(f, fsctl::READ_FILE_USN_DATA, &[], 59), Err(NtStatus::BUFFER_TOO_SMALL));
    let usn = c.fsctl(f, fsctl::WRITE_USN_CLOSE_RECORD, &[], 8);
    assert!(le_u64(&usn, 0) >= le_u64(&all, 0));
    // Others may not.
    let mut other = client(&lab, OTHER);
    let its = other.open(want("").directory().access(FILE_READ_DATA | FILE_READ_ATTRIBUTES)).id;
    for code in [fsctl::QUERY_USN_JOURNAL, fsctl::CREATE_USN_JOURNAL, fsctl::READ_USN_JOURNAL] {
        assert_eq!(other.try_fsctl(its, code, &size, 4096), Err(NtStatus::ACCESS_DENIED));
    }
    let delete = [id.to_le_bytes(), 1u64.to_le_bytes()].concat();
    c.fsctl(root, fsctl::DELETE_USN_JOURNAL, &delete, 0);
    assert_eq!(c.try_fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 64), Err(NtStatus::JOURNAL_NOT_ACTIVE));
}

#[test]
fn a_directory_has_no_journal() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file")).id;
    for code in [fsctl::QUERY_USN_JOURNAL, fsctl::READ_FILE_USN_DATA, fsctl::WRITE_USN_CLOSE_RECORD] {
        assert_eq!(c.try_fsctl(f, code, &[], 4096), Err(NtStatus::INVALID_DEVICE_REQUEST));
    }
}
