//! The dir store hears of changes made by others, and says nothing of its own.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use arden_store::{
    dir::{DirOptions, DirStore},
    name::NtPath,
    store::*,
};
use arden_wire::access::ATTR_HIDDEN;

#[derive(Default)]
struct Heard(Mutex<Vec<(ChangeKind, String)>>, Mutex<u32>);

impl ChangeSink for Heard {
    fn changed(&self, kind: ChangeKind, trail: &[Named], _directory: bool) {
        let names: Vec<&str> = trail.iter().map(|named| named.name.as_str()).collect();
        self.0.lock().unwrap().push((kind, names.join("\\")));
    }
    fn overflow(&self) {
        *self.1.lock().unwrap() += 1;
    }
}

impl Heard {
    /// Waits for this to be heard; others before it are forgotten.
    fn wait(&self, kind: ChangeKind, path: &str) {
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            let mut heard = self.0.lock().unwrap();
            if let Some(i) = heard.iter().position(|(k, p)| *k == kind && p == path) {
                heard.drain(..=i);
                return;
            }
            drop(heard);
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{kind:?} {path} was not heard: {:?}", self.0.lock().unwrap());
    }

    fn take(&self) -> Vec<(ChangeKind, String)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Setting {
    path: PathBuf,
    store: Arc<DirStore>,
    heard: Arc<Heard>,
}

fn setting(name: &str, options: DirOptions) -> Setting {
    let path = std::env::temp_dir().join(format!("arden-watch-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(path.join("sub/deep")).unwrap();
    let store = DirStore::open(&path, options).unwrap();
    let heard = Arc::new(Heard::default());
    store.watch(heard.clone()).unwrap();
    Setting { path, store, heard }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn get(store: &DirStore, p: &str) -> NodeRef {
    match store.lookup(&NtPath::parse(p).unwrap()).unwrap() {
        Lookup::Found(n) => n,
        _ => panic!("{p} is missing"),
    }
}

fn plain(directory: bool) -> NewFile<'static> {
    NewFile { directory, attributes: 0, security: None, eas: &[], allocation: None }
}

#[test]
fn one_directory() {
    let s = setting("one", DirOptions::default());
    let guard = s.store.watch_directory(&*s.store.root(), false).unwrap();
    std::fs::write(s.path.join("a"), "x").unwrap();
    s.heard.wait(ChangeKind::Added, "a");
    s.heard.wait(ChangeKind::Modified, "a");
    std::fs::rename(s.path.join("a"), s.path.join("b")).unwrap();
    s.heard.wait(ChangeKind::RenamedOld, "a");
    s.heard.wait(ChangeKind::RenamedNew, "b");
    std::fs::rename(s.path.join("b"), s.path.join("sub/b")).unwrap();
    s.heard.wait(ChangeKind::Removed, "b");
    std::fs::write(s.path.join("sub/c"), "not watched").unwrap();
    std::fs::rename(s.path.join("sub/b"), s.path.join("b")).unwrap();
    s.heard.wait(ChangeKind::Added, "b");
    std::fs::remove_file(s.path.join("b")).unwrap();
    s.heard.wait(ChangeKind::Removed, "b");
    assert!(!s.heard.take().iter().any(|(_, p)| p.starts_with("sub\\")));
    drop(guard);
    std::thread::sleep(Duration::from_millis(100));
    std::fs::write(s.path.join("after"), "x").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(s.heard.take(), []);
}

#[test]
fn everything_below() {
    let s = setting("below", DirOptions::default());
    let _guard = s.store.watch_directory(&*s.store.root(), true).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    std::fs::write(s.path.join("sub/deep/f"), "x").unwrap();
    s.heard.wait(ChangeKind::Added, "sub\\deep\\f");
    // A tree that comes all at once is heard of whole.
    std::fs::create_dir_all(s.path.join("new/and/deep")).unwrap();
    std::fs::write(s.path.join("new/and/deep/f"), "x").unwrap();
    s.heard.wait(ChangeKind::Added, "new");
    s.heard.wait(ChangeKind::Added, "new\\and");
    s.heard.wait(ChangeKind::Added, "new\\and\\deep");
    s.heard.wait(ChangeKind::Added, "new\\and\\deep\\f");
    std::fs::rename(s.path.join("new"), s.path.join("other")).unwrap();
    s.heard.wait(ChangeKind::RenamedNew, "other");
    std::fs::write(s.path.join("other/and/g"), "x").unwrap();
    s.heard.wait(ChangeKind::Added, "other\\and\\g");
    std::fs::remove_dir_all(s.path.join("other")).unwrap();
    s.heard.wait(ChangeKind::Removed, "other");
}

#[test]
fn a_tree_that_moves_away_is_no_longer_watched() {
    let s = setting("away", DirOptions::default());
    let away = s.path.with_extension("away");
    let _guard = s.store.watch_directory(&*s.store.root(), true).unwrap();
    std::fs::create_dir(s.path.join("stays")).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    std::fs::write(s.path.join("sub/deep/f"), "x").unwrap();
    s.heard.wait(ChangeKind::Added, "sub\\deep\\f");
    std::fs::rename(s.path.join("sub"), &away).unwrap();
    s.heard.wait(ChangeKind::Removed, "sub");
    std::thread::sleep(Duration::from_millis(100));
    std::fs::write(away.join("deep/unheard"), "x").unwrap();
    std::fs::write(s.path.join("stays/g"), "x").unwrap();
    s.heard.wait(ChangeKind::Added, "stays\\g");
    let heard = s.heard.take();
    std::fs::remove_dir_all(&away).unwrap();
    assert!(!heard.iter().any(|(_, p)| p.contains("unheard")), "{heard:?}");
}

/// The halves of a move come one by one to whoever reads while it is made.
#[test]
fn a_move_is_heard_as_one_whenever_it_is_read() {
    let s = setting("halves", DirOptions::default());
    let _guard = s.store.watch_directory(&*s.store.root(), true).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for i in 0..500 {
        let (old, new) = (format!("d{i}"), format!("d{}", i + 1));
        if i == 0 {
            std::fs::create_dir(s.path.join(&old)).unwrap();
        }
        std::fs::rename(s.path.join(&old), s.path.join(&new)).unwrap();
        s.heard.wait(ChangeKind::RenamedNew, &new);
    }
}

#[test]
fn no_echo_of_its_own() {
    let s = setting("echo", DirOptions::default());
    let _guard = s.store.watch_directory(&*s.store.root(), true).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let root = s.store.root();
    for i in 0..50 {
        let f = root.create_child(None, &format!("f{i}"), &plain(false)).unwrap();
        f.write_at(None, 0, b"data", Wait::Yes).unwrap();
        f.set_basic(None, &BasicUpdate { attributes: Some(ATTR_HIDDEN), ..Default::default() }).unwrap();
        f.create_stream(None, "s").unwrap().write_at(None, 0, b"x", Wait::Yes).unwrap();
        f.rename(None, &*root, &format!("G{i}"), false).unwrap();
        f.link(None, &*get(&s.store, "sub"), &format!("h{i}"), false).unwrap();
        f.write_at(None, 4, b"data", Wait::Yes).unwrap();
        f.unlink(None).unwrap();
    }
    let d = root.create_child(None, "dir", &plain(true)).unwrap();
    d.create_child(None, "inside", &plain(false)).unwrap().unlink(None).unwrap();
    let (a, b) =
        (root.create_child(None, "a", &plain(false)).unwrap(), root.create_child(None, "B", &plain(false)).unwrap());
    a.rename(None, &*root, "b", true).unwrap();
    drop(b);
    d.unlink(None).unwrap();
    std::fs::write(s.path.join("marker"), "").unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while !s.heard.0.lock().unwrap().iter().any(|(_, p)| p == "marker") && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let heard = s.heard.take();
    assert!(heard.iter().all(|(_, p)| p == "marker") && !heard.is_empty(), "{heard:?}");
    // Somebody else's change of a file that Arden made is heard once the echoes are over.
    std::thread::sleep(Duration::from_millis(2100));
    std::fs::write(s.path.join("sub/h1"), "changed").unwrap();
    s.heard.wait(ChangeKind::Modified, "sub\\h1");
}

#[test]
fn the_limit_holds() {
    let s = setting("limit", DirOptions { watches_max: 2, ..DirOptions::default() });
    let _guard = s.store.watch_directory(&*s.store.root(), true).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(s.store.watch_directory(&*get(&s.store, "sub\\deep"), false).is_err());
    std::fs::write(s.path.join("sub/x"), "").unwrap();
    s.heard.wait(ChangeKind::Added, "sub\\x");
}

#[test]
fn too_much_at_once_is_an_overflow() {
    let max: usize = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .ok()
        .and_then(|t| t.trim().parse().ok())
        .unwrap_or(16_384);
    if max > 100_000 {
        eprintln!("not run: the kernel's queue is very long");
        return;
    }
    /// Does not come back from its first event before it may.
    struct Blocked(Arc<Heard>, Mutex<()>);
    impl ChangeSink for Blocked {
        fn changed(&self, _: ChangeKind, _: &[Named], _: bool) {
            drop(self.1.lock().unwrap());
        }
        fn overflow(&self) {
            self.0.overflow();
        }
    }
    let s = setting("overflow", DirOptions::default());
    let path = s.path.join("sub");
    let store = DirStore::open(&path, DirOptions::default()).unwrap();
    let sink = Arc::new(Blocked(s.heard.clone(), Mutex::new(())));
    store.watch(sink.clone()).unwrap();
    let _guard = store.watch_directory(&*store.root(), false).unwrap();
    let blocked = sink.1.lock().unwrap();
    // One piece that was read already, and then more than the queue holds.
    for i in 0..max / 2 + 5000 {
        let name = path.join(format!("f{}", i % 100));
        std::fs::File::create(&name).unwrap();
        std::fs::remove_file(&name).unwrap();
    }
    assert_eq!(*s.heard.1.lock().unwrap(), 0);
    drop(blocked);
    let until = Instant::now() + Duration::from_secs(30);
    while *s.heard.1.lock().unwrap() == 0 {
        assert!(Instant::now() < until, "an overflow is told");
        std::thread::sleep(Duration::from_millis(10));
    }
}
