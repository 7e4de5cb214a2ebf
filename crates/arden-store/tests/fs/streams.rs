//! Renames between named streams and the file's own data, [MS-FSA] 2.1.5.15.12.1.

use std::sync::atomic::{AtomicBool, Ordering};

use arden_store::{
    error::StoreError,
    fs::{Disposal, LockRange},
};

use crate::world::*;

fn size(w: &World, path: &str) -> u64 {
    let f = w.open(want(path).existing().access(FILE_READ_ATTRIBUTES));
    let size = w.fs.stat(&f).unwrap().stat.end_of_file;
    w.close(f);
    size
}

fn streams(w: &World, path: &str) -> Vec<(String, u64)> {
    let f = w.open(want(path).existing().access(FILE_READ_ATTRIBUTES));
    let all = w.fs.streams(&f).unwrap().into_iter().map(|s| (s.name, s.size)).collect();
    w.close(f);
    all
}

#[test]
fn a_stream_becomes_the_data() {
    // In an attribute, and in a file of its own.
    for len in [300, 200_000] {
        let w = World::new();
        let s = w.open(want("f:one").lease(7, "RWH"));
        w.write(&s, 0, &vec![1; len]).unwrap();
        assert_eq!(w.rename(&s, "::$DATA", false).unwrap_err(), StoreError::NameCollision);
        w.rename(&s, "::$DATA", true).unwrap();
        assert_eq!(streams(&w, "f"), [(String::new(), len as u64)]);
        assert_eq!(w.fails(want("f:one").existing()), StoreError::NotFound);
        assert_eq!(w.fs.path(&s), "f");
        // The open went along, with what it holds.
        assert_eq!(w.lease_of(&s), "RWH");
        w.write(&s, 0, b"new").unwrap();
        assert_eq!(w.read(&s, 0, 5).unwrap(), [b'n', b'e', b'w', 1, 1]);
        assert_eq!(std::fs::read(w.dir.join("f")).unwrap().len(), len);
        w.rename(&s, "::$DATA", false).unwrap();
        let reader = want("f").existing().access(FILE_READ_DATA).client(2);
        let wait = w.waits(&reader);
        assert_eq!(w.told(), ["lease 7 RWH>RH!"]);
        w.table.ack_lease_break(arden_store::fs::ClientId(1), 7, state("RH"), w.cause()).unwrap();
        assert_eq!(w.told(), [format!("resume {}", wait.0)]);
        let other = w.open(reader);
        assert_eq!(w.read(&other, 0, 3).unwrap(), b"new");
        w.close(other);
        w.close(s);
        assert_eq!(w.unlink("f"), Ok(()));
        assert!(!w.dir.join("f").exists());
    }
}

#[test]
fn the_data_becomes_a_stream() {
    for len in [300, 200_000] {
        let w = World::new();
        let f = w.open(want("f"));
        w.write(&f, 0, &vec![1; len]).unwrap();
        w.rename(&f, ":one", false).unwrap();
        assert_eq!(streams(&w, "f"), [(String::new(), 0), ("one".into(), len as u64)]);
        assert_eq!(w.fs.path(&f), "f:one");
        w.write(&f, 0, b"new").unwrap();
        assert_eq!(w.read(&f, 0, 4).unwrap(), [b'n', b'e', b'w', 1]);
        assert_eq!((size(&w, "f"), size(&w, "f:ONE")), (0, len as u64));
        // Two different streams now: what one keeps to itself does not concern the other.
        let data = w.open(want("f").existing().share(0).access(FILE_WRITE_DATA));
        w.write(&data, 0, b"x").unwrap();
        w.close(data);
        assert_eq!(w.rename(&f, "::$DATA", true).unwrap_err(), StoreError::InvalidParameter, "the data is not empty");
        w.rename(&f, ":two", false).unwrap();
        assert_eq!(streams(&w, "f"), [(String::new(), 1), ("two".into(), len as u64)]);
        // And back, with what was written.
        let data = w.open(want("f").existing());
        w.fs.set_end_of_file(&data, 0, w.cause()).unwrap();
        assert_eq!(w.rename(&f, "::$DATA", true).unwrap_err(), StoreError::InvalidParameter, "it is in use");
        w.close(data);
        w.rename(&f, "::$DATA", true).unwrap();
        assert_eq!(streams(&w, "f"), [(String::new(), len as u64)]);
        w.rename(&f, ":three", false).unwrap();
        assert_eq!(streams(&w, "f"), [(String::new(), 0), ("three".into(), len as u64)]);
        assert_eq!(w.read(&f, 0, 4).unwrap(), [b'n', b'e', b'w', 1]);
        w.close(f);
    }
}

#[test]
fn what_cannot_be_renamed_stays() {
    let w = World::new();
    let d = w.open(want("d").directory());
    assert_eq!(w.rename(&d, ":one", false).unwrap_err(), StoreError::InvalidParameter);
    let s = w.open(want("d:one"));
    assert_eq!(w.rename(&s, "::$DATA", true).unwrap_err(), StoreError::InvalidParameter, "a directory has no data");
    let f = w.open(want("f"));
    w.write(&f, 0, b"data").unwrap();
    let other = w.open(want("f").existing());
    assert_eq!(w.rename(&f, ":one", false).unwrap_err(), StoreError::SharingViolation, "somebody else has it open");
    w.close(other);
    w.close(w.open(want("f:one")));
    assert_eq!(w.rename(&f, ":ONE", false).unwrap_err(), StoreError::NameCollision);
    w.rename(&f, ":ONE", true).unwrap();
    assert_eq!(streams(&w, "f"), [(String::new(), 0), ("ONE".into(), 4)]);
}

/// What was written through a handle while its stream went back and forth is there.
#[test]
fn writes_beside_renames_are_kept() {
    let w = World::new();
    let f = w.open(want("f"));
    let done = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut n = 0;
            while !done.load(Ordering::Relaxed) && n < 50_000 {
                w.write(&f, n, &[(n % 251) as u8]).unwrap();
                n += 1;
            }
            n
        });
        for _ in 0..100 {
            w.rename(&f, ":away", false).unwrap();
            w.rename(&f, "::$DATA", true).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let data = std::fs::read(w.dir.join("f")).unwrap();
    assert_eq!(data, (0..written).map(|n| (n % 251) as u8).collect::<Vec<_>>());
}

/// The size of what a handle is open on, whatever its stream is called at that moment.
#[test]
fn sizes_beside_renames_are_told() {
    let w = World::new();
    let f = w.open(want("f"));
    w.write(&f, 0, b"data").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(f.node().stat().unwrap().end_of_file, 4);
                let bytes: u64 = f.node().streams().unwrap().iter().map(|s| s.size).sum();
                assert_eq!(bytes, 4, "once in the list");
            }
        });
        for _ in 0..300 {
            w.rename(&f, ":away", false).unwrap();
            w.rename(&f, ":further", false).unwrap();
            w.rename(&f, "::$DATA", true).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    w.close(f);
}

/// Opens of the name that a stream is about to take.
#[test]
fn who_opens_the_target_meanwhile_can_close_it() {
    let w = World::new();
    let f = w.open(want("f"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut i = 0;
            while !done.load(Ordering::Relaxed) {
                i += 1;
                let name = if i % 2 == 0 { "f" } else { "f:away" };
                if let Ok(arden_store::fs::Step::Done(o)) = w.try_open(&want(name).lease(9 + i, "RW").client(2)) {
                    w.close(o.open);
                }
            }
        });
        for _ in 0..200 {
            let _ = w.rename(&f, ":away", true);
            let _ = w.rename(&f, "::$DATA", true);
        }
        done.store(true, Ordering::Relaxed);
    });
    w.close(f);
    assert_eq!(w.table.open_count(), 0);
    assert!(w.table.opens().is_empty());
    w.close(w.open(want("f").share(0)));
}

/// A create that fails leaves nothing behind, [MS-FSA] 2.1.5.1.2: the checks of the file come before its new stream.
#[test]
fn a_refused_create_leaves_no_stream() {
    let w = World::new();
    let deleter = w.open(want("f").access(DELETE));
    // It does not share deletion with who may delete the file.
    let refused = want("f:new").share(FILE_SHARE_READ | FILE_SHARE_WRITE);
    assert_eq!(w.fails(refused), StoreError::SharingViolation);
    assert_eq!(streams(&w, "f"), [(String::new(), 0)]);
    w.fs.set_disposition(&deleter, Disposal { delete: true, ..Disposal::default() }, w.cause()).unwrap();
    assert_eq!(w.fails(want("f:late")), StoreError::DeletePending);
    w.fs.set_disposition(&deleter, Disposal::default(), w.cause()).unwrap();
    assert_eq!(streams(&w, "f"), [(String::new(), 0)]);
    w.close(deleter);
}

/// [MS-FSA] 2.1.5.1.2: an overwrite takes the streams away, also open ones. Another of the name is another stream.
#[test]
fn who_has_a_stream_open_that_an_overwrite_took_away_has_nothing_to_do_with_the_next_of_its_name() {
    let w = World::new();
    let old = w.open(want("f:s").options(OPT_DELETE_ON_CLOSE));
    w.write(&old, 0, b"old").unwrap();
    let range = [LockRange { offset: 0, len: 3, exclusive: true }];
    w.fs.lock(&old, &range, true, w.cause()).unwrap();
    w.close(w.open(want("f").disposition(arden_store::fs::Disposition::OverwriteIf)));
    assert_eq!(streams(&w, "f"), [(String::new(), 0)]);
    let new = w.open(want("f:S").share(FILE_SHARE_READ));
    w.write(&new, 0, b"new").unwrap();
    assert_eq!(w.read(&old, 0, 3), Err(StoreError::Deleted.into()));
    assert_eq!(w.write(&old, 0, b"???"), Err(StoreError::Deleted.into()));
    w.close(old);
    assert_eq!(w.read(&new, 0, 3).unwrap(), b"new");
    w.close(new);
    assert_eq!(streams(&w, "f"), [(String::new(), 0), ("S".into(), 3)]);
    assert!(w.table.opens().is_empty());
}
