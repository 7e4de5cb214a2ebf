//! Files that many cache, or wait for. A call that may have to look at all of these, or to tell all of them something, takes
//! milliseconds: on a thread that serves others it fails with `WouldBlock`, before it has changed anything.

use std::sync::atomic::Ordering;

use super::{
    OpenTable,
    file::{FileInner, FileState},
};
use crate::{
    error::NotDone,
    scope::RequestScope,
    store::{FileId, Result},
};

/// Oplocks, leases and waits of a file. A look at one takes some 10 ns, a waiting lock is tried in 100 ns, and a holder is told of
/// its break in 3 us.
const INLINE_HOLDERS_MAX: usize = 512;

/// Before something is done with each of `count` opens.
///
/// # Errors
/// `WouldBlock` where these are many and this thread must not wait.
pub(super) fn check_few(count: usize) -> Result<()> {
    check(count > INLINE_HOLDERS_MAX)
}

fn check(is_long: bool) -> Result<()> {
    if is_long && RequestScope::must_not_wait() { Err(NotDone::WouldBlock) } else { Ok(()) }
}

impl FileInner {
    fn holders(&self) -> usize {
        self.waiters.len() + self.streams().map(|s| s.caches.len() + s.locks.waiting()).sum::<usize>()
    }
}

impl FileState {
    pub(super) fn publish_crowd(&self, inner: &FileInner) {
        self.crowded.store(inner.holders() > INLINE_HOLDERS_MAX, Ordering::Release);
    }

    pub fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Acquire)
    }

    /// Before a look at all who cache the file or wait for it.
    ///
    /// # Errors
    /// `WouldBlock` where these are many and this thread must not wait.
    pub fn check_crowd(&self) -> Result<()> {
        check(self.is_crowded())
    }
}

impl OpenTable {
    /// While not, no directory is crowded.
    pub(crate) fn has_many_directory_leases(&self) -> bool {
        self.directory_leases.load(Ordering::Acquire) > INLINE_HOLDERS_MAX
    }

    /// Whether a change in this directory is told to many who have leases on it.
    pub(crate) fn is_crowded_directory(&self, directory: FileId) -> bool {
        self.has_many_directory_leases() && self.find(directory).is_some_and(|file| file.is_crowded())
    }

    /// Before such a change.
    ///
    /// # Errors
    /// As those of [`FileState::check_crowd`].
    pub(crate) fn check_crowded_directory(&self, directory: FileId) -> Result<()> {
        if RequestScope::must_not_wait() { check(self.is_crowded_directory(directory)) } else { Ok(()) }
    }
}
