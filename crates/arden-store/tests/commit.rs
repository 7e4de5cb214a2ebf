//! The dir store knows of every kind of change until `commit` has brought it to stable storage.

use std::path::PathBuf;

use arden_store::{
    commit::CommitScope,
    dir::{DirOptions, DirStore},
    name::{NtPath, PathWants},
    store::*,
};
use arden_wire::access::ATTR_HIDDEN;

struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Temp {
        let dir = std::env::temp_dir().join(format!("arden-commit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Temp(dir)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const NEW: NewFile<'_> = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };

#[test]
fn every_change_is_known_until_it_is_committed() {
    let temp = Temp::new("every");
    let store = DirStore::open(&temp.0, DirOptions::default()).unwrap();
    store.root().create_child(None, "before", &NEW).unwrap();
    assert!(!store.has_uncommitted(CommitScope::begin().id()), "nobody commits, nothing is remembered");
    store.note_changes();
    let scope = CommitScope::begin();
    let by = Some(scope.id());
    let changed = |what: &str| {
        assert!(store.has_uncommitted(scope.id()), "{what} is not known");
        store.commit(scope.id()).unwrap();
        assert!(!store.has_uncommitted(scope.id()), "{what} stays");
    };
    let root = store.root();
    let f = root.create_child(by, "f", &NEW).unwrap();
    changed("create");
    let d = root.create_child(by, "d", &NewFile { directory: true, ..NEW }).unwrap();
    changed("create of a directory");
    f.write_at(by, 0, b"0123456789", Wait::Yes).unwrap();
    changed("write");
    f.set_end_of_file(by, 5).unwrap();
    changed("set_end_of_file");
    f.set_allocation(by, 1 << 16).unwrap();
    changed("set_allocation");
    f.zero_range(by, 0, 2).unwrap();
    changed("zero_range");
    f.set_sparse(by, true).unwrap();
    changed("set_sparse");
    f.set_basic(by, &BasicUpdate { attributes: Some(ATTR_HIDDEN), ..BasicUpdate::default() }).unwrap();
    changed("set_basic");
    let sd = (*f.security().unwrap()).clone();
    f.set_security(by, &sd).unwrap();
    changed("set_security");
    f.set_eas(by, &[Ea { name: "A".into(), flags: 0, value: b"x".to_vec() }]).unwrap();
    changed("set_eas");
    f.set_object_id(by, 7).unwrap();
    changed("set_object_id");
    let marked = root.create_child_marked(by, "marked", &NEW, 7).unwrap();
    changed("create with a mark");
    marked.create_stream_marked(by, "s", 8).unwrap();
    changed("create_stream with a mark");
    let g = root.create_child(by, "g", &NEW).unwrap();
    g.copy_from(by, &*f, 0, 0, 5).unwrap();
    changed("create and copy");
    let s = f.create_stream(by, "s").unwrap();
    changed("create_stream");
    s.write_at(by, 0, &[1; 100], Wait::Yes).unwrap();
    changed("write of a stream");
    s.write_at(by, 0, &[1; 200_000], Wait::Yes).unwrap();
    changed("write of a large stream");
    s.rename_stream(by, Some("t"), false).unwrap();
    changed("rename of a stream");
    s.unlink(by).unwrap();
    changed("unlink of a stream");
    f.rename(by, &*d, "moved", false).unwrap();
    changed("rename");
    f.link(by, &*root, "also", false).unwrap();
    changed("link");
    g.unlink(by).unwrap();
    changed("unlink");
    assert_eq!(f.read_at(0, &mut [0; 4], Wait::Yes), Ok(4));
    let _ = (f.stat().unwrap(), f.eas().unwrap(), d.list().unwrap().peek(&|_| true).unwrap());
    let path = NtPath { components: vec!["also".into()], stream: None, wants: PathWants::Any };
    assert!(matches!(store.lookup(&path), Ok(Lookup::Found(_))));
    assert!(!store.has_uncommitted(scope.id()), "looking is no change");
}

#[test]
fn many_threads_commit_what_each_did() {
    let temp = Temp::new("many");
    let store = DirStore::open(&temp.0, DirOptions::default()).unwrap();
    store.note_changes();
    std::thread::scope(|scope| {
        for t in 0..8 {
            let store = &store;
            scope.spawn(move || {
                let scope = CommitScope::begin().id();
                for i in 0..20 {
                    let f = store.root().create_child(Some(scope), &format!("{t}-{i}"), &NEW).unwrap();
                    f.write_at(Some(scope), 0, b"x", Wait::Yes).unwrap();
                    store.commit(scope).unwrap();
                }
            });
        }
    });
    let scope = CommitScope::begin().id();
    store.commit(scope).unwrap();
    assert!(!store.has_uncommitted(scope));
}

#[test]
fn more_changes_than_are_remembered_are_one() {
    let temp = Temp::new("more");
    let store = DirStore::open(&temp.0, DirOptions::default()).unwrap();
    store.note_changes();
    for i in 0..4200 {
        store.root().create_child(None, &format!("{i}"), &NEW).unwrap();
    }
    let scope = CommitScope::begin().id();
    store.commit(scope).unwrap();
    assert!(!store.has_uncommitted(scope));
}
