//! One copy of the data of a volume on a mirror is read after the other, as a repair tool does: what each disk holds is told
//! apart, and what cannot be read or passes no check is an error that another copy does not hide.

use std::{rc::Rc, sync::Arc};

use crate::under::OnSpace;
use arden_block::{BlockDevice, Rt, sim::SimDisk};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision};
use arden_store::{
    error::StoreError,
    store::{FileStore, Integrity, NewFile, NodeRef, Result, Wait},
};
use arden_volume::{Durability, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, access::ATTR_ARCHIVE};

const BLOCK: usize = 4096;
const FILE_BLOCKS: usize = 40;

struct Lab {
    rt: Rt,
    pool: Pool,
    disks: Vec<SimDisk>,
    store: Arc<VolumeStore>,
    volume: Arc<Volume>,
    file: NodeRef,
}

impl Drop for Lab {
    fn drop(&mut self) {
        OnSpace::end();
    }
}

/// Blocks of the file, each of which holds its number.
fn content() -> Vec<u8> {
    (0..FILE_BLOCKS).flat_map(|n| [100 + n as u8; BLOCK]).collect()
}

impl Lab {
    fn new(layout: Layout) -> Lab {
        let rt = Rt::virtual_clock(1);
        let disks: Vec<SimDisk> =
            (0..layout.disks_min()).map(|i| SimDisk::new(&format!("d{i}"), 24 << 20, i as u64)).collect();
        let devices: Vec<Rc<dyn BlockDevice>> = disks.iter().map(|d| d.attach(&rt)).collect();
        let options =
            CreateOptions { slab_bytes: Some(256 << 10), config: PoolConfig { tick_ms: 5, ..PoolConfig::default() } };
        let rt2 = rt.clone();
        let made = rt.block_on(async move {
            let pool = Pool::create(&rt2, "p", devices, Vec::new(), options).await.unwrap();
            let space = pool.create_space("s", layout, None, 16 << 10, 8 << 20, Provision::Thin).await.unwrap();
            (pool, space)
        });
        let (pool, space) = made.unwrap();
        let device = OnSpace::begin(&rt, space, 0).unwrap();
        Volume::format(&device, "copies", 7 << 64 | 9, FileTime(1)).unwrap();
        let options = VolumeOptions { cache_bytes: 0, blocks: None, background: false, ..VolumeOptions::default() };
        let volume = Volume::open(Arc::new(device), options).unwrap();
        let store = VolumeStore::new(volume.clone(), Durability::Plain);
        let new = NewFile { directory: false, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None };
        let file = store.root().create_child(None, "file", &new).unwrap();
        file.write_at(None, 0, &content(), Wait::Yes).unwrap();
        volume.checkpoint().unwrap();
        // What gathers in memory goes to the disks.
        rt.run_until_ns(rt.now_ns() + 5_000_000_000);
        Lab { rt, pool, disks, store, volume, file }
    }

    /// Changes what a disk holds of a block of the file.
    fn damage(&self, disk: usize, block: usize) {
        let byte = 100 + block as u8;
        let whole = |at: &u64| self.disks[disk].peek(*at, BLOCK).iter().all(|b| *b == byte);
        let at = (0..self.disks[disk].info().size_bytes).step_by(BLOCK).find(whole).expect("the block");
        self.disks[disk].rot(at);
    }

    fn read(&self, copy: u32) -> Result<Vec<u8>> {
        let mut out = vec![0; FILE_BLOCKS * BLOCK];
        let n = self.file.read_copy_at(copy, 0, &mut out)?;
        out.truncate(n);
        Ok(out)
    }
}

const DAMAGED: Result<Vec<u8>> = Err(arden_store::error::NotDone::Failed(StoreError::DataError));

#[test]
fn damage_of_one_copy_is_seen_in_that_copy_only() {
    let lab = Lab::new(Layout::Mirror2);
    assert_eq!(lab.store.data_copies(), 2);
    for copy in 0..2 {
        assert!(lab.read(copy).unwrap() == content());
    }
    assert_eq!(lab.read(2), DAMAGED, "there is no third");
    lab.damage(0, 7);
    let readable: Vec<bool> = (0..2).map(|copy| lab.read(copy).is_ok()).collect();
    assert_eq!(readable.iter().filter(|r| **r).count(), 1, "{readable:?}");
    let bad = readable.iter().position(|r| !r).unwrap() as u32;
    assert_eq!(lab.read(bad), DAMAGED);
    // Who does not enforce integrity sees what there is, and where it differs.
    lab.file.set_integrity(None, Integrity::Unenforced).unwrap();
    let seen = lab.read(bad).unwrap();
    let differ: Vec<usize> =
        (0..FILE_BLOCKS).filter(|b| seen[b * BLOCK..][..BLOCK] != content()[b * BLOCK..][..BLOCK]).collect();
    assert_eq!(differ, [7]);
    assert!(lab.read(1 - bad).unwrap() == content());
    // Nothing was healed by looking, and nobody else notices: reads of any copy are right, and a scrub heals.
    lab.file.set_integrity(None, Integrity::On).unwrap();
    assert_eq!(lab.read(bad), DAMAGED);
    let mut out = vec![0; FILE_BLOCKS * BLOCK];
    lab.file.read_at(0, &mut out, Wait::Yes).unwrap();
    assert!(out == content());
    lab.volume.scrub(&arden_volume::ScrubSettings::default()).unwrap();
    assert!(lab.read(bad).unwrap() == content());
}

#[test]
fn a_copy_that_is_away_or_out_of_date_is_not_read() {
    let lab = Lab::new(Layout::Mirror2);
    lab.disks[0].kill();
    let pool = lab.pool.clone();
    lab.rt.block_on(async move { pool.report_failure(0).await.unwrap() }).unwrap();
    let here: Vec<bool> = (0..2).map(|copy| lab.read(copy).is_ok_and(|c| c == content())).collect();
    assert_eq!(here.iter().filter(|h| **h).count(), 1, "{here:?}");
    // What is not on the device yet is the same whichever copy is asked for.
    let rewritten = [1u8; BLOCK];
    lab.file.write_at(None, 0, &rewritten, Wait::Yes).unwrap();
    let there = here.iter().position(|h| *h).unwrap() as u32;
    assert!(lab.read(there).unwrap()[..BLOCK] == rewritten);
}

#[test]
fn a_space_without_copies_has_one() {
    let lab = Lab::new(Layout::Parity);
    assert_eq!(lab.store.data_copies(), 1);
    assert_eq!(lab.read(0), DAMAGED);
}
