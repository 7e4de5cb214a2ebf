//! What a message changed is durable before its answer leaves, whatever its command: the change joins the message's scope.

use arden_store::{
    commit::CommitScope,
    handles::{HandleChange, HandleStore},
};
use arden_wire::{
    NtStatus,
    access::{FILE_READ_ATTRIBUTES, FILE_READ_DATA, SYNCHRONIZE},
    smb2::{Command, Dialect, FileId, flags},
};

use crate::client::*;

const GUID: u128 = 0x7007;
const EXCLUSIVE: u32 = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;

fn held() -> (Lab, Client) {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    let held = c.open(want("held").lease(7, "RWH").persistent(GUID, 0));
    assert!(held.durable_v2().is_some());
    assert!(lab.is_committed(CA));
    (lab, c)
}

#[test]
fn a_persistent_open_that_a_tree_disconnect_closed_stays_closed() {
    let (mut lab, mut c) = held();
    assert_eq!(c.status(&Req::empty(Command::TreeDisconnect)), NtStatus::SUCCESS);
    assert!(lab.is_committed(CA), "the answer came too early");
    lab.crash();
    assert_eq!(lab.server.trees.opens().len(), 0, "closed is closed");
}

#[test]
fn a_deletion_is_durable_whatever_closes_the_open() {
    for share in [CA, THROUGH] {
        for command in [Command::Close, Command::TreeDisconnect, Command::Logoff] {
            let lab = Lab::new();
            let mut c = lab.client();
            c.connect(share);
            let f = c.open(want("gone").delete_on_close());
            assert!(lab.is_committed(share));
            let req = if command == Command::Close { close(f.id) } else { Req::empty(command) };
            assert_eq!(c.status(&req), NtStatus::SUCCESS);
            assert!(!lab.host("gone").exists());
            assert!(lab.is_committed(share), "{command:?} on {share}: the answer came too early");
        }
    }
}

#[test]
fn what_a_tree_disconnect_of_a_plain_share_changed_is_not_waited_for() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(want("gone").delete_on_close());
    assert_eq!(c.status(&Req::empty(Command::TreeDisconnect)), NtStatus::SUCCESS);
    assert!(!lab.is_committed(THROUGH), "the same directory, and nobody asked for durability");
}

/// A change that was made before its request waits, and could not be made durable: the request fails, and does not wait. Here
/// it is what is kept of another's lease, which the lock breaks.
#[test]
fn a_request_whose_changes_cannot_be_kept_does_not_go_on_to_wait() {
    let lab = Lab::new();
    let (mut a, mut b) = (lab.ca_client(), lab.ca_client());
    let (held, waits) = (a.open(want("file").lease(7, "R").persistent(GUID, 0)), b.open(want("file")));
    a.call(&lock(held.id, 0, &[(0, 10, EXCLUSIVE)])).ok();
    lab.handles.fail_commits(1);
    assert_eq!(b.status(&lock(waits.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)])), NtStatus::DISK_FULL);
    a.close(held.id);
    // It was not granted when the other went.
    let mut c = lab.ca_client();
    let free = c.open(want("file"));
    c.call(&lock(free.id, 0, &[(0, 10, EXCLUSIVE)])).ok();
}

/// What a message causes others to lose is a part of it: the break of a lease is kept before the answer to whoever broke it.
#[test]
fn the_break_of_a_kept_lease_is_durable_with_the_answer_to_its_causer() {
    let lab = Lab::new();
    let mut a = lab.ca_client();
    let _held = a.open(want("file").lease(7, "R").persistent(GUID, 0));
    // The same directory, and nobody asked for durability.
    let mut b = lab.client();
    let f = b.open(want("file"));
    assert!(lab.handles_are_committed());
    b.write(f.id, 0, b"x");
    assert!(lab.handles_are_committed(), "the answer came too early");
    let lab = Lab::new();
    let (mut a, mut b) = (lab.ca_client(), lab.client());
    let _held = a.open(want("file").lease(7, "R").persistent(GUID, 0));
    let f = b.open(want("file"));
    lab.handles.fail_commits(1);
    assert_eq!(b.status(&write(f.id, 0, b"x")), NtStatus::DISK_FULL);
}

/// What is kept of others' opens may be on its way: who only looks at attributes was never kept out by it, and does not wait.
#[test]
fn who_opens_a_file_for_its_attributes_does_not_wait_for_the_opens_of_others() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(want("file"));
    c.close(f.id);
    assert!(lab.is_committed(CA));
    let others = CommitScope::begin();
    lab.handles.put(others.id(), vec![HandleChange::Put { key: b"key".to_vec(), value: Vec::new() }]);
    let looks = c.open(want("file").access(FILE_READ_ATTRIBUTES | SYNCHRONIZE));
    c.close(looks.id);
    assert!(!lab.handles_are_committed());
    c.open(want("file").access(FILE_READ_DATA));
    assert!(lab.handles_are_committed(), "the answer came too early");
    // What it makes is durable, whatever it is opened for.
    c.open(want("new").access(FILE_READ_ATTRIBUTES).disposition(CREATE));
    assert!(lab.is_committed(CA), "the answer came too early");
}

/// Its compound changed something before, and the commit of both fails: neither counts, and it does not wait either.
#[test]
fn a_request_behind_a_change_that_cannot_be_kept_does_not_go_on_to_wait() {
    let lab = Lab::new();
    let (mut a, mut b) = (lab.ca_client(), lab.ca_client());
    let held = a.open(want("file"));
    a.call(&lock(held.id, 0, &[(0, 10, EXCLUSIVE)])).ok();
    lab.handles.fail_commits(1);
    let create = want("file").persistent(GUID, 0).req();
    let answers = b.compound(&[create, lock(FileId::RELATED, 0, &[(0, 10, lock_flags::EXCLUSIVE)]).related()]);
    let statuses: Vec<NtStatus> = answers.iter().map(Reply::status).collect();
    assert_eq!(statuses, [NtStatus::DISK_FULL; 2]);
    a.close(held.id);
    let mut c = lab.ca_client();
    let free = c.open(want("file"));
    c.call(&lock(free.id, 0, &[(0, 10, EXCLUSIVE)])).ok();
}

/// [MS-SMB2] 3.3.4.4: the error says which request it answers, as the success would have.
#[test]
fn the_failed_commit_of_a_request_that_waited_is_its_final_response() {
    let lab = Lab::new();
    // The same directory, and nobody asked for durability: its unlock commits nothing.
    let (mut a, mut b) = (lab.client(), lab.ca_client());
    let (held, waits) = (a.open(want("file")), b.open(want("file").persistent(GUID, 0)));
    a.call(&lock(held.id, 0, &[(0, 10, EXCLUSIVE)])).ok();
    let id = b.send(&lock(waits.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)]));
    let async_id = b.interim(id);
    lab.handles.fail_commits(1);
    a.close(held.id);
    let answer = b.receive(id);
    assert_eq!(answer.status(), NtStatus::DISK_FULL);
    assert!(answer.header.is(flags::ASYNC_COMMAND), "{:?}", answer.header);
    assert_eq!((answer.header.async_or_tree, answer.header.credits), (async_id, 0));
}

/// PreviousSessionId, [MS-SMB2] 3.3.5.5.3: the answer waits for what was closed, and only for that.
#[test]
fn a_deletion_is_durable_before_the_session_that_replaced_its_own_is_there() {
    for (share, waits) in [(CA, true), (THROUGH, true), (SHARE, false)] {
        let lab = Lab::new();
        let mut c = lab.client();
        c.connect(share);
        c.open(want("gone").delete_on_close());
        let old = c.session_id();
        let mut second = lab.connect();
        second.negotiate(&Offer::up_to(Dialect::Smb311));
        second.logon(&logon(USER).previous(old));
        assert!(!lab.host("gone").exists());
        assert_eq!(lab.is_committed(THROUGH), waits, "{share}: the same directory");
    }
}

/// After a crash the old session's open would be there again: the client has to begin anew.
#[test]
fn a_session_is_not_answered_whose_replacement_of_another_is_not_kept() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    c.open(want("gone").delete_on_close());
    let old = c.session_id();
    let mut second = lab.connect();
    second.negotiate(&Offer::up_to(Dialect::Smb311));
    lab.handles.fail_commits(1);
    assert_eq!(second.try_logon(&logon(USER).previous(old)).err(), Some(NtStatus::CONNECTION_RESET));
}
