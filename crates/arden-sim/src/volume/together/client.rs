//! One of the clients that use a volume at once: asks for one thing after the other, on a thread of its own, and tells the oracle
//! what it asked and what it was answered.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arden_block::rng::Rng;
use arden_store::{
    commit::CommitScope,
    error::{NotDone, StoreError},
    name::NtPath,
    store::{FileStore, Lookup, NewFile, Node, NodeRef, Result, Wait},
};
use arden_testkit::crash::together::{Answer, Name, Op, SECTOR, Since, Together, View, bytes_of, content_of};
use arden_volume::{VolError, Volume, VolumeStore};
use arden_wire::FileTime;
use parking_lot::Mutex;

use super::{Gate, device::Inbox};

pub const DIRECTORY: &str = "d";
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Sectors of a block, and most of a file.
const BLOCK: usize = 8;
const FILE_SECTORS_MAX: u64 = 400;
/// From the size on that large writes have: what is written so goes to the device beside the journal.
const LARGE_SECTORS: usize = 140;
const HANDLES_MAX: usize = 4;
/// Kinds of operations, each as often as it has numbers.
const KINDS: u64 = 36;

/// What the threads of a run share.
pub struct Common {
    pub inbox: Arc<Inbox>,
    pub oracle: Mutex<Together>,
    pub operations: AtomicU64,
    pub verbose: bool,
}

impl Common {
    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            let thread = std::thread::current();
            eprintln!("{:>10} {}: {}", arden_lock_ns(), thread.name().unwrap_or("?"), what());
        }
    }
}

/// Virtual microseconds, for people.
fn arden_lock_ns() -> u128 {
    arden_lock::simulator::current().map_or(0, |s| s.now().as_micros())
}

pub fn path((directory, name): Name) -> NtPath {
    let name = NAMES[usize::from(name)];
    let path = if directory == 0 { name.to_owned() } else { format!("{DIRECTORY}\\{name}") };
    NtPath::parse(&path).expect("a path")
}

fn number_of(name: &str) -> u8 {
    NAMES.iter().position(|n| *n == name).unwrap_or_else(|| panic!("somebody made {name}")) as u8
}

/// The root, and the directory in it.
pub fn directories(store: &dyn FileStore) -> Result<[NodeRef; 2]> {
    match store.lookup(&NtPath::parse(DIRECTORY).expect("a path"))? {
        Lookup::Found(node) => Ok([store.root(), node]),
        _ => Err(StoreError::PathNotFound.into()),
    }
}

fn read_all(node: &NodeRef) -> Result<Vec<u8>> {
    let mut buf = vec![0xEE; (FILE_SECTORS_MAX as usize * 2 + 1) * SECTOR];
    let n = node.read_at(0, &mut buf, Wait::Yes)?;
    buf.truncate(n);
    Ok(buf)
}

/// Everything that there is, while nobody changes it, and the ids of the files.
pub fn look(store: &dyn FileStore) -> Result<(View, BTreeMap<Name, u64>)> {
    let (mut view, mut ids) = (View::new(), BTreeMap::new());
    for (number, directory) in directories(store)?.iter().enumerate() {
        for (name, id) in names(directory)? {
            let name = (number as u8, name);
            let Lookup::Found(node) = store.lookup(&path(name))? else { panic!("{name:?} is listed and not found") };
            assert_eq!(node.id().file, id, "{name:?} is another file than its directory says");
            let content = content_of(&read_all(&node)?).unwrap_or_else(|e| panic!("{name:?}: {e}"));
            ids.insert(name, id);
            view.insert(name, content);
        }
    }
    Ok((view, ids))
}

fn names(directory: &NodeRef) -> Result<BTreeMap<u8, u64>> {
    let mut cursor = directory.list()?;
    let mut out = BTreeMap::new();
    while let Some(entry) = cursor.peek(&|_| true)? {
        cursor.advance();
        if !entry.stat.directory {
            out.insert(number_of(&entry.name), entry.stat.id.file);
        }
    }
    Ok(out)
}

/// What the clients of a round have in common, so that they get into each other's way.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// What each second operation is.
    favourite: Option<u64>,
    /// So many names of one directory, or all.
    names: Option<u64>,
}

impl Round {
    pub fn draw(rng: &mut Rng) -> Round {
        let favourite = rng.one_in(2).then(|| rng.below(KINDS));
        Round { favourite, names: rng.one_in(2).then(|| rng.range(1, 2)) }
    }
}

pub struct Client {
    round: Round,
    common: Arc<Common>,
    vol: Arc<Volume>,
    store: Arc<VolumeStore>,
    /// What its store does is durable when it is told.
    through: bool,
    rng: Rng,
    directories: [NodeRef; 2],
    files: Vec<NodeRef>,
}

/// Power was lost: what comes after that counts for nobody.
struct Lost;

impl Client {
    pub fn new(
        round: Round,
        common: Arc<Common>,
        vol: Arc<Volume>,
        store: Arc<VolumeStore>,
        through: bool,
        rng: Rng,
    ) -> Result<Client> {
        let directories = directories(&*store)?;
        Ok(Client { round, common, vol, store, through, rng, directories, files: Vec::new() })
    }

    /// So many operations, or until power is lost.
    pub fn run(mut self, operations: u64) {
        // Of few names it has a handle each to begin with.
        for name in 0..self.round.names.unwrap_or(0) {
            if self.lookup((0, name as u8)).is_err() {
                return;
            }
        }
        for _ in 0..operations {
            if self.rng.one_in(12) {
                arden_lock::thread::sleep(Duration::from_micros(self.rng.below(3000)));
            }
            if self.step().is_err() {
                return;
            }
            self.common.operations.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn name(&mut self) -> Name {
        match self.round.names {
            Some(n) => (0, self.rng.below(n) as u8),
            None => (self.rng.below(2) as u8, self.rng.below(NAMES.len() as u64) as u8),
        }
    }

    fn keep(&mut self, node: NodeRef) {
        if self.files.len() >= HANDLES_MAX {
            let old = self.rng.below(HANDLES_MAX as u64) as usize;
            drop(self.files.swap_remove(old));
        }
        self.files.push(node);
    }

    fn file(&mut self) -> Option<NodeRef> {
        let n = self.files.len() as u64;
        (n > 0).then(|| self.files[self.rng.below(n) as usize].clone())
    }

    /// Mostly another than this one.
    fn other_file(&mut self, than: &NodeRef) -> Option<NodeRef> {
        let other = self.files.iter().find(|f| f.id() != than.id()).cloned();
        if self.rng.one_in(4) { self.file() } else { other.or_else(|| self.file()) }
    }

    fn step(&mut self) -> Result<(), Lost> {
        let what = match self.round.favourite {
            Some(favourite) if self.rng.one_in(2) => favourite,
            _ => self.rng.below(KINDS),
        };
        let file = if self.rng.one_in(8) { None } else { self.file() };
        let Some(file) = file else {
            let name = self.name();
            return if self.rng.one_in(2) { self.create(name) } else { self.lookup(name) };
        };
        match what {
            0..=2 => {
                let name = self.name();
                self.create(name)
            }
            3..=5 => {
                let name = self.name();
                self.lookup(name)
            }
            6..=7 => self.list(),
            8..=12 => self.read(&file),
            13 => self.stat(&file),
            14..=19 => self.write(&file),
            20 => self.zero(&file),
            21..=22 => self.resize(&file),
            23..=25 => self.share(&file),
            26..=27 => self.rename(&file),
            28..=29 => self.unlink(&file),
            30 => {
                self.files.retain(|f| !Arc::ptr_eq(f, &file));
                Ok(())
            }
            31 => self.snapshot(),
            32 => self.checkpoint(),
            _ => self.sync(&file),
        }
    }

    fn ask(&self, op: Op) -> (u32, Since) {
        self.common.say(|| format!("{op:?}"));
        let mut oracle = self.common.oracle.lock();
        let since = oracle.now();
        (oracle.ask(op), since)
    }

    /// Tells the oracle; `changes`: on a store that writes through it is durable.
    fn told(&self, (number, since): (u32, Since), changes: bool, answer: Result<Answer<u64>>) -> Result<(), Lost> {
        if self.common.inbox.is_dead() {
            return Err(Lost);
        }
        let answer = answer.unwrap_or_else(|e| match e {
            NotDone::Failed(StoreError::NameCollision) => Answer::Collision,
            NotDone::Failed(StoreError::Deleted) => Answer::Gone,
            NotDone::Failed(StoreError::DiskFull) => Answer::Full,
            e => panic!("operation {number} fails: {e}"),
        });
        self.common.say(|| format!("{number} is answered {answer:?}"));
        let since = (self.through && changes).then_some(since);
        self.common.oracle.lock().answer(number, &answer, since).unwrap_or_else(|e| panic!("{e}"));
        Ok(())
    }

    fn create(&mut self, name: Name) -> Result<(), Lost> {
        let number = self.ask(Op::Create(name));
        let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
        let made = self.directories[usize::from(name.0)].create_child(None, NAMES[usize::from(name.1)], &new);
        let told = self.told(number, true, made.as_ref().map(|n| Answer::File(n.id().file)).map_err(|e| *e));
        made.into_iter().for_each(|node| self.keep(node));
        told
    }

    fn lookup(&mut self, name: Name) -> Result<(), Lost> {
        let number = self.ask(Op::Lookup(name));
        let found = match self.store.lookup(&path(name)) {
            Ok(Lookup::Found(node)) => Ok(Some(node)),
            Ok(_) => Ok(None),
            Err(e) => Err(e),
        };
        let answer = found.as_ref().map(|n| n.as_ref().map_or(Answer::Missing, |n| Answer::File(n.id().file)));
        let told = self.told(number, false, answer.map_err(|e| *e));
        found.into_iter().flatten().for_each(|node| self.keep(node));
        told
    }

    fn list(&mut self) -> Result<(), Lost> {
        let directory = self.rng.below(2) as u8;
        let number = self.ask(Op::List(directory));
        let found = names(&self.directories[usize::from(directory)]);
        self.told(number, false, found.map(Answer::Names))
    }

    fn read(&mut self, file: &NodeRef) -> Result<(), Lost> {
        let number = self.ask(Op::Read(file.id().file));
        let read = read_all(file)
            .map(|bytes| Answer::Bytes(content_of(&bytes).unwrap_or_else(|e| panic!("file {}: {e}", file.id().file))));
        self.told(number, false, read)
    }

    fn stat(&mut self, file: &NodeRef) -> Result<(), Lost> {
        let number = self.ask(Op::Stat(file.id().file));
        let stat = file.stat().map(|s| Answer::Sectors(s.end_of_file as usize / SECTOR));
        self.told(number, false, stat)
    }

    fn write(&mut self, file: &NodeRef) -> Result<(), Lost> {
        let large = self.rng.one_in(4);
        let n = if large { LARGE_SECTORS + self.rng.below(40) as usize } else { 1 + self.rng.below(20) as usize };
        let near = if self.rng.one_in(2) { 20 } else { 1 };
        let from = self.rng.below(FILE_SECTORS_MAX / near) as usize;
        let number = self.ask(Op::Write(file.id().file, from, n));
        let bytes = bytes_of(number.0, n);
        let written = file.write_at(None, (from * SECTOR) as u64, &bytes, Wait::Yes);
        self.told(number, true, written.map(|()| Answer::Done))
    }

    fn zero(&mut self, file: &NodeRef) -> Result<(), Lost> {
        let (from, n) = (self.rng.below(FILE_SECTORS_MAX) as usize, 1 + self.rng.below(100) as usize);
        let number = self.ask(Op::Zero(file.id().file, from, n));
        let zeroed = file.zero_range(None, (from * SECTOR) as u64, (n * SECTOR) as u64);
        self.told(number, true, zeroed.map(|()| Answer::Done))
    }

    fn resize(&mut self, file: &NodeRef) -> Result<(), Lost> {
        let n = self.rng.below(FILE_SECTORS_MAX) as usize * usize::from(!self.rng.one_in(4));
        let number = self.ask(Op::Resize(file.id().file, n));
        let resized = file.set_end_of_file(None, (n * SECTOR) as u64);
        self.told(number, true, resized.map(|()| Answer::Done))
    }

    /// Blocks of one file in another.
    fn share(&mut self, source: &NodeRef) -> Result<(), Lost> {
        let Some(target) = self.other_file(source) else { return Ok(()) };
        let mut blocks = || self.rng.below(20) as usize * BLOCK;
        let (from, to, n) = (blocks(), blocks(), BLOCK + blocks());
        let number = self.ask(Op::Clone(source.id().file, target.id().file, (from, to), n));
        let at = |sectors: usize| (sectors * SECTOR) as u64;
        let shared = match Node::clone_from(&*target, None, &**source, at(from), at(to), at(n)) {
            Err(NotDone::Failed(StoreError::NotSupported | StoreError::InvalidParameter)) => Ok(Answer::NotShared),
            shared => shared.map(|()| Answer::Done),
        };
        self.told(number, true, shared)
    }

    fn rename(&mut self, file: &NodeRef) -> Result<(), Lost> {
        let (name, replace) = (self.name(), self.rng.one_in(2));
        let number = self.ask(Op::Rename(file.id().file, name, replace));
        let renamed = file.rename(None, &*self.directories[usize::from(name.0)], NAMES[usize::from(name.1)], replace);
        self.told(number, true, renamed.map(|()| Answer::Done))
    }

    fn unlink(&mut self, file: &NodeRef) -> Result<(), Lost> {
        let number = self.ask(Op::Unlink(file.id().file));
        let unlinked = file.unlink(None);
        self.told(number, true, unlinked.map(|()| Answer::Done))
    }

    /// A snapshot is a state that there was; it is looked at, and mostly deleted.
    fn snapshot(&mut self) -> Result<(), Lost> {
        let number = self.ask(Op::Snapshot);
        let made = match self.vol.create_snapshot(FileTime(1 << 50), "") {
            Ok(made) => made,
            Err(VolError::Full) => return self.told(number, false, Err(StoreError::DiskFull.into())),
            Err(_) if self.common.inbox.is_dead() => return Err(Lost),
            Err(e) => panic!("snapshot: {e}"),
        };
        if self.common.inbox.is_dead() {
            return Err(Lost);
        }
        self.common.oracle.lock().durable_since(number.1);
        let seen = self.store.snapshot(made.time).and_then(|past| Ok(look(&*past)?.0));
        self.told(number, false, seen.map(Answer::State))?;
        if !self.rng.one_in(4) {
            match self.vol.delete_snapshot(made.time) {
                Ok(gone) => assert!(gone, "another client's snapshot was deleted"),
                Err(VolError::Full) => {}
                Err(_) if self.common.inbox.is_dead() => return Err(Lost),
                Err(e) => panic!("deletion of a snapshot: {e}"),
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), Lost> {
        self.common.say(|| "checkpoint".into());
        match self.vol.checkpoint() {
            Ok(()) | Err(VolError::Full) => Ok(()),
            Err(_) if self.common.inbox.is_dead() => Err(Lost),
            Err(e) => panic!("checkpoint: {e}"),
        }
    }

    /// All that was answered so far is durable when it returns, or when it tells.
    fn sync(&mut self, file: &NodeRef) -> Result<(), Lost> {
        let since = self.common.oracle.lock().now();
        let (how, waits) = (self.rng.below(4), self.rng.one_in(2));
        self.common.say(|| format!("sync {since:?}, {how}"));
        if how == 0 {
            let (common, gate) = (self.common.clone(), Gate::of(1));
            let opens = gate.clone();
            let told = move |result: Result<(), VolError>| {
                if result.is_ok() && !common.inbox.is_dead() {
                    common.say(|| format!("told of the sync {since:?}"));
                    common.oracle.lock().durable_since(since);
                }
                opens.leave();
            };
            self.vol.commit_later(self.vol.progress().0, Box::new(told));
            // Whoever waits for it finds out that nobody is told.
            if waits {
                gate.wait();
            }
            return Ok(());
        }
        let synced = match how {
            1 => file.sync(),
            2 => self.store.commit(CommitScope::begin().id()).map_err(NotDone::from),
            _ => self.vol.sync().map_err(|e| NotDone::from(StoreError::from(e))),
        };
        if self.common.inbox.is_dead() {
            return Err(Lost);
        }
        synced.unwrap_or_else(|e| panic!("sync: {e}"));
        self.common.oracle.lock().durable_since(since);
        Ok(())
    }
}
