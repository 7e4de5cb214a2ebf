//! Oplocks, [MS-SMB2] 3.3.4.6 and 3.3.5.22.1.

use std::time::Duration;

use crate::client::*;

/// `BVT_OpLockBreak`
#[test]
fn bvt_op_lock_break() {
    for dialect in [Dialect::Smb202, Dialect::Smb210, Dialect::Smb300, Dialect::Smb311] {
        let lab = Lab::new();
        let (mut one, mut two) = (lab.client_with(dialect), lab.client_with(dialect));
        let f = one.open(want("file").oplock(oplock::EXCLUSIVE));
        assert_eq!(f.oplock, oplock::EXCLUSIVE);
        let waiting = two.starts(want("file"));
        assert_eq!(one.oplock_break(), (f.id, oplock::LEVEL_II));
        assert!(two.waits(waiting));
        let reply = one.call(&oplock_ack(f.id, oplock::LEVEL_II)).ok();
        assert_eq!(reply.body()[2], oplock::LEVEL_II);
        let g = two.opened(waiting);
        two.write(g.id, 0, b"x");
        assert_eq!(one.oplock_break(), (f.id, oplock::NONE));
    }
}

/// `BVT_OpLockBreak_Lease`
#[test]
fn bvt_op_lock_break_lease() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file").lease(4, "RWH"));
    assert_eq!(f.oplock, oplock::LEASE);
    let waiting = two.starts(want("file"));
    assert_eq!(one.lease_break(), ("RWH".into(), "RH".into(), true));
    one.call(&lease_ack(4, "RH")).ok();
    two.opened(waiting);
}

#[test]
fn levels_are_granted_by_who_else_is_there() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    for level in [oplock::LEVEL_II, oplock::EXCLUSIVE, oplock::BATCH] {
        let f = one.open(want("file").oplock(level));
        assert_eq!(f.oplock, level);
        one.close(f.id);
    }
    one.open(want("file"));
    let f = two.open(want("file").oplock(oplock::BATCH));
    assert_eq!(f.oplock, oplock::LEVEL_II);
    let f = two.open(want("dir").directory().oplock(oplock::BATCH));
    assert_eq!(f.oplock, oplock::NONE, "directories have leases only");
}

#[test]
fn a_batch_oplock_gives_way_to_a_sharing_conflict() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file").share(0).oplock(oplock::BATCH));
    let waiting = two.starts(want("file"));
    assert_eq!(one.oplock_break(), (f.id, oplock::LEVEL_II));
    one.close(f.id);
    two.opened(waiting);
    let g = one.open(want("other").share(0).oplock(oplock::BATCH));
    let waiting = two.starts(want("other"));
    one.oplock_break();
    one.call(&oplock_ack(g.id, oplock::LEVEL_II)).ok();
    assert_eq!(two.receive(waiting).status(), NtStatus::SHARING_VIOLATION);
}

#[test]
fn nobody_waits_longer_than_the_break_time_out() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file").oplock(oplock::BATCH));
    let waiting = two.starts(want("file"));
    // The time that this takes comes on top.
    lab.pass(Duration::from_secs(25));
    assert!(two.waits(waiting));
    lab.pass(Duration::from_secs(11));
    two.opened(waiting);
    assert!(one.call(&oplock_ack(f.id, oplock::LEVEL_II)).status().is_error());
}

#[test]
fn acknowledgments_that_answer_no_break_are_refused() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file").oplock(oplock::EXCLUSIVE));
    let status = c.status(&oplock_ack(f.id, oplock::LEVEL_II));
    // The specification has the second, what is in the field the first.
    assert!(matches!(status, NtStatus::INVALID_OPLOCK_PROTOCOL | NtStatus(0xC000_0184)), "{status}");
    let nothing = FileId { persistent: 7, volatile: 7 };
    assert_eq!(c.status(&oplock_ack(nothing, oplock::NONE)), NtStatus::FILE_CLOSED);
}

#[test]
fn a_waiting_create_can_be_cancelled_and_its_client_can_go() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    one.open(want("file").oplock(oplock::BATCH));
    let id = two.send(&want("file").req());
    let async_id = two.interim(id);
    two.cancel(async_id);
    assert_eq!(two.receive(id).status(), NtStatus::CANCELLED);
    two.starts(want("file"));
    two.disconnect();
    assert_eq!(lab.server.trees.opens().len(), 1);
}

/// [MS-SMB2] 3.3.5.16 looks the request up among all that are under way, not only those that wait already.
#[test]
fn a_cancel_ends_a_create_that_does_not_wait_yet() {
    if has_two_nodes() {
        // Nothing blocks at the client's node, and nothing can be held there.
        return;
    }
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    one.open(want("file").oplock(oplock::BATCH));
    // A create with a large context runs where it may block.
    let large = || want("file").context(b"Arnd", vec![0; 5000]).req();
    two.held = Some(Vec::new());
    let id = two.send(&large());
    let cancel = |id| Req::empty(Command::Cancel).id(id);
    two.send(&cancel(id));
    assert_eq!(two.run_held(), 1);
    assert_eq!(two.receive(id).status(), NtStatus::CANCELLED);
    assert_eq!(lab.server.trees.opens().len(), 1);
    // A CANCEL of something else ends nothing, now or later.
    two.held = Some(Vec::new());
    let id = two.send(&large());
    two.send(&cancel(id - 1));
    two.send(&cancel(id + 1));
    assert_eq!(two.run_held(), 1);
    let async_id = two.interim(id);
    two.cancel(async_id);
    assert_eq!(two.receive(id).status(), NtStatus::CANCELLED);
    let id = two.send(&want("file").req());
    two.interim(id);
    assert!(two.poll(id).is_none());
}
