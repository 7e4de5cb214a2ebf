//! A volume in memory, as the tests of its features open it.

use std::sync::Arc;

use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NodeRef},
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

pub struct Lab {
    pub device: Arc<MemDevice>,
    pub volume: Arc<Volume>,
    pub store: Arc<VolumeStore>,
}

impl Lab {
    pub fn on(device: Arc<MemDevice>, options: VolumeOptions) -> Lab {
        let volume = Volume::open(device.clone(), options).unwrap();
        let store = VolumeStore::new(volume.clone(), Durability::Plain);
        Lab { device, volume, store }
    }
}

pub fn formatted() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(32 << 20));
    Volume::format(&*device, "test", 77, FileTime(1)).unwrap();
    device
}

pub fn find(store: &dyn FileStore, path: &str) -> Option<NodeRef> {
    match store.lookup(&NtPath::parse(path).unwrap()) {
        Ok(Lookup::Found(node)) => Some(node),
        _ => None,
    }
}
