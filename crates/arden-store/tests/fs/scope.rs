//! What was seen of a file in a moment never hides a change that was made in it.

use arden_store::error::StoreError;
use arden_store::scope::RequestScope;

use arden_store::fs::{BasicInformation, NameChange};

use crate::world::*;

#[test]
fn own_changes_are_seen_at_once() {
    let w = World::new();
    let f = w.open(want("d").directory());
    w.close(f);
    for i in 0..2 {
        let _scope = (i == 1).then(RequestScope::begin);
        let f = w.open(want(&format!("d\\f{i}")));
        let size = || w.fs.stat(&f).unwrap().stat.end_of_file;
        assert_eq!(size(), 0);
        w.write(&f, 0, &[1; 100]).unwrap();
        assert_eq!(size(), 100);
        w.fs.set_end_of_file(&f, 10, w.cause()).unwrap();
        assert_eq!(size(), 10);
        w.fs.set_allocation(&f, 0, w.cause()).unwrap();
        assert_eq!(size(), 0);
        w.fs.set_eas(&w.scope, &f, &[arden_store::store::Ea { name: "E".into(), flags: 0, value: vec![1] }]).unwrap();
        assert_ne!(w.fs.stat(&f).unwrap().stat.ea_size, 0);
        let info = BasicInformation { attributes: ATTR_HIDDEN, ..Default::default() };
        w.fs.set_basic(&f, &info, w.cause()).unwrap();
        assert_eq!(w.fs.stat(&f).unwrap().stat.attributes, ATTR_HIDDEN);
        let how = NameChange::default();
        let to = arden_store::name::NtPath::parse(&format!("d\\g{i}")).unwrap();
        w.fs.link(&f, &to, how, w.cause()).unwrap();
        assert_eq!(w.fs.stat(&f).unwrap().stat.links, 2);
        w.rename(&f, &format!("d\\h{i}"), false).unwrap();
        assert_eq!(w.fails(want(&format!("d\\f{i}")).existing()), StoreError::NotFound);
        let d = w.open(want("d").existing());
        assert_eq!(w.list(&d, "*").unwrap().iter().filter(|n| n.ends_with(&i.to_string())).count(), 2);
    }
}

/// Writing and renaming move the change time and nothing else: what was known of the attributes holds on, and only that.
#[test]
fn attributes_are_known_over_own_changes_and_read_again_after_others() {
    let w = World::new();
    let attributes = |path: &str| {
        let f = w.open(want(path).existing().access(FILE_READ_ATTRIBUTES));
        let stat = w.fs.stat(&f).unwrap().stat;
        w.close(f);
        (stat.attributes, stat.ea_size != 0, stat.end_of_file)
    };
    let ea = |value: &[u8]| [arden_store::store::Ea { name: "E".into(), flags: 0, value: value.to_vec() }];
    w.close(w.open(want("f").attributes(ATTR_HIDDEN)));
    for round in 0..3u64 {
        {
            let _scope = RequestScope::begin();
            let f = w.open(want("f").existing());
            for i in 0..3 {
                w.write(&f, round * 300 + i * 100, &[1; 100]).unwrap();
                assert_eq!(w.fs.stat(&f).unwrap().stat.end_of_file, round * 300 + (i + 1) * 100);
            }
            // In the middle of it somebody gives the file an attribute, and takes it away again in the next round.
            w.fs.set_eas(&w.scope, &f, &ea(if round % 2 == 0 { &[1] } else { &[] })).unwrap();
            w.write(&f, 0, &[2; 100]).unwrap();
            w.rename(&f, "g", false).unwrap();
            w.rename(&f, "f", false).unwrap();
            w.close(f);
        }
        let _scope = RequestScope::begin();
        assert_eq!(attributes("f"), (ATTR_HIDDEN | ATTR_ARCHIVE, round % 2 == 0, (round + 1) * 300), "round {round}");
    }
    // Outside of Arden, between two messages.
    let path = w.dir.join("f");
    rustix::fs::setxattr(&path, "user.E2", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    std::fs::write(&path, "short").unwrap();
    assert_eq!(attributes("f"), (ATTR_HIDDEN | ATTR_ARCHIVE, true, 5));
    rustix::fs::removexattr(&path, "user.DOSATTRIB").unwrap();
    assert_eq!(attributes("f").0 & ATTR_HIDDEN, 0);
}

/// A message that waits for its disk takes long, and others go on meanwhile.
#[test]
fn a_long_scope_sees_what_others_do() {
    let w = World::new();
    w.close(w.open(want("f").attributes(ATTR_HIDDEN)));
    let path = w.dir.join("f");
    let _scope = RequestScope::begin();
    let f = w.open(want("f").existing());
    assert_eq!(w.fs.stat(&f).unwrap().stat.attributes, ATTR_HIDDEN | ATTR_ARCHIVE);
    rustix::fs::removexattr(&path, "user.DOSATTRIB").unwrap();
    std::fs::write(&path, "short").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(w.fs.stat(&f).unwrap().stat.end_of_file, 5);
    rustix::fs::setxattr(&path, "user.E", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    w.write(&f, 5, b"er").unwrap();
    let stat = w.fs.stat(&f).unwrap().stat;
    assert_eq!((stat.end_of_file, stat.attributes & ATTR_HIDDEN, stat.ea_size != 0), (7, 0, true));
}
