//! One node, told of everything by hand: each step of an ownership, what it waits for, and what ends it.

use arden_cluster::{
    Action, Config, Epoch, Event, Holder, IfAlive, IfOwner, ImportError, LeaseId, Node, NodeId, Outcome, OwnerKey,
    PoolId, Record, Revision, Route, SetOwner, Stage, Transaction, View,
};

const POOL: PoolId = PoolId(7);
const TTL: u64 = 1_000;
const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

fn holder(node: NodeId, epoch: u64) -> Holder {
    Holder { node, epoch: Epoch(epoch) }
}

/// A node, and the keys of its pool as etcd has them.
struct World {
    node: Node,
    now: u64,
    revision: u64,
    view: View,
}

impl World {
    /// The last owner had epoch 4 and is still a holder.
    fn new(holders: Vec<Holder>) -> World {
        let config = Config { node: ME, ttl_ns: TTL, drift_ppm: 0, pools: vec![(POOL, 0)], fence_retry_ns: 50 };
        let record = Record { epoch: Epoch(4), holders, written: Epoch(4), blocked: None };
        let view = View { owner: None, record, changed: Revision(10) };
        World { node: Node::new(config), now: 0, revision: 10, view }
    }

    fn say(&mut self, event: Event) -> Vec<Action> {
        self.now += 1;
        self.node.handle(self.now, event)
    }

    fn lease(&mut self, id: u64) -> Vec<Action> {
        let sent_ns = self.now;
        let lease = LeaseId(id);
        self.say(Event::LeaseGranted { lease, sent_ns });
        self.claim(id, IfAlive::Absent, Outcome::Applied(Revision(self.revision)))
    }

    fn claim(&mut self, id: u64, if_alive: IfAlive, outcome: Outcome) -> Vec<Action> {
        self.say(Event::Claimed { lease: LeaseId(id), if_alive, outcome })
    }

    fn read(&mut self) -> Vec<Action> {
        let (revision, view) = (Revision(self.revision), self.view.clone());
        self.say(Event::Read { pool: POOL, number: u64::MAX, floor: Revision(0), revision, view })
    }

    /// Applies the one transaction among `actions`, as etcd does, and says what etcd answers.
    fn commit(&mut self, actions: &[Action]) -> Event {
        let mut all = actions.iter().filter_map(|a| match a {
            Action::Transact { number, transaction, .. } => Some((*number, transaction.clone())),
            _ => None,
        });
        let (number, t) = all.next().unwrap_or_else(|| panic!("no transaction in {actions:?}"));
        assert!(all.next().is_none());
        let owner_fits = match t.if_owner {
            IfOwner::Absent => self.view.owner.is_none(),
            IfOwner::Is(key) => self.view.owner == Some(key),
        };
        if !owner_fits || t.if_record.is_some_and(|r| r != self.view.changed) {
            return Event::Transacted { pool: POOL, number, outcome: Outcome::Refused };
        }
        self.revision += 1;
        match t.owner {
            SetOwner::Keep => {}
            SetOwner::Put(key) => self.view.owner = Some(key),
            SetOwner::Delete => self.view.owner = None,
        }
        if let Some(record) = t.record {
            (self.view.record, self.view.changed) = (record, Revision(self.revision));
        }
        Event::Transacted { pool: POOL, number, outcome: Outcome::Applied(Revision(self.revision)) }
    }

    fn committed(&mut self, actions: &[Action]) -> Vec<Action> {
        let event = self.commit(actions);
        self.say(event)
    }

    /// Goes as far as `stage`.
    fn until(&mut self, stage: Stage) {
        self.lease(1);
        let acquire = self.read();
        let mut actions = self.committed(&acquire);
        for _ in 0..8 {
            if self.stage() == stage {
                return;
            }
            let epoch = self.view.record.epoch;
            let fences: Vec<Holder> = fences(&actions);
            actions = match self.stage() {
                Stage::Fencing => {
                    let mut last = Vec::new();
                    for holder in fences {
                        last = self.say(Event::Fenced { pool: POOL, epoch, holder });
                    }
                    last
                }
                Stage::Recording => self.committed(&actions),
                Stage::Registering => self.say(Event::Registered { pool: POOL, epoch, keys: vec![] }),
                Stage::Confirming => self.read(),
                Stage::Importing => self.say(Event::Imported { pool: POOL, epoch }),
                other => panic!("{other:?}"),
            };
        }
        panic!("never {stage:?}");
    }

    fn stage(&self) -> Stage {
        self.node.stage(POOL).unwrap()
    }

    fn serves(&self) -> bool {
        self.node.may_serve(POOL, Epoch(5), self.now)
    }
}

fn fences(actions: &[Action]) -> Vec<Holder> {
    let fence = |a: &Action| match a {
        Action::Fence { holder, .. } => Some(*holder),
        _ => None,
    };
    actions.iter().filter_map(fence).collect()
}

fn transaction(actions: &[Action]) -> Option<&Transaction> {
    actions.iter().find_map(|a| match a {
        Action::Transact { transaction, .. } => Some(transaction),
        _ => None,
    })
}

/// Of an owner that never came to `written` it is not known how far it came with its fences.
#[test]
fn a_holder_that_another_may_have_begun_to_fence_is_contested() {
    let mut w = World::new(vec![holder(OTHER, 3), holder(ME, 4)]);
    w.lease(1);
    let acquire = w.read();
    let contested = |a: &Action| match a {
        Action::Fence { holder, contested, .. } => Some((*holder, *contested)),
        _ => None,
    };
    let fences: Vec<_> = w.committed(&acquire).iter().filter_map(contested).collect();
    assert_eq!(fences, [(holder(OTHER, 3), true), (holder(ME, 4), false)]);
}

const STOP: Action = Action::Stop { pool: POOL, epoch: Epoch(5) };

#[test]
fn a_takeover_goes_through_every_step() {
    let mut w = World::new(vec![holder(OTHER, 4)]);
    assert!(w.say(Event::Tick).contains(&Action::GrantLease));
    assert_eq!(w.lease(1), [Action::Read { pool: POOL, number: 1, floor: Revision(0) }]);
    let acquire = w.read();
    let fence = w.committed(&acquire);
    assert_eq!(w.view.record.holders, [holder(OTHER, 4), holder(ME, 5)], "a holder before it has sent a command");
    assert_eq!(fence, [Action::Fence { pool: POOL, epoch: Epoch(5), holder: holder(OTHER, 4), contested: false }]);
    assert_eq!(w.view.record.written, Epoch(4));
    let fenced = w.say(Event::Fenced { pool: POOL, epoch: Epoch(5), holder: holder(OTHER, 4) });
    let register = w.committed(&fenced);
    assert_eq!((w.view.record.holders.clone(), w.view.record.written), (vec![holder(ME, 5)], Epoch(5)));
    assert_eq!(register, [Action::Register { pool: POOL, epoch: Epoch(5) }]);
    let confirm = w.say(Event::Registered { pool: POOL, epoch: Epoch(5), keys: vec![] });
    assert!(matches!(confirm[..], [Action::Read { .. }]), "{confirm:?}");
    let import = w.read();
    assert_eq!(import, [Action::Import { pool: POOL, epoch: Epoch(5), written: Epoch(4) }], "as it was before me");
    assert!(!w.serves() && w.node.route(POOL) == Route::Wait);
    assert_eq!(w.say(Event::Imported { pool: POOL, epoch: Epoch(5) }), [Action::Serve { pool: POOL, epoch: Epoch(5) }]);
    assert!(w.serves() && w.node.route(POOL) == Route::Here(Epoch(5)));
    assert!(!w.node.may_serve(POOL, Epoch(4), w.now));
}

#[test]
fn a_fence_that_fails_is_tried_again_and_nothing_goes_on_without_it() {
    let mut w = World::new(vec![holder(OTHER, 4), holder(OTHER, 3)]);
    w.until(Stage::Fencing);
    assert!(transaction(&w.say(Event::Fenced { pool: POOL, epoch: Epoch(5), holder: holder(OTHER, 3) })).is_none());
    w.say(Event::FenceFailed { pool: POOL, epoch: Epoch(5), holder: holder(OTHER, 4) });
    assert!(fences(&w.say(Event::Tick)).is_empty());
    w.now += 60;
    assert_eq!(fences(&w.say(Event::Tick)), [holder(OTHER, 4)]);
    assert!(transaction(&w.say(Event::Fenced { pool: POOL, epoch: Epoch(9), holder: holder(OTHER, 4) })).is_none());
    assert_eq!(w.stage(), Stage::Fencing);
}

#[test]
fn the_former_self_is_fenced_too() {
    let mut w = World::new(vec![holder(ME, 4)]);
    w.until(Stage::Fencing);
    assert_eq!(w.view.record.holders, [holder(ME, 4), holder(ME, 5)]);
}

#[test]
fn after_the_deadline_nothing_is_served_and_everything_stops() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    w.now = TTL * 9 / 10 - 1;
    assert!(w.serves());
    w.now += 1;
    assert!(!w.serves(), "before anything was said of it");
    let actions = w.say(Event::Tick);
    assert!(actions.contains(&STOP) && actions.contains(&Action::RevokeLease { lease: LeaseId(1) }), "{actions:?}");
    assert_eq!(w.stage(), Stage::Lost);
    w.say(renewed(TTL, 99));
    assert!(!w.serves() && w.stage() == Stage::Lost, "a lease that ended here never comes back");
    w.say(Event::Stopped { pool: POOL, epoch: Epoch(5) });
    assert_eq!(w.stage(), Stage::Unowned);
    assert_eq!(w.view.record.holders, [holder(ME, 5)], "commands may be on their way");
}

fn renewed(sent_ns: u64, revision: u64) -> Event {
    Event::LeaseRenewed { lease: LeaseId(1), sent_ns, revision: Revision(revision) }
}

/// By an etcd that went back to where it has the lease and not the key under it, another run of the node may be alive.
#[test]
fn a_renewal_by_an_older_etcd_does_not_count() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    w.now = 800;
    w.say(renewed(300, w.revision - 1));
    w.now = TTL * 9 / 10;
    assert!(!w.serves(), "the grant's end stands");
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    w.now = 800;
    w.say(renewed(300, w.revision));
    w.now = TTL * 9 / 10;
    assert!(w.serves());
}

#[test]
fn a_renewal_counts_from_its_sending() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    w.now = 800;
    w.say(renewed(300, 99));
    w.now = 300 + TTL * 9 / 10 - 1;
    assert!(w.serves());
    w.now += 1;
    assert!(!w.serves());
}

#[test]
fn a_registration_counts_when_etcd_says_after_it_that_the_pool_is_still_owned() {
    let mut w = World::new(vec![]);
    w.until(Stage::Registering);
    let confirm = w.say(Event::Registered { pool: POOL, epoch: Epoch(5), keys: vec![] });
    let number = match confirm[..] {
        [Action::Read { number, .. }] => number,
        _ => panic!("{confirm:?}"),
    };
    let (revision, view) = (Revision(w.revision), w.view.clone());
    let read = |number| Event::Read { pool: POOL, number, floor: Revision(0), revision, view: view.clone() };
    let again = w.say(read(number - 1));
    assert!(matches!(again[..], [Action::Read { .. }]), "it was sent before: {again:?}");
    w.revision += 1;
    w.view.owner = None;
    assert_eq!(w.read(), [STOP], "somebody else may have fenced already");
}

#[test]
fn a_read_without_the_owner_key_confirms_nothing_whatever_its_revision() {
    for back in [0, 1] {
        let mut w = World::new(vec![]);
        w.until(Stage::Registering);
        w.say(Event::Registered { pool: POOL, epoch: Epoch(5), keys: vec![] });
        w.revision -= back;
        w.view.owner = None;
        let actions = w.read();
        assert_eq!(actions[0], STOP, "a restored etcd gives this revision to a state without this owner");
        // Of a read that is older than what it knows it does not take that the key is gone.
        let gives_up = |a: &Action| matches!(a, Action::Transact { transaction, .. } if transaction.owner == SetOwner::Delete && transaction.record.is_none());
        assert_eq!(actions.len(), 1 + back as usize);
        assert!(actions[1..].iter().all(gives_up), "{actions:?}");
    }
}

#[test]
fn a_read_counts_though_its_revision_is_known() {
    let mut w = World::new(vec![]);
    w.lease(1);
    w.view.owner = Some(OwnerKey { node: OTHER, epoch: Epoch(5), lease: LeaseId(8) });
    assert_eq!(w.read(), []);
    w.view.owner = None;
    w.view.record.holders = vec![holder(OTHER, 4)];
    let acquire = w.read();
    let record = transaction(&acquire).and_then(|t| t.record.clone());
    assert_eq!(record.map(|r| r.holders), Some(vec![holder(OTHER, 4), holder(ME, 5)]));
}

#[test]
fn a_key_that_etcd_does_not_know_blocks_the_pool() {
    let mut w = World::new(vec![]);
    w.until(Stage::Registering);
    let registered = Event::Registered { pool: POOL, epoch: Epoch(5), keys: vec![holder(OTHER, 3), holder(OTHER, 9)] };
    assert_eq!(w.say(registered), [STOP]);
    let block = w.say(Event::Stopped { pool: POOL, epoch: Epoch(5) });
    w.committed(&block);
    assert_eq!((w.view.record.blocked, w.view.record.written), (Some(Epoch(9)), Epoch(4)));
}

#[test]
fn a_key_like_ones_own_blocks_the_pool() {
    let mut w = World::new(vec![]);
    w.until(Stage::Registering);
    let registered = Event::Registered { pool: POOL, epoch: Epoch(5), keys: vec![holder(ME, 5)] };
    assert_eq!(w.say(registered), [STOP], "etcd has forgotten that it was given before");
}

#[test]
fn keys_of_nobody_that_the_record_knows_are_fenced_before_the_import() {
    let mut w = World::new(vec![]);
    w.until(Stage::Registering);
    let keys = vec![holder(OTHER, 4), holder(NodeId(3), 4), holder(OTHER, 4)];
    let actions = w.say(Event::Registered { pool: POOL, epoch: Epoch(5), keys });
    assert_eq!(fences(&actions), [holder(OTHER, 4), holder(NodeId(3), 4)]);
    assert_eq!(w.stage(), Stage::Fencing);
    let fenced = |holder| Event::Fenced { pool: POOL, epoch: Epoch(5), holder };
    assert_eq!(w.say(fenced(holder(OTHER, 4))), []);
    assert_eq!(w.read(), [], "one of them is not fenced");
    w.say(Event::FenceFailed { pool: POOL, epoch: Epoch(5), holder: holder(NodeId(3), 4) });
    w.now += 60;
    assert_eq!(fences(&w.say(Event::Tick)), [holder(NodeId(3), 4)]);
    let confirm = w.say(fenced(holder(NodeId(3), 4)));
    assert!(matches!(confirm[..], [Action::Read { .. }]), "{confirm:?}");
    assert!(matches!(w.read()[..], [Action::Import { .. }]));
}

#[test]
fn an_import_that_ends_after_the_lease_is_not_served() {
    let mut w = World::new(vec![]);
    w.until(Stage::Importing);
    w.now = TTL;
    let actions = w.say(Event::Imported { pool: POOL, epoch: Epoch(5) });
    assert!(actions.contains(&STOP) && !actions.iter().any(|a| matches!(a, Action::Serve { .. })), "{actions:?}");
}

#[test]
fn an_acquisition_whose_answer_was_lost_is_found_and_one_that_did_not_happen_is_made_again() {
    let mut w = World::new(vec![]);
    w.lease(1);
    let acquire = w.read();
    let number = match acquire[..] {
        [Action::Transact { number, .. }] => number,
        _ => panic!("{acquire:?}"),
    };
    let unknown = Event::Transacted { pool: POOL, number, outcome: Outcome::Unknown };
    assert_eq!(w.say(unknown), [Action::Read { pool: POOL, number: 3, floor: Revision(10) }]);
    let again = w.read();
    assert!(transaction(&again).is_some(), "it did not happen");
    w.commit(&again);
    let fenced = w.read();
    assert_eq!(w.stage(), Stage::Recording, "it did");
    assert!(transaction(&fenced).is_some());
}

#[test]
fn an_acquisition_that_was_refused_does_not_fence_anybody() {
    let mut w = World::new(vec![holder(OTHER, 4)]);
    w.lease(1);
    let acquire = w.read();
    w.view.owner = Some(OwnerKey { node: OTHER, epoch: Epoch(5), lease: LeaseId(8) });
    w.revision += 1;
    let refused = w.committed(&acquire);
    assert!(matches!(refused[..], [Action::Read { .. }]), "{refused:?}");
    assert_eq!(w.read(), []);
    assert_eq!((w.stage(), w.node.route(POOL)), (Stage::Unowned, Route::Forward(OTHER, Epoch(5))));
}

#[test]
fn what_the_watch_told_long_ago_changes_nothing() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    let old = View { owner: None, ..w.view.clone() };
    w.say(Event::Watched { pool: POOL, revision: Revision(11), view: old });
    assert!(w.serves());
    let gone = View { owner: None, ..w.view.clone() };
    let actions = w.say(Event::Watched { pool: POOL, revision: Revision(99), view: gone });
    assert!(actions.contains(&STOP) && !w.serves());
}

#[test]
fn who_drains_closes_first_and_is_a_holder_no_longer() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    assert_eq!(w.say(Event::Drain), [Action::Close { pool: POOL, epoch: Epoch(5) }]);
    assert!(w.serves(), "answers to what is under way");
    let release = w.say(Event::Closed { pool: POOL, epoch: Epoch(5) });
    assert!(!w.serves() && w.view.owner.is_some(), "etcd says so only now");
    w.committed(&release);
    assert_eq!((w.view.owner, w.view.record.holders.len(), w.stage()), (None, 0, Stage::Unowned));
    assert!(transaction(&w.say(Event::Tick)).is_none(), "it takes nothing while it drains");
    assert!(transaction(&w.say(Event::Resume)).is_some());
}

#[test]
fn who_loses_the_disks_gives_up_and_stays_a_holder() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    let leave = w.say(Event::DisksLost { pool: POOL, epoch: Epoch(5) });
    assert_eq!(leave[0], STOP);
    assert_eq!(w.say(Event::Stopped { pool: POOL, epoch: Epoch(5) }), [], "it was said already");
    w.committed(&leave);
    assert_eq!((w.view.owner, w.view.record.holders.clone()), (None, vec![holder(ME, 5)]));
    assert!(transaction(&w.say(Event::Tick)).is_none(), "others go first");
}

/// A fence that fails here may work at another node. What was asked of the disks may still come to them: a key, and the removal of others.
#[test]
fn who_drains_while_it_fences_gives_up_and_stays_a_holder() {
    let mut w = World::new(vec![holder(OTHER, 4)]);
    w.until(Stage::Fencing);
    let actions = w.say(Event::Drain);
    assert_eq!(actions[0], STOP);
    w.committed(&actions);
    assert_eq!((w.view.owner, w.view.record.holders.clone()), (None, vec![holder(OTHER, 4), holder(ME, 5)]));
    assert_eq!(w.say(Event::Stopped { pool: POOL, epoch: Epoch(5) }), []);
    assert_eq!((w.stage(), w.view.record.written), (Stage::Unowned, Epoch(4)));
}

/// Of keys that were found on the disks, too: the record says by then that the holders were fenced.
#[test]
fn who_drains_while_it_fences_keys_that_it_found_gives_up() {
    let mut w = World::new(vec![]);
    w.until(Stage::Registering);
    w.say(Event::Registered { pool: POOL, epoch: Epoch(5), keys: vec![holder(OTHER, 3)] });
    assert_eq!(w.stage(), Stage::Fencing);
    let actions = w.say(Event::Drain);
    assert_eq!(actions[0], STOP);
    w.committed(&actions);
    assert_eq!((w.view.owner, w.view.record.holders.clone()), (None, vec![holder(ME, 5)]));
}

/// An agent fences a machine: nothing was asked of the disks yet, and the next owner has no reason to switch this node off.
#[test]
fn who_drains_while_an_agent_fences_is_a_holder_no_longer() {
    let mut w = World::new(vec![holder(OTHER, 4)]);
    w.node.set_fences_on_disks(POOL, false);
    w.until(Stage::Fencing);
    let actions = w.say(Event::Drain);
    assert!(!actions.contains(&STOP), "nothing runs: {actions:?}");
    w.committed(&actions);
    assert_eq!((w.view.owner, w.view.record.holders.clone()), (None, vec![holder(OTHER, 4)]));
    assert_eq!((w.stage(), w.view.record.written), (Stage::Unowned, Epoch(4)));
    assert!(transaction(&w.say(Event::Fenced { pool: POOL, epoch: Epoch(5), holder: holder(OTHER, 4) })).is_none());
    let again = w.say(Event::Resume);
    assert_eq!(transaction(&again).and_then(|t| t.record.clone()).map(|r| r.epoch), Some(Epoch(6)));
}

/// Its commands hang, and so does the end of the pool's tasks: others need not wait for that.
#[test]
fn who_loses_the_disks_gives_up_before_everything_has_stopped() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    let lost = w.say(Event::DisksLost { pool: POOL, epoch: Epoch(5) });
    assert!(lost.contains(&STOP) && !w.serves());
    assert_eq!(transaction(&lost).map(|t| (t.owner, t.record.clone())), Some((SetOwner::Delete, None)));
    w.committed(&lost);
    assert_eq!((w.view.owner, w.view.record.holders.clone()), (None, vec![holder(ME, 5)]), "it is to be fenced");
    assert_eq!(w.stage(), Stage::Lost);
    // Nobody else takes it: it does not either while something of it may run here.
    for id in 2..10 {
        w.now += TTL;
        w.lease(id);
        assert!(transaction(&w.read()).is_none() && w.stage() == Stage::Lost);
    }
    let acquire = w.say(Event::Stopped { pool: POOL, epoch: Epoch(5) });
    let record = transaction(&acquire).and_then(|t| t.record.clone());
    assert_eq!(record.map(|r| r.holders), Some(vec![holder(ME, 5), holder(ME, 6)]));
}

#[test]
fn a_pool_that_was_given_up_is_anothers_before_everything_has_stopped() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    let lost = w.say(Event::DisksLost { pool: POOL, epoch: Epoch(5) });
    w.committed(&lost);
    w.view.owner = Some(OwnerKey { node: OTHER, epoch: Epoch(6), lease: LeaseId(8) });
    w.revision += 1;
    assert_eq!(w.read(), []);
    assert_eq!((w.stage(), w.node.route(POOL)), (Stage::Lost, Route::Forward(OTHER, Epoch(6))));
    assert_eq!(w.say(Event::Stopped { pool: POOL, epoch: Epoch(5) }), []);
    assert_eq!(w.stage(), Stage::Unowned);
}

#[test]
fn an_ownership_that_was_given_up_is_not_taken_up_again() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    let leave = w.say(Event::DisksLost { pool: POOL, epoch: Epoch(5) });
    let number = match leave[..] {
        [STOP, Action::Transact { number, .. }] => number,
        _ => panic!("{leave:?}"),
    };
    w.say(Event::Stopped { pool: POOL, epoch: Epoch(5) });
    w.say(Event::Transacted { pool: POOL, number, outcome: Outcome::Unknown });
    let again = w.read();
    assert_eq!(w.stage(), Stage::Leaving);
    assert_eq!(transaction(&again).map(|t| t.owner), Some(SetOwner::Delete));
}

#[test]
fn a_label_that_etcd_does_not_know_blocks_the_pool() {
    let mut w = World::new(vec![]);
    w.until(Stage::Importing);
    let later = ImportError::LaterEpoch(Epoch(9));
    assert_eq!(w.say(Event::ImportFailed { pool: POOL, epoch: Epoch(5), why: later }), [STOP]);
    let block = w.say(Event::Stopped { pool: POOL, epoch: Epoch(5) });
    w.committed(&block);
    let expected = Record { epoch: Epoch(5), holders: vec![], written: Epoch(4), blocked: Some(Epoch(9)) };
    assert_eq!((&w.view.record, w.view.owner), (&expected, None));
    w.now += 10 * TTL;
    w.lease(2);
    assert!(transaction(&w.read()).is_none());
}

#[test]
fn a_store_that_went_back_is_not_believed_until_somebody_says_so() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    let old = Event::Read {
        pool: POOL,
        number: 9,
        floor: Revision(w.revision),
        revision: Revision(3),
        view: View::default(),
    };
    let actions = w.say(old);
    assert!(actions.contains(&STOP) && actions.contains(&Action::StoreWentBack), "{actions:?}");
    w.say(Event::Stopped { pool: POOL, epoch: Epoch(5) });
    w.now += TTL;
    assert_eq!(w.say(Event::Tick), []);
    assert!(w.say(Event::TrustStore).contains(&Action::GrantLease));
}

#[test]
fn a_pool_with_too_many_holders_is_left_alone() {
    let mut w = World::new((0..16).map(|e| holder(OTHER, e)).collect());
    w.lease(1);
    assert!(transaction(&w.read()).is_none());
}

#[test]
fn etcd_that_does_not_know_the_lease_ends_everything() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    let actions = w.say(Event::LeaseGone { lease: LeaseId(1) });
    assert!(actions.contains(&STOP) && actions.contains(&Action::GrantLease), "{actions:?}");
    assert!(!w.serves());
}

#[test]
fn one_pool_is_handed_over_and_only_the_ownership_that_was_meant() {
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    w.now += 1;
    assert!(w.node.hand_over(w.now, POOL, Epoch(4)).is_empty(), "that one is over");
    assert_eq!(w.stage(), Stage::Owned);
    let close = Action::Close { pool: POOL, epoch: Epoch(5) };
    assert!(w.node.hand_over(w.now, POOL, Epoch(5)).contains(&close));
    w.node.set_patience(POOL, 40);
    let release = w.say(Event::Closed { pool: POOL, epoch: Epoch(5) });
    w.committed(&release);
    assert!(transaction(&w.say(Event::Tick)).is_none(), "others go first");
    w.now += 40;
    assert!(transaction(&w.say(Event::Tick)).is_some(), "nobody did");
}

#[test]
fn without_a_fence_it_takes_nothing_that_another_node_may_write_to() {
    for (holders, takes) in [(vec![holder(OTHER, 4)], false), (vec![holder(ME, 4)], true), (vec![], true)] {
        let mut w = World::new(holders.clone());
        w.node.set_takes_over(POOL, false);
        w.lease(1);
        assert_eq!(transaction(&w.read()).is_some(), takes, "{holders:?}");
        w.node.set_takes_over(POOL, true);
        assert_eq!(transaction(&w.say(Event::Tick)).is_some(), !takes, "{holders:?}");
    }
}

#[test]
fn a_node_that_may_not_own_the_pool_keeps_what_it_owns_and_acquires_nothing() {
    let mut w = World::new(vec![]);
    w.node.set_may_own(POOL, false);
    w.lease(1);
    assert!(transaction(&w.read()).is_none());
    w.node.set_may_own(POOL, true);
    assert!(transaction(&w.say(Event::Tick)).is_some());
    let mut w = World::new(vec![]);
    w.until(Stage::Owned);
    w.node.set_may_own(POOL, false);
    assert!(w.say(Event::Tick).iter().all(|a| !matches!(a, Action::Stop { .. } | Action::Close { .. })));
    assert_eq!(w.stage(), Stage::Owned);
}

#[test]
fn the_deadline_is_that_of_the_lease() {
    let mut w = World::new(vec![]);
    assert_eq!(w.node.served(POOL, w.now), None);
    w.until(Stage::Owned);
    let Some((epoch, until)) = w.node.served(POOL, w.now) else { panic!("it is served") };
    assert_eq!(epoch, Epoch(5));
    assert!(w.node.may_serve(POOL, epoch, until - 1) && !w.node.may_serve(POOL, epoch, until));
    assert_eq!(w.node.served(POOL, until), None);
}

fn claims(actions: &[Action]) -> Vec<(u64, IfAlive)> {
    let claim = |a: &Action| match a {
        Action::Claim { lease, if_alive } => Some((lease.0, *if_alive)),
        _ => None,
    };
    actions.iter().filter_map(claim).collect()
}

#[test]
fn a_lease_is_not_used_before_the_node_is_alive_by_it() {
    let mut w = World::new(vec![]);
    w.say(Event::Tick);
    let claim = w.say(Event::LeaseGranted { lease: LeaseId(1), sent_ns: 0 });
    assert_eq!(claims(&claim), [(1, IfAlive::Absent)]);
    let read = w.read();
    assert!(w.node.lease(w.now).is_none() && !read.iter().any(|a| matches!(a, Action::Transact { .. })), "{read:?}");
    w.claim(1, IfAlive::Absent, Outcome::Unknown);
    assert!(w.node.lease(w.now).is_none(), "nobody knows");
    w.now += TTL / 4;
    let due = w.say(Event::Tick);
    assert_eq!(claims(&due), [(1, IfAlive::Absent)], "it is asked again");
    // It had happened, and this one finds it.
    let refused = w.claim(1, IfAlive::Absent, Outcome::Refused);
    assert_eq!(claims(&refused), [(1, IfAlive::Under(LeaseId(1)))]);
    w.claim(1, IfAlive::Under(LeaseId(1)), Outcome::Applied(Revision(11)));
    assert_eq!(w.node.lease(w.now), Some(LeaseId(1)));
    assert_eq!(w.claim(1, IfAlive::Absent, Outcome::Refused), [], "late, and of no account");
    assert_eq!(claims(&w.say(Event::NotAlive)), [(1, IfAlive::Absent)]);
}

#[test]
fn a_lease_is_given_back_where_another_run_is_alive() {
    let mut w = World::new(vec![]);
    w.say(Event::Tick);
    w.say(Event::LeaseGranted { lease: LeaseId(1), sent_ns: 0 });
    w.claim(1, IfAlive::Absent, Outcome::Refused);
    let refused = w.claim(1, IfAlive::Under(LeaseId(1)), Outcome::Refused);
    assert_eq!(refused, [Action::RevokeLease { lease: LeaseId(1) }]);
    w.claim(1, IfAlive::Absent, Outcome::Applied(Revision(11)));
    assert!(w.node.lease(w.now).is_none(), "an answer to a claim that was given up");
    assert_eq!(w.say(Event::Tick), [], "not at once");
    w.now += TTL / 4;
    assert_eq!(w.say(Event::Tick), [Action::GrantLease]);
}

/// The answer to a request comes once more, and the lease was given back meanwhile: etcd ends it at any moment.
#[test]
fn a_lease_that_was_given_back_is_not_taken_again() {
    let mut w = World::new(vec![]);
    w.say(Event::Tick);
    let granted = Event::LeaseGranted { lease: LeaseId(1), sent_ns: w.now };
    w.now += 1;
    w.say(granted.clone());
    w.claim(1, IfAlive::Absent, Outcome::Refused);
    w.claim(1, IfAlive::Under(LeaseId(1)), Outcome::Refused);
    assert_eq!(w.say(granted), [Action::RevokeLease { lease: LeaseId(1) }]);
    w.now += TTL / 4;
    assert_eq!(w.say(Event::Tick), [Action::GrantLease]);
    w.lease(2);
    assert_eq!(w.node.lease(w.now), Some(LeaseId(2)));
}

#[test]
fn the_next_lease_takes_the_key_of_the_last_one() {
    let mut w = World::new(vec![]);
    w.lease(1);
    w.say(Event::LeaseGone { lease: LeaseId(1) });
    w.say(Event::LeaseGranted { lease: LeaseId(2), sent_ns: w.now });
    let refused = w.claim(2, IfAlive::Absent, Outcome::Refused);
    assert_eq!(claims(&refused), [(2, IfAlive::Under(LeaseId(1)))]);
    w.claim(2, IfAlive::Under(LeaseId(1)), Outcome::Applied(Revision(12)));
    assert_eq!(w.node.lease(w.now), Some(LeaseId(2)));
}

#[test]
fn a_grant_that_is_told_twice_does_not_end_the_lease() {
    let mut w = World::new(vec![]);
    w.lease(1);
    w.say(Event::Tick);
    assert_eq!(w.say(Event::LeaseGranted { lease: LeaseId(1), sent_ns: 0 }), []);
    assert_eq!(
        w.say(Event::LeaseGranted { lease: LeaseId(2), sent_ns: 0 }),
        [Action::RevokeLease { lease: LeaseId(2) }]
    );
    assert_eq!(w.node.lease(w.now), Some(LeaseId(1)));
}

/// Whoever wrote that to etcd.
#[test]
fn after_the_last_epoch_nobody_acquires() {
    let mut w = World::new(vec![]);
    w.view.record.epoch = Epoch(u64::MAX);
    w.lease(1);
    assert_eq!(w.read(), []);
    w.now += 10;
    assert!(transaction(&w.say(Event::Tick)).is_none());
}

#[test]
fn a_pool_that_is_added_is_acquired_like_any_other() {
    let mut w = World::new(Vec::new());
    let config = Config { node: ME, ttl_ns: TTL, drift_ppm: 0, pools: Vec::new(), fence_retry_ns: 50 };
    w.node = Node::new(config);
    w.lease(1);
    assert_eq!((w.read(), w.node.stage(POOL)), (Vec::new(), None), "what is said of a pool that it does not know");
    w.node.add_pool(POOL, 0);
    assert_eq!(w.node.stage(POOL), Some(Stage::Unowned));
    let acquire = w.read();
    w.committed(&acquire);
    let stage = w.node.stage(POOL);
    assert!(stage.is_some_and(|s| s != Stage::Unowned), "{stage:?}");
    w.node.add_pool(POOL, 0);
    assert_eq!(w.node.stage(POOL), stage, "it begins nothing anew");
}

#[test]
fn a_pool_that_is_retired_is_acquired_by_nobody() {
    let mut w = World::new(Vec::new());
    w.until(Stage::Owned);
    let epoch = w.view.record.epoch;
    w.now += 1;
    assert!(w.node.retire(w.now, POOL, Epoch(epoch.0 - 1)).iter().all(|a| !matches!(a, Action::Close { .. })));
    let closes = w.node.retire(w.now, POOL, epoch);
    assert!(closes.iter().any(|a| matches!(a, Action::Close { .. })), "{closes:?}");
    let leaves = w.say(Event::Closed { pool: POOL, epoch });
    w.committed(&leaves);
    assert!(w.view.owner.is_none() && w.view.record.holders.is_empty() && w.view.record.is_retired());
    assert_eq!(w.view.record.written, epoch, "its labels are no surprise to who unblocks it");
    w.now += 10 * TTL;
    w.lease(2);
    let after = w.read();
    assert!(after.iter().all(|a| !matches!(a, Action::Transact { .. })), "{after:?}");
}
