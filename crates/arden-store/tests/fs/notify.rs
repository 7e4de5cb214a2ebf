//! Change notification through directory opens.

use std::sync::Arc;

use arden_store::{
    fs::{BasicInformation, Disposal, HeldBytes, NameChange, Step, notify_filter},
    name::NtPath,
    scope::RequestScope,
    store::ChangeKind,
};

use crate::world::*;

const NAMES: u32 = notify_filter::FILE_NAME | notify_filter::DIR_NAME;

/// [MS-FSA] 2.1.5.15.12: the other name of the file stays, or is replaced where its spelling changes.
#[test]
fn a_name_that_joins_another_of_its_file() {
    let w = World::new();
    let d = w.open(want("d").directory().access(FILE_LIST_DIRECTORY));
    let f = w.open(want("d\\f"));
    for name in ["d\\g", "d\\h"] {
        w.fs.link(&f, &NtPath::parse(name).unwrap(), NameChange::default(), w.cause()).unwrap();
    }
    assert_eq!(w.changes(&d, NAMES, false), ["wait"]);
    w.rename(&f, "d\\g", false).unwrap();
    assert_eq!(w.changes(&d, NAMES, false), ["Removed f"]);
    w.rename(&f, "d\\H", false).unwrap();
    assert_eq!(w.changes(&d, NAMES, false), ["Removed h", "RenamedOld g", "RenamedNew H"]);
}

/// For watches whose bytes nobody bounds.
fn uncounted() -> Arc<dyn HeldBytes> {
    struct Uncounted;
    impl HeldBytes for Uncounted {
        fn hold(&self, _: usize) -> bool {
            true
        }
        fn release(&self, _: usize) {}
    }
    Arc::new(Uncounted)
}

impl World {
    fn changes(&self, dir: &Arc<arden_store::fs::Open>, filter: u32, deep: bool) -> Vec<String> {
        match self.fs.notify(dir, filter, deep, 10_000, uncounted) {
            Ok(Step::Done(c)) => c.iter().map(|c| format!("{:?} {}", c.kind, c.name)).collect(),
            Ok(Step::Wait(_)) => vec!["wait".into()],
            Err(e) => vec![format!("{e}")],
        }
    }
}

#[test]
fn names_come_and_go() {
    let w = World::new();
    let dir = w.open(want("d").directory().access(FILE_LIST_DIRECTORY));
    let Ok(Step::Wait(wait)) = w.fs.notify(&dir, NAMES, false, 1000, uncounted) else { panic!() };
    let f = w.open(want("d\\f"));
    assert_eq!(w.told(), [format!("resume {}", wait.0)]);
    assert_eq!(w.changes(&dir, NAMES, false), ["Added f"]);
    w.rename(&f, "d\\g", false).unwrap();
    w.rename(&f, "h", false).unwrap();
    w.rename(&f, "d\\i", false).unwrap();
    w.close(f);
    w.unlink("d\\i").unwrap();
    w.close(w.open(want("d\\sub").directory()));
    w.close(w.open(want("d\\sub\\deep")));
    let expect = ["RenamedOld f", "RenamedNew g", "Removed g", "Added i", "Removed i", "Added sub"];
    assert_eq!(w.changes(&dir, NAMES, false), expect);
    assert_eq!(w.changes(&dir, NAMES, false), ["wait"]);
    w.close(dir.clone());
    assert_eq!(w.changes(&dir, NAMES, false), ["the watch has ended"]);
}

#[test]
fn filters_choose() {
    let w = World::new();
    let root = w.open(want("").existing());
    let filter = notify_filter::ATTRIBUTES | notify_filter::STREAM_NAME;
    assert_eq!(w.changes(&root, filter, true), ["wait"]);
    w.close(w.open(want("d").directory()));
    let f = w.open(want("d\\f"));
    w.write(&f, 0, b"x").unwrap();
    assert!(w.told().is_empty());
    let hide = BasicInformation { attributes: ATTR_HIDDEN, ..BasicInformation::default() };
    w.fs.set_basic(&f, &hide, w.cause()).unwrap();
    assert_eq!(w.changes(&root, filter, true), ["Modified d\\f"]);
    w.close(w.open(want("d\\f:s")));
    assert_eq!(w.changes(&root, filter, true), ["AddedStream d\\f:s"]);
    assert_eq!(ChangeKind::Added, ChangeKind::Added);
}

#[test]
fn a_directory_to_be_deleted_ends_its_queries() {
    let w = World::new();
    let dir = w.open(want("d").directory());
    let Ok(Step::Wait(wait)) = w.fs.notify(&dir, NAMES, false, 1000, uncounted) else { panic!() };
    let other = w.open(want("d").directory());
    let how = Disposal { delete: true, ..Disposal::default() };
    w.fs.set_disposition(&other, how, w.cause()).unwrap();
    assert_eq!(w.told(), [format!("resume {}", wait.0)]);
    assert_eq!(w.changes(&dir, NAMES, false), ["the file is being deleted"]);
    assert_eq!(w.changes(&dir, NAMES, false), ["the file is being deleted"]);
}

#[test]
fn watching_takes_the_right_to_list() {
    let w = World::new();
    let dir = w.open(want("d").directory().access(FILE_READ_ATTRIBUTES));
    assert_eq!(w.changes(&dir, NAMES, false), ["access denied"]);
    let file = w.open(want("f"));
    assert_eq!(w.changes(&file, NAMES, false), ["a parameter of the request is not valid"]);
}

/// A change costs as many requests as many watch for it.
#[test]
fn what_many_watch_weighs_more() {
    let w = World::new();
    let dirs: Vec<_> = (0..100).map(|_| w.open(want("d").directory().access(FILE_LIST_DIRECTORY))).collect();
    dirs.iter().for_each(|dir| assert_eq!(w.changes(dir, NAMES, false), ["wait"]));
    let _scope = RequestScope::begin();
    w.open(want("d\\f"));
    assert_eq!(RequestScope::weight(), 3);
}
