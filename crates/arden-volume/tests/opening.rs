//! Opening a volume with many files reads the inner nodes of the tree and not the files, and takes memory by the size of
//! the cache and not by their number. `ARDEN_VOLUME_FILES=1000000 cargo test --release -p arden-volume --test opening --
//! --nocapture` is the long form, which also holds time and memory against what is promised.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use arden_block::{Device, IoResult, Thin};
use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NewFile, NodeRef, Wait},
};
use arden_volume::{Durability, FileDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, access::ATTR_ARCHIVE};

/// Counts what is read.
struct Counting {
    device: FileDevice,
    read_bytes: AtomicU64,
    /// What it says of the file system.
    room: Option<u64>,
}

impl Device for Counting {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
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
    fn room_of_files(&self) -> Option<u64> {
        self.room
    }
    fn thin(&self) -> Option<&dyn Thin> {
        self.device.thin()
    }
}

/// The log of a volume in a file is written once when it is made: a batch that is the first in its place would wait for the file
/// system's own record of that place. It is not on a disk, where nothing waits, nor where the file system has little room.
#[test]
fn the_log_of_a_volume_in_a_file_is_written_when_it_is_made() {
    let image = Image(std::env::temp_dir().join(format!("arden-written-{}", std::process::id())));
    // A sixteenth of its size.
    const LOG: u64 = 16 << 20;
    let format = |device: &dyn Device| {
        Volume::format(device, "written", 7 << 64 | 9, FileTime(1)).unwrap();
        let taken = std::fs::metadata(&image.0).unwrap().blocks() * 512;
        std::fs::remove_file(&image.0).unwrap();
        taken
    };
    let file = FileDevice::create(&image.0, 16 * LOG).unwrap();
    assert!(file.room_of_files().is_some_and(|room| room > 0));
    drop(file);
    std::fs::remove_file(&image.0).unwrap();
    for (room, written) in [(None, false), (Some(0), false), (Some(8 * LOG - 1), false), (Some(8 * LOG), true)] {
        let device = FileDevice::create(&image.0, 16 * LOG).unwrap();
        let taken = format(&Counting { device, read_bytes: AtomicU64::new(0), room });
        assert_eq!((taken >= LOG, taken < 1 << 20), (written, !written), "{room:?}: {taken} bytes");
    }
}

struct Image(PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn make(path: &Path, files: u64) {
    let device = FileDevice::create(path, (1 << 30) + files * 4096).unwrap();
    Volume::format(&device, "many", 7 << 64 | 9, FileTime(1)).unwrap();
    let vol = Volume::open(Arc::new(device), VolumeOptions { background: false, ..VolumeOptions::default() }).unwrap();
    let store = VolumeStore::new(vol.clone(), Durability::Plain);
    let root = store.root();
    let new = |directory| NewFile { directory, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None };
    let mut folder: Option<NodeRef> = None;
    for i in 0..files {
        if i % 1000 == 0 {
            folder = Some(root.create_child(None, &format!("folder {:04}", i / 1000), &new(true)).unwrap());
        }
        let file = folder
            .as_ref()
            .unwrap()
            .create_child(None, &format!("a file of some name {i:07}.txt"), &new(false))
            .unwrap();
        if i % 10 == 0 {
            file.write_at(None, 0, b"some bytes", Wait::Yes).unwrap();
        }
    }
    drop((root, folder, store));
    vol.close().unwrap();
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn opening_a_volume_does_not_read_its_files() {
    let asked = std::env::var("ARDEN_VOLUME_FILES").ok().and_then(|n| n.parse().ok());
    let files: u64 = asked.unwrap_or(10_000);
    if let Some(path) = std::env::var_os("ARDEN_OPENING_MAKE") {
        return make(Path::new(&path), files);
    }
    let image = Image(std::env::temp_dir().join(format!("arden-opening-{}", std::process::id())));
    // In a process of its own, whose memory does not count.
    let made =
        std::process::Command::new(std::env::current_exe().unwrap()).env("ARDEN_OPENING_MAKE", &image.0).status();
    assert!(made.unwrap().success());

    let (before_kib, began) = (resident_kib(), Instant::now());
    let device = FileDevice::open(&image.0, true).unwrap();
    let device = Arc::new(Counting { device, read_bytes: AtomicU64::new(0), room: None });
    let vol = Volume::open(device.clone(), VolumeOptions { background: false, ..VolumeOptions::default() }).unwrap();
    let (took, read) = (began.elapsed(), device.read_bytes.load(Ordering::Relaxed));
    let more_kib = resident_kib().saturating_sub(before_kib);
    println!("{files} files: opened in {took:.2?}, {} KiB read, {more_kib} KiB more resident", read >> 10);

    let store = VolumeStore::new(vol.clone(), Durability::Plain);
    let path = NtPath::parse(&format!("folder 0000\\a file of some name {:07}.txt", files.min(1000) - 1)).unwrap();
    assert!(matches!(store.lookup(&path).unwrap(), Lookup::Found(_)));
    // A file takes some 300 bytes of the tree; inner nodes are some hundredth of that, the rest is fixed.
    assert!(read < (512 << 10) + files * 20, "{read} bytes read");
    if asked.is_some() {
        assert!(took.as_secs_f64() < 2.0 && more_kib < 200 << 10);
        assert_eq!(vol.check(false).unwrap().files, files);
    }
}
