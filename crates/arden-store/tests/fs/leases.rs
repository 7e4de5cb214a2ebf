//! Leases and oplocks between opens.

use std::{sync::Arc, time::Duration};

use arden_store::error::StoreError;
use arden_store::fs::{CacheGrant, ClientId, Disposition, OplockLevel, Step};

use crate::world::*;

#[test]
fn a_conflicting_open_waits_for_the_answer() {
    let w = World::new();
    let first = w.open(want("f").lease(1, "RWH"));
    let second = want("f").lease(2, "RWH");
    let wait = w.waits(&second);
    assert_eq!(w.told(), ["lease 1 RWH>RH!"]);
    assert_eq!(w.lease_of(&first), "RWH?");
    w.table.ack_lease_break(ClientId(1), 1, state("RH"), w.cause()).unwrap();
    assert_eq!(w.told(), [format!("resume {}", wait.0)]);
    let second = w.open(second);
    assert_eq!((w.lease_of(&first), w.lease_of(&second)), ("RH".into(), "RH".into()));
    assert_eq!(w.table.ack_lease_break(ClientId(1), 9, 0, w.cause()), Err(StoreError::NotFound));
    // A write takes the others' read caching, and nobody waits.
    w.write(&second, 0, b"x").unwrap();
    assert_eq!(w.told(), ["lease 1 RH>!"]);
    w.write(&second, 0, b"x").unwrap();
    assert!(w.told().is_empty());
    assert!(matches!(w.table.lease(ClientId(1), 1), Some(CacheGrant::Lease { breaking: true, .. })));
}

#[test]
fn closing_and_time_answer_too() {
    let w = World::new();
    let first = w.open(want("f").lease(1, "RWH"));
    let second = want("f").lease(2, "R");
    let wait = w.waits(&second);
    w.told();
    w.close(first);
    assert_eq!(w.told(), [format!("resume {}", wait.0)]);
    let second = w.open(second);
    assert_eq!(w.lease_of(&second), "R");
    w.close(second);
    assert_eq!(w.table.tick(w.now), None, "nobody uses the file any more");

    let first = w.open(want("f").oplock(OplockLevel::Batch));
    let other = want("f");
    let wait = w.waits(&other);
    assert_eq!(w.told(), [format!("oplock {} LevelII!", first.id().0)]);
    assert_eq!(w.table.tick(w.now), Some(w.now + Duration::from_secs(35)));
    assert_eq!(w.table.tick(w.now + Duration::from_secs(36)), None);
    assert_eq!(w.told(), [format!("resume {}", wait.0)]);
    assert_eq!(w.lease_of(&first), "None");
    w.open(other);
}

#[test]
fn a_cancelled_wait_is_not_resumed() {
    let w = World::new();
    let first = w.open(want("f").lease(1, "RWH"));
    let wait = w.waits(&want("f"));
    w.table.cancel_wait(wait);
    w.told();
    w.close(first);
    assert!(w.told().is_empty());
}

#[test]
fn a_sharing_violation_asks_the_handle_cache_first() {
    let w = World::new();
    let first = w.open(want("f").share(0).lease(1, "RWH"));
    let second = want("f").client(2);
    let wait = w.waits(&second);
    assert_eq!(w.told(), ["lease 1 RWH>RW!"]);
    w.table.ack_lease_break(ClientId(1), 1, state("RW"), w.cause()).unwrap();
    assert_eq!(w.told(), [format!("resume {}", wait.0)]);
    assert_eq!(w.fails(second.clone()), StoreError::SharingViolation);
    w.close(first);
    w.open(second);
    // The same client under the same key gets the violation at once.
    let w = World::new();
    let _first = w.open(want("f").share(0).lease(1, "RWH"));
    assert_eq!(w.fails(want("f").lease(1, "RWH")), StoreError::SharingViolation);
    assert!(w.told().is_empty());
}

#[test]
fn locks_break_readers() {
    let w = World::new();
    let first = w.open(want("f").lease(1, "R"));
    let second = w.open(want("f"));
    let range = arden_store::fs::LockRange { offset: 0, len: 1, exclusive: true };
    assert!(matches!(w.fs.lock(&second, &[range], true, w.cause()), Ok(Step::Done(()))));
    assert_eq!(w.told(), ["lease 1 R>"]);
    // With locks about, nothing is granted.
    let third = w.open(want("f").lease(3, "RH"));
    assert_eq!((w.lease_of(&first), w.lease_of(&third)), (String::new(), String::new()));
}

#[test]
fn directory_leases_end_when_children_change() {
    let w = World::new();
    let dir = w.open(want("d").directory().lease(1, "RWH"));
    assert_eq!(w.lease_of(&dir), "RH");
    // The client's own child, with the parent key, leaves it alone.
    let own = w.open(want("d\\own").lease(2, "RWH").parent_lease(1));
    assert!(w.told().is_empty());
    w.write(&own, 0, b"x").unwrap();
    assert!(w.told().is_empty());
    let other = w.open(want("d\\other").client(2));
    assert_eq!(w.told(), ["lease 1 RH>!"]);
    w.table.ack_lease_break(ClientId(1), 1, 0, w.cause()).unwrap();
    w.close(other);
    w.close(dir);
    let dir = w.open(want("d").directory().lease(1, "R"));
    w.unlink("d\\other").unwrap();
    assert_eq!(w.told(), ["lease 1 R>"]);
    assert_eq!(w.lease_of(&dir), "");
}

/// [MS-FSA] 2.1.5.15.2, BreakParentOplock: of each time that is given, the change time too, which no watch asks for.
#[test]
fn times_that_are_set_end_directory_leases() {
    type Times = arden_store::fs::BasicInformation;
    let time = 150_000_000_000_000_000;
    let given = [
        Times { change: time, ..Times::default() },
        Times { creation: time, ..Times::default() },
        Times { last_access: time, ..Times::default() },
        Times { last_write: time, ..Times::default() },
    ];
    let not_given = [0, -1, -2].map(|t| Times { change: t, last_access: t, last_write: t, ..Times::default() });
    for (info, breaks) in given.iter().map(|i| (i, true)).chain(not_given.iter().map(|i| (i, false))) {
        let w = World::new();
        w.close(w.open(want("d").directory()));
        let own = w.open(want("d\\f").lease(2, "RWH").parent_lease(1));
        let other = w.open(want("d\\g"));
        let _dir = w.open(want("d").directory().lease(1, "RH"));
        w.told();
        w.fs.set_basic(&own, info, w.cause()).unwrap();
        assert!(w.told().is_empty(), "the client's own child: {info:?}");
        w.fs.set_basic(&other, info, w.cause()).unwrap();
        assert_eq!(w.told(), if breaks { vec!["lease 1 RH>!"] } else { vec![] }, "{info:?}");
    }
}

#[test]
fn a_deletion_spares_the_directory_lease_only_of_who_asked_and_closed() {
    let how = arden_store::fs::Disposal { delete: true, ..Default::default() };
    for (last_asked, expect) in [(true, vec!["lease 1 RH>!"]), (false, vec!["lease 1 RH>!", "lease 2 RH>!"])] {
        let w = World::new();
        let _d1 = w.open(want("d").directory().lease(1, "RH"));
        let _d2 = w.open(want("d").directory().lease(2, "RH"));
        w.close(w.open(want("d\\f").lease(3, "R").parent_lease(1)));
        w.told();
        w.table.ack_lease_break(ClientId(1), 2, 0, w.cause()).unwrap();
        let _d2 = w.open(want("d").directory().lease(2, "RH"));
        let one = w.open(want("d\\f").lease(3, "R").parent_lease(1));
        let two = w.open(want("d\\f").lease(4, "R").parent_lease(2));
        let (asks, first, last) = if last_asked { (two.clone(), one, two) } else { (one.clone(), one, two) };
        assert!(matches!(w.fs.set_disposition(&asks, how, w.cause()), Ok(Step::Done(()))));
        w.close(first);
        assert!(w.told().is_empty());
        w.close(last);
        assert_eq!(w.told(), expect);
    }
}

#[test]
fn deleting_breaks_handles_first() {
    let w = World::new();
    let _holder = w.open(want("f").lease(1, "RH"));
    let other = w.open(want("f").client(2));
    let how = arden_store::fs::Disposal { delete: true, ..Default::default() };
    let Ok(Step::Wait(wait)) = w.fs.set_disposition(&other, how, w.cause()) else { panic!() };
    assert_eq!(w.told(), ["lease 1 RH>R!"]);
    w.table.ack_lease_break(ClientId(1), 1, state("R"), w.cause()).unwrap();
    assert_eq!(w.told(), [format!("resume {}", wait.0)]);
    assert!(matches!(w.fs.set_disposition(&other, how, w.cause()), Ok(Step::Done(()))));
    assert_eq!(w.fails(want("f").existing()), StoreError::DeletePending);
}

#[test]
fn many_threads_end_with_nothing_open() {
    let w = Arc::new(World::new());
    std::thread::scope(|s| {
        for t in 0..4u128 {
            let w = w.clone();
            s.spawn(move || {
                for i in 0..200u128 {
                    let name = format!("f{}", i % 5);
                    let request = want(&name).disposition(Disposition::OpenIf).client(t).lease(t * 1000 + i % 5, "R");
                    if let Ok(Step::Done(o)) = w.try_open(&request) {
                        let _ = w.write(&o.open, 0, b"x");
                        w.fs.close(&w.scope, &o.open);
                    }
                    if i % 7 == 0
                        && let Ok(Step::Done(o)) =
                            w.try_open(&want(&name).existing().access(DELETE).options(OPT_DELETE_ON_CLOSE))
                    {
                        w.fs.close(&w.scope, &o.open);
                    }
                }
            });
        }
    });
    assert_eq!(w.table.open_count(), 0);
    assert!(w.table.opens().is_empty());
    // Nothing is stuck in "to be deleted".
    for i in 0..5 {
        w.close(w.open(want(&format!("f{i}"))));
    }
}

#[test]
fn an_overwrite_through_a_stat_open_counts_as_a_stat_open_afterwards() {
    let w = World::new();
    w.close(w.open(want("f")));
    let stat = want("f").access(FILE_READ_ATTRIBUTES);
    let _first = w.open(stat.clone().disposition(Disposition::Overwrite).lease(1, "R"));
    let _reader = w.open(want("f").access(FILE_READ_DATA));
    let again = w.open(stat.existing().lease(1, "RW"));
    assert_eq!(w.lease_of(&again), "R");
}

#[test]
fn each_owner_is_told_of_its_own_opens() {
    // As two protocols that share one table.
    let first = World::new();
    let mut second = World::with(first.table.clone());
    second.fs = first.fs.clone();
    let held = first.open(want("f").oplock(OplockLevel::Batch));
    let leased = second.open(want("g").client(2).lease(7, "RWH"));
    // Who waits is told by its own owner, who holds by its own.
    let wait = second.waits(&want("f").client(2));
    assert_eq!(first.told(), [format!("oplock {} LevelII!", held.id().0)]);
    assert_eq!(second.told(), [""; 0]);
    first.fs.ack_oplock_break(&held, OplockLevel::LevelII, first.cause()).unwrap();
    assert_eq!((first.told(), second.told()), (vec![], vec![format!("resume {}", wait.0)]));
    let wait = first.waits(&want("g"));
    assert_eq!((first.told(), second.told()), (vec![], vec!["lease 7 RWH>RH!".to_owned()]));
    second.close(leased);
    assert_eq!((first.told(), second.told()), (vec![format!("resume {}", wait.0)], vec![]));
}

#[test]
fn an_id_is_the_opens_before_it_is_admitted() {
    let w = World::new();
    let id = w.table.reserve_open();
    assert_ne!(w.table.reserve_open(), id);
    assert_eq!(w.open_as(id, want("f")).id(), id);
}
