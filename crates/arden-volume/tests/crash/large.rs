//! Operations that are larger than one record of the journal may be: one operation wherever it can be, and where it
//! cannot, what a crash leaves lies between the two states.

use std::sync::Arc;

use arden_block::rng::Rng;
use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NewFile, Node, NodeRef, Wait},
};
use arden_volume::{Durability, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

use crate::{device::CrashDevice, model::read_all};

const BLOCK: usize = 4096;

fn options() -> VolumeOptions {
    VolumeOptions { background: false, ..VolumeOptions::default() }
}

fn volume(size_mb: usize) -> (Arc<CrashDevice>, Arc<Volume>) {
    let device = Arc::new(CrashDevice::new(vec![0; size_mb << 20], None));
    Volume::format(&*device, "large", 11, FileTime(1)).unwrap();
    let vol = Volume::open(device.clone(), options()).unwrap();
    (device, vol)
}

fn file(vol: &Arc<Volume>) -> NodeRef {
    let store = VolumeStore::new(vol.clone(), Durability::WriteThrough);
    match store.lookup(&NtPath::parse("f").unwrap()).unwrap() {
        Lookup::Found(node) => node,
        Lookup::Missing { parent, .. } => {
            let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
            parent.create_child(None, "f", &new).unwrap()
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
