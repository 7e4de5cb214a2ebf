//! What an administrator changes holds at once, for sessions, tree connects and opens that exist.

use crate::client::*;
use arden_auth::{GroupRecord, UserDb, UserRecord};
use arden_smb::ShareAce;
use arden_wire::{dtyp::Sid, smb2::session::share_flags};

const DELETED: NtStatus = NtStatus::NETWORK_NAME_DELETED;

fn staff() -> Sid {
    Sid::new(5, &[21, 1, 2, 3, 2000])
}

fn set_groups(lab: &Lab, user: &str, groups: &[Sid]) {
    let record = lab.users.user(user).unwrap();
    lab.users.put_user(UserRecord { groups: groups.to_vec(), ..record });
    lab.server.accounts_changed().close();
}

/// Users and their passwords are as before, with a group that nobody is in.
fn with_staff() -> Lab {
    let lab = Lab::new();
    lab.users.put_group(GroupRecord { name: "staff".into(), comment: String::new(), sid: staff() });
    lab
}

fn logged_on(lab: &Lab, user: &str, share: &str) -> Client {
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(user));
    c.connect(share);
    c
}

fn reading(name: &str) -> Want {
    want(name).existing().access(FILE_GENERIC_READ)
}

#[test]
fn read_only_closes_the_opens_that_may_write() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put("file", b"data");
    let reader = c.open(reading("file"));
    let writer = c.open(want("file").existing());
    let pending = c.open(want("dir").directory());
    let watch = c.send(&notify(pending.id, 0, 1, 100));
    c.interim(watch);
    change_share(&lab, SHARE, |s| s.read_only = true);
    assert_eq!(c.receive(watch).status(), NtStatus::NOTIFY_CLEANUP);
    assert_eq!(c.try_write(writer.id, 0, b"x").unwrap_err(), NtStatus::FILE_CLOSED);
    assert_eq!(c.read(reader.id, 0, 10), b"data");
    assert_eq!(c.fails(want("new")), NtStatus::ACCESS_DENIED);
    assert_eq!(c.fails(want("file").existing().delete_on_close()), NtStatus::ACCESS_DENIED);
    let most = c.open(want("file").existing().access(MAXIMUM_ALLOWED));
    assert_eq!(c.try_write(most.id, 0, b"x").unwrap_err(), NtStatus::ACCESS_DENIED);
    change_share(&lab, SHARE, |s| s.read_only = false);
    c.open(want("new"));
    assert_eq!(c.read(reader.id, 0, 10), b"data");
}

#[test]
fn a_user_who_is_denied_loses_the_tree_connect_and_others_keep_theirs() {
    let lab = Lab::new();
    let (mut c, mut other) = (logged_on(&lab, USER, SHARE), logged_on(&lab, OTHER, SHARE));
    let (mine, theirs) = (c.open(want("mine")), other.open(want("theirs")));
    let sid = lab.server.session(other.session_id()).unwrap().token().user.clone();
    let deny = ShareAce { sid: sid.clone(), allow: false, mask: ALL_ACCESS };
    let all = ShareAce { sid: arden_wire::dtyp::well_known::EVERYONE.clone(), allow: true, mask: ALL_ACCESS };
    change_share(&lab, SHARE, |s| s.access = vec![all.clone(), deny.clone()]);
    c.write(mine.id, 0, b"x");
    assert_eq!(other.try_write(theirs.id, 0, b"x").unwrap_err(), DELETED);
    assert_eq!(other.try_connect(SHARE).unwrap_err(), NtStatus::ACCESS_DENIED);
    assert_eq!(lab.server.trees.opens().len(), 1);
    // The session is good for other shares.
    other.connect(SECOND);
    // Allowed to read: what the tree connect says, and what opens get.
    let read = ShareAce { sid, allow: false, mask: ALL_ACCESS & !(FILE_GENERIC_READ | FILE_GENERIC_EXECUTE) };
    change_share(&lab, SHARE, |s| s.access = vec![all.clone(), read.clone()]);
    let reply = other.connect(SHARE);
    assert_eq!(reply.u32(12) & FILE_WRITE_DATA, 0);
    other.open(reading("mine"));
    assert_eq!(other.fails(want("mine").existing()), NtStatus::ACCESS_DENIED);
}

#[test]
fn a_share_that_has_to_be_encrypted_by_now_says_so_in_a_new_tree_connect() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    change_share(&lab, SHARE, |s| s.encrypt = true);
    assert_eq!(c.try_write(f.id, 0, b"x").unwrap_err(), DELETED);
    let reply = c.connect(SHARE);
    assert_ne!(reply.u32(4) & share_flags::ENCRYPT_DATA, 0);
    assert_eq!(c.fails(want("file").existing()), NtStatus::ACCESS_DENIED, "in the clear");
    c.encrypt = true;
    c.open(want("file").existing());
    // Who encrypts already goes on when the share need not be encrypted any more, and when it has to be again.
    change_share(&lab, SHARE, |s| s.encrypt = false);
    c.open(want("file").existing());
}

#[test]
fn a_share_of_another_directory_ends_its_tree_connects() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    let elsewhere = lab.server.trees.share(SECOND).unwrap().fs.clone();
    change_share(&lab, SHARE, |s| s.fs.clone_from(&elsewhere));
    assert_eq!(c.try_write(f.id, 0, b"x").unwrap_err(), DELETED);
    c.connect(SHARE);
    assert_eq!(c.fails(reading("file")), NtStatus::OBJECT_NAME_NOT_FOUND);
}

#[test]
fn a_change_that_takes_nothing_away_is_not_noticed() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    change_share(&lab, SHARE, |s| {
        s.comment = "another".into();
        s.access_based_enumeration = true;
        s.users_max = Some(1);
    });
    change_share(&lab, SECOND, |s| s.read_only = true);
    lab.server.accounts_changed().close();
    c.write(f.id, 0, b"x");
    assert!(lab.server.session(c.session_id()).unwrap().tables.trees.read()[&c.tree].share.access_based_enumeration);
}

/// A session is a user of a share from its first tree connect to the end of the last, whatever ends it.
#[test]
fn users_of_a_share_are_counted_until_they_are_gone() {
    let lab = Lab::new();
    let users = || lab.server.trees.share(SECOND).unwrap().users.count();
    change_share(&lab, SECOND, |share| share.users_max = Some(2));
    let leave = |c: &mut Client, tree| c.status(&Req::empty(Command::TreeDisconnect).tree(tree));
    type End<'a> = (&'a str, &'a dyn Fn(&mut Client, [u32; 2]));
    let ends: [End<'_>; 6] = [
        ("tree disconnect", &|c, [first, second]| {
            assert_eq!(leave(c, first), NtStatus::SUCCESS);
            assert_eq!(users(), 1, "it has another one");
            assert_eq!(leave(c, second), NtStatus::SUCCESS);
        }),
        ("logoff", &|c, _| assert_eq!(c.status(&Req::empty(Command::Logoff).tree(0)), NtStatus::SUCCESS)),
        ("connection lost", &|c, _| c.disconnect()),
        ("session closed", &|c, _| assert!(lab.server.close_session(c.session_id()))),
        ("user removed", &|_, _| {
            let record = lab.users.user(OTHER).unwrap();
            lab.users.remove_user(OTHER);
            lab.server.accounts_changed().close();
            lab.users.put_user(record);
        }),
        ("access revoked", &|_, _| {
            change_share(&lab, SECOND, |share| share.access = vec![ShareAce { sid: staff(), allow: true, mask: 1 }]);
            change_share(&lab, SECOND, |share| share.access.clear());
        }),
    ];
    for (how, end) in ends {
        let mut c = logged_on(&lab, OTHER, SECOND);
        let first = c.tree;
        c.connect(SHARE);
        let of_another = c.tree;
        c.connect(SECOND);
        let trees = [first, c.tree];
        assert_eq!(leave(&mut c, of_another), NtStatus::SUCCESS);
        assert_eq!(users(), 1, "{how}");
        let mut second = logged_on(&lab, USER, SECOND);
        let mut third = logged_on(&lab, USER, SHARE);
        assert_eq!(users(), 2, "{how}");
        assert_eq!(third.try_connect(SECOND).unwrap_err(), NtStatus::REQUEST_NOT_ACCEPTED, "{how}");
        // What replaces the share has the same users, each once.
        change_share(&lab, SECOND, |share| share.access_based_enumeration ^= true);
        assert_eq!(users(), 2, "{how}");
        second.disconnect();
        assert_eq!(users(), 1, "{how}");
        end(&mut c, trees);
        assert_eq!(users(), 0, "{how}");
        third.connect(SECOND);
        assert_eq!(users(), 1, "{how}");
        third.disconnect();
        assert_eq!(users(), 0, "{how}");
        c.disconnect();
    }
}

#[test]
fn a_user_who_is_removed_or_disabled_has_no_sessions_and_no_opens() {
    for removed in [true, false] {
        let lab = Lab::new();
        let mut waiting = logged_on(&lab, OTHER, SHARE);
        assert!(waiting.open(want("durable").share(0).lease_v1(1, "RWH").durable()).is_durable());
        waiting.disconnect();
        let mut c = logged_on(&lab, OTHER, SHARE);
        let mut admin = lab.client();
        let f = c.open(want("file").share(0));
        if removed {
            lab.users.remove_user(OTHER);
        } else {
            let record = lab.users.user(OTHER).unwrap();
            lab.users.put_user(UserRecord { disabled: true, ..record });
        }
        lab.server.accounts_changed().close();
        assert_eq!(c.try_write(f.id, 0, b"x").unwrap_err(), NtStatus::USER_SESSION_DELETED);
        assert_eq!(lab.server.trees.opens().len(), 0);
        admin.open(want("file").existing());
        admin.open(want("durable").existing());
        let mut c = lab.connect();
        c.negotiate(&Offer::up_to(Dialect::Smb311));
        assert!(c.try_logon(&logon(OTHER)).is_err());
    }
}

#[test]
fn a_user_who_loses_a_group_logs_on_again_and_one_who_gains_one_goes_on() {
    let lab = with_staff();
    let grant = |sid: &Sid, allow| ShareAce { sid: sid.clone(), allow, mask: ALL_ACCESS };
    change_share(&lab, SECOND, |s| s.access = vec![grant(&staff(), true)]);
    let mut c = logged_on(&lab, OTHER, SHARE);
    let f = c.open(want("file"));
    let first = c.tree;
    assert_eq!(c.try_connect(SECOND).unwrap_err(), NtStatus::ACCESS_DENIED);
    set_groups(&lab, OTHER, &[staff()]);
    c.connect(SECOND);
    let g = c.open(want("of staff"));
    c.tree = first;
    c.write(f.id, 0, b"x");
    set_groups(&lab, OTHER, &[]);
    assert_eq!(c.try_write(f.id, 0, b"x").unwrap_err(), NtStatus::USER_SESSION_DELETED);
    assert_eq!(c.try_write(g.id, 0, b"x").unwrap_err(), NtStatus::USER_SESSION_DELETED);
    let mut c = logged_on(&lab, OTHER, SHARE);
    assert_eq!(c.try_connect(SECOND).unwrap_err(), NtStatus::ACCESS_DENIED);
    // A group that the share denies.
    let everyone = arden_wire::dtyp::well_known::EVERYONE.clone();
    change_share(&lab, SHARE, |s| s.access = vec![grant(&everyone, true), grant(&staff(), false)]);
    c.connect(SHARE);
    let f = c.open(want("file").existing());
    set_groups(&lab, OTHER, &[staff()]);
    assert_eq!(c.try_write(f.id, 0, b"x").unwrap_err(), DELETED);
    // An administrator who is none any more.
    let mut admin = lab.client();
    set_groups(&lab, USER, &[]);
    assert_eq!(admin.fails(want("x")), NtStatus::USER_SESSION_DELETED);
}

#[test]
fn an_open_that_waits_for_its_client_is_closed_when_its_share_allows_it_no_more() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put("read", b"data");
    let kept = c.open(reading("read").lease_v1(2, "RH").durable());
    let f = c.open(want("write").share(0).lease_v1(1, "RWH").durable());
    assert!(f.is_durable() && kept.is_durable());
    c.disconnect();
    change_share(&lab, SHARE, |s| s.read_only = true);
    assert_eq!(lab.server.trees.opens().len(), 1);
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    let gone = c.fails(want("write").share(0).lease_v1(1, "RWH").reconnect(FileId { volatile: 0, ..f.id }));
    assert_eq!(gone, NtStatus::OBJECT_NAME_NOT_FOUND);
    c.open(reading("read").lease_v1(2, "RH").reconnect(FileId { volatile: 0, ..kept.id }));
}

/// Files of users who are gone are closed one after the other, which may take long: meanwhile nobody comes back to them.
#[test]
fn an_open_that_was_taken_away_is_not_taken_up_before_it_is_closed() {
    if has_two_nodes() {
        return;
    }
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("f").share(0).lease_v1(1, "RWH").durable());
    assert!(f.is_durable());
    c.disconnect();
    let record = lab.users.user(USER).unwrap();
    lab.users.put_user(UserRecord { groups: Vec::new(), ..record });
    let revoked = lab.server.accounts_changed();
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    let gone = c.fails(want("f").share(0).lease_v1(1, "RWH").reconnect(FileId { volatile: 0, ..f.id }));
    assert_eq!(gone, NtStatus::OBJECT_NAME_NOT_FOUND);
    revoked.close();
    assert_eq!(lab.server.trees.opens().len(), 0);
}

/// Also before the change has come to where the open waits.
#[test]
fn who_has_lost_a_group_does_not_take_up_what_it_gave_him() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("f").share(0).lease_v1(1, "RWH").durable());
    assert!(f.is_durable());
    c.disconnect();
    let record = lab.users.user(USER).unwrap();
    lab.users.put_user(UserRecord { groups: Vec::new(), ..record.clone() });
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    let again = || want("f").share(0).lease_v1(1, "RWH").reconnect(FileId { volatile: 0, ..f.id });
    assert_eq!(c.fails(again()), NtStatus::OBJECT_NAME_NOT_FOUND);
    c.disconnect();
    lab.users.put_user(record);
    let mut c = lab.client_again(c.guid, Dialect::Smb311);
    c.open(again());
}

#[test]
fn all_sessions_of_a_user_end_at_once() {
    let lab = Lab::new();
    let mut waiting = logged_on(&lab, OTHER, SHARE);
    waiting.open(want("durable").share(0).lease_v1(1, "RWH").durable());
    waiting.disconnect();
    let mut clients: Vec<_> = (0..3).map(|_| logged_on(&lab, OTHER, SHARE)).collect();
    let mut mine = lab.client();
    let f = mine.open(want("mine"));
    clients.iter_mut().for_each(|c| drop(c.open(want("theirs"))));
    let revoked = lab.server.end_sessions_of("OTHER");
    assert_eq!(revoked.sessions(), 3);
    // What they had open is closed behind that: it may wait for a disk.
    for c in &mut clients {
        assert_eq!(c.fails(want("x")), NtStatus::USER_SESSION_DELETED);
    }
    revoked.close();
    assert_eq!(lab.server.trees.opens().len(), 1);
    mine.write(f.id, 0, b"x");
    assert_eq!(lab.server.end_sessions_of("nobody").sessions(), 0);
}
