//! What an administrator asks of pools, where nodes and records are not as they mostly are.

use arden_admin::{
    cluster::{PoolMove, PoolOwnership, PoolTake},
    storage::PoolRecord,
};

use super::*;

const TANK: &str = "tank";

/// Hands that open any pool.
fn opening() -> [Arc<NoPools>; 2] {
    [(); 2].map(|()| Arc::new(NoPools { opens: AtomicBool::new(true), ..NoPools::default() }))
}

/// The state has the pool, by its name.
fn name_the_pool(api: &ClusterApi) {
    let record = PoolRecord {
        name: TANK.into(),
        id: format!("{:032x}", POOL.0),
        devices: Vec::new(),
        grace_seconds: 60,
        exports: Vec::new(),
        jobs: Vec::new(),
    };
    api.state.change(|s| Ok(s.pools.insert(TANK.into(), record.clone()))).unwrap();
}

fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn shown(api: &ClusterApi) -> PoolOwnership {
    api.ownerships().remove(0)
}

/// Takeovers that came to no end. A fence that works again changes nothing: only an owner makes the holders fewer.
#[test]
fn a_pool_with_too_many_holders_is_taken_by_an_administrator() {
    let holders: Vec<String> = (5..21).map(|epoch| format!(r#"{{"node":2,"epoch":{epoch}}}"#)).collect();
    let record = format!(r#"{{"epoch":20,"holders":[{}],"written":4,"blocked":null}}"#, holders.join(","));
    let prepare = |etcd: &Arc<Etcd>, names: &Names| etcd.put_now(&names.record(POOL), record.as_bytes()).unwrap();
    let Some(two) = Two::started(opening(), prepare) else { return };
    // With no holders left it would be free for the other node too.
    two.members[1].leave();
    let api = two.api(0);
    name_the_pool(&api);
    until("it says why nobody has it", || shown(&api).reason.contains("16 ownerships ended without being fenced"));
    let error = api.take_pool(TANK, &PoolTake { sure: false }).unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.error.contains("these may still write"), "{error}");
    let taken = api.take_pool(TANK, &PoolTake { sure: true }).unwrap();
    assert_eq!((taken.state.as_str(), taken.owner.as_str(), taken.epoch, taken.written), ("owned", "a", 21, 21));
    assert_eq!((taken.holders, taken.reason.as_str()), (vec!["a:21".to_string()], ""));
    two.members[0].leave();
}

/// The owner would release the pool, and nobody acquire it.
#[test]
fn a_pool_is_not_moved_to_a_drained_node() {
    let Some(two) = Two::started(opening(), |_, _| {}) else { return };
    let (a, b) = (two.api(0), two.api(1));
    name_the_pool(&a);
    until("somebody has it", || [&a, &b].iter().any(|api| shown(api).state == "owned"));
    let (owner, other) = if shown(&a).state == "owned" { ("a", "b") } else { ("b", "a") };
    assert!(a.change_node(other, &NodeChange { drained: true }).unwrap().drained);
    let (before, begun) = (shown(&a), Instant::now());
    let error = a.move_pool(TANK, &PoolMove { to: other.into() }).unwrap_err();
    assert!(error.kind == ErrorKind::Conflict && error.error.contains("is drained"), "{error}");
    assert!(error.hint.contains("arden node resume"), "{}", error.hint);
    assert!(begun.elapsed() < Duration::from_secs(10), "it does not wait");
    let after = shown(&a);
    assert_eq!((after.owner.as_str(), after.epoch), (owner, before.epoch), "the owner keeps it");
    let (etcd, names) = two.etcd();
    assert!(etcd.read_now(&names.moving(POOL), &names.cluster()).unwrap().get(&names.moving(POOL)).is_none());
    a.change_node(other, &NodeChange { drained: false }).unwrap();
    assert_eq!(a.move_pool(TANK, &PoolMove { to: other.into() }).unwrap().owner, other);
    two.members.iter().for_each(|m| m.leave());
}

/// The thread that works for the pool goes on, and the ownership ends: nobody knows how far it came.
#[test]
fn a_pool_whose_work_panics_is_given_up() {
    let hands = opening();
    hands.iter().for_each(|h| h.panics.store(true, Ordering::SeqCst));
    let Some(two) = Two::started(hands, |_, _| {}) else { return };
    let apis = [two.api(0), two.api(1)];
    let owner = || apis.iter().position(|api| shown(api).state == "owned");
    until("one has panicked", || two.hands.iter().any(|h| !h.panics.load(Ordering::SeqCst)));
    let first = two.hands.iter().position(|h| !h.panics.load(Ordering::SeqCst)).unwrap();
    // Without a fence the pool is that node's.
    until("it begins anew", || owner() == Some(first) && shown(&apis[first]).epoch > 5);
    two.members.iter().for_each(|m| m.leave());
}

#[test]
fn a_record_with_the_last_epoch_is_told_of() {
    let record = format!(r#"{{"epoch":{},"holders":[],"written":4,"blocked":null}}"#, u64::MAX);
    let prepare = |etcd: &Arc<Etcd>, names: &Names| etcd.put_now(&names.record(POOL), record.as_bytes()).unwrap();
    let Some(two) = Two::started(opening(), prepare) else { return };
    let api = two.api(0);
    until("it says why", || shown(&api).reason.contains("the last epoch"));
    assert_eq!(shown(&api).state, "unowned");
    two.members.iter().for_each(|m| m.leave());
}

/// The next command may come by any node, and go to the new owner.
#[test]
fn a_node_has_heard_of_a_pool_when_it_serves_it() {
    let Some(two) = Two::started(opening(), |_, _| ()) else { return };
    let apis = [two.api(0), two.api(1)];
    name_the_pool(&apis[0]);
    let owner = |of: usize| shown(&apis[of]).state == "owned";
    until("somebody owns it", || owner(0) || owner(1));
    let (from, to) = if owner(0) { (0, 1) } else { (1, 0) };
    apis[to].state.refreshed().unwrap();
    apis.iter().for_each(|api| api.hear_of_pools().unwrap());
    let held = two.hands[to].serving.lock().unwrap();
    apis[from].move_pool(TANK, &PoolMove { to: ["a", "b"][to].into() }).unwrap();
    apis[from].hear_of_pools().expect("it serves nothing itself");
    assert!(apis[to].hear_of_pools().unwrap_err().error.contains("still being opened"));
    drop(held);
    apis[to].hear_of_pools().unwrap();
    two.members.iter().for_each(|member| member.leave());
}
