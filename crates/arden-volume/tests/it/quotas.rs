//! Quotas by user and by folder: what is counted, what is refused, and that both stay right over crashes, renames and
//! deletions. Each test ends with `check`, which counts everything again.

use std::sync::Arc;

use arden_store::{
    error::StoreError,
    name::NtPath,
    quota::{NONE, QuotaStore, control},
    store::*,
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{
    FileTime,
    access::FILE_ALL_ACCESS,
    dtyp::{Ace, Acl, SecurityDescriptor, Sid, well_known},
};

const MB: u64 = 1 << 20;

struct Lab {
    device: Arc<MemDevice>,
    vol: Arc<Volume>,
    store: Arc<VolumeStore>,
}

fn user(n: u32) -> Sid {
    Sid::new(5, &[21, 7, 7, 7, 1000 + n])
}

fn open(device: &Arc<MemDevice>) -> Arc<Volume> {
    Volume::open(device.clone(), VolumeOptions { background: false, ..VolumeOptions::default() }).unwrap()
}

impl Lab {
    fn new() -> Lab {
        let device = Arc::new(MemDevice::new(64 << 20));
        Volume::format(&*device, "q", 9, FileTime(1)).unwrap();
        let vol = open(&device);
        let store = VolumeStore::new(vol.clone(), Durability::Plain);
        Lab { device, vol, store }
    }

    /// Power is lost after everything so far was made durable.
    fn crash(self) -> Lab {
        self.vol.sync().unwrap();
        let device = Arc::new(MemDevice::holding(self.device.content()));
        let vol = open(&device);
        let store = VolumeStore::new(vol.clone(), Durability::Plain);
        Lab { device, vol, store }
    }

    fn find(&self, path: &str) -> NodeRef {
        match self.store.lookup(&NtPath::parse(path).unwrap()).unwrap() {
            Lookup::Found(node) => node,
            _ => panic!("there is no {path}"),
        }
    }

    fn make(&self, path: &str, owner: &Sid, directory: bool) -> Result<NodeRef> {
        let (parent, name) = path.rsplit_once('\\').unwrap_or(("", path));
        let aces = vec![Ace::allow(&well_known::EVERYONE, FILE_ALL_ACCESS, 0)];
        let sd = SecurityDescriptor::with_dacl(owner, &well_known::SYSTEM, Acl::new(aces));
        let new = NewFile { directory, attributes: 0, security: Some(&sd), eas: &[], allocation: None };
        self.find(parent).create_child(None, name, &new)
    }

    fn write(&self, path: &str, owner: &Sid, bytes: u64) -> Result<NodeRef> {
        let node = self.make(path, owner, false)?;
        node.write_at(None, 0, &vec![7; bytes as usize], Wait::Yes)?;
        Ok(node)
    }

    fn used(&self, n: u32) -> u64 {
        self.vol.user_quota(&user(n)).unwrap().map_or(0, |q| q.used_bytes)
    }

    fn below(&self, path: &str) -> u64 {
        let ino = self.find(path).id().file;
        self.vol.folder_quotas().unwrap().iter().find(|(i, _)| *i == ino).unwrap().1.used_bytes
    }

    fn limit_folder(&self, path: &str, limit: u64) {
        self.vol.set_folder_quota(self.find(path).id().file, NONE, limit).unwrap();
    }

    fn is_right(&self) {
        let report = self.vol.check(true).unwrap();
        assert!(report.is_clean(), "{:?}", report.errors);
    }
}

#[test]
fn every_owner_is_counted_with_streams_from_files_that_were_there_before() {
    let lab = Lab::new();
    let a = lab.write("a", &user(1), MB).unwrap();
    lab.write("b", &user(2), 5000).unwrap();
    lab.vol.set_user_quota(&user(1), NONE, 10 * MB).unwrap();
    assert_eq!((lab.used(1), lab.used(2)), (MB, 8192));
    a.create_stream(None, "s").unwrap().write_at(None, 0, &[1; 100], Wait::Yes).unwrap();
    assert_eq!(lab.used(1), MB + 4096);
    a.set_allocation(None, 3 * MB).unwrap();
    assert_eq!(lab.used(1), 3 * MB + 4096);
    a.set_end_of_file(None, 0).unwrap();
    a.set_allocation(None, 0).unwrap();
    assert_eq!(lab.used(1), 4096);
    let lab = lab.crash();
    assert_eq!((lab.used(1), lab.used(2)), (4096, 8192));
    // The whole file goes to another owner, its stream too.
    let a = lab.find("a");
    let mut sd = (*a.security().unwrap()).clone();
    sd.owner = Some(user(2));
    a.set_security(None, &sd).unwrap();
    assert_eq!((lab.used(1), lab.used(2)), (0, 8192 + 4096));
    a.unlink(None).unwrap();
    drop(a);
    lab.vol.sync().unwrap();
    lab.vol.room();
    assert_eq!(lab.used(2), 8192);
    lab.is_right();
    lab.vol.close().unwrap();
    assert_eq!(lab.crash().used(2), 8192);
}

#[test]
fn a_limit_is_disk_full_and_a_threshold_is_not() {
    let lab = Lab::new();
    lab.vol.set_user_quota(&user(1), MB, 2 * MB).unwrap();
    let a = lab.write("a", &user(1), MB + MB / 2).unwrap();
    assert_eq!(a.write_at(None, 0, &vec![1; 3 * MB as usize], Wait::Yes), Err(StoreError::QuotaExceeded.into()));
    assert_eq!(a.set_allocation(None, 4 * MB), Err(StoreError::QuotaExceeded.into()));
    assert_eq!(a.set_end_of_file(None, 4 * MB), Err(StoreError::QuotaExceeded.into()));
    assert_eq!(a.stat().unwrap().end_of_file, MB + MB / 2, "a refused change leaves nothing");
    // Overwriting takes nothing more; others have no limit, and neither do administrators.
    a.write_at(None, 0, &vec![2; MB as usize], Wait::Yes).unwrap();
    lab.write("b", &user(2), 4 * MB).unwrap();
    lab.write("c", &well_known::BUILTIN_ADMINISTRATORS, 4 * MB).unwrap();
    assert_eq!(lab.used(1), MB + MB / 2);
    // What is left is what the user sees as free.
    let space = lab.store.space_for(&user(1), &*lab.store.root()).unwrap();
    assert_eq!((space.total_bytes, space.available_bytes), (2 * MB, MB / 2));
    assert!(space.free_bytes > 30 * MB);
    let other = lab.store.space_for(&user(2), &*lab.store.root()).unwrap();
    assert_eq!(other.available_bytes, other.free_bytes);
    a.unlink(None).unwrap();
    drop(a);
    lab.write("d", &user(1), 2 * MB).unwrap();
    // Only counted, not enforced.
    let all = lab.store.control().unwrap();
    assert_eq!(all.flags & (control::TRACK | control::ENFORCE), control::ENFORCE);
    lab.store.set_control(None, &arden_store::quota::QuotaControl { flags: control::TRACK, ..all }).unwrap();
    lab.write("e", &user(1), 2 * MB).unwrap();
    assert_eq!(lab.used(1), 4 * MB);
    lab.is_right();
}

#[test]
fn who_has_no_entry_gets_the_defaults() {
    let lab = Lab::new();
    let flags = control::ENFORCE | 0x300;
    let defaults = arden_store::quota::QuotaControl { threshold: MB, limit: 2 * MB, flags };
    lab.store.set_control(None, &defaults).unwrap();
    assert_eq!(lab.store.control().unwrap().flags, control::ENFORCE, "flags that say how far counting is are not set");
    assert_eq!(lab.store.space_for(&user(5), &*lab.store.root()).unwrap().total_bytes, 2 * MB);
    lab.write("a", &user(5), MB).unwrap();
    assert_eq!(lab.write("b", &user(5), 2 * MB).err(), Some(StoreError::QuotaExceeded.into()));
    let all = lab.store.users().unwrap();
    assert_eq!((all[0].0.clone(), all[0].1.limit, all[0].1.used_bytes), (user(5), 2 * MB, MB));
    assert_eq!(lab.store.remove_user(None, &user(6)), Err(StoreError::NoQuotaEntry));
    lab.store.remove_user(None, &user(5)).unwrap();
    assert_eq!(lab.store.user(&user(5)).unwrap().unwrap().limit, NONE, "he still owns something");
    lab.write("c", &user(5), 2 * MB).unwrap();
    lab.is_right();
}

#[test]
fn folders_count_what_is_below_them_wherever_it_moves() {
    let lab = Lab::new();
    let me = user(1);
    for d in ["x", "x\\in", "x\\in\\deep", "y"] {
        lab.make(d, &me, true).unwrap();
    }
    // With two names in one directory it still counts once.
    let f = lab.write("x\\in\\deep\\f", &me, MB).unwrap();
    f.link(None, &*lab.find("x\\in\\deep"), "f too", false).unwrap();
    lab.limit_folder("x", 8 * MB);
    lab.limit_folder("x\\in", 4 * MB);
    lab.limit_folder("y", 2 * MB);
    let sizes = |lab: &Lab| (lab.below("x"), lab.below("x\\in"), lab.below("y"));
    assert_eq!(sizes(&lab), (MB, MB, 0));
    lab.write("x\\g", &me, MB).unwrap();
    assert_eq!(sizes(&lab), (2 * MB, MB, 0));
    assert_eq!(
        lab.write("x\\in\\h", &me, 4 * MB).err(),
        Some(StoreError::QuotaExceeded.into()),
        "the inner one is full first"
    );
    lab.find("x\\in\\h").unlink(None).unwrap();
    // A directory moves with all that is below it, or not at all.
    let deep = lab.find("x\\in\\deep");
    deep.rename(None, &*lab.find("y"), "moved", false).unwrap();
    assert_eq!(sizes(&lab), (MB, 0, MB));
    lab.write("x\\in\\big", &me, 2 * MB).unwrap();
    let big = lab.find("x\\in\\big");
    assert_eq!(big.rename(None, &*lab.find("y"), "big", false), Err(StoreError::QuotaExceeded.into()));
    assert_eq!(big.path(), ["x", "in", "big"], "a refused move is told to nobody");
    let lab = lab.crash();
    assert_eq!(sizes(&lab), (3 * MB, 2 * MB, MB));
    // The smallest of all limits on the way is what is seen as free.
    let space = lab.store.space_for(&me, &*lab.find("x\\in")).unwrap();
    assert_eq!((space.total_bytes, space.available_bytes), (4 * MB, 2 * MB));
    // A second name elsewhere counts nothing until it is the only one.
    lab.find("x\\g").link(None, &*lab.find("y"), "second", false).unwrap();
    assert_eq!(sizes(&lab), (3 * MB, 2 * MB, MB));
    lab.find("x\\g").unlink(None).unwrap();
    assert_eq!(sizes(&lab), (2 * MB, 2 * MB, 2 * MB));
    lab.is_right();
    lab.vol.close().unwrap();
    let lab = lab.crash();
    assert_eq!(sizes(&lab), (2 * MB, 2 * MB, 2 * MB));
    // With the folder goes its record.
    lab.find("y\\second").unlink(None).unwrap();
    lab.find("y\\moved\\f").unlink(None).unwrap();
    lab.find("y\\moved\\f too").unlink(None).unwrap();
    lab.find("y\\moved").unlink(None).unwrap();
    lab.find("y").unlink(None).unwrap();
    lab.vol.room();
    assert_eq!(lab.vol.folder_quotas().unwrap().len(), 2);
    lab.is_right();
}

/// Directories are as deep as they are moved; only a path has a bound.
#[test]
fn what_is_far_below_a_folder_counts_and_can_be_deleted() {
    let lab = Lab::new();
    let me = user(1);
    lab.make("x", &me, true).unwrap();
    lab.make("y", &me, true).unwrap();
    lab.limit_folder("x", 8 * MB);
    let new = NewFile { directory: true, attributes: 0, security: None, eas: &[], allocation: None };
    let chain = |top: &str, length: usize| {
        let mut here = lab.find(top);
        for _ in 0..length {
            here = here.create_child(None, "d", &new).unwrap();
        }
        here
    };
    let (far, end) = (chain("x", 1000), chain("y", 100));
    let file = NewFile { directory: false, ..new };
    let f = end.create_child(None, "f", &file).unwrap();
    f.write_at(None, 0, &vec![7; MB as usize], Wait::Yes).unwrap();
    let (moved, away) = (lab.find("y\\d"), lab.find("y"));
    moved.rename(None, &*far, "moved", false).unwrap();
    assert_eq!(lab.below("x"), MB);
    assert_eq!(f.path().len(), 1102);
    f.set_end_of_file(None, 2 * MB).unwrap();
    lab.is_right();
    let deepest = end.create_child(None, "d", &new).unwrap();
    assert_eq!(moved.rename(None, &*deepest, "inside", false), Err(StoreError::IntoItself.into()));
    f.unlink(None).unwrap();
    drop(f);
    assert_eq!(lab.below("x"), 0);
    moved.rename(None, &*away, "back", false).unwrap();
    let too_long = vec!["d"; 1025].join("\\");
    assert_eq!(lab.store.lookup(&NtPath::parse(&too_long).unwrap()).map(|_| ()), Err(StoreError::PathTooDeep.into()));
    lab.crash().is_right();
}

/// Who moves chains of directories below each other makes them as deep as he likes. Nobody goes all that way while others wait for the
/// volume: what is too deep is not reached, and does not change where it would have to be counted.
#[test]
fn what_is_too_deep_is_not_reached_and_comes_back_when_it_is_moved_up() {
    let lab = Lab::new();
    let me = user(1);
    ["x", "y", "z"].iter().for_each(|d| drop(lab.make(d, &me, true).unwrap()));
    let new = NewFile { directory: true, attributes: 0, security: None, eas: &[], allocation: None };
    let chain =
        |top: NodeRef, length: usize| (0..length).fold(top, |here, _| here.create_child(None, "d", &new).unwrap());
    let (mut tops, mut bottoms) = (Vec::new(), vec![chain(lab.find("x"), 1000)]);
    for i in 0..4 {
        let top = lab.make(&format!("y\\{i}"), &me, true).unwrap();
        bottoms.push(chain(top.clone(), 800));
        top.rename(None, &*bottoms[i], "moved", false).unwrap();
        tops.push(top);
    }
    lab.limit_folder("x", 8 * MB);
    // It has 4,206 directories above it.
    let (bottom, last) = (&bottoms[4], &tops[3]);
    let f = lab.write("z\\f", &me, MB).unwrap();
    let file = NewFile { directory: false, ..new };
    assert_eq!(bottom.create_child(None, "f", &file).err(), Some(StoreError::PathTooDeep.into()));
    assert_eq!(f.rename(None, &**bottom, "f", false), Err(StoreError::PathTooDeep.into()));
    let aside = lab.make("z\\d", &me, true).unwrap();
    assert_eq!(aside.rename(None, &**bottom, "d", false), Err(StoreError::PathTooDeep.into()));
    assert_eq!(lab.store.lookup_id(bottom.id().file).err(), Some(StoreError::InvalidParameter.into()));
    assert!(lab.store.lookup_id(tops[2].id().file).is_ok());
    lab.is_right();
    // What is there already counts on, wherever it is moved, and is not changed before it is nearer.
    last.rename(None, &*lab.find("y"), "near", false).unwrap();
    let deep = bottom.create_child(None, "f", &file).unwrap();
    deep.write_at(None, 0, &vec![7; MB as usize], Wait::Yes).unwrap();
    let [stream, other] = ["s", "u"].map(|name| deep.create_stream(None, name).unwrap());
    stream.write_at(None, 0, b"held", Wait::Yes).unwrap();
    last.rename(None, &*bottoms[3], "far", false).unwrap();
    assert!(lab.below("x") > MB);
    lab.is_right();
    assert_eq!(deep.set_end_of_file(None, 0), Err(StoreError::PathTooDeep.into()));
    // What is refused is told to nobody who has it open.
    assert_eq!(stream.rename_stream(None, Some("t"), false), Err(StoreError::PathTooDeep.into()));
    assert_eq!(other.rename_stream(None, Some("s"), true), Err(StoreError::PathTooDeep.into()));
    assert_eq!(stream.unlink(None), Err(StoreError::PathTooDeep.into()));
    assert_eq!((stream.stream(), other.stream()), (Some("s"), Some("u")));
    let mut held = [0; 4];
    assert_eq!((stream.read_at(0, &mut held, Wait::Yes), &held), (Ok(4), b"held"));
    last.rename(None, &*lab.find("y"), "near", false).unwrap();
    assert_eq!(lab.below("x"), 0);
    deep.set_end_of_file(None, 0).unwrap();
    lab.crash().is_right();
}

/// What is moved over the border of a counted folder is counted while others wait for the volume.
#[test]
fn a_directory_with_too_much_below_it_is_not_moved_over_a_border() {
    let lab = Lab::new();
    let me = user(1);
    ["x", "y", "y\\many"].iter().for_each(|d| drop(lab.make(d, &me, true).unwrap()));
    lab.write("y\\many\\f", &me, MB).unwrap();
    let (many, x, y) = (lab.find("y\\many"), lab.find("x"), lab.find("y"));
    let file = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
    (1..10_000).for_each(|i| drop(many.create_child(None, &i.to_string(), &file).unwrap()));
    lab.limit_folder("x", 8 * MB);
    many.rename(None, &*x, "moved", false).unwrap();
    assert_eq!(lab.below("x"), MB);
    many.create_child(None, "one more", &file).unwrap();
    assert_eq!(many.rename(None, &*y, "back", false), Err(StoreError::AcrossQuotas.into()));
    // Streams are as much work as names.
    let few = lab.make("y\\few", &me, true).unwrap();
    for i in 0..20 {
        let f = few.create_child(None, &i.to_string(), &file).unwrap();
        (0..500).for_each(|s| drop(f.create_stream(None, &s.to_string()).unwrap()));
    }
    assert_eq!(few.rename(None, &*x, "few", false), Err(StoreError::AcrossQuotas.into()));
    // Within a folder nothing is counted, and who gives a folder a limit waits as long as it takes.
    many.rename(None, &*x, "again", false).unwrap();
    lab.limit_folder("x\\again", 2 * MB);
    assert_eq!((lab.below("x"), lab.below("x\\again")), (MB, MB));
    lab.is_right();
}
