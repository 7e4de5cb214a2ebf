//! Byte-range locks, [MS-SMB2] 3.3.5.14.

use crate::client::*;

const NOW: u32 = lock_flags::FAIL_IMMEDIATELY;
const EXCLUSIVE: u32 = lock_flags::EXCLUSIVE | NOW;
const SHARED: u32 = lock_flags::SHARED | NOW;

/// `BVT_SMB2Basic_LockAndUnLock`
#[test]
fn bvt_smb2basic_lock_and_un_lock() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file"));
    one.write(f.id, 0, &[7; 1024]);
    one.call(&lock(f.id, 0, &[(0, 1024, lock_flags::SHARED)])).ok();
    let g = two.open(want("file"));
    assert_eq!(two.read(g.id, 0, 1024), [7; 1024]);
    assert_eq!(two.try_write(g.id, 0, b"x").unwrap_err(), NtStatus::FILE_LOCK_CONFLICT);
    one.call(&lock(f.id, 0, &[(0, 1024, lock_flags::UNLOCK)])).ok();
    two.write(g.id, 0, b"x");
}

#[test]
fn exclusive_locks_keep_others_out() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file"));
    one.write(f.id, 0, &[7; 100]);
    one.call(&lock(f.id, 0, &[(10, 10, EXCLUSIVE)])).ok();
    let g = two.open(want("file"));
    assert_eq!(two.try_read(g.id, 5, 10).unwrap_err(), NtStatus::FILE_LOCK_CONFLICT);
    assert_eq!(two.read(g.id, 0, 10).len(), 10);
    assert_eq!(two.status(&lock(g.id, 0, &[(19, 1, SHARED)])), NtStatus::LOCK_NOT_GRANTED);
    two.call(&lock(g.id, 0, &[(20, 1, EXCLUSIVE)])).ok();
    assert_eq!(two.status(&lock(g.id, 0, &[(10, 10, lock_flags::UNLOCK)])), NtStatus::RANGE_NOT_LOCKED);
    // Another open of the same client is another owner.
    let again = one.open(want("file"));
    assert_eq!(one.status(&lock(again.id, 0, &[(10, 1, SHARED)])), NtStatus::LOCK_NOT_GRANTED);
}

#[test]
fn a_lock_waits_for_the_one_before() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file"));
    one.call(&lock(f.id, 0, &[(0, 10, EXCLUSIVE)])).ok();
    let g = two.open(want("file"));
    let id = two.send(&lock(g.id, 0, &[(5, 10, lock_flags::EXCLUSIVE)]));
    two.interim(id);
    assert!(two.waits(id));
    one.call(&lock(f.id, 0, &[(0, 10, lock_flags::UNLOCK)])).ok();
    two.receive(id).ok();
    let id = one.send(&lock(f.id, 0, &[(5, 1, lock_flags::SHARED)]));
    let async_id = one.interim(id);
    one.cancel(async_id);
    assert_eq!(one.receive(id).status(), NtStatus::CANCELLED);
    let id = one.send(&lock(f.id, 0, &[(5, 1, lock_flags::SHARED)]));
    one.interim(id);
    one.close(f.id);
    assert_eq!(one.receive(id).status(), NtStatus::RANGE_NOT_LOCKED);
}

#[test]
fn several_ranges_are_all_taken_or_none() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file"));
    let g = two.open(want("file"));
    two.call(&lock(g.id, 0, &[(30, 10, EXCLUSIVE)])).ok();
    let all = [(10, 10, EXCLUSIVE), (20, 10, EXCLUSIVE), (30, 10, EXCLUSIVE)];
    assert_eq!(one.status(&lock(f.id, 0, &all)), NtStatus::LOCK_NOT_GRANTED);
    two.call(&lock(g.id, 0, &[(10, 20, EXCLUSIVE)])).ok();
}

#[test]
fn nonsense_is_refused() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    let refused = |c: &mut Client, locks: &[(u64, u64, u32)]| c.status(&lock(f.id, 0, locks));
    let invalid = NtStatus::INVALID_PARAMETER;
    assert_eq!(refused(&mut c, &[]), invalid);
    for flags in [0, 3, 5, 6, 7, 8, 0x20] {
        assert_eq!(refused(&mut c, &[(0, 1, flags)]), invalid, "flags {flags:#x}");
    }
    assert_eq!(refused(&mut c, &[(0, 1, EXCLUSIVE), (5, 1, lock_flags::UNLOCK)]), invalid);
    assert_eq!(refused(&mut c, &[(0, 1, lock_flags::SHARED), (5, 1, lock_flags::SHARED)]), invalid, "may not wait");
    assert_eq!(refused(&mut c, &[(u64::MAX, 2, EXCLUSIVE)]), NtStatus::INVALID_LOCK_RANGE);
    let nothing = FileId { persistent: 9, volatile: 9 };
    assert_eq!(c.status(&lock(nothing, 0, &[(0, 1, SHARED)])), NtStatus::FILE_CLOSED);
}

#[test]
fn lock_sequences_make_repeats_harmless() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb300, Dialect::Smb311] {
        let mut c = lab.client_with(dialect);
        let f = c.open(want("file"));
        let take = |number: u32, flags: u32| lock(f.id, 3 << 4 | number, &[(0, 10, flags)]);
        c.call(&take(1, EXCLUSIVE)).ok();
        c.call(&take(1, EXCLUSIVE)).ok();
        assert_eq!(c.status(&take(2, EXCLUSIVE)), NtStatus::LOCK_NOT_GRANTED);
        c.call(&take(3, lock_flags::UNLOCK)).ok();
        c.call(&take(3, lock_flags::UNLOCK)).ok();
        assert_eq!(c.status(&take(4, lock_flags::UNLOCK)), NtStatus::RANGE_NOT_LOCKED);
        // Buckets above 64 are not looked at.
        c.call(&lock(f.id, 65 << 4 | 1, &[(0, 10, EXCLUSIVE)])).ok();
        assert_eq!(c.status(&lock(f.id, 65 << 4 | 1, &[(0, 10, EXCLUSIVE)])), NtStatus::LOCK_NOT_GRANTED);
        c.close(f.id);
    }
}

#[test]
fn locks_end_with_their_open() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file"));
    one.call(&lock(f.id, 0, &[(0, 10, EXCLUSIVE)])).ok();
    let g = two.open(want("file"));
    let id = two.send(&lock(g.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)]));
    two.interim(id);
    one.disconnect();
    two.receive(id).ok();
}
