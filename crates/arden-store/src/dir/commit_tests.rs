//! What a failed sync says goes to the scopes whose changes it may have covered, in whatever order they change, sync and commit.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::OnceLock,
};

use parking_lot::Mutex;

use super::*;
use crate::{
    commit::CommitScope,
    dir::inode::{InodeTable, PinMode},
};

/// Files of a directory that is there no more.
fn files<const N: usize>() -> [Arc<Inode>; N] {
    let table = Arc::new(InodeTable::new());
    std::array::from_fn(|i| {
        let key = InodeKey { dev: 1, ino: i as u64 + 1 };
        let pin = std::fs::File::open("/").unwrap().into();
        table.enter(key, Kind::File, pin, PinMode::Path, None).0
    })
}

fn scopes<const N: usize>() -> [ScopeId; N] {
    std::array::from_fn(|_| CommitScope::begin().id())
}

/// Somebody waits for a change already, and then all that wait become one.
#[test]
fn a_sync_of_everything_keeps_the_place_of_what_it_stands_for() {
    let mut state = State::default();
    state.note_all(None);
    let waited_for = state.last;
    state.note_all(None);
    assert!(state.take(waited_for).is_some(), "whoever waits for the first would go without");
    assert!(state.take(state.last).is_none());
    state.note_all(None);
    assert_eq!(state.take(state.last).map(|t| t.upto), Some(state.last));
}

/// One thing that happens. A scope is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Begin(usize),
    End(usize),
    Commit(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Says {
    Well,
    Fails,
}

/// One file as a disk has it: a sync that fails loses what it found, and is told to whoever syncs, once.
#[derive(Default)]
struct Disk {
    /// Scopes whose finished changes are in memory alone.
    dirty: BTreeSet<usize>,
    durable: BTreeSet<usize>,
    /// Scopes whose changes a sync that failed may have found: made, or under way.
    in_doubt: BTreeSet<usize>,
    changing: BTreeSet<usize>,
}

struct World {
    log: Uncommitted,
    files: [Arc<Inode>; 2],
    scopes: [ScopeId; 2],
    /// Which file each scope changes.
    of: [usize; 2],
    disks: Mutex<[Disk; 2]>,
    /// What each sync says, and what happens while the first is under way.
    plan: Mutex<VecDeque<Says>>,
    during: Mutex<Vec<Step>>,
}

impl World {
    fn run(self: &Arc<Self>, step: Step) {
        match step {
            Step::Begin(s) => {
                self.log.state().note(&self.files[self.of[s]], Some(self.scopes[s]));
                self.disks.lock()[self.of[s]].changing.insert(s);
            }
            Step::End(s) => {
                let mut disks = self.disks.lock();
                let disk = &mut disks[self.of[s]];
                disk.changing.remove(&s);
                disk.dirty.insert(s);
                drop(disks);
                self.log.state().note(&self.files[self.of[s]], Some(self.scopes[s]));
            }
            Step::Commit(s) => {
                let due = self.log.has_uncommitted(self.scopes[s]);
                let told = if due { self.log.commit(self.scopes[s]) } else { Ok(()) };
                let disk = &self.disks.lock()[self.of[s]];
                let (durable, in_doubt) = (disk.durable.contains(&s), disk.in_doubt.contains(&s));
                assert_eq!(told.is_err(), in_doubt, "scope {s} is told {told:?}");
                assert!(durable || in_doubt, "scope {s} is told of success and its change is not durable");
                assert!(!self.log.state().is_lost(self.scopes[s]), "it is told once");
            }
        }
    }

    fn sync(self: &Arc<Self>, what: &Synced) -> Result<(), StoreError> {
        let Synced::File(inode) = what else { return Ok(()) };
        let file = inode.key.ino as usize - 1;
        let says = self.plan.lock().pop_front().unwrap_or(Says::Well);
        // A sync that goes well need not have found what changed meanwhile; one that fails may have.
        let found = self.disks.lock()[file].dirty.clone();
        for step in std::mem::take(&mut *self.during.lock()) {
            self.run(step);
        }
        let mut disks = self.disks.lock();
        let disk = &mut disks[file];
        match says {
            Says::Well => {
                disk.dirty.retain(|s| !found.contains(s));
                disk.durable.extend(found);
                Ok(())
            }
            Says::Fails => {
                let lost = std::mem::take(&mut disk.dirty);
                disk.in_doubt.extend(lost.into_iter().chain(disk.changing.iter().copied()));
                Err(StoreError::DeviceFailed)
            }
        }
    }
}

/// Every order of the steps of two scopes, where each scope's own are in order.
fn orders(left: &[Step], right: &[Step]) -> Vec<Vec<Step>> {
    let (Some(l), Some(r)) = (left.first(), right.first()) else { return vec![[left, right].concat()] };
    let with =
        |first: &Step, rest: Vec<Vec<Step>>| rest.into_iter().map(|o| [vec![*first], o].concat()).collect::<Vec<_>>();
    [with(l, orders(&left[1..], right)), with(r, orders(left, &right[1..]))].concat()
}

/// Two scopes that change `of` in this order, with the first `meanwhile` changes after the first commit made while that syncs.
fn play(of: [usize; 2], order: &[Step], plan: &[Says], meanwhile: usize) {
    let world: Arc<OnceLock<Arc<World>>> = Arc::default();
    let its = world.clone();
    let log = Uncommitted::with(Box::new(move |what| its.get().unwrap().sync(what)));
    let (disks, during) = Default::default();
    let (files, scopes, plan) = (files(), scopes(), Mutex::new(plan.iter().copied().collect()));
    let world = world.get_or_init(|| Arc::new(World { log, files, scopes, of, disks, plan, during })).clone();
    let first = order.iter().position(|step| matches!(step, Step::Commit(_))).unwrap();
    let rest = &order[first + 1..];
    let count = rest.iter().take(meanwhile).take_while(|step| !matches!(step, Step::Commit(_))).count();
    order[..first].iter().for_each(|step| world.run(*step));
    *world.during.lock() = rest[..count].to_vec();
    world.run(order[first]);
    rest[count..].iter().for_each(|step| world.run(*step));
    let state = world.log.state();
    assert!(state.is_idle() && state.scopes.is_empty() && state.unattended.is_none(), "something stays behind");
}

#[test]
fn a_failed_sync_is_told_to_the_scopes_that_it_covered_and_no_other() {
    let steps = |s| [Step::Begin(s), Step::End(s), Step::Commit(s)];
    let mut played = 0;
    for order in orders(&steps(0), &steps(1)) {
        for of in [[0, 0], [0, 1]] {
            for failing in 0..=3 {
                let plan: Vec<Says> = (0..3).map(|n| if n == failing { Says::Fails } else { Says::Well }).collect();
                for meanwhile in 0..=2 {
                    let run = || play(of, &order, &plan, meanwhile);
                    if let Err(e) = catch_unwind(AssertUnwindSafe(run)) {
                        println!("{order:?} of files {of:?}, {plan:?}, {meanwhile} meanwhile");
                        resume_unwind(e);
                    }
                    played += 1;
                }
            }
        }
    }
    assert_eq!(played, 20 * 2 * 4 * 3);
}

/// A log whose syncs say what is planned, and then that all is well.
fn log_that_says(plan: &[Says]) -> Uncommitted {
    let plan = Mutex::new(plan.iter().copied().collect::<VecDeque<_>>());
    Uncommitted::with(Box::new(move |_| match plan.lock().pop_front() {
        Some(Says::Fails) => Err(StoreError::DeviceFailed),
        _ => Ok(()),
    }))
}

#[test]
fn a_lost_change_of_a_scope_that_ended_is_told_to_whoever_commits_next() {
    let [file, _] = files();
    for ends_before in [true, false] {
        let log = log_that_says(&[Says::Fails]);
        let [ended, syncs, next, last] = scopes();
        log.state().note(&file, Some(ended));
        if ends_before {
            log.state().end(ended);
        }
        let last_change = log.state().last;
        log.commits.commit(last_change).unwrap();
        if !ends_before {
            log.state().end(ended);
        }
        assert!(log.has_uncommitted(syncs) && log.commit(syncs).is_err());
        assert!(!log.has_uncommitted(next) && log.commit(next).is_ok() && log.commit(last).is_ok());
        assert!(log.state().scopes.is_empty());
    }
}

#[test]
fn nobody_is_told_of_a_change_that_nobody_waits_for() {
    let [file, other] = files();
    let log = log_that_says(&[Says::Fails]);
    let [scope] = scopes();
    log.state().note(&file, None);
    log.state().note(&other, Some(scope));
    assert_eq!(log.commit(scope), Ok(()));
}

#[test]
fn one_sync_of_everything_that_fails_is_told_to_all_of_whom_it_was() {
    let [file, other] = files();
    let log = log_that_says(&[Says::Fails]);
    let [one, two, later] = scopes();
    log.state().note(&file, Some(one));
    log.state().note_all(Some(two));
    assert!(log.commit(one).is_err() && log.commit(two).is_err());
    log.state().note(&other, Some(later));
    assert_eq!(log.commit(later), Ok(()));
    assert!(log.state().scopes.is_empty());
}

#[test]
fn a_flush_of_a_client_that_fails_is_told_to_those_who_changed_the_file() {
    let [file, other] = files();
    let log = log_that_says(&[]);
    let [scope, unrelated] = scopes();
    log.state().note(&file, Some(scope));
    log.state().note(&other, Some(unrelated));
    log.state().lose(Some(file.key), StoreError::DeviceFailed);
    assert_eq!((log.commit(unrelated), log.commit(scope)), (Ok(()), Err(StoreError::DeviceFailed)));
}

#[test]
fn whoever_relies_on_a_name_is_told_what_became_of_it() {
    let [directory, other] = files();
    let log = log_that_says(&[Says::Fails]);
    let [makes, opens, elsewhere] = scopes();
    log.state().note(&directory, Some(makes));
    assert!(!log.state().rely_on(elsewhere, &[other.key]));
    assert!(log.state().rely_on(opens, &[other.key, directory.key]));
    assert!(log.commit(elsewhere).is_ok() && log.commit(opens).is_err() && log.commit(makes).is_err());
    assert!(!log.state().rely_on(opens, &[directory.key]), "it is synced");
}

#[test]
fn a_sync_that_panics_has_failed() {
    let log = Uncommitted::with(Box::new(|_| resume_unwind(Box::new("a sync"))));
    let [file, _] = files();
    let [scope, other] = scopes();
    log.state().note(&file, Some(scope));
    assert!(catch_unwind(AssertUnwindSafe(|| log.commit(other))).is_err());
    assert_eq!(log.commit(other), Ok(()));
    assert_eq!(log.commit(scope), Err(ChangedFiles::abandoned()));
}
