//! What all nodes of one share of a volume have in common, and how files look to the store's users. Waits for the log where
//! the share asks for it.

use std::sync::Arc;

use arden_store::error::StoreError;
use arden_store::store::{FileId, Result, Stat};

use crate::{
    disk::inode::{Data, Inode},
    engine::{kept::Snapshot, state::Moment},
    facade::volume::Volume,
    files::open::OpenFile,
};

/// What all nodes of one share of a volume have in common.
pub struct Shared {
    pub vol: Arc<Volume>,
    /// The directory that is the share's root.
    pub root: u64,
    pub volume_id: u64,
    /// Every operation is durable when it returns.
    pub durable: bool,
    /// None: as it is now.
    pub past: Option<Arc<Snapshot>>,
}

impl Shared {
    /// The state that is looked at.
    pub fn view(&self) -> Result<Moment<'_>> {
        self.vol.engine.state.reading_at(self.past.as_deref()).ok_or(StoreError::SnapshotDeleted.into())
    }

    /// [MS-FSA] Volume.IsReadOnly: the past is.
    pub fn check_writable(&self) -> Result<()> {
        if self.past.is_some() { Err(StoreError::ReadOnly.into()) } else { Ok(()) }
    }

    /// Whether a change of the volume is not durable. The past is.
    pub fn has_uncommitted(&self) -> bool {
        let (seq, durable) = self.vol.progress();
        self.past.is_none() && seq > durable
    }

    pub fn is_same_moment(&self, other: &Shared) -> bool {
        self.past.as_ref().map(|s| s.epoch) == other.past.as_ref().map(|s| s.epoch)
    }

    pub fn open_file(&self, ino: u64, directory: bool) -> Arc<OpenFile> {
        match self.past {
            Some(_) => OpenFile::of_the_past(&self.vol.files.open, ino, directory),
            None => self.vol.files.open.file(ino, directory),
        }
    }

    /// `stream`: of a named stream.
    pub fn stat(&self, ino: u64, inode: &Inode, stream: Option<&Data>) -> Stat {
        let data = stream.unwrap_or(&inode.data);
        let sizes = !inode.directory || stream.is_some();
        Stat {
            id: FileId { volume: self.volume_id, file: ino },
            directory: inode.directory,
            attributes: inode.shown_attributes(data),
            creation: inode.creation,
            last_access: inode.last_access,
            last_write: inode.last_write,
            change: inode.change,
            end_of_file: if sizes { data.eof } else { 0 },
            allocation: if sizes { data.allocation() } else { 0 },
            links: if inode.directory { 1 } else { inode.links },
            ea_size: inode.ea_size,
            reparse_tag: inode.reparse_tag,
        }
    }

    pub fn done(&self, seq: u64) -> Result<()> {
        if self.durable {
            self.vol.commit_to(seq)?;
        }
        Ok(())
    }
}
