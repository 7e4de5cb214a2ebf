//! Durable handles of version 1, [MS-SMB2] 3.3.5.9.6 and 3.3.5.9.7.

use std::time::Duration;

use crate::client::*;

const NOT_FOUND: NtStatus = NtStatus::OBJECT_NAME_NOT_FOUND;

/// The file as the client names it in a reconnect: the volatile half does not count.
fn persistent(id: FileId) -> FileId {
    FileId { volatile: 0, ..id }
}

/// A client with a durable handle under a lease on "file", which it has written; its connection fails.
fn lost(lab: &Lab) -> (u128, FileId) {
    let mut c = lab.client();
    let f = c.open(want("file").share(0).lease_v1(1, "RWH").durable());
    assert!(f.is_durable());
    c.write(f.id, 0, b"before");
    c.disconnect();
    (c.guid, f.id)
}

fn again(lab: &Lab, guid: u128) -> Client {
    lab.client_again(guid, Dialect::Smb311)
}

/// `DurableHandleV1_Reconnect_AfterServerDisconnect`
#[test]
fn durable_handle_v1_reconnect_after_server_disconnect() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").share(0).lease_v1(1, "RWH").durable());
    c.write(f.id, 0, b"before");
    // A second NEGOTIATE makes the server end the connection.
    let second = Offer::up_to(Dialect::Smb311).req(c.guid);
    c.send(&second);
    assert!(c.is_closed());
    let mut c = again(&lab, c.guid);
    let back = c.open(want("file").share(0).lease_v1(1, "RWH").reconnect(persistent(f.id)));
    assert_eq!(c.read(back.id, 0, 10), b"before");
    c.close(back.id);
}

/// `DurableHandleV1_Reconnect_WithoutLogoffOrDisconnect_WithoutPreviousSessionIdSet`
#[test]
fn durable_handle_v1_reconnect_without_logoff_or_disconnect_without_previous_session_id_set() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").share(0).oplock(oplock::BATCH).durable());
    assert!(f.is_durable());
    let mut second = again(&lab, c.guid);
    assert_eq!(second.fails(want("file").oplock(oplock::BATCH).reconnect(persistent(f.id))), NOT_FOUND);
    c.close(f.id);
}

#[test]
fn a_new_session_in_place_of_the_old_one_reclaims_its_handles() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").share(0).oplock(oplock::BATCH).durable());
    let mut second = lab.connect_as(c.guid);
    second.negotiate(&Offer::up_to(Dialect::Smb311));
    second.logon(&logon(USER).previous(c.session_id()));
    second.connect(SHARE);
    let back = second.open(want("file").oplock(oplock::BATCH).reconnect(persistent(f.id)));
    assert_eq!(back.oplock, oplock::BATCH);
}

/// `BVT_DurableHandleV1_Reconnect_WithBatchOplock`
#[test]
fn bvt_durable_handle_v1_reconnect_with_batch_oplock() {
    for dialect in [Dialect::Smb202, Dialect::Smb210, Dialect::Smb300, Dialect::Smb311] {
        let lab = Lab::new();
        let mut c = lab.client_with(dialect);
        let f = c.open(want("file").share(0).oplock(oplock::BATCH).durable());
        assert!(f.is_durable());
        assert_eq!(f.oplock, oplock::BATCH);
        c.write(f.id, 0, b"before");
        c.disconnect();
        let mut c = lab.client_again(c.guid, dialect);
        let back = c.open(want("file").share(0).oplock(oplock::BATCH).reconnect(persistent(f.id)));
        assert_eq!(back.oplock, oplock::BATCH);
        assert_eq!(c.read(back.id, 0, 10), b"before");
        c.close(back.id);
    }
}

/// `DurableHandleV1_WithLeaseV1_WithoutHandleCaching`
#[test]
fn durable_handle_v1_with_lease_v1_without_handle_caching() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").share(0).lease_v1(1, "RW").durable());
    assert!(!f.is_durable());
    for level in [oplock::NONE, oplock::LEVEL_II, oplock::EXCLUSIVE] {
        let f = c.open(want(&format!("file{level}")).oplock(level).durable());
        assert!(!f.is_durable(), "oplock level {level}");
    }
}

/// `BVT_DurableHandleV1_Reconnect_WithLeaseV1`
#[test]
fn bvt_durable_handle_v1_reconnect_with_lease_v1() {
    let lab = Lab::new();
    let (guid, id) = lost(&lab);
    let mut c = again(&lab, guid);
    let back = c.open(want("file").share(0).lease_v1(1, "RWH").reconnect(persistent(id)));
    assert_eq!(back.lease(), "RWH");
    assert_eq!(back.id.persistent, id.persistent);
    assert_eq!(c.read(back.id, 0, 10), b"before");
    c.write(back.id, 0, b"after");
    c.close(back.id);
}

/// `DurableHandleV1_Reconnect_IncludeCreateDurableHandle`
#[test]
fn durable_handle_v1_reconnect_include_create_durable_handle() {
    let lab = Lab::new();
    let (guid, id) = lost(&lab);
    let mut c = again(&lab, guid);
    let back = c.open(want("file").share(0).lease_v1(1, "RWH").reconnect(persistent(id)).durable());
    assert_eq!(c.read(back.id, 0, 10), b"before");
}

/// What a reconnect that differs from the create gets; the handle stays for one that does not.
fn refused(change: impl FnOnce(&Lab, FileId) -> (Option<u128>, Want)) -> NtStatus {
    let lab = Lab::new();
    let (guid, id) = lost(&lab);
    let (other_guid, want_again) = change(&lab, persistent(id));
    let status = again(&lab, other_guid.unwrap_or(guid)).fails(want_again);
    let mut c = again(&lab, guid);
    c.open(want("file").lease_v1(1, "RWH").reconnect(persistent(id)));
    status
}

/// `DurableHandleV1_Reconnect_WithLeaseV1_WithDifferentFileName`
#[test]
fn durable_handle_v1_reconnect_with_lease_v1_with_different_file_name() {
    let status = refused(|_, id| (None, want("other").lease_v1(1, "RWH").reconnect(id)));
    assert_eq!(status, NtStatus::INVALID_PARAMETER);
}
/// `DurableHandleV1_Reconnect_IncludeRequestV2`, `DurableHandleV1_Reconnect_IncludeReconnectV2`: in every dialect that knows
/// a reconnect of the first kind.
#[test]
fn durable_handle_v1_reconnect_include_v2() {
    for dialect in [Dialect::Smb202, Dialect::Smb210, Dialect::Smb300, Dialect::Smb311] {
        let lab = Lab::new();
        let connect = |guid| {
            let mut c = lab.connect_as(guid);
            c.negotiate(&Offer::up_to(dialect));
            c.logon(&logon(USER));
            c.connect(SHARE);
            c
        };
        let mut c = connect(7);
        let id = c.open(want("file").oplock(oplock::BATCH).durable()).id;
        c.disconnect();
        let id = persistent(id);
        let again = || want("file").oplock(oplock::BATCH).reconnect(id);
        let mut c = connect(7);
        assert_eq!(c.fails(again().durable_v2(5, 0)), NtStatus::INVALID_PARAMETER, "{dialect:?}");
        assert_eq!(c.fails(again().reconnect_v2(id, 0)), NtStatus::INVALID_PARAMETER, "{dialect:?}");
        c.open(again());
    }
}
/// `DurableHandleV1_Reconnect_WithoutFileIdPersistent`
#[test]
fn durable_handle_v1_reconnect_without_file_id_persistent() {
    let none = FileId { persistent: 0, volatile: 0 };
    assert_eq!(refused(|_, _| (None, want("file").lease_v1(1, "RWH").reconnect(none))), NOT_FOUND);
}
/// `DurableHandleV1_Reconnect_WithDifferentLeaseKey`
#[test]
fn durable_handle_v1_reconnect_with_different_lease_key() {
    assert_eq!(refused(|_, id| (None, want("file").lease_v1(2, "RWH").reconnect(id))), NOT_FOUND);
}
/// `DurableHandleV1_Reconnect_WithoutRequestLease`
#[test]
fn durable_handle_v1_reconnect_without_request_lease() {
    assert_eq!(refused(|_, id| (None, want("file").oplock(oplock::BATCH).reconnect(id))), NOT_FOUND);
    assert_eq!(refused(|_, id| (None, want("file").oplock(oplock::LEASE).reconnect(id))), NOT_FOUND);
}
/// `DurableHandleV1_Reconnect_WithDifferentClientGuid`
#[test]
fn durable_handle_v1_reconnect_with_different_client_guid() {
    assert_eq!(refused(|_, id| (Some(0x99), want("file").lease_v1(1, "RWH").reconnect(id))), NOT_FOUND);
}

/// `DurableHandleV1_Reconnect_LeaseIsNull`
#[test]
fn durable_handle_v1_reconnect_lease_is_null() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").share(0).oplock(oplock::LEASE).durable());
    assert!(!f.is_durable());
    c.disconnect();
    let mut c = again(&lab, c.guid);
    assert_eq!(c.fails(want("file").lease_v1(1, "RWH").reconnect(persistent(f.id))), NOT_FOUND);
}
/// `DurableHandleV1_Reconnect_SessionIsNotNull`
#[test]
fn durable_handle_v1_reconnect_session_is_not_null() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").share(0).lease_v1(1, "RWH").durable());
    let mut second = again(&lab, c.guid);
    assert_eq!(second.fails(want("file").lease_v1(1, "RWH").reconnect(persistent(f.id))), NOT_FOUND);
    c.close(f.id);
}
/// `DurableHandleV1_Reconnect_WithoutDurableHandle`
#[test]
fn durable_handle_v1_reconnect_without_durable_handle() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").share(0).lease_v1(1, "RWH"));
    c.disconnect();
    let mut c = again(&lab, c.guid);
    assert_eq!(c.fails(want("file").lease_v1(1, "RWH").reconnect(persistent(f.id))), NOT_FOUND);
    assert!(lab.server.trees.opens().is_empty());
}

/// `DurableHandleV1_Reconnect_WithDifferentDurableOwner`
#[test]
fn durable_handle_v1_reconnect_with_different_durable_owner() {
    let lab = Lab::new();
    let (guid, id) = lost(&lab);
    let mut c = lab.connect_as(guid);
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(OTHER));
    c.connect(SHARE);
    assert_eq!(c.fails(want("file").lease_v1(1, "RWH").reconnect(persistent(id))), NtStatus::ACCESS_DENIED);
}

#[test]
fn a_handle_that_nobody_reclaims_is_closed_in_time() {
    let lab = Lab::new();
    let (guid, id) = lost(&lab);
    assert_eq!(lab.server.trees.opens().len(), 1);
    lab.pass(Duration::from_secs(61));
    assert!(lab.server.trees.opens().is_empty());
    let mut c = again(&lab, guid);
    assert_eq!(c.fails(want("file").lease_v1(1, "RWH").reconnect(persistent(id))), NOT_FOUND);
}

#[test]
fn somebody_else_takes_the_file_from_a_lost_handle() {
    let lab = Lab::new();
    let (guid, id) = lost(&lab);
    let mut other = lab.client();
    // Its owner did not share, and cannot be asked: the handle gives way.
    other.open(want("file"));
    let mut c = again(&lab, guid);
    assert_eq!(c.fails(want("file").lease_v1(1, "RWH").reconnect(persistent(id))), NOT_FOUND);
}

#[test]
fn locks_and_delete_on_close_survive_the_loss() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").lease_v1(1, "RWH").durable().delete_on_close());
    c.write(f.id, 0, b"12345");
    c.call(&lock(f.id, 0, &[(0, 3, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)])).ok();
    c.disconnect();
    let mut c = again(&lab, c.guid);
    let back = c.open(want("file").lease_v1(1, "RWH").reconnect(f.id));
    c.call(&lock(back.id, 0, &[(0, 3, lock_flags::UNLOCK)])).ok();
    assert!(lab.host("file").exists());
    c.close(back.id);
    assert!(!lab.host("file").exists());
}

/// A break that nobody can answer, or the end of its time, closes it a moment later: who comes between is too late.
#[test]
fn a_handle_that_is_about_to_be_closed_is_not_reclaimed() {
    let lab = Lab::new();
    let (guid, id) = lost(&lab);
    let open = lab.server.trees.open(id.persistent).unwrap();
    open.state.lock().given_up = true;
    let mut c = again(&lab, guid);
    assert_eq!(c.fails(want("file").lease_v1(1, "RWH").reconnect(persistent(id))), NOT_FOUND);
    for expires in [false, true] {
        let lab = Lab::new();
        let (_, id) = lost(&lab);
        let open = lab.server.trees.open(id.persistent).unwrap();
        match expires {
            true => lab.pass(Duration::from_secs(61)),
            false => drop(lab.client().open(want("file"))),
        }
        assert!(open.state.lock().given_up, "{expires}");
    }
}

/// [MS-SMB2] 3.3.5.9.7: a client may replay a change over its new connection, or write something newer. What it asked for before is done
/// by then.
#[test]
fn a_reconnect_comes_after_what_the_lost_connection_asked_for() {
    let lab = Lab::new();
    let (guid, id) = lost(&lab);
    let working = arden_smb::model::Working::on(&lab.server.trees.open(id.persistent).unwrap());
    let mut c = again(&lab, guid);
    let request = c.send(&want("file").lease_v1(1, "RWH").reconnect(persistent(id)).req());
    assert!(c.waits(request));
    drop(working);
    let back = c.opened(request);
    c.close(back.id);
}
