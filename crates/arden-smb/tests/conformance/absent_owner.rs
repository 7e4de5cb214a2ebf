//! What a continuously available share owes the absent owner of a persistent open, [MS-SMB2] 3.3.5.9: nobody gets at the
//! file before it is back or its time is over. Each rule holds after a lost connection and after a killed server.

use std::time::Duration;

use crate::client::*;

const GUID: u128 = 0x9E5_2001;
const LOCK: u32 = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;
const READ_ONLY_ACCESS: u32 = FILE_READ_DATA | FILE_READ_ATTRIBUTES;

/// How an owner gets lost.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Loss {
    Connection,
    Server,
}
const LOSSES: [Loss; 2] = [Loss::Connection, Loss::Server];

fn lose(lab: &mut Lab, c: &mut Client, loss: Loss) {
    c.disconnect();
    if loss == Loss::Server {
        lab.crash();
    }
}

/// Who opened `how` and is gone; its ClientGuid and the handle.
fn absent(lab: &mut Lab, how: Want, loss: Loss) -> (u128, FileId) {
    let mut c = lab.ca_client();
    let f = c.open(how.persistent(GUID, 0));
    lose(lab, &mut c, loss);
    (c.guid, f.id)
}

/// `FileServerFailover_BlockCreateFromDifferentClient`
#[test]
fn block_create_from_different_client() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        let (guid, id) = absent(&mut lab, want("file"), loss);
        let mut other = lab.ca_client();
        for how in [
            want("file"),
            want("FILE"),
            want("file::$DATA"),
            want("file").access(FILE_READ_DATA),
            want("file").access(FILE_WRITE_ATTRIBUTES),
            want("file").access(FILE_WRITE_EA),
            want("file").access(0x0200_0000),
            want("file").delete_on_close(),
            want("file").disposition(OVERWRITE_IF),
            want("file").disposition(SUPERSEDE),
            want("file").lease(7, "RWH"),
            want("file").oplock(oplock::BATCH),
            want("file").persistent(GUID + 1, 0),
            want("file").persistent(GUID + 1, 0).replayed(),
        ] {
            assert_eq!(other.fails(how.clone()), NtStatus::FILE_NOT_AVAILABLE, "{loss:?} {how:?}");
        }
        assert_eq!(lab.ca_again(guid).fails(want("file")), NtStatus::FILE_NOT_AVAILABLE, "another program of its own");
        assert_eq!(lab.client().fails(want("file")), NtStatus::FILE_NOT_AVAILABLE, "by a share that is not available");
        let mut old = lab.client_with(Dialect::Smb210);
        assert_eq!(old.fails(want("file")), NtStatus::SHARING_VIOLATION, "a dialect without that status");
        // Who asks for nothing but attributes or a stream of its own does the owner no harm.
        let f = other.open(want("file").access(FILE_READ_ATTRIBUTES | READ_CONTROL | SYNCHRONIZE));
        other.query(f.id, file_class::BASIC);
        other.open(want("file:stream"));
        let mut c = lab.ca_again(guid);
        c.open(want("file").reconnect_persistent(id, GUID));
        other.open(want("file"));
    }
}

#[test]
fn links_and_ids_lead_to_the_same_file() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        let mut c = lab.ca_client();
        let f = c.open(want("file").persistent(GUID, 0));
        assert_eq!(c.set(f.id, file_class::LINK, &name_change("link", false)), NtStatus::SUCCESS);
        lose(&mut lab, &mut c, loss);
        let mut other = lab.ca_client();
        assert_eq!(other.fails(want("link")), NtStatus::FILE_NOT_AVAILABLE, "{loss:?}");
    }
}

/// What holds a file for its absent owner, and what a newcomer asks for.
#[derive(Debug, Clone, Copy)]
struct Case {
    lease: &'static str,
    share: u32,
    locked: bool,
    overwrite: bool,
}

fn contended(case: Case, loss: Loss) {
    let Case { lease, share, locked, overwrite } = case;
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let how = || {
        let w = want("file").share(share);
        if lease.is_empty() { w } else { w.lease(1, lease) }
    };
    let f = c.open(how().persistent(GUID, 0));
    assert_eq!(f.lease(), lease);
    if locked {
        c.call(&lock(f.id, 0, &[(0, 1, LOCK)])).ok();
    }
    lose(&mut lab, &mut c, loss);
    let mut other = lab.ca_client();
    let newcomer = want("file").disposition(if overwrite { OVERWRITE } else { OPEN });
    let back = |lab: &Lab| {
        let mut c = lab.ca_again(c.guid);
        let f = c.open(how().reconnect_persistent(f.id, GUID));
        assert_eq!(f.lease(), lease, "{case:?} {loss:?}");
        (c, f.id)
    };
    let waited_for = lease.contains('H') && (lease.contains('W') || !locked);
    if !waited_for {
        assert_eq!(other.fails(newcomer), NtStatus::FILE_NOT_AVAILABLE, "{case:?} {loss:?}");
        let (mut c, _) = back(&lab);
        assert_eq!(c.breaks(), []);
        return;
    }
    let conflict = share == 0;
    if !conflict && !lease.contains('W') {
        other.open(newcomer);
        let (mut c, _) = back(&lab);
        if overwrite {
            assert_eq!(c.lease_break(), (lease.into(), String::new(), true));
        } else {
            assert_eq!(c.breaks(), []);
        }
        return;
    }
    let waiting = other.starts(newcomer);
    let (mut c, _) = back(&lab);
    if loss == Loss::Connection {
        let to = match (conflict, overwrite) {
            (true, _) => lease.replace('H', ""),
            (false, true) => String::new(),
            (false, false) => "RH".into(),
        };
        assert_eq!(c.lease_break(), (lease.into(), to.clone(), true), "{case:?}");
        assert!(other.waits(waiting));
        c.call(&lease_ack(1, &to)).ok();
    } else {
        let (_, to, _) = c.lease_break();
        c.call(&lease_ack(1, &to)).ok();
    }
    if conflict {
        assert_eq!(other.receive(waiting).status(), NtStatus::SHARING_VIOLATION, "{case:?}");
    } else {
        other.opened(waiting);
    }
}

/// An owner whose lease has handle caching is waited for, as if it were there; every other keeps newcomers out at once,
/// and so does one that holds locks and cannot cache writes.
#[test]
fn newcomers_wait_for_handle_caching_and_are_refused_without() {
    for loss in LOSSES {
        for lease in ["", "R", "RW", "RH", "RWH"] {
            for share in [0, 7] {
                for (locked, overwrite) in [(false, false), (false, true), (true, false), (true, true)] {
                    contended(Case { lease, share, locked, overwrite }, loss);
                }
            }
        }
    }
}

#[test]
fn of_the_oplocks_only_batch_is_waited_for() {
    for loss in LOSSES {
        for level in [oplock::NONE, oplock::LEVEL_II, oplock::EXCLUSIVE] {
            let mut lab = Lab::new();
            let (guid, id) = absent(&mut lab, want("file").oplock(level), loss);
            assert_eq!(lab.ca_client().fails(want("file")), NtStatus::FILE_NOT_AVAILABLE, "{loss:?} {level}");
            let f = lab.ca_again(guid).open(want("file").oplock(level).reconnect_persistent(id, GUID));
            assert_eq!(f.oplock, level);
        }
        let mut lab = Lab::new();
        absent(&mut lab, want("file").oplock(oplock::BATCH), loss);
        lab.ca_client().starts(want("file"));
    }
}

#[test]
fn another_open_of_the_owners_lease_is_let_in() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        let (guid, id) = absent(&mut lab, want("file").lease(1, "RW"), loss);
        let mut c = lab.ca_again(guid);
        assert_eq!(c.fails(want("file").lease(2, "R")), NtStatus::FILE_NOT_AVAILABLE);
        c.open(want("file").lease(1, "RW"));
        // The key alone is nothing.
        assert_eq!(lab.ca_client().fails(want("file").lease(1, "RW")), NtStatus::FILE_NOT_AVAILABLE);
        c.open(want("file").lease(1, "RW").reconnect_persistent(id, GUID));
    }
}

/// Everybody may read the attributes of most files: that must not be enough to keep others from them.
#[test]
fn who_cannot_touch_the_data_keeps_nobody_out() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        absent(&mut lab, want("file").access(FILE_READ_ATTRIBUTES | FILE_WRITE_ATTRIBUTES | READ_CONTROL), loss);
        lab.ca_client().open(want("file"));
    }
}

#[test]
fn owners_of_streams_are_absent_from_their_file_too() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        lab.ca_client().put("file", b"data");
        let (guid, id) = absent(&mut lab, want("file:s"), loss);
        let mut other = lab.ca_client();
        assert_eq!(other.fails(want("file:S")), NtStatus::FILE_NOT_AVAILABLE);
        // These would take the stream away.
        for how in [want("file"), want("file").disposition(OVERWRITE).access(FILE_WRITE_DATA)] {
            assert_eq!(other.fails(how), NtStatus::FILE_NOT_AVAILABLE, "{loss:?}");
        }
        let f = other.open(want("file").access(FILE_READ_DATA | FILE_WRITE_DATA));
        assert_eq!(other.read(f.id, 0, 10), b"data");
        lab.ca_again(guid).open(want("file:s").reconnect_persistent(id, GUID));
    }
}

#[test]
fn nothing_is_renamed_linked_or_deleted_over_an_absent_owner() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        let mut other = lab.ca_client();
        other.make_directory("d");
        other.make_directory("d\\e");
        other.put("new", b"new");
        let (guid, id) = absent(&mut lab, want("d\\e\\file"), loss);
        let mut other = lab.ca_client();
        let n = other.open(want("new"));
        let over = |posix: u8| {
            let mut data = name_change("d\\e\\file", true);
            data[0] = 1 | posix;
            data
        };
        assert_eq!(other.set(n.id, file_class::RENAME, &over(0)), NtStatus::ACCESS_DENIED);
        assert_eq!(other.set(n.id, file_class::LINK, &over(0)), NtStatus::ACCESS_DENIED);
        assert_eq!(other.set(n.id, file_class::RENAME_EX, &over(2)), NtStatus::FILE_NOT_AVAILABLE, "by POSIX rules");
        for parent in ["d", "d\\e"] {
            let d = other.open(want(parent).directory());
            assert_eq!(other.rename(d.id, "elsewhere", false), NtStatus::ACCESS_DENIED, "{parent}");
            assert_eq!(other.delete(d.id), NtStatus::DIRECTORY_NOT_EMPTY);
            other.close(d.id);
        }
        let mut c = lab.ca_again(guid);
        c.open(want("d\\e\\file").reconnect_persistent(id, GUID));
    }
}

#[test]
fn an_open_from_before_deletes_the_name_only_when_the_owner_is_done() {
    let mut lab = Lab::new();
    let mut other = lab.ca_client();
    let g = other.open(want("file"));
    let (guid, id) = absent(&mut lab, want("file"), Loss::Connection);
    let posix = |c: &mut Client| c.set(g.id, file_class::DISPOSITION_EX, &[3, 0, 0, 0]);
    assert_eq!(posix(&mut other), NtStatus::FILE_NOT_AVAILABLE);
    assert_eq!(other.delete(g.id), NtStatus::SUCCESS);
    other.close(g.id);
    assert!(lab.host("file").exists());
    assert_eq!(other.fails(want("file")), NtStatus::DELETE_PENDING);
    lab.crash();
    let mut c = lab.ca_again(guid);
    let f = c.open(want("file").reconnect_persistent(id, GUID));
    c.write(f.id, 0, b"x");
    c.close(f.id);
    assert!(!lab.host("file").exists());
}

#[test]
fn the_time_out_bounds_it_and_an_administrator_ends_it() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        let (guid, id) = absent(&mut lab, want("file"), loss);
        // The time that this takes comes on top.
        lab.pass(Duration::from_secs(45));
        assert_eq!(lab.ca_client().fails(want("file")), NtStatus::FILE_NOT_AVAILABLE);
        lab.pass(Duration::from_secs(16));
        lab.ca_client().open(want("file"));
        let again = want("file").reconnect_persistent(id, GUID);
        assert_eq!(lab.ca_again(guid).fails(again), NtStatus::OBJECT_NAME_NOT_FOUND);

        let mut lab = Lab::new();
        let (_, id) = absent(&mut lab, want("file"), loss);
        assert!(lab.server.trees.close_open_by_id(id.persistent));
        lab.ca_client().open(want("file"));
    }
}

/// While its owner is away nobody else may learn of the file what its descriptor does not let it.
#[test]
fn who_has_no_access_is_not_told_of_absent_owners() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        let mut c = lab.ca_client();
        let f = c.open(want("file").persistent(GUID, 0));
        // Nobody is let in any more.
        let mut sd = vec![1, 0, 4, 0x80];
        sd.extend_from_slice(&[0; 12]);
        sd.extend_from_slice(&20u32.to_le_bytes());
        sd.extend_from_slice(&[2, 0, 8, 0, 0, 0, 0, 0]);
        c.call(&set_info(f.id, info_type::SECURITY, 0, 4, &sd)).ok();
        lose(&mut lab, &mut c, loss);
        let mut other = lab.connect();
        other.negotiate(&Offer::up_to(Dialect::Smb311));
        other.logon(&logon(OTHER));
        other.connect(CA);
        assert_eq!(other.fails(want("file").access(READ_ONLY_ACCESS)), NtStatus::ACCESS_DENIED);
    }
}

#[test]
fn an_application_instance_takes_its_file_over() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        absent(&mut lab, want("file").app_instance(5), loss);
        let mut other = lab.ca_client();
        assert_eq!(other.fails(want("file").app_instance(6)), NtStatus::FILE_NOT_AVAILABLE);
        other.open(want("file").app_instance(5).persistent(GUID + 1, 0));
    }
}

/// One user's handles do not fill the store, nor the memory of the next start.
#[test]
fn a_user_keeps_so_many_handles_and_locks() {
    let mut lab = Lab::with(|s| {
        s.limits.persistent_opens_per_user_max = 3;
        s.limits.persistent_locks_per_user_max = 4;
    });
    let persists = |f: &Created| f.context(tag::DURABLE_REQUEST_V2).is_some_and(|d| le_u32(d, 4) == 2);
    let how = |i: u128| want(&format!("f{i}")).lease(i, "RWH").persistent(GUID + i, 0);
    let mut c = lab.ca_client();
    let first = c.open(how(1));
    assert!(persists(&first) && persists(&c.open(how(2))));
    // Absent ones count.
    c.disconnect();
    let mut d = lab.ca_client();
    assert!(persists(&d.open(how(3))));
    let plain = d.open(how(4));
    assert_eq!(plain.context(tag::DURABLE_REQUEST_V2).map(|c| le_u32(c, 4)), Some(0), "durable, and no more");
    let mut other = lab.connect();
    other.negotiate(&Offer::up_to(Dialect::Smb311));
    other.logon(&logon(OTHER));
    other.connect(CA);
    assert!(persists(&other.open(how(5))), "another user's");
    // They are counted again after a restart.
    other.disconnect();
    d.disconnect();
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    assert!(!persists(&c.open(how(6))));
    let back = c.open(want("f1").lease(1, "RWH").reconnect_persistent(first.id, GUID + 1));
    let range = |at: u64| (at * 10, 10, LOCK);
    c.call(&lock(back.id, 0, &[range(0), range(1), range(2)])).ok();
    assert_eq!(c.status(&lock(back.id, 0, &[range(3), range(4)])), NtStatus::INSUFFICIENT_RESOURCES);
    assert_eq!(
        c.status(&lock(back.id, 0, &[range(0)])),
        NtStatus::LOCK_NOT_GRANTED,
        "what is refused counts for nothing"
    );
    c.call(&lock(back.id, 0, &[range(3)])).ok();
    c.call(&lock(back.id, 0, &[(0, 10, lock_flags::UNLOCK)])).ok();
    c.call(&lock(back.id, 0, &[range(4)])).ok();
    c.disconnect();
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    let back = c.open(want("f1").lease(1, "RWH").reconnect_persistent(first.id, GUID + 1));
    assert_eq!(c.status(&lock(back.id, 0, &[range(9)])), NtStatus::INSUFFICIENT_RESOURCES, "counted again");
    c.close(back.id);
    assert!(persists(&c.open(how(7))), "a closed one makes room, and its locks");
}

#[test]
fn a_long_name_is_not_kept() {
    let mut lab = Lab::with(|s| s.limits.persistent_path_units_max = 20);
    let mut c = lab.ca_client();
    c.make_directory("directory");
    let flags = |f: &Created| f.context(tag::DURABLE_REQUEST_V2).map(|d| le_u32(d, 4));
    let long = c.open(want("directory\\long-enough").persistent(GUID, 0));
    assert_eq!(flags(&long), None);
    let f = c.open(want("short").lease(1, "RWH").persistent(GUID + 1, 0));
    assert_eq!(flags(&f), Some(2));
    assert_eq!(c.rename(f.id, "directory\\renamed-to-more", false), NtStatus::SUCCESS);
    c.disconnect();
    let long = "directory\\renamed-to-more";
    let mut c = lab.ca_again(c.guid);
    c.open(want(long).lease(1, "RWH").reconnect_persistent(f.id, GUID + 1));
    c.disconnect();
    lab.crash();
    // Kept without its path; a directory of the host does not find files by their ids alone.
    assert_eq!(lab.server.trees.opens().len(), 0);
}

/// A lock that failed after one that was done leaves nothing of the sequence, over a restart too.
#[test]
fn a_refused_lock_empties_its_bucket_for_good() {
    for loss in LOSSES {
        let mut lab = Lab::new();
        let mut c = lab.ca_client();
        let f = c.open(want("file").persistent(GUID, 0));
        let ask = |id, number: u32, at| lock(id, 1 << 4 | number, &[(at, 10, LOCK)]);
        c.call(&ask(f.id, 1, 0)).ok();
        assert_eq!(c.status(&ask(f.id, 2, 0)), NtStatus::LOCK_NOT_GRANTED);
        lose(&mut lab, &mut c, loss);
        let mut c = lab.ca_again(c.guid);
        let back = c.open(want("file").reconnect_persistent(f.id, GUID));
        assert_eq!(c.status(&ask(back.id, 1, 0)), NtStatus::LOCK_NOT_GRANTED, "{loss:?}: not the one that was done");
    }
}
