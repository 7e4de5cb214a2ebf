//! AppInstanceId and AppInstanceVersion, [MS-SMB2] 3.3.5.9.13 and 3.3.5.9.16.

use crate::client::*;

const APP: u128 = 0xA99_0001;
const FORCED_CLOSED: NtStatus = NtStatus(0xC000_00B6);

fn of_app(app: u128) -> Want {
    want("file").share(0).app_instance(app)
}

fn fail_over(first: Want, second: Want, dialects: [Dialect; 2]) -> (Result<Created, NtStatus>, Result<u32, NtStatus>) {
    let lab = Lab::new();
    let mut one = lab.client_with(dialects[0]);
    let f = one.open(first);
    let mut two = lab.client_with(dialects[1]);
    let reopened = two.try_open(&second);
    (reopened, one.try_write(f.id, 0, b"x"))
}

fn over_3_1_1(first: Want, second: Want) -> (Result<Created, NtStatus>, Result<u32, NtStatus>) {
    fail_over(first, second, [Dialect::Smb311; 2])
}

/// `BVT_AppInstanceId`
#[test]
fn bvt_app_instance_id() {
    let (reopened, old) = over_3_1_1(of_app(APP).durable_v2(1, 0), of_app(APP).durable_v2(2, 0));
    assert!(reopened.is_ok());
    assert_eq!(old, Err(NtStatus::FILE_CLOSED));
}
/// `AppInstanceId_Negative_DifferentAppInstanceIdInReopen`
#[test]
fn app_instance_id_negative_different_app_instance_id_in_reopen() {
    let (reopened, old) = over_3_1_1(of_app(APP).durable_v2(1, 0), of_app(APP + 1).durable_v2(2, 0));
    assert_eq!(reopened.unwrap_err(), NtStatus::SHARING_VIOLATION);
    assert_eq!(old, Ok(1));
}
/// `AppInstanceId_Smb311`
#[test]
fn app_instance_id_smb311() {
    let (reopened, old) = over_3_1_1(of_app(APP), of_app(APP));
    assert!(reopened.is_ok());
    assert_eq!(old, Err(NtStatus::FILE_CLOSED));
}
/// `AppInstanceId_Smb302`
#[test]
fn app_instance_id_smb302() {
    let (reopened, old) = fail_over(of_app(APP), of_app(APP), [Dialect::Smb302; 2]);
    assert!(reopened.is_ok());
    assert_eq!(old, Err(NtStatus::FILE_CLOSED));
}

/// `AppInstanceId_Encryption`, `AppInstanceId_Negative_EncryptionInInitialOpen_NoEncryptionInReOpen`,
/// `AppInstanceId_Negative_NoEncryptionInInitialOpen_EncryptionInReOpen`
#[test]
fn app_instance_id_encryption() {
    for (first, second) in [(true, true), (true, false), (false, true)] {
        let lab = Lab::new();
        let (mut one, mut two) = (lab.client(), lab.client());
        one.connect(SEALED);
        two.connect(SEALED);
        one.encrypt = first;
        let f = one.try_open(&of_app(APP).durable_v2(1, 0));
        assert_eq!(f.as_ref().err(), (!first).then_some(&NtStatus::ACCESS_DENIED));
        if let Ok(f) = &f {
            one.write(f.id, 0, b"content");
        }
        two.encrypt = second;
        match two.try_open(&of_app(APP).durable_v2(2, 0)) {
            Ok(g) if first => assert_eq!(two.read(g.id, 0, 10), b"content"),
            Ok(_) => assert!(second),
            Err(status) => assert_eq!((second, status), (false, NtStatus::ACCESS_DENIED)),
        }
    }
}

/// `AppInstanceId_FileLeasing_NoLeaseInReOpen`, `AppInstanceId_DirectoryLeasing_NoLeaseInReOpen`
#[test]
fn app_instance_id_leasing_no_lease_in_re_open() {
    for directory in [false, true] {
        let lab = Lab::new();
        let kind = if directory { OPT_DIRECTORY_FILE } else { OPT_NON_DIRECTORY_FILE };
        let of = |guid| want("thing").options(kind).app_instance(APP).durable_v2(guid, 0);
        let (mut one, mut two, mut three) = (lab.client(), lab.client(), lab.client());
        one.open(of(1).lease(1, "RWH"));
        two.open(of(2).access(FILE_GENERIC_READ));
        three.open(want("thing").existing().options(kind).lease(3, "").access(FILE_GENERIC_WRITE));
        assert!(one.breaks().is_empty() && two.breaks().is_empty());
    }
}

/// `AppInstanceId_Lock_ExpectNoLockInReOpen`
#[test]
fn app_instance_id_lock_expect_no_lock_in_re_open() {
    let lab = Lab::new();
    let (mut one, mut two, mut three) = (lab.client(), lab.client(), lab.client());
    let f = one.open(of_app(APP).durable_v2_flags(1, 0, 2));
    one.write(f.id, 0, b"content");
    one.call(&lock(f.id, 0, &[(0, 1024, lock_flags::SHARED)])).ok();
    let g = two.open(of_app(APP).share(7).durable_v2_flags(2, 0, 2).access(FILE_GENERIC_READ));
    assert_eq!(two.read(g.id, 0, 10), b"content");
    let h = three.open(want("file"));
    three.write(h.id, 0, b"not locked");
}

/// `BVT_AppInstanceVersion_SMB311_GreaterVersion`
#[test]
fn bvt_app_instance_version_smb311_greater_version() {
    for (high, low) in [(2, 1), (1, 1), (2, 0)] {
        let (reopened, old) = over_3_1_1(of_app(APP).app_version(1, 0), of_app(APP).app_version(high, low));
        assert!(reopened.is_ok());
        assert_eq!(old, Err(NtStatus::FILE_CLOSED));
    }
}

fn version_refused(first: (u64, u64), second: Option<(u64, u64)>) {
    let again = match second {
        Some((high, low)) => of_app(APP).app_version(high, low),
        None => of_app(APP),
    };
    let (reopened, old) = over_3_1_1(of_app(APP).app_version(first.0, first.1), again);
    assert_eq!(reopened.unwrap_err(), FORCED_CLOSED);
    assert_eq!(old, Ok(1), "the open stays");
}

/// `BVT_AppInstanceVersion_SMB311_SameVersion`
#[test]
fn bvt_app_instance_version_smb311_same_version() {
    version_refused((2, 0), Some((2, 0)));
}
/// `BVT_AppInstanceVersion_SMB311_LowerAppInstanceVersionHigh`
#[test]
fn bvt_app_instance_version_smb311_lower_app_instance_version_high() {
    version_refused((2, 0), Some((1, 5)));
}
/// `BVT_AppInstanceVersion_SMB311_LowerAppInstanceVersionLow`
#[test]
fn bvt_app_instance_version_smb311_lower_app_instance_version_low() {
    version_refused((2, 2), Some((2, 1)));
}
/// `Negative_AppInstanceVersion_SMB311_NoVersion`
#[test]
fn negative_app_instance_version_smb311_no_version() {
    version_refused((1, 0), None);
}
/// `AppInstanceVersion_SMB311_SMB302`
#[test]
fn app_instance_version_smb311_smb302() {
    let dialects = [Dialect::Smb311, Dialect::Smb302];
    let (reopened, old) = fail_over(of_app(APP).app_version(1, 0), of_app(APP).app_version(2, 0), dialects);
    assert_eq!(reopened.unwrap_err(), FORCED_CLOSED);
    assert_eq!(old, Ok(1));
}
/// `AppInstanceVersion_SMB302_SMB311`
#[test]
fn app_instance_version_smb302_smb311() {
    let dialects = [Dialect::Smb302, Dialect::Smb311];
    let (reopened, old) = fail_over(of_app(APP).app_version(1, 0), of_app(APP).app_version(2, 0), dialects);
    assert!(reopened.is_ok());
    assert_eq!(old, Err(NtStatus::FILE_CLOSED));
}

/// [MS-SMB2] 3.3.5.9.13: beside a reconnect of the second kind the context is skipped, also where the reconnect fails.
#[test]
fn a_reconnect_takes_over_from_nobody() {
    let lab = Lab::new();
    let mut one = lab.client();
    let f = one.open(of_app(APP).durable_v2(1, 0));
    let mut two = lab.client();
    for id in [f.id, FileId { persistent: 7, volatile: 7 }] {
        let status = two.fails(of_app(APP).oplock(oplock::BATCH).reconnect_v2(id, 2));
        assert_eq!(status, NtStatus::OBJECT_NAME_NOT_FOUND);
    }
    assert_eq!(one.try_write(f.id, 0, b"x"), Ok(1));
}

/// Of the opens of an application, the one of the same name is taken over, and what is closed is found no more.
#[test]
fn an_application_fails_over_file_by_file() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let of = |name| want(name).share(0).app_instance(APP);
    let files: Vec<_> = ["first", "second", "third"].into_iter().map(|name| one.open(of(name))).collect();
    let others = one.open(want("fourth").share(0).app_instance(APP + 1));
    let mut again = two.open(of("Second"));
    let still_open: Vec<_> = files.iter().map(|f| one.try_write(f.id, 0, b"x").is_ok()).collect();
    assert_eq!(still_open, [true, false, true]);
    assert_eq!(one.try_write(others.id, 0, b"x"), Ok(1));
    two.close(again.id);
    again = two.open(of("Second"));
    if has_two_nodes() {
        return;
    }
    assert_eq!(lab.server.trees.opens_of_app_instance(APP).len(), 3);
    two.close(again.id);
    [&files[0], &files[2], &others].into_iter().for_each(|f| one.close(f.id));
    assert_eq!(lab.server.trees.opens_of_app_instance(APP).len(), 0);
    assert_eq!(lab.server.trees.opens_of_app_instance(APP + 1).len(), 0);
}
