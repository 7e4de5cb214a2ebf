//! Volumes as earlier programs left them: opened, checked, read and written by this one. An image holds the blocks that
//! are not all zeros, each without its trailing zeros: `block u32, length u16, bytes`. It was taken after a checkpoint
//! and some more operations, so that there is a tree to read and a journal to replay. `ARDEN_MAKE_IMAGE=PATH` makes one.

use std::sync::Arc;

use arden_store::{name::NtPath, store::*};
use arden_volume::{Durability, MemDevice, ShortNames, Volume, VolumeOptions, VolumeStore};
use arden_wire::{
    FileTime,
    access::{ATTR_HIDDEN, FILE_ALL_ACCESS},
    dtyp::{Ace, Acl, SecurityDescriptor, well_known},
};

const BLOCK: usize = 4096;
const SIZE: usize = 8 << 20;

/// By the version that wrote it.
const V1: &[u8] = include_bytes!("../images/v1.img");

fn unpack(packed: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (vec![0; SIZE], 0);
    while at < packed.len() {
        let block = u32::from_le_bytes(packed[at..at + 4].try_into().unwrap()) as usize;
        let len = u16::from_le_bytes(packed[at + 4..at + 6].try_into().unwrap()) as usize;
        out[block * BLOCK..][..len].copy_from_slice(&packed[at + 6..at + 6 + len]);
        at += 6 + len;
    }
    out
}

fn pack(image: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, block) in image.chunks(BLOCK).enumerate() {
        let Some(last) = block.iter().rposition(|b| *b != 0) else { continue };
        out.extend_from_slice(&(i as u32).to_le_bytes());
        out.extend_from_slice(&(last as u16 + 1).to_le_bytes());
        out.extend_from_slice(&block[..=last]);
    }
    out
}

fn options() -> VolumeOptions {
    VolumeOptions { background: false, ..VolumeOptions::default() }
}

struct Files(Arc<VolumeStore>);

impl Files {
    fn find(&self, path: &str) -> NodeRef {
        match self.0.lookup(&NtPath::parse(path).unwrap()).unwrap() {
            Lookup::Found(node) => node,
            _ => panic!("there is no {path}"),
        }
    }

    fn read(&self, path: &str) -> Vec<u8> {
        let node = self.find(path);
        let mut out = vec![0; node.stat().unwrap().end_of_file as usize];
        node.read_at(0, &mut out, Wait::Yes).unwrap();
        out
    }

    fn make(&self, directory: &str, name: &str, is_directory: bool) -> NodeRef {
        let aces = vec![Ace::allow(&well_known::EVERYONE, FILE_ALL_ACCESS, 0)];
        let sd = SecurityDescriptor::with_dacl(&well_known::BUILTIN_USERS, &well_known::SYSTEM, Acl::new(aces));
        let eas = [Ea { name: "Note".into(), flags: 0, value: b"kept".to_vec() }];
        let (attributes, security) = (ATTR_HIDDEN, Some(&sd));
        let new = NewFile { directory: is_directory, attributes, security, eas: &eas, allocation: None };
        self.find(directory).create_child(None, name, &new).unwrap()
    }
}

/// Bytes that compress into nothing much when blocks end early.
fn text(n: usize) -> Vec<u8> {
    (0..n).map(|i| if i % BLOCK < 40 { b'a' + (i % 23) as u8 } else { 0 }).collect()
}

/// One of everything that a volume of version 1 can hold.
fn fill(vol: &Arc<Volume>) {
    let files = Files(VolumeStore::new(vol.clone(), Durability::Plain));
    files.make("", "Straße", true);
    let large = files.make("Straße", "large", false);
    large.write_at(None, 0, &text(600_000), Wait::Yes).unwrap();
    large.create_stream(None, "Zone").unwrap().write_at(None, 0, b"stream", Wait::Yes).unwrap();
    let clone = files.make("", "clone", false);
    Node::clone_from(&*clone, None, &*large, 0, 0, 262_144).unwrap();
    large.link(None, &*files.find(""), "second name", false).unwrap();
    vol.put_handle(b"handle", b"state").unwrap();
    let unused = files.make("", "unused", false);
    unused.write_at(None, 0, &text(100_000), Wait::Yes).unwrap();
    vol.checkpoint().unwrap();
    // From here on in the journal alone.
    unused.unlink(None).unwrap();
    let small = files.make("", "small", false);
    small.write_at(None, 0, b"in the tree", Wait::Yes).unwrap();
    small.set_reparse(None, 0xA000_000C, &[5; 100]).unwrap();
    small.set_object_id(None, 77).unwrap();
    clone.write_at(None, 4096, &[b'x'; 5000], Wait::Yes).unwrap();
    clone.set_sparse(None, true).unwrap();
    clone.zero_range(None, 131_072, 65_536).unwrap();
    vol.sync().unwrap();
}

fn is_as_filled(vol: &Arc<Volume>) {
    let files = Files(VolumeStore::new(vol.clone(), Durability::Plain));
    assert_eq!(files.read("STRAßE\\LARGE"), text(600_000));
    assert_eq!(files.read("second name:zone"), b"stream");
    assert_eq!(files.find("second name").stat().unwrap().links, 2);
    let mut clone = text(262_144);
    clone[4096..9096].fill(b'x');
    clone[131_072..196_608].fill(0);
    assert_eq!(files.read("clone"), clone);
    assert_eq!(files.read("small"), b"in the tree");
    let small = files.find("small");
    assert_eq!(small.reparse().unwrap(), (0xA000_000C, vec![5; 100]));
    assert_eq!(small.object_id().unwrap(), Some(77));
    assert_eq!(small.eas().unwrap()[0].value, b"kept");
    assert_eq!(small.security().unwrap().owner.as_ref(), Some(&*well_known::BUILTIN_USERS));
    assert_eq!(vol.load_handles().unwrap(), [(b"handle".to_vec(), b"state".to_vec())]);
    assert!(matches!(files.0.lookup(&NtPath::parse("unused").unwrap()).unwrap(), Lookup::Missing { .. }));
}

#[test]
fn a_volume_of_version_1_is_opened_checked_read_and_written() {
    let device = Arc::new(MemDevice::holding(unpack(V1)));
    let report = arden_volume::check_device(device.clone(), options(), true).unwrap();
    assert!(report.is_clean(), "before opening: {:?}", report.errors);
    let vol = Volume::open(device.clone(), options()).unwrap();
    is_as_filled(&vol);
    let files = Files(VolumeStore::new(vol.clone(), Durability::Plain));
    files.make("Straße", "new", false).write_at(None, 0, &text(300_000), Wait::Yes).unwrap();
    drop(files);
    vol.close().unwrap();
    drop(vol);
    let vol = Volume::open(device, options()).unwrap();
    is_as_filled(&vol);
    let report = vol.check(true).unwrap();
    assert!(report.is_clean(), "{:?}", report.errors);
}

/// Told to keep 8.3 names it is upgraded in place: what is there stays as it is, and what comes gets one.
#[test]
fn a_volume_of_version_1_keeps_8_3_names_when_told() {
    let device = Arc::new(MemDevice::holding(unpack(V1)));
    let vol = Volume::open(device.clone(), options()).unwrap();
    assert_eq!(vol.short_names().unwrap(), ShortNames::Made);
    vol.set_short_names(ShortNames::Kept).unwrap();
    let files = Files(VolumeStore::new(vol.clone(), Durability::Plain));
    files.make("", "a name of today.text", false).write_at(None, 0, b"today", Wait::Yes).unwrap();
    is_as_filled(&vol);
    drop(files);
    vol.close().unwrap();
    drop(vol);
    let vol = Volume::open(device, options()).unwrap();
    is_as_filled(&vol);
    let files = Files(VolumeStore::new(vol.clone(), Durability::Plain));
    assert_eq!(files.read("ANAMEO~1.TEX"), b"today");
    let old = files.find("Straße");
    assert_eq!(old.short_name().unwrap(), None);
    old.rename(None, &*files.find(""), "Straßen", false).unwrap();
    assert_eq!(files.read("STRA_E~1\\large"), text(600_000));
    let report = vol.check(true).unwrap();
    assert!(report.is_clean(), "{:?}", report.errors);
}

#[test]
fn an_image_is_made_where_one_is_asked_for() {
    let device = Arc::new(MemDevice::new(SIZE));
    Volume::format(&*device, "image", 0x1111 << 64 | 0x2222, FileTime(132_000_000_000_000_000)).unwrap();
    let vol = Volume::open(device.clone(), options()).unwrap();
    fill(&vol);
    let image = pack(&device.content());
    assert_eq!(unpack(&image), device.content());
    if let Some(path) = std::env::var_os("ARDEN_MAKE_IMAGE") {
        std::fs::write(path, &image).unwrap();
    }
    let again = Volume::open(Arc::new(MemDevice::holding(unpack(&image))), options()).unwrap();
    is_as_filled(&again);
    assert!(image.len() < 200_000, "{} bytes", image.len());
}
