//! Snapshots of a volume: what they show, what they cost, and that all of it comes back when they go.

mod lab;

use std::sync::Arc;

use arden_store::{
    error::StoreError,
    store::{FileStore, NewFile, Node, NodeRef, Wait},
};
use arden_volume::{MemDevice, VolumeOptions};
use arden_wire::{FileTime, fscc::FILE_READ_ONLY_VOLUME};

use lab::{Lab, find, formatted};

const SECOND: u64 = 10_000_000;
const BLOCK: u64 = 4096;

fn options() -> VolumeOptions {
    VolumeOptions { background: false, ..VolumeOptions::default() }
}

impl Lab {
    fn new() -> Lab {
        Lab::open(formatted())
    }

    fn open(device: Arc<MemDevice>) -> Lab {
        Lab::on(device, options())
    }

    fn again(self) -> Lab {
        let Lab { device, volume, store } = self;
        drop((volume, store));
        Lab::open(device)
    }

    fn put(&self, name: &str, data: &[u8]) -> NodeRef {
        let node = find(&*self.store, name).unwrap_or_else(|| {
            let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
            self.store.root().create_child(None, name, &new).unwrap()
        });
        node.set_end_of_file(None, 0).unwrap();
        node.write_at(None, 0, data, Wait::Yes).unwrap();
        node
    }

    fn snapshot(&self, second: u64) -> FileTime {
        self.volume.create_snapshot(FileTime(second * SECOND), "test").unwrap().time
    }

    /// Every block is accounted for, and everything counted is right. Blocks of data in use.
    fn check(&self) -> u64 {
        self.volume.sync().unwrap();
        let report = self.volume.check(true).unwrap();
        assert_eq!((report.errors, report.unaccounted_blocks), (vec![], 0));
        report.data_blocks
    }
}

fn read(store: &dyn FileStore, name: &str) -> Vec<u8> {
    let node = find(store, name).unwrap();
    let mut buf = vec![0; node.stat().unwrap().end_of_file as usize];
    assert_eq!(node.read_at(0, &mut buf, Wait::Yes).unwrap(), buf.len());
    buf
}

fn bytes(tag: u8, blocks: u64) -> Vec<u8> {
    (0..blocks * BLOCK).map(|i| tag ^ (i / 7) as u8).collect()
}

#[test]
fn each_shows_its_own_state_and_survives_opening_again() {
    let lab = Lab::new();
    let mut times = Vec::new();
    for i in 0..5u8 {
        lab.put("large", &bytes(i, 40));
        lab.put("small", &[i; 100]);
        lab.put(&format!("only {i}"), b"x");
        times.push(lab.snapshot(100 + u64::from(i)));
        if i > 0 {
            find(&*lab.store, &format!("only {}", i - 1)).unwrap().unlink(None).unwrap();
        }
    }
    lab.put("large", &bytes(99, 3));
    let lab = lab.again();
    lab.check();
    assert_eq!(lab.store.snapshots(), times);
    for (i, time) in times.iter().enumerate() {
        let past = lab.store.snapshot(*time).unwrap();
        assert_eq!(read(&*past, "large"), bytes(i as u8, 40));
        assert_eq!(read(&*past, "small"), [i as u8; 100]);
        assert!(find(&*past, &format!("only {i}")).is_some());
        assert!(find(&*past, &format!("only {}", i + 1)).is_none());
        assert_ne!(past.volume().capabilities & FILE_READ_ONLY_VOLUME, 0);
        let (now, then) = (find(&*lab.store, "large").unwrap().id(), find(&*past, "large").unwrap().id());
        assert_eq!(now.file, then.file);
        assert_ne!(now.volume, then.volume, "another file to the table of opens");
    }
    assert_eq!(lab.store.snapshot(FileTime(99 * SECOND)).err(), Some(StoreError::NotFound.into()));
}

#[test]
fn deleting_one_frees_what_only_it_held() {
    let lab = Lab::new();
    lab.put("kept", &bytes(1, 50));
    let empty = lab.check();
    lab.put("file", &bytes(2, 64));
    let first = lab.snapshot(1);
    lab.put("file", &bytes(3, 64));
    let second = lab.snapshot(2);
    lab.put("file", &bytes(4, 64));
    let third = lab.snapshot(3);
    find(&*lab.store, "file").unwrap().unlink(None).unwrap();
    assert_eq!(lab.check(), empty + 3 * 64);
    let only = |lab: &Lab| lab.volume.snapshots().unwrap().iter().map(|s| s.only_bytes / BLOCK).collect::<Vec<_>>();
    assert_eq!(only(&lab), [64, 64, 64]);
    assert!(lab.volume.delete_snapshot(second).unwrap());
    assert!(!lab.volume.delete_snapshot(second).unwrap(), "it is gone");
    assert_eq!((lab.check(), only(&lab)), (empty + 2 * 64, vec![64, 64]));
    let lab = lab.again();
    assert_eq!(read(&*lab.store.snapshot(first).unwrap(), "file"), bytes(2, 64));
    assert!(lab.volume.delete_snapshot(third).unwrap());
    assert_eq!(lab.check(), empty + 64);
    assert_eq!(read(&*lab.store.snapshot(first).unwrap(), "file"), bytes(2, 64));
    assert!(lab.volume.delete_snapshot(first).unwrap());
    assert_eq!(lab.check(), empty);
    assert_eq!(lab.volume.check(true).unwrap().held_blocks, 0);
}

/// A block that several snapshots hold is freed with the last of them, whichever that is.
#[test]
fn shared_blocks_stay_until_the_last_holder_goes() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let lab = Lab::new();
        let empty = lab.check();
        let node = lab.put("file", &bytes(5, 100));
        let copy = lab.put("copy", b"");
        Node::clone_from(&*copy, None, &*node, 0, 0, 100 * BLOCK).unwrap();
        let times = [lab.snapshot(1), lab.snapshot(2), lab.snapshot(3)];
        drop(node);
        find(&*lab.store, "file").unwrap().unlink(None).unwrap();
        assert_eq!(lab.check(), empty + 100, "the copy has them still");
        drop(copy);
        find(&*lab.store, "copy").unwrap().unlink(None).unwrap();
        for (gone, i) in order.iter().enumerate() {
            assert_eq!(lab.check(), empty + 100, "{order:?} {gone}");
            assert!(lab.volume.delete_snapshot(times[*i]).unwrap());
        }
        assert_eq!(lab.check(), empty);
    }
}

/// Writing over what a snapshot holds takes new room, and fails when there is none.
#[test]
fn the_past_has_a_price() {
    let lab = Lab::new();
    let (_, free, _) = lab.volume.room();
    let blocks = free / BLOCK * 6 / 10;
    lab.put("file", &bytes(1, blocks));
    let time = lab.snapshot(1);
    let node = find(&*lab.store, "file").unwrap();
    let (mut at, chunk) = (0, bytes(2, 256));
    let full = loop {
        match node.write_at(None, at, &chunk, Wait::Yes) {
            Ok(()) => at += 256 * BLOCK,
            Err(e) => break e,
        }
    };
    assert_eq!(full, StoreError::DiskFull);
    assert_eq!(read(&*lab.store.snapshot(time).unwrap(), "file"), bytes(1, blocks));
    lab.check();
    assert!(lab.volume.delete_snapshot(time).unwrap());
    node.write_at(None, at, &chunk, Wait::Yes).unwrap();
    lab.check();
}

#[test]
fn times_are_seconds_and_each_has_one() {
    let lab = Lab::new();
    let times: Vec<u64> = [10 * SECOND + 5, 10 * SECOND + 7, 3 * SECOND, 20 * SECOND + 1, 10 * SECOND]
        .map(|now| lab.volume.create_snapshot(FileTime(now), "").unwrap().time.0 / SECOND)
        .to_vec();
    assert_eq!(times, [10, 11, 3, 20, 12], "a clock that is set back is followed");
    assert!(lab.volume.create_snapshot(FileTime(1), &"x".repeat(129)).is_err());
}

/// Who reads while it is deleted is told, and never sees other bytes.
#[test]
fn a_reader_of_a_deleted_one_is_told() {
    let lab = Lab::new();
    lab.put("file", &bytes(1, 64));
    let time = lab.snapshot(1);
    lab.put("file", &bytes(2, 64));
    let past = lab.store.snapshot(time).unwrap();
    let node = find(&*past, "file").unwrap();
    let reading = std::thread::spawn(move || {
        let mut buf = vec![0; 64 * BLOCK as usize];
        loop {
            match node.read_at(0, &mut buf, Wait::Yes) {
                Ok(n) => assert!(n == buf.len() && buf == bytes(1, 64)),
                Err(e) => return e,
            }
        }
    });
    assert!(lab.volume.delete_snapshot(time).unwrap());
    for i in 3..30 {
        lab.put("file", &bytes(i, 64));
        lab.volume.sync().unwrap();
    }
    assert_eq!(reading.join().unwrap(), StoreError::SnapshotDeleted);
    lab.check();
}
