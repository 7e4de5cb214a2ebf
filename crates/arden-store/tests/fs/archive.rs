//! What sets the archive attribute of a file that a backup has cleared, [MS-FSA] 2.1.4.17 and the operations that name it.

use std::sync::Arc;

use arden_store::{
    fs::{BasicInformation, NameChange, Open, security_info},
    name::NtPath,
    store::Ea,
};

use crate::world::*;

const TAG: u32 = 0x8000_0123;

impl World {
    fn has_archive(&self, open: &Arc<Open>) -> bool {
        self.fs.stat(open).unwrap().stat.attributes & ATTR_ARCHIVE != 0
    }

    /// What a backup does when it has copied a file.
    fn back_up(&self, path: &str) {
        let f = self.open(want(path).existing());
        let info = BasicInformation { attributes: ATTR_NORMAL, ..BasicInformation::default() };
        self.fs.set_basic(&f, &info, self.cause()).unwrap();
        assert!(!self.has_archive(&f));
        self.close(f);
    }
}

#[test]
fn a_stream_that_is_made_sets_it() {
    let w = World::new();
    let f = w.open(want("f"));
    w.back_up("f");
    let s = w.open(want("f:s"));
    assert!(w.has_archive(&f), "2.1.5.1.2, stream not found");
    // Also what is written through that open afterwards.
    w.back_up("f");
    w.write(&s, 0, b"x").unwrap();
    assert!(w.has_archive(&f), "2.1.5.4");
    w.back_up("f");
    let opened = w.open(want("f:s"));
    assert!(!w.has_archive(&f), "a stream that was there is opened");
    w.write(&opened, 0, b"x").unwrap();
    assert!(w.has_archive(&f));
}

#[test]
fn a_stream_that_could_not_be_made_leaves_it() {
    let w = World::new();
    let f = w.open(want("f").access(FILE_READ_DATA | FILE_READ_ATTRIBUTES));
    w.back_up("f");
    w.fails(want("f:s").existing());
    w.fails(want("f:s").options(OPT_DELETE_ON_CLOSE).access(FILE_READ_DATA));
    assert!(!w.has_archive(&f));
}

#[test]
fn attributes_links_and_rights_set_it() {
    let w = World::new();
    let f = w.open(want("f"));
    let ea = Ea { name: "NAME".into(), flags: 0, value: b"value".to_vec() };
    for ea in [ea.clone(), Ea { value: Vec::new(), ..ea }] {
        w.back_up("f");
        w.fs.set_eas(&w.scope, &f, &[ea]).unwrap();
        assert!(w.has_archive(&f), "2.1.5.15.6");
    }
    w.back_up("f");
    w.fs.link(&f, &NtPath::parse("g").unwrap(), NameChange::default(), w.cause()).unwrap();
    assert!(w.has_archive(&f), "2.1.5.15.7");
    w.back_up("f");
    let sd = w.fs.security(&f, security_info::DACL).unwrap();
    w.fs.set_security(&f, security_info::DACL, &sd, w.cause()).unwrap();
    assert!(w.has_archive(&f), "2.1.5.17");
}

#[test]
fn reparse_points_set_it() {
    let w = World::new();
    let f = w.open(want("f"));
    w.back_up("f");
    w.fs.set_reparse(&w.scope, &f, TAG, b"data").unwrap();
    assert!(w.has_archive(&f), "2.1.5.10.37");
    let info = BasicInformation { attributes: ATTR_NORMAL, ..BasicInformation::default() };
    w.fs.set_basic(&f, &info, w.cause()).unwrap();
    assert!(!w.has_archive(&f));
    w.fs.delete_reparse(&w.scope, &f, TAG, b"").unwrap();
    assert!(w.has_archive(&f), "2.1.5.10.3");
}

#[test]
fn directories_keep_theirs_where_only_files_get_it() {
    let w = World::new();
    let d = w.open(want("d").directory());
    let sd = w.fs.security(&d, security_info::DACL).unwrap();
    w.fs.set_security(&d, security_info::DACL, &sd, w.cause()).unwrap();
    w.fs.set_reparse(&w.scope, &d, TAG, b"data").unwrap();
    w.fs.delete_reparse(&w.scope, &d, TAG, b"").unwrap();
    assert!(!w.has_archive(&d));
    let s = w.open(want("d:s"));
    assert!(w.has_archive(&d), "2.1.5.1.2");
    w.back_up("d");
    w.fs.set_security(&s, security_info::DACL, &sd, w.cause()).unwrap();
    assert!(!w.has_archive(&d));
}
