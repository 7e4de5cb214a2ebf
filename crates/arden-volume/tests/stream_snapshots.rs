//! Snapshots of streams: what they hold, where the stream differs from them, what reverting leaves, and that they go, count and
//! are kept with their stream.

mod lab;

use std::sync::Arc;

use arden_store::{
    error::StoreError,
    name::NtPath,
    store::{DeltaPlace, FileStore, Lookup, NewFile, NodeRef, StreamDelta, Wait},
    usn::reason,
};
use arden_volume::{MemDevice, STREAM_SNAPSHOTS_MAX, Superblock, VolumeOptions, read_stream_snapshot};
use arden_wire::{FileTime, dtyp::well_known};

use lab::{Lab, find, formatted};

const BLOCK: usize = 4096;

impl Lab {
    fn new() -> Lab {
        Lab::open(formatted())
    }

    fn open(device: Arc<MemDevice>) -> Lab {
        let options = VolumeOptions { background: false, ..VolumeOptions::default() };
        Lab::on(device, options)
    }

    /// After an orderly end, or after the loss of all that was not durable.
    fn again(self, orderly: bool) -> Lab {
        match orderly {
            true => self.volume.close().unwrap(),
            false => self.volume.sync().unwrap(),
        }
        let device = Arc::new(MemDevice::holding(self.device.content()));
        Lab::open(device)
    }

    fn make(&self, name: &str, data: &[u8]) -> NodeRef {
        let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
        let node = self.store.root().create_child(None, name, &new).unwrap();
        write(&node, 0, data);
        node
    }

    fn find(&self, path: &str) -> Option<NodeRef> {
        find(&*self.store, path)
    }

    #[track_caller]
    fn check(&self) {
        let report = self.volume.check(true).unwrap();
        assert!(report.is_clean(), "{:?}", report.errors);
        assert_eq!(report.unaccounted_blocks, 0);
    }

    /// Blocks that hold data of files.
    fn data_blocks(&self) -> u64 {
        // What waits to be taken away is, before a change.
        self.volume.checkpoint().unwrap();
        self.volume.sync().unwrap();
        self.volume.check(false).unwrap().data_blocks
    }
}

fn write(node: &NodeRef, offset: u64, data: &[u8]) {
    if !data.is_empty() {
        node.write_at(None, offset, data, Wait::Yes).unwrap();
    }
}

fn read(node: &NodeRef) -> Vec<u8> {
    let mut buf = vec![0; node.stat().unwrap().end_of_file as usize];
    let n = node.read_at(0, &mut buf, Wait::Yes).unwrap();
    assert_eq!(n, buf.len());
    buf
}

fn names(node: &NodeRef) -> Vec<String> {
    node.stream_snapshots().unwrap().into_iter().map(|s| s.name).collect()
}

#[track_caller]
fn held(node: &NodeRef, name: &str) -> Vec<u8> {
    read_stream_snapshot(&**node, name).unwrap()
}

/// Whether each part has a place, is without one, or is a hole; from its first block on, so many.
fn deltas(node: &NodeRef, name: &str) -> Vec<(char, u64, u64)> {
    let kind = |p: DeltaPlace| match p {
        DeltaPlace::At(_) => 'P',
        DeltaPlace::Unplaced => 'u',
        DeltaPlace::Hole => 'h',
    };
    let found = node.stream_deltas(name, 0, 1000).unwrap();
    found.into_iter().map(|d| (kind(d.place), d.from, d.blocks)).collect()
}

#[test]
fn a_snapshot_holds_what_the_stream_held_whatever_comes_later() {
    for size in [0, 5, 700, BLOCK, 3 * BLOCK + 9, 300_000] {
        let lab = Lab::new();
        let data: Vec<u8> = (0..size).map(|i| (i / 7) as u8).collect();
        let f = lab.make("f", &data);
        f.create_stream_snapshot(None, "First").unwrap();
        assert_eq!(held(&f, "first"), data, "in any case");
        let listed = f.stream_snapshots().unwrap();
        let blocks = size.div_ceil(BLOCK) * BLOCK;
        let sizes = listed.iter().map(|s| (s.name.as_str(), s.size, s.allocation)).collect::<Vec<_>>();
        assert_eq!(sizes, [("First", size as u64, blocks as u64)]);
        let lab = lab.again(true);
        let f = lab.find("f").unwrap();
        write(&f, 0, &[0xAB; 90_000]);
        f.set_end_of_file(None, 10).unwrap();
        assert_eq!(held(&f, "FIRST"), data);
        f.set_end_of_file(None, 0).unwrap();
        write(&f, 0, b"new");
        assert_eq!((names(&f), held(&f, "First")), (vec!["First".to_owned()], data.clone()), "emptied");
        lab.check();
        let lab = lab.again(false);
        let f = lab.find("f").unwrap();
        assert_eq!((read(&f), held(&f, "First")), (b"new".to_vec(), data.clone()));
        lab.check();
    }
}

#[test]
fn names_are_refused_that_are_taken_or_none() {
    let lab = Lab::new();
    let f = lab.make("f", b"data");
    f.create_stream_snapshot(None, "a").unwrap();
    assert_eq!(f.create_stream_snapshot(None, "A").unwrap_err(), StoreError::NameCollision);
    for name in ["", "a:b", "a\\b", "a/b", &"x".repeat(256)] {
        assert_eq!(f.create_stream_snapshot(None, name).unwrap_err(), StoreError::InvalidName, "{name:?}");
    }
    let root = lab.store.root();
    assert_eq!(root.create_stream_snapshot(None, "a").unwrap_err(), StoreError::WrongObject);
    assert_eq!(root.stream_snapshots().unwrap_err(), StoreError::WrongObject);
    for missing in ["b", ""] {
        assert_eq!(f.revert_stream(None, missing).unwrap_err(), StoreError::NotFound);
        assert_eq!(f.stream_deltas(missing, 0, 9).unwrap_err(), StoreError::NotFound);
    }
    // Another stream of the file has names of its own.
    let s = f.create_stream(None, "s").unwrap();
    s.create_stream_snapshot(None, "a").unwrap();
    assert_eq!(names(&s), ["a"]);
    lab.check();
}

#[test]
fn a_stream_has_so_many_snapshots_and_they_all_go_at_once() {
    let lab = Lab::new();
    let f = lab.make("f", b"data");
    // Names that take most room.
    let name = |i: usize| format!("{i:03}{}", "\u{4e00}".repeat(252));
    for i in 0..STREAM_SNAPSHOTS_MAX {
        write(&f, 0, &[i as u8; 100]);
        f.create_stream_snapshot(None, &name(i)).unwrap();
    }
    assert_eq!(f.create_stream_snapshot(None, "more").unwrap_err(), StoreError::InsufficientResources);
    let created: Vec<_> = f.stream_snapshots().unwrap().into_iter().map(|s| s.created).collect();
    assert!(created.is_sorted_by(|a, b| a < b), "each is later than all before it");
    f.revert_stream(None, &name(0)).unwrap();
    assert_eq!((read(&f), names(&f).len()), (vec![0; 100], 0));
    assert_eq!(lab.data_blocks(), 1);
    lab.check();
}

#[test]
fn reverting_takes_the_snapshot_and_all_later_ones_away() {
    let lab = Lab::new();
    let f = lab.make("f", &[1; 20_000]);
    f.create_stream_snapshot(None, "one").unwrap();
    write(&f, 4096, &[2; 8192]);
    f.create_stream_snapshot(None, "two").unwrap();
    let two = read(&f);
    f.set_end_of_file(None, 0).unwrap();
    write(&f, 0, &[3; 90_000]);
    f.create_stream_snapshot(None, "three").unwrap();
    write(&f, 0, &[4; 90_000]);
    f.revert_stream(None, "TWO").unwrap();
    assert_eq!((read(&f), names(&f)), (two.clone(), vec!["one".to_owned()]));
    assert_eq!(lab.data_blocks(), 5 + 2, "of the first, and what the second has anew");
    lab.check();
    // The stream is changed, the older snapshot is not.
    write(&f, 0, &[5; 100]);
    assert_eq!(held(&f, "one"), vec![1; 20_000]);
    let lab = lab.again(false);
    let f = lab.find("f").unwrap();
    assert_eq!((&read(&f)[100..], names(&f)), (&two[100..], vec!["one".to_owned()]));
    f.revert_stream(None, "one").unwrap();
    assert_eq!((read(&f), names(&f).is_empty()), (vec![1; 20_000], true));
    lab.check();
}

#[test]
fn deltas_are_what_was_written_or_given_up_since() {
    let lab = Lab::new();
    let f = lab.make("f", &[1; 40 * BLOCK]);
    f.create_stream_snapshot(None, "s").unwrap();
    assert_eq!(deltas(&f, "s"), []);
    lab.volume.checkpoint().unwrap();
    assert_eq!(deltas(&f, "s"), [], "a checkpoint changes nothing");
    write(&f, 3 * BLOCK as u64 + 5, b"small");
    write(&f, 4 * BLOCK as u64, &[9; BLOCK]);
    assert_eq!(deltas(&f, "s"), [('u', 3, 2)]);
    f.set_sparse(None, true).unwrap();
    f.zero_range(None, 10 * BLOCK as u64, 2 * BLOCK as u64).unwrap();
    write(&f, 20 * BLOCK as u64, &[7; 17 * BLOCK]);
    assert_eq!(deltas(&f, "s"), [('u', 3, 2), ('h', 10, 2), ('P', 20, 17)]);
    lab.volume.checkpoint().unwrap();
    assert_eq!(deltas(&f, "s"), [('P', 3, 2), ('h', 10, 2), ('P', 20, 17)], "they have places now");
    let part =
        |from, max| f.stream_deltas("s", from, max).unwrap().iter().map(|d| (d.from, d.blocks)).collect::<Vec<_>>();
    assert_eq!(part(0, 1), [(3, 2), (10, 2)], "one more than was asked for");
    assert_eq!(part(4, 9), [(4, 1), (10, 2), (20, 17)], "from the middle on");
    assert_eq!(part(36, 9), [(36, 1)]);
    assert_eq!((part(37, 9), part(u64::MAX, 9)), (vec![], vec![]));
    // Nothing is told of what lies behind the end.
    f.set_end_of_file(None, 11 * BLOCK as u64).unwrap();
    assert_eq!(deltas(&f, "s"), [('P', 3, 2), ('h', 10, 1)]);
    f.create_stream_snapshot(None, "t").unwrap();
    write(&f, 0, &[8; 10]);
    assert_eq!(deltas(&f, "t"), [('u', 0, 1)]);
    assert_eq!(deltas(&f, "s"), [('u', 0, 1), ('P', 3, 2), ('h', 10, 1)]);
    lab.check();
}

/// In so many parts that they are compared, and shared, in several steps.
#[test]
fn streams_in_many_parts() {
    let lab = Lab::new();
    let f = lab.make("f", &[]);
    f.set_sparse(None, true).unwrap();
    f.set_end_of_file(None, 2 * 1300 * BLOCK as u64).unwrap();
    for i in 0..1300u64 {
        write(&f, 2 * i * BLOCK as u64, &[i as u8 | 1; BLOCK]);
    }
    let before = read(&f);
    f.create_stream_snapshot(None, "s").unwrap();
    assert_eq!(deltas(&f, "s"), []);
    for i in (0..1300u64).step_by(2) {
        write(&f, 2 * i * BLOCK as u64, &[0xEE; BLOCK]);
    }
    // Some have got a place meanwhile.
    let changed: Vec<_> = (0..1300u64).step_by(2).map(|i| (2 * i, 1)).collect();
    let found: Vec<_> = deltas(&f, "s").into_iter().map(|(_, from, blocks)| (from, blocks)).collect();
    assert!(found == changed);
    lab.volume.checkpoint().unwrap();
    let placed: Vec<_> = changed.iter().map(|(from, blocks)| ('P', *from, *blocks)).collect();
    assert!(deltas(&f, "s") == placed);
    assert_eq!(held(&f, "s"), before);
    lab.check();
    f.revert_stream(None, "s").unwrap();
    assert_eq!(read(&f), before);
    assert_eq!(lab.data_blocks(), 1300);
    lab.check();
}

#[test]
fn places_are_the_streams_own() {
    let lab = Lab::new();
    let f = lab.make("f", &[1; 40 * BLOCK]);
    f.create_stream_snapshot(None, "s").unwrap();
    write(&f, 0, &[2; 20 * BLOCK]);
    let run = f.cluster_runs(0, 1).unwrap()[0];
    let place = DeltaPlace::At(run.at.unwrap());
    assert_eq!(f.stream_deltas("s", 0, 9).unwrap(), [StreamDelta { from: 0, blocks: 20, place }]);
}

#[test]
fn snapshots_follow_their_stream_and_go_with_it() {
    let lab = Lab::new();
    let f = lab.make("f", &[1; 9000]);
    f.create_stream_snapshot(None, "own").unwrap();
    let s = f.create_stream(None, "s").unwrap();
    write(&s, 0, &[2; 9000]);
    s.create_stream_snapshot(None, "of s").unwrap();
    write(&s, 0, &[3; 9000]);
    s.rename_stream(None, Some("t"), false).unwrap();
    assert_eq!((names(&s), held(&s, "of s")), (vec!["of s".to_owned()], vec![2; 9000]));
    // The file's own data becomes a stream, and that becomes the file's own.
    f.rename_stream(None, Some("was own"), false).unwrap();
    s.rename_stream(None, None, false).unwrap();
    let lab = lab.again(true);
    let (f, was) = (lab.find("f").unwrap(), lab.find("f:was own").unwrap());
    assert_eq!((names(&f), names(&was)), (vec!["of s".to_owned()], vec!["own".to_owned()]));
    assert_eq!((held(&f, "of s"), held(&was, "own")), (vec![2; 9000], vec![1; 9000]));
    lab.check();
    was.unlink(None).unwrap();
    assert_eq!(lab.data_blocks(), 6);
    lab.check();
    f.rename(None, &*lab.store.root(), "renamed", false).unwrap();
    assert_eq!(names(&f), ["of s"]);
    f.unlink(None).unwrap();
    drop((f, was));
    assert_eq!(lab.data_blocks(), 0);
    lab.check();
}

#[test]
fn what_snapshots_hold_counts_in_quotas() {
    let lab = Lab::new();
    let owner = &well_known::BUILTIN_USERS;
    let sd = arden_wire::dtyp::SecurityDescriptor::with_dacl(owner, owner, arden_wire::dtyp::Acl::new(vec![]));
    let f = lab.make("f", &[1; 10 * BLOCK]);
    f.set_security(None, &sd).unwrap();
    let limit = 45 * BLOCK as u64;
    lab.volume.set_user_quota(owner, limit, limit).unwrap();
    let used = || lab.volume.user_quota(owner).unwrap().unwrap().used_bytes / BLOCK as u64;
    assert_eq!(used(), 10);
    f.create_stream_snapshot(None, "one").unwrap();
    let s = f.create_stream(None, "s").unwrap();
    write(&s, 0, &[2; 3 * BLOCK]);
    s.create_stream_snapshot(None, "one").unwrap();
    f.create_stream_snapshot(None, "two").unwrap();
    assert_eq!(used(), 30 + 6);
    assert_eq!(f.create_stream_snapshot(None, "three").unwrap_err(), StoreError::QuotaExceeded);
    assert_eq!((names(&f), used()), (vec!["one".to_owned(), "two".to_owned()], 36), "nothing is left of it");
    lab.check();
    s.unlink(None).unwrap();
    assert_eq!(used(), 30);
    f.revert_stream(None, "one").unwrap();
    assert_eq!(used(), 10);
    f.create_stream_snapshot(None, "one").unwrap();
    // To another owner, with all that it holds.
    let other = &well_known::AUTHENTICATED_USERS;
    f.set_security(
        None,
        &arden_wire::dtyp::SecurityDescriptor::with_dacl(other, other, arden_wire::dtyp::Acl::new(vec![])),
    )
    .unwrap();
    assert_eq!((used(), lab.volume.user_quota(other).unwrap().unwrap().used_bytes), (0, 20 * BLOCK as u64));
    lab.check();
}

/// The bit is set with the first snapshot and stays: programs that do not know of them keep away.
#[test]
fn a_volume_says_that_it_has_them() {
    let lab = Lab::new();
    let f = lab.make("f", b"data");
    let features = |lab: &Lab| Superblock::read(&*lab.device).unwrap().features & 256;
    assert_eq!(features(&lab), 0);
    f.create_stream_snapshot(None, "s").unwrap();
    assert_eq!(features(&lab), 256);
    f.revert_stream(None, "s").unwrap();
    assert_eq!(features(&lab.again(true)), 256);
}

#[test]
fn a_snapshot_of_the_volume_has_them_too() {
    let lab = Lab::new();
    let f = lab.make("f", &[1; 9000]);
    f.create_stream_snapshot(None, "s").unwrap();
    write(&f, 0, &[2; BLOCK]);
    let time = lab.volume.create_snapshot(FileTime(20_000_000_000), "").unwrap().time;
    f.revert_stream(None, "s").unwrap();
    f.unlink(None).unwrap();
    drop(f);
    lab.volume.checkpoint().unwrap();
    let past = lab.store.snapshot(time).unwrap();
    let Ok(Lookup::Found(then)) = past.lookup(&NtPath::parse("f").unwrap()) else { panic!("not there") };
    assert_eq!((names(&then), held(&then, "s")), (vec!["s".to_owned()], vec![1; 9000]));
    assert_eq!(deltas(&then, "s"), [('P', 0, 1)]);
    assert_eq!(then.create_stream_snapshot(None, "t").unwrap_err(), StoreError::ReadOnly);
    assert_eq!(then.revert_stream(None, "s").unwrap_err(), StoreError::ReadOnly);
    lab.check();
    assert!(lab.volume.delete_snapshot(time).unwrap());
    assert_eq!(lab.data_blocks(), 0);
    lab.check();
}

/// A stream of the same length has been overwritten, however it came to that.
#[test]
fn the_change_journal_tells_of_reverting() {
    let lab = Lab::new();
    let f = lab.make("f", &[1; 9000]);
    let s = f.create_stream(None, "s").unwrap();
    write(&s, 0, &[1; 9000]);
    for node in [&f, &s] {
        node.create_stream_snapshot(None, "before").unwrap();
        write(node, 0, &[2; 10]);
    }
    lab.volume.create_journal(0, 0).unwrap();
    let from = lab.volume.journal_info().unwrap().next;
    let journal = lab.store.change_journal().unwrap();
    let told = |from: u64| {
        let mut all = 0;
        journal
            .read(from, &mut |r| {
                all |= r.reason;
                true
            })
            .unwrap();
        all & !reason::CLOSE
    };
    f.create_stream_snapshot(None, "after").unwrap();
    assert_eq!(told(from), 0);
    f.revert_stream(None, "before").unwrap();
    assert_eq!(told(from), reason::DATA_OVERWRITE);
    s.revert_stream(None, "before").unwrap();
    assert_eq!(told(from), reason::DATA_OVERWRITE | reason::DATA_OVERWRITE << 4);
}
