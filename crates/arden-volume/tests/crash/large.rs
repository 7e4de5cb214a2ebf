//! Operations that are larger than one record of the journal may be: one operation wherever it can be, and where it
//! cannot, what a crash leaves lies between the two states.

use std::sync::Arc;

use arden_block::rng::Rng;
use arden_store::{
    error::StoreError,
    name::NtPath,
    store::{FileStore, Lookup, NewFile, Node, NodeRef, Wait},
};
use arden_volume::{Durability, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, dtyp::well_known};

use crate::{device::CrashDevice, model::read_all};

pub const BLOCK: usize = 4096;

fn options() -> VolumeOptions {
    VolumeOptions { background: false, ..VolumeOptions::default() }
}

pub fn volume(size_mb: usize) -> (Arc<CrashDevice>, Arc<Volume>) {
    let device = Arc::new(CrashDevice::new(vec![0; size_mb << 20], None));
    Volume::format(&*device, "large", 11, FileTime(1)).unwrap();
    let vol = Volume::open(device.clone(), options()).unwrap();
    (device, vol)
}

fn file(vol: &Arc<Volume>) -> NodeRef {
    file_named(vol, "f")
}

pub fn file_named(vol: &Arc<Volume>, name: &str) -> NodeRef {
    let store = VolumeStore::new(vol.clone(), Durability::WriteThrough);
    match store.lookup(&NtPath::parse(name).unwrap()).unwrap() {
        Lookup::Found(node) => node,
        Lookup::Missing { parent, .. } => {
            let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
            parent.create_child(None, name, &new).unwrap()
        }
        Lookup::Symlink { .. } => panic!("a link"),
    }
}

/// A file whose every second block is an extent of its own; what it holds.
fn in_pieces(node: &dyn Node, vol: &Volume, pieces: usize) -> Vec<u8> {
    node.set_sparse(None, true).unwrap();
    let mut content = vec![0; pieces * 2 * BLOCK];
    for i in 0..pieces {
        let block = vec![i as u8 | 1; BLOCK];
        node.write_at(None, (i * 2 * BLOCK) as u64, &block, Wait::Yes).unwrap();
        content[i * 2 * BLOCK..][..BLOCK].copy_from_slice(&block);
    }
    content.truncate((pieces * 2 - 1) * BLOCK);
    vol.close().unwrap();
    content
}

#[test]
fn many_pieces_and_large_writes_are_one_operation_where_the_journal_has_room() {
    let (_, vol) = volume(64);
    let node = file(&vol);
    in_pieces(&*node, &vol, 3000);
    let before = vol.progress().0;
    node.set_end_of_file(None, 5000).unwrap();
    assert_eq!(vol.progress().0, before + 1);
    node.write_at(None, 0, &vec![5; 24 << 20], Wait::Yes).unwrap();
    assert_eq!(vol.progress().0, before + 2);
    assert!(vol.check(true).unwrap().is_clean());
}

#[test]
fn cutting_off_more_pieces_than_that_stops_at_a_length_in_between() {
    let (device, vol) = volume(16);
    let node = file(&vol);
    let content = in_pieces(&*node, &vol, 2000);
    drop((node, vol));
    let mut rng = Rng::new(5);
    let media = device.crash(&mut rng);
    let mut lengths = std::collections::BTreeSet::new();
    for left in 0..16 {
        let device = Arc::new(CrashDevice::new(media.clone(), None));
        let vol = Volume::open(device.clone(), options()).unwrap();
        let node = file(&vol);
        device.die_after(Some(left));
        let _ = node.set_end_of_file(None, 5000);
        drop((node, vol));
        let device = Arc::new(CrashDevice::new(device.crash(&mut rng), None));
        let vol = Volume::open(device, options()).unwrap();
        let left_over = read_all(&file(&vol));
        assert!((5000..=content.len()).contains(&left_over.len()));
        assert!(left_over == content[..left_over.len()], "cut at {}", left_over.len());
        let report = vol.check(true).unwrap();
        assert!(report.is_clean() && report.unaccounted_blocks == 0, "{:?}", report.errors);
        lengths.insert(left_over.len());
    }
    assert!(lengths.contains(&content.len()) && lengths.contains(&5000), "{lengths:?}");
}

/// A file that takes more memory and journal to be taken away than there is: it goes in steps with checkpoints between them.
#[test]
fn a_deleted_file_of_many_pieces_goes_in_steps() {
    const PIECES: usize = 12_000;
    const OVERLAY: usize = 64 << 10;
    let little = VolumeOptions { overlay_bytes_max: OVERLAY, ..options() };
    let device = Arc::new(CrashDevice::new(vec![0; 128 << 20], None));
    Volume::format(&*device, "large", 11, FileTime(1)).unwrap();
    let vol = Volume::open(device.clone(), little.clone()).unwrap();
    let node = file(&vol);
    let before = vol.room().1;
    in_pieces(&*node, &vol, PIECES);
    drop((node, vol));
    let vol = Volume::open(device.clone(), little.clone()).unwrap();
    let node = file(&vol);
    node.unlink(None).unwrap();
    drop(node);
    // Whoever changes something next does a part of it.
    let node = file(&vol);
    let most = vol.memory().1;
    assert!(most < 16 * OVERLAY as u64, "{most} bytes of changes");
    vol.sync().unwrap();
    assert!(vol.room().1 < before - (PIECES / 2 * BLOCK) as u64, "not all of it at once");
    // A crash leaves the rest, which the next opening takes away.
    let media = device.crash(&mut Rng::new(5));
    drop((node, vol));
    let device = Arc::new(CrashDevice::new(media, None));
    let vol = Volume::open(device, little).unwrap();
    assert!(vol.room().1 + (1 << 20) > before, "{} of {before} bytes are free", vol.room().1);
    let report = vol.check(true).unwrap();
    assert!(report.is_clean() && report.unaccounted_blocks == 0, "{:?}", report.errors);
}

/// How far away a file ends, a client only says.
#[test]
fn holes_beside_many_pieces_are_no_operations() {
    const FAR: u64 = 4 << 30;
    let operations = |vol: &Volume, f: &dyn Fn()| {
        let before = vol.progress().0;
        f();
        vol.progress().0 - before
    };
    let (_, vol) = volume(16);
    let node = file(&vol);
    let content = in_pieces(&*node, &vol, 2000);
    node.set_end_of_file(None, FAR).unwrap();
    let cut = operations(&vol, &|| node.set_end_of_file(None, 5000).unwrap());
    assert!((2..=4).contains(&cut), "{cut} operations to cut off a hole and 2000 pieces");
    assert_eq!(read_all(&node), content[..5000]);
    assert!(vol.check(true).unwrap().is_clean());
    // Zeroing begins at the other end.
    let (_, vol) = volume(16);
    let node = file(&vol);
    node.set_sparse(None, true).unwrap();
    for i in 0..2000 {
        node.write_at(None, FAR + i * 2 * BLOCK as u64, &[1; BLOCK], Wait::Yes).unwrap();
    }
    node.write_at(None, 0, &[1; 2 * BLOCK], Wait::Yes).unwrap();
    vol.close().unwrap();
    let zeroed = operations(&vol, &|| node.zero_range(None, 4096, u64::MAX).unwrap());
    assert!((2..=4).contains(&zeroed), "{zeroed} operations to zero a hole and 2000 pieces");
    assert_eq!(node.allocated_ranges(0, u64::MAX, 10).unwrap(), [(0, 4096)]);
    assert!(vol.check(true).unwrap().is_clean());
}

/// One MiB and the length of the largest extent.
const EXTENT: u64 = 1 << 20;

/// A file of extents of the largest kind, which all share the same blocks: the journal and the tree hold the sums of each.
fn repeated(node: &dyn Node, vol: &Volume, extents: u64) {
    node.set_sparse(None, true).unwrap();
    let data: Vec<u8> = (0..EXTENT).map(|i| (i / BLOCK as u64) as u8 | 1).collect();
    node.write_at(None, 0, &data, Wait::Yes).unwrap();
    let mut done = 1;
    while done < extents {
        // Little enough at once to be possible in any case.
        let more = done.min(extents - done).min(256);
        node.clone_from(None, node, 0, done * EXTENT, more * EXTENT).unwrap();
        vol.checkpoint().unwrap();
        done += more;
    }
}

pub fn goes_on(device: &CrashDevice, vol: Arc<Volume>) {
    vol.sync().unwrap();
    file_named(&vol, "later").write_at(None, 0, b"later", Wait::Yes).unwrap();
    vol.sync().unwrap();
    let report = vol.check(false).unwrap();
    assert!(report.is_clean() && report.unaccounted_blocks == 0, "{:?}", report.errors);
    drop(vol);
    let device = Arc::new(CrashDevice::new(device.crash(&mut Rng::new(5)), None));
    let vol = Volume::open(device, options()).unwrap();
    assert_eq!(read_all(&file_named(&vol, "later")), b"later");
    let report = vol.check(false).unwrap();
    assert!(report.is_clean() && report.unaccounted_blocks == 0, "{:?}", report.errors);
}

/// Its sums alone are more than the journal has room for.
#[test]
fn a_clone_larger_than_the_journal_goes_in_steps() {
    const EXTENTS: u64 = 3072;
    let (device, vol) = volume(64);
    let (node, copy) = (file(&vol), file_named(&vol, "g"));
    repeated(&*node, &vol, EXTENTS);
    copy.set_sparse(None, true).unwrap();
    Node::clone_from(&*copy, None, &*node, 0, 0, EXTENTS * EXTENT).unwrap();
    assert_eq!(copy.stat().unwrap().end_of_file, EXTENTS * EXTENT);
    for at in [0, 1000, EXTENTS - 1] {
        let mut found = vec![0; 2 * BLOCK];
        copy.read_at(at * EXTENT + 7 * BLOCK as u64, &mut found, Wait::Yes).unwrap();
        assert!(found[..BLOCK] == [7; BLOCK] && found[BLOCK..] == [9; BLOCK]);
    }
    assert_eq!(copy.allocated_ranges(0, u64::MAX, 9).unwrap(), [(0, EXTENTS * EXTENT)]);
    drop((node, copy));
    goes_on(&device, vol);
}

/// No record of a small journal holds the sums of as many extents as a step may have, nor what a hole takes away.
#[test]
fn a_clone_on_a_small_volume_fits_its_records() {
    let (device, vol) = volume(16);
    let (node, copy) = (file(&vol), file_named(&vol, "g"));
    repeated(&*node, &vol, 400);
    copy.set_sparse(None, true).unwrap();
    Node::clone_from(&*copy, None, &*node, 0, 0, 400 * EXTENT).unwrap();
    assert_eq!(copy.stat().unwrap().allocation, 400 * EXTENT);
    drop((node, copy));
    goes_on(&device, vol);
}

/// Such things cannot have steps that others see: refused, and all is as before.
#[test]
fn what_has_to_be_one_state_is_refused_where_the_journal_has_no_room_for_it() {
    let (device, vol) = volume(64);
    let node = file(&vol);
    repeated(&*node, &vol, 3072);
    let free = vol.room().1;
    let refused = Err(StoreError::InsufficientResources.into());
    assert_eq!(node.create_stream_snapshot(None, "s"), refused);
    assert_eq!(node.freeze(0, u64::MAX, &well_known::EVERYONE).map(|_| ()), refused);
    // The last try is taken away when somebody changes something.
    file_named(&vol, "later");
    vol.checkpoint().unwrap();
    let now = vol.room().1;
    assert!(now + (16 << 20) > free, "{now} of {free} bytes are free");
    // Of a fourth of it both are possible.
    node.set_end_of_file(None, 768 * EXTENT).unwrap();
    node.create_stream_snapshot(None, "s").unwrap();
    let (frozen, _) = node.freeze(0, u64::MAX, &well_known::EVERYONE).unwrap();
    assert_eq!(frozen.stat().unwrap().allocation, 768 * EXTENT);
    drop((node, frozen));
    vol.room();
    goes_on(&device, vol);
}

#[test]
fn a_crash_in_a_clone_leaves_it_done_up_to_a_step() {
    crash_in_a_clone(|content| vec![0xEE; content]);
}

/// It has no part yet that reads as zeros.
#[test]
fn a_crash_in_a_clone_leaves_a_file_that_becomes_longer_as_long_as_it_is_done() {
    crash_in_a_clone(|_| vec![0xEE; 3 * BLOCK]);
}

/// `old`: what the target holds before.
fn crash_in_a_clone(old: fn(usize) -> Vec<u8>) {
    const PIECES: usize = 1600;
    const OVERLAY: usize = 16 << 10;
    let little = VolumeOptions { overlay_bytes_max: OVERLAY, ..options() };
    let device = Arc::new(CrashDevice::new(vec![0; 40 << 20], None));
    Volume::format(&*device, "large", 11, FileTime(1)).unwrap();
    let vol = Volume::open(device.clone(), little.clone()).unwrap();
    let node = file(&vol);
    let content = in_pieces(&*node, &vol, PIECES);
    let old = old(content.len());
    let copy = file_named(&vol, "g");
    copy.set_sparse(None, true).unwrap();
    copy.write_at(None, 0, &old, Wait::Yes).unwrap();
    vol.close().unwrap();
    drop((node, copy, vol));
    let mut rng = Rng::new(5);
    let media = device.crash(&mut rng);
    let mut steps = std::collections::BTreeSet::new();
    for left in (0..).step_by(3) {
        let device = Arc::new(CrashDevice::new(media.clone(), None));
        let vol = Volume::open(device.clone(), little.clone()).unwrap();
        let (node, copy) = (file(&vol), file_named(&vol, "g"));
        device.die_after(Some(left));
        let done = Node::clone_from(&*copy, None, &*node, 0, 0, content.len() as u64);
        let most = vol.memory().1;
        assert!(most < 10 * OVERLAY as u64, "{most} bytes of changes");
        drop((node, copy, vol));
        let device = Arc::new(CrashDevice::new(device.crash(&mut rng), None));
        let vol = Volume::open(device, options()).unwrap();
        let found = read_all(&file_named(&vol, "g"));
        let cloned = found.chunks(BLOCK).zip(content.chunks(BLOCK)).take_while(|(a, b)| a == b).count() * BLOCK;
        let cloned = cloned.min(content.len());
        assert!(found[cloned..] == old[cloned.min(old.len())..], "cloned up to {cloned} of {}", found.len());
        let report = vol.check(false).unwrap();
        assert!(report.is_clean() && report.unaccounted_blocks == 0, "{:?}", report.errors);
        steps.insert(cloned);
        if done.is_ok() {
            break;
        }
    }
    assert!(steps.len() > 2 && steps.contains(&0) && steps.contains(&content.len()), "{steps:?}");
}
