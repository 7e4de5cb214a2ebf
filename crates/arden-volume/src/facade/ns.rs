//! Operations on names: making, linking, renaming and taking away files and streams. Each change is one operation.

use std::sync::{Arc, OnceLock, atomic::Ordering};

use arden_store::{
    error::StoreError,
    name::{check_component, check_stream_name, eq_fold, fold},
    open_stream::StreamRef,
    store::{Integrity, NewFile, Replace, Result},
};
use arden_wire::{
    access::{ATTR_INTEGRITY_STREAM, ATTR_SETTABLE},
    dtyp::{Acl, SecurityDescriptor, Sid, well_known},
};

use crate::{
    disk::{
        device::BLOCK,
        error::{VolError, VolResult},
        inode::{Data, Inode, NameEntry, Stream},
        keys,
    },
    engine::view::View,
    facade::{tunnel::Gone, volume::Volume},
    features::ea,
    files::{
        access::LastAccess,
        data::FILE_BYTES_MAX,
        descriptors::inherited,
        inodes::{find_inode, load_inode, load_stream, now},
        names::{
            find, is_below, is_empty, name_key,
            short_names::{self, ShortNames},
        },
        open::{Link, OpenFile, Place},
        txn::FileTxn,
    },
};

/// The directory's content changed now, [MS-FSA] 2.1.4.17.
fn touch_directory(t: &mut FileTxn<'_>, ino: u64, mut inode: Inode) {
    let now = now();
    inode.last_write = now;
    inode.change = now;
    if t.files.last_access() == LastAccess::Always {
        inode.last_access = now;
    }
    t.put_inode(ino, &inode);
}

fn load_directory(t: &FileTxn<'_>, ino: u64) -> Result<Inode> {
    let inode = find_inode(t, ino)?.ok_or(StoreError::Deleted)?;
    match (inode.directory, inode.links) {
        (false, _) => Err(StoreError::NotADirectory.into()),
        (true, 0) => Err(StoreError::Deleted.into()),
        _ => Ok(inode),
    }
}

/// What is remembered of an entry of this inode that goes.
fn went(t: &FileTxn<'_>, directory: u64, entry: &NameEntry, inode: &Inode) -> Result<Gone> {
    Ok(Gone {
        name: entry.name.clone(),
        short: short_names::beside(t, directory, &entry.name)?,
        creation: (!inode.directory).then_some(inode.creation),
    })
}

/// The first name of a file gets an 8.3 name: `short`, where that is free.
fn add_name(
    t: &mut FileTxn<'_>,
    ino: u64,
    inode: &mut Inode,
    (directory, name): (u64, &str),
    short: Option<&str>,
) -> VolResult<()> {
    t.put(name_key(directory, name), NameEntry::encode(ino, name));
    if inode.links == 0 || inode.parent == 0 {
        inode.parent = directory;
        inode.name = name.to_owned();
        short_names::give(t, directory, name, short)?;
    } else {
        t.put(keys::link(ino, directory, &fold(name)), []);
    }
    inode.links += 1;
    Ok(())
}

/// Another name becomes the first one when this was.
fn remove_name(t: &mut FileTxn<'_>, ino: u64, inode: &mut Inode, directory: u64, name: &str) -> VolResult<()> {
    t.delete(name_key(directory, name));
    short_names::take(t, directory, name)?;
    inode.links = inode.links.saturating_sub(1);
    if inode.parent != directory || fold(&inode.name) != fold(name) {
        t.delete(keys::link(ino, directory, &fold(name)));
        return Ok(());
    }
    (inode.parent, inode.name) = (0, String::new());
    let next = t.collect(&keys::one(keys::LINK, ino), &keys::end_of(keys::LINK, ino), 1)?;
    if let Some((key, _)) = next.first() {
        let parent = keys::second(key);
        let folded = keys::text(key, 17).to_owned();
        let value = t.get(&keys::named(keys::NAME, parent, &folded))?;
        let entry = value.ok_or(VolError::Corrupt("a link without a name"))?;
        inode.name = NameEntry::decode(&entry)?.name;
        inode.parent = parent;
        t.delete(key.clone());
    }
    Ok(())
}

/// `entry`, of this inode, loses its name in `directory`. Its number when it has none left.
fn unname(t: &mut FileTxn<'_>, directory: u64, entry: &NameEntry, mut inode: Inode) -> Result<Option<u64>> {
    remove_name(t, entry.ino, &mut inode, directory, &entry.name)?;
    inode.change = now();
    t.put_inode(entry.ino, &inode);
    if inode.links > 0 {
        return Ok(None);
    }
    t.put(keys::one(keys::ORPHAN, entry.ino), []);
    Ok(Some(entry.ino))
}

impl Volume {
    /// After the operation that took a file's last name.
    fn after_last_name(&self, ino: Option<u64>) {
        let Some(ino) = ino else { return };
        match self.files.open.in_use(ino) {
            Some(f) => f.orphan.store(true, Ordering::Release),
            None => self.files.open.reap_later(ino),
        }
    }

    fn tell_moved(&self, ino: u64, from: (u64, &str), change: impl Fn(&mut Place)) {
        if let Some(f) = self.files.open.in_use(ino) {
            f.moved(from, change);
        }
    }

    /// The new file and its name, in use before anybody can find and take it away, and the operation's number.
    pub(crate) fn create_child(
        &self,
        directory: u64,
        name: &str,
        new: &NewFile<'_>,
        mark: Option<u128>,
    ) -> Result<(Arc<OpenFile>, Arc<Link>, u64)> {
        check_component(name)?;
        self.engine.make_room()?;
        ea::check(new.eas)?;
        let mut t = self.files.begin_beside();
        let parent = load_directory(&t, directory)?;
        if find(&t, directory, name)?.is_some() {
            return Err(StoreError::NameCollision.into());
        }
        let gone = self.tunnel.recall(directory, name);
        let (name, short, creation) = match &gone {
            Some(gone) if eq_fold(&gone.name, name) => (name, gone.short.as_deref(), gone.creation),
            Some(gone) if find(&t, directory, &gone.name)?.is_none() => {
                (gone.name.as_str(), gone.short.as_deref(), gone.creation)
            }
            _ => (name, None, None),
        };
        let sd = match new.security {
            Some(sd) => t.intern_descriptor(sd)?,
            None => {
                let sd = inherited(&*self.files.descriptors.get(&t, parent.sd)?, new.directory);
                t.intern_descriptor(&sd)?
            }
        };
        let (ino, now) = (t.new_id(), now());
        // Never the file's own number: data that is cut off waits under it to be taken away.
        let sid = if new.directory { 0 } else { t.new_id() };
        // [MS-FSA] 2.1.5.1.1: asked for, or what the directory has.
        let asked = new.attributes & ATTR_INTEGRITY_STREAM != 0;
        let integrity = if asked && !parent.data.integrity.is_set() { Integrity::On } else { parent.data.integrity };
        let mut inode = Inode {
            directory: new.directory,
            attributes: new.attributes & ATTR_SETTABLE,
            creation: creation.filter(|_| !new.directory).unwrap_or(now),
            last_access: now,
            last_write: now,
            change: now,
            sd,
            data: Data { sid, integrity, mark, ..Data::default() },
            ..Inode::default()
        };
        if let Some(size) = new.allocation.filter(|_| !new.directory) {
            inode.data.reserved = size.min(FILE_BYTES_MAX).div_ceil(BLOCK as u64);
            t.changes.counters.promised += inode.data.promised();
        }
        if !new.eas.is_empty() {
            inode.ea_size = ea::store(&mut t, ino, &ea::merge(Vec::new(), new.eas))?;
        }
        add_name(&mut t, ino, &mut inode, (directory, name), short)?;
        t.put_inode(ino, &inode);
        touch_directory(&mut t, directory, parent);
        let file = self.files.open.file(ino, new.directory);
        let link = file.link(directory, name);
        let seq = t.commit()?;
        Ok((file, link, seq))
    }

    /// A file that nobody can find, and that goes with its last user.
    pub(crate) fn create_nameless(&self, owner: &Sid) -> Result<Arc<OpenFile>> {
        self.engine.make_room()?;
        let mut t = self.files.begin();
        let sd =
            t.intern_descriptor(&SecurityDescriptor::with_dacl(owner, &well_known::SYSTEM, Acl::new(Vec::new())))?;
        let (ino, now) = (t.new_id(), now());
        // Sparse, so that it promises nothing and may share what any file has.
        let data = Data { sid: t.new_id(), sparse: true, ..Data::default() };
        let inode =
            Inode { creation: now, last_access: now, last_write: now, change: now, sd, data, ..Inode::default() };
        t.put_inode(ino, &inode);
        t.put(keys::one(keys::ORPHAN, ino), []);
        // Before anybody can take it for one that nobody uses.
        let file = self.files.open.file(ino, false);
        t.commit()?;
        file.orphan.store(true, Ordering::Release);
        Ok(file)
    }

    /// Takes one name of a file away.
    pub(crate) fn unlink(&self, file: &OpenFile, link: &Link) -> Result<u64> {
        self.engine.make_room_for_less()?;
        let mut t = self.files.begin_beside();
        let (parent, name) = link.standing()?;
        let name = name.as_str();
        // Another name may become the first one, in a folder that is full.
        t.unlimited = true;
        let entry = find(&t, parent, name)?.filter(|e| e.ino == file.ino).ok_or(StoreError::Deleted)?;
        if file.directory && !is_empty(&t, file.ino)? {
            return Err(StoreError::DirectoryNotEmpty.into());
        }
        let inode = load_inode(&t, file.ino)?;
        let gone = went(&t, parent, &entry, &inode)?;
        let last = unname(&mut t, parent, &entry, inode)?;
        if let Ok(folder) = load_directory(&t, parent) {
            touch_directory(&mut t, parent, folder);
        }
        // As soon as nobody finds the name, and not before.
        let name = entry.name.clone();
        t.on_applied(move || self.tell_moved(file.ino, (parent, &name), |p| p.gone = true));
        let seq = t.commit()?;
        self.tunnel.remember(parent, gone);
        self.after_last_name(last);
        Ok(seq)
    }

    /// The name of `link` becomes `new` of `to`.
    pub(crate) fn rename(&self, file: &OpenFile, link: &Link, (to, new): (u64, &str), replace: Replace) -> Result<u64> {
        check_component(new)?;
        self.engine.make_room()?;
        let mut t = self.files.begin_beside();
        let (from, name) = link.standing()?;
        let name = name.as_str();
        let entry = find(&t, from, name)?.filter(|e| e.ino == file.ino).ok_or(StoreError::Deleted)?;
        load_directory(&t, to)?;
        if file.directory && is_below(&t, to, file.ino)? {
            return Err(StoreError::IntoItself.into());
        }
        let same_key = from == to && fold(&entry.name) == fold(new);
        if same_key && entry.name == new {
            return Ok(0);
        }
        let mut replaced = None;
        // The file's own 8.3 name leads to the entry that is about to go.
        let own = |target: &NameEntry| from == to && fold(&target.name) == fold(&entry.name);
        if !same_key && let Some(target) = find(&t, to, new)?.filter(|t| !own(t)) {
            let theirs = Self::makes_way(&t, file, &target, replace)?;
            replaced = Some((unname(&mut t, to, &target, theirs)?, target));
        }
        let mut inode = load_inode(&t, file.ino)?;
        let first = inode.parent == from && fold(&inode.name) == fold(&entry.name);
        let gone = went(&t, from, &entry, &inode)?;
        t.delete(name_key(from, &entry.name));
        if !same_key {
            short_names::take(&mut t, from, &entry.name)?;
        }
        if first {
            (inode.parent, inode.name) = (to, new.to_owned());
        } else {
            t.delete(keys::link(file.ino, from, &fold(&entry.name)));
            t.put(keys::link(file.ino, to, &fold(new)), []);
        }
        inode.change = now();
        t.put(name_key(to, new), NameEntry::encode(file.ino, new));
        if !same_key {
            let back = self.tunnel.recall(to, new).filter(|back| eq_fold(&back.name, new));
            if first {
                short_names::give(&mut t, to, new, back.as_ref().and_then(|back| back.short.as_deref()))?;
            }
            let creation = back.and_then(|back| back.creation).filter(|_| !file.directory);
            inode.creation = creation.unwrap_or(inode.creation);
        }
        t.put_inode(file.ino, &inode);
        for directory in std::iter::once(from).chain((to != from).then_some(to)) {
            let inode = load_inode(&t, directory)?;
            touch_directory(&mut t, directory, inode);
        }
        // Before anybody reads, so that nobody finds the new name by an old node.
        let (last, target) = replaced.unzip();
        let old = entry.name.clone();
        t.on_applied(move || {
            // Another name of the file itself, spelt so already, stays that of those who have it open, [MS-FSA] 2.1.5.15.12 (ExactCaseMatch).
            if let Some(target) = target.filter(|t| t.ino != file.ino || t.name != new) {
                self.tell_moved(target.ino, (to, &target.name), |p| p.gone = true);
            }
            file.moved((from, &old), |p| {
                p.parent = to;
                p.name = new.to_owned();
            });
        });
        let seq = t.commit()?;
        if !same_key {
            self.tunnel.remember(from, gone);
        }
        self.after_last_name(last.flatten());
        Ok(seq)
    }

    /// The inode of a name that makes way for one of `file`.
    fn makes_way(t: &FileTxn<'_>, file: &OpenFile, target: &NameEntry, replace: Replace) -> Result<Inode> {
        if replace == Replace::Nothing {
            return Err(StoreError::NameCollision.into());
        }
        let inode = load_inode(t, target.ino)?;
        if inode.directory {
            return Err(StoreError::DirectoryInTheWay.into());
        }
        match replace {
            Replace::Only(id) if id.file != target.ino && target.ino != file.ino => {
                Err(StoreError::NameCollision.into())
            }
            _ => Ok(inode),
        }
    }

    pub(crate) fn link(&self, file: &OpenFile, to: u64, new: &str, replace: Replace) -> Result<u64> {
        check_component(new)?;
        if file.directory {
            return Err(StoreError::IsADirectory.into());
        }
        self.engine.make_room()?;
        let mut t = self.files.begin();
        let folder = load_directory(&t, to)?;
        let mut inode = load_inode(&t, file.ino)?;
        if inode.links == 0 {
            return Err(StoreError::Deleted.into());
        }
        let (mut last, mut replaced) = (None, None);
        if let Some(target) = find(&t, to, new)? {
            if target.ino == file.ino && replace != Replace::Nothing {
                return Ok(0);
            }
            let theirs = Self::makes_way(&t, file, &target, replace)?;
            last = unname(&mut t, to, &target, theirs)?;
            replaced = Some(target);
        }
        add_name(&mut t, file.ino, &mut inode, (to, new), None)?;
        inode.change = now();
        t.put_inode(file.ino, &inode);
        touch_directory(&mut t, to, folder);
        t.admit()?;
        if let Some(target) = replaced {
            self.tell_moved(target.ino, (to, &target.name), |p| p.gone = true);
        }
        let seq = t.commit()?;
        self.after_last_name(last);
        Ok(seq)
    }

    /// The name of `link` has the 8.3 name `short` from now on; none where that is empty. A file has one beside its first name
    /// alone.
    pub(crate) fn set_short_name(&self, file: &OpenFile, link: &Link, short: &str) -> Result<u64> {
        self.engine.make_room()?;
        let mut t = self.files.begin();
        let (parent, name) = link.standing()?;
        let entry = find(&t, parent, &name)?.filter(|e| e.ino == file.ino).ok_or(StoreError::Deleted)?;
        if short_names::setting(&t)? != ShortNames::Kept {
            return Err(StoreError::ShortNamesDisabled.into());
        }
        let name = fold(&entry.name);
        let mut inode = load_inode(&t, file.ino)?;
        if short_names::kept(&t, parent, &name)?.unwrap_or_default() == short {
            return Ok(0);
        }
        let is_own = |e: &NameEntry| fold(&e.name) == name;
        let first = inode.parent == parent && fold(&inode.name) == name;
        if !short.is_empty() && (!first || find(&t, parent, short)?.is_some_and(|e| !is_own(&e))) {
            return Err(StoreError::NameCollision.into());
        }
        short_names::take(&mut t, parent, &name)?;
        // A name that is an 8.3 name is its own.
        if !short.is_empty() && fold(short) != name {
            short_names::put(&mut t, parent, &name, short);
        }
        inode.change = now();
        t.put_inode(file.ino, &inode);
        let folder = load_directory(&t, parent)?;
        touch_directory(&mut t, parent, folder);
        Ok(t.commit()?)
    }

    pub(crate) fn create_stream(
        &self,
        file: &OpenFile,
        name: &str,
        mark: Option<u128>,
    ) -> Result<(Arc<StreamRef>, u64)> {
        check_stream_name(name)?;
        self.engine.make_room()?;
        let mut t = self.files.begin();
        let ino = file.ino;
        let mut inode = load_inode(&t, ino)?;
        if load_stream(&t, ino, name)?.is_some() {
            return Err(StoreError::NameCollision.into());
        }
        let stream = Stream {
            data: Data { sid: t.new_id(), integrity: inode.data.integrity, mark, ..Data::default() },
            name: name.to_owned(),
        };
        t.put(keys::named(keys::STREAM, ino, &fold(name)), stream.encode());
        inode.change = now();
        t.put_inode(ino, &inode);
        let opened = file.streams.open(name);
        Ok((opened, t.commit()?))
    }

    pub(crate) fn delete_stream(&self, file: &OpenFile, stream: &StreamRef) -> Result<u64> {
        self.engine.make_room_for_less()?;
        let _lock = file.change_data();
        let mut t = self.files.begin();
        let (key, stream) = load_stream(&t, file.ino, &stream.name()?)?.ok_or(StoreError::Deleted)?;
        t.delete(key);
        let orphan = t.orphan_data(&stream.data);
        let mut inode = load_inode(&t, file.ino)?;
        inode.change = now();
        t.put_inode(file.ino, &inode);
        t.admit()?;
        file.streams.moved(&stream.name, None);
        let seq = t.commit()?;
        self.files.open.reap_later(orphan);
        Ok(seq)
    }

    pub(crate) fn rename_stream(&self, file: &OpenFile, stream: &StreamRef, new: &str, replace: bool) -> Result<u64> {
        check_stream_name(new)?;
        self.engine.make_room()?;
        let _lock = file.change_data();
        let mut t = self.files.begin();
        let (key, mut stream) = load_stream(&t, file.ino, &stream.name()?)?.ok_or(StoreError::Deleted)?;
        let new_key = keys::named(keys::STREAM, file.ino, &fold(new));
        let replaced = if new_key == key { None } else { make_way(&mut t, file, new, replace)? };
        let old = std::mem::replace(&mut stream.name, new.to_owned());
        t.delete(key);
        t.put(new_key, stream.encode());
        touch_change(&mut t, file.ino)?;
        t.admit()?;
        let replaced = replaced.map(|gone| gone.tell(file));
        file.streams.moved(&old, Some(new));
        let seq = t.commit()?;
        self.files.open.reap_all_later(replaced);
        Ok(seq)
    }

    /// The stream's data becomes the file's own, which has to be empty: [MS-FSA] 2.1.5.15.12.1.
    pub(crate) fn stream_to_data(&self, file: &OpenFile, stream: &StreamRef) -> Result<u64> {
        self.engine.make_room()?;
        let _lock = file.change_data();
        let mut t = self.files.begin();
        let (key, stream) = load_stream(&t, file.ino, &stream.name()?)?.ok_or(StoreError::Deleted)?;
        let mut inode = load_inode(&t, file.ino)?;
        if inode.data.eof != 0 {
            return Err(StoreError::InvalidParameter.into());
        }
        let orphan = t.orphan_data(&inode.data);
        t.delete(key);
        inode.data = stream.data;
        inode.change = now();
        t.put_inode(file.ino, &inode);
        t.admit()?;
        file.streams.moved(&stream.name, Some(""));
        let seq = t.commit()?;
        self.files.open.reap_later(orphan);
        Ok(seq)
    }

    /// The file's own data becomes the stream `name`, `node` one of that stream, and the file has none.
    pub(crate) fn data_to_stream(
        &self,
        file: &OpenFile,
        node: &OnceLock<Arc<StreamRef>>,
        name: &str,
        replace: bool,
    ) -> Result<u64> {
        check_stream_name(name)?;
        self.engine.make_room()?;
        let _lock = file.change_data();
        let mut t = self.files.begin();
        let replaced = make_way(&mut t, file, name, replace)?;
        let mut inode = load_inode(&t, file.ino)?;
        let none =
            Data { sid: t.new_id(), sparse: inode.data.sparse, integrity: inode.data.integrity, ..Data::default() };
        let stream = Stream { data: std::mem::replace(&mut inode.data, none), name: name.to_owned() };
        t.put(keys::named(keys::STREAM, file.ino, &fold(name)), stream.encode());
        inode.change = now();
        t.put_inode(file.ino, &inode);
        t.admit()?;
        let replaced = replaced.map(|gone| gone.tell(file));
        file.streams.moved("", Some(name));
        node.get_or_init(|| file.streams.open(name));
        let seq = t.commit()?;
        self.files.open.reap_all_later(replaced);
        Ok(seq)
    }
}

/// A stream that gives way to another.
struct Replaced {
    name: String,
    /// What is to be reaped once that is so.
    orphan: u64,
}

impl Replaced {
    /// To those who have it open, when nothing can refuse it any more.
    fn tell(self, file: &OpenFile) -> u64 {
        file.streams.moved(&self.name, None);
        self.orphan
    }
}

/// Nothing is called `name` any more.
fn make_way(t: &mut FileTxn<'_>, file: &OpenFile, name: &str, replace: bool) -> Result<Option<Replaced>> {
    let Some((key, target)) = load_stream(t, file.ino, name)? else { return Ok(None) };
    if !replace {
        return Err(StoreError::NameCollision.into());
    }
    t.delete(key);
    let orphan = t.orphan_data(&target.data);
    Ok(Some(Replaced { name: target.name, orphan }))
}

fn touch_change(t: &mut FileTxn<'_>, ino: u64) -> Result<()> {
    let mut inode = load_inode(t, ino)?;
    inode.change = now();
    t.put_inode(ino, &inode);
    Ok(())
}
