//! For tests of the daemon only: disks whose reads take long. `ARDEN_TEST_DELAYS` names a directory; a file in it that is
//! called like a disk's file says how many milliseconds each read of that disk takes, and may change at any time.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use arden_block::{BlockDevice, Buf, DeviceInfo, IoResult, LocalFuture, Rt, SharedBuf};

struct Delayed {
    inner: Rc<dyn BlockDevice>,
    rt: Rt,
    says: PathBuf,
}

/// The disk at `path` as it is, unless a test asked for delays.
pub fn wrap(rt: &Rt, path: &Path, inner: Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice> {
    let said = std::env::var_os("ARDEN_TEST_DELAYS").map(PathBuf::from).filter(|d| d.is_dir());
    match (said, path.file_name()) {
        (Some(dir), Some(name)) => Rc::new(Delayed { inner, rt: rt.clone(), says: dir.join(name) }),
        _ => inner,
    }
}

impl BlockDevice for Delayed {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        let ms = std::fs::read_to_string(&self.says).ok().and_then(|s| s.trim().parse::<u64>().ok()).unwrap_or(0);
        let (answer, rt) = (self.inner.read(offset, len), self.rt.clone());
        Box::pin(async move {
            let answer = answer.await;
            rt.sleep_ns(ms * 1_000_000).await;
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
