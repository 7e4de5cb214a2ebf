//! Renames, links and enumeration.

use arden_store::{
    dir::{DirOptions, DirStore},
    error::StoreError,
    fs::{ClientId, Disposal, Emitted, Fs, LockRange, NameChange, Step},
    name::NtPath,
};

use crate::world::*;

#[test]
fn renaming_needs_delete_and_a_free_name() {
    let w = World::new();
    let f = w.open(want("f").access(FILE_ALL_ACCESS & !DELETE));
    assert_eq!(w.rename(&f, "g", false).unwrap_err(), StoreError::AccessDenied);
    w.close(f);
    let f = w.open(want("f").share(0));
    assert!(w.rename(&f, "g", false).is_ok());
    assert_eq!(w.fs.path(&f), "g");
    assert!(w.rename(&f, "G", false).is_ok());
    assert_eq!(w.fs.path(&f), "G");
    w.close(w.open(want("h")));
    assert_eq!(w.rename(&f, "h", false).unwrap_err(), StoreError::NameCollision);
    assert_eq!(w.rename(&f, "no\\h", false).unwrap_err(), StoreError::PathNotFound);
    let open = w.open(want("h"));
    assert_eq!(w.rename(&f, "h", true).unwrap_err(), StoreError::TargetInUse);
    w.close(open);
    assert!(w.rename(&f, "h", true).is_ok());
    w.close(w.open(want("r").attributes(ATTR_READONLY)));
    assert_eq!(w.rename(&f, "r", true).unwrap_err(), StoreError::ReadOnlyFile);
    w.close(w.open(want("d").directory()));
    assert_eq!(w.rename(&f, "d", true).unwrap_err(), StoreError::DirectoryInTheWay);
}

#[test]
fn a_cached_handle_on_the_target_goes() {
    let w = World::new();
    let f = w.open(want("f"));
    let cached = w.open(want("t").lease(1, "RH").client(2));
    assert!(matches!(w.rename(&f, "t", true), Ok(Step::Wait(_))));
    assert_eq!(w.told(), ["lease 1 RH>R!"]);
    w.close(cached);
    assert!(matches!(w.rename(&f, "t", true), Ok(Step::Done(()))));
    let cached = w.open(want("u").lease(1, "RH").client(2));
    assert!(matches!(w.rename(&f, "u", true), Ok(Step::Wait(_))));
    w.table.ack_lease_break(ClientId(2), 1, state("R"), w.cause()).unwrap();
    assert_eq!(w.rename(&f, "u", true).unwrap_err(), StoreError::TargetInUse);
    w.close(cached);
}

#[test]
fn the_parent_of_the_new_name_has_to_share() {
    let rights = SYNCHRONIZE | READ_CONTROL | FILE_READ_ATTRIBUTES | FILE_LIST_DIRECTORY;
    for (access, share, ok) in [
        (rights | DELETE, RWD, false),
        (rights | DELETE, 0, false),
        (rights, RWD, true),
        (rights, 0, false),
        (SYNCHRONIZE | FILE_READ_ATTRIBUTES, 0, true),
    ] {
        let w = World::new();
        w.close(w.open(want("d").directory()));
        let _dir = w.open(want("d").directory().access(access).share(share));
        let f = w.open(want("d\\f").share(0));
        let result = w.rename(&f, "d\\g", false).map(|_| ());
        assert_eq!(result, if ok { Ok(()) } else { Err(StoreError::SharingViolation.into()) }, "{access:x} {share}");
    }
}

#[test]
fn directories_move_unless_something_in_them_is_open() {
    let w = World::new();
    let d = w.open(want("d").directory());
    let f = w.open(want("d\\f"));
    assert_eq!(w.rename(&d, "e", false).unwrap_err(), StoreError::OpensBelow);
    w.close(f);
    let cached = w.open(want("d\\f").lease(1, "RH").client(2));
    assert!(matches!(w.rename(&d, "e", false), Ok(Step::Wait(_))));
    assert_eq!(w.told(), ["lease 1 RH>R!"]);
    w.close(cached);
    assert_eq!(w.rename(&d, "d\\inside", false).unwrap_err(), StoreError::InvalidParameter);
    assert!(matches!(w.rename(&d, "e", false), Ok(Step::Done(()))));
    assert_eq!(w.fs.path(&d), "e");
    w.open(want("e\\f").existing());
}

/// [MS-FSA] 2.1.4.2: whichever root the open below the directory came by, and wherever that root is.
#[test]
fn directories_stay_while_something_in_them_is_open_through_another_root() {
    let w = World::new();
    for name in ["a", "a\\d", "a\\d\\e", "other"] {
        w.close(w.open(want(name).directory()));
    }
    let at = |root: &str| {
        let mut at = World::with(w.table.clone());
        at.fs = Fs::new(DirStore::open(&w.dir.join(root), DirOptions::default()).unwrap(), w.table.clone());
        at
    };
    let (above, below, beside) = (at("a"), at("a/d/e"), at("other"));
    let (d, by_above) = (w.open(want("a\\d").directory()), above.open(want("d").directory()));
    let out = beside.open(want("f"));
    let f = below.open(want("f"));
    assert_eq!(w.rename(&d, "a\\g", false).unwrap_err(), StoreError::OpensBelow);
    assert_eq!(above.rename(&by_above, "g", false).unwrap_err(), StoreError::OpensBelow);
    below.close(f);
    let f = w.open(want("a\\d\\f"));
    assert_eq!(above.rename(&by_above, "g", false).unwrap_err(), StoreError::OpensBelow);
    w.close(f);
    assert!(matches!(above.rename(&by_above, "g", false), Ok(Step::Done(()))));
    beside.close(out);
}

#[test]
fn links() {
    let w = World::new();
    let f = w.open(want("f"));
    let to = NtPath::parse("g").unwrap();
    let how = NameChange::default();
    assert!(matches!(w.fs.link(&f, &to, how, w.cause()), Ok(Step::Done(()))));
    assert_eq!(w.fs.link(&f, &to, how, w.cause()).unwrap_err(), StoreError::NameCollision);
    assert_eq!(w.fs.stat(&f).unwrap().stat.links, 2);
    assert_eq!(w.open(want("g")).file_id(), f.file_id());
    let d = w.open(want("d").directory());
    assert_eq!(w.fs.link(&d, &to, how, w.cause()).unwrap_err(), StoreError::IsADirectory);
}

#[test]
fn enumeration() {
    let w = World::new();
    let d = w.open(want("d").directory());
    for i in 0..30 {
        w.close(w.open(want(&format!("d\\file{i}.txt"))));
    }
    assert_eq!(w.list(&d, "*").unwrap().len(), 32);
    assert_eq!(w.list(&d, "FILE1?.TXT").unwrap().len(), 10);
    assert_eq!(w.list(&d, "file7.txt").unwrap(), ["file7.txt"]);
    assert_eq!(w.list(&d, "nothing*").unwrap_err(), StoreError::NoMatchingEntry);
    // In pieces, with entries that do not fit given again.
    let d = w.open(want("d").directory());
    let mut names = Vec::new();
    loop {
        let mut room = 3;
        let result = w.fs.query_directory(&d, "*.txt", false, false, false, &mut |e| {
            room -= 1;
            if room >= 0 {
                names.push(e.name.clone());
            }
            if room >= 0 { Emitted::Taken } else { Emitted::Full }
        });
        if result.is_err() {
            assert_eq!(result, Err(StoreError::NoMoreEntries.into()));
            break;
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 30);
    let mut first = String::new();
    w.fs.query_directory(&d, "", true, false, true, &mut |e| {
        assert!(first.is_empty());
        first.clone_from(&e.name);
        Emitted::Taken
    })
    .unwrap();
    assert!(first.ends_with(".txt"));
}

#[test]
fn a_rename_waits_for_the_other_lease_of_its_client() {
    let w = World::new();
    let first = w.open(want("f").lease(1, "RH"));
    let second = w.open(want("f").existing().access(GENERIC_READ).lease(2, "RH"));
    assert!(matches!(w.rename(&first, "g", true), Ok(Step::Wait(_))));
    assert_eq!(w.told(), ["lease 2 RH>R!"]);
    assert_eq!(w.fails(want("g").existing().lease(3, "RH")), StoreError::NotFound);
    assert_eq!(w.table.ack_lease_break(ClientId(1), 2, state("R"), w.cause()), Ok(1));
    assert!(matches!(w.rename(&first, "g", true), Ok(Step::Done(()))));
    w.open(want("g").existing().lease(3, "RH"));
    assert_eq!(w.lease_of(&second), "R");
}

#[test]
fn a_renamed_stream_is_the_same_stream() {
    let w = World::new();
    let a = w.open(want("f:one").share(FILE_SHARE_READ | FILE_SHARE_WRITE));
    w.write(&a, 0, b"data").unwrap();
    let to = NtPath { stream: Some("two".into()), ..NtPath::default() };
    assert!(matches!(w.fs.rename(&a, &to, NameChange::default(), w.cause()), Ok(Step::Done(()))));
    assert_eq!(w.fs.path(&a), "f:two");
    assert_eq!(w.fails(want("f:one").existing()), StoreError::NotFound);
    // Share modes and locks go by the stream, whatever its name.
    assert_eq!(w.fails(want("f:two").existing().access(DELETE)), StoreError::SharingViolation);
    let range = [LockRange { offset: 0, len: 4, exclusive: true }];
    w.fs.lock(&a, &range, true, w.cause()).unwrap();
    let b = w.open(want("f:two").existing().access(FILE_READ_DATA));
    assert_eq!(w.read(&b, 0, 4), Err(StoreError::LockConflict.into()));
    w.fs.unlock(&a, &range).1.unwrap();
    assert_eq!(w.read(&b, 0, 4).unwrap(), b"data");
    // The old name is free for another stream.
    let c = w.open(want("f:one").disposition(arden_store::fs::Disposition::Create).share(0));
    assert_eq!(w.rename(&a, "f:three", false).unwrap_err(), StoreError::SharingViolation);
    w.close(a);
    w.close(b);
    w.close(c);
    assert!(w.table.opens().is_empty());
}

/// [MS-FSA] 2.1.5.15.7 opens the directory of the new name, 2.1.5.1 phase 6: one that is to be deleted takes none.
#[test]
fn no_name_is_added_to_a_directory_that_is_to_be_deleted() {
    let w = World::new();
    let (f, d) = (w.open(want("f")), w.open(want("d").directory()));
    let delete = Disposal { delete: true, ..Disposal::default() };
    assert!(matches!(w.fs.set_disposition(&d, delete, w.cause()), Ok(Step::Done(()))));
    assert_eq!(w.rename(&f, "d\\f", false).unwrap_err(), StoreError::DeletePending);
    let to = NtPath::parse("d\\f").unwrap();
    assert_eq!(w.fs.link(&f, &to, NameChange::default(), w.cause()).unwrap_err(), StoreError::DeletePending);
    w.close(d);
    assert_eq!(w.fails(want("d").existing()), StoreError::NotFound);
}

/// [MS-FSA] 2.1.5.15.12: a collision is one with another file's name (TargetExistsSameFile).
#[test]
fn a_name_joins_another_of_its_file_unasked() {
    for (to, replace) in [("g", false), ("G", false), ("d\\h", false), ("d\\H", false), ("g", true), ("G", true)] {
        let w = World::new();
        w.close(w.open(want("d").directory()));
        w.close(w.open(want("other")));
        let f = w.open(want("f"));
        for name in ["g", "d\\h"] {
            w.fs.link(&f, &NtPath::parse(name).unwrap(), NameChange::default(), w.cause()).unwrap();
        }
        let (same, onto) = (w.open(want("f").existing()), w.open(want(to).existing()));
        assert_eq!(w.rename(&f, "other", false).unwrap_err(), StoreError::NameCollision);
        assert!(matches!(w.rename(&f, to, replace), Ok(Step::Done(()))), "{to}");
        let shown = [w.fs.path(&f), w.fs.path(&same)];
        assert_eq!(shown, [to, to]);
        assert_eq!(w.fs.stat(&f).unwrap().stat.links, 2, "{to}");
        assert_eq!(w.fails(want("f").existing()), StoreError::NotFound);
        assert_eq!(w.open(want(to).existing()).file_id(), f.file_id());
        // Where the spelling changes it is a new name.
        let delete = Disposal { delete: true, ..Disposal::default() };
        w.close(f);
        w.close(same);
        let _ = w.fs.set_disposition(&onto, delete, w.cause());
        w.close(onto);
        let stays = to.ends_with(['G', 'H']);
        assert_eq!(w.dir.join(to.replace('\\', "/")).exists(), stays, "{to}");
    }
}

/// [MS-FSA] 2.1.5.15.12: the link that is replaced is not the one that is there afterwards, though both are of one file.
#[test]
fn who_has_the_replaced_name_of_the_same_file_open_does_not_delete_the_new_one() {
    for posix in [false, true] {
        let w = World::new();
        w.close(w.open(want("d").directory()));
        let a = w.open(want("a"));
        let b = {
            let how = NameChange::default();
            assert!(matches!(w.fs.link(&a, &NtPath::parse("d\\a").unwrap(), how, w.cause()), Ok(Step::Done(()))));
            w.open(want("d\\a").existing())
        };
        assert!(matches!(w.rename(&b, "A", true), Ok(Step::Done(()))));
        assert_eq!(w.fs.path(&b), "A");
        let _ = w.fs.set_disposition(&a, Disposal { delete: true, posix, ..Disposal::default() }, w.cause());
        w.close(a);
        w.close(b);
        assert!(w.dir.join("A").exists(), "posix {posix}");
        assert!(!w.dir.join("d/a").exists());
    }
}
