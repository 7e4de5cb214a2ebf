//! Persistent handles of directories: granted on continuously available shares, with their leases, and taken up again after
//! a lost connection or a killed server, [MS-SMB2] 3.3.5.9.10 to 3.3.5.9.12.

use std::time::Duration;

use arden_store::handles::HandleStore;

use crate::client::*;

const GUID: u128 = 0x9E5_3001;
const NOTIFY_ENUM_DIR: NtStatus = NtStatus(0x0000_010C);

fn dir() -> Want {
    want("dir").directory()
}

fn leased() -> Want {
    dir().lease(1, "RH")
}

fn lost(lab: &mut Lab, how: Want, crash: bool) -> (u128, Created) {
    let mut c = lab.ca_client();
    let f = c.open(how.persistent(GUID, 0));
    assert_eq!(f.context(tag::DURABLE_REQUEST_V2).map(|d| le_u32(d, 4)), Some(2), "persistent");
    c.disconnect();
    if crash {
        lab.crash();
    }
    (c.guid, f)
}

/// `FileServerFailover_DirectoryLeasing`
#[test]
fn directory_leasing_over_a_failover() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        lab.ca_client().make_directory("dir");
        let (guid, f) = lost(&mut lab, leased(), crash);
        assert_eq!(f.lease(), "RH");
        let mut c = lab.ca_again(guid);
        let back = c.open(leased().reconnect_persistent(FileId { volatile: 0, ..f.id }, GUID));
        assert_eq!((back.id.persistent, back.lease().as_str(), back.action), (f.id.persistent, "RH", OPENED));
        assert_eq!(c.breaks(), [], "nothing changed");
        let mut other = lab.ca_client();
        other.open(want("dir\\child.txt").access(DELETE).share(0).lease(2, ""));
        assert_eq!(c.lease_break(), ("RH".into(), String::new(), true));
        c.call(&lease_ack(1, "")).ok();
        assert_eq!(c.list(back.id, "*"), ["child.txt"]);
        c.close(back.id);
        assert_eq!(lab.handles.load().unwrap(), [], "nothing is kept of what is closed");
        lab.crash();
        assert_eq!(lab.server.trees.opens().len(), 0);
    }
}

/// Samba's `directory-disconnect`: directories follow the rule of files.
#[test]
fn an_absent_owner_keeps_a_directory_as_it_is() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        let (guid, f) = lost(&mut lab, dir(), crash);
        let mut other = lab.ca_client();
        assert_eq!(other.fails(dir()), NtStatus::FILE_NOT_AVAILABLE);
        assert_eq!(other.fails(dir().access(FILE_LIST_DIRECTORY)), NtStatus::FILE_NOT_AVAILABLE);
        other.open(dir().access(FILE_READ_ATTRIBUTES));
        // What is in it is not what is open.
        other.put("dir\\file", b"x");
        let mut c = lab.ca_again(guid);
        let back = c.open(dir().reconnect_persistent(f.id, GUID));
        assert_eq!(c.list(back.id, "*"), ["file"]);
        other.open(dir());
    }
}

#[test]
fn the_root_of_a_share_persists_too() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        let root = || want("").directory().lease(1, "RH");
        let (guid, f) = lost(&mut lab, root().access(FILE_LIST_DIRECTORY | FILE_READ_ATTRIBUTES), crash);
        lab.ca_client().open(want("").directory().access(FILE_LIST_DIRECTORY));
        let mut c = lab.ca_again(guid);
        c.open(root().reconnect_persistent(f.id, GUID));
    }
}

#[test]
fn what_changes_while_the_owner_is_away_breaks_its_lease() {
    let changes: [fn(&mut Client); 3] = [
        |c| c.put("dir\\new", b"x"),
        |c| {
            let f = c.open(want("dir\\old"));
            assert_eq!(c.delete(f.id), NtStatus::SUCCESS);
            c.close(f.id);
        },
        |c| {
            let f = c.open(want("dir\\old"));
            assert_eq!(c.rename(f.id, "moved", false), NtStatus::SUCCESS);
            c.close(f.id);
        },
    ];
    for change in changes {
        // Before the server goes, after it, or both; and kept over another one.
        for crashes in [[false, false], [true, false], [false, true], [true, true]] {
            let mut lab = Lab::new();
            let mut other = lab.ca_client();
            other.make_directory("dir");
            other.put("dir\\old", b"x");
            let (guid, f) = lost(&mut lab, leased(), crashes[0]);
            change(&mut lab.ca_client());
            if crashes[1] {
                lab.crash();
            }
            let mut c = lab.ca_again(guid);
            let back = c.open(leased().reconnect_persistent(f.id, GUID));
            assert_eq!(back.lease(), "RH");
            assert_eq!(c.lease_break(), ("RH".into(), String::new(), true), "{crashes:?}");
            c.call(&lease_ack(1, "")).ok();
        }
    }
}

/// The break that belongs to a change is lost with the server, or nobody was there to make it.
#[test]
fn a_change_without_its_break_is_noticed_at_the_restart() {
    for (state, by_hand) in [("RH", false), ("RH", true), ("R", false), ("R", true)] {
        let mut lab = Lab::new();
        let mut c = lab.ca_client();
        c.make_directory("dir");
        let how = || dir().lease(1, state);
        let f = c.open(how().persistent(GUID, 0));
        // The host's clock of files is coarse.
        std::thread::sleep(Duration::from_millis(20));
        if by_hand {
            c.disconnect();
            std::fs::write(lab.host("dir/new"), "x").unwrap();
        } else {
            lab.handles.die_after(0);
            lab.ca_client().send(&want("dir\\new").req());
            assert!(lab.host("dir/new").exists());
            c.disconnect();
        }
        lab.crash();
        let mut c = lab.ca_again(c.guid);
        let back = c.open(how().reconnect_persistent(f.id, GUID));
        if state == "RH" {
            assert_eq!(c.lease_break(), ("RH".into(), String::new(), true));
            c.call(&lease_ack(1, "")).ok();
        } else {
            assert_eq!(back.lease(), "", "read caching is taken without an answer");
        }
        // Raised again, it is as good as new.
        let again = c.open(how());
        assert_eq!(again.lease(), state);
        c.disconnect();
        lab.crash();
        let mut c = lab.ca_again(c.guid);
        assert_eq!(c.open(how().reconnect_persistent(f.id, GUID)).lease(), state);
        assert_eq!(c.breaks(), []);
    }
}

#[test]
fn the_create_of_a_directory_is_replayed() {
    let how = |d: u32| leased().disposition(d).persistent(GUID, 0);
    for crash in [false, true] {
        let mut lab = Lab::new();
        let mut c = lab.ca_client();
        let f = c.open(how(CREATE));
        c.disconnect();
        if crash {
            lab.crash();
        }
        let mut c = lab.ca_again(c.guid);
        assert_eq!(c.fails(how(CREATE)), NtStatus::DUPLICATE_OBJECTID);
        let again = c.open(how(CREATE).replayed());
        assert_eq!((again.id, again.action, again.lease().as_str()), (f.id, CREATED, "RH"));
    }
    // The server went after it made the directory and before it kept the handle.
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(how(CREATE));
    c.close(f.id);
    lab.crash();
    let mut c = lab.ca_again(c.guid);
    assert_eq!(c.fails(how(CREATE)), NtStatus::OBJECT_NAME_COLLISION);
    assert_eq!(c.open(how(CREATE).replayed()).action, CREATED);
}

#[test]
fn only_its_owner_takes_it_up() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        let (guid, f) = lost(&mut lab, leased(), crash);
        let again = || leased().reconnect_persistent(f.id, GUID);
        let not_found = NtStatus::OBJECT_NAME_NOT_FOUND;
        assert_eq!(lab.ca_client().fails(again()), not_found);
        let mut c = lab.ca_again(guid);
        assert_eq!(c.fails(leased().reconnect_persistent(f.id, GUID + 1)), not_found);
        assert_eq!(c.fails(dir().lease(2, "RH").reconnect_persistent(f.id, GUID)), not_found);
        assert_eq!(c.fails(dir().reconnect_persistent(f.id, GUID)), not_found);
        let mut other = lab.connect_as(guid);
        other.negotiate(&Offer::up_to(Dialect::Smb311));
        other.logon(&logon(OTHER));
        other.connect(CA);
        assert_eq!(other.fails(again()), NtStatus::ACCESS_DENIED);
        c.open(again());
    }
}

#[test]
fn a_renamed_directory_and_a_deletion_are_kept() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(leased().persistent(GUID, 0));
    assert_eq!(c.rename(f.id, "renamed", false), NtStatus::SUCCESS);
    let g = c.open(want("gone").directory().delete_on_close().persistent(GUID + 1, 0));
    let h = c.open(want("marked").directory().persistent(GUID + 2, 0));
    assert_eq!(c.delete(h.id), NtStatus::SUCCESS);
    c.disconnect();
    lab.crash();
    assert!(lab.host("gone").exists() && lab.host("marked").exists());
    let mut c = lab.ca_again(c.guid);
    let back = c.open(want("renamed").directory().lease(1, "RH").reconnect_persistent(f.id, GUID));
    c.put("renamed\\file", b"x");
    assert_eq!(c.list(back.id, "*"), ["file"]);
    let back = c.open(want("gone").directory().reconnect_persistent(g.id, GUID + 1));
    c.close(back.id);
    assert!(!lab.host("gone").exists());
    lab.pass(Duration::from_secs(61));
    assert!(!lab.host("marked").exists(), "its owner never came back");
}

#[test]
fn a_listing_begins_again_and_a_watch_tells_that_it_missed_something() {
    let mut lab = Lab::new();
    let mut c = lab.ca_client();
    c.make_directory("dir");
    for i in 0..3 {
        c.put(&format!("dir\\f{i}"), b"x");
    }
    let f = c.open(dir().persistent(GUID, 0));
    // SMB2_RETURN_SINGLE_ENTRY
    let first = c.list_once(f.id, file_class::NAMES, 2, "f*").unwrap();
    let watch = c.send(&notify(f.id, 0, 1, 4096));
    c.interim(watch);
    c.disconnect();
    lab.ca_client().put("dir\\f3", b"x");
    let mut c = lab.ca_again(c.guid);
    let back = c.open(dir().reconnect_persistent(f.id, GUID));
    let second = c.list_once(back.id, file_class::NAMES, 2, "f*").unwrap();
    assert!(first.len() == 1 && second.len() == 1 && first != second, "the server was there all the time");
    assert_eq!(changes(c.call(&notify(back.id, 0, 1, 4096)).ok().buffer()), [(1, "f3".to_string())]);
    c.disconnect();
    lab.crash();
    lab.ca_client().put("dir\\f4", b"x");
    let mut c = lab.ca_again(c.guid);
    let back = c.open(dir().reconnect_persistent(f.id, GUID));
    assert_eq!(c.list(back.id, "f*"), ["f0", "f1", "f2", "f3", "f4"]);
    assert_eq!(c.status(&notify(back.id, 0, 1, 4096)), NOTIFY_ENUM_DIR);
    let watch = c.send(&notify(back.id, 0, 1, 4096));
    c.interim(watch);
    lab.ca_client().put("dir\\f5", b"x");
    assert_eq!(changes(c.receive(watch).ok().buffer()), [(1, "f5".to_string())]);
}

#[test]
fn a_directory_with_handles_below_is_not_renamed() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        lab.ca_client().make_directory("top");
        let (guid, f) = lost(&mut lab, want("top\\dir").directory(), crash);
        let mut other = lab.ca_client();
        let top = other.open(want("top").directory());
        assert_eq!(other.rename(top.id, "elsewhere", false), NtStatus::ACCESS_DENIED);
        let mut c = lab.ca_again(guid);
        c.open(want("top\\dir").directory().reconnect_persistent(f.id, GUID));
    }
}
