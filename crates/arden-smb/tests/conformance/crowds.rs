//! Requests that have to look at many who cache a file or wait for it, or to tell them something, and lists that are long: none keeps
//! a thread that serves others.

use crate::client::*;

/// More than are looked at where nothing may block.
const MANY: u128 = 600;
const FEW: u128 = 20;

const NOW: u32 = lock_flags::FAIL_IMMEDIATELY;

/// Whether a request goes to a thread that may block. It is done there.
fn leaves(c: &mut Client, req: &Req) -> bool {
    c.held = Some(Vec::new());
    let id = c.send(req);
    let held = c.run_held();
    let status = c.receive(id).status();
    assert!(!status.is_error(), "{status}");
    held > 0
}

#[test]
fn what_many_cache_is_changed_where_it_may_take_long() {
    for (leases, many) in [(MANY, true), (FEW, false)] {
        let lab = Lab::new();
        let (mut one, mut two) = (lab.client(), lab.client());
        let f = one.open(want("file")).id;
        one.write(f, 0, &[7; 100]);
        for n in 0..leases {
            assert_eq!(two.open(want("file").lease(1000 + n, "RH")).lease(), "RH");
        }
        assert!(!leaves(&mut one, &read(f, 0, 10)), "nobody has to hear of it");
        let size = set_info(f, info_type::FILE, file_class::END_OF_FILE, 0, &10u64.to_le_bytes());
        assert_eq!(leaves(&mut one, &write(f, 0, b"x")), many, "a write, {leases}");
        assert_eq!(two.breaks().len(), leases as usize);
        assert_eq!(leaves(&mut one, &size), many, "a size, {leases}");
        assert_eq!(leaves(&mut one, &lock(f, 0, &[(0, 1, lock_flags::EXCLUSIVE | NOW)])), many, "a lock, {leases}");
        assert_eq!(leaves(&mut two, &lease_ack(1000, "")), many, "an answer, {leases}");
        assert_eq!(leaves(&mut one, &want("file").req()), many, "an open, {leases}");
        assert_eq!(leaves(&mut one, &close(f)), many, "a close, {leases}");
    }
}

#[test]
fn a_break_of_many_opens_is_answered_where_it_may_take_long() {
    for (opens, many) in [(MANY, true), (FEW, false)] {
        let lab = Lab::new();
        let (mut one, mut two) = (lab.client(), lab.client());
        for _ in 0..opens {
            one.open(want("file").lease(5, "RWH"));
        }
        let waiting = two.starts(want("file"));
        assert_eq!(one.lease_break(), ("RWH".into(), "RH".into(), true));
        assert_eq!(leaves(&mut one, &lease_ack(5, "RH")), many, "{opens}");
        two.opened(waiting);
    }
}

#[test]
fn many_waiting_locks_are_tried_where_it_may_take_long() {
    for (waiting, many) in [(MANY as u64, true), (FEW as u64, false)] {
        let lab = Lab::new();
        let (mut one, mut two) = (lab.client(), lab.client());
        let (f, g) = (one.open(want("file")).id, two.open(want("file")).id);
        one.call(&lock(f, 0, &[(0, 1, lock_flags::EXCLUSIVE | NOW), (1, 1, lock_flags::EXCLUSIVE | NOW)])).ok();
        for n in 0..waiting {
            let id = two.send(&lock(g, 0, &[(0, 10 + n, lock_flags::EXCLUSIVE)]));
            two.interim(id);
        }
        assert_eq!(leaves(&mut one, &lock(f, 0, &[(1, 1, lock_flags::UNLOCK)])), many, "{waiting}");
        assert_eq!(leaves(&mut one, &close(f)), many, "{waiting}");
    }
}

/// Those who wait are looked at once for all that a request unlocks, and the first of them is the first that it is given to.
#[test]
fn what_one_request_unlocks_goes_to_who_has_waited_longest() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let (f, g) = (one.open(want("file")).id, two.open(want("file")).id);
    one.call(&lock(f, 0, &[(0, 1, lock_flags::EXCLUSIVE | NOW), (1, 1, lock_flags::EXCLUSIVE | NOW)])).ok();
    let first = two.send(&lock(g, 0, &[(0, 2, lock_flags::EXCLUSIVE)]));
    two.interim(first);
    let second = two.send(&lock(g, 0, &[(0, 1, lock_flags::EXCLUSIVE)]));
    two.interim(second);
    one.call(&lock(f, 0, &[(0, 1, lock_flags::UNLOCK), (1, 1, lock_flags::UNLOCK)])).ok();
    assert_eq!((two.waits(first), two.waits(second)), (false, true));
}

/// What comes before an element that is refused is unlocked.
#[test]
fn unlocking_stops_where_an_element_is_refused() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let (f, g) = (one.open(want("file")).id, two.open(want("file")).id);
    let refused = [
        ((9, 1, lock_flags::UNLOCK), NtStatus::RANGE_NOT_LOCKED),
        ((1, 1, lock_flags::EXCLUSIVE | NOW), NtStatus::INVALID_PARAMETER),
        ((u64::MAX, 2, lock_flags::UNLOCK), NtStatus::INVALID_LOCK_RANGE),
    ];
    for (element, status) in refused {
        one.call(&lock(f, 0, &[(0, 1, lock_flags::EXCLUSIVE | NOW), (1, 1, lock_flags::EXCLUSIVE | NOW)])).ok();
        let unlocks = [(0, 1, lock_flags::UNLOCK), element, (1, 1, lock_flags::UNLOCK)];
        assert_eq!(one.status(&lock(f, 0, &unlocks)), status);
        assert_eq!(two.status(&lock(g, 0, &[(1, 1, lock_flags::SHARED | NOW)])), NtStatus::LOCK_NOT_GRANTED);
        two.call(&lock(g, 0, &[(0, 1, lock_flags::SHARED | NOW)])).ok();
        two.call(&lock(g, 0, &[(0, 1, lock_flags::UNLOCK)])).ok();
        one.call(&lock(f, 0, &[(1, 1, lock_flags::UNLOCK)])).ok();
    }
}

#[test]
fn changes_in_a_directory_with_many_leases_are_made_where_it_may_take_long() {
    for (leases, many) in [(MANY, true), (FEW, false)] {
        let lab = Lab::new();
        let (mut one, mut two) = (lab.client(), lab.client());
        one.make_directory("dir");
        let f = one.open(want("dir\\file")).id;
        let lease = |n| want("dir").existing().directory().access(FILE_LIST_DIRECTORY).lease(1000 + n, "RH");
        for n in 0..leases {
            assert_eq!(two.open(lease(n)).lease(), "RH");
        }
        let attributes = set_info(f, info_type::FILE, file_class::BASIC, 0, &basic(0, 0, 0, 0, 2));
        assert_eq!(leaves(&mut one, &attributes), many, "attributes, {leases}");
        assert_eq!(two.breaks().len(), leases as usize);
        assert_eq!(leaves(&mut one, &ioctl(f, fsctl::SET_SPARSE, b"", 0)), many, "a control, {leases}");
        assert_eq!(leaves(&mut one, &want("dir\\new").req()), many, "a create, {leases}");
        one.write(f, 0, b"x");
        assert_eq!(leaves(&mut one, &close(f)), many, "a close after a write, {leases}");
        let g = one.open(want("dir\\new")).id;
        assert!(!leaves(&mut one, &close(g)), "there is nothing to tell");
    }
}

/// Each of a file's persistent opens is kept anew when it is to be deleted, or not.
#[test]
fn many_persistent_opens_are_kept_where_it_may_take_long() {
    for (opens, many) in [(MANY, true), (FEW, false)] {
        let lab = Lab::new();
        let mut c = lab.ca_client();
        let open = |n| want("file").lease(5, "RWH").persistent(100 + n, 0);
        let f = c.open(open(0));
        assert!(f.is_durable() || f.durable_v2().is_some());
        for n in 1..opens {
            c.open(open(n));
        }
        assert_eq!(lab.server.trees.persistent_opens(), opens as usize);
        let stays = set_info(f.id, info_type::FILE, file_class::DISPOSITION, 0, &[0]);
        assert!(lab.handles_are_committed());
        c.held = Some(Vec::new());
        let id = c.send(&stays);
        // Where it has run, the commit is what is left.
        assert_eq!(lab.handles_are_committed(), many, "{opens}");
        assert_eq!(c.run_held(), 1);
        c.receive(id).ok();
        assert!(lab.handles_are_committed());
    }
}

/// A compound of requests that are cheap to ask, and whose answers are made of many parts.
#[test]
fn long_lists_count_for_more_requests() {
    let lab = Lab::new();
    let mut c = lab.client();
    let (f, g) = (c.open(want("file")).id, c.open(want("other")).id);
    for n in 0..80 {
        let stream = c.open(want(&format!("file:{n}"))).id;
        c.close(stream);
    }
    let lists = |f| {
        let list = query_info(f, info_type::FILE, file_class::STREAM, 0, b"", 1 << 16);
        (0..16).map(|_| list.clone()).collect::<Vec<_>>()
    };
    for (of, long) in [(f, true), (g, false)] {
        c.held = Some(Vec::new());
        let ids = c.send_all(&lists(of));
        assert_eq!(c.run_held() > 0, long);
        ids.into_iter().for_each(|id| drop(c.receive(id).ok()));
    }
}
