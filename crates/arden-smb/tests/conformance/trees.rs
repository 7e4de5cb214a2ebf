//! TREE_CONNECT and TREE_DISCONNECT.

use crate::client::*;
use arden_wire::smb2::session::share_type;

/// `BVT_TreeMgmt_TreeConnectAndDisconnect`
#[test]
fn bvt_tree_mgmt_tree_connect_and_disconnect() {
    let lab = Lab::new();
    let mut c = lab.client();
    let reply = c.connect(SHARE);
    assert_ne!(reply.header.tree_id(), u32::MAX);
    assert_ne!(reply.header.tree_id(), 0);
    assert_eq!(reply.body()[2], share_type::DISK);
    assert_eq!(reply.u32(12), ALL_ACCESS);
    let f = c.open(want("x"));
    assert_eq!(c.status(&Req::empty(Command::TreeDisconnect)), NtStatus::SUCCESS);
    assert_eq!(c.status(&Req::empty(Command::TreeDisconnect)), NtStatus::NETWORK_NAME_DELETED);
    assert_eq!(c.try_close(f.id), NtStatus::NETWORK_NAME_DELETED);
    assert!(lab.server.trees.opens().is_empty());
}

/// `BVT_TreeMgmt_SMB311_Disconnect_NoSignedNoEncryptedTreeConnect`
#[test]
fn bvt_tree_mgmt_smb311_disconnect_no_signed_no_encrypted_tree_connect() {
    let lab = Lab::with(|s| s.signing_required = false);
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER));
    c.send(&tree_connect("\\\\LAB\\share").signed(false));
    assert!(c.is_closed());
}

/// `TreeMgmt_SMB311_CLUSTER_RECONNECT`
#[test]
fn tree_mgmt_smb311_cluster_reconnect() {
    let lab = Lab::new();
    let mut c = lab.client();
    let mut req = tree_connect("\\\\LAB\\share");
    req.body[2] = 1;
    assert_eq!(c.status(&req), NtStatus::SUCCESS);
}

#[test]
fn names_are_found_in_any_case_and_others_are_not() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.connect("SHARE");
    assert_eq!(c.try_connect("nothing").unwrap_err(), NtStatus::BAD_NETWORK_NAME);
    assert_eq!(c.status(&tree_connect("share")), NtStatus::INVALID_PARAMETER);
    let reply = c.connect("IPC$");
    assert_eq!(reply.body()[2], share_type::PIPE);
}

#[test]
fn a_read_only_share_says_so_and_is() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put("x", b"data");
    let reply = c.connect(READ_ONLY);
    assert_eq!(reply.u32(12) & FILE_WRITE_DATA, 0);
    assert_eq!(c.fails(want("x").existing()), NtStatus::ACCESS_DENIED);
    let f = c.open(want("x").existing().access(FILE_GENERIC_READ));
    assert_eq!(c.read(f.id, 0, 10), b"data");
    assert_eq!(c.try_write(f.id, 0, b"x").unwrap_err(), NtStatus::ACCESS_DENIED);
}

#[test]
fn files_belong_to_their_tree() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("x"));
    let first = c.tree;
    c.connect(SECOND);
    assert_eq!(c.try_close(f.id), NtStatus::FILE_CLOSED);
    c.tree = 0x7777;
    assert_eq!(c.try_close(f.id), NtStatus::NETWORK_NAME_DELETED);
    c.tree = first;
    c.close(f.id);
}
