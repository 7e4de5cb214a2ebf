//! The valid-data length of open streams, [MS-FSA] 2.1.5.15.15: see `table::valid` for what it is and how long it is known.

use std::sync::{Arc, atomic::Ordering};

use arden_auth::privilege;
use arden_wire::access::*;

use super::{Fs, Open, Operation};
use crate::{
    commit::Cause,
    error::StoreError,
    store::Result,
    table::{file::FileState, valid::ValidData},
};

impl FileState {
    fn with_valid<T>(&self, stream_no: u32, f: impl FnOnce(&mut ValidData) -> T) -> T {
        let mut inner = self.lock();
        let result = f(&mut inner.at(stream_no).valid);
        self.valid_ends.store(inner.streams().any(|s| s.valid != ValidData::All), Ordering::Release);
        result
    }
}

impl Open {
    /// Nearly always all data is valid, which is told without the file's lock.
    fn note_valid(&self, f: impl FnOnce(&mut ValidData)) {
        if self.file.valid_ends.load(Ordering::Acquire) {
            self.file.with_valid(self.stream_no, f);
        }
    }

    /// Bytes that are valid of the `size` bytes that the stream has.
    pub(super) fn valid_data_length(&self, size: u64) -> u64 {
        let mut end = size;
        self.note_valid(|v| end = v.end(size));
        end
    }

    /// After data was written that ends there.
    pub(super) fn wrote_to(&self, end: u64) {
        self.note_valid(|v| v.reaches(end));
    }

    /// After a range became zeros.
    pub(super) fn zeroed(&self, from: u64, to: u64) {
        self.note_valid(|v| v.zeroed(from, to));
    }

    /// After the stream became at most so long by way of its allocation, or empty.
    pub(super) fn cut_to(&self, size: u64) {
        self.note_valid(|v| v.cut(size));
    }

    /// After the stream got other data, all of which counts.
    pub(super) fn all_valid(&self) {
        self.note_valid(|v| *v = ValidData::All);
    }

    /// Sets the size with `change`. What becomes more is not valid.
    pub(super) fn resizing(&self, size: u64, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let begins = self.file.with_valid(self.stream_no, ValidData::begin_resize);
        // In this order: what is written from now on is noted, what was written before is in the size.
        let before = if begins { self.node.stat().map(|s| s.end_of_file) } else { Ok(0) };
        let result = before.and_then(|_| change());
        self.file.with_valid(self.stream_no, |v| match (begins, before, &result) {
            (true, Ok(before), Ok(())) => v.end_resize(before, size),
            (true, ..) => *v = ValidData::All,
            (false, _, Ok(())) => v.resized(size),
            (false, ..) => {}
        });
        result
    }
}

impl Fs {
    /// [MS-FSA] 2.1.5.15.15, [MS-FSCC] 2.4.50: up to `size` the data counts as valid, which is zeros where nobody wrote, whatever
    /// the disk had there before. `InvalidParameter` for less than is valid, and for more than the stream has.
    pub fn set_valid_data_length(&self, open: &Arc<Open>, size: u64, cause: Cause<'_>) -> Result<()> {
        open.check(Operation::WriteOver)?;
        if !open.who.has_privilege(privilege::MANAGE_VOLUME) {
            return Err(StoreError::PrivilegeNotHeld.into());
        }
        let stat = open.node.stat()?;
        let possible = open.valid_data_length(stat.end_of_file)..=stat.end_of_file;
        if open.directory || stat.attributes & (ATTR_SPARSE | ATTR_COMPRESSED) != 0 || !possible.contains(&size) {
            return Err(StoreError::InvalidParameter.into());
        }
        self.contend(open, cause)?;
        open.wrote_to(size);
        Ok(())
    }
}
