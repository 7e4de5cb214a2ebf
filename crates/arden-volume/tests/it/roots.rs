//! Two roots in one volume, one below the other: what is moved through one is seen through the other.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use arden_auth::Token;
use arden_store::{
    commit::CommitScope,
    error::{NotDone, StoreError},
    fs::*,
    name::NtPath,
    store::{ChangeKind, FileStore, NewFile},
    table::OpenTable,
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{
    FileTime,
    access::{ATTR_HIDDEN, FILE_ALL_ACCESS, OPT_DIRECTORY_FILE},
};

/// The keys of the leases that broke.
#[derive(Default)]
struct Told(Mutex<Vec<u128>>);

impl OpenOwner for Told {
    fn oplock_break(&self, _scope: &CommitScope, _open: OpenId, _to: OplockLevel, _ack: bool) {}
    fn lease_break(&self, _scope: &CommitScope, b: &LeaseBreak) {
        self.0.lock().unwrap().push(b.key);
    }
    fn resume(&self, _wait: WaitId) {}
}

struct Unbounded;

impl HeldBytes for Unbounded {
    fn hold(&self, _bytes: usize) -> bool {
        true
    }
    fn release(&self, _bytes: usize) {}
}

fn path(p: &str) -> NtPath {
    NtPath::parse(p).unwrap()
}

fn open(fs: &Arc<Fs>, table: &OpenTable, p: &str) -> Arc<Open> {
    open_by(&Arc::new(Told::default()), fs, table, p, CacheRequest::None)
}

fn open_by(owner: &Arc<Told>, fs: &Arc<Fs>, table: &OpenTable, p: &str, cache: CacheRequest) -> Arc<Open> {
    let scope = CommitScope::begin();
    let (p, options) = p.strip_suffix('\\').map_or((p, 0), |p| (p, OPT_DIRECTORY_FILE));
    let request = OpenRequest {
        id: table.reserve_open(),
        owner: &Owner::new(owner.clone()),
        path: &path(p),
        by_id: None,
        desired_access: FILE_ALL_ACCESS,
        share_access: 7,
        disposition: Disposition::OpenIf,
        options,
        attributes: 0,
        allocation: None,
        security: None,
        eas: &[],
        cache,
        client: ClientId(1),
        mark: None,
        who: &Arc::new(Token::system()),
        access_ceiling: FILE_ALL_ACCESS,
        durable: false,
        keeps: None,
        cause: scope.at(Instant::now()),
    };
    match fs.open(&request) {
        Ok(Step::Done(opened)) => opened.open,
        other => panic!("{p}: {other:?}"),
    }
}

/// The whole volume, and its directory `inner`.
fn roots() -> (Arc<Fs>, Arc<Fs>, Arc<OpenTable>) {
    let device = Arc::new(MemDevice::new(16 << 20));
    Volume::format(&*device, "roots", 77, FileTime(1)).unwrap();
    let volume = Volume::open(device, VolumeOptions { background: false, ..VolumeOptions::default() }).unwrap();
    let whole = VolumeStore::new(volume.clone(), Durability::Plain);
    let new = NewFile { directory: true, attributes: 0, security: None, eas: &[], allocation: None };
    whole.root().create_child(None, "inner", &new).unwrap();
    let inner = VolumeStore::of_directory(volume, &path("inner"), Durability::Plain).unwrap();
    let table = OpenTable::new(TableLimits::default());
    (Fs::new(whole, table.clone()), Fs::new(inner, table.clone()), table)
}

fn try_rename(fs: &Arc<Fs>, open: &Arc<Open>, to: &str) -> Result<Step<()>, StoreError> {
    let how = NameChange { replace: true, ..NameChange::default() };
    fs.rename(open, &path(to), how, CommitScope::begin().at(Instant::now())).map_err(|e| match e {
        NotDone::Failed(e) => e,
        NotDone::WouldBlock => panic!("{to}: nothing to wait for"),
    })
}

fn rename(fs: &Arc<Fs>, open: &Arc<Open>, to: &str) {
    assert!(matches!(try_rename(fs, open, to), Ok(Step::Done(()))), "{to}");
}

fn hide(fs: &Arc<Fs>, open: &Arc<Open>) {
    let hidden = BasicInformation { attributes: ATTR_HIDDEN, ..BasicInformation::default() };
    fs.set_basic(open, &hidden, CommitScope::begin().at(Instant::now())).unwrap();
}

fn close(fs: &Arc<Fs>, open: &Arc<Open>) {
    fs.close(&CommitScope::begin(), open);
}

#[test]
fn a_file_that_was_moved_out_of_a_root_is_not_in_it_any_more() {
    let (outer, inner, table) = roots();
    let (a, b) = (open(&outer, &table, "inner\\f"), open(&inner, &table, "f"));
    rename(&outer, &a, "f");
    // The name is the same, the directory is not.
    rename(&inner, &b, "f");
    assert_eq!(outer.path(&a), "inner\\f");
}

/// [MS-FSA] 2.1.5.15.12.1 and 2.1.5.1.2: what becomes of a file's streams does not depend on where the file stands.
#[test]
fn streams_of_a_file_that_was_moved_out_of_a_root_are_in_reach_of_its_opens() {
    let (outer, inner, table) = roots();
    let (a, b) = (open(&outer, &table, "inner\\f"), open(&inner, &table, "f:s"));
    rename(&outer, &a, "f");
    let to = NtPath { stream: Some("t".into()), ..NtPath::default() };
    assert!(matches!(
        inner.rename(&b, &to, NameChange::default(), CommitScope::begin().at(Instant::now())),
        Ok(Step::Done(()))
    ));
    let names: Vec<String> = outer.streams(&a).unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["", "t"]);
}

/// [MS-FSA] 2.1.5.15.12 refuses the rename of a directory below which something is open, wherever the directory stands.
#[test]
fn a_directory_that_was_moved_out_of_a_root_does_not_leave_its_opens_behind() {
    let (outer, inner, table) = roots();
    let (moved, d, f) =
        (open(&outer, &table, "inner\\d\\"), open(&inner, &table, "d\\"), open(&inner, &table, "d\\e\\"));
    let other = open(&outer, &table, "inner\\other\\");
    // Whichever root it was opened through.
    assert_eq!(try_rename(&outer, &moved, "out").unwrap_err(), StoreError::OpensBelow);
    close(&inner, &f);
    rename(&outer, &moved, "out");
    let f = open(&outer, &table, "out\\e\\");
    assert_eq!(try_rename(&inner, &d, "back").unwrap_err(), StoreError::OpensBelow);
    // One that stands beside it is in nobody's way, though both are out of reach.
    let beside = open(&inner, &table, "other\\");
    rename(&outer, &other, "other");
    rename(&inner, &beside, "other");
    close(&outer, &f);
    rename(&inner, &d, "back");
    assert_eq!(outer.path(&moved), "inner\\back");
}

/// A root that was moved into a directory of its own: that directory cannot go below the root again.
#[test]
fn a_directory_above_the_root_does_not_move_below_it() {
    let (outer, inner, table) = roots();
    let (moved, d) = (open(&outer, &table, "inner\\d\\"), open(&inner, &table, "d\\"));
    rename(&outer, &moved, "d");
    close(&outer, &moved);
    let root = open(&outer, &table, "inner\\");
    rename(&outer, &root, "d\\inner");
    assert_eq!(try_rename(&inner, &d, "loop").unwrap_err(), StoreError::InvalidParameter);
}

/// What a watch of everything below hears until there is no more.
fn heard(open: &Arc<Open>) -> Vec<(ChangeKind, String)> {
    let mut all = Vec::new();
    while let Step::Done(changes) = open.fs().notify(open, 0xfff, true, 4096, || Arc::new(Unbounded)).unwrap() {
        all.extend(changes.into_iter().map(|c| (c.kind, c.name)));
    }
    all
}

fn change(kind: ChangeKind, name: &str) -> (ChangeKind, String) {
    (kind, name.to_owned())
}

/// A watch is a directory's, wherever that is, and hears of what is done through any root.
#[test]
fn a_watch_stays_with_its_directory() {
    let (outer, inner, table) = roots();
    let (top, all) = (open(&inner, &table, ""), open(&outer, &table, ""));
    let (moved, d) = (open(&outer, &table, "inner\\d\\"), open(&inner, &table, "d\\"));
    for watched in [&top, &all, &d] {
        assert_eq!(heard(watched), []);
    }
    rename(&outer, &moved, "out");
    assert_eq!(heard(&top), [change(ChangeKind::Removed, "d")]);
    assert_eq!(heard(&all), [change(ChangeKind::Removed, "inner\\d"), change(ChangeKind::Added, "out")]);
    // What has the directory's name now is another one, and what it was has its watch still.
    close(&inner, &open(&inner, &table, "d\\"));
    close(&inner, &open(&inner, &table, "d\\new"));
    close(&outer, &open(&outer, &table, "out\\x"));
    assert_eq!(heard(&d), [change(ChangeKind::Added, "x")]);
}

#[test]
fn who_watches_a_root_hears_nothing_of_what_was_moved_out_of_it() {
    let (outer, inner, table) = roots();
    let root = open(&inner, &table, "");
    let (a, b, c) = (open(&outer, &table, "inner\\f"), open(&inner, &table, "f"), open(&inner, &table, "g"));
    assert_eq!(heard(&root), []);
    rename(&outer, &a, "secret");
    assert_eq!(heard(&root), [change(ChangeKind::Removed, "f")]);
    hide(&inner, &b);
    assert_eq!(heard(&root), []);
    hide(&inner, &c);
    assert_eq!(heard(&root), [change(ChangeKind::Modified, "g")]);
}

/// [MS-FSA] 2.1.4.12: who has the listing cached hears of a change in it, through whichever root it came.
#[test]
fn a_lease_on_the_directory_ends_with_a_change_by_an_open_from_before_the_move() {
    let (outer, inner, table) = roots();
    let (a, b) = (open(&outer, &table, "inner\\f"), open(&inner, &table, "f"));
    close(&outer, &open(&outer, &table, "there\\"));
    rename(&outer, &a, "there\\f");
    let owner = Arc::new(Told::default());
    let lease =
        LeaseRequest { key: 7, state: lease_state::READ | lease_state::HANDLE, parent_key: None, epoch: 0, version: 2 };
    let _listed = open_by(&owner, &outer, &table, "there\\", CacheRequest::Lease(lease));
    hide(&inner, &b);
    assert_eq!(*owner.0.lock().unwrap(), [7]);
}

/// [MS-FSA] 2.1.4.2: whichever root the open below the directory came by.
#[test]
fn a_directory_stays_while_something_in_it_is_open_through_another_root() {
    let (outer, inner, table) = roots();
    let d = open(&outer, &table, "inner\\d\\");
    close(&outer, &open(&outer, &table, "inner\\d\\f"));
    let above = open(&outer, &table, "inner\\");
    let f = open(&inner, &table, "d\\f");
    assert_eq!(try_rename(&outer, &d, "moved").err(), Some(StoreError::OpensBelow));
    assert_eq!(try_rename(&outer, &above, "moved").err(), Some(StoreError::OpensBelow));
    close(&inner, &f);
    let f = open(&outer, &table, "inner\\d\\f");
    let by_inner = open(&inner, &table, "d\\");
    assert_eq!(try_rename(&inner, &by_inner, "moved").err(), Some(StoreError::OpensBelow));
    close(&outer, &f);
    rename(&inner, &by_inner, "moved");
}
