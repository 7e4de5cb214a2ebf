//! Another user who sends the same ClientGuid: it goes over the wire in the clear, so it is nobody's proof.

use crate::client::*;

/// `OTHER` on a connection with the ClientGuid of somebody else.
fn impostor(lab: &Lab, guid: u128, dialect: Dialect) -> Client {
    let mut c = lab.connect_as(guid);
    c.negotiate(&Offer::up_to(dialect));
    c.logon(&logon(OTHER));
    c.connect(SHARE);
    c
}

#[test]
fn a_lease_break_goes_to_the_user_who_holds_the_lease() {
    let lab = Lab::new();
    let guid = 0x77_0001;
    let mut impostor = impostor(&lab, guid, Dialect::Smb311);
    let mut holder = lab.client_again(guid, Dialect::Smb311);
    let f = holder.open(want("file").lease(7, "RWH"));
    let mut third = lab.client();
    let waiting = third.starts(want("file"));
    assert!(impostor.breaks().is_empty());
    assert_eq!(impostor.status(&lease_ack(7, "RH")), NtStatus::OBJECT_NAME_NOT_FOUND);
    assert!(third.waits(waiting));
    assert_eq!(holder.lease_break(), ("RWH".into(), "RH".into(), true));
    holder.call(&lease_ack(7, "RH")).ok();
    third.opened(waiting);
    holder.close(f.id);
}

#[test]
fn a_break_of_a_user_without_a_connection_goes_to_nobody() {
    let lab = Lab::new();
    let guid = 0x77_0002;
    let mut impostor = impostor(&lab, guid, Dialect::Smb311);
    let mut holder = lab.client_again(guid, Dialect::Smb311);
    holder.open(want("file").lease(7, "RWH").durable_v2(5, 0));
    holder.disconnect();
    let mut third = lab.client();
    third.starts(want("file"));
    assert!(impostor.breaks().is_empty());
}

#[test]
fn a_create_guid_is_of_its_user() {
    let lab = Lab::new();
    let guid = 0x77_0003;
    let mut holder = lab.client_again(guid, Dialect::Smb311);
    holder.open(want("held").oplock(oplock::BATCH).durable_v2(5, 0));
    let mut impostor = impostor(&lab, guid, Dialect::Smb311);
    // Not DUPLICATE_OBJECTID, and with the replay flag not ACCESS_DENIED.
    impostor.open(want("new").oplock(oplock::BATCH).durable_v2(5, 0));
    let other = want("newer").oplock(oplock::BATCH).durable_v2(6, 0);
    holder.open(want("more").oplock(oplock::BATCH).durable_v2(6, 0));
    impostor.open(other.replayed());
}

#[test]
fn a_handle_in_use_is_not_there_for_another_user() {
    let lab = Lab::new();
    let guid = 0x77_0004;
    let mut holder = lab.client_again(guid, Dialect::Smb311);
    let f = holder.open(want("held").oplock(oplock::BATCH).durable_v2(5, 0));
    let mut impostor = impostor(&lab, guid, Dialect::Smb311);
    let again = || want("held").oplock(oplock::BATCH).reconnect_v2(f.id, 5);
    assert_eq!(impostor.fails(again()), NtStatus::OBJECT_NAME_NOT_FOUND);
    holder.disconnect();
    // [MS-SMB2] 3.3.5.9.12.
    assert_eq!(impostor.fails(again()), NtStatus::ACCESS_DENIED);
    lab.client_again(guid, Dialect::Smb311).open(again());
}

#[test]
fn an_application_instance_is_of_its_user() {
    let lab = Lab::new();
    let mut holder = lab.client();
    let of_app = || want("file").share(0).app_instance(9);
    // A NULL DACL: everybody may do everything.
    let mut sd = vec![1, 0, 4, 0x80];
    sd.put_zeros(16);
    let f = holder.open(of_app().context(tag::SD_BUFFER, sd));
    let mut impostor = impostor(&lab, 0x77_0005, Dialect::Smb311);
    assert_eq!(impostor.fails(of_app()), NtStatus::SHARING_VIOLATION);
    holder.write(f.id, 0, b"still mine");
}

/// [MS-SMB2] 3.3.5.5.3 wants one dialect of a client; that is no way to keep another user out.
#[test]
fn another_dialect_locks_nobody_else_out() {
    let lab = Lab::new();
    let guid = 0x77_0006;
    let _impostor = impostor(&lab, guid, Dialect::Smb302);
    lab.client_again(guid, Dialect::Smb311);
}
