//! Files in use: what all nodes of one file share. Owns the lock that keeps a file's data and its map in step, and the
//! names that nodes were found by, so that a rename is seen by all of them.
//!
//! | lock | protects | taken |
//! |---|---|---|
//! | `OpenFile::data` | the file's data and where it lies | after the checkpoint's and before the engine's state; of two files, that of the lower number first; of many, without waiting |
//! | `OpenFiles::map` | which files are in use | alone, also under the engine's state |
//! | `OpenFiles::unnamed` | files without a name whose last user went | alone |
//! | `OpenFile::links`, then `Link::place` | names of nodes | under the engine's state where a name changes |
//! | those of `OpenFile::streams` | names of streams | under the engine's state where a name changes |

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arden_lock::{Mutex, ReadGuard, RwLock, WriteGuard, ranks};

use arden_store::{error::StoreError, open_stream::OpenStreams};

use crate::engine::deferred::Deferrals;

/// One name of a file, as some node knows it.
#[derive(Debug)]
pub struct Link {
    pub place: Mutex<Place, ranks::LinkPlace>,
}

impl Link {
    /// Directory and name. Who holds the state for writing knows that they stay so.
    ///
    /// # Errors
    /// The name was taken away.
    pub fn standing(&self) -> Result<(u64, String), StoreError> {
        let p = self.place.lock();
        if p.gone { Err(StoreError::Deleted) } else { Ok((p.parent, p.name.clone())) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub parent: u64,
    pub name: String,
    /// The name was taken away.
    pub gone: bool,
}

fn next_state() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

pub struct OpenFile {
    table: Arc<OpenFiles>,
    pub ino: u64,
    pub directory: bool,
    /// Written by whoever changes data or where it lies; taken before the volume's state.
    data: RwLock<(), ranks::FileData>,
    /// Another number since the last time that somebody could.
    state: AtomicU64,
    links: Mutex<Vec<Weak<Link>>, ranks::FileLinks>,
    pub streams: OpenStreams,
    /// Goes away with its last user.
    pub orphan: AtomicBool,
}

impl OpenFile {
    /// A file as a snapshot has it. Nothing happens to it, so its users have nothing to share.
    pub fn of_the_past(table: &Arc<OpenFiles>, ino: u64, directory: bool) -> Arc<OpenFile> {
        Arc::new(OpenFile::new(table, ino, directory))
    }

    fn new(table: &Arc<OpenFiles>, ino: u64, directory: bool) -> OpenFile {
        OpenFile {
            table: table.clone(),
            ino,
            directory,
            data: RwLock::new(()),
            state: AtomicU64::new(next_state()),
            links: Mutex::default(),
            streams: OpenStreams::default(),
            orphan: AtomicBool::new(false),
        }
    }

    /// Nobody changes the file's data or where it lies meanwhile.
    pub fn keep_data(&self) -> ReadGuard<'_, ()> {
        self.data.read()
    }

    pub fn try_keep_data(&self) -> Option<ReadGuard<'_, ()>> {
        self.data.try_read()
    }

    /// Nobody else reads or changes it meanwhile.
    pub fn change_data(&self) -> WriteGuard<'_, ()> {
        let lock = self.data.write();
        self.state.store(next_state(), Ordering::Release);
        lock
    }

    /// The same for whoever has the data of a file of a lower number.
    pub fn change_data_next(&self) -> WriteGuard<'_, ()> {
        let lock = self.data.write_next();
        self.state.store(next_state(), Ordering::Release);
        lock
    }

    pub fn try_change_data(&self) -> Option<WriteGuard<'_, ()>> {
        let lock = self.data.try_write()?;
        self.state.store(next_state(), Ordering::Release);
        Some(lock)
    }

    /// Stands for all of its data and where that lies, while the caller keeps those: no other file, and not this one
    /// after a change, ever has the same.
    pub fn data_state(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    /// The node's name object for this name; the caller holds the volume's state, so no rename happens meanwhile.
    pub fn link(&self, parent: u64, name: &str) -> Arc<Link> {
        let mut links = self.links.lock();
        links.retain(|w| w.strong_count() > 0);
        for l in links.iter().filter_map(Weak::upgrade) {
            let p = l.place.lock();
            if p.parent == parent && !p.gone && p.name == name {
                drop(p);
                return l;
            }
        }
        let place = Place { parent, name: name.to_owned(), gone: false };
        let l = Arc::new(Link { place: Mutex::new(place) });
        links.push(Arc::downgrade(&l));
        l
    }

    /// Tells the nodes of this name what became of it.
    pub fn moved(&self, from: (u64, &str), change: impl Fn(&mut Place)) {
        for l in self.links.lock().iter().filter_map(Weak::upgrade) {
            let mut p = l.place.lock();
            if p.parent == from.0 && p.name == from.1 && !p.gone {
                change(&mut p);
            }
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let table = &self.table;
        let mut map = table.map.lock();
        // A new user may have come between the last one's going and this.
        if map.get(&self.ino).is_some_and(|w| w.strong_count() == 0) {
            map.remove(&self.ino);
        }
        drop(map);
        table.last_use.ended(self.ino);
        if self.orphan.load(Ordering::Acquire) {
            table.reap_later(self.ino);
        }
    }
}

/// Told that a file's last user went.
pub trait LastUse: Send + Sync {
    /// Called with no lock of the table held, maybe with the engine's state locked.
    fn ended(&self, ino: u64);
}

/// Files in use, and those without a name that nobody uses any more.
pub struct OpenFiles {
    map: Mutex<HashMap<u64, Weak<OpenFile>>, ranks::OpenFiles>,
    /// Files without a name whose last user went.
    unnamed: Mutex<VecDeque<u64>, ranks::UnnamedFiles>,
    last_use: Arc<dyn LastUse>,
    deferrals: Arc<Deferrals>,
}

impl OpenFiles {
    pub fn new(last_use: Arc<dyn LastUse>, deferrals: Arc<Deferrals>) -> Arc<OpenFiles> {
        Arc::new(OpenFiles { map: Mutex::default(), unnamed: Mutex::default(), last_use, deferrals })
    }

    pub fn file(self: &Arc<Self>, ino: u64, directory: bool) -> Arc<OpenFile> {
        let mut map = self.map.lock();
        if let Some(f) = map.get(&ino).and_then(Weak::upgrade) {
            return f;
        }
        let f = Arc::new(OpenFile::new(self, ino, directory));
        map.insert(ino, Arc::downgrade(&f));
        f
    }

    pub fn in_use(&self, ino: u64) -> Option<Arc<OpenFile>> {
        self.map.lock().get(&ino).and_then(Weak::upgrade)
    }

    /// A file without a name has no user any more.
    pub fn reap_later(&self, ino: u64) {
        self.reap_all_later([ino]);
    }

    pub fn reap_all_later(&self, all: impl IntoIterator<Item = u64>) {
        // Before the lock: whether a file is in use may be asked, and whoever asks may be its last user.
        let all: Vec<u64> = all.into_iter().collect();
        self.unnamed.lock().extend(all);
        self.deferrals.leave();
    }

    /// The next one to be taken away. One that was left comes behind the others.
    pub fn next_unnamed(&self) -> Option<u64> {
        self.unnamed.lock().pop_front()
    }
}
