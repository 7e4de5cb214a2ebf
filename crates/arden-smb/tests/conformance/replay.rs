//! Replay and channel sequence, [MS-SMB2] 3.3.5.2.10 and 3.3.5.9.10.

use super::channels::second_channel;
use crate::client::*;

const GUID: u128 = 0x5EA_0001;

fn durable(name: &str) -> Want {
    want(name).oplock(oplock::BATCH).durable_v2(GUID, 0)
}

/// `BVT_Replay_WriteWithInvalidChannelSequence`
#[test]
fn bvt_replay_write_with_invalid_channel_sequence() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb300, Dialect::Smb311] {
        let mut main = lab.client_with(dialect);
        let f = main.open(durable("file"));
        let mut other = second_channel(&lab, &main);
        main.write(f.id, 0, b" ");
        let stale = write(f.id, 0, b" ").replay().sequence(0x8000);
        assert_eq!(other.status(&stale), NtStatus::FILE_NOT_AVAILABLE);
        assert_eq!(other.status(&write(f.id, 0, b" ").sequence(0x8000)), NtStatus::FILE_NOT_AVAILABLE);
        assert_eq!(other.status(&read(f.id, 0, 1).sequence(0x8000)), NtStatus::SUCCESS, "reads change nothing");
        // Ahead is fine, and what was current is stale from then on.
        assert_eq!(other.status(&write(f.id, 0, b" ").sequence(1)), NtStatus::SUCCESS);
        assert_eq!(main.status(&write(f.id, 0, b" ").sequence(0)), NtStatus::FILE_NOT_AVAILABLE);
        main.close(f.id);
    }
}

/// `BVT_Replay_ReplayCreate`
#[test]
fn bvt_replay_replay_create() {
    let lab = Lab::new();
    let mut main = lab.client();
    let mut other = second_channel(&lab, &main);
    let f = main.open(durable("file"));
    assert!(f.durable_v2().is_some());
    other.channel_sequence += 1;
    let again = other.open(durable("file").replayed());
    assert_eq!(again.id, f.id);
    assert_eq!(again.oplock, oplock::BATCH);
    assert_eq!(again.durable_v2(), f.durable_v2());
    assert_eq!(lab.server.trees.opens().len(), 1);
}

#[test]
fn the_same_guid_without_the_replay_flag_is_refused() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(durable("file"));
    assert_eq!(c.fails(durable("file")), NtStatus::DUPLICATE_OBJECTID);
}

#[test]
fn a_replay_of_what_never_arrived_is_the_first_time() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(durable("file").replayed());
    assert_eq!(f.action, CREATED);
}

#[test]
fn a_replayed_lease_create_answers_the_lease() {
    let lab = Lab::new();
    let mut c = lab.client();
    let how = || want("file").lease(9, "RWH").durable_v2(GUID, 0);
    let f = c.open(how());
    let again = c.open(how().replayed());
    assert_eq!((again.id, again.lease()), (f.id, "RWH".to_string()));
    let with_other_key = want("file").lease(10, "RWH").durable_v2(GUID, 0).replayed();
    assert_eq!(c.fails(with_other_key), NtStatus::ACCESS_DENIED);
}

/// [MS-SMB2] 3.3.5.22.1 and 3.3.5.22.2: an answer to a break, whether it is taken or refused, ends that the create may be replayed.
#[test]
fn a_create_is_not_replayed_after_its_break_was_answered() {
    let lab = Lab::new();
    let by_lease = want("file").share(0).lease(9, "RWH").durable_v2(GUID, 0);
    for (how, breaks) in [(by_lease.clone(), true), (by_lease, false), (durable("file").share(0), true)] {
        let (mut c, mut other) = (lab.client(), lab.client());
        let f = c.open(how.clone());
        let is_lease = f.oplock == oplock::LEASE;
        if breaks {
            let waiting = other.starts(want("file"));
            let answer = if is_lease {
                c.lease_break();
                lease_ack(9, "R")
            } else {
                c.oplock_break();
                oplock_ack(f.id, oplock::LEVEL_II)
            };
            c.call(&answer).ok();
            assert_eq!(other.receive(waiting).status(), NtStatus::SHARING_VIOLATION);
        } else {
            assert_eq!(c.status(&lease_ack(9, "R")), NtStatus::UNSUCCESSFUL, "there is no break");
        }
        // What is not replayed is a new create, which the first one keeps out.
        assert_eq!(c.fails(how.replayed()), NtStatus::SHARING_VIOLATION, "lease {is_lease}, break {breaks}");
        c.close(f.id);
    }
}

#[test]
fn a_replayed_write_is_done_once_or_again_with_the_same_result() {
    let lab = Lab::new();
    let mut main = lab.client();
    let f = main.open(durable("file"));
    let mut other = second_channel(&lab, &main);
    main.write(f.id, 0, b"abc");
    assert_eq!(other.status(&write(f.id, 0, b"abc").replay().sequence(1)), NtStatus::SUCCESS);
    assert_eq!(other.read(f.id, 0, 10), b"abc");
}

/// [MS-SMB2] 3.3.5.9: a handle that is not persistent belongs to its session, whether that is there or lost its connection.
#[test]
fn a_create_is_not_replayed_in_another_session() {
    for is_lost in [false, true] {
        let lab = Lab::new();
        let mut c = lab.client();
        let f = c.open(durable("file"));
        if is_lost {
            c.disconnect();
        }
        let mut other = lab.client_again(c.guid, Dialect::Smb311);
        assert_eq!(other.fails(durable("file").replayed()), NtStatus::DUPLICATE_OBJECTID, "{is_lost}");
        if is_lost {
            let back = other.open(want("file").oplock(oplock::BATCH).reconnect_v2(f.id, GUID));
            other.write(back.id, 0, b"x");
        }
    }
}
