//! The naive oracle: files as plain maps and vectors, and the operations on them with their outcomes.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use arden_store::{
    name::fold,
    store::{FileStore, Integrity, NodeRef, Wait},
};
use arden_volume::{Volume, read_stream_snapshot};
use arden_wire::access::*;

use super::{
    limits::{Limit, Limits, Subject, Usage},
    short_names::{Short, Shorts},
    usn::Journal,
};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct File {
    pub directory: bool,
    pub attributes: u32,
    pub data: Rc<Vec<u8>>,
    pub sparse: bool,
    /// Of streams that have it set, by folded name; "" is the file's or directory's own.
    pub integrity: BTreeMap<String, Integrity>,
    /// By folded name.
    pub streams: BTreeMap<String, (String, Rc<Vec<u8>>)>,
    /// Names and contents of the snapshots of each stream that has some, oldest first; "" is the file's own.
    pub snapshots: BTreeMap<String, Vec<(String, Rc<Vec<u8>>)>>,
    pub eas: BTreeMap<String, Vec<u8>>,
    pub reparse: Option<(u32, Vec<u8>)>,
    pub object_id: Option<u128>,
    pub descriptor: u8,
}

impl File {
    pub fn integrity(&self, stream: &str) -> Integrity {
        self.integrity.get(stream).copied().unwrap_or_default()
    }

    pub fn set_integrity(&mut self, stream: &str, integrity: Integrity) {
        match integrity {
            Integrity::Unset => self.integrity.remove(stream),
            _ => self.integrity.insert(stream.to_owned(), integrity),
        };
    }

    /// What is kept beside a stream's data goes with it when it is taken away.
    pub fn forget_stream(&mut self, stream: &str) {
        self.integrity.remove(stream);
        self.snapshots.remove(stream);
    }

    /// The same when it is called `to`, where nothing else is any more. The file's own data keeps its integrity.
    pub fn move_stream(&mut self, from: &str, to: &str) {
        let (integrity, snapshots) = (self.integrity(from), self.snapshots.remove(from));
        if !from.is_empty() {
            self.forget_stream(from);
        }
        self.forget_stream(to);
        self.set_integrity(to, integrity);
        self.snapshots.extend(snapshots.map(|s| (to.to_owned(), s)));
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Model {
    pub files: BTreeMap<u64, Rc<File>>,
    /// By directory and folded name.
    pub names: BTreeMap<(u64, String), (String, u64)>,
    /// 8.3 names beside them, by the same keys, and whether names get new ones; None: they are made, and kept nowhere.
    pub(super) shorts: BTreeMap<(u64, String), Short>,
    pub keeps_shorts: Option<bool>,
    pub handles: BTreeMap<Vec<u8>, Vec<u8>>,
    /// By time.
    pub snapshots: BTreeMap<u64, Rc<Model>>,
    pub next: u64,
    /// None: there is no change journal.
    pub journal: Option<Rc<Journal>>,
    pub limits: BTreeMap<Subject, Limit>,
}

pub const ROOT: u64 = 0;

impl Model {
    pub fn new() -> Model {
        let root = File { directory: true, descriptor: 0xFF, ..File::default() };
        Model { files: BTreeMap::from([(ROOT, Rc::new(root))]), next: 1, ..Model::default() }
    }

    pub fn find(&self, directory: u64, name: &str) -> Option<u64> {
        self.key_of(directory, name).map(|key| self.names[&key].1)
    }

    /// Of the entry that has this name, or 8.3 name.
    pub fn key_of(&self, directory: u64, name: &str) -> Option<(u64, String)> {
        let key = (directory, fold(name).into_owned());
        if self.names.contains_key(&key) { Some(key) } else { self.key_by_short(directory, name) }
    }

    pub fn file(&mut self, id: u64) -> &mut File {
        Rc::make_mut(self.files.get_mut(&id).unwrap())
    }

    pub fn add(&mut self, directory: u64, name: &str, file: File) -> u64 {
        let id = self.next;
        self.next += 1;
        self.files.insert(id, Rc::new(file));
        self.names.insert((directory, fold(name).into_owned()), (name.to_owned(), id));
        id
    }

    pub fn links(&self, id: u64) -> usize {
        self.names.values().filter(|(_, i)| *i == id).count()
    }

    pub fn remove_name(&mut self, directory: u64, name: &str) {
        let Some(key) = self.key_of(directory, name) else { return };
        self.shorts.remove(&key);
        if let Some((_, id)) = self.names.remove(&key)
            && self.links(id) == 0
        {
            self.files.remove(&id);
        }
    }

    pub fn is_empty(&self, directory: u64) -> bool {
        !self.names.keys().any(|(d, _)| *d == directory)
    }

    pub fn is_below(&self, mut at: u64, top: u64) -> bool {
        loop {
            if at == top {
                return true;
            }
            match self.names.iter().find(|(_, (_, id))| *id == at) {
                Some(((parent, _), _)) => at = *parent,
                None => return false,
            }
        }
    }

    /// What a snapshot keeps of it.
    pub fn past(&self) -> Model {
        Model {
            files: self.files.clone(),
            names: self.names.clone(),
            shorts: self.shorts.clone(),
            keeps_shorts: self.keeps_shorts,
            next: self.next,
            ..Model::default()
        }
    }

    /// What can be seen of it: by path; hard links by the first path.
    pub fn dump(&self) -> Dump {
        let snapshots = self.snapshots.iter().map(|(t, m)| (*t, m.dump())).collect();
        let generates_shorts = self.keeps_shorts == Some(true);
        let mut out = Dump { handles: self.handles.clone(), snapshots, generates_shorts, ..Dump::default() };
        let mut first = HashMap::from([(ROOT, String::new())]);
        self.dump_directory(ROOT, "", &mut out, &mut first);
        out.limits = self.limits_by_name(&first);
        out
    }

    fn dump_directory(&self, id: u64, path: &str, out: &mut Dump, first: &mut HashMap<u64, String>) {
        for (key, (name, child)) in self.names.range((id, String::new())..(id + 1, String::new())) {
            let path = format!("{path}/{name}");
            if let Some(short) = self.shorts.get(key) {
                out.shorts.insert(&path, short.clone());
            }
            let same = first.entry(*child).or_insert_with(|| path.clone()).clone();
            out.files.insert(path.clone(), (same, self.links(*child) as u32, self.files[child].clone()));
            if self.files[child].directory {
                self.dump_directory(*child, &path, out, first);
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Dump {
    pub files: BTreeMap<String, (String, u32, Rc<File>)>,
    pub(super) shorts: Shorts,
    generates_shorts: bool,
    pub handles: BTreeMap<Vec<u8>, Vec<u8>>,
    pub snapshots: BTreeMap<u64, Dump>,
    pub limits: Limits,
}

impl Dump {
    /// What the volume shows.
    pub fn of(vol: &Volume, store: &dyn FileStore) -> Dump {
        let mut usage = Usage::default();
        let mut out = Dump::of_store(store, &mut usage);
        out.limits = usage.checked_limits(vol);
        out.handles = vol.load_handles().unwrap().into_iter().collect();
        for time in store.snapshots() {
            out.snapshots.insert(time.0, Dump::of_store(&*store.snapshot(time).unwrap(), &mut Usage::default()));
        }
        out
    }

    fn of_store(store: &dyn FileStore, usage: &mut Usage) -> Dump {
        let mut out = Dump { generates_shorts: store.generates_short_names(), ..Dump::default() };
        usage.see(&store.root(), "");
        directory(&store.root(), "", &mut out, usage, store);
        out
    }

    /// The first difference, for people.
    pub fn difference(&self, other: &Dump) -> String {
        for (path, a) in &self.files {
            match other.files.get(path) {
                None => return format!("{path} is missing"),
                Some(b) if a != b => {
                    let at = a.2.data.iter().zip(b.2.data.iter()).position(|(x, y)| x != y);
                    let (mut x, mut y) = (a.clone(), b.clone());
                    let lens = (x.2.data.len(), y.2.data.len());
                    Rc::make_mut(&mut x.2).data = Rc::default();
                    Rc::make_mut(&mut y.2).data = Rc::default();
                    let short = |f: &(String, u32, Rc<File>)| {
                        let mut f = f.clone();
                        for s in Rc::make_mut(&mut f.2).streams.values_mut() {
                            s.1 = Rc::new(vec![s.1.len() as u8]);
                        }
                        for s in Rc::make_mut(&mut f.2).snapshots.values_mut().flatten() {
                            s.1 = Rc::new(vec![s.1.len() as u8, s.1.iter().fold(0, |sum, b| sum ^ b)]);
                        }
                        format!("{f:?}")
                    };
                    return format!("{path}: data differs at {at:?}, {lens:?}\n{}\n{}", short(&x), short(&y));
                }
                Some(_) => {}
            }
        }
        if let Some((time, a)) = self.snapshots.iter().find(|(t, a)| other.snapshots.get(t) != Some(a)) {
            return match other.snapshots.get(time) {
                Some(b) => format!("snapshot {time}: {}", a.difference(b)),
                None => format!("snapshot {time} is missing"),
            };
        }
        other.files.keys().find(|p| !self.files.contains_key(*p)).map_or_else(
            || {
                let (limits, others) = (&self.limits, &other.limits);
                let snapshots = other.snapshots.keys();
                format!(
                    "handles {:?} and {:?}, snapshots {snapshots:?}, limits {limits:?} and {others:?}, 8.3 names {:?} and {:?}",
                    self.handles, other.handles, self.shorts, other.shorts
                )
            },
            |p| format!("{p} should not be there"),
        )
    }
}

pub fn read_all(node: &NodeRef) -> Vec<u8> {
    let mut buf = vec![0xEE; node.stat().unwrap().end_of_file as usize + 7];
    let n = node.read_at(0, &mut buf, Wait::Yes).unwrap();
    buf.truncate(n);
    buf
}

fn directory(dir: &NodeRef, path: &str, out: &mut Dump, usage: &mut Usage, store: &dyn FileStore) {
    let mut cursor = dir.list().unwrap();
    while let Some(entry) = cursor.peek(&|_| true).unwrap() {
        cursor.advance();
        let path = format!("{path}/{}", entry.name);
        let parsed = arden_store::name::NtPath::parse(path.trim_start_matches('/')).unwrap();
        let node = match store.lookup(&parsed).unwrap() {
            arden_store::store::Lookup::Found(node) => node,
            _ => panic!("{path} is listed and not found"),
        };
        let stat = node.stat().unwrap();
        assert_eq!(stat, entry.stat, "{path}");
        assert_eq!(node.path().join("/"), path.trim_start_matches('/'));
        out.shorts.see(&path, &entry, &node, store);
        let integrity = integrity(&node);
        let shown = integrity.get("").copied().unwrap_or_default();
        assert_eq!(stat.attributes & ATTR_INTEGRITY_STREAM != 0, shown.is_set(), "{path}");
        let file = File {
            directory: stat.directory,
            attributes: stat.attributes & ATTR_SETTABLE,
            integrity,
            data: Rc::new(if stat.directory { Vec::new() } else { read_all(&node) }),
            sparse: stat.attributes & ATTR_SPARSE != 0,
            streams: streams(&node, &path, store),
            snapshots: snapshots(&node),
            eas: node.eas().unwrap().into_iter().map(|e| (e.name.to_ascii_uppercase(), e.value)).collect(),
            reparse: node.reparse().ok(),
            object_id: node.object_id().unwrap(),
            descriptor: node.security().unwrap().dacl.as_ref().map_or(0, |d| d.aces.len() as u8),
        };
        usage.see(&node, &path);
        let same = usage.first_path(stat.id.file).to_owned();
        let is_directory = file.directory;
        out.files.insert(path.clone(), (same, stat.links, Rc::new(file)));
        if is_directory {
            directory(&node, &path, out, usage, store);
        }
    }
}

fn integrity(node: &NodeRef) -> BTreeMap<String, Integrity> {
    let mut out = BTreeMap::from([(String::new(), node.integrity().unwrap())]);
    for s in node.streams().unwrap().into_iter().filter(|s| !s.name.is_empty()) {
        let stream = node.named_stream(&s.name).unwrap().unwrap();
        out.insert(fold(&s.name).into_owned(), stream.integrity().unwrap());
    }
    out.retain(|_, integrity| *integrity != Integrity::Unset);
    out
}

fn snapshots(node: &NodeRef) -> BTreeMap<String, Vec<(String, Rc<Vec<u8>>)>> {
    let mut out = BTreeMap::new();
    for s in node.streams().unwrap() {
        let stream = if s.name.is_empty() { node.clone() } else { node.named_stream(&s.name).unwrap().unwrap() };
        let all = stream.stream_snapshots().unwrap().into_iter().map(|s| {
            let content = read_stream_snapshot(&*stream, &s.name).unwrap();
            assert_eq!(content.len() as u64, s.size);
            (s.name, Rc::new(content))
        });
        out.insert(fold(&s.name).into_owned(), all.collect());
    }
    out.retain(|_, all: &mut Vec<_>| !all.is_empty());
    out
}

fn streams(node: &NodeRef, path: &str, store: &dyn FileStore) -> BTreeMap<String, (String, Rc<Vec<u8>>)> {
    let mut out = BTreeMap::new();
    for s in node.streams().unwrap().into_iter().filter(|s| !s.name.is_empty()) {
        let full = format!("{}:{}", path.trim_start_matches('/'), s.name);
        match store.lookup(&arden_store::name::NtPath::parse(&full).unwrap()).unwrap() {
            arden_store::store::Lookup::Found(stream) => {
                out.insert(fold(&s.name).into_owned(), (s.name.clone(), Rc::new(read_all(&stream))));
            }
            _ => panic!("{full} is listed and not found"),
        }
    }
    out
}
