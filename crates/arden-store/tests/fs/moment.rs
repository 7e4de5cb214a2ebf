//! What was seen of a file in a moment never hides a change that was made in it.

use arden_store::dir::Moment;

use arden_store::fs::{BasicInformation, NameChange};

use crate::world::*;

#[test]
fn own_changes_are_seen_at_once() {
    let w = World::new();
    let f = w.open(want("d").directory());
    w.close(f);
    for i in 0..2 {
        let _moment = (i == 1).then(Moment::begin);
        let f = w.open(want(&format!("d\\f{i}")));
        let size = || w.fs.stat(&f).unwrap().stat.end_of_file;
        assert_eq!(size(), 0);
        w.write(&f, 0, &[1; 100]).unwrap();
        assert_eq!(size(), 100);
        w.fs.set_end_of_file(&f, 10, w.now).unwrap();
        assert_eq!(size(), 10);
        w.fs.set_allocation(&f, 0, w.now).unwrap();
        assert_eq!(size(), 0);
        w.fs.set_eas(&f, &[arden_store::store::Ea { name: "E".into(), flags: 0, value: vec![1] }]).unwrap();
        assert_ne!(w.fs.stat(&f).unwrap().stat.ea_size, 0);
        let info = BasicInformation { attributes: ATTR_HIDDEN, ..Default::default() };
        w.fs.set_basic(&f, &info, w.now).unwrap();
        assert_eq!(w.fs.stat(&f).unwrap().stat.attributes, ATTR_HIDDEN);
        let how = NameChange::default();
        let to = arden_store::name::NtPath::parse(&format!("d\\g{i}")).unwrap();
        w.fs.link(&f, &to, how, w.now).unwrap();
        assert_eq!(w.fs.stat(&f).unwrap().stat.links, 2);
        w.rename(&f, &format!("d\\h{i}"), false).unwrap();
        assert_eq!(w.fails(want(&format!("d\\f{i}")).existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
        let d = w.open(want("d").existing());
        assert_eq!(w.list(&d, "*").unwrap().iter().filter(|n| n.ends_with(&i.to_string())).count(), 2);
    }
}
