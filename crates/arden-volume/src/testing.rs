//! What unit tests of this crate share: a small volume, files on it by their names, and a device that is watched.

use std::sync::Arc;

use arden_block::{Device, IoResult, Thin};
use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NewFile, NodeRef, Result, Wait},
};
use arden_wire::FileTime;

pub use crate::facade::{
    node::own,
    volume::{Volume, VolumeOptions},
};
use crate::{
    disk::device::MemDevice,
    facade::store::{Durability, VolumeStore},
};

/// Memory, and somebody who sees each write before it is done.
pub struct Watched<F> {
    pub memory: Arc<MemDevice>,
    pub before_write: F,
}

impl<F: Fn(u64, &[u8]) + Send + Sync> Device for Watched<F> {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        (self.before_write)(offset, data);
        self.memory.write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        self.memory.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.memory.discard(offset, len)
    }
    fn thin(&self) -> Option<&dyn Thin> {
        self.memory.thin()
    }
}

pub fn options() -> VolumeOptions {
    VolumeOptions { background: false, ..VolumeOptions::default() }
}

pub fn volume_on(device: Arc<dyn Device>) -> Arc<Volume> {
    Volume::open(device, options()).unwrap()
}

/// A new volume in memory.
pub fn volume(size_bytes: usize) -> (Arc<MemDevice>, Arc<Volume>) {
    let device = Arc::new(MemDevice::new(size_bytes));
    Volume::format(&*device, "test", 0x77, FileTime(1)).unwrap();
    let vol = volume_on(device.clone());
    (device, vol)
}

pub struct Files {
    pub store: Arc<VolumeStore>,
}

impl Files {
    pub fn new(vol: &Arc<Volume>) -> Files {
        Files { store: VolumeStore::new(vol.clone(), Durability::Plain) }
    }

    pub fn find(&self, path: &str) -> Option<NodeRef> {
        match self.store.lookup(&NtPath::parse(path).unwrap()).unwrap() {
            Lookup::Found(node) => Some(node),
            _ => None,
        }
    }

    /// The file or directory, made when it is not there; its directory has to be.
    pub fn make(&self, path: &str, directory: bool) -> Result<NodeRef> {
        match self.store.lookup(&NtPath::parse(path).unwrap())? {
            Lookup::Found(node) => Ok(node),
            Lookup::Missing { base: Some(base), .. } => base.create_stream(None, path.rsplit(':').next().unwrap()),
            Lookup::Missing { parent, .. } => {
                let name = path.rsplit('\\').next().unwrap();
                let new = NewFile { directory, attributes: 0, security: None, eas: &[], allocation: None };
                parent.create_child(None, name, &new)
            }
            Lookup::Symlink { .. } => panic!("{path}: a link"),
        }
    }

    pub fn try_write(&self, path: &str, data: &[u8]) -> Result<NodeRef> {
        let node = self.make(path, false)?;
        node.write_at(None, 0, data, Wait::Yes)?;
        Ok(node)
    }

    pub fn write(&self, path: &str, data: &[u8]) -> NodeRef {
        self.try_write(path, data).unwrap()
    }

    pub fn read(&self, path: &str) -> Vec<u8> {
        let node = self.find(path).unwrap_or_else(|| panic!("there is no {path}"));
        let mut out = vec![0; node.stat().unwrap().end_of_file as usize];
        assert_eq!(node.read_at(0, &mut out, Wait::Yes).unwrap(), out.len());
        out
    }
}
