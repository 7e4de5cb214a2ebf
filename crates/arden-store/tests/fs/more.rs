//! Links, limits, times, copies: what the other scenarios do not touch.

use arden_store::{
    error::{NotDone, StoreError},
    fs::*,
    name::NtPath,
    store::{Ea, Wait},
    table::OpenTable,
};
use arden_wire::FileTime;

use crate::world::*;

#[test]
fn symbolic_links_go_to_the_client() {
    let w = World::new();
    w.close(w.open(want("d").directory()));
    std::os::unix::fs::symlink("d", w.dir.join("link")).unwrap();
    let through = NtPath::parse("link\\sub\\file:s").unwrap();
    let request = want("link\\sub\\file:s");
    let Err(OpenError::Symlink(link)) = w.raw_open(&request, &through) else { panic!("it was opened") };
    assert_eq!(link.tag, 0xA000_000C);
    // `\sub\file:s` is what is left to parse.
    assert_eq!(link.unparsed_path_bytes, 2 * "\\sub\\file:s".len());
    assert!(matches!(w.try_open(&want("link").existing()), Err(OpenError::Symlink(_))));
    let itself = w.opened(want("link").existing().options(OPT_OPEN_REPARSE_POINT).access(FILE_READ_ATTRIBUTES));
    assert_ne!(itself.stat.attributes & ATTR_REPARSE_POINT, 0);
    assert_eq!(w.fs.reparse(&itself.open).unwrap().0, 0xA000_000C);
}

#[test]
fn limits_have_names() {
    let limits = TableLimits { opens_max: 3, locks_per_open_max: 2, waits_max: 1, ..TableLimits::default() };
    let w = World::with(OpenTable::new(limits));
    let a = w.open(want("a"));
    let b = w.open(want("b").oplock(OplockLevel::Batch));
    let range = |offset| LockRange { offset, len: 1, exclusive: true };
    assert!(w.fs.lock(&a, &[range(0), range(1)], true, w.cause()).is_ok());
    assert_eq!(w.fs.lock(&a, &[range(2)], true, w.cause()).unwrap_err(), StoreError::InsufficientResources);
    w.fs.unlock(&a, &[range(0)]).1.unwrap();
    assert!(w.fs.lock(&a, &[range(2)], true, w.cause()).is_ok());
    // One call may wait, the next one is refused, and cancelling makes room.
    let first = w.waits(&want("b"));
    assert_eq!(w.fails(want("b")), StoreError::InsufficientResources);
    w.table.cancel_wait(first);
    let second = w.waits(&want("b"));
    assert_ne!(first, second);
    w.close(b);
    let _c = w.open(want("c"));
    let _d = w.open(want("d"));
    assert_eq!(w.fails(want("e").existing()), StoreError::NotFound);
    assert_eq!(w.fails(want("a")), StoreError::TooManyOpens);
    assert_eq!(w.table.open_count(), 3);
}

/// A break has begun before its waiter is refused, so its holder hears of it: else he would never answer.
#[test]
fn breaks_are_told_where_nobody_else_may_wait() {
    let w = World::with(OpenTable::new(TableLimits { waits_max: 1, ..TableLimits::default() }));
    let _busy = w.open(want("busy").oplock(OplockLevel::Batch));
    let only = w.waits(&want("busy").client(2));
    w.told();
    let is_told_and_refused = |holder: &str, act: &dyn Fn() -> Option<NotDone>| {
        assert_eq!(act(), Some(StoreError::InsufficientResources.into()), "{holder}");
        assert_eq!(w.told(), [format!("lease {holder}")]);
        assert_eq!(act(), Some(StoreError::InsufficientResources.into()), "{holder}: it is still under way");
        assert!(w.told().is_empty(), "{holder}");
    };
    let held = |path: &str, key| w.open(want(path).lease(key, "RH").client(2));
    let mine = |path: &str| w.open(want(path).existing().access(DELETE | FILE_READ_ATTRIBUTES));

    let (_a, f) = (held("renamed", 1), mine("renamed"));
    is_told_and_refused("1 RH>R!", &|| w.rename(&f, "new", false).err());
    let (_b, f) = (held("target", 2), w.open(want("f")));
    is_told_and_refused("2 RH>R!", &|| w.rename(&f, "target", true).err());
    let (_c, f) = (held("deleted", 3), mine("deleted"));
    let delete = Disposal { delete: true, ..Disposal::default() };
    is_told_and_refused("3 RH>R!", &|| w.fs.set_disposition(&f, delete, w.cause()).err());
    let d = w.open(want("d").directory());
    let _e = held("d\\f", 4);
    is_told_and_refused("4 RH>R!", &|| w.rename(&d, "e", false).err());
    w.table.cancel_wait(only);
}

/// [MS-FSA] 2.1.5.15.15: who may set it, and of what.
#[test]
fn the_valid_data_length_takes_a_privilege() {
    let w = World::new();
    let f = w.open(want("f"));
    w.fs.set_end_of_file(&f, 1000, w.cause()).unwrap();
    let mut ordinary = (*w.who).clone();
    ordinary.privileges = 0;
    let g = w.open(want("f").who(&std::sync::Arc::new(ordinary)));
    assert_eq!(w.fs.set_valid_data_length(&g, 1000, w.cause()), Err(StoreError::PrivilegeNotHeld.into()));
    let reader = w.open(want("f").access(FILE_READ_DATA));
    assert_eq!(w.fs.set_valid_data_length(&reader, 1000, w.cause()), Err(StoreError::AccessDenied.into()));
    let d = w.open(want("d").directory());
    assert_eq!(w.fs.set_valid_data_length(&d, 0, w.cause()), Err(StoreError::InvalidParameter.into()));
}

/// It belongs to the stream, goes with it, is what all opens see, and is forgotten when nobody has the file open.
#[test]
fn the_valid_data_length_is_known_while_the_file_is_open() {
    let w = World::new();
    let (f, s) = (w.open(want("f")), w.open(want("f:s")));
    // Which length is the least that it can be set to.
    let least = |open: &std::sync::Arc<Open>| {
        let fails = |n| w.fs.set_valid_data_length(open, n, w.cause()) == Err(StoreError::InvalidParameter.into());
        (0..=1000).find(|n| !fails(*n))
    };
    let size = |open, n| w.fs.set_end_of_file(open, n, w.cause()).unwrap();
    w.write(&f, 0, &[1; 100]).unwrap();
    size(&f, 1000);
    size(&s, 500);
    let other = w.open(want("F"));
    assert_eq!((least(&other), least(&s)), (Some(100), Some(0)));
    size(&f, 50);
    size(&f, 1000);
    assert_eq!(least(&other), Some(50));
    w.fs.set_allocation(&f, 20, w.cause()).unwrap();
    assert_eq!(least(&f), Some(50), "of a cluster nothing is cut");
    w.fs.set_allocation(&f, 0, w.cause()).unwrap();
    size(&f, 1000);
    assert_eq!(least(&f), Some(0));
    size(&f, 1000);
    let emptied = w.open(want("f").disposition(Disposition::Overwrite));
    assert_eq!(least(&f), Some(0));
    size(&f, 1000);
    assert_eq!(least(&f), Some(0));
    w.write(&emptied, 1000, b"x").unwrap();
    assert_eq!(least(&f), None, "all 1001 bytes");
    size(&f, 300);
    size(&f, 900);
    [f, other, emptied, s].into_iter().for_each(|open| w.close(open));
    let again = w.open(want("f"));
    assert_eq!(least(&again), Some(900));
}

/// Writes that meet a growth on another open count, whichever comes first.
#[test]
fn writes_beside_a_growth_are_valid() {
    let w = World::new();
    for round in 0..200u64 {
        let (f, g) = (w.open(want("f")), w.open(want("f")));
        std::thread::scope(|s| {
            s.spawn(|| w.fs.write(&f, round, &[1; 500], arden_store::store::Wait::Yes, w.cause()).unwrap());
            s.spawn(|| w.fs.set_end_of_file(&g, 4000, w.cause()).unwrap());
        });
        assert_eq!(w.fs.set_valid_data_length(&g, round + 499, w.cause()), Err(StoreError::InvalidParameter.into()));
        assert_eq!(w.fs.set_valid_data_length(&g, round + 500, w.cause()), Ok(()));
        w.fs.set_end_of_file(&g, 0, w.cause()).unwrap();
        w.close(f);
        w.close(g);
    }
}

#[test]
fn times_that_the_client_set_stay() {
    let w = World::new();
    let f = w.open(want("f"));
    let other = w.open(want("f"));
    let times = |open| {
        let s = w.fs.stat(open).unwrap().stat;
        (s.creation, s.last_write)
    };
    let set = |open, creation, last_write| {
        let info = BasicInformation { creation, last_write, ..BasicInformation::default() };
        w.fs.set_basic(open, &info, w.cause()).unwrap();
    };
    let then = FileTime::from_unix(1_000_000_000, 0);
    set(&f, then.0 as i64, then.0 as i64);
    w.write(&f, 0, b"x").unwrap();
    assert_eq!(times(&f), (then, then));
    w.fs.set_end_of_file(&f, 10, w.cause()).unwrap();
    assert_eq!(times(&f), (then, then));
    // Another open's write counts, and this one's next write leaves that.
    w.write(&other, 0, b"y").unwrap();
    w.fs.flush(&other).unwrap();
    let (_, moved) = times(&f);
    assert!(moved > then);
    w.write(&f, 0, b"z").unwrap();
    assert_eq!(times(&f).1, moved);
    set(&f, 0, -2);
    std::thread::sleep(std::time::Duration::from_millis(15));
    w.write(&f, 0, b"z").unwrap();
    assert!(times(&f).1 > moved);
    set(&f, 0, -1);
    let (_, frozen) = times(&f);
    std::thread::sleep(std::time::Duration::from_millis(15));
    w.write(&f, 0, b"z").unwrap();
    assert_eq!(times(&f).1, frozen);
    let bad = BasicInformation { change: -3, ..BasicInformation::default() };
    assert_eq!(w.fs.set_basic(&f, &bad, w.cause()), Err(StoreError::InvalidParameter.into()));
}

#[test]
fn attributes() {
    let w = World::new();
    let f = w.open(want("f"));
    let set = |open, attributes| {
        w.fs.set_basic(open, &BasicInformation { attributes, ..BasicInformation::default() }, w.cause())
    };
    let attributes = |open| w.fs.stat(open).unwrap().stat.attributes;
    set(&f, ATTR_NORMAL).unwrap();
    assert_eq!(attributes(&f), ATTR_NORMAL);
    // A write makes it one to archive.
    w.write(&f, 0, b"x").unwrap();
    assert_eq!(attributes(&f), ATTR_ARCHIVE);
    assert_eq!(set(&f, ATTR_DIRECTORY), Err(StoreError::InvalidParameter.into()));
    let d = w.open(want("d").directory());
    assert_eq!(set(&d, ATTR_TEMPORARY), Err(StoreError::InvalidParameter.into()));
    set(&d, ATTR_HIDDEN | ATTR_DIRECTORY).unwrap();
    assert_eq!(attributes(&d), ATTR_HIDDEN | ATTR_DIRECTORY);
    let weak = w.open(want("f").access(FILE_READ_DATA));
    assert_eq!(set(&weak, ATTR_HIDDEN), Err(StoreError::AccessDenied.into()));
}

#[test]
fn copies_and_holes() {
    let w = World::new();
    let (a, b) = (w.open(want("a")), w.open(want("b")));
    let data: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
    w.write(&a, 0, &data).unwrap();
    assert_eq!(w.fs.copy(&a, 1000, &b, 5, 100_000, w.cause()).unwrap(), 100_000);
    assert_eq!(w.read(&b, 5, 100_000).unwrap(), data[1000..101_000]);
    let range = LockRange { offset: 0, len: 10, exclusive: true };
    let c = w.open(want("a"));
    w.fs.lock(&c, &[range], true, w.cause()).unwrap();
    assert_eq!(w.fs.copy(&a, 0, &b, 0, 10, w.cause()), Err(StoreError::LockConflict.into()));
    assert_eq!(w.fs.zero_range(&a, 5, 10, w.cause()), Err(StoreError::LockConflict.into()));
    w.close(c);
    w.fs.zero_range(&a, 10, 1 << 40, w.cause()).unwrap();
    assert_eq!(w.fs.stat(&a).unwrap().stat.end_of_file, 200_000);
    assert_eq!(w.read(&a, 8, 4).unwrap(), [8, 9, 0, 0]);
    let reader = w.open(want("a").access(FILE_READ_DATA));
    assert_eq!(w.fs.zero_range(&reader, 0, 1, w.cause()), Err(StoreError::AccessDenied.into()));
    assert_eq!(w.fs.copy(&a, 0, &reader, 0, 1, w.cause()), Err(StoreError::AccessDenied.into()));
    let d = w.open(want("d").directory());
    assert_eq!(w.fs.read(&w.scope, &d, 0, &mut [0], Wait::Yes), Err(StoreError::WrongObject.into()));
    assert_eq!(w.fs.set_end_of_file(&d, 0, w.cause()), Err(StoreError::InvalidParameter.into()));
    assert_eq!(w.write(&a, i64::MAX as u64, b"x"), Err(StoreError::InvalidParameter.into()));
}

#[test]
fn extended_attributes_take_their_rights() {
    let w = World::new();
    let f = w.open(want("f"));
    let ea = Ea { name: "NAME".into(), flags: 0, value: b"value".to_vec() };
    w.fs.set_eas(&w.scope, &f, std::slice::from_ref(&ea)).unwrap();
    assert_eq!(w.fs.eas(&f).unwrap(), std::slice::from_ref(&ea));
    let weak = w.open(want("f").access(FILE_READ_DATA));
    assert_eq!(w.fs.eas(&weak), Err(StoreError::AccessDenied.into()));
    assert_eq!(w.fs.set_eas(&w.scope, &weak, &[ea]), Err(StoreError::AccessDenied.into()));
    assert_eq!(w.fs.security(&weak, 1).unwrap_err(), StoreError::AccessDenied);
}

#[test]
fn opens_for_administration() {
    let w = World::new();
    let f = w.open(want("d").directory());
    let s = w.open(want("d\\f:s").client(7).lease(9, "RH"));
    let all = w.table.opens();
    assert_eq!(all.iter().map(|o| o.path.as_str()).collect::<Vec<_>>(), ["d", "d\\f:s"]);
    assert_eq!((all[1].client, all[1].access), (ClientId(7), FILE_ALL_ACCESS));
    assert!(matches!(all[1].cache, CacheGrant::Lease { key: 9, state: 3, .. }));
    w.fs.lock(&s, &[LockRange { offset: 0, len: 1, exclusive: true }], true, w.cause()).unwrap();
    assert_eq!(w.table.locks(), [(s.id(), 1)].into());
    w.close(f);
    w.close(s.clone());
    w.close(s);
    assert!(w.table.opens().is_empty());
    // All the paths of a user's opens are made at once where they are listed.
    let name = "\u{e9}".repeat(100);
    let path = |n: usize| vec![name.as_str(); n].join("\\");
    (1..6).for_each(|n| w.close(w.open(want(&path(n)).directory())));
    let _deep = w.open(want(&path(6)).directory());
    let shown = w.table.opens().remove(0).path;
    assert!(shown.len() <= 1027 && shown.starts_with("...\u{e9}") && shown.ends_with(&name), "{shown}");
}
