//! Breaks of oplocks and leases whose persistent opens wait for their client, [MS-SMB2] 3.3.4.6 and 3.3.4.7: the client is
//! told when it is back, and nobody gets past it before.

use std::time::Duration;

use crate::client::*;

const GUID: u128 = 0x9E5_1001;

fn under_lease() -> Want {
    want("file").lease(1, "RWH")
}

fn lost(lab: &mut Lab, how: Want, crash: bool) -> (u128, FileId) {
    let mut c = lab.ca_client();
    let f = c.open(how.persistent(GUID, 0));
    c.disconnect();
    if crash {
        lab.crash();
    }
    (c.guid, f.id)
}

fn is_told_when_it_is_back(crash: bool) {
    let mut lab = Lab::new();
    let (guid, id) = lost(&mut lab, under_lease(), crash);
    let mut other = lab.ca_client();
    let waiting = other.starts(want("file"));
    lab.pass(Duration::from_secs(40));
    assert!(other.waits(waiting), "longer than for a client that is there");
    let mut c = lab.ca_again(guid);
    let f = c.open(under_lease().reconnect_persistent(id, GUID));
    assert_eq!(f.lease(), "RWH");
    assert_eq!(c.lease_break(), ("RWH".into(), "RH".into(), true));
    c.write(f.id, 0, b"cached until now");
    c.call(&lease_ack(1, "RH")).ok();
    let g = other.opened(waiting);
    assert_eq!(other.read(g.id, 0, 20), b"cached until now");
    // The lease is kept as it is now.
    c.disconnect();
    lab.crash();
    let mut c = lab.ca_again(guid);
    assert_eq!(c.open(under_lease().reconnect_persistent(id, GUID)).lease(), "RH");
}

#[test]
fn a_lease_break_is_told_when_the_client_is_back() {
    is_told_when_it_is_back(false);
    is_told_when_it_is_back(true);
}

/// The answer to the create was lost: the client repeats it instead of reconnecting, [MS-SMB2] 3.3.5.9.10.
#[test]
fn a_break_is_told_to_a_client_that_repeats_its_create() {
    for crash in [false, true] {
        for leased in [false, true] {
            let how = || if leased { under_lease() } else { want("file").oplock(oplock::BATCH) };
            let mut lab = Lab::new();
            let (guid, id) = lost(&mut lab, how(), crash);
            let mut other = lab.ca_client();
            let waiting = other.starts(want("file"));
            let mut c = lab.ca_again(guid);
            let f = c.open(how().persistent(GUID, 0).replayed());
            assert_eq!(f.id, id, "crash {crash}, leased {leased}");
            if leased {
                assert_eq!(c.lease_break(), ("RWH".into(), "RH".into(), true));
                c.call(&lease_ack(1, "RH")).ok();
            } else {
                assert_eq!(c.oplock_break(), (id, oplock::LEVEL_II));
                c.call(&oplock_ack(id, oplock::LEVEL_II)).ok();
            }
            other.opened(waiting);
        }
    }
}

/// A break that an open under the same key of another client put off is not forgotten with the server.
#[test]
fn work_under_the_same_key_waits_for_a_client_that_is_away() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        let mut other = lab.ca_client();
        let (guid, id) = lost(&mut lab, under_lease(), false);
        let g = other.open(under_lease().persistent(GUID + 1, 0));
        assert_eq!(g.lease(), "");
        if crash {
            other.disconnect();
            lab.crash();
            other = lab.ca_again(other.guid);
            other.open(under_lease().reconnect_persistent(g.id, GUID + 1));
        }
        let waiting = other.send(&read(g.id, 0, 20));
        assert!(other.waits(waiting), "crash {crash}");
        let mut c = lab.ca_again(guid);
        let f = c.open(under_lease().reconnect_persistent(id, GUID));
        assert_eq!(c.lease_break(), ("RWH".into(), "RH".into(), true), "crash {crash}");
        c.write(f.id, 0, b"cached until now");
        c.call(&lease_ack(1, "RH")).ok();
        assert_eq!(other.receive(waiting).read_data(), b"cached until now");
    }
}

#[test]
fn an_oplock_break_is_told_when_the_client_is_back() {
    let mut lab = Lab::new();
    let batch = || want("file").oplock(oplock::BATCH);
    let (guid, id) = lost(&mut lab, batch(), true);
    let mut other = lab.ca_client();
    let waiting = other.starts(want("file"));
    let mut c = lab.ca_again(guid);
    c.open(batch().reconnect_persistent(id, GUID));
    assert_eq!(c.oplock_break(), (id, oplock::LEVEL_II));
    c.call(&oplock_ack(id, oplock::LEVEL_II)).ok();
    other.opened(waiting);
    c.disconnect();
    lab.crash();
    let mut c = lab.ca_again(guid);
    let back = c.open(batch().reconnect_persistent(id, GUID));
    assert_eq!(back.oplock, oplock::LEVEL_II);
}

#[test]
fn a_break_that_began_before_the_server_was_lost_goes_on() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(under_lease().persistent(GUID, 0));
    let mut other = lab.ca_client();
    other.starts(want("file"));
    assert_eq!(c.lease_break(), ("RWH".into(), "RH".into(), true));
    // Something else is committed, and the break with it.
    c.open(want("else").persistent(GUID + 1, 0));
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    let back = c.open(under_lease().reconnect_persistent(f.id, GUID));
    assert_eq!(back.lease(), "RWH");
    assert_eq!(c.lease_break(), ("RWH".into(), "RH".into(), true));
    c.call(&lease_ack(1, "RH")).ok();
}

/// Handle caching breaks for a conflicting open, and before the client is back, or has answered, another changes the data:
/// the rest of the lease goes once the first step is acknowledged, [MS-FSA] 2.1.4.12 (RHOpContext.BreakingToRead), also by a new server.
#[test]
fn a_break_that_went_further_goes_as_far_after_a_crash() {
    for (away, stop) in [(false, false), (false, true), (true, false), (true, true)] {
        let how = || want("file").lease(1, "RH");
        let mut lab = Lab::new();
        let (mut c, mut other) = (lab.ca_client(), lab.ca_client());
        let f = c.open(how().persistent(GUID, 0));
        let g = other.open(want("file"));
        other.starts(want("file").share(0));
        assert_eq!(c.lease_break(), ("RH".into(), "R".into(), true));
        if away {
            c.disconnect();
        }
        other.write(g.id, 0, b"new");
        if stop {
            lab.stop_and_start();
        } else {
            lab.crash();
        }
        let mut c = lab.ca_again(c.guid);
        let back = c.open(how().reconnect_persistent(f.id, GUID));
        assert_eq!(back.lease(), "RH");
        assert_eq!(c.lease_break(), ("RH".into(), "R".into(), true), "away {away}, stop {stop}");
        c.call(&lease_ack(1, "R")).ok();
        assert_eq!(c.lease_break(), ("R".into(), "".into(), false), "away {away}, stop {stop}");
    }
}

/// [MS-SMB2] 3.3.5.22.1: an acknowledgment that makes no sense ends the break, and nothing is left of the oplock.
#[test]
fn an_oplock_that_ended_with_a_wrong_answer_is_gone_after_a_crash() {
    for (answer, status) in
        [(oplock::BATCH, NtStatus::INVALID_OPLOCK_PROTOCOL), (oplock::LEASE, NtStatus::INVALID_PARAMETER)]
    {
        let batch = || want("file").oplock(oplock::BATCH);
        let mut lab = Lab::new();
        let (mut c, mut other) = (lab.ca_client(), lab.ca_client());
        let f = c.open(batch().persistent(GUID, 0));
        let waiting = other.starts(want("file"));
        assert_eq!(c.oplock_break(), (f.id, oplock::LEVEL_II));
        assert_eq!(c.status(&oplock_ack(f.id, answer)), status);
        other.opened(waiting);
        lab.crash();
        let mut c = lab.ca_again(c.guid);
        let back = c.open(batch().reconnect_persistent(f.id, GUID));
        assert_eq!(back.oplock, oplock::NONE, "{status}");
        assert!(c.breaks().is_empty(), "{status}");
    }
}

#[test]
fn read_caching_is_lost_without_an_answer() {
    let mut lab = Lab::new();
    let how = || want("file").lease(1, "R");
    let mut other = lab.ca_client();
    let g = other.open(want("file"));
    let (guid, id) = lost(&mut lab, how(), false);
    other.write(g.id, 0, b"new");
    other.disconnect();
    lab.crash();
    let mut c = lab.ca_again(guid);
    let back = c.open(how().reconnect_persistent(id, GUID));
    assert_eq!(back.lease(), "");
    assert_eq!(c.read(back.id, 0, 5), b"new");
}

#[test]
fn who_never_comes_back_is_waited_for_until_its_time_is_over() {
    let mut lab = Lab::new();
    lost(&mut lab, under_lease().share(0), true);
    let mut other = lab.ca_client();
    let waiting = other.starts(want("file"));
    lab.pass(Duration::from_secs(58));
    assert!(other.waits(waiting));
    lab.pass(Duration::from_secs(3));
    other.opened(waiting);
}

#[test]
fn a_break_that_is_never_answered_ends_the_lease_and_that_is_kept() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(under_lease().persistent(GUID, 300_000));
    c.disconnect();
    let mut other = lab.ca_client();
    let waiting = other.starts(want("file"));
    lab.pass(Duration::from_secs(181));
    // Without handle caching its owner is not waited for, and nobody gets past it.
    assert_eq!(other.receive(waiting).status(), NtStatus::FILE_NOT_AVAILABLE);
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    let back = c.open(under_lease().reconnect_persistent(f.id, GUID));
    assert_eq!(back.lease(), "");
}

#[test]
fn the_epoch_goes_on_from_what_the_client_knows() {
    let mut lab = Lab::new();
    let (guid, id) = lost(&mut lab, under_lease(), true);
    let mut c = lab.ca_again(guid);
    let mut how = want("file").reconnect_persistent(id, GUID);
    how.oplock = oplock::LEASE;
    let mut lease = vec![1];
    lease.resize(16, 0);
    lease.put_u32(7);
    lease.put_u32(0);
    lease.put_u64(0);
    lease.put_u128(0);
    lease.put_u16(40);
    lease.put_u16(0);
    let f = c.open(how.context(tag::LEASE, lease));
    assert_eq!(le_u16(f.context(tag::LEASE).unwrap(), 48), 40);
}

/// [MS-SMB2] 3.3.4.7: the notification goes to any connection of the client, also where it has not taken up its handle yet, and by
/// that no durable handle is lost whose lease keeps handle caching.
#[test]
fn a_client_that_is_back_without_its_handle_is_told() {
    for kind in ["persistent", "durable", "resilient"] {
        let lab = Lab::new();
        let mut c = lab.ca_client();
        let f = match kind {
            "persistent" => c.open(under_lease().persistent(GUID, 0)),
            "durable" => c.open(under_lease().durable_v2(GUID, 0)),
            _ => c.open(under_lease()),
        };
        if kind == "resilient" {
            c.fsctl(f.id, fsctl::LMR_REQUEST_RESILIENCY, &resiliency(60_000), 0);
        }
        c.disconnect();
        let mut c = lab.ca_again(c.guid);
        let mut other = lab.ca_client();
        let waiting = other.starts(want("file"));
        assert_eq!(c.lease_break(), ("RWH".into(), "RH".into(), true), "{kind}");
        assert!(other.waits(waiting), "{kind}");
        c.call(&lease_ack(1, "RH")).ok();
        other.opened(waiting);
        let back = match kind {
            "persistent" => c.open(under_lease().reconnect_persistent(f.id, GUID)),
            "durable" => c.open(under_lease().reconnect_v2(f.id, GUID)),
            _ => c.open(under_lease().reconnect(f.id)),
        };
        assert_eq!(back.lease(), "RH", "{kind}");
        assert!(c.breaks().is_empty(), "{kind}");
    }
}

/// The same section: without handle caching a durable handle that waits for its client is closed, be the client connected or not.
#[test]
fn a_durable_handle_that_is_to_lose_handle_caching_gives_way() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(under_lease().share(0).durable_v2(GUID, 0));
    c.disconnect();
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    lab.client().open(want("file"));
    assert!(c.breaks().is_empty());
    assert_eq!(c.fails(under_lease().share(0).reconnect_v2(f.id, GUID)), NtStatus::OBJECT_NAME_NOT_FOUND);
}
