//! Durable creates with 64 in flight, as the server does them: the operation, then a commit that tells when it is done.
//! `ARDEN_VOLUME_CREATES=200000 cargo test --release -p arden-volume --test creates -- --nocapture` measures on a file of
//! the temporary directory, fully written before.

use std::{
    io::Write,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex},
    time::Instant,
};

use arden_store::store::{FileStore, NewFile};
use arden_volume::{Durability, FileDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, access::ATTR_ARCHIVE};

const THREADS: u64 = 4;
const IN_FLIGHT: u64 = 64;
const FOLDERS: u64 = 64;

struct Image(PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Seconds of processor time of this process.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[test]
fn creates_are_durable_when_they_say_so() {
    let asked = std::env::var("ARDEN_VOLUME_CREATES").ok().and_then(|n| n.parse().ok());
    let files: u64 = asked.unwrap_or(2_000);
    let image = Image(std::env::temp_dir().join(format!("arden-creates-{}", std::process::id())));
    let size_bytes = (512 << 20) + files * 2048;
    let device = FileDevice::create(&image.0, size_bytes).unwrap();
    if asked.is_some() {
        // What a file system has to find room for costs a flush more than a flush does.
        let mut file = std::fs::OpenOptions::new().write(true).open(&image.0).unwrap();
        (0..size_bytes >> 20).for_each(|_| file.write_all(&vec![1; 1 << 20]).unwrap());
        file.sync_all().unwrap();
    }
    Volume::format(&device, "creates", 7 << 64 | 9, FileTime(1)).unwrap();
    let vol = Volume::open(Arc::new(device), VolumeOptions::default()).unwrap();
    let store = VolumeStore::new(vol.clone(), Durability::Plain);
    let new = |directory| NewFile { directory, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None };
    let folders: Vec<_> =
        (0..FOLDERS).map(|i| store.root().create_child(None, &format!("folder {i}"), &new(true)).unwrap()).collect();
    let waiting = Arc::new((Mutex::new(0u64), Condvar::new()));
    let (began, cpu) = (Instant::now(), processor_seconds());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (waiting, vol, folders, new) = (&waiting, &vol, &folders, &new);
            scope.spawn(move || {
                for i in (thread..files).step_by(THREADS as usize) {
                    let mut n = waiting.1.wait_while(waiting.0.lock().unwrap(), |n| *n >= IN_FLIGHT).unwrap();
                    *n += 1;
                    drop(n);
                    folders[(i % FOLDERS) as usize].create_child(None, &format!("file {i}"), &new(false)).unwrap();
                    let (seq, told, of) = (vol.progress().0, waiting.clone(), vol.clone());
                    let done = move |result: Result<(), _>| {
                        assert!(result.is_ok() && of.progress().1 >= seq, "told, and not durable");
                        *told.0.lock().unwrap() -= 1;
                        told.1.notify_one();
                    };
                    vol.commit_later(seq, Box::new(done));
                }
            });
        }
    });
    drop(waiting.1.wait_while(waiting.0.lock().unwrap(), |n| *n > 0).unwrap());
    let (took, cpu) = (began.elapsed().as_secs_f64(), processor_seconds() - cpu);
    let rate = files as f64 / took;
    println!("{files} durable creates: {rate:.0} a second, {:.1} us of processor each", cpu * 1e6 / files as f64);
    drop((folders, store));
    assert_eq!(vol.check(false).unwrap().files, files);
    vol.close().unwrap();
}
