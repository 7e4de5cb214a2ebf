//! Integrity of streams: which reads of damaged blocks fail, who inherits it, and that it is kept.

mod lab;

use std::sync::Arc;

use arden_block::Device;
use arden_store::{
    error::{NotDone, StoreError},
    name::NtPath,
    store::{FileStore, Integrity, Lookup, NewFile, NodeRef, Wait},
    usn::reason,
};
use arden_volume::{BlockCache, MemDevice, VolumeOptions};
use arden_wire::{
    FileTime,
    access::{ATTR_ARCHIVE, ATTR_INTEGRITY_STREAM},
};

use lab::{Lab, find, formatted};

const BLOCK: usize = 4096;

impl Lab {
    fn new() -> Lab {
        Lab::open(formatted())
    }

    fn open(device: Arc<MemDevice>) -> Lab {
        let blocks = Some(BlockCache::new(4 << 20));
        let options = VolumeOptions { background: false, blocks, ..VolumeOptions::default() };
        Lab::on(device, options)
    }

    fn make(&self, path: &str, directory: bool, attributes: u32) -> NodeRef {
        let (parent, name) = path.rsplit_once('\\').map_or(("", path), |(p, n)| (p, n));
        let new = NewFile { directory, attributes, security: None, eas: &[], allocation: None };
        self.find(parent).create_child(None, name, &new).unwrap()
    }

    fn find(&self, path: &str) -> NodeRef {
        find(&*self.store, path).unwrap_or_else(|| panic!("{path} is missing"))
    }

    /// A file of four blocks, of which each bears its number, on the device.
    fn numbered(&self, path: &str) -> NodeRef {
        let node = self.make(path, false, 0);
        let content: Vec<u8> = (0..4).flat_map(|n| [b'0' + n; BLOCK]).collect();
        node.write_at(None, 0, &content, Wait::Yes).unwrap();
        self.volume.checkpoint().unwrap();
        node
    }

    /// Changes all bytes of the only block that holds nothing but `old`, while the volume is closed: nothing of it is in memory.
    fn damaged(self, old: u8, new: u8) -> Lab {
        self.volume.close().unwrap();
        let content = self.device.content();
        let whole = |block: &[u8]| block.iter().all(|b| *b == old);
        let places: Vec<usize> = content.chunks(BLOCK).enumerate().filter(|(_, b)| whole(b)).map(|(n, _)| n).collect();
        assert_eq!(places.len(), 1);
        self.device.write((places[0] * BLOCK) as u64, &[new; BLOCK]).unwrap();
        let Lab { device, volume, store } = self;
        drop((volume, store));
        Lab::open(device)
    }
}

fn read(node: &NodeRef) -> Result<Vec<u8>, NotDone> {
    let mut out = vec![0; 4 * BLOCK];
    node.read_at(0, &mut out, Wait::Yes)?;
    Ok(out)
}

#[test]
fn damaged_data_is_read_only_where_integrity_is_off_or_not_enforced() {
    let lab = Lab::new();
    lab.numbered("f");
    let lab = lab.damaged(b'2', b'X');
    let node = lab.find("f");
    let damaged: Vec<u8> = [b'0', b'1', b'X', b'3'].into_iter().flat_map(|n| [n; BLOCK]).collect();
    for (integrity, enforced) in [
        (Integrity::Unset, true),
        (Integrity::Off, false),
        (Integrity::On, true),
        (Integrity::Unenforced, false),
        (Integrity::Unset, true),
    ] {
        node.set_integrity(None, integrity).unwrap();
        assert_eq!(node.integrity().unwrap(), integrity);
        // Twice: nothing that did not pass stays in memory.
        for _ in 0..2 {
            let expected = if enforced { Err(StoreError::DataError.into()) } else { Ok(damaged.clone()) };
            assert_eq!(read(&node), expected, "{integrity:?}");
        }
    }
}

#[test]
fn a_part_of_a_damaged_block_can_be_written_only_where_it_can_be_read() {
    let lab = Lab::new();
    lab.numbered("f");
    let lab = lab.damaged(b'1', b'Y');
    let node = lab.find("f");
    let at = (BLOCK + 10) as u64;
    assert_eq!(node.write_at(None, at, b"new", Wait::Yes), Err(StoreError::DataError.into()));
    node.set_integrity(None, Integrity::Off).unwrap();
    node.write_at(None, at, b"new", Wait::Yes).unwrap();
    // The block has a right checksum again, over what was there and what was written.
    node.set_integrity(None, Integrity::On).unwrap();
    let content = read(&node).unwrap();
    assert_eq!(&content[BLOCK + 8..BLOCK + 15], b"YYnewYY");
}

#[test]
fn a_damaged_block_that_is_written_as_a_whole_can_be_read() {
    let lab = Lab::new();
    lab.numbered("f");
    let lab = lab.damaged(b'1', b'Y');
    let node = lab.find("f");
    assert_eq!(read(&node), Err(StoreError::DataError.into()));
    node.write_at(None, BLOCK as u64, &[b'n'; BLOCK], Wait::Yes).unwrap();
    let content: Vec<u8> = [b'0', b'n', b'2', b'3'].into_iter().flat_map(|n| [n; BLOCK]).collect();
    assert_eq!(read(&node), Ok(content.clone()));
    lab.volume.checkpoint().unwrap();
    assert_eq!(read(&node), Ok(content));
}

#[test]
fn a_snapshot_is_read_as_its_file_was_set() {
    let lab = Lab::new();
    lab.numbered("strict");
    let time = lab.volume.create_snapshot(FileTime(20_000_000_000), "").unwrap().time;
    lab.find("strict").set_integrity(None, Integrity::Off).unwrap();
    let lab = lab.damaged(b'3', b'Z');
    assert_eq!(read(&lab.find("strict")).unwrap()[3 * BLOCK], b'Z');
    let past = lab.store.snapshot(time).unwrap();
    let Ok(Lookup::Found(then)) = past.lookup(&NtPath::parse("strict").unwrap()) else { panic!() };
    assert_eq!(read(&then), Err(StoreError::DataError.into()));
    assert_eq!(then.set_integrity(None, Integrity::Off), Err(StoreError::ReadOnly.into()));
}

#[test]
fn new_files_and_streams_have_what_their_directory_or_file_has_and_it_is_kept() {
    let lab = Lab::new();
    for (name, integrity) in [("on", Integrity::On), ("loose", Integrity::Unenforced), ("off", Integrity::Off)] {
        lab.make(name, true, 0).set_integrity(None, integrity).unwrap();
        lab.make(&format!("{name}\\below"), true, 0);
        let file = lab.make(&format!("{name}\\below\\file"), false, ATTR_ARCHIVE);
        file.create_stream(None, "stream").unwrap();
        file.set_integrity(None, Integrity::Unset).unwrap();
        file.create_stream(None, "later").unwrap();
    }
    lab.make("asked", false, ATTR_ARCHIVE | ATTR_INTEGRITY_STREAM);
    lab.make("off\\asked", false, ATTR_ARCHIVE | ATTR_INTEGRITY_STREAM);
    lab.make("loose\\asked", false, ATTR_ARCHIVE | ATTR_INTEGRITY_STREAM);
    lab.volume.close().unwrap();
    let lab = Lab::open(lab.device.clone());
    for (path, integrity) in [
        ("", Integrity::Unset),
        ("on", Integrity::On),
        ("on\\below", Integrity::On),
        ("on\\below\\file", Integrity::Unset),
        ("on\\below\\file:stream", Integrity::On),
        ("on\\below\\file:later", Integrity::Unset),
        ("loose\\below", Integrity::Unenforced),
        ("loose\\below\\file:stream", Integrity::Unenforced),
        ("loose\\asked", Integrity::Unenforced),
        ("off\\below", Integrity::Off),
        ("off\\below\\file:stream", Integrity::Off),
        ("off\\asked", Integrity::On),
        ("asked", Integrity::On),
    ] {
        let node = lab.find(path);
        assert_eq!(node.integrity().unwrap(), integrity, "{path}");
        assert_eq!(node.stat().unwrap().attributes & ATTR_INTEGRITY_STREAM != 0, integrity.is_set(), "{path}");
    }
}

#[test]
fn the_change_journal_tells_of_it() {
    let lab = Lab::new();
    lab.make("f", false, 0);
    lab.make("g", false, 0).create_stream(None, "s").unwrap();
    lab.make("d", true, 0);
    let journal = lab.store.change_journal().unwrap();
    journal.create(None, 1 << 20, 1 << 16).unwrap();
    for path in ["f", "g:s", "d"] {
        let node = lab.find(path);
        let next = journal.info().unwrap().next;
        node.set_integrity(None, Integrity::On).unwrap();
        lab.volume.sync().unwrap();
        let mut reasons = 0;
        journal
            .read(next, &mut |record| {
                reasons |= record.reason;
                true
            })
            .unwrap();
        assert_eq!(reasons & !reason::CLOSE, reason::INTEGRITY_CHANGE, "{path}");
    }
}
