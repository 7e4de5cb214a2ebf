//! Several threads on one volume, in every order that some hundred seeds give: races that there were, and what the scheduler
//! tells of threads that wait for each other.

use std::{collections::BTreeSet, sync::Arc};

use arden_lock::{Condvar, Mutex, Rank, RwLock};
use arden_sim::{run_together_seed, turns};
use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NewFile, NodeRef, Wait},
};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

const ORDERS: u64 = 200;

fn volume() -> (Arc<Volume>, Arc<VolumeStore>) {
    let device = Arc::new(MemDevice::new(16 << 20));
    Volume::format(&*device, "test", 0x77, FileTime(1)).unwrap();
    let options = VolumeOptions { background: false, ..VolumeOptions::default() };
    let vol = Volume::open(device, options).unwrap();
    let store = VolumeStore::new(vol.clone(), Durability::Plain);
    (vol, store)
}

fn create(store: &VolumeStore, name: &str) -> NodeRef {
    let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
    store.root().create_child(None, name, &new).unwrap()
}

fn read(store: &dyn FileStore, name: &str) -> Vec<u8> {
    let Lookup::Found(node) = store.lookup(&NtPath::parse(name).unwrap()).unwrap() else { panic!("no {name}") };
    let mut out = vec![0; node.stat().unwrap().end_of_file as usize];
    assert_eq!(node.read_at(0, &mut out, Wait::Yes).unwrap(), out.len());
    out
}

fn in_every_order(threads: impl Fn() -> Vec<(&'static str, Box<dyn FnOnce() + Send>)>) {
    for seed in 0..ORDERS {
        turns::run(seed, threads()).unwrap_or_else(|e| panic!("order {seed}: {e}"));
    }
}

#[test]
fn a_file_that_two_rename_is_not_gone_for_either() {
    in_every_order(|| {
        let (_, store) = volume();
        let node = create(&store, "a");
        let renames = |name: &'static str| -> Box<dyn FnOnce() + Send> {
            let (node, store) = (node.clone(), store.clone());
            Box::new(move || node.rename(None, &*store.root(), name, true).unwrap())
        };
        vec![("one", renames("b")), ("other", renames("c"))]
    });
}

#[test]
fn a_stream_that_two_rename_is_not_gone_for_either() {
    in_every_order(|| {
        let (_, store) = volume();
        let stream = create(&store, "a").create_stream(None, "s").unwrap();
        let renames = |name: &'static str| -> Box<dyn FnOnce() + Send> {
            let stream = stream.clone();
            Box::new(move || stream.rename_stream(None, Some(name), true).unwrap())
        };
        vec![("one", renames("t")), ("other", renames("u"))]
    });
}

#[test]
fn a_snapshot_keeps_what_files_let_go_of_while_it_is_made() {
    in_every_order(|| {
        let (vol, store) = volume();
        let node = create(&store, "a");
        node.write_at(None, 0, &[1; 200_000], Wait::Yes).unwrap();
        let (maker, looker) = (vol.clone(), store.clone());
        let makes = move || {
            let made = maker.create_snapshot(FileTime(1 << 50), "").unwrap();
            let past = looker.snapshot(made.time).unwrap();
            let seen = read(&*past, "a");
            assert!(seen.iter().all(|b| *b == seen[0]));
            let report = maker.check(true).unwrap();
            assert!(report.is_clean(), "{:?}", report.errors);
        };
        let writes = move || {
            for i in 2..5 {
                node.write_at(None, 0, &[i; 200_000], Wait::Yes).unwrap();
                vol.sync().unwrap();
            }
        };
        vec![("makes", Box::new(makes)), ("writes", Box::new(writes))]
    });
}

#[test]
fn a_file_that_is_taken_away_at_once_is_there_for_whoever_made_it() {
    in_every_order(|| {
        let (_, store) = volume();
        let other = store.clone();
        let makes = move || {
            let node = create(&store, "a");
            assert_eq!(node.stat().unwrap().end_of_file, 0);
            node.write_at(None, 0, &[1; 600], Wait::Yes).unwrap();
        };
        let takes_away = move || {
            if let Lookup::Found(node) = other.lookup(&NtPath::parse("a").unwrap()).unwrap() {
                node.unlink(None).unwrap();
                drop(node);
            }
            // What has no name and no user goes before the next change.
            create(&other, "b");
        };
        vec![("makes", Box::new(makes)), ("takes away", Box::new(takes_away))]
    });
}

#[test]
fn the_last_user_of_a_file_without_a_name_goes_while_the_volume_is_mended() {
    in_every_order(|| {
        let (vol, store) = volume();
        let node = create(&store, "a");
        let mends = move || drop(vol.repair(false).unwrap());
        let goes = move || {
            node.unlink(None).unwrap();
            drop(node);
        };
        vec![("mends", Box::new(mends)), ("goes", Box::new(goes))]
    });
}

struct First;
impl Rank for First {
    const LEVEL: u16 = 1;
    const NAME: &'static str = "first";
}

/// Locks whose order is right by their ranks alone: what stands for one file after the other.
#[test]
fn threads_that_wait_for_each_other_are_told_with_their_locks() {
    let mut told = BTreeSet::new();
    for seed in 0..ORDERS {
        let files: Arc<[RwLock<(), First>; 2]> = Arc::default();
        let takes = |[one, other]: [usize; 2]| -> Box<dyn FnOnce() + Send> {
            let files = files.clone();
            Box::new(move || {
                let _one = files[one].write_next();
                let _other = files[other].write_next();
            })
        };
        told.extend(turns::run(seed, vec![("one", takes([0, 1])), ("other", takes([1, 0]))]).err());
    }
    assert!(!told.is_empty());
    assert!(told.iter().all(|t| t.contains("deadlock") && t.contains("waits for first (Write), held by")), "{told:?}");
}

#[test]
fn who_waits_for_a_notification_that_nobody_sends_is_told() {
    let gate: Arc<(Mutex<(), First>, Condvar)> = Arc::default();
    let waits = move || {
        let mut guard = gate.0.lock();
        gate.1.wait(&mut guard);
    };
    let told = turns::run(1, vec![("waits", Box::new(waits))]).unwrap_err();
    assert!(told.contains("waits waits to be notified under first"), "{told}");
}

#[test]
fn the_seed_decides_who_comes_first_and_nothing_else_does() {
    let winner = |seed| {
        let first: Arc<Mutex<Vec<u8>, First>> = Arc::default();
        let enters = |i: u8| -> Box<dyn FnOnce() + Send> {
            let first = first.clone();
            Box::new(move || first.lock().push(i))
        };
        turns::run(seed, vec![("0", enters(0)), ("1", enters(1)), ("2", enters(2))]).unwrap();
        Arc::into_inner(first).expect("all have ended").get_mut().clone()
    };
    let all: BTreeSet<Vec<u8>> = (0..ORDERS).map(winner).collect();
    assert_eq!(all.len(), 6, "each order of three comes of some seed");
    assert!((0..20).all(|seed| winner(seed) == winner(seed)));
}

#[test]
fn a_seed_does_the_same_every_time() {
    let run = |seed| format!("{:?}", run_together_seed(seed, None, false).unwrap_or_else(|f| panic!("{}", f.what)));
    (500..520).for_each(|seed| assert_eq!(run(seed), run(seed), "seed {seed}"));
}
