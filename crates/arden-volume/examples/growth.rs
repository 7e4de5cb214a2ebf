//! What work on a few of many files costs a volume beside the same work on few files: `growth DIR [many] [operations] [rounds] [acts]`.
//! Three volumes in files of `DIR`: ten thousand files in 10 folders, `many` in folders of a thousand, and a fifth as many in one. Each round
//! takes files at random, in the same order on each, and leaves as many as it found. Of the rounds it prints the median time and
//! processor time of one operation, nodes read, and bytes written; the time of checkpoints counts where it falls.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_block::{Device, IoResult, Thin, rng::Rng};
use arden_store::{name::NtPath, store::*};
use arden_volume::{BlockCache, Durability, FileDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

const FILES_IN_EACH: usize = 1000;
const FILE_BYTES: usize = 4096;
const ACTS: [&str; 5] = ["stat", "list", "rename", "delete", "create"];

/// Counts what reaches a file.
struct Counted {
    file: FileDevice,
    reads: AtomicU64,
    written: AtomicU64,
}

impl Device for Counted {
    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.file.write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        self.file.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.file.discard(offset, len)
    }
    fn thin(&self) -> Option<&dyn Thin> {
        self.file.thin()
    }
}

/// Of all threads, which stay.
fn cpu() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |path: std::path::PathBuf| std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
    let ran = threads.map(|t| of(t.unwrap().path()).split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0));
    Duration::from_nanos(ran.sum())
}

#[derive(Clone, Copy)]
struct Sample {
    operations: usize,
    took: Duration,
    cpu: Duration,
    reads: u64,
    written: u64,
}

struct Side {
    name: &'static str,
    device: Arc<Counted>,
    vol: Arc<Volume>,
    store: Arc<VolumeStore>,
    folders: usize,
    each: usize,
    seen: Vec<Vec<Sample>>,
}

impl Side {
    fn new(dir: &Path, name: &'static str, folders: usize, each: usize) -> Side {
        let path = dir.join(name);
        let _ = std::fs::remove_file(&path);
        let size_bytes = (3 << 30) + (folders * each) as u64 * (8 << 10);
        let file = FileDevice::create(&path, size_bytes).unwrap();
        let device = Arc::new(Counted { file, reads: AtomicU64::new(0), written: AtomicU64::new(0) });
        Volume::format(&*device, name, 1, FileTime(1)).unwrap();
        // As a daemon with a GiB for volumes divides it.
        let options = VolumeOptions {
            cache_bytes: 512 << 20,
            blocks: Some(BlockCache::new(256 << 20)),
            overlay_bytes_max: 38 << 20,
            ..VolumeOptions::default()
        };
        let vol = Volume::open(device.clone(), options).unwrap();
        let store = VolumeStore::new(vol.clone(), Durability::Plain);
        let side = Side { name, device, vol, store, folders, each, seen: vec![Vec::new(); ACTS.len()] };
        for folder in 0..folders {
            side.root().create_child(None, &folder_name(folder), &new(true)).unwrap();
        }
        let all: Vec<u32> = (0..(folders * each) as u32).collect();
        let filled = side.act("create", &all);
        let rss = std::fs::read_to_string("/proc/self/status").unwrap();
        let rss = rss.lines().find(|l| l.starts_with("VmRSS")).unwrap().to_owned();
        println!("{name}: filled, {:.1} us of CPU each, memory {:?}, {rss}", filled.cpu_us(), side.vol.memory());
        side
    }

    fn root(&self) -> NodeRef {
        self.store.root()
    }

    fn find(&self, path: &str) -> NodeRef {
        match self.store.lookup(&NtPath::parse(path).unwrap()).unwrap() {
            Lookup::Found(node) => node,
            _ => panic!("{path}"),
        }
    }

    fn place(&self, file: u32) -> (String, String, String) {
        let (folder, n) = (file as usize / self.each, file as usize % self.each);
        (folder_name(folder), format!("file of some length {n:06}.dat"), format!("renamed of some length {n:06}.dat"))
    }

    fn do_one(&self, act: &str, file: u32) {
        if act == "list" {
            let mut cursor = self.find(&folder_name(file as usize)).list().unwrap();
            let mut n = 0;
            while cursor.peek(&|_| true).unwrap().is_some() {
                cursor.advance();
                n += 1;
            }
            assert_eq!(n, self.each);
            return;
        }
        let (folder, name, renamed) = self.place(file);
        match act {
            "stat" => {
                let stat = self.find(&format!("{folder}\\{name}")).stat().unwrap();
                assert_eq!(stat.end_of_file, FILE_BYTES as u64);
            }
            "rename" => {
                let node = self.find(&format!("{folder}\\{name}"));
                node.rename(None, &*self.find(&folder), &renamed, false).unwrap();
            }
            "delete" => self.find(&format!("{folder}\\{renamed}")).unlink(None).unwrap(),
            _ => {
                let missing = self.store.lookup(&NtPath::parse(&format!("{folder}\\{name}")).unwrap()).unwrap();
                let Lookup::Missing { parent, .. } = missing else { panic!("{name}") };
                let node = parent.create_child(None, &name, &new(false)).unwrap();
                node.write_at(None, 0, &[file as u8; FILE_BYTES], Wait::Yes).unwrap();
            }
        }
    }

    fn act(&self, act: &str, which: &[u32]) -> Sample {
        let d = &self.device;
        let counts = || (d.reads.load(Ordering::Relaxed), d.written.load(Ordering::Relaxed));
        let (before, began, used) = (counts(), Instant::now(), cpu());
        which.iter().for_each(|file| self.do_one(act, *file));
        let (after, each) = (counts(), if act == "list" { self.each } else { 1 });
        Sample {
            operations: which.len() * each,
            took: began.elapsed(),
            cpu: cpu() - used,
            reads: after.0 - before.0,
            written: after.1 - before.1,
        }
    }
}

impl Sample {
    fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.operations as f64
    }
    fn took_us(&self) -> f64 {
        self.took.as_secs_f64() * 1e6 / self.operations as f64
    }
}

fn folder_name(n: usize) -> String {
    format!("folder-{n:04}")
}

fn new(directory: bool) -> NewFile<'static> {
    NewFile { directory, attributes: 0x20, security: None, eas: &[], allocation: None }
}

/// `n` different numbers below `all`, or all, at random.
fn pick(all: usize, n: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    let mut numbers: Vec<u32> = (0..all as u32).collect();
    let n = n.min(all);
    for i in 0..n {
        numbers.swap(i, i + rng.below((all - i) as u64) as usize);
    }
    numbers.truncate(n);
    numbers
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: usize| args.get(i).and_then(|n| n.parse().ok()).unwrap_or(or);
    let dir = Path::new(args.first().map_or("/dev/shm", String::as_str));
    let (many, operations, rounds) = (number(1, 1_000_000), number(2, 10_000), number(3, 3));
    let asked = |act: &str| args.get(4).is_none_or(|acts| acts.split(',').any(|a| a == act));
    let shapes = [("few", 10, FILES_IN_EACH), ("many", many / FILES_IN_EACH, FILES_IN_EACH), ("wide", 1, many / 5)];
    let mut sides: Vec<Side> =
        shapes.into_iter().map(|(name, folders, each)| Side::new(dir, name, folders, each)).collect();
    for round in 1..=rounds as u64 {
        for side in &mut sides {
            for (i, act) in ACTS.into_iter().enumerate().filter(|(_, act)| asked(act)) {
                let which = match act {
                    "list" => pick(side.folders, (200_000 / side.each).max(1), round),
                    _ => pick(side.folders * side.each, operations, round),
                };
                let sample = side.act(act, &which);
                side.seen[i].push(sample);
            }
        }
    }
    for (i, act) in ACTS.into_iter().enumerate().filter(|(_, act)| asked(act)) {
        let of = |side: &Side, f: fn(&Sample) -> f64| median(side.seen[i].iter().map(f));
        for side in &sides {
            println!(
                "{act:<7} {:<5} {:>8.2} us, CPU {:>8.2} us, {:>5.2} of few; nodes read {:>7.0}, written {:>6.1} MB",
                side.name,
                of(side, Sample::took_us),
                of(side, Sample::cpu_us),
                of(side, Sample::cpu_us) / of(&sides[0], Sample::cpu_us),
                of(side, |s| s.reads as f64),
                of(side, |s| s.written as f64) / 1e6,
            );
        }
    }
    for side in sides {
        let Side { name, vol, store, .. } = side;
        drop(store);
        vol.close().unwrap();
        std::fs::remove_file(dir.join(name)).unwrap();
    }
}
