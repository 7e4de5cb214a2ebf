//! For tests of the daemon only: disks whose reads take long. `ARDEN_TEST_DELAYS` names a directory; a file in it that is
//! called like a disk's file says how many milliseconds each read of that disk takes, and may change at any time.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use arden_block::{BlockDevice, Buf, DeviceInfo, IoResult, LocalFuture, Rt, SharedBuf};

struct Delayed {
    inner: Rc<dyn BlockDevice>,
    rt: Rt,
    says: PathBuf,
}

/// The disk at `path` as it is, unless a test asked for delays.
pub fn wrap(rt: &Rt, path: &Path, inner: Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice> {
    match says(path) {
        Some(says) => Rc::new(Delayed { inner, rt: rt.clone(), says }),
        None => inner,
    }
}

/// How long a read of the disk at `path` takes, for whom does not wrap it.
pub fn of(path: &Path) -> Duration {
    says(path).map_or(Duration::ZERO, |says| said(&says))
}

/// The file that says it, which need not be there.
fn says(path: &Path) -> Option<PathBuf> {
    let dir = std::env::var_os("ARDEN_TEST_DELAYS").map(PathBuf::from).filter(|d| d.is_dir())?;
    Some(dir.join(path.file_name()?))
}

fn said(says: &Path) -> Duration {
    Duration::from_millis(std::fs::read_to_string(says).ok().and_then(|s| s.trim().parse().ok()).unwrap_or(0))
}

impl BlockDevice for Delayed {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        let delay = said(&self.says);
        let (answer, rt) = (self.inner.read(offset, len), self.rt.clone());
        Box::pin(async move {
            let answer = answer.await;
            rt.sleep_ns(delay.as_nanos() as u64).await;
            answer
        })
    }

    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        self.inner.write(offset, data, durable)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.inner.write_zeroes(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.inner.discard(offset, len)
    }

    fn flush(&self) -> LocalFuture<IoResult<()>> {
        self.inner.flush()
    }

    fn room_of_files(&self) -> Option<u64> {
        self.inner.room_of_files()
    }

    fn lost_content(&self) -> bool {
        self.inner.lost_content()
    }
}
