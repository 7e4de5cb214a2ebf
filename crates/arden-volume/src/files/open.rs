//! Files in use: what all nodes of one file share. Owns the lock that keeps a file's data and its map in step, and the
//! names that nodes were found by, so that a rename is seen by all of them.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::engine::volume::Volume;

/// One name of a file, as some node knows it.
#[derive(Debug)]
pub struct Link {
    pub place: Mutex<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub parent: u64,
    pub name: String,
    /// The name was taken away.
    pub gone: bool,
}

/// A named stream, as some node knows it.
#[derive(Debug)]
pub struct StreamRef {
    pub opened_as: String,
    pub state: Mutex<StreamState>,
}

#[derive(Debug, Clone)]
pub struct StreamState {
    /// "" once it is the file's own data.
    pub name: String,
    pub gone: bool,
}

impl StreamRef {
    pub fn is_unnamed(&self) -> bool {
        self.state.lock().name.is_empty()
    }
}

fn next_state() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

pub struct OpenFile {
    pub vol: Arc<Volume>,
    pub ino: u64,
    pub directory: bool,
    /// Written by whoever changes data or where it lies; taken before the volume's state.
    data: RwLock<()>,
    /// Another number since the last time that somebody could.
    state: AtomicU64,
    links: Mutex<Vec<Weak<Link>>>,
    streams: Mutex<Vec<Weak<StreamRef>>>,
    /// Goes away with its last user.
    pub orphan: AtomicBool,
}

impl OpenFile {
    /// A file as a snapshot has it. Nothing happens to it, so its users have nothing to share.
    pub fn of_the_past(vol: &Arc<Volume>, ino: u64, directory: bool) -> Arc<OpenFile> {
        Arc::new(OpenFile::new(vol, ino, directory))
    }

    fn new(vol: &Arc<Volume>, ino: u64, directory: bool) -> OpenFile {
        OpenFile {
            vol: vol.clone(),
            ino,
            directory,
            data: RwLock::new(()),
            state: AtomicU64::new(next_state()),
            links: Mutex::default(),
            streams: Mutex::default(),
            orphan: AtomicBool::new(false),
        }
    }

    /// Nobody changes the file's data or where it lies meanwhile.
    pub fn keep_data(&self) -> RwLockReadGuard<'_, ()> {
        self.data.read()
    }

    pub fn try_keep_data(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.data.try_read()
    }

    /// Nobody else reads or changes it meanwhile.
    pub fn change_data(&self) -> RwLockWriteGuard<'_, ()> {
        let lock = self.data.write();
        self.state.store(next_state(), Ordering::Release);
        lock
    }

    pub fn try_change_data(&self) -> Option<RwLockWriteGuard<'_, ()>> {
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

    pub fn stream_ref(&self, name: &str) -> Arc<StreamRef> {
        let mut streams = self.streams.lock();
        streams.retain(|w| w.strong_count() > 0);
        for s in streams.iter().filter_map(Weak::upgrade) {
            let state = s.state.lock();
            if !state.gone && state.name == name && s.opened_as == name {
                drop(state);
                return s;
            }
        }
        let state = StreamState { name: name.to_owned(), gone: false };
        let s = Arc::new(StreamRef { opened_as: name.to_owned(), state: Mutex::new(state) });
        streams.push(Arc::downgrade(&s));
        s
    }

    /// The same for streams; `to` None: it is gone.
    pub fn stream_moved(&self, from: &str, to: Option<&str>) {
        for s in self.streams.lock().iter().filter_map(Weak::upgrade) {
            let mut state = s.state.lock();
            if state.name == from && !state.gone {
                match to {
                    Some(to) => state.name = to.to_owned(),
                    None => state.gone = true,
                }
            }
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let mut files = self.vol.files.lock();
        // A new user may have come between the last one's going and this.
        if files.get(&self.ino).is_some_and(|w| w.strong_count() == 0) {
            files.remove(&self.ino);
        }
        drop(files);
        if self.vol.unclosed.closed(self.ino) {
            self.vol.watchers.may_move();
        }
        if self.orphan.load(Ordering::Acquire) {
            self.vol.reap_later(self.ino);
        }
    }
}

impl Volume {
    pub(crate) fn file(self: &Arc<Self>, ino: u64, directory: bool) -> Arc<OpenFile> {
        let mut files = self.files.lock();
        if let Some(f) = files.get(&ino).and_then(Weak::upgrade) {
            return f;
        }
        let f = Arc::new(OpenFile::new(self, ino, directory));
        files.insert(ino, Arc::downgrade(&f));
        f
    }

    pub(crate) fn file_in_use(&self, ino: u64) -> Option<Arc<OpenFile>> {
        self.files.lock().get(&ino).and_then(Weak::upgrade)
    }
}
