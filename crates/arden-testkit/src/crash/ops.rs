//! One random operation on both the volume and the model.

use std::rc::Rc;

use arden_block::rng::Rng;
use arden_store::{
    commit::CommitScope,
    error::{NotDone, StoreError},
    name::{NtPath, fold},
    store::*,
};
use arden_volume::Volume;
use arden_wire::{
    FileTime,
    access::*,
    dtyp::{Ace, Acl, SecurityDescriptor, Sid, well_known},
};

use super::{
    limits::{self, Limit, Subject},
    model::{File, Model, ROOT, read_all},
    short_names::Short,
    usn::Journal,
};

#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// And it promised that it, and all before it, are durable.
    Durable,
    /// Did not happen, and changed nothing.
    Refused,
    /// The device died: it happened or it did not.
    Unknown,
}

const NAMES: [&str; 16] = [
    "a",
    "B",
    "b",
    "Cc",
    "ünï",
    "ÜNÏ",
    "d.txt",
    "E",
    "f with a longer name.text",
    "F with a longer nose.text",
    "f with a longer ear.text",
    "g",
    "h",
    "i",
    "J",
    "k",
];
const FILE_MAX: u64 = 700_000;
const SNAPSHOTS_MAX: usize = 5;
const SECOND: u64 = 10_000_000;

fn descriptor(n: u8) -> SecurityDescriptor {
    let aces = (0..n).map(|i| Ace::allow(&well_known::EVERYONE, FILE_GENERIC_READ | u32::from(i) << 1, 0));
    SecurityDescriptor::with_dacl(owner(n), &well_known::BUILTIN_USERS, Acl::new(aces.collect()))
}

/// Whose files with this descriptor are.
pub(super) fn owner(n: u8) -> &'static Sid {
    if n % 2 == 0 { &well_known::BUILTIN_USERS } else { &well_known::AUTHENTICATED_USERS }
}

pub(super) struct At {
    pub(super) node: NodeRef,
    pub(super) id: u64,
    /// Where its name is.
    pub(super) parent: u64,
    pub(super) name: String,
}

pub(super) struct World<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) vol: &'a Volume,
    store: &'a dyn FileStore,
    pub(super) model: &'a mut Model,
    /// The operation promised that it is durable, where its kind alone does not say so.
    pub(super) durable: bool,
}

fn path_of(model: &Model, directory: u64) -> Option<String> {
    if directory == ROOT {
        return Some(String::new());
    }
    let ((parent, _), (name, _)) = model.names.iter().find(|(_, (_, id))| *id == directory)?;
    Some(format!("{}{name}\\", path_of(model, *parent)?))
}

impl World<'_> {
    fn pick(&mut self, directory: bool) -> Option<At> {
        let all: Vec<_> = self
            .model
            .names
            .iter()
            .filter(|(_, (_, id))| self.model.files[id].directory == directory)
            .map(|((p, _), (n, id))| (*p, n.clone(), *id))
            .collect();
        if all.is_empty() {
            return None;
        }
        let (parent, name, id) = all[self.rng.below(all.len() as u64) as usize].clone();
        let by = match self.model.shorts.get(&(parent, fold(&name).into_owned())) {
            Some(Short::Is(short)) if self.rng.one_in(2) => short.clone(),
            _ => name.clone(),
        };
        let path = path_of(self.model, parent)? + &by;
        match self.store.lookup(&NtPath::parse(&path).unwrap()) {
            Ok(Lookup::Found(node)) => Some(At { node, id, parent, name }),
            Ok(_) => panic!("{path:?} is missing"),
            Err(e) => panic!("{path:?}: {e}"),
        }
    }

    pub(super) fn any(&mut self) -> Option<At> {
        let directory = self.rng.one_in(4);
        self.pick(directory)
    }

    fn directory(&mut self) -> (NodeRef, u64) {
        if self.rng.one_in(2) {
            return (self.store.root(), ROOT);
        }
        match self.pick(true) {
            Some(at) if self.model.files[&at.id].reparse.is_none() => (at.node, at.id),
            _ => (self.store.root(), ROOT),
        }
    }

    /// For what is made in a directory, or moved there: an 8.3 name that is there, at times.
    fn new_name(&mut self, directory: u64) -> String {
        let short = if self.rng.one_in(6) { self.short_in(directory) } else { None };
        short.unwrap_or_else(|| self.name().to_owned())
    }

    pub(super) fn name(&mut self) -> &'static str {
        NAMES[self.rng.below(NAMES.len() as u64) as usize]
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.rng.below(10) {
            0..=3 => self.rng.below(300),
            4..=6 => self.rng.below(9000),
            7 => 4096 * (1 + self.rng.below(8)),
            8 => 60_000 + self.rng.below(12_000),
            _ => 65_536 + self.rng.below(200_000),
        };
        let tag = self.rng.next_u64();
        (0..len).map(|i| (tag >> (i % 7)) as u8 ^ (i >> 8) as u8 ^ i as u8).collect()
    }

    fn offset(&mut self, len: u64) -> u64 {
        match self.rng.below(5) {
            0 => len,
            1 => 4096 * self.rng.below(FILE_MAX / 2 / 4096),
            2 => 0,
            3 => self.rng.below(len + 1),
            _ => self.rng.below(FILE_MAX / 2),
        }
    }

    /// The data that an operation is for: a file's or a stream's. `change` of the model runs when it succeeds.
    pub(super) fn data(&mut self) -> Option<(NodeRef, u64, Option<String>)> {
        let at = self.pick(false)?;
        let streams: Vec<String> = self.model.files[&at.id].streams.keys().cloned().collect();
        if streams.is_empty() || self.rng.one_in(2) {
            return Some((at.node, at.id, None));
        }
        let key = streams[self.rng.below(streams.len() as u64) as usize].clone();
        let path = at.node.path().join("\\") + ":" + &self.model.files[&at.id].streams[&key].0;
        match self.store.lookup(&NtPath::parse(&path).unwrap()).unwrap() {
            Lookup::Found(node) => Some((node, at.id, Some(key))),
            _ => panic!("{path} is missing"),
        }
    }

    pub(super) fn content(&mut self, id: u64, stream: &Option<String>) -> &mut Vec<u8> {
        let file = self.model.file(id);
        Rc::make_mut(match stream {
            None => &mut file.data,
            Some(key) => &mut file.streams.get_mut(key).unwrap().1,
        })
    }
}

fn put(data: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if data.len() < offset + bytes.len() {
        data.resize(offset + bytes.len(), 0);
    }
    data[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Operations that promise that they, and all before them, are durable: syncs of the volume, of a file, of the share.
/// (Checkpoints and snapshots, too, but not when there is nothing to do, or no room.)
const SYNCS: [u64; 10] = [93, 94, 108, 109, 110, 111, 112, 113, 114, 115];

/// Makes one operation; the model is changed as if it had succeeded.
pub fn step(rng: &mut Rng, vol: &Volume, store: &dyn FileStore, model: &mut Model, seed: u64) -> Outcome {
    let before = model.clone();
    let kind = rng.below(139);
    let mut w = World { rng, vol, store, model, durable: false };
    let Some((result, expected)) = w.operation(kind) else { return Outcome::Refused };
    if std::env::var_os("ARDEN_VOLUME_VERBOSE").is_some() {
        eprintln!("  {kind}: {result:?}, operations and durable {:?}", vol.progress());
    }
    let durable = w.durable;
    if result.is_ok() {
        limits::check(vol, model);
    }
    match (&result, &expected) {
        (Ok(()), Ok(())) if durable || SYNCS.contains(&kind) => Outcome::Durable,
        (Ok(()), Ok(())) => Outcome::Done,
        (Err(NotDone::Failed(StoreError::Stopped | StoreError::DeviceFailed)), _) => Outcome::Unknown,
        // Room is asked for before names are looked at.
        (Err(NotDone::Failed(StoreError::DiskFull | StoreError::QuotaExceeded)), _) => {
            *model = before;
            Outcome::Refused
        }
        (Err(a), Err(b)) if a == b => {
            *model = before;
            Outcome::Refused
        }
        _ => panic!("seed {seed}: operation {kind}: {result:?}, expected {expected:?}"),
    }
}

pub(super) type Both = Option<(Result<()>, Result<()>)>;

impl World<'_> {
    fn operation(&mut self, kind: u64) -> Both {
        match kind {
            0..=11 => self.create(),
            12..=37 => self.write(),
            38..=42 => self.resize(),
            43..=46 => self.zero(),
            47..=54 => self.rename(),
            55..=58 => self.link(),
            59..=65 => self.unlink(),
            66..=72 => self.streams(),
            73..=79 => self.attributes(),
            80..=83 => self.copy(),
            84..=85 => self.handle(),
            86..=87 => self.quota(),
            88..=89 => self.verify_one(),
            90..=92 => self.unlink_in_use(),
            93..=94 => Some((self.vol.sync().map_err(Into::into), Ok(()))),
            // As the volume's own thread does when many streams wait for it.
            95..=96 => Some((self.vol.allocate_delayed().map_err(Into::into), Ok(()))),
            97..=99 => Some((self.vol.checkpoint().map_err(Into::into), Ok(()))),
            100..=102 => self.create_snapshot(),
            103..=104 => self.delete_snapshot(),
            105..=107 => self.restore(),
            // The flush of a file that somebody has open.
            108..=111 => {
                let at = self.any()?;
                Some((at.node.sync(), Ok(())))
            }
            116..=117 => self.close_records(),
            118..=119 => self.begin_journal(),
            120 => self.delete_journal(),
            121..=122 => self.integrity(),
            123..=131 => self.stream_snapshot(),
            132..=134 => self.switch_short_names(),
            135..=138 => self.set_short_name(),
            // What a share that is continuously available does after each message.
            _ => Some((self.store.commit(CommitScope::begin().id()).map_err(NotDone::from), Ok(()))),
        }
    }

    /// Of data, or of what will be made in a directory.
    fn integrity(&mut self) -> Both {
        let all = [Integrity::Unset, Integrity::On, Integrity::Unenforced, Integrity::Off];
        let integrity = all[self.rng.below(4) as usize];
        let (node, id, key) = match self.rng.one_in(3) {
            true => {
                // Nothing but directories below the root is compared after a crash.
                let at = self.pick(true)?;
                (at.node, at.id, String::new())
            }
            false => {
                let (node, id, stream) = self.data()?;
                (node, id, stream.unwrap_or_default())
            }
        };
        self.model.file(id).set_integrity(&key, integrity);
        Some((node.set_integrity(None, integrity), Ok(())))
    }

    fn create_snapshot(&mut self) -> Both {
        let last = self.model.snapshots.keys().next_back().copied().unwrap_or(0);
        if self.model.snapshots.len() >= SNAPSHOTS_MAX {
            return None;
        }
        let now = FileTime(last.max(9 * SECOND) + SECOND * self.rng.below(3) + self.rng.below(SECOND));
        let result = self.vol.create_snapshot(now, "made");
        let time = (now.0 / SECOND * SECOND).max(if last == 0 { 0 } else { last + SECOND });
        if let Ok(made) = &result {
            assert_eq!(made.time.0, time);
        }
        let past = self.model.past();
        self.model.snapshots.insert(time, Rc::new(past));
        Some((result.map(|_| ()).map_err(Into::into), Ok(())))
    }

    fn a_snapshot(&mut self) -> Option<u64> {
        let all: Vec<u64> = self.model.snapshots.keys().copied().collect();
        (!all.is_empty()).then(|| all[self.rng.below(all.len() as u64) as usize])
    }

    fn delete_snapshot(&mut self) -> Both {
        let time = self.a_snapshot()?;
        let past = self.store.snapshot(FileTime(time)).unwrap();
        let result = self.vol.delete_snapshot(FileTime(time)).map(|there| assert!(there));
        if result.is_ok() {
            assert_eq!(past.root().stat().unwrap_err(), StoreError::SnapshotDeleted);
        }
        self.model.snapshots.remove(&time);
        Some((result.map_err(Into::into), Ok(())))
    }

    /// A file of the past is read, and written over one of the present.
    fn restore(&mut self) -> Both {
        let time = self.a_snapshot()?;
        let past = self.store.snapshot(FileTime(time)).unwrap();
        let mut then = (*self.model.snapshots[&time]).clone();
        let mut w = World { rng: self.rng, vol: self.vol, store: &*past, model: &mut then, durable: false };
        let (from, id, stream) = w.data()?;
        let content = w.content(id, &stream).clone();
        assert!(read_all(&from) == content, "the past has changed");
        assert_eq!(from.write_at(None, 0, b"new", Wait::Yes), Err(StoreError::ReadOnly.into()));
        let (to, to_id, to_stream) = self.data()?;
        if content.is_empty() {
            return None;
        }
        let result =
            to.copy_from(None, &*from, 0, 0, content.len() as u64).map(|n| assert_eq!(n, content.len() as u64));
        put(self.content(to_id, &to_stream), 0, &content);
        Some((result, Ok(())))
    }

    fn create(&mut self) -> Both {
        let (dir, id) = self.directory();
        let name = &self.new_name(id);
        let directory = self.rng.one_in(4);
        let descriptor_kind = 1 + self.rng.below(3) as u8;
        let sd = descriptor(descriptor_kind);
        let eas =
            if self.rng.one_in(5) { vec![Ea { name: "Made".into(), flags: 0, value: vec![7; 9] }] } else { vec![] };
        let attributes = if self.rng.one_in(2) { ATTR_HIDDEN } else { 0 };
        let allocation = self.rng.one_in(6).then(|| self.rng.below(100_000));
        let new = NewFile { directory, attributes, security: Some(&sd), eas: &eas, allocation };
        let made = dir.create_child(None, name, &new);
        if self.model.find(id, name).is_some() {
            return Some((made.map(|_| ()), Err(StoreError::NameCollision.into())));
        }
        let eas = eas.into_iter().map(|e| (e.name.to_ascii_uppercase(), e.value)).collect();
        let mut file = File { directory, attributes, eas, descriptor: descriptor_kind, ..File::default() };
        file.set_integrity("", self.model.files[&id].integrity(""));
        self.named((id, name), made.as_ref().ok(), true);
        self.model.add(id, name, file);
        Some((made.map(|_| ()), Ok(())))
    }

    fn write(&mut self) -> Both {
        let (node, id, stream) = self.data()?;
        let bytes = self.bytes();
        let len = self.content(id, &stream).len() as u64;
        let offset = self.offset(len);
        if offset + bytes.len() as u64 > FILE_MAX || bytes.is_empty() {
            return None;
        }
        let result = node.write_at(None, offset, &bytes, Wait::Yes);
        put(self.content(id, &stream), offset as usize, &bytes);
        Some((result, Ok(())))
    }

    fn resize(&mut self) -> Both {
        let (node, id, stream) = self.data()?;
        let len = self.content(id, &stream).len() as u64;
        let size = if self.rng.one_in(4) { 0 } else { self.rng.below(len * 3 / 2 + 5000) };
        if size > FILE_MAX {
            return None;
        }
        if self.rng.one_in(3) {
            let result = node.set_allocation(None, size);
            if size < len {
                self.content(id, &stream).truncate(size as usize);
            }
            return Some((result, Ok(())));
        }
        let result = node.set_end_of_file(None, size);
        self.content(id, &stream).resize(size as usize, 0);
        Some((result, Ok(())))
    }

    fn zero(&mut self) -> Both {
        let (node, id, stream) = self.data()?;
        if self.rng.one_in(4) && stream.is_none() {
            let sparse = self.rng.one_in(2);
            self.model.file(id).sparse = sparse;
            return Some((node.set_sparse(None, sparse), Ok(())));
        }
        let len = self.content(id, &stream).len() as u64;
        let from = self.rng.below(len + 1);
        let n = self.rng.below(len + 9000);
        let result = node.zero_range(None, from, n);
        let to = (from + n).min(len) as usize;
        self.content(id, &stream)[from as usize..to].fill(0);
        Some((result, Ok(())))
    }

    fn rename(&mut self) -> Both {
        let at = self.any()?;
        let (dir, to) = self.directory();
        let (name, replace) = (&self.new_name(to), self.rng.one_in(2));
        let result = at.node.rename(None, &*dir, name, replace);
        let is_directory = self.model.files[&at.id].directory;
        if is_directory && self.model.is_below(to, at.id) {
            return Some((result, Err(StoreError::IntoItself.into())));
        }
        let same = at.parent == to && fold(&at.name) == fold(name);
        // The file's own 8.3 name is no other's.
        let own = (at.parent, fold(&at.name).into_owned());
        let target = self.model.key_of(to, name).filter(|key| !same && *key != own);
        if let Some(target) = target.map(|key| self.model.names[&key].1) {
            if !replace {
                return Some((result, Err(StoreError::NameCollision.into())));
            }
            if self.model.files[&target].directory {
                return Some((result, Err(StoreError::DirectoryInTheWay.into())));
            }
            self.model.remove_name(to, name);
        }
        self.model.names.remove(&own);
        if !same {
            self.model.shorts.remove(&own);
            let sole = self.model.links(at.id) == 0;
            self.named((to, name), result.is_ok().then_some(&at.node), sole);
        }
        self.model.names.insert((to, fold(name).into_owned()), (name.to_owned(), at.id));
        Some((result, Ok(())))
    }

    fn link(&mut self) -> Both {
        let at = self.pick(false)?;
        let (dir, to) = self.directory();
        let (name, replace) = (&self.new_name(to), self.rng.one_in(2));
        let result = at.node.link(None, &*dir, name, replace);
        if let Some(target) = self.model.find(to, name) {
            if !replace {
                return Some((result, Err(StoreError::NameCollision.into())));
            }
            if target == at.id {
                return Some((result, Ok(())));
            }
            if self.model.files[&target].directory {
                return Some((result, Err(StoreError::DirectoryInTheWay.into())));
            }
            self.model.remove_name(to, name);
        }
        self.model.names.insert((to, fold(name).into_owned()), (name.to_owned(), at.id));
        Some((result, Ok(())))
    }

    fn unlink(&mut self) -> Both {
        let at = self.any()?;
        let result = at.node.unlink(None);
        if !self.model.is_empty(at.id) && self.model.files[&at.id].directory {
            return Some((result, Err(StoreError::DirectoryNotEmpty.into())));
        }
        self.model.remove_name(at.parent, &at.name);
        Some((result, Ok(())))
    }

    /// The data lives on while somebody uses it, and a write then changes nothing that can be found.
    fn unlink_in_use(&mut self) -> Both {
        let at = self.pick(false)?;
        let content = self.model.files[&at.id].data.clone();
        if let Err(e) = at.node.unlink(None) {
            self.model.remove_name(at.parent, &at.name);
            return Some((Err(e), Ok(())));
        }
        let last = self.model.links(at.id) == 1;
        self.model.remove_name(at.parent, &at.name);
        if last && at.node.write_at(None, 10, b"more", Wait::Yes).is_ok() {
            let mut want = (*content).clone();
            put(&mut want, 10, b"more");
            // Power may be lost right after the write, in what the volume does behind it.
            let mut now = vec![0xEE; want.len() + 7];
            let read = at.node.read_at(0, &mut now, Wait::Yes);
            if let Ok(n) = read {
                assert_eq!(now[..n], want);
            }
            return Some((read.map(drop), Ok(())));
        }
        Some((Ok(()), Ok(())))
    }

    fn streams(&mut self) -> Both {
        let at = self.any()?;
        let name = self.name();
        let key = fold(name).into_owned();
        let existing = self.model.files[&at.id].streams.contains_key(&key);
        let open = |w: &Self, real: &str| {
            let path = at.node.path().join("\\") + ":" + real;
            match w.store.lookup(&NtPath::parse(&path).unwrap()).unwrap() {
                Lookup::Found(node) => node,
                _ => panic!("{path} is missing"),
            }
        };
        let file = &self.model.files[&at.id];
        let (directory, sparse) = (file.directory, file.sparse);
        match self.rng.below(5) {
            // [MS-FSA] 2.1.5.15.12.1: to and from the file's own data. Whether it is sparse goes along; the model
            // knows that of a file only.
            3 if existing && !directory => {
                let real = self.model.files[&at.id].streams[&key].0.clone();
                let result = open(self, &real).rename_stream(None, None, true);
                let file = self.model.file(at.id);
                if !file.data.is_empty() {
                    return Some((result, Err(StoreError::InvalidParameter.into())));
                }
                file.data = file.streams.remove(&key).unwrap().1;
                file.sparse = false;
                file.move_stream(&key, "");
                Some((result, Ok(())))
            }
            4 if !directory && !sparse => {
                let replace = self.rng.one_in(2);
                let result = at.node.rename_stream(None, Some(name), replace);
                if existing && !replace {
                    return Some((result, Err(StoreError::NameCollision.into())));
                }
                let file = self.model.file(at.id);
                let data = std::mem::take(&mut file.data);
                file.move_stream("", &key);
                file.streams.insert(key, (name.to_owned(), data));
                Some((result, Ok(())))
            }
            0 if existing => {
                let real = self.model.files[&at.id].streams[&key].0.clone();
                let node = open(self, &real);
                let file = self.model.file(at.id);
                file.streams.remove(&key);
                file.forget_stream(&key);
                Some((node.unlink(None), Ok(())))
            }
            1 if existing => {
                let (real, data) = self.model.files[&at.id].streams[&key].clone();
                let (new, replace) = (self.name(), self.rng.one_in(2));
                let new_key = fold(new).into_owned();
                let node = open(self, &real);
                let result = node.rename_stream(None, Some(new), replace);
                let file = self.model.file(at.id);
                if new_key != key && file.streams.contains_key(&new_key) && !replace {
                    return Some((result, Err(StoreError::NameCollision.into())));
                }
                file.streams.remove(&key);
                if new_key != key {
                    file.move_stream(&key, &new_key);
                }
                file.streams.insert(new_key, (new.to_owned(), data));
                Some((result, Ok(())))
            }
            _ => {
                let result = at.node.create_stream(None, name).map(|_| ());
                if existing {
                    return Some((result, Err(StoreError::NameCollision.into())));
                }
                let file = self.model.file(at.id);
                file.set_integrity(&key, file.integrity(""));
                file.streams.insert(key, (name.to_owned(), Rc::default()));
                Some((result, Ok(())))
            }
        }
    }

    fn attributes(&mut self) -> Both {
        let at = self.any()?;
        let n = self.rng.below(1000);
        let model = self.model.file(at.id);
        let result = match n % 5 {
            0 => {
                model.attributes = [0, ATTR_READONLY, ATTR_HIDDEN | ATTR_SYSTEM][n as usize / 5 % 3];
                at.node.set_basic(None, &BasicUpdate { attributes: Some(model.attributes), ..Default::default() })
            }
            1 => {
                let name = ["One", "TWO", "Three"][n as usize / 5 % 3];
                let value = vec![n as u8; (n as usize * 9) % 3000];
                let ea = Ea { name: name.into(), flags: 0, value: value.clone() };
                model.eas.remove(&name.to_ascii_uppercase());
                if !value.is_empty() {
                    model.eas.insert(name.to_ascii_uppercase(), value);
                }
                at.node.set_eas(None, &[ea])
            }
            2 if !model.directory => match model.reparse.take() {
                Some((tag, _)) => at.node.delete_reparse(None, tag),
                None => {
                    let data = vec![n as u8; n as usize * 12];
                    model.reparse = Some((0xA000_000C, data.clone()));
                    at.node.set_reparse(None, 0xA000_000C, &data)
                }
            },
            3 => {
                model.object_id = Some(u128::from(n) << 70);
                at.node.set_object_id(None, u128::from(n) << 70)
            }
            _ => {
                model.descriptor = 1 + (n % 7) as u8;
                at.node.set_security(None, &descriptor(model.descriptor))
            }
        };
        Some((result, Ok(())))
    }

    fn copy(&mut self) -> Both {
        let (from, from_id, from_stream) = self.data()?;
        let (to, to_id, to_stream) = self.data()?;
        let source = self.content(from_id, &from_stream).clone();
        if (from_id, &from_stream) == (to_id, &to_stream) || source.is_empty() {
            return None;
        }
        let clone = self.rng.one_in(2);
        let mut start = self.rng.below(source.len() as u64);
        let mut offset = self.rng.below(FILE_MAX / 4);
        let mut len = 1 + self.rng.below(source.len() as u64 - start);
        if clone {
            start = start / 4096 * 4096;
            offset = offset / 4096 * 4096;
            let whole = len / 4096 * 4096;
            len = if whole == 0 || self.rng.one_in(2) { source.len() as u64 - start } else { whole };
            if offset + len < self.content(to_id, &to_stream).len() as u64 {
                len = len / 4096 * 4096;
            }
            if len == 0 {
                return None;
            }
        }
        // Whole blocks are shared, in one operation. Beside them their ends would be copied by others, which is not atomic.
        if !clone
            && (self.rng.one_in(2) || start % 4096 == offset % 4096)
            && source.len() as u64 - start / 4096 * 4096 >= 4096
        {
            (start, offset) = (start / 4096 * 4096, offset / 4096 * 4096);
            len = len.max(4096).min(source.len() as u64 - start) / 4096 * 4096;
        }
        if offset + len > FILE_MAX {
            return None;
        }
        let frozen =
            if !clone && self.rng.one_in(3) { from.freeze(start, len, &well_known::SYSTEM).ok() } else { None };
        let result = if let Some((frozen, base)) = frozen {
            to.copy_from(None, &*frozen, base, offset, len).map(|n| assert_eq!(n, len))
        } else if clone {
            Node::clone_from(&*to, None, &*from, start, offset, len)
        } else {
            to.copy_from(None, &*from, start, offset, len).map(|n| assert_eq!(n, len))
        };
        let sparse = |w: &Self, id: u64, stream: &Option<String>| stream.is_none() && w.model.files[&id].sparse;
        if clone && sparse(self, from_id, &from_stream) && !sparse(self, to_id, &to_stream) {
            return Some((result, Err(StoreError::NotSupported.into())));
        }
        let part = &source[start as usize..(start + len) as usize];
        put(self.content(to_id, &to_stream), offset as usize, part);
        Some((result, Ok(())))
    }

    fn handle(&mut self) -> Both {
        let key = vec![self.rng.below(6) as u8; 1 + self.rng.below(4) as usize];
        let result = if self.rng.one_in(3) {
            self.model.handles.remove(&key);
            self.vol.remove_handle(&key)
        } else {
            let value = vec![self.rng.below(256) as u8; self.rng.below(10_000) as usize];
            self.model.handles.insert(key.clone(), value.clone());
            self.vol.put_handle(&key, &value)
        };
        Some((result.map_err(Into::into), Ok(())))
    }

    fn quota(&mut self) -> Both {
        let limit = [u64::MAX, 3 << 20, 600_000][self.rng.below(3) as usize];
        let (who, (dir, id)) = (self.rng.below(2) as u8, self.directory());
        let ino = dir.id().file;
        let kind = self.rng.below(6);
        let (subject, result) = match kind {
            0..=2 => (Subject::Owner(who), self.vol.set_user_quota(owner(who), limit / 2, limit)),
            3 => (Subject::Owner(who), self.vol.remove_user_quota(owner(who)).map(drop)),
            4 => (Subject::Folder(id), self.vol.set_folder_quota(ino, limit / 2, limit)),
            _ => (Subject::Folder(id), self.vol.remove_folder_quota(ino).map(drop)),
        };
        if kind == 3 || kind == 5 {
            self.model.limits.remove(&subject);
        } else {
            self.durable = true;
            let taken = match subject {
                Subject::Owner(who) => self.vol.user_quota(owner(who)).ok().flatten().map_or(0, |q| q.used_bytes),
                Subject::Folder(_) => 0,
            };
            self.model.limits.insert(subject, Limit { threshold: limit / 2, limit, taken });
        }
        Some((result.map_err(Into::into), Ok(())))
    }

    /// As FSCTL_WRITE_USN_CLOSE_RECORD has it: more records than the journal keeps, at times.
    fn close_records(&mut self) -> Both {
        self.model.journal.as_ref()?;
        let most = if self.rng.one_in(4) { 1500 } else { 50 };
        let (at, n) = (self.any()?, 1 + self.rng.below(most));
        let journal = self.store.change_journal()?;
        let written = (0..n).try_for_each(|_| journal.close_record(None, &*at.node).map(drop));
        Some((written.map_err(Into::into), Ok(())))
    }

    fn begin_journal(&mut self) -> Both {
        let journal = self.store.change_journal().filter(|_| self.model.journal.is_none())?;
        // Power may be lost when it is there and nobody was told of it.
        self.model.journal = Some(Rc::new(Journal::unknown()));
        let info = journal.create(None, 64 << 10, 8 << 10).and_then(|()| journal.info());
        if let Ok(info) = info {
            self.model.journal = Some(Rc::new(Journal::begun(info.id, info.next)));
            self.durable = true;
        }
        Some((info.map(drop).map_err(Into::into), Ok(())))
    }

    fn delete_journal(&mut self) -> Both {
        let id = self.model.journal.take()?.id?;
        self.durable = true;
        Some((self.store.change_journal()?.delete(None, id).map_err(Into::into), Ok(())))
    }

    fn verify_one(&mut self) -> Both {
        let (node, id, stream) = self.data()?;
        let want = self.content(id, &stream).clone();
        assert_eq!(node.stat().unwrap().end_of_file, want.len() as u64);
        assert!(read_all(&node) == want, "data differs");
        let mut part = vec![0xEE; 5000];
        let at = self.rng.below(want.len() as u64 + 10) as usize;
        let n = node.read_at(at as u64, &mut part, Wait::Yes).unwrap();
        assert!(part[..n] == want[at.min(want.len())..(at + 5000).min(want.len())], "a part of the data differs");
        None
    }
}
