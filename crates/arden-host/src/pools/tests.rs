//! A pool whose record has several names of one disk.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use arden_admin::{
    State, Storage,
    storage::{NewPool, NewSpace},
};
use arden_space::{Ownership, Right, SpaceResult};

use super::{OpenPool, PoolAdmin, Pools, watch};
use crate::sharing::NothingShared;

struct Disks {
    dir: PathBuf,
    state: Arc<State>,
    id: u128,
}

impl Disks {
    /// The pool `tank` on two disks with a mirror. Its record has another name of each, one before and one behind its own.
    fn new(test: &str) -> Disks {
        let dir = std::env::temp_dir().join(format!("arden-names-{test}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut disks = Disks { dir, state: Arc::new(State::in_memory().unwrap()), id: 0 };
        let [d0, d1] = ["d0", "d1"].map(|name| disks.dir.join(name));
        for disk in [&d0, &d1] {
            fs::File::create(disk).unwrap().set_len(256 << 20).unwrap();
        }
        let pools = Pools::start(&disks.state, Arc::new(NothingShared)).unwrap();
        let admin = PoolAdmin(pools.clone());
        let new =
            NewPool { name: "tank".into(), disks: vec![d0.clone(), d1.clone()], hot_spares: Vec::new(), force: false };
        admin.create_pool(&new).unwrap();
        let space = NewSpace {
            name: "s".into(),
            layout: "mirror2".into(),
            size_bytes: Some(16 << 20),
            columns: None,
            interleave_bytes: None,
            fixed: false,
        };
        admin.create_space("tank", &space).unwrap();
        pools.stop();
        let names = ["a", "z"].map(|name| disks.dir.join(name));
        std::os::unix::fs::symlink(&d0, &names[0]).unwrap();
        std::os::unix::fs::symlink(&d1, &names[1]).unwrap();
        let devices = vec![names[0].clone(), d0, d1, names[1].clone()];
        pools.change_record("tank", |r| r.devices = devices.clone()).unwrap();
        let id = super::pool_id(&pools.record("tank").unwrap()).unwrap();
        disks.id = id;
        disks
    }

    /// Starts on the state with the pool open.
    fn alone(&self) -> (Arc<Pools>, Arc<OpenPool>) {
        let pools = Pools::start(&self.state, Arc::new(NothingShared)).unwrap();
        let open = pools.opened("tank").unwrap();
        (pools, open)
    }
}

/// The disks of the pool that are in use.
fn online(open: &OpenPool) -> usize {
    open.ask(|p| async move { Ok(p.status().disks.iter().filter(|d| d.online).count()) }).unwrap()
}

#[test]
fn a_disk_with_two_names_is_reached_once_and_imported() {
    let disks = Disks::new("import");
    let pools = Pools::start_member(&disks.state, Arc::new(NothingShared)).unwrap();
    let reached = pools.reached(disks.id).unwrap();
    let names: Vec<&str> = reached.iter().filter_map(|r| r.1.file_name()?.to_str()).collect();
    assert_eq!(names, ["a", "d1"], "by the first name of each");
    let written = pools.newest_epoch_of(disks.id).unwrap();
    let ownership = Ownership { epoch: written + 1, written, cluster: 1 };
    let opened: SpaceResult<()> = pools.open_owned(disks.id, ownership, None, Box::new(|| ()));
    opened.unwrap();
    assert_eq!(online(&pools.opened("tank").unwrap()), 2);
    pools.stop();
}

#[test]
fn a_disk_with_two_names_is_opened_by_a_daemon_alone() {
    let disks = Disks::new("alone");
    let (pools, open) = disks.alone();
    assert_eq!(online(&open), 2);
    pools.stop();
    drop(open);
    let record = pools.record("tank").unwrap();
    let open = pools.open(&record, Vec::new(), Right::Alone).unwrap();
    open.close().unwrap();
}

#[test]
fn a_disk_with_two_names_is_taken_back_by_one() {
    let disks = Disks::new("back");
    let (pools, open) = disks.alone();
    let record = pools.record("tank").unwrap();
    let status = open
        .ask(|p| async move {
            p.fail(1, "a test").await?;
            Ok(p.status())
        })
        .unwrap();
    assert!(!status.disks[1].online);
    let mut seen = watch::Seen::default();
    watch::take_back(&pools, "tank", &open, &status, &mut seen);
    // The daemon itself looks for the disk, too.
    while online(&open) < 2 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(seen.waits(), [watch::LOOK_EVERY * 2], "it was tried once");
    assert_eq!(pools.record("tank").unwrap().devices, record.devices);
    pools.stop();
}

#[test]
fn a_disk_is_shown_where_it_is_and_not_where_it_joined() {
    let disks = Disks::new("swapped");
    let [d0, d1, other] = ["d0", "d1", "other"].map(|name| disks.dir.join(name));
    fs::rename(&d0, &other).unwrap();
    fs::rename(&d1, &d0).unwrap();
    fs::rename(&other, &d1).unwrap();
    let (pools, open) = disks.alone();
    pools.change_record("tank", |r| r.devices = vec![d0.clone(), d1.clone()]).unwrap();
    pools.stop();
    drop(open);
    let (pools, open) = disks.alone();
    let paths = || PoolAdmin(pools.clone()).pool("tank").unwrap().disks.into_iter().map(|d| PathBuf::from(d.path));
    assert_eq!(paths().collect::<Vec<_>>(), [d1.clone(), d0.clone()]);
    // As the last that was known of it, also when it is gone.
    fs::rename(&d0, &other).unwrap();
    let gone = |p: arden_space::Pool| async move {
        p.fail(1, "a test").await?;
        p.release_device(1);
        Ok(())
    };
    open.ask(gone).unwrap();
    assert_eq!(paths().collect::<Vec<_>>(), [d1, d0]);
    pools.stop();
}

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
