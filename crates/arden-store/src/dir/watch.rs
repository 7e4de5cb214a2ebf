//! Changes made outside Arden, by inotify: directories are watched while somebody asks for them, up to a limit. What
//! Arden does itself comes back from the kernel as an echo; whoever does it notes it first, and the echo is dropped.
//!
//! A directory is watched while somebody asks for it, or for all that is below one above it. Who asks is counted at the
//! directory that was asked for and nowhere below, so a tree takes as much memory for many who ask as for one.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::Entry},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arden_lock::{Mutex, ranks};
use arden_wire::names::name_of_bytes;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};

use super::{
    Shared,
    commit::Changing,
    inode::{Inode, Link, path_of, trail_of},
    lookup::is_reserved,
    names,
    sys::{self, InodeKey, Kind},
};
use crate::{
    commit::ChangedBy,
    error::{NotDone, StoreError},
    name::is_presentable,
    store::{ChangeKind, ChangeSink, Named, Result, WatchGuard},
};

/// How long an echo may take.
const ECHO_TIME: Duration = Duration::from_secs(2);
/// Notes of one's own changes; beyond, the oldest are forgotten and their echoes reported.
const ECHOES_MAX: usize = 65_536;
/// Watches that are taken away under one lock.
const TAKEN_AWAY_AT_ONCE: usize = 256;
const EVENT_BUFFER_BYTES: usize = 64 * 1024;
/// So long after the first half of a move its other half is waited for.
const OTHER_HALF: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

pub struct Watcher {
    inotify: OwnedFd,
    wake: OwnedFd,
    sink: Arc<dyn ChangeSink>,
    state: Mutex<State, ranks::DirWatcher>,
    echoes: Mutex<HashMap<(InodeKey, Box<str>), Echo>, ranks::OwnChanges>,
    /// Watches there are; without any nobody notes anything.
    active: AtomicUsize,
    watches_max: usize,
    started: Instant,
}

#[derive(Default)]
struct State {
    watched: HashMap<i32, Arc<Inode>>,
    /// Directories that somebody asks for, or that are in `walks`. Guards and walks keep them, so that no other file gets the
    /// same key.
    asked: HashMap<InodeKey, Asked>,
    /// Directories below which everything is to be watched, each once.
    walks: VecDeque<Arc<Inode>>,
    /// A guard went, and watches may have to be taken away.
    released: bool,
    stop: bool,
    /// The limit was met and told.
    limit_told: bool,
}

/// How many guards a directory has.
#[derive(Default)]
struct Asked {
    flat: usize,
    recursive: usize,
    /// It is in `walks`.
    walk: bool,
}

impl Asked {
    fn is_over(&self) -> bool {
        self.flat == 0 && self.recursive == 0 && !self.walk
    }
}

impl State {
    fn ask(&mut self, dir: InodeKey, recursive: bool) {
        let asked = self.asked.entry(dir).or_default();
        *(if recursive { &mut asked.recursive } else { &mut asked.flat }) += 1;
    }

    fn no_longer_ask(&mut self, dir: InodeKey, recursive: bool) {
        let Some(asked) = self.asked.get_mut(&dir) else { return };
        let count = if recursive { &mut asked.recursive } else { &mut asked.flat };
        *count -= 1;
        self.released |= *count == 0;
        if asked.is_over() {
            self.asked.remove(&dir);
        }
    }

    fn walk(&mut self, dir: &Arc<Inode>) {
        if let Some(asked) = self.asked.get_mut(&dir.key)
            && !std::mem::replace(&mut asked.walk, true)
        {
            self.walks.push_back(dir.clone());
        }
    }

    fn next_walk(&mut self) -> Option<Arc<Inode>> {
        let dir = self.walks.pop_front()?;
        if let Some(asked) = self.asked.get_mut(&dir.key) {
            asked.walk = false;
            if asked.is_over() {
                self.asked.remove(&dir.key);
            }
        }
        Some(dir)
    }

    fn is_asked_for(&self, dir: InodeKey) -> bool {
        self.asked.get(&dir).is_some_and(|asked| asked.flat > 0 || asked.recursive > 0)
    }

    fn is_recursive(&self, dir: InodeKey) -> bool {
        self.asked.get(&dir).is_some_and(|asked| asked.recursive > 0)
    }
}

struct Echo {
    /// Names that come or go.
    names: u32,
    until: Instant,
}

/// Stops the watch of a directory when dropped.
struct Guard {
    watcher: Weak<Watcher>,
    dir: Arc<Inode>,
    recursive: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.upgrade() {
            watcher.state.lock().no_longer_ask(self.dir.key, self.recursive);
            watcher.wake();
        }
    }
}

/// Whether one of `dir` and the directories above it is so.
fn is_at_or_above(dir: &Arc<Inode>, mut is_so: impl FnMut(InodeKey) -> bool) -> bool {
    let mut here = Some(dir.clone());
    while let Some(inode) = here {
        if is_so(inode.key) {
            return true;
        }
        here = inode.dir.as_ref().and_then(|part| part.link.place.lock().parent.clone());
    }
    false
}

impl Shared {
    pub fn start_watching(self: &Arc<Self>, sink: Arc<dyn ChangeSink>) -> Result<()> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(sys::failure)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(sys::failure)?;
        let watcher = Arc::new(Watcher {
            inotify,
            wake,
            sink,
            state: Mutex::default(),
            echoes: Mutex::default(),
            active: AtomicUsize::new(0),
            watches_max: self.options.watches_max,
            started: Instant::now(),
        });
        if self.watcher.set(watcher.clone()).is_err() {
            return Err(StoreError::WrongObject.into());
        }
        let store = Arc::downgrade(self);
        std::thread::Builder::new()
            .name("arden-watch".into())
            .spawn(move || watcher.run(&store))
            .map(|_| ())
            .map_err(|_| StoreError::InsufficientResources.into())
    }

    pub fn watch_directory(&self, dir: &Arc<Inode>, recursive: bool) -> Result<WatchGuard> {
        let Some(watcher) = self.watcher.get() else { return Ok(Box::new(())) };
        if dir.kind != Kind::Directory {
            return Err(StoreError::NotADirectory.into());
        }
        watcher.state.lock().ask(dir.key, recursive);
        // Also when it fails, so that nothing of it stays.
        let guard = Guard { watcher: Arc::downgrade(watcher), dir: dir.clone(), recursive };
        watcher.add(dir)?;
        if recursive {
            watcher.state.lock().walk(dir);
            watcher.wake();
        }
        Ok(Box::new(guard))
    }

    /// Arden is about to change this name: its coming or going, when `names`, and what follows from it.
    pub fn note_own(&self, dir: &Inode, name: &str, names: bool) {
        if let Some(watcher) = self.watcher.get()
            && watcher.active.load(Ordering::Relaxed) > 0
        {
            watcher.note(dir.key, name, names);
        }
    }

    /// Nothing but the data of the file that `link` names, or its size, is about to change.
    pub fn note_data_change(&self, by: ChangedBy, inode: &Arc<Inode>, link: &Link) -> Changing<'_> {
        inode.outdate_seen();
        self.note_for_watchers(inode, link);
        self.changing(by, [inode]).data_only()
    }

    /// Arden is about to change data or attributes of the file that `link` names.
    pub fn note_change(&self, by: ChangedBy, inode: &Arc<Inode>, link: &Link) -> Changing<'_> {
        inode.forget_seen();
        self.note_for_watchers(inode, link);
        self.changing(by, [inode])
    }

    fn note_for_watchers(&self, inode: &Inode, link: &Link) {
        let Some(watcher) = self.watcher.get().filter(|w| w.active.load(Ordering::Relaxed) > 0) else { return };
        // Once for many writes.
        let now = watcher.started.elapsed().as_millis() as u64 + 1;
        let before = inode.noted_ms.load(Ordering::Relaxed);
        if before != 0 && now - before.min(now) < ECHO_TIME.as_millis() as u64 / 4 {
            return;
        }
        inode.noted_ms.store(now, Ordering::Relaxed);
        if let Some((dir, name)) = link.standing() {
            watcher.note(dir.key, &name, false);
        }
    }
}

impl Watcher {
    fn wake(&self) {
        // It fails only when it is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.wake();
    }

    fn note(&self, dir: InodeKey, name: &str, names: bool) {
        let now = Instant::now();
        let mut echoes = self.echoes.lock();
        if echoes.len() >= ECHOES_MAX {
            echoes.retain(|_, e| e.until > now);
            if echoes.len() >= ECHOES_MAX {
                echoes.clear();
            }
        }
        let echo = echoes.entry((dir, name.into())).or_insert(Echo { names: 0, until: now });
        if echo.until <= now {
            echo.names = 0;
        }
        echo.names += u32::from(names);
        echo.until = now + ECHO_TIME;
    }

    /// Whether this event is the echo of one's own change.
    fn is_echo(&self, dir: InodeKey, name: &str, names: bool) -> bool {
        let mut echoes = self.echoes.lock();
        let Some(echo) = echoes.get_mut(&(dir, Box::from(name))) else { return false };
        if echo.until <= Instant::now() {
            echoes.remove(&(dir, Box::from(name)));
            return false;
        }
        if !names {
            return true;
        }
        let ours = echo.names > 0;
        echo.names -= u32::from(ours);
        ours
    }

    /// Watches `dir`; answers whether the watch is new.
    fn add(&self, dir: &Arc<Inode>) -> Result<bool> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        let mut state = self.state.lock();
        if state.watched.len() >= self.watches_max && !state.watched.values().any(|w| Arc::ptr_eq(w, dir)) {
            self.tell_limit(&mut state);
            return Err(StoreError::InsufficientResources.into());
        }
        let path = format!("/proc/self/fd/{}", sys::FdName::new(dir.pin()).as_str());
        let wd = match inotify::add_watch(&self.inotify, path, flags) {
            Ok(wd) => wd,
            Err(Errno::NOSPC) => {
                self.tell_limit(&mut state);
                return Err(StoreError::InsufficientResources.into());
            }
            Err(e) => return Err(sys::failure(e)),
        };
        let entry = state.watched.entry(wd);
        let is_new = matches!(entry, Entry::Vacant(_));
        entry.or_insert_with(|| dir.clone());
        self.active.store(state.watched.len(), Ordering::Relaxed);
        Ok(is_new)
    }

    fn tell_limit(&self, state: &mut State) {
        if !std::mem::replace(&mut state.limit_told, true) {
            tracing::warn!(
                limit = self.watches_max,
                "no more directories can be watched (watches_max, fs.inotify.max_user_watches): \
                 changes made outside Arden go unseen in the others"
            );
        }
    }

    fn run(&self, store: &Weak<Shared>) {
        let mut buf = vec![MaybeUninit::<u8>::uninit(); EVENT_BUFFER_BYTES];
        loop {
            let mut fds = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("watching for outside changes ended: {e}");
                    return;
                }
            }
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            let Some(store) = store.upgrade() else { return };
            if self.state.lock().stop {
                return;
            }
            self.read_events(&store, &mut buf);
            self.release();
            while let Some(dir) = self.next_walk() {
                self.watch_below(&store, &dir, false);
                // The kernel keeps so many events and no more.
                self.read_events(&store, &mut buf);
                self.release();
            }
        }
    }

    fn next_walk(&self) -> Option<Arc<Inode>> {
        self.state.lock().next_walk()
    }

    /// Takes away the watches that nobody asks for any more.
    fn release(&self) {
        let (all, recursive): (Vec<(i32, Arc<Inode>)>, HashSet<InodeKey>) = {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.released) {
                return;
            }
            let recursive = state.asked.iter().filter(|(_, asked)| asked.recursive > 0).map(|(key, _)| *key);
            (state.watched.iter().map(|(wd, dir)| (*wd, dir.clone())).collect(), recursive.collect())
        };
        // Where a directory stands has a lock of its own, which comes before that of the watches. A recursive guard that
        // comes meanwhile is walked for after this.
        let not_below = all.into_iter().filter(|(_, dir)| !is_at_or_above(dir, |key| recursive.contains(&key)));
        self.take_away(&not_below.collect::<Vec<_>>(), |state, dir| !state.is_asked_for(dir.key));
    }

    /// Takes away those of these watches that are still there, and of which this is true. The caller keeps the inodes: dropping
    /// one may drop its directory and so on, which is not for the lock.
    fn take_away(&self, watches: &[(i32, Arc<Inode>)], goes: impl Fn(&State, &Inode) -> bool) {
        for some in watches.chunks(TAKEN_AWAY_AT_ONCE) {
            let mut state = self.state.lock();
            for (wd, dir) in some {
                if state.watched.get(wd).is_some_and(|w| Arc::ptr_eq(w, dir)) && goes(&state, dir) {
                    state.watched.remove(wd);
                    let _ = inotify::remove_watch(&self.inotify, *wd);
                }
            }
            self.active.store(state.watched.len(), Ordering::Relaxed);
        }
    }

    /// Watches all directories below `dir`. With `report`, what is found is told as added: it came after the directory
    /// did and before its watch.
    fn watch_below(&self, store: &Shared, top: &Arc<Inode>, report: bool) {
        let mut todo = vec![top.clone()];
        while let Some(dir) = todo.pop() {
            if !self.looks_below(top) {
                return;
            }
            for name in child_names(&dir) {
                let Ok(stat) = sys::stat_child(dir.pin(), &name) else { continue };
                let directory = stat.kind == Some(Kind::Directory);
                // An event of it may still come: the note stays for that.
                if report && stat.kind.is_some() && !self.is_echo(dir.key, &name, false) {
                    self.tell(ChangeKind::Added, &dir, &name, directory);
                }
                if !directory {
                    continue;
                }
                let Ok(Some((sub, _))) = store.child(&dir, &name, false) else { continue };
                match self.add(&sub) {
                    Ok(_) => todo.push(sub),
                    Err(NotDone::Failed(StoreError::InsufficientResources)) => return,
                    Err(_) => {}
                }
            }
        }
    }

    /// Whether somebody asks for all that is below `dir`, or below one above it.
    fn looks_below(&self, dir: &Arc<Inode>) -> bool {
        is_at_or_above(dir, |key| self.state.lock().is_recursive(key))
    }

    fn tell(&self, kind: ChangeKind, dir: &Inode, name: &str, directory: bool) {
        let Some(part) = &dir.dir else { return };
        let mut trail = trail_of(&part.link);
        trail.push(Named { directory: dir.key.file_id(), name: name.to_owned() });
        self.sink.changed(kind, &trail, directory);
    }

    fn read_events(&self, store: &Shared, buf: &mut [MaybeUninit<u8>]) {
        let mut reader = inotify::Reader::new(&self.inotify, buf);
        let mut moved: Option<Moved> = None;
        let mut last: Option<(i32, ReadFlags, Box<str>)> = None;
        loop {
            // The kernel queues the two halves of a move one after the other: the second may be on its way.
            if reader.is_buffer_empty()
                && moved.is_some()
                && !self.hears_more_soon()
                && let Some(m) = moved.take()
            {
                self.moved_away(m);
            }
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.sink.overflow();
                continue;
            }
            let (wd, cookie) = (event.wd(), event.cookie());
            if flags.contains(ReadFlags::IGNORED) {
                self.forget(wd);
                continue;
            }
            let Some(name) = event.file_name().and_then(|n| name_of_bytes(n.to_bytes())) else { continue };
            let name = &*name;
            if !is_presentable(name) {
                continue;
            }
            // A long write is many equal events.
            if last.as_ref().is_some_and(|l| l.0 == wd && l.1 == flags && &*l.2 == name)
                && flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB)
            {
                continue;
            }
            last = Some((wd, flags, name.into()));
            let Some(dir) = self.state.lock().watched.get(&wd).cloned() else { continue };
            if is_reserved(name) {
                continue;
            }
            self.event(store, &dir, name, flags, cookie, &mut moved);
        }
    }

    /// Whether something is to be read within [`OTHER_HALF`].
    fn hears_more_soon(&self) -> bool {
        let mut fds = [PollFd::new(&self.inotify, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, Some(&OTHER_HALF)), Ok(1..))
    }

    fn forget(&self, wd: i32) {
        let mut state = self.state.lock();
        let dropped = state.watched.remove(&wd);
        self.active.store(state.watched.len(), Ordering::Relaxed);
        drop(state);
        drop(dropped);
    }

    fn event(
        &self,
        store: &Shared,
        dir: &Arc<Inode>,
        name: &str,
        flags: ReadFlags,
        cookie: u32,
        moved: &mut Option<Moved>,
    ) {
        let directory = flags.contains(ReadFlags::ISDIR);
        if let Some(m) = moved.take_if(|m| !flags.contains(ReadFlags::MOVED_TO) || m.cookie != cookie) {
            self.moved_away(m);
        }
        if flags.contains(ReadFlags::MOVED_FROM) {
            let echo = self.is_echo(dir.key, name, true);
            *moved = Some(Moved { cookie, dir: dir.clone(), name: name.to_owned(), directory, echo });
            return;
        }
        if flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
            if !self.is_echo(dir.key, name, false) {
                self.tell(ChangeKind::Modified, dir, name, directory);
            }
            return;
        }
        let echo = self.is_echo(dir.key, name, true);
        if flags.contains(ReadFlags::DELETE) {
            if !echo {
                self.tell(ChangeKind::Removed, dir, name, directory);
            }
            return;
        }
        let from = moved.take();
        if flags.contains(ReadFlags::MOVED_TO) {
            match from {
                Some(m) if Arc::ptr_eq(&m.dir, dir) => {
                    if !echo && !m.echo {
                        self.tell(ChangeKind::RenamedOld, dir, &m.name, directory);
                        self.tell(ChangeKind::RenamedNew, dir, name, directory);
                    }
                }
                from => {
                    // Between directories it is gone from one and new in the other, as on Windows.
                    if let Some(m) = from.filter(|m| !m.echo) {
                        self.tell(ChangeKind::Removed, &m.dir, &m.name, directory);
                    }
                    if !echo {
                        self.tell(ChangeKind::Added, dir, name, directory);
                    }
                }
            }
        } else if !echo && sys::stat_child(dir.pin(), name).is_ok_and(|s| s.kind.is_some()) {
            self.tell(ChangeKind::Added, dir, name, directory);
        }
        if directory
            && self.looks_below(dir)
            && let Ok(Some((sub, _))) = store.child(dir, name, false)
            && self.add(&sub) == Ok(true)
        {
            self.watch_below(store, &sub, flags.contains(ReadFlags::CREATE));
        }
    }

    /// Moved to where nobody looks: gone, and what was below is no longer watched.
    fn moved_away(&self, m: Moved) {
        if !m.echo {
            self.tell(ChangeKind::Removed, &m.dir, &m.name, m.directory);
        }
        if !m.directory || m.echo {
            return;
        }
        let mut path = m.dir.dir.as_ref().map(|d| path_of(&d.link)).unwrap_or_default();
        path.push(m.name);
        // Where a directory stands has a lock of its own, which comes before that of the watches.
        let all: Vec<(i32, Arc<Inode>)> = {
            let state = self.state.lock();
            state.watched.iter().map(|(&wd, dir)| (wd, dir.clone())).collect()
        };
        let below = |i: &Inode| i.dir.as_ref().is_some_and(|d| path_of(&d.link).starts_with(&path));
        let gone: Vec<_> = all.into_iter().filter(|(_, inode)| below(inode)).collect();
        self.take_away(&gone, |_, _| true);
    }
}

/// The first half of a move.
struct Moved {
    cookie: u32,
    dir: Arc<Inode>,
    name: String,
    directory: bool,
    echo: bool,
}

fn child_names(dir: &Inode) -> Vec<String> {
    let mut out = Vec::new();
    if let Ok(fd) = names::open_for_reading(dir.pin()) {
        let _ = names::each_name(sys::fd(&fd), |name, _| {
            if is_presentable(name) && !is_reserved(name) {
                out.push(name.to_owned());
            }
            true
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dir::{DirOptions, DirStore},
        name::NtPath,
        store::{FileStore, Lookup, NodeRef},
    };

    struct Deaf;
    impl ChangeSink for Deaf {
        fn changed(&self, _: ChangeKind, _: &[Named], _: bool) {}
        fn overflow(&self) {}
    }

    /// Entries that are kept: of directories that are watched, those that are asked for, and those to be walked.
    fn entries(store: &DirStore) -> (usize, usize, usize) {
        let state = store.shared.watcher.get().expect("it watches").state.lock();
        (state.watched.len(), state.asked.len(), state.walks.len())
    }

    fn wait_for(store: &DirStore, expected: (usize, usize, usize)) {
        let until = Instant::now() + Duration::from_secs(30);
        while entries(store) != expected && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(entries(store), expected, "of watched, asked for, to be walked");
    }

    fn store_of(name: &str, directories: &[&str]) -> (std::path::PathBuf, Arc<DirStore>) {
        let path = std::env::temp_dir().join(format!("arden-watches-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        directories.iter().for_each(|dir| std::fs::create_dir_all(path.join(dir)).expect("a directory"));
        let store = DirStore::open(&path, DirOptions::default()).expect("a store");
        store.watch(Arc::new(Deaf)).expect("it watches");
        (path, store)
    }

    fn get(store: &DirStore, path: &str) -> NodeRef {
        match store.lookup(&NtPath::parse(path).expect("a path")) {
            Ok(Lookup::Found(node)) => node,
            _ => panic!("{path} is missing"),
        }
    }

    #[test]
    fn many_watches_of_a_tree_keep_what_one_does() {
        let (path, store) = store_of("many", &["a/b/c", "a/d", "e"]);
        let ask = |path: &str| store.watch_directory(&*get(&store, path), true).expect("a watch");
        let first = ask("");
        wait_for(&store, (6, 1, 0));
        let more: Vec<_> = (0..100).map(|n| ask(["", "a"][n % 2])).collect();
        wait_for(&store, (6, 2, 0));
        let flat = store.watch_directory(&*get(&store, "e"), false).expect("a watch");
        drop(first);
        wait_for(&store, (6, 3, 0));
        // Of every two one watches all, and the other what is below one directory.
        let (all, below): (Vec<_>, Vec<_>) = more.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
        drop(all);
        wait_for(&store, (5, 2, 0));
        std::fs::create_dir(path.join("a/b/c/new")).expect("a directory");
        wait_for(&store, (6, 2, 0));
        drop(below);
        wait_for(&store, (1, 1, 0));
        drop(flat);
        wait_for(&store, (0, 0, 0));
        let _ = std::fs::remove_dir_all(&path);
    }
}
