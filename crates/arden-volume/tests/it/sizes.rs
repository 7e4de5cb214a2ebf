//! The largest file: 16 TiB less 64 KiB, as far as clients may write, in a volume that is much smaller.

use std::sync::Arc;

use arden_store::error::StoreError;
use arden_store::store::*;
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

const LARGEST: u64 = (16 << 40) - (64 << 10);

#[test]
fn a_file_of_16_tib_is_written_at_its_ends_read_and_cut_off() {
    let device = Arc::new(MemDevice::new(32 << 20));
    Volume::format(&*device, "sizes", 1 << 64 | 2, FileTime(1)).unwrap();
    let options = VolumeOptions { background: false, ..VolumeOptions::default() };
    let vol = Volume::open(device.clone(), options.clone()).unwrap();
    let store = VolumeStore::new(vol.clone(), Durability::Plain);
    let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
    let file = store.root().create_child(None, "large", &new).unwrap();
    // Where all of it is promised there is no room.
    assert_eq!(file.set_end_of_file(None, LARGEST), Err(StoreError::DiskFull.into()));
    file.set_sparse(None, true).unwrap();
    file.write_at(None, 0, b"first", Wait::Yes).unwrap();
    let end = vec![7; 200_000];
    file.write_at(None, LARGEST - end.len() as u64, &end, Wait::Yes).unwrap();
    assert_eq!(file.stat().unwrap().end_of_file, LARGEST);
    drop((file, store));
    vol.close().unwrap();
    drop(vol);
    let vol = Volume::open(device, options).unwrap();
    let store = VolumeStore::new(vol.clone(), Durability::Plain);
    let path = arden_store::name::NtPath::parse("large").unwrap();
    let Lookup::Found(file) = store.lookup(&path).unwrap() else { panic!("it is gone") };
    let mut found = vec![1; 300_000];
    let read = file.read_at(LARGEST - found.len() as u64, &mut found, Wait::Yes).unwrap();
    assert_eq!(read, found.len());
    assert!(found[..100_000].iter().all(|b| *b == 0) && found[100_000..] == end);
    let allocated = file.stat().unwrap().allocation;
    assert!(allocated < 1 << 20, "{allocated} bytes allocated");
    file.set_end_of_file(None, 5).unwrap();
    assert_eq!(file.read_at(0, &mut found, Wait::Yes).unwrap(), 5);
    assert_eq!(&found[..5], b"first");
    assert!(vol.check(true).unwrap().is_clean());
}
