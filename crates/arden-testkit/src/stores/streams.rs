//! The cases of named streams.

use std::sync::atomic::{AtomicBool, Ordering};

use arden_store::{error::StoreError, store::*};

use super::cases::*;

pub fn streams_have_their_own_data(store: &dyn FileStore) {
    let root = store.root();
    let f = file(&root, "f");
    f.write_at(None, 0, b"main", Wait::Yes).unwrap();
    let s = f.create_stream(None, "Side").unwrap();
    assert_eq!(s.stream(), Some("Side"));
    assert_eq!(error(f.create_stream(None, "sIDE")), StoreError::NameCollision);
    s.write_at(None, 0, b"side", Wait::Yes).unwrap();
    s.write_at(None, 6, b"x", Wait::Yes).unwrap();
    let found = get(store, "F:SIDE:$DATA");
    assert_eq!(read_all(&found), b"side\0\0x");
    assert_eq!(found.stat().unwrap().end_of_file, 7);
    assert_eq!(found.id(), f.id());
    found.set_end_of_file(None, 2).unwrap();
    assert_eq!(read_all(&s), b"si");
    assert_eq!(read_all(&f), b"main");
    f.create_stream(None, "empty").unwrap();
    let mut list = f.streams().unwrap();
    list.sort_by(|a, b| a.name.cmp(&b.name));
    let list: Vec<_> = list.iter().map(|s| (s.name.as_str(), s.size)).collect();
    assert_eq!(list, [("", 4), ("Side", 2), ("empty", 0)]);
    let d = mkdir(&root, "d");
    d.create_stream(None, "on a directory").unwrap().write_at(None, 0, b"!", Wait::Yes).unwrap();
    assert_eq!(read_all(&get(store, "d:on a directory")), b"!");
    assert_eq!(d.streams().unwrap().len(), 1, "a directory has no unnamed stream");
    assert!(!get(store, "d:on a directory").is_directory());
}

pub fn large_streams_work(store: &dyn FileStore) {
    let f = file(&store.root(), "f");
    let s = f.create_stream(None, "large").unwrap();
    let data: Vec<u8> = (0..300_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    for (i, chunk) in data.chunks(3000).enumerate() {
        s.write_at(None, i as u64 * 3000, chunk, Wait::Yes).unwrap();
    }
    assert_eq!(read_all(&get(store, "f:LARGE")), data);
    assert_eq!(f.streams().unwrap()[1].size, 300_000);
    s.set_end_of_file(None, 100).unwrap();
    assert_eq!(read_all(&s), data[..100]);
    assert_eq!(names(&store.root()), ["f"], "nothing else is seen");
    s.rename_stream(None, Some("renamed"), false).unwrap();
    assert_eq!(read_all(&get(store, "f:renamed")), data[..100]);
    f.unlink(None).unwrap();
    assert!(store.root().is_empty_directory().unwrap() || names(&store.root()).is_empty());
}

pub fn streams_rename_and_vanish(store: &dyn FileStore) {
    let f = file(&store.root(), "f");
    let s = f.create_stream(None, "one").unwrap();
    s.write_at(None, 0, b"1", Wait::Yes).unwrap();
    s.rename_stream(None, Some("two"), false).unwrap();
    assert!(find(store, "f:one").is_none());
    assert_eq!(read_all(&get(store, "f:two")), b"1");
    f.create_stream(None, "three").unwrap();
    assert_eq!(error(s.rename_stream(None, Some("THREE"), false)), StoreError::NameCollision);
    s.rename_stream(None, Some("three"), true).unwrap();
    assert_eq!(f.streams().unwrap().len(), 2);
    assert_eq!(read_all(&s), b"1");
    s.unlink(None).unwrap();
    assert!(find(store, "f:three").is_none());
    assert_eq!(f.streams().unwrap().len(), 1);
    assert!(find(store, "f").is_some());
}

/// [MS-FSA] 2.1.5.15.12.1: the file's own data is a stream too, and its nodes go along.
pub fn streams_and_the_data_change_places(store: &dyn FileStore) {
    for len in [0, 5, 70_000] {
        let data: Vec<u8> = (0..len).map(|i: u32| ((i * 7) >> 3) as u8).collect();
        let f = file(&store.root(), "f");
        f.write_at(None, 0, &data, Wait::Yes).unwrap();
        f.rename_stream(None, Some("away"), false).unwrap();
        assert_eq!(f.stream(), Some("away"));
        assert_eq!(get(store, "f").stat().unwrap().end_of_file, 0);
        assert_eq!(read_all(&get(store, "f:AWAY")), data);
        f.write_at(None, 1, b"!", Wait::Yes).unwrap();
        let changed = read_all(&f);
        assert_eq!((changed.len(), changed[1]), (data.len().max(2), b'!'));
        assert_eq!(read_all(&get(store, "f:away")), changed);
        f.rename_stream(None, Some("there"), false).unwrap();
        let other = get(store, "f");
        other.write_at(None, 0, b"x", Wait::Yes).unwrap();
        assert_eq!(error(f.rename_stream(None, None, true)), StoreError::InvalidParameter, "there is data already");
        other.set_end_of_file(None, 0).unwrap();
        f.rename_stream(None, None, true).unwrap();
        assert_eq!((f.stream(), f.is_directory()), (None, false));
        assert_eq!(f.streams().unwrap().len(), 1);
        assert_eq!(read_all(&get(store, "f")), changed);
        f.create_stream(None, "taken").unwrap().write_at(None, 0, b"old", Wait::Yes).unwrap();
        assert_eq!(error(f.rename_stream(None, Some("TAKEN"), false)), StoreError::NameCollision);
        f.rename_stream(None, Some("TAKEN"), true).unwrap();
        assert_eq!(read_all(&get(store, "f:taken")), changed);
        f.unlink(None).unwrap();
        assert_eq!(error(f.write_at(None, 0, b"gone", Wait::Yes)), StoreError::Deleted);
        get(store, "f").unlink(None).unwrap();
    }
    let d = mkdir(&store.root(), "d");
    assert_eq!(error(d.rename_stream(None, Some("s"), false)), StoreError::InvalidParameter);
    let s = d.create_stream(None, "s").unwrap();
    assert_eq!(error(s.rename_stream(None, None, true)), StoreError::InvalidParameter, "a directory has no data");
}

/// What is written through a node while its stream goes back and forth is there.
pub fn writes_beside_stream_renames_are_kept(store: &dyn FileStore) {
    let f = file(&store.root(), "f");
    let renamed = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut n = 0;
            while !renamed.load(Ordering::Relaxed) && n < 20_000 {
                f.write_at(None, n, &[(n % 251) as u8], Wait::Yes).unwrap();
                n += 1;
            }
            n
        });
        for _ in 0..100 {
            f.rename_stream(None, Some("away"), false).unwrap();
            f.rename_stream(None, None, true).unwrap();
        }
        renamed.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert_eq!(read_all(&get(store, "f")), (0..written).map(|n| (n % 251) as u8).collect::<Vec<_>>());
}
