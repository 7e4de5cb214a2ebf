//! The properties of a [`StateStore`], for every implementation. Each check works on a store of its own that is empty, and
//! panics when the property does not hold.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use arden_admin::state::{Change, Commit, Contents, Records, Revision, StateStore, Table};

/// Opens one store again and again: what was committed before is there. At most one is open at a time, but for
/// implementations that several daemons share.
pub type Open = Box<dyn Fn() -> Arc<dyn StateStore>>;

/// The checks by name.
pub const CHECKS: &[(&str, fn(&Open))] = &[
    ("empty", a_new_store_is_empty),
    ("changes", changes_are_made),
    ("tables", tables_have_keys_of_their_own),
    ("bytes", keys_and_values_are_any),
    ("compare", who_knows_an_older_revision_changes_nothing),
    ("reopen", what_was_committed_survives),
    ("watch", every_commit_is_told),
    ("model", many_transactions_are_those_of_a_map),
    ("atomic", readers_see_whole_transactions),
    ("concurrent", one_of_two_at_the_same_time_is_outdated),
];

/// The checks that fail on stores that `make` makes, each on a new one.
pub fn failures(make: &dyn Fn() -> Open) -> Vec<&'static str> {
    let fails = |check: &fn(&Open)| catch_unwind(AssertUnwindSafe(|| check(&make()))).is_err();
    CHECKS.iter().filter(|(_, check)| fails(check)).map(|(name, _)| *name).collect()
}

fn put(table: Table, key: &str, value: &str) -> Change {
    Change { table, key: key.into(), value: Some(value.as_bytes().to_vec()) }
}

fn remove(table: Table, key: &str) -> Change {
    Change { table, key: key.into(), value: None }
}

fn value(contents: &Contents, table: Table, key: &str) -> Option<String> {
    let bytes = contents.records.get(&(table, key.to_string()))?;
    Some(String::from_utf8(bytes.clone()).unwrap())
}

/// Commits at the newest revision, which nobody else moves.
fn commit(store: &dyn StateStore, changes: &[Change]) -> Revision {
    let before = store.read().unwrap().revision;
    match store.commit(before, changes).unwrap() {
        Commit::Done(revision) => revision,
        Commit::Outdated => panic!("{before:?} is the newest revision, and was called outdated"),
    }
}

fn a_new_store_is_empty(open: &Open) {
    let contents = open().read().unwrap();
    assert!(contents.records.is_empty());
}

fn changes_are_made(open: &Open) {
    let store = open();
    let first = commit(&*store, &[put(Table::Users, "a", "1"), put(Table::Users, "b", "2")]);
    let second = commit(
        &*store,
        &[
            remove(Table::Users, "a"),
            put(Table::Users, "b", "3"),
            put(Table::Users, "c", "4"),
            remove(Table::Users, "d"),
        ],
    );
    let contents = store.read().unwrap();
    assert!(second > first, "revisions grow");
    assert_eq!(contents.revision, second);
    assert_eq!(store.newest().unwrap(), second);
    let all: Vec<_> = contents.records.keys().map(|(_, key)| key.as_str()).collect();
    assert_eq!(all, ["b", "c"]);
    assert_eq!(value(&contents, Table::Users, "b").as_deref(), Some("3"));
}

fn tables_have_keys_of_their_own(open: &Open) {
    let store = open();
    let all = Table::ALL.map(|table| put(table, "same", table.name()));
    commit(&*store, &all);
    commit(&*store, &[remove(Table::Groups, "same")]);
    let contents = store.read().unwrap();
    for table in Table::ALL {
        let expected = (table != Table::Groups).then(|| table.name().to_string());
        assert_eq!(value(&contents, table, "same"), expected);
    }
}

fn keys_and_values_are_any(open: &Open) {
    let store = open();
    let keys = ["", "a/b", "/dev/sdb", "users/", "ß und 漢字", "a\0b", " ", &"k".repeat(1000)];
    let long = "v".repeat(256 << 10);
    let changes: Vec<Change> = keys.iter().map(|k| put(Table::Disks, k, &long)).collect();
    commit(&*store, &changes);
    commit(&*store, &[put(Table::Disks, "a/b", "")]);
    let contents = store.read().unwrap();
    assert_eq!(contents.records.len(), keys.len());
    for key in keys {
        let expected = if key == "a/b" { "" } else { long.as_str() };
        assert!(value(&contents, Table::Disks, key).as_deref() == Some(expected), "{key:?}");
    }
}

fn who_knows_an_older_revision_changes_nothing(open: &Open) {
    let store = open();
    let old = store.read().unwrap().revision;
    let now = commit(&*store, &[put(Table::Shares, "s", "1")]);
    let changes = [put(Table::Shares, "s", "2"), put(Table::Shares, "t", "2")];
    for wrong in [old, Revision(now.0 + 1), Revision(u64::MAX - 1)] {
        assert_eq!(store.commit(wrong, &changes).unwrap(), Commit::Outdated, "{wrong:?}");
        let contents = store.read().unwrap();
        assert_eq!((contents.revision, contents.records.len()), (now, 1));
        assert_eq!(value(&contents, Table::Shares, "s").as_deref(), Some("1"));
    }
    assert!(matches!(store.commit(now, &changes).unwrap(), Commit::Done(r) if r > now));
}

fn what_was_committed_survives(open: &Open) {
    let store = open();
    commit(&*store, &[put(Table::Meta, "schema", "1"), put(Table::Pools, "tank", "{}")]);
    let before = store.read().unwrap();
    drop(store);
    let store = open();
    assert_eq!(store.read().unwrap(), before);
    assert_eq!(*store.watch().borrow(), before.revision, "the newest revision is told from the start");
    assert!(matches!(store.commit(before.revision, &[remove(Table::Pools, "tank")]).unwrap(), Commit::Done(_)));
    assert_eq!(store.read().unwrap().records.len(), 1);
}

fn every_commit_is_told(open: &Open) {
    let store = open();
    let mut told = store.watch();
    let old = *told.borrow_and_update();
    for n in 0..3 {
        let made = commit(&*store, &[put(Table::Volumes, "v", &n.to_string())]);
        assert!(told.has_changed().unwrap(), "commit {n} is told");
        assert_eq!(*told.borrow_and_update(), made);
    }
    assert_eq!(store.commit(old, &[put(Table::Volumes, "v", "x")]).unwrap(), Commit::Outdated);
    assert!(!told.has_changed().unwrap(), "what changed nothing is not told");
    assert_eq!(*store.watch().borrow(), store.read().unwrap().revision);
}

/// Numbers that look random: xorshift64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn many_transactions_are_those_of_a_map(open: &Open) {
    const TRANSACTIONS: u64 = 300;
    const REOPEN_EVERY: u64 = 30;
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut store, mut model) = (open(), Records::new());
    for n in 0..TRANSACTIONS {
        let mut changes = BTreeMap::new();
        for _ in 0..=numbers.below(4) {
            let table = Table::ALL[numbers.below(Table::ALL.len() as u64) as usize];
            let key = format!("k{}", numbers.below(5));
            let value = (numbers.below(3) > 0).then(|| n.to_string().into_bytes());
            changes.insert((table, key.clone()), Change { table, key, value });
        }
        let changes: Vec<Change> = changes.into_values().collect();
        let before = store.read().unwrap().revision;
        // Some believe in a revision that has passed.
        let late = numbers.below(5) == 0 && before > Revision(0);
        let expected = if late { Revision(before.0 - 1) } else { before };
        match store.commit(expected, &changes).unwrap() {
            Commit::Outdated => assert!(late, "transaction {n}"),
            Commit::Done(made) => {
                assert!(!late && made > before, "transaction {n}");
                for Change { table, key, value } in changes {
                    match value {
                        Some(bytes) => drop(model.insert((table, key), bytes)),
                        None => drop(model.remove(&(table, key))),
                    }
                }
            }
        }
        if n % REOPEN_EVERY == 0 {
            drop(store);
            store = open();
        }
        assert_eq!(store.read().unwrap().records, model, "after transaction {n}");
    }
}

/// Ends a thread that looks at it, also when what goes on beside fails.
struct EndsWhenDropped<'a>(&'a AtomicBool);

impl Drop for EndsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn readers_see_whole_transactions(open: &Open) {
    const TRANSACTIONS: u32 = 100;
    let (store, ended) = (open(), AtomicBool::new(false));
    thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut newest = Revision(0);
            while !ended.load(Ordering::Acquire) {
                let contents = store.read().unwrap();
                assert!(contents.revision >= newest, "revisions do not go back");
                newest = contents.revision;
                let pair = (value(&contents, Table::Meta, "one"), value(&contents, Table::Users, "other"));
                assert_eq!(pair.0, pair.1, "both or none, at {newest:?}");
            }
        });
        let ends = EndsWhenDropped(&ended);
        for n in 0..TRANSACTIONS {
            let n = n.to_string();
            commit(&*store, &[put(Table::Meta, "one", &n), put(Table::Users, "other", &n)]);
        }
        drop(ends);
        reader.join().unwrap();
    });
}

fn one_of_two_at_the_same_time_is_outdated(open: &Open) {
    const THREADS: u64 = 4;
    const EACH: u64 = 25;
    let store = open();
    let add_one = || {
        for _ in 0..EACH {
            loop {
                let contents = store.read().unwrap();
                let n: u64 = value(&contents, Table::Meta, "n").map_or(0, |n| n.parse().unwrap());
                let change = put(Table::Meta, "n", &(n + 1).to_string());
                if let Commit::Done(_) = store.commit(contents.revision, &[change]).unwrap() {
                    break;
                }
            }
        }
    };
    thread::scope(|s| (0..THREADS).for_each(|_| drop(s.spawn(add_one))));
    let contents = store.read().unwrap();
    assert_eq!(value(&contents, Table::Meta, "n"), Some((THREADS * EACH).to_string()), "no addition is lost");
    assert_eq!(*store.watch().borrow(), contents.revision, "the last revision was told last");
}
