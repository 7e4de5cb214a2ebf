//! Directory leases.

use crate::client::*;

fn on_directory(asked: &str) -> (Lab, Client, Created) {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("dir").directory().lease(1, asked));
    (lab, c, f)
}

/// What is granted; then a file added breaks it.
fn granted_and_broken(asked: &str, granted: &str) {
    let (lab, mut c, f) = on_directory(asked);
    assert_eq!(f.lease(), granted);
    let mut other = lab.client();
    other.open(want("dir\\new"));
    let (from, to, ack) = c.lease_break();
    assert_eq!((from.as_str(), to.as_str()), (granted, ""));
    // Only handle caching has to be given back with a word.
    assert_eq!(ack, granted.contains('H'));
    if ack {
        c.call(&lease_ack(1, "")).ok();
    }
}

/// `BVT_DirectoryLeasing_ReadWriteHandleCaching`, `DirectoryLeasing_RWHGrantedAsRH`
#[test]
fn bvt_directory_leasing_read_write_handle_caching() {
    granted_and_broken("RWH", "RH");
}
/// `DirectoryLeasing_ReadCaching`
#[test]
fn directory_leasing_read_caching() {
    granted_and_broken("R", "R");
}
/// `DirectoryLeasing_ReadWriteCaching`, `DirectoryLeasing_RWGrantedAsR`
#[test]
fn directory_leasing_read_write_caching() {
    granted_and_broken("RW", "R");
}
/// `DirectoryLeasing_ReadHandleCaching`
#[test]
fn directory_leasing_read_handle_caching() {
    granted_and_broken("RH", "RH");
}

/// `DirectoryLeasing_Negative_SMB21`, `DirectoryLeasing_Negative_SMB2002`
#[test]
fn directory_leasing_negative_old_dialects() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb202, Dialect::Smb210] {
        let mut c = lab.client_with(dialect);
        let f = c.open(want("dir").directory().lease(1, "RWH"));
        assert_eq!(f.oplock, oplock::NONE);
    }
}

/// A directory whose handle lease is breaking.
fn breaking() -> (Lab, Client, Client) {
    let (lab, mut c, _) = on_directory("RH");
    let mut other = lab.client();
    other.open(want("dir\\new"));
    assert_eq!(c.lease_break(), ("RH".into(), String::new(), true));
    (lab, c, other)
}

/// `DirectoryLeasing_Negative_InvalidLeaseKeyInLeaseBreakAck`
#[test]
fn directory_leasing_negative_invalid_lease_key_in_lease_break_ack() {
    let (_lab, mut c, _) = breaking();
    assert_eq!(c.status(&lease_ack(2, "")), NtStatus::OBJECT_NAME_NOT_FOUND);
}
/// `DirectoryLeasing_Negative_InvalidLeaseStateInLeaseBreakAck`
#[test]
fn directory_leasing_negative_invalid_lease_state_in_lease_break_ack() {
    let (_lab, mut c, _) = breaking();
    assert_eq!(c.status(&lease_ack(1, "W")), NtStatus::REQUEST_NOT_ACCEPTED);
}
/// `DirectoryLeasing_Negative_InvalidClientGuidInLeaseBreakAck`
#[test]
fn directory_leasing_negative_invalid_client_guid_in_lease_break_ack() {
    let (_lab, mut c, mut other) = breaking();
    assert_eq!(other.status(&lease_ack(1, "")), NtStatus::OBJECT_NAME_NOT_FOUND);
    c.call(&lease_ack(1, "")).ok();
}

/// `BVT_DirectoryLeasing_LeaseBreakOnMultiClients`
#[test]
fn bvt_directory_leasing_lease_break_on_multi_clients() {
    let lab = Lab::new();
    let (mut one, mut two, mut three) = (lab.client(), lab.client(), lab.client());
    one.make_directory("dir");
    let dir = || want("dir").existing().directory();
    one.open(dir().access(GENERIC_READ).share(3).lease(1, "RH"));
    two.open(dir().access(GENERIC_READ).share(3).lease(2, "RH"));
    // DELETE is not shared: both are asked for their handles.
    let waiting = three.send(&dir().access(DELETE).delete_on_close().lease(3, "R").req());
    for (c, key) in [(&mut one, 1), (&mut two, 2)] {
        assert_eq!(c.lease_break(), ("RH".into(), "R".into(), true));
        c.call(&lease_ack(key, "R")).ok();
    }
    assert_eq!(three.receive(waiting).status(), NtStatus::SHARING_VIOLATION);
}

/// What a change under "dir" does to a read lease on it.
fn read_broken_by(prepare: &str, change: impl FnOnce(&mut Client)) {
    let lab = Lab::new();
    let (mut c, mut other) = (lab.client(), lab.client());
    c.make_directory("dir");
    other.put(prepare, b"content");
    c.open(want("dir").existing().directory().access(FILE_GENERIC_READ).lease(1, "R"));
    change(&mut other);
    assert_eq!(c.lease_break(), ("R".into(), String::new(), false));
}

/// `DirectoryLeasing_BreakReadCachingByChildDeleted`
#[test]
fn directory_leasing_break_read_caching_by_child_deleted() {
    read_broken_by("dir\\child", |c| {
        let f = c.open(want("dir\\child").existing().access(DELETE).delete_on_close());
        c.close(f.id);
    });
}
/// `DirectoryLeasing_BreakReadCachingByChildAdded`
#[test]
fn directory_leasing_break_read_caching_by_child_added() {
    read_broken_by("dir\\child", |c| {
        c.open(want("dir\\second").access(GENERIC_WRITE));
    });
}
/// `DirectoryLeasing_BreakReadCachingByChildModified`
#[test]
fn directory_leasing_break_read_caching_by_child_modified() {
    read_broken_by("dir\\child", |c| {
        let f = c.open(want("dir\\child").existing().access(GENERIC_WRITE));
        c.write(f.id, 0, b"changed");
        c.close(f.id);
    });
}
/// `DirectoryLeasing_BreakReadCachingByChildRenamed`
#[test]
fn directory_leasing_break_read_caching_by_child_renamed() {
    read_broken_by("dir\\child", |c| {
        let f = c.open(want("dir\\child").existing().access(DELETE));
        assert_eq!(c.rename(f.id, "dir\\renamed", false), NtStatus::SUCCESS);
    });
}

/// `DirectoryLeasing_BreakHandleCachingByParentRenamed`
#[test]
fn directory_leasing_break_handle_caching_by_parent_renamed() {
    let lab = Lab::new();
    let (mut c, mut other) = (lab.client(), lab.client());
    c.make_directory("parent");
    c.open(want("parent\\dir").directory().lease(1, "RH"));
    let p = other.open(want("parent").existing().directory().access(DELETE));
    let id = other.send(&set_info(p.id, info_type::FILE, file_class::RENAME, 0, &name_change("moved", false)));
    assert_eq!(c.lease_break(), ("RH".into(), "R".into(), true));
    c.call(&lease_ack(1, "R")).ok();
    assert_eq!(other.receive(id).status(), NtStatus::ACCESS_DENIED, "a handle inside stays open");
}

/// `DirectoryLeasing_BreakHandleCachingByConflictOpen`
#[test]
fn directory_leasing_break_handle_caching_by_conflict_open() {
    let lab = Lab::new();
    let (mut c, mut other) = (lab.client(), lab.client());
    c.open(want("dir").directory().share(0).lease(1, "RH"));
    let id = other.send(&want("dir").existing().directory().access(GENERIC_WRITE).req());
    assert_eq!(c.lease_break(), ("RH".into(), "R".into(), true));
    c.call(&lease_ack(1, "R")).ok();
    assert_eq!(other.receive(id).status(), NtStatus::SHARING_VIOLATION);
}

#[test]
fn who_names_the_parents_lease_does_not_break_it() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(want("dir").directory().lease(1, "R"));
    let f = c.open(want("dir\\own").lease_under(2, "RWH", 1));
    c.write(f.id, 0, b"x");
    c.close(f.id);
    assert!(c.breaks().is_empty());
}
