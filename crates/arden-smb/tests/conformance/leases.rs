//! File leases, [MS-SMB2] 3.3.4.7, 3.3.5.9.8, 3.3.5.9.11 and 3.3.5.22.2.

use crate::client::*;

fn with_lease(version: u8, key: u128, state: &str) -> Want {
    if version == 1 { want("file").lease_v1(key, state) } else { want("file").lease(key, state) }
}

fn file_leasing(version: u8) {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(with_lease(version, 77, "RWH"));
    let granted = f.lease_context().unwrap();
    assert_eq!((granted.key, granted.version, granted.flags), (77, version, 0));
    assert_eq!(f.lease(), "RWH");
    let waiting = two.starts(want("file"));
    assert_eq!(one.lease_break(), ("RWH".into(), "RH".into(), true));
    one.call(&lease_ack(77, "RH")).ok();
    let g = two.opened(waiting);
    let write_id = two.send(&write(g.id, 0, b"x"));
    assert_eq!(one.lease_break().1, "");
    if two.waits(write_id) {
        one.call(&lease_ack(77, "")).ok();
    }
    two.receive(write_id).ok();
    one.close(f.id);
    two.close(g.id);
}

/// `BVT_Leasing_FileLeasingV1`
#[test]
fn bvt_leasing_file_leasing_v1() {
    file_leasing(1);
}
/// `BVT_Leasing_FileLeasingV2`
#[test]
fn bvt_leasing_file_leasing_v2() {
    file_leasing(2);
}

fn same_key(version: u8) {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(with_lease(version, 5, "RWH"));
    let g = c.open(with_lease(version, 5, "RWH"));
    assert_eq!((f.lease(), g.lease()), ("RWH".into(), "RWH".into()));
    c.write(g.id, 0, b"under the same lease");
    assert!(c.breaks().is_empty());
    let mut other = Want { name: "another".into(), ..with_lease(version, 5, "RWH") };
    other.share = 7;
    assert_eq!(c.fails(other), NtStatus::INVALID_PARAMETER, "a key is for one file");
}

/// `Leasing_FileLeasingV1_SameLeaseKey`
#[test]
fn leasing_file_leasing_v1_same_lease_key() {
    same_key(1);
}
/// `Leasing_FileLeasingV2_SameLeaseKey`
#[test]
fn leasing_file_leasing_v2_same_lease_key() {
    same_key(2);
}

#[test]
fn states_are_granted_as_the_specification_has_them() {
    let lab = Lab::new();
    let mut c = lab.client();
    let cases = [("R", "R"), ("RH", "RH"), ("RW", "RW"), ("RWH", "RWH"), ("", ""), ("H", ""), ("W", ""), ("WH", "")];
    for (i, (asked, granted)) in cases.into_iter().enumerate() {
        let f = c.open(want(&format!("file{i}")).lease(100 + i as u128, asked));
        assert_eq!(f.lease(), granted, "asked for {asked}");
    }
}

#[test]
fn a_lease_is_upgraded_and_its_epoch_counts() {
    let lab = Lab::new();
    let mut c = lab.client();
    let epoch = |f: &Created| f.lease_context().unwrap().epoch;
    let f = c.open(want("file").lease(1, "R"));
    let g = c.open(want("file").lease(1, "RH"));
    assert_eq!(g.lease(), "RH");
    assert_eq!(epoch(&g), epoch(&f) + 1);
    let h = c.open(want("file").lease(1, "RWH"));
    assert_eq!(h.lease(), "RWH");
    assert_eq!(epoch(&h), epoch(&f) + 2);
    let i = c.open(want("file").lease(1, "R"));
    assert_eq!((i.lease(), epoch(&i)), ("RWH".into(), epoch(&h)), "never less than it has");
}

#[test]
fn acknowledgments_are_checked() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    one.open(want("file").lease(1, "RWH"));
    assert_eq!(one.status(&lease_ack(1, "RH")), NtStatus::UNSUCCESSFUL, "nothing is breaking");
    let waiting = two.starts(want("file"));
    one.breaks();
    assert_eq!(one.status(&lease_ack(2, "RH")), NtStatus::OBJECT_NAME_NOT_FOUND);
    assert_eq!(two.status(&lease_ack(1, "RH")), NtStatus::OBJECT_NAME_NOT_FOUND, "another client's");
    assert_eq!(one.status(&lease_ack(1, "RWH")), NtStatus::REQUEST_NOT_ACCEPTED, "more than is left");
    one.call(&lease_ack(1, "R")).ok();
    two.opened(waiting);
}

#[test]
fn an_open_during_a_break_says_so() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    one.open(want("file").lease(1, "RWH"));
    let waiting = two.starts(want("file"));
    one.breaks();
    let f = one.open(want("file").lease(1, "RWH"));
    assert_eq!(f.lease_context().unwrap().flags & 2, 2, "SMB2_LEASE_FLAG_BREAK_IN_PROGRESS");
    one.call(&lease_ack(1, "RH")).ok();
    two.opened(waiting);
}

#[test]
fn leases_need_a_dialect() {
    let lab = Lab::new();
    let f = lab.client_with(Dialect::Smb202).open(want("file").lease_v1(1, "RWH"));
    assert_eq!((f.oplock, f.lease()), (oplock::NONE, String::new()));
    let f = lab.client_with(Dialect::Smb210).open(want("two").lease(1, "RWH"));
    assert_eq!(f.lease(), "", "version 2 came with 3.0");
    let f = lab.client_with(Dialect::Smb210).open(want("three").lease_v1(1, "RWH"));
    assert_eq!(f.lease(), "RWH");
}

#[test]
fn notifications_carry_no_session_and_no_signature() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    one.open(want("file").lease(1, "RWH"));
    two.starts(want("file"));
    one.pump();
    let note = one.inbox.pop_front().unwrap();
    assert_eq!((note.header.message_id, note.header.session_id, note.header.tree_id()), (u64::MAX, 0, 0));
    assert_eq!(note.header.signature, [0; 16]);
    assert!(!note.signed);
    assert_eq!(note.u16(2), 2, "NewEpoch");
    assert_eq!((note.u32(32), note.u32(36), note.u32(40)), (0, 0, 0), "BreakReason and the hints");
}

/// `Comparing_Same_File_LeaseKeysV1`, `Comparing_Same_LeaseKeysV2`, `Compare_Zero_LeaseFlag_ParentLeaseKey`: a client that opens
/// the file under the key of another's lease leaves that alone, and caches nothing beside it.
#[test]
fn another_client_under_the_same_key_breaks_nothing_by_its_open() {
    for version in [1, 2] {
        let lab = Lab::new();
        let (mut one, mut two) = (lab.client(), lab.client());
        let f = one.open(with_lease(version, 0x99, "RWH"));
        let g = two.open(with_lease(version, 0x99, "RWH"));
        assert_eq!((f.lease(), g.lease()), ("RWH".into(), "".into()));
        assert_eq!((g.oplock, g.lease_context().unwrap().key), (oplock::LEASE, 0x99));
        let h = two.open(with_lease(version, 0x99, "RH"));
        assert_eq!(h.lease(), "", "nor by a second open");
        two.query(g.id, file_class::STANDARD);
        two.close(h.id);
        assert!(one.breaks().is_empty());
        // With the first's last open gone, the second is alone.
        one.close(f.id);
        assert_eq!(two.open(with_lease(version, 0x99, "RWH")).lease(), "RWH");
        two.write(g.id, 0, b"x");
        assert!(one.breaks().is_empty() && two.breaks().is_empty());
    }
}

/// What the first client may still have to write back is asked for before the second works on data, however it does so.
#[test]
fn work_under_the_same_key_of_another_client_waits_for_its_break() {
    let locked = |id| lock(id, 0, &[(0, 1, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)]);
    let works: [(&str, &dyn Fn(FileId) -> Req); 6] = [
        ("READ", &|id| read(id, 0, 4)),
        ("WRITE", &|id| write(id, 0, b"two")),
        ("LOCK", &locked),
        ("FSCTL_SET_ZERO_DATA", &|id| ioctl(id, fsctl::SET_ZERO_DATA, &pair(0, 1), 0)),
        ("FSCTL_QUERY_ALLOCATED_RANGES", &|id| ioctl(id, fsctl::QUERY_ALLOCATED_RANGES, &pair(0, 9), 16)),
        ("FileEndOfFileInformation", &|id| {
            set_info(id, info_type::FILE, file_class::END_OF_FILE, 0, &[9, 0, 0, 0, 0, 0, 0, 0])
        }),
    ];
    for (name, work) in works {
        let lab = Lab::new();
        let (mut one, mut two) = (lab.client(), lab.client());
        let f = one.open(want("file").lease(5, "RWH"));
        one.write(f.id, 0, b"old!");
        let g = two.open(want("file").lease(5, "RWH"));
        let waiting = two.send(&work(g.id));
        assert_eq!(one.lease_break(), ("RWH".into(), "RH".into(), true), "{name}");
        assert!(two.waits(waiting), "{name}");
        one.write(f.id, 0, b"new!");
        one.call(&lease_ack(5, "RH")).ok();
        let answer = two.receive(waiting);
        assert_eq!(answer.status(), NtStatus::SUCCESS, "{name}");
        if name == "READ" {
            assert_eq!(answer.read_data(), b"new!");
        }
        // From then on as beside any other client.
        one.breaks();
        assert!(!one.open(want("file").lease(5, "RWH")).lease().contains('W'), "{name}");
        two.call(&read(g.id, 0, 1)).ok();
    }
}

/// The source of a copy is no handle that the request names.
#[test]
fn a_copy_from_under_the_same_key_of_another_client_waits_too() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file").lease(5, "RWH"));
    one.write(f.id, 0, b"old!");
    let g = two.open(want("file").lease(5, "RWH"));
    let to = two.open(want("to")).id;
    let mut key = Vec::new();
    g.id.put(&mut key);
    key.put_zeros(8);
    let waiting = two.send(&ioctl(to, fsctl::SRV_COPYCHUNK, &copy_chunks(&key, &[(0, 0, 4)]), 12));
    assert_eq!(one.lease_break(), ("RWH".into(), "RH".into(), true));
    one.write(f.id, 0, b"new!");
    one.call(&lease_ack(5, "RH")).ok();
    two.receive(waiting).ok();
    assert_eq!(two.read(to, 0, 4), b"new!");
}

/// What an open itself would spoil is not put off: an overwrite, and a share mode that stands against it.
#[test]
fn an_open_that_overwrites_or_does_not_share_breaks_under_any_key() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file").lease(5, "RWH"));
    let waiting = two.starts(want("file").disposition(5).lease(5, "RWH"));
    assert_eq!(one.lease_break(), ("RWH".into(), String::new(), true));
    one.call(&lease_ack(5, "")).ok();
    let g = two.opened(waiting);
    one.close(f.id);
    two.close(g.id);
    let f = one.open(want("file").share(0).lease(5, "RWH"));
    let waiting = two.starts(want("file").lease(5, "RWH"));
    assert_eq!(one.lease_break(), ("RWH".into(), "RW".into(), true));
    one.close(f.id);
    two.opened(waiting);
}

/// A third client's open breaks as ever, and who does not answer loses the lease.
#[test]
fn a_break_that_was_put_off_comes_with_others_and_ends_in_time() {
    let lab = Lab::new();
    let (mut one, mut two, mut three) = (lab.client(), lab.client(), lab.client());
    one.open(want("file").lease(5, "RWH"));
    let g = two.open(want("file").lease(5, "RWH"));
    let waiting = three.starts(want("file").lease(6, "RWH"));
    assert_eq!(one.lease_break(), ("RWH".into(), "RH".into(), true));
    let late = two.send(&write(g.id, 0, b"x"));
    assert!(two.waits(late));
    lab.pass(std::time::Duration::from_secs(36));
    assert_eq!(three.opened(waiting).lease(), "RH");
    two.receive(late).ok();
    assert!(one.breaks().is_empty(), "it has nothing left");
}

/// `Comparing_Same_Directory_LeaseKeysV1`
#[test]
fn comparing_same_lease_keys() {
    for version in [1, 2] {
        let lab = Lab::new();
        let (mut one, mut two) = (lab.client(), lab.client());
        // The same key of two clients is two leases.
        let f = one.open(with_lease(version, 0x99, "RH"));
        let g = two.open(with_lease(version, 0x99, "RH"));
        assert_eq!(f.lease_context().unwrap().key, 0x99);
        assert_eq!(g.lease_context().unwrap().key, 0x99);
        assert_eq!((f.lease(), g.lease()), ("RH".into(), "RH".into()));
    }
}

/// `Compare_Zero_LeaseFlag_ParentLeaseKey`, `DirectoryComparing_Child_Invalid_ParentLeaseKeys`
#[test]
fn compare_zero_lease_flag_parent_lease_key() {
    let lab = Lab::new();
    let mut c = lab.client();
    let lease = arden_wire::smb2::create::LeaseContext {
        key: 1,
        state: state_bits("R"),
        flags: 0,
        parent_key: 0x1234,
        epoch: 0,
        version: 2,
    };
    let f = c.open(want("file").oplock(oplock::LEASE).context(tag::LEASE, lease.encode()));
    let granted = f.lease_context().unwrap();
    assert_eq!((granted.parent_key, granted.flags), (0, 0));
}

/// `DirectoryComparing_LeaseKeysV2`, `DirectoryComparing_ParentLeaseKey_ChildLeaseKey`
#[test]
fn directory_comparing_lease_keys_v2() {
    let lab = Lab::new();
    let mut c = lab.client();
    let d = c.open(want("dir").directory().lease(0x10, "RH"));
    for w in [want("dir\\file"), want("dir\\sub").directory()] {
        let key = 0x11 + u128::from(w.options);
        let f = c.open(w.lease_under(key, "RH", 0x10));
        let granted = f.lease_context().unwrap();
        assert_eq!(granted.parent_key, d.lease_context().unwrap().key);
        assert_eq!(granted.flags & 4, 4, "SMB2_LEASE_FLAG_PARENT_LEASE_KEY_SET");
    }
    assert!(c.breaks().is_empty());
}

/// [MS-FSA] 2.1.5.15.12: the oplocks of a file are broken before it is found that its name stays what it is.
#[test]
fn a_rename_to_the_same_name_breaks_handle_caching() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    one.open(want("file").lease(1, "RH"));
    let f = two.open(want("file").lease(2, "RH")).id;
    let renamed = two.send(&set_info(f, info_type::FILE, file_class::RENAME, 0, &name_change("file", false)));
    two.interim(renamed);
    assert_eq!(one.lease_break(), ("RH".into(), "R".into(), true));
    one.call(&lease_ack(1, "R")).ok();
    two.receive(renamed).ok();
    assert!(two.breaks().is_empty(), "its own lease stays");
}
