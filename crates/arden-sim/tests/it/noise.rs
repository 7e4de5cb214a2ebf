//! A volume on parity while disks lie: what they hold of a file is overwritten with noise, as many disks as the layout does
//! without, while the file is read. No wrong byte comes back, a scrub heals, and then other disks may lie.

use std::{
    collections::{BTreeSet, HashSet},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
};

use crate::under::OnSpace;
use arden_block::{BlockDevice, Rt, rng::Rng, sim::SimDisk};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision};
use arden_store::store::{FileStore, NewFile, NodeRef, Wait};
use arden_volume::{Durability, ScrubReport, ScrubSettings, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, access::ATTR_ARCHIVE};

const BLOCK: usize = 4096;
const INTERLEAVE: usize = 16 << 10;
const FILE_BLOCKS: usize = 240;

struct Lab {
    rt: Rt,
    pool: Pool,
    disks: Vec<SimDisk>,
    volume: Arc<Volume>,
    file: NodeRef,
    content: Vec<u8>,
    data_columns: usize,
}

impl Drop for Lab {
    fn drop(&mut self) {
        OnSpace::end();
    }
}

impl Lab {
    /// A file of blocks that are all different, on the disks and nowhere in memory.
    fn new(layout: Layout) -> Lab {
        let rt = Rt::virtual_clock(1);
        let disks: Vec<SimDisk> =
            (0..layout.disks_min()).map(|i| SimDisk::new(&format!("d{i}"), 24 << 20, i as u64)).collect();
        let devices: Vec<Rc<dyn BlockDevice>> = disks.iter().map(|d| d.attach(&rt)).collect();
        let config = PoolConfig { gather_bytes_max: 256 << 10, tick_ms: 5, busy_ms: 0, ..PoolConfig::default() };
        let options = CreateOptions { slab_bytes: Some(256 << 10), config };
        let rt2 = rt.clone();
        let made = rt.block_on(async move {
            let pool = Pool::create(&rt2, "p", devices, Vec::new(), options).await.unwrap();
            let space =
                pool.create_space("s", layout, None, INTERLEAVE as u64, 12 << 20, Provision::Thin).await.unwrap();
            (pool, space)
        });
        let (pool, space) = made.unwrap();
        let device = OnSpace::begin(&rt, space, 0).unwrap();
        Volume::format(&device, "noise", 7 << 64 | 9, FileTime(1)).unwrap();
        let options = VolumeOptions { cache_bytes: 0, blocks: None, background: false, ..VolumeOptions::default() };
        let volume = Volume::open(Arc::new(device), options).unwrap();
        let store = VolumeStore::new(volume.clone(), Durability::Plain);
        let new = NewFile { directory: false, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None };
        let mut rng = Rng::new(7);
        // With neighbours, so that no parity is the same as what it is of.
        let mut written = ["before", "file", "after"].map(|name| {
            let file = store.root().create_child(None, name, &new).unwrap();
            let content: Vec<u8> = (0..FILE_BLOCKS * BLOCK / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
            file.write_at(None, 0, &content, Wait::Yes).unwrap();
            (file, content)
        });
        let (file, content) = (written[1].0.clone(), std::mem::take(&mut written[1].1));
        volume.checkpoint().unwrap();
        // What gathers in memory for whole stripes goes to the disks.
        rt.run_until_ns(rt.now_ns() + 5_000_000_000);
        let data_columns = layout.disks_min() - if layout == Layout::Parity { 1 } else { 2 };
        Lab { rt, pool, disks, volume, file, content, data_columns }
    }

    /// Where a disk has blocks of the file, or their parity.
    fn places(&self, disk: usize) -> Vec<u64> {
        // The first bytes tell: all content is random.
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let first = |block: usize| number(&self.content[block * BLOCK..]);
        let mut blocks: HashSet<u64> = (0..FILE_BLOCKS).map(first).collect();
        let apart = INTERLEAVE / BLOCK;
        for block in 0..FILE_BLOCKS - apart * (self.data_columns - 1) {
            blocks.insert((0..self.data_columns).fold(0, |parity, column| parity ^ first(block + column * apart)));
        }
        let found: Vec<u64> = (0..self.disks[disk].info().size_bytes)
            .step_by(BLOCK)
            .filter(|at| blocks.contains(&number(&self.disks[disk].peek(*at, BLOCK))))
            .collect();
        assert!(found.len() > FILE_BLOCKS / 10, "{} blocks on disk {disk}", found.len());
        found
    }

    /// About half the bytes of a block are other ones, on each disk others: the same on two would be no noise to parity.
    fn overwrite(&self, disk: usize, place: u64) {
        let mut rng = Rng::new(place * 64 + disk as u64);
        self.disks[disk].rot(place);
        (place + 16..place + BLOCK as u64)
            .step_by(16)
            .filter(|_| rng.one_in(2))
            .for_each(|at| self.disks[disk].rot(at));
    }

    fn read(&self, from: usize, len: usize, when: &str) {
        let mut buf = vec![0; len];
        assert_eq!(self.file.read_at(from as u64, &mut buf, Wait::Yes), Ok(len), "{when}");
        assert!(buf == self.content[from..from + len], "{when}: wrong bytes behind {from}");
    }

    /// Reads here, there and everywhere while noise spreads over the disks, and once more when all is noise.
    fn read_in_noise(&self, disks: &[usize]) {
        let mut rng = Rng::new(disks[0] as u64);
        let mut places: Vec<(usize, u64)> = Vec::new();
        disks.iter().for_each(|d| places.extend(self.places(*d).into_iter().map(|p| (*d, p))));
        let when = format!("noise on {disks:?}");
        for some in places.chunks(7) {
            some.iter().for_each(|(disk, place)| self.overwrite(*disk, *place));
            let from = rng.below((FILE_BLOCKS - 40) as u64) as usize * BLOCK;
            self.read(from, 40 * BLOCK, &when);
        }
        self.read(0, self.content.len(), &when);
    }

    /// All that the disks have of the file is noise, and nobody reads it.
    fn drown(&self, disks: &[usize]) -> u64 {
        let places: Vec<(usize, u64)> =
            disks.iter().flat_map(|d| self.places(*d).into_iter().map(|p| (*d, p))).collect();
        places.iter().for_each(|(disk, place)| self.overwrite(*disk, *place));
        places.len() as u64
    }

    fn scrub(&self) -> ScrubReport {
        let settings = ScrubSettings::default();
        let report = self.volume.scrub(&settings).unwrap();
        assert_eq!((report.damaged_blocks, report.damage.as_slice()), (0, [].as_slice()));
        assert_eq!(report.read_bytes, settings.total_bytes.load(Ordering::Relaxed));
        report
    }

    /// By disk, what it returned that was not what was written there.
    fn wrong_blocks(&self) -> Vec<u64> {
        let pool = self.pool.clone();
        let status = self.rt.block_on(async move { pool.status() }).unwrap();
        status.disks.iter().map(|d| d.wrong_blocks).collect()
    }

    /// Data and parity fit.
    fn is_whole(&self) {
        assert_eq!(self.scrub().healed_blocks, 0);
        let pool = self.pool.clone();
        let report = self.rt.block_on(async move { pool.scrub().await.unwrap() }).unwrap();
        assert_eq!((report.healed, report.undecided, report.lost), (0, 0, 0));
    }
}

/// `each`: disks that lie together, one set after the other.
fn heals(layout: Layout, each: &[&[usize]]) {
    let lab = Lab::new(layout);
    lab.is_whole();
    for disks in each {
        let before = lab.wrong_blocks();
        lab.read_in_noise(disks);
        lab.scrub();
        let wrong = lab.wrong_blocks().into_iter().zip(before).enumerate();
        let blamed: Vec<usize> = wrong.filter(|(_, (now, before))| now > before).map(|(disk, _)| disk).collect();
        assert_eq!(blamed, BTreeSet::from_iter(disks.iter().copied()).into_iter().collect::<Vec<_>>());
        lab.is_whole();
        let drowned = lab.drown(disks);
        assert_eq!(lab.scrub().healed_blocks, drowned, "noise on {disks:?}");
        lab.is_whole();
        lab.read(0, lab.content.len(), "healed");
    }
    assert!(lab.volume.check(true).unwrap().is_clean());
}

#[test]
fn one_disk_of_parity_may_lie() {
    heals(Layout::Parity, &[&[0], &[1], &[2]]);
}

#[test]
fn two_disks_of_dual_parity_may_lie() {
    heals(Layout::DualParity, &[&[0, 1], &[2, 3], &[4, 0]]);
}

/// More than the layout does without: the blocks that nothing can tell any more are errors, never other bytes.
#[test]
fn what_cannot_be_told_is_an_error() {
    let lab = Lab::new(Layout::Parity);
    lab.drown(&[0, 1]);
    let mut lost = 0;
    for (i, block) in lab.content.chunks(BLOCK).enumerate() {
        let mut buf = vec![0; BLOCK];
        match lab.file.read_at((i * BLOCK) as u64, &mut buf, Wait::Yes) {
            Ok(n) => assert!(n == BLOCK && buf == block, "block {i}"),
            Err(_) => lost += 1,
        }
    }
    assert!(lost > 0 && lost < FILE_BLOCKS, "{lost} lost");
    let report = lab.volume.scrub(&ScrubSettings::default()).unwrap();
    assert_eq!(report.damaged_blocks, lost as u64);
    assert!(report.damage.iter().all(|d| d.path == "file"));
    // Parity that may be right while its data is not stays as it is.
    let pool = lab.pool.clone();
    assert!(lab.rt.block_on(async move { pool.scrub().await.unwrap() }).unwrap().undecided > 0);
}
