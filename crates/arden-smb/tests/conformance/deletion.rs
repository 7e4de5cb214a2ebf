//! What is deleted when, by FileDispositionInformation and its Ex form, [MS-FSA] 2.1.5.15.3, 2.1.5.15.4 and 2.1.5.5; and the names of
//! one file.

use crate::client::*;

const GUID: u128 = 0xDE1_0001;
/// Flags of FileDispositionInformationEx, [MS-FSCC] 2.4.12.
const KEEP: u32 = 0;
const POSIX: u32 = 1 | 2;
const DELETE_READ_ONLY: u32 = 1 | 0x10;

fn dispose(c: &mut Client, id: FileId, flags: u32) -> NtStatus {
    c.set(id, file_class::DISPOSITION_EX, &flags.to_le_bytes())
}

#[test]
fn a_posix_deletion_is_done_by_the_handle_that_asked() {
    let lab = Lab::new();
    let mut c = lab.client();
    let open = |c: &mut Client| c.open(want("file")).id;
    let (a, b, other) = (open(&mut c), open(&mut c), open(&mut c));
    assert_eq!(dispose(&mut c, a, POSIX), NtStatus::SUCCESS);
    c.close(b);
    assert!(lab.host("file").exists());
    assert_eq!(c.fails(want("file").existing()), NtStatus::DELETE_PENDING);
    assert_eq!(dispose(&mut c, a, KEEP), NtStatus::SUCCESS);
    c.close(a);
    assert!(lab.host("file").exists());
    // Taken back once it is done: too late.
    let a = open(&mut c);
    assert_eq!(dispose(&mut c, a, POSIX), NtStatus::SUCCESS);
    c.close(a);
    assert!(!lab.host("file").exists());
    assert_eq!(dispose(&mut c, other, KEEP), NtStatus::FILE_DELETED);
    assert_eq!(c.set(other, file_class::DISPOSITION, &[0]), NtStatus::FILE_DELETED);
}

/// A crash does not forget who asked: the other persistent handle may be closed first.
#[test]
fn who_asked_for_a_posix_deletion_is_kept() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let names = ["first", "second"];
    let mut ids = Vec::new();
    for (i, name) in names.into_iter().enumerate() {
        let guid = GUID + 2 * i as u128;
        let asks = c.open(want(name).persistent(guid, 0)).id;
        let other = c.open(want(name).persistent(guid + 1, 0)).id;
        assert_eq!(dispose(&mut c, asks, POSIX), NtStatus::SUCCESS);
        ids.push((guid, asks, other));
    }
    c.disconnect();
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    for (name, (guid, asks, other)) in names.into_iter().zip(ids) {
        let asks = c.open(want(name).reconnect_persistent(asks, guid)).id;
        let other = c.open(want(name).reconnect_persistent(other, guid + 1)).id;
        let (one, two) = if name == "first" { (other, asks) } else { (asks, other) };
        c.close(one);
        assert_eq!(lab.host(name).exists(), one == other, "{name}");
        c.close(two);
        assert!(!lab.host(name).exists(), "{name}");
    }
}

/// FILE_DISPOSITION_IGNORE_READONLY_ATTRIBUTE passes the attribute over and leaves it.
#[test]
fn a_read_only_file_that_is_deleted_stays_read_only() {
    let lab = Lab::new();
    let mut c = lab.client();
    let attributes = |c: &mut Client, id| le_u32(&c.query(id, file_class::BASIC), 32);
    let f = c.open(want("file").attributes(ATTR_READONLY)).id;
    assert_eq!(c.set(f, file_class::LINK, &name_change("other", false)), NtStatus::SUCCESS);
    assert_eq!(dispose(&mut c, f, 1), NtStatus::CANNOT_DELETE);
    assert_eq!(dispose(&mut c, f, DELETE_READ_ONLY), NtStatus::SUCCESS);
    assert_eq!(dispose(&mut c, f, KEEP), NtStatus::SUCCESS);
    assert_ne!(attributes(&mut c, f) & ATTR_READONLY, 0);
    assert_eq!(dispose(&mut c, f, DELETE_READ_ONLY | POSIX), NtStatus::SUCCESS);
    c.close(f);
    assert!(!lab.host("file").exists());
    let some = DELETE | FILE_READ_ATTRIBUTES | FILE_WRITE_ATTRIBUTES;
    let other = c.open(want("other").existing().access(some)).id;
    assert_ne!(attributes(&mut c, other) & ATTR_READONLY, 0);
    assert_eq!(dispose(&mut c, other, DELETE_READ_ONLY), NtStatus::SUCCESS);
    c.close(other);
    assert!(!lab.host("other").exists());
}

/// [MS-FSA] 2.1.5.15.12: another name of the same file (TargetExistsSameFile) is no collision; the one that was renamed goes.
#[test]
fn a_rename_onto_another_name_of_the_file_takes_the_old_one_away() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put("other", b"");
    let f = c.open(want("file")).id;
    assert_eq!(c.set(f, file_class::LINK, &name_change("link", false)), NtStatus::SUCCESS);
    assert_eq!(c.set(f, file_class::LINK, &name_change("link", false)), NtStatus::OBJECT_NAME_COLLISION);
    assert_eq!(c.rename(f, "other", false), NtStatus::OBJECT_NAME_COLLISION);
    assert_eq!(c.rename(f, "link", false), NtStatus::SUCCESS);
    assert!(!lab.host("file").exists() && lab.host("link").exists());
    assert_eq!(le_u32(&c.query(f, file_class::STANDARD), 16), 1, "NumberOfLinks");
    assert_eq!(c.rename(f, "LINK", false), NtStatus::SUCCESS);
    assert_eq!(c.set(f, file_class::LINK, &name_change("file", false)), NtStatus::SUCCESS);
    assert_eq!(c.rename(f, "FILE", false), NtStatus::SUCCESS);
    assert!(!lab.host("LINK").exists() && !lab.host("file").exists() && lab.host("FILE").exists());
}

/// [MS-FSA] 2.1.5.5 phase 3: a name goes with its own last open; the other names of the file are not concerned.
#[test]
fn the_deletion_of_a_name_concerns_no_other_name_of_the_file() {
    for flags in [1, POSIX] {
        let lab = Lab::new();
        let mut c = lab.client();
        let one = c.open(want("one")).id;
        assert_eq!(c.set(one, file_class::LINK, &name_change("two", false)), NtStatus::SUCCESS);
        let two = c.open(want("two").existing()).id;
        assert_eq!(dispose(&mut c, one, flags), NtStatus::SUCCESS);
        assert_eq!(c.fails(want("one").existing()), NtStatus::DELETE_PENDING);
        let again = c.open(want("two").existing()).id;
        c.close(again);
        c.close(one);
        assert!(!lab.host("one").exists() && lab.host("two").exists());
        assert_eq!(c.query(two, file_class::STANDARD)[16..21], [1, 0, 0, 0, 0], "NumberOfLinks and DeletePending");
        assert_eq!(c.set(two, file_class::LINK, &name_change("one", false)), NtStatus::SUCCESS);
        assert_eq!(c.rename(two, "three", false), NtStatus::SUCCESS);
        assert_eq!(c.delete(two), NtStatus::SUCCESS);
        c.close(two);
        assert!(lab.host("one").exists() && !lab.host("three").exists());
    }
}

/// Each persistent handle keeps what is to become of its own name.
#[test]
fn the_deletion_of_one_of_several_names_is_kept() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let one = c.open(want("one").persistent(GUID, 0)).id;
    assert_eq!(c.set(one, file_class::LINK, &name_change("two", false)), NtStatus::SUCCESS);
    let two = c.open(want("two").existing().persistent(GUID + 1, 0)).id;
    assert_eq!(c.delete(one), NtStatus::SUCCESS);
    c.disconnect();
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    let one = c.open(want("one").reconnect_persistent(one, GUID)).id;
    let two = c.open(want("two").reconnect_persistent(two, GUID + 1)).id;
    assert_eq!(c.query(two, file_class::STANDARD)[20], 0, "DeletePending");
    c.close(one);
    assert!(!lab.host("one").exists() && lab.host("two").exists());
    c.close(two);
    assert!(lab.host("two").exists());
}
