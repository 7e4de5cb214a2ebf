//! States of the past: SRV_ENUMERATE_SNAPSHOTS, the TWrp context, `@GMT` names, and what is refused in them. On volumes,
//! which keep some.

use std::sync::Arc;

use arden_smb::Share;
use arden_store::{
    fs::Fs,
    name::{gmt_token, parse_gmt_token},
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

use crate::client::*;

pub const VOLUME: &str = "volume";
pub const OTHER_VOLUME: &str = "volume2";

/// A lab with two shares more, each of a volume in memory; and a client of the first.
pub fn on_volumes() -> (Lab, [Arc<Volume>; 2], Client) {
    let lab = Lab::new();
    let mut shares: Vec<Share> =
        lab.server.trees.shares().iter().filter(|s| s.fs.is_some()).map(|s| (**s).clone()).collect();
    let volumes = [(VOLUME, 1u128), (OTHER_VOLUME, 2)].map(|(name, id)| {
        let device = MemDevice::new(16 << 20);
        Volume::format(&device, name, id << 64 | 5, FileTime(1)).unwrap();
        let options = VolumeOptions { background: false, ..VolumeOptions::default() };
        let volume = Volume::open(Arc::new(device), options).unwrap();
        let store = VolumeStore::new(volume.clone(), Durability::Plain);
        let fs = Fs::new(store, lab.server.trees.table.clone());
        shares.push(Share { hidden: false, ..share(name, &fs) });
        volume
    });
    lab.server.trees.set_shares(shares);
    let mut c = lab.client();
    c.connect(VOLUME);
    (lab, volumes, c)
}

fn at(token: &str) -> FileTime {
    parse_gmt_token(token).unwrap()
}

fn twrp(token: &str) -> Vec<u8> {
    at(token).0.to_le_bytes().to_vec()
}

const FIRST: &str = "@GMT-2024.02.29-12.00.00";
const SECOND_ONE: &str = "@GMT-2024.03.01-00.00.07";

/// `file` says "one" in the first snapshot, "two" in the second, "now" now; `late` came after the first.
fn history() -> (Lab, [Arc<Volume>; 2], Client) {
    let (lab, volumes, mut c) = on_volumes();
    c.make_directory("dir");
    c.put("dir\\file", b"one");
    volumes[0].create_snapshot(at(FIRST), "").unwrap();
    c.put("dir\\file", b"two");
    c.put("dir\\late", b"late");
    volumes[0].create_snapshot(at(SECOND_ONE), "").unwrap();
    c.put("dir\\file", b"now");
    (lab, volumes, c)
}

fn says(c: &mut Client, want: Want) -> Vec<u8> {
    let f = c.open(want.existing().access(FILE_READ_DATA | FILE_READ_ATTRIBUTES));
    let data = c.read(f.id, 0, 100);
    c.close(f.id);
    data
}

/// [MS-SMB2] 3.3.5.15.1: as many as there are of the file, newest first, and the names only where there is room.
#[test]
fn previous_versions_are_listed() {
    let (_lab, _volumes, mut c) = history();
    let f = c.open(want("dir\\file"));
    let out = c.fsctl(f.id, fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 16);
    assert_eq!((out.len(), le_u32(&out, 0), le_u32(&out, 4), le_u32(&out, 8)), (16, 2, 0, 102));
    let out = c.fsctl(f.id, fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 12 + 102);
    assert_eq!((out.len(), le_u32(&out, 0), le_u32(&out, 4), le_u32(&out, 8)), (114, 2, 2, 102));
    let mut names = Vec::new();
    names.put_utf16(&format!("{SECOND_ONE}\0{FIRST}\0\0"));
    assert_eq!(out[12..], names);
    let late = c.open(want("dir\\late"));
    let out = c.fsctl(late.id, fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 1000);
    assert_eq!((le_u32(&out, 0), le_u32(&out, 4)), (1, 1), "only one has this file");
    assert_eq!(c.try_fsctl(f.id, fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 15).unwrap_err(), NtStatus::INVALID_PARAMETER);
}

/// [MS-SMB2] 3.3.5.9.4, with the context and with the name in the path.
#[test]
fn the_past_is_opened_by_context_and_by_name() {
    let (lab, _volumes, mut c) = history();
    assert_eq!(says(&mut c, want("dir\\file")), b"now");
    assert_eq!(says(&mut c, want("dir\\file").context(tag::TIMEWARP, twrp(FIRST))), b"one");
    assert_eq!(says(&mut c, want("dir\\file").context(tag::TIMEWARP, twrp(SECOND_ONE))), b"two");
    for path in [format!("{FIRST}\\dir\\file"), format!("dir\\{FIRST}\\file"), format!("dir\\file\\{FIRST}")] {
        assert_eq!(says(&mut c, want(&path)), b"one", "{path}");
    }
    // Times are compared by the second; 0 means the present.
    let mut inexact = at(FIRST).0;
    inexact += 1234;
    assert_eq!(says(&mut c, want("dir\\file").context(tag::TIMEWARP, inexact.to_le_bytes().to_vec())), b"one");
    assert_eq!(says(&mut c, want("dir\\file").context(tag::TIMEWARP, vec![0; 8])), b"now");
    let never = twrp("@GMT-2024.02.29-12.00.01");
    assert_eq!(c.fails(want("dir\\file").existing().context(tag::TIMEWARP, never)), NtStatus::OBJECT_NAME_NOT_FOUND);
    assert_eq!(
        c.fails(want("dir\\late").existing().context(tag::TIMEWARP, twrp(FIRST))),
        NtStatus::OBJECT_NAME_NOT_FOUND
    );
    let dir = c.open(want(FIRST).directory().existing().access(FILE_LIST_DIRECTORY));
    assert_eq!(c.list(dir.id, "*"), ["dir"]);
    let dir = c.open(want(&format!("{FIRST}\\dir")).directory().existing().access(FILE_LIST_DIRECTORY));
    assert_eq!(c.list(dir.id, "*"), ["file"]);
    // A share without any has none at any time.
    let mut c = lab.client();
    c.put("plain", b"x");
    assert_eq!(c.fails(want("plain").existing().context(tag::TIMEWARP, twrp(FIRST))), NtStatus::OBJECT_NAME_NOT_FOUND);
}

/// [MS-FSA] 2.1.5.1 phase 2, 2.1.5.1.1, 2.1.5.1.2, 2.1.5.4, 2.1.5.15: a volume that is read-only.
#[test]
fn the_past_is_not_written() {
    let (_lab, _volumes, mut c) = history();
    let protected = NtStatus::MEDIA_WRITE_PROTECTED;
    let old = |name: &str| want(name).context(tag::TIMEWARP, twrp(FIRST));
    // CREATE and OPEN_IF are told apart by whether the file is there.
    for disposition in [0, 2, 4, 5] {
        assert_eq!(c.fails(old("dir\\file").disposition(disposition)), protected, "{disposition}");
    }
    assert_eq!(c.fails(old("dir\\new")), protected);
    assert_eq!(c.fails(old("dir\\new").existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
    assert_eq!(c.fails(old("dir\\file").existing().delete_on_close()), NtStatus::CANNOT_DELETE);
    // An open for writing is granted, the write is not.
    let f = c.open(old("dir\\file").existing());
    assert_eq!(c.try_write(f.id, 0, b"no").unwrap_err(), protected);
    assert_eq!(c.set(f.id, file_class::END_OF_FILE, &0u64.to_le_bytes()), protected);
    assert_eq!(c.set(f.id, file_class::BASIC, &basic(5, 0, 0, 0, 0)), protected);
    assert_eq!(c.rename(f.id, "dir\\renamed", false), protected);
    assert_eq!(c.delete(f.id), protected);
    assert_eq!(c.try_fsctl(f.id, fsctl::SET_SPARSE, &[], 0).unwrap_err(), protected);
    assert_eq!(c.try_fsctl(f.id, fsctl::SET_ZERO_DATA, &pair(0, 3), 0).unwrap_err(), protected);
    assert_eq!(c.read(f.id, 0, 10), b"one");
    c.close(f.id);
    // What one may at most does not count writing.
    let f = c.open(old("dir\\file").existing().access(MAXIMUM_ALLOWED));
    let granted = c.query(f.id, file_class::ACCESS);
    assert_eq!(le_u32(&granted, 0) & (FILE_WRITE_DATA | FILE_APPEND_DATA | FILE_READ_DATA), FILE_READ_DATA);
    let attributes = c.try_query_fs(f.id, fs_class::ATTRIBUTE, 100).unwrap();
    assert_ne!(le_u32(&attributes, 0) & arden_wire::fscc::FILE_READ_ONLY_VOLUME, 0);
    c.close(f.id);
    // The present is: neither who has the past open nor his share mode is in the way.
    let _held = c.open(old("dir\\file").existing().access(FILE_READ_DATA).share(0));
    c.put("dir\\file", b"newer");
    assert_eq!(says(&mut c, want("dir\\file")), b"newer");
}

/// A previous version is copied back by the server.
#[test]
fn the_past_is_copied_into_the_present() {
    let (_lab, _volumes, mut c) = history();
    let from = c.open(want("dir\\file").existing().access(FILE_READ_DATA).context(tag::TIMEWARP, twrp(SECOND_ONE)));
    let key = c.fsctl(from.id, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32);
    let to = c.open(want("dir\\file").existing());
    let done = c.fsctl(to.id, fsctl::SRV_COPYCHUNK, &copy_chunks(&key[..24], &[(0, 0, 3)]), 12);
    assert_eq!((le_u32(&done, 0), le_u32(&done, 8)), (1, 3));
    assert_eq!(c.read(to.id, 0, 10), b"two");
    let back = c.open(want("dir\\file").existing().context(tag::TIMEWARP, twrp(SECOND_ONE)));
    let key = c.fsctl(to.id, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32);
    let refused = c.try_fsctl(back.id, fsctl::SRV_COPYCHUNK, &copy_chunks(&key[..24], &[(0, 0, 3)]), 12).unwrap_err();
    assert_eq!(refused, NtStatus::MEDIA_WRITE_PROTECTED);
}

/// A snapshot that is deleted takes its opens' data with it, and is not listed any more.
#[test]
fn a_deleted_snapshot_is_gone() {
    let (_lab, volumes, mut c) = history();
    let f = c.open(want("dir\\file").existing().access(FILE_READ_DATA).context(tag::TIMEWARP, twrp(FIRST)));
    assert!(volumes[0].delete_snapshot(at(FIRST)).unwrap());
    assert_eq!(c.try_read(f.id, 0, 10).unwrap_err(), NtStatus::VOLUME_DISMOUNTED);
    c.close(f.id);
    assert_eq!(
        c.fails(want("dir\\file").existing().context(tag::TIMEWARP, twrp(FIRST))),
        NtStatus::OBJECT_NAME_NOT_FOUND
    );
    let f = c.open(want("dir\\file"));
    let out = c.fsctl(f.id, fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 1000);
    let mut name = Vec::new();
    name.put_utf16(&gmt_token(at(SECOND_ONE)));
    assert_eq!((le_u32(&out, 0), &out[12..12 + name.len()]), (1, &name[..]));
}
