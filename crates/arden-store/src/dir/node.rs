//! One node: an inode by one of its names, or a stream of it. Decides which part of the store answers a call, and
//! refuses calls that do not fit the kind of file.

use std::{
    any::Any,
    sync::{Arc, OnceLock, atomic::Ordering},
};

use arden_wire::dtyp::SecurityDescriptor;

use super::{
    PATH_DEPTH_MAX, Shared, data, ea,
    inode::{Inode, Link, directories_above, is_below, path_of, trail_of},
    list::Cursor,
    mark,
    meta::OBJECT_ID,
    sys::{self, InodeKey, Kind},
};
use crate::commit::{ChangedBy, ScopeId};
use crate::error::StoreError;
use crate::open_stream::StreamRef;
use crate::store::{
    BasicUpdate, CLUSTER_BYTES, DirCursor, Ea, FileId, NewFile, Node, NodeRef, Replace, Result, Stat, StreamEntry,
    Trail, Wait,
};

pub struct DirNode {
    pub store: Arc<Shared>,
    pub inode: Arc<Inode>,
    pub link: Arc<Link>,
    /// Which stream it was opened as, or its data has become since.
    pub stream: OnceLock<Arc<StreamRef>>,
}

impl DirNode {
    /// The named stream that this is now.
    fn named(&self) -> Option<&StreamRef> {
        self.stream.get().map(|s| &**s).filter(|s| !s.is_unnamed())
    }

    fn name(&self) -> Arc<str> {
        self.link.place.lock().name.clone()
    }

    /// Data calls: on files and streams.
    fn file(&self) -> Result<&Inode> {
        if self.inode.kind == Kind::File { Ok(&self.inode) } else { Err(StoreError::WrongObject.into()) }
    }

    pub fn directory(&self) -> Result<&Arc<Inode>> {
        if self.inode.kind == Kind::Directory && self.named().is_none() {
            Ok(&self.inode)
        } else {
            Err(StoreError::NotADirectory.into())
        }
    }

    /// The file's data becomes a stream, and this node one of that stream.
    fn data_to_stream(&self, name: &str, replace: bool) -> Result<()> {
        self.store.data_to_stream(&self.inode, name, replace)?;
        self.stream.get_or_init(|| self.inode.open_streams.open(name));
        Ok(())
    }

    fn make_stream(&self, by: ChangedBy, name: &str, mark: Option<u128>) -> Result<NodeRef> {
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        let created = self.store.create_stream(&self.inode, name, mark);
        self.store.forget_meta(&self.inode);
        created?;
        Ok(self.store.stream_node(self.inode.clone(), self.link.clone(), name.to_owned()))
    }

    fn reading(&self) -> Result<std::os::fd::BorrowedFd<'_>> {
        if self.inode.kind == Kind::Symlink {
            return Err(StoreError::NotSupported.into());
        }
        self.inode.for_reading(self.store.proc_fds()).map_err(sys::failure)
    }
}

impl Drop for DirNode {
    fn drop(&mut self) {
        self.store.keep_known(&self.inode);
        self.link.node_ends();
    }
}

pub fn own(node: &dyn Node) -> Result<&DirNode> {
    node.as_any().downcast_ref::<DirNode>().ok_or(StoreError::NotSameVolume.into())
}

/// Whether a directory is above the root of a store.
fn is_above_root(directory: InodeKey, store: &Shared) -> Result<bool> {
    let (mut path, mut here) = ("..".to_owned(), store.root.key);
    for _ in 0..PATH_DEPTH_MAX {
        let above = sys::stat_child(store.root.pin(), &path).map_err(sys::failure)?.key;
        if above == directory {
            return Ok(true);
        }
        // The top is its own parent.
        if above == here {
            break;
        }
        here = above;
        path.push_str("/..");
    }
    Ok(false)
}

impl Node for DirNode {
    fn id(&self) -> FileId {
        self.inode.key.file_id()
    }

    fn born(&self) -> u64 {
        self.inode.seen().map_or(0, |stat| stat.born)
    }

    fn is_directory(&self) -> bool {
        self.inode.kind == Kind::Directory && self.named().is_none()
    }

    fn stream(&self) -> Option<&str> {
        self.named().map(|s| s.opened_as.as_str())
    }

    fn path(&self) -> Vec<String> {
        path_of(&self.link)
    }

    fn trail(&self) -> Trail {
        trail_of(&self.link)
    }

    fn is_above(&self, other: &dyn Node) -> Result<bool> {
        let Some(other) = other.as_any().downcast_ref::<DirNode>() else { return Ok(false) };
        if is_below(&other.link, &self.inode) {
            return Ok(true);
        }
        // Another store's nodes know the directories from its root on, which may be below this one.
        let of_other = !Arc::ptr_eq(&self.store, &other.store) && self.store.overlap.overlaps(&other.store.overlap);
        Ok(of_other && is_above_root(self.inode.key, &other.store)?)
    }

    fn directories_above(&self, itself: bool, next: &mut dyn FnMut(u64) -> bool) {
        let above = || self.link.place.lock().parent.clone();
        directories_above(if itself { Some(self.inode.clone()) } else { above() }, next);
    }

    fn keep_with_name(&self, kept: Arc<dyn Any + Send + Sync>) {
        let before = self.link.place.lock().kept.replace(kept);
        drop(before);
    }

    fn place(&self) -> (u64, String) {
        let place = self.link.place.lock();
        (place.parent.as_ref().map_or(0, |p| p.key.ino), crate::name::fold(&place.name).into_owned())
    }

    fn stat(&self) -> Result<Stat> {
        let _stays = self.inode.places.read_recursive();
        let mut stat = self.store.stat(&self.inode, &self.name())?;
        if self.inode.kind == Kind::File && self.named().is_none() {
            let promised = self.inode.promised_bytes.load(Ordering::Relaxed);
            stat.allocation = stat.allocation.max(promised.next_multiple_of(CLUSTER_BYTES));
        }
        if let Some(stream) = self.named() {
            (stat.end_of_file, stat.allocation) = self.store.stream_size(&self.inode, &stream.name()?)?;
        }
        Ok(stat)
    }

    fn rely_on(&self, scope: ScopeId) -> bool {
        self.store.rely_on(scope, &self.inode, &self.link)
    }

    fn set_basic(&self, by: ChangedBy, update: &BasicUpdate) -> Result<()> {
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        self.store.set_basic(&self.inode, &self.name(), update)
    }

    fn security(&self) -> Result<Arc<SecurityDescriptor>> {
        self.store.security(&self.inode, &self.link)
    }

    fn child_security(&self, name: &str) -> Result<Arc<SecurityDescriptor>> {
        let (inode, link) = self.store.child(&self.inode, name, false)?.ok_or(StoreError::NotFound)?;
        self.store.security(&inode, &link)
    }

    fn set_security(&self, by: ChangedBy, sd: &SecurityDescriptor) -> Result<()> {
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        self.store.set_security(&self.inode, sd)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], wait: Wait) -> Result<usize> {
        let _stays = self.inode.places.read_recursive();
        if let Some(stream) = self.named() {
            return self.store.read_stream(&self.inode, &stream.name()?, offset, buf);
        }
        let fd = self.file()?.for_reading(self.store.proc_fds()).map_err(sys::failure)?;
        let wait = if self.store.in_memory { Wait::Yes } else { wait };
        data::read_at(fd, offset, buf, wait)
    }

    fn write_at(&self, by: ChangedBy, offset: u64, bytes: &[u8], _wait: Wait) -> Result<()> {
        let _stays = self.inode.places.read_recursive();
        if let Some(stream) = self.named() {
            let mut changing = self.store.note_change(by, &self.inode, &self.link);
            changing.everything();
            return self.store.write_stream(&self.inode, &stream.name()?, offset, bytes);
        }
        let _changing = self.store.note_data_change(by, &self.inode, &self.link);
        let fd = self.file()?.for_writing(self.store.proc_fds()).map_err(sys::failure)?;
        data::write_at(fd, offset, bytes)
    }

    fn set_end_of_file(&self, by: ChangedBy, size: u64) -> Result<()> {
        let _stays = self.inode.places.read_recursive();
        let mut changing = self.store.note_change(by, &self.inode, &self.link);
        if let Some(stream) = self.named() {
            changing.everything();
            return self.store.set_stream_size(&self.inode, &stream.name()?, size);
        }
        let fd = self.file()?.for_writing(self.store.proc_fds()).map_err(sys::failure)?;
        self.release_allocation(by);
        if size == 0 {
            self.inode.emptied.store(true, Ordering::Relaxed);
        }
        rustix::fs::ftruncate(fd, size).map_err(|e| match e {
            rustix::io::Errno::INVAL | rustix::io::Errno::FBIG => StoreError::DiskFull.into(),
            e => sys::failure(e),
        })
    }

    fn set_allocation(&self, by: ChangedBy, size: u64) -> Result<()> {
        let _stays = self.inode.places.read_recursive();
        let mut changing = self.store.note_change(by, &self.inode, &self.link);
        if let Some(stream) = self.named() {
            changing.everything();
            let name = stream.name()?;
            let (now, _) = self.store.stream_size(&self.inode, &name)?;
            data::check_room(self.inode.pin(), size.saturating_sub(now))?;
            return if size < now { self.store.set_stream_size(&self.inode, &name, size) } else { Ok(()) };
        }
        self.store.set_allocation(self.file()?, size)
    }

    fn release_allocation(&self, _by: ChangedBy) {
        if self.named().is_none() {
            self.inode.promised_bytes.store(0, Ordering::Relaxed);
        }
    }

    fn zero_range(&self, by: ChangedBy, offset: u64, len: u64) -> Result<()> {
        let _stays = self.inode.places.read_recursive();
        let mut changing = self.store.note_change(by, &self.inode, &self.link);
        if let Some(stream) = self.named() {
            changing.everything();
            return self.store.zero_stream(&self.inode, &stream.name()?, offset, len);
        }
        self.store.zero_range(self.file()?, offset, len)
    }

    fn allocated_ranges(&self, offset: u64, len: u64, max: usize) -> Result<Vec<(u64, u64)>> {
        if self.named().is_some() {
            let end = offset.saturating_add(len).min(self.stat()?.end_of_file);
            return Ok(if offset < end { vec![(offset, end - offset)] } else { Vec::new() });
        }
        self.store.allocated_ranges(self.file()?, offset, len, max)
    }

    fn set_sparse(&self, by: ChangedBy, sparse: bool) -> Result<()> {
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        // [MS-FSA] 2.1.5.10.37: a property of the stream; Linux has it for the file alone.
        if self.named().is_some() {
            return Err(StoreError::NotSupported.into());
        }
        self.store.set_sparse(self.file()?, &self.name(), sparse)
    }

    fn copy_from(&self, by: ChangedBy, source: &dyn Node, source_offset: u64, offset: u64, len: u64) -> Result<u64> {
        let _stays = self.inode.places.read_recursive();
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        let source = own(source)?;
        if self.named().is_none() && source.named().is_none() {
            return self.store.copy(source.file()?, self.file()?, source_offset, offset, len);
        }
        let mut buf = vec![0; len.min(1 << 20) as usize];
        let mut done = 0;
        while done < len {
            let n = buf.len().min((len - done) as usize);
            let got = source.read_at(source_offset + done, &mut buf[..n], Wait::Yes)?;
            if got == 0 {
                break;
            }
            self.write_at(by, offset + done, &buf[..got], Wait::Yes)?;
            done += got as u64;
        }
        Ok(done)
    }

    fn clone_from(&self, by: ChangedBy, source: &dyn Node, source_offset: u64, offset: u64, len: u64) -> Result<()> {
        let _stays = self.inode.places.read_recursive();
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        let source = own(source)?;
        if self.named().is_some() || source.named().is_some() || !self.store.shares_extents(&self.inode) {
            return Err(StoreError::NotSupported.into());
        }
        self.store.share(source.file()?, self.file()?, source_offset, offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.store.sync(&self.inode, &self.link)
    }

    fn streams(&self) -> Result<Vec<StreamEntry>> {
        let _stays = self.inode.places.read_recursive();
        self.store.streams(&self.inode)
    }

    fn named_stream(&self, name: &str) -> Result<Option<NodeRef>> {
        let found = self.store.find_stream(&self.inode, name)?;
        Ok(found.map(|real| self.store.stream_node(self.inode.clone(), self.link.clone(), real)))
    }

    fn create_stream(&self, by: ChangedBy, name: &str) -> Result<NodeRef> {
        self.make_stream(by, name, None)
    }

    fn create_stream_marked(&self, by: ChangedBy, name: &str, mark: u128) -> Result<NodeRef> {
        self.make_stream(by, name, Some(mark))
    }

    fn eas(&self) -> Result<Vec<Ea>> {
        if self.inode.kind == Kind::Symlink {
            return Ok(Vec::new());
        }
        ea::read(self.reading()?)
    }

    fn set_eas(&self, by: ChangedBy, eas: &[Ea]) -> Result<()> {
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        let _lock = self.inode.streams.lock();
        let written = ea::write(self.reading()?, eas);
        self.store.forget_meta(&self.inode);
        written
    }

    fn reparse(&self) -> Result<(u32, Vec<u8>)> {
        self.store.reparse(&self.inode)
    }

    fn set_reparse(&self, by: ChangedBy, tag: u32, data: &[u8]) -> Result<()> {
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        self.store.set_reparse(&self.inode, tag, data)
    }

    fn delete_reparse(&self, by: ChangedBy, tag: u32) -> Result<()> {
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        self.store.delete_reparse(&self.inode, tag)
    }

    fn object_id(&self) -> Result<Option<u128>> {
        let value = sys::get_xattr(self.reading()?, OBJECT_ID, 64).map_err(sys::failure)?;
        Ok(value.and_then(|v| v.try_into().ok()).map(u128::from_le_bytes))
    }

    fn set_object_id(&self, by: ChangedBy, id: u128) -> Result<()> {
        let _changing = self.store.note_change(by, &self.inode, &self.link);
        sys::set_xattr(self.reading()?, OBJECT_ID, &id.to_le_bytes()).map_err(sys::failure)
    }

    fn create_mark(&self) -> Result<Option<u128>> {
        if !matches!(self.inode.kind, Kind::File | Kind::Directory) {
            return Ok(None);
        }
        let stream = self.named().map(|s| s.name()).transpose()?;
        mark::read(self.reading()?, stream.as_deref())
    }

    fn create_child(&self, by: ChangedBy, name: &str, new: &NewFile<'_>) -> Result<NodeRef> {
        let (inode, link) = self.store.create_child(by, self.directory()?, name, new, None)?;
        Ok(self.store.node(inode, link))
    }

    fn create_child_marked(&self, by: ChangedBy, name: &str, new: &NewFile<'_>, mark: u128) -> Result<NodeRef> {
        let (inode, link) = self.store.create_child(by, self.directory()?, name, new, Some(mark))?;
        Ok(self.store.node(inode, link))
    }

    fn list(&self) -> Result<Box<dyn DirCursor>> {
        Ok(Box::new(Cursor::new(self.store.clone(), self.directory()?.clone())?))
    }

    fn is_empty_directory(&self) -> Result<bool> {
        self.store.is_empty(self.directory()?)
    }

    fn rename_stream(&self, by: ChangedBy, name: Option<&str>, replace: bool) -> Result<()> {
        let file = self.inode.kind == Kind::File;
        let _alone = self.inode.places.write();
        let mut changing = self.store.note_change(by, &self.inode, &self.link);
        changing.everything();
        let renamed = match (self.named(), name) {
            (None, None) if file => Ok(()),
            (None, Some(name)) if file => self.data_to_stream(name, replace),
            (Some(stream), Some(name)) => self.store.rename_stream(&self.inode, stream, name, replace),
            (Some(stream), None) if file => self.store.stream_to_data(&self.inode, stream),
            _ => Err(StoreError::InvalidParameter.into()),
        };
        self.store.forget_meta(&self.inode);
        renamed
    }

    fn rename_replacing(&self, by: ChangedBy, directory: &dyn Node, name: &str, replace: Replace) -> Result<()> {
        if self.named().is_some() {
            return Err(StoreError::InvalidParameter.into());
        }
        self.store.rename(by, &self.inode, &self.link, own(directory)?.directory()?, name, replace)
    }

    fn link_replacing(&self, by: ChangedBy, directory: &dyn Node, name: &str, replace: Replace) -> Result<()> {
        if self.named().is_some() {
            return Err(StoreError::InvalidParameter.into());
        }
        self.store.link(by, &self.inode, &self.link, own(directory)?.directory()?, name, replace)
    }

    fn unlink(&self, by: ChangedBy) -> Result<()> {
        if let Some(stream) = self.named() {
            let mut changing = self.store.note_change(by, &self.inode, &self.link);
            changing.everything();
            let deleted = self.store.delete_stream(&self.inode, stream);
            self.store.forget_meta(&self.inode);
            return deleted;
        }
        self.store.unlink(by, &self.inode, &self.link)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
