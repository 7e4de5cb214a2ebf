//! Durable handles of version 2, [MS-SMB2] 3.3.5.9.10 and 3.3.5.9.12. Persistent ones need a continuously available
//! share, which a plain directory is not.

use std::time::Duration;

use crate::client::*;

const GUID: u128 = 0x0DD_0001;

fn lost(lab: &Lab, how: Want) -> (u128, FileId) {
    let mut c = lab.client();
    let f = c.open(how);
    assert!(f.durable_v2().is_some());
    c.write(f.id, 0, b"before");
    c.disconnect();
    (c.guid, f.id)
}

fn under_lease() -> Want {
    want("file").share(0).lease(1, "RWH").durable_v2(GUID, 0)
}

fn again(lab: &Lab, guid: u128) -> Client {
    lab.client_again(guid, Dialect::Smb311)
}

fn check(how: Want, back: impl FnOnce(FileId) -> Want) {
    let lab = Lab::new();
    let (guid, id) = lost(&lab, how);
    let mut c = again(&lab, guid);
    let f = c.open(back(FileId { volatile: 0, ..id }));
    assert_eq!(f.id.persistent, id.persistent);
    assert_eq!(c.read(f.id, 0, 10), b"before");
    c.close(f.id);
}

/// `DurableHandleV2_Reconnect_WithoutPersistence`
#[test]
fn durable_handle_v2_reconnect_without_persistence() {
    check(under_lease(), |id| want("file").share(0).lease(1, "RWH").reconnect_v2(id, GUID));
}
/// `BVT_DurableHandleV2_Reconnect_WithBatchOplock`
#[test]
fn bvt_durable_handle_v2_reconnect_with_batch_oplock() {
    check(want("file").share(0).oplock(oplock::BATCH).durable_v2(GUID, 0), |id| {
        want("file").share(0).oplock(oplock::BATCH).reconnect_v2(id, GUID)
    });
}
/// `BVT_DurableHandleV2_Reconnect_WithLeaseV1`
#[test]
fn bvt_durable_handle_v2_reconnect_with_lease_v1() {
    check(want("file").share(0).lease_v1(1, "RWH").durable_v2(GUID, 0), |id| {
        want("file").share(0).lease_v1(1, "RWH").reconnect_v2(id, GUID)
    });
}

/// `DurableHandleV2_NoPersistenceGrantedOnNonCAShare`
#[test]
fn durable_handle_v2_no_persistence_granted_on_non_ca_share() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").share(0).durable_v2_flags(GUID, 0, 2));
    assert_eq!(f.durable_v2(), None);
    let f = c.open(want("other").oplock(oplock::BATCH).durable_v2_flags(GUID + 1, 0, 2));
    let context = f.context(tag::DURABLE_REQUEST_V2).unwrap();
    assert_eq!(le_u32(context, 4), 0, "durable, not persistent");
}

/// `DurableHandleV2_Reconnect_WithDifferentDurableOwner`
#[test]
fn durable_handle_v2_reconnect_with_different_durable_owner() {
    let lab = Lab::new();
    let (guid, id) = lost(&lab, under_lease());
    let mut c = lab.connect_as(guid);
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(OTHER));
    c.connect(SHARE);
    let status = c.fails(want("file").lease(1, "RWH").reconnect_v2(id, GUID));
    assert_eq!(status, NtStatus::ACCESS_DENIED);
}

fn refused(change: impl FnOnce(FileId) -> Want) -> NtStatus {
    let lab = Lab::new();
    let (guid, id) = lost(&lab, under_lease());
    again(&lab, guid).fails(change(id))
}

/// `DurableHandleV2_Reconnect_WithLeaseV1_WithDifferentFileName`
#[test]
fn durable_handle_v2_reconnect_with_different_file_name() {
    let status = refused(|id| want("other").lease(1, "RWH").reconnect_v2(id, GUID));
    assert_eq!(status, NtStatus::INVALID_PARAMETER);
}
/// `DurableHandleV2_WithLeaseV1AndV2_WithDifferentLeaseKey`
#[test]
fn durable_handle_v2_with_lease_v1_and_v2_with_different_lease_key() {
    let status = refused(|id| want("file").lease(2, "RWH").reconnect_v2(id, GUID));
    assert_eq!(status, NtStatus::OBJECT_NAME_NOT_FOUND);
}
#[test]
fn the_create_guid_has_to_match_and_contexts_exclude_each_other() {
    let not_found = NtStatus::OBJECT_NAME_NOT_FOUND;
    assert_eq!(refused(|id| want("file").lease(1, "RWH").reconnect_v2(id, GUID + 1)), not_found);
    let both = |id| want("file").lease(1, "RWH").reconnect_v2(id, GUID).durable_v2(GUID, 0);
    assert_eq!(refused(both), NtStatus::INVALID_PARAMETER);
    let with_v1 = |id| want("file").lease(1, "RWH").reconnect_v2(id, GUID).durable();
    assert_eq!(refused(with_v1), NtStatus::INVALID_PARAMETER);
}

/// `DurableHandleV2_WithLeaseV2_WithoutHandleCaching`
#[test]
fn durable_handle_v2_with_lease_v2_without_handle_caching() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").share(0).lease(1, "RW").durable_v2(GUID, 0));
    assert_eq!(f.durable_v2(), None);
}

#[test]
fn the_time_out_is_granted_within_bounds_and_kept() {
    let lab = Lab::new();
    let mut c = lab.client();
    for (i, (asked, granted)) in [(0, 60_000), (10_000, 10_000), (u32::MAX, 300_000)].into_iter().enumerate() {
        let guid = GUID + i as u128;
        let f = c.open(want(&format!("f{i}")).oplock(oplock::BATCH).durable_v2(guid, asked));
        assert_eq!(f.durable_v2(), Some(granted));
    }
    c.disconnect();
    lab.pass(Duration::from_secs(11));
    assert_eq!(lab.server.trees.opens().len(), 2);
    lab.pass(Duration::from_secs(50));
    assert_eq!(lab.server.trees.opens().len(), 1);
    lab.pass(Duration::from_secs(250));
    assert_eq!(lab.server.trees.opens().len(), 0);
}

#[test]
fn directories_are_not_durable() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("dir").directory().lease(1, "RH").durable_v2(GUID, 0));
    assert_eq!(f.durable_v2(), None);
}

/// [MS-SMB2] 3.3.5.9.12: Lease.FileName is what the client sent as the name, which is an id here.
#[test]
fn an_open_by_id_is_reconnected_by_its_id() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put("file", b"before");
    c.put("other", b"x");
    let [id, other] = ["file", "other"].map(|name| {
        let f = c.open(want(name).existing());
        let number = le_u64(&c.query(f.id, file_class::INTERNAL), 0);
        c.close(f.id);
        number.to_le_bytes()
    });
    let how = || want("").existing().options(OPT_OPEN_BY_FILE_ID).lease(1, "RWH");
    let f = Created::parse(&c.call(&how().durable_v2(GUID, 0).req_named(&id)).ok());
    assert!(f.durable_v2().is_some());
    c.disconnect();
    let mut c = again(&lab, c.guid);
    let reconnect = how().reconnect_v2(FileId { volatile: 0, ..f.id }, GUID);
    assert_eq!(c.status(&reconnect.req_named(&other)), NtStatus::INVALID_PARAMETER);
    let back = Created::parse(&c.call(&reconnect.req_named(&id)).ok());
    assert_eq!(c.read(back.id, 0, 10), b"before");
}
