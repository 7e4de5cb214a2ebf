//! Two roots in one volume, one below the other: what is moved through one is seen through the other.

use std::{sync::Arc, time::Instant};

use arden_auth::Token;
use arden_store::{
    commit::CommitScope,
    fs::*,
    name::NtPath,
    store::{FileStore, NewFile},
    table::OpenTable,
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, access::FILE_ALL_ACCESS};

struct Silent;

impl OpenOwner for Silent {
    fn oplock_break(&self, _scope: &CommitScope, _open: OpenId, _to: OplockLevel, _ack: bool) {}
    fn lease_break(&self, _scope: &CommitScope, _b: &LeaseBreak) {}
    fn resume(&self, _wait: WaitId) {}
}

fn path(p: &str) -> NtPath {
    NtPath::parse(p).unwrap()
}

fn open(fs: &Arc<Fs>, table: &OpenTable, p: &str) -> Arc<Open> {
    let scope = CommitScope::begin();
    let request = OpenRequest {
        id: table.reserve_open(),
        owner: &Owner::new(Arc::new(Silent)),
        path: &path(p),
        by_id: None,
        desired_access: FILE_ALL_ACCESS,
        share_access: 7,
        disposition: Disposition::OpenIf,
        options: 0,
        attributes: 0,
        allocation: None,
        security: None,
        eas: &[],
        cache: CacheRequest::None,
        client: ClientId(1),
        mark: None,
        who: &Arc::new(Token::system()),
        access_ceiling: FILE_ALL_ACCESS,
        durable: false,
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

fn rename(fs: &Arc<Fs>, open: &Arc<Open>, to: &str) {
    let how = NameChange { replace: true, ..NameChange::default() };
    assert!(
        matches!(fs.rename(open, &path(to), how, CommitScope::begin().at(Instant::now())), Ok(Step::Done(()))),
        "{to}"
    );
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
