//! The suite that every implementation of a state store passes, a check that it finds planted bugs, and two daemons on
//! one store.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use arden_admin::{
    ErrorKind, State,
    error::Result,
    model::{NewUser, UserChange},
    state::{
        CHANGE_TRIES_MAX, Change, Commit, Contents, MemoryStore, RedbStore, Revision, StateDirectory, StateStore, Table,
    },
};
use arden_testkit::state::{Open, failures};
use tokio::sync::watch;

const NONE: [&str; 0] = [];

/// A directory that is removed at the end of the test.
struct Temp(PathBuf);

impl Temp {
    fn new() -> Temp {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Temp(std::env::temp_dir().join(format!("arden-store-suite-{}-{number}", std::process::id())))
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_passes_the_suite() {
    let make = || -> Open {
        let temp = Temp::new();
        Box::new(move || {
            let directory = StateDirectory::open(&temp.0).unwrap();
            Arc::new(RedbStore::open(&Arc::new(directory)).unwrap())
        })
    };
    assert_eq!(failures(&make), NONE);
}

#[test]
fn memory_passes_the_suite() {
    let make = || -> Open {
        let store = Arc::new(MemoryStore::default());
        Box::new(move || store.clone())
    };
    assert_eq!(failures(&make), NONE);
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    /// The expected revision is not compared.
    NoCompare,
    /// A refused change is made.
    RefusedAndMade,
    /// The last of several changes is left out.
    LastChangeLost,
    RemovalsLost,
    /// Pools and disks share one table.
    TablesMixed,
    /// Each change is a transaction of its own.
    InParts,
    RevisionStays,
    NothingTold,
    /// A refused change is notified.
    RefusedAndTold,
    /// Reads return the records of the transaction before.
    ReadsThePast,
    /// The records are lost when the store is opened again.
    Forgets,
    /// The revision is compared before the commit, without a lock over both.
    CompareThenCommit,
    /// Keys end at a NUL.
    KeysEndAtNul,
}

const BUGS: &[Bug] = &[
    Bug::NoCompare,
    Bug::RefusedAndMade,
    Bug::LastChangeLost,
    Bug::RemovalsLost,
    Bug::TablesMixed,
    Bug::InParts,
    Bug::RevisionStays,
    Bug::NothingTold,
    Bug::RefusedAndTold,
    Bug::ReadsThePast,
    Bug::Forgets,
    Bug::CompareThenCommit,
    Bug::KeysEndAtNul,
];

/// A store with one bug.
#[derive(Debug)]
struct Faulty {
    bug: Bug,
    inner: MemoryStore,
    past: Mutex<Contents>,
    told: watch::Sender<Revision>,
}

impl Faulty {
    fn new(bug: Bug) -> Faulty {
        let told = watch::Sender::new(Revision(0));
        Faulty { bug, inner: MemoryStore::default(), past: Mutex::default(), told }
    }

    fn make(&self, changes: &[Change]) -> Result<Commit> {
        let now = self.inner.read()?.revision;
        self.inner.commit(now, changes)
    }
}

impl StateStore for Faulty {
    fn read(&self) -> Result<Contents> {
        let mut contents = self.inner.read()?;
        match self.bug {
            Bug::ReadsThePast => return Ok(std::mem::replace(&mut *self.past.lock().unwrap(), contents)),
            Bug::RevisionStays => contents.revision = Revision(7),
            _ => {}
        }
        Ok(contents)
    }

    fn newest(&self) -> Result<Revision> {
        self.inner.newest()
    }

    fn commit(&self, expected: Revision, changes: &[Change]) -> Result<Commit> {
        let mut changes = changes.to_vec();
        match self.bug {
            Bug::LastChangeLost if changes.len() > 1 => drop(changes.pop()),
            Bug::RemovalsLost => changes.retain(|c| c.value.is_some()),
            Bug::TablesMixed => {
                changes.iter_mut().filter(|c| c.table == Table::Pools).for_each(|c| c.table = Table::Disks);
            }
            Bug::KeysEndAtNul => changes.iter_mut().for_each(|c| c.key = c.key.split('\0').next().unwrap().to_string()),
            _ => {}
        }
        let now = self.inner.read()?.revision;
        match self.bug {
            Bug::NoCompare => self.make(&changes),
            Bug::RevisionStays => self.make(&changes).map(|_| Commit::Done(Revision(7))),
            Bug::RefusedAndMade if now != expected => self.make(&changes).map(|_| Commit::Outdated),
            Bug::RefusedAndTold if now != expected => {
                self.told.send_replace(now);
                Ok(Commit::Outdated)
            }
            Bug::CompareThenCommit if now == expected => {
                thread::yield_now();
                thread::sleep(std::time::Duration::from_micros(50));
                loop {
                    if let Commit::Done(made) = self.make(&changes)? {
                        return Ok(Commit::Done(made));
                    }
                }
            }
            Bug::InParts if now == expected => {
                let mut made = Commit::Outdated;
                for change in changes {
                    made = self.make(&[change])?;
                    thread::sleep(std::time::Duration::from_micros(50));
                }
                Ok(made)
            }
            _ => self.inner.commit(expected, &changes),
        }
    }

    fn watch(&self) -> watch::Receiver<Revision> {
        match self.bug {
            Bug::NothingTold | Bug::RefusedAndTold => self.told.subscribe(),
            _ => self.inner.watch(),
        }
    }
}

#[test]
fn the_suite_finds_every_planted_bug() {
    let mut found = Vec::new();
    for bug in BUGS {
        let make = || -> Open {
            let store = Arc::new(Faulty::new(*bug));
            Box::new(move || if *bug == Bug::Forgets { Arc::new(Faulty::new(*bug)) } else { store.clone() })
        };
        found.push((*bug, failures(&make)));
    }
    println!("{found:#?}");
    for (bug, by) in found {
        assert!(!by.is_empty(), "{bug:?} passes the suite");
    }
}

fn user(name: &str) -> NewUser {
    NewUser { name: name.into(), password: "pw".into(), full_name: String::new(), groups: vec![], disabled: false }
}

/// Two daemons on one store.
fn two() -> (Arc<MemoryStore>, State, State) {
    let store = Arc::new(MemoryStore::default());
    (store.clone(), State::on(store.clone()).unwrap(), State::on(store).unwrap())
}

#[test]
fn two_daemons_are_one_server() {
    let (_, a, b) = two();
    assert_eq!(a.snapshot(), b.snapshot(), "the identity is made once");
    let mut told = b.watch();
    told.borrow_and_update();
    a.change(|s| s.add_user(&user("alice"))).unwrap();
    assert!(told.has_changed().unwrap());
    assert!(b.snapshot().user("alice").is_err(), "readers never wait for the store");
    let read = b.refreshed().unwrap();
    assert!(b.snapshot().user("alice").is_ok());
    assert_eq!(b.refreshed().unwrap(), read, "nothing new");
}

/// On an old snapshot a change may seem to be made already, or not to be possible.
#[test]
fn nothing_is_refused_or_passed_over_by_what_was_so_before() {
    let disable = |disabled| UserChange { disabled: Some(disabled), ..UserChange::default() };
    let (_, a, b) = two();
    a.change(|s| s.add_user(&user("alice"))).unwrap();
    b.refreshed().unwrap();
    b.change(|s| s.change_user("alice", &disable(true))).unwrap();
    a.change(|s| s.change_user("alice", &disable(false))).unwrap();
    b.refreshed().unwrap();
    assert!(!b.snapshot().user("alice").unwrap().disabled, "who asked last has what he asked for");
    b.change(|s| s.remove_user("alice")).unwrap();
    a.change(|s| s.add_user(&user("alice"))).expect("she was removed");
    let taken = b.change(|s| s.add_user(&user("alice"))).map(drop);
    assert_eq!(taken.unwrap_err().kind, ErrorKind::Exists);
}

#[test]
fn a_change_on_an_old_snapshot_is_made_on_the_new_one() {
    let (_, a, b) = two();
    let first = a.change(|s| s.add_user(&user("alice"))).unwrap();
    let mut runs = 0;
    let second = b.change(|s| {
        runs += 1;
        s.add_user(&user("bob"))
    });
    assert_eq!(runs, 2);
    assert_ne!(first.sid, second.unwrap().sid, "a RID is given once");
    assert!(b.snapshot().user("alice").is_ok(), "it has read alice with its own change");
    let taken = a.change(|s| s.add_user(&user("BOB"))).map(drop);
    assert_eq!(taken.unwrap_err().kind, ErrorKind::Exists);
    assert_eq!(a.snapshot(), b.snapshot());
}

/// Whoever applies what others change sees it also where a change of this daemon has read it.
#[test]
fn what_came_with_an_own_change_has_another_revision() {
    let (_, a, b) = two();
    let applied = b.refreshed().unwrap();
    a.change(|s| s.add_user(&user("alice"))).unwrap();
    b.change(|s| s.add_user(&user("bob"))).unwrap();
    let with_both = b.refreshed().unwrap();
    assert_ne!(with_both, applied);
    assert_eq!(b.refreshed().unwrap(), with_both);
    assert!(b.snapshot().user("alice").is_ok());
}

#[test]
fn accounts_made_at_the_same_time_are_all_there() {
    const EACH: usize = 50;
    let (_, a, b) = two();
    thread::scope(|s| {
        for (name, state) in [("a", &a), ("b", &b)] {
            s.spawn(move || {
                (0..EACH).for_each(|n| drop(state.change(|s| s.add_user(&user(&format!("{name}{n}")))).unwrap()))
            });
        }
    });
    a.refreshed().unwrap();
    let snapshot = a.snapshot();
    let rids: std::collections::BTreeSet<u32> = snapshot.users.values().map(|u| u.rid).collect();
    assert_eq!((snapshot.users.len(), rids.len()), (2 * EACH, 2 * EACH));
}

/// A store in which another daemon's transaction always comes first.
#[derive(Debug, Default)]
struct Busy {
    inner: MemoryStore,
    tries: AtomicU32,
}

impl StateStore for Busy {
    fn read(&self) -> Result<Contents> {
        self.inner.read()
    }
    fn newest(&self) -> Result<Revision> {
        self.inner.newest()
    }
    fn commit(&self, expected: Revision, changes: &[Change]) -> Result<Commit> {
        if expected == Revision(0) {
            return self.inner.commit(expected, changes);
        }
        self.tries.fetch_add(1, Ordering::Relaxed);
        let other = Change { table: Table::Disks, key: "/dev/other".into(), value: Some(b"{}".to_vec()) };
        let _ = self.inner.commit(expected, &[other])?;
        Ok(Commit::Outdated)
    }
    fn watch(&self) -> watch::Receiver<Revision> {
        self.inner.watch()
    }
}

#[test]
fn a_change_is_given_up_when_others_are_always_faster() {
    let store = Arc::new(Busy::default());
    let state = State::on(store.clone()).unwrap();
    let error = state.change(|s| s.add_user(&user("alice"))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert_eq!(store.tries.load(Ordering::Relaxed), CHANGE_TRIES_MAX);
    assert!(state.snapshot().user("alice").is_err());
}
