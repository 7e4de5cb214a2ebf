//! What may have to look at, or tell, all of many who cache a file or wait for it is not done on a thread that serves others.

use std::sync::Arc;

use arden_store::{
    error::{NotDone, StoreError},
    fs::*,
    scope::RequestScope,
    table::Open,
};

use crate::{freed::asked_twice, world::*};

const MANY: u128 = 600;
const FEW: u128 = 100;

/// Opens under as many leases, all of which are broken by a change of data, a rename or a deletion.
fn cached(w: &World, path: &str, leases: u128) -> Vec<Arc<Open>> {
    let opens = (0..leases).map(|n| w.open(want(path).lease(1000 + n, "RH")));
    let opens: Vec<_> = opens.collect();
    assert_eq!(w.lease_of(&opens[0]), "RH");
    opens
}

fn range(offset: u64, len: u64) -> [LockRange; 1] {
    [LockRange { offset, len, exclusive: true }]
}

fn done<T>(step: Result<Step<T>, NotDone>) -> Result<(), NotDone> {
    step.map(drop)
}

type Ask = fn(&World, &Arc<Open>) -> Result<(), NotDone>;

const CHANGES: [(&str, Ask); 8] = [
    ("a write", |w, f| w.write(f, 0, b"x")),
    ("another size", |w, f| w.fs.set_end_of_file(f, 10, w.cause())),
    ("another allocation", |w, f| w.fs.set_allocation(f, 10, w.cause())),
    ("zeros", |w, f| w.fs.zero_range(f, 0, 1, w.cause())),
    ("a lock", |w, f| done(w.fs.lock(f, &range(0, 1), true, w.cause()))),
    ("another name", |w, f| done(w.rename(f, "g", false))),
    ("a deletion", |w, f| done(w.fs.set_disposition(f, Disposal { delete: true, ..Disposal::default() }, w.cause()))),
    ("an open that overwrites", |w, _| match w.try_open(&want("f").disposition(Disposition::Overwrite)) {
        Ok(_) => Ok(()),
        Err(OpenError::NotDone(e)) => Err(e),
        Err(e) => panic!("{e:?}"),
    }),
];

#[test]
fn many_leases_are_not_broken_where_others_wait() {
    for (leases, many) in [(MANY, true), (FEW, false)] {
        for (what, ask) in CHANGES {
            let w = World::new();
            let f = w.open(want("f"));
            w.write(&f, 0, &[7; 100]).unwrap();
            let opens = cached(&w, "f", leases);
            let what = format!("{what}, {leases} leases");
            asked_twice(&what, many, || ask(&w, &f), || assert!(w.told().is_empty(), "{what}: somebody was told"));
            assert_eq!(w.told().len(), leases as usize, "{what}");
            assert_eq!(w.fs.closing_takes_long(&f), many, "{what}");
            drop(opens);
        }
    }
}

#[test]
fn a_break_of_one_of_many_is_not_answered_where_others_wait() {
    for (leases, many) in [(MANY, true), (FEW, false)] {
        let w = World::new();
        let opens = cached(&w, "f", leases);
        asked_twice("the opens of a lease", many, || w.table.lease_opens(ClientId(1), 1000), || {});
        drop(opens);
        let w = World::new();
        let opens: Vec<_> = (0..leases).map(|_| w.open(want("f").oplock(OplockLevel::LevelII))).collect();
        let answer = || match w.fs.ack_oplock_break(&opens[0], OplockLevel::None, w.cause()) {
            Err(NotDone::Failed(StoreError::InvalidBreakAck)) => Ok(()),
            other => other.map(drop),
        };
        asked_twice("an oplock's", many, answer, || {});
    }
}

/// Something is done with each of the opens of a lease whose break is answered.
#[test]
fn a_lease_of_many_opens_is_not_answered_where_others_wait() {
    for (count, many) in [(MANY, true), (FEW, false)] {
        let w = World::new();
        let opens: Vec<_> = (0..count).map(|_| w.open(want("f").lease(5, "RWH"))).collect();
        assert!(!w.fs.closing_takes_long(&opens[0]), "there is one lease");
        asked_twice("its opens", many, || w.table.lease_opens(ClientId(1), 5), || {});
        assert_eq!(w.table.lease_opens(ClientId(1), 5).unwrap().len(), count as usize);
    }
}

/// Each lock that goes lets all be tried that wait.
#[test]
fn many_waiting_locks_are_not_tried_where_others_wait() {
    for (waiting, many) in [(MANY as u64, true), (FEW as u64, false)] {
        let w = World::new();
        let (f, g) = (w.open(want("f")), w.open(want("f")));
        for offset in [0, 1] {
            w.fs.lock(&f, &range(offset, 1), true, w.cause()).unwrap();
        }
        for n in 0..waiting {
            let Ok(Step::Wait(_)) = w.fs.lock(&g, &range(0, 10 + n), false, w.cause()) else { panic!("it waits") };
        }
        let held = || w.table.opens().iter().map(|o| o.locks).sum::<usize>();
        let unlock = || w.fs.unlock(&f, &range(1, 1)).1;
        asked_twice("an unlock", many, unlock, || assert_eq!(held(), 2, "nothing is unlocked"));
        assert_eq!(held(), 1);
        assert_eq!(w.fs.closing_takes_long(&f), many);
        // None waits any more.
        w.close(g);
        assert!(!w.fs.closing_takes_long(&f));
    }
}

/// A change in a directory ends all leases on it.
#[test]
fn many_directory_leases_are_not_broken_where_others_wait() {
    for (leases, many) in [(MANY, true), (FEW, false)] {
        let w = World::new();
        w.close(w.open(want("d").directory()));
        let f = w.open(want("d\\f"));
        let g = w.open(want("g"));
        let lease = |n| w.open(want("d").directory().access(FILE_LIST_DIRECTORY).lease(1000 + n, "RH"));
        let opens: Vec<_> = (0..leases).map(lease).collect();
        assert_eq!(w.lease_of(&opens[0]), "RH");
        w.told();
        let is_new = |name: &str| !w.dir.join("d").join(name).exists();
        let create = || match w.try_open(&want("d\\new").disposition(Disposition::Create)) {
            Ok(_) => Ok(()),
            Err(OpenError::NotDone(e)) => Err(e),
            Err(e) => panic!("{e:?}"),
        };
        assert_eq!(w.fs.telling_takes_long(&**f.node()), many);
        assert!(!w.fs.telling_takes_long(&**g.node()), "another directory");
        asked_twice("a create", many, create, || assert!(is_new("new") && w.told().is_empty()));
        assert_eq!(w.told().len(), leases as usize, "{leases}");
        asked_twice("a move", many, || w.rename(&g, "d\\g", false).map(drop), || assert!(is_new("g")));
        let overwrite = want("d\\f").disposition(Disposition::Overwrite);
        asked_twice("an overwrite", many, || w.try_open(&overwrite).map(drop).map_err(|_| NotDone::WouldBlock), || {});
        drop(opens);
    }
}

/// What a request weighs beside its command is counted from the beginning of its message's scope.
#[test]
fn long_lists_weigh_more() {
    let w = World::new();
    let f = w.open(want("f"));
    for n in 0..64 {
        w.close(w.open(want(&format!("f:s{n}"))));
    }
    let _scope = RequestScope::begin_without_waiting();
    assert_eq!(RequestScope::weight(), 0);
    assert_eq!(w.fs.streams(&f).unwrap().len(), 65);
    assert_eq!(RequestScope::weight(), 4);
    w.fs.eas(&f).unwrap();
    assert_eq!(RequestScope::weight(), 4, "there are no EAs");
    let _next = RequestScope::begin();
    assert_eq!(RequestScope::weight(), 0);
}
