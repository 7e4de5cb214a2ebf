//! Files of very many small extents that share their blocks, on a volume with a small journal: what takes such a file away or
//! changes it neither fails nor stops the volume, and what a crash leaves on the way lies between the two states.

use std::sync::Arc;

use arden_block::rng::Rng;
use arden_store::{
    error::NotDone,
    scope::RequestScope,
    store::{FileStore, Node, NodeRef, Replace, Wait},
};
use arden_volume::{Durability, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

use crate::{
    device::CrashDevice,
    large::{BLOCK, file_named, goes_on, volume},
    model::read_all,
};

/// To take so many away, the journal of a volume of 16 MiB has no room, nor for the half of it.
const MANY: u64 = 60_000;

/// A file of so many extents of one block, which are all the same: others may have it, too.
fn many(node: &dyn Node, vol: &Volume, extents: u64) {
    node.set_sparse(None, true).unwrap();
    node.write_at(None, 0, &[7; BLOCK], Wait::Yes).unwrap();
    let mut done = 1;
    while done < extents {
        let more = done.min(extents - done);
        node.clone_from(None, node, 0, done * BLOCK as u64, more * BLOCK as u64).unwrap();
        done += more;
    }
    vol.checkpoint().unwrap();
}

fn with_many(extents: u64) -> (Arc<CrashDevice>, Arc<Volume>, NodeRef) {
    let (device, vol) = volume(16);
    let node = file_named(&vol, "f");
    many(&*node, &vol, extents);
    vol.create_snapshot(FileTime(1), "").unwrap();
    (device, vol, node)
}

#[test]
fn cutting_off_more_than_the_journal_holds_goes_on_behind_checkpoints() {
    let (device, vol, node) = with_many(MANY);
    node.set_end_of_file(None, 5000).unwrap();
    assert_eq!(read_all(&node), [7; 5000]);
    assert_eq!(node.stat().unwrap().allocation, 2 * BLOCK as u64);
    drop(node);
    goes_on(&device, vol);
}

#[test]
fn so_does_a_hole_of_that_size() {
    let (device, vol, node) = with_many(MANY);
    node.zero_range(None, 5000, u64::MAX).unwrap();
    assert_eq!(node.allocated_ranges(0, u64::MAX, 9).unwrap(), [(0, 2 * BLOCK as u64)]);
    assert_eq!(node.stat().unwrap().end_of_file, MANY * BLOCK as u64);
    drop(node);
    goes_on(&device, vol);
}

#[test]
fn and_all_that_makes_way_for_something_else() {
    let (device, vol, node) = with_many(MANY);
    let root = VolumeStore::new(vol.clone(), Durability::Plain).root();
    let free = vol.room().1;
    // Superseded, replaced, reserved shorter, deleted.
    node.set_end_of_file(None, 0).unwrap();
    let other = file_named(&vol, "g");
    many(&*other, &vol, MANY);
    node.rename_replacing(None, &*root, "g", Replace::Anything).unwrap();
    drop(other);
    many(&*node, &vol, MANY);
    node.set_allocation(None, BLOCK as u64).unwrap();
    assert_eq!(read_all(&node), [7; BLOCK]);
    many(&*node, &vol, MANY);
    node.unlink(None).unwrap();
    drop((node, root));
    for _ in 0..9 {
        file_named(&vol, "h");
        vol.checkpoint().unwrap();
    }
    let now = vol.room().1;
    assert!(now + (1 << 20) > free, "{now} of {free} bytes are free");
    goes_on(&device, vol);
}

/// Who changes something next is not kept for all that somebody else has deleted.
#[test]
fn who_must_not_wait_takes_a_part_of_it_away() {
    const SOME: u64 = 20_000;
    let (device, vol) = volume(64);
    let store = VolumeStore::new(vol.clone(), Durability::Plain);
    let delete = |extents| {
        let node = file_named(&vol, "f");
        many(&*node, &vol, extents);
        node.unlink(None).unwrap();
    };
    let free = store.space().unwrap().free_bytes;
    delete(SOME);
    {
        let _scope = RequestScope::begin_without_waiting();
        let mut changes = 0;
        while let Err(e) = store.space() {
            assert_eq!((e, changes < 200), (NotDone::WouldBlock, true));
            file_named(&vol, "g").set_end_of_file(None, changes).unwrap();
            changes += 1;
        }
        assert!(changes > 60, "{changes}");
    }
    delete(SOME);
    file_named(&vol, "g").set_end_of_file(None, 1).unwrap();
    {
        let _scope = RequestScope::begin_without_waiting();
        assert!(store.space().is_ok(), "others do it at once");
    }
    assert!(store.space().unwrap().free_bytes + (1 << 20) > free);
    goes_on(&device, vol);
}

#[test]
fn and_what_is_written_or_cloned_over_it() {
    const SOME: u64 = 20_000;
    let (device, vol, node) = with_many(SOME);
    let data: Vec<u8> = (0..8 << 20).map(|i| (i / BLOCK) as u8 | 1).collect();
    node.write_at(None, 3 * BLOCK as u64 + 5, &data, Wait::Yes).unwrap();
    let mut found = vec![0; data.len()];
    node.read_at(3 * BLOCK as u64 + 5, &mut found, Wait::Yes).unwrap();
    assert!(found == data);
    let other = file_named(&vol, "g");
    many(&*other, &vol, SOME);
    Node::clone_from(&*node, None, &*other, 0, 0, SOME * BLOCK as u64).unwrap();
    node.read_at(3 * BLOCK as u64 + 5, &mut found, Wait::Yes).unwrap();
    assert!(found == vec![7; data.len()]);
    drop((node, other));
    goes_on(&device, vol);
}

/// Each block of a large extent has users of its own, some others are held by a snapshot alone, and what is written later lies
/// between them: what a record has for a block is the most that it can be. Assertions hold it against the estimate.
#[test]
fn extents_whose_blocks_are_shared_one_by_one_are_taken_away() {
    const BLOCKS: u64 = 768;
    let at = |block: u64| block * BLOCK as u64;
    for way in 0..6 {
        let (device, vol) = volume(16);
        let (node, copy) = (file_named(&vol, "f"), file_named(&vol, "g"));
        [&node, &copy].into_iter().for_each(|node| node.set_sparse(None, true).unwrap());
        node.write_at(None, 0, &vec![7; BLOCKS as usize * BLOCK], Wait::Yes).unwrap();
        vol.create_snapshot(FileTime(1), "").unwrap();
        for block in 0..BLOCKS {
            match block % 7 {
                0 => node.write_at(None, at(block), &[8; BLOCK], Wait::Yes).unwrap(),
                1 | 3 => Node::clone_from(&*copy, None, &*node, at(block), at(block), BLOCK as u64).unwrap(),
                4 => Node::clone_from(&*copy, None, &*node, at(block), at(block), 3 * BLOCK as u64).unwrap_or(()),
                _ => {}
            }
        }
        Node::clone_from(&*copy, None, &*node, at(100), at(BLOCKS), at(50)).unwrap();
        let held = read_all(&copy);
        match way {
            0 => node.set_end_of_file(None, at(300) + 5).unwrap(),
            1 => node.zero_range(None, 5, at(BLOCKS) - 10).unwrap(),
            2 => node.write_at(None, 5, &vec![9; BLOCKS as usize * BLOCK], Wait::Yes).unwrap(),
            3 => node.unlink(None).unwrap(),
            4 => node.set_end_of_file(None, 0).unwrap(),
            _ => {
                file_named(&vol, "h").write_at(None, 0, &vec![9; BLOCKS as usize * BLOCK], Wait::Yes).unwrap();
                Node::clone_from(&*node, None, &*file_named(&vol, "h"), 0, 0, at(BLOCKS)).unwrap();
            }
        }
        assert!(read_all(&copy) == held);
        drop((node, copy));
        goes_on(&device, vol);
    }
}

#[test]
fn a_crash_on_the_way_leaves_what_lies_between() {
    const PIECES: u64 = 6000;
    let little = VolumeOptions { overlay_bytes_max: 64 << 10, background: false, ..VolumeOptions::default() };
    let device = Arc::new(CrashDevice::new(vec![0; 16 << 20], None));
    Volume::format(&*device, "pieces", 11, FileTime(1)).unwrap();
    let vol = Volume::open(device.clone(), little.clone()).unwrap();
    let node = file_named(&vol, "f");
    many(&*node, &vol, PIECES);
    vol.close().unwrap();
    drop((node, vol));
    let mut rng = Rng::new(5);
    let media = device.crash(&mut rng);
    let whole = PIECES * BLOCK as u64;
    for zeroed in [false, true] {
        let mut states = std::collections::BTreeSet::new();
        for left in (0..).step_by(4) {
            let device = Arc::new(CrashDevice::new(media.clone(), None));
            let vol = Volume::open(device.clone(), little.clone()).unwrap();
            let node = file_named(&vol, "f");
            device.die_after(Some(left));
            let done = match zeroed {
                true => node.zero_range(None, 5000, u64::MAX),
                false => node.set_end_of_file(None, 5000),
            };
            drop((node, vol));
            let device = Arc::new(CrashDevice::new(device.crash(&mut rng), None));
            let vol = Volume::open(device, little.clone()).unwrap();
            let node = file_named(&vol, "f");
            let (end, ranges) = (node.stat().unwrap().end_of_file, node.allocated_ranges(0, u64::MAX, 9).unwrap());
            if zeroed {
                assert_eq!(end, whole);
                let lost: u64 = whole - ranges.iter().map(|(_, len)| len).sum::<u64>();
                // From the beginning on.
                let behind = (lost > 0 && lost + 2 * BLOCK as u64 != whole).then_some((lost + 2 * BLOCK as u64, whole));
                assert!(behind.is_none_or(|(from, to)| ranges.last() == Some(&(from, to - from))), "{ranges:?}");
                states.insert(lost);
            } else {
                assert!((5000..=whole).contains(&end));
                assert_eq!(ranges, [(0, end)]);
                states.insert(end);
            }
            let report = vol.check(false).unwrap();
            assert!(report.is_clean() && report.unaccounted_blocks == 0, "{:?}", report.errors);
            if done.is_ok() {
                break;
            }
        }
        assert!(states.len() > 2, "{states:?}");
    }
}
