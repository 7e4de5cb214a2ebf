//! Finds the disks of pools by their labels. A disk that hangs holds its readers up for as long as a pool waits for a command, and
//! no other disk: each is looked at on a thread of its own. Refuses to say why a disk has no label.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arden_block::{BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, Media, Rt, SharedBuf};
use arden_lock::{Mutex, ranks};
use arden_space::{PoolConfig, read_header};

use super::delay;

/// Disks whose look was given up and has not ended. The life of its thread stands for it.
static HANGING: Mutex<Vec<(PathBuf, Weak<()>)>, ranks::Hanging> = Mutex::new(Vec::new());

/// A disk whose label names a pool.
#[derive(Debug, Clone)]
pub struct Found {
    pub path: PathBuf,
    pub pool_id: u128,
    pub pool_name: String,
    pub disk_id: u128,
    /// That the label bears.
    pub epoch: u64,
}

/// What a path leads to, whatever name it has: the kernel's number of a device, or a file of a file system. None: nothing is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Device(u64),
    File(u64, u64),
}

impl Place {
    fn of(path: &Path) -> Option<Place> {
        let meta = std::fs::metadata(path).ok()?;
        let is_device = meta.file_type().is_block_device();
        Some(if is_device { Place::Device(meta.rdev()) } else { Place::File(meta.dev(), meta.ino()) })
    }
}

/// Whether both are names of one disk at this machine. Two paths to a disk by which its commands go different ways are not.
pub fn is_same(a: &Path, b: &Path) -> bool {
    a == b || Place::of(a).is_some_and(|place| Place::of(b) == Some(place))
}

/// Each disk by the first of its names. What is not there stays.
pub fn distinct(paths: &[PathBuf]) -> Vec<PathBuf> {
    let (mut places, mut out) = (Vec::new(), Vec::<PathBuf>::new());
    for path in paths {
        let place = Place::of(path);
        if out.contains(path) || place.is_some_and(|p| places.contains(&p)) {
            continue;
        }
        places.extend(place);
        out.push(path.clone());
    }
    out
}

/// Those of `paths` that carry a pool's label, each by the first of its names. A disk that cannot be read counts as without one, and so does one that hangs.
pub fn scan(paths: &[PathBuf]) -> Vec<Found> {
    // As long as a pool waits for it.
    scan_within(&distinct(paths), Duration::from_millis(PoolConfig::default().io_timeout_ms), delay::of)
}

/// How long a read of the disk at this path is put off.
type PutOff = fn(&Path) -> Duration;

fn scan_within(paths: &[PathBuf], limit: Duration, put_off: PutOff) -> Vec<Found> {
    let begin = |path: &PathBuf| Look::begin(path, move |path, says| look_at(path, says, put_off));
    let looks: Vec<_> = paths.iter().filter_map(begin).collect();
    looks.into_iter().filter_map(|look| look.wait(limit).flatten()).collect()
}

/// What `read` finds on the disk. None: it does not answer.
pub fn answer<T: Send + 'static>(path: &Path, read: impl FnOnce(&Path) -> T + Send + 'static) -> Option<T> {
    answer_within(path, Duration::from_millis(PoolConfig::default().io_timeout_ms), delay::of, read)
}

fn answer_within<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    put_off: PutOff,
    read: impl FnOnce(&Path) -> T + Send + 'static,
) -> Option<T> {
    let look = Look::begin(path, move |path, _| {
        thread::sleep(put_off(path));
        read(path)
    });
    look?.wait(limit)
}

/// Whether the disk is not asked again before it has answered.
fn is_hanging(path: &Path) -> bool {
    let mut all = HANGING.lock();
    all.retain(|(_, life)| life.strong_count() > 0);
    all.iter().any(|(hanging, _)| hanging == path)
}

enum Said<T> {
    /// The disk has answered once more.
    Answered(Instant),
    Ended(T),
}

/// A disk that is being looked at, on a thread that nobody waits for at its end.
struct Look<T> {
    path: PathBuf,
    begun: Instant,
    said: Receiver<Said<T>>,
    life: Weak<()>,
}

impl<T: Send + 'static> Look<T> {
    /// None: the disk hangs. `look` may say of each answer that it came; its own end is one.
    fn begin(path: &Path, look: impl FnOnce(&Path, Sender<Said<T>>) -> T + Send + 'static) -> Option<Look<T>> {
        if is_hanging(path) {
            return None;
        }
        let (says, said) = channel();
        let lives = Arc::new(());
        let (of, life) = (path.to_path_buf(), Arc::downgrade(&lives));
        let run = move || {
            let found = look(&of, says.clone());
            drop(lives);
            _ = says.send(Said::Ended(found));
        };
        thread::Builder::new().name("arden-look".into()).spawn(run).ok()?;
        Some(Look { path: path.to_path_buf(), begun: Instant::now(), said, life })
    }

    /// As long as the disk goes on answering. `limit` is that of one answer.
    fn wait(self, limit: Duration) -> Option<T> {
        let mut last = self.begun;
        loop {
            match self.said.recv_timeout(limit.saturating_sub(last.elapsed())) {
                Ok(Said::Answered(at)) => last = at,
                Ok(Said::Ended(found)) => return Some(found),
                Err(_) => break,
            }
        }
        tracing::warn!(disk = %self.path.display(), "it does not answer, and counts as not there");
        HANGING.lock().push((self.path, self.life));
        None
    }
}

fn look_at(path: &Path, says: Sender<Said<Option<Found>>>, put_off: PutOff) -> Option<Found> {
    let disk = Looked { file: open(path).ok()?, info: info(path), says, put_off: put_off(path) };
    // Every read has ended when it returns, so nothing is waited for and no clock is asked.
    let rt = Rt::virtual_clock(0);
    let header = rt.block_on(async move { read_header(&disk).await.ok().flatten() }).flatten();
    rt.shutdown();
    let h = header?;
    let (path, pool_name) = (path.to_path_buf(), h.pool_name);
    Some(Found { path, pool_id: h.pool_id, pool_name, disk_id: h.disk_id, epoch: h.epoch })
}

/// For reading, past the page cache where the file system can: another machine may have written.
fn open(path: &Path) -> io::Result<File> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let direct = OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path);
    match direct {
        Err(e) if e.kind() == ErrorKind::InvalidInput => File::open(path),
        other => other,
    }
}

fn info(path: &Path) -> DeviceInfo {
    let name = path.display().to_string();
    DeviceInfo { name, size_bytes: u64::MAX, media: Media::Unknown, model: String::new(), serial: String::new() }
}

/// A disk that is read on this thread, and tells of each answer.
struct Looked {
    file: File,
    info: DeviceInfo,
    says: Sender<Said<Option<Found>>>,
    put_off: Duration,
}

impl Looked {
    fn read_now(&self, offset: u64, len: usize) -> IoResult<Buf> {
        let mut data = Buf::new(len);
        thread::sleep(self.put_off);
        let read = self.file.read_exact_at(&mut data, offset);
        _ = self.says.send(Said::Answered(Instant::now()));
        read.map(|()| data).map_err(|_| IoError::Media)
    }
}

fn refused<T: 'static>() -> LocalFuture<IoResult<T>> {
    Box::pin(std::future::ready(Err(IoError::Unsupported)))
}

impl BlockDevice for Looked {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        Box::pin(std::future::ready(self.read_now(offset, len)))
    }
    fn write(&self, _: u64, _: SharedBuf, _: bool) -> LocalFuture<IoResult<()>> {
        refused()
    }
    fn write_zeroes(&self, _: u64, _: u64) -> LocalFuture<IoResult<()>> {
        refused()
    }
    fn discard(&self, _: u64, _: u64) -> LocalFuture<IoResult<()>> {
        refused()
    }
    fn flush(&self) -> LocalFuture<IoResult<()>> {
        refused()
    }
}

#[cfg(test)]
mod tests {
    use arden_block::file::FileDevice;
    use arden_space::{CreateOptions, Pool};

    use super::*;

    const EVER: Duration = Duration::from_secs(600);
    /// Less than a look at a disk that hangs, and more than anything else takes.
    const SOON: Duration = Duration::from_secs(60);

    struct Disks(PathBuf);

    impl Disks {
        /// The disks of a pool, as files with these names.
        fn new(names: &[&str]) -> Disks {
            let dir = std::env::temp_dir().join(format!("arden-scan-{}-{}", names.join("-"), std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let disks = Disks(dir);
            let rt = Rt::real();
            let open = |path: &PathBuf| {
                File::create(path).unwrap().set_len(64 << 20).unwrap();
                std::rc::Rc::new(FileDevice::open(&rt, path, true).unwrap()) as std::rc::Rc<dyn BlockDevice>
            };
            let devices = disks.paths(names).iter().map(open).collect();
            let within = rt.clone();
            let made = async move {
                let pool = Pool::create(&within, "tank", devices, Vec::new(), CreateOptions::default()).await?;
                pool.close().await
            };
            rt.block_on(made).unwrap().unwrap();
            rt.shutdown();
            disks
        }

        fn paths(&self, names: &[&str]) -> Vec<PathBuf> {
            names.iter().map(|n| self.0.join(n)).collect()
        }
    }

    impl Drop for Disks {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn is(path: &Path, name: &str) -> bool {
        path.file_name().is_some_and(|n| n == name)
    }

    #[test]
    fn a_disk_that_hangs_holds_no_other_up_and_is_waited_for_once() {
        let names = ["h0", "hangs", "h1"];
        let disks = Disks::new(&names);
        let paths = disks.paths(&names);
        assert_eq!(scan(&paths).len(), 3);
        let put_off = |p: &Path| if is(p, "hangs") { EVER } else { Duration::ZERO };
        let begun = Instant::now();
        for limit in [Duration::from_secs(2), EVER] {
            let found = scan_within(&paths, limit, put_off);
            let found: Vec<&Path> = found.iter().map(|f| f.path.as_path()).collect();
            assert_eq!(found, [&paths[0], &paths[2]]);
        }
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_read_of_a_disk_that_hangs_ends_and_is_not_tried_again() {
        let disks = Disks::new(&["stuck"]);
        let stuck = &disks.paths(&["stuck"])[0];
        let size = |path: &Path| std::fs::metadata(path).unwrap().len();
        assert_eq!(answer_within(stuck, EVER, |_| Duration::ZERO, size), Some(64 << 20));
        let begun = Instant::now();
        for limit in [Duration::from_secs(2), EVER] {
            assert_eq!(answer_within(stuck, limit, |_| EVER, size), None);
        }
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_disk_that_answers_slowly_is_found() {
        let disks = Disks::new(&["slow"]);
        let found = scan_within(&disks.paths(&["slow"]), Duration::from_secs(5), |_| Duration::from_secs(2));
        assert_eq!(found.len(), 1, "each of three reads or more is within the limit");
    }

    #[test]
    fn what_is_no_disk_is_passed_over() {
        let disks = Disks::new(&["d"]);
        std::fs::write(disks.0.join("short"), "text").unwrap();
        let paths = [disks.0.clone(), disks.0.join("short"), disks.0.join("gone"), disks.0.join("d")];
        assert_eq!(scan(&paths).iter().map(|f| &*f.pool_name).collect::<Vec<_>>(), ["tank"]);
    }

    #[test]
    fn a_disk_is_known_by_any_of_its_names() {
        let disks = Disks::new(&["n0", "n1"]);
        let [n0, n1] = ["n0", "n1"].map(|n| disks.0.join(n));
        let [link, gone] = ["link", "gone"].map(|n| disks.0.join(n));
        std::os::unix::fs::symlink(&n0, &link).unwrap();
        let names = [link.clone(), n0.clone(), gone.clone(), n1.clone(), gone.clone(), link.clone()];
        assert_eq!(distinct(&names), [link.clone(), gone.clone(), n1.clone()]);
        assert!(is_same(&link, &n0) && is_same(&gone, &gone) && !is_same(&n0, &n1) && !is_same(&n0, &gone));
        assert_eq!(scan(&names).iter().map(|f| f.path.clone()).collect::<Vec<_>>(), [link, n1]);
    }
}
