//! What unit tests of this crate share: a small volume, files on it by their names, and a device that is watched.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arden_block::{
    BLOCK_BYTES, Device, IoError, IoResult, Redundant, Thin, Verify,
    device::{ParityMismatches, read_single},
};
use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NewFile, NodeRef, Result, Wait},
};
use arden_wire::FileTime;
use parking_lot::Mutex;

use crate::{
    disk::device::{BLOCK, MemDevice},
    facade::store::{Durability, VolumeStore},
};
pub use crate::{
    facade::{
        node::own,
        volume::{Volume, VolumeOptions},
    },
    files::inodes::load_inode,
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

/// Two disks that hold the same, of which the first is asked first, and says of some writes that they are done when they are not.
pub struct Pair {
    pub disks: [MemDevice; 2],
    lies: Mutex<(BTreeSet<u64>, usize)>,
    refuses: AtomicBool,
}

impl Pair {
    pub fn new(size_bytes: usize) -> Pair {
        Pair::of([MemDevice::new(size_bytes), MemDevice::new(size_bytes)])
    }

    pub fn of(disks: [MemDevice; 2]) -> Pair {
        Pair { disks, lies: Mutex::default(), refuses: AtomicBool::default() }
    }

    /// From now on the first disk loses what is written to the blocks at these offsets.
    pub fn lose_at(&self, offsets: impl IntoIterator<Item = u64>) {
        self.lies.lock().0.extend(offsets);
    }

    /// The next write finds no room.
    pub fn refuse_next(&self) {
        self.refuses.store(true, Ordering::Relaxed);
    }

    /// How many blocks it lost.
    pub fn lost(&self) -> usize {
        self.lies.lock().1
    }
}

impl Device for Pair {
    fn size_bytes(&self) -> u64 {
        self.disks[0].size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.disks[0].read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        if self.refuses.swap(false, Ordering::Relaxed) {
            return Err(IoError::NoSpace);
        }
        for (at, block) in (offset..).step_by(BLOCK).zip(data.chunks(BLOCK)) {
            let (places, lost) = &mut *self.lies.lock();
            if places.contains(&at) {
                *lost += 1;
            } else {
                self.disks[0].write(at, block)?;
            }
        }
        self.disks[1].write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.disks.iter().try_for_each(|d| d.discard(offset, len))
    }
    fn redundant(&self) -> Option<&dyn Redundant> {
        Some(self)
    }
}

impl Redundant for Pair {
    fn read_verified(&self, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()> {
        for (at, block) in (offset..).step_by(BLOCK).zip(buf.chunks_mut(BLOCK)) {
            let passes =
                |disk: &MemDevice, block: &mut [u8]| read_single(disk, at, block, |at, b| verify(at, b)).is_ok();
            if !self.disks.iter().any(|disk| passes(disk, block)) {
                return Err(IoError::Media);
            }
        }
        Ok(())
    }
    fn copies_pass(&self, offset: u64, len: usize, verify: &Verify) -> bool {
        let all = |disk| read_single(disk, offset, &mut vec![0; len], |at, b| verify(at, b)).is_ok();
        self.disks.iter().all(|disk| all(disk))
    }
    fn heal(&self, offset: u64, len: usize, verify: &Verify) -> IoResult<u64> {
        let mut good = vec![0; len];
        self.read_verified(offset, &mut good, verify)?;
        self.write(offset, &good)?;
        Ok(len as u64 / BLOCK_BYTES)
    }
    fn parity_mismatches(&self, _offset: u64, _len: u64) -> IoResult<Option<ParityMismatches>> {
        Ok(None)
    }
    fn recompute_parity(&self, _row: u64, _verify: &Verify) -> IoResult<u64> {
        Ok(0)
    }
    fn may_differ(&self) -> bool {
        true
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
