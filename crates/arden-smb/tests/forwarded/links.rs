//! Connections between nodes: those that are not made, those that one end has given up and the other has not, and users who share one.

use std::sync::{Arc, Condvar, Mutex};

use arden_smb::Share;
use arden_store::{
    commit::{CommitScope, ScopeId},
    dir::{DirOptions, DirStore},
    error::StoreError,
    fs::Fs,
    handles::{HandleChange, HandleStore, MemoryHandles},
};

use crate::{
    client::*,
    nodes::{begin, until},
};

/// The node of the clients makes a new connection; to the owner the older one looks alive. What the clients have open is theirs again at
/// once, and what is not durable is closed.
#[test]
fn what_the_owner_has_of_a_connection_that_was_lost_ends_with_the_next() {
    let lab = Lab::new();
    let front = lab.front.as_ref().expect("two nodes");
    let file = || want("file").share(0).lease(1, "RWH");
    let (mut c, mut other) = (lab.ca_client(), lab.client());
    let f = c.open(file().persistent(7, 0));
    other.open(want("other").share(0));
    c.write(f.id, 0, b"kept");
    for _ in 0..3 {
        front.lose_connections();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        for lost in [&mut c, &mut other] {
            lost.behind = None;
            while !lost.is_closed() {
                assert!(std::time::Instant::now() < end, "the node does not notice");
            }
        }
        assert_eq!(lab.server.trees.opens().len(), 2, "the owner does not know yet");
        c = lab.ca_again(c.guid);
        let again = c.open(file().reconnect_persistent(f.id, 7));
        assert_eq!((again.id, &c.read(f.id, 0, 10)[..]), (f.id, &b"kept"[..]));
        other = lab.client();
        other.open(want("other").share(0));
    }
    drop(other);
    assert_eq!(lab.opens_left(1), 1);
    c.close(f.id);
}

/// A dial takes up to 5 s, and each that fails is one step of the wait: time decides, not steps.
#[test]
fn an_owner_that_is_not_reached_is_not_waited_for_longer_than_one_that_is_not_there() {
    let lab = Lab::new();
    lab.front.as_ref().expect("two nodes").knows_silent(OWNER);
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER));
    begin(&mut c, &tree_connect(&format!(r"\\LAB\{SHARE}")));
    lab.pass(std::time::Duration::from_secs(21));
    assert!(c.comes(|c| c.is_closed().then_some(())).is_some(), "it waits on");
}

/// Commits wait meanwhile.
#[derive(Default)]
struct SlowHandles {
    of: MemoryHandles,
    held: Mutex<bool>,
    released: Condvar,
}

impl SlowHandles {
    fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.released.notify_all();
    }
}

impl HandleStore for SlowHandles {
    fn load(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StoreError> {
        self.of.load()
    }
    fn put(&self, scope: ScopeId, changes: Vec<HandleChange>) {
        self.of.put(scope, changes);
    }
    fn has_uncommitted(&self, scope: ScopeId) -> bool {
        self.of.has_uncommitted(scope)
    }
    fn commit(&self, scope: ScopeId) -> Result<(), StoreError> {
        let released = self.released.wait_while(self.held.lock().unwrap(), |held| *held);
        drop(released);
        self.of.commit(scope)
    }
}

/// What a request has changed before it waits is made durable. Other users of the node do not wait for the disk with it.
#[test]
fn a_request_that_waits_keeps_others_from_nothing_while_the_disk_does() {
    let lab = Lab::new();
    let handles = Arc::new(SlowHandles::default());
    let store = DirStore::open(&lab.dir.join("b"), DirOptions::default()).unwrap();
    let fs = Fs::with_handles(store, lab.server.trees.table.clone(), Some(handles.clone()));
    let slow = Share { continuously_available: true, ..share("slow", &fs) };
    let shares = lab.server.trees.shares().into_iter().filter(|s| s.fs.is_some()).map(|s| Share::clone(&s));
    lab.server.trees.set_shares(shares.chain([slow]).collect());
    let (mut one, mut two, mut other) = (lab.client(), lab.client(), lab.connect());
    other.negotiate(&Offer::up_to(Dialect::Smb311));
    other.logon(&logon(OTHER));
    other.connect(SHARE);
    let f = other.open(want("small")).id;
    other.write(f, 0, b"small");
    [&mut one, &mut two].into_iter().for_each(|c| drop(c.connect("slow")));
    one.open(want("file").lease(1, "RWH").persistent(7, 0));
    handles.hold(true);
    let create = begin(&mut two, &want("file").existing().req());
    until(|| handles.has_uncommitted(CommitScope::begin().id()), "nothing is to be made durable");
    let read = other.send(&read(f, 0, 5));
    let answer = other.poll(read);
    handles.hold(false);
    answer.expect("another user waits for the disk").ok();
    two.interim(create);
    assert_eq!(one.lease_break(), ("RWH".to_owned(), "RH".to_owned(), true));
    one.call(&lease_ack(1, "RH")).ok();
    two.opened(create);
}
