//! Two stores of one process over a directory and one of its subdirectories.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use arden_store::{
    dir::{DirOptions, DirStore, SPILL_DIRECTORY},
    error::StoreError,
    name::NtPath,
    store::{FileStore, Lookup, NewFile, NodeRef, Wait},
};

struct Overlap {
    dir: PathBuf,
    outer: Arc<DirStore>,
    inner: Arc<DirStore>,
}

impl Overlap {
    fn new() -> Overlap {
        Overlap::below(&std::env::temp_dir())
    }
    fn below(base: &Path) -> Overlap {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("arden-overlap-{}-{n}", std::process::id()));
        std::fs::create_dir_all(dir.join("outer/inner")).unwrap();
        let options = || DirOptions { listing_age_min: Duration::ZERO, ..DirOptions::default() };
        let open = |path: &str| DirStore::open(&dir.join(path), options()).unwrap();
        Overlap { outer: open("outer"), inner: open("outer/inner"), dir }
    }
    fn spilled(&self, root: &str) -> usize {
        std::fs::read_dir(self.dir.join(root).join(SPILL_DIRECTORY)).map_or(0, Iterator::count)
    }
}

impl Drop for Overlap {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn find(store: &DirStore, path: &str) -> Option<NodeRef> {
    match store.lookup(&NtPath::parse(path).unwrap()) {
        Ok(Lookup::Found(node)) => Some(node),
        _ => None,
    }
}

fn make(store: &DirStore, path: &str, directory: bool) -> NodeRef {
    let new = NewFile { directory, attributes: 0, security: None, eas: &[], allocation: None };
    store.root().create_child(None, path, &new).unwrap()
}

#[test]
fn large_streams_are_found_whoever_wrote_them() {
    let w = Overlap::new();
    let read = |store: &DirStore, path: &str| {
        let stream = find(store, path).unwrap();
        let mut bytes = vec![0; stream.stat().unwrap().end_of_file as usize];
        let n = stream.read_at(0, &mut bytes, Wait::Yes).unwrap();
        (n, bytes.iter().all(|b| *b == 7))
    };
    for (store, path, root) in [(&w.inner, "f:s", "outer/inner"), (&w.outer, "inner\\f:s", "outer")] {
        make(&w.inner, "f", false);
        let file = find(store, path.strip_suffix(":s").unwrap()).unwrap();
        file.create_stream(None, "s").unwrap().write_at(None, 0, &[7; 70_000], Wait::Yes).unwrap();
        assert_eq!(w.spilled(root), 1);
        for (store, path) in [(&w.inner, "f:s"), (&w.outer, "inner\\f:s")] {
            assert_eq!(read(store, path), (70_000, true));
            find(store, path).unwrap().write_at(None, 68_000, &[7; 2000], Wait::Yes).unwrap();
        }
        // The file goes through the other store, and its streams with it.
        let other = if root == "outer" { find(&w.inner, "f") } else { find(&w.outer, "inner\\f") };
        other.unwrap().unlink(None).unwrap();
        drop(file);
        assert_eq!((w.spilled("outer"), w.spilled("outer/inner")), (0, 0));
    }
}

#[test]
fn large_streams_of_other_trees_are_not_found() {
    let (a, b) = (Overlap::new(), Overlap::new());
    let f = make(&a.outer, "f", false);
    f.create_stream(None, "s").unwrap().write_at(None, 0, &[7; 70_000], Wait::Yes).unwrap();
    make(&b.outer, "f", false);
    // A local user writes the attribute of somebody else's stream to his own file.
    let mut id = [0; 64];
    let n = rustix::fs::getxattr(a.dir.join("outer/f"), "user.ArdenStream.s", &mut id[..]).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(b.dir.join("outer/f"), "user.ArdenStream.s", &id[..n], flags).unwrap();
    let node = find(&b.outer, "f:s").expect("the attribute names a stream");
    assert!(node.read_at(0, &mut [0; 10], Wait::Yes).is_err());
}

#[test]
fn a_reparse_point_of_another_store_stops_the_way() {
    let w = Overlap::new();
    let d = make(&w.inner, "d", true);
    assert!(find(&w.inner, "d\\x").is_none());
    find(&w.outer, "inner\\d").unwrap().set_reparse(None, 0x8000_0013, b"data").unwrap();
    let to = NtPath::parse("d\\x").unwrap();
    assert!(matches!(w.inner.lookup(&to).unwrap(), Lookup::Symlink { unparsed_components: 1, .. }));
    drop(d);
}

#[test]
fn names_of_another_store_are_seen_at_once() {
    let w = Overlap::new();
    for i in 0..50 {
        let name = format!("name{i}");
        make(&w.inner, &name, false);
        assert!(find(&w.outer, &format!("inner\\NAME{i}")).is_some());
        find(&w.outer, &format!("inner\\{name}")).unwrap().unlink(None).unwrap();
        make(&w.inner, &format!("{name}x"), false);
        assert!(find(&w.inner, &name.to_uppercase()).is_none());
        make(&w.inner, &name, false).unlink(None).unwrap();
    }
}

#[test]
fn names_that_others_change_are_seen_at_once() {
    // In memory too, where a directory's change time does not move with each of its changes.
    for base in [std::env::temp_dir(), PathBuf::from("/dev/shm")].iter().filter(|d| d.is_dir()) {
        let w = Overlap::below(base);
        let (file, inner) = (w.dir.join("outer/f"), w.dir.join("outer/inner"));
        std::fs::write(&file, b"").unwrap();
        for i in 0..50 {
            let name = format!("n{i}");
            assert!(find(&w.inner, &name).is_none(), "before");
            std::fs::hard_link(&file, inner.join(&name)).unwrap();
            assert!(find(&w.inner, &name.to_uppercase()).is_some(), "{name} in {}", base.display());
            std::fs::remove_file(inner.join(&name)).unwrap();
            assert!(find(&w.outer, &format!("inner\\{name}")).is_none(), "{name} in {}", base.display());
        }
    }
}

#[test]
fn what_left_the_share_is_not_found_by_its_id() {
    let w = Overlap::new();
    let (directory, file, below) = (make(&w.inner, "d", true), make(&w.inner, "f", false), make(&w.inner, "e", true));
    let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
    let deep = below.create_child(None, "g", &new).unwrap();
    let ids = [&directory, &file, &deep].map(|n| n.id().file);
    assert!(ids.iter().all(|id| w.inner.lookup_id(*id).is_ok()));
    for (name, to) in [("inner\\d", "d"), ("inner\\f", "f"), ("inner\\e", "e")] {
        find(&w.outer, name).unwrap().rename(None, &*w.outer.root(), to, false).unwrap();
    }
    for id in ids {
        assert_eq!(w.inner.lookup_id(id).err(), Some(StoreError::NotSupported.into()));
    }
    drop((directory, file, deep, below));
    for id in ids {
        assert_eq!(w.inner.lookup_id(id).err(), Some(StoreError::NotSupported.into()), "from where it was seen last");
    }
}
