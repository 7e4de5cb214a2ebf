//! Persistent handles on a continuously available share, [MS-SMB2] 3.3.5.9.10 and 3.3.5.9.12: granted, taken up again after
//! the connection or the server was lost, and by nobody else. A killed server loses what it did not commit.

use std::time::Duration;

use arden_store::{
    commit::CommitScope,
    handles::{HandleChange, HandleStore},
};

use crate::client::*;

const GUID: u128 = 0x9E5_0001;
const EXCLUSIVE: u32 = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;
const UNLOCK: u32 = lock_flags::UNLOCK;

fn under_lease() -> Want {
    want("file").share(0).lease(1, "RWH")
}

fn flags_of(f: &Created) -> Option<u32> {
    f.context(tag::DURABLE_REQUEST_V2).map(|c| le_u32(c, 4))
}

/// `BVT_PersistentHandles`: the capabilities of the connection and the tree.
#[test]
fn bvt_persistent_handles() {
    let lab = Lab::new();
    for (dialect, has) in [(Dialect::Smb210, false), (Dialect::Smb300, true), (Dialect::Smb311, true)] {
        let mut c = lab.connect();
        let n = c.negotiate(&Offer::up_to(dialect));
        assert_eq!(n.capabilities & 0x10 != 0, has, "SMB2_GLOBAL_CAP_PERSISTENT_HANDLES with {dialect:?}");
        c.logon(&logon(USER));
        let capabilities = |c: &mut Client, share| c.connect(share).u32(8);
        assert_eq!(
            capabilities(&mut c, CA) & 0x10 != 0,
            has,
            "SMB2_SHARE_CAP_CONTINUOUS_AVAILABILITY with {dialect:?}"
        );
        assert_eq!(capabilities(&mut c, SHARE), 0);
    }
    let mut c = lab.connect();
    let n = c.negotiate(&Offer { capabilities: 0, ..Offer::up_to(Dialect::Smb311) });
    assert_eq!(n.capabilities & 0x10, 0, "who does not know them is not told of them");
    c.logon(&logon(USER));
    c.connect(CA);
    assert_eq!(flags_of(&c.open(under_lease().persistent(GUID, 0))), Some(0), "durable only");
}

#[test]
fn persistence_needs_nothing_cached_but_a_file_on_the_right_share() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    let plain =
        [want("a"), want("b").oplock(oplock::LEVEL_II), want("c").lease(1, "R"), want("d").oplock(oplock::BATCH)];
    for (i, how) in plain.into_iter().enumerate() {
        assert_eq!(flags_of(&c.open(how.persistent(GUID + i as u128, 0))), Some(2), "{i}");
    }
    assert_eq!(flags_of(&c.open(want("e").oplock(oplock::BATCH).durable_v2(GUID + 8, 0))), Some(0), "not asked for");
    assert_eq!(flags_of(&c.open(want("dir").directory().persistent(GUID + 9, 0))), Some(2));
    let durable = want("dir2").directory().lease(9, "RH").durable_v2(GUID + 11, 0);
    assert_eq!(flags_of(&c.open(durable)), None, "directories are not durable");
    assert_eq!(lab.server.trees.persistent_opens(), 5);
    let mut c = lab.client();
    assert_eq!(flags_of(&c.open(want("dir").directory().lease(10, "RH").persistent(GUID + 12, 0))), None);
    assert_eq!(flags_of(&c.open(want("f").oplock(oplock::BATCH).persistent(GUID + 10, 0))), Some(0));
}

/// Also where all that was acknowledged is durable without it; and the time is then that of the write.
#[test]
fn a_flush_shows_the_time_of_a_write() {
    let lab = Lab::new();
    for mut c in [lab.client(), lab.ca_client()] {
        let f = c.open(want("file"));
        let write_time = |c: &mut Client| c.query(f.id, file_class::BASIC)[16..24].to_vec();
        for times in 0..2 {
            let before = write_time(&mut c);
            // The time that is kept is the file system's own.
            std::thread::sleep(Duration::from_millis(20));
            c.write(f.id, 0, b"x");
            assert_eq!(write_time(&mut c), before, "not yet, {times}");
            c.call(&flush(f.id)).ok();
            let after = write_time(&mut c);
            assert_ne!(after, before, "{times}");
            lab.pass(Duration::from_secs(1));
            assert_eq!(write_time(&mut c), after, "{times}");
        }
        c.close(f.id);
    }
}

fn reconnects(first: Want, again: Want, restart: impl FnOnce(&mut Lab)) {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(first.persistent(GUID, 0));
    assert_eq!(flags_of(&f), Some(2));
    c.write(f.id, 0, b"before");
    c.disconnect();
    restart(&mut lab);
    let mut c = lab.ca_again(c.guid);
    let back = c.open(again.clone().reconnect_persistent(FileId { volatile: 0, ..f.id }, GUID));
    assert_eq!((back.id.persistent, back.action, back.size), (f.id.persistent, OPENED, 6));
    assert_eq!(back.contexts.iter().find(|c| c.0 == tag::LEASE), f.contexts.iter().find(|c| c.0 == tag::LEASE));
    assert_eq!(c.read(back.id, 0, 10), b"before");
    c.write(back.id, 6, b" and after");
    // Another loss of the connection, and of the server, takes nothing away.
    c.disconnect();
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    let back = c.open(again.clone().reconnect_persistent(back.id, GUID));
    assert_eq!(c.read(back.id, 0, 20), b"before and after");
    c.close(back.id);
    lab.crash();
    assert_eq!(lab.server.trees.opens().len(), 0, "closed is closed");
    lab.ca_client().open(want("file").share(0));
}

/// `BVT_PersistentHandle_Reconnect`
#[test]
fn bvt_persistent_handle_reconnect() {
    reconnects(under_lease(), under_lease(), |_| {});
    reconnects(want("file").share(0), want("file").share(0), |_| {});
}
#[test]
fn handles_outlive_a_killed_server() {
    for how in [
        under_lease(),
        want("file").share(0).lease_v1(1, "RWH"),
        want("file").share(0).lease(1, "RH"),
        want("file").share(0).oplock(oplock::BATCH),
        want("file").share(0),
    ] {
        reconnects(how.clone(), how, Lab::crash);
    }
}
#[test]
fn handles_outlive_a_stop() {
    reconnects(under_lease(), under_lease(), Lab::stop_and_start);
}

/// A file held by a persistent handle whose client and server are gone.
fn held(how: Want) -> (Lab, u128, FileId) {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(how.persistent(GUID, 0));
    c.disconnect();
    lab.crash();
    (lab, c.guid, f.id)
}

/// `PersistentHandle_ReOpenFromDiffClient`
#[test]
fn persistent_handle_re_open_from_diff_client() {
    let (lab, guid, id) = held(want("file").share(0));
    let mut other = lab.ca_client();
    assert_eq!(other.fails(want("file").share(0)), NtStatus::FILE_NOT_AVAILABLE);
    let mut old = lab.client_with(Dialect::Smb210);
    assert_eq!(old.fails(want("file")), NtStatus::SHARING_VIOLATION, "a status of SMB 3");
    let mut c = lab.ca_again(guid);
    let f = c.open(want("file").reconnect_persistent(id, GUID));
    assert_eq!(other.fails(want("file")), NtStatus::SHARING_VIOLATION, "its client is there");
    c.close(f.id);
    other.open(want("file").share(0));
}

#[test]
fn nobody_waits_longer_than_the_time_out() {
    let (lab, guid, id) = held(want("file").share(0));
    // The time that this takes comes on top.
    lab.pass(Duration::from_secs(45));
    assert_eq!(lab.ca_client().fails(want("file")), NtStatus::FILE_NOT_AVAILABLE);
    lab.pass(Duration::from_secs(16));
    lab.ca_client().open(want("file").share(0));
    let again = want("file").reconnect_persistent(id, GUID);
    assert_eq!(lab.ca_again(guid).fails(again), NtStatus::OBJECT_NAME_NOT_FOUND);
}

#[test]
fn the_time_out_is_the_clients_within_the_cap_and_counts_anew_after_a_restart() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    for (i, (asked, granted)) in [(0, 60_000), (10_000, 10_000), (u32::MAX, 300_000)].into_iter().enumerate() {
        let f = c.open(want(&format!("f{i}")).persistent(GUID + i as u128, asked));
        assert_eq!(f.durable_v2(), Some(granted));
    }
    c.disconnect();
    lab.pass(Duration::from_secs(8));
    lab.crash();
    lab.pass(Duration::from_secs(8));
    assert_eq!(lab.server.trees.opens().len(), 3);
    lab.pass(Duration::from_secs(4));
    assert_eq!(lab.server.trees.opens().len(), 2);
    lab.pass(Duration::from_secs(300));
    assert_eq!(lab.server.trees.opens().len(), 0);
    lab.ca_client().open(want("x"));
    lab.crash();
    assert_eq!(lab.server.trees.opens().len(), 0, "what is over does not come back");
}

#[test]
fn only_who_opened_it_takes_it_up() {
    let (lab, guid, id) = held(under_lease());
    let not_found = NtStatus::OBJECT_NAME_NOT_FOUND;
    let fails = |c: &mut Client, how: Want| c.fails(how);
    let again = || under_lease().reconnect_persistent(id, GUID);
    // Another client, another guid, lease key or name, no lease, no persistence, an older way.
    assert_eq!(fails(&mut lab.ca_client(), again()), not_found);
    let mut c = lab.ca_again(guid);
    assert_eq!(fails(&mut c, under_lease().reconnect_persistent(id, GUID + 1)), not_found);
    assert_eq!(fails(&mut c, want("file").lease(2, "RWH").reconnect_persistent(id, GUID)), not_found);
    assert_eq!(fails(&mut c, want("file").reconnect_persistent(id, GUID)), not_found);
    assert_eq!(fails(&mut c, under_lease().reconnect_v2(id, GUID)), not_found);
    assert_eq!(fails(&mut c, under_lease().reconnect(id)), not_found);
    let other_name = want("other").lease(1, "RWH").reconnect_persistent(id, GUID);
    assert_eq!(fails(&mut c, other_name), NtStatus::INVALID_PARAMETER);
    let both = again().persistent(GUID, 0);
    assert_eq!(fails(&mut c, both), NtStatus::INVALID_PARAMETER);
    // Another user of the same client.
    let mut other = lab.connect_as(guid);
    other.negotiate(&Offer::up_to(Dialect::Smb311));
    other.logon(&logon(OTHER));
    other.connect(CA);
    assert_eq!(fails(&mut other, again()), NtStatus::ACCESS_DENIED);
    // By another share, even of the same directory.
    for share in [CA_TOO, SHARE, SECOND] {
        c.connect(share);
        assert_eq!(fails(&mut c, again()), not_found, "{share}");
    }
    c.connect(CA);
    c.open(again());
    assert_eq!(fails(&mut c, again()), not_found, "it is connected");
}

#[test]
fn the_create_guid_finds_the_open_when_the_id_does_not() {
    let (lab, guid, id) = held(under_lease());
    let mut c = lab.ca_again(guid);
    let unknown = FileId { persistent: 0xDEAD, volatile: 0xDEAD };
    let f = c.open(under_lease().reconnect_persistent(unknown, GUID));
    assert_eq!(f.id.persistent, id.persistent);
}

#[test]
fn a_durable_handle_is_not_a_persistent_one() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(under_lease().durable_v2(GUID, 0));
    c.disconnect();
    let mut c = lab.ca_again(c.guid);
    let flagged = under_lease().reconnect_persistent(f.id, GUID);
    assert_eq!(c.fails(flagged), NtStatus::INVALID_PARAMETER);
    c.open(under_lease().reconnect_v2(f.id, GUID));
    c.disconnect();
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    assert_eq!(c.fails(under_lease().reconnect_v2(f.id, GUID)), NtStatus::OBJECT_NAME_NOT_FOUND);
}

#[test]
fn ids_do_not_come_again() {
    let (lab, guid, id) = held(under_lease());
    let mut other = lab.ca_client();
    for i in 0..5 {
        assert_ne!(other.open(want(&format!("f{i}"))).id, id);
    }
    lab.ca_again(guid).open(under_lease().reconnect_persistent(id, GUID));
}

#[test]
fn locks_and_their_sequences_are_kept() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let how = || want("file");
    let f = c.open(how().persistent(GUID, 0));
    c.write(f.id, 0, &[7; 100]);
    let sequence = |bucket: u32, number: u32| bucket << 4 | number;
    c.call(&lock(f.id, sequence(1, 1), &[(0, 10, EXCLUSIVE)])).ok();
    c.call(&lock(f.id, sequence(2, 1), &[(20, 10, EXCLUSIVE), (40, 10, EXCLUSIVE)])).ok();
    let shared = lock_flags::SHARED | lock_flags::FAIL_IMMEDIATELY;
    c.call(&lock(f.id, 0, &[(60, 10, shared)])).ok();
    c.call(&lock(f.id, 0, &[(60, 10, shared)])).ok();
    c.call(&lock(f.id, sequence(3, 5), &[(20, 10, UNLOCK)])).ok();
    c.disconnect();
    lab.crash();
    let mut other = lab.ca_client();
    assert_eq!(other.fails(how()), NtStatus::FILE_NOT_AVAILABLE);
    let mut c = lab.ca_again(c.guid);
    let back = c.open(how().reconnect_persistent(f.id, GUID));
    let g = other.open(how());
    let taken = |c: &mut Client, at: u64| c.status(&lock(g.id, 0, &[(at, 1, EXCLUSIVE)])) != NtStatus::SUCCESS;
    assert_eq!([0, 20, 40, 60].map(|at| taken(&mut other, at)), [true, false, true, true]);
    assert_eq!(other.try_write(g.id, 5, b"x"), Err(NtStatus::FILE_LOCK_CONFLICT));
    // What was answered is not done twice; what was not is.
    c.call(&lock(back.id, sequence(1, 1), &[(0, 10, EXCLUSIVE)])).ok();
    assert_eq!(c.status(&lock(back.id, sequence(1, 2), &[(0, 10, EXCLUSIVE)])), NtStatus::LOCK_NOT_GRANTED);
    c.call(&lock(back.id, sequence(3, 5), &[(20, 10, UNLOCK)])).ok();
    assert_eq!(c.status(&lock(back.id, sequence(3, 6), &[(20, 10, UNLOCK)])), NtStatus::RANGE_NOT_LOCKED);
    for _ in 0..2 {
        assert!(taken(&mut other, 60));
        c.call(&lock(back.id, 0, &[(60, 10, UNLOCK)])).ok();
    }
    assert!(!taken(&mut other, 60));
    c.close(back.id);
    lab.crash();
    let mut other = lab.ca_client();
    let g = other.open(how());
    other.call(&lock(g.id, 0, &[(0, 100, EXCLUSIVE)])).ok();
}

#[test]
fn delete_on_close_and_pending_deletions_are_kept() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(want("first").delete_on_close().persistent(GUID, 0));
    let g = c.open(want("second").persistent(GUID + 1, 0));
    // Somebody else deletes a file that is open: it goes with its last handle.
    let mut other = lab.client();
    let d = other.open(want("second"));
    assert_eq!(other.delete(d.id), NtStatus::SUCCESS);
    other.close(d.id);
    let h = c.open(want("third").persistent(GUID + 2, 0));
    assert_eq!(c.delete(h.id), NtStatus::SUCCESS);
    assert_eq!(c.set(h.id, file_class::DISPOSITION, &[0]), NtStatus::SUCCESS);
    c.disconnect();
    lab.crash();
    assert!(lab.host("first").exists() && lab.host("second").exists());
    assert_eq!(lab.client().fails(want("second")), NtStatus::DELETE_PENDING);
    let mut c = lab.ca_again(c.guid);
    for (i, (name, id)) in [("first", f.id), ("second", g.id), ("third", h.id)].into_iter().enumerate() {
        let back = c.open(want(name).reconnect_persistent(id, GUID + i as u128));
        c.close(back.id);
        assert_eq!(lab.host(name).exists(), name == "third", "{name}");
    }
}

#[test]
fn an_expired_handle_deletes_what_it_was_to() {
    let (lab, ..) = held(want("file").delete_on_close());
    assert!(lab.host("file").exists());
    lab.pass(Duration::from_secs(61));
    assert!(!lab.host("file").exists());
}

#[test]
fn renamed_files_are_found_and_deleted_ones_given_up() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    c.make_directory("d");
    let f = c.open(want("before").lease(1, "RWH").persistent(GUID, 0));
    assert_eq!(c.rename(f.id, "d\\after", false), NtStatus::SUCCESS);
    let g = c.open(want("outside").lease(2, "RWH").persistent(GUID + 1, 0));
    let h = c.open(want("gone").lease(3, "RWH").persistent(GUID + 2, 0));
    let i = c.open(want("stream:s").lease(4, "RWH").persistent(GUID + 3, 0));
    c.write(i.id, 0, b"in a stream");
    c.disconnect();
    std::fs::rename(lab.host("outside"), lab.host("moved")).unwrap();
    std::fs::remove_file(lab.host("gone")).unwrap();
    std::fs::write(lab.host("gone"), "another").unwrap();
    lab.crash();
    assert_eq!(lab.server.trees.opens().len(), 3);
    let mut c = lab.ca_again(c.guid);
    let back = c.open(want("d\\after").lease(1, "RWH").reconnect_persistent(f.id, GUID));
    c.write(back.id, 0, b"x");
    assert_eq!(std::fs::read(lab.host("d/after")).unwrap(), b"x");
    c.open(want("moved").lease(2, "RWH").reconnect_persistent(g.id, GUID + 1));
    let gone = want("gone").lease(3, "RWH").reconnect_persistent(h.id, GUID + 2);
    assert_eq!(c.fails(gone), NtStatus::OBJECT_NAME_NOT_FOUND);
    let back = c.open(want("stream:s").lease(4, "RWH").reconnect_persistent(i.id, GUID + 3));
    assert_eq!(c.read(back.id, 0, 20), b"in a stream");
}

/// `ReplayCreateDurableHandleV2PersistentTestCase`: the answer to a create was lost with the server.
#[test]
fn a_replayed_create_finds_its_handle() {
    let (mut lab, guid, id) = held(under_lease().disposition(CREATE));
    let again = || under_lease().disposition(CREATE).persistent(GUID, 0).replayed();
    let mut c = lab.ca_again(guid);
    assert_eq!(c.fails(under_lease().disposition(CREATE).persistent(GUID, 0)), NtStatus::DUPLICATE_OBJECTID);
    assert_eq!(c.fails(again().access(0x12_0089)), NtStatus(0xC000_0719), "CONTEXT_MISMATCH");
    assert_eq!(c.fails(want("file").lease(2, "RWH").persistent(GUID, 0).replayed()), NtStatus::ACCESS_DENIED);
    let f = c.open(again());
    assert_eq!((f.id, f.action, flags_of(&f)), (id, CREATED, Some(2)));
    let twice = c.open(again());
    assert_eq!(twice.id, id);
    c.write(f.id, 0, b"x");
    assert_eq!(c.fails(again()), NtStatus::FILE_NOT_AVAILABLE, "its client knows of it");
    c.disconnect();
    lab.crash();
    let mut c = lab.ca_again(guid);
    let f = c.open(again());
    assert_eq!(c.read(f.id, 0, 5), b"x");
}

#[test]
fn a_replayed_create_knows_the_file_that_it_made_without_a_handle() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    c.put("theirs", b"x");
    c.disconnect();
    let how = |name: &str, guid| want(name).disposition(CREATE).persistent(guid, 0);
    let mut doomed = lab.ca_client();
    let f = doomed.open(how("mine", GUID));
    doomed.close(f.id);
    lab.crash();
    let mut c = lab.ca_again(doomed.guid);
    assert_eq!(c.fails(how("mine", GUID)), NtStatus::OBJECT_NAME_COLLISION, "no replay");
    assert_eq!(c.fails(how("mine", GUID + 1).replayed()), NtStatus::OBJECT_NAME_COLLISION);
    assert_eq!(c.fails(how("theirs", GUID).replayed()), NtStatus::OBJECT_NAME_COLLISION);
    let f = c.open(how("mine", GUID).replayed());
    assert_eq!((f.action, flags_of(&f)), (CREATED, Some(2)));
}

#[test]
fn app_instances_fail_over_from_a_handle_that_waits() {
    let of = |guid| want("file").share(0).app_instance(5).app_version(1, guid as u64).persistent(guid, 0);
    let (lab, guid, id) = held(of(GUID));
    let mut other = lab.ca_client();
    let older = want("file").share(0).app_instance(5).app_version(1, 0);
    assert_eq!(other.fails(older), NtStatus(0xC000_00B6), "FILE_FORCED_CLOSED");
    other.open(of(GUID + 1));
    let back = want("file").reconnect_persistent(id, GUID);
    assert_eq!(lab.ca_again(guid).fails(back), NtStatus::OBJECT_NAME_NOT_FOUND);
}

#[test]
fn an_administrator_and_a_removed_share_end_handles() {
    let (mut lab, _, id) = held(want("file").share(0));
    assert!(lab.server.trees.close_open_by_id(id.persistent));
    lab.ca_client().open(want("file").share(0));
    lab.crash();
    assert_eq!(lab.server.trees.opens().len(), 0);
    let (lab, ..) = held(want("file").share(0));
    lab.server.trees.set_shares(Vec::new());
    assert_eq!(lab.server.trees.opens().len(), 0);
}

#[test]
fn what_is_acknowledged_is_committed_once_for_a_message() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    let before = lab.handles.commits();
    let f = c.open(want("file").persistent(GUID, 0));
    assert_eq!(lab.handles.commits(), before + 1);
    c.write(f.id, 0, b"x");
    c.read(f.id, 0, 1);
    assert_eq!(lab.handles.commits(), before + 1, "a write changes nothing that is kept of the open");
    assert!(lab.is_committed(CA));
    c.call(&flush(f.id)).ok();
    c.close(f.id);
    assert_eq!(lab.handles.commits(), before + 2);
}

/// The power fails between any two things that are kept of a request while others commit: its repetition is answered as
/// the request would have been.
fn repeated_after_a_crash_anywhere(ask: impl Fn(FileId) -> Req) {
    for batches in 0.. {
        let mut lab = Lab::new();
        let mut c = lab.ca_client();
        let f = c.open(under_lease().persistent(GUID, 0));
        c.call(&lock(f.id, 1 << 4 | 1, &[(0, 10, EXCLUSIVE), (20, 10, EXCLUSIVE), (40, 10, EXCLUSIVE)])).ok();
        lab.handles.die_after(batches);
        c.call(&ask(f.id)).ok();
        let whole = !lab.handles.is_dead();
        c.disconnect();
        lab.crash();
        let mut c = lab.ca_again(c.guid);
        let back = c.open(under_lease().reconnect_persistent(f.id, GUID));
        assert_eq!(c.status(&ask(back.id)), NtStatus::SUCCESS, "after {batches} batches");
        if whole {
            return;
        }
    }
}

#[test]
fn a_lock_is_kept_with_its_sequence() {
    repeated_after_a_crash_anywhere(|id| lock(id, 2 << 4 | 1, &[(60, 10, EXCLUSIVE), (80, 10, EXCLUSIVE)]));
}
#[test]
fn unlocks_are_kept_with_their_sequence() {
    repeated_after_a_crash_anywhere(|id| lock(id, 2 << 4 | 1, &[(0, 10, UNLOCK), (20, 10, UNLOCK), (40, 10, UNLOCK)]));
}

#[test]
fn a_new_open_is_kept_with_its_lease() {
    for batches in 0..4 {
        let mut lab = Lab::new();
        let mut c = lab.ca_client();
        lab.handles.die_after(batches);
        let f = c.open(under_lease().persistent(GUID, 0));
        c.disconnect();
        lab.crash();
        let mut c = lab.ca_again(c.guid);
        let again = c.open(under_lease().persistent(GUID, 0).replayed());
        let lease = |f: &Created| f.context(tag::LEASE).map(<[u8]>::to_vec);
        assert_eq!((lease(&again), flags_of(&again)), (lease(&f), Some(2)), "after {batches} batches");
    }
}

#[test]
fn nothing_is_kept_of_what_is_closed() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(under_lease().persistent(GUID, 0));
    c.call(&lock(f.id, 1 << 4 | 1, &[(0, 10, EXCLUSIVE)])).ok();
    c.call(&lock(f.id, 64 << 4 | 1, &[(20, 10, EXCLUSIVE)])).ok();
    // A refused one empties its bucket.
    assert_eq!(c.status(&lock(f.id, 1 << 4 | 2, &[(0, 10, EXCLUSIVE)])), NtStatus::LOCK_NOT_GRANTED);
    c.close(f.id);
    assert_eq!(lab.handles.load().unwrap(), []);
}

/// What is kept of a share that is not continuously available any more protects and deletes nothing later.
#[test]
fn handles_of_a_share_that_lost_its_availability_do_not_come_back() {
    let (lab, guid, id) = held(want("file").delete_on_close());
    let kept = lab.handles.load().unwrap();
    let open = lab.server.trees.open(id.persistent).unwrap();
    assert!(lab.server.trees.close_open_by_id(open.id.persistent));
    // The same share as a server has it that was started after it was changed: what was kept is there, and nothing of it is open.
    lab.ca_client().put("file", b"in use since");
    let scope = CommitScope::begin();
    let put = kept.into_iter().map(|(key, value)| HandleChange::Put { key, value }).collect();
    lab.handles.put(scope.id(), put);
    lab.handles.commit(scope.id()).unwrap();
    let shares: Vec<_> =
        lab.server.trees.shares().iter().filter(|s| s.name != "IPC$").map(|s| arden_smb::Share::clone(s)).collect();
    lab.server.trees.set_shares(Vec::new());
    let with = |available| {
        let shares = shares.iter().cloned();
        lab.server.trees.set_shares(
            shares
                .map(|s| arden_smb::Share { continuously_available: available && s.continuously_available, ..s })
                .collect(),
        );
    };
    with(false);
    with(true);
    assert_eq!(lab.server.trees.persistent_opens(), 0);
    assert!(lab.handles.load().unwrap().is_empty());
    let mut c = lab.ca_again(guid);
    assert_eq!(c.fails(want("file").reconnect_persistent(id, GUID)), NtStatus::OBJECT_NAME_NOT_FOUND);
    lab.pass(Duration::from_secs(61));
    assert!(lab.host("file").exists());
}

/// A file system gives the number of a deleted file to the next one, and what was restored from a backup while nobody served it has
/// other numbers: a handle is not taken up on a file that merely has the number of its own.
#[test]
fn a_handle_is_not_restored_on_a_file_that_has_the_number_of_another() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(want("file").persistent(GUID, 0).delete_on_close());
    // Times of birth may be as coarse as the clock's tick.
    std::thread::sleep(Duration::from_millis(30));
    std::fs::write(lab.host("other"), "of somebody else").unwrap();
    c.disconnect();
    let (key, mut value) = lab.handles.load().unwrap().into_iter().find(|(key, _)| key[0] == b'o').unwrap();
    let number = |name| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(lab.host(name)).unwrap()).to_le_bytes();
    let (own, others) = (number("file"), number("other"));
    let at = value.windows(8).position(|bytes| bytes == own).unwrap();
    value[at..at + 8].copy_from_slice(&others);
    let scope = CommitScope::begin();
    lab.handles.put(scope.id(), vec![HandleChange::Put { key, value }]);
    lab.handles.commit(scope.id()).unwrap();
    lab.crash();
    assert_eq!(lab.server.trees.persistent_opens(), 0);
    let mut c = lab.ca_again(c.guid);
    assert_eq!(c.fails(want("file").reconnect_persistent(f.id, GUID)), NtStatus::OBJECT_NAME_NOT_FOUND);
    lab.pass(Duration::from_secs(61));
    assert_eq!(std::fs::read(lab.host("other")).unwrap(), b"of somebody else");
}
