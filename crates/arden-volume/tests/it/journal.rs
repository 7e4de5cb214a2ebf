//! The change journal of a volume: which reasons what changes give, how they add up, that it is kept to its size, and
//! that USNs never go back, over crashes and over another journal.

use std::sync::Arc;

use arden_store::{
    error::StoreError,
    name::NtPath,
    store::*,
    usn::{ChangeJournal, Record, reason::*},
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{
    FileTime,
    access::{ATTR_HIDDEN, ATTR_NOT_CONTENT_INDEXED},
};

struct Lab {
    device: Arc<MemDevice>,
    vol: Arc<Volume>,
    store: Arc<VolumeStore>,
}

impl Lab {
    fn on(device: Arc<MemDevice>) -> Lab {
        let options = VolumeOptions { background: false, ..VolumeOptions::default() };
        let vol = Volume::open(device.clone(), options).unwrap();
        let store = VolumeStore::new(vol.clone(), Durability::Plain);
        Lab { device, vol, store }
    }

    fn new() -> Lab {
        let device = Arc::new(MemDevice::new(32 << 20));
        Volume::format(&*device, "j", 4, FileTime(1)).unwrap();
        Lab::on(device)
    }

    /// Power is lost: what was not made durable is gone.
    fn crash(self) -> Lab {
        Lab::on(Arc::new(MemDevice::holding(self.device.content())))
    }

    fn make(&self, name: &str) -> NodeRef {
        let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
        self.store.root().create_child(None, name, &new).unwrap()
    }

    fn find(&self, path: &str) -> NodeRef {
        match self.store.lookup(&NtPath::parse(path).unwrap()).unwrap() {
            Lookup::Found(node) => node,
            _ => panic!("there is no {path}"),
        }
    }

    fn all(&self, from: u64) -> Vec<Record> {
        let mut out = Vec::new();
        self.store
            .read(from, &mut |r| {
                out.push(r.clone());
                true
            })
            .unwrap();
        out
    }

    /// Names and reasons of what came since.
    fn since(&self, from: &mut u64) -> Vec<(String, u32)> {
        let out = self.all(*from).into_iter().map(|r| (r.name, r.reason)).collect();
        *from = self.store.info().unwrap().next;
        out
    }

    fn is_right(&self) {
        let report = self.vol.check(true).unwrap();
        assert!(report.is_clean(), "{:?}", report.errors);
    }
}

fn r(name: &str, reason: u32) -> (String, u32) {
    (name.into(), reason)
}

#[test]
fn reasons_add_up_until_the_file_is_closed() {
    let lab = Lab::new();
    assert_eq!(lab.store.info().err(), Some(StoreError::NoChangeJournal));
    lab.make("before").write_at(None, 0, b"x", Wait::Yes).unwrap();
    lab.store.create(None, 1 << 20, 1 << 18).unwrap();
    let mut at = lab.store.info().unwrap().next;
    let a = lab.make("a");
    a.write_at(None, 0, &[1; 5000], Wait::Yes).unwrap();
    a.write_at(None, 5000, &[1; 5000], Wait::Yes).unwrap();
    a.write_at(None, 0, b"again", Wait::Yes).unwrap();
    let mut sum = FILE_CREATE;
    let mut expected = vec![r("a", sum)];
    for more in [DATA_EXTEND, DATA_OVERWRITE] {
        sum |= more;
        expected.push(r("a", sum));
    }
    assert_eq!(lab.since(&mut at), expected);
    drop(a);
    assert_eq!(lab.since(&mut at), [r("a", sum | CLOSE)]);
    let a = lab.find("a");
    a.set_end_of_file(None, 10).unwrap();
    a.set_basic(None, &BasicUpdate { attributes: Some(ATTR_HIDDEN), ..Default::default() }).unwrap();
    let indexed = Some(ATTR_HIDDEN | ATTR_NOT_CONTENT_INDEXED);
    a.set_basic(None, &BasicUpdate { attributes: indexed, ..Default::default() }).unwrap();
    a.set_eas(None, &[Ea { name: "E".into(), flags: 0, value: vec![1] }]).unwrap();
    a.set_object_id(None, 5).unwrap();
    a.set_security(None, &lab.find("before").security().unwrap()).unwrap();
    let stream = a.create_stream(None, "s").unwrap();
    stream.write_at(None, 0, &[1; 100], Wait::Yes).unwrap();
    stream.write_at(None, 0, &[2; 50], Wait::Yes).unwrap();
    stream.set_end_of_file(None, 7).unwrap();
    drop((a, stream));
    let seen = lab.since(&mut at);
    let mut sum = 0;
    let mut expected = Vec::new();
    for more in [
        DATA_TRUNCATION,
        BASIC_INFO_CHANGE,
        INDEXABLE_CHANGE,
        EA_CHANGE,
        OBJECT_ID_CHANGE,
        STREAM_CHANGE,
        NAMED_DATA_EXTEND,
        NAMED_DATA_OVERWRITE,
        NAMED_DATA_TRUNCATION,
        CLOSE,
    ] {
        sum |= more;
        expected.push(r("a", sum));
    }
    assert_eq!(seen, expected);
    lab.is_right();
}

#[test]
fn names_links_and_deletion() {
    let lab = Lab::new();
    lab.store.create(None, 1 << 20, 1 << 18).unwrap();
    drop(lab.make("old"));
    drop(lab.make("other"));
    let mut at = lab.store.info().unwrap().next;
    let f = lab.find("old");
    f.rename(None, &*lab.store.root(), "new", false).unwrap();
    f.link(None, &*lab.store.root(), "second", false).unwrap();
    drop(f);
    let renamed = RENAME_NEW_NAME;
    let linked = renamed | HARD_LINK_CHANGE;
    let seen = lab.since(&mut at);
    assert_eq!(seen[..2], [r("old", RENAME_OLD_NAME), r("new", renamed)]);
    assert_eq!(seen[2..].iter().map(|(_, why)| *why).collect::<Vec<_>>(), [linked, linked | CLOSE]);
    // One that is replaced is deleted.
    lab.find("other").rename(None, &*lab.store.root(), "second", true).unwrap();
    let seen = lab.since(&mut at);
    assert!(seen.contains(&r("other", RENAME_OLD_NAME)) && seen.contains(&r("second", renamed)), "{seen:?}");
    let f = lab.find("new");
    let id = f.id().file;
    f.unlink(None).unwrap();
    drop(f);
    let seen = lab.since(&mut at);
    assert!(seen.contains(&r("new", FILE_DELETE | CLOSE)), "{seen:?}");
    let last = lab.all(0).into_iter().rfind(|r| r.file == id).unwrap();
    assert_eq!((last.reason, last.parent), (FILE_DELETE | CLOSE, lab.store.root().id().file));
    lab.is_right();
}

/// [MS-FSA] 2.1.5.5 and 2.1.5.15.7: the name that comes or goes is told, whichever is the first one.
#[test]
fn links_are_told_by_their_own_names() {
    let lab = Lab::new();
    lab.store.create(None, 1 << 20, 1 << 18).unwrap();
    drop(lab.make("first"));
    let mut at = lab.store.info().unwrap().next;
    let root = lab.store.root();
    for name in ["second", "third"] {
        lab.find("first").link(None, &*root, name, false).unwrap();
    }
    let told = |name: &str| r(name, HARD_LINK_CHANGE);
    let mut links = || -> Vec<_> { lab.since(&mut at).into_iter().filter(|(_, why)| why & CLOSE == 0).collect() };
    assert_eq!(links(), [told("second"), told("third")]);
    for name in ["second", "first"] {
        lab.find(name).unlink(None).unwrap();
    }
    assert_eq!(links(), [told("second"), told("first")]);
    let held = lab.find("third");
    for name in ["fourth", "fifth"] {
        held.link(None, &*root, name, false).unwrap();
    }
    drop(held);
    assert_eq!(links(), [told("fourth"), told("fifth")]);
    lab.is_right();
}

#[test]
fn usns_never_go_back_and_what_was_told_is_there_after_a_crash() {
    let mut lab = Lab::new();
    lab.store.create(None, 1 << 20, 1 << 18).unwrap();
    let mut highest = 0;
    for round in 0..6 {
        for i in 0..5 {
            lab.make(&format!("{round} {i}")).write_at(None, 0, &[1; 20_000], Wait::Yes).unwrap();
        }
        let told = lab.all(0);
        assert!(told.windows(2).all(|w| w[0].usn < w[1].usn));
        let info = lab.store.info().unwrap();
        assert!(told.last().unwrap().usn < info.next && info.next > highest);
        highest = info.next;
        // Not told to anybody: it may be lost, and its USN used again.
        drop(lab.make(&format!("unheard {round}")));
        if round % 2 == 0 {
            lab.vol.checkpoint().unwrap();
        }
        lab = lab.crash();
        assert_eq!(lab.all(0)[..told.len()], told);
        assert!(lab.store.info().unwrap().next >= highest);
        lab.is_right();
    }
    let first = lab.store.info().unwrap();
    lab.store.delete(None, first.id).unwrap();
    assert_eq!(lab.store.info().err(), Some(StoreError::NoChangeJournal));
    drop(lab.make("unseen"));
    lab.store.create(None, 0, 0).unwrap();
    let second = lab.store.info().unwrap();
    assert!(second.id != first.id && second.first >= first.next && lab.all(0).is_empty());
    lab.is_right();
}

#[test]
fn the_oldest_records_go() {
    let lab = Lab::new();
    lab.store.create(None, 64 << 10, 16 << 10).unwrap();
    let first = lab.store.info().unwrap().first;
    for i in 0..1500 {
        drop(lab.make(&format!("file {i}")));
    }
    let info = lab.store.info().unwrap();
    assert!(info.next - info.first <= 80 << 10 && info.next - first > 100 << 10, "{info:?}");
    let all = lab.all(0);
    assert_eq!(all[0].usn, info.first);
    assert_eq!(all.last().unwrap().name, "file 1499");
    assert_eq!(lab.store.read(first, &mut |_| true), Err(StoreError::ChangesExpired));
    // A part, and the rest from there on.
    let mut n = 0;
    let next = lab.store.read(0, &mut |_| {
        n += 1;
        n <= 10
    });
    assert_eq!(next.unwrap(), all[10].usn);
    assert_eq!(lab.all(all[10].usn), all[10..]);
    lab.is_right();
}

#[test]
fn zeros_are_an_overwriting_also_where_they_leave_a_hole() {
    let lab = Lab::new();
    lab.store.create(None, 1 << 20, 1 << 18).unwrap();
    let a = lab.make("a");
    let stream = a.create_stream(None, "s").unwrap();
    a.write_at(None, 0, &[1; 40_000], Wait::Yes).unwrap();
    stream.write_at(None, 0, &[1; 40_000], Wait::Yes).unwrap();
    lab.vol.allocate_delayed().unwrap();
    drop((a, stream));
    let mut at = lab.store.info().unwrap().next;
    lab.find("a").zero_range(None, 0, 40_000).unwrap();
    assert!(lab.since(&mut at).iter().any(|(_, reason)| reason & DATA_OVERWRITE != 0));
    lab.find("a:s").zero_range(None, 8192, 8192).unwrap();
    assert!(lab.since(&mut at).iter().any(|(_, reason)| reason & NAMED_DATA_OVERWRITE != 0));
    // What lies behind the end of a file was never its data.
    lab.find("a").set_allocation(None, 200_000).unwrap();
    lab.since(&mut at);
    lab.find("a").set_allocation(None, 40_000).unwrap();
    assert!(lab.since(&mut at).iter().all(|(_, reason)| reason & DATA_OVERWRITE == 0));
}

#[test]
fn every_name_of_a_file_tells_when_it_becomes_another() {
    let lab = Lab::new();
    lab.make("first").link(None, &*lab.store.root(), "second", false).unwrap();
    lab.store.create(None, 1 << 20, 1 << 18).unwrap();
    let mut at = lab.store.info().unwrap().next;
    lab.find("second").rename(None, &*lab.store.root(), "third", false).unwrap();
    let seen = lab.since(&mut at);
    let told = |name: &str, bit: u32| seen.iter().any(|(n, reason)| n == name && reason & bit != 0);
    assert!(told("second", RENAME_OLD_NAME) && told("third", RENAME_NEW_NAME), "{seen:?}");
}

#[test]
fn a_journal_is_deleted_from_a_full_volume() {
    let device = Arc::new(MemDevice::new(8 << 20));
    Volume::format(&*device, "j", 4, FileTime(1)).unwrap();
    let lab = Lab::on(device);
    lab.store.create(None, 1 << 20, 0).unwrap();
    // Data until nothing more goes in, and then names.
    let f = lab.make("data");
    for len in [64 << 10, 4096] {
        let mut at = f.stat().unwrap().end_of_file;
        while f.write_at(None, at, &vec![7; len], Wait::Yes).is_ok() && f.sync().is_ok() {
            at += len as u64;
        }
    }
    let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
    let mut names = 0;
    while lab.store.root().create_child(None, &format!("{names}"), &new).is_ok() {
        names += 1;
    }
    let id = lab.store.info().unwrap().id;
    lab.store.delete(None, id).unwrap();
    assert!(lab.store.info().is_err());
    // What was left of it, if there was no room to take it away, is gone before the next begins.
    f.unlink(None).unwrap();
    drop(f);
    let next = lab.store.create(None, 1 << 20, 0).and_then(|()| lab.store.info()).unwrap();
    assert_eq!(next.first, next.next);
    lab.is_right();
}
