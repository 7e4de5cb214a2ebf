//! Byte-range locks through opens.

use arden_store::error::StoreError;
use arden_store::fs::{LockRange, Step};

use crate::world::*;

fn range(offset: u64, len: u64, exclusive: bool) -> LockRange {
    LockRange { offset, len, exclusive }
}

#[test]
fn locks_forbid_io_of_others() {
    let w = World::new();
    let (a, b) = (w.open(want("f")), w.open(want("f")));
    w.write(&a, 0, &[1; 100]).unwrap();
    assert!(matches!(w.fs.lock(&a, &[range(10, 10, true)], true, w.cause()), Ok(Step::Done(()))));
    assert_eq!(w.read(&b, 0, 11), Err(StoreError::LockConflict.into()));
    assert_eq!(w.write(&b, 19, &[0]), Err(StoreError::LockConflict.into()));
    assert_eq!(w.read(&b, 0, 10).unwrap().len(), 10);
    w.write(&a, 10, &[2]).unwrap();
    w.fs.unlock(&a, &[range(10, 10, true)]).1.unwrap();
    assert_eq!(w.fs.unlock(&a, &[range(10, 10, true)]).1, Err(StoreError::NotLocked.into()));
    // A shared lock keeps everybody from writing, its owner too.
    assert!(w.fs.lock(&a, &[range(0, 5, false)], true, w.cause()).is_ok());
    assert_eq!(w.write(&a, 0, &[3]), Err(StoreError::LockConflict.into()));
    assert_eq!(w.read(&b, 0, 5).unwrap().len(), 5);
    w.close(a);
    w.write(&b, 0, &[3]).unwrap();
}

#[test]
fn several_ranges_are_all_or_none() {
    let w = World::new();
    let (a, b) = (w.open(want("f")), w.open(want("f")));
    w.fs.lock(&b, &[range(20, 5, true)], true, w.cause()).unwrap();
    let two = [range(0, 5, true), range(22, 1, false)];
    assert_eq!(w.fs.lock(&a, &two, true, w.cause()).unwrap_err(), StoreError::LockNotGranted);
    w.fs.lock(&b, &[range(0, 5, true)], true, w.cause()).unwrap();
    assert_eq!(w.fs.lock(&a, &two, false, w.cause()).unwrap_err(), StoreError::InvalidParameter);
    let wrap = [range(u64::MAX, 2, true)];
    assert_eq!(w.fs.lock(&a, &wrap, true, w.cause()).unwrap_err(), StoreError::InvalidLockRange);
    // Unlocking stops where it fails.
    let result = w.fs.unlock(&b, &[range(0, 5, true), range(1, 1, true), range(20, 5, true)]);
    assert_eq!(result, (1, Err(StoreError::NotLocked.into())));
    assert_eq!(w.table.opens().iter().map(|o| o.locks).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn waiting_locks_come_when_the_way_is_free() {
    let w = World::new();
    let (a, b, c) = (w.open(want("f")), w.open(want("f")), w.open(want("f")));
    let r = [range(0, 10, true)];
    w.fs.lock(&a, &r, true, w.cause()).unwrap();
    let Ok(Step::Wait(first)) = w.fs.lock(&b, &r, false, w.cause()) else { panic!() };
    let Ok(Step::Wait(second)) = w.fs.lock(&c, &r, false, w.cause()) else { panic!() };
    w.fs.unlock(&a, &r).1.unwrap();
    assert_eq!(w.told(), [format!("resume {}", first.0)]);
    assert!(matches!(w.fs.lock(&b, &r, false, w.cause()), Ok(Step::Done(()))));
    w.close(b);
    assert_eq!(w.told(), [format!("resume {}", second.0)]);
    // Cancelled between the grant and the call made again: the lock is given back.
    w.table.cancel_wait(second);
    w.fs.lock(&a, &r, true, w.cause()).unwrap();
    let Ok(Step::Wait(third)) = w.fs.lock(&c, &r, false, w.cause()) else { panic!() };
    w.close(c.clone());
    assert_eq!(w.told(), [format!("resume {}", third.0)]);
    assert_eq!(w.fs.lock(&c, &r, false, w.cause()).unwrap_err(), StoreError::NotLocked);
}
