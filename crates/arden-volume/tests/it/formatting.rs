//! A volume that is made where another one was, and does not get to its end.

use std::sync::{Arc, Mutex};

use arden_block::{Device, IoError, IoResult};
use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NewFile},
};
use arden_volume::{Durability, MemDevice, VolError, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, access::ATTR_ARCHIVE};

const SIZE: usize = 16 << 20;

/// Takes some writes, and no more; from then on all fail.
struct Ending {
    device: MemDevice,
    left: Mutex<usize>,
    error: IoError,
    room: Option<u64>,
}

impl Device for Ending {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        let mut left = self.left.lock().unwrap();
        *left = left.checked_sub(1).ok_or(self.error)?;
        self.device.write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.device.discard(offset, len)
    }
    fn room_of_files(&self) -> Option<u64> {
        self.room
    }
}

fn options() -> VolumeOptions {
    VolumeOptions { background: false, ..VolumeOptions::default() }
}

/// A volume whose last change is only in its log.
fn earlier() -> Vec<u8> {
    let device = Arc::new(MemDevice::new(SIZE));
    Volume::format(&*device, "earlier", 7 << 64 | 9, FileTime(1)).unwrap();
    let volume = Volume::open(device.clone(), options()).unwrap();
    volume.checkpoint().unwrap();
    let store = VolumeStore::new(volume.clone(), Durability::Plain);
    let new = NewFile { directory: false, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None };
    store.root().create_child(None, "acknowledged", &new).unwrap();
    volume.sync().unwrap();
    device.content()
}

#[test]
fn a_volume_that_was_to_be_overwritten_is_whole_or_gone() {
    let earlier = earlier();
    for room in [None, Some(1 << 40)] {
        for writes in 0.. {
            let device = MemDevice::holding(earlier.clone());
            let device = Ending { device, left: Mutex::new(writes), error: IoError::NoSpace, room };
            let made = Volume::format(&device, "later", 8 << 64 | 9, FileTime(2));
            let after = Arc::new(MemDevice::holding(device.device.content()));
            if made.is_ok() {
                Volume::open(after, options()).unwrap().close().unwrap();
                break;
            }
            assert_eq!(made, Err(VolError::Io(IoError::NoSpace)), "after {writes} writes");
            match Volume::open(after, options()) {
                Ok(volume) if volume.superblock().label == "earlier" => {
                    let found =
                        VolumeStore::new(volume, Durability::Plain).lookup(&NtPath::parse("acknowledged").unwrap());
                    assert!(matches!(found.unwrap(), Lookup::Found(_)), "lost after {writes} writes, {room:?}");
                }
                // The copies of the superblock of the new one follow each other.
                Ok(volume) => assert_eq!(volume.superblock().label, "later"),
                Err(VolError::Unknown(_)) => {}
                Err(e) => panic!("after {writes} writes: {e}"),
            }
        }
    }
}
