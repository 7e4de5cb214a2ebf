//! Durable handles that are not persistent, over a planned stop or move of their files, [MS-SMB2] 3.3.5.9.6, .7, .10 and .12: they wait for
//! their clients at the next server as at this one. A crash takes them, also at the next one.

use std::time::Duration;

use arden_store::{
    commit::CommitScope,
    handles::{HandleChange, HandleStore},
};

use crate::client::*;

const GUID: u128 = 0x9E5_9001;
const NOT_FOUND: NtStatus = NtStatus::OBJECT_NAME_NOT_FOUND;
const EXCLUSIVE: u32 = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;
const SHARED: u32 = lock_flags::SHARED | lock_flags::FAIL_IMMEDIATELY;

fn batch() -> Want {
    want("file").share(0).oplock(oplock::BATCH)
}
fn leased() -> Want {
    want("file").share(0).lease(1, "RWH")
}
fn sequence(bucket: u32, number: u32) -> u32 {
    bucket << 4 | number
}
fn again(lab: &Lab, c: &Client, share: &str) -> Client {
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    c.connect(share);
    c
}

/// The keys of what is kept of opens.
fn kept(lab: &Lab) -> Vec<(Vec<u8>, Vec<u8>)> {
    lab.handles.load().unwrap()
}

/// Opened, written and locked; then the server stops in order, with the client connected or not.
fn outlives(share: &str, first: &Want, back: impl Fn(FileId) -> Want, disconnect: bool) {
    let mut lab = Lab::new();
    let mut c = lab.client();
    c.connect(share);
    let f = c.open(first.clone());
    assert!(f.is_durable() || f.durable_v2() == Some(60_000));
    c.write(f.id, 0, b"before");
    c.call(&lock(f.id, sequence(1, 1), &[(0, 10, EXCLUSIVE)])).ok();
    c.call(&lock(f.id, sequence(2, 1), &[(20, 10, EXCLUSIVE), (40, 10, SHARED)])).ok();
    c.call(&lock(f.id, sequence(3, 1), &[(20, 10, lock_flags::UNLOCK)])).ok();
    if disconnect {
        c.disconnect();
    }
    for round in 0..2 {
        lab.stop_and_start();
        assert_eq!(kept(&lab), [], "what was taken up is not kept any more, {round}");
        assert_eq!(lab.server.trees.opens().len(), 1);
        c = again(&lab, &c, share);
        let g = c.open(back(FileId { volatile: 0, ..f.id }));
        assert_eq!((g.id, g.action, g.oplock, g.lease()), (f.id, OPENED, f.oplock, f.lease()), "{round}");
        assert_eq!(c.read(g.id, 0, 10), b"before");
        // What was answered is not done twice, and what was taken is held.
        c.call(&lock(g.id, sequence(1, 1), &[(0, 10, EXCLUSIVE)])).ok();
        c.call(&lock(g.id, sequence(3, 1), &[(20, 10, lock_flags::UNLOCK)])).ok();
        for (at, status) in [
            (0, NtStatus::LOCK_NOT_GRANTED),
            (40, NtStatus::LOCK_NOT_GRANTED),
            (20, NtStatus::SUCCESS),
            (20, NtStatus::LOCK_NOT_GRANTED),
        ] {
            assert_eq!(c.status(&lock(g.id, 0, &[(at, 1, EXCLUSIVE)])), status, "{at} {round}");
        }
        c.call(&lock(g.id, 0, &[(20, 1, lock_flags::UNLOCK)])).ok();
    }
    c.close(f.id);
    lab.stop_and_start();
    assert_eq!(lab.server.trees.opens().len(), 0, "closed is closed");
}

#[test]
fn a_durable_handle_with_a_batch_oplock_outlives_a_stop() {
    for disconnect in [false, true] {
        outlives(SHARE, &batch().durable(), |id| batch().reconnect(id), disconnect);
    }
    outlives(CA, &batch().durable(), |id| batch().reconnect(id), false);
}

#[test]
fn a_durable_handle_with_a_lease_outlives_a_stop() {
    for disconnect in [false, true] {
        outlives(SHARE, &leased().durable_v2(GUID, 0), |id| leased().reconnect_v2(id, GUID), disconnect);
    }
    outlives(CA, &leased().durable_v2(GUID, 0), |id| leased().reconnect_v2(id, GUID), false);
    let first = || want("file").share(0).lease_v1(1, "RH");
    outlives(THROUGH, &first().durable(), |id| first().reconnect(id), false);
}

/// As of one that lost its connection alone.
#[test]
fn locks_keep_others_out() {
    for stop in [false, true] {
        let mut lab = Lab::new();
        let shared = || want("file").lease(1, "RH");
        let mut c = lab.client();
        let f = c.open(shared().durable_v2(GUID, 0));
        c.write(f.id, 0, &[7; 100]);
        c.call(&lock(f.id, 0, &[(0, 10, EXCLUSIVE)])).ok();
        c.disconnect();
        if stop {
            lab.stop_and_start();
        }
        // An open without a conflict succeeds, and leaves the handle to its client.
        let mut other = lab.client();
        let g = other.open(want("file"));
        assert_eq!(other.try_write(g.id, 5, b"x"), Err(NtStatus::FILE_LOCK_CONFLICT), "{stop}");
        assert_eq!(other.read(g.id, 20, 1), [7]);
        let mut c = again(&lab, &c, SHARE);
        assert_eq!(c.open(shared().reconnect_v2(f.id, GUID)).id, f.id, "{stop}");
        // A change breaks what it caches while it is away, and so closes it.
        c.disconnect();
        if stop {
            lab.stop_and_start();
        }
        let mut other = lab.client();
        let g = other.open(want("file"));
        other.write(g.id, 50, b"x");
        lab.pass(Duration::from_millis(1));
        let mut c = again(&lab, &c, SHARE);
        assert_eq!(c.fails(shared().reconnect_v2(f.id, GUID)), NOT_FOUND, "{stop}");
    }
}

#[test]
fn whoever_conflicts_with_one_that_waits_closes_it() {
    for (first, back) in [
        (batch().durable(), (|id| batch().reconnect(id)) as fn(FileId) -> Want),
        (leased().durable_v2(GUID, 0), |id| leased().reconnect_v2(id, GUID)),
    ] {
        let mut lab = Lab::new();
        let mut c = lab.client();
        let f = c.open(first);
        lab.stop_and_start();
        assert_eq!(lab.server.trees.opens().len(), 1);
        let mut other = lab.client();
        let id = other.send(&want("file").req());
        lab.pass(Duration::from_millis(1));
        Created::parse(&other.receive(id).result().expect("the file is nobody's"));
        let mut c = again(&lab, &c, SHARE);
        assert_eq!(c.fails(back(f.id)), NOT_FOUND);
    }
}

#[test]
fn a_crash_takes_durable_handles() {
    let mut lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(leased().durable_v2(GUID, 0));
    lab.crash();
    let mut c = again(&lab, &c, SHARE);
    assert_eq!(c.fails(leased().reconnect_v2(f.id, GUID)), NOT_FOUND);
    // One that was taken up is as any other.
    let f = c.open(leased().durable_v2(GUID, 0));
    lab.stop_and_start();
    assert_eq!(lab.server.trees.opens().len(), 1);
    lab.crash();
    assert_eq!(lab.server.trees.opens().len(), 0);
    let mut c = again(&lab, &c, SHARE);
    assert_eq!(c.fails(leased().reconnect_v2(f.id, GUID)), NOT_FOUND);
    lab.client().open(want("file").share(0));
}

#[test]
fn what_waits_for_no_client_is_not_kept() {
    for (moved, leave) in [(false, Lab::stop_and_start as fn(&mut Lab)), (true, |lab| lab.move_to(3, &[SHARE]))] {
        let mut lab = Lab::new();
        let mut c = lab.client();
        c.open(want("a").oplock(oplock::LEVEL_II).durable());
        c.open(want("b").oplock(oplock::BATCH));
        c.open(want("c").lease(3, "RW").durable_v2(GUID + 3, 0));
        c.open(want("d").oplock(oplock::BATCH).delete_on_close().durable());
        let e = c.open(want("e").oplock(oplock::BATCH).durable());
        assert_eq!(c.delete(e.id), NtStatus::SUCCESS);
        let f = c.open(want("f").oplock(oplock::BATCH).durable());
        let g = c.open(want("g").oplock(oplock::BATCH).durable());
        let h = c.open(want("h").oplock(oplock::BATCH).durable_v2(GUID + 8, 0));
        c.close(h.id);
        // Its break is under way.
        let mut other = lab.client();
        other.starts(want("f"));
        leave(&mut lab);
        assert_eq!(lab.server.trees.opens().len(), 1, "{moved}");
        assert_eq!([lab.host("d").exists(), lab.host("e").exists()], [moved; 2], "who stops closes what is not kept");
        let mut c = again(&lab, &c, SHARE);
        assert_eq!(c.fails(want("f").oplock(oplock::BATCH).reconnect(f.id)), NOT_FOUND);
        c.open(want("g").oplock(oplock::BATCH).reconnect(g.id));
    }
}

#[test]
fn only_who_opened_it_takes_it_up_after_a_stop() {
    let mut lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(leased().durable_v2(GUID, 0));
    let g = c.open(want("second").oplock(oplock::BATCH).durable());
    lab.stop_and_start();
    let by_lease = || leased().reconnect_v2(f.id, GUID);
    assert_eq!(lab.client().fails(by_lease()), NOT_FOUND, "another client");
    let mut c = again(&lab, &c, SHARE);
    assert_eq!(c.fails(leased().reconnect_v2(f.id, GUID + 1)), NOT_FOUND);
    assert_eq!(c.fails(want("file").lease(2, "RWH").reconnect_v2(f.id, GUID)), NOT_FOUND);
    assert_eq!(c.fails(want("file").reconnect_v2(f.id, GUID)), NOT_FOUND);
    assert_eq!(c.fails(leased().reconnect_persistent(f.id, GUID)), NtStatus::INVALID_PARAMETER);
    let batch = || want("second").oplock(oplock::BATCH);
    assert_eq!(c.fails(batch().reconnect_v2(g.id, GUID)), NOT_FOUND, "it has no CreateGuid");
    let mut other = lab.connect_as(c.guid);
    other.negotiate(&Offer::up_to(Dialect::Smb311));
    other.logon(&logon(OTHER));
    other.connect(SHARE);
    assert_eq!(other.fails(batch().reconnect(g.id)), NtStatus::ACCESS_DENIED);
    c.connect(CA);
    assert_eq!(c.fails(by_lease()), NOT_FOUND, "another share");
    c.connect(SHARE);
    c.open(by_lease());
    c.open(batch().reconnect(g.id));
}

#[test]
fn the_time_counts_anew_and_ends() {
    let mut lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(leased().durable_v2(GUID, 20_000));
    lab.stop_for(Duration::from_secs(15));
    lab.pass(Duration::from_secs(15));
    assert_eq!(lab.server.trees.opens().len(), 1);
    lab.pass(Duration::from_secs(6));
    assert_eq!(lab.server.trees.opens().len(), 0);
    c = again(&lab, &c, SHARE);
    assert_eq!(c.fails(leased().reconnect_v2(f.id, GUID)), NOT_FOUND);
    c.open(leased().durable_v2(GUID, 20_000));
    lab.stop_for(Duration::from_secs(25));
    assert_eq!(lab.server.trees.opens().len(), 0, "its time was over before somebody served the file again");
    assert_eq!(kept(&lab), []);
}

#[test]
fn users_have_no_more_kept_than_of_persistent_ones() {
    let mut lab = Lab::with(|s| {
        s.limits.persistent_opens_per_user_max = 3;
        s.limits.persistent_locks_per_user_max = 4;
    });
    let mut c = lab.ca_client();
    c.open(want("persistent").persistent(GUID, 0));
    let mut ids = Vec::new();
    for i in 0..4u32 {
        let f = c.open(want(&format!("f{i}")).oplock(oplock::BATCH).durable_v2(GUID + 1 + u128::from(i), 0));
        ids.push(f.id);
    }
    for i in 0..5 {
        c.call(&lock(ids[0], 0, &[(i * 10, 1, EXCLUSIVE)])).ok();
    }
    lab.stop_and_start();
    assert_eq!(lab.server.trees.persistent_opens(), 1);
    assert_eq!(lab.server.trees.opens().len(), 3);
    assert!(lab.server.trees.open(ids[0].persistent).is_none(), "too many locks");
}

#[test]
fn a_move_keeps_handles_of_the_shares_that_move() {
    let mut lab = Lab::with(|s| s.node = Some(9));
    let mut c = lab.client();
    let f = c.open(leased().durable_v2(GUID, 0));
    c.write(f.id, 0, b"moved");
    c.connect(THROUGH);
    let g = c.open(want("other").oplock(oplock::BATCH).durable_v2(GUID + 1, 0));
    lab.move_to(3, &[SHARE, CA]);
    let mut c = again(&lab, &c, SHARE);
    let back = c.open(leased().reconnect_v2(f.id, GUID));
    assert_eq!((back.id, c.read(back.id, 0, 10)), (f.id, b"moved".to_vec()));
    c.connect(THROUGH);
    assert_eq!(c.fails(want("other").oplock(oplock::BATCH).reconnect_v2(g.id, GUID + 1)), NOT_FOUND);
}

/// What is kept and cannot be taken up harms nothing else.
#[test]
fn one_that_conflicts_is_given_up() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(batch().durable());
    lab.server.trees.keep_durable(|_| true);
    let old = kept(&lab);
    assert_eq!(old.len(), 1);
    c.close(f.id);
    let g = c.open(want("file").share(0).persistent(GUID, 0));
    let scope = CommitScope::begin();
    let unknown = (vec![b'd', 0], vec![9, 9]);
    let put = old.into_iter().chain([unknown]).map(|(key, value)| HandleChange::Put { key, value });
    lab.handles.put(scope.id(), put.collect());
    lab.handles.commit(scope.id()).unwrap();
    lab.crash();
    assert_eq!((lab.server.trees.opens().len(), lab.server.trees.persistent_opens()), (1, 1));
    assert!(kept(&lab).iter().all(|(key, _)| key[0] != b'd'));
    let mut c = lab.ca_again(c.guid);
    assert_eq!(c.fails(batch().reconnect(f.id)), NOT_FOUND);
    c.open(want("file").share(0).reconnect_persistent(g.id, GUID));
}
