//! Nodes of the tree in memory: as many as there is room for, and no more. `ARDEN_NODES_FILES=100000 cargo test --release -p
//! arden-volume --test nodes` is the long form, with a tree of more than 64 MiB.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use arden_block::{Device, IoError, IoResult};
use arden_store::{
    error::{NotDone, StoreError},
    name::NtPath,
    store::{FileStore, Lookup, NewFile, Wait},
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, access::ATTR_ARCHIVE};

const LITTLE: u64 = 1 << 20;

/// Counts what is read.
struct Counting {
    device: MemDevice,
    read_bytes: AtomicU64,
    /// Reads do not end.
    hangs: AtomicBool,
    /// Reads fail.
    fails: AtomicBool,
}

impl Device for Counting {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        while self.hangs.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        if self.fails.load(Ordering::Relaxed) {
            return Err(IoError::Gone);
        }
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.device.write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.device.discard(offset, len)
    }
}

fn name(i: u64) -> String {
    // Not in the order in which they are made.
    format!("{:016x}{}", i.wrapping_mul(0x9E37_79B9_7F4A_7C15), "-".repeat(200))
}

fn new_file() -> NewFile<'static> {
    NewFile { directory: false, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None }
}

fn made(files: u64) -> (Arc<Counting>, Arc<Volume>, Arc<dyn FileStore>) {
    let device = MemDevice::new((64 << 20) + (files << 13) as usize);
    let (hangs, fails) = (AtomicBool::new(false), AtomicBool::new(false));
    let device = Arc::new(Counting { device, read_bytes: AtomicU64::new(0), hangs, fails });
    Volume::format(&*device, "nodes", 7 << 64 | 9, FileTime(1)).unwrap();
    let options = VolumeOptions { cache_bytes: LITTLE as usize, background: false, ..VolumeOptions::default() };
    let volume = Volume::open(device.clone(), options).unwrap();
    let store: Arc<dyn FileStore> = VolumeStore::new(volume.clone(), Durability::Plain);
    for i in 0..files {
        store.root().create_child(None, &name(i), &new_file()).unwrap();
        assert!(volume.memory().0 <= LITTLE);
    }
    (device, volume, store)
}

/// One volume whose disks do not answer keeps neither the memory of the others nor `arden status` waiting.
#[test]
fn memory_is_told_and_set_while_the_device_hangs() {
    let (device, volume, store) = made(3_000);
    volume.checkpoint().unwrap();
    volume.set_node_memory(0);
    // The directory is in memory, and the place of the other name is not: the change begins, and hangs.
    assert!(store.root().create_child(None, &name(0), &new_file()).is_err());
    device.hangs.store(true, Ordering::Relaxed);
    let (tell, told) = channel();
    let asks = volume.clone();
    thread::scope(|s| {
        let changes = s.spawn(|| store.root().create_child(None, "another", &new_file()).is_ok());
        thread::sleep(Duration::from_millis(100));
        assert!(!changes.is_finished());
        thread::spawn(move || {
            asks.set_node_memory(LITTLE);
            asks.set_change_memory(LITTLE);
            let _ = tell.send((asks.take_nodes_used(), asks.memory()));
        });
        let answer = told.recv_timeout(Duration::from_secs(10));
        device.hangs.store(false, Ordering::Relaxed);
        assert!(changes.join().unwrap() && answer.is_ok());
    });
    drop(store);
    volume.close().unwrap();
}

/// Where the directory cannot be read, nobody knows whether it was deleted.
#[test]
fn a_directory_whose_device_fails_is_not_deleted() {
    let (device, volume, store) = made(3_000);
    let folder = store.root().create_child(None, "folder", &NewFile { directory: true, ..new_file() }).unwrap();
    volume.checkpoint().unwrap();
    volume.set_node_memory(0);
    look_at_some(&*store);
    device.fails.store(true, Ordering::Relaxed);
    let made = folder.create_child(None, "another", &new_file()).map(|_| ());
    assert_eq!(made, Err(NotDone::Failed(StoreError::DeviceFailed)));
    device.fails.store(false, Ordering::Relaxed);
    folder.create_child(None, "another", &new_file()).unwrap();
    drop((folder, store));
    volume.close().unwrap();
}

/// Nodes of other places take the little memory that there is.
fn look_at_some(store: &dyn FileStore) {
    for i in 1000..2900 {
        assert!(matches!(store.lookup(&NtPath::parse(&name(i)).unwrap()).unwrap(), Lookup::Found(_)));
    }
}

#[test]
fn a_tree_stays_in_memory_as_far_as_it_may() {
    let asked = std::env::var("ARDEN_NODES_FILES").ok().and_then(|n| n.parse().ok());
    let files: u64 = asked.unwrap_or(8_000);
    let (device, volume, store) = made(files);
    volume.checkpoint().unwrap();
    let look_at_all = || {
        let before = device.read_bytes.load(Ordering::Relaxed);
        for i in 0..files {
            assert!(matches!(store.lookup(&NtPath::parse(&name(i)).unwrap()).unwrap(), Lookup::Found(_)));
        }
        device.read_bytes.load(Ordering::Relaxed) - before
    };
    let read = look_at_all();
    assert!(read > 8 * LITTLE && volume.memory().0 <= LITTLE, "{read} bytes read");
    volume.set_node_memory(1 << 40);
    assert!(volume.take_nodes_used() && !volume.take_nodes_used());
    look_at_all();
    let tree = volume.memory().0;
    println!("{files} files: nodes of {tree} bytes in memory");
    assert!(volume.take_nodes_used() && tree > 2 * LITTLE && (asked.is_none() || tree > 64 << 20));
    assert_eq!(look_at_all(), 0, "bytes read of a tree that is in memory");
    volume.set_node_memory(LITTLE);
    assert!(volume.memory().0 <= LITTLE, "what is too much goes at once");
    assert!(look_at_all() > 8 * LITTLE);
    drop(store);
    volume.close().unwrap();
}

#[test]
fn changes_beyond_their_memory_make_a_checkpoint_at_once_also_of_a_volume_at_rest() {
    let device = Arc::new(MemDevice::new(64 << 20));
    Volume::format(&*device, "changes", 7 << 64 | 9, FileTime(1)).unwrap();
    let interval = Duration::from_secs(3600);
    let options = VolumeOptions { commit_interval: interval, ..VolumeOptions::default() };
    let volume = Volume::open(device, options).unwrap();
    let store = VolumeStore::new(volume.clone(), Durability::Plain);
    for i in 0..1000 {
        store.root().create_child(None, &name(i), &new_file()).unwrap();
    }
    let changes = volume.memory().1;
    assert!(changes > 100 << 10, "{changes}");
    volume.set_change_memory(1 << 20);
    volume.set_change_memory(64 << 10);
    let began = Instant::now();
    while volume.memory().1 > 64 << 10 {
        assert!(began.elapsed().as_secs() < 30, "{:?}", volume.memory());
        thread::sleep(Duration::from_millis(5));
    }
    drop(store);
    volume.close().unwrap();
}

/// Memory that nobody uses is given back after a while: what a volume does by itself is no use.
#[test]
fn a_volume_at_rest_uses_no_nodes() {
    let device = Arc::new(MemDevice::new(64 << 20));
    Volume::format(&*device, "rest", 7 << 64 | 9, FileTime(1)).unwrap();
    let options = VolumeOptions { commit_interval: Duration::from_millis(20), ..VolumeOptions::default() };
    let volume = Volume::open(device, options).unwrap();
    let store = VolumeStore::new(volume.clone(), Durability::Plain);
    for i in 0..1000 {
        let file = store.root().create_child(None, &name(i), &new_file()).unwrap();
        file.write_at(None, 0, &[1; 5000], Wait::Yes).unwrap();
    }
    volume.checkpoint().unwrap();
    let began = Instant::now();
    let mut quiet = 0;
    while quiet < 20 {
        assert!(began.elapsed().as_secs() < 30, "still in use");
        thread::sleep(Duration::from_millis(50));
        quiet = if volume.take_nodes_used() { 0 } else { quiet + 1 };
    }
    drop(store);
    volume.close().unwrap();
}
