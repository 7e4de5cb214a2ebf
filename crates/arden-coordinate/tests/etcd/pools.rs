//! What an administrator asks of pools, where nodes and records are not as they mostly are.

use arden_admin::{
    cluster::{PoolOwnership, PoolTake},
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
    let api = two.api(0);
    name_the_pool(&api);
    until("it says why nobody has it", || shown(&api).reason.contains("16 ownerships ended without being fenced"));
    let error = api.take_pool(TANK, &PoolTake { sure: false }).unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.error.contains("these may still write"), "{error}");
    let taken = api.take_pool(TANK, &PoolTake { sure: true }).unwrap();
    assert_eq!((taken.state.as_str(), taken.owner.as_str(), taken.epoch, taken.written), ("owned", "a", 21, 21));
    assert_eq!((taken.holders, taken.reason.as_str()), (vec!["a:21".to_string()], ""));
    two.members.iter().for_each(|m| m.leave());
}
