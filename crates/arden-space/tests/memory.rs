//! Memory: at most 64 MiB and 1 MiB for each TiB of pool, while it is made, opened and committed, with every slab given away
//! and every stripe of parity moved from where it was first. The disks keep what comes before their data, in sparse files.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use arden_block::{BLOCK_BYTES, BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, Media, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, Provision};
use xxhash_rust::xxh3::xxh3_64;

const TIB: u64 = 1 << 40;
const DISKS: u64 = 4;
const POOL_TIB: u64 = 12;
/// Labels, maps and journal lie before this.
const KEPT_BYTES: u64 = 1 << 30;

struct Disk {
    info: DeviceInfo,
    file: File,
    written: Cell<u64>,
}

fn now<T: 'static>(v: IoResult<T>) -> LocalFuture<IoResult<T>> {
    Box::pin(std::future::ready(v))
}

impl BlockDevice for Disk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        let mut b = Buf::zeroed(len);
        match offset < KEPT_BYTES && self.file.read_exact_at(&mut b, offset).is_err() {
            true => now(Err(IoError::Media)),
            false => now(Ok(b)),
        }
    }
    fn write(&self, offset: u64, data: SharedBuf, _: bool) -> LocalFuture<IoResult<()>> {
        self.written.set(self.written.get() + data.len() as u64);
        match offset < KEPT_BYTES && self.file.write_all_at(&data, offset).is_err() {
            true => now(Err(IoError::Media)),
            false => now(Ok(())),
        }
    }
    fn write_zeroes(&self, _: u64, _: u64) -> LocalFuture<IoResult<()>> {
        now(Ok(()))
    }
    fn discard(&self, _: u64, _: u64) -> LocalFuture<IoResult<()>> {
        now(Ok(()))
    }
    fn flush(&self) -> LocalFuture<IoResult<()>> {
        now(Ok(()))
    }
}

fn disk(i: u64) -> Rc<Disk> {
    let path = std::env::temp_dir().join(format!("arden-memory-{}-{i}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(KEPT_BYTES).unwrap();
    let info = DeviceInfo {
        name: format!("d{i}"),
        size_bytes: POOL_TIB * TIB / DISKS,
        media: Media::Unknown,
        model: String::new(),
        serial: String::new(),
    };
    Rc::new(Disk { info, file, written: Cell::new(0) })
}

fn number(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

/// Every stripe that was never written lies somewhere now, and none in its own slot: as after years of writes.
fn scatter(d: &Disk, stripes: usize) -> usize {
    let mut scattered = 0;
    for label_at in [0, 64 << 10] {
        let mut label = vec![0; 4096];
        d.file.read_exact_at(&mut label, label_at).unwrap();
        let map_at = (128 << 10) + u64::from(label[14]) * number(&label, 80);
        let mut map = vec![0; number(&label, 112) as usize];
        d.file.read_exact_at(&mut map, map_at).unwrap();
        assert_eq!(xxh3_64(&map), number(&label, 120), "the label is as the test thinks");
        let mut at = 0;
        while at + stripes * 2 <= map.len() {
            match map[at..at + stripes * 2].iter().rposition(|&b| b != 0xFF) {
                Some(other) => at += other + 1,
                None => {
                    for i in 0..stripes {
                        let slot = ((i + 1) % stripes) as u16;
                        map[at + i * 2..at + i * 2 + 2].copy_from_slice(&slot.to_le_bytes());
                    }
                    at += stripes * 2;
                    scattered += 1;
                }
            }
        }
        d.file.write_all_at(&map, map_at).unwrap();
        label[120..128].copy_from_slice(&xxh3_64(&map).to_le_bytes());
        let sum = xxh3_64(&label[..256]);
        label[256..264].copy_from_slice(&sum.to_le_bytes());
        d.file.write_all_at(&label, label_at).unwrap();
    }
    scattered
}

/// The most memory that was in use since the last call, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    kib / 1024
}

fn within_limit(what: &str) {
    let peak = peak_mib();
    println!("{what}: {peak} MiB of {}", 64 + POOL_TIB);
    assert!(peak <= 64 + POOL_TIB, "{what} took {peak} MiB for a pool of {POOL_TIB} TiB");
}

fn run(layout: Layout, columns: usize, scattered_stripes: Option<usize>) {
    let disks: Vec<Rc<Disk>> = (0..DISKS).map(disk).collect();
    let devices = || disks.iter().map(|d| d.clone() as Rc<dyn BlockDevice>).collect::<Vec<_>>();
    let name = layout.name();
    peak_mib();
    let rt = Rt::virtual_clock(1);
    let (all, clock) = (devices(), rt.clone());
    rt.block_on(async move {
        let pool = Pool::create(&clock, "p", all, Vec::new(), CreateOptions::default()).await.unwrap();
        let room = pool.status().free_bytes / layout.copies() as u64;
        let room = room * (columns - layout.parity()) as u64 / columns as u64 / 100 * 96;
        let size = room / BLOCK_BYTES * BLOCK_BYTES;
        pool.create_space("s", layout, Some(columns), 256 << 10, size, Provision::Fixed).await.unwrap();
        let status = pool.status();
        assert!(status.free_bytes * 20 < status.total_bytes, "nearly all of it is given away: {status:?}");
        // The other copy of the map is as large.
        pool.set_warning_levels([70, 80, 91]).await.unwrap();
        pool.close().await.unwrap();
    })
    .unwrap();
    rt.shutdown();
    drop(rt);
    within_limit(&format!("{name}: making it"));
    if let Some(stripes) = scattered_stripes {
        disks.iter().for_each(|d| assert!(scatter(d, stripes) > 11_000));
        peak_mib();
    }
    let rt = Rt::virtual_clock(2);
    let (all, clock) = (devices(), rt.clone());
    let pool = rt.block_on(async move {
        let pool = Pool::open(&clock, all, None, OpenOptions::default()).await.unwrap();
        pool.set_warning_levels([70, 80, 90]).await.unwrap();
        pool
    });
    let status = pool.unwrap().status();
    assert!(status.spaces[0].groups_allocated > 11_000 && status.spaces[0].groups_offline == 0);
    rt.shutdown();
    within_limit(&format!("{name}: opening it"));
    assert!(disks.iter().all(|d| d.written.get() > 1 << 20), "maps of more than one part were written");
}

#[test]
fn a_large_pool_takes_at_most_64_mib_and_1_mib_for_each_tib() {
    run(Layout::Parity, 4, Some(992));
    run(Layout::Mirror2, 1, None);
}
