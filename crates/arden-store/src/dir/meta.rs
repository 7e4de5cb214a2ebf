//! What extended attributes say of a file: attributes, creation time, descriptor, and whether there are streams, EAs
//! or a reparse point. Remembered for each inode and believed only while its change time is the one it was read at.

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering},
    time::SystemTime,
};

use arden_wire::{FileTime, access::*, dtyp::SecurityDescriptor};
use rustix::io::Errno;

use super::{
    META_SHARDS, Shared,
    dosattrib::{self, DosInfo},
    ea,
    inode::Inode,
    names::is_told_apart,
    ntacl, reparse, stream,
    sys::{self, Kind, RawStat, Stamp},
};
use crate::error::StoreError;
use crate::store::{BasicUpdate, FileId, Result, Stat};

pub const DOSATTRIB: &str = "user.DOSATTRIB";
/// Where Samba keeps descriptors; only root may write it.
pub const NTACL_ROOT: &str = "security.NTACL";
/// The same for a server that is not root.
pub const NTACL_USER: &str = "user.NTACL";
pub const OBJECT_ID: &str = "user.ArdenObjectId";
/// CreateGuid of the persistent open that made the file; followed by a dot and a stream's name, of the one that made that.
pub const CREATE_MARK: &str = "user.ArdenCreateGuid";

/// The names of all attributes of a file, a NUL after each, where a client gives it one more. The kernel tells none from
/// 64 KiB on (XATTR_LIST_MAX), and some file systems take more: what is left is for attributes of the store, the system and
/// for those that are there twice while a stream moves.
const NAMES_BYTES_MAX: usize = 48 * 1024;

/// Whether attributes whose names have `more` bytes, NULs included, may be added. Who asks holds `Inode::streams`, unless
/// the file is new.
pub fn has_room_for_names(fd: BorrowedFd<'_>, more: usize) -> Result<bool> {
    Ok(more == 0 || sys::xattr_names_bytes(fd).map_err(sys::failure)? + more <= NAMES_BYTES_MAX)
}

#[derive(Debug, Clone)]
pub struct Meta {
    at: Stamp,
    pub dos: DosInfo,
    pub has_streams: bool,
    pub ea_size: u32,
    /// Of an opaque reparse point; symbolic links of Linux are known by their kind.
    pub reparse_tag: u32,
    /// A change time that a client set. Linux keeps none but its own, so this lasts until the next change, in memory.
    pub change: Option<FileTime>,
    pub sd: StoredSd,
}

#[derive(Debug, Clone)]
pub enum StoredSd {
    None,
    /// There is one, which is not read yet or too large to be remembered.
    Unread,
    Known(Arc<SecurityDescriptor>),
}

/// What descriptors that are remembered with each file take of memory; larger ones are looked for by content.
const SMALL_SD_BYTES_MAX: usize = 4 << 10;

/// Whether there may be one of it for each file in memory.
pub fn is_small(sd: &SecurityDescriptor) -> bool {
    sd.heap_bytes() <= SMALL_SD_BYTES_MAX
}

impl StoredSd {
    /// One that is stored.
    pub fn of(sd: Arc<SecurityDescriptor>) -> StoredSd {
        if is_small(&sd) { StoredSd::Known(sd) } else { StoredSd::Unread }
    }
}

impl Meta {
    /// Of a file without any attribute.
    pub fn bare(at: Stamp) -> Meta {
        Meta {
            at,
            dos: DosInfo::default(),
            has_streams: false,
            ea_size: 0,
            reparse_tag: 0,
            change: None,
            sd: StoredSd::None,
        }
    }

    /// Belongs to the inode as of this change time.
    pub fn set_at(&mut self, at: Stamp) {
        self.at = at;
    }
}

impl Shared {
    /// The metadata of `inode`, whose statx is `stat`.
    pub fn meta(&self, inode: &Inode, stat: &RawStat) -> Result<Meta> {
        if let Some(meta) = inode.known.lock().meta.as_ref().filter(|m| m.at == stat.ctime) {
            return Ok(meta.clone());
        }
        if let Some(meta) = self.carry_over(inode, stat) {
            return Ok(meta);
        }
        if let Some(meta) = self.cached_meta(stat) {
            inode.known.lock().meta = Some(meta.clone());
            return Ok(meta);
        }
        let meta = match inode.kind {
            // Linux keeps no user attributes for symbolic links.
            Kind::Symlink => Meta::bare(stat.ctime),
            _ => match inode.for_reading(self.proc_fds()) {
                Ok(fd) => self.read_meta(fd, stat)?,
                // A server that is not root may not look into every file.
                Err(Errno::ACCESS | Errno::PERM) => Meta::bare(stat.ctime),
                Err(e) => return Err(sys::failure(e)),
            },
        };
        self.remember(inode, stat, meta.clone());
        Ok(meta)
    }

    /// What was known before Arden changed the file's data or name in this request scope: its attributes are what they were.
    /// Who changes attributes meanwhile either remembers the new ones afterwards or forgets all (`forget_meta`).
    fn carry_over(&self, inode: &Inode, stat: &RawStat) -> Option<Meta> {
        let before = inode.before_own_changes(stat)?;
        if !self.may_remember(stat.ctime) {
            return None;
        }
        let mut known = inode.known.lock();
        let meta = known.meta.as_mut().filter(|m| m.at == before)?;
        meta.at = stat.ctime;
        meta.change = None;
        // Under the lock, so that nobody's forgetting comes between the two.
        self.cache_meta(stat, meta.clone());
        inode.note_carried_over();
        Some(meta.clone())
    }

    /// The last user of a file in this request scope goes, who wrote to it: what is known outlives that for who opens it next.
    pub fn keep_known(&self, inode: &Inode) {
        let at = match inode.known.lock().meta.as_ref() {
            Some(meta) => meta.at,
            None => return,
        };
        if inode.is_outdated_from(at)
            && let Ok(stat) = inode.seen()
        {
            self.carry_over(inode, &stat);
        }
    }

    /// Attributes of `inode` were changed by somebody who does not say to what.
    pub fn forget_meta(&self, inode: &Inode) {
        let mut known = inode.known.lock();
        known.meta = None;
        self.metas[inode.key.ino as usize % META_SHARDS].lock().remove(&inode.key);
    }

    /// What is remembered of the file that `stat` describes, if it is still true.
    pub fn cached_meta(&self, stat: &RawStat) -> Option<Meta> {
        self.metas[stat.key.ino as usize % META_SHARDS].lock().get(&stat.key).filter(|m| m.at == stat.ctime)
    }

    /// What clients see of a file that is remembered, if that is still true.
    pub fn compose_cached(&self, stat: &RawStat, name: &str) -> Option<Stat> {
        let mut shard = self.metas[stat.key.ino as usize % META_SHARDS].lock();
        shard.with(&stat.key, |m| (m.at == stat.ctime).then(|| self.compose(stat, m, name))).flatten()
    }

    pub fn cache_meta(&self, stat: &RawStat, meta: Meta) {
        if self.may_remember(stat.ctime) {
            self.metas[stat.key.ino as usize % META_SHARDS].lock().insert(stat.key, meta);
        }
    }

    pub fn remember(&self, inode: &Inode, stat: &RawStat, meta: Meta) {
        if self.may_remember(stat.ctime) {
            inode.known.lock().meta = Some(meta.clone());
            self.cache_meta(stat, meta);
        }
    }

    fn may_remember(&self, ctime: Stamp) -> bool {
        self.fine_stamps || is_told_apart(ctime, SystemTime::now())
    }

    /// Arden changed the directory's names, which moved its change time; its own attributes are what they were.
    pub fn restamp(&self, inode: &Inode, before: Stamp, after: &RawStat) {
        let mut known = inode.known.lock();
        if let Some(meta) = known.meta.as_mut().filter(|m| m.at == before) {
            meta.at = after.ctime;
            meta.change = None;
            let meta = meta.clone();
            drop(known);
            self.cache_meta(after, meta);
        }
    }

    /// Reads the attributes through `fd`.
    pub fn read_meta(&self, fd: BorrowedFd<'_>, stat: &RawStat) -> Result<Meta> {
        let mut meta = Meta::bare(stat.ctime);
        let (mut dos, mut eas, mut opaque) = (false, false, false);
        let listed = sys::each_xattr(fd, |name| {
            if name == DOSATTRIB {
                dos = true;
            } else if name == self.ntacl || (self.ntacl == NTACL_USER && name == NTACL_ROOT) {
                meta.sd = StoredSd::Unread;
            } else if stream::is_stream_attribute(name) {
                meta.has_streams = true;
            } else if name == reparse::OPAQUE {
                opaque = true;
            } else if ea::is_ea(name) {
                eas = true;
            }
        });
        match listed {
            Ok(()) => {}
            // Only somebody on this machine can have made so many. There may be all; a descriptor above all.
            Err(Errno::TOOBIG) => {
                (dos, opaque) = (true, true);
                meta.sd = StoredSd::Unread;
                meta.has_streams = true;
                meta.ea_size = ea::LIST_BYTES_MAX as u32;
            }
            Err(e) => return Err(sys::failure(e)),
        }
        if dos {
            meta.dos = read_dos(fd);
        }
        if opaque {
            meta.reparse_tag = reparse::read_opaque_tag(fd);
        }
        if eas {
            meta.ea_size = ea::list_size(fd);
        }
        Ok(meta)
    }

    /// The stored descriptor of `inode`; None when there is none.
    pub fn stored_sd(&self, inode: &Inode, stat: &RawStat) -> Result<Option<Arc<SecurityDescriptor>>> {
        let mut meta = self.meta(inode, stat)?;
        match &meta.sd {
            StoredSd::None => return Ok(None),
            StoredSd::Known(sd) => return Ok(Some(sd.clone())),
            StoredSd::Unread => {}
        }
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        let mut value = sys::get_xattr(fd, self.ntacl, ntacl::VALUE_BYTES_MAX).map_err(sys::failure)?;
        if value.is_none() && self.ntacl == NTACL_USER {
            value = sys::get_xattr(fd, NTACL_ROOT, ntacl::VALUE_BYTES_MAX).map_err(sys::failure)?;
        }
        let Some(value) = value else { return Ok(None) };
        let sd = self.intern(&value);
        meta.sd = StoredSd::of(sd.clone());
        self.remember(inode, stat, meta);
        Ok(Some(sd))
    }

    /// The descriptor in the value of an NTACL attribute; equal values share one. A damaged one lets only administrators in.
    pub fn intern(&self, value: &[u8]) -> Arc<SecurityDescriptor> {
        if let Some(sd) = self.descriptors.lock().get(value) {
            return sd;
        }
        let sd = Arc::new(ntacl::parse(value).unwrap_or_else(|e| {
            tracing::warn!("a stored security descriptor is {e}; only administrators get access");
            super::security::administrators_only()
        }));
        self.descriptors.lock().insert(value.into(), sd.clone());
        sd
    }

    /// What statx and the attributes together say, in NT terms.
    pub fn compose(&self, stat: &RawStat, meta: &Meta, name: &str) -> Stat {
        let directory = stat.kind == Some(Kind::Directory);
        let mut attributes = match meta.dos.attributes {
            Some(a) => a & (ATTR_SETTABLE | ATTR_SPARSE | ATTR_COMPRESSED),
            None => self.default_attributes(stat, name),
        };
        let mut reparse_tag = meta.reparse_tag;
        if stat.kind == Some(Kind::Symlink) {
            reparse_tag = reparse::TAG_SYMLINK;
        }
        if reparse_tag != 0 {
            attributes |= ATTR_REPARSE_POINT;
        }
        if directory {
            attributes |= ATTR_DIRECTORY;
        } else if attributes == 0 {
            attributes = ATTR_NORMAL;
        }
        let data = stat.kind == Some(Kind::File);
        Stat {
            id: FileId { volume: stat.key.dev, file: stat.key.ino },
            directory,
            attributes,
            creation: meta.dos.creation.unwrap_or_else(|| stat.btime.to_filetime()),
            last_access: stat.atime.to_filetime(),
            last_write: stat.mtime.to_filetime(),
            change: meta.change.unwrap_or_else(|| stat.ctime.to_filetime()),
            end_of_file: if data { stat.size } else { 0 },
            allocation: if data { self.data_allocation(stat, meta) } else { 0 },
            links: if directory { 1 } else { stat.links },
            ea_size: meta.ea_size,
            reparse_tag,
        }
    }

    /// What the file system counts for attributes is not data: a new file with a descriptor has allocated nothing.
    pub fn data_allocation(&self, stat: &RawStat, meta: &Meta) -> u64 {
        let has = !matches!(meta.sd, StoredSd::None);
        stat.allocated.saturating_sub(if has { self.attribute_block_bytes } else { 0 })
    }

    fn default_attributes(&self, stat: &RawStat, name: &str) -> u32 {
        let mut a = 0;
        if stat.kind == Some(Kind::File) && stat.mode & 0o222 == 0 {
            a |= ATTR_READONLY;
        }
        if self.options.hide_dot_files && name.starts_with('.') {
            a |= ATTR_HIDDEN;
        }
        a
    }

    pub fn stat(&self, inode: &Inode, name: &str) -> Result<Stat> {
        let stat = inode.seen().map_err(sys::failure)?;
        let meta = self.meta(inode, &stat)?;
        Ok(self.compose(&stat, &meta, name))
    }

    pub fn set_basic(&self, inode: &Inode, name: &str, update: &BasicUpdate) -> Result<()> {
        let stat = inode.stat().map_err(sys::failure)?;
        let meta = self.meta(inode, &stat)?;
        if update.last_access.is_some() || update.last_write.is_some() {
            self.set_times(inode, update)?;
        }
        let mut dos = meta.dos;
        if let Some(creation) = update.creation {
            dos.creation = Some(creation);
        }
        if let Some(attributes) = update.attributes {
            let kept = dos.attributes.unwrap_or_else(|| self.default_attributes(&stat, name)) & !ATTR_SETTABLE;
            dos.attributes = Some(attributes & ATTR_SETTABLE | kept);
        }
        if dos != meta.dos {
            if inode.kind == Kind::Symlink {
                return Err(StoreError::NotSupported.into());
            }
            // The first attribute fixes the creation time, so that it outlives a copy of the tree.
            dos.creation = dos.creation.or(Some(stat.btime.to_filetime()));
            let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
            sys::set_xattr(fd, DOSATTRIB, &dosattrib::encode(&dos)).map_err(sys::failure)?;
        }
        inode.metadata_unsynced.store(true, Ordering::Relaxed);
        let after = inode.stat().map_err(sys::failure)?;
        let change = update.change.or(meta.change);
        self.remember(inode, &after, Meta { at: after.ctime, dos, change, ..meta });
        Ok(())
    }

    fn set_times(&self, inode: &Inode, update: &BasicUpdate) -> Result<()> {
        use rustix::fs::{AtFlags, Timespec, Timestamps};
        let spec = |t: Option<FileTime>| match t {
            Some(t) => {
                let (secs, nanos) = t.to_unix();
                Timespec { tv_sec: secs, tv_nsec: i64::from(nanos) }
            }
            None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        };
        let times = Timestamps { last_access: spec(update.last_access), last_modification: spec(update.last_write) };
        match rustix::fs::utimensat(inode.pin(), c"", &times, AtFlags::EMPTY_PATH) {
            // Kernels before 5.8 do not take an O_PATH descriptor here.
            Err(Errno::INVAL | Errno::BADF | Errno::NOENT) => {
                let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
                rustix::fs::futimens(fd, &times).map_err(sys::failure)
            }
            other => other.map_err(sys::failure),
        }
    }

    /// Something about the attributes of `inode` was changed by `change`; what is remembered is made to fit.
    pub fn after_change(&self, inode: &Inode, before: Meta, change: impl FnOnce(&mut Meta)) -> Result<()> {
        inode.metadata_unsynced.store(true, Ordering::Relaxed);
        let after = inode.stat().map_err(sys::failure)?;
        let mut meta = Meta { at: after.ctime, change: None, ..before };
        change(&mut meta);
        self.remember(inode, &after, meta);
        Ok(())
    }
}

fn read_dos(fd: BorrowedFd<'_>) -> DosInfo {
    match sys::get_xattr(fd, DOSATTRIB, dosattrib::VALUE_BYTES_MAX) {
        Ok(Some(value)) => dosattrib::parse(&value).unwrap_or_else(|e| {
            tracing::debug!("DOS attributes are {e}; taken as none");
            DosInfo::default()
        }),
        _ => DosInfo::default(),
    }
}
