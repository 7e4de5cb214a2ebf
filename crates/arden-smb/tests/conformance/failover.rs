//! The vendor's cases of a failover (`TestSuites/FileServer/src/ServerFailover`), whose other node is here the same server
//! started again: what a client did before goes on after it. `block_create_from_different_client` and
//! `directory_leasing_over_a_failover` are in `absent_owner` and `persistent_directories`.

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
