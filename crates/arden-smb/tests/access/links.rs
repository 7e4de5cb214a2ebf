//! Names that move: links, renames, and replacing what others have.

use arden_wire::dtyp::{Ace, CONTAINER_INHERIT_ACE, OBJECT_INHERIT_ACE};

use crate::{client::*, world::*};

/// A handle for attributes is no way around a share for reading: neither a new name nor one over another file.
#[test]
fn a_share_for_reading_lets_nobody_link() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        admin.make_with("t", vec![everyone(ALL_ACCESS, BOTH)]);
        admin.put("t\\source", b"source");
        admin.put("t\\victim", b"victim");
        for (user, share) in [(MALLORY, READ), (MALLORY, PROTECTED), (ADMIN, READ), (ADMIN, PROTECTED)] {
            let mut c = world.client(user, share);
            for access in [FILE_READ_ATTRIBUTES, READ_MASK, MAXIMUM_ALLOWED] {
                let f = c.open(want("t\\source").existing().access(access));
                for (to, replace) in [("t\\new", false), ("t\\new", true), ("t\\victim", true)] {
                    let status = c.set(f.id, file_class::LINK, &name_change(to, replace));
                    assert_eq!(status, DENIED, "{kind:?} {user} {share} {access:#x} {to}");
                }
                c.close(f.id);
            }
            assert_eq!(admin.content("t\\victim"), b"victim");
            assert_eq!(admin.fails(want("t\\new").existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
        }
    }
}

/// Whoever may not change a file's attributes gets no name of their own for it: a link keeps the file and what it counts
/// against its owner's quota, and its directory gives rights of its own. Peers open the source for
/// FILE_WRITE_ATTRIBUTES; clients on Linux for less, so that what counts is what the descriptor allows.
#[test]
fn a_link_takes_the_right_to_change_the_file() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        admin.make_with("mine", vec![Ace::allow(&world.sid(MALLORY), ALL_ACCESS, BOTH), admins()]);
        admin.make_with("theirs", vec![everyone(READ_MASK, 0), admins()]);
        let mut c = world.client(MALLORY, FULL);
        for (n, (rights, linked)) in
            [(READ_MASK, false), (FILE_WRITE_ATTRIBUTES, true), (READ_MASK | WRITE_DAC, false), (CHANGE_MASK, true)]
                .into_iter()
                .enumerate()
        {
            let name = format!("theirs\\f{n}");
            admin.put(&name, b"theirs");
            admin.protect(&name, vec![Ace::allow(&world.sid(MALLORY), rights, 0), admins()]);
            let f = c.open(want(&name).existing().access(FILE_READ_ATTRIBUTES));
            let status = c.set(f.id, file_class::LINK, &name_change(&format!("mine\\f{n}"), false));
            assert_eq!(status, if linked { NtStatus::SUCCESS } else { DENIED }, "{kind:?} {rights:#x}");
            c.close(f.id);
        }
    }
}

/// A name that is replaced is deleted: that takes DELETE on the file or FILE_DELETE_CHILD on its directory, and for one
/// that is read-only FILE_WRITE_ATTRIBUTES too.
#[test]
fn replacing_takes_the_right_to_delete() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        let me = world.sid(MALLORY);
        let to_add = FILE_ADD_FILE | FILE_LIST_DIRECTORY;
        for (n, (directory, file, ex, replaced)) in [
            (to_add, READ_MASK, 1u32, false),
            (to_add, CHANGE_MASK & !DELETE, 1, false),
            (to_add, DELETE, 1, true),
            (to_add | FILE_DELETE_CHILD, READ_MASK, 1, true),
            // The directory may not be added to, not even in place of what goes.
            (FILE_LIST_DIRECTORY | FILE_DELETE_CHILD, ALL_ACCESS, 1, false),
            // FILE_RENAME_IGNORE_READONLY_ATTRIBUTE of the Ex class.
            (to_add, DELETE, 0x41, false),
            (to_add, DELETE | FILE_WRITE_ATTRIBUTES, 0x41, true),
            (to_add, DELETE | FILE_WRITE_ATTRIBUTES, 1, false),
        ]
        .into_iter()
        .enumerate()
        {
            let read_only = n >= 5;
            let dir = format!("d{n}");
            admin.make_with(&dir, vec![Ace::allow(&me, directory, 0), admins()]);
            let victim = format!("{dir}\\victim");
            let attributes = if read_only { ATTR_READONLY } else { 0 };
            let f = admin.open(want(&victim).attributes(attributes).disposition(CREATE));
            admin.write(f.id, 0, b"victim");
            admin.close(f.id);
            admin.protect(&victim, vec![Ace::allow(&me, file, 0), admins()]);
            let mut c = world.client(MALLORY, FULL);
            for class in [file_class::RENAME_EX, file_class::LINK] {
                if class == file_class::LINK && read_only {
                    continue;
                }
                let own = format!("own{n}-{class}");
                c.put(&own, b"mine");
                let f = c.open(want(&own).existing());
                let mut change = name_change(&victim, true);
                change[..4].copy_from_slice(&ex.to_le_bytes());
                let status = c.set(f.id, class, &change);
                assert_eq!(
                    status,
                    if replaced { NtStatus::SUCCESS } else { DENIED },
                    "{kind:?} case {n} class {class}"
                );
                c.close(f.id);
                if replaced {
                    break;
                }
                assert_eq!(admin.content(&victim), b"victim");
            }
        }
    }
}

/// [MS-FSA] 2.1.5.15.12 opens the directory of the new name for adding, also where it is that of the old one.
#[test]
fn renaming_takes_the_right_to_add() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        for (n, (rights, file, directory)) in [
            (FILE_LIST_DIRECTORY, false, false),
            (FILE_LIST_DIRECTORY | FILE_ADD_FILE, true, false),
            (FILE_LIST_DIRECTORY | FILE_ADD_SUBDIRECTORY, false, true),
        ]
        .into_iter()
        .enumerate()
        {
            let dir = format!("d{n}");
            admin.make_with(&dir, vec![everyone(rights, 0), everyone(ALL_ACCESS, BOTH | 8), admins()]);
            admin.make_with(&format!("from{n}"), vec![everyone(ALL_ACCESS, BOTH)]);
            for parent in [&dir, &format!("from{n}")] {
                admin.put(&format!("{parent}\\f"), b"x");
                admin.make_directory(&format!("{parent}\\sub"));
            }
            let mut c = world.client(MALLORY, FULL);
            for parent in [&dir, &format!("from{n}")] {
                for (name, expected) in [("f", file), ("sub", directory)] {
                    let f = c.open(want(&format!("{parent}\\{name}")).existing().access(DELETE));
                    let status = c.rename(f.id, &format!("{dir}\\new-{name}-{parent}"), false);
                    let expected = if expected { NtStatus::SUCCESS } else { DENIED };
                    assert_eq!(status, expected, "{kind:?} {rights:#x} {parent}\\{name}");
                    c.close(f.id);
                }
            }
        }
    }
}

/// A file without a descriptor of its own has what its directory hands down. When it moves, or gets a name elsewhere, that
/// stays what it was: else whoever may delete a file could read it in a directory of their own.
#[test]
fn a_file_takes_its_rights_along() {
    let world = World::on(Kind::Directory);
    let mut admin = world.admin();
    let hands_down = OBJECT_INHERIT_ACE | CONTAINER_INHERIT_ACE | 8;
    let me = world.sid(MALLORY);
    for (dir, rights) in [("drop", FILE_READ_ATTRIBUTES), ("attributes", FILE_WRITE_ATTRIBUTES)] {
        let own = Ace::allow(&me, FILE_LIST_DIRECTORY | FILE_DELETE_CHILD, 0);
        admin.make_with(dir, vec![own, Ace::allow(&me, rights, hands_down), admins()]);
        // As local processes, or Samba, make them.
        std::fs::write(world.lab.host(dir).join("secret"), "secret").unwrap();
        std::fs::create_dir(world.lab.host(dir).join("sub")).unwrap();
        std::fs::write(world.lab.host(dir).join("sub/secret"), "secret").unwrap();
    }
    admin.make_with("mine", vec![Ace::allow(&me, ALL_ACCESS, BOTH), admins()]);
    let mut c = world.client(MALLORY, FULL);
    assert_eq!(c.fails(want("drop\\secret").existing().access(FILE_READ_DATA)), DENIED);

    let f = c.open(want("attributes\\secret").existing().access(FILE_WRITE_ATTRIBUTES));
    assert_eq!(c.set(f.id, file_class::LINK, &name_change("mine\\link", false)), NtStatus::SUCCESS);
    c.close(f.id);
    let f = c.open(want("drop\\secret").existing().access(DELETE));
    assert_eq!(c.rename(f.id, "mine\\moved", false), NtStatus::SUCCESS);
    c.close(f.id);
    let f = c.open(want("drop\\sub").existing().access(DELETE));
    assert_eq!(c.rename(f.id, "mine\\sub", false), NtStatus::SUCCESS);
    c.close(f.id);
    for name in ["mine\\link", "mine\\moved", "mine\\sub\\secret"] {
        for access in [FILE_READ_DATA, FILE_WRITE_DATA, READ_CONTROL, WRITE_DAC] {
            assert_eq!(c.fails(want(name).existing().access(access)), DENIED, "{name} {access:#x}");
        }
        assert_eq!(admin.content(name), b"secret");
    }
}
