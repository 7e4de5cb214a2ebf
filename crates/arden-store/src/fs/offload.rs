//! Copy offload, [MS-FSA] 2.1.5.10.20 and .21: what a range holds at one moment is kept by reference, and written elsewhere
//! later. Tokens, and how long they last, are the protocol's affair.

use std::sync::Arc;

use arden_wire::{access::*, fscc::FILE_SUPPORTS_BLOCK_REFCOUNTING};

use super::{Fs, Open, Operation, data::OFFSET_MAX};
use crate::commit::Cause;
use crate::error::{NotDone, StoreError};
use crate::store::{Node, NodeRef, Result};

/// One token stands for at most this much.
const OFFLOAD_BYTES_MAX: u64 = 256 << 20;

/// Bytes of one moment.
#[derive(Clone)]
pub struct Frozen {
    node: NodeRef,
    base: u64,
    /// Up to the end that the file had.
    len: u64,
}

/// What an offload read gives.
pub struct Offloaded {
    /// None: nothing but zeros, for all of which one token stands.
    pub frozen: Option<Frozen>,
    /// In whole sectors: the last one may reach past the end of the valid data, and holds zeros there.
    pub transferred: u64,
    /// Nothing but zeros would follow.
    pub to_the_end: bool,
}

impl Fs {
    /// `WrongObject` where files cannot share blocks; of the past, `NotSupported`.
    pub fn check_offload(&self) -> Result<()> {
        if self.store.volume().capabilities & FILE_SUPPORTS_BLOCK_REFCOUNTING == 0 {
            return Err(StoreError::WrongObject.into());
        }
        Ok(())
    }

    fn check_sectors(&self, values: &[u64]) -> Result<u64> {
        let sector = u64::from(self.store.space()?.sector_bytes);
        let whole = values.iter().all(|v| v.is_multiple_of(sector));
        if whole { Ok(sector) } else { Err(StoreError::InvalidParameter.into()) }
    }

    /// None for nothing. What is kept counts in the quota of the open's user; where that has no room for it,
    /// `OffloadReadUnsupported`: a client then copies by itself.
    pub fn offload_read(&self, open: &Arc<Open>, offset: u64, len: u64) -> Result<Option<Offloaded>> {
        if self.is_read_only() {
            return Err(StoreError::NotSupported.into());
        }
        let sector = self.check_sectors(&[offset, len])?;
        let end = offset.checked_add(len).ok_or(StoreError::InvalidParameter)?;
        if len == 0 {
            return Ok(None);
        }
        if open.is_directory() {
            return Err(StoreError::OffloadReadUnsupported.into());
        }
        open.check_data(Operation::ReadData)?;
        let stat = open.node.stat()?;
        if stat.attributes & ATTR_SPARSE != 0 {
            return Err(StoreError::OffloadReadUnsupported.into());
        }
        self.check_locks(open, offset, len, false)?;
        if offset >= stat.end_of_file {
            return Err(StoreError::EndOfFile.into());
        }
        let valid = open.valid_data_length(stat.end_of_file);
        if offset >= valid {
            let transferred = (stat.end_of_file.min(end) - offset).next_multiple_of(sector);
            return Ok(Some(Offloaded { frozen: None, transferred, to_the_end: true }));
        }
        let there = valid.min(end) - offset;
        let kept = there.min(OFFLOAD_BYTES_MAX);
        let frozen = open.node.freeze(offset, kept, &open.who.user);
        let (node, base) = frozen.map_err(|e| match e {
            NotDone::Failed(StoreError::QuotaExceeded) => StoreError::OffloadReadUnsupported.into(),
            e => e,
        })?;
        Ok(Some(Offloaded {
            frozen: Some(Frozen { node, base, len: kept }),
            transferred: kept.next_multiple_of(sector),
            to_the_end: kept == there && end >= valid,
        }))
    }

    /// Bytes written, in whole sectors. `source` is asked last, as [MS-FSA] has it, what the token stands for: None for zeros,
    /// `InvalidToken`. At the end of the file it makes that longer, as a write does, where [MS-FSA] has STATUS_END_OF_FILE; what
    /// begins before the end ends at it, since the last sector of what a token stands for may reach past the data.
    pub fn offload_write(
        &self,
        source: impl FnOnce() -> std::result::Result<Option<Frozen>, StoreError>,
        source_offset: u64,
        open: &Arc<Open>,
        offset: u64,
        len: u64,
        cause: Cause<'_>,
    ) -> Result<u64> {
        self.check_writable()?;
        let sector = self.check_sectors(&[offset, len, source_offset])?;
        let end = offset.checked_add(len).ok_or(StoreError::InvalidParameter)?;
        if len == 0 {
            return Ok(0);
        }
        if open.is_directory() {
            return Err(StoreError::OffloadWriteUnsupported.into());
        }
        open.check_data(Operation::WriteOver)?;
        let stat = open.node.stat()?;
        if stat.attributes & ATTR_SPARSE != 0 {
            return Err(StoreError::OffloadWriteUnsupported.into());
        }
        if end > OFFSET_MAX {
            return Err(StoreError::InvalidParameter.into());
        }
        self.check_locks(open, offset, len, true)?;
        if offset > stat.end_of_file {
            return Err(StoreError::EndOfFile.into());
        }
        if offset > open.valid_data_length(stat.end_of_file) {
            return Err(StoreError::BeyondValidData.into());
        }
        let source = source()?;
        let held = source.as_ref().map(|s| s.len.next_multiple_of(sector));
        if held.is_some_and(|held| source_offset >= held) {
            return Err(StoreError::InvalidParameter.into());
        }
        let wanted = held.map_or(len, |held| len.min(held - source_offset));
        let extends = offset == stat.end_of_file;
        let room = if extends { wanted } else { wanted.min(stat.end_of_file - offset) };
        let mut done = 0;
        if let Some(s) = source {
            let bytes = room.min(s.len.saturating_sub(source_offset));
            if bytes > 0 {
                done = self.copy_from(&*s.node as &dyn Node, s.base + source_offset, open, offset, bytes, cause)?;
            }
        }
        if done < room {
            if extends {
                self.set_end_of_file(open, offset + room, cause)?;
            } else {
                self.zero_range(open, offset + done, room - done, cause)?;
            }
            open.wrote_to(offset + room);
        }
        // A sector that the file's end cuts counts as a whole one.
        Ok(room.next_multiple_of(sector).min(wanted))
    }
}
