//! Names: finding, making, linking, renaming and taking away files. Each change is one operation; the folded name is
//! part of the key, so two spellings of one name cannot both exist.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use arden_store::{
    name::{check_component, check_stream_name, fold, may_be_made_short, short_name},
    store::{NewFile, Result},
};
use arden_wire::{NtStatus, access::ATTR_SETTABLE};
use parking_lot::Mutex;

use crate::{
    disk::{
        device::BLOCK,
        error::{VolError, VolResult},
        inode::{Data, Inode, NameEntry, ROOT_INO, Stream},
        keys,
    },
    engine::{
        kv::{Txn, View},
        tree::Key,
        volume::Volume,
    },
    files::{
        ea,
        open::{OpenFile, StreamRef},
        security::inherited,
        subject::{load_inode, load_stream, now},
    },
};

/// A path never goes deeper; a loop of directories cannot come to be, but a damaged volume may show one.
pub const DEPTH_MAX: usize = 1024;

/// [MS-FSA] 2.1.1.1, TunnelCacheList: a file that is made again by its 8.3 name soon after it went gets its long name
/// back.
#[derive(Default)]
pub struct Tunnel {
    gone: Mutex<VecDeque<(u64, String, String, Instant)>>,
}

const TUNNEL_TIME: Duration = Duration::from_secs(15);
const TUNNEL_ENTRIES_MAX: usize = 256;

impl Tunnel {
    fn remember(&self, directory: u64, name: &str) {
        if let Some(short) = short_name(name) {
            let mut gone = self.gone.lock();
            if gone.len() >= TUNNEL_ENTRIES_MAX {
                gone.pop_front();
            }
            gone.push_back((directory, short, name.to_owned(), Instant::now()));
        }
    }

    fn recall(&self, directory: u64, short: &str) -> Option<String> {
        if !may_be_made_short(short) {
            return None;
        }
        let gone = self.gone.lock();
        let found = gone.iter().rev().find(|(d, s, ..)| *d == directory && s.eq_ignore_ascii_case(short))?;
        (found.3.elapsed() < TUNNEL_TIME).then(|| found.2.clone())
    }
}

fn name_key(directory: u64, name: &str) -> Key {
    keys::named(keys::NAME, directory, &fold(name))
}

/// The entry `name` of a directory, in any case.
pub fn find(view: &dyn View, directory: u64, name: &str) -> VolResult<Option<NameEntry>> {
    if let Some(value) = view.get(&name_key(directory, name))? {
        return NameEntry::decode(&value).map(Some);
    }
    if !may_be_made_short(name) {
        return Ok(None);
    }
    // The only entry whose 8.3 name this is.
    let mut found = None;
    let mut several = false;
    view.scan(&keys::one(keys::NAME, directory), &keys::end_of(keys::NAME, directory), &mut |_, value| {
        if let Ok(entry) = NameEntry::decode(value)
            && short_name(&entry.name).is_some_and(|s| s.eq_ignore_ascii_case(name))
        {
            several |= found.replace(entry).is_some();
        }
        !several
    })?;
    Ok(found.filter(|_| !several))
}

pub fn is_empty(view: &dyn View, directory: u64) -> VolResult<bool> {
    let found = view.collect(&keys::one(keys::NAME, directory), &keys::end_of(keys::NAME, directory), 1)?;
    Ok(found.is_empty())
}

/// The components from `root` down to `parent\name`; None when it is not below.
pub fn path(view: &dyn View, root: u64, parent: u64, name: &str) -> VolResult<Option<Vec<String>>> {
    let mut out = vec![name.to_owned()];
    let mut at = parent;
    while at != root {
        if at == ROOT_INO || out.len() > DEPTH_MAX {
            return Ok(None);
        }
        let inode = load_inode(view, at)?;
        out.push(inode.name);
        at = inode.parent;
    }
    out.reverse();
    Ok(Some(out))
}

impl Txn<'_> {
    /// The directory's content changed now.
    fn touch_directory(&mut self, ino: u64, mut inode: Inode) {
        let now = now();
        inode.last_write = now;
        inode.change = now;
        self.put_inode(ino, &inode);
    }

    fn directory(&self, ino: u64) -> Result<Inode> {
        let inode = load_inode(self, ino).map_err(|_| NtStatus::FILE_DELETED)?;
        match (inode.directory, inode.links) {
            (false, _) => Err(NtStatus::NOT_A_DIRECTORY),
            (true, 0) => Err(NtStatus::FILE_DELETED),
            _ => Ok(inode),
        }
    }

    fn add_name(&mut self, ino: u64, inode: &mut Inode, directory: u64, name: &str) {
        if inode.links == 0 || inode.parent == 0 {
            inode.parent = directory;
            inode.name = name.to_owned();
        } else {
            self.put(keys::link(ino, directory, &fold(name)), []);
        }
        inode.links += 1;
        self.put(name_key(directory, name), NameEntry::encode(ino, name));
    }

    /// Another name becomes the first one when this was.
    fn remove_name(&mut self, ino: u64, inode: &mut Inode, directory: u64, name: &str) -> VolResult<()> {
        self.delete(name_key(directory, name));
        inode.links = inode.links.saturating_sub(1);
        if inode.parent != directory || fold(&inode.name) != fold(name) {
            self.delete(keys::link(ino, directory, &fold(name)));
            return Ok(());
        }
        (inode.parent, inode.name) = (0, String::new());
        let next = self.collect(&keys::one(keys::LINK, ino), &keys::end_of(keys::LINK, ino), 1)?;
        if let Some((key, _)) = next.first() {
            let parent = keys::second(key);
            let folded = keys::text(key, 17).to_owned();
            let value = self.get(&keys::named(keys::NAME, parent, &folded))?;
            let entry = value.ok_or(VolError::Corrupt("a link without a name"))?;
            inode.name = NameEntry::decode(&entry)?.name;
            inode.parent = parent;
            self.delete(key.clone());
        }
        Ok(())
    }

    /// `entry` loses its name in `directory`. Its number when it has none left.
    fn unname(&mut self, directory: u64, entry: &NameEntry) -> Result<Option<u64>> {
        let mut inode = load_inode(self, entry.ino)?;
        self.remove_name(entry.ino, &mut inode, directory, &entry.name)?;
        inode.change = now();
        self.put_inode(entry.ino, &inode);
        if inode.links > 0 {
            return Ok(None);
        }
        self.put(keys::one(keys::ORPHAN, entry.ino), []);
        Ok(Some(entry.ino))
    }
}

impl Volume {
    /// After the operation that took a file's last name.
    fn after_last_name(self: &Arc<Self>, ino: Option<u64>) {
        let Some(ino) = ino else { return };
        match self.file_in_use(ino) {
            Some(f) => f.orphan.store(true, Ordering::Release),
            None => self.reap_later(ino),
        }
    }

    fn tell_moved(&self, ino: u64, from: (u64, &str), change: impl Fn(&mut crate::files::open::Place)) {
        if let Some(f) = self.file_in_use(ino) {
            f.moved(from, change);
        }
    }

    /// The new file's number and name, and the operation's.
    pub(crate) fn create_child(&self, directory: u64, name: &str, new: &NewFile<'_>) -> Result<(u64, String, u64)> {
        check_component(name)?;
        self.make_room()?;
        let tunnelled = self.tunnel.recall(directory, name);
        let name = tunnelled.as_deref().unwrap_or(name);
        ea::check(new.eas)?;
        let mut t = self.begin();
        let parent = t.directory(directory)?;
        if find(&t, directory, name)?.is_some() {
            return Err(NtStatus::OBJECT_NAME_COLLISION);
        }
        let sd = match new.security {
            Some(sd) => t.intern_descriptor(sd)?,
            None => {
                let sd = inherited(&*self.descriptor(&t, parent.sd)?, new.directory);
                t.intern_descriptor(&sd)?
            }
        };
        let (ino, now) = (t.new_id(), now());
        // Never the file's own number: data that is cut off waits under it to be taken away.
        let sid = if new.directory { 0 } else { t.new_id() };
        let mut inode = Inode {
            directory: new.directory,
            attributes: new.attributes & ATTR_SETTABLE,
            creation: now,
            last_access: now,
            last_write: now,
            change: now,
            sd,
            data: Data { sid, ..Data::default() },
            ..Inode::default()
        };
        if let Some(size) = new.allocation.filter(|_| !new.directory) {
            inode.data.reserved = size.min(crate::files::data::FILE_BYTES_MAX).div_ceil(BLOCK as u64);
            t.counters.promised += inode.data.promised();
        }
        if !new.eas.is_empty() {
            inode.ea_size = ea::store(&mut t, ino, &ea::merge(Vec::new(), new.eas))?;
        }
        t.add_name(ino, &mut inode, directory, name);
        t.put_inode(ino, &inode);
        t.touch_directory(directory, parent);
        let seq = t.commit()?;
        Ok((ino, name.to_owned(), seq))
    }

    /// A file that nobody can find, and that goes with its last user.
    pub(crate) fn create_nameless(self: &Arc<Self>) -> Result<Arc<OpenFile>> {
        self.make_room()?;
        let mut t = self.begin();
        let (ino, now) = (t.new_id(), now());
        // Sparse, so that it promises nothing and may share what any file has.
        let data = Data { sid: t.new_id(), sparse: true, ..Data::default() };
        let inode = Inode { creation: now, last_access: now, last_write: now, change: now, data, ..Inode::default() };
        t.put_inode(ino, &inode);
        t.put(keys::one(keys::ORPHAN, ino), []);
        t.commit()?;
        let file = self.file(ino, false);
        file.orphan.store(true, Ordering::Release);
        Ok(file)
    }

    /// Takes one name of a file away.
    pub(crate) fn unlink(self: &Arc<Self>, file: &OpenFile, parent: u64, name: &str) -> Result<u64> {
        self.make_room_for_less()?;
        let mut t = self.begin();
        // Another name may become the first one, in a folder that is full.
        t.unlimited = true;
        let entry = find(&t, parent, name)?.filter(|e| e.ino == file.ino).ok_or(NtStatus::FILE_DELETED)?;
        if file.directory && !is_empty(&t, file.ino)? {
            return Err(NtStatus::DIRECTORY_NOT_EMPTY);
        }
        let last = t.unname(parent, &entry)?;
        if let Ok(directory) = t.directory(parent) {
            t.touch_directory(parent, directory);
        }
        self.tell_moved(file.ino, (parent, &entry.name), |p| p.gone = true);
        let seq = t.commit()?;
        self.tunnel.remember(parent, &entry.name);
        self.after_last_name(last);
        Ok(seq)
    }

    /// `name` of `from` becomes `new` of `to`.
    pub(crate) fn rename(
        self: &Arc<Self>,
        file: &OpenFile,
        (from, name): (u64, &str),
        (to, new): (u64, &str),
        replace: bool,
    ) -> Result<u64> {
        check_component(new)?;
        self.make_room()?;
        let mut t = self.begin();
        let entry = find(&t, from, name)?.filter(|e| e.ino == file.ino).ok_or(NtStatus::FILE_DELETED)?;
        t.directory(to)?;
        if file.directory && is_below(&t, to, file.ino)? {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let same_key = from == to && fold(&entry.name) == fold(new);
        if same_key && entry.name == new {
            return Ok(0);
        }
        let mut replaced = None;
        // The file's own 8.3 name leads to the entry that is about to go.
        let own = |target: &NameEntry| from == to && fold(&target.name) == fold(&entry.name);
        if !same_key && let Some(target) = find(&t, to, new)?.filter(|t| !own(t)) {
            if !replace {
                return Err(NtStatus::OBJECT_NAME_COLLISION);
            }
            if load_inode(&t, target.ino)?.directory {
                return Err(NtStatus::ACCESS_DENIED);
            }
            replaced = Some((t.unname(to, &target)?, target));
        }
        let mut inode = load_inode(&t, file.ino)?;
        let first = inode.parent == from && fold(&inode.name) == fold(&entry.name);
        t.delete(name_key(from, &entry.name));
        if first {
            (inode.parent, inode.name) = (to, new.to_owned());
        } else {
            t.delete(keys::link(file.ino, from, &fold(&entry.name)));
            t.put(keys::link(file.ino, to, &fold(new)), []);
        }
        inode.change = now();
        t.put(name_key(to, new), NameEntry::encode(file.ino, new));
        t.put_inode(file.ino, &inode);
        for directory in std::iter::once(from).chain((to != from).then_some(to)) {
            let inode = load_inode(&t, directory)?;
            t.touch_directory(directory, inode);
        }
        t.charge_quotas()?;
        // Under the lock of the state, so that nobody finds the new name by an old node.
        if let Some((_, target)) = &replaced {
            self.tell_moved(target.ino, (to, &target.name), |p| p.gone = true);
        }
        file.moved((from, &entry.name), |p| {
            p.parent = to;
            p.name = new.to_owned();
        });
        let seq = t.commit()?;
        if from != to || !same_key {
            self.tunnel.remember(from, &entry.name);
        }
        self.after_last_name(replaced.and_then(|(last, _)| last));
        Ok(seq)
    }

    pub(crate) fn link(self: &Arc<Self>, file: &OpenFile, to: u64, new: &str, replace: bool) -> Result<u64> {
        check_component(new)?;
        if file.directory {
            return Err(NtStatus::FILE_IS_A_DIRECTORY);
        }
        self.make_room()?;
        let mut t = self.begin();
        let directory = t.directory(to)?;
        if load_inode(&t, file.ino)?.links == 0 {
            return Err(NtStatus::FILE_DELETED);
        }
        let (mut last, mut replaced) = (None, None);
        if let Some(target) = find(&t, to, new)? {
            if !replace {
                return Err(NtStatus::OBJECT_NAME_COLLISION);
            }
            if target.ino == file.ino {
                return Ok(0);
            }
            if load_inode(&t, target.ino)?.directory {
                return Err(NtStatus::ACCESS_DENIED);
            }
            last = t.unname(to, &target)?;
            replaced = Some(target);
        }
        let mut inode = load_inode(&t, file.ino)?;
        t.add_name(file.ino, &mut inode, to, new);
        inode.change = now();
        t.put_inode(file.ino, &inode);
        t.touch_directory(to, directory);
        t.charge_quotas()?;
        if let Some(target) = replaced {
            self.tell_moved(target.ino, (to, &target.name), |p| p.gone = true);
        }
        let seq = t.commit()?;
        self.after_last_name(last);
        Ok(seq)
    }

    pub(crate) fn create_stream(&self, ino: u64, name: &str) -> Result<u64> {
        check_stream_name(name)?;
        self.make_room()?;
        let mut t = self.begin();
        let mut inode = load_inode(&t, ino)?;
        if load_stream(&t, ino, name)?.is_some() {
            return Err(NtStatus::OBJECT_NAME_COLLISION);
        }
        let stream = Stream { data: Data { sid: t.new_id(), ..Data::default() }, name: name.to_owned() };
        t.put(keys::named(keys::STREAM, ino, &fold(name)), stream.encode());
        inode.change = now();
        t.put_inode(ino, &inode);
        Ok(t.commit()?)
    }

    pub(crate) fn delete_stream(&self, file: &OpenFile, name: &str) -> Result<u64> {
        self.make_room_for_less()?;
        let _lock = file.change_data();
        let mut t = self.begin();
        let (key, stream) = load_stream(&t, file.ino, name)?.ok_or(NtStatus::FILE_DELETED)?;
        t.delete(key);
        let orphan = t.orphan_data(&stream.data);
        let mut inode = load_inode(&t, file.ino)?;
        inode.change = now();
        t.put_inode(file.ino, &inode);
        file.stream_moved(&stream.name, None);
        let seq = t.commit()?;
        self.reap_later(orphan);
        Ok(seq)
    }

    pub(crate) fn rename_stream(&self, file: &OpenFile, name: &str, new: &str, replace: bool) -> Result<u64> {
        check_stream_name(new)?;
        self.make_room()?;
        let _lock = file.change_data();
        let mut t = self.begin();
        let (key, mut stream) = load_stream(&t, file.ino, name)?.ok_or(NtStatus::FILE_DELETED)?;
        let new_key = keys::named(keys::STREAM, file.ino, &fold(new));
        let replaced = if new_key == key { None } else { t.make_way(file, new, replace)? };
        let old = std::mem::replace(&mut stream.name, new.to_owned());
        t.delete(key);
        t.put(new_key, stream.encode());
        t.touch_change(file.ino)?;
        file.stream_moved(&old, Some(new));
        let seq = t.commit()?;
        self.reap_all_later(replaced);
        Ok(seq)
    }

    /// The stream's data becomes the file's own, which has to be empty: [MS-FSA] 2.1.5.15.12.1.
    pub(crate) fn stream_to_data(&self, file: &OpenFile, name: &str) -> Result<u64> {
        self.make_room()?;
        let _lock = file.change_data();
        let mut t = self.begin();
        let (key, stream) = load_stream(&t, file.ino, name)?.ok_or(NtStatus::FILE_DELETED)?;
        let mut inode = load_inode(&t, file.ino)?;
        if inode.data.eof != 0 {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let orphan = t.orphan_data(&inode.data);
        t.delete(key);
        inode.data = stream.data;
        inode.change = now();
        t.put_inode(file.ino, &inode);
        file.stream_moved(&stream.name, Some(""));
        let seq = t.commit()?;
        self.reap_later(orphan);
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
        self.make_room()?;
        let _lock = file.change_data();
        let mut t = self.begin();
        let replaced = t.make_way(file, name, replace)?;
        let mut inode = load_inode(&t, file.ino)?;
        let none = Data { sid: t.new_id(), sparse: inode.data.sparse, ..Data::default() };
        let stream = Stream { data: std::mem::replace(&mut inode.data, none), name: name.to_owned() };
        t.put(keys::named(keys::STREAM, file.ino, &fold(name)), stream.encode());
        inode.change = now();
        t.put_inode(file.ino, &inode);
        file.stream_moved("", Some(name));
        node.get_or_init(|| file.stream_ref(name));
        let seq = t.commit()?;
        self.reap_all_later(replaced);
        Ok(seq)
    }

    fn reap_all_later(&self, ids: impl IntoIterator<Item = u64>) {
        ids.into_iter().for_each(|id| self.reap_later(id));
    }
}

impl Txn<'_> {
    /// Nothing is called `name` any more; answers what is to be reaped once that is so.
    fn make_way(&mut self, file: &OpenFile, name: &str, replace: bool) -> Result<Option<u64>> {
        let Some((key, target)) = load_stream(self, file.ino, name)? else { return Ok(None) };
        if !replace {
            return Err(NtStatus::OBJECT_NAME_COLLISION);
        }
        self.delete(key);
        file.stream_moved(&target.name, None);
        Ok(Some(self.orphan_data(&target.data)))
    }

    fn touch_change(&mut self, ino: u64) -> Result<()> {
        let mut inode = load_inode(self, ino)?;
        inode.change = now();
        self.put_inode(ino, &inode);
        Ok(())
    }
}

/// Whether directory `at` is `top` or below it.
fn is_below(view: &dyn View, mut at: u64, top: u64) -> VolResult<bool> {
    for _ in 0..DEPTH_MAX {
        if at == top {
            return Ok(true);
        }
        if at == ROOT_INO || at == 0 {
            return Ok(false);
        }
        at = load_inode(view, at)?.parent;
    }
    Err(VolError::Corrupt("a loop of directories"))
}
