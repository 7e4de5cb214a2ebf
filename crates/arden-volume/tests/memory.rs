//! A volume's memory is bounded by what its options say, whatever it is asked to do: more files, more data and more names
//! than its caches hold, all at once. The peak of the process counts, which is what an administrator sees.
//! `ARDEN_VOLUME_MEMORY_ROUNDS=40 cargo test --release -p arden-volume --test memory -- --nocapture` is the long form.

use std::{path::PathBuf, sync::Arc, time::Duration};

use arden_block::rng::Rng;
use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NewFile, NodeRef, Wait},
};
use arden_volume::{BlockCache, Durability, FileDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, access::ATTR_ARCHIVE};

const MIB: u64 = 1 << 20;
const NODES_BYTES: u64 = 4 * MIB;
const BLOCKS_BYTES: u64 = 4 * MIB;
const OVERLAY_BYTES: u64 = 2 * MIB;
/// Beside the caches: changes that wait for a checkpoint (at most twice the overlay, and as much again that one is
/// writing), what waits for the journal and is being written there (an overlay's worth each), 8 MiB of new nodes, buffers
/// of I/O, the map of a device of this size, and what the allocator keeps.
const FIXED_BYTES: u64 = 40 * MIB;

/// Large enough for the longest journal.
const DEVICE_BYTES: u64 = 4 << 30;
const BIG_BYTES: u64 = 96 * MIB;

struct Image(PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The most that was resident since the process began, or since `forget_peak`.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

struct Load {
    volume: Arc<Volume>,
    store: Arc<dyn FileStore>,
    rng: Rng,
    big: NodeRef,
    buf: Vec<u8>,
    second: u64,
}

impl Load {
    fn new_file(directory: bool) -> NewFile<'static> {
        NewFile { directory, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None }
    }

    /// Many small files, every other one of which goes again.
    fn files(&mut self, round: u64, files: u64) {
        let folder = self.store.root().create_child(None, &format!("folder {round}"), &Load::new_file(true)).unwrap();
        for i in 0..files {
            let file =
                folder.create_child(None, &format!("a file of some name {i:06}.txt"), &Load::new_file(false)).unwrap();
            let len = 1 + self.rng.below(6000) as usize;
            file.write_at(None, 0, &self.buf[..len], Wait::Yes).unwrap();
            if i % 2 == 1 {
                file.unlink(None).unwrap();
            }
        }
        let mut cursor = folder.list().unwrap();
        let mut listed = 0;
        while cursor.peek(&|_| true).unwrap().is_some() {
            cursor.advance();
            listed += 1;
        }
        assert_eq!(listed, files / 2);
        for _ in 0..files / 10 {
            let (r, i) = (self.rng.below(round + 1), self.rng.below(files / 2) * 2);
            let path = NtPath::parse(&format!("folder {r}\\a file of some name {i:06}.txt")).unwrap();
            let Lookup::Found(found) = self.store.lookup(&path).unwrap() else { panic!("file {i} of {r}") };
            assert!(found.read_at(0, &mut self.buf[..6000], Wait::Yes).unwrap() > 0);
        }
    }

    /// 4 KiB here and there, and everything from one end to the other.
    fn data(&mut self, random: u64) {
        for _ in 0..random {
            let at = self.rng.below(BIG_BYTES / 4096) * 4096;
            self.big.write_at(None, at, &self.buf[..4096], Wait::Yes).unwrap();
            let at = self.rng.below(BIG_BYTES / 4096) * 4096;
            self.big.read_at(at, &mut self.buf[..4096], Wait::Yes).unwrap();
        }
        for at in (0..BIG_BYTES / 2).step_by(1 << 20) {
            self.big.write_at(None, at, &self.buf, Wait::Yes).unwrap();
        }
        for at in (0..BIG_BYTES).step_by(1 << 20) {
            assert_eq!(self.big.read_at(at, &mut self.buf, Wait::Yes).unwrap(), 1 << 20);
        }
    }

    /// The same blocks again and again: few changes in memory, many in the journal.
    fn overwriting(&mut self, writes: u64) {
        for i in 0..writes {
            self.buf[..8].copy_from_slice(&i.to_le_bytes());
            self.big.write_at(None, i % 16 * 4096, &self.buf[..4096], Wait::Yes).unwrap();
        }
    }

    fn snapshots(&mut self, round: u64) {
        self.second += 1;
        self.volume.create_snapshot(FileTime(self.second * 10_000_000), "load").unwrap();
        let kept = self.volume.snapshots().unwrap();
        if let Some(oldest) = kept.first().filter(|_| round >= 2) {
            assert!(self.volume.delete_snapshot(oldest.time).unwrap());
        }
    }
}

#[test]
fn the_caches_bound_a_volumes_memory() {
    let asked = std::env::var("ARDEN_VOLUME_MEMORY_ROUNDS").ok().and_then(|n| n.parse().ok());
    let rounds: u64 = asked.unwrap_or(4);
    let image = Image(std::env::temp_dir().join(format!("arden-memory-{}", std::process::id())));
    let device = FileDevice::create(&image.0, DEVICE_BYTES).unwrap();
    Volume::format(&device, "memory", 7 << 64 | 9, FileTime(1)).unwrap();
    let before = peak_bytes();
    let options = VolumeOptions {
        cache_bytes: NODES_BYTES as usize,
        blocks: Some(BlockCache::new(BLOCKS_BYTES)),
        overlay_bytes_max: OVERLAY_BYTES as usize,
        commit_interval: Duration::from_secs(600),
        ..VolumeOptions::default()
    };
    let volume = Volume::open(Arc::new(device), options).unwrap();
    let store: Arc<dyn FileStore> = VolumeStore::new(volume.clone(), Durability::Plain);
    let big = store.root().create_child(None, "big", &Load::new_file(false)).unwrap();
    big.set_end_of_file(None, BIG_BYTES).unwrap();
    let mut load = Load { volume, store, rng: Rng::new(1), big, buf: vec![7; 1 << 20], second: 1 };
    for round in 0..rounds {
        load.files(round, 1500);
        load.data(1500);
        load.overwriting(15_000 / rounds);
        load.snapshots(round);
        println!("round {round}: {} KiB more", (peak_bytes() - before) >> 10);
    }
    let more = peak_bytes() - before;
    let bound = NODES_BYTES + BLOCKS_BYTES + FIXED_BYTES;
    println!("{rounds} rounds: {} MiB at the peak, {} MiB allowed", more >> 20, bound >> 20);
    assert!(more < bound, "{more} bytes at the peak, {bound} allowed");
    let Load { volume, store, big, .. } = load;
    drop((store, big));
    volume.close().unwrap();
}
