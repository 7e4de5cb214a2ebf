//! Dispositions, options, access and sharing.

use arden_store::error::StoreError;
use arden_store::fs::{BasicInformation, CreateAction, Disposition, Opened, lease_state};

use crate::world::*;

#[test]
fn dispositions() {
    use Disposition::*;
    let w = World::new();
    for d in [Open, Overwrite] {
        assert_eq!(w.fails(want("new").disposition(d)), StoreError::NotFound, "{d:?}");
        assert_eq!(w.fails(want("no\\new").disposition(d)), StoreError::PathNotFound, "{d:?}");
    }
    for d in [Supersede, Create, OpenIf, OverwriteIf] {
        let o = w.opened(want("new").disposition(d));
        assert_eq!(o.action, CreateAction::Created, "{d:?}");
        assert_eq!(o.stat.attributes, ATTR_ARCHIVE);
        w.close(o.open);
        w.unlink("new").unwrap();
    }
    let o = w.open(want("file"));
    w.write(&o, 0, b"content").unwrap();
    w.close(o);
    assert_eq!(w.fails(want("file").disposition(Create)), StoreError::NameCollision);
    assert_eq!(w.fails(want("file").directory()), StoreError::NotADirectory);
    for d in [Open, OpenIf] {
        let o = w.opened(want("FILE").disposition(d));
        assert_eq!((o.action, o.stat.end_of_file), (CreateAction::Opened, 7));
        w.close(o.open);
    }
    for (d, action) in [
        (Supersede, CreateAction::Superseded),
        (Overwrite, CreateAction::Overwritten),
        (OverwriteIf, CreateAction::Overwritten),
    ] {
        let o = w.opened(want("file").disposition(d).attributes(ATTR_TEMPORARY));
        assert_eq!((o.action, o.stat.end_of_file), (action, 0));
        assert_eq!(o.stat.attributes, ATTR_TEMPORARY | ATTR_ARCHIVE);
        w.write(&o.open, 0, b"again").unwrap();
        w.close(o.open);
    }
    let o = w.opened(want("dir").directory());
    assert_eq!((o.action, o.stat.attributes), (CreateAction::Created, ATTR_DIRECTORY));
    w.close(o.open);
    assert_eq!(w.fails(want("dir").disposition(Overwrite)), StoreError::NameCollision);
    assert_eq!(w.fails(want("dir").options(OPT_NON_DIRECTORY_FILE)), StoreError::IsADirectory);
    assert_eq!(w.fails(want("dir").directory().disposition(Overwrite)), StoreError::InvalidParameter);
    assert_eq!(w.fails(want("dir\\x\\y")), StoreError::PathNotFound);
    assert_eq!(w.fails(want("file\\y")), StoreError::PathNotFound);
    let root = w.opened(want("").existing());
    assert!(root.stat.directory);
}

#[test]
fn overwriting_keeps_hidden_and_system() {
    let w = World::new();
    w.close(w.open(want("f").attributes(ATTR_HIDDEN | ATTR_SYSTEM)));
    let over = want("f").disposition(Disposition::Overwrite);
    assert_eq!(w.fails(over.clone()), StoreError::AccessDenied);
    assert_eq!(w.fails(over.clone().attributes(ATTR_HIDDEN)), StoreError::AccessDenied);
    let o = w.opened(over.attributes(ATTR_HIDDEN | ATTR_SYSTEM));
    assert_eq!(o.stat.attributes, ATTR_HIDDEN | ATTR_SYSTEM | ATTR_ARCHIVE);
}

#[test]
fn read_only_files() {
    let w = World::new();
    // The creator may write still.
    let o = w.open(want("f").attributes(ATTR_READONLY));
    w.write(&o, 0, b"x").unwrap();
    w.close(o);
    assert_eq!(w.fails(want("f").access(FILE_WRITE_DATA)), StoreError::ReadOnlyFile);
    assert_eq!(w.fails(want("f").access(FILE_APPEND_DATA)), StoreError::ReadOnlyFile);
    assert_eq!(w.fails(want("f").access(DELETE).options(OPT_DELETE_ON_CLOSE)), StoreError::CannotDelete);
    let most = w.open(want("f").access(MAXIMUM_ALLOWED));
    assert_eq!(most.granted_access() & (FILE_WRITE_DATA | FILE_APPEND_DATA), 0);
    assert_ne!(most.granted_access() & DELETE, 0);
    let new = want("g").attributes(ATTR_READONLY).options(OPT_DELETE_ON_CLOSE);
    assert_eq!(w.fails(new), StoreError::CannotDelete);
}

#[test]
fn access_is_what_was_granted() {
    let w = World::new();
    let o = w.open(want("f").access(FILE_READ_DATA));
    assert_eq!(w.write(&o, 0, b"x"), Err(StoreError::AccessDenied.into()));
    assert_eq!(w.read(&o, 0, 4), Err(StoreError::EndOfFile.into()));
    let writer = w.open(want("f").access(FILE_WRITE_DATA));
    w.write(&writer, 0, b"data").unwrap();
    assert_eq!(w.read(&writer, 0, 4), Err(StoreError::AccessDenied.into()));
    assert_eq!(w.read(&o, 2, 10).unwrap(), b"ta");
    assert_eq!(w.read(&o, 4, 1), Err(StoreError::EndOfFile.into()));
    assert_eq!(w.read(&o, 9, 0).unwrap(), b"");
    let appender = w.open(want("f").access(FILE_APPEND_DATA));
    w.write(&appender, 0, b"D").unwrap();
    w.write(&appender, 4, b"!").unwrap();
    w.write(&appender, arden_store::fs::APPEND, b"?").unwrap();
    w.write(&writer, 6, b".").unwrap();
    assert_eq!(w.read(&o, 0, 10).unwrap(), b"Data!?.");
    assert_eq!(w.fails(want("f").access(0)), StoreError::AccessDenied);
    assert_eq!(w.fails(want("f").access(0x0800_0000)), StoreError::AccessDenied);
    w.close(o.clone());
    assert_eq!(w.read(&o, 0, 1), Err(StoreError::Closed.into()));
}

#[test]
fn share_modes() {
    let w = World::new();
    let reader = w.open(want("f").access(FILE_READ_DATA).share(FILE_SHARE_READ));
    assert_eq!(w.fails(want("f").access(FILE_WRITE_DATA)), StoreError::SharingViolation);
    assert_eq!(w.fails(want("f").access(DELETE)), StoreError::SharingViolation);
    assert_eq!(w.fails(want("f").access(FILE_READ_DATA).share(0)), StoreError::SharingViolation);
    // Overwriting writes.
    let over = want("f").access(FILE_READ_DATA).disposition(Disposition::OverwriteIf);
    assert_eq!(w.fails(over), StoreError::SharingViolation);
    let stat = w.open(want("f").access(FILE_READ_ATTRIBUTES | FILE_WRITE_ATTRIBUTES | READ_CONTROL).share(0));
    let second = w.open(want("f").access(FILE_EXECUTE).share(FILE_SHARE_READ));
    w.close(reader);
    w.close(second);
    w.open(want("f").access(FILE_WRITE_DATA).share(0));
    w.close(stat);
    assert_eq!(w.table.open_count(), 0);
}

#[test]
fn streams_share_with_their_file() {
    let w = World::new();
    let s = w.open(want("f:s").share(0));
    // Another stream has share modes of its own...
    let t = w.open(want("f:t").share(0));
    w.close(w.open(want("f").access(FILE_READ_DATA | FILE_WRITE_DATA).share(0)));
    assert_eq!(w.fails(want("f:S").access(FILE_READ_DATA)), StoreError::SharingViolation);
    // ...but deleting the file deletes them.
    assert_eq!(w.fails(want("f").access(DELETE)), StoreError::SharingViolation);
    assert_eq!(w.unlink("f"), Err(StoreError::SharingViolation.into()));
    w.close(s);
    w.close(t);
    let s = w.open(want("f:s").access(FILE_READ_DATA | FILE_WRITE_DATA));
    w.write(&s, 0, b"abc").unwrap();
    w.unlink("f").unwrap();
    assert_eq!(w.read(&s, 0, 3).unwrap(), b"abc");
    assert_eq!(w.fails(want("f")), StoreError::DeletePending);
    assert_eq!(w.fails(want("f:s")), StoreError::DeletePending);
    w.close(s);
    assert_eq!(w.fails(want("f").existing()), StoreError::NotFound);
}

#[test]
fn one_lease_key_for_one_file() {
    let w = World::new();
    let a = w.open(want("a").lease(1, "RWH"));
    assert_eq!(w.fails(want("b").lease(1, "RWH")), StoreError::InvalidParameter);
    assert!(!w.dir.join("b").exists());
    w.close(w.open(want("b")));
    assert_eq!(w.fails(want("b").lease(1, "R")), StoreError::InvalidParameter);
    w.close(w.open(want("b").lease(1, "R").client(2)));
    w.close(a);
    let b = w.open(want("b").lease(1, "R"));
    assert_eq!(w.lease_of(&b), "R");
    assert_eq!(lease_state::READ, 1);
}

#[test]
fn creating_and_closing_is_fast_and_leaves_nothing() {
    let w = World::new();
    let start = std::time::Instant::now();
    for i in 0..2000 {
        let o = w.open(want(&format!("f{i}")).disposition(Disposition::Create).lease(7 + i, "RWH"));
        w.close(o);
    }
    println!("create+close: {:.1} us", start.elapsed().as_micros() as f64 / 2000.0);
    let start = std::time::Instant::now();
    for i in 0..2000 {
        let o = w.open(want(&format!("f{i}")).existing().lease(7 + i, "RWH"));
        w.close(o);
    }
    println!("open+close: {:.1} us", start.elapsed().as_micros() as f64 / 2000.0);
    assert_eq!(w.table.open_count(), 0);
    assert!(w.table.opens().is_empty() && w.told().is_empty());
}

#[test]
fn a_descriptor_given_at_creation_stands() {
    use arden_wire::dtyp::{Ace, Acl, SecurityDescriptor, well_known};
    let w = World::new();
    let plain = w.open(want("f"));
    let sd = w.fs.security(&plain, 7).unwrap();
    let mut given: SecurityDescriptor = (*sd).clone();
    let mut aces = given.dacl.clone().unwrap().aces;
    aces.push(Ace::allow(&well_known::AUTHENTICATED_USERS, 0x1f_0000, 0));
    given.dacl = Some(Acl::new(aces));
    w.close(plain);
    w.unlink("f").unwrap();
    let again = w.open(want("f").security(&given));
    let stored = w.fs.security(&again, 7).unwrap();
    assert_eq!(*stored, given);
}

#[test]
fn automatic_inheritance_is_handed_down() {
    const AUTO_INHERITED: u16 = 0x400;
    let w = World::new();
    let dir = w.open(want("d").directory());
    let mut sd = (*w.fs.security(&dir, 7).unwrap()).clone();
    sd.control |= AUTO_INHERITED | 0x100;
    w.fs.set_security(&dir, 4, &sd, w.cause()).unwrap();
    assert_ne!(w.fs.security(&dir, 4).unwrap().control & AUTO_INHERITED, 0);
    let child = w.open(want("d\\f"));
    assert_ne!(w.fs.security(&child, 4).unwrap().control & AUTO_INHERITED, 0);
}

#[test]
fn the_descriptor_decides() {
    use arden_auth::Token;
    use arden_wire::dtyp::{Ace, Acl, SecurityDescriptor, Sid, well_known};
    let w = World::new();
    let reader = Sid::new(5, &[21, 1, 2, 3, 1000]);
    let who = std::sync::Arc::new(Token {
        user: reader.clone(),
        user_name: "reader".into(),
        groups: vec![well_known::EVERYONE.clone()],
        privileges: 0,
    });
    let acl = |mask| SecurityDescriptor {
        control: 4,
        dacl: Some(Acl::new(vec![Ace::allow(&reader, mask, 0), Ace::allow(&well_known::SYSTEM, FILE_ALL_ACCESS, 0)])),
        ..SecurityDescriptor::default()
    };
    w.close(w.open(want("f").security(&acl(FILE_GENERIC_READ))));
    let as_reader = |access| want("f").existing().access(access).who(&who);
    w.close(w.open(as_reader(FILE_READ_DATA | FILE_READ_ATTRIBUTES)));
    assert_eq!(w.open(as_reader(MAXIMUM_ALLOWED)).granted_access(), FILE_GENERIC_READ);
    assert_eq!(w.fails(as_reader(MAXIMUM_ALLOWED | FILE_WRITE_DATA)), StoreError::AccessDenied);
    assert_eq!(w.fails(as_reader(FILE_WRITE_ATTRIBUTES)), StoreError::AccessDenied);
    assert_eq!(w.fails(as_reader(DELETE)), StoreError::AccessDenied);
    assert_eq!(w.fails(as_reader(ACCESS_SYSTEM_SECURITY)), StoreError::PrivilegeNotHeld);
    for d in [Disposition::Overwrite, Disposition::OverwriteIf, Disposition::Supersede] {
        assert_eq!(w.fails(as_reader(FILE_READ_DATA).disposition(d)), StoreError::AccessDenied, "{d:?}");
    }
    // Who may not write cannot lock readers out.
    let shut = w.open(as_reader(FILE_READ_DATA).share(0));
    w.close(w.open(want("f").access(FILE_READ_DATA).share(FILE_SHARE_READ)));
    w.close(shut);
    // A directory that lets its children be deleted and listed.
    let d = want("d").directory().security(&acl(FILE_DELETE_CHILD | FILE_LIST_DIRECTORY | FILE_TRAVERSE));
    w.close(w.open(d));
    w.close(w.open(want("d\\x").security(&acl(READ_CONTROL))));
    let child = want("d\\x").existing().who(&who);
    w.close(w.open(child.clone().access(DELETE | FILE_READ_ATTRIBUTES | READ_CONTROL)));
    assert_eq!(w.fails(child.clone().access(DELETE | FILE_READ_DATA)), StoreError::AccessDenied);
    let most = w.open(child.access(MAXIMUM_ALLOWED)).granted_access();
    assert_eq!(most & (DELETE | FILE_READ_ATTRIBUTES | READ_CONTROL), DELETE | FILE_READ_ATTRIBUTES | READ_CONTROL);
    assert_eq!(w.fails(want("d\\new").who(&who)), StoreError::AccessDenied);
}

/// [MS-FSA] 2.1.5.1.1: as the directory has it, whatever is asked for; 2.1.5.1.2: an overwrite clears it.
#[test]
fn whether_content_is_indexed_comes_from_the_directory() {
    let w = World::new();
    let has = |f: &Opened| f.stat.attributes & ATTR_NOT_CONTENT_INDEXED != 0;
    let asked = want("plain").attributes(ATTR_NOT_CONTENT_INDEXED | ATTR_HIDDEN);
    let plain = w.opened(asked.clone());
    assert_eq!(plain.stat.attributes, ATTR_HIDDEN | ATTR_ARCHIVE);
    let d = w.open(want("d").directory());
    let set = |f: &std::sync::Arc<arden_store::fs::Open>, attributes| {
        let info = BasicInformation { attributes, ..BasicInformation::default() };
        w.fs.set_basic(f, &info, w.cause()).unwrap();
    };
    set(&d, ATTR_NOT_CONTENT_INDEXED);
    let children = [want("d\\f"), want("d\\sub").directory(), want("d\\sub\\f"), want("d\\sub\\g:s")];
    for child in children {
        assert!(has(&w.opened(child.clone())), "{}", child.path);
    }
    let f = w.open(want("d\\f"));
    assert!(!has(&w.opened(want("d\\f").disposition(Disposition::Overwrite).attributes(ATTR_NOT_CONTENT_INDEXED))));
    set(&f, ATTR_NOT_CONTENT_INDEXED);
    assert!(has(&w.opened(want("d\\f"))), "what a client sets stays");
}
