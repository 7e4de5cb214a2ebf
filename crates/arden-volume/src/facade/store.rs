//! A volume, or a directory of it, as a `FileStore`. One log makes all changes durable in the order in which they were made, so
//! a commit is for all that came before, and whose they were is of no matter: who waits for one that fails is told.

use std::sync::{Arc, OnceLock};

use arden_store::{
    commit::{ChangedBy, ScopeId},
    error::{NotDone, StoreError},
    name::{NtPath, PathWants},
    quota::{Quota, QuotaControl, QuotaStore},
    scope::RequestScope,
    store::{ChangeSink, FileStore, Lookup, Node, NodeRef, Result, SpaceInfo, VolumeInfo, WatchGuard},
    usn::{ChangeJournal, JournalInfo, Record},
};
use arden_wire::{
    FileTime,
    dtyp::Sid,
    fscc::{FILE_READ_ONLY_VOLUME, FILE_SUPPORT_INTEGRITY_STREAMS, FILE_SUPPORTS_STREAM_SNAPSHOTS},
};

use crate::{
    disk::{
        inode::{Inode, ROOT_INO},
        keys,
    },
    engine::view::View,
    facade::{
        node::{VolNode, own},
        shared::Shared,
        volume::Volume,
    },
    files::{
        inodes::{load_inode, load_stream},
        names::{
            self,
            short_names::{self, ShortNames},
        },
    },
};

/// How a share wants its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Acknowledged from memory; durable when flushed, or after some seconds.
    #[default]
    Plain,
    /// Every operation is durable when it is acknowledged.
    WriteThrough,
}

pub struct VolumeStore {
    shared: Arc<Shared>,
}

impl VolumeStore {
    /// The whole volume.
    pub fn new(vol: Arc<Volume>, durability: Durability) -> Arc<VolumeStore> {
        VolumeStore::rooted(vol, ROOT_INO, durability)
    }

    fn rooted(vol: Arc<Volume>, root: u64, durability: Durability) -> Arc<VolumeStore> {
        let id = vol.superblock().id;
        let volume_id = (id as u64 ^ (id >> 64) as u64).max(1);
        let durable = durability == Durability::WriteThrough;
        Arc::new(VolumeStore { shared: Arc::new(Shared { vol, root, volume_id, durable, past: None }) })
    }

    /// A directory of the volume, which has to exist.
    pub fn of_directory(vol: Arc<Volume>, path: &NtPath, durability: Durability) -> Result<Arc<VolumeStore>> {
        let whole = VolumeStore::new(vol.clone(), durability);
        match whole.lookup(path)? {
            Lookup::Found(node) if node.is_directory() => Ok(VolumeStore::rooted(vol, node.id().file, durability)),
            Lookup::Found(_) => Err(StoreError::NotADirectory.into()),
            _ => Err(StoreError::PathNotFound.into()),
        }
    }

    pub fn volume_handle(&self) -> &Arc<Volume> {
        &self.shared.vol
    }

    fn node(&self, ino: u64, directory: bool, parent: u64, name: &str) -> VolNode {
        let file = self.shared.open_file(ino, directory);
        let link = file.link(parent, name);
        VolNode { shared: self.shared.clone(), file, link, stream: OnceLock::new() }
    }

    fn found(&self, view: &dyn View, path: &NtPath, at: &Step) -> Result<Lookup> {
        let node = self.node(at.ino, at.inode.directory, at.parent, &at.name);
        if let Some(stream) = &path.stream {
            return Ok(match load_stream(view, at.ino, stream)? {
                Some((_, s)) => {
                    let stream = OnceLock::from(node.file.streams.open(&s.name));
                    Lookup::Found(Arc::new(VolNode { stream, ..node }))
                }
                None => {
                    let parent = if at.ino == self.shared.root { at.ino } else { at.parent };
                    let directory = load_inode(view, parent)?;
                    let parent = self.node(parent, true, directory.parent, &directory.name);
                    Lookup::Missing { parent: Arc::new(parent), base: Some(Arc::new(node)) }
                }
            });
        }
        match path.wants {
            PathWants::Directory if !at.inode.directory => Err(StoreError::NotADirectory.into()),
            PathWants::Data if at.inode.directory => Err(StoreError::IsADirectory.into()),
            _ => Ok(Lookup::Found(Arc::new(node))),
        }
    }
}

/// Where a look-up has come.
struct Step {
    ino: u64,
    inode: Inode,
    parent: u64,
    name: String,
}

impl FileStore for VolumeStore {
    fn volume(&self) -> VolumeInfo {
        let sb = self.shared.vol.superblock();
        VolumeInfo {
            label: sb.label,
            // The lower half of the 64-bit one, as clients know it of other file systems.
            serial: self.shared.volume_id as u32,
            id: sb.id,
            created: sb.created,
            file_system_name: "NTFS".into(),
            capabilities: CAPABILITIES | if self.shared.past.is_some() { FILE_READ_ONLY_VOLUME } else { 0 },
            name_max: 255,
            has_clusters: true,
        }
    }

    fn space(&self) -> Result<SpaceInfo> {
        if RequestScope::must_not_wait() && self.shared.vol.engine.deferrals.is_waiting() {
            // What was deleted is taken away first, which may be much.
            return Err(NotDone::WouldBlock);
        }
        let (total_bytes, free_bytes, _) = self.shared.vol.room();
        let available_bytes = free_bytes;
        Ok(SpaceInfo { total_bytes, free_bytes, available_bytes, sector_bytes: 512, sectors_per_unit: 8 })
    }

    fn space_for(&self, who: &Sid, at: &dyn Node) -> Result<SpaceInfo> {
        let mut space = self.space()?;
        let (limit, left) = self.shared.vol.quotas.room(who, own(at)?.id().file)?;
        space.total_bytes = space.total_bytes.min(limit);
        space.available_bytes = space.available_bytes.min(left);
        Ok(space)
    }

    fn data_copies(&self) -> u32 {
        self.shared.vol.engine.device.redundant().map_or(1, |copies| copies.copies())
    }

    fn change_journal(&self) -> Option<&dyn ChangeJournal> {
        if self.shared.past.is_none() { Some(self) } else { None }
    }

    fn quotas(&self) -> Option<&dyn QuotaStore> {
        // The past is read-only, its limits too.
        if self.shared.past.is_none() { Some(self) } else { None }
    }

    fn generates_short_names(&self) -> bool {
        self.shared.view().is_ok_and(|view| short_names::setting(&view).is_ok_and(|s| s == ShortNames::Kept))
    }

    fn root(&self) -> NodeRef {
        let inode = self.shared.view().ok().and_then(|view| load_inode(&view, self.shared.root).ok());
        let (parent, name) = inode.map_or((0, String::new()), |i| (i.parent, i.name));
        Arc::new(self.node(self.shared.root, true, parent, &name))
    }

    fn lookup(&self, path: &NtPath) -> Result<Lookup> {
        if path.components.len() > names::DEPTH_MAX {
            return Err(StoreError::PathTooDeep.into());
        }
        let view = self.shared.view()?;
        let inode = load_inode(&view, self.shared.root)?;
        let mut at = Step { ino: self.shared.root, parent: inode.parent, name: inode.name.clone(), inode };
        let count = path.components.len();
        for (i, component) in path.components.iter().enumerate() {
            if i > 0 && at.inode.reparse_tag != 0 {
                let link = Arc::new(self.node(at.ino, at.inode.directory, at.parent, &at.name));
                return Ok(Lookup::Symlink { link, unparsed_components: count - i });
            }
            if !at.inode.directory {
                return Err(StoreError::PathNotFound.into());
            }
            match names::find(&view, at.ino, component)? {
                Some(entry) => {
                    let inode = load_inode(&view, entry.ino)?;
                    at = Step { ino: entry.ino, inode, parent: at.ino, name: entry.name };
                }
                None if i + 1 < count => return Err(StoreError::PathNotFound.into()),
                None => {
                    let parent = Arc::new(self.node(at.ino, true, at.parent, &at.name));
                    return Ok(Lookup::Missing { parent, base: None });
                }
            }
        }
        self.found(&view, path, &at)
    }

    fn lookup_id(&self, id: u64) -> Result<NodeRef> {
        let view = self.shared.view()?;
        let value = view.get(&keys::one(keys::INODE, id))?.ok_or(StoreError::InvalidParameter)?;
        let inode = Inode::decode(&value)?;
        if id == self.shared.root {
            return Ok(Arc::new(self.node(id, true, inode.parent, &inode.name)));
        }
        if inode.links == 0 || names::path(&view, self.shared.root, inode.parent, &inode.name)?.is_none() {
            return Err(StoreError::InvalidParameter.into());
        }
        Ok(Arc::new(self.node(id, inode.directory, inode.parent, &inode.name)))
    }

    fn snapshots(&self) -> Vec<FileTime> {
        self.shared.vol.snapshots.times()
    }

    fn snapshot(&self, at: FileTime) -> Result<Arc<dyn FileStore>> {
        let now = &self.shared;
        let snapshot = now.vol.snapshots.at(at).ok_or(StoreError::NotFound)?;
        let shared = Shared {
            vol: now.vol.clone(),
            root: now.root,
            // Another volume to whoever looks at the ids of files.
            volume_id: now.volume_id.wrapping_add(u64::from(snapshot.epoch).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            durable: now.durable,
            past: Some(snapshot),
        };
        // The share's root may not have been there.
        let root = load_inode(&shared.view()?, shared.root);
        if !root.is_ok_and(|r| r.directory && r.links > 0) {
            return Err(StoreError::NotFound.into());
        }
        Ok(Arc::new(VolumeStore { shared: Arc::new(shared) }))
    }

    fn has_uncommitted(&self, _scope: ScopeId) -> bool {
        self.shared.has_uncommitted()
    }

    fn commit(&self, _scope: ScopeId) -> Result<(), StoreError> {
        Ok(self.shared.vol.sync()?)
    }

    /// Nobody else changes a volume.
    fn watch(&self, _sink: Arc<dyn ChangeSink>) -> Result<()> {
        Ok(())
    }
}

impl ChangeJournal for VolumeStore {
    fn info(&self) -> Result<JournalInfo, StoreError> {
        Ok(self.shared.vol.journal.info()?)
    }

    fn create(&self, _by: ChangedBy, max_bytes: u64, delta_bytes: u64) -> Result<(), StoreError> {
        Ok(self.shared.vol.journal.create(max_bytes, delta_bytes)?)
    }

    fn delete(&self, _by: ChangedBy, id: u64) -> Result<(), StoreError> {
        Ok(self.shared.vol.journal.delete(id)?)
    }

    fn read(&self, from: u64, take: &mut dyn FnMut(&Record) -> bool) -> Result<u64, StoreError> {
        Ok(self.shared.vol.journal.read(from, take)?)
    }

    fn end(&self) -> Result<u64, StoreError> {
        Ok(self.shared.vol.journal.end()?)
    }

    fn watch(&self, usn: u64, wake: Box<dyn Fn() + Send + Sync>) -> Result<WatchGuard, StoreError> {
        Ok(self.shared.vol.journal.watch(usn, wake)?)
    }

    fn of_file(&self, node: &dyn Node) -> Result<Record, StoreError> {
        let node = own(node)?;
        let mut record = self.shared.vol.journal.of_file(node.id().file)?;
        // Of the name that it was opened by: another one may be in a directory that the opener may not see.
        (record.parent, record.name) = node.link.standing().unwrap_or_default();
        Ok(record)
    }

    fn close_record(&self, _by: ChangedBy, node: &dyn Node) -> Result<u64, StoreError> {
        Ok(self.shared.vol.journal.write_close_record(own(node)?.id().file)?)
    }
}

impl QuotaStore for VolumeStore {
    fn control(&self) -> Result<QuotaControl, StoreError> {
        Ok(self.shared.vol.quotas.control()?)
    }

    fn set_control(&self, _by: ChangedBy, control: &QuotaControl) -> Result<(), StoreError> {
        Ok(self.shared.vol.quotas.set_control(control)?)
    }

    fn users(&self) -> Result<Vec<(Sid, Quota)>, StoreError> {
        Ok(self.shared.vol.quotas.users()?)
    }

    fn user(&self, sid: &Sid) -> Result<Option<Quota>, StoreError> {
        Ok(self.shared.vol.quotas.user(sid)?)
    }

    fn set_user(&self, _by: ChangedBy, sid: &Sid, threshold: u64, limit: u64) -> Result<(), StoreError> {
        Ok(self.shared.vol.quotas.set_user(sid, threshold, limit)?)
    }

    fn remove_user(&self, _by: ChangedBy, sid: &Sid) -> Result<(), StoreError> {
        if self.shared.vol.quotas.remove_user(sid)? { Ok(()) } else { Err(StoreError::NoQuotaEntry) }
    }
}

/// FILE_* capability bits, [MS-FSCC] 2.5.1: case-sensitive search is not among them; case-preserved names, Unicode,
/// persistent ACLs, quotas, sparse files, reparse points, object ids, named streams, hard links, EAs, opening by id, and a
/// change journal, block reference counts, and integrity and snapshots of each stream are.
const CAPABILITIES: u32 = 0x2
    | 0x4
    | 0x8
    | 0x20
    | 0x40
    | 0x80
    | 0x1_0000
    | 0x4_0000
    | 0x40_0000
    | 0x80_0000
    | 0x100_0000
    | 0x200_0000
    | FILE_SUPPORT_INTEGRITY_STREAMS
    | FILE_SUPPORTS_STREAM_SNAPSHOTS
    | 0x800_0000;
