//! The dir store among local processes that change everything under it: links, races, odd files, other spellings,
//! a kill in the middle. Nothing outside the root is reached and nothing stale is believed.

use std::{
    collections::BTreeSet,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_store::{
    dir::{DirOptions, DirStore, PATH_DEPTH_MAX, SPILL_DIRECTORY},
    error::StoreError,
    name::NtPath,
    store::*,
};
use arden_wire::{
    access::*,
    dtyp::{Ace, Acl, SecurityDescriptor, Sid, well_known},
};
use rustix::fs::XattrFlags;

/// `share` is served; `outside` is not.
struct Place {
    base: PathBuf,
    store: Arc<DirStore>,
}

impl Place {
    fn new() -> Place {
        Place::with(DirOptions::default())
    }

    fn with(options: DirOptions) -> Place {
        Place::below(&std::env::temp_dir(), options)
    }

    /// In memory, where a file may have many attributes; None, and a message, where that cannot be.
    fn with_many_attributes() -> Option<Place> {
        let memory = Path::new("/dev/shm");
        if !memory.is_dir() {
            println!("skipped: there is no /dev/shm");
            return None;
        }
        let p = Place::below(memory, DirOptions::default());
        let probe = std::fs::File::create(p.outside().join("probe")).unwrap();
        let can = (0..300).all(|i| rustix::fs::fsetxattr(&probe, long_attribute(i), b"x", XattrFlags::empty()).is_ok());
        if !can {
            println!("skipped: /dev/shm takes no files with many attributes");
        }
        can.then_some(p)
    }

    fn below(parent: &Path, options: DirOptions) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = parent.join(format!("arden-hostile-{}-{n}", std::process::id()));
        std::fs::create_dir_all(base.join("share")).unwrap();
        std::fs::create_dir(base.join("outside")).unwrap();
        std::fs::write(base.join("outside/secret"), "secret").unwrap();
        let store = DirStore::open(&base.join("share"), options).unwrap();
        Place { base, store }
    }

    fn share(&self, p: &str) -> PathBuf {
        self.base.join("share").join(p)
    }

    fn outside(&self) -> PathBuf {
        self.base.join("outside")
    }

    fn lookup(&self, p: &str) -> Result<Lookup> {
        self.store.lookup(&NtPath::parse(p).unwrap())
    }

    fn find(&self, p: &str) -> Option<NodeRef> {
        match self.lookup(p) {
            Ok(Lookup::Found(node)) => Some(node),
            Ok(Lookup::Missing { .. }) => None,
            Ok(Lookup::Symlink { .. }) => panic!("{p}: link"),
            Err(e) => panic!("{p}: {e}"),
        }
    }

    fn names(&self, dir: &NodeRef) -> BTreeSet<String> {
        let mut cursor = dir.list().unwrap();
        let mut out = BTreeSet::new();
        while let Some(entry) = cursor.peek(&|_| true).unwrap() {
            out.insert(entry.name);
            cursor.advance();
        }
        out
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// 250 bytes.
fn long_attribute(i: usize) -> String {
    format!("user.{i:0>245}")
}

fn plain(directory: bool) -> NewFile<'static> {
    NewFile { directory, attributes: 0, security: None, eas: &[], allocation: None }
}

#[test]
fn links_are_shown_and_never_followed() {
    let p = Place::new();
    for (name, target) in [
        ("absolute", "/etc/passwd"),
        ("up", "../outside/secret"),
        ("dir", "../outside"),
        ("loop", "loop"),
        ("dangling", "nowhere"),
        ("proc", "/proc/self/root"),
    ] {
        symlink(target, p.share(name)).unwrap();
        let link = p.find(name).unwrap();
        let stat = link.stat().unwrap();
        assert_eq!(
            (stat.attributes & ATTR_REPARSE_POINT, stat.reparse_tag),
            (ATTR_REPARSE_POINT, 0xA000_000C),
            "{name}"
        );
        assert!(!stat.directory);
        let mut buf = [0; 10];
        assert_eq!(link.read_at(0, &mut buf, Wait::Yes), Err(StoreError::WrongObject.into()));
        assert!(link.write_at(None, 0, b"x", Wait::Yes).is_err());
        assert!(link.set_end_of_file(None, 0).is_err());
        assert!(link.streams().unwrap().is_empty() && link.eas().unwrap().is_empty());
        assert!(link.security().unwrap().dacl.is_some());
        let (tag, data) = link.reparse().unwrap();
        assert_eq!(tag, 0xA000_000C);
        let text = target.replace('/', "\\").encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        assert!(data.ends_with(&text));
        assert_eq!(data[8], u8::from(!target.starts_with('/')), "the relative flag");
        match p.lookup(&format!("{name}\\a\\b")).unwrap() {
            Lookup::Symlink { link: l, unparsed_components } => {
                assert_eq!((l.id(), unparsed_components), (link.id(), 2), "{name}");
            }
            _ => panic!("{name}: walked through"),
        }
        assert!(link.create_child(None, "x", &plain(false)).is_err());
        assert!(p.store.root().create_child(None, &name.to_uppercase(), &plain(false)).is_err(), "the name is taken");
    }
    let entries = p.names(&p.store.root());
    assert_eq!(entries.len(), 6);
    // Moving, linking and removing act on the link.
    p.find("absolute").unwrap().rename(None, &*p.store.root(), "moved", false).unwrap();
    p.find("moved").unwrap().unlink(None).unwrap();
    assert!(std::fs::metadata("/etc/passwd").is_ok());
}

#[test]
fn devices_pipes_and_sockets_do_not_exist() {
    let p = Place::new();
    assert!(Command::new("mkfifo").arg(p.share("pipe")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(p.share("socket")).unwrap();
    let started = Instant::now();
    for name in ["pipe", "socket", "PIPE"] {
        assert_eq!(p.lookup(name).map(|_| ()), Err(StoreError::SpecialFile.into()), "{name}");
        assert_eq!(
            p.store.root().create_child(None, name, &plain(false)).map(|_| ()),
            Err(StoreError::NameCollision.into()),
            "{name}"
        );
    }
    assert!(p.names(&p.store.root()).is_empty());
    let f = p.store.root().create_child(None, "f", &plain(false)).unwrap();
    assert_eq!(f.rename(None, &*p.store.root(), "pipe", true), Err(StoreError::SpecialFile.into()));
    assert!(started.elapsed() < Duration::from_secs(5), "nobody waits for the other end");
}

/// Somebody who will read gets a file opened at once, by what its directory's listing said it was.
#[test]
fn a_file_that_is_something_else_by_now_is_not_read() {
    let p = Place::new();
    let read = |name: &str| p.store.lookup_to_read(&NtPath::parse(name).unwrap());
    for name in ["pipe", "link", "dir", "file"] {
        let node = p.store.root().create_child(None, name, &plain(false)).unwrap();
        node.write_at(None, 0, b"old", Wait::Yes).unwrap();
        drop(node);
        assert!(matches!(read(name), Ok(Lookup::Found(_))), "{name}");
        std::fs::remove_file(p.share(name)).unwrap();
    }
    assert!(Command::new("mkfifo").arg(p.share("pipe")).status().unwrap().success());
    symlink(p.outside().join("secret"), p.share("link")).unwrap();
    std::fs::create_dir(p.share("dir")).unwrap();
    std::fs::write(p.share("file"), "new").unwrap();
    assert_eq!(read("pipe").map(|_| ()), Err(StoreError::SpecialFile.into()));
    let Ok(Lookup::Found(link)) = read("link") else { panic!("the link is there") };
    assert_ne!(link.stat().unwrap().attributes & ATTR_REPARSE_POINT, 0);
    let Ok(Lookup::Found(dir)) = read("dir") else { panic!("the directory is there") };
    assert!(dir.is_directory() && dir.create_child(None, "inside", &plain(false)).is_ok());
    let Ok(Lookup::Found(file)) = read("FILE") else { panic!("the file is there") };
    let mut buf = [0; 8];
    assert_eq!(file.read_at(0, &mut buf, Wait::Yes), Ok(3));
    assert_eq!(&buf[..3], b"new");
    // Who came to read may write too.
    file.write_at(None, 0, b"NEW", Wait::Yes).unwrap();
    assert_eq!(std::fs::read(p.share("file")).unwrap(), b"NEW");
}

#[test]
fn names_that_no_client_could_say_are_left_out() {
    use std::os::unix::ffi::OsStrExt;
    let p = Place::new();
    for name in [&b"a:b"[..], b"a\\b", b"ctrl\x01", b"\xff\xfe", b"qu?stion", b"good"] {
        std::fs::write(p.share("").join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
    }
    assert_eq!(p.names(&p.store.root()), BTreeSet::from(["good".to_owned()]));
    assert_eq!(p.store.unpresentable_names(), 5);
    assert!(!p.store.root().is_empty_directory().unwrap());
}

/// More names than the kernel tells make nothing of a file but its EAs and streams unreachable, and nothing of its directory.
#[test]
fn attributes_that_the_kernel_does_not_list_spoil_nothing() {
    let Some(mut p) = Place::with_many_attributes() else { return };
    let root = p.store.root();
    for name in ["before", "f", "later"] {
        root.create_child(None, name, &plain(false)).unwrap();
    }
    let node = p.find("f").unwrap();
    node.set_basic(None, &BasicUpdate { attributes: Some(ATTR_HIDDEN), ..Default::default() }).unwrap();
    node.set_security(None, &private_descriptor()).unwrap();
    drop(node);
    let file = std::fs::File::open(p.share("f")).unwrap();
    for i in 0..300 {
        rustix::fs::fsetxattr(&file, long_attribute(i), b"x", XattrFlags::empty()).unwrap();
    }
    let told = rustix::fs::flistxattr(&file, &mut vec![0u8; 65_536][..]);
    assert_eq!(told, Err(rustix::io::Errno::TOOBIG));
    // Once by a store that has it in memory, and once by one that looks at it for the first time, in a listing.
    for is_first_look in [false, true] {
        if is_first_look {
            p.store = DirStore::open(&p.share(""), DirOptions::default()).unwrap();
        }
        let root = p.store.root();
        assert_eq!(p.names(&root), ["before", "f", "later"].map(str::to_owned).into());
        let node = p.find("f").unwrap();
        assert_eq!(node.stat().unwrap().attributes, ATTR_HIDDEN);
        assert_eq!(*node.security().unwrap(), private_descriptor(), "its descriptor stays in force");
        node.set_basic(None, &BasicUpdate { attributes: Some(ATTR_SYSTEM), ..Default::default() }).unwrap();
        node.set_basic(None, &BasicUpdate { attributes: Some(ATTR_HIDDEN), ..Default::default() }).unwrap();
        node.write_at(None, 0, b"data", Wait::Yes).unwrap();
        assert_eq!(node.eas().map(|_| ()), Err(StoreError::EaTooLarge.into()));
        assert_eq!(p.lookup("f:s").map(|_| ()), Err(StoreError::EaTooLarge.into()));
        node.rename(None, &*root, "moved", false).unwrap();
        node.rename(None, &*root, "f", false).unwrap();
    }
    p.find("f").unwrap().unlink(None).unwrap();
    assert!(p.find("f").is_none());
}

/// Pages that this thread had to be given so far.
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let behind_the_name = stat.rsplit_once(')').unwrap().1;
    behind_the_name.split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// A file may have far more in attributes than it has in data: looking at it reads nothing of that.
#[test]
fn large_attributes_are_not_read_to_be_told() {
    let Some(mut p) = Place::with_many_attributes() else { return };
    arden_testkit::stores::cases::eas_have_a_limit(&*p.store);
    let f = p.find("f").unwrap();
    let file = std::fs::File::open(p.share("f")).unwrap();
    for i in 0..500 {
        let name = format!("user.host-{i}");
        rustix::fs::fsetxattr(&file, &*name, &[1; 60_000], XattrFlags::empty()).unwrap();
    }
    let g = p.store.root().create_child(None, "g", &plain(false)).unwrap();
    for i in 0..500 {
        g.create_stream(None, &format!("{i}")).unwrap().write_at(None, 0, &[1; 60_000], Wait::Yes).unwrap();
    }
    p.store = DirStore::open(&p.share(""), DirOptions::default()).unwrap();
    let before = page_faults();
    assert_eq!(f.eas().map(|_| ()), Err(StoreError::EaTooLarge.into()));
    assert_eq!(p.names(&p.store.root()).len(), 2);
    assert!(p.find("f").unwrap().stat().unwrap().ea_size > 500 * 60_000);
    let streams = g.streams().unwrap();
    assert_eq!(streams.iter().filter(|s| s.size == 60_000).count(), 500);
    // To read all once would be some 15,000.
    let faults = page_faults() - before;
    assert!(faults < 2000, "{faults} pages");
    // What is too much may become less, and more of it is refused.
    let ea = |name: &str, value: &[u8]| Ea { name: name.into(), flags: 0, value: value.to_vec() };
    assert_eq!(f.set_eas(None, &[ea("host-1", &[1; 60_001])]), Err(StoreError::EaTooLarge.into()));
    f.set_eas(None, &[ea("HOST-1", &[2; 59_999])]).unwrap();
    let none: Vec<Ea> = (0..500).map(|i| ea(&format!("host-{i}"), b"")).chain([ea("other", b"")]).collect();
    f.set_eas(None, &none).unwrap();
    assert!(f.eas().unwrap().is_empty());
    // Many small ones cost time.
    for i in 0..1025 {
        rustix::fs::fsetxattr(&file, &*format!("user.{i}"), b"1", XattrFlags::empty()).unwrap();
    }
    assert_eq!(f.eas().map(|_| ()), Err(StoreError::EaTooLarge.into()));
    assert_eq!(f.stat().unwrap().ea_size, 65_535);
    rustix::fs::fremovexattr(&file, "user.0").unwrap();
    assert_eq!(f.eas().unwrap().len(), 1024);
    assert_eq!(f.set_eas(None, &[ea("more", b"1")]), Err(StoreError::EaTooLarge.into()));
    f.set_eas(None, &[ea("more", b"1"), ea("1", b"")]).unwrap();
}

/// Clients cannot bring a file there.
#[test]
fn names_of_attributes_have_a_limit() {
    let Some(p) = Place::with_many_attributes() else { return };
    let root = p.store.root();
    let ea = |i: usize| Ea { name: format!("{i:0>245}"), flags: 0, value: b"x".to_vec() };
    let many: Vec<Ea> = (0..270).map(ea).collect();
    let refused = root.create_child(None, "f", &NewFile { eas: &many, ..plain(false) }).map(|_| ());
    assert_eq!(refused, Err(StoreError::EaTooLarge.into()));
    assert!(p.find("f").is_none());
    let f = root.create_child(None, "f", &plain(false)).unwrap();
    assert_eq!(f.set_eas(None, &many), Err(StoreError::EaTooLarge.into()));
    assert!(f.eas().unwrap().is_empty(), "all or nothing");
    let names_bytes = || rustix::fs::flistxattr_query(std::fs::File::open(p.share("f")).unwrap()).unwrap();
    // One at a time, of all kinds that have names of clients.
    let full = (0..500).find(|i| f.set_eas(None, &[ea(*i)]).is_err()).unwrap();
    assert_eq!(f.set_eas(None, &[ea(full)]), Err(StoreError::EaTooLarge.into()));
    assert!((46 << 10..=48 << 10).contains(&names_bytes()), "{}", names_bytes());
    let long = |i: usize| format!("{i:0>220}");
    assert_eq!(f.create_stream(None, &long(0)).map(|_| ()), Err(StoreError::TooManyStreams.into()));
    f.set_eas(None, &[Ea { value: Vec::new(), ..ea(0) }]).unwrap();
    f.write_at(None, 0, b"data", Wait::Yes).unwrap();
    let s = f.create_stream(None, "s").unwrap();
    let marked = f.create_stream_marked(None, &long(1), 7).map(|_| ());
    assert_eq!(marked, Err(StoreError::TooManyStreams.into()), "its mark has a name too");
    f.create_stream(None, &long(1)).unwrap();
    assert_eq!(s.rename_stream(None, Some(&long(2)), false), Err(StoreError::TooManyStreams.into()));
    assert_eq!(f.rename_stream(None, Some(&long(2)), false), Err(StoreError::TooManyStreams.into()));
    assert_eq!(f.rename_stream(None, Some(&long(1)), true), Ok(()), "no name more");
    s.rename_stream(None, Some("t"), false).unwrap();
    s.write_at(None, 70_000, b"x", Wait::Yes).unwrap();
    assert!(names_bytes() <= 48 << 10, "{}", names_bytes());
    // Many streams alone, and they all go.
    let g = root.create_child(None, "g", &plain(false)).unwrap();
    let refused = (0..1000).find_map(|i| g.create_stream(None, &long(i)).err()).unwrap();
    assert_eq!(refused, StoreError::TooManyStreams);
    for s in g.streams().unwrap().into_iter().filter(|s| !s.name.is_empty()) {
        p.find(&format!("g:{}", s.name)).unwrap().unlink(None).unwrap();
    }
    g.unlink(None).unwrap();
}

#[test]
fn what_the_store_keeps_for_itself_cannot_be_named() {
    let p = Place::new();
    let f = p.store.root().create_child(None, "f", &plain(false)).unwrap();
    f.create_stream(None, "s").unwrap().write_at(None, 100_000, b"x", Wait::Yes).unwrap();
    assert!(p.share(SPILL_DIRECTORY).exists());
    for name in [SPILL_DIRECTORY.to_owned(), SPILL_DIRECTORY.to_uppercase()] {
        assert!(p.find(&name).is_none());
        assert_eq!(p.lookup(&format!("{name}\\x")).map(|_| ()), Err(StoreError::PathNotFound.into()));
        assert_eq!(
            p.store.root().create_child(None, &name, &plain(true)).map(|_| ()),
            Err(StoreError::ReservedName.into())
        );
        assert_eq!(f.rename(None, &*p.store.root(), &name, true), Err(StoreError::ReservedName.into()));
        assert_eq!(f.link(None, &*p.store.root(), &name, true), Err(StoreError::ReservedName.into()));
    }
    // An attribute that was tampered with leads nowhere.
    let set = |value: &str| {
        let done =
            Command::new("setfattr").args(["-n", "user.ArdenStream.evil", "-v", value]).arg(p.share("f")).status();
        done.is_ok_and(|s| s.success())
    };
    if set("../../outside/secret") {
        assert!(p.find("f:evil").is_none_or(|s| s.read_at(0, &mut [0; 10], Wait::Yes).is_err()));
        assert!(set("/etc/passwd"));
        assert!(p.find("f:evil").is_none_or(|s| s.read_at(0, &mut [0; 10], Wait::Yes).is_err()));
    }
    // The spilled streams go with the file, also when it is replaced.
    let g = p.store.root().create_child(None, "g", &plain(false)).unwrap();
    g.rename(None, &*p.store.root(), "f", true).unwrap();
    assert_eq!(std::fs::read_dir(p.share(SPILL_DIRECTORY)).unwrap().count(), 0);
}

/// A local process swaps a directory and a link to the outside as fast as it can.
#[test]
fn no_race_leads_outside() {
    let p = Place::new();
    std::fs::create_dir(p.share("swap")).unwrap();
    std::fs::write(p.share("swap/inner"), "inner").unwrap();
    symlink(p.outside(), p.share("link")).unwrap();
    let secret = std::fs::metadata(p.outside().join("secret")).unwrap().ino();
    let stop = AtomicBool::new(false);
    let (found, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (swap, link, aside) = (p.share("swap"), p.share("link"), p.share("aside"));
            while !stop.load(Ordering::Relaxed) {
                for (a, b) in [(&swap, &aside), (&link, &swap), (&swap, &link), (&aside, &swap)] {
                    std::fs::rename(a, b).unwrap();
                }
            }
        });
        for t in 0..2 {
            let (p, found, refused, stop) = (&p, &found, &refused, &stop);
            scope.spawn(move || {
                let mut i = 0;
                while !stop.load(Ordering::Relaxed) {
                    i += 1;
                    match p.lookup("swap\\secret") {
                        Ok(Lookup::Found(node)) => assert_ne!(node.id().file, secret, "reached the outside"),
                        Ok(Lookup::Missing { parent, .. }) => {
                            if let Ok(f) = parent.create_child(None, &format!("made-{t}-{i}"), &plain(false)) {
                                f.write_at(None, 0, b"x", Wait::Yes).unwrap();
                                let _ = f.rename(None, &*parent, &format!("renamed-{t}-{i}"), true);
                                let _ = f.unlink(None);
                            }
                        }
                        _ => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    if let Ok(Lookup::Found(node)) = p.lookup("SWAP\\inner") {
                        let mut buf = [0; 16];
                        let n = node.read_at(0, &mut buf, Wait::Yes).unwrap();
                        assert_eq!(&buf[..n], b"inner");
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                    if let Ok(Lookup::Found(dir)) = p.lookup("swap")
                        && dir.is_directory()
                        && let Ok(mut cursor) = dir.list()
                    {
                        while let Ok(Some(entry)) = cursor.peek(&|_| true) {
                            assert_ne!(entry.stat.id.file, secret);
                            cursor.advance();
                        }
                    }
                }
            });
        }
        // Three seconds, and on a busy machine as long as it takes to meet both sides of the swap.
        let met = || found.load(Ordering::Relaxed) > 100 && refused.load(Ordering::Relaxed) > 100;
        for second in 0..90 {
            if second >= 3 && met() {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let names: Vec<_> = std::fs::read_dir(p.outside()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["secret"], "nothing was made outside");
    assert_eq!(std::fs::read(p.outside().join("secret")).unwrap(), b"secret");
    assert!(found.into_inner() > 100 && refused.into_inner() > 100, "both sides of the swap were met");
}

#[test]
fn a_directory_moved_out_is_not_followed() {
    let p = Place::new();
    std::fs::create_dir_all(p.share("a/b")).unwrap();
    std::fs::write(p.share("a/b/f"), "x").unwrap();
    assert!(p.find("a\\b\\f").is_some());
    std::fs::rename(p.share("a"), p.outside().join("a")).unwrap();
    assert_eq!(p.lookup("a\\b\\f").map(|_| ()), Err(StoreError::PathNotFound.into()));
    symlink(p.outside().join("a"), p.share("a")).unwrap();
    assert!(matches!(p.lookup("a\\b\\f"), Ok(Lookup::Symlink { unparsed_components: 2, .. })));
}

#[test]
fn what_others_do_is_seen_at_once() {
    let p = Place::new();
    let root = p.store.root();
    for i in 0..300 {
        // The directory's names were just looked at, and just changed by Arden itself.
        assert!(p.find("nothing").is_none());
        root.create_child(None, &format!("own{i}"), &plain(false)).unwrap();
        assert!(p.find(&format!("OTHER{i}")).is_none());
        std::fs::write(p.share(&format!("Other{i}")), "x").unwrap();
        let found = p.find(&format!("OTHER{i}")).unwrap_or_else(|| panic!("round {i}"));
        assert_eq!(found.path(), [format!("Other{i}")]);
        assert_eq!(
            root.create_child(None, &format!("oTHER{i}"), &plain(false)).map(|_| ()),
            Err(StoreError::NameCollision.into())
        );
        std::fs::rename(p.share(&format!("Other{i}")), p.share(&format!("Moved{i}"))).unwrap();
        assert!(p.find(&format!("OTHER{i}")).is_none());
        assert!(p.find(&format!("MOVED{i}")).is_some());
        std::fs::remove_file(p.share(&format!("Moved{i}"))).unwrap();
        assert!(p.find(&format!("moved{i}")).is_none());
        assert_eq!(found.unlink(None), Err(StoreError::NotFound.into()), "the name leads elsewhere by now");
    }
    // Attributes that somebody else sets, too.
    let f = root.create_child(None, "f", &plain(false)).unwrap();
    for i in 0..50u32 {
        let value = format!("\"0x{:x}\"", if i % 2 == 0 { ATTR_HIDDEN } else { ATTR_SYSTEM });
        let set = Command::new("setfattr").args(["-n", "user.DOSATTRIB", "-v", &value]).arg(p.share("f")).status();
        if !set.is_ok_and(|s| s.success()) {
            return;
        }
        assert_eq!(f.stat().unwrap().attributes, if i % 2 == 0 { ATTR_HIDDEN } else { ATTR_SYSTEM });
    }
}

#[test]
fn two_spellings_on_disk_stay_two_files() {
    let p = Place::new();
    for name in ["name", "NAME", "Name"] {
        std::fs::write(p.share(name), name).unwrap();
    }
    let read = |asked: &str| {
        let mut buf = [0; 8];
        let n = p.find(asked).unwrap().read_at(0, &mut buf, Wait::Yes).unwrap();
        String::from_utf8_lossy(&buf[..n]).into_owned()
    };
    for name in ["name", "NAME", "Name"] {
        assert_eq!(read(name), name, "the exact one goes first");
    }
    assert_eq!(read("nAmE"), read("nAME"), "else always the same");
    assert_eq!(p.names(&p.store.root()).len(), 3);
}

/// Names of a directory that is larger than the memory for names.
#[test]
fn without_memory_for_names_it_is_only_slower() {
    let p = Place::with(DirOptions { name_cache_bytes_max: 2000, directories_cached_max: 1, ..DirOptions::default() });
    for d in 0..5 {
        std::fs::create_dir(p.share(&format!("Dir{d}"))).unwrap();
        for i in 0..200 {
            std::fs::write(p.share(&format!("Dir{d}/File number {i}")), "").unwrap();
        }
    }
    for i in 0..200 {
        for d in 0..5 {
            assert!(p.find(&format!("dir{d}\\FILE NUMBER {i}")).is_some());
            assert!(p.find(&format!("dir{d}\\no number {i}")).is_none());
        }
    }
    assert!(p.store.name_cache_bytes() <= 2000);
    let d = p.find("DIR0").unwrap();
    assert!(d.create_child(None, "FILE number 7", &plain(false)).is_err());
    d.create_child(None, "new", &plain(false)).unwrap();
    assert!(p.find("dir0\\NEW").is_some());
}

#[test]
fn names_of_directories_that_are_forgotten_take_no_memory() {
    let p = Place::with(DirOptions { directories_cached_max: 4, ..DirOptions::default() });
    for d in 0..50 {
        let dir = p.store.root().create_child(None, &format!("d{d}"), &plain(true)).unwrap();
        for i in 0..200 {
            dir.create_child(None, &format!("file number {i}"), &plain(false)).unwrap();
        }
        assert!(p.find(&format!("D{d}\\FILE NUMBER 0")).is_some());
    }
    let one = 200 * 200;
    assert!(p.store.name_cache_bytes() < 8 * one, "{}", p.store.name_cache_bytes());
}

#[test]
fn a_hundred_thousand_names() {
    let p = Place::new();
    std::fs::create_dir(p.share("big")).unwrap();
    let big = p.find("big").unwrap();
    let n = 100_000;
    let started = Instant::now();
    for i in 0..n {
        std::fs::File::create(p.share(&format!("big/File-{i}.data"))).unwrap();
    }
    let made = started.elapsed();
    let timed = |what: &str, f: &dyn Fn(usize)| {
        let started = Instant::now();
        (0..20_000).for_each(|i| f(i * 7 % n));
        let each = started.elapsed() / 20_000;
        println!("{what}: {each:?} each");
        // Reading the names each time would take tens of milliseconds.
        assert!(each < Duration::from_millis(10), "{what}: {each:?} each, {made:?} for making them");
    };
    timed("another case", &|i| assert!(p.find(&format!("BIG\\file-{i}.DATA")).is_some()));
    timed("the same case", &|i| assert!(p.find(&format!("big\\File-{i}.data")).is_some()));
    timed("a miss", &|i| assert!(p.find(&format!("big\\File-{i}.none")).is_none()));
    timed("create", &|i| {
        big.create_child(None, &format!("new {i}"), &plain(false)).unwrap();
    });
    timed("rename and delete", &|i| {
        let f = p.find(&format!("big\\NEW {i}")).unwrap();
        f.rename(None, &*big, &format!("newer {i}"), false).unwrap();
        f.unlink(None).unwrap();
    });
}

#[test]
fn descriptors_are_given_back() {
    let p = Place::with(DirOptions { directories_cached_max: 16, ..DirOptions::default() });
    let open_fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Other tests run beside this one; what counts is that thousands do not stay.
    let before = open_fds();
    for i in 0..1000 {
        let d = p.store.root().create_child(None, &format!("d{i}"), &plain(true)).unwrap();
        let f = d.create_child(None, "f", &plain(false)).unwrap();
        f.write_at(None, 0, b"x", Wait::Yes).unwrap();
        assert!(p.find(&format!("D{i}\\F")).is_some());
    }
    assert!(open_fds() < before + 300, "{} then {}", before, open_fds());
}

#[test]
fn a_directory_that_is_gone_is_not_kept_open() {
    let p = Place::new();
    for i in 0..20 {
        let d = p.store.root().create_child(None, &format!("d{i}"), &plain(true)).unwrap();
        d.create_child(None, "f", &plain(false)).unwrap();
        let f = p.find(&format!("d{i}\\f")).unwrap();
        f.unlink(None).unwrap();
        d.unlink(None).unwrap();
    }
    let root = p.share("d").to_str().unwrap().to_owned();
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open: Vec<_> = all.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let kept: Vec<_> = open.iter().filter(|path| path.to_string_lossy().starts_with(&root)).collect();
    assert!(kept.is_empty(), "{kept:?}");
}

#[test]
fn paths_are_so_deep_and_no_deeper() {
    let p = Place::with(DirOptions { directories_cached_max: 16, ..DirOptions::default() });
    let open_fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut path = vec!["d"; PATH_DEPTH_MAX];
    std::fs::create_dir_all(p.share(&path.join("/"))).unwrap();
    std::fs::create_dir(p.share(&path.join("/")).join("d")).unwrap();
    let deepest = p.find(&path.join("\\")).unwrap();
    let before = open_fds();
    drop(deepest);
    // Others take its place among the directories that are remembered.
    for i in 0..32 {
        std::fs::create_dir(p.share(&format!("other{i}"))).unwrap();
        assert!(p.find(&format!("other{i}\\missing")).is_none());
    }
    // Other tests run beside this one.
    assert!(open_fds() + PATH_DEPTH_MAX / 2 < before, "{} then {}", before, open_fds());
    path.push("d");
    assert_eq!(p.lookup(&path.join("\\")).map(|_| ()), Err(StoreError::PathTooDeep.into()), "one that is there");
    path.push("missing");
    assert_eq!(p.lookup(&path.join("\\")).map(|_| ()), Err(StoreError::PathTooDeep.into()));
}

fn private_descriptor() -> SecurityDescriptor {
    let owner = Sid::new(5, &[21, 1, 2, 3, 1000]);
    SecurityDescriptor::with_dacl(&owner, &owner, Acl::new(vec![Ace::allow(&owner, FILE_ALL_ACCESS, 0)]))
}

/// A descriptor that is too large to be remembered with each file holds all the same, and so does what is inherited from it.
#[test]
fn large_descriptors_hold() {
    let mut p = Place::new();
    let large = |mask| {
        let ace = |i| Ace::allow(&Sid::new(5, &[21, i]), mask, 3);
        let acl = Acl::new((0..100).map(ace).collect());
        SecurityDescriptor::with_dacl(&well_known::SYSTEM, &well_known::SYSTEM, acl)
    };
    assert!(large(0).heap_bytes() > 4 << 10);
    let root = p.store.root();
    root.set_security(None, &large(FILE_ALL_ACCESS)).unwrap();
    root.create_child(None, "inherits", &plain(false)).unwrap();
    root.create_child(None, "own", &plain(false)).unwrap();
    drop(root);
    for round in 1..4 {
        let own = p.find("own").unwrap();
        own.set_security(None, &large(round)).unwrap();
        for _ in 0..2 {
            assert_eq!(*own.security().unwrap(), large(round));
            let inherited = p.find("inherits").unwrap().security().unwrap();
            let aces = &inherited.dacl.as_ref().unwrap().aces;
            assert!(aces.len() == 100 && aces.iter().all(|ace| ace.mask == FILE_ALL_ACCESS));
        }
        drop(own);
        assert_eq!(*p.find("own").unwrap().security().unwrap(), large(round));
        p.store = DirStore::open(&p.share(""), DirOptions::default()).unwrap();
        assert_eq!(*p.find("own").unwrap().security().unwrap(), large(round), "from the disk");
    }
}

/// The part of the next test that is killed: creates files with a descriptor, as fast as it can, for ever.
#[test]
fn creating_until_killed() {
    let Some(dir) = std::env::var_os("ARDEN_TEST_KILLED_IN") else { return };
    let store = DirStore::open(&PathBuf::from(dir), DirOptions::default()).unwrap();
    let sd = private_descriptor();
    for i in 0.. {
        let new = NewFile { directory: i % 3 == 0, security: Some(&sd), ..plain(false) };
        let f = store.root().create_child(None, &format!("{}-{i}", std::process::id()), &new).unwrap();
        if i % 3 != 0 {
            f.write_at(None, 0, b"private", Wait::Yes).unwrap();
        }
        if i % 5 == 0 {
            f.rename(None, &*store.root(), &format!("{}-moved-{i}", std::process::id()), false).unwrap();
        }
    }
}

#[test]
fn a_kill_leaves_nothing_wide_open() {
    let p = Place::new();
    // What the directory passes on is far less than the descriptors that its files get.
    let admins = Ace::allow(&well_known::BUILTIN_ADMINISTRATORS, FILE_ALL_ACCESS, 3);
    let root_sd =
        SecurityDescriptor::with_dacl(&well_known::SYSTEM, &well_known::SYSTEM, Acl::new(vec![admins.clone()]));
    p.store.root().set_security(None, &root_sd).unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut interrupted = 0;
    let names = || std::fs::read_dir(p.share("")).unwrap().count();
    for round in 0..12 {
        let before = names();
        let mut child = Command::new(&exe)
            .args(["--exact", "creating_until_killed", "--test-threads=1"])
            .env("ARDEN_TEST_KILLED_IN", p.share(""))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while names() < before + 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no files are made");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(round * 7));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let store = DirStore::open(&p.share(""), DirOptions::default()).unwrap();
    let mut n = 0;
    for entry in std::fs::read_dir(p.share("")).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        assert_eq!(meta.permissions().mode() & 0o077, 0, "closed to others on this machine");
        let name = entry.file_name().into_string().unwrap();
        let Lookup::Found(node) = store.lookup(&NtPath::parse(&name).unwrap()).unwrap() else { panic!("{name}") };
        let sd = node.security().unwrap();
        if *sd != private_descriptor() {
            interrupted += 1;
            let aces = &sd.dacl.as_ref().unwrap().aces;
            assert!(aces.iter().all(|a| a.sid == *well_known::BUILTIN_ADMINISTRATORS), "{}", sd.to_sddl());
            assert_eq!(node.stat().unwrap().end_of_file, 0, "no data before the descriptor");
        }
        n += 1;
    }
    println!("{n} files, {interrupted} without their descriptor");
    assert!(n > 100);
}

#[test]
fn files_of_others_stay_as_private_as_they_are() {
    let p = Place::new();
    if std::fs::metadata(p.share("")).unwrap().uid() != 0 {
        return;
    }
    std::fs::create_dir(p.share("home")).unwrap();
    std::os::unix::fs::chown(p.share("home"), Some(1234), Some(1234)).unwrap();
    std::fs::set_permissions(p.share("home"), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::create_dir(p.share("open")).unwrap();
    std::os::unix::fs::chown(p.share("open"), Some(1234), Some(1234)).unwrap();
    let sids = |name: &str| {
        let sd = p.find(name).unwrap().security().unwrap();
        assert_eq!(sd.owner, Some(Sid::new(22, &[1, 1234])));
        sd.dacl.as_ref().unwrap().aces.iter().map(|a| a.sid.clone()).collect::<Vec<_>>()
    };
    assert!(!sids("home").contains(&well_known::AUTHENTICATED_USERS));
    assert!(sids("open").contains(&well_known::AUTHENTICATED_USERS));
}
