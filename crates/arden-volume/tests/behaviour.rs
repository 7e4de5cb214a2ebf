//! What every `FileStore` has to do, over volumes: on memory, on a file, durable at every step, and with so little
//! memory that each case makes checkpoints.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use arden_block::Device;
use arden_store::store::FileStore;
use arden_testkit::all_cases;
use arden_volume::{BlockCache, Durability, FileDevice, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

fn make(device: Arc<dyn Device>, options: VolumeOptions, durability: Durability) -> Arc<dyn FileStore> {
    Volume::format(&*device, "test", 0x1234_5678, FileTime(132_000_000_000_000_000)).unwrap();
    VolumeStore::new(Volume::open(device, options).unwrap(), durability)
}

fn in_memory() -> ((), Arc<dyn FileStore>) {
    ((), make(Arc::new(MemDevice::new(64 << 20)), VolumeOptions::default(), Durability::Plain))
}

fn small() -> ((), Arc<dyn FileStore>) {
    let options = VolumeOptions {
        cache_bytes: 1 << 20,
        blocks: Some(BlockCache::new(1 << 20)),
        overlay_bytes_max: 30_000,
        background: false,
        ..VolumeOptions::default()
    };
    ((), make(Arc::new(MemDevice::new(32 << 20)), options, Durability::Plain))
}

struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn durable() -> (TempFile, Arc<dyn FileStore>) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("arden-volume-{}-{n}", std::process::id()));
    let device = FileDevice::create(&path, 256 << 20).unwrap();
    (TempFile(path), make(Arc::new(device), VolumeOptions::default(), Durability::WriteThrough))
}

all_cases!(volume_in_memory: crate::in_memory);
all_cases!(volume_with_little_memory: crate::small);
all_cases!(volume_on_a_file: crate::durable);
