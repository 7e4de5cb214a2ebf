//! The cases. Each gets an empty store of its own.

use std::collections::BTreeSet;

use arden_store::{
    error::{NotDone, StoreError},
    name::NtPath,
    store::*,
};
use arden_wire::{
    FileTime,
    access::*,
    dtyp::{Ace, Acl, INHERITED_ACE, SecurityDescriptor, well_known},
};

pub use super::{ranges::*, streams::*};

pub fn path(p: &str) -> NtPath {
    NtPath::parse(p).unwrap()
}

pub fn find(store: &dyn FileStore, p: &str) -> Option<NodeRef> {
    match store.lookup(&path(p)).unwrap_or_else(|e| panic!("{p}: {e}")) {
        Lookup::Found(node) => Some(node),
        Lookup::Missing { .. } => None,
        Lookup::Symlink { .. } => panic!("{p}: a link in the way"),
    }
}

pub fn get(store: &dyn FileStore, p: &str) -> NodeRef {
    find(store, p).unwrap_or_else(|| panic!("{p} is missing"))
}

pub fn plain(directory: bool) -> NewFile<'static> {
    NewFile {
        directory,
        attributes: if directory { 0 } else { ATTR_ARCHIVE },
        security: None,
        eas: &[],
        allocation: None,
    }
}

pub fn file(dir: &NodeRef, name: &str) -> NodeRef {
    dir.create_child(None, name, &plain(false)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub fn mkdir(dir: &NodeRef, name: &str) -> NodeRef {
    dir.create_child(None, name, &plain(true)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub(super) fn read_all(node: &NodeRef) -> Vec<u8> {
    let mut buf = vec![0; node.stat().unwrap().end_of_file as usize + 10];
    let n = node.read_at(0, &mut buf, Wait::Yes).unwrap();
    buf.truncate(n);
    buf
}

pub(super) fn names(dir: &NodeRef) -> Vec<String> {
    let mut cursor = dir.list().unwrap();
    let mut out = Vec::new();
    while let Some(entry) = cursor.peek(&|_| true).unwrap() {
        out.push(entry.name);
        cursor.advance();
    }
    out.sort();
    out
}

pub(super) fn error<T>(r: Result<T>) -> NotDone {
    match r {
        Ok(_) => panic!("has to fail"),
        Err(e) => e,
    }
}

pub fn a_new_store_is_an_empty_directory(store: &dyn FileStore) {
    let root = store.root();
    assert!(root.is_directory());
    assert!(root.is_empty_directory().unwrap());
    assert!(root.path().is_empty());
    let stat = root.stat().unwrap();
    assert!(stat.directory);
    assert_eq!(stat.attributes & ATTR_DIRECTORY, ATTR_DIRECTORY);
    assert_eq!(get(store, "").id(), root.id());
    let space = store.space().unwrap();
    assert!(space.total_bytes >= space.free_bytes && space.free_bytes >= space.available_bytes);
    assert_eq!(error(root.unlink(None)), StoreError::RootStays);
}

pub fn created_is_found_in_any_case(store: &dyn FileStore) {
    let dir = mkdir(&store.root(), "Verzeichnis");
    let f = file(&dir, "Größe.TXT");
    for p in ["Verzeichnis\\Größe.TXT", "verzeichnis\\größe.txt", "VERZEICHNIS\\GRÖßE.Txt"] {
        let found = get(store, p);
        assert_eq!(found.id(), f.id());
        assert_eq!(found.path(), ["Verzeichnis", "Größe.TXT"], "real case");
    }
    assert!(find(store, "verzeichnis\\grösse.txt").is_none());
}

pub fn short_names_lead_to_their_files(store: &dyn FileStore) {
    let root = store.root();
    let f = file(&root, "A long name.text");
    let short = arden_store::name::short_name("A long name.text").unwrap();
    assert_eq!(get(store, &short).id(), f.id());
    assert_eq!(get(store, &short.to_lowercase()).path(), ["A long name.text"]);
    assert!(find(store, "AAAAAA~A.TEX").is_none());
    // Made again by its short name it has its long one back.
    get(store, &short).unlink(None).unwrap();
    assert!(find(store, &short).is_none());
    assert_eq!(file(&root, &short).path(), ["A long name.text"]);
    get(store, "a LONG name.text").unlink(None).unwrap();
    assert!(root.is_empty_directory().unwrap());
}

pub fn a_missing_name_has_its_parent(store: &dyn FileStore) {
    let dir = mkdir(&store.root(), "d");
    match store.lookup(&path("D\\nothing")).unwrap() {
        Lookup::Missing { parent, base: None } => {
            assert_eq!(parent.id(), dir.id());
            let made = file(&parent, "nothing");
            assert_eq!(get(store, "d\\NOTHING").id(), made.id());
        }
        _ => panic!("missing expected"),
    }
    let f = file(&dir, "f");
    match store.lookup(&path("d\\F:stream")).unwrap() {
        Lookup::Missing { base: Some(base), parent } => {
            assert_eq!((base.id(), parent.id()), (f.id(), dir.id()));
        }
        _ => panic!("missing stream expected"),
    }
}

pub fn a_missing_directory_is_a_path_not_found(store: &dyn FileStore) {
    file(&store.root(), "f");
    for p in ["no\\f", "no\\no\\f", "f\\x", "f\\x\\y"] {
        assert_eq!(error(store.lookup(&path(p))), StoreError::PathNotFound, "{p}");
    }
}

pub fn names_collide_in_any_case(store: &dyn FileStore) {
    let root = store.root();
    file(&root, "Name");
    for name in ["Name", "name", "NAME"] {
        assert_eq!(error(root.create_child(None, name, &plain(false))), StoreError::NameCollision, "{name}");
        assert_eq!(error(root.create_child(None, name, &plain(true))), StoreError::NameCollision, "{name}");
    }
    for bad in ["", ".", "a:b", "a\\b", "a/b", "a*", "x\u{1}"] {
        assert_eq!(error(root.create_child(None, bad, &plain(false))), StoreError::InvalidName, "{bad:?}");
    }
    assert!(root.create_child(None, "..", &plain(false)).is_err());
    assert_eq!(names(&root), ["Name"]);
}

pub fn names_of_all_planes_come_back(store: &dyn FileStore) {
    let root = store.root();
    let mut made = BTreeSet::new();
    for plane in 0..=16u32 {
        let chars: String = (0..8)
            .filter_map(|i| char::from_u32(plane * 0x10000 + 0x1E00 + i * 0x313))
            .filter(|c| !c.is_control())
            .collect();
        if chars.is_empty() {
            continue;
        }
        let name = format!("p{plane}-{chars}.x");
        let f = file(&root, &name);
        assert_eq!(get(store, &name).id(), f.id());
        assert_eq!(get(store, &name.replace('p', "P")).id(), f.id());
        made.insert(name);
    }
    assert_eq!(names(&root).into_iter().collect::<BTreeSet<_>>(), made);
}

pub fn data_reads_back(store: &dyn FileStore) {
    let f = file(&store.root(), "f");
    f.write_at(None, 0, b"hello", Wait::Yes).unwrap();
    match f.write_at(None, 10, b"world", Wait::No) {
        Err(NotDone::WouldBlock) => f.write_at(None, 10, b"world", Wait::Yes).unwrap(),
        other => other.unwrap(),
    }
    let same = get(store, "F");
    assert_eq!(read_all(&same), b"hello\0\0\0\0\0world");
    let mut buf = [0; 4];
    assert_eq!(same.read_at(13, &mut buf, Wait::Yes), Ok(2));
    assert_eq!(same.read_at(15, &mut buf, Wait::Yes), Ok(0));
    assert_eq!(same.read_at(1 << 40, &mut buf, Wait::Yes), Ok(0));
    match same.read_at(13, &mut buf, Wait::No) {
        Ok(2) | Err(NotDone::WouldBlock) => {}
        other => panic!("{other:?}"),
    }
    f.sync().unwrap();
    let stat = same.stat().unwrap();
    assert_eq!(stat.end_of_file, 15);
    assert!(stat.allocation > 0);
    assert_eq!(same.read_at(u64::MAX - 1, &mut buf, Wait::Yes).unwrap_or(0), 0);
}

pub fn sizes_grow_and_shrink(store: &dyn FileStore) {
    let f = file(&store.root(), "f");
    f.write_at(None, 0, b"0123456789", Wait::Yes).unwrap();
    f.set_end_of_file(None, 4).unwrap();
    f.set_end_of_file(None, 6).unwrap();
    assert_eq!(read_all(&f), b"0123\0\0");
    f.set_allocation(None, 1 << 20).unwrap();
    let stat = f.stat().unwrap();
    assert_eq!(stat.end_of_file, 6);
    assert!(stat.allocation >= 6);
    f.set_allocation(None, 2).unwrap();
    assert_eq!(f.stat().unwrap().end_of_file, 2);
    f.write_at(None, 0, &[7; 100_000], Wait::Yes).unwrap();
    f.zero_range(None, 10, 99_000).unwrap();
    let data = read_all(&f);
    assert_eq!(data.len(), 100_000);
    assert!(data[10..99_010].iter().all(|b| *b == 0) && data[9] == 7 && data[99_010] == 7);
    f.zero_range(None, 99_990, 1000).unwrap();
    assert_eq!(f.stat().unwrap().end_of_file, 100_000, "zeroing extends nothing");
}

/// Wherever the blocks come from: those of another file that is gone, and what this one had before it was cut.
pub fn what_nobody_wrote_reads_as_zeros(store: &dyn FileStore) {
    const LEN: u64 = 3 << 20;
    let secret = vec![0xA5; LEN as usize];
    let zeros_but = |f: &NodeRef, written: std::ops::Range<usize>| {
        let data = read_all(f);
        data.len() as u64 == LEN && data.iter().enumerate().all(|(i, b)| *b == if written.contains(&i) { 1 } else { 0 })
    };
    for round in 0..3 {
        let old = file(&store.root(), "old");
        old.write_at(None, 0, &secret, Wait::Yes).unwrap();
        old.sync().unwrap();
        old.unlink(None).unwrap();
        drop(old);
        let f = file(&store.root(), &format!("f{round}"));
        f.sync().unwrap();
        match round {
            0 => f.set_allocation(None, LEN).unwrap(),
            1 => f.write_at(None, 0, &[0xA5; 70_001], Wait::Yes).unwrap(),
            _ => {}
        }
        f.set_end_of_file(None, u64::from(round == 1)).unwrap();
        f.zero_range(None, 0, 1).unwrap();
        f.set_end_of_file(None, LEN).unwrap();
        assert!(zeros_but(&f, 0..0), "{round}");
        f.write_at(None, 1_000_001, &[1; 5000], Wait::Yes).unwrap();
        f.sync().unwrap();
        assert!(zeros_but(&f, 1_000_001..1_005_001), "{round}");
        let s = f.create_stream(None, "s").unwrap();
        s.set_end_of_file(None, LEN).unwrap();
        assert!(zeros_but(&s, 0..0), "{round}");
        f.unlink(None).unwrap();
    }
}

pub fn attributes_and_times_stay(store: &dyn FileStore) {
    let root = store.root();
    let f = root.create_child(None, "f", &NewFile { attributes: ATTR_ARCHIVE | ATTR_HIDDEN, ..plain(false) }).unwrap();
    let before = f.stat().unwrap();
    assert_eq!(before.attributes, ATTR_ARCHIVE | ATTR_HIDDEN);
    assert!(before.creation.0 > 0 && before.last_write >= before.creation);
    let t = |n: u64| FileTime(130_000_000_000_000_000 + n * 10_000_001);
    let update = BasicUpdate {
        creation: Some(t(1)),
        last_access: Some(t(2)),
        last_write: Some(t(3)),
        change: Some(t(4)),
        attributes: Some(ATTR_READONLY | ATTR_SYSTEM | ATTR_DIRECTORY | ATTR_NORMAL),
    };
    f.set_basic(None, &update).unwrap();
    let stat = get(store, "f").stat().unwrap();
    assert_eq!((stat.creation, stat.last_access, stat.last_write, stat.change), (t(1), t(2), t(3), t(4)));
    assert_eq!(stat.attributes, ATTR_READONLY | ATTR_SYSTEM, "only what can be set");
    f.set_basic(None, &BasicUpdate { attributes: Some(ATTR_NORMAL), ..Default::default() }).unwrap();
    let stat = f.stat().unwrap();
    assert_eq!(stat.attributes, ATTR_NORMAL);
    assert_eq!((stat.creation, stat.last_write), (t(1), t(3)), "the rest stays");
    f.write_at(None, 0, b"x", Wait::Yes).unwrap();
    assert!(f.stat().unwrap().last_write > t(3));
    let d = mkdir(&root, "d");
    d.set_basic(None, &BasicUpdate { attributes: Some(ATTR_HIDDEN), creation: Some(t(9)), ..Default::default() })
        .unwrap();
    file(&d, "child");
    let stat = get(store, "D").stat().unwrap();
    assert_eq!((stat.attributes, stat.creation), (ATTR_HIDDEN | ATTR_DIRECTORY, t(9)));
    let d2 = mkdir(&root, "d2");
    assert_eq!(d2.stat().unwrap().attributes, ATTR_DIRECTORY);
}

pub fn descriptors_stay_and_are_inherited(store: &dyn FileStore) {
    let root = store.root();
    assert!(root.security().unwrap().dacl.is_some(), "a root is never without");
    let f = file(&root, "inherits");
    let sd = f.security().unwrap();
    assert!(sd.dacl.as_ref().unwrap().aces.iter().all(|a| a.flags & INHERITED_ACE != 0));
    let owner = arden_wire::dtyp::Sid::new(5, &[21, 1, 2, 3, 1001]);
    let mine = SecurityDescriptor::with_dacl(
        &owner,
        &well_known::BUILTIN_USERS,
        Acl::new(vec![Ace::allow(&owner, FILE_ALL_ACCESS, 0), Ace::deny(&well_known::EVERYONE, FILE_WRITE_DATA, 0)]),
    );
    f.set_security(None, &mine).unwrap();
    assert_eq!(*get(store, "INHERITS").security().unwrap(), mine);
    let g = root.create_child(None, "given", &NewFile { security: Some(&mine), ..plain(false) }).unwrap();
    assert_eq!(*g.security().unwrap(), mine);
    g.write_at(None, 0, b"data changes nothing", Wait::Yes).unwrap();
    assert_eq!(*g.security().unwrap(), mine);
    let d = root.create_child(None, "d", &NewFile { security: Some(&mine), ..plain(true) }).unwrap();
    file(&d, "x");
    assert_eq!(*d.security().unwrap(), mine);
    // Large ones are no different.
    let aces = (0..40).map(|i| Ace::allow(&arden_wire::dtyp::Sid::new(5, &[21, 9, 9, 9, i]), FILE_GENERIC_READ, 0));
    let large = SecurityDescriptor::with_dacl(&owner, &owner, Acl::new(aces.collect()));
    g.set_security(None, &large).unwrap();
    assert_eq!(*g.security().unwrap(), large);
    // By the name in its directory, of what is deeper than any path, too.
    let by_name = |directory: &NodeRef, name: &str| directory.child_security(name).map(|sd| (*sd).clone());
    assert_eq!((by_name(&root, "GIVEN"), by_name(&root, "d")), (Ok(large), Ok(mine.clone())));
    assert_eq!(by_name(&d, "x").unwrap(), *get(store, "d\\x").security().unwrap());
    assert_eq!(by_name(&root, "nothing"), Err(StoreError::NotFound.into()));
    assert_eq!(by_name(&g, "x"), Err(StoreError::NotADirectory.into()));
    let chain = |top: &NodeRef| (0..100).fold(top.clone(), |here, _| mkdir(&here, "d"));
    let tops: Vec<NodeRef> = (0..6).map(|i| mkdir(&root, &format!("top {i}"))).collect();
    let bottoms: Vec<NodeRef> = tops.iter().map(chain).collect();
    for (bottom, top) in bottoms.iter().zip(&tops[1..]) {
        top.rename(None, &**bottom, "moved", false).unwrap();
    }
    bottoms[5].create_child(None, "deep", &NewFile { security: Some(&mine), ..plain(false) }).unwrap();
    assert_eq!(by_name(&bottoms[5], "deep"), Ok(mine));
    // A thread's stack has not to grow with what is above.
    let inherits = file(&bottoms[5], "inherits");
    std::thread::scope(|scope| {
        let little = std::thread::Builder::new().stack_size(256 << 10);
        little.spawn_scoped(scope, || assert!(inherits.security().unwrap().dacl.is_some())).unwrap();
    });
}

pub fn a_listing_has_each_entry_once(store: &dyn FileStore) {
    let root = store.root();
    let mut made = BTreeSet::new();
    for i in 0..3000 {
        let name = format!("file with a longer name {i:05}");
        if i % 10 == 0 {
            mkdir(&root, &name);
        } else {
            file(&root, &name);
        }
        made.insert(name);
    }
    let mut cursor = root.list().unwrap();
    let mut seen = BTreeSet::new();
    let mut n = 0;
    while let Some(entry) = cursor.peek(&|name| name.ends_with('5') || name.ends_with('0')).unwrap() {
        assert_eq!(entry.stat.directory, entry.name.ends_with('0'));
        assert!(seen.insert(entry.name.clone()), "twice: {}", entry.name);
        cursor.advance();
        // What happens meanwhile to others does not matter.
        if n == 100 {
            get(store, "file with a longer name 00001").unlink(None).unwrap();
        }
        n += 1;
    }
    assert_eq!(n, 600);
    made.remove("file with a longer name 00001");
    assert_eq!(names(&root).into_iter().collect::<BTreeSet<_>>(), made);
}

pub fn a_listing_peeks_and_rewinds(store: &dyn FileStore) {
    let root = store.root();
    for n in ["a", "b", "c"] {
        file(&root, n);
    }
    let mut cursor = root.list().unwrap();
    let first = cursor.peek(&|_| true).unwrap().unwrap();
    assert_eq!(cursor.peek(&|_| true).unwrap().unwrap(), first, "peeking takes nothing");
    cursor.advance();
    let second = cursor.peek(&|_| true).unwrap().unwrap();
    assert_ne!(first.name, second.name);
    cursor.rewind().unwrap();
    assert_eq!(cursor.peek(&|_| true).unwrap().unwrap(), first);
    file(&root, "d");
    cursor.rewind().unwrap();
    let mut n = 0;
    while cursor.peek(&|_| true).unwrap().is_some() {
        cursor.advance();
        n += 1;
    }
    assert_eq!(n, 4);
    assert!(cursor.peek(&|_| true).unwrap().is_none());
    cursor.advance();
}

pub fn rename_moves_and_is_seen_by_others(store: &dyn FileStore) {
    let root = store.root();
    let (a, b) = (mkdir(&root, "a"), mkdir(&root, "b"));
    let f = file(&a, "f");
    f.write_at(None, 0, b"data", Wait::Yes).unwrap();
    let other = get(store, "a\\F");
    f.rename(None, &*b, "G", false).unwrap();
    assert_eq!(other.path(), ["b", "G"]);
    assert_eq!(read_all(&other), b"data");
    assert!(find(store, "a\\f").is_none());
    assert_eq!(get(store, "b\\g").id(), f.id());
    other.rename(None, &*root, "top", false).unwrap();
    assert_eq!(f.path(), ["top"]);
    assert!(a.is_empty_directory().unwrap() && b.is_empty_directory().unwrap());
    f.sync().unwrap();
}

pub fn rename_changes_case(store: &dyn FileStore) {
    let root = store.root();
    let f = file(&root, "name");
    f.rename(None, &*root, "NAME", false).unwrap();
    assert_eq!(names(&root), ["NAME"]);
    f.rename(None, &*root, "NAME", false).unwrap();
    assert_eq!(get(store, "name").path(), ["NAME"]);
}

/// The name that is found by the new one is the file's own: it is not replaced, [MS-FSA] 2.1.5.15.12.
pub fn a_file_takes_its_own_short_name(store: &dyn FileStore) {
    let root = store.root();
    let long = "a name that is long.text";
    let short = arden_store::name::short_name(long).unwrap();
    for replace in [true, false] {
        let f = file(&root, long);
        f.write_at(None, 0, b"content", Wait::Yes).unwrap();
        f.rename(None, &*root, &short, replace).unwrap();
        assert_eq!(names(&root), [short.as_str()]);
        assert_eq!(read_all(&get(store, &short)), b"content");
        f.unlink(None).unwrap();
        assert_eq!(names(&root), [""; 0]);
    }
}

pub fn rename_replaces_only_when_told(store: &dyn FileStore) {
    let root = store.root();
    let (a, b) = (file(&root, "a"), file(&root, "B"));
    a.write_at(None, 0, b"a", Wait::Yes).unwrap();
    b.write_at(None, 0, b"bb", Wait::Yes).unwrap();
    assert_eq!(error(a.rename(None, &*root, "b", false)), StoreError::NameCollision);
    a.rename(None, &*root, "b", true).unwrap();
    assert_eq!(names(&root), ["b"]);
    assert_eq!(get(store, "B").id(), a.id());
    assert_eq!(read_all(&b), b"bb", "the replaced file lives while it is in use");
    assert_eq!(error(b.unlink(None)), StoreError::Deleted);
    let d = mkdir(&root, "d");
    assert_eq!(error(a.rename(None, &*root, "D", true)), StoreError::DirectoryInTheWay);
    assert_eq!(error(a.rename(None, &*d, "x:y", false)), StoreError::InvalidName);
    assert_eq!(error(d.rename(None, &*d, "inside", false)), StoreError::IntoItself);
}

/// Who may replace one file may not replace another that has come to the name since.
pub fn a_name_replaces_the_file_that_was_looked_at(store: &dyn FileStore) {
    let root = store.root();
    for links in [false, true] {
        let (a, looked_at, there) = (file(&root, "a"), file(&root, "gone"), file(&root, "b"));
        there.write_at(None, 0, b"of another", Wait::Yes).unwrap();
        let take = |replace| match links {
            true => a.link_replacing(None, &*root, "b", replace),
            false => a.rename_replacing(None, &*root, "b", replace),
        };
        for replace in [Replace::Nothing, Replace::Only(looked_at.id())] {
            assert_eq!(error(take(replace)), StoreError::NameCollision, "links: {links}");
            assert_eq!(read_all(&get(store, "b")), b"of another");
            assert_eq!(get(store, "a").id(), a.id());
        }
        take(Replace::Only(there.id())).unwrap();
        assert_eq!(get(store, "b").id(), a.id());
        a.rename_replacing(None, &*root, "c", Replace::Only(looked_at.id())).unwrap();
        for name in names(&root) {
            get(store, &name).unlink(None).unwrap();
        }
    }
}

pub fn a_directory_moves_with_its_content(store: &dyn FileStore) {
    let root = store.root();
    let a = mkdir(&root, "a");
    let sub = mkdir(&a, "sub");
    let f = file(&sub, "f");
    assert!(find(store, "a\\sub\\f").is_some());
    a.rename(None, &*root, "z", false).unwrap();
    assert_eq!(f.path(), ["z", "sub", "f"]);
    assert_eq!(get(store, "Z\\SUB\\F").id(), f.id());
    assert_eq!(error(store.lookup(&path("a\\sub\\f"))), StoreError::PathNotFound);
    let again = mkdir(&root, "a");
    assert_ne!(again.id(), a.id());
    assert_eq!(error(store.lookup(&path("a\\sub\\f"))), StoreError::PathNotFound);
}

pub fn unlinked_data_lives_on(store: &dyn FileStore) {
    let root = store.root();
    let f = file(&root, "f");
    f.write_at(None, 0, b"data", Wait::Yes).unwrap();
    let other = get(store, "f");
    f.unlink(None).unwrap();
    assert!(find(store, "f").is_none());
    assert_eq!(read_all(&other), b"data");
    other.write_at(None, 4, b"more", Wait::Yes).unwrap();
    assert_eq!(read_all(&other), b"datamore");
    assert_eq!(error(other.unlink(None)), StoreError::Deleted);
    let again = file(&root, "F");
    assert_ne!(again.id(), f.id());
    assert_eq!(get(store, "f").stat().unwrap().end_of_file, 0);
}

pub fn a_full_directory_stays(store: &dyn FileStore) {
    let root = store.root();
    let d = mkdir(&root, "d");
    let f = file(&d, "f");
    assert!(!d.is_empty_directory().unwrap());
    assert_eq!(error(d.unlink(None)), StoreError::DirectoryNotEmpty);
    f.unlink(None).unwrap();
    assert!(d.is_empty_directory().unwrap());
    d.unlink(None).unwrap();
    assert!(find(store, "d").is_none());
    assert!(root.is_empty_directory().unwrap());
    assert!(d.create_child(None, "x", &plain(false)).is_err(), "nothing comes into a removed directory");
}

pub fn eas_match_in_any_case(store: &dyn FileStore) {
    let root = store.root();
    let ea = |name: &str, value: &[u8]| Ea { name: name.into(), flags: 0, value: value.into() };
    let f = root.create_child(None, "f", &NewFile { eas: &[ea("First", b"1")], ..plain(false) }).unwrap();
    assert_eq!(f.eas().unwrap(), [ea("First", b"1")]);
    assert!(f.stat().unwrap().ea_size > 0);
    f.set_eas(None, &[ea("FIRST", b"one"), ea("second", b"2")]).unwrap();
    let mut eas = get(store, "f").eas().unwrap();
    eas.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(eas, [ea("First", b"one"), ea("second", b"2")]);
    f.set_eas(None, &[ea("first", b""), ea("Second", b""), ea("never there", b"")]).unwrap();
    assert!(f.eas().unwrap().is_empty());
    assert_eq!(f.stat().unwrap().ea_size, 0);
    f.create_stream(None, "s").unwrap();
    f.set_basic(None, &BasicUpdate { attributes: Some(ATTR_HIDDEN), ..Default::default() }).unwrap();
    assert!(f.eas().unwrap().is_empty(), "what the store keeps for itself is no EA");
    for bad in ["", "a=b", "DOSATTRIB", "DosStream.x:$DATA", "NTACL", "tab\t"] {
        assert_eq!(error(f.set_eas(None, &[ea(bad, b"x")])), StoreError::InvalidEaName, "{bad:?}");
    }
}

/// As one list all EAs of a file have 65,535 bytes at most; a store may have room for less.
pub fn eas_have_a_limit(store: &dyn FileStore) {
    let root = store.root();
    let ea = |name: &str, len: usize| Ea { name: name.into(), flags: 0, value: vec![7; len] };
    let f = file(&root, "f");
    let large = [ea("large", 40 << 10)];
    let has_room = match f.set_eas(None, &large) {
        Ok(()) => true,
        Err(e) => {
            assert_eq!(e, StoreError::EaTooLarge);
            assert_eq!(f.stat().unwrap().ea_size, 0);
            false
        }
    };
    let before = if has_room { &large[..] } else { &[] };
    assert_eq!(error(f.set_eas(None, &[ea("other", 40 << 10)])), StoreError::EaTooLarge);
    assert_eq!(f.eas().unwrap(), before);
    assert_eq!(error(f.set_eas(None, &[ea("small", 1), ea("value", 65_536)])), StoreError::EaTooLarge);
    if has_room {
        assert_eq!(f.eas().unwrap(), before, "all or nothing");
        assert_eq!(f.stat().unwrap().ea_size, 4 + 4 + 5 + 1 + (40 << 10));
        f.set_eas(None, &[ea("LARGE", 0), ea("other", 40 << 10)]).unwrap();
        assert_eq!(f.eas().unwrap(), [ea("other", 40 << 10)]);
        assert_eq!(error(f.set_eas(None, &[ea("other", 65_535 - 4 - 10 + 1)])), StoreError::EaTooLarge);
        f.set_eas(None, &[ea("other", 65_535 - 4 - 10)]).unwrap();
        assert_eq!(f.stat().unwrap().ea_size, 65_535);
    }
    let both = [ea("large", 40 << 10), ea("other", 40 << 10)];
    let made = root.create_child(None, "g", &NewFile { eas: &both, ..plain(false) });
    assert_eq!(error(made.map(|_| ())), StoreError::EaTooLarge);
    assert_eq!(names(&root), ["f"]);
}

pub fn reparse_points_are_kept(store: &dyn FileStore) {
    let f = file(&store.root(), "f");
    assert_eq!(error(f.reparse()), StoreError::NotAReparsePoint);
    f.set_reparse(None, 0xA000_000C, b"any data").unwrap();
    let stat = get(store, "f").stat().unwrap();
    assert_eq!(stat.attributes & ATTR_REPARSE_POINT, ATTR_REPARSE_POINT);
    assert_eq!(stat.reparse_tag, 0xA000_000C);
    assert_eq!(f.reparse().unwrap(), (0xA000_000C, b"any data".to_vec()));
    assert_eq!(error(f.set_reparse(None, 0x8000_0014, b"other")), StoreError::ReparseTagMismatch);
    assert_eq!(error(f.delete_reparse(None, 0x8000_0014)), StoreError::ReparseTagMismatch);
    match store.lookup(&path("f\\below\\it")).unwrap() {
        Lookup::Symlink { link, unparsed_components } => {
            assert_eq!((link.id(), unparsed_components), (f.id(), 2));
        }
        _ => panic!("the link stands in the way"),
    }
    f.delete_reparse(None, 0xA000_000C).unwrap();
    assert_eq!(f.stat().unwrap().reparse_tag, 0);
    assert_eq!(f.stat().unwrap().attributes & ATTR_REPARSE_POINT, 0);
    let d = mkdir(&store.root(), "d");
    find(store, "d\\x");
    d.set_reparse(None, 0xA000_0003, b"mount point").unwrap();
    assert!(matches!(store.lookup(&path("d\\x")).unwrap(), Lookup::Symlink { unparsed_components: 1, .. }));
    let full = mkdir(&store.root(), "full");
    file(&full, "x");
    assert_eq!(error(full.set_reparse(None, 0xA000_0003, b"")), StoreError::DirectoryNotEmpty);
}

pub fn hard_links_share_data(store: &dyn FileStore) {
    let root = store.root();
    let d = mkdir(&root, "d");
    let f = file(&root, "f");
    f.link(None, &*d, "g", false).unwrap();
    f.write_at(None, 0, b"both", Wait::Yes).unwrap();
    let g = get(store, "d\\G");
    assert_eq!(g.id(), f.id());
    assert_eq!(read_all(&g), b"both");
    assert_eq!(g.stat().unwrap().links, 2);
    assert_eq!((f.path(), g.path()), (vec!["f".into()], vec!["d".into(), "g".into()]));
    assert_eq!(error(f.link(None, &*root, "F", false)), StoreError::NameCollision);
    file(&root, "victim");
    f.link(None, &*root, "VICTIM", true).unwrap();
    assert_eq!(names(&root), ["VICTIM", "d", "f"]);
    f.unlink(None).unwrap();
    assert!(find(store, "f").is_none());
    assert_eq!(read_all(&g), b"both");
    assert_eq!(g.stat().unwrap().links, 2);
    assert_eq!(error(d.link(None, &*root, "dirlink", false)), StoreError::IsADirectory);
}

pub fn a_name_moves_onto_another_of_the_same_file(store: &dyn FileStore) {
    let root = store.root();
    let d = mkdir(&root, "d");
    let f = file(&root, "f");
    f.write_at(None, 0, b"both", Wait::Yes).unwrap();
    f.link(None, &*root, "g", false).unwrap();
    f.link(None, &*d, "h", false).unwrap();
    let again = get(store, "f");
    f.rename(None, &*root, "G", true).unwrap();
    assert_eq!(names(&root), ["G", "d"]);
    assert_eq!(f.stat().unwrap().links, 2);
    assert_eq!(read_all(&get(store, "g")), b"both");
    // In another directory, and seen by all who have the name, or have the one that it joins.
    let joined = get(store, "d\\H");
    again.rename(None, &*d, "h", true).unwrap();
    assert_eq!((names(&root), names(&d)), (vec!["d".to_owned()], vec!["h".to_owned()]));
    for node in [&f, &again, &joined] {
        assert_eq!(node.path(), ["d", "h"]);
        assert_eq!(node.stat().unwrap().links, 1);
    }
    again.rename(None, &*root, "k", false).unwrap();
    assert_eq!((f.path(), joined.path()), (vec!["k".to_owned()], vec!["k".to_owned()]));
    joined.unlink(None).unwrap();
    assert!(names(&root) == ["d"] && names(&d).is_empty());
}

pub fn a_new_name_takes_the_place_of_an_8_3_name(store: &dyn FileStore) {
    let root = store.root();
    let short = arden_store::name::short_name("A long name.text").unwrap();
    for links in [false, true] {
        file(&root, "A long name.text").write_at(None, 0, b"old", Wait::Yes).unwrap();
        let f = file(&root, "f");
        f.write_at(None, 0, b"new", Wait::Yes).unwrap();
        let take = |replace| {
            if links { f.link(None, &*root, &short, replace) } else { f.rename(None, &*root, &short, replace) }
        };
        assert_eq!(error(take(false)), StoreError::NameCollision, "links: {links}");
        take(true).unwrap();
        let mut left = names(&root);
        left.retain(|n| n != "f");
        assert_eq!(left.len(), 1, "links: {links}, {left:?}");
        assert_eq!(read_all(&get(store, &short)), b"new", "links: {links}");
        assert!(find(store, "A long name.text").is_none_or(|n| n.id() == f.id()), "links: {links}");
        get(store, &short).unlink(None).unwrap();
        if links {
            f.unlink(None).unwrap();
        }
        assert!(names(&root).is_empty());
    }
}

pub fn object_ids_are_kept(store: &dyn FileStore) {
    let f = file(&store.root(), "f");
    assert_eq!(f.object_id().unwrap(), None);
    f.set_object_id(None, 0x1234_5678_9abc).unwrap();
    assert_eq!(get(store, "f").object_id().unwrap(), Some(0x1234_5678_9abc));
    assert!(f.eas().unwrap().is_empty());
}

pub fn type_and_stream_suffixes_decide(store: &dyn FileStore) {
    let root = store.root();
    file(&root, "f");
    mkdir(&root, "d");
    assert!(find(store, "f::$DATA").is_some());
    assert!(find(store, "d::$INDEX_ALLOCATION").is_some());
    assert!(find(store, "d\\").is_some());
    assert_eq!(error(store.lookup(&path("f::$INDEX_ALLOCATION"))), StoreError::NotADirectory);
    assert_eq!(error(store.lookup(&path("f\\"))), StoreError::NotADirectory);
    assert_eq!(error(store.lookup(&path("d::$DATA"))), StoreError::IsADirectory);
}

pub fn wrong_kinds_are_refused(store: &dyn FileStore) {
    let root = store.root();
    let (f, d) = (file(&root, "f"), mkdir(&root, "d"));
    let mut buf = [0; 1];
    assert_eq!(error(d.read_at(0, &mut buf, Wait::Yes)), StoreError::WrongObject);
    assert_eq!(error(d.write_at(None, 0, &buf, Wait::Yes)), StoreError::WrongObject);
    assert_eq!(error(d.set_end_of_file(None, 0)), StoreError::WrongObject);
    assert_eq!(error(f.create_child(None, "x", &plain(false))), StoreError::NotADirectory);
    assert_eq!(error(f.list().map(|_| ())), StoreError::NotADirectory);
    assert_eq!(error(f.is_empty_directory()), StoreError::NotADirectory);
    assert_eq!(error(f.rename(None, &*f, "x", false)), StoreError::NotADirectory);
}

pub fn a_file_in_use_is_found_by_id(store: &dyn FileStore) {
    let d = mkdir(&store.root(), "d");
    let f = file(&d, "f");
    let same = store.lookup_id(f.id().file).unwrap();
    assert_eq!(same.path(), ["d", "f"]);
    assert_eq!(store.lookup_id(d.id().file).unwrap().path(), ["d"]);
    // Seen lately is as good.
    f.rename(None, &*d, "G", false).unwrap();
    let id = f.id().file;
    drop((f, same, d));
    assert_eq!(store.lookup_id(id).unwrap().path(), ["d", "G"]);
    get(store, "d\\g").unlink(None).unwrap();
    assert!(store.lookup_id(id).is_err());
    assert!(store.lookup_id(u64::MAX).is_err());
}

pub fn many_threads_make_each_name_once(store: &dyn FileStore) {
    let root = store.root();
    let made = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for t in 0..8u32 {
            let (root, made) = (&root, &made);
            scope.spawn(move || {
                for i in 0..200 {
                    // The same names in eight spellings.
                    let name: String = format!("abc{i}")
                        .chars()
                        .enumerate()
                        .map(|(k, c)| if k < 3 && t >> k & 1 == 1 { c.to_ascii_uppercase() } else { c })
                        .collect();
                    match root.create_child(None, &name, &plain(false)) {
                        Ok(_) => {
                            made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        Err(e) => assert_eq!(e, StoreError::NameCollision),
                    }
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 200);
    assert_eq!(names(&root).len(), 200);
}
