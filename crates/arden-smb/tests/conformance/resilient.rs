//! Resilient handles, FSCTL_LMR_REQUEST_RESILIENCY, [MS-SMB2] 3.3.5.15.9.

use std::time::Duration;

use crate::client::*;

fn resilient(lab: &Lab, how: Want, timeout_ms: u32) -> (Client, FileId) {
    let mut c = lab.client();
    let f = c.open(how);
    c.fsctl(f.id, fsctl::LMR_REQUEST_RESILIENCY, &resiliency(timeout_ms), 0);
    (c, f.id)
}

/// `BVT_ResilientHandle_Reconnect`, `BVT_Resiliency`
#[test]
fn bvt_resilient_handle_reconnect() {
    let lab = Lab::new();
    let (mut c, id) = resilient(&lab, want("file").share(0), 120_000);
    c.write(id, 0, b"before");
    c.disconnect();
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    let back = c.open(want("file").reconnect(id));
    assert_eq!(c.read(back.id, 0, 10), b"before");
    c.close(back.id);
}

/// `BVT_ResilientHandle_Reconnect_Lease`
#[test]
fn bvt_resilient_handle_reconnect_lease() {
    let lab = Lab::new();
    let (mut c, id) = resilient(&lab, want("file").lease(1, "RWH"), 120_000);
    c.disconnect();
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    let back = c.open(want("file").lease(1, "RWH").reconnect(id));
    c.close(back.id);
}

fn lock_sequence(how: Want) {
    let lab = Lab::new();
    let (mut c, id) = resilient(&lab, how.clone(), 120_000);
    c.write(id, 0, b"12345678");
    c.call(&flush(id)).ok();
    let exclusive = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;
    let sequence = 1 << 4 | 1;
    c.call(&lock(id, sequence, &[(0, 4, exclusive)])).ok();
    c.disconnect();
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    let back = c.open(how.reconnect(id));
    c.call(&lock(back.id, sequence, &[(0, 4, exclusive)])).ok();
    let other = lock(back.id, sequence + 1, &[(0, 4, exclusive)]);
    assert_eq!(c.status(&other), NtStatus::LOCK_NOT_GRANTED);
    c.close(back.id);
}

/// `BVT_ResilientHandle_LockSequence`
#[test]
fn bvt_resilient_handle_lock_sequence() {
    lock_sequence(want("file"));
}
/// `BVT_ResilientHandle_LockSequence_Lease`
#[test]
fn bvt_resilient_handle_lock_sequence_lease() {
    lock_sequence(want("file").lease(1, "RWH"));
}

/// `ResilientOpenScavengerTimer_ReconnectAfterTimeout`
#[test]
fn resilient_open_scavenger_timer_reconnect_after_timeout() {
    let lab = Lab::new();
    let (mut c, id) = resilient(&lab, want("file"), 60_000);
    c.disconnect();
    lab.pass(Duration::from_secs(70));
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    assert_eq!(c.fails(want("file").reconnect(id)), NtStatus::OBJECT_NAME_NOT_FOUND);
}
/// `ResilientOpenScavengerTimer_ReconnectBeforeTimeout`
#[test]
fn resilient_open_scavenger_timer_reconnect_before_timeout() {
    let lab = Lab::new();
    let (mut c, id) = resilient(&lab, want("file"), 60_000);
    c.disconnect();
    // The time that this takes comes on top.
    lab.pass(Duration::from_secs(45));
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    c.open(want("file").reconnect(id));
}

#[test]
fn requests_that_ask_for_too_much_or_are_too_short() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    let code = fsctl::LMR_REQUEST_RESILIENCY;
    assert_eq!(c.try_fsctl(f.id, code, &resiliency(u32::MAX), 0).unwrap_err(), NtStatus::INVALID_PARAMETER);
    assert_eq!(c.try_fsctl(f.id, code, &[0; 7], 0).unwrap_err(), NtStatus::INVALID_PARAMETER);
    let mut old = lab.client_with(Dialect::Smb202);
    let f = old.open(want("file"));
    assert_eq!(old.try_fsctl(f.id, code, &resiliency(1), 0).unwrap_err(), NtStatus::INVALID_DEVICE_REQUEST);
}

/// [MS-SMB2] 3.3.4.6 and 3.3.4.7: only a durable open that waits for its client is closed where nobody can answer a break.
#[test]
fn another_client_ends_what_it_caches_and_not_the_open() {
    for how in [
        want("file").oplock(oplock::BATCH),
        want("file").oplock(oplock::LEVEL_II),
        want("file").lease(1, "RWH"),
        want("file").lease(1, "RH"),
        want("file").lease(1, "R"),
    ] {
        let lab = Lab::new();
        let (mut c, id) = resilient(&lab, how.clone(), 120_000);
        c.write(id, 0, b"12345678");
        let exclusive = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;
        c.call(&lock(id, 0, &[(0, 4, exclusive)])).ok();
        c.disconnect();
        let mut other = lab.client();
        let request = other.send(&want("file").existing().req());
        lab.server.trees.run_deferred();
        let g = other.opened(request);
        other.write(g.id, 6, b"x");
        lab.server.trees.run_deferred();
        assert_eq!(other.status(&lock(g.id, 0, &[(0, 4, exclusive)])), NtStatus::LOCK_NOT_GRANTED, "{how:?}");
        let mut c = lab.client_again(c.guid, Dialect::Smb311);
        let back = c.open(how.reconnect(id));
        assert_eq!(c.read(back.id, 0, 8), b"123456x8");
        c.close(back.id);
    }
}
