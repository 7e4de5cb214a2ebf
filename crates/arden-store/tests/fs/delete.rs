//! Delete on close and pending deletion.

use std::sync::Arc;

use arden_store::{
    dir::{DirOptions, DirStore},
    error::StoreError,
    fs::{Disposal, Fs, NameChange, Open, OplockLevel, Step},
    name::NtPath,
};

use crate::world::*;

const REPLACE: NameChange = NameChange { replace: true, posix: false, ignore_readonly: false };
const DELETE_IT: Disposal = Disposal { delete: true, posix: false, ignore_readonly: false, on_close: false };

#[test]
fn the_last_close_deletes() {
    let w = World::new();
    let (a, b) = (w.open(want("f")), w.open(want("f")));
    assert!(matches!(w.fs.set_disposition(&a, DELETE_IT, w.cause()), Ok(Step::Done(()))));
    let stat = w.fs.stat(&b).unwrap();
    assert!(stat.delete_pending && stat.stat.links == 0);
    assert_eq!(w.fails(want("f")), StoreError::DeletePending);
    w.close(a);
    assert!(w.dir.join("f").exists());
    assert_eq!(w.fails(want("f")), StoreError::DeletePending);
    w.close(b);
    assert!(!w.dir.join("f").exists());
    // And taken back.
    let a = w.open(want("f"));
    w.fs.set_disposition(&a, DELETE_IT, w.cause()).unwrap();
    w.fs.set_disposition(&a, Disposal::default(), w.cause()).unwrap();
    assert!(!w.fs.stat(&a).unwrap().delete_pending);
    w.close(a);
    assert!(w.dir.join("f").exists());
}

#[test]
fn delete_on_close_belongs_to_the_open() {
    let w = World::new();
    let a = w.open(want("f"));
    let b = w.open(want("f").options(OPT_DELETE_ON_CLOSE));
    // Not pending until that open closes.
    w.close(w.open(want("f")));
    w.close(b);
    assert_eq!(w.fails(want("f")), StoreError::DeletePending);
    w.close(a);
    assert!(!w.dir.join("f").exists());
    assert_eq!(w.fails(want("g").access(FILE_READ_DATA).options(OPT_DELETE_ON_CLOSE)), StoreError::AccessDenied);
    drop(w.open(want("h").options(OPT_DELETE_ON_CLOSE)));
    assert!(!w.dir.join("h").exists(), "dropping closes");
}

#[test]
fn each_name_is_deleted_for_itself() {
    let w = World::new();
    let (a, g) = (w.open(want("f")), NtPath::parse("g").unwrap());
    w.fs.link(&a, &g, NameChange::default(), w.cause()).unwrap();
    let b = w.open(want("g"));
    w.fs.set_disposition(&a, DELETE_IT, w.cause()).unwrap();
    let (of_a, of_b) = (w.fs.stat(&a).unwrap(), w.fs.stat(&b).unwrap());
    assert!(of_a.delete_pending && of_a.stat.links == 1);
    assert!(!of_b.delete_pending && of_b.stat.links == 1);
    // The other name's is not taken back with this one's.
    w.fs.set_disposition(&b, Disposal::default(), w.cause()).unwrap();
    assert!(w.fs.stat(&a).unwrap().delete_pending);
    w.close(a);
    w.close(b);
    assert!(!w.dir.join("f").exists() && w.dir.join("g").exists());
    // Both, and one of both taken back.
    let b = w.open(want("g"));
    w.fs.link(&b, &NtPath::parse("f").unwrap(), NameChange::default(), w.cause()).unwrap();
    let a = w.open(want("f"));
    w.fs.set_disposition(&a, DELETE_IT, w.cause()).unwrap();
    w.fs.set_disposition(&b, DELETE_IT, w.cause()).unwrap();
    assert_eq!(w.fs.stat(&b).unwrap().stat.links, 0);
    w.fs.set_disposition(&a, Disposal::default(), w.cause()).unwrap();
    w.fs.set_disposition(&a, DELETE_IT, w.cause()).unwrap();
    w.close(b);
    assert!(w.dir.join("f").exists() && !w.dir.join("g").exists(), "each with its own last open");
    w.close(a);
    assert!(!w.dir.join("f").exists());
    w.close(w.open(want("f")));
    assert!(w.dir.join("f").exists(), "nothing is pending any more");
}

/// [MS-FSA] 2.1.5.5 phase 3: a name goes when nobody has it open any more, whatever others have the file open by.
#[test]
fn a_name_goes_with_its_own_last_open() {
    for posix in [false, true] {
        let w = World::new();
        let how = Disposal { posix, ..DELETE_IT };
        let (a, other) = (w.open(want("f")), w.open(want("f")));
        w.fs.link(&a, &NtPath::parse("g").unwrap(), NameChange::default(), w.cause()).unwrap();
        let b = w.open(want("g").existing());
        w.fs.set_disposition(&a, how, w.cause()).unwrap();
        // The other name can be opened, linked and renamed meanwhile.
        assert_eq!(w.fails(want("f").existing()), StoreError::DeletePending);
        w.close(w.open(want("g").existing()));
        w.fs.link(&b, &NtPath::parse("h").unwrap(), NameChange::default(), w.cause()).unwrap();
        let over = w.fs.link(&b, &NtPath::parse("f").unwrap(), REPLACE, w.cause());
        assert_eq!(over.unwrap_err(), StoreError::DeletePending);
        assert_eq!(w.rename(&b, "f", true).unwrap_err(), StoreError::DeletePending);
        assert!(matches!(w.rename(&b, "k", false), Ok(Step::Done(()))));
        assert_eq!(w.rename(&a, "l", false).unwrap_err(), StoreError::AccessDenied);
        let stream = w.open(want("k:s"));
        w.close(a);
        assert_eq!(w.dir.join("f").exists(), !posix);
        w.close(w.open(want("K").existing()));
        if posix {
            // What has lost its name neither gets it back nor takes it from who has it next.
            assert_eq!(w.fs.set_disposition(&other, Disposal::default(), w.cause()).unwrap_err(), StoreError::Deleted);
            w.fs.link(&b, &NtPath::parse("f").unwrap(), NameChange::default(), w.cause()).unwrap();
            let new = w.open(want("f").existing());
            w.fs.set_disposition(&other, DELETE_IT, w.cause()).unwrap();
            assert!(!w.fs.stat(&new).unwrap().delete_pending);
            assert_eq!(w.fs.stat(&new).unwrap().stat.links, 3);
            assert_eq!(w.rename(&other, "l", false).unwrap_err(), StoreError::AccessDenied);
            w.fs.set_disposition(&new, DELETE_IT, w.cause()).unwrap();
            w.close(new);
        } else {
            w.close(other);
        }
        assert!(!w.dir.join("f").exists() && w.dir.join("k").exists());
        // A stream that is open by a name keeps that.
        w.fs.set_disposition(&b, DELETE_IT, w.cause()).unwrap();
        w.close(b);
        assert!(w.dir.join("k").exists());
        w.close(stream);
        assert!(!w.dir.join("k").exists() && w.dir.join("h").exists());
    }
}

#[test]
fn a_stream_that_is_to_go_goes_by_its_new_name() {
    let w = World::new();
    w.close(w.open(want("d").directory()));
    let store = DirStore::open(&w.dir.join("d"), DirOptions::default()).unwrap();
    let mut below = World::with(w.table.clone());
    below.fs = Fs::new(store, w.table.clone());
    let (a, b) = (w.open(want("d\\f:s")), below.open(want("f:s")));
    below.fs.set_disposition(&b, DELETE_IT, w.cause()).unwrap();
    below.close(b);
    assert!(matches!(w.rename(&a, ":other", false), Ok(Step::Done(()))));
    w.close(a);
    assert_eq!(w.fails(want("d\\f:other").existing()), StoreError::NotFound);
    assert_eq!(w.fails(want("d\\f:s").existing()), StoreError::NotFound);
}

#[test]
fn a_name_is_the_same_whichever_root_leads_to_it() {
    let w = World::new();
    w.close(w.open(want("d").directory()));
    let store = DirStore::open(&w.dir.join("d"), DirOptions::default()).unwrap();
    let mut below = World::with(w.table.clone());
    below.fs = Fs::new(store, w.table.clone());
    let (a, b) = (w.open(want("d\\f")), below.open(want("F")));
    w.fs.set_disposition(&a, DELETE_IT, w.cause()).unwrap();
    assert!(below.fs.stat(&b).unwrap().delete_pending);
    below.fs.set_disposition(&b, Disposal::default(), w.cause()).unwrap();
    w.close(a);
    below.close(b);
    assert!(w.dir.join("d/f").exists());
}

#[test]
fn posix_deletion_takes_the_name_at_once() {
    let w = World::new();
    let (a, b) = (w.open(want("f")), w.open(want("f")));
    w.write(&b, 0, b"x").unwrap();
    w.fs.set_disposition(&a, Disposal { posix: true, ..DELETE_IT }, w.cause()).unwrap();
    w.close(a);
    assert!(!w.dir.join("f").exists());
    let new = w.open(want("f").disposition(arden_store::fs::Disposition::Create));
    assert_ne!(new.file_id(), b.file_id());
    assert_eq!(w.read(&b, 0, 1).unwrap(), b"x");
    w.close(b);
    assert!(w.dir.join("f").exists());
}

#[test]
fn posix_deletion_is_done_by_who_asked() {
    let w = World::new();
    let posix = Disposal { posix: true, ..DELETE_IT };
    let (a, b, c) = (w.open(want("f")), w.open(want("f")), w.open(want("f")));
    w.fs.set_disposition(&a, posix, w.cause()).unwrap();
    w.close(b);
    assert!(w.dir.join("f").exists() && w.fs.stat(&a).unwrap().delete_pending);
    w.fs.set_disposition(&a, Disposal::default(), w.cause()).unwrap();
    // Asked for anew by others: nothing is left of what it asked for.
    w.fs.set_disposition(&c, DELETE_IT, w.cause()).unwrap();
    w.close(a);
    assert!(w.dir.join("f").exists());
    // Who asks in both ways means the last.
    w.fs.set_disposition(&c, Disposal::default(), w.cause()).unwrap();
    let a = w.open(want("f"));
    w.fs.set_disposition(&a, posix, w.cause()).unwrap();
    w.fs.set_disposition(&a, DELETE_IT, w.cause()).unwrap();
    w.close(a);
    assert!(w.dir.join("f").exists());
    // Each that asked does it, also one whose file was to go already; then nobody takes it back.
    let kept = w.fs.keep(&c);
    assert_eq!(kept.delete_pending, Some(false));
    w.fs.set_disposition(&c, posix, w.cause()).unwrap();
    assert_eq!(w.fs.keep(&c).delete_pending, Some(true));
    w.fs.set_disposition(&c, Disposal::default(), w.cause()).unwrap();
    let a = w.open(want("f"));
    w.fs.set_disposition(&a, posix, w.cause()).unwrap();
    w.close(a);
    assert!(!w.dir.join("f").exists());
    assert_eq!(w.fs.set_disposition(&c, Disposal::default(), w.cause()).unwrap_err(), StoreError::Deleted);
}

/// [MS-FSA] 2.1.5.15.4 passes the attribute over, and leaves it: to the file whose deletion is taken back, and to its other names.
#[test]
fn a_deletion_that_ignores_the_read_only_attribute_leaves_it() {
    let w = World::new();
    let read_only = |open: &Arc<Open>| w.fs.stat(open).unwrap().stat.attributes & ATTR_READONLY != 0;
    let f = w.open(want("f").attributes(ATTR_READONLY));
    w.fs.link(&f, &NtPath::parse("g").unwrap(), NameChange::default(), w.cause()).unwrap();
    for posix in [false, true] {
        let anyway = Disposal { posix, ignore_readonly: true, ..DELETE_IT };
        w.fs.set_disposition(&f, anyway, w.cause()).unwrap();
        assert!(read_only(&f));
        w.fs.set_disposition(&f, Disposal::default(), w.cause()).unwrap();
        assert!(read_only(&f));
    }
    for name in ["f", "g"] {
        let open = w.open(want(name).existing().access(DELETE | FILE_READ_ATTRIBUTES | FILE_WRITE_ATTRIBUTES));
        assert!(read_only(&open), "{name}");
        assert_eq!(w.fs.set_disposition(&open, DELETE_IT, w.cause()).unwrap_err(), StoreError::CannotDelete);
        w.fs.set_disposition(&open, Disposal { ignore_readonly: true, ..DELETE_IT }, w.cause()).unwrap();
        w.close(open);
        w.fs.close(&w.scope, &f);
        assert!(!w.dir.join(name).exists(), "{name}");
    }
}

#[test]
fn what_cannot_be_deleted() {
    let w = World::new();
    let f = w.open(want("f").access(FILE_READ_DATA));
    assert_eq!(w.fs.set_disposition(&f, DELETE_IT, w.cause()).unwrap_err(), StoreError::AccessDenied);
    let r = w.open(want("r").attributes(ATTR_READONLY));
    assert_eq!(w.fs.set_disposition(&r, DELETE_IT, w.cause()).unwrap_err(), StoreError::CannotDelete);
    let anyway = Disposal { ignore_readonly: true, ..DELETE_IT };
    assert!(w.fs.set_disposition(&r, anyway, w.cause()).is_ok());
    let d = w.open(want("d").directory());
    w.close(w.open(want("d\\x")));
    assert_eq!(w.fs.set_disposition(&d, DELETE_IT, w.cause()).unwrap_err(), StoreError::DirectoryNotEmpty);
    w.close(d);
    // Delete on close of a full directory does nothing.
    w.close(w.open(want("d").directory().options(OPT_DELETE_ON_CLOSE)));
    assert!(w.dir.join("d").exists());
    let root = w.open(want("").existing());
    assert!(w.fs.set_disposition(&root, DELETE_IT, w.cause()).is_err());
}

#[test]
fn nothing_is_created_in_a_dying_directory() {
    let w = World::new();
    let d = w.open(want("d").directory());
    w.fs.set_disposition(&d, DELETE_IT, w.cause()).unwrap();
    assert_eq!(w.fails(want("d\\x")), StoreError::DeletePending);
    // Nor linked there, [MS-FSA] 2.1.5.15.7: its directory is opened.
    let f = w.open(want("f"));
    let to = arden_store::name::NtPath::parse("d\\x").unwrap();
    let how = arden_store::fs::NameChange::default();
    assert_eq!(w.fs.link(&f, &to, how, w.cause()).unwrap_err(), StoreError::DeletePending);
    w.close(f);
    w.close(d);
    assert_eq!(w.fails(want("d\\x")), StoreError::PathNotFound);
}

/// A directory has one name, also for who has it open as the root of another share.
#[test]
fn a_directory_goes_with_its_last_open_whichever_root_that_came_by() {
    let w = World::new();
    let d = w.open(want("d").directory());
    let mut below = World::with(w.table.clone());
    below.fs = Fs::new(DirStore::open(&w.dir.join("d"), DirOptions::default()).unwrap(), w.table.clone());
    let root = below.open(want("").existing());
    w.fs.set_disposition(&d, DELETE_IT, w.cause()).unwrap();
    assert_eq!(below.fails(want("").existing()), StoreError::DeletePending);
    assert_eq!(below.fails(want("f")), StoreError::DeletePending);
    w.close(d);
    assert!(w.dir.join("d").exists());
    below.close(root);
    assert!(!w.dir.join("d").exists());
}

#[test]
fn streams_are_deleted_alone() {
    let w = World::new();
    w.close(w.open(want("f:a")));
    w.close(w.open(want("f:b")));
    w.unlink("f:a").unwrap();
    assert_eq!(w.fails(want("f:a").existing()), StoreError::NotFound);
    let f = w.open(want("f"));
    let names: Vec<String> = w.fs.streams(&f).unwrap().into_iter().map(|s| s.name).collect();
    assert!(names.contains(&"b".to_owned()) && !names.contains(&"a".to_owned()), "{names:?}");
    assert!(!w.fs.stat(&f).unwrap().delete_pending);
}

#[test]
fn a_stream_goes_also_while_its_file_is_to_go() {
    let w = World::new();
    w.close(w.open(want("f:a")));
    let (f, a) = (w.open(want("f")), w.open(want("f:a")));
    w.fs.set_disposition(&f, DELETE_IT, w.cause()).unwrap();
    w.fs.set_disposition(&a, DELETE_IT, w.cause()).unwrap();
    w.close(a);
    let names: Vec<String> = w.fs.streams(&f).unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, [String::new()]);
    // The file stays after all, and its stream can be made again.
    w.fs.set_disposition(&f, Disposal::default(), w.cause()).unwrap();
    w.close(w.open(want("f:a")));
    w.close(f);
    assert!(w.dir.join("f").exists());
}

#[test]
fn who_waits_for_a_file_that_goes_comes_after_its_deletion() {
    let w = World::new();
    let first = w.open(want("f").oplock(OplockLevel::Batch).options(OPT_DELETE_ON_CLOSE));
    let wait = w.waits(&want("f").client(2));
    w.told();
    let path = w.dir.join("f");
    w.log.on_resume(move || assert!(!path.exists(), "it would find the deletion pending"));
    w.close(first);
    assert_eq!(w.told(), [format!("resume {}", wait.0)]);
    w.close(w.open(want("f").client(2)));
}

#[test]
fn a_stream_goes_also_where_its_file_keeps_a_name() {
    for posix in [false, true] {
        let w = World::new();
        let f = w.open(want("f"));
        w.fs.link(&f, &NtPath::parse("g").unwrap(), NameChange::default(), w.cause()).unwrap();
        let a = w.open(want("f:a"));
        w.write(&a, 0, b"data").unwrap();
        w.fs.set_disposition(&a, DELETE_IT, w.cause()).unwrap();
        w.fs.set_disposition(&f, Disposal { posix, ..DELETE_IT }, w.cause()).unwrap();
        w.close(f);
        assert_eq!(w.dir.join("f").exists(), !posix);
        w.close(a);
        assert!(!w.dir.join("f").exists(), "posix: {posix}");
        let g = w.open(want("g").existing());
        let names: Vec<String> = w.fs.streams(&g).unwrap().into_iter().map(|s| s.name).collect();
        assert_eq!(names, [String::new()], "posix: {posix}");
    }
}
