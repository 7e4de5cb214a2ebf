//! A user who is logged on tries to get around the rules, and the choices that are made where the specifications leave one.

use arden_smb::{Share, ShareAce};
use arden_wire::dtyp::{Ace, DACL_SECURITY_INFORMATION};

use crate::{client::*, world::*};

/// A session stays its user's: authenticating it again as somebody else is refused, and changes nothing of what may be
/// done through its tree connects, [MS-SMB2] 3.3.5.5.3.
#[test]
fn a_session_does_not_become_another_users() {
    let world = World::on(Kind::Directory);
    let mut admin = world.admin();
    admin.put("file", b"x");
    admin.protect("file", vec![everyone(ALL_ACCESS, 0)]);
    let allow = |user: &str, mask| ShareAce { sid: world.sid(user), allow: true, mask };
    let full = world.lab.server.trees.share(FULL).unwrap();
    let access = vec![allow(ALICE, READ_MASK), allow(MALLORY, ALL_ACCESS)];
    world.lab.server.trees.set_shares(vec![Share { name: "ours".into(), access, ..(*full).clone() }]);
    let mut c = world.client(ALICE, "ours");
    assert_eq!(c.try_logon(&logon(MALLORY).again()).err(), Some(DENIED));
    assert_eq!(c.fails(want("file").existing().access(FILE_WRITE_DATA)), DENIED);
    assert_eq!(c.fails(want("new").disposition(CREATE).access(FILE_READ_DATA)), DENIED);
    let f = c.open(want("file").existing().access(MAXIMUM_ALLOWED).context(tag::MAXIMAL_ACCESS, vec![]));
    assert_eq!(c.granted(f.id), READ_MASK);
    assert_eq!(le_u32(f.context(tag::MAXIMAL_ACCESS).unwrap(), 4), READ_MASK);
}

/// The root of a share is no file to be deleted, now or on close.
#[test]
fn the_root_is_not_deleted() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        let root = admin.open(want("").existing().directory());
        assert_eq!(admin.delete(root.id), NtStatus::CANNOT_DELETE);
        admin.close(root.id);
        for w in [want("").existing().directory(), want("").existing(), want("x\\..").directory().existing()] {
            assert_eq!(admin.fails(w.delete_on_close()), NtStatus::CANNOT_DELETE, "{kind:?}");
        }
        admin.put("file", b"x");
        assert_eq!(admin.content("file"), b"x");
    }
}

/// What DELETE_ON_CLOSE does takes DELETE, for directories and streams as for files.
#[test]
fn deleting_on_close_takes_the_right_to_delete() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        admin.make_with("t", vec![everyone(FILE_LIST_DIRECTORY | FILE_ADD_FILE, 0), admins()]);
        admin.put("t\\f", b"x");
        admin.put("t\\f:s", b"x");
        admin.make_directory("t\\d");
        for name in ["t\\f", "t\\d"] {
            admin.protect(name, vec![everyone(CHANGE_MASK & !DELETE, 0), admins()]);
        }
        let mut c = world.client(MALLORY, FULL);
        for name in ["t\\f", "t\\f:s", "t\\d"] {
            for access in [MAXIMUM_ALLOWED, FILE_READ_DATA, DELETE, GENERIC_ALL] {
                let w = want(name).existing().access(access).delete_on_close();
                assert_eq!(c.fails(w), DENIED, "{kind:?} {name} {access:#x}");
            }
            let f = c.open(want(name).existing().access(CHANGE_MASK & !DELETE));
            assert_eq!(c.delete(f.id), DENIED);
            c.close(f.id);
            assert_eq!(admin.opens(want(name).existing()), NtStatus::SUCCESS);
        }
    }
}

/// Everybody reaches what they know the path of: no directory on the way is asked ("bypass traverse checking").
#[test]
fn directories_on_the_way_are_not_asked() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        admin.make_with("closed", vec![admins()]);
        admin.make_with("closed\\open", vec![everyone(READ_MASK, 0), admins()]);
        admin.put("closed\\open\\file", b"x");
        admin.protect("closed\\open\\file", vec![everyone(READ_MASK, 0), admins()]);
        let mut c = world.client(MALLORY, FULL);
        assert_eq!(c.content("closed\\open\\file"), b"x", "{kind:?}");
        assert_eq!(c.fails(want("closed").existing().access(FILE_LIST_DIRECTORY)), DENIED);
        assert_eq!(c.fails(want("closed\\new").disposition(CREATE)), DENIED);
    }
}

/// An entry that denies comes before those that allow, whoever else allows it: by the parent, by MAXIMUM_ALLOWED, for a new
/// name, or by way of a stream.
#[test]
fn who_is_denied_is_denied() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        let deny = |mask| Ace::deny(&world.sid(MALLORY), mask, BOTH);
        admin.make_with("t", vec![deny(FILE_WRITE_DATA | WRITE_DAC), everyone(ALL_ACCESS, BOTH), admins()]);
        admin.put("t\\f", b"x");
        let mut c = world.client(MALLORY, FULL);
        assert_eq!(c.fails(want("t\\f").existing().access(FILE_WRITE_DATA)), DENIED);
        assert_eq!(c.fails(want("t\\f:s").access(MAXIMUM_ALLOWED)), DENIED, "{kind:?}: a stream is data");
        assert_eq!(c.fails(want("t\\new").disposition(CREATE)), DENIED, "{kind:?}: FILE_ADD_FILE is FILE_WRITE_DATA");
        let f = c.open(want("t\\f").existing().access(MAXIMUM_ALLOWED));
        assert_eq!(c.granted(f.id), ALL_ACCESS & !(FILE_WRITE_DATA | WRITE_DAC));
        let sd = descriptor(None, vec![everyone(ALL_ACCESS, 0)]);
        assert_eq!(c.set_security(f.id, DACL_SECURITY_INFORMATION, &sd), DENIED);
        for disposition in [OVERWRITE, OVERWRITE_IF] {
            assert_eq!(c.fails(want("t\\f").disposition(disposition).access(FILE_READ_DATA)), DENIED);
        }
        // Its own file, moved there, cannot be: the directory may not be added to.
        c.put("mine", b"mine");
        let g = c.open(want("mine").existing());
        assert_eq!(c.rename(g.id, "t\\mine", false), DENIED);
        assert_eq!(c.set(g.id, file_class::LINK, &name_change("t\\mine", false)), DENIED);
        assert_eq!(admin.content("t\\f"), b"x");
    }
}

/// A handle is its user's: by no other session, tree connect or reconnect is it used.
#[test]
fn a_handle_is_used_by_its_own_session_only() {
    let world = World::on(Kind::Directory);
    world.admin().make_with("t", vec![everyone(ALL_ACCESS, BOTH)]);
    let mut alice = world.client(ALICE, FULL);
    let w = want("t\\f").oplock(oplock::BATCH).durable();
    let f = alice.open(w.clone());
    alice.write(f.id, 0, b"alice");
    let mut mallory = world.client(MALLORY, FULL);
    assert_eq!(mallory.try_read(f.id, 0, 10), Err(NtStatus::FILE_CLOSED));
    let key = alice.fsctl(f.id, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32);
    let g = mallory.open(want("t\\copy"));
    let copied = mallory.try_fsctl(g.id, fsctl::SRV_COPYCHUNK, &copy_chunks(&key, &[(0, 0, 5)]), 12);
    assert_eq!(copied, Err(NtStatus::OBJECT_NAME_NOT_FOUND));
    alice.connect(READ);
    assert_eq!(alice.try_read(f.id, 0, 10), Err(NtStatus::FILE_CLOSED), "of another tree connect");
    alice.disconnect();
    assert_eq!(mallory.fails(want("t\\f").reconnect(f.id)), DENIED);
    // Nor by another share, where less is permitted.
    let mut again = world.client(ALICE, READ);
    assert_eq!(again.fails(want("t\\f").reconnect(f.id)), NtStatus::OBJECT_NAME_NOT_FOUND);
}
