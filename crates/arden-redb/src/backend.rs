//! The file below redb, with a note of what may not have reached the disk.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{BackendError, DatabaseError, StorageBackend, backends::FileBackend};

/// What a file went through, for as long as the process uses it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// A sync failed: the system may count pages as written that are in memory only.
    unsynced: AtomicBool,
    #[cfg(any(test, feature = "faults"))]
    fault: std::sync::atomic::AtomicU8,
}

/// What fails.
#[cfg(any(test, feature = "faults"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// There is no room for anything.
    Write,
    /// What is written does not reach the disk.
    Sync,
}

impl Health {
    pub(crate) fn may_be_unsynced(&self) -> bool {
        self.unsynced.load(Ordering::Acquire)
    }

    pub(crate) fn set_synced(&self) {
        self.unsynced.store(false, Ordering::Release);
    }

    #[cfg(any(test, feature = "faults"))]
    pub(crate) fn set_fault(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::Release);
    }

    #[cfg(any(test, feature = "faults"))]
    fn check(&self, what: Fault) -> io::Result<()> {
        let fails = self.fault.load(Ordering::Acquire) == what as u8;
        let kind = if what == Fault::Write { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
        if fails { Err(kind.into()) } else { Ok(()) }
    }
}

/// Writes all of a file once more, and syncs it: a sync after one that failed writes only what has changed since.
pub(crate) fn write_again(mut file: &File) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    let mut at = 0;
    loop {
        file.seek(SeekFrom::Start(at))?;
        let read = file.read(&mut piece)?;
        if read == 0 {
            return file.sync_all();
        }
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&piece[..read])?;
        at += read as u64;
    }
}

#[derive(Debug)]
pub(crate) struct Backend {
    file: FileBackend,
    health: Arc<Health>,
}

impl Backend {
    pub(crate) fn new(file: File, health: Arc<Health>) -> Result<Backend, DatabaseError> {
        Ok(Backend { file: FileBackend::new(file)?, health })
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        #[cfg(any(test, feature = "faults"))]
        let synced = self.health.check(Fault::Sync).and_then(|()| self.file.sync_data());
        #[cfg(not(any(test, feature = "faults")))]
        let synced = self.file.sync_data();
        synced.inspect_err(|_| self.health.unsynced.store(true, Ordering::Release))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        #[cfg(any(test, feature = "faults"))]
        self.health.check(Fault::Write)?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}
