//! Persistent reservations on a real disk that this machine reaches by two paths, as two machines would: run by `tests/e2e/scsi.sh` and
//! `tests/e2e/nvme.sh` in a guest. Disks are taken for NVMe namespaces after `reservations nvme`, which takes the same arguments, and
//! for SCSI disks without it. `reservations work DISK DISK FREEZE-DIR` fences one path from the other, also in the middle of a write; `reservations persist
//! DISK` looks at what a restart of the target has left; `reservations refuse PATH` is for what is no such disk. `reservations multipath
//! DEVICE DISK FREEZE-DIR PATH` is `work` with a device of the kernel's multipath, of which one PATH is lost and comes back. `reservations show
//! DISK` prints who has it, and by how many paths, `reservations clear DISK` takes all keys away, `reservations same DISK` is for one that a node has under this machine's host identifier, and `reservations steal DISK` takes it from a node of a cluster, in the name of a node 99.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use arden_block::file::FileDevice;
use arden_block::reserve::nvme::NamespacePath;
use arden_block::reserve::{self, Absent, DiskPath, Key, Protocol, Reservations, ReserveError};
use arden_block::{BlockDevice, Buf, IoError, IoResult, Rt};

const BLOCK: usize = 4096;
/// Disks are NVMe namespaces, of a target that keeps nothing.
static NVME: AtomicBool = AtomicBool::new(false);

fn key(node: u16, epoch: u64) -> u64 {
    Key::new(Key::cluster_tag("example"), node, epoch).expect("a key").raw()
}

fn protocol(volatile: bool) -> Protocol {
    if NVME.load(Ordering::Relaxed) { Protocol::Nvme { volatile } } else { Protocol::Scsi }
}

fn disk(path: &Path) -> Box<dyn DiskPath> {
    reserve::open(path, protocol(true)).expect("opens")
}

fn show_capabilities(path: &Path) {
    if let Protocol::Nvme { .. } = protocol(true) {
        let d = NamespacePath::open(path, true).expect("opens");
        println!("   {:?} {:x?}", d.capabilities().expect("capabilities"), d.host().expect("a host identifier"));
    } else {
        let d = Reservations::open(path).expect("opens");
        println!("   {:?}", d.capabilities().expect("capabilities"));
    }
}

fn say(what: &str) {
    println!("   {what}");
    let _ = std::io::stdout().flush();
}

/// Writes a block of `byte`, durably.
fn write(path: &Path, offset: u64, byte: u8) -> IoResult<()> {
    let rt = Rt::real();
    let dev = FileDevice::open(&rt, path, true).expect("opens for writing");
    let mut data = Buf::new(BLOCK);
    data.fill(byte);
    let done = rt.block_on(async move { dev.write(offset, data.share(), true).await });
    rt.shutdown();
    done.unwrap_or(Err(IoError::Gone))
}

fn read(path: &Path, offset: u64) -> u8 {
    let rt = Rt::real_with_threads();
    let dev = FileDevice::open(&rt, path, false).expect("opens");
    let data = rt.block_on(async move { dev.read(offset, BLOCK).await }).expect("runs").expect("reads");
    rt.shutdown();
    assert!(data.iter().all(|b| *b == data[0]), "a block is torn");
    data[0]
}

fn beside<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, waits) = channel();
    thread::spawn(move || _ = done.send(run()));
    waits
}

fn freeze(how: &str, dir: &Path) {
    assert!(Command::new("fsfreeze").arg(how).arg(dir).status().expect("fsfreeze").success());
}

/// The owner, with the key `ka`, is fenced for `kb` while it writes.
fn fence_in_mid_write(first: &Path, second: &Path, dir: &Path, (ka, kb): (u64, u64)) {
    freeze("--freeze", dir);
    let (p, q) = (first.to_path_buf(), second.to_path_buf());
    let writes = beside(move || write(&p, 65_536, 3));
    thread::sleep(Duration::from_millis(500));
    let fences = beside(move || {
        let b = disk(&q);
        b.register(kb)?;
        b.fence(kb, ka, Absent::Ended)
    });
    let early = fences.recv_timeout(Duration::from_secs(2));
    assert_eq!(early, Err(RecvTimeoutError::Timeout), "the fence returned while a write before it was under way");
    freeze("--unfreeze", dir);
    assert_eq!(fences.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    let after = read(second, 65_536);
    let told = writes.recv_timeout(Duration::from_secs(60)).expect("the write ends");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(read(second, 65_536), after, "something came after the fence");
    assert!(told.is_err() || after == 3, "a write that was acknowledged is not there");
    assert!(matches!(told, Ok(()) | Err(IoError::Conflict)));
    say(&format!("a write that began before the fence: {told:?}, its block has {after} from the fence on"));
}

fn work(first: &Path, second: &Path, dir: &Path) {
    let (a, b) = (disk(first), disk(second));
    let (ka, kb) = (key(1, 7), key(2, 8));
    show_capabilities(first);
    a.check().expect("it can");
    assert_eq!((a.keys(), a.reservation()), (Ok(vec![]), Ok(None)));

    a.register(ka).expect("registers");
    assert_eq!(a.protect(ka), Ok(ka));
    assert_eq!(a.confirm(ka), Ok(()));
    assert_eq!(b.keys(), Ok(vec![ka]), "the other path sees it");
    assert_eq!(write(first, 0, 1), Ok(()));
    assert_eq!(write(second, 0, 2), Err(IoError::Conflict));
    assert_eq!(read(second, 0), 1, "all may read");
    assert_eq!(b.fence(kb, ka, Absent::Ended), Err(ReserveError::Conflict), "it has no key");
    say("only the path with a key writes, both read");

    fence_in_mid_write(first, second, dir, (ka, kb));

    assert_eq!(write(first, 0, 4), Err(IoError::Conflict));
    assert_eq!(write(second, 0, 5), Ok(()));
    assert_eq!(read(first, 0), 5);
    assert_eq!((b.protect(kb), b.confirm(kb)), (Ok(kb), Ok(())));
    assert_eq!(a.fence(ka, kb, Absent::Ended), Err(ReserveError::Conflict));
    say("after it the fenced path gets a conflict, the other one writes");

    a.register(ka).expect("a key comes late");
    assert_eq!(b.confirm(kb), Err(ReserveError::Conflict));
    assert_eq!(b.fence(kb, ka, Absent::Ended), Ok(()));
    assert_eq!(b.confirm(kb), Ok(()));
    assert_eq!(write(first, 0, 6), Err(IoError::Conflict));
    say("a key that comes late is seen and fenced");

    b.register(kb + 1).expect("a new epoch");
    assert_eq!(b.confirm(kb + 1), Ok(()), "the reservation stays");
    assert_eq!(write(second, 0, 7), Ok(()));
    if !NVME.load(Ordering::Relaxed) {
        doubt(first, second, dir, kb + 1);
    }
}

/// How many writes a path has ended.
fn writes_of(path: &Path) -> u64 {
    let stat = Path::new("/sys/block").join(path.file_name().expect("a name")).join("stat");
    let text = std::fs::read_to_string(stat).expect("the kernel's counts");
    text.split_whitespace().nth(4).and_then(|n| n.parse().ok()).expect("a count of writes")
}

/// `lost` is a path of `device`; `up`: it works.
fn set_path(device: &Path, lost: &Path, up: bool) {
    let dir = Path::new("/sys/block").join(lost.file_name().expect("a name"));
    std::fs::write(dir.join("device/state"), if up { "running\n" } else { "offline\n" }).expect("a state of the path");
    let number = std::fs::read_to_string(dir.join("dev")).expect("its number");
    let message = format!("{} {}", if up { "reinstate_path" } else { "fail_path" }, number.trim());
    let name = Path::new("/sys/block").join(device.file_name().expect("a name")).join("dm/name");
    let name = std::fs::read_to_string(name).expect("a name of the device mapper");
    let said = Command::new("dmsetup").args(["message", name.trim(), "0", &message]).status();
    assert!(said.expect("dmsetup").success());
}

fn multipath(device: &Path, other: &Path, dir: &Path, lost: &Path) {
    let (a, b) = (disk(device), disk(other));
    let (ka, kb) = (key(1, 7), key(2, 8));
    let some = |byte| (0..8).map(|n| write(device, n * BLOCK as u64, byte)).collect::<Vec<_>>();
    a.check().expect("it can");
    assert_eq!((a.keys(), a.reservation()), (Ok(vec![]), Ok(None)));
    println!("   the disk knows this machine by {:?}", a.known_as().expect("its names"));
    a.register(ka).expect("registers");
    assert_eq!(b.keys(), Ok(vec![ka, ka]), "both paths have it");
    assert_eq!((a.protect(ka), a.confirm(ka)), (Ok(ka), Ok(())));
    let before = writes_of(lost);
    assert_eq!(some(1), vec![Ok(()); 8]);
    let by = writes_of(lost) - before;
    assert!((1..8).contains(&by), "{by} of 8 writes went by one of two paths");
    assert_eq!(write(other, 0, 2), Err(IoError::Conflict));
    say("both paths with a key write");

    fence_in_mid_write(device, other, dir, (ka, kb));
    assert_eq!(some(4), vec![Err(IoError::Conflict); 8]);
    assert_eq!((b.protect(kb), b.confirm(kb), write(other, 0, 5)), (Ok(kb), Ok(()), Ok(())));
    say("after it both paths get a conflict");

    a.register(ka + 2).expect("a new epoch");
    assert_eq!(a.fence(ka + 2, kb, Absent::Ended), Ok(()));
    assert_eq!((a.protect(ka + 2), a.confirm(ka + 2), some(6)), (Ok(ka + 2), Ok(()), vec![Ok(()); 8]));
    assert_eq!(write(other, 0, 7), Err(IoError::Conflict));
    say("several paths fence one");

    set_path(device, lost, false);
    let a = disk(device);
    a.register(ka + 3).expect("by the path that is left");
    b.register(kb + 3).expect("registers");
    assert_eq!(b.fence(kb + 3, ka + 2, Absent::Ended), Ok(()), "the key of before is at the path that is lost");
    assert_eq!(a.fence(ka + 3, kb + 3, Absent::Ended), Ok(()));
    assert_eq!((a.protect(ka + 3), a.confirm(ka + 3), some(8)), (Ok(ka + 3), Ok(()), vec![Ok(()); 8]));
    set_path(device, lost, true);
    let a = disk(device);
    let told = some(9);
    let refused = told.iter().filter(|told| **told == Err(IoError::Conflict)).count();
    assert!((1..8).contains(&refused), "{told:?}");
    assert!(a.confirm(ka + 3).is_err(), "a path has come");
    a.register(ka + 4).expect("the next epoch");
    assert_eq!((a.confirm(ka + 4), some(10)), (Ok(()), vec![Ok(()); 8]));
    say("a path that was lost when the others got their key is refused until the next ownership, and not used for it");
}

/// Another fence, while the answer to the first is not there: the key may be gone, the write is not.
fn doubt(first: &Path, second: &Path, dir: &Path, kb: u64) {
    let (a, b) = (disk(first), disk(second));
    let ka = key(1, 10);
    a.register(ka).expect("registers");
    freeze("--freeze", dir);
    let (p, q) = (first.to_path_buf(), second.to_path_buf());
    let writes = beside(move || write(&p, 131_072, 8));
    thread::sleep(Duration::from_millis(500));
    let q1 = q.clone();
    let first_fence = beside(move || disk(&q1).fence(kb, ka, Absent::Ended));
    thread::sleep(Duration::from_millis(500));
    let fences = beside(move || disk(&q).fence(kb, ka, Absent::InDoubt));
    let early = fences.recv_timeout(Duration::from_secs(3));
    assert_eq!(early, Err(RecvTimeoutError::Timeout), "a fence in doubt returned while a write was under way");
    freeze("--unfreeze", dir);
    let told = fences.recv_timeout(Duration::from_secs(60)).expect("the fence ends");
    assert_eq!(told, Ok(()));
    let after = read(second, 131_072);
    let _ = (writes.recv_timeout(Duration::from_secs(60)), first_fence.recv_timeout(Duration::from_secs(60)));
    assert_eq!(read(second, 131_072), after, "something came after the fence");
    assert_eq!(b.fence(kb, key(9, 9), Absent::InDoubt), Ok(()), "the disk is reset");
    assert_eq!((b.confirm(kb), write(second, 0, 9)), (Ok(()), Ok(())), "and keeps its reservation");
    assert_eq!(write(first, 0, 10), Err(IoError::Conflict));
    say("a fence in doubt waits for the commands of before");
}

fn persist(path: &Path) {
    let d = disk(path);
    let found = (d.keys().expect("keys"), d.reservation().expect("reservation").map(|r| r.key));
    assert_eq!(found, (vec![key(2, 9)], Some(key(2, 9))));
    say("registration and reservation are there after the target was taken down");
}

fn shown(raw: u64) -> String {
    format!("node {} epoch {}", raw >> 32 & 0xFFFF, raw & 0xFFFF_FFFF)
}

fn show(path: &Path) {
    let d = disk(path);
    let mut paths = BTreeMap::<u64, usize>::new();
    d.keys().expect("keys").into_iter().for_each(|key| *paths.entry(key).or_default() += 1);
    let by = |n: usize| if n > 1 { format!(" ({n} paths)") } else { String::new() };
    let keys: Vec<String> = paths.into_iter().map(|(key, n)| shown(key) + &by(n)).collect();
    let holder = d.reservation().expect("reservation").map_or("nobody".to_string(), |r| shown(r.key));
    println!("keys: {}; reserved for {holder}", keys.join(", "));
}

fn steal(path: &Path) {
    let d = disk(path);
    let held = d.reservation().expect("reservation").expect("it is reserved").key;
    let mine = held & 0xFFFF_0000_FFFF_FFFF | 99 << 32;
    d.register(mine).expect("registers");
    d.fence(mine, held, Absent::Ended).expect("fences");
    d.confirm(mine).expect("has it");
}

/// As `sg_persist` does it for an administrator.
fn clear(path: &Path) {
    let d = disk(path);
    d.register(1).expect("registers");
    d.clear(1).expect("clears");
    assert_eq!((d.keys(), d.reservation()), (Ok(vec![]), Ok(None)));
}

/// A node with another node's host identifier.
fn same(path: &Path) {
    let d = disk(path);
    let before = d.keys().expect("keys");
    let mine = before.first().expect("it has a key") & 0xFFFF_0000_FFFF_FFFF | 99 << 32;
    let why = d.register(mine).expect_err("it is refused");
    assert!(why.to_string().contains("host identifier"), "{why}");
    assert_eq!(d.keys(), Ok(before));
    say(&format!("refused: {why}"));
}

/// A device of several paths, which lead to different disks.
fn wrong(path: &Path) {
    let why = disk(path).register(1).expect_err("it is refused");
    assert!(why.to_string().contains("different disks"), "{why}");
    say(&format!("refused: {why}"));
}

fn main() {
    let mut args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if args.first().is_some_and(|a| a.as_os_str() == "nvme") {
        NVME.store(true, Ordering::Relaxed);
        args.remove(0);
    }
    match &args[..] {
        [what, a, b, dir] if what.as_os_str() == "work" => work(a, b, dir),
        [what, a, b, dir, lost] if what.as_os_str() == "multipath" => multipath(a, b, dir, lost),
        [what, a] if what.as_os_str() == "persist" => persist(a),
        [what, a] if what.as_os_str() == "show" => show(a),
        [what, a] if what.as_os_str() == "steal" => steal(a),
        [what, a] if what.as_os_str() == "clear" => clear(a),
        [what, a] if what.as_os_str() == "same" => same(a),
        [what, a] if what.as_os_str() == "wrong" => wrong(a),
        [what, a] if what.as_os_str() == "refuse" => {
            let why = reserve::open(a, protocol(false)).and_then(|d| d.check()).expect_err("it is refused");
            assert!(matches!(why, ReserveError::Unsupported(_)), "{why}");
            say(&format!("refused: {why}"));
        }
        _ => panic!("see the first lines of this program"),
    }
}
