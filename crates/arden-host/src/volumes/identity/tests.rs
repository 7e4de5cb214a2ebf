//! Two pools with a space of one name, and volumes whose records say too little or what is not so.

use std::{fs, path::PathBuf, sync::Arc};

use arden_admin::{
    ErrorKind, State, Storage,
    storage::{NewPool, NewSpace, PoolImport},
    volume::{NewVolume, VolumeAdmin, VolumeInfo, VolumeRecord},
};

use super::super::Volumes;
use crate::{
    pools::{PoolAdmin, Pools},
    sharing::NothingShared,
};

/// A daemon's storage: it stops at the end, and can start again on its state.
struct Daemon {
    state: Arc<State>,
    pools: Arc<Pools>,
    volumes: Arc<Volumes>,
}

impl Daemon {
    fn on(state: Arc<State>) -> Daemon {
        let pools = Pools::start(&state, Arc::new(NothingShared)).unwrap();
        let volumes = Volumes::new(&state, &pools);
        Daemon { state, pools, volumes }
    }

    fn again(self) -> Daemon {
        let state = self.state.clone();
        drop(self);
        Daemon::on(state)
    }

    fn create(&self, name: &str, pool: Option<&str>, force: bool) -> arden_admin::error::Result<VolumeInfo> {
        let (name, space, pool) = (name.to_string(), Some("dup".to_string()), pool.map(str::to_string));
        self.volumes.create_volume(&NewVolume { name, space, pool, force, ..NewVolume::default() })
    }

    fn attach(&self, name: &str, pool: Option<&str>) -> arden_admin::error::Result<VolumeInfo> {
        let (name, space, pool) = (name.to_string(), Some("dup".to_string()), pool.map(str::to_string));
        self.volumes.attach_volume(&VolumeRecord { name, space, pool, ..VolumeRecord::default() })
    }

    fn show(&self, name: &str) -> VolumeInfo {
        VolumeAdmin::volume(&*self.volumes, name).unwrap()
    }

    fn record(&self, name: &str) -> VolumeRecord {
        self.state.snapshot().volumes[name].clone()
    }

    fn edit(&self, name: &str, edit: impl Fn(&mut VolumeRecord)) {
        let change = |s: &mut arden_admin::state::Snapshot| {
            edit(s.volumes.get_mut(name).unwrap());
            Ok(())
        };
        self.state.change(change).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.volumes.stop();
        self.pools.stop();
    }
}

struct Disks(PathBuf);

impl Disks {
    fn new(test: &str) -> Disks {
        let dir = std::env::temp_dir().join(format!("arden-identity-{test}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Disks(dir)
    }

    /// A daemon that owns one pool with a space `dup`.
    fn daemon(&self, pool: &str) -> Daemon {
        let disk = self.0.join(pool);
        fs::File::create(&disk).unwrap().set_len(1 << 30).unwrap();
        let daemon = Daemon::on(Arc::new(State::in_memory().unwrap()));
        let admin = PoolAdmin(daemon.pools.clone());
        let new = NewPool { name: pool.into(), disks: vec![disk], hot_spares: Vec::new(), force: false };
        admin.create_pool(&new).unwrap();
        let space = NewSpace {
            name: "dup".into(),
            layout: "simple".into(),
            size_bytes: Some(64 << 20),
            columns: None,
            interleave_bytes: None,
            fixed: false,
        };
        admin.create_space(pool, &space).unwrap();
        daemon
    }

    /// `tank` with the volume `dv` on its space, and `lake` with `dv2` on a space of the same name, which comes from another daemon
    /// and whose pool is before `tank` in order. The ids of both volumes.
    fn both(&self) -> (Daemon, [String; 2]) {
        let other = self.daemon("lake");
        let dv2 = other.create("dv2", None, false).unwrap().id;
        let record = other.record("dv2");
        drop(other);
        let daemon = self.daemon("tank");
        let dv = daemon.create("dv", None, false).unwrap().id;
        daemon.state.change(|s| Ok(s.volumes.insert("dv2".into(), record.clone()))).unwrap();
        let import = PoolImport { disks: vec![self.0.join("lake")], ..PoolImport::default() };
        PoolAdmin(daemon.pools.clone()).import_pool(&import).unwrap();
        assert_ne!(dv, dv2);
        (daemon.again(), [dv, dv2])
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn each_volume_is_opened_on_the_pool_of_its_record() {
    let disks = Disks::new("pools");
    let (daemon, ids) = disks.both();
    let found = ["dv", "dv2"].map(|name| daemon.show(name).id);
    assert_eq!(found, ids);
    let before = ["dv", "dv2"].map(|name| daemon.record(name));
    let daemon = daemon.again();
    // In the other order, too.
    assert_eq!(["dv2", "dv"].map(|name| daemon.show(name).id), [&*ids[1], &*ids[0]]);
    assert_eq!(["dv", "dv2"].map(|name| daemon.record(name)), before);
    assert_ne!(before[0].pool, before[1].pool);
}

#[test]
fn a_volume_whose_pool_is_closed_is_not_looked_for_elsewhere() {
    let disks = Disks::new("closed");
    let (daemon, ids) = disks.both();
    fs::rename(disks.0.join("tank"), disks.0.join("away")).unwrap();
    let daemon = daemon.again();
    let closed = daemon.show("dv");
    assert!(closed.id.is_empty() && closed.closed_because.contains("\"tank\" is closed"), "{closed:?}");
    assert_eq!(daemon.show("dv2").id, ids[1]);
}

#[test]
fn a_record_of_an_earlier_version_is_completed_only_where_there_is_no_doubt() {
    let disks = Disks::new("earlier");
    let (daemon, ids) = disks.both();
    let (tank, lake) = (daemon.record("dv").pool, daemon.record("dv2").pool);
    for name in ["dv", "dv2"] {
        daemon.edit(name, |r| (r.pool, r.id) = (None, None));
    }
    let daemon = daemon.again();
    let why = daemon.show("dv").closed_because;
    assert!(why.contains("lake, tank each have a space \"dup\""), "{why}");
    // What an earlier version wrote when it took one for the other: both on one pool.
    daemon.edit("dv", |r| r.pool = lake.clone());
    daemon.edit("dv2", |r| r.pool = lake.clone());
    for name in ["dv", "dv2"] {
        let info = daemon.show(name);
        assert!(info.id.is_empty() && info.closed_because.contains("is recorded on space dup"), "{info:?}");
    }
    let wiped = daemon.volumes.delete_volume("dv").unwrap_err();
    assert_eq!(wiped.kind, ErrorKind::Conflict, "{wiped}");
    // The way out that the hint names.
    daemon.volumes.forget_volume("dv").unwrap();
    assert_eq!(daemon.attach("dv", Some("tank")).unwrap().id, ids[0]);
    assert_eq!((daemon.show("dv2").id, daemon.record("dv2").id), (ids[1].clone(), Some(ids[1].clone())));
    assert_eq!(daemon.record("dv").pool, tank);
    // One pool with such a space, one record: it is completed.
    PoolAdmin(daemon.pools.clone()).forget_pool("lake").unwrap_err();
    daemon.volumes.forget_volume("dv2").unwrap();
    PoolAdmin(daemon.pools.clone()).forget_pool("lake").unwrap();
    daemon.edit("dv", |r| (r.pool, r.id) = (None, None));
    let daemon = daemon.again();
    assert_eq!(daemon.show("dv").id, ids[0]);
    assert_eq!((daemon.record("dv").pool, daemon.record("dv").id), (tank, Some(ids[0].clone())));
}

#[test]
fn another_volume_is_not_opened_and_not_deleted() {
    let disks = Disks::new("other");
    let (daemon, ids) = disks.both();
    assert_eq!(daemon.show("dv").id, ids[0]);
    let lake = daemon.record("dv2").pool;
    let tank = daemon.record("dv").pool;
    daemon.edit("dv", |r| r.pool = lake.clone());
    let daemon = daemon.again();
    let why = daemon.show("dv").closed_because;
    assert!(why.contains(&ids[0]) && why.contains(&ids[1]) && why.contains("\"dv2\""), "{why}");
    let refused = daemon.volumes.delete_volume("dv").unwrap_err();
    assert!(refused.kind == ErrorKind::Conflict && refused.hint.contains("arden volume attach dv"), "{refused}");
    assert_eq!(daemon.record("dv").pool, lake, "nothing is recorded of a volume that was refused");
    daemon.edit("dv", |r| r.pool = tank.clone());
    assert_eq!(["dv", "dv2"].map(|name| daemon.show(name).id), ids);
    // Formatting anew makes another volume of it: the record that it had before does not open it.
    daemon.volumes.forget_volume("dv").unwrap();
    let made = daemon.create("anew", Some("tank"), true).unwrap();
    assert_ne!(made.id, ids[0]);
    assert_eq!(daemon.record("anew").id, Some(made.id.clone()));
    assert_eq!(daemon.again().show("anew").id, made.id);
}

#[test]
fn a_name_that_several_pools_have_needs_the_pool() {
    let disks = Disks::new("several");
    let (daemon, ids) = disks.both();
    for name in ["dv", "dv2"] {
        daemon.volumes.forget_volume(name).unwrap();
    }
    for refused in [daemon.create("new", None, true), daemon.attach("new", None)].map(Result::unwrap_err) {
        assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
        assert!(refused.error.contains("lake, tank") && refused.hint.contains("--pool"), "{refused}");
    }
    assert_eq!(daemon.create("new", Some("pond"), false).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(daemon.create("new", Some("LAKE"), false).unwrap_err().kind, ErrorKind::Conflict, "a volume is there");
    assert_eq!(daemon.attach("new", Some("tank")).unwrap().id, ids[0]);
    assert_eq!(daemon.attach("again", Some("tank")).unwrap_err().kind, ErrorKind::Conflict);
    assert_ne!(daemon.create("dv2", Some("lake"), true).unwrap().id, ids[1]);
}
