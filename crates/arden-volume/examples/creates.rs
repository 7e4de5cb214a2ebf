//! How fast a volume makes files durably, and what it costs: `creates FILE|- [threads] [seconds] [bytes] [kept]`. `-` is memory;
//! with `kept` each name gets an 8.3 name.
//! Each file is created, written when bytes are given, and durable before the next one of its thread.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_block::Device;
use arden_store::store::*;
use arden_volume::{Durability, FileDevice, MemDevice, ShortNames, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

fn cpu() -> Duration {
    let t = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = t.rsplit(')').next().unwrap_or("");
    let f: Vec<u64> = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse().ok()).collect();
    Duration::from_millis(f.iter().sum::<u64>() * 10)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: u64| args.get(i).and_then(|n| n.parse().ok()).unwrap_or(or);
    let (threads, seconds, bytes) = (number(1, 64), number(2, 5), number(3, 0) as usize);
    let path = args.first().map_or("-", String::as_str);
    let device: Arc<dyn Device> = match path {
        "-" => Arc::new(MemDevice::new(2 << 30)),
        path => {
            let _ = std::fs::remove_file(path);
            Arc::new(FileDevice::create(path.as_ref(), 8 << 30).unwrap())
        }
    };
    Volume::format(&*device, "bench", 1, FileTime(1)).unwrap();
    let vol = Volume::open(device.clone(), VolumeOptions::default()).unwrap();
    if args.get(4).is_some_and(|word| word == "kept") {
        vol.set_short_names(ShortNames::Kept).unwrap();
    }
    let store = VolumeStore::new(vol.clone(), Durability::WriteThrough);
    let (stop, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let (started, cpu_before) = (Instant::now(), cpu());
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (store, stop, made) = (&store, &stop, &made);
            scope.spawn(move || {
                let new = NewFile { directory: true, attributes: 0, security: None, eas: &[], allocation: None };
                let dir = store.root().create_child(None, &format!("thread {t}"), &new).unwrap();
                let new = NewFile { directory: false, ..new };
                let data = vec![t as u8; bytes];
                for i in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let f = dir.create_child(None, &format!("file number {i}.txt"), &new).unwrap();
                    if !data.is_empty() {
                        f.write_at(None, 0, &data, Wait::Yes).unwrap();
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
    });
    let (took, used) = (started.elapsed().as_secs_f64(), cpu() - cpu_before);
    let n = made.into_inner();
    let each = used.as_secs_f64() * 1e6 / n.max(1) as f64;
    println!("{n} files in {took:.1} s: {:.0} a second, {each:.1} us CPU each", n as f64 / took);
    drop(store);
    let closing = Instant::now();
    vol.close().unwrap();
    println!("closed in {:.2} s", closing.elapsed().as_secs_f64());
    drop(vol);
    let opening = Instant::now();
    let vol = Volume::open(device, VolumeOptions::default()).unwrap();
    println!("opened in {:.3} s", opening.elapsed().as_secs_f64());
    let report = vol.check(false).unwrap();
    println!("check: {} files, {} errors", report.files, report.errors.len());
    if path != "-" {
        let _ = std::fs::remove_file(path);
    }
}
