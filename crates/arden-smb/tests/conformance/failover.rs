//! The vendor's cases of a failover (`TestSuites/FileServer/src/ServerFailover`), whose other node is here the same server
//! started again: what a client did before goes on after it. `block_create_from_different_client` and
//! `directory_leasing_over_a_failover` are in `absent_owner` and `persistent_directories`.

use arden_smb::Share;
use arden_store::{
    dir::{DirOptions, DirStore},
    fs::Fs,
    handles::HandleStore,
};

use crate::client::*;

const GUID: u128 = 0x9E5_4001;

fn plain() -> Want {
    want("file").options(OPT_NON_DIRECTORY_FILE)
}

fn connect(lab: &Lab, guid: u128, share: &str, encrypt: bool) -> Client {
    let mut c = lab.client_again(guid, Dialect::Smb311);
    c.connect(share);
    c.encrypt = encrypt;
    c
}

/// The connection is lost, or the server.
fn fail_over(lab: &mut Lab, c: &mut Client, crash: bool) {
    c.disconnect();
    if crash {
        lab.crash();
    }
}

fn reads_back(share: &str, encrypt: bool) {
    for crash in [false, true] {
        let mut lab = Lab::new();
        let mut c = connect(&lab, 0xFA11, share, encrypt);
        let f = c.open(plain().persistent(GUID, 3_600_000));
        assert_eq!(f.durable_v2(), Some(300_000), "as long as the server lets it");
        c.write(f.id, 0, b"before the failover");
        fail_over(&mut lab, &mut c, crash);
        let mut c = connect(&lab, 0xFA11, share, encrypt);
        let back = c.open(plain().reconnect_persistent(FileId { volatile: 0, ..f.id }, GUID));
        assert_eq!(c.read(back.id, 0, 100), b"before the failover");
        c.write(back.id, 0, b"after ");
        c.close(back.id);
    }
}

/// `FileServerFailover_FileServer`
#[test]
fn file_server_failover() {
    reads_back(CA, false);
}

/// `FileServerFailover_Encryption`
#[test]
fn failover_with_encryption() {
    reads_back(CA_SEALED, true);
}

/// `FileServerFailover_Negative_EncryptionBeforeFailover_NoEncryptionAfterFailover`
#[test]
fn failover_with_encryption_before_and_none_after() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        let mut c = connect(&lab, 0xFA11, CA_SEALED, true);
        let f = c.open(plain().persistent(GUID, 0));
        fail_over(&mut lab, &mut c, crash);
        let mut c = connect(&lab, 0xFA11, CA_SEALED, false);
        assert_eq!(c.fails(plain().reconnect_persistent(f.id, GUID)), NtStatus::ACCESS_DENIED);
        assert_eq!(c.status(&Req::empty(Command::TreeDisconnect)), NtStatus::ACCESS_DENIED);
        c.encrypt = true;
        c.open(plain().reconnect_persistent(f.id, GUID));
    }
}

/// `FileServerFailover_Negative_NoEncryptionBeforeFailover_EncryptionAfterFailover`
#[test]
fn failover_without_encryption_before() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        let mut c = connect(&lab, 0xFA11, CA_SEALED, false);
        assert_eq!(c.fails(plain().persistent(GUID, 0)), NtStatus::ACCESS_DENIED);
        fail_over(&mut lab, &mut c, crash);
        let mut c = connect(&lab, 0xFA11, CA_SEALED, true);
        let unknown = FileId { persistent: 1, volatile: 0 };
        assert_eq!(c.fails(plain().reconnect_persistent(unknown, GUID)), NtStatus::OBJECT_NAME_NOT_FOUND);
    }
}

/// `FileServerFailover_FileLeasing`
#[test]
fn file_leasing_over_a_failover() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        lab.ca_client().put("file", b"x");
        let how = || plain().access(FILE_READ_DATA | FILE_READ_ATTRIBUTES).share(FILE_SHARE_READ).lease(1, "RH");
        let mut c = lab.ca_client();
        let f = c.open(how().persistent(GUID, 0));
        fail_over(&mut lab, &mut c, crash);
        let mut c = lab.ca_again(c.guid);
        assert_eq!(c.open(how().reconnect_persistent(f.id, GUID)).lease(), "RH");
        let mut other = lab.ca_client();
        let waiting = other.starts(plain().access(FILE_WRITE_DATA).share(0).lease(2, ""));
        assert_eq!(c.lease_break(), ("RH".into(), "R".into(), true));
        c.call(&lease_ack(1, "R")).ok();
        assert_eq!(other.receive(waiting).status(), NtStatus::SHARING_VIOLATION);
    }
}

/// `FileServerFailover_Lock`
#[test]
fn lock_over_a_failover() {
    for crash in [false, true] {
        let mut lab = Lab::new();
        let mut c = lab.ca_client();
        let f = c.open(plain().persistent(GUID, 0));
        c.write(f.id, 0, &[7; 1024]);
        c.call(&lock(f.id, 0, &[(0, 1024, lock_flags::SHARED)])).ok();
        fail_over(&mut lab, &mut c, crash);
        let mut c = lab.ca_again(c.guid);
        let back = c.open(plain().reconnect_persistent(f.id, GUID));
        assert_eq!(c.read(back.id, 0, 2000), [7; 1024]);
        assert_eq!(c.try_write(back.id, 0, b"x"), Err(NtStatus::FILE_LOCK_CONFLICT));
        let mut other = lab.ca_client();
        let g = other.open(plain());
        assert_eq!(other.try_write(g.id, 0, b"x"), Err(NtStatus::FILE_LOCK_CONFLICT));
        assert_eq!(other.read(g.id, 0, 1), [7]);
        c.call(&lock(back.id, 0, &[(0, 1024, lock_flags::UNLOCK)])).ok();
        other.write(g.id, 0, b"x");
    }
}

/// The ids of a node's opens are its own, whichever it takes over: else two nodes give the same one.
#[test]
fn ids_of_another_node_are_taken_over_and_not_gone_on_with() {
    let mut lab = Lab::with(|s| s.node = Some(9));
    let mut c = lab.ca_client();
    let f = c.open(plain().persistent(GUID, 0));
    assert_eq!(f.id.persistent >> 52, 9);
    for node in [3, 11, 9] {
        fail_over(&mut lab, &mut c, false);
        lab.fail_over(node);
        c = lab.ca_again(c.guid);
        assert_eq!(c.open(plain().reconnect_persistent(f.id, GUID)).id, f.id);
        let mut other = lab.ca_client();
        let ids = [other.open(plain()).id.persistent, c.open(want("other")).id.persistent];
        assert!(ids.iter().all(|id| id >> 52 == u64::from(node) && *id != f.id.persistent), "{ids:x?}");
    }
}

/// Nodes of before gave ids in each other's ranges: what was kept under an id that another open has is taken up all the same.
#[test]
fn a_handle_whose_id_another_open_has_is_taken_up_by_a_new_one() {
    let (lab, mut before) = (Lab::new(), Lab::new());
    let take = |id| lock(id, 1 << 4 | 1, &[(0, 4, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)]);
    let mut c = before.ca_client();
    let f = c.open(plain().lease(1, "RWH").persistent(GUID, 0));
    c.write(f.id, 0, b"kept");
    c.call(&take(f.id)).ok();
    c.disconnect();
    let mut other = lab.client();
    let taken = other.open(want("taken"));
    assert_eq!(taken.id, f.id);
    // The pool of the handle comes here.
    let shares = || lab.server.trees.shares().into_iter().filter(|s| s.fs.is_some() && s.name != CA);
    let store = DirStore::open(&before.dir.join("a"), DirOptions::default()).unwrap();
    let fs = Fs::with_handles(store, lab.server.trees.table.clone(), Some(before.handles.clone()));
    let moved = Share { continuously_available: true, ..share(CA, &fs) };
    lab.server.trees.set_shares(shares().map(|s| Share::clone(&s)).collect());
    lab.server.trees.set_shares(shares().map(|s| Share::clone(&s)).chain([moved]).collect());
    assert_eq!(lab.server.trees.persistent_opens(), 1, "its file is protected");
    let mut c = lab.ca_again(c.guid);
    let again = c.open(plain().lease(1, "RWH").reconnect_persistent(f.id, GUID));
    assert_ne!(again.id, f.id);
    assert_eq!(c.read(again.id, 0, 10), b"kept");
    other.write(taken.id, 0, b"not disturbed");
    c.disconnect();
    // By its new id it is kept, with its locks.
    before.fail_over(5);
    let mut c = before.ca_again(c.guid);
    let f = c.open(plain().lease(1, "RWH").reconnect_persistent(again.id, GUID));
    assert_eq!(f.id, again.id);
    c.call(&take(f.id)).ok();
    let conflict = lock(f.id, 0, &[(2, 1, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)]);
    assert_eq!(c.status(&conflict), NtStatus::LOCK_NOT_GRANTED);
    c.close(f.id);
    assert!(before.handles_are_committed() && before.handles.load().unwrap().is_empty());
    lab.server.stop(std::time::Instant::now());
}
