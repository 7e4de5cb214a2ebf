//! One file, directory or stream as the store's users see it: which part of the volume answers a call, and which calls
//! do not fit the kind of file.

use std::{
    any::Any,
    sync::{Arc, OnceLock},
};

use arden_block::BLOCK_BYTES;
use arden_store::commit::{ChangedBy, ScopeId};
use arden_store::error::{NotDone, StoreError};
use arden_store::name::is_short;
use arden_store::open_stream::StreamRef;
use arden_store::store::{
    BasicUpdate, ClusterRun, DirCursor, Ea, FileId, Integrity, Named, NewFile, Node, NodeRef, OUTSIDE, Replace, Result,
    Stat, StreamDelta, StreamEntry, StreamSnapshotInfo, Trail, Wait,
};
use arden_wire::{
    access::ATTR_SETTABLE,
    dtyp::{SecurityDescriptor, Sid},
};

use crate::{
    disk::{
        inode::{Data, Inode, ROOT_INO, Stream, StreamSnapshot},
        keys,
    },
    engine::view::View,
    facade::{list::Cursor, shared::Shared, volume::Volume},
    features::{
        ea,
        stream_snapshot::{self, Deltas},
    },
    files::{
        data::{Reaches, Target},
        inodes::{load_inode, load_stream, now},
        names::{self, short_names},
        open::{Link, OpenFile},
        places::{Parts, allocated_piece, append, cluster_runs},
        subject::Subject,
        txn::FileTxn,
    },
};

/// [MS-FSCC] 2.1.2.2: MAXIMUM_REPARSE_DATA_BUFFER_SIZE, without its header.
const REPARSE_BYTES_MAX: usize = 16_384 - 8;
/// Copies inside the volume pass through a buffer of this size.
const COPY_BYTES: usize = 1 << 20;
/// Less is copied rather than shared: an extent more costs more than the bytes.
const SHARE_BYTES_MIN: u64 = 64 << 10;

pub struct VolNode {
    pub shared: Arc<Shared>,
    pub file: Arc<OpenFile>,
    pub link: Arc<Link>,
    /// Which stream it was opened as, or its data has become since.
    pub stream: OnceLock<Arc<StreamRef>>,
}

/// Copies through memory; fewer bytes only at the end of the source.
fn copy_bytes(source: &VolNode, from: u64, target: &Target<'_>, to: u64, len: u64, seq: &mut u64) -> Result<u64> {
    let mut buf = vec![0; len.min(COPY_BYTES as u64) as usize];
    let mut done = 0;
    while done < len {
        let n = buf.len().min((len - done) as usize);
        let got = source.read_at(from + done, &mut buf[..n], Wait::Yes)?;
        if got == 0 {
            break;
        }
        *seq = target.write(to + done, &buf[..got], Wait::Yes, Reaches::Now)?.max(*seq);
        done += got as u64;
    }
    Ok(done)
}

pub fn own(node: &dyn Node) -> Result<&VolNode, StoreError> {
    node.as_any().downcast_ref::<VolNode>().ok_or(StoreError::NotSameVolume)
}

/// All that a snapshot of this stream of a volume holds, for whoever checks a volume: no client asks for it.
///
/// # Errors
/// `NotFound`, and those of a read.
pub fn read_stream_snapshot(node: &dyn Node, name: &str) -> Result<Vec<u8>> {
    let node = own(node)?;
    let _lock = node.shared.past.is_none().then(|| node.file.keep_data());
    let parts = {
        let view = node.shared.view()?;
        let data = stream_snapshot::find(&view, node.subject(&view)?.data().snapshots, name)?.data;
        Parts::find(&view, &data, 0, data.eof as usize)?
    };
    let mut out = vec![0; parts.len];
    parts.read(&node.vol().files, &mut out, Wait::Yes)?;
    Ok(out)
}

impl VolNode {
    fn vol(&self) -> &Arc<Volume> {
        &self.shared.vol
    }

    /// A stream of this file.
    fn stream_node(&self, stream: Arc<StreamRef>) -> NodeRef {
        let stream = OnceLock::from(stream);
        let (shared, file, link) = (self.shared.clone(), self.file.clone(), self.link.clone());
        Arc::new(VolNode { shared, file, link, stream })
    }

    /// The named stream that this is now.
    fn named(&self) -> Option<&StreamRef> {
        self.stream.get().map(|s| &**s).filter(|s| !s.is_unnamed())
    }

    fn subject(&self, view: &dyn View) -> Result<Subject, StoreError> {
        Subject::load(view, &self.file, self.stream.get().map(|s| &**s))
    }

    /// Data that is there to be changed.
    fn target(&self) -> Result<Target<'_>> {
        self.shared.check_writable()?;
        if self.file.directory && self.named().is_none() {
            return Err(StoreError::WrongObject.into());
        }
        Ok(Target { files: &self.vol().files, file: &self.file, stream: &self.stream })
    }

    /// A directory that is there to be changed.
    fn directory(&self) -> Result<u64> {
        self.shared.check_writable()?;
        self.check_directory()?;
        Ok(self.file.ino)
    }

    fn check_directory(&self) -> Result<()> {
        if self.is_directory() { Ok(()) } else { Err(StoreError::NotADirectory.into()) }
    }

    /// Its name may be changed.
    fn check_movable(&self) -> Result<()> {
        self.shared.check_writable()?;
        if self.file.ino == self.shared.root || self.file.ino == ROOT_INO {
            return Err(StoreError::RootStays.into());
        }
        Ok(())
    }

    fn same_volume(&self, other: &VolNode) -> Result<()> {
        let same = Arc::ptr_eq(self.vol(), other.vol()) && self.shared.is_same_moment(&other.shared);
        if same { Ok(()) } else { Err(StoreError::NotSameVolume.into()) }
    }

    /// Changes the inode in one operation.
    fn change(&self, change: impl FnOnce(&mut FileTxn<'_>, &mut Inode) -> Result<()>) -> Result<()> {
        self.shared.check_writable()?;
        self.vol().engine.make_room()?;
        let mut t = self.vol().files.begin_beside();
        let mut inode = load_inode(&t, self.file.ino)?;
        change(&mut t, &mut inode)?;
        t.put_inode(self.file.ino, &inode);
        let seq = t.commit()?;
        self.shared.done(seq)
    }

    fn make_child(&self, name: &str, new: &NewFile<'_>, mark: Option<u128>) -> Result<NodeRef> {
        let (file, link, seq) = self.vol().create_child(self.directory()?, name, new, mark)?;
        self.shared.done(seq)?;
        Ok(Arc::new(VolNode { shared: self.shared.clone(), file, link, stream: OnceLock::new() }))
    }

    fn make_stream(&self, name: &str, mark: Option<u128>) -> Result<NodeRef> {
        self.shared.check_writable()?;
        let (stream, seq) = self.vol().create_stream(&self.file, name, mark)?;
        self.shared.done(seq)?;
        Ok(self.stream_node(stream))
    }
}

impl Node for VolNode {
    fn id(&self) -> FileId {
        FileId { volume: self.shared.volume_id, file: self.file.ino }
    }

    fn is_directory(&self) -> bool {
        self.file.directory && self.named().is_none()
    }

    fn stream(&self) -> Option<&str> {
        self.named().map(|s| s.opened_as.as_str())
    }

    fn path(&self) -> Vec<String> {
        if self.file.ino == self.shared.root {
            return Vec::new();
        }
        let p = self.link.place.lock().clone();
        let found = self.shared.view().and_then(|view| Ok(names::path(&view, self.shared.root, p.parent, &p.name)?));
        found.ok().flatten().unwrap_or_else(|| vec![OUTSIDE.into(), self.file.ino.to_string(), p.name])
    }

    fn trail(&self) -> Trail {
        let volume = self.shared.volume_id;
        let found = self.shared.view().and_then(|view| {
            let (parent, name) = match self.file.ino {
                ROOT_INO => return Ok(Vec::new()),
                ino if ino == self.shared.root => {
                    let root = load_inode(&view, ino)?;
                    (root.parent, root.name)
                }
                _ => {
                    let place = self.link.place.lock();
                    (place.parent, place.name.clone())
                }
            };
            Ok(names::trail(&view, ROOT_INO, parent, &name)?.unwrap_or_default())
        });
        let named = |(directory, name)| Named { directory: FileId { volume, file: directory }, name };
        found.unwrap_or_default().into_iter().map(named).collect()
    }

    fn is_above(&self, other: &dyn Node) -> Result<bool> {
        let id = self.id();
        Ok(other.trail().iter().any(|named| named.directory == id))
    }

    fn place(&self) -> (u64, String) {
        let place = self.link.place.lock();
        (place.parent, arden_store::name::fold(&place.name).into_owned())
    }

    fn stat(&self) -> Result<Stat> {
        let view = self.shared.view()?;
        let inode = load_inode(&view, self.file.ino)?;
        let Some(s) = self.named() else { return Ok(self.shared.stat(self.file.ino, &inode, None)) };
        let name = s.name()?;
        let (_, stream) = load_stream(&view, self.file.ino, &name)?.ok_or(StoreError::Deleted)?;
        Ok(self.shared.stat(self.file.ino, &inode, Some(&stream.data)))
    }

    fn rely_on(&self, _scope: ScopeId) -> bool {
        let (last, durable) = self.vol().progress();
        if self.shared.past.is_some() || last <= durable {
            return false;
        }
        let (parent, root) = (self.link.place.lock().parent, self.shared.root);
        let parent = if self.file.ino == root { root } else { parent };
        let view = self.vol().engine.reading();
        // Where it cannot be told, all that was done is relied on.
        self.vol().recent.last(&view, self.file.ino, parent, root).unwrap_or(last) > durable
    }

    fn set_basic(&self, _by: ChangedBy, update: &BasicUpdate) -> Result<()> {
        self.change(|_, inode| {
            let quiet = BasicUpdate { last_access: update.last_access, ..BasicUpdate::default() };
            if update.change.is_none() && *update != quiet {
                inode.change = now();
            }
            inode.creation = update.creation.unwrap_or(inode.creation);
            inode.last_access = update.last_access.unwrap_or(inode.last_access);
            inode.last_write = update.last_write.unwrap_or(inode.last_write);
            inode.change = update.change.unwrap_or(inode.change);
            if let Some(a) = update.attributes {
                inode.attributes = a & ATTR_SETTABLE;
            }
            Ok(())
        })
    }

    fn security(&self) -> Result<Arc<SecurityDescriptor>> {
        let view = self.shared.view()?;
        let inode = load_inode(&view, self.file.ino)?;
        Ok(self.vol().files.descriptors.get(&view, inode.sd)?)
    }

    fn child_security(&self, name: &str) -> Result<Arc<SecurityDescriptor>> {
        self.check_directory()?;
        let view = self.shared.view()?;
        let entry = names::find(&view, self.file.ino, name)?.ok_or(StoreError::NotFound)?;
        let inode = load_inode(&view, entry.ino)?;
        Ok(self.vol().files.descriptors.get(&view, inode.sd)?)
    }

    fn set_security(&self, _by: ChangedBy, sd: &SecurityDescriptor) -> Result<()> {
        self.change(|t, inode| {
            let old = inode.sd;
            inode.sd = t.intern_descriptor(sd)?;
            t.drop_descriptor(old)?;
            inode.change = now();
            Ok(())
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], wait: Wait) -> Result<usize> {
        if self.shared.past.is_none() {
            let n = self.target()?.read(offset, buf, wait)?;
            if n > 0 {
                self.vol().files.accessed(self.file.ino);
            }
            return Ok(n);
        }
        // What the past holds stays where it is while the view lives.
        let view = self.shared.view()?;
        Parts::find(&view, self.subject(&view)?.data(), offset, buf.len())?.read(&self.vol().files, buf, wait)
    }

    fn read_copy_at(&self, copy: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if self.shared.past.is_none() {
            let n = self.target()?.read_copy(copy, offset, buf)?;
            if n > 0 {
                self.vol().files.accessed(self.file.ino);
            }
            return Ok(n);
        }
        let view = self.shared.view()?;
        Parts::find(&view, self.subject(&view)?.data(), offset, buf.len())?.read_copy(&self.vol().files, copy, buf)
    }

    fn write_at(&self, by: ChangedBy, offset: u64, data: &[u8], wait: Wait) -> Result<()> {
        let target = self.target()?;
        if data.is_empty() {
            return Ok(());
        }
        if wait == Wait::No && self.shared.durable {
            return Err(NotDone::WouldBlock);
        }
        let awaited = by.is_some() || self.shared.durable;
        let when = if awaited { Reaches::Now } else { Reaches::Soon };
        self.shared.done(target.write(offset, data, wait, when)?)
    }

    fn set_end_of_file(&self, _by: ChangedBy, size: u64) -> Result<()> {
        self.shared.done(self.target()?.set_end_of_file(size)?)
    }

    fn set_allocation(&self, _by: ChangedBy, size: u64) -> Result<()> {
        self.shared.done(self.target()?.set_allocation(size)?)
    }

    fn release_allocation(&self, _by: ChangedBy) {
        let released = self.target().and_then(|t| t.release_allocation());
        if let Err(e) = released {
            tracing::debug!("room promised to file {} is kept: {e}", self.file.ino);
        }
    }

    fn zero_range(&self, _by: ChangedBy, offset: u64, len: u64) -> Result<()> {
        self.shared.done(self.target()?.zero(offset, len)?)
    }

    fn allocated_ranges(&self, offset: u64, len: u64, max: usize) -> Result<Vec<(u64, u64)>> {
        let (mut at, end) = (offset, offset.saturating_add(len));
        let mut ranges = Vec::new();
        // One more tells that the last one goes no further.
        while at < end && ranges.len() <= max {
            let view = self.shared.view()?;
            let (piece, next) = allocated_piece(&view, self.subject(&view)?.data(), at, end)?;
            piece.into_iter().for_each(|range| append(&mut ranges, range));
            at = next;
        }
        ranges.truncate(max);
        Ok(ranges)
    }

    fn cluster_runs(&self, from: u64, max: usize) -> Result<Vec<ClusterRun>> {
        if self.is_directory() {
            // Its entries lie in the tree.
            return Err(StoreError::EndOfFile.into());
        }
        let view = self.shared.view()?;
        let runs = cluster_runs(&view, self.subject(&view)?.data(), from, max)?;
        if runs.is_empty() { Err(StoreError::EndOfFile.into()) } else { Ok(runs) }
    }

    fn set_sparse(&self, _by: ChangedBy, sparse: bool) -> Result<()> {
        self.shared.done(self.target()?.set_sparse(sparse)?)
    }

    fn integrity(&self) -> Result<Integrity> {
        let view = self.shared.view()?;
        match self.is_directory() {
            true => Ok(load_inode(&view, self.file.ino)?.data.integrity),
            false => Ok(self.subject(&view)?.data().integrity),
        }
    }

    fn set_integrity(&self, _by: ChangedBy, integrity: Integrity) -> Result<()> {
        if self.is_directory() {
            return self.change(|_, inode| {
                inode.data.integrity = integrity;
                inode.change = now();
                Ok(())
            });
        }
        self.shared.done(self.target()?.set_integrity(integrity)?)
    }

    fn stream_snapshots(&self) -> Result<Vec<StreamSnapshotInfo>> {
        let view = self.shared.view()?;
        let all = stream_snapshot::list(&view, self.subject(&view)?.data().snapshots)?;
        let info = |s: StreamSnapshot| StreamSnapshotInfo {
            size: s.data.eof,
            allocation: s.data.allocation(),
            created: s.created,
            name: s.name,
        };
        Ok(all.into_iter().map(|(_, s)| info(s)).collect())
    }

    fn create_stream_snapshot(&self, _by: ChangedBy, name: &str) -> Result<()> {
        self.shared.done(stream_snapshot::create(&self.target()?, name)?)
    }

    fn stream_deltas(&self, name: &str, from: u64, max: usize) -> Result<Vec<StreamDelta>> {
        let mut deltas = Deltas::new(from, max);
        loop {
            // Looked up anew each time: nobody's writes wait for the whole comparison.
            let view = self.shared.view()?;
            let subject = self.subject(&view)?;
            let snapshot = stream_snapshot::find(&view, subject.data().snapshots, name)?;
            if deltas.compare(&view, subject.data(), &snapshot.data)? {
                return Ok(deltas.found);
            }
        }
    }

    fn revert_stream(&self, _by: ChangedBy, name: &str) -> Result<()> {
        self.shared.done(stream_snapshot::revert(&self.target()?, name)?)
    }

    fn copy_from(&self, _by: ChangedBy, source: &dyn Node, source_offset: u64, offset: u64, len: u64) -> Result<u64> {
        let (source, target) = (own(source)?, self.target()?);
        let len = source.stat()?.end_of_file.saturating_sub(source_offset).min(len);
        // The ends of blocks are copied, what lies between them is shared where that is possible.
        let head = source_offset.next_multiple_of(BLOCK_BYTES).saturating_sub(source_offset).min(len);
        let whole = (len - head) / BLOCK_BYTES * BLOCK_BYTES;
        let mut seq = 0;
        // A part that is copied first must not be what the next one is copied from.
        let overlaps = self.file.ino == source.file.ino && source_offset.abs_diff(offset) < len;
        if whole >= SHARE_BYTES_MIN
            && !overlaps
            && (offset + head).is_multiple_of(BLOCK_BYTES)
            && source.shared.past.is_none()
            && self.same_volume(source).is_ok()
        {
            let mut done = copy_bytes(source, source_offset, &target, offset, head, &mut seq)?;
            if done == head {
                match target.clone_from(&source.target()?, source_offset + head, offset + head, whole) {
                    Ok(s) => (seq, done) = (s.max(seq), head + whole),
                    Err(NotDone::Failed(StoreError::NotSupported | StoreError::InvalidParameter)) => {}
                    Err(e) => return Err(e),
                }
                done += copy_bytes(source, source_offset + done, &target, offset + done, len - done, &mut seq)?;
            }
            self.shared.done(seq)?;
            return Ok(done);
        }
        let done = copy_bytes(source, source_offset, &target, offset, len, &mut seq)?;
        self.shared.done(seq)?;
        Ok(done)
    }

    fn freeze(&self, offset: u64, len: u64, owner: &Sid) -> Result<(NodeRef, u64)> {
        if self.shared.past.is_some() {
            return Err(StoreError::NotSupported.into());
        }
        let source = self.target()?;
        let eof = self.stat()?.end_of_file;
        let from = offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = offset.saturating_add(len).min(eof).next_multiple_of(BLOCK_BYTES).min(eof);
        let make = || -> Result<VolNode> {
            let file = self.vol().create_nameless(owner)?;
            let link = file.link(0, "");
            let frozen = VolNode { shared: self.shared.clone(), file, link, stream: OnceLock::new() };
            if from < end {
                frozen.target()?.clone_at_once(&source, from, 0, end - from)?;
            }
            Ok(frozen)
        };
        let frozen = match make() {
            Err(NotDone::Failed(StoreError::InsufficientResources)) => {
                // Once more with all the room that there can be.
                self.vol().engine.reclaim_all()?;
                self.vol().engine.checkpoint()?;
                make()?
            }
            other => other?,
        };
        Ok((Arc::new(frozen), offset - from))
    }

    fn clone_from(&self, _by: ChangedBy, source: &dyn Node, source_offset: u64, offset: u64, len: u64) -> Result<()> {
        let source = own(source)?;
        let target = self.target()?;
        self.same_volume(source)?;
        let from = source.target()?;
        if len == 0 {
            return Ok(());
        }
        self.shared.done(target.clone_from(&from, source_offset, offset, len)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.vol().engine.sync()?)
    }

    fn streams(&self) -> Result<Vec<StreamEntry>> {
        let view = self.shared.view()?;
        let inode = load_inode(&view, self.file.ino)?;
        let entry = |name: String, d: &Data| StreamEntry { name, size: d.eof, allocation: d.allocation() };
        let mut out = Vec::new();
        if !inode.directory {
            out.push(entry(String::new(), &inode.data));
        }
        let ino = self.file.ino;
        for (_, v) in view.collect(&keys::one(keys::STREAM, ino), &keys::end_of(keys::STREAM, ino), usize::MAX)? {
            let s = Stream::decode(&v)?;
            out.push(entry(s.name, &s.data));
        }
        Ok(out)
    }

    fn named_stream(&self, name: &str) -> Result<Option<NodeRef>> {
        let view = self.shared.view()?;
        let found = load_stream(&view, self.file.ino, name)?;
        Ok(found.map(|(_, stream)| self.stream_node(self.file.streams.open(&stream.name))))
    }

    fn create_stream(&self, _by: ChangedBy, name: &str) -> Result<NodeRef> {
        self.make_stream(name, None)
    }

    fn create_stream_marked(&self, _by: ChangedBy, name: &str, mark: u128) -> Result<NodeRef> {
        self.make_stream(name, Some(mark))
    }

    fn eas(&self) -> Result<Vec<Ea>> {
        Ok(ea::load(&self.shared.view()?, self.file.ino)?)
    }

    fn set_eas(&self, _by: ChangedBy, eas: &[Ea]) -> Result<()> {
        self.shared.check_writable()?;
        ea::check(eas)?;
        self.change(|t, inode| {
            let present = ea::load(t, self.file.ino)?;
            inode.ea_size = ea::store(t, self.file.ino, &ea::merge(present, eas))?;
            inode.change = now();
            Ok(())
        })
    }

    fn reparse(&self) -> Result<(u32, Vec<u8>)> {
        let view = self.shared.view()?;
        match load_inode(&view, self.file.ino)?.reparse_tag {
            0 => Err(StoreError::NotAReparsePoint.into()),
            tag => Ok((tag, view.pieces(keys::REPARSE, self.file.ino)?.unwrap_or_default())),
        }
    }

    fn set_reparse(&self, _by: ChangedBy, tag: u32, data: &[u8]) -> Result<()> {
        if tag == 0 {
            return Err(StoreError::InvalidReparseTag.into());
        }
        if data.len() > REPARSE_BYTES_MAX {
            return Err(StoreError::InvalidReparseData.into());
        }
        self.change(|t, inode| {
            if inode.reparse_tag != 0 && inode.reparse_tag != tag {
                return Err(StoreError::ReparseTagMismatch.into());
            }
            if inode.directory && !names::is_empty(t, self.file.ino)? {
                return Err(StoreError::DirectoryNotEmpty.into());
            }
            inode.reparse_tag = tag;
            inode.change = now();
            t.put_pieces(keys::REPARSE, self.file.ino, data)?;
            Ok(())
        })
    }

    fn delete_reparse(&self, _by: ChangedBy, tag: u32) -> Result<()> {
        self.change(|t, inode| {
            match inode.reparse_tag {
                0 => return Err(StoreError::NotAReparsePoint.into()),
                t if t != tag => return Err(StoreError::ReparseTagMismatch.into()),
                _ => {}
            }
            inode.reparse_tag = 0;
            inode.change = now();
            t.delete_pieces(keys::REPARSE, self.file.ino)?;
            Ok(())
        })
    }

    fn object_id(&self) -> Result<Option<u128>> {
        Ok(load_inode(&self.shared.view()?, self.file.ino)?.object_id)
    }

    fn set_object_id(&self, _by: ChangedBy, id: u128) -> Result<()> {
        self.change(|_, inode| {
            inode.object_id = Some(id);
            inode.change = now();
            Ok(())
        })
    }

    fn create_mark(&self) -> Result<Option<u128>> {
        let view = self.shared.view()?;
        match self.is_directory() {
            true => Ok(load_inode(&view, self.file.ino)?.data.mark),
            false => Ok(self.subject(&view)?.data().mark),
        }
    }

    fn create_child(&self, _by: ChangedBy, name: &str, new: &NewFile<'_>) -> Result<NodeRef> {
        self.make_child(name, new, None)
    }

    fn create_child_marked(&self, _by: ChangedBy, name: &str, new: &NewFile<'_>, mark: u128) -> Result<NodeRef> {
        self.make_child(name, new, Some(mark))
    }

    fn list(&self) -> Result<Box<dyn DirCursor>> {
        self.check_directory()?;
        if self.shared.past.is_none() {
            self.vol().files.accessed(self.file.ino);
        }
        Ok(Box::new(Cursor::new(self.shared.clone(), self.file.clone())))
    }

    fn is_empty_directory(&self) -> Result<bool> {
        self.check_directory()?;
        Ok(names::is_empty(&self.shared.view()?, self.file.ino)?)
    }

    fn rename_stream(&self, _by: ChangedBy, name: Option<&str>, replace: bool) -> Result<()> {
        self.shared.check_writable()?;
        match (self.named(), name) {
            (Some(stream), Some(name)) => {
                self.shared.done(self.vol().rename_stream(&self.file, stream, name, replace)?)
            }
            (None, None) => Ok(()),
            _ if self.file.directory => Err(StoreError::InvalidParameter.into()),
            (Some(stream), None) => self.shared.done(self.vol().stream_to_data(&self.file, stream)?),
            (None, Some(name)) => {
                self.shared.done(self.vol().data_to_stream(&self.file, &self.stream, name, replace)?)
            }
        }
    }

    fn rename_replacing(&self, _by: ChangedBy, directory: &dyn Node, name: &str, replace: Replace) -> Result<()> {
        self.shared.check_writable()?;
        let directory = own(directory)?;
        self.same_volume(directory)?;
        if self.named().is_some() {
            return Err(StoreError::InvalidParameter.into());
        }
        let to = directory.directory()?;
        self.check_movable()?;
        self.shared.done(self.vol().rename(&self.file, &self.link, (to, name), replace)?)
    }

    fn link_replacing(&self, _by: ChangedBy, directory: &dyn Node, name: &str, replace: Replace) -> Result<()> {
        self.shared.check_writable()?;
        let directory = own(directory)?;
        self.same_volume(directory)?;
        if self.named().is_some() {
            return Err(StoreError::InvalidParameter.into());
        }
        self.check_movable()?;
        self.link.standing()?;
        let to = directory.directory()?;
        self.shared.done(self.vol().link(&self.file, to, name, replace)?)
    }

    fn short_name(&self) -> Result<Option<String>> {
        if self.file.ino == self.shared.root {
            return Ok(None);
        }
        let (parent, name) = self.link.standing()?;
        let beside = short_names::beside(&self.shared.view()?, parent, &name)?;
        Ok(beside.or_else(|| is_short(&name).then_some(name)))
    }

    fn set_short_name(&self, _by: ChangedBy, name: &str) -> Result<()> {
        self.check_movable()?;
        if self.named().is_some() {
            return Err(StoreError::InvalidParameter.into());
        }
        self.shared.done(self.vol().set_short_name(&self.file, &self.link, name)?)
    }

    fn unlink(&self, _by: ChangedBy) -> Result<()> {
        self.shared.check_writable()?;
        if let Some(stream) = self.named() {
            return self.shared.done(self.vol().delete_stream(&self.file, stream)?);
        }
        self.check_movable()?;
        self.shared.done(self.vol().unlink(&self.file, &self.link)?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
